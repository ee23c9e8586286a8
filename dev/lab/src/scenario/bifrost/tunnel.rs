// SPDX-License-Identifier: Apache-2.0
//! `causeway tunnel` on both hosts, as their operators run it.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use causeway_api::tunnel::{TunnelStatus, TunnelTotals};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::world::{DEVICE, GUESTS, TunnelWorld};
use crate::api;
use crate::background::KilledOnDrop;
use crate::netns::Netns;

/// The first thread's port on every path.
pub(super) const PORT: u16 = 7000;
const START_TIMEOUT: Duration = Duration::from_secs(20);

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
    child: KilledOnDrop,
    directory: TempDir,
    binary: PathBuf,
    host: Netns,
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
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let alive = self
                .ends
                .iter()
                .map(TunnelEnd::alive)
                .collect::<Result<Vec<_>>>()?;
            if alive.iter().all(|alive| *alive == paths) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "of {paths} paths {alive:?} are alive: {}",
                    self.ends[0].messages()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the first end has noticed that this many paths are dead.
    pub(super) fn wait_dead(&self, paths: usize) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if self.ends[0].dead()? >= paths {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("no path is found dead: {}", self.ends[0].messages())
    }

    /// The ends' process ids.
    pub(super) fn pids(&self) -> [u32; 2] {
        [0, 1].map(|end| self.ends[end].child.id())
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
        let directory = tempfile::Builder::new().prefix("tunnel-").tempdir()?;
        let guest = world.guest_file(number);
        write_files(directory.path(), &guest, setting, number)?;
        let host = world.hosts[number].clone();
        let mut end = Self {
            child: spawn(binary, &host, directory.path())?,
            directory,
            binary: binary.to_owned(),
            host,
            guest,
            number,
        };
        end.wait_ready()?;
        Ok(end)
    }

    /// What the end reports about itself.
    pub(super) fn status(&self) -> Result<TunnelStatus> {
        api::get(&self.directory.path().join("tunnel.sock"), "/v1/status")
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
        write_files(self.directory.path(), &self.guest, setting, self.number)?;
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGHUP).context("kill")?;
        // The signal is handled when the answer has the new state; a refused one is reported as an
        // error.
        std::thread::sleep(Duration::from_millis(100));
        match self.status()?.last_reload_error {
            None => Ok(()),
            Some(error) => bail!("reload refused: {error}"),
        }
    }

    /// Kills the end (SIGKILL) and starts it again.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.child.kill_and_wait()?;
        self.child = spawn(&self.binary, &self.host, self.directory.path())?;
        self.wait_ready()
    }

    /// Resident memory, in bytes.
    pub(super) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        Ok(kib.context("no VmRSS")? * 1024)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                bail!("causeway tunnel ended ({status}): {}", self.messages());
            }
            if self.status().is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("causeway tunnel does not answer: {}", self.messages())
    }

    /// What it has logged.
    pub(super) fn messages(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

fn spawn(binary: &Path, host: &Netns, directory: &Path) -> Result<KilledOnDrop> {
    let log = File::options()
        .create(true)
        .append(true)
        .open(directory.join("log"))?;
    host.command(binary)
        .arg("tunnel")
        .arg("-c")
        .arg(directory.join("tunnel.toml"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map(KilledOnDrop)
        .context("cannot start causeway tunnel")
}

fn write_files(directory: &Path, guest: &Path, setting: &Setting, number: usize) -> Result<()> {
    let keys = directory.join("keys");
    let mut text = format!(
        "[tunnel]\ndevice = \"{DEVICE}\"\nnetns = \"{}\"\naddresses = [\"{}/24\"]\n\
         threads = {}\nsocket = \"{}\"\nhttp = false\n",
        guest.display(),
        GUESTS[number],
        setting.threads,
        directory.join("tunnel.sock").display(),
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
            number + 1,
            2 - number
        );
    }
    fs::write(directory.join("tunnel.toml"), text)?;
    Ok(())
}
