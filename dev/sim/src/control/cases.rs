// SPDX-License-Identifier: Apache-2.0
//! What a law must do on any seed, and the figures that say whether it did.

use causeway_core::control::{ControlParams, Law};

use super::noise::Noise;
use super::scenario::{Experiment, MS, S, ServerSpec, Trouble, TroubleKind, Wait};
use super::world::{self, ControlOutcome};

/// When trouble begins.
const STEP_NS: u64 = 10 * S;
/// How far a weight may be from where it settles, relative to the configured one.
const SETTLED: f32 = 0.1;
/// Below this part of its configured weight a healthy server starves.
const STARVES: f32 = 0.2;
/// Loads that the cases rotate through: three of four servers can carry them.
const LOADS: [f64; 3] = [0.2, 0.3, 0.4];

/// One figure of one run, with what it may be at most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CaseFigure {
    /// What it is, with the unit.
    pub name: &'static str,
    /// What came out.
    pub value: f64,
    /// What it may be.
    pub at_most: f64,
    /// What its median over the seeds may be: where chance makes single runs differ much,
    /// `at_most` alone would let a law be worse on all of them.
    pub median_at_most: f64,
}

impl CaseFigure {
    /// Whether it is within bounds.
    pub fn holds(&self) -> bool {
        self.value <= self.at_most
    }
}

/// A kind of trouble, and how to judge what the law made of it.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// Half a sentence.
    pub about: &'static str,
    /// Share of the seeds on which every figure must hold.
    pub required: f64,
    build: fn(&mut Experiment),
    judge: fn(&Experiment, &ControlOutcome) -> Vec<CaseFigure>,
}

