// SPDX-License-Identifier: Apache-2.0
//! etcd, which keeps the fleet's book, on an address of its own behind the router.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::background::KilledOnDrop;
use crate::clock::until;
use crate::netns::Netns;
use crate::topology::Node;

/// Debian's package etcd-server.
const ETCD: &str = "/usr/bin/etcd";
/// Where balancers find it, by their default route.
const ADDRESS: &str = "10.99.0.1";

/// A running etcd, or one that was stopped. Dropped, it is killed.
pub(super) struct Etcd {
    netns: Netns,
    directory: TempDir,
    process: Option<KilledOnDrop>,
}

impl Etcd {
    /// On the router, which no event of the run concerns.
    pub(super) fn start(router: &Node) -> Result<Self> {
        router
            .netns
            .ip(&format!("address add {ADDRESS}/32 dev lo\n"))?;
        let mut etcd = Self {
            netns: router.netns.clone(),
            directory: Self::directory()?,
            process: None,
        };
        etcd.again()?;
        Ok(etcd)
    }

    fn directory() -> Result<TempDir> {
        Ok(tempfile::Builder::new().prefix("etcd-").tempdir()?)
    }

    /// Starts it with what it has, and waits until it answers.
    pub(super) fn again(&mut self) -> Result<()> {
        let client = format!("http://{ADDRESS}:2379");
        let peer = format!("http://{ADDRESS}:2380");
        let process = self
            .netns
            .command(ETCD)
            .arg("--data-dir")
            .arg(self.directory.path())
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("default={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {ETCD} (Debian package etcd-server)"))?;
        self.process = Some(KilledOnDrop(process));
        let health = format!("{client}/health");
        let answer = until(Duration::from_secs(60), || {
            let mut curl = self.netns.command("curl");
            let output = curl.args(["-s", "-m", "1", &health]).output()?;
            let said = String::from_utf8_lossy(&output.stdout);
            Ok(said.contains("\"true\"").then_some(()))
        })?;
        answer.context("etcd does not answer")
    }

    /// SIGKILL.
    pub(super) fn stop(&mut self) {
        self.process = None;
    }

    /// Starts it with nothing.
    pub(super) fn again_empty(&mut self) -> Result<()> {
        self.directory = Self::directory()?;
        self.again()
    }

    /// Cuts a balancer off from it, or not any more.
    pub(super) fn cut(balancer: &Node, cut: bool) -> Result<()> {
        let verb = match cut {
            true => "add",
            false => "del",
        };
        let line = format!("route {verb} blackhole {ADDRESS}/32\n");
        balancer.netns.ip(&line)
    }

    /// `[fleet]` of a balancer's file.
    pub(super) fn fleet(member: &str) -> String {
        format!(
            "[fleet]\nname = \"lab\"\nmember = \"{member}\"\nlease = \"4s\"\nsettle = \"500ms\"\nagents = true\n\
             store = {{ etcd = [\"http://{ADDRESS}:2379\"] }}"
        )
    }
}
