//! The composition root: configuration in, a running server out.
//!
//! [`Server::bind`] takes the ports, [`Server::run`] opens the room log, serves, and
//! returns when the shutdown is over. The stop is injected, so tests and commands use the
//! same path as the process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::admin::{self, Guard, Probe, Readiness, TokenFileError, queue_totals};
use crate::auth::{self, AuthSetupError, Authenticator};
use crate::config::{self, Config};
use crate::connection::{self, LogSlot, Registry, Services};
use crate::limits::{self, Addresses, HandshakeRate, TrustedProxies};
use crate::listener::{Front, Handshakes, Listener, Origins, Pages, bind};
use crate::phase::{self, PhaseSetter, PhaseWatch};
use crate::plane::{Budgets, Hold, Plane};
use crate::protocol::position::{ExtraFields, PositionRules};
use crate::room_log::{self, Embedded, Lock, LockError, LogEvent, OpenError, RoomLog};
use crate::rooms::{self, Announcer, Distributor, Hub};
use crate::shutdown::slots::Spread;
use crate::shutdown::{Coordinator, Deadlines, Outcome, Status, Trigger, TriggerSender, Watchdog};
use crate::telemetry::events::Listening;
use crate::telemetry::metrics::set;
use crate::telemetry::{LogHandle, Metrics};
use crate::time::UnixMillis;

/// How often vehicles without a recent fix are looked for.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(60);
/// A short look at the lock before anybody is told of a wait.
const LOCK_GLANCE: Duration = Duration::from_millis(50);

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
    readiness: Arc<Readiness>,
}

