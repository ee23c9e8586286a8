// SPDX-License-Identifier: Apache-2.0
//! What everyday clients do between their requests: they open TLS, send a head and
//! then its body, pause, and close. None of it is a request, and none hides one.

use causeway_core::estimate::{Estimator, Method, Packet, Quality, Tally};

use super::against_oracle::{by_the_c, by_the_oracle};
use super::clients::{Client, REQUEST, RESPONSE, SERVICE_NS, START_NS, off_pct, tally, tcp_syn};
use super::workload::Rng;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

const FIN: u8 = Packet::FIN | Packet::ACK;

/// A ClientHello, and the server's part of the handshake 600 us later.
fn hello(client: &mut Client) {
    client.sends(517);
    client.receives(600 * US, 782);
    client.acknowledges();
    client.pauses(600 * US);
}

#[test]
fn a_handshake_of_tls_is_no_request() {
    // ChangeCipherSpec and Finished; the first request follows them with the same ACK,
    // or, in TLS 1.2, after the server's.
    for (finished, version) in [(64, 13), (80, 13), (93, 12), (126, 12)] {
        let mut client = Client::new(true);
        hello(&mut client);
        client.sends(finished);
        if version == 12 {
            client.receives(300 * US, 51);
        } else {
            client.pauses(60 * US);
        }
        client.asks(150);
        client.closes(FIN);
        let tally = client.measured();
        assert_eq!(
            (tally.window, tally.samples()),
            (1, 150),
            "{finished} bytes"
        );
        let off = off_pct(&tally, SERVICE_NS);
        assert!(off.abs() < 0.2, "{finished} bytes: {off} %");
    }
}

#[test]
fn a_handshake_behind_a_request_for_tls_is_none_either() {
    // PostgreSQL: SSLRequest and its answer of one byte come first, and behind Finished the
    // client's greeting.
    for finished in [64, 80] {
        let mut client = Client::new(true);
        client.sends(8);
        client.receives(100 * US, 1);
        hello(&mut client);
        client.sends(finished);
        client.pauses(60 * US);
        client.sends(110);
        client.receives(SERVICE_NS, 500);
        client.asks(20);
        client.closes(FIN);
        let tally = client.measured();
        assert_eq!((tally.window, tally.samples()), (1, 21), "{finished} bytes");
        assert_eq!(tally.bound_halves, 0, "{finished} bytes");
    }
}

#[test]
fn one_request_in_two_packets_widens_no_window() {
    for permille in [10, 50, 100, 300] {
        let mut rng = Rng(permille);
        let mut client = Client::new(true);
        client.asks(3);
        for _ in 0..600 {
            if rng.permille(permille) {
                client.sends(200);
                client.pauses(100 * US);
                client.sends(300);
                client.receives(SERVICE_NS - 100 * US, RESPONSE);
            } else {
                client.asks(1);
            }
        }
        let tally = client.measured();
        let off = off_pct(&tally, SERVICE_NS);
        assert!(off.abs() < 1.0, "{permille} in 1000: {off} %");
    }
}

/// What is measured by each of these times, and behind the last one.
fn measured_until(packets: &[Packet], times: &[u64]) -> Vec<Tally> {
    let mut flow = Estimator::new(&Method::WindowChain);
    let mut tallies = vec![Tally::default(); times.len() + 1];
    let mut add = |sample: &_, when_ns| {
        let at = times.iter().take_while(|end| when_ns >= **end).count();
        tallies[at].add(sample);
    };
    for packet in packets {
        for sample in flow.packet(packet).iter() {
            add(sample, sample.when_ns);
        }
    }
    for sample in flow.finish().iter() {
        add(sample, sample.when_ns);
    }
    tallies
}

#[test]
fn a_request_in_many_packets_is_one_once_three_have_shown_it() {
    // Chunked bodies, whose program writes each chunk by itself.
    for parts in [3, 5, 10, 20] {
        let mut client = Client::new(true);
        let mut ends = Vec::new();
        for n in 1..=300_u64 {
            if n % 10 == 0 {
                for _ in 0..parts {
                    client.sends(200);
                    client.pauses(50 * US);
                }
                client.receives(SERVICE_NS - parts * 50 * US, RESPONSE);
            } else {
                client.asks(1);
            }
            if n % 50 == 0 {
                ends.push(client.now);
            }
        }
        let tallies = measured_until(&client.packets, &ends);
        for (at, tally) in tallies[..6].iter().enumerate() {
            let off = off_pct(tally, SERVICE_NS);
            let quality = tally.confidence().quality;
            assert!(
                off.abs() < 2.0 || quality == Quality::Low,
                "{parts} parts, epoch {at}: {off} %, {quality:?}"
            );
            assert!(
                at == 0 || off.abs() < 2.0,
                "{parts} parts, epoch {at}: {off} %"
            );
        }
    }
}

#[test]
fn an_opening_of_several_packets_says_nothing_sure_about_the_window() {
    let mut client = Client::new(true);
    for _ in 0..3 {
        client.sends(REQUEST);
    }
    client.receives(SERVICE_NS, RESPONSE);
    client.asks(60);
    assert_eq!(client.measured().confidence().quality, Quality::Low);
}

