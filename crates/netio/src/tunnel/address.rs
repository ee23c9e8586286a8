// SPDX-License-Identifier: Apache-2.0
//! Flags, MTU and addresses of a device in the calling thread's network namespace.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::{io, mem};

use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink;

/// `struct in6_ifreq` of linux/ipv6.h.
#[repr(C)]
struct In6Request {
    address: libc::in6_addr,
    prefix_length: u32,
    index: libc::c_int,
}

/// An `ifreq` with a device's name.
pub(super) fn request(device: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain data; all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if device.is_empty() || device.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

fn socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) with constants.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn ioctl<T>(socket: &OwnedFd, code: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: every caller passes the struct that its code expects, alive.
    if unsafe { libc::ioctl(socket.as_raw_fd(), code as _, argument as *mut T) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A device's flags; those of the upper half are left out.
pub(crate) fn flags(device: &str) -> io::Result<libc::c_int> {
    let mut request = request(device)?;
    let socket = socket(libc::AF_INET)?;
    ioctl(&socket, libc::SIOCGIFFLAGS as _, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has filled the flags member of the union.
    Ok(unsafe { request.ifr_ifru.ifru_flags }.into())
}

/// A device's MAC address; zeros if it has none.
pub(crate) fn mac(device: &str) -> io::Result<[u8; 6]> {
    let mut request = request(device)?;
    let socket = socket(libc::AF_INET)?;
    ioctl(&socket, libc::SIOCGIFHWADDR as _, &mut request)?;
    // SAFETY: SIOCGIFHWADDR has filled the address member of the union.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    if address.sa_family != libc::ARPHRD_ETHER {
        return Ok([0; 6]);
    }
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from as u8;
    }
    Ok(mac)
}

/// Brings a device up.
pub(super) fn up(device: &str) -> io::Result<()> {
    let flags = flags(device)? | libc::IFF_UP | libc::IFF_RUNNING;
    let mut request = request(device)?;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    ioctl(
        &socket(libc::AF_INET)?,
        libc::SIOCSIFFLAGS as _,
        &mut request,
    )
}

pub(super) fn set_mtu(device: &str, mtu: u32) -> io::Result<()> {
    let mut request = request(device)?;
    request.ifr_ifru.ifru_mtu = mtu as libc::c_int;
    ioctl(&socket(libc::AF_INET)?, libc::SIOCSIFMTU as _, &mut request)
}

/// Sets how many packets a device's queue holds.
pub(super) fn set_queue(device: &str, packets: u32) -> io::Result<()> {
    /// linux/sockios.h.
    const SIOCSIFTXQLEN: libc::c_ulong = 0x8943;
    let mut request = request(device)?;
    request.ifr_ifru.ifru_metric = packets as libc::c_int;
    ioctl(&socket(libc::AF_INET)?, SIOCSIFTXQLEN, &mut request)
}

/// Gives a device addresses with their prefix lengths; those that it has already stay.
pub(super) fn add(device: &str, addresses: &[(IpAddr, u8)]) -> io::Result<()> {
    let mut has_ipv4 = false;
    for (address, length) in addresses {
        match address {
            IpAddr::V4(address) if has_ipv4 => add_further(device, *address, *length)?,
            _ => add_one(device, *address, *length)?,
        }
        has_ipv4 |= address.is_ipv4();
    }
    Ok(())
}

/// Gives a device an IPv4 address beside the one that it has by its name. An ioctl would want a label
/// for it, which has no room behind a long name.
fn add_further(device: &str, address: Ipv4Addr, length: u8) -> io::Result<()> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = length;
    message.header.index = index(device)?;
    message.attributes = vec![
        AddressAttribute::Local(address.into()),
        AddressAttribute::Address(address.into()),
    ];
    netlink::change(RouteNetlinkMessage::NewAddress(message))
}

fn index(device: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(device)?;
    // SAFETY: a valid C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

fn add_one(device: &str, address: IpAddr, length: u8) -> io::Result<()> {
    match address {
        IpAddr::V4(address) => {
            let socket = socket(libc::AF_INET)?;
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            for (code, value) in [
                (libc::SIOCSIFADDR, address),
                (libc::SIOCSIFNETMASK, Ipv4Addr::from(mask)),
            ] {
                let mut request = request(device)?;
                request.ifr_ifru.ifru_addr = sockaddr(value);
                ioctl(&socket, code as _, &mut request)?;
            }
            Ok(())
        }
        IpAddr::V6(address) => {
            let mut request = In6Request {
                address: libc::in6_addr {
                    s6_addr: address.octets(),
                },
                prefix_length: u32::from(length),
                index: index(device)? as libc::c_int,
            };
            match ioctl(
                &socket(libc::AF_INET6)?,
                libc::SIOCSIFADDR as _,
                &mut request,
            ) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                done => done,
            }
        }
    }
}

/// A `sockaddr_in` in the shape that an ifreq holds.
fn sockaddr(address: Ipv4Addr) -> libc::sockaddr {
    // SAFETY: plain data; all zeroes is a valid value.
    let mut inet: libc::sockaddr_in = unsafe { mem::zeroed() };
    inet.sin_family = libc::AF_INET as libc::sa_family_t;
    inet.sin_addr.s_addr = u32::from(address).to_be();
    // SAFETY: both are sixteen bytes of plain data, and sockaddr is what stands for any
    // address of that size.
    unsafe { mem::transmute::<libc::sockaddr_in, libc::sockaddr>(inet) }
}
