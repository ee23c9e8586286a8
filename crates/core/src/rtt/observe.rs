// SPDX-License-Identifier: Apache-2.0
//! What the packets of a TCP connection show at one interface of one of its ends.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::net::SocketAddr;

use super::{Pairs, RttMethod};
use crate::estimate::{Packet, Samples, WindowChain};

/// A connection as seen from the interface: outgoing packets go from `local` to
/// `remote`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// The end that the interface belongs to.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

/// One packet that crossed the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// When, nanoseconds of a monotonic clock.
    pub t_ns: u64,
    /// Its connection.
    pub flow: Flow,
    /// From `local` to `remote`.
    pub outgoing: bool,
    /// Whether the 1-in-N sampling chose it.
    pub sampled: bool,
    /// The TCP timestamp's value; valid where `packet.has_ts`.
    pub tsval: u32,
    /// What else the packet says; `t_ns` and `opaque` are not looked at.
    pub packet: Packet,
}

/// A latency that has become known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Of this connection.
    pub flow: Flow,
    /// By this method: `Sampled`, `Synack`, `Timestamps` or `Causal`.
    pub method: RttMethod,
    /// The latency.
    pub ns: u64,
    /// How many times it counts.
    pub count: u32,
}

/// Timestamps of one connection that wait for their echo.
const TIMESTAMPS: usize = 64;

#[derive(Clone, Debug)]
struct State {
    pairs: Pairs,
    /// Sequence number and time of the SYN or SYN+ACK sent; `None` once answered,
    /// or sent twice: it is unknown which copy was answered (Karn).
    handshake: Handshake,
    /// TSval and the time it was first sent with data, oldest first; without a time
    /// once echoed, so that a later segment with the same TSval is not noted again.
    timestamps: VecDeque<(u32, Option<u64>)>,
    /// Whether requests go out (we are the client) or come in; by the SYN, else
    /// by who sends data first.
    requests_out: Option<bool>,
    causal: WindowChain,
    last_ns: u64,
    /// Which directions have ended by a FIN: incoming packets', outgoing packets'.
    ended: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Handshake {
    Expected,
    Sent { seq: u32, t_ns: u64 },
    Over,
}

/// Follows connections at one interface. Feed it every [`Seen`] in order; memory
/// is bounded by `max_flows`.
#[derive(Clone, Debug)]
pub struct RttObserver {
    lifetime_ns: u64,
    max_flows: usize,
    flows: BTreeMap<Flow, State>,
    refused: u64,
}

impl RttObserver {
    /// An observer of at most `max_flows` connections whose sampler forgets a
    /// segment after `lifetime_ns`.
    pub fn new(max_flows: usize, lifetime_ns: u64) -> Self {
        Self {
            lifetime_ns,
            max_flows,
            flows: BTreeMap::new(),
            refused: 0,
        }
    }

    /// Takes a packet; calls `tell` for each latency that it makes known.
    pub fn seen(&mut self, seen: &Seen, mut tell: impl FnMut(Value)) {
        let flow = seen.flow;
        let opens = seen.packet.tcp_flags & (Packet::SYN | Packet::ACK) == Packet::SYN;
        if opens && self.flows.get(&flow).is_some_and(State::is_over) {
            // The port has come again.
            self.end(&flow, &mut tell);
        }
        if !self.flows.contains_key(&flow) && !self.make_space(seen.t_ns, &mut tell) {
            self.refused += 1;
            return;
        }
        let fresh = || State::new(self.lifetime_ns);
        let state = self.flows.entry(flow).or_insert_with(fresh);
        let mut tell = |method, ns, count| {
            tell(Value {
                flow,
                method,
                ns,
                count,
            });
        };
        state.last_ns = seen.t_ns;
        state.ended[usize::from(seen.outgoing)] |= seen.packet.tcp_flags & Packet::FIN != 0;
        if let Some(ns) = state.handshake(seen) {
            tell(RttMethod::Synack, ns, 1);
        }
        if let Some(ns) = state.sampled(seen) {
            tell(RttMethod::Sampled, ns, 1);
        }
        if let Some(ns) = state.timestamp(seen) {
            tell(RttMethod::Timestamps, ns, 1);
        }
        state.causal(seen, |ns, count| tell(RttMethod::Causal, ns, count));
        if seen.packet.tcp_flags & Packet::RST != 0 {
            self.end(&flow, |value| tell(value.method, value.ns, value.count));
        }
    }

