// SPDX-License-Identifier: Apache-2.0
//! The MTU of a route as it is configured.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::{RouteAttribute, RouteFlags, RouteMessage, RouteMetric};

use crate::net_device::net_device;
use crate::route::{oif, route};

/// Bytes of the largest packet that the kernel's tables let through: the route's own MTU, or else
/// that of its device. Not what ICMP messages have said ("fragmentation needed"), which the
/// kernel holds beside the route and which IP_MTU tells: anybody can send them (RFC 8899,
/// section 4.6.1). `device`: by this one, whatever the routes say.
pub(crate) fn route_mtu(from: IpAddr, to: IpAddr, device: Option<u32>) -> io::Result<u32> {
    let entry = match device {
        // A socket that is bound to a device may send where no route leads.
        Some(_) => route(None, to, device, RouteFlags::FibMatch)?.unwrap_or_default(),
        None => route(Some(from), to, None, RouteFlags::FibMatch)?.ok_or_else(no_route)?,
    };
    // IPv6 takes the wish for a device lightly here.
    let other = oif(&entry).is_some_and(|index| device.is_some_and(|device| device != index));
    if let Some(own) = own_mtu(&entry).filter(|_| !other) {
        return Ok(own);
    }
    // The entry itself may name several devices; one of them has been chosen.
    let out = match device {
        Some(device) => device,
        None => {
            let chosen = route(Some(from), to, None, RouteFlags::empty())?;
            oif(&chosen.ok_or_else(no_route)?).ok_or_else(no_device)?
        }
    };
    Ok(net_device(out)?.ok_or_else(no_device)?.mtu)
}

fn own_mtu(entry: &RouteMessage) -> Option<u32> {
    let metrics = entry
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Metrics(metrics) => Some(metrics),
            _ => None,
        });
    metrics?.iter().find_map(|metric| match metric {
        RouteMetric::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

fn no_route() -> io::Error {
    io::Error::from_raw_os_error(libc::ENETUNREACH)
}

fn no_device() -> io::Error {
    io::Error::from_raw_os_error(libc::ENODEV)
}
