// SPDX-License-Identifier: Apache-2.0
//! How busy the machine is, so that a result says whether it was measured on a
//! machine that had time to spare; CPUs that stay awake, and which thread has which.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fs, hint, io};

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// `USER_HZ`: the unit of `/proc/stat`, fixed at 100 for user space.
const TICKS_PER_SECOND: u64 = 100;

/// Counts from the first line of `/proc/stat`.
#[derive(Debug, Clone, Copy)]
pub struct CpuMeter {
    busy: u64,
    stolen: u64,
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
            stolen: fields[7],
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

    /// What the hypervisor gave to others since the start.
    pub fn steal(&self) -> Result<Steal> {
        let now = Self::start()?;
        Ok(Steal::of(
            now.stolen.saturating_sub(self.stolen),
            now.total.saturating_sub(self.total),
        ))
    }
}

/// CPU time that the hypervisor gave to others, over one stretch of time or several: what
/// waited meanwhile says nothing about the program.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Steal {
    stolen: u64,
    total: u64,
    worst_pct: f64,
}

impl Steal {
    /// Of a stretch of so much time of all CPUs, in one unit.
    pub fn of(stolen: u64, total: u64) -> Self {
        let mut one = Self {
            stolen,
            total,
            worst_pct: 0.0,
        };
        one.worst_pct = one.pct();
        one
    }

    /// Both stretches.
    pub fn and(self, other: Self) -> Self {
        Self {
            stolen: self.stolen + other.stolen,
            total: self.total + other.total,
            worst_pct: self.worst_pct.max(other.worst_pct),
        }
    }

    /// In percent of all CPUs' time.
    pub fn pct(&self) -> f64 {
        100.0 * self.stolen as f64 / self.total.max(1) as f64
    }

    /// The same of the stretch that has most.
    pub fn worst_pct(&self) -> f64 {
        self.worst_pct
    }
}

/// As long as it lives, no CPU that this process may use sleeps: a thread of the lowest policy
/// (SCHED_IDLE) runs on each and yields to everything else. A wake-up then costs no exit from
/// an idle state and, in a virtual machine, no wait for the hypervisor to run the CPU
/// again.
#[derive(Debug)]
pub struct Awake {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Starts the threads.
    pub fn keep() -> Result<Self> {
        let done = Arc::new(AtomicBool::new(false));
        let mut awake = Self {
            done: done.clone(),
            threads: Vec::new(),
        };
        let (ready, started) = mpsc::channel();
        let cpus = usable()?;
        for &cpu in &cpus {
            let (done, ready) = (done.clone(), ready.clone());
            awake.threads.push(thread::spawn(move || {
                let set = give_way(cpu);
                let usable = set.is_ok();
                // `keep` waits for this.
                let _ = ready.send(set);
                while usable && !done.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            }));
        }
        for set in started.iter().take(cpus.len()) {
            set.context("cannot keep a CPU awake")?;
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It does nothing that could fail.
            let _ = thread.join();
        }
    }
}

/// Two CPUs that this process may use, `None` where it has only one: one for each end of
/// a path. On two hosts the ends never meet on a CPU; on one the scheduler moves a program
/// to where it is woken from, and a round trip there is shorter by both wake-ups.
pub fn two() -> Option<[usize; 2]> {
    usable().ok()?.first_chunk().copied()
}

/// The CPUs that this process may use.
pub fn usable() -> io::Result<Vec<usize>> {
    let ours = sched_getaffinity(Pid::from_raw(0))?;
    let all = 0..CpuSet::count();
    Ok(all.filter(|&cpu| ours.is_set(cpu) == Ok(true)).collect())
}

/// Keeps this thread, and those that it starts from now on, to one CPU.
pub fn keep_to(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Keeps what `command` starts to one CPU.
pub fn keep_command_to(command: &mut Command, cpu: usize) {
    // SAFETY: sched_setaffinity(2) is async-signal-safe, its argument is on the stack.
    unsafe { command.pre_exec(move || keep_to(cpu)) };
}

/// Makes this thread run on one CPU, and only when nothing else wants it.
fn give_way(cpu: usize) -> io::Result<()> {
    keep_to(cpu)?;
    let lowest = libc::sched_param { sched_priority: 0 };
    // SAFETY: a live parameter; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &lowest) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets this thread run before others that want its CPU: what it writes down as the truth
/// must not be what it waited for them.
pub fn go_first() -> io::Result<()> {
    // SAFETY: no memory is involved; 0 is the calling thread.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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

/// CPU time of a process with all its threads, those that have ended too, to the
/// nanosecond; `None` where there is no such process.
pub fn process_clock(pid: u32) -> Option<Duration> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid).ok()?)).ok()?;
    Some(clock_gettime(clock).ok()?.into())
}

/// The children of a process's main thread.
pub fn children(pid: u32) -> Vec<u32> {
    fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|p| p.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::thread::JoinHandleExt as _;

    use super::*;

    /// The CPUs that a thread may use.
    fn cpus_of(thread: &JoinHandle<()>) -> Vec<usize> {
        // SAFETY: all zeros are a set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: a thread that has not been joined, a live set and its size.
        let ret = unsafe {
            libc::pthread_getaffinity_np(thread.as_pthread_t(), size_of_val(&set), &mut set)
        };
        assert_eq!(ret, 0);
        // SAFETY: below, CPUs that the set has room for.
        let has = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
        (0..CpuSet::count()).filter(has).collect()
    }

    #[test]
    fn cpus_that_this_process_may_not_use_are_left_alone() {
        let seen = thread::spawn(|| {
            // Not the first one, where there are two.
            let ours = *usable().unwrap().last().unwrap();
            keep_to(ours).unwrap();
            let awake = Awake::keep().unwrap();
            (ours, awake.threads.iter().map(cpus_of).collect::<Vec<_>>())
        });
        let (ours, kept) = seen.join().unwrap();
        assert_eq!(kept, [[ours]]);
    }

    #[test]
    fn threads_stay_where_they_are_kept() {
        // A thread of its own: the test's own harness keeps its CPUs.
        let seen = thread::spawn(|| {
            let first = two().map_or(0, |[first, _]| first);
            keep_to(first).unwrap();
            let inherited = thread::spawn(|| sched_getaffinity(Pid::from_raw(0)).unwrap());
            (first, two(), inherited.join().unwrap())
        });
        let (first, left, inherited) = seen.join().unwrap();
        assert_eq!(left, None, "one CPU is not two");
        let kept: Vec<usize> = (0..CpuSet::count())
            .filter(|&cpu| inherited.is_set(cpu) == Ok(true))
            .collect();
        assert_eq!(kept, [first]);
    }

    #[test]
    fn stolen_time_is_that_of_all_and_of_the_worst_stretch() {
        let both = Steal::of(4, 100).and(Steal::of(0, 300));
        assert_eq!((both.pct(), both.worst_pct()), (1.0, 4.0));
        assert_eq!(Steal::default().and(both), both);
        assert_eq!(Steal::of(0, 0).pct(), 0.0);
    }

    #[test]
    fn threads_that_keep_cpus_awake_end_when_dropped() {
        let awake = Awake::keep().unwrap();
        assert!(!awake.threads.is_empty());
        assert!(awake.threads.iter().all(|thread| !thread.is_finished()));
        let done = awake.done.clone();
        drop(awake);
        // Joined: this is the only reference.
        assert_eq!(Arc::strong_count(&done), 1);
    }
}
