// SPDX-License-Identifier: Apache-2.0
//! The models against what can be reckoned by hand, and against each other.

use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;

fn paper_mix() -> Mix {
    Mix::new([RetryClass::new("rfc1122", RFC_1122_S, 21.0)]).expect("a valid mix")
}

/// A slot in which as many connections end as begin, each after no time.
fn slot(offered: u64, accepted: u64) -> Slot {
    Slot {
        offered,
        accepted,
        completed: accepted,
        ..Slot::default()
    }
}

/// `count` slots of a server that gets `firsts` new SYNs each and drops a share of
/// everything, with the retries that RFC 1122 makes of it, to whole slots of 1 s.
fn steady(firsts: f64, drop: f64, count: usize) -> Vec<Slot> {
    let mut arriving = vec![[0.0; 3]; count + 10];
    (0..count)
        .map(|now| {
            arriving[now][0] = firsts;
            let [r0, r1, r2] = arriving[now];
            arriving[now + 3][1] += r0 * drop;
            arriving[now + 6][2] += r1 * drop;
            let offered = r0 + r1 + r2;
            slot(
                offered.round() as u64,
                (offered * (1.0 - drop)).round() as u64,
            )
        })
        .collect()
}

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
fn the_reference_agrees_with_the_fast_model_where_round_trips_do_not_change() {
    let slots = steady(10_000.0, 0.4, 60);
    let mut reference = ReferenceModel::new(1.0, paper_mix(), 0.0, &[]).expect("valid");
    let mean_s = last_mean_s(|slot| reference.step(slot), &slots);
    assert!((mean_s - steady_mean_s(0.4)).abs() < 0.01, "{mean_s}");
    assert_eq!(reference.adjustments().1, 0);
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

/// The kernel's table of origins has room for so many: of what is missing there the rest
/// tells.
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
    assert_eq!(odds.confidence(), Confidence::Uneven);
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

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let refused = |error: Error| error.to_string();
    let long = FastModel::new(3.0, paper_mix(), 0.0).expect_err("as long as the gap");
    assert_eq!(
        refused(long),
        "a slot of 3 s is not shorter than the first retry gap of class `rfc1122` (3 s): take a slot below it"
    );
    let backwards = RetryClass::new("odd", &[3.0, 2.0], 9.0);
    assert_eq!(
        refused(Mix::new([backwards]).expect_err("out of order")),
        "class `odd`: retry 2 comes 2 s after the first SYN, not after the one before it"
    );
    assert_eq!(
        refused(Mix::new([]).expect_err("empty")),
        "a retry mix needs at least one class with a weight above 0"
    );
    let loss = FastModel::new(1.0, paper_mix(), 1.0).expect_err("everything lost");
    assert_eq!(
        refused(loss),
        "a network loss of 1 is not a share from 0 to below 1"
    );
}

#[test]
fn a_mix_is_learned_from_last_retries() {
    let class = |name, retries: &[f64], fto_s| RetryClass::new(name, retries, fto_s);
    let classes = [
        class("linux", LINUX_6_5_S, 60.0),
        class("windows", RFC_6298_S, 60.0),
        class("old", RFC_1122_S, 60.0),
    ];
    let mut learner = MixLearner::new(classes).expect("valid");
    // 700 of Linux, 200 of Windows, 100 old ones; half end at their first retry,
    // where Linux and Windows look alike.
    for (count, first, second) in [(700, 1.02, 2.045), (200, 1.0, 3.0), (100, 3.0, 9.0)] {
        for _ in 0..count / 2 {
            learner.observe(1, first);
            learner.observe(2, second);
        }
    }
    learner.observe(1, 1.7);
    let mix = learner.mix(1.0).expect("valid");
    let weights: Vec<f64> = mix.classes().iter().map(|class| class.weight).collect();
    for (weight, expected) in weights.iter().zip([0.7, 0.2, 0.1]) {
        assert!((weight - expected).abs() < 0.01, "{weights:?}");
    }
    assert!((learner.unknown_share() - 1.0 / 1001.0).abs() < 1e-9);
}

