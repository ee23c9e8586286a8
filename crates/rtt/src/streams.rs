// SPDX-License-Identifier: Apache-2.0
//! The streams of requests: one thread each, timed at the system calls.

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, bail};
use causeway_core::rtt::{Pace, RttMethod};
use causeway_netio::rtt::{Channel, Exchange, TcpInfo, clock, connect, set_timeouts};

use super::args::{ClientArgs, TransportArg};
use super::own::Own;
use super::protocol::{self, REQUEST_LINE_MAX, TcpFigures, Welcome};
use super::records::Records;
use super::session::TCP_EVERY_NS;
use super::wait;

const STACK_BYTES: usize = 128 << 10;
/// A request of the open loop that leaves this long after its time counts as late.
const LATE_NS: u64 = 100_000;
/// The longest UDP payload over IPv4.
const DATAGRAM_MAX: u32 = 65_507;

/// All streams, open and quiet.
pub(crate) struct Streams {
    channels: Vec<Channel>,
    /// How to open another in the place of one that has lost its answer.
    opening: Arc<Opening>,
}

/// What a stream is opened by.
struct Opening {
    args: ClientArgs,
    server: SocketAddr,
    token: String,
    own: Arc<Own>,
}

impl Opening {
    /// Opens a connection and joins the session with it.
    fn tcp(&self) -> Result<Channel> {
        let channel = tcp(&self.args, self.server, &self.token)?;
        self.own.add(channel.stream());
        Ok(channel)
    }
}

/// What the streams have left to say at their end.
#[derive(Clone, Debug, Default)]
pub struct Ended {
    /// From the start to the end of the last stream.
    pub elapsed_ns: u64,
    /// Requests without a response in time.
    pub timeouts: u64,
    /// Requests of an open loop sent late.
    pub late: u64,
    /// The kernel's view of the connections.
    pub tcp: Option<TcpFigures>,
    /// How many there were, also those that a stream opened in the place of another.
    pub connections: u64,
    /// The first stream's own address.
    pub source: Option<SocketAddr>,
    /// Congestion control of the connections.
    pub congestion: Option<String>,
    /// Streams that broke, and what the first one said.
    pub broken: Option<(u32, String)>,
}

impl Ended {
    /// What there is to say of streams that broke.
    pub(crate) fn trouble(&self) -> Option<String> {
        let (count, error) = self.broken.as_ref()?;
        let streams = match count {
            1 => "a stream".to_owned(),
            count => format!("{count} streams"),
        };
        Some(format!(
            "{streams} ended early ({error}): the figures hold what was measured until then"
        ))
    }
}

/// One thread's part of it.
#[derive(Debug, Default)]
struct Tally {
    timeouts: u64,
    late: u64,
    /// The last reading of each of its connections.
    tcp: Vec<TcpInfo>,
    end_ns: u64,
    /// What ended it early.
    broken: Option<anyhow::Error>,
}

/// The client's UDP ports, which the server must know before it opens its own.
pub(crate) fn udp_sockets(args: &ClientArgs, server: SocketAddr) -> Result<Vec<UdpSocket>> {
    if args.transport == TransportArg::Tcp {
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
        let opening = Opening {
            args: args.clone(),
            server,
            token: welcome.token.clone(),
            own,
        };
        let channels: Result<Vec<Channel>> = match args.transport {
            TransportArg::Tcp => (0..args.streams).map(|_| opening.tcp()).collect(),
            TransportArg::Udp => sockets
                .into_iter()
                .zip(&welcome.udp_ports)
                .map(|(socket, port)| {
                    let mut to = server;
                    to.set_port(*port);
                    socket.connect(to)?;
                    socket.set_read_timeout(Some(args.timeout))?;
                    Ok(Channel::Udp {
                        socket,
                        sequence: 0,
                    })
                })
                .collect(),
        };
        Ok(Self {
            channels: channels?,
            opening: Arc::new(opening),
        })
    }

    /// Starts one thread a stream. Streams with a wait begin spread over it.
    pub(crate) fn start(self, args: &ClientArgs, start_ns: u64, records: &Arc<Records>) -> Running {
        let first = self.channels.first().and_then(Channel::stream);
        let source = first.and_then(|s| s.local_addr().ok());
        let congestion = first.and_then(congestion);
        let count = self.channels.len() as u64;
        let wait_ns = match args.rate {
            Some(rate) => (1e9 / rate) as u64,
            None => args.wait.as_nanos() as u64,
        };
        let handles = (0..).zip(self.channels).map(|(i, channel)| {
            let stream = Stream {
                channel,
                is_lost: false,
                opening: self.opening.clone(),
                pace: Pace::new(args.pacing(), args.limit, start_ns + i * wait_ns / count),
                busy_ns: args.busy.as_nanos() as u64,
                request: vec![b'r'; args.request.request as usize],
                response: vec![0; args.request.response as usize],
                records: records.clone(),
                tally: Tally::default(),
                read_ns: 0,
                is_read: false,
            };
            thread::Builder::new()
                .name("rtt-stream".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || stream.run())
        });
        Running {
            handles: handles.collect(),
            start_ns,
            source,
            congestion,
        }
    }
}

