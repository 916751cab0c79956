//! The task that knows how the link is, and moves away from a server that is about to
//! stop.
//!
//! It looks at the connection itself many times a second; events only wake it earlier.

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Event};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::LinkState;
use super::link::round_trip;

/// How often the connection is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often a round trip is made …
const ASK_EVERY: Duration = Duration::from_secs(1);
/// … and how long it may take before the link counts as down.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// What the client's events hint at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hint {
    /// The connection changed.
    Changed,
    /// The server is about to stop.
    LameDuck,
    /// A subscription of this process dropped messages.
    Dropped,
    /// The last thing that went wrong.
    Trouble(String),
}

impl Hint {
    pub(super) fn of(event: &Event) -> Self {
        match event {
            Event::LameDuckMode => Self::LameDuck,
            Event::SlowConsumer(_) => Self::Dropped,
            Event::ServerError(error) => Self::Trouble(error.to_string()),
            Event::ClientError(error) => Self::Trouble(error.to_string()),
            Event::Connected | Event::Disconnected | Event::Draining | Event::Closed => {
                Self::Changed
            }
        }
    }
}

pub(super) struct Watcher {
    pub(super) client: Client,
    pub(super) urls: Arc<str>,
    pub(super) state: watch::Sender<LinkState>,
    pub(super) dropped: watch::Sender<u64>,
    pub(super) hints: mpsc::UnboundedReceiver<Hint>,
}

impl Watcher {
    /// Watches until the link is closed or nobody has it any more.
    pub(super) async fn run(mut self) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut trouble: Option<String> = None;
        let mut ask_at = Instant::now() + ASK_EVERY;
        let mut asked: Option<tokio::task::JoinHandle<bool>> = None;
        let mut silent = false;
        let mut generation = self.generation();
        loop {
            tokio::select! {
                biased;
                () = self.state.closed() => break,
                hint = self.hints.recv() => match hint {
                    None => break,
                    Some(Hint::Changed) => {}
                    Some(Hint::LameDuck) => self.move_on().await,
                    Some(Hint::Dropped) => self.dropped.send_modify(|count| *count += 1),
                    Some(Hint::Trouble(text)) => trouble = Some(text),
                },
                _ = looks.tick() => {}
            }
            if *self.state.borrow() == LinkState::Closed {
                break;
            }
            let now = self.generation();
            if now != generation {
                generation = now;
                silent = false;
                trouble = None;
                asked = None;
                ask_at = Instant::now() + ASK_EVERY;
            }
            let connected = self.client.connection_state() == State::Connected;
            if let Some(answer) = asked.take_if(|task| task.is_finished()) {
                silent = !answer.await.unwrap_or(false);
                ask_at = Instant::now() + ASK_EVERY;
            }
            if connected && asked.is_none() && Instant::now() >= ask_at {
                let client = self.client.clone();
                asked = Some(tokio::spawn(round_trip(client, ANSWER_WITHIN)));
            }
            self.tell(connected, silent, generation, trouble.as_deref());
        }
    }

    fn tell(&self, connected: bool, silent: bool, generation: u64, trouble: Option<&str>) {
        let state = if !connected {
            let because = trouble.map(|text| format!(": {text}")).unwrap_or_default();
            let reason = format!("nats {}: no connection{because}", self.urls);
            LinkState::Down { reason: reason.into() }
        } else if silent {
            let reason = format!("nats {}: the server does not answer", self.urls);
            LinkState::Down { reason: reason.into() }
        } else {
            LinkState::Up { generation }
        };
        self.state.send_if_modified(|known| {
            let differs = *known != state && *known != LinkState::Closed;
            if differs {
                *known = state;
            }
            differs
        });
    }

    /// The count of connections; unlike an event it cannot be missed.
    fn generation(&self) -> u64 {
        self.client.statistics().connects.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Leaves a server in lame-duck mode if there is another one to go to.
    async fn move_on(&self) {
        let others = self.client.server_pool().await.map_or(0, |pool| pool.len());
        if others > 1 {
            tracing::info!(
                event = "broker.lame_duck",
                "broker: the server is about to stop, moving to another one"
            );
            // Fails only when the client has ended, which shows as a state.
            let _ = self.client.force_reconnect().await;
        }
    }
}
