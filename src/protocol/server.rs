//! What the server says, except for positions and pages: answers, events, errors.
//!
//! Each function writes one message of protocol.md, "Server to client". What may exceed
//! `limits.max_frame_out` takes that limit and keeps it. Nothing here decides anything.

use serde::Serialize;

use super::client::Mode;
use super::envelope::RequestId;
use super::error::WireError;
use super::page::{PageBuilder, Push};
pub use super::write::message;
use super::write::{Message, push_head, push_json, push_plain, push_string};
use crate::ids::{ClientId, RoomId};
use crate::time::UnixMillis;

/// The most generations that `server_shutting_down` names.
pub const MAX_NEWER: usize = 8;

/// The most rejected positions that a `backfill_result` lists.
pub const MAX_REJECTED: usize = 1000;

/// What `welcome` says. Times in milliseconds, sizes in bytes.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Welcome<'a> {
    /// The session, new for every connection.
    pub session_id: &'a str,
    /// The identity from the token.
    pub client_id: &'a ClientId,
    /// The process.
    pub instance_id: &'a str,
    /// The release or deployment that the process belongs to.
    pub generation: &'a str,
    /// [`VERSION`](super::VERSION).
    pub protocol: u32,
    /// Now.
    pub server_time: UnixMillis,
    /// How often the server pings.
    pub heartbeat_ms: u64,
    /// After how much silence either side gives up.
    pub heartbeat_timeout_ms: u64,
    /// The longest frame that the server takes.
    pub max_frame_bytes: usize,
    /// The longest frame that the server sends.
    pub max_frame_out_bytes: usize,
    /// The longest payload of a position.
    pub max_position_bytes: usize,
    /// How long an idempotency key is remembered.
    pub dedup_window_ms: u64,
}

/// `welcome`, the first message of a connection.
#[must_use]
pub fn welcome(welcome: &Welcome<'_>) -> String {
    message("welcome", None, welcome)
}

/// `pong`
#[must_use]
pub fn pong(id: Option<&RequestId>, server_time: UnixMillis) -> String {
    Message::new("pong", id).json("serverTime", &server_time).finish()
}

/// `room_joined` to a flat join: the old gateway's clients can use no more.
#[must_use]
pub fn room_joined_flat(id: Option<&RequestId>, room: &RoomId, epoch: &str, seq: u64) -> String {
    Message::new("room_joined", id)
        .text("roomId", room.as_str())
        .text("epoch", epoch)
        .plain("seq", seq)
        .finish()
}

/// `room_joined` in mode `publish`: no members, no positions.
#[must_use]
pub fn room_joined_publish(id: Option<&RequestId>, room: &RoomId, epoch: &str, seq: u64) -> String {
    let nothing: [&str; 0] = [];
    Message::new("room_joined", id)
        .text("roomId", room.as_str())
        .text("mode", Mode::Publish.name())
        .text("epoch", epoch)
        .plain("seq", seq)
        .plain("recovered", false)
        .json("members", &nothing)
        .json("positions", &nothing)
        .plain("more", false)
        .finish()
}

/// `room_left`; `reason` where the server made the connection leave.
#[must_use]
pub fn room_left(id: Option<&RequestId>, room: &RoomId, reason: Option<&str>) -> String {
    Message::new("room_left", id).text("roomId", room.as_str()).text_if("reason", reason).finish()
}

/// `ack`: the sequence number in every room, whether all had it already, and the rooms
/// where it is late.
#[must_use]
pub fn ack<'r>(
    id: Option<&RequestId>,
    rooms: impl IntoIterator<Item = (&'r RoomId, u64)>,
    duplicate: bool,
    late: &[RoomId],
) -> String {
    let mut out = String::with_capacity(160);
    push_head(&mut out, "ack", id);
    out.push_str(",\"payload\":{\"rooms\":{");
    for (index, (room, seq)) in rooms.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        push_string(&mut out, room.as_str());
        out.push(':');
        push_plain(&mut out, seq);
    }
    out.push_str("},\"duplicate\":");
    push_plain(&mut out, duplicate);
    out.push_str(",\"late\":[");
    for (index, room) in late.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        push_string(&mut out, room.as_str());
    }
    out.push_str("]}}");
    out
}

