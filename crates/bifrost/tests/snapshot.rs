// SPDX-License-Identifier: Apache-2.0

//! An end that is set back to an earlier state of its memory, as a virtual machine to a snapshot.

mod kit;

use std::collections::BTreeSet;

use causeway_bifrost::wire::{CommonHeader, PacketKind};
use causeway_bifrost::{Span, TransportEngine, TunnelEvent};

use kit::{SLOT, engine, receive_all, sealed, sent};

const STEP_NS: u64 = 100_000;
const SECOND: u64 = 1_000_000_000;

fn end(instance: u64, is_sealed: bool) -> TransportEngine {
    match is_sealed {
        true => sealed(instance),
        false => engine(instance),
    }
}

/// What both ends do in a step; the first end has a twin, which is told the same and whose
/// datagrams nobody gets.
struct World {
    ends: [TransportEngine; 2],
    twin: Option<TransportEngine>,
    now_ns: u64,
    offered: u64,
    delivered: u64,
    /// Epochs and numbers of the first end's data.
    numbers: BTreeSet<(u32, u32)>,
    repeated_ns: Option<u64>,
}

impl World {
    fn offer(&mut self) {
        let span = Span {
            slot: SLOT,
            offset: 0,
            len: 300,
        };
        for end in self.ends.iter_mut().take(1).chain(&mut self.twin) {
            if end.can_accept() {
                let taken = end.handle_frame(self.now_ns, span, 1);
                taken.expect("there is room");
            }
        }
        self.offered += 1;
    }

    fn step(&mut self) {
        self.now_ns += STEP_NS;
        let now_ns = self.now_ns;
        for end in self.ends.iter_mut().chain(&mut self.twin) {
            end.handle_timeout(now_ns);
        }
        if let Some(twin) = &mut self.twin {
            sent(twin, now_ns);
        }
        let [there, back] = [0, 1].map(|index| sent(&mut self.ends[index], now_ns));
        for header in there.iter().filter_map(|one| CommonHeader::parse(one).ok()) {
            if header.kind == PacketKind::Data
                && !self.numbers.insert((header.epoch, header.number))
            {
                self.repeated_ns = Some(now_ns);
            }
        }
        receive_all(&mut self.ends[1], now_ns, &there);
        for end in self.ends.iter_mut().take(1).chain(&mut self.twin) {
            receive_all(end, now_ns, &back);
        }
        while self.ends[1].poll_deliver().is_some() {
            self.delivered += 1;
        }
    }

    fn run(&mut self, time_ns: u64, offers: bool) {
        let until_ns = self.now_ns + time_ns;
        while self.now_ns < until_ns {
            if offers {
                self.offer();
            }
            self.step();
        }
    }
}

#[test]
fn an_end_that_is_set_back_begins_anew() {
    for sealed in [false, true] {
        let mut world = World {
            ends: [1, 2].map(|instance| end(instance, sealed)),
            twin: Some(end(1, sealed)),
            now_ns: 0,
            offered: 0,
            delivered: 0,
            numbers: BTreeSet::new(),
            repeated_ns: None,
        };
        world.run(SECOND / 10, false);
        world.run(SECOND / 10, true);
        // The snapshot: what the twin knows. The other one goes on.
        let snapshot = world.twin.take().expect("it is there");
        world.run(SECOND, true);
        assert_eq!((world.repeated_ns, world.delivered), (None, world.offered));
        world.ends[0] = snapshot;
        let set_back_ns = world.now_ns;
        world.run(SECOND / 5, true);
        // From here on nothing is lost.
        let (offered, delivered) = (world.offered, world.delivered);
        world.run(SECOND, true);
        world.run(SECOND / 10, false);
        assert_eq!(
            world.delivered - delivered,
            world.offered - offered,
            "sealed: {sealed}"
        );
        // The peer's first acknowledgement shows it: one is due for each probe.
        let repeated_ns = world.repeated_ns.unwrap_or(set_back_ns) - set_back_ns;
        assert!(repeated_ns < 10_000_000, "{repeated_ns} ns");
        let events = std::iter::from_fn(|| world.ends[0].poll_event());
        let events: Vec<_> = events.collect();
        assert!(events.contains(&TunnelEvent::SetBack), "{events:?}");
        assert!(!events.contains(&TunnelEvent::PeerRestarted), "{events:?}");
    }
}
