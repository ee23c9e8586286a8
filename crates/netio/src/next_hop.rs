// SPDX-License-Identifier: Apache-2.0
//! Where encapsulated packets go: the gateway of the default route on the
//! balancer's interface, its MAC address, and the interface's own facts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};
use std::{io, thread};

use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::sys::socket::{AddressFamily as Domain, SockFlag, SockType, setsockopt, sockopt};
use thiserror::Error;

use crate::netlink::dump;

/// A MAC address.
pub type Mac = [u8; 6];

/// How often the neighbour table is read while a gateway's MAC is being resolved.
const POLL: Duration = Duration::from_millis(20);

/// The discard port (RFC 863): a datagram to it makes the kernel resolve the
/// neighbour and means nothing to the receiver.
const DISCARD_PORT: u16 = 9;

/// A source address of outer headers. Its low bits are filled from the flow's
/// hash, so that routers and network cards spread the tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterSource<A> {
    /// The address; its low `entropy_bits` do not matter.
    pub address: A,
    /// How many low bits are the flow's, 0 to 32. The prefix above them must be
    /// the balancer's own.
    pub entropy_bits: u8,
}

/// What the data plane needs to send a packet to a real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// Where frames go.
    pub gateway_mac: Mac,
    /// Longest IP packet that the interface carries, bytes, outer header included.
    pub mtu: u16,
    /// Source of outer IPv4 headers; without one, IPv4 reals get nothing.
    pub source_v4: Option<OuterSource<Ipv4Addr>>,
    /// Source of outer IPv6 headers; without one, IPv6 reals get nothing.
    pub source_v6: Option<OuterSource<Ipv6Addr>>,
    /// The UDP header of reals that are reached by GUE.
    pub gue: Gue,
}

/// How packets are wrapped in UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gue {
    /// Port of the reals' tunnel ends.
    pub port: u16,
    /// Whether the UDP checksum over IPv4 is filled in; 0 is sent otherwise.
    pub checksum_v4: bool,
    /// The same over IPv6, where a receiver must be told to take 0 (RFC 6935).
    pub checksum_v6: bool,
}

impl Default for Gue {
    /// IANA's port; a checksum where receivers expect one, over IPv6.
    fn default() -> Self {
        Self {
            port: 6080,
            checksum_v4: false,
            checksum_v6: true,
        }
    }
}

/// Facts about an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceInfo {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// Its MAC address; zeros if it has none.
    pub mac: Mac,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Its addresses of global scope, as the kernel lists them.
    pub addresses: Vec<IpAddr>,
}

/// A router on the interface's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its address on the link.
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: Mac,
}

/// Why a next hop is not known.
#[derive(Debug, Error)]
pub enum NextHopError {
    /// No such interface in this network namespace.
    #[error("there is no network interface {0} here; `ip link` lists them")]
    NoInterface(String),
    /// The interface has no default route.
    #[error(
        "{0} has no default route with a gateway: add one (`ip route add default via ...`), or set encap.gateway_mac"
    )]
    NoGateway(String),
    /// The gateway does not answer ARP or neighbour discovery.
    #[error(
        "the gateway {gateway} on {interface} did not tell its MAC address within {waited:?}: check the link and `ip neigh`, or set encap.gateway_mac"
    )]
    Unresolved {
        /// The gateway.
        gateway: IpAddr,
        /// The interface.
        interface: String,
        /// How long it had.
        waited: Duration,
    },
    /// The kernel's tables cannot be read.
    #[error("cannot read the kernel's {table} table: {cause}")]
    Netlink {
        /// Which table.
        table: &'static str,
        /// Why not.
        cause: io::Error,
    },
}

type Result<T> = std::result::Result<T, NextHopError>;

/// The interface's gateway, MTU and addresses, put together. Sources have no
/// entropy; the first address of each family is taken. Waits up to `patience` for
/// the gateway to tell its MAC address.
pub fn resolve_next_hop(interface: &str, patience: Duration) -> Result<NextHop> {
    let info = interface_info(interface)?;
    let gateway = find_gateway(&info, patience)?;
    Ok(info.next_hop(gateway.mac))
}

