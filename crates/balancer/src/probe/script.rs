// SPDX-License-Identifier: Apache-2.0
//! Probes by a program of the operator's.
//!
//! It has the daemon's rights, so that only the file may name it, and only root write it. It is
//! a process group of its own, which ends with a probe that is given up, as at its timeout; what a program
//! that ends by itself has started goes on.

use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use causeway_dataplane::probe::mark;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::health::ProbeOrder;

/// What of its output is the reason.
const SAID_MAX: usize = 200;
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Ends with all that it has started, unless it has ended by itself.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // A child that was not waited for still has the number.
        if let Some(pid) = self.0.id() {
            let _ = killpg(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
    }
}

/// Runs it, and waits. Its socket, if it marks it, goes to the real by way of the VIP.
pub(super) async fn run(order: &ProbeOrder, command: &[String]) -> Result<String> {
    let (file, arguments) = command.split_first().context("no command")?;
    let spawned = Command::new(file)
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("CAUSEWAY_VIP", order.target.ip().to_string())
        .env("CAUSEWAY_PORT", order.target.port().to_string())
        .env("CAUSEWAY_PROTOCOL", order.protocol.to_string())
        .env("CAUSEWAY_REAL", order.address.to_string())
        .env("CAUSEWAY_MARK", mark(order.real).to_string())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut group = Group(spawned.with_context(|| format!("{file} cannot be run"))?);
    let mut output = group.0.stdout.take().context("no output")?;
    let mut said = Vec::new();
    let mut piece = [0; 512];
    // It may say more than is kept, and must not wait for it to be read.
    let status = loop {
        tokio::select! {
            status = group.0.wait() => break status?,
            read = output.read(&mut piece) => match read? {
                0 => break group.0.wait().await?,
                length => keep(&mut said, &piece[..length]),
            },
        }
    };
    // What it has started may have the other end of the pipe still.
    if let Ok(Ok(length)) = timeout(std::time::Duration::ZERO, output.read(&mut piece)).await {
        keep(&mut said, &piece[..length]);
    }
    let said = String::from_utf8_lossy(&said);
    let said = said.lines().next().unwrap_or_default().trim();
    match (status.code(), said) {
        (Some(0), "") => Ok("exit status 0".to_owned()),
        (Some(0), said) => Ok(said.to_owned()),
        (Some(code), "") => bail!("exit status {code}"),
        (Some(code), said) => bail!("exit status {code}: {said}"),
        (None, _) => bail!("{status}"),
    }
}

fn keep(said: &mut Vec<u8>, more: &[u8]) {
    said.extend(&more[..more.len().min(SAID_MAX.saturating_sub(said.len()))]);
}
