// SPDX-License-Identifier: Apache-2.0
//! The controller: what holds for any input, and single rules on readings made by hand.
//! Whole runs against simulated servers are in dev/sim.

mod any_law;
mod equalise;
mod watermark;

use causeway_core::control::{ControlParams, Controller, Decision, Law, Member, Reading};

const MS: u64 = 1_000_000;
const INTERVAL_NS: u64 = 100 * MS;

fn controller(configured: &[f64]) -> Controller {
    by(Law::Watermark, configured)
}

fn by(law: Law, configured: &[f64]) -> Controller {
    let mut controller = Controller::new(law, ControlParams::default());
    controller.set_members(&members(configured));
    controller
}

fn members(configured: &[f64]) -> Vec<Member> {
    let member = |(id, &configured): (usize, &f64)| Member {
        id: id as u32,
        configured,
    };
    configured.iter().enumerate().map(member).collect()
}

/// `samples` responses of `latency_ms`, as many requests, ten connections.
fn reading(latency_ms: f64, samples: u64) -> Reading {
    Reading {
        latency_sum_halves_ns: (2.0 * latency_ms * 1e6) as u64 * samples,
        latency_weight_halves: 2 * samples,
        requests: samples,
        active: 10,
        ..Reading::default()
    }
}

/// Ticks `times` intervals with the same readings; returns the last decision.
fn hold(
    controller: &mut Controller,
    now: &mut u64,
    readings: &[Reading],
    times: usize,
) -> Decision {
    let mut last = None;
    for _ in 0..times {
        *now += INTERVAL_NS;
        last = Some(controller.tick(*now, readings));
    }
    last.expect("at least one interval")
}

fn weights(decision: &Decision) -> Vec<f64> {
    decision.reals.iter().map(|real| real.weight).collect()
}

fn assert_sound(controller: &Controller) {
    let params = controller.params().clone();
    let (mut sum, mut configured) = (0.0, 0.0);
    for (member, weight) in controller.weights() {
        sum += weight;
        configured += member.configured;
        let slack = 1e-9 * (1.0 + member.configured);
        assert!(weight >= params.floor * member.configured - slack);
        assert!(weight <= params.cap * member.configured + slack);
    }
    assert!((sum - configured).abs() <= 1e-6 * (1.0 + configured));
}
