//! What becomes of an append: it waits for its turn, is judged, published under the
//! condition that the judgement still holds, and is done when it comes back.
//!
//! One is under way per room and vehicle; a sender's appends start in their order; all
//! else runs side by side.

use async_nats::Message;
use tokio::time::Instant;

use super::api::{PublishAnswer, publish_answer};
use super::engine::Engine;
use super::jobs::now;
use super::message::{Fix, Kind, headers, message_id, payload, release_id};
use super::room::{ONLY, Phase};
use crate::broker::subject;
use crate::ids::{ConnId, VehicleId};
use crate::room_log::judge::{Marks, VehicleNo};
use crate::room_log::{Append, Committed, Release, RoomOutcome, Verdict};
use crate::time::UnixMillis;

/// How many publishes are under way at most …
const WINDOW: usize = 4096;
/// … and while the broker fails.
const PROBES: usize = 16;

/// An append that is not done.
pub(super) struct Pending {
    pub(super) append: Append,
    pub(super) parts: Vec<Part>,
    /// The `seq` of the upload's position that goes live with it.
    releases: Option<u64>,
}

/// An append in one room.
pub(super) struct Part {
    pub(super) room: usize,
    vehicle: VehicleNo,
    id: Box<str>,
    late: bool,
    /// The condition of the last attempt.
    after: u64,
    attempt: u32,
    done: Option<(u64, Verdict)>,
}

/// Whether those who are in the room are to hear of what is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// It is the room's next event.
    Now,
    /// It was stored before, or came with a load: told again it would be out of order.
    Already,
}

/// What is to happen when a room has been heard up to some `seq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Then {
    /// It was stored under it.
    Stored,
    /// It repeats what is stored under it.
    Duplicate,
    /// Another one came first: judge again.
    Judge,
}

impl Part {
    /// Whether it was judged late when it was published.
    pub(super) fn late(&self) -> bool {
        self.late
    }
}

impl Engine {
    pub(super) fn append(&mut self, append: Append, releases: Option<u64>) {
        let number = self.next;
        self.next += 1;
        let mut parts = Vec::with_capacity(append.rooms.len());
        for name in &append.rooms {
            let room = self.room(name);
            let vehicle = self.rooms[room].vehicle(&append.vehicle);
            self.rooms[room].pending.insert(number);
            let id = match releases {
                None => message_id(name, &append, || format!("{}-{number}", self.id)),
                Some(seq) => release_id(&self.rooms[room].token, &append.vehicle, seq),
            };
            let id = id.into();
            parts.push(Part { room, vehicle, id, late: false, after: 0, attempt: 0, done: None });
        }
        let sender = append.sender;
        self.pending.insert(number, Pending { append, parts, releases });
        let waiting = self.senders.entry(sender).or_default();
        waiting.push_back(number);
        if waiting.len() == 1 {
            self.due.push_back(sender);
        }
    }

    pub(super) fn release(&mut self, release: Release) {
        self.releasing += 1;
        let token = subject::encode(release.room.as_str());
        self.jobs.released(release, &token);
    }

    pub(super) fn released(&mut self, release: &Release, vehicle: VehicleId, fix: Fix) {
        let append = Append {
            rooms: vec![release.room.clone()],
            vehicle,
            client: fix.client,
            sender: release.sender,
            key: fix.key,
            fix: fix.timed.then_some(fix.fix),
            latitude: fix.latitude,
            longitude: fix.longitude,
            body: fix.body,
            received_at: if fix.timed { fix.received_at } else { fix.fix },
            quiet: false,
            reply: None,
        };
        self.append(append, Some(release.seq));
    }

    /// Publishes what can be published.
    pub(super) fn pump(&mut self) {
        if !self.again.is_empty() && self.health.can_publish() {
            let again: Vec<_> = self.again.iter().copied().collect();
            for (number, part) in again {
                if self.is_full() {
                    return;
                }
                let room = self.pending.get(&number).map(|pending| pending.parts[part].room);
                if room.is_some_and(|room| self.rooms[room].phase == Phase::Live) {
                    self.again.remove(&(number, part));
                    self.judge(number, part);
                }
            }
        }
        while !self.is_full()
            && let Some(sender) = self.due.pop_front()
        {
            self.start_next(sender);
        }
    }

    fn is_full(&self) -> bool {
        let window = if self.health.is_failing() { PROBES } else { WINDOW };
        let flying = self.under_way.len().saturating_sub(self.again.len());
        !self.health.can_publish() || flying >= window
    }

