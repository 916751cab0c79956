//! The labels: closed sets, so that a metric's series are known at the start and
//! counting is one addition to an atomic.

use std::fmt;
use std::marker::PhantomData;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::{TypedMetric, counter::Counter};

use crate::phase::Phase;

/// A label with a fixed set of values.
pub trait Label: Copy + fmt::Debug + Send + Sync + 'static {
    /// The label's name.
    const KEY: &'static str;
    /// All of its values in the order of their [`Label::index`].
    const ALL: &'static [Self];
    /// The value as text.
    fn text(self) -> &'static str;
    /// Its place in [`Label::ALL`].
    fn index(self) -> usize;
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $key:literal { $($(#[$value_doc:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$value_doc])* #[doc = concat!("`", $text, "`")] $value,)+ }

        impl Label for $name {
            const KEY: &'static str = $key;
            const ALL: &'static [Self] = &[$(Self::$value,)+];

            fn text(self) -> &'static str {
                match self { $(Self::$value => $text,)+ }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

label! {
    /// The close code of a connection, `other` for those of no meaning here.
    CloseCode, "code" {
        C1000 = "1000",
        C1001 = "1001",
        C1002 = "1002",
        C1005 = "1005",
        C1006 = "1006",
        C1007 = "1007",
        C1008 = "1008",
        C1009 = "1009",
        C1011 = "1011",
        C1013 = "1013",
        C4001 = "4001",
        C4008 = "4008",
        C4029 = "4029",
        Other = "other",
    }
}

impl From<u16> for CloseCode {
    fn from(code: u16) -> Self {
        match code {
            1000 => Self::C1000,
            1001 => Self::C1001,
            1002 => Self::C1002,
            1005 => Self::C1005,
            1006 => Self::C1006,
            1007 => Self::C1007,
            1008 => Self::C1008,
            1009 => Self::C1009,
            1011 => Self::C1011,
            1013 => Self::C1013,
            4001 => Self::C4001,
            4008 => Self::C4008,
            4029 => Self::C4029,
            _ => Self::Other,
        }
    }
}

label! {
    /// Why a handshake was refused.
    RefusedBecause, "reason" {
        NotAnUpgrade = "not_an_upgrade",
        BadRequest = "bad_request",
        Origin = "origin",
        ServerFull = "server_full",
        HandshakeRate = "handshake_rate",
        Draining = "draining",
        Timeout = "timeout",
        Tls = "tls",
        Authentication = "authentication",
        ConnectRate = "connect_rate",
        ConnectionsPerAddress = "connections_per_address",
    }
}

label! {
    /// The type of a message from a client (protocol.md).
    MessageType, "type" {
        JoinRoom = "join_room",
        LeaveRoom = "leave_room",
        LocationUpdate = "location_update",
        Positions = "positions",
        History = "history",
        BackfillBegin = "backfill_begin",
        BackfillChunk = "backfill_chunk",
        BackfillEnd = "backfill_end",
        TokenRefresh = "token_refresh",
        Ping = "ping",
        Reconnect = "reconnect",
        Other = "other",
    }
}

impl MessageType {
    /// The label of a `type`; unknown ones are `other`.
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self::ALL.iter().copied().find(|t| t.text() == name).unwrap_or(Self::Other)
    }
}

label! {
    /// What became of a message from a client.
    MessageResult, "result" {
        /// Done, or answered as asked.
        Accepted = "accepted",
        /// Answered with an error, or an error to a notification.
        Refused = "refused",
        /// A notification that a pause pushed out.
        Dropped = "dropped",
        /// Of the old gateway, without effect.
        Ignored = "ignored",
    }
}

label! {
    /// A step of the ladder for slow consumers (delivery.md).
    LadderStep, "step" {
        Lagging = "lagging",
        CaughtUp = "caught_up",
        Closed = "closed",
    }
}

label! {
    /// An error code that a request or notification was refused with.
    RefusalCode, "code" {
        InvalidJson = "INVALID_JSON",
        UnknownType = "UNKNOWN_TYPE",
        ValidationError = "VALIDATION_ERROR",
        MessageTooLarge = "MESSAGE_TOO_LARGE",
        NotJoined = "NOT_JOINED",
        Forbidden = "FORBIDDEN",
        AuthFailed = "AUTH_FAILED",
        RoomFull = "ROOM_FULL",
        RoomLimitExceeded = "ROOM_LIMIT_EXCEEDED",
        RateLimited = "RATE_LIMITED",
        ServerBusy = "SERVER_BUSY",
        ServerDraining = "SERVER_DRAINING",
        Internal = "INTERNAL",
        Other = "other",
    }
}

impl RefusalCode {
    /// The label of a code's name; unknown ones are `other`.
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self::ALL.iter().copied().find(|code| code.text() == name).unwrap_or(Self::Other)
    }
}

label! {
    /// What holds the plane (plane.md).
    HoldLabel, "hold" {
        Startup = "startup",
        Store = "store",
        Broker = "broker",
        Operator = "operator",
    }
}

label! {
    /// What became of a `since`.
    ResumeOutcome, "outcome" {
        Recovered = "recovered",
        /// Below what retention has kept.
        TooOld = "too_old",
        /// Another epoch, or above the store's highest.
        Unknown = "unknown",
    }
}

impl Label for Phase {
    const KEY: &'static str = "phase";
    const ALL: &'static [Self] = &Self::ALL;

    fn text(self) -> &'static str {
        self.name()
    }

    fn index(self) -> usize {
        self as usize
    }
}

/// One metric for each value of a label.
#[derive(Debug)]
pub struct By<L, M = Counter>(Box<[M]>, PhantomData<L>);

impl<L: Label, M: Default> Default for By<L, M> {
    fn default() -> Self {
        Self(L::ALL.iter().map(|_| M::default()).collect(), PhantomData)
    }
}

impl<L, M: Clone> Clone for By<L, M> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<L: Label, M> By<L, M> {
    /// The metric of one value.
    pub fn get(&self, label: L) -> &M {
        &self.0[label.index()]
    }
}

impl<L: Label, M: EncodeMetric + TypedMetric> EncodeMetric for By<L, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (label, metric) in L::ALL.iter().zip(&self.0) {
            metric.encode(encoder.encode_family(&[(L::KEY, label.text())])?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

/// One metric for each pair of values of two labels.
#[derive(Debug)]
pub struct ByBoth<A, B, M = Counter>(Box<[M]>, PhantomData<(A, B)>);

impl<A: Label, B: Label, M: Default> Default for ByBoth<A, B, M> {
    fn default() -> Self {
        let metrics = (0..A::ALL.len() * B::ALL.len()).map(|_| M::default()).collect();
        Self(metrics, PhantomData)
    }
}

impl<A, B, M: Clone> Clone for ByBoth<A, B, M> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}

impl<A: Label, B: Label, M> ByBoth<A, B, M> {
    /// The metric of one pair.
    pub fn get(&self, a: A, b: B) -> &M {
        &self.0[a.index() * B::ALL.len() + b.index()]
    }
}

impl<A: Label, B: Label, M: EncodeMetric + TypedMetric> EncodeMetric for ByBoth<A, B, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (n, metric) in self.0.iter().enumerate() {
            let (a, b) = (A::ALL[n / B::ALL.len()], B::ALL[n % B::ALL.len()]);
            let labels = [(A::KEY, a.text()), (B::KEY, b.text())];
            metric.encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::close::Close;

    fn in_place<L: Label + PartialEq>() {
        for (n, label) in L::ALL.iter().enumerate() {
            assert_eq!(label.index(), n, "{label:?}");
        }
    }

    #[test]
    fn every_value_is_in_its_place() {
        in_place::<CloseCode>();
        in_place::<RefusedBecause>();
        in_place::<MessageType>();
        in_place::<MessageResult>();
        in_place::<RefusalCode>();
        in_place::<Phase>();
    }

    #[test]
    fn every_close_has_a_code_of_its_own() {
        for close in Close::ALL {
            assert_eq!(CloseCode::from(close.code()).text(), close.code().to_string());
        }
        assert_eq!(CloseCode::from(4999), CloseCode::Other);
    }

    #[test]
    fn a_name_from_outside_makes_no_new_series() {
        assert_eq!(MessageType::of("history"), MessageType::History);
        assert_eq!(MessageType::of("\"} 1\n"), MessageType::Other);
        assert_eq!(RefusalCode::of("SERVER_BUSY"), RefusalCode::ServerBusy);
    }
}
