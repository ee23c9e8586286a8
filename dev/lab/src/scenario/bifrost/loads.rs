// SPDX-License-Identifier: Apache-2.0
//! The loads: short connections to nginx, ping-pong of 14 bytes, and bulk.
//!
//! The first two are paced: a request has its time, and is late if the one before is not
//! done. What counts is the time from when it was due. Closed-loop clients would send
//! less just while the network is bad, and so see less of it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, connect,
    getsockopt, listen, setsockopt, socket, sockopt,
};
use serde::Serialize;

use super::latencies::RequestTimes;
use crate::background::{Background, joined};
use crate::clock;
use crate::cpu::{CpuMeter, Steal, process_clock};
use crate::netns::Netns;

/// A message of the ping-pong, as in sockperf.
const MESSAGE: usize = 14;
/// How long a client waits before it gives a request up.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes of a write of the bulk load.
const CHUNK: usize = 256 * 1024;

/// Whether connections are TCP's or MPTCP's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TcpStack {
    /// Plain TCP.
    Tcp,
    /// RFC 8684.
    Mptcp,
}

/// Where a load runs: client and server with the server's address.
#[derive(Debug, Clone)]
pub(super) struct Ends {
    /// Where clients run.
    pub client: Netns,
    /// Where the server runs.
    pub server: Netns,
    pub address: String,
    /// What they speak.
    pub stack: TcpStack,
}

/// A client's requests: their times in nanoseconds, how late they began, and how many of them
/// failed.
type Part = (Vec<u64>, Vec<u64>, usize);

/// CPU seconds for a gigabyte.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Spent {
    /// Of the processes that were asked about.
    pub processes: f64,
    /// Of sender and receiver.
    pub load: f64,
}

/// What a bulk load had.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bulk {
    /// What arrived, Gbit/s.
    pub gbps: f64,
    /// CPU seconds for a gigabyte.
    pub spent: Spent,
    /// Share of all CPUs that was busy meanwhile, 0 to 1.
    pub busy: f64,
    /// What the hypervisor gave to others meanwhile.
    pub steal: Steal,
}

/// Requests by a timetable.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Requests per second, over all clients.
    pub rate: f64,
    /// Clients side by side, each with one request at a time.
    pub clients: usize,
    /// How long.
    pub lasts: Duration,
}

/// Short connections: connect, one request, the whole answer, close. The server, nginx,
/// must be there.
pub(super) fn short(ends: &Ends, port: u16, bytes: u32, pace: Pace) -> Result<RequestTimes> {
    let target: SocketAddr = format!("{}:{port}", ends.address).parse()?;
    let stack = ends.stack;
    paced(&ends.client, pace, move || {
        Ok(move || {
            let mut stream = open(target, stack)?;
            write!(
                stream,
                "GET /r/{bytes}/0 HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n"
            )?;
            let mut answer = Vec::with_capacity(bytes as usize + 512);
            stream.read_to_end(&mut answer)?;
            match answer.starts_with(b"HTTP/1.1 200") && answer.len() > bytes as usize {
                true => Ok(()),
                false => Err(io::Error::from(ErrorKind::InvalidData)),
            }
        })
    })
}

/// Ping-pong with 14 bytes each way on connections that stay.
pub(super) fn ping_pong(ends: &Ends, port: u16, pace: Pace) -> Result<RequestTimes> {
    let target: SocketAddr = format!("{}:{port}", ends.address).parse()?;
    let stack = ends.stack;
    let _server = echo_server(ends, target)?;
    paced(&ends.client, pace, move || {
        let mut stream = open(target, stack)?;
        Ok(move || {
            let mut message = [7; MESSAGE];
            stream.write_all(&message)?;
            stream.read_exact(&mut message)
        })
    })
}

/// The same without a pause between messages, one client: what is on the way alone.
pub(super) fn idle_ping_pong(ends: &Ends, port: u16, lasts: Duration) -> Result<RequestTimes> {
    let target: SocketAddr = format!("{}:{port}", ends.address).parse()?;
    let stack = ends.stack;
    let _server = echo_server(ends, target)?;
    ends.client.run(move || {
        let mut stream = open(target, stack)?;
        let mut times = Vec::new();
        let meter = CpuMeter::start()?;
        let (start, mut message) = (Instant::now(), [7; MESSAGE]);
        while start.elapsed() < lasts {
            let begin = clock::monotonic_ns();
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            times.push(clock::monotonic_ns() - begin);
        }
        RequestTimes::of(times, Vec::new(), 0, meter.steal()?)
    })
}

