//! Many clients in one epoll loop.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use tokio::time::Instant;

use super::Failed;
use super::wire::{self, CLOSE, TEXT};

const PATIENCE: Duration = Duration::from_secs(30);

struct Peer {
    stream: Option<TcpStream>,
    open: bool,
    /// The beginning of a frame (or of the HTTP answer).
    partial: Vec<u8>,
    positions: u64,
    last: Option<usize>,
    acked_close: bool,
}

/// Clients of one server.
pub struct Crowd {
    epoll: OwnedFd,
    peers: Vec<Peer>,
    events: Vec<Event>,
    scratch: Vec<u8>,
    hint: usize,
    sent_at: Vec<Instant>,
    first: usize,
    open: usize,
    pub joined: usize,
    /// Positions that arrived.
    pub positions: u64,
    /// Length of the last of them as a frame.
    pub frame: usize,
    /// Positions that arrived out of order or twice.
    pub disorder: u64,
    /// Text frames of any kind.
    pub texts: u64,
    pub closed: usize,
    pub ended: usize,
    /// From sending to arriving, in µs, if wanted.
    pub latencies: Option<Vec<u32>>,
}

impl Crowd {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            peers: Vec::new(),
            events: Vec::with_capacity(256),
            scratch: vec![0; 256 * 1024],
            hint: 0,
            sent_at: Vec::new(),
            first: 0,
            open: 0,
            joined: 0,
            positions: 0,
            frame: 0,
            disorder: 0,
            texts: 0,
            closed: 0,
            ended: 0,
            latencies: None,
        })
    }

    /// Connects `count` more clients and returns the number of the first.
    pub fn connect(&mut self, address: SocketAddr, count: usize) -> Result<usize, Failed> {
        let first = self.peers.len();
        for at in first..first + count {
            let mut stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            write!(
                stream,
                "GET /ws?clientId=client-{at:06} HTTP/1.1\r\nHost: bench\r\nConnection: \
                 Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: \
                 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )?;
            stream.set_nonblocking(true)?;
            epoll::add(&self.epoll, &stream, EventData::new_u64(at as u64), EventFlags::IN)?;
            self.peers.push(Peer {
                stream: Some(stream),
                open: false,
                partial: Vec::new(),
                positions: 0,
                last: None,
                acked_close: false,
            });
            if at % 64 == 0 {
                self.pump(Duration::ZERO)?;
            }
        }
        self.until("open connections", |crowd| crowd.open == crowd.peers.len())?;
        Ok(first)
    }

    /// Joins clients to rooms, `(client, room)`, and waits until all is quiet.
    pub fn join(
        &mut self,
        mode: &str,
        joins: impl Iterator<Item = (usize, String)>,
    ) -> Result<(), Failed> {
        let mut wanted = self.joined;
        for (at, (peer, room)) in joins.enumerate() {
            self.send(peer, &wire::join(&room, mode))?;
            wanted += 1;
            if at % 64 == 0 {
                self.pump(Duration::ZERO)?;
            }
        }
        self.until("answered joins", |crowd| crowd.joined >= wanted)?;
        self.quiet(Duration::from_millis(400))
    }

    /// Reads until nothing has come for `time`.
    pub fn quiet(&mut self, time: Duration) -> Result<(), Failed> {
        let (mut last, mut texts) = (Instant::now(), self.texts);
        while last.elapsed() < time {
            self.pump(time / 8)?;
            if std::mem::replace(&mut texts, self.texts) != self.texts {
                last = Instant::now();
            }
        }
        Ok(())
    }

    pub fn send(&mut self, peer: usize, bytes: &[u8]) -> Result<(), Failed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let stream = self.peers[peer].stream.as_ref().ok_or("a client is gone")?;
            match (&mut &*stream).write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.pump(Duration::from_millis(1))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sends the next `rooms.len()` positions in one write.
    pub fn publish<'a>(
        &mut self,
        peer: usize,
        rooms: impl Iterator<Item = &'a str>,
    ) -> Result<(), Failed> {
        let mut bytes = Vec::new();
        for room in rooms {
            let mark = self.first + self.sent_at.len();
            bytes.extend_from_slice(&wire::position(room, mark));
            self.sent_at.push(Instant::now());
        }
        self.send(peer, &bytes)
    }

    /// How many positions each client got since [`Crowd::begin`], the fewest and the most.
    pub fn spread(&self, peers: std::ops::Range<usize>) -> (u64, u64) {
        let counts = || self.peers[peers.clone()].iter().map(|peer| peer.positions);
        (counts().min().unwrap_or(0), counts().max().unwrap_or(0))
    }

    /// Forgets what was counted.
    pub fn begin(&mut self, latencies: bool) {
        self.first += self.sent_at.len();
        self.sent_at.clear();
        self.positions = 0;
        self.latencies = latencies.then(Vec::new);
        for peer in &mut self.peers {
            peer.positions = 0;
        }
    }

    /// Reads until `done`.
    pub fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<(), Failed> {
        let start = Instant::now();
        while !done(self) {
            self.pump(Duration::from_millis(20))?;
            if start.elapsed() > PATIENCE {
                let (open, joined, positions) = (self.open, self.joined, self.positions);
                let state = format!("open {open}, joined {joined}, positions {positions}");
                return Err(format!("waited too long for {what} ({state})").into());
            }
        }
        Ok(())
    }

    /// Reads what there is, waiting for it at most `wait`.
    pub fn pump(&mut self, wait: Duration) -> Result<(), Failed> {
        let timeout = Timespec::try_from(wait)?;
        self.events.clear();
        let waited = epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout));
        match waited {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            other => other.map(drop)?,
        }
        let events = std::mem::take(&mut self.events);
        for event in &events {
            self.read(usize::try_from(event.data.u64())?)?;
        }
        self.events = events;
        Ok(())
    }

    fn read(&mut self, at: usize) -> Result<(), Failed> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let peer = &mut self.peers[at];
        let Some(stream) = &peer.stream else { return Ok(()) };
        let kept = peer.partial.len();
        scratch[..kept].copy_from_slice(&peer.partial);
        peer.partial.clear();
        match (&mut &*stream).read(&mut scratch[kept..]) {
            Ok(0) => self.gone(at),
            Ok(read) => self.received(at, &scratch[..kept + read])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.peers[at].partial.extend_from_slice(&scratch[..kept]);
            }
            Err(_) => self.gone(at),
        }
        self.scratch = scratch;
        Ok(())
    }

    fn gone(&mut self, at: usize) {
        self.peers[at].stream = None;
        self.ended += 1;
    }

    fn received(&mut self, at: usize, mut input: &[u8]) -> Result<(), Failed> {
        if !self.peers[at].open {
            let Some(head) = input.windows(4).position(|window| window == b"\r\n\r\n") else {
                self.peers[at].partial.extend_from_slice(input);
                return Ok(());
            };
            if !input.starts_with(b"HTTP/1.1 101") {
                return Err(String::from_utf8_lossy(input).into());
            }
            input = &input[head + 4..];
            self.peers[at].open = true;
            self.open += 1;
        }
        while let Some((opcode, payload, len)) = wire::parse(input) {
            match opcode {
                TEXT => self.text(at, payload, len),
                CLOSE => self.close(at, payload)?,
                _ => {}
            }
            input = &input[len..];
        }
        self.peers[at].partial.extend_from_slice(input);
        Ok(())
    }

    fn text(&mut self, at: usize, payload: &[u8], len: usize) {
        const JOINED: &[u8] = b"{\"type\":\"room_joined\"";
        self.texts += 1;
        let peer = &mut self.peers[at];
        if payload.starts_with(JOINED) {
            self.joined += 1;
        } else if let Some(mark) = wire::number(payload, &mut self.hint) {
            self.positions += 1;
            self.frame = len;
            peer.positions += 1;
            self.disorder += u64::from(peer.last.is_some_and(|last| last == mark));
            peer.last = Some(mark);
            if let Some(latencies) = &mut self.latencies
                && let Some(sent) = mark.checked_sub(self.first).and_then(|n| self.sent_at.get(n))
            {
                latencies.push(u32::try_from(sent.elapsed().as_micros()).unwrap_or(u32::MAX));
            }
        }
    }

    fn close(&mut self, at: usize, payload: &[u8]) -> Result<(), Failed> {
        if !std::mem::replace(&mut self.peers[at].acked_close, true) {
            self.closed += 1;
            self.send(at, &wire::masked(CLOSE, payload))?;
        }
        Ok(())
    }
}
