// SPDX-License-Identifier: Apache-2.0
//! Where encapsulated packets go: the gateways that routes to the reals lead to, their MAC
//! addresses, and the interface's own facts.
//!
//! The data plane sends frames past the kernel, which so has no reason to look whether a gateway
//! still answers. Each look here makes it: it probes what it knows, and asks for what it does
//! not.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};
use std::{io, thread};

use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::sys::socket::{AddressFamily as Domain, SockFlag, SockType, setsockopt, sockopt};
use thiserror::Error;

use crate::netlink::{change, dump, get};
use crate::route::{oif, route};

/// A MAC address.
pub type Mac = [u8; 6];

/// How often the neighbour table is read while a gateway's MAC is being resolved.
const POLL: Duration = Duration::from_millis(20);

/// Most reals of a family whose routes are looked up in one look.
const ROUTES_MAX: usize = 1024;

/// An address that only a default route leads to: the dummy of RFC 7600, section 5.
pub const WORLD_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// The same (RFC 3587).
const WORLD_V6: Ipv6Addr = Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 1);

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
    /// The interface's own address, with which all frames leave.
    pub mac: Mac,
    /// Where frames go whose outer header is IPv4; zeros: nowhere.
    pub gateway_mac: Mac,
    /// Where frames go whose outer header is IPv6; zeros: to `gateway_mac`.
    pub gateway6_mac: Mac,
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
    /// The same over IPv6, where a receiver must be set to take 0 (RFC 6935).
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
    /// Its addresses of global scope that can be outer sources, the best of each family first.
    pub addresses: Vec<IpAddr>,
}

/// A router on the interface's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its address on the link.
    pub address: IpAddr,
    /// Its MAC address; `None` while it does not answer ARP or neighbour discovery.
    pub mac: Option<Mac>,
    /// Reals of the family whose routes lead to other gateways.
    pub others: usize,
}

/// The gateways of the families that have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gateways {
    /// For reals that are reached by IPv4.
    pub v4: Option<Gateway>,
    /// For reals that are reached by IPv6.
    pub v6: Option<Gateway>,
    /// Reals on the link itself: the kernel would send to them without a gateway.
    pub on_link: Vec<IpAddr>,
}

impl Gateways {
    /// Where frames of each family go; zeros while its gateway does not answer. A family without
    /// a gateway goes by the other's.
    pub fn macs(&self) -> [Mac; 2] {
        let mac = |own: Option<Gateway>, other: Option<Gateway>| {
            let gateway = own.or(other);
            gateway.and_then(|gateway| gateway.mac).unwrap_or_default()
        };
        [mac(self.v4, self.v6), mac(self.v6, self.v4)]
    }

    /// The same where one must answer: `waited` is how long they had.
    pub fn answering(&self, interface: &str, waited: Duration) -> Result<[Mac; 2]> {
        let gateway = self.v4.or(self.v6);
        let gateway = gateway.ok_or_else(|| NextHopError::NoGateway(interface.to_owned()))?;
        match self.macs() {
            macs if macs != [Mac::default(); 2] => Ok(macs),
            _ => Err(NextHopError::Unresolved {
                gateway: gateway.address,
                interface: interface.to_owned(),
                waited,
            }),
        }
    }
}

/// Why a next hop is not known.
#[derive(Debug, Error)]
pub enum NextHopError {
    /// No such interface in this network namespace.
    #[error("there is no network interface {0} here; `ip link` lists them")]
    NoInterface(String),
    /// The interface has no default route.
    #[error(
        "{0} has no default route with a gateway, nor one to the reals: add one (`ip route add default via ...`), or set encap.gateway_mac"
    )]
    NoGateway(String),
    /// The gateway does not answer ARP or neighbour discovery.
    #[error(
        "the gateway {gateway} on {interface} did not answer with its MAC address within {waited:?}: check the link and `ip neigh`, or set encap.gateway_mac"
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

/// Looks an interface up by name.
pub fn interface_info(name: &str) -> Result<InterfaceInfo> {
    let mut request = LinkMessage::default();
    request.attributes = vec![LinkAttribute::IfName(name.to_owned())];
    let found = ask("link", RouteNetlinkMessage::GetLink(request))?;
    let mut info = match found {
        Some(RouteNetlinkMessage::NewLink(link)) => link_facts(&link, name),
        _ => None,
    }
    .ok_or_else(|| NextHopError::NoInterface(name.to_owned()))?;
    let mut request = AddressMessage::default();
    request.header.index = info.index;
    let request = RouteNetlinkMessage::GetAddress(request);
    let addresses = dump(request, |m| match m {
        RouteNetlinkMessage::NewAddress(address) => global_address(&address, info.index),
        _ => None,
    });
    info.addresses = addresses
        .map(by_preference)
        .map_err(|cause| NextHopError::Netlink {
            table: "address",
            cause,
        })?;
    Ok(info)
}

