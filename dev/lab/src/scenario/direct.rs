// SPDX-License-Identifier: Apache-2.0
//! The load generator and wrk against one nginx without a balancer: what the
//! lab itself costs and how exact it is.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Context, Scenario, param};
use crate::cpu::CpuMeter;
use crate::load::{self, LoadConfig, report, wrk};
use crate::nginx::Nginx;
use crate::topology::{Shape, Topology};

pub(super) const DIRECT: Scenario = Scenario {
    name: "direct",
    about: "the load generator and wrk against one nginx, without a balancer",
    params: &[
        param("seconds", "5", "length of each of the two runs"),
        param("slots", "20", "users of the load generator"),
        param("outstanding", "4", "requests per connection"),
        param("interval_ms", "500", "time between the pages of a user"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let topology = Topology::build(
        context.sandbox,
        Shape {
            clients: 2,
            servers: 1,
        },
    )?;
    let server = &topology.servers[0];
    let _nginx = Nginx::start(&server.netns, &server.ipv4.to_string(), 80, 1)?;
    let seconds: u32 = context.param("seconds")?;
    let config = LoadConfig {
        duration_ms: u64::from(seconds) * 1000,
        slots: context.param("slots")?,
        outstanding: context.param("outstanding")?,
        page_interval_ms: context.param("interval_ms")?,
        ..LoadConfig::new((server.ipv4, 80).into(), context.seed)
    };
    context.say(format!("load generator, {seconds} s"));
    let clients: Vec<_> = topology.clients.iter().map(|c| c.netns.clone()).collect();
    let cpu = CpuMeter::start()?;
    let log = load::start(&clients, &config)?.finish()?;
    let cpu_share = cpu.share()?;
    let url = format!("http://{}/r/3072/6000", config.target);
    context.say(format!("wrk, {seconds} s"));
    let wrk = wrk::run(&clients[0], &url, 16, seconds)?;
    Ok(json!({
        "load": config,
        "clients": report::summary(&log, log.start_ns, log.end_ns),
        "machine_cpu_share": cpu_share,
        "wrk": wrk,
    }))
}
