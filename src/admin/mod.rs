//! The admin port: health, readiness, metrics, status, and what changes the server
//! (operation.md, "Ports").
//!
//! It runs on a thread and a runtime of its own, so that it answers while the workers are
//! saturated, and stays up until the process ends.

mod guard;
mod readiness;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::connection::Registry;
use crate::listener::{Body, error, json};
use crate::phase::Phase;
use crate::plane::{Hold, Plane};
use crate::rooms::Hub;
use crate::shutdown::evacuation::{Evacuation, EvacuationStatus, ShuttingDown};
use crate::shutdown::{OthersSlot, Status, Trigger, TriggerSender, Watchdog};
use crate::telemetry::logs::parse_level;
use crate::telemetry::metrics::{CONTENT_TYPE, ResumeOutcome};
use crate::telemetry::{LogHandle, Metrics};
use crate::transport::upgrade;

pub use guard::{Guard, TokenFileError};
pub use readiness::{Obstacle, Readiness};

/// After how long without an answer the workers count as dead.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);
/// Clients a second that a drain notices where nothing else is asked for.
const DEFAULT_DRAIN_RATE: u32 = 100;
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// When the workers' runtime last ran a task.
#[derive(Debug, Clone)]
pub struct Probe {
    started: Instant,
    answered: Arc<AtomicU64>,
}

impl Probe {
    /// Starts the probed task on the current runtime.
    #[must_use]
    pub fn start() -> Self {
        let probe = Self { started: Instant::now(), answered: Arc::default() };
        let running = probe.clone();
        tokio::spawn(async move {
            loop {
                let now = running.started.elapsed().as_secs();
                running.answered.store(now, Ordering::Relaxed);
                tokio::time::sleep(PROBE_INTERVAL).await;
            }
        });
        probe
    }

    fn is_alive(&self) -> bool {
        let answered = Duration::from_secs(self.answered.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(answered) < PROBE_TIMEOUT
    }
}

/// What the admin port shows and changes.
pub struct State {
    /// The connections.
    pub registry: Arc<Registry>,
    /// The rooms.
    pub hub: Arc<Hub>,
    /// The plane, which the operator may pause.
    pub plane: Arc<Plane>,
    /// The other instances, if there can be any.
    pub others: OthersSlot,
    /// The paced evacuation.
    pub evacuation: Arc<Evacuation>,
    /// Whether traffic is wanted.
    pub readiness: Arc<Readiness>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The shutdown so far.
    pub shutdown: Status,
    /// Changes the log level.
    pub log_level: Option<LogHandle>,
    /// Where a stop goes.
    pub triggers: TriggerSender,
    /// Armed together with a stop.
    pub watchdog: Option<Watchdog>,
    /// The workers' sign of life.
    pub probe: Probe,
    /// When the process started.
    pub started: Instant,
    /// This process's public name.
    pub instance_id: Arc<str>,
}

/// Serves the admin port on a thread of its own, and `metrics` (what changes nothing) on a
/// second address if there is one.
///
/// # Errors
/// When there is no thread or runtime to be had.
pub fn spawn(
    admin: std::net::TcpListener,
    metrics: Option<std::net::TcpListener>,
    guard: Guard,
    state: State,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let state = Arc::new(state);
    thread::Builder::new().name("admin".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let guard = Arc::new(guard);
            let public = metrics.map(|listener| serve(listener, None, state.clone()));
            let private = serve(admin, Some(guard), state.clone());
            match public {
                Some(public) => {
                    tokio::join!(public, private);
                }
                None => private.await,
            }
        });
    })?;
    Ok(())
}

async fn serve(listener: std::net::TcpListener, guard: Option<Arc<Guard>>, state: Arc<State>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (state, guard) = (state.clone(), guard.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let response = respond(&state, guard.as_deref(), peer, &request);
                std::future::ready(Ok::<_, Infallible>(response))
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(Duration::from_secs(10))
                .serve_connection(TokioIo::new(stream), service)
                .await;
            // A prober that hangs up is no event.
            drop(served);
        });
    }
}

fn respond(
    state: &State,
    guard: Option<&Guard>,
    peer: SocketAddr,
    request: &Request<Incoming>,
) -> Response<Body> {
    let path = request.uri().path();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if reads {
        return match path {
            "/livez" => state.livez(),
            "/readyz" => {
                let (status, body) = state.readiness.answer(state.registry.len());
                json(status, &body)
            }
            "/metrics" => state.metrics(),
            "/drain" => state.drained(Ok(state.evacuation.status())),
            "/status" => json(StatusCode::OK, &state.status()),
            _ => not_found(),
        };
    }
    let known = matches!(
        (request.method(), path),
        (&Method::POST, "/shutdown")
            | (&Method::PUT, "/log-level")
            | (&Method::POST | &Method::DELETE, "/quiesce" | "/drain")
    );
    let Some(guard) = guard.filter(|_| known) else { return not_found() };
    if let Err(refused) = guard.check(peer, request) {
        return error(refused.status(), refused.code(), refused.text());
    }
    match path {
        "/shutdown" => state.shut_down(),
        "/drain" if request.method() == Method::POST => state.drain(request.uri().query()),
        "/drain" => state.drained(state.evacuation.stop()),
        "/quiesce" => state.quiesce(request.method() == Method::POST, request.uri().query()),
        _ => state.set_log_level(request),
    }
}

fn not_found() -> Response<Body> {
    let text = "GET /livez, /readyz, /metrics, /status; POST /shutdown; POST, DELETE /quiesce; \
                GET, POST, DELETE /drain; PUT /log-level?level=…";
    error(StatusCode::NOT_FOUND, "NOT_FOUND", text)
}

