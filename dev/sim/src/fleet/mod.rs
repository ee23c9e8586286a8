// SPDX-License-Identifier: Apache-2.0
//! Many connections, servers that come and go, and balancers beside each other: which
//! connections break, and how evenly they lie, under each way to keep them.
//!
//! [`world::run`] runs one [`FleetRun`]: the experiment of Cheetah's figure 2, that of JET's
//! published simulation, or a larger one. Rings, plans, cookies, keys and ids are the product's
//! own code. What it leaves out: packets on the wire, loss, clients that try again.

mod baselines;
pub mod completion;
pub mod pool;
#[cfg(test)]
mod tests;
pub mod ways;
pub mod workload;
pub mod world;

pub use ways::{CookiePick, WayKind};
pub use world::{FleetFigures, FleetRun};

/// How much more than the mean the fullest of `servers` has if each of `active` connections
/// goes to one by chance: what no hash can be better than. Numbers of connections are taken as
/// independent (Poisson), which they nearly are.
pub fn ideal_hash_imbalance(servers: u32, active: u32) -> f64 {
    let mean = f64::from(active) / f64::from(servers);
    let (mut expected, mut upto, mut ln_share) = (0.0, 0.0, -mean);
    // The expected maximum is the sum over k of P(maximum > k). Beyond ten deviations above
    // the mean there is nothing to add.
    let most = mean + 10.0 * mean.sqrt() + 10.0;
    for k in 0..most as u32 {
        upto += ln_share.exp();
        expected += 1.0 - f64::min(upto, 1.0).powf(f64::from(servers));
        ln_share += (mean / f64::from(k + 1)).ln();
    }
    expected / mean - 1.0
}
