// SPDX-License-Identifier: Apache-2.0
//! What distinguishes a page's beginning from one response among others, a request in one large
//! buffer from a part of one, and a lost request from an idle client.

use std::collections::VecDeque;

use causeway_core::estimate::{Estimator, Method, Packet, Quality, Tally};

use super::clients::{tally, tcp_ack, tcp_request, tcp_syn};
use super::workload::Rng;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const START_NS: u64 = 1_700_000_000_123_456_789;

/// A connection whose client sends bursts, each set off by responses of this many bytes in all.
struct Connection {
    packets: Vec<Packet>,
    seq: u32,
    ack: u32,
}

impl Connection {
    fn new(handshake_ns: u64) -> Self {
        Self {
            packets: vec![tcp_syn(START_NS, 0), tcp_ack(START_NS + handshake_ns, 1, 1)],
            seq: 1,
            ack: 1,
        }
    }

    /// `n` requests of `len` bytes at `t_ns`, after `acked` more bytes came 10 us
    /// before.
    fn burst(&mut self, t_ns: u64, n: u32, len: u32, acked: u32) {
        if acked > 0 {
            self.ack += acked;
            self.packets
                .push(tcp_ack(t_ns - 10 * US, self.seq, self.ack));
        }
        for i in 0..n {
            let at = t_ns + u64::from(i) * US;
            self.packets.push(tcp_request(at, self.seq, len, self.ack));
            self.seq += len;
        }
    }

    fn measured(self) -> Tally {
        let mut flow = Estimator::new(&Method::WindowChain);
        tally(&mut flow, self.packets)
    }
}

/// Off the expected mean in percent.
fn off_pct(tally: &Tally, expected_ms: f64) -> f64 {
    let mean_ns = tally.mean_ns().expect("samples");
    (mean_ns / 1e6 / expected_ms - 1.0) * 100.0
}

#[test]
fn a_response_that_blocks_the_others_is_no_page_begin() {
    let mut connection = Connection::new(50 * US);
    let mut t_ns = START_NS + MS;
    connection.burst(t_ns, 4, 100, 0);
    for _ in 0..200 {
        // One response after 2 ms; the second takes 6 ms and blocks all others.
        connection.burst(t_ns + 2 * MS, 1, 100, 1000);
        connection.burst(t_ns + 6 * MS, 4, 100, 4000);
        t_ns += 6 * MS;
    }
    let tally = connection.measured();
    assert_eq!(tally.window, 4);
    let off = off_pct(&tally, (2.0 + 3.0 * 6.0 + 4.0) / 5.0);
    assert!(off.abs() < 1.5, "{off} %");
}

#[test]
fn a_page_begin_is_known_by_the_bytes_before_it() {
    let mut connection = Connection::new(50 * US);
    let mut t_ns = START_NS + MS;
    connection.burst(t_ns, 1, 100, 0);
    for _ in 0..200 {
        // The root takes 4 ms, then its four objects 5 ms.
        connection.burst(t_ns + 4 * MS, 4, 100, 1000);
        connection.burst(t_ns + 9 * MS, 1, 100, 4000);
        t_ns += 9 * MS;
    }
    let tally = connection.measured();
    let off = off_pct(&tally, (4.0 + 4.0 * 5.0) / 5.0);
    assert!(off.abs() < 8.0, "{off} %");
    // As if every single request were one among others: 4 and 9 ms.
    assert!(tally.mean_ns().is_some_and(|ns| ns < 5.2e6));
}

#[test]
fn a_request_in_one_buffer_ends_with_it() {
    let mut connection = Connection::new(50 * US);
    for i in 0..1000 {
        let t_ns = START_NS + MS + i * 300 * US;
        let len = if i % 3 == 0 { 10_264 } else { 40 };
        connection.burst(t_ns, 1, len, if i == 0 { 0 } else { 500 });
    }
    let tally = connection.measured();
    assert!(tally.samples() >= 998, "{} samples", tally.samples());
    let off = off_pct(&tally, 0.3);
    assert!(off.abs() < 1.5, "{off} %");
}

#[test]
fn full_segments_in_one_buffer_are_continued() {
    let mut connection = Connection::new(50 * US);
    for i in 0..200 {
        let t_ns = START_NS + MS + i * 20 * MS;
        // An upload of 40 segments and a rest, as the congestion window lets it go.
        connection.burst(t_ns, 1, 20 * 1448, if i == 0 { 0 } else { 500 });
        connection.burst(t_ns + 2 * MS, 1, 20 * 1448, 0);
        connection.burst(t_ns + 4 * MS, 1, 700, 0);
    }
    let tally = connection.measured();
    assert_eq!(tally.window, 1);
    assert_eq!(tally.samples(), 199);
    let off = off_pct(&tally, 20.0);
    assert!(off.abs() < 0.1, "{off} %");
}

