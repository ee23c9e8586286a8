// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab rtt-study`: the experiments of "A Brief Look at Round Trip Time",
//! again, on this kernel, with the expected shape of each curve judged.

mod judge;
mod output;
mod page;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use causeway_core::rtt::{RttMethod, bucket_ms};
use causeway_rtt::{ClientArgs, PORT, RttResult, kernel, measure};
use causeway_service::stop;
use clap::Parser as _;
use serde_json::{Value, json};

use crate::cpu;
use crate::path::{self, Path};
use crate::sandbox::{self, Sandbox};
use judge::{Beyond, ExpectedCurve, Interval, Lossy, Lost, Measured, judge};
pub use output::{text, to_json};

/// The write-up's intervals, ms; -1 is none.
const WAITS_MS: [i64; 10] = [-1, 1, 2, 4, 8, 16, 32, 39, 40, 41];
/// Those beyond the stand-alone ACK timer, with streams that keep the packet rate.
const BEYOND_MS: [(i64, u32); 6] = [
    (100, 32),
    (300, 96),
    (500, 160),
    (1000, 320),
    (3000, 960),
    // What a server allows one client; the rate would take 1600.
    (5000, 1000),
];
/// Requests of one, two and three segments on a path with an MTU of 1460.
const SIZES: [u32; 3] = [1, 1409, 2818];
/// What the lossy path loses in one direction, percent.
const LOSS_PCT: f64 = 2.0;
/// Which packets are lost.
const SEED: u64 = 1;
/// 1 in this many packets is sampled.
const SAMPLE: u32 = 8;

const EXAMPLES: &str = "\
Examples:
  causeway-lab rtt-study                              # in network namespaces, about 5 minutes
  causeway-lab rtt-study --json study.json --html study.html --svg study.svg
  causeway-lab rtt-study server.example               # between hosts: there, `causeway rtt serve -i IF -N 8`";

/// Put every method through the experiments that show what it measures, and judge each curve
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct StudyArgs {
    /// Where `causeway rtt serve -i IF -N 8` runs [default: a lab on this machine; needs root]
    #[arg(value_name = "HOST")]
    pub host: Option<String>,

    /// The server's port
    #[arg(short, long, value_name = "PORT", default_value_t = PORT)]
    pub port: u16,

    /// Length of a run at an interval up to the ACK timer; beyond it, and under loss, twice as long. All parts with 6 s take about 5 minutes
    #[arg(short = 'l', long = "length", value_name = "SECONDS", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,

    /// Parts to run
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "intervals,beyond,sizes,loss"
    )]
    pub parts: Vec<Part>,

    /// Intervals of the first part, ms; -1 is none
    #[arg(long, value_name = "MS", value_delimiter = ',', allow_hyphen_values = true, default_values_t = WAITS_MS)]
    pub waits: Vec<i64>,

    /// Runs at each of these intervals, there and back; the one with the least rr p50 counts: what else the machine does only adds to it
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,

    /// Over IPv6 (in the lab)
    #[arg(short = '6')]
    pub ipv6: bool,

    /// Write everything here
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a report with tables and curves, one self-contained page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write the interval curves as a picture
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// A part of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Response/request intervals up to and past the ACK timer.
    Intervals,
    /// Intervals beyond it, two-segment requests, many streams.
    Beyond,
    /// Requests of one, two and three segments.
    Sizes,
    /// A path that loses packets (lab only).
    Loss,
}

/// The study's results, with where they come from.
pub struct Study {
    pub measured: Measured,
    pub verdicts: Vec<ExpectedCurve>,
    pub settings: Value,
}

impl StudyArgs {
    /// Reads the arguments out of words, the first of which is the command's.
    ///
    /// # Errors
    /// When one of them is wrong, as on a command line.
    pub fn from_words(words: &[&str]) -> Result<Self> {
        Ok(StudyWords::try_parse_from(words)?.study)
    }

