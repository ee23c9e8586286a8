// SPDX-License-Identifier: Apache-2.0
//! The default law on a few seeds of every case, and what the world itself must obey.

use causeway_core::control::{Law, Params};

use super::cases;
use super::noise::Noise;
use super::scenario::{S, Scenario};
use super::{loads, world};

#[test]
fn the_default_law_passes_every_case() {
    let seeds = 12;
    for case in cases::ALL {
        let mut missed = Vec::new();
        for seed in 1..=seeds {
            let figures = case.run(seed, Law::default(), &Params::default());
            missed.extend(
                figures
                    .into_iter()
                    .filter(|f| !f.holds())
                    .map(|f| (seed, f)),
            );
        }
        // Of twelve seeds one may be the one of a hundred.
        let allowed = ((1.0 - case.required) * 2.0 * seeds as f64).ceil() as usize;
        assert!(missed.len() <= allowed, "{}: {missed:?}", case.name);
    }
}

#[test]
fn the_default_law_cuts_the_tail_of_hashing() {
    let (mut ours, mut plain) = (0.0, 0.0);
    for load in [0.45, 0.6] {
        for seed in 1..=6 {
            let control = Some((Law::default(), Params::default()));
            ours += loads::run(seed, load, 40.0, control).p99_ms.ln();
            plain += loads::run(seed, load, 40.0, None).p99_ms.ln();
        }
    }
    let ratio = ((ours - plain) / 12.0f64).exp();
    assert!(ratio < 0.75, "{ratio}");
}

#[test]
fn a_seed_gives_one_result_and_load_is_what_was_asked_for() {
    let scenario = Scenario {
        noise: Noise::NONE,
        control: None,
        load: 0.5,
        seconds: 60.0,
        warm_up_ns: 0,
        ..Scenario::default()
    };
    let out = world::run(&scenario);
    assert_eq!(out.latencies, world::run(&scenario).latencies);
    let work_s = out.requests as f64 * scenario.work_ns as f64 / S as f64;
    let load = work_s / scenario.seconds / scenario.mean_capacity();
    assert!((load / 0.5 - 1.0).abs() < 0.05, "{load}");
    let even = out.opened.iter().sum::<u64>() as f64 / 4.0;
    assert!(
        out.opened
            .iter()
            .all(|&opened| (opened as f64 / even - 1.0).abs() < 0.1)
    );
}
