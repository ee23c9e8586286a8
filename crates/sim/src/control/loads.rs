// SPDX-License-Identifier: Apache-2.0
//! Laws against plain hashing, from light to heavy load, on servers whose capacity
//! changes every second.

use causeway_core::control::{Law, Params};

use super::noise::Noise;
use super::scenario::{Oracle, Pick, S, Scenario};
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

/// One run under a load, by a law, or without any.
pub fn run(seed: u64, load: f64, seconds: f64, pick: Pick, control: Option<(Law, Params)>) -> Tail {
    of(Scenario {
        control,
        pick,
        ..scenario(seed, load, seconds)
    })
}

/// The same by plain hashing.
pub fn hashed(seed: u64, load: f64, seconds: f64) -> Tail {
    of(scenario(seed, load, seconds).hashed())
}

/// The same by steering that knows all.
pub fn bound(seed: u64, load: f64, seconds: f64, pick: Pick, oracle: Oracle) -> Tail {
    of(Scenario {
        control: None,
        pick,
        oracle: Some(oracle),
        ..scenario(seed, load, seconds)
    })
}

fn scenario(seed: u64, load: f64, seconds: f64) -> Scenario {
    Scenario {
        seed,
        trace: seed.saturating_sub(1) / RUNS_OF_A_TRACE + 1,
        seconds,
        load,
        traced: true,
        noise: Noise::WEB,
        warm_up_ns: 2 * S,
        ..Scenario::default()
    }
}

fn of(scenario: Scenario) -> Tail {
    let out = world::run(&scenario);
    let ms = |q| out.latencies.quantile(q).unwrap_or(0) as f64 / 1e6;
    Tail {
        p50_ms: ms(0.5),
        p99_ms: ms(0.99),
        changes_per_s: out.changes as f64 / scenario.seconds,
    }
}
