// SPDX-License-Identifier: Apache-2.0
//! What the balancer learns about a real: connections, requests, latency.

use std::ops::Range;

use causeway_dataplane::abi::{RealValue, SamplingValue, Verdict};
use causeway_dataplane::skel::lb::types::wc_state;
use causeway_dataplane::{LatencySums, RealStats};

use crate::frame::{ACK, FIN, RST, Tcp, Tuple, arriving, timestamp};
use crate::rig::{Rig, TCP, tunnel_real};
use crate::verdict_tests;

/// Octave of the first bucket, `HIST_MIN_BITS` of hist.h.
const HIST_MIN_BITS: usize = 9;
const MS: u64 = 1_000_000;
const VIP: &str = "192.0.2.10";

fn client() -> Tuple {
    Tuple::new("198.51.100.7", 4000, VIP, 80)
}

/// The estimator's least distance between arrival and TSecr, 1 us.
fn clock_min(chain: &[u64; 16]) -> u32 {
    // SAFETY: both are the 128 bytes of struct wc_state, plain integers, and the flow is TCP.
    unsafe {
        std::mem::transmute_copy::<_, wc_state>(chain)
            .__anon_wc_state_1
            .tcp
            .clock_min
    }
}

fn serve(rig: &mut Rig) {
    rig.tunnel_real(1, "10.1.0.10");
    rig.vip(0, VIP, 80, TCP, &[1]);
}

fn send(rig: &mut Rig, segment: Tcp<'_>) {
    let (action, _) = rig.send(&arriving(&client().tcp(segment)));
    assert_eq!(action, Verdict::Established.action() as u32);
}

/// A client that asks again as soon as it has the response, which takes `latency_ns`.
fn ask_in_turn(rig: &mut Rig, requests: u32, latency_ns: u64, options: impl Fn(u32) -> Vec<u8>) {
    send(rig, Tcp::syn(0));
    rig.now_ns += MS / 10;
    ask(rig, 0..requests, latency_ns, options);
}

/// Such a client's requests of a connection that is open.
fn ask(rig: &mut Rig, turns: Range<u32>, latency_ns: u64, options: impl Fn(u32) -> Vec<u8>) {
    for turn in turns {
        let (seq, ack) = (1 + turn * 100, 1 + turn * 1000);
        send(
            rig,
            Tcp {
                flags: ACK,
                seq,
                ack,
                payload: &[7; 100],
                options: &options(turn),
            },
        );
        rig.now_ns += latency_ns;
    }
}

/// The requests of a connection whose SYN was not seen.
fn ask_of_before(rig: &mut Rig) {
    let (action, _) = rig.send(&arriving(&client().tcp(Tcp::ack(1, 1))));
    assert_eq!(action, Verdict::Adopted.action() as u32);
    rig.now_ns += MS;
    ask(rig, 0..40, 5 * MS, |_| Vec::new());
}

/// Mean of what the server added, ns.
fn server_ns(sums: &LatencySums) -> u64 {
    sums.server_sum_halves_ns / sums.path_weight_halves
}

