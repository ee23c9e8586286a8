// SPDX-License-Identifier: Apache-2.0
//! Segments of both directions: one at a time, or random conversations with
//! losses, repetitions and acknowledgements of parts.

use causeway_core::estimate::{Packet, Segment, Side};
use proptest::prelude::*;

/// A segment whose timestamps are the time in milliseconds, its echo that of the
/// acknowledgement's peer: good enough where only one is under way.
pub(crate) fn segment(from: Side, t_ns: u64, seq: u32, len: u32, ack: u32) -> Segment {
    Segment {
        from,
        packet: Packet {
            t_ns,
            ip_len: len + 52,
            payload_len: len,
            seq,
            ack,
            tsecr: ack.wrapping_add(1),
            tcp_flags: Packet::ACK,
            has_ts: true,
            proto: Packet::TCP,
            ..Packet::default()
        },
        // The peer's acknowledgement number plus one is what it echoes.
        tsval: seq.wrapping_add(len).wrapping_add(1),
        first_byte: None,
    }
}

/// What happens next in a random conversation.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The side sends this many new bytes.
    Data(bool, u32),
    /// It sends the last bytes again, this many back, this many of them.
    Again(bool, u32, u32),
    /// It acknowledges all but this many bytes.
    Ack(bool, u32),
    /// It opens, with the sequence numbers where they are.
    Syn(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let side = any::<bool>;
    prop_oneof![
        4 => (side(), 1u32..6).prop_map(|(s, n)| Event::Data(s, n)),
        1 => (side(), 1u32..9, 1u32..6).prop_map(|(s, back, n)| Event::Again(s, back, n)),
        4 => (side(), 0u32..5).prop_map(|(s, n)| Event::Ack(s, n)),
    ]
}

/// Random conversations that begin with a SYN each way. Sequence numbers start
/// near their end, so that they wrap.
pub(crate) fn segments() -> impl Strategy<Value = Vec<Segment>> {
    (
        prop::collection::vec((event(), 1u64..1000), 1..120),
        any::<bool>(),
    )
        .prop_map(|(events, open)| {
            let mut talk = Conversation::default();
            if open {
                talk.take(Event::Syn(true), 10);
                talk.take(Event::Syn(false), 10);
            }
            events
                .into_iter()
                .for_each(|(event, gap)| talk.take(event, gap));
            talk.segments
        })
}

struct Conversation {
    now_ns: u64,
    next: [u32; 2],
    sent: [u32; 2],
    segments: Vec<Segment>,
}

impl Default for Conversation {
    fn default() -> Self {
        Self {
            now_ns: 1_000_000,
            next: [u32::MAX - 60, u32::MAX - 20],
            sent: [0; 2],
            segments: Vec::new(),
        }
    }
}

impl Conversation {
    fn take(&mut self, event: Event, gap_us: u64) {
        self.now_ns += gap_us * 1000;
        let (client, seq, len, back, flags) = match event {
            Event::Data(client, len) => (client, self.next[usize::from(client)], len, 0, 0),
            Event::Again(client, back, len) => {
                let back = back.min(self.sent[usize::from(client)]);
                let seq = self.next[usize::from(client)].wrapping_sub(back);
                (client, seq, len.min(back), 0, 0)
            }
            Event::Ack(client, back) => (client, self.next[usize::from(client)], 0, back, 0),
            Event::Syn(client) => (client, self.next[usize::from(client)], 0, 0, Packet::SYN),
        };
        let side = if client { Side::Client } else { Side::Server };
        let ack = self.next[usize::from(!client)].wrapping_sub(back);
        let mut next = segment(side, self.now_ns, seq, len, ack);
        next.packet.tcp_flags |= flags;
        // Clocks of a millisecond: several segments share a stamp.
        next.tsval = (self.now_ns / 1_000_000) as u32;
        let peers = self.segments.iter().rev().filter(|s| s.from != side);
        next.packet.tsecr = peers.map(|s| s.tsval).nth(back as usize).unwrap_or(0);
        let end = seq.wrapping_add(len + u32::from(flags & Packet::SYN != 0));
        if matches!(event, Event::Data(..) | Event::Syn(_)) {
            self.next[usize::from(client)] = end;
            self.sent[usize::from(client)] += len;
        }
        self.segments.push(next);
    }
}
