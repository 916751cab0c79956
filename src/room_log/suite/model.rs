//! Each engine against a naive model, through restarts and retention.

use proptest::prelude::*;

use super::*;

/// The log as protocol.md words it: a list and nothing else.
struct Model {
    rows: Vec<ModelRow>,
    last_seq: u64,
}

#[derive(Debug, Clone)]
struct ModelRow {
    seq: u64,
    room: usize,
    vehicle: usize,
    key: Option<u16>,
    timed: bool,
    fix: i64,
    place: u8,
    late: bool,
    quiet: bool,
}

impl Model {
    fn newest(&self, room: usize, vehicle: usize) -> Option<&ModelRow> {
        self.of(room, vehicle).filter(|r| !r.late && !r.quiet).max_by_key(|r| (r.fix, r.seq))
    }

    fn of(&self, room: usize, vehicle: usize) -> impl Iterator<Item = &ModelRow> {
        self.rows.iter().filter(move |r| r.room == room && r.vehicle == vehicle)
    }

    fn append(&mut self, mut row: ModelRow) -> (u64, Verdict) {
        let repeated = self
            .of(row.room, row.vehicle)
            .filter(|known| match row.key {
                Some(_) => known.key == row.key,
                None => {
                    row.timed && known.timed && (known.fix, known.place) == (row.fix, row.place)
                }
            })
            .map(|known| known.seq)
            .max();
        if let Some(seq) = repeated {
            return (seq, Verdict::Duplicate);
        }
        row.late = self.newest(row.room, row.vehicle).is_some_and(|n| row.fix < n.fix);
        self.last_seq += 1;
        row.seq = self.last_seq;
        let verdict = Verdict::Stored { newest: !row.late };
        self.rows.push(row);
        (self.last_seq, verdict)
    }

    /// Whether the row is moved to the end.
    fn release(&mut self, seq: u64) -> bool {
        let Some(at) = self.rows.iter().position(|r| r.seq == seq && r.quiet) else {
            return false;
        };
        let row = self.rows[at].clone();
        if self.newest(row.room, row.vehicle).is_some_and(|n| n.fix >= row.fix) {
            return false;
        }
        self.rows.remove(at);
        self.last_seq += 1;
        self.rows.push(ModelRow { seq: self.last_seq, quiet: false, late: false, ..row });
        true
    }

