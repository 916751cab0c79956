//! What the writer makes of a position: verdicts, rows, and an upload's release.
//! Changes the writer's memory; the file only through the writer's one way.

use super::{Abandoned, Batch, NewRow, Writer};
use crate::room_log::embedded::schema::{LATE, QUIET, UNTIMED};
use crate::room_log::embedded::store;
use crate::room_log::judge::Newest;
use crate::room_log::{Append, Release, RoomOutcome, Verdict};
use crate::time::UnixMillis;

impl Writer {
    /// Judges an append in all its rooms; what is stored becomes rows of the batch.
    pub(super) fn judge(
        &mut self,
        append: &Append,
        now: i64,
        batch: &mut Batch,
    ) -> Result<Vec<RoomOutcome>, Abandoned> {
        let fix = append.fix_time().get();
        let mut outcomes = Vec::with_capacity(append.rooms.len());
        for name in &append.rooms {
            let state = &mut self.state;
            let room = state.catalogue.room(name, state.trimmed_to);
            let vehicle = state.catalogue.vehicle(&append.vehicle);
            let marks = state.judge.marks(
                name,
                &append.vehicle,
                append.key.as_deref(),
                append.fix.map(UnixMillis::get),
                append.latitude,
                append.longitude,
            );
            let mut repeated = state.judge.duplicate_of(room, vehicle, &marks, now);
            if repeated.is_none() && append.quiet && append.fix.is_some() {
                repeated = self.persist(|connection, _| {
                    store::find_repeated(connection, room, vehicle, append)
                })?;
            }
            let (seq, verdict) = if let Some(seq) = repeated {
                (seq, Verdict::Duplicate)
            } else {
                let late = self.state.judge.is_late(room, vehicle, fix);
                let seq = self.store(batch, append, (room, vehicle), late, now);
                self.state.judge.remember(&marks, seq, now);
                if !late && !append.quiet {
                    self.advance(batch, room, vehicle, Newest { seq, fix, place: marks.place });
                }
                (seq, Verdict::Stored { newest: !late })
            };
            outcomes.push(RoomOutcome { room: name.clone(), seq, verdict });
        }
        Ok(outcomes)
    }

    /// Adds a row for `append`, the next of the batch; its `seq`.
    fn store(
        &mut self,
        batch: &mut Batch,
        append: &Append,
        (room, vehicle): (u32, u32),
        late: bool,
        now: i64,
    ) -> u64 {
        self.state.last_seq += 1;
        let seq = self.state.last_seq;
        self.state.catalogue.note(room, vehicle, seq);
        let mut flags = 0;
        if late {
            flags |= LATE;
        }
        if append.quiet {
            flags |= QUIET;
        }
        if append.fix.is_none() {
            flags |= UNTIMED;
        }
        let waited = now.saturating_sub(append.received_at.get());
        batch.rows.push(NewRow { append: batch.appends.len(), seq, room, vehicle, flags, waited });
        seq
    }

    /// Makes a position the newest; the one before goes if retention had only spared it.
    fn advance(&mut self, batch: &mut Batch, room: u32, vehicle: u32, newest: Newest) {
        if let Some(before) = self.state.judge.advance(room, vehicle, newest)
            && before.seq <= self.state.trimmed_to
        {
            batch.removed.push(before.seq);
        }
    }

    /// Moves an upload's newest position to the log's end, if it is newer than newest.
    pub(super) fn release(&mut self, release: &Release) -> Result<(), Abandoned> {
        let Some(room) = self.state.catalogue.find_room(&release.room) else { return Ok(()) };
        let seq = release.seq;
        let Some(row) = self.persist(|connection, _| store::read_quiet(connection, room, seq))?
        else {
            return Ok(());
        };
        let (vehicle, fix) = (row.vehicle_no, row.fix.get());
        if self.state.judge.newest(room, vehicle).is_some_and(|newest| newest.fix >= fix) {
            return Ok(());
        }
        let now = self.commit_time();
        let append = Append {
            rooms: vec![release.room.clone()],
            vehicle: row.vehicle,
            client: row.client,
            sender: release.sender,
            key: row.key,
            fix: (!row.untimed).then_some(row.fix),
            latitude: row.latitude,
            longitude: row.longitude,
            body: row.body,
            received_at: row.received_at,
            quiet: false,
            reply: None,
        };
        let mut batch = Batch { removed: vec![seq], ..Batch::default() };
        let marks = self.state.judge.marks(
            &release.room,
            &append.vehicle,
            append.key.as_deref(),
            append.fix.map(UnixMillis::get),
            append.latitude,
            append.longitude,
        );
        let seq = self.store(&mut batch, &append, (room, vehicle), false, now);
        self.state.judge.remember(&marks, seq, now);
        self.advance(&mut batch, room, vehicle, Newest { seq, fix, place: marks.place });
        batch.appends.push(append);
        let verdict = Verdict::Stored { newest: true };
        let outcome = RoomOutcome { room: release.room.clone(), seq, verdict };
        self.commit(batch, vec![vec![outcome]])
    }
}
