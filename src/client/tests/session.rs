//! One session: identity, requests, heartbeats, the end.

use super::*;
use crate::client::{BackoffTimes, Error, Fix, GapCause};
use crate::protocol::{ErrorCode, Mode};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test(start_paused = true)]
async fn identity_goes_where_it_belongs() {
    let (_client, _events, _servers, session) =
        connected(builder().token("t.t.t").client_id("bus 7")).await;
    assert_eq!(session.authorization.as_deref(), Some("Bearer t.t.t"));
    assert_eq!(session.uri, "/ws?clientId=bus%207");
}

#[tokio::test(start_paused = true)]
async fn publishes_in_three_ways() {
    let (client, _events, _servers, mut session) = connected(builder()).await;
    let fix = Fix { speed: Some(1.5), ..Fix::new(60.0, 25.0) };
    let ((joined, acked, keyed, notified), ()) = tokio::join!(
        async {
            (
                client.join("r", Mode::Both).await,
                client.publish(["r"], &fix).await,
                client.publish_keyed(["r", "q"], "k1", &fix).await,
                client.notify(["r"], &fix).await,
            )
        },
        async {
            session.join("r", "e", 5, false).await;
            let plain = session.expect("location_update").await;
            assert_eq!(
                plain["payload"],
                json!({"roomId": "r", "latitude": 60.0, "longitude": 25.0, "speed": 1.5})
            );
            session.ack(&plain, "r", 6).await;
            let keyed = session.expect("location_update").await;
            assert_eq!(keyed["payload"]["key"], "k1");
            assert_eq!(keyed["payload"]["roomId"], json!(["r", "q"]));
            let payload = json!({"rooms": {"r": 6, "q": 7}, "duplicate": true, "late": ["q"]});
            session.answer(&keyed, "ack", payload).await;
            let note = session.expect("location_update").await;
            assert!(note.get("id").is_none());
        }
    );
    assert_eq!(joined.unwrap().seq, 5);
    assert_eq!(acked.unwrap().rooms["r"], 6);
    let keyed = keyed.unwrap();
    assert!(keyed.duplicate);
    assert_eq!(keyed.late, ["q"]);
    notified.unwrap();
}

#[tokio::test(start_paused = true)]
async fn refusals_are_typed() {
    let (client, _events, _servers, mut session) = connected(builder()).await;
    let fix = Fix::new(0.0, 0.0);
    for (code, retry) in
        [("VALIDATION_ERROR", "never"), ("SERVER_BUSY", "later"), ("SERVER_DRAINING", "elsewhere")]
    {
        let (result, ()) = tokio::join!(client.publish(["r"], &fix), async {
            let request = session.expect("location_update").await;
            session.refuse(&request, code, retry).await;
        });
        match (code, result.unwrap_err()) {
            ("VALIDATION_ERROR", Error::Refused(refused)) => {
                assert!(refused.is(ErrorCode::ValidationError));
            }
            ("SERVER_BUSY", Error::Busy { retry_after }) => {
                assert_eq!(retry_after, Duration::from_millis(500));
            }
            ("SERVER_DRAINING", Error::Draining) => {}
            (_, other) => panic!("{code}: {other}"),
        }
    }
    assert!(matches!(client.publish(Vec::<&str>::new(), &fix).await, Err(Error::Invalid(_))));
    assert!(matches!(client.join("", Mode::Both).await, Err(Error::Invalid(_))));
    assert!(session.silent_for(secs(1)).await);
}

#[tokio::test(start_paused = true)]
async fn connect_fails_when_every_endpoint_did() {
    let (net, mut servers) = net();
    servers.refuse.lock().extend([io::ErrorKind::ConnectionRefused; 2]);
    let client = builder().endpoint("ws://two:2").connect_with(net).await;
    assert!(matches!(client, Err(Error::Connect { .. })));
    assert!(servers.accepted.recv().await.is_none(), "the task is gone");
}