impl Server {
    /// Reads the keys and takes the ports.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left behind.
    pub fn bind(config: Config, context: Context) -> Result<Self, StartError> {
        let auth = Arc::new(Authenticator::new(auth_settings(&config.auth))?);
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
        let (hub, announcer) = Hub::new(room_settings(&config), context.metrics.clone());
        let plane = Arc::new(Plane::new(budgets(&config.plane), context.metrics.clone()));
        plane.hold(Hold::Startup, "opening the room log");
        Ok(Self {
            readiness: Arc::new(Readiness::new(watch.clone(), plane.clone())),
            plane,
            registry: Arc::default(),
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
        let Self { config, context, registry, hub, phase, watch, plane, readiness, auth, .. } =
            self;
        let Context { instance_id, metrics, log_level, pages, triggers: stop, watchdog } = context;
        let status = Status::default();
        let handshakes = Arc::new(Handshakes::default());
        scrape(&metrics, &registry, &hub, &plane);
        Listening { public, admin: Some(admin) }.emit(&metrics);
        let state = admin::State {
            registry: registry.clone(),
            hub: hub.clone(),
            plane: plane.clone(),
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
            deadlines: deadlines(&config.shutdown),
            spread: spread(&config.shutdown),
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
            metrics,
            phase: watch,
            settings: connection_settings(&config, instance_id),
        });
        let limit_settings = limit_settings(&config.limits);
        let front = Front {
            services,
            registry,
            addresses: Addresses::new(&limit_settings),
            proxies: TrustedProxies::new(limit_settings.trusted_proxies.clone()),
            handshakes: HandshakeRate::new(limit_settings.handshake_rate, started),
            max_connections: config.server.max_connections,
            origins: origins(&config),
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
        let opened = tokio::select! {
            opened = open_log(&config.room_log, &plane, log_events) => opened?,
            Some(trigger) = triggers.recv() => return Ok(coordinator.run(trigger, triggers).await),
        };
        hub.set_epoch(opened.epoch());
        log.set(Arc::new(opened));
        plane.release(Hold::Startup);
        tracing::info!(event = "server.ready", "ready");
        match triggers.recv().await {
            Some(trigger) => Ok(coordinator.run(trigger, triggers).await),
            // Nobody can ask for a stop any more.
            None => std::future::pending().await,
        }
    }
}

async fn open_log(
    config: &config::RoomLog,
    plane: &Plane,
    events: mpsc::UnboundedSender<LogEvent>,
) -> Result<Embedded, StartError> {
    let path = config.path.clone();
    let lock = match Lock::acquire(&path, LOCK_GLANCE.min(config.lock_wait)).await {
        Err(LockError::Held { .. }) => {
            let text = format!("waiting for the lock on {}", path.display());
            tracing::info!(event = "room_log.waiting", "room log: {text}");
            plane.hold(Hold::Startup, text);
            Lock::acquire(&path, config.lock_wait.saturating_sub(LOCK_GLANCE)).await?
        }
        lock => lock?,
    };
    plane.hold(Hold::Startup, format!("opening {}", path.display()));
    let settings = log_settings(config);
    let opened = tokio::task::spawn_blocking(move || Embedded::open(lock, &settings, events));
    let log = opened.await.map_err(std::io::Error::other)??;
    tracing::info!(
        event = "room_log.open",
        engine = "embedded",
        path = %PathBuf::from(&config.path).display(),
        epoch = &*log.epoch(),
        "room log: open"
    );
    Ok(log)
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

fn budgets(config: &config::Plane) -> Budgets {
    Budgets {
        requests: config.max_held_requests,
        notifications: config.max_held_notifications,
        bytes_per_connection: config.max_held_bytes_per_connection,
        bytes: config.max_held_bytes,
    }
}

fn deadlines(config: &config::Shutdown) -> Deadlines {
    Deadlines {
        lame_duck: config.lame_duck,
        stop_accepting: config.stop_accepting,
        notify: config.notify,
        drain: config.drain,
        close: config.close,
    }
}

fn spread(config: &config::Shutdown) -> Spread {
    Spread { min: config.reconnect_min, max: config.reconnect_max, rate: config.reconnect_rate }
}

fn origins(config: &Config) -> Origins {
    match (&config.server.allowed_origins, config.auth.mode) {
        (Some(listed), _) => Origins::Listed(listed.clone()),
        (None, config::AuthMode::None) => Origins::Same,
        (None, config::AuthMode::Jwt) => Origins::Any,
    }
}

fn auth_settings(config: &config::Auth) -> auth::Settings {
    auth::Settings {
        mode: match config.mode {
            config::AuthMode::Jwt => auth::Mode::Jwt,
            config::AuthMode::None => auth::Mode::None,
        },
        secret: config.secret.as_ref().map(|secret| auth::Secret::new(secret.expose())),
        secret_file: config.secret_file.clone(),
        public_key_file: config.public_key_file.clone(),
        jwks_file: config.jwks_file.clone(),
        algorithms: config.algorithms.clone(),
        issuer: config.issuer.iter().cloned().collect(),
        audience: config.audience.iter().cloned().collect(),
        leeway: config.leeway,
        require_exp: config.require_exp,
        default_access: match config.default_access {
            config::DefaultAccess::All => auth::DefaultAccess::All,
            config::DefaultAccess::None => auth::DefaultAccess::None,
        },
    }
}

/// The settings of tokens, for the command that mints them.
#[must_use]
pub fn token_settings(config: &Config) -> auth::Settings {
    auth_settings(&config.auth)
}

fn limit_settings(config: &config::Limits) -> limits::Settings {
    limits::Settings {
        message_rate: config.message_rate,
        message_burst: config.message_burst,
        connects_per_minute: config.connects_per_minute,
        connections_per_address: config.connections_per_address,
        handshake_rate: config.handshake_rate,
        trusted_proxies: config.trusted_proxies.clone(),
    }
}

fn log_settings(config: &config::RoomLog) -> room_log::Settings {
    room_log::Settings {
        retention_age: config.retention_age,
        retention_bytes: config.retention_bytes,
        newest_age: config.newest_age,
        min_free: config.min_free,
        dedup_window: config.dedup_window,
    }
}

fn room_settings(config: &Config) -> rooms::Settings {
    rooms::Settings {
        rooms: config.limits.rooms,
        members_per_room: config.limits.members_per_room,
        presence_members: config.limits.presence_members,
        max_frame_out: config.limits.max_frame_out,
        // What one connection may have waiting is what a room has to keep.
        tail_bytes: config.outgoing.max_bytes,
        newest_age: config.room_log.newest_age,
    }
}

fn connection_settings(config: &Config, instance_id: Arc<str>) -> connection::Settings {
    let (limits, outgoing) = (&config.limits, &config.outgoing);
    connection::Settings {
        instance_id,
        max_frame: limits.max_frame,
        max_frame_out: limits.max_frame_out,
        position: PositionRules {
            max_position: limits.max_position,
            max_future_skew: limits.max_future_skew,
            accept_null_island: limits.accept_null_island,
            extra_fields: match limits.extra_fields {
                config::ExtraFields::Pass => ExtraFields::Pass,
                config::ExtraFields::Drop => ExtraFields::Drop,
            },
        },
        message_rate: limits.message_rate,
        message_burst: limits.message_burst,
        rooms_per_connection: limits.rooms_per_connection,
        upload_idle: limits.upload_idle,
        heartbeat_interval: config.heartbeat.interval,
        heartbeat_timeout: config.heartbeat.timeout,
        high_water: outgoing.high_water,
        low_water: outgoing.low_water(),
        max_bytes: outgoing.max_bytes,
        max_messages: outgoing.max_messages,
        slow_timeout: outgoing.slow_timeout,
        enforce_expiry: config.auth.expiry == config::Expiry::Enforce,
        expiry_warning: config.auth.expiry_warning,
        dedup_window: config.room_log.dedup_window,
    }
}
