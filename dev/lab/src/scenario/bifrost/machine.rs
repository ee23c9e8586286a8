// SPDX-License-Identifier: Apache-2.0
//! Where the machine is the limit: throughput kept, throughput and idle round trips
//! beside plain tunnels.

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use super::kept::{Counts, bulk_rounds, kept_pct, rates};
use super::latencies::RequestTimes;
use super::loads::{self, Ends};
use super::plain_tunnel::{PlainTunnel, PlainTunnelKind};
use super::replay::Replays;
use super::runs::{BULK, ECHO, WARM_UP, guests, merge, rounds_named};
use super::tunnel::Tunnel;
use super::world::{TunnelShape, TunnelWorld};
use super::{BifrostPlan, Context};
use crate::cpu::{Awake, Steal};
use crate::statistics::{median, standard_error};

/// What is compared where the machine is the limit.
pub(super) const TUNNELS: [&str; 4] = ["causeway", OTHER, "super_packet_tunnel", "packet_tunnel"];
/// Another build of Causeway.
const OTHER: &str = "other";

/// Throughput kept at 1 % loss where the machine is the limit.
pub(super) fn cpu_bound(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
) -> Result<(f64, Value)> {
    let shape = TunnelShape {
        paths: plan.paths,
        rate_mbit: None,
        offloads: false,
        mtu: 1500,
    };
    let world = TunnelWorld::build(context.sandbox, "cpu", shape, &plan.congestion)?;
    let tunnel = Tunnel::start(&world, &context.binary, &plan.setting)?;
    let (ends, what) = ((&world, &tunnel), ("bulk, CPU-bound,", plan.rounds));
    let runs = bulk_rounds(context, plan, replays, ends, what, &[0.0, 1.0])?;
    let rates = rates(&runs);
    let counts = Counts::read(&tunnel)?;
    let details = json!({
        "runs_gbps": rates, "runs": runs, "chunks_sent": counts.sent,
        "chunks_resent": counts.resent,
    });
    Ok((kept_pct(&rates, 1.0), details))
}

