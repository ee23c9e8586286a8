// SPDX-License-Identifier: Apache-2.0
//! What is learned of clients: their mix, their patience, floods among them.

use super::paper_mix;
use crate::certes::*;

#[test]
fn what_cannot_be_is_refused_with_a_reason() {
    let refused = |error: CertesError| error.to_string();
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

/// Both sums fade alike, so that a share of one SYN would last for hours.
#[test]
fn a_scan_of_an_idle_service_is_no_flood() {
    let mut detector = FloodDetector::new(1.0, &paper_mix());
    let silent = |first_offered| Slot {
        first_offered,
        ..Slot::default()
    };
    detector.judge(&silent(1));
    assert_eq!(detector.share(), 0.0, "a single SYN");
    for _ in 0..60 {
        detector.judge(&silent(10));
        assert_eq!(detector.share(), 0.0, "health checks, ten a second");
    }
    detector.judge(&silent(300));
    assert_eq!(detector.share(), 1.0, "a flood");
    for _ in 0..10 {
        detector.judge(&silent(0));
    }
    assert_eq!(detector.share(), 0.0, "and its end");
}

#[test]
fn those_who_gave_up_are_told_by_the_syns_that_are_missing() {
    let linux = |fto_s| RetryClass::new("linux", LINUX_6_5_S, fto_s);
    let known = |fto_s: &[f64]| {
        let mix = Mix::new(fto_s.iter().map(|&s| linux(s))).expect("valid");
        Judge::new(&mix, vec![LINUX_6_5_S.to_vec()])
    };
    use AttemptFate::*;
    let nine = known(&[9.0]);
    for (last_s, age_s, loss, expected) in [
        (0.0, 1.1, 0.0, Waits),
        // Impatient: it is unknown when it left.
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
