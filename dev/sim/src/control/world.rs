// SPDX-License-Identifier: Apache-2.0
//! The world: users who ask for pages, servers with a queue and a capacity that
//! changes, the balancer's controller.

use std::collections::VecDeque;

use causeway_core::control::ControlParams;
use causeway_core::hist::Latencies;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64Mcg;

use super::balancer::Balancer;
use super::fleet::FleetNet;
use super::scenario::{Experiment, Oracle, ServerPick, TroubleKind, Wait};
use crate::queue::EventQueue;

const S: f64 = 1e9;
/// Objects that the first object of a page names; each other one names one.
const FANOUT: usize = 4;
/// What a server that fails fast takes.
const FAIL_NS: u64 = 100_000;
/// On servers with quotas, how many of its answers come how much later.
const FAILS_LATE: f64 = 0.04;
const FAIL_LATE_NS: u64 = 5_000_000;
/// How much longer than its path a user's handshake takes on the mean, exponential.
const HANDSHAKE_WAITS: f64 = 0.02;

/// What came out.
#[derive(Debug, Default)]
pub struct ControlOutcome {
    /// Latencies of the requests sent after the warm-up.
    pub latencies: Latencies,
    /// Of them those of ordinary users, where there is a hog.
    pub requests: u64,
    /// Connections by server.
    pub opened: Vec<u64>,
    /// Each interval's time and weights, relative to the configured ones; of several balancers
    /// the first one's.
    pub weights: Vec<(u64, Vec<f32>)>,
    /// The same of all, where there are several.
    pub of_members: Vec<Vec<(u64, Vec<f32>)>>,
    /// Datagrams between them, and those that were lost.
    pub datagrams: (u64, u64),
    /// Changes of a weight by more than 1 % of the configured one: those that would
    /// have a ring built.
    pub changes: u64,
}

#[derive(Debug)]
enum Event {
    Page(usize),
    /// At the server.
    Arrive {
        user: usize,
        object: usize,
        sent_ns: u64,
        server: usize,
    },
    /// Back at the user.
    Done {
        user: usize,
        object: usize,
        sent_ns: u64,
        server: usize,
    },
    /// A balancer's interval ends.
    Tick(usize),
    /// A balancer sends to the others.
    Round(usize),
    /// It arrives.
    Datagram {
        to: usize,
        bytes: Vec<u8>,
    },
}

#[derive(Debug, Default)]
struct User {
    /// Round trip to the servers.
    path_ns: u64,
    due_ns: u64,
    page: Option<Page>,
    connection: Option<Connection>,
}

#[derive(Debug)]
struct Page {
    objects: usize,
    done: usize,
    ready: VecDeque<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    /// Which balancer the routers have chosen.
    balancer: usize,
    server: usize,
    retires_ns: u64,
    outstanding: usize,
    /// When its last request will have been answered.
    free_ns: u64,
    /// The path's round trip, as its handshake showed it.
    handshake_ns: u64,
}

#[derive(Debug, Default)]
struct Server {
    /// Capacity of a worker in each second, as a part of one CPU.
    capacity: Vec<f64>,
    workers: Vec<Worker>,
    /// Period of the quotas; `None`: a worker has its share of a CPU at every instant.
    quota_ns: Option<u64>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Worker {
    /// When it will be done.
    free_ns: u64,
    /// CPU time that it will have had of its quota in the period in which that is.
    spent_ns: f64,
}

struct World<'a> {
    scenario: &'a Experiment,
    rng: Pcg64Mcg,
    queue: EventQueue<Event>,
    users: Vec<User>,
    servers: Vec<Server>,
    balancers: Vec<Balancer>,
    net: Option<FleetNet>,
    /// The estimator's error of each server in this interval, at whichever balancer: those of
    /// several are not taken for independent.
    factors: Vec<f64>,
    outcome: ControlOutcome,
}

