// SPDX-License-Identifier: Apache-2.0

//! What answers to probes say of a path, and what they do not.

mod kit;

use std::collections::VecDeque;

use causeway_bifrost::wire::{CommonHeader, PacketKind};
use causeway_bifrost::{
    DropReason, PathId, PathMetrics, PathState, Span, TransportConfig, TransportEngine, TunnelEvent,
};

use kit::{Net, PATH, SLOT, engine, engine_with, meet, path_of, receive_all, sealed, sent};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;

fn is_data(datagram: &[u8]) -> bool {
    CommonHeader::parse(datagram).is_ok_and(|header| header.kind == PacketKind::Data)
}

/// Two ends. On the first path a datagram and its answer take a step, on others two more.
struct World {
    ends: [TransportEngine; 2],
    now_ns: u64,
    /// What the first path holds back of the first end's.
    held: VecDeque<Vec<u8>>,
    /// What is under way on the other paths, which are slower.
    slower: [Vec<Vec<u8>>; 2],
    offered: u64,
    delivered: u64,
}

impl World {
    fn new(paths: u8) -> World {
        let mut ends = [1, 2].map(|instance| engine_with(instance, paths));
        let now_ns = meet(&mut ends);
        World {
            ends,
            now_ns,
            held: VecDeque::new(),
            slower: [const { Vec::new() }; 2],
            offered: 0,
            delivered: 0,
        }
    }

    fn first_path(&self) -> PathMetrics {
        self.ends[0].path_metrics(PATH).expect("there is a path")
    }

    /// A request of the first end's guests, on a flow of its own.
    fn offer(&mut self) {
        let span = Span {
            slot: SLOT,
            offset: 0,
            len: 300,
        };
        let taken = self.ends[0].handle_frame(self.now_ns, span, self.offered);
        taken.expect("there is room");
        self.offered += 1;
    }

    /// `passes` says what the first path lets through of the first end's datagrams, or
    /// `None`: it waits until something else passes.
    fn step(&mut self, step_ns: u64, passes: impl Fn(&[u8]) -> Option<bool>) {
        for index in [0, 1] {
            self.now_ns += step_ns / 2;
            let now_ns = self.now_ns;
            self.ends[index].handle_timeout(now_ns);
            let mut arriving = std::mem::take(&mut self.slower[index]);
            for datagram in sent(&mut self.ends[index], now_ns) {
                if path_of(&datagram) != PATH {
                    self.slower[index].push(datagram);
                    continue;
                }
                if index == 1 {
                    arriving.push(datagram);
                    continue;
                }
                match passes(&datagram) {
                    Some(false) => {}
                    Some(true) => {
                        arriving.extend(self.held.drain(..));
                        arriving.push(datagram);
                    }
                    None => self.held.push_back(datagram),
                }
            }
            receive_all(&mut self.ends[1 - index], now_ns, &arriving);
            while self.ends[1].poll_deliver().is_some() {
                self.delivered += 1;
            }
        }
    }
}

#[test]
fn probes_that_waited_for_the_same_do_not_stretch_the_timeout() {
    for paths in [1, 2] {
        let mut world = World::new(paths);
        let until_ns = world.now_ns + 3 * SECOND;
        while world.now_ns < until_ns {
            world.step(MS, |_| None);
        }
        assert_eq!(world.first_path().state, PathState::Dead);
        assert!(world.held.len() > 100, "{}", world.held.len());
        while world.first_path().state == PathState::Dead {
            world.step(200 * US, |_| Some(true));
        }
        // An answer or two more than those that waited.
        for _ in 0..1_000 {
            world.step(200 * US, |_| Some(true));
        }
        let rto_ns = world.first_path().rto_ns;
        assert!(rto_ns < 10 * MS, "{rto_ns} ns over {paths} paths");
    }
}

#[test]
fn a_path_that_loses_all_data_is_left_alone_and_tried_again() {
    let mut world = World::new(2);
    let run = |world: &mut World, time_ns: u64, loses: bool| {
        let (before, until_ns) = (world.first_path().sent_chunks, world.now_ns + time_ns);
        while world.now_ns < until_ns {
            world.offer();
            world.step(200 * US, |datagram| Some(!(loses && is_data(datagram))));
        }
        world.first_path().sent_chunks - before
    };
    assert!(run(&mut world, 100 * MS, false) > 100, "it is used");
    let lost = run(&mut world, 10 * SECOND, true);
    // Of 50,000 frames: a few each time, and less often each time.
    assert!(lost < 500, "{lost} chunks went where none arrives");
    let path = world.first_path();
    assert!((2..10).contains(&path.failures), "{path:?}");
    // It has not stopped answering.
    assert!(path.replies_received > 100, "{path:?}");

    let used = run(&mut world, 20 * SECOND, false);
    assert!(used > 1_000, "{used} chunks when it was whole again");
    assert_eq!(world.first_path().state, PathState::Alive);
    assert_eq!(world.first_path().failures, path.failures);
    for _ in 0..100 {
        world.step(MS, |_| Some(true));
    }
    assert_eq!(world.delivered, world.offered);
}

