// SPDX-License-Identifier: Apache-2.0

//! Datagrams that come in merged, as GRO does it, are taken as those that come one by one.

mod kit;

use causeway_bifrost::{DeliveryVerdict, PathMetrics, Span, TransportEngine, TunnelMetrics};
use proptest::prelude::*;

use kit::{PATH, SLOT, engine, meet, peer, sent};

fn receive(engine: &mut TransportEngine, now_ns: u64, datagrams: &[Vec<u8>], merged: bool) -> u32 {
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
struct Outcome {
    held: Vec<u32>,
    delivered: Vec<(u32, usize)>,
    answers: Vec<Vec<u8>>,
    tunnel: TunnelMetrics,
    path: PathMetrics,
}

/// Each step: the length of a frame, and which of its datagrams are lost and come twice.
fn play(steps: &[(u32, u64, u64)], merged: bool) -> Outcome {
    let mut ends = [engine(1), engine(2)];
    let (mut held, mut delivered, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let mut now_ns = meet(&mut ends);
    for (len, lost, twice) in steps {
        now_ns += 20_000;
        let span = Span {
            slot: SLOT,
            offset: 0,
            len: *len,
        };
        // A frame that is refused is not sent in either run.
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
            ends[1].delivered(now_ns, token, DeliveryVerdict::Ok);
        }
        ends[1].handle_timeout(now_ns);
        let back = sent(&mut ends[1], now_ns);
        receive(&mut ends[0], now_ns, &back, false);
        answers.extend(back);
    }
    Outcome {
        held,
        delivered,
        answers,
        tunnel: ends[1].metrics(),
        path: ends[1].path_metrics(PATH).expect("there is a path"),
    }
}

#[test]
fn a_frame_whose_datagrams_are_merged_is_delivered() {
    let outcome = play(&[(40_000, 0, 0)], true);
    assert_eq!(outcome.delivered, [(40_000, 28)]);
    assert_eq!(outcome.held, [28]);
    assert_eq!(outcome.tunnel.chunks_received, 28);
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
        prop_assert_eq!(play(&steps, true), play(&steps, false));
    }
}
