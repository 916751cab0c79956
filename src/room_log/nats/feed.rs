//! What comes out of the stream: the rooms' feeds, loads and fills, applied in the room's
//! order and reported.

use async_nats::Message;
use futures_util::stream::{AbortHandle, Abortable};
use tokio::time::Instant;

use super::api::ApiError;
use super::engine::{Engine, RoomFeed};
use super::jobs::{Filled, Found, Loaded, now};
use super::message::{Event, Kind};
use super::publish::Told;
use super::room::{Missing, Phase};
use crate::ids::RoomId;
use crate::room_log::{Append, Committed, ELSEWHERE, LogEvent, Release, RoomOutcome, Verdict};

/// What is to be done at a later tick.
pub(super) enum Later {
    Head(RoomId),
    Release(Release),
    /// Compare the room with what the stream had then.
    Verify {
        room: usize,
        work: u64,
        last: u64,
        at: Instant,
    },
}

impl Engine {
    /// Applies what the feeds brought, by `seq`.
    pub(super) fn heard(&mut self, messages: &mut Vec<(usize, Message)>) {
        self.note_generation();
        let subjects = &self.api.subjects;
        let mut events: Vec<(usize, Event)> = messages
            .drain(..)
            .filter_map(|(room, message)| Some((room, Event::of_feed(subjects, &message)?)))
            .collect();
        events.sort_by_key(|(_, event)| event.seq);
        let now = Instant::now();
        for (room, event) in events {
            #[cfg(test)]
            if self.loses(&event) {
                continue;
            }
            if let Some(event) = self.order.take(room, event, now) {
                self.hear(room, event);
            }
        }
        while let Some((room, event)) = self.order.next(now) {
            self.hear(room, event);
        }
    }

    pub(super) fn hear(&mut self, number: usize, event: Event) {
        match self.rooms.get_mut(number) {
            None => {}
            Some(room) if room.phase == Phase::Live => self.apply(number, event, true),
            Some(room) => room.backlog.push(event),
        }
    }

    /// Applies the room's next event. `told`: it says which event of its vehicle came
    /// before it.
    fn apply(&mut self, number: usize, event: Event, told: bool) {
        let Some(room) = self.rooms.get_mut(number) else { return };
        if event.seq <= room.upto {
            // It has been applied, or was read otherwise; or the others overtook it.
            if told && !room.knows(&event) {
                self.order.too_late(Instant::now());
                self.start_over(number);
            }
            return;
        }
        match room.note(&event, now(), told) {
            Ok(()) => {}
            Err(Missing::Next) => {
                room.backlog.push(event);
                self.fill(number);
                return;
            }
            Err(Missing::Earlier) => {
                self.order.too_late(Instant::now());
                self.start_over(number);
                self.hear(number, event);
                return;
            }
        }
        if !self.own(&event, Told::Now) && event.kind == Kind::Live && self.rooms[number].reported {
            self.arrived(number, event);
        }
        self.reached(number);
    }

    /// Completes what this engine published itself.
    fn own(&mut self, event: &Event, told: Told) -> bool {
        if *event.by != *self.id {
            return false;
        }
        let Some((number, at)) = self.under_way.get(&event.id).copied() else { return false };
        let Some(pending) = self.pending.get(&number) else { return false };
        let newest = match event.kind {
            Kind::Live => true,
            Kind::Late => pending.append.quiet && !pending.parts[at].late(),
        };
        self.complete(number, at, event.seq, Verdict::Stored { newest }, told);
        true
    }

    fn arrived(&mut self, number: usize, event: Event) {
        let Some(fix) = event.fix else { return };
        let room = self.rooms[number].id.clone();
        let append = Append {
            rooms: vec![room.clone()],
            vehicle: event.vehicle,
            client: fix.client,
            sender: ELSEWHERE,
            key: None,
            fix: Some(fix.fix),
            latitude: fix.latitude,
            longitude: fix.longitude,
            body: fix.body,
            received_at: fix.received_at,
            quiet: false,
            reply: None,
        };
        let verdict = Verdict::Stored { newest: true };
        let outcomes = vec![RoomOutcome { room, seq: event.seq, verdict }];
        self.out.arrived(Committed { append, outcomes });
    }