    /// Runs the study and prints.
    pub fn run(self, binary: impl FnOnce() -> Result<PathBuf>) -> Result<ExitCode> {
        let study = match self.host.clone() {
            Some(host) => {
                stop::catch_signals().context("cannot catch signals")?;
                let runs = Runs::new(&self, host);
                let measured = runs.all(None)?;
                self.conclude(measured, &runs, None)
            }
            None => self.in_lab(sandbox::enter()?, &binary()?)?,
        };
        print!("{}", text(&study));
        let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
            Some(path) => std::fs::write(path, text())
                .with_context(|| format!("cannot write {}", path.display())),
            None => Ok(()),
        };
        write(&self.json, &|| format!("{:#}\n", to_json(&study)))?;
        write(&self.html, &|| page::render(&study))?;
        write(&self.svg, &|| page::picture(&study.measured))?;
        let agree = study.verdicts.iter().all(|v| v.agree);
        Ok(match agree {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    /// `cpus` are those of client and server, where each was kept to one.
    fn conclude(&self, measured: Measured, runs: &Runs, cpus: Option<[usize; 2]>) -> Study {
        Study {
            verdicts: judge(&measured),
            measured,
            settings: json!({
                "kernel": kernel(),
                "host": runs.host, "lab": self.host.is_none(), "ipv6": self.ipv6,
                "seconds": self.seconds, "rounds": self.rounds, "sample": SAMPLE, "sample_memory_ms": 2000,
                "loss_pct": LOSS_PCT, "cpus": cpus,
                "congestion": std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")
                    .map_or(Value::Null, |name| json!(name.trim())),
                "clock": causeway_netio::rtt::clock::DESCRIPTION,
            }),
        }
    }

    /// Runs the study in a lab of its own, with `binary` as the server.
    ///
    /// # Errors
    /// When the lab cannot be made or a run fails.
    pub fn in_lab(&self, sandbox: Sandbox, binary: &std::path::Path) -> Result<Study> {
        let path = Path::build(sandbox)?;
        let sample = SAMPLE.to_string();
        // As on two hosts: else some rows have both ends on one CPU, others not.
        let cpus = cpu::two();
        let server = path.serve(binary, &["-N", &sample], cpus.map(|[_, server]| server))?;
        let mut runs = Runs::new(self, Path::address(self.ipv6).to_string());
        runs.port = path::PORT;
        let client = path.client.clone();
        let (quiet, study) = (runs.clone(), self.clone());
        let keep = move || match cpus {
            Some([client, _]) => cpu::keep_to(client).context("cannot keep the client to a CPU"),
            None => Ok(()),
        };
        let mut measured = client.run(move || keep().and_then(|()| quiet.all(Some(Part::Loss))))?;
        if study.parts.contains(&Part::Loss) {
            for (port, lost, bytes) in [
                (Path::CLIENT, Lost::Requests, SIZES[0]),
                (Path::CLIENT, Lost::Requests, SIZES[1]),
                (Path::SERVER, Lost::Responses, SIZES[0]),
            ] {
                let _loss = path.lose_from(port, LOSS_PCT, SEED)?;
                let runs = runs.clone();
                let row = client.run(move || keep().and_then(|()| runs.lossy(lost, bytes)))?;
                measured.lossy.push(row);
            }
        }
        drop(server);
        Ok(self.conclude(measured, &runs, cpus))
    }
}

/// How each run is made.
#[derive(Clone)]
struct Runs {
    host: String,
    port: u16,
    seconds: u32,
    parts: Vec<Part>,
    waits: Vec<i64>,
    rounds: u32,
}

/// Arguments from words, as from a command line.
#[derive(clap::Parser)]
struct StudyWords {
    #[command(flatten)]
    study: StudyArgs,
}

/// Arguments from words, as from a command line.
#[derive(clap::Parser)]
struct Words {
    #[command(flatten)]
    client: ClientArgs,
}

impl Runs {
    fn new(args: &StudyArgs, host: String) -> Self {
        Self {
            host,
            port: args.port,
            seconds: args.seconds,
            parts: args.parts.clone(),
            waits: args.waits.clone(),
            rounds: args.rounds,
        }
    }

    /// All parts but `without`.
    fn all(&self, without: Option<Part>) -> Result<Measured> {
        let runs = |part| self.parts.contains(&part) && without != Some(part);
        let mut measured = Measured::default();
        if runs(Part::Intervals) {
            measured.intervals = self.intervals()?;
        }
        if runs(Part::Beyond) {
            let row = |&(wait_ms, streams)| self.beyond(wait_ms, streams, 1409);
            measured.beyond = BEYOND_MS.iter().map(row).collect::<Result<_>>()?;
        }
        if runs(Part::Sizes) {
            let row = |&bytes| self.beyond(300, 96, bytes);
            measured.sizes = SIZES.iter().map(row).collect::<Result<_>>()?;
        }
        Ok(measured)
    }

    fn run(&self, wait_ms: i64, options: &[&str]) -> Result<RttResult> {
        let (port, wait) = (self.port.to_string(), format!("{wait_ms}m"));
        let sample = SAMPLE.to_string();
        let fixed = ["rtt", &self.host, "-p", &port, "-w", &wait, "-N", &sample];
        eprintln!("rtt {} -w {wait} {}", self.host, options.join(" "));
        let words = Words::try_parse_from(fixed.iter().chain(options))?;
        words.client.check()?;
        let outcome = measure(&words.client)?;
        ensure!(!stop::stopped(), "interrupted");
        ensure!(
            outcome.troubles.is_empty(),
            "{}",
            outcome.troubles.join("; ")
        );
        Ok(outcome)
    }

    /// The write-up's table, of several rounds the calmest run at each interval.
    fn intervals(&self) -> Result<Vec<Interval>> {
        let run = |wait: &i64| self.interval(*wait);
        let mut kept: Vec<Interval> = self.waits.iter().map(run).collect::<Result<_>>()?;
        for round in 1..self.rounds {
            // There and back: what comes and goes slowly meets both ends alike.
            let mut order: Vec<usize> = (0..kept.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for index in order {
                let again = run(&self.waits[index])?;
                if again.calmer_than(&kept[index]) {
                    kept[index] = again;
                }
            }
        }
        Ok(kept)
    }

    /// One row of the write-up's table. Longer waits get more streams, so that the
    /// sampler meets pairs; each stream keeps its interval.
    fn interval(&self, wait_ms: i64) -> Result<Interval> {
        let streams = (wait_ms / 4).clamp(1, 10).to_string();
        let length = self.seconds.to_string();
        let outcome = self.run(
            wait_ms,
            &[
                "-r",
                "1,2",
                "-l",
                &length,
                "--streams",
                &streams,
                "-m",
                "rr,tcp,sampled,ping,causal",
            ],
        )?;
        let rr = outcome.summary(RttMethod::Rr).unwrap_or_default();
        let p50_us = |method| outcome.summary(method).map(|s| us(s.p50_ns));
        Ok(Interval {
            wait_ms: wait_ms as f64,
            rr_p50_us: us(rr.p50_ns),
            rr_p99_us: us(rr.p99_ns),
            client_tcp_rtt_us: p50_us(RttMethod::Tcp).unwrap_or(f64::NAN),
            server_tcp_rtt_us: server_tcp_us(&outcome),
            sampled_p50_ms: sampled_ms(&outcome),
            client_sampled_p50_ms: outcome
                .summary(RttMethod::Sampled)
                .map(|s| bucket_ms(s.p50_ns)),
            ping_p50_us: p50_us(RttMethod::Ping),
            causal_us: p50_us(RttMethod::Causal),
        })
    }

    fn beyond(&self, wait_ms: i64, streams: u32, request_bytes: u32) -> Result<Beyond> {
        // Long enough for each stream to come three times.
        let length = (2 * self.seconds)
            .max(3 * wait_ms as u32 / 1000 + 1)
            .to_string();
        let sizes = format!("{request_bytes},2");
        let count = streams.to_string();
        let outcome = self.run(
            wait_ms,
            &[
                "-r",
                &sizes,
                "-l",
                &length,
                "--streams",
                &count,
                "-m",
                "rr,tcp,sampled",
            ],
        )?;
        let p50_us = |method| outcome.summary(method).map_or(f64::NAN, |s| us(s.p50_ns));
        Ok(Beyond {
            wait_ms: wait_ms as f64,
            streams,
            request_bytes,
            rr_p50_us: p50_us(RttMethod::Rr),
            client_tcp_rtt_us: p50_us(RttMethod::Tcp),
            server_tcp_rtt_us: server_tcp_us(&outcome),
            sampled_p50_ms: sampled_ms(&outcome),
            sampled_app_share: outcome.server_sampled_share(wait_ms as u64 * 500_000),
            sampled_values: outcome
                .server_summary(RttMethod::Sampled)
                .map_or(0, |s| s.count),
        })
    }

    fn lossy(&self, lost: Lost, request_bytes: u32) -> Result<Lossy> {
        let sizes = format!("{request_bytes},2");
        let length = (2 * self.seconds).to_string();
        let outcome = self.run(
            10,
            &[
                "-r",
                &sizes,
                "-l",
                &length,
                "--streams",
                "24",
                "-m",
                "rr,tcp,sampled,ping",
                "--ping-interval",
                "20ms",
            ],
        )?;
        let here = |method| outcome.summary(method).unwrap_or_default();
        let ends = [
            outcome.ended.as_ref().and_then(|e| e.tcp.as_ref()),
            outcome.server.as_ref().and_then(|s| s.tcp.as_ref()),
        ];
        let echoes = outcome.echoes.unwrap_or_default();
        let sampled = [
            outcome.summary(RttMethod::Sampled),
            outcome.server_summary(RttMethod::Sampled),
        ];
        Ok(Lossy {
            lost,
            request_bytes,
            loss_pct: LOSS_PCT,
            rr_p50_us: us(here(RttMethod::Rr).p50_ns),
            rr_max_us: us(here(RttMethod::Rr).max_ns),
            client_tcp_rtt_max_us: us(here(RttMethod::Tcp).max_ns),
            retransmitted: ends.iter().flatten().map(|t| t.retrans).sum(),
            sampled_max_us: sampled
                .iter()
                .flatten()
                .map(|s| us(s.max_ns))
                .reduce(f64::max),
            ping_loss_pct: 100.0 * (echoes.transmitted - echoes.received) as f64
                / echoes.transmitted.max(1) as f64,
            ping_max_us: outcome.summary(RttMethod::Ping).map(|s| us(s.max_ns)),
        })
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn server_tcp_us(outcome: &RttResult) -> f64 {
    let summary = outcome.server_summary(RttMethod::Tcp);
    summary.map_or(f64::NAN, |s| us(s.p50_ns))
}

/// The server's sampler: the write-up's "netserver" metric.
fn sampled_ms(outcome: &RttResult) -> Option<f64> {
    let summary = outcome.server_summary(RttMethod::Sampled)?;
    Some(bucket_ms(summary.p50_ns))
}
