// SPDX-License-Identifier: Apache-2.0
//! Where the machine is the limit: throughput kept, throughput and idle round trips
//! beside plain tunnels.

use anyhow::Result;
use serde_json::{Value, json};

use super::loads::{self, Ends};
use super::rivals::{Kind, Rival};
use super::runs::{BULK, Counts, ECHO, WARM_UP, guests, kept_pct, median, merge};
use super::tunnel::Tunnel;
use super::world::{Place, Shape, World};
use super::{Context, Plan};
use crate::cpu::{Awake, CpuMeter};

/// What is compared where the machine is the limit.
pub(super) const TUNNELS: [&str; 4] = ["causeway", OTHER, "super_packet_tunnel", "packet_tunnel"];
/// Another build of Causeway.
const OTHER: &str = "other";

/// Throughput kept at 1 % loss where the machine is the limit.
pub(super) fn cpu_bound(context: &Context, plan: &Plan) -> Result<(f64, Value)> {
    let shape = Shape {
        paths: plan.paths,
        rate_mbit: None,
        offloads: false,
        mtu: 1500,
    };
    let world = World::build(context.sandbox, "cpu", shape, &plan.congestion)?;
    let tunnel = Tunnel::start(&world, &context.binary, &plan.setting)?;
    let ends = guests(&world);
    let mut runs = Vec::new();
    for round in 0..plan.rounds {
        for index in 0..2 {
            let loss = [0.0, 1.0][(index + round) % 2];
            let _injected =
                world.lose(loss / 100.0, Place::Network, context.seed + round as u64)?;
            let meter = CpuMeter::start()?;
            let gbps = loads::bulk(&ends, BULK, plan.flows, WARM_UP, plan.bulk)?;
            context.say(format!(
                "bulk, CPU-bound, {loss} % loss: {gbps:.3} Gbit/s, {:.1} % of the CPUs stolen",
                100.0 * meter.stolen()?
            ));
            runs.push((loss, gbps));
        }
    }
    let counts = Counts::read(&tunnel)?;
    let details = json!({
        "runs_gbps": runs, "chunks_sent": counts.sent, "chunks_resent": counts.resent,
    });
    Ok((kept_pct(&runs, 1.0), details))
}

fn idle_p50_us(plan: &Plan, ends: &Ends) -> Result<f64> {
    let times = loads::idle_ping_pong(ends, ECHO, plan.bulk / 2)?;
    Ok(times.p50_ms * 1e3)
}

/// Throughput and idle latency beside the plain tunnels, cards with offloads.
pub(super) fn fast(context: &Context, plan: &Plan) -> Result<(Value, Value)> {
    let shape = Shape {
        paths: plan.paths,
        rate_mbit: None,
        offloads: true,
        mtu: 1500,
    };
    let world = World::build(context.sandbox, "fast", shape, &plan.congestion)?;
    let names: Vec<&str> = TUNNELS
        .into_iter()
        .filter(|name| match *name {
            OTHER => plan.other.is_some(),
            "causeway" if !plan.carries("causeway") => false,
            name => plan.tunnels.iter().any(|wanted| wanted == name),
        })
        .collect();
    let mut gbps: Vec<(&str, f64)> = Vec::new();
    let mut cpu: Vec<(&str, f64)> = Vec::new();
    let mut spent: Vec<(&str, loads::Spent)> = Vec::new();
    let mut idle: Vec<(&str, f64)> = Vec::new();
    let mut idle_asleep: Vec<(&str, f64)> = Vec::new();
    for round in 0..plan.rounds {
        for index in 0..names.len() {
            let name = names[(index + round) % names.len()];
            let binary = match name {
                OTHER => plan.other.as_ref(),
                _ => Some(&context.binary),
            };
            let (_tunnel, _rival);
            let pids = match (name, binary) {
                ("super_packet_tunnel", _) => {
                    _rival = Rival::start(&world, Kind::SuperPacket)?;
                    _rival.pids()
                }
                ("packet_tunnel", _) | (_, None) => {
                    _rival = Rival::start(&world, Kind::Packet)?;
                    _rival.pids()
                }
                (_, Some(binary)) => {
                    _tunnel = Tunnel::start(&world, binary, &plan.setting)?;
                    _tunnel.pids()
                }
            };
            let ends = guests(&world);
            if plan.wants("gbps") {
                let meter = CpuMeter::start()?;
                let (rate, cost) = loads::bulk_with(&ends, BULK, 1, WARM_UP, plan.bulk, &pids)?;
                context.say(format!(
                    "one flow, {name}: {rate:.2} Gbit/s, CPU seconds a GB: tunnel {:.3}, load {:.3}",
                    cost.processes, cost.load
                ));
                gbps.push((name, rate));
                cpu.push((name, meter.share()?));
                spent.push((name, cost));
            }
            if plan.wants("idle") && name != "packet_tunnel" {
                let asleep_us = idle_p50_us(plan, &ends)?;
                // An idle virtual CPU goes back to its hypervisor, and each of the four
                // wake-ups of a round trip then takes tens of microseconds that differ
                // between two runs of one tunnel by more than the tunnels differ.
                let awake = Awake::keep()?;
                let awake_us = idle_p50_us(plan, &ends)?;
                drop(awake);
                context.say(format!(
                    "idle ping-pong, {name}: p50 {awake_us:.1} us, {asleep_us:.1} us where CPUs may sleep"
                ));
                idle.push((name, awake_us));
                idle_asleep.push((name, asleep_us));
            }
        }
    }
    let of = |all: &[(&str, f64)], name: &str| {
        median(
            all.iter()
                .filter(|run| run.0 == name)
                .map(|run| run.1)
                .collect(),
        )
    };
    let mut interface = json!({});
    if plan.wants("gbps") {
        let rates = names
            .iter()
            .map(|name| (name.to_string(), json!(of(&gbps, name))));
        merge(
            &mut interface,
            json!({ "gbps": Value::Object(rates.collect()) }),
        );
    }
    if plan.wants("idle") {
        merge(
            &mut interface,
            json!({ "idle_rr_p50_us": {
                "causeway": of(&idle, "causeway"), "plain_tunnel": of(&idle, "super_packet_tunnel"),
            }}),
        );
    }
    Ok((
        interface,
        json!({ "fast": { "gbps": gbps, "machine_busy": cpu, "cpu_s_per_gb": spent, "idle_p50_us": idle,
            "idle_asleep_p50_us": idle_asleep } }),
    ))
}
