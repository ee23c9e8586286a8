// SPDX-License-Identifier: Apache-2.0
//! Every way of measuring latency from packets, under one roof: what it needs to
//! see, what it measures, and its state for one flow.
//!
//! The numbers are of different things. A handshake or a TCP acknowledgement
//! comes from the peer's kernel and times the network; a response comes from the
//! application. [`Technique::measures`] says which; put side by side they show
//! where the time goes.

use super::handshake::Handshake;
use super::sampled::Sampled;
use super::seq_ack::SeqAck;
use super::spin::Spin;
use super::timestamps::Timestamps;
use super::ts_echo::TsEcho;
use super::{Estimator, Method, Packet, Sample, Samples};

/// One end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Sends requests.
    Client,
    /// Sends responses.
    Server,
}

/// One packet of either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The side that sent it.
    pub from: Side,
    /// The packet; acknowledgement and timestamp echo are its sender's.
    pub packet: Packet,
    /// TCP's timestamp value, the sender's clock; valid where `packet.has_ts`.
    pub tsval: u32,
    /// First byte of a UDP payload, if it was captured.
    pub first_byte: Option<u8>,
}

impl Segment {
    /// Whether this is a TCP segment whose header may be read.
    pub(crate) fn is_tcp(&self) -> bool {
        self.packet.proto == Packet::TCP && !self.packet.opaque
    }

    pub(super) fn has(&self, flags: u8) -> bool {
        self.packet.tcp_flags & flags != 0
    }

    /// Sequence numbers that it takes: its payload, SYN and FIN.
    pub(super) fn seq_len(&self) -> u32 {
        let flag = |bit| u32::from(self.has(bit));
        self.packet.payload_len + flag(Packet::SYN) + flag(Packet::FIN)
    }

    /// The sequence number after its last.
    pub(super) fn end(&self) -> u32 {
        self.packet.seq.wrapping_add(self.seq_len())
    }
}

/// Clients' packets alone, as most captures beside a balancer have, and then the server's answer, so
/// much later than the last: the sums that it gives.
#[cfg(test)]
pub(super) fn one_direction(
    mut packet: impl FnMut(&Segment) -> Samples,
    later_ns: i64,
) -> Vec<u64> {
    let mut segment = Segment {
        from: Side::Client,
        packet: Packet {
            ip_len: 152,
            payload_len: 100,
            tcp_flags: Packet::ACK,
            proto: Packet::TCP,
            has_ts: true,
            ..Packet::default()
        },
        tsval: 0,
        first_byte: None,
    };
    for n in 0..5_000u32 {
        segment.packet.t_ns = u64::from(n) * 1_000_000;
        segment.packet.seq = n * 100;
        segment.tsval = n;
        packet(&segment);
    }
    segment.from = Side::Server;
    segment.packet.t_ns = segment.packet.t_ns.saturating_add_signed(later_ns);
    (segment.packet.ack, segment.packet.tsecr) = (500_000, 4_999);
    let samples = packet(&segment);
    let values = samples.iter().filter(|sample| sample.weight_halves > 0);
    values.map(|sample| sample.sum_halves_ns).collect()
}

/// Serial number arithmetic (RFC 1982): `a` comes after `b`.
pub(super) fn after(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 > 0
}

/// One latency, for the time at which it became known.
pub(super) fn known(latency_ns: u64, when_ns: u64) -> Samples {
    several(latency_ns, 1, when_ns)
}

/// The time since `from_ns`; none where the clock was put back in between.
pub(super) fn known_since(from_ns: u64, now_ns: u64) -> Samples {
    match now_ns.checked_sub(from_ns) {
        Some(latency_ns) => known(latency_ns, now_ns),
        None => Samples::default(),
    }
}

/// `count` latencies with this sum.
pub(super) fn several(sum_ns: u64, count: u32, when_ns: u64) -> Samples {
    let sample = Sample {
        when_ns,
        sum_halves_ns: sum_ns.saturating_mul(2),
        weight_halves: count * 2,
        ..Sample::default()
    };
    Samples {
        group: [sample, Sample::default()],
    }
}

/// What a technique must see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The packets from clients to servers.
    Requests,
    /// Packets of both directions.
    Both,
}

impl Needs {
    /// The words for it in help and output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "client to server",
            Self::Both => "both directions",
        }
    }
}

/// A way of measuring latency, with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Technique {
    /// An estimator of `bpf/shared`, which the kernel runs as well.
    Request(Method),
    /// SYN to the client's first packet after it.
    Handshake,
    /// Responses by the server's clock, as clients echo it (TSecr).
    TsEcho,
    /// QUIC's spin bit.
    Spin,
    /// Data and the acknowledgement that covers it; the side that acknowledges.
    SeqAck(Side),
    /// A timestamp and its echo; the side that echoes.
    Timestamps(Side),
    /// As `SeqAck`, with one packet in this many looked at, in each direction.
    Sampled(Side, u32),
}

