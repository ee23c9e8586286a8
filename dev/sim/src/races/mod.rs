// SPDX-License-Identifier: Apache-2.0
//! Where programs on several CPUs, and user space beside them, race for one thing: every order
//! of their steps, tried out on a model of a few steps each.
//!
//! A step is what one CPU does to shared memory at once; what it does in its registers belongs to
//! the step before. Memory is as x86 and the locked instructions of BPF order it: a step is seen
//! by all that come later. That arm64 orders less is found by no model here. What a model leaves out
//! stands in its file.

mod flow_table;
mod lent_clock;
mod ring_swap;
mod slot_hand_out;

use std::collections::{HashSet, VecDeque};
use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};

pub use flow_table::FlowTableRace;
pub use lent_clock::LentClock;
pub use ring_swap::RingSwap;
pub use slot_hand_out::SlotHandOut;

/// Something that several do step by step.
pub trait Race {
    /// All there is at an instant: shared memory, and how far each has come.
    type State: Clone + Hash;
    /// Which program does what, in words.
    type Step: Clone + Display;

    /// What it is called.
    fn name(&self) -> &'static str;

    /// Before the first move.
    fn begin(&self) -> Self::State;

    /// Each move that can be made now, with what is then.
    fn moves(&self, state: &Self::State) -> Vec<(Self::Step, Self::State)>;

    /// What must never be.
    fn wrong(&self, state: &Self::State) -> Option<&'static str>;
}

/// What became of all orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explored {
    /// Different states that were reached.
    pub states: usize,
    /// Moves to the farthest of them, by the shortest way.
    pub depth: usize,
    /// Those of them without a move.
    pub ends: usize,
    /// The shortest way to what must never be, and what that is.
    pub fault: Option<(Vec<String>, &'static str)>,
}

/// Tries all orders, nearest states first; ends at the first fault.
///
/// Of states that were left it keeps 64 bits of a hash: of ten million states two are one by
/// accident with a probability of 3 in a million.
pub fn explore<R: Race>(race: &R) -> Explored {
    let begin = race.begin();
    let mut reached = HashSet::from([fingerprint(&begin)]);
    // Each state's last move and the state before it.
    let mut ways: Vec<(usize, Option<R::Step>)> = vec![(0, None)];
    let mut open = VecDeque::from([(0, 0, begin)]);
    let mut explored = Explored {
        states: 1,
        depth: 0,
        ends: 0,
        fault: None,
    };
    while let Some((at, depth, state)) = open.pop_front() {
        explored.depth = depth;
        if let Some(wrong) = race.wrong(&state) {
            let mut way = Vec::new();
            let mut at = at;
            while let Some((before, Some(step))) = ways.get(at) {
                way.push(step.to_string());
                at = *before;
            }
            way.reverse();
            explored.fault = Some((way, wrong));
            break;
        }
        let moves = race.moves(&state);
        explored.ends += usize::from(moves.is_empty());
        for (step, next) in moves {
            if reached.insert(fingerprint(&next)) {
                ways.push((at, Some(step)));
                open.push_back((ways.len() - 1, depth + 1, next));
            }
        }
    }
    explored.states = reached.len();
    explored
}

/// 64 bits of a state that are the same in every run.
pub(crate) fn fingerprint(state: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
