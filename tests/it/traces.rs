//! `milepost simulate`, `watch` and `demo` as processes of their own: recorded traces go
//! through a real server, and another process sees what was accepted, once.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use rusqlite::{Connection, OpenFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::client::position;
use crate::harness::{Client, PATIENCE, Server};

fn milepost(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milepost"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("MILEPOST_TOKEN").env_remove("MILEPOST_TOKEN_SECRET");
    command
}

/// A running command whose lines are read as they come.
struct Running {
    child: Child,
    out: Receiver<String>,
    err: Receiver<String>,
}

fn lines_of(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (lines, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let out = lines_of(child.stdout.take().unwrap());
        let err = lines_of(child.stderr.take().unwrap());
        Self { child, out, err }
    }

    /// The next line of stdout; `None` at its end.
    fn line(&self) -> Option<String> {
        match self.out.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("nothing came: {:?}", self.said()),
        }
    }

    /// What came on stderr so far.
    fn said(&self) -> Vec<String> {
        self.err.try_iter().collect()
    }

    /// Waits for the end of the process.
    fn code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the process did not end");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `milepost watch`, and the positions that it prints.
struct Watch(Running);

impl Watch {
    /// Starts it and waits until it is in the room.
    fn start(url: &str, room: &str, more: &[&str]) -> Self {
        let args = [&["watch", "--url", url, room], more].concat();
        let watch = Self(Running::start(milepost(&args)));
        assert_eq!(watch.next()["event"], "joined");
        watch
    }

    fn next(&self) -> Value {
        let line = self.0.line().unwrap_or_else(|| panic!("it ended: {:?}", self.0.said()));
        serde_json::from_str(&line).unwrap()
    }

    /// The live positions up to the one with `last` as its sequence number.
    fn until(&self, last: u64) -> Vec<Value> {
        let mut seen: Vec<Value> = Vec::new();
        while seen.last().is_none_or(|one| one["seq"] != last) {
            let event = self.next();
            if event["event"] == "location" {
                seen.push(event);
            }
        }
        seen
    }

    /// Ends it: nothing more may have come, and nothing may have been missed.
    fn end(mut self) -> Vec<String> {
        self.0.terminate();
        assert_eq!(self.0.code(), Some(0));
        let rest: Vec<String> =
            self.0.out.iter().filter(|line| line.contains("\"location\"")).collect();
        assert_eq!(rest, [""; 0]);
        let said: Vec<String> = self.0.err.iter().collect();
        let missing = ["reset", "out of order", "lagging"];
        assert!(
            !said.iter().any(|line| missing.iter().any(|word| line.contains(word))),
            "{said:?}"
        );
        said
    }
}

/// What `simulate` says at its end.
#[derive(Debug)]
struct Report {
    text: String,
}

impl Report {
    fn of(args: &[&str]) -> Self {
        let mut running = Running::start(milepost(&[&["simulate"], args].concat()));
        let mut text = String::new();
        while let Some(line) = running.line() {
            text.push_str(&line);
            text.push('\n');
        }
        assert_eq!(running.code(), Some(0), "{text} {:?}", running.said());
        Self { text }
    }

    /// The first number behind `label`.
    fn number(&self, label: &str) -> u64 {
        let line = self.text.lines().find_map(|line| line.strip_prefix(label));
        let rest = line.unwrap_or_else(|| panic!("no {label}: {}", self.text)).trim_start();
        rest.split(' ').next().unwrap().parse().unwrap()
    }

    /// The count in front of `reason`, in parentheses or in a line of its own.
    fn count(&self, reason: &str) -> u64 {
        let Some((before, _)) = self.text.split_once(reason) else { return 0 };
        before.trim_end().rsplit([' ', '(']).next().unwrap().parse().unwrap()
    }
}

fn excerpt(name: &str) -> (PathBuf, Vec<Value>) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let text = std::fs::read_to_string(&file).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (file, rows)
}

/// Sequence numbers and marks of the log's rows, without late ones.
fn live(server: &Server, room: &str) -> Vec<(u64, String)> {
    let file = server.path().join("data/milepost.db");
    let log = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let sql = "SELECT seq, body FROM positions WHERE room = ?1 AND NOT late ORDER BY seq";
    let mut rows = log.prepare(sql).unwrap();
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, String>(1)?));
    rows.query_map([room], row)
        .unwrap()
        .map(|row| {
            let (seq, body) = row.unwrap();
            let mark = body.split_once("\"sim\":\"").map(|(_, rest)| rest);
            (seq, mark.map_or("", |rest| rest.split('"').next().unwrap()).to_owned())
        })
        .collect()
}

