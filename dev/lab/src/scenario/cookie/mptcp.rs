// SPDX-License-Identifier: Apache-2.0
//! Connections of several subflows (MPTCP, RFC 8684) behind a balancer that knows none
//! of them: their joins have to reach the server that has the connection.
//!
//! A join is a SYN of another tuple, and the token in it says nothing to the balancer: it
//! is a hash of a key that the server's kernel drew. So servers forbid joins to the
//! VIP's own port (the C flag) and advertise a port of the VIP that is theirs alone: a
//! VIP with one real. Without that, joins go by the scheduler, and fail.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Counters;
use super::service::{Connection, join_port};
use super::world::{Cookies, World, members, vips};
use crate::clock::until;
use crate::scenario::{Context, Scenario, param};
use crate::topology::DEVICE;

const SERVERS: usize = 4;
/// A second address of the client, to join from.
const OTHER_ADDRESS: &str = "10.10.0.77";
const JOIN_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const MPTCP: Scenario = Scenario {
    name: "mptcp",
    about: "subflows join the server of their connection, by ports that servers advertise",
    params: &[param("connections", "12", "connections of each part")],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let count: usize = context.param("connections")?;
    let cookies = Cookies {
        mode: "timestamp".to_owned(),
        bits: None,
        measure: false,
    };
    let mut world = World::build_multipath(context, SERVERS, &members(0..SERVERS), cookies)?;
    let before = world.counters()?;
    let advertised = advertised(&mut world, count)?;
    context.say(format!("ports advertised: {advertised}"));
    let scheduled = scheduled(&world, count)?;
    context.say(format!("joins to the VIP's own port: {scheduled}"));
    let kernels = super::ensure_unnoticed(&before, &world.counters()?)?;
    Ok(json!({ "advertised": advertised, "scheduled": scheduled, "kernels": kernels }))
}

/// Each server advertises its port; then the pool changes and the balancer is replaced.
fn advertised(world: &mut World, count: usize) -> Result<Value> {
    let before = world.counters()?;
    world
        .client()
        .ip("mptcp limits set subflows 4 add_addr_accepted 4")?;
    for (server, node) in world.topology.servers.iter().enumerate() {
        let port = join_port(server);
        node.netns
            .sysctl("net/mptcp/allow_join_initial_addr_port", "0")?;
        node.netns.ip("mptcp limits set subflows 4")?;
        let vip = vips()[0];
        node.netns
            .ip(&format!("mptcp endpoint add {vip} port {port} signal"))?;
    }
    let mut connections = open(world, count)?;
    wait_for_joins(world, &before, count as u64)?;
    let (joined, lost) = joins(&before, &world.counters()?);
    ensure!(
        lost == 0,
        "{lost} joins met a server without their connection"
    );
    for server in 0..SERVERS {
        let name = format!("server{server}");
        let its = connections.iter().filter(|c| c.server == name).count();
        let subflows = subflows_to(world, join_port(server))?;
        ensure!(
            subflows == its,
            "{name} has {its} connections, and {subflows} subflows to its port"
        );
    }
    let mut pool = members(0..SERVERS);
    pool[0].drain = true;
    world.apply(&pool)?;
    let drained = broken(&mut connections);
    world.swap_balancer()?;
    let swapped = broken(&mut connections);
    ensure!(
        drained + swapped == 0,
        "{drained} of {count} broken by a drain, {swapped} by an empty balancer"
    );
    world.apply(&members(0..SERVERS))?;
    for node in &world.topology.servers {
        node.netns.ip("mptcp endpoint flush")?;
        node.netns
            .sysctl("net/mptcp/allow_join_initial_addr_port", "1")?;
    }
    Ok(json!({ "connections": count, "joined": joined, "lost": lost }))
}

/// The client joins from its second address to where it connected first.
fn scheduled(world: &World, count: usize) -> Result<Value> {
    let client = world.client();
    client.ip(&format!("addr add {OTHER_ADDRESS}/24 dev {DEVICE}"))?;
    client.ip(&format!(
        "mptcp endpoint add {OTHER_ADDRESS} dev {DEVICE} subflow"
    ))?;
    let before = world.counters()?;
    let mut connections = open(world, count)?;
    let all = until(JOIN_TIMEOUT, || {
        let (joined, lost) = joins(&before, &world.counters()?);
        Ok((joined + lost >= count as u64).then_some((joined, lost)))
    })?;
    let (joined, lost) = all.with_context(|| format!("not all of {count} joined or were lost"))?;
    ensure!(lost > 0, "all joins met their server by chance");
    let broken = broken(&mut connections);
    ensure!(
        broken == 0,
        "{broken} of {count} broken: the first subflow is there"
    );
    client.ip("mptcp endpoint flush")?;
    Ok(json!({ "connections": count, "joined": joined, "lost": lost, "broken": broken }))
}

fn open(world: &World, count: usize) -> Result<Vec<Connection>> {
    let open = |_| Connection::open_multipath(world.client(), vips()[0]);
    (0..count).map(open).collect()
}

fn broken(connections: &mut [Connection]) -> usize {
    connections
        .iter_mut()
        .filter_map(|c| (!c.is_whole()).then_some(()))
        .count()
}

/// Joins that servers accepted, and those of connections that they do not have.
fn joins(before: &Counters, now: &Counters) -> (u64, u64) {
    let rise = |name: &str| now.total(name) - before.total(name);
    (rise("MPJoinAckRx"), rise("MPJoinNoTokenFound"))
}

fn wait_for_joins(world: &World, before: &Counters, count: u64) -> Result<()> {
    let done = until(JOIN_TIMEOUT, || {
        let (joined, _) = joins(before, &world.counters()?);
        Ok((joined >= count).then_some(()))
    })?;
    let (joined, lost) = joins(before, &world.counters()?);
    done.with_context(|| format!("{joined} of {count} subflows joined, {lost} were lost"))
}

/// The client's open subflows to this port.
fn subflows_to(world: &World, port: u16) -> Result<usize> {
    let mut ss = world.client().command("ss");
    let target = format!(":{port}");
    let output = ss
        .args(["-Htn", "state", "established", "dport", "=", &target])
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().count())
}
