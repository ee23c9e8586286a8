// SPDX-License-Identifier: Apache-2.0

//! Ten thousand seeds of the simulation. `make soak` plays a million.

use causeway_bifrost::sim::{self, Case};

/// A quarter of them, so that they run side by side.
fn play(quarter: u64) {
    let mut failures = Vec::new();
    let (mut sent, mut resent, mut again) = (0, 0, 0);
    let first = quarter * 2_500;
    for seed in first..first + 2_500 {
        match sim::run(seed) {
            Ok(summary) if summary.case == Case::Clean => {
                sent += summary.sent;
                resent += summary.resent;
                again += summary.again;
            }
            Ok(_) => {}
            Err(failure) => failures.push(failure.to_string()),
        }
    }
    let count = failures.len();
    assert!(
        failures.is_empty(),
        "{count} seeds failed:\n{}",
        failures.join("\n")
    );
    // One run's bound leaves room for a few; all together must do with less.
    assert!(
        resent * 1000 < sent,
        "{resent} of {sent} sent again without loss"
    );
    assert!(
        again * 2000 < sent,
        "{again} of {sent} came twice without loss"
    );
}

#[test]
fn first_quarter() {
    play(0);
}

#[test]
fn second_quarter() {
    play(1);
}

#[test]
fn third_quarter() {
    play(2);
}

#[test]
fn fourth_quarter() {
    play(3);
}

#[test]
fn a_seed_is_the_same_run_each_time() {
    for seed in 0..56 {
        let [first, second] = [0, 1].map(|_| format!("{:?}", sim::run(seed)));
        assert_eq!(first, second);
    }
}
