//! The life of the demo: one server process that serves, now and then a second that takes
//! over from it.
//!
//! A deploy is start-before-stop (delivery.md): the successor binds its ports and waits for
//! the room log, new connections go to it from then on, the old one gets SIGTERM and runs
//! its five phases, lets go of the log, and the successor is ready. A process that ends
//! unasked is replaced. A signal goes to every process; the demo ends when all have.

use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook_tokio::Signals;
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::instance::{self, Instance, StartError};
use super::state::{Stage, StateSender};
use crate::cli::supervised::Hello;

/// A process that lived no longer than this is not replaced at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// What the demo runs, and who may ask it for something.
pub(super) struct Supervisor {
    sets: Vec<String>,
    state: StateSender,
    deploys: Arc<Notify>,
    /// All processes that may still live.
    all: Arc<Mutex<Vec<Instance>>>,
}

/// A process that said where it listens.
struct Running {
    instance: Instance,
    hello: Hello,
    since: Instant,
    /// The process ends when this is dropped.
    _control: BufReader<UnixStream>,
}

/// Signals, and the processes that they go to.
pub(super) struct Stop {
    signals: Signals,
    all: Arc<Mutex<Vec<Instance>>>,
}

impl Supervisor {
    /// A supervisor of `milepost serve` with these arguments, and what stops it.
    ///
    /// # Errors
    /// If signal handlers cannot be installed.
    pub(super) fn new(sets: Vec<String>, state: StateSender) -> std::io::Result<(Self, Stop)> {
        let all = Arc::<Mutex<Vec<Instance>>>::default();
        let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
        let this = Self { sets, state, deploys: Arc::default(), all: all.clone() };
        Ok((this, Stop { signals, all }))
    }

    /// Wakes the supervisor when [`Stage::Starting`] has been entered for a deploy.
    pub(super) fn deploys(&self) -> Arc<Notify> {
        self.deploys.clone()
    }

    /// Starts the first process, calls `started`, and looks after processes for ever.
    ///
    /// # Errors
    /// Only of the first start.
    pub(super) async fn run(self, started: impl FnOnce()) -> Result<(), StartError> {
        let mut running = self.start().await?;
        self.state.serve(&running.hello);
        if !instance::ready(&running.instance, running.hello.public).await {
            return Err(StartError::Ended(running.instance.ended().await));
        }
        started();
        loop {
            tokio::select! {
                status = running.instance.ended() => {
                    running = self.replace(&running, status).await;
                }
                () = self.deploys.notified() => running = self.deploy(running).await,
            }
        }
    }

    async fn start(&self) -> Result<Running, StartError> {
        let (instance, control) = Instance::spawn(&self.sets)?;
        {
            let mut all = self.all.lock();
            all.retain(|one| !one.has_ended());
            all.push(instance.clone());
        }
        let mut control = BufReader::new(control);
        let hello = instance::hello(&instance, &mut control).await?;
        Ok(Running { instance, hello, since: Instant::now(), _control: control })
    }

    /// In place of a process that ended unasked.
    async fn replace(&self, ended: &Running, status: Option<ExitStatus>) -> Running {
        let pid = ended.instance.pid();
        let status = status.map(|status| status.to_string()).unwrap_or_default();
        tracing::warn!(
            event = "demo.server_ended",
            pid,
            status,
            "the server process ended by itself; starting another"
        );
        self.state.serve_nobody();
        if ended.since.elapsed() < SHORT_LIFE {
            tokio::time::sleep(SHORT_LIFE).await;
        }
        loop {
            match self.start().await {
                Ok(running) => {
                    self.state.serve(&running.hello);
                    self.state.restarted();
                    return running;
                }
                Err(error) => {
                    tracing::error!(event = "demo.start_failed", %error, "no server");
                    tokio::time::sleep(SHORT_LIFE).await;
                }
            }
        }
    }

    async fn deploy(&self, old: Running) -> Running {
        tracing::info!(event = "demo.deploy", from = &*old.hello.instance, "deploy: starting");
        let started = Instant::now();
        let new = match self.start().await {
            Ok(new) => new,
            Err(error) => {
                tracing::error!(event = "demo.deploy_failed", %error, "the old process goes on");
                self.state.enter(Stage::Idle);
                return old;
            }
        };
        self.state.enter(Stage::HandingOver);
        self.state.serve(&new.hello);
        old.instance.signal(Signal::TERM);
        instance::ready(&new.instance, new.hello.public).await;
        self.state.enter(Stage::StoppingOld);
        let status = old.instance.ended().await;
        self.state.deployed();
        tracing::info!(
            event = "demo.deployed",
            from = &*old.hello.instance,
            to = &*new.hello.instance,
            old_exit_code = status.and_then(|status| status.code()),
            duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "deploy: done"
        );
        new
    }
}

impl Stop {
    /// Waits for the first signal that ends the demo; SIGHUP is passed on.
    pub(super) async fn asked(&mut self) -> Signal {
        loop {
            match self.signals.next().await {
                Some(SIGHUP) => self.to_all(Signal::HUP),
                Some(SIGINT) => return Signal::INT,
                _ => return Signal::TERM,
            }
        }
    }

    /// Passes the signal, and those that come meanwhile, on to all processes and waits for
    /// their ends. The code is the worst of theirs: what they were stopped with.
    pub(super) async fn all_ended(mut self, signal: Signal) -> ExitCode {
        self.to_all(signal);
        let all = self.all.lock().clone();
        let ends = async {
            let mut worst = 0;
            for instance in &all {
                let code = instance.ended().await.and_then(|status| status.code());
                worst = worst.max(code.unwrap_or(1));
            }
            u8::try_from(worst).unwrap_or(1)
        };
        tokio::pin!(ends);
        loop {
            tokio::select! {
                code = &mut ends => return code.into(),
                signal = self.asked() => self.to_all(signal),
            }
        }
    }

    fn to_all(&self, signal: Signal) {
        for instance in &*self.all.lock() {
            instance.signal(signal);
        }
    }
}
