//! Close frames (RFC 6455, 5.5.1 and 7.4): which are answered in kind, and which not.

use serde_json::json;

use super::Bench;
use super::peer::Got;
use crate::harness::raw::frame;

fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(8, true, &[&code.to_be_bytes()[..], reason].concat())
}

#[test]
fn each_gets_its_answer() {
    let mut bench = Bench::start();
    let mut rows: Vec<(String, Vec<u8>, u16)> = vec![
        ("no code".into(), frame(8, true, b""), 1005),
        ("a reason of 123 bytes".into(), close(1000, &[b'r'; 123]), 1000),
        ("a reason in UTF-8".into(), close(1000, "tschüss".as_bytes()), 1000),
        ("half a code".into(), frame(8, true, &[3]), 1002),
        ("a reason of 124 bytes".into(), close(1000, &[b'r'; 124]), 1002),
        ("a reason of 60,000 bytes".into(), close(1000, &[b'r'; 60_000]), 1002),
        ("a reason in bad UTF-8".into(), close(1000, b"\xff\xfe"), 1007),
        ("a reason that ends in a code point".into(), close(1000, b"bye\xe2\x82"), 1007),
    ];
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999] {
        rows.push((format!("code {code}"), close(code, b""), code));
    }
    for code in [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535] {
        rows.push((format!("code {code}"), close(code, b""), 1002));
    }
    let mut failures = Vec::new();
    for (name, bytes, code) in rows {
        let mut peer = bench.peer();
        peer.send_bytes(&bytes);
        let got = peer.recv_raw();
        let right = match &got {
            Got::Close(found, reason) if *found == code => {
                // Its own code comes back with or without its reason; ours have our texts.
                match (code, name.as_str()) {
                    (1002, named) if named != "code 1002" => reason == "protocol error",
                    (1007, named) if named != "code 1007" => reason == "invalid text",
                    _ => true,
                }
            }
            _ => false,
        };
        if !right {
            failures.push(format!("{name}: {got:?}"));
        }
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
fn what_follows_a_close_frame_is_not_read() {
    let mut bench = Bench::start();
    let mut peer = bench.peer();
    let join = json!({ "type": "join_room", "id": 1, "payload": { "roomId": "w" } }).to_string();
    peer.send_bytes(&[close(1000, b"bye"), crate::harness::raw::text_frame(&join)].concat());
    let Got::Close(1000, _) = peer.recv_raw() else { panic!("no answer to the close frame") };
    // The end, not an answer; unread input may turn it into a reset.
    assert_eq!(peer.recv_raw(), Got::End);
    bench.check("a join behind a close frame");
    let closed = bench
        .server
        .wait_for_line(|line| line["event"] == "connection.closed" && line["client_id"] == "odd");
    assert_eq!(closed["code"], 1000, "{closed}");
    assert_eq!(closed["initiator"], "peer", "{closed}");
    assert_eq!(closed["messages_in"], 0, "{closed}");
    bench.finish();
}
