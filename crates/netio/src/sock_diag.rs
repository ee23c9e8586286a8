// SPDX-License-Identifier: Apache-2.0
//! Dumps of the kernel's TCP sockets (sock_diag(7)) of this network namespace: it hands out
//! those in the states that were asked for and walks past the others, where /proc/net/tcp
//! prints them all.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use crate::netlink::raw_dump;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Bytes of `struct inet_diag_req_v2` and of `struct inet_diag_msg`.
const REQUEST_LEN: usize = 56;
pub(crate) const MESSAGE_LEN: usize = 72;
/// Where `struct inet_diag_msg` has the local port and address.
const PORT_AT: usize = 4;
pub(crate) const SOURCE_AT: usize = 8;

/// Shows each `struct inet_diag_msg` with its attributes: of sockets of this family whose
/// state is among the bits of `states`. `extensions` are the attributes that are wanted.
///
/// # Errors
/// If the kernel does not answer: it has no CONFIG_INET_DIAG, say.
pub(crate) fn dump(
    family: i32,
    states: u32,
    extensions: u8,
    mut visit: impl FnMut(&[u8]),
) -> io::Result<()> {
    let request = request(family as u8, states, extensions);
    raw_dump(
        NETLINK_SOCK_DIAG,
        SOCK_DIAG_BY_FAMILY,
        &request,
        |kind, body| {
            if kind == SOCK_DIAG_BY_FAMILY {
                visit(body);
            }
        },
    )
}

/// A `struct inet_diag_req_v2`: family, protocol, what else is wanted, a byte of padding, states,
/// and a socket that is any.
fn request(family: u8, states: u32, extensions: u8) -> [u8; REQUEST_LEN] {
    let mut bytes = [0; REQUEST_LEN];
    bytes[..4].copy_from_slice(&[family, libc::IPPROTO_TCP as u8, extensions, 0]);
    bytes[4..8].copy_from_slice(&states.to_ne_bytes());
    bytes
}

/// The socket's own address; one of IPv4 on a socket for both families as it stands there.
pub(crate) fn local(message: &[u8]) -> Option<SocketAddr> {
    let octets: [u8; 16] = *message.get(SOURCE_AT..)?.first_chunk()?;
    let port = u16::from_be_bytes(*message.get(PORT_AT..)?.first_chunk()?);
    let ip = match i32::from(*message.first()?) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::from(*octets.first_chunk::<4>()?)),
        _ => IpAddr::V6(Ipv6Addr::from(octets)),
    };
    Some(SocketAddr::new(ip, port))
}

/// A number of the message, in the machine's byte order.
pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