#[test]
fn patience_is_learned_from_those_who_do_not_come_again() {
    // A third each gives up at 3, 9 and 20 s; half of all SYNs are dropped.
    let class = RetryClass::new("linux", LINUX_6_5_S, 9.0);
    let mut learner = PatienceLearner::default();
    let mut by_retry = Vec::new();
    let mut trying = [30_000.0, 30_000.0, 30_000.0];
    for retry in 0..11 {
        let offered: f64 = trying.iter().sum();
        by_retry.push((offered as u64, (offered / 2.0) as u64));
        for (left, fto_s) in trying.iter_mut().zip([3.0, 9.0, 20.0]) {
            let goes_on = LINUX_6_5_S.get(retry).is_some_and(|at_s| *at_s < fto_s);
            *left = if goes_on { *left / 2.0 } else { 0.0 };
        }
    }
    learner.add(by_retry);
    let mix = learner
        .split(&class, &[3.0, 9.0, 20.0], 0.0)
        .expect("valid");
    let mut learned: Vec<(f64, f64)> = mix
        .classes()
        .iter()
        .map(|class| (class.fto_s, class.weight))
        .collect();
    learned.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert_eq!(learned.len(), 3, "{learned:?}");
    for ((fto_s, weight), expected) in learned.iter().zip([3.0, 9.0, 20.0]) {
        assert_eq!(*fto_s, expected);
        assert!((weight - 1.0 / 3.0).abs() < 0.01, "{learned:?}");
    }
}

#[test]
fn what_clients_were_like_long_ago_does_not_hide_what_they_are_like_now() {
    let class = RetryClass::new("linux", LINUX_6_5_S, 9.0);
    // Of those whose first SYN was dropped all come again, or a tenth.
    let patient = [(1000, 0), (1000, 0), (1000, 0)];
    let impatient = [(1000, 0), (100, 0), (10, 0)];
    let mut learner = PatienceLearner::default();
    for _ in 0..1000 {
        learner.add(patient);
        learner.fade(0.9);
    }
    for _ in 0..50 {
        learner.add(impatient);
        learner.fade(0.9);
    }
    let mix = learner.split(&class, &[], 0.0).expect("valid");
    let first = &mix.classes()[0];
    assert!(
        first.retries_s.is_empty() && (first.weight - 0.9).abs() < 0.01,
        "{mix:?}"
    );
    let mut votes = MixLearner::new([
        RetryClass::new("rfc6298", RFC_6298_S, 20.0),
        RetryClass::new("rfc1122", RFC_1122_S, 20.0),
    ])
    .expect("valid");
    votes.observe_many(1, 1.0, 1_000_000);
    (0..200).for_each(|_| votes.fade(0.9));
    votes.observe_many(1, 3.0, 1000);
    let share = votes.mix(10.0).expect("valid").classes()[1].weight;
    assert!(share > 0.98, "{share}");
}

#[test]
fn where_drops_tell_nothing_the_class_keeps_its_patience() {
    let class = RetryClass::new("linux", LINUX_6_5_S, 9.0);
    let learned = PatienceLearner::default()
        .split(&class, &[9.0], 0.0)
        .expect("valid");
    assert_eq!(learned, Mix::new([class]).expect("valid"));
}

#[test]
fn a_flood_is_told_from_impatient_clients() {
    let mix = paper_mix();
    let mut detector = FloodDetector::new(1.0, &mix);
    let judged = |first_offered, silent| Slot {
        first_offered,
        heard: first_offered - silent,
        ..Slot::default()
    };
    for _ in 0..30 {
        detector.judge(&judged(100, 2));
    }
    assert_eq!(detector.share(), 0.0, "two of a hundred is no flood");
    for _ in 0..30 {
        detector.judge(&judged(400, 302));
    }
    assert!(
        (detector.share() - 0.755).abs() < 0.01,
        "{}",
        detector.share()
    );
    let seen = Slot {
        offered: 400,
        accepted: 310,
        first_offered: 400,
        first_accepted: 310,
        heard: 100,
        heard_answered: 90,
        ..Slot::default()
    };
    let real = detector.without_flood(&seen);
    assert_eq!((real.offered, real.accepted), (100, 90), "{real:?}");
}