/// Finds the gateways that the routes to `reals` lead to, on this interface; a family whose
/// reals are all on the link goes by its route to the rest of the world. Without reals, both
/// families do. Has the kernel look whether each still has the MAC address that is known, and
/// ask for one that is not: for that it waits up to `timeout`, and gives none after it.
pub fn find_gateways(
    interface: &InterfaceInfo,
    reals: &[IpAddr],
    timeout: Duration,
) -> Result<Gateways> {
    let deadline = Instant::now() + timeout;
    let mut on_link = Vec::new();
    let mut family = |is_of: fn(&IpAddr) -> bool, world: IpAddr| -> Result<Option<Gateway>> {
        let own: Vec<IpAddr> = reals.iter().copied().filter(is_of).collect();
        let found = gateway_of(interface, &own, world, &mut on_link)?;
        let Some((address, others)) = found else {
            return Ok(None);
        };
        let mac = resolved(interface, address, deadline)?;
        Ok(Some(Gateway {
            address,
            mac,
            others,
        }))
    };
    let mut look = |v6: bool| match v6 {
        false => family(IpAddr::is_ipv4, WORLD_V4.into()),
        true => family(IpAddr::is_ipv6, WORLD_V6.into()),
    };
    let is_used = |is_of: fn(&IpAddr) -> bool| reals.is_empty() || reals.iter().any(is_of);
    let mut found = Gateways::default();
    if is_used(IpAddr::is_ipv4) {
        found.v4 = look(false)?;
    }
    if is_used(IpAddr::is_ipv6) {
        found.v6 = look(true)?;
    }
    // Where the only family that is used has no gateway, it goes by the other's.
    match (found.v4, found.v6) {
        (None, None) if !is_used(IpAddr::is_ipv4) => found.v4 = look(false)?,
        (None, None) if !is_used(IpAddr::is_ipv6) => found.v6 = look(true)?,
        _ => {}
    }
    Ok(Gateways { on_link, ..found })
}

/// The gateway that most routes lead to, and how many lead to others; `on_link` gets the reals
/// that need none.
fn gateway_of(
    interface: &InterfaceInfo,
    reals: &[IpAddr],
    world: IpAddr,
    on_link: &mut Vec<IpAddr>,
) -> Result<Option<(IpAddr, usize)>> {
    let mut gateways: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for real in reals.iter().take(ROUTES_MAX) {
        match route_to(interface, *real)? {
            Some(Hop::Gateway(gateway)) => *gateways.entry(gateway).or_default() += 1,
            Some(Hop::Link) => on_link.push(*real),
            None => {}
        }
    }
    let all: usize = gateways.values().sum();
    let most = gateways.into_iter().max_by_key(|(_, reals)| *reals);
    Ok(match most {
        Some((gateway, reals)) => Some((gateway, all - reals)),
        None => match route_to(interface, world)? {
            Some(Hop::Gateway(gateway)) => Some((gateway, 0)),
            _ => None,
        },
    })
}

/// The MAC address of a gateway, while the kernel has one that is not known to be wrong.
fn resolved(interface: &InterfaceInfo, address: IpAddr, deadline: Instant) -> Result<Option<Mac>> {
    loop {
        match neighbour(interface.index, address)? {
            Some((mac, NeighbourState::Permanent | NeighbourState::Noarp)) => {
                return Ok(Some(mac));
            }
            Some((mac, state)) => {
                // One that is being probed is not touched, else it would never fail.
                if state != NeighbourState::Probe {
                    probe(interface.index, address);
                }
                return Ok(Some(mac));
            }
            None if Instant::now() >= deadline => return Ok(None),
            None => provoke(interface, address),
        }
        thread::sleep(POLL);
    }
}

/// What answers for an address on an interface's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLink {
    /// The route to it does not lead onto the link, or there is none.
    Elsewhere,
    /// Nobody has answered.
    Silent,
    /// Who has this MAC address.
    Answers(Mac),
}

/// Asks who answers for an address, for up to `timeout` if the kernel does not know.
pub fn on_link(interface: &InterfaceInfo, address: IpAddr, timeout: Duration) -> Result<OnLink> {
    let deadline = Instant::now() + timeout;
    Ok(match route_to(interface, address)? {
        Some(Hop::Link) => match resolved(interface, address, deadline)? {
            Some(mac) => OnLink::Answers(mac),
            None => OnLink::Silent,
        },
        _ => OnLink::Elsewhere,
    })
}

