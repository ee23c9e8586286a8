// SPDX-License-Identifier: Apache-2.0
//! What the agent's cookies, or its accounting of clients, cost a server: nginx's request
//! rate with and without them, by turns, and the time of each program by the kernel's own
//! statistics.
//!
//! Two servers, each with a VIP of its own, so that a turn needs no change of anything:
//! one has the agent, the other only takes the tunnel's header off. Two servers on one
//! machine differ by more than an agent costs; so each has the agent once, and the ratio
//! is the geometric mean of both.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use causeway_bench::dataplane::statistics_floor;
use causeway_bench::run_time::{RunTime, RunTimes};
use nix::net::if_::if_nametoindex;
use serde_json::{Value, json};

use super::bench::{Bench, decapsulate, pin_dir};
use super::connections::{SharedKeys, with_ids};
use super::{Context, Scenario, param};
use crate::api;
use crate::balancer::{BalancerSettings, ServerForwarding, VipEntry};
use crate::cpu::Awake;
use crate::load::wrk::{self, WrkReport};
use crate::statistics::{median, standard_error};
use crate::topology::{DEVICE, Node};

/// What an agent does for a server.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Cookies,
    Clients,
    /// To see what the two servers differ by without it.
    Nothing,
}

impl Work {
    /// Programs by what they see, and the pins of the links that an agent on `server` holds them by
    /// (Linux 6.6): names are not its alone.
    fn links(self, server: &Node) -> Result<Vec<(&'static str, PathBuf)>> {
        let pins = pin_dir(server);
        let (directory, name, end) = match self {
            Self::Cookies => (pins, "hook_causeway_cookie_", String::new()),
            Self::Clients => {
                let index = server.netns.run(|| Ok(if_nametoindex(DEVICE)?))?;
                let mut beside = pins.into_os_string();
                beside.push("-clients");
                (beside.into(), "link_causeway_syn_", format!("_{index}"))
            }
            Self::Nothing => return Ok(Vec::new()),
        };
        let ways = ["out", "in"].into_iter();
        Ok(ways
            .map(|way| (way, directory.join(format!("{name}{way}{end}"))))
            .collect())
    }
}

