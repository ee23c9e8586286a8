// SPDX-License-Identifier: Apache-2.0

//! Requests beside bulk: what is read ahead, and who is sent first. Frames that take long go
//! over several paths.

mod kit;

use causeway_bifrost::{DeliveryVerdict, Span, Transmit, TransportConfig, TransportEngine};

use kit::{PATH, SLOT, engine, engine_with, meet, meet_over, path_of, receive_all, sent};

const BULK: u64 = 1;
const REQUEST: u64 = 2;

fn offer(engine: &mut TransportEngine, now_ns: u64, len: u32, flow: u64) {
    let span = Span {
        slot: SLOT,
        offset: 0,
        len,
    };
    engine
        .handle_frame(now_ns, span, flow)
        .expect("there is room");
}

/// Bulk as long as it is taken. Gives the number of frames.
fn fill(engine: &mut TransportEngine, now_ns: u64) -> u32 {
    let mut count = 0;
    while engine.can_accept() {
        offer(engine, now_ns, 60_000, BULK);
        count += 1;
    }
    count
}

/// Two ends of which the first has sent all that its window lets through, and how many frames
/// it took until it took no more.
fn filled(config: TransportConfig) -> ([TransportEngine; 2], u64, u32) {
    let mut ends = [1, 2].map(engine);
    ends[0]
        .reconfigure(0, config)
        .expect("the settings are valid");
    let mut now_ns = meet(&mut ends);
    // The window grows, and what a time lets through is known.
    for _ in 0..20 {
        fill(&mut ends[0], now_ns);
        for index in [0, 1] {
            now_ns += 50_000;
            ends[index].handle_timeout(now_ns);
            let datagrams = sent(&mut ends[index], now_ns);
            receive_all(&mut ends[1 - index], now_ns, &datagrams);
            while let Some(delivery) = ends[1 - index].poll_deliver() {
                let token = delivery.token;
                ends[1 - index].delivered(now_ns, token, DeliveryVerdict::Ok);
            }
        }
    }
    let count = fill(&mut ends[0], now_ns);
    (ends, now_ns, count)
}

#[test]
fn bulk_alone_is_not_read_ahead() {
    let (mut ends, now_ns, _) = filled(TransportConfig::default());
    let mut batch = Transmit::default();
    while ends[0].poll_transmit(now_ns, &mut batch) {}
    let path = ends[0].path_metrics(PATH).expect("there is a path");
    // A frame more than the window at most.
    let metrics = ends[0].metrics();
    assert!(
        metrics.frame_bytes_held <= path.window_bytes + 2 * 60_000,
        "{metrics:?}"
    );
    assert_eq!(fill(&mut ends[0], now_ns), 0);
}

#[test]
fn beside_requests_bulk_is_read_ahead_and_requests_go_first() {
    let (mut ends, mut now_ns, _) = filled(TransportConfig::default());
    let mut batch = Transmit::default();
    while ends[0].poll_transmit(now_ns, &mut batch) {}
    offer(&mut ends[0], now_ns, 200, REQUEST);
    let more = fill(&mut ends[0], now_ns);
    assert!(more > 2, "{more} frames are read ahead");
    // Twenty milliseconds and a frame at most, as long as nothing is sent.
    let path = ends[0].path_metrics(PATH).expect("there is a path");
    let most = path.window_bytes * 20_000_000 / path.srtt_ns;
    assert!(
        u64::from(more) * 60_000 <= most + 60_000,
        "{more} of {most}"
    );

    offer(&mut ends[0], now_ns, 300, REQUEST);
    // Room in the window.
    now_ns += 300_000;
    ends[1].handle_timeout(now_ns);
    let answers = sent(&mut ends[1], now_ns);
    receive_all(&mut ends[0], now_ns, &answers);
    let mut sizes = Vec::new();
    while ends[0].poll_transmit(now_ns, &mut batch) {
        let payload = batch.datagrams.iter().map(|segment| segment.payload.len);
        sizes.extend(payload.filter(|len| *len > 0));
    }
    assert_eq!(sizes.get(..2), Some(&[200, 300][..]), "{sizes:?}");
    assert!(sizes.len() > 10);
}

#[test]
fn without_time_to_read_ahead_the_window_is_the_limit() {
    let config = TransportConfig {
        read_ahead_ns: 0,
        ..TransportConfig::default()
    };
    let (mut ends, now_ns, _) = filled(config);
    let mut batch = Transmit::default();
    while ends[0].poll_transmit(now_ns, &mut batch) {}
    offer(&mut ends[0], now_ns, 200, REQUEST);
    assert_eq!(fill(&mut ends[0], now_ns), 0);
}

/// The paths of a frame's datagrams, in the order in which they are sent, when a datagram
/// takes `delay_ns`.
fn paths_of_a_frame(delay_ns: u64) -> Vec<u8> {
    let mut ends = [1, 2].map(|instance| engine_with(instance, 2));
    let mut now_ns = meet_over(&mut ends, delay_ns);
    // Both paths' windows are as they begin: 32 datagrams of 1500 bytes.
    now_ns += delay_ns;
    offer(&mut ends[0], now_ns, 30_000, BULK);
    let data = |datagram: &Vec<u8>| datagram.len() > 1000;
    let all = sent(&mut ends[0], now_ns);
    all.iter()
        .filter(|one| data(one))
        .map(|one| path_of(one).0)
        .collect()
}

#[test]
fn a_frame_goes_whole_where_that_is_quick_and_in_pieces_where_it_is_not() {
    let quick = paths_of_a_frame(10_000);
    assert_eq!(quick, vec![quick[0]; 21]);
    // A window of 48 kB in a round trip of 1 ms: 12 kB, eight datagrams, in a quarter of that. The
    // other path is the better one then.
    let slow = paths_of_a_frame(1_000_000);
    let pieces: Vec<usize> = slow.chunk_by(|a, b| a == b).map(<[u8]>::len).collect();
    assert_eq!(pieces, [8, 13], "{slow:?}");
}