#[test]
fn those_who_gave_up_are_told_by_the_syns_that_are_missing() {
    let linux = |fto_s| RetryClass::new("linux", LINUX_6_5_S, fto_s);
    let known = |fto_s: &[f64]| {
        let mix = Mix::new(fto_s.iter().map(|&s| linux(s))).expect("valid");
        Judge::new(&mix, &vec![LINUX_6_5_S.to_vec(); fto_s.len()])
    };
    use Verdict::*;
    let nine = known(&[9.0]);
    for (last_s, age_s, loss, expected) in [
        (0.0, 1.1, 0.0, Waits),
        // Impatient: nobody knows when it left.
        (0.0, 1.3, 0.0, GaveUp(0.51)),
        (0.0, 1.3, 0.03, Waits),
        (0.0, 2.3, 0.03, GaveUp(0.51)),
        // In the usual case the longest patience is over.
        (7.13, 9.0, 0.0, Waits),
        (7.13, 9.7, 0.0, GaveUp(9.0)),
        // The last retry before it was lost.
        (5.12, 9.7, 0.03, GaveUp(9.0)),
        (5.12, 7.6, 0.0, GaveUp(f64::midpoint(5.12, 7.13))),
    ] {
        assert_eq!(
            nine.judge(last_s, age_s, loss),
            expected,
            "{last_s} {age_s} {loss}"
        );
    }
    let three = known(&[3.0, 9.0, 20.0]);
    assert_eq!(three.judge(2.05, 3.1, 0.0), Waits);
    assert_eq!(three.judge(2.05, 3.3, 0.0), GaveUp(3.0));
    assert_eq!(three.judge(7.14, 11.0, 0.0), Waits);
    assert_eq!(three.judge(7.14, 11.9, 0.0), GaveUp(9.0));
    assert_eq!(three.judge(19.4, 21.5, 0.0), GaveUp(20.0));
    assert_eq!(
        three.judge(30.0, 40.0, 0.0),
        GaveUp(f64::midpoint(30.0, 35.5))
    );
}

#[test]
fn an_observer_estimates_fresh_slots_and_settles_them_once() {
    let mix = paper_mix();
    let mut observer = Observer::new(1.0, &mix, 100).expect("valid");
    let mut alone = FastModel::new(1.0, mix.clone(), 0.0).expect("valid");
    let slot = |number: u64| Slot {
        offered: 100 + number % 7,
        accepted: 80,
        first_offered: 60,
        first_accepted: 40,
        heard: 60,
        heard_answered: 40,
        completed: 80,
        syn_to_end_ns: 8_000_000_000,
        ..Slot::default()
    };
    let settle = Observer::settle_slots(1.0, &mix);
    assert_eq!(settle, 5, "3.3 s and a slot");
    let slots: Vec<(u64, Slot)> = (0..60).map(|number| (number, slot(number))).collect();
    for now in 0..60_u64 {
        let until = now.saturating_sub(settle);
        let from = observer.next().unwrap_or(0);
        let settled = &slots[from as usize..until.max(from) as usize];
        let fresh = &slots[until.max(from) as usize..now as usize];
        observer.feed(settled, fresh).expect("valid");
        if now == 20 {
            assert_eq!(observer.gave_up(18, 21.0), Some(18));
            // Two that had not, as turns out when their slots are settled.
            let early = [18, 99].map(|number| observer.gave_up(number, 3.0));
            assert_eq!(early, [Some(18), Some(19)], "not yet there: the last");
        }
        if now == 30 {
            observer.take_back(18, 3.0);
            observer.take_back(19, 3.0);
        }
    }
    let mut short = Observer::new(1.0, &mix, 5).expect("valid");
    assert_eq!(short.gave_up(3, 9.0), None, "nothing is known");
    short.feed(&slots[..20], &[]).expect("valid");
    assert_eq!(short.gave_up(3, 9.0), None, "that slot is forgotten");
    short.take_back(3, 9.0);
    assert!(short.recent().all(|of| of.exact.gave_up == 0.0));
    let expected: Vec<Estimate> = slots.iter().map(|(_, slot)| alone.step(slot)).collect();
    let observed: Vec<&Observed> = observer.recent().collect();
    assert_eq!(observed.len(), 59);
    for of in observed {
        let model = &expected[of.number as usize];
        // The odds of drops are not even here, which the model of its own does not know.
        assert_eq!(
            (of.model.completed, of.slot.offered),
            (model.completed, slot(of.number).offered)
        );
        let gave_up = if of.number == 18 {
            (1.0, 21.0)
        } else {
            (0.0, 0.0)
        };
        assert_eq!(
            (of.exact.gave_up, of.exact.give_up_s),
            gave_up,
            "slot {}",
            of.number
        );
    }
}

