// SPDX-License-Identifier: Apache-2.0
//! What is known of requests that nothing dates: without timestamps, with echoes that cookies
//! hold back, and by a clock of milliseconds.

use causeway_core::estimate::{Quality, Tally};

use super::clients::{Client, REQUEST, RESPONSE, SERVICE_NS, off_pct, tcp_syn};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// Requests without timestamps over a path of `path_ms`, served in 5 ms, each after a pause.
fn undated(path_ms: u64, pause_ms: u64) -> Tally {
    let mut client = Client::new(false);
    client.packets = vec![tcp_syn(client.now, 0)];
    client.receives(path_ms * MS, 0);
    client.acknowledges();
    for _ in 0..100 {
        client.sends(REQUEST);
        client.receives(path_ms * MS + SERVICE_NS, RESPONSE);
        client.pauses(pause_ms * MS);
    }
    client.measured()
}

#[test]
fn a_long_path_leaves_little_to_an_undated_pause() {
    let grade = |path_ms, pause_ms| undated(path_ms, pause_ms).confidence().quality;
    // A pause of up to 6 ms could be in it, a fifth of the latency.
    for (path_ms, pause_ms) in [(20, 0), (20, 1), (80, 5)] {
        assert_eq!(grade(path_ms, pause_ms), Quality::Medium, "{path_ms} ms");
        let off = off_pct(&undated(path_ms, pause_ms), path_ms * MS + SERVICE_NS);
        assert!((-1.0..25.0).contains(&off), "{path_ms} ms: {off} %");
    }
    for (path_ms, pause_ms) in [(0, 0), (0, 20), (5, 0), (20, 20), (80, 40)] {
        assert_eq!(grade(path_ms, pause_ms), Quality::Low, "{path_ms} ms");
    }
}

/// A prompt client whose program once waits for a processor. What answers it had leave anywhere
/// in their ticks, but none at the very beginning.
#[test]
fn one_late_request_makes_no_client_that_pauses() {
    let mut client = Client::new(true);
    client.pauses(MS - client.now % MS + 35 * US);
    client.packets = vec![tcp_syn(client.now - 50 * US, 0)];
    client.sent_ns = client.now - 25 * US;
    client.acknowledges();
    let (mut served_ns, turns) = (0, 200);
    for turn in 0..turns {
        client.sends(REQUEST);
        let phase_ns = 150 * US + turn * 7 % 10 * 80 * US;
        let early_ns = (client.now + SERVICE_NS) % MS;
        let service_ns = SERVICE_NS + (phase_ns + MS - early_ns) % MS;
        client.receives(service_ns, RESPONSE);
        client.pauses(if turn == 7 { 600 * US } else { 50 * US });
        served_ns += service_ns;
    }
    let off = off_pct(&client.measured(), served_ns / turns);
    assert!((0.0..2.0).contains(&off), "{off} %");
}

/// A client whose requests leave 300 us and `pause_ns` after what they answer. One echo in four is
/// held back, as cookies hold it.
fn with_echoes_held(pause_ns: u64) -> Tally {
    let mut client = Client::new(true);
    // The clock shows as much as it can: every answer leaves as early in its tick as the first.
    client.asks(1);
    client.pauses(300 * US);
    for turn in 0..300 {
        client.sends(REQUEST);
        client.receives(SERVICE_NS - 300 * US, RESPONSE);
        client.pauses(300 * US + pause_ns);
        if turn > 12 && turn % 3 == 0 {
            client.sends(REQUEST);
            client.packets.last_mut().expect("a request").has_ts = false;
            client.receives(SERVICE_NS - 300 * US, RESPONSE);
            client.pauses(300 * US + pause_ns);
        }
    }
    client.measured()
}

#[test]
fn who_is_never_late_is_trusted_where_nothing_dates_a_request() {
    let tally = with_echoes_held(0);
    assert_eq!(tally.bound_halves, 0, "{tally:?}");
    assert!(off_pct(&tally, SERVICE_NS).abs() < 1.0);
    let tally = with_echoes_held(20 * MS);
    assert!(tally.bound_halves > tally.weight_halves / 4, "{tally:?}");
}

#[test]
fn short_pauses_of_a_client_that_was_prompt_once_stay_out() {
    let mut client = Client::new(true);
    client.asks(20);
    for turn in 0..4000 {
        client.asks(1);
        client.pauses(2 * MS + turn * 7919 % 18_000 * US);
    }
    let mean_ns = client.measured().mean_ns().expect("samples");
    // Within a tick of the server's clock.
    let off_us = (mean_ns - SERVICE_NS as f64) / US as f64;
    assert!(off_us.abs() < 1000.0, "{off_us} us");
}

/// Packets of one flow on two CPUs: one is stamped before the acknowledgement that came first.
#[test]
fn a_packet_older_than_the_ack_before_it_takes_no_timestamps_away() {
    let measured = |is_old| {
        let mut client = Client::new(true);
        for turn in 0..100 {
            client.asks(1);
            if turn == 50 && is_old {
                client.sends(REQUEST);
                client.pauses(100 * US);
                client.ack += 1;
                client.acknowledges();
                client.now -= 40 * US;
                client.sends(REQUEST);
                client.receives(SERVICE_NS, RESPONSE);
            }
            client.pauses(20 * MS);
        }
        client.measured()
    };
    let (old, usual) = (measured(true), measured(false));
    let off = off_pct(&old, SERVICE_NS);
    assert!(off.abs() < 10.0, "{off} %");
    let quality = old.confidence().quality;
    assert!(quality > Quality::Low, "{quality}, without {usual:?}");
}

/// With cookies the server's clock may stand still from the acknowledgement of a request to its
/// answer. Their echo is then as old as the request.
#[test]
fn an_echo_as_old_as_the_request_dates_no_answer() {
    let mut client = Client::new(true);
    for turn in 0..200 {
        client.sends(REQUEST);
        let asked_ns = client.now;
        client.receives(SERVICE_NS, RESPONSE);
        if turn % 4 == 3 {
            client.sent_ns = asked_ns - MS;
        }
        client.pauses(20 * MS);
    }
    let tally = client.measured();
    assert!(tally.bound_halves > tally.weight_halves / 4, "{tally:?}");
    let off = off_pct(&tally, SERVICE_NS);
    assert!(off.abs() < 10.0, "{off} %");
}