verdict_tests! { Rig, Verdict:
    Established what_the_server_adds_is_told_apart_from_the_path(rig) {
        serve(rig);
        send(rig, Tcp::syn(0));
        rig.now_ns += 50 * MS;
        ask(rig, 0..40, 52 * MS, |_| Vec::new());
        let fast = rig.real_stats(1).latencies();
        ask(rig, 40..80, 70 * MS, |_| Vec::new());
        let both = rig.real_stats(1).latencies();
        let slow = LatencySums {
            server_sum_halves_ns: both.server_sum_halves_ns - fast.server_sum_halves_ns,
            path_weight_halves: both.path_weight_halves - fast.path_weight_halves,
            ..LatencySums::default()
        };
        // A sample or two of the second kind may have been of the first.
        assert!(server_ns(&fast).abs_diff(2 * MS) < MS / 50, "{} ns", server_ns(&fast));
        assert!(server_ns(&slow).abs_diff(20 * MS) < MS, "{} ns", server_ns(&slow));
        let path_ns = both.path_sum_halves_ns / both.path_weight_halves;
        assert!(path_ns.abs_diff(50 * MS) < MS / 50, "{path_ns} ns");
        assert_eq!(both.path_weight_halves, both.weight_halves);
        assert_eq!(
            both.server_sum_halves_ns + both.path_sum_halves_ns,
            both.sum_halves_ns
        );
    }
    Established a_response_sooner_than_the_handshake_shows_the_path(rig) {
        serve(rig);
        send(rig, Tcp::syn(0));
        // The SYN-ACK was lost; a second later came another one.
        rig.now_ns += 1_050 * MS;
        ask(rig, 0..40, 52 * MS, |_| Vec::new());
        let sums = rig.real_stats(1).latencies();
        assert!(sums.path_weight_halves >= 2 * 35, "{sums:?}");
        assert!(sums.path_sum_halves_ns / sums.path_weight_halves < 53 * MS, "{sums:?}");
    }
    Adopted of_a_connection_from_before_no_path_is_known(rig) {
        serve(rig);
        ask_of_before(rig);
        let sums = rig.real_stats(1).latencies();
        assert!(sums.weight_halves >= 2 * 30, "{sums:?}");
        assert_eq!((sums.path_weight_halves, sums.server_sum_halves_ns, sums.path_sum_halves_ns), (0, 0, 0));
    }
    Established what_may_be_a_pause_is_no_sample(rig) {
        serve(rig);
        let echo = |rig: &Rig| timestamp(9, (rig.now_ns / MS) as u32);
        send(rig, Tcp::syn(0));
        rig.now_ns += MS / 10;
        for turn in 0..60 {
            // Once the client pauses for as long as a lost request would have it wait. It
            // has acknowledged the response before.
            let (seq, ack) = (1 + turn * 100, 1 + turn * 1000);
            let options = echo(rig);
            if turn == 40 {
                send(rig, Tcp { flags: ACK, seq, ack, options: &options, ..Tcp::default() });
                rig.now_ns += 205 * MS;
            }
            send(rig, Tcp { flags: ACK, seq, ack, payload: &[7; 100], options: &options });
            rig.now_ns += 5 * MS;
        }
        let stats = rig.real_stats(1);
        let mean_ns = stats.latencies().sum_halves_ns / stats.latencies().weight_halves;
        assert!(mean_ns.abs_diff(5 * MS) < 5 * MS / 50, "mean {mean_ns} ns");
        let longest = rig.histogram(1).iter().rposition(|&count| count > 0);
        // 134 ms begin octave 27.
        assert!(longest < Some((27 - HIST_MIN_BITS) * 16), "{longest:?}");
        assert_eq!((stats.bound_weight_halves, stats.low.weight_halves), (2, 0), "{stats:?}");
    }
    Established a_closed_loop_client_shows_the_latency(rig) {
        serve(rig);
        ask_in_turn(rig, 50, 5 * MS, |_| Vec::new());
        let stats = rig.real_stats(1);
        assert_eq!(stats.requests, 50);
        let all = stats.latencies();
        let mean_ns = all.sum_halves_ns / all.weight_halves;
        assert!(all.weight_halves >= 2 * 40, "{all:?}");
        assert!(mean_ns.abs_diff(5 * MS) < 5 * MS / 100, "mean {mean_ns} ns");
        // Without timestamps nothing distinguishes a pause from a response: all are off alike.
        assert!(stats.low.weight_halves * 10 >= all.weight_halves * 9, "{stats:?}");
        // Their path is known as that of any others.
        assert_eq!(stats.low.path_weight_halves, stats.low.weight_halves);
        let histogram = rig.histogram(1);
        let samples: u64 = histogram.iter().sum();
        assert!(samples.abs_diff(all.weight_halves / 2) <= 1, "{samples} samples");
        // 5 ms lies in octave 22 (4.19 ms), sub-bucket 3 of 16.
        let bucket = (22 - HIST_MIN_BITS) * 16 + 3;
        assert!(histogram[bucket] >= samples * 9 / 10, "{histogram:?}");
    }
    Established responses_of_a_batch_count_each_in_the_histogram(rig) {
        serve(rig);
        send(rig, Tcp::syn(0));
        rig.now_ns += MS / 10;
        let (mut seq, mut ack) = (1, 1);
        let mut turn = |rig: &mut Rig, responses: u32, requests: u32| {
            ack += responses * 900;
            for _ in 0..requests {
                let payload: &[u8] = &[7; 100];
                send(rig, Tcp { flags: ACK, seq, ack, payload, options: &[] });
                seq += 100;
            }
        };
        turn(rig, 0, 4);
        // Four in flight: answered one by one after 2, 20, 21 and 22 ms, and then their
        // successors at once, which took 30, 12, 11 and 10 ms.
        for _ in 0..100 {
            for wait_ms in [2, 18, 1, 1] {
                rig.now_ns += wait_ms * MS;
                turn(rig, 1, 1);
            }
            rig.now_ns += 10 * MS;
            turn(rig, 4, 4);
        }
        let histogram = rig.histogram(1);
        let all: u64 = histogram.iter().sum();
        let beyond = |ms: u64| {
            let octave = (ms * MS).ilog2() as usize;
            let sixteenth = ((ms * MS) >> (octave - 4)) as usize & 15;
            histogram[(octave - HIST_MIN_BITS) * 16 + sixteenth..].iter().sum::<u64>()
        };
        // One in eight takes 30 ms, three of eight 10 to 12: by group means none would.
        assert!((all / 9..=all / 7).contains(&beyond(28)), "{} of {all}", beyond(28));
        let short = beyond(8) - beyond(14);
        assert!((all * 3 / 9..=all * 3 / 7).contains(&short), "{short} of {all}");
    }
    Established a_second_measurement_starts_with_the_next_connection(rig) {
        serve(rig);
        ask_in_turn(rig, 20, 5 * MS, |_| Vec::new());
        let before = rig.flow(client(), TCP).expect("entry").chain;
        send(rig, Tcp::syn(99_999));
        let after = rig.flow(client(), TCP).expect("entry");
        assert_eq!(after.isn, 99_999);
        assert_ne!(before, after.chain);
        assert_eq!(after.chain[0], rig.now_ns, "only the time of the SYN is left");
        assert_eq!(after.chain[1..12], [0; 11]);
    }
    Opened connections_are_counted_as_the_client_opens_and_closes(rig) {
        serve(rig);
        send(rig, Tcp::syn(0));
        send(rig, Tcp::syn(0));
        send(rig, Tcp::ack(1, 1));
        for flags in [FIN | ACK, FIN | ACK, RST] {
            send(rig, Tcp { flags, seq: 1, ack: 1, ..Tcp::default() });
        }
        let stats = rig.real_stats(1);
        assert_eq!((stats.packets, stats.conns_opened, stats.conns_closed), (6, 1, 1));
        send(rig, Tcp::syn(7));
        send(rig, Tcp { flags: RST, seq: 8, ..Tcp::default() });
        let stats = rig.real_stats(1);
        assert_eq!((stats.conns_opened, stats.conns_closed), (2, 2));
    }
    Adopted an_adopted_connection_closes_without_being_counted(rig) {
        serve(rig);
        send(rig, Tcp::ack(1, 1));
        send(rig, Tcp { flags: FIN | ACK, seq: 1, ack: 1, ..Tcp::default() });
        let stats = rig.real_stats(1);
        assert_eq!((stats.packets, stats.conns_opened, stats.conns_closed), (2, 0, 0));
    }
    Moved the_end_of_a_removed_reals_connection_counts_nowhere(rig) {
        serve(rig);
        send(rig, Tcp::syn(0));
        rig.tunnel_real(2, "10.1.0.11");
        rig.vip(0, VIP, 80, TCP, &[2]);
        rig.real(1, RealValue::default());
        let end = Tcp { flags: FIN | ACK, seq: 1, ack: 1, ..Tcp::default() };
        send(rig, end);
        assert_eq!((rig.real_stats(1).conns_closed, rig.real_stats(2).conns_closed), (0, 0));
        assert_eq!(rig.real_stats(2).packets, 1);
        // The slot has another real now, which is not the one that the flow was on.
        rig.real(1, RealValue { r#gen: 1, ..tunnel_real("10.1.0.12") });
        rig.vip(0, VIP, 80, TCP, &[1]);
        send(rig, end);
        let stats = rig.real_stats(1);
        assert_eq!((stats.packets, stats.conns_opened, stats.conns_closed), (2, 1, 0));
    }
    NoNextHop a_syn_that_is_not_sent_opens_nothing(rig) {
        serve(rig);
        rig.set_ctl(|ctl| ctl.gateway_mac = [0; 6]);
        rig.expect(Verdict::NoNextHop, &arriving(&client().tcp(Tcp::syn(0))), &[]);
        let end = Tcp { flags: RST, seq: 1, ..Tcp::default() };
        rig.set_ctl(|_| ());
        send(rig, end);
        let stats = rig.real_stats(1);
        assert_eq!((stats.packets, stats.conns_opened, stats.conns_closed), (1, 0, 0));
    }
    SynAgain the_first_syn_that_is_sent_opens(rig) {
        serve(rig);
        rig.set_ctl(|ctl| ctl.gateway_mac = [0; 6]);
        rig.expect(Verdict::NoNextHop, &arriving(&client().tcp(Tcp::syn(0))), &[]);
        rig.set_ctl(|_| ());
        send(rig, Tcp::syn(0));
        send(rig, Tcp::syn(0));
        assert_eq!(rig.real_stats(1).conns_opened, 1);
    }
    NoNextHop a_connection_whose_syn_was_not_sent_is_not_measured(rig) {
        serve(rig);
        ask_in_turn(rig, 20, 5 * MS, |_| Vec::new());
        send(rig, Tcp { flags: RST, ..Tcp::default() });
        let before = rig.real_stats(1);
        rig.set_ctl(|ctl| ctl.gateway_mac = [0; 6]);
        rig.expect(Verdict::NoNextHop, &arriving(&client().tcp(Tcp::syn(7000))), &[]);
        rig.set_ctl(|_| ());
        // Its SYN went by another balancer. Here the estimator has not begun with it, and what
        // it knows is of the connection before.
        ask(rig, 100..110, 5 * MS, |_| Vec::new());
        let after = rig.real_stats(1);
        assert_eq!(after.packets, before.packets + 10);
        assert_eq!(after.latencies().weight_halves, before.latencies().weight_halves);
        assert_eq!(after.bound_weight_halves, before.bound_weight_halves);
    }
    Established a_request_ends_with_a_short_packet(rig) {
        serve(rig);
        send(rig, Tcp::syn(0));
        let mut seq = 1;
        // One request of two full packets and a rest, then one of a single packet.
        for len in [1380, 1380, 200, 300] {
            rig.now_ns += MS / 100;
            send(rig, Tcp { flags: ACK, seq, ack: 1, payload: &vec![1; len], ..Tcp::default() });
            seq += len as u32;
        }
        send(rig, Tcp::ack(seq, 5000));
        assert_eq!(rig.real_stats(1).requests, 2);
    }
    Established a_byte_that_was_sent_before_is_no_request(rig) {
        serve(rig);
        ask_in_turn(rig, 2, 5 * MS, |_| Vec::new());
        // Keepalives of Windows, and probes of a window that is closed.
        for _ in 0..10 {
            rig.now_ns += 1_000 * MS;
            send(rig, Tcp { flags: ACK, seq: 200, ack: 2001, payload: b"x", ..Tcp::default() });
        }
        let stats = rig.real_stats(1);
        assert_eq!((stats.requests, stats.requests_seen), (2, 2));
    }
    Established what_was_over_long_before_it_is_known_is_told_apart(rig) {
        serve(rig);
        ask_in_turn(rig, 3, 5 * MS, |_| Vec::new());
        let stats = rig.real_stats(1);
        assert_eq!((stats.latencies().weight_halves, stats.late_weight_halves), (2, 0));
        assert_eq!(stats.answers_acked, 0);
        // The client acknowledges each answer, and asks again half a minute later: the latency of
        // an answer is known by the next request but one.
        for turn in 3..6 {
            send(rig, Tcp::ack(1 + turn * 100, 1 + turn * 1000));
            rig.now_ns += 30_000 * MS;
            ask(rig, turn..turn + 1, 5 * MS, |_| Vec::new());
        }
        let stats = rig.real_stats(1);
        assert_eq!((stats.latencies().weight_halves, stats.late_weight_halves), (2 * 4, 2 * 3));
        assert_eq!(stats.answers_acked, 3);
    }
    Established a_slow_answer_is_no_old_one(rig) {
        serve(rig);
        ask_in_turn(rig, 6, 10_000 * MS, |_| Vec::new());
        let stats = rig.real_stats(1);
        assert_eq!((stats.latencies().weight_halves, stats.late_weight_halves), (2 * 4, 0));
    }
    Established the_timestamp_is_found_wherever_it_is(rig) {
        serve(rig);
        let plain = timestamp(1, 1).len();
        assert_eq!(plain, 12);
        // The estimator keeps the least distance between the clock and TSecr: with the
        // echo at any place its state must be the same.
        let layouts: [fn(u32) -> Vec<u8>; 4] = [
            |echo| timestamp(9, echo),
            |echo| [&[8, 10, 0, 0, 0, 9][..], &echo.to_be_bytes(), &[1, 1]].concat(),
            // MSS, SACK permitted, then the timestamp, then the window scale.
            |echo| [&[2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 9][..], &echo.to_be_bytes(), &[1, 3, 3, 7]].concat(),
            // Two SACK blocks and NOPs, the timestamp at the very end.
            |echo| [&[1, 1, 5, 18][..], &[0; 16], &[1; 10], &[8, 10, 0, 0, 0, 9], &echo.to_be_bytes()].concat(),
        ];
        let mut states = Vec::new();
        for layout in layouts {
            rig.now_ns = 1_000 * MS;
            ask_in_turn(rig, 8, 4 * MS, |turn| layout(500 + 4 * turn));
            states.push(rig.flow(client(), TCP).expect("entry").chain);
            send(rig, Tcp { flags: RST, ..Tcp::default() });
            rig.now_ns = 1_000 * MS;
        }
        let clocks: Vec<u32> = states.iter().map(clock_min).collect();
        assert_ne!(clocks[0], 0);
        assert_eq!(clocks, vec![clocks[0]; 4]);
    }
    Established broken_options_are_survived(rig) {
        serve(rig);
        send(rig, Tcp::syn(0));
        for options in [[5, 0, 0, 0].repeat(3), [0; 12].to_vec(), [8, 10].repeat(6), [7, 255].repeat(20), vec![1; 40]] {
            send(rig, Tcp { flags: ACK, seq: 1, ack: 1, options: &options, payload: b"x" });
        }
    }
}

#[test]
fn without_measurement_nothing_is_estimated() {
    let mut rig = Rig::with(false);
    serve(&mut rig);
    ask_in_turn(&mut rig, 20, 5 * MS, |turn| timestamp(turn, turn));
    let stats = rig.real_stats(1);
    assert_eq!((stats.packets, stats.conns_opened), (21, 1));
    assert_eq!((stats.requests, stats.latencies().weight_halves), (0, 0));
    assert_eq!(rig.flow(client(), TCP).expect("entry").chain, [0; 16]);
}

/// A client of its own latency asks in turn: what the estimator says of 1 in 2^k connections.
fn mean_of_sampled(k: u8, clients: &[(Tuple, u64)]) -> RealStats {
    let mut rig = Rig::new();
    serve(&mut rig);
    let ks = SamplingValue {
        opening: k,
        least: k,
        most: k,
    };
    rig.sample((VIP, 80), &[1], ks);
    for (client, latency_ns) in clients {
        rig.send(&arriving(&client.tcp(Tcp::syn(0))));
        rig.now_ns += MS / 10;
        for turn in 0..8 {
            let (seq, ack) = (1 + turn * 100, 1 + turn * 1000);
            rig.send(&arriving(&client.tcp(Tcp {
                flags: ACK,
                seq,
                ack,
                payload: &[7; 100],
                ..Tcp::default()
            })));
            rig.now_ns += latency_ns;
        }
    }
    rig.real_stats(1)
}

/// Latencies that differ by client, subnet and port: whichever are sampled, the mean is right.
#[test]
fn sampled_connections_have_the_mean_and_the_requests_of_all() {
    let clients: Vec<(Tuple, u64)> = (0..2_048_u64)
        .map(|number| {
            let address = format!("198.51.{}.{}", 100 + number / 64 % 8, 1 + number % 64);
            let client = Tuple::new(&address, 4000 + (number / 512) as u16, VIP, 80);
            (client, MS * (2 + number / 64 % 8 + number % 5))
        })
        .collect();
    let mean = |of: &RealStats| {
        let sums = of.latencies();
        sums.sum_halves_ns as f64 / sums.weight_halves as f64
    };
    let all = mean_of_sampled(0, &clients);
    assert_eq!(all.conns_measured, 2_048);
    assert_eq!(all.requests, all.requests_seen);
    let center = clients.iter().map(|(_, ns)| *ns as f64).sum::<f64>() / 2_048.0;
    let squares = clients.iter().map(|(_, ns)| (*ns as f64 - center).powi(2));
    let deviation = (squares.sum::<f64>() / 2_048.0).sqrt();
    for k in [3, 6] {
        let sampled = mean_of_sampled(k, &clients);
        assert_eq!(sampled.conns_opened, 2_048);
        let expected = f64::from(2_048_u32 >> k);
        let measured = sampled.conns_measured as f64;
        assert!(
            (measured - expected).abs() < 3.0 * expected.sqrt(),
            "{measured}"
        );
        let error_ns = (mean(&sampled) - mean(&all)).abs();
        assert!(
            error_ns < 3.0 * deviation / measured.sqrt(),
            "1 in {}: {error_ns} ns",
            1 << k
        );
        let requests = sampled.requests as f64 / all.requests as f64;
        assert!((requests - 1.0).abs() < 3.0 / expected.sqrt(), "{requests}");
    }
}
