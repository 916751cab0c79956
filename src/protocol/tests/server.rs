//! What the server writes, read back as JSON and as a client reads it.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::now;
use crate::ids::{ClientId, RoomId, VehicleId};
use crate::protocol::decode::{ServerFrame, ServerMessage};
use crate::protocol::server::{self, Generations, MAX_REJECTED, Rejected, ShutdownReason, Welcome};
use crate::protocol::{
    EnvelopeError, HandlerError, Mode, PageBuilder, Push, Refusal, RequestId, VERSION, event,
};

fn room(name: &str) -> RoomId {
    RoomId::parse(name).unwrap()
}

fn client(name: &str) -> ClientId {
    ClientId::parse(name).unwrap()
}

const NOW: &str = "2024-01-16T18:33:20.000Z";

fn item(seq: u64, pad: usize) -> String {
    let body = format!(r#""latitude":1,"longitude":2,"pad":"{}""#, "x".repeat(pad));
    let vehicle = VehicleId::parse("v").unwrap();
    event::item(seq, &client("c"), &vehicle, &body, now(), now())
}

/// Every message without a list, with its expected form.
fn messages() -> Vec<(String, Value)> {
    let id = RequestId::from("q\"1");
    let (a, b) = (room("a\"b"), room("ö"));
    let c = client("c\\");
    let message = |kind: &str, payload: Value| json!({"type": kind, "payload": payload});
    let answer =
        |kind: &str, payload: Value| json!({"type": kind, "id": "q\"1", "payload": payload});
    vec![
        (
            server::welcome(&Welcome {
                session_id: "s",
                client_id: &c,
                instance_id: "i",
                generation: "1.2",
                protocol: VERSION,
                server_time: now(),
                heartbeat_ms: 1,
                heartbeat_timeout_ms: 2,
                max_frame_bytes: 3,
                max_frame_out_bytes: 4,
                max_position_bytes: 5,
                dedup_window_ms: 6,
            }),
            message(
                "welcome",
                json!({"sessionId": "s", "clientId": "c\\", "instanceId": "i",
                "generation": "1.2", "protocol": 1, "serverTime": NOW, "heartbeatMs": 1, "heartbeatTimeoutMs": 2,
                "maxFrameBytes": 3, "maxFrameOutBytes": 4, "maxPositionBytes": 5,
                "dedupWindowMs": 6}),
            ),
        ),
        (server::pong(Some(&id), now()), answer("pong", json!({"serverTime": NOW}))),
        (
            server::room_joined_flat(None, &a, "e", 9),
            message("room_joined", json!({"roomId": "a\"b", "epoch": "e", "seq": 9})),
        ),
        (
            server::room_joined_publish(Some(&id), &a, "e", 9),
            answer(
                "room_joined",
                json!({"roomId": "a\"b", "mode": "publish", "epoch": "e",
                "seq": 9, "recovered": false, "members": [], "positions": [], "more": false}),
            ),
        ),
        (server::room_left(None, &b, None), message("room_left", json!({"roomId": "ö"}))),
        (
            server::room_left(None, &b, Some("forbidden")),
            message("room_left", json!({"roomId": "ö", "reason": "forbidden"})),
        ),
        (
            server::ack(Some(&id), [(&a, 1), (&b, u64::MAX)], true, &[a.clone(), b.clone()]),
            answer(
                "ack",
                json!({"rooms": {"a\"b": 1, "ö": u64::MAX}, "duplicate": true,
                "late": ["a\"b", "ö"]}),
            ),
        ),
        (
            server::ack(Some(&RequestId::from(-7)), [], false, &[]),
            json!({"type": "ack", "id": -7,
                "payload": {"rooms": {}, "duplicate": false, "late": []}}),
        ),
        (
            server::backfill_progress(1, 2, 3),
            message("backfill_progress", json!({"accepted": 1, "duplicates": 2, "rejected": 3})),
        ),
        (
            server::backfill_result(
                Some(&id),
                1,
                2,
                &[Rejected { index: 4, reason: "no \"x\"".into() }],
                1,
                Some("idle"),
                65_536,
            ),
            answer(
                "backfill_result",
                json!({"accepted": 1, "duplicates": 2, "rejectedTotal": 1,
                "reason": "idle", "rejected": [{"index": 4, "reason": "no \"x\""}]}),
            ),
        ),
        (
            server::token_refresh_ok(Some(&id), &c, Some(now())),
            answer("token_refresh_ok", json!({"clientId": "c\\", "expiresAt": NOW})),
        ),
        (
            server::token_refresh_ok(Some(&id), &c, None),
            answer("token_refresh_ok", json!({"clientId": "c\\"})),
        ),
        (
            server::token_expiring(now(), 30_000),
            message("token_expiring", json!({"expiresAt": NOW, "inMs": 30_000})),
        ),
        (
            server::members_changed(&a, 1, 2, 3),
            message(
                "members_changed",
                json!({"roomId": "a\"b", "joined": 1, "left": 2, "memberCount": 3}),
            ),
        ),
        (
            server::lagging(&a, "e", 5, 6, "newest"),
            message(
                "lagging",
                json!({"roomId": "a\"b", "epoch": "e", "fromSeq": 5, "dropped": 6,
                "mode": "newest"}),
            ),
        ),
        (
            server::caught_up(&a, "e", 5, 6),
            message("caught_up", json!({"roomId": "a\"b", "epoch": "e", "seq": 5, "dropped": 6})),
        ),
        (
            server::notifications_dropped(3, "paused"),
            message("notifications_dropped", json!({"count": 3, "reason": "paused"})),
        ),
        (
            server::server_shutting_down(
                Duration::from_millis(1234),
                10,
                ShutdownReason::Drain,
                Some(Generations { own: "g\"", newer: &[] }),
            ),
            message(
                "server_shutting_down",
                json!({"reconnectIn": 1.234, "closesInMs": 10,
                "reason": "drain", "resume": true, "generation": "g\""}),
            ),
        ),
        (
            server::server_shutting_down(
                Duration::from_micros(1_000_500),
                10,
                ShutdownReason::Drain,
                Some(Generations { own: "g", newer: &[(); 9].map(|()| "h".to_owned()) }),
            ),
            message(
                "server_shutting_down",
                json!({"reconnectIn": 1.0005, "closesInMs": 10, "reason": "drain",
                "resume": true, "generation": "g", "newer": vec!["h"; 8]}),
            ),
        ),
        (
            server::server_shutting_down(Duration::from_secs(3), 0, ShutdownReason::Shutdown, None),
            message(
                "server_shutting_down",
                json!({"reconnectIn": 3, "closesInMs": 0,
                "reason": "shutdown", "resume": true}),
            ),
        ),
        (
            server::error(
                Some(&id),
                Some("join_room"),
                &HandlerError::room_full("ö", 3).into(),
                Some(4),
            ),
            answer(
                "error",
                json!({"code": "ROOM_FULL", "number": -32013,
                "message": "The room \"ö\" is full: it has 3 members.", "retry": "later",
                "type": "join_room", "roomId": "ö", "retryAfterMs": 1000, "suppressed": 4}),
            ),
        ),
        (
            server::error(None, None, &EnvelopeError::not_utf8().error, None),
            message(
                "error",
                json!({"code": "INVALID_JSON", "number": -32700,
                "message": "A message must be one JSON object in UTF-8.", "retry": "never"}),
            ),
        ),
        (
            server::replay_gap(None, Some("a"), 1, 2),
            json!({"type": "replay_gap", "roomId": "a", "fromSeq": 1, "currentSeq": 2}),
        ),
    ]
}

#[test]
fn every_message_has_the_form_of_the_contract() {
    for (text, expected) in messages() {
        assert_eq!(serde_json::from_str::<Value>(&text).expect(&text), expected);
    }
}

#[test]
fn every_message_is_read_by_a_client() {
    for (text, expected) in messages() {
        let frame = ServerFrame::parse(&text).expect(&text);
        assert_eq!(frame.message.kind(), expected["type"]);
        assert!(!matches!(frame.message, ServerMessage::Other { .. }), "{text}");
        let id = frame.id.map(|id| serde_json::to_value(id).unwrap()).unwrap_or_default();
        assert_eq!(id, expected["id"]);
    }
    for text in member_pages(3, 65_536) {
        assert!(matches!(
            ServerFrame::parse(&text).unwrap().message,
            ServerMessage::MemberLeft(named) if named.members.len() == 3
        ));
    }
}

#[test]
fn unknown_messages_and_fields_are_no_error() {
    let frame = ServerFrame::parse(r#"{"type":"weather","id":4,"payload":[1]}"#).unwrap();
    assert_eq!(frame.message, ServerMessage::Other { kind: "weather".into() });
    let text = r#"{"type":"room_left","new":1,"payload":{"roomId":"a","new":{}}}"#;
    assert_eq!(ServerFrame::parse(text).unwrap().message.kind(), "room_left");
    for text in ["", "[]", "{}", r#"{"type":5}"#, r#"{"type":"ack","payload":{"rooms":7}}"#] {
        assert!(ServerFrame::parse(text).is_err(), "{text}");
    }
}

#[test]
fn refusals_say_what_to_do() {
    let text =
        server::error(Some(&1.into()), Some("history"), &Refusal::ServerDraining.into(), None);
    let ServerMessage::Error(error) = ServerFrame::parse(&text).unwrap().message else {
        panic!("{text}")
    };
    assert_eq!((error.code.as_str(), error.retry.as_str()), ("SERVER_DRAINING", "elsewhere"));
    assert_eq!(error.retry_after_ms, None);
}

fn member_pages(count: usize, limit: usize) -> Vec<String> {
    let members: Vec<ClientId> = (0..count).map(|n| client(&format!("client-{n}"))).collect();
    server::member_left(&room("a"), &members, "disconnected", limit)
}

#[test]
fn presence_is_paged_and_names_a_single_member() {
    let pages = member_pages(1, 4096);
    let value: Value = serde_json::from_str(&pages[0]).unwrap();
    assert_eq!(value["payload"]["clientId"], "client-0");
    assert_eq!(value["payload"]["reason"], "disconnected");
    assert!(member_pages(0, 4096).is_empty());

    let pages = member_pages(1000, 1024);
    let mut seen = Vec::new();
    for page in &pages {
        assert!(page.len() <= 1024);
        let value: Value = serde_json::from_str(page).unwrap();
        assert_eq!(value["payload"].get("clientId"), None);
        seen.extend(value["payload"]["members"].as_array().unwrap().clone());
    }
    let expected: Vec<Value> = (0..1000).map(|n| format!("client-{n}").into()).collect();
    assert_eq!(seen, expected);
    assert!(!server::member_joined(&room("a"), &[client("b")], 4096)[0].contains("reason"));
}

#[test]
fn the_longest_backfill_result_keeps_the_frame() {
    let rejected: Vec<Rejected> =
        (0..2000).map(|index| Rejected { index, reason: "\"x\"".repeat(40) }).collect();
    let text = server::backfill_result(None, 0, 0, &rejected, 2000, None, 65_536);
    assert!(text.len() <= 65_536 && text.len() > 60_000);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["payload"]["rejectedTotal"], 2000);
    let short: Vec<Rejected> =
        (0..2000).map(|index| Rejected { index, reason: String::new() }).collect();
    let text = server::backfill_result(None, 0, 0, &short, 2000, None, 65_536);
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["payload"]["rejected"].as_array().unwrap().len(), MAX_REJECTED);
}

