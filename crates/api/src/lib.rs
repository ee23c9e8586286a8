// SPDX-License-Identifier: Apache-2.0
//! The JSON of the daemons' APIs.
//!
//! Each type is written by a daemon and read by its callers: the command line, the
//! tests, other programs. So the shape of an answer is declared once, here. Nothing in
//! this crate decides or does anything; it knows no other crate of Causeway.

#![warn(missing_docs)]

pub mod agent;
pub mod balancer;
mod change;
pub mod fleet;
pub mod haproxy;
mod moment;
pub mod tunnel;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use moment::{Moment, date_time};

/// Body of every refusal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// One sentence.
    pub error: String,
}

/// One exit of the data plane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VerdictView {
    /// Its word.
    pub verdict: String,
    /// `tx`, `pass` or `drop`.
    pub action: String,
    /// What it means, half a sentence.
    #[serde(default)]
    pub meaning: String,
    /// Packets since the data plane was loaded.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
}
