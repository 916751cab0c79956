//! Frames that RFC 6455 forbids, and odd ones that it allows (section 5).

use serde_json::json;

use super::Bench;
use super::peer::Got;
use crate::harness::raw::{frame, text_frame};

const PROTOCOL: (u16, &str) = (1002, "protocol error");
const TEXT: (u16, &str) = (1007, "invalid text");
const SIZE: (u16, &str) = (1009, "frame too large");

fn ping_text() -> Vec<u8> {
    text_frame(r#"{"type":"ping","id":1}"#)
}

fn with_first_byte(byte: u8) -> Vec<u8> {
    let mut bytes = ping_text();
    bytes[0] = byte;
    bytes
}

/// A masked header that declares a length of 64 bits; no payload.
fn declared(first: u8, length: u64) -> Vec<u8> {
    let mut bytes = vec![first, 0x80 | 127];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes
}

fn parts(parts: &[(u8, bool, &[u8])]) -> Vec<u8> {
    parts.iter().flat_map(|(opcode, fin, payload)| frame(*opcode, *fin, payload)).collect()
}

#[test]
fn what_closes_the_connection() {
    let mut bench = Bench::start();
    let unmasked = [&[0x81, 22][..], br#"{"type":"ping","id":1}"#].concat();
    let mut rows: Vec<(String, Vec<u8>, (u16, &str))> = vec![
        ("an unmasked frame".into(), unmasked, PROTOCOL),
        ("an unmasked ping".into(), vec![0x89, 0], PROTOCOL),
        ("a fragmented ping".into(), frame(9, false, b"a"), PROTOCOL),
        ("a fragmented pong".into(), frame(10, false, b"a"), PROTOCOL),
        ("a fragmented close".into(), frame(8, false, &[3, 232]), PROTOCOL),
        ("a ping of 126 bytes".into(), frame(9, true, &[b'x'; 126]), PROTOCOL),
        ("a pong of 126 bytes".into(), frame(10, true, &[b'x'; 126]), PROTOCOL),
        ("a ping of 64 KiB".into(), frame(9, true, &[b'x'; 65536]), PROTOCOL),
        ("a continuation of nothing".into(), frame(0, true, b"a"), PROTOCOL),
        ("an open continuation of nothing".into(), frame(0, false, b"a"), PROTOCOL),
        (
            "a continuation after the end".into(),
            parts(&[(1, false, b"{\"type\":"), (0, true, b"\"ack\"}"), (0, true, b"x")]),
            PROTOCOL,
        ),
        ("text within text".into(), parts(&[(1, false, b"{"), (1, true, b"}")]), PROTOCOL),
        ("binary within text".into(), parts(&[(1, false, b"{"), (2, true, b"}")]), PROTOCOL),
        ("text within binary".into(), parts(&[(2, false, b"{"), (1, false, b"}")]), PROTOCOL),
        ("a huge declared length".into(), declared(0x81, 1 << 40), SIZE),
        ("the largest length".into(), declared(0x82, i64::MAX as u64), SIZE),
        ("a length of 64 bits".into(), declared(0x81, u64::MAX), SIZE),
        ("one byte too many, declared".into(), declared(0x81, 65537), SIZE),
        ("one byte too many, sent".into(), frame(1, true, &[b' '; 65537]), SIZE),
        (
            "one byte too many, in two parts".into(),
            parts(&[(1, false, &[b' '; 65536]), (0, true, b" ")]),
            SIZE,
        ),
        (
            "too much in small parts".into(),
            (0..=70).flat_map(|i| frame(u8::from(i == 0), false, &[b' '; 1000])).collect(),
            SIZE,
        ),
        ("an HTTP request".into(), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), PROTOCOL),
    ];
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        rows.push((format!("reserved opcode {opcode}"), frame(opcode, true, b"a"), PROTOCOL));
    }
    for (name, first) in [
        ("RSV1 (a compressed message)", 0xc1),
        ("RSV2", 0xa1),
        ("RSV3", 0x91),
        ("all RSV bits", 0xf1),
        ("RSV1 on a ping", 0xc9),
        ("RSV3 on a close", 0x98),
    ] {
        rows.push((name.to_owned(), with_first_byte(first), PROTOCOL));
    }
    for (name, payload) in [
        ("a stray byte", &b"{\"type\":\"\xff\"}"[..]),
        ("an overlong slash", b"{\"a\":\"\xc0\xaf\"}"),
        ("an encoded surrogate", b"{\"a\":\"\xed\xa0\x80\"}"),
        ("beyond U+10FFFF", b"{\"a\":\"\xf4\x90\x80\x80\"}"),
        ("a lone continuation byte", b"{\"a\":\"\x80\"}"),
        ("a code point cut off", b"{\"a\":\"\xe2\x82"),
        ("Latin-1", b"{\"a\":\"\xe4\"}"),
    ] {
        rows.push((format!("bad UTF-8: {name}"), frame(1, true, payload), TEXT));
    }
    rows.push((
        "bad UTF-8 over two parts".into(),
        parts(&[(1, false, b"{\"a\":\"\xe2\x82"), (0, true, b"\x28\"}")]),
        TEXT,
    ));
    rows.push((
        "UTF-8 that the last part leaves open".into(),
        parts(&[(1, false, b"{\"a\":\"\xe2"), (0, true, b"\x82")]),
        TEXT,
    ));

    let mut failures = Vec::new();
    for (name, bytes, (code, reason)) in rows {
        let mut peer = bench.peer();
        // A message that is in order goes first: it is answered before the close.
        peer.send(&json!({ "type": "ping", "id": "before" }));
        // The server may close while this is still being written.
        let _ = std::io::Write::write_all(&mut peer.stream, &bytes);
        let got = peer.until_end();
        let end = [Got::close(code, reason)];
        let before =
            got.first().is_some_and(|got| matches!(got, Got::Message(m) if m["id"] == "before"));
        if !before || got[1..] != end {
            failures.push(format!("{name}: {got:?}"));
        }
        // Nothing comes behind the close frame but the end.
        if peer.recv_raw() != Got::End {
            failures.push(format!("{name}: no end"));
        }
        drop(peer);
        bench.check(&name);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    bench.finish();
}

#[test]
fn what_is_odd_and_allowed() {
    let mut bench = Bench::start();
    let mut masked = vec![0x81, 0x80 | 22, 0xde, 0xad, 0xbe, 0xef];
    masked.extend(br#"{"type":"ping","id":1}"#.iter().zip([0xde, 0xad, 0xbe, 0xef].iter().cycle()).map(|(a, b)| a ^ b));
    let mut bytewise = vec![];
    for (at, byte) in br#"{"type":"ping","id":1}"#.iter().enumerate() {
        bytewise.extend(frame(u8::from(at == 0), false, &[*byte]));
    }
    bytewise.extend(frame(0, true, b""));
    let mut empties = frame(1, false, b"");
    for _ in 0..2000 {
        empties.extend(frame(0, false, b""));
    }
    empties.extend(frame(0, true, br#"{"type":"ping","id":1}"#));
    let rows: Vec<(&str, Vec<u8>)> = vec![
        ("a mask that is not zero", masked),
        ("a fragment per byte", bytewise),
        ("2000 empty fragments", empties),
        (
            "a code point split over fragments",
            parts(&[
                (1, false, b"{\"type\":\"ping\",\"id\":1,\"a\":\"\xe2\x82"),
                (0, true, b"\xac\"}"),
            ]),
        ),
        ("binary fragments", parts(&[(2, false, b"{\"type\":\"ping\","), (0, true, b"\"id\":1}")])),
        ("a pong that nobody asked for", [frame(10, true, b"hi"), ping_text()].concat()),
        ("an empty pong", [frame(10, true, b""), ping_text()].concat()),
    ];
    for (name, bytes) in rows {
        let mut peer = bench.peer();
        peer.send_bytes(&bytes);
        let got = peer.recv();
        assert_eq!((&got["type"], &got["id"]), (&json!("pong"), &json!(1)), "{name}: {got}");
        bench.check(name);
    }

    let mut peer = bench.peer();
    peer.send_bytes(&frame(9, true, &[b'p'; 125]));
    assert_eq!(peer.recv_raw(), Got::Pong(vec![b'p'; 125]), "a ping of 125 bytes");
    peer.send_bytes(&parts(&[
        (1, false, b"{\"type\":\"ping\""),
        (9, true, b"between"),
        (0, false, b","),
        (10, true, b"unasked"),
        (0, true, b"\"id\":1}"),
    ]));
    assert_eq!(peer.recv_raw(), Got::Pong(b"between".to_vec()), "control frames go between");
    assert_eq!(peer.recv()["id"], 1);
    drop(peer);
    bench.check("control frames between fragments");
    bench.finish();
}

#[test]
fn connections_that_end_in_the_middle() {
    let mut bench = Bench::start();
    let whole = ping_text();
    for cut in [1, 2, 5, 10, whole.len() - 1] {
        let mut peer = bench.peer();
        peer.send_bytes(&whole[..cut]);
        drop(peer);
        bench.check("a frame cut off");
    }
    let mut peer = bench.peer();
    peer.send_bytes(&frame(1, false, b"{\"type\":"));
    drop(peer);
    bench.check("a message cut off between fragments");
    let closed = bench
        .server
        .wait_for_line(|line| line["event"] == "connection.closed" && line["client_id"] == "odd");
    assert_eq!(closed["code"], 1006, "{closed}");
    assert_eq!(closed["initiator"], "peer", "{closed}");

    // A reset instead of an end.
    let peer = bench.peer();
    let socket = socket2::Socket::from(peer.stream);
    socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(socket);
    bench.check("a reset");

    // Only the sending half is over: an end of stream is an end.
    let mut peer = bench.peer();
    peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(peer.until_end(), [Got::End]);
    drop(peer);
    bench.check("half a close");
    bench.finish();
}
