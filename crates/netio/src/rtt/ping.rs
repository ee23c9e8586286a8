// SPDX-License-Identifier: Apache-2.0
//! ICMP echo over a socket.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use causeway_core::rtt::echo;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, recv,
    send, socket,
};
use thiserror::Error;

use super::clock::now_ns;

/// Why there is no ping.
#[derive(Debug, Error)]
pub enum PingError {
    /// Neither kind of socket is allowed.
    #[error(
        "this user may not send ICMP echo: run as root or with CAP_NET_RAW, or open net.ipv4.ping_group_range"
    )]
    NotPermitted,
    /// Anything else.
    #[error("cannot ping {to}: {cause}")]
    Failed {
        /// Whom.
        to: IpAddr,
        /// Why not.
        cause: io::Error,
    },
}

/// Sends echo requests to one address and receives the replies.
#[derive(Debug)]
pub struct Pinger {
    socket: OwnedFd,
    ipv6: bool,
    /// What replies must carry; with a ping socket the kernel has chosen it and
    /// sorts the replies itself.
    id: Option<u16>,
    to: IpAddr,
}

impl Pinger {
    /// Opens a raw socket, or a ping socket where only that is allowed.
    ///
    /// # Errors
    /// No right to either; no route.
    pub fn new(at: SocketAddr) -> Result<Self, PingError> {
        let to = at.ip();
        let failed = |cause: nix::Error| PingError::Failed {
            to,
            cause: cause.into(),
        };
        let ipv6 = to.is_ipv6();
        let family = if ipv6 {
            AddressFamily::Inet6
        } else {
            AddressFamily::Inet
        };
        let protocol = if ipv6 {
            SockProtocol::IcmpV6
        } else {
            SockProtocol::Icmp
        };
        let open = |kind| socket(family, kind, SockFlag::SOCK_CLOEXEC, protocol);
        let (socket, raw) = match open(SockType::Raw) {
            Ok(socket) => (socket, true),
            Err(nix::Error::EPERM | nix::Error::EACCES) => match open(SockType::Datagram) {
                Ok(socket) => (socket, false),
                Err(nix::Error::EPERM | nix::Error::EACCES) => return Err(PingError::NotPermitted),
                Err(e) => return Err(failed(e)),
            },
            Err(e) => return Err(failed(e)),
        };
        // With its scope, which a link-local address needs; ICMP has no ports.
        let mut address = at;
        address.set_port(0);
        let address = SockaddrStorage::from(address);
        connect(socket.as_raw_fd(), &address).map_err(failed)?;
        // Unique among this machine's pings, which all see each other's replies on
        // raw sockets: a descriptor number and a process together nearly are.
        let id = (std::process::id() as u16) ^ (socket.as_raw_fd() as u16).rotate_left(10);
        Ok(Self {
            socket,
            ipv6,
            id: raw.then_some(id),
            to,
        })
    }

    /// Whom it pings.
    pub fn to(&self) -> IpAddr {
        self.to
    }

    /// Forbids the network and this host to fragment requests, and the kernel to hold them
    /// back by what it knows of the path.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn forbid_fragments(&mut self) -> io::Result<()> {
        let (level, option, probe) = match self.ipv6 {
            false => (
                libc::IPPROTO_IP,
                libc::IP_MTU_DISCOVER,
                libc::IP_PMTUDISC_PROBE,
            ),
            true => (
                libc::IPPROTO_IPV6,
                libc::IPV6_MTU_DISCOVER,
                libc::IPV6_PMTUDISC_PROBE,
            ),
        };
        // SAFETY: an int, as these options take one.
        let ret = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                level,
                option,
                (&raw const probe).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        match ret {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Sends an echo request that is an IP packet of `packet_len` bytes.
    ///
    /// # Errors
    /// Those of send(2), such as EMSGSIZE.
    pub fn send_packet(&mut self, sequence: u16, packet_len: u16) -> io::Result<()> {
        let header = if self.ipv6 { 40 } else { 20 };
        let mut message = vec![0; usize::from(packet_len.max(header + 8) - header)];
        echo::fill_request(self.ipv6, self.id.unwrap_or(0), sequence, &mut message);
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty())?;
        Ok(())
    }

    /// Sends an echo request; gives the time just before.
    ///
    /// # Errors
    /// Those of send(2), such as no route.
    pub fn send(&mut self, sequence: u16) -> io::Result<u64> {
        let message = echo::request(self.ipv6, self.id.unwrap_or(0), sequence);
        let sent_ns = now_ns();
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty()).map_err(io::Error::from)?;
        Ok(sent_ns)
    }

    /// Waits until `until_ns` for a reply to one of our requests: its sequence
    /// number and when it was received.
    ///
    /// # Errors
    /// Those of recv(2). That the host is unreachable is not an error, but a missing reply.
    pub fn receive(&mut self, until_ns: u64) -> io::Result<Option<(u16, u64)>> {
        let mut buffer = [0_u8; 512];
        loop {
            let left_ns = until_ns.saturating_sub(now_ns());
            // Rounded up: at worst a millisecond late, which no figure contains.
            let ms = u16::try_from(left_ns.div_ceil(1_000_000)).unwrap_or(u16::MAX);
            let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, PollTimeout::from(ms)) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(nix::Error::EINTR) => continue,
                Err(e) => return Err(e.into()),
            }
            let received = recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT);
            let now = now_ns();
            match received.map_err(io::Error::from) {
                Ok(len) => match echo::reply(self.ipv6, &buffer[..len]) {
                    Some((id, sequence)) if self.id.is_none_or(|ours| ours == id) => {
                        return Ok(Some((sequence, now)));
                    }
                    _ => {}
                },
                // Errors of earlier requests arrive here.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock
                            | ErrorKind::Interrupted
                            | ErrorKind::HostUnreachable
                            | ErrorKind::NetworkUnreachable
                            | ErrorKind::ConnectionRefused
                    ) => {}
                Err(e) => return Err(e),
            }
            if left_ns == 0 {
                return Ok(None);
            }
        }
    }
}
