//! From one server to the next: make before break.

use super::*;
use crate::client::{Error, Fix};
use crate::protocol::Mode;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn in_room(builder: Builder) -> (Client, Events, Servers, Session) {
    let (client, mut events, servers, mut session) = connected(builder).await;
    let (joined, _) = tokio::join!(client.join("r", Mode::Both), session.join("r", "e", 0, false));
    joined.unwrap();
    session.event("r", 1).await;
    assert_eq!(seqs(&mut events, 1).await, [1]);
    (client, events, servers, session)
}

fn two() -> Builder {
    builder().endpoint("ws://two:2/ws")
}

#[tokio::test(start_paused = true)]
async fn connects_elsewhere_at_its_slot_and_drops_the_old_socket_last() {
    let (client, mut events, mut servers, mut old) = in_room(two()).await;
    let start = Instant::now();
    old.notice(2.5).await;
    until_phase(&client, Phase::Draining).await;
    old.event("r", 2).await;
    let mut new = servers.welcome().await;
    assert_eq!(new.at - start, Duration::from_millis(2500));
    assert_eq!((old.port, new.port), (1, 2));
    let join = new.expect("join_room").await;
    assert_eq!(join["payload"]["since"], json!({"epoch": "e", "seq": 2}));
    // The old session goes on until the new one has the room, and so do its events.
    old.event("r", 3).await;
    assert_eq!(seqs(&mut events, 2).await, [2, 3]);
    assert!(old.silent_for(secs(1)).await, "not let go yet");
    let payload = json!({"roomId": "r", "epoch": "e", "seq": 4, "recovered": true});
    new.answer(&join, "room_joined", payload).await;
    for seq in [3, 4] {
        new.event("r", seq).await;
    }
    assert_eq!(seqs(&mut events, 1).await, [4]);
    assert!(old.next().await.is_none(), "a close from the client, then the end");
    until_phase(&client, Phase::Connected).await;
    assert!(!client.state().borrow().stale);
}

#[tokio::test(start_paused = true)]
async fn with_one_endpoint_it_comes_back_to_the_same_at_its_time() {
    let (client, mut events, mut servers, mut old) = in_room(builder()).await;
    let start = Instant::now();
    old.notice(4.0).await;
    old.event("r", 2).await;
    old.close(1001, "server shutting down").await;
    until_phase(&client, Phase::Reconnecting).await;
    assert!(client.state().borrow().stale);
    let mut new = servers.welcome().await;
    assert_eq!((new.at - start, new.port), (secs(4), 1));
    let join = new.join("r", "e", 3, true).await;
    assert_eq!(join["payload"]["since"]["seq"], 2);
    new.event("r", 3).await;
    assert_eq!(seqs(&mut events, 2).await, [2, 3]);
}

#[tokio::test(start_paused = true)]
async fn new_requests_wait_for_the_new_session_and_old_ones_for_their_answer() {
    let (client, _events, mut servers, mut old) = in_room(two()).await;
    let fix = Fix::new(1.0, 2.0);
    let before = client.publish(["r"], &fix);
    let server = async {
        let first = old.expect("location_update").await;
        old.notice(1.0).await;
        until_phase(&client, Phase::Draining).await;
        let after = client.publish(["r"], &fix);
        let rest = async {
            let mut new = servers.welcome().await;
            new.join("r", "e", 5, true).await;
            let second = new.expect("location_update").await;
            new.ack(&second, "r", 6).await;
            assert!(old.silent_for(secs(2)).await, "kept for the answer that is due");
            old.ack(&first, "r", 2).await;
            assert!(old.next().await.is_none());
        };
        tokio::join!(after, rest).0
    };
    let (before, after) = tokio::join!(before, server);
    assert_eq!(before.unwrap().rooms["r"], 2);
    assert_eq!(after.unwrap().rooms["r"], 6);
}

#[tokio::test(start_paused = true)]
async fn notifications_are_taken_by_a_draining_server() {
    let (client, _events, _servers, mut old) = in_room(two()).await;
    old.notice(60.0).await;
    until_phase(&client, Phase::Draining).await;
    let fix = Fix::new(1.0, 2.0);
    client.notify(["r"], &fix).await.unwrap();
    old.expect("location_update").await;
}

#[tokio::test(start_paused = true)]
async fn our_1001_means_never_started_and_another_one_unknown() {
    for (reason, safe) in [("server shutting down", true), ("Going Away", false)] {
        let (client, _events, _servers, mut session) = connected(builder()).await;
        let fix = Fix::new(1.0, 2.0);
        let (result, ()) = tokio::join!(client.publish(["r"], &fix), async {
            session.expect("location_update").await;
            session.close(1001, reason).await;
        });
        match result {
            Err(Error::Draining) => assert!(safe),
            Err(Error::UnknownOutcome) => assert!(!safe),
            other => panic!("{reason}: {other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_join_refused_by_a_draining_server_is_joined_on_the_next() {
    let (client, _events, mut servers, mut old) = connected(two()).await;
    let (joined, ()) = tokio::join!(client.join("r", Mode::Both), async {
        let join = old.expect("join_room").await;
        old.refuse(&join, "SERVER_DRAINING", "elsewhere").await;
        servers.welcome().await.join("r", "e", 7, false).await;
    });
    assert_eq!(joined.unwrap().seq, 7);
}

#[tokio::test(start_paused = true)]
async fn a_room_that_is_full_for_now_is_tried_again() {
    let (client, mut events, mut servers, old) = in_room(builder()).await;
    drop(old);
    let mut new = servers.welcome().await;
    let join = new.expect("join_room").await;
    new.refuse(&join, "ROOM_FULL", "later").await;
    let refused = Instant::now();
    new.join("r", "e", 1, true).await;
    let waited = refused.elapsed();
    assert!((Duration::from_millis(500)..=Duration::from_millis(1500)).contains(&waited));
    loop {
        if let Event::JoinFailed { retrying, .. } = events.next().await.unwrap() {
            assert!(retrying);
            break;
        }
    }
    client.state().wait_for(|state| !state.stale).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_move_is_tried_again_while_the_old_session_serves() {
    let (client, mut events, mut servers, mut old) = in_room(two()).await;
    old.notice(1.0).await;
    until_phase(&client, Phase::Draining).await;
    servers.refuse.lock().push_back(io::ErrorKind::ConnectionRefused);
    let mut new = servers.welcome().await;
    new.join("r", "e", 1, true).await;
    new.event("r", 2).await;
    assert_eq!(seqs(&mut events, 1).await, [2]);
    assert!(old.next().await.is_none());
}
