//! How much a client may do: message and handshake rates, connects and
//! connections per address, and whose word about an address counts.
//!
//! Everything here decides and counts; it must not close, refuse or send
//! anything itself. All clocks are tokio's, so that tests can pause them.

mod addresses;
mod proxies;
mod rate;

pub use addresses::{AddressRefusal, AddressSlot, Addresses};
pub use proxies::{ClientAddress, TrustedProxies};
pub use rate::{HandshakeRate, MessageRate, Suppressor};

/// The settings of the section `limits` that are kept here. 0 turns a limit off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Messages a second from one connection (`limits.message_rate`).
    pub message_rate: u32,
    /// Messages that may come at once (`limits.message_burst`).
    pub message_burst: u32,
    /// Connects a minute from one address (`limits.connects_per_minute`).
    pub connects_per_minute: u32,
    /// Connections of one address (`limits.connections_per_address`).
    pub connections_per_address: u32,
    /// Handshakes a second, the server (`limits.handshake_rate`).
    pub handshake_rate: u32,
    /// Whose `X-Forwarded-For` counts (`limits.trusted_proxies`).
    pub trusted_proxies: Vec<ipnet::IpNet>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            message_rate: 100,
            message_burst: 200,
            connects_per_minute: 3000,
            connections_per_address: 1000,
            handshake_rate: 4000,
            trusted_proxies: Vec::new(),
        }
    }
}
