//! What a resume, an acknowledgement and a room cost, through the real server and real
//! sockets: the time from a join with `since` to the last missed event, positions
//! acknowledged over WebSocket, and memory per room. `cargo bench --bench resume`; the
//! server is pinned to the first core, the load comes from wherever the system puts it.
//! The log alone is measured by `benches/room_log.rs`.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement prints its figures, and ends where it cannot measure"
)]
#![allow(
    clippy::disallowed_types,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::needless_pass_by_value,
    clippy::must_use_candidate,
    reason = "the harness of the tests, with their lints"
)]
#![allow(unreachable_pub, dead_code, unused_imports, reason = "the harness is used in part")]

#[path = "../tests/it/harness/mod.rs"]
mod harness;

use std::path::Path;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use harness::Server;
use harness::server::Builder;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Bytes of a position's payload, about.
const BODY: usize = 200;
/// Vehicles of the room that is resumed: the size of the snapshot that comes first.
const VEHICLES: u64 = 100;
/// Rooms of the memory's measurement.
const ROOMS: u64 = 10_000;

fn server(file: &Path) -> Builder {
    Server::builder()
        .set("room_log.path", file.display())
        .set("limits.message_rate", 0)
        .set("limits.rooms_per_connection", 2 * ROOMS)
        .under("taskset", &["-c", "0"])
}

