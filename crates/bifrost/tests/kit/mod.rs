// SPDX-License-Identifier: Apache-2.0

//! Two ends without a network.

#![allow(dead_code, reason = "no test uses all of it")]

use std::net::SocketAddr;

use causeway_bifrost::wire::{CommonHeader, TAG_LEN};
use causeway_bifrost::{
    DeliveryVerdict, PathConfig, PathId, Span, Transmit, TransportConfig, TransportEngine,
    TunnelKey, TunnelKeys, VNET_HEADER_LEN,
};

/// The first path.
pub(crate) const PATH: PathId = PathId(0);
/// The only slot.
pub(crate) const SLOT: u32 = 7;

/// The other end's address.
pub(crate) fn peer() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 7000))
}

/// One end, with a path.
pub(crate) fn engine(instance: u64) -> TransportEngine {
    engine_with(instance, 1)
}

/// One end, with paths.
pub(crate) fn engine_with(instance: u64, paths: u8) -> TransportEngine {
    let mut engine =
        TransportEngine::new(TransportConfig::default(), instance).expect("defaults are valid");
    let path = PathConfig {
        peer: peer(),
        mtu: 1500,
    };
    for id in 0..paths {
        engine
            .add_path(0, PathId(id), path)
            .expect("the path is new");
    }
    engine
}

/// One end, with a path and a key.
pub(crate) fn sealed(instance: u64) -> TransportEngine {
    let mut engine = engine(instance);
    let secret = [7; 32];
    let config = TransportConfig {
        keys: TunnelKeys {
            send: Some(TunnelKey { id: 1, secret }),
            also: None,
        },
        ..TransportConfig::default()
    };
    engine.reconfigure(0, config).expect("keys are valid");
    engine
}

/// What the engine has to send, each datagram with its bytes; payload is made of zeroes, but
/// for the least that passes for an IPv4 packet.
pub(crate) fn sent(engine: &mut TransportEngine, now_ns: u64) -> Vec<Vec<u8>> {
    let mut batch = Transmit::default();
    let mut out = Vec::new();
    while engine.poll_transmit(now_ns, &mut batch) {
        let mut headers = &batch.headers[..];
        for segment in &batch.datagrams {
            let (header, rest) = headers.split_at(segment.header_len.into());
            headers = rest;
            let mut datagram = header.to_vec();
            let len = header.len() + segment.payload.len as usize;
            datagram.resize(len + usize::from(segment.padding), 0);
            if segment.payload.len > 0 && segment.payload.offset == 0 {
                datagram[header.len() + VNET_HEADER_LEN] = 0x45;
                datagram[header.len() + VNET_HEADER_LEN + 3] = 20;
            }
            if batch.to_seal && segment.payload.len > 0 {
                datagram.resize(datagram.len() + TAG_LEN, 0);
                engine.seal(&mut datagram);
            }
            out.push(datagram);
        }
    }
    out
}

/// The path that a datagram says it is on.
pub(crate) fn path_of(datagram: &[u8]) -> PathId {
    PathId(
        CommonHeader::parse(datagram)
            .expect("it was made here")
            .path,
    )
}

/// Datagrams come in one by one, on their paths. Gives the references that are held.
pub(crate) fn receive_all(engine: &mut TransportEngine, now_ns: u64, datagrams: &[Vec<u8>]) -> u32 {
    let mut held = 0;
    for datagram in datagrams {
        let mut bytes = datagram.clone();
        let (segment, span) = (
            bytes.len(),
            Span {
                slot: SLOT,
                offset: 0,
                len: bytes.len() as u32,
            },
        );
        let path = path_of(datagram);
        held += engine.handle_datagrams(now_ns, path, peer(), (&mut bytes, segment), span);
    }
    held
}

/// The ends get to know each other. Gives the time.
pub(crate) fn meet(ends: &mut [TransportEngine; 2]) -> u64 {
    meet_over(ends, 20_000)
}

/// The same where a datagram takes `delay_ns`.
pub(crate) fn meet_over(ends: &mut [TransportEngine; 2], delay_ns: u64) -> u64 {
    let mut now_ns = 0;
    for _ in 0..4 {
        for index in 0..2 {
            now_ns += delay_ns;
            ends[index].handle_timeout(now_ns);
            let datagrams = sent(&mut ends[index], now_ns);
            receive_all(&mut ends[1 - index], now_ns, &datagrams);
        }
    }
    now_ns
}

/// Two ends, and what is under way between them.
pub(crate) struct Net {
    pub ends: [TransportEngine; 2],
    pub now_ns: u64,
    /// How long each path takes one way.
    pub delays_ns: Vec<u64>,
    /// When it arrives, at which end, and what.
    under_way: Vec<(u64, usize, Vec<u8>)>,
    /// What the first end has sent since it was last looked at.
    pub sent: Vec<Vec<u8>>,
}

impl Net {
    /// Ends that have got to know each other.
    pub(crate) fn new(delays_ns: &[u64]) -> Net {
        let paths = delays_ns.len() as u8;
        let mut net = Net {
            ends: [1, 2].map(|instance| engine_with(instance, paths)),
            now_ns: 0,
            delays_ns: delays_ns.to_vec(),
            under_way: Vec::new(),
            sent: Vec::new(),
        };
        net.run(1_000_000_000, |_| true);
        net
    }

    /// A frame of the first end's guests.
    pub(crate) fn offer(&mut self, len: u32, flow: u64) {
        let span = Span {
            slot: SLOT,
            offset: 0,
            len,
        };
        let taken = self.ends[0].handle_frame(self.now_ns, span, flow);
        taken.expect("there is room");
    }

    /// Goes on for a time. `passes` says what of the first end's datagrams is not lost.
    pub(crate) fn run(&mut self, time_ns: u64, mut passes: impl FnMut(&[u8]) -> bool) {
        let until_ns = self.now_ns + time_ns;
        loop {
            self.step(&mut passes);
            let arrivals = self.under_way.iter().map(|(at_ns, ..)| *at_ns);
            let due = self.ends.iter().filter_map(TransportEngine::poll_timeout);
            let next_ns = arrivals.chain(due).min().unwrap_or(until_ns);
            if next_ns > until_ns {
                self.now_ns = until_ns;
                return;
            }
            // A deadline that has just been served may be a fraction of a microsecond away.
            self.now_ns = next_ns.max(self.now_ns + 100);
        }
    }

    fn step(&mut self, passes: &mut impl FnMut(&[u8]) -> bool) {
        let now_ns = self.now_ns;
        let (arrived, later) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition(|(at_ns, ..)| *at_ns <= now_ns);
        self.under_way = later;
        for (_, to, datagram) in arrived {
            receive_all(&mut self.ends[to], now_ns, &[datagram]);
        }
        for index in [0, 1] {
            let end = &mut self.ends[index];
            end.handle_timeout(now_ns);
            while let Some(token) = end.poll_deliver().map(|delivery| delivery.token) {
                end.delivered(now_ns, token, DeliveryVerdict::Ok);
            }
            for datagram in sent(end, now_ns) {
                let at_ns = now_ns + self.delays_ns[usize::from(path_of(&datagram).0)];
                if index == 1 || passes(&datagram) {
                    self.under_way.push((at_ns, 1 - index, datagram.clone()));
                }
                if index == 0 {
                    self.sent.push(datagram);
                }
            }
        }
    }
}
