// SPDX-License-Identifier: Apache-2.0
//! The watermark laws, the paper's among them, on readings made by hand.

use causeway_core::control::{ControlParams, Law, Reading, Reason};

use super::{assert_sound, by, controller, hold, members, reading, weights};

#[test]
fn a_slow_real_gives_in_proportion_to_its_latency_and_weight() {
    let first = |latency_ms: f64| {
        let mut controller = controller(&[1.0; 8]);
        let mut readings = [reading(5.0, 1000); 8];
        readings[0] = reading(latency_ms, 1000);
        let decision = hold(&mut controller, &mut 0, &readings, 1);
        1.0 - decision.reals[0].weight
    };
    let params = ControlParams::default();
    assert!((first(10.0) - 0.5 * params.step).abs() < 1e-9);
    assert!((first(20.0) - 2.5 * params.step).abs() < 1e-9);
    assert!((first(5000.0) - params.max_decrease).abs() < 1e-9);
    assert_eq!(first(7.0), 0.0);
}

#[test]
fn receivers_share_equally_up_to_the_cap_per_interval() {
    let mut controller = controller(&[4.0, 1.0, 1.0, 1.0]);
    let mut readings = [reading(5.0, 1000); 4];
    readings[0] = reading(500.0, 1000);
    let decision = hold(&mut controller, &mut 0, &readings, 1);
    // Half of 4.0 is wanted; each receiver takes a tenth of its 1.0.
    assert_eq!(weights(&decision), [3.7, 1.1, 1.1, 1.1]);
    assert!(matches!(decision.reals[0].reason, Reason::High { .. }));
    assert_eq!(decision.reals[1].reason, Reason::Received);
}

#[test]
fn a_receiver_must_be_as_fresh_as_every_slow_real() {
    let mut controller = controller(&[1.0; 3]);
    let mut stale = reading(5.0, 1000);
    stale.active = 1000;
    let mut slow = reading(50.0, 1000);
    slow.active = 500;
    let decision = hold(
        &mut controller,
        &mut 0,
        &[slow, stale, reading(5.0, 1000)],
        1,
    );
    assert!(matches!(decision.reals[1].reason, Reason::NotFresh { .. }));
    assert_eq!(decision.reals[1].weight, 1.0);
    assert_eq!(decision.reals[2].reason, Reason::Received);
}

#[test]
fn few_samples_and_one_slow_estimate_take_nothing() {
    let mut controller = controller(&[1.0; 4]);
    let mut now = 0;
    hold(&mut controller, &mut now, &[reading(5.0, 50); 4], 10);
    let mut readings = [reading(5.0, 50); 4];
    readings[0] = reading(3_000.0, 1);
    let decision = hold(&mut controller, &mut now, &readings, 1);
    assert_eq!(weights(&decision), [1.0; 4]);
    let decision = hold(&mut controller, &mut now, &[reading(5.0, 50); 4], 5);
    assert!(decision.reals[0].weight > 0.5);
    let decision = hold(&mut controller, &mut now, &[reading(5.0, 50); 4], 50);
    assert!(
        decision
            .reals
            .iter()
            .all(|real| (real.weight - 1.0).abs() < 0.05)
    );
}

#[test]
fn a_real_that_swallows_requests_is_suspect_until_it_answers() {
    let mut controller = controller(&[1.0; 4]);
    let mut now = 0;
    hold(&mut controller, &mut now, &[reading(5.0, 50); 4], 10);
    let mut readings = [reading(5.0, 50); 4];
    readings[0] = Reading {
        requests: 20,
        active: 20,
        ..Reading::default()
    };
    let decision = hold(&mut controller, &mut now, &readings, 10);
    assert!(decision.reals[0].weight < 0.1, "{decision:?}");
    assert!(matches!(
        decision.reals[0].reason,
        Reason::Suspect { .. } | Reason::Floor
    ));
    let decision = hold(&mut controller, &mut now, &[reading(5.0, 50); 4], 60);
    assert!(decision.reals[0].weight > 0.9, "{decision:?}");
}

