// SPDX-License-Identifier: Apache-2.0
//! How busy the machine is, so that a result says whether it was measured on a
//! machine that had time to spare.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// `USER_HZ`: the unit of `/proc/stat`, fixed at 100 for user space.
const TICKS_PER_SECOND: u64 = 100;

/// Counts from the first line of `/proc/stat`.
#[derive(Debug, Clone, Copy)]
pub struct CpuMeter {
    busy: u64,
    total: u64,
}

impl CpuMeter {
    /// Starts now.
    pub fn start() -> Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let fields: Vec<u64> = stat
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .take(8)
            .filter_map(|f| f.parse().ok())
            .collect();
        // user nice system idle iowait irq softirq steal: proc(5).
        anyhow::ensure!(fields.len() == 8, "/proc/stat has an unknown form");
        let total = fields.iter().sum();
        Ok(Self {
            busy: total - fields[3] - fields[4],
            total,
        })
    }

    /// Share of all CPUs that was busy since the start, 0 to 1; steal counts as
    /// busy.
    pub fn share(&self) -> Result<f64> {
        let now = Self::start()?;
        let total = now.total.saturating_sub(self.total).max(1);
        Ok(now.busy.saturating_sub(self.busy) as f64 / total as f64)
    }
}

/// CPU time (user and system) of a process, in steps of 10 ms.
pub fn process_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name may hold blanks; fields count from behind its bracket.
    let after = &stat[stat.rfind(')')? + 1..];
    let mut fields = after.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis(
        (user + system) * 1000 / TICKS_PER_SECOND,
    ))
}

/// The children of a process's main thread.
pub fn children(pid: u32) -> Vec<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|p| p.parse().ok())
        .collect()
}
