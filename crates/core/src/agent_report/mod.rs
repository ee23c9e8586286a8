// SPDX-License-Identifier: Apache-2.0
//! What agents report to balancers: a server's load, the latency of its clients, and the
//! connections that open and close there. One authenticated datagram carries all of it.
//!
//! ```text
//!  0  magic "CWAR"        8  tag: SipHash-2-4 of all other bytes, by the server's key
//!  4  version            16  sender: the server's address, IPv4 as ::ffff:a.b.c.d
//!  5  epoch of the key   32  boot of the sender: when (s since 1970), and a number of it
//!  6  length, bytes      40  sequence number
//! 48  bodies, each: kind (1), zero (1), length of an entry (2), entries (2), zero (2); entries
//! ```
//!
//! Numbers are big-endian. All lengths are multiples of eight bytes, so that all is signed.
//! A datagram without a body is a sign of life.
//!
//! A source address proves nothing where one host may send for another, and a forged
//! report would move a service's weights or free the slot of an open connection: hence the
//! tag, by a key of that server alone ([`ReportKeys`]). A replayed one would bring an old time
//! back: hence boot and sequence number, by which a [`ReportReceiver`] takes each datagram
//! once, and of load and latency the newest alone. A receiver that does not know a boot has
//! nothing to compare its numbers with: it answers by a challenge, and believes what comes
//! after the response. What was recorded before a balancer's start, or in a server's former
//! boot, holds no response to a challenge of now.
//!
//! Versions one apart understand each other. A version may add kinds of bodies, which the
//! one before skips, and lengthen entries at their end, which it reads as far as it knows
//! them; it may change nothing else, and leaves out only what the version before it did
//! not need any more.
//!
//! A balancer that wants to learn which connections are open answers a report by a
//! datagram that asks. It, as a challenge, repeats sender, boot and sequence number of that report, so that
//! the agent can take it once, too.

mod datagram;
mod keys;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

pub use datagram::{
    AgentReport, Body, Boot, ConnectionNotice, DATAGRAM_MAX, NOTICES_MAX, SERVICES_MAX, ServerLoad,
    ServerTimes, ServiceLatency,
};
pub use keys::{EpochSecrets, ReportKeys, ReportSecrets};
pub use receiver::{LATENCY_FRESH_NS, LOAD_FRESH_NS, ReceivedReport, Reception, ReportReceiver};
pub use sender::{Question, ReportSender};
