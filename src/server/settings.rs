//! Configuration into what each part takes: the one place that knows both sides.

use std::sync::Arc;

use crate::auth;
use crate::broker;
use crate::cluster;
use crate::config::{self, Config};
use crate::connection;
use crate::limits;
use crate::listener::Origins;
use crate::plane::Budgets;
use crate::protocol::position::{ExtraFields, PositionRules};
use crate::room_log;
use crate::rooms;
use crate::shutdown::slots::Spread;
use crate::shutdown::{Deadlines, Returns};

pub(super) fn budgets(config: &config::Plane) -> Budgets {
    Budgets {
        requests: config.max_held_requests,
        notifications: config.max_held_notifications,
        bytes_per_connection: config.max_held_bytes_per_connection,
        bytes: config.max_held_bytes,
    }
}

pub(super) fn deadlines(config: &config::Shutdown) -> Deadlines {
    Deadlines {
        lame_duck: config.lame_duck,
        stop_accepting: config.stop_accepting,
        notify: config.notify,
        drain: config.drain,
        close: config.close,
    }
}

pub(super) fn returns(config: &config::Shutdown) -> Returns {
    let spread = |times: config::ReturnTimes| Spread {
        min: times.min,
        max: times.max,
        rate: config.reconnect_rate,
    };
    Returns {
        alone: spread(config.alone()),
        with_others: spread(config.with_others()),
        handover: config.handover,
    }
}

pub(super) fn origins(config: &Config) -> Origins {
    match (&config.server.allowed_origins, config.auth.mode) {
        (Some(listed), _) => Origins::Listed(listed.clone()),
        (None, config::AuthMode::None) => Origins::Same,
        (None, config::AuthMode::Jwt) => Origins::Any,
    }
}

pub(super) fn auth_settings(config: &config::Auth) -> auth::Settings {
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
pub(crate) fn token_settings(config: &Config) -> auth::Settings {
    auth_settings(&config.auth)
}

pub(super) fn limit_settings(config: &config::Limits) -> limits::Settings {
    limits::Settings {
        message_rate: config.message_rate,
        message_burst: config.message_burst,
        connects_per_minute: config.connects_per_minute,
        connections_per_address: config.connections_per_address,
        handshake_rate: config.handshake_rate,
        trusted_proxies: config.trusted_proxies.clone(),
    }
}

pub(super) fn log_settings(config: &config::RoomLog) -> room_log::Settings {
    room_log::Settings {
        retention_age: config.retention_age,
        retention_bytes: config.retention_bytes,
        newest_age: config.newest_age,
        min_free: config.min_free,
        dedup_window: config.dedup_window,
    }
}

pub(super) fn broker_settings(config: &config::Nats, instance: &str) -> broker::Settings {
    broker::Settings {
        urls: config.url.iter().map(|url| url.expose().to_owned()).collect(),
        credentials_file: config.credentials_file.clone(),
        stream: config.stream.clone(),
        replicas: config.replicas,
        instance: instance.to_owned(),
    }
}

pub(super) fn stream_settings(config: &Config) -> room_log::nats::Settings {
    let log = &config.room_log;
    room_log::nats::Settings {
        replicas: config.nats.replicas,
        retention_age: log.retention_age,
        retention_bytes: log.retention_bytes,
        newest_age: log.newest_age,
        dedup_window: log.dedup_window,
    }
}

pub(super) fn cluster_settings(config: &Config, instance_id: Arc<str>) -> cluster::Settings {
    let generation = config.server.generation.as_str().into();
    // What an instance whose clients have somewhere to go tells them.
    cluster::Settings::new(instance_id, generation, config.shutdown.with_others().max)
}

pub(super) fn room_settings(config: &Config) -> rooms::Settings {
    rooms::Settings {
        rooms: config.limits.rooms,
        members_per_room: config.limits.members_per_room,
        presence_members: config.limits.presence_members,
        max_frame_out: config.limits.max_frame_out,
        // What one connection may have waiting is what a room has to keep.
        tail_bytes: config.outgoing.max_bytes,
        // Well under the mark at which a queue is squeezed: what is missed is not skipped.
        replay_rest: config.outgoing.high_water / 2,
        newest_age: config.room_log.newest_age,
    }
}

pub(super) fn connection_settings(config: &Config, instance_id: Arc<str>) -> connection::Settings {
    let (limits, outgoing) = (&config.limits, &config.outgoing);
    connection::Settings {
        instance_id,
        generation: config.server.generation.as_str().into(),
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
