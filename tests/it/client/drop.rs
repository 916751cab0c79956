//! Giving up at any moment leaves nothing behind.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use milepost::client::{Client, Fix, HistoryQuery};
use milepost::protocol::Mode;
use tokio::time::timeout;

use super::{builder, connect};
use crate::harness::{PATIENCE, Server};

/// Polls `future` at most `times` times and drops it; `true` if it came to its end.
async fn polled<T>(times: usize, future: impl Future<Output = T>) -> bool {
    let mut future = Box::pin(future);
    let mut left = times;
    std::future::poll_fn(move |cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if left == 0 => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

type Call = for<'a> fn(&'a Client) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

const CALLS: [(&str, Call); 9] = [
    ("join", |client| Box::pin(async { drop(client.join("other", Mode::Both).await) })),
    ("leave", |client| Box::pin(async { drop(client.leave("other").await) })),
    ("publish", |client| Box::pin(async { drop(client.publish(["r"], &fix()).await) })),
    ("publish_keyed", |client| {
        Box::pin(async { drop(client.publish_keyed(["r"], "k", &fix()).await) })
    }),
    ("notify", |client| Box::pin(async { drop(client.notify(["r"], &fix()).await) })),
    ("positions", |client| Box::pin(async { drop(client.positions("r").await) })),
    ("history", |client| {
        Box::pin(async {
            let mut pages = Box::pin(client.history_pages("r", HistoryQuery::default()));
            while let Some(Ok(_)) = pages.next().await {}
        })
    }),
    ("backfill", |client| {
        Box::pin(async { drop(client.backfill("r", None, stream::iter(vec![fix(); 1200])).await) })
    }),
    ("close", |client| Box::pin(client.close())),
];

fn fix() -> Fix {
    Fix { timestamp: Some(1_700_000_000_000), ..Fix::new(1.0, 2.0) }
}

/// Waits until no task of this test's runtime is left.
async fn alone() {
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let gone = async {
        while tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let gone = timeout(PATIENCE, gone).await;
    assert!(gone.is_ok(), "{} tasks are left", tasks());
}

#[tokio::test]
async fn calls_dropped_at_any_await() {
    let server = Server::builder().set("limits.message_rate", 0).start();
    for (name, call) in CALLS {
        let mut completed = false;
        for times in 0..40 {
            let (client, events) = connect("bus", &[server.public]).await;
            client.join("r", Mode::Both).await.unwrap();
            completed = polled(times, call(&client)).await;
            if name != "close" {
                // Whatever was given up: the session goes on.
                client.positions("r").await.unwrap();
            }
            drop((client, events));
            alone().await;
            if completed {
                break;
            }
        }
        assert!(completed, "{name} never came to its end");
    }
}

#[tokio::test]
async fn a_connect_dropped_at_any_await() {
    let server = Server::start();
    let mut completed = false;
    for times in 0..40 {
        completed = polled(times, builder("bus", &[server.public]).connect()).await;
        alone().await;
        if completed {
            break;
        }
    }
    assert!(completed);
    // With nobody there, and with somebody who says nothing.
    let silent = super::fake::Fake::start().await;
    let (client, events) = builder("bus", &[silent.address]).start().unwrap();
    let held = silent.stream().await;
    assert!(!polled(1, client.join("r", Mode::Both)).await);
    drop((client, events));
    alone().await;
    drop(held);
}
