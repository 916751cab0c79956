//! The stream: created if it is missing, else checked; what retention wants is updated.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::Settings;
use super::api::{Api, ApiError, STREAM_NOT_FOUND, StreamInfo};
use crate::broker::BrokerError;

/// The oldest server that can do what the log needs.
const OLDEST: (u64, u64) = (2, 9);
/// The least that a server must accept for one message, in bytes: a position's limits
/// are below it.
const MIN_PAYLOAD: usize = 64 * 1024;
/// The shortest window that a server takes.
const MIN_WINDOW: Duration = Duration::from_millis(100);

/// Why the stream cannot be used. The text names the stream and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Trying again later may help.
    #[error("nats {urls}, stream {stream}: {text}")]
    Unavailable {
        /// The servers.
        urls: String,
        /// The stream.
        stream: String,
        /// What is wrong.
        text: String,
    },
    /// The server cannot be used as it is.
    #[error("nats {urls}: {text}")]
    Server {
        /// The servers.
        urls: String,
        /// What is wrong, and what is needed.
        text: String,
    },
    /// The stream's name is no token of a subject.
    #[error("nats.stream {0:?}: expected letters, digits, `-` and `_` only")]
    Name(String),
    /// The stream exists and is set up in another way.
    #[error(
        "nats stream {stream}: {setting} is {found}, expected {expected}; change it there, or set nats.stream to another name"
    )]
    Differs {
        /// The stream.
        stream: String,
        /// The setting, as the server calls it.
        setting: &'static str,
        /// What it has to be.
        expected: String,
        /// What it is.
        found: String,
    },
}

