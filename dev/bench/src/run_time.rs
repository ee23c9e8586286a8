// SPDX-License-Identifier: Apache-2.0
//! What the kernel itself says that BPF programs cost while they run
//! (BPF_ENABLE_STATS, Linux 5.8).

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::Path;

use libbpf_rs::Link;
use libbpf_rs::query::{ProgInfoIter, ProgramInfo};

use crate::dataplane::{BenchError, failed};

/// Totals of one loaded program since statistics were first enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunTime {
    /// How often it ran.
    pub runs: u64,
    /// Time in it, nanoseconds; two clock reads of the kernel per run included.
    pub run_time_ns: u64,
}

impl From<ProgramInfo> for RunTime {
    fn from(program: ProgramInfo) -> Self {
        Self {
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

    /// Of a loaded program; its times stand still while the statistics are off. There is no
    /// finding it by name: whoever else runs this build has loaded one of that name.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn of(program: BorrowedFd<'_>) -> Result<RunTime, BenchError> {
        let mut info = libbpf_sys::bpf_prog_info::default();
        let mut len = size_of_val(&info) as u32;
        // SAFETY: `info` is writable for `len` bytes, and asks for none behind it.
        let ret = unsafe {
            libbpf_sys::bpf_prog_get_info_by_fd(program.as_raw_fd(), &mut info, &mut len)
        };
        if ret < 0 {
            let cause = libbpf_rs::Error::from_raw_os_error(-ret);
            return Err(failed("reading a program's run time")(cause));
        }
        Ok(RunTime {
            runs: info.run_cnt,
            run_time_ns: info.run_time_ns,
        })
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
