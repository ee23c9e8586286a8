// SPDX-License-Identifier: Apache-2.0
//! The law `equalise`, on readings made by hand.

use causeway_core::control::{
    ConnectionSampler, ControlParams, Decision, Law, Reading, Reason, SampledInterval,
};

use super::{INTERVAL_NS, assert_sound, by, hold, reading, weights};

#[test]
fn equalising_goes_by_what_reals_can_do() {
    let mut controller = by(Law::Equalise, &[1.0; 4]);
    let mut now = 0;
    let mut readings = [reading(10.0, 50); 4];
    readings[0] = reading(40.0, 50);
    readings[1] = reading(11.0, 50);
    // As far up and down as fifty samples of a queue have it: what hardly varies is none.
    let mut decision = hold(&mut controller, &mut now, &readings, 1);
    for interval in 0..30 {
        let factor = if interval % 2 == 0 { 1.06 } else { 0.94 };
        let wavering = readings.map(|of| Reading {
            latency_sum_halves_ns: (of.latency_sum_halves_ns as f64 * factor) as u64,
            ..of
        });
        decision = hold(&mut controller, &mut now, &wavering, 1);
    }
    let [slow, within, fast, other] = [0, 1, 2, 3].map(|index| decision.reals[index].weight);
    let burst = ControlParams::default().burst;
    let can_do = |ms: f64| 50.0 * (1.0 - ms / 500.0) + burst * 100.0 / ms;
    let meant = can_do(40.0) / can_do(10.0);
    // A little more: some of the distance is within the margin of error.
    let ratio = slow / fast;
    assert!(ratio > meant && ratio < meant.powf(0.6), "{ratio} {meant}");
    assert!((within / fast - can_do(11.0) / can_do(10.0)).abs() < 0.05);
    assert!((fast - other).abs() < 1e-6);
    // Equal again, it comes back without a rule of its own for that.
    let decision = hold(&mut controller, &mut now, &[reading(10.0, 50); 4], 40);
    assert!(
        weights(&decision)
            .iter()
            .all(|weight| (weight - 1.0).abs() < 0.05)
    );
}

/// Four queues whose latency follows their load at once, one with half the capacity:
/// weights go to the capacities and stay. (Near saturation, where one step of a weight fills
/// what is left of a queue, they go round between 0.3 and 0.6: docs/explanation/steering.md.)
#[test]
fn equalising_does_not_ring_where_latency_follows_load() {
    let capacity = [60.0, 120.0, 120.0, 120.0];
    for load in [0.3, 0.6, 0.8] {
        let mut controller = by(Law::Equalise, &[1.0; 4]);
        let (mut now, mut weights) = (0, vec![1.0; 4]);
        let mut seen = Vec::new();
        for _ in 0..100 {
            let queue = |(capacity, weight): (&f64, &f64)| {
                let asked = load * 420.0 * weight / 4.0;
                let left = (capacity - asked).max(1.0);
                let served = asked.min(*capacity);
                reading(800.0 / left, served.round() as u64)
            };
            let readings: Vec<Reading> = capacity.iter().zip(&weights).map(queue).collect();
            let decision = hold(&mut controller, &mut now, &readings, 1);
            weights = self::weights(&decision);
            seen.push(weights[0]);
        }
        let late = &seen[70..];
        let (low, high) = late.iter().fold((f64::MAX, 0.0_f64), |(low, high), w| {
            (low.min(*w), high.max(*w))
        });
        assert!(high - low < 0.1, "{load}: {late:?}");
        // What it can do is 0.57 of the mean.
        assert!(low > 0.4 && high < 0.85, "{load}: {late:?}");
    }
}

