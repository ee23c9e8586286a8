// SPDX-License-Identifier: Apache-2.0
//! HTTP/3 as quinn sends it: several requests in a datagram, ACKs on their own.

use std::collections::VecDeque;

use causeway_core::estimate::{Estimator, Method, Packet, Quality, Tally};

use super::clients::{datagram, tally};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const START_NS: u64 = 1_700_000_000_123_456_789;
/// Payload that surrounds the requests of a datagram, and that each one adds.
const AROUND: u32 = 26;
const REQUEST: u32 = 32;
const ACK: u32 = 34;

/// A client with `window` streams.
struct Client {
    window: usize,
    packets: Vec<Packet>,
    t_ns: u64,
    sent_ns: VecDeque<u64>,
    latencies_ns: Vec<u64>,
}

impl Client {
    /// After its handshake.
    fn new(window: usize) -> Self {
        let handshake = [1200, 1200, 138, 104, 54];
        let at = |i: usize| START_NS + i as u64 * 500 * US;
        Self {
            window,
            packets: handshake
                .iter()
                .enumerate()
                .map(|(i, &len)| datagram(at(i), len))
                .collect(),
            t_ns: START_NS + 5 * MS,
            sent_ns: VecDeque::new(),
            latencies_ns: Vec::new(),
        }
    }

    fn send(&mut self, n: usize) {
        let len = AROUND + n as u32 * REQUEST;
        self.packets.push(datagram(self.t_ns, len));
        self.sent_ns.extend(vec![self.t_ns; n]);
    }

    /// The oldest request is answered after a while, and acknowledged.
    fn answer(&mut self, after_ns: u64) {
        self.t_ns += after_ns;
        self.packets.push(datagram(self.t_ns - 20 * US, ACK));
        let sent = self.sent_ns.pop_front().expect("outstanding");
        self.latencies_ns.push(self.t_ns - sent);
    }

    /// A page: its root, then `rounds` windows of objects, each response setting off
    /// one request, those of the last window none.
    fn page(&mut self, rounds: usize) {
        self.send(1);
        self.answer(3 * MS);
        self.send(self.window);
        for left in (0..rounds * self.window).rev() {
            self.answer(500 * US);
            if left >= self.window {
                self.send(1);
            }
        }
    }

    /// What is found, and by how many percent its mean is off.
    fn measured(self) -> (Tally, f64) {
        let truth_ns = self.latencies_ns.iter().sum::<u64>() / self.latencies_ns.len() as u64;
        let tally = tally(&mut Estimator::new(&Method::WindowChain), self.packets);
        let mean_ns = tally.mean_ns().expect("samples");
        (tally, (mean_ns / truth_ns as f64 - 1.0) * 100.0)
    }
}

#[test]
fn requests_in_a_datagram_are_counted_up_to_sixteen() {
    for window in [2, 4, 8, 12, 16] {
        let mut client = Client::new(window);
        (0..40).for_each(|_| client.page(4));
        let (tally, off) = client.measured();
        assert_eq!(usize::from(tally.window), window);
        assert!(off.abs() < 5.0, "W={window}: {off} %");
    }
}

/// Which response a request follows is encrypted, so that with many streams a good estimate looks
/// like a bad one.
#[test]
fn several_streams_are_graded_by_how_many_there_are() {
    use Quality::{High, Low, Medium};
    for (window, quality) in [
        (1, High),
        (2, High),
        (3, Medium),
        (7, Medium),
        (8, Low),
        (16, Low),
    ] {
        let mut client = Client::new(window);
        (0..400).for_each(|_| client.page(4));
        let (tally, _) = client.measured();
        let found = (usize::from(tally.window), tally.confidence().quality);
        assert_eq!(found, (window, quality));
    }
}

#[test]
fn silent_acks_tell_when_the_last_responses_of_a_page_came() {
    // Most responses set nothing off.
    let mut client = Client::new(8);
    (0..100).for_each(|_| client.page(2));
    let answered = client.latencies_ns.len() as f64;
    let (tally, off) = client.measured();
    assert!(tally.samples() as f64 > 0.95 * answered);
    assert!(off.abs() < 3.0, "{off} %");
}

#[test]
fn the_handshake_is_no_burst_of_requests() {
    let mut client = Client::new(1);
    for _ in 0..100 {
        client.send(1);
        client.answer(250 * MS);
    }
    let (_, off) = client.measured();
    // Its own round trips, which are fast, are among the samples.
    assert!((-6.0..1.0).contains(&off), "{off} %");
}

/// Packets of one flow on two CPUs: a request is stamped before the acknowledgement that came
/// first. Its client has not been idle.
#[test]
fn a_request_older_than_the_ack_before_it_begins_no_page() {
    let mut client = Client::new(1);
    for _ in 0..100 {
        client.send(1);
        client.answer(3 * MS);
        let acknowledged = client.packets.last_mut().expect("an ACK");
        acknowledged.t_ns = client.t_ns + 100 * US;
    }
    let (tally, off) = client.measured();
    assert!(tally.samples() > 95, "{tally:?}");
    assert!(off.abs() < 5.0, "{off} %");
}