/// Runs a scenario to its end.
pub fn run(scenario: &Experiment) -> ControlOutcome {
    let members = scenario.fleet.as_ref().map_or(1, |fleet| fleet.members);
    let servers = (0..scenario.servers.len()).map(|index| Server {
        capacity: scenario.capacity(index),
        workers: vec![Worker::default(); scenario.servers[index].workers],
        quota_ns: scenario.quota_ns,
    });
    let mut world = World {
        scenario,
        rng: Pcg64Mcg::seed_from_u64(scenario.seed),
        queue: EventQueue::default(),
        users: (0..scenario.users).map(|_| User::default()).collect(),
        servers: servers.collect(),
        balancers: (0..members)
            .map(|index| Balancer::new(scenario, index))
            .collect(),
        net: scenario
            .fleet
            .as_ref()
            .map(|fleet| FleetNet::new(fleet, scenario.seed)),
        factors: Vec::new(),
        outcome: ControlOutcome {
            opened: vec![0; scenario.servers.len()],
            ..ControlOutcome::default()
        },
    };
    world.run();
    world.outcome
}

impl World<'_> {
    fn run(&mut self) {
        let interval = self.scenario.page_interval_ns();
        for user in 0..self.users.len() {
            let due = self.rng.random_range(0..interval.max(1));
            self.users[user].due_ns = due;
            self.queue.at(due, Event::Page(user));
            let (least, most) = self.scenario.path_ns;
            if most > 0 {
                self.users[user].path_ns = self.rng.random_range(least..=most);
            }
        }
        if self.scenario.oracle.is_some() || self.scenario.control.is_some() {
            self.start_balancers();
        }
        let end = (self.scenario.seconds * S) as u64;
        while let Some(event) = self.queue.next_before(end) {
            match event {
                Event::Page(user) => self.begin(user),
                Event::Arrive {
                    user,
                    object,
                    sent_ns,
                    server,
                } => self.arrive(user, object, sent_ns, server),
                Event::Done {
                    user,
                    object,
                    sent_ns,
                    server,
                } => self.done(user, object, sent_ns, server),
                Event::Tick(balancer) => self.tick(balancer),
                Event::Round(balancer) => self.round(balancer),
                Event::Datagram { to, bytes } => self.arrives(to, &bytes),
            }
        }
        let of_members = self.balancers.iter_mut();
        let mut of_members: Vec<_> = of_members
            .map(|balancer| std::mem::take(&mut balancer.history))
            .collect();
        self.outcome.weights = of_members.first().cloned().unwrap_or_default();
        if let Some(net) = &self.net {
            self.outcome.of_members = std::mem::take(&mut of_members);
            self.outcome.datagrams = net.counts();
        }
    }

    /// Balancers know nothing of each other's clocks.
    fn start_balancers(&mut self) {
        let interval_ns = self.interval_ns();
        let members = self.balancers.len() as u64;
        for index in 0..self.balancers.len() {
            let phase_ns = interval_ns * index as u64 / members;
            self.queue.at(interval_ns + phase_ns, Event::Tick(index));
        }
        if let Some(net) = &mut self.net {
            for index in 0..self.balancers.len() {
                let begin_ns = net.phase_ns();
                self.queue.at(begin_ns, Event::Round(index));
            }
        }
    }

    fn round(&mut self, balancer: usize) {
        let now = self.queue.now_ns();
        let Some(net) = &mut self.net else { return };
        for (delay_ns, to, bytes) in net.round(balancer, now) {
            self.queue.after(delay_ns, Event::Datagram { to, bytes });
        }
        self.queue.after(FleetNet::ROUND_NS, Event::Round(balancer));
    }

    fn arrives(&mut self, to: usize, bytes: &[u8]) {
        let now = self.queue.now_ns();
        let Some(net) = &mut self.net else { return };
        if let Some((delay_ns, to, bytes)) = net.arrives(to, bytes, now) {
            self.queue.after(delay_ns, Event::Datagram { to, bytes });
        }
    }

    fn is_hog(&self, user: usize) -> bool {
        self.scenario.hog.is_some() && user == 0
    }

    fn begin(&mut self, user: usize) {
        let (least, most) = self.scenario.objects;
        let objects = self.rng.random_range(least..=most);
        self.users[user].page = Some(Page {
            objects,
            done: 0,
            ready: VecDeque::from([0]),
        });
        self.advance(user);
    }

    /// Sends what may be sent; retires the connection when its time has come.
    fn advance(&mut self, user: usize) {
        let now = self.queue.now_ns();
        loop {
            let of = &mut self.users[user];
            if of.page.as_ref().is_none_or(|page| page.ready.is_empty()) {
                return;
            }
            let connection = match of.connection {
                Some(connection) if now < connection.retires_ns => connection,
                Some(connection) if connection.outstanding > 0 => return,
                old => {
                    if let Some(old) = old {
                        self.balancers[old.balancer].seen[old.server].active -= 1;
                    }
                    self.open(user)
                }
            };
            if connection.outstanding >= self.scenario.outstanding {
                return;
            }
            let of = &mut self.users[user];
            let Some(object) = of.page.as_mut().and_then(|page| page.ready.pop_front()) else {
                return;
            };
            of.connection = Some(Connection {
                outstanding: connection.outstanding + 1,
                ..connection
            });
            self.send(user, object, connection.balancer, connection.server);
        }
    }

    fn open(&mut self, user: usize) -> Connection {
        let balancer = match self.balancers.len() {
            1 => 0,
            members => self.rng.random_range(0..members),
        };
        let server = match self.scenario.oracle {
            Some(Oracle::Backlog) => self.soonest(),
            _ => match self.scenario.pick {
                ServerPick::Hash => self.balancers[balancer].drawn(&mut self.rng),
                ServerPick::Turn => self.balancers[balancer].next(),
            },
        };
        self.balancers[balancer].seen[server].active += 1;
        self.outcome.opened[server] += 1;
        let age = self.scenario.max_age_ns;
        let path_ns = self.users[user].path_ns;
        let waits: f64 = match path_ns {
            0 => 0.0,
            _ => Exp1.sample(&mut self.rng),
        };
        Connection {
            balancer,
            server,
            retires_ns: self.queue.now_ns() + age / 2 + self.rng.random_range(0..=age / 2),
            outstanding: 0,
            free_ns: 0,
            handshake_ns: (path_ns as f64 * (1.0 + HANDSHAKE_WAITS * waits)) as u64,
        }
    }

    /// The server that would answer a request first.
    fn soonest(&self) -> usize {
        let now = self.queue.now_ns();
        let work = self.scenario.work_ns as f64;
        let answers = |server: &Server| {
            let (worker, begin) = server.next_worker(now);
            server.finish(worker, begin, work).free_ns
        };
        let servers = self.servers.iter().enumerate();
        servers
            .min_by_key(|(_, server)| answers(server))
            .map_or(0, |(index, _)| index)
    }

    fn send(&mut self, user: usize, object: usize, balancer: usize, server: usize) {
        let sent_ns = self.queue.now_ns();
        self.balancers[balancer].seen[server].requests += 1;
        match self.users[user].path_ns {
            0 => self.arrive(user, object, sent_ns, server),
            path_ns => self.queue.at(
                sent_ns + path_ns / 2,
                Event::Arrive {
                    user,
                    object,
                    sent_ns,
                    server,
                },
            ),
        }
    }

    fn arrive(&mut self, user: usize, object: usize, sent_ns: u64, server: usize) {
        let now = self.queue.now_ns();
        let exponential: f64 = Exp1.sample(&mut self.rng);
        let varies = match self.scenario.wait {
            Wait::Workers => 0.5,
            Wait::Connection => 0.2,
        };
        let mut work = self.scenario.work_ns as f64 * (1.0 - varies + varies * exponential);
        if let Some(hog) = self.scenario.hog.filter(|_| self.is_hog(user)) {
            work *= hog;
        }
        let connection = self.users[user].connection.as_mut();
        let waits_for = match self.scenario.wait {
            Wait::Workers => None,
            Wait::Connection => connection,
        };
        let (worker, begin) = match &waits_for {
            None => self.servers[server].next_worker(now),
            Some(connection) => (0, connection.free_ns.max(now)),
        };
        let (mut delay, mut fails, mut factor) = (0, false, 1.0);
        for trouble in self.scenario.troubles_at(server, begin) {
            match trouble {
                TroubleKind::Slow(times) => factor *= times,
                TroubleKind::Delay(ns) => delay += ns,
                TroubleKind::FailFast => fails = true,
                TroubleKind::Blind | TroubleKind::Low(_) => {}
            }
        }
        let of = &mut self.servers[server];
        let done = match waits_for {
            // Not even that comes at once while the quota is spent.
            _ if fails && self.scenario.quota_ns.is_some() => {
                let late = self.rng.random_bool(FAILS_LATE);
                now + (FAIL_NS as f64 * (1.0 + exponential)) as u64 + u64::from(late) * FAIL_LATE_NS
            }
            _ if fails => now + FAIL_NS,
            None => {
                of.workers[worker] = of.finish(worker, begin, work * factor);
                of.workers[worker].free_ns + delay
            }
            Some(connection) => {
                connection.free_ns = begin + (work * factor) as u64;
                connection.free_ns + delay
            }
        };
        self.queue.at(
            done + self.users[user].path_ns / 2,
            Event::Done {
                user,
                object,
                sent_ns,
                server,
            },
        );
    }

    fn done(&mut self, user: usize, object: usize, sent_ns: u64, server: usize) {
        let now = self.queue.now_ns();
        let latency = now - sent_ns;
        if sent_ns >= self.scenario.warm_up_ns && !self.is_hog(user) {
            self.outcome.latencies.record_n(latency, 1);
            self.outcome.requests += 1;
        }
        let (mut blind, mut low) = (false, None);
        for kind in self.scenario.troubles_at(server, now) {
            match kind {
                TroubleKind::Blind => blind = true,
                TroubleKind::Low(times) => low = Some(times),
                _ => {}
            }
        }
        if !blind && self.scenario.noise.samples(&mut self.rng) {
            let connection = self.users[user].connection.as_ref();
            let path_ns = connection.map_or(0, |connection| connection.handshake_ns);
            let balancer = connection.map_or(0, |connection| connection.balancer);
            let of = &mut self.balancers[balancer].seen[server];
            match low.filter(|_| self.rng.random_bool(0.5)) {
                Some(times) => of.low.take((latency as f64 * times) as u64, path_ns),
                None => of.good.take(latency, path_ns),
            }
        }
        let of = &mut self.users[user];
        if let Some(connection) = of.connection.as_mut() {
            connection.outstanding -= 1;
        }
        let Some(page) = of.page.as_mut() else { return };
        page.done += 1;
        let children = if object == 0 {
            1..FANOUT + 1
        } else {
            object + FANOUT..object + FANOUT + 1
        };
        page.ready
            .extend(children.filter(|&child| child < page.objects));
        if page.done < page.objects {
            self.advance(user);
            return;
        }
        of.page = None;
        let interval = self.scenario.page_interval_ns();
        // Behind the timetable, the next page begins at once.
        of.due_ns += if self.scenario.hog.is_some() && user == 0 {
            0
        } else {
            interval
        };
        let due = of.due_ns.max(now);
        self.queue.at(due, Event::Page(user));
    }

    fn tick(&mut self, index: usize) {
        let now = self.queue.now_ns();
        if index == 0 {
            let noise = self.scenario.noise;
            let servers = 0..self.servers.len();
            self.factors = servers.map(|_| noise.factor(&mut self.rng)).collect();
        }
        let factors = self.factors.iter().copied().chain(std::iter::repeat(1.0));
        let seen = self.balancers[index].seen.iter_mut().zip(factors);
        let by_grade = self.scenario.by_grade;
        let mut measured: Vec<_> = seen
            .map(|(seen, factor)| seen.end(factor, by_grade))
            .collect();
        self.queue.after(self.interval_ns(), Event::Tick(index));
        if self.scenario.oracle == Some(Oracle::Capacity) {
            let second = (now as f64 / S) as usize;
            let capacities = self.servers.iter().map(|of| {
                let last = of.capacity.len() - 1;
                of.capacity[second.min(last)] * of.workers.len() as f64
            });
            let capacities: Vec<f64> = capacities.collect();
            self.balancers[index].weigh(&capacities);
        }
        if let Some(net) = &mut self.net {
            net.interval(index, now, &mut self.balancers[index], &mut measured);
        }
        let by_servers = self.scenario.by_servers;
        let readings: Vec<_> = measured
            .iter()
            .map(|of| of.reading(false, by_servers))
            .collect();
        self.outcome.changes += u64::from(self.balancers[index].tick(now, &readings));
    }

    fn interval_ns(&self) -> u64 {
        let params = self.scenario.control.as_ref().map(|(_, params)| params);
        params.map_or(ControlParams::default().interval_ns, |params| {
            params.interval_ns
        })
    }
}

