//! The vehicles of a simulation: each on its connection, publishing at its pace without
//! waiting for one answer before the next position.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::identity::Identity;
use super::route::Route;
use super::tally::Tally;
use super::{SimulateArgs, distinct};
use crate::cli::trace::Trace;
use crate::client::{Client, Error, Event, Events, Fix};
use crate::protocol::Mode;
use crate::time::UnixMillis;

/// Positions of one vehicle without an answer; with more it waits.
const IN_FLIGHT: usize = 64;
/// New connections a second, under a server's default admission rate.
const CONNECTS: u32 = 1000;

/// All vehicles.
pub(super) struct Fleet {
    pub(super) room: Arc<str>,
    pub(super) tally: Arc<Tally>,
    pub(super) identity: Identity,
    pub(super) args: SimulateArgs,
    pub(super) stopped: watch::Receiver<bool>,
}

/// One vehicle's part: its connection and how it publishes.
struct Driver {
    room: Arc<str>,
    tally: Arc<Tally>,
    keyed: bool,
    client: Client,
    stopped: watch::Receiver<bool>,
}

impl Fleet {
    /// A client whose sessions after the first are counted.
    async fn publisher(&self, name: &str) -> anyhow::Result<Client> {
        let (client, events) = self.identity.publisher(name, self.args.gateway)?.start()?;
        tokio::spawn(count_sessions(events, self.tally.clone()));
        Ok(client)
    }

    fn driver(&self, client: Client) -> Driver {
        Driver {
            room: self.room.clone(),
            tally: self.tally.clone(),
            keyed: self.args.keyed,
            client,
            stopped: self.stopped.clone(),
        }
    }

    /// One driver for each name.
    async fn drivers<'a>(
        &self,
        names: impl Iterator<Item = &'a str>,
    ) -> anyhow::Result<Vec<Driver>> {
        let gateway = match self.args.gateway {
            true => Some(self.publisher("simulate-gateway").await?),
            false => None,
        };
        let mut drivers = Vec::new();
        let mut pace = tokio::time::interval(Duration::from_secs(1) / CONNECTS);
        for name in names {
            let client = match &gateway {
                Some(client) => client.clone(),
                None => {
                    pace.tick().await;
                    self.publisher(name).await?
                }
            };
            drivers.push(self.driver(client));
        }
        Ok(drivers)
    }

    /// Synthetic vehicles until they are stopped.
    pub(super) async fn drive(self) -> anyhow::Result<()> {
        let names: Vec<String> = (1..=self.args.vehicles.unwrap_or(100))
            .map(|number| format!("sim-{number:04}"))
            .collect();
        let every = Duration::from_secs_f64(1.0 / self.args.rate);
        let named = self.args.gateway || self.identity.names_vehicles();
        let drivers = self.drivers(names.iter().map(String::as_str)).await?;
        let mut tasks = JoinSet::new();
        for (index, (name, driver)) in names.iter().zip(drivers).enumerate() {
            let mut route = Route::new(self.args.seed.wrapping_add(index as u64));
            let vehicle = named.then(|| name.clone());
            // Spread over the interval: a fleet does not report in step.
            let offset = every.mul_f64(index as f64 / names.len() as f64);
            let (positions, queue) = mpsc::channel(1);
            tasks.spawn(async move {
                let ticks = async move {
                    let mut ticks = tokio::time::interval_at(Instant::now() + offset, every);
                    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                    loop {
                        ticks.tick().await;
                        let mut fix: Fix = route.step(every.as_secs_f64());
                        fix.timestamp = Some(UnixMillis::now().get());
                        fix.vehicle_id.clone_from(&vehicle);
                        let Ok(Value::Object(position)) = serde_json::to_value(&fix) else {
                            return;
                        };
                        if positions.send(position).await.is_err() {
                            return;
                        }
                    }
                };
                tokio::join!(ticks, driver.run(queue)).1
            });
        }
        ends(tasks).await
    }

    /// A recording, until its end (for ever, if it is to `repeat`) or until it is stopped.
    pub(super) async fn replay(self, trace: Trace, repeat: bool) -> anyhow::Result<()> {
        let names = distinct(trace.rows.iter().map(|row| &*row.vehicle));
        let drivers = self.drivers(names.iter().copied()).await?;
        let mut tasks = JoinSet::new();
        let mut queues = HashMap::new();
        for (name, driver) in names.iter().zip(drivers) {
            let (positions, queue) = mpsc::channel(IN_FLIGHT);
            queues.insert((*name).to_owned(), positions);
            tasks.spawn(driver.run(queue));
        }
        let speed = self.args.speed;
        let (mut start, mut wall) = (Instant::now(), UnixMillis::now());
        let mut stopped = self.stopped.clone();
        let feed = async {
            loop {
                for row in &trace.rows {
                    tokio::time::sleep_until(start + row.due.div_f64(speed)).await;
                    let shift = (!self.args.as_recorded).then_some((wall, speed));
                    if let Some(queue) = queues.get(&*row.vehicle)
                        && queue.send(row.position(shift)).await.is_err()
                    {
                        return;
                    }
                }
                if !repeat {
                    return;
                }
                let lap = trace.again.div_f64(speed);
                start += lap;
                wall = wall.plus(i64::try_from(lap.as_millis()).unwrap_or(i64::MAX));
            }
        };
        tokio::select! {
            () = feed => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        drop(queues);
        ends(tasks).await
    }
}