/// A web server as small as can be, for what nginx does not speak (Debian's has no
/// MPTCP): each request is answered with as many bytes as it asks for, and the connection
/// closed. It serves until the process ends.
pub(super) fn serve_web(ends: &Ends, port: u16, threads: usize) -> Result<()> {
    let listener = listen_in(
        &ends.server,
        format!("{}:{port}", ends.address).parse()?,
        ends.stack,
    )?;
    for _ in 0..threads {
        let listener = listener.try_clone()?;
        ends.server.thread(move || {
            loop {
                let (stream, _) = listener.accept()?;
                // The client counts what fails.
                let _ = answer(stream);
            }
            #[allow(unreachable_code, reason = "the thread's result has a type")]
            Ok(())
        });
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let (mut request, mut buffer) = (Vec::new(), [0; 2048]);
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => request.extend_from_slice(&buffer[..count]),
        }
    }
    let text = String::from_utf8_lossy(&request);
    let size = text.split('/').nth(2).and_then(|size| size.parse().ok());
    let size: usize = size.ok_or(ErrorKind::InvalidData)?;
    let mut bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes();
    bytes.resize(bytes.len() + size, b'c');
    stream.write_all(&bytes)
}

/// Runs requests by a timetable: the next free client takes the next one, and
/// waits until it is due. `client` makes what sends a request and waits for its answer.
/// A request that fails counts with the time until it did.
pub(super) fn paced<C, R>(netns: &Netns, pace: Pace, client: C) -> Result<RequestTimes>
where
    C: Fn() -> Result<R> + Clone + Send + 'static,
    R: FnMut() -> io::Result<()>,
{
    let meter = CpuMeter::start()?;
    let start = clock::monotonic_ns() + 100_000_000;
    let gap_ns = (1e9 / pace.rate) as u64;
    let count = pace.lasts.as_nanos() as u64 / gap_ns;
    let next = Arc::new(AtomicU64::new(0));
    let threads: Vec<JoinHandle<Result<Part>>> = (0..pace.clients)
        .map(|_| {
            let (client, next) = (client.clone(), Arc::clone(&next));
            netns.thread(move || {
                causeway_netio::rtt::clock::set_least_timer_slack();
                let mut request = client()?;
                let (mut times, mut late, mut failed) = (Vec::new(), Vec::new(), 0);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return Ok((times, late, failed));
                    }
                    let due = start + number * gap_ns;
                    sleep_until(due);
                    late.push(clock::monotonic_ns().saturating_sub(due));
                    let answered = request();
                    times.push(clock::monotonic_ns() - due);
                    if answered.is_err() {
                        failed += 1;
                        request = client()?;
                    }
                }
            })
        })
        .collect();
    // Later than this only requests that wait for a timeout are out, and CPUs are idle.
    sleep_until(start + count * gap_ns);
    let steal = meter.steal()?;
    let (mut times, mut late, mut failed) = (Vec::new(), Vec::new(), 0);
    for thread in threads {
        let (part, waits, broken) = joined(thread)?;
        times.extend(part);
        late.extend(waits);
        failed += broken;
    }
    RequestTimes::of(times, late, failed, steal)
}

fn sleep_until(due_ns: u64) {
    let now = clock::monotonic_ns();
    if due_ns > now {
        std::thread::sleep(Duration::from_nanos(due_ns - now));
    }
}

