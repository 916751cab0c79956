//! The budgets at their size: one connection with everything that it may hold, and many
//! that are each under their counts but not together under the process's bytes.
//!
//! `PLANE_FULL=1` runs the second with 10,101 requests for each of 200 connections.

use std::collections::BTreeMap;
use tokio::time::Instant;

use serde_json::{Value, json};

use super::pipe::Pipe;
use super::{admin, fix, ids, logged, memory, numbers, pause, resume};
use crate::harness::Server;

const REQUESTS: u64 = 10_000;
const NOTIFICATIONS: u64 = 1_000;
const OVER: u64 = 101;

#[test]
fn one_connection_with_all_that_it_may_hold() {
    let server = Server::builder()
        .set("limits.message_rate", 0)
        // The watcher is here to tell the order, not to be a slow consumer.
        .set("outgoing.high_water", "8MiB")
        .set("outgoing.max_bytes", "16MiB")
        .start();
    let mut watcher = Pipe::connect(&server, "watcher");
    watcher.join("r");
    let mut client = Pipe::connect(&server, "bus");
    client.join("r");
    pause(&server);

    // Requests and notifications alternate as long as there are both.
    let (mut requests, mut notifications) = (Vec::new(), Vec::new());
    for n in 0..REQUESTS + OVER + NOTIFICATIONS + OVER {
        if n % 9 == 8 && (notifications.len() as u64) < NOTIFICATIONS + OVER {
            notifications.push(n);
            client.queue(&json!({ "type": "location_update", "payload": fix(n) }));
        } else {
            requests.push(n);
            client.ask("location_update", n, fix(n));
        }
    }
    assert_eq!(requests.len() as u64, REQUESTS + OVER);
    let mut refused = client.until_pong();
    refused.retain(|message| message["type"] != "member_joined");
    assert_eq!(ids(&refused), requests[REQUESTS as usize..]);
    for answer in &refused {
        let error = &answer["payload"];
        assert_eq!(error["code"], "SERVER_BUSY");
        let text = error["message"].as_str().unwrap();
        assert!(text.contains(" 10000 of this connection's requests wait"), "{text}");
        assert_eq!((&error["number"], &error["retry"]), (&json!(-32000), &json!("later")));
        assert_eq!(error["type"], "location_update");
    }
    let held = admin(&server, "GET", "/status")["held"].clone();
    assert_eq!((&held["requests"], &held["notifications"]), (&json!(10_000), &json!(1_000)));
    let session = client.session().to_owned();
    let lines = |event: &str, count: &str| logged(&server, event, &[count, "session_id", "level"]);
    server.wait_for_line(|line| line["dropped"] == 101);
    server.wait_for_line(|line| line["refused"] == 101);
    let expected = [1, 101].map(|n| vec![json!(n), json!(session), json!("WARN")]);
    assert_eq!(lines("plane.refusing", "refused"), expected);
    assert_eq!(lines("plane.dropping", "dropped"), expected);

    let watching = std::thread::spawn(move || {
        let mut seen = Vec::new();
        while seen.len() < (REQUESTS + NOTIFICATIONS) as usize {
            seen.extend(numbers(&[watcher.recv()]));
        }
        seen
    });
    resume(&server);
    let told = client.recv();
    assert_eq!(told["type"], "notifications_dropped");
    assert_eq!(told["payload"], json!({ "count": OVER, "reason": "paused" }));
    let acks = client.take(REQUESTS as usize);
    assert!(acks.iter().all(|answer| answer["type"] == "ack"));
    assert_eq!(ids(&acks), requests[..REQUESTS as usize], "each once, in order");
    assert!(client.until_pong().is_empty(), "told once, and nothing answered twice");
    // The survivors: the first requests, the newest notifications, in the order of arrival.
    let mut survivors = requests[..REQUESTS as usize].to_vec();
    survivors.extend(&notifications[OVER as usize..]);
    survivors.sort_unstable();
    assert!(watching.join().unwrap() == survivors);
    server.wait_for_line(|line| line["event"] == "plane.resumed" && line["hold"] == "operator");
    let sums = ["held", "flushed", "refused", "dropped", "level"];
    assert_eq!(
        *logged(&server, "plane.resumed", &sums).last().unwrap(),
        [json!(11_101), json!(11_000), json!(OVER), json!(OVER), json!("INFO")]
    );
    assert_eq!(admin(&server, "GET", "/status")["held"]["bytes"], 0);
}

/// What one of many connections saw of its requests.
#[derive(Default)]
struct Seen {
    busy: usize,
    /// The sequence numbers of its acknowledgements, in the order they came.
    seqs: Vec<u64>,
    dropped: u64,
}

/// Reads until the pong behind all requests has come, and the one after the pause (who held
/// nothing is told of its drops too), and every request is answered, each once.
fn read_answers(pipe: &mut Pipe, requests: usize, fill: &std::sync::mpsc::Sender<()>) -> Seen {
    let mut seen = Seen::default();
    let mut answered = vec![false; requests];
    let mut pongs = 0;
    while pongs < 2 || seen.busy + seen.seqs.len() < requests {
        let message: Value = pipe.recv();
        match message["type"].as_str().unwrap() {
            "pong" => {
                pongs += 1;
                if pongs == 1 {
                    fill.send(()).unwrap();
                }
            }
            "notifications_dropped" => {
                seen.dropped += message["payload"]["count"].as_u64().unwrap();
            }
            kind => {
                let id = message["id"].as_u64().unwrap() as usize;
                assert!(!std::mem::replace(&mut answered[id], true), "{id} is answered twice");
                if kind == "ack" {
                    seen.seqs.push(message["payload"]["rooms"]["r"].as_u64().unwrap());
                } else {
                    assert_eq!(message["payload"]["code"], "SERVER_BUSY", "{message}");
                    seen.busy += 1;
                }
            }
        }
    }
    seen
}

