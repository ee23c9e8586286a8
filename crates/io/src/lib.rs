// SPDX-License-Identifier: Apache-2.0
//! Every system call and libbpf call of Causeway. The data plane's objects are
//! embedded here; nothing above this crate knows what a map is.
//!
//! - [`LoadBalancer`]: the balancer, pinned so that it outlives the process.
//! - [`Decapsulator`]: its counterpart on a server.
//! - [`Meter`]: measurement alone, on any interface.
//! - [`Capture`]: packets of an interface, without BPF programs.
//! - [`Mirror`]: packets of a data plane before and after it, with what it did.
//! - [`filter`]: tcpdump's filter language.
//! - [`rtt`]: clocks, sockets and the sampler behind `causeway rtt`.
//! - [`tunnel`]: TUN devices, UDP in batches, and memory for `causeway tunnel`.
//! - [`resolve_next_hop`]: where its packets go, asked of the kernel's tables.

#![warn(missing_docs)]

pub mod abi;
mod balancer;
pub mod capture;
mod conn_tokens;
mod cookie_hooks;
mod decapsulator;
mod error;
pub mod filter;
pub mod flow_table;
mod in_flight;
pub mod listener;
mod map;
mod mapped;
pub mod meter;
pub mod mirror;
mod netlink;
mod next_hop;
mod pins;
mod plane;
pub mod probe;
mod rings;
pub mod rtt;
mod run_time;
pub mod syn_meter;
mod tc;
pub mod tunnel;
mod xdp;

pub use balancer::{
    Adopted, ConnLayout, ConnTable, ConnTimeouts, Connection, CookieId, CookieTotals, Directory,
    FlowIdle, FlowSweep, FlowTotals, Forwarding, LoadBalancer, LoadTerms, Options, Pick, Picking,
    Protocol, Real, RealId, RealStats, SlotRoute, Swept, Traced, TunnelEnds, Vip, VipId,
    VipOptions, destination_of, trace,
};
pub use balancer::{FlowLimit, Prefix, SourceRing};
pub use capture::{Capture, CaptureCounts, Frame};
pub use conn_tokens::{Changes, ConnTokens, TokenEvents, TokenOf};
pub use cookie_hooks::CookieHooks;
pub use decapsulator::{Decapsulator, DecapsulatorOptions};
pub use error::{Error, Result};
pub use filter::FilterError;
pub use in_flight::in_flight;
pub use meter::{
    Attach, Meter, MeterOptions, MeterSample, MeteredFlow, Network, Place, ServerLatencies,
};
pub use mirror::{
    Mirror, MirrorCounts, MirrorMaps, MirrorOptions, MirrorVip, MirroredFrame, MirroredPacket, Pool,
};
pub use next_hop::{
    Gateway, Gue, InterfaceInfo, Mac, NextHop, NextHopError, Source, find_gateway, interface_info,
    resolve_next_hop,
};
pub use plane::{Detached, Started};
pub use run_time::{RunTime, RunTimes};
pub use syn_meter::{SynMeter, SynMeterOptions};
pub use tc::{Direction as TcDirection, TcLink};
pub use xdp::{Interface, Link, Mode, XdpMode};

/// CLOCK_MONOTONIC, nanoseconds: the clock of the programs in the kernel.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    // The clock exists wherever Linux runs.
    now.map_or(0, |now| std::time::Duration::from(now).as_nanos() as u64)
}

/// A number for this boot of the machine: monotonic times of another say nothing here. 0
/// where the kernel does not tell.
#[must_use]
pub fn boot_id() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(16)
        .collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// Generated skeletons: open, set sizes and flags, load.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
pub mod skel {
    /// The balancer.
    pub mod lb {
        include!(concat!(env!("OUT_DIR"), "/lb.skel.rs"));
    }
    /// Measurement alone.
    pub mod meter {
        include!(concat!(env!("OUT_DIR"), "/meter.skel.rs"));
    }
    /// A server's decapsulation.
    pub mod server {
        include!(concat!(env!("OUT_DIR"), "/server.skel.rs"));
    }
    /// SYN accounting on a server.
    pub mod syn {
        include!(concat!(env!("OUT_DIR"), "/syn.skel.rs"));
    }
    /// Health probes on their way out.
    pub mod probe {
        include!(concat!(env!("OUT_DIR"), "/probe.skel.rs"));
    }
    /// The sampler of `causeway rtt`.
    pub mod rtt {
        include!(concat!(env!("OUT_DIR"), "/rtt.skel.rs"));
    }
}
