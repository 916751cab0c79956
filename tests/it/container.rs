//! What the Dockerfile claims, checked on the binary: it is parsed, and its commands are
//! run as its user, with its environment and without a shell.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::client::Seen;
use crate::harness::{Client, Server};

const BINARY: &str = "/usr/local/bin/milepost";
const DATA: &str = "/var/lib/milepost";

/// The instructions of the image, which is the last stage.
struct Image(Vec<(String, String)>);

impl Image {
    fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Dockerfile");
        let text = std::fs::read_to_string(path).unwrap();
        let mut instructions = Vec::new();
        let mut open = String::new();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            open.push_str(line.trim_end_matches('\\'));
            if !line.ends_with('\\') && !open.trim().is_empty() {
                let whole = std::mem::take(&mut open);
                let (name, rest) = whole.trim().split_once(' ').unwrap();
                instructions.push((name.to_uppercase(), rest.trim().to_owned()));
            }
        }
        let last = instructions.iter().rposition(|(name, _)| name == "FROM").unwrap();
        Self(instructions.split_off(last))
    }

    /// The one instruction of this name.
    fn one(&self, name: &str) -> &str {
        let mut found = self.0.iter().filter(|(one, _)| one == name);
        let (_, rest) = found.next().unwrap_or_else(|| panic!("no {name}"));
        assert!(found.next().is_none(), "more than one {name}");
        rest
    }

    /// An instruction in exec form: a JSON array, no shell in between.
    fn exec(&self, name: &str) -> Vec<String> {
        words(self.one(name))
    }

    fn env(&self) -> BTreeMap<String, String> {
        let pairs = self.0.iter().filter(|(name, _)| name == "ENV");
        pairs
            .flat_map(|(_, rest)| rest.split_whitespace())
            .map(|pair| pair.split_once('=').expect("NAME=value"))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// The HEALTHCHECK's command.
    fn health_check(&self) -> Vec<String> {
        let (_, command) = self.one("HEALTHCHECK").split_once("CMD ").unwrap();
        words(command)
    }

    fn user(&self) -> (u32, u32) {
        let (user, group) = self.one("USER").split_once(':').unwrap();
        (user.parse().unwrap(), group.parse().unwrap())
    }
}

fn words(array: &str) -> Vec<String> {
    serde_json::from_str(array).unwrap_or_else(|_| panic!("not in exec form: {array}"))
}

/// A stand-in for the container: the binary and the volume where the user reaches them.
struct Container {
    image: Image,
    root: tempfile::TempDir,
    env: BTreeMap<String, String>,
}