#[test]
fn more_than_sixteen_requests_at_a_time_are_not_told_apart() {
    let mut client = Client::new(true);
    for _ in 0..4 {
        // Pages of sixty requests, twenty at a time, each answered 20 ms later.
        (0..20).for_each(|_| client.sends(REQUEST));
        client.receives(20 * MS, RESPONSE);
        for _ in 0..40 {
            client.sends(REQUEST);
            client.receives(MS, RESPONSE);
        }
        (0..19).for_each(|_| client.receives(MS, RESPONSE));
        client.acknowledges();
        client.pauses(300 * MS);
    }
    assert_eq!(client.measured().confidence().quality, Quality::Low);
    // As many as are told apart, always at once.
    let mut client = Client::new(true);
    for _ in 0..100 {
        (0..16).for_each(|_| client.sends(REQUEST));
        client.receives(SERVICE_NS, 16 * RESPONSE);
    }
    let tally = client.measured();
    assert_eq!(
        (tally.window, tally.confidence().quality),
        (16, Quality::High)
    );
    assert!(off_pct(&tally, SERVICE_NS).abs() < 1.0);
}

#[test]
fn segments_without_psh_have_more_of_their_request_behind_them() {
    for mss in [536, 1188, 1448] {
        let mut rng = Rng(u64::from(mss));
        let mut client = Client::new(true);
        for _ in 0..300 {
            client.writes(100 + rng.below(7900) as u32, mss);
            client.receives(SERVICE_NS, RESPONSE);
        }
        client.closes(FIN);
        let tally = client.measured();
        assert_eq!((tally.window, tally.samples()), (1, 300), "MSS {mss}");
        assert!(off_pct(&tally, SERVICE_NS).abs() < 0.2, "MSS {mss}");
        assert_eq!(tally.confidence().quality, Quality::High, "MSS {mss}");
    }
}

#[test]
fn a_handshake_of_tls_may_come_in_several_packets() {
    // GnuTLS, Java; TLS 1.2 of Java, with X25519 and P-256.
    for (flight, version) in [
        (&[6, 74][..], 13),
        (&[6, 90], 13),
        (&[42, 6, 45], 12),
        (&[75, 6, 37], 12),
    ] {
        let mut client = Client::new(true);
        hello(&mut client);
        for bytes in flight {
            client.sends(*bytes);
            client.pauses(100 * US);
        }
        if version == 12 {
            client.receives(300 * US, 51);
        }
        client.asks(150);
        client.closes(FIN);
        let tally = client.measured();
        assert_eq!((tally.window, tally.samples()), (1, 150), "{flight:?}");
        assert!(off_pct(&tally, SERVICE_NS).abs() < 0.2, "{flight:?}");
    }
}

#[test]
fn short_requests_behind_a_long_one_are_no_handshake() {
    // A WebSocket: its request for it, then messages of 36 bytes.
    let mut client = Client::new(true);
    client.sends(300);
    client.receives(SERVICE_NS, 129);
    for _ in 0..50 {
        client.sends(42);
        client.receives(SERVICE_NS, 42);
        client.pauses(1000 * MS);
    }
    client.asks(20);
    let tally = client.measured();
    assert!(tally.samples() >= 65, "{tally:?}");
    assert!(off_pct(&tally, SERVICE_NS).abs() < 10.0, "{tally:?}");
}

#[test]
fn a_request_that_was_not_seen_makes_no_latency_of_two_responses_and_a_pause() {
    let mut client = Client::new(true);
    for n in 0..400 {
        client.asks(1);
        // Answers leave anywhere in their ticks.
        client.pauses(30 * MS + n * 137 * US % MS);
    }
    let whole = tally(
        &mut Estimator::new(&Method::WindowChain),
        client.packets.clone(),
    );
    // A capture that has lost one request in fifty.
    let mut n = 0;
    client.packets.retain(|packet| {
        n += u32::from(packet.payload_len > 0);
        packet.payload_len == 0 || n % 50 != 0
    });
    let lossy = client.measured();
    assert!(lossy.samples() + 20 > whole.samples());
    let off = off_pct(&lossy, whole.mean_ns().expect("samples") as u64);
    assert!(off.abs() < 0.5, "{off} %");
}

#[test]
fn a_reset_that_acknowledges_the_response_dates_it() {
    // wget closes with records of TLS unread.
    let mut client = Client::new(true);
    client.asks(1);
    client.closes(Packet::RST | Packet::ACK);
    let tally = client.measured();
    assert_eq!(tally.samples(), 1);
    assert!(off_pct(&tally, SERVICE_NS).abs() < 0.2);
    // One that acknowledges nothing does not.
    let mut client = Client::new(true);
    client.asks(1);
    client.closes(Packet::RST);
    assert_eq!(client.measured().samples(), 0);
}

