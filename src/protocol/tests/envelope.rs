//! The outer object of a message, row by row.

use std::borrow::Cow;

use crate::protocol::{Class, Envelope, EnvelopeError, ErrorCode, Kind, RequestId};
use proptest::prelude::*;

fn error(text: &str) -> EnvelopeError {
    Envelope::parse(text).expect_err(text)
}

#[test]
fn what_is_no_object_is_invalid_json() {
    let deep = "[".repeat(65_536);
    let deep_member = format!("{{\"a\":{}", "{\"a\":".repeat(10_000));
    for text in [
        "",
        " ",
        "[]",
        "null",
        "1",
        "\"ping\"",
        "{",
        "{]",
        "{'type':'ping'}",
        "{} {}",
        "{\"type\":\"ping\",}",
        "\u{feff}{\"type\":\"ping\"}",
        "{\"type\":\"pi\nng\"}",
        "NaN",
        &deep,
        &deep_member,
    ] {
        let error = error(text);
        assert_eq!(error.error.code(), ErrorCode::InvalidJson, "{text}");
        assert_eq!((error.id, error.kind), (None, None));
    }
}

#[test]
fn nesting_that_is_ignored_costs_nothing() {
    let text = format!(r#"{{"type":"ping","x":{}{}}}"#, "[".repeat(30_000), "]".repeat(30_000));
    assert_eq!(Envelope::parse(&text).unwrap().kind, Kind::Ping);
}

#[test]
fn ids() {
    for (raw, expected) in [
        ("1", Some(RequestId::Number(1))),
        ("-9007199254740991", Some(RequestId::Number(-9_007_199_254_740_991))),
        ("2.0", Some(RequestId::Number(2))),
        ("null", None),
        ("\"a\"", Some(RequestId::from("a"))),
        ("\"\\u00e4\"", Some(RequestId::from("ä"))),
    ] {
        let text = format!(r#"{{"type":"ping","id":{raw}}}"#);
        assert_eq!(Envelope::parse(&text).unwrap().id, expected, "{raw}");
    }
    let long = format!("\"{}\"", "x".repeat(65));
    for raw in ["\"\"", &long, "9007199254740992", "1.5", "true", "[]", "{}", "1e99", "\"\\ud800\""]
    {
        let error = error(&format!(r#"{{"type":"ping","id":{raw}}}"#));
        assert_eq!(error.error.code(), ErrorCode::ValidationError, "{raw}");
        assert_eq!(error.error.field(), Some("id"));
        assert_eq!((error.id, error.kind.as_deref()), (None, Some("ping")));
    }
}

#[test]
fn a_wrong_type_keeps_the_id() {
    for text in [
        r#"{"id":7}"#,
        r#"{"id":7,"type":null}"#,
        r#"{"id":7,"type":3}"#,
        r#"{"id":7,"type":"ping","type":"ping"}"#,
    ] {
        let error = error(text);
        assert_eq!(error.error.code(), ErrorCode::ValidationError);
        assert_eq!(error.error.field(), Some("type"), "{text}");
        assert_eq!(error.id, Some(RequestId::Number(7)));
    }
    let unknown = error(r#"{"type":"PING","id":"x"}"#);
    assert_eq!(unknown.error.code(), ErrorCode::UnknownType);
    assert_eq!((unknown.id, unknown.kind.as_deref()), (Some("x".into()), Some("PING")));
    let endless = error(&format!(r#"{{"type":"{}"}}"#, "a".repeat(60_000)));
    assert!(endless.error.message().len() < 200 && endless.kind.is_none());
}

#[test]
fn of_two_ids_none_is_repeated() {
    let error = error(r#"{"type":"ping","id":1,"id":2}"#);
    assert_eq!((error.error.field(), error.id), (Some("id"), None));
}

#[test]
fn classes() {
    for (text, class) in [
        (r#"{"type":"location_update","id":1}"#, Class::Rpc),
        (r#"{"type":"location_update"}"#, Class::Notification),
        (r#"{"type":"location_update","id":null}"#, Class::Notification),
        (r#"{"type":"join_room"}"#, Class::Subscription),
        (r#"{"type":"leave_room"}"#, Class::Rpc),
        (r#"{"type":"history"}"#, Class::Rpc),
        (r#"{"type":"backfill_chunk"}"#, Class::Upload),
        (r#"{"type":"ping"}"#, Class::Control),
        (r#"{"type":"ack"}"#, Class::Legacy),
    ] {
        assert_eq!(Envelope::parse(text).unwrap().class(), class, "{text}");
    }
}

#[test]
fn flat_is_a_room_at_the_top_and_no_payload() {
    for (text, flat, hint) in [
        (r#"{"type":"join_room","roomId":"a"}"#, true, Some("a")),
        (r#"{"type":"join_room","roomId":"a","payload":null}"#, true, Some("a")),
        (r#"{"type":"join_room","roomId":"a","payload":{}}"#, false, Some("a")),
        (r#"{"type":"join_room","payload":{"roomId":"b"},"roomId":"a"}"#, false, Some("b")),
        (r#"{"type":"join_room","payload":{"roomId":["b"]}}"#, false, None),
        (r#"{"type":"join_room","roomId":""}"#, true, None),
        (r#"{"type":"join_room"}"#, false, None),
    ] {
        let envelope = Envelope::parse(text).unwrap();
        assert_eq!((envelope.flat, envelope.room_hint().as_deref()), (flat, hint), "{text}");
    }
}

#[test]
fn kinds_read_back() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_name(kind.name()), Some(kind));
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = Envelope::parse(&text);
    }

    #[test]
    fn nearly_json_is_read_or_refused(
        text in r#"[{}\[\]",:a-z0-9.\\ ue-]{0,60}"#,
        id in r#"[{}\[\]",:a-z0-9.\\ ue-]{0,10}"#,
    ) {
        let _ = Envelope::parse(&format!(r#"{{"type":"ping","id":{id},"payload":{text}}}"#))
            .map(|envelope| envelope.room_hint().map(Cow::into_owned));
    }
}
