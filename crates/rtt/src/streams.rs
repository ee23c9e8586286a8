// SPDX-License-Identifier: Apache-2.0
//! The streams of requests: one thread each, timed at the system calls.

use std::io::{self, ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use causeway_core::rtt::explain::Retransmits;
use causeway_core::rtt::{Pace, RttMethod};
use causeway_netio::rtt::{Channel, Exchange, TcpInfo, clock, connect, retransmits, set_timeouts};

use super::args::{ClientArgs, TransportArg};
use super::own::Own;
use super::protocol::{self, REQUEST_LINE_MAX, TcpFigures, Welcome};
use super::records::Records;
use super::session::TCP_EVERY_NS;
use super::wait;

const STACK_BYTES: usize = 128 << 10;
/// A request of the open loop that leaves this long after its time counts as late.
const LATE_NS: u64 = 100_000;
/// Behind a connection that failed at once, so that where all do nothing spins.
const FAILED_NS: u64 = 10_000_000;
/// The longest UDP payload over IPv4.
const DATAGRAM_MAX: u32 = 65_507;

/// All streams, open and quiet.
pub(crate) struct Streams {
    /// `None` where each request opens a connection.
    channels: Vec<Option<Channel>>,
    /// How to open another, in the place of one that has lost its answer or for a request.
    opening: Arc<Opening>,
    /// What the host had sent again before.
    before: Option<Retransmits>,
}

/// What a stream is opened by.
struct Opening {
    args: ClientArgs,
    server: SocketAddr,
    token: String,
    own: Arc<Own>,
}

impl Opening {
    /// Opens a connection.
    fn connect(&self) -> io::Result<TcpStream> {
        let args = &self.args;
        connect(
            self.server,
            args.timeout,
            args.split,
            args.congestion.as_deref(),
        )
    }

    /// Why there is none.
    fn refused(&self) -> String {
        match &self.args.congestion {
            Some(name) => format!("cannot open a connection with congestion control {name}"),
            None => "cannot open a connection".to_owned(),
        }
    }

    /// Opens a connection and joins the session with it.
    fn tcp(&self) -> Result<Channel> {
        use std::io::Write as _;
        let mut stream = self.connect().with_context(|| self.refused())?;
        set_timeouts(&stream, Some(self.args.timeout))?;
        stream.write_all(format!("rr {}\n", self.token).as_bytes())?;
        accepted(&mut stream)?;
        self.own.add(Some(&stream));
        Ok(Channel::Tcp {
            stream,
            split: self.args.split,
        })
    }

    /// What every request is.
    fn request(&self) -> Vec<u8> {
        let mut request = match self.args.transport {
            TransportArg::TcpCrr => format!("crr {}\n", self.token).into_bytes(),
            TransportArg::Tcp | TransportArg::Udp => Vec::new(),
        };
        request.resize(request.len() + self.args.request.request as usize, b'r');
        request
    }
}

/// What the streams have left to say at their end.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// From the start to the end of the last stream.
    pub elapsed_ns: u64,
    /// Requests without a response in time.
    pub timeouts: u64,
    /// Requests whose own connection failed, and why the first one did.
    pub failed: Option<(u64, String)>,
    /// Requests of an open loop sent late.
    pub late: u64,
    /// The kernel's view of the connections, also those that a stream opened in the place of
    /// another.
    pub tcp: Option<TcpFigures>,
    /// The first stream's own address.
    pub source: Option<SocketAddr>,
    /// Congestion control of the connections.
    pub congestion: Option<String>,
    /// Streams that broke, and what the first one said.
    pub broken: Option<(u32, String)>,
}

impl Ended {
    /// Requests whose own connection failed.
    pub(crate) fn failures(&self) -> u64 {
        self.failed.as_ref().map_or(0, |(count, _)| *count)
    }

    /// What there is to say of streams and connections that broke.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let broken = self.broken.as_ref().map(|(count, error)| {
            let streams = match count {
                1 => "a stream".to_owned(),
                count => format!("{count} streams"),
            };
            format!(
                "{streams} ended early ({error}): the figures hold what was measured until then"
            )
        });
        let failed = self.failed.as_ref().map(|(count, error)| {
            format!("{count} transactions failed ({error}): the latencies are those of the others")
        });
        broken.into_iter().chain(failed).collect()
    }
}

