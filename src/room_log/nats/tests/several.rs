//! Several engines on one stream.

use super::*;

#[tokio::test]
async fn what_one_publishes_the_other_hears_once_and_in_order() {
    let server = NatsServer::start();
    let (mut one, mut other) = (Log::open(&server).await, Log::open(&server).await);
    assert_eq!(one.engine.epoch(), other.engine.epoch());
    for name in ["a", "odd.*>  ödla/🚌"] {
        let rooms = [name];
        other.load(name).await;
        let mut seqs = Vec::new();
        for second in 0..300 {
            let vehicle = format!("v.{}", second % 7);
            one.engine.append(position(&rooms, &vehicle, second));
        }
        while seqs.len() < 300 {
            if let LogEvent::Committed(batch) = one.next().await {
                seqs.extend(batch.iter().map(|committed| committed.outcomes[0].seq));
            }
        }
        assert!(seqs.is_sorted());
        let heard = other.arrived(300).await;
        assert_eq!(heard.iter().map(|c| c.outcomes[0].seq).collect::<Vec<_>>(), seqs);
        assert!(heard.iter().all(|c| c.append.sender == ELSEWHERE && c.append.reply.is_none()));
        assert_eq!(heard[9].append.vehicle.as_str(), "v.2");
        assert_eq!(heard[9].append.rooms, [room(name)]);
        assert_eq!(heard[9].append.body, position(&rooms, "v", 9).body);
        assert_eq!(other.read_all(name, seqs[299]).await, seqs);
        let (head, newest) = other.load(name).await;
        assert_eq!((head, newest.len()), (seqs[299], 7));
        assert!(newest.is_sorted_by_key(|position| position.seq));
    }
}

