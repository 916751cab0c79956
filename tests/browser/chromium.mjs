// One Chromium for all tests, and pages that note everything that must not happen.

import { existsSync } from "node:fs";
import { chromium } from "playwright-core";
import { leftBehind, until } from "./processes.mjs";

export const executable = process.env.MILEPOST_CHROMIUM ?? "/usr/bin/chromium";
// As root there is no sandbox: containers.
export const flags = process.getuid() === 0 ? ["--no-sandbox"] : [];

let browser;

async function launched() {
  if (!existsSync(executable)) throw new Error(`there is no ${executable}: run .ci/setup`);
  browser ??= await chromium.launch({ executablePath: executable, args: [...flags, "--enable-precise-memory-info"] });
  return browser;
}

export async function closeBrowser() {
  await browser?.close();
}

/** The map of a server, open in a page of its own. */
export class MapPage {
  /**
   * @param {string} base  of the server, or of a network to it
   * @param {object} [options]
   * @param {string[]} [options.rooms]
   * @param {boolean} [options.offline]  the connection will be lost: the browser may say so
   */
  static async open(base, { rooms = [], offline = false, hash = "", ...context } = {}) {
    const map = new MapPage();
    map.base = base;
    map.offline = offline;
    map.context = await (await launched()).newContext({ locale: "en-GB", timezoneId: "UTC", viewport: { width: 1280, height: 800 }, ...context });
    map.end = () => map.context.close().catch(() => {});
    leftBehind.add(map.end);
    map.page = await map.context.newPage();
    map.page.setDefaultTimeout(30_000);
    map.page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) map.problems.push(`console: ${message.text()} ${message.location().url}`);
    });
    map.page.on("pageerror", (error) => map.problems.push(`error: ${error.stack}`));
    map.page.on("dialog", (dialog) => {
      map.problems.push(`dialog: ${dialog.message()}`);
      void dialog.dismiss();
    });
    map.page.on("request", (request) => map.requests.push(request.url()));
    map.page.on("websocket", (socket) => map.requests.push(socket.url()));
    map.page.on("popup", (popup) => map.problems.push(`popup: ${popup.url()}`));
    const query = rooms.map((room) => `room=${encodeURIComponent(room)}`).join("&");
    map.response = await map.page.goto(`${base}/${query ? `?${query}` : ""}${hash}`);
    await map.page.waitForFunction(() => globalThis.milepost);
    return map;
  }

  /** @type {string[]} */
  problems = [];
  /** @type {string[]} */
  requests = [];

  /** What the page exposes for a console. */
  read(name) {
    return this.page.evaluate((name) => globalThis.milepost?.[name], name);
  }

  /** Waits until the page shows so many vehicles. */
  async vehicles(count) {
    await until(`${count} vehicles`, async () => (await this.read("vehicles"))?.length === count);
  }

  /** The text of an element. */
  text(selector) {
    return this.page.locator(selector).textContent();
  }

  /** A value of the connection panel, as it is read by people. */
  async value(name) {
    return (await this.text(`#connection-${name}`)).trim();
  }

  /** Ends the page; nothing bad may have happened on it. */
  async close() {
    leftBehind.delete(this.end);
    await this.context.close();
    const origin = new URL(this.base).host;
    const foreign = this.requests.filter((url) => !/^(data|blob|about):/.test(url) && new URL(url).host !== origin);
    if (foreign.length > 0) throw new Error(`requests to others: ${foreign}`);
    const problems = this.problems.filter((text) => !(this.offline && /WebSocket connection to|net::ERR_|Failed to load resource/.test(text)));
    if (problems.length > 0) throw new Error(`on the page: ${problems.join("\n")}`);
  }
}
