//! The admin drain: a paced evacuation without stopping (shutdown.md, "The admin drain").
//!
//! Clients are noticed one after the other at a rate; from its own notice each has the
//! drain's time to finish. It may be called off: who was noticed is finished, nobody else
//! is. A shutdown takes over at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::runtime::Handle as Runtime;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::coordinator::Returns;
use super::others::{OthersSlot, TheirGenerations};
use super::report::ms;
use crate::connection::{Handle, Order, Progress, Registry};
use crate::phase::{Phase, PhaseWatch};
use crate::protocol::frame;
use crate::protocol::server::{ShutdownReason, server_shutting_down};

/// What each client has from its notice until it is given up.
pub const DRAIN_TIME: Duration = Duration::from_millis(3500);
/// What it has from its close frame until it is given up.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// Over how long those who are noticed together are spread.
const JITTER: Duration = Duration::from_secs(1);

/// The evacuation as the admin port shows it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvacuationStatus {
    /// Whether one is on: upgrades are refused, readiness says 503.
    pub draining: bool,
    /// Clients a second.
    pub rate: u32,
    /// Clients when it began.
    pub clients_at_start: usize,
    /// Clients noticed since.
    pub notified: usize,
    /// Clients still connected.
    pub clients: usize,
    /// Milliseconds since it began.
    pub elapsed_ms: u64,
}

#[derive(Debug)]
struct Running {
    rate: u32,
    clients_at_start: usize,
    notified: Arc<AtomicUsize>,
    since: Instant,
    stop: CancellationToken,
}

/// Evacuates clients.
#[derive(Debug)]
pub struct Evacuation {
    registry: Arc<Registry>,
    phase: PhaseWatch,
    returns: Returns,
    others: OthersSlot,
    runtime: Runtime,
    on: AtomicBool,
    running: Mutex<Option<Running>>,
}

/// The process is shutting down already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the server is shutting down")]
pub struct ShuttingDown;

impl Evacuation {
    /// None is on. Must be called on the runtime of the connections.
    #[must_use]
    pub fn new(
        registry: Arc<Registry>,
        phase: PhaseWatch,
        returns: Returns,
        others: OthersSlot,
    ) -> Self {
        Self {
            registry,
            phase,
            returns,
            others,
            runtime: Runtime::current(),
            on: AtomicBool::new(false),
            running: Mutex::new(None),
        }
    }

    /// Whether one is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Begins to notice `rate` clients a second, or goes on at another rate.
    ///
    /// # Errors
    /// [`ShuttingDown`]: everybody is noticed anyway.
    pub fn begin(self: &Arc<Self>, rate: u32) -> Result<EvacuationStatus, ShuttingDown> {
        if self.phase.get() >= Phase::StopAccepting {
            return Err(ShuttingDown);
        }
        let mut running = self.running.lock();
        let before = running.take();
        if let Some(before) = &before {
            before.stop.cancel();
        }
        let (clients_at_start, notified, since) = before.map_or_else(
            || (self.registry.len(), Arc::default(), Instant::now()),
            |before| (before.clients_at_start, before.notified, before.since),
        );
        let stop = CancellationToken::new();
        let next = Running { rate, clients_at_start, notified: notified.clone(), since, stop };
        let stop = next.stop.clone();
        if let Some(others) = self.others.get() {
            others.announce_away(true);
        }
        *running = Some(next);
        self.on.store(true, Ordering::Release);
        drop(running);
        tracing::warn!(
            event = "drain.started",
            rate,
            clients = clients_at_start as u64,
            "drain: started"
        );
        self.runtime.spawn(self.clone().notice(rate, notified, stop));
        Ok(self.status())
    }