/// Holds what was watched against the log: each accepted position once, in the log's order,
/// and no vehicle runs backwards.
fn compare(server: &Server, room: &str, watch: Watch) {
    let stored = live(server, room);
    let seen = watch.until(stored.last().unwrap().0);
    let watched: Vec<(u64, String)> = seen
        .iter()
        .map(|one| (one["seq"].as_u64().unwrap(), one["sim"].as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(watched, stored);
    let mut newest = std::collections::HashMap::new();
    for one in &seen {
        let time = one["timestamp"].as_str().unwrap();
        let before = newest.insert(one["vehicleId"].as_str().unwrap(), time);
        assert!(before.is_none_or(|before| before <= time), "{one}");
    }
    watch.end();
}

fn server() -> Server {
    Server::builder().set("limits.message_rate", 0).start()
}

fn replay(name: &str, more: &[&str]) {
    let server = server();
    let url = format!("ws://{}/ws", server.public);
    let (file, rows) = excerpt(name);
    let watch = Watch::start(&url, "r", &[]);
    let file = file.to_str().unwrap();
    let args = ["--url", &url, "--room", "r", "--trace", file, "--speed", "200"];
    let report = Report::of(&[&args, more].concat());

    let without = rows.iter().filter(|row| row.get("latitude").is_none()).count() as u64;
    let null = rows.iter().filter(|row| row["latitude"] == 0 && row["longitude"] == 0).count();
    assert_eq!(report.number("sent"), rows.len() as u64);
    assert_eq!(report.number("refused"), without + null as u64, "{}", report.text);
    assert_eq!(report.count("VALIDATION_ERROR latitude"), without + null as u64);
    assert_eq!(report.number("acknowledged") + report.number("refused"), rows.len() as u64);
    assert_eq!((report.number("lost"), report.number("doubled")), (0, 0), "{}", report.text);
    let fresh = report.number("acknowledged") - report.count("late") - report.count("duplicate");
    assert_eq!(live(&server, "r").len() as u64, fresh, "{}", report.text);
    compare(&server, "r", watch);
}

#[test]
fn buses_of_kingston() {
    replay("kingston-buses.ndjson", &[]);
}

#[test]
fn vessels_of_the_mississippi_under_keys() {
    replay("mississippi-delta-vessels.ndjson", &["--keyed"]);
}

#[test]
fn buses_of_helsinki_over_one_connection() {
    replay("helsinki-buses-1hz.ndjson", &["--gateway", "--keyed"]);
}

#[test]
fn a_synthetic_fleet_with_minted_tokens() {
    const SECRET: &str = "a secret of sufficient length for HS256, made up";
    let set = format!("auth.secret={SECRET}");
    let server = Server::builder().set("auth.mode", "jwt").set("auth.secret", SECRET).start();
    let url = format!("ws://{}/ws", server.public);
    let minted = milepost(&["token", "--sub", "w", "--subscribe", "fl*", "--set", &set]).output();
    let token = String::from_utf8(minted.unwrap().stdout).unwrap();
    for gateway in [&[][..], &["--gateway"]] {
        let room = if gateway.is_empty() { "fleet" } else { "flock" };
        let watch = Watch::start(&url, room, &["--token", token.trim()]);
        let args = [
            "--url",
            &url,
            "--room",
            room,
            "--token-secret",
            SECRET,
            "--vehicles",
            "8",
            "--rate",
            "20",
            "--duration",
            "1",
        ];
        let report = Report::of(&[&args, gateway].concat());
        assert!(report.number("acknowledged") >= 80, "{}", report.text);
        assert_eq!(report.number("acknowledged"), report.number("sent"), "{}", report.text);
        assert_eq!((report.number("lost"), report.number("doubled")), (0, 0), "{}", report.text);
        compare(&server, room, watch);
    }
    // Without a token there is nothing to see.
    let mut refused = Running::start(milepost(&["watch", "--url", &url, "fleet"]));
    assert_eq!(refused.code(), Some(1));
    let said: Vec<String> = refused.err.iter().collect();
    assert!(said.iter().any(|line| line.contains("token is missing")), "{said:?}");
}

#[test]
fn the_demo_shows_its_fleet() {
    let folder = tempfile::tempdir().unwrap();
    let listen = ["--set", "server.listen=127.0.0.1:0", "--set", "admin.listen=127.0.0.1:0"];
    let mut command =
        milepost(&[&["demo", "--vehicles", "5", "--rate", "10"], &listen[..]].concat());
    command.current_dir(folder.path());
    let mut demo = Running::start(command);
    let url = loop {
        let line = demo.line().expect("the demo has ended");
        if let Some((_, rest)) = line.split_once("milepost watch --url ") {
            break rest.split(' ').next().unwrap().to_owned();
        }
    };
    let mut watch = Running::start(milepost(&["watch", "--url", &url, "demo", "--count", "40"]));
    let mut vehicles = std::collections::BTreeSet::new();
    while let Some(line) = watch.line() {
        let event: Value = serde_json::from_str(&line).unwrap();
        if event["event"] == "location" {
            vehicles.insert(event["vehicleId"].to_string());
        }
    }
    assert_eq!(watch.code(), Some(0));
    assert_eq!(vehicles.len(), 5, "{vehicles:?}");
    demo.terminate();
    assert_eq!(demo.code(), Some(0));
}

#[tokio::test]
async fn watch_goes_on_over_a_restart() {
    let mut server = server();
    let address = server.public;
    let watch = Watch::start(&format!("ws://{address}/ws"), "r", &[]);
    let mut stored = Vec::new();
    let mut publish = async |server: &Server, from: i32| {
        let mut vehicle = Client::connect(server, "bus").await;
        vehicle.join("r").await;
        for n in from..from + 20 {
            let ack = vehicle.request("location_update", position(1.0, f64::from(n))).await;
            stored.push(ack["payload"]["rooms"]["r"].as_u64().unwrap());
        }
        vehicle.close().await;
    };
    publish(&server, 1).await;
    server.terminate();
    assert_eq!(server.wait().code, Some(0));
    let builder = Server::builder().set("server.listen", address).dir(server.into_dir());
    let server = builder.start();
    publish(&server, 101).await;
    let seen = watch.until(*stored.last().unwrap());
    let seen: Vec<Value> = seen.into_iter().map(|one| one["seq"].clone()).collect();
    assert_eq!(json!(seen), json!(stored));
    let said = watch.end();
    assert!(said.iter().any(|line| line.contains("shutting down")), "{said:?}");
}