/// Opens a connection and joins the session with it.
fn tcp(args: &ClientArgs, server: SocketAddr, token: &str) -> Result<Channel> {
    use std::io::Write as _;
    let mut stream = connect(server, args.timeout, args.split, args.congestion.as_deref())
        .with_context(|| match &args.congestion {
            Some(name) => format!("cannot open a stream with congestion control {name}"),
            None => "cannot open a stream".to_owned(),
        })?;
    set_timeouts(&stream, Some(args.timeout))?;
    stream.write_all(format!("rr {token}\n").as_bytes())?;
    accepted(&mut stream)?;
    Ok(Channel::Tcp {
        stream,
        split: args.split,
    })
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
    source: Option<SocketAddr>,
    congestion: Option<String>,
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
        let mut ended = Ended {
            source: self.source,
            congestion: self.congestion,
            ..Ended::default()
        };
        let mut infos = Vec::new();
        for handle in self.handles {
            let joined = handle.context("cannot start a thread")?.join();
            let tally = joined.map_err(|_| anyhow::anyhow!("a stream ended by a panic"))?;
            if let Some(error) = tally.broken {
                let (count, _) = ended.broken.get_or_insert((0, format!("{error:#}")));
                *count += 1;
            }
            ended.timeouts += tally.timeouts;
            ended.late += tally.late;
            ended.elapsed_ns = ended
                .elapsed_ns
                .max(tally.end_ns.saturating_sub(self.start_ns));
            infos.extend(tally.tcp);
        }
        ended.connections = infos.len() as u64;
        ended.tcp = TcpFigures::sum(infos);
        Ok(ended)
    }
}

struct Stream {
    channel: Channel,
    /// An answer did not come in time: what comes on this connection next may be that one.
    is_lost: bool,
    opening: Arc<Opening>,
    pace: Pace,
    busy_ns: u64,
    request: Vec<u8>,
    response: Vec<u8>,
    records: Arc<Records>,
    tally: Tally,
    /// When tcp_info was last read.
    read_ns: u64,
    /// It has been of this connection.
    is_read: bool,
}

impl Stream {
    fn run(mut self) -> Tally {
        clock::set_least_timer_slack();
        self.tally.broken = self.measure().err();
        self.read_tcp();
        self.tally.end_ns = clock::now_ns();
        self.tally
    }

    fn measure(&mut self) -> Result<()> {
        while let Some(due) = self.pace.next() {
            if wait::wait_until(due.at_ns, self.busy_ns).is_none() {
                break;
            }
            let began_ns = clock::now_ns();
            let Some(exchange) = self.exchange()? else {
                self.tally.timeouts += 1;
                let now_ns = clock::now_ns();
                let from_ns = if due.intended { due.at_ns } else { began_ns };
                // It takes that long at least.
                self.records
                    .record(RttMethod::Rr, now_ns.saturating_sub(from_ns), 1);
                self.pace.completed(now_ns);
                continue;
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

    /// One request; `None` where its answer, or another connection for the next one, did not
    /// come in time.
    fn exchange(&mut self) -> Result<Option<Exchange>> {
        if self.is_lost {
            match self.opening.tcp() {
                Ok(channel) => {
                    (self.channel, self.is_lost) = (channel, false);
                    self.is_read = false;
                }
                Err(error) if is_timeout(&error) => return Ok(None),
                Err(error) => return Err(error.context("behind a request without an answer")),
            }
        }
        let exchanged = self.channel.exchange(&mut self.request, &mut self.response);
        match exchanged {
            Ok(exchange) => Ok(exchange),
            Err(e) if is_late(e.kind()) => {
                self.read_tcp();
                self.is_lost = true;
                Ok(None)
            }
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                anyhow::bail!("the server has closed a stream");
            }
            Err(e) => Err(e).context("a stream broke"),
        }
    }

    fn read_tcp(&mut self) {
        let info = self.channel.stream().map(TcpInfo::of);
        if let Some(Ok(info)) = info {
            self.records
                .record(RttMethod::Tcp, u64::from(info.rtt_us) * 1_000, 1);
            if self.is_read {
                self.tally.tcp.pop();
            }
            self.is_read = true;
            self.tally.tcp.push(info);
        }
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
