// SPDX-License-Identifier: Apache-2.0
//! A client's stay at the server: its streams of requests, and what the server
//! learns from them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use causeway_core::rtt::explain::Retransmits;
use causeway_core::rtt::{RttLatencies, RttMethod, Value};
use causeway_netio::rtt::{TcpInfo, clock, retransmits, set_timeouts};

use super::protocol::{
    self, Ask, Hello, MethodFigures, MethodWord, REQUEST_LINE_MAX, SIZE_MAX, ServerReport,
    TcpFigures, VERSION, Welcome,
};
use super::records::lock;

/// Sessions at once.
const SESSIONS: usize = 64;
/// Streams of one session.
const STREAMS: usize = 1000;
/// Its connections: of those of a single request one may not have ended here when the next comes.
const OPEN: usize = 2 * STREAMS;
/// tcp_info is read at most this often.
pub(crate) const TCP_EVERY_NS: u64 = 10_000_000;
/// Data is moved in pieces of this size.
const PIECE: usize = 64 << 10;
/// Handshakes seen of connections that have not said what they are.
const STRANGERS: usize = 1024;
/// Addresses whose sessions are known.
const PEERS: usize = 1 << 16;

/// All sessions of a server.
#[derive(Debug)]
pub(crate) struct Sessions {
    service: Duration,
    unread: bool,
    /// 1 in this many packets is sampled; 0: none.
    sample: u32,
    /// What is measured on the interface.
    watched: Vec<RttMethod>,
    peers: Mutex<Peers>,
    open: Mutex<HashMap<String, Arc<Session>>>,
    /// Makes tokens that strangers cannot guess.
    secret: RandomState,
    made: AtomicU64,
    /// UDP streams of all sessions.
    datagrams: Arc<AtomicUsize>,
}

/// The peer of the connections that the interface sees.
#[derive(Debug, Default)]
struct Peers {
    /// Whose stream comes from an address, or came: what the interface shows of it is known later.
    sessions: HashMap<SocketAddr, Arc<Session>>,
    /// A handshake is over before its connection has said whose it is.
    strangers: VecDeque<Value>,
}

