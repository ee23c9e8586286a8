// SPDX-License-Identifier: Apache-2.0
//! The client's socket calls: connect, send, and what their errors mean.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, SockaddrIn6, connect, setsockopt, socket,
    sockopt,
};

use super::log::ConnectionFault;

/// One write: with Nagle's algorithm off, what it holds leaves at once.
pub(crate) fn send(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
    match stream.write(bytes)? {
        n if n == bytes.len() => Ok(()),
        _ => Err(io::Error::from(ErrorKind::WriteZero)),
    }
}

/// A non-blocking connect, and the local address it uses.
pub(crate) fn begin_connect(target: SocketAddr) -> io::Result<(TcpStream, SocketAddr)> {
    let family = if target.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd: OwnedFd = socket(family, SockType::Stream, flags, None)?;
    let stream = TcpStream::from(fd);
    stream.set_nodelay(true)?;
    let result = match target {
        SocketAddr::V4(a) => connect(stream.as_raw_fd(), &SockaddrIn::from(a)),
        SocketAddr::V6(a) => connect(stream.as_raw_fd(), &SockaddrIn6::from(a)),
    };
    match result {
        Ok(()) | Err(Errno::EINPROGRESS) => {}
        Err(e) => return Err(e.into()),
    }
    let local = stream.local_addr()?;
    Ok((stream, local))
}

pub(crate) fn fault_of(error: &io::Error) -> ConnectionFault {
    match error.kind() {
        ErrorKind::ConnectionRefused => ConnectionFault::Refused,
        ErrorKind::TimedOut => ConnectionFault::ConnectTimeout,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => ConnectionFault::Unreachable,
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe => {
            ConnectionFault::Reset
        }
        _ => ConnectionFault::SendFailed,
    }
}

/// The kernel's smoothed round-trip time of a connection (`TCP_INFO`, what the
/// tracepoint tcp_probe prints as srtt); 0 if it does not say.
pub(crate) fn smoothed_rtt_us(stream: &TcpStream) -> u32 {
    // SAFETY: plain data; all zeroes is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: a valid descriptor, a live struct and its size.
    let rc = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &mut length,
        )
    };
    if rc < 0 { 0 } else { info.tcpi_rtt }
}

/// Has a connection end with a RST when it is closed, as of a client that is gone.
pub(crate) fn reset_on_close(stream: &impl AsFd) {
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    // A socket that is closed already needs none.
    let _ = setsockopt(stream, sockopt::Linger, &at_once);
}
