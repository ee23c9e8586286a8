// SPDX-License-Identifier: Apache-2.0
//! TCP's round trip by its timestamps (RFC 7323), as pping does: the time from
//! the first passing of a timestamp value to the first passing of its echo.
//!
//! Only segments that call for an answer count (data, SYN, FIN): a bare
//! ACK is not acknowledged, and its echo would come with the next data,
//! whenever that is. A retransmission has a later timestamp, so that it does not
//! confuse the matching. With delayed ACKs the echo is that of the earliest
//! segment acknowledged, so that the timer is part of the value.

use std::collections::VecDeque;

use super::seq_ack::most;
use super::technique::{Segment, Side, after, known_since};
use super::{Packet, Samples};

/// One flow, timed towards one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timestamps {
    /// The side that echoes.
    side: Side,
    /// Timestamp values under way and when each passed first, in order.
    under_way: VecDeque<(u32, u64)>,
    /// The newest value seen.
    newest: Option<u32>,
    /// A packet of that side has come.
    heard: bool,
}

impl Timestamps {
    /// A flow without packets. `side` is the one that echoes.
    pub fn new(side: Side) -> Self {
        Self {
            side,
            under_way: VecDeque::new(),
            newest: None,
            heard: false,
        }
    }

    /// Takes the next packet.
    pub fn packet(&mut self, segment: &Segment) -> Samples {
        let packet = &segment.packet;
        if !segment.is_tcp() || !packet.has_ts || segment.has(Packet::RST) {
            return Samples::default();
        }
        if segment.from == self.side {
            self.heard = true;
            return match segment.has(Packet::ACK) {
                true => self.echoed(packet.tsecr, packet.t_ns),
                false => Samples::default(),
            };
        }
        if segment.has(Packet::SYN) && self.newest != Some(segment.tsval) {
            // A new connection on the same ports.
            *self = Self::new(self.side);
        }
        if self
            .newest
            .is_none_or(|newest| after(segment.tsval, newest))
        {
            self.newest = Some(segment.tsval);
            if segment.seq_len() > 0 {
                if self.under_way.len() >= most(self.heard) {
                    self.under_way.pop_front();
                }
                self.under_way.push_back((segment.tsval, packet.t_ns));
            }
        }
        Samples::default()
    }

    fn echoed(&mut self, tsecr: u32, t_ns: u64) -> Samples {
        while let Some(&(tsval, passed_ns)) = self.under_way.front() {
            if after(tsval, tsecr) {
                break;
            }
            self.under_way.pop_front();
            if tsval == tsecr {
                return known_since(passed_ns, t_ns);
            }
        }
        Samples::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::technique::one_direction;
    use super::*;

    #[test]
    fn what_is_never_acknowledged_takes_little_memory() {
        let mut flow = Timestamps::new(Side::Server);
        // The newest are known all the same, but not behind a clock that was put back.
        let sums = one_direction(|segment| flow.packet(segment), 1_000_000);
        assert_eq!(sums, [2_000_000]);
        assert!(flow.under_way.capacity() <= 64);
        let mut flow = Timestamps::new(Side::Server);
        let sums = one_direction(|segment| flow.packet(segment), -1_000_000_000);
        assert!(sums.is_empty(), "{sums:?}");
    }
}
