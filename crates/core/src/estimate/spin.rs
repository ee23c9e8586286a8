// SPDX-License-Identifier: Apache-2.0
//! QUIC's round trip by its spin bit (RFC 9000, section 17.4; RFC 9312, section
//! 3.8.2), from the client's direction: the client turns the bit once per round
//! trip, so the time from one turn to the next is one round trip and, where the
//! application pauses, its pause.
//!
//! Packet numbers are encrypted, so reordering around a turn looks like more
//! turns: one that comes within an eighth of the usual time is not taken for one.
//! Hosts may leave the bit at rest, which gives no sample, or set it at random
//! for each packet, which shows in packets close together that differ.

use super::technique::{Segment, Side, known};
use super::{Packet, Samples};

const LONG_HEADER: u8 = 0x80;
const FIXED_BIT: u8 = 0x40;
const SPIN_BIT: u8 = 0x20;
/// Packets with the fixed bit that make a flow without a long header QUIC.
const CONVINCED: u32 = 8;
/// Pairs of packets close together, before they show whether the bit is random.
const CLOSE_PAIRS: u32 = 16;

/// One flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spin {
    /// Packets with the fixed bit so far; a long header counts for enough.
    quic: u32,
    /// A packet without the fixed bit: not QUIC, or QUIC that hides (RFC 9287).
    other: bool,
    value: Option<bool>,
    turned_ns: Option<u64>,
    /// Time between turns, smoothed by 1/8.
    usual_ns: u64,
    last: (u64, bool),
    close_pairs: u32,
    close_differ: u32,
}

impl Spin {
    /// Takes the next packet.
    pub fn packet(&mut self, segment: &Segment) -> Samples {
        let (Packet::UDP, false, Some(byte)) = (
            segment.packet.proto,
            segment.packet.opaque,
            segment.first_byte,
        ) else {
            return Samples::default();
        };
        self.other |= byte & FIXED_BIT == 0;
        let long = byte & LONG_HEADER != 0;
        self.quic = self.quic.saturating_add(if long { CONVINCED } else { 1 });
        if self.other || long || segment.from != Side::Client {
            return Samples::default();
        }
        let t_ns = segment.packet.t_ns;
        let bit = byte & SPIN_BIT != 0;
        self.watch_randomness(t_ns, bit);
        let turn_ns = self.turn(t_ns, bit);
        match turn_ns {
            Some(turn_ns) if self.quic >= CONVINCED && !self.is_random() => known(turn_ns, t_ns),
            _ => Samples::default(),
        }
    }

    /// The time since the last turn, if this packet is a turn and not the first.
    fn turn(&mut self, t_ns: u64, bit: bool) -> Option<u64> {
        match self.value.replace(bit) {
            Some(old) if old != bit => {}
            _ => return None,
        }
        let since_ns = self.turned_ns.map(|turned| t_ns.saturating_sub(turned));
        if since_ns.is_some_and(|since| since < self.usual_ns / 8) {
            // A straggler from before the turn.
            self.value = Some(!bit);
            return None;
        }
        self.turned_ns = Some(t_ns);
        let since_ns = since_ns?;
        self.usual_ns = match self.usual_ns {
            0 => since_ns,
            usual => usual - usual / 8 + since_ns / 8,
        };
        Some(since_ns)
    }

    fn watch_randomness(&mut self, t_ns: u64, bit: bool) {
        let (last_ns, last_bit) = std::mem::replace(&mut self.last, (t_ns, bit));
        if last_ns == 0 || t_ns.saturating_sub(last_ns) >= self.usual_ns / 8 {
            return;
        }
        self.close_pairs += 1;
        self.close_differ += u32::from(bit != last_bit);
        if self.close_pairs == 4 * CLOSE_PAIRS {
            self.close_pairs /= 2;
            self.close_differ /= 2;
        }
    }

    /// Of packets close together a quarter differ: reordering is rarer than that.
    fn is_random(&self) -> bool {
        self.close_pairs >= CLOSE_PAIRS && self.close_differ * 4 >= self.close_pairs
    }
}
