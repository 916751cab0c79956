//! The composition root: configuration in, a running server out.
//!
//! [`Server::bind`] takes the ports, [`Server::run`] opens the room log, serves, and
//! returns when the shutdown is over. The stop is injected, so tests and commands use the
//! same path as the process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::admin::{self, Guard, Probe, Readiness, TokenFileError, queue_totals};
use crate::auth::{AuthSetupError, Authenticator};
use crate::broker::BrokerError;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::connection::{LogSlot, Registry, Services};
use crate::limits::{Addresses, HandshakeRate, TrustedProxies};
use crate::listener::{Front, Handshakes, Listener, Pages, bind};
use crate::phase::{self, PhaseSetter, PhaseWatch};
use crate::plane::{Hold, Plane};
use crate::room_log::nats::StreamError;
use crate::room_log::{LockError, OpenError};
use crate::rooms::{Announcer, Distributor, Hub};
use crate::shutdown::{
    Coordinator, Evacuation, OthersSlot, Outcome, Status, Trigger, TriggerSender, Watchdog,
};
use crate::telemetry::events::Listening;
use crate::telemetry::metrics::set;
use crate::telemetry::{LogHandle, Metrics};
use crate::time::UnixMillis;

mod neighbours;
mod opening;
mod settings;

use neighbours::Neighbours;
use opening::Opening;

pub(crate) use settings::token_settings;

/// How often vehicles without a recent fix are looked for.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(60);

