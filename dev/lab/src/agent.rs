// SPDX-License-Identifier: Apache-2.0
//! `causeway agent` on a server, as its operator runs it.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use causeway_api::agent::{AgentStats, ClientsView, HistoryRow};

use crate::api;
use crate::clock::until;
use crate::daemon::Daemon;
use crate::topology::{BACK_NETWORKS, DEVICE, Node, VIPS, vip4, vip6};

/// Name of the history in an agent's directory.
const HISTORY: &str = "clients.history";

/// A running agent. Dropped, it is killed; its data plane stays.
#[derive(Debug)]
pub struct AgentProcess {
    daemon: Daemon,
    /// What its file begins with.
    head: String,
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
        let daemon = Daemon::new("agent", binary, &server.netns)?;
        Self::begin(daemon, whole(server, pin_dir), more)
    }

    /// Starts one that measures clients and does nothing else.
    pub fn start_measuring(
        binary: &Path,
        server: &Node,
        pin_dir: &Path,
        more: &str,
    ) -> Result<Self> {
        let daemon = Daemon::new("agent", binary, &server.netns)?;
        Self::begin(daemon, measuring(pin_dir), more)
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
        let mut daemon = Daemon::new("agent", binary, &server.netns)?;
        daemon.environment = vec![
            ("LD_PRELOAD", library),
            ("FAKETIME_TIMESTAMP_FILE", daemon.path("clock")),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ];
        set_clock(&daemon, "+0")?;
        Self::begin(daemon, whole(server, pin_dir), more)
    }

    fn begin(daemon: Daemon, head: String, more: &str) -> Result<Self> {
        let mut agent = Self { daemon, head };
        agent.write_config(more)?;
        agent.daemon.start()?;
        Ok(agent)
    }

    /// Replaces its file, with these lines at its end; the process does not know yet.
    pub fn write_config(&self, more: &str) -> Result<()> {
        let history = self.path(HISTORY).display().to_string();
        let state = self.directory().display().to_string();
        let more = more.replace("HISTORY", &history).replace("STATE", &state);
        let text = format!(
            "[agent]\ninterface = \"{DEVICE}\"\nsocket = \"{}\"\nstate_dir = \"{state}\"\nhttp = false\n{}{more}",
            self.socket().display(),
            self.head
        );
        fs::write(self.config_file(), text).context("cannot write the agent's configuration")
    }

    /// Where it writes what QUIC programs issue connection ids by, if its file names STATE/quic-ids.json.
    pub fn quic_ids(&self) -> PathBuf {
        self.path("quic-ids.json")
    }

    /// Has the agent read its file and its keys again (SIGHUP).
    pub fn reload(&self) -> Result<()> {
        self.daemon.reload()
    }

    /// Kills the agent (SIGKILL), if it runs, and starts it again; its data plane works on.
    pub fn restart(&mut self) -> Result<()> {
        if self.pid().is_some() {
            self.kill()?;
        }
        self.daemon.start()
    }

    /// Sets its time of day, by an offset to the machine's: `-1h`, `+1d`.
    pub fn set_clock(&self, offset: &str) -> Result<()> {
        let is_faked = !self.environment.is_empty();
        ensure!(is_faked, "the agent has the machine's clock");
        set_clock(&self.daemon, offset)
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
        let file = self.path(HISTORY).display().to_string();
        let rows = self.run(&["agent", "history", "-o", "json", &file])?;
        Ok(serde_json::from_str(&rows)?)
    }

    /// Waits until this second of the monotonic clock is in the history.
    pub fn wait_recorded(&self, second: u64, timeout: Duration) -> Result<()> {
        let recorded = until(timeout, || {
            let recorded = self.clients()?.recorded_s;
            Ok(recorded.filter(|recorded| *recorded >= second))
        })?;
        recorded.map(drop).with_context(|| {
            let messages = self.messages();
            format!("the agent's history does not come to second {second}: {messages}")
        })
    }
}

impl Deref for AgentProcess {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl DerefMut for AgentProcess {
    fn deref_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}

/// What fakes the time of day of a process.
fn fake_time() -> PathBuf {
    let arch = std::env::consts::ARCH;
    format!("/usr/lib/{arch}-linux-gnu/faketime/libfaketimeMT.so.1").into()
}

fn set_clock(daemon: &Daemon, offset: &str) -> Result<()> {
    // In one step: it is read at any time.
    let new = daemon.path("clock.new");
    fs::write(&new, offset)?;
    Ok(fs::rename(new, daemon.path("clock"))?)
}

/// The head of the file of an agent that does all that agents do.
fn whole(server: &Node, pin_dir: &Path) -> String {
    let vips = (0..VIPS).flat_map(|i| [vip4(i).to_string(), vip6(i).to_string()]);
    let vips: Vec<String> = vips.collect();
    format!(
        "{}addresses = [\"{}\", \"{}\"]\nvips = {vips:?}\nbalancers = {BACK_NETWORKS:?}\n",
        measuring(pin_dir),
        server.ipv4,
        server.ipv6,
    )
}

fn measuring(pin_dir: &Path) -> String {
    format!("pin_dir = \"{}\"\n", pin_dir.display())
}
