// SPDX-License-Identifier: Apache-2.0
//! A QUIC server as the lab sees it: a child process in a server's namespace, of
//! either stack, and the commands it takes.

use std::time::Duration;

use anyhow::Result;
use causeway_quic_lb::{Algorithm, CidConfig, CidKey, Issuer};
use serde::{Deserialize, Serialize};

use super::{gotool, serve, tls};
use crate::cgroup::Cgroup;
use crate::cpu;
use crate::netns::Netns;
use crate::role::Player;

/// Which implementation of QUIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stack {
    /// quinn and h3.
    Quinn,
    /// quic-go and its http3 package.
    QuicGo,
}

impl Stack {
    pub const ALL: [Self; 2] = [Self::Quinn, Self::QuicGo];

    /// The word used in results and parameters.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quinn => "quinn",
            Self::QuicGo => "quic-go",
        }
    }
}

impl std::str::FromStr for Stack {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|s| s.name() == word);
        found.ok_or_else(|| anyhow::anyhow!("{word:?} is not a QUIC stack of the lab"))
    }
}

/// How the requests of one connection wait for their service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Each on its own, side by side.
    Par,
    /// Requests that come while another is served share its remaining time.
    Batch,
    /// One after another, in order of arrival.
    Seq,
}

/// What a server is given at its start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerConfig {
    /// Name that answers carry in `X-Real`.
    pub real: String,
    /// UDP port, on all addresses of both families.
    pub port: u16,
    /// How the requests of one connection wait.
    pub order: Order,
    /// Certificate, PEM file.
    pub certificate: String,
    /// Private key, PEM file.
    pub key: String,
    /// How connection ids carry the server's id; without it they are random.
    pub cid: Option<Cid>,
}

/// A configuration of connection ids, and the server's own id under it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cid {
    /// Number of the configuration, 0 to 6.
    pub number: u8,
    /// `plain`, `siphash` or `aes`.
    pub algorithm: String,
    /// Octets.
    pub server_id_len: u8,
    /// Octets.
    pub nonce_len: u8,
    /// 32 hexadecimal digits.
    pub key: String,
    /// The server's id.
    pub server: u32,
}

impl Cid {
    /// What issues ids by it.
    pub fn issuer(&self) -> Result<Issuer> {
        let key = || self.key.parse::<CidKey>();
        let algorithm = match self.algorithm.as_str() {
            "plain" => Algorithm::Plain,
            "siphash" => Algorithm::SipHash(key()?),
            "aes" => Algorithm::Aes128(key()?),
            other => anyhow::bail!("{other:?} is not an algorithm of connection ids"),
        };
        let (server_id, nonce) = (self.server_id_len, self.nonce_len);
        let config = CidConfig::new(self.number, server_id, nonce, algorithm)?;
        Ok(Issuer::new(&config, self.server)?)
    }
}

impl ServerConfig {
    /// A server with the lab's certificate that serves requests side by side.
    pub fn new(real: &str, port: u16) -> Result<Self> {
        let identity = tls::identity()?;
        Ok(Self {
            real: real.to_owned(),
            port,
            order: Order::Par,
            certificate: identity.certificate.display().to_string(),
            key: identity.key.display().to_string(),
            cid: None,
        })
    }
}

/// A running server. Dropped, it is killed.
#[derive(Debug)]
pub struct Server {
    player: Player,
}

impl Server {
    /// Starts a server of `stack` in `netns` and waits until it listens.
    pub fn start(netns: &Netns, stack: Stack, config: &ServerConfig) -> Result<Self> {
        let configuration = serde_json::to_string(config)?;
        let player = match stack {
            Stack::Quinn => Player::start_role(netns, serve::ROLE, &configuration)?,
            Stack::QuicGo => {
                let mut command = netns.command(gotool::program()?);
                command.arg("serve");
                Player::start(command, "quic-go server", &configuration)?
            }
        };
        Ok(Self { player })
    }

    /// Multiplies every service time from now on; 1.0 is normal.
    pub fn set_factor(&mut self, factor: f64) -> Result<()> {
        self.player.ask(&format!("factor {factor}")).map(drop)
    }

    /// Issues connection ids by another configuration from now on. The server must
    /// have had one from its start.
    pub fn rotate(&mut self, cid: &Cid) -> Result<()> {
        let cid = serde_json::to_string(cid)?;
        self.player.ask(&format!("rotate {cid}")).map(drop)
    }

    /// Moves the process into a control group.
    pub fn join(&self, cgroup: &Cgroup) -> Result<()> {
        self.player.join(cgroup)
    }

    /// CPU time used so far.
    pub fn cpu_time(&self) -> Duration {
        cpu::process_time(self.player.pid()).unwrap_or_default()
    }
}