/// Looks an interface up by name.
pub fn interface_info(name: &str) -> Result<InterfaceInfo> {
    let links = read(
        "link",
        RouteNetlinkMessage::GetLink(LinkMessage::default()),
        |m| match m {
            RouteNetlinkMessage::NewLink(link) => link_facts(&link, name),
            _ => None,
        },
    )?;
    let mut info = links
        .into_iter()
        .next()
        .ok_or_else(|| NextHopError::NoInterface(name.to_owned()))?;
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    info.addresses = read("address", request, |m| match m {
        RouteNetlinkMessage::NewAddress(address) => global_address(&address, info.index),
        _ => None,
    })?;
    Ok(info)
}

/// Finds the gateway of the interface's default route, IPv4 before IPv6, the route
/// with the lowest metric first. If its MAC address is not known, makes the kernel
/// ask for it and waits up to `patience`.
pub fn find_gateway(interface: &InterfaceInfo, patience: Duration) -> Result<Gateway> {
    let address = default_gateway(interface)?
        .ok_or_else(|| NextHopError::NoGateway(interface.name.clone()))?;
    let deadline = Instant::now() + patience;
    loop {
        if let Some(mac) = neighbour(interface.index, address)? {
            return Ok(Gateway { address, mac });
        }
        if Instant::now() >= deadline {
            return Err(NextHopError::Unresolved {
                gateway: address,
                interface: interface.name.clone(),
                waited: patience,
            });
        }
        provoke(interface, address);
        thread::sleep(POLL);
    }
}

impl InterfaceInfo {
    /// The next hop by `gateway_mac`, with this interface's MTU and addresses.
    pub fn next_hop(&self, gateway_mac: Mac) -> NextHop {
        let v4 = self.addresses.iter().find_map(|a| match a {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        });
        let v6 = self.addresses.iter().find_map(|a| match a {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => Some(*v6),
        });
        NextHop {
            gateway_mac,
            mtu: u16::try_from(self.mtu).unwrap_or(u16::MAX),
            source_v4: v4.map(OuterSource::whole),
            source_v6: v6.map(OuterSource::whole),
            gue: Gue::default(),
        }
    }
}

impl<A> OuterSource<A> {
    /// This very address, without entropy.
    pub fn whole(address: A) -> Self {
        Self {
            address,
            entropy_bits: 0,
        }
    }

    /// Mask of the low bits that entropy fills, in network byte order.
    pub fn mask(&self) -> [u8; 4] {
        let bits = self.entropy_bits.min(32).into();
        u32::MAX
            .checked_shl(bits)
            .map_or(u32::MAX, |m| !m)
            .to_be_bytes()
    }
}

fn read<T>(
    table: &'static str,
    request: RouteNetlinkMessage,
    pick: impl FnMut(RouteNetlinkMessage) -> Option<T>,
) -> Result<Vec<T>> {
    dump(request, pick).map_err(|cause| NextHopError::Netlink { table, cause })
}

fn link_facts(link: &LinkMessage, name: &str) -> Option<InterfaceInfo> {
    let mut info = InterfaceInfo {
        name: name.to_owned(),
        index: link.header.index,
        mac: Mac::default(),
        mtu: 0,
        addresses: Vec::new(),
    };
    let mut is_it = false;
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(other) => is_it = other == name,
            LinkAttribute::Mtu(mtu) => info.mtu = *mtu,
            LinkAttribute::Address(mac) => info.mac = mac[..].try_into().unwrap_or_default(),
            _ => {}
        }
    }
    is_it.then_some(info)
}