pub(super) const AGENT_COST: Scenario = Scenario {
    name: "agent-cost",
    about: "nginx's request rate with and without the agent's work, and what its programs cost",
    params: &[
        param("seconds", "1", "length of each run of wrk"),
        param(
            "rounds",
            "15",
            "runs of each kind, by turns, with the agent on each server",
        ),
        param("connections", "32", "connections of wrk"),
        param(
            "work",
            "cookies",
            "what the agent does: cookies, clients (accounting of SYNs), or nothing",
        ),
        param(
            "awake",
            "false",
            "keep idle CPUs from sleeping while the programs are timed: they begin with cold caches else",
        ),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let floor_ns = statistics_floor()?;
    let work = match context.param::<String>("work")?.as_str() {
        "cookies" => Work::Cookies,
        "clients" => Work::Clients,
        "nothing" => Work::Nothing,
        other => anyhow::bail!("an agent does cookies, clients or nothing, not {other:?}"),
    };
    let bench = Bench::build(context.sandbox, 1, 2)?;
    let keys = SharedKeys::with_cookies(&context.binary)?;
    let mut sides = Vec::new();
    for server in 0..2 {
        sides.push(side(context, &bench, &keys, work, server)?);
    }
    let ratio = sides.iter().map(Side::ratio).product::<f64>().sqrt();
    for (server, side) in sides.iter().enumerate() {
        context.say(format!(
            "agent on server {server}: {:.0} requests per second with its work, {:.0} without: {:.3}; {}",
            median(&side.rates),
            median(&side.plain_rates),
            side.ratio(),
            side.programs
        ));
    }
    let error = standard_error(&sides.iter().flat_map(Side::pairs).collect::<Vec<_>>());
    context.say(format!(
        "ratio {ratio:.3} (standard error {error:.3}); {floor_ns:.0} ns of each program are the statistics' own"
    ));
    let all = |of: fn(&Side) -> &Vec<f64>| sides.iter().flat_map(of).copied().collect();
    let (rates, plain_rates): (Vec<f64>, Vec<f64>) = (all(|s| &s.rates), all(|s| &s.plain_rates));
    Ok(json!({
        "rps_with": rates, "rps_without": plain_rates,
        "ratios": sides.iter().map(Side::ratio).collect::<Vec<_>>(),
        "rate_ratio": ratio, "rate_ratio_error": error, "within_3_pct": ratio >= 0.97,
        "programs": sides[1].programs, "programs_first": sides[0].programs,
        "packets_by_cookie": sides.iter().map(|s| s.by_cookie).collect::<Vec<_>>(),
        "awake": context.param::<bool>("awake")?, "statistics_floor_ns": floor_ns, "unit": "ns per segment",
    }))
}

/// What was measured with the agent on one of the servers.
struct Side {
    rates: Vec<f64>,
    plain_rates: Vec<f64>,
    programs: Value,
    /// Packets that the balancer sent where their cookie says.
    by_cookie: u64,
}

impl Side {
    /// With the agent to without it, in each round: what the machine does for longer than that
    /// is in both.
    fn pairs(&self) -> impl Iterator<Item = f64> {
        let pairs = self.rates.iter().zip(&self.plain_rates);
        pairs.map(|(rate, plain)| rate / plain)
    }

    fn ratio(&self) -> f64 {
        median(&self.pairs().collect::<Vec<_>>())
    }
}

/// Rates by turns with the agent on `server`, which then is as it was before.
fn side(
    context: &Context,
    bench: &Bench,
    keys: &SharedKeys,
    work: Work,
    server: usize,
) -> Result<Side> {
    let vip = |i| bench.vip4(i, "maglev", ServerForwarding::Ipip);
    let plain = |i| VipEntry {
        keys: vec!["cookie = \"none\"".to_owned()],
        ..only(vip(i), i)
    };
    let with = match work {
        Work::Cookies => only(with_ids(vip(server)), server),
        Work::Clients | Work::Nothing => plain(server),
    };
    let without = plain(1 - server);
    let agent = match work {
        Work::Cookies => {
            let lines = keys.cookies_for(server, &[(with.address, with.port).into()]);
            Some(bench.agent(&context.binary, server, &lines)?)
        }
        Work::Clients => {
            let lines = "[agent.clients]\nhistory = \"\"\n";
            Some(bench.agent(&context.binary, server, lines)?)
        }
        Work::Nothing => None,
    };
    let settings = BalancerSettings {
        vips: vec![with.clone(), without.clone()],
        measure: Some(false),
        head: vec![keys.balancer_lines()],
        ..BalancerSettings::default()
    };
    let balancer = bench.balancer(&context.binary, &settings)?;
    let load = |vip: &VipEntry| load(context, bench, vip);

    let (mut rates, mut plain_rates) = (Vec::new(), Vec::new());
    for round in 0..context.param::<usize>("rounds")? {
        // The second run finds the machine as the first has left it: take turns.
        let order = [(&with, true), (&without, false)];
        for &(vip, has_agent) in order.iter().cycle().skip(round % 2).take(2) {
            let rate = load(vip)?.rps;
            match has_agent {
                true => rates.push(rate),
                false => plain_rates.push(rate),
            }
        }
    }
    let kept = match context.param("awake")? {
        true => Some(Awake::keep()?),
        false => None,
    };
    let links = work.links(&bench.topology.servers[server])?;
    let programs = program_costs(&links, || load(&with))?;
    drop(kept);
    let stats = api::stats(&balancer.socket())?;
    let cookies = |vip: &VipEntry| {
        let address = vip.address.to_string();
        let found = stats.vips.iter().find(|of| of.address == address);
        let results = found.into_iter().flat_map(|of| &of.cookie.results);
        let valid = results.filter(|of| of.result.starts_with("epoch"));
        valid.map(|of| of.packets).sum::<u64>()
    };
    let (by_cookie, none) = (cookies(&with), cookies(&without));
    ensure!(
        (by_cookie > 0) == matches!(work, Work::Cookies) && none == 0,
        "{by_cookie} packets to the agent's server have a valid cookie, {none} to the other one"
    );
    balancer.end()?;
    if let Some(mut agent) = agent {
        agent.kill()?;
        agent.detach()?;
        decapsulate(&bench.topology.servers[server])?;
    }
    Ok(Side {
        rates,
        plain_rates,
        programs,
        by_cookie,
    })
}

/// The VIP with one of its reals.
fn only(mut vip: VipEntry, real: usize) -> VipEntry {
    vip.reals = vec![vip.reals.swap_remove(real)];
    vip
}

fn load(context: &Context, bench: &Bench, vip: &VipEntry) -> Result<WrkReport> {
    let client = &bench.topology.clients[0].netns;
    let url = format!("http://{}:{}/who", vip.address, vip.port);
    let report = wrk::run(
        client,
        &url,
        context.param("connections")?,
        context.param("seconds")?,
    )?;
    ensure!(
        report.socket_errors == 0 && report.bad_status == 0,
        "wrk met {} errors and {} bad answers",
        report.socket_errors,
        report.bad_status
    );
    Ok(report)
}

/// Nanoseconds a segment in each program while `load` runs, the statistics' own
/// included.
fn program_costs(
    links: &[(&str, PathBuf)],
    load: impl FnOnce() -> Result<WrkReport>,
) -> Result<Value> {
    let _statistics = RunTimes::enable()?;
    let now = || -> Result<Vec<RunTime>> {
        let ran = links.iter().map(|(_, link)| {
            RunTimes::attached(link)?.with_context(|| format!("{} holds nothing", link.display()))
        });
        ran.collect()
    };
    let before = now()?;
    let requests = load()?.requests;
    let after = now()?;
    let mut costs = serde_json::Map::new();
    for (((way, _), before), after) in links.iter().zip(&before).zip(&after) {
        let segments = after.runs - before.runs;
        ensure!(
            segments >= requests,
            "{segments} segments {way} cannot carry {requests} requests and answers"
        );
        let ns = (after.run_time_ns - before.run_time_ns) as f64 / segments.max(1) as f64;
        costs.insert((*way).to_owned(), json!({ "ns": ns, "segments": segments }));
    }
    Ok(Value::Object(costs))
}
