// SPDX-License-Identifier: Apache-2.0
//! The accuracy matrix: many workloads, each recorded between client and server
//! in the request direction alone, and the estimates from that recording against
//! what the clients measured.

pub(super) mod judge;
mod modes;
pub(super) mod rig;
mod table;
pub(super) mod workload;

use std::path::{Path, PathBuf};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use super::{Context, Scenario, param};
use crate::cpu::CpuMeter;
use judge::AccuracyVerdict;
pub(super) use modes::MODES_SWEEP;
use rig::Recording;
use workload::AccuracyWorkload;

/// Workloads that mostly wait, and may therefore run at the same time.
const ABREAST: usize = 6;

/// One workload's result.
#[derive(Debug, Serialize)]
struct Outcome {
    workload: AccuracyWorkload,
    judgement: judge::Judgement,
    verdict: AccuracyVerdict,
    /// Share of the machine's CPUs that was busy meanwhile, with whatever else
    /// ran on it.
    machine_cpu_share: f64,
}

pub(super) const ACCURACY: Scenario = Scenario {
    name: "accuracy",
    about: "estimates from the request direction against the clients' log, over many workloads",
    params: &[
        param("workloads", "", "names, comma-separated; empty: all"),
        param("seconds", "5", "length of each load"),
        param(
            "keep",
            "",
            "directory for NAME.pcap and NAME.gt.csv; empty: none",
        ),
    ],
    run,
    table,
};

fn run(context: &Context) -> Result<Value> {
    let seconds: f64 = context.param("seconds")?;
    ensure!(seconds > 0.0, "seconds = {seconds}: must be above 0");
    let chosen = chosen(context, seconds)?;
    let keep: String = context.param("keep")?;
    let keep = (!keep.is_empty()).then(|| PathBuf::from(keep));
    let mut outcomes = Vec::new();
    let (quiet, busy): (Vec<_>, Vec<_>) = chosen.into_iter().partition(|w| w.mostly_waits);
    for together in quiet.chunks(ABREAST).chain(busy.chunks(1)) {
        let names: Vec<_> = together.iter().map(|w| w.name).collect();
        context.say(names.join(", "));
        let cpu = CpuMeter::start()?;
        let recordings = record(context, together)?;
        let share = cpu.share()?;
        for (workload, recording) in together.iter().zip(recordings) {
            if let Some(directory) = &keep {
                save(directory, workload.name, &recording)?;
            }
            outcomes.push(judged(workload.clone(), &recording, share)?);
        }
    }
    outcomes.sort_by_key(|o| o.workload.number);
    Ok(serde_json::to_value(outcomes)?)
}

fn table(result: &Value) -> Option<String> {
    table::render(result)
}

fn chosen(context: &Context, seconds: f64) -> Result<Vec<AccuracyWorkload>> {
    let all = workload::all(context.seed, seconds);
    let names: String = context.param("workloads")?;
    if names.is_empty() {
        return Ok(all);
    }
    names
        .split(',')
        .map(|name| {
            let known = || all.iter().map(|w| w.name).collect::<Vec<_>>().join(", ");
            all.iter()
                .find(|w| w.name == name)
                .cloned()
                .with_context(|| format!("there is no workload {name:?}; choose of {}", known()))
        })
        .collect()
}

/// Runs workloads at the same time, each in namespaces of its own.
fn record(context: &Context, workloads: &[AccuracyWorkload]) -> Result<Vec<Recording>> {
    let sandbox = context.sandbox;
    thread::scope(|scope| {
        let running: Vec<_> = workloads
            .iter()
            .map(|w| scope.spawn(move || rig::record(sandbox, w)))
            .collect();
        running
            .into_iter()
            .zip(workloads)
            .map(|(thread, w)| {
                thread
                    .join()
                    .unwrap_or_else(|_| anyhow::bail!("a thread panicked"))
                    .with_context(|| format!("workload {}", w.name))
            })
            .collect()
    })
}

fn judged(workload: AccuracyWorkload, recording: &Recording, share: f64) -> Result<Outcome> {
    let judgement = judge::judge(recording, workload.epoch_ns())
        .with_context(|| format!("workload {}", workload.name))?;
    Ok(Outcome {
        verdict: judge::verdict(&workload.target, &judgement),
        judgement,
        workload,
        machine_cpu_share: share,
    })
}

fn save(directory: &Path, name: &str, recording: &Recording) -> Result<()> {
    let at = |suffix: &str| directory.join(format!("{name}{suffix}"));
    let context = || format!("cannot write to {}", directory.display());
    fs::create_dir_all(directory).with_context(context)?;
    fs::write(at(".pcap"), &recording.pcap).with_context(context)?;
    let file = fs::File::create(at(".gt.csv")).with_context(context)?;
    recording
        .log
        .write_csv(std::io::BufWriter::new(file))
        .with_context(context)
}
