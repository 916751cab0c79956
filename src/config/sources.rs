//! Where each key was set: what an error text points at.

use std::collections::BTreeMap;

/// Key (`section.key`) to the place that set it last: `FILE:LINE`, the environment
/// variable, or `--set section.key`. Keys at their default are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources(BTreeMap<String, String>);

impl Sources {
    /// The place that set `key`, if it is not at its default.
    #[must_use]
    pub fn of(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The place that set `key` or, failing that, the nearest table around it.
    pub(super) fn nearest(&self, key: &str) -> Option<&str> {
        // `section.key[3]` is set where `section.key` is.
        let mut key = key.split_once('[').map_or(key, |(key, _)| key);
        loop {
            if let Some(place) = self.of(key) {
                return Some(place);
            }
            key = key.rsplit_once('.')?.0;
        }
    }

    /// Notes that `place` set `key`; what was inside `key` is gone.
    pub(super) fn set(&mut self, key: &str, place: String) {
        self.0
            .retain(|other, _| !other.strip_prefix(key).is_some_and(|rest| rest.starts_with('.')));
        self.0.insert(key.to_owned(), place);
    }
}
