// SPDX-License-Identifier: Apache-2.0
//! The recorded connections once more, with Causeway before the servers.
//!
//! Connections come when they came, and their requests as long after the answers before as
//! they did. Each request is as long for its new server as it was for the old one, compared
//! with the server's others. The product's own controller gets what the servers would answer
//! and gives the weights, of which the product's own ring is built.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use causeway_core::control::{
    ControlParams, Controller, GradedLatencies, Law, MeasuredInterval, Member, Reading,
};
use causeway_core::hist::Latencies;
use causeway_core::select::{RealKey, RingMember, turns};

use super::queue::{ServerModel, Workers};
use super::recording::{Connection, Request};

/// Rings take whole numbers: one unit of configured weight is this many.
const RING_UNIT: f64 = 1000.0;
/// Part of a configured weight by which a weight is off before a ring is built, as the
/// balancer has it.
const RING_TOLERANCE: f64 = 0.01;
/// Part of a latency by which the next request may seem to come before the answer: answers are
/// dated by what their client sends then, which is often that request.
const SLACK: u64 = 8;

/// A request as it is asked again.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// After the answer before, or the connection's opening; else after the request before.
    after_answer: bool,
    wait_ns: u64,
    /// See [`ServerModel::service_ns`].
    rank: f64,
}

/// A connection as it is opened again.
#[derive(Clone, Debug)]
pub(super) struct Visit {
    /// The server that it had.
    server: usize,
    /// Since the recording's begin.
    open_ns: u64,
    steps: Vec<Step>,
    /// How long it stays open behind its last answer.
    stays_ns: u64,
}

impl Visit {
    /// `ranks`: of its requests, in their order in the recording.
    pub(super) fn of(connection: &Connection, server: usize, ranks: &[f64], begin_ns: u64) -> Self {
        let mut requests: Vec<_> = connection.requests.iter().zip(ranks).collect();
        requests.sort_by_key(|(request, _)| request.sent_ns);
        let first_ns = requests.first().map_or(connection.first_ns, |(first, _)| {
            first.sent_ns.min(connection.first_ns)
        });
        let (mut sent_ns, mut done_ns) = (first_ns, first_ns);
        let step = |(request, rank): (&Request, &f64)| {
            let slack_ns = done_ns.saturating_sub(sent_ns) / SLACK;
            let after_answer = request.sent_ns + slack_ns >= done_ns;
            let since_ns = if after_answer { done_ns } else { sent_ns };
            sent_ns = request.sent_ns;
            done_ns = done_ns.max(request.done_ns);
            Step {
                after_answer,
                wait_ns: request.sent_ns.saturating_sub(since_ns),
                rank: *rank,
            }
        };
        let steps = requests.into_iter().map(step).collect();
        Self {
            server,
            open_ns: first_ns.saturating_sub(begin_ns),
            steps,
            stays_ns: connection.last_ns.saturating_sub(done_ns),
        }
    }
}

/// Each server's visits in another order: those that ask as often have each other's lengths.
pub(super) fn dealt_anew(visits: &[Visit], seed: u64) -> Vec<Visit> {
    let alike = |at: &usize| (visits[*at].server, visits[*at].steps.len());
    let mut to: Vec<usize> = (0..visits.len()).collect();
    to.sort_by_key(|at| (alike(at), *at));
    let mut from = to.clone();
    from.sort_by_key(|at| (alike(at), mixed(*at as u64, seed)));
    let mut dealt = visits.to_vec();
    for (to, from) in to.into_iter().zip(from) {
        let steps = dealt[to].steps.iter_mut().zip(&visits[from].steps);
        steps.for_each(|(to, from)| to.rank = from.rank);
    }
    dealt
}

/// A number that looks like chance.
fn mixed(value: u64, seed: u64) -> u64 {
    let mut z = value
        .wrapping_add(1 + seed)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

/// Who gives the visits their servers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pick {
    /// Each gets the one that it had.
    Recorded,
    /// Causeway's controller and ring, whose turns begin at such a server.
    Causeway(u64),
}

