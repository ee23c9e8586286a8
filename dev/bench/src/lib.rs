// SPDX-License-Identifier: Apache-2.0
//! The laboratory's BPF programs, which no balancer loads, and the benchmarks on them: the
//! cost of a packet in the balancer's program beside references that do less
//! ([`dataplane`]), of a segment in a server's ([`server`]), a packet dropper ([`loss`]), slow
//! timestamps ([`ticks`]), daisy chaining ([`daisy_chain`]) and floods ([`flood`]); the cost of a
//! packet that is not sampled ([`sampler`]), and of programs while they run ([`run_time`]); and where
//! the product's binary is ([`product`]).

pub mod daisy_chain;
pub mod dataplane;
pub mod flood;
pub mod loss;
pub mod product;
pub mod run_time;
pub mod sampler;
pub mod server;
pub mod ticks;

/// Generated skeletons: open, set sizes and flags, load.
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    unreachable_pub
)]
mod skel {
    pub(crate) mod reference {
        include!(concat!(env!("OUT_DIR"), "/reference.skel.rs"));
    }
    pub(crate) mod baselines {
        include!(concat!(env!("OUT_DIR"), "/baselines.skel.rs"));
    }
    pub(crate) mod daisy_chain {
        include!(concat!(env!("OUT_DIR"), "/daisy_chain.skel.rs"));
    }
    pub(crate) mod flood {
        include!(concat!(env!("OUT_DIR"), "/flood.skel.rs"));
    }
    pub(crate) mod floors {
        include!(concat!(env!("OUT_DIR"), "/floors.skel.rs"));
    }
    pub(crate) mod segments {
        include!(concat!(env!("OUT_DIR"), "/segments.skel.rs"));
    }
    pub(crate) mod loss {
        include!(concat!(env!("OUT_DIR"), "/loss.skel.rs"));
    }
    pub(crate) mod ticks {
        include!(concat!(env!("OUT_DIR"), "/ticks.skel.rs"));
    }
}
