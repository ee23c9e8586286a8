// SPDX-License-Identifier: Apache-2.0
//! Clients that send what an estimator sees.

use causeway_core::estimate::{Estimator, Method, Packet, Tally};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
pub(crate) const START_NS: u64 = 1_700_000_000_123_456_789;
pub(crate) const SERVICE_NS: u64 = 5 * MS;
pub(crate) const REQUEST: u32 = 94;
pub(crate) const RESPONSE: u32 = 340;

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

/// Off the expected mean, in percent.
pub(crate) fn off_pct(tally: &Tally, expected_ns: u64) -> f64 {
    let mean_ns = tally.mean_ns().expect("samples");
    (mean_ns / expected_ns as f64 - 1.0) * 100.0
}

/// One connection of a client with one request at a time.
pub(crate) struct Client {
    pub(crate) packets: Vec<Packet>,
    timestamps: bool,
    /// Of the server's timestamps.
    pub(crate) tick_ns: u64,
    pub(crate) now: u64,
    /// When the server sent what the client has.
    pub(crate) sent_ns: u64,
    seq: u32,
    pub(crate) ack: u32,
}

impl Client {
    pub(crate) fn new(timestamps: bool) -> Self {
        let mut client = Self {
            packets: vec![tcp_syn(START_NS, 0)],
            timestamps,
            tick_ns: MS,
            now: START_NS + 50 * US,
            sent_ns: START_NS + 25 * US,
            seq: 1,
            ack: 1,
        };
        client.acknowledges();
        client.pauses(MS);
        client
    }

    fn push(&mut self, packet: Packet) {
        self.packets.push(Packet {
            has_ts: self.timestamps,
            tsecr: (self.sent_ns / self.tick_ns) as u32,
            ..packet
        });
        self.seq += packet.payload_len;
    }

    pub(crate) fn sends(&mut self, len: u32) {
        self.push(tcp_request(self.now, self.seq, len, self.ack));
    }

    /// Segments of at most `mss` bytes, of which the last one has PSH set.
    pub(crate) fn writes(&mut self, mut len: u32, mss: u32) {
        while len > 0 {
            let segment = tcp_request(self.now, self.seq, len.min(mss), self.ack);
            let tcp_flags = Packet::ACK | if len > mss { 0 } else { Packet::PSH };
            self.push(Packet {
                tcp_flags,
                ..segment
            });
            len -= len.min(mss);
        }
    }

    pub(crate) fn acknowledges(&mut self) {
        self.push(tcp_ack(self.now, self.seq, self.ack));
    }

    /// A response of `len` bytes is there, `after_ns` from now.
    pub(crate) fn receives(&mut self, after_ns: u64, len: u32) {
        self.now += after_ns;
        self.sent_ns = self.now;
        self.ack += len;
    }

    /// `count` requests, each as soon as the response to the last one is there.
    pub(crate) fn asks(&mut self, count: u32) {
        for _ in 0..count {
            self.sends(REQUEST);
            self.receives(SERVICE_NS, RESPONSE);
        }
    }

    pub(crate) fn pauses(&mut self, pause_ns: u64) {
        self.now += pause_ns;
    }

    pub(crate) fn closes(&mut self, tcp_flags: u8) {
        let packet = tcp_ack(self.now, self.seq, self.ack);
        self.push(Packet {
            tcp_flags,
            ..packet
        });
    }

    pub(crate) fn measured(self) -> Tally {
        tally(&mut Estimator::new(&Method::WindowChain), self.packets)
    }
}
