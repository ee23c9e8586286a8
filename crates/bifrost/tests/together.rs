// SPDX-License-Identifier: Apache-2.0

//! Datagrams that come in merged, as GRO does it, are taken as those that come one by one.

use std::net::SocketAddr;

use causeway_bifrost::{
    Config, Engine, PathConfig, PathId, PathMetrics, Span, Transmit, TunnelMetrics,
    VNET_HEADER_LEN, Verdict,
};
use proptest::prelude::*;

const PATH: PathId = PathId(0);
const SLOT: u32 = 7;

fn peer() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 7000))
}

fn engine(instance: u64) -> Engine {
    let mut engine = Engine::new(Config::default(), instance).expect("defaults are valid");
    let path = PathConfig {
        peer: peer(),
        mtu: 1500,
    };
    engine.add_path(0, PATH, path).expect("the path is new");
    engine
}

/// What the engine has to send, each datagram with its bytes; payload is made of zeroes, but
/// for the least that passes for an IPv4 packet.
fn sent(engine: &mut Engine, now_ns: u64) -> Vec<Vec<u8>> {
    let mut batch = Transmit::default();
    let mut out = Vec::new();
    while engine.poll_transmit(now_ns, &mut batch) {
        let mut headers = &batch.headers[..];
        for segment in &batch.segments {
            let (header, rest) = headers.split_at(segment.header_len.into());
            headers = rest;
            let mut datagram = header.to_vec();
            let len = header.len() + segment.payload.len as usize;
            datagram.resize(len + usize::from(segment.padding), 0);
            if segment.payload.len > 0 && segment.payload.offset == 0 {
                datagram[header.len() + VNET_HEADER_LEN] = 0x45;
                datagram[header.len() + VNET_HEADER_LEN + 3] = 20;
            }
            out.push(datagram);
        }
    }
    out
}

fn receive(engine: &mut Engine, now_ns: u64, datagrams: &[Vec<u8>], merged: bool) -> u32 {
    let mut held = 0;
    let mut rest = datagrams;
    while let Some(first) = rest.first() {
        let segment = first.len();
        let full = rest.iter().take_while(|datagram| datagram.len() == segment);
        let mut count = if merged { full.count().min(44) } else { 1 };
        let short = |next: &Vec<u8>| next.len() < segment;
        if merged && count < 44 && rest.get(count).is_some_and(short) {
            count += 1;
        }
        let mut bytes = rest[..count].concat();
        let span = Span {
            slot: SLOT,
            offset: 0,
            len: bytes.len() as u32,
        };
        held += engine.handle_datagrams(now_ns, PATH, peer(), (&mut bytes, segment), span);
        rest = &rest[count..];
    }
    held
}

/// References held after each step, what was delivered, what the receiver answered, and the
/// counters.
#[derive(Debug, PartialEq)]
struct Story {
    held: Vec<u32>,
    delivered: Vec<(u32, usize)>,
    answers: Vec<Vec<u8>>,
    tunnel: TunnelMetrics,
    path: PathMetrics,
}

/// Each step: the length of a frame, and which of its datagrams are lost and come twice.
fn tell(steps: &[(u32, u64, u64)], merged: bool) -> Story {
    let mut ends = [engine(1), engine(2)];
    let (mut held, mut delivered, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let mut now_ns = 0;
    for _ in 0..4 {
        for index in 0..2 {
            now_ns += 20_000;
            ends[index].handle_timeout(now_ns);
            let datagrams = sent(&mut ends[index], now_ns);
            receive(&mut ends[1 - index], now_ns, &datagrams, false);
        }
    }
    for (len, lost, twice) in steps {
        now_ns += 20_000;
        let span = Span {
            slot: SLOT,
            offset: 0,
            len: *len,
        };
        // A frame that finds no room is not sent in either story.
        let _ = ends[0].handle_frame(now_ns, span, 0);
        ends[0].handle_timeout(now_ns);
        let bit = |mask: u64, nth: usize| mask >> (nth % 64) & 1 == 1;
        let mut datagrams = Vec::new();
        for (nth, datagram) in sent(&mut ends[0], now_ns).into_iter().enumerate() {
            if !bit(*lost, nth) {
                datagrams.push(datagram.clone());
            }
            if bit(*twice, nth) {
                datagrams.push(datagram);
            }
        }
        held.push(receive(&mut ends[1], now_ns, &datagrams, merged));
        while let Some(delivery) = ends[1].poll_deliver() {
            delivered.push((delivery.len, delivery.spans.len()));
            let token = delivery.token;
            ends[1].delivered(now_ns, token, Verdict::Ok);
        }
        ends[1].handle_timeout(now_ns);
        let back = sent(&mut ends[1], now_ns);
        receive(&mut ends[0], now_ns, &back, false);
        answers.extend(back);
    }
    Story {
        held,
        delivered,
        answers,
        tunnel: ends[1].metrics(),
        path: ends[1].path_metrics(PATH).expect("there is a path"),
    }
}

#[test]
fn a_frame_whose_datagrams_are_merged_is_delivered() {
    let story = tell(&[(40_000, 0, 0)], true);
    assert_eq!(story.delivered, [(40_000, 28)]);
    assert_eq!(story.held, [28]);
    assert_eq!(story.tunnel.chunks_received, 28);
}

fn masks() -> impl Strategy<Value = u64> {
    let rare = (any::<u64>(), any::<u64>(), any::<u64>()).prop_map(|(a, b, c)| a & b & c);
    prop_oneof![3 => Just(0), 2 => rare, 1 => any::<u64>()]
}

proptest! {
    #[test]
    fn merged_or_not_is_the_same(
        steps in prop::collection::vec((100_u32..65_000, masks(), masks()), 1..12),
    ) {
        prop_assert_eq!(tell(&steps, true), tell(&steps, false));
    }
}
