//! What a token allows: lists of patterns over room and vehicle names.
//!
//! Patterns are plain text in which `*` stands for any run of characters, the
//! empty one included. Matching is linear in the name's length for each pattern
//! piece, so no token can make it expensive.

use std::sync::Arc;

use crate::ids::ClientId;

/// A list of patterns; a name is allowed if one of them matches all of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Patterns {
    /// Every name.
    All,
    /// The names that match one of these; an empty list allows none.
    List(Arc<[Box<str>]>),
}

impl Patterns {
    /// No name at all.
    #[must_use]
    pub fn none() -> Self {
        Self::List(Arc::new([]))
    }

    /// Takes a list; a lone `*` in it makes it [`Patterns::All`].
    pub fn new<S: AsRef<str>>(patterns: impl IntoIterator<Item = S>) -> Self {
        let list: Vec<Box<str>> = patterns.into_iter().map(|p| p.as_ref().into()).collect();
        if list.iter().any(|p| &**p == "*") { Self::All } else { Self::List(list.into()) }
    }

    /// Whether `name` is allowed.
    #[must_use]
    pub fn allow(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::List(list) => list.iter().any(|pattern| matches(pattern, name)),
        }
    }
}

/// Whether `pattern` matches all of `name`.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(name) = name.strip_prefix(head) else {
        return false;
    };
    let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
    let Some(mut name) = name.strip_suffix(tail) else {
        return false;
    };
    // Taking each piece at its leftmost place leaves the most for the others.
    for piece in middle.split('*').filter(|piece| !piece.is_empty()) {
        match name.find(piece) {
            Some(at) => name = &name[at + piece.len()..],
            None => return false,
        }
    }
    true
}

/// What an identity may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    publish: Patterns,
    subscribe: Patterns,
    history: Patterns,
    vehicles: Patterns,
}

impl Access {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self {
            publish: Patterns::All,
            subscribe: Patterns::All,
            history: Patterns::All,
            vehicles: Patterns::All,
        }
    }

    /// What the four lists say: rooms to publish to, to subscribe to, to read the
    /// history of, and vehicles to publish for besides the own one.
    #[must_use]
    pub fn new(
        publish: Patterns,
        subscribe: Patterns,
        history: Patterns,
        vehicles: Patterns,
    ) -> Self {
        Self { publish, subscribe, history, vehicles }
    }

    /// Nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::new(Patterns::none(), Patterns::none(), Patterns::none(), Patterns::none())
    }

    /// Whether it may publish to the room.
    #[must_use]
    pub fn may_publish(&self, room: &str) -> bool {
        self.publish.allow(room)
    }

    /// Whether it may subscribe to the room.
    #[must_use]
    pub fn may_subscribe(&self, room: &str) -> bool {
        self.subscribe.allow(room)
    }

    /// Whether it may read the room's history.
    #[must_use]
    pub fn may_history(&self, room: &str) -> bool {
        self.history.allow(room)
    }

    /// Whether `own` may publish for `vehicle`: always for itself.
    #[must_use]
    pub fn may_publish_for(&self, own: &ClientId, vehicle: &str) -> bool {
        own.as_str() == vehicle || self.vehicles.allow(vehicle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: `*` is any run, everything else is itself.
    fn naive(pattern: &[char], name: &[char]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some(('*', rest)) => (0..=name.len()).any(|at| naive(rest, &name[at..])),
            Some((c, rest)) => name.first() == Some(c) && naive(rest, &name[1..]),
        }
    }

    #[test]
    fn a_star_is_any_run_and_nothing_else_is_special() {
        for (pattern, name, expected) in [
            ("fleet/*", "fleet/7", true),
            ("fleet/*", "fleet/", true),
            ("fleet/*", "fleet", false),
            ("*", "", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*.north.*", "x.north.y", true),
            ("a?c", "abc", false),
            ("a.c", "abc", false),
            ("", "", true),
            ("", "a", false),
            ("a**b", "ab", true),
            ("ä*🚌", "äx🚌", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_hostile_pattern_is_cheap() {
        // Backtracking would take 2^60 steps here.
        let pattern = "a*".repeat(64) + "b";
        assert!(!matches(&pattern, &"a".repeat(128)));
    }

    #[test]
    fn the_own_vehicle_needs_no_list() {
        let own = ClientId::parse("bus-1").unwrap();
        let access = Access::new(
            Patterns::All,
            Patterns::none(),
            Patterns::none(),
            Patterns::new(["tram-*"]),
        );
        assert!(access.may_publish_for(&own, "bus-1"));
        assert!(access.may_publish_for(&own, "tram-9"));
        assert!(!access.may_publish_for(&own, "bus-10"));
    }

    proptest! {
        #[test]
        fn matching_agrees_with_the_definition(
            pattern in "[abä*]{0,8}",
            name in "[abä]{0,10}",
        ) {
            let p: Vec<char> = pattern.chars().collect();
            let n: Vec<char> = name.chars().collect();
            prop_assert_eq!(matches(&pattern, &name), naive(&p, &n));
        }
    }
}
