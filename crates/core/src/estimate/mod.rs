// SPDX-License-Identifier: Apache-2.0
//! Response latency from the packets that travel from client to server.
//!
//! An estimator follows one flow. It is fed each [`Packet`] in order of arrival
//! and returns [`Samples`]: latencies that have become known, each with the time
//! it belongs to. Which epoch a sample counts for, and in which sum, is the
//! caller's affair:
//!
//! ```
//! use causeway_core::estimate::{Estimator, Method, Packet, Tally};
//!
//! let mut flow = Estimator::new(&Method::WindowChain);
//! let mut tally = Tally::default();
//! for i in 1..50u32 {
//!     let request = Packet {
//!         t_ns: u64::from(i) * 2_000_000,
//!         ip_len: 140,
//!         payload_len: 100,
//!         seq: i * 100,
//!         ack: i * 1000,
//!         tcp_flags: Packet::ACK,
//!         proto: Packet::TCP,
//!         ..Packet::default()
//!     };
//!     flow.packet(&request).iter().for_each(|sample| tally.add(sample));
//! }
//! flow.finish().iter().for_each(|sample| tally.add(sample));
//! assert!((tally.mean_ns().unwrap() - 2e6).abs() < 4096.0);
//! ```
//!
//! The estimators themselves are C, in `bpf/shared`, because the kernel runs the
//! same code. Beside them stand the [`Technique`]s that others use, some of which
//! need both directions: those are for comparison and run in user space alone.

mod confidence;
mod fixed_gap;
mod handshake;
mod modes;
mod native;
mod sampled;
mod seq_ack;
mod spin;
mod state;
mod technique;
mod timestamps;
mod ts_echo;
mod window_chain;

use std::fmt;
use std::mem::MaybeUninit;

pub use confidence::{Confidence, Quality};
pub use fixed_gap::{FixedGap, FixedGapConfig};
pub use handshake::Handshake;
pub use modes::{Modes, ModesConfig, ModesIbg};
pub use native::{FixedGapState, ModesState, ThreeConfigs, WindowChainState};
pub use sampled::Sampled;
pub use seq_ack::SeqAck;
pub use spin::Spin;
pub use state::{EstimatorState, Lineup, Three};
pub use technique::{Follower, Needs, Segment, Side, Technique};
pub use timestamps::Timestamps;
pub use ts_echo::TsEcho;
pub use window_chain::WindowChain;

/// One packet of the request direction, as an estimator sees it
/// (`struct est_packet`). Fields are in host byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// Arrival in nanoseconds, of any clock that is monotonic within a flow.
    pub t_ns: u64,
    /// Bytes from the start of the IP header, as the header states them.
    pub ip_len: u32,
    /// Bytes after the TCP or UDP header.
    pub payload_len: u32,
    /// TCP sequence number.
    pub seq: u32,
    /// TCP acknowledgement number.
    pub ack: u32,
    /// TCP timestamp echo reply; valid where `has_ts`.
    pub tsecr: u32,
    /// TCP flags: [`Packet::SYN`] and so on. 0 for other protocols.
    pub tcp_flags: u8,
    /// The segment carries the timestamp option.
    pub has_ts: bool,
    /// IP protocol number.
    pub proto: u8,
    /// The transport header cannot be read or is to be ignored.
    pub opaque: bool,
}

impl Packet {
    /// The FIN bit of `tcp_flags`.
    pub const FIN: u8 = 0x01;
    /// The SYN bit of `tcp_flags`.
    pub const SYN: u8 = 0x02;
    /// The RST bit of `tcp_flags`.
    pub const RST: u8 = 0x04;
    /// What the program has written ends here.
    pub const PSH: u8 = 0x08;
    /// The ACK bit of `tcp_flags`.
    pub const ACK: u8 = 0x10;
    /// IP protocol number of TCP.
    pub const TCP: u8 = 6;
    /// IP protocol number of UDP.
    pub const UDP: u8 = 17;

