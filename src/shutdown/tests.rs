//! The coordinator against a paused clock: every deadline, every early end, every further
//! trigger. Clients are scripts that carry out orders as a connection's task does.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::coordinator::{Coordinator, Deadlines, Outcome, Returns, Status};
use super::others::{Others, OthersSlot, TheirGenerations};
use super::signals::Trigger;
use super::slots::Spread;
use crate::cluster::Instance;
use crate::connection::{LogSlot, Order, Progress, Registered, Registry};
use crate::ids::{ClientId, RoomId};
use crate::phase::{self, Phase, PhaseWatch};
use crate::room_log::{
    Append, HistoryError, HistoryPage, HistoryQuery, Page, ReadError, Release, RoomLog,
};
use crate::rooms::{self, Hub};
use crate::telemetry::Metrics;
use crate::transport::Socket;

mod handover;

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// How long a log takes for what it is asked; `None`: for ever.
#[derive(Debug, Clone, Copy)]
struct FakeLog {
    flush: Option<Duration>,
    close: Option<Duration>,
}

const HEALTHY_LOG: FakeLog = FakeLog { flush: Some(Duration::ZERO), close: Some(Duration::ZERO) };

fn after(time: Option<Duration>) -> BoxFuture<'static, ()> {
    async move {
        match time {
            Some(time) => sleep(time).await,
            None => std::future::pending().await,
        }
    }
    .boxed()
}

impl RoomLog for FakeLog {
    fn append(&self, _: Append) {}
    fn load_room(&self, _: RoomId) {}
    fn release(&self, _: Release) {}
    fn poke(&self) {}

    fn epoch(&self) -> Arc<str> {
        "epoch".into()
    }

    fn read(
        &self,
        _: RoomId,
        _: u64,
        _: u64,
        _: usize,
        _: bool,
    ) -> BoxFuture<'static, Result<Page, ReadError>> {
        std::future::pending().boxed()
    }

    fn history(&self, _: HistoryQuery) -> BoxFuture<'static, Result<HistoryPage, HistoryError>> {
        std::future::pending().boxed()
    }

    fn flush(&self) -> BoxFuture<'static, ()> {
        after(self.flush)
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        after(self.close)
    }
}

/// How many other instances there are, and how long the link takes for what it is asked.
struct FakeOthers {
    live: usize,
    flush: Option<Duration>,
    leave: Option<Duration>,
    /// What they were told, and when.
    told: Mutex<Vec<(&'static str, Instant)>>,
}

impl FakeOthers {
    fn new(live: usize) -> Arc<Self> {
        Self::slow(live, Some(Duration::ZERO), Some(Duration::ZERO))
    }

    fn slow(live: usize, flush: Option<Duration>, leave: Option<Duration>) -> Arc<Self> {
        Arc::new(Self { live, flush, leave, told: Mutex::default() })
    }

    fn tell(&self, what: &'static str) {
        self.told.lock().push((what, Instant::now()));
    }
}

impl Others for FakeOthers {
    fn live(&self) -> usize {
        self.live
    }

    fn generations(&self) -> TheirGenerations {
        TheirGenerations { own: "a".into(), newer: vec!["b".to_owned()] }
    }

    fn known(&self) -> Vec<Instance> {
        Vec::new()
    }

    fn announce_draining(&self) {
        self.tell("draining");
    }

    fn announce_away(&self, away: bool) {
        self.tell(if away { "away" } else { "back" });
    }

    fn flush(&self, _: Instant) -> BoxFuture<'static, bool> {
        after(self.flush).map(|()| true).boxed()
    }

    fn leave(&self, _: Instant) -> BoxFuture<'static, bool> {
        self.tell("leaving");
        after(self.leave).map(|()| true).boxed()
    }
}

const RETURNS: Returns = Returns {
    alone: Spread { min: ms(1000), max: ms(10_000), rate: 2000 },
    with_others: Spread { min: ms(0), max: ms(3000), rate: 1 },
    handover: ms(250),
};

/// What a client does. Times are from the order to the deed; `None`: never.
#[derive(Debug, Clone, Copy)]
struct Script {
    leaves_at_notice: bool,
    /// Leaves by itself after its notice.
    leaves: Option<Duration>,
    drains: Option<Duration>,
    /// Whether its close frame follows its drain at once, or waits for the order.
    closes: bool,
    acknowledges: Option<Duration>,
}

