// SPDX-License-Identifier: Apache-2.0
//! Clients, a link, and a server whose accept queue is too short.
//!
//! The listener behaves as Linux does: a SYN that finds the accept queue full is
//! dropped, and so is a final ACK; the client of the latter believes that it is
//! connected, and gets in when its data or the repeated SYN-ACK finds room. The
//! server's side is measured by the product's own tracker.

mod client;
mod server;

use std::collections::VecDeque;

use causeway_core::certes::{Slot, Tracker};
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp, Normal};
use rand_pcg::Pcg64Mcg;

use super::workload::Workload;
use crate::queue::EventQueue;

const SECOND_NS: f64 = 1e9;
/// Linux sends a SYN-ACK again after these times, seconds.
const SYN_ACK_AGAIN_S: [f64; 4] = [1.02, 3.04, 7.1, 15.2];
/// First retransmission timeout of a client's request beyond the round trip, seconds.
const DATA_RTO_S: f64 = 0.2;
const DATA_TRIES: i32 = 7;
/// A client that is connected and not served this long goes away, seconds.
const STALLED_S: f64 = 60.0;
/// When a finished attempt can no longer be met by a late packet, seconds.
const FORGOTTEN_S: f64 = 90.0;

/// Transactions that ended in one second: their number and the sum of their times.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Second {
    /// How many.
    pub count: f64,
    /// Seconds.
    pub sum_s: f64,
}

impl Second {
    fn add(&mut self, s: f64) {
        self.count += 1.0;
        self.sum_s += s;
    }
}

/// SYNs by how many retries came before them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByRetry {
    /// That came.
    pub offered: u64,
    /// That were answered.
    pub accepted: u64,
}

/// A transaction that was completed. Times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Completion {
    /// The slot in which its SYN was accepted.
    pub accepted_slot: u32,
    /// SYN-to-END.
    pub served_s: f32,
    /// The handshake's round trip.
    pub rtt_s: f32,
    /// Its client latency.
    pub took_s: f32,
}

/// What came of a run.
#[derive(Clone, Debug, Default)]
pub struct CertesOutcome {
    /// What the server counted.
    pub slots: Vec<Slot>,
    /// Client latency, by the second in which it ended; those that gave up, too.
    pub truth: Vec<Second>,
    /// The same as the server's tracker has it.
    pub exact: Vec<Second>,
    /// What the application itself would log: from accept to close.
    pub application: Vec<Second>,
    /// SYN-to-END of the connections that ended.
    pub syn_to_end: Vec<Second>,
    /// Drops by retry, warm-up left out.
    pub by_retry: Vec<ByRetry>,
    /// The transactions that were completed after the warm-up.
    pub completions: Vec<Completion>,
    /// How long clients had waited that gave up, after the warm-up, seconds.
    pub gave_up_s: Vec<f64>,
    /// Connected clients that went away unserved.
    pub stalled: u64,
    /// The accept queue's limit by slot.
    pub backlog: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Id {
    index: u32,
    generation: u32,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Begin { client: u32 },
    SendSyn(Id),
    GiveUp(Id),
    SynArrives(Id),
    SynAckArrives(Id),
    AckArrives(Id),
    SynAckAgain(Id),
    DataAgain(Id),
    Stalled(Id),
    Served { id: Id, busy_s: f64 },
    Received(Id),
    Flood,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Trying,
    Connected,
    Gone,
}

#[derive(Clone, Debug)]
struct Attempt {
    generation: u32,
    client: u32,
    class: usize,
    began_ns: u64,
    isn: u32,
    sent: usize,
    state: Client,
    answered: bool,
    queued: bool,
    /// A timer's lateness, which adds up over retries.
    late_s: f64,
    /// When the server first answered, and how many more SYN-ACKs it has sent.
    answered_ns: u64,
    answers: usize,
    /// When the client was connected, and how often it has sent its data again.
    connected_ns: u64,
    data_tries: i32,
    tracker: Tracker,
    /// What the server knows of it when it is done.
    completion: Completion,
}

/// A world in motion.
pub struct CertesWorld<'a> {
    of: &'a Workload,
    queue: EventQueue<Event>,
    rng: Pcg64Mcg,
    attempts: Vec<Attempt>,
    free: Vec<u32>,
    /// Finished attempts and when they may be forgotten, in the order of those times.
    finished: VecDeque<(u64, Id)>,
    accept_queue: VecDeque<Id>,
    idle: usize,
    out: CertesOutcome,
}

pub fn run(of: &Workload, seed: u64) -> CertesOutcome {
    let mut world = CertesWorld::new(of, seed);
    let end_ns = ns(of.duration_s);
    while let Some(event) = world.queue.next_before(end_ns) {
        world.handle(event);
    }
    world.out
}

fn ns(s: f64) -> u64 {
    (s.max(0.0) * SECOND_NS) as u64
}