    /// Whether its sender closes the connection: `est_ends` of `bpf/shared/estimator.h`.
    pub fn ends(&self) -> bool {
        let has = |flags| self.tcp_flags & flags != 0;
        self.proto == Self::TCP && !self.opaque && has(Self::FIN | Self::RST) && !has(Self::SYN)
    }
}

/// Latencies that became known together (`struct est_sample`), in half samples:
/// a latency of which the estimator is less sure counts as one half.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The time that they belong to; it decides the epoch. Nanoseconds.
    pub when_ns: u64,
    /// Sum of the latencies times their weight in halves. Nanoseconds.
    pub sum_halves_ns: u64,
    /// Sum of the weights in halves. 0: no sample.
    pub weight_halves: u32,
    /// What bounds among them weigh: the client may have been idle for a part of that time,
    /// or have had more requests out than can be distinguished. If other samples of the flow are
    /// better, they are in neither sum.
    pub bound_halves: u16,
    /// Requests that the client keeps outstanding at most, as inferred so far;
    /// 0 where the estimator does not know.
    pub window: u8,
    /// Not 0: the bounds are the flow's kind. All its samples are off alike, so that servers
    /// can still be compared by them. [`Sample::NARROW`]: by less than a third.
    pub systematic: u8,
    /// Those of the latencies that are known one by one.
    singles: Singles,
}

/// Latencies of a group that are known one by one (`struct est_sample`), each with a weight of
/// two halves. The C writes those that there are, and no more.
#[repr(C)]
#[derive(Clone, Copy)]
struct Singles {
    len: u32,
    /// In units of 16 ns.
    units: [MaybeUninit<u32>; Self::MOST],
}

impl Singles {
    const MOST: usize = 15;
    const SHIFT: u32 = 4;

    fn iter_ns(&self) -> impl Iterator<Item = u64> + '_ {
        let known = self.units.iter().take(self.len as usize);
        // SAFETY: the first `len` are written: by the C, or there are none.
        known.map(|units| u64::from(unsafe { units.assume_init() }) << Self::SHIFT)
    }
}

impl Default for Singles {
    fn default() -> Self {
        Self {
            len: 0,
            units: [MaybeUninit::uninit(); Self::MOST],
        }
    }
}

impl PartialEq for Singles {
    fn eq(&self, other: &Self) -> bool {
        self.iter_ns().eq(other.iter_ns())
    }
}

impl Eq for Singles {}

impl fmt::Debug for Singles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter_ns()).finish()
    }
}

impl Sample {
    /// `systematic` where the path's round trip is three quarters of the latency at least.
    pub const NARROW: u8 = 2;

    /// Their mean latency in nanoseconds; `None` where there is no sample.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.weight_halves > 0).then(|| self.sum_halves_ns as f64 / f64::from(self.weight_halves))
    }

    /// The latencies in nanoseconds with their weights in halves, for a distribution: each that
    /// is known as itself; those of which only the mean is known as that mean.
    pub fn latencies(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let singles = self.singles.len.min(Singles::MOST as u32);
        let known_ns: u64 = self.singles.iter_ns().sum();
        let weight = self.weight_halves.saturating_sub(2 * singles);
        let sum = self.sum_halves_ns.saturating_sub(2 * known_ns);
        let rest = sum.checked_div(weight.into()).map(|mean| (mean, weight));
        self.singles.iter_ns().map(|ns| (ns, 2)).chain(rest)
    }
}

/// What one step gives (`struct est_samples`): up to two groups, in time order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    group: [Sample; 2],
}

impl Samples {
    /// The groups that hold samples or bounds.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &Sample> {
        let known = |sample: &&Sample| sample.weight_halves > 0 || sample.bound_halves > 0;
        self.group.iter().filter(known)
    }
}

const _: () = assert!(size_of::<Packet>() == 32);
const _: () = assert!(size_of::<Sample>() == 88);
const _: () = assert!(size_of::<Samples>() == 176);

