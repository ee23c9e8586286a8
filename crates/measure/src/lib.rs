// SPDX-License-Identifier: Apache-2.0
//! `causeway measure`: response latency from one direction of traffic, and beside
//! it what others measure; `causeway shadow`: what follows from it for another balancer.
//!
//! [`MeasureArgs::run`] and [`ShadowArgs::run`] are the commands. Packets come from files, packet
//! sockets (`netio`) or a meter in the kernel (`dataplane`), estimates from `core`, charts from
//! `report`; here are threads, rows and output. It asks no daemon and steers nothing; a meter that
//! it attaches goes with it.

mod args;
mod collect;
mod digits;
mod engine;
mod expression;
mod group;
mod input;
mod live;
mod page;
mod progress;
mod rows;
mod shadow;
mod sink;
mod summary;
mod table;
mod threads;
mod totals;
mod words;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use causeway_core::estimate::{Lineup, Method, Technique, Three};
use causeway_core::flow::{Comparison, FlowMeter, Measuring, MeterSettings};
use causeway_service::stop;

pub use args::MeasureArgs;
use engine::Job;
pub use expression::Expression;
use input::Input;
use page::Source;
use rows::Rows;
pub use shadow::ShadowArgs;
use sink::Target;
use summary::Summary;
use threads::SHARES;

impl MeasureArgs {
    /// Runs the command; a file that cannot be read to its end gives exit code 1.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let techniques = self.techniques();
        if let Some(interface) = &self.interface {
            return live::run(&self, interface, &techniques);
        }
        // The flow table and the code around the estimators of the request direction
        // are compiled for each number of them, so that one alone pays for nothing
        // else. What only stands beside them goes through a list.
        match request_methods(&techniques).as_deref() {
            Some([a]) => self.read(&techniques, |s| FlowMeter::new(with([a.clone()], s))),
            Some([a, b]) => self.read(&techniques, |s| {
                FlowMeter::new(with([a.clone(), b.clone()], s))
            }),
            Some([a, b, c]) => {
                let methods = [a.clone(), b.clone(), c.clone()];
                match Three::plan(methods.clone()) {
                    Some(plan) => self.read(&techniques, |s| FlowMeter::of_three(s, plan)),
                    None => self.read(&techniques, |s| FlowMeter::new(with(methods.clone(), s))),
                }
            }
            _ => self.read(&techniques, |s| {
                let seed = sampling_seed();
                Comparison::new(s, techniques.clone(), seed)
            }),
        }
    }

    fn read<M: Measuring>(
        &self,
        techniques: &[Technique],
        meter: impl Fn(MeterSettings<0>) -> M,
    ) -> anyhow::Result<ExitCode> {
        let path = self.read.as_deref().unwrap_or(Path::new("-"));
        let input = Input::open(path, self.workers() > 0)?;
        // What ends `tcpdump -w - | causeway measure -r -`; a second one ends it at once, as the
        // first does a file, of which a part would look whole.
        if input.len.is_none() {
            stop::catch_signals().context("cannot catch signals")?;
        }
        let style = self.style(techniques, input.len.is_none());
        let target = Target::new(self.out.as_deref(), style.format, input.file)?;
        let threads = self.workers();
        let shares = (threads * SHARES).max(1);
        let settings = MeterSettings {
            epoch_ns: self.epoch_ns(),
            methods: [],
            direction: self.direction(),
            max_flows: self.max_flows().div_ceil(shares as u32),
            seed: RandomState::new().hash_one(0u8),
            early: style.endless,
        };
        let job = Job {
            meters: (0..shares).map(|_| meter(settings.clone())).collect(),
            threads,
            headers: self.headers(),
            filter: self.filter(),
            expression: Expression::new(&self.expression),
            max_groups: self.max_flows() as usize,
            seed: settings.seed,
        };
        let mut rows = Rows::new(style.clone(), target.writer()?)?;
        let name = || path.display().to_string();
        // A reader that went away (`| head`) wants no more, and no complaint.
        let (summary, totals) = match engine::run(job, input, &mut rows) {
            Err(error) if is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
            result => result.with_context(name)?,
        };
        let source = Source {
            name: name(),
            summary: summary.to_string(),
        };
        match target.finish(rows, totals.as_ref(), &source) {
            Err(error) if is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
            result => result?,
        }
        report(&summary);
        match summary.damage {
            Some(error) => Err(error).with_context(name),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

/// The techniques as estimators of `bpf/shared`, if they all are.
fn request_methods(techniques: &[Technique]) -> Option<Vec<Method>> {
    let method = |technique: &Technique| match technique {
        Technique::Request(method) => Some(method.clone()),
        _ => None,
    };
    techniques.iter().map(method).collect()
}

fn with<const N: usize>(methods: [Method; N], settings: MeterSettings<0>) -> MeterSettings<N> {
    MeterSettings {
        epoch_ns: settings.epoch_ns,
        methods,
        direction: settings.direction,
        max_flows: settings.max_flows,
        seed: settings.seed,
        early: settings.early,
    }
}

/// Decides which packets a sampler picks: always the same, so that a capture gives
/// the same result again.
fn sampling_seed() -> u64 {
    0x5eed
}

/// The closing lines, on standard error so that standard output stays data.
fn report(summary: &Summary) {
    eprintln!("{summary}");
    if summary.counts.from_clients == 0 && summary.counts.from_servers > 0 {
        eprintln!(
            "every packet seems to come from a server; \
             name the network of the clients with --client-net"
        );
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