#[test]
fn equalising_leaves_the_floor_to_a_slow_real_whose_load_the_others_can_bear() {
    let after = |samples| {
        let mut controller = by(Law::Equalise, &[1.0; 4]);
        let mut now = 0;
        let mut readings = [reading(10.0, samples); 4];
        readings[0] = reading(100.0, samples);
        let weight = hold(&mut controller, &mut now, &readings, 30).reals[0].weight;
        assert_sound(&controller);
        let equal = [reading(10.0, samples); 4];
        let decision = hold(&mut controller, &mut now, &equal, 80);
        assert!(decision.reals[0].weight > 0.9, "{decision:?}");
        weight
    };
    let floor = ControlParams::default().floor;
    assert!((after(7) - floor).abs() < 1e-9);
    // They have no more left than thirty requests an interval.
    assert!(after(100) > 0.2);
}

#[test]
fn equalising_counts_no_spare_capacity_of_reals_that_take_no_part() {
    let mut alone = by(Law::Equalise, &[1.0; 4]);
    let mut beside = by(Law::Equalise, &[[1.0; 4], [0.0; 4], [0.0; 4]].concat());
    // The other three have not left what the slow one takes.
    let mut readings = [reading(10.0, 40); 4];
    readings[0] = reading(100.0, 40);
    for interval in 1..=20 {
        let now = interval * INTERVAL_NS;
        let [alone, beside] = [&mut alone, &mut beside].map(|of| weights(&of.tick(now, &readings)));
        assert!(alone[0] > 0.2, "{interval}: {alone:?}");
        assert_eq!(alone, beside[..4], "{interval}");
    }
}

/// A look that is late, or whose VIP waits for its turn, finds the requests of several intervals.
#[test]
fn equalising_weighs_requests_by_the_time_in_which_they_came() {
    let after = |intervals: u64| {
        let mut controller = by(Law::Equalise, &[1.0; 4]);
        let of = |latency_ms| Reading {
            interval_ns: intervals * INTERVAL_NS,
            ..reading(latency_ms, 7 * intervals)
        };
        let readings = [of(100.0), of(10.0), of(10.0), of(10.0)];
        let looks = (1..=30).map(|look| look * intervals * INTERVAL_NS);
        looks
            .map(|now| controller.tick(now, &readings).reals[0].weight)
            .last()
    };
    let floor = ControlParams::default().floor;
    for intervals in [1, 10] {
        let weight = after(intervals).unwrap_or(1.0);
        assert!((weight - floor).abs() < 1e-9, "{intervals}: {weight}");
    }
}

/// It kept its weight before it was slow for a while, and it is as fast as before.
#[test]
fn equalising_gives_the_weight_back_to_what_is_no_longer_far_slower() {
    let mut controller = by(Law::Equalise, &[1.0; 4]);
    let mut now = 0;
    let with = |last: Reading| {
        let mut readings = [reading(5.0, 40); 4];
        readings[3] = last;
        readings
    };
    let weight = |decision: Decision| decision.reals[3].weight;
    let calm = weight(hold(&mut controller, &mut now, &with(reading(8.5, 40)), 60));
    assert!(calm > 0.95, "{calm}");
    let slow = weight(hold(&mut controller, &mut now, &with(reading(50.0, 40)), 6));
    assert!(slow < 0.05, "{slow}");
    let again = weight(hold(&mut controller, &mut now, &with(reading(8.5, 1)), 600));
    assert!(again > 0.9, "{again}");
    // Also where so many samples come that it is surely slower, and surely not that much.
    hold(&mut controller, &mut now, &with(reading(50.0, 40)), 6);
    let again = weight(hold(
        &mut controller,
        &mut now,
        &with(reading(9.5, 150)),
        600,
    ));
    assert!(again > 0.3, "{again}");
}

