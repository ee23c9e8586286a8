// SPDX-License-Identifier: Apache-2.0
//! `causeway tunnel` on both hosts, as their operators run it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use causeway_api::tunnel::{TunnelStatus, TunnelTotals};

use super::world::{DEVICE, GUESTS, TunnelWorld};
use crate::api;
use crate::clock::until;
use crate::daemon::Daemon;
use crate::scenario::daemon_process::DaemonProcess;

/// The first thread's port on every path.
pub(super) const PORT: u16 = 7000;
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How a tunnel is set up.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    /// Threads of each end.
    pub threads: usize,
    /// Ids of the paths.
    pub paths: Vec<usize>,
    /// Lines for the `[tunnel]` table.
    pub lines: Vec<String>,
    /// Lines for the `[tunnel.engine]` table.
    pub engine: Vec<String>,
    /// The keys file's text, if there are keys.
    pub keys: Option<String>,
}

impl Setting {
    /// One thread, nothing special, these paths.
    pub(super) fn plain(paths: usize) -> Self {
        Self {
            threads: 1,
            paths: (0..paths).collect(),
            lines: Vec::new(),
            engine: Vec::new(),
            keys: None,
        }
    }
}

/// Both ends. Dropped, they are killed.
pub(super) struct Tunnel {
    pub ends: [TunnelEnd; 2],
}

/// One end.
pub(super) struct TunnelEnd {
    daemon: Daemon,
    guest: PathBuf,
    number: usize,
}

impl Tunnel {
    /// Starts both ends and waits until all paths are alive.
    pub(super) fn start(world: &TunnelWorld, binary: &Path, setting: &Setting) -> Result<Self> {
        let tunnel = Self {
            ends: [
                TunnelEnd::start(world, binary, setting, 0)?,
                TunnelEnd::start(world, binary, setting, 1)?,
            ],
        };
        tunnel.wait_alive(setting.paths.len())?;
        world.guests_connected()?;
        Ok(tunnel)
    }

    /// Waits until both ends have this many live paths.
    pub(super) fn wait_alive(&self, paths: usize) -> Result<()> {
        let alive = || -> Result<Vec<usize>> { self.ends.iter().map(TunnelEnd::alive).collect() };
        let done = until(START_TIMEOUT, || {
            let all = alive()?.iter().all(|alive| *alive == paths);
            Ok(all.then_some(()))
        })?;
        let (alive, messages) = (alive()?, self.ends[0].messages());
        done.with_context(|| format!("of {paths} paths {alive:?} are alive: {messages}"))
    }

    /// Waits until the first end has noticed that this many paths are dead.
    pub(super) fn wait_dead(&self, paths: usize) -> Result<()> {
        let first = &self.ends[0];
        let done = until(START_TIMEOUT, || Ok((first.dead()? >= paths).then_some(())))?;
        done.with_context(|| format!("no path is found dead: {}", first.messages()))
    }

    /// The ends' process ids.
    pub(super) fn pids(&self) -> Result<[u32; 2]> {
        Ok([self.ends[0].pid()?, self.ends[1].pid()?])
    }

    /// A count of the totals, over both ends.
    pub(super) fn total(&self, count: fn(&TunnelTotals) -> u64) -> Result<u64> {
        let mut ends = self.ends.iter();
        ends.try_fold(0, |sum, end| Ok(sum + count(&end.status()?.totals)))
    }

    /// How often something was refused for this reason, over both ends.
    pub(super) fn refused(&self, reason: &str) -> Result<u64> {
        let mut sum = 0;
        for end in &self.ends {
            let list = end.status()?.drops;
            let entry = list.iter().find(|entry| entry.reason == reason);
            sum += entry.with_context(|| format!("no reason {reason}"))?.count;
        }
        Ok(sum)
    }

    /// Changes both ends' files and has them read again.
    pub(super) fn reload(&mut self, setting: &Setting) -> Result<()> {
        self.ends.iter_mut().try_for_each(|end| end.reload(setting))
    }
}

impl TunnelEnd {
    fn start(world: &TunnelWorld, binary: &Path, setting: &Setting, number: usize) -> Result<Self> {
        let mut end = Self {
            daemon: Daemon::new("tunnel", binary, &world.hosts[number])?,
            guest: world.guest_file(number),
            number,
        };
        end.write_files(setting)?;
        end.daemon.start()?;
        Ok(end)
    }

    /// What the end reports about itself.
    pub(super) fn status(&self) -> Result<TunnelStatus> {
        api::get(&self.daemon.socket(), "/v1/status")
    }

    fn alive(&self) -> Result<usize> {
        self.paths_that_are("alive")
    }

    fn dead(&self) -> Result<usize> {
        self.paths_that_are("dead")
    }

    fn paths_that_are(&self, state: &str) -> Result<usize> {
        let paths = self.status()?.paths;
        Ok(paths.iter().filter(|path| path.state == state).count())
    }

    /// Conversations that have begun.
    pub(super) fn conversations(&self) -> Result<u64> {
        Ok(self.status()?.totals.sessions)
    }

    /// Changes the files and has them read again; one setting may differ between ends
    /// for a while.
    pub(super) fn reload(&mut self, setting: &Setting) -> Result<()> {
        self.write_files(setting)?;
        // Before the next files are written, and before the other end goes by what this one knows.
        self.daemon.reload_now()?;
        match self.status()?.last_reload_error {
            None => Ok(()),
            Some(error) => bail!("reload refused: {error}"),
        }
    }

    /// Kills the end (SIGKILL) and starts it again.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.daemon.kill()?;
        self.daemon.start()
    }

    /// Resident memory, in bytes.
    pub(super) fn memory(&self) -> Result<u64> {
        Ok(DaemonProcess::of(self.pid()?)?.rss_kib * 1024)
    }

    fn pid(&self) -> Result<u32> {
        self.daemon.pid().context("causeway tunnel does not run")
    }

    /// What it has logged.
    pub(super) fn messages(&self) -> String {
        self.daemon.messages()
    }

    fn write_files(&self, setting: &Setting) -> Result<()> {
        let keys = self.daemon.path("keys");
        let mut text = format!(
            "[tunnel]\ndevice = \"{DEVICE}\"\nnetns = \"{}\"\naddresses = [\"{}/24\"]\n\
             threads = {}\nsocket = \"{}\"\nstate_dir = \"{}\"\nhttp = false\n",
            self.guest.display(),
            GUESTS[self.number],
            setting.threads,
            self.daemon.socket().display(),
            self.daemon.directory().display(),
        );
        match &setting.keys {
            Some(secret) => {
                fs::write(&keys, secret)?;
                fs::set_permissions(&keys, fs::Permissions::from_mode(0o600))?;
                text += &format!("keys = \"{}\"\n", keys.display());
            }
            None => text += "keys = \"none\"\n",
        }
        for line in &setting.lines {
            text += &format!("{line}\n");
        }
        text += "[tunnel.engine]\n";
        for line in &setting.engine {
            text += &format!("{line}\n");
        }
        for path in &setting.paths {
            text += &format!(
                "[[tunnel.path]]\nid = {path}\nlocal = \"10.9.{path}.{}:{PORT}\"\nremote = \"10.9.{path}.{}:{PORT}\"\n",
                self.number + 1,
                2 - self.number
            );
        }
        fs::write(self.daemon.config_file(), text)?;
        Ok(())
    }
}
