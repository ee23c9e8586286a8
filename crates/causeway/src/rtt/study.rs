// SPDX-License-Identifier: Apache-2.0
//! `causeway rtt study`: the experiments of "A Brief Look at Round Trip Time",
//! again, on this kernel, with the expected shape of each curve judged.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use causeway_core::rtt::study::{Beyond, Interval, Lossy, Measured, Verdict, judge};
use causeway_core::rtt::{Method, bucket_ms};
use clap::Parser as _;
use serde_json::{Value, json};

use super::args::ClientArgs;
use super::client;
use super::protocol::PORT;
use super::result::Outcome;
use super::stop;
use super::study_page;
use crate::output::Table;

/// The write-up's intervals, ms; -1 is none.
const WAITS_MS: [i64; 10] = [-1, 1, 2, 4, 8, 16, 32, 39, 40, 41];
/// Those beyond the stand-alone ACK timer, with streams that keep the packet rate.
const BEYOND_MS: [(i64, u32); 6] = [
    (100, 16),
    (300, 48),
    (500, 80),
    (1000, 160),
    (3000, 480),
    (5000, 800),
];
/// Requests of one, two and three segments on a path with an MTU of 1460.
const SIZES: [u32; 3] = [1, 1409, 2818];
/// What the lossy path loses each way, percent.
const LOSS_PCT: f64 = 2.0;
/// 1 in so many packets is sampled.
const SAMPLE: u32 = 8;

const EXAMPLES: &str = "\
Examples:
  causeway rtt study                              # in network namespaces, about 3 minutes
  causeway rtt study --json study.json --html study.html --svg study.svg
  causeway rtt study server.example               # between hosts: there, `causeway rtt serve -i IF -N 8`";

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

    /// Length of a run at an interval up to the ACK timer; beyond it, twice as long
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
    pub verdicts: Vec<Verdict>,
    pub settings: Value,
}

impl StudyArgs {
    /// Runs the study and prints.
    pub fn run(self) -> Result<ExitCode> {
        let study = match self.host.clone() {
            Some(host) => {
                stop::catch_signals().context("cannot catch signals")?;
                let runs = Runs::new(&self, host);
                let measured = runs.all(None)?;
                self.conclude(measured, &runs)
            }
            None => self.in_lab()?,
        };
        print!("{}", text(&study));
        let write = |path: &Option<PathBuf>, text: &dyn Fn() -> String| match path {
            Some(path) => std::fs::write(path, text())
                .with_context(|| format!("cannot write {}", path.display())),
            None => Ok(()),
        };
        write(&self.json, &|| format!("{:#}\n", to_json(&study)))?;
        write(&self.html, &|| study_page::render(&study))?;
        write(&self.svg, &|| study_page::intervals(&study.measured).svg())?;
        let agree = study.verdicts.iter().all(|v| v.agree);
        Ok(match agree {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }

    fn conclude(&self, measured: Measured, runs: &Runs) -> Study {
        Study {
            verdicts: judge(&measured),
            measured,
            settings: json!({
                "kernel": super::session::kernel(),
                "host": runs.host, "lab": self.host.is_none(), "ipv6": self.ipv6,
                "seconds": self.seconds, "sample": SAMPLE, "sample_memory_ms": 2000,
                "loss_pct": LOSS_PCT,
                "congestion": std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")
                    .map_or(Value::Null, |name| json!(name.trim())),
                "clock": causeway_io::rtt::clock::DESCRIPTION,
            }),
        }
    }

    #[cfg(not(feature = "lab"))]
    fn in_lab(&self) -> Result<Study> {
        anyhow::bail!(
            "this build has no lab: name a host where `causeway rtt serve -i IF -N 8` runs"
        )
    }

    #[cfg(feature = "lab")]
    fn in_lab(&self) -> Result<Study> {
        use causeway_lab::path::{self, Path};
        let sandbox = causeway_lab::sandbox::enter()?;
        let path = Path::build(sandbox)?;
        let binary = std::env::current_exe().context("own path")?;
        let sample = SAMPLE.to_string();
        let server = path.serve(&binary, &["-N", &sample])?;
        let mut runs = Runs::new(self, Path::address(self.ipv6).to_string());
        runs.port = path::PORT;
        let client = path.client.clone();
        let (quiet, study) = (runs.clone(), self.clone());
        let mut measured = client.run(move || quiet.all(Some(Part::Loss)))?;
        if study.parts.contains(&Part::Loss) {
            let loss = path.lose(LOSS_PCT)?;
            let lossy = runs.clone();
            measured.lossy = client.run(move || lossy.lossy())?;
            drop(loss);
        }
        drop(server);
        Ok(self.conclude(measured, &runs))
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
}

/// ClientArgs from words, as from a command line.
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
        }
    }