#[test]
fn equalising_takes_no_queue_for_what_latencies_hardly_vary_by() {
    // The same load and the same means; in the second pool latencies vary as a queue's do.
    let after = |swing: f64| {
        let mut controller = by(Law::Equalise, &[1.0; 4]);
        let mut now = 0;
        let pool = |interval: usize, slow_ms: Option<f64>| -> Vec<Reading> {
            let each = (0..4).map(|real| {
                let up = (interval + real).is_multiple_of(2);
                let factor = if up { 1.0 + swing } else { 1.0 - swing };
                match slow_ms.filter(|_| real == 0) {
                    Some(slow_ms) => reading(slow_ms * factor, 15),
                    None => reading(22.0 * factor, 30),
                }
            });
            each.collect()
        };
        for interval in 0..60 {
            hold(&mut controller, &mut now, &pool(interval, None), 1);
        }
        let mut weight = 1.0;
        for interval in 0..12 {
            let readings = pool(interval, Some(180.0));
            weight = hold(&mut controller, &mut now, &readings, 1).reals[0].weight;
        }
        assert_sound(&controller);
        weight
    };
    assert!(after(0.02) < 0.05, "{}", after(0.02));
    assert!(after(0.2) > 0.1, "{}", after(0.2));
}

#[test]
fn equalising_recalls_what_gave_all_when_another_becomes_slower_still() {
    let mut controller = by(Law::Equalise, &[1.0; 4]);
    let mut now = 0;
    let (slow, fast) = (reading(40.0, 5), reading(5.0, 20));
    let decision = hold(&mut controller, &mut now, &[slow, fast, slow, fast], 40);
    assert!(decision.reals[0].weight < 0.05 && decision.reals[2].weight < 0.05);
    // Now the fourth can do little, and the second has all that its cap allows.
    let now_slow = reading(400.0, 10);
    let trickle = reading(40.0, 1);
    let readings = [trickle, fast, trickle, now_slow];
    let mut recalled = false;
    for _ in 0..12 {
        let decision = hold(&mut controller, &mut now, &readings, 1);
        recalled |= matches!(decision.reals[0].reason, Reason::Recalled { .. });
        assert_sound(&controller);
    }
    let weights: Vec<f64> = controller.weights().map(|(_, weight)| weight).collect();
    assert!(recalled && weights[0] > 0.5, "{weights:?}");
    assert!(weights[3] < 0.9, "{weights:?}");
}

#[test]
fn equalising_keeps_a_slow_real_low_that_gives_few_samples() {
    let mut controller = by(Law::Equalise, &[1.0; 4]);
    let mut now = 0;
    hold(&mut controller, &mut now, &[reading(5.0, 10); 4], 10);
    let mut readings = [reading(5.0, 10); 4];
    readings[0] = reading(50.0, 10);
    let decision = hold(&mut controller, &mut now, &readings, 12);
    assert!(decision.reals[0].weight < 0.1, "{decision:?}");
    readings[0] = reading(50.0, 1);
    for _ in 0..100 {
        let decision = hold(&mut controller, &mut now, &readings, 1);
        assert!(decision.reals[0].weight < 0.2, "{decision:?}");
    }
    readings[0] = reading(5.0, 3);
    let decision = hold(&mut controller, &mut now, &readings, 60);
    assert!(decision.reals[0].weight > 0.8, "{decision:?}");
}

#[test]
fn equalising_has_no_real_give_all_when_the_others_cannot_bear_it_any_more() {
    let mut controller = by(Law::Equalise, &[1.0; 4]);
    let mut now = 0;
    let pool = |slow_ms, others_ms, samples| {
        let mut readings = [reading(others_ms, samples); 4];
        readings[0] = reading(slow_ms, 15);
        readings
    };
    hold(&mut controller, &mut now, &pool(5.0, 5.0, 20), 10);
    let weight = |decision: Decision| decision.reals[0].weight;
    // As far as the others can bear it, it gives all.
    let mut before = controller.clone();
    let slow = pool(300.0, 5.0, 20);
    assert!(weight(hold(&mut before, &mut now.clone(), &slow, 12)) < 0.03);
    // Here what it gave at first was too much for them.
    let gave = weight(hold(&mut controller, &mut now, &slow, 4));
    assert!(gave < 0.5, "{gave}");
    let busy = pool(300.0, 60.0, 40);
    let kept = weight(hold(&mut controller, &mut now, &busy, 20));
    assert!(kept > 0.1, "{kept}");
    assert_sound(&controller);
}

