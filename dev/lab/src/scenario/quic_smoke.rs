// SPDX-License-Identifier: Apache-2.0
//! HTTP/3 through the balancer: both IP versions, each stack, no faults, and the
//! clients' truth beside the service time that was asked for.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::bench::Bench;
use super::{Context, Scenario, param};
use crate::api;
use crate::balancer::{BalancerSettings, ServerForwarding, VipEntry};
use crate::load::{LoadConfig, report};
use crate::quic::client::QuicClientOptions;
use crate::quic::{self, Order, Stack};

pub(super) const QUIC_SMOKE: Scenario = Scenario {
    name: "quic-smoke",
    about: "an HTTP/3 load through the balancer, IPv4 and IPv6, between all QUIC stacks",
    params: &[
        param("seconds", "3", "length of each load"),
        param("slots", "12", "users of the load generator"),
        param("outstanding", "4", "requests per connection, side by side"),
        param("servers", "3", "QUIC servers"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let bench = Bench::bare(context.sandbox, 2, context.param("servers")?)?;
    let vips = vec![
        bench.quic_vip4(0, "maglev", ServerForwarding::Ipip),
        bench.quic_vip6(0, "maglev", ServerForwarding::L2),
    ];
    let settings = BalancerSettings {
        vips: vips.clone(),
        ..BalancerSettings::default()
    };
    let balancer = bench.balancer(&context.binary, &settings)?;
    let mut cases = Vec::new();
    for server in Stack::ALL {
        let _servers = bench.quic_servers(server, Order::Par)?;
        for client in Stack::ALL {
            // Stacks with themselves over IPv4, with each other over IPv6.
            let vip = &vips[usize::from(client != server)];
            cases.push(one(context, &bench, (client, server), vip)?);
        }
    }
    let stats = api::stats(&balancer.socket())?;
    balancer.end()?;
    Ok(json!({ "loads": cases, "verdicts": api::occurred(&stats.verdicts) }))
}

fn one(
    context: &Context,
    bench: &Bench,
    (client, server): (Stack, Stack),
    vip: &VipEntry,
) -> Result<Value> {
    let config = LoadConfig {
        duration_ms: context.param::<u64>("seconds")? * 1000,
        slots: context.param("slots")?,
        outstanding: context.param("outstanding")?,
        ..LoadConfig::new((vip.address, vip.port).into(), context.seed)
    };
    let namespaces = bench.client_namespaces();
    let log = quic::load(client, &namespaces, &config, &QuicClientOptions::default())?.finish()?;
    let clients = report::summary(&log, log.start_ns, log.end_ns);
    let name = format!("{} to {} at {}", client.name(), server.name(), vip.address);
    context.say(format!(
        "{name}: {} requests, p50 {:.2} ms",
        clients.requests, clients.p50_ms
    ));
    ensure!(
        clients.broken_connections == 0,
        "{name}: broken connections: {:?}",
        clients.faults
    );
    let least = f64::from(config.page.service_min_us) / 1000.0;
    ensure!(
        clients.requests > 0 && clients.p50_ms > least,
        "{name}: {clients:?}"
    );
    ensure!(
        log.reals.len() == vip.reals.len(),
        "{name}: only {:?} answered",
        log.reals
    );
    Ok(json!({
        "client": client.name(), "server": server.name(), "vip": vip.address,
        "clients": clients,
    }))
}
