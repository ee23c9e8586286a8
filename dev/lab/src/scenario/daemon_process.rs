// SPDX-License-Identifier: Apache-2.0
//! What a daemon's process holds: where it grows, something leaks.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

/// A look at a process.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct DaemonProcess {
    pub rss_kib: u64,
    pub descriptors: usize,
    pub maps: usize,
    pub maps_bytes: u64,
}

impl DaemonProcess {
    /// Of a process that runs.
    pub(super) fn of(pid: u32) -> Result<Self> {
        let root = Path::new("/proc").join(pid.to_string());
        let status = std::fs::read_to_string(root.join("status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss_kib = rss.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let (mut descriptors, mut maps, mut maps_bytes) = (0, 0, 0);
        for entry in std::fs::read_dir(root.join("fdinfo"))? {
            descriptors += 1;
            // It may have been closed meanwhile.
            let text = std::fs::read_to_string(entry?.path()).unwrap_or_default();
            let memlock = text.lines().find_map(|line| line.strip_prefix("memlock:"));
            if text.contains("map_type:")
                && let Some(bytes) = memlock.and_then(|rest| rest.trim().parse::<u64>().ok())
            {
                maps += 1;
                maps_bytes += bytes;
            }
        }
        Ok(Self {
            rss_kib: rss_kib.context("no VmRSS")?,
            descriptors,
            maps,
            maps_bytes,
        })
    }
}