/// Why the server did not start. Every text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port cannot be had.
    #[error("{key}: {source}")]
    Bind {
        /// The configuration key of the port.
        key: &'static str,
        /// The system's text, with the address.
        source: std::io::Error,
    },
    /// Keys cannot be read.
    #[error(transparent)]
    Auth(#[from] AuthSetupError),
    /// The admin token cannot be read.
    #[error(transparent)]
    AdminToken(#[from] TokenFileError),
    /// Another process has the room log.
    #[error("room_log.path: {0}")]
    Lock(#[from] LockError),
    /// The room log cannot be opened.
    #[error("room_log.path: {0}")]
    RoomLog(#[from] OpenError),
    /// The broker refuses this process, or a setting of `[nats]` cannot work.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The stream of the broker cannot be used.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The system has no threads or descriptors left.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// What the process brings along.
pub struct Context {
    /// This process's public name.
    pub instance_id: Arc<str>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Changes the log level; `None` where logs are set up otherwise.
    pub log_level: Option<LogHandle>,
    /// The pages of the public port.
    pub pages: Arc<dyn Pages>,
    /// Where the admin port sends its stop.
    pub triggers: TriggerSender,
    /// Ends the process if the shutdown does not.
    pub watchdog: Option<Watchdog>,
}

/// A server that has its ports.
pub struct Server {
    config: Config,
    context: Context,
    public: TcpListener,
    admin: std::net::TcpListener,
    metrics_port: Option<std::net::TcpListener>,
    guard: Guard,
    auth: Arc<Authenticator>,
    registry: Arc<Registry>,
    hub: Arc<Hub>,
    announcer: Announcer,
    phase: PhaseSetter,
    watch: PhaseWatch,
    plane: Arc<Plane>,
    evacuation: Arc<Evacuation>,
    readiness: Arc<Readiness>,
    others: OthersSlot,
}

impl Server {
    /// Reads the keys and takes the ports.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind.
    pub fn bind(config: Config, context: Context) -> Result<Self, StartError> {
        let auth = Arc::new(Authenticator::new(settings::auth_settings(&config.auth))?);
        if auth.has_short_secret() {
            let text = "the shared secret is shorter than 32 bytes and could be guessed";
            tracing::warn!(event = "auth.short_secret", "{text}");
        }
        for warning in config.warnings() {
            tracing::warn!(event = "config.warning", "{warning}");
        }
        let token = match (&config.admin.token, &config.admin.token_file) {
            (Some(token), _) => Some(token.expose().to_owned()),
            (None, Some(file)) => Some(Guard::read_token(file)?),
            (None, None) => None,
        };
        let guard = Guard::new(token, config.admin.allowed_hosts.clone());
        let take = |key, address| bind(address).map_err(|source| StartError::Bind { key, source });
        let public = take("server.listen", config.server.listen)?;
        // The admin port moves to another runtime.
        let admin = take("admin.listen", config.admin.listen)?.into_std()?;
        let metrics_port = match config.admin.metrics_listen {
            Some(address) => Some(take("admin.metrics_listen", address)?.into_std()?),
            None => None,
        };
        let (phase, watch) = phase::channel();
        let (hub, announcer) = Hub::new(settings::room_settings(&config), context.metrics.clone());
        let registry = Arc::<Registry>::default();
        let others = OthersSlot::default();
        let evacuation = Arc::new(Evacuation::new(
            registry.clone(),
            watch.clone(),
            settings::returns(&config.shutdown),
            others.clone(),
        ));
        let plane = Arc::new(Plane::new(settings::budgets(&config.plane), context.metrics.clone()));
        plane.hold(Hold::Startup, "opening the room log");
        Ok(Self {
            readiness: Arc::new(Readiness::new(watch.clone(), evacuation.clone(), plane.clone())),
            evacuation,
            others,
            plane,
            registry,
            config,
            context,
            public,
            admin,
            metrics_port,
            guard,
            auth,
            hub,
            announcer,
            phase,
            watch,
        })
    }

    /// Where the public and the admin port really are.
    ///
    /// # Errors
    /// The system's.
    pub fn addresses(&self) -> std::io::Result<(SocketAddr, SocketAddr)> {
        Ok((self.public.local_addr()?, self.admin.local_addr()?))
    }

    /// Verifies tokens; its keys can be reloaded.
    #[must_use]
    pub fn authenticator(&self) -> Arc<Authenticator> {
        self.auth.clone()
    }

    /// Serves until a trigger comes, then shuts down.
    ///
    /// # Errors
    /// [`StartError`] when the room log cannot be had; the ports were open until then.
    pub async fn run(
        self,
        mut triggers: mpsc::UnboundedReceiver<Trigger>,
    ) -> Result<Outcome, StartError> {
        let started = Instant::now();
        let (public, admin) = self.addresses()?;
        let Self { config, context, registry, hub, phase, watch, plane, .. } = self;
        let Self { readiness, auth, others, .. } = self;
        let Context { instance_id, metrics, log_level, pages, triggers: stop, watchdog } = context;
        let status = Status::default();
        let handshakes = Arc::new(Handshakes::default());
        scrape(&metrics, &registry, &hub, &plane);
        Listening { public, admin: Some(admin) }.emit(&metrics);
        let state = admin::State {
            registry: registry.clone(),
            hub: hub.clone(),
            plane: plane.clone(),
            others: others.clone(),
            evacuation: self.evacuation,
            readiness: readiness.clone(),
            metrics: metrics.clone(),
            shutdown: status.clone(),
            log_level,
            triggers: stop,
            watchdog,
            probe: Probe::start(),
            started,
            instance_id: instance_id.clone(),
        };
        // Up before the room log is: readiness says what is waited for.
        admin::spawn(self.admin, self.metrics_port, self.guard, state)?;

        let log = LogSlot::default();
        let coordinator = Coordinator {
            registry: registry.clone(),
            phase,
            hub: hub.clone(),
            log: log.clone(),
            metrics: metrics.clone(),
            no_handshakes: {
                let handshakes = handshakes.clone();
                move || {
                    let handshakes = handshakes.clone();
                    async move { handshakes.none().await }
                }
            },
            deadlines: settings::deadlines(&config.shutdown),
            others: others.clone(),
            returns: settings::returns(&config.shutdown),
            instance_id: instance_id.clone(),
            status,
        };
        let (log_events, events) = mpsc::unbounded_channel();
        let distributor = Distributor::new(hub.clone(), metrics.clone(), events, plane.clone());
        tokio::spawn(distributor.run());
        tokio::spawn(self.announcer.run());
        tokio::spawn(registry.clone().sweep());
        tokio::spawn(expire(hub.clone()));
        let services = Arc::new(Services {
            hub: hub.clone(),
            log: log.clone(),
            plane: plane.clone(),
            auth,
            metrics: metrics.clone(),
            phase: watch,
            settings: settings::connection_settings(&config, instance_id.clone()),
        });
        let limit_settings = settings::limit_settings(&config.limits);
        let front = Front {
            services,
            registry: registry.clone(),
            addresses: Addresses::new(&limit_settings),
            proxies: TrustedProxies::new(limit_settings.trusted_proxies.clone()),
            handshakes: HandshakeRate::new(limit_settings.handshake_rate, started),
            max_connections: config.server.max_connections,
            origins: settings::origins(&config),
            pages,
            readiness,
            started,
        };
        let listener = Listener {
            socket: self.public,
            front: Arc::new(front),
            handshake_timeout: config.limits.handshake_timeout,
            kernel_buffer: config.outgoing.kernel_buffer,
            handshakes,
        };
        tokio::spawn(listener.run());

        // Clients may connect meanwhile; what they ask for is held.
        let opening = Opening { instance: &instance_id, plane: &plane, metrics: &metrics };
        let opened = tokio::select! {
            opened = opening::open(&config, opening, log_events) => opened?,
            Some(trigger) = triggers.recv() => return Ok(coordinator.run(trigger, triggers).await),
        };
        hub.set_log(opened.log.clone());
        log.set(opened.log);
        if let Some(link) = opened.link {
            // Before anybody is in a room: joins are held until the plane opens.
            let clients = registry.clone();
            let count = move || clients.len() as u64;
            let settings = settings::cluster_settings(&config, instance_id.clone());
            let cluster = Cluster::start(link.clone(), &hub, settings, count);
            others.set(Arc::new(Neighbours { cluster, link }));
        }
        plane.release(Hold::Startup);
        tracing::info!(event = "server.ready", "ready");
        match triggers.recv().await {
            Some(trigger) => Ok(coordinator.run(trigger, triggers).await),
            // Nobody can ask for a stop any more.
            None => std::future::pending().await,
        }
    }
}

async fn expire(hub: Arc<Hub>) {
    let mut interval = tokio::time::interval(EXPIRE_INTERVAL);
    loop {
        interval.tick().await;
        hub.expire(UnixMillis::now());
    }
}

/// Figures that nobody counts as they go are set at each scrape.
fn scrape(metrics: &Metrics, registry: &Arc<Registry>, hub: &Arc<Hub>, plane: &Arc<Plane>) {
    let (registry, hub, plane) = (registry.clone(), hub.clone(), plane.clone());
    metrics.on_scrape(move |metrics| {
        let (rooms, members) = hub.counts();
        let queues = queue_totals(&registry);
        plane.scrape(metrics);
        set(&metrics.rooms, rooms);
        set(&metrics.members, members);
        set(&metrics.lagging_connections, hub.lagging());
        set(&metrics.outgoing_messages, queues.messages);
        set(&metrics.outgoing_bytes, queues.bytes);
        set(&metrics.outgoing_messages_max, queues.max_messages);
        set(&metrics.outgoing_bytes_max, queues.max_bytes);
    });
}
