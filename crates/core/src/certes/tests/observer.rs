// SPDX-License-Identifier: Apache-2.0
//! The observer: slots as they come, estimates as they settle.

use super::paper_mix;
use crate::certes::*;

#[test]
fn an_observer_estimates_fresh_slots_and_settles_them_once() {
    let mix = paper_mix();
    let mut observer = CategoryObserver::new(1.0, &mix, 100).expect("valid");
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
    let settle = CategoryObserver::settle_slots(1.0, &mix);
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
    let mut short = CategoryObserver::new(1.0, &mix, 5).expect("valid");
    assert_eq!(short.gave_up(3, 9.0), None, "nothing is known");
    short.feed(&slots[..20], &[]).expect("valid");
    assert_eq!(short.gave_up(3, 9.0), None, "that slot is forgotten");
    short.take_back(3, 9.0);
    assert!(short.recent().all(|of| of.exact.gave_up == 0.0));
    assert_eq!(short.recent().count(), 5);
    short.set_keep(8);
    short.feed(&slots[20..40], &[]).expect("valid");
    assert_eq!(short.recent().count(), 8, "clients are more patient now");
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
    let mut observer = CategoryObserver::new(1.0, &mix, 100).expect("valid");
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
