//! The log lines: flat JSON, one object a line (operation.md, "Logs").
//!
//! Owns the format and the level. Fields of spans are lifted into the line, outer
//! spans first. No key comes twice: a later field replaces an earlier one of the
//! same name in its place, and a field named like a key of the head is left out.
//! Crates other than this one are logged two levels lower and never at TRACE,
//! where some of them write frames and queries.

mod fields;
mod format;

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use self::fields::{Fields, Value};
use self::format::write_line;
use super::sink::Sink;
use crate::time::UnixMillis;

/// The name under which lines of this crate are logged.
const OWN: &str = "milepost";

/// How lines are written (`log.format`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Flat JSON with the keys of operation.md.
    #[default]
    Json,
    /// For people: `TIME LEVEL message key=value`.
    Text,
    /// JSON with the keys of the Elastic Common Schema.
    Ecs,
    /// JSON with the keys of Google Cloud Logging.
    Gcp,
    /// JSON with the keys of Datadog.
    Datadog,
}

/// What the log needs to know.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// `log.format`.
    pub format: Format,
    /// `log.level`.
    pub level: LevelFilter,
    /// The `service` of every line.
    pub service: Cow<'static, str>,
    /// The `version` of every line.
    pub version: Cow<'static, str>,
    /// The `instance_id` of every line.
    pub instance_id: Arc<str>,
}

/// `log.level` is none of off, error, warn, info, debug and trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the log level must be one of off, error, warn, info, debug, trace")]
pub struct BadLevel;

/// Reads a level name in any case.
///
/// # Errors
/// [`BadLevel`].
pub fn parse_level(text: &str) -> Result<LevelFilter, BadLevel> {
    // Its own parser takes numbers as well.
    if text.bytes().all(|b| b.is_ascii_alphabetic()) && !text.is_empty() {
        LevelFilter::from_str(text).map_err(|_| BadLevel)
    } else {
        Err(BadLevel)
    }
}

fn level_to_u8(level: LevelFilter) -> u8 {
    match level.into_level() {
        None => 0,
        Some(Level::ERROR) => 1,
        Some(Level::WARN) => 2,
        Some(Level::INFO) => 3,
        Some(Level::DEBUG) => 4,
        Some(Level::TRACE) => 5,
    }
}

fn level_from_u8(level: u8) -> LevelFilter {
    match level {
        0 => LevelFilter::OFF,
        1 => LevelFilter::ERROR,
        2 => LevelFilter::WARN,
        3 => LevelFilter::INFO,
        4 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    }
}

/// Changes the level of a running log (`PUT /log-level`, SIGHUP).
#[derive(Debug, Clone)]
pub struct LogHandle(Arc<AtomicU8>);

impl LogHandle {
    /// Sets the level from now on.
    pub fn set_level(&self, level: LevelFilter) {
        self.0.store(level_to_u8(level), Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }

    /// The level now.
    #[must_use]
    pub fn level(&self) -> LevelFilter {
        level_from_u8(self.0.load(Ordering::Relaxed))
    }
}

/// The log as a subscriber, for [`tracing::subscriber::set_global_default`] or, in
/// tests, `with_default`.
#[must_use]
pub fn subscriber(
    settings: LogSettings,
    sink: Sink,
) -> (impl Subscriber + Send + Sync + 'static, LogHandle) {
    let level = Arc::new(AtomicU8::new(level_to_u8(settings.level)));
    let handle = LogHandle(Arc::clone(&level));
    (Registry::default().with(LogLayer { settings, sink, level }), handle)
}

/// Installs the log for the whole process.
///
/// # Errors
/// If one is installed already.
pub fn init(
    settings: LogSettings,
    sink: Sink,
) -> Result<LogHandle, tracing::subscriber::SetGlobalDefaultError> {
    let (subscriber, handle) = subscriber(settings, sink);
    tracing::subscriber::set_global_default(subscriber)?;
    Ok(handle)
}

/// Turns events into lines.
#[derive(Debug)]
struct LogLayer {
    settings: LogSettings,
    sink: Sink,
    level: Arc<AtomicU8>,
}

impl LogLayer {
    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let level = level_from_u8(self.level.load(Ordering::Relaxed));
        let target = metadata.target();
        let own = target == OWN || target.strip_prefix(OWN).is_some_and(|t| t.starts_with("::"));
        let limit = if own {
            level
        } else {
            match level_to_u8(level) {
                4 => LevelFilter::INFO,
                5 => LevelFilter::DEBUG,
                _ => level.min(LevelFilter::WARN),
            }
        };
        *metadata.level() <= limit
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.wants(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(level_from_u8(self.level.load(Ordering::Relaxed)))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().replace(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        for span in
            context.event_scope(event).into_iter().flatten().collect::<Vec<_>>().iter().rev()
        {
            if let Some(outer) = span.extensions().get::<Fields>() {
                for (name, value) in outer.iter() {
                    fields.set(name, value.clone());
                }
            }
        }
        event.record(&mut fields);
        let reserved = event.metadata().target().starts_with("shutdown.")
            || matches!(fields.get("event"), Some(Value::Text(name)) if name.starts_with("shutdown."));
        let mut line = String::with_capacity(256);
        write_line(&mut line, &self.settings, UnixMillis::now(), event.metadata(), &fields);
        self.sink.push(line.into_bytes(), reserved);
    }
}

#[cfg(test)]
mod tests;
