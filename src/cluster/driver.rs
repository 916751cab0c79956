//! The task that brings core, hub and carrier together.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::core::{Core, Input, Output};
use super::message::Message;
use super::wire::{Event, Wire};
use crate::ids::{ClientId, RoomId};
use crate::rooms::{Hub, LocalChanges, PresenceBus};

/// How often the core looks at the time.
const TICK: Duration = Duration::from_millis(100);
/// How many inputs are taken before their outputs are carried out.
const TAKEN_AT_ONCE: usize = 256;

/// The hub's end: takes note, and answers from the core.
pub(super) struct Bus {
    pub(super) inputs: mpsc::UnboundedSender<Input>,
    pub(super) core: Arc<Mutex<Core>>,
}

impl Bus {
    fn tell(&self, input: Input) {
        // The driver ends with the process.
        let _ = self.inputs.send(input);
    }
}

impl PresenceBus for Bus {
    fn opened(&self, room: &RoomId) {
        self.tell(Input::Opened(room.clone()));
    }

    fn changed(&self, room: &RoomId, changes: LocalChanges) {
        self.tell(Input::Changed(room.clone(), changes));
    }

    fn closed(&self, room: &RoomId) {
        self.tell(Input::Closed(room.clone()));
    }

    fn stopping(&self) {
        self.tell(Input::Drain);
    }

    fn claimed(&self, room: &RoomId) -> Vec<ClientId> {
        let core = self.core.lock();
        core.rooms.get(room).map(|lists| lists.claimed().cloned().collect()).unwrap_or_default()
    }
}

pub(super) struct Driver<W> {
    pub(super) core: Arc<Mutex<Core>>,
    pub(super) hub: Weak<Hub>,
    pub(super) wire: W,
    pub(super) inputs: mpsc::UnboundedReceiver<Input>,
    pub(super) clients: Box<dyn Fn() -> u64 + Send>,
    /// Cancelled when the others have been told of the end.
    pub(super) left: CancellationToken,
}

impl<W: Wire> Driver<W> {
    /// Runs until the hub or the carrier is gone.
    pub(super) async fn run(mut self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut taken = Vec::with_capacity(TAKEN_AT_ONCE);
        loop {
            tokio::select! {
                event = self.wire.next() => match event {
                    None => return,
                    Some(Event::Listening(room)) => taken.push(Input::Listening(room)),
                    Some(Event::Suspect) => taken.push(Input::Suspect),
                    Some(Event::Message(payload)) => {
                        taken.extend(Message::decode(&payload).map(Input::Message));
                    }
                },
                count = self.inputs.recv_many(&mut taken, TAKEN_AT_ONCE) => if count == 0 {
                    return;
                },
                _ = ticks.tick() => taken.push(Input::Tick),
            }
            let Some(hub) = self.hub.upgrade() else { return };
            let now = Instant::now();
            let outputs = {
                let mut core = self.core.lock();
                core.clients = (self.clients)();
                for input in taken.drain(..) {
                    core.input(input, now);
                }
                core.finish(now)
            };
            for output in outputs {
                self.carry_out(&hub, output);
            }
        }
    }

    fn carry_out(&mut self, hub: &Hub, output: Output) {
        match output {
            Output::Publish(to, message) => self.wire.publish(&to, message.encode()),
            Output::Listen(room) => self.wire.listen(room),
            Output::Unlisten(room) => self.wire.unlisten(&room),
            Output::Left => self.left.cancel(),
            Output::Claim(room, claims) => hub.claim(&room, &claims),
            Output::Known(room) => hub.presence_known(&room),
            Output::Lost(node) => tracing::warn!(
                event = "cluster.instance_lost",
                instance = &*node,
                "cluster: an instance is not heard of any more"
            ),
            Output::Found(node) => tracing::info!(
                event = "cluster.instance_found",
                instance = &*node,
                "cluster: an instance is there"
            ),
        }
    }
}
