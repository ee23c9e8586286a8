// SPDX-License-Identifier: Apache-2.0
//! `causeway rtt` beside sockperf and qperf: the same path, in turns.
//!
//! Client and server of each have a CPU of their own (taskset): where the scheduler
//! puts the two ends decides more than the program does. Both peers report half of a
//! round trip by default; sockperf is asked for all of it, qperf's is doubled.

use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Context, Param, Scenario, param};
use crate::netns::Netns;
use crate::path::{PORT, Path};
use causeway_io::rtt::sampler_cost;

/// sockperf's smallest message.
const BYTES: &str = "14";
const SOCKPERF_PORT: &str = "11111";

pub struct RttPeers;

impl Scenario for RttPeers {
    fn name(&self) -> &'static str {
        "rtt-peers"
    }

    fn about(&self) -> &'static str {
        "causeway rtt beside sockperf and qperf on one path, in turns; cost of the sampler"
    }

    fn params(&self) -> &'static [Param] {
        const PARAMS: &[Param] = &[
            param("rounds", "7", "runs of each, in turns"),
            param("seconds", "2", "length of each run"),
            param("transport", "tcp", "tcp or udp"),
        ];
        PARAMS
    }

    fn run(&self, context: &Context) -> Result<Value> {
        let path = Path::build(context.sandbox)?;
        let rounds: u32 = context.param("rounds")?;
        let plan = Plan {
            address: Path::address(false).to_string(),
            seconds: context.param("seconds")?,
            transport: context.param("transport")?,
        };
        ensure!(
            ["tcp", "udp"].contains(&plan.transport.as_str()),
            "transport is tcp or udp"
        );
        let (mut ours, mut sockperf, mut qperf) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            // Whoever comes first in one round comes last in the next.
            for turn in 0..3 {
                match (round + turn) % 3 {
                    0 => ours.push(plan.causeway(context, &path)?),
                    1 => sockperf.push(plan.sockperf(&path)?),
                    _ => qperf.push(plan.qperf(&path)?),
                }
            }
            context.say(format!("round {} of {rounds}", round + 1));
        }
        let ours = Run::median(&ours);
        let theirs = Run::median(&sockperf);
        let qperf = Run::median(&qperf);
        let cost = sampler_cost(9, 1_000_000)?;
        let net_ns = cost.not_sampled_ns - cost.nothing_ns;
        let p99_pct = 100.0 * (ours.p99_us / theirs.p99_us - 1.0);
        context.say(format!(
            "p50 {:.2} us, sockperf {:.2}; p99 {:.2} us, sockperf {:.2} ({p99_pct:+.1} %); mean {:.2} us, qperf {:.2}; rate {:.0}/s, sockperf {:.0}; sampler {net_ns:.1} ns",
            ours.p50_us, theirs.p50_us, ours.p99_us, theirs.p99_us, ours.mean_us, qperf.mean_us,
            ours.rate, theirs.rate
        ));
        Ok(json!({
            "causeway": ours.json(), "sockperf": theirs.json(),
            "qperf": { "mean_us": qperf.mean_us },
            "p50_difference_us": ours.p50_us - theirs.p50_us,
            "p99_difference_pct": p99_pct,
            "mean_difference_to_qperf_us": ours.mean_us - qperf.mean_us,
            "rate_ratio": ours.rate / theirs.rate,
            "sampler": {
                "nothing_ns": cost.nothing_ns, "not_sampled_ns": cost.not_sampled_ns, "net_ns": net_ns,
            },
        }))
    }
}

/// Round trips of one run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    mean_us: f64,
    p50_us: f64,
    p99_us: f64,
    /// Transactions per second.
    rate: f64,
}

impl Run {
    /// Figure by figure.
    fn median(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(figure).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        Self {
            mean_us: of(|r| r.mean_us),
            p50_us: of(|r| r.p50_us),
            p99_us: of(|r| r.p99_us),
            rate: of(|r| r.rate),
        }
    }

    fn json(&self) -> Value {
        json!({
            "mean_us": self.mean_us, "p50_us": self.p50_us, "p99_us": self.p99_us, "rate": self.rate,
        })
    }
}

