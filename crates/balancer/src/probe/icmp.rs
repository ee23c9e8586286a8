// SPDX-License-Identifier: Apache-2.0
//! Probes by echo: whether the way to the VIP on the server goes, and no more.

use anyhow::{Context as _, Result};
use causeway_core::health::Echo;
use causeway_dataplane::probe::aim_at;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use tokio::net::UdpSocket;

use crate::health::ProbeOrder;

/// Longer than an echo with any IP header.
const PACKET: usize = 128;

/// A raw socket: an ordinary one for echoes depends on a setting of the kernel
/// (`ping_group_range`) that differs between distributions.
pub(super) async fn echo(order: &ProbeOrder) -> Result<String> {
    let ipv6 = order.target.is_ipv6();
    let protocol = if ipv6 {
        Protocol::ICMPV6
    } else {
        Protocol::ICMPV4
    };
    let socket = Socket::new(Domain::for_address(order.target), Type::RAW, Some(protocol));
    let socket = socket.context("no raw socket, which takes CAP_NET_RAW")?;
    socket.set_nonblocking(true)?;
    aim_at(&socket, order.real)?;
    let mut target = order.target;
    // A raw socket of IPv6 takes no port.
    target.set_port(0);
    socket.connect(&SockAddr::from(target))?;
    // Replies to the probes of all reals come from the VIP: the id is the real's.
    let echo = Echo {
        ipv6,
        id: order.real as u16,
        sequence: order.number as u16,
    };
    // Of its calls none minds which protocol it is.
    let socket = UdpSocket::from_std(socket.into())?;
    socket.send(&echo.request()).await?;
    let mut packet = [0; PACKET];
    loop {
        let length = socket.recv(&mut packet).await?;
        if echo.is_replied_by(&packet[..length]) {
            return Ok("echo".to_owned());
        }
    }
}