    /// Starts a sender's next append if its rooms are live and its vehicle is free.
    fn start_next(&mut self, sender: ConnId) {
        let Some(waiting) = self.senders.get_mut(&sender) else { return };
        let Some(number) = waiting.front().copied() else {
            self.senders.remove(&sender);
            return;
        };
        let Some(pending) = self.pending.get(&number) else { return };
        for part in &pending.parts {
            let room = &mut self.rooms[part.room];
            if room.phase != Phase::Live {
                room.waiting.push(sender);
                return;
            }
            let track = room.track(part.vehicle);
            if track.busy || track.reading {
                track.waiting.push_back(sender);
                return;
            }
        }
        let parts = pending.parts.len();
        // Before it starts, so that no other one of its sender gets ahead of it.
        if let Some(at) = (0..parts).find(|at| self.wants_window(number, *at)) {
            let part = &self.pending[&number].parts[at];
            let (room, vehicle) = (part.room, part.vehicle);
            self.rooms[room].track(vehicle).waiting.push_back(sender);
            self.read_window(number, at);
            return;
        }
        let Some(pending) = self.pending.get(&number) else { return };
        for part in &pending.parts {
            self.rooms[part.room].track(part.vehicle).busy = true;
        }
        if let Some(waiting) = self.senders.get_mut(&sender) {
            waiting.pop_front();
            if waiting.is_empty() {
                self.senders.remove(&sender);
            } else {
                self.due.push_back(sender);
            }
        }
        for part in 0..parts {
            self.judge(number, part);
        }
    }

    fn marks(&self, pending: &Pending, part: &Part) -> Marks {
        let append = &pending.append;
        self.rooms[part.room].judge.marks(
            &self.rooms[part.room].id,
            &append.vehicle,
            append.key.as_deref(),
            append.fix.map(UnixMillis::get),
            append.latitude,
            append.longitude,
        )
    }

    /// Whether more has to be known of the vehicle before a part can be judged. The stream
    /// knows ids; that a position without a key repeats one that had a key, or where one of
    /// an upload has moved to, must be looked for, but only where it can be another one than
    /// the newest.
    fn wants_window(&self, number: u64, at: usize) -> bool {
        let Some(pending) = self.pending.get(&number) else { return false };
        let (append, part) = (&pending.append, &pending.parts[at]);
        let room = &self.rooms[part.room];
        let track = &room.tracks[part.vehicle as usize];
        if pending.releases.is_some() || track.window_until.is_some() {
            return false;
        }
        let uploads = track.late_at.is_some_and(|at| now() < at.saturating_add(self.window()));
        let keyless = append.key.is_none() && append.fix.is_some();
        let late = append.quiet || room.judge.is_late(ONLY, part.vehicle, append.fix_time().get());
        keyless && late || uploads && (keyless || append.key.is_some())
    }

    /// Reads what the vehicle of a part has within the window.
    fn read_window(&mut self, number: u64, at: usize) {
        let window = self.window();
        let Some(pending) = self.pending.get(&number) else { return };
        let (vehicle, part) = (pending.append.vehicle.clone(), &pending.parts[at]);
        let room = &mut self.rooms[part.room];
        let track = room.track(part.vehicle);
        let now = now();
        track.window_until = Some(now.saturating_add(window));
        track.reading = true;
        let token = subject::encode(vehicle.as_str());
        let subject = self.api.subjects.vehicle(&room.token, &token);
        self.jobs.window(part.room, number, at, vehicle, subject, now.saturating_sub(window));
    }

    /// The deduplication window in milliseconds.
    pub(super) fn window(&self) -> i64 {
        i64::try_from(self.settings.dedup_window.as_millis()).unwrap_or(i64::MAX)
    }

    /// Judges one room's part by what is known now, and publishes it.
    fn judge(&mut self, number: u64, at: usize) {
        let Some(pending) = self.pending.get(&number) else { return };
        let part = &pending.parts[at];
        if part.done.is_some() {
            return;
        }
        let (room_no, vehicle) = (part.room, part.vehicle);
        let marks = self.marks(pending, part);
        let append = &pending.append;
        let fix = append.fix_time().get();
        let now = now();
        let room = &mut self.rooms[room_no];
        if pending.releases.is_some() {
            let newer = room.judge.newest(ONLY, vehicle).is_some_and(|newest| newest.fix >= fix);
            if newer {
                self.drop_release(number);
                return;
            }
        } else if let Some(seq) = room.judge.duplicate_of(ONLY, vehicle, &marks, now) {
            self.complete(number, at, seq, Verdict::Duplicate, Told::Already);
            return;
        }
        let late = room.judge.is_late(ONLY, vehicle, fix);
        let kind = if late || append.quiet { Kind::Late } else { Kind::Live };
        if self.wants_window(number, at) {
            self.read_window(number, at);
            return;
        }
        let Some(pending) = self.pending.get(&number) else { return };
        let append = &pending.append;
        let room = &mut self.rooms[room_no];
        let after = room.track(vehicle).last(kind);
        let vehicle_token = subject::encode(append.vehicle.as_str());
        let subject = self.api.subjects.of(kind, &room.token, &vehicle_token);
        let headers = headers(&part.id, &self.id, after);
        let payload = payload(append, append.quiet);
        let id = part.id.clone();
        let Some(part) = self.pending.get_mut(&number).map(|pending| &mut pending.parts[at]) else {
            return;
        };
        part.late = late;
        part.after = after;
        part.attempt += 1;
        let attempt = part.attempt;
        let reply = format!("{}.{number}.{at}.{attempt}", self.inbox);
        self.under_way.insert(id, (number, at));
        if self.api.link.publish(subject, Some(reply), Some(headers), payload) {
            self.sent.push_back((Instant::now(), number, at, attempt));
        } else {
            self.again.insert((number, at));
            let why = format!("nats {}: the connection takes nothing", self.api.link.urls());
            self.health.lost(&why);
        }
    }

