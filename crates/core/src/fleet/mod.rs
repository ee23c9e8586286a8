// SPDX-License-Identifier: Apache-2.0
//! What balancers that serve the same VIPs may do, and when, so that no connection with a cookie
//! breaks: the rules of a fleet, without a clock, a socket or a store.
//!
//! A fleet shares one [`FleetBook`]: who serves, which real has which id and how far it has come
//! into use or out of it, which key of cookies and which configuration of QUIC's connection ids
//! are issued, what is set by hand. A store keeps it,
//! and replaces it only by compare-and-set on its [`Position`], so all changes stand in one order
//! and two reals never have one id. Beside it every member writes how far it has come
//! ([`Acknowledged`]).
//!
//! One rule covers all: *what comes into use is known everywhere first, and what goes out of use
//! is used nowhere any more before it is forgotten.* "Everywhere" is every member that the book
//! has in service, reachable or not, and every agent that writes cookies. So a member that lags or
//! is cut off keeps the last good book and holds changes up; it breaks nothing. It is passed by
//! only where it gets no packets any more, which [`LeaseTerms`] or an operator vouches for.
//! A member that was out of service comes back by a compare-and-set, and so with the newest book.
//!
//! [`FleetMember`] is a balancer, [`FleetAgent`] what a server's agent goes by. `dev/sim` tries
//! all orders of their steps (`sim rules`).

mod agent;
mod book;
mod changes;
mod cids;
mod lease;
mod member;
pub(crate) mod pairs;
mod steps;
#[cfg(test)]
mod tests;
mod tokens;

pub use agent::{AgentBook, AgentIds, FleetAgent};
pub use book::{
    Absence, Acknowledged, FleetBook, FleetVip, FleetVipReal, Generation, HandState, IdKey,
    IdPhase, IdRecord, KeyNumber, KeyPhases, MemberPhase, MemberRecord, Position,
};
pub use changes::{ChangedVips, FleetChange, MayRemove, PastChange, PastStep, PastVip, Removal};
pub use cids::{CIDS_OF_FILES, CidForm, CidPhases};
pub use lease::LeaseTerms;
pub use member::{FleetAction, FleetEvent, FleetMember, Hold, Stored};
pub use steps::{FleetEvidence, FleetRest};
pub use tokens::{JoinKey, JoinToken, TokenId};
