// SPDX-License-Identifier: Apache-2.0
//! Schedulers that look at the reals' load.
//!
//! A load is any number that grows with how busy a real is: open connections,
//! packets or bytes a second, what an agent reports. Only ratios count, and always
//! load per weight: a real of weight 2 is as busy with 20 as one of weight 1 with 10.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::RingMember;

/// A member of a pool with what it carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loaded {
    /// The member; weight 0 takes no part.
    pub member: RingMember,
    /// Its load; `None` if unknown.
    pub load: Option<f64>,
}

/// Constants of automatic weighted round robin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Awrr {
    /// Slots of a real whose load is the average: N in the paper.
    pub slots: f64,
    /// How gently weights follow loads, in (0, 1]: the paper's alpha.
    pub alpha: f64,
    /// Fewest slots.
    pub min: f64,
    /// Most slots.
    pub max: f64,
}

impl Default for Awrr {
    /// Barbette et al., "A High-Speed Load-Balancer Design with Guaranteed
    /// Per-Connection-Consistency", NSDI 2020, section 4.1: N = 10, alpha = 0.5,
    /// between 2 and 3 N slots.
    fn default() -> Self {
        Self {
            slots: 10.0,
            alpha: 0.5,
            min: 2.0,
            max: 30.0,
        }
    }
}

impl Awrr {
    /// The slots of each real in a period of weighted round robin, before its
    /// configured weight: `N_i = round(N L_avg / ((1 - a) L_i + a L_avg))`, within
    /// the bounds. A real of unknown load counts as average.
    pub fn slots(&self, pool: &[Loaded]) -> Vec<u32> {
        let average = average(pool).unwrap_or(0.0);
        pool.iter()
            .map(|real| {
                let load = real.load_per_weight().unwrap_or(average);
                let blend = (1.0 - self.alpha) * load + self.alpha * average;
                let slots = match blend > 0.0 {
                    true => self.slots * average / blend,
                    false => self.slots,
                };
                slots.round().clamp(self.min, self.max) as u32
            })
            .collect()
    }
}

/// The next `length` picks of the least loaded real, each new flow adding `rise` to
/// whom it goes to. Empty when no real has a weight.
///
/// Sent to the real that was idle when it was read, all flows of an interval would meet
/// one real: the herd of the paper's section 5.2. A plan that counts its own flows
/// cannot herd, however old the reading; and it levels out what was uneven first.
/// A real of unknown load counts as average.
pub fn least_loaded(pool: &[Loaded], rise: f64, length: usize) -> Vec<u32> {
    let average = average(pool).unwrap_or(0.0);
    let rise = if rise > 0.0 { rise } else { 1.0 };
    let mut next: BinaryHeap<Candidate> = (0..)
        .zip(pool)
        .filter(|(_, real)| real.member.weight > 0)
        .map(|(at, real)| {
            let weight = f64::from(real.member.weight);
            let load = real.load_per_weight().unwrap_or(average).max(0.0);
            let step = rise / weight;
            // The real that would be least loaded with the flow, not before it.
            Candidate {
                then: load + step,
                step,
                at,
            }
        })
        .collect();
    let mut plan = Vec::with_capacity(length);
    while plan.len() < length {
        let Some(mut least) = next.pop() else { break };
        plan.push(pool[least.at as usize].member.id);
        least.then += least.step;
        next.push(least);
    }
    plan
}

impl Loaded {
    fn load_per_weight(&self) -> Option<f64> {
        let weight = f64::from(self.member.weight.max(1));
        self.load
            .filter(|load| load.is_finite())
            .map(|load| load / weight)
    }
}

