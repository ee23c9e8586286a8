// SPDX-License-Identifier: Apache-2.0
//! Processes of the lab that are this very executable, such as the QUIC server
//! built on quinn. A child is started with the same arguments as its parent, so
//! that it arrives at [`sandbox::enter`](crate::sandbox::enter) or
//! [`run_test`](crate::sandbox::run_test), whichever the parent came through; an
//! environment variable names what it is to do there instead.
//!
//! Parent and child speak in lines. The child's first line of input is its
//! configuration, each further one a command; it answers each with one line that
//! begins with [`MARK`]. Other output is for people. The end of its input
//! ends the child. Servers that are not written in Rust (the one built on quic-go) speak the
//! same way.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::{self, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use std::{env, thread};

use anyhow::{Context, Result, bail, ensure};

use crate::background::KilledOnDrop;
use crate::cgroup::Cgroup;
use crate::netns::Netns;
use crate::quic;
use crate::scenario::plain_tunnel;

const ROLE: &str = "CAUSEWAY_LAB_ROLE";
/// What an answer begins with.
pub const MARK: &str = "lab: ";

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

type Play = fn() -> Result<()>;

/// Every role by its word.
const ROLES: &[(&str, Play)] = &[
    (quic::serve::ROLE, quic::serve::play),
    (plain_tunnel::ROLE, plain_tunnel::play),
];

/// Does not return in a child that was started for a role.
pub(crate) fn play_if_asked() {
    let Some(word) = env::var_os(ROLE) else {
        return;
    };
    let role = ROLES.iter().find(|(name, _)| word == *name);
    let result = match role {
        Some((_, play)) => play(),
        None => Err(anyhow::anyhow!("there is no role {word:?}")),
    };
    if let Err(e) = &result {
        eprintln!("causeway-lab: {}: {e:#}", word.to_string_lossy());
    }
    process::exit(i32::from(result.is_err()));
}

/// A child that speaks in lines. Dropped, it is killed.
#[derive(Debug)]
pub struct Player {
    child: KilledOnDrop,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    name: String,
}

impl Player {
    /// Starts `role` of this executable in `netns` with one line of configuration,
    /// and waits for its first answer.
    pub fn start_role(netns: &Netns, role: &str, configuration: &str) -> Result<Self> {
        let own: Vec<OsString> = env::args_os().skip(1).collect();
        let mut command = netns.command("/proc/self/exe");
        command.args(own).env(ROLE, role);
        Self::start(command, role, configuration)
    }

    /// The same for any command.
    pub fn start(mut command: Command, name: &str, configuration: &str) -> Result<Self> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        let mut child = KilledOnDrop(child);
        let input = child.stdin.take().context("no pipe to the child")?;
        let output = child.stdout.take().context("no pipe from the child")?;
        let (answer, answers) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for line in lines {
                // A test's harness may have begun the line.
                if let Some((_, text)) = line.split_once(MARK)
                    && answer.send(text.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        let mut player = Self {
            child,
            input: Some(input),
            answers,
            name: name.to_owned(),
        };
        player.ask(configuration)?;
        Ok(player)
    }

    /// Sends a line and waits for its answer, which is returned without its mark.
    ///
    /// # Errors
    /// When the child ends instead, or its answer begins with `error:`.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        self.tell(line)?;
        self.answer(ANSWER_TIMEOUT)
    }

    /// Sends a line whose answer is waited for otherwise.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        ensure!(!line.contains('\n'), "a command is one line: {line:?}");
        let name = &self.name;
        let input = self.input.as_mut().context("the input is closed")?;
        writeln!(input, "{line}").with_context(|| format!("{name} has ended"))
    }

    /// Waits for one more answer.
    pub fn answer(&mut self, timeout: Duration) -> Result<String> {
        match self.answers.recv_timeout(timeout) {
            Ok(answer) => match answer.strip_prefix("error:") {
                Some(reason) => bail!("{}: {}", self.name, reason.trim()),
                None => Ok(answer),
            },
            Err(RecvTimeoutError::Timeout) => {
                bail!("{} has not answered for {timeout:?}", self.name)
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!("{} ended ({status}) without an answer", self.name)
            }
        }
    }

    /// Moves the child into a control group.
    pub fn join(&self, cgroup: &Cgroup) -> Result<()> {
        cgroup.add(self.child.id())
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

/// What the parent says, line by line, from a thread of its own.
pub(crate) fn commands() -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}

/// Writes an answer to the parent.
pub(crate) fn answer(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{MARK}{text}")?;
    Ok(out.flush()?)
}
