// SPDX-License-Identifier: Apache-2.0
//! The data plane of a balancer, a server and a meter: BPF programs, their maps and links.
//! The programs' objects are embedded here; nothing above this crate knows what a map is.
//! It loads, pins and hands over, and decides nothing about balancing.
//!
//! - [`LoadBalancer`]: the balancer, pinned so that it outlives the process.
//! - [`Decapsulator`]: its counterpart on a server.
//! - [`KernelMeter`]: measurement alone, on any interface.
//! - [`SynMeter`]: SYN accounting on a server.
//! - [`Mirror`]: packets of a data plane before and after it, with what it did.
//! - [`Sampler`]: sampled packets for `causeway rtt`.

#![warn(missing_docs)]

pub mod abi;
mod balancer;
mod btf;
mod carry;
mod conn_tokens;
mod cookie_hooks;
mod decapsulator;
mod error;
pub mod flow_table;
mod map;
mod mapped;
pub mod meter;
pub mod mirror;
mod pins;
mod plane;
pub mod probe;
mod rings;
mod sampler;
mod syn_hooks;
pub mod syn_meter;
mod tc;
mod tunnel_sources;
mod upkeep;
mod xdp;
mod xdp_mode;

pub use abi::Prefix;
pub use balancer::{
    ConnLayout, ConnTable, ConnTimeouts, Connection, CookieId, CookieTotals, Directory, FlowIdle,
    FlowLimit, FlowSweep, FlowTotals, Forwarding, Inventory, LatencySums, Learned, LoadBalancer,
    LoadBalancerOptions, LoadTerms, OpenFlows, Pick, Picking, Protocol, Real, RealId, RealStats,
    SlotRoute, SourceRing, Swept, TableLimits, TableMemory, Traced, TunnelEnds, Vip, VipId,
    VipOptions, VipRings, destination_of, possible_cpus, ring_bytes, trace,
};
pub use conn_tokens::{Changes, ConnTokens, TokenEvents, TokenOf};
pub use cookie_hooks::{CookieHooks, netns_cookie, root_cgroup};
pub use decapsulator::{Decapsulator, DecapsulatorOptions};
pub use error::{DataPlaneError, Result};
pub use meter::{
    Attach, ClientNetwork, KernelMeter, MeterHook, MeterOptions, MeterSample, MeteredFlow,
    OpenEpochs, ServerLatencies,
};
pub use mirror::{
    Mirror, MirrorCounts, MirrorMaps, MirrorOptions, MirrorVip, MirroredFrame, MirroredPacket,
};
pub use pins::LAYOUT;
pub use plane::{CarriedOver, Detached, Started};
pub use sampler::{Sampler, SamplerOptions, interface_of};
pub use syn_hooks::HookChanges;
pub use syn_meter::{RESPONSE_BOUNDS_US, SynMeter, SynMeterOptions};
pub use tc::{TcDirection, TcLink};
pub use upkeep::Repairs;
pub use xdp::{Link, XdpState};
pub use xdp_mode::{AttachedMode, XdpMode};

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
