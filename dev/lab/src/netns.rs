// SPDX-License-Identifier: Apache-2.0
//! Network namespaces inside the sandbox, and ways to run things in them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};

use crate::background::output_of;
use crate::link;
use crate::sandbox::Sandbox;

/// One network namespace. Cheap to clone; it lives as long as the sandbox.
#[derive(Debug, Clone)]
pub struct Netns {
    name: Arc<str>,
    file: Arc<File>,
}

impl Netns {
    /// Makes a namespace and names it in the sandbox's `/run/netns`, so that
    /// `ip -n NAME` finds it. The loopback interface is up; IPv6 addresses are
    /// usable at once (no duplicate address detection, no router
    /// advertisements).
    pub fn create(_proof: Sandbox, name: &str) -> Result<Self> {
        let path = PathBuf::from("/run/netns").join(name);
        File::create_new(&path).with_context(|| format!("namespace {name} exists already"))?;
        let target = path.clone();
        // unshare(CLONE_NEWNET) changes the calling thread only.
        in_new_thread(move || {
            unshare(CloneFlags::CLONE_NEWNET).context("cannot make a network namespace")?;
            let none: Option<&str> = None;
            mount(
                Some("/proc/thread-self/ns/net"),
                &target,
                none,
                MsFlags::MS_BIND,
                none,
            )
            .context("cannot name the network namespace")?;
            link::up("lo").context("loopback")
        })?;
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let netns = Self {
            name: name.into(),
            file: Arc::new(file),
        };
        netns.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        netns.sysctl("net/ipv6/conf/default/accept_ra", "0")?;
        Ok(netns)
    }

    /// The name given at creation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `body` on a thread of its own inside this namespace and waits.
    pub fn run<T: Send + 'static>(
        &self,
        body: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.thread(body)
            .join()
            .unwrap_or_else(|_| bail!("a thread in {} panicked", self.name))
    }

    /// Starts `body` on a thread of its own inside this namespace. Sockets that
    /// it opens belong to the namespace for good; threads that it starts are in
    /// it too.
    pub fn thread<T: Send + 'static>(
        &self,
        body: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> JoinHandle<Result<T>> {
        let file = self.file.clone();
        thread::spawn(move || {
            setns(file.as_fd(), CloneFlags::CLONE_NEWNET).context("setns")?;
            body()
        })
    }

    /// A command that will run in this namespace. It sees the sandbox's mounts
    /// (unlike under `ip netns exec`, which hides bpffs).
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let file = self.file.clone();
        let mut command = Command::new(program);
        // SAFETY: setns(2) is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                setns(file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(std::io::Error::from)
            })
        };
        command
    }

    /// Runs `ip -batch` with one command per line of `script`. Lines that are
    /// empty are skipped.
    pub fn ip(&self, script: &str) -> Result<()> {
        let mut child = self
            .command("ip")
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run ip (Debian package iproute2)")?;
        child
            .stdin
            .take()
            .context("stdin of ip")?
            .write_all(script.as_bytes())?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            bail!("ip in {}: {}\n{script}", self.name, message.trim());
        }
        Ok(())
    }

    /// Runs `tc qdisc` with these words.
    pub fn qdisc(&self, words: &str) -> Result<()> {
        let mut tc = self.command("tc");
        output_of(tc.arg("qdisc").args(words.split(' '))).map(drop)
    }

    /// Writes a sysctl of this namespace; `key` has slashes
    /// (`net/ipv4/ip_forward`).
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = PathBuf::from("/proc/sys").join(key);
        let value = value.to_owned();
        self.run(move || {
            fs::write(&path, value).with_context(|| format!("sysctl {}", path.display()))
        })
    }
}

fn in_new_thread<T: Send + 'static>(
    body: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    thread::spawn(body)
        .join()
        .unwrap_or_else(|_| bail!("a namespace thread panicked"))
}
