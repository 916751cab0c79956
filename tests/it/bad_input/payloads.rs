//! Messages whose payload is wrong: each field of each type with what it must not hold.

use serde_json::{Value, json};

use super::Bench;
use super::peer::Peer;
use super::texts::{Row, run, run_prepared};

fn request(kind: &str, payload: &str) -> String {
    format!(r#"{{"type":"{kind}","id":1,"payload":{payload}}}"#)
}

/// A row about a field of a request with id 1.
fn wrong(kind: &'static str, payload: &str, field: &str) -> Row {
    let shown: String = payload.chars().take(60).collect();
    Row::wrong(format!("{kind} {shown}"), request(kind, payload), field).id(1).kind(kind)
}

fn bad_names() -> Vec<(&'static str, String)> {
    vec![
        ("a number", "5".to_owned()),
        ("a list", "[]".to_owned()),
        ("an object", "{}".to_owned()),
        ("a bool", "true".to_owned()),
        ("empty", r#""""#.to_owned()),
        ("129 letters", format!("{:?}", "r".repeat(129))),
        ("60,000 letters", format!("{:?}", "r".repeat(60_000))),
        ("129 buses", format!("\"{}\"", "🚌".repeat(129))),
        ("NUL", r#""a\u0000b""#.to_owned()),
        ("a line end", r#""a\nb""#.to_owned()),
        ("DEL", r#""a\u007fb""#.to_owned()),
        ("a C1 control", r#""a\u0085b""#.to_owned()),
        ("half a surrogate pair", r#""a\ud800b""#.to_owned()),
    ]
}

#[test]
fn rooms_and_modes() {
    let mut bench = Bench::start();
    let mut rows = Vec::new();
    for kind in ["join_room", "leave_room", "positions"] {
        for payload in ["5", "true", r#""r""#, "[]", r#"["r"]"#] {
            rows.push(wrong(kind, payload, "payload"));
        }
        for payload in ["{}", "null", r#"{"roomId":null}"#, r#"{"roomid":"r"}"#] {
            rows.push(wrong(kind, payload, "roomId"));
        }
        rows.push(wrong(kind, r#"{"roomId":"r","roomId":"r"}"#, "roomId"));
    }
    for (name, value) in bad_names() {
        let text = request("join_room", &format!(r#"{{"roomId":{value}}}"#));
        rows.push(Row::wrong(format!("a room that is {name}"), text, "roomId").id(1));
        let flat = format!(r#"{{"type":"join_room","roomId":{value}}}"#);
        rows.push(Row::wrong(format!("a flat room that is {name}"), flat, "roomId"));
    }
    for mode in ["1", "true", "{}", "[]", r#""""#, r#""BOTH""#, r#""all""#, r#""both\ud800""#] {
        let payload = format!(r#"{{"roomId":"r","mode":{mode}}}"#);
        rows.push(wrong("join_room", &payload, "mode").room("r"));
    }
    for (since, field) in [
        ("5", "since"),
        (r#""e""#, "since"),
        ("[]", "since"),
        ("{}", "since.epoch"),
        (r#"{"seq":1}"#, "since.epoch"),
        (r#"{"epoch":1,"seq":1}"#, "since.epoch"),
        (r#"{"epoch":null,"seq":1}"#, "since.epoch"),
        (r#"{"epoch":"e"}"#, "since.seq"),
        (r#"{"epoch":"e","seq":-1}"#, "since.seq"),
        (r#"{"epoch":"e","seq":1.5}"#, "since.seq"),
        (r#"{"epoch":"e","seq":"1"}"#, "since.seq"),
        (r#"{"epoch":"e","seq":9007199254740992}"#, "since.seq"),
        (r#"{"epoch":"e","seq":1e999}"#, "since.seq"),
        (r#"{"epoch":"e","seq":null}"#, "since.seq"),
        (r#"{"epoch":"e","seq":1,"seq":2}"#, "since.seq"),
    ] {
        rows.push(wrong("join_room", &format!(r#"{{"roomId":"r","since":{since}}}"#), field));
    }
    let long = "e".repeat(65);
    let payload = format!(r#"{{"roomId":"r","since":{{"epoch":"{long}","seq":1}}}}"#);
    rows.push(wrong("join_room", &payload, "since.epoch"));
    // What looks odd and is right.
    for room in [
        "r".repeat(128),
        "🚌".repeat(128),
        "\u{202e}evil\u{202d}".to_owned(),
        "../../etc".to_owned(),
        "*".to_owned(),
        "a.b>c $SYS".to_owned(),
        " ".to_owned(),
    ] {
        let text = json!({ "type": "join_room", "id": 1, "payload": { "roomId": room } });
        rows.push(Row::answer(
            format!("the room {room:?}"),
            text.to_string(),
            "room_joined",
            json!(1),
        ));
    }
    let flat = r#"{"type":"join_room","roomId":"r"}"#;
    rows.push(Row::answer("a flat join", flat, "room_joined", Value::Null));
    for kind in ["leave_room", "positions"] {
        let text = request(kind, r#"{"roomId":"elsewhere"}"#);
        let row = Row::error(format!("{kind} of a room not joined"), text, "NOT_JOINED");
        rows.push(row.id(1).kind(kind).room("elsewhere"));
    }
    run(&mut bench, rows);
    bench.finish();
}

#[test]
fn positions() {
    let mut bench = Bench::start();
    let at = |more: &str| format!(r#"{{"latitude":60,"longitude":24{more}}}"#);
    let mut rows = Vec::new();
    for payload in ["5", "[]", r#""x""#, "true"] {
        rows.push(wrong("location_update", payload, "payload"));
    }
    for payload in ["{}", "null", r#"{"longitude":24}"#] {
        rows.push(wrong("location_update", payload, "latitude"));
    }
    rows.push(wrong("location_update", r#"{"latitude":60}"#, "longitude"));
    let not_numbers =
        [r#""60""#, "true", "{}", "[]", "[60]", "1e999", "-1e999", r#""NaN""#, r#""Infinity""#];
    for (field, out_of_range) in [
        ("latitude", &["90.0000001", "-90.1", "1e308", "null"][..]),
        ("longitude", &["180.0000001", "-180.1", "360", "null"]),
        ("altitude", &[]),
        ("accuracy", &["-0.001", "-1e308"]),
        ("altitudeAccuracy", &["-1"]),
        ("speed", &["-0.1"]),
        ("heading", &["360", "-0.1", "720", "1e308"]),
    ] {
        for value in not_numbers.iter().chain(out_of_range) {
            let payload = match field {
                "latitude" => format!(r#"{{"latitude":{value},"longitude":24}}"#),
                "longitude" => format!(r#"{{"latitude":60,"longitude":{value}}}"#),
                _ => at(&format!(r#","{field}":{value}"#)),
            };
            rows.push(wrong("location_update", &payload, field));
        }
        rows.push(wrong("location_update", &at(&format!(r#","{field}":1,"{field}":1"#)), field));
    }
    for zero in ["0", "0.0", "-0", "0e5", "-0.0e-3"] {
        let payload = format!(r#"{{"latitude":{zero},"longitude":{zero}}}"#);
        rows.push(wrong("location_update", &payload, "latitude"));
    }
    let far = jiff::Timestamp::now().as_millisecond() + 3_600_000;
    for time in [
        r#""yesterday""#,
        r#""2026-01-01T00:00:00""#,
        r#""2026-01-01""#,
        r#""2026-13-01T00:00:00Z""#,
        r#""2026-02-30T00:00:00Z""#,
        r#""""#,
        "true",
        "{}",
        "[]",
        "1.5",
        "1e999",
        "9007199254740992",
        r#""1767225600000""#,
        &far.to_string(),
        r#""9999-12-31T23:59:59Z""#,
    ] {
        rows.push(wrong("location_update", &at(&format!(r#","timestamp":{time}"#)), "timestamp"));
    }
    for (name, value) in bad_names().into_iter().filter(|(_, value)| value.len() < 300) {
        let text = request("location_update", &at(&format!(r#","vehicleId":{value}"#)));
        rows.push(Row::wrong(format!("a vehicle that is {name}"), text, "vehicleId").id(1));
        if name != "a list" {
            let text = request("location_update", &at(&format!(r#","roomId":{value}"#)));
            rows.push(Row::wrong(format!("a room that is {name}"), text, "roomId").id(1));
        }
        let text = request("location_update", &at(&format!(r#","roomId":["r",{value}]"#)));
        rows.push(Row::wrong(format!("a second room that is {name}"), text, "roomId[1]").id(1));
    }
    let long_key = format!("{:?}", "k".repeat(65));
    let long_key_in_bytes = format!("{:?}", "é".repeat(33));
    for key in ["5", "true", "{}", "[]", r#""""#, &long_key, &long_key_in_bytes, r#""\ud800""#] {
        rows.push(wrong("location_update", &at(&format!(r#","key":{key}"#)), "key"));
    }
    let many: Vec<String> = (0..17).map(|room| format!("r{room}")).collect();
    for rooms in ["[]", &json!(many).to_string()] {
        rows.push(wrong("location_update", &at(&format!(r#","roomId":{rooms}"#)), "roomId"));
    }
    let deep = "[".repeat(60) + &"]".repeat(60);
    for (field, value) in
        [("x", "1e999"), ("x", r#""\ud800""#), ("x", r#"{"y":[1e999]}"#), ("x", &deep)]
    {
        rows.push(wrong("location_update", &at(&format!(r#","{field}":{value}"#)), field));
    }
    rows.push(wrong("location_update", &at(r#","x":1,"x":1"#), "x"));
    rows.push(wrong("location_update", &at(r#","x":1,"\u0078":1"#), "x"));
    rows.push(wrong(
        "location_update",
        r#"{"latitude":60,"\u006catitude":60,"longitude":24}"#,
        "latitude",
    ));
    let pad = |size: usize| {
        let start = at(r#","x":""#);
        let start = start.trim_end_matches('}');
        format!("{start}{}\"}}", "x".repeat(size - start.len() - 2))
    };
    for size in [513, 60_000] {
        let text = request("location_update", &pad(size));
        rows.push(Row::error(format!("{size} bytes"), text, "MESSAGE_TOO_LARGE").id(1));
    }
    // As notifications they are told all the same, without an id.
    let text = format!(r#"{{"type":"location_update","payload":{}}}"#, at(r#","speed":-1"#));
    rows.push(Row::wrong("a notification", text, "speed").kind("location_update"));
    let named = at(r#","roomId":"r""#);
    let text = format!(r#"{{"type":"location_update","payload":{named}}}"#);
    rows.push(Row::error("a room not joined", text, "NOT_JOINED").room("r"));
    let row = Row::error("no room joined", request("location_update", &at("")), "NOT_JOINED");
    rows.push(row.id(1).room(Value::Null));
    run(&mut bench, rows);

    // What looks odd and is right, in a room.
    let join = |peer: &mut Peer| {
        peer.send(&json!({ "type": "join_room", "id": "j", "payload": { "roomId": "p", "mode": "publish" } }));
        peer.recv_where(|message| message["id"] == "j");
    };
    let mut rows = vec![
        Row::answer("exactly 512 bytes", request("location_update", &pad(512)), "ack", json!(1)),
        Row::answer(
            "the poles",
            request("location_update", r#"{"latitude":-90,"longitude":-180}"#),
            "ack",
            json!(1),
        ),
        Row::answer(
            "the equator",
            request("location_update", r#"{"latitude":0,"longitude":24}"#),
            "ack",
            json!(1),
        ),
    ];
    for more in [
        r#","speed":null,"heading":null"#,
        r#","heading":359.999"#,
        r#","heading":0"#,
        r#","vehicleId":null,"key":null,"roomId":null"#,
        r#","timestamp":1767225600000"#,
        r#","timestamp":"2026-01-01T00:00:00+14:00""#,
        r#","roomId":["p","p"]"#,
        r#","type":{},"id":[],"clientId":7,"seq":"x","epoch":1e3,"receivedAt":true,"late":null"#,
        r#","__proto__":{"constructor":1}"#,
        r#","":1"#,
    ] {
        rows.push(Row::answer(more, request("location_update", &at(more)), "ack", json!(1)));
    }
    run_prepared(&mut bench, rows, join);
    bench.finish();
}

#[test]
fn tokens() {
    let mut bench = Bench::start();
    let mut rows = Vec::new();
    for payload in [
        "{}",
        "null",
        r#"{"token":null}"#,
        r#"{"token":5}"#,
        r#"{"token":""}"#,
        r#"{"token":{}}"#,
        r#"{"token":"\ud800"}"#,
        r#"{"token":"a","token":"b"}"#,
    ] {
        rows.push(wrong("token_refresh", payload, "token"));
    }
    for payload in ["5", "[]", r#""t""#] {
        rows.push(wrong("token_refresh", payload, "payload"));
    }
    rows.push(
        Row::wrong(
            "a flat token that is none",
            r#"{"type":"token_refresh","id":1,"token":5}"#,
            "token",
        )
        .id(1),
    );
    run(&mut bench, rows);
    bench.finish();
}

#[test]
fn history_and_uploads() {
    let mut bench = Bench::start();
    let in_room = |more: &str| format!(r#"{{"roomId":"r"{more}}}"#);
    let mut rows = Vec::new();
    for payload in ["5", "[]", r#""r""#] {
        rows.push(wrong("history", payload, "payload"));
    }
    rows.push(wrong("history", "{}", "roomId"));
    for limit in ["0", "-1", "10001", "1.5", r#""5""#, "1e999", "true", "{}"] {
        rows.push(wrong("history", &in_room(&format!(r#","limit":{limit}"#)), "limit"));
    }
    for time in [r#""yesterday""#, "true", "1.5", "{}", "1e999", r#""2026-01-01T00:00:00""#] {
        for field in ["from", "to"] {
            rows.push(wrong("history", &in_room(&format!(r#","{field}":{time}"#)), field));
        }
    }
    let long = format!("{:?}", "c".repeat(10_000));
    for cursor in ["5", "{}", r#""nonsense""#, r#""\ud800""#, &long] {
        rows.push(wrong("history", &in_room(&format!(r#","cursor":{cursor}"#)), "cursor"));
    }
    rows.push(wrong("history", &in_room(r#","vehicleId":"""#), "vehicleId"));
    for (field, value) in
        [("roomId", "5"), ("roomId", r#""""#), ("vehicleId", "[]"), ("vehicleId", r#""a\nb""#)]
    {
        rows.push(wrong("backfill_begin", &format!(r#"{{"{field}":{value}}}"#), field));
    }
    let join = |peer: &mut Peer| {
        peer.send(&json!({ "type": "join_room", "id": "j", "payload": { "roomId": "r" } }));
        peer.recv_where(|message| message["id"] == "j");
    };
    run_prepared(&mut bench, rows, join);

    // A chunk that is none ends its upload: that is the one answer.
    let mut peer = bench.peer();
    join(&mut peer);
    for positions in [json!(5), json!({}), json!("x"), Value::Null, json!(vec![0; 501])] {
        let chunk = json!({ "positions": positions });
        peer.send(&json!({ "type": "backfill_begin", "id": "u", "payload": { "roomId": "r" } }));
        peer.send(&json!({ "type": "backfill_chunk", "id": "u", "payload": chunk }));
        peer.send(&json!({ "type": "backfill_end", "id": "u" }));
        let error = peer.recv();
        assert_eq!(error["id"], "u", "{error}");
        assert_eq!(error["payload"]["code"], "VALIDATION_ERROR", "{error}");
        assert_eq!(error["payload"]["field"], "positions", "{error}");
        peer.send(&json!({ "type": "ping", "id": "next" }));
        assert_eq!(peer.recv()["id"], "next", "exactly one answer");
        bench.check("a chunk that is none");
    }
    peer.send(&json!({ "type": "backfill_begin", "id": "u", "payload": { "roomId": "r" } }));
    // What is wrong in one position is told for that one.
    let positions = json!([
        { "latitude": 1, "longitude": 1, "timestamp": 1_767_225_600_000_i64 },
        { "latitude": 91, "longitude": 1 },
        5,
        { "latitude": 0, "longitude": 0 },
        { "latitude": 1, "longitude": 1, "x": "y".repeat(600) },
    ]);
    peer.send(
        &json!({ "type": "backfill_chunk", "id": "u", "payload": { "positions": positions } }),
    );
    peer.send(&json!({ "type": "backfill_end", "id": "u" }));
    let result =
        peer.recv_where(|message| message["id"] == "u" && message["type"] != "backfill_progress");
    assert_eq!(result["type"], "backfill_result", "{result}");
    assert_eq!(result["payload"]["accepted"], 1, "{result}");
    assert_eq!(result["payload"]["rejectedTotal"], 4, "{result}");
    let rejected = result["payload"]["rejected"].as_array().unwrap();
    let indices: Vec<&Value> = rejected.iter().map(|one| &one["index"]).collect();
    assert_eq!(indices, [1, 2, 3, 4]);
    drop(peer);
    bench.check("an upload with bad positions");
    bench.finish();
}