/// One thread's part of it.
#[derive(Debug, Default)]
struct Tally {
    timeouts: u64,
    failed: Option<(u64, String)>,
    late: u64,
    /// The last readings of its connections.
    tcp: Option<TcpFigures>,
    source: Option<SocketAddr>,
    congestion: Option<String>,
    end_ns: u64,
    /// What ended it early.
    broken: Option<anyhow::Error>,
}

/// The client's UDP ports, which the server must know before it opens its own.
pub(crate) fn udp_sockets(args: &ClientArgs, server: SocketAddr) -> Result<Vec<UdpSocket>> {
    if args.transport != TransportArg::Udp {
        return Ok(Vec::new());
    }
    anyhow::ensure!(
        args.request.request.max(args.request.response) <= DATAGRAM_MAX,
        "a datagram holds at most {DATAGRAM_MAX} bytes: -r"
    );
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0; 8], 0).into(),
    };
    let bind = |_| UdpSocket::bind(any).context("cannot open a UDP port");
    (0..args.streams).map(bind).collect()
}

impl Streams {
    pub(crate) fn open(
        args: &ClientArgs,
        server: SocketAddr,
        welcome: &Welcome,
        sockets: Vec<UdpSocket>,
        own: Arc<Own>,
    ) -> Result<Self> {
        let before = retransmits().ok();
        let opening = Opening {
            args: args.clone(),
            server,
            token: welcome.token.clone(),
            own,
        };
        let channels: Result<Vec<_>> = match args.transport {
            TransportArg::Tcp => (0..args.streams).map(|_| opening.tcp().map(Some)).collect(),
            TransportArg::TcpCrr => Ok((0..args.streams).map(|_| None).collect()),
            TransportArg::Udp => sockets
                .into_iter()
                .zip(&welcome.udp_ports)
                .map(|(socket, port)| {
                    let mut to = server;
                    to.set_port(*port);
                    socket.connect(to)?;
                    socket.set_read_timeout(Some(args.timeout))?;
                    Ok(Some(Channel::Udp {
                        socket,
                        sequence: 0,
                    }))
                })
                .collect(),
        };
        Ok(Self {
            channels: channels?,
            opening: Arc::new(opening),
            before,
        })
    }

    /// Starts one thread a stream. Streams with a wait begin spread over it.
    pub(crate) fn start(self, args: &ClientArgs, start_ns: u64, records: &Arc<Records>) -> Running {
        let count = self.channels.len() as u64;
        let wait_ns = match args.rate {
            Some(rate) => (1e9 / rate) as u64,
            None => args.wait.as_nanos() as u64,
        };
        let handles = (0..).zip(self.channels).map(|(i, channel)| {
            let stream = Stream {
                channel,
                opening: self.opening.clone(),
                pace: Pace::new(args.pacing(), args.limit, start_ns + i * wait_ns / count),
                busy_ns: args.busy.as_nanos() as u64,
                request: self.opening.request(),
                response: vec![0; args.request.response as usize],
                records: records.clone(),
                tally: Tally::default(),
                read_ns: 0,
                info: None,
            };
            thread::Builder::new()
                .name("rtt-stream".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || stream.run())
        });
        Running {
            handles: handles.collect(),
            start_ns,
            before: self.before,
        }
    }
}

/// Reads the server's answer to a stream's first line, of which a refusal has the reason.
fn accepted(from: &mut impl io::Read) -> Result<()> {
    const SILENT: &str = "the server did not accept a stream";
    let answer = protocol::read_line(from, REQUEST_LINE_MAX).context(SILENT)?;
    let answer = answer.context(SILENT)?;
    if answer == "ok" {
        return Ok(());
    }
    let refusal: Option<Welcome> = serde_json::from_str(&answer).ok();
    match refusal.and_then(|refusal| refusal.error) {
        Some(reason) => bail!("the server refused a stream: {reason}"),
        None => bail!("the server refused a stream"),
    }
}

fn congestion(stream: &TcpStream) -> Option<String> {
    let name = nix::sys::socket::getsockopt(stream, nix::sys::socket::sockopt::TcpCongestion);
    let name = name.ok()?.into_string().ok()?;
    Some(name.trim_end_matches('\0').to_owned())
}

/// Streams at work.
pub(crate) struct Running {
    handles: Vec<io::Result<JoinHandle<Tally>>>,
    start_ns: u64,
    before: Option<Retransmits>,
}

