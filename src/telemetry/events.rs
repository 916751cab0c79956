//! What happens, told once: each event writes its log line and counts its metric
//! together, so that the two cannot disagree.
//!
//! The names of events and fields are a contract with those who build alerts on
//! them (operation.md, "Logs"). The shutdown's lines are the shutdown's own.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::Metrics;
use super::metrics::{CloseCode, Label, RefusedBecause};

/// Something that can be shown as an address: a socket address, or an IP behind a proxy.
pub type Peer<'a> = &'a (dyn fmt::Display + Sync);

/// A connection has its session.
#[derive(Clone, Copy)]
pub struct ConnectionOpened<'a> {
    /// The session's id.
    pub session_id: &'a str,
    /// Whose it is.
    pub client_id: &'a str,
    /// Where it comes from.
    pub peer: Peer<'a>,
}

impl ConnectionOpened<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        metrics.connections.inc();
        metrics.connections_opened.inc();
        tracing::info!(
            event = "connection.opened",
            session_id = self.session_id,
            client_id = self.client_id,
            peer = %self.peer,
            "connection opened"
        );
    }
}

/// Who ended a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Initiator {
    /// The client, or its network.
    Peer,
    /// This server.
    Server,
}

impl Initiator {
    const fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Server => "server",
        }
    }
}

/// A connection that was opened has ended.
#[derive(Clone, Copy)]
pub struct ConnectionClosed<'a> {
    /// The session's id.
    pub session_id: &'a str,
    /// Whose it was.
    pub client_id: &'a str,
    /// Where it came from.
    pub peer: Peer<'a>,
    /// The close code; 1006 if there was no close frame, 1005 if it had none.
    pub code: u16,
    /// The close reason.
    pub reason: &'a str,
    /// Who ended it.
    pub initiator: Initiator,
    /// How long it lasted.
    pub duration: Duration,
    /// Messages from the client.
    pub messages_in: u64,
    /// Messages to the client.
    pub messages_out: u64,
}

impl ConnectionClosed<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        metrics.connections.dec();
        metrics.connections_closed.get(CloseCode::from(self.code)).inc();
        tracing::info!(
            event = "connection.closed",
            session_id = self.session_id,
            client_id = self.client_id,
            peer = %self.peer,
            code = self.code,
            reason = self.reason,
            initiator = self.initiator.name(),
            duration_ms = u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX),
            messages_in = self.messages_in,
            messages_out = self.messages_out,
            "connection closed"
        );
    }
}

/// A handshake got no session. Logged for each reason at the first of a flood and
/// every hundredth after it, with the count; counted always.
#[derive(Clone, Copy)]
pub struct HandshakeRefused<'a> {
    /// Why.
    pub reason: RefusedBecause,
    /// The HTTP status, or the close code if it was refused after the upgrade.
    pub status: u16,
    /// Where it came from.
    pub peer: Peer<'a>,
}

impl HandshakeRefused<'_> {
    /// Logs and counts it.
    pub fn emit(self, metrics: &Metrics) {
        metrics.handshakes_refused.get(self.reason).inc();
        if let Some(refused) = metrics.handshake_floods.get(self.reason).note(Instant::now()) {
            tracing::warn!(
                event = "handshake.refused",
                reason = self.reason.text(),
                status = self.status,
                peer = %self.peer,
                refused,
                "handshake refused"
            );
        }
    }
}

/// The ports are bound.
#[derive(Debug, Clone, Copy)]
pub struct Listening {
    /// Where clients connect.
    pub public: SocketAddr,
    /// Where the operator connects.
    pub admin: Option<SocketAddr>,
}

impl Listening {
    /// Logs it.
    pub fn emit(self, _: &Metrics) {
        tracing::info!(
            event = "server.listening",
            public = %self.public,
            admin = self.admin.map(tracing::field::display),
            "listening"
        );
    }
}

/// Decides which of many equal lines are written: the first, then every hundredth
/// (1, 101, 201 …), each with the count so far. A minute of silence starts anew.
#[derive(Debug, Default)]
pub struct FloodLog(Mutex<(Option<Instant>, u64)>);

impl FloodLog {
    /// One line for so many.
    pub const EVERY: u64 = 100;
    /// After this silence the next one is a first one.
    pub const SILENCE: Duration = Duration::from_secs(60);

    /// Notes one; the count if it is to be logged.
    pub fn note(&self, now: Instant) -> Option<u64> {
        let (last, count) = &mut *self.0.lock();
        if last.is_some_and(|last| now.saturating_duration_since(last) >= Self::SILENCE) {
            *count = 0;
        }
        *last = Some(now);
        *count += 1;
        (*count % Self::EVERY == 1).then_some(*count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn floods_are_summarised() {
        let flood = FloodLog::default();
        let logged: Vec<u64> = (0..250).filter_map(|_| flood.note(Instant::now())).collect();
        assert_eq!(logged, [1, 101, 201]);
        tokio::time::advance(FloodLog::SILENCE).await;
        assert_eq!(flood.note(Instant::now()), Some(1));
        assert_eq!(flood.note(Instant::now()), None);
    }
}