/// One of the things of which there may only be a fixed number at once.
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Permit {
    /// One of `most`; `None` when all are taken.
    pub(crate) fn take(taken: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        if taken.fetch_add(1, Ordering::AcqRel) >= most {
            taken.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(Self(taken.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One client's.
#[derive(Debug)]
pub(crate) struct Session {
    request: usize,
    response: usize,
    service: Duration,
    /// The service comes before the request is read.
    unread: bool,
    closed: AtomicBool,
    transactions: AtomicU64,
    measured: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    tcp: RttLatencies,
    /// Of the interface.
    observed: Vec<(RttMethod, RttLatencies)>,
    app: RttLatencies,
    /// Streams that are open, in the order in which they came.
    streams: BTreeMap<usize, TcpStream>,
    /// How many have been.
    joined: usize,
    /// Those that have ended.
    ended: Option<TcpFigures>,
    /// What the host had sent again before the first.
    before: Option<Retransmits>,
}

/// Takes a stream out of its session, however it ends.
struct Leaves<'a> {
    session: &'a Session,
    index: usize,
}

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.session.leave(self.index);
    }
}

impl Sessions {
    /// A server that waits `service` before each response, or before it reads a request
    /// if `unread`, samples 1 packet in `sample`, and has values of the `watched`
    /// methods from its interface.
    pub(crate) fn new(
        service: Duration,
        unread: bool,
        sample: u32,
        watched: Vec<RttMethod>,
    ) -> Self {
        Self {
            service,
            unread,
            sample,
            watched,
            peers: Mutex::default(),
            open: Mutex::default(),
            secret: RandomState::new(),
            made: AtomicU64::new(0),
            datagrams: Arc::default(),
        }
    }

    /// 1 in this many packets is sampled; 0: none.
    pub(crate) fn sample(&self) -> u32 {
        self.sample
    }

    /// Serves a control connection, whose first line has been read.
    pub(crate) fn control(&self, line: &str, stream: &mut TcpStream) -> Result<()> {
        let hello: Hello = serde_json::from_str(line).context(
            "this is causeway rtt serve, and the first line is none of its protocol: use `causeway rtt HOST`",
        )?;
        let session = self.open(&hello)?;
        let token = format!(
            "{:016x}",
            self.secret
                .hash_one(self.made.fetch_add(1, Ordering::Relaxed))
        );
        {
            let mut open = lock(&self.open);
            ensure!(
                open.len() < SESSIONS,
                "{SESSIONS} clients are being served: try again later"
            );
            open.insert(token.clone(), session.clone());
        }
        let served = self.talk(&hello, &token, &session, stream);
        lock(&self.open).remove(&token);
        session.close();
        lock(&self.peers).leave(&session);
        served
    }

    fn open(&self, hello: &Hello) -> Result<Arc<Session>> {
        ensure!(
            hello.causeway_rtt == VERSION,
            "the client speaks version {} of the protocol, this server {VERSION}: use the same build",
            hello.causeway_rtt
        );
        let sizes = 1..=SIZE_MAX;
        ensure!(
            sizes.contains(&hello.request) && sizes.contains(&hello.response),
            "requests and responses have 1 to {SIZE_MAX} bytes"
        );
        ensure!(
            hello.udp_ports.len() <= STREAMS,
            "a client has at most {STREAMS} streams"
        );
        Ok(Arc::new(Session {
            request: hello.request as usize,
            response: hello.response as usize,
            service: self.service,
            unread: self.unread,
            closed: AtomicBool::new(false),
            transactions: AtomicU64::new(0),
            measured: Mutex::default(),
        }))
    }

    fn talk(
        &self,
        hello: &Hello,
        token: &str,
        session: &Arc<Session>,
        stream: &mut TcpStream,
    ) -> Result<()> {
        let welcome = Welcome {
            token: token.to_owned(),
            udp_ports: self.datagrams(hello, session, stream)?,
            kernel: kernel(),
            sample: self.sample,
            crr: true,
            ..Welcome::default()
        };
        protocol::write_line(stream, &welcome)?;
        // While its streams run, a client has nothing to say.
        set_timeouts(stream, None)?;
        while let Some(line) = protocol::read_line(stream, REQUEST_LINE_MAX)? {
            match serde_json::from_str(&line).context("no question of the protocol")? {
                Ask::Report => protocol::write_line(stream, &session.report())?,
            }
        }
        Ok(())
    }

    /// One socket and thread for each of the client's ports. Connected sockets answer
    /// that client only.
    fn datagrams(
        &self,
        hello: &Hello,
        session: &Arc<Session>,
        stream: &TcpStream,
    ) -> Result<Vec<u16>> {
        // With their scopes, which link-local addresses need.
        let (mut here, mut there) = (stream.local_addr()?, stream.peer_addr()?);
        let mut ports = Vec::new();
        for port in &hello.udp_ports {
            let permit = Permit::take(&self.datagrams, STREAMS)
                .with_context(|| format!("{STREAMS} UDP streams are open: try again later"))?;
            here.set_port(0);
            there.set_port(*port);
            let socket = UdpSocket::bind(here).context("a UDP port")?;
            socket.connect(there)?;
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
            ports.push(socket.local_addr()?.port());
            let session = session.clone();
            thread::Builder::new()
                .name("rtt-udp".to_owned())
                .stack_size(128 << 10)
                .spawn(move || {
                    if let Err(error) = session.answer_datagrams(&socket) {
                        tracing::debug!("UDP: {error:#}");
                    }
                    drop(permit);
                })
                .context("cannot start a thread")?;
        }
        Ok(ports)
    }

    /// Serves a stream of requests over TCP, or a `single` one.
    pub(crate) fn stream(&self, token: &str, stream: &mut TcpStream, single: bool) -> Result<()> {
        let found = lock(&self.open).get(token).cloned();
        let session = found.context("no such session: it has ended, or the token is wrong")?;
        let peer = canonical(stream.peer_addr()?);
        let index = session.join(stream)?;
        let _leaves = Leaves {
            session: &session,
            index,
        };
        if !self.watched.is_empty() {
            lock(&self.peers).join(peer, &session);
        }
        if !single {
            stream.write_all(b"ok\n")?;
        }
        // A client may wait for an hour between requests. The session's end ends its streams.
        set_timeouts(stream, None)?;
        session.answer(stream, single)
    }

    /// A value from the interface.
    pub(crate) fn observed(&self, value: &Value) {
        if self.watched.contains(&value.method) {
            lock(&self.peers).observed(value);
        }
    }
}

impl Peers {
    fn join(&mut self, peer: SocketAddr, session: &Arc<Session>) {
        if self.sessions.len() == PEERS && !self.sessions.contains_key(&peer) {
            return;
        }
        self.sessions.insert(peer, session.clone());
        self.strangers.retain(|value| {
            let its = value.flow.remote == peer;
            if its {
                session.observed(value);
            }
            !its
        });
    }

    fn leave(&mut self, session: &Arc<Session>) {
        self.sessions.retain(|_, its| !Arc::ptr_eq(its, session));
    }

    fn observed(&mut self, value: &Value) {
        if let Some(session) = self.sessions.get(&value.flow.remote) {
            session.observed(value);
        } else if value.method == RttMethod::Synack {
            // An address that comes again is another connection's.
            self.strangers
                .retain(|known| known.flow.remote != value.flow.remote);
            if self.strangers.len() == STRANGERS {
                self.strangers.pop_front();
            }
            self.strangers.push_back(*value);
        }
    }
}

impl Session {
    fn join(&self, stream: &TcpStream) -> Result<usize> {
        let mut seen = lock(&self.measured);
        ensure!(
            seen.streams.len() < OPEN,
            "a client has at most {OPEN} connections at once"
        );
        ensure!(
            !self.closed.load(Ordering::Acquire),
            "the session has ended"
        );
        let handle = stream.try_clone()?;
        let index = seen.joined;
        if index == 0 {
            seen.before = retransmits().ok();
        }
        seen.joined += 1;
        seen.streams.insert(index, handle);
        Ok(index)
    }

    /// What a stream was stays in the sums, its socket does not.
    fn leave(&self, index: usize) {
        let mut seen = lock(&self.measured);
        if let Some(stream) = seen.streams.remove(&index) {
            let ended = seen.ended.take();
            seen.ended = TcpFigures::sum(ended.into_iter().chain(figures(&stream)));
        }
    }

    /// Requests in, responses out, until the client closes; a `single` one's response closes.
    fn answer(&self, stream: &mut TcpStream, single: bool) -> Result<()> {
        let mut buffer = vec![0_u8; self.request.max(self.response).min(PIECE)];
        let mut read_ns = 0;
        loop {
            if self.unread {
                self.leave_unread(stream);
            }
            let Some(received_ns) = self.read_request(stream, &mut buffer)? else {
                return self.read_tcp(stream);
            };
            if !self.unread && !self.service.is_zero() {
                clock::sleep_until(received_ns + self.service.as_nanos() as u64);
            }
            let answered_ns = clock::now_ns();
            self.answered(answered_ns - received_ns);
            let mut left = self.response;
            while left > 0 {
                let piece = left.min(buffer.len());
                stream.write_all(&buffer[..piece])?;
                left -= piece;
            }
            if single {
                stream.shutdown(Shutdown::Write)?;
            }
            if answered_ns >= read_ns + TCP_EVERY_NS {
                read_ns = answered_ns;
                self.read_tcp(stream)?;
            }
        }
    }

    /// Counts a response before it leaves: a client that has its last one asks for the sums at once.
    fn answered(&self, app_ns: u64) {
        self.transactions.fetch_add(1, Ordering::Relaxed);
        lock(&self.measured).app.record(app_ns);
    }

    /// Lets a request lie in the kernel for the time of the service.
    fn leave_unread(&self, stream: &TcpStream) {
        // An error, or the end, shows again at the read that follows.
        if stream.peek(&mut [0]).is_ok_and(|len| len > 0) {
            clock::sleep_until(clock::now_ns() + self.service.as_nanos() as u64);
        }
    }

    /// When the last byte of a request came; `None` where the client closed before
    /// the first.
    fn read_request(&self, stream: &mut TcpStream, buffer: &mut [u8]) -> Result<Option<u64>> {
        let mut left = self.request;
        while left > 0 {
            let piece = left.min(buffer.len());
            match stream.read(&mut buffer[..piece]) {
                Ok(0) if left == self.request => return Ok(None),
                Ok(0) => bail!("the client closed within a request"),
                Ok(len) => left -= len,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(Some(clock::now_ns()))
    }

    fn observed(&self, value: &Value) {
        let mut seen = lock(&self.measured);
        let known = seen.observed.iter().position(|(m, _)| *m == value.method);
        let index = known.unwrap_or_else(|| {
            seen.observed.push((value.method, RttLatencies::new()));
            seen.observed.len() - 1
        });
        let latencies = &mut seen.observed[index].1;
        (0..value.count).for_each(|_| latencies.record(value.ns));
    }

    fn read_tcp(&self, stream: &TcpStream) -> Result<()> {
        let info = TcpInfo::of(stream)?;
        if info.rtt_us > 0 {
            lock(&self.measured)
                .tcp
                .record(u64::from(info.rtt_us) * 1_000);
        }
        Ok(())
    }

    /// The same over datagrams.
    fn answer_datagrams(&self, socket: &UdpSocket) -> Result<()> {
        let mut request = vec![0_u8; self.request];
        let mut response = vec![0_u8; self.response];
        while !self.closed.load(Ordering::Acquire) {
            match socket.recv(&mut request) {
                Ok(len) if len == self.request => {}
                // Cut off or foreign, or a look at `closed`.
                Ok(_) => continue,
                Err(e) if retry(e.kind()) => continue,
                Err(e) => return Err(e.into()),
            }
            let received_ns = clock::now_ns();
            response[0] = request[0];
            if !self.service.is_zero() {
                clock::sleep_until(received_ns + self.service.as_nanos() as u64);
            }
            self.answered(clock::now_ns() - received_ns);
            match socket.send(&response) {
                Ok(_) => {}
                Err(e) if retry(e.kind()) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn report(&self) -> ServerReport {
        let seen = lock(&self.measured);
        let observed = seen.observed.iter().map(|(method, l)| (*method, l));
        let methods = std::iter::once((RttMethod::Tcp, &seen.tcp)).chain(observed);
        let measured = methods.filter(|(_, l)| l.count() > 0);
        ServerReport {
            transactions: self.transactions.load(Ordering::Relaxed),
            tcp: TcpFigures::sum(
                (seen.ended.iter().cloned()).chain(seen.streams.values().filter_map(figures)),
            )
            .map(|tcp| tcp.repaired(seen.before)),
            app_p50_ns: seen.app.quantile(0.5),
            methods: measured
                .clone()
                .filter_map(|(m, l)| Some(MethodFigures::new(m, &l.summary()?)))
                .collect(),
            histograms: measured
                .filter_map(|(m, l)| Some((MethodWord(m), protocol::encode(l.histogram())?)))
                .collect(),
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        for stream in lock(&self.measured).streams.values() {
            // It may have ended by itself.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// What its kernel says of a stream.
fn figures(stream: &TcpStream) -> Option<TcpFigures> {
    TcpInfo::of(stream).ok().map(TcpFigures::of)
}

/// Errors that a datagram socket gets over: the look at `closed`, and answers of the
/// client's kernel that a port was not open yet or is not any more.
fn retry(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::WouldBlock
            | ErrorKind::TimedOut
            | ErrorKind::Interrupted
            | ErrorKind::ConnectionRefused
            | ErrorKind::HostUnreachable
    )
}

/// An IPv4 client of an IPv6 socket, as the packets name it.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The kernel's release.
pub fn kernel() -> String {
    let uname = nix::sys::utsname::uname();
    uname.map_or_else(
        |_| "unknown".to_owned(),
        |u| u.release().to_string_lossy().into_owned(),
    )
}
