/**
 * Sessions coming and going: when to connect, where, and what a lost one leaves behind
 * (README, "Close codes"). The one timer is the core's; this says what is due when.
 */
import { getToken, open, read } from "./attempt.js";
import { MilepostError } from "./error.js";
import { Backoff, comeBack, millis, neverStarted } from "./timing.js";

/** @typedef {import("./attempt.js").Attempt} Attempt */
/** @typedef {import("./attempt.js").Failure} Failure */
/** @typedef {import("./core.js").Core} Core */
/** @typedef {import("./link.js").Link} Link */
/** @typedef {import("./options.js").Settings} Settings */

/** How often a client that was told of a newer generation tries again to find it. */
const SEEK_AGAIN = 2;

export class Sessions {
  /** @type {Link[]} */
  links = [];
  /** @type {Link | null} */
  current = null;
  /** @type {Attempt | null} */
  connecting = null;
  /** @type {number | null} */
  reconnectAt = null;
  /** The wait was asked for: waking up does not shorten it. */
  #firm = false;
  #nextEndpoint = 0;
  /** When each endpoint may be tried again. @type {number[]} */
  #notBefore;
  /** The attempt is made for refused requests only. */
  #forResend = false;
  /** A token that the server refused: it is not tried again. @type {string | null} */
  #refusedToken = null;
  #refreshing = false;
  /** @type {number | null} */
  #refreshAt = null;
  /** The generation to get away from. @type {{generation: string, left: number} | null} */
  #seeking = null;

  /**
   * @param {Core} core
   * @param {Settings} settings
   */
  constructor(core, settings) {
    this.core = core;
    this.settings = settings;
    this.backoff = new Backoff(settings.firstMs, settings.capMs, settings.random);
    this.reconnectAt = core.now();
    this.#notBefore = settings.endpoints.map(() => 0);
  }

  /** The wall time of the next attempt, if the client waits for it. */
  get dueAt() {
    if (this.reconnectAt === null || this.connecting !== null) return null;
    return Math.max(this.reconnectAt, this.#notBefore[this.#nextEndpoint] ?? 0);
  }

  /**
   * Sees to it that a session is on its way where one is needed.
   * @param {number} now
   */
  schedule(now) {
    const { current, backoff } = this;
    const refusedHere = current !== null && this.core.requests.refusedBy(current.session);
    const fine = current !== null && !current.noticed && !current.refuses;
    if (fine && !refusedHere && this.#seeking === null) {
      // The reason for the move is gone, so nothing of it stays.
      this.reconnectAt = null;
      this.#dropAttempt();
      this.#forResend = false;
      return;
    }
    if (this.connecting !== null) return;
    if (refusedHere && !this.#forResend) {
      this.#forResend = true;
      if (current.endpoint === this.#nextEndpoint) this.#turnFrom(current.endpoint);
      // Somebody waits: another endpoint can be had before the notice's time.
      if (this.settings.endpoints.length > 1 || this.reconnectAt === null) {
        const soon = now + backoff.next();
        this.reconnectAt = Math.min(this.reconnectAt ?? soon, soon);
      }
    }
    this.reconnectAt ??= now + backoff.next();
    if (/** @type {number} */ (this.dueAt) > now) return;
    this.reconnectAt = null;
    this.#firm = false;
    this.connecting = {
      endpoint: this.#nextEndpoint,
      by: now + this.settings.connectTimeoutMs,
      link: null,
      over: false,
    };
    void this.#open(this.connecting);
  }

  /** @param {number} index */
  #turnFrom(index) {
    this.#nextEndpoint = (index + 1) % this.settings.endpoints.length;
  }

  #dropAttempt() {
    const attempt = this.connecting;
    if (attempt === null) return;
    attempt.over = true;
    this.connecting = null;
    attempt.link?.abandon();
  }

