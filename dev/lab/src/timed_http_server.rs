// SPDX-License-Identifier: Apache-2.0
//! An HTTP/1.1 server whose service times are exact to microseconds and follow
//! one of three disciplines, as no real server's do. Where the real thing is
//! wanted there is [`crate::nginx`].
//!
//! It answers `GET /r/SIZE/SERVICE_US` as nginx does in the lab, in the order of
//! the requests on a connection, as HTTP/1.1 demands. A [`Drift`] multiplies all
//! service times by a factor that changes now and then.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use crate::background::Background;
use crate::clock;
use crate::load::poll::{Interest, Poll};
use crate::netns::Netns;

/// How often the thread looks whether it is to end.
const TICK_NS: u64 = 100_000_000;
/// Largest body.
const MAX_BODY: usize = 1 << 20;
/// Longest request head that is accepted.
const MAX_HEAD: usize = 8192;
/// Token of the listening socket.
const LISTENER: usize = usize::MAX;

/// How requests that wait on one connection share the server's time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Discipline {
    /// Each has its own time from its arrival on.
    #[default]
    Parallel,
    /// All that wait together are done when the first of them is.
    Batch,
    /// One after the other.
    Serial,
}

/// A factor on service times: lognormal around 1, drawn again after exponential
/// times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Drift {
    /// Sigma of the logarithm; 0: the factor stays 1.
    pub sigma: f64,
    /// Mean time between changes. Milliseconds.
    pub every_ms: f64,
}

/// A drift under way, from its own source of chance.
#[derive(Debug)]
pub struct DriftProcess {
    drift: Drift,
    rng: StdRng,
}

impl DriftProcess {
    /// The drift's course for a seed.
    pub fn new(drift: Drift, seed: u64) -> Self {
        Self {
            drift,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// From 0, excluded, to 1.
    fn uniform(&mut self) -> f64 {
        1.0 - self.rng.random::<f64>()
    }

    /// The factor from now on.
    pub fn next_factor(&mut self) -> f64 {
        // Box and Muller's transform.
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.uniform()).cos();
        (self.drift.sigma * normal).exp()
    }

    /// How long it stays.
    pub fn next_rest(&mut self) -> Duration {
        let rest_ms = -self.uniform().ln() * self.drift.every_ms;
        match self.drift.sigma > 0.0 {
            true => Duration::from_secs_f64((rest_ms / 1e3).max(1e-3)),
            // It never changes.
            false => Duration::from_secs(3600),
        }
    }
}

/// What a server does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ServiceBehaviour {
    /// See [`Discipline`].
    pub discipline: Discipline,
    /// See [`Drift`].
    pub drift: Drift,
}

/// A running server; dropped, it ends.
#[derive(Debug)]
pub struct TimedHttpServer {
    _thread: Background,
}

impl TimedHttpServer {
    /// Starts a server in `netns` on all IPv4 addresses. It accepts connections
    /// when this returns.
    pub fn start(netns: &Netns, port: u16, behaviour: ServiceBehaviour, seed: u64) -> Result<Self> {
        let listener = netns.run(move || {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })?;
        let thread = Background::spawn(move |stop| {
            Server::new(listener, behaviour, seed)?
                .run(stop)
                .context("timed HTTP server")
        });
        Ok(Self { _thread: thread })
    }
}

/// A request that waits for its time.
struct Waiting {
    ready_ns: u64,
    size: usize,
}

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    output: VecDeque<u8>,
    waiting: VecDeque<Waiting>,
    wants_to_write: bool,
}

struct Server {
    listener: TcpListener,
    poll: Poll,
    behaviour: ServiceBehaviour,
    drift: DriftProcess,
    factor: f64,
    /// When the factor changes next.
    change_ns: u64,
    connections: Vec<Option<Connection>>,
    /// Times at which a connection's oldest request is ready.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    buffer: Vec<u8>,
}

