// SPDX-License-Identifier: Apache-2.0
//! What agents report to balancers: a server's load, the latency of its clients, and the
//! connections that open and close there. One authenticated datagram carries all of it.
//!
//! It is in the [`envelope`](crate::envelope) that balancers use among themselves, too. A
//! datagram without a body is a sign of life. The key is that of the server alone
//! ([`ReportKeys`]): a forged report would move a service's weights or free the slot of an open
//! connection. A [`ReportReceiver`] takes each datagram once, and of load and latency the newest
//! alone.
//!
//! Agents of a fleet get its book from balancers, too, and say how far they have come
//! ([`AgentOrders`], [`AgentFollows`]).
//!
//! The agent of a new server gets that server's secrets by a token ([`JoinDesk`],
//! [`JoinAttempt`]).
//!
//! A balancer that wants to learn which connections are open answers a report by a
//! datagram that asks. It, as a challenge, repeats sender, boot and sequence number of that report, so that
//! the agent can take it once, too.

mod book;
mod datagram;
mod join;
mod keys;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use crate::envelope::{Boot, DATAGRAM_MAX, Reception};
pub use book::{
    AgentFollows, AgentOrders, BookPart, BookParts, ServiceCids, ServiceId, ServiceKey, key_mark,
    vip_name,
};
pub use datagram::{
    AgentReport, Body, ConnectionNotice, NOTICES_MAX, SERVICES_MAX, ServerLoad, ServerTimes,
    ServiceLatency,
};
pub use join::{
    JoinAnswer, JoinAttempt, JoinContext, JoinDesk, JoinGiven, JoinOutcome, JoinRefusal,
    JoinSecret, JoinStep, JoinTicket, NoTicket,
};
pub use keys::{EpochSecrets, ReportKeys, ReportSecrets};
pub use receiver::{LATENCY_FRESH_NS, LOAD_FRESH_NS, ReceivedReport, ReportReceiver};
pub use sender::{Question, ReportSender};
