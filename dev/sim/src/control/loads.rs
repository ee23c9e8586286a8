// SPDX-License-Identifier: Apache-2.0
//! Laws against plain hashing, from light to heavy load, on servers whose capacity
//! changes every second.

use causeway_core::control::{ControlParams, Law};

use super::noise::Noise;
use super::scenario::{Experiment, Oracle, S, ServerPick};
use super::world;

/// Loads that are compared.
pub const LOADS: [f64; 5] = [0.3, 0.45, 0.6, 0.75, 0.9];

/// Runs that share a trace of capacities: seeds 1 to 5 have the first one, and so on. They
/// differ by chance alone.
pub const RUNS_OF_A_TRACE: u64 = 5;

/// The tail of one run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tail {
    /// Median latency.
    pub p50_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Rings built a second.
    pub changes_per_s: f64,
}

/// What makes a run, but for who steers.
#[derive(Debug, Clone, Copy)]
pub struct Course {
    /// Source of chance and trace.
    pub seed: u64,
    /// Of the mean capacity.
    pub load: f64,
    /// Virtual length.
    pub seconds: f64,
    /// Capacities are quotas, as the lab's.
    pub quotas: bool,
}

/// One run by a law, or without any.
pub fn run(course: Course, pick: ServerPick, control: Option<(Law, ControlParams)>) -> Tail {
    of(Experiment {
        control,
        pick,
        ..scenario(course)
    })
}

/// The same by plain hashing.
pub fn hashed(course: Course) -> Tail {
    of(scenario(course).hashed())
}

/// The same by steering that knows all.
pub fn bound(course: Course, pick: ServerPick, oracle: Oracle) -> Tail {
    of(Experiment {
        control: None,
        pick,
        oracle: Some(oracle),
        ..scenario(course)
    })
}

fn scenario(course: Course) -> Experiment {
    let scenario = Experiment {
        seed: course.seed,
        trace: course.seed.saturating_sub(1) / RUNS_OF_A_TRACE + 1,
        seconds: course.seconds,
        load: course.load,
        traced: true,
        noise: Noise::WEB,
        warm_up_ns: 2 * S,
        ..Experiment::default()
    };
    match course.quotas {
        true => scenario.by_quotas(),
        false => scenario,
    }
}

fn of(scenario: Experiment) -> Tail {
    let out = world::run(&scenario);
    let ms = |q| out.latencies.quantile(q).unwrap_or(0) as f64 / 1e6;
    Tail {
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        changes_per_s: out.changes as f64 / scenario.seconds,
    }
}