#[test]
fn http2_without_tls_is_known_by_its_settings() {
    // Preface, SETTINGS and the first request; then the acknowledgement of the server's SETTINGS.
    let opens = || {
        let mut client = Client::new(true);
        client.sends(69);
        client.pauses(100 * US);
        client.sends(9);
        client.receives(SERVICE_NS, RESPONSE);
        client
    };
    let mut client = opens();
    for _ in 0..150 {
        client.sends(REQUEST);
        client.receives(SERVICE_NS, 5000);
        // WINDOW_UPDATEs are no requests.
        client.sends(26);
    }
    let tally = client.measured();
    assert_eq!((tally.window, tally.samples()), (1, 150));
    assert!(off_pct(&tally, SERVICE_NS).abs() < 1.0);
    assert_eq!(tally.confidence().quality, Quality::High);
    // Several streams: which response a request follows is not to be seen.
    let mut client = opens();
    for _ in 0..30 {
        (0..4).for_each(|_| client.sends(30));
        client.receives(SERVICE_NS, 4 * RESPONSE);
    }
    assert_eq!(client.measured().confidence().quality, Quality::Low);
    // So short a command of another protocol, behind an answer of another length.
    let mut client = Client::new(true);
    client.sends(69);
    client.receives(SERVICE_NS, 11);
    client.sends(9);
    client.receives(SERVICE_NS, 11);
    client.asks(20);
    assert_eq!(client.measured().samples(), 21);
}

#[test]
fn a_burst_of_two_is_not_yet_a_window_of_two() {
    let mut client = Client::new(true);
    client.asks(1);
    // The only one, and larger than what came before.
    client.sends(REQUEST);
    client.sends(REQUEST);
    client.receives(SERVICE_NS, 2 * RESPONSE);
    client.asks(100);
    let tally = client.measured();
    assert_eq!(tally.window, 1);
    assert!(off_pct(&tally, SERVICE_NS).abs() < 0.2);
}

/// A client over a path of 20 ms whose first request goes in two packets, of which the second is
/// answered `server_ns` later than the path is long.
fn opens_with_two(server_ns: u64) -> Tally {
    let mut client = Client::new(true);
    client.packets.clear();
    client.packets.push(tcp_syn(client.now, 0));
    client.receives(20 * MS, 0);
    client.acknowledges();
    client.sends(REQUEST);
    client.sends(REQUEST);
    for _ in 0..50 {
        client.receives(20 * MS + server_ns, RESPONSE);
        client.sends(REQUEST);
    }
    client.measured()
}

#[test]
fn where_responses_take_what_the_path_does_one_request_is_out() {
    let tally = opens_with_two(MS / 2);
    assert!(off_pct(&tally, 20 * MS + MS / 2).abs() < 2.0, "{tally:?}");
    assert_eq!(tally.confidence().quality, Quality::Medium, "{tally:?}");
    // Two requests of a server that answers one every 40 ms look the same.
    assert_eq!(opens_with_two(20 * MS).confidence().quality, Quality::Low);
}

#[test]
fn a_window_of_two_is_found_where_it_shows() {
    let mut rng = Rng(11);
    let mut client = Client::new(true);
    client.asks(1);
    for _ in 0..200 {
        // Responses of any size, now and then two at once.
        let size = || 100 + rng.below(20_000) as u32;
        let sizes: Vec<u32> = std::iter::repeat_with(size).take(8).collect();
        client.sends(REQUEST);
        client.sends(REQUEST);
        for size in &sizes[..6] {
            client.receives(SERVICE_NS, *size);
            client.sends(REQUEST);
        }
        client.receives(SERVICE_NS, sizes[6] + sizes[7]);
    }
    let tally = client.measured();
    assert_eq!(tally.window, 2);
    // Served one after the other: each waits for one before it.
    assert!(off_pct(&tally, 2 * SERVICE_NS).abs() < 15.0);
}

/// Requests one at a time, with a pause after each that is acknowledged.
fn with_pauses(timestamps: bool, pause_ns: u64) -> Tally {
    let mut client = Client::new(timestamps);
    for i in 0..60 {
        client.asks(1);
        client.pauses(100 * US);
        client.acknowledges();
        // The phase against the clock of the timestamps differs.
        client.pauses(pause_ns + i * 17 * US);
    }
    client.closes(FIN);
    client.measured()
}

#[test]
fn a_client_that_polls_every_200_ms_has_lost_nothing() {
    for pause_ms in [195, 200, 205, 210, 215, 250] {
        for timestamps in [true, false] {
            let tally = with_pauses(timestamps, pause_ms * MS);
            assert_eq!(tally.bound_halves, 0, "{pause_ms} ms");
            assert_eq!(tally.samples(), 60, "{pause_ms} ms");
            let off = off_pct(&tally, SERVICE_NS);
            assert!(off.abs() < 4.0, "{pause_ms} ms: {off} %");
        }
    }
}

#[test]
fn a_pause_of_5_ms_shows_in_the_timestamps() {
    let mut client = Client::new(true);
    for i in 0..300 {
        client.asks(1);
        client.pauses(5 * MS + i * 7 * US);
    }
    // Half a tick of 1 ms is a tenth of the latency.
    let off = off_pct(&client.measured(), SERVICE_NS);
    assert!(off.abs() < 12.0, "{off} %");
}

