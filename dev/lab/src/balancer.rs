// SPDX-License-Identifier: Apache-2.0
//! `causeway lb` itself, the product under test, as a process in the balancer's
//! namespace.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use causeway_dataplane::Protocol;
use serde::{Deserialize, Serialize};

use crate::clock::until;
use crate::daemon::{Daemon, RELOAD_TIMEOUT};
use crate::topology::{BACK_MTU, DEVICE, Node, format_mac};
use crate::{api, clock};

/// A VIP of the configuration file.
#[derive(Debug, Clone)]
pub struct VipEntry {
    /// Address of the service.
    pub address: IpAddr,
    /// Port of the service.
    pub port: u16,
    /// Transport protocol of the service.
    pub protocol: Protocol,
    /// The configuration's word.
    pub scheduler: String,
    /// Further keys of the VIP, such as `flow_table = false`.
    pub keys: Vec<String>,
    /// How packets reach them.
    pub forwarding: ServerForwarding,
    /// Its servers.
    pub reals: Vec<RealEntry>,
}

/// How packets reach the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerForwarding {
    /// In an outer IP header.
    Ipip,
    /// In UDP behind an outer IP header.
    Gue,
    /// By the destination MAC address.
    L2,
}

impl ServerForwarding {
    /// The configuration's word.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Gue => "gue",
            Self::L2 => "l2",
        }
    }
}

/// A server of a VIP.
#[derive(Debug, Clone)]
pub struct RealEntry {
    /// Address, also in `l2` mode.
    pub address: IpAddr,
    /// MAC address, used in `l2` mode only.
    pub mac: [u8; 6],
    /// Configured weight.
    pub weight: u32,
    /// Takes no new connections.
    pub drain: bool,
    /// Further keys, such as `id = 3`.
    pub keys: Vec<String>,
}

impl RealEntry {
    /// A server by its address in the family of `vip`.
    pub fn of(node: &Node, vip: IpAddr) -> Self {
        let address = match vip {
            IpAddr::V4(_) => node.ipv4.into(),
            IpAddr::V6(_) => node.ipv6.into(),
        };
        Self {
            address,
            mac: node.mac,
            weight: 100,
            drain: false,
            keys: Vec::new(),
        }
    }
}

/// What goes into the configuration file beside paths.
#[derive(Debug, Clone, Default)]
pub struct BalancerSettings {
    pub vips: Vec<VipEntry>,
    /// Lines for `[control]`, such as `floor = 0.02`.
    pub control: Vec<String>,
    /// What the balancer takes for the largest packet on its link; by default
    /// what the topology has.
    pub mtu: Option<u32>,
    /// Whether it measures; by default as the product does.
    pub measure: Option<bool>,
    /// Further lines of the file's head, such as `hash_key = "..."`.
    pub head: Vec<String>,
    /// Flows of each family that its table is made for; by default a few.
    pub flows: Option<u32>,
    /// Further lines for `[encap]`.
    pub encap: Vec<String>,
}

/// A `causeway lb` with files, pins and sockets of its own. Its pins go with the sandbox or by
/// [`Daemon::detach`].
#[derive(Debug)]
pub struct Balancer {
    daemon: Daemon,
    node: Node,
    pin_dir: PathBuf,
}

impl Balancer {
    /// Starts `causeway lb` on the balancer's node and waits until it answers.
    pub fn start(binary: &Path, node: &Node, settings: &BalancerSettings) -> Result<Self> {
        let daemon = Daemon::new("lb", binary, &node.netns)?;
        let unique = daemon.directory().file_name();
        let unique = unique.context("a directory without a name")?;
        let mut balancer = Self {
            node: node.clone(),
            pin_dir: Path::new("/sys/fs/bpf").join(unique),
            daemon,
        };
        balancer.write_config(settings)?;
        balancer.restart()?;
        Ok(balancer)
    }

    /// Replaces the configuration file; the process does not know yet.
    pub fn write_config(&self, settings: &BalancerSettings) -> Result<()> {
        let text = self.config(settings)?;
        fs::write(self.config_file(), text).context("cannot write the configuration")
    }

    /// Starts the process again; it must not run.
    pub fn restart(&mut self) -> Result<()> {
        self.daemon.start()
    }

