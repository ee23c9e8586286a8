// SPDX-License-Identifier: Apache-2.0
//! Several balancers before the same servers, which send each other what they measure, by the
//! daemons' own exchange, over a network that delays, loses and parts.

use std::net::{IpAddr, SocketAddr};

use causeway_core::agent_report::{Boot, ReportKeys, ReportSecrets};
use causeway_core::control::{ControlParams, Law, MeasuredInterval};
use causeway_core::cookie::{CookieKey, KeyEpoch};
use causeway_core::peer::{DRAW, PeerExchange, PeerKeys, RealInterval};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::balancer::Balancer;
use super::scenario::{Experiment, MS, S, ServerPick, Trouble, TroubleKind};
use super::world::{self, ControlOutcome};

/// When a server becomes slow.
const STEP_NS: u64 = 10 * S;
/// Weights and latencies count from here on.
const SETTLED_NS: u64 = 15 * S;

/// The members and their network.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetSpec {
    /// How many balancers.
    pub members: usize,
    /// Whether they send each other anything.
    pub shares: bool,
    /// What a datagram takes, from and to.
    pub delay_ns: (u64, u64),
    /// Share of datagrams that are lost.
    pub loss: f64,
    /// From when until when the first half of the members cannot reach the others.
    pub parted_ns: Option<(u64, u64)>,
}

/// A way for several balancers to steer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FleetWay {
    pub name: &'static str,
    shares: bool,
    delay_ns: (u64, u64),
    loss: f64,
    parted_ns: Option<(u64, u64)>,
}

/// The ways that are compared. `alone` is the planted fault.
pub const WAYS: [FleetWay; 4] = [
    FleetWay {
        name: "alone",
        shares: false,
        delay_ns: (0, 0),
        loss: 0.0,
        parted_ns: None,
    },
    FleetWay {
        name: "shared",
        shares: true,
        delay_ns: (MS / 10, 2 * MS),
        loss: 0.001,
        parted_ns: None,
    },
    FleetWay {
        name: "shared, 50 ms, 20 % lost",
        shares: true,
        delay_ns: (10 * MS, 90 * MS),
        loss: 0.2,
        parted_ns: None,
    },
    FleetWay {
        name: "shared, parted for 10 s",
        shares: true,
        delay_ns: (MS / 10, 2 * MS),
        loss: 0.001,
        parted_ns: Some((8 * S, 18 * S)),
    },
];

/// What came out of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SteeringFigures {
    /// How far members' weights go to and fro around their means over time, where one server is
    /// slower for good: standard deviation, as a part of the configured weight.
    pub unsteady: f64,
    /// The same of the mean of all members' weights: what the servers feel.
    pub together: f64,
    /// How far members' weights are from the mean of all at the same time: root mean square.
    pub apart: f64,
    /// 99th percentile of latencies there.
    pub p99_ms: f64,
    /// Time until a server that becomes 10x slower keeps a tenth of its weight, on the mean of
    /// the members.
    pub moved_ms: f64,
}

/// One run of each: a server that is slower for good, and one that becomes slow.
pub fn run(
    seed: u64,
    law: Law,
    params: &ControlParams,
    fleet: Option<FleetSpec>,
) -> SteeringFigures {
    let slow = |from_ns, times| Trouble {
        server: Some(0),
        from_ns,
        to_ns: u64::MAX,
        period_ns: 0,
        kind: TroubleKind::Slow(times),
    };
    let uneven = Experiment {
        seed,
        seconds: 40.0,
        warm_up_ns: SETTLED_NS,
        load: 0.45,
        troubles: vec![slow(0, 1.5)],
        pick: ServerPick::Hash,
        control: Some((law, params.clone())),
        fleet,
        ..Experiment::default()
    };
    let step = Experiment {
        seconds: 30.0,
        load: 0.3,
        troubles: vec![slow(STEP_NS, 10.0)],
        ..uneven.clone()
    };
    let uneven = world::run(&uneven);
    let of = members(&uneven);
    SteeringFigures {
        unsteady: unsteady(&of),
        together: unsteady(&[together(&of)]),
        apart: apart(&of),
        p99_ms: uneven.latencies.quantile(0.99).unwrap_or(0) as f64 / 1e6,
        moved_ms: moved_ms(&members(&world::run(&step))),
    }
}

impl FleetWay {
    /// With this many members.
    pub fn of(&self, members: usize) -> FleetSpec {
        FleetSpec {
            members,
            shares: self.shares,
            delay_ns: self.delay_ns,
            loss: self.loss,
            parted_ns: self.parted_ns,
        }
    }
}

type History = Vec<(u64, Vec<f32>)>;

fn members(out: &ControlOutcome) -> Vec<History> {
    match out.of_members.is_empty() {
        true => vec![out.weights.clone()],
        false => out.of_members.clone(),
    }
}

fn unsteady(members: &[History]) -> f64 {
    let (mut count, mut sum) = (0_u64, 0.0);
    for history in members {
        let settled = || history.iter().filter(|(at, _)| *at >= SETTLED_NS);
        let intervals = settled().count().max(1) as f32;
        for server in 0..history.first().map_or(0, |(_, weights)| weights.len()) {
            let weights = || settled().map(|(_, weights)| weights[server]);
            let mean = weights().sum::<f32>() / intervals;
            count += intervals as u64;
            sum += weights()
                .map(|weight| f64::from(weight - mean).powi(2))
                .sum::<f64>();
        }
    }
    (sum / count.max(1) as f64).sqrt()
}

/// The mean of the members' weights, interval by interval.
fn together(members: &[History]) -> History {
    let intervals = members.iter().map(Vec::len).min().unwrap_or(0);
    let mean = |interval: usize| {
        let (at, first) = &members[0][interval];
        let mut sum = vec![0.0; first.len()];
        for history in members {
            for (sum, weight) in sum.iter_mut().zip(&history[interval].1) {
                *sum += weight / members.len() as f32;
            }
        }
        (*at, sum)
    };
    (0..intervals).map(mean).collect()
}