#[test]
fn a_request_just_after_a_delayed_ack_is_dated_by_its_echo() {
    let mut client = Client::new(true);
    client.asks(20);
    for i in 0..200 {
        client.asks(1);
        client.pauses(40 * MS);
        client.acknowledges();
        client.pauses(10 * US + i * 9 * US);
    }
    let off = off_pct(&client.measured(), SERVICE_NS);
    assert!(off.abs() < 12.0, "{off} %");
}

#[test]
fn a_connection_of_one_request_is_measured() {
    type Close = fn(&mut Client);
    let closes: [(&str, Close); 5] = [
        ("ACK, then FIN", |client| {
            client.acknowledges();
            client.pauses(100 * US);
            client.closes(FIN);
        }),
        ("ACK, then FIN after a while", |client| {
            client.acknowledges();
            client.pauses(1_700 * MS);
            client.closes(FIN);
        }),
        ("FIN at once", |client| client.closes(FIN)),
        ("the server's FIN", |client| {
            client.acknowledges();
            client.receives(60_000 * MS, 1);
            client.acknowledges();
            client.closes(FIN);
        }),
        ("ACK, then RST", |client| {
            client.acknowledges();
            client.pauses(30 * MS);
            client.closes(Packet::RST);
        }),
    ];
    for (name, close) in closes {
        for timestamps in [true, false] {
            let mut client = Client::new(timestamps);
            client.asks(1);
            close(&mut client);
            let tally = client.measured();
            assert_eq!(tally.samples(), 1, "{name}");
            let off = off_pct(&tally, SERVICE_NS);
            assert!(off.abs() < 0.2, "{name}: {off} %");
        }
    }
}

#[test]
fn a_client_that_leaves_without_a_response_tells_nothing() {
    for flags in [FIN, Packet::RST] {
        let mut client = Client::new(true);
        client.sends(REQUEST);
        client.pauses(30_000 * MS);
        client.closes(flags);
        assert_eq!(client.measured().samples(), 0);
        // Nor does one that asked nothing, as a health check.
        let mut client = Client::new(true);
        client.closes(flags);
        assert_eq!(client.measured().samples(), 0);
    }
}

#[test]
fn the_oracle_measures_such_clients_alike() {
    let mut client = Client::new(true);
    hello(&mut client);
    client.sends(64);
    for i in 0..40 {
        client.asks(5);
        client.sends(200);
        client.pauses(100 * US);
        client.sends(300);
        client.receives(SERVICE_NS, RESPONSE);
        client.acknowledges();
        client.pauses(205 * MS + i * US);
    }
    expects(&mut client);
    uploads(&mut client);
    for _ in 0..40 {
        client.asks(1);
        client.pauses(1130 * US);
    }
    client.closes(FIN);
    let (c, oracle) = (by_the_c(&client.packets), by_the_oracle(&client.packets));
    assert_eq!(c.len(), oracle.len());
    for (epoch, (sum, weight)) in &c {
        let (expected_sum, expected_weight) = oracle[epoch];
        assert_eq!(*weight, expected_weight);
        let off = sum.abs_diff(expected_sum) / weight;
        assert!(off < 5 * US, "{off} ns");
    }
}

/// HTTP/2 inside TLS 1.3: preface, SETTINGS and the first request leave in one packet.
fn http2(client: &mut Client, first: u32) {
    hello(client);
    client.sends(64);
    client.pauses(60 * US);
    client.sends(first);
    client.receives(300 * US, 326);
    // The acknowledgement of the server's SETTINGS.
    client.sends(31);
}

#[test]
fn frames_that_keep_a_connection_going_are_no_requests() {
    // Two WINDOW_UPDATEs for each 4 KB of a response of 64 KB, which takes 25 ms.
    let mut client = Client::new(true);
    http2(&mut client, 128);
    client.receives(SERVICE_NS, RESPONSE);
    for _ in 0..60 {
        client.sends(60);
        for _ in 0..16 {
            client.receives(25 * MS / 16, 4096);
            client.acknowledges();
            client.sends(48);
        }
    }
    client.closes(FIN);
    let tally = client.measured();
    assert_eq!((tally.window, tally.samples()), (1, 61));
    assert!(off_pct(&tally, (60 * 25 * MS + SERVICE_NS) / 61).abs() < 3.0);
}

