// SPDX-License-Identifier: Apache-2.0
//! What the balancer costs per packet on live traffic, by the kernel's own
//! statistics, without measurement and with that of 1 in 1, 8 and 64 connections. The benchmark beside it
//! (`make bench-dataplane`) repeats single packets; here they come as they come,
//! and the cache holds what else the machine does.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use causeway_bench::run_time::RunTimes;
use serde_json::{Value, json};

use super::bench::Bench;
use super::{Context, Scenario, param};
use crate::api;
use crate::balancer::{BalancerSettings, ServerForwarding};
use crate::clock::until;
use crate::load::{LoadConfig, report};

/// The link of the balancer's program, below its pins.
const LINK: &str = "link_lb";
/// Packets of neighbours and of closing connections may come between two readings.
const UNEVEN: u64 = 32;
/// Within this time connections have closed on a busy machine, too.
const QUIET_WITHIN: Duration = Duration::from_secs(20);

pub(super) const PACKET_COST: Scenario = Scenario {
    name: "packet-cost",
    about: "what the balancer costs per packet on live traffic, without measurement and with that of 1 in 1, 8, 64",
    params: &[
        param("seconds", "5", "length of each of the four runs"),
        param("slots", "40", "users of the load generator"),
        param("interval_ms", "400", "time between the pages of a user"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let bench = Bench::build(context.sandbox, 2, 2)?;
    let _statistics = RunTimes::enable()?;
    let run = |one_in| run_once(context, &bench, one_in);
    Ok(json!({
        "measured": run(Some(1))?, "measured_8th": run(Some(8))?, "measured_64th": run(Some(64))?,
        "unmeasured": run(None)?, "unit": "ns per packet",
    }))
}

/// 1 in this many connections is measured, or none.
fn run_once(context: &Context, bench: &Bench, one_in: Option<u32>) -> Result<Value> {
    let mut vip = bench.vip4(0, "maglev", ServerForwarding::Ipip);
    if let Some(one_in) = one_in {
        vip.keys.push(format!("sampling = \"1/{one_in}\""));
    }
    let target = (vip.address, vip.port).into();
    let settings = BalancerSettings {
        vips: vec![vip],
        measure: Some(one_in.is_some()),
        ..BalancerSettings::default()
    };
    let balancer = bench.balancer(&context.binary, &settings)?;
    let link = balancer.pin_dir().join(LINK);
    let ran = || RunTimes::attached(&link)?.context("the balancer's program is not attached");
    let before = ran()?;
    let counted = api::packets(&api::stats(&balancer.socket())?.verdicts);
    let load = LoadConfig {
        duration_ms: context.param::<u64>("seconds")? * 1000,
        slots: context.param("slots")?,
        page_interval_ms: context.param("interval_ms")?,
        ..LoadConfig::new(target, context.seed)
    };
    let log = bench.load(&load)?.finish()?;
    // The kernel's count against the verdicts': no packet goes uncounted, none counts twice.
    let mut seen = (0, 0);
    let even = until(QUIET_WITHIN, || {
        let after = ran()?;
        let stats = api::stats(&balancer.socket())?;
        let packets = after.runs - before.runs;
        let counted = api::packets(&stats.verdicts) - counted;
        seen = (packets, counted);
        Ok((packets.abs_diff(counted) <= UNEVEN).then_some(after))
    })?;
    let (packets, counted) = seen;
    let after = even.with_context(|| {
        format!("the program ran {packets} times, and its verdicts say {counted}")
    })?;
    let samples = api::history(&balancer.socket())?.series.into_iter();
    let samples: f64 = samples.flat_map(|s| s.epochs).map(|e| e.samples).sum();
    balancer.end()?;
    let clients = report::summary(&log, log.start_ns, log.end_ns);
    ensure!(
        packets > clients.requests,
        "{packets} packets cannot carry {} requests",
        clients.requests
    );
    let what = match one_in {
        Some(one_in) => format!("measuring 1 in {one_in} connections"),
        None => "without measurement".to_owned(),
    };
    // Of a few connections in 64 it may be none.
    ensure!(
        match one_in {
            Some(1) => samples > 0.0,
            Some(_) => true,
            None => samples == 0.0,
        },
        "{samples} samples of latency {what}"
    );
    let ns = (after.run_time_ns - before.run_time_ns) as f64 / packets as f64;
    context.say(format!(
        "{what}: {ns:.0} ns per packet over {packets} packets"
    ));
    Ok(json!({
        "ns_per_packet": ns, "packets": packets, "counted": counted, "samples": samples,
        "clients": clients,
    }))
}
