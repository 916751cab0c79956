//! What a delivered position costs: the real server against a raw loop that does nothing
//! else, side by side in one run.
//!
//! `cargo bench --bench fanout [-- NAME…]`, with NAME part of a measure's name. Bars are
//! ratios to the raw loop; figures of one run are comparable with each other only.

#![allow(clippy::print_stdout)] // the figures

mod load;

use std::time::Duration;

use load::crowd::Crowd;
use load::process::Process;
use load::{Failed, median, percentile, raw, wanted};
use tokio::time::Instant;

const SUBSCRIBERS: usize = 1_000;
/// Rooms that one connection publishes to (`limits.rooms_per_connection`).
const PUBLISHED: usize = 400;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(600);
/// Bytes of an event, until the server has told.
const EVENT: usize = 420;

/// A server, its subscribers, and its publishers.
struct Stage {
    process: Process,
    crowd: Crowd,
    rooms: Vec<String>,
    publishers: Vec<usize>,
}

impl Stage {
    /// `SUBSCRIBERS` clients spread over `rooms` rooms of `members` each, and clients that
    /// publish only.
    fn new(
        process: Process,
        rooms: usize,
        members: usize,
        publishers: usize,
    ) -> Result<Self, Failed> {
        let mut crowd = Crowd::new()?;
        let rooms: Vec<_> = (0..rooms).map(|n| format!("room-{n:05}")).collect();
        crowd.connect(process.address, SUBSCRIBERS)?;
        let seats = (0..rooms.len() * members).map(|n| (n % SUBSCRIBERS, n / members));
        crowd.join("subscribe", seats.map(|(peer, room)| (peer, rooms[room].clone())))?;
        let first = crowd.connect(process.address, publishers)?;
        let publishers: Vec<_> = (first..first + publishers).collect();
        let all = || rooms.iter().take(PUBLISHED).cloned();
        let joins = publishers.iter().flat_map(|&one| all().map(move |room| (one, room)));
        crowd.join("publish", joins)?;
        Ok(Self { process, crowd, rooms, publishers })
    }

    fn server(rooms: usize, members: usize, publishers: usize) -> Result<Self, Failed> {
        Self::new(Process::milepost(&[])?, rooms, members, publishers)
    }

    fn raw(frame: usize, publishers: usize) -> Result<Self, Failed> {
        Self::new(Process::raw(frame)?, 1, SUBSCRIBERS, publishers)
    }

    /// Publishes `burst` positions at once to the first room, waits until all have them,
    /// and so on for a while. Returns the server's CPU time per delivery in µs.
    fn cost(&mut self, burst: usize) -> Result<f64, Failed> {
        self.burst(burst)?;
        self.crowd.begin(false);
        let (before, start) = (self.process.cpu()?, Instant::now());
        let mut expected = 0;
        while start.elapsed() < ROUND {
            expected += (burst * SUBSCRIBERS) as u64;
            self.burst(burst)?;
        }
        let used = self.process.cpu()? - before;
        let each = expected / SUBSCRIBERS as u64;
        if self.crowd.spread(0..SUBSCRIBERS) != (each, each) || self.crowd.disorder > 0 {
            return Err("positions were lost or doubled".into());
        }
        Ok(used.as_secs_f64() * 1e6 / expected as f64)
    }

    fn burst(&mut self, burst: usize) -> Result<(), Failed> {
        let expected = self.crowd.positions + (burst * SUBSCRIBERS) as u64;
        let room = self.rooms[0].as_str();
        self.crowd.publish(self.publishers[0], std::iter::repeat_n(room, burst))?;
        self.crowd.until("deliveries", |crowd| crowd.positions >= expected)
    }

    /// Publishes `rate` positions a second, by all publishers in turn, for `time`. Returns
    /// the deliveries a second, the CPUs used, p50 and p99 in ms.
    fn steady(&mut self, rate: u32, time: Duration) -> Result<Steady, Failed> {
        self.burst(1)?;
        self.crowd.begin(true);
        let (before, start) = (self.process.cpu()?, Instant::now());
        let count = rate * u32::try_from(time.as_millis())? / 1000;
        for n in 0..count {
            let due = start + Duration::from_secs(1) * n / rate;
            while Instant::now() < due {
                let left = due.saturating_duration_since(Instant::now());
                self.crowd.pump(left.min(Duration::from_millis(1)))?;
            }
            let publisher = self.publishers[n as usize % self.publishers.len()];
            self.crowd.publish(publisher, std::iter::once(self.rooms[0].as_str()))?;
        }
        let expected = u64::from(count) * SUBSCRIBERS as u64;
        self.crowd.until("deliveries", |crowd| crowd.positions >= expected)?;
        let elapsed = start.elapsed().as_secs_f64();
        let used = (self.process.cpu()? - before).as_secs_f64();
        let mut latencies = self.crowd.latencies.take().unwrap_or_default();
        Ok(Steady {
            rate: expected as f64 / elapsed,
            cpus: used / elapsed,
            cpu: used * 1e6 / expected as f64,
            p50: percentile(&mut latencies, 50) / 1e3,
            p99: percentile(&mut latencies, 99) / 1e3,
        })
    }

