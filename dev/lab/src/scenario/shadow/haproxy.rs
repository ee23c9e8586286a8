// SPDX-License-Identifier: Apache-2.0
//! HAProxy in TCP mode on the balancer's node, as an operator would have it.

use std::fs;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::clock::until;
use crate::netns::Netns;

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether HAProxy is there.
///
/// # Errors
/// With the command that installs it.
pub(super) fn available() -> Result<()> {
    let found = Command::new("haproxy").arg("-v").output();
    ensure!(
        found.is_ok_and(|output| output.status.success()),
        "haproxy is not installed: run scripts/setup shadow"
    );
    Ok(())
}

/// Running processes of one service; dropped, they are killed.
pub(super) struct Haproxy {
    netns: Netns,
    directory: TempDir,
    front: SocketAddrV4,
    balance: String,
    /// The one that accepts, and those before it that still have connections.
    children: Vec<Child>,
}

impl Haproxy {
    /// Starts it before `servers`.
    pub(super) fn start(
        netns: &Netns,
        front: SocketAddrV4,
        balance: &str,
        servers: &[SocketAddrV4],
    ) -> Result<Self> {
        let mut haproxy = Self {
            netns: netns.clone(),
            directory: tempfile::Builder::new().prefix("haproxy-").tempdir()?,
            front,
            balance: balance.to_owned(),
            children: Vec::new(),
        };
        haproxy.spawn(servers)?;
        Ok(haproxy)
    }

    /// Has another process accept, with these servers; the one before ends with its
    /// connections.
    pub(super) fn reload(&mut self, servers: &[SocketAddrV4]) -> Result<()> {
        self.spawn(servers)
    }

    /// Kills all and starts again, as a restart or another machine in its place would.
    pub(super) fn replace(&mut self, servers: &[SocketAddrV4]) -> Result<()> {
        self.kill();
        self.spawn(servers)
    }

    fn spawn(&mut self, servers: &[SocketAddrV4]) -> Result<()> {
        let file = self.directory.path().join("haproxy.cfg");
        fs::write(&file, self.config(servers))?;
        let mut command = self.netns.command("haproxy");
        command.arg("-db").arg("-f").arg(&file);
        if let Some(before) = self.children.last() {
            command.args(["-sf", &before.id().to_string()]);
        }
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_file())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run haproxy")?;
        self.children.push(child);
        self.wait_ready()
    }

    fn wait_ready(&mut self) -> Result<()> {
        let front = self.front;
        let connected = until(START_TIMEOUT, || {
            let connect = move || Ok(std::net::TcpStream::connect(front).is_ok());
            Ok(self.netns.run(connect)?.then_some(()))
        })?;
        connected.with_context(|| {
            let log = fs::read_to_string(self.log_file()).unwrap_or_default();
            format!("haproxy does not answer: {log}")
        })
    }

    fn config(&self, servers: &[SocketAddrV4]) -> String {
        let servers = servers.iter().enumerate();
        let servers: String = servers
            .map(|(index, at)| format!("    server s{index} {at}\n"))
            .collect();
        format!(
            "global\n    maxconn 8000\ndefaults\n    mode tcp\n    timeout connect 5s\n\
             \x20   timeout client 1h\n    timeout server 1h\n\
             frontend web\n    bind {}\n    default_backend pool\n\
             backend pool\n    balance {}\n{servers}",
            self.front, self.balance
        )
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("haproxy.log")
    }

    fn kill(&mut self) {
        for mut child in self.children.drain(..) {
            // One that has ended by itself is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        self.kill();
    }
}
