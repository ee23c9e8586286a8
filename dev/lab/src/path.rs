// SPDX-License-Identifier: Apache-2.0
//! A client, a router and a server, for `causeway rtt`: a path that can lose
//! packets, queue them, or do neither.
//!
//! ```text
//!  client eth0 ---- c0 router s0 ---- eth0 server
//!  10.50.1.2                          10.50.2.2
//!  fd50:1::2                          fd50:2::2
//! ```
//!
//! The MTU is 1460, as in Google's network: a request of 1409 bytes then takes two
//! segments (1408 bytes each with timestamps), as in the write-up that
//! `causeway-lab rtt-study` follows. Offloads are off at both ends: with them the two
//! segments would be one buffer, and one packet to a sampler.

use std::io::{BufRead as _, BufReader};
use std::net::IpAddr;
use std::path::Path as FilePath;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use causeway_bench::loss::{LossInjector, LossRule, LostRun, TcDirection};

use crate::background::KilledOnDrop;
use crate::cpu::keep_command_to;
use crate::link;
use crate::netns::Netns;
use crate::sandbox::Sandbox;

/// Bytes of a packet on the path.
pub const MTU: u32 = 1460;
/// The port of `causeway rtt serve`.
pub const PORT: u16 = 9472;

/// Client, router, server.
#[derive(Debug)]
pub struct Path {
    /// Where clients run.
    pub client: Netns,
    /// Loses and queues.
    pub router: Netns,
    /// Where servers run.
    pub server: Netns,
}

impl Path {
    /// The router's port to the client.
    pub const CLIENT: &str = "c0";
    /// The router's port to the server.
    pub const SERVER: &str = "s0";

    /// Builds the path; nothing is lost on it and nothing queued.
    pub fn build(proof: Sandbox) -> Result<Self> {
        let make = |name| Netns::create(proof, name);
        let path = Self {
            client: make("rtt-client")?,
            router: make("rtt-router")?,
            server: make("rtt-server")?,
        };
        for key in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            path.router.sysctl(key, "1")?;
        }
        path.join(&path.client, Self::CLIENT, 1)?;
        path.join(&path.server, Self::SERVER, 2)?;
        Ok(path)
    }

    /// A veth pair from the router to `end`, with addresses and default routes.
    fn join(&self, end: &Netns, port: &str, net: u8) -> Result<()> {
        let name = end.name();
        self.router.ip(&format!(
            "link add {port} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {name}\n\
             addr add 10.50.{net}.1/24 dev {port}\n\
             addr add fd50:{net}::1/64 dev {port}\n\
             link set {port} up\n"
        ))?;
        end.ip(&format!(
            "addr add 10.50.{net}.2/24 dev eth0\n\
             addr add fd50:{net}::2/64 dev eth0\n\
             link set eth0 up\n\
             route add default via 10.50.{net}.1\n\
             route add default via fd50:{net}::1\n"
        ))?;
        end.run(|| link::set_offloads("eth0", false).context("cannot turn off offloads"))
    }

    /// The server's address.
    pub fn address(ipv6: bool) -> IpAddr {
        if ipv6 {
            [0xfd50, 2, 0, 0, 0, 0, 0, 2].into()
        } else {
            [10, 50, 2, 2].into()
        }
    }

    /// Loses this share of the packets at random, each way, until dropped.
    pub fn lose(&self, percent: f64, seed: u64) -> Result<[LossInjector; 2]> {
        Ok([
            self.lose_from(Self::CLIENT, percent, seed)?,
            self.lose_from(Self::SERVER, percent, !seed)?,
        ])
    }

    /// Loses this share of the packets that come from one end, until dropped.
    pub fn lose_from(&self, port: &'static str, percent: f64, seed: u64) -> Result<LossInjector> {
        ensure!((0.0..=100.0).contains(&percent), "a loss of {percent} %");
        let rule = LossRule {
            share: percent / 100.0,
            seed,
            ..LossRule::default()
        };
        self.line(port, rule)
    }

    /// Loses these packets from one end once, until dropped.
    pub fn lose_run(&self, port: &'static str, run: LostRun) -> Result<LossInjector> {
        let rule = LossRule {
            run,
            ..LossRule::default()
        };
        self.line(port, rule)
    }

    fn line(&self, port: &'static str, rule: LossRule) -> Result<LossInjector> {
        self.router
            .run(move || LossInjector::attach(port, TcDirection::In, rule))
    }

    /// Limits the rate towards the server; what is more waits in a queue of
    /// `queue_bytes`.
    pub fn throttle(&self, mbit: u32, queue_bytes: u32) -> Result<()> {
        self.router.qdisc(&format!(
            "replace dev s0 root tbf rate {mbit}mbit burst 4kb limit {queue_bytes}"
        ))
    }

    /// Ends [`Path::throttle`].
    pub fn unthrottle(&self) -> Result<()> {
        self.router.qdisc("del dev s0 root")
    }

    /// Starts `causeway rtt serve` on the server, its sampler on eth0, on one CPU if asked.
    pub fn serve(
        &self,
        binary: &FilePath,
        options: &[&str],
        cpu: Option<usize>,
    ) -> Result<KilledOnDrop> {
        let mut command = self.server.command(binary);
        if let Some(cpu) = cpu {
            keep_command_to(&mut command, cpu);
        }
        let child = command
            .args(["rtt", "serve", "-p", &PORT.to_string(), "-i", "eth0"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start causeway rtt serve")?;
        let mut server = KilledOnDrop(child);
        let mut line = String::new();
        let stderr = server.stderr.take().context("stderr of the server")?;
        BufReader::new(stderr).read_line(&mut line)?;
        ensure!(
            line.contains("listening"),
            "causeway rtt serve: {}",
            line.trim()
        );
        Ok(server)
    }
}
