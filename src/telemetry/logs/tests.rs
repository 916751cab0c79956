//! Golden lines of each format, through a real sink and pipe.

use std::fmt;
use std::io::Read;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};

use super::*;
use crate::telemetry::Metrics;
use crate::telemetry::events::{ConnectionClosed, HandshakeRefused, Initiator, Listening};
use crate::telemetry::metrics::RefusedBecause;

const LONG: Duration = Duration::from_secs(20);

fn settings(format: Format, level: LevelFilter) -> LogSettings {
    LogSettings {
        format,
        level,
        service: "milepost".into(),
        version: "1.2.3".into(),
        instance_id: "i-1".into(),
    }
}

/// What `act` logs, as text.
fn captured_at(format: Format, level: LevelFilter, act: impl FnOnce(&LogHandle)) -> String {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let sink = Sink::new(writer.into(), 1000).unwrap();
    let (subscriber, handle) = subscriber(settings(format, level), sink.clone());
    tracing::subscriber::with_default(subscriber, || act(&handle));
    assert!(sink.flush(LONG));
    drop(sink);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}

fn captured(format: Format, act: impl FnOnce()) -> String {
    captured_at(format, LevelFilter::INFO, |_| act())
}

/// The one line, with its time replaced once it is seen to be one.
fn golden(format: Format, act: impl FnOnce()) -> String {
    let text = captured(format, act);
    let start = text.find("20").unwrap();
    let time = &text[start..start + 24];
    assert!(UnixMillis::parse_rfc3339(time).is_some() && time.ends_with('Z'), "{text}");
    text.replace(time, "TIME")
}

/// A line as an object, none of whose keys comes twice.
fn object(line: &str) -> Map<String, Json> {
    struct Unique(Map<String, Json>);
    impl<'de> serde::Deserialize<'de> for Unique {
        fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Unique;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> Result<Unique, A::Error> {
                    let mut object = Map::new();
                    while let Some((key, value)) = map.next_entry::<String, Json>()? {
                        assert!(object.insert(key.clone(), value).is_none(), "{key} comes twice");
                    }
                    Ok(Unique(object))
                }
            }
            d.deserialize_map(Visitor)
        }
    }
    serde_json::from_str::<Unique>(line).unwrap_or_else(|e| panic!("{e}: {line}")).0
}

fn closed(metrics: &Metrics) {
    ConnectionClosed {
        session_id: "s-1",
        client_id: "bus \"1\"\n",
        peer: &"203.0.113.7:4711",
        code: 4008,
        reason: "slow consumer",
        initiator: Initiator::Server,
        duration: Duration::from_micros(1_500_900),
        messages_in: 3,
        messages_out: 4,
    }
    .emit(metrics);
}

fn metrics() -> Metrics {
    Metrics::new(&prometheus_client::metrics::counter::Counter::default())
}

#[test]
fn connection_closed_in_each_format() {
    let tail = concat!(
        r#""session_id":"s-1","client_id":"bus \"1\"\n","peer":"203.0.113.7:4711","code":4008,"#,
        r#""reason":"slow consumer","initiator":"server","duration_ms":1500,"messages_in":3,"#,
        r#""messages_out":4}"#,
        "\n"
    );
    for (format, head) in [
        (
            Format::Json,
            r#"{"timestamp":"TIME","level":"INFO","message":"connection closed","target":"milepost::telemetry::events","service":"milepost","version":"1.2.3","instance_id":"i-1","event":"connection.closed","#,
        ),
        (
            Format::Ecs,
            r#"{"@timestamp":"TIME","log.level":"info","message":"connection closed","log.logger":"milepost::telemetry::events","service.name":"milepost","service.version":"1.2.3","service.node.name":"i-1","event.action":"connection.closed","#,
        ),
        (
            Format::Gcp,
            r#"{"time":"TIME","severity":"INFO","message":"connection closed","target":"milepost::telemetry::events","service":"milepost","version":"1.2.3","instance_id":"i-1","event":"connection.closed","#,
        ),
        (
            Format::Datadog,
            r#"{"timestamp":"TIME","status":"info","message":"connection closed","logger.name":"milepost::telemetry::events","service":"milepost","version":"1.2.3","instance_id":"i-1","evt.name":"connection.closed","#,
        ),
    ] {
        let metrics = metrics();
        assert_eq!(golden(format, || closed(&metrics)), format!("{head}{tail}"));
        assert!(metrics.encode().contains("milepost_connections_closed_total{code=\"4008\"} 1\n"));
    }
    assert_eq!(
        golden(Format::Text, || closed(&metrics())),
        "TIME INFO connection closed session_id=s-1 client_id=\"bus \\\"1\\\"\\n\" \
         peer=203.0.113.7:4711 code=4008 reason=\"slow consumer\" initiator=server \
         duration_ms=1500 messages_in=3 messages_out=4\n"
    );
}

