// SPDX-License-Identifier: Apache-2.0
//! The worst night of a balancer: its process is killed in front of system calls, and what it
//! stands on fails. Connections through it must not notice.
//!
//! Two parts. `kills`: `kill -9` in front of each system call of a start, a reload, a drain, a
//! stop, a removal and a rotation, or of some of them. After each the data plane must forward
//! on, the next start must succeed, what was set by hand must be there, and nothing more than
//! before be pinned or attached. `troubles`: the disk, the BPF file system, the interface and
//! other daemons.

mod kills;
mod strace;
mod troubles;
mod world;

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use self::world::World;
use super::{Context, Scenario, param};

pub(super) const NIGHT: Scenario = Scenario {
    name: "night",
    about: "kill -9 at system calls, full disks, lost interfaces and pins, beside live connections",
    params: &[
        param(
            "kills",
            "20",
            "system calls of each deed at which the process is killed; 0: all",
        ),
        param("deeds", "all", "names of deeds, joined by +, or none"),
        param("troubles", "all", "names of troubles, joined by +, or none"),
        param(
            "minutes",
            "0",
            "how long troubles, reloads and drains go on with one process, which must not grow",
        ),
        param(
            "planted",
            "",
            "torn-state: half of the state is lost at each kill, which the campaign must find",
        ),
    ],
    run,
    table: |result| {
        let rows = result["interface"]["kills"].as_array()?;
        let mut lines = vec![format!(
            "{:<12} {:>6} {:>6}  faults",
            "deed", "calls", "killed"
        )];
        lines.extend(rows.iter().map(|row| {
            format!(
                "{:<12} {:>6} {:>6}  {}",
                row["deed"].as_str().unwrap_or_default(),
                row["calls"],
                row["killed"],
                row["faults"]
            )
        }));
        Some(lines.join("\n"))
    },
};

fn run(context: &Context) -> Result<Value> {
    let planted: String = context.param("planted")?;
    if !["", "torn-state"].contains(&planted.as_str()) {
        bail!("{planted:?} is not a planted fault; there is torn-state");
    }
    let many: usize = context.param("kills")?;
    let deeds: String = context.param("deeds")?;
    let deeds = kills::choose_deeds(&deeds)?;
    let mut world = World::build(context, &planted)?;
    let mut rows = kills::run(&mut world, &deeds, true, many)?;
    world.begin_load()?;
    rows.extend(kills::run(&mut world, &deeds, false, many)?);
    let troubles: String = context.param("troubles")?;
    let troubles = troubles::run(&mut world, &troubles)?;
    let minutes: f64 = context.param("minutes")?;
    let endured = (minutes > 0.0)
        .then(|| troubles::endure(&mut world, Duration::from_secs_f64(minutes * 60.0)))
        .transpose()?;
    let faults: Vec<&Value> = rows
        .iter()
        .chain(&troubles)
        .chain(&endured)
        .filter(|row| row["faults"] != json!([]))
        .collect();
    if !planted.is_empty() {
        ensure!(!faults.is_empty(), "the planted fault was not found");
        return Ok(json!({ "interface": { "kills": rows, "planted_found": planted } }));
    }
    ensure!(faults.is_empty(), "{}", json!(faults));
    Ok(json!({ "interface": { "kills": rows, "troubles": troubles, "endured": endured } }))
}