#[tokio::test(start_paused = true)]
async fn a_bad_token_is_final_unless_there_can_be_another() {
    let (net, mut servers) = net();
    let (client, ()) = tokio::join!(builder().token("bad").connect_with(net), async {
        servers.accept().await.close(4001, "Invalid token").await;
    });
    match client {
        Err(Error::Unauthorized { reason }) => assert_eq!(&*reason, "Invalid token"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_never_shown_again() {
    let tokens = Arc::new(Mutex::new(VecDeque::from(["old", "old", "old", "new"])));
    let provider = move || {
        let token = tokens.lock().pop_front();
        async move { token.map(str::to_owned).ok_or("none left") }
    };
    let (client, _events, mut servers, mut session) =
        connected(builder().token_with(provider)).await;
    session.close(4001, "Token has expired").await;
    until_phase(&client, Phase::Unauthorized).await;
    let session = servers.welcome().await;
    assert_eq!(session.authorization.as_deref(), Some("Bearer new"));
    until_phase(&client, Phase::Connected).await;
}

#[tokio::test(start_paused = true)]
async fn a_token_about_to_expire_is_refreshed() {
    let count = std::sync::atomic::AtomicU32::new(0);
    let provider = move || {
        let count = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move { Ok::<_, &str>(format!("t{count}")) }
    };
    let (_client, mut events, _servers, mut session) =
        connected(builder().token_with(provider)).await;
    let expiring = json!({"expiresAt": "2026-01-01T00:00:30.000Z", "inMs": 30_000});
    session.say(json!({"type": "token_expiring", "payload": expiring})).await;
    let refresh = session.expect("token_refresh").await;
    assert_eq!(refresh["payload"]["token"], "t1");
    session.refuse(&refresh, "AUTH_FAILED", "never").await;
    loop {
        if let Event::TokenRefused(why) = events.next().await.unwrap() {
            assert_eq!(&*why, "AUTH_FAILED: no");
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_pinged_told_stale_and_given_up() {
    let (client, _events, mut servers, mut session) = connected(builder()).await;
    let start = Instant::now();
    session.expect("ping").await;
    assert_eq!(start.elapsed().as_secs(), 20);
    assert!(!client.state().borrow().stale);
    client.state().wait_for(|state| state.stale).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 40);
    assert_eq!(client.state().borrow().phase, Phase::Connected);
    until_phase(&client, Phase::Reconnecting).await;
    assert_eq!(start.elapsed().as_secs(), 50);
    let _session = servers.welcome().await;
    until_phase(&client, Phase::Connected).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_stays() {
    let (client, _events, mut servers, mut session) = connected(builder()).await;
    for _ in 0..10 {
        session.expect("ping").await;
        let payload = json!({"serverTime": "2026-01-01T00:00:00.000Z"});
        session.say(json!({"type": "pong", "payload": payload})).await;
    }
    assert!(!client.state().borrow().stale);
    assert!(servers.quiet_for(Duration::from_millis(1)).await);
}

#[tokio::test(start_paused = true)]
async fn lost_sessions_come_back_with_growing_jitter() {
    let times = BackoffTimes { first: secs(1), cap: secs(60) };
    let (_client, _events, mut servers, session) = connected(builder().backoff(times)).await;
    drop(session);
    let mut last = Instant::now();
    for step in 0..10 {
        let session = servers.accept().await;
        let waited = session.at - last;
        let ceiling = Duration::from_secs(1 << step).min(secs(60));
        assert!(waited <= ceiling + Duration::from_millis(5), "{step}: {waited:?}");
        last = Instant::now();
        drop(session);
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_that_say_a_minute_get_a_minute() {
    for (code, reason) in [(1008, "protocol abuse"), (4029, "Connection rate limit exceeded")] {
        let (_client, _events, mut servers, mut session) = connected(builder()).await;
        session.close(code, reason).await;
        let closed = Instant::now();
        let waited = servers.welcome().await.at - closed;
        assert!((secs(60)..secs(76)).contains(&waited), "{code}: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_consumer_comes_back_at_once() {
    let (_client, _events, mut servers, mut session) = connected(builder()).await;
    session.close(4008, "slow consumer").await;
    let closed = Instant::now();
    assert_eq!(servers.welcome().await.at, closed);
}

#[tokio::test(start_paused = true)]
async fn a_full_server_says_when() {
    let (_client, _events, mut servers, session) = connected(builder()).await;
    drop(session);
    let (_, mut stream) = servers.stream().await;
    let refused = Instant::now();
    let mut head = [0; 4096];
    tokio::io::AsyncReadExt::read(&mut stream, &mut head).await.unwrap();
    let answer = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.unwrap();
    let waited = servers.welcome().await.at - refused;
    assert!((secs(7)..=secs(8)).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn resumes_every_room_where_it_stood() {
    let (client, mut events, mut servers, mut session) = connected(builder()).await;
    let (joined, _) = tokio::join!(client.join("r", Mode::Both), session.join("r", "e", 5, false));
    joined.unwrap();
    session.event("r", 8).await;
    assert_eq!(seqs(&mut events, 1).await, [8]);
    drop(session);
    let mut session = servers.welcome().await;
    let join = session.join("r", "e", 11, true).await;
    assert_eq!(join["payload"]["since"], json!({"epoch": "e", "seq": 8}));
    for seq in [9, 11] {
        session.event("r", seq).await;
    }
    assert_eq!(seqs(&mut events, 2).await, [9, 11]);
    drop(session);
    let mut session = servers.welcome().await;
    session.join("r", "f", 2, false).await;
    loop {
        if let Event::Gap { room, cause } = events.next().await.unwrap() {
            assert_eq!((room.as_str(), cause), ("r", GapCause::Reset));
            break;
        }
    }
    assert!(matches!(events.next().await, Some(Event::Joined(joined)) if joined.epoch == "f"));
}

#[tokio::test(start_paused = true)]
async fn what_was_in_flight_is_unknown_and_keyed_positions_go_again() {
    let (client, _events, mut servers, mut session) = connected(builder()).await;
    let fix = Fix::new(1.0, 2.0);
    let plain = client.publish(["r"], &fix);
    let keyed = client.publish_keyed(["r"], "k", &fix);
    let server = async {
        let first =
            [session.expect("location_update").await, session.expect("location_update").await];
        drop(session);
        let mut session = servers.welcome().await;
        let again = session.expect("location_update").await;
        assert_eq!(again["payload"], first[1]["payload"]);
        assert_ne!(again["id"], first[1]["id"]);
        session.ack(&again, "r", 3).await;
        assert!(session.silent_for(secs(5)).await);
    };
    let (plain, keyed, ()) = tokio::join!(plain, keyed, server);
    assert!(matches!(plain, Err(Error::UnknownOutcome)));
    assert_eq!(keyed.unwrap().rooms["r"], 3);
}

#[tokio::test(start_paused = true)]
async fn keyed_positions_are_given_up_with_the_window() {
    let (client, _events, mut servers, mut session) = connected(builder()).await;
    let fix = Fix::new(1.0, 2.0);
    let sent = Instant::now();
    let (result, ()) = tokio::join!(client.publish_keyed(["r"], "k", &fix), async {
        session.expect("location_update").await;
        servers.accepted.close();
        drop(session);
    });
    assert!(matches!(result, Err(Error::UnknownOutcome)));
    assert_eq!(sent.elapsed().as_secs(), 600);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stops_stops_the_socket_and_nothing_is_lost() {
    let (client, mut events, mut servers, mut session) = connected(builder()).await;
    let (joined, _) = tokio::join!(client.join("r", Mode::Both), session.join("r", "e", 0, false));
    joined.unwrap();
    const SENT: u64 = 5000;
    let mut server = Box::pin(async move {
        for seq in 1..=SENT {
            session.event("r", seq).await;
        }
        session
    });
    let stuck = tokio::time::timeout(secs(45), &mut server).await;
    assert!(stuck.is_err(), "the socket takes no more");
    tokio::time::sleep(secs(600)).await;
    assert!(servers.quiet_for(secs(1)).await, "the silence is not the server's");
    let (mut session, seen) =
        tokio::join!(server, seqs(&mut events, usize::try_from(SENT).unwrap()));
    assert!(seen.into_iter().eq(1..=SENT));
    assert!(!client.state().borrow().stale);
    session.event("r", SENT + 1).await;
    assert_eq!(seqs(&mut events, 1).await, [SENT + 1]);
}

#[tokio::test(start_paused = true)]
async fn dropped_futures_leave_nothing() {
    let (client, _events, _servers, mut session) = connected(builder()).await;
    let fix = Fix::new(1.0, 2.0);
    let given_up = tokio::time::timeout(secs(1), client.publish(["r"], &fix)).await;
    assert!(given_up.is_err());
    let given_up = tokio::time::timeout(secs(1), client.join("r", Mode::Both)).await;
    assert!(given_up.is_err());
    let request = session.expect("location_update").await;
    session.ack(&request, "r", 1).await;
    // The join's answer finds nobody: the room is left again.
    session.join("r", "e", 1, false).await;
    assert_eq!(session.expect("leave_room").await["payload"]["roomId"], "r");
    assert!(session.silent_for(secs(10)).await);
}

#[tokio::test(start_paused = true)]
async fn requests_given_up_while_there_is_no_session_are_never_sent() {
    let (client, _events, mut servers, session) = connected(builder()).await;
    drop(session);
    until_phase(&client, Phase::Reconnecting).await;
    let fix = Fix::new(1.0, 2.0);
    let given_up = tokio::time::timeout(Duration::from_millis(1), client.publish(["r"], &fix));
    assert!(given_up.await.is_err());
    let given_up = tokio::time::timeout(Duration::from_millis(1), client.join("r", Mode::Both));
    assert!(given_up.await.is_err());
    let mut session = servers.welcome().await;
    assert!(session.silent_for(secs(10)).await);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_client_says_goodbye_and_ends_the_task() {
    let (client, events, servers, mut session) = connected(builder()).await;
    drop(events);
    drop(client);
    assert!(session.next().await.is_none(), "a close and the end");
    servers.task_is_gone().await;
}

#[tokio::test(start_paused = true)]
async fn dropping_the_client_ends_the_task_whatever_it_does() {
    // A peer that never answers the close.
    let (client, events, servers, session) = connected(builder()).await;
    drop((client, events));
    servers.task_is_gone().await;
    drop(session);
    // No session at all.
    let (net, mut servers) = net();
    let (client, events) = builder().start_with(net).unwrap();
    let (_, silent) = servers.stream().await;
    drop((client, events));
    servers.task_is_gone().await;
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn closing_answers_everyone() {
    let (client, mut events, servers, mut session) = connected(builder()).await;
    let fix = Fix::new(1.0, 2.0);
    let ((published, ()), end) = tokio::join!(
        async {
            tokio::join!(client.publish(["r"], &fix), async {
                session.expect("location_update").await;
                client.close().await;
            })
        },
        async { while events.next().await.is_some() {} }
    );
    let () = end;
    assert!(matches!(published, Err(Error::UnknownOutcome)));
    assert!(matches!(client.publish(["r"], &fix).await, Err(Error::Closed)));
    servers.task_is_gone().await;
}