/// What was counted before counts once: the odds and the loss are the same behind
/// another mix.
#[test]
fn another_mix_counts_no_slot_twice() {
    let mix = paper_mix();
    let mut observer = Observer::new(1.0, &mix, 100).expect("valid");
    let slots: Vec<(u64, Slot)> = (0..50)
        .map(|number| {
            let slot = Slot {
                offered: 100,
                accepted: 40,
                // At first retries are dropped like first SYNs, later all of them are.
                first_offered: 50,
                first_accepted: if number < 25 { 20 } else { 40 },
                heard: 50,
                established: 40,
                established_late: if number < 25 { 0 } else { 4 },
                ..Slot::default()
            };
            (number, slot)
        })
        .collect();
    observer.feed(&slots, &[]).expect("valid");
    let before = observer.standing();
    let other = Mix::new([RetryClass::new("other", RFC_1122_S, 9.5)]).expect("valid");
    observer.set_mix(1.0, &other).expect("valid");
    assert_eq!(observer.standing(), before);
}

#[test]
fn the_comparators_are_the_printed_formulas() {
    let p = 0.2;
    let expected = 0.01 * (1.0 - 0.008) + 0.6 + 0.24 + 0.096;
    assert!(
        (queueing_mean_s(0.01, p) - expected).abs() < 1e-12,
        "figure 22: about 1 s at 20 %"
    );
    let same = sliding_window_mean_s(0.5, |_| p);
    assert!((same - (0.5 + 0.6 + 0.24 + 0.096)).abs() < 1e-12);
}

mod tracker {
    use super::*;

    fn outcomes(events: &[(u64, Event)]) -> Vec<Outcome> {
        let mut tracker = Tracker::default();
        events
            .iter()
            .map(|&(at_ms, event)| tracker.step(event, at_ms * MS))
            .collect()
    }

    fn counts(events: &[(u64, Event)]) -> Vec<Count> {
        outcomes(events)
            .iter()
            .map(|outcome| outcome.count)
            .collect()
    }

    #[test]
    fn a_connection_that_got_in_at_its_second_retry() {
        let all = outcomes(&[
            (1000, Event::Syn(7)),
            (4000, Event::Syn(7)),
            (10_000, Event::Syn(7)),
            (10_001, Event::SynAck),
            (10_051, Event::Ack),
            (10_300, Event::Data),
            (10_400, Event::Data),
            (10_450, Event::Ack),
            (10_500, Event::ClientFin(107)),
            (10_550, Event::ServerFin),
        ]);
        let accepted = all[3];
        assert_eq!(
            (accepted.count, accepted.at_ns, accepted.retry),
            (Count::Accepted, 10_000 * MS, 2)
        );
        assert_eq!(
            (all[4].count, all[4].rtt_ns, all[4].answers),
            (Count::Established, 50 * MS, 1)
        );
        let done = all[8];
        assert_eq!(done.count, Count::Completed);
        assert_eq!(done.conn_fail_ns, 9000 * MS);
        assert_eq!(
            done.syn_to_end_ns,
            400 * MS,
            "to the last data, not to the FIN"
        );
        assert_eq!((done.rtt_ns, done.accepted_ns), (50 * MS, 10_000 * MS));
        assert_eq!(done.at_ns, 10_475 * MS, "its FIN was on the way for 25 ms");
        assert_eq!(all[9].count, Count::Nothing, "only the first FIN counts");
    }

    /// A client has the last data one way after they were sent: the slot is that of its
    /// end, not of the server's.
    #[test]
    fn an_end_counts_when_the_client_felt_it() {
        let end = |more: &[(u64, Event)]| {
            let connected = [(0, Event::Syn(1)), (1, Event::SynAck), (101, Event::Ack)];
            let all = outcomes(&[&connected[..], more].concat());
            let done = all.iter().find(|of| of.count == Count::Completed);
            done.map(|of| of.at_ns / MS)
        };
        let at_once = [(200, Event::Data), (200, Event::ServerFin)];
        assert_eq!(end(&at_once), Some(250));
        let by_the_client = [(200, Event::Data), (300, Event::ClientFin(9))];
        assert_eq!(end(&by_the_client), Some(250));
        let kept_open = [(200, Event::Data), (9000, Event::ClientFin(9))];
        assert_eq!(end(&kept_open), Some(8950));
    }

    #[test]
    fn syns_of_an_answered_attempt_are_duplicates_and_another_number_is_another_attempt() {
        use Count::*;
        let events = [
            (0, Event::Syn(1)),
            (1, Event::SynAck),
            (1000, Event::Syn(1)),
            (1001, Event::SynAck),
            (1100, Event::Ack),
            (5000, Event::Syn(2)),
            (5001, Event::SynAck),
        ];
        assert_eq!(
            counts(&events),
            [
                Offered,
                Accepted,
                Duplicate,
                Nothing,
                Established,
                Offered,
                Accepted
            ]
        );
        assert_eq!(outcomes(&events)[4].answers, 2, "a round trip was lost");
        assert_eq!(outcomes(&events)[5].retry, 0);
    }