    /// Loads a new file and waits until the daemon shows its reals and their states;
    /// returns when it did, CLOCK_MONOTONIC.
    pub fn apply(&self, settings: &BalancerSettings) -> Result<u64> {
        let vips = settings.vips.iter();
        let wanted: BTreeSet<(String, String, bool)> = vips
            .flat_map(|vip| {
                let reals = vip.reals.iter();
                reals.map(|r| (vip.address.to_string(), r.address.to_string(), r.drain))
            })
            .collect();
        self.write_config(settings)?;
        let before = self.reloads();
        self.reload()?;
        let done = until(RELOAD_TIMEOUT, || {
            let shown = api::stats(&self.socket())?;
            let shown: BTreeSet<(String, String, bool)> = shown
                .vips
                .iter()
                .flat_map(|vip| {
                    let reals = vip.reals.iter();
                    reals.map(|r| (vip.address.clone(), r.address.clone(), r.state == "drain"))
                })
                .collect();
            Ok((shown == wanted).then(clock::monotonic_ns))
        })?;
        let shown_ns = done.with_context(|| self.kept_its_file())?;
        // Else the next reload may be taken for this one.
        self.wait_for_reload(before)?;
        Ok(shown_ns)
    }

    /// Ends the process, and takes the data plane down.
    pub fn end(mut self) -> Result<()> {
        self.terminate()?;
        self.detach()
    }

    /// Where maps and link are pinned.
    pub fn pin_dir(&self) -> &Path {
        &self.pin_dir
    }

    /// What it leaves its successors.
    pub fn state_dir(&self) -> PathBuf {
        self.path("state")
    }

    fn config(&self, settings: &BalancerSettings) -> Result<String> {
        let (state, socket) = (self.state_dir(), self.socket());
        let flows = settings.flows.unwrap_or(65_536);
        let mut s = format!(
            "interface = \"{DEVICE}\"\n\
             pin_dir = \"{}\"\n\
             state_dir = \"{}\"\n\
             socket = \"{}\"\n\
             reconcile = true\n\
             {}\
             [encap]\n\
             source = \"{}\"\n\
             source6 = \"{}\"\n\
             mtu = {}\n\
             {}\
             [history]\n\
             length = \"10m\"\n\
             [flow_table]\n\
             ipv4 = {}\n\
             ipv6 = {}\n\
             [control]\n",
            self.pin_dir.display(),
            state.display(),
            socket.display(),
            settings
                .head
                .iter()
                .map(|line| format!("{line}\n"))
                .collect::<String>(),
            self.node.ipv4,
            self.node.ipv6,
            settings.mtu.unwrap_or(BACK_MTU),
            settings
                .encap
                .iter()
                .map(|line| format!("{line}\n"))
                .collect::<String>(),
            flows,
            flows,
        );
        for line in &settings.control {
            writeln!(s, "{line}")?;
        }
        if let Some(measure) = settings.measure {
            writeln!(s, "[measure]\nenabled = {measure}")?;
        }
        for vip in &settings.vips {
            write_vip(&mut s, vip)?;
        }
        Ok(s)
    }
}

fn write_vip(s: &mut String, vip: &VipEntry) -> Result<()> {
    let forwarding = vip.forwarding.word();
    let protocol = vip.protocol;
    writeln!(
        s,
        "[[vip]]\naddress = \"{}\"\nport = {}\nprotocol = \"{protocol}\"\nscheduler = \"{}\"\n\
         forwarding = \"{forwarding}\"",
        vip.address, vip.port, vip.scheduler
    )?;
    for key in &vip.keys {
        writeln!(s, "{key}")?;
    }
    for real in &vip.reals {
        writeln!(
            s,
            "[[vip.real]]\naddress = \"{}\"\nweight = {}\ndrain = {}",
            real.address, real.weight, real.drain
        )?;
        for key in &real.keys {
            writeln!(s, "{key}")?;
        }
        if vip.forwarding == ServerForwarding::L2 {
            writeln!(s, "mac = \"{}\"", format_mac(real.mac))?;
        }
    }
    Ok(())
}

impl Deref for Balancer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl DerefMut for Balancer {
    fn deref_mut(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}
