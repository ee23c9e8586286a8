// SPDX-License-Identifier: Apache-2.0
//! A change takes a real out of a VIP's ring, which gets shorter, removes the real, and gives its
//! number to a real of another VIP, while a CPU picks: `known_vip()` of bpf/lb/vip.h, which reads the
//! size, `pick_real()` and `read_slot()` of bpf/lb/admit.h, `set_rings`, `Rings::swap`, `remove_real`
//! and `add_real` of crates/dataplane.

use super::Race;

/// How the change is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingSwap {
    /// Planted: the swap does not wait for programs that see the old ring.
    pub does_not_wait: bool,
    /// Planted: the real is removed before the ring is swapped.
    pub removes_first: bool,
    /// Planted: the ring is swapped while programs may go by the longer one's size.
    pub does_not_wait_behind_the_shrink: bool,
}

const OURS: u8 = 1;
const STRANGER: u8 = 2;
const PACKETS: u8 = 2;
/// Slots of the old ring and of the new one.
const LONG: u8 = 2;
const SHORT: u8 = 1;

#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RingSwapState {
    /// The size in use.
    size: u8,
    /// Whether lookups give the new ring.
    swapped: bool,
    /// Whose real the number is; 0: no VIP's.
    owner: u8,
    cpu: Cpu,
    packets: u8,
    /// The change's next step.
    at: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Cpu {
    Idle,
    /// Has a size.
    Size(u8),
    /// Has a slot's index, below its size, and a ring: the old one?
    Ring(u8, bool),
    /// Its ring has no such slot.
    NoSlot,
    /// Has the number.
    Number,
    Sent(u8),
}

impl Race for RingSwap {
    type State = RingSwapState;
    type Step = &'static str;

    fn name(&self) -> &'static str {
        "ring-swap"
    }

    fn begin(&self) -> RingSwapState {
        RingSwapState {
            size: LONG,
            swapped: false,
            owner: OURS,
            cpu: Cpu::Idle,
            packets: PACKETS,
            at: 0,
        }
    }

    fn moves(&self, rings: &RingSwapState) -> Vec<(&'static str, RingSwapState)> {
        let mut moves = Vec::new();
        let mut cpu = rings.clone();
        match rings.cpu {
            Cpu::Idle if rings.packets > 0 => {
                cpu.packets -= 1;
                cpu.cpu = Cpu::Size(rings.size);
                moves.push(("CPU reads the size", cpu));
            }
            // Each slot is some flow's.
            Cpu::Size(size) => {
                for slot in 0..size {
                    let mut cpu = cpu.clone();
                    cpu.cpu = Cpu::Ring(slot, !rings.swapped);
                    moves.push(("CPU looks the ring up", cpu));
                }
            }
            Cpu::Ring(SHORT.., false) => {
                cpu.cpu = Cpu::NoSlot;
                moves.push(("CPU finds no slot", cpu));
            }
            // The new ring has other reals' numbers.
            Cpu::Ring(_, false) => {
                cpu.cpu = Cpu::Idle;
                moves.push(("CPU goes by the new ring", cpu));
            }
            Cpu::Ring(_, true) => {
                cpu.cpu = Cpu::Number;
                moves.push(("CPU reads the number", cpu));
            }
            Cpu::Number => {
                cpu.cpu = Cpu::Sent(rings.owner);
                moves.push(("CPU reads the real", cpu));
            }
            Cpu::Sent(_) => {
                cpu.cpu = Cpu::Idle;
                moves.push(("CPU sends", cpu));
            }
            Cpu::NoSlot => {}
            Cpu::Idle => {}
        }
        let swap = |next: &mut RingSwapState| next.swapped = true;
        let remove = |next: &mut RingSwapState| next.owner = 0;
        let add = |next: &mut RingSwapState| next.owner = STRANGER;
        let mut next = rings.clone();
        next.at += 1;
        let waits = rings.cpu != Cpu::Idle;
        match (rings.at, self.removes_first) {
            (0, _) => next.size = SHORT,
            // Until no program can still go by the old size.
            (1, _) if !self.does_not_wait_behind_the_shrink && waits => return moves,
            (1, _) => {}
            (2, false) | (3, true) => swap(&mut next),
            // Until no program can still see the old ring.
            (3, false) | (4, true) if !self.does_not_wait && waits => return moves,
            (3, false) | (4, true) => {}
            (4, false) | (2, true) => remove(&mut next),
            (5, _) => add(&mut next),
            _ => return moves,
        }
        moves.push(("the change goes on", next));
        moves
    }

    fn wrong(&self, rings: &RingSwapState) -> Option<&'static str> {
        match rings.cpu {
            Cpu::Sent(STRANGER) => Some("a packet goes to another VIP's real"),
            Cpu::Sent(0) => Some("a packet is dropped, as its real is gone"),
            Cpu::NoSlot => Some("a packet is dropped, as its slot is beyond the ring"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::races::explore;

    #[test]
    fn every_packet_goes_to_a_real_of_its_vip() {
        let explored = explore(&RingSwap::default());
        assert_eq!(explored.fault, None);
        assert!(explored.states > 20 && explored.ends > 0, "{explored:?}");
    }

    #[test]
    fn planted_faults_are_found() {
        for race in [
            RingSwap {
                does_not_wait: true,
                ..RingSwap::default()
            },
            RingSwap {
                removes_first: true,
                ..RingSwap::default()
            },
            RingSwap {
                does_not_wait_behind_the_shrink: true,
                ..RingSwap::default()
            },
        ] {
            assert!(explore(&race).fault.is_some(), "{race:?}");
        }
    }
}
