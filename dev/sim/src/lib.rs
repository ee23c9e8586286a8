// SPDX-License-Identifier: Apache-2.0
//! Causeway in virtual time: clients, links and servers without a machine.
//!
//! A world is a queue of events and a seed. It runs the code that the product runs
//! (`causeway-core`), knows the truth as well, and gives the same result for the
//! same seed. It cannot reach `causeway-netio`: no clock, no socket, no thread.

pub mod certes;
pub mod control;
pub mod fleet;
pub mod queue;
pub mod races;
pub mod rules;
pub mod silence;
pub mod weeks;