#[test]
fn level_words_are_each_formats_own() {
    let words = |format, key: &str| -> Vec<Json> {
        let text = captured_at(format, LevelFilter::TRACE, |_| {
            tracing::error!("a");
            tracing::warn!("b");
            tracing::info!("c");
            tracing::debug!("d");
            tracing::trace!("e");
        });
        text.lines().map(|line| object(line)[key].clone()).collect()
    };
    assert_eq!(words(Format::Json, "level"), ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"]);
    assert_eq!(words(Format::Ecs, "log.level"), ["error", "warn", "info", "debug", "trace"]);
    assert_eq!(words(Format::Gcp, "severity"), ["ERROR", "WARNING", "INFO", "DEBUG", "DEBUG"]);
    assert_eq!(words(Format::Datadog, "status"), ["error", "warn", "info", "debug", "trace"]);
}

#[test]
fn the_ports_are_in_the_line_listening() {
    let listening = |admin: Option<&str>| {
        let public = "127.0.0.1:8080".parse().unwrap();
        let admin = admin.map(|admin| admin.parse().unwrap());
        object(&captured(Format::Json, || Listening { public, admin }.emit(&metrics())))
    };
    let line = listening(Some("[::1]:9090"));
    assert_eq!(line["message"], "listening");
    assert_eq!(line["public"], "127.0.0.1:8080");
    assert_eq!(line["admin"], "[::1]:9090");
    assert!(!listening(None).contains_key("admin"));
}

#[test]
fn no_key_comes_twice() {
    for format in [Format::Json, Format::Ecs, Format::Gcp, Format::Datadog] {
        let text = captured(format, || {
            let outer =
                tracing::info_span!("outer", room = "a", n = 1, late = tracing::field::Empty);
            let _outer = outer.enter();
            outer.record("late", 9);
            let _inner = tracing::info_span!("inner", n = 2, instance_id = "other").entered();
            tracing::info!(
                n = 3,
                instance_id = "third",
                time = "then",
                timestamp = "then",
                level = 7,
                severity = "no",
                status = 503,
                target = "elsewhere",
                service.name = "x",
                event.action = "x",
                r#type = "t",
                "hello"
            );
        });
        let line = object(text.trim_end());
        assert_eq!(line["room"], "a");
        assert_eq!(line["n"], 3);
        assert_eq!(line["late"], 9);
        assert_eq!(line["type"], "t");
        assert!(line.values().all(|value| value != "third" && value != "other"));
        assert!(line.values().any(|value| value == "i-1"));
        assert!(line.contains_key("status"));
        if format == Format::Json {
            assert_eq!(line["status"], 503);
        }
    }
}

#[test]
fn values_keep_their_kind() {
    let text = captured(Format::Json, || {
        let error = std::io::Error::other("inner");
        tracing::info!(
            signed = -5,
            unsigned = u64::MAX,
            wide = u128::MAX,
            float = 0.25,
            not_finite = f64::NAN,
            waited_ms = 12.7,
            yes = true,
            nothing = Option::<u64>::None,
            error = &error as &dyn std::error::Error,
            debug = ?["x"],
            "kinds"
        );
    });
    let line = object(text.trim_end());
    assert_eq!(line["signed"], -5);
    assert_eq!(line["unsigned"], u64::MAX);
    assert!(text.contains("\"wide\":340282366920938463463374607431768211455"));
    assert_eq!(line["float"], 0.25);
    assert_eq!(line["not_finite"], Json::Null);
    assert_eq!(line["waited_ms"], 13);
    assert_eq!(line["yes"], true);
    assert!(!line.contains_key("nothing"));
    assert_eq!(line["error"], "inner");
    assert_eq!(line["debug"], "[\"x\"]");
    let ecs = captured(Format::Ecs, || tracing::info!(error = "e", "x"));
    assert_eq!(object(ecs.trim_end())["error.message"], "e");
}

#[test]
fn the_level_changes_while_running() {
    let text = captured_at(Format::Json, LevelFilter::INFO, |handle| {
        let say = |what: &str| tracing::debug!("{what}");
        say("unheard");
        handle.set_level(LevelFilter::DEBUG);
        assert_eq!(handle.level(), LevelFilter::DEBUG);
        say("heard");
        handle.set_level(LevelFilter::WARN);
        tracing::info!("unheard too");
        handle.set_level(LevelFilter::OFF);
        tracing::error!("silence");
    });
    let messages: Vec<Json> = text.lines().map(|line| object(line)["message"].clone()).collect();
    assert_eq!(messages, ["heard"]);
}

#[test]
fn other_crates_are_logged_two_levels_lower_and_never_at_trace() {
    let heard = |level| {
        let text = captured_at(Format::Json, level, |_| {
            tracing::warn!(target: "tungstenite::protocol", "warn");
            tracing::info!(target: "hyper", "info");
            tracing::debug!(target: "milepost_of_others", "debug");
            tracing::trace!(target: "rusqlite", "trace");
        });
        text.lines().map(|line| object(line)["message"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(heard(LevelFilter::ERROR), Vec::<Json>::new());
    assert_eq!(heard(LevelFilter::INFO), ["warn"]);
    assert_eq!(heard(LevelFilter::DEBUG), ["warn", "info"]);
    assert_eq!(heard(LevelFilter::TRACE), ["warn", "info", "debug"]);
}

#[test]
fn level_names() {
    assert_eq!(parse_level("info"), Ok(LevelFilter::INFO));
    assert_eq!(parse_level("WARN"), Ok(LevelFilter::WARN));
    assert_eq!(parse_level("off"), Ok(LevelFilter::OFF));
    for bad in ["", "3", "verbose", "info ", "milepost=debug"] {
        assert_eq!(parse_level(bad), Err(BadLevel), "{bad}");
    }
}

#[test]
fn a_pipe_nobody_reads_keeps_the_shutdown_lines() {
    use std::os::fd::AsFd;
    let (_reader, writer) = std::io::pipe().unwrap();
    let sink = Sink::new(writer.into(), 1000).unwrap();
    let (subscriber, _) = subscriber(settings(Format::Json, LevelFilter::INFO), sink.clone());
    tracing::subscriber::with_default(subscriber, || {
        for n in 0..100_000 {
            tracing::info!(event = "noise", n, "an ordinary line");
        }
        tracing::info!(event = "shutdown.notify", clients = 2, "shutdown: notifying 2 clients");
        tracing::info!(event = "shutdown.complete", exit_code = 0, "shutdown: complete");
    });
    assert!(sink.dropped().get() > 90_000);
    assert!(!sink.flush(Duration::from_millis(50)));
    let (mut stderr_reader, stderr) = std::io::pipe().unwrap();
    let termination_log = tempfile::NamedTempFile::new().unwrap();
    sink.drain_to(stderr.as_fd(), termination_log.path());
    drop(stderr);
    let mut text = String::new();
    stderr_reader.read_to_string(&mut text).unwrap();
    let events: Vec<Json> = text.lines().map(|line| object(line)["event"].clone()).collect();
    assert_eq!(events, ["shutdown.notify", "shutdown.complete"]);
    let last = std::fs::read_to_string(termination_log.path()).unwrap();
    assert_eq!(object(last.trim_end())["event"], "shutdown.complete");
}

#[tokio::test(start_paused = true)]
async fn refused_handshakes_are_counted_all_and_logged_by_the_hundred() {
    let metrics = metrics();
    let text = captured(Format::Json, || {
        for _ in 0..150 {
            let reason = RefusedBecause::HandshakeRate;
            HandshakeRefused { reason, status: 503, peer: &"203.0.113.7" }.emit(&metrics);
        }
        let reason = RefusedBecause::Origin;
        HandshakeRefused { reason, status: 403, peer: &"203.0.113.7" }.emit(&metrics);
    });
    let lines: Vec<Json> = text
        .lines()
        .map(object)
        .map(|line| json!([line["event"], line["reason"], line["status"], line["refused"]]))
        .collect();
    assert_eq!(
        lines,
        [
            json!(["handshake.refused", "handshake_rate", 503, 1]),
            json!(["handshake.refused", "handshake_rate", 503, 101]),
            json!(["handshake.refused", "origin", 403, 1]),
        ]
    );
    let expected = "milepost_handshakes_refused_total{reason=\"handshake_rate\"} 150\n";
    assert!(metrics.encode().contains(expected));
}

proptest! {
    #[test]
    fn every_text_is_one_line_of_json(text in any::<String>()) {
        let out = captured(Format::Json, || tracing::info!(text, "{text}"));
        prop_assert_eq!(out.matches('\n').count(), 1);
        let line = object(out.trim_end());
        prop_assert_eq!(&line["message"], &Json::String(text.clone()));
        prop_assert_eq!(&line["text"], &Json::String(text.clone()));
        let out = captured(Format::Text, || tracing::info!(text, "{text}"));
        prop_assert_eq!(out.matches('\n').count(), 1);
        prop_assert!(!out.trim_end_matches('\n').contains(char::is_control));
    }
}
