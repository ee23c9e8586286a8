// SPDX-License-Identifier: Apache-2.0
//! The programs that are compared, how each is run, and what it says.

use std::path::{Path as FilePath, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::figures::PeerRun;
use crate::background::KilledOnDrop;
use crate::cpu::keep_command_to;
use crate::netns::Netns;
use crate::path::{PORT, Path};
use crate::scenario::Context;

/// sockperf's smallest message.
const BYTES: &str = "14";
const SOCKPERF_PORT: &str = "11111";

/// What is run in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Causeway,
    /// Once more: what remains between the two is the machine's drift.
    Again,
    PingPong,
    Sockperf,
    Qperf,
}

impl Program {
    pub(super) fn name(self) -> &'static str {
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
pub(super) fn compile(into: &FilePath) -> Result<PathBuf> {
    let (source, binary) = (into.join("ping_pong.c"), into.join("ping_pong"));
    std::fs::write(&source, include_str!("ping_pong.c")).context("cannot write its source")?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-o"]).arg(&binary).arg(&source);
    output(&mut command, "cc (Debian package gcc)")?;
    Ok(binary)
}

pub(super) struct PeersPlan {
    pub(super) address: String,
    pub(super) seconds: u32,
    pub(super) transport: String,
    /// The client in C.
    pub(super) ping_pong: PathBuf,
    /// Of clients and of servers.
    pub(super) cpus: Option<[usize; 2]>,
}

/// A command in a namespace, on a CPU if it has one of its own.
fn pinned(netns: &Netns, cpu: Option<usize>, program: &str) -> Command {
    let mut command = netns.command(program);
    if let Some(cpu) = cpu {
        keep_command_to(&mut command, cpu);
    }
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts a server.
fn start(command: &mut Command) -> Result<KilledOnDrop> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.stdout(Stdio::null()).spawn();
    let child = child.with_context(|| {
        format!("cannot run {program} as a server (Debian packages sockperf, qperf)")
    })?;
    let mut server = KilledOnDrop(child);
    // None of the three says when it listens.
    sleep(Duration::from_millis(300));
    if let Some(status) = server.try_wait()? {
        bail!("the server {program} ended at its start: {status}");
    }
    Ok(server)
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

impl PeersPlan {
    pub(super) fn programs(&self) -> Vec<Program> {
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

    pub(super) fn run(&self, program: Program, context: &Context, path: &Path) -> Result<PeerRun> {
        match program {
            Program::Causeway | Program::Again => self.causeway(context, path),
            Program::PingPong => self.ping_pong(path),
            Program::Sockperf => self.sockperf(path),
            Program::Qperf => self.qperf(path),
        }
    }

    /// A client's command.
    fn client(&self, path: &Path, program: &str) -> Command {
        pinned(&path.client, self.cpus.map(|[client, _]| client), program)
    }

    /// All servers, for the whole run: a fresh one would be compared with a warm one.
    pub(super) fn serve(&self, context: &Context, path: &Path) -> Result<[KilledOnDrop; 3]> {
        let cpu = self.cpus.map(|[_, server]| server);
        let at = |program: &str| pinned(&path.server, cpu, program);
        let port = PORT.to_string();
        let mut ours = at(&context.binary.to_string_lossy());
        let mut sockperf = at("sockperf");
        sockperf.arg("server").args(self.sockperf_at());
        Ok([
            start(ours.args(["rtt", "serve", "-p", &port]))?,
            start(&mut sockperf)?,
            start(&mut at("qperf"))?,
        ])
    }

    fn sockperf_at(&self) -> Vec<&str> {
        let mut at = vec!["-i", &self.address, "-p", SOCKPERF_PORT];
        if self.transport == "tcp" {
            at.push("--tcp");
        }
        at
    }

    fn ping_pong(&self, path: &Path) -> Result<PeerRun> {
        let mut client = self.client(path, &self.ping_pong.to_string_lossy());
        client.args([
            &self.address,
            &PORT.to_string(),
            BYTES,
            &self.seconds.to_string(),
        ]);
        let text = output(&mut client, "the client in C")?;
        let figures: Option<Vec<f64>> = text.split_whitespace().map(|w| w.parse().ok()).collect();
        let Some([mean_us, p50_us, p99_us, rate]) = figures.as_deref() else {
            bail!("the client in C says {text:?}");
        };
        Ok(PeerRun {
            mean_us: *mean_us,
            p50_us: *p50_us,
            p99_us: *p99_us,
            rate: *rate,
        })
    }

    fn causeway(&self, context: &Context, path: &Path) -> Result<PeerRun> {
        let binary = context.binary.to_string_lossy().into_owned();
        let port = PORT.to_string();
        let mut client = self.client(path, &binary);
        client
            .args(["rtt", &self.address, "-p", &port, "-m", "rr", "-o", "json"])
            .args(["-t", &self.transport, "-r", BYTES])
            .args(["-l", &self.seconds.to_string()]);
        let report: Value = serde_json::from_str(&output(&mut client, "causeway rtt")?)?;
        let rr = &report["methods"][0];
        let figure = |value: &Value| value.as_f64().context("a figure of causeway rtt");
        Ok(PeerRun {
            mean_us: figure(&rr["mean_us"])?,
            p50_us: figure(&rr["p50_us"])?,
            p99_us: figure(&rr["p99_us"])?,
            rate: figure(&report["transaction_rate"])?,
        })
    }

    fn sockperf(&self, path: &Path) -> Result<PeerRun> {
        let mut client = self.client(path, "sockperf");
        client.arg("ping-pong").args(self.sockperf_at()).args([
            "-m",
            BYTES,
            "--full-rtt",
            "-t",
            &self.seconds.to_string(),
        ]);
        let text = output(&mut client, "sockperf")?;
        let mean_us = number(&text, "avg-rtt")?;
        Ok(PeerRun {
            mean_us,
            p50_us: number(&text, "percentile 50.000")?,
            p99_us: number(&text, "percentile 99.000")?,
            // It sends the next message at once: its rate is that of its mean.
            rate: 1e6 / mean_us,
        })
    }

    fn qperf(&self, path: &Path) -> Result<PeerRun> {
        let mut client = self.client(path, "qperf");
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
            unit => bail!("qperf's unit {unit:?}"),
        };
        Ok(PeerRun {
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
    fn a_server_that_ends_at_its_start_is_told() {
        // One that has not ended yet, on a machine that stands still, is none of these.
        let ended = (0..50).find_map(|_| start(&mut Command::new("false")).err());
        let ended = ended.map(|e| e.to_string()).unwrap_or_default();
        assert!(ended.contains("server false ended"), "{ended}");
        assert!(start(Command::new("sleep").arg("60")).is_ok());
    }
}