const HEALTHY: Script = Script {
    leaves_at_notice: false,
    leaves: None,
    drains: Some(ms(3)),
    closes: true,
    acknowledges: Some(ms(3)),
};
const STUCK: Script = Script { drains: None, ..HEALTHY };
const MUTE: Script = Script { acknowledges: None, ..HEALTHY };

/// Carries out the orders of one connection until it is gone, a millisecond at a time.
async fn client(registered: Registered, script: Script, notices: Arc<AtomicU64>) {
    let handle = registered.handle().clone();
    let (mut drains_at, mut acknowledges_at, mut leaves_at) = (None, None, None);
    let mut served_on = false;
    loop {
        let orders = handle.take_orders();
        let now = Instant::now();
        if orders.has(Order::Notify) {
            notices.fetch_add(u64::from(handle.take_notice().is_some()), Ordering::Relaxed);
            if script.leaves_at_notice {
                registered.registry().tally().count_left_early();
                return;
            }
            served_on = handle.served_until().is_some();
            leaves_at = script.leaves.map(|time| now + time);
        }
        if orders.has(Order::Drain) {
            drains_at = script.drains.map(|time| now + time);
        }
        served_on &= !orders.has(Order::LetGo);
        let mut closes = orders.has(Order::Finish);
        if drains_at.is_some_and(|at| now >= at) {
            registered.set_drained();
            if !served_on {
                drains_at = None;
                registered.settle();
                closes |= script.closes;
            }
        }
        if leaves_at.is_some_and(|at| now >= at) {
            registered.registry().tally().count_left_early();
            return;
        }
        if closes && handle.progress() < Progress::Closing {
            registered.set_closing();
            acknowledges_at = script.acknowledges.map(|time| now + time);
        }
        if acknowledges_at.is_some_and(|at| now >= at) {
            registered.registry().tally().count_acked();
            return;
        }
        if orders.has(Order::Terminate) {
            return;
        }
        sleep(ms(1)).await;
    }
}

/// A shutdown to be run.
struct Stage {
    registry: Arc<Registry>,
    deadlines: Deadlines,
    log: Option<FakeLog>,
    others: Option<Arc<FakeOthers>>,
    returns: Returns,
    handshakes: watch::Sender<usize>,
    triggers: (mpsc::UnboundedSender<Trigger>, Option<mpsc::UnboundedReceiver<Trigger>>),
    status: Status,
    notices: Arc<AtomicU64>,
    /// The other ends, kept open.
    peers: Vec<TcpStream>,
}

/// How it went.
struct Went {
    outcome: Outcome,
    /// When it ended, from its trigger.
    ended: Duration,
    /// When each phase was reached.
    phases: Vec<(Phase, Duration)>,
    /// Notices that clients took.
    notices: u64,
}

impl Went {
    fn reached(&self, phase: Phase) -> Option<Duration> {
        self.phases.iter().find(|(reached, _)| *reached == phase).map(|(_, at)| *at)
    }
}

