// SPDX-License-Identifier: Apache-2.0
//! A small simulation of a pool: servers with queues, closed-loop clients
//! whose connections come and go, and a controller that weighs new
//! connections. Virtual time; the seed decides everything.
//!
//! What it leaves out: packets, estimator error (a sample is the true latency),
//! and the granularity of a hash ring.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use causeway_core::control::{Controller, Decision, Law, Member, Params, Reading};

pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000 * MS;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub servers: usize,
    /// Parallel workers of a server.
    pub workers: usize,
    /// Mean of the exponential service time.
    pub service_ns: u64,
    /// Connections open at any time.
    pub connections: usize,
    /// Shortest time between two requests of a connection.
    pub pace_ns: u64,
    /// Longest life of a connection; uniform from a tenth of it.
    pub life_ns: u64,
    pub end_ns: u64,
    /// Changes of single servers, in order of time.
    pub changes: Vec<Change>,
    /// `None`: plain hashing, weights stay.
    pub control: Option<Params>,
}

/// From `at_ns` on, `server` multiplies service times and adds a delay.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    pub at_ns: u64,
    pub server: usize,
    pub factor: f64,
    pub delay_ns: u64,
}

impl Default for Scenario {
    /// Four servers of four workers at 40 % load, 5 ms service, connections of
    /// at most 2 s; nothing changes.
    fn default() -> Self {
        Self {
            seed: 1,
            servers: 4,
            workers: 4,
            service_ns: 5 * MS,
            connections: 64,
            pace_ns: 50 * MS,
            life_ns: 2 * S,
            end_ns: 14 * S,
            changes: Vec::new(),
            control: Some(Params::default()),
        }
    }
}

/// What came out.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Send time, server and latency of every request.
    pub requests: Vec<(u64, usize, u64)>,
    /// Time, connection's server.
    pub opened: Vec<(u64, usize)>,
    pub decisions: Vec<Decision>,
}

impl Outcome {
    /// Latency below which the given part of the requests sent in a span lies.
    pub fn percentile_ns(&self, part: f64, from_ns: u64, to_ns: u64) -> u64 {
        let mut latencies: Vec<u64> = self
            .requests
            .iter()
            .filter(|(sent, _, _)| (from_ns..to_ns).contains(sent))
            .map(|(_, _, latency)| *latency)
            .collect();
        latencies.sort_unstable();
        let rank = (part * latencies.len() as f64) as usize;
        latencies[rank.min(latencies.len() - 1)]
    }

    /// Part of the requests sent in a span that a server got.
    pub fn share(&self, server: usize, from_ns: u64, to_ns: u64) -> f64 {
        let sent = |wanted: Option<usize>| {
            self.requests
                .iter()
                .filter(|(at, to, _)| {
                    (from_ns..to_ns).contains(at) && wanted.is_none_or(|wanted| wanted == *to)
                })
                .count()
        };
        sent(Some(server)) as f64 / sent(None) as f64
    }

