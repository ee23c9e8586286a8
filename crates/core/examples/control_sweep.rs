// SPDX-License-Identifier: Apache-2.0
//! Sweeps the controller's constants over the closed-loop simulation and
//! prints one line per choice; docs/design/steering-figures.md quotes its output.
//!
//! `cargo run --release -p causeway-core --example control_sweep`

// The tests use all of the simulation, this example a part.
#[allow(dead_code)]
#[path = "../tests/closed_loop/mod.rs"]
mod closed_loop;

use causeway_core::control::Params;
use closed_loop::{Change, MS, Outcome, S, Scenario, run};

const DEGRADED_NS: u64 = 4 * S;
const RECOVERED_NS: u64 = 14 * S;
const END_NS: u64 = 34 * S;
const SEEDS: u64 = 10;

/// One kind of trouble for server 0.
struct Trouble {
    name: &'static str,
    factor: f64,
    delay_ns: u64,
    connections: usize,
}

fn main() {
    let troubles = [
        ("+50 ms", 1.0, 50 * MS, 64),
        ("+200 ms", 1.0, 200 * MS, 64),
        ("10x", 10.0, 0, 64),
        ("10x, few clients", 10.0, 0, 12),
        ("10x, many clients", 10.0, 0, 120),
        ("3x", 3.0, 0, 64),
    ]
    .map(|(name, factor, delay_ns, connections)| Trouble {
        name,
        factor,
        delay_ns,
        connections,
    });
    println!(
        "{:<26} {:<18} {:>8} {:>9} {:>8} {:>9} {:>8} {:>8}",
        "choice", "trouble", "p99 cut", "90% gone", "share", "90% back", "noise", "busy p99"
    );
    for (name, params) in choices() {
        let (spread, busy_p99) = (noise(&params), busy(&params));
        for trouble in &troubles {
            line(&name, &params, trouble, spread, busy_p99);
        }
    }
}

fn choices() -> Vec<(String, Params)> {
    let base = Params::default();
    let mut choices = vec![("default".to_owned(), base.clone())];
    let mut vary = |name: &str, values: &[f64], set: fn(&mut Params, f64)| {
        for value in values {
            let mut params = base.clone();
            set(&mut params, *value);
            choices.push((format!("{name} = {value}"), params));
        }
    };
    vary("interval ms", &[50.0, 200.0], |p, v| {
        p.interval_ns = (v * 1e6) as u64;
    });
    vary("step", &[0.03, 0.12, 0.2], |p, v| p.step = v);
    vary("max_decrease", &[0.3, 0.7], |p, v| p.max_decrease = v);
    vary("max_increase", &[0.05, 0.3], |p, v| p.max_increase = v);
    vary("floor", &[0.005, 0.01, 0.05, 0.1], |p, v| p.floor = v);
    vary("regress_rate", &[0.02, 0.05, 0.1], |p, v| {
        p.regress_rate = v
    });
    vary("smoothing", &[0.1, 0.5, 1.0], |p, v| p.smoothing = v);
    vary("confidence", &[0.0, 1.0, 2.0], |p, v| p.confidence = v);
    vary("min_samples", &[1.0, 10.0], |p, v| p.min_samples = v as u32);
    choices
}

fn scenario(trouble: &Trouble, seed: u64, control: Option<Params>) -> Scenario {
    Scenario {
        seed,
        connections: trouble.connections,
        end_ns: END_NS,
        changes: vec![
            Change {
                at_ns: DEGRADED_NS,
                server: 0,
                factor: trouble.factor,
                delay_ns: trouble.delay_ns,
            },
            Change {
                at_ns: RECOVERED_NS,
                server: 0,
                factor: 1.0,
                delay_ns: 0,
            },
        ],
        control,
        ..Scenario::default()
    }
}

fn line(name: &str, params: &Params, trouble: &Trouble, spread: f64, busy_p99: f64) {
    let mut cuts = Vec::new();
    let mut gone = Vec::new();
    let mut back = Vec::new();
    let mut shares = Vec::new();
    for seed in 1..=SEEDS {
        let plain = run(&scenario(trouble, seed, None));
        let ours = run(&scenario(trouble, seed, Some(params.clone())));
        let p99 = |outcome: &Outcome| {
            outcome.percentile_ns(0.99, DEGRADED_NS + 2 * S, RECOVERED_NS) as f64
        };
        cuts.push(100.0 * (1.0 - p99(&ours) / p99(&plain)));
        shares.push(100.0 * ours.share(0, DEGRADED_NS + 2 * S, RECOVERED_NS));
        gone.push(seconds(ours.reached_ns(0, DEGRADED_NS, 0.1, true)));
        back.push(seconds(ours.reached_ns(0, RECOVERED_NS, 0.9, false)));
    }
    println!(
        "{name:<26} {:<18} {:>7.1}% {:>8.2}s {:>7.2}% {:>8.2}s {:>7.1}% {:>7.1}%",
        trouble.name,
        median(cuts),
        median(gone),
        median(shares),
        median(back),
        100.0 * spread,
        100.0 * busy_p99,
    );
}

fn seconds(ns: Option<u64>) -> f64 {
    ns.map_or(f64::INFINITY, |ns| ns as f64 / 1e9)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Equal servers at 70 % load: the change of p99 against plain hashing.
fn busy(params: &Params) -> f64 {
    let mean = |control: Option<Params>| {
        let p99 = (1..=3 * SEEDS).map(|seed| {
            let scenario = Scenario {
                seed,
                connections: 110,
                control: control.clone(),
                ..Scenario::default()
            };
            run(&scenario).percentile_ns(0.99, 0, 14 * S) as f64
        });
        p99.sum::<f64>()
    };
    mean(Some(params.clone())) / mean(None) - 1.0
}

/// Equal servers at 25 % load: the largest relative distance from the configured
/// weight, over 99 % of intervals and reals.
fn noise(params: &Params) -> f64 {
    let mut distances = Vec::new();
    for seed in 1..=SEEDS {
        let outcome = run(&Scenario {
            seed,
            control: Some(params.clone()),
            ..Scenario::default()
        });
        let weights = outcome.decisions.iter().flat_map(|d| &d.reals);
        distances.extend(weights.map(|real| (real.weight - 1.0).abs()));
    }
    distances.sort_by(f64::total_cmp);
    distances[distances.len() * 99 / 100]
}