#[test]
fn small_requests_are_requests() {
    // Redis and memcached, and HTTP/2 whose header fields are all in its table.
    for len in [9, 14, 24, 31, 35, 39, 48] {
        let mut client = Client::new(true);
        for _ in 0..100 {
            client.sends(len);
            client.receives(SERVICE_NS, 60);
        }
        client.closes(FIN);
        let tally = client.measured();
        assert_eq!(tally.samples(), 100, "{len} bytes");
        assert!(off_pct(&tally, SERVICE_NS).abs() < 0.2, "{len} bytes");
    }
    // Those of the size of a WINDOW_UPDATE are seen as such where HTTP/2 is known.
    for len in [35, 48] {
        let mut client = Client::new(true);
        http2(&mut client, 128);
        client.receives(SERVICE_NS, RESPONSE);
        for _ in 0..100 {
            client.sends(len);
            client.receives(SERVICE_NS, 60);
        }
        client.closes(FIN);
        let quality = client.measured().confidence().quality;
        assert!(quality <= Quality::Low, "{len} bytes");
    }
}

#[test]
fn tls_closes_a_connection_too() {
    // The server has closed; its reset takes the client's FIN away.
    let mut client = Client::new(true);
    hello(&mut client);
    client.sends(80);
    client.receives(300 * US, 542);
    client.asks(1);
    client.sends(24);
    let tally = client.measured();
    assert_eq!(tally.samples(), 1);
    assert!(off_pct(&tally, SERVICE_NS).abs() < 0.2);
}

#[test]
fn an_old_echo_of_the_handshake_is_no_idle_time() {
    // One ACK covers the server's tickets and its first response, and echoes the tickets.
    let mut client = Client::new(true);
    hello(&mut client);
    client.sends(80);
    client.receives(20 * MS, 271);
    let tickets_ns = client.sent_ns;
    client.sends(110);
    client.receives(25 * MS, 391);
    client.sent_ns = tickets_ns;
    client.acknowledges();
    client.pauses(100 * US);
    client.closes(FIN);
    let tally = client.measured();
    assert_eq!(tally.samples(), 1);
    assert!(off_pct(&tally, 25 * MS).abs() < 0.2);
}

#[test]
fn a_busy_client_may_read_a_first_response_of_tls_late() {
    // One connection for one request of TLS; the ACK leaves when the program reads.
    let measured = |timestamps, response_ns| {
        let mut client = Client::new(timestamps);
        hello(&mut client);
        client.sends(80);
        client.receives(0, 271);
        let tickets_ns = client.sent_ns;
        client.sends(110);
        client.receives(response_ns, 686);
        client.sent_ns = tickets_ns;
        client.acknowledges();
        client.closes(FIN);
        client.measured()
    };
    for (timestamps, ms, low, narrow) in [
        (true, 2, 2, false),
        (true, 5, 2, false),
        (true, 8, 0, true),
        (true, 20, 0, false),
        (false, 5, 2, false),
        (false, 20, 0, false),
    ] {
        let tally = measured(timestamps, ms * MS);
        assert_eq!(tally.samples(), 1, "{ms} ms");
        assert_eq!(
            (tally.bound_halves, tally.narrow),
            (low, narrow),
            "{ms} ms, timestamps {timestamps}"
        );
    }
}

/// A page over HTTP/2: ten requests in the first packet, one acknowledgement of all that came,
/// and the connection is closed.
#[test]
fn the_end_of_several_streams_is_graded_low() {
    let mut all = Tally::default();
    for _ in 0..20 {
        let mut client = Client::new(true);
        http2(&mut client, 344);
        client.receives(20 * MS, 10 * RESPONSE);
        client.acknowledges();
        client.pauses(100 * US);
        client.closes(FIN);
        all.merge(&client.measured());
    }
    assert_eq!(all.samples(), 20);
    assert_eq!(all.confidence().quality, Quality::Low, "{all:?}");
}

#[test]
fn an_end_that_alone_acknowledges_dates_nothing() {
    // No timestamps: what the end says is as low as what the requests before it said.
    for pause_ms in [0, 20] {
        let mut client = Client::new(false);
        client.asks(5);
        client.pauses(pause_ms * MS);
        client.closes(FIN);
        let tally = client.measured();
        assert_eq!(tally.samples(), 5);
        assert_eq!(
            tally.bound_halves, tally.weight_halves,
            "{pause_ms} ms: {tally:?}"
        );
    }
    // With them the pause shows.
    let mut client = Client::new(true);
    client.asks(5);
    client.pauses(20 * MS);
    client.closes(FIN);
    let tally = client.measured();
    assert_eq!((tally.samples(), tally.bound_halves), (5, 0));
    assert!(off_pct(&tally, SERVICE_NS).abs() < 3.0);
}

#[test]
fn what_a_delayed_ack_may_hide_is_graded_low() {
    for pause_ms in [10, 20, 60, 100, 300] {
        let mut client = Client::new(false);
        for _ in 0..60 {
            client.asks(1);
            // An ACK of its own, 40 ms after the response, unless a request takes it along.
            if pause_ms > 40 {
                client.pauses(40 * MS);
                client.acknowledges();
                client.pauses((pause_ms - 40) * MS);
            } else {
                client.pauses(pause_ms * MS);
            }
        }
        let quality = client.measured().confidence().quality;
        // Where all that there is are such bounds, there is no estimate.
        assert!(quality <= Quality::Low, "{pause_ms} ms");
    }
}