    /// Takes what a job brought.
    pub(super) fn found(&mut self, found: Found) {
        match found {
            Found::Listening { room: number, subscriber } => {
                // A room in use keeps its place, so this is the one that asked.
                let Some(room) = self.rooms.get_mut(number) else { return };
                let (handle, registration) = AbortHandle::new_pair();
                if let Some(before) = room.subscription.replace(handle) {
                    before.abort();
                }
                let feed = RoomFeed { room: number, subscriber };
                self.feeds.push(Abortable::new(feed, registration));
            }
            Found::Load { room, work, result } => {
                if self.is_current(room, work) {
                    match result {
                        Ok(loaded) => self.loaded(room, &loaded),
                        Err(error) => self.unread(room, &error),
                    }
                }
            }
            Found::Fill { room, work, result } => {
                if self.is_current(room, work) {
                    match result {
                        Ok(filled) => self.filled(room, filled),
                        Err(error) => self.unread(room, &error),
                    }
                }
            }
            Found::Window { room, number, part, vehicle, result } => match result {
                Ok(events) => {
                    // Unless the room has started over since: these are of what was before.
                    let room = self.rooms.get_mut(room).and_then(|room| {
                        let vehicle = room.vehicle(&vehicle);
                        room.track(vehicle).window_until.map(|_| room)
                    });
                    if let Some(room) = room {
                        for event in &events {
                            if let Some(fix) = &event.fix {
                                let marks = room.marks(&event.vehicle, fix);
                                let at = event.stored_at.unwrap_or_else(now);
                                room.judge.remember(&marks, event.seq, at);
                            }
                        }
                    }
                    self.window_read(number, part);
                }
                Err(error) => {
                    if let Some(room) = self.rooms.get_mut(room) {
                        let vehicle = room.vehicle(&vehicle);
                        room.track(vehicle).window_until = None;
                    }
                    self.window_read(number, part);
                    self.failed(&error);
                }
            },
            Found::Head { room, result } => self.head_found(room, result.ok()),
            Found::Check { room, work, last } => {
                if let Ok(last) = last {
                    let at = Instant::now() + super::health::VERIFY_AFTER;
                    self.later.push(Later::Verify { room, work, last, at });
                }
            }
            Found::Released { release, result } => match result {
                Ok(Some((vehicle, fix))) => self.released(&release, vehicle, fix),
                Ok(None) => self.releasing -= 1,
                Err(_) => self.later.push(Later::Release(release)),
            },
            Found::Stream(result) => self.stream_seen(result),
        }
    }

    fn is_current(&self, room: usize, work: u64) -> bool {
        self.rooms.get(room).is_some_and(|room| room.working && room.work == work)
    }

    /// A load or fill failed; it is repeated at a tick.
    fn unread(&mut self, number: usize, error: &ApiError) {
        if let Some(room) = self.rooms.get_mut(number) {
            room.working = false;
        }
        self.unread.push(number);
        self.failed(error);
    }

    fn loaded(&mut self, number: usize, loaded: &Loaded) {
        let Some(room) = self.rooms.get_mut(number) else { return };
        room.working = false;
        room.upto = room.upto.max(loaded.head);
        room.base = room.base.max(loaded.head);
        for event in &loaded.newest {
            let vehicle = room.vehicle(&event.vehicle);
            room.track(vehicle).set_last(Kind::Live, event.seq);
            if let Some(fix) = &event.fix {
                let marks = room.marks(&event.vehicle, fix);
                room.advance(vehicle, event.seq, fix.fix, marks);
            }
        }
        for (vehicle, seq, stored_at) in &loaded.late {
            let vehicle = room.vehicle(vehicle);
            let track = room.track(vehicle);
            track.set_last(Kind::Late, *seq);
            track.late_at = track.late_at.max(*stored_at);
        }
        room.phase = Phase::Live;
        // What came back meanwhile is in the load, but its answer is not.
        let mut backlog = std::mem::take(&mut room.backlog);
        backlog.sort_by_key(|event| event.seq);
        let rest = backlog.split_off(backlog.partition_point(|event| event.seq <= loaded.head));
        for event in &backlog {
            self.own(event, Told::Already);
        }
        self.report(number, loaded);
        self.go_on(number, rest);
    }

