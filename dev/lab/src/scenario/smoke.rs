// SPDX-License-Identifier: Apache-2.0
//! curl through the balancer: both forwardings, both IP versions, large
//! responses, large uploads, and uploads that need a "packet too big" answer.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::bench::Bench;
use super::{Context, Scenario, param};
use crate::api;
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding, VipEntry};
use crate::netns::Netns;
use crate::topology::CLIENT_MTU;

pub(super) const SMOKE: Scenario = Scenario {
    name: "smoke",
    about: "curl through ipip and l2, IPv4 and IPv6, with large uploads and responses",
    params: &[
        param("servers", "3", "nginx servers"),
        param(
            "connections",
            "48",
            "connections per VIP to see that all servers answer",
        ),
        param(
            "bytes",
            "1000000",
            "size of large uploads and responses, at most 1 MiB",
        ),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let bench = Bench::build(context.sandbox, 1, context.param("servers")?)?;
    let vips = vec![
        bench.vip4(0, "maglev", ServerForwarding::Ipip),
        bench.vip4(1, "maglev", ServerForwarding::L2),
        bench.vip6(0, "maglev", ServerForwarding::Ipip),
        bench.vip6(1, "hash", ServerForwarding::L2),
    ];
    let settings = BalancerSettings {
        vips,
        ..BalancerSettings::default()
    };
    let agents = bench.agents(&context.binary)?;
    let balancer = bench.balancer(&context.binary, &settings)?;
    let mut cases = Vec::new();
    for vip in &settings.vips {
        cases.push(try_vip(context, &bench, vip)?);
    }
    for (agent, server) in agents.iter().zip(bench.real_names4()) {
        let packets = agent.verdict("decapsulated")?;
        ensure!(
            packets > 0,
            "the agent on {server} has decapsulated nothing"
        );
    }
    // Away, they must not be missed.
    drop(agents);
    balancer.end()?;
    let too_big = upload_beyond_mtu(context, &bench, settings)?;
    Ok(json!({ "vips": cases, "too_big_answered": too_big }))
}

fn try_vip(context: &Context, bench: &Bench, vip: &VipEntry) -> Result<Value> {
    let client = &bench.topology.clients[0].netns;
    let name = format!("{:?} {}", vip.forwarding, vip.address);
    let connections: usize = context.param("connections")?;
    let bytes: usize = context.param("bytes")?;
    let mut servers = BTreeSet::new();
    for _ in 0..connections {
        let who = curl(client, &[&url(vip, "/who")]).with_context(|| name.clone())?;
        servers.insert(String::from_utf8_lossy(&who).trim().to_owned());
    }
    ensure!(
        servers.len() == vip.reals.len(),
        "{name}: {connections} connections reached only {servers:?}"
    );
    let body = curl(client, &[&url(vip, &format!("/r/{bytes}/0"))])?;
    ensure!(
        body.len() == bytes,
        "{name}: {} of {bytes} bytes came",
        body.len()
    );
    upload(client, vip, bytes).with_context(|| name.clone())?;
    context.say(format!(
        "{name}: {} servers, {bytes} bytes both ways",
        servers.len()
    ));
    Ok(json!({
        "address": vip.address, "forwarding": vip.forwarding.word(),
        "servers": servers, "response_bytes": bytes, "upload_bytes": bytes,
    }))
}

/// With no more room behind the balancer than in front of it, a full packet does
/// not fit into an outer header: the balancer must say so, and the client's TCP
/// must go on with smaller ones.
fn upload_beyond_mtu(
    context: &Context,
    bench: &Bench,
    mut settings: BalancerSettings,
) -> Result<u64> {
    settings.mtu = Some(CLIENT_MTU);
    settings
        .vips
        .retain(|vip| vip.forwarding == ServerForwarding::Ipip);
    let balancer: Balancer = bench.balancer(&context.binary, &settings)?;
    let bytes = context.param("bytes")?;
    for vip in &settings.vips {
        upload(&bench.topology.clients[0].netns, vip, bytes)
            .with_context(|| format!("upload beyond the MTU to {}", vip.address))?;
    }
    let stats = api::stats(&balancer.socket())?;
    let answered = api::verdict(&stats.verdicts, "too_big_answered");
    let verdicts = api::occurred(&stats.verdicts);
    ensure!(
        answered >= settings.vips.len() as u64,
        "no client was told the MTU: {verdicts:?}"
    );
    context.say(format!("{answered} packets too big were answered"));
    Ok(answered)
}

fn upload(client: &Netns, vip: &VipEntry, bytes: usize) -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), vec![b'c'; bytes])?;
    let data = format!("@{}", file.path().display());
    let answer = curl(
        client,
        &["--data-binary", &data, "-H", "Expect:", &url(vip, "/up")],
    )?;
    let received = String::from_utf8_lossy(&answer).trim().to_owned();
    ensure!(
        received == bytes.to_string(),
        "{received} of {bytes} bytes arrived"
    );
    Ok(())
}

fn url(vip: &VipEntry, path: &str) -> String {
    format!(
        "http://{}{path}",
        std::net::SocketAddr::new(vip.address, vip.port)
    )
}

fn curl(client: &Netns, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = client
        .command("curl")
        .args(["-sSf", "--noproxy", "*", "--max-time", "10"])
        .args(arguments)
        .output()
        .context("cannot run curl")?;
    ensure!(
        output.status.success(),
        "curl {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}
