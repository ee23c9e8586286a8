// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with one server or all, each by itself, on steady capacities.

use std::ops::Range;

use anyhow::Result;
use causeway_api::balancer::EpochView;
use serde_json::{Value, json};

use super::world::{Change, ControlRun, ControlWorld, SERVERS};
use super::{Plan, Way};
use crate::scenario::Context;
use crate::statistics::quantile;

/// Load of these runs.
const LOAD: f64 = 0.45;
/// When something happens.
const AT_S: f64 = 4.0;
/// How much slower the slow server becomes.
const FACTOR: f64 = 10.0;

/// Runs them all; keys go to the top of the result.
pub(super) fn run(context: &Context, plan: &Plan, world: &mut ControlWorld) -> Result<Value> {
    let mut result = json!({});
    let mut reactions = Vec::new();
    let mut left = Vec::new();
    let mut courses = Vec::new();
    for _ in 0..plan.steps {
        let run = world.steady(
            plan,
            Way::Causeway,
            LOAD,
            9.0,
            &[slow(AT_S, Some(0), FACTOR)],
        )?;
        let reaction = reaction_ms(&run);
        context.say(format!(
            "one server {FACTOR}x slower: 90 % of its new connections moved after {}",
            reaction.map_or("the run's end".to_owned(), |ms| format!("{ms:.0} ms"))
        ));
        reactions.push(reaction);
        courses.push(course(&run, 0, run.changed_ns[0], -500.0..3_000.0));
        left.push(opened_share(&run, 0, run.changed_ns[0] + 1_000_000_000));
    }
    reactions.sort_by(|a, b| {
        a.unwrap_or(f64::INFINITY)
            .total_cmp(&b.unwrap_or(f64::INFINITY))
    });
    result["reaction_ms"] = json!(reactions.get(plan.steps / 2));
    result["reaction_runs_ms"] = json!(reactions);
    result["reaction_courses"] = json!(courses);
    result["slow_server_connections_pct"] = json!(left);

    let noise = noise(context, plan, world)?;
    super::figures::add(&mut result, noise);

    let fails = world.steady(plan, Way::Causeway, LOAD, 9.0, &[slow(AT_S, Some(0), 0.0)])?;
    let most = weights(&fails, 0, fails.changed_ns[0]).fold(0.0, f64::max);
    context.say(format!(
        "one server fails fast: at most {:.2} times its weight",
        most
    ));
    result["fail_fast"] = json!({
        "most_weight": most,
        "connections_pct": opened_share(&fails, 0, fails.changed_ns[0]),
        "fair_pct": 100.0 / SERVERS as f64,
        "courses": (0..SERVERS)
            .map(|server| course(&fails, server, fails.changed_ns[0], -1_000.0..5_000.0))
            .collect::<Vec<_>>(),
    });

    let all = world.steady(plan, Way::Causeway, 0.25, 9.0, &[slow(AT_S, None, 2.5)])?;
    let off = (0..SERVERS)
        .flat_map(|server| weights(&all, server, all.changed_ns[0]).collect::<Vec<_>>());
    let off: Vec<f64> = off.map(|weight| (weight - 1.0).abs() * 100.0).collect();
    result["all_slow_weight_deviation_pct"] = json!(quantile(&off, 0.95));
    context.say(format!(
        "all servers 2.5x slower: weights within {:.0} %",
        quantile(&off, 0.95)
    ));

    let changes = [slow(3.0, Some(0), FACTOR), slow(8.0, Some(0), 1.0)];
    let back = world.steady(plan, Way::Causeway, LOAD, 20.0, &changes)?;
    let returned = back.epochs[0]
        .iter()
        .find(|epoch| epoch.start_monotonic_ns > back.changed_ns[1] && relative(epoch) >= 0.9)
        .map(|epoch| (epoch.start_monotonic_ns - back.changed_ns[1]) as f64 / 1e6);
    result["step_back"] =
        json!({ "p99_ms": back.client_latency.p99_ms, "back_at_90_pct_after_ms": returned });
    context.say(format!(
        "back to normal: 90 % of its weight after {}",
        returned.map_or("the run's end".to_owned(), |ms| format!("{ms:.0} ms"))
    ));
    Ok(result)
}

