//! Frames and messages as the clients and the raw loop need them (RFC 6455, 5.2).

/// Stands before the number of a position, eight digits, in its payload and its event.
pub const MARKER: &[u8] = b"\"mark\":\"";
/// Digits of a number.
pub const DIGITS: usize = 8;

pub const TEXT: u8 = 1;
pub const CLOSE: u8 = 8;

/// A client's frame, masked with zeros: the server has to unmask it all the same.
pub fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
    framed(opcode, payload, true)
}

/// A server's frame.
pub fn plain(opcode: u8, payload: &[u8]) -> Vec<u8> {
    framed(opcode, payload, false)
}

fn framed(opcode: u8, payload: &[u8], mask: bool) -> Vec<u8> {
    let mut out = vec![0x80 | opcode];
    let bit = if mask { 0x80 } else { 0 };
    match u8::try_from(payload.len()) {
        Ok(short) if short < 126 => out.push(bit | short),
        _ => {
            out.push(bit | 126);
            out.extend_from_slice(&u16::try_from(payload.len()).unwrap_or(u16::MAX).to_be_bytes());
        }
    }
    if mask {
        out.extend_from_slice(&[0; 4]);
    }
    out.extend_from_slice(payload);
    out
}

/// A frame at the beginning of `input`: opcode, payload, length of the whole. `None` if it
/// is not complete. Masks are taken to be zeros.
pub fn parse(input: &[u8]) -> Option<(u8, &[u8], usize)> {
    let (&first, &second) = (input.first()?, input.get(1)?);
    let (mut at, len) = match second & 0x7F {
        126 => (4, usize::from(u16::from_be_bytes(input.get(2..4)?.try_into().ok()?))),
        127 => (10, usize::try_from(u64::from_be_bytes(input.get(2..10)?.try_into().ok()?)).ok()?),
        short => (2, usize::from(short)),
    };
    if second & 0x80 != 0 {
        at += 4;
    }
    Some((first & 0x0F, input.get(at..at + len)?, at + len))
}

/// The number of the position in `payload`, which mostly stands near `hint`.
pub fn number(payload: &[u8], hint: &mut usize) -> Option<usize> {
    let here = |at: usize| payload.get(at..at + MARKER.len()) == Some(MARKER);
    if !here(*hint) {
        *hint = payload.windows(MARKER.len()).position(|window| window == MARKER)?;
    }
    let digits = payload.get(*hint + MARKER.len()..*hint + MARKER.len() + DIGITS)?;
    digits.iter().try_fold(0, |number, digit| {
        Some(number * 10 + usize::from(digit.checked_sub(b'0').filter(|&d| d < 10)?))
    })
}

/// `join_room`.
pub fn join(room: &str, mode: &str) -> Vec<u8> {
    let text = format!(
        r#"{{"type":"join_room","id":"{room}","payload":{{"roomId":"{room}","mode":"{mode}"}}}}"#
    );
    masked(TEXT, text.as_bytes())
}

/// A position as a notification, with a body of about 200 bytes.
pub fn position(room: &str, mark: usize) -> Vec<u8> {
    let text = format!(
        r#"{{"type":"location_update","payload":{{"roomId":"{room}","latitude":51.{mark:06},"longitude":-0.1278,"speed":12.5,"heading":270,"accuracy":4.5,"altitude":35.2,"mark":"{mark:08}","pad":"{:x<66}"}}}}"#,
        ""
    );
    masked(TEXT, text.as_bytes())
}
