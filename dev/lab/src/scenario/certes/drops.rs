// SPDX-License-Identifier: Apache-2.0
//! Every way in which a connection attempt can fail, each provoked on a real listener,
//! and each counter of the agent compared with what was done.

use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV4};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::net::Net;
use super::runs::{CertesRun, steady};
use crate::agent::AgentProcess;
use crate::background::own_runtime;
use crate::clock::until;
use crate::link;
use crate::load::socket::reset_on_close;
use crate::modelled_servers::listen_on;
use crate::scenario::{Context, Scenario};
use crate::topology::DEVICE;

/// Shorter than the first retry gap: one SYN each.
const ONCE: Duration = Duration::from_millis(600);
/// Until the clients' last segments have reached the server: several one-way times.
const ARRIVED: Duration = Duration::from_millis(300);
/// Within which the agent's totals have come to what happened, and how long they must
/// then stay there.
const SETTLES: Duration = Duration::from_secs(15);
const STAYS: Duration = Duration::from_secs(1);
/// How often a case is tried.
const TRIES: usize = 3;

pub(crate) const CERTES_DROPS: Scenario = Scenario {
    name: "certes-drops",
    about: "each way to lose a connection attempt, and the agent's counters of it",
    params: &[],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let run = CertesRun {
        name: "drops".to_owned(),
        // Several SYNs are answered before the first ACK comes back.
        round_trip_us: 100_000,
        ..steady()
    };
    let net = Net::build(context.sandbox, &run, context.seed)?;
    let more = "[agent.clients]\nservices = [\"*:80\"]\nhistory = \"\"\nlearn = false\n\
                [[agent.clients.retry]]\nschedule = \"linux\"\npatience = \"600ms\"\n";
    let pins = std::path::Path::new("/sys/fs/bpf/drops");
    let agent = AgentProcess::start_with(&context.binary, &net.server, pins, more)?;
    let mut seen = BTreeMap::new();
    for (name, provoke, expected) in matrix() {
        let expected: BTreeMap<String, u64> = expected
            .iter()
            .map(|(key, n)| ((*key).to_owned(), *n))
            .collect();
        let once = || -> Result<BTreeMap<String, u64>> {
            let before = totals(&agent)?;
            let changed = || -> Result<BTreeMap<String, u64>> {
                let after = totals(&agent)?.into_iter();
                let since = after.map(|(key, n)| {
                    let n = n - before.get(&key).copied().unwrap_or(0);
                    (key, n)
                });
                Ok(since.filter(|(_, n)| *n > 0).collect())
            };
            provoke(&net)?;
            until(SETTLES, || Ok((changed()? == expected).then_some(())))?;
            sleep(STAYS);
            let changed = changed()?;
            context.say(format!("{name}: {changed:?}"));
            Ok(changed)
        };
        // Clients that stand still for half a second do something else. What counts wrongly does
        // so every time.
        let mut changed = once()?;
        for _ in 1..TRIES {
            if changed != expected {
                changed = once()?;
            }
        }
        ensure!(
            changed == expected,
            "{name}: counted {changed:?} instead of {expected:?}"
        );
        seen.insert(name, changed);
    }
    Ok(json!({ "counted": seen }))
}

type Case = (
    &'static str,
    fn(&Net) -> Result<()>,
    &'static [(&'static str, u64)],
);

