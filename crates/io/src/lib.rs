// SPDX-License-Identifier: Apache-2.0
//! Every system call and libbpf call of Causeway. The data plane's objects are
//! embedded here; nothing above this crate knows what a map is.
//!
//! - [`LoadBalancer`]: the balancer, pinned so that it outlives the process.
//! - [`Decapsulator`]: its counterpart on a server.
//! - [`Meter`]: measurement alone, on any interface.
//! - [`Capture`]: packets of an interface, without BPF programs.
//! - [`filter`]: tcpdump's filter language.
//! - [`rtt`]: clocks, sockets and the sampler behind `causeway rtt`.
//! - [`resolve_next_hop`]: where its packets go, asked of the kernel's tables.

pub mod abi;
mod balancer;
pub mod bench;
pub mod capture;
mod cookie_hooks;
pub mod daisy;
mod decapsulator;
mod error;
pub mod filter;
pub mod flow_table;
mod map;
mod mapped;
pub mod meter;
mod netlink;
mod next_hop;
mod pins;
mod plane;
pub mod probe;
mod rings;
pub mod rtt;
mod run_time;
mod tc;
mod xdp;

pub use balancer::{
    ConnLayout, ConnTable, Connection, CookieId, CookieTotals, Forwarding, LoadBalancer, LoadTerms,
    Options, Patience, Pick, Picking, Protocol, Real, RealId, RealStats, Swept, Traced, Vip, VipId,
    VipOptions, trace,
};
pub use capture::{Capture, CaptureCounts, Frame};
pub use cookie_hooks::CookieHooks;
pub use decapsulator::{Decapsulator, DecapsulatorOptions};
pub use error::{Error, Result};
pub use filter::FilterError;
pub use meter::{
    Attach, Meter, MeterOptions, MeterSample, MeteredFlow, Network, Place, ServerLatencies,
};
pub use next_hop::{
    Gateway, Gue, InterfaceInfo, Mac, NextHop, NextHopError, Source, find_gateway, interface_info,
    resolve_next_hop,
};
pub use plane::{Detached, Started};
pub use run_time::{RunTime, RunTimes};
pub use xdp::{Mode, XdpMode};

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
    /// Health probes on their way out.
    pub mod probe {
        include!(concat!(env!("OUT_DIR"), "/probe.skel.rs"));
    }
    /// Daisy chaining, for comparison in the lab.
    pub mod daisy {
        include!(concat!(env!("OUT_DIR"), "/daisy.skel.rs"));
    }
    /// The sampler of `causeway rtt`.
    pub mod rtt {
        include!(concat!(env!("OUT_DIR"), "/rtt.skel.rs"));
    }
    /// Reference programs and packet preparation for benchmarks; never attached.
    pub mod bench {
        include!(concat!(env!("OUT_DIR"), "/bench.skel.rs"));
    }
}
