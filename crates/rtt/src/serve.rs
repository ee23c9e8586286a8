// SPDX-License-Identifier: Apache-2.0
//! `causeway rtt serve`: answers requests, and reports what its own kernel and application have
//! seen of them.
//!
//! Any client may connect: connections, sessions, line lengths and message sizes
//! have bounds, a silent client is disconnected, and a session's streams end with
//! it. A connection costs a thread and 64 KiB, a session about 1 MB, or 2 MB with every
//! method of the interface.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use causeway_core::rtt::RttMethod;
use causeway_dataplane::SamplerOptions;
use causeway_netio::rtt::{keep_alive, set_timeouts};
use causeway_service::config::units;
use clap::ValueEnum;
use nix::sys::socket::{Backlog, listen};

use super::observing::Observing;
use super::protocol::{self, PORT, REQUEST_LINE_MAX, Welcome};
use super::session::{Permit, Sessions};

/// Connections at once: control, streams, and those that have not said which.
const CONNECTIONS: usize = 2048;
/// How long a connection may take to say what it is.
const FIRST_LINE: Duration = Duration::from_secs(5);
const STACK_BYTES: usize = 256 << 10;

const EXAMPLES: &str = "\
Examples:
  causeway rtt serve
  causeway rtt serve -i eth0 -N 8               # sample 1 packet in 8 there too
  causeway rtt serve -i eth0 -m synack,causal   # and these from every packet there
  causeway rtt serve -p 12865 --service 20ms    # as if each request took 20 ms";

/// Answer requests of `causeway rtt` clients until Ctrl-C
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Address to listen on [default: all, IPv4 and IPv6]
    #[arg(short = 'L', long, value_name = "ADDRESS")]
    pub listen: Option<IpAddr>,

    /// Port to listen on
    #[arg(short, long, value_name = "PORT", default_value_t = PORT)]
    pub port: u16,

    /// Watch on this interface what streams send and receive (needs root)
    #[arg(short, long, value_name = "INTERFACE")]
    pub interface: Option<String>,

    /// What to measure on the interface; clients that ask for it get it
    #[arg(
        short,
        long = "method",
        value_enum,
        value_delimiter = ',',
        value_name = "METHOD",
        default_value = "sampled",
        requires = "interface"
    )]
    pub methods: Vec<Watched>,

    /// The sampler takes one packet in this many, each direction by itself
    #[arg(short = 'N', long = "sample", value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536), requires = "interface")]
    pub sample: u32,

    /// The sampler forgets a segment after this time
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::duration, requires = "interface")]
    pub sample_memory: Duration,

    /// Wait so long before each response, as a slow application would
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = units::duration)]
    pub service: Duration,

    /// Wait before reading a request over TCP, not after it, as an application does that is busy with something else
    #[arg(long, requires = "service")]
    pub unread: bool,
}

/// A method of the server's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Watched {
    /// Data of the server to its ACK, where 1-in-N sampling met both
    Sampled,
    /// SYN+ACK to the client's ACK
    Synack,
    /// TCP timestamp to its echo, as pping
    Timestamps,
    /// Causeway's estimate from the requests
    Causal,
}

impl Watched {
    fn method(self) -> RttMethod {
        match self {
            Self::Sampled => RttMethod::Sampled,
            Self::Synack => RttMethod::Synack,
            Self::Timestamps => RttMethod::Timestamps,
            Self::Causal => RttMethod::Causal,
        }
    }
}

impl ServeArgs {
    /// Runs the server.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(
            self.service <= Duration::from_secs(60),
            "--service must be at most 60s"
        );
        let listener = self.bind()?;
        let at = listener.local_addr().context("own address")?;
        let watched = self.watched();
        let sampled = watched.contains(&RttMethod::Sampled);
        let sample = if sampled { self.sample } else { 0 };
        let sessions = Arc::new(Sessions::new(self.service, self.unread, sample, watched));
        let _observing = self.observe(at.port(), &sessions)?;
        eprintln!("causeway rtt serve: listening on {at}; Ctrl-C ends");
        accept(&listener, &sessions);
        Ok(ExitCode::SUCCESS)
    }

    /// What is measured on the interface; nothing without one.
    fn watched(&self) -> Vec<RttMethod> {
        let methods = self.methods.iter().filter(|_| self.interface.is_some());
        methods.map(|watched| watched.method()).collect()
    }

    fn observe(&self, port: u16, sessions: &Arc<Sessions>) -> anyhow::Result<Option<Observing>> {
        let Some(interface) = self.interface.clone() else {
            return Ok(None);
        };
        let options = SamplerOptions {
            interface,
            port,
            one_in: sessions.sample(),
            follow: self.methods.iter().any(|m| *m != Watched::Sampled),
        };
        let sessions = sessions.clone();
        let memory_ns = self.sample_memory.as_nanos() as u64;
        Observing::start(options, memory_ns, move |value| sessions.observed(&value)).map(Some)
    }

    fn bind(&self) -> anyhow::Result<TcpListener> {
        let address = self.listen.unwrap_or(Ipv6Addr::UNSPECIFIED.into());
        let at = SocketAddr::new(address, self.port);
        let listener = match TcpListener::bind(at) {
            // A machine without IPv6.
            Err(_) if self.listen.is_none() => {
                TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], self.port)))
            }
            result => result,
        };
        let listener = listener
            .with_context(|| format!("cannot listen on port {} of {address}", self.port))?;
        // More than the 128 of the standard library: a SYN for which there is no room is lost.
        listen(&listener, Backlog::MAXCONN)?;
        Ok(listener)
    }
}

fn accept(listener: &TcpListener, sessions: &Arc<Sessions>) {
    let taken = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            // Out of descriptors, or the peer is gone again: neither lasts.
            Err(error) => {
                tracing::debug!("accept: {error}");
                thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        let Some(permit) = Permit::take(&taken, CONNECTIONS) else {
            tracing::debug!("{CONNECTIONS} connections are open: one more was closed");
            continue;
        };
        let sessions = sessions.clone();
        let started = thread::Builder::new()
            .name("rtt".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let peer = stream.peer_addr();
                if let Err(error) = greet(stream, &sessions) {
                    tracing::debug!("{peer:?}: {error:#}");
                }
                drop(permit);
            });
        if let Err(error) = started {
            tracing::warn!("cannot start a thread: {error}");
        }
    }
}

/// Reads a connection's first line and serves it.
fn greet(mut stream: TcpStream, sessions: &Arc<Sessions>) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    keep_alive(&stream)?;
    set_timeouts(&stream, Some(FIRST_LINE))?;
    let line = protocol::read_line(&mut stream, REQUEST_LINE_MAX * 8)
        .context("the first line")?
        .unwrap_or_default();
    let served = match line.split_once(' ') {
        Some(("rr", token)) => sessions.stream(token, &mut stream, false),
        // Its client would take a refusal for the response.
        Some(("crr", token)) => return sessions.stream(token, &mut stream, true),
        _ => sessions.control(&line, &mut stream),
    };
    if let Err(error) = &served {
        let refusal = Welcome {
            error: Some(format!("{error:#}")),
            ..Welcome::default()
        };
        // The peer may be gone; nothing more can be done for it.
        let _ = protocol::write_line(&mut stream, &refusal);
    }
    served
}
