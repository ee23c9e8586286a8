// SPDX-License-Identifier: Apache-2.0
//! What a scenario needs for cookies: a file of keys, and the lines that name it in the
//! files of balancers and agents; and how clients' timestamps are.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Result, ensure};
use causeway_dataplane::Protocol;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::bench::{Bench, PORT, pin_dir};
use crate::agent::AgentProcess;
use crate::balancer::VipEntry;

/// How a client's TCP timestamps are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientTimestamps {
    /// As the kernel has them.
    On,
    /// None.
    Off,
    /// On, through a balancer with cookies.
    Cookie,
}

impl ClientTimestamps {
    pub(super) const ALL: [Self; 3] = [Self::On, Self::Off, Self::Cookie];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Cookie => "cookie",
        }
    }
}

impl fmt::Display for ClientTimestamps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for ClientTimestamps {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|t| t.word() == word).ok_or(())
    }
}

/// Keys of one scenario.
pub(super) struct CookieKit {
    directory: TempDir,
    binary: PathBuf,
}

impl CookieKit {
    /// Makes keys with `binary`, the program under test.
    pub(super) fn new(binary: &Path) -> Result<Self> {
        let kit = Self {
            directory: tempfile::Builder::new().prefix("cookie-").tempdir()?,
            binary: binary.to_owned(),
        };
        let output = Command::new(binary)
            .args(["cookie", "new-keys"])
            .arg(kit.keys())
            .output()?;
        ensure!(
            output.status.success(),
            "causeway cookie new-keys: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(kit)
    }

    /// The file of keys, those of reports among them.
    pub(super) fn keys(&self) -> PathBuf {
        self.directory.path().join("keys")
    }

    /// For the head of a balancer's file.
    pub(super) fn balancer_lines(&self) -> String {
        format!("[cookie]\nkeys = \"{}\"", self.keys().display())
    }

    /// An agent on server number `index`, which writes cookies for `vip`.
    pub(super) fn agent(&self, bench: &Bench, index: usize, vip: IpAddr) -> Result<AgentProcess> {
        self.agent_for(bench, index, vip, &[PORT])
    }

    /// The same for several ports of the VIP.
    pub(super) fn agent_for(
        &self,
        bench: &Bench,
        index: usize,
        vip: IpAddr,
        ports: &[u16],
    ) -> Result<AgentProcess> {
        let server = &bench.topology.servers[index];
        let lines = self.agent_lines(index, vip, ports);
        AgentProcess::start_with(&self.binary, server, &pin_dir(server), &lines)
    }

    /// For the file of an agent on server number `index`.
    pub(super) fn agent_lines(&self, index: usize, vip: IpAddr, ports: &[u16]) -> String {
        let mut lines = format!("[agent.cookie]\nkeys = \"{}\"\n", self.keys().display());
        for port in ports {
            lines += &format!(
                "[[agent.cookie.vip]]\naddress = \"{vip}\"\nport = {port}\nid = {}\n\
                 cookie = \"timestamp\"\n",
                server_id(index)
            );
        }
        lines
    }
}

/// Gives a VIP cookies, and each of its reals the id that its agent has. Its reals are
/// the bench's servers, in order.
pub(super) fn with_cookies(vip: VipEntry) -> VipEntry {
    with_ids(vip, server_id)
}

/// The same with ids of another choice; of a VIP for QUIC only the ids.
pub(super) fn with_ids(mut vip: VipEntry, id_of: impl Fn(usize) -> usize) -> VipEntry {
    if vip.protocol == Protocol::Tcp {
        vip.keys.push("cookie = \"timestamp\"".to_owned());
    }
    for (index, real) in vip.reals.iter_mut().enumerate() {
        real.keys.push(format!("id = {}", id_of(index)));
    }
    vip
}

/// A server's id in cookies.
fn server_id(index: usize) -> usize {
    100 + index
}
