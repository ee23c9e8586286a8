// SPDX-License-Identifier: Apache-2.0
//! `causeway rtt` beside sockperf, qperf and a minimal client in C: one path, in turns.
//!
//! The same p50 twice in a row is rare on a shared machine: what the scheduler and the
//! hypervisor do drifts by more than the programs differ. So every round runs each
//! program, in an order drawn for it, and what is compared is the difference within a
//! round. `causeway rtt` runs twice in each: others are compared with the mean of both,
//! and the two with each other, which shows how much is drift.
//!
//! Idle CPUs are kept from sleeping (`awake`): a round trip has two wake-ups, and where
//! a virtual CPU goes back to its hypervisor each time, they take more time than all else
//! and differ by more between two runs of one program than programs do.
//!
//! All do the same: a connection, TCP_NODELAY, a blocking send and receive of the same
//! size, the clock around both. Client and server of each have a CPU of their own where there
//! are two (`cpus`): where the scheduler puts the two ends decides more than the program does.
//! All servers run all the time, waiting.
//! sockperf and qperf bring their own servers; the client in C (`ping_pong.c`) talks to
//! `causeway rtt serve`, so that the clients alone differ. sockperf and qperf report half
//! of a round trip by default; sockperf is asked for all of it, qperf's is doubled.

mod figures;
mod programs;

use anyhow::{Context as _, Result, ensure};
use causeway_bench::sampler::sampler_cost;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};

use super::{Context, Scenario, param};
use crate::cpu::{self, Awake};
use crate::path::Path;
use figures::{PeerRun, compare};
use programs::{PeersPlan, Program, compile};

pub(super) const RTT_PEERS: Scenario = Scenario {
    name: "rtt-peers",
    about: "causeway rtt beside sockperf, qperf and a minimal client in C, in turns; cost of the sampler",
    params: &[
        param("rounds", "24", "runs of each, in turns"),
        param("seconds", "1", "length of each run"),
        param("transport", "tcp", "tcp or udp"),
        param(
            "awake",
            "true",
            "keep idle CPUs from sleeping, so that no wake-up of one is in the times",
        ),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let path = Path::build(context.sandbox)?;
    let rounds: usize = context.param("rounds")?;
    let transport: String = context.param("transport")?;
    ensure!(
        ["tcp", "udp"].contains(&transport.as_str()),
        "transport is tcp or udp"
    );
    let scratch = tempfile::tempdir().context("a directory for the client in C")?;
    let plan = PeersPlan {
        address: Path::address(false).to_string(),
        seconds: context.param("seconds")?,
        ping_pong: compile(scratch.path())?,
        transport,
        cpus: cpu::two(),
    };
    if plan.cpus.is_none() {
        context.say("there is only one CPU: clients and servers share it, and wait for each other");
    }
    let programs = plan.programs();
    let _servers = plan.serve(context, &path)?;
    let kept = keep_awake(context)?;
    let awake = kept.is_some();
    let mut runs = vec![Vec::new(); programs.len()];
    let mut order: Vec<usize> = (0..programs.len()).collect();
    let mut random = StdRng::seed_from_u64(context.seed);
    for round in 0..rounds {
        // A random order: no program always follows the same one.
        order.shuffle(&mut random);
        for &index in &order {
            runs[index].push(plan.run(programs[index], context, &path)?);
        }
        context.say(format!("round {} of {rounds}", round + 1));
    }
    drop(kept);
    let cost = sampler_cost(9, 1_000_000)?;
    let net_ns = cost.not_sampled_ns - cost.nothing_ns;
    let ours = PeerRun::median(&runs[0]);
    let again = programs.iter().position(|p| *p == Program::Again);
    let both = PeerRun::means(&runs[0], &runs[again.context("our second run")?]);
    let mut result = json!({
        "awake": awake,
        "cpus": plan.cpus,
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
            PeerRun::median(theirs).text(),
            compared.text()
        ));
        result[program.name()] = json!({
            "medians": PeerRun::median(theirs).json(), "ours_against_it": compared.json(),
        });
    }
    for (program, runs) in programs.iter().zip(&runs) {
        let runs: Vec<Value> = runs.iter().map(PeerRun::json).collect();
        result["runs"][program.name()] = json!(runs);
    }
    Ok(result)
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
