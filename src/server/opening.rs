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
use crate::room_log::{Embedded, Lock, LockError, LogEvent, RoomLog};

/// A short look at the lock before anybody is told of a wait.
const LOCK_GLANCE: Duration = Duration::from_millis(50);
/// How long after an attempt to reach the broker the next one follows.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How often the log says that the broker is still waited for.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// An open room log.
pub(super) struct Opened {
    pub(super) log: Arc<dyn RoomLog>,
    /// The link that it shares with whoever else talks to the broker.
    pub(super) link: Option<Link>,
}

/// Opens the log. Waits for another process's lock for a while, for a broker for ever.
pub(super) async fn open(
    config: &Config,
    instance: &str,
    plane: &Plane,
    events: mpsc::UnboundedSender<LogEvent>,
) -> Result<Opened, StartError> {
    match config.room_log.engine {
        Engine::Embedded => embedded(&config.room_log, plane, events).await,
        Engine::Nats => nats(config, instance, plane, events).await,
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
    instance: &str,
    plane: &Plane,
    _events: mpsc::UnboundedSender<LogEvent>,
) -> Result<Opened, StartError> {
    let _link = connect(settings::broker_settings(&config.nats, instance), plane).await?;
    Err(StartError::System(std::io::Error::other("room_log.engine = \"nats\" is not built in yet")))
}

/// Connects, trying again for as long as no server answers. Whatever trying again does not
/// help is an error: at the start somebody is there to read it.
async fn connect(settings: broker::Settings, plane: &Plane) -> Result<Link, StartError> {
    let mut waiting = Waiting::default();
    loop {
        match Link::connect(settings.clone()).await {
            Ok(link) => return Ok(link),
            Err(error) if error.is_temporary() => waiting.say(&error, plane),
            Err(error) => return Err(error.into()),
        }
        sleep(ASK_AGAIN).await;
    }
}

/// What is said while the broker is waited for: readiness always, the log now and then.
#[derive(Default)]
struct Waiting {
    said: Option<Instant>,
}

impl Waiting {
    fn say(&mut self, error: &dyn std::error::Error, plane: &Plane) {
        plane.hold(Hold::Startup, format!("waiting for the broker: {error}"));
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