/// What a tunnel had in a round.
#[derive(Debug, Clone, Serialize)]
struct Run {
    tunnel: &'static str,
    bulk: Option<BulkFigures>,
    idle: Option<IdleFigures>,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct BulkFigures {
    gbps: f64,
    machine_busy: f64,
    cpu_s_per_gb: loads::Spent,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct IdleFigures {
    p50_us: f64,
    asleep_p50_us: f64,
}

/// Throughput and idle latency beside the plain tunnels, cards with offloads. A round is that of
/// all tunnels by turns, and is played again as a whole.
pub(super) fn fast(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
) -> Result<(Value, Value)> {
    let shape = TunnelShape {
        paths: plan.paths,
        rate_mbit: None,
        offloads: true,
        mtu: 1500,
    };
    let world = TunnelWorld::build(context.sandbox, "fast", shape, &plan.congestion)?;
    let names: Vec<&'static str> = TUNNELS
        .into_iter()
        .filter(|name| match *name {
            OTHER => plan.other.is_some(),
            "causeway" if !plan.carries("causeway") => false,
            name => plan.tunnels.iter().any(|wanted| wanted == name),
        })
        .collect();
    let counted = replays.rounds(&rounds_named(plan.rounds), |round| {
        let (mut runs, mut steal) = (Vec::new(), Steal::default());
        for index in 0..names.len() {
            let name = names[(index + round) % names.len()];
            let (run, stolen) = one(context, plan, &world, name)?;
            steal = steal.and(stolen);
            runs.push(run);
        }
        Ok((runs, steal))
    })?;
    let rounds: Vec<Vec<Run>> = counted.into_iter().map(|one| one.figures).collect();
    Ok(summary(context, plan, &names, &rounds))
}

/// Starts a tunnel and measures it.
fn one(
    context: &Context,
    plan: &BifrostPlan,
    world: &TunnelWorld,
    name: &'static str,
) -> Result<(Run, Steal)> {
    let binary = match name {
        OTHER => plan.other.as_ref(),
        _ => Some(&context.binary),
    };
    let (_tunnel, _plain);
    let pids = match (name, binary) {
        ("super_packet_tunnel", _) => {
            _plain = PlainTunnel::start(world, PlainTunnelKind::SuperPacket)?;
            _plain.pids()
        }
        ("packet_tunnel", _) | (_, None) => {
            _plain = PlainTunnel::start(world, PlainTunnelKind::Packet)?;
            _plain.pids()
        }
        (_, Some(binary)) => {
            _tunnel = Tunnel::start(world, binary, &plan.setting)?;
            _tunnel.pids()?
        }
    };
    let ends = guests(world);
    let (mut bulk, mut idle, mut steal) = (None, None, Steal::default());
    if plan.wants("gbps") {
        let had = loads::bulk(&ends, BULK, 1, [WARM_UP, plan.bulk], &pids)?;
        context.say(format!(
            "one flow, {name}: {:.2} Gbit/s, CPU seconds a GB: tunnel {:.3}, load {:.3}, {:.1} % of the CPUs stolen",
            had.gbps, had.spent.processes, had.spent.load, had.steal.pct()
        ));
        steal = steal.and(had.steal);
        bulk = Some(BulkFigures {
            gbps: had.gbps,
            machine_busy: had.busy,
            cpu_s_per_gb: had.spent,
        });
    }
    if plan.wants("idle") && name != "packet_tunnel" {
        let asleep = idle_times(plan, &ends)?;
        // An idle virtual CPU goes back to its hypervisor, and each of the four
        // wake-ups of a round trip then takes tens of microseconds that differ
        // between two runs of one tunnel by more than the tunnels differ.
        let awake = Awake::keep()?;
        let times = idle_times(plan, &ends)?;
        drop(awake);
        let figures = IdleFigures {
            p50_us: times.p50_ms * 1e3,
            asleep_p50_us: asleep.p50_ms * 1e3,
        };
        context.say(format!(
            "idle ping-pong, {name}: p50 {:.1} us, {:.1} us where CPUs may sleep, {:.1} and {:.1} % of the CPUs stolen",
            figures.p50_us, figures.asleep_p50_us, times.stolen_pct, asleep.stolen_pct
        ));
        steal = steal.and(asleep.steal()).and(times.steal());
        idle = Some(figures);
    }
    let run = Run {
        tunnel: name,
        bulk,
        idle,
    };
    Ok((run, steal))
}

fn idle_times(plan: &BifrostPlan, ends: &Ends) -> Result<RequestTimes> {
    loads::idle_ping_pong(ends, ECHO, plan.bulk / 2)
}

fn summary(
    context: &Context,
    plan: &BifrostPlan,
    names: &[&'static str],
    rounds: &[Vec<Run>],
) -> (Value, Value) {
    let all = || rounds.iter().flatten();
    let gbps = listed(all(), |run| run.bulk.map(|bulk| bulk.gbps));
    let idle = listed(all(), |run| run.idle.map(|idle| idle.p50_us));
    let of = |all: &[(&str, f64)], name: &str| {
        let runs = all.iter().filter(|run| run.0 == name);
        median(&runs.map(|run| run.1).collect::<Vec<_>>())
    };
    let mut interface = json!({});
    let (mut over, mut ratios) = (serde_json::Map::new(), serde_json::Map::new());
    if plan.wants("gbps") {
        let rates = names
            .iter()
            .map(|name| (name.to_string(), json!(of(&gbps, name))));
        merge(
            &mut interface,
            json!({ "gbps": Value::Object(rates.collect()) }),
        );
        for name in names.iter().filter(|name| **name != "causeway") {
            let by_round = by_round(rounds, name);
            let (middle, error) = (median(&by_round), standard_error(&by_round));
            context.say(format!(
                "one flow over {name}, by round: {middle:.3} times, standard error {error:.3}, {} rounds",
                by_round.len()
            ));
            over.insert(name.to_string(), json!(middle));
            ratios.insert(
                name.to_string(),
                json!({ "median": middle, "standard_error": error, "rounds": by_round }),
            );
        }
        merge(&mut interface, json!({ "gbps_over_by_round": over }));
    }
    if plan.wants("idle") {
        merge(
            &mut interface,
            json!({ "idle_rr_p50_us": {
                "causeway": of(&idle, "causeway"), "plain_tunnel": of(&idle, "super_packet_tunnel"),
            }}),
        );
    }
    let details = json!({
        "gbps": gbps, "gbps_over_by_round": ratios,
        "machine_busy": listed(all(), |run| run.bulk.map(|bulk| bulk.machine_busy)),
        "cpu_s_per_gb": listed(all(), |run| run.bulk.map(|bulk| bulk.cpu_s_per_gb)),
        "idle_p50_us": idle,
        "idle_asleep_p50_us": listed(all(), |run| run.idle.map(|idle| idle.asleep_p50_us)),
    });
    (interface, json!({ "fast": details }))
}

/// A figure of each run that has it, with the tunnel's name.
fn listed<'a, T>(
    runs: impl Iterator<Item = &'a Run>,
    figure: impl Fn(&Run) -> Option<T>,
) -> Vec<(&'static str, T)> {
    runs.filter_map(|run| Some((run.tunnel, figure(run)?)))
        .collect()
}

/// This tunnel's rate as a multiple of another's, round by round.
fn by_round(rounds: &[Vec<Run>], other: &str) -> Vec<f64> {
    let rate = |round: &[Run], name: &str| {
        let run = round.iter().find(|run| run.tunnel == name);
        run.and_then(|run| run.bulk).map(|bulk| bulk.gbps)
    };
    let ratio = |round: &Vec<Run>| Some(rate(round, "causeway")? / rate(round, other)?);
    rounds.iter().filter_map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_compared_within_rounds() {
        let run = |tunnel, gbps| Run {
            tunnel,
            bulk: Some(BulkFigures {
                gbps,
                machine_busy: 1.0,
                cpu_s_per_gb: loads::Spent {
                    processes: 1.0,
                    load: 1.0,
                },
            }),
            idle: None,
        };
        let rounds = [
            vec![run("causeway", 8.0), run("packet_tunnel", 1.0)],
            vec![run("packet_tunnel", 2.0), run("causeway", 12.0)],
            vec![run("causeway", 12.0)],
        ];
        assert_eq!(by_round(&rounds, "packet_tunnel"), [8.0, 6.0]);
        assert!(by_round(&rounds, "super_packet_tunnel").is_empty());
        let rates = listed(rounds.iter().flatten(), |run| run.bulk.map(|one| one.gbps));
        assert_eq!(rates[1], ("packet_tunnel", 1.0));
    }
}
