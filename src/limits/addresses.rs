//! Connects a minute and connections at once, per client address.
//!
//! One mutex around one map: it is touched twice in a connection's life. An entry
//! lives while its address has connections or a running minute, so the map is
//! bounded by what clients really do. IPv6 counts per /64, which is what one
//! household or host gets.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{ClientAddress, Settings};
use crate::close::Close;

const MINUTE: Duration = Duration::from_secs(60);

/// Refusals before their distribution says anything about proxies.
const ENOUGH_REFUSALS: u64 = 10;

/// Why an address may not connect now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressRefusal {
    /// Too many connects within a minute.
    ConnectRate,
    /// Too many connections at once.
    Connections,
}

impl From<AddressRefusal> for Close {
    fn from(refusal: AddressRefusal) -> Self {
        match refusal {
            AddressRefusal::ConnectRate => Self::ConnectRate,
            AddressRefusal::Connections => Self::ConnectionsPerAddress,
        }
    }
}

#[derive(Debug)]
struct Entry {
    minute: Instant,
    connects: u32,
    connections: u32,
    refusals: u64,
}

impl Entry {
    fn is_idle(&self, now: Instant) -> bool {
        self.connections == 0 && now.saturating_duration_since(self.minute) >= MINUTE
    }
}

#[derive(Debug)]
struct State {
    entries: HashMap<IpAddr, Entry>,
    next_sweep: Instant,
    refusals: u64,
    warned: bool,
}

/// The counts of all addresses.
#[derive(Debug)]
pub struct Addresses {
    connects_per_minute: u32,
    connections_per_address: u32,
    state: Mutex<State>,
}

impl Addresses {
    /// Starts with no counts.
    #[must_use]
    pub fn new(settings: &Settings) -> Arc<Self> {
        Arc::new(Self {
            connects_per_minute: settings.connects_per_minute,
            connections_per_address: settings.connections_per_address,
            state: Mutex::new(State {
                entries: HashMap::new(),
                next_sweep: Instant::now() + MINUTE,
                refusals: 0,
                warned: false,
            }),
        })
    }

    /// Counts a connect and takes a place for its connection.
    ///
    /// # Errors
    /// [`AddressRefusal`], which is a close of 4029. A refused connect takes no place;
    /// one that is refused for the rate does not prolong the refusal.
    pub fn check(self: &Arc<Self>, address: ClientAddress) -> Result<AddressSlot, AddressRefusal> {
        let off = self.connects_per_minute == 0 && self.connections_per_address == 0;
        if address.exempt || off {
            return Ok(AddressSlot(None));
        }
        let key = key(address.ip);
        let now = Instant::now();
        let mut state = self.state.lock();
        if now >= state.next_sweep {
            state.next_sweep = now + MINUTE;
            state.entries.retain(|_, entry| !entry.is_idle(now));
        }
        let fresh = Entry { minute: now, connects: 0, connections: 0, refusals: 0 };
        let entry = state.entries.entry(key).or_insert(fresh);
        if now.saturating_duration_since(entry.minute) >= MINUTE {
            entry.minute = now;
            entry.connects = 0;
        }
        let refusal = if self.connects_per_minute > 0 && entry.connects >= self.connects_per_minute
        {
            Some(AddressRefusal::ConnectRate)
        } else {
            entry.connects = entry.connects.saturating_add(1);
            let full = self.connections_per_address > 0
                && entry.connections >= self.connections_per_address;
            full.then_some(AddressRefusal::Connections)
        };
        let Some(refusal) = refusal else {
            entry.connections += 1;
            return Ok(AddressSlot(Some((Arc::clone(self), key))));
        };
        entry.refusals += 1;
        let of_this = entry.refusals;
        state.refusals += 1;
        let most = state.refusals >= ENOUGH_REFUSALS && of_this * 2 > state.refusals;
        let warn = most && !state.warned;
        state.warned |= warn;
        drop(state);
        if warn {
            tracing::warn!(
                event = "limits.one_address",
                peer = %address.ip,
                refusals = of_this,
                "most refused connects come from one address: if it is a proxy, name it in \
                 limits.trusted_proxies"
            );
        }
        Err(refusal)
    }

    /// The number of addresses with an entry.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state.lock().entries.len()
    }

    /// Whether no address has an entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn release(&self, key: IpAddr) {
        let now = Instant::now();
        let mut state = self.state.lock();
        if let Some(entry) = state.entries.get_mut(&key) {
            entry.connections = entry.connections.saturating_sub(1);
            if entry.is_idle(now) {
                state.entries.remove(&key);
            }
        }
    }
}