  /** @param {Attempt} attempt */
  async #open(attempt) {
    const failure = await open(this.settings, attempt, this.#refusedToken, (link) =>
      this.#listen(link, attempt),
    );
    if (failure !== null) this.#failed(attempt, failure);
  }

  /**
   * @param {Link} link
   * @param {Attempt} attempt
   */
  #listen(link, attempt) {
    attempt.link = link;
    const { socket } = link;
    socket.onmessage = (event) => {
      const message = typeof event.data === "string" ? read(event.data) : null;
      if (link.stage !== "connecting") this.core.message(link, message);
      else if (message?.type === "welcome" && message.payload.sessionId !== undefined) {
        this.#welcomed(link, attempt, message.payload);
      } else this.#failed(attempt, { why: "something else came before welcome" });
    };
    socket.onclose = (event) => {
      const { code, reason } = event;
      if (link.stage === "connecting") {
        link.stage = "gone";
        this.#failed(attempt, { code, reason: String(reason), token: link.token });
      } else this.#closed(link, code, String(reason));
    };
    // Every error is followed by a close.
    socket.onerror = () => {};
  }

  /**
   * @param {Link} link
   * @param {Attempt} attempt
   * @param {Record<string, any>} welcome
   */
  #welcomed(link, attempt, welcome) {
    const now = this.core.now();
    const old = this.current;
    link.welcomed(welcome, now);
    attempt.over = true;
    this.connecting = null;
    this.#refusedToken = null;
    this.reconnectAt = null;
    this.#firm = false;
    this.#forResend = false;
    this.#nextEndpoint = link.endpoint;
    this.links.push(link);
    if (this.#sought(link.generation, now) && old?.takesRequests) {
      // As old as the one in use, and the rooms are there already.
      link.close(now);
      this.core.run(() => {});
      return;
    }
    this.#refreshing = false;
    this.#refreshAt = null;
    this.current = link;
    this.core.run(() => this.core.sessionBegan(link, welcome));
  }

  /**
   * An attempt to find a newer generation is over; `true` if that did not find it. Then the
   * next one is set, if there may be one.
   * @param {string | null} generation of the new session; null: there is none
   * @param {number} now
   */
  #sought(generation, now) {
    const seeking = this.#seeking;
    if (seeking === null) return false;
    if (generation !== null && generation !== seeking.generation) {
      this.#seeking = null;
      return false;
    }
    if (seeking.left > 0) {
      seeking.left -= 1;
      this.reconnectAt = now + this.backoff.spread();
    } else {
      this.#seeking = null;
    }
    return true;
  }

  /**
   * @param {Attempt} attempt
   * @param {Failure} failure
   */
  #failed(attempt, failure) {
    if (attempt.over) return;
    const now = this.core.now();
    attempt.over = true;
    this.connecting = null;
    if (attempt.link !== null && attempt.link.stage !== "gone") attempt.link.abandon();
    const { endpoint } = attempt;
    this.core.run(() => {
      let code = 1006;
      let reason = "";
      if ("code" in failure) {
        ({ code, reason } = failure);
        const advice = comeBack(code, reason);
        if (advice === "with-new-token") return this.#tokenRefused(failure.token, reason, now);
        this.#wait(advice, now);
        this.#turnFrom(endpoint);
      } else if ("token" in failure) {
        this.core.emit("error", { error: new MilepostError("TOKEN", failure.token) });
        this.#wait("backoff", now);
      } else {
        reason = failure.why;
        this.#wait("backoff", now);
        this.#turnFrom(endpoint);
      }
      if (this.current?.takesRequests) this.#sought(null, now);
      this.#told(code, reason, false, now);
    });
  }

  /**
   * @param {number} code
   * @param {string} reason
   * @param {boolean} opened
   * @param {number} now
   */
  #told(code, reason, opened, now) {
    const due = this.dueAt;
    const retryInMs = due === null ? null : Math.max(0, Math.round(due - now));
    this.core.emit("close", { code, reason, retryInMs, opened });
  }

  /**
   * @param {import("./timing.js").Advice} advice
   * @param {number} now
   */
  #wait(advice, now) {
    const { backoff } = this;
    this.#firm = advice === "after-a-minute";
    this.reconnectAt =
      now +
      (advice === "at-once"
        ? backoff.atOnce()
        : advice === "after-a-minute"
          ? backoff.aMinute()
          : backoff.next());
  }

  /**
   * @param {string | null} token
   * @param {string} reason
   * @param {number} now
   */
  #tokenRefused(token, reason, now) {
    const error = new MilepostError("UNAUTHORIZED", reason || "the server refused the token");
    this.core.emit("error", { error });
    if (typeof this.settings.token !== "function") {
      this.core.emit("close", { code: 4001, reason, retryInMs: null, opened: this.current !== null });
      this.core.end(error);
      return;
    }
    this.#refusedToken = token;
    this.#wait("at-once", now);
    this.#firm = true;
    this.#told(4001, reason, false, now);
  }

  /**
   * A link's socket has closed.
   * @param {Link} link
   * @param {number} code
   * @param {string} reason
   */
  #closed(link, code, reason) {
    const now = this.core.now();
    const ours = link.stage === "closing";
    link.stage = "gone";
    this.links = this.links.filter((one) => one !== link);
    this.core.run(() => {
      // A close that this side began says nothing about the server.
      this.#lost(link, ours ? 1006 : code, ours ? "" : reason, now);
    });
  }

  /**
   * A session is over: its rooms and requests are homeless, and another one is needed if it was
   * the current one.
   * @param {Link} link
   * @param {number} code
   * @param {string} reason
   * @param {number} now
   */
  #lost(link, code, reason, now) {
    const advice = comeBack(code, reason);
    this.core.sessionEnded(link, neverStarted(code, reason), advice !== "after-a-minute", now);
    if (this.current !== link) return;
    this.current = null;
    this.#refreshing = false;
    this.#refreshAt = null;
    this.backoff.sessionLasted(now - link.born);
    if (this.connecting === null) {
      if (advice === "with-new-token") return this.#tokenRefused(link.token, reason, now);
      // The notice may have set the time, and the endpoint, already.
      if (!link.noticed || this.reconnectAt === null) {
        this.#wait(advice, now);
        if (advice !== "at-once") this.#turnFrom(link.endpoint);
      }
    }
    this.#told(code, reason, true, now);
  }

  /**
   * The server announced its end.
   * @param {Link} link
   * @param {Record<string, any>} notice
   * @param {number} now
   */
  noticed(link, notice, now) {
    if (link.noticed) return;
    link.noticed = true;
    const at = now + millis(notice.reconnectIn * 1000, 0);
    this.#notBefore[link.endpoint] = at;
    if (this.current !== link) return;
    const newer = Array.isArray(notice.newer) && notice.newer.length > 0;
    this.#seeking =
      newer && link.generation !== "" ? { generation: link.generation, left: SEEK_AGAIN } : null;
    this.#turnFrom(link.endpoint);
    this.reconnectAt = at;
    this.#firm = true;
  }

  /**
   * Looks at once whether the sessions are alive.
   * @param {number} now
   */
  check(now) {
    for (const link of this.links) {
      if (!link.isOpen || link.checkBy !== null) continue;
      link.checkBy = now + this.settings.wakeTimeoutMs;
      this.core.ping(link, now);
    }
  }

  /**
   * This side slept until `now`: what came meanwhile has yet to be read.
   * @param {number} now
   */
  excuse(now) {
    for (const link of this.links) link.checkBy = null;
    this.wake(now);
  }

  /**
   * The machine may have slept, or the network changed: looks at the sessions, and does not
   * wait out a backoff.
   * @param {number} now
   */
  wake(now) {
    this.check(now);
    if (this.current === null && this.reconnectAt !== null && !this.#firm) {
      this.reconnectAt = Math.min(this.reconnectAt, now + this.backoff.spread());
    }
  }

  /** A fresh token is wanted, if there can be one. */
  async refreshToken() {
    const link = this.current;
    if (typeof this.settings.token !== "function" || this.#refreshing || link === null) return;
    this.#refreshing = true;
    let token = null;
    let failed = null;
    try {
      token = await getToken(this.settings);
    } catch (error) {
      failed = new MilepostError("TOKEN", `the token provider failed: ${error}`);
    }
    if (this.current !== link) return;
    this.#refreshing = false;
    this.core.run(() => {
      if (failed !== null) {
        this.core.emit("error", { error: failed });
        this.#refreshAt = this.core.now() + this.backoff.spread();
      } else if (token !== null && link.takesRequests) {
        this.core.ask(link, "token_refresh", JSON.stringify({ token }), { kind: "refresh", token });
      }
    });
  }

  /** The next time at which something is to be done. */
  nextDeadline() {
    let next = Math.min(this.dueAt ?? Infinity, this.connecting?.by ?? Infinity);
    next = Math.min(next, this.#refreshAt ?? Infinity);
    for (const link of this.links) {
      if (link.closeBy !== null) next = Math.min(next, link.closeBy);
      else {
        const ping = Math.max(link.heard, link.pinged) + this.pingIdle(link);
        const dead = link.checkBy ?? link.heard + this.deadAfter(link);
        next = Math.min(next, ping, dead);
      }
    }
    return next;
  }

  /** @param {Link} link */
  pingIdle(link) {
    return this.settings.pingIdleMs ?? link.heartbeatMs / 2;
  }

  /** @param {Link} link */
  deadAfter(link) {
    return this.settings.deadAfterMs ?? link.heartbeatTimeoutMs;
  }

  /**
   * Whether nothing has come from this link for too long to call its view live.
   * @param {Link} link
   * @param {number} now
   */
  silent(link, now) {
    return now >= this.staleAt(link);
  }

  /** @param {Link} link */
  staleAt(link) {
    return link.heard + (this.settings.staleAfterMs ?? link.heartbeatMs);
  }

  /**
   * Something is due.
   * @param {number} now
   */
  timers(now) {
    if (this.connecting !== null && this.connecting.by <= now) {
      this.#failed(this.connecting, { why: "no welcome in time" });
    }
    if (this.#refreshAt !== null && this.#refreshAt <= now) {
      this.#refreshAt = null;
      void this.refreshToken();
    }
    for (const link of [...this.links]) {
      if (link.closeBy !== null) {
        if (link.closeBy > now) continue;
        link.abandon();
        this.links = this.links.filter((one) => one !== link);
        this.#lost(link, 1006, "", now);
      } else if ((link.checkBy ?? link.heard + this.deadAfter(link)) <= now) {
        link.abandon();
        this.links = this.links.filter((one) => one !== link);
        this.#lost(link, 1006, "", now);
      } else if (link.isOpen && Math.max(link.heard, link.pinged) + this.pingIdle(link) <= now) {
        this.core.ping(link, now);
      }
    }
  }

  /**
   * Ends every session with a close handshake.
   * @param {number} now
   */
  end(now) {
    this.#dropAttempt();
    this.reconnectAt = null;
    this.#refreshAt = null;
    this.#seeking = null;
    this.current = null;
    for (const link of this.links) link.close(now);
  }
}
