//! Any sequence of joins, leaves, moves, lost messages, cut links, deaths, stops and
//! starts: after a quiet time every subscriber's replayed view is the truth.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use tokio::time::sleep;

use super::Mesh;
use super::site::{Site, settings};
use crate::rooms::LeaveReason;

const SITES: usize = 3;
const ROOMS: [&str; 2] = ["r", "s"];
const CLIENTS: usize = 6;

#[derive(Debug, Clone)]
enum Step {
    Join {
        site: usize,
        client: usize,
        room: usize,
        hidden: bool,
    },
    Leave {
        site: usize,
        which: usize,
        reason: usize,
    },
    Move {
        from: usize,
        to: usize,
        which: usize,
        make_first: bool,
    },
    Wait(u64),
    Lose(usize),
    Link {
        site: usize,
        up: bool,
    },
    Kill {
        site: usize,
    },
    /// Planned, with so many of its clients on another one before their old socket goes.
    Stop {
        site: usize,
        moved: usize,
    },
    Start {
        site: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let site = || 0..SITES;
    let step = prop_oneof![
        12 => (site(), 0..CLIENTS, 0..ROOMS.len(), proptest::bool::weighted(0.1))
            .prop_map(|(site, client, room, hidden)| Step::Join { site, client, room, hidden }),
        6 => (site(), 0_usize..10, 0_usize..4)
            .prop_map(|(site, which, reason)| Step::Leave { site, which, reason }),
        4 => (site(), site(), 0_usize..10, any::<bool>())
            .prop_map(|(from, to, which, make_first)| Step::Move { from, to, which, make_first }),
        8 => prop_oneof![1_u64..120, 100_u64..4000].prop_map(Step::Wait),
        2 => (1_usize..4).prop_map(Step::Lose),
        2 => (site(), any::<bool>()).prop_map(|(site, up)| Step::Link { site, up }),
        1 => site().prop_map(|site| Step::Kill { site }),
        1 => (site(), 0_usize..6).prop_map(|(site, moved)| Step::Stop { site, moved }),
        2 => site().prop_map(|site| Step::Start { site }),
    ];
    proptest::collection::vec(step, 1..60)
}

struct World {
    mesh: Mesh,
    sites: Vec<Option<Site>>,
    started: usize,
}

impl World {
    fn start(&mut self, site: usize) {
        if self.sites[site].is_none() {
            self.started += 1;
            let mut settings = settings(&format!("i{}", self.started));
            // Everything in parts.
            settings.max_message = 40;
            self.sites[site] = Some(Site::start(&self.mesh, settings));
        }
    }

    fn conn(&self, site: usize, which: usize) -> Option<(u64, String, String, bool)> {
        let conns = &self.sites[site].as_ref()?.conns;
        let (id, conn) = conns.iter().nth(which % conns.len().max(1))?;
        Some((*id, conn.client.clone(), conn.room.clone(), conn.hidden))
    }

    async fn step(&mut self, step: Step) {
        const REASONS: [LeaveReason; 4] = [
            LeaveReason::Left,
            LeaveReason::Disconnected,
            LeaveReason::Timeout,
            LeaveReason::ServerShuttingDown,
        ];
        match step {
            Step::Join { site, client, room, hidden } => {
                if let Some(site) = &mut self.sites[site] {
                    site.join_as(&format!("m{client}"), ROOMS[room], hidden);
                }
            }
            Step::Leave { site, which, reason } => {
                if let Some((id, ..)) = self.conn(site, which)
                    && let Some(site) = &mut self.sites[site]
                {
                    site.leave(id, REASONS[reason]);
                }
            }
            Step::Move { from, to, which, make_first } => {
                let Some((id, client, room, hidden)) = self.conn(from, which) else { return };
                if from == to || self.sites[to].is_none() {
                    return;
                }
                for join in if make_first { [true, false] } else { [false, true] } {
                    match &mut self.sites[if join { to } else { from }] {
                        Some(site) if join => {
                            site.join_as(&client, &room, hidden);
                        }
                        Some(site) => site.leave(id, LeaveReason::Disconnected),
                        None => {}
                    }
                }
            }
            Step::Wait(millis) => sleep(Duration::from_millis(millis)).await,
            Step::Lose(count) => self.mesh.lose(count),
            Step::Link { site, up } => {
                if let Some(site) = &self.sites[site] {
                    self.mesh.set_up(&site.name, up);
                }
            }
            Step::Kill { site } => {
                if let Some(site) = self.sites[site].take() {
                    site.kill(&self.mesh);
                }
            }
            Step::Stop { site: at, moved } => {
                let Some(mut site) = self.sites[at].take() else { return };
                site.hub.stop_announcing();
                for (n, id) in
                    site.conns.keys().copied().collect::<Vec<_>>().into_iter().enumerate()
                {
                    let conn = &site.conns[&id];
                    if n < moved
                        && let Some(to) = &mut self.sites[(at + 1 + n % 2) % SITES]
                    {
                        to.join_as(&conn.client, &conn.room, conn.hidden);
                    }
                    site.leave(id, LeaveReason::ServerShuttingDown);
                }
                site.end(&self.mesh).await;
            }
            Step::Start { site } => self.start(site),
        }
    }

    async fn check(&mut self) {
        self.mesh.lose(0);
        for site in self.sites.iter().flatten() {
            self.mesh.set_up(&site.name, true);
        }
        sleep(Duration::from_secs(30)).await;
        let truth = ROOMS.map(|room| {
            let conns = self.sites.iter().flatten().flat_map(|site| site.conns.values());
            conns
                .filter(|conn| conn.room == room && !conn.hidden)
                .map(|conn| conn.client.clone())
                .collect::<BTreeSet<String>>()
        });
        for site in self.sites.iter_mut().flatten() {
            for id in site.conns.keys().copied().collect::<Vec<_>>() {
                let at = ROOMS.iter().position(|room| *room == site.conns[&id].room).unwrap();
                assert_eq!(site.view(id), truth[at], "as told at {} in {}", site.name, ROOMS[at]);
            }
            for (room, members) in ROOMS.iter().zip(&truth) {
                let id = site.join_as("last", room, true);
                sleep(Duration::from_secs(1)).await;
                assert_eq!(site.view(id), *members, "as listed at {} in {room}", site.name);
                site.leave(id, LeaveReason::Left);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 250,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_view_becomes_the_truth(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut world =
                World { mesh: Mesh::default(), sites: (0..SITES).map(|_| None).collect(), started: 0 };
            (0..SITES).for_each(|site| world.start(site));
            for step in steps {
                world.step(step).await;
                for site in world.sites.iter_mut().flatten() {
                    site.read();
                }
            }
            world.check().await;
            for site in world.sites.iter().flatten() {
                site.abort();
            }
        });
    }
}