    /// Takes the broker's answer to a publish.
    pub(super) fn answer(&mut self, message: &Message) {
        let mut numbers = message
            .subject
            .strip_prefix(self.inbox.as_str())
            .unwrap_or_default()
            .trim_start_matches('.')
            .split('.')
            .map(str::parse::<u64>);
        let (Some(Ok(number)), Some(Ok(at)), Some(Ok(attempt))) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return;
        };
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let Some(part) = self.pending.get(&number).and_then(|pending| pending.parts.get(at)) else {
            return;
        };
        if part.done.is_some()
            || u64::from(part.attempt) != attempt
            || self.again.contains(&(number, at))
        {
            return;
        }
        match publish_answer(message) {
            PublishAnswer::Stored { seq, duplicate } => {
                self.published();
                let then = if duplicate { Then::Duplicate } else { Then::Stored };
                self.when_heard(number, at, seq, then);
            }
            PublishAnswer::Behind { last } => self.when_heard(number, at, last, Then::Judge),
            PublishAnswer::Failed(error) => {
                self.again.insert((number, at));
                self.failed(&error);
            }
        }
    }

    /// Goes on when the room has been heard up to `seq`, which is most often now.
    fn when_heard(&mut self, number: u64, at: usize, seq: u64, then: Then) {
        let Some(part) = self.pending.get(&number).map(|pending| &pending.parts[at]) else {
            return;
        };
        let (room_no, vehicle, late, after) = (part.room, part.vehicle, part.late, part.after);
        let quiet = self.pending.get(&number).is_some_and(|pending| pending.append.quiet);
        let room = &mut self.rooms[room_no];
        if room.upto < seq || room.phase != Phase::Live {
            room.awaited.insert((seq, number, at), then);
            self.awaiting.push_back((Instant::now(), room_no));
            return;
        }
        match then {
            // Not when it was heard: it is part of what the room was loaded with.
            Then::Stored => {
                self.complete(number, at, seq, Verdict::Stored { newest: !late }, Told::Already);
            }
            Then::Duplicate => {
                self.complete(number, at, seq, Verdict::Duplicate, Told::Already);
            }
            Then::Judge => {
                let kind = if late || quiet { Kind::Late } else { Kind::Live };
                let track = room.track(vehicle);
                // Unless it was heard meanwhile: what retention took, or a late one from
                // before the load.
                if track.last(kind) == after {
                    track.set_last(kind, seq);
                }
                self.judge(number, at);
            }
        }
    }

    /// Goes on with what waited until the room was heard.
    pub(super) fn reached(&mut self, room_no: usize) {
        while let Some(room) = self.rooms.get_mut(room_no)
            && room.phase == Phase::Live
            && let Some(first) = room.awaited.first_entry()
            && first.key().0 <= room.upto
        {
            let ((seq, number, at), then) = first.remove_entry();
            let open =
                self.pending.get(&number).is_some_and(|pending| pending.parts[at].done.is_none());
            if open && !self.again.contains(&(number, at)) {
                if then == Then::Judge {
                    // The track says by now what the last one is.
                    self.judge(number, at);
                } else {
                    self.when_heard(number, at, seq, then);
                }
            }
        }
    }

    /// One room's part is done.
    pub(super) fn complete(
        &mut self,
        number: u64,
        at: usize,
        seq: u64,
        verdict: Verdict,
        told: Told,
    ) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let part = &mut pending.parts[at];
        if part.done.is_some() {
            return;
        }
        part.done = Some((seq, verdict));
        let (room, vehicle) = (part.room, part.vehicle);
        self.under_way.remove(&part.id);
        self.again.remove(&(number, at));
        self.free(number, room, vehicle);
        let Some(pending) = self.pending.get(&number) else { return };
        let seen = verdict == Verdict::Stored { newest: true } && !pending.append.quiet;
        if pending.parts.len() > 1 && seen && told == Told::Now {
            let name = self.rooms[room].id.clone();
            let outcome = RoomOutcome { room: name.clone(), seq, verdict };
            let append = copy(&pending.append, name);
            self.out.arrived(Committed { append, outcomes: vec![outcome] });
        }
        if pending.parts.iter().all(|part| part.done.is_some())
            && let Some(pending) = self.pending.remove(&number)
        {
            self.done(pending, told);
        }
        self.see_to(room);
    }

    fn done(&mut self, pending: Pending, told: Told) {
        let Pending { append, parts, releases } = pending;
        let now = parts.len() == 1 && told == Told::Now;
        let outcomes: Vec<RoomOutcome> = append
            .rooms
            .iter()
            .zip(parts)
            .filter_map(|(room, part)| {
                let (seq, verdict) = part.done?;
                Some(RoomOutcome { room: room.clone(), seq, verdict })
            })
            .collect();
        if releases.is_some() {
            self.releasing -= 1;
        }
        let committed = Committed { append, outcomes };
        if now {
            self.out.committed(committed);
        } else {
            self.out.answered(committed);
        }
    }

    /// The vehicle may publish the next one in this room.
    fn free(&mut self, number: u64, room: usize, vehicle: VehicleNo) {
        let room = &mut self.rooms[room];
        room.pending.remove(&number);
        room.idle_since = Instant::now();
        let track = room.track(vehicle);
        track.busy = false;
        self.due.extend(track.waiting.drain(..));
    }

    /// A newer position than the upload's has come: nothing happens.
    fn drop_release(&mut self, number: u64) {
        let Some(pending) = self.pending.remove(&number) else { return };
        self.releasing -= 1;
        for (at, part) in pending.parts.iter().enumerate() {
            self.under_way.remove(&part.id);
            self.again.remove(&(number, at));
            self.free(number, part.room, part.vehicle);
            self.see_to(part.room);
        }
    }

    /// Everything under way may be lost: it is published again, in its order, once its
    /// room has heard what it missed, unless it was among it.
    pub(super) fn repeat_all(&mut self) {
        self.again.extend(self.under_way.values().copied());
        self.sent.clear();
        self.awaiting.clear();
        for (_, room) in &mut self.rooms {
            room.awaited.clear();
        }
    }

    /// Publishes again what had no answer since `before`, and reads what should have been
    /// heard by now.
    pub(super) fn give_up_waiting(&mut self, sent_before: Instant, heard_before: Instant) {
        while let Some((at, room)) = self.awaiting.front().copied()
            && at <= heard_before
        {
            self.awaiting.pop_front();
            let Some(found) = self.rooms.get(room) else { continue };
            if !found.awaited.is_empty() {
                if found.phase == Phase::Live {
                    self.fill(room);
                }
                self.awaiting.push_back((Instant::now(), room));
            }
        }
        while let Some((when, number, at, attempt)) = self.sent.front().copied()
            && when <= sent_before
        {
            self.sent.pop_front();
            let Some(part) = self.pending.get(&number).map(|pending| &pending.parts[at]) else {
                continue;
            };
            let open = part.done.is_none() && part.attempt == attempt;
            let awaited = self.rooms[part.room]
                .awaited
                .keys()
                .any(|(_, waiting, part)| (*waiting, *part) == (number, at));
            if open && !awaited && self.again.insert((number, at)) {
                let why = format!(
                    "nats {}, stream {}: no acknowledgement within {} s",
                    self.api.link.urls(),
                    self.api.subjects.stream(),
                    super::health::ANSWER_WITHIN.as_secs()
                );
                self.health.lost(&why);
            }
        }
    }

    /// The window of a vehicle has been read, or could not be: who waited for it goes on.
    pub(super) fn window_read(&mut self, number: u64, at: usize) {
        let Some(part) = self.pending.get(&number).map(|pending| &pending.parts[at]) else {
            return;
        };
        let track = self.rooms[part.room].track(part.vehicle);
        track.reading = false;
        self.due.extend(track.waiting.drain(..));
        if track.busy {
            self.again.insert((number, at));
        }
    }
}

/// One room's share of an append for several.
fn copy(append: &Append, room: crate::ids::RoomId) -> Append {
    Append {
        rooms: vec![room],
        vehicle: append.vehicle.clone(),
        client: append.client.clone(),
        sender: append.sender,
        key: None,
        fix: append.fix,
        latitude: append.latitude,
        longitude: append.longitude,
        body: append.body.clone(),
        received_at: append.received_at,
        quiet: false,
        reply: None,
    }
}
