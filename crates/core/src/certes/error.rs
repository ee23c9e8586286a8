// SPDX-License-Identifier: Apache-2.0
//! What can be wrong with a model's settings.

use thiserror::Error;

/// Why a schedule or a model was refused. Times are in seconds.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum CertesError {
    /// The counts of a slot would mix SYNs with their own retries.
    #[error(
        "a slot of {slot_s} s is not shorter than the first retry gap of class `{class}` ({gap_s} s): take a slot below it"
    )]
    SlotTooLong {
        /// Length of a slot.
        slot_s: f64,
        /// Whose gap it is.
        class: String,
        /// From the first SYN to the first retry.
        gap_s: f64,
    },
    /// A slot of no length.
    #[error("a slot must be longer than 0 s")]
    SlotEmpty,
    /// No class, or classes without weight.
    #[error("a retry mix needs at least one class with a weight above 0")]
    NoClass,
    /// A weight below zero, infinite or not a number.
    #[error("class `{class}` has the weight {weight}: it must be 0 or more")]
    Weight {
        /// Whose weight it is.
        class: String,
        /// What was given.
        weight: f64,
    },
    /// Retries that do not come one after the other.
    #[error(
        "class `{class}`: retry {retry} comes {at_s} s after the first SYN, not after the one before it"
    )]
    Order {
        /// Whose retries they are.
        class: String,
        /// Which one, counted from 1.
        retry: usize,
        /// When it would come.
        at_s: f64,
    },
    /// A patience that is not a time.
    #[error("class `{class}` gives up after {fto_s} s: it must be longer than 0 s")]
    Patience {
        /// Whose it is.
        class: String,
        /// What was given.
        fto_s: f64,
    },
    /// A share of lost packets outside 0 to 1.
    #[error("a network loss of {0} is not a share from 0 to below 1")]
    Loss(f64),
}
