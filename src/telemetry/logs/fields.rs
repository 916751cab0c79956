//! The fields of events and spans on their way into a line: their order, their
//! kinds, and that no name comes twice.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};

/// A field's value, with numbers still numbers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Signed(i128),
    Unsigned(u128),
    Float(f64),
    Bool(bool),
    Text(Cow<'static, str>),
}

/// The fields of an event or span in their order.
#[derive(Debug, Default)]
pub(super) struct Fields(Vec<(&'static str, Value)>);

impl Fields {
    /// Puts a value under a name; the later one of a name counts.
    pub(super) fn set(&mut self, name: &'static str, value: Value) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// The value under a name.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// All of them in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(&'static str, Value)> {
        self.0.iter()
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
