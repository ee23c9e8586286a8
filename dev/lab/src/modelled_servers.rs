// SPDX-License-Identifier: Apache-2.0
//! Many small web servers in one thread: for pools that are larger than this machine
//! could run real ones.
//!
//! Each server has its own namespace, addresses and sockets, so that what the kernel
//! and the network do is real. What a request costs is modelled instead of burnt: the
//! servers of a pool of 64 would else share two cores, and show those.
//!
//! - `GET /q/SIZE/US`: the server works on one request at a time, in the order they
//!   came, and on each for `US` microseconds. A queue of one server, exact but for the
//!   timer, which adds up to 1 ms.
//! - `GET /s/SIZE/MS`: the answer's bytes come spread evenly over `MS` milliseconds, as
//!   from a slow application or to a slow client.
//!
//! Every answer names its server in `X-Real`.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen, setsockopt, socket,
    sockopt,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

use crate::background::{Background, own_runtime};
use crate::topology::Node;

/// Longest request that is accepted.
const REQUEST_MAX: usize = 4096;
/// Time between two pieces of a spread answer.
const SPREAD_STEP: Duration = Duration::from_millis(200);
/// Limit of an accept queue that is not to be the bottleneck.
const BACKLOG: i32 = 4096;
/// Largest answer.
const SIZE_MAX: usize = 1 << 20;

/// Running servers; dropped, they end.
#[derive(Debug)]
pub struct ModelledServers {
    gauges: Vec<Arc<ServerGauge>>,
    _tasks: Background,
}

/// What a server is doing.
#[derive(Debug)]
pub struct ServerGauge {
    name: String,
    in_flight: AtomicU32,
    served: AtomicU64,
    /// When the work on all queued requests will be done.
    busy_until: Mutex<Instant>,
    /// How much longer than it is said the work takes here.
    factor: f64,
}

impl ServerGauge {
    /// Requests that wait or are worked on.
    pub fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Requests answered so far.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Queues work; when it will be done.
    fn queue(&self, work: Duration) -> Instant {
        let mut busy_until = self
            .busy_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *busy_until = (*busy_until).max(Instant::now()) + work.mul_f64(self.factor);
        *busy_until
    }
}

impl ModelledServers {
    /// Starts a server on each node, on `port` of all its addresses. Servers name
    /// themselves by the node's IPv4 address.
    pub fn start(nodes: &[Node], port: u16) -> Result<Self> {
        Self::start_uneven(nodes, port, &vec![1.0; nodes.len()])
    }

    /// The same, and each takes `factors` times as long for a request.
    pub fn start_uneven(nodes: &[Node], port: u16, factors: &[f64]) -> Result<Self> {
        let runtime = own_runtime()?;
        let mut gauges = Vec::with_capacity(nodes.len());
        for (node, &factor) in nodes.iter().zip(factors) {
            let gauge = Arc::new(ServerGauge {
                name: node.ipv4.to_string(),
                in_flight: AtomicU32::new(0),
                served: AtomicU64::new(0),
                busy_until: Mutex::new(Instant::now()),
                factor,
            });
            for address in [
                SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
                SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
            ] {
                let listener = node
                    .netns
                    .run(move || listen_on(address, BACKLOG).context("a server's socket"))?;
                let _inside = runtime.enter();
                let listener = TcpListener::from_std(listener)?;
                runtime.spawn(accept(listener, Arc::clone(&gauge)));
            }
            gauges.push(gauge);
        }
        Ok(Self {
            gauges,
            _tasks: Background::run_tasks(runtime),
        })
    }

    /// What each server is doing, in the order of the nodes.
    pub fn gauges(&self) -> &[Arc<ServerGauge>] {
        &self.gauges
    }
}

/// A listening socket of one family, with this limit of its accept queue.
pub(crate) fn listen_on(address: SocketAddr, backlog: i32) -> Result<std::net::TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(family, SockType::Stream, flags, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    if address.is_ipv6() {
        setsockopt(&fd, sockopt::Ipv6V6Only, &true)?;
    }
    bind(fd.as_raw_fd(), &SockaddrStorage::from(address)).context("binding a server")?;
    listen(&fd, Backlog::new(backlog)?)?;
    Ok(fd.into())
}

