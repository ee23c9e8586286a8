// SPDX-License-Identifier: Apache-2.0
//! Listening sockets of other processes: how long their accept queues are, and may be.
//!
//! A process changes its backlog by calling listen(2) once more. From outside root can
//! do the same on a duplicate of the socket: pidfd_open(2), pidfd_getfd(2) (Linux 5.6),
//! listen(2). The process notices nothing; when it calls listen(2) itself, its own
//! number holds again. The limit in force is no more than net.core.somaxconn of the
//! socket's network namespace.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::{fs, io};

use crate::sock_diag;

/// The bit of `TCP_LISTEN` among states.
const TCP_LISTEN: u32 = 1 << 10;
/// Where `struct inet_diag_msg` has, of a listener, the length and the limit of its queue, and
/// the socket's number.
const RQUEUE_AT: usize = 56;
const WQUEUE_AT: usize = 60;
const INODE_AT: usize = 68;

/// A duplicate of a listening socket. It holds the socket open: drop it when its owner
/// may have closed its own.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
    /// Where it listens.
    pub address: SocketAddr,
}

/// An accept queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptQueue {
    /// Connections that wait to be accepted.
    pub length: u32,
    /// A SYN is dropped when more than this many wait.
    pub limit: u32,
}

/// A listening socket of this network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its accept queue.
    pub queue: AcceptQueue,
    /// What names it in /proc/PID/fd.
    inode: u32,
}

/// The listening TCP sockets of this network namespace; it needs no right to their processes.
///
/// # Errors
/// If the kernel does not answer: it has no CONFIG_INET_DIAG, say.
pub fn listening() -> io::Result<Vec<Listening>> {
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        sock_diag::dump(family, TCP_LISTEN, 0, |message| {
            found.extend(parse(message))
        })?;
    }
    Ok(found)
}

fn parse(message: &[u8]) -> Option<Listening> {
    let word = |at| sock_diag::word(message, at);
    Some(Listening {
        address: sock_diag::local(message)?,
        queue: AcceptQueue {
            length: word(RQUEUE_AT)?,
            limit: word(WQUEUE_AT)?,
        },
        inode: word(INODE_AT)?,
    })
}

/// Duplicates of the listening sockets that `wanted` says yes to. Sockets whose
/// processes end meanwhile, or that this process has no right to, are left out.
pub fn find(wanted: impl Fn(SocketAddr) -> bool) -> io::Result<Vec<Listener>> {
    let wanted = listening()?.into_iter().filter(|of| wanted(of.address));
    let mut missing: BTreeMap<u64, SocketAddr> =
        wanted.map(|of| (of.inode.into(), of.address)).collect();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        if missing.is_empty() {
            break;
        }
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let Ok(descriptors) = fs::read_dir(entry.path().join("fd")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            let Some(inode) = socket_of(&descriptor.path()) else {
                continue;
            };
            let Some(&address) = missing.get(&inode) else {
                continue;
            };
            let number = descriptor
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok());
            if let Some(fd) = number.and_then(|number| duplicate(pid, number).ok()) {
                missing.remove(&inode);
                found.push(Listener { fd, address });
            }
        }
    }
    Ok(found)
}

/// The number of the socket that a link in /proc/PID/fd points to.
fn socket_of(path: &std::path::Path) -> Option<u64> {
    let target = fs::read_link(path).ok()?;
    let number = target
        .to_str()?
        .strip_prefix("socket:[")?
        .strip_suffix(']')?;
    number.parse().ok()
}

fn duplicate(pid: i32, number: i32) -> io::Result<OwnedFd> {
    let checked = |fd: libc::c_long| match fd {
        // SAFETY: a new descriptor that no other code owns.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: takes two numbers.
    let process = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: takes three numbers.
    checked(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

impl Listener {
    /// Sets how long its queue may be.
    pub fn set_limit(&self, limit: u32) -> io::Result<()> {
        let backlog = i32::try_from(limit).unwrap_or(i32::MAX);
        // SAFETY: takes two numbers.
        match unsafe { libc::listen(self.fd.as_raw_fd(), backlog) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    fn queue(of: &str) -> AcceptQueue {
        let all = listening().expect("sock_diag");
        let found = all
            .iter()
            .find(|listening| listening.address.to_string() == of);
        found.unwrap_or_else(|| panic!("{of} in {all:?}")).queue
    }

    #[test]
    fn the_queue_of_a_listener_is_seen_and_its_limit_set() {
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let ours = TcpListener::bind(bind).expect("bind");
            let address = ours.local_addr().expect("address");
            let found = find(|of| of == address).expect("proc");
            assert_eq!(found.len(), 1, "listening: {:?}", listening());
            let limit = |limit| AcceptQueue { length: 0, limit };
            found[0].set_limit(7).expect("listen");
            assert_eq!(queue(&address.to_string()), limit(7));
            let _client = TcpStream::connect(address).expect("connect");
            // The client's last ACK may lie in the same backlog as what made it go on.
            let start = Instant::now();
            while queue(&address.to_string()).length != 1 {
                assert!(start.elapsed() < Duration::from_secs(60), "{address}");
            }
            found[0].set_limit(3).expect("listen");
            assert_eq!(queue(&address.to_string()).limit, 3);
        }
        assert_eq!(parse(&[0; 71]), None, "cut");
    }

    /// Needs root, as other tests of this crate do.
    #[test]
    fn another_process_keeps_listening_with_the_limit_that_it_was_given() {
        let mut other = Command::new("python3")
            .args(["-c", "import socket,sys,time\ns=socket.socket();s.bind(('127.0.0.1',0));s.listen(5)\nprint(s.getsockname()[1],flush=True)\nsys.stdin.read()\n"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        let stdout = other.stdout.take().expect("stdout");
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).expect("port");
        let port: u16 = line.trim().parse().expect("port");
        let found = find(|of| of.port() == port).expect("proc");
        found[0].set_limit(64).expect("listen");
        drop(found);
        assert_eq!(queue(&format!("127.0.0.1:{port}")).limit, 64);
        drop(other.stdin.take());
        other.wait().expect("wait");
    }
}
