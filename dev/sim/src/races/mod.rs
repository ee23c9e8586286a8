// SPDX-License-Identifier: Apache-2.0
//! Where programs on several CPUs, and user space beside them, race for one thing: every order
//! of their steps, tried out on a model of a few steps each.
//!
//! A step is what one CPU does to shared memory at once; what it does in its registers belongs to
//! the step before. Memory is as x86 and the locked instructions of BPF order it: a step is seen
//! by all that come later. What a model leaves out stands in its file.

mod flow_table;
mod ring_swap;
mod slot_hand_out;

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

pub use flow_table::FlowTableRace;
pub use ring_swap::RingSwap;
pub use slot_hand_out::SlotHandOut;

/// Something that several do step by step.
pub trait Race {
    /// All there is at an instant: shared memory, and how far each has come.
    type State: Clone + Eq + Hash;

    /// What it is called.
    fn name(&self) -> &'static str;

    /// Before the first move.
    fn begin(&self) -> Self::State;

    /// Each move that can be made now, in words, with what is then.
    fn moves(&self, state: &Self::State) -> Vec<(&'static str, Self::State)>;

    /// What must never be.
    fn wrong(&self, state: &Self::State) -> Option<&'static str>;
}

/// What became of all orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explored {
    /// Different states that were reached.
    pub states: usize,
    /// Those of them without a move.
    pub ends: usize,
    /// The shortest way to what must never be, and what that is.
    pub fault: Option<(Vec<&'static str>, &'static str)>,
}

/// Tries all orders, nearest states first; ends at the first fault.
pub fn explore<R: Race>(race: &R) -> Explored {
    let mut reached: HashMap<R::State, Option<(R::State, &'static str)>> = HashMap::new();
    let mut open = VecDeque::from([race.begin()]);
    reached.insert(race.begin(), None);
    let mut ends = 0;
    while let Some(state) = open.pop_front() {
        if let Some(wrong) = race.wrong(&state) {
            let mut way = Vec::new();
            let mut at = &state;
            while let Some(Some((before, step))) = reached.get(at) {
                way.push(*step);
                at = before;
            }
            way.reverse();
            return Explored {
                states: reached.len(),
                ends,
                fault: Some((way, wrong)),
            };
        }
        let moves = race.moves(&state);
        ends += usize::from(moves.is_empty());
        for (step, next) in moves {
            if !reached.contains_key(&next) {
                reached.insert(next.clone(), Some((state.clone(), step)));
                open.push_back(next);
            }
        }
    }
    Explored {
        states: reached.len(),
        ends,
        fault: None,
    }
}