    /// Stops noticing; who was noticed is finished. Upgrades are taken again.
    ///
    /// # Errors
    /// [`ShuttingDown`]: it cannot be called off.
    pub fn stop(&self) -> Result<EvacuationStatus, ShuttingDown> {
        if self.phase.get() >= Phase::StopAccepting {
            return Err(ShuttingDown);
        }
        let mut running = self.running.lock();
        if let Some(running) = running.take() {
            running.stop.cancel();
            if let Some(others) = self.others.get() {
                others.announce_away(false);
            }
            tracing::warn!(event = "drain.stopped", "drain: stopped");
        }
        self.on.store(false, Ordering::Release);
        drop(running);
        Ok(self.status())
    }

    /// How far it is.
    #[must_use]
    pub fn status(&self) -> EvacuationStatus {
        let running = self.running.lock();
        let of = |f: fn(&Running) -> usize| running.as_ref().map_or(0, f);
        EvacuationStatus {
            draining: running.is_some(),
            rate: running.as_ref().map_or(0, |running| running.rate),
            clients_at_start: of(|running| running.clients_at_start),
            notified: of(|running| running.notified.load(Ordering::Acquire)),
            clients: self.registry.len(),
            elapsed_ms: running.as_ref().map_or(0, |running| ms(running.since.elapsed())),
        }
    }

    async fn notice(
        self: Arc<Self>,
        rate: u32,
        notified: Arc<AtomicUsize>,
        stop: CancellationToken,
    ) {
        let mut phase = self.phase.clone();
        let pace = Duration::from_secs(1) / rate.max(1);
        let noticing = async {
            let mut next = Instant::now();
            loop {
                let mut waiting: Vec<_> = self
                    .registry
                    .handles()
                    .into_iter()
                    .filter(|handle| !handle.is_notified())
                    .collect();
                if waiting.is_empty() {
                    // Handshakes that were under way when it began may still come in.
                    sleep(pace.max(Duration::from_millis(100))).await;
                    continue;
                }
                fastrand::shuffle(&mut waiting);
                for handle in waiting {
                    sleep_until(next).await;
                    next = next.max(Instant::now()) + pace;
                    if self.notify(&handle) {
                        notified.fetch_add(1, Ordering::AcqRel);
                        self.runtime.spawn(finish(handle, self.phase.clone()));
                    }
                }
            }
        };
        tokio::select! {
            () = noticing => {}
            () = stop.cancelled() => {}
            () = phase.reached(Phase::StopAccepting) => {}
        }
    }

    fn notify(&self, handle: &Handle) -> bool {
        let hands_over = self.others.live() > 0;
        let Returns { alone, with_others, handover } = self.returns;
        let min = if hands_over { with_others.min } else { alone.min };
        let reconnect_in = min + Duration::from_millis(fastrand::u64(0..=ms(JITTER)));
        let generations = self.others.generations();
        let text = server_shutting_down(
            reconnect_in,
            ms(DRAIN_TIME),
            ShutdownReason::Drain,
            generations.as_ref().map(TheirGenerations::told),
        );
        let until = hands_over.then(|| Instant::now() + reconnect_in + handover);
        let first = handle.notify(frame::text_frame(&text), until);
        if first {
            handle.order(Order::Drain);
        }
        first
    }
}

/// Sees one noticed client off, unless a shutdown takes it over.
async fn finish(handle: Arc<Handle>, mut phase: PhaseWatch) {
    let deadline = Instant::now() + DRAIN_TIME;
    let seeing_off = async {
        // It waits for its peer's kernel on its own: sampled here, as nobody else does.
        let mut pause = Duration::from_millis(2);
        while Instant::now() < deadline && handle.progress() == Progress::Open {
            tokio::select! {
                // Whoever leaves by itself needs no further look.
                () = handle.gone() => return,
                () = sleep(pace(pause, deadline)) => {}
            }
            pause = (pause * 3 / 2).min(Duration::from_millis(20));
            handle.sample_acknowledged();
        }
        if let Some(until) = handle.served_until().filter(|until| *until < deadline) {
            sleep_until_gone(&handle, until).await;
            handle.order(Order::LetGo);
        }
        sleep_until_gone(&handle, deadline).await;
        match handle.progress() {
            Progress::Open => handle.order(Order::Terminate),
            Progress::Drained => handle.order(Order::Finish),
            Progress::Closing | Progress::Terminated => {}
        }
        sleep_until_gone(&handle, deadline + CLOSE_TIME).await;
        handle.order(Order::Terminate);
    };
    tokio::select! {
        () = seeing_off => {}
        () = phase.reached(Phase::StopAccepting) => {}
    }
}