/// Bulk from client to server over some connections: what arrived over the time after the
/// warm-up, and the CPU time that these processes and the load itself took for it. Unlike the
/// rate that says something on a machine that others use, too.
pub(super) fn bulk(
    ends: &Ends,
    port: u16,
    flows: usize,
    [warm_up, lasts]: [Duration; 2],
    processes: &[u32],
) -> Result<Bulk> {
    let own = std::process::id();
    let clocks = || -> Result<[Duration; 2]> {
        let all = processes.iter().map(|&pid| process_clock(pid));
        let all: Option<Duration> = all.sum();
        let all = all.context("a process has ended")?;
        Ok([all, process_clock(own).context("no clock of our own")?])
    };
    let target: SocketAddr = format!("{}:{port}", ends.address).parse()?;
    let stack = ends.stack;
    let stop = Arc::new(AtomicBool::new(false));
    let received = Arc::new(AtomicU64::new(0));
    let listener = listen_in(&ends.server, target, stack)?;
    let sink = {
        let (received, stop) = (Arc::clone(&received), Arc::clone(&stop));
        ends.server.thread(move || {
            let mut threads = Vec::new();
            for _ in 0..flows {
                let (mut stream, _) = listener.accept()?;
                let (received, stop) = (Arc::clone(&received), Arc::clone(&stop));
                threads.push(std::thread::spawn(move || {
                    stream.set_read_timeout(Some(Duration::from_millis(200)))?;
                    let mut buffer = vec![0; CHUNK];
                    while !stop.load(Ordering::Relaxed) {
                        match stream.read(&mut buffer) {
                            Ok(0) => break,
                            Ok(count) => {
                                received.fetch_add(count as u64, Ordering::Relaxed);
                            }
                            Err(e) if is_timeout(&e) => {}
                            Err(_) if stop.load(Ordering::Relaxed) => {}
                            Err(e) => return Err(e),
                        }
                    }
                    Ok(())
                }));
            }
            for thread in threads {
                let done = thread.join();
                done.unwrap_or_else(|_| Err(io::Error::other("a server thread panicked")))?;
            }
            Ok(())
        })
    };
    let sources: Vec<_> = (0..flows)
        .map(|_| {
            let stop = Arc::clone(&stop);
            ends.client.thread(move || {
                let mut stream = open(target, stack)?;
                stream.set_write_timeout(Some(Duration::from_millis(200)))?;
                let buffer = vec![7; CHUNK];
                while !stop.load(Ordering::Relaxed) {
                    match stream.write(&buffer) {
                        Ok(_) => {}
                        Err(e) if is_timeout(&e) => {}
                        // A server that was reached late closes at once.
                        Err(_) if stop.load(Ordering::Relaxed) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Ok(())
            })
        })
        .collect();
    std::thread::sleep(warm_up);
    let meter = CpuMeter::start()?;
    let (before, begin, spent) = (received.load(Ordering::Relaxed), Instant::now(), clocks()?);
    std::thread::sleep(lasts);
    let bytes = received.load(Ordering::Relaxed) - before;
    let (seconds, after) = (begin.elapsed().as_secs_f64(), clocks()?);
    let (busy, steal) = (meter.share()?, meter.steal()?);
    stop.store(true, Ordering::Relaxed);
    for source in sources {
        joined(source)?;
    }
    joined(sink)?;
    let per_gb = |i: usize| (after[i] - spent[i]).as_secs_f64() * 1e9 / bytes.max(1) as f64;
    Ok(Bulk {
        gbps: bytes as f64 * 8.0 / seconds / 1e9,
        spent: Spent {
            processes: per_gb(0),
            load: per_gb(1),
        },
        busy,
        steal,
    })
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// An echo server; dropped, it ends with its connections.
fn echo_server(ends: &Ends, target: SocketAddr) -> Result<Background> {
    let listener = listen_in(&ends.server, target, ends.stack)?;
    listener.set_nonblocking(true)?;
    Ok(Background::spawn_in(&ends.server, move |stop| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                // Ends when the client closes.
                Ok((stream, _)) => drop(std::thread::spawn(move || echo(stream))),
                Err(e) if is_timeout(&e) => std::thread::sleep(Duration::from_millis(2)),
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }))
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count])?,
        }
    }
}

fn raw(stack: TcpStack) -> io::Result<OwnedFd> {
    let protocol = match stack {
        TcpStack::Tcp => Some(SockProtocol::Tcp),
        TcpStack::Mptcp => None,
    };
    match protocol {
        Some(protocol) => Ok(socket(
            AddressFamily::Inet,
            SockType::Stream,
            SockFlag::SOCK_CLOEXEC,
            protocol,
        )?),
        None => {
            let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
            // SAFETY: socket(2) with constants.
            let fd = unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_MPTCP) };
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the kernel has just given us this descriptor.
            Ok(unsafe { OwnedFd::from_raw_fd(fd) })
        }
    }
}

pub(super) fn open(target: SocketAddr, stack: TcpStack) -> io::Result<TcpStream> {
    let fd = raw(stack)?;
    let timeout = nix::sys::time::TimeVal::new(REQUEST_TIMEOUT.as_secs() as i64, 0);
    setsockopt(&fd, sockopt::SendTimeout, &timeout)?;
    setsockopt(&fd, sockopt::ReceiveTimeout, &timeout)?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(target))?;
    let stream = TcpStream::from(fd);
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The congestion control of a new connection.
pub(super) fn congestion_control(ends: &Ends, port: u16) -> Result<String> {
    let target: SocketAddr = format!("{}:{port}", ends.address).parse()?;
    let stack = ends.stack;
    ends.client.run(move || {
        let stream = open(target, stack)?;
        let name = getsockopt(&stream, sockopt::TcpCongestion)?;
        Ok(name.to_string_lossy().trim_end_matches('\0').to_owned())
    })
}

fn listen_in(netns: &Netns, at: SocketAddr, stack: TcpStack) -> Result<TcpListener> {
    netns.run(move || {
        let fd = raw(stack)?;
        setsockopt(&fd, sockopt::ReuseAddr, &true)?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(at)).context("bind the server")?;
        listen(&fd, Backlog::new(1024)?)?;
        Ok(TcpListener::from(fd))
    })
}
