// SPDX-License-Identifier: Apache-2.0
//! What clients lose before they are connected.
//!
//! A client's response time is CONN-FAIL (from its first SYN to the one that was
//! answered) + SYN-to-END (at the server, from that SYN to the last data) + RTT
//! (Certes, eq. 1). The server's own logs know a part of the second alone. Here
//! are two ways to the first:
//!
//! - [`Tracker`] follows each attempt from its first SYN: exact, as long as every
//!   SYN reaches this host and there is memory for it.
//! - [`FastModel`] infers it from counters, in constant time and memory: how many
//!   SYNs came, were answered, and ended, per slot of time (Certes, section 3.2).
//!
//! When clients send a SYN again is data ([`RetryClass`], [`Mix`]); RFC 1122's
//! 3, 9, 21 s, on which the paper builds, is only one of the schedules in use.
//! Clients that give up count as transactions that took as long as they waited, in
//! the estimates and in the truth (eq. 4).
//!
//! Slips in the paper's print that are not copied here: eq. 12 means DR_p times
//! R_p^j; eq. 13's last line must have 2^k m; eq. 33's second product is over the
//! intervals at -6 and -9; its text and table I disagree about k at an FTO of 21 s
//! (here the retries that a client makes are listed, so that k needs no table).

mod accept_queue;
mod drop_odds;
mod error;
mod estimate;
mod fast;
mod flood;
mod observer;
mod patience;
mod percentile;
mod schedule;
mod slot;
#[cfg(test)]
mod tests;
mod tracker;

pub use accept_queue::{ClientRule, Trial};
pub use drop_odds::{DropOdds, ModelFit, NetworkLoss, StallShares};
pub use error::CertesError;
pub use estimate::{Estimate, Parts};
pub use fast::{FastModel, Lane, check, lanes};
pub use flood::FloodDetector;
pub use observer::{AttemptFate, CategoryObserver, CategoryStatus, Judge, Observed};
pub use patience::PatienceLearner;
pub use percentile::PercentileBucket;
pub use schedule::{BSD_S, LINUX_6_5_S, Mix, MixLearner, RFC_1122_S, RFC_6298_S, RetryClass};
pub use slot::{Origin, Slot};
pub use tracker::{ConnectionEvent, Count, ServerTime, TrackedEvent, Tracker};

/// Nanoseconds in a second, as the models reckon.
const SECOND_NS: f64 = 1e9;
