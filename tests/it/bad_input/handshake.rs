//! Handshakes that are none, and odd ones that are (RFC 6455, 4.2; protocol.md, "Transport").

use std::io::{Read, Write};

use serde_json::{Value, json};

use super::Bench;
use super::peer::{Got, Peer};
use crate::harness::raw;

const GOOD: [(&str, &str); 5] = [
    ("Host", "localhost"),
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// A handshake with one header changed (`None`: left out).
fn with(line: &str, name: &str, value: Option<&str>) -> Vec<u8> {
    let mut head = format!("{line}\r\n");
    for (good, usual) in GOOD {
        let value = if good == name { value } else { Some(usual) };
        if let Some(value) = value {
            head.push_str(&format!("{good}: {value}\r\n"));
        }
    }
    if let Some(value) = value.filter(|_| GOOD.iter().all(|(good, _)| *good != name)) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

fn changed(name: &str, value: Option<&str>) -> Vec<u8> {
    with("GET /ws HTTP/1.1", name, value)
}

/// Sends `bytes` and reads the head and the body of the one answer; status 0 is none.
fn ask(bench: &Bench, bytes: &[u8]) -> (u16, String, Vec<u8>) {
    let mut stream = raw::connect(bench.server.public);
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut all = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = all.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&all[..end]).into_owned();
            let body = all[end + 4..].to_vec();
            let length = length(&head).filter(|_| !bytes.starts_with(b"HEAD "));
            if body.len() >= length.unwrap_or(0) {
                let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
                return (status.unwrap_or(0), head, body);
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return (0, String::from_utf8_lossy(&all).into_owned(), Vec::new()),
            Ok(read) => all.extend_from_slice(&buffer[..read]),
        }
    }
}

fn length(head: &str) -> Option<usize> {
    let lower = head.to_ascii_lowercase();
    lower.split("content-length: ").nth(1)?.split("\r\n").next()?.parse().ok()
}

