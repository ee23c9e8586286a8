// SPDX-License-Identifier: Apache-2.0
//! Configurations of other load balancers, read and written as Causeway's.
//!
//! Each reader fills the same [`Draft`](draft::Draft): services as the file has them, in Causeway's
//! words, and a [`Remark`] for whatever has no equal. What is written passes `causeway config
//! check`; what could not be carried over stands beside its place in it, as a comment.

mod draft;
mod haproxy;
mod ipvs;
mod ipvsadm;
mod katran;
mod keepalived;
mod toml;
mod words;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// Whose configuration is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceFormat {
    /// What `ipvsadm-save -n` or `ipvsadm -Ln` prints.
    Ipvsadm,
    /// keepalived.conf.
    Keepalived,
    /// Command lines of Katran's client and server, or what the client lists.
    Katran,
    /// haproxy.cfg, of which proxies in `mode tcp`.
    HaproxyTcp,
}

/// What a file of another does not say.
#[derive(Debug, Clone)]
pub struct ImportContext {
    /// Where clients' packets arrive.
    pub interface: String,
    /// The VIP in the place of an address that stands for all.
    pub any_address: Option<IpAddr>,
    /// Ethernet addresses of servers on the same link.
    pub macs: HashMap<IpAddr, String>,
}

impl ImportContext {
    /// Nothing but the interface.
    pub fn interface(name: &str) -> Self {
        Self {
            interface: name.to_owned(),
            any_address: None,
            macs: HashMap::new(),
        }
    }
}

/// One thing that has no equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Line of the file that was read, from 1.
    pub line: usize,
    /// What stands there, and what was done with it.
    pub what: String,
    /// What to do.
    pub instead: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {}", self.line, self.what, self.instead)
    }
}

/// A configuration in Causeway's words.
#[derive(Debug, Clone)]
pub struct Imported {
    /// The file.
    pub toml: String,
    /// What it lacks, in the order of lines.
    pub remarks: Vec<Remark>,
    /// How many VIPs it has.
    pub vips: usize,
}

/// A file that is not of the kind it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Where, from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.message),
            line => write!(f, "line {line}: {}", self.message),
        }
    }
}

impl std::error::Error for Unreadable {}

/// Reads `text` and writes it as a configuration of Causeway.
pub fn import(
    origin: SourceFormat,
    text: &str,
    beside: &ImportContext,
) -> Result<Imported, Unreadable> {
    let draft = match origin {
        SourceFormat::Ipvsadm => ipvsadm::read(text, beside)?,
        SourceFormat::Keepalived => keepalived::read(text, beside)?,
        SourceFormat::Katran => katran::read(text)?,
        SourceFormat::HaproxyTcp => haproxy::read(text, beside)?,
    };
    Ok(draft.finish(beside))
}

/// Ethernet addresses as `ip neighbour show` prints them: `10.0.0.1 dev eth0 lladdr 02:... STALE`.
pub fn neighbours(text: &str) -> HashMap<IpAddr, String> {
    let of_line = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next()?.parse().ok()?;
        words.find(|word| *word == "lladdr")?;
        let mac = words.next().filter(|mac| words::is_mac(mac))?;
        Some((address, mac.to_owned()))
    };
    text.lines().filter_map(of_line).collect()
}
