// SPDX-License-Identifier: Apache-2.0

//! Settings, checked once.

use std::fmt;
use std::net::SocketAddr;

use crate::types::PathId;
use crate::wire::{Credit, DATA_HEADER_LEN, TAG_LEN};

/// How a group of a flow's packets gets its path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// The lowest expected completion: RTT without a queue of one's own, plus what is
    /// in flight over the rate, floored by the age of the oldest unacknowledged packet.
    #[default]
    Completion,
    /// The lowest smoothed RTT, the slides' rule. Many senders herd on it.
    LowestRtt,
    /// Each frame on the next path.
    Spray,
}

/// The retransmission timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rto {
    /// srtt + 4 var + 0.5 ms + the ACK delay, at least 1 ms; up to 4 ms where the path's window
    /// is full.
    #[default]
    Adaptive,
    /// This long, in nanoseconds; the slides' 4 ms.
    Fixed(u64),
}

/// A shared secret. Its id travels in each datagram.
#[derive(Clone, PartialEq, Eq)]
pub struct TunnelKey {
    /// 1 to 255.
    pub id: u8,
    /// 32 random bytes.
    pub secret: [u8; 32],
}

impl fmt::Debug for TunnelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TunnelKey {{ id: {}, secret: hidden }}", self.id)
    }
}

/// The live keys. None: datagrams travel in clear. One: sealed, and nothing else is
/// taken. Two: sealed with `send`, taken with either.
///
/// To rotate: give both ends the new key as `also`, then make it `send` at both (the
/// old one `also`), then remove the old one. No packet is lost on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelKeys {
    /// Seals, and opens.
    pub send: Option<TunnelKey>,
    /// Opens only.
    pub also: Option<TunnelKey>,
}

/// What the engine may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Frames under way, sent but not known to be delivered: references to the
    /// caller's slots.
    pub frames: u32,
    /// Bytes of these.
    pub frame_bytes: u64,
    /// Bytes of them for one flow.
    pub flow_bytes: u64,
    /// Chunks received and not yet delivered: references to the caller's slots.
    pub chunks: u32,
    /// Bytes of these.
    pub chunk_bytes: u64,
    /// The largest window of a path in bytes.
    pub path_window: u64,
}

/// Of frames, twice what four paths of 10 Gbit/s hold at 1 ms.
impl Default for Limits {
    fn default() -> Self {
        Limits {
            frames: 4096,
            frame_bytes: 64 << 20,
            flow_bytes: 16 << 20,
            chunks: 16384,
            chunk_bytes: 32 << 20,
            path_window: 4 << 20,
        }
    }
}

impl Limits {
    /// What is granted to the peer. A quarter is a reserve: for what the peer has abandoned
    /// and this end has not, and for the chunk whose turn it is.
    pub(crate) fn credit(&self) -> Credit {
        let kib = (self.chunk_bytes - self.chunk_bytes / 4) / 1024;
        Credit {
            chunks: self.chunks - self.chunks / 4,
            kib: u32::try_from(kib).unwrap_or(u32::MAX),
        }
    }
}

/// A tunnel's settings. [`TransportConfig::default`] is what an operator should run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// How paths are chosen.
    pub schedule: Schedule,
    /// Bytes of a flow after which its path is chosen again.
    pub group_bytes: u32,
    /// A flow switches its path only for one that is better by more than this.
    pub switch_gain_ns: u64,
    /// The retransmission timeout.
    pub rto: Rto,
    /// An acknowledgement is sent after this many chunks, 1 to 128,
    pub ack_every: u16,
    /// or after this time, or at once when something is missing.
    pub ack_delay_ns: u64,
    /// Queueing delay that a path's window aims at, over its lowest RTT.
    pub queue_target_ns: u64,
    /// Where flows with little to send are beside bulk, this much is read beyond what the windows
    /// let through, as time that sending it takes (at most a quarter of `frame_lifetime_ns`, half of
    /// `limits.flow_bytes`, and 512 frames): flows take turns in it, so that none waits for
    /// all that another one has.
    pub read_ahead_ns: u64,
    /// A gap in a flow is waited for this long, or four times the slowest live path's
    /// RTT if that is longer; then it is skipped.
    pub reorder_timeout_ns: u64,
    /// A frame is abandoned this long after it was read, or four times the slowest live path's
    /// RTT if that is longer,
    pub frame_lifetime_ns: u64,
    /// or when one of its chunks was sent this often and is lost again.
    pub max_transmissions: u8,
    /// Flows are told apart by this many numbers, a power of two up to 65,536. Two
    /// guests' flows with the same number share one order.
    pub flows: u32,
    /// Whether this end's device takes UDP datagrams merged (virtio's UDP_L4). The peer is told.
    pub merges_udp: bool,
    /// Caps.
    pub limits: Limits,
    /// Keys, if any.
    pub keys: TunnelKeys,
}

impl Default for TransportConfig {
    fn default() -> Self {
        TransportConfig {
            schedule: Schedule::default(),
            group_bytes: 65_536,
            switch_gain_ns: 100_000,
            rto: Rto::default(),
            ack_every: 64,
            ack_delay_ns: 200_000,
            queue_target_ns: 1_000_000,
            read_ahead_ns: 20_000_000,
            reorder_timeout_ns: 25_000_000,
            frame_lifetime_ns: 200_000_000,
            max_transmissions: 10,
            flows: 16_384,
            merges_udp: false,
            limits: Limits::default(),
            keys: TunnelKeys::default(),
        }
    }
}

