//! The log lines: flat JSON, one object a line (operation.md, "Logs").
//!
//! Owns the format and the level. Fields of spans are lifted into the line, outer
//! spans first. No key comes twice: a later field replaces an earlier one of the
//! same name in its place, and a field named like a key of the head is left out.
//! Crates other than this one are logged two levels lower and never at TRACE,
//! where some of them write frames and queries.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

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
                for (name, value) in &outer.0 {
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

/// A field's value, with numbers still numbers.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Signed(i128),
    Unsigned(u128),
    Float(f64),
    Bool(bool),
    Text(Cow<'static, str>),
}

/// The fields of an event or span in their order.
#[derive(Debug, Default)]
struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    fn set(&mut self, name: &'static str, value: Value) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    fn record(&mut self, field: &Field, value: Value) {
        let name = field.name();
        self.set(name.strip_prefix("r#").unwrap_or(name), value);
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.record(field, Value::Float(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.record(field, Value::Signed(value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.record(field, Value::Unsigned(value.into()));
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.record(field, Value::Signed(value));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.record(field, Value::Unsigned(value));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.record(field, Value::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record(field, Value::Text(value.to_owned().into()));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        let mut text = value.to_string();
        let mut source = value.source();
        while let Some(error) = source {
            let _ = write!(text, ": {error}");
            source = error.source();
        }
        self.record(field, Value::Text(text.into()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record(field, Value::Text(format!("{value:?}").into()));
    }
}

/// The keys that a format gives to the head of a line.
struct Keys {
    timestamp: &'static str,
    level: &'static str,
    message: &'static str,
    target: &'static str,
    service: &'static str,
    version: &'static str,
    instance_id: &'static str,
    event: &'static str,
}

const JSON: Keys = Keys {
    timestamp: "timestamp",
    level: "level",
    message: "message",
    target: "target",
    service: "service",
    version: "version",
    instance_id: "instance_id",
    event: "event",
};

impl Keys {
    const fn of(format: Format) -> Self {
        match format {
            Format::Json | Format::Text => JSON,
            Format::Ecs => Self {
                timestamp: "@timestamp",
                level: "log.level",
                target: "log.logger",
                service: "service.name",
                version: "service.version",
                instance_id: "service.node.name",
                event: "event.action",
                ..JSON
            },
            Format::Gcp => Self { timestamp: "time", level: "severity", ..JSON },
            Format::Datadog => {
                Self { level: "status", target: "logger.name", event: "evt.name", ..JSON }
            }
        }
    }

    fn holds(&self, key: &str) -> bool {
        [
            self.timestamp,
            self.level,
            self.message,
            self.target,
            self.service,
            self.version,
            self.instance_id,
            self.event,
        ]
        .contains(&key)
    }
}

fn level_word(format: Format, level: Level) -> &'static str {
    let (upper, lower, google) = match level {
        Level::ERROR => ("ERROR", "error", "ERROR"),
        Level::WARN => ("WARN", "warn", "WARNING"),
        Level::INFO => ("INFO", "info", "INFO"),
        Level::DEBUG => ("DEBUG", "debug", "DEBUG"),
        Level::TRACE => ("TRACE", "trace", "DEBUG"),
    };
    match format {
        Format::Json | Format::Text => upper,
        Format::Ecs | Format::Datadog => lower,
        Format::Gcp => google,
    }
}

fn write_line(
    out: &mut String,
    settings: &LogSettings,
    now: UnixMillis,
    metadata: &Metadata<'_>,
    fields: &Fields,
) {
    if settings.format == Format::Text {
        write_text(out, now, metadata, fields);
        return;
    }
    let keys = Keys::of(settings.format);
    let text = |name| match fields.get(name) {
        Some(Value::Text(text)) => Some(text.as_ref()),
        _ => None,
    };
    let _ = write!(out, "{{\"{}\":\"{now}\"", keys.timestamp);
    let mut head = |key, value: &str| {
        let _ = write!(out, ",\"{key}\":");
        write_json_string(out, value);
    };
    head(keys.level, level_word(settings.format, *metadata.level()));
    head(keys.message, text("message").unwrap_or_default());
    head(keys.target, metadata.target());
    head(keys.service, &settings.service);
    head(keys.version, &settings.version);
    head(keys.instance_id, &settings.instance_id);
    if let Some(event) = text("event") {
        head(keys.event, event);
    }
    for (name, value) in &fields.0 {
        // Both the names of operation.md and what they are renamed to are taken.
        if JSON.holds(name) || keys.holds(name) {
            continue;
        }
        let name = match (settings.format, *name) {
            // An object in the schema: a text under this name would be refused.
            (Format::Ecs, "error") => "error.message",
            (_, name) => name,
        };
        out.push(',');
        write_json_string(out, name);
        out.push(':');
        write_json_value(out, name, value);
    }
    out.push_str("}\n");
}

fn write_json_value(out: &mut String, name: &str, value: &Value) {
    let _ = match value {
        Value::Signed(n) => write!(out, "{n}"),
        Value::Unsigned(n) => write!(out, "{n}"),
        Value::Float(n) if !n.is_finite() => write!(out, "null"),
        Value::Float(n) if name.ends_with("_ms") => write!(out, "{n:.0}"),
        Value::Float(n) => write!(out, "{n}"),
        Value::Bool(b) => write!(out, "{b}"),
        Value::Text(text) => {
            write_json_string(out, text);
            Ok(())
        }
    };
}

fn write_json_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn write_text(out: &mut String, now: UnixMillis, metadata: &Metadata<'_>, fields: &Fields) {
    let _ = write!(out, "{now} {} ", metadata.level());
    if let Some(Value::Text(message)) = fields.get("message") {
        // A name from outside must not fake a line or drive the terminal.
        out.extend(message.chars().map(|c| if c.is_control() { ' ' } else { c }));
    }
    for (name, value) in &fields.0 {
        // For people the head is what they can see for themselves.
        if JSON.holds(name) {
            continue;
        }
        let _ = write!(out, " {name}=");
        match value {
            Value::Text(text)
                if text.is_empty()
                    || text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"') =>
            {
                let _ = write!(out, "{text:?}");
            }
            Value::Text(text) => out.push_str(text),
            value => write_json_value(out, name, value),
        }
    }
    out.push('\n');
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
