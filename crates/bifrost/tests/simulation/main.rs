// SPDX-License-Identifier: Apache-2.0

//! Two endpoints, links and guests in virtual time. A seed gives a [`Plan`]: which
//! kind of fault, how much of it, and what must hold nevertheless; [`run`] plays it
//! and checks. The same seed gives the same run, to the last packet.
//!
//! Ten thousand seeds are played. `SEEDS=0..1000000` in the environment plays those
//! instead, `SEEDS=17` one; with `-- --nocapture` what each case was like is printed.

mod check;
mod host;
mod link;
mod plan;
mod seeds;
mod world;

use check::{Failure, Summary};
use plan::Plan;
use seeds::Played;

/// Plays the plan of `seed`.
fn run(seed: u64) -> Result<Summary, Failure> {
    let plan = Plan::of(seed);
    let mut world = world::World::new(&plan);
    let played = world.play(&plan).and_then(|()| check::check(&plan, &world));
    played.map_err(|what| Failure {
        seed,
        case: plan.case,
        what,
    })
}

#[test]
fn every_seed_holds() {
    let played = Played::play(seeds::wanted());
    println!("{played}");
    let count = played.failures.len();
    assert!(
        count == 0,
        "{count} seeds failed:\n{}",
        played.failure_lines()
    );
    played.clean_bounds_hold();
}

#[test]
fn a_seed_is_the_same_run_each_time() {
    for seed in 0..56 {
        let [first, second] = [0, 1].map(|_| format!("{:?}", run(seed)));
        assert_eq!(first, second);
    }
}
