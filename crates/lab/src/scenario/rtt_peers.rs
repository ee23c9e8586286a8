// SPDX-License-Identifier: Apache-2.0
//! `causeway rtt` beside sockperf, qperf and a minimal client in C: one path, in turns.
//!
//! The same p50 twice in a row is rare on a shared machine: what the scheduler and the
//! hypervisor do drifts by more than the programs differ. So every round runs each
//! program, in an order drawn anew, and what is compared is the difference within a
//! round. `causeway rtt` runs twice in each: others are compared with the mean of both,
//! and the two with each other, which shows how much is drift.
//!
//! Idle CPUs are kept from sleeping (`awake`): a round trip has two wake-ups, and where
//! a virtual CPU goes back to its hypervisor each time, they take more time than all else
//! and differ by more between two runs of one program than programs do.
//!
//! All do the same: a connection, TCP_NODELAY, a blocking send and receive of the same
//! size, the clock around both. Client and server of each have a CPU of their own
//! (taskset): where the scheduler puts the two ends decides more than the program does.
//! All servers run all the time, waiting.
//! sockperf and qperf bring their own servers; the client in C (`ping_pong.c`) talks to
//! `causeway rtt serve`, so that the clients alone differ. sockperf and qperf report half
//! of a round trip by default; sockperf is asked for all of it, qperf's is doubled.

use std::path::{Path as FilePath, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};

use super::{Context, Param, Scenario, param};
use crate::cpu::Awake;
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
        "causeway rtt beside sockperf, qperf and a minimal client in C, in turns; cost of the sampler"
    }

    fn params(&self) -> &'static [Param] {
        const PARAMS: &[Param] = &[
            param("rounds", "24", "runs of each, in turns"),
            param("seconds", "1", "length of each run"),
            param("transport", "tcp", "tcp or udp"),
            param(
                "awake",
                "true",
                "keep idle CPUs from sleeping, so that no wake-up of one is in the times",
            ),
        ];
        PARAMS
    }

    fn run(&self, context: &Context) -> Result<Value> {
        let path = Path::build(context.sandbox)?;
        let rounds: usize = context.param("rounds")?;
        let transport: String = context.param("transport")?;
        ensure!(
            ["tcp", "udp"].contains(&transport.as_str()),
            "transport is tcp or udp"
        );
        let scratch = tempfile::tempdir().context("a directory for the client in C")?;
        let plan = Plan {
            address: Path::address(false).to_string(),
            seconds: context.param("seconds")?,
            ping_pong: compile(scratch.path())?,
            transport,
        };
        let programs = plan.programs();
        let _servers = plan.serve(context, &path)?;
        let kept = keep_awake(context)?;
        let awake = kept.is_some();
        let mut runs = vec![Vec::new(); programs.len()];
        let mut order: Vec<usize> = (0..programs.len()).collect();
        let mut random = StdRng::seed_from_u64(context.seed);
        for round in 0..rounds {
            // Nobody always follows the same program.
            order.shuffle(&mut random);
            for &index in &order {
                runs[index].push(plan.run(programs[index], context, &path)?);
            }
            context.say(format!("round {} of {rounds}", round + 1));
        }
        drop(kept);
        let cost = sampler_cost(9, 1_000_000)?;
        let net_ns = cost.not_sampled_ns - cost.nothing_ns;
        let ours = Run::median(&runs[0]);
        let again = programs.iter().position(|p| *p == Program::Again);
        let both = Run::means(&runs[0], &runs[again.context("our second run")?]);
        let mut result = json!({
            "awake": awake,
            "causeway": ours.json(),
            "sampler": {
                "nothing_ns": cost.nothing_ns, "not_sampled_ns": cost.not_sampled_ns, "net_ns": net_ns,
            },
        });
        context.say(format!(
            "causeway rtt: {}; sampler {net_ns:.1} ns",
            ours.text()
        ));
        for (program, theirs) in programs.iter().zip(&runs).skip(1) {
            let compared = match program {
                Program::Again => compare(&runs[0], theirs),
                _ => compare(&both, theirs),
            };
            context.say(format!(
                "{}: {}; ours {}",
                program.name(),
                Run::median(theirs).text(),
                compared.text()
            ));
            result[program.name()] = json!({
                "medians": Run::median(theirs).json(), "ours_against_it": compared.json(),
            });
        }
        for (program, runs) in programs.iter().zip(&runs) {
            let runs: Vec<Value> = runs.iter().map(Run::json).collect();
            result["runs"][program.name()] = json!(runs);
        }
        Ok(result)
    }
}