pub const ALL: &[Case] = &[
    Case {
        name: "step",
        about: "one server becomes 10x slower and stays so",
        required: 0.95,
        build: |of| of.troubles = vec![slow(Some(0), 10.0, u64::MAX)],
        judge: |of, out| vec![settle(of, out), reaction(out), starved(out, &[0])],
    },
    Case {
        name: "step_back",
        about: "one server is 10x slower for 10 s",
        required: 0.99,
        build: |of| {
            of.seconds = 60.0;
            of.troubles = vec![slow(Some(0), 10.0, 20 * S)];
        },
        judge: |_, out| vec![reaction(out), not_back(out, 0), starved(out, &[0])],
    },
    Case {
        name: "delayed",
        about: "one server answers 50 ms later, at any load",
        required: 0.99,
        build: |of| of.troubles = vec![trouble(Some(0), TroubleKind::Delay(50 * MS), u64::MAX)],
        judge: |of, out| vec![settle(of, out), reaction(out), starved(out, &[0])],
    },
    Case {
        name: "path",
        about: "one server answers in 20 ms in place of 2, at any load, behind paths of 30 to 70 ms",
        required: 0.95,
        build: |of| {
            of.path_ns = (30 * MS, 70 * MS);
            of.troubles = vec![trouble(Some(0), TroubleKind::Delay(18 * MS), u64::MAX)];
        },
        judge: |_, out| {
            let reaction = CaseFigure {
                median_at_most: 1_500.0,
                ..figure("90 % moved after, ms", reaction(out).value, 2_000.0)
            };
            vec![reaction, starved(out, &[0])]
        },
    },
    Case {
        name: "waiting",
        about: "one server of the demo becomes 8x slower: requests wait on their connection",
        required: 0.95,
        build: |of| {
            of.wait = Wait::Connection;
            of.work_ns = 6_400_000;
            of.users = 40;
            of.objects = (8, 48);
            of.max_age_ns = 2 * S;
            // A page a second.
            of.load = of.users as f64 * 28.0 * 0.0064 / of.mean_capacity();
            of.warm_up_ns = STEP_NS + 2 * S;
            of.troubles = vec![slow(Some(0), 8.0, u64::MAX)];
        },
        judge: |of, out| {
            let reaction = CaseFigure {
                median_at_most: 1_000.0,
                ..figure("90 % moved after, ms", reaction(out).value, 1_200.0)
            };
            vec![
                reaction,
                starved(out, &[0]),
                against_hashing(of, out, 0.5, 0.25),
            ]
        },
    },
    Case {
        name: "fail_fast",
        about: "one server answers errors in 0.1 ms",
        required: 1.0,
        build: |of| of.troubles = vec![trouble(Some(0), TroubleKind::FailFast, u64::MAX)],
        judge: |_, out| vec![gained(out, 0), starved(out, &[])],
    },
    Case {
        name: "fail_fast_slow",
        about: "the same while another one is 10x slower",
        required: 1.0,
        build: |of| {
            of.troubles = vec![
                trouble(Some(0), TroubleKind::FailFast, u64::MAX),
                slow(Some(1), 10.0, u64::MAX),
            ];
        },
        judge: |_, out| vec![gained(out, 0), kept(out, 1), starved(out, &[1])],
    },
    Case {
        name: "few_samples",
        about: "three users on four servers",
        required: 0.99,
        build: |of| {
            of.users = 3;
            of.load = 0.02;
            of.seconds = 60.0;
        },
        judge: |_, out| vec![drifted(out), starved(out, &[])],
    },
    Case {
        name: "blind",
        about: "no server gives estimates any more",
        required: 1.0,
        build: |of| of.troubles = vec![trouble(None, TroubleKind::Blind, u64::MAX)],
        judge: |_, out| vec![wandered(out, true, 0.2)],
    },
    Case {
        name: "one_blind",
        about: "one server gives no estimates while requests go in: suspect",
        required: 1.0,
        build: |of| of.troubles = vec![trouble(Some(0), TroubleKind::Blind, u64::MAX)],
        judge: |_, out| vec![gained(out, 0), kept(out, 0), starved(out, &[0])],
    },
    Case {
        name: "low_one",
        about: "half of one server's estimates are five times too high, and graded low",
        required: 0.99,
        build: |of| of.troubles = vec![trouble(Some(0), TroubleKind::Low(5.0), u64::MAX)],
        judge: |_, out| vec![drifted(out), starved(out, &[])],
    },
    Case {
        name: "low_step",
        about: "the same, and that server becomes 10x slower",
        required: 0.95,
        build: |of| {
            of.troubles = vec![
                trouble(Some(0), TroubleKind::Low(5.0), u64::MAX),
                slow(Some(0), 10.0, u64::MAX),
            ];
        },
        judge: |_, out| vec![reaction(out), starved(out, &[0])],
    },
    Case {
        name: "low_all",
        about: "half of all servers' estimates are five times too high, and graded low",
        required: 0.99,
        build: |of| of.troubles = vec![trouble(None, TroubleKind::Low(5.0), u64::MAX)],
        judge: |_, out| vec![drifted(out), starved(out, &[])],
    },
    Case {
        name: "all_slow",
        about: "all servers become 2x slower, then fast again",
        required: 0.99,
        build: |of| {
            of.load = 0.3;
            of.seconds = 40.0;
            of.troubles = vec![slow(None, 2.0, 20 * S)];
        },
        judge: |_, out| vec![drifted(out), starved(out, &[])],
    },
    Case {
        name: "oscillating",
        about: "one server is 4x slower for 2 s of every 4",
        required: 0.99,
        build: |of| {
            of.seconds = 40.0;
            of.troubles = vec![Trouble {
                period_ns: 2 * S,
                ..slow(Some(0), 4.0, u64::MAX)
            }];
        },
        judge: |of, out| vec![starved(out, &[0]), against_hashing(of, out, 0.7, 0.25)],
    },
    Case {
        name: "hog",
        about: "one client's requests are 10x the work of the others', without a pause",
        required: 0.99,
        build: |of| {
            of.load = 0.2;
            of.hog = Some(10.0);
        },
        judge: |of, out| vec![against_hashing(of, out, 1.4, 1.2)],
    },
    Case {
        name: "unequal",
        about: "weights and cores of 1 to 8",
        required: 0.99,
        build: |of| {
            let server = |weight: f64| ServerSpec {
                weight,
                capacity: 0.1 * weight,
                workers: weight as usize,
            };
            of.servers = [1.0, 2.0, 4.0, 8.0].map(server).to_vec();
            // More at a time would be served one after another by the smallest.
            of.outstanding = 1;
            of.users = 400;
        },
        judge: |of, out| vec![against_hashing(of, out, 1.05, 0.98), floored(out)],
    },
    Case {
        name: "noise",
        about: "equal servers, nothing but chance and the estimator's errors",
        required: 0.99,
        build: |of| of.load = 0.3,
        judge: |of, out| vec![apart(out), against_hashing(of, out, 1.0, 0.75)],
    },
    Case {
        name: "noise_quota",
        about: "the same on servers with quotas: the requests of a burst are slow together",
        required: 0.97,
        build: |of| *of = of.clone().by_quotas(),
        judge: |of, out| vec![apart(out), against_hashing(of, out, 1.0, 0.75)],
    },
    Case {
        name: "step_quota",
        about: "one server with a quota becomes 10x slower and stays so",
        required: 0.95,
        build: |of| {
            *of = of.clone().by_quotas();
            of.troubles = vec![slow(Some(0), 10.0, u64::MAX)];
        },
        judge: |_, out| vec![reaction(out), starved(out, &[0])],
    },
    Case {
        name: "fail_fast_quota",
        about: "one of the servers with quotas answers errors in 0.1 ms",
        required: 0.99,
        build: |of| {
            *of = of.clone().by_quotas();
            of.troubles = vec![trouble(Some(0), TroubleKind::FailFast, u64::MAX)];
        },
        judge: |_, out| vec![gained(out, 0), starved(out, &[])],
    },
];

