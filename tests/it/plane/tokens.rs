//! What a held request may do is decided when it is handled.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use super::pipe::Pipe;
use super::{fix, ids, outcomes, pause, resume, wanted};
use crate::harness::Server;
use crate::harness::client::Seen;

const SECRET: &str = "a secret of the tests, long enough for HS256";

/// A server that wants tokens, to the second.
pub(crate) fn server() -> Server {
    Server::builder()
        .set("auth.mode", "jwt")
        .set("auth.secret", SECRET)
        .set("auth.leeway", "0s")
        .start()
}

/// A token of `bus` that is good for `seconds`, with more claims.
pub(crate) fn token(seconds: i64, more: &Value) -> String {
    let mut claims = json!({ "sub": "bus", "exp": jiff::Timestamp::now().as_second() + seconds });
    for (name, value) in more.as_object().unwrap() {
        claims[name] = value.clone();
    }
    let key = EncodingKey::from_secret(SECRET.as_bytes()).unwrap();
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).unwrap()
}

#[test]
fn a_token_refreshed_in_the_pause_decides_for_what_is_held() {
    let server = server();
    let narrow = json!({ "subscribe": ["*"], "publish": ["a"] });
    let wide = json!({ "subscribe": ["*"], "publish": ["a", "b"], "vehicles": ["*"] });
    let mut client = Pipe::with_token(&server, &token(3600, &wide));
    client.join("a");
    client.join("b");
    pause(&server);
    let publish = |client: &mut Pipe, id: u64, vehicle: &str| {
        let mut payload = fix(id);
        payload["roomId"] = json!("a");
        payload["vehicleId"] = json!(vehicle);
        client.ask("location_update", id, payload);
    };
    publish(&mut client, 1, "tram");
    client.ask("join_room", 2, json!({ "roomId": "c", "mode": "publish" }));
    publish(&mut client, 3, "bus");
    client.ask("token_refresh", 4, json!({ "token": token(3600, &narrow) }));
    let meanwhile = client.until_pong();
    // It passes the pause; the room that is not allowed any more is left at once.
    assert_eq!(outcomes(&meanwhile), wanted(&[(4, "token_refresh_ok")]));
    let left: Vec<_> = meanwhile.iter().filter(|message| message["type"] == "room_left").collect();
    assert_eq!(left.len(), 1, "{meanwhile:?}");
    assert_eq!(left[0]["payload"], json!({ "roomId": "b", "reason": "forbidden" }));
    resume(&server);
    let answers = client.take(3);
    assert_eq!(outcomes(&answers), wanted(&[(1, "FORBIDDEN"), (2, "FORBIDDEN"), (3, "ack")]));
}

#[test]
fn a_token_that_ends_in_the_pause_forbids_what_is_held() {
    let server = server();
    let mut client = Pipe::with_token(&server, &token(3, &json!({})));
    client.join("r");
    client.ask("backfill_begin", 1, json!({ "roomId": "r" })).until_pong();
    pause(&server);
    client.ask("positions", 2, json!({ "roomId": "r" }));
    client.queue(&json!({ "type": "location_update", "payload": fix(1) }));
    client.queue(&json!({ "type": "backfill_chunk", "id": 1, "payload": { "positions": [] } }));
    client.queue(&json!({ "type": "backfill_end", "id": 1 }));
    client.ask("backfill_begin", 3, json!({ "roomId": "r" }));
    client.queue(&json!({ "type": "backfill_chunk", "id": 3, "payload": { "positions": [] } }));
    client.ask("join_room", 4, json!({ "roomId": "s" }));
    client.write();
    let (messages, end) = client.see_to_end();
    assert_eq!(end, Seen::Close(4001, "Token has expired".to_owned()));
    let answers: Vec<_> = messages.into_iter().filter(|m| !m["id"].is_null()).collect();
    assert_eq!(ids(&answers), [2, 1, 3, 4], "each once, in order");
    assert!(answers.iter().all(|answer| answer["payload"]["code"] == "FORBIDDEN"), "{answers:?}");
    super::status_where(&server, |status| status["held"]["bytes"] == 0);
}