/// The sum of many samples, of an epoch, a flow or a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// As [`Sample::sum_halves_ns`].
    pub sum_halves_ns: u64,
    /// As [`Sample::weight_halves`].
    pub weight_halves: u64,
    /// As [`Sample::bound_halves`], but for narrow ones.
    pub bound_halves: u64,
    /// Some bounds are narrow ([`Sample::NARROW`]).
    pub narrow: bool,
    /// The largest [`Sample::window`].
    pub window: u8,
}

impl Tally {
    /// Adds a sample.
    #[inline]
    pub fn add(&mut self, sample: &Sample) {
        self.sum_halves_ns = self.sum_halves_ns.saturating_add(sample.sum_halves_ns);
        self.weight_halves = self
            .weight_halves
            .saturating_add(u64::from(sample.weight_halves));
        match sample.systematic {
            Sample::NARROW => self.narrow = true,
            _ => {
                let bound_halves = u64::from(sample.bound_halves);
                self.bound_halves = self.bound_halves.saturating_add(bound_halves);
            }
        }
        self.window = self.window.max(sample.window);
    }

    /// Adds another sum.
    pub fn merge(&mut self, other: &Self) {
        self.sum_halves_ns = self.sum_halves_ns.saturating_add(other.sum_halves_ns);
        self.weight_halves = self.weight_halves.saturating_add(other.weight_halves);
        self.bound_halves = self.bound_halves.saturating_add(other.bound_halves);
        self.narrow |= other.narrow;
        self.window = self.window.max(other.window);
    }

    /// Whole samples; a lone half does not count.
    pub fn samples(&self) -> u64 {
        self.weight_halves / 2
    }

    /// Mean latency in nanoseconds, from at least one whole sample.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.weight_halves >= 2).then(|| self.sum_halves_ns as f64 / self.weight_halves as f64)
    }

    /// How far to trust [`Tally::mean_ns`].
    pub fn confidence(&self) -> Confidence {
        Confidence::of(self)
    }
}

/// Which estimator to run, with its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Causeway's own: follows each outstanding request.
    #[default]
    WindowChain,
    /// PIRATE's Algorithm 1.
    FixedGap(FixedGapConfig),
    /// PIRATE's Algorithm 2.
    Modes(ModesConfig),
}

impl Method {
    /// The word for it on the command line and in output.
    pub fn name(&self) -> &'static str {
        match self {
            Self::WindowChain => "window-chain",
            Self::FixedGap(_) => "fixed-gap",
            Self::Modes(_) => "modes",
        }
    }
}

/// Any estimator of one flow.
///
/// Legal order of calls: `packet` in order of arrival; `end_epoch` whenever an
/// epoch ends, before the first packet of the next one; `finish` at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Estimator {
    /// See [`WindowChain`].
    WindowChain(WindowChain),
    /// See [`FixedGap`].
    FixedGap(FixedGap),
    /// See [`Modes`].
    Modes(Modes),
}

impl Estimator {
    /// A flow without packets.
    pub fn new(method: &Method) -> Self {
        match method {
            Method::WindowChain => Self::WindowChain(WindowChain::default()),
            Method::FixedGap(config) => Self::FixedGap(FixedGap::new(*config)),
            Method::Modes(config) => Self::Modes(Modes::new(*config)),
        }
    }

    /// Takes the next packet of the flow.
    pub fn packet(&mut self, packet: &Packet) -> Samples {
        match self {
            Self::WindowChain(flow) => flow.packet(packet),
            Self::FixedGap(flow) => flow.packet(packet),
            Self::Modes(flow) => {
                flow.packet(packet);
                Samples::default()
            }
        }
    }

    /// Ends an epoch. Estimators that judge an epoch as a whole give their
    /// estimate here, with the time of the epoch's last packet.
    pub fn end_epoch(&mut self) -> Samples {
        match self {
            Self::WindowChain(_) | Self::FixedGap(_) => Samples::default(),
            Self::Modes(flow) => flow.end_epoch(),
        }
    }

    /// Ends the flow, and with it the epoch.
    pub fn finish(&mut self) -> Samples {
        match self {
            Self::WindowChain(flow) => flow.finish(),
            Self::FixedGap(_) => Samples::default(),
            Self::Modes(flow) => flow.end_epoch(),
        }
    }
}
