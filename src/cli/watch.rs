//! `milepost watch`: the events of rooms as JSON lines on stdout, for people and scripts.
//!
//! Resumes by itself; what is missing, and how the connection stands, goes to stderr.

use std::io::{BufWriter, Write};
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::client::{Client, Event, Events, GapCause};
use crate::protocol::Mode;
use crate::protocol::decode::Location;

/// What `milepost watch` does.
#[derive(Debug, Clone, Args)]
pub struct WatchArgs {
    /// The server; several take turns
    #[arg(long, required = true, value_name = "URL")]
    pub url: Vec<String>,
    /// The rooms
    #[arg(required = true, value_name = "ROOM")]
    pub rooms: Vec<String>,
    /// The token (also MILEPOST_TOKEN)
    #[arg(long)]
    pub token: Option<String>,
    /// The name on a server without tokens
    #[arg(long, default_value = "watch")]
    pub client_id: String,
    /// Stop after this many events
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Stop after this many seconds
    #[arg(long, value_name = "S")]
    pub duration: Option<f64>,
}

/// Prints until `--count`, `--duration`, Ctrl-C, or until nobody reads.
///
/// # Errors
/// Bad arguments, no connection at the start, a room that may not be joined.
pub async fn run(args: WatchArgs) -> anyhow::Result<()> {
    let duration = args
        .duration
        .map(Duration::try_from_secs_f64)
        .transpose()
        .map_err(|error| anyhow::anyhow!("--duration: {error}"))?;
    let mut builder = Client::builder();
    for url in &args.url {
        builder = builder.endpoint(url);
    }
    let token = args.token.clone().or_else(|| std::env::var("MILEPOST_TOKEN").ok());
    builder = match token.filter(|token| !token.is_empty()) {
        Some(token) => builder.token(token),
        None => builder.client_id(args.client_id.as_str()),
    };
    let (client, events) = builder.connect().await?;
    let joins = async {
        for room in &args.rooms {
            if let Err(error) = client.join(room, Mode::Subscribe).await {
                return anyhow::anyhow!("cannot join {room}: {error}");
            }
        }
        std::future::pending().await
    };
    let mut signals = signal_hook_tokio::Signals::new([
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
    ])?;
    let time_up = pin!(async {
        match duration {
            Some(duration) => tokio::time::sleep(duration).await,
            None => std::future::pending().await,
        }
    });
    let result = tokio::select! {
        error = joins => Err(error),
        printed = print(events, args.count) => printed,
        () = time_up => Ok(()),
        _ = signals.next() => Ok(()),
    };
    client.close().await;
    result
}

/// Prints events until `count`, or until stdout has gone.
async fn print(mut events: Events, count: Option<u64>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(std::io::stdout());
    let mut printed = 0;
    while count.is_none_or(|count| printed < count) {
        let Some(event) = events.next().await else { anyhow::bail!("the connection is closed") };
        note(&event);
        for line in lines(&event) {
            // Flushed line by line: a script at the other end waits for each.
            if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
                return Ok(());
            }
            printed += 1;
            if count == Some(printed) {
                break;
            }
        }
    }
    Ok(())
}

fn note(event: &Event) {
    let text = match event {
        Event::Gap { room, cause: GapCause::Reset } => {
            format!("{room}: the view was reset, events are missing before this snapshot")
        }
        Event::Gap { room, cause: GapCause::Order } => format!("{room}: out of order"),
        Event::Lagging(lagging) => format!("{}: lagging, newest positions only", lagging.room_id),
        Event::CaughtUp(caught_up) => {
            format!("{}: caught up, {} events were dropped", caught_up.room_id, caught_up.dropped)
        }
        Event::JoinFailed { room, error, retrying } => {
            format!("{room}: cannot join: {error}{}", if *retrying { ", trying again" } else { "" })
        }
        Event::Left { room, reason } => {
            format!("{room}: left, {}", reason.as_deref().unwrap_or("no reason given"))
        }
        Event::Notice(notice) => {
            format!("the server is shutting down, moving in {} s", notice.reconnect_in)
        }
        Event::TokenRefused(error) => format!("token refused: {error}"),
        Event::Refused(refused) => refused.to_string(),
        Event::State(state) => format!("{:?}", state.phase).to_lowercase(),
        _ => return,
    };
    // Where nobody reads stderr there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "milepost: {text}");
}

fn place(kind: &str, room: &str, location: &Location) -> Value {
    let mut line = json!({
        "event": kind, "roomId": room, "seq": location.seq, "clientId": location.client_id,
        "vehicleId": location.vehicle_id, "latitude": location.latitude,
        "longitude": location.longitude, "timestamp": location.timestamp,
        "receivedAt": location.received_at,
    });
    let numbers = [
        ("altitude", location.altitude),
        ("accuracy", location.accuracy),
        ("altitudeAccuracy", location.altitude_accuracy),
        ("speed", location.speed),
        ("heading", location.heading),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            line[name] = number.into();
        }
    }
    for (name, value) in &location.extra {
        line[name] = value.clone();
    }
    line
}

/// The JSON lines of an event: positions of a snapshot one by one.
fn lines(event: &Event) -> Vec<Value> {
    match event {
        Event::Location(location) => {
            vec![place("location", location.room_id.as_deref().unwrap_or_default(), location)]
        }
        Event::Joined(joined) => {
            let mut lines = vec![json!({
                "event": "joined", "roomId": joined.room_id, "epoch": joined.epoch,
                "seq": joined.seq, "recovered": joined.recovered,
                "members": joined.members, "memberCount": joined.member_count,
            })];
            lines
                .extend(joined.positions.iter().map(|one| place("position", &joined.room_id, one)));
            lines
        }
        Event::Snapshot(page) => {
            page.positions.iter().map(|one| place("position", &page.room_id, one)).collect()
        }
        Event::MembersJoined(members) => vec![json!({
            "event": "members_joined", "roomId": members.room_id, "members": members.members,
        })],
        Event::MembersLeft(members) => vec![json!({
            "event": "members_left", "roomId": members.room_id, "members": members.members,
            "reason": members.reason,
        })],
        Event::MembersChanged(changed) => vec![json!({
            "event": "members_changed", "roomId": changed.room_id, "joined": changed.joined,
            "left": changed.left, "memberCount": changed.member_count,
        })],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_one_flat_line() {
        let location: Location = serde_json::from_value(json!({
            "roomId": "r", "seq": 7, "clientId": "c", "vehicleId": "v", "latitude": 1.5,
            "longitude": 2.5, "speed": 3.0, "timestamp": "2026-01-01T00:00:00.000Z",
            "receivedAt": "2026-01-01T00:00:01.000Z", "fuel": 12
        }))
        .unwrap();
        let lines = lines(&Event::Location(Box::new(location)));
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["event"], "location");
        assert_eq!(lines[0]["seq"], 7);
        assert_eq!(lines[0]["speed"], 3.0);
        assert_eq!(lines[0]["fuel"], 12);
        assert!(lines[0].get("altitude").is_none());
        assert_eq!(lines[0]["timestamp"], "2026-01-01T00:00:00.000Z");
    }
}
