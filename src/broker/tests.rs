//! The link against a real server.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;

use super::*;
use crate::test_nats::NatsServer;

fn settings(server: &NatsServer) -> Settings {
    Settings { urls: vec![server.url()], instance: "one".to_owned(), ..Settings::default() }
}

async fn until(link: &Link, wanted: impl Fn(&LinkState) -> bool) -> LinkState {
    let mut state = link.state();
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, state.wait_for(wanted)).await.unwrap().unwrap().clone()
}

#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_is_a_new_generation() {
    let mut server = NatsServer::start();
    let link = Link::connect(settings(&server)).await.unwrap();
    assert_eq!(*link.state().borrow(), LinkState::Up { generation: 1 });
    assert!(link.round_trip(Duration::from_secs(10)).await);
    server.kill();
    let LinkState::Down { reason } = until(&link, |state| !state.is_up()).await else { panic!() };
    assert!(reason.contains(&server.url()), "{reason}");
    assert!(!link.publish("a".to_owned(), None, None, "x".into()), "nothing into a dead link");
    assert!(!link.round_trip(Duration::from_secs(10)).await);
    server.restart();
    let LinkState::Up { generation } = until(&link, LinkState::is_up).await else { panic!() };
    assert!(generation > 1);
    assert!(link.round_trip(Duration::from_secs(10)).await);
}

#[tokio::test]
async fn a_server_that_stands_still_is_noticed() {
    let server = NatsServer::start();
    let link = Link::connect(settings(&server)).await.unwrap();
    server.signal(rustix::process::Signal::STOP);
    let state = until(&link, |state| !state.is_up()).await;
    assert!(matches!(state, LinkState::Down { .. }));
    server.signal(rustix::process::Signal::CONT);
    until(&link, LinkState::is_up).await;
}

#[tokio::test]
async fn closing_hands_over_everything_and_ends_the_subscriptions() {
    let server = NatsServer::start();
    let link = Link::connect(settings(&server)).await.unwrap();
    let other = Link::connect(settings(&server)).await.unwrap();
    let mut heard = other.client().subscribe("a").await.unwrap();
    let mut own = link.client().subscribe("b").await.unwrap();
    assert!(other.round_trip(Duration::from_secs(10)).await);
    for number in 0..1000 {
        assert!(link.publish("a".to_owned(), None, None, number.to_string().into()));
    }
    assert!(link.close(Instant::now() + Duration::from_secs(10)).await);
    assert_eq!(*link.state().borrow(), LinkState::Closed);
    for number in 0..1000 {
        assert_eq!(heard.next().await.unwrap().payload, number.to_string());
    }
    assert!(own.next().await.is_none());
}

#[tokio::test]
async fn closing_a_dead_link_ends_at_the_deadline() {
    let mut server = NatsServer::start();
    let link = Link::connect(settings(&server)).await.unwrap();
    server.kill();
    until(&link, |state| !state.is_up()).await;
    assert!(!link.close(Instant::now() + Duration::from_millis(50)).await);
}

#[tokio::test]
async fn what_cannot_be_connected_to_is_named_without_its_password() {
    let error = |urls: &[&str], file: Option<&str>| {
        let settings = Settings {
            urls: urls.iter().map(|url| (*url).to_owned()).collect(),
            credentials_file: file.map(Into::into),
            ..Settings::default()
        };
        async { Link::connect(settings).await.unwrap_err() }
    };
    let text = error(&["http://user:secret@broker:80"], None).await.to_string();
    assert!(text.contains("broker:80") && text.contains("nats://"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    let closed = error(&["nats://user:secret@127.0.0.1:1"], None).await;
    assert!(closed.is_temporary());
    assert!(closed.to_string().contains("nats://127.0.0.1:1"), "{closed}");
    assert!(!closed.to_string().contains("secret"), "{closed}");
    let file = error(&["nats://127.0.0.1:1"], Some("/nowhere/x.creds")).await;
    assert!(file.to_string().contains("/nowhere/x.creds") && !file.is_temporary(), "{file}");
    let server = NatsServer::start_with("authorization { token: \"t\" }");
    let refused = error(&[&server.url()], None).await;
    assert!(matches!(refused, BrokerError::Refused { .. }), "{refused}");
}
