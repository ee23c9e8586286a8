// SPDX-License-Identifier: Apache-2.0

//! The five-tuple.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};

use crate::wire::Datagram;

/// A five-tuple. For a flow, `src` is the client; for a packet, its sender.
/// Ports are 0 where the protocol has none.
///
/// The order is by protocol, source, source port, destination, destination
/// port, IPv4 before IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowKey {
    /// IP protocol number.
    pub proto: u8,
    /// Address of the client.
    pub src: IpAddr,
    /// Port of the client.
    pub sport: u16,
    /// Address of the server.
    pub dst: IpAddr,
    /// Port of the server.
    pub dport: u16,
}

impl FlowKey {
    /// The five-tuple of a packet, as it was sent.
    #[inline]
    pub fn of(packet: &Datagram) -> FlowKey {
        let (sport, dport) = packet.transport.ports();
        FlowKey {
            proto: packet.transport.protocol(),
            src: packet.src,
            sport,
            dst: packet.dst,
            dport,
        }
    }

    /// The same flow seen from the other side.
    #[inline]
    pub fn reversed(&self) -> FlowKey {
        FlowKey {
            proto: self.proto,
            src: self.dst,
            sport: self.dport,
            dst: self.src,
            dport: self.sport,
        }
    }

    /// Which of `shards` parts this flow belongs to: the same for both directions.
    #[inline]
    pub fn shard(&self, hash: &super::FlowState, shards: usize) -> usize {
        let hash = hash.hash_one(super::table::canonical(self).0);
        // The upper bits: a table within the shard goes by the lower ones.
        ((u128::from(hash) * shards as u128) >> 64) as usize
    }
}

impl Hash for FlowKey {
    /// Two or three words per address instead of the derived byte-wise walk.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u64::from(self.sport) << 16 | u64::from(self.dport);
        let rest = u64::from(self.proto) << 32 | ports;
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                state.write_u64(u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits()));
                state.write_u64(rest);
            }
            (src, dst) => {
                for address in [src, dst] {
                    let bits = match address {
                        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
                        IpAddr::V6(v6) => v6.to_bits(),
                    };
                    state.write_u64((bits >> 64) as u64);
                    state.write_u64(bits as u64);
                }
                state.write_u64(rest);
            }
        }
    }
}

impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = SocketAddr::new(self.src, self.sport);
        let server = SocketAddr::new(self.dst, self.dport);
        write!(f, "{} {client} > {server}", self.proto)
    }
}
