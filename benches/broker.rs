//! What the log in a stream costs, on a nats-server of its own: acknowledged appends per
//! second through one engine and through three, the time from an append at one instance to
//! its event at another, and the memory of a room that is listened to.
//! `cargo bench --bench broker`.

#![allow(clippy::print_stdout)] // the figures
#![allow(clippy::unwrap_used, clippy::expect_used)] // of the shared test support

#[path = "../tests/support/nats.rs"]
#[allow(dead_code, unreachable_pub)]
mod nats;

use std::sync::Arc;
use std::time::Duration;

use milepost::broker::{self, Link};
use milepost::ids::{ClientId, ConnId, RoomId, VehicleId};
use milepost::room_log::{Append, LogEvent, Nats, RoomLog, nats as log};
use milepost::telemetry::Metrics;
use milepost::time::UnixMillis;
use nats::NatsServer;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

type Failed = Box<dyn std::error::Error>;

const VEHICLES: usize = 1000;
const ROOMS: usize = 100;
const BODY: usize = 200;

struct Instance {
    engine: Nats,
    events: UnboundedReceiver<LogEvent>,
    /// Each instance has its own vehicles, in the rooms of all.
    number: usize,
    sent: usize,
    started_over: usize,
}

impl Instance {
    async fn start(server: &NatsServer, number: usize) -> Result<Self, Failed> {
        let settings = broker::Settings { urls: vec![server.url()], ..Default::default() };
        let link = Link::connect(settings).await?;
        let (sender, events) = unbounded_channel();
        let metrics = Arc::new(Metrics::new(&Default::default()));
        let engine = Nats::open(link, log::Settings::default(), metrics, sender).await?;
        Ok(Self { engine, events, number, sent: 0, started_over: 0 })
    }

    async fn load(&mut self, rooms: impl Iterator<Item = RoomId>) -> Result<(), Failed> {
        let mut asked = 0;
        for room in rooms {
            self.engine.load_room(room);
            asked += 1;
        }
        while asked > 0 {
            match self.events.recv().await {
                Some(LogEvent::RoomLoaded { .. }) => asked -= 1,
                Some(LogEvent::Arrived(_)) => {}
                other => return Err(format!("{other:?}").into()),
            }
        }
        Ok(())
    }

    fn append(&mut self) -> Result<(), Failed> {
        let vehicle = format!("vehicle-{}-{:04}", self.number, self.sent % VEHICLES);
        let mut body = format!(r#""latitude":51.5,"speed":{},"pad":""#, self.sent % 50);
        body.extend(std::iter::repeat_n('x', BODY.saturating_sub(body.len() + 1)));
        body.push('"');
        let now = UnixMillis::now();
        self.engine.append(Append {
            rooms: vec![room(self.sent % ROOMS)?],
            client: ClientId::parse(&vehicle)?,
            vehicle: VehicleId::parse(&vehicle)?,
            sender: ConnId((self.sent % VEHICLES) as u64),
            key: Some(format!("{}-{}", self.number, self.sent).into()),
            fix: Some(now),
            latitude: 51.5,
            longitude: -0.12,
            body: body.into(),
            received_at: now,
            quiet: false,
            reply: None,
        });
        self.sent += 1;
        Ok(())
    }

    /// `window` appends are always under way, `count` in all. Returns how many events of the
    /// others were heard meanwhile.
    async fn publish(&mut self, window: usize, count: usize) -> Result<usize, Failed> {
        let (mut sent, mut done, mut heard) = (0, 0, 0);
        while done < count {
            while sent < count && sent - done < window {
                self.append()?;
                sent += 1;
            }
            match self.events.recv().await {
                Some(LogEvent::Committed(batch) | LogEvent::Answered(batch)) => {
                    done += batch.len();
                }
                Some(LogEvent::Arrived(batch)) => heard += batch.len(),
                // A room that started over (nats-server before 2.9.16 does not keep the order).
                Some(LogEvent::RoomLoaded { .. }) => self.started_over += 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
        Ok(heard)
    }
}

fn room(number: usize) -> Result<RoomId, Failed> {
    Ok(RoomId::parse(&format!("fleet/{number}"))?)
}

fn rooms(count: usize) -> impl Iterator<Item = RoomId> {
    (0..count).filter_map(|number| room(number).ok())
}

async fn throughput(instances: usize, count: usize) -> Result<(), Failed> {
    let server = NatsServer::start();
    let mut running = Vec::new();
    for number in 0..instances {
        let mut instance = Instance::start(&server, number).await?;
        instance.load(rooms(ROOMS)).await?;
        running.push(instance);
    }
    let start = Instant::now();
    let before = cpu(server.pid());
    let work = running.iter_mut().map(|instance| instance.publish(1000, count));
    let heard: usize = futures_util::future::try_join_all(work).await?.iter().sum();
    let all = count * instances;
    let rate = all as f64 / start.elapsed().as_secs_f64();
    let cost = (cpu(server.pid()) - before) * 1e6 / all as f64;
    let started_over: usize = running.iter().map(|instance| instance.started_over).sum();
    println!(
        "{instances} instance(s), all in {ROOMS} rooms: {rate:.0} acknowledged/s, \
         {heard} heard of others, {cost:.0} µs of the broker's CPU each, {started_over} times a \
         room started over"
    );
    Ok(())
}

/// From the append at one instance to the event at another, at a steady rate.
async fn latency(publishers: usize, rate: u32, count: usize) -> Result<(), Failed> {
    let server = NatsServer::start();
    let mut one = Instance::start(&server, 0).await?;
    let mut other = Instance::start(&server, 1).await?;
    one.load(rooms(ROOMS)).await?;
    other.load(rooms(ROOMS)).await?;
    if publishers == 2 {
        other.publish(1, 1).await?;
    }
    let start = Instant::now();
    let (mut times, mut sent) = (Vec::with_capacity(count), Vec::with_capacity(count));
    while times.len() < count {
        let due = start + Duration::from_secs(1) * u32::try_from(sent.len())? / rate;
        tokio::select! {
            () = tokio::time::sleep_until(due), if sent.len() < count => {
                sent.push(Instant::now());
                one.append()?;
            }
            event = other.events.recv() => if let Some(LogEvent::Arrived(batch)) = event {
                for _ in batch {
                    times.push(sent[times.len()].elapsed());
                }
            },
            _ = one.events.recv() => {}
        }
    }
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "to another instance at {rate}/s, {publishers} publishing: p50 {:?}, p99 {:?}",
        at(50),
        at(99)
    );
    Ok(())
}

async fn memory(count: usize) -> Result<(), Failed> {
    let server = NatsServer::start();
    let mut instance = Instance::start(&server, 0).await?;
    instance.load(rooms(10)).await?;
    let own = std::process::id();
    let before = (rss(own), rss(server.pid()));
    let start = Instant::now();
    instance.load(rooms(count)).await?;
    let each = |now: u64, before: u64| now.saturating_sub(before) as f64 * 1024.0 / count as f64;
    println!(
        "{count} empty rooms: {:.0} bytes each here, {:.0} at the broker, loaded at {:.0}/s",
        each(rss(own), before.0),
        each(rss(server.pid()), before.1),
        count as f64 / start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Resident memory in KiB.
fn rss(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}

/// CPU time so far, in seconds.
fn cpu(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ticks: f64 =
        stat.split(' ').skip(13).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    ticks / 100.0
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    memory(5000).await?;
    throughput(1, 40_000).await?;
    throughput(3, 15_000).await?;
    latency(1, 500, 2000).await?;
    latency(2, 500, 2000).await?;
    Ok(())
}
