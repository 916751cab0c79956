//! The rules of plane.md, "Resend", one by one.

use super::*;
use crate::client::{Error, Fix, ResendRefused};
use crate::protocol::Mode;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn resending(max_resends: i64, wait: u64) -> Builder {
    let resend = ResendRefused { max_resends, new_session_wait: secs(wait) };
    builder().endpoint("ws://two:2").resend_refused(Some(resend))
}

fn fix() -> Fix {
    Fix::new(1.0, 2.0)
}

/// Takes a publish and refuses it as a draining server does.
async fn drain(session: &mut Session) -> Value {
    let request = session.expect("location_update").await;
    session.refuse(&request, "SERVER_DRAINING", "elsewhere").await;
    request
}

#[tokio::test(start_paused = true)]
async fn off_by_default_and_by_number() {
    for builder in [builder(), resending(0, 60), resending(-3, 60)] {
        let (client, _events, mut servers, mut session) = connected(builder).await;
        let at = Instant::now();
        let fix = fix();
        let (result, _) = tokio::join!(client.publish(["r"], &fix), drain(&mut session));
        assert!(matches!(result, Err(Error::Draining)));
        assert_eq!(at.elapsed(), Duration::ZERO);
        assert!(servers.quiet_for(secs(15)).await, "nothing is on its way");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_session_gets_the_same_bytes_under_a_new_id() {
    let (client, _events, mut servers, mut old) = connected(resending(1, 60)).await;
    let fix = fix();
    let (result, ()) = tokio::join!(client.publish_keyed(["r"], "k", &fix), async {
        let first = drain(&mut old).await;
        let mut new = servers.welcome().await;
        assert_eq!(new.port, 2);
        let second = new.expect("location_update").await;
        assert_eq!(first["payload"], second["payload"]);
        assert_ne!(first["id"], second["id"]);
        new.ack(&second, "r", 1).await;
    });
    assert_eq!(result.unwrap().rooms["r"], 1);
}

#[tokio::test(start_paused = true)]
async fn n_resends_are_n_plus_one_requests() {
    let (client, _events, mut servers, mut session) = connected(resending(2, 60)).await;
    let fix = fix();
    let (result, sent) = tokio::join!(client.publish(["r"], &fix), async {
        let mut sent = 0;
        let mut old = Vec::new();
        while sent < 3 {
            drain(&mut session).await;
            sent += 1;
            if sent < 3 {
                old.push(std::mem::replace(&mut session, servers.welcome().await));
            }
        }
        sent
    });
    assert!(matches!(result, Err(Error::Draining)));
    assert_eq!(sent, 3);
    assert!(session.silent_for(secs(15)).await);
}

#[tokio::test(start_paused = true)]
async fn the_refusal_is_the_result_when_no_session_comes_in_time() {
    let (client, _events, mut servers, mut session) = connected(resending(1, 5)).await;
    let fix = fix();
    let at = Instant::now();
    let (result, _held) = tokio::join!(client.publish(["r"], &fix), async {
        drain(&mut session).await;
        // One that is still being set up is none.
        servers.accept().await
    });
    assert!(matches!(result, Err(Error::Draining)));
    assert!((secs(5)..secs(5) + Duration::from_millis(5)).contains(&at.elapsed()));
}

#[tokio::test(start_paused = true)]
async fn each_wait_has_its_own_time() {
    let (client, _events, mut servers, mut session) = connected(resending(2, 5)).await;
    let fix = fix();
    let at = Instant::now();
    let (result, _held) = tokio::join!(client.publish(["r"], &fix), async {
        drain(&mut session).await;
        let mut second = servers.accept().await;
        tokio::time::sleep(secs(3)).await;
        second.say(welcome("s2")).await;
        drain(&mut second).await;
        (second, servers.accept().await)
    });
    assert!(matches!(result, Err(Error::Draining)));
    assert!(at.elapsed() >= secs(8), "{:?}", at.elapsed());
}

fn welcome(session: &str) -> Value {
    json!({"type": "welcome", "payload": {
        "sessionId": session, "clientId": "c", "instanceId": "i", "protocol": 1,
        "serverTime": "2026-01-01T00:00:00.000Z", "heartbeatMs": 20_000,
        "heartbeatTimeoutMs": 50_000, "maxFrameBytes": 65_536, "maxFrameOutBytes": 65_536,
        "maxPositionBytes": 512, "dedupWindowMs": 600_000
    }})
}

#[tokio::test(start_paused = true)]
async fn the_same_session_again_is_not_enough() {
    let (client, _events, mut servers, mut old) = connected(resending(1, 60)).await;
    let fix = fix();
    let (result, ()) = tokio::join!(client.publish(["r"], &fix), async {
        drain(&mut old).await;
        let mut same = servers.welcome_as("s1").await;
        assert!(same.silent_for(Duration::from_millis(1)).await);
        let mut other = servers.welcome_as("s2").await;
        let request = other.expect("location_update").await;
        other.ack(&request, "r", 1).await;
    });
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_already_there_needs_no_wait() {
    let (client, _events, mut servers, mut old) = connected(resending(1, 60)).await;
    let fix = fix();
    let at = Instant::now();
    let (result, ()) = tokio::join!(client.publish(["r"], &fix), async {
        let request = old.expect("location_update").await;
        old.notice(0.0).await;
        let mut new = servers.welcome().await;
        until_phase(&client, Phase::Connected).await;
        old.refuse(&request, "SERVER_DRAINING", "elsewhere").await;
        let again = new.expect("location_update").await;
        new.ack(&again, "r", 1).await;
    });
    result.unwrap();
    assert_eq!(at.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_one_that_refused_is_not_asked_before_its_time() {
    let resend = ResendRefused { max_resends: 1, new_session_wait: secs(60) };
    let (client, _events, mut servers, mut old) =
        connected(builder().resend_refused(Some(resend))).await;
    let fix = fix();
    let (result, ()) = tokio::join!(client.publish(["r"], &fix), async {
        let request = old.expect("location_update").await;
        let start = Instant::now();
        old.notice(9.0).await;
        old.refuse(&request, "SERVER_DRAINING", "elsewhere").await;
        let mut new = servers.welcome().await;
        assert_eq!(new.at - start, secs(9));
        let again = new.expect("location_update").await;
        new.ack(&again, "r", 1).await;
    });
    result.unwrap();
    // With another endpoint there is no need to wait that long.
    let (client, _events, mut servers, mut old) = connected(resending(1, 60)).await;
    let (result, ()) = tokio::join!(client.publish(["r"], &fix), async {
        let request = old.expect("location_update").await;
        let start = Instant::now();
        old.notice(9.0).await;
        old.refuse(&request, "SERVER_DRAINING", "elsewhere").await;
        let mut new = servers.welcome().await;
        assert!(new.at - start <= secs(1));
        let again = new.expect("location_update").await;
        new.ack(&again, "r", 1).await;
    });
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_needs_a_room_waits_for_its_join() {
    let (client, _events, mut servers, mut old) = connected(resending(1, 60)).await;
    let (joined, _) = tokio::join!(client.join("r", Mode::Both), old.join("r", "e", 0, false));
    joined.unwrap();
    let fix = fix();
    let (result, ()) = tokio::join!(client.publish(["r"], &fix), async {
        drain(&mut old).await;
        let mut new = servers.welcome().await;
        let join = new.expect("join_room").await;
        assert!(new.silent_for(secs(5)).await);
        let payload = json!({"roomId": "r", "epoch": "e", "seq": 0, "recovered": true});
        new.answer(&join, "room_joined", payload).await;
        let again = new.expect("location_update").await;
        new.ack(&again, "r", 1).await;
    });
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failed_join_makes_the_refusal_the_result() {
    let (client, _events, mut servers, mut old) = connected(resending(1, 60)).await;
    let (joined, _) = tokio::join!(client.join("r", Mode::Both), old.join("r", "e", 0, false));
    joined.unwrap();
    let fix = fix();
    let (result, mut new) = tokio::join!(client.publish(["r"], &fix), async {
        drain(&mut old).await;
        let mut new = servers.welcome().await;
        let join = new.expect("join_room").await;
        new.refuse(&join, "FORBIDDEN", "never").await;
        new
    });
    assert!(matches!(result, Err(Error::Draining)));
    assert!(new.silent_for(secs(10)).await);
}

#[tokio::test(start_paused = true)]
async fn giving_up_while_waiting_leaves_nothing_and_sends_nothing() {
    let (client, _events, mut servers, mut old) = connected(resending(1, 600)).await;
    let fix = fix();
    let given_up = tokio::time::timeout(Duration::from_millis(1), client.publish(["r"], &fix));
    let (given_up, _) = tokio::join!(given_up, drain(&mut old));
    assert!(given_up.is_err());
    // The move was for this request only; without it nobody moves.
    assert!(servers.quiet_for(secs(19)).await);
    assert!(old.silent_for(Duration::from_millis(1)).await);
}

#[tokio::test(start_paused = true)]
async fn many_refused_at_once_are_each_sent_once() {
    let (client, _events, mut servers, mut old) = connected(resending(1, 60)).await;
    let fixes: Vec<Fix> = (1..=50).map(|n| Fix::new(f64::from(n), 1.0)).collect();
    let publishes =
        futures_util::future::join_all(fixes.iter().map(|fix| client.publish(["r"], fix)));
    let (results, ()) = tokio::join!(publishes, async {
        for _ in 0..50 {
            drain(&mut old).await;
        }
        let mut new = servers.welcome().await;
        for n in 1..=50 {
            let again = new.expect("location_update").await;
            assert_eq!(again["payload"]["latitude"], f64::from(n), "in their order");
            new.ack(&again, "r", 1).await;
        }
        assert!(new.silent_for(secs(10)).await);
    });
    assert!(results.into_iter().all(|result| result.is_ok()));
}

#[tokio::test(start_paused = true)]
async fn our_1001_counts_as_a_refusal() {
    let (client, _events, mut servers, mut old) = connected(resending(1, 60)).await;
    let fix = fix();
    let (result, ()) = tokio::join!(client.publish(["r"], &fix), async {
        old.expect("location_update").await;
        old.close(1001, "server shutting down").await;
        let mut new = servers.welcome().await;
        let again = new.expect("location_update").await;
        new.ack(&again, "r", 1).await;
    });
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_other_error_is_sent_again() {
    let (client, _events, mut servers, mut session) = connected(resending(5, 60)).await;
    let fix = fix();
    for (code, retry) in
        [("SERVER_BUSY", "later"), ("RATE_LIMITED", "later"), ("INTERNAL", "never")]
    {
        let (result, ()) = tokio::join!(client.publish(["r"], &fix), async {
            let request = session.expect("location_update").await;
            session.refuse(&request, code, retry).await;
        });
        assert!(!matches!(result, Ok(_) | Err(Error::Draining)), "{code}");
    }
    assert!(session.silent_for(secs(10)).await);
    let (result, ()) = tokio::join!(client.publish(["r"], &fix), async {
        session.expect("location_update").await;
        drop(session);
        assert!(servers.welcome().await.silent_for(secs(10)).await);
    });
    assert!(matches!(result, Err(Error::UnknownOutcome)));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_try_is_never_called_a_refusal() {
    let (client, _events, mut servers, mut session) = connected(resending(1, 60)).await;
    let fix = fix();
    let (result, ()) = tokio::join!(client.publish_keyed(["r"], "k", &fix), async {
        session.expect("location_update").await;
        drop(session);
        let mut second = servers.welcome().await;
        drain(&mut second).await;
        let mut third = servers.welcome().await;
        drain(&mut third).await;
        servers.accepted.close();
    });
    assert!(matches!(result, Err(Error::UnknownOutcome)), "{result:?}");
}