#[test]
fn what_is_refused_and_how() {
    let mut bench = Bench::start();
    let rows: Vec<(&str, Vec<u8>, u16)> = vec![
        ("no upgrade", b"GET /ws HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), 426),
        ("no Host", changed("Host", None), 400),
        ("no Upgrade but a key", changed("Upgrade", None), 426),
        ("another Upgrade", changed("Upgrade", Some("h2c")), 426),
        ("an Upgrade that begins alike", changed("Upgrade", Some("websocket2")), 426),
        ("no Connection", changed("Connection", None), 400),
        ("Connection: close", changed("Connection", Some("close")), 400),
        ("no version", changed("Sec-WebSocket-Version", None), 426),
        ("an old version", changed("Sec-WebSocket-Version", Some("8")), 426),
        ("version 0", changed("Sec-WebSocket-Version", Some("0")), 426),
        ("version 13.0", changed("Sec-WebSocket-Version", Some("13.0")), 426),
        ("version 130", changed("Sec-WebSocket-Version", Some("130")), 426),
        ("no key", changed("Sec-WebSocket-Key", None), 400),
        ("an empty key", changed("Sec-WebSocket-Key", Some("")), 400),
        ("a short key", changed("Sec-WebSocket-Key", Some("c2hvcnQ=")), 400),
        ("a long key", changed("Sec-WebSocket-Key", Some(&"A".repeat(1000))), 400),
        (
            "a key that is no base64",
            changed("Sec-WebSocket-Key", Some("!!!!!!!!!!!!!!!!!!!!!!!!")),
            400,
        ),
        ("HTTP/1.0", with("GET /ws HTTP/1.0", "x", None), 400),
        ("POST", with("POST /ws HTTP/1.1", "Content-Length", Some("0")), 400),
        ("HEAD", with("HEAD /ws HTTP/1.1", "x", None), 400),
        ("OPTIONS", with("OPTIONS /ws HTTP/1.1", "x", None), 400),
        ("an unknown method", with("FLY /ws HTTP/1.1", "x", None), 400),
        ("a foreign origin", changed("Origin", Some("https://evil.example")), 403),
        ("the origin null", changed("Origin", Some("null")), 403),
        ("an empty origin", changed("Origin", Some("")), 403),
        ("an upgrade elsewhere", with("GET /elsewhere HTTP/1.1", "x", None), 404),
        ("an upgrade above", with("GET /ws/../../ws HTTP/1.1", "x", None), 404),
        ("a POST", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi".to_vec(), 405),
        ("a DELETE", b"DELETE /ws HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), 405),
        ("an unknown path", b"GET /.git/config HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), 404),
    ];
    let mut failures = Vec::new();
    for (name, bytes, status) in rows {
        let (found, head, body) = ask(&bench, &bytes);
        let lower = head.to_ascii_lowercase();
        if found != status {
            failures.push(format!("{name}: {found}, expected {status}: {head}"));
        } else if !bytes.starts_with(b"HEAD ") {
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let code = match status {
                403 => "FORBIDDEN",
                404 => "NOT_FOUND",
                405 => "METHOD_NOT_ALLOWED",
                _ => "VALIDATION_ERROR",
            };
            if body["error"] != code || !body["message"].is_string() {
                failures.push(format!("{name}: the body {body}"));
            }
            if !lower.contains("content-type: application/json") {
                failures.push(format!("{name}: {head}"));
            }
        }
        // RFC 6455, 4.4, and RFC 9110, 15.5.22: what would have been right.
        if status == 426
            && !(lower.contains("sec-websocket-version: 13")
                && lower.contains("upgrade: websocket"))
        {
            failures.push(format!("{name}: {head}"));
        }
        if lower.contains("sec-websocket-accept") {
            failures.push(format!("{name} was accepted"));
        }
        bench.check(name);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    bench.finish();
}

/// What is no HTTP gets no JSON; only that it is refused, and soon, is promised.
#[test]
fn what_is_no_http() {
    let mut bench = Bench::start_with(|builder| builder.set("limits.handshake_timeout", "1s"));
    let huge = "x".repeat(100 << 10);
    let many: String = (0..2000).map(|i| format!("X-{i}: y\r\n")).collect();
    let mut client_hello = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    client_hello.extend([0x5a; 506]);
    let rows: Vec<(&str, Vec<u8>, &[u16])> = vec![
        ("nothing", vec![], &[0]),
        ("only line ends", b"\r\n\r\n\r\n".to_vec(), &[0, 400]),
        (
            "an HTTP/2 preface",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
            &[0, 400, 505],
        ),
        ("a TLS ClientHello", client_hello, &[0, 400]),
        ("zeros", vec![0; 4096], &[0, 400]),
        ("all bytes", (0..=255).collect(), &[0, 400]),
        ("a WebSocket frame", raw::text_frame(r#"{"type":"ping"}"#), &[0, 400]),
        ("SSH", b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), &[0, 400]),
        ("HTTP/0.9", b"GET /ws\r\n\r\n".to_vec(), &[0, 400]),
        ("HTTP/9.9", with("GET /ws HTTP/9.9", "x", None), &[0, 400, 505]),
        ("garbage before the request", [b"\xff\xfe\0", &changed("x", None)[..]].concat(), &[400]),
        ("a space before a header", changed("Host", Some("x\r\n Folded: y")), &[400]),
        ("a header without a colon", changed("Host", Some("x\r\nNonsense")), &[400]),
        ("a header with a NUL", changed("X", Some("a\0b")), &[400]),
        ("a header name with a space", changed("X Y", Some("z")), &[400]),
        ("a path with a raw space", with("GET /ws?clientId=a b HTTP/1.1", "x", None), &[400]),
        ("a header of 100 KB", changed("X", Some(&huge)), &[431]),
        (
            "a path of 100 KB",
            with(&format!("GET /ws?clientId={huge} HTTP/1.1"), "x", None),
            &[414, 431],
        ),
        ("2000 headers", changed("X", Some(&format!("y\r\n{}", many.trim_end()))), &[431]),
        (
            "two content lengths",
            b"POST /ws HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"
                .to_vec(),
            &[400],
        ),
        (
            "a negative content length",
            b"POST /ws HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n".to_vec(),
            &[400],
        ),
    ];
    let mut failures = Vec::new();
    for (name, bytes, allowed) in rows {
        let (found, head, _) = ask(&bench, &bytes);
        if !allowed.contains(&found) || head.starts_with("HTTP/1.1 101") {
            failures.push(format!("{name}: {found}: {head:?}"));
        }
        bench.check(name);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    bench.finish();
}

#[test]
fn what_is_accepted() {
    let mut bench = Bench::start();
    let rows: Vec<(&str, Vec<u8>)> = vec![
        ("plain", changed("x", None)),
        ("at the root", with("GET / HTTP/1.1", "x", None)),
        ("other capitals", changed("Upgrade", Some("WebSocket"))),
        ("a list of upgrades", changed("Upgrade", Some("h2c, websocket"))),
        ("a list of connection options", changed("Connection", Some("keep-alive, Upgrade"))),
        ("an origin of this host", changed("Origin", Some("http://localhost"))),
        (
            "permessage-deflate offered",
            changed("Sec-WebSocket-Extensions", Some("permessage-deflate; client_max_window_bits")),
        ),
        ("nonsense extensions", changed("Sec-WebSocket-Extensions", Some(";;==,,\""))),
        ("an absolute target", with("GET http://localhost/ws HTTP/1.1", "x", None)),
        ("a fragment of a query", with("GET /ws?&&=&clientId&x=%zz HTTP/1.1", "x", None)),
        ("HTTP/2 settings beside", changed("HTTP2-Settings", Some("AAMAAABkAAQAAP__"))),
        ("a header in Latin-1", {
            let mut bytes = changed("X", Some("?"));
            let at = bytes.iter().rposition(|b| *b == b'?').unwrap();
            bytes[at] = 0xe4;
            bytes
        }),
    ];
    for (name, bytes) in rows {
        let mut stream = raw::connect(bench.server.public);
        stream.write_all(&bytes).unwrap();
        let head = raw::read_head(&mut stream);
        assert!(head.starts_with("HTTP/1.1 101 "), "{name}: {head}");
        let lower = head.to_ascii_lowercase();
        assert!(
            lower.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="),
            "{name}: {head}"
        );
        assert!(!lower.contains("sec-websocket-extensions"), "{name}: {head}");
        assert!(!lower.contains("sec-websocket-protocol"), "{name}: {head}");
        Peer { stream }.welcome();
        bench.check(name);
    }

    // Of the subprotocols ours is answered, else the first that is no token.
    for (offered, answered) in [
        ("milepost.v1", "milepost.v1"),
        ("bearer.secret, milepost.v1", "milepost.v1"),
        ("mqtt, graphql", "mqtt"),
        ("bearer.secret, graphql", "graphql"),
        ("graphql, milepost.v1", "milepost.v1"),
    ] {
        let mut stream = raw::connect(bench.server.public);
        stream.write_all(&changed("Sec-WebSocket-Protocol", Some(offered))).unwrap();
        let head = raw::read_head(&mut stream).to_ascii_lowercase();
        assert!(
            head.contains(&format!("sec-websocket-protocol: {answered}\r\n")),
            "{offered}: {head}"
        );
        assert!(!head.contains("secret"), "{offered}: {head}");
        Peer { stream }.welcome();
        bench.check(offered);
    }

    // Frames in the same packet as the handshake are not lost.
    let mut stream = raw::connect(bench.server.public);
    let mut bytes = changed("x", None);
    for id in 0..50 {
        bytes.extend(raw::text_frame(&json!({ "type": "ping", "id": id }).to_string()));
    }
    stream.write_all(&bytes).unwrap();
    raw::read_head(&mut stream);
    let mut peer = Peer { stream };
    peer.welcome();
    for id in 0..50 {
        assert_eq!(peer.recv()["id"], id);
    }
    drop(peer);
    bench.check("pipelined frames");

    // A request before the handshake on the same connection.
    let mut stream = raw::connect(bench.server.public);
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let head = raw::read_head(&mut stream);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let length = length(&head).unwrap();
    stream.read_exact(&mut vec![0; length]).unwrap();
    stream.write_all(&changed("x", None)).unwrap();
    assert!(raw::read_head(&mut stream).starts_with("HTTP/1.1 101 "));
    Peer { stream }.welcome();
    bench.check("a handshake after a request");
    bench.finish();
}

#[test]
fn names_in_the_query() {
    let mut bench = Bench::start();
    // The identity, or `None` where the name is no name and the connection is refused.
    let long = "x".repeat(128);
    let too_long = "x".repeat(129);
    let ten_kilobytes = "x".repeat(10 << 10);
    let rows: Vec<(String, Option<&str>)> = vec![
        ("a%20b".into(), Some("a b")),
        ("a+b".into(), Some("a b")),
        ("a%2Bb".into(), Some("a+b")),
        ("%".into(), Some("%")),
        ("%zz".into(), Some("%zz")),
        ("%4".into(), Some("%4")),
        ("a%26clientId%3Db".into(), Some("a&clientId=b")),
        ("a&clientId=b".into(), Some("a")),
        ("a=b".into(), Some("a=b")),
        ("%F0%9F%9A%8C".into(), Some("🚌")),
        ("%E2%80%AEevil".into(), Some("\u{202e}evil")),
        ("%ff".into(), Some("\u{fffd}")),
        ("%25%34%31".into(), Some("%41")),
        ("../../etc/passwd".into(), Some("../../etc/passwd")),
        ("%22%7D,%7B%22x".into(), Some("\"},{\"x")),
        (long.clone(), Some(&long)),
        (too_long, None),
        (ten_kilobytes, None),
        ("%00".into(), None),
        ("a%0Ab".into(), None),
        ("a%0D%0AX:%20y".into(), None),
        ("%7F".into(), None),
        ("%C2%85".into(), None),
    ];
    for (query, expected) in rows {
        let shown: String = query.chars().take(40).collect();
        let mut stream = raw::connect(bench.server.public);
        let head = raw::upgrade(&mut stream, &format!("/ws?clientId={query}"));
        assert!(head.starts_with("HTTP/1.1 101 "), "{shown}: {head}");
        let mut peer = Peer { stream };
        match (expected, peer.recv_raw()) {
            (Some(expected), Got::Message(welcome)) => {
                assert_eq!(welcome["payload"]["clientId"], expected, "{shown}");
            }
            (None, Got::Close(4001, reason)) => assert_eq!(reason, "Invalid token", "{shown}"),
            (_, got) => panic!("{shown}: {got:?}"),
        }
        bench.check(&shown);
    }
    // Without a name, or with an empty one, one is made up.
    for query in ["", "?clientId=", "?clientId", "?clientid=x", "?CLIENTID=x"] {
        let mut stream = raw::connect(bench.server.public);
        raw::upgrade(&mut stream, &format!("/ws{query}"));
        let welcome = Peer { stream }.welcome();
        let name = welcome["clientId"].as_str().unwrap();
        assert!(!name.is_empty() && name != "x", "{query}: {name}");
        bench.check("no name");
    }
    bench.finish();
}
