//! Recorded positions: one JSON object a line, replayed in the file's own order.
//!
//! When a row is due comes from its time of receipt (`attributes.receivedAt`) where the
//! recording has it; otherwise the rows are spread evenly over the recording's span, since
//! times of fixes may be jumbled. Rows are never repaired: defects are part of a recording.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value};

use crate::time::UnixMillis;

/// A pause longer than this separates sessions, which are replayed side by side.
const SESSION_PAUSE_MS: i64 = 3_600_000;
/// Between the end of a recording and its repetition.
const PAUSE: Duration = Duration::from_secs(1);

/// A recording.
#[derive(Debug)]
pub(super) struct Trace {
    /// In the order of their due times.
    pub(super) rows: Vec<Row>,
    /// When a replay that is repeated starts over, from its start.
    pub(super) again: Duration,
}

/// One recorded position.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) vehicle: String,
    /// When to send it, from the start of the replay at recorded speed.
    pub(super) due: Duration,
    /// The time of the fix, relative to the start of the replay.
    at: Option<i64>,
    members: Map<String, Value>,
}

fn time(value: Option<&Value>) -> Option<i64> {
    match value? {
        Value::Number(number) => number.as_i64().and_then(UnixMillis::new).map(UnixMillis::get),
        Value::String(text) => UnixMillis::parse_rfc3339(text).map(UnixMillis::get),
        _ => None,
    }
}

struct Read {
    vehicle: String,
    fix: Option<i64>,
    received: Option<i64>,
    members: Map<String, Value>,
}

impl Trace {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let mut rows = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let members: Map<String, Value> = serde_json::from_str(line)
                .with_context(|| format!("line {}: not a JSON object", number + 1))?;
            let vehicle = members
                .get("vehicleId")
                .and_then(Value::as_str)
                .with_context(|| format!("line {}: no vehicleId", number + 1))?;
            rows.push(Read {
                vehicle: vehicle.to_owned(),
                fix: time(members.get("timestamp")),
                received: time(members.get("attributes").and_then(|more| more.get("receivedAt"))),
                members,
            });
        }
        anyhow::ensure!(!rows.is_empty(), "no positions");
        let mut rows = if rows.iter().all(|row| row.received.is_some()) {
            by_receipt(rows)
        } else {
            spread(rows)
        };
        // Stable: what is due together keeps the file's order.
        rows.sort_by_key(|row| row.due);
        let again = rows.last().map_or(Duration::ZERO, |row| row.due) + PAUSE;
        Ok(Self { rows, again })
    }

    /// Only the first `count` vehicles, if given.
    pub(super) fn first_vehicles(mut self, count: Option<usize>) -> Self {
        if let Some(count) = count {
            let mut kept = BTreeSet::new();
            self.rows.retain(|row| {
                kept.contains(&row.vehicle)
                    || (kept.len() < count && kept.insert(row.vehicle.clone()))
            });
        }
        self
    }
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Each session from its own first receipt.
fn by_receipt(rows: Vec<Read>) -> Vec<Row> {
    let (mut start, mut last) = (0, None);
    rows.into_iter()
        .map(|row| {
            let received = row.received.unwrap_or_default();
            if last.is_none_or(|last: i64| (received - last).abs() > SESSION_PAUSE_MS) {
                start = received;
            }
            last = Some(received);
            Row {
                vehicle: row.vehicle,
                due: millis(received - start),
                at: row.fix.map(|fix| fix - start),
                members: row.members,
            }
        })
        .collect()
}

/// Evenly over the span of the fixes, shifted so that none is ahead of its sending.
fn spread(rows: Vec<Read>) -> Vec<Row> {
    let times = || rows.iter().filter_map(|row| row.fix);
    let span = times().max().unwrap_or(0) - times().min().unwrap_or(0);
    let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
    let due = |index: usize| span * i64::try_from(index).unwrap_or(0) / count;
    let shift = rows
        .iter()
        .enumerate()
        .filter_map(|(index, row)| row.fix.map(|fix| due(index) - fix))
        .min()
        .unwrap_or(0);
    rows.into_iter()
        .enumerate()
        .map(|(index, row)| Row {
            vehicle: row.vehicle,
            due: millis(due(index)),
            at: row.fix.map(|fix| fix + shift),
            members: row.members,
        })
        .collect()
}

