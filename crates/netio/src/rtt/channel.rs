// SPDX-License-Identifier: Apache-2.0
//! One request and its response over TCP or UDP, timed at the system calls.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

use super::clock::now_ns;

/// Between two signs of life of a silent connection.
const KEEP_ALIVE_S: u32 = 60;

/// Opens a TCP connection, without Nagle's algorithm unless `nagle`, with
/// `congestion` as its congestion control if given.
///
/// # Errors
/// Those of the system calls.
pub fn connect(
    to: SocketAddr,
    timeout: Duration,
    nagle: bool,
    congestion: Option<&str>,
) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, timeout)?;
    stream.set_nodelay(!nagle)?;
    keep_alive(&stream)?;
    if let Some(name) = congestion {
        setsockopt(&stream, sockopt::TcpCongestion, &name.into()).map_err(io::Error::from)?;
    }
    Ok(stream)
}

/// Has the kernel ask the peer for a sign of life where nothing was sent for a minute:
/// translators of addresses and cloud balancers forget connections that say nothing after a
/// few, and a peer that is gone is noticed.
///
/// # Errors
/// Those of the system calls.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEP_ALIVE_S)?;
    Ok(setsockopt(stream, sockopt::TcpKeepInterval, &KEEP_ALIVE_S)?)
}

/// How long a read or a write may take; `None` for ever.
///
/// # Errors
/// Those of the system calls.
pub fn set_timeouts(stream: &TcpStream, timeout: Option<Duration>) -> io::Result<()> {
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)
}

/// When a request left and when its response was complete, CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Just before send().
    pub sent_ns: u64,
    /// Just after the recv() that gave the response's last byte.
    pub received_ns: u64,
}

/// A client's end of one stream of requests.
#[derive(Debug)]
pub enum Channel {
    /// Over a connection.
    Tcp {
        /// The connection.
        stream: TcpStream,
        /// Write a request in two halves.
        split: bool,
    },
    /// Over datagrams; a request or response lost is lost.
    Udp {
        /// A connected socket.
        socket: UdpSocket,
        /// The first byte of each request, which the response repeats.
        sequence: u8,
    },
}

impl Channel {
    /// Sends `request` and receives a response of as many bytes as `response` has.
    /// `None` where no response came before the socket's timeout (UDP only).
    ///
    /// # Errors
    /// The connection broke, or a TCP response did not come before the timeout.
    pub fn exchange(
        &mut self,
        request: &mut [u8],
        response: &mut [u8],
    ) -> io::Result<Option<Exchange>> {
        match self {
            Self::Tcp { stream, split } => {
                let middle = if *split { request.len() / 2 } else { 0 };
                let sent_ns = now_ns();
                if middle > 0 {
                    stream.write_all(&request[..middle])?;
                }
                stream.write_all(&request[middle..])?;
                read_exactly(stream, response)?;
                Ok(Some(Exchange {
                    sent_ns,
                    received_ns: now_ns(),
                }))
            }
            Self::Udp { socket, sequence } => {
                *sequence = sequence.wrapping_add(1);
                if let Some(first) = request.first_mut() {
                    *first = *sequence;
                }
                datagrams(socket, *sequence, request, response)
            }
        }
    }

    /// The TCP connection, if it is one.
    pub fn stream(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp { stream, .. } => Some(stream),
            Self::Udp { .. } => None,
        }
    }
}

fn datagrams(
    socket: &UdpSocket,
    sequence: u8,
    request: &[u8],
    response: &mut [u8],
) -> io::Result<Option<Exchange>> {
    let sent_ns = now_ns();
    socket.send(request)?;
    loop {
        match socket.recv(response) {
            // A response to a request that was given up is not this one's.
            Ok(len) if len > 0 && response[0] != sequence => {}
            Ok(_) => {
                return Ok(Some(Exchange {
                    sent_ns,
                    received_ns: now_ns(),
                }));
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(e) => return Err(e),
        }
    }
}

/// Fills `buffer`.
///
/// # Errors
/// `UnexpectedEof` where the peer closes before; `TimedOut` at the socket's
/// timeout.
pub fn read_exactly(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => filled += len,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;

    use super::*;

    #[test]
    fn a_silent_connection_shows_that_it_lives() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let stream = connect(to, Duration::from_secs(60), false, None).unwrap();
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap());
        assert_eq!(getsockopt(&stream, sockopt::TcpKeepIdle).unwrap(), 60);
    }
}
