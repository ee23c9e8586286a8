// SPDX-License-Identifier: Apache-2.0
//! TCP's round trip as a packet sampler sees it, the way a cloud's flow metrics
//! work: one packet in N is looked at, each on its own and in each direction, and
//! a value comes where a data segment and an acknowledgement that covers it both
//! were.
//!
//! The acknowledgement that was looked at need not be the first that covers the
//! data: where the next one rides on a response, the value is the application's
//! time. A retransmission may be counted. That is how such metrics behave, and
//! why they stand here beside the others.

use std::collections::VecDeque;

use super::technique::{Segment, Side, after, several};
use super::{Packet, Samples};

/// Sampled segments kept that await an acknowledgement.
const MAX_OUTSTANDING: usize = 64;

/// One flow, timed towards one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// The side that acknowledges.
    side: Side,
    one_in: u32,
    random: u64,
    outstanding: VecDeque<(u32, u64)>,
}

impl Sampled {
    /// A flow without packets, of which one in `one_in` (0 and 1: every one) is
    /// looked at.
    pub fn new(side: Side, one_in: u32, seed: u64) -> Self {
        Self {
            side,
            one_in,
            random: seed,
            outstanding: VecDeque::new(),
        }
    }

    /// Takes the next packet.
    pub fn packet(&mut self, segment: &Segment) -> Samples {
        if !segment.is_tcp() || segment.has(Packet::RST) || !self.picks() {
            return Samples::default();
        }
        if segment.from == self.side {
            return match segment.has(Packet::ACK) {
                true => self.acknowledged(segment.packet.ack, segment.packet.t_ns),
                false => Samples::default(),
            };
        }
        if segment.seq_len() > 0 {
            self.outstanding
                .push_back((segment.end(), segment.packet.t_ns));
            if self.outstanding.len() > MAX_OUTSTANDING {
                self.outstanding.pop_front();
            }
        }
        Samples::default()
    }

    fn acknowledged(&mut self, ack: u32, t_ns: u64) -> Samples {
        let (mut sum_ns, mut count) = (0u64, 0);
        self.outstanding.retain(|&(end, sent_ns)| {
            let covered = !after(end, ack);
            // None over a clock that was put back.
            if let Some(took_ns) = t_ns.checked_sub(sent_ns).filter(|_| covered) {
                sum_ns = sum_ns.saturating_add(took_ns);
                count += 1;
            }
            !covered
        });
        match count {
            0 => Samples::default(),
            _ => several(sum_ns, count, t_ns),
        }
    }

    /// Whether the next packet is looked at: SplitMix64 (Steele, Lea and Flood,
    /// OOPSLA 2014), its upper half scaled to 0..`one_in`.
    fn picks(&mut self) -> bool {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((z >> 32) * u64::from(self.one_in)) >> 32 == 0
    }
}
