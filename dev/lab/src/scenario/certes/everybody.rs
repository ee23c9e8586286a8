// SPDX-License-Identifier: Apache-2.0
//! `[agent.clients]` as it comes, on nginx, beside common clients: what the agent
//! said of each and what happened. Clients have addresses of their own, by which it distinguishes
//! them; nothing else is configured, and no XDP program is involved.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use causeway_api::agent::CategoryView;
use serde_json::{Value, json};

use super::net::Net;
use super::runs::{CertesRun, steady};
use crate::agent::AgentProcess;
use crate::background::output_of;
use crate::load::wrk;
use crate::netns::Netns;
use crate::nginx::Nginx;
use crate::scenario::{Context, Scenario};
use crate::topology::DEVICE;

/// What every request asks for: 1000 bytes after 5 ms.
const PATH: &str = "/r/1000/5000";
/// Connections of wrk, whose last requests it leaves unanswered and does not count.
const CONNECTIONS: u32 = 4;
/// Within which the agent's totals have come to what happened.
const SETTLES: Duration = Duration::from_secs(60);
/// How far its mean may be off, as a share and seconds: less than the path, and far less than a
/// connection taken for a transaction. What clients measure has their own waits for the CPU.
const TOLERANCE: f64 = 0.25;
const TOLERANCE_S: f64 = 0.003;
/// How often clients are tried whose mean is not near: they may have waited for the CPU. What is
/// wrong is so each time.
const TRIES: usize = 3;
const ROUND_TRIP_US: u64 = 20_000;

pub(crate) const CLIENTS_EVERYBODY: Scenario = Scenario {
    name: "clients-everybody",
    about: "a default [agent.clients] on nginx beside curl, wrk, pollers, health checks and a port scan",
    params: &[],
    run,
    table,
};

/// What a client did, by its own report.
#[derive(Default)]
struct Did {
    connections: u64,
    /// Connections on which it asked nothing.
    unused: u64,
    /// What each answer took, seconds.
    took_s: Vec<f64>,
    /// Requests that may have been answered after it had left.
    uncertain: u64,
}

type Act = fn(&Netns, Ipv4Addr, SocketAddrV4) -> Result<Did>;

/// Clients with the last octet of their address.
const CLIENTS: [(&str, u8, Act); 6] = [
    ("curl, a connection each", 11, curl),
    ("keep-alive, 2.5 s apart", 12, poller),
    ("health checks, FIN and RST", 13, checks),
    ("opened in advance, unused", 14, in_advance),
    ("port scan", 15, scan),
    ("wrk", 2, load),
];

fn run(context: &Context) -> Result<Value> {
    let mut vain = Vec::new();
    loop {
        let rows = all_clients(context, vain.len())?;
        if rows.iter().all(|(_, near)| *near) {
            let rows: Vec<Value> = rows.into_iter().map(|(row, _)| row).collect();
            return Ok(json!({ "clients": rows, "vain": vain }));
        }
        vain.extend(rows.into_iter().find(|(_, near)| !near).map(|(row, _)| row));
        ensure!(vain.len() < TRIES, "the agent's means are wrong: {vain:?}");
    }
}

/// What every client did and the agent said of it, and whether its mean is near. What it has
/// counted must be right.
fn all_clients(context: &Context, attempt: usize) -> Result<Vec<(Value, bool)>> {
    let run = CertesRun {
        name: format!("everybody{attempt}"),
        round_trip_us: ROUND_TRIP_US,
        ..steady()
    };
    let net = Net::build(context.sandbox, &run, context.seed)?;
    for (_, host, _) in CLIENTS.iter().filter(|(_, host, _)| *host != 2) {
        net.client
            .ip(&format!("addr add 10.50.0.{host}/24 dev {DEVICE}\n"))?;
    }
    // What a firewall drops without a word.
    let firewall = "rule add iif d0 ipproto tcp dport 9000-9019 blackhole\n";
    net.server.netns.ip(&firewall.replace("d0", DEVICE))?;
    let _nginx = Nginx::start(&net.server.netns, &run.name, 80, 1)?;
    let prefixes = CLIENTS.map(|(_, host, _)| format!("\"10.50.0.{host}/32\""));
    let more = format!(
        "[agent.clients]\nhistory = \"\"\nprefixes = [{}]\n",
        prefixes.join(", ")
    );
    let pins = std::path::Path::new("/sys/fs/bpf").join(&run.name);
    let agent = AgentProcess::start_measuring(&context.binary, &net.server, &pins, &more)?;
    let target = net.target();
    // A port counts once it has answered.
    let first = Ipv4Addr::new(10, 50, 0, 2);
    ask_with_curl(&net.client, first, target)?;

    let acting = CLIENTS.map(|(_, host, act)| {
        let client = net.client.clone();
        std::thread::spawn(move || act(&client, Ipv4Addr::new(10, 50, 0, host), target))
    });
    let mut rows = Vec::new();
    for ((name, host, _), acting) in CLIENTS.iter().zip(acting) {
        let did = acting
            .join()
            .map_err(|_| anyhow::anyhow!("{name} panicked"))?
            .with_context(|| (*name).to_owned())?;
        let prefix = format!("10.50.0.{host}/32");
        let said = settled(&agent, &prefix, &did)?;
        let row = row(name, &did, &said);
        context.say(row.to_string());
        ensure!(
            counts_agree(&did, &said),
            "{name}: the agent is wrong: {row}"
        );
        rows.push((row, means_agree(mean_s(&did), said_mean_s(&said))));
    }
    Ok(rows)
}

