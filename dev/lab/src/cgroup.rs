// SPDX-License-Identifier: Apache-2.0
//! CPU quotas for servers, by whichever cgroup version the machine has.
//!
//! Control groups are not part of any namespace we make, so they outlive a
//! killed sandbox. Each group is therefore locked (`flock`) by its owner for
//! as long as it lives; [`sweep`] removes those without an owner.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use rand::Rng;

use crate::sandbox::Sandbox;

const PREFIX: &str = "causeway-lab-";
/// The kernel's bounds, Documentation/scheduler/sched-bwc.rst.
const LEAST_QUOTA_US: f64 = 1_000.0;
const LONGEST_PERIOD_US: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A control group with a CPU quota. Dropped, its processes go back to the root
/// group and it is removed.
#[derive(Debug)]
pub struct Cgroup {
    version: Version,
    root: PathBuf,
    path: PathBuf,
    lock: Option<Flock<File>>,
}

impl Cgroup {
    /// Makes a group with a random name and no limit yet.
    pub fn create(_proof: Sandbox) -> Result<Self> {
        let (version, root) = hierarchy()?;
        for _ in 0..100 {
            let path = root.join(format!("{PREFIX}{:016x}", rand::rng().random::<u64>()));
            fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
            // Until it is locked another run may take it for one that is left behind.
            let lock = locked(&path);
            if lock.is_some() && path.exists() {
                return Ok(Self {
                    version,
                    root,
                    path,
                    lock,
                });
            }
        }
        bail!("cannot lock a new cgroup in {}", root.display())
    }

    /// Moves a process (all its threads) into the group.
    pub fn add(&self, pid: u32) -> Result<()> {
        fs::write(self.path.join("cgroup.procs"), pid.to_string())
            .with_context(|| format!("cannot move {pid} into {}", self.path.display()))
    }

    /// Allows `share` of one CPU (0.1 = 10 %), handed out per `period`; `None`
    /// lifts the limit. Short periods (10 ms) keep the stalls short: with
    /// 100 ms a group stands still for most of that time. The kernel hands out
    /// 1 ms or more, so that for small shares the period is made longer.
    pub fn set_cpu(&self, share: Option<f64>, period: Duration) -> Result<()> {
        ensure!(
            share.is_none_or(|s| s > 0.0),
            "a share of the CPU must be above 0"
        );
        let least_us = share.map_or(0.0, |s| LEAST_QUOTA_US / s).ceil() as u64;
        let period_us = (period.as_micros() as u64)
            .max(least_us)
            .min(LONGEST_PERIOD_US);
        let quota_us = share.map(|s| (s * period_us as f64).max(LEAST_QUOTA_US).round() as u64);
        match self.version {
            Version::V2 => {
                let quota = quota_us.map_or("max".to_owned(), |q| q.to_string());
                self.write("cpu.max", &format!("{quota} {period_us}"))
            }
            Version::V1 => {
                // The kernel checks quota against period at each write, so lift first.
                self.write("cpu.cfs_quota_us", "-1")?;
                self.write("cpu.cfs_period_us", &period_us.to_string())?;
                match quota_us {
                    Some(q) => self.write("cpu.cfs_quota_us", &q.to_string()),
                    None => Ok(()),
                }
            }
        }
    }

    /// Periods in which the limit held somebody up.
    pub fn throttled(&self) -> Result<u64> {
        let stat = fs::read_to_string(self.path.join("cpu.stat"))?;
        let count = stat
            .lines()
            .find_map(|line| line.strip_prefix("nr_throttled "));
        Ok(count.context("no nr_throttled in cpu.stat")?.parse()?)
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, value)
            .with_context(|| format!("cannot write {value} to {}", path.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Ok(members) = fs::read_to_string(self.path.join("cgroup.procs")) {
            for pid in members.lines() {
                let _ = fs::write(self.root.join("cgroup.procs"), pid);
            }
        }
        self.lock = None;
        let _ = fs::remove_dir(&self.path);
    }
}

/// Removes groups that runs now dead have left behind.
pub fn sweep() {
    let Ok((_, root)) = hierarchy() else { return };
    let Ok(entries) = fs::read_dir(&root) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let lock = locked(&entry.path());
        if lock.is_some() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The lock of a group; `None`: another has it, or there is no such group.
fn locked(path: &Path) -> Option<Flock<File>> {
    let directory = File::open(path).ok()?;
    Flock::lock(directory, FlockArg::LockExclusiveNonblock).ok()
}

/// The CPU controller's root: v1 where it is mounted, else v2, else a v2 or v1
/// mount of our own.
fn hierarchy() -> Result<(Version, PathBuf)> {
    if let Some(found) = mounted()? {
        return Ok(found);
    }
    let at = Path::new("/run/cgroup");
    if Sandbox::current().is_none() {
        bail!("no cgroup CPU controller is mounted");
    }
    fs::create_dir_all(at)?;
    let none: Option<&str> = None;
    mount(Some("cgroup2"), at, Some("cgroup2"), MsFlags::empty(), none)
        .or_else(|_| {
            mount(
                Some("cgroup"),
                at,
                Some("cgroup"),
                MsFlags::empty(),
                Some("cpu"),
            )
        })
        .context("cannot mount a cgroup hierarchy")?;
    mounted()?.context("this kernel offers no cgroup CPU controller")
}

fn mounted() -> Result<Option<(Version, PathBuf)>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
    let mut v2 = None;
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(1);
        let (Some(at), Some(kind), Some(options)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        match kind {
            "cgroup" if options.split(',').any(|o| o == "cpu") => {
                return Ok(Some((Version::V1, at.into())));
            }
            "cgroup2" if has_cpu(Path::new(at)) => v2 = Some((Version::V2, PathBuf::from(at))),
            _ => {}
        }
    }
    Ok(v2)
}

/// Whether a v2 hierarchy controls the CPU; switches the controller on for the
/// root's children.
fn has_cpu(root: &Path) -> bool {
    let has = |file: &str| {
        fs::read_to_string(root.join(file))
            .is_ok_and(|s| s.split_whitespace().any(|word| word == "cpu"))
    };
    has("cgroup.controllers")
        && (has("cgroup.subtree_control")
            || fs::write(root.join("cgroup.subtree_control"), "+cpu").is_ok())
}