impl Stage {
    fn new() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self {
            registry: Arc::default(),
            deadlines: Deadlines {
                lame_duck: Duration::ZERO,
                stop_accepting: ms(100),
                notify: ms(500),
                drain: ms(4000),
                close: ms(5000),
            },
            log: Some(HEALTHY_LOG),
            others: None,
            returns: RETURNS,
            handshakes: watch::channel(0).0,
            triggers: (sender, Some(receiver)),
            status: Status::default(),
            notices: Arc::default(),
            peers: Vec::new(),
        }
    }

    fn with(mut self, scripts: &[Script]) -> Self {
        for (n, script) in scripts.iter().enumerate() {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, address) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            let socket = Socket::new(stream, 0).unwrap();
            let name = ClientId::parse(&format!("c{n}")).ok();
            let registered = self.registry.register(name, address, socket);
            tokio::spawn(client(registered, *script, self.notices.clone()));
            self.peers.push(peer);
        }
        self
    }

    fn others(mut self, others: &Arc<FakeOthers>) -> Self {
        self.others = Some(others.clone());
        self
    }

    fn log(mut self, log: FakeLog) -> Self {
        self.log = Some(log);
        self
    }

    /// Gives a further trigger `at` from the first.
    fn again(self, at: Duration, trigger: Trigger) -> Self {
        let sender = self.triggers.0.clone();
        let due = Instant::now() + at;
        tokio::spawn(async move {
            sleep_until(due).await;
            let _ = sender.send(trigger);
        });
        self
    }

    async fn run(self, trigger: Trigger) -> Went {
        let Self { registry, deadlines, log, others, returns, handshakes, .. } = self;
        let Self { triggers, status, notices, peers, .. } = self;
        let (setter, watch) = phase::channel();
        let metrics = Arc::new(Metrics::new(&Counter::default()));
        let settings = rooms::Settings {
            rooms: 0,
            members_per_room: 0,
            presence_members: 0,
            max_frame_out: 65536,
            tail_bytes: 65536,
            replay_rest: 32768,
            newest_age: ms(1000),
        };
        let (hub, _announcer) = Hub::new(settings, metrics.clone());
        let slot = LogSlot::default();
        if let Some(log) = log {
            slot.set(Arc::new(log));
        }
        let slot_of_others = OthersSlot::default();
        if let Some(others) = others {
            slot_of_others.set(others);
        }
        let pending = handshakes.subscribe();
        let started = Instant::now();
        let timeline = tokio::spawn(timeline(watch, started));
        let coordinator = Coordinator {
            registry,
            phase: setter,
            hub,
            log: slot,
            metrics,
            no_handshakes: move || {
                let mut pending = pending.clone();
                async move {
                    let _ = pending.wait_for(|pending| *pending == 0).await;
                }
            },
            deadlines,
            others: slot_of_others,
            returns,
            instance_id: "instance".into(),
            status,
        };
        // The channel stays open, as in the process.
        let (_sender, receiver) = triggers;
        let outcome = coordinator.run(trigger, receiver.unwrap()).await;
        let ended = started.elapsed();
        drop((peers, handshakes));
        let phases = timeline.await.unwrap();
        Went { outcome, ended, phases, notices: notices.load(Ordering::Relaxed) }
    }
}

/// When each phase is reached, until the setter is gone.
async fn timeline(mut watch: PhaseWatch, started: Instant) -> Vec<(Phase, Duration)> {
    let mut phases = Vec::new();
    for phase in &Phase::ALL[1..] {
        watch.reached(*phase).await;
        // Several may be passed at once: only one of them is the present one.
        if watch.get() == *phase {
            phases.push((*phase, started.elapsed()));
        }
    }
    phases
}

#[tokio::test(start_paused = true)]
async fn with_nobody_there_it_is_over_at_once() {
    let went = Stage::new().run(Trigger::Sigterm).await;
    assert_eq!(went.ended, Duration::ZERO);
    let report = &went.outcome.report;
    assert_eq!((report.exit_code, report.clients_at_start, report.log_flushed), (0, 0, true));
    assert!(!report.has_losses());
    assert_eq!(went.outcome.left, ms(5000), "the log's last lines may take what is left");
    assert_eq!(went.phases.last().unwrap().0, Phase::Complete);
}

#[tokio::test(start_paused = true)]
async fn healthy_clients_end_the_drain_and_the_close() {
    let went = Stage::new().with(&[HEALTHY; 3]).run(Trigger::Sigterm).await;
    assert_eq!(went.reached(Phase::StopAccepting), Some(Duration::ZERO));
    assert_eq!(went.reached(Phase::Notify), Some(ms(100)));
    assert_eq!(went.reached(Phase::Drain), Some(ms(500)));
    let closing = went.reached(Phase::Close).unwrap();
    assert!(closing >= ms(503) && closing <= ms(505), "{closing:?}");
    assert!(went.ended >= ms(506) && went.ended <= ms(510), "{:?}", went.ended);
    let report = &went.outcome.report;
    assert_eq!(report.exit_code, 0);
    assert_eq!((report.clients_at_start, report.notified, report.drained), (3, 3, 3));
    assert_eq!((report.acked, report.terminated, report.unacked_close), (3, 0, 0));
    assert_eq!((report.stop_accepting_ms, report.notify_ms), (100, 400));
    assert!(!report.has_losses());
    assert_eq!(went.notices, 3);
}