impl Server {
    fn new(listener: TcpListener, behaviour: ServiceBehaviour, seed: u64) -> Result<Self> {
        let poll = Poll::new()?;
        poll.add(listener.as_raw_fd(), LISTENER, Interest::Read)?;
        Ok(Self {
            listener,
            poll,
            behaviour,
            drift: DriftProcess::new(behaviour.drift, seed),
            factor: 1.0,
            change_ns: 0,
            connections: Vec::new(),
            timers: BinaryHeap::new(),
            buffer: vec![0; 64 * 1024],
        })
    }

    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        // SAFETY: PR_SET_TIMERSLACK takes one integer.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        let mut ready = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let now = clock::monotonic_ns();
            let due = self.timers.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            self.poll
                .wait(due.saturating_sub(now).min(TICK_NS), &mut ready)?;
            for &token in &ready {
                match token {
                    LISTENER => self.accept()?,
                    index => self.serve(index, Self::read),
                }
            }
            let now = clock::monotonic_ns();
            while let Some(&Reverse((at, index))) = self.timers.peek()
                && at <= now
            {
                self.timers.pop();
                self.serve(index, Self::answer);
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::ConnectionAborted => continue,
                Err(e) => return Err(e),
            };
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            let index = self.connections.len();
            self.poll.add(stream.as_raw_fd(), index, Interest::Read)?;
            self.connections.push(Some(Connection {
                stream,
                input: Vec::new(),
                output: VecDeque::new(),
                waiting: VecDeque::new(),
                wants_to_write: false,
            }));
        }
    }

    /// Does something for a connection; one that fails is closed.
    fn serve(
        &mut self,
        index: usize,
        what: impl Fn(&mut Self, usize, &mut Connection) -> io::Result<()>,
    ) {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else {
            return;
        };
        let done =
            what(self, index, &mut connection).and_then(|()| self.flush(index, &mut connection));
        if done.is_ok() {
            self.connections[index] = Some(connection);
        }
    }

    fn read(&mut self, index: usize, connection: &mut Connection) -> io::Result<()> {
        match connection.stream.read(&mut self.buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => connection.input.extend_from_slice(&self.buffer[..count]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Ok(());
            }
            Err(e) => return Err(e),
        }
        let now = clock::monotonic_ns();
        while let Some(end) = end_of_head(&connection.input) {
            let (size, service_us) =
                parse(&connection.input[..end]).ok_or(ErrorKind::InvalidData)?;
            connection.input.drain(..end);
            let service_ns = (service_us as f64 * 1000.0 * self.factor(now)) as u64;
            let first = connection.waiting.is_empty();
            let ready_ns = match (self.behaviour.discipline, connection.waiting.back()) {
                (Discipline::Parallel, _) | (_, None) => now + service_ns,
                (Discipline::Batch, Some(last)) => last.ready_ns,
                (Discipline::Serial, Some(last)) => last.ready_ns.max(now) + service_ns,
            };
            connection.waiting.push_back(Waiting { ready_ns, size });
            if first {
                self.timers.push(Reverse((ready_ns, index)));
            }
        }
        match connection.input.len() {
            0..=MAX_HEAD => Ok(()),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    fn factor(&mut self, now: u64) -> f64 {
        if now >= self.change_ns {
            self.factor = self.drift.next_factor();
            self.change_ns = now + self.drift.next_rest().as_nanos() as u64;
        }
        self.factor
    }

    /// Answers what is ready, in order.
    fn answer(&mut self, index: usize, connection: &mut Connection) -> io::Result<()> {
        let now = clock::monotonic_ns();
        while let Some(oldest) = connection.waiting.front() {
            if oldest.ready_ns > now {
                self.timers.push(Reverse((oldest.ready_ns, index)));
                break;
            }
            let size = oldest.size;
            connection.waiting.pop_front();
            write!(
                connection.output,
                "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\
                 Cache-Control: no-store\r\nX-Real: web\r\nContent-Length: {size}\r\n\r\n"
            )?;
            connection.output.extend(std::iter::repeat_n(b'x', size));
        }
        Ok(())
    }

    /// Writes as much as the socket takes, and asks for an event when it takes more.
    fn flush(&mut self, index: usize, connection: &mut Connection) -> io::Result<()> {
        while !connection.output.is_empty() {
            let (front, _) = connection.output.as_slices();
            match connection.stream.write(front) {
                Ok(count) => drop(connection.output.drain(..count)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let wants_to_write = !connection.output.is_empty();
        if wants_to_write != connection.wants_to_write {
            connection.wants_to_write = wants_to_write;
            let interest = if wants_to_write {
                Interest::Both
            } else {
                Interest::Read
            };
            let fd = connection.stream.as_raw_fd();
            self.poll.change(fd, index, interest)?;
        }
        Ok(())
    }
}

fn end_of_head(input: &[u8]) -> Option<usize> {
    let at = input.windows(4).position(|w| w == b"\r\n\r\n")?;
    Some(at + 4)
}

/// Size and service time in microseconds.
fn parse(head: &[u8]) -> Option<(usize, u64)> {
    let head = std::str::from_utf8(head).ok()?;
    let path = head.strip_prefix("GET /r/")?.split(' ').next()?;
    let (size, service_us) = path.split_once('/')?;
    let size = size.parse().ok().filter(|&size| size <= MAX_BODY)?;
    Some((size, service_us.parse().ok()?))
}
