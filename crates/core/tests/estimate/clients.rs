// SPDX-License-Identifier: Apache-2.0
//! Clients that send what an estimator sees.

use causeway_core::estimate::{Estimator, Packet, Tally};

/// A TCP request of `len` bytes that acknowledges all up to `ack`.
pub(crate) fn tcp_request(t_ns: u64, seq: u32, len: u32, ack: u32) -> Packet {
    Packet {
        t_ns,
        ip_len: len + 52,
        payload_len: len,
        seq,
        ack,
        tcp_flags: Packet::ACK,
        proto: Packet::TCP,
        ..Packet::default()
    }
}

/// A TCP segment without payload.
pub(crate) fn tcp_ack(t_ns: u64, seq: u32, ack: u32) -> Packet {
    Packet {
        ip_len: 52,
        ..tcp_request(t_ns, seq, 0, ack)
    }
}

pub(crate) fn tcp_syn(t_ns: u64, seq: u32) -> Packet {
    Packet {
        tcp_flags: Packet::SYN,
        ..tcp_ack(t_ns, seq, 0)
    }
}

/// A UDP datagram of `len` bytes of payload.
pub(crate) fn datagram(t_ns: u64, len: u32) -> Packet {
    Packet {
        t_ns,
        ip_len: len + 28,
        payload_len: len,
        proto: Packet::UDP,
        ..Packet::default()
    }
}

/// Feeds all packets and sums what comes out.
pub(crate) fn tally(flow: &mut Estimator, packets: impl IntoIterator<Item = Packet>) -> Tally {
    let mut tally = Tally::default();
    for packet in packets {
        for sample in flow.packet(&packet).iter() {
            tally.add(sample);
        }
    }
    for sample in flow.finish().iter() {
        tally.add(sample);
    }
    tally
}
