//! Peers below the WebSocket libraries: raw sockets that do what no library does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

/// A socket to `address` whose reads and writes end with an error instead of hanging.
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A socket with a small receive buffer, set before the handshake so that the window is
/// small from the start.
pub fn connect_with_window(address: SocketAddr, bytes: usize) -> TcpStream {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(bytes).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The request head of a handshake.
pub fn handshake_head(path: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: \
         Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: \
         dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    )
}

/// Shakes hands on a raw socket and reads the response head, not a byte more.
pub fn upgrade(stream: &mut TcpStream, path: &str) -> String {
    stream.write_all(handshake_head(path, "").as_bytes()).unwrap();
    read_head(stream)
}

/// Reads an HTTP head, not a byte more.
pub fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "the head ended: {:?}", text(&head));
        head.push(byte[0]);
    }
    text(&head)
}

/// Reads to the end of the stream; a reset ends it too and is told.
pub fn read_to_end(stream: &mut TcpStream) -> (Vec<u8>, std::io::Result<()>) {
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (all, Ok(())),
            Ok(read) => all.extend_from_slice(&buffer[..read]),
            Err(error) => return (all, Err(error)),
        }
    }
}

/// A masked client frame (RFC 6455, 5.2). The mask is all zero: legal, and readable.
pub fn frame(opcode: u8, fin: bool, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![if fin { 0x80 } else { 0 } | opcode];
    match payload.len() {
        len @ 0..=125 => bytes.push(0x80 | len as u8),
        len @ 126..=65535 => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(payload);
    bytes
}

/// A masked text frame.
pub fn text_frame(text: &str) -> Vec<u8> {
    frame(1, true, text.as_bytes())
}

/// A server frame, read from the stream: opcode and payload. `None` at its end.
pub fn read_frame(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).ok()?;
    assert_eq!(head[0] & 0x70, 0, "no extension was negotiated");
    assert_eq!(head[1] & 0x80, 0, "a server does not mask");
    let len = match head[1] & 0x7f {
        126 => {
            let mut len = [0; 2];
            stream.read_exact(&mut len).ok()?;
            usize::from(u16::from_be_bytes(len))
        }
        127 => {
            let mut len = [0; 8];
            stream.read_exact(&mut len).ok()?;
            u64::from_be_bytes(len) as usize
        }
        len => usize::from(len),
    };
    let mut payload = vec![0; len];
    stream.read_exact(&mut payload).ok()?;
    Some((head[0] & 0x0f, payload))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