fn requests(did: &Did) -> u64 {
    did.took_s.len() as u64
}

/// What the agent says of a client once it says what happened, or when that is overdue.
fn settled(agent: &AgentProcess, prefix: &str, did: &Did) -> Result<CategoryView> {
    let deadline = Instant::now() + SETTLES;
    loop {
        let live = agent.clients()?;
        let mut found = live
            .categories
            .into_iter()
            .filter(|of| of.clients == prefix);
        let said = found.next().unwrap_or_default();
        let agrees = counts_agree(did, &said) && means_agree(mean_s(did), said_mean_s(&said));
        if agrees || Instant::now() > deadline {
            return Ok(said);
        }
        sleep(Duration::from_millis(200));
    }
}

fn mean_s(did: &Did) -> Option<f64> {
    let count = requests(did) as f64;
    (count > 0.0).then(|| did.took_s.iter().sum::<f64>() / count)
}

fn said_mean_s(said: &CategoryView) -> Option<f64> {
    let count: u64 = said.responses.counts.iter().sum();
    (count > 0).then(|| said.responses.sum_s / count as f64)
}

fn means_agree(truth: Option<f64>, said: Option<f64>) -> bool {
    match (truth, said) {
        (Some(truth), Some(said)) => (said - truth).abs() < TOLERANCE * truth + TOLERANCE_S,
        (truth, said) => truth.is_none() && said.is_none(),
    }
}

fn counts_agree(did: &Did, said: &CategoryView) -> bool {
    let totals = said.totals;
    let completed = requests(did)..=requests(did) + did.uncertain;
    completed.contains(&totals.completed)
        && totals.offered == did.connections
        && totals.unused == did.unused
        && totals.gave_up + totals.stalled + totals.abandoned == 0
        && said.flood_share == 0.0
}

fn row(name: &str, did: &Did, said: &CategoryView) -> Value {
    let ms = |s: Option<f64>| s.map(|s| s * 1e3);
    json!({
        "client": name,
        "connections": did.connections, "requests": requests(did), "unused": did.unused,
        "mean_ms": ms(mean_s(did)),
        "said_syns": said.totals.offered, "said_completed": said.totals.completed,
        "said_later": said.totals.later, "said_unused": said.totals.unused,
        "said_gave_up": said.totals.gave_up, "said_mean_ms": ms(said_mean_s(said)),
    })
}

fn table(result: &Value) -> Option<String> {
    let rows = result["clients"].as_array()?;
    let mut text = format!(
        "{:30}{:>7}{:>10}{:>10}{:>8}{:>11}{:>10}{:>10}\n",
        "CLIENT", "CONN", "REQUESTS", "MEAN ms", "SYNS", "COMPLETED", "UNUSED", "MEAN ms"
    );
    for row in rows {
        let count = |key: &str| row[key].to_string();
        let ms = |key: &str| match row[key].as_f64() {
            Some(ms) => format!("{ms:.1}"),
            None => "-".to_owned(),
        };
        text += &format!(
            "{:30}{:>7}{:>10}{:>10}{:>8}{:>11}{:>10}{:>10}\n",
            row["client"].as_str()?,
            count("connections"),
            count("requests"),
            ms("mean_ms"),
            count("said_syns"),
            count("said_completed"),
            count("said_unused"),
            ms("said_mean_ms"),
        );
    }
    Some(text)
}

