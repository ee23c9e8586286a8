// SPDX-License-Identifier: Apache-2.0
//! Sockets and devices: what Causeway asks of the kernel without BPF programs, so that it
//! builds without clang. It moves bytes and reads tables, and decides nothing.
//!
//! - [`Capture`]: packets of an interface by AF_PACKET; [`filter`]: tcpdump's filter language.
//! - [`interface_info`], [`find_gateways`]: where packets go, asked of the kernel's tables by netlink.
//! - [`net_devices`], [`DriverInfo`], [`closed_input_chains`], [`reach`]: what stands between a
//!   program on an interface and the packets.
//! - [`in_flight`], [`listener`]: connections and accept queues, asked by sock_diag.
//! - [`rtt`]: clocks, channels and ICMP echo behind `causeway rtt`.
//! - [`tunnel`]: TUN devices, UDP in batches, and memory for `causeway tunnel`.

#![warn(missing_docs)]

mod capture;
mod ethtool;
pub mod filter;
mod in_flight;
mod interface;
pub mod listener;
mod net_device;
mod netlink;
mod next_hop;
mod nf_tables;
mod path_mtu;
mod route;
mod route_mtu;
pub mod rtt;
mod sock_diag;
pub mod tunnel;

pub use capture::{Capture, CaptureCounts, CaptureError, Frame, SNAP_LEN};
pub use ethtool::{DriverInfo, Offload, Setting};
pub use filter::FilterError;
pub use in_flight::in_flight;
pub use interface::{Interface, NoInterface};
pub use net_device::{NetDevice, net_devices};
pub use next_hop::{
    Gateway, Gateways, Gue, InterfaceInfo, Mac, NextHop, NextHopError, OnLink, OuterSource,
    OwnAddress, WORLD_V4, device_to, find_gateways, interface_info, on_link, own_addresses,
};
pub use nf_tables::closed_input_chains;
pub use path_mtu::{Reach, reach};

/// CLOCK_MONOTONIC, nanoseconds: the clock of the programs in the kernel.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    // The clock exists wherever Linux runs.
    now.map_or(0, |now| std::time::Duration::from(now).as_nanos() as u64)
}

/// A number for this boot of the machine: monotonic times of another say nothing here. 0 where the
/// kernel does not say.
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
