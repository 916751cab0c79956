//! A broker that fails, and a connection that loses something.

use super::*;

/// Waits for one failure and one recovery, collecting what is committed meanwhile.
async fn through(log: &mut Log, count: usize) -> (String, Vec<Committed>) {
    let (mut why, mut recovered, mut committed) = (String::new(), false, Vec::new());
    while !recovered || committed.len() < count {
        match log.next().await {
            LogEvent::Failing(failure) => {
                assert_eq!(failure.kind, crate::room_log::FailureKind::Broker);
                assert!(why.is_empty() || recovered, "told once");
                why = failure.to_string();
                recovered = false;
            }
            LogEvent::Recovered => recovered = true,
            LogEvent::Committed(batch) => committed.extend(batch),
            LogEvent::Arrived(_) => {}
            other => panic!("{other:?}"),
        }
    }
    (why, committed)
}

#[tokio::test]
async fn a_killed_broker_loses_and_doubles_nothing() {
    let mut server = NatsServer::start();
    let (mut one, mut other) = (Log::open(&server).await, Log::open(&server).await);
    other.load("a").await;
    let epoch = one.engine.epoch();
    for second in 0..500 {
        one.engine.append(position(&["a"], &format!("v{}", second % 5), second));
    }
    // In the middle of it.
    let mut early = Vec::new();
    while early.is_empty() {
        if let LogEvent::Committed(batch) = one.next().await {
            early.extend(batch);
        }
    }
    server.kill();
    for second in 500..600 {
        one.engine.append(position(&["a"], &format!("v{}", second % 5), second));
    }
    server.restart();
    let (why, committed) = through(&mut one, 600 - early.len()).await;
    assert!(why.contains(&server.url()), "{why}");
    early.extend(committed);
    let seqs: Vec<u64> = early.iter().map(|committed| committed.outcomes[0].seq).collect();
    assert_eq!(seqs.len(), 600);
    assert!(seqs.is_sorted_by(|one, next| one < next), "in order, each its own");
    assert!(early.is_sorted_by_key(|committed| committed.append.fix_time()), "in their order");
    assert!(early.iter().all(|c| c.outcomes[0].verdict == Verdict::Stored { newest: true }));
    assert_eq!(one.read_all("a", seqs[599]).await, seqs, "nothing is stored twice");
    let mut heard = Vec::new();
    while heard.len() < 600 {
        if let LogEvent::Arrived(batch) = other.next().await {
            heard.extend(batch.iter().map(|committed| committed.outcomes[0].seq));
        }
    }
    assert_eq!(heard, seqs, "the other missed nothing");
    assert_eq!(one.engine.epoch(), epoch);
}

#[tokio::test]
async fn a_broker_that_stands_still_holds_everything_up_in_order() {
    let server = NatsServer::start();
    let mut log = Log::open(&server).await;
    newest(&log.append(position(&["a"], "v", 0)).await);
    server.signal(Signal::STOP);
    for second in 1..50 {
        log.engine.append(position(&["a"], "v", second));
    }
    // A process stops thread by thread: it may still take some.
    let mut seqs = Vec::new();
    let failure = loop {
        match log.next().await {
            LogEvent::Committed(batch) => seqs.extend(batch.iter().map(|c| c.outcomes[0].seq)),
            LogEvent::Failing(failure) => break failure,
            other => panic!("{other:?}"),
        }
    };
    assert!(failure.to_string().contains(&server.url()), "{failure}");
    assert!(seqs.len() < 49);
    server.signal(Signal::CONT);
    let mut recovered = false;
    while seqs.len() < 49 || !recovered {
        match log.next().await {
            LogEvent::Committed(batch) => seqs.extend(batch.iter().map(|c| c.outcomes[0].seq)),
            LogEvent::Recovered => recovered = true,
            LogEvent::Failing(_) => recovered = false,
            other => panic!("{other:?}"),
        }
    }
    assert!(seqs.is_sorted_by(|one, next| one < next));
    assert_eq!(log.read_all("a", seqs[48]).await.len(), 50);
}