fn apart(members: &[History]) -> f64 {
    let means = together(members);
    let (mut count, mut sum) = (0_u64, 0.0);
    for (interval, (at, means)) in means.iter().enumerate() {
        if *at < SETTLED_NS {
            continue;
        }
        for history in members {
            for (weight, mean) in history[interval].1.iter().zip(means) {
                count += 1;
                sum += f64::from(weight - mean).powi(2);
            }
        }
    }
    (sum / count.max(1) as f64).sqrt()
}

/// A member that never does counts until the end.
fn moved_ms(members: &[History]) -> f64 {
    let each = members.iter().map(|history| {
        let after = || history.iter().filter(|(at, _)| *at > STEP_NS);
        let moved = after().find(|(_, weights)| weights[0] <= 0.1);
        let at_ns = moved.or(after().next_back()).map_or(STEP_NS, |(at, _)| *at);
        (at_ns - STEP_NS) as f64 / 1e6
    });
    each.sum::<f64>() / members.len() as f64
}

/// The exchange of all members, and the network between them.
#[derive(Debug)]
pub(super) struct FleetNet {
    spec: FleetSpec,
    rng: Pcg64Mcg,
    members: Vec<PeerExchange>,
    sent: u64,
    lost: u64,
}

fn socket(member: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, (member >> 8) as u8, member as u8], 9473))
}

fn member_at(address: IpAddr) -> Option<usize> {
    match address {
        IpAddr::V4(v4) => Some(usize::from(v4.octets()[2]) << 8 | usize::from(v4.octets()[3])),
        IpAddr::V6(_) => None,
    }
}

impl FleetNet {
    /// From one round of datagrams of a member to the next.
    pub(super) const ROUND_NS: u64 = 100 * MS;

    pub(super) fn new(spec: &FleetSpec, seed: u64) -> Self {
        let all: Vec<SocketAddr> = (0..spec.members).map(socket).collect();
        let reports = ReportKeys {
            current: KeyEpoch::Zero,
            secrets: ReportSecrets::Root([Some(CookieKey::from_words([seed, 7])), None]),
        };
        let members = all.iter().zip(0..).map(|(own, id)| {
            let boot = Boot { time_s: 1, id };
            let secret = CookieKey::from_words([seed, u64::from(id)]);
            let mut member = PeerExchange::new(own.ip(), boot, secret);
            member.set_keys(PeerKeys::of(&reports).filter(|_| spec.shares));
            member.set_members(&all);
            member
        });
        Self {
            spec: spec.clone(),
            // Of its own: users and servers have the same chance whatever the network does.
            rng: Pcg64Mcg::seed_from_u64(seed ^ 0x6e65_7477_6f72_6b00),
            members: members.collect(),
            sent: 0,
            lost: 0,
        }
    }

    /// When a member's first round is.
    pub(super) fn phase_ns(&mut self) -> u64 {
        self.rng.random_range(0..Self::ROUND_NS)
    }

    /// Datagrams, and those that were lost.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.sent, self.lost)
    }

    /// A member's interval ends: puts what all have measured in the place of what it has, and
    /// draws its weights to those of all.
    pub(super) fn interval(
        &mut self,
        member: usize,
        now_ns: u64,
        balancer: &mut Balancer,
        measured: &mut [MeasuredInterval],
    ) {
        let Some(controller) = &mut balancer.controller else {
            return;
        };
        let weights = controller.weights().zip(measured.iter());
        let reals: Vec<RealInterval> = weights
            .map(|((real, weight), measured)| RealInterval {
                name: real.id.into(),
                measured: *measured,
                weight: Some(weight / real.configured),
                vote: None,
            })
            .collect();
        let of_all = self.members[member].interval(now_ns, &reals);
        for (measured, of_all) in measured.iter_mut().zip(&of_all) {
            *measured = of_all.measured;
        }
        let towards: Vec<Option<f64>> = of_all.iter().map(|of| of.weight).collect();
        if towards.iter().any(Option::is_some) {
            controller.draw(&towards, DRAW);
        }
    }

    /// A member's round: what arrives after which delay, and where.
    pub(super) fn round(&mut self, member: usize, now_ns: u64) -> Vec<(u64, usize, Vec<u8>)> {
        let round = self.members[member].transmits(now_ns);
        let sent = round
            .into_iter()
            .filter_map(|(to, bytes)| self.send(member, to, bytes, now_ns));
        sent.collect()
    }

    /// A datagram arrives; the answer to it, if there is one.
    pub(super) fn arrives(
        &mut self,
        to: usize,
        bytes: &[u8],
        now_ns: u64,
    ) -> Option<(u64, usize, Vec<u8>)> {
        let (_, answer) = self.members[to].handle_datagram(bytes, now_ns);
        let (back, answer) = answer?;
        self.send(to, back, answer, now_ns)
    }

    fn send(
        &mut self,
        from: usize,
        to: SocketAddr,
        bytes: Vec<u8>,
        now_ns: u64,
    ) -> Option<(u64, usize, Vec<u8>)> {
        let to = member_at(to.ip())?;
        let half = self.spec.members / 2;
        let parted = self.spec.parted_ns.is_some_and(|(begin, end)| {
            (begin..end).contains(&now_ns) && (from < half) != (to < half)
        });
        self.sent += 1;
        if parted || self.rng.random_bool(self.spec.loss) {
            self.lost += 1;
            return None;
        }
        let (least, most) = self.spec.delay_ns;
        Some((self.rng.random_range(least..=most), to, bytes))
    }
}