#[test]
fn an_item_that_fits_no_page_is_told_apart() {
    let mut page = PageBuilder::snapshot(&room("a"), 1024);
    assert_eq!(page.push_item(&item(1, 2000)), Push::TooLarge);
    assert_eq!(page.push_item(&item(1, 10)), Push::Taken);
    assert_eq!(page.push_item(&item(2, 2000)), Push::Full);
    assert_eq!(page.push_member(&client("x")), Push::Full, "members come before positions");
}

#[test]
fn empty_pages() {
    for (text, expected) in [
        (
            PageBuilder::room_joined(None, &room("a"), Mode::Both, "e", 1, true, 5, 999)
                .finish_more(false),
            json!({"type": "room_joined", "payload": {"roomId": "a", "mode": "both", "epoch": "e",
                "seq": 1, "recovered": true, "memberCount": 5, "members": [], "positions": [],
                "more": false}}),
        ),
        (
            PageBuilder::positions(Some(&3.into()), &room("a"), "e", 1, 999).finish_more(true),
            json!({"type": "positions", "id": 3, "payload": {"roomId": "a", "epoch": "e", "seq": 1,
                "positions": [], "more": true}}),
        ),
        (
            PageBuilder::history(None, 999).finish_cursor(None),
            json!({"type": "history", "payload": {"positions": []}}),
        ),
        (
            PageBuilder::history(None, 999).finish_cursor(Some("n")),
            json!({"type": "history", "payload": {"positions": [], "cursor": "n"}}),
        ),
    ] {
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }
}