fn global_address(message: &AddressMessage, index: u32) -> Option<IpAddr> {
    if message.header.index != index || message.header.scope != AddressScope::Universe {
        return None;
    }
    // On a point-to-point link `Address` is the peer's and `Local` ours; IPv6 has
    // `Address` alone otherwise.
    let local = message.attributes.iter().find_map(|a| match a {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

fn default_gateway(interface: &InterfaceInfo) -> Result<Option<IpAddr>> {
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        let mut routes = read(
            "route",
            RouteNetlinkMessage::GetRoute(request),
            |m| match m {
                RouteNetlinkMessage::NewRoute(route) => default_route(&route, interface.index),
                _ => None,
            },
        )?;
        routes.sort_by_key(|(metric, _)| *metric);
        if let Some((_, gateway)) = routes.first() {
            return Ok(Some(*gateway));
        }
    }
    Ok(None)
}

/// Metric and gateway of a default route of the main table through `index`.
fn default_route(route: &RouteMessage, index: u32) -> Option<(u32, IpAddr)> {
    let header = &route.header;
    if header.destination_prefix_length != 0 || header.table != RouteHeader::RT_TABLE_MAIN {
        return None;
    }
    let mut metric = 0;
    let mut hops = Vec::new();
    let (mut out, mut gateway) = (None, None);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Oif(index) => out = Some(*index),
            RouteAttribute::Gateway(address) => gateway = ip(address),
            RouteAttribute::Via(via) => gateway = via_ip(via),
            RouteAttribute::MultiPath(paths) => hops.extend(paths.iter().filter_map(|hop| {
                let gateway = hop.attributes.iter().find_map(|a| match a {
                    RouteAttribute::Gateway(address) => ip(address),
                    RouteAttribute::Via(via) => via_ip(via),
                    _ => None,
                });
                Some((hop.interface_index, gateway?))
            })),
            _ => {}
        }
    }
    hops.extend(out.zip(gateway));
    let hop = hops.into_iter().find(|(out, _)| *out == index);
    hop.map(|(_, gateway)| (metric, gateway))
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some((*v4).into()),
        RouteAddress::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

fn via_ip(via: &netlink_packet_route::route::RouteVia) -> Option<IpAddr> {
    use netlink_packet_route::route::RouteVia;
    match via {
        RouteVia::Inet(v4) => Some((*v4).into()),
        RouteVia::Inet6(v6) => Some((*v6).into()),
        _ => None,
    }
}

/// The MAC address of a neighbour, if the kernel has one that is not known to be
/// wrong.
fn neighbour(index: u32, address: IpAddr) -> Result<Option<Mac>> {
    let mut request = NeighbourMessage::default();
    request.header.family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let wanted = match address {
        IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
        IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
    };
    let found = read(
        "neighbour",
        RouteNetlinkMessage::GetNeighbour(request),
        |m| {
            let RouteNetlinkMessage::NewNeighbour(entry) = m else {
                return None;
            };
            let useless = [
                NeighbourState::Incomplete,
                NeighbourState::Failed,
                NeighbourState::None,
            ];
            if entry.header.ifindex != index || useless.contains(&entry.header.state) {
                return None;
            }
            let is_it = entry
                .attributes
                .contains(&NeighbourAttribute::Destination(wanted.clone()));
            let mac = entry.attributes.iter().find_map(|a| match a {
                NeighbourAttribute::LinkLayerAddress(mac) => mac[..].try_into().ok(),
                _ => None,
            });
            mac.filter(|_| is_it)
        },
    )?;
    Ok(found.into_iter().next())
}

/// Makes the kernel resolve `address` on the interface by sending it a datagram.
/// Failures do not matter: the neighbour table tells the outcome.
fn provoke(interface: &InterfaceInfo, address: IpAddr) {
    let (domain, target) = match address {
        IpAddr::V4(v4) => (Domain::Inet, SocketAddr::from((v4, DISCARD_PORT))),
        IpAddr::V6(v6) => {
            let scoped = SocketAddrV6::new(v6, DISCARD_PORT, 0, interface.index);
            (Domain::Inet6, scoped.into())
        }
    };
    let send = || -> nix::Result<()> {
        let socket = nix::sys::socket::socket(
            domain,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            None,
        )?;
        setsockopt(
            &socket,
            sockopt::BindToDevice,
            &interface.name.clone().into(),
        )?;
        let _ = std::net::UdpSocket::from(socket).send_to(&[], target);
        Ok(())
    };
    if let Err(error) = send() {
        tracing::debug!(%address, %error, "cannot provoke a neighbour's resolution");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entropy_is_a_mask_of_the_low_bits() {
        let mask = |entropy_bits| {
            let source = OuterSource {
                address: Ipv4Addr::UNSPECIFIED,
                entropy_bits,
            };
            u32::from_be_bytes(source.mask())
        };
        assert_eq!(mask(0), 0);
        assert_eq!(mask(1), 1);
        assert_eq!(mask(16), 0xffff);
        assert_eq!(mask(32), u32::MAX);
        assert_eq!(mask(255), u32::MAX);
    }
}