impl<'a> CertesWorld<'a> {
    fn new(of: &'a Workload, seed: u64) -> Self {
        let slots = (of.duration_s / of.slot_s) as usize + 1;
        let seconds = of.duration_s as usize + 1;
        let mut world = Self {
            of,
            queue: EventQueue::default(),
            rng: Pcg64Mcg::seed_from_u64(seed),
            attempts: Vec::new(),
            free: Vec::new(),
            finished: VecDeque::new(),
            accept_queue: VecDeque::new(),
            idle: of.workers,
            out: CertesOutcome {
                slots: vec![Slot::default(); slots],
                truth: vec![Second::default(); seconds],
                exact: vec![Second::default(); seconds],
                application: vec![Second::default(); seconds],
                syn_to_end: vec![Second::default(); seconds],
                by_retry: vec![ByRetry::default(); 16],
                backlog: vec![0; slots],
                ..CertesOutcome::default()
            },
        };
        for client in 0..of.clients as u32 {
            let at_ns = ns(world.rng.random_range(0.0..2.0));
            world.queue.at(at_ns, Event::Begin { client });
        }
        if of.flood_pps > 0.0 {
            world.queue.at(ns(of.warm_up_s), Event::Flood);
        }
        world
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Begin { client } => self.begin(client),
            Event::SendSyn(id) => self.send_syn(id),
            Event::GiveUp(id) => self.give_up(id),
            Event::SynArrives(id) => self.syn_arrives(id),
            Event::SynAckArrives(id) => self.syn_ack_arrives(id),
            Event::AckArrives(id) => self.ack_arrives(id),
            Event::SynAckAgain(id) => self.syn_ack_again(id),
            Event::DataAgain(id) => self.data_again(id),
            Event::Stalled(id) => self.stalled(id),
            Event::Served { id, busy_s } => self.served(id, busy_s),
            Event::Received(id) => self.received(id),
            Event::Flood => self.flood(),
        }
    }

    fn live(&mut self, id: Id) -> Option<&mut Attempt> {
        let attempt = &mut self.attempts[id.index as usize];
        (attempt.generation == id.generation).then_some(attempt)
    }

    fn exponential(&mut self, mean_s: f64) -> f64 {
        match Exp::new(1.0 / mean_s) {
            Ok(exp) if mean_s > 0.0 => exp.sample(&mut self.rng),
            _ => 0.0,
        }
    }

    /// One way over the network; `None` when the packet is lost.
    fn way_s(&mut self) -> Option<f64> {
        if self.rng.random::<f64>() < self.of.loss {
            return None;
        }
        let jitter_s = match Normal::new(0.0, self.of.jitter_s) {
            Ok(normal) if self.of.jitter_s > 0.0 => normal.sample(&mut self.rng),
            _ => 0.0,
        };
        Some((self.of.rtt_s / 2.0 + jitter_s).max(0.0))
    }

    fn send(&mut self, event: Event) {
        if let Some(way_s) = self.way_s() {
            self.queue.after(ns(way_s), event);
        }
    }

    fn slot(&self, at_ns: u64) -> usize {
        ((at_ns as f64 / SECOND_NS / self.of.slot_s) as usize).min(self.out.slots.len() - 1)
    }

    fn second(&self, at_ns: u64) -> usize {
        ((at_ns as f64 / SECOND_NS) as usize).min(self.out.truth.len() - 1)
    }

    fn is_warm(&self) -> bool {
        self.queue.now_ns() >= ns(self.of.warm_up_s)
    }

    fn keep(&mut self, attempt: Attempt) -> Id {
        self.forget();
        match self.free.pop() {
            Some(index) => {
                let old = &mut self.attempts[index as usize];
                let generation = old.generation;
                *old = Attempt {
                    generation,
                    ..attempt
                };
                Id { index, generation }
            }
            None => {
                self.attempts.push(attempt);
                Id {
                    index: self.attempts.len() as u32 - 1,
                    generation: 0,
                }
            }
        }
    }

    fn forget_later(&mut self, id: Id) {
        let at_ns = self.queue.now_ns() + ns(FORGOTTEN_S);
        self.finished.push_back((at_ns, id));
    }

    /// Makes room of attempts that no late packet can meet any more.
    fn forget(&mut self) {
        let now_ns = self.queue.now_ns();
        while let Some((_, id)) = self.finished.pop_front_if(|(at_ns, _)| *at_ns <= now_ns) {
            if let Some(attempt) = self.live(id) {
                attempt.generation = attempt.generation.wrapping_add(1);
                self.free.push(id.index);
            }
        }
    }
}

/// The client of a flood's SYNs.
const FLOOD_CLIENT: u32 = u32::MAX;

fn pick_class(of: &Workload, random: f64) -> usize {
    let total: f64 = of.clients_are.iter().map(|class| class.weight).sum();
    let mut left = random * total;
    for (index, class) in of.clients_are.iter().enumerate() {
        left -= class.weight;
        if left < 0.0 {
            return index;
        }
    }
    of.clients_are.len() - 1
}