#[test]
fn the_only_path_is_slowed_down_whatever_it_loses() {
    let mut world = World::new(2);
    let loses_data = |datagram: &[u8]| Some(!is_data(datagram));
    for _ in 0..1_000 {
        world.offer();
        world.step(200 * US, loses_data);
    }
    assert_eq!(world.first_path().state, PathState::Dead);
    // The other one goes, and it is what there is.
    world.ends[0].remove_path(world.now_ns, PathId(1));
    for _ in 0..200 {
        world.step(200 * US, loses_data);
    }
    assert_eq!(world.first_path().state, PathState::Alive);
    let failures = world.first_path().failures;
    for _ in 0..1_000 {
        if world.ends[0].can_accept() {
            world.offer();
        }
        world.step(200 * US, loses_data);
    }
    let path = world.first_path();
    assert_eq!(path.failures, failures);
    // It is slowed down: eight datagrams at a time.
    assert!(path.window_bytes <= 8 * 1500, "{path:?}");
}

#[test]
fn each_end_learns_whether_the_other_takes_merged_udp() {
    let mut ends = [1, 2].map(engine);
    let merging = TransportConfig {
        merges_udp: true,
        ..TransportConfig::default()
    };
    ends[1].reconfigure(0, merging).expect("it is valid");
    meet(&mut ends);
    for (end, merges) in ends.iter_mut().zip([true, false]) {
        assert_eq!(end.peer_merges_udp(), merges);
        let events: Vec<TunnelEvent> = std::iter::from_fn(|| end.poll_event()).collect();
        let told = |event: &&TunnelEvent| matches!(event, TunnelEvent::PeerMergesUdp(_));
        let told: Vec<&TunnelEvent> = events.iter().filter(told).collect();
        assert_eq!(told, [&TunnelEvent::PeerMergesUdp(merges)], "{events:?}");
    }
}

#[test]
fn frames_are_dropped_once_no_path_has_been_alive_for_their_lifetime() {
    let mut net = Net::new(&[MS]);
    let is_alive = |net: &Net| {
        let path = net.ends[0].path_metrics(PATH);
        path.is_some_and(|path| path.state == PathState::Alive)
    };
    while is_alive(&net) {
        assert!(net.ends[0].can_accept() && !net.ends[0].is_cut_off());
        net.run(MS, |_| false);
    }
    // For a short while what comes may wait.
    net.run(190 * MS, |_| false);
    assert!(!net.ends[0].can_accept() && !net.ends[0].is_cut_off());
    net.run(20 * MS, |_| false);
    assert!(!net.ends[0].can_accept() && net.ends[0].is_cut_off());
    let span = Span {
        slot: SLOT,
        offset: 0,
        len: 300,
    };
    let taken = net.ends[0].handle_frame(net.now_ns, span, 1);
    assert_eq!(taken, Err(DropReason::NoPeer));
    net.run(200 * MS, |_| true);
    assert!(net.ends[0].can_accept() && !net.ends[0].is_cut_off());
    net.offer(300, 1);
    net.run(20 * MS, |_| true);
    assert_eq!(net.ends[1].metrics().frames_out, 1);
}

/// Each would have a key derived for it; whoever knows the key's id and the peer's address can send them.
#[test]
fn a_flood_of_forged_probes_costs_few_keys_and_a_peer_that_begins_anew_is_heard_in_it() {
    let mut ends = [1, 2].map(sealed);
    let mut now_ns = meet(&mut ends);
    let [_, mut end] = ends;
    let mut other = sealed(3);
    other.handle_timeout(now_ns);
    let probe = sent(&mut other, now_ns).pop().expect("a probe");
    let forge = |number: u64| {
        let mut datagram = probe.clone();
        // The sender's instance, in clear.
        datagram[12..20].copy_from_slice(&(number + 1000).to_le_bytes());
        datagram
    };
    const COUNT: u64 = 100_000;
    for number in 0..COUNT {
        now_ns += 10 * US;
        receive_all(&mut end, now_ns, &[forge(number)]);
        sent(&mut end, now_ns);
    }
    let drops = |reason| end.metrics().drops(reason);
    let forged = drops(DropReason::Forged);
    assert_eq!(forged + drops(DropReason::Flood), COUNT);
    assert!((19_000..21_000).contains(&forged), "{forged}");
    // It goes on, and the peer is another from now on.
    let mut heard = false;
    for number in COUNT..3 * COUNT {
        now_ns += 20 * US;
        other.handle_timeout(now_ns);
        let datagrams = sent(&mut other, now_ns);
        receive_all(&mut end, now_ns, &datagrams);
        receive_all(&mut end, now_ns, &[forge(number)]);
        end.handle_timeout(now_ns);
        let datagrams = sent(&mut end, now_ns);
        receive_all(&mut other, now_ns, &datagrams);
        heard |= std::iter::from_fn(|| end.poll_event())
            .any(|event| event == TunnelEvent::PeerRestarted);
    }
    assert!(heard);
}