/// Each phase is pending a millisecond before its deadline and over at it: one client never
/// drains, the other never acknowledges.
#[tokio::test(start_paused = true)]
async fn every_phase_ends_at_its_deadline() {
    let went = Stage::new().with(&[STUCK, MUTE]).run(Trigger::Sigterm).await;
    assert_eq!(
        went.phases,
        [
            (Phase::StopAccepting, ms(0)),
            (Phase::Notify, ms(100)),
            (Phase::Drain, ms(500)),
            (Phase::Close, ms(4000)),
            (Phase::ForceExit, ms(5000)),
        ]
    );
    assert_eq!(went.ended, ms(5000));
    let report = &went.outcome.report;
    assert_eq!(report.exit_code, 1);
    assert_eq!((report.clients_at_start, report.notified, report.drained), (2, 2, 1));
    // One that did not drain, one that did not acknowledge.
    assert_eq!((report.terminated, report.unacked_close, report.acked), (2, 1, 0));
    assert!(report.log_flushed && report.has_losses());
    assert_eq!(
        (report.stop_accepting_ms, report.notify_ms, report.drain_ms, report.close_ms),
        (100, 400, 3500, 1000)
    );
    assert_eq!(report.duration_ms, 5000);
    assert_eq!(went.outcome.left, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_phase_is_pending_just_before_its_deadline() {
    for (script, checks) in [
        (STUCK, vec![(99, Phase::StopAccepting), (499, Phase::Notify), (3999, Phase::Drain)]),
        (MUTE, vec![(4999, Phase::Close)]),
    ] {
        let stage = Stage::new().with(&[script]);
        let (status, registry) = (stage.status.clone(), stage.registry.clone());
        let started = Instant::now();
        assert!(status.report(&registry).is_none(), "nothing to report yet");
        let run = tokio::spawn(stage.run(Trigger::Sigterm));
        for (at, phase) in checks {
            sleep_until(started + ms(at)).await;
            assert!(!run.is_finished());
            let report = status.report(&registry).unwrap();
            assert_eq!(report.duration_ms, at);
            let taken =
                [report.stop_accepting_ms, report.notify_ms, report.drain_ms, report.close_ms];
            let over = match phase {
                Phase::StopAccepting => 0,
                Phase::Notify => 1,
                Phase::Drain => 2,
                _ => 3,
            };
            assert!(taken[..over].iter().all(|time| *time > 0), "{taken:?} at {at}");
            assert!(taken[over..].iter().all(|time| *time == 0), "{taken:?} at {at}");
        }
        run.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadlines_are_those_that_were_given() {
    let mut stage = Stage::new().with(&[STUCK, MUTE]);
    stage.deadlines = Deadlines {
        lame_duck: ms(50),
        stop_accepting: ms(7),
        notify: ms(20),
        drain: ms(300),
        close: ms(450),
    };
    assert_eq!(stage.deadlines.whole(), ms(500));
    let went = stage.run(Trigger::Sigint).await;
    assert_eq!(
        went.phases,
        [
            (Phase::LameDuck, ms(0)),
            (Phase::StopAccepting, ms(50)),
            (Phase::Notify, ms(57)),
            (Phase::Drain, ms(70)),
            (Phase::Close, ms(350)),
            (Phase::ForceExit, ms(500)),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_pending_handshake_holds_the_first_phase_up() {
    let stage = Stage::new();
    stage.handshakes.send_replace(1);
    let handshakes = stage.handshakes.clone();
    tokio::spawn(async move {
        sleep(ms(60)).await;
        handshakes.send_replace(0);
    });
    let went = stage.run(Trigger::Sigterm).await;
    assert_eq!(went.ended, ms(60));
    assert_eq!(went.outcome.report.stop_accepting_ms, 60);

    // One that is never done: to the end of the phase in which its refusal is read.
    let stage = Stage::new();
    stage.handshakes.send_replace(1);
    let went = stage.run(Trigger::Sigterm).await;
    assert_eq!(went.reached(Phase::Notify), Some(ms(100)));
    assert_eq!(went.ended, ms(500));
    assert_eq!(went.outcome.report.exit_code, 0);
}

#[tokio::test(start_paused = true)]
async fn those_who_leave_at_the_notice_end_the_second_phase() {
    let leaving = Script { leaves_at_notice: true, ..HEALTHY };
    let went = Stage::new().with(&[leaving; 2]).run(Trigger::Sigterm).await;
    assert!(went.ended >= ms(100) && went.ended <= ms(102), "{:?}", went.ended);
    let report = &went.outcome.report;
    assert_eq!((report.notified, report.left_early, report.drained), (2, 2, 0));
    assert_eq!((report.acked, report.terminated, report.exit_code), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_drain_waits_for_the_slowest() {
    let slow = Script { drains: Some(ms(3490)), ..HEALTHY };
    let went = Stage::new().with(&[HEALTHY, slow]).run(Trigger::Sigterm).await;
    let closing = went.reached(Phase::Close).unwrap();
    assert!(closing >= ms(3990) && closing <= ms(3995), "{closing:?}");
    let report = &went.outcome.report;
    assert_eq!((report.drained, report.acked, report.terminated), (2, 2, 0));
    assert_eq!(report.exit_code, 0);
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_drain_is_terminated_and_costs_no_exit_code() {
    let went = Stage::new().with(&[STUCK, HEALTHY]).run(Trigger::Sigterm).await;
    assert_eq!(went.reached(Phase::Close), Some(ms(4000)));
    assert!(went.ended <= ms(4002), "{:?}", went.ended);
    let report = &went.outcome.report;
    assert_eq!((report.terminated, report.drained, report.acked), (1, 1, 1));
    assert_eq!((report.unacked_close, report.exit_code), (0, 0));
    assert!(report.has_losses());
}

#[tokio::test(start_paused = true)]
async fn the_drained_that_have_not_closed_do_so_at_the_drain_deadline() {
    // It drains early and has more in its queue than it reads.
    let slow = Script { closes: false, ..HEALTHY };
    let went = Stage::new().with(&[slow]).run(Trigger::Sigterm).await;
    let closing = went.reached(Phase::Close).unwrap();
    assert!(closing >= ms(503) && closing <= ms(505), "it has drained: {closing:?}");
    assert!(went.ended >= ms(4003) && went.ended <= ms(4006), "{:?}", went.ended);
    let report = &went.outcome.report;
    assert_eq!((report.drained, report.acked, report.terminated), (1, 1, 0));
    assert_eq!(report.exit_code, 0);
}

#[tokio::test(start_paused = true)]
async fn the_close_waits_to_the_last_moment_for_an_answer() {
    let late = Script { acknowledges: Some(ms(4490)), ..HEALTHY };
    let went = Stage::new().with(&[late]).run(Trigger::Sigterm).await;
    assert!(went.ended > ms(4990) && went.ended < ms(5000), "{:?}", went.ended);
    assert_eq!((went.outcome.report.acked, went.outcome.report.exit_code), (1, 0));

    let too_late = Script { acknowledges: Some(ms(4510)), ..HEALTHY };
    let went = Stage::new().with(&[too_late]).run(Trigger::Sigterm).await;
    assert_eq!(went.ended, ms(5000));
    assert_eq!((went.outcome.report.unacked_close, went.outcome.report.exit_code), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lame_duck_comes_before_t0() {
    let mut stage = Stage::new().with(&[MUTE]);
    stage.deadlines.lame_duck = ms(2000);
    let (status, registry) = (stage.status.clone(), stage.registry.clone());
    let started = Instant::now();
    let run = tokio::spawn(stage.run(Trigger::Sigterm));
    sleep_until(started + ms(1999)).await;
    assert!(status.report(&registry).is_none(), "the shutdown has not begun");
    assert!(registry.handles().iter().all(|handle| !handle.is_notified()));
    let went = run.await.unwrap();
    assert_eq!(went.reached(Phase::LameDuck), Some(Duration::ZERO));
    assert_eq!(went.reached(Phase::StopAccepting), Some(ms(2000)));
    assert_eq!(went.reached(Phase::Notify), Some(ms(2100)));
    assert_eq!(went.ended, ms(7000), "the whole budget counts from there");
    assert_eq!(went.outcome.report.duration_ms, 5000);
}

#[tokio::test(start_paused = true)]
async fn further_triggers_join() {
    let mut stage = Stage::new().with(&[STUCK, MUTE]);
    stage.deadlines.lame_duck = ms(1000);
    // In the lame duck and in every phase; one of them is a first SIGINT.
    for (at, trigger) in [
        (500, Trigger::Sigterm),
        (1050, Trigger::Admin),
        (1200, Trigger::Sigint),
        (2000, Trigger::Sigterm),
        (5500, Trigger::Sigterm),
    ] {
        stage = stage.again(ms(at), trigger);
    }
    let went = stage.run(Trigger::Sigterm).await;
    assert_eq!(went.reached(Phase::StopAccepting), Some(ms(1000)));
    assert_eq!(went.reached(Phase::Close), Some(ms(5000)));
    assert_eq!(went.ended, ms(6000), "the same budget");
    let report = &went.outcome.report;
    assert_eq!((went.notices, report.notified), (2, 2), "nothing is sent twice");
    assert_eq!(report.exit_code, 1);
}

#[tokio::test(start_paused = true)]
async fn a_second_sigint_ends_it_at_once() {
    for (first, at) in [
        (vec![Trigger::Sigint], 50),
        (vec![Trigger::Sigint], 300),
        (vec![Trigger::Sigterm, Trigger::Sigint], 1000),
        (vec![Trigger::Admin, Trigger::Sigterm, Trigger::Sigint], 4500),
    ] {
        let mut stage = Stage::new().with(&[MUTE]);
        for again in &first[1..] {
            stage = stage.again(ms(10), *again);
        }
        let went = stage.again(ms(at), Trigger::Sigint).run(first[0]).await;
        assert_eq!(went.ended, ms(at), "{first:?}");
        let report = &went.outcome.report;
        assert_eq!(report.exit_code, 130);
        assert_eq!(report.clients_at_start, 1);
        assert_eq!(report.duration_ms, at);
        assert_eq!(went.outcome.left, Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_sigint_in_the_lame_duck() {
    let mut stage = Stage::new().with(&[HEALTHY]).again(ms(70), Trigger::Sigint);
    stage.deadlines.lame_duck = ms(1000);
    let went = stage.run(Trigger::Sigint).await;
    assert_eq!(went.ended, ms(70));
    assert_eq!(went.outcome.report.exit_code, 130);
    assert_eq!(went.outcome.report.clients_at_start, 1);
    assert_eq!(went.notices, 0);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_hangs_is_a_forced_exit_at_the_deadline() {
    let hangs = FakeLog { flush: None, close: None };
    for scripts in [vec![], vec![HEALTHY], vec![MUTE]] {
        let went = Stage::new().with(&scripts).log(hangs).run(Trigger::Sigterm).await;
        assert_eq!(went.ended, ms(5000), "{scripts:?}");
        let report = &went.outcome.report;
        assert_eq!((report.exit_code, report.log_flushed), (1, false));
        assert!(report.has_losses());
        assert_eq!(went.phases.last(), Some(&(Phase::ForceExit, ms(5000))));
        assert_eq!(report.unacked_close, u64::from(!scripts.is_empty() && report.acked == 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_has_the_whole_budget_to_commit() {
    let slow = |time| FakeLog { flush: Some(time), close: Some(time) };
    let went = Stage::new().log(slow(ms(4999))).run(Trigger::Sigterm).await;
    assert_eq!(went.ended, ms(4999));
    let report = &went.outcome.report;
    assert_eq!((report.exit_code, report.log_flushed), (0, true));
    assert_eq!(went.outcome.left, ms(1));

    let went = Stage::new().log(slow(ms(5001))).run(Trigger::Sigterm).await;
    assert_eq!(went.ended, ms(5000));
    assert_eq!((went.outcome.report.exit_code, went.outcome.report.log_flushed), (1, false));
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_not_open_yet_holds_nothing_up() {
    let mut stage = Stage::new().with(&[HEALTHY]);
    stage.log = None;
    let went = stage.run(Trigger::Sigterm).await;
    assert!(went.ended < ms(520), "{:?}", went.ended);
    assert_eq!((went.outcome.report.exit_code, went.outcome.report.log_flushed), (0, true));
}