struct Plan {
    address: String,
    seconds: u32,
    transport: String,
}

/// A command in a namespace on a CPU.
fn pinned(netns: &Netns, cpu: u32, program: &str) -> Command {
    let mut command = netns.command("taskset");
    command.args(["-c", &cpu.to_string(), program]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// A server; dropped, it ends.
struct Server(Child);

impl Server {
    fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdout(Stdio::null()).spawn();
        let server = Self(child.context("cannot run taskset (Debian package util-linux)")?);
        // None of the three says when it listens.
        sleep(Duration::from_millis(300));
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn output(command: &mut Command, what: &str) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {what}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{what} failed ({}; Debian packages sockperf and qperf): {text}",
        output.status
    );
    Ok(text)
}

/// The number behind `before`.
fn number(text: &str, before: &str) -> Result<f64> {
    let rest = text
        .find(before)
        .map(|at| text[at + before.len()..].trim_start_matches([' ', '=', ':']));
    let word = rest.and_then(|rest| rest.split([' ', ';', '\n', '\t']).next());
    word.and_then(|word| word.parse().ok())
        .with_context(|| format!("no number behind {before:?} in:\n{text}"))
}

impl Plan {
    fn causeway(&self, context: &Context, path: &Path) -> Result<Run> {
        let binary = context.binary.to_string_lossy().into_owned();
        let port = PORT.to_string();
        let mut serve = pinned(&path.server, 1, &binary);
        let _server = Server::start(serve.args(["rtt", "serve", "-p", &port]))?;
        let mut client = pinned(&path.client, 0, &binary);
        client
            .args(["rtt", &self.address, "-p", &port, "-m", "rr", "-o", "json"])
            .args(["-t", &self.transport, "-r", BYTES])
            .args(["-l", &self.seconds.to_string()]);
        let report: Value = serde_json::from_str(&output(&mut client, "causeway rtt")?)?;
        let rr = &report["methods"][0];
        let figure = |value: &Value| value.as_f64().context("a figure of causeway rtt");
        Ok(Run {
            mean_us: figure(&rr["mean_us"])?,
            p50_us: figure(&rr["p50_us"])?,
            p99_us: figure(&rr["p99_us"])?,
            rate: figure(&report["transaction_rate"])?,
        })
    }

    fn sockperf(&self, path: &Path) -> Result<Run> {
        let tcp: &[&str] = if self.transport == "tcp" {
            &["--tcp"]
        } else {
            &[]
        };
        let at = ["-i", &self.address, "-p", SOCKPERF_PORT];
        let mut serve = pinned(&path.server, 1, "sockperf");
        let _server = Server::start(serve.arg("server").args(at).args(tcp))?;
        let mut client = pinned(&path.client, 0, "sockperf");
        client.arg("ping-pong").args(at).args(tcp).args([
            "-m",
            BYTES,
            "--full-rtt",
            "-t",
            &self.seconds.to_string(),
        ]);
        let text = output(&mut client, "sockperf")?;
        let mean_us = number(&text, "avg-rtt")?;
        Ok(Run {
            mean_us,
            p50_us: number(&text, "percentile 50.000")?,
            p99_us: number(&text, "percentile 99.000")?,
            // It sends the next message at once: its rate is that of its mean.
            rate: 1e6 / mean_us,
        })
    }

    fn qperf(&self, path: &Path) -> Result<Run> {
        let _server = Server::start(&mut pinned(&path.server, 1, "qperf"))?;
        let mut client = pinned(&path.client, 0, "qperf");
        client
            .args([&self.address, "-t", &self.seconds.to_string(), "-m", BYTES])
            // In nanoseconds, whatever their number.
            .args(["--unify_units", "--precision", "5"])
            .arg(format!("{}_lat", self.transport));
        let text = output(&mut client, "qperf")?;
        let half = number(&text, "latency")?;
        let us = match text.split_whitespace().last() {
            Some("ns") => half / 1e3,
            Some("us") => half,
            Some("ms") => half * 1e3,
            Some("sec") => half * 1e6,
            unit => anyhow::bail!("qperf's unit {unit:?}"),
        };
        Ok(Run {
            mean_us: 2.0 * us,
            ..Run::default()
        })
    }
}