/// The numbers that a program prints, one a line.
fn numbers(mut command: Command) -> Result<Vec<f64>> {
    let text = output_of(&mut command)?;
    let parsed: Result<Vec<f64>, _> = text.lines().map(str::parse).collect();
    parsed.with_context(|| format!("{command:?} said {text:?}"))
}

fn ask_with_curl(client: &Netns, from: Ipv4Addr, target: SocketAddrV4) -> Result<Vec<f64>> {
    let mut command = client.command("curl");
    command.args(["-sS", "-o", "/dev/null", "-w", "%{time_total}\n"]);
    command.args(["--interface", &from.to_string()]);
    command.arg(format!("http://{target}{PATH}"));
    numbers(command)
}

fn curl(client: &Netns, from: Ipv4Addr, target: SocketAddrV4) -> Result<Did> {
    let mut did = Did::default();
    for _ in 0..10 {
        did.took_s.extend(ask_with_curl(client, from, target)?);
        did.connections += 1;
    }
    Ok(did)
}

fn python(client: &Netns, from: Ipv4Addr, target: SocketAddrV4, script: &str) -> Result<Vec<f64>> {
    let mut command = client.command("python3");
    command.args(["-c", script, &from.to_string(), &target.ip().to_string()]);
    numbers(command)
}

/// Four requests on one connection, with more than the agent takes for silence in between.
fn poller(client: &Netns, from: Ipv4Addr, target: SocketAddrV4) -> Result<Did> {
    let script = "\
import http.client, sys, time
connection = http.client.HTTPConnection(sys.argv[2], source_address=(sys.argv[1], 0))
for turn in range(4):
    time.sleep(2.5 if turn else 0)
    begin = time.perf_counter()
    connection.request('GET', '/r/1000/5000')
    connection.getresponse().read()
    print(time.perf_counter() - begin)
";
    Ok(Did {
        connections: 1,
        took_s: python(client, from, target, script)?,
        ..Did::default()
    })
}

/// Connect and leave, every other one with a RST.
fn checks(client: &Netns, from: Ipv4Addr, target: SocketAddrV4) -> Result<Did> {
    let script = "\
import socket, struct, sys, time
for turn in range(50):
    check = socket.create_connection((sys.argv[2], 80), source_address=(sys.argv[1], 0))
    if turn % 2:
        check.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    check.close()
    time.sleep(0.05)
";
    python(client, from, target, script)?;
    Ok(Did {
        connections: 50,
        unused: 50,
        ..Did::default()
    })
}

/// Three connections that a browser opened and did not need.
fn in_advance(client: &Netns, from: Ipv4Addr, target: SocketAddrV4) -> Result<Did> {
    let script = "\
import socket, sys, time
open = [socket.create_connection((sys.argv[2], 80), source_address=(sys.argv[1], 0)) for _ in range(3)]
time.sleep(5)
";
    python(client, from, target, script)?;
    Ok(Did {
        connections: 3,
        unused: 3,
        ..Did::default()
    })
}

/// Ports without a listener, and ports that a firewall drops, each for 1.5 s.
fn scan(client: &Netns, from: Ipv4Addr, target: SocketAddrV4) -> Result<Did> {
    let script = "\
import socket, sys, time
waiting = []
for port in list(range(8000, 8200)) + list(range(9000, 9020)):
    one = socket.socket()
    one.bind((sys.argv[1], 0))
    one.setblocking(False)
    one.connect_ex((sys.argv[2], port))
    waiting.append(one)
time.sleep(1.5)
";
    python(client, from, target, script)?;
    Ok(Did::default())
}

fn load(client: &Netns, _from: Ipv4Addr, target: SocketAddrV4) -> Result<Did> {
    let report = wrk::run(client, &format!("http://{target}{PATH}"), CONNECTIONS, 4)?;
    let mean_s = report.mean_ms / 1e3;
    Ok(Did {
        // wrk tries the address first, and asks nothing.
        connections: u64::from(CONNECTIONS) + 1,
        unused: 1,
        took_s: vec![mean_s; report.requests as usize],
        uncertain: u64::from(CONNECTIONS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_without_the_path_is_wrong() {
        let path_s = ROUND_TRIP_US as f64 / 1e6;
        // wrk, a poller, curl with a connection each.
        for truth in [0.029, 0.035, 0.065] {
            assert!(!means_agree(Some(truth), Some(truth - path_s)), "{truth}");
            assert!(means_agree(Some(truth), Some(0.89 * truth)), "{truth}");
        }
        assert!(!means_agree(Some(0.03), None));
        assert!(!means_agree(None, Some(0.03)));
        assert!(means_agree(None, None));
    }
}