impl Server {
    /// The worker that is free first, and when it can begin.
    fn next_worker(&self, now: u64) -> (usize, u64) {
        let free = self.workers.iter().map(|worker| worker.free_ns).enumerate();
        let (worker, free_ns) = free.min_by_key(|(_, ns)| *ns).unwrap_or_default();
        (worker, free_ns.max(now))
    }

    fn capacity_at(&self, at_ns: f64) -> f64 {
        let second = (at_ns / S) as usize;
        self.capacity[second.min(self.capacity.len() - 1)]
    }

    /// How a worker will stand when it is done with what it begins at `begin_ns`.
    fn finish(&self, worker: usize, begin_ns: u64, work_ns: f64) -> Worker {
        match self.quota_ns {
            Some(period_ns) => self.finish_by_quota(worker, begin_ns, work_ns, period_ns as f64),
            None => Worker {
                free_ns: self.finish_by_share(begin_ns, work_ns),
                spent_ns: 0.0,
            },
        }
    }

    /// Second by second.
    fn finish_by_share(&self, begin_ns: u64, work_ns: f64) -> u64 {
        let (mut at, mut left) = (begin_ns as f64, work_ns);
        loop {
            let second = (at / S) as usize;
            let capacity = self.capacity_at(at);
            let end = (second + 1) as f64 * S;
            if left <= (end - at) * capacity || second >= self.capacity.len() {
                return (at + left / capacity) as u64;
            }
            left -= (end - at) * capacity;
            at = end;
        }
    }

    /// A whole CPU until the period's quota is spent, and nothing from there to the period's
    /// end, as a control group has it.
    fn finish_by_quota(
        &self,
        worker: usize,
        begin_ns: u64,
        work_ns: f64,
        period_ns: f64,
    ) -> Worker {
        let before = self.workers[worker];
        let period_of = |at: f64| (at / period_ns).floor();
        let (mut at, mut left) = (begin_ns as f64, work_ns);
        let mut spent = match period_of(before.free_ns as f64) == period_of(at) {
            true => before.spent_ns,
            false => 0.0,
        };
        loop {
            let end = (period_of(at) + 1.0) * period_ns;
            let quota = self.capacity_at(at) * period_ns;
            let runs = left.min(quota - spent).min(end - at).max(0.0);
            (at, left, spent) = (at + runs, left - runs, spent + runs);
            if left <= 0.0 {
                return Worker {
                    free_ns: at as u64,
                    spent_ns: spent,
                };
            }
            (at, spent) = (end, 0.0);
        }
    }
}