    /// All parts but `without`.
    fn all(&self, without: Option<Part>) -> Result<Measured> {
        let runs = |part| self.parts.contains(&part) && without != Some(part);
        let mut measured = Measured::default();
        if runs(Part::Intervals) {
            measured.intervals = self
                .waits
                .iter()
                .map(|w| self.interval(*w))
                .collect::<Result<_>>()?;
        }
        if runs(Part::Beyond) {
            let row = |&(wait_ms, streams)| self.beyond(wait_ms, streams, 1409);
            measured.beyond = BEYOND_MS.iter().map(row).collect::<Result<_>>()?;
        }
        if runs(Part::Sizes) {
            let row = |&bytes| self.beyond(300, 48, bytes);
            measured.sizes = SIZES.iter().map(row).collect::<Result<_>>()?;
        }
        Ok(measured)
    }

    fn run(&self, wait_ms: i64, options: &[&str]) -> Result<Outcome> {
        let (port, wait) = (self.port.to_string(), format!("{wait_ms}m"));
        let sample = SAMPLE.to_string();
        let fixed = ["rtt", &self.host, "-p", &port, "-w", &wait, "-N", &sample];
        eprintln!("rtt {} -w {wait} {}", self.host, options.join(" "));
        let words = Words::try_parse_from(fixed.iter().chain(options))?;
        words.client.check()?;
        let outcome = client::measure(&words.client)?;
        ensure!(!stop::stopped(), "interrupted");
        Ok(outcome)
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
        let rr = outcome.summary(Method::Rr).unwrap_or_default();
        let p50_us = |method| outcome.summary(method).map(|s| us(s.p50_ns));
        Ok(Interval {
            wait_ms: wait_ms as f64,
            rr_p50_us: us(rr.p50_ns),
            rr_p99_us: us(rr.p99_ns),
            client_tcp_rtt_us: p50_us(Method::Tcp).unwrap_or(f64::NAN),
            server_tcp_rtt_us: server_tcp_us(&outcome),
            sampled_p50_ms: sampled_ms(&outcome),
            client_sampled_p50_ms: outcome
                .summary(Method::Sampled)
                .map(|s| bucket_ms(s.p50_ns)),
            ping_p50_us: p50_us(Method::Ping),
            causal_us: p50_us(Method::Causal),
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
            rr_p50_us: p50_us(Method::Rr),
            client_tcp_rtt_us: p50_us(Method::Tcp),
            server_tcp_rtt_us: server_tcp_us(&outcome),
            sampled_p50_ms: sampled_ms(&outcome),
            sampled_app_share: outcome.server_sampled_share(wait_ms as u64 * 500_000),
            sampled_values: outcome
                .server_summary(Method::Sampled)
                .map_or(0, |s| s.count),
        })
    }

