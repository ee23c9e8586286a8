// SPDX-License-Identifier: Apache-2.0
//! `take_index()` and `open_conn()` of bpf/lb/conn_table.h on one CPU, and a daemon that takes
//! over: it reads which indices wait in the ring, then which slots are in use, and gives out the
//! others (`ConnTable::open` and `top_up` of crates/dataplane).
//!
//! Left out: the end of connections, which user space alone sees to.

use super::Race;

/// How the daemon looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SlotHandOut {
    /// Planted: slots are looked at first, as they once were.
    pub slots_first: bool,
    /// Planted: it does not wait between its two looks until programs that ran have ended.
    pub does_not_wait: bool,
}

const INDICES: usize = 2;
const PACKETS: u8 = 2;

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SlotHandOutState {
    /// Indices from the head to the tail.
    ring: Vec<u8>,
    /// How often each has been written into a slot.
    written: [u8; INDICES],
    cpu: Cpu,
    packets: u8,
    daemon: Daemon,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Cpu {
    /// Between two packets.
    Idle,
    /// Has seen that the ring is not empty.
    Read,
    /// Has an index, and has not written its slot.
    Taken(u8),
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Daemon {
    Begin,
    First([bool; INDICES]),
    /// Waits until the CPU has been between two packets.
    Waits([bool; INDICES]),
    Second([bool; INDICES]),
    /// Gives these out.
    Fills(Vec<u8>),
}

impl SlotHandOut {
    fn waiting(slots: &SlotHandOutState) -> [bool; INDICES] {
        std::array::from_fn(|index| slots.ring.contains(&(index as u8)))
    }

    fn in_use(slots: &SlotHandOutState) -> [bool; INDICES] {
        slots.written.map(|times| times > 0)
    }

    fn daemon(&self, slots: &SlotHandOutState) -> Option<(&'static str, Daemon)> {
        let (first, second) = match self.slots_first {
            false => (Self::waiting(slots), Self::in_use(slots)),
            true => (Self::in_use(slots), Self::waiting(slots)),
        };
        Some(match &slots.daemon {
            Daemon::Begin => ("daemon looks at one", Daemon::First(first)),
            Daemon::First(seen) if self.does_not_wait => ("daemon goes on", Daemon::Second(*seen)),
            Daemon::First(seen) => ("daemon begins to wait", Daemon::Waits(*seen)),
            Daemon::Waits(seen) if slots.cpu == Cpu::Idle => {
                ("no program runs", Daemon::Second(*seen))
            }
            Daemon::Waits(_) => return None,
            Daemon::Second(seen) => {
                let free = |index: &u8| !seen[usize::from(*index)] && !second[usize::from(*index)];
                let free = (0..INDICES as u8).filter(free).collect();
                ("daemon looks at the other", Daemon::Fills(free))
            }
            Daemon::Fills(_) => return None,
        })
    }
}

impl Race for SlotHandOut {
    type State = SlotHandOutState;
    type Step = &'static str;

    fn name(&self) -> &'static str {
        "slot-hand-out"
    }

    fn begin(&self) -> SlotHandOutState {
        SlotHandOutState {
            ring: (0..INDICES as u8).collect(),
            written: [0; INDICES],
            cpu: Cpu::Idle,
            packets: PACKETS,
            daemon: Daemon::Begin,
        }
    }

    fn moves(&self, slots: &SlotHandOutState) -> Vec<(&'static str, SlotHandOutState)> {
        let mut moves = Vec::new();
        let mut next = slots.clone();
        match slots.cpu {
            Cpu::Idle if slots.packets > 0 => {
                next.packets -= 1;
                next.cpu = if slots.ring.is_empty() {
                    Cpu::Idle
                } else {
                    Cpu::Read
                };
                moves.push(("CPU looks at the ring", next));
            }
            Cpu::Idle => {}
            Cpu::Read => {
                next.cpu = Cpu::Taken(next.ring.remove(0));
                moves.push(("CPU takes an index", next));
            }
            Cpu::Taken(index) => {
                next.written[usize::from(index)] += 1;
                next.cpu = Cpu::Idle;
                moves.push(("CPU writes the slot", next));
            }
        }
        if let Some((step, daemon)) = self.daemon(slots) {
            let mut next = slots.clone();
            next.daemon = daemon;
            moves.push((step, next));
        }
        if let Daemon::Fills(free) = &slots.daemon
            && let Some((index, rest)) = free.split_first()
        {
            let mut next = slots.clone();
            next.ring.push(*index);
            next.daemon = Daemon::Fills(rest.to_vec());
            moves.push(("daemon puts an index into the ring", next));
        }
        moves
    }

    fn wrong(&self, slots: &SlotHandOutState) -> Option<&'static str> {
        let mut times = slots.written;
        for index in &slots.ring {
            times[usize::from(*index)] += 1;
        }
        if let Cpu::Taken(index) = slots.cpu {
            times[usize::from(index)] += 1;
        }
        let twice = times.iter().any(|times| *times > 1);
        twice.then_some("an index is given out twice")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::races::explore;

    #[test]
    fn no_index_is_given_out_twice() {
        let explored = explore(&SlotHandOut::default());
        assert_eq!(explored.fault, None);
        assert!(explored.states > 30 && explored.ends > 0, "{explored:?}");
    }

    #[test]
    fn planted_faults_are_found() {
        for race in [
            SlotHandOut {
                slots_first: true,
                ..SlotHandOut::default()
            },
            SlotHandOut {
                does_not_wait: true,
                ..SlotHandOut::default()
            },
        ] {
            let (_, wrong) = explore(&race).fault.expect("a way");
            assert_eq!(wrong, "an index is given out twice", "{race:?}");
        }
    }
}