impl InterfaceInfo {
    /// The next hop by these gateways, with this interface's MTU and addresses. A source that is
    /// `in_use` stays while the interface has it: servers may take tunnels from no other.
    pub fn next_hop(&self, gateway_mac: Mac, gateway6_mac: Mac, in_use: &[IpAddr]) -> NextHop {
        let kept = self.addresses.iter().filter(|held| in_use.contains(held));
        let by_choice: Vec<IpAddr> = kept.chain(&self.addresses).copied().collect();
        let v4 = by_choice.iter().find_map(|a| match a {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        });
        let v6 = by_choice.iter().find_map(|a| match a {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => Some(*v6),
        });
        NextHop {
            mac: self.mac,
            gateway_mac,
            gateway6_mac,
            mtu: u16::try_from(self.mtu).unwrap_or(u16::MAX),
            source_v4: v4.map(OuterSource::whole),
            source_v6: v6.map(OuterSource::whole),
            gue: Gue::default(),
        }
    }
}

impl NextHop {
    /// The addresses of its outer sources.
    pub fn sources(&self) -> Vec<IpAddr> {
        let v4 = self.source_v4.map(|source| IpAddr::V4(source.address));
        let v6 = self.source_v6.map(|source| IpAddr::V6(source.address));
        v4.into_iter().chain(v6).collect()
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

fn ask(table: &'static str, request: RouteNetlinkMessage) -> Result<Option<RouteNetlinkMessage>> {
    get(request).map_err(|cause| NextHopError::Netlink { table, cause })
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

/// An address that may be an outer source, and whether it is deprecated.
fn global_address(message: &AddressMessage, index: u32) -> Option<(IpAddr, bool)> {
    if message.header.index != index || message.header.scope != AddressScope::Universe {
        return None;
    }
    // An outer source has to last: one that is not ours yet, or is there for privacy (which
    // IPv6 marks as secondary) does not.
    let fleeting = AddressFlags::Tentative | AddressFlags::Dadfailed;
    let fleeting = match message.header.family {
        AddressFamily::Inet6 => fleeting | AddressFlags::Secondary,
        _ => fleeting,
    };
    let is_any = |wanted: AddressFlags| {
        let mut attributes = message.attributes.iter();
        attributes.any(|a| matches!(a, AddressAttribute::Flags(flags) if flags.intersects(wanted)))
    };
    if is_any(fleeting) {
        return None;
    }
    Some((local(message)?, is_any(AddressFlags::Deprecated)))
}

/// Deprecated addresses last, and of the others the oldest first, so that a new one changes
/// nothing. The kernel lists the newest first of IPv6, the oldest first of IPv4.
fn by_preference(listed: Vec<(IpAddr, bool)>) -> Vec<IpAddr> {
    let (v4, v6): (Vec<_>, Vec<_>) = listed.into_iter().partition(|(a, _)| a.is_ipv4());
    let mut found: Vec<(IpAddr, bool)> = v4.into_iter().chain(v6.into_iter().rev()).collect();
    found.sort_by_key(|(_, deprecated)| *deprecated);
    found.into_iter().map(|(address, _)| address).collect()
}

/// The host's own end of what an address message describes: on a point-to-point link `Address` is
/// the peer's and `Local` ours; IPv6 has `Address` alone otherwise.
fn local(message: &AddressMessage) -> Option<IpAddr> {
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

/// An address of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub address: IpAddr,
    /// Length of its prefix.
    pub prefix_len: u8,
    /// The interface that has it.
    pub interface: String,
}

/// All addresses of this network namespace.
pub fn own_addresses() -> Result<Vec<OwnAddress>> {
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let own = dump(request, |m| match m {
        RouteNetlinkMessage::NewAddress(message) => {
            let index = message.header.index;
            Some((local(&message)?, message.header.prefix_len, index))
        }
        _ => None,
    });
    let own = own.map_err(|cause| NextHopError::Netlink {
        table: "address",
        cause,
    })?;
    let named = own.into_iter().filter_map(|(address, prefix_len, index)| {
        // An interface that is gone by now has no address.
        let name = nix::net::if_::if_indextoname(index).ok()?;
        Some(OwnAddress {
            address,
            prefix_len,
            interface: name.into_string().ok()?,
        })
    });
    Ok(named.collect())
}

/// The number of the device that the kernel would send to `address` by, and whether that is the
/// address of this host itself. `None` without a route.
pub fn device_to(address: IpAddr) -> Result<Option<(u32, bool)>> {
    let Some(route) = ask_route(address, None)? else {
        return Ok(None);
    };
    let own = route.header.kind == RouteType::Local;
    Ok(oif(&route).map(|out| (out, own)))
}

fn ask_route(to: IpAddr, device: Option<u32>) -> Result<Option<RouteMessage>> {
    route(None, to, device, RouteFlags::empty()).map_err(|cause| NextHopError::Netlink {
        table: "route",
        cause,
    })
}

/// Where a route leads first.
enum Hop {
    Gateway(IpAddr),
    /// The address is on the link itself.
    Link,
}

/// Where the route leads that the kernel would take to `address` through the interface.
fn route_to(interface: &InterfaceInfo, address: IpAddr) -> Result<Option<Hop>> {
    let Some(route) = ask_route(address, Some(interface.index))? else {
        return Ok(None);
    };
    let out = oif(&route) == Some(interface.index);
    let gateway = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Gateway(address) => ip(address),
            RouteAttribute::Via(via) => via_ip(via),
            _ => None,
        });
    let is_link = route.header.kind == RouteType::Unicast;
    let hop = gateway.map(Hop::Gateway);
    let hop = hop.or_else(|| is_link.then_some(Hop::Link));
    Ok(hop.filter(|_| out))
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

fn neighbour_message(index: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = index;
    let destination;
    (message.header.family, destination) = match address {
        IpAddr::V4(v4) => (AddressFamily::Inet, NeighbourAddress::Inet(v4)),
        IpAddr::V6(v6) => (AddressFamily::Inet6, NeighbourAddress::Inet6(v6)),
    };
    message.attributes = vec![NeighbourAttribute::Destination(destination)];
    message
}

/// The MAC address of a neighbour, if the kernel has one that is not known to be
/// wrong, and what it knows of it.
fn neighbour(index: u32, address: IpAddr) -> Result<Option<(Mac, NeighbourState)>> {
    let request = neighbour_message(index, address);
    let found = ask("neighbour", RouteNetlinkMessage::GetNeighbour(request))?;
    let Some(RouteNetlinkMessage::NewNeighbour(entry)) = found else {
        return Ok(None);
    };
    let useless = [
        NeighbourState::Incomplete,
        NeighbourState::Failed,
        NeighbourState::None,
    ];
    if useless.contains(&entry.header.state) {
        return Ok(None);
    }
    let mac = entry.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::LinkLayerAddress(mac) => mac[..].try_into().ok(),
        _ => None,
    });
    Ok(mac.map(|mac| (mac, entry.header.state)))
}

