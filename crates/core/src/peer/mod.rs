// SPDX-License-Identifier: Apache-2.0
//! What balancers of the same VIPs send each other ten times a second: what each has measured of
//! every real, the weight that it gives it, and whether it finds it up.
//!
//! One of N balancers sees an Nth of the samples. Steered by these alone, weights follow chance
//! and come late; with what the others have measured, each steers as one balancer would that
//! sees all packets, and all steer alike.
//!
//! Datagrams are in the [`envelope`](crate::envelope). Their keys are derived for each pair of
//! members and direction from the secret that balancers alone hold ([`PeerKeys`]). Shares are
//! totals: a datagram that is lost is made up for by the next. Only what has changed is sent, and
//! the rest once a second. A member that falls silent for [`MEMBER_FRESH_NS`] leaves the sums.
//!
//! [`PeerExchange`] is one member's end, a state machine: [`interval`](PeerExchange::interval)
//! ends a control interval, [`transmits`](PeerExchange::transmits) gives what to send,
//! [`handle_datagram`](PeerExchange::handle_datagram) takes what came.

mod datagram;
mod exchange;
mod keys;
#[cfg(test)]
mod tests;

pub use exchange::{
    MEMBER_FRESH_NS, PeerExchange, PeerStatus, RealInterval, RealOfAll, SHARE_FRESH_NS,
    SHARES_OF_A_DATAGRAM,
};
pub use keys::PeerKeys;

use std::net::IpAddr;

use crate::cookie::{CookieKey, siphash};
use crate::envelope::octets;

/// Names a real of a VIP among balancers: a hash, by which each finds its own.
pub type RealName = u64;

/// Most members that one balancer exchanges with.
pub const PEERS_MAX: usize = 127;

/// The part of the way to the members' mean that a weight goes in an interval
/// ([`Controller::draw`](crate::control::Controller::draw)): within a second they agree, whatever
/// each began with.
pub const DRAW: f64 = 0.2;

/// The name of a real of a VIP, which is an address, a port and a protocol.
pub fn real_name((address, port, protocol): (IpAddr, u16, u8), real: IpAddr) -> RealName {
    let [vip, real] = [address, real].map(|address| u128::from_le_bytes(octets(address)));
    let words = [
        vip as u64,
        (vip >> 64) as u64,
        u64::from(port) << 8 | u64::from(protocol),
        real as u64,
        (real >> 64) as u64,
    ];
    // No secret: a member that may send shares may send any.
    siphash(&words, &CookieKey::from_words([0, 0]))
}
