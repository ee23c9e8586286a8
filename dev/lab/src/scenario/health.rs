// SPDX-License-Identifier: Apache-2.0
//! Servers fail in the ways that a probe of the server's own address would not see; each
//! leaves the ring with its reason, and comes back.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_dataplane::Decapsulator;
use serde_json::{Value, json};

use super::bench::{self, Bench, PORT};
use super::{Context, Scenario, param};
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding};
use crate::load::{LoadConfig, report};
use crate::nginx::Nginx;
use crate::topology::{DEVICE, vip4};
use crate::{api, link};

const SERVERS: usize = 4;
const NEEDED: usize = 2;

pub(super) const HEALTH: Scenario = Scenario {
    name: "health",
    about: "servers lose their VIP, their decapsulation, their service, and get it back",
    params: &[
        param("interval_ms", "200", "time between two probes of a server"),
        param("slots", "20", "users of the load generator"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let interval_ms: u64 = context.param("interval_ms")?;
    let mut bench = Bench::build(context.sandbox, 2, SERVERS)?;
    // What the balancer itself sends meets an XDP program at the far end of a veth,
    // which loses checksums that are left to the device.
    let balancer_netns = &bench.topology.balancer.netns;
    balancer_netns.run(|| Ok(link::set_tx_checksum(DEVICE, false)?))?;
    let mut vip = bench.vip4(0, "maglev", ServerForwarding::Ipip);
    vip.keys = vec![
        format!("min_healthy = {NEEDED}"),
        format!(
            "health = {{ probe = \"http\", path = \"/who\", interval = \"{interval_ms}ms\", \
             timeout = \"{interval_ms}ms\", rise = 2, fall = 2 }}"
        ),
    ];
    let target = (vip.address, vip.port).into();
    // Another service of the same servers, of which the way alone is asked.
    let mut echo = bench.vip4(0, "maglev", ServerForwarding::Ipip);
    echo.port = PORT + 1;
    echo.keys = vec![format!(
        "health = {{ probe = \"icmp\", interval = \"{interval_ms}ms\", \
         timeout = \"{interval_ms}ms\", rise = 2, fall = 2 }}"
    )];
    let settings = BalancerSettings {
        vips: vec![vip, echo],
        ..BalancerSettings::default()
    };
    let balancer = bench.balancer(&context.binary, &settings)?;
    let watch = Watch {
        context,
        balancer: &balancer,
        timeout: Duration::from_millis(interval_ms * 20 + 60_000),
    };
    watch.until("all are up", ["up"; SERVERS], true)?;

    let address = format!("addr del {}/32 dev lo\n", vip4(0));
    bench.topology.servers[0].netns.ip(&address)?;
    watch.until(
        "the first has lost its VIP",
        ["down", "up", "up", "up"],
        true,
    )?;
    let server = &bench.topology.servers[1];
    Decapsulator::detach(&bench::pin_dir(server))?;
    watch.until(
        "the second decapsulates no more",
        ["down", "down", "up", "up"],
        true,
    )?;
    drop(bench.servers.remove(2));
    let reasons = watch.until(
        "the third serves no more",
        ["down", "down", "down", "up"],
        false,
    )?;

    watch.until_of(
        1,
        "an echo comes back from those that are on the way",
        ["down", "down", "up", "up"],
        true,
    )?;

    // A client that connects now gets the server that is left.
    let load = LoadConfig {
        duration_ms: 2000,
        slots: context.param("slots")?,
        ..LoadConfig::new(target, context.seed)
    };
    let log = bench.load(&load)?.finish()?;
    let clients = report::summary(&log, log.start_ns, log.end_ns);
    ensure!(
        clients.broken_connections == 0,
        "broken: {:?}",
        clients.faults
    );
    ensure!(
        log.reals == [bench.real_names4()[3].clone()],
        "served by {:?}",
        log.reals
    );

    bench.topology.servers[0]
        .netns
        .ip(&address.replace("del", "add"))?;
    bench::decapsulate(&bench.topology.servers[1])?;
    let third = &bench.topology.servers[2];
    let _nginx = Nginx::start(&third.netns, &third.ipv4.to_string(), PORT, 1)?;
    watch.until("all are back", ["up"; SERVERS], true)?;
    let stats = api::stats(&balancer.socket())?;
    balancer.end()?;
    Ok(json!({
        "reasons": reasons, "clients": clients, "verdicts": api::occurred(&stats.verdicts),
    }))
}

struct Watch<'a> {
    context: &'a Context,
    balancer: &'a Balancer,
    timeout: Duration,
}

impl Watch<'_> {
    /// Waits until the reals' health and whether the VIP has what it needs are these;
    /// gives the reasons.
    fn until(&self, what: &str, states: [&str; SERVERS], ready: bool) -> Result<Vec<String>> {
        self.until_of(0, what, states, ready)
    }

    /// The same of a VIP by its place.
    fn until_of(
        &self,
        vip: usize,
        what: &str,
        states: [&str; SERVERS],
        ready: bool,
    ) -> Result<Vec<String>> {
        let start = Instant::now();
        let mut seen = String::new();
        while start.elapsed() < self.timeout {
            let stats = api::stats(&self.balancer.socket())?;
            let vip = stats.vips.get(vip).context("no VIP")?;
            let health: Vec<_> = vip.reals.iter().filter_map(|r| r.health.clone()).collect();
            let shown: Vec<&str> = health.iter().map(|h| h.state.as_str()).collect();
            if shown == states && vip.ready == ready {
                let seconds = start.elapsed().as_secs_f64();
                self.context
                    .say(format!("{what}: seen after {seconds:.1} s"));
                return Ok(health.into_iter().map(|h| h.reason).collect());
            }
            seen = format!("{health:?}, ready: {}", vip.ready);
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!(
            "{what}, but the balancer shows {seen}: {}",
            self.balancer.messages()
        )
    }
}