#[test]
fn one_delayed_ack_among_many_is_a_bound() {
    let mut client = Client::new(false);
    for turn in 0..40 {
        client.asks(1);
        // Most at once, one in ten late; the last one no request follows.
        if turn % 10 == 9 {
            client.pauses(40 * MS);
        }
        client.acknowledges();
        client.pauses(60 * MS);
    }
    assert_eq!(client.measured().bound_halves, 2 * 3);
}

#[test]
fn a_server_that_turns_slow_is_no_delayed_ack() {
    let mut client = Client::new(false);
    for (service_ms, turns) in [(5, 40), (50, 80)] {
        for _ in 0..turns {
            client.sends(REQUEST);
            client.receives(service_ms * MS, RESPONSE);
            client.acknowledges();
            client.pauses(60 * MS);
        }
    }
    // It looks like one until that is typical.
    let tally = client.measured();
    assert!(tally.bound_halves < tally.weight_halves / 4, "{tally:?}");
}

#[test]
fn several_streams_of_http2_are_graded_low() {
    // Ten requests in the first packet; then each response sets one off.
    let mut client = Client::new(true);
    http2(&mut client, 344);
    for _ in 0..300 {
        client.receives(SERVICE_NS / 10, RESPONSE);
        client.sends(46);
    }
    assert_eq!(client.measured().confidence().quality, Quality::Low);
    // One at a time is measured well.
    let mut client = Client::new(true);
    http2(&mut client, 128);
    client.receives(SERVICE_NS, RESPONSE);
    client.asks(100);
    let tally = client.measured();
    assert_eq!(tally.confidence().quality, Quality::High);
    assert!(off_pct(&tally, SERVICE_NS).abs() < 1.0);
}

#[test]
fn streams_whose_requests_share_records_are_graded_low() {
    // Two streams, a request of 24 bytes each: a response sets one off, and now and then two
    // come together.
    let mut client = Client::new(true);
    http2(&mut client, 152);
    for turn in 0..300 {
        client.receives(SERVICE_NS / 2, RESPONSE);
        client.sends(if turn % 7 == 6 { 70 } else { 46 });
    }
    assert_eq!(client.measured().confidence().quality, Quality::Low);
    // Requests of one stream are of several sizes, some of which are twice others.
    let mut client = Client::new(true);
    http2(&mut client, 128);
    client.receives(SERVICE_NS, RESPONSE);
    for turn in 0..300 {
        client.sends([46, 61, 70, 52, 94][turn % 5]);
        client.receives(SERVICE_NS, RESPONSE);
    }
    let tally = client.measured();
    assert_eq!(tally.confidence().quality, Quality::High, "{tally:?}");
    assert!(off_pct(&tally, SERVICE_NS).abs() < 1.0);
}

/// A POST that waits for `100 Continue`, which comes at once; then its body of 20 KB.
fn expects(client: &mut Client) {
    client.sends(179);
    client.receives(100 * US, 25);
    client.acknowledges();
    client.pauses(50 * US);
    for _ in 0..13 {
        client.sends(1448);
        client.pauses(2 * US);
    }
    client.sends(1176);
    client.receives(SERVICE_NS, RESPONSE);
}

#[test]
fn an_interim_response_ends_nothing() {
    let mut client = Client::new(true);
    for _ in 0..60 {
        expects(&mut client);
    }
    client.closes(FIN);
    let tally = client.measured();
    assert_eq!((tally.window, tally.samples()), (1, 60));
    assert!(off_pct(&tally, SERVICE_NS + 178 * US).abs() < 1.0);
    // Nor does one in TLS.
    let mut client = Client::new(true);
    hello(&mut client);
    client.sends(64);
    for _ in 0..60 {
        client.sends(201);
        client.receives(SERVICE_NS, 47);
        client.sends(300);
        client.receives(SERVICE_NS, RESPONSE);
    }
    assert!(off_pct(&client.measured(), 2 * SERVICE_NS).abs() < 1.0);
}

#[test]
fn answers_that_are_all_as_short_are_none_of_them_interim() {
    // As Redis gives them: `$18`, a value, and the ends of lines.
    let mut client = Client::new(true);
    for _ in 0..60 {
        client.sends(140);
        client.receives(SERVICE_NS, 25);
    }
    let tally = client.measured();
    assert!(tally.samples() >= 57, "{tally:?}");
    assert!(off_pct(&tally, SERVICE_NS).abs() < 3.0);
}

/// What curl sends of a file: blocks of 64 KiB, each with a short packet at its end.
fn uploads(client: &mut Client) {
    client.sends(160);
    client.pauses(200 * US);
    for _ in 0..20 {
        for _ in 0..45 {
            client.sends(1448);
            client.pauses(10 * US);
        }
        client.sends(376);
        client.pauses(2 * MS);
    }
    client.receives(SERVICE_NS, RESPONSE);
}

#[test]
fn an_upload_is_one_request_however_it_is_cut() {
    let mut client = Client::new(true);
    for _ in 0..40 {
        uploads(&mut client);
    }
    client.closes(FIN);
    let tally = client.measured();
    assert_eq!((tally.window, tally.samples()), (1, 40));
    assert!(off_pct(&tally, SERVICE_NS + 20 * (450 * US + 2 * MS)).abs() < 1.0);
}

