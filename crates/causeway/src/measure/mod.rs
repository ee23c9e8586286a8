// SPDX-License-Identifier: Apache-2.0
//! `causeway measure`: response latency from one direction of traffic.

mod args;
mod engine;
mod expression;
mod input;
mod live;
mod output;
mod progress;
mod summary;
mod table;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use causeway_core::estimate::Method;
use causeway_core::flow::{Direction, Settings};

pub use args::Args;
use engine::Job;
use expression::Expression;
use input::Input;
use output::{Output, Style};
use summary::Summary;

impl Args {
    /// Runs the command; a file that cannot be read to its end gives exit code 1.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(interface) = &self.interface {
            let methods = self.methods();
            let [method] = &methods[..] else {
                anyhow::bail!("-i runs one estimator; several at once are for captures: -r");
            };
            return live::run(&self, interface, method.clone());
        }
        // The flow table and the code around the estimators are compiled for
        // each number of them, so that one alone pays for nothing else.
        match self.methods()[..] {
            [ref one] => self.run_with([one.clone()]),
            [ref a, ref b] => self.run_with([a.clone(), b.clone()]),
            [ref a, ref b, ref c] => self.run_with([a.clone(), b.clone(), c.clone()]),
            _ => anyhow::bail!("name one to three estimators"),
        }
    }

    fn run_with<const N: usize>(&self, methods: [Method; N]) -> anyhow::Result<ExitCode> {
        let read = self.read.as_deref().unwrap_or(Path::new("-"));
        let input = Input::open(read)?;
        let style = Style {
            format: self.output,
            per: self.per,
            estimators: methods.each_ref().map(Method::name).to_vec(),
            endless: input.len.is_none(),
        };
        let job = Job {
            settings: Settings {
                epoch_ns: self.epoch_ns(),
                methods,
                direction: Direction::new(self.client_net.clone()),
                max_flows: self.max_flows,
                seed: RandomState::new().hash_one(0u8),
            },
            headers: self.headers(),
            filter: self.filter(),
            expression: Expression::new(&self.expression),
            workers: self.workers(),
        };
        let mut output = Output::new(style, io::stdout());
        let name = || read.display().to_string();
        // A reader that went away (`| head`) wants no more, and no complaint.
        let (summary, table) = match engine::run(job, input, &mut output) {
            Err(error) if is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
            result => result.with_context(name)?,
        };
        match output.finish(table.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(ExitCode::SUCCESS);
            }
            result => result.context("standard output")?,
        }
        report(&summary);
        match summary.damage {
            Some(error) => Err(error).with_context(name),
            None => Ok(ExitCode::SUCCESS),
        }
    }
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
