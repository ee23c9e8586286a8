// SPDX-License-Identifier: Apache-2.0
//! The route that the kernel would take.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::get;

/// What the kernel has for packets to an address, from this one or any, by this device or any;
/// `None`: no route.
pub(crate) fn route(
    from: Option<IpAddr>,
    to: IpAddr,
    device: Option<u32>,
    flags: RouteFlags,
) -> io::Result<Option<RouteMessage>> {
    let mut request = RouteMessage::default();
    let length;
    (request.header.address_family, length) = match to {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    request.header.destination_prefix_length = length;
    request.header.flags = flags;
    request.attributes = vec![RouteAttribute::Destination(to.into())];
    if let Some(from) = from {
        request.header.source_prefix_length = length;
        request.attributes.push(RouteAttribute::Source(from.into()));
    }
    request.attributes.extend(device.map(RouteAttribute::Oif));
    Ok(match get(RouteNetlinkMessage::GetRoute(request))? {
        Some(RouteNetlinkMessage::NewRoute(route)) => Some(route),
        _ => None,
    })
}

/// The number of the device that a route leads out by.
pub(crate) fn oif(route: &RouteMessage) -> Option<u32> {
    route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        })
}
