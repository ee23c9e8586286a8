// SPDX-License-Identifier: Apache-2.0
//! `causeway agent` on a server, as its operator runs it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::api;
use crate::topology::{DEVICE, Node, VIPS, vip4, vip6};

const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A running agent. Dropped, it is killed; its data plane stays.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    directory: TempDir,
    binary: PathBuf,
    server: Node,
}

impl Agent {
    /// Starts an agent on `server` with the data plane pinned in `pin_dir`, and
    /// waits until it answers.
    pub fn start(binary: &Path, server: &Node, pin_dir: &Path) -> Result<Self> {
        Self::start_with(binary, server, pin_dir, "")
    }

    /// The same with further lines at the end of its file.
    pub fn start_with(binary: &Path, server: &Node, pin_dir: &Path, more: &str) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("agent-").tempdir()?;
        let file = directory.path().join("agent.toml");
        fs::write(&file, config(server, pin_dir, directory.path()) + more)?;
        let mut agent = Self {
            child: spawn(binary, server, directory.path())?,
            directory,
            binary: binary.to_owned(),
            server: server.clone(),
        };
        agent.wait_ready()?;
        Ok(agent)
    }

    /// Has the agent read its file and its keys again (SIGHUP).
    pub fn reload(&self) -> Result<()> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGHUP).context("kill")
    }

    /// Kills the agent (SIGKILL) and starts it again; its data plane works on.
    pub fn restart(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = spawn(&self.binary, &self.server, self.directory.path())?;
        self.wait_ready()
    }

    /// Packets of a verdict.
    pub fn verdict(&self, word: &str) -> Result<u64> {
        Ok(api::stats(&self.socket())?.verdict(word))
    }

    fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                bail!("causeway agent ended ({status}): {}", self.messages());
            }
            if api::stats(&self.socket()).is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("causeway agent does not answer: {}", self.messages())
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("agent.sock")
    }

    fn messages(&self) -> String {
        fs::read_to_string(self.directory.path().join("agent.log")).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(binary: &Path, server: &Node, directory: &Path) -> Result<Child> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(directory.join("agent.log"))?;
    server
        .netns
        .command(binary)
        .args(["agent", "-c"])
        .arg(directory.join("agent.toml"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("cannot run {}", binary.display()))
}

fn config(server: &Node, pin_dir: &Path, directory: &Path) -> String {
    let vips = (0..VIPS).flat_map(|i| [vip4(i).to_string(), vip6(i).to_string()]);
    let vips: Vec<String> = vips.collect();
    format!(
        "[agent]\ninterface = \"{DEVICE}\"\naddresses = [\"{}\", \"{}\"]\nvips = {vips:?}\n\
         pin_dir = \"{}\"\nsocket = \"{}/agent.sock\"\nhttp = false\n",
        server.ipv4,
        server.ipv6,
        pin_dir.display(),
        directory.display()
    )
}