async fn accept(listener: TcpListener, gauge: Arc<ServerGauge>) {
    loop {
        // Errors are of one connection, or pass.
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let gauge = Arc::clone(&gauge);
        tokio::spawn(async move {
            // The client's log says what broke.
            let _ = serve(stream, &gauge).await;
        });
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelledRequest {
    Queued { size: usize, work: Duration },
    Spread { size: usize, over: Duration },
}

async fn serve(mut stream: TcpStream, gauge: &ServerGauge) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    while let Some(head) = next_head(&mut stream, &mut buffer).await? {
        let wanted = parse(&head).ok_or(io::ErrorKind::InvalidData)?;
        gauge.in_flight.fetch_add(1, Ordering::Relaxed);
        let answered = answer(&mut stream, gauge, wanted).await;
        gauge.in_flight.fetch_sub(1, Ordering::Relaxed);
        answered?;
        gauge.served.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Reads the head of one request; `None` when the client has closed.
pub(crate) async fn next_head(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<String>> {
    loop {
        if let Some(end) = buffer.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let head: Vec<u8> = buffer.drain(..end + 4).collect();
            let head = String::from_utf8(head).map_err(|_| io::ErrorKind::InvalidData)?;
            return Ok(Some(head));
        }
        if buffer.len() > REQUEST_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn parse(head: &str) -> Option<ModelledRequest> {
    parse_path(head.strip_prefix("GET ")?.split(' ').next()?)
}

/// What a path asks for; `None` for one that is not a path of these servers.
pub(crate) fn parse_path(path: &str) -> Option<ModelledRequest> {
    let mut parts = path.strip_prefix('/')?.split('/');
    let (kind, size, time) = (parts.next()?, parts.next()?, parts.next()?);
    let size = size.parse::<usize>().ok()?.min(SIZE_MAX);
    let time: u64 = time.parse().ok()?;
    match (kind, parts.next()) {
        ("q", None) => Some(ModelledRequest::Queued {
            size,
            work: Duration::from_micros(time),
        }),
        ("s", None) => Some(ModelledRequest::Spread {
            size,
            over: Duration::from_millis(time),
        }),
        _ => None,
    }
}

async fn answer(
    stream: &mut TcpStream,
    gauge: &ServerGauge,
    wanted: ModelledRequest,
) -> io::Result<()> {
    let (size, over) = match wanted {
        ModelledRequest::Queued { size, work } => {
            sleep_until(gauge.queue(work)).await;
            (size, Duration::ZERO)
        }
        ModelledRequest::Spread { size, over } => (size, over),
    };
    write_answer(stream, &gauge.name, size, over).await
}

/// Writes an answer of `size` bytes by the server `name`, spread over a time.
pub(crate) async fn write_answer(
    stream: &mut TcpStream,
    name: &str,
    size: usize,
    over: Duration,
) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nX-Real: {name}\r\n\r\n");
    let mut bytes = head.into_bytes();
    let start = Instant::now();
    for (after, share) in pieces(size, over) {
        bytes.resize(bytes.len() + share, b'c');
        sleep_until(start + after).await;
        stream.write_all(&bytes).await?;
        bytes.clear();
    }
    Ok(())
}

/// When after the beginning how many bytes of an answer are sent.
pub(crate) fn pieces(size: usize, over: Duration) -> impl Iterator<Item = (Duration, usize)> {
    let pieces = (over.as_nanos() / SPREAD_STEP.as_nanos()) as usize + 1;
    let last = (pieces - 1).max(1);
    (0..pieces).map(move |piece| {
        let share = size * (piece + 1) / pieces - size * piece / pieces;
        (over.mul_f64(piece as f64 / last as f64), share)
    })
}

/// The path of a request for queued work.
pub fn queued(size: u32, work: Duration) -> String {
    format!("/q/{size}/{}", work.as_micros())
}

/// The path of a request for an answer that comes bit by bit.
pub fn spread(size: u32, over: Duration) -> String {
    format!("/s/{size}/{}", over.as_millis())
}

/// Raises the limit of open files to this many connections.
pub fn raise_fd_limit(connections: u64) -> Result<()> {
    let (soft, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    if soft < connections {
        if hard < connections {
            bail!(
                "{connections} connections need as many file descriptors; the limit is {hard} (ulimit -n)"
            );
        }
        nix::sys::resource::setrlimit(
            nix::sys::resource::Resource::RLIMIT_NOFILE,
            connections,
            hard,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_they_are_written() {
        let head = |path: String| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(
            parse(&head(queued(8192, Duration::from_micros(1500)))),
            Some(ModelledRequest::Queued {
                size: 8192,
                work: Duration::from_micros(1500)
            })
        );
        assert_eq!(
            parse(&head(spread(9, Duration::from_secs(2)))),
            Some(ModelledRequest::Spread {
                size: 9,
                over: Duration::from_secs(2)
            })
        );
        for bad in ["/q/1", "/q/1/2/3", "/x/1/2", "/q/a/2", ""] {
            assert_eq!(parse(&head(bad.to_owned())), None, "{bad}");
        }
    }

    #[test]
    fn pieces_are_the_whole_answer_from_begin_to_end() {
        for (size, ms, count) in [(10, 0, 1), (1000, 199, 1), (1001, 400, 3), (3, 2000, 11)] {
            let over = Duration::from_millis(ms);
            let all: Vec<(Duration, usize)> = pieces(size, over).collect();
            assert_eq!(all.len(), count);
            assert_eq!(all.iter().map(|piece| piece.1).sum::<usize>(), size);
            assert_eq!(all[0].0, Duration::ZERO);
            assert!(count == 1 || all[count - 1].0 == over);
        }
    }

    #[test]
    fn a_queue_is_worked_off_one_by_one() {
        let gauge = ServerGauge {
            name: String::new(),
            in_flight: AtomicU32::new(0),
            served: AtomicU64::new(0),
            busy_until: Mutex::new(Instant::now()),
            factor: 2.0,
        };
        let hour = Duration::from_secs(3600);
        let first = gauge.queue(hour);
        assert_eq!(gauge.queue(hour / 2), first + hour);
        assert_eq!(gauge.queue(Duration::ZERO), first + hour);
    }
}
