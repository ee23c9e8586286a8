// SPDX-License-Identifier: Apache-2.0
//! What a meter is to do, checked before anything is loaded.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use causeway_core::estimate::Method;

use crate::error::{DataPlaneError, Result};
use crate::xdp_mode::XdpMode;

/// Where the program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attach {
    /// XDP, or TC where another XDP program is on the interface.
    #[default]
    Auto,
    /// XDP or not at all.
    Xdp,
    /// TC ingress: behind XDP and offloads, on socket buffers.
    Tc,
}

/// A network of clients: an address and the length of its prefix.
pub type ClientNetwork = (IpAddr, u8);

/// How to start a meter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterOptions {
    /// The interface that packets from clients cross.
    pub interface: String,
    /// Where the program is to run.
    pub attach: Attach,
    /// How XDP is to run.
    pub xdp_mode: XdpMode,
    /// The estimator.
    pub method: Method,
    /// Estimators beside it, each kind once.
    pub more: Vec<Method>,
    /// Ignore transport headers but for ports: judge by sizes and times alone.
    pub opaque: bool,
    /// Length of an epoch. Epochs are aligned to its multiples since the Unix
    /// epoch. At least 1 us.
    pub epoch: Duration,
    /// Flows held at once, for each estimator; beyond that, the kernel evicts those
    /// silent longest.
    pub max_flows: u32,
    /// Servers with a histogram, one for each estimator; beyond that, the kernel
    /// evicts those silent longest. 0: no histograms.
    pub max_servers: u32,
    /// Where no SYN was seen, the client is the side in one of these.
    pub client_nets: Vec<ClientNetwork>,
    /// A pinned XDP program, or a pinned array of them with one in slot 0, that gets
    /// the packets after the meter.
    pub next: Option<PathBuf>,
}

impl MeterOptions {
    /// The defaults: window chain, 200 ms, 65,536 flows, no histograms.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            attach: Attach::Auto,
            xdp_mode: XdpMode::Auto,
            method: Method::WindowChain,
            more: Vec::new(),
            opaque: false,
            epoch: Duration::from_millis(200),
            max_flows: 1 << 16,
            max_servers: 0,
            client_nets: Vec::new(),
            next: None,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let epoch_ns = u64::try_from(self.epoch.as_nanos()).unwrap_or(u64::MAX);
        let ranges = [
            ("epoch in nanoseconds", epoch_ns, 1_000, 1 << 62),
            ("max_flows", self.max_flows.into(), 1, 1 << 28),
            ("max_servers", self.max_servers.into(), 0, 1 << 20),
            (
                "number of client networks",
                self.client_nets.len() as u64,
                0,
                1024,
            ),
        ];
        for (what, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(DataPlaneError::OutOfRange {
                    what,
                    value,
                    min,
                    max,
                });
            }
        }
        let kinds: Vec<_> = self.methods().map(std::mem::discriminant).collect();
        if (1..kinds.len()).any(|n| kinds[..n].contains(&kinds[n])) {
            return Err(DataPlaneError::SameEstimator);
        }
        if self.next.is_some() && self.attach == Attach::Tc {
            return Err(DataPlaneError::NextNeedsXdp);
        }
        Ok(())
    }

    /// All estimators, in the order of the slots that samples name.
    pub(super) fn methods(&self) -> impl Iterator<Item = &Method> {
        std::iter::once(&self.method).chain(&self.more)
    }
}