#[test]
fn equalising_moves_nothing_for_the_peak_of_one_interval() {
    let mut controller = by(Law::Equalise, &[1.0; 4]);
    let mut now = 0;
    let calm = [reading(10.0, 40); 4];
    hold(&mut controller, &mut now, &calm, 30);
    let mut peak = calm;
    peak[2] = reading(60.0, 40);
    let at_peak = hold(&mut controller, &mut now, &peak, 1);
    let after = hold(&mut controller, &mut now, &calm, 1);
    for decision in [at_peak, after] {
        let moved = weights(&decision).into_iter().map(|w| (w - 1.0).abs());
        assert!(moved.fold(0.0, f64::max) < 0.02, "{decision:?}");
    }
    // Of two intervals running it is more than a peak.
    let decision = hold(&mut controller, &mut now, &peak, 2);
    assert!(decision.reals[2].weight < 0.9, "{decision:?}");
}

/// Busy reals, of whose connections as many are measured as the law asks for: equal ones keep
/// their weights as they do when all are measured, and one that answers late loses as much.
#[test]
fn samples_of_a_part_of_the_connections_steer_like_those_of_all() {
    const REQUESTS: u64 = 20_000;
    let mut random = 1_u64;
    let mut normal = move || {
        let mut uniform = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 11) as f64 / (1_u64 << 53) as f64
        };
        (0..12).map(|_| uniform()).sum::<f64>() - 6.0
    };
    let mut spreads = [0.0_f64; 2];
    let mut slow = [0.0; 2];
    for (sampled, (spread, slow)) in spreads.iter_mut().zip(&mut slow).enumerate() {
        let mut controller = by(Law::Equalise, &[1.0; 8]);
        let mut samplers = vec![ConnectionSampler::default(); 8];
        let mut now_ns = 0;
        for interval in 0..400 {
            now_ns += 100_000_000;
            let wanted = controller.samples_wanted();
            let readings: Vec<Reading> = samplers
                .iter_mut()
                .enumerate()
                .map(|(real, sampler)| {
                    let k = sampler.sampling().opening * sampled as u8;
                    let seen = REQUESTS >> k;
                    // The mean of exponential samples, by the central limit theorem.
                    let factor = if real == 0 && interval >= 300 {
                        4.0
                    } else {
                        1.0
                    };
                    let mean_ms = factor * 10.0 * (1.0 + normal() / (seen as f64).sqrt());
                    let counted = SampledInterval {
                        requests: seen << k,
                        requests_seen: seen,
                        weight_halves: 2 * seen,
                    };
                    sampler.follow(now_ns, &counted, wanted);
                    Reading {
                        latency_sum_halves_ns: (2.0 * mean_ms * 1e6) as u64 * seen,
                        latency_weight_halves: 2 * seen,
                        requests: seen,
                        all_requests: REQUESTS,
                        active: 1_000,
                        ..Reading::default()
                    }
                })
                .collect();
            let weights = weights(&controller.tick(now_ns, &readings));
            if (100..300).contains(&interval) {
                let off = weights.iter().map(|weight| (weight - 1.0).abs());
                *spread = off.fold(*spread, f64::max);
            }
            *slow = weights[0];
        }
        let k = samplers[1].sampling().opening;
        assert!((4..=9).contains(&k), "1 in {}", 1 << k);
    }
    // Equal servers keep their weights within 5 %.
    assert!(spreads.iter().all(|spread| *spread < 0.05), "{spreads:?}");
    assert!(
        slow.iter().all(|slow| *slow < 0.97) && (slow[1] - slow[0]).abs() < 0.02,
        "{slow:?}"
    );
}
