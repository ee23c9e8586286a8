// SPDX-License-Identifier: Apache-2.0

//! Flows: who talks to whom, which side is the client, and a table of them.
//!
//! A flow is named by its client's side first ([`FlowKey`]). Which side that is
//! follows from [`Direction`]; a [`FlowTable`] applies the rule once per flow and
//! then knows for each packet whether it comes from the client. Traces that
//! hold the request direction alone need nothing special.

mod batch;
mod comparison;
mod direction;
mod hash;
mod index;
mod key;
mod meter;
mod observation;
mod table;

pub use batch::{Batch, HashedFlow};
pub use comparison::{Comparison, Measuring};
pub use direction::{Cidr, CidrError, Direction, Hint};
pub use hash::{FlowHasher, FlowState};
pub use key::FlowKey;
pub use meter::{FlowEstimate, FlowMeter, FlowMeterCounts, MeterSettings, Sink};
pub use observation::{Headers, Observation};
pub use table::{Evicted, FlowTable, Lookup, Name, Sender};

#[cfg(test)]
mod meter_tests;
#[cfg(test)]
mod tests;
