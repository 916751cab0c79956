//! Whose address a connection counts for.
//!
//! `X-Forwarded-For` is what anyone may write, so it counts only from trusted
//! proxies, and only as far from the right as trusted proxies wrote it.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

/// The address that a connection counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientAddress {
    /// The address, an IPv4-mapped one as IPv4.
    pub ip: IpAddr,
    /// Whether the per-address limits leave it alone: a loopback peer, or a trusted
    /// proxy that sent no client address.
    pub exempt: bool,
}

/// The networks of `limits.trusted_proxies`.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Vec<IpNet>);

impl TrustedProxies {
    /// Takes the networks.
    #[must_use]
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    fn trusts(&self, ip: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(&ip))
    }

    /// The client behind `peer`, given the values of its `X-Forwarded-For` header
    /// lines in their order. Read from the right; trusted proxies are skipped; the
    /// first other address is the client. What is no address ends the reading: the
    /// proxy that passed it on then counts as the client.
    pub fn client_address<'a>(
        &self,
        peer: IpAddr,
        x_forwarded_for: impl IntoIterator<Item = &'a str>,
    ) -> ClientAddress {
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            return ClientAddress { ip: peer, exempt: peer.is_loopback() };
        }
        let hops: Vec<&str> =
            x_forwarded_for.into_iter().flat_map(|line| line.split(',')).map(str::trim).collect();
        let mut client = None;
        for hop in hops.into_iter().rev().filter(|hop| !hop.is_empty()) {
            let Some(ip) = address(hop) else {
                client.get_or_insert(peer);
                break;
            };
            client = Some(ip);
            if !self.trusts(ip) {
                break;
            }
        }
        ClientAddress { ip: client.unwrap_or(peer), exempt: client.is_none() }
    }
}

/// An address, with or without a port; proxies write both.
fn address(hop: &str) -> Option<IpAddr> {
    let bare = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']')).unwrap_or(hop);
    let ip = bare.parse::<IpAddr>().or_else(|_| hop.parse::<SocketAddr>().map(|a| a.ip())).ok()?;
    Some(ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies() -> TrustedProxies {
        TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()])
    }

    #[test]
    fn the_first_untrusted_address_from_the_right_is_the_client() {
        for (peer, lines, ip, exempt) in [
            ("10.0.0.1", &["6.6.6.6, 203.0.113.7"][..], "203.0.113.7", false),
            ("10.0.0.1", &["6.6.6.6", "203.0.113.7, 10.0.0.2"], "203.0.113.7", false),
            ("::ffff:10.0.0.1", &["203.0.113.7:4711"], "203.0.113.7", false),
            ("fd00::1", &["[2001:db8::1]:443"], "2001:db8::1", false),
            ("fd00::1", &["[2001:db8::1]"], "2001:db8::1", false),
            // Nobody trusts this peer, so its header is only talk.
            ("203.0.113.9", &["198.51.100.1"], "203.0.113.9", false),
            ("127.0.0.1", &["198.51.100.1"], "127.0.0.1", true),
            ("::ffff:127.0.0.1", &[], "127.0.0.1", true),
            ("::1", &[], "::1", true),
            // A proxy without a client address, for example its health check.
            ("10.0.0.1", &[], "10.0.0.1", true),
            ("10.0.0.1", &["", " , "], "10.0.0.1", true),
            // Clients inside the trusted networks.
            ("10.0.0.1", &["10.3.3.3, 10.0.0.2"], "10.3.3.3", false),
            // Garbage stops there: whoever passed it on answers for it.
            ("10.0.0.1", &["203.0.113.7, unknown"], "10.0.0.1", false),
            ("10.0.0.1", &["203.0.113.7, <b>, 10.0.0.2"], "10.0.0.2", false),
        ] {
            let found = proxies().client_address(peer.parse().unwrap(), lines.iter().copied());
            assert_eq!(
                found,
                ClientAddress { ip: ip.parse().unwrap(), exempt },
                "{peer} {lines:?}"
            );
        }
    }

    #[test]
    fn a_trusted_loopback_proxy_is_limited_by_its_clients() {
        let proxies = TrustedProxies::new(vec!["127.0.0.0/8".parse().unwrap()]);
        let found = proxies.client_address("127.0.0.1".parse().unwrap(), ["203.0.113.7"]);
        assert_eq!(found.ip, "203.0.113.7".parse::<IpAddr>().unwrap());
        assert!(!found.exempt);
    }
}
