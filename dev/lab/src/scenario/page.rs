// SPDX-License-Identifier: Apache-2.0
//! The daemon's page in a browser: all is well, a server is slow, one is down, the daemon is
//! gone and comes back. What it shows is held against what the API answers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::bench::Bench;
use super::connections::SharedKeys;
use super::{Context, Scenario, param};
use crate::agent::AgentProcess;
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding};
use crate::clock::until;
use crate::load::{LoadConfig, report};
use crate::topology::DEVICE;
use crate::{api, link};

const SERVERS: usize = 4;
/// Where agents report, and where the page is.
const REPORTS_PORT: u16 = 9472;
const PAGE: &str = "127.0.0.1:9470";

pub(super) const PAGE_STATES: Scenario = Scenario {
    name: "page",
    about: "the daemon's page in Chromium, with traffic: well, one server slow, one down, no daemon",
    params: &[
        param("script", "page/test/states.mjs", "what drives the browser"),
        param("pictures", "target/page", "where its pictures go"),
        param("settle_s", "40", "traffic before the first look, seconds"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let bench = Bench::build(context.sandbox, 2, SERVERS)?;
    // As for `health`: probes meet an XDP program at the far end of a veth.
    let balancer_netns = &bench.topology.balancer.netns;
    balancer_netns.run(|| Ok(link::set_tx_checksum(DEVICE, false)?))?;
    let shared = SharedKeys::with_cookies(&context.binary)?;
    let keys = shared.cookies();
    let listen = format!("{}:{REPORTS_PORT}", bench.topology.balancer.ipv4);
    let settings = settings(&bench, &listen, &keys.display().to_string());
    let target = (settings.vips[0].address, settings.vips[0].port).into();
    let mut balancer = bench.balancer(&context.binary, &settings)?;
    // The last server has none: what its clients see is not known.
    let report = format!(
        "[agent.clients]\nservices = [\"{target}\"]\nhistory = \"\"\n\
         [agent.report]\nclient_latency = true\nload = true\nto = [\"{listen}\"]\nkeys = \"{}\"\n",
        keys.display()
    );
    let _agents: Vec<AgentProcess> = (0..SERVERS - 1)
        .map(|index| bench.agent(&context.binary, index, &report))
        .collect::<Result<_>>()?;

    let settle = Duration::from_secs(context.param("settle_s")?);
    let load = LoadConfig {
        // As long as the browser takes, which is long on a busy machine.
        duration_ms: 3_600_000,
        slots: 60,
        page_interval_ms: 1000,
        // As browsers have it: a request that waits behind another has no latency of its own.
        outstanding: 1,
        ..LoadConfig::new(target, context.seed)
    };
    let mut running = bench.load(&load)?;
    std::thread::sleep(settle);
    let mut browser = Browser::start(context, &bench)?;
    let mut shown = vec![browser.look("well")?];
    context.say("well: as the API says");

    let slow = bench.servers.last().context("no server")?;
    slow.set_factor(8.0)?;
    std::thread::sleep(Duration::from_secs(20));
    shown.push(browser.look("slow")?);
    context.say("one server slow: as the API says");
    slow.set_factor(1.0)?;

    let Bench {
        mut servers,
        topology,
        ..
    } = bench;
    drop(servers.remove(1));
    wait_down(&balancer, &topology.servers[1].ipv4.to_string())?;
    std::thread::sleep(Duration::from_secs(8));
    shown.push(browser.look("down")?);
    context.say("one server down: as the API says");

    browser.look("leaves")?;
    balancer.kill()?;
    shown.push(browser.look("lost")?);
    balancer.restart()?;
    shown.push(browser.look("back")?);
    context.say("the daemon was gone, and is back: the page has said so");
    browser.end()?;
    running.stop();
    let log = running.finish()?;
    let clients = report::summary(&log, log.start_ns, log.end_ns);
    balancer.end()?;
    Ok(json!({ "shown": shown, "clients": clients }))
}

/// A VIP with all that there is to see, and one with as little as can be.
fn settings(bench: &Bench, listen: &str, keys: &str) -> BalancerSettings {
    let mut web = bench.vip4(0, "latency", ServerForwarding::Ipip);
    web.keys = vec![
        "name = \"web\"".to_owned(),
        "min_healthy = 2".to_owned(),
        "health = { probe = \"http\", path = \"/who\", interval = \"500ms\", timeout = \"500ms\", rise = 2, fall = 2 }".to_owned(),
    ];
    let mut idle = bench.vip4(1, "maglev", ServerForwarding::Ipip);
    idle.keys = vec!["name = \"idle\"".to_owned()];
    idle.reals.truncate(2);
    BalancerSettings {
        vips: vec![web, idle],
        head: vec![
            format!("http = \"{PAGE}\""),
            format!("[agent_reports]\nlisten = \"{listen}\"\nkeys = \"{keys}\""),
        ],
        ..BalancerSettings::default()
    }
}

fn wait_down(balancer: &Balancer, real: &str) -> Result<()> {
    let down = until(Duration::from_secs(60), || {
        let stats = api::stats(&balancer.socket())?;
        let mut reals = stats.vips.iter().flat_map(|vip| &vip.reals);
        let down = reals.any(|of| of.address == real && of.state == "down");
        Ok(down.then_some(()))
    })?;
    down.with_context(|| format!("{real} serves no more, and is not seen to be down"))
}

/// The script with its browser, beside the daemon; it is given what it should see.
struct Browser {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Browser {
    fn start(context: &Context, bench: &Bench) -> Result<Self> {
        let script: PathBuf = context.param("script")?;
        ensure!(
            script.exists(),
            "there is no {}; run scripts/page test in the repository's root",
            script.display()
        );
        let pictures: PathBuf = context.param("pictures")?;
        let netns = &bench.topology.balancer.netns;
        let mut child = netns
            .command("node")
            .arg(&script)
            .arg(format!("http://{PAGE}/"))
            .arg(&pictures)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run node; scripts/setup page installs it and the browser")?;
        let orders = child.stdin.take().context("stdin of node")?;
        let answers = BufReader::new(child.stdout.take().context("stdout of node")?);
        Ok(Self {
            child,
            orders,
            answers,
        })
    }

    /// Has it look, and check what it sees.
    fn look(&mut self, state: &str) -> Result<Value> {
        writeln!(self.orders, "{state}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let seen: Value = serde_json::from_str(&line)
            .with_context(|| format!("{state}: the script ended, see above ({line:?})"))?;
        ensure!(seen["ok"] == true, "{state}: {}", seen["error"]);
        Ok(seen)
    }

    fn end(mut self) -> Result<()> {
        drop(self.orders);
        let status = self.child.wait()?;
        ensure!(status.success(), "the script ended with {status}");
        Ok(())
    }
}
