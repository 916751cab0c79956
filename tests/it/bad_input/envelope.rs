//! What is no message, and messages whose outer object is wrong.

use serde_json::{Value, json};

use super::Bench;
use super::texts::{Row, run};

#[test]
fn what_is_no_json_object() {
    let mut bench = Bench::start();
    let position = |number: &str| {
        format!(
            r#"{{"type":"location_update","id":1,"payload":{{"latitude":{number},"longitude":1}}}}"#
        )
    };
    let mut rows: Vec<Row> = [
        ("an empty frame", ""),
        ("only space", " \r\n\t "),
        ("an open brace", "{"),
        ("truncated in a value", r#"{"type":"ping"#),
        ("truncated before the end", r#"{"type":"ping","id":1"#),
        ("truncated in an escape", r#"{"type":"ping\u00"#),
        ("an array", r#"[{"type":"ping"}]"#),
        ("a string", r#""ping""#),
        ("a number", "42"),
        ("null", "null"),
        ("true", "true"),
        ("two objects", r#"{"type":"ping"}{"type":"ping"}"#),
        ("an object and a letter", r#"{"type":"ping"}x"#),
        ("a comma at the end", r#"{"type":"ping",}"#),
        ("no comma", r#"{"type":"ping" "id":1}"#),
        ("no colon", r#"{"type" "ping"}"#),
        ("single quotes", "{'type':'ping'}"),
        ("a bare key", r#"{type:"ping"}"#),
        ("a number as key", r#"{1:"ping"}"#),
        ("a comment", r#"{"type":"ping"/* hi */}"#),
        ("a byte order mark", "\u{feff}{\"type\":\"ping\"}"),
        ("a raw line end in a string", "{\"type\":\"pi\nng\"}"),
        ("a raw NUL in a string", "{\"type\":\"pi\0ng\"}"),
        ("an unknown escape", r#"{"type":"\x70ing"}"#),
        ("a leading zero", r#"{"type":"ping","id":01}"#),
        ("a plus sign", r#"{"type":"ping","id":+1}"#),
        ("a hexadecimal number", r#"{"type":"ping","id":0x1}"#),
        ("a number that ends in a point", r#"{"type":"ping","id":1.}"#),
        ("half a surrogate pair as a key", r#"{"type":"ping","\ud800":1}"#),
        ("XML", "<ping/>"),
        ("an HTTP request", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    ]
    .into_iter()
    .map(|(name, text)| Row::error(name, text, "INVALID_JSON").kind(Value::Null))
    .collect();
    for number in ["NaN", "Infinity", "-Infinity", "nan", "inf", "undefined", ".5", "1,5"] {
        rows.push(Row::error(number, position(number), "INVALID_JSON"));
    }
    for (name, text) in [
        ("64 KiB of open brackets", "[".repeat(64 << 10)),
        ("10,000 open objects", r#"{"a":"#.repeat(10_000)),
        (
            "open brackets in the payload",
            format!(r#"{{"type":"ping","payload":{}"#, "[".repeat(60_000)),
        ),
    ] {
        rows.push(Row::error(name, text, "INVALID_JSON"));
    }
    let garbage: Vec<u8> = (0..=255).cycle().take(4096).collect();
    rows.push(Row::error("binary garbage", "", "INVALID_JSON").bytes(&garbage));
    rows.push(
        Row::error("a binary frame of bad UTF-8", "", "INVALID_JSON").bytes(b"{\"type\":\"\xff\"}"),
    );
    rows.push(Row::error("an empty binary frame", "", "INVALID_JSON").bytes(b""));
    rows.push(Row::error("UTF-16", "", "INVALID_JSON").bytes(b"{\0\"\0t\0"));
    run(&mut bench, rows);
    bench.finish();
}

#[test]
fn odd_but_right() {
    let mut bench = Bench::start();
    let deep = "[".repeat(30_000) + &"]".repeat(30_000);
    let padding = "x".repeat((64 << 10) - 35);
    let rows = vec![
        Row::answer(
            "space everywhere",
            " \n{ \"type\" :\t\"ping\" , \"id\" : 1 }\r\n",
            "pong",
            json!(1),
        ),
        Row::answer("a binary frame", r#"{"type":"ping","id":1}"#, "pong", json!(1)).binary(),
        Row::answer(
            "escapes in names",
            r#"{"\u0074ype":"p\u0069ng","\u0069d":1}"#,
            "pong",
            json!(1),
        ),
        Row::answer(
            "unknown fields",
            r#"{"type":"ping","id":1,"x":{"y":[1e999]}}"#,
            "pong",
            json!(1),
        ),
        Row::answer(
            "unknown fields that nest",
            format!(r#"{{"type":"ping","id":1,"x":{deep}}}"#),
            "pong",
            json!(1),
        ),
        Row::answer(
            "an unknown field twice",
            r#"{"x":1,"x":2,"type":"ping","id":1}"#,
            "pong",
            json!(1),
        ),
        Row::answer(
            "a frame of exactly 64 KiB",
            format!(r#"{{"type":"ping","id":1,"padding":"{padding}"}}"#),
            "pong",
            json!(1),
        ),
        Row::answer("no id", r#"{"type":"ping"}"#, "pong", Value::Null),
        Row::answer("a null id", r#"{"type":"ping","id":null}"#, "pong", Value::Null),
        Row::answer(
            "the largest id",
            r#"{"type":"ping","id":9007199254740991}"#,
            "pong",
            json!(9_007_199_254_740_991_i64),
        ),
        Row::answer(
            "the smallest id",
            r#"{"type":"ping","id":-9007199254740991}"#,
            "pong",
            json!(-9_007_199_254_740_991_i64),
        ),
        Row::answer("a zero id", r#"{"type":"ping","id":0}"#, "pong", json!(0)),
        Row::answer(
            "an id of 64 bytes",
            format!(r#"{{"type":"ping","id":"{}"}}"#, "é".repeat(32)),
            "pong",
            json!("é".repeat(32)),
        ),
        Row::answer(
            "an id with control characters",
            r#"{"type":"ping","id":"\u0000\n\u007f\u202e"}"#,
            "pong",
            json!("\u{0}\n\u{7f}\u{202e}"),
        ),
        Row::answer(
            "an id that looks like a number",
            r#"{"type":"ping","id":"1"}"#,
            "pong",
            json!("1"),
        ),
        Row::answer(
            "an emoji from a surrogate pair",
            r#"{"type":"ping","id":"\ud83d\ude8c"}"#,
            "pong",
            json!("🚌"),
        ),
        Row::nothing("an old client's ack", r#"{"type":"ack","seq":5}"#),
        Row::nothing("an old client's nack", r#"{"type":"nack","payload":{"seq":5}}"#),
        Row::answer(
            "an old client's reconnect",
            r#"{"type":"reconnect","roomId":"r","fromSeq":5}"#,
            "replay_gap",
            Value::Null,
        ),
        Row::answer(
            "a reconnect with nonsense",
            r#"{"type":"reconnect","roomId":{},"fromSeq":"x"}"#,
            "replay_gap",
            Value::Null,
        ),
    ];
    run(&mut bench, rows);
    bench.finish();
}

#[test]
fn the_type_is_wrong() {
    let mut bench = Bench::start();
    let mut rows: Vec<Row> = [
        ("missing", r#"{"id":7}"#),
        ("null", r#"{"id":7,"type":null}"#),
        ("a number", r#"{"id":7,"type":5}"#),
        ("a list", r#"{"id":7,"type":["ping"]}"#),
        ("an object", r#"{"id":7,"type":{"ping":1}}"#),
        ("a bool", r#"{"id":7,"type":true}"#),
        ("half a surrogate pair", r#"{"id":7,"type":"ping\ud800"}"#),
        ("the other half", r#"{"id":7,"type":"\udc00ping"}"#),
        ("there twice", r#"{"id":7,"type":"ping","type":"ping"}"#),
        ("there twice, once escaped", r#"{"id":7,"type":"ping","\u0074ype":"ping"}"#),
    ]
    .into_iter()
    .map(|(name, text)| Row::wrong(format!("a type that is {name}"), text, "type").id(7))
    .collect();
    rows.push(Row::wrong("an empty object", "{}", "type"));
    for kind in [
        "teleport",
        "",
        "PING",
        "ping ",
        "welcome",
        "room_joined",
        "location_updates",
        "__proto__",
        "ping\u{0}",
        "\u{202e}gnip",
    ] {
        let text = json!({ "type": kind, "id": "a" }).to_string();
        rows.push(Row::error(format!("{kind:?}"), text, "UNKNOWN_TYPE").id("a").kind(kind));
    }
    let long = "x".repeat(60_000);
    let text = json!({ "type": long, "id": "a" }).to_string();
    rows.push(Row::error("60,000 letters", text, "UNKNOWN_TYPE").id("a"));
    // Only without an id they are the old gateway's.
    for kind in ["ack", "nack"] {
        let text = json!({ "type": kind, "id": 3 }).to_string();
        rows.push(Row::error(kind, text, "UNKNOWN_TYPE").id(3).kind(kind));
    }
    run(&mut bench, rows);
    bench.finish();
}

#[test]
fn the_id_is_wrong() {
    let mut bench = Bench::start();
    let long = format!("{:?}", "x".repeat(65));
    let long_in_bytes = format!("{:?}", "é".repeat(33));
    let huge = format!("{:?}", "x".repeat(60_000));
    let digits = "9".repeat(10_000);
    let deep = "[".repeat(30_000) + &"]".repeat(30_000);
    let rows = [
        ("a fraction", "1.5"),
        ("true", "true"),
        ("false", "false"),
        ("an object", "{}"),
        ("a list", "[1]"),
        ("a deep list", &deep),
        ("an empty string", r#""""#),
        ("65 bytes", &long),
        ("33 letters of 2 bytes", &long_in_bytes),
        ("60,000 bytes", &huge),
        ("2^53", "9007199254740992"),
        ("-2^53", "-9007199254740992"),
        ("beyond 64 bits", "18446744073709551616"),
        ("10,000 digits", &digits),
        ("1e999", "1e999"),
        ("half a surrogate pair", r#""\ud800""#),
    ]
    .into_iter()
    .map(|(name, id)| {
        let text = format!(r#"{{"type":"join_room","id":{id},"payload":{{"roomId":"r"}}}}"#);
        Row::wrong(format!("an id that is {name}"), text, "id").kind("join_room")
    })
    .chain([
        Row::wrong("two ids", r#"{"type":"ping","id":1,"id":2}"#, "id").kind("ping"),
        Row::wrong("the same id twice", r#"{"type":"ping","id":1,"id":1}"#, "id").kind("ping"),
        Row::wrong("an id and an escaped one", r#"{"type":"ping","id":1,"\u0069d":2}"#, "id"),
    ])
    .collect();
    run(&mut bench, rows);
    bench.finish();
}
