//! Whom to let go when: clients that are served on after their notice, so that each can
//! join another instance before it leaves this one (shutdown.md, "Hand-over").

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use crate::connection::{Handle, Order};

/// The clients that are served on, the next to be let go last.
#[derive(Debug, Default)]
pub(super) struct Handover(Vec<(Instant, Arc<Handle>)>);

impl Handover {
    /// Adds a client that has its notice, if it is served on at all.
    pub(super) fn add(&mut self, handle: Arc<Handle>) {
        if let Some(until) = handle.served_until() {
            self.0.push((until, handle));
        }
    }

    /// Puts them in their order, once all are added.
    pub(super) fn sort(&mut self) {
        self.0.sort_unstable_by_key(|(until, _)| std::cmp::Reverse(*until));
    }

    /// Lets each go when its time has come. Never ends: whoever waits for something else
    /// drops it, and may go on with it later.
    pub(super) async fn let_go(&mut self) {
        while let Some((until, _)) = self.0.last() {
            sleep_until(*until).await;
            if let Some((_, handle)) = self.0.pop() {
                handle.order(Order::LetGo);
            }
        }
        std::future::pending::<()>().await;
    }
}
