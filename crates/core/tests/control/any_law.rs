// SPDX-License-Identifier: Apache-2.0
//! What holds under every law, for any input.

use causeway_core::control::{ControlParams, Law, Reading};
use proptest::prelude::*;

use super::{INTERVAL_NS, assert_sound, by, hold, members, reading};

proptest! {
    #[test]
    fn weights_keep_their_sum_and_bounds_whatever_comes_in(
        pool in prop::collection::vec(0u32..100, 1..8),
        later in prop::collection::vec(0u32..100, 1..8),
        intervals in prop::collection::vec(
            prop::collection::vec((any::<u32>(), 0u64..50, 0u64..50, 0u64..500, 0u64..50), 0..8),
            1..60,
        ),
    ) {
        let configured = |pool: &[u32]| -> Vec<f64> { pool.iter().map(|w| f64::from(*w)).collect() };
        for law in Law::ALL {
        let mut controller = by(law, &configured(&pool));
        for (index, interval) in intervals.iter().enumerate() {
            if index == intervals.len() / 2 {
                controller.set_members(&members(&configured(&later)));
                assert_sound(&controller);
            }
            let readings: Vec<Reading> = interval
                .iter()
                .map(|&(sum, weight_halves, low_weight_halves, requests, active)| Reading {
                    latency_sum_halves_ns: u64::from(sum) * weight_halves,
                    latency_weight_halves: weight_halves,
                    low_weight_halves,
                    requests,
                    active,
                    ..Reading::default()
                })
                .collect();
            controller.tick((index as u64 + 1) * INTERVAL_NS, &readings);
            assert_sound(&controller);
        }
        }
    }
}

#[test]
fn no_law_gives_more_to_what_fails_fast_even_while_another_is_slow() {
    for law in Law::ALL {
        let mut controller = by(law, &[1.0; 4]);
        let mut now = 0;
        hold(&mut controller, &mut now, &[reading(5.0, 50); 4], 20);
        let mut readings = [reading(5.0, 50); 4];
        readings[0] = reading(0.1, 2000);
        readings[1] = reading(50.0, 8);
        for _ in 0..100 {
            let decision = hold(&mut controller, &mut now, &readings, 1);
            assert!(
                decision.reals[0].weight <= 1.0 + 1e-9,
                "{law}: {decision:?}"
            );
        }
        let slow = controller.weights().nth(1).map(|(_, weight)| weight);
        assert!(slow.is_some_and(|weight| weight < 0.3), "{law}: {slow:?}");
    }
}

/// What is graded low shows that a real answers, and at what rate: it is not suspect, and its
/// weight does not depend on how many of its answers are. Without such answers it is.
#[test]
fn answers_graded_low_are_answers_under_every_law() {
    for law in Law::ALL {
        let last = |low: u64| {
            let (mut controller, mut now) = (by(law, &[1.0; 4]), 0);
            let mut readings = [reading(5.0, 50); 4];
            hold(&mut controller, &mut now, &readings, 20);
            readings[0] = Reading {
                low_weight_halves: 2 * low,
                requests: 50,
                active: 10,
                ..Reading::default()
            };
            // Until what was known of it has expired.
            let early = hold(&mut controller, &mut now, &readings, 20).reals[0].clone();
            let late = hold(&mut controller, &mut now, &readings, 400).reals[0].clone();
            (early.reason.word(), late.reason.word(), late.weight)
        };
        let (early, late, weight) = last(50);
        assert_ne!(early, "suspect", "{law}");
        assert_eq!((late, weight), ("low_quality", 1.0), "{law}");
        let (_, late, weight) = last(0);
        assert!(["suspect", "floor"].contains(&late), "{law}: {late}");
        assert!(weight < 0.1, "{law}: {weight}");
    }
}

/// What is known of its answers is nothing about their latency: neither is it suspect, nor are they
/// graded low.
#[test]
fn answers_without_a_latency_are_answers_under_every_law() {
    for law in Law::ALL {
        let (mut controller, mut now) = (by(law, &[1.0; 4]), 0);
        let mut readings = [reading(5.0, 50); 4];
        hold(&mut controller, &mut now, &readings, 20);
        readings[0] = Reading {
            untold_weight_halves: 98,
            low_weight_halves: 2,
            requests: 50,
            active: 10,
            ..Reading::default()
        };
        for interval in 0..400 {
            let decision = hold(&mut controller, &mut now, &readings, 1);
            let word = decision.reals[0].reason.word();
            assert_ne!(word, "suspect", "{law}: {interval}");
            if interval > 300 {
                assert_eq!((word, decision.reals[0].weight), ("unknown", 1.0), "{law}");
            }
        }
    }
}

/// Agents tell what servers answer up to so much later; also before the first time.
#[test]
fn silence_begins_when_answers_would_show() {
    for law in Law::ALL {
        let (mut controller, mut now) = (by(law, &[1.0; 4]), 0);
        let late = |of: Reading| Reading {
            path_ns: 500_000_000,
            ..of
        };
        let mut readings = [reading(5.0, 50); 4].map(late);
        readings[0] = late(Reading::default());
        hold(&mut controller, &mut now, &readings, 20);
        readings[0].requests = 12;
        let mut suspect_at = |intervals: u64| {
            let found = (1..=intervals).find(|_| {
                let decision = hold(&mut controller, &mut now, &readings, 1);
                decision.reals[0].reason.word() == "suspect"
            });
            readings[0].requests = 0;
            found
        };
        assert_eq!(suspect_at(1), None, "{law}");
        assert_eq!(suspect_at(20), Some(6), "{law}");
    }
}

#[test]
fn many_reals_take_what_one_gives_though_each_takes_little() {
    for law in Law::ALL {
        let mut controller = by(law, &[1.0; 200]);
        let mut now = 0;
        let mut readings = [reading(5.0, 500); 200];
        hold(&mut controller, &mut now, &readings, 5);
        readings[7] = reading(50.0, 500);
        // The paper's law leads it back again and again.
        let reached = (0..10)
            .map(|_| hold(&mut controller, &mut now, &readings, 1).reals[7].weight)
            .fold(1.0, f64::min);
        assert!(reached < 0.1, "{law}: {reached}");
    }
}

#[test]
fn a_switch_of_law_goes_on_with_weights_and_latencies() {
    let mut controller = by(Law::Watermark, &[1.0; 4]);
    let mut now = 0;
    let mut readings = [reading(5.0, 500); 4];
    readings[0] = reading(50.0, 500);
    let before = hold(&mut controller, &mut now, &readings, 10).reals[0].weight;
    controller.set_law(Law::Equalise);
    assert_eq!(
        controller.weights().next().map(|(_, weight)| weight),
        Some(before)
    );
    let decision = hold(&mut controller, &mut now, &readings, 1);
    assert_eq!(decision.law, Law::Equalise);
    assert!(decision.reals[0].samples > 500.0);
    // One step from there, not from the configured weight.
    let step = 3.0 * ControlParams::default().max_increase;
    assert!(decision.reals[0].weight <= before + step + 1e-9);
}