impl Running {
    /// Whether all have ended.
    pub(crate) fn is_finished(&self) -> bool {
        let running = self.handles.iter().flatten();
        running.into_iter().all(JoinHandle::is_finished)
    }

    /// Waits for all of them.
    ///
    /// # Errors
    /// A stream that could not begin. One that broke has said so in its tally.
    pub(crate) fn join(self) -> Result<Ended> {
        let mut ended = Ended::default();
        for handle in self.handles {
            let joined = handle.context("cannot start a thread")?.join();
            let tally = joined.map_err(|_| anyhow::anyhow!("a stream ended by a panic"))?;
            if let Some(error) = tally.broken {
                let (count, _) = ended.broken.get_or_insert((0, format!("{error:#}")));
                *count += 1;
            }
            if let Some((count, error)) = tally.failed {
                ended.failed.get_or_insert((0, error)).0 += count;
            }
            ended.source = ended.source.or(tally.source);
            ended.congestion = ended.congestion.or(tally.congestion);
            ended.timeouts += tally.timeouts;
            ended.late += tally.late;
            ended.elapsed_ns = ended
                .elapsed_ns
                .max(tally.end_ns.saturating_sub(self.start_ns));
            ended.tcp = TcpFigures::sum(ended.tcp.into_iter().chain(tally.tcp));
        }
        ended.tcp = ended.tcp.map(|tcp| tcp.repaired(self.before));
        Ok(ended)
    }
}

/// What became of a request.
enum Outcome {
    Answered(Exchange),
    /// Its answer, or the connection for it, did not come in time.
    Late,
    /// Its own connection failed: the next request has another.
    Failed(anyhow::Error),
}

struct Stream {
    /// `None` where the next request opens another: each of them does, or the last one got no
    /// answer in time, and what comes on that connection next may be that one.
    channel: Option<Channel>,
    opening: Arc<Opening>,
    pace: Pace,
    busy_ns: u64,
    request: Vec<u8>,
    response: Vec<u8>,
    records: Arc<Records>,
    tally: Tally,
    /// When tcp_info was last read.
    read_ns: u64,
    /// What it said of this connection.
    info: Option<TcpInfo>,
}

impl Stream {
    fn run(mut self) -> Tally {
        clock::set_least_timer_slack();
        self.tally.broken = self.measure().err();
        self.close();
        self.tally.end_ns = clock::now_ns();
        self.tally
    }

    fn measure(&mut self) -> Result<()> {
        while let Some(due) = self.pace.next() {
            if wait::wait_until(due.at_ns, self.busy_ns).is_none() {
                break;
            }
            let began_ns = clock::now_ns();
            let outcome = match self.opening.args.transport {
                TransportArg::TcpCrr => self.transact(began_ns),
                TransportArg::Tcp | TransportArg::Udp => self.exchange()?,
            };
            let exchange = match outcome {
                Outcome::Answered(exchange) => exchange,
                Outcome::Late => {
                    self.tally.timeouts += 1;
                    let now_ns = clock::now_ns();
                    let from_ns = if due.intended { due.at_ns } else { began_ns };
                    // It takes that long at least.
                    self.records
                        .record(RttMethod::Rr, now_ns.saturating_sub(from_ns), 1);
                    self.pace.completed(now_ns);
                    continue;
                }
                Outcome::Failed(error) => {
                    let failed = &mut self.tally.failed;
                    failed.get_or_insert_with(|| (0, format!("{error:#}"))).0 += 1;
                    clock::sleep_until(clock::now_ns() + FAILED_NS);
                    self.pace.completed(clock::now_ns());
                    continue;
                }
            };
            let from_ns = if due.intended {
                self.tally.late += u64::from(exchange.sent_ns > due.at_ns + LATE_NS);
                due.at_ns
            } else {
                exchange.sent_ns
            };
            self.records
                .record(RttMethod::Rr, exchange.received_ns - from_ns, 1);
            self.pace.completed(exchange.received_ns);
            if exchange.received_ns >= self.read_ns + TCP_EVERY_NS {
                self.read_ns = exchange.received_ns;
                self.read_tcp();
            }
        }
        Ok(())
    }

    /// One request of a stream.
    fn exchange(&mut self) -> Result<Outcome> {
        if self.channel.is_none() {
            match self.opening.tcp() {
                Ok(channel) => self.channel = Some(channel),
                Err(error) if is_timeout(&error) => return Ok(Outcome::Late),
                Err(error) => return Err(error.context("behind a request without an answer")),
            }
        }
        match self.send() {
            Ok(Some(exchange)) => Ok(Outcome::Answered(exchange)),
            Ok(None) => Ok(Outcome::Late),
            Err(e) if is_late(e.kind()) => {
                self.close();
                Ok(Outcome::Late)
            }
            Err(e) => Err(broke(e)),
        }
    }

