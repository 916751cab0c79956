//! What the embedded log costs: acknowledged appends per second, the latency of a
//! commit, and reading missed events. `cargo bench --bench room_log [-- DIRECTORY]`;
//! pin it to one core with `taskset -c 0` for the figures of performance.md.

#![allow(clippy::print_stdout)] // the figures

use std::path::PathBuf;
use std::time::Duration;

use milepost::ids::{ClientId, ConnId, RoomId, VehicleId};
use milepost::room_log::{Append, Embedded, Lock, LogEvent, Receipt, RoomLog, Settings};
use milepost::time::UnixMillis;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

type Failed = Box<dyn std::error::Error>;

const BODY: usize = 200;

struct Load {
    rooms: Vec<RoomId>,
    vehicles: Vec<(VehicleId, ClientId)>,
    keyed: bool,
    sent: u64,
    fix: UnixMillis,
}

impl Load {
    fn new(rooms: usize, vehicles: usize, keyed: bool) -> Result<Self, Failed> {
        let rooms: Result<_, _> =
            (0..rooms).map(|n| RoomId::parse(&format!("fleet/{n}"))).collect();
        let vehicles: Result<Vec<_>, _> =
            (0..vehicles).map(|n| VehicleId::parse(&format!("vehicle-{n:06}"))).collect();
        let vehicles = vehicles?
            .into_iter()
            .map(|vehicle| ClientId::parse(vehicle.as_str()).map(|client| (vehicle, client)))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            rooms: rooms?,
            vehicles,
            keyed,
            sent: 0,
            fix: UnixMillis::now().plus(-3_600_000),
        })
    }

    fn next(&mut self) -> Append {
        let n = self.sent;
        self.sent += 1;
        let at = usize::try_from(n).unwrap_or(0) % self.vehicles.len();
        if at == 0 {
            self.fix = self.fix.plus(1);
        }
        let (vehicle, client) = self.vehicles[at].clone();
        let mut body = format!(r#""latitude":51.5,"longitude":-0.12,"speed":{},"pad":""#, n % 50);
        body.extend(std::iter::repeat_n('x', BODY.saturating_sub(body.len() + 1)));
        body.push('"');
        Append {
            rooms: vec![self.rooms[at % self.rooms.len()].clone()],
            vehicle,
            client,
            sender: ConnId(1),
            key: self.keyed.then(|| format!("key-{n}").into()),
            fix: Some(self.fix),
            latitude: 51.5,
            longitude: -0.12,
            body: body.into(),
            received_at: UnixMillis::now(),
            quiet: false,
            reply: Some(Box::new(drop::<Receipt>)),
        }
    }
}

/// `window` appends are always under way, `count` in all.
async fn throughput(
    log: &Embedded,
    events: &mut UnboundedReceiver<LogEvent>,
    load: &mut Load,
    window: usize,
    count: usize,
) -> Result<(f64, f64), Failed> {
    let start = Instant::now();
    let (mut sent, mut done, mut batches) = (0, 0, 0);
    while done < count {
        while sent < count && sent - done < window {
            log.append(load.next());
            sent += 1;
        }
        let step = (window / 4).max(1).min(sent - done);
        batches += acknowledge(events, step, &mut done).await?;
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    Ok((rate, count as f64 / batches as f64))
}

/// Receives commits until `step` more appends are acknowledged, calling their replies.
async fn acknowledge(
    events: &mut UnboundedReceiver<LogEvent>,
    step: usize,
    done: &mut usize,
) -> Result<usize, Failed> {
    let (mut seen, mut batches) = (0, 0);
    while seen < step {
        let Some(LogEvent::Committed(committed)) = events.recv().await else {
            return Err("the log stopped".into());
        };
        batches += 1;
        seen += committed.len();
        for one in committed {
            if let Some(reply) = one.append.reply {
                reply(Receipt { outcomes: one.outcomes });
            }
        }
    }
    *done += seen;
    Ok(batches)
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

/// The time from the append to its commit, at a steady `rate` a second.
async fn latency(
    log: &Embedded,
    events: &mut UnboundedReceiver<LogEvent>,
    load: &mut Load,
    rate: u32,
    count: u32,
) -> Result<Vec<Duration>, Failed> {
    let mut sent = std::collections::VecDeque::new();
    let mut times = Vec::new();
    let start = Instant::now();
    let mut next = 0;
    while times.len() < count as usize {
        while next < count && start.elapsed() >= Duration::from_secs(1) * next / rate {
            sent.push_back(Instant::now());
            log.append(load.next());
            next += 1;
        }
        let due = start + Duration::from_secs(1) * next / rate;
        let event = tokio::select! {
            event = events.recv() => event,
            () = tokio::time::sleep_until(due), if next < count => continue,
        };
        let Some(LogEvent::Committed(committed)) = event else {
            return Err("the log stopped".into());
        };
        for _ in committed {
            times.extend(sent.pop_front().map(|at| at.elapsed()));
        }
    }
    times.sort_unstable();
    Ok(times)
}

async fn missed(
    log: &Embedded,
    room: &RoomId,
    head: u64,
    count: u64,
) -> Result<(usize, Duration), Failed> {
    let start = Instant::now();
    let (mut after, mut seen) = (head.saturating_sub(count), 0);
    loop {
        let page = log.read(room.clone(), after, head, 64 << 10, true).await?;
        seen += page.events.len();
        match page.next {
            Some(next) => after = next,
            None => return Ok((seen, start.elapsed())),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let folder = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let folder = folder.map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(folder)?;
    for (name, rooms, vehicles, keyed) in [
        ("1 room, 1,000 vehicles", 1, 1_000, false),
        ("1 room, 1,000 vehicles, keyed", 1, 1_000, true),
        ("1,000 rooms, 10,000 vehicles", 1_000, 10_000, false),
    ] {
        let path = folder.path().join(format!("{rooms}-{keyed}.db"));
        let (sender, mut events) = unbounded_channel();
        let lock = Lock::try_acquire(&path)?;
        let log = Embedded::open(lock, &Settings::default(), sender)?;
        let mut load = Load::new(rooms, vehicles, keyed)?;
        println!("{name}, bodies of {BODY} bytes");
        for (window, count) in [(1, 5_000), (64, 50_000), (4_096, 400_000)] {
            let (rate, batch) = throughput(&log, &mut events, &mut load, window, count).await?;
            println!("  {window:>5} under way: {rate:>8.0} acknowledged/s, {batch:.0} a commit");
        }
        for rate in [100, 2_000, 20_000] {
            let times = latency(&log, &mut events, &mut load, rate, rate * 3).await?;
            let (half, most) = (percentile(&times, 50), percentile(&times, 99));
            let worst = percentile(&times, 100);
            println!("  at {rate:>6}/s: commit p50 {half:.1?}, p99 {most:.1?}, max {worst:.1?}");
        }
        let head = load.sent;
        for count in [10, 1_000, 100_000] {
            let (seen, time) = missed(&log, &load.rooms[0], head, count * rooms as u64).await?;
            println!("  {seen:>6} missed events read in {time:.1?}");
        }
        let start = Instant::now();
        log.close().await;
        println!("  closed in {:.1?}", start.elapsed());
        drop(log);
        while events.recv().await.is_some() {}
        let start = Instant::now();
        let (sender, _events) = unbounded_channel();
        let log = Embedded::open(Lock::try_acquire(&path)?, &Settings::default(), sender)?;
        println!("  opened again in {:.1?}, {} events in the window", start.elapsed(), load.sent);
        log.close().await;
    }
    Ok(())
}
