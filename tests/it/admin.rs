//! The admin port: every address of it, who may change something, and what its figures say.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::harness::client::{Seen, position};
use crate::harness::{Client, Server, raw};

/// One request; status, head in lower case, body.
fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> (u16, String, String) {
    let mut stream = raw::connect(address);
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n");
    if headers.iter().all(|(name, _)| *name != "Host") {
        head.push_str("Host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn get(address: SocketAddr, path: &str) -> (u16, Value) {
    let (status, head, body) = ask(address, "GET", path, &[]);
    assert!(head.contains("content-type: application/json"), "{path}: {head}");
    (status, serde_json::from_str(&body).unwrap())
}

fn change(address: SocketAddr, method: &str, path: &str) -> (u16, Value) {
    let (status, _, body) = ask(address, method, path, &[]);
    (status, serde_json::from_str(&body).unwrap())
}

/// The samples of an OpenMetrics text, after a look at its form.
fn metrics(address: SocketAddr) -> BTreeMap<String, f64> {
    let (status, head, text) = ask(address, "GET", "/metrics", &[]);
    assert_eq!(status, 200);
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(text.ends_with("# EOF\n"), "the last line");
    let mut types = BTreeMap::new();
    let mut helps = BTreeSet::new();
    let mut samples = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(
                ["counter", "gauge", "histogram", "stateset", "info", "unknown"].contains(&kind),
                "{line}"
            );
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "twice: {line}");
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            assert!(helps.insert(rest.split(' ').next().unwrap().to_owned()), "twice: {line}");
        } else if line.starts_with("# ") {
            assert!(line == "# EOF" || line.starts_with("# UNIT "), "{line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            assert!(name.starts_with("milepost_"), "{line}");
            let family = types.iter().find(|(family, kind)| {
                let suffixes: &[&str] = match kind.as_str() {
                    "counter" => &["_total", "_created"],
                    "histogram" => &["_bucket", "_sum", "_count", "_created"],
                    "info" => &["_info"],
                    _ => &[""],
                };
                suffixes.iter().any(|suffix| name == format!("{family}{suffix}"))
            });
            assert!(family.is_some(), "no TYPE before {line}");
            // Nothing per room, vehicle or client.
            assert!(!line.contains("metrics-room") && !line.contains("metrics-client"), "{line}");
            let value: f64 = value.parse().unwrap();
            assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    assert_eq!(types.keys().collect::<BTreeSet<_>>(), helps.iter().collect(), "HELP for each TYPE");
    samples
}

#[tokio::test]
async fn health_and_readiness() {
    let server = Server::start();
    assert_eq!(get(server.admin, "/livez"), (200, json!({ "status": "alive" })));
    let (status, ready) = get(server.admin, "/readyz");
    assert_eq!(status, 200);
    assert_eq!(ready["phase"], "running");
    assert_eq!(ready["clients"], 0);
    let _client = Client::connect(&server, "a").await;
    assert_eq!(get(server.admin, "/readyz").1["clients"], 1);
    // The public port has the old gateway's addresses.
    for path in ["/health", "/healthz", "/readyz"] {
        assert_eq!(get(server.public, path).0, 200, "{path}");
    }
    // Nothing of the admin port is public.
    for path in ["/metrics", "/status", "/livez", "/drain"] {
        assert_eq!(ask(server.public, "GET", path, &[]).0, 404, "{path}");
    }
    for (method, path) in [
        ("POST", "/shutdown"),
        ("POST", "/quiesce"),
        ("PUT", "/log-level?level=debug"),
        ("POST", "/drain"),
    ] {
        assert_eq!(ask(server.public, method, path, &[]).0, 405, "{path}");
    }
    assert_eq!(ask(server.admin, "GET", "/nothing", &[]).0, 404);
    assert_eq!(ask(server.admin, "HEAD", "/livez", &[]).0, 200);
}

#[tokio::test]
async fn the_status_counts_what_is_there() {
    let server = Server::start();
    let mut client = Client::connect(&server, "a").await;
    let mut other = Client::connect(&server, "b").await;
    client.join("r").await;
    client.join("s").await;
    other.join("r").await;
    let ack = client.publish(position(1.0, 2.0)).await;
    let (status, body) = get(server.admin, "/status");
    assert_eq!(status, 200);
    assert_eq!(body["phase"], "running");
    assert_eq!(body["connections"], 2);
    assert_eq!(body["rooms"], 2);
    assert_eq!(body["members"], 3, "connections in rooms");
    assert_eq!(
        body["log"]["seq"],
        ack["rooms"]["s"].as_u64().max(ack["rooms"]["r"].as_u64()).unwrap()
    );
    assert_eq!(body["holds"], json!([]));
    assert_eq!(body["instanceId"], client.welcome["instanceId"]);
    for name in ["messages", "bytes", "maxMessages", "maxBytes"] {
        assert!(body["queues"][name].is_u64(), "{body}");
    }
}

#[tokio::test]
async fn the_figures_move() {
    let server = Server::start();
    let before = metrics(server.admin);
    let mut client = Client::connect(&server, "metrics-client").await;
    let mut watcher = Client::connect(&server, "metrics-client-2").await;
    client.join("metrics-room").await;
    watcher.join("metrics-room").await;
    let mut keyed = position(1.0, 2.0);
    keyed["key"] = json!("k");
    client.publish(keyed.clone()).await;
    client.publish(keyed).await;
    watcher.recv_type("location_update").await;
    client.send_text("nonsense").await;
    client.recv_type("error").await;
    let too_big = json!({ "latitude": 1, "longitude": 2, "x": "y".repeat(600) });
    client.refused("location_update", too_big, "MESSAGE_TOO_LARGE").await;
    let mut foreign = raw::connect(server.public);
    foreign
        .write_all(raw::handshake_head("/ws", "Origin: http://evil.example\r\n").as_bytes())
        .unwrap();
    assert!(raw::read_head(&mut foreign).contains(" 403 "));
    watcher.close().await;
    server.wait_for("connection.closed");

    let after = metrics(server.admin);
    let moved = |series: &str| {
        let get = |samples: &BTreeMap<String, f64>| {
            *samples.get(series).unwrap_or_else(|| panic!("no {series}"))
        };
        get(&after) - get(&before)
    };
    for (series, by) in [
        ("milepost_connections", 1.0),
        ("milepost_connections_opened_total", 2.0),
        (r#"milepost_connections_closed_total{code="1005"}"#, 1.0),
        (r#"milepost_handshakes_refused_total{reason="origin"}"#, 1.0),
        ("milepost_rooms", 1.0),
        ("milepost_members", 1.0),
        (r#"milepost_messages_in_total{type="join_room",result="accepted"}"#, 2.0),
        (r#"milepost_messages_in_total{type="location_update",result="accepted"}"#, 2.0),
        (r#"milepost_messages_in_total{type="location_update",result="refused"}"#, 1.0),
        (r#"milepost_messages_in_total{type="other",result="refused"}"#, 1.0),
        (r#"milepost_phase{phase="running"}"#, 0.0),
        ("milepost_log_lines_dropped_total", 0.0),
    ] {
        assert!((moved(series) - by).abs() < 0.5, "{series}: {} and not {by}", moved(series));
    }
    assert!(moved("milepost_duplicates_total") >= 1.0);
    assert!(moved("milepost_deliveries_total") >= 8.0);
    assert!(moved("milepost_room_log_append_seconds_count") >= 1.0);
    assert!(after["milepost_process_resident_memory_bytes"] > 1e6);
    assert!(after[r#"milepost_phase{phase="running"}"#] == 1.0);
    // All series are there from the start, so that rates can be taken.
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
}

/// Connections that are closed before they are a session neither stay in the gauge nor
/// pull it below zero.
#[tokio::test]
async fn refused_connections_do_not_count_as_open() {
    let server = Server::builder()
        .set("auth.mode", "jwt")
        .set("auth.secret", "long enough for a test of HS256!")
        .start();
    for _ in 0..3 {
        let mut client =
            Client::connect_without_welcome(format!("ws://{}/ws", server.public)).await;
        let missing = Seen::Close(4001, "Authentication token is missing".to_owned());
        assert_eq!(client.see().await, missing);
    }
    let closed = r#"milepost_connections_closed_total{code="4001"}"#;
    let deadline = tokio::time::Instant::now() + crate::harness::PATIENCE;
    while metrics(server.admin)[closed] < 3.0 {
        assert!(tokio::time::Instant::now() < deadline, "the closes are not counted");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let now = metrics(server.admin);
    assert_eq!(now["milepost_connections"], 0.0);
    assert_eq!(now[r#"milepost_handshakes_refused_total{reason="authentication"}"#], 3.0);
    let line = server.wait_for("handshake.refused");
    assert_eq!(line["status"], 4001, "the close code: {line}");
}

const CHANGES: [(&str, &str); 6] = [
    ("POST", "/quiesce"),
    ("DELETE", "/quiesce"),
    ("POST", "/drain?rate=1"),
    ("DELETE", "/drain"),
    ("PUT", "/log-level?level=debug"),
    ("POST", "/shutdown"),
];

#[test]
fn web_pages_and_foreign_hosts_may_change_nothing() {
    let server = Server::builder().set("admin.allowed_hosts", r#"["admin.example"]"#).start();
    for (method, path) in CHANGES {
        for headers in [
            &[("Origin", "http://localhost")][..],
            &[("Origin", "null")],
            &[("Sec-Fetch-Site", "same-origin")],
            &[("Sec-Fetch-Site", "none")],
            &[("Host", "evil.example")],
            &[("Host", "evil.example:9090")],
            &[("Host", "localhost.evil.example")],
            &[("Host", "127.0.0.1.evil.example")],
            &[("Host", "")],
            &[("Host", "192.0.2.1")],
        ] {
            let (status, _, body) = ask(server.admin, method, path, headers);
            assert_eq!(status, 403, "{method} {path} {headers:?}");
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["error"], "FORBIDDEN");
        }
    }
    // Nothing has happened.
    assert_eq!(get(server.admin, "/status").1["phase"], "running");
    assert_eq!(get(server.admin, "/status").1["holds"], json!([]));
    // Reading is nobody's harm, and those hosts are right.
    assert_eq!(ask(server.admin, "GET", "/livez", &[("Host", "10.0.0.7")]).0, 200);
    for host in [
        "localhost",
        "LOCALHOST:9090",
        "127.0.0.1",
        "127.0.0.1:80",
        "[::1]:9090",
        "[::1]",
        "admin.example",
        "admin.example:9090",
    ] {
        let (status, ..) = ask(server.admin, "PUT", "/log-level?level=info", &[("Host", host)]);
        assert_eq!(status, 200, "{host}");
    }
}

#[test]
fn with_a_token_every_change_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "s3cret-token\n").unwrap();
    let server = Server::builder().set("admin.token_file", file.display()).start();
    for (method, path) in CHANGES {
        for headers in [
            &[][..],
            &[("Authorization", "Bearer wrong")],
            &[("Authorization", "Bearer ")],
            &[("Authorization", "Basic s3cret-token")],
            &[("Authorization", "s3cret-token")],
            &[("Authorization", "Bearer s3cret-token2")],
            &[("Authorization", "Bearer S3cret-token")],
        ] {
            let (status, ..) = ask(server.admin, method, path, headers);
            assert!([401, 403].contains(&status), "{method} {path} {headers:?}: {status}");
        }
        let page = [("Authorization", "Bearer s3cret-token"), ("Origin", "http://localhost")];
        assert_eq!(ask(server.admin, method, path, &page).0, 403, "{path}");
    }
    assert_eq!(get(server.admin, "/status").1["phase"], "running");
    let right = [("Authorization", "Bearer s3cret-token")];
    assert_eq!(ask(server.admin, "PUT", "/log-level?level=warn", &right).0, 200);
    assert_eq!(ask(server.admin, "GET", "/metrics", &[]).0, 200, "reading needs none");
}

#[tokio::test]
async fn the_log_level_changes_while_running() {
    let mut server = Server::start();
    let level = |level: &str| change(server.admin, "PUT", &format!("/log-level?level={level}"));
    for wrong in ["", "loud", "5", "info,hyper=trace", "INFO%20"] {
        let (status, body) = level(wrong);
        assert_eq!((status, &body["error"]), (400, &json!("VALIDATION_ERROR")), "{wrong}");
    }
    assert_eq!(change(server.admin, "PUT", "/log-level").0, 400);
    Client::connect(&server, "heard").await.close().await;
    server.wait_for("connection.closed");
    assert_eq!(level("warn").0, 200);
    Client::connect(&server, "unheard").await.close().await;
    // Its end can be told from the figures only.
    while metrics(server.admin)["milepost_connections"] > 0.0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(level("info").0, 200);
    Client::connect(&server, "heard-again").await.close().await;
    server.wait_for_line(|l| l["event"] == "connection.closed" && l["client_id"] == "heard-again");
    assert!(server.lines().iter().all(|line| line["client_id"] != "unheard"));
    server.terminate();
    server.wait();
}

#[tokio::test]
async fn a_hold_of_the_operator_is_shown_and_released() {
    let server = Server::start();
    let mut client = Client::connect(&server, "a").await;
    client.join("r").await;
    assert_eq!(change(server.admin, "POST", "/quiesce").0, 200);
    let (status, ready) = get(server.admin, "/readyz");
    assert_eq!((status, &ready["reason"]), (503, &json!("operator")), "{ready}");
    assert_eq!(get(server.admin, "/status").1["holds"][0]["hold"], "operator");
    assert_eq!(metrics(server.admin)[r#"milepost_plane_paused{hold="operator"}"#], 1.0);
    assert_eq!(get(server.admin, "/livez").0, 200);
    // Held, not refused; and answered in every phase.
    let id = client.ask("location_update", position(1.0, 2.0)).await;
    assert_eq!(client.until_pong().await, [] as [Value; 0]);
    assert_eq!(change(server.admin, "DELETE", "/quiesce").0, 200);
    assert_eq!(client.recv_where(|m| m["id"] == id).await["type"], "ack");
    assert_eq!(get(server.admin, "/readyz").0, 200);
    // Again is no error.
    assert_eq!(change(server.admin, "DELETE", "/quiesce").0, 200);
}

#[tokio::test]
async fn a_second_address_serves_reads_only() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = Server::builder().set("admin.metrics_listen", free).start();
    for path in ["/metrics", "/livez", "/readyz"] {
        assert_eq!(ask(free, "GET", path, &[]).0, 200, "{path}");
    }
    for (method, path) in CHANGES {
        let (status, ..) = ask(free, method, path, &[]);
        assert!((400..500).contains(&status), "{method} {path}: {status}");
    }
    assert_eq!(get(server.admin, "/status").1["phase"], "running");
    assert_eq!(get(server.admin, "/status").1["holds"], json!([]));
    // The same as SIGTERM.
    assert_eq!(change(server.admin, "POST", "/shutdown").0, 202);
    assert_eq!(server.wait().code, Some(0));
    assert_eq!(server.shutdown_messages().last().unwrap(), "shutdown: complete");
}

#[tokio::test]
async fn probes_are_answered_under_load_and_to_the_end() {
    let server = Server::builder().set("limits.message_rate", 0).start();
    let mut clients = Vec::new();
    for n in 0..20 {
        let mut client = Client::connect(&server, &format!("c{n}")).await;
        client.join("r").await;
        clients.push(client);
    }
    let busy: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            tokio::spawn(async move {
                for _ in 0..100 {
                    client.publish(position(1.0, 2.0)).await;
                }
            })
        })
        .collect();
    let admin = server.admin;
    while busy.iter().any(|task| !task.is_finished()) {
        let answers = tokio::task::spawn_blocking(move || {
            (get(admin, "/livez").0, get(admin, "/readyz").0, metrics(admin).len())
        });
        let (live, ready, series) = answers.await.unwrap();
        assert_eq!((live, ready), (200, 200));
        assert!(series > 50);
    }
    for task in busy {
        task.await.unwrap();
    }
}

#[test]
fn garbage_on_the_admin_port_hurts_nobody() {
    let server = Server::start();
    for bytes in [
        &b"\0\0\0\0"[..],
        b"\x16\x03\x01",
        b"GET",
        b"PRI * HTTP/2.0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = raw::connect(server.admin);
        stream.write_all(bytes).unwrap();
        drop(stream);
    }
    let mut open = Vec::new();
    for _ in 0..50 {
        open.push(raw::connect(server.admin));
    }
    assert_eq!(get(server.admin, "/livez").0, 200);
}