impl Case {
    /// Runs the case on a seed; load and estimator follow from the seed.
    pub fn run(&self, seed: u64, law: Law, params: &ControlParams) -> Vec<CaseFigure> {
        self.run_in(seed, law, params, |_| ())
    }

    /// The same in a world that `change` makes another.
    pub fn run_in(
        &self,
        seed: u64,
        law: Law,
        params: &ControlParams,
        change: impl Fn(&mut Experiment),
    ) -> Vec<CaseFigure> {
        let mut scenario = self.scenario(seed, law, params);
        change(&mut scenario);
        (self.judge)(&scenario, &world::run(&scenario))
    }

    /// The figures of weights that never move.
    #[cfg(test)]
    pub(super) fn of_no_law(&self, seed: u64) -> Vec<CaseFigure> {
        let scenario = self.scenario(seed, Law::default(), &ControlParams::default());
        let times = world::run(&scenario).weights.into_iter();
        let mut still = world::run(&scenario.clone().hashed());
        still.weights = times
            .map(|(at, weights)| (at, vec![1.0; weights.len()]))
            .collect();
        (self.judge)(&scenario, &still)
    }

    /// What the case is on a seed.
    pub fn scenario(&self, seed: u64, law: Law, params: &ControlParams) -> Experiment {
        let mut scenario = Experiment {
            seed,
            seconds: 30.0,
            load: LOADS[(seed % 3) as usize],
            noise: [Noise::WEB, Noise::LOSS][(seed / 3 % 2) as usize],
            control: Some((law, params.clone())),
            ..Experiment::default()
        };
        (self.build)(&mut scenario);
        scenario
    }
}

fn trouble(server: Option<usize>, kind: TroubleKind, to_ns: u64) -> Trouble {
    Trouble {
        server,
        from_ns: STEP_NS,
        to_ns,
        period_ns: 0,
        kind,
    }
}

fn slow(server: Option<usize>, times: f64, to_ns: u64) -> Trouble {
    trouble(server, TroubleKind::Slow(times), to_ns)
}

fn figure(name: &'static str, value: f64, at_most: f64) -> CaseFigure {
    CaseFigure {
        name,
        value,
        at_most,
        median_at_most: at_most,
    }
}

/// Intervals from the step until the weight of the server that changed stays within a
/// tenth of the configured one around where it is on the mean of the run's last third.
fn settle(of: &Experiment, out: &ControlOutcome) -> CaseFigure {
    let from = (of.seconds * S as f64 * 2.0 / 3.0) as u64;
    let late = || out.weights.iter().filter(|(at, _)| *at >= from);
    let sum: f32 = late().map(|(_, weights)| weights[0]).sum();
    let mean = sum / late().count().max(1) as f32;
    let far = |weights: &[f32]| (weights[0] - mean).abs() > SETTLED;
    let after: Vec<_> = out.weights.iter().filter(|(at, _)| *at > STEP_NS).collect();
    let last = after.iter().rposition(|(_, weights)| far(weights));
    figure(
        "settled after, intervals",
        last.map_or(0.0, |index| index as f64 + 1.0),
        20.0,
    )
}

/// Time until the slow server keeps a tenth of its weight at most.
fn reaction(out: &ControlOutcome) -> CaseFigure {
    let reached = out
        .weights
        .iter()
        .find(|(at, weights)| *at > STEP_NS && weights[0] <= 0.1);
    let ms = reached.map_or(f64::INFINITY, |(at, _)| (at - STEP_NS) as f64 / 1e6);
    figure("90 % moved after, ms", ms, 1_000.0)
}

/// The longest time for which a healthy server starved, in intervals.
fn starved(out: &ControlOutcome, sick: &[usize]) -> CaseFigure {
    let servers = (0..out.opened.len()).filter(|index| !sick.contains(index));
    let longest = servers.map(|server| {
        let (mut longest, mut now) = (0, 0);
        for (_, weights) in &out.weights {
            now = if weights[server] < STARVES {
                now + 1
            } else {
                0
            };
            longest = longest.max(now);
        }
        longest
    });
    let longest = longest.max().unwrap_or(0);
    figure("starved for, intervals", f64::from(longest), 10.0)
}

