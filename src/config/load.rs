//! Folds file, environment and `--set` into one tree and reads [`Config`] from it.
//!
//! Every key remembers where it was set, so that one text serves all three sources.
//! Values of secrets never stand in an error: TOML's own errors quote the line, so
//! only their bare message is used.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

use serde_path_to_error::Segment;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::error::explain;
use super::{Config, ConfigError, Sources};

const PREFIX: &str = "MILEPOST_";

impl Config {
    /// Reads `file`, then the variables of `env` that begin with `MILEPOST_`, then
    /// `sets` (each `section.key=value`); the later wins. Says nothing about
    /// combinations: that is [`Config::validate`].
    ///
    /// # Errors
    /// A file that cannot be read or is no TOML, an unknown key, a wrong type. The text
    /// names the place, the key, what was found and what was expected.
    pub fn load(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        sets: &[String],
    ) -> Result<Self, ConfigError> {
        let mut tree = Tree::default();
        if let Some(file) = file {
            let text = std::fs::read_to_string(file)
                .map_err(|error| ConfigError::one(format!("{}: {error}", file.display())))?;
            tree.read_file(&file.display().to_string(), &text)?;
        }
        let mut env: Vec<_> = env.collect();
        env.sort();
        for (name, value) in env {
            if let Some(key) = env_key(&name, &value)? {
                tree.set(&key, value, &name)?;
            }
        }
        for set in sets {
            let (key, value) = set.split_once('=').ok_or_else(|| {
                ConfigError::one(format!("--set {set}: expected section.key=value"))
            })?;
            let key = key.trim();
            tree.set(key, value.trim().to_owned(), &format!("--set {key}"))?;
        }
        tree.into_config()
    }
}

/// The key that a variable names; `None` for one that is not ours.
fn env_key(name: &str, value: &str) -> Result<Option<String>, ConfigError> {
    let Some(rest) = name.strip_prefix(PREFIX) else { return Ok(None) };
    if rest.contains("__") {
        return Ok(Some(rest.split("__").collect::<Vec<_>>().join(".").to_lowercase()));
    }
    if is_service_link(rest, value) {
        return Ok(None);
    }
    Err(ConfigError::one(format!("{name}: names no key, expected {PREFIX}SECTION__KEY")))
}

/// Whether Kubernetes or Docker made this variable for a service called `milepost…`
/// (`MILEPOST_SERVICE_HOST`, `MILEPOST_PORT=tcp://…`, `MILEPOST_PORT_8080_TCP_ADDR`).
fn is_service_link(rest: &str, value: &str) -> bool {
    let number = |text: &str| text.parse::<u16>().is_ok();
    let protocol = |text: &str| matches!(text, "TCP" | "UDP" | "SCTP");
    let url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    let parts: Vec<&str> = rest.split('_').collect();
    match parts.as_slice() {
        [.., "SERVICE", "HOST"] => value.parse::<IpAddr>().is_ok(),
        [.., "PORT"] | [.., "PORT", _, "TCP" | "UDP" | "SCTP"] if url => true,
        [.., "PORT", port, kind, "ADDR" | "PORT" | "PROTO"] => number(port) && protocol(kind),
        // `SERVICE_PORT`, and `SERVICE_PORT_NAME` for a named port.
        parts => parts.windows(2).any(|pair| pair == ["SERVICE", "PORT"]) && number(value),
    }
}

/// The one tree of all sources.
#[derive(Default)]
struct Tree {
    root: Table,
    sources: Sources,
    /// The text of each key that did not come from a file.
    texts: BTreeMap<String, String>,
}

impl Tree {
    fn read_file(&mut self, name: &str, text: &str) -> Result<(), ConfigError> {
        let at = |error: &toml::de::Error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            ConfigError::one(format!("{name}:{line}: not TOML: {}", error.message().trim()))
        };
        let spans = DeTable::parse(text).map_err(|error| at(&error))?;
        self.root = toml::from_str(text).map_err(|error| at(&error))?;
        self.note_lines(name, text, "", spans.get_ref());
        Ok(())
    }

    fn note_lines(&mut self, name: &str, text: &str, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let path = format!("{prefix}{}", key.get_ref());
            self.sources.set(&path, format!("{name}:{}", line_of(text, key.span().start)));
            if let DeValue::Table(inner) = value.get_ref() {
                self.note_lines(name, text, &format!("{path}."), inner);
            }
        }
    }

    fn set(&mut self, key: &str, text: String, place: &str) -> Result<(), ConfigError> {
        let parts: Vec<&str> = key.split('.').collect();
        let (Some((last, sections)), true) =
            (parts.split_last(), parts.len() > 1 && parts.iter().all(|part| !part.is_empty()))
        else {
            return Err(ConfigError::one(format!("{place}: names no key, expected section.key")));
        };
        let mut table = &mut self.root;
        let mut path = String::new();
        for section in sections {
            path =
                if path.is_empty() { (*section).to_owned() } else { format!("{path}.{section}") };
            let entry =
                table.entry((*section).to_owned()).or_insert_with(|| Value::Table(Table::new()));
            let kind = entry.type_str();
            table = entry.as_table_mut().ok_or_else(|| {
                let at = self.sources.nearest(&path).unwrap_or(place);
                ConfigError::one(format!("{at}: {path}: found {kind}, expected a section"))
            })?;
        }
        let value = text.parse().unwrap_or_else(|_| Value::String(text.clone()));
        table.insert((*last).to_owned(), value);
        // A section that only this source names is found through it, too.
        if self.sources.of(&path).is_none() {
            self.sources.set(&path, place.to_owned());
        }
        self.sources.set(key, place.to_owned());
        self.texts.insert(key.to_owned(), text);
        Ok(())
    }

    fn into_config(mut self) -> Result<Config, ConfigError> {
        let mut first_message = BTreeMap::new();
        loop {
            let error = match serde_path_to_error::deserialize(Value::Table(self.root.clone())) {
                Ok(config) => return Ok(Config { sources: self.sources, ..config }),
                Err(error) => error,
            };
            let key = dotted(error.path());
            let error = error.into_inner();
            let message = error.message().trim().to_owned();
            // `auth.secret=12345` is a number in TOML and still meant as text.
            if message.starts_with("invalid type")
                && let Some(text) = self.texts.remove(&key)
                && self.replace(&key, text)
            {
                first_message.insert(key, message);
                continue;
            }
            // As text it fits no better; but only then are the allowed names known.
            let message = match first_message.get(&key) {
                Some(first) if !message.starts_with("unknown variant") => first,
                _ => &message,
            };
            let text = explain(&key, message);
            return Err(ConfigError::one(match self.sources.nearest(&key) {
                Some(place) => format!("{place}: {text}"),
                None => text,
            }));
        }
    }

    /// Puts `text` where another kind of value stands; false if there is none.
    fn replace(&mut self, key: &str, text: String) -> bool {
        let mut parts = key.split('.');
        let Some(value) = parts.next().and_then(|first| self.root.get_mut(first)) else {
            return false;
        };
        let Some(value) = parts.try_fold(value, |value, part| value.get_mut(part)) else {
            return false;
        };
        let other = !value.is_str();
        if other {
            *value = Value::String(text);
        }
        other
    }
}

fn dotted(path: &serde_path_to_error::Path) -> String {
    let mut text = String::new();
    for segment in path {
        match segment {
            Segment::Map { key } if text.is_empty() => text.push_str(key),
            Segment::Map { key } => text.extend([".", key]),
            Segment::Seq { index } => text.push_str(&format!("[{index}]")),
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    text
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
}