/// A connection behind its welcome.
async fn connect(server: &Server, name: &str) -> Socket {
    let config = WebSocketConfig::default().read_buffer_size(64 << 10);
    let url = server.url(name);
    let connecting = tokio_tungstenite::connect_async_with_config(url, Some(config), true);
    let mut socket = connecting.await.unwrap().0;
    read_until(&mut socket, |text| text.starts_with(r#"{"type":"welcome""#)).await;
    socket
}

/// Reads until a text for which `last` is true; returns it.
async fn read_until(socket: &mut Socket, mut last: impl FnMut(&str) -> bool) -> Value {
    loop {
        let frame = tokio::time::timeout(harness::PATIENCE, socket.next()).await;
        match frame.expect("nothing came").expect("the connection ended").unwrap() {
            Message::Text(text) if last(&text) => return serde_json::from_str(&text).unwrap(),
            _ => {}
        }
    }
}

async fn send(socket: &mut Socket, message: Value) {
    socket.send(Message::text(message.to_string())).await.unwrap();
}

async fn join(socket: &mut Socket, room: &str, mode: &str) {
    let payload = json!({ "roomId": room, "mode": mode });
    send(socket, json!({ "type": "join_room", "id": 1, "payload": payload })).await;
    read_until(socket, is_joined).await;
}

fn is_joined(text: &str) -> bool {
    text.starts_with(r#"{"type":"room_joined""#)
}

/// A position as a message with an id.
fn position(id: u64, room: &str, vehicle: &str, base: u64) -> String {
    let mut text = format!(
        r#"{{"type":"location_update","id":{id},"payload":{{"roomId":"{room}","vehicleId":"{vehicle}","timestamp":{},"latitude":51.5,"longitude":-0.12,"speed":{},"pad":""#,
        base + id,
        id % 50
    );
    let overhead = r#"{"type":"location_update","id":1,"payload":"#.len();
    let pad = (BODY + overhead).saturating_sub(text.len() + 3);
    text.extend(std::iter::repeat_n('x', pad));
    text.push_str("\"}}");
    text
}

/// Publishes positions with `window` unanswered, and returns the room's `seq`s.
async fn publish(
    socket: &mut Socket,
    window: usize,
    messages: impl IntoIterator<Item = String>,
) -> Vec<u64> {
    let mut messages = messages.into_iter().peekable();
    let (mut seqs, mut open) = (Vec::new(), 0);
    while open > 0 || messages.peek().is_some() {
        while open < window && messages.peek().is_some() {
            socket.feed(Message::text(messages.next().unwrap())).await.unwrap();
            open += 1;
        }
        socket.flush().await.unwrap();
        // A quarter of the window is refilled at once.
        for _ in 0..(window / 4).clamp(1, open) {
            let frame = tokio::time::timeout(harness::PATIENCE, socket.next()).await;
            let Message::Text(text) = frame.expect("no answer").unwrap().unwrap() else {
                continue;
            };
            assert!(text.starts_with(r#"{"type":"ack""#), "{text}");
            seqs.push(seq_of_ack(&text));
            open -= 1;
        }
    }
    seqs
}

/// The one room's `seq`, without reading all of the JSON.
fn seq_of_ack(text: &str) -> u64 {
    let rooms = &text[text.find(r#""rooms":{"#).unwrap() + 9..];
    let number = &rooms[rooms.find(':').unwrap() + 1..];
    number[..number.find('}').unwrap()].parse().unwrap()
}

fn an_hour_ago() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    now.as_millis() as u64 - 3_600_000
}

/// Time from the join to the last of `missed` events; the count is checked.
async fn resume(server: &Server, epoch: &str, seqs: &[u64], missed: usize) -> Duration {
    let mut socket = connect(server, "dispatcher").await;
    let since = json!({ "epoch": epoch, "seq": seqs[seqs.len() - 1 - missed] });
    let payload = json!({ "roomId": "r", "mode": "subscribe", "since": since });
    let last = format!(r#""seq":{},"#, seqs[seqs.len() - 1]);
    let start = Instant::now();
    send(&mut socket, json!({ "type": "join_room", "id": 1, "payload": payload })).await;
    let joined = read_until(&mut socket, is_joined).await;
    assert_eq!(joined["payload"]["recovered"], true);
    let mut seen = 0;
    read_until(&mut socket, |text| {
        let event = text.starts_with(r#"{"type":"location_update""#);
        seen += usize::from(event);
        event && text.contains(&last)
    })
    .await;
    let time = start.elapsed();
    assert_eq!(seen, missed);
    let _ = socket.close(None).await;
    while let Some(Ok(_)) = socket.next().await {}
    time
}

async fn resumes(folder: &Path) {
    let file = folder.join("resume.db");
    println!("resume: join with `since` to the last missed event, {VEHICLES} vehicles in the room");
    println!("| missed | room | median | worst | runs | events/s |\n|---|---|---|---|---|---|");
    let first = server(&file).start();
    let mut publisher = connect(&first, "publisher").await;
    join(&mut publisher, "r", "publish").await;
    let base = an_hour_ago();
    let messages = (0..110_000).map(|n| position(n, "r", &format!("v{}", n % VEHICLES), base));
    let mut seqs = publish(&mut publisher, 512, messages).await;
    seqs.sort_unstable();
    drop(publisher);
    drop(first);
    for active in [false, true] {
        let server = server(&file).start();
        let mut socket = connect(&server, "watcher").await;
        let payload = json!({ "roomId": "r" });
        send(&mut socket, json!({ "type": "join_room", "id": 1, "payload": payload })).await;
        let joined = read_until(&mut socket, is_joined).await;
        let epoch = joined["payload"]["epoch"].as_str().unwrap().to_owned();
        let watcher = if active {
            // The newest 2,000 of the events come live, so that they are in the tail.
            let from = seqs.len() as u64;
            let messages = from..from + 2000;
            let messages = messages.map(|n| position(n, "r", &format!("v{}", n % VEHICLES), base));
            let mut publisher = connect(&server, "publisher").await;
            join(&mut publisher, "r", "publish").await;
            seqs.extend(publish(&mut publisher, 512, messages).await);
            seqs.sort_unstable();
            Some(tokio::spawn(async move { while let Some(Ok(_)) = socket.next().await {} }))
        } else {
            let _ = socket.close(None).await;
            while let Some(Ok(_)) = socket.next().await {}
            None
        };
        for (missed, runs) in [(10, 50), (1_000, 30), (100_000, 5)] {
            let mut times = Vec::new();
            for _ in 0..runs {
                times.push(resume(&server, &epoch, &seqs, missed).await);
            }
            times.sort_unstable();
            let median = times[runs / 2];
            let room = if active { "active (tail in memory)" } else { "nobody in it (disk)" };
            let rate = missed as f64 / median.as_secs_f64();
            println!(
                "| {missed} | {room} | {median:.2?} | {:.2?} | {runs} | {rate:.0} |",
                times[runs - 1]
            );
        }
        if let Some(watcher) = watcher {
            watcher.abort();
        }
    }
}

/// Time that all threads of the server have had on a core.
fn cpu(server: &Server) -> Duration {
    let tasks = format!("/proc/{}/task", server.pid().as_raw_nonzero());
    let on_core = |task: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    Duration::from_nanos(std::fs::read_dir(tasks).unwrap().map(on_core).sum())
}

async fn throughput(folder: &Path) {
    println!("\nacknowledged positions over WebSocket, {BODY} bytes, the server on one core");
    println!(
        "| publishers | unanswered each | subscribers | acknowledged/s | server CPU each | acknowledged per CPU second |"
    );
    println!("|---|---|---|---|---|---|");
    for (publishers, window, subscribers) in
        [(1, 1, 0), (1, 512, 0), (8, 256, 0), (64, 64, 0), (8, 256, 1)]
    {
        let file = folder.join(format!("acks-{publishers}-{window}-{subscribers}.db"));
        let server = server(&file).start();
        let count: u64 = if window == 1 { 5_000 } else { 160_000 };
        let mut watchers = tokio::task::JoinSet::new();
        for n in 0..subscribers {
            let mut socket = connect(&server, &format!("watcher-{n}")).await;
            join(&mut socket, "r", "subscribe").await;
            watchers.spawn(async move { while let Some(Ok(_)) = socket.next().await {} });
        }
        let mut sockets = Vec::new();
        for n in 0..publishers {
            let mut socket = connect(&server, &format!("p{n}")).await;
            join(&mut socket, "r", "publish").await;
            sockets.push((n, socket));
        }
        let base = an_hour_ago();
        let (start, cpu_before) = (Instant::now(), cpu(&server));
        let mut tasks = tokio::task::JoinSet::new();
        for (n, mut socket) in sockets {
            tasks.spawn(async move {
                let vehicle = format!("p{n}");
                let messages = (0..count / publishers).map(|id| position(id, "r", &vehicle, base));
                publish(&mut socket, window, messages).await.len() as f64
            });
        }
        let acked: f64 = tasks.join_all().await.iter().sum();
        let (time, used) = (start.elapsed(), cpu(&server) - cpu_before);
        assert_eq!(acked, (count / publishers * publishers) as f64);
        println!(
            "| {publishers} | {window} | {subscribers} | {:.0} | {:.1} µs | {:.0} |",
            acked / time.as_secs_f64(),
            used.as_secs_f64() * 1e6 / acked,
            acked / used.as_secs_f64(),
        );
        watchers.abort_all();
    }
}

/// Resident memory of the server, in KiB.
fn resident(server: &Server) -> i64 {
    let path = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

async fn join_all(socket: &mut Socket, rooms: u64) {
    let mut open = 0;
    for room in 0..rooms {
        let payload = json!({ "roomId": format!("room-{room}"), "mode": "both" });
        let message = json!({ "type": "join_room", "id": room, "payload": payload });
        socket.feed(Message::text(message.to_string())).await.unwrap();
        open += 1;
        if open == 100 || room == rooms - 1 {
            socket.flush().await.unwrap();
            read_until(socket, |text| {
                open -= usize::from(is_joined(text));
                open == 0
            })
            .await;
        }
    }
}

async fn memory(folder: &Path) {
    println!(
        "\nmemory of rooms: resident set of the server, {ROOMS} rooms joined by one connection"
    );
    println!("| state | KiB | difference to the one before, bytes per room |\n|---|---|---|");
    let server = server(&folder.join("memory.db")).start();
    let base = an_hour_ago();
    let mut publisher = connect(&server, "publisher").await;
    join(&mut publisher, "warm", "publish").await;
    // Buffers and the database's cache are grown first: they are no room's.
    let in_one =
        |from: u64, count: u64| (from..from + count).map(move |id| position(id, "warm", "w", base));
    publish(&mut publisher, 256, in_one(0, 100_000)).await;
    let mut before = resident(&server);
    println!("| 100,000 positions in one room | {before} | |");
    let mut tell = |state: &str| {
        let now = resident(&server);
        let each = (now - before) * 1024 / ROOMS as i64;
        println!("| {state} | {now} | {each} |");
        before = now;
    };
    publish(&mut publisher, 256, in_one(100_000, ROOMS)).await;
    tell("as many positions as rooms in that one room (what the log keeps of a position)");
    let mut watcher = connect(&server, "watcher").await;
    join_all(&mut watcher, ROOMS).await;
    tell("joined, no position: an empty room with one member");
    join_all(&mut publisher, ROOMS).await;
    tell("a second member in each");
    let reader = tokio::spawn(async move {
        let mut seen = 0;
        while seen < ROOMS {
            let Some(Ok(Message::Text(text))) = watcher.next().await else { continue };
            seen += u64::from(text.starts_with(r#"{"type":"location_update""#));
        }
        watcher
    });
    let in_each = (0..ROOMS).map(|n| position(n, &format!("room-{n}"), "w", base));
    publish(&mut publisher, 64, in_each).await;
    let mut watcher = reader.await.unwrap();
    tell("one position in each: an active room");
    for socket in [&mut watcher, &mut publisher] {
        let _ = socket.close(None).await;
        while let Some(Ok(_)) = socket.next().await {}
    }
    // Gone when the last connection is: asked for by a new one that joins the last room.
    let mut last = connect(&server, "last").await;
    join(&mut last, "warm", "publish").await;
    tell("all have left");
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    // `cargo test --benches` only builds it.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().unwrap();
    println!("{cores} cores, load average before: {}", load.trim());
    let folder = tempfile::tempdir().unwrap();
    resumes(folder.path()).await;
    throughput(folder.path()).await;
    memory(folder.path()).await;
}
