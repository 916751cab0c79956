//! Who moves in the demo: synthetic vehicles, and recordings that come with the binary.
//!
//! A recording is driven there and back again, so that it can be repeated for ever and no
//! vehicle jumps. Sources, licences and what was changed: `traces/README.md`.

use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::cli::trace::{Row, Trace};

/// A recording in the binary.
pub(super) struct Recording {
    /// Its room.
    pub(super) room: &'static str,
    /// What it shows.
    pub(super) title: &'static str,
    /// Whom to thank.
    pub(super) attribution: &'static str,
    csv: &'static str,
}

/// The recordings.
pub(super) const RECORDINGS: [Recording; 3] = [
    Recording {
        room: "helsinki",
        title: "2 city buses, a fix every second",
        attribution: "© Helsinki Region Transport 2024, CC BY 4.0",
        csv: include_str!("traces/helsinki.csv"),
    },
    Recording {
        room: "kingston",
        title: "50 city buses, a fix every 31 s",
        attribution: "Contains information licensed under the Open Data Licence – City of Kingston",
        csv: include_str!("traces/kingston.csv"),
    },
    Recording {
        room: "mississippi",
        title: "80 vessels, a fix every 70 s",
        attribution: "AIS data: U.S. Coast Guard, NOAA and BOEM, Marine Cadastre",
        csv: include_str!("traces/mississippi.csv"),
    },
];

struct Fix<'a> {
    vehicle: &'a str,
    ms: u64,
    latitude: f64,
    longitude: f64,
    speed: Option<f64>,
    heading: Option<f64>,
}

impl Fix<'_> {
    fn parse(line: &str) -> anyhow::Result<Fix<'_>> {
        let fields: Vec<&str> = line.split(',').collect();
        let [vehicle, ms, latitude, longitude, speed, heading] = fields[..] else {
            anyhow::bail!("not six fields: {line}");
        };
        let optional = |text: &str| match text {
            "" => Ok(None),
            text => text.parse::<f64>().map(Some),
        };
        Ok(Fix {
            vehicle,
            ms: ms.parse()?,
            latitude: latitude.parse()?,
            longitude: longitude.parse()?,
            speed: optional(speed)?,
            heading: optional(heading)?,
        })
    }

    /// The row to send `ms` after the start; on the way back the vehicle looks the other
    /// way.
    fn row(&self, ms: u64, back: bool) -> Row {
        let mut members = Map::new();
        members.insert("vehicleId".to_owned(), self.vehicle.into());
        members.insert("latitude".to_owned(), self.latitude.into());
        members.insert("longitude".to_owned(), self.longitude.into());
        if let Some(speed) = self.speed {
            members.insert("speed".to_owned(), speed.into());
        }
        if let Some(heading) = self.heading {
            let heading = if back { heading + 180.0 } else { heading };
            members.insert("heading".to_owned(), (heading % 360.0).into());
        }
        let attributes: Value = json!({ "recorded": true });
        members.insert("attributes".to_owned(), attributes);
        Row::prompt(self.vehicle, Duration::from_millis(ms), members)
    }
}

impl Recording {
    /// The recording there and back again.
    ///
    /// # Errors
    /// If it is none: never, a test reads them all.
    pub(super) fn trace(&self) -> anyhow::Result<Trace> {
        there_and_back(self.csv).with_context(|| format!("recording {}", self.room))
    }
}

fn there_and_back(csv: &str) -> anyhow::Result<Trace> {
    let lines = csv.lines().filter(|line| !line.starts_with('#')).skip(1);
    let fixes = lines.map(Fix::parse).collect::<anyhow::Result<Vec<_>>>()?;
    let turn = fixes.last().context("no positions")?.ms;
    let there = fixes.iter().map(|fix| fix.row(fix.ms, false));
    // What lies at the turn, or at the start of the next lap, is not sent twice.
    let back = fixes.iter().rev().filter(|fix| fix.ms != 0 && fix.ms != turn);
    let back = back.map(|fix| fix.row(2 * turn - fix.ms, true));
    Ok(Trace { rows: there.chain(back).collect(), again: Duration::from_millis(2 * turn) })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::time::UnixMillis;

    #[test]
    fn recordings_go_on_without_a_jump() {
        for recording in &RECORDINGS {
            assert!(recording.csv.starts_with("# "), "says where it comes from");
            let trace = recording.trace().unwrap();
            let start = UnixMillis::now();
            let laps = trace.rows.iter().map(|row| (row, start)).chain(
                // The next lap.
                trace
                    .rows
                    .iter()
                    .map(|row| (row, start.plus(i64::try_from(trace.again.as_millis()).unwrap()))),
            );
            let mut last: HashMap<&str, (i64, f64, f64)> = HashMap::new();
            for (row, start) in laps {
                let fix = row.position(Some((start, 1.0)));
                let at = fix["timestamp"].as_i64().unwrap();
                assert_eq!(at, start.get() + i64::try_from(row.due.as_millis()).unwrap());
                let (latitude, longitude) =
                    (fix["latitude"].as_f64().unwrap(), fix["longitude"].as_f64().unwrap());
                let here = (at, latitude, longitude);
                if let Some(before) = last.insert(&row.vehicle, here) {
                    assert!(at > before.0, "{} goes back in time", row.vehicle);
                    let north = (latitude - before.1) * 111_320.0;
                    let east = (longitude - before.2) * 111_320.0 * latitude.to_radians().cos();
                    let speed = north.hypot(east) / ((at - before.0) as f64 / 1000.0);
                    assert!(speed < 40.0, "{} jumps: {speed} m/s", row.vehicle);
                }
            }
            assert!(recording.title.starts_with(&last.len().to_string()), "{}", last.len());
        }
    }

    #[test]
    fn what_is_no_recording_is_said_so() {
        for csv in ["", "head\n", "head\na,1,2,3,4\n", "head\na,b,1,1,,\n"] {
            assert!(there_and_back(csv).is_err(), "{csv:?}");
        }
    }
}
