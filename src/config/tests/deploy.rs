//! The deployment files set keys that exist, to values that start.

use super::{Engine, load};

const IMAGE: &str = include_str!("../../../Dockerfile");
const COMPOSE: &str = include_str!("../../../config/compose.yaml");
/// One machine's example.
const NATS: &str = include_str!("../../../config/nats.toml");
const KUBERNETES: &str = include_str!("../../../config/kubernetes/milepost.yaml");

/// The variables that `text` sets, in any of the three notations; commented ones too.
fn variables(text: &str) -> Vec<(&str, &str)> {
    text.lines()
        .filter_map(|line| {
            let at = line.find("MILEPOST_")?;
            let name_end = line[at..].find(|c: char| !(c.is_ascii_uppercase() || c == '_'))?;
            let (name, rest) = line[at..].split_at(name_end);
            let value = rest
                .strip_prefix(", value: ")
                .and_then(|value| value.strip_suffix(" }"))
                .or_else(|| rest.strip_prefix(": "))
                .or_else(|| rest.strip_prefix('='))?;
            let value = value.trim_end_matches(" \\").trim_matches(['"', '\'']);
            // What YAML and the shell would leave of the quotes.
            Some((name, value))
        })
        .collect()
}

#[test]
fn every_file_starts() {
    let image = variables(IMAGE);
    assert_eq!(image.len(), 2, "{image:?}");
    for (text, least) in [(COMPOSE, 3), (KUBERNETES, 8)] {
        let mut env = image.clone();
        let own = variables(text);
        assert!(own.len() >= least, "{own:?}");
        env.extend(own);
        let config = load("", &env, &[]).unwrap();
        config.validate().unwrap();
        assert_eq!(config.warnings(), [""; 0]);
        assert!(!config.server.listen.ip().is_loopback());
        assert!(config.room_log.path.starts_with("/var/lib/milepost"));
    }
}

#[test]
fn the_example_of_several_instances_starts() {
    let path = variables(IMAGE).into_iter().filter(|(name, _)| name.ends_with("__PATH"));
    for env in [vec![], path.collect()] {
        let config = load(NATS, &env, &[]).unwrap();
        config.validate().unwrap();
        assert_eq!(config.room_log.engine, Engine::Nats);
        assert_eq!(config.warnings(), [""; 0]);
        assert!(config.sources.of("nats.url").is_some());
    }
}

#[test]
fn the_grace_periods_are_those_of_the_files() {
    for (text, line) in
        [(COMPOSE, "stop_grace_period: "), (KUBERNETES, "terminationGracePeriodSeconds: ")]
    {
        let config = load("", &variables(text), &[]).unwrap();
        let (_, grace) = text.lines().find_map(|l| l.trim().split_once(line)).unwrap();
        let seconds: u64 = grace.trim_end_matches('s').parse().unwrap();
        assert_eq!(config.shutdown.grace_period.unwrap().as_secs(), seconds);
    }
}