/// Clients that pause ask again what they asked a real that has hung meanwhile: what it answered
/// half a minute ago becomes known by that. That it answers now their acknowledgements show.
#[test]
fn answers_of_long_ago_do_not_end_a_silence() {
    for (answers_acked, is_suspect) in [(0, true), (1, false)] {
        let mut controller = controller(&[1.0; 4]);
        let mut now = 0;
        hold(&mut controller, &mut now, &[reading(5.0, 50); 4], 10);
        let mut readings = [reading(5.0, 50); 4];
        readings[0] = Reading {
            late_weight_halves: 2 * 3,
            answers_acked,
            ..reading(5.0, 3)
        };
        let decision = hold(&mut controller, &mut now, &readings, 30);
        let weight = decision.reals[0].weight;
        assert_eq!(weight < 0.1, is_suspect, "{decision:?}");
    }
}

#[test]
fn silence_without_requests_is_not_suspect() {
    let mut controller = controller(&[1.0; 4]);
    let mut now = 0;
    hold(&mut controller, &mut now, &[reading(5.0, 50); 4], 10);
    let mut readings = [reading(5.0, 50); 4];
    readings[0] = Reading::default();
    let decision = hold(&mut controller, &mut now, &readings, 100);
    assert_eq!(weights(&decision), [1.0; 4]);
}

#[test]
fn a_lone_fast_real_attracts_nothing() {
    let mut controller = controller(&[1.0; 4]);
    let mut now = 0;
    hold(&mut controller, &mut now, &[reading(5.0, 50); 4], 10);
    let mut readings = [reading(5.0, 50); 4];
    readings[0] = reading(0.1, 2000);
    let decision = hold(&mut controller, &mut now, &readings, 50);
    assert_eq!(weights(&decision), [1.0; 4]);
    assert_eq!(decision.reals[0].reason, Reason::LoneFast);
}

#[test]
fn all_slow_together_changes_nothing() {
    let mut controller = controller(&[1.0, 2.0, 3.0]);
    let mut now = 0;
    hold(&mut controller, &mut now, &[reading(5.0, 50); 3], 10);
    let decision = hold(&mut controller, &mut now, &[reading(80.0, 50); 3], 50);
    assert_eq!(weights(&decision), [1.0, 2.0, 3.0]);
}

#[test]
fn a_drained_real_is_left_alone_and_members_keep_their_share() {
    let mut controller = controller(&[1.0, 1.0, 0.0]);
    let mut now = 0;
    let readings = [reading(50.0, 500), reading(5.0, 500), reading(1.0, 500)];
    let decision = hold(&mut controller, &mut now, &readings, 3);
    assert_eq!(decision.reals[2].reason, Reason::Drained);
    assert_eq!(decision.reals[2].weight, 0.0);
    let slow = decision.reals[0].weight;
    assert!(slow < 0.8);
    controller.set_members(&members(&[10.0, 10.0, 0.0]));
    let (_, after) = controller.weights().next().expect("a member");
    assert!((after - 10.0 * slow).abs() < 1e-9);
    assert_sound(&controller);
}

#[test]
fn the_papers_law_leads_all_weights_back_when_nothing_changes() {
    let weight = |law, samples| {
        let mut controller = by(law, &[1.0; 4]);
        let mut now = 0;
        let mut readings = [reading(5.0, samples); 4];
        readings[0] = reading(50.0, samples);
        hold(&mut controller, &mut now, &readings, 10);
        // A trickle that no longer makes an estimate: the latency does not change.
        let quiet = [reading(5.0, 0); 4];
        hold(&mut controller, &mut now, &quiet, 20).reals[0].weight
    };
    assert!(weight(Law::WatermarkPaper, 1000) > 0.9);
    assert!(weight(Law::Watermark, 1000) < 0.1);
    // Few enough for the others to bear them.
    assert!(weight(Law::Equalise, 10) < 0.1);
}

#[test]
fn the_papers_law_acts_on_one_interval_without_a_margin() {
    let first = |law| {
        let mut controller = by(law, &[1.0; 4]);
        let mut readings = [reading(5.0, 4); 4];
        readings[0] = reading(10.0, 4);
        hold(&mut controller, &mut 0, &readings, 1).reals[0].weight
    };
    assert!((1.0 - first(Law::WatermarkPaper) - 0.5 * ControlParams::default().step).abs() < 1e-9);
    assert_eq!(first(Law::Watermark), 1.0);
    assert_eq!(first(Law::Equalise), 1.0);
}
