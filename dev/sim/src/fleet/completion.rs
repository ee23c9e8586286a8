// SPDX-License-Identifier: Apache-2.0
//! How long requests take under each pick, at every load: Cheetah's figures 6 and 8.
//!
//! Requests come by chance, each a connection of its own; a server works on one at a time, in
//! the order they came. Loads are requests in hand, as servers report them every 10 ms.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};

use causeway_core::select::{self, Awrr, Loaded, RealKey, RingMember, RingSize};
use rand::{Rng as _, SeedableRng as _};
use rand_distr::{Distribution as _, Exp};
use rand_pcg::Pcg64Mcg;

/// Between two reports of a server: 100 Hz, as in the paper.
const REPORT_S: f64 = 0.01;
/// Between two rings or plans of the daemon.
const INTERVAL_S: f64 = 0.1;
/// Time that is not looked at.
const WARM_UP_S: f64 = 10.0;

/// What requests cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestWork {
    /// 5 ms each: a server at half its load has the paper's 100 requests a second.
    Uniform,
    /// A tenth 500 ms, the others half a millisecond.
    Bimodal,
}

/// The server that gets a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPick {
    /// A ring of equal shares, by hash.
    Hash,
    /// The next.
    Turn,
    /// The less loaded of two.
    Two,
    /// Turns by weights that follow loads.
    Awrr,
    /// The daemon's plan.
    Plan,
    /// The server with the least load by its last report.
    Least,
}

impl RequestWork {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Uniform, Self::Bimodal];

    /// In tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Bimodal => "bimodal",
        }
    }

    fn draw(self, rng: &mut Pcg64Mcg) -> f64 {
        match self {
            Self::Uniform => 0.005,
            Self::Bimodal if rng.random_bool(0.1) => 0.5,
            Self::Bimodal => 0.0005,
        }
    }

    fn mean(self) -> f64 {
        match self {
            Self::Uniform => 0.005,
            Self::Bimodal => 0.1 * 0.5 + 0.9 * 0.0005,
        }
    }
}

impl RequestPick {
    pub const ALL: [Self; 6] = [
        Self::Hash,
        Self::Turn,
        Self::Two,
        Self::Awrr,
        Self::Plan,
        Self::Least,
    ];

    /// In tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Turn => "round-robin",
            Self::Two => "p2c",
            Self::Awrr => "awrr",
            Self::Plan => "least-loaded",
            Self::Least => "least-reported",
        }
    }
}

/// The 99th percentile of the time from a request to its answer, seconds.
pub fn p99_s(
    pick: RequestPick,
    work: RequestWork,
    servers: u32,
    load: f64,
    seconds: f64,
    seed: u64,
) -> f64 {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let Ok(gap) = Exp::new(load * f64::from(servers) / work.mean()) else {
        return f64::NAN;
    };
    let mut pool = Pool::new(pick, servers);
    let (mut now_s, mut report_s, mut decide_s) = (0.0, 0.0, 0.0);
    let mut took = Vec::new();
    while now_s < WARM_UP_S + seconds {
        now_s += gap.sample(&mut rng);
        if now_s >= report_s {
            report_s = now_s + REPORT_S;
            pool.report(now_s);
        }
        if now_s >= decide_s {
            decide_s = now_s + INTERVAL_S;
            pool.decide();
        }
        let server = pool.pick(rng.random());
        let queue = &mut pool.ends[server as usize];
        let begins = queue.back().map_or(now_s, |end| end.max(now_s));
        let ends = begins + work.draw(&mut rng);
        queue.push_back(ends);
        if now_s >= WARM_UP_S {
            took.push(ends - now_s);
        }
    }
    took.sort_by(f64::total_cmp);
    took.get(took.len() * 99 / 100).copied().unwrap_or(f64::NAN)
}

struct Pool {
    pick: RequestPick,
    /// When the requests of each server end.
    ends: Vec<VecDeque<f64>>,
    reported: Vec<f64>,
    ring: Vec<u32>,
    taken: usize,
    picked: usize,
}

impl Pool {
    fn new(pick: RequestPick, servers: u32) -> Self {
        let mut pool = Self {
            pick,
            ends: vec![VecDeque::new(); servers as usize],
            reported: vec![0.0; servers as usize],
            ring: Vec::new(),
            taken: 0,
            picked: 0,
        };
        let members = pool.members(|_| 1);
        pool.ring = match pick {
            RequestPick::Hash => select::uniform(&members, RingSize::for_pool(members.len())),
            _ => select::equal_turns(&members, 1),
        };
        pool
    }

    fn members(&self, weight: impl Fn(usize) -> u32) -> Vec<RingMember> {
        let member = |id: u32| RingMember {
            key: RealKey::from(IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + id))),
            id,
            weight: weight(id as usize),
        };
        (0..self.ends.len() as u32).map(member).collect()
    }

    fn report(&mut self, now_s: f64) {
        for (queue, reported) in self.ends.iter_mut().zip(&mut self.reported) {
            while queue.front().is_some_and(|end| *end <= now_s) {
                queue.pop_front();
            }
            *reported = queue.len() as f64;
        }
    }

    fn loaded(&self) -> Vec<Loaded> {
        let members = self.members(|_| 1).into_iter();
        members
            .map(|member| Loaded {
                load: Some(self.reported[member.id as usize]),
                member,
            })
            .collect()
    }

    /// What the daemon does each interval.
    fn decide(&mut self) {
        match self.pick {
            RequestPick::Awrr => {
                let slots = Awrr::default().slots(&self.loaded());
                self.ring = select::turns(&self.members(|of| slots[of]), 1);
            }
            RequestPick::Plan => {
                let length = 4 * self.ends.len().max(self.picked);
                self.ring = select::least_loaded(&self.loaded(), 1.0, length);
                self.taken = 0;
            }
            _ => {}
        }
        self.picked = 0;
    }

    fn pick(&mut self, hash: u64) -> u32 {
        self.picked += 1;
        let slots = self.ring.len();
        let by_load =
            |a: &u32, b: &u32| self.reported[*a as usize].total_cmp(&self.reported[*b as usize]);
        match self.pick {
            RequestPick::Hash => self.ring[(hash % slots as u64) as usize],
            RequestPick::Two => {
                let first = self.ring[(hash as u32) as usize % slots];
                let second = self.ring[(hash >> 32) as usize % slots];
                if by_load(&second, &first).is_lt() {
                    second
                } else {
                    first
                }
            }
            RequestPick::Least => {
                let all = 0..self.ends.len() as u32;
                all.min_by(by_load).unwrap_or(0)
            }
            RequestPick::Turn | RequestPick::Awrr | RequestPick::Plan => {
                self.taken += 1;
                self.ring[(self.taken - 1) % slots]
            }
        }
    }
}
