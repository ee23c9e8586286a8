// SPDX-License-Identifier: Apache-2.0
//! TCP's round trip by matching data with the acknowledgement that covers it, as
//! tcptrace does, from the middle of the path: the time from a data segment's
//! passing to the passing of the ACK that its receiver sends back.
//!
//! It ends where the receiver's kernel acknowledges: with the network's round
//! trip beyond the observer, the receiver's delayed-ACK timer or, where the ACK
//! rides on the response, its service time. Each ACK gives at most one sample,
//! for the newest segment that it covers. Karn's rule: no sample where anything
//! that it covers was sent twice.

use std::collections::VecDeque;

use super::technique::{Segment, Side, after, known_since};
use super::{Packet, Samples};

/// Segments kept that await an acknowledgement; older ones are forgotten.
const MAX_OUTSTANDING: usize = 1024;
/// The same while nothing has come from the side that acknowledges: of a capture of one
/// direction nothing will.
const MAX_UNHEARD: usize = 32;

/// How many are kept.
pub(super) fn most(heard: bool) -> usize {
    match heard {
        true => MAX_OUTSTANDING,
        false => MAX_UNHEARD,
    }
}

/// One flow, timed towards one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeqAck {
    /// The side that acknowledges.
    side: Side,
    /// In the order of sequence numbers.
    outstanding: VecDeque<Sent>,
    /// End of all data sent so far.
    sent_to: Option<u32>,
    /// A packet of that side has come.
    heard: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    seq: u32,
    end: u32,
    t_ns: u64,
    /// Sent more than once, in whole or in part.
    again: bool,
}

impl SeqAck {
    /// A flow without packets. `side` is the one that acknowledges.
    pub fn new(side: Side) -> Self {
        Self {
            side,
            outstanding: VecDeque::new(),
            sent_to: None,
            heard: false,
        }
    }

    /// Takes the next packet.
    pub fn packet(&mut self, segment: &Segment) -> Samples {
        if !segment.is_tcp() || segment.has(Packet::RST) {
            return Samples::default();
        }
        if segment.from == self.side {
            self.heard = true;
            return self.acknowledged(segment);
        }
        if segment.seq_len() > 0 {
            self.sent(segment);
        }
        Samples::default()
    }

    fn sent(&mut self, segment: &Segment) {
        let (seq, end) = (segment.packet.seq, segment.end());
        if segment.has(Packet::SYN) && self.sent_to != Some(end) {
            // A new connection on the same ports.
            *self = Self::new(self.side);
        }
        let overlaps = self.sent_to.is_some_and(|to| after(to, seq));
        if overlaps {
            for old in &mut self.outstanding {
                old.again |= after(old.end, seq) && after(end, old.seq);
            }
        }
        if self.sent_to.is_none_or(|to| after(end, to)) {
            self.sent_to = Some(end);
            if self.outstanding.len() >= most(self.heard) {
                self.outstanding.pop_front();
            }
            self.outstanding.push_back(Sent {
                seq,
                end,
                t_ns: segment.packet.t_ns,
                again: overlaps,
            });
        }
    }

    fn acknowledged(&mut self, segment: &Segment) -> Samples {
        if !segment.has(Packet::ACK) {
            return Samples::default();
        }
        let ack = segment.packet.ack;
        let covered = self
            .outstanding
            .iter()
            .take_while(|sent| !after(sent.end, ack));
        let count = covered.count();
        let mut newest = None;
        let mut again = false;
        for sent in self.outstanding.drain(..count) {
            again |= sent.again;
            newest = Some(sent.t_ns);
        }
        match newest {
            Some(sent_ns) if !again => {
                let t_ns = segment.packet.t_ns;
                known_since(sent_ns, t_ns)
            }
            _ => Samples::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::technique::one_direction;
    use super::*;

    #[test]
    fn what_is_never_acknowledged_takes_little_memory() {
        let mut flow = SeqAck::new(Side::Server);
        // The newest are known all the same, but not behind a clock that was put back.
        let sums = one_direction(|segment| flow.packet(segment), 1_000_000);
        assert_eq!(sums, [2_000_000]);
        assert!(flow.outstanding.capacity() <= 64);
        let mut flow = SeqAck::new(Side::Server);
        let sums = one_direction(|segment| flow.packet(segment), -1_000_000_000);
        assert!(sums.is_empty(), "{sums:?}");
    }
}
