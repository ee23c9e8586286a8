// SPDX-License-Identifier: Apache-2.0
//! Every system call and libbpf call of Causeway. The data plane's objects are
//! embedded here; nothing above this crate knows what a map is.

pub mod abi;

/// Generated skeletons: open, set sizes and flags, load.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks
)]
pub mod skel {
    /// The balancer.
    pub mod lb {
        include!(concat!(env!("OUT_DIR"), "/lb.skel.rs"));
    }
    /// A server's decapsulation.
    pub mod server {
        include!(concat!(env!("OUT_DIR"), "/server.skel.rs"));
    }
}
