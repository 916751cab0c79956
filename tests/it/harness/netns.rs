//! A network namespace of a test's own, reached over two links of which one can be cut:
//! what a peer sends over a cut link is lost, and nobody hears of it.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

/// The namespace and its links; gone when this is dropped.
pub struct Namespace {
    name: String,
    /// `198.18.NET.0/30` and `198.18.NET + 1.0/30`: addresses set aside for tests
    /// (RFC 2544).
    net: u8,
}

static NEXT: AtomicU8 = AtomicU8::new(0);

impl Namespace {
    /// Makes a namespace. Needs root and iproute2.
    pub fn new() -> Self {
        let process = std::process::id();
        let net = (process as u8).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) & 0x7e;
        let this = Self { name: format!("milepost-{process}-{net}"), net };
        this.ip(&["netns", "add", &this.name]);
        this.ip(&["-n", &this.name, "link", "set", "lo", "up"]);
        for link in 0..2 {
            let (near, far) = this.interfaces(link);
            this.ip(&["link", "add", &near, "type", "veth", "peer", &far, "netns", &this.name]);
            let near_address = format!("198.18.{}.1/30", this.net + link);
            let far_address = format!("{}/30", this.address(link));
            this.ip(&["address", "add", &near_address, "dev", &near]);
            this.ip(&["-n", &this.name, "address", "add", &far_address, "dev", &far]);
            this.ip(&["link", "set", &near, "up"]);
            this.ip(&["-n", &this.name, "link", "set", &far, "up"]);
        }
        this
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address on a link, 0 or 1.
    pub fn address(&self, link: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.net + link, 2)
    }

    /// Cuts a link: from now on nothing passes.
    pub fn cut(&self, link: u8) {
        let (near, _) = self.interfaces(link);
        self.ip(&["link", "set", &near, "down"]);
    }

    /// Mends a link that was cut.
    pub fn mend(&self, link: u8) {
        let (near, _) = self.interfaces(link);
        self.ip(&["link", "set", &near, "up"]);
    }

    fn interfaces(&self, link: u8) -> (String, String) {
        // At most 15 characters; unique on the machine like the addresses.
        (format!("mp{}h{link}", self.net), format!("mp{}s{link}", self.net))
    }

    fn ip(&self, args: &[&str]) {
        let output = Command::new("ip").args(args).output().expect("no ip(8): see .ci/setup");
        assert!(
            output.status.success(),
            "ip {}: {} (it takes root; see .ci/setup)",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The links go with it.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
        for link in 0..2 {
            let _ = Command::new("ip").args(["link", "del", &self.interfaces(link).0]).output();
        }
    }
}