/// `backfill_progress`, after each committed chunk: counts over the whole upload.
#[must_use]
pub fn backfill_progress(accepted: u64, duplicates: u64, rejected: u64) -> String {
    Message::new("backfill_progress", None)
        .plain("accepted", accepted)
        .plain("duplicates", duplicates)
        .plain("rejected", rejected)
        .finish()
}

/// Why one position of an upload was not taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rejected {
    /// Where it stood in the whole upload, from 0.
    pub index: u64,
    /// A sentence for people.
    pub reason: String,
}

/// `backfill_result`: lists as many of `rejected` as [`MAX_REJECTED`] and `limit` bytes
/// allow; `rejected_total` counts them all. `reason` where the upload was ended for the
/// client.
#[must_use]
pub fn backfill_result(
    id: Option<&RequestId>,
    accepted: u64,
    duplicates: u64,
    rejected: &[Rejected],
    rejected_total: u64,
    reason: Option<&str>,
    limit: usize,
) -> String {
    let head = Message::new("backfill_result", id)
        .plain("accepted", accepted)
        .plain("duplicates", duplicates)
        .plain("rejectedTotal", rejected_total)
        .text_if("reason", reason);
    let mut page = PageBuilder::rejected(head, 0, limit);
    let mut text = String::new();
    for item in rejected.iter().take(MAX_REJECTED) {
        text.clear();
        push_json(&mut text, item);
        if page.push_to("rejected", &text) == Push::Full {
            break;
        }
    }
    page.close_lists();
    page.end()
}

/// `token_refresh_ok`
#[must_use]
pub fn token_refresh_ok(
    id: Option<&RequestId>,
    client: &ClientId,
    expires_at: Option<UnixMillis>,
) -> String {
    let message = Message::new("token_refresh_ok", id).text("clientId", client.as_str());
    match expires_at {
        Some(time) => message.json("expiresAt", &time),
        None => message,
    }
    .finish()
}

/// `token_expiring`
#[must_use]
pub fn token_expiring(expires_at: UnixMillis, in_ms: u64) -> String {
    Message::new("token_expiring", None)
        .json("expiresAt", &expires_at)
        .plain("inMs", in_ms)
        .finish()
}

fn presence(
    kind: &str,
    room: &RoomId,
    members: &[ClientId],
    reason: Option<&str>,
    limit: usize,
) -> Vec<String> {
    let only = if let [only] = members { Some(only) } else { None };
    // The reason is one of a few words without escapes; each byte of a name takes two at
    // most.
    let tail = reason.map_or(0, |reason| reason.len() + 13)
        + only.map_or(0, |client| client.as_str().len() * 2 + 15);
    let finish = |mut page: PageBuilder, only: Option<&ClientId>| {
        page.close_lists();
        let out = page.text_mut();
        if let Some(client) = only {
            out.push_str(",\"clientId\":");
            push_string(out, client.as_str());
        }
        if let Some(reason) = reason {
            out.push_str(",\"reason\":");
            push_string(out, reason);
        }
        page.end()
    };
    let mut pages = Vec::with_capacity(1);
    let mut page = PageBuilder::presence(kind, room, tail, limit);
    for client in members {
        if page.push_member(client) == Push::Full {
            let next = PageBuilder::presence(kind, room, tail, limit);
            pages.push(finish(std::mem::replace(&mut page, next), None));
            let _ = page.push_member(client);
        }
    }
    if page.items() > 0 {
        pages.push(finish(page, only));
    }
    pages
}

/// `member_joined`, in as many messages as `limit` bytes need; none for no members.
#[must_use]
pub fn member_joined(room: &RoomId, members: &[ClientId], limit: usize) -> Vec<String> {
    presence("member_joined", room, members, None, limit)
}

/// `member_left`, in as many messages as `limit` bytes need; none for no members.
#[must_use]
pub fn member_left(room: &RoomId, members: &[ClientId], reason: &str, limit: usize) -> Vec<String> {
    presence("member_left", room, members, Some(reason), limit)
}

/// `members_changed`: what a big room says instead of names.
#[must_use]
pub fn members_changed(room: &RoomId, joined: usize, left: usize, member_count: usize) -> String {
    Message::new("members_changed", None)
        .text("roomId", room.as_str())
        .plain("joined", joined)
        .plain("left", left)
        .plain("memberCount", member_count)
        .finish()
}

