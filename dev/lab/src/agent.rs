// SPDX-License-Identifier: Apache-2.0
//! `causeway agent` on a server, as its operator runs it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use causeway_api::agent::{AgentStats, ClientsView, HistoryRow};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::api;
use crate::background::KilledOnDrop;
use crate::topology::{BACK_NETWORKS, DEVICE, Node, VIPS, vip4, vip6};

/// Name of the history in an agent's directory.
const HISTORY: &str = "clients.history";
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A running agent. Dropped, it is killed; its data plane stays.
#[derive(Debug)]
pub struct AgentProcess {
    child: KilledOnDrop,
    directory: TempDir,
    binary: PathBuf,
    server: Node,
    /// What says to its time of day how far it is off.
    faked: bool,
}

impl AgentProcess {
    /// Starts an agent on `server` with the data plane pinned in `pin_dir`, and
    /// waits until it answers.
    pub fn start(binary: &Path, server: &Node, pin_dir: &Path) -> Result<Self> {
        Self::start_with(binary, server, pin_dir, "")
    }

    /// The same with further lines at the end of its file; the word HISTORY in them
    /// becomes a path that [`history`](Self::history) reads, STATE a directory that outlives the
    /// process.
    pub fn start_with(binary: &Path, server: &Node, pin_dir: &Path, more: &str) -> Result<Self> {
        Self::start_in(binary, server, pin_dir, more, false)
    }

    /// Starts one that measures clients and does nothing else.
    pub fn start_measuring(
        binary: &Path,
        server: &Node,
        pin_dir: &Path,
        more: &str,
    ) -> Result<Self> {
        Self::start_with_file(binary, server, more, false, |directory| {
            measuring(pin_dir, directory)
        })
    }

    /// The same with a time of day that [`set_clock`](Self::set_clock) sets, of this process
    /// alone (Debian package libfaketime): that of the machine is shared.
    pub fn start_with_clock(
        binary: &Path,
        server: &Node,
        pin_dir: &Path,
        more: &str,
    ) -> Result<Self> {
        let library = fake_time();
        ensure!(
            library.exists(),
            "{} is missing: install the Debian package libfaketime",
            library.display()
        );
        Self::start_in(binary, server, pin_dir, more, true)
    }

    fn start_in(
        binary: &Path,
        server: &Node,
        pin_dir: &Path,
        more: &str,
        faked: bool,
    ) -> Result<Self> {
        Self::start_with_file(binary, server, more, faked, |directory| {
            config(server, pin_dir, directory)
        })
    }

    fn start_with_file(
        binary: &Path,
        server: &Node,
        more: &str,
        faked: bool,
        begin: impl FnOnce(&Path) -> String,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("agent-").tempdir()?;
        let file = directory.path().join("agent.toml");
        let history = directory.path().join(HISTORY).display().to_string();
        let state = directory.path().display().to_string();
        let more = more.replace("HISTORY", &history).replace("STATE", &state);
        fs::write(&file, begin(directory.path()) + &more)?;
        set_clock(directory.path(), "+0")?;
        let mut agent = Self {
            child: spawn(binary, server, directory.path(), faked)?,
            directory,
            binary: binary.to_owned(),
            server: server.clone(),
            faked,
        };
        agent.wait_ready()?;
        Ok(agent)
    }

    /// Where it writes what QUIC programs issue connection ids by, if its file names STATE/quic-ids.json.
    pub fn quic_ids(&self) -> PathBuf {
        self.directory.path().join("quic-ids.json")
    }

