//! `milepost demo`: its server is deployed, killed and stopped under clients that come in
//! through its port, and nothing is lost and nobody left behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use milepost::client::{Event, Events};
use milepost::protocol::Mode;
use rusqlite::OpenFlags;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{PATIENCE, raw};

/// Connections of the whole fleet: one a synthetic vehicle, one a recording.
const FLEET: u64 = 33;

/// A demo whose lines are read as they come.
struct Demo {
    child: Child,
    lines: Receiver<String>,
    folder: tempfile::TempDir,
}

fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_milepost"));
    command.args(["demo", "--set", "server.listen=127.0.0.1:0"]);
    command.args(["--set", "admin.listen=127.0.0.1:0", "--set", "log.format=json"]);
    command.args(args).current_dir(folder).env("TMPDIR", folder);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

impl Demo {
    fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = command(folder.path(), args).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, folder }
    }

    /// The next line with `text` in it.
    fn line(&self, text: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).unwrap_or_else(|_| panic!("no line: {text}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The public port.
    fn address(&self) -> SocketAddr {
        let line = self.line("milepost demo: open http://");
        let (_, rest) = line.split_once("http://").unwrap();
        rest.split('/').next().unwrap().parse().unwrap()
    }

    /// The public port, once the whole fleet is connected: from then on a shutdown takes as
    /// long as it takes to tell it.
    fn address_with_fleet(&self) -> SocketAddr {
        let address = self.address();
        let mut http = raw::connect(address);
        within("the fleet is there", || {
            let health = request(&mut http, "GET", "/health", "").1;
            (health["clients"] == FLEET).then_some(())
        });
        address
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    fn code(&mut self) -> Option<i32> {
        within("the demo ends", || self.child.try_wait().unwrap()).code()
    }

    /// The server processes that it has started and that live.
    fn servers(&self) -> Vec<Pid> {
        let pid = self.child.id();
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let children = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let children: Vec<String> = children.collect();
        let pids = children.iter().flat_map(|pids| pids.split_whitespace());
        let pids = pids.map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
        pids.filter(|pid| lives(*pid)).collect()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            self.signal(Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

/// Whether a process runs; one that has ended and was not waited for does not.
fn lives(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
}

fn within<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One request on a connection that is kept; the status and the body.
fn request(stream: &mut TcpStream, method: &str, path: &str, more: &str) -> (u16, Value) {
    let host = stream.peer_addr().unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n").unwrap();
    let head = raw::read_head(stream);
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap()];
    stream.read_exact(&mut body).unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

/// What a dispatcher in the room saw.
struct Watch {
    events: Events,
    client: milepost::client::Client,
    seqs: Vec<u64>,
    resumes: usize,
}

impl Watch {
    async fn start(address: SocketAddr, room: &str) -> Self {
        let url = format!("ws://{address}/ws");
        let builder = milepost::client::Client::builder().endpoint(&url).client_id("dispatcher");
        let (client, events) = builder.connect().await.unwrap();
        client.join(room, Mode::Subscribe).await.unwrap();
        Self { events, client, seqs: Vec::new(), resumes: 0 }
    }

    /// Reads on until `enough`; a gap, a reset or a doubled position is a failure.
    async fn until(&mut self, enough: impl Fn(&Self) -> bool) {
        let reading = async {
            while !enough(self) {
                match self.events.next().await.expect("the client gave up") {
                    Event::Location(event) => {
                        assert!(
                            self.seqs.last() < Some(&event.seq),
                            "{event:?} after {:?}",
                            self.seqs
                        );
                        self.seqs.push(event.seq);
                    }
                    Event::Joined(joined) if !self.seqs.is_empty() => {
                        assert!(joined.recovered, "the view was reset");
                        self.resumes += 1;
                    }
                    event @ (Event::Gap { .. } | Event::Left { .. } | Event::Lagging(_)) => {
                        panic!("{event:?}");
                    }
                    _ => {}
                }
            }
        };
        tokio::time::timeout(2 * PATIENCE, reading).await.expect("nothing came");
    }

    /// Reads until `more` further positions have come.
    async fn more(&mut self, more: usize) {
        let wanted = self.seqs.len() + more;
        self.until(|watch| watch.seqs.len() >= wanted).await;
    }
}

/// The sequence numbers of a room between two of them, from the log itself.
fn stored(file: &Path, room: &str, first: u64, last: u64) -> Vec<u64> {
    let log = rusqlite::Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let log = log.unwrap();
    let mut query = log
        .prepare("SELECT seq FROM positions WHERE room = ? AND NOT late AND seq BETWEEN ? AND ? ORDER BY seq")
        .unwrap();
    let rows = query.query_map((room, first, last), |row| row.get(0)).unwrap();
    rows.map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deploys_lose_nothing() {
    let log = tempfile::tempdir().unwrap();
    let file = log.path().join("milepost.db");
    let set = format!("room_log.path={}", file.display());
    let mut demo = Demo::start(&["--vehicles", "8", "--rate", "10", "--set", &set]);
    let address = demo.address();
    let mut watch = Watch::start(address, "demo").await;
    watch.more(40).await;
    // One connection for all requests: also a kept one finds the demo's own answers.
    let mut http = raw::connect(address);
    let mut last = request(&mut http, "GET", "/health", "").1["instanceId"].clone();
    for deploy in 1..=2 {
        let (status, state) = request(&mut http, "GET", "/demo/state", "");
        assert_eq!((status, &state["instance"]), (200, &last));
        assert_eq!((&state["phase"], &state["deploys"]), (&json!("idle"), &json!(deploy - 1)));
        let (status, state) = request(&mut http, "POST", "/demo/deploy", "");
        assert_eq!((status, &state["phase"]), (202, &json!("starting")));
        // One at a time.
        assert_eq!(request(&mut http, "POST", "/demo/deploy", "").0, 409);
        let mut phases = vec!["starting".to_owned()];
        let state = within("the deploy is done", || {
            let state = request(&mut http, "GET", "/demo/state", "").1;
            let phase = state["phase"].as_str().unwrap().to_owned();
            if phases.last() != Some(&phase) {
                phases.push(phase);
            }
            (state["deploys"] == deploy).then_some(state)
        });
        let order = ["starting", "handing over", "stopping old", "idle"];
        let mut rest = order.iter();
        assert!(phases.iter().all(|phase| rest.any(|known| known == phase)), "{phases:?}");
        assert!(phases.iter().any(|phase| phase == "handing over"), "{phases:?}");
        let now = request(&mut http, "GET", "/health", "").1["instanceId"].clone();
        assert_eq!(state["instance"], now);
        assert_ne!(last, now, "another process serves");
        last = now;
        let resumes = watch.resumes;
        watch.until(|watch| watch.resumes > resumes).await;
        watch.more(40).await;
        assert_eq!(demo.servers().len(), 1, "the old process has ended");
    }
    watch.client.close().await;
    demo.signal(Signal::TERM);
    assert_eq!(demo.code(), Some(0));
    let (first, last) = (watch.seqs[0], watch.seqs[watch.seqs.len() - 1]);
    assert_eq!(watch.seqs, stored(&file, "demo", first, last));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_is_replaced() {
    let demo = Demo::start(&["--vehicles", "8", "--rate", "10"]);
    let address = demo.address();
    let mut watch = Watch::start(address, "demo").await;
    watch.more(20).await;
    let [server] = demo.servers()[..] else { panic!("one server: {:?}", demo.servers()) };
    kill_process(server, Signal::KILL).unwrap();
    let line = demo.line("demo.server_ended");
    assert!(line.contains(&server.as_raw_nonzero().to_string()), "{line}");
    watch.until(|watch| watch.resumes == 1).await;
    watch.more(20).await;
    let mut http = raw::connect(address);
    let state = request(&mut http, "GET", "/demo/state", "").1;
    assert_eq!((&state["restarts"], &state["deploys"]), (&json!(1), &json!(0)));
    // And it can be deployed as before.
    assert_eq!(request(&mut http, "POST", "/demo/deploy", "").0, 202);
    watch.until(|watch| watch.resumes == 2).await;
    watch.more(20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recordings_move() {
    let demo = Demo::start(&["--vehicles", "1"]);
    let address = demo.address();
    let rooms = request(&mut raw::connect(address), "GET", "/demo/state", "").1["rooms"].clone();
    assert_eq!(rooms, json!(["demo", "helsinki", "kingston", "mississippi"]));
    for room in ["helsinki", "kingston", "mississippi"] {
        Watch::start(address, room).await.more(3).await;
    }
}

#[test]
fn ctrl_c_ends_everything() {
    let mut demo = Demo::start(&[]);
    demo.address_with_fleet();
    let servers = demo.servers();
    assert_eq!(servers.len(), 1);
    demo.signal(Signal::INT);
    assert_eq!(demo.code(), Some(0));
    assert!(!servers.into_iter().any(lives), "a server outlived the demo");
    let left: Vec<_> = std::fs::read_dir(demo.folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn ctrl_c_during_a_deploy_ends_both() {
    let mut demo = Demo::start(&[]);
    let mut http = raw::connect(demo.address_with_fleet());
    assert_eq!(request(&mut http, "POST", "/demo/deploy", "").0, 202);
    // The old one is stopping and has clients, the new one waits for it.
    demo.line("shutdown.notify");
    let servers = demo.servers();
    assert_eq!(servers.len(), 2);
    demo.signal(Signal::INT);
    assert_eq!(demo.code(), Some(0));
    assert!(!servers.into_iter().any(lives), "a server outlived the demo");
}

#[test]
fn a_second_ctrl_c_forces_it() {
    let mut demo = Demo::start(&[]);
    demo.address_with_fleet();
    let servers = demo.servers();
    demo.signal(Signal::INT);
    demo.line("shutdown.stop_accepting");
    demo.signal(Signal::INT);
    assert_eq!(demo.code(), Some(130));
    assert!(!servers.into_iter().any(lives), "a server outlived the demo");
}

#[test]
fn no_server_outlives_a_demo_that_is_killed() {
    let mut demo = Demo::start(&[]);
    demo.address_with_fleet();
    let servers = demo.servers();
    assert_eq!(servers.len(), 1);
    demo.signal(Signal::KILL);
    assert_eq!(demo.code(), None);
    within("its server ends", || (!servers.iter().any(|pid| lives(*pid))).then_some(()));
}

#[test]
fn a_foreign_page_may_not_deploy() {
    let demo = Demo::start(&["--vehicles", "1"]);
    let address = demo.address();
    let mut http = raw::connect(address);
    for more in ["Origin: http://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
        let (status, answer) = request(&mut http, "POST", "/demo/deploy", more);
        assert_eq!((status, &answer["error"]), (403, &json!("FORBIDDEN")));
    }
    assert_eq!(request(&mut http, "GET", "/demo/deploy", "").0, 405);
    let own = format!("Origin: http://{address}\r\nSec-Fetch-Site: same-origin\r\n");
    assert_eq!(request(&mut http, "POST", "/demo/deploy", &own).0, 202);
}

#[test]
fn what_cannot_start_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("admin.listen={}", taken.local_addr().unwrap());
    for (code, set, said) in [
        (1, "room_log.path=/proc/milepost/milepost.db", "room_log.path"),
        (1, &taken, "admin.listen"),
        (2, "server.listn=1", "server.listn"),
        (2, "admin.listen=0.0.0.0:0", "admin.token"),
    ] {
        let mut command = command(folder.path(), &["--set", set]);
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{set}: {stderr}");
        assert!(stderr.contains(said), "{set}: {stderr}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
