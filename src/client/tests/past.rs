//! History and uploads.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::stream;

use super::*;
use crate::client::{Error, Fix, HistoryQuery, ResendRefused};
use crate::time::UnixMillis;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// `count` positions, and how many of them were taken so far.
fn positions(count: usize) -> (impl stream::Stream<Item = Value>, Arc<AtomicUsize>) {
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = taken.clone();
    let positions = (0..count).map(move |n| {
        counter.fetch_add(1, Ordering::Relaxed);
        json!({"latitude": 1.0, "longitude": 2.0, "timestamp": n})
    });
    (stream::iter(positions), taken)
}

async fn progress(session: &mut Session, accepted: usize) {
    let payload = json!({"accepted": accepted, "duplicates": 0, "rejected": 0});
    session.say(json!({"type": "backfill_progress", "payload": payload})).await;
}

async fn result(session: &mut Session, begin: &Value, accepted: usize) {
    let payload = json!({
        "accepted": accepted, "duplicates": 2, "rejectedTotal": 1,
        "rejected": [{"index": 7, "reason": "no"}]
    });
    session.answer(begin, "backfill_result", payload).await;
}

fn size(chunk: &Value) -> usize {
    chunk["payload"]["positions"].as_array().unwrap().len()
}

#[tokio::test(start_paused = true)]
async fn history_asks_page_by_page() {
    let (client, _events, _servers, mut session) = connected(builder()).await;
    let query = HistoryQuery {
        vehicle: Some("bus".into()),
        from: UnixMillis::new(5),
        limit: Some(2),
        ..HistoryQuery::default()
    };
    let mut pages = Box::pin(client.history_pages("r", query));
    let (page, ()) = tokio::join!(pages.next(), async {
        let asked = session.expect("history").await;
        let payload = json!({"roomId": "r", "vehicleId": "bus", "from": 5, "limit": 2});
        assert_eq!(asked["payload"], payload);
        session.answer(&asked, "history", json!({"positions": [], "cursor": "c"})).await;
    });
    assert_eq!(page.unwrap().unwrap().cursor.as_deref(), Some("c"));
    assert!(session.silent_for(secs(1)).await, "a page is asked for when it is wanted");
    let (page, ()) = tokio::join!(pages.next(), async {
        let asked = session.expect("history").await;
        assert_eq!(asked["payload"]["cursor"], "c");
        assert_eq!(asked["payload"]["vehicleId"], "bus");
        session.answer(&asked, "history", json!({"positions": []})).await;
    });
    assert_eq!(page.unwrap().unwrap().cursor, None);
    assert!(pages.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn two_chunks_ahead_of_the_log_and_no_more() {
    let (client, _events, _servers, mut session) = connected(builder()).await;
    let (stream, taken) = positions(2600);
    let (uploaded, ()) = tokio::join!(client.backfill("r", Some("bus"), stream), async {
        let begin = session.expect("backfill_begin").await;
        assert_eq!(begin["payload"], json!({"roomId": "r", "vehicleId": "bus"}));
        let mut sizes = Vec::new();
        for _ in 0..2 {
            let chunk = session.expect("backfill_chunk").await;
            assert_eq!(chunk["id"], begin["id"]);
            sizes.push(size(&chunk));
        }
        assert!(session.silent_for(secs(5)).await);
        assert!(taken.load(Ordering::Relaxed) <= 1501, "the stream is not read ahead");
        for chunk in 1..=4 {
            progress(&mut session, 500 * chunk).await;
            sizes.push(size(&session.expect("backfill_chunk").await));
            if chunk < 4 {
                assert!(session.silent_for(secs(1)).await);
            }
        }
        assert_eq!(session.expect("backfill_end").await["id"], begin["id"]);
        assert_eq!(sizes, [500, 500, 500, 500, 500, 100]);
        result(&mut session, &begin, 2600).await;
    });
    let uploaded = uploaded.unwrap();
    assert_eq!((uploaded.accepted, uploaded.duplicates, uploaded.rejected_total), (2600, 2, 1));
    assert_eq!(uploaded.rejected[0].index, 7);
}

#[tokio::test(start_paused = true)]
async fn an_upload_cut_off_is_unknown_and_never_sent_again() {
    let resend = ResendRefused { max_resends: 5, new_session_wait: secs(60) };
    let builder = builder().resend_refused(Some(resend));
    let (client, _events, mut servers, mut session) = connected(builder).await;
    let (stream, _) = positions(100);
    let (uploaded, session) = tokio::join!(client.backfill("r", None, stream), async {
        session.expect("backfill_begin").await;
        session.expect("backfill_chunk").await;
        drop(session);
        servers.welcome().await
    });
    assert!(matches!(uploaded, Err(Error::UnknownOutcome)), "{uploaded:?}");
    let mut session = session;
    assert!(session.silent_for(secs(5)).await);
    // Nor after a refusal, which is no loss: nothing of it ran.
    let (stream, _) = positions(100);
    let (uploaded, ()) = tokio::join!(client.backfill("r", None, stream), async {
        let begin = session.expect("backfill_begin").await;
        session.refuse(&begin, "SERVER_DRAINING", "elsewhere").await;
    });
    assert!(matches!(uploaded, Err(Error::Draining)), "{uploaded:?}");
    assert!(servers.quiet_for(secs(5)).await);
}

#[tokio::test(start_paused = true)]
async fn a_close_of_ours_means_not_started_unless_chunks_were_committed() {
    for committed in [false, true] {
        let (client, _events, _servers, mut session) = connected(builder()).await;
        let (stream, _) = positions(10);
        let (uploaded, ()) = tokio::join!(client.backfill("r", None, stream), async {
            session.expect("backfill_begin").await;
            session.expect("backfill_chunk").await;
            if committed {
                progress(&mut session, 10).await;
            }
            session.close(1001, "server shutting down").await;
        });
        match uploaded {
            Err(Error::Draining) => assert!(!committed),
            Err(Error::UnknownOutcome) => assert!(committed),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_upload_waits_for_a_session_and_stays_on_it() {
    let builder = builder().endpoint("ws://two:2/ws");
    let (client, _events, mut servers, session) = connected(builder).await;
    drop(session);
    until_phase(&client, Phase::Reconnecting).await;
    let (stream, _) = positions(600);
    let (uploaded, ()) = tokio::join!(client.backfill("r", None, stream), async {
        let mut old = servers.welcome().await;
        let begin = old.expect("backfill_begin").await;
        old.expect("backfill_chunk").await;
        old.notice(0.5).await;
        let mut new = servers.welcome().await;
        assert_eq!(size(&old.expect("backfill_chunk").await), 100);
        old.expect("backfill_end").await;
        assert!(new.silent_for(secs(1)).await);
        result(&mut old, &begin, 600).await;
        assert!(old.next().await.is_none(), "let go after the result");
    });
    assert_eq!(uploaded.unwrap().accepted, 600);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_upload_ends_and_the_next_one_waits_for_that() {
    let (client, _events, _servers, mut session) = connected(builder()).await;
    let endless = stream::unfold(0, |n| async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Some((json!({"latitude": 1.0, "longitude": 2.0, "timestamp": n}), n + 1))
    });
    let given_up = tokio::time::timeout(secs(15), client.backfill("r", None, endless)).await;
    assert!(given_up.is_err());
    let (stream, _) = positions(1);
    let (uploaded, ()) = tokio::join!(client.backfill("r", None, stream), async {
        let first = session.expect("backfill_begin").await;
        let mut last = session.next().await.unwrap();
        while last["type"] == "backfill_chunk" {
            last = session.next().await.unwrap();
        }
        assert_eq!((&last["type"], &last["id"]), (&json!("backfill_end"), &first["id"]));
        assert!(session.silent_for(secs(3)).await);
        // What is said about the first is not taken for the second's.
        progress(&mut session, 5).await;
        result(&mut session, &first, 5).await;
        let second = session.expect("backfill_begin").await;
        assert_eq!(size(&session.expect("backfill_chunk").await), 1);
        session.expect("backfill_end").await;
        result(&mut session, &second, 1).await;
    });
    assert_eq!(uploaded.unwrap().accepted, 1);
}

#[tokio::test(start_paused = true)]
async fn an_upload_may_end_before_its_stream() {
    let (client, _events, _servers, mut session) = connected(builder()).await;
    let stalled = stream::iter([Fix::new(1.0, 2.0)]).chain(stream::pending());
    let (uploaded, ()) = tokio::join!(client.backfill("r", None, stalled), async {
        let begin = session.expect("backfill_begin").await;
        assert_eq!(size(&session.expect("backfill_chunk").await), 1, "what is there goes out");
        let payload = json!({
            "accepted": 1, "duplicates": 0, "rejected": [], "rejectedTotal": 0, "reason": "idle"
        });
        session.answer(&begin, "backfill_result", payload).await;
    });
    assert_eq!(uploaded.unwrap().reason.as_deref(), Some("idle"));
    let (stream, _) = positions(5);
    let (uploaded, ()) = tokio::join!(client.backfill("r", None, stream), async {
        let begin = session.expect("backfill_begin").await;
        session.refuse(&begin, "NOT_JOINED", "never").await;
    });
    assert!(matches!(uploaded, Err(Error::Refused(refused)) if refused.code == "NOT_JOINED"));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_position_ends_the_upload() {
    let (client, _events, _servers, mut session) = connected(builder()).await;
    let long = json!({"note": "x".repeat(65_500)});
    for wrong in [json!([1, 2]), long] {
        let (uploaded, ()) = tokio::join!(
            client.backfill("r", None, stream::iter([json!({"latitude": 1}), wrong])),
            async {
                let begin = session.expect("backfill_begin").await;
                let mut last = session.next().await.unwrap();
                if last["type"] == "backfill_chunk" {
                    last = session.next().await.unwrap();
                }
                assert_eq!(last["type"], "backfill_end");
                result(&mut session, &begin, 1).await;
            }
        );
        let Err(Error::Invalid(said)) = uploaded else { panic!("{uploaded:?}") };
        assert!(said.starts_with("position 1 "), "{said}");
    }
}