    /// Ends a connection: gives what its last packets still say, and forgets it.
    pub fn end(&mut self, flow: &Flow, mut tell: impl FnMut(Value)) {
        if let Some(mut state) = self.flows.remove(flow) {
            let samples = state.causal.finish();
            each(&samples, |ns, count| {
                tell(Value {
                    flow: *flow,
                    method: RttMethod::Causal,
                    ns,
                    count,
                });
            });
        }
    }

    /// Ends all connections.
    pub fn finish(&mut self, mut tell: impl FnMut(Value)) {
        let flows: Vec<Flow> = self.flows.keys().copied().collect();
        flows.iter().for_each(|flow| self.end(flow, &mut tell));
    }

    /// Packets of connections for which there was no room.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Connections that it follows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Room for one more: else connections go that are over, or silent for a minute.
    fn make_space(&mut self, now_ns: u64, mut tell: impl FnMut(Value)) -> bool {
        const SILENT_NS: u64 = 60_000_000_000;
        if self.flows.len() >= self.max_flows {
            let goes = |state: &State| {
                state.is_over() || now_ns.saturating_sub(state.last_ns) >= SILENT_NS
            };
            let gone = self.flows.iter().filter(|(_, state)| goes(state));
            let gone: Vec<Flow> = gone.map(|(flow, _)| *flow).collect();
            gone.iter().for_each(|flow| self.end(flow, &mut tell));
        }
        self.flows.len() < self.max_flows
    }
}

impl State {
    fn new(lifetime_ns: u64) -> Self {
        Self {
            pairs: Pairs::new(lifetime_ns),
            handshake: Handshake::Expected,
            timestamps: VecDeque::new(),
            requests_out: None,
            causal: WindowChain::default(),
            last_ns: 0,
            ended: [false; 2],
        }
    }

    /// Both ends have closed. What follows is the last ACK.
    fn is_over(&self) -> bool {
        self.ended == [true; 2]
    }

    /// SYN to SYN+ACK at the client, SYN+ACK to ACK at the server.
    fn handshake(&mut self, seen: &Seen) -> Option<u64> {
        let packet = &seen.packet;
        let syn = packet.tcp_flags & Packet::SYN != 0;
        let ack = packet.tcp_flags & Packet::ACK != 0;
        if syn {
            // The client's SYN has no ACK: who sends it sends the requests.
            self.requests_out = Some(seen.outgoing != ack);
        }
        if seen.outgoing {
            if syn {
                self.handshake = match self.handshake {
                    Handshake::Expected => Handshake::Sent {
                        seq: packet.seq,
                        t_ns: seen.t_ns,
                    },
                    _ => Handshake::Over,
                };
            }
            return None;
        }
        let Handshake::Sent { seq, t_ns } = self.handshake else {
            return None;
        };
        if !ack || packet.ack != seq.wrapping_add(1) {
            return None;
        }
        self.handshake = Handshake::Over;
        Some(seen.t_ns.saturating_sub(t_ns))
    }

    fn sampled(&mut self, seen: &Seen) -> Option<u64> {
        if !seen.sampled {
            return None;
        }
        let packet = &seen.packet;
        if seen.outgoing {
            self.pairs.data(seen.t_ns, packet.seq, packet.payload_len);
            return None;
        }
        let ack = packet.tcp_flags & Packet::ACK != 0;
        ack.then(|| self.pairs.ack(seen.t_ns, packet.ack))?
    }

