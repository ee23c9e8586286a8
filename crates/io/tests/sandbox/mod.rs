// SPDX-License-Identifier: Apache-2.0
//! Private namespaces for tests. Each test runs on a thread with mounts and a
//! network of its own; the kernel removes both when the thread is gone.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

/// A private BPF file system.
pub struct Sandbox {
    bpffs: tempfile::TempDir,
}

impl Sandbox {
    /// Runs `test` in namespaces of its own. Without root this fails: a test that
    /// cannot run has not passed.
    pub fn run(test: impl FnOnce(&Sandbox) + Send + 'static) {
        let thread = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)
                .expect("these tests need root: they make namespaces and load BPF programs");
            let none = None::<&str>;
            let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
            mount(none, "/", none, private, none).expect("make mounts private");
            let bpffs = tempfile::tempdir().expect("a directory for the BPF file system");
            mount(none, bpffs.path(), Some("bpf"), MsFlags::empty(), none).expect("mount bpffs");
            ip("link set lo up");
            test(&Sandbox { bpffs });
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }

    /// A pin directory that does not exist yet.
    pub fn pin_dir(&self, name: &str) -> PathBuf {
        self.bpffs.path().join(name)
    }

    /// The BPF file system.
    pub fn bpffs(&self) -> &Path {
        self.bpffs.path()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // Without this the temporary directory cannot be removed.
        let _ = nix::mount::umount2(self.bpffs.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}

/// A network namespace beside that of the test.
pub struct Netns(File);

impl Netns {
    pub fn new() -> Self {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network namespace");
            let ns = File::open("/proc/thread-self/ns/net").expect("the new namespace");
            ip("link set lo up");
            ns
        };
        Self(thread::spawn(make).join().expect("a network namespace"))
    }

    /// Runs `job` in this namespace and waits for it.
    pub fn run<T: Send>(&self, job: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).expect("enter the namespace");
            job()
        };
        thread::scope(|scope| match scope.spawn(enter).join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// What `ip link set IF netns` takes for this namespace.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `ip` with these arguments here.
    pub fn ip(&self, arguments: &str) {
        self.run(|| ip(arguments));
    }
}

/// Runs `ip` with these arguments in the namespace of the calling thread.
pub fn ip(arguments: &str) {
    run("ip", arguments);
}

/// Runs a command; fails the test with what it said if it fails.
pub fn run(program: &str, arguments: &str) -> String {
    let output = Command::new(program)
        .args(arguments.split_whitespace())
        .output()
        .unwrap_or_else(|e| panic!("cannot run {program}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits up to five seconds for `condition`.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !condition() {
        assert!(
            std::time::Instant::now() < deadline,
            "waited in vain: {what}"
        );
        thread::sleep(std::time::Duration::from_millis(10));
    }
}