impl Container {
    fn new() -> Self {
        let image = Image::read();
        let root = tempfile::tempdir().unwrap();
        std::fs::set_permissions(root.path(), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_milepost"), root.path().join("milepost")).unwrap();
        let data = root.path().join("data");
        std::fs::create_dir(&data).unwrap();
        if is_root() {
            let (user, group) = image.user();
            chown(&data, Some(user), Some(group)).unwrap();
        }
        let mut env = image.env();
        // The ports are whatever is free, and the volume is elsewhere.
        let listen = env.get_mut("MILEPOST_SERVER__LISTEN").unwrap();
        *listen = listen.replace(":8080", ":0");
        let path = env.get_mut("MILEPOST_ROOM_LOG__PATH").unwrap();
        *path = path.replace(DATA, data.to_str().unwrap());
        env.insert("MILEPOST_ADMIN__LISTEN".into(), "127.0.0.1:0".into());
        // Only this comes from whoever runs the image.
        env.insert("MILEPOST_AUTH__SECRET".into(), "a secret of at least thirty-two bytes".into());
        Self { image, root, env }
    }

    fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    /// A command of the image, as its user, with its environment and nothing else.
    fn command(&self, line: &[String]) -> Command {
        assert_eq!(line[0], BINARY);
        let binary = self.root.path().join("milepost");
        // Without root there is one user to be, and that one is not root either.
        let mut command = if is_root() {
            let (user, group) = self.image.user();
            let mut command = Command::new("setpriv");
            command
                .arg(format!("--reuid={user}"))
                .arg(format!("--regid={group}"))
                .args(["--clear-groups", "--no-new-privs", "--"])
                .arg(binary);
            command
        } else {
            Command::new(binary)
        };
        command
            .args(&line[1..])
            .current_dir(self.data())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(&self.env)
            .stdin(Stdio::null());
        command
    }

    /// What `docker run` starts.
    fn serve(&self) -> Command {
        self.command(&[self.image.exec("ENTRYPOINT"), self.image.exec("CMD")].concat())
    }

    fn output(&self, line: &[String]) -> Output {
        self.command(line).output().expect("setpriv (util-linux): run .ci/setup")
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn the_image_runs_the_binary_itself_as_nobody_special() {
    let image = Image::read();
    assert_eq!(image.exec("ENTRYPOINT"), [BINARY]);
    assert_eq!(image.exec("CMD"), ["serve"]);
    assert_eq!(image.health_check(), [BINARY, "healthcheck"]);
    // Numeric, so that `runAsNonRoot` of Kubernetes can tell.
    let (user, group) = image.user();
    assert!(user > 0 && group > 0);
    assert_eq!(image.one("STOPSIGNAL"), "SIGTERM");
    assert_eq!(image.one("EXPOSE"), "8080");
    assert_eq!(image.one("VOLUME"), DATA);
    let env = image.env();
    assert_eq!(env["MILEPOST_SERVER__LISTEN"], "0.0.0.0:8080");
    assert!(env["MILEPOST_ROOM_LOG__PATH"].starts_with(DATA), "the log is on the volume");
    assert!(!env.contains_key("MILEPOST_ADMIN__LISTEN"), "the admin port stays on loopback");
    let owner = format!("--chown={user}:{group}");
    let copies = image.0.iter().filter(|(name, _)| name == "COPY");
    assert!(copies.clone().any(|(_, rest)| rest.contains(&owner) && rest.ends_with(DATA)));
    assert!(copies.clone().any(|(_, rest)| rest.ends_with(BINARY) && !rest.contains("--chown")));
}

#[tokio::test]
async fn it_serves_as_that_user_and_stops_on_the_stop_signal() {
    let container = Container::new();
    let mut server = Server::run(container.serve(), tempfile::tempdir().unwrap());
    server.wait_for("server.ready");
    assert!(server.public.ip().is_unspecified(), "MILEPOST_SERVER__LISTEN counts");
    assert!(server.admin.ip().is_loopback());

    let line = [BINARY, "token", "--sub", "bus-1"].map(str::to_owned);
    let token = container.output(&line);
    assert!(token.status.success(), "{token:?}");
    let token = String::from_utf8(token.stdout).unwrap();
    let url = format!("ws://127.0.0.1:{}/ws?token={}", server.public.port(), token.trim());
    let mut client = Client::connect_to(url).await;
    client.join("north").await;
    let ack =
        client.request("location_update", json!({ "latitude": 60.1, "longitude": 24.9 })).await;
    assert_eq!(ack["type"], "ack", "{ack}");
    let file = std::fs::metadata(container.data().join("milepost.db")).unwrap();
    if is_root() {
        use std::os::unix::fs::MetadataExt;
        assert_eq!((file.uid(), file.gid()), container.image.user());
    }

    let signal = match container.image.one("STOPSIGNAL") {
        "SIGTERM" => Signal::TERM,
        other => panic!("the server does not know {other} as a stop"),
    };
    server.signal(signal);
    let (_, end) = client.see_to_end().await;
    assert_eq!(end, Seen::Close(1001, "server shutting down".to_owned()));
    assert_eq!(server.wait().code, Some(0));
    assert_eq!(server.shutdown_messages().last().unwrap(), "shutdown: complete");
}

#[tokio::test]
async fn the_health_check_tells_life_from_readiness() {
    let mut container = Container::new();
    let live = container.image.health_check();
    let ready = [live.clone(), vec!["--ready".to_owned()]].concat();

    let mut server = Server::run(container.serve(), tempfile::tempdir().unwrap());
    server.wait_for("server.ready");
    // In the image the port is fixed, so that both find the same one.
    container.env.insert("MILEPOST_ADMIN__LISTEN".into(), server.admin.to_string());
    assert_eq!(container.output(&live).status.code(), Some(0));
    assert_eq!(container.output(&ready).status.code(), Some(0));

    // A server that is held is alive, and takes nobody.
    let quiesced = admin(&server, "POST /quiesce");
    assert!(quiesced.starts_with("HTTP/1.1 200 "), "{quiesced}");
    assert_eq!(container.output(&live).status.code(), Some(0));
    let not_ready = container.output(&ready);
    assert_eq!(not_ready.status.code(), Some(1));
    let told = String::from_utf8(not_ready.stderr).unwrap();
    let told: Value = serde_json::from_str(told.trim_start_matches("milepost: ")).unwrap();
    assert_eq!(told["reason"], "operator", "{told}");

    server.terminate();
    assert_eq!(server.wait().code, Some(0));
    assert_eq!(container.output(&live).status.code(), Some(1), "nobody there");
    assert_eq!(container.output(&ready).status.code(), Some(1));
}

/// A call of the admin port: `METHOD /path`; its whole answer.
fn admin(server: &Server, call: &str) -> String {
    use std::io::Write;

    use crate::harness::raw;

    let mut stream = raw::connect(server.admin);
    let head = format!("{call} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let (answer, end) = raw::read_to_end(&mut stream);
    end.unwrap();
    String::from_utf8(answer).unwrap()
}