#[tokio::test]
async fn two_that_hammer_one_vehicle_judge_every_position_right() {
    let server = NatsServer::start();
    let (mut one, mut other) = (Log::open(&server).await, Log::open(&server).await);
    one.load("a").await;
    other.load("a").await;
    // Each publishes every second fix; which of them are late is the stream's to say.
    for second in 0..300 {
        one.engine.append(position(&["a"], "v", 2 * second));
        other.engine.append(position(&["a"], "v", 2 * second + 1));
    }
    let mut judged = Vec::new();
    for log in [&mut one, &mut other] {
        let mut own = 0;
        while own < 300 {
            match log.next().await {
                LogEvent::Committed(batch) => {
                    own += batch.len();
                    judged.extend(batch.into_iter().map(|committed| {
                        let outcome = &committed.outcomes[0];
                        (outcome.seq, committed.append.fix_time(), outcome.verdict)
                    }));
                }
                LogEvent::Arrived(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    judged.sort_unstable_by_key(|(seq, ..)| *seq);
    assert!(judged.is_sorted_by(|(one, ..), (next, ..)| one < next), "each its own seq");
    let mut newest = None;
    let (mut live, mut late) = (0, 0);
    for (seq, fix, verdict) in &judged {
        let is_newest = newest.is_none_or(|newest| *fix >= newest);
        assert_eq!(*verdict, Verdict::Stored { newest: is_newest }, "{seq}");
        if is_newest {
            newest = Some(*fix);
            live += 1;
        } else {
            late += 1;
        }
    }
    assert_eq!(live + late, 600);
    assert_eq!(one.read_all("a", judged[599].0).await.len(), live);
}

#[tokio::test]
async fn a_repetition_is_recognised_by_the_others_and_after_a_restart() {
    let server = NatsServer::start();
    let mut one = Log::open(&server).await;
    let keyed =
        |key: &str, second| Append { key: Some(key.into()), ..position(&["a", "b"], "v", second) };
    let first = one.append(keyed("k ä\r", 1)).await;
    assert_eq!(first.len(), 2);
    let unkeyed = one.append(position(&["a"], "v", 2)).await;
    newest(&one.append(position(&["a"], "v", 3)).await);
    drop(one);
    let mut other = Log::open(&server).await;
    for _ in 0..2 {
        let again = other.append(keyed("k ä\r", 1)).await;
        assert_eq!(again.iter().map(|o| o.seq).collect::<Vec<_>>(), [first[0].seq, first[1].seq]);
        assert!(again.iter().all(|outcome| outcome.verdict == Verdict::Duplicate), "{again:?}");
    }
    let again = other.append(position(&["a"], "v", 2)).await;
    assert_eq!((again[0].seq, again[0].verdict), (unkeyed[0].seq, Verdict::Duplicate));
    // One without a key repeats one that had one.
    let again = other.append(position(&["a"], "v", 1)).await;
    assert_eq!((again[0].seq, again[0].verdict), (first[0].seq, Verdict::Duplicate));
    // A key completes the rooms that did not have it.
    let more = Append { key: Some("k ä\r".into()), ..position(&["a", "c"], "v", 1) };
    let more = other.append(more).await;
    assert_eq!((more[0].seq, more[0].verdict), (first[0].seq, Verdict::Duplicate));
    assert_eq!(more[1].verdict, Verdict::Stored { newest: true });
}

#[tokio::test]
async fn a_position_for_several_rooms_is_seen_in_each_and_answered_once() {
    let server = NatsServer::start();
    let (mut one, mut other) = (Log::open(&server).await, Log::open(&server).await);
    for name in ["a", "b"] {
        one.load(name).await;
        other.load(name).await;
    }
    one.engine.append(position(&["a", "b"], "v", 1));
    let (seen, committed) = one.committed().await;
    let seqs: Vec<u64> = committed.outcomes.iter().map(|outcome| outcome.seq).collect();
    assert_eq!(seen, seqs);
    let heard = other.arrived(2).await;
    assert_eq!(heard.iter().map(|c| c.outcomes[0].seq).collect::<Vec<_>>(), seqs);
}

#[tokio::test]
async fn one_senders_positions_reach_the_other_in_their_order_across_rooms() {
    let server = NatsServer::start();
    let (mut one, mut other) = (Log::open(&server).await, Log::open(&server).await);
    let names: Vec<String> = (0..20).map(|n| format!("room {n}")).collect();
    for name in &names {
        one.load(name).await;
        other.load(name).await;
    }
    for second in 0..1000_usize {
        let name = [names[second * 7 % 20].as_str()];
        let vehicle = format!("v{}", second % 3);
        one.engine.append(position(&name, &vehicle, i64::try_from(second).unwrap()));
    }
    let heard = other.arrived(1000).await;
    let fixes: Vec<_> = heard.iter().map(|committed| committed.append.fix_time()).collect();
    assert!(fixes.is_sorted(), "{fixes:?}");
}

#[tokio::test]
async fn a_room_that_nobody_is_in_costs_nothing_and_comes_back() {
    let server = NatsServer::start();
    let (mut one, mut other) = (Log::open(&server).await, Log::open(&server).await);
    other.load("a").await;
    let first = newest(&one.append(position(&["a"], "v", 1)).await);
    assert_eq!(other.arrived(1).await[0].outcomes[0].seq, first);
    other.engine.unload_room(room("a"));
    // Unloaded and loaded again before the engine has let go of it, and after.
    for second in 2..6 {
        let seq = newest(&one.append(position(&["a"], "v", second)).await);
        if second % 2 == 0 {
            tokio::time::sleep(engine::LINGER * 3).await;
        }
        let (head, found) = other.load("a").await;
        assert_eq!((head, found.last().map(|newest| newest.seq)), (seq, Some(seq)));
        let seq = newest(&one.append(position(&["a"], "w", second)).await);
        assert_eq!(other.arrived(1).await[0].outcomes[0].seq, seq);
        other.engine.unload_room(room("a"));
    }
    newest(&one.append(position(&["a"], "v", 9)).await);
    other.engine.flush().await;
    assert!(other.events.try_recv().is_err(), "nothing of a room that nobody is in");
}

#[tokio::test]
async fn a_head_is_confirmed_when_all_up_to_it_has_been_reported() {
    let server = NatsServer::start();
    let (mut one, mut other) = (Log::open(&server).await, Log::open(&server).await);
    other.load("a").await;
    for second in 0..50 {
        let seq = newest(&one.append(position(&["a"], "v", second)).await);
        other.engine.confirm_head(room("a"));
        let mut heard = 0;
        loop {
            match other.next().await {
                LogEvent::Arrived(batch) => {
                    heard = batch.last().unwrap().outcomes[0].seq;
                }
                LogEvent::HeadConfirmed { head, .. } => {
                    assert_eq!(head, seq);
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(heard, seq);
    }
}

#[tokio::test]
async fn an_upload_goes_live_once_and_is_not_in_history_twice() {
    let server = NatsServer::start();
    let (mut one, mut other) = (Log::open(&server).await, Log::open(&server).await);
    other.load("a").await;
    let mut last = 0;
    for second in [40, 60, 70] {
        let append = Append { quiet: true, ..position(&["a"], "v", second) };
        last = newest(&one.append(append).await);
    }
    one.engine.release(Release { room: room("a"), seq: last, sender: ConnId(9) });
    let (_, released) = one.committed().await;
    assert_eq!(released.append.sender, ConnId(9));
    assert_eq!(other.arrived(1).await[0].outcomes[0].seq, released.outcomes[0].seq);
    assert_eq!(
        one.append(position(&["a"], "v", 65)).await[0].verdict,
        Verdict::Stored { newest: false }
    );
    let query = HistoryQuery {
        room: room("a"),
        vehicle: None,
        from: None,
        to: None,
        limit: 10,
        max_bytes: 100_000,
        cursor: None,
    };
    // The one that has moved is taken out behind the answer.
    let mut found = Vec::new();
    tokio::time::timeout(LIMIT, async {
        while found.len() != 4 {
            found = one.engine.history(query.clone()).await.unwrap().events;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{found:?}"));
    assert!(found.is_sorted_by_key(|position| position.fix));
}