    #[test]
    fn what_never_was_a_connection_is_abandoned() {
        use Count::*;
        assert_eq!(
            counts(&[(0, Event::Syn(1)), (5, Event::ClientReset(2))]),
            [Offered, Abandoned]
        );
        assert_eq!(
            counts(&[
                (0, Event::Syn(1)),
                (1, Event::SynAck),
                (5, Event::ServerReset)
            ]),
            [Offered, Accepted, Abandoned]
        );
        assert_eq!(
            counts(&[
                (0, Event::Ack),
                (1, Event::Data),
                (2, Event::ServerFin),
                (3, Event::SynAck)
            ]),
            [Nothing; 4]
        );
    }

    #[test]
    fn a_client_is_heard_of_once_after_its_first_syn() {
        let heard = |events: &[Event]| {
            let mut tracker = Tracker::default();
            let mut slot = Slot::default();
            for (at, event) in events.iter().enumerate() {
                let outcome = tracker.step(*event, at as u64 * MS);
                slot.count(&outcome);
                if outcome.heard {
                    slot.hear(&outcome);
                }
            }
            (slot.silent(), slot.silent_answered())
        };
        assert_eq!(heard(&[Event::Syn(1)]), (1, 0));
        assert_eq!(heard(&[Event::Syn(1), Event::SynAck]), (1, 1));
        assert_eq!(
            heard(&[Event::Syn(1), Event::SynAck, Event::Syn(1)]),
            (0, 0)
        );
        assert_eq!(heard(&[Event::Syn(1), Event::SynAck, Event::Ack]), (0, 0));
        let retried = [
            Event::Syn(1),
            Event::Syn(1),
            Event::Syn(1),
            Event::SynAck,
            Event::Ack,
        ];
        assert_eq!(heard(&retried), (0, 0));
    }

    #[test]
    fn a_connection_whose_final_ack_was_dropped_is_stalled() {
        use Count::*;
        let connected = [
            (0, Event::Syn(1)),
            (1000, Event::Syn(1)),
            (1001, Event::SynAck),
            (1002, Event::Ack),
        ];
        let after = |more: &[(u64, Event)]| outcomes(&[&connected[..], more].concat()).split_off(4);
        // The client sends FIN, and again, as nobody acknowledges it.
        let left = after(&[(9000, Event::ClientFin(102)), (9200, Event::ClientFin(102))]);
        assert_eq!([left[0].count, left[1].count], [Nothing, Stalled]);
        assert_eq!(
            left[1].conn_fail_ns,
            9000 * MS,
            "from the first SYN to the first FIN"
        );
        assert_eq!(after(&[(5000, Event::ClientReset(102))])[0].count, Stalled);
        assert_eq!(after(&[(5000, Event::ServerReset)])[0].count, Stalled);
        // Nothing was asked: a probe that looks whether somebody listens.
        let looked = after(&[(1500, Event::ClientReset(2))]);
        assert_eq!(looked[0].count, Abandoned);
        // An ACK of the server's is enough to tell that it knows the connection.
        let served = after(&[(1500, Event::Served), (5000, Event::ClientReset(102))]);
        assert_eq!(served[1].count, Completed);
    }

    #[test]
    fn data_after_the_clients_fin_belongs_to_the_transaction() {
        let all = outcomes(&[
            (0, Event::Syn(1)),
            (1, Event::SynAck),
            (2, Event::Ack),
            (3, Event::ClientFin(102)),
            (4, Event::Served),
            (500, Event::Data),
            (501, Event::ServerFin),
        ]);
        assert_eq!(all[3].count, Count::Nothing);
        let done = all[6];
        assert_eq!(
            (done.count, done.syn_to_end_ns),
            (Count::Completed, 500 * MS)
        );
    }

