//! Pings of clients, on raw sockets: answered at once, whatever else comes or does not.

use std::io::Write;

use crate::harness::{Server, raw};

const TEXT: u8 = 1;
const CONTINUATION: u8 = 0;
const PING: u8 = 9;
const PONG: u8 = 10;

#[test]
fn a_ping_is_answered_without_further_input() {
    // The heartbeat's answers would be further input.
    let server = Server::builder().set("heartbeat.interval", "5m").set("heartbeat.timeout", "1h");
    let server = server.start();
    let mut stream = raw::connect(server.public);
    raw::upgrade(&mut stream, "/ws?clientId=bus-1");
    assert_eq!(raw::read_frame(&mut stream).unwrap().0, TEXT, "the welcome");
    for payload in ["", "x", &"y".repeat(125)] {
        stream.write_all(&raw::frame(PING, true, payload.as_bytes())).unwrap();
        let (opcode, echoed) = raw::read_frame(&mut stream).expect("no pong");
        assert_eq!((opcode, echoed.as_slice()), (PONG, payload.as_bytes()));
    }
}

#[test]
fn a_ping_in_the_middle_of_a_message_is_answered_before_it() {
    let server = Server::start();
    let mut stream = raw::connect(server.public);
    raw::upgrade(&mut stream, "/ws?clientId=bus-1");
    assert_eq!(raw::read_frame(&mut stream).unwrap().0, TEXT, "the welcome");
    let message = br#"{"type":"ping","id":1}"#;
    let all = [
        raw::frame(TEXT, false, &message[..9]),
        raw::frame(PING, true, b"in the middle"),
        raw::frame(CONTINUATION, true, &message[9..]),
    ];
    stream.write_all(&all.concat()).unwrap();
    let (opcode, payload) = raw::read_frame(&mut stream).unwrap();
    assert_eq!((opcode, payload.as_slice()), (PONG, b"in the middle".as_slice()));
    let (opcode, payload) = raw::read_frame(&mut stream).unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!((opcode, &answer["type"], &answer["id"]), (TEXT, &"pong".into(), &1.into()));
}
