// SPDX-License-Identifier: Apache-2.0
//! Packets that a capture or a trace copies.

use super::{Plain, c, plain};

/// `MirrorCtl::flags`: packets to one VIP alone.
pub const MIRROR_BY_VIP: u8 = c::MIRROR_BY_VIP;
/// `MirrorCtl::flags`: packets from one network alone.
pub const MIRROR_BY_CLIENT: u8 = c::MIRROR_BY_CLIENT;

plain! {
    /// Whether a command copies packets, and which.
    "mirror_ctl" MirrorCtl {
        /// Monotonic clock, ns; 0: no capture runs.
        until_ns: u64,
        /// Bit mask of the verdicts that are wanted.
        verdicts: u64,
        /// Process that looks.
        owner: u32,
        /// Bytes of a frame that are copied.
        snap: u32,
        /// A random number up to this samples a packet.
        threshold: u32,
        /// Packets handed on in a window, by all CPUs.
        exported_max: u32,
        /// Packets sampled in a window, by each CPU.
        sampled_max: u32,
        /// Address of the VIP; IPv4 as IPv4-mapped.
        vip_be: [u8; 16],
        /// Network of the clients; IPv4 as IPv4-mapped.
        client_be: [u8; 16],
        /// Its mask.
        client_mask_be: [u8; 16],
        /// Port of the VIP; 0: any.
        vip_port_be: [u8; 2],
        /// Protocol of the VIP; 0: any.
        vip_proto: u8,
        /// See `enum mirror_flags`.
        flags: u8,
    }
    /// A packet that went through a mirrored program; the frame before and after follow.
    "mirror_record" MirrorRecord {
        /// Monotonic clock as it came.
        t_ns: u64,
        /// Bytes of the frame that came.
        before_len: u32,
        /// Bytes of the frame that left; 0: neither sent nor changed in length.
        after_len: u32,
        /// Id of the VIP; all ones: none.
        vip: u32,
        /// Bytes of the first that follow.
        before_snap: u16,
        /// Bytes of the second that follow them.
        after_snap: u16,
        /// Number of the verdict.
        verdict: u8,
        /// See `enum cookie_result`; 255: none.
        result: u8,
        /// Zero.
        pad: [u8; 6],
    }
    /// What a mirror did with packets since its program was loaded first.
    "mirror_counts" MirrorCounts {
        /// Packets that came while the mirror was on.
        seen: u64,
        /// Of those, wanted by address.
        matched: u64,
        /// Of those, not sampled: too many a second on their CPU.
        skipped: u64,
        /// Sampled, but more than may be exported in a second.
        over_rate: u64,
        /// No room: they were not read in time.
        lost: u64,
        /// Exported.
        exported: u64,
    }
}