/// What is done, and what the counters must say. A backlog of 0 holds one connection.
fn matrix() -> [Case; 7] {
    [
        (
            "served",
            |net| with_listener(net, 16, |target| attempt(target, 4, Then::Ask)),
            &[
                ("offered", 4),
                ("accepted", 4),
                ("established", 4),
                ("completed", 4),
            ],
        ),
        (
            "nothing asked",
            |net| with_listener(net, 16, |target| attempt(target, 4, Then::Leave)),
            &[
                ("offered", 4),
                ("accepted", 4),
                ("established", 4),
                ("unused", 4),
            ],
        ),
        ("final ACK dropped", final_ack_dropped, FINAL_ACK_DROPPED),
        (
            "final ACK dropped, SYN cookies",
            |net| {
                net.server.netns.sysctl("net/ipv4/tcp_syncookies", "2")?;
                final_ack_dropped(net)?;
                net.server.netns.sysctl("net/ipv4/tcp_syncookies", "1")
            },
            FINAL_ACK_DROPPED,
        ),
        (
            "accept queue full",
            |net| {
                with_listener(net, 0, |target| {
                    attempt(target, 1, Then::Keep)?;
                    attempt(target, 5, Then::Ask)
                })
            },
            // The listener's end resets the one in the queue.
            &[
                ("offered", 6),
                ("accepted", 1),
                ("established", 1),
                ("completed", 1),
                ("gave_up", 5),
            ],
        ),
        (
            "nobody listens",
            |net| run_in(net, |target| attempt(target, 4, Then::Ask)),
            &[("refused", 4)],
        ),
        (
            "policed",
            |net| {
                net.server
                    .netns
                    .run(|| Ok(link::attach_syn_police(DEVICE, 1.0)?))?;
                run_in(net, |target| attempt(target, 3, Then::Ask))
            },
            &[("offered", 3), ("gave_up", 3)],
        ),
    ]
}

const FINAL_ACK_DROPPED: &[(&str, u64)] = &[
    ("offered", 3),
    ("accepted", 3),
    ("established", 3),
    ("completed", 1),
    ("stalled", 2),
];

/// All SYNs are answered before the first ACK comes, which takes the only place. The
/// other clients believe that they are connected, and ask.
fn final_ack_dropped(net: &Net) -> Result<()> {
    with_listener(net, 0, |target| attempt(target, 3, Then::Ask))
}

fn totals(agent: &AgentProcess) -> Result<BTreeMap<String, u64>> {
    let live = agent.clients()?;
    let mut found = live
        .categories
        .into_iter()
        .filter(|of| of.service == "*:80");
    let totals = serde_json::to_value(found.next().map(|of| of.totals))?;
    let counts = totals.as_object().into_iter().flatten();
    Ok(counts
        .filter_map(|(key, value)| Some((key.clone(), value.as_u64()?)))
        .collect())
}

/// What a client does with a connection.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    /// Asks, and leaves it after 300 ms with a RST.
    Ask,
    /// The same without having asked.
    Leave,
    /// Asks and keeps it.
    Keep,
}

/// Runs `clients` in the clients' namespace while a server listens and never accepts.
fn with_listener(net: &Net, backlog: i32, clients: fn(SocketAddrV4) -> Result<()>) -> Result<()> {
    let address = net.target();
    let listener = net
        .server
        .netns
        .run(move || listen_on(address.into(), backlog))?;
    let result = run_in(net, clients);
    // A listener that ends resets what is in its queue, and a client's own end may still
    // be on its way.
    sleep(ARRIVED);
    drop(listener);
    result
}

fn run_in(net: &Net, clients: fn(SocketAddrV4) -> Result<()>) -> Result<()> {
    let target = net.target();
    net.client.run(move || clients(target))
}

/// Starts this many clients at once.
fn attempt(target: SocketAddrV4, count: usize, then: Then) -> Result<()> {
    let runtime = own_runtime()?;
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..count {
            tasks.spawn(one(target, then));
        }
        while tasks.join_next().await.is_some() {}
    });
    Ok(())
}

async fn one(target: SocketAddrV4, then: Then) {
    let connecting = async { TcpSocket::new_v4()?.connect(SocketAddr::from(target)).await };
    let Ok(Ok(mut stream)) = timeout(ONCE, connecting).await else {
        return;
    };
    if then != Then::Leave {
        // What cannot be sent shows in the counters.
        let _ = stream.write_all(b"hello").await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    match then {
        Then::Ask | Then::Leave => reset_on_close(&stream),
        Then::Keep => std::mem::forget(stream),
    }
}
