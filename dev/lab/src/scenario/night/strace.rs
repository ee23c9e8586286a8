// SPDX-License-Identifier: Apache-2.0
//! The system calls of a process, and SIGKILL in front of one of them, by strace.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::background::KilledOnDrop;
use crate::clock::until;

const TIMEOUT: Duration = Duration::from_secs(60);
const LETTING_GO: Duration = Duration::from_secs(5);

/// A call that a process has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    /// Where a kill in front of it would be.
    pub point: KillPoint,
    /// Whether the thread made it that was first.
    pub of_main: bool,
    /// Whether it can leave something behind, in the kernel or on a disk.
    pub leaves: bool,
}

/// In front of the `nth` call of this name that any one thread makes, from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KillPoint {
    pub name: String,
    pub nth: usize,
}

/// What strace watches.
pub(super) struct Strace {
    log: PathBuf,
    point: Option<KillPoint>,
    /// Where only calls that touch these are of interest.
    paths: Vec<PathBuf>,
}

impl Strace {
    /// Writes the calls into a file in `directory`, which is recreated.
    pub(super) fn new(directory: &Path, point: Option<&KillPoint>) -> Result<Self> {
        let log = directory.join("strace");
        fs::write(&log, "").context("the log of strace")?;
        Ok(Self {
            log,
            point: point.cloned(),
            paths: Vec::new(),
        })
    }

    /// Only calls that touch these paths, by whatever thread.
    pub(super) fn touching(self, paths: Vec<PathBuf>) -> Self {
        Self { paths, ..self }
    }

    /// The words in front of a command that is to be watched with all its threads.
    pub(super) fn before(&self) -> Vec<String> {
        let mut words = vec!["strace".to_owned(), "-f".to_owned()];
        words.extend(self.words());
        words
    }

    /// Watches a process that runs, with all its threads: what changes something is mostly done
    /// by another than the first.
    pub(super) fn attach(&self, pid: u32) -> Result<Attached> {
        let strace = Command::new("strace")
            .arg("-f")
            .args(self.words())
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run strace (Debian package strace)")?;
        let mut attached = Attached(KilledOnDrop(strace));
        let status = format!("/proc/{pid}/status");
        let traced = until(TIMEOUT, || {
            ensure!(attached.0.try_wait()?.is_none(), "strace did not attach");
            let status = fs::read_to_string(&status)?;
            let mut lines = status.lines();
            let traced = lines.any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"));
            Ok(traced.then_some(()))
        })?;
        traced.context("strace does not attach")?;
        Ok(attached)
    }

    fn words(&self) -> Vec<String> {
        let mut words = vec!["-qq".to_owned(), "-o".to_owned()];
        words.push(self.log.display().to_string());
        for path in &self.paths {
            words.extend(["-P".to_owned(), path.display().to_string()]);
        }
        if let Some(KillPoint { name, nth }) = &self.point {
            words.push(format!("--trace={name}"));
            words.push(format!("--inject={name}:signal=SIGKILL:when={nth}"));
        }
        words
    }

    /// Whether the kill has come, of a process that has ended.
    pub(super) fn has_killed(&self) -> bool {
        self.point.is_some() && self.text().contains("+++ killed by SIGKILL +++")
    }

    /// The first process that was watched, of those that `before` starts.
    pub(super) fn pid(&self) -> Option<Pid> {
        self.text()
            .split(' ')
            .next()?
            .parse()
            .ok()
            .map(Pid::from_raw)
    }

    /// The calls that were seen, in their order.
    pub(super) fn calls(&self) -> Result<Vec<Call>> {
        let calls = calls(&self.text());
        ensure!(!calls.is_empty(), "strace has seen no call");
        Ok(calls)
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// A strace on a running process; dropped, it lets go.
pub(super) struct Attached(KilledOnDrop);

impl Attached {
    /// Lets go of a process that runs, or waits until strace has seen and written down its end.
    pub(super) fn let_go(mut self, runs: bool) -> Result<()> {
        if !runs && until(LETTING_GO, || Ok(self.0.try_wait()?))?.is_some() {
            return Ok(());
        }
        // It may have ended.
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        match until(LETTING_GO, || Ok(self.0.try_wait()?))? {
            Some(_) => Ok(()),
            // It waits for a thread that dies; the kernel lets go of what it traced.
            None => self.0.kill_and_wait(),
        }
    }
}

fn calls(log: &str) -> Vec<Call> {
    let mut counts: HashMap<(u32, &str), usize> = HashMap::new();
    // Each line begins with a thread's number.
    let lines = log.lines().filter_map(|line| {
        let (thread, call) = line.split_once(' ')?;
        Some((thread.parse::<u32>().ok()?, call))
    });
    // They are given out in turn.
    let main = lines.clone().map(|(thread, _)| thread).min();
    let mut calls = Vec::new();
    for (thread, call) in lines {
        let call = call.trim_start();
        let Some((name, arguments)) = call.split_once('(') else {
            continue;
        };
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            continue;
        }
        let nth = counts.entry((thread, name)).or_default();
        *nth += 1;
        calls.push(Call {
            point: KillPoint {
                name: name.to_owned(),
                nth: *nth,
            },
            of_main: main == Some(thread),
            leaves: leaves(name, arguments),
        });
    }
    calls
}

/// Whether a call can leave something that outlives the process, or half of it.
fn leaves(name: &str, arguments: &str) -> bool {
    const ALWAYS: [&str; 16] = [
        "bind",
        "chmod",
        "fchmod",
        "fdatasync",
        "flock",
        "fsync",
        "ftruncate",
        "ioctl",
        "link",
        "mkdir",
        "rename",
        "rmdir",
        "sendmsg",
        "sendto",
        "setsockopt",
        "unlink",
    ];
    const READS: [&str; 8] = [
        "BPF_MAP_LOOKUP",
        "BPF_MAP_GET",
        "BPF_OBJ_GET,",
        "BPF_OBJ_GET_INFO",
        "BPF_PROG_GET",
        "BPF_BTF_GET",
        "BPF_LINK_GET",
        "BPF_PROG_QUERY",
    ];
    match name {
        "bpf" => !READS.iter().any(|read| arguments.starts_with(read)),
        "openat" => arguments.contains("O_CREAT"),
        // Not to the log.
        "write" | "writev" => !arguments.starts_with("1,") && !arguments.starts_with("2,"),
        _ => ALWAYS.contains(&name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_thread_and_name() {
        let log = "7 bpf(BPF_MAP_CREATE, {map_type=2}, 80) = 3\n\
                   7 openat(AT_FDCWD, \"/x\", O_RDONLY) = 4\n\
                   8 bpf(BPF_MAP_LOOKUP_ELEM, {} <unfinished ...>\n\
                   7 bpf(BPF_OBJ_PIN, {}, 24) = 0\n\
                   8 <... bpf resumed>) = 0\n\
                   7 +++ exited with 0 +++\n";
        let seen: Vec<_> = calls(log)
            .into_iter()
            .map(|call| (call.point.name, call.point.nth, call.of_main, call.leaves))
            .collect();
        let call = |name: &str, nth, of_main, leaves| (name.to_owned(), nth, of_main, leaves);
        assert_eq!(
            seen,
            [
                call("bpf", 1, true, true),
                call("openat", 1, true, false),
                call("bpf", 1, false, false),
                call("bpf", 2, true, true),
            ]
        );
    }
}