/// How far the mean over time of any weight is from the configured one, after the step.
fn drifted(out: &ControlOutcome) -> CaseFigure {
    let after = || out.weights.iter().filter(|(at, _)| *at > STEP_NS);
    let count = after().count().max(1) as f32;
    let mean = |server: usize| after().map(|(_, weights)| weights[server]).sum::<f32>() / count;
    let off = (0..out.opened.len()).map(|server| (mean(server) - 1.0).abs());
    figure("mean weight off by", off.fold(0.0, f32::max).into(), 0.15)
}

/// What a server that fails fast had more than configured, at most.
fn gained(out: &ControlOutcome, server: usize) -> CaseFigure {
    let after = out.weights.iter().filter(|(at, _)| *at > STEP_NS + S);
    let most = after
        .map(|(_, weights)| weights[server])
        .fold(0.0, f32::max);
    figure(
        "gained, % of the weight",
        f64::from(most - 1.0) * 100.0,
        5.0,
    )
}

/// What a server in trouble has of its weight on the mean of the run's last third.
fn kept(out: &ControlOutcome, server: usize) -> CaseFigure {
    let last = out.weights.len() / 3;
    let late = out.weights.iter().rev().take(last);
    let sum: f32 = late.map(|(_, weights)| weights[server]).sum();
    figure(
        "kept of the weight, %",
        f64::from(sum / last.max(1) as f32) * 100.0,
        50.0,
    )
}

/// How far the weights were off at most, as a part of the configured ones: from those,
/// or from where they were half a second after the step.
fn wandered(out: &ControlOutcome, from_step: bool, at_most: f64) -> CaseFigure {
    let after = STEP_NS + S / 2;
    let start = out.weights.iter().find(|(at, _)| *at >= after);
    let start = start
        .filter(|_| from_step)
        .map(|(_, weights)| weights.clone());
    let from = start.unwrap_or_else(|| vec![1.0; out.opened.len()]);
    let far = out
        .weights
        .iter()
        .filter(|(at, _)| *at > after)
        .flat_map(|(_, weights)| weights.iter().zip(&from))
        .map(|(weight, from)| (weight - from).abs());
    figure(
        "furthest off, part of the weight",
        far.fold(0.0, f32::max).into(),
        at_most,
    )
}

/// Share of weights and intervals further than 5 % from the configured ones.
fn apart(out: &ControlOutcome) -> CaseFigure {
    let weights = || out.weights.iter().flat_map(|(_, weights)| weights);
    let far = weights()
        .filter(|weight| (**weight - 1.0).abs() > 0.05)
        .count();
    let all = weights().count().max(1);
    figure(
        "more than 5 % off, % of weights",
        far as f64 / all as f64 * 100.0,
        5.0,
    )
}

/// How much of its weight a server that has recovered lacks at the end.
fn not_back(out: &ControlOutcome, server: usize) -> CaseFigure {
    let last = out
        .weights
        .last()
        .map_or(0.0, |(_, weights)| weights[server]);
    figure(
        "not back, % of the weight",
        f64::from(1.0 - last) * 100.0,
        20.0,
    )
}

/// Share of the intervals in which some server was at the floor.
fn floored(out: &ControlOutcome) -> CaseFigure {
    let lowest = |weights: &[f32]| weights.iter().any(|&weight| weight < 0.03);
    figure("at the floor, % of intervals", share(out, lowest), 1.0)
}

/// p99 as a multiple of that of plain hashing on the same seed.
fn against_hashing(
    of: &Experiment,
    out: &ControlOutcome,
    at_most: f64,
    median_at_most: f64,
) -> CaseFigure {
    let plain = world::run(&of.clone().hashed());
    let p99 = |out: &ControlOutcome| out.latencies.quantile(0.99).unwrap_or(0) as f64;
    CaseFigure {
        median_at_most,
        ..figure(
            "p99 against hashing",
            p99(out) / p99(&plain).max(1.0),
            at_most,
        )
    }
}

fn share(out: &ControlOutcome, is: impl Fn(&[f32]) -> bool) -> f64 {
    let count = out
        .weights
        .iter()
        .filter(|(_, weights)| is(weights))
        .count();
    count as f64 / out.weights.len().max(1) as f64 * 100.0
}
