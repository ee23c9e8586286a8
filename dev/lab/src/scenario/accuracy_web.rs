// SPDX-License-Identifier: Apache-2.0
//! Causeway's estimate per server and epoch against what the clients measured,
//! on a web-like load without incidents.

use anyhow::Result;
use serde_json::{Value, json};

use super::bench::Bench;
use super::{Context, Scenario, param};
use crate::balancer::{BalancerSettings, ServerForwarding};
use crate::cpu::CpuMeter;
use crate::load::{LoadConfig, report};
use crate::{api, series};

pub(super) const ACCURACY_WEB: Scenario = Scenario {
    name: "accuracy-web",
    about: "Causeway's estimate per server and epoch against the clients' own measurement",
    params: &[
        param("seconds", "10", "length of the load"),
        param("epoch_ms", "500", "interval of estimates and truths"),
        param("slots", "20", "users of the load generator"),
        param("outstanding", "4", "requests per connection"),
        param("interval_ms", "500", "time between the pages of a user"),
        param("max_age_ms", "2000", "longest life of a connection"),
        param("service_us", "6000", "median service time"),
        param("service_min_us", "5000", "least service time"),
        param(
            "sigma",
            "0.25",
            "spread of service times, sigma of the logarithm",
        ),
        param("servers", "4", "nginx servers"),
        param(
            "min_samples",
            "10",
            "responses that an epoch's truth must rest on",
        ),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let bench = Bench::build(context.sandbox, 2, context.param("servers")?)?;
    let vip = bench.vip4(0, "maglev", ServerForwarding::Ipip);
    let target = (vip.address, vip.port).into();
    let settings = BalancerSettings {
        vips: vec![vip],
        ..BalancerSettings::default()
    };
    let balancer = bench.balancer(&context.binary, &settings)?;
    let mut load = LoadConfig {
        duration_ms: context.param::<u64>("seconds")? * 1000,
        slots: context.param("slots")?,
        outstanding: context.param("outstanding")?,
        page_interval_ms: context.param("interval_ms")?,
        max_age_ms: context.param("max_age_ms")?,
        ..LoadConfig::new(target, context.seed)
    };
    load.page.service_median_us = context.param("service_us")?;
    load.page.service_min_us = context.param("service_min_us")?;
    load.page.service_sigma = context.param("sigma")?;
    let cpu = CpuMeter::start()?;
    let running = bench.load(&load)?;
    let log = running.finish()?;
    let history = api::history(&balancer.socket())?;
    let cpu_share = cpu.share()?;
    balancer.end()?;
    let epoch_ns = context.param::<u64>("epoch_ms")? * 1_000_000;
    let tracks = series::tracks(&log, &history, &bench.real_names4(), epoch_ns);
    let error = series::error(&tracks, context.param("min_samples")?);
    context.say(format!("median error {:.2} %", error.median_pct));
    Ok(json!({
        "error": error, "clients": report::summary(&log, log.start_ns, log.end_ns),
        "machine_cpu_share": cpu_share, "reals": tracks, "load": load,
    }))
}
