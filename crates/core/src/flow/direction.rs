// SPDX-License-Identifier: Apache-2.0

//! Which side of a flow is the client.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::FlowKey;
use crate::wire::{IpDatagram, TcpFlags, TransportHeader};

/// What a packet itself says about its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// A SYN: the sender is the client.
    Opens,
    /// A SYN-ACK: the sender is the server.
    Answers,
    /// Nothing.
    None,
}

impl Hint {
    /// The hint of a packet.
    #[inline]
    pub fn of(packet: &IpDatagram) -> Hint {
        match packet.transport {
            TransportHeader::Tcp { flags, .. } => Hint::of_flags(flags),
            _ => Hint::None,
        }
    }

    /// The hint of a TCP segment.
    #[inline]
    pub(super) fn of_flags(flags: TcpFlags) -> Hint {
        if flags.is_syn() {
            Hint::of_syn(flags)
        } else {
            Hint::None
        }
    }

    #[cold]
    fn of_syn(flags: TcpFlags) -> Hint {
        if flags.opens() {
            Hint::Opens
        } else {
            Hint::Answers
        }
    }
}

/// The rule that names the client where no SYN was seen: the side inside one of
/// the client networks if only one side is; else the one whose port is not a server's, if
/// the other's is; else the side with the higher port; else, with equal ports, the sender of
/// the first packet.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    client_nets: Vec<Cidr>,
    server_ports: Vec<u16>,
}

impl Direction {
    /// The rule with these client networks, of which there may be none.
    pub fn new(client_nets: Vec<Cidr>) -> Self {
        Self {
            client_nets,
            server_ports: Vec::new(),
        }
    }

    /// The same, with these ports of servers, of which there may be none.
    pub fn with_server_ports(self, server_ports: Vec<u16>) -> Self {
        Self {
            server_ports,
            ..self
        }
    }

    /// Whether the sender of a flow's first packet is the client.
    pub fn sender_is_client(&self, packet: &FlowKey, hint: Hint) -> bool {
        match hint {
            Hint::Opens => return true,
            Hint::Answers => return false,
            Hint::None => {}
        }
        let inside = |address| self.client_nets.iter().any(|net| net.contains(address));
        match (inside(packet.src()), inside(packet.dst())) {
            (true, false) => true,
            (false, true) => false,
            _ => self.is_client_by_port(packet.sport(), packet.dport()),
        }
    }

    fn is_client_by_port(&self, own: u16, other: u16) -> bool {
        let is_servers = |port| self.server_ports.contains(&port);
        match (is_servers(own), is_servers(other)) {
            (false, true) => true,
            (true, false) => false,
            _ => own >= other,
        }
    }
}

/// An address prefix, such as `10.0.0.0/8` or `2001:db8::/32`. A bare address
/// is a prefix of full length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    len: u8,
}

impl Cidr {
    /// The prefix of `len` bits of `address`, or `None` when that is too many.
    pub fn new(address: IpAddr, len: u8) -> Option<Self> {
        let max = if address.is_ipv4() { 32 } else { 128 };
        (len <= max).then_some(Self { address, len })
    }

    /// The address, as it was given.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Bits of the address that count.
    pub fn prefix_len(&self) -> u8 {
        self.len
    }

    /// Whether `address` is inside. An address of the other family never is.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(net), IpAddr::V4(address)) => {
                let differ = net.to_bits() ^ address.to_bits();
                differ.checked_shr(32 - u32::from(self.len)).unwrap_or(0) == 0
            }
            (IpAddr::V6(net), IpAddr::V6(address)) => {
                let differ = net.to_bits() ^ address.to_bits();
                differ.checked_shr(128 - u32::from(self.len)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

/// A prefix that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a network: write 10.0.0.0/8 or 2001:db8::/32")]
pub struct CidrError(String);

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let error = || CidrError(text.to_owned());
        let (address, len) = match text.split_once('/') {
            Some((address, len)) => (address, Some(len.parse().map_err(|_| error())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| error())?;
        let full = if address.is_ipv4() { 32 } else { 128 };
        Cidr::new(address, len.unwrap_or(full)).ok_or_else(error)
    }
}
