// SPDX-License-Identifier: Apache-2.0
//! From packets to connections: who opened one to which server, when, and which of its
//! requests were answered after how long.

use std::collections::HashMap;
use std::net::SocketAddr;

use causeway_core::estimate::{Method, Packet, Sample, Tally};
use causeway_core::flow::{
    Direction, FlowEstimate, FlowKey, FlowMeter, FlowState, MeterSettings, Observation, Sink,
};

/// Connections that are kept at most, and requests: some 300 MB.
const MAX_CONNECTIONS: usize = 1 << 20;
const MAX_REQUESTS: usize = 1 << 23;
/// Epochs of the estimator; nothing here depends on them.
const EPOCH_NS: u64 = 1_000_000_000;

/// A request whose response latency became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub sent_ns: u64,
    pub done_ns: u64,
}

impl Request {
    pub(super) fn latency_ns(&self) -> u64 {
        self.done_ns - self.sent_ns
    }
}

/// A TCP connection, as far as it was seen.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub client: SocketAddr,
    pub server: SocketAddr,
    /// First and last packet.
    pub first_ns: u64,
    pub last_ns: u64,
    /// Its SYN was seen.
    pub opened: bool,
    /// Its SYN had TCP timestamps.
    pub timestamps: bool,
    /// A FIN or RST was seen.
    pub ended: bool,
    /// A RST was.
    pub reset: bool,
    /// The client sent payload.
    pub asked: bool,
    /// In the order in which they became known.
    pub requests: Vec<Request>,
    pub tally: Tally,
}

/// All connections of the time that was looked at.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub connections: Vec<Connection>,
    /// First and last packet.
    pub first_ns: u64,
    pub last_ns: u64,
    pub packets: u64,
    /// Connections and requests beyond what is kept.
    pub left_out: u64,
    /// Requests in it, and left out.
    pub requests: usize,
    /// Datagrams were seen in which a balancer tells another its connections.
    pub tells_connections: bool,
}

impl Recording {
    /// Length in nanoseconds.
    pub(super) fn lasted_ns(&self) -> u64 {
        self.last_ns - self.first_ns
    }
}

/// Follows the connections.
pub(super) struct Recorder {
    meter: FlowMeter<1>,
    direction: Direction,
    /// Places in the recording, by tuple, client first.
    open: HashMap<FlowKey, usize, FlowState>,
    recording: Recording,
}

impl Recorder {
    pub(super) fn new(direction: Direction, seed: u64) -> Self {
        let settings = MeterSettings {
            epoch_ns: EPOCH_NS,
            methods: [Method::WindowChain],
            direction: direction.clone(),
            max_flows: MAX_CONNECTIONS as u32,
            seed,
            early: false,
        };
        Self {
            meter: FlowMeter::new(settings),
            direction,
            open: HashMap::with_hasher(FlowState::new(seed)),
            recording: Recording::default(),
        }
    }

    /// Takes a TCP packet, in the order of capture.
    pub(super) fn packet(&mut self, seen: &Observation) {
        let recording = &mut self.recording;
        if recording.packets == 0 {
            recording.first_ns = seen.packet.t_ns;
        }
        recording.last_ns = recording.last_ns.max(seen.packet.t_ns);
        let index = recording.packets;
        recording.packets += 1;
        let Some((at, from_client)) = self.connection_of(seen) else {
            self.recording.left_out += 1;
            return;
        };
        self.recording.connections[at].packet(&seen.packet, from_client);
        let mut found = Found {
            open: &self.open,
            recording: &mut self.recording,
        };
        self.meter.observe(index, seen, &mut found);
    }

    /// The packet's connection, and whether its client sent it.
    fn connection_of(&mut self, seen: &Observation) -> Option<(usize, bool)> {
        let opens = seen.packet.tcp_flags & (Packet::SYN | Packet::ACK) == Packet::SYN;
        for (key, from_client) in [(seen.key, true), (seen.key.reversed(), false)] {
            match self.open.get(&key) {
                // The tuple is used again.
                Some(&at) if opens && self.recording.connections[at].ended => {}
                Some(&at) => return Some((at, from_client)),
                None => {}
            }
        }
        if self.recording.connections.len() == MAX_CONNECTIONS {
            return None;
        }
        let from_client = self.direction.sender_is_client(&seen.key, seen.hint);
        let key = match from_client {
            true => seen.key,
            false => seen.key.reversed(),
        };
        let at = self.recording.connections.len();
        self.recording.connections.push(Connection {
            client: SocketAddr::new(key.src(), key.sport()),
            server: SocketAddr::new(key.dst(), key.dport()),
            first_ns: seen.packet.t_ns,
            last_ns: seen.packet.t_ns,
            opened: opens,
            timestamps: opens && seen.packet.has_ts,
            ended: false,
            reset: false,
            asked: false,
            requests: Vec::new(),
            tally: Tally::default(),
        });
        self.open.insert(key, at);
        Some((at, from_client))
    }

    /// A balancer tells another its connections.
    pub(super) fn tells_connections(&mut self) {
        self.recording.tells_connections = true;
    }

    /// The time that was looked at is over.
    pub(super) fn finish(mut self) -> Recording {
        let mut found = Found {
            open: &self.open,
            recording: &mut self.recording,
        };
        self.meter.finish(&mut found);
        self.recording
    }
}

impl Connection {
    fn packet(&mut self, packet: &Packet, from_client: bool) {
        self.asked |= from_client && packet.payload_len > 0;
        self.reset |= packet.tcp_flags & Packet::RST != 0;
        // What comes behind the first FIN is the rest of its end.
        if !self.ended {
            self.last_ns = self.last_ns.max(packet.t_ns);
        }
        self.ended |= packet.tcp_flags & (Packet::FIN | Packet::RST) != 0;
    }
}

/// Puts samples down as requests.
struct Found<'a> {
    open: &'a HashMap<FlowKey, usize, FlowState>,
    recording: &'a mut Recording,
}

impl Sink for Found<'_> {
    fn sample(&mut self, flow: &FlowKey, _: u8, sample: &Sample) {
        let (Some(&at), Some(mean_ns)) = (self.open.get(flow), sample.mean_ns()) else {
            return;
        };
        let connection = &mut self.recording.connections[at];
        connection.tally.add(sample);
        let request = Request {
            sent_ns: sample.when_ns.saturating_sub(mean_ns as u64),
            done_ns: sample.when_ns,
        };
        for _ in 0..(sample.weight_halves / 2).max(1) {
            match self.recording.requests < MAX_REQUESTS {
                true => connection.requests.push(request),
                false => self.recording.left_out += 1,
            }
            self.recording.requests += 1;
        }
    }

    fn row(&mut self, _: &FlowEstimate) {}
}
