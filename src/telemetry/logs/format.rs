//! The text of a line in each format. `ecs`, `gcp` and `datadog` rename keys and
//! level words and change nothing else.

use std::fmt::Write as _;

use tracing::{Level, Metadata};

use super::fields::{Fields, Value};
use super::{Format, LogSettings};
use crate::time::UnixMillis;

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

/// Writes one line with its line end.
pub(super) fn write_line(
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
    for (name, value) in fields.iter() {
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
    for (name, value) in fields.iter() {
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