/// Mean load per weight over the reals that take part and whose load is known.
fn average(pool: &[Loaded]) -> Option<f64> {
    let known: Vec<f64> = pool
        .iter()
        .filter(|real| real.member.weight > 0)
        .filter_map(Loaded::load_per_weight)
        .collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

/// A real with the load per weight that one more flow would give it.
#[derive(PartialEq)]
struct Candidate {
    then: f64,
    step: f64,
    at: u32,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    /// The least loaded is the greatest, as [`BinaryHeap`] wants it.
    fn cmp(&self, other: &Self) -> Ordering {
        other
            .then
            .total_cmp(&self.then)
            .then(other.at.cmp(&self.at))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{pool, shares};
    use super::*;
    use proptest::prelude::*;

    fn loaded(weights: &[u32], loads: &[f64]) -> Vec<Loaded> {
        let members = pool(weights).into_iter().zip(loads);
        members
            .map(|(member, &load)| Loaded {
                member,
                load: Some(load),
            })
            .collect()
    }

    #[test]
    fn awrr_has_the_papers_values() {
        // Average 10. Idle: 10 * 10 / 5 = 20; average: 10; double: 100 / 15 = 6.7;
        // fourfold: 100 / 25 = 4.
        let slots = |loads: &[f64]| Awrr::default().slots(&loaded(&vec![1; loads.len()], loads));
        assert_eq!(slots(&[10.0, 10.0]), [10, 10]);
        assert_eq!(slots(&[0.0, 20.0]), [20, 7]);
        assert_eq!(slots(&[0.0, 0.0, 0.0, 40.0]), [20, 20, 20, 4]);
        // A hundred reals with one far above them: held at 2.
        let mut loads = vec![0.0; 100];
        loads[0] = 1000.0;
        assert_eq!(slots(&loads)[0], 2);
        assert_eq!(slots(&[0.0, 0.0]), [10, 10]);
        assert!(Awrr::default().slots(&[]).is_empty());
    }

    #[test]
    fn awrr_looks_at_load_per_weight_and_takes_the_unknown_for_average() {
        let mut reals = loaded(&[1, 3], &[10.0, 30.0]);
        assert_eq!(Awrr::default().slots(&reals), [10, 10]);
        reals[1].load = None;
        assert_eq!(Awrr::default().slots(&reals), [10, 10]);
    }

    #[test]
    fn a_plan_levels_first_and_then_takes_turns() {
        let plan = least_loaded(&loaded(&[1, 1, 1], &[0.0, 3.0, 3.0]), 1.0, 9);
        assert_eq!(plan[..3], [0, 0, 0]);
        assert_eq!(shares(&plan[3..]), [(0, 2), (1, 2), (2, 2)].into());
        assert!(least_loaded(&loaded(&[0, 0], &[1.0, 1.0]), 1.0, 4).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The plan is what the obvious scheduler would do, flow by flow.
        #[test]
        fn a_plan_is_the_obvious_choice_repeated(
            reals in prop::collection::vec((1..5_u32, 0..100_u32), 1..10),
            length in 0..200_usize,
        ) {
            let weights: Vec<u32> = reals.iter().map(|r| r.0).collect();
            let mut loads: Vec<f64> = reals.iter().map(|r| f64::from(r.1)).collect();
            let plan = least_loaded(&loaded(&weights, &loads), 1.0, length);
            prop_assert_eq!(plan.len(), length);
            for id in plan {
                let after = |at: usize| (loads[at] + 1.0) / f64::from(weights[at]);
                let best = (0..loads.len()).map(after).fold(f64::INFINITY, f64::min);
                prop_assert!(after(id as usize) <= best + 1e-9);
                loads[id as usize] += 1.0;
            }
        }

        /// Slots lie within the bounds, and a busier real never has more.
        #[test]
        fn awrr_is_bounded_and_monotonic(loads in prop::collection::vec(0.0..1e6, 1..40)) {
            let slots = Awrr::default().slots(&loaded(&vec![1; loads.len()], &loads));
            for (a, &of_a) in slots.iter().enumerate() {
                prop_assert!((2..=30).contains(&of_a));
                for (b, &of_b) in slots.iter().enumerate() {
                    prop_assert!(loads[a] > loads[b] || of_a >= of_b);
                }
            }
        }
    }
}
