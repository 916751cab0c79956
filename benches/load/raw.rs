//! The limit that the server is compared with: one thread, one epoll loop, no rooms, no
//! log, no checks. It encodes an event once and sends each subscriber all that is pending
//! in one call.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::Failed;
use super::wire::{self, CLOSE, DIGITS, MARKER, TEXT};

const LISTENER: u64 = u64::MAX;
const STDIN: u64 = u64::MAX - 1;
const ANSWER: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: \
    websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

struct Peer {
    stream: TcpStream,
    open: bool,
    subscribed: bool,
    partial: Vec<u8>,
    backlog: Vec<u8>,
}

struct Raw {
    epoll: OwnedFd,
    listener: TcpListener,
    peers: Vec<Option<Peer>>,
    live: usize,
    frame: Vec<u8>,
    mark_at: usize,
    hint: usize,
    pending: Vec<u8>,
    scratch: Vec<u8>,
    stopping: bool,
}

/// The events' length if this process is to be the raw loop.
pub fn asked() -> Option<usize> {
    std::env::args().find_map(|arg| arg.strip_prefix("--raw=")?.parse().ok())
}

/// Serves until the input ends and every client is gone.
pub fn serve(frame: usize) -> Result<(), Failed> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    println!("{}", listener.local_addr()?.port());
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    epoll::add(&epoll, io::stdin(), EventData::new_u64(STDIN), EventFlags::IN)?;
    let mut text = b"{\"type\":\"location_update\",\"payload\":{\"roomId\":\"r\",".to_vec();
    text.extend_from_slice(MARKER);
    text.extend_from_slice(b"00000000\",\"pad\":\"");
    text.resize(frame.saturating_sub(4 + 3).max(text.len()), b'x');
    text.extend_from_slice(b"\"}}");
    let frame = wire::plain(TEXT, &text);
    let mark_at =
        frame.windows(MARKER.len()).position(|window| window == MARKER).ok_or("no marker")?
            + MARKER.len();
    let mut raw = Raw {
        epoll,
        listener,
        peers: Vec::new(),
        live: 0,
        frame,
        mark_at,
        hint: 0,
        pending: Vec::new(),
        scratch: vec![0; 64 * 1024],
        stopping: false,
    };
    let mut events: Vec<Event> = Vec::with_capacity(256);
    while !raw.stopping || raw.live > 0 {
        events.clear();
        epoll::wait(&raw.epoll, spare_capacity(&mut events), None)?;
        for event in &events {
            match event.data.u64() {
                LISTENER => raw.accept()?,
                STDIN => raw.stop()?,
                at => raw.ready(usize::try_from(at)?)?,
            }
        }
        raw.fan_out()?;
    }
    Ok(())
}

impl Raw {
    fn accept(&mut self) -> Result<(), Failed> {
        loop {
            let (stream, _) = match self.listener.accept() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                accepted => accepted?,
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let at = EventData::new_u64(self.peers.len() as u64);
            epoll::add(&self.epoll, &stream, at, EventFlags::IN)?;
            let (partial, backlog) = (Vec::new(), Vec::new());
            let peer = Peer { stream, open: false, subscribed: false, partial, backlog };
            self.peers.push(Some(peer));
            self.live += 1;
        }
    }

    /// A notice, and the close frame behind it.
    fn stop(&mut self) -> Result<(), Failed> {
        epoll::delete(&self.epoll, io::stdin())?;
        self.stopping = true;
        let mut last = wire::plain(TEXT, b"{\"type\":\"server_shutting_down\"}");
        last.extend_from_slice(&wire::plain(CLOSE, b"\x03\xe9server shutting down"));
        for at in 0..self.peers.len() {
            self.write(at, &last)?;
        }
        Ok(())
    }

    fn ready(&mut self, at: usize) -> Result<(), Failed> {
        let Some(peer) = &mut self.peers[at] else { return Ok(()) };
        if !peer.backlog.is_empty() {
            let backlog = std::mem::take(&mut peer.backlog);
            let data = EventData::new_u64(at as u64);
            epoll::modify(&self.epoll, &peer.stream, data, EventFlags::IN)?;
            self.write(at, &backlog)?;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let Some(peer) = &mut self.peers[at] else { return Ok(()) };
        let kept = peer.partial.len();
        scratch[..kept].copy_from_slice(&peer.partial);
        match peer.stream.read(&mut scratch[kept..]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => self.gone(at),
            Ok(read) => {
                peer.partial.clear();
                self.received(at, &scratch[..kept + read])?;
            }
        }
        self.scratch = scratch;
        Ok(())
    }

    fn gone(&mut self, at: usize) {
        self.peers[at] = None;
        self.live -= 1;
    }

    fn received(&mut self, at: usize, mut input: &[u8]) -> Result<(), Failed> {
        let Some(peer) = &mut self.peers[at] else { return Ok(()) };
        if !peer.open {
            if !input.ends_with(b"\r\n\r\n") {
                peer.partial.extend_from_slice(input);
                return Ok(());
            }
            peer.open = true;
            return self.write(at, ANSWER);
        }
        let mut joined = 0;
        while let Some((opcode, payload, len)) = wire::parse(input) {
            if opcode == CLOSE {
                self.gone(at);
                return Ok(());
            }
            if let Some(mark) = wire::number(payload, &mut self.hint) {
                let digits = format!("{mark:08}");
                self.frame[self.mark_at..self.mark_at + DIGITS].copy_from_slice(digits.as_bytes());
                self.pending.extend_from_slice(&self.frame);
            } else {
                joined += 1;
                peer.subscribed |= !payload.ends_with(b"\"publish\"}}");
            }
            input = &input[len..];
        }
        peer.partial.extend_from_slice(input);
        for _ in 0..joined {
            self.write(at, &wire::plain(TEXT, b"{\"type\":\"room_joined\"}"))?;
        }
        Ok(())
    }

    fn fan_out(&mut self) -> Result<(), Failed> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        for at in 0..self.peers.len() {
            if self.peers[at].as_ref().is_some_and(|peer| peer.subscribed) {
                self.write(at, &pending)?;
            }
        }
        self.pending = pending;
        self.pending.clear();
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), Failed> {
        let Some(peer) = &mut self.peers[at] else { return Ok(()) };
        let mut written = 0;
        if peer.backlog.is_empty() {
            match peer.stream.write(bytes) {
                Ok(some) => written = some,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.gone(at);
                    return Ok(());
                }
            }
            if written < bytes.len() {
                let data = EventData::new_u64(at as u64);
                epoll::modify(&self.epoll, &peer.stream, data, EventFlags::IN | EventFlags::OUT)?;
            }
        }
        peer.backlog.extend_from_slice(&bytes[written..]);
        Ok(())
    }
}