impl Row {
    /// A position that is sent when it was measured.
    pub(super) fn prompt(vehicle: &str, at: Duration, members: Map<String, Value>) -> Self {
        let millis = i64::try_from(at.as_millis()).ok();
        Self { vehicle: vehicle.to_owned(), due: at, at: millis, members }
    }

    /// What to send: as recorded, or with the time of the fix moved to a replay that began
    /// at `start` and runs `speed` times as fast.
    pub(super) fn position(&self, shift: Option<(UnixMillis, f64)>) -> Map<String, Value> {
        let mut members = self.members.clone();
        if let (Some((start, speed)), Some(at)) = (shift, self.at) {
            #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)]
            let moved = start.plus((at as f64 / speed) as i64);
            members.insert("timestamp".to_owned(), moved.get().into());
        }
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(name: &str) -> Trace {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        Trace::read(&folder.join(name)).unwrap()
    }

    #[test]
    fn receipt_times_set_the_pace() {
        let trace = excerpt("kingston-buses.ndjson");
        let start = UnixMillis::now();
        assert_eq!(trace.rows[0].due, Duration::ZERO);
        for row in &trace.rows {
            let sent = start.get() + i64::try_from(row.due.as_millis()).unwrap();
            let fix = row.position(Some((start, 1.0)))["timestamp"].as_i64().unwrap();
            assert!(fix <= sent + 1000, "a fix ahead of its sending");
        }
        let faster = trace.rows.last().unwrap().position(Some((start, 10.0)));
        let fix = faster["timestamp"].as_i64().unwrap();
        assert!(fix <= start.get() + 10_000);
    }

    #[test]
    fn jumbled_times_keep_their_order_and_are_never_ahead() {
        let trace = excerpt("mississippi-delta-vessels.ndjson");
        let start = UnixMillis::now();
        let mut fixes = Vec::new();
        for row in &trace.rows {
            let fix = row.position(Some((start, 1.0)))["timestamp"].as_i64().unwrap();
            assert!(fix <= start.get() + i64::try_from(row.due.as_millis()).unwrap());
            fixes.push(fix);
        }
        assert!(!fixes.is_sorted(), "the recording is jumbled and stays so");
        let ids: Vec<&str> = trace.rows.iter().take(2).map(|row| &*row.vehicle).collect();
        assert_eq!(ids, ["msd-0001", "msd-0002"]);
    }

    #[test]
    fn days_apart_run_side_by_side() {
        let trace = excerpt("helsinki-buses-1hz.ndjson");
        assert!(trace.rows.last().unwrap().due < Duration::from_secs(3600));
        let first = trace.rows.iter().take_while(|row| row.due < Duration::from_secs(5));
        let vehicles: BTreeSet<&str> = first.map(|row| &*row.vehicle).collect();
        assert_eq!(vehicles.len(), 3);
        assert_eq!(trace.first_vehicles(Some(1)).rows[0].vehicle, "hel-1");
    }

    #[test]
    fn as_recorded_changes_nothing() {
        let line = r#"{"vehicleId":"a","timestamp":5,"x":1}"#;
        let trace = Trace::parse(line).unwrap();
        assert_eq!(Value::Object(trace.rows[0].position(None)).to_string().len(), line.len());
        assert_eq!(trace.rows[0].position(None)["timestamp"], 5);
    }

    #[test]
    fn what_is_no_recording_is_said_so() {
        for (text, said) in
            [("", "no positions"), ("{}", "line 1: no vehicleId"), ("\n[]", "line 2")]
        {
            let error = Trace::parse(text).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
