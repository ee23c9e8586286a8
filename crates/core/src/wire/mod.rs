// SPDX-License-Identifier: Apache-2.0

//! Packets as they stand on the wire: views that borrow, values that compare.
//!
//! A view (`EthernetFrame`, `Ipv4Packet`, `TcpSegment`, ...) wraps the captured
//! bytes after one check of their length and answers field by field, without
//! copying. A value ([`IpDatagram`], [`TransportHeader`]) is a plain struct that a test
//! can compare. [`parse`] goes from a link type and captured bytes to a value
//! and unwraps VLAN tags and tunnels on the way.
//!
//! Captures are often cut short (128 bytes is common), so every length comes
//! from a header and never from the number of captured bytes. Where a packet
//! cannot be read the answer is a [`Skip`]: one reason, one name, one counter.

mod bytes;
mod ip;
mod link;
mod parse;
mod quick;
mod skip;
mod transport;
mod tunnel;

pub use ip::{Ipv4Packet, Ipv6Packet, UpperLayer};
pub use link::{EthernetFrame, LinkType, Network};
pub use parse::{IpDatagram, TransportHeader, parse, parse_ip};
pub use quick::{Quick, Stamped, parse_quickly};
pub use skip::{Skip, SkipCounts};
pub use transport::{IcmpMessage, TcpFlags, TcpSegment, TcpTimestamps, UdpDatagram};
pub use tunnel::{GrePacket, VXLAN_PORT, VxlanPacket};

/// IANA protocol numbers that the parser knows by name.
pub mod proto {
    /// IPv6 hop-by-hop options (RFC 8200, section 4.3).
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP for IPv4.
    pub const ICMP: u8 = 1;
    /// IPv4 in IP (RFC 2003).
    pub const IPIP: u8 = 4;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// IPv6 in IP (RFC 4213).
    pub const IPV6: u8 = 41;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// GRE (RFC 2784).
    pub const GRE: u8 = 47;
    /// IPsec authentication header (RFC 4302).
    pub const AUTH: u8 = 51;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
    /// Nothing follows the IPv6 header (RFC 8200, section 4.7).
    pub const NO_NEXT: u8 = 59;
    /// IPv6 destination options.
    pub const DEST_OPTIONS: u8 = 60;
    /// Ethernet in IP (RFC 3378).
    pub const ETHERIP: u8 = 97;
    /// Mobility header (RFC 6275).
    pub const MOBILITY: u8 = 135;
    /// MPLS in IP (RFC 4023).
    pub const MPLS: u8 = 137;
    /// Host identity protocol (RFC 7401).
    pub const HIP: u8 = 139;
    /// Shim6 (RFC 5533).
    pub const SHIM6: u8 = 140;
    /// Ethernet (RFC 8986, section 10.1).
    pub const ETHERNET: u8 = 143;
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tunnel_tests;
