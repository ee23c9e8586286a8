// SPDX-License-Identifier: Apache-2.0

//! Outages of minutes to days, and ends that take turns: what short simulations do not reach.

mod kit;

use causeway_bifrost::wire::{CommonHeader, PacketKind};
use causeway_bifrost::{DeliveryVerdict, DropReason, Span, TransportEngine, TunnelEvent};

use kit::{SLOT, engine, receive_all, sealed, sent};

const MS: u64 = 1_000_000;
const MINUTE: u64 = 60_000 * MS;

/// Lets two ends run until `until_ns`. Datagrams take 100 us; while `cut` they are lost.
fn run(ends: [&mut TransportEngine; 2], now_ns: &mut u64, until_ns: u64, cut: bool) {
    let [a, b] = ends;
    while *now_ns < until_ns {
        let (from_a, from_b) = (sent(a, *now_ns), sent(b, *now_ns));
        if from_a.is_empty() && from_b.is_empty() {
            let due = [a.poll_timeout(), b.poll_timeout()]
                .into_iter()
                .flatten()
                .min();
            *now_ns = due.unwrap_or(until_ns).clamp(*now_ns + 1000, until_ns);
        } else if cut {
            *now_ns += 1000;
        } else {
            *now_ns += 100_000;
            receive_all(b, *now_ns, &from_a);
            receive_all(a, *now_ns, &from_b);
        }
        for end in [&mut *a, &mut *b] {
            end.handle_timeout(*now_ns);
        }
    }
}

/// Whether a frame comes through within 10 ms.
fn passes(ends: [&mut TransportEngine; 2], now_ns: &mut u64) -> bool {
    let [a, b] = ends;
    let span = Span {
        slot: SLOT,
        offset: 0,
        len: 200,
    };
    if a.handle_frame(*now_ns, span, 1).is_err() {
        return false;
    }
    let until_ns = *now_ns + 10 * MS;
    run([a, b], now_ns, until_ns, false);
    let Some(token) = b.poll_deliver().map(|delivery| delivery.token) else {
        return false;
    };
    b.delivered(*now_ns, token, DeliveryVerdict::Ok);
    true
}

#[test]
fn a_cut_of_any_length_is_over_when_it_is_over() {
    // Stamps of probes have 32 bits of microseconds: 71.6 minutes.
    for minutes in [1, 30, 36, 40, 60, 71, 72, 75, 110, 24 * 60] {
        let (mut a, mut b) = (engine(1), engine(2));
        let mut now_ns = 0;
        run([&mut a, &mut b], &mut now_ns, 100 * MS, false);
        assert!(passes([&mut a, &mut b], &mut now_ns));
        let until_ns = now_ns + minutes * MINUTE;
        run([&mut a, &mut b], &mut now_ns, until_ns, true);
        let until_ns = now_ns + 200 * MS;
        run([&mut a, &mut b], &mut now_ns, until_ns, false);
        assert!(passes([&mut a, &mut b], &mut now_ns), "{minutes} minutes");
    }
}

/// Two hosts behind one address, both alive: the one that holds it is the peer.
#[test]
fn ends_may_take_turns_behind_an_address() {
    let (mut a, mut active, mut standby) = (engine(1), engine(2), engine(3));
    let mut now_ns = 0;
    for turn in 0..20 {
        let until_ns = now_ns + 10_000 * MS;
        run([&mut a, &mut active], &mut now_ns, until_ns, false);
        assert!(passes([&mut a, &mut active], &mut now_ns), "turn {turn}");
        assert!(passes([&mut active, &mut a], &mut now_ns), "turn {turn}");
        std::mem::swap(&mut active, &mut standby);
    }
}

/// An enemy has recorded what a peer, which is gone, answered. Its stamp comes round again.
#[test]
fn a_recorded_answer_is_refused_when_its_stamp_comes_round_again() {
    let (mut a, mut before, mut after) = (sealed(1), sealed(2), sealed(3));
    let mut now_ns = 0;
    run([&mut a, &mut before], &mut now_ns, 50 * MS, false);
    // The next probe, and its answer.
    let (reply, probe_ns) = loop {
        now_ns += MS;
        a.handle_timeout(now_ns);
        let probes = sent(&mut a, now_ns);
        if !probes.is_empty() {
            receive_all(&mut before, now_ns, &probes);
            let answers = sent(&mut before, now_ns);
            let is_reply = |one: &Vec<u8>| {
                CommonHeader::parse(one).is_ok_and(|header| header.kind == PacketKind::Reply)
            };
            let reply = answers.into_iter().find(is_reply);
            break (reply.expect("each probe is answered"), now_ns);
        }
    };
    let again_ns = probe_ns + (1 << 32) * 1000 + MS;
    run([&mut a, &mut after], &mut now_ns, again_ns, false);
    while a.poll_event().is_some() {}
    let metrics = a.metrics();
    receive_all(&mut a, now_ns, &[reply]);
    let refused = a.metrics();
    assert_eq!(
        refused.drops(DropReason::Old),
        metrics.drops(DropReason::Old) + 1
    );
    assert_eq!(refused.sessions, metrics.sessions);
    assert_eq!(a.poll_event(), None::<TunnelEvent>);
    assert!(passes([&mut a, &mut after], &mut now_ns));
}
