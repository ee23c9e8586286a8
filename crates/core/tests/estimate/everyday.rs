// SPDX-License-Identifier: Apache-2.0
//! What everybody's clients do between their requests: they open TLS, send a head and
//! then its body, pause, and close. None of it is a request, and none hides one.

use causeway_core::estimate::{Estimator, Method, Packet, Tally};

use super::against_oracle::{by_the_c, by_the_oracle};
use super::clients::{tally, tcp_ack, tcp_request, tcp_syn};
use super::workload::Rng;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const START_NS: u64 = 1_700_000_000_123_456_789;
const SERVICE_NS: u64 = 5 * MS;
const REQUEST: u32 = 94;
const RESPONSE: u32 = 340;

/// One connection of a client with one request at a time.
struct Client {
    packets: Vec<Packet>,
    timestamps: bool,
    now: u64,
    /// When the server sent what the client has.
    sent_ns: u64,
    seq: u32,
    ack: u32,
}

impl Client {
    fn new(timestamps: bool) -> Self {
        let mut client = Self {
            packets: vec![tcp_syn(START_NS, 0)],
            timestamps,
            now: START_NS + 50 * US,
            sent_ns: START_NS + 25 * US,
            seq: 1,
            ack: 1,
        };
        client.acknowledges();
        client.pauses(MS);
        client
    }

    fn push(&mut self, packet: Packet) {
        self.packets.push(Packet {
            has_ts: self.timestamps,
            tsecr: (self.sent_ns / MS) as u32,
            ..packet
        });
        self.seq += packet.payload_len;
    }

    fn sends(&mut self, len: u32) {
        self.push(tcp_request(self.now, self.seq, len, self.ack));
    }

    fn acknowledges(&mut self) {
        self.push(tcp_ack(self.now, self.seq, self.ack));
    }

    /// A response of `len` bytes is there, `after_ns` from now.
    fn receives(&mut self, after_ns: u64, len: u32) {
        self.now += after_ns;
        self.sent_ns = self.now;
        self.ack += len;
    }

    /// `count` requests, each as soon as the response to the last one is there.
    fn asks(&mut self, count: u32) {
        for _ in 0..count {
            self.sends(REQUEST);
            self.receives(SERVICE_NS, RESPONSE);
        }
    }

    fn pauses(&mut self, pause_ns: u64) {
        self.now += pause_ns;
    }

    fn closes(&mut self, tcp_flags: u8) {
        let packet = tcp_ack(self.now, self.seq, self.ack);
        self.push(Packet {
            tcp_flags,
            ..packet
        });
    }

    fn measured(self) -> Tally {
        tally(&mut Estimator::new(&Method::WindowChain), self.packets)
    }
}

const FIN: u8 = Packet::FIN | Packet::ACK;

/// Off the expected mean, in percent.
fn off_pct(tally: &Tally, expected_ns: u64) -> f64 {
    let mean_ns = tally.mean_ns().expect("samples");
    (mean_ns / expected_ns as f64 - 1.0) * 100.0
}

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
    let off = off_pct(&client.measured(), SERVICE_NS);
    assert!(off.abs() < 10.0, "{off} %");
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
