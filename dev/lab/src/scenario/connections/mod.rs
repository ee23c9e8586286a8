// SPDX-License-Identifier: Apache-2.0
//! Clients that hold connections while a pool and its balancers change, what they
//! count, and what everything that must agree on them shares.

mod clients;
mod keys;
mod session;
mod tally;

pub(in crate::scenario) use self::clients::{ConnectionLoad, RunningClients};
pub(in crate::scenario) use self::keys::{SharedKeys, cid, server_id, with_ids};
pub(in crate::scenario) use self::tally::Tally;