    /// The network lost the end of an answer, which the server had sent with its FIN.
    #[test]
    fn data_that_is_sent_again_after_the_servers_fin_makes_the_answer_longer() {
        let answered = [
            (0, Event::Syn(1)),
            (1, Event::SynAck),
            (151, Event::Ack),
            (300, Event::Data),
            (300, Event::ServerFin),
        ];
        let after = |more: &[(u64, Event)]| {
            let all = outcomes(&[&answered[..], more].concat());
            let mut slot = Slot::default();
            all.iter().for_each(|outcome| slot.count(outcome));
            assert_eq!(all[4].count, Count::Completed, "by its FIN");
            (slot.completed, slot.syn_to_end_ns / MS)
        };
        let again = [(600, Event::Data), (600, Event::ServerFin)];
        assert_eq!(after(&again), (1, 600));
        let twice = [again[0], (1200, Event::Data), (1290, Event::ClientFin(9))];
        assert_eq!(after(&twice), (1, 1200));
        let gone = [again[0], (2601, Event::Data), (2700, Event::Data)];
        assert_eq!(after(&gone), (1, 600), "nobody is there any more");
        let had_it = [(460, Event::ClientFin(9)), (600, Event::Data)];
        assert_eq!(after(&had_it), (1, 300), "the client had closed");
        // Whose client had said that it sends no more: its last word does not come.
        let half_closed = outcomes(
            &[
                &answered[..3],
                &[(152, Event::ClientFin(9))],
                &answered[3..],
                &[(600, Event::Data)],
            ]
            .concat(),
        );
        let counts = [&half_closed[5], &half_closed[6]].map(|of| of.count);
        assert_eq!(counts, [Count::Completed, Count::Nothing]);
    }

    /// A RST answers the second SYN-ACK: the client had lost its patience before.
    #[test]
    fn an_attempt_that_is_answered_too_late_was_left_once() {
        use Count::*;
        let events = [
            (0, Event::Syn(1)),
            (1, Event::SynAck),
            (1001, Event::SynAck),
            (1011, Event::ClientReset(2)),
            (3001, Event::SynAck),
            (3011, Event::ClientReset(2)),
        ];
        assert_eq!(
            counts(&events),
            [Offered, Accepted, Nothing, Abandoned, Nothing, Nothing]
        );
    }

    #[test]
    fn a_refused_syn_was_no_offer() {
        let all = outcomes(&[(0, Event::Syn(1)), (300, Event::ServerReset)]);
        assert_eq!((all[1].count, all[1].at_ns), (Count::Refused, 0));
        let mut slot = Slot::default();
        all.iter().for_each(|outcome| slot.count(outcome));
        assert_eq!(
            (slot.offered, slot.first_offered, slot.dropped()),
            (0, 0, 0)
        );
    }

    proptest! {
        /// Whatever comes in whatever order: at most as many accepted as offered,
        /// completed as established, and no time below zero.
        #[test]
        fn counters_stay_consistent(
            events in prop::collection::vec((0_u64..2000, 0_u8..9, 0_u32..3), 0..200)
        ) {
            let mut tracker = Tracker::default();
            let (mut now_ns, mut offered, mut accepted, mut established, mut completed) = (1, 0, 0, 0, 0);
            for (wait_ms, kind, isn) in events {
                now_ns += wait_ms * MS;
                let event = match kind {
                    0 => Event::Syn(isn),
                    1 => Event::SynAck,
                    2 => Event::Ack,
                    3 => Event::Served,
                    4 => Event::Data,
                    5 => Event::ClientFin(isn + 1 + isn % 2),
                    6 => Event::ServerFin,
                    7 => Event::ClientReset(isn + 1),
                    _ => Event::ServerReset,
                };
                let outcome = tracker.step(event, now_ns);
                // One way from now at most.
                prop_assert!(outcome.at_ns <= now_ns + 500 * MS);
                offered += u64::from(outcome.count == Count::Offered);
                accepted += u64::from(outcome.count == Count::Accepted);
                established += u64::from(outcome.count == Count::Established);
                completed += u64::from(matches!(outcome.count, Count::Completed | Count::Stalled));
                if outcome.count == Count::Completed {
                    prop_assert!(outcome.syn_to_end_ns <= now_ns && outcome.conn_fail_ns <= outcome.accepted_ns);
                }
                prop_assert!(completed <= established && established <= accepted && accepted <= offered);
            }
        }
    }
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
        let mut reference = ReferenceModel::new(1.0, paper_mix(), loss, &[-0.3, 0.0, 0.4]).expect("valid");
        for (offered, accepted, completed, slots_ago) in counts {
            let origins = vec![Origin { slots_ago, completed }];
            let slot = Slot { offered, accepted: accepted.min(offered), completed, origins, ..Slot::default() };
            for estimate in [fast.step(&slot), reference.step(&slot)] {
                prop_assert_eq!(estimate.completed, completed as f64);
                for value in [estimate.gave_up, estimate.give_up_s, estimate.conn_fail_s] {
                    prop_assert!(value.is_finite() && value >= -1e-6, "{:?}", estimate);
                }
            }
        }
    }
}
