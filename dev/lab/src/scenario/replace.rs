// SPDX-License-Identifier: Apache-2.0
//! Servers come, drain and go by a new configuration file under load: no
//! connection breaks, new connections follow, old ones stay.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::bench::Bench;
use super::{Context, Scenario, param};
use crate::balancer::{BalancerSettings, ServerForwarding, VipEntry};
use crate::load::log::Log;
use crate::load::{LoadConfig, report};
use crate::{api, clock};

pub(super) const REPLACE: Scenario = Scenario {
    name: "replace",
    about: "a server is added, drained and removed by configuration under load",
    params: &[
        param(
            "step_ms",
            "2500",
            "time between two changes; most connections live less",
        ),
        param("slots", "40", "users of the load generator"),
        param("scheduler", "maglev", "scheduler of the VIP"),
        param("forwarding", "ipip", "ipip or l2"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let step = Duration::from_millis(context.param("step_ms")?);
    let forwarding = context.forwarding([ServerForwarding::Ipip, ServerForwarding::L2])?;
    let bench = Bench::build(context.sandbox, 2, 4)?;
    let all = bench.vip4(0, &context.param::<String>("scheduler")?, forwarding);
    let config = LoadConfig {
        duration_ms: 3_600_000,
        slots: context.param("slots")?,
        max_age_ms: (step * 2 / 3).as_millis() as u64,
        ..LoadConfig::new((all.address, all.port).into(), context.seed)
    };
    let balancer = bench.balancer(&context.binary, &settings(three(&all)))?;
    let mut running = bench.load(&config)?;
    // Those of the others that are drained have ended before the server is removed; these see that
    // it goes on until then.
    let mut long = bench.load(&LoadConfig {
        slots: 30,
        max_age_ms: config.duration_ms,
        ..config.clone()
    })?;
    sleep(step);
    context.say("adding the fourth server");
    // It is in force from some time between these two.
    let adding_ns = clock::monotonic_ns();
    let added_ns = balancer.apply(&settings(all.clone()))?;
    sleep(step);
    context.say("draining the first server");
    let drained_ns = balancer.apply(&settings(without_first(&all, true)))?;
    sleep(step);
    long.stop();
    let long = long.finish()?;
    context.say("removing the first server");
    let removed_ns = balancer.apply(&settings(without_first(&all, false)))?;
    sleep(step);
    running.stop();
    let log = running.finish()?;
    let stats = api::stats(&balancer.socket())?;
    balancer.end()?;
    let clients = report::summary(&log, log.start_ns, log.end_ns);
    ensure!(
        clients.broken_connections == 0 && long.faults().is_empty(),
        "broken: {:?} {:?}",
        clients.faults,
        long.faults()
    );
    let names = bench.real_names4();
    let answers = log.responses.iter();
    let early = answers
        .filter(|r| log.reals[r.real as usize] == names[3] && r.last_ns < adding_ns)
        .count();
    ensure!(
        early == 0,
        "{early} answers of a server that was not there yet"
    );
    let fourth = opened_since(&log, &names[3], added_ns);
    ensure!(fourth > 0, "no connection came to the new server");
    let first = opened_since(&log, &names[0], drained_ns);
    ensure!(
        first == 0,
        "{first} new connections came to the drained server"
    );
    let kept = long.responses.iter();
    let kept = kept
        .filter(|r| long.reals[r.real as usize] == names[0] && r.send_ns > drained_ns)
        .count();
    ensure!(kept > 0, "the drained server's connections did not go on");
    Ok(json!({
        "clients": clients, "verdicts": api::occurred(&stats.verdicts),
        "connections_to_added": fourth, "requests_kept_on_drained": kept,
        "added_at_s": since(&log, added_ns), "drained_at_s": since(&log, drained_ns),
        "removed_at_s": since(&log, removed_ns),
    }))
}

fn settings(vip: VipEntry) -> BalancerSettings {
    BalancerSettings {
        vips: vec![vip],
        ..BalancerSettings::default()
    }
}

fn three(all: &VipEntry) -> VipEntry {
    VipEntry {
        reals: all.reals[..3].to_vec(),
        ..all.clone()
    }
}

/// All servers with the first one draining or gone.
fn without_first(all: &VipEntry, still_there: bool) -> VipEntry {
    let mut vip = all.clone();
    vip.reals[0].drain = true;
    if !still_there {
        vip.reals.remove(0);
    }
    vip
}

/// Connections that opened since and were answered by `real`.
fn opened_since(log: &Log, real: &str, from_ns: u64) -> usize {
    log.connections
        .iter()
        .filter(|c| c.open_ns >= from_ns)
        .filter(|c| c.real.is_some_and(|r| log.reals[r as usize] == real))
        .count()
}

fn since(log: &Log, ns: u64) -> f64 {
    ns.saturating_sub(log.start_ns) as f64 / 1e9
}