    /// Has the agent read its file and its keys again (SIGHUP).
    pub fn reload(&self) -> Result<()> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGHUP).context("kill")
    }

    /// Kills the agent (SIGKILL) and starts it again; its data plane works on.
    pub fn restart(&mut self) -> Result<()> {
        self.child.kill_and_wait()?;
        self.child = spawn(
            &self.binary,
            &self.server,
            self.directory.path(),
            self.faked,
        )?;
        self.wait_ready()
    }

    /// Ends the agent and takes everything off its server that it had put there.
    pub fn detach(&mut self) -> Result<()> {
        self.child.kill_and_wait()?;
        let mut command = self.server.netns.command(&self.binary);
        command.args(["agent", "unload", "--yes", "-c"]);
        let output = command
            .arg(self.directory.path().join("agent.toml"))
            .output()
            .with_context(|| format!("cannot run {}", self.binary.display()))?;
        ensure!(
            output.status.success(),
            "causeway agent unload: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Sets its time of day, by an offset to the machine's: `-1h`, `+1d`.
    pub fn set_clock(&self, offset: &str) -> Result<()> {
        ensure!(self.faked, "the agent has the machine's clock");
        set_clock(self.directory.path(), offset)
    }

    /// Packets of a verdict.
    pub fn verdict(&self, word: &str) -> Result<u64> {
        Ok(api::verdict(&self.stats()?.verdicts, word))
    }

    fn stats(&self) -> Result<AgentStats> {
        api::get(&self.socket(), "/v1/stats")
    }

    /// Its clients' latency now: `GET /v1/clients`.
    pub fn clients(&self) -> Result<ClientsView> {
        api::get(&self.socket(), "/v1/clients")
    }

    /// What its history holds, as `causeway agent history` prints it.
    pub fn history(&self) -> Result<Vec<HistoryRow>> {
        let output = std::process::Command::new(&self.binary)
            .args(["agent", "history", "-o", "json"])
            .arg(self.directory.path().join(HISTORY))
            .output()
            .with_context(|| format!("cannot run {}", self.binary.display()))?;
        if !output.status.success() {
            bail!(
                "causeway agent history: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Waits until this second of the monotonic clock is in the history.
    pub fn wait_recorded(&self, second: u64, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            let recorded = self.clients()?.recorded_s;
            if recorded.is_some_and(|recorded| recorded >= second) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bail!(
            "the agent's history does not come to second {second}: {}",
            self.messages()
        )
    }

    fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                bail!("causeway agent ended ({status}): {}", self.messages());
            }
            if self.stats().is_ok() {
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

/// What fakes the time of day of a process.
fn fake_time() -> PathBuf {
    let arch = std::env::consts::ARCH;
    format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1").into()
}

fn set_clock(directory: &Path, offset: &str) -> Result<()> {
    // In one step: it is read at any time.
    let new = directory.join("clock.new");
    fs::write(&new, offset)?;
    Ok(fs::rename(new, directory.join("clock"))?)
}

fn spawn(binary: &Path, server: &Node, directory: &Path, faked: bool) -> Result<KilledOnDrop> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(directory.join("agent.log"))?;
    let mut command = server.netns.command(binary);
    if faked {
        command
            .env("LD_PRELOAD", fake_time())
            .env("FAKETIME_TIMESTAMP_FILE", directory.join("clock"))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
    command
        .args(["agent", "-c"])
        .arg(directory.join("agent.toml"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .map(KilledOnDrop)
        .with_context(|| format!("cannot run {}", binary.display()))
}

fn config(server: &Node, pin_dir: &Path, directory: &Path) -> String {
    let vips = (0..VIPS).flat_map(|i| [vip4(i).to_string(), vip6(i).to_string()]);
    let vips: Vec<String> = vips.collect();
    format!(
        "{}addresses = [\"{}\", \"{}\"]\nvips = {vips:?}\nbalancers = {BACK_NETWORKS:?}\n",
        measuring(pin_dir, directory),
        server.ipv4,
        server.ipv6,
    )
}

fn measuring(pin_dir: &Path, directory: &Path) -> String {
    format!(
        "[agent]\ninterface = \"{DEVICE}\"\n\
         pin_dir = \"{}\"\nsocket = \"{}/agent.sock\"\nhttp = false\n",
        pin_dir.display(),
        directory.display()
    )
}
