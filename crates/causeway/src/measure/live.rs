// SPDX-License-Identifier: Apache-2.0
//! `causeway measure -i`: the same estimates from live traffic. The kernel
//! measures (`bpf/meter.bpf.c`); here its records become rows.

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use causeway_core::estimate::{Tally, Technique};
use causeway_core::flow::{FlowKey, Headers, Row};
use causeway_io::{Meter, MeterOptions, MeterSample};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

use super::args::{Args, Filter};
use super::page::Source;
use super::rows::{Line, Rows};
use super::sink::Target;
use super::totals::{Totals, Wanted};

/// How often to look for signals and epochs that are over.
const POLL: Duration = Duration::from_millis(100);
/// How long after its end an epoch may still get records, before its rows are written.
const GRACE_NS: u64 = 1_000_000_000;

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Measures on an interface until SIGINT or SIGTERM.
pub fn run(args: &Args, interface: &str, techniques: &[Technique]) -> anyhow::Result<ExitCode> {
    let [Technique::Request(method)] = techniques else {
        anyhow::bail!(
            "-i runs one estimator of the request direction; others are for captures: -r"
        );
    };
    anyhow::ensure!(
        args.client_net.is_empty(),
        "--client-net is for captures: -r"
    );
    anyhow::ensure!(
        args.expression.is_empty(),
        "filter expressions are for captures: -r"
    );
    let options = MeterOptions {
        method: method.clone(),
        opaque: args.headers() == Headers::Opaque,
        epoch: args.epoch,
        max_flows: args.max_flows,
        ..MeterOptions::new(interface)
    };
    catch_signals().context("cannot catch signals")?;
    let mut meter = Meter::start(&options)?;
    eprintln!(
        "measuring on {interface} ({} XDP); Ctrl-C ends",
        meter.mode()
    );
    let style = args.style(techniques, true);
    let target = Target::new(args.out.as_deref(), style.format)?;
    let mut rows = Epochs {
        totals: Totals::new(Wanted {
            grouping: style.grouping,
            latencies: false,
            series: false,
            max_groups: args.max_flows as usize,
            seed: 0,
        }),
        epochs: BTreeMap::new(),
        epoch_ns: args.epoch_ns(),
        filter: args.filter(),
        rows: Rows::new(style, target.writer()?)?,
    };
    match follow(&mut meter, &mut rows) {
        Err(error) if super::is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
        result => result?,
    }
    let source = Source {
        name: interface.to_owned(),
        summary: String::new(),
    };
    target.finish(rows.rows, Some(&rows.totals), &source)?;
    report(&meter)?;
    Ok(ExitCode::SUCCESS)
}

fn follow(meter: &mut Meter, rows: &mut Epochs) -> anyhow::Result<()> {
    while !STOPPED.load(Ordering::Relaxed) {
        meter.poll(POLL)?.iter().for_each(|sample| rows.add(sample));
        rows.write_before(now_ns().saturating_sub(rows.epoch_ns + GRACE_NS))?;
    }
    meter
        .poll(Duration::ZERO)?
        .iter()
        .for_each(|sample| rows.add(sample));
    meter
        .open_epochs()?
        .iter()
        .for_each(|sample| rows.add(sample));
    rows.write_before(u64::MAX)?;
    Ok(())
}

/// Records on their way to rows: parts of one flow and epoch add up.
struct Epochs {
    epochs: BTreeMap<(u64, FlowKey), Tally>,
    epoch_ns: u64,
    filter: Filter,
    totals: Totals,
    rows: Rows,
}

impl Epochs {
    fn add(&mut self, sample: &MeterSample) {
        let (client, server) = (sample.flow.client, sample.flow.server);
        let flow = FlowKey::new(
            sample.flow.proto,
            client.ip(),
            client.port(),
            server.ip(),
            server.port(),
        );
        if self.filter.passes(&flow) {
            self.epochs
                .entry((sample.epoch_start_ns, flow))
                .or_default()
                .merge(&sample.tally);
        }
    }

    /// Writes the epochs that began before `until_ns`.
    fn write_before(&mut self, until_ns: u64) -> io::Result<()> {
        while let Some(entry) = self.epochs.first_entry() {
            let (epoch_ns, flow) = *entry.key();
            if epoch_ns >= until_ns {
                break;
            }
            let row = Row {
                flow,
                method: 0,
                epoch_ns,
                tally: entry.remove(),
            };
            if row.tally.samples() > 0 {
                self.totals.row(&row);
                self.rows.line(Line {
                    row,
                    latencies: Default::default(),
                })?;
            }
        }
        self.rows.pause()
    }
}

/// The closing line: every packet by its verdict.
fn report(meter: &Meter) -> anyhow::Result<()> {
    let verdicts = meter.verdicts()?;
    let seen = verdicts.iter().filter(|(_, count)| count.packets > 0);
    let words: Vec<_> = seen
        .map(|(verdict, count)| format!("{} {}", verdict.as_str(), count.packets))
        .collect();
    eprintln!(
        "packets: {}",
        if words.is_empty() {
            "none".to_owned()
        } else {
            words.join(", ")
        }
    );
    if meter.lost_records() > 0 {
        eprintln!(
            "{} records were lost: too many flows for this epoch",
            meter.lost_records()
        );
    }
    Ok(())
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}

extern "C" fn stop(_: nix::libc::c_int) {
    STOPPED.store(true, Ordering::Relaxed);
}

fn catch_signals() -> nix::Result<()> {
    let action = SigAction::new(SigHandler::Handler(stop), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: the handler does nothing but store to an atomic.
        unsafe { sigaction(signal, &action) }?;
    }
    Ok(())
}