async fn ends(mut tasks: JoinSet<anyhow::Result<()>>) -> anyhow::Result<()> {
    let mut result = Ok(());
    while let Some(ended) = tasks.join_next().await {
        result = result.and(ended.map_err(anyhow::Error::from).and_then(|ended| ended));
    }
    result
}

async fn count_sessions(mut events: Events, tally: Arc<Tally>) {
    let mut session: Option<Arc<str>> = None;
    while let Some(event) = events.next().await {
        match event {
            Event::State(state) if state.session.is_some() && state.session != session => {
                let before = std::mem::replace(&mut session, state.session);
                before.is_some().then(|| tally.reconnected());
            }
            Event::Refused(refused) => tally.refused(&refused),
            _ => {}
        }
    }
}

impl Driver {
    /// Publishes what comes until the queue or the simulation ends, then waits for the
    /// answers that are due.
    async fn run(mut self, mut queue: mpsc::Receiver<Map<String, Value>>) -> anyhow::Result<()> {
        if let Err(error) = self.client.join(&self.room, Mode::Publish).await {
            queue.close();
            anyhow::bail!("cannot join {}: {error}", self.room);
        }
        let mut answers = FuturesUnordered::new();
        loop {
            tokio::select! {
                position = queue.recv(), if answers.len() < IN_FLIGHT => match position {
                    Some(position) => answers.push(publish(&self.client, &self.room, self.keyed, &self.tally, position)),
                    None => break,
                },
                Some(()) = answers.next() => {}
                _ = self.stopped.wait_for(|stopped| *stopped) => {
                    queue.close();
                    break;
                }
            }
        }
        while answers.next().await.is_some() {}
        Ok(())
    }
}

async fn publish(
    client: &Client,
    room: &str,
    keyed: bool,
    tally: &Tally,
    mut position: Map<String, Value>,
) {
    let number = tally.send();
    let mark = tally.mark(number);
    position.insert(super::tally::MARK.to_owned(), Value::String(mark.clone()));
    let start = Instant::now();
    let result = if keyed {
        client.publish_keyed([room], &mark, &position).await
    } else {
        client.publish([room], &position).await
    };
    match result {
        Ok(ack) => tally.acknowledged(number, &ack, keyed, start.elapsed()),
        Err(Error::Refused(refused)) => tally.refused(&refused),
        Err(error) => tally.failed(&error),
    }
}