/// What came out.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub latencies: Latencies,
    pub requests: u64,
    pub servers: Vec<ServerOutcome>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerOutcome {
    pub requests: u64,
    pub most_at_once: usize,
    /// On the mean, as a part of the configured one.
    pub weight: f64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Open(usize),
    Send(usize, usize),
    Answer {
        visit: usize,
        step: usize,
        sent_ns: u64,
    },
    Close(usize),
    Tick,
}

/// What a balancer has seen of a server in this interval, and its load.
#[derive(Debug, Default)]
struct Seen {
    interval: MeasuredInterval,
    active: u64,
    at_once: usize,
}

struct World<'a> {
    visits: &'a [Visit],
    models: &'a [ServerModel],
    workers: Vec<Workers>,
    seen: Vec<Seen>,
    /// Of each visit, once it is open.
    server_of: Vec<usize>,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    controller: Controller,
    params: ControlParams,
    keys: Vec<RealKey>,
    ring: Vec<u32>,
    in_ring: Vec<f64>,
    turn: usize,
    pick: Pick,
    counts: bool,
    /// Intervals that count.
    ticks: u64,
    outcome: Outcome,
}

/// Replays the visits; `lasted_ns` is the length of the recording. With a controller the second
/// time counts, with the weights of the first: once it knows the servers.
pub(super) fn replay(
    visits: &[Visit],
    servers: &[SocketAddr],
    models: &[ServerModel],
    lasted_ns: u64,
    pick: Pick,
) -> Outcome {
    let params = ControlParams::default();
    let mut controller = Controller::new(Law::default(), params.clone());
    let members: Vec<Member> = (0..servers.len() as u32)
        .map(|id| Member {
            id,
            configured: 1.0,
        })
        .collect();
    controller.set_members(&members);
    let mut world = World {
        visits,
        models,
        workers: models.iter().map(Workers::of).collect(),
        seen: models.iter().map(|_| Seen::default()).collect(),
        server_of: vec![usize::MAX; visits.len()],
        queue: BinaryHeap::new(),
        scheduled: 0,
        controller,
        params,
        keys: servers.iter().map(|of| RealKey::from(of.ip())).collect(),
        ring: Vec::new(),
        in_ring: Vec::new(),
        turn: 0,
        pick,
        counts: false,
        ticks: 0,
        outcome: Outcome {
            servers: vec![ServerOutcome::default(); servers.len()],
            ..Outcome::default()
        },
    };
    world.build_ring(&vec![1.0; servers.len()]);
    let ends_ns = match pick {
        Pick::Recorded => 0,
        Pick::Causeway(_) => world.pass(0, lasted_ns),
    };
    world.counts = true;
    world.pass(ends_ns, lasted_ns);
    let ticks = world.ticks.max(1) as f64;
    world
        .outcome
        .servers
        .iter_mut()
        .for_each(|of| of.weight /= ticks);
    world.outcome
}

