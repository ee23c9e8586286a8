// SPDX-License-Identifier: Apache-2.0
//! Who keeps connections while everything changes: the experiment of Barbette et al.,
//! NSDI 2020, figure 9, scaled to one machine and made harder.
//!
//! Under a load that rises and falls, the pool grows and then drains. Meanwhile the
//! balancer is swapped for one that knows nothing, keys rotate and agents restart.
//! Clients stream, send one request and go, or are silent for minutes in between;
//! those of QUIC move. Each way to keep connections gets the same load, in a laboratory
//! of its own; some of them run side by side.

mod chain;
mod plan;
mod ways;
mod world;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use self::plan::PccPlan;
use self::ways::Way;
use self::world::PccWorld;
use super::{Context, Scenario, param};
use crate::modelled_servers;
use crate::sandbox::Sandbox;

pub(super) const PCC_SCALE: Scenario = Scenario {
    name: "pcc-scale",
    about: "the pool grows and drains, the balancer is swapped: which connections break",
    params: &[
        param("names", "all", "ways to run, joined by commas"),
        param("jobs", "2", "how many of them run at a time"),
        param(
            "seconds",
            "110",
            "how long new connections come, for each name",
        ),
        param("from", "24", "servers at the start"),
        param("to", "31", "servers at the height of the load"),
        param("drain", "8", "servers that are drained after it"),
        param("low", "90", "lowest rate of new connections per second"),
        param("high", "150", "highest rate of new connections per second"),
        param("streams", "60", "clients that send a request every 250 ms"),
        param(
            "idlers",
            "80",
            "clients that are silent between two requests",
        ),
        param("idle_min_s", "70", "shortest of those silences"),
        param("idle_max_s", "140", "longest of those silences"),
        param(
            "adopt",
            "true",
            "whether an empty stateful balancer has 2.5 s to learn before it takes over",
        ),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let names: String = context.param("names")?;
    let queue = Queue {
        plan: PccPlan::read(context)?,
        ways: plan::ways(&names)?,
        next: AtomicUsize::new(0),
        binary: context.binary.clone(),
    };
    let jobs = context.param::<usize>("jobs")?.min(queue.ways.len());
    ensure!((1..=4).contains(&jobs), "jobs must lie between 1 and 4");
    modelled_servers::raise_fd_limit(16_384)?;
    context.say(format!("{names}: {:?} each", queue.plan.lasts));
    let (done, results) = channel();
    let mut runs: Vec<Option<Value>> = vec![None; queue.ways.len()];
    std::thread::scope(|scope| {
        for job in 0..jobs {
            let (queue, done) = (&queue, done.clone());
            let sandbox = context.sandbox;
            scope.spawn(move || queue.work(sandbox, job, &done));
        }
        drop(done);
        for (index, result) in results {
            let run = result?;
            context.say(summary(&run));
            runs[index] = Some(run);
        }
        Ok::<(), anyhow::Error>(())
    })?;
    match runs.into_iter().collect::<Option<Vec<Value>>>() {
        Some(runs) => Ok(json!({ "runs": runs })),
        None => bail!("a run panicked"),
    }
}

/// The ways that are still to run.
struct Queue {
    plan: PccPlan,
    ways: Vec<&'static Way>,
    next: AtomicUsize,
    binary: PathBuf,
}

impl Queue {
    /// Runs one way after another until none is left, or one could not be run.
    fn work(&self, sandbox: Sandbox, job: usize, done: &Sender<(usize, Result<Value>)>) {
        let prefix = match job {
            0 => String::new(),
            _ => format!("{job}-"),
        };
        let world = PccWorld::build(sandbox, &self.binary, self.plan.to, &prefix);
        let world = match world {
            Ok(world) => world,
            Err(error) => return drop(done.send((0, Err(error)))),
        };
        while let index = self.next.fetch_add(1, Ordering::Relaxed)
            && let Some(way) = self.ways.get(index)
        {
            let began = Instant::now();
            let run = world.run(&self.plan, way).map(|mut run| {
                run["took_s"] = json!(began.elapsed().as_secs_f64());
                run
            });
            let failed = run.is_err();
            if done.send((index, run)).is_err() || failed {
                return;
            }
        }
    }
}

fn summary(run: &Value) -> String {
    let number = |key: &str| run[key].as_f64().unwrap_or_default();
    format!(
        "{}: {} of {} connections broken, {} of {} requests, worst second {:.1} % ({:.0} s)",
        run["name"].as_str().unwrap_or_default(),
        number("broken_connections"),
        number("connections"),
        number("broken_requests"),
        number("requests"),
        number("worst_second_broken_pct"),
        number("took_s"),
    )
}