impl State {
    fn livez(&self) -> Response<Body> {
        // A shutdown keeps the workers as busy as it likes: nobody is to kill it for that.
        let alive = self.readiness.phase() != Phase::Running || self.probe.is_alive();
        let status = if alive { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let word = if alive { "alive" } else { "workers do not answer" };
        json(status, &serde_json::json!({ "status": word }))
    }

    fn metrics(&self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.metrics.encode()));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        response
    }

    fn status(&self) -> serde_json::Value {
        let (rooms, members) = self.hub.counts();
        let queues = queue_totals(&self.registry);
        let (requests, notifications, bytes) = self.plane.held();
        let resumes = |outcome| self.metrics.resumes.get(outcome).get();
        let holds: Vec<_> = self
            .plane
            .holds()
            .into_iter()
            .map(|(hold, reason)| serde_json::json!({ "hold": hold.name(), "reason": reason }))
            .collect();
        let others: Vec<_> = self
            .others
            .get()
            .map(|others| others.known())
            .unwrap_or_default()
            .iter()
            .map(|other| {
                serde_json::json!({
                    "instanceId": &*other.instance,
                    "generation": other.generation,
                    "clients": other.clients,
                    "draining": other.draining,
                })
            })
            .collect();
        serde_json::json!({
            "instanceId": &*self.instance_id,
            "version": env!("CARGO_PKG_VERSION"),
            "phase": self.readiness.phase().name(),
            "readiness": self.readiness.word(),
            "uptimeSeconds": self.started.elapsed().as_secs(),
            "connections": self.registry.len(),
            "rooms": rooms,
            "members": members,
            "queues": {
                "messages": queues.messages,
                "bytes": queues.bytes,
                "maxMessages": queues.max_messages,
                "maxBytes": queues.max_bytes,
            },
            "log": { "epoch": &*self.hub.epoch(), "seq": self.hub.head() },
            "resumes": {
                "recovered": resumes(ResumeOutcome::Recovered),
                "tooOld": resumes(ResumeOutcome::TooOld),
                "unknown": resumes(ResumeOutcome::Unknown),
            },
            "others": others,
            "holds": holds,
            "held": { "requests": requests, "notifications": notifications, "bytes": bytes },
            "shutdown": self.shutdown.report(&self.registry),
        })
    }

    fn shut_down(&self) -> Response<Body> {
        if let Some(watchdog) = &self.watchdog {
            watchdog.arm();
        }
        // An error means that the coordinator is done: the process ends anyway.
        let _ = self.triggers.send(Trigger::Admin);
        json(StatusCode::ACCEPTED, &serde_json::json!({ "status": "shutting_down" }))
    }

    fn drain(&self, query: Option<&str>) -> Response<Body> {
        let rate = query.and_then(|query| upgrade::query_value(query, "rate"));
        match rate.as_deref().map_or(Ok(DEFAULT_DRAIN_RATE), str::parse) {
            Ok(rate) if rate > 0 => self.drained(self.evacuation.begin(rate)),
            _ => {
                let text = "rate must be a number of clients a second, at least 1.";
                error(StatusCode::BAD_REQUEST, "VALIDATION_ERROR", text)
            }
        }
    }

    fn drained(&self, status: Result<EvacuationStatus, ShuttingDown>) -> Response<Body> {
        let stopping = self.readiness.phase() >= Phase::StopAccepting;
        match status {
            Ok(status) if !stopping => json(StatusCode::OK, &serde_json::json!(status)),
            _ => error(StatusCode::CONFLICT, "SERVER_DRAINING", "The server is shutting down."),
        }
    }

    fn quiesce(&self, pause: bool, query: Option<&str>) -> Response<Body> {
        let changed = if pause {
            let reason = query
                .and_then(|query| upgrade::query_value(query, "reason"))
                .unwrap_or_else(|| "asked for through the admin port".to_owned());
            self.plane.hold(Hold::Operator, reason)
        } else {
            self.plane.release(Hold::Operator)
        };
        let body = serde_json::json!({ "paused": !self.plane.is_open(), "changed": changed });
        json(StatusCode::OK, &body)
    }

    fn set_log_level(&self, request: &Request<Incoming>) -> Response<Body> {
        let level = request.uri().query().and_then(|query| query.strip_prefix("level="));
        match (level.map(parse_level), &self.log_level) {
            (Some(Ok(parsed)), Some(handle)) => {
                handle.set_level(parsed);
                tracing::info!(event = "log.level", level = %parsed, "log level changed");
                json(StatusCode::OK, &serde_json::json!({ "level": parsed.to_string() }))
            }
            (Some(Ok(_)), None) => {
                let text = "The logs of this process are not set up here.";
                error(StatusCode::CONFLICT, "CONFLICT", text)
            }
            _ => {
                let text = "level must be one of error, warn, info, debug, trace.";
                error(StatusCode::BAD_REQUEST, "VALIDATION_ERROR", text)
            }
        }
    }
}

/// Sums over all outgoing queues.
#[derive(Debug, Clone, Copy, Default)]
pub struct QueueTotals {
    /// Messages that wait.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The longest queue.
    pub max_messages: u64,
    /// The largest queue.
    pub max_bytes: u64,
}

/// Looks at all outgoing queues.
#[must_use]
pub fn queue_totals(registry: &Registry) -> QueueTotals {
    registry.handles().iter().map(|handle| handle.queue.backlog()).fold(
        QueueTotals::default(),
        |totals, backlog| QueueTotals {
            messages: totals.messages + backlog.messages,
            bytes: totals.bytes + backlog.bytes,
            max_messages: totals.max_messages.max(backlog.messages),
            max_bytes: totals.max_bytes.max(backlog.bytes),
        },
    )
}
