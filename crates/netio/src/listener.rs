// SPDX-License-Identifier: Apache-2.0
//! Listening sockets of other processes: how long their accept queues are, and may be.
//!
//! A process changes its backlog by calling listen(2) once more. From outside root can
//! do the same on a duplicate of the socket: pidfd_open(2), pidfd_getfd(2) (Linux 5.6),
//! listen(2). The process notices nothing; when it calls listen(2) itself, its own
//! number holds again. The limit in force is no more than net.core.somaxconn of the
//! socket's network namespace.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::{fs, io};

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

/// Listening TCP sockets of this network namespace by number, with their addresses.
pub fn listening() -> io::Result<BTreeMap<u64, SocketAddr>> {
    let mut found = BTreeMap::new();
    for file in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        found.extend(text.lines().skip(1).filter_map(parse));
    }
    Ok(found)
}

/// A line of /proc/net/tcp: number, local, remote, state, ... inode.
fn parse(line: &str) -> Option<(u64, SocketAddr)> {
    const LISTEN: &str = "0A";
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let (local, state, inode) = (words.get(1)?, words.get(3)?, words.get(9)?);
    if *state != LISTEN {
        return None;
    }
    let (address, port) = local.split_once(':')?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok();
    let ip = match address.len() {
        // Words in the machine's byte order.
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(8 * at)?.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((inode.parse().ok()?, SocketAddr::new(ip, port)))
}

/// Duplicates of the listening sockets that `wanted` says yes to. Sockets whose
/// processes end meanwhile, or that this process has no right to, are left out.
pub fn find(wanted: impl Fn(SocketAddr) -> bool) -> io::Result<Vec<Listener>> {
    let mut missing = listening()?;
    missing.retain(|_, address| wanted(*address));
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
        // SAFETY: a new descriptor that nobody else owns.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: takes two numbers.
    let process = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: takes three numbers.
    checked(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

impl Listener {
    /// How long its queue is, and may be.
    pub fn queue(&self) -> io::Result<AcceptQueue> {
        // The head of `struct tcp_info`: 8 bytes, then rto, ato, snd_mss, rcv_mss,
        // unacked, sacked. Of a listener the last two are the queue.
        let mut info = [0_u32; 8];
        let mut length = size_of_val(&info) as libc::socklen_t;
        // SAFETY: `info` is writable for `length` bytes.
        let ret = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &mut length,
            )
        };
        match ret {
            0 => Ok(AcceptQueue {
                length: info[6],
                limit: info[7],
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }

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

    use super::*;

    #[test]
    fn lines_of_proc_are_read() {
        let line = "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0";
        let address = "127.0.0.1:8080".parse().expect("address");
        assert_eq!(parse(line), Some((4711, address)));
        let six = "   0: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 4712 1";
        let address = "[::1]:80".parse().expect("address");
        assert_eq!(parse(six), Some((4712, address)));
        assert_eq!(parse(&line.replace(" 0A ", " 01 ")), None);
    }

    #[test]
    fn the_queue_of_a_listener_is_seen_and_its_limit_set() {
        let ours = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = ours.local_addr().expect("address");
        let found = find(|of| of == address).expect("proc");
        assert_eq!(found.len(), 1, "listening: {:?}", listening());
        let listener = &found[0];
        listener.set_limit(7).expect("listen");
        assert_eq!(
            listener.queue().expect("info"),
            AcceptQueue {
                length: 0,
                limit: 7
            }
        );
        let _client = TcpStream::connect(address).expect("connect");
        assert_eq!(listener.queue().expect("info").length, 1);
        listener.set_limit(3).expect("listen");
        assert_eq!(listener.queue().expect("info").limit, 3);
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
        let found = find(|of| of.port() == port).expect("proc");
        assert_eq!(found[0].queue().expect("info").limit, 64);
        drop(other.stdin.take());
        other.wait().expect("wait");
    }
}
