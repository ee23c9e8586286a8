// SPDX-License-Identifier: Apache-2.0
//! The fast model against what can be reckoned by hand. The full model, which is slow, is of the simulation.

use proptest::prelude::*;

use super::{paper_mix, slot, steady};
use crate::certes::*;

fn last_mean_s(step: impl FnMut(&Slot) -> Estimate, slots: &[Slot]) -> f64 {
    slots
        .iter()
        .map(step)
        .reduce(|_, last| last)
        .and_then(|last| last.mean_s())
        .expect("transactions")
}

/// Eq. 4 in the steady state with k = 2: of each new client a share p^j (1 - p) gets
/// in at its j-th retry, p^3 gives up after 21 s.
fn steady_mean_s(p: f64) -> f64 {
    p * (1.0 - p) * 3.0 + p * p * (1.0 - p) * 9.0 + p.powi(3) * 21.0
}

#[test]
fn a_steady_drop_rate_gives_equation_4() {
    for p in [0.0, 0.1, 0.3, 0.7] {
        let slots = steady(10_000.0, p, 60);
        let mut fast = FastModel::new(1.0, paper_mix(), 0.0).expect("valid");
        let mean_s = last_mean_s(|slot| fast.step(slot), &slots);
        assert!(
            (mean_s - steady_mean_s(p)).abs() < 0.01,
            "p = {p}: {mean_s}"
        );
    }
}

#[test]
fn a_model_that_starts_in_the_middle_converges() {
    // Clients that were retrying count as new; the last that comes of them is that
    // they give up, one patience later. From then on the figures swing around the
    // truth with the period of the first two gaps, 6 s, ever less.
    let slots = steady(10_000.0, 0.5, 120);
    let mut late = FastModel::new(1.0, paper_mix(), 0.0).expect("valid");
    let means: Vec<f64> = slots[60..]
        .iter()
        .map(|slot| late.step(slot).mean_s().expect("transactions"))
        .collect();
    assert!(
        (means[0] - steady_mean_s(0.5)).abs() > 1.0,
        "nothing to converge from"
    );
    for around in means[24..].windows(6) {
        let mean_s = around.iter().sum::<f64>() / 6.0;
        assert!((mean_s / steady_mean_s(0.5) - 1.0).abs() < 0.05, "{mean_s}");
    }
}

#[test]
fn retries_that_do_not_come_are_expected_one_slot_later() {
    let mut model = FastModel::new(1.0, paper_mix(), 0.0).expect("valid");
    model.step(&slot(100, 0));
    for _ in 0..2 {
        model.step(&slot(0, 0));
    }
    assert!((model.forecast(0) - 100.0).abs() < 1e-9);
    model.step(&slot(40, 40));
    assert!((model.forecast(0) - 60.0).abs() < 1e-9, "eq. 30");
    let shares = model.lost_time_shares();
    let first_retries: f64 = shares
        .iter()
        .filter(|(s, _)| *s == 3.0)
        .map(|(_, share)| share)
        .sum();
    assert!(
        (first_retries - 1.0).abs() < 1e-9,
        "all 40 were first retries: {shares:?}"
    );
}

#[test]
fn connections_count_by_the_slot_that_accepted_them() {
    let mut model = FastModel::new(1.0, paper_mix(), 0.0).expect("valid");
    model.step(&Slot {
        completed: 0,
        ..slot(100, 50)
    });
    for _ in 0..2 {
        model.step(&slot(0, 0));
    }
    model.step(&Slot {
        completed: 0,
        ..slot(50, 50)
    });
    // Fifty were accepted at once, fifty after 3 s; all end now.
    let origins = vec![
        Origin {
            slots_ago: 4,
            completed: 50,
        },
        Origin {
            slots_ago: 1,
            completed: 50,
        },
    ];
    let last = model.step(&Slot {
        completed: 100,
        origins,
        ..Slot::default()
    });
    assert!((last.conn_fail_s - 150.0).abs() < 1e-9, "eq. 12: {last:?}");
    assert_eq!(last.completed, 100.0);
}

/// The kernel's table of origins has a limit: those in it stand for those that are missing.
#[test]
fn origins_that_are_missing_count_like_the_others() {
    let of = |origins| {
        let mut model = FastModel::new(1.0, paper_mix(), 0.0).expect("valid");
        model.step(&slot(100, 50));
        for _ in 0..2 {
            model.step(&slot(0, 0));
        }
        model.step(&slot(50, 50));
        let ended = Slot {
            completed: 100,
            origins,
            ..Slot::default()
        };
        model.step(&ended).conn_fail_s
    };
    let origin = |slots_ago, completed| Origin {
        slots_ago,
        completed,
    };
    let all = of(vec![origin(4, 50), origin(1, 50)]);
    let some = of(vec![origin(4, 20), origin(1, 20)]);
    assert!((all - 150.0).abs() < 1e-9, "{all}");
    assert!((some - all).abs() < 1e-9, "{some}");
}