    /// Answers the loads whose turn it is.
    fn report(&mut self, number: usize, loaded: &Loaded) {
        let epoch = self.epoch.read().clone();
        let visible = i64::try_from(self.settings.newest_age.as_millis()).unwrap_or(i64::MAX);
        let visible = now().saturating_sub(visible);
        let room = &mut self.rooms[number];
        while room.can_report() {
            room.loads.pop_front();
            room.reported = true;
            let newest = loaded
                .newest
                .iter()
                .filter(|event| event.fix.as_ref().is_some_and(|fix| fix.fix.get() >= visible))
                .filter_map(|event| event.clone().into_stored())
                .collect();
            self.out.send(LogEvent::RoomLoaded {
                room: room.id.clone(),
                epoch: epoch.clone(),
                head: loaded.head,
                trimmed_to: loaded.first.saturating_sub(1),
                newest,
            });
        }
    }

    fn filled(&mut self, number: usize, filled: Filled) {
        if let Some(room) = self.rooms.get_mut(number) {
            room.working = false;
        }
        let gaps = !filled.events.is_empty();
        for event in filled.events {
            self.apply(number, event, false);
        }
        if gaps {
            tracing::debug!(event = "room_log.filled", "room log: missed events were read");
        }
        if filled.more {
            self.see_to(number);
            return;
        }
        let Some(room) = self.rooms.get_mut(number) else { return };
        room.upto = room.upto.max(filled.head);
        room.base = room.base.max(filled.head);
        room.phase = Phase::Live;
        let backlog = std::mem::take(&mut room.backlog);
        self.go_on(number, backlog);
    }

    /// The room is live again: what waited for that goes on.
    fn go_on(&mut self, number: usize, mut backlog: Vec<Event>) {
        let Some(room) = self.rooms.get_mut(number) else { return };
        for head in room.heads.drain(..) {
            self.out.send(LogEvent::HeadConfirmed { room: room.id.clone(), head });
        }
        self.due.extend(room.waiting.drain(..));
        self.reached(number);
        backlog.sort_by_key(|event| event.seq);
        for event in backlog {
            self.hear(number, event);
        }
        self.see_to(number);
    }

    fn head_found(&mut self, name: RoomId, found: Option<(u64, u64)>) {
        let Some((head, last)) = found else {
            self.later.push(Later::Head(name));
            return;
        };
        match self.by_name.get(&name).copied() {
            Some(number)
                if self.rooms[number].upto < last || self.rooms[number].phase != Phase::Live =>
            {
                self.rooms[number].heads.push_back(head);
                self.fill(number);
            }
            _ => self.out.send(LogEvent::HeadConfirmed { room: name, head }),
        }
    }

    /// Repeats what failed, and looks whether what was to be heard has been.
    pub(super) fn later(&mut self) {
        for number in std::mem::take(&mut self.unread) {
            self.see_to(number);
        }
        for later in std::mem::take(&mut self.later) {
            match later {
                Later::Head(room) => {
                    let token = crate::broker::subject::encode(room.as_str());
                    self.jobs.head(room, token);
                }
                Later::Release(release) => {
                    let token = crate::broker::subject::encode(release.room.as_str());
                    self.jobs.released(release, &token);
                }
                Later::Verify { room: number, work, last, at } => {
                    if at > Instant::now() {
                        self.later.push(Later::Verify { room: number, work, last, at });
                    } else if self.rooms.get(number).is_some_and(|room| {
                        room.work == work && room.phase == Phase::Live && room.upto < last
                    }) {
                        self.fill(number);
                    }
                }
            }
        }
    }
}
