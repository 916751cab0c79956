//! Opening the room log of the configured engine. Clients may connect meanwhile; what they
//! ask for is held, and readiness says what is waited for.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::{StartError, settings};
use crate::broker::{self, Link};
use crate::config::{self, Config, Engine};
use crate::plane::{Hold, Plane};
use crate::room_log::{Embedded, Lock, LockError, LogEvent, Nats, RoomLog};
use crate::telemetry::Metrics;

/// A short look at the lock before anybody is told of a wait.
const LOCK_GLANCE: Duration = Duration::from_millis(50);
/// How long after an attempt to reach the broker the next one follows.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How often the log says that the broker is still waited for.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// What opening needs of the process.
#[derive(Clone, Copy)]
pub(super) struct Opening<'a> {
    pub(super) instance: &'a str,
    pub(super) plane: &'a Plane,
    pub(super) metrics: &'a Arc<Metrics>,
}

/// An open room log.
pub(super) struct Opened {
    pub(super) log: Arc<dyn RoomLog>,
    /// The link that it shares with whoever else talks to the broker.
    pub(super) link: Option<Link>,
}

/// Opens the log. Waits for another process's lock for a while, for a broker for ever.
pub(super) async fn open(
    config: &Config,
    process: Opening<'_>,
    events: mpsc::UnboundedSender<LogEvent>,
) -> Result<Opened, StartError> {
    match config.room_log.engine {
        Engine::Embedded => embedded(&config.room_log, process.plane, events).await,
        Engine::Nats => nats(config, process, events).await,
    }
}

async fn embedded(
    config: &config::RoomLog,
    plane: &Plane,
    events: mpsc::UnboundedSender<LogEvent>,
) -> Result<Opened, StartError> {
    let path = config.path.clone();
    let lock = match Lock::acquire(&path, LOCK_GLANCE.min(config.lock_wait)).await {
        Err(LockError::Held { .. }) => {
            let text = format!("waiting for the lock on {}", path.display());
            plane.hold(Hold::Startup, text.clone());
            tracing::info!(event = "room_log.waiting", "room log: {text}");
            Lock::acquire(&path, config.lock_wait.saturating_sub(LOCK_GLANCE)).await?
        }
        lock => lock?,
    };
    plane.hold(Hold::Startup, format!("opening {}", path.display()));
    let settings = settings::log_settings(config);
    let opened = tokio::task::spawn_blocking(move || Embedded::open(lock, &settings, events));
    let log = opened.await.map_err(std::io::Error::other)??;
    tracing::info!(
        event = "room_log.open",
        engine = %Engine::Embedded,
        path = %config.path.display(),
        epoch = &*log.epoch(),
        "room log: open"
    );
    Ok(Opened { log: Arc::new(log), link: None })
}

async fn nats(
    config: &Config,
    process: Opening<'_>,
    events: mpsc::UnboundedSender<LogEvent>,
) -> Result<Opened, StartError> {
    let mut waiting = Waiting { plane: process.plane, said: None };
    let link = connect(settings::broker_settings(&config.nats, process.instance), &mut waiting);
    let link = link.await?;
    let stream = &config.nats.stream;
    process.plane.hold(Hold::Startup, format!("opening the stream {stream} at {}", link.urls()));
    let settings = settings::stream_settings(config);
    let log = loop {
        let metrics = process.metrics.clone();
        match Nats::open(link.clone(), settings.clone(), metrics, events.clone()).await {
            Ok(log) => break log,
            Err(error) if error.is_temporary() => waiting.say(&error),
            Err(error) => return Err(error.into()),
        }
        sleep(ASK_AGAIN).await;
    };
    tracing::info!(
        event = "room_log.open",
        engine = %Engine::Nats,
        url = link.urls(),
        stream,
        replicas = config.nats.replicas,
        epoch = &*log.epoch(),
        "room log: open"
    );
    Ok(Opened { log: Arc::new(log), link: Some(link) })
}

/// Connects, trying again for as long as no server answers. Whatever trying again does not
/// help is an error: at the start somebody is there to read it.
async fn connect(
    settings: broker::Settings,
    waiting: &mut Waiting<'_>,
) -> Result<Link, StartError> {
    loop {
        match Link::connect(settings.clone()).await {
            Ok(link) => return Ok(link),
            Err(error) if error.is_temporary() => waiting.say(&error),
            Err(error) => return Err(error.into()),
        }
        sleep(ASK_AGAIN).await;
    }
}

/// What is said while the broker is waited for: readiness always, the log now and then.
struct Waiting<'a> {
    plane: &'a Plane,
    said: Option<Instant>,
}

impl Waiting<'_> {
    fn say(&mut self, error: &dyn std::error::Error) {
        self.plane.hold(Hold::Startup, format!("waiting for the broker: {error}"));
        if self.said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
            self.said = Some(Instant::now());
            tracing::warn!(
                event = "room_log.waiting",
                engine = %Engine::Nats,
                error = %error,
                "room log: waiting for the broker"
            );
        }
    }
}