#[test]
fn a_client_of_four_requests_may_have_long_ones_among_them() {
    // Two batches in three have one; what follows it in the same batch is not of it.
    let lens = [11, 2070, 11, 532, 11, 4096, 11, 10_240, 532, 6144, 11, 11];
    let mut client = Client::new(true);
    for batch in 0..600 {
        for i in 0..4 {
            client.writes(lens[(4 * batch + i) % lens.len()], 1448);
            client.pauses(5 * US);
        }
        client.receives(SERVICE_NS, RESPONSE);
    }
    client.closes(FIN);
    let tally = client.measured();
    assert_eq!(tally.window, 4);
    assert!(tally.samples() >= 2300, "{}", tally.samples());
    let off = off_pct(&tally, SERVICE_NS + 20 * US);
    assert!(off.abs() < 2.0, "{off} %");
}

#[test]
fn a_pause_of_a_millisecond_is_no_response() {
    // Beside a response of 65 us nothing but a bound is left: the clock has ticks of 1 ms.
    for (service_ns, least) in [(65 * US, Quality::None), (20 * MS, Quality::High)] {
        let mut client = Client::new(true);
        client.asks(2);
        for i in 0..300 {
            client.sends(9);
            client.receives(service_ns + i % 7 * 31 * US, RESPONSE);
            client.pauses(1130 * US);
        }
        let tally = client.measured();
        let quality = tally.confidence().quality;
        assert!(quality >= least, "{quality}");
        if service_ns < MS {
            assert!(quality <= Quality::Low, "{quality}");
        } else {
            assert!(off_pct(&tally, service_ns + 93 * US).abs() < 3.0);
        }
    }
}

#[test]
fn pings_are_no_requests() {
    // gRPC measures the path every few calls; the server does so, too.
    let mut client = Client::new(true);
    client.sends(460);
    client.receives(300 * US, 64);
    for turn in 0..200_u32 {
        client.sends(257);
        if turn % 10 == 3 {
            client.receives(200 * US, 17);
            client.sends(17);
            client.pauses(100 * US);
        }
        if turn % 10 == 7 {
            client.sends(17);
        }
        client.receives(SERVICE_NS, 249);
        if turn % 10 == 5 {
            client.sends(17);
            client.pauses(60 * US);
        }
    }
    let tally = client.measured();
    assert_eq!(tally.window, 1);
    assert!(off_pct(&tally, SERVICE_NS).abs() < 3.0, "{tally:?}");
}

#[test]
fn window_updates_are_no_requests_where_pings_show_what_they_are() {
    // gRPC sends them just before each message, and PINGs behind them.
    for (update, before) in [(13, 0), (26, 9), (26, 22), (26, 26)] {
        let mut client = Client::new(true);
        client.sends(82);
        client.receives(200 * US, 46);
        client.sends(461);
        client.receives(300 * US, before + 17);
        client.sends(17);
        client.receives(SERVICE_NS, 327);
        for turn in 0..200_u32 {
            client.sends(update);
            client.sends(214);
            if turn % 10 == 3 {
                client.receives(200 * US, update + 17);
                client.sends(17);
                client.pauses(100 * US);
            }
            client.receives(SERVICE_NS, 249);
        }
        let tally = client.measured();
        assert_eq!(tally.window, 1, "{update}");
        assert!(
            off_pct(&tally, SERVICE_NS).abs() < 3.0,
            "{update}: {tally:?}"
        );
    }
}

#[test]
fn streams_are_told_without_a_packet_for_settings() {
    // The acknowledgement of SETTINGS leaves with ten requests; several more are as long as
    // what ends a handshake of TLS 1.2.
    let mut client = Client::new(true);
    hello(&mut client);
    client.sends(64);
    client.pauses(60 * US);
    client.sends(353);
    client.receives(SERVICE_NS, RESPONSE);
    for turn in 0..300 {
        client.sends(if turn % 3 == 0 { 118 } else { 46 });
        client.receives(SERVICE_NS / 4, RESPONSE);
    }
    assert_eq!(client.measured().confidence().quality, Quality::Low);
}

#[test]
fn streams_are_told_by_the_path() {
    // Eight requests leave at once; their responses are sooner than any round trip.
    let mut client = Client::new(true);
    client.packets.clear();
    client.packets.push(tcp_syn(client.now, 0));
    client.receives(20 * MS, 0);
    client.acknowledges();
    client.sends(517);
    client.receives(20 * MS, 782);
    client.acknowledges();
    client.sends(64);
    client.sends(700);
    client.receives(24 * MS, RESPONSE);
    for _ in 0..300 {
        client.sends(90);
        client.receives(3 * MS, RESPONSE);
    }
    let tally = client.measured();
    assert!(tally.window >= 7, "{tally:?}");
    assert!(off_pct(&tally, 24 * MS).abs() < 25.0, "{tally:?}");
}

