// SPDX-License-Identifier: Apache-2.0
//! The thread of a member, and what operators have it do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use causeway_api::Moment;
use causeway_api::fleet::{FleetPush, FleetRollback, FleetTokenOrder};

use super::{Fleet, HasEngine, Membership, ROUNDS_MAX};
use crate::engine::EngineError;
use crate::worker::Worker;

/// How long an operator's word may wait for the store.
const TIMEOUT: Duration = Duration::from_secs(9);
/// How soon an operator's command, or a file that is read again, is handled.
const RECEIVE_EVERY: Duration = Duration::from_millis(200);
/// How often the store is read though it reports no change: it may be another.
const READ_EVERY: Duration = Duration::from_secs(2);

/// What an operator says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FleetOrder {
    /// The fleet begins here, or its book is put back.
    Found,
    /// This balancer comes back.
    Join,
    /// It leaves.
    Leave,
    /// A member gets no packets.
    PassBy(String),
    /// The agent of a new server is to join.
    Token(FleetTokenOrder),
    /// The fleet is to have what this balancer's file has.
    Push(FleetPush),
    /// It is to have what it had.
    Rollback(FleetRollback),
}

type Answer = Result<String, EngineError>;

/// An order on its way to a member.
pub(crate) struct GivenOrder {
    order: FleetOrder,
    answer: Sender<Answer>,
    /// Whether it was begun, or given up: what came first holds.
    taken: Arc<AtomicBool>,
}

impl GivenOrder {
    /// What is to be done, and where to answer; nothing if who gave it has given it up.
    pub(super) fn begin(self) -> Option<(FleetOrder, Sender<Answer>)> {
        let given_up = self.taken.swap(true, Ordering::Relaxed);
        (!given_up).then_some((self.order, self.answer))
    }
}

/// Gives orders to a member.
pub(crate) struct FleetOrders(Mutex<Sender<GivenOrder>>);

impl FleetOrders {
    /// With where they come out.
    pub(crate) fn new() -> (Self, FleetInbox) {
        let (orders, inbox) = mpsc::channel();
        (Self(Mutex::new(orders)), inbox)
    }

    /// Gives one, and waits for its answer.
    pub(crate) fn give(&self, order: FleetOrder) -> Answer {
        self.give_for(TIMEOUT, order)
    }

    /// The same with another timeout. One that is not begun by then is never done.
    pub(super) fn give_for(&self, timeout: Duration, order: FleetOrder) -> Answer {
        let (answer, told) = mpsc::channel();
        let taken = Arc::new(AtomicBool::new(false));
        let given = GivenOrder {
            order,
            answer,
            taken: Arc::clone(&taken),
        };
        let orders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a member's thread there is no answer, either.
        let _ = orders.send(given);
        drop(orders);
        told.recv_timeout(timeout).unwrap_or_else(|_| {
            let said = match taken.swap(true, Ordering::Relaxed) {
                false => {
                    "the fleet's store does not answer, and this order is dropped; `causeway fleet status` says why, give it again then"
                }
                true => {
                    "the fleet's store is slow, and this order may still be carried out; look at `causeway fleet status` and `causeway fleet history` before you give it again"
                }
            };
            Err(EngineError::Conflict(said.to_owned()))
        })
    }
}

/// Where orders come out.
pub(crate) type FleetInbox = Receiver<GivenOrder>;

/// Begins a member's work, on a thread of its own. When it is stopped the data plane goes on as the
/// book has it.
pub(crate) fn start<E: HasEngine + Send + Sync + 'static>(
    mut fleet: Fleet,
    inbox: FleetInbox,
    engines: Arc<E>,
) -> std::io::Result<Worker> {
    Worker::start("fleet", move |stopped| {
        while !stopped.load(Ordering::Relaxed) {
            fleet.turn(&*engines, &inbox, stopped);
        }
    })
}

impl Fleet {
    /// All that there is to do now, and then a wait.
    fn turn(&mut self, engines: &impl HasEngine, inbox: &FleetInbox, stopped: &AtomicBool) {
        for _ in 0..ROUNDS_MAX {
            if !self.round(engines, Moment::now().monotonic_ns) {
                break;
            }
        }
        let begun = Instant::now();
        while begun.elapsed() < READ_EVERY && !stopped.load(Ordering::Relaxed) {
            let mut heard = {
                let mut engine = engines.engine();
                engine.fleet.as_mut().is_some_and(Membership::take_told)
            };
            while let Ok(given) = inbox.try_recv() {
                if let Some((order, answer)) = given.begin() {
                    heard = true;
                    // Who asked may be gone.
                    let _ = answer.send(self.order(engines, order));
                }
            }
            if heard || self.wait(RECEIVE_EVERY) {
                return;
            }
        }
    }

    fn order(&mut self, engines: &impl HasEngine, order: FleetOrder) -> Answer {
        match order {
            FleetOrder::Found => self.found(engines),
            FleetOrder::Join => self.join(engines),
            FleetOrder::Leave => self.leave(engines, Moment::now().monotonic_ns),
            FleetOrder::PassBy(name) => self.pass_by(&name),
            FleetOrder::Token(order) => self.token(engines, &order, Moment::now()),
            FleetOrder::Push(order) => self.push(engines, &order, Moment::now()),
            FleetOrder::Rollback(order) => self.rollback(engines, &order, Moment::now()),
        }
    }
}
