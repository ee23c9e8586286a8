// SPDX-License-Identifier: Apache-2.0
//! Connections stay on their server, whatever happens to balancers, servers, keys and
//! agents; and the kernels at both ends do not notice that their timestamps carry
//! something. `cookie` is short, `cookie-soak` takes as long as real idleness and
//! wraps do, `cookie-loss` and `cookie-uploads` compare with transfers without cookies.

mod checks;
mod loss;
mod mptcp;
mod service;
mod soak;
mod tiers;
mod uploads;
mod world;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use self::checks::Checks;
use self::world::{Cookies, World, members};
use super::{Context, Scenario, param};
pub(super) use loss::COOKIE_LOSS;
pub(super) use mptcp::MPTCP;
pub(super) use soak::COOKIE_SOAK;
pub(super) use tiers::TIERS;
pub(super) use uploads::COOKIE_UPLOADS;

pub(super) const COOKIE: Scenario = Scenario {
    name: "cookie",
    about: "long-lived connections while servers, balancers, keys and agents change",
    params: &[
        param("connections", "6", "connections to each VIP at each step"),
        param("mode", "timestamp", "the VIPs' cookie"),
        param(
            "bits",
            "20",
            "cookie_bits; 20 make the ring of PAWS 4 s short (0: the mode's own)",
        ),
        param("measure", "false", "whether the balancer measures"),
        param(
            "outage",
            "false",
            "whether the client's link loses all for longer than the ring",
        ),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let bits: u8 = context.param("bits")?;
    let cookies = Cookies {
        mode: context.param("mode")?,
        bits: (bits > 0).then_some(bits),
        measure: context.param("measure")?,
    };
    let world = World::build(context, 4, &members(0..3), cookies.clone())?;
    let mut checks = Checks::new(context, world, context.param("connections")?)?;
    checks.pool_changes()?;
    checks.keys_rotate()?;
    checks.balancer_is_swapped()?;
    checks.agents_restart()?;
    checks.syn_cookies()?;
    checks.lost_syn_ack()?;
    checks.late_syn_acks()?;
    checks.ends_reach_the_server()?;
    checks.time_wait_answers()?;
    checks.offloads()?;
    checks.clients_without_timestamps()?;
    let ring = Duration::from_millis(if bits == 20 { 4096 } else { 6000 });
    checks.idle_and_streaming(ring)?;
    if context.param("outage")? {
        checks.outage(ring)?;
    }
    checks.finish()
}

/// What every run must show beside its own figures: clients take all timestamps, and servers
/// all echoes.
fn ensure_unnoticed(before: &Counters, after: &Counters) -> Result<Value> {
    for name in ["PAWSEstab", "PAWSActive"] {
        let count = after.clients.of(name) - before.clients.of(name);
        ensure!(count == 0, "the client's {name} rose by {count}");
    }
    ensure_echoes(before, after)
}

/// The same where bulk is sent: of that PAWS rejects segments without cookies, too, wherever
/// one CPU overtakes another, and `cookie-uploads` compares.
fn ensure_echoes(before: &Counters, after: &Counters) -> Result<Value> {
    let rejected = |of: &Counters| of.servers.known("TSEcrRejected");
    // Null: this kernel does not count them.
    let rejected = rejected(after).map(|now| now - rejected(before).unwrap_or_default());
    ensure!(
        rejected.unwrap_or_default() == 0,
        "the servers' TSEcrRejected rose by {rejected:?}"
    );
    Ok(json!({
        "paws_estab": after.clients.of("PAWSEstab") - before.clients.of("PAWSEstab"),
        "paws_estab_of_servers": after.servers.of("PAWSEstab") - before.servers.of("PAWSEstab"),
        "tsecr_rejected": rejected,
        "retransmitted": after.total("RetransSegs") - before.total("RetransSegs"),
    }))
}

/// The kernels' own counters, by who counts: clients judge what servers send, with cookies,
/// and servers what clients send.
struct Counters {
    clients: Counts,
    servers: Counts,
}

impl Counters {
    fn total(&self, name: &str) -> u64 {
        self.clients.of(name) + self.servers.of(name)
    }
}

/// TcpExt and Tcp counters (`nstat`); a kernel lacks those that it does not know.
#[derive(Default)]
struct Counts(std::collections::BTreeMap<String, u64>);

impl Counts {
    fn of(&self, name: &str) -> u64 {
        self.known(name).unwrap_or_default()
    }

    fn known(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }

    /// Counts `name` as if it had begun at `count`.
    fn set(&mut self, name: &str, count: u64) {
        self.0.insert(name.to_owned(), count);
    }

    fn add(&mut self, other: &Self) {
        for (name, count) in &other.0 {
            *self.0.entry(name.clone()).or_default() += count;
        }
    }
}