/// Equal servers: how far weights wander, and what that costs. A run of ten seconds is a
/// matter of luck, hence several, all weights of which are taken together.
fn noise(context: &Context, plan: &Plan, world: &mut ControlWorld) -> Result<Value> {
    let (mut all, mut runs) = (Vec::new(), Vec::new());
    for _ in 0..plan.noises {
        let ours = world.steady(plan, Way::Causeway, LOAD, 10.0, &[])?;
        let plain = world.steady(plan, Way::Maglev, LOAD, 10.0, &[])?;
        let from = ours.start_ns + (plan.warm_up_s * 1e9) as u64;
        let off = (0..SERVERS).flat_map(|server| weights(&ours, server, from).collect::<Vec<_>>());
        let off: Vec<f64> = off.map(|weight| (weight - 1.0).abs() * 100.0).collect();
        let p95 = quantile(&off, 0.95);
        context.say(format!(
            "equal servers: 95 % of the weights within {p95:.1} %, p99 {:.1} ms, under Maglev {:.1} ms",
            ours.client_latency.p99_ms, plain.client_latency.p99_ms
        ));
        let courses =
            (0..SERVERS).map(|server| course(&ours, server, ours.start_ns, 0.0..10_000.0));
        runs.push(json!({
            "deviation_pct": p95,
            "worst_deviation_pct": quantile(&off, 1.0),
            "causeway_p99_ms": ours.client_latency.p99_ms,
            "maglev_p99_ms": plain.client_latency.p99_ms,
            "courses": courses.collect::<Vec<_>>(),
        }));
        all.extend(off);
    }
    Ok(json!({
        "noise_weight_deviation_pct": (!all.is_empty()).then(|| quantile(&all, 0.95)),
        "noise": runs,
    }))
}

fn slow(at_s: f64, server: Option<usize>, factor: f64) -> Change {
    Change {
        at_s,
        server,
        factor,
    }
}

/// A weight as a multiple of the configured one.
fn relative(epoch: &EpochView) -> f64 {
    epoch.weight / epoch.configured.max(f64::MIN_POSITIVE)
}

fn weights(run: &ControlRun, server: usize, from_ns: u64) -> impl Iterator<Item = f64> {
    let epochs = run.epochs[server].iter();
    epochs
        .filter(move |epoch| epoch.start_monotonic_ns >= from_ns)
        .map(relative)
}

/// From the slowdown to the ring that gives the server a tenth of its new connections.
fn reaction_ms(run: &ControlRun) -> Option<f64> {
    let step = *run.changed_ns.first()?;
    let moved = run.epochs[0]
        .iter()
        .find(|epoch| epoch.start_monotonic_ns > step && relative(epoch) <= 0.1)?;
    Some((moved.start_monotonic_ns - step) as f64 / 1e6)
}

/// What the balancer saw of a server and gave it in a span of milliseconds around a time.
fn course(run: &ControlRun, server: usize, around_ns: u64, span_ms: Range<f64>) -> Vec<Value> {
    let after_ms = |epoch: &EpochView| (epoch.start_monotonic_ns as f64 - around_ns as f64) / 1e6;
    run.epochs[server]
        .iter()
        .filter(|epoch| span_ms.contains(&after_ms(epoch)))
        .map(|epoch| {
            json!({
                "from_ms": after_ms(epoch),
                "weight": relative(epoch),
                "latency_ms": epoch.estimate_us.map(|us| us / 1e3),
                "samples": epoch.samples,
                "opened": epoch.opened,
            })
        })
        .collect()
}

/// Share of the connections opened from a time on that a server got.
fn opened_share(run: &ControlRun, server: usize, from_ns: u64) -> f64 {
    let opened = |epochs: &Vec<EpochView>| -> u64 {
        let late = epochs
            .iter()
            .filter(|epoch| epoch.start_monotonic_ns >= from_ns);
        late.map(|epoch| epoch.opened).sum()
    };
    let all: u64 = run.epochs.iter().map(opened).sum();
    opened(&run.epochs[server]) as f64 / all.max(1) as f64 * 100.0
}
