// SPDX-License-Identifier: Apache-2.0
//! What the kernel itself says that BPF programs cost while they run
//! (BPF_ENABLE_STATS, Linux 5.8).

use std::ffi::OsStr;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::Path;

use libbpf_rs::Link;
use libbpf_rs::query::{ProgInfoIter, ProgramInfo};

use crate::dataplane::{BenchError, failed};

/// Totals of one loaded program since statistics were first enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTime {
    /// The kernel's number of the program.
    pub program: u32,
    /// How often it ran.
    pub runs: u64,
    /// Time in it, nanoseconds; two clock reads of the kernel per run included.
    pub run_time_ns: u64,
}

impl From<ProgramInfo> for RunTime {
    fn from(program: ProgramInfo) -> Self {
        Self {
            program: program.id,
            runs: program.run_cnt,
            run_time_ns: program.run_time_ns,
        }
    }
}

/// The kernel keeps statistics as long as one of these lives, anywhere.
#[derive(Debug)]
pub struct RunTimes {
    _enabled: OwnedFd,
}

impl RunTimes {
    /// Switches the statistics on, for every program of the machine.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or before Linux 5.8.
    pub fn enable() -> Result<Self, BenchError> {
        // SAFETY: takes a number and returns a descriptor or an error.
        let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if fd < 0 {
            let cause = libbpf_rs::Error::from_raw_os_error(-fd);
            return Err(failed(
                "enabling the kernel's run-time statistics of BPF programs",
            )(cause));
        }
        Ok(Self {
            // SAFETY: the descriptor is new and owned here alone.
            _enabled: unsafe { OwnedFd::from_raw_fd(fd) },
        })
    }

    /// All loaded programs called `name`, the oldest first; times stand still while the
    /// statistics are off. The name is the C
    /// function's, cut to 15 bytes by the kernel.
    #[must_use]
    pub fn of(name: &str) -> Vec<RunTime> {
        ProgInfoIter::default()
            .filter(|program| program.name == OsStr::new(name))
            .map(RunTime::from)
            .collect()
    }

    /// The program that the link pinned at `link` has attached; `None`: it is gone.
    ///
    /// # Errors
    /// If there is no such link.
    pub fn attached(link: &Path) -> Result<Option<RunTime>, BenchError> {
        let link = Link::open(link).and_then(|link| link.info());
        let attached = link.map_err(failed("opening the program's link"))?.prog_id;
        let mut all = ProgInfoIter::default();
        Ok(all.find(|p| p.id == attached).map(RunTime::from))
    }
}
