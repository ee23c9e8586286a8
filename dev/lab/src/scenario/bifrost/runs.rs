// SPDX-License-Identifier: Apache-2.0
//! The experiments of the scenario `bifrost`, one after another, and what they share.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::latencies::RequestTimes;
use super::loads::{self, Ends, Pace, TcpStack};
use super::replay::Replays;
use super::tunnel::Tunnel;
use super::world::{GUESTS, TunnelShape, TunnelWorld};
use super::{BifrostPlan, Context, cases, flap, kept, machine, tails, with_interface};
use crate::clock;
use crate::nginx::Nginx;

pub(super) const WEB: u16 = 80;
/// The web server that speaks MPTCP.
const WEB_MPTCP: u16 = 81;
pub(super) const ECHO: u16 = 7777;
pub(super) const BULK: u16 = 7778;
pub(super) const WARM_UP: Duration = Duration::from_secs(1);
/// Clients: stalls of a second at the usual rate leave most of them free.
pub(super) const CLIENTS: usize = 128;
/// Connections of the ping-pong.
pub(super) const PINGERS: usize = 32;

/// Runs what the plan wants.
pub(super) fn all(context: &Context, plan: &BifrostPlan) -> Result<Value> {
    let say = |line: &str| context.say(line);
    let now = || Duration::from_nanos(clock::monotonic_ns());
    let mut replays = Replays::new(plan.rule, plan.lengths(), &say, &now);
    let replays = &mut replays;
    let mut interface = json!({ "seed": context.seed });
    let mut more = json!({ "paths": plan.paths, "mbit_per_path": plan.mbit });
    let set = |value: &mut Value, part: Value| merge(value, part);
    if ["tails", "kept", "flap", "more"]
        .iter()
        .any(|part| plan.wants(part))
    {
        let (parts, others) = rated(context, plan, replays)?;
        set(&mut interface, parts);
        set(&mut more, others);
    }
    for (part, run) in cases::PARTS {
        if plan.wants(part) {
            replays.begin(part);
            let (rows, details) = run(context, plan, replays)?;
            set(&mut interface, keyed(part, rows));
            set(&mut more, keyed(part, details));
        }
    }
    if plan.wants("cpu") {
        replays.begin("cpu");
        let (kept, details) = machine::cpu_bound(context, plan, replays)?;
        set(&mut interface, json!({ "cpu_bound_kept_pct": kept }));
        set(&mut more, json!({ "cpu_bound": details }));
    }
    if let Some(part) = plan.fast() {
        replays.begin(part);
        let (parts, others) = machine::fast(context, plan, replays)?;
        set(&mut interface, parts);
        set(&mut more, others);
    }
    set(&mut interface, json!({ "stolen": replays.told() }));
    set(&mut more, json!({ "stolen": replays.details() }));
    Ok(with_interface(interface, more))
}

fn keyed(key: &str, value: Value) -> Value {
    Value::Object([(key.to_owned(), value)].into_iter().collect())
}

pub(super) fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

/// The carrier of the load, and where it runs.
#[derive(Debug, Clone)]
pub(super) struct Carrier {
    pub name: &'static str,
    pub ends: Ends,
    pub web: u16,
}

/// From host to host on a path, without a tunnel.
pub(super) fn hosts(world: &TunnelWorld, path: usize, stack: TcpStack) -> Ends {
    Ends {
        client: world.hosts[0].clone(),
        server: world.hosts[1].clone(),
        address: format!("10.9.{path}.2"),
        stack,
    }
}

pub(super) fn carriers(plan: &BifrostPlan, world: &TunnelWorld) -> Vec<Carrier> {
    let all = [
        ("plain", hosts(world, 0, TcpStack::Tcp), WEB),
        ("mptcp", hosts(world, 0, TcpStack::Mptcp), WEB_MPTCP),
        ("causeway", guests(world), WEB),
    ];
    let wanted = all.into_iter().filter(|(name, _, _)| plan.carries(name));
    wanted
        .map(|(name, ends, web)| Carrier { name, ends, web })
        .collect()
}

/// From guest to guest, through a tunnel.
pub(super) fn guests(world: &TunnelWorld) -> Ends {
    Ends {
        client: world.guests[0].clone(),
        server: world.guests[1].clone(),
        address: GUESTS[1].to_owned(),
        stack: TcpStack::Tcp,
    }
}

/// What runs on paths with a rate: tails, throughput kept, flaps.
fn rated(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
) -> Result<(Value, Value)> {
    let shape = TunnelShape {
        paths: plan.paths,
        rate_mbit: Some(plan.mbit),
        offloads: false,
        mtu: 1500,
    };
    let world = TunnelWorld::build(context.sandbox, "rated", shape, &plan.congestion)?;
    let _host_web = Nginx::start(&world.hosts[1], "host", WEB, 1)?;
    let _guest_web = Nginx::start(&world.guests[1], "guest", WEB, 1)?;
    let carriers = carriers(plan, &world);
    let tunnel = match plan.carries("causeway") {
        true => Some(Tunnel::start(&world, &context.binary, &plan.setting)?),
        false => None,
    };
    if let Some(mptcp) = carriers.iter().find(|carrier| carrier.name == "mptcp") {
        world.enable_mptcp()?;
        loads::serve_web(&mptcp.ends, mptcp.web, CLIENTS)?;
    }
    let mut interface = json!({});
    let mut more = json!({});
    if plan.wants("tails") {
        replays.begin("tails");
        let (short, rr, details) = tails::tails(context, plan, replays, &world, &carriers)?;
        merge(&mut interface, json!({ "short": short, "rr": rr }));
        merge(&mut more, json!({ "tails": details }));
    }
    let Some(tunnel) = tunnel else {
        return Ok((interface, more));
    };
    if plan.wants("kept") {
        replays.begin("kept");
        let (parts, details) = kept::kept(context, plan, replays, &world, &tunnel)?;
        merge(&mut interface, parts);
        merge(&mut more, json!({ "kept": details }));
    }
    if plan.wants("flap") {
        replays.begin("flap");
        let flap = flap::flap(context, plan, replays, &world)?;
        merge(&mut interface, json!({ "flap": flap }));
    }
    if plan.wants("more") {
        replays.begin("more");
        let cases = flap::more(context, plan, replays, &world)?;
        merge(&mut more, json!({ "cases": cases }));
    }
    merge(&mut more, json!({ "status": tunnel.ends[0].status()? }));
    Ok((interface, more))
}

pub(super) fn pace(plan: &BifrostPlan, clients: usize) -> Pace {
    Pace {
        rate: plan.rate,
        clients,
        lasts: plan.lasts,
    }
}

pub(super) fn say(context: &Context, what: &str, times: &RequestTimes) {
    context.say(format!(
        "{what:<24} p50 {:8.3} ms  p99 {:8.3} ms  p99.9 {:8.3} ms  {} requests, {} failed, \
         {:.3} ms late at p99, {:.1} % of the CPUs stolen",
        times.p50_ms,
        times.p99_ms,
        times.p999_ms,
        times.requests,
        times.failed,
        times.late_p99_ms,
        times.stolen_pct
    ));
}

/// Names of rounds that differ by nothing else.
pub(super) fn rounds_named(count: usize) -> Vec<String> {
    (1..=count).map(|round| format!("round {round}")).collect()
}
