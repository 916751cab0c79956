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

/// A client in room `r`, at `seq` 1, whose server of generation "1" has said its end and
/// whose next session, of "1" as well, has taken the room.
async fn landed_on_the_old(builder: Builder) -> (Client, Events, Servers, Session) {
    let (client, mut events, mut servers, mut old) = in_room(builder).await;
    old.notice_of(0.5, "1").await;
    let mut same = servers.welcome_of("1").await;
    same.join("r", "e", 1, true).await;
    assert!(old.next().await.is_none());
    same.event("r", 2).await;
    assert_eq!(seqs(&mut events, 1).await, [2]);
    until_phase(&client, Phase::Connected).await;
    (client, events, servers, same)
}

#[tokio::test(start_paused = true)]
async fn whoever_lands_on_the_leaving_generation_tries_again_and_moves_once_more() {
    let (client, mut events, mut servers, mut same) = landed_on_the_old(builder()).await;
    let start = Instant::now();
    // No better; let go without a join.
    let mut again = servers.welcome_of("1").await;
    assert!(again.at - start <= secs(1), "with jitter of a second");
    assert!(again.next().await.is_none());
    same.event("r", 3).await;
    assert_eq!(seqs(&mut events, 1).await, [3]);
    let mut new = servers.welcome_of("2").await;
    let join = new.expect("join_room").await;
    assert_eq!(join["payload"]["since"]["seq"], 3);
    // Make before break, as ever.
    same.event("r", 4).await;
    assert_eq!(seqs(&mut events, 1).await, [4]);
    let payload = json!({"roomId": "r", "epoch": "e", "seq": 4, "recovered": true});
    new.answer(&join, "room_joined", payload).await;
    for seq in [4, 5] {
        new.event("r", seq).await;
    }
    assert!(same.next().await.is_none());
    assert_eq!(seqs(&mut events, 1).await, [5]);
    assert!(servers.quiet_for(secs(30)).await);
    assert_eq!(client.state().borrow().session.as_deref(), Some("s4"));
}

#[tokio::test(start_paused = true)]
async fn after_two_more_tries_it_stays() {
    let (client, mut events, mut servers, mut same) = landed_on_the_old(builder()).await;
    for _ in 0..2 {
        assert!(servers.welcome_of("1").await.next().await.is_none());
    }
    assert!(servers.quiet_for(secs(30)).await);
    same.event("r", 3).await;
    assert_eq!(seqs(&mut events, 1).await, [3]);
    assert_eq!(client.state().borrow().session.as_deref(), Some("s2"));
}

#[tokio::test(start_paused = true)]
async fn tries_that_fail_cost_the_session_nothing() {
    let (client, mut events, mut servers, mut same) = landed_on_the_old(builder()).await;
    servers.refuse.lock().push_back(io::ErrorKind::ConnectionRefused);
    let mut refused = servers.accept().await;
    refused.close(4001, "Token has expired").await;
    assert!(servers.quiet_for(secs(30)).await);
    same.event("r", 3).await;
    assert_eq!(seqs(&mut events, 1).await, [3]);
    assert_eq!(client.state().borrow().phase, Phase::Connected);
    // Its own end comes: it moves on as ever.
    same.notice(1.0).await;
    let mut new = servers.welcome_of("1").await;
    new.join("r", "e", 3, true).await;
    // The pings of an idle client, then the end.
    while same.next().await.is_some() {}
    assert!(servers.quiet_for(secs(15)).await, "nobody has said that there is better");
}

#[tokio::test(start_paused = true)]
async fn endpoints_of_the_leaving_generation_are_passed_over() {
    let (net, mut servers) = net();
    let builder = two().endpoint("ws://three:3/ws");
    let (client, one) = tokio::join!(builder.connect_with(net), servers.welcome_of("1"));
    let _client = client.unwrap();
    drop(one);
    let two = servers.welcome_of("2").await;
    assert_eq!(two.port, 2);
    drop(two);
    let mut three = servers.welcome_of("1").await;
    assert_eq!(three.port, 3);
    three.notice_of(1.0, "1").await;
    let new = servers.welcome_of("2").await;
    assert_eq!(new.port, 2, "not the next, which is of the same");
    assert!(servers.quiet_for(secs(15)).await);
}
