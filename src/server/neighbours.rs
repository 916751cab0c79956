//! The other instances for the shutdown: the cluster says who is there, the link takes what
//! they have to be told.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, timeout_at};

use crate::broker::Link;
use crate::cluster::{Cluster, Instance};
use crate::shutdown::Others;
use crate::shutdown::others::TheirGenerations;

/// How long after a failed attempt to say something the next one follows.
const SAY_AGAIN: Duration = Duration::from_millis(50);

pub(super) struct Neighbours {
    pub(super) cluster: Cluster,
    pub(super) link: Link,
}

impl Others for Neighbours {
    fn live(&self) -> usize {
        self.cluster.others()
    }

    fn generations(&self) -> TheirGenerations {
        TheirGenerations { own: self.cluster.generation().clone(), newer: self.cluster.newer() }
    }

    fn known(&self) -> Vec<Instance> {
        self.cluster.instances()
    }

    fn announce_draining(&self) {
        self.cluster.set_away(true);
    }

    fn announce_away(&self, away: bool) {
        self.cluster.set_away(away);
    }

    fn flush(&self, deadline: Instant) -> BoxFuture<'static, bool> {
        let link = self.link.clone();
        async move { is_up(&link, deadline).await && link.round_trip(left(deadline)).await }.boxed()
    }

    fn leave(&self, deadline: Instant) -> BoxFuture<'static, bool> {
        let (cluster, link) = (self.cluster.clone(), self.link.clone());
        async move {
            // A link that is down may come back in time.
            while is_up(&link, deadline).await {
                if cluster.leave(left(deadline)).await {
                    return link.close(deadline).await;
                }
                sleep(SAY_AGAIN).await;
            }
            false
        }
        .boxed()
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Waits until the link answers, at most until `deadline`.
async fn is_up(link: &Link, deadline: Instant) -> bool {
    let mut state = link.state();
    let up = timeout_at(deadline, state.wait_for(|state| state.is_up())).await;
    matches!(up, Ok(Ok(_)))
}