impl StreamError {
    /// Whether trying again without a change of the configuration can help.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// Why the log in a stream cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no link.
    #[error(transparent)]
    Broker(#[from] BrokerError),
    /// The stream cannot be used.
    #[error(transparent)]
    Stream(#[from] StreamError),
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 1)
}

/// The epoch of a stream: another one with the same name is another log.
pub(super) fn epoch(info: &StreamInfo, stream: &str) -> Arc<str> {
    let short: String = info.created.chars().filter(char::is_ascii_digit).take(24).collect();
    let name: String = stream.chars().take(39).collect();
    format!("{name}.{short}").into()
}

fn unavailable(api: &Api, error: &ApiError) -> StreamError {
    StreamError::Unavailable {
        urls: api.link.urls().to_owned(),
        stream: api.subjects.stream().to_owned(),
        text: error.to_string(),
    }
}

/// Why the server did not create the stream.
fn not_made(api: &Api, refused: &ApiError) -> StreamError {
    // Too few servers of the cluster are up, or out of room.
    const MAY_PASS: [u64; 4] = [10_005, 10_008, 10_023, 10_047];
    if MAY_PASS.iter().any(|code| refused.is(*code)) {
        return unavailable(api, refused);
    }
    let text = format!(
        "the stream {} cannot be created: {refused}; check nats.replicas and the limits of the \
         account",
        api.subjects.stream()
    );
    StreamError::Server { urls: api.link.urls().to_owned(), text }
}

/// Creates the stream, or checks and updates it.
pub(super) async fn ensure(api: &Api, settings: &Settings) -> Result<StreamInfo, StreamError> {
    let stream = api.subjects.stream();
    if crate::broker::subject::encode(stream) != stream || stream.is_empty() {
        return Err(StreamError::Name(stream.to_owned()));
    }
    check_server(api)?;
    let wanted = config(api, settings);
    let found = match api.info().await {
        Err(error) if error.is(STREAM_NOT_FOUND) => {
            let method = format!("STREAM.CREATE.{stream}");
            match api.call::<StreamInfo>(&method, &wanted).await {
                Ok(info) => info,
                // Another instance was faster, perhaps with other limits; or the server
                // does not do what is asked for.
                Err(refused @ ApiError::Refused { .. }) => match api.info().await {
                    Err(error) if error.is(STREAM_NOT_FOUND) => {
                        return Err(not_made(api, &refused));
                    }
                    other => other.map_err(|error| unavailable(api, &error))?,
                },
                Err(error) => return Err(unavailable(api, &error)),
            }
        }
        other => other.map_err(|error| unavailable(api, &error))?,
    };
    check(stream, &wanted, &found.config)?;
    update(api, &wanted, found).await
}

fn check_server(api: &Api) -> Result<(), StreamError> {
    let info = api.link.client().server_info();
    let bad = |text: String| Err(StreamError::Server { urls: api.link.urls().to_owned(), text });
    let mut parts = info.version.split(['.', '-']).map(|part| part.parse::<u64>().ok());
    let version = (parts.next().flatten(), parts.next().flatten());
    match version {
        (Some(major), Some(minor)) if (major, minor) >= OLDEST => {}
        _ => {
            return bad(format!(
                "the server's version is {}, expected {}.{} or newer",
                info.version, OLDEST.0, OLDEST.1
            ));
        }
    }
    if !info.jetstream {
        return bad("the server runs without JetStream; start it with `jetstream {}`".to_owned());
    }
    if info.max_payload < MIN_PAYLOAD {
        return bad(format!(
            "max_payload is {} bytes, expected at least {MIN_PAYLOAD}",
            info.max_payload
        ));
    }
    Ok(())
}

fn config(api: &Api, settings: &Settings) -> Value {
    let (source, destination) = api.subjects.republish();
    json!({
        "name": api.subjects.stream(),
        "subjects": api.subjects.all(),
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "num_replicas": settings.replicas,
        "max_age": nanos(settings.retention_age),
        "max_bytes": settings.retention_bytes,
        "duplicate_window": nanos(settings.dedup_window.max(MIN_WINDOW).min(settings.retention_age)),
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "max_msg_size": -1,
        "max_consumers": -1,
        "allow_direct": true,
        "republish": { "src": source, "dest": destination },
    })
}

/// What cannot be changed, or not without harm to the other instances.
const FIXED: [&str; 9] = [
    "subjects",
    "republish",
    "storage",
    "retention",
    "discard",
    "max_msgs",
    "max_msgs_per_subject",
    "max_msg_size",
    "num_replicas",
];
/// What is updated to what this instance wants.
const ADJUSTED: [&str; 4] = ["max_age", "max_bytes", "duplicate_window", "allow_direct"];

fn check(stream: &str, wanted: &Value, found: &Value) -> Result<(), StreamError> {
    for setting in FIXED {
        let (expected, found) = (&wanted[setting], &found[setting]);
        if expected != found {
            return Err(StreamError::Differs {
                stream: stream.to_owned(),
                setting,
                expected: expected.to_string(),
                found: found.to_string(),
            });
        }
    }
    for setting in ["sealed", "no_ack"] {
        if found[setting] == json!(true) {
            return Err(StreamError::Differs {
                stream: stream.to_owned(),
                setting,
                expected: "false".to_owned(),
                found: "true".to_owned(),
            });
        }
    }
    Ok(())
}

async fn update(api: &Api, wanted: &Value, found: StreamInfo) -> Result<StreamInfo, StreamError> {
    if ADJUSTED.iter().all(|setting| wanted[*setting] == found.config[*setting]) {
        return Ok(found);
    }
    // Whatever else an operator has set stays as it is.
    let mut config = found.config.clone();
    for setting in ADJUSTED {
        config[setting] = wanted[setting].clone();
    }
    let stream = api.subjects.stream();
    let updated: StreamInfo = api
        .call(&format!("STREAM.UPDATE.{stream}"), &config)
        .await
        .map_err(|error| unavailable(api, &error))?;
    for setting in ADJUSTED {
        if wanted[setting] != updated.config[setting] {
            return Err(StreamError::Differs {
                stream: stream.to_owned(),
                setting,
                expected: wanted[setting].to_string(),
                found: updated.config[setting].to_string(),
            });
        }
    }
    tracing::info!(
        event = "room_log.stream_updated",
        stream,
        "room log: the stream's limits were updated"
    );
    Ok(updated)
}