#[test]
fn lost_packets_count_as_drops() {
    // One SYN in ten is lost; of the ten clients behind nine SYNs one waits 3 s.
    let mut model = FastModel::new(1.0, paper_mix(), 0.1).expect("valid");
    let slots: Vec<Slot> = (0..40).map(|_| slot(1000, 1000)).collect();
    let mean_s = last_mean_s(|slot| model.step(slot), &slots);
    let p = 0.1;
    assert!(
        (mean_s - steady_mean_s(p)).abs() < 0.01,
        "{mean_s} {}",
        steady_mean_s(p)
    );
}

#[test]
fn measured_odds_move_the_drops_to_the_retries() {
    let mut odds = DropOdds::new(1.0);
    let tracked = Slot {
        offered: 1400,
        accepted: 1000,
        first_offered: 1000,
        first_accepted: 900,
        ..Slot::default()
    };
    for _ in 0..200 {
        odds.add(&tracked);
    }
    // (300 / 100) / (100 / 900)
    let ratio = odds.ratio().expect("enough SYNs");
    assert!((ratio - 27.0).abs() < 0.1, "{ratio}");
    assert_eq!(odds.confidence(), ModelFit::Uneven);
    let mut model = FastModel::new(1.0, paper_mix(), 0.0).expect("valid");
    model.set_odds(Some(&odds));
    for _ in 0..3 {
        model.step(&slot(1000, 900));
    }
    // 100 retries among 1000: with odds of 27 to 1 they take most of the 100 drops.
    model.step(&slot(1000, 900));
    let retries_accepted: f64 = model
        .lost_time_shares()
        .iter()
        .filter(|(s, _)| *s > 0.0)
        .map(|(_, share)| share * 900.0)
        .sum();
    let rate = |f: f64| 900.0 * f + 100.0 * (ratio * f / (1.0 - f + ratio * f)) - 100.0;
    assert!(
        rate(1.0 - (900.0 - retries_accepted) / 900.0).abs() < 0.5,
        "{retries_accepted}"
    );
    assert!(retries_accepted < 50.0, "{retries_accepted}");
}

/// Where all retries that are answered stall, those that complete have lost nothing.
#[test]
fn what_stalled_is_not_in_the_loss_of_what_completed() {
    let mut stalls = StallShares::new(1.0);
    let mut plain = FastModel::new(1.0, paper_mix(), 0.0).expect("valid");
    let mut model = plain.clone();
    assert_eq!(stalls.shares(), (0.0, 0.0), "nobody came");
    let tracked = Slot {
        offered: 1000,
        accepted: 800,
        completed: 700,
        // None of those ends, so far.
        established: 800,
        established_first: 700,
        served: 700,
        served_first: 700,
        ..Slot::default()
    };
    for _ in 0..30 {
        stalls.add(&tracked);
        model.set_stalls(&stalls);
        let (lost_s, all_s) = (
            model.step(&tracked).conn_fail_s,
            plain.step(&tracked).conn_fail_s,
        );
        assert!(lost_s.abs() < 1e-9 && all_s >= lost_s, "{lost_s} {all_s}");
    }
    assert_eq!(stalls.shares(), (0.0, 1.0));
    assert!(plain.step(&tracked).conn_fail_s > 100.0);
}

proptest! {
    /// On any counters: nothing negative, nothing infinite, and as many transactions
    /// completed as were counted.
    #[test]
    fn any_counters_give_sound_estimates(
        counts in prop::collection::vec((0_u64..500, 0_u64..500, 0_u64..500, 0_u32..40), 1..120),
        loss in 0.0..0.3,
    ) {
        let mut fast = FastModel::new(1.0, paper_mix(), loss).expect("valid");
        for (offered, accepted, completed, slots_ago) in counts {
            let origins = vec![Origin { slots_ago, completed }];
            let slot = Slot { offered, accepted: accepted.min(offered), completed, origins, ..Slot::default() };
            let estimate = fast.step(&slot);
            prop_assert_eq!(estimate.completed, completed as f64);
            for value in [estimate.gave_up, estimate.give_up_s, estimate.conn_fail_s] {
                prop_assert!(value.is_finite() && value >= -1e-6, "{:?}", estimate);
            }
        }
    }
}