/// Now and then a POST of three packets on a path of this MTU, in segments or in buffers of
/// several, and many GETs of 5 ms.
fn with_posts(post: &[u32]) -> Tally {
    let mut connection = Connection::new(50 * US);
    let mut t_ns = START_NS + MS;
    for _ in 0..20 {
        for (i, len) in post.iter().enumerate() {
            let acked = if i == 0 { 500 } else { 0 };
            connection.burst(t_ns + i as u64 * 10 * US, 1, *len, acked);
        }
        for _ in 0..49 {
            t_ns += 5 * MS;
            connection.burst(t_ns, 1, 100, 500);
        }
        t_ns += 5 * MS;
    }
    connection.measured()
}

#[test]
fn an_upload_is_one_request_on_a_path_of_any_mtu() {
    let in_segments = |mtu: u32| vec![mtu - 52, mtu - 52, 2102];
    let in_buffers = |mtu: u32| vec![mtu - 52, 10 * (mtu - 52), 10 * (mtu - 52), 700];
    let posts = [9000, 9001, 8896].map(in_segments);
    for post in posts.into_iter().chain([1500, 1492, 1400].map(in_buffers)) {
        let tally = with_posts(&post);
        assert_eq!(tally.window, 1, "{post:?}");
        let off = off_pct(&tally, 5.0);
        assert!(off.abs() < 1.0, "{post:?}: {off} %");
    }
}

#[test]
fn a_slow_handshake_does_not_widen_the_window() {
    // The SYN was retransmitted; the path takes 20 ms, not 60.
    let mut connection = Connection::new(60 * MS);
    let begin_ns = START_NS + 100 * MS;
    connection.burst(begin_ns, 1, 100, 0);
    // From then on four requests are always out, each for 22 ms, 5.5 ms apart.
    connection.burst(begin_ns + 20 * MS, 4, 100, 1000);
    for i in 0..400 {
        let t_ns = begin_ns + 42 * MS + i * 5500 * US;
        connection.burst(t_ns, 1, 100, 1000);
    }
    let tally = connection.measured();
    assert!(tally.window <= 5, "W = {}", tally.window);
    let off = off_pct(&tally, 22.0);
    assert!(off.abs() < 3.0, "{off} %");
}

/// Four requests are always out over a path of 20 ms, each served in 1 to 7 ms, and
/// responses keep the order of the requests. The handshake took as long as it says.
/// Gives what is found, and the true mean in milliseconds.
fn over_a_path_of_20_ms(handshake_ns: u64) -> (Tally, f64) {
    let mut rng = Rng(7);
    let mut connection = Connection::new(handshake_ns);
    let mut t_ns = START_NS + 100 * MS;
    connection.burst(t_ns, 1, 100, 0);
    let mut out: VecDeque<(u64, u64)> = VecDeque::new();
    let (mut sum_ns, mut count) = (0, 0);
    for i in 0..3000 {
        // The first response is a slow one: it does not bound the path below that.
        let (sent_ns, done_ns) = out.pop_front().unwrap_or((t_ns, t_ns + 27 * MS));
        t_ns = t_ns.max(done_ns);
        sum_ns += t_ns - sent_ns;
        count += 1;
        let n = if i == 0 { 4 } else { 1 };
        connection.burst(t_ns, n, 100, 1000);
        for _ in 0..n {
            out.push_back((t_ns, t_ns + 21 * MS + rng.below(6 * MS)));
        }
    }
    (
        connection.measured(),
        sum_ns as f64 / f64::from(count) / 1e6,
    )
}

#[test]
fn a_handshake_that_was_late_does_not_lengthen_the_path() {
    for late_ms in [0, 2, 4, 7, 30] {
        let (tally, expected_ms) = over_a_path_of_20_ms((20 + late_ms) * MS);
        let off = off_pct(&tally, expected_ms);
        assert!(off.abs() < 1.5, "{late_ms} ms late: {off} %");
        assert_eq!(tally.window, 4, "{late_ms} ms late");
    }
}

/// Responses after 2 ms; at each pause the client acknowledges one at once and sends its next
/// request only after this many milliseconds.
fn with_pauses(pauses_ms: &[u64]) -> Tally {
    let mut connection = Connection::new(50 * US);
    let mut t_ns = START_NS + MS;
    connection.burst(t_ns, 1, 100, 0);
    for pause_ms in pauses_ms {
        for _ in 0..20 {
            t_ns += 2 * MS;
            connection.burst(t_ns, 1, 100, 500);
        }
        t_ns += 2 * MS;
        connection.ack += 500;
        let acknowledged = tcp_ack(t_ns, connection.seq, connection.ack);
        connection.packets.push(acknowledged);
        t_ns += pause_ms * MS;
        connection.burst(t_ns, 1, 100, 0);
    }
    connection.burst(t_ns + 2 * MS, 1, 100, 500);
    connection.measured()
}