    /// pping's rule: the first time a TSval leaves, until its first echo. Only
    /// data is noted: a bare ACK is not answered.
    fn timestamp(&mut self, seen: &Seen) -> Option<u64> {
        let packet = &seen.packet;
        if !packet.has_ts {
            return None;
        }
        if seen.outgoing {
            let newer = |&(last, _): &(u32, _)| seen.tsval.wrapping_sub(last) as i32 > 0;
            if packet.payload_len > 0 && self.timestamps.back().is_none_or(newer) {
                if self.timestamps.len() == TIMESTAMPS {
                    self.timestamps.pop_front();
                }
                self.timestamps.push_back((seen.tsval, Some(seen.t_ns)));
            }
            return None;
        }
        while let Some(&(tsval, t_ns)) = self.timestamps.front() {
            let echoed = packet.tsecr.wrapping_sub(tsval) as i32;
            if echoed <= 0 {
                if echoed == 0 {
                    self.timestamps[0].1 = None;
                    return t_ns.map(|t_ns| seen.t_ns.saturating_sub(t_ns));
                }
                break;
            }
            self.timestamps.pop_front();
        }
        None
    }

    fn causal(&mut self, seen: &Seen, tell: impl FnMut(u64, u32)) {
        if seen.packet.payload_len > 0 {
            self.requests_out.get_or_insert(seen.outgoing);
        }
        if self.requests_out == Some(seen.outgoing) {
            let packet = Packet {
                t_ns: seen.t_ns,
                opaque: false,
                ..seen.packet
            };
            each(&self.causal.packet(&packet), tell);
        }
    }
}

/// Each latency with its count. A half sample counts as one only where it is alone.
fn each(samples: &Samples, mut tell: impl FnMut(u64, u32)) {
    for sample in samples.iter() {
        for (ns, halves) in sample.latencies() {
            tell(ns, (halves / 2).max(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const MS: u64 = 1_000_000;
    const LIFETIME_NS: u64 = 2_000 * MS;

    fn flow() -> Flow {
        Flow {
            local: "10.0.0.1:4000".parse().unwrap(),
            remote: "10.0.0.2:9472".parse().unwrap(),
        }
    }

    fn packet(t_ns: u64, outgoing: bool, flags: u8, seq: u32, ack: u32, len: u32) -> Seen {
        Seen {
            t_ns,
            flow: flow(),
            outgoing,
            sampled: true,
            tsval: (t_ns / MS) as u32,
            packet: Packet {
                t_ns,
                ip_len: 52 + len,
                payload_len: len,
                seq,
                ack,
                tcp_flags: flags,
                proto: Packet::TCP,
                ..Packet::default()
            },
        }
    }

    fn feed(observer: &mut RttObserver, packets: &[Seen]) -> Vec<(RttMethod, u64)> {
        let mut values = Vec::new();
        for seen in packets {
            observer.seen(seen, |v| values.push((v.method, v.ns)));
        }
        values
    }

    #[test]
    fn the_handshake_counts_once_and_not_when_sent_twice() {
        let syn = packet(0, true, Packet::SYN, 99, 0, 0);
        let answer = packet(80 * US, false, Packet::SYN | Packet::ACK, 500, 100, 0);
        let mut observer = RttObserver::new(4, LIFETIME_NS);
        let values = feed(&mut observer, &[syn, answer, answer]);
        assert_eq!(values, [(RttMethod::Synack, 80 * US)]);
        let mut observer = RttObserver::new(4, LIFETIME_NS);
        assert_eq!(feed(&mut observer, &[syn, syn, answer]), []);
        // At the server: SYN in, SYN+ACK out, ACK in.
        let mut observer = RttObserver::new(4, LIFETIME_NS);
        let server = [
            packet(0, false, Packet::SYN, 99, 0, 0),
            packet(US, true, Packet::SYN | Packet::ACK, 500, 100, 0),
            packet(61 * US, false, Packet::ACK, 100, 501, 0),
        ];
        assert_eq!(feed(&mut observer, &server), [(RttMethod::Synack, 60 * US)]);
    }

    /// Request, response, a pause of the client, and so on, at the client and, with
    /// directions swapped, at the server: each method measures what it says.
    fn exchange(at_client: bool, response_ns: u64, pause_ns: u64) -> Vec<(RttMethod, u64)> {
        let mut packets = Vec::new();
        for i in 0..40_u64 {
            let t = 500 * MS + i * (response_ns + pause_ns);
            let (seq, ack) = (100 + i as u32, 200 + 2 * i as u32);
            let mut request = packet(t, at_client, Packet::ACK, seq, ack, 1);
            let mut response = packet(t + response_ns, !at_client, Packet::ACK, ack, seq + 1, 2);
            request.packet.has_ts = true;
            // Of the response before.
            request.packet.tsecr = ((t - pause_ns) / MS) as u32;
            response.packet.has_ts = true;
            response.packet.tsecr = request.tsval;
            packets.extend([request, response]);
        }
        let mut observer = RttObserver::new(4, LIFETIME_NS);
        let mut values = feed(&mut observer, &packets);
        observer.finish(|v| values.push((v.method, v.ns)));
        assert_eq!(observer.flows(), 0);
        values
    }

    fn median(values: &[(RttMethod, u64)], method: RttMethod) -> u64 {
        let mut of: Vec<u64> = values
            .iter()
            .filter(|v| v.0 == method)
            .map(|v| v.1)
            .collect();
        assert!(of.len() >= 30, "{method}: {of:?}");
        of.sort_unstable();
        of[of.len() / 2]
    }

    #[test]
    fn the_client_sees_the_network_and_the_server_sees_the_client_think() {
        let client = exchange(true, 200 * US, 30 * MS);
        assert_eq!(median(&client, RttMethod::Sampled), 200 * US);
        assert_eq!(median(&client, RttMethod::Timestamps), 200 * US);
        let server = exchange(false, 200 * US, 30 * MS);
        assert_eq!(median(&server, RttMethod::Sampled), 30 * MS);
        assert_eq!(median(&server, RttMethod::Timestamps), 30 * MS);
    }

    #[test]
    fn the_causal_estimate_is_of_requests_at_either_end() {
        for at_client in [true, false] {
            let causal = median(&exchange(at_client, 5 * MS, 0), RttMethod::Causal);
            assert!(causal.abs_diff(5 * MS) < MS / 10, "{causal}");
        }
    }

    #[test]
    fn what_was_not_sampled_gives_no_pair() {
        let mut request = packet(0, true, Packet::ACK, 1, 1, 10);
        request.sampled = false;
        let response = packet(MS, false, Packet::ACK, 1, 11, 10);
        let mut observer = RttObserver::new(4, LIFETIME_NS);
        let values = feed(&mut observer, &[request, response]);
        assert!(
            values.iter().all(|v| v.0 != RttMethod::Sampled),
            "{values:?}"
        );
    }

    #[test]
    fn a_port_that_comes_again_is_another_connection_and_those_that_are_over_make_room() {
        let fin = Packet::FIN | Packet::ACK;
        let whole = |t: u64, local: u16| {
            [
                packet(t, true, Packet::SYN, 99, 0, 0),
                packet(t + 80 * US, false, Packet::SYN | Packet::ACK, 500, 100, 0),
                packet(t + MS, false, fin, 501, 101, 0),
                packet(t + 2 * MS, true, fin, 101, 502, 0),
                packet(t + 3 * MS, false, Packet::ACK, 502, 102, 0),
            ]
            .map(|mut seen| {
                seen.flow.local.set_port(local);
                seen
            })
        };
        let mut observer = RttObserver::new(2, LIFETIME_NS);
        for (n, local) in [4000, 4000, 4001, 4002].into_iter().enumerate() {
            let values = feed(&mut observer, &whole(n as u64 * 10 * MS, local));
            assert_eq!(values, [(RttMethod::Synack, 80 * US)], "{n}");
        }
        assert_eq!(observer.refused(), 0);
    }

    #[test]
    fn connections_beyond_the_bound_are_counted_and_old_ones_go() {
        let mut observer = RttObserver::new(2, LIFETIME_NS);
        let from = |port: u16, t_ns: u64| {
            let mut seen = packet(t_ns, true, Packet::ACK, 1, 1, 1);
            seen.flow.local.set_port(port);
            seen
        };
        feed(&mut observer, &[from(1, 0), from(2, 0), from(3, 0)]);
        assert_eq!((observer.flows(), observer.refused()), (2, 1));
        feed(&mut observer, &[from(3, 61_000 * MS)]);
        assert_eq!((observer.flows(), observer.refused()), (1, 1));
    }
}
