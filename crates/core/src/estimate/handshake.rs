// SPDX-License-Identifier: Apache-2.0
//! The round trip of TCP's opening, from one direction: the time from the
//! client's SYN to its next packet, which answers the server's SYN-ACK (Jiang
//! and Dovrolis, CCR 2002, section 3.1: SYN-ACK estimation).
//!
//! It holds a round trip between client and server and the server kernel's time
//! for a SYN. A SYN that was sent twice gives nothing: whose answer came is
//! unknown (Karn's rule).

use super::technique::{Segment, Side, known_since};
use super::{Packet, Samples};

/// One flow's opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Open, or never seen to open.
    #[default]
    Open,
    /// One SYN, at this time.
    Opening(u64),
    /// More than one SYN.
    Repeated,
}

impl Handshake {
    /// Takes the next packet; each opening gives at most one sample.
    pub fn packet(&mut self, segment: &Segment) -> Samples {
        if segment.from != Side::Client || !segment.is_tcp() {
            return Samples::default();
        }
        let t_ns = segment.packet.t_ns;
        if segment.has(Packet::SYN) {
            self.state = match self.state {
                State::Open => State::Opening(t_ns),
                State::Opening(_) | State::Repeated => State::Repeated,
            };
            return Samples::default();
        }
        match std::mem::take(&mut self.state) {
            State::Opening(syn_ns) if !segment.has(Packet::RST) => known_since(syn_ns, t_ns),
            _ => Samples::default(),
        }
    }
}