#[test]
fn a_request_lost_on_its_way_is_as_old_as_the_clients_timer() {
    let tally = with_pauses(&[204, 203, 206]);
    let lost_ms = 204.0 + 203.0 + 206.0 + 3.0 * 2.0;
    let off = off_pct(&tally, (61.0 * 2.0 + lost_ms) / 64.0);
    assert!(off.abs() < 1.0, "{off} %");
    // That the client was idle for just that long cannot be ruled out.
    assert_eq!((tally.samples(), tally.bound_halves), (64, 2 * 3));
}

#[test]
fn a_client_that_pauses_for_any_time_is_idle_also_for_200_ms() {
    let tally = with_pauses(&[330, 90, 204, 120, 203, 700]);
    let off = off_pct(&tally, 2.0);
    assert!(off.abs() < 1.0, "{off} %");
    assert_eq!(tally.bound_halves, 0);
}

/// Pages of a client with `window` requests out, of a server that answers each connection's
/// one after the other, each after `service_ms`. `held_ms(i)` is how long the client's program is held
/// up before the request that response `i` sets off. Gives what is found of each page, and the
/// true mean of each in milliseconds.
fn pages(
    window: u32,
    pages: usize,
    service_ms: u64,
    held_ms: impl Fn(usize) -> u64,
) -> Vec<(Tally, f64)> {
    let mut connection = Connection::new(50 * US);
    let mut flow = Estimator::new(&Method::WindowChain);
    let mut t_ns = START_NS + MS;
    let mut found = Vec::new();
    for _ in 0..pages {
        // A page is one document, and then 40 objects.
        let mut out = VecDeque::from([t_ns]);
        let (mut sum_ns, mut asked, mut free_ns) = (0, 1, t_ns);
        connection.burst(t_ns, 1, 100, 0);
        for i in 0..41 {
            let sent_ns = out.pop_front().expect("a request");
            free_ns = free_ns.max(sent_ns) + service_ms * MS;
            sum_ns += free_ns - sent_ns;
            t_ns = t_ns.max(free_ns);
            let n = if i == 0 {
                window
            } else {
                u32::from(asked < 41)
            };
            asked += n;
            // The kernel acknowledges what the program has not read yet.
            connection.ack += 1000;
            let acknowledged = tcp_ack(t_ns, connection.seq, connection.ack);
            connection.packets.push(acknowledged);
            t_ns += 10 * US + held_ms(i) * MS;
            connection.burst(t_ns, n, 100, 0);
            out.extend((0..n).map(|_| t_ns));
        }
        t_ns += 50 * service_ms * MS;
        let mut tally = Tally::default();
        for packet in connection.packets.drain(..) {
            let samples = flow.packet(&packet);
            samples.iter().for_each(|sample| tally.add(sample));
        }
        found.push((tally, sum_ns as f64 / 41e6));
    }
    found
}

#[test]
fn a_client_that_is_held_up_has_its_other_requests_out_all_the_same() {
    // A program that waits for a processor: no page has ended. Behind the wait the oldest of
    // four requests of 240 ms is older than the ring tells in its first unit.
    for (service_ms, held_ms) in [(6, 4), (60, 50)] {
        let held_ms = |i| if i % 9 == 5 { held_ms } else { 0 };
        let found = pages(4, 6, service_ms, held_ms);
        for (page, (tally, expected_ms)) in found.iter().enumerate().skip(1) {
            let off = off_pct(tally, *expected_ms);
            assert!(off.abs() < 8.0, "{service_ms} ms, page {page}: {off} %");
        }
    }
}

#[test]
fn two_requests_at_a_time_are_known_once_two_pages_have_shown_them() {
    let found = pages(2, 6, 6, |_| 0);
    // Two packets at a time may be one request in two parts. Until that is known, no sample
    // is one that others are judged by.
    let (first, _) = &found[0];
    assert_eq!(first.confidence().quality, Quality::Low, "{first:?}");
    for (page, (tally, expected_ms)) in found.iter().enumerate().skip(2) {
        assert_eq!(tally.window, 2);
        assert_eq!(tally.bound_halves, 0, "page {page}");
        let off = off_pct(tally, *expected_ms);
        assert!(off.abs() < 5.0, "page {page}: {off} %");
    }
}
