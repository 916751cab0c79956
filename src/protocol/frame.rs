//! Text into WebSocket frames of a server: unmasked, unfragmented (RFC 6455, 5.2).
//!
//! A frame is encoded once, header and payload in one buffer, and shared by every
//! connection that it goes to.

use bytes::{BufMut, Bytes, BytesMut};

use crate::close::Close;

const FIN: u8 = 0x80;
const TEXT: u8 = 0x1;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xA;

/// The most a control frame carries, in bytes (RFC 6455, 5.5).
pub const MAX_CONTROL: usize = 125;

/// The length of the header before a payload of `payload` bytes: 2, 4 or 10.
#[must_use]
pub const fn header_len(payload: usize) -> usize {
    if payload < 126 {
        2
    } else if payload <= 0xFFFF {
        4
    } else {
        10
    }
}

fn frame(opcode: u8, parts: [&[u8]; 2]) -> Bytes {
    let len = parts[0].len() + parts[1].len();
    let mut out = BytesMut::with_capacity(header_len(len) + len);
    out.put_u8(FIN | opcode);
    match (u8::try_from(len), u16::try_from(len)) {
        (Ok(short), _) if short < 126 => out.put_u8(short),
        (_, Ok(medium)) => {
            out.put_u8(126);
            out.put_u16(medium);
        }
        _ => {
            out.put_u8(127);
            out.put_u64(len as u64);
        }
    }
    out.put_slice(parts[0]);
    out.put_slice(parts[1]);
    out.freeze()
}

/// One text frame.
#[must_use]
pub fn text_frame(json: &str) -> Bytes {
    frame(TEXT, [json.as_bytes(), &[]])
}

/// The close frame with the code and the fixed reason text.
#[must_use]
pub fn close_frame(close: Close) -> Bytes {
    frame(CLOSE, [&close.code().to_be_bytes(), close.reason().as_bytes()])
}

fn control(opcode: u8, payload: &[u8]) -> Bytes {
    frame(opcode, [payload.get(..MAX_CONTROL).unwrap_or(payload), &[]])
}

/// A ping frame; of a payload over 125 bytes the first 125.
#[must_use]
pub fn ping_frame(payload: &[u8]) -> Bytes {
    control(PING, payload)
}

/// A pong frame; of a payload over 125 bytes the first 125.
#[must_use]
pub fn pong_frame(payload: &[u8]) -> Bytes {
    control(PONG, payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_at_every_boundary() {
        for (len, header) in [
            (0, vec![0x81, 0]),
            (1, vec![0x81, 1]),
            (125, vec![0x81, 125]),
            (126, vec![0x81, 126, 0, 126]),
            (255, vec![0x81, 126, 0, 255]),
            (65_535, vec![0x81, 126, 0xFF, 0xFF]),
            (65_536, vec![0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let text = "x".repeat(len);
            let frame = text_frame(&text);
            assert_eq!(header_len(len), header.len());
            assert_eq!(&frame[..header.len()], &header[..], "{len}");
            assert_eq!(&frame[header.len()..], text.as_bytes());
        }
    }

    #[test]
    fn close_frames_carry_code_and_reason() {
        for close in Close::ALL {
            let frame = close_frame(close);
            assert_eq!(frame[0], 0x88);
            assert_eq!(usize::from(frame[1]), frame.len() - 2);
            assert_eq!(u16::from_be_bytes([frame[2], frame[3]]), close.code());
            assert_eq!(&frame[4..], close.reason().as_bytes());
        }
    }

    #[test]
    fn control_frames_never_pass_125_bytes() {
        assert_eq!(&ping_frame(b"hi")[..], b"\x89\x02hi");
        assert_eq!(&pong_frame(b"")[..], b"\x8a\x00");
        assert_eq!(pong_frame(&[7; 300]).len(), 127);
    }
}
