// SPDX-License-Identifier: Apache-2.0
//! Records of the meter and of sampled packets.

use super::{FlowKey6, Plain, c, plain};

/// `RttRecord::bits`: from the interface's host to the other end.
pub const RTT_OUTGOING: u8 = c::RTT_OUTGOING;
/// `RttRecord::bits`: chosen by the sampling.
pub const RTT_SAMPLED: u8 = c::RTT_SAMPLED;
/// `RttRecord::bits`: the timestamps are valid.
pub const RTT_TIMESTAMP: u8 = c::RTT_TIMESTAMP;

plain! {
    /// One packet that the sampler of `causeway rtt` took.
    "rtt_record" RttRecord {
        /// The kernel's monotonic clock.
        t_ns: u64,
        /// Address of the interface's host, IPv4 as IPv4-mapped.
        local: [u8; 16],
        /// Address of the other end.
        remote: [u8; 16],
        /// Port here.
        local_port_be: [u8; 2],
        /// Port there.
        remote_port_be: [u8; 2],
        /// Sequence number.
        seq: u32,
        /// Acknowledgement number.
        ack: u32,
        /// Timestamp.
        tsval: u32,
        /// Timestamp echoed.
        tsecr: u32,
        /// Bytes from the IP header on.
        ip_len: u32,
        /// Bytes behind the TCP header.
        payload_len: u32,
        /// TCP flags.
        tcp_flags: u8,
        /// See `enum rtt_bits`.
        bits: u8,
        /// Zero.
        pad: [u8; 2],
    }
    /// Head of a flow of the meter; the estimator's state follows.
    "meter_sums" MeterSums {
        /// Packets of the flow.
        packets: u64,
        /// The epoch that the sums are of: time / length of an epoch.
        epoch: u64,
        /// Sum of latency samples in half samples, ns.
        sum_halves_ns: u64,
        /// Number of half samples.
        weight_halves: u64,
        /// How much of `weight_halves` are upper bounds only.
        bound_halves: u32,
        /// The largest window of requests inferred; 0: unknown.
        window: u8,
        /// 1: there are bounds besides, which the path keeps within a third.
        narrow: u8,
        /// Zero.
        pad: [u8; 2],
    }
    /// Latencies of one flow in one epoch, or a part of them.
    "meter_record" MeterRecord {
        /// The flow, from client to server; IPv4 as IPv4-mapped.
        key: FlowKey6,
        /// Time / length of an epoch.
        epoch: u64,
        /// Sum of latency samples in half samples, ns.
        sum_halves_ns: u64,
        /// Number of half samples.
        weight_halves: u64,
        /// How much of `weight_halves` are upper bounds only.
        bound_halves: u32,
        /// The largest window of requests inferred; 0: unknown.
        window: u8,
        /// Which of the meter's estimators, in their order.
        slot: u8,
        /// As in `MeterSums`.
        narrow: u8,
        /// Zero.
        pad: u8,
    }
    /// A server, for the meter's histograms.
    "meter_server" MeterServer {
        /// Its address; IPv4 as IPv4-mapped.
        addr_be: [u8; 16],
        /// Its port.
        port_be: [u8; 2],
        /// IP protocol number.
        proto: u8,
        /// As in `MeterRecord`.
        slot: u8,
    }
}