/// Where the machine allows it, and it is wanted.
fn keep_awake(context: &Context) -> Result<Option<Awake>> {
    if !context.param("awake")? {
        return Ok(None);
    }
    match Awake::keep() {
        Ok(awake) => Ok(Some(awake)),
        Err(error) => {
            context.say(format!("idle CPUs will sleep: {error:#}"));
            Ok(None)
        }
    }
}

/// What is run in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Causeway,
    /// Once more: what remains between the two is the machine's drift.
    Again,
    PingPong,
    Sockperf,
    Qperf,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Causeway => "causeway",
            Self::Again => "causeway_again",
            Self::PingPong => "ping_pong_c",
            Self::Sockperf => "sockperf",
            Self::Qperf => "qperf",
        }
    }
}

/// Compiles the client in C.
fn compile(into: &FilePath) -> Result<PathBuf> {
    let (source, binary) = (into.join("ping_pong.c"), into.join("ping_pong"));
    std::fs::write(&source, include_str!("ping_pong.c")).context("cannot write its source")?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-o"]).arg(&binary).arg(&source);
    output(&mut command, "cc (Debian package gcc)")?;
    Ok(binary)
}

/// Ours less theirs, round by round.
struct Compared {
    p50_us: Middle,
    mean_us: Middle,
    p99_pct: Middle,
    rate_pct: Middle,
}

/// What is in the middle of some values.
#[derive(Clone, Copy)]
struct Middle {
    median: f64,
    half_iqr: f64,
    /// Standard error of the median, whatever the distribution: half the distance of the
    /// values whose ranks are one standard deviation of Binomial(n, 1/2) away from it.
    error: f64,
}

impl Middle {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let last = values.len().saturating_sub(1) as f64;
        let at = |rank: f64| {
            let value = values.get(rank.clamp(0.0, last).round() as usize);
            value.copied().unwrap_or(f64::NAN)
        };
        let aside = (values.len() as f64).sqrt() / 2.0;
        Self {
            median: at(last / 2.0),
            half_iqr: (at(last * 0.75) - at(last * 0.25)) / 2.0,
            error: (at(last / 2.0 + aside) - at(last / 2.0 - aside)) / 2.0,
        }
    }
}

fn compare(ours: &[Run], theirs: &[Run]) -> Compared {
    let of = |difference: fn(&Run, &Run) -> f64| {
        let rounds = ours.iter().zip(theirs);
        Middle::of(rounds.map(|(a, b)| difference(a, b)).collect())
    };
    Compared {
        p50_us: of(|a, b| a.p50_us - b.p50_us),
        mean_us: of(|a, b| a.mean_us - b.mean_us),
        p99_pct: of(|a, b| 100.0 * (a.p99_us / b.p99_us - 1.0)),
        rate_pct: of(|a, b| 100.0 * (a.rate / b.rate - 1.0)),
    }
}

impl Compared {
    fn json(&self) -> Value {
        let middle = |of: Middle| {
            json!({
                "median": finite(of.median), "half_iqr": finite(of.half_iqr),
                "error": finite(of.error),
            })
        };
        json!({
            "p50_us": middle(self.p50_us), "mean_us": middle(self.mean_us),
            "p99_pct": middle(self.p99_pct), "rate_pct": middle(self.rate_pct),
        })
    }

    fn text(&self) -> String {
        let part = |name: &str, of: Middle, unit: &str| match of.median.is_finite() {
            true => format!(
                "{name} {:+.1} {unit} (half IQR {:.1}, error {:.1})",
                of.median, of.half_iqr, of.error
            ),
            false => format!("{name} not reported"),
        };
        [
            part("p50", self.p50_us, "us"),
            part("mean", self.mean_us, "us"),
            part("p99", self.p99_pct, "%"),
            part("rate", self.rate_pct, "%"),
        ]
        .join(", ")
    }
}

