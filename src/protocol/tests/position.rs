//! The rules of a position, one table row each, and what any input may do.

use proptest::prelude::*;
use serde_json::Value;

use super::{now, rules};
use crate::ids::{ClientId, RoomId, VehicleId};
use crate::protocol::decode::{ServerFrame, ServerMessage};
use crate::protocol::event;
use crate::protocol::position::{EVENT_OVERHEAD, ExtraFields, PositionRules};
use crate::protocol::{Envelope, ErrorCode, HandlerError, LocationUpdate};
use crate::time::UnixMillis;

fn read_with(payload: &str, rules: &PositionRules) -> Result<LocationUpdate, HandlerError> {
    let text = format!(r#"{{"type":"location_update","payload":{payload}}}"#);
    Envelope::parse(&text).expect(payload).location_update(rules, now())
}

fn read(payload: &str) -> Result<LocationUpdate, HandlerError> {
    read_with(payload, &rules())
}

/// A position with `members` after valid coordinates.
fn with(members: &str) -> Result<LocationUpdate, HandlerError> {
    read(&format!(r#"{{"latitude":1.5,"longitude":-2,{members}}}"#))
}

#[test]
fn values_within_their_limits() {
    for members in [
        r#""altitude":-430.5"#,
        r#""accuracy":0"#,
        r#""altitudeAccuracy":12"#,
        r#""speed":0"#,
        r#""speed":null"#,
        r#""speed":1.2e1"#,
        r#""heading":0"#,
        r#""heading":-0.0"#,
        r#""heading":359.999"#,
        r#""heading":null"#,
    ] {
        let update = with(members).expect(members);
        assert_eq!(&*update.position.body, format!(r#""latitude":1.5,"longitude":-2,{members}"#));
    }
    for (latitude, longitude) in [("90", "180"), ("-90", "-180"), ("0", "1"), ("-0.0", "1e-9")] {
        read(&format!(r#"{{"latitude":{latitude},"longitude":{longitude}}}"#)).expect(latitude);
    }
}

#[test]
fn values_beyond_their_limits_are_named() {
    for (field, values) in [
        ("latitude", &["90.0001", "-90.1", "1e999", "\"1\"", "null", "[1]", "true", "{}"][..]),
        ("longitude", &["180.0001", "-181", "-1e999", "\"1\"", "null"][..]),
        ("altitude", &["1e999", "\"1\"", "null"][..]),
        ("accuracy", &["-0.1", "null", "\"1\"", "1e999"][..]),
        ("altitudeAccuracy", &["-1", "null"][..]),
        ("speed", &["-1", "\"fast\"", "1e999", "false"][..]),
        ("heading", &["360", "-0.1", "\"N\"", "1e999"][..]),
        (
            "timestamp",
            &["null", "true", "\"\"", "\"yesterday\"", "\"2024-01-16\"", "1.5", "1e30"][..],
        ),
        ("vehicleId", &["\"\"", "7", "\"a\\u0000\"", "[]", "\"\\ud800\""][..]),
        ("key", &["\"\"", "7", "{}"][..]),
        ("roomId", &["\"\"", "7", "[]", "{}"][..]),
    ] {
        for value in values {
            let payload = match field {
                "latitude" => format!(r#"{{"latitude":{value},"longitude":1}}"#),
                "longitude" => format!(r#"{{"latitude":1,"longitude":{value}}}"#),
                _ => format!(r#"{{"latitude":1,"longitude":1,"{field}":{value}}}"#),
            };
            let error = read(&payload).expect_err(&payload);
            assert_eq!(error.code(), ErrorCode::ValidationError, "{payload}");
            assert_eq!(error.wire().field(), Some(field), "{payload}");
            assert!(error.wire().message().contains(field), "{error}");
        }
    }
}

#[test]
fn coordinates_are_required() {
    for (payload, field) in [
        ("{}", "latitude"),
        (r#"{"latitude":1}"#, "longitude"),
        (r#"{"longitude":1}"#, "latitude"),
        ("[]", "payload"),
        ("7", "payload"),
    ] {
        assert_eq!(read(payload).unwrap_err().wire().field(), Some(field), "{payload}");
    }
    let error = Envelope::parse(r#"{"type":"location_update"}"#)
        .unwrap()
        .location_update(&rules(), now())
        .unwrap_err();
    assert_eq!(error.wire().field(), Some("latitude"));
}

#[test]
fn a_key_that_occurs_twice_is_named() {
    for (members, field) in [
        (r#""latitude":1.5"#, "latitude"),
        (r#""l\u0061titude":1.5"#, "latitude"),
        (r#""speed":1,"speed":1"#, "speed"),
        (r#""x":1,"y":2,"x":1"#, "x"),
        (r#""x":1,"\u0078":1"#, "x"),
        (r#""type":1,"type":1"#, "type"),
        (r#""key":"a","key":"a""#, "key"),
        (r#""timestamp":0,"timestamp":0"#, "timestamp"),
    ] {
        assert_eq!(with(members).unwrap_err().wire().field(), Some(field), "{members}");
    }
}

#[test]
fn null_island_is_a_receiver_without_a_fix() {
    for payload in [r#"{"latitude":0,"longitude":0}"#, r#"{"latitude":-0.0,"longitude":0e5}"#] {
        assert_eq!(read(payload).unwrap_err().wire().field(), Some("latitude"));
        let allowed = PositionRules { accept_null_island: true, ..rules() };
        read_with(payload, &allowed).unwrap();
    }
    read(r#"{"latitude":0,"longitude":0.0000001}"#).unwrap();
}

#[test]
fn times() {
    let at = now().get();
    for (raw, millis) in [
        ("\"2024-01-16T18:33:20Z\"".to_owned(), at),
        ("\"2024-01-16T20:33:20.250+02:00\"".to_owned(), at + 250),
        (format!("{at}"), at),
        (format!("{at}.0"), at),
        ("1.7054e12".to_owned(), 1_705_400_000_000),
        ("-1".to_owned(), -1),
        (format!("{}", at + 30_000), at + 30_000),
    ] {
        let update = with(&format!(r#""timestamp":{raw}"#)).expect(&raw);
        assert_eq!(update.position.timestamp, UnixMillis::new(millis), "{raw}");
        assert!(!update.position.body.contains("timestamp"));
    }
    let error = with(&format!(r#""timestamp":{}"#, at + 30_001)).unwrap_err();
    assert_eq!(error.wire().field(), Some("timestamp"));
    assert_eq!(with(r#""speed":1"#).unwrap().position.timestamp, None);
}

#[test]
fn the_size_counts_the_payload_as_written() {
    let room_for = 512 - r#"{"latitude":1,"longitude":1,"x":""}"#.len();
    let payload =
        |length: usize| format!(r#"{{"latitude":1,"longitude":1,"x":"{}"}}"#, "a".repeat(length));
    read(&payload(room_for)).unwrap();
    let error = read(&payload(room_for + 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::MessageTooLarge);
    assert!(error.wire().message().contains("513"), "{error}");
}

#[test]
fn the_servers_names_are_left_out_and_others_pass() {
    let payload = r#"{ "type":1, "id":[1], "roomId":"r", "key":"k", "clientId":"c", "seq":9,
        "epoch":"e", "receivedAt":"x", "late":true, "vehicleId":"v", "timestamp":0,
        "longitude" : 2 , "fuel": {"l": [1, null, "é\n\"\\"]}, "latitude" :
        1 , "\u0062at":0.5 }"#;
    let update = read(payload).unwrap();
    assert_eq!(
        &*update.position.body,
        r#""longitude":2,"fuel":{"l": [1, null, "é\n\"\\"]},"latitude":1,"\u0062at":0.5"#
    );
    assert_eq!(update.rooms.unwrap(), [RoomId::parse("r").unwrap()]);
    assert_eq!(update.vehicle, VehicleId::parse("v").ok());
    assert_eq!(update.key.unwrap().as_str(), "k");

    let dropping = PositionRules { extra_fields: ExtraFields::Drop, ..rules() };
    let update = read_with(payload, &dropping).unwrap();
    assert_eq!(&*update.position.body, r#""longitude":2,"latitude":1"#);
    // What is dropped is still judged: a receiver's choice must not change what is valid.
    assert!(read_with(r#"{"latitude":1,"longitude":1,"x":1e999}"#, &dropping).is_err());
}

#[test]
fn extra_fields_that_receivers_could_not_read_are_refused() {
    let deep = format!(r#""x":{}{}"#, "[".repeat(33), "]".repeat(33));
    for members in [deep.as_str(), r#""x":"\ud800""#, r#""x":1e999"#, r#""x":[{"\udead":1}]"#] {
        assert_eq!(with(members).unwrap_err().wire().field(), Some("x"), "{members}");
    }
    assert_eq!(with(r#""\ud800":1"#).unwrap_err().wire().field(), Some("payload"));
    with(&format!(r#""x":{}{}"#, "[".repeat(32), "]".repeat(32))).unwrap();
}

#[test]
fn rooms_are_bounded_and_collapsed() {
    let names = |update: LocationUpdate| -> Option<Vec<String>> {
        Some(update.rooms?.iter().map(ToString::to_string).collect())
    };
    assert_eq!(names(with(r#""roomId":null"#).unwrap()), None);
    assert_eq!(names(with(r#""roomId":"a""#).unwrap()).unwrap(), ["a"]);
    assert_eq!(names(with(r#""roomId":["a", "b","\u0061"]"#).unwrap()).unwrap(), ["a", "b"]);
    let many = |count: usize| {
        let list: Vec<String> = (0..count).map(|n| format!("\"r{n}\"")).collect();
        with(&format!(r#""roomId":[{}]"#, list.join(",")))
    };
    assert_eq!(names(many(16).unwrap()).unwrap().len(), 16);
    assert_eq!(many(17).unwrap_err().wire().field(), Some("roomId"));
    assert_eq!(with(r#""roomId":["a",""]"#).unwrap_err().wire().field(), Some("roomId[1]"));
}

#[test]
fn keys_are_bounded_in_bytes() {
    with(&format!(r#""key":"{}""#, "k".repeat(64))).unwrap();
    assert!(with(&format!(r#""key":"{}""#, "k".repeat(65))).is_err());
    assert!(with(&format!(r#""key":"{}""#, "ä".repeat(33))).is_err());
    assert_eq!(with(r#""key":null,"vehicleId":null"#).unwrap().key, None);
}

#[test]
fn ten_thousand_extra_fields_are_no_attack() {
    let wide = PositionRules { max_position: 1 << 20, ..rules() };
    let members: Vec<String> = (0..10_000).map(|n| format!("\"f{n}\":1")).collect();
    let payload = format!(r#"{{"latitude":1,"longitude":1,{}}}"#, members.join(","));
    read_with(&payload, &wide).unwrap();
}

#[test]
fn the_longest_event_keeps_the_overhead() {
    let name = "\"".repeat(128);
    let widest = "🚌".repeat(128);
    for name in [name, widest] {
        let update = read(r#"{"latitude":1,"longitude":2}"#).unwrap();
        let event = event::location_update(
            &RoomId::parse(&name).unwrap(),
            u64::MAX,
            &ClientId::parse(&name).unwrap(),
            &VehicleId::parse(&name).unwrap(),
            &update.position.body,
            now(),
            now(),
        );
        assert!(event.text.len() <= update.position.body.len() + EVENT_OVERHEAD);
    }
}

/// JSON of any shape, as text with odd spacing.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e6..1e6).prop_map(|number: f64| Value::from(number)),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(any::<String>(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_text_is_taken_or_refused(payload in any::<String>()) {
        let text = format!(r#"{{"type":"location_update","payload":{payload}}}"#);
        if let Ok(envelope) = Envelope::parse(&text) {
            let _ = envelope.location_update(&rules(), now());
        }
    }

    #[test]
    fn what_is_taken_comes_out_with_the_same_values(
        latitude in -90.0..=90.0f64,
        longitude in -180.0..=180.0f64,
        speed in prop::option::of(0.0..100.0f64),
        millis in 0..1_705_430_000_000i64,
        extra in prop::collection::btree_map("[a-z\"\\\\é]{1,5}_", json(), 0..5),
        spaced in any::<bool>(),
        names in prop::array::uniform3("[^\\p{Cc}]{1,30}"),
    ) {
        let mut payload: serde_json::Map<String, Value> = extra.clone().into_iter().collect();
        payload.insert("latitude".into(), latitude.into());
        payload.insert("longitude".into(), longitude.into());
        payload.insert("speed".into(), speed.into());
        payload.insert("timestamp".into(), millis.into());
        let text = if spaced {
            serde_json::to_string_pretty(&payload)
        } else {
            serde_json::to_string(&payload)
        }
        .unwrap();
        let wide = PositionRules { max_position: 1 << 20, accept_null_island: true, ..rules() };
        let update = read_with(&text, &wide).unwrap();
        prop_assert!(update.position.body.len() <= text.len());

        let [room, client, vehicle] = &names;
        let event = event::location_update(
            &RoomId::parse(room).unwrap(), 7, &ClientId::parse(client).unwrap(),
            &VehicleId::parse(vehicle).unwrap(), &update.position.body,
            update.position.timestamp.unwrap(), now(),
        );
        let item: Value = serde_json::from_str(&format!("{{{}}}", event.item())).unwrap();
        let whole: Value = serde_json::from_str(&event.text).unwrap();
        // Read back by the same reader: serde_json's floats may be one bit off.
        let mut expected: Value = serde_json::from_str(&text).unwrap();
        let extra: serde_json::Map<String, Value> = expected
            .as_object()
            .unwrap()
            .iter()
            .filter(|(name, _)| extra.contains_key(*name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        expected["seq"] = 7.into();
        expected["clientId"] = client.as_str().into();
        expected["vehicleId"] = vehicle.as_str().into();
        expected["timestamp"] = UnixMillis::new(millis).unwrap().to_string().into();
        expected["receivedAt"] = now().to_string().into();
        prop_assert_eq!(&item, &expected);
        expected["roomId"] = room.as_str().into();
        prop_assert_eq!(&whole["payload"], &expected);
        prop_assert_eq!(&whole["type"], "location_update");

        let decoded = ServerFrame::parse(&event.text).unwrap();
        let ServerMessage::LocationUpdate(location) = decoded.message else {
            return Err(TestCaseError::fail("not a location_update"));
        };
        prop_assert_eq!(update.position.latitude, latitude);
        prop_assert_eq!(update.position.longitude, longitude);
        prop_assert_eq!(Some(location.latitude), expected["latitude"].as_f64());
        prop_assert_eq!(location.speed, expected["speed"].as_f64());
        prop_assert_eq!(location.timestamp.get(), millis);
        prop_assert_eq!(location.extra, extra);
    }
}
