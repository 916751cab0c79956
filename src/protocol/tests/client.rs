//! The payloads of client messages other than positions.

use proptest::prelude::*;

use super::{now, rules};
use crate::protocol::client::{JoinRoom, MAX_CHUNK, Mode, Reconnect, Since};
use crate::protocol::{Envelope, ErrorCode, HandlerError, Kind};
use crate::time::UnixMillis;

fn envelope(text: &str) -> Envelope<'_> {
    Envelope::parse(text).expect(text)
}

fn join(rest: &str) -> Result<JoinRoom, HandlerError> {
    envelope(&format!(r#"{{"type":"join_room",{rest}}}"#)).join_room()
}

fn field_of<T: std::fmt::Debug>(result: Result<T, HandlerError>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ValidationError);
    error.wire().field().unwrap().to_owned()
}

#[test]
fn joins() {
    let joined = join(r#""payload":{"roomId":"a"}"#).unwrap();
    assert_eq!(
        (joined.room.as_str(), joined.mode, joined.since, joined.flat),
        ("a", Mode::Both, None, false)
    );
    let joined =
        join(r#""payload":{"roomId":"a","mode":"subscribe","since":{"epoch":"e","seq":7,"x":1}}"#)
            .unwrap();
    assert_eq!(joined.mode, Mode::Subscribe);
    assert_eq!(joined.since, Some(Since { epoch: "e".into(), seq: 7 }));
    let joined = join(r#""payload":{"mode":"publish","since":null},"roomId":"top""#).unwrap();
    assert_eq!((joined.room.as_str(), joined.mode, joined.flat), ("top", Mode::Publish, false));
    assert!(join(r#""roomId":"top""#).unwrap().flat);
    let longest = "ä".repeat(128);
    assert_eq!(join(&format!(r#""roomId":"{longest}""#)).unwrap().room.as_str(), longest);
}

#[test]
fn joins_that_are_refused() {
    let long_epoch =
        format!(r#""payload":{{"roomId":"a","since":{{"epoch":"{}","seq":1}}}}"#, "e".repeat(65));
    let long_room = format!(r#""roomId":"{}""#, "a".repeat(129));
    for (rest, field) in [
        (r#""x":1"#, "roomId"),
        (r#""payload":{}"#, "roomId"),
        (r#""payload":[]"#, "payload"),
        (r#""payload":"a""#, "payload"),
        (r#""roomId":"""#, "roomId"),
        (r#""roomId":5"#, "roomId"),
        (r#""roomId":["a"]"#, "roomId"),
        (r#""roomId":"a\u0007""#, "roomId"),
        (r#""roomId":"\ud83d""#, "roomId"),
        (&long_room, "roomId"),
        (r#""payload":{"roomId":"a","roomId":"a"}"#, "roomId"),
        (r#""payload":{"roomId":"a","mode":"Both"}"#, "mode"),
        (r#""payload":{"roomId":"a","mode":1}"#, "mode"),
        (r#""payload":{"roomId":"a","since":5}"#, "since"),
        (r#""payload":{"roomId":"a","since":{}}"#, "since.epoch"),
        (r#""payload":{"roomId":"a","since":{"epoch":"e"}}"#, "since.seq"),
        (r#""payload":{"roomId":"a","since":{"epoch":"e","seq":-1}}"#, "since.seq"),
        (r#""payload":{"roomId":"a","since":{"epoch":"e","seq":"1"}}"#, "since.seq"),
        (r#""payload":{"roomId":"a","since":{"epoch":"e","seq":1,"seq":1}}"#, "since.seq"),
        (&long_epoch, "since.epoch"),
    ] {
        assert_eq!(field_of(join(rest)), field, "{rest}");
    }
}

#[test]
fn leaves_and_queries_take_the_room_in_both_places() {
    for text in [
        r#"{"type":"leave_room","roomId":"a"}"#,
        r#"{"type":"leave_room","payload":{"roomId":"a"}}"#,
    ] {
        assert_eq!(envelope(text).leave_room().unwrap().as_str(), "a");
        assert_eq!(envelope(text).positions().unwrap().as_str(), "a");
    }
    assert_eq!(field_of(envelope(r#"{"type":"positions"}"#).positions()), "roomId");
}

#[test]
fn history_queries() {
    let query = |members: &str| {
        envelope(&format!(r#"{{"type":"history","payload":{{"roomId":"a"{members}}}}}"#)).history()
    };
    let plain = query("").unwrap();
    assert_eq!((plain.limit, plain.from, plain.cursor), (500, None, None));
    let full = query(
        r#","vehicleId":"v","from":0,"to":"1970-01-01T00:00:01Z","limit":10000,"cursor":"c""#,
    )
    .unwrap();
    assert_eq!(full.vehicle.unwrap().as_str(), "v");
    assert_eq!((full.from, full.to), (UnixMillis::new(0), UnixMillis::new(1000)));
    assert_eq!((full.limit, full.cursor.as_deref()), (10_000, Some("c")));
    let long_cursor = format!(r#","cursor":"{}""#, "c".repeat(257));
    for (members, field) in [
        (r#","limit":0"#, "limit"),
        (r#","limit":10001"#, "limit"),
        (r#","limit":"5""#, "limit"),
        (r#","from":"now""#, "from"),
        (r#","to":{}"#, "to"),
        (r#","cursor":5"#, "cursor"),
        (&long_cursor, "cursor"),
        (r#","vehicleId":"""#, "vehicleId"),
    ] {
        assert_eq!(field_of(query(members)), field, "{members}");
    }
}

#[test]
fn tokens_in_both_places() {
    for text in [
        r#"{"type":"token_refresh","token":"t"}"#,
        r#"{"type":"token_refresh","payload":{"token":"t"}}"#,
    ] {
        assert_eq!(envelope(text).token_refresh().unwrap(), "t");
    }
    for text in [
        r#"{"type":"token_refresh"}"#,
        r#"{"type":"token_refresh","token":""}"#,
        r#"{"type":"token_refresh","payload":{"token":5}}"#,
    ] {
        let result = envelope(text).token_refresh();
        assert_eq!(field_of(result), "token");
    }
}

#[test]
fn uploads() {
    let begin = envelope(r#"{"type":"backfill_begin","id":1,"payload":{"vehicleId":"v"}}"#)
        .backfill_begin()
        .unwrap();
    assert_eq!((begin.room, begin.vehicle.unwrap().as_str()), (None, "v"));

    let text = r#"{"type":"backfill_chunk","id":1,"payload":{"positions":[
        {"latitude":1,"longitude":2,"key":"k","vehicleId":"v"}, {"latitude":91,"longitude":2}, 7,
        {"latitude":3,"longitude":4}]}}"#;
    let items = envelope(text).backfill_chunk(&rules(), now()).unwrap();
    assert_eq!(items.len(), 4);
    let first = items[0].as_ref().unwrap();
    assert_eq!(first.key.as_ref().unwrap().as_str(), "k");
    assert_eq!(first.vehicle.as_ref().unwrap().as_str(), "v");
    let field = |at: usize| items[at].as_ref().unwrap_err().wire().field().unwrap();
    assert_eq!((field(1), field(2)), ("positions[1].latitude", "positions[2]"));
    assert_eq!(items[3].as_ref().unwrap().position.latitude, 3.0);
}

#[test]
fn chunks_are_bounded() {
    let chunk = |count: usize| {
        let text = format!(
            r#"{{"type":"backfill_chunk","payload":{{"positions":[{}]}}}}"#,
            vec!["{}"; count].join(",")
        );
        envelope(&text).backfill_chunk(&rules(), now()).map(|items| items.len())
    };
    assert_eq!(chunk(0).unwrap(), 0);
    assert_eq!(chunk(MAX_CHUNK).unwrap(), MAX_CHUNK);
    assert_eq!(field_of(chunk(MAX_CHUNK + 1)), "positions");
    for payload in ["{}", r#"{"positions":{}}"#, r#"{"positions":null}"#] {
        let text = format!(r#"{{"type":"backfill_chunk","payload":{payload}}}"#);
        let result = envelope(&text).backfill_chunk(&rules(), now());
        assert_eq!(field_of(result), "positions");
    }
    let big = format!(
        r#"{{"type":"backfill_chunk","payload":{{"positions":[{{"x":"{}"}}]}}}}"#,
        "x".repeat(600)
    );
    let items = envelope(&big).backfill_chunk(&rules(), now()).unwrap();
    let error = items[0].as_ref().unwrap_err();
    assert_eq!(error.code(), ErrorCode::MessageTooLarge);
    assert_eq!(error.wire().field(), Some("positions[0]"));
}

#[test]
fn old_reconnects() {
    for (rest, room_id, from_seq) in [
        (r#""roomId":"a","fromSeq":7"#, Some("a"), 7),
        (r#""roomId":"","fromSeq":"x""#, None, 0),
        (r#""x":1"#, None, 0),
        (r#""fromSeq":-1"#, None, 0),
    ] {
        let text = format!(r#"{{"type":"reconnect",{rest}}}"#);
        let expected = Reconnect { room_id: room_id.map(ToOwned::to_owned), from_seq };
        assert_eq!(envelope(&text).reconnect(), expected, "{rest}");
    }
}

proptest! {
    #[test]
    fn no_payload_breaks_a_decoder(
        payload in r#"(\{("(roomId|since|mode|limit|positions|token|from|key)":[\[\]{}",:a0-9.e\\u-]{0,12},?){0,4}\}|.{0,20})"#,
    ) {
        for kind in Kind::ALL {
            let text = format!(r#"{{"type":"{}","id":1,"payload":{payload}}}"#, kind.name());
            let Ok(envelope) = Envelope::parse(&text) else { continue };
            let _ = envelope.room_hint();
            let _ = envelope.join_room();
            let _ = envelope.leave_room();
            let _ = envelope.history();
            let _ = envelope.token_refresh();
            let _ = envelope.backfill_begin();
            let _ = envelope.backfill_chunk(&rules(), now());
            let _ = envelope.location_update(&rules(), now());
            let _ = envelope.reconnect();
        }
    }

    #[test]
    fn any_bytes_of_utf8_are_taken_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Envelope::parse(&String::from_utf8_lossy(&bytes));
    }
}