/// qperf reports a mean and nothing else.
fn finite(value: f64) -> Value {
    if value.is_finite() {
        json!(value)
    } else {
        Value::Null
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

    /// Round by round, of two programs.
    fn means(a: &[Self], b: &[Self]) -> Vec<Self> {
        let mean = |(a, b): (&Self, &Self)| Self {
            mean_us: f64::midpoint(a.mean_us, b.mean_us),
            p50_us: f64::midpoint(a.p50_us, b.p50_us),
            p99_us: f64::midpoint(a.p99_us, b.p99_us),
            rate: f64::midpoint(a.rate, b.rate),
        };
        a.iter().zip(b).map(mean).collect()
    }

    fn json(&self) -> Value {
        json!({
            "mean_us": finite(self.mean_us), "p50_us": finite(self.p50_us),
            "p99_us": finite(self.p99_us), "rate": finite(self.rate),
        })
    }

    fn text(&self) -> String {
        let Self {
            mean_us,
            p50_us,
            p99_us,
            rate,
        } = self;
        match p50_us.is_finite() {
            true => {
                format!("p50 {p50_us:.1} us, p99 {p99_us:.1} us, mean {mean_us:.1} us, {rate:.0}/s")
            }
            false => format!("mean {mean_us:.1} us, {rate:.0}/s"),
        }
    }
}

struct Plan {
    address: String,
    seconds: u32,
    transport: String,
    /// The client in C.
    ping_pong: PathBuf,
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
        "{what} failed ({}; Debian packages sockperf, qperf, gcc): {text}",
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
    fn programs(&self) -> Vec<Program> {
        let mut programs = vec![
            Program::Causeway,
            Program::Sockperf,
            Program::Again,
            Program::Qperf,
        ];
        if self.transport == "tcp" {
            programs.insert(1, Program::PingPong);
        }
        programs
    }

    fn run(&self, program: Program, context: &Context, path: &Path) -> Result<Run> {
        match program {
            Program::Causeway | Program::Again => self.causeway(context, path),
            Program::PingPong => self.ping_pong(path),
            Program::Sockperf => self.sockperf(path),
            Program::Qperf => self.qperf(path),
        }
    }

    /// All servers, for the whole run: a fresh one would be compared with a warm one.
    fn serve(&self, context: &Context, path: &Path) -> Result<[Server; 3]> {
        let at = |program: &str| pinned(&path.server, 1, program);
        let port = PORT.to_string();
        let mut ours = at(&context.binary.to_string_lossy());
        let mut sockperf = at("sockperf");
        sockperf.arg("server").args(self.sockperf_at());
        Ok([
            Server::start(ours.args(["rtt", "serve", "-p", &port]))?,
            Server::start(&mut sockperf)?,
            Server::start(&mut at("qperf"))?,
        ])
    }

    fn sockperf_at(&self) -> Vec<&str> {
        let mut at = vec!["-i", &self.address, "-p", SOCKPERF_PORT];
        if self.transport == "tcp" {
            at.push("--tcp");
        }
        at
    }

    fn ping_pong(&self, path: &Path) -> Result<Run> {
        let mut client = pinned(&path.client, 0, &self.ping_pong.to_string_lossy());
        client.args([
            &self.address,
            &PORT.to_string(),
            BYTES,
            &self.seconds.to_string(),
        ]);
        let text = output(&mut client, "the client in C")?;
        let figures: Option<Vec<f64>> = text.split_whitespace().map(|w| w.parse().ok()).collect();
        let Some([mean_us, p50_us, p99_us, rate]) = figures.as_deref() else {
            anyhow::bail!("the client in C says {text:?}");
        };
        Ok(Run {
            mean_us: *mean_us,
            p50_us: *p50_us,
            p99_us: *p99_us,
            rate: *rate,
        })
    }

    fn causeway(&self, context: &Context, path: &Path) -> Result<Run> {
        let binary = context.binary.to_string_lossy().into_owned();
        let port = PORT.to_string();
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
        let mut client = pinned(&path.client, 0, "sockperf");
        client.arg("ping-pong").args(self.sockperf_at()).args([
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
            p50_us: f64::NAN,
            p99_us: f64::NAN,
            rate: 1e6 / (2.0 * us),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_medians_error_shrinks_with_the_root_of_the_rounds() {
        // Evenly spread, its standard deviation is 100 / sqrt(12); the median's error is
        // half of the range over the root of the number.
        for count in [25, 101, 401] {
            let value = |n: usize| 100.0 * n as f64 / (count - 1) as f64;
            let of = Middle::of((0..count).rev().map(value).collect());
            assert!((of.median - 50.0).abs() < 1e-9);
            assert!((of.half_iqr - 25.0).abs() < 1.1, "{}", of.half_iqr);
            let expected = 50.0 / (count as f64).sqrt();
            assert!((of.error / expected - 1.0).abs() < 0.15, "{}", of.error);
        }
        assert!(Middle::of(Vec::new()).median.is_nan());
    }
}
