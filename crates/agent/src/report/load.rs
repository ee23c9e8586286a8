// SPDX-License-Identifier: Apache-2.0
//! How busy this server is.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;
use std::{fs, io};

use causeway_core::agent_report::{Boot, ServerLoad};
use causeway_netio::{boot_id, in_flight};
use causeway_service::log_fault;

/// Connections are counted for at most this part of the time: a server with very many is
/// asked more seldom, and reports what was found then.
const COUNTING_PART: u32 = 20;

/// Reads the kernel's figures.
#[derive(Default)]
pub(super) struct LoadReader {
    cpu: CpuTimes,
    /// `None` until there are two readings: a server that says nothing counts as average.
    busy_milli: Option<u32>,
    in_flight: u32,
    /// When connections may be counted again.
    count_at: Option<Instant>,
    /// Why the last count failed.
    fault: Option<String>,
}

impl LoadReader {
    /// The load since the last reading, which the first one does not have; connections to `vips`
    /// count.
    pub(super) fn read(&mut self, vips: &BTreeSet<IpAddr>) -> Option<ServerLoad> {
        let busy = fs::read_to_string("/proc/stat")
            .ok()
            .and_then(|text| CpuTimes::parse(&text))
            .and_then(|now| std::mem::replace(&mut self.cpu, now).busy_milli(&now));
        self.busy_milli = busy.or(self.busy_milli);
        self.count(vips);
        Some(ServerLoad {
            cpu_milli: self.busy_milli?,
            in_flight: self.in_flight,
        })
    }

    fn count(&mut self, vips: &BTreeSet<IpAddr>) {
        let began = Instant::now();
        if self.count_at.is_some_and(|at| at > began) {
            return;
        }
        self.counted(in_flight(vips));
        self.count_at = Some(began + began.elapsed() * COUNTING_PART);
    }

    fn counted(&mut self, outcome: io::Result<u32>) {
        self.in_flight = *outcome.as_ref().unwrap_or(&0);
        log_fault!(
            self.fault,
            outcome.err().map(|error| error.to_string()),
            "connections that wait cannot be counted, and are reported as none: {}",
            "connections that wait are counted again"
        );
    }
}

/// This boot of the machine.
pub(super) fn boot() -> Boot {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    Boot {
        time_s: boot_time_s(&text).unwrap_or(0),
        id: boot_id() as u32,
    }
}

fn boot_time_s(stat: &str) -> Option<u32> {
    let mut lines = stat.lines();
    lines.find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

/// Ticks of all CPUs since the boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CpuTimes {
    busy: u64,
    all: u64,
}

impl CpuTimes {
    /// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq,
    /// steal; what guests take is in user and nice.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let numbers = line.split_ascii_whitespace().take(8);
        let ticks: Vec<u64> = numbers.map_while(|n| n.parse().ok()).collect();
        let all = ticks.iter().sum();
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self {
            busy: all - idle,
            all,
        })
    }

    /// Busy share since `self`, thousandths; `None` if no tick has passed.
    fn busy_milli(self, now: &Self) -> Option<u32> {
        let all = now.all.saturating_sub(self.all);
        let busy = now.busy.saturating_sub(self.busy).min(all);
        (all > 0 && self.all > 0).then(|| (busy * 1000 / all) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_share_is_of_the_time_between_two_readings() {
        let at = |text: &str| CpuTimes::parse(text).expect("a line");
        let first = at("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3\n");
        assert_eq!(
            first,
            CpuTimes {
                busy: 150,
                all: 1000
            }
        );
        let then = at("cpu  130 0 60 850 60 0 0 0 9 0\n");
        assert_eq!(first.busy_milli(&then), Some(400));
        assert_eq!(then.busy_milli(&then), None);
        assert_eq!(CpuTimes::default().busy_milli(&then), None);
        for text in ["", "cpu0 1 2 3 4 5", "cpu  1 2 x 4 5", "cpu  1 2 3"] {
            assert_eq!(CpuTimes::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn there_is_no_load_before_two_readings() {
        let (mut reader, vips) = (LoadReader::default(), BTreeSet::new());
        assert_eq!(reader.read(&vips), None);
        let began = Instant::now();
        while reader.read(&vips).is_none() {
            assert!(began.elapsed().as_secs() < 10, "no tick");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    #[test]
    fn a_count_that_fails_is_none_and_the_next_one_counts_again() {
        let mut reader = LoadReader::default();
        reader.counted(Ok(7));
        assert_eq!((reader.in_flight, &reader.fault), (7, &None));
        for _ in 0..2 {
            reader.counted(Err(io::ErrorKind::PermissionDenied.into()));
            assert_eq!(reader.in_flight, 0);
            assert!(reader.fault.is_some());
        }
        reader.counted(Ok(3));
        assert_eq!((reader.in_flight, &reader.fault), (3, &None));
    }

    #[test]
    fn the_boots_time_is_read() {
        assert_eq!(
            boot_time_s("cpu  1 2\nbtime 1700000000\nprocesses 3\n"),
            Some(1_700_000_000)
        );
        assert_eq!(boot_time_s("cpu  1 2\n"), None);
        assert!(boot().time_s > 1_000_000_000);
    }
}
