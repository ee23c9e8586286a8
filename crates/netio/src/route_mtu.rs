// SPDX-License-Identifier: Apache-2.0
//! The MTU of a route as it is configured.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteMetric};

use crate::netlink::get;
use crate::next_hop::family_of;

/// Bytes of the largest packet that the kernel's tables let through: the route's own MTU, or else
/// that of its device. Not what ICMP messages have said ("fragmentation needed"), which the
/// kernel holds beside the route and which IP_MTU tells: anybody can send them (RFC 8899,
/// section 4.6.1). `device`: by this one, whatever the routes say.
pub(crate) fn route_mtu(from: IpAddr, to: IpAddr, device: Option<u32>) -> io::Result<u32> {
    let ask = |flags| {
        let mut request = RouteMessage::default();
        let (family, length) = family_of(to);
        request.header.address_family = family;
        request.header.destination_prefix_length = length;
        request.header.source_prefix_length = length;
        request.header.flags = flags;
        request.attributes = vec![
            RouteAttribute::Source(from.into()),
            RouteAttribute::Destination(to.into()),
        ];
        request.attributes.extend(device.map(RouteAttribute::Oif));
        match get(RouteNetlinkMessage::GetRoute(request))? {
            Some(RouteNetlinkMessage::NewRoute(route)) => Ok(route.attributes),
            _ => Err(io::Error::from_raw_os_error(libc::ENETUNREACH)),
        }
    };
    let own = ask(RouteFlags::FibMatch)?
        .into_iter()
        .find_map(|attribute| {
            let RouteAttribute::Metrics(metrics) = attribute else {
                return None;
            };
            metrics.into_iter().find_map(|metric| match metric {
                RouteMetric::Mtu(mtu) => Some(mtu),
                _ => None,
            })
        });
    if let Some(own) = own {
        return Ok(own);
    }
    // The entry itself may name several devices; here one of them has been chosen.
    let out = ask(RouteFlags::empty())?
        .into_iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(index),
            _ => None,
        });
    let mut request = LinkMessage::default();
    request.header.index = out.ok_or_else(gone)?;
    let Some(RouteNetlinkMessage::NewLink(link)) = get(RouteNetlinkMessage::GetLink(request))?
    else {
        return Err(gone());
    };
    let mtu = link
        .attributes
        .into_iter()
        .find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(mtu),
            _ => None,
        });
    mtu.ok_or_else(gone)
}

fn gone() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODEV)
}