/// A path's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathConfig {
    /// Where the peer's datagrams come from and ours go to.
    pub peer: SocketAddr,
    /// The largest IP packet that fits, in bytes.
    pub mtu: u16,
}

/// The smallest MTU of a path: that of IPv6 (RFC 8200, section 5). A frame of 64 KiB
/// then fits in 64 chunks.
pub(crate) const MIN_MTU: u16 = 1280;

impl PathConfig {
    /// Bytes of IP and UDP headers on this path.
    pub fn ip_overhead(&self) -> u16 {
        if self.peer.is_ipv4() { 28 } else { 48 }
    }

    /// The largest chunk that fits an IP packet of `mtu` bytes.
    pub(crate) fn max_chunk(&self, mtu: u16, sealed: bool) -> u16 {
        let tag = if sealed { TAG_LEN } else { 0 };
        mtu - self.ip_overhead() - (DATA_HEADER_LEN + tag) as u16
    }

    /// Whether an engine would take it as the path with this number.
    ///
    /// # Errors
    /// The number is out of range, or the MTU is too small.
    pub fn check(&self, id: PathId) -> Result<(), TransportConfigError> {
        if id.index() >= PathId::LIMIT {
            return Err(TransportConfigError::PathId(id.0));
        }
        if self.mtu < MIN_MTU {
            return Err(TransportConfigError::Mtu(id.0, self.mtu));
        }
        Ok(())
    }
}

/// A setting that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportConfigError {
    /// Path number out of range.
    #[error("path {0}: numbers go from 0 to 15")]
    PathId(u8),
    /// The path exists already.
    #[error("path {0} exists; remove it first")]
    PathTaken(u8),
    /// MTU too small.
    #[error("path {0}: an MTU of {1} bytes is too small; give 1280 or more")]
    Mtu(u8, u16),
    /// Not a power of two in range.
    #[error("flows = {0}: give a power of two from 1 to 65536")]
    Flows(u32),
    /// Cannot change while running.
    #[error("flows cannot change while the tunnel runs: restart it")]
    FlowsFixed,
    /// Out of range.
    #[error("{name} = {value}: give {from} to {to}")]
    Range {
        /// The setting.
        name: &'static str,
        /// What was given.
        value: u64,
        /// The smallest that is taken.
        from: u64,
        /// The largest.
        to: u64,
    },
    /// A second key without a first.
    #[error("keys: `also` without `send`; a tunnel with keys needs one to send with")]
    NoSendKey,
    /// Key id 0, or the same id twice.
    #[error("keys: ids are 1 to 255 and differ from each other, not {0}")]
    KeyId(u8),
}

impl TransportConfig {
    /// # Errors
    /// The first setting that is out of range.
    pub fn check(&self) -> Result<(), TransportConfigError> {
        const SECOND: u64 = 1_000_000_000;
        if !self.flows.is_power_of_two() || self.flows > 65_536 {
            return Err(TransportConfigError::Flows(self.flows));
        }
        let rto = match self.rto {
            Rto::Adaptive => 4_000_000,
            Rto::Fixed(ns) => ns,
        };
        let limits = &self.limits;
        for (name, value, from, to) in [
            ("group_bytes", self.group_bytes.into(), 1, 1 << 30),
            ("switch_gain_ns", self.switch_gain_ns, 0, SECOND),
            ("rto_ns", rto, 100_000, SECOND),
            ("ack_every", self.ack_every.into(), 1, 128),
            ("ack_delay_ns", self.ack_delay_ns, 0, 10_000_000),
            ("queue_target_ns", self.queue_target_ns, 10_000, SECOND),
            ("read_ahead_ns", self.read_ahead_ns, 0, SECOND),
            (
                "reorder_timeout_ns",
                self.reorder_timeout_ns,
                100_000,
                SECOND,
            ),
            (
                "frame_lifetime_ns",
                self.frame_lifetime_ns,
                1_000_000,
                10 * SECOND,
            ),
            ("max_transmissions", self.max_transmissions.into(), 1, 255),
            ("frames", limits.frames.into(), 8, 1 << 20),
            ("frame_bytes", limits.frame_bytes, 1 << 17, 1 << 40),
            ("flow_bytes", limits.flow_bytes, 1 << 17, 1 << 40),
            ("chunks", limits.chunks.into(), 256, 1 << 24),
            ("chunk_bytes", limits.chunk_bytes, 1 << 18, 1 << 40),
            ("path_window", limits.path_window, 1 << 17, 1 << 32),
        ] {
            if !(from..=to).contains(&value) {
                return Err(TransportConfigError::Range {
                    name,
                    value,
                    from,
                    to,
                });
            }
        }
        self.keys.check()
    }
}

impl TunnelKeys {
    pub(crate) fn sealed(&self) -> bool {
        self.send.is_some()
    }

    fn check(&self) -> Result<(), TransportConfigError> {
        match (&self.send, &self.also) {
            (None, Some(_)) => Err(TransportConfigError::NoSendKey),
            (Some(key), _) if key.id == 0 => Err(TransportConfigError::KeyId(0)),
            (Some(a), Some(b)) if b.id == 0 || a.id == b.id => {
                Err(TransportConfigError::KeyId(b.id))
            }
            _ => Ok(()),
        }
    }
}