    fn live(&self, room: usize, after: u64) -> Vec<u64> {
        let live = self.rows.iter().filter(|r| r.room == room && !r.late && !r.quiet);
        live.map(|r| r.seq).filter(|seq| *seq > after).collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Append { rooms: u8, vehicle: usize, key: Option<u16>, fix: Option<u16>, place: u8, quiet: bool },
    Release(prop::sample::Index),
    Read(prop::sample::Index),
    Kill,
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let append = (
        1_u8..4,
        0_usize..3,
        prop::option::weighted(0.3, 0_u16..6),
        prop::option::weighted(0.8, 0_u16..12),
        0_u8..2,
        prop::bool::weighted(0.3),
    )
        .prop_map(|(rooms, vehicle, key, fix, place, quiet)| Step::Append {
            rooms,
            vehicle,
            key,
            fix,
            place,
            quiet,
        });
    let step = prop_oneof![
        20 => append,
        3 => any::<prop::sample::Index>().prop_map(Step::Release),
        3 => any::<prop::sample::Index>().prop_map(Step::Read),
        1 => Just(Step::Kill),
        1 => Just(Step::Close),
    ];
    prop::collection::vec(step, 1..60)
}

const ROOMS: [&str; 2] = ["a", "b"];
const VEHICLES: [&str; 3] = ["x", "y", "z"];

/// Runs the steps against the model. With `small`, retention takes what it may all the
/// while: then a read is exact or refused, and everything else is as ever, but for what
/// was both trimmed and forgotten in a restart: keys and times are not used again then.
async fn run(steps: Vec<Step>, store: Store, small: bool) {
    let mut log = store.open().await;
    let epoch = log.engine.epoch();
    // Something is in the log already, so that the first event is none of these rooms.
    let last_seq = stored(&log.append(position(&["before"], "v", 0)).await);
    let mut model = Model { rows: Vec::new(), last_seq };
    let mut clock = UnixMillis::now();
    let mut restarts = 0;
    for step in steps {
        match step {
            Step::Append { rooms, vehicle, key, fix, place, quiet } => {
                clock = clock.plus(1);
                let fresh = if small { restarts * 12 } else { 0 };
                let (key, fix) = (key.map(|key| key + fresh), fix.map(|fix| fix + fresh));
                let targets: Vec<usize> = (0..2).filter(|n| rooms & 1 << n != 0).collect();
                let names: Vec<&str> = targets.iter().map(|n| ROOMS[*n]).collect();
                let mut append = position(&names, VEHICLES[vehicle], 0);
                append.fix = fix.map(|second| base().plus(i64::from(second) * 1000));
                append.key = key.map(|key| format!("key {key}").into());
                append.latitude = f64::from(place);
                append.quiet = quiet;
                append.received_at = clock;
                if small {
                    append.body = "x".repeat(6000).into();
                }
                let fix_time = append.fix_time().get();
                let expected: Vec<_> = targets
                    .iter()
                    .map(|room| {
                        let row = ModelRow {
                            seq: 0,
                            room: *room,
                            vehicle,
                            key,
                            timed: fix.is_some(),
                            fix: fix_time,
                            place,
                            late: false,
                            quiet,
                        };
                        model.append(row)
                    })
                    .collect();
                let outcomes = log.append(append).await;
                let found: Vec<_> = outcomes.iter().map(|o| (o.seq, o.verdict)).collect();
                assert_eq!(found, expected);
            }
            Step::Release(index) if !model.rows.is_empty() => {
                let row = model.rows[index.index(model.rows.len())].clone();
                // What retention took cannot be released.
                let trimmed_to = log.load(ROOMS[row.room]).await.1;
                if row.seq <= trimmed_to {
                    continue;
                }
                let moved = model.release(row.seq);
                let release =
                    Release { room: room(ROOMS[row.room]), seq: row.seq, sender: ConnId(2) };
                log.engine.release(release);
                if moved {
                    let committed = log.committed().await;
                    assert_eq!(committed[0].outcomes[0].seq, model.last_seq);
                }
                log.engine.flush().await;
            }
            Step::Release(_) => {}
            Step::Read(index) => {
                let after = index.index(usize::try_from(model.last_seq).unwrap() + 1) as u64;
                for (number, name) in ROOMS.iter().enumerate() {
                    let found = log.read_all(name, after, model.last_seq).await;
                    match found {
                        Err(ReadError::Trimmed { trimmed_to }) => {
                            assert!(small && trimmed_to > after);
                        }
                        found => assert_eq!(found.unwrap(), model.live(number, after)),
                    }
                }
            }
            Step::Kill => {
                restarts += 1;
                log.kill().await;
                log = store.open().await;
            }
            Step::Close => {
                restarts += 1;
                log.close().await;
                log = store.open().await;
            }
        }
    }
    assert_eq!(log.engine.epoch(), epoch);
    for (number, name) in ROOMS.iter().enumerate() {
        let (head, _, newest) = log.load(name).await;
        assert_eq!(head, model.last_seq);
        let mut expected: Vec<_> =
            (0..3).filter_map(|v| model.newest(number, v)).map(|r| r.seq).collect();
        expected.sort_unstable();
        assert_eq!(newest.iter().map(|n| n.seq).collect::<Vec<_>>(), expected);
        if !small {
            check_history(&log, &model, number, None).await;
            check_history(&log, &model, number, Some(1)).await;
        }
    }
    log.close().await;
}

async fn check_history(log: &Log, model: &Model, number: usize, vehicle: Option<usize>) {
    let (from, to) = (base().plus(2000), base().plus(9000));
    let mut query = HistoryQuery {
        room: room(ROOMS[number]),
        vehicle: vehicle.map(|v| VehicleId::parse(VEHICLES[v]).unwrap()),
        from: Some(from),
        to: Some(to),
        limit: 3,
        max_bytes: 10_000,
        cursor: None,
    };
    let mut found = Vec::new();
    loop {
        let page = log.engine.history(query.clone()).await.unwrap();
        assert!(page.events.len() <= 3);
        found.extend(page.events.iter().map(|event| (event.fix.get(), event.seq)));
        match page.cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    assert!(found.is_sorted_by_key(|(fix, _)| *fix), "oldest first");
    let mut expected: Vec<_> = model
        .rows
        .iter()
        .filter(|r| r.room == number && vehicle.is_none_or(|v| r.vehicle == v))
        .filter(|r| r.fix >= from.get() && r.fix <= to.get())
        .map(|r| (r.fix, r.seq))
        .collect();
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected);
}

fn block_on(run: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    base();
    runtime.block_on(run);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn embedded_behaves_as_the_model_through_restarts(steps in steps()) {
        block_on(run(steps, Store::embedded(), false));
    }

    #[test]
    fn embedded_behaves_as_the_model_under_retention(steps in steps()) {
        let settings =
            Settings { retention_bytes: 100_000, min_free: 0, ..Default::default() };
        block_on(run(steps, Store::embedded_with(settings), true));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(15))]

    #[test]
    fn nats_behaves_as_the_model_through_restarts(steps in steps()) {
        block_on(run(steps, Store::nats(), false));
    }
}
