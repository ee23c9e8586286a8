// SPDX-License-Identifier: Apache-2.0

//! Paths that are long, and paths of which one is longer than another.

mod kit;

use causeway_bifrost::wire::{CommonHeader, PacketKind};
use causeway_bifrost::{DropReason, PathId, PathState};

use kit::{Net, PATH, path_of};

const MS: u64 = 1_000_000;

#[test]
fn lone_messages_on_a_long_path_do_not_time_out() {
    let mut net = Net::new(&[5 * MS]);
    for _ in 0..100 {
        net.offer(200, 1);
        net.run(50 * MS, |_| true);
    }
    let path = net.ends[0].path_metrics(PATH).expect("there is a path");
    assert_eq!((path.acked_chunks, path.timeouts), (100, 0), "{path:?}");
}

#[test]
fn what_is_lost_on_a_path_of_any_length_is_sent_again() {
    for (delay_ms, len) in [(90, 200), (110, 200), (110, 30_000), (400, 200)] {
        let mut net = Net::new(&[delay_ms * MS]);
        net.run(10_000 * MS, |_| true);
        net.sent.clear();
        net.offer(len, 1);
        let mut first = true;
        net.run(5_000 * MS, |one| {
            !(is_data(one) && std::mem::take(&mut first))
        });
        let data: Vec<&Vec<u8>> = net.sent.iter().filter(|one| is_data(one)).collect();
        let again = data.iter().filter(|one| chunk(one) == chunk(data[0]));
        assert_eq!(again.count(), 2, "{len} bytes over {delay_ms} ms");
        let (from, to) = (net.ends[0].metrics(), net.ends[1].metrics());
        assert_eq!(from.drops(DropReason::Abandoned), 0, "{from:?}");
        assert_eq!((to.frames_out, to.frames_skipped), (1, 0), "{to:?}");
        assert_eq!((from.frames_held, to.chunks_held), (0, 0));
    }
}

#[test]
fn what_follows_a_loss_on_a_long_path_waits_for_it() {
    let mut net = Net::new(&[110 * MS]);
    net.run(10_000 * MS, |_| true);
    for _ in 0..10 {
        net.offer(200, 1);
    }
    let mut first = true;
    net.run(5_000 * MS, |one| {
        !(is_data(one) && std::mem::take(&mut first))
    });
    let (from, to) = (net.ends[0].metrics(), net.ends[1].metrics());
    assert_eq!(from.drops(DropReason::Abandoned), 0, "{from:?}");
    assert_eq!((to.frames_out, to.frames_skipped), (10, 0), "{to:?}");
}

/// Two ends with a path of 1 ms and another one. The windows are open, and the first end's flow
/// is on the faster path.
fn two_paths(other_ns: u64) -> Net {
    let mut net = Net::new(&[MS / 2, other_ns]);
    for _ in 0..4 {
        net.offer(5_000, 1);
        net.run(10 * MS, |_| true);
    }
    net.sent.clear();
    net
}

/// The path that the first chunk of a frame goes over again, which the first path has lost.
/// `passes` says what is not lost besides.
fn retransmitted_on(net: &mut Net, passes: impl Fn(&[u8]) -> bool) -> u8 {
    net.sent.clear();
    net.offer(30_000, 1);
    let mut first = true;
    net.run(200 * MS, |datagram| {
        let lost = is_data(datagram) && std::mem::take(&mut first);
        !lost && passes(datagram)
    });
    let data: Vec<&Vec<u8>> = net.sent.iter().filter(|one| is_data(one)).collect();
    assert_eq!(path_of(data[0]), PATH);
    let is_first = |one: &&&Vec<u8>| chunk(one) == chunk(data[0]);
    let again = data.iter().filter(is_first).nth(1);
    path_of(again.expect("it is sent again")).0
}

fn is_data(datagram: &[u8]) -> bool {
    CommonHeader::parse(datagram).is_ok_and(|header| header.kind == PacketKind::Data)
}

/// Its place in its frame.
fn chunk(datagram: &[u8]) -> u8 {
    let header = CommonHeader::parse(datagram).expect("it was made here");
    header.extra
}

#[test]
fn what_a_path_has_lost_does_not_go_over_one_that_is_much_slower() {
    assert_eq!(retransmitted_on(&mut two_paths(30 * MS), |_| true), 0);
    // One that is about as good is another chance.
    assert_eq!(retransmitted_on(&mut two_paths(MS * 7 / 10), |_| true), 1);
    // So is any beside a path that has fallen silent.
    let silent = |datagram: &[u8]| path_of(datagram) != PATH;
    assert_eq!(retransmitted_on(&mut two_paths(30 * MS), silent), 1);
}

#[test]
fn what_a_path_has_lost_does_not_go_over_one_that_has_just_fallen_silent() {
    let mut net = two_paths(MS * 7 / 10);
    let passes = |datagram: &[u8]| path_of(datagram) == PATH;
    while net.sent.iter().all(|one| passes(one)) {
        net.run(MS, passes);
    }
    // The probe should have been answered by now.
    net.run(2 * MS, passes);
    let other = net.ends[0].path_metrics(PathId(1));
    assert_eq!(other.expect("it is there").state, PathState::Alive);
    assert_eq!(retransmitted_on(&mut net, passes), 0);
}
