// SPDX-License-Identifier: Apache-2.0

//! Two endpoints, links and guests in virtual time. A seed gives a [`Plan`]: which
//! kind of trouble, how much of it, and what must hold nevertheless; [`run`] plays it
//! and checks. The same seed gives the same run, to the last packet.

mod check;
mod host;
mod link;
mod plan;
mod world;

pub use check::{Failure, Summary};
pub use link::LinkSettings;
pub use plan::{Case, Expected, Fault, Offer, Plan, VnicPlan};

/// Plays the plan of `seed`.
///
/// # Errors
/// What did not hold, with the line that plays it again.
pub fn run(seed: u64) -> Result<Summary, Failure> {
    run_plan(&Plan::of(seed))
}

/// Plays a plan.
///
/// # Errors
/// As [`run`].
pub fn run_plan(plan: &Plan) -> Result<Summary, Failure> {
    let mut world = world::World::new(plan);
    let played = world.play(plan).and_then(|()| check::check(plan, &world));
    played.map_err(|what| Failure {
        seed: plan.seed,
        case: plan.case,
        what,
    })
}