    fn lossy(&self) -> Result<Vec<Lossy>> {
        let row = |request_bytes: u32| {
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
            let evidence = outcome.evidence();
            let ends = [evidence.client, evidence.server];
            let echoes = outcome.echoes.unwrap_or_default();
            let sampled = [
                outcome.summary(Method::Sampled),
                outcome.server_summary(Method::Sampled),
            ];
            Ok(Lossy {
                request_bytes,
                loss_pct: LOSS_PCT,
                rr_p50_us: us(here(Method::Rr).p50_ns),
                rr_max_us: us(here(Method::Rr).max_ns),
                client_tcp_rtt_max_us: us(here(Method::Tcp).max_ns),
                retransmitted: ends.iter().flatten().map(|t| t.retransmitted).sum(),
                sampled_max_us: sampled
                    .iter()
                    .flatten()
                    .map(|s| us(s.max_ns))
                    .reduce(f64::max),
                ping_loss_pct: 100.0 * (echoes.transmitted - echoes.received) as f64
                    / echoes.transmitted.max(1) as f64,
                ping_max_us: outcome.summary(Method::Ping).map(|s| us(s.max_ns)),
            })
        };
        SIZES[..2].iter().map(|bytes| row(*bytes)).collect()
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn server_tcp_us(outcome: &Outcome) -> f64 {
    let summary = outcome.server_summary(Method::Tcp);
    summary.map_or(f64::NAN, |s| us(s.p50_ns))
}

/// The server's sampler: the write-up's "netserver" metric.
fn sampled_ms(outcome: &Outcome) -> Option<f64> {
    let summary = outcome.server_summary(Method::Sampled)?;
    Some(bucket_ms(summary.p50_ns))
}

/// One decimal; `-` for what was not measured.
pub fn cell(value: Option<f64>) -> String {
    match value {
        Some(value) if value.is_finite() => format!("{value:.1}"),
        _ => "-".to_owned(),
    }
}

fn text(study: &Study) -> String {
    let mut text = String::new();
    let m = &study.measured;
    if !m.intervals.is_empty() {
        let mut table = Table::new(&[
            ">WAIT MS",
            ">RR P50 US",
            ">RR P99 US",
            ">CLIENT TCP US",
            ">SERVER TCP US",
            ">SAMPLED MS",
            ">PING P50 US",
            ">CAUSAL US",
        ]);
        for r in &m.intervals {
            table.push(vec![
                format!("{:.0}", r.wait_ms),
                cell(Some(r.rr_p50_us)),
                cell(Some(r.rr_p99_us)),
                cell(Some(r.client_tcp_rtt_us)),
                cell(Some(r.server_tcp_rtt_us)),
                cell(r.sampled_p50_ms),
                cell(r.ping_p50_us),
                cell(r.causal_us),
            ]);
        }
        text += &format!("Response/request interval\n{}\n", table.to_text());
    }
    for (title, rows) in [
        ("Beyond the stand-alone ACK timer", &m.beyond),
        ("Request sizes", &m.sizes),
    ] {
        if rows.is_empty() {
            continue;
        }
        let mut table = Table::new(&[
            ">WAIT MS",
            ">STREAMS",
            ">REQUEST B",
            ">RR P50 US",
            ">CLIENT TCP US",
            ">SERVER TCP US",
            ">SAMPLED MS",
            ">OF APPLICATION %",
            ">VALUES",
        ]);
        for r in rows {
            table.push(vec![
                format!("{:.0}", r.wait_ms),
                r.streams.to_string(),
                r.request_bytes.to_string(),
                cell(Some(r.rr_p50_us)),
                cell(Some(r.client_tcp_rtt_us)),
                cell(Some(r.server_tcp_rtt_us)),
                cell(r.sampled_p50_ms),
                format!("{:.0}", 100.0 * r.sampled_app_share),
                r.sampled_values.to_string(),
            ]);
        }
        text += &format!("{title}\n{}\n", table.to_text());
    }
    for v in &study.verdicts {
        let word = if v.agree { "agree" } else { "NOT    " };
        text += &format!(
            "{word:<6} {}: {}\n       {}\n",
            v.curve, v.expected, v.measured
        );
    }
    text
}

/// A figure for JSON: what was not measured is null.
fn number(value: f64) -> Value {
    if value.is_finite() {
        json!(value)
    } else {
        Value::Null
    }
}

fn to_json(study: &Study) -> Value {
    let intervals = study.measured.intervals.iter().map(|r| {
        json!({
            "wait_ms": r.wait_ms, "rr_p50_us": r.rr_p50_us, "rr_p99_us": r.rr_p99_us,
            "client_tcp_rtt_us": number(r.client_tcp_rtt_us),
            "server_tcp_rtt_us": number(r.server_tcp_rtt_us),
            "sampled_p50_ms": r.sampled_p50_ms, "ping_p50_us": r.ping_p50_us,
            "causal_us": r.causal_us, "client_sampled_p50_ms": r.client_sampled_p50_ms,
        })
    });
    let row = |r: &Beyond| {
        json!({
            "wait_ms": r.wait_ms, "streams": r.streams, "request_bytes": r.request_bytes,
            "rr_p50_us": number(r.rr_p50_us), "client_tcp_rtt_us": number(r.client_tcp_rtt_us),
            "server_tcp_rtt_us": number(r.server_tcp_rtt_us), "sampled_p50_ms": r.sampled_p50_ms,
            "sampled_app_share": r.sampled_app_share, "sampled_values": r.sampled_values,
        })
    };
    let lossy = study.measured.lossy.iter().map(|r| {
        json!({
            "request_bytes": r.request_bytes, "loss_pct": r.loss_pct, "rr_p50_us": r.rr_p50_us,
            "rr_max_us": r.rr_max_us, "client_tcp_rtt_max_us": r.client_tcp_rtt_max_us,
            "retransmitted": r.retransmitted, "sampled_max_us": r.sampled_max_us,
            "ping_loss_pct": r.ping_loss_pct, "ping_max_us": r.ping_max_us,
        })
    });
    let verdicts = study.verdicts.iter().map(|v| {
        json!({ "curve": v.curve, "expected": v.expected, "agree": v.agree, "measured": v.measured })
    });
    json!({
        "intervals": intervals.collect::<Vec<_>>(),
        "beyond": study.measured.beyond.iter().map(row).collect::<Vec<_>>(),
        "sizes": study.measured.sizes.iter().map(row).collect::<Vec<_>>(),
        "loss": lossy.collect::<Vec<_>>(),
        "verdicts": verdicts.collect::<Vec<_>>(),
        "settings": study.settings,
    })
}