/// `lagging`: events from `from_seq` on are dropped or merged; `mode` names the rung of
/// the ladder.
#[must_use]
pub fn lagging(room: &RoomId, epoch: &str, from_seq: u64, dropped: u64, mode: &str) -> String {
    Message::new("lagging", None)
        .text("roomId", room.as_str())
        .text("epoch", epoch)
        .plain("fromSeq", from_seq)
        .plain("dropped", dropped)
        .text("mode", mode)
        .finish()
}

/// `caught_up`: nothing is missing after `seq`.
#[must_use]
pub fn caught_up(room: &RoomId, epoch: &str, seq: u64, dropped: u64) -> String {
    Message::new("caught_up", None)
        .text("roomId", room.as_str())
        .text("epoch", epoch)
        .plain("seq", seq)
        .plain("dropped", dropped)
        .finish()
}

/// `notifications_dropped`
#[must_use]
pub fn notifications_dropped(count: u64, reason: &str) -> String {
    Message::new("notifications_dropped", None)
        .plain("count", count)
        .text("reason", reason)
        .finish()
}

/// Why the server closes every connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ShutdownReason {
    /// The process ends.
    Shutdown,
    /// The operator drains it; the process may go on.
    Drain,
}

impl ShutdownReason {
    /// The word on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shutdown => "shutdown",
            Self::Drain => "drain",
        }
    }
}

/// The generations that `server_shutting_down` tells of.
#[derive(Debug, Clone, Copy)]
pub struct Generations<'a> {
    /// The one of the server that stops.
    pub own: &'a str,
    /// Those of others to which a client had better go; at most [`MAX_NEWER`] are told, and
    /// the field is left out without any.
    pub newer: &'a [String],
}

/// `server_shutting_down`: `reconnect_in` in seconds, with as many decimals as it takes up
/// to the tenth of a millisecond (slots are half a millisecond apart at 2,000 a second).
#[must_use]
pub fn server_shutting_down(
    reconnect_in: std::time::Duration,
    closes_in_ms: u64,
    reason: ShutdownReason,
    generations: Option<Generations<'_>>,
) -> String {
    let (seconds, rest) = (reconnect_in.as_secs(), reconnect_in.subsec_nanos() / 100_000);
    let fraction = format!("{rest:04}");
    let fraction = fraction.trim_end_matches('0');
    let message = Message::new("server_shutting_down", None);
    let mut message = if fraction.is_empty() {
        message.plain("reconnectIn", seconds)
    } else {
        message.plain("reconnectIn", format_args!("{seconds}.{fraction}"))
    }
    .plain("closesInMs", closes_in_ms)
    .text("reason", reason.name())
    .plain("resume", true);
    if let Some(Generations { own, newer }) = generations {
        message = message.text("generation", own);
        if !newer.is_empty() {
            message = message.json("newer", &newer[..newer.len().min(MAX_NEWER)]);
        }
    }
    message.finish()
}

/// `error`: `kind` is the offending message's `type`, `suppressed` how many more errors to
/// notifications were not sent.
#[must_use]
pub fn error(
    id: Option<&RequestId>,
    kind: Option<&str>,
    error: &WireError,
    suppressed: Option<u64>,
) -> String {
    let code = error.code();
    let mut message = Message::new("error", id)
        .text("code", code.name())
        .plain("number", code.number())
        .text("message", error.message())
        .text("retry", code.retry().name())
        .text_if("type", kind)
        .text_if("roomId", error.room_id())
        .text_if("field", error.field());
    if let Some(millis) = error.retry_after_ms() {
        message = message.plain("retryAfterMs", millis);
    }
    if let Some(count) = suppressed {
        message = message.plain("suppressed", count);
    }
    message.finish()
}

/// The old gateway's answer to `reconnect`, with its fields at the top level.
#[must_use]
pub fn replay_gap(
    id: Option<&RequestId>,
    room_id: Option<&str>,
    from_seq: u64,
    current_seq: u64,
) -> String {
    let mut out = String::with_capacity(96);
    push_head(&mut out, "replay_gap", id);
    out.push_str(",\"roomId\":");
    push_json(&mut out, &room_id);
    out.push_str(",\"fromSeq\":");
    push_plain(&mut out, from_seq);
    out.push_str(",\"currentSeq\":");
    push_plain(&mut out, current_seq);
    out.push('}');
    out
}
