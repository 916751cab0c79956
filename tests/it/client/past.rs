//! History and uploads against the real server.

use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::{StreamExt, TryStreamExt, stream};
use milepost::client::{Client, Error, Event, Fix, HistoryQuery};
use milepost::protocol::Mode;
use milepost::time::UnixMillis;
use rustix::process::Signal;

use super::{call, connect, live, log_of, next, until, until_held};
use crate::harness::Server;

/// An hour ago, and `n` seconds.
fn time(n: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap() - 3_600_000 + n * 1000
}

fn fixes(count: i64) -> Vec<Fix> {
    let start = time(0);
    let fix = |n: i64| Fix {
        timestamp: Some(start + n * 1000),
        speed: Some(n as f64),
        ..Fix::new(60.0, 20.0 + n as f64 / 10_000.0)
    };
    (0..count).map(fix).collect()
}

async fn speeds(client: &Client, query: HistoryQuery) -> (Vec<f64>, usize) {
    let pages: Vec<_> = client.history_pages("r", query).try_collect().await.unwrap();
    let positions = pages.iter().flat_map(|page| &page.positions);
    (positions.map(|position| position.speed.unwrap()).collect(), pages.len())
}

#[tokio::test]
async fn an_upload_is_in_the_history_page_by_page() {
    let server = Server::start();
    let (client, _events) = connect("bus", &[server.public]).await;
    let (watcher, mut events) = connect("watcher", &[server.public]).await;
    client.join("r", Mode::Both).await.unwrap();
    watcher.join("r", Mode::Subscribe).await.unwrap();
    let good = fixes(3000);
    let mut positions = good.clone();
    positions[1234].latitude = 91.0;
    positions[2999].vehicle_id = Some("other".to_owned());
    let upload = || client.backfill("r", None, stream::iter(&positions));
    let result = upload().await.unwrap();
    assert_eq!((result.accepted, result.duplicates, result.rejected_total), (2999, 0, 1));
    assert_eq!(result.rejected[0].index, 1234);
    assert!(result.rejected[0].reason.contains("latitude"), "{:?}", result.rejected);
    assert_eq!(result.reason, None);
    // Of each vehicle the newest is live, the rest is history.
    let mut newest = Vec::new();
    while newest.len() < 2 {
        if let Event::Location(location) = next(&mut events).await {
            newest.push((location.vehicle_id, location.speed.unwrap()));
        }
    }
    newest.sort_by(|one, two| one.1.total_cmp(&two.1));
    assert_eq!(newest, [("bus".to_owned(), 2998.0), ("other".to_owned(), 2999.0)]);

    let again = upload().await.unwrap();
    assert_eq!((again.accepted, again.duplicates, again.rejected_total), (0, 2999, 1));

    let (all, pages) = speeds(&client, HistoryQuery::default()).await;
    let expected = (0..3000).filter(|n| *n != 1234).map(f64::from);
    assert!(all.iter().copied().eq(expected));
    assert!(pages >= 6, "{pages}");
    let at = |n: usize| good[n].timestamp.and_then(UnixMillis::new);
    let query = HistoryQuery {
        vehicle: Some("bus".to_owned()),
        from: at(2990),
        to: at(2999),
        limit: Some(4),
        cursor: None,
    };
    let first = client.history("r", &query).await.unwrap();
    assert_eq!(first.positions.len(), 4);
    let rest = HistoryQuery { cursor: first.cursor, ..query.clone() };
    let (rest, _) = speeds(&client, rest).await;
    assert_eq!(rest, [2994.0, 2995.0, 2996.0, 2997.0, 2998.0]);
    let error = client.history("elsewhere", &query).await.unwrap_err();
    assert!(matches!(error, Error::Refused(refused) if refused.code == "NOT_JOINED"));
}

#[tokio::test]
async fn an_upload_cut_off_by_a_kill_can_be_repeated() {
    let server = Server::start();
    let address = server.public;
    let (client, mut events) = connect("bus", &[address]).await;
    tokio::spawn(async move { while events.next().await.is_some() {} });
    client.join("r", Mode::Both).await.unwrap();
    let positions = fixes(1500);
    // All but the last are on their way; the stream never ends by itself.
    let cut = stream::iter(&positions[..1200]).chain(stream::pending());
    let kill = async {
        let log = log_of(&server);
        while live(&log, "r").len() + late(&log) < 1000 {
            tokio::task::yield_now().await;
        }
        drop(log);
        server.signal(Signal::KILL);
        until(&client, |state| state.session.is_none()).await;
        let listen = address.to_string();
        Server::builder().set("server.listen", listen).dir(server.into_dir()).start()
    };
    let (cut, server) = tokio::join!(client.backfill("r", None, cut), kill);
    assert!(matches!(cut, Err(Error::UnknownOutcome)), "{cut:?}");
    let result = client.backfill("r", None, stream::iter(&positions)).await.unwrap();
    assert!(result.duplicates >= 1000, "{result:?}");
    assert_eq!(result.accepted + result.duplicates, 1500);
    let log = log_of(&server);
    assert_eq!(live(&log, "r").len() + late(&log), 1500);
}

fn late(log: &rusqlite::Connection) -> usize {
    log.query_row("SELECT count(*) FROM positions WHERE late", [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn an_upload_is_held_through_a_pause_and_refused_by_a_drain() {
    let mut server = Server::start();
    let (client, mut events) = connect("bus", &[server.public]).await;
    tokio::spawn(async move { while events.next().await.is_some() {} });
    client.join("r", Mode::Both).await.unwrap();
    let positions = fixes(100);
    call(&server, "POST", "/quiesce");
    let resume = async {
        // Its beginning, its one chunk and its end.
        until_held(&server, 3).await;
        call(&server, "DELETE", "/quiesce");
    };
    let (result, ()) = tokio::join!(client.backfill("r", None, stream::iter(&positions)), resume);
    assert_eq!(result.unwrap().accepted, 100);

    call(&server, "POST", "/quiesce");
    let stop = async {
        until_held(&server, 3).await;
        server.terminate();
    };
    let more = fixes(50);
    let (result, ()) = tokio::join!(client.backfill("r", None, stream::iter(&more)), stop);
    assert!(matches!(result, Err(Error::Draining)), "{result:?}");
    client.close().await;
    assert_eq!(server.wait().code, Some(0));
}