/// A client that pauses, with a server whose timestamps tick as often as `tick_ns` says. It
/// acknowledges at once where it has nothing to send, as Linux does but for a second response.
fn behind_ticks_of(tick_ns: u64, service_ms: u64, pause_ms: u64) -> Tally {
    let mut client = Client::new(true);
    client.packets.clear();
    client.tick_ns = tick_ns;
    client.packets.push(tcp_syn(START_NS, 0));
    client.acknowledges();
    client.pauses(MS);
    for turn in 0..200_u32 {
        client.sends(REQUEST);
        client.receives(service_ms * MS, RESPONSE);
        let delayed_ms = if turn == 1 { 40 } else { 0 };
        if pause_ms > 40 {
            client.pauses(delayed_ms * MS);
            client.acknowledges();
        }
        let left_ms = pause_ms - if pause_ms > 40 { delayed_ms } else { 0 };
        client.pauses(left_ms * MS + u64::from(turn % 7) * 50 * US);
    }
    client.measured()
}

/// Some systems' timestamps tick every 4 or 10 ms, Linux's at a route's wish each microsecond.
/// What they date is off by more than pauses are long: a wrong latency is never graded better
/// than low.
#[test]
fn timestamps_of_other_ticks_date_nothing() {
    for tick_ns in [US, 4 * MS, 10 * MS] {
        for (service_ms, pause_ms) in [
            (5, 0),
            (5, 20),
            (25, 20),
            (5, 60),
            (5, 205),
            (25, 205),
            (5, 2000),
        ] {
            let tally = behind_ticks_of(tick_ns, service_ms, pause_ms);
            let off = off_pct(&tally, service_ms * MS);
            let quality = tally.confidence().quality;
            assert!(
                off.abs() < 10.0 || quality == Quality::Low,
                "ticks of {tick_ns} ns, {service_ms} ms, pauses of {pause_ms} ms: {off} %, {quality}"
            );
            if pause_ms > 40 {
                assert!(
                    quality > Quality::Low,
                    "{tick_ns} {service_ms} {pause_ms}: {tally:?}"
                );
            }
        }
    }
}

/// A connection of one request is measured by when its response is acknowledged, which an old
/// echo does not change.
#[test]
fn one_request_is_measured_behind_slow_timestamps() {
    for tick_ms in [1, 4, 10] {
        let mut all = Tally::default();
        for phase in 0..20 {
            let mut client = Client::new(true);
            client.tick_ns = tick_ms * MS;
            client.pauses(phase * 500 * US);
            client.packets.clear();
            client.packets.push(tcp_syn(client.now - 50 * US, 0));
            client.sent_ns = client.now - 25 * US;
            client.acknowledges();
            client.pauses(100 * US);
            client.sends(REQUEST);
            client.receives(SERVICE_NS, RESPONSE);
            client.acknowledges();
            client.pauses(300 * US);
            client.closes(FIN);
            all.merge(&client.measured());
        }
        assert_eq!(all.samples(), 20);
        let off = off_pct(&all, SERVICE_NS);
        assert!(off.abs() < 1.0, "ticks of {tick_ms} ms: {off} %");
    }
}

/// Two of a response's three segments are acknowledged at once, the last one at times 41 ms
/// later. Echoes date it to half a tick; without timestamps it may as well have come so late.
#[test]
fn the_last_segment_of_a_response_may_be_acknowledged_late() {
    for (timestamps, quality, most_pct) in [(true, Quality::High, 10.0), (false, Quality::Low, 1.0)]
    {
        let mut client = Client::new(timestamps);
        for i in 0..80 {
            client.sends(REQUEST);
            client.receives(SERVICE_NS, 2 * 1460);
            client.acknowledges();
            client.receives(0, 1253);
            client.pauses(if i % 2 == 0 { 41 * MS } else { 0 });
            client.acknowledges();
            client.pauses(250 * MS);
        }
        let tally = client.measured();
        let off = off_pct(&tally, SERVICE_NS);
        assert!(off.abs() < most_pct, "timestamps {timestamps}: {off} %");
        assert_eq!(tally.confidence().quality, quality, "{tally:?}");
    }
}

/// A busy client of TLS reads its one response late, and acknowledges it then. The echo shows that.
#[test]
fn a_response_that_is_read_late_is_dated_by_its_echo() {
    let mut all = Tally::default();
    for phase in 0..40 {
        let mut client = Client::new(true);
        client.pauses(phase * 137 * US);
        hello(&mut client);
        client.sends(80);
        // The tickets come, and the request acknowledges them.
        client.receives(300 * US, 542);
        client.sends(REQUEST);
        client.receives(SERVICE_NS, RESPONSE);
        client.pauses(2 * MS);
        client.acknowledges();
        client.pauses(30 * US);
        client.sends(24);
        client.closes(FIN);
        all.merge(&client.measured());
    }
    assert_eq!(all.samples(), 40);
    let off = off_pct(&all, SERVICE_NS);
    assert!(off.abs() < 10.0, "{off} % (40 % undated)");
}
