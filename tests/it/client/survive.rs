//! What happens to a client, and what it does then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use milepost::client::{Error, Event, Fix, Phase};
use milepost::protocol::Mode;
use rustix::process::Signal;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::fake::Fake;
use super::proxy::Proxy;
use super::{admin, builder, connect, keys, log_of, next, until, until_phase};
use crate::harness::{PATIENCE, Server};

/// The next position's sequence number; a gap is a failure.
async fn seq(events: &mut milepost::client::Events) -> u64 {
    loop {
        match next(events).await {
            Event::Location(location) => return location.seq,
            Event::Gap { cause, .. } => panic!("a gap: {cause:?}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_server_that_is_gone_and_comes_back() {
    let mut server = Server::start();
    let address = server.public;
    let (client, mut events) = connect("bus", &[address]).await;
    let (watcher, mut seen) = connect("watcher", &[address]).await;
    client.join("r", Mode::Publish).await.unwrap();
    watcher.join("r", Mode::Subscribe).await.unwrap();
    tokio::spawn(async move { while events.next().await.is_some() {} });
    let first = client.publish_keyed(["r"], "k1", &Fix::new(1.0, 1.0)).await.unwrap();
    assert_eq!(seq(&mut seen).await, first.rooms["r"]);
    server.signal(Signal::KILL);
    server.wait();
    until_phase(&client, Phase::Reconnecting).await;
    until_phase(&watcher, Phase::Reconnecting).await;
    assert!(watcher.state().borrow().stale);
    // Given while there is nobody to take it.
    let fix = Fix::new(1.0, 2.0);
    let waiting = client.publish_keyed(["r"], "k2", &fix);
    let restart = async {
        let builder = Server::builder().set("server.listen", address);
        builder.dir(server.into_dir()).start()
    };
    let (second, server) = tokio::join!(waiting, restart);
    let second = second.unwrap();
    assert_eq!(seq(&mut seen).await, second.rooms["r"]);
    until(&watcher, |state| state.phase == Phase::Connected && !state.stale).await;
    assert_eq!(keys(&log_of(&server)), ["k1", "k2"]);
}

#[tokio::test]
async fn an_endpoint_that_accepts_and_says_nothing() {
    let silent = Fake::start().await;
    let server = Server::start();
    let builder = builder("bus", &[silent.address, server.public])
        .connect_timeout(Duration::from_millis(300));
    let (client, _events) = timeout(PATIENCE, builder.connect()).await.unwrap().unwrap();
    let state = client.state().borrow().clone();
    assert_eq!(state.endpoint.as_deref(), Some(&*format!("ws://{}/ws", server.public)));
    client.join("r", Mode::Both).await.unwrap();
}

#[tokio::test]
async fn a_full_server_is_tried_again_when_it_says() {
    let mut server = Fake::start().await;
    let (client, _events) = builder("bus", &[server.address]).start().unwrap();
    server
        .answer("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
        .await;
    let refused = Instant::now();
    let _session = server.welcome().await;
    assert!(refused.elapsed() >= Duration::from_secs(1));
    until_phase(&client, Phase::Connected).await;

    let full = Server::builder().set("server.max_connections", 1).start();
    let (_first, _) = connect("first", &[full.public]).await;
    let (second, _events) = builder("second", &[full.public, server.address]).start().unwrap();
    let _other = server.welcome().await;
    until_phase(&second, Phase::Connected).await;
    let state = second.state().borrow().clone();
    assert_eq!(state.endpoint.as_deref(), Some(&*format!("ws://{}/ws", server.address)));
}

const SECRET: &str = "a secret of sufficient length for HS256, made up";

/// A token from the binary's own mint.
fn token(sub: &str) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_milepost"))
        .args(["token", "--sub", sub, "--set", &format!("auth.secret={SECRET}")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn guarded() -> Server {
    Server::builder().set("auth.mode", "jwt").set("auth.secret", SECRET).start()
}

#[tokio::test]
async fn a_token_provider_that_recovers() {
    let server = guarded();
    let good = token("bus");
    let asked = Arc::new(AtomicUsize::new(0));
    let provider = {
        let asked = asked.clone();
        move || {
            let first = asked.fetch_add(1, Ordering::Relaxed) == 0;
            let token = if first { "not.a.token".to_owned() } else { good.clone() };
            std::future::ready(Ok::<_, std::convert::Infallible>(token))
        }
    };
    let (client, mut events) =
        builder("ignored", &[server.public]).token_with(provider).start().unwrap();
    loop {
        if let Event::TokenRefused(said) = next(&mut events).await {
            break assert_eq!(&*said, "Invalid token");
        }
    }
    until_phase(&client, Phase::Connected).await;
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    client.join("r", Mode::Both).await.unwrap();
    client.publish(["r"], &Fix::new(1.0, 1.0)).await.unwrap();
}

#[tokio::test]
async fn a_token_provider_that_does_not_and_a_token_that_cannot() {
    let server = guarded();
    let asked = Arc::new(AtomicUsize::new(0));
    let provider = {
        let asked = asked.clone();
        move || {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok::<_, std::convert::Infallible>("not.a.token".to_owned()))
        }
    };
    let (client, mut events) =
        builder("ignored", &[server.public]).token_with(provider).start().unwrap();
    let mut refusals = 0;
    while refusals < 3 {
        refusals += usize::from(matches!(next(&mut events).await, Event::TokenRefused(_)));
    }
    assert_eq!(client.state().borrow().phase, Phase::Unauthorized);
    assert!(asked.load(Ordering::Relaxed) >= 3);
    // The server saw the token once: it is not tried again.
    let metrics = admin(&server, "GET", "/metrics");
    let refused = "milepost_handshakes_refused_total{reason=\"authentication\"} 1";
    assert!(metrics.lines().any(|line| line == refused), "{metrics}");

    let fixed = builder("ignored", &[server.public]).token("not.a.token");
    let refused = timeout(PATIENCE, fixed.clone().connect()).await.unwrap();
    assert!(matches!(refused, Err(Error::Unauthorized { reason }) if &*reason == "Invalid token"));
    let (client, _events) = fixed.start().unwrap();
    let refused = timeout(PATIENCE, client.publish(["r"], &Fix::new(1.0, 1.0))).await.unwrap();
    assert!(matches!(refused, Err(Error::Unauthorized { .. })), "{refused:?}");
    until_phase(&client, Phase::Closed).await;
}

#[tokio::test]
async fn closes_and_where_the_next_session_goes_on() {
    let mut server = Fake::start().await;
    let (client, mut events) = builder("bus", &[server.address]).start().unwrap();
    let joined = tokio::spawn({
        let client = client.clone();
        async move { client.join("r", Mode::Both).await.unwrap() }
    });
    let mut session = server.welcome().await;
    session.join(1, false).await;
    joined.await.unwrap();
    let mut last = 1;
    let closes =
        [(4008, "slow consumer"), (1001, "server shutting down"), (1001, "Going Away"), (1011, "")];
    for (code, reason) in closes {
        last += 3;
        session.event(last).await;
        assert_eq!(seq(&mut events).await, last);
        session.close(code, reason).await;
        session = server.welcome().await;
        let join = session.join(last, true).await;
        assert_eq!(join["since"], json!({ "epoch": "e", "seq": last }), "{code} {reason}");
    }
    // Without a close frame.
    drop(session);
    let mut session = server.welcome().await;
    assert_eq!(session.join(last, true).await["since"]["seq"], last);
}

#[tokio::test]
async fn a_half_open_connection_is_given_up_and_nothing_is_lost() {
    let server =
        Server::builder().set("heartbeat.interval", "1s").set("heartbeat.timeout", "7s").start();
    let proxy = Proxy::start(server.public).await;
    let (client, mut events) = connect("bus", &[proxy.address]).await;
    let (watcher, mut seen) = connect("watcher", &[server.public]).await;
    client.join("r", Mode::Publish).await.unwrap();
    watcher.join("r", Mode::Subscribe).await.unwrap();
    tokio::spawn(async move { while events.next().await.is_some() {} });
    client.publish_keyed(["r"], "k1", &Fix::new(1.0, 1.0)).await.unwrap();
    let old = client.state().borrow().session.clone();
    proxy.fall_silent();
    let fix = Fix::new(1.0, 2.0);
    let ack = client.publish_keyed(["r"], "k2", &fix);
    let stale = async {
        let state = until(&client, |state| state.stale).await;
        assert_eq!(state.session, old, "stale is said before the connection is given up");
    };
    let (ack, ()) = tokio::join!(ack, stale);
    let ack = ack.unwrap();
    let state = until(&client, |state| state.phase == Phase::Connected && !state.stale).await;
    assert_ne!(state.session, old);
    let mut last = 0;
    while last < ack.rooms["r"] {
        last = seq(&mut seen).await;
    }
    assert_eq!(keys(&log_of(&server)), ["k1", "k2"]);
}