    /// First time from `from_ns` on at which a server's weight is at most
    /// (falling) or at least (rising) `bound`.
    pub fn reached_ns(
        &self,
        server: usize,
        from_ns: u64,
        bound: f64,
        falling: bool,
    ) -> Option<u64> {
        self.decisions
            .iter()
            .filter(|decision| decision.at_ns >= from_ns)
            .find(|decision| {
                let weight = decision.reals[server].weight;
                if falling {
                    weight <= bound
                } else {
                    weight >= bound
                }
            })
            .map(|decision| decision.at_ns - from_ns)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Change(usize),
    Done { connection: usize },
    Send { connection: usize },
    Tick,
}

#[derive(Debug, Clone, Default)]
struct Server {
    factor: f64,
    delay_ns: u64,
    /// When each worker is free again.
    free_ns: Vec<u64>,
    reading: Reading,
}

#[derive(Debug, Clone, Copy, Default)]
struct Connection {
    server: usize,
    closes_ns: u64,
    sent_ns: u64,
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    random: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    servers: Vec<Server>,
    connections: Vec<Connection>,
    weights: Vec<f64>,
    controller: Option<Controller>,
    outcome: Outcome,
}

/// Runs a scenario to its end.
pub fn run(scenario: &Scenario) -> Outcome {
    let controller = scenario.control.clone().map(|params| {
        let mut controller = Controller::new(Law::Watermark, params);
        let members: Vec<Member> = (0..scenario.servers)
            .map(|id| Member {
                id: id as u32,
                configured: 1.0,
            })
            .collect();
        controller.set_members(&members);
        controller
    });
    let mut simulation = Simulation {
        scenario,
        random: scenario.seed,
        queue: BinaryHeap::new(),
        sequence: 0,
        servers: vec![
            Server {
                factor: 1.0,
                free_ns: vec![0; scenario.workers],
                ..Server::default()
            };
            scenario.servers
        ],
        connections: vec![Connection::default(); scenario.connections],
        weights: vec![1.0; scenario.servers],
        controller,
        outcome: Outcome::default(),
    };
    simulation.run();
    simulation.outcome
}

impl Simulation<'_> {
    fn run(&mut self) {
        for connection in 0..self.connections.len() {
            let start = self.uniform_ns(self.scenario.pace_ns.max(MS));
            self.open(start, connection);
            self.at(start, Event::Send { connection });
        }
        for (index, change) in self.scenario.changes.iter().enumerate() {
            self.at(change.at_ns, Event::Change(index));
        }
        self.schedule_tick(0);
        while let Some(Reverse((now, _, event))) = self.queue.pop() {
            if now > self.scenario.end_ns {
                break;
            }
            match event {
                Event::Change(index) => {
                    let change = self.scenario.changes[index];
                    self.servers[change.server].factor = change.factor;
                    self.servers[change.server].delay_ns = change.delay_ns;
                }
                Event::Send { connection } => self.send(now, connection),
                Event::Done { connection } => self.done(now, connection),
                Event::Tick => self.tick(now),
            }
        }
    }

    fn at(&mut self, when: u64, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse((when, self.sequence, event)));
    }

    fn open(&mut self, now: u64, connection: usize) {
        let total: f64 = self.weights.iter().sum();
        let mut mark = self.uniform() * total;
        let mut server = self.weights.len() - 1;
        for (index, weight) in self.weights.iter().enumerate() {
            if mark < *weight {
                server = index;
                break;
            }
            mark -= weight;
        }
        let life = self.scenario.life_ns;
        self.servers[server].reading.active += 1;
        self.connections[connection] = Connection {
            server,
            closes_ns: now + life / 10 + self.uniform_ns(life * 9 / 10),
            sent_ns: now,
        };
        self.outcome.opened.push((now, server));
    }

    fn send(&mut self, now: u64, connection: usize) {
        if now >= self.connections[connection].closes_ns {
            let old = self.connections[connection].server;
            self.servers[old].reading.active -= 1;
            self.open(now, connection);
        }
        let service = -(1.0 - self.uniform()).ln() * self.scenario.service_ns as f64;
        self.connections[connection].sent_ns = now;
        let server = &mut self.servers[self.connections[connection].server];
        server.reading.requests += 1;
        let worker = server.free_ns.iter_mut().min().expect("a worker");
        *worker = now.max(*worker) + (service * server.factor) as u64;
        let done = *worker + server.delay_ns;
        self.at(done, Event::Done { connection });
    }

    fn done(&mut self, now: u64, connection: usize) {
        let Connection {
            server, sent_ns, ..
        } = self.connections[connection];
        let latency = now - sent_ns;
        self.outcome.requests.push((sent_ns, server, latency));
        let reading = &mut self.servers[server].reading;
        reading.latency_sum_halves_ns += 2 * latency;
        reading.latency_weight_halves += 2;
        let next = now.max(sent_ns + self.scenario.pace_ns) + self.uniform_ns(MS);
        self.at(next, Event::Send { connection });
    }

    fn tick(&mut self, now: u64) {
        let Some(controller) = &mut self.controller else {
            return;
        };
        let readings: Vec<Reading> = self.servers.iter().map(|server| server.reading).collect();
        for server in &mut self.servers {
            server.reading = Reading {
                active: server.reading.active,
                ..Reading::default()
            };
        }
        let decision = controller.tick(now, &readings);
        self.weights = decision.reals.iter().map(|real| real.weight).collect();
        self.outcome.decisions.push(decision);
        self.schedule_tick(now);
    }

    fn schedule_tick(&mut self, now: u64) {
        if let Some(controller) = &self.controller {
            let next = now + controller.params().interval_ns;
            self.at(next, Event::Tick);
        }
    }

    /// SplitMix64 (Steele, Lea, Flood 2014), in [0, 1).
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn uniform_ns(&mut self, below: u64) -> u64 {
        (self.uniform() * below as f64) as u64
    }
}