proptest! {
    #[test]
    fn pages_keep_the_limit_and_lose_nothing(
        limit in 700usize..3000,
        members in prop::collection::vec("[a-z\"\\\\é🚌]{1,40}", 0..40),
        pads in prop::collection::vec(0usize..300, 0..40),
    ) {
        let target = room("the \"room\"");
        let members: Vec<ClientId> = members.iter().map(|name| client(name)).collect();
        let items: Vec<String> = pads.iter().enumerate().map(|(n, pad)| item(n as u64, *pad)).collect();
        let mut page =
            PageBuilder::room_joined(Some(&"id".into()), &target, Mode::Both, "epoch", 7, false, 2, limit);
        let mut pages = Vec::new();
        for member in &members {
            while page.push_member(member) != Push::Taken {
                prop_assert!(page.items() > 0, "a small item fits an empty page");
                pages.push(std::mem::replace(&mut page, PageBuilder::snapshot(&target, limit)).finish_more(true));
            }
        }
        for item in &items {
            while page.push_item(item) != Push::Taken {
                prop_assert!(page.items() > 0, "a small item fits an empty page");
                pages.push(std::mem::replace(&mut page, PageBuilder::snapshot(&target, limit)).finish_more(true));
            }
        }
        pages.push(page.finish_more(false));

        let (mut members_seen, mut items_seen) = (Vec::new(), Vec::new());
        for (at, text) in pages.iter().enumerate() {
            prop_assert!(text.len() <= limit, "{} > {limit}", text.len());
            let value: Value = serde_json::from_str(text).unwrap();
            prop_assert_eq!(&value["payload"]["more"], at + 1 < pages.len());
            members_seen.extend(value["payload"]["members"].as_array().unwrap().clone());
            items_seen.extend(value["payload"]["positions"].as_array().unwrap().clone());
            prop_assert!(ServerFrame::parse(text).is_ok());
        }
        let members: Vec<Value> = members.iter().map(|member| member.as_str().into()).collect();
        let items: Vec<Value> =
            items.iter().map(|item| serde_json::from_str(&format!("{{{item}}}")).unwrap()).collect();
        prop_assert_eq!(members_seen, members);
        prop_assert_eq!(items_seen, items);
    }

    #[test]
    fn history_pages_keep_the_limit_with_the_longest_cursor(
        limit in 800usize..2000,
        pads in prop::collection::vec(0usize..200, 1..20),
    ) {
        let cursor = "c".repeat(256);
        let mut page = PageBuilder::history(Some(&i64::MIN.into()), limit);
        let taken = pads.iter().take_while(|pad| page.push_item(&item(1, **pad)) == Push::Taken).count();
        prop_assert_eq!(page.items(), taken);
        let text = page.finish_cursor(Some(&cursor));
        prop_assert!(text.len() <= limit);
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(value["payload"]["positions"].as_array().unwrap().len(), taken);
    }

    #[test]
    fn any_text_is_decoded_or_refused(text in any::<String>()) {
        let _ = ServerFrame::parse(&text);
    }
}