#[tokio::test]
async fn a_lost_event_is_read_from_the_stream_before_anything_newer() {
    let server = NatsServer::start();
    let (mut one, mut other) = (Log::open(&server).await, Log::open(&server).await);
    other.load("a").await;
    let mut seqs = vec![newest(&one.append(position(&["a"], "v", 0)).await)];
    other.arrived(1).await;
    other.engine.losing.store(3, Ordering::Relaxed);
    for second in 1..4 {
        seqs.push(newest(&one.append(position(&["a"], "v", second)).await));
    }
    while other.engine.losing.load(Ordering::Relaxed) > 0 {
        tokio::task::yield_now().await;
    }
    seqs.push(newest(&one.append(position(&["a"], "v", 4)).await));
    let heard: Vec<u64> = other.arrived(4).await.iter().map(|c| c.outcomes[0].seq).collect();
    assert_eq!(heard, seqs[1..]);
    // The last one of a vehicle, which no later one tells of.
    other.engine.losing.store(1, Ordering::Relaxed);
    let last = newest(&one.append(position(&["a"], "v", 5)).await);
    assert_eq!(other.arrived(1).await[0].outcomes[0].seq, last);
    // An own one too.
    one.engine.losing.store(1, Ordering::Relaxed);
    newest(&one.append(position(&["a"], "v", 6)).await);
}

#[tokio::test]
async fn a_loss_behind_newer_events_makes_the_room_start_over() {
    let server = NatsServer::start();
    let (mut one, mut other) = (Log::open(&server).await, Log::open(&server).await);
    other.load("a").await;
    one.append(position(&["a"], "v", 0)).await;
    other.arrived(1).await;
    other.engine.losing.store(1, Ordering::Relaxed);
    one.append(position(&["a"], "v", 1)).await;
    while other.engine.losing.load(Ordering::Relaxed) > 0 {
        tokio::task::yield_now().await;
    }
    one.append(position(&["a"], "w", 2)).await;
    one.append(position(&["a"], "v", 3)).await;
    loop {
        match other.next().await {
            LogEvent::Arrived(_) => {}
            LogEvent::RoomLoaded { newest, .. } => {
                assert!(!newest.is_empty());
                break;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_stream_made_anew_is_another_epoch_and_nothing_waits_for_ever() {
    let server = NatsServer::start();
    let mut log = Log::open(&server).await;
    let epoch = log.engine.epoch();
    log.load("a").await;
    newest(&log.append(position(&["a"], "v", 7)).await);
    log.link.client().request("$JS.API.STREAM.DELETE.fleet", bytes::Bytes::new()).await.unwrap();
    log.engine.append(position(&["a"], "v", 3));
    let (mut loaded, mut committed) = (None, None);
    while loaded.is_none() || committed.is_none() {
        match log.next().await {
            LogEvent::RoomLoaded { epoch, newest, .. } => loaded = Some((epoch, newest)),
            LogEvent::Committed(batch) => committed = Some(batch[0].outcomes[0].clone()),
            LogEvent::Failing(_) | LogEvent::Recovered => {}
            other => panic!("{other:?}"),
        }
    }
    let (told, _) = loaded.unwrap();
    assert_ne!(told, epoch);
    assert_eq!(told, log.engine.epoch());
    assert_eq!(committed.unwrap().verdict, Verdict::Stored { newest: true });
}

#[tokio::test]
async fn a_full_broker_answers_nothing_and_says_why() {
    let server = NatsServer::start_with("");
    let mut log = Log::open(&server).await;
    newest(&log.append(position(&["a"], "v", 0)).await);
    // A stream that takes nothing more, as one on a full disk.
    let mut config = api_of(&log).info().await.unwrap().config;
    config["max_msg_size"] = serde_json::json!(1);
    api_of(&log).call::<serde_json::Value>("STREAM.UPDATE.fleet", &config).await.unwrap();
    log.engine.append(position(&["a"], "v", 1));
    log.engine.append(position(&["a"], "v", 2));
    let LogEvent::Failing(failure) = log.next().await else { panic!("not failing") };
    assert!(failure.to_string().contains("stream fleet"), "{failure}");
    config["max_msg_size"] = serde_json::json!(-1);
    api_of(&log).call::<serde_json::Value>("STREAM.UPDATE.fleet", &config).await.unwrap();
    log.engine.poke();
    let (_, committed) = through_recovery(&mut log, 2).await;
    assert!(committed.is_sorted());
}

async fn through_recovery(log: &mut Log, count: usize) -> (bool, Vec<u64>) {
    let (mut recovered, mut seqs) = (false, Vec::new());
    while !recovered || seqs.len() < count {
        match log.next().await {
            LogEvent::Recovered => recovered = true,
            LogEvent::Failing(_) => recovered = false,
            LogEvent::Committed(batch) => seqs.extend(batch.iter().map(|c| c.outcomes[0].seq)),
            other => panic!("{other:?}"),
        }
    }
    (recovered, seqs)
}

fn api_of(log: &Log) -> Api {
    Api { link: log.link.clone(), subjects: Subjects::new("fleet") }
}