/// Makes the kernel ask a neighbour whether it still has its MAC address. Failures do not
/// matter: the neighbour table has the outcome.
fn probe(index: u32, address: IpAddr) {
    let mut request = neighbour_message(index, address);
    request.header.state = NeighbourState::Probe;
    if let Err(error) = change(RouteNetlinkMessage::NewNeighbour(request)) {
        tracing::debug!(%address, %error, "cannot have a neighbour probed");
    }
}

/// Makes the kernel resolve `address` on the interface by sending it a datagram.
/// Failures do not matter: the neighbour table has the outcome.
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

    fn parsed(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn the_oldest_address_comes_first_and_a_deprecated_one_last() {
        let listed = [
            ("192.0.2.9", true),
            ("192.0.2.2", false),
            ("192.0.2.1", false),
            ("fd77::abcd", false),
            ("fd77::2", false),
            ("fd77::1", true),
        ];
        let listed = listed.map(|(address, deprecated)| (parsed(address), deprecated));
        let expected = [
            "192.0.2.2",
            "192.0.2.1",
            "fd77::2",
            "fd77::abcd",
            "192.0.2.9",
            "fd77::1",
        ];
        assert_eq!(by_preference(listed.to_vec()), expected.map(parsed));
        assert_eq!(
            by_preference(vec![(parsed("fd77::1"), true)]),
            [parsed("fd77::1")]
        );
    }

    #[test]
    fn a_source_in_use_stays_while_the_interface_has_it() {
        let info = InterfaceInfo {
            name: "eth0".to_owned(),
            index: 2,
            mac: [2; 6],
            mtu: 1500,
            addresses: ["192.0.2.1", "192.0.2.2", "fd77::abcd", "fd77::2"]
                .map(parsed)
                .to_vec(),
        };
        let sources = |in_use: &[&str]| {
            let in_use: Vec<IpAddr> = in_use.iter().copied().map(parsed).collect();
            info.next_hop([9; 6], [9; 6], &in_use).sources()
        };
        assert_eq!(sources(&[]), ["192.0.2.1", "fd77::abcd"].map(parsed));
        assert_eq!(sources(&["fd77::2"]), ["192.0.2.1", "fd77::2"].map(parsed));
        let both = ["192.0.2.2", "fd77::2"];
        assert_eq!(sources(&both), both.map(parsed));
        let gone = ["192.0.2.3", "fd77::3"];
        assert_eq!(sources(&gone), ["192.0.2.1", "fd77::abcd"].map(parsed));
    }
}
