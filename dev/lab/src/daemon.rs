// SPDX-License-Identifier: Apache-2.0
//! A daemon of the product as its operator runs it: a process in a namespace, with a directory of
//! its own for its file, its log and its socket.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::api;
use crate::background::{KilledOnDrop, output_of};
use crate::clock::until;
use crate::netns::Netns;

/// One with a million reals loads them first.
const START_TIMEOUT: Duration = Duration::from_secs(180);
pub(crate) const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// `causeway VERB`. Dropped, it is killed; what it pinned stays.
#[derive(Debug)]
pub struct Daemon {
    verb: &'static str,
    binary: PathBuf,
    netns: Netns,
    directory: TempDir,
    /// What its environment has beside ours.
    pub(crate) environment: Vec<(&'static str, PathBuf)>,
    child: Option<KilledOnDrop>,
}

impl Daemon {
    /// It has no file yet, and does not run.
    pub(crate) fn new(verb: &'static str, binary: &Path, netns: &Netns) -> Result<Self> {
        let prefix = format!("{verb}-");
        Ok(Self {
            verb,
            binary: binary.to_owned(),
            netns: netns.clone(),
            directory: tempfile::Builder::new().prefix(&prefix).tempdir()?,
            environment: Vec::new(),
            child: None,
        })
    }

    /// Starts the process and waits until it answers; it must not run.
    pub(crate) fn start(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "{} runs already", self.name());
        let child = self.command(&[])?.spawn();
        let child = child.with_context(|| format!("cannot run {}", self.binary.display()))?;
        let child = self.child.insert(KilledOnDrop(child));
        let socket = self.directory.path().join("socket");
        let answers = until(START_TIMEOUT, || {
            let ended = child.try_wait()?;
            let answers = api::get_text(&socket, "/v1/status").is_ok();
            Ok((ended.is_some() || answers).then_some(ended))
        })?;
        match answers {
            Some(None) => Ok(()),
            Some(Some(status)) => {
                self.child = None;
                let messages = self.messages();
                let last = messages.lines().last().unwrap_or_default();
                bail!("{} ended at its start ({status}): {last}", self.name())
            }
            None => bail!("{} does not answer: {}", self.name(), self.messages()),
        }
    }

    /// The same with another build of the product from now on.
    pub fn restart_as(&mut self, binary: &Path) -> Result<()> {
        self.binary = binary.to_owned();
        self.start()
    }

    /// The command that starts the process, behind the words of one that watches it.
    pub fn command(&self, before: &[String]) -> Result<Command> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))?;
        let mut command = match before {
            [] => self.netns.command(&self.binary),
            [watcher, arguments @ ..] => {
                let mut command = self.netns.command(watcher);
                command.args(arguments).arg(&self.binary);
                command
            }
        };
        command
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .args([self.verb, "-c"])
            .arg(self.config_file())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }

    /// SIGKILL: the process has no chance to do anything.
    pub fn kill(&mut self) -> Result<()> {
        let child = self.child.take();
        child.with_context(|| self.runs_not())?.kill_and_wait()
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let mut child = self.child.take().with_context(|| self.runs_not())?;
        let ended = until(START_TIMEOUT, || Ok(child.try_wait()?))?;
        ended.with_context(|| {
            let name = self.name();
            format!("{name} did not end by SIGTERM: {}", self.messages())
        })
    }

    /// Has the process read its file again (SIGHUP).
    pub fn reload(&self) -> Result<()> {
        self.signal(Signal::SIGHUP)
    }

    /// The same, and waits until it has: for changes that do not show in the API.
    pub fn reload_now(&self) -> Result<()> {
        let before = self.reloads();
        self.reload()?;
        self.wait_for_reload(before)
    }

    /// How often it has read its file again.
    pub fn reloads(&self) -> usize {
        self.messages().matches("reloaded: ").count()
    }

    /// Waits until it has done so more often than `before`.
    pub fn wait_for_reload(&self, before: usize) -> Result<()> {
        let done = until(RELOAD_TIMEOUT, || {
            Ok((self.reloads() > before).then_some(()))
        })?;
        done.with_context(|| self.kept_its_file())
    }

    /// Takes its data plane down (`causeway VERB unload`); the process does not run any more.
    pub fn detach(&self) -> Result<()> {
        let file = self.config_file().display().to_string();
        self.run(&[self.verb, "unload", "--yes", "-c", &file])
            .map(drop)
    }

    /// Runs `causeway ARGUMENTS --socket SOCKET` and returns its standard output.
    pub fn cli(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.socket().display().to_string();
        self.run(&[arguments, &["--socket", &socket]].concat())
    }

    /// Runs `causeway ARGUMENTS` on its machine and returns its standard output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        output_of(self.netns.command(&self.binary).args(arguments))
    }

    /// Where its files are.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A file in its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.path("causeway.toml")
    }

    /// The API's socket.
    pub fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    /// PID of the running process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(|child| child.id())
    }

    /// Everything the process has logged, over all its lives.
    pub fn messages(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Why a wait for a reload ended.
    pub(crate) fn kept_its_file(&self) -> String {
        let name = self.name();
        format!("{name} did not take the new file: {}", self.messages())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().with_context(|| self.runs_not())?;
        kill(Pid::from_raw(pid as i32), signal).context("kill")
    }

    fn name(&self) -> String {
        format!("causeway {}", self.verb)
    }

    fn runs_not(&self) -> String {
        format!("{} does not run", self.name())
    }
}
