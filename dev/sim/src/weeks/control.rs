// SPDX-License-Identifier: Apache-2.0
//! What decides about reals.

use causeway_core::control::{ControlParams, Controller, Law, Member, Reading};
use causeway_core::health::{Check, HealthParams, HealthState};
use rand::Rng as _;

use super::{BrokenProperty, DAY, HOUR, Life, MINUTE, MS, Machine, SECOND};

pub(super) const HEALTH: Machine = Machine {
    name: "health",
    wraps: "numbers of probes (64 bits), rows of outcomes (stop at 2^32)",
    planted: "its clock is a u32 of ms that began before",
    run: health,
};
pub(super) const CONTROLLER: Machine = Machine {
    name: "controller",
    wraps: "counters of the data plane, whose differences it gets",
    planted: "sums are a u32 of us, and are subtracted in 64 bits",
    run: controller,
};

/// A real that fails now and then, for seconds to days.
fn health(life: &mut Life) -> Result<(), BrokenProperty> {
    let params = HealthParams::default();
    let round_ns = MS << 32;
    life.begin_around(round_ns);
    let clock_ns = |life: &Life| match life.plan.planted {
        true => life.now_ns % round_ns,
        false => life.now_ns,
    };
    let mut check = Check::new(params, clock_ns(life), life.plan.seed);
    let (mut is_well, mut until_ns, mut since_ns) = (true, life.now_ns + HOUR, life.now_ns);
    let mut probed_ns = life.now_ns;
    while life.lasts() {
        life.wait(SECOND / 2, round_ns);
        if life.now_ns >= until_ns {
            is_well = !is_well;
            since_ns = life.now_ns;
            let longest_ns = if is_well { DAY / 4 } else { HOUR };
            until_ns += life.rng.random_range(20 * SECOND..longest_ns);
        }
        let now_ns = clock_ns(life);
        check.handle_timeout(now_ns);
        if let Some(probe) = check.poll_probe(now_ns) {
            probed_ns = life.now_ns;
            if is_well {
                check.handle_outcome(now_ns, probe.number, Ok(String::new()));
            }
        }
        while check.poll_event().is_some() {}
        let quiet_ns = life.now_ns - probed_ns;
        let apart_ns = params.interval_ns + params.timeout_ns + SECOND;
        life.holds(quiet_ns <= apart_ns, || {
            format!("no probe for {quiet_ns} ns")
        })?;
        let ought = match is_well {
            true => HealthState::Up,
            false => HealthState::Down,
        };
        let for_ns = life.now_ns - since_ns;
        let settled = for_ns > 4 * params.interval_ns + params.timeout_ns;
        life.holds(!settled || check.state() == ought, || {
            format!("{ought:?} for {for_ns} ns, and {:?}", check.state())
        })?;
    }
    Ok(())
}

/// Three reals; now and then one is slow for minutes, and at night there are no requests.
fn controller(life: &mut Life) -> Result<(), BrokenProperty> {
    let params = ControlParams::default();
    let members = [0, 1, 2].map(|id| Member {
        id,
        configured: 1.0,
    });
    let mut controller = Controller::new(Law::Equalise, params.clone());
    controller.set_members(&members);
    let (mut slow, mut until_ns) = (None, life.now_ns + 10 * MINUTE);
    let mut settled_ns = life.now_ns;
    // As the data plane adds them up.
    let mut sums = [0_u64; 3];
    while life.lasts() {
        life.wait(params.interval_ns, DAY);
        if life.now_ns >= until_ns {
            slow = match slow {
                None => Some(life.rng.random_range(0..3_usize)),
                Some(_) => None,
            };
            settled_ns = life.now_ns;
            until_ns += life.rng.random_range(2 * MINUTE..HOUR);
        }
        let by_night = life.now_ns % DAY > DAY * 3 / 4;
        let readings: [Reading; 3] = std::array::from_fn(|real| {
            let requests = if by_night {
                0
            } else {
                life.rng.random_range(10..30)
            };
            let factor = if slow == Some(real) { 10 } else { 1 };
            let latency_ns = factor * life.rng.random_range(8 * MS..12 * MS);
            let sum = 2 * requests * latency_ns;
            let before = sums[real];
            sums[real] += sum;
            let delta = match life.plan.planted {
                true => u64::from((sums[real] / 1000) as u32)
                    .wrapping_sub(u64::from((before / 1000) as u32))
                    .saturating_mul(1000),
                false => sum,
            };
            Reading {
                latency_sum_halves_ns: delta,
                latency_weight_halves: 2 * requests,
                requests,
                active: requests,
                ..Reading::default()
            }
        });
        controller.tick(life.now_ns, &readings);
        let weights: [f64; 3] = {
            let mut of = controller.weights().map(|(_, weight)| weight);
            std::array::from_fn(|_| of.next().unwrap_or(f64::NAN))
        };
        let sum: f64 = weights.iter().sum();
        let (least, most) = (params.floor - 1e-9, params.cap + 1e-9);
        let bounded = weights.iter().all(|weight| (least..=most).contains(weight));
        life.holds((sum - 3.0).abs() < 1e-6 && bounded, || {
            format!("weights {weights:?}")
        })?;
        let is_settled = life.now_ns - settled_ns > MINUTE && !by_night;
        let right = match slow {
            None => weights.iter().all(|weight| (0.7..1.4).contains(weight)),
            Some(real) => weights[real] < 0.5,
        };
        life.holds(!is_settled || right || life.now_ns % DAY < MINUTE, || {
            format!("{slow:?} is slow, weights {weights:?}")
        })?;
    }
    Ok(())
}