    /// One position to each of `count` rooms in one write, and so on; CPU µs per position.
    fn over_rooms(&mut self, count: usize, members: usize) -> Result<f64, Failed> {
        let mut at = 0;
        self.crowd.begin(false);
        let (before, start) = (self.process.cpu()?, Instant::now());
        let (mut sent, mut expected) = (0, 0);
        while start.elapsed() < ROUND {
            let rooms = self.rooms.iter().take(PUBLISHED).cycle().skip(at).take(count);
            self.crowd.publish(self.publishers[0], rooms.map(String::as_str))?;
            at = (at + count) % self.rooms.len().min(PUBLISHED);
            sent += count;
            expected += (count * members) as u64;
            self.crowd.until("deliveries", |crowd| crowd.positions >= expected)?;
        }
        let used = self.process.cpu()? - before;
        Ok(used.as_secs_f64() * 1e6 / sent as f64)
    }
}

struct Steady {
    rate: f64,
    cpus: f64,
    cpu: f64,
    p50: f64,
    p99: f64,
}

/// Takes turns, so that both see the same machine, and compares the medians.
fn side_by_side(
    name: &str,
    unit: &str,
    bar: f64,
    server: &mut Stage,
    raw: &mut Stage,
    rounds: usize,
    measure: impl Fn(&mut Stage) -> Result<f64, Failed>,
) -> Result<(), Failed> {
    let (mut ours, mut limit, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (server, raw) = (measure(server)?, measure(raw)?);
        ours.push(server);
        limit.push(raw);
        ratios.push(server / raw);
    }
    println!(
        "{name}: {:.3} {unit}, raw {:.3} {unit}, ratio {:.2} (bar {bar})",
        median(ours),
        median(limit),
        median(ratios)
    );
    Ok(())
}

fn main() -> Result<(), Failed> {
    if let Some(frame) = raw::asked() {
        return raw::serve(frame);
    }
    let one_room = ["burst", "unbatched", "latency", "sustained"].iter().any(|name| wanted(name));
    if one_room {
        one_room_measures()?;
    }
    if wanted("rooms") {
        rooms()?;
    }
    Ok(())
}

fn one_room_measures() -> Result<(), Failed> {
    let mut server = Stage::server(1, SUBSCRIBERS, 100)?;
    server.burst(1)?;
    let event = if server.crowd.frame > 0 { server.crowd.frame } else { EVENT };
    let mut raw = Stage::raw(event, 100)?;
    raw.burst(1)?;
    println!("{SUBSCRIBERS} subscribers of one room, frames of {event} bytes");
    if wanted("burst") {
        let name = "burst: CPU per delivery, 16 positions at once";
        let measure = |stage: &mut Stage| stage.cost(16);
        side_by_side(name, "µs", 1.7, &mut server, &mut raw, ROUNDS, measure)?;
    }
    if wanted("unbatched") {
        let name = "unbatched: CPU per delivery, one position at a time";
        let measure = |stage: &mut Stage| stage.cost(1);
        side_by_side(name, "µs", 1.2, &mut server, &mut raw, ROUNDS, measure)?;
    }
    if wanted("latency") {
        let name = "latency: p99 at 20 positions a second";
        let measure = |stage: &mut Stage| Ok(stage.steady(20, Duration::from_millis(1_500))?.p99);
        side_by_side(name, "ms", 1.7, &mut server, &mut raw, 3, measure)?;
    }
    if wanted("sustained") {
        for rate in [400, 800] {
            let steady = server.steady(rate, Duration::from_secs(4))?;
            println!(
                "sustained: {rate} positions a second by 100 publishers: {:.0} deliveries/s, {:.2} \
                 CPUs, {:.3} µs each, p50 {:.1} ms, p99 {:.1} ms",
                steady.rate, steady.cpus, steady.cpu, steady.p50, steady.p99
            );
        }
    }
    Ok(())
}

/// The same number of deliveries from one room and from many; what a position costs
/// before it is delivered is measured in a room with nobody in it and taken off.
fn rooms() -> Result<(), Failed> {
    let (mut one, mut many) = (Stage::server(1, SUBSCRIBERS, 1)?, Stage::server(1_000, 10, 1)?);
    let alone = one.crowd.connect(one.process.address, 1)?;
    one.crowd.join("publish", std::iter::once((alone, "empty".to_owned())))?;
    let (mut costs, mut spread) = (Vec::new(), Vec::new());
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let accept = accept_cost(&mut one, alone)?;
        let single = (one.over_rooms(1, SUBSCRIBERS)? - accept) / SUBSCRIBERS as f64;
        let each = (many.over_rooms(100, 10)? - accept) / 10.0;
        costs.push(single);
        spread.push(each);
        ratios.push(each / single);
    }
    println!(
        "rooms: CPU per delivery, 1 room x {SUBSCRIBERS} {:.3} µs, 1,000 rooms x 10 {:.3} µs, \
         ratio {:.2} (bar 1.3)",
        median(costs),
        median(spread),
        median(ratios)
    );
    Ok(())
}

/// CPU µs of accepting a position that nobody gets.
fn accept_cost(stage: &mut Stage, publisher: usize) -> Result<f64, Failed> {
    let (before, start) = (stage.process.cpu()?, Instant::now());
    let mut sent = 0;
    while start.elapsed() < ROUND / 4 {
        stage.crowd.publish(publisher, std::iter::repeat_n("empty", 100))?;
        sent += 100;
        stage.crowd.pump(Duration::from_millis(2))?;
    }
    stage.crowd.quiet(Duration::from_millis(50))?;
    Ok((stage.process.cpu()? - before).as_secs_f64() * 1e6 / f64::from(sent))
}
