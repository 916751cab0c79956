//! The dashboard and the alerts speak of metrics that the binary has.

use std::collections::BTreeSet;
use std::io::{Read, Write};

use crate::harness::{Server, raw};

/// The metric names in `text`, without the suffixes that a query adds.
fn metrics(text: &str) -> BTreeSet<String> {
    text.match_indices("milepost_")
        .map(|(at, _)| {
            text[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
        })
        .map(|name: String| {
            let bare = name.strip_suffix("_total").or_else(|| name.strip_suffix("_bucket"));
            bare.unwrap_or(&name).to_owned()
        })
        .collect()
}

#[test]
fn every_metric_that_is_asked_for_exists() {
    let server = Server::start();
    let mut stream = raw::connect(server.admin);
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let there: BTreeSet<String> = answer
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .map(ToOwned::to_owned)
        .collect();
    assert!(there.len() > 30, "{there:?}");
    for file in ["config/prometheus/alerts.yaml", "config/grafana/milepost.json"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let asked = metrics(&std::fs::read_to_string(path).unwrap());
        assert!(asked.len() > 8, "{file}: {asked:?}");
        let missing: Vec<_> = asked.difference(&there).collect();
        assert!(missing.is_empty(), "{file} asks for {missing:?}");
    }
}
