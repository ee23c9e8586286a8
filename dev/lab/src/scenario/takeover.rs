// SPDX-License-Identifier: Apache-2.0
//! `causeway lb` is killed with SIGKILL and started again, over and over, under
//! load: no connection breaks and no counter loses anything.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::bench::Bench;
use super::{Context, Scenario, param};
use crate::api;
use crate::balancer::{BalancerSettings, ServerForwarding};
use crate::load::{LoadConfig, report};

pub(super) const TAKEOVER: Scenario = Scenario {
    name: "takeover",
    about: "causeway lb killed by SIGKILL and started again under load, many times",
    params: &[
        param("kills", "10", "how often"),
        param("up_ms", "500", "time between a start and the next SIGKILL"),
        param(
            "down_ms",
            "200",
            "time between a SIGKILL and the next start",
        ),
        param("slots", "20", "users of the load generator"),
        param("scheduler", "latency", "scheduler of the VIP"),
    ],
    run,
    table: |_| None,
};

/// The load goes on until the last balancer runs, however slow the machine is.
const LONGEST_MS: u64 = 3_600_000;

fn run(context: &Context) -> Result<Value> {
    let kills: u32 = context.param("kills")?;
    let up = Duration::from_millis(context.param("up_ms")?);
    let down = Duration::from_millis(context.param("down_ms")?);
    let bench = Bench::build(context.sandbox, 2, 3)?;
    let vip = bench.vip4(
        0,
        &context.param::<String>("scheduler")?,
        ServerForwarding::Ipip,
    );
    let target = (vip.address, vip.port).into();
    let settings = BalancerSettings {
        vips: vec![vip],
        ..BalancerSettings::default()
    };
    let mut balancer = bench.balancer(&context.binary, &settings)?;
    let config = LoadConfig {
        duration_ms: LONGEST_MS,
        slots: context.param("slots")?,
        max_age_ms: 4_000,
        ..LoadConfig::new(target, context.seed)
    };
    let mut running = bench.load(&config)?;
    let mut before = api::stats(&balancer.socket())?;
    for round in 1..=kills {
        sleep(up);
        let now = api::stats(&balancer.socket())?;
        api::ensure_continues(&now, &before)?;
        before = now;
        balancer.kill()?;
        sleep(down);
        balancer.restart()?;
        let after = api::stats(&balancer.socket())?;
        api::ensure_continues(&after, &before)?;
        before = after;
        context.say(format!(
            "{round} of {kills} kills, {} packets",
            api::packets(&before.verdicts)
        ));
    }
    running.stop();
    let log = running.finish()?;
    let clients = report::summary(&log, log.start_ns, log.end_ns);
    let end = api::stats(&balancer.socket())?;
    api::ensure_continues(&end, &before)?;
    let opened = api::verdict(&end.verdicts, "opened");
    let took_over = balancer.messages().matches("took over").count();
    balancer.end()?;
    ensure!(
        clients.broken_connections == 0,
        "broken: {:?}",
        clients.faults
    );
    ensure!(
        opened == clients.connections,
        "{} connections, but {opened} counted as opened",
        clients.connections
    );
    Ok(json!({
        "clients": clients, "verdicts": api::occurred(&end.verdicts),
        "took_over_messages": took_over,
    }))
}