impl Technique {
    /// The word for it on the command line and in output.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Request(method) => method.name(),
            Self::Handshake => "handshake",
            Self::TsEcho => "ts-echo",
            Self::Spin => "spin",
            Self::SeqAck(Side::Server) => "seq-ack",
            Self::SeqAck(Side::Client) => "seq-ack-client",
            Self::Timestamps(Side::Server) => "timestamps",
            Self::Timestamps(Side::Client) => "timestamps-client",
            Self::Sampled(Side::Server, _) => "sampled",
            Self::Sampled(Side::Client, _) => "sampled-client",
        }
    }

    /// Which directions it must see.
    pub fn needs(&self) -> Needs {
        match self {
            Self::Request(_) | Self::Handshake | Self::TsEcho | Self::Spin => Needs::Requests,
            Self::SeqAck(_) | Self::Timestamps(_) | Self::Sampled(..) => Needs::Both,
        }
    }

    /// The quantity, in a few words.
    pub fn measures(&self) -> &'static str {
        match self {
            Self::Request(_) => {
                "response latency: request to the end of its response, at the client"
            }
            Self::Handshake => "network round trip, client to server, once per connection",
            Self::TsEcho => "response latency without the client's own pauses, to about 1 ms",
            Self::Spin => "QUIC round trip, with pauses of the application",
            Self::SeqAck(Side::Server) => "observer to server's TCP and back, with its delayed ACK",
            Self::SeqAck(Side::Client) => "observer to client's TCP and back, with its delayed ACK",
            Self::Timestamps(Side::Server) => "observer to server's TCP and back, by timestamps",
            Self::Timestamps(Side::Client) => "observer to client's TCP and back, by timestamps",
            Self::Sampled(Side::Server, _) => {
                "as seq-ack, as a sampler sees it: the ACK may be a later one"
            }
            Self::Sampled(Side::Client, _) => {
                "as seq-ack-client, as a sampler sees it: the ACK may be a later one"
            }
        }
    }

    /// What it must find in a packet to say anything.
    pub fn protocol(&self) -> &'static str {
        match self {
            Self::Request(_) => "TCP, UDP, opaque",
            Self::Handshake | Self::SeqAck(_) | Self::Sampled(..) => "TCP",
            Self::TsEcho | Self::Timestamps(_) => "TCP timestamps",
            Self::Spin => "QUIC",
        }
    }
}

/// The state of one technique for one flow.
///
/// Legal order of calls as for [`Estimator`].
#[derive(Clone, Debug)]
pub enum Follower {
    /// See [`Technique::Request`].
    Request(Estimator),
    /// See [`Handshake`].
    Handshake(Handshake),
    /// See [`TsEcho`].
    TsEcho(TsEcho),
    /// See [`Spin`].
    Spin(Spin),
    /// See [`SeqAck`].
    SeqAck(SeqAck),
    /// See [`Timestamps`].
    Timestamps(Timestamps),
    /// See [`Sampled`].
    Sampled(Sampled),
}

impl Follower {
    /// A flow without packets. `seed` decides which packets a sampler picks.
    pub fn new(technique: &Technique, seed: u64) -> Self {
        match technique {
            Technique::Request(method) => Self::Request(Estimator::new(method)),
            Technique::Handshake => Self::Handshake(Handshake::default()),
            Technique::TsEcho => Self::TsEcho(TsEcho::default()),
            Technique::Spin => Self::Spin(Spin::default()),
            Technique::SeqAck(side) => Self::SeqAck(SeqAck::new(*side)),
            Technique::Timestamps(side) => Self::Timestamps(Timestamps::new(*side)),
            Technique::Sampled(side, one_in) => Self::Sampled(Sampled::new(*side, *one_in, seed)),
        }
    }

    /// Takes the next packet of the flow, of whichever direction.
    pub fn packet(&mut self, segment: &Segment) -> Samples {
        match self {
            Self::Request(estimator) if segment.from == Side::Client => {
                estimator.packet(&segment.packet)
            }
            Self::Request(_) => Samples::default(),
            Self::Handshake(state) => state.packet(segment),
            Self::TsEcho(state) => state.packet(segment),
            Self::Spin(state) => state.packet(segment),
            Self::SeqAck(state) => state.packet(segment),
            Self::Timestamps(state) => state.packet(segment),
            Self::Sampled(state) => state.packet(segment),
        }
    }

    /// Ends an epoch; see [`Estimator::end_epoch`].
    pub fn end_epoch(&mut self) -> Samples {
        match self {
            Self::Request(estimator) => estimator.end_epoch(),
            _ => Samples::default(),
        }
    }

    /// Ends the flow.
    pub fn finish(&mut self) -> Samples {
        match self {
            Self::Request(estimator) => estimator.finish(),
            _ => Samples::default(),
        }
    }
}