fn pace(pause: Duration, deadline: Instant) -> Duration {
    pause.min(deadline.saturating_duration_since(Instant::now()))
}

async fn sleep_until_gone(handle: &Handle, deadline: Instant) {
    tokio::select! {
        () = handle.gone() => {}
        () = sleep_until(deadline) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use crate::cluster::Instance;
    use crate::connection::Registered;
    use crate::phase;
    use crate::shutdown::others::Others;
    use crate::shutdown::slots::Spread;
    use crate::transport::Socket;

    const SPREAD: Spread = Spread { min: at(0), max: at(3000), rate: 2000 };
    const RETURNS: Returns = Returns { alone: SPREAD, with_others: SPREAD, handover: at(250) };

    const fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A client that carries out no orders: its request hangs.
    fn hanging(registry: &Arc<Registry>) -> (Registered, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, address) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        (registry.register(None, address, Socket::new(stream, 0).unwrap()), peer)
    }

    fn taken(client: &Registered) -> Vec<Order> {
        let orders = client.handle().take_orders();
        [Order::Notify, Order::Drain, Order::LetGo, Order::Finish, Order::Terminate]
            .into_iter()
            .filter(|order| orders.has(*order))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_budget_is_the_clients_own_and_a_second_drain_shares_it() {
        let (_setter, watch) = phase::channel();
        let registry: Arc<Registry> = Arc::default();
        let evacuation =
            Arc::new(Evacuation::new(registry.clone(), watch, RETURNS, OthersSlot::default()));
        let (client, _peer) = hanging(&registry);
        let start = Instant::now();
        assert_eq!(evacuation.begin(100).unwrap().notified, 0);
        sleep(at(5)).await;
        assert_eq!(taken(&client), [Order::Notify, Order::Drain]);
        assert!(client.handle().take_notice().is_some());
        // Again, slower and faster, in the middle: nothing moves and nothing comes twice.
        sleep_until(start + at(2000)).await;
        assert_eq!(evacuation.begin(1).unwrap().clients_at_start, 1);
        assert_eq!(evacuation.begin(1000).unwrap().notified, 1);
        sleep_until(start + at(3499)).await;
        assert_eq!(taken(&client), [], "pending just before its deadline");
        sleep_until(start + at(3502)).await;
        assert_eq!(taken(&client), [Order::Terminate], "given up at its deadline");
        assert_eq!(evacuation.status().notified, 1);
        drop(client);
        // After the end of everybody: nobody is there to be noticed, and newcomers are.
        assert_eq!(evacuation.begin(10).unwrap().clients, 0);
        let (late, _peer) = hanging(&registry);
        sleep(at(300)).await;
        assert_eq!(taken(&late), [Order::Notify, Order::Drain]);
    }

    /// Another instance is there; what it is told is counted.
    #[derive(Default)]
    struct Neighbour(Mutex<Vec<bool>>);

    impl Others for Neighbour {
        fn live(&self) -> usize {
            1
        }
        fn generations(&self) -> TheirGenerations {
            TheirGenerations { own: "a".into(), newer: Vec::new() }
        }
        fn known(&self) -> Vec<Instance> {
            Vec::new()
        }
        fn announce_draining(&self) {}
        fn announce_away(&self, away: bool) {
            self.0.lock().push(away);
        }
        fn flush(&self, _: Instant) -> BoxFuture<'static, bool> {
            std::future::ready(true).boxed()
        }
        fn leave(&self, _: Instant) -> BoxFuture<'static, bool> {
            std::future::ready(true).boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn with_others_about_a_client_is_served_on_to_its_time() {
        // The last one is due when its own budget is over.
        for (handover, let_go) in [(at(250), true), (at(2499), true), (at(3500), false)] {
            let (_setter, watch) = phase::channel();
            let registry: Arc<Registry> = Arc::default();
            let neighbour = Arc::<Neighbour>::default();
            let others = OthersSlot::default();
            others.set(neighbour.clone());
            let returns = Returns { handover, ..RETURNS };
            let evacuation = Arc::new(Evacuation::new(registry.clone(), watch, returns, others));
            let (client, _peer) = hanging(&registry);
            let start = Instant::now();
            evacuation.begin(100).unwrap();
            sleep(at(5)).await;
            assert_eq!(taken(&client), [Order::Notify, Order::Drain]);
            let until = client.handle().served_until().unwrap();
            assert!(until >= start + handover && until <= start + at(1005) + handover);
            client.set_drained();
            if let_go {
                sleep_until(until - at(1)).await;
                assert_eq!(taken(&client), [], "served on to the last: {handover:?}");
                sleep_until(until + at(2)).await;
                assert_eq!(taken(&client), [Order::LetGo], "{handover:?}");
            }
            sleep_until(start + at(3499)).await;
            assert_eq!(taken(&client), [], "{handover:?}");
            sleep_until(start + at(3505)).await;
            assert_eq!(taken(&client), [Order::Finish], "the bound is 3.5 s all the same");
            evacuation.stop().unwrap();
            assert_eq!(*neighbour.0.lock(), [true, false], "they are told, and told again");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_leaves_leaves_no_timer_behind() {
        let (_setter, watch) = phase::channel();
        let registry: Arc<Registry> = Arc::default();
        let evacuation =
            Arc::new(Evacuation::new(registry.clone(), watch, RETURNS, OthersSlot::default()));
        let (client, _peer) = hanging(&registry);
        evacuation.begin(100).unwrap();
        sleep(at(5)).await;
        let handle = Arc::downgrade(client.handle());
        drop(client);
        sleep(at(25)).await;
        assert!(handle.upgrade().is_none(), "whoever saw it off has let go of it");
        assert_eq!(evacuation.stop().unwrap().clients, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn called_off_it_notices_nobody_else_and_finishes_the_noticed() {
        let (_setter, watch) = phase::channel();
        let registry: Arc<Registry> = Arc::default();
        let evacuation =
            Arc::new(Evacuation::new(registry.clone(), watch, RETURNS, OthersSlot::default()));
        let clients: Vec<_> = (0..2).map(|_| hanging(&registry)).collect();
        let start = Instant::now();
        evacuation.begin(1).unwrap();
        sleep(at(500)).await;
        assert!(!evacuation.stop().unwrap().draining);
        sleep_until(start + at(3502)).await;
        let mut orders: Vec<_> = clients.iter().map(|(client, _)| taken(client)).collect();
        orders.sort_by_key(Vec::len);
        assert_eq!(orders, [vec![], vec![Order::Notify, Order::Drain, Order::Terminate]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_shutdown_takes_the_noticed_over() {
        let (setter, watch) = phase::channel();
        let registry: Arc<Registry> = Arc::default();
        let evacuation =
            Arc::new(Evacuation::new(registry.clone(), watch, RETURNS, OthersSlot::default()));
        let (client, _peer) = hanging(&registry);
        evacuation.begin(100).unwrap();
        sleep(at(5)).await;
        assert_eq!(taken(&client), [Order::Notify, Order::Drain]);
        setter.advance(Phase::StopAccepting);
        assert!(evacuation.begin(100).is_err());
        assert!(evacuation.stop().is_err());
        sleep(DRAIN_TIME * 2).await;
        assert_eq!(taken(&client), [], "its deadlines are the shutdown's from now on");
    }
}