    /// One request on a connection of its own, which is timed, too. Its timeout is that of both.
    fn transact(&mut self, began_ns: u64) -> Outcome {
        let connected = self.opening.connect();
        let connect_ns = clock::now_ns() - began_ns;
        let stream = match connected {
            Ok(stream) => stream,
            Err(e) if is_late(e.kind()) => {
                self.records.record(RttMethod::Connect, connect_ns, 1);
                return Outcome::Late;
            }
            Err(e) if e.kind() == ErrorKind::AddrNotAvailable => {
                return Outcome::Failed(anyhow::anyhow!(
                    "no local port was free for a connection to the server: use fewer --streams, or widen net.ipv4.ip_local_port_range"
                ));
            }
            Err(e) => {
                return Outcome::Failed(anyhow::Error::new(e).context(self.opening.refused()));
            }
        };
        self.records.record(RttMethod::Connect, connect_ns, 1);
        let timeout = self.opening.args.timeout;
        let left = timeout.saturating_sub(Duration::from_nanos(connect_ns));
        let timed = set_timeouts(&stream, Some(left.max(Duration::from_millis(1))));
        self.channel = Some(Channel::Tcp {
            stream,
            split: self.opening.args.split,
        });
        let outcome = match timed.and_then(|()| self.send()) {
            Ok(Some(exchange)) => Outcome::Answered(Exchange {
                sent_ns: began_ns,
                ..exchange
            }),
            Ok(None) => Outcome::Late,
            Err(e) if is_late(e.kind()) => Outcome::Late,
            Err(e) => Outcome::Failed(broke(e)),
        };
        if let Some(Channel::Tcp { stream, .. }) = &mut self.channel {
            self.opening.own.add(Some(stream));
            if matches!(outcome, Outcome::Answered(_)) {
                // The server closes first, as netperf's does: TIME-WAIT takes no port from us.
                let _ = stream.read(&mut [0]);
            }
        }
        self.close();
        outcome
    }

    /// `None` where no answer came in time (UDP only).
    fn send(&mut self) -> io::Result<Option<Exchange>> {
        match &mut self.channel {
            Some(channel) => channel.exchange(&mut self.request, &mut self.response),
            None => Err(ErrorKind::NotConnected.into()),
        }
    }

    fn read_tcp(&mut self) {
        let Some(stream) = self.channel.as_ref().and_then(Channel::stream) else {
            return;
        };
        let tally = &mut self.tally;
        if tally.source.is_none() {
            tally.source = stream.local_addr().ok();
            tally.congestion = congestion(stream);
        }
        if let Ok(info) = TcpInfo::of(stream) {
            self.records
                .record(RttMethod::Tcp, u64::from(info.rtt_us) * 1_000, 1);
            self.info = Some(info);
        }
    }

    /// Closes the connection, of which the last reading stays.
    fn close(&mut self) {
        self.read_tcp();
        self.channel = None;
        let last = self.info.take().map(TcpFigures::of);
        self.tally.tcp = TcpFigures::sum(self.tally.tcp.take().into_iter().chain(last));
    }
}

/// What to say of a connection that broke.
fn broke(error: io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => anyhow::anyhow!("the server has closed a stream"),
        _ => anyhow::Error::new(error).context("a stream broke"),
    }
}

/// What a socket says at its timeout.
fn is_late(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn is_timeout(error: &anyhow::Error) -> bool {
    let of_socket = error.downcast_ref::<io::Error>();
    of_socket.is_some_and(|e| is_late(e.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_stream_says_why() {
        let said = |mut answer: &[u8]| accepted(&mut answer).map_err(|e| format!("{e:#}"));
        assert_eq!(said(b"ok\nr"), Ok(()));
        assert_eq!(
            said(b"{\"error\":\"no such session\"}\n"),
            Err("the server refused a stream: no such session".to_owned())
        );
        assert_eq!(said(b"no\n"), Err("the server refused a stream".to_owned()));
        let silent = said(b"").expect_err("no answer");
        assert!(silent.starts_with("the server did not accept"), "{silent}");
    }
}