/// The place of one connection; given back when dropped. The default is no place.
#[derive(Debug, Default)]
#[must_use = "the place is given back when this is dropped"]
pub struct AddressSlot(Option<(Arc<Addresses>, IpAddr)>);

impl Drop for AddressSlot {
    fn drop(&mut self) {
        if let Some((addresses, key)) = self.0.take() {
            addresses.release(key);
        }
    }
}

fn key(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(connects_per_minute: u32, connections_per_address: u32) -> Arc<Addresses> {
        Addresses::new(&Settings {
            connects_per_minute,
            connections_per_address,
            ..Settings::default()
        })
    }

    fn from(ip: &str) -> ClientAddress {
        ClientAddress { ip: ip.parse().unwrap(), exempt: false }
    }

    #[tokio::test(start_paused = true)]
    async fn connects_are_counted_by_the_minute() {
        let addresses = addresses(3, 0);
        for _ in 0..3 {
            drop(addresses.check(from("203.0.113.1")).unwrap());
        }
        let refusal = addresses.check(from("203.0.113.1")).unwrap_err();
        assert_eq!(refusal, AddressRefusal::ConnectRate);
        assert_eq!(Close::from(refusal), Close::ConnectRate);
        assert!(addresses.check(from("203.0.113.2")).is_ok());
        tokio::time::advance(MINUTE - Duration::from_millis(1)).await;
        assert!(addresses.check(from("203.0.113.1")).is_err());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(addresses.check(from("203.0.113.1")).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_comes_back_when_its_connection_goes() {
        let addresses = addresses(0, 2);
        let first = addresses.check(from("203.0.113.1")).unwrap();
        let _second = addresses.check(from("203.0.113.1")).unwrap();
        let refusal = addresses.check(from("203.0.113.1")).unwrap_err();
        assert_eq!(refusal, AddressRefusal::Connections);
        assert_eq!(Close::from(refusal), Close::ConnectionsPerAddress);
        drop(first);
        assert!(addresses.check(from("203.0.113.1")).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn ipv6_counts_per_64_and_mapped_ipv4_as_itself() {
        let addresses = addresses(0, 1);
        let _one = addresses.check(from("2001:db8:0:1::1")).unwrap();
        assert!(addresses.check(from("2001:db8:0:1:ffff::2")).is_err());
        assert!(addresses.check(from("2001:db8:0:2::1")).is_ok());
        let _two = addresses.check(from("203.0.113.1")).unwrap();
        assert!(addresses.check(from("::ffff:203.0.113.1")).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_exempt_and_the_unlimited_are_not_counted() {
        let limited = addresses(1, 1);
        let exempt = ClientAddress { ip: "127.0.0.1".parse().unwrap(), exempt: true };
        let slots: Vec<_> = (0..100).map(|_| limited.check(exempt).unwrap()).collect();
        assert!(limited.is_empty());
        drop(slots);
        let off = addresses(0, 0);
        let slots: Vec<_> = (0..100).map(|_| off.check(from("203.0.113.1")).unwrap()).collect();
        assert!(off.is_empty());
        drop(slots);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_entries_vanish() {
        let addresses = addresses(100, 100);
        for last in 0..200 {
            drop(addresses.check(from(&format!("203.0.113.{last}"))).unwrap());
        }
        let kept = addresses.check(from("198.51.100.1")).unwrap();
        assert_eq!(addresses.len(), 201);
        tokio::time::advance(MINUTE).await;
        let other = addresses.check(from("198.51.100.2")).unwrap();
        assert_eq!(addresses.len(), 2);
        tokio::time::advance(MINUTE).await;
        drop((kept, other));
        assert!(addresses.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_with_most_refusals_is_named_once() {
        let addresses = addresses(1, 0);
        let refuse = |ip: &str, times: usize| {
            for _ in 0..times {
                let _ = addresses.check(from(ip));
            }
        };
        // 5 of 9, then of 10 refusals from each of two: no single one has most.
        refuse("203.0.113.1", 6);
        refuse("203.0.113.2", 6);
        assert!(!addresses.state.lock().warned);
        refuse("203.0.113.1", 1);
        assert!(addresses.state.lock().warned);
    }
}
