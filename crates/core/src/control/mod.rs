// SPDX-License-Identifier: Apache-2.0
//! Feedback from measured latency to the weights of a VIP's reals.

mod params;

pub use params::Params;