#[test]
fn many_connections_stay_under_the_bytes_of_the_process() {
    const CONNECTIONS: usize = 200;
    /// Few, so that everyone holds something before the bytes are gone.
    const AT_ONCE: usize = 10;
    let full = std::env::var_os("PLANE_FULL").is_some();
    // The first and the last hold enough that nobody could flush them at one go.
    let (many, few, budget) =
        if full { (10_101, 10_101, 256 << 20) } else { (3_000, 150, 8 << 20) };
    let requests = move |at: usize| if at == 0 || at == CONNECTIONS - 1 { many } else { few };
    let server = Server::builder()
        .set("limits.message_rate", 0)
        .set("plane.max_held_bytes", budget)
        .set("plane.max_held_bytes_per_connection", budget / 2)
        .start();
    let mut pipes: Vec<Pipe> =
        (0..CONNECTIONS).map(|at| Pipe::connect(&server, &format!("bus{at}"))).collect();
    for pipe in &mut pipes {
        pipe.request("join_room", 900_000, json!({ "roomId": "r", "mode": "publish" }));
    }
    pause(&server);
    let before = memory(&server, "VmRSS");

    let (fill, filled) = std::sync::mpsc::channel();
    let mut sockets: Vec<_> = pipes.iter().map(Pipe::socket).collect();
    let readers: Vec<_> = pipes
        .into_iter()
        .enumerate()
        .map(|(at, mut pipe)| {
            let fill = fill.clone();
            std::thread::spawn(move || read_answers(&mut pipe, requests(at), &fill))
        })
        .collect();
    let started = Instant::now();
    let padding = "x".repeat(300);
    let write = |socket: &mut std::net::TcpStream, from: usize, to: usize| {
        use std::io::Write;
        let mut bytes = Vec::new();
        for id in from..to {
            let mut payload = fix(id as u64);
            payload["note"] = json!(padding);
            let request = json!({ "type": "location_update", "id": id, "payload": payload });
            bytes.extend(crate::harness::raw::text_frame(&request.to_string()));
            if id % 9 == 8 {
                let event = json!({ "type": "location_update", "payload": payload });
                bytes.extend(crate::harness::raw::text_frame(&event.to_string()));
            }
        }
        socket.write_all(&bytes).unwrap();
    };
    if !full {
        write(&mut sockets[0], 0, many);
        write(&mut sockets[CONNECTIONS - 1], 0, many);
    }
    for from in (0..many).step_by(AT_ONCE) {
        for (at, socket) in sockets.iter_mut().enumerate() {
            let alone = !full && requests(at) == many;
            if !alone && from < requests(at) {
                write(socket, from, requests(at).min(from + AT_ONCE));
            }
        }
    }
    let ping = |sockets: &mut [std::net::TcpStream]| {
        use std::io::Write;
        for socket in sockets {
            socket.write_all(&crate::harness::raw::text_frame(r#"{"type":"ping"}"#)).unwrap();
        }
    };
    ping(&mut sockets);
    for _ in 0..CONNECTIONS {
        filled.recv_timeout(crate::harness::PATIENCE * 3).unwrap();
    }
    let status = admin(&server, "GET", "/status");
    let held = status["held"]["bytes"].as_u64().unwrap();
    assert!(held <= budget as u64 && held > budget as u64 - 1024, "it is the bound: {held}");
    let grown = memory(&server, "VmRSS").saturating_sub(before);
    let paused = started.elapsed();
    assert!(grown < budget as u64 + (8 << 20), "RSS + {grown} for {held} held");

    resume(&server);
    ping(&mut sockets);
    let seen: Vec<Seen> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
    println!(
        "held {held} bytes of {budget}: RSS + {grown} from {before}, peak {}; filled in \
         {paused:?}, flushed in {:?}",
        memory(&server, "VmHWM"),
        started.elapsed() - paused
    );
    let busy: usize = seen.iter().map(|seen| seen.busy).sum();
    assert!(busy > 0, "some were refused");
    for seen in &seen {
        assert!(seen.seqs.is_sorted(), "in the order of the requests");
    }
    let (first, last) = (&seen[0].seqs, &seen[CONNECTIONS - 1].seqs);
    assert!(last[0] < *first.last().unwrap(), "the first did not starve the last");
    assert!(first[0] < *last.last().unwrap(), "nor the last the first");
    server.wait_for_line(|line| line["event"] == "plane.resumed" && line["hold"] == "operator");
    // Each connection has its own count, and each count its own lines.
    let mut lines: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in logged(&server, "plane.refusing", &["session_id", "refused"]) {
        let session = line[0].as_str().unwrap().to_owned();
        lines.entry(session).or_default().push(line[1].as_u64().unwrap());
    }
    assert_eq!(lines.len(), seen.iter().filter(|seen| seen.busy > 0).count());
    let every_hundredth: usize = seen.iter().map(|seen| seen.busy.div_ceil(100)).sum();
    assert_eq!(lines.values().map(Vec::len).sum::<usize>(), every_hundredth);
    let sums = logged(&server, "plane.resumed", &["refused", "dropped"]).pop().unwrap();
    let dropped: u64 = seen.iter().map(|seen| seen.dropped).sum();
    assert_eq!(sums, [json!(busy), json!(dropped)]);
    assert_eq!(admin(&server, "GET", "/status")["held"]["bytes"], 0);
}