impl World<'_> {
    /// All visits, from `begin_ns` on; when the next pass may begin.
    fn pass(&mut self, begin_ns: u64, lasted_ns: u64) -> u64 {
        for (index, visit) in self.visits.iter().enumerate() {
            self.at(begin_ns + visit.open_ns, Event::Open(index));
        }
        let mut now_ns = begin_ns;
        if let Pick::Causeway(_) = self.pick {
            self.at(begin_ns + self.params.interval_ns, Event::Tick);
        }
        while let Some(Reverse((at_ns, _, event))) = self.queue.pop() {
            now_ns = at_ns;
            match event {
                Event::Open(visit) => self.open(now_ns, visit),
                Event::Send(visit, step) => self.send(now_ns, visit, step),
                Event::Answer {
                    visit,
                    step,
                    sent_ns,
                } => self.answer(now_ns, visit, step, sent_ns),
                Event::Close(visit) => self.seen[self.server_of[visit]].active -= 1,
                Event::Tick => {
                    self.tick(now_ns);
                    if !self.queue.is_empty() {
                        self.at(now_ns + self.params.interval_ns, Event::Tick);
                    }
                }
            }
        }
        now_ns.max(begin_ns + lasted_ns)
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse((at_ns, self.scheduled, event)));
    }

    fn open(&mut self, now_ns: u64, visit: usize) {
        let server = match self.pick {
            Pick::Recorded => self.visits[visit].server,
            Pick::Causeway(_) => self.ring[self.turn % self.ring.len()] as usize,
        };
        self.turn += 1;
        self.server_of[visit] = server;
        self.seen[server].active += 1;
        self.next(now_ns, visit, 0, true);
    }

    /// Has the visit go on with a step, `answered` or only sent the one before.
    fn next(&mut self, now_ns: u64, visit: usize, step: usize, answered: bool) {
        match self.visits[visit].steps.get(step) {
            Some(of) if of.after_answer == answered => {
                self.at(now_ns + of.wait_ns, Event::Send(visit, step));
            }
            None if answered => self.at(now_ns + self.visits[visit].stays_ns, Event::Close(visit)),
            _ => {}
        }
    }

    fn send(&mut self, now_ns: u64, visit: usize, step: usize) {
        let server = self.server_of[visit];
        let service_ns = self.models[server].service_ns(self.visits[visit].steps[step].rank);
        let done_ns = self.workers[server].serve(now_ns, service_ns);
        let seen = &mut self.seen[server];
        seen.interval.counts.requests += 1;
        seen.at_once += 1;
        if self.counts {
            let of = &mut self.outcome.servers[server];
            of.requests += 1;
            of.most_at_once = of.most_at_once.max(seen.at_once);
        }
        self.at(
            done_ns,
            Event::Answer {
                visit,
                step,
                sent_ns: now_ns,
            },
        );
        self.next(now_ns, visit, step + 1, false);
    }

    fn answer(&mut self, now_ns: u64, visit: usize, step: usize, sent_ns: u64) {
        let seen = &mut self.seen[self.server_of[visit]];
        let latency_ns = now_ns - sent_ns;
        let halves_ns = 2 * latency_ns;
        // The server's own: the paths are not known, and none is in the latency.
        seen.interval.good = seen.interval.good.and(GradedLatencies {
            sum_halves_ns: halves_ns,
            weight_halves: 2,
            server_sum_halves_ns: halves_ns,
            path_sum_halves_ns: 0,
            path_weight_halves: 2,
        });
        seen.at_once -= 1;
        if self.counts {
            self.outcome.latencies.record_n(latency_ns, 1);
            self.outcome.requests += 1;
        }
        self.next(now_ns, visit, step + 1, true);
    }

    /// As the balancer at the end of an interval.
    fn tick(&mut self, now_ns: u64) {
        let readings: Vec<Reading> = self
            .seen
            .iter_mut()
            .map(|seen| {
                seen.interval.counts.active = seen.active;
                std::mem::take(&mut seen.interval).reading(false, true)
            })
            .collect();
        let decision = self.controller.tick(now_ns, &readings);
        let weights: Vec<f64> = decision.reals.iter().map(|real| real.weight).collect();
        if self.counts {
            self.ticks += 1;
            let servers = self.outcome.servers.iter_mut().zip(&weights);
            servers.for_each(|(of, weight)| of.weight += weight);
        }
        let is_stale = weights
            .iter()
            .zip(&self.in_ring)
            .any(|(now, then)| (now - then).abs() > RING_TOLERANCE);
        if is_stale {
            self.build_ring(&weights);
        }
    }

    fn build_ring(&mut self, weights: &[f64]) {
        let members = (0..).zip(weights).zip(&self.keys);
        let pool: Vec<RingMember> = members
            .map(|((id, weight), &key)| RingMember {
                key,
                id,
                weight: (weight * RING_UNIT).round() as u32,
            })
            .collect();
        if let Pick::Causeway(seed) = self.pick {
            self.ring = turns(&pool, seed);
        }
        self.in_ring = weights.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::super::chance::Chance;
    use super::*;
    use causeway_core::estimate::Tally;

    fn address(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 80))
    }

    fn connection(server: u8, requests: Vec<Request>) -> Connection {
        let (first, last) = (requests[0], requests[requests.len() - 1]);
        Connection {
            client: address(200),
            server: address(server),
            first_ns: first.sent_ns,
            last_ns: last.done_ns,
            opened: true,
            timestamps: true,
            ended: true,
            reset: false,
            asked: true,
            requests,
            tally: Tally::default(),
        }
    }

    /// Four servers of one worker by turns, the last one half as fast: visits, models and the
    /// latencies as they were.
    fn uneven(seed: u64) -> (Vec<Visit>, Vec<ServerModel>, Latencies) {
        let mut chance = Chance(seed);
        let mut servers = vec![Workers::new(Some(1)); 4];
        let mut of_server = vec![Vec::new(); 4];
        let (mut now_ns, mut before) = (0, Latencies::default());
        for turn in 0..12_000 {
            now_ns += chance.exponential(2.8e6);
            let server = turn % 4;
            let factor = if server == 3 { 2.0 } else { 1.0 };
            let done_ns = servers[server].serve(now_ns, chance.exponential(4e6 * factor));
            of_server[server].push(Request {
                sent_ns: now_ns,
                done_ns,
            });
            before.record_n(done_ns - now_ns, 1);
        }
        let (mut visits, mut models) = (Vec::new(), Vec::new());
        for (server, requests) in of_server.iter().enumerate() {
            let (model, ranks) = ServerModel::learn(requests);
            models.push(model);
            for (request, rank) in requests.iter().zip(ranks) {
                visits.push(Visit::of(
                    &connection(server as u8, vec![*request]),
                    server,
                    &[rank],
                    0,
                ));
            }
        }
        (visits, models, before)
    }

    #[test]
    fn a_slow_server_gives_weight_and_the_tail_shrinks() {
        let servers: Vec<SocketAddr> = (0..4).map(address).collect();
        for seed in 1..4 {
            let (visits, models, before) = uneven(seed);
            let outcome = replay(
                &visits,
                &servers,
                &models,
                34_000_000_000,
                Pick::Causeway(0),
            );
            assert_eq!(outcome.requests, 12_000);
            let [fast, .., slow] = &outcome.servers[..] else {
                panic!("four servers")
            };
            let shares = &outcome.servers;
            assert!(slow.weight < 0.8 && fast.weight > 1.0, "{shares:?}");
            assert!(
                slow.requests as f64 <= 0.75 * fast.requests as f64,
                "{shares:?}"
            );
            let p99 = |of: &Latencies| of.quantile(0.99).unwrap_or(0) as f64;
            assert!(p99(&outcome.latencies) < p99(&before), "seed {seed}");
            // With its own servers and lengths each request takes what it took.
            let today = replay(&visits, &servers, &models, 34_000_000_000, Pick::Recorded);
            assert_eq!(p99(&today.latencies), p99(&before), "seed {seed}");
            let dealt = dealt_anew(&visits, seed);
            let dealt = replay(&dealt, &servers, &models, 34_000_000_000, Pick::Recorded);
            let off = p99(&dealt.latencies) / p99(&before) - 1.0;
            assert!(off != 0.0 && off.abs() < 0.2, "seed {seed}: {off}");
        }
    }

    #[test]
    fn requests_of_a_connection_wait_for_its_answers() {
        let ms = |from: u64, to: u64| Request {
            sent_ns: from * 1_000_000,
            done_ns: to * 1_000_000,
        };
        // The third is sent while the second is out.
        let mut requests = vec![ms(5, 10), ms(20, 40), ms(30, 45)];
        // The fourth seems to come just before the answer.
        requests.push(Request {
            sent_ns: 44_999_984,
            done_ns: 50_000_000,
        });
        let (model, ranks) = ServerModel::learn(&requests);
        let visit = Visit::of(&connection(0, requests), 0, &ranks, 5_000_000);
        let waits = |step: &Step| (step.after_answer, step.wait_ns / 1_000_000);
        let steps: Vec<_> = visit.steps.iter().map(waits).collect();
        assert_eq!(steps, [(true, 0), (true, 10), (false, 10), (true, 0)]);
        assert_eq!((visit.open_ns, visit.stays_ns), (0, 0));
        let outcome = replay(
            &[visit],
            &[address(0)],
            &[model],
            40_000_000,
            Pick::Causeway(0),
        );
        assert_eq!(outcome.requests, 4);
        assert_eq!(outcome.servers[0].most_at_once, 2);
    }
}
