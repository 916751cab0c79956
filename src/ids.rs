//! The identifiers of the system: rooms, clients, vehicles, connections.
//!
//! Names that come from outside are checked once, here, and are shared
//! (`Arc<str>`) from then on. This module knows no protocol and does no I/O.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest room, client or vehicle name, in characters (protocol.md).
pub const MAX_NAME_CHARS: usize = 128;

/// Why a name was refused. The text completes the sentence "`roomId` must be …".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("1 to 128 characters without control characters")]
pub struct BadName;

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_NAME_CHARS * 4
        && text.chars().count() <= MAX_NAME_CHARS
        && !text.chars().any(char::is_control)
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks and takes a name.
            ///
            /// # Errors
            /// [`BadName`] if it is empty, longer than 128 characters or holds a
            /// control character.
            pub fn parse(text: &str) -> Result<Self, BadName> {
                if is_name(text) { Ok(Self(text.into())) } else { Err(BadName) }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = Cow::<'de, str>::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

name! {
    /// A room: the unit of publishing and watching.
    RoomId
}
name! {
    /// An identity: the token's `sub`, shared by all connections of one user or device.
    ClientId
}
name! {
    /// A vehicle: whose position is meant. By default the publisher's [`ClientId`].
    VehicleId
}

impl From<&ClientId> for VehicleId {
    fn from(client: &ClientId) -> Self {
        Self(client.0.clone())
    }
}

/// A connection, unique within this process and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A fresh identifier that leaves the process (session, instance): a UUID of version 7
/// (RFC 9562), so that identifiers sort by the time of their creation.
#[must_use]
pub fn fresh_id() -> Arc<str> {
    uuid::Uuid::now_v7().hyphenated().to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded_in_characters_not_bytes() {
        assert!(RoomId::parse(&"ä".repeat(128)).is_ok());
        assert_eq!(RoomId::parse(&"ä".repeat(129)), Err(BadName));
        assert_eq!(RoomId::parse(""), Err(BadName));
        assert_eq!(RoomId::parse("a\u{0}b"), Err(BadName));
        assert_eq!(RoomId::parse("a\u{85}b"), Err(BadName));
        assert!(RoomId::parse("north/ödla 🚌 <b>").is_ok());
    }

    #[test]
    fn fresh_ids_differ() {
        assert_ne!(fresh_id(), fresh_id());
    }
}
