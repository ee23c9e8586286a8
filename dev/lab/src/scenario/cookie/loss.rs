// SPDX-License-Identifier: Apache-2.0
//! Transfers through a queue that overflows, with and without cookies by turns: the
//! sender must not see a difference in retransmissions and round trips.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::ensure_echoes;
use super::service::Connection;
use super::world::{Cookies, World, counters, members, vips};
use crate::scenario::{Context, Scenario, param};

/// What the sender counts.
const COUNTERS: [&str; 6] = [
    "RetransSegs",
    "TCPTimeouts",
    "TCPSpuriousRTOs",
    "TCPFullUndo",
    "TCPPartialUndo",
    "TCPTSReorder",
];

pub(crate) const COOKIE_LOSS: Scenario = Scenario {
    name: "cookie-loss",
    about: "lossy transfers with cookies and without: retransmissions and round trips",
    params: &[
        param("rounds", "3", "transfers of each kind, by turns"),
        param("megabytes", "20", "bytes of a transfer"),
        param("modes", "none,timestamp", "kinds to compare"),
        param("rate", "25mbit", "rate of the client's link"),
        param("limit", "60000", "bytes of its queue"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let modes: String = context.param("modes")?;
    let cookies = |mode: &str| Cookies {
        mode: mode.to_owned(),
        bits: None,
        measure: false,
    };
    let mut world = World::build(context, 1, &members(0..1), cookies("timestamp"))?;
    world.topology.servers[0]
        .netns
        .sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
    let rate: String = context.param("rate")?;
    let limit: String = context.param("limit")?;
    world.topology.router.netns.qdisc(&format!(
        "replace dev c0 root tbf burst 15k rate {rate} limit {limit}"
    ))?;
    let before = world.counters()?;
    let mut transfers = Vec::new();
    for round in 0..context.param::<u32>("rounds")? {
        for mode in modes.split(',') {
            world.set_cookies(cookies(mode))?;
            let figures = transfer(&world, context.param("megabytes")?)?;
            context.say(format!("round {round}, {mode}: {figures}"));
            transfers.push(json!({ "mode": mode, "round": round, "figures": figures }));
        }
    }
    let kernels = ensure_echoes(&before, &world.counters()?)?;
    Ok(json!({ "transfers": transfers, "kernels": kernels }))
}

/// One download; what the server's kernel thought of it.
fn transfer(world: &World, megabytes: usize) -> Result<Value> {
    let server = &world.topology.servers[0].netns;
    let before = counters(server)?;
    let mut connection = Connection::open(world.client(), vips()[0])?;
    let bytes = megabytes * 1_000_000;
    let start = Instant::now();
    connection.read(&format!("get {bytes}"), bytes)?;
    let seconds = start.elapsed().as_secs_f64();
    let said = server
        .command("ss")
        .args(["-Htin", "state", "established", "sport", "=", ":80"])
        .output()?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let rtt = said
        .split(' ')
        .find_map(|word| word.strip_prefix("rtt:"))
        .and_then(|rtt| rtt.split('/').next())
        .and_then(|rtt| rtt.parse::<f64>().ok());
    let after = counters(server)?;
    let mut figures = json!({
        "mbit_s": bytes as f64 * 8e-6 / seconds,
        "srtt_ms": rtt,
    });
    for name in COUNTERS {
        figures[name] = json!(after.of(name) - before.of(name));
    }
    drop(connection);
    // The next transfer's socket must be the only one.
    std::thread::sleep(Duration::from_millis(300));
    Ok(figures)
}
