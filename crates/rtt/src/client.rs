// SPDX-License-Identifier: Apache-2.0
//! A client's run: opens the session and its streams, lets every method measure
//! at once, asks the server what it has seen, and prints.

use std::fs::OpenOptions;
use std::io::IsTerminal as _;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_core::rtt::{Limit, RttLatencies, RttMethod};
use causeway_dataplane::interface_of;
use causeway_netio::rtt::{Pinger, clock, connect, set_timeouts};
use causeway_service::stop;
use hdrhistogram::Histogram;

use super::args::{ClientArgs, TransportArg};
use super::echoes::{self, Echoes};
use super::hdr_log::HdrLog;
use super::knocks::{self, Knocks};
use super::observing::Observing;
use super::own::{Own, OwnValues};
use super::protocol::{self, Ask, Hello, LINE_MAX, ServerReport, VERSION, Welcome};
use super::records::Records;
use super::result::{Conditions, Point, RttResult};
use super::streams::{self, Ended, Streams};
use super::{output, page};

/// How long the server may take to answer on the control connection.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Points of the report's curves; beyond, every second one is dropped.
const POINTS: usize = 2048;

/// Runs the client and prints.
pub(crate) fn run(args: &ClientArgs) -> Result<ExitCode> {
    args.check()?;
    stop::catch_signals().context("cannot catch signals")?;
    if let Some(path) = &args.html {
        // Before anything is measured that it could not take. What a former run has there stays
        // until there is another page.
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.with_context(|| format!("cannot write {}", path.display()))?;
    }
    let mut outcome = measure(args)?;
    if let Some(knocks) = outcome.knocks
        && knocks.opened == 0
        && knocks.refused > 0
    {
        bail!(
            "{} refuses connections at port {}: name a port where something listens with -p",
            outcome.conditions.host,
            outcome.conditions.port
        );
    }
    if let Some(path) = &args.html
        && let Err(error) = std::fs::write(path, page::render(&outcome))
    {
        let lost = format!("cannot write {}: {error}", path.display());
        outcome.lose(lost);
    }
    for trouble in &outcome.troubles {
        eprintln!("{trouble}");
    }
    match output::print(args, &outcome) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
        result => result.context("standard output")?,
    }
    Ok(match outcome.is_empty() || outcome.is_incomplete {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    })
}

/// A session at the server.
struct Control {
    stream: TcpStream,
    welcome: Welcome,
}

/// Measures, without printing.
pub fn measure(args: &ClientArgs) -> Result<RttResult> {
    let methods = args.methods();
    let host = args.host.as_deref().context("name a host")?;
    let address = resolve(args, host)?;
    let records = Arc::new(Records::new(&methods));
    let pinger = match methods.contains(&RttMethod::Ping) {
        true => Some(Pinger::new(address)?),
        false => None,
    };
    let needs_server = methods
        .iter()
        .any(|m| !matches!(m, RttMethod::Ping | RttMethod::Synack));
    // Before the streams: it sees them being opened.
    let own = Arc::new(Own::default());
    let observing = match needs_server {
        true => observe(args, address, &records, own.clone())?,
        false => None,
    };
    let knocks_at = (!needs_server && methods.contains(&RttMethod::Synack)).then_some(address);
    let (control, streams) = if needs_server {
        let sockets = streams::udp_sockets(args, address)?;
        let control = open(args, host, address, &sockets)?;
        let streams = Streams::open(args, address, &control.welcome, sockets, own)?;
        (Some(control), Some(streams))
    } else {
        (None, None)
    };
    let log = match &args.hdr_log {
        Some(path) => Some(HdrLog::create(path)?),
        None => None,
    };
    let conditions = Conditions::new(args, host, address, control.as_ref().map(|c| &c.welcome));
    Running {
        args,
        records,
        log,
        unwritten: None,
        points: Vec::new(),
        live: args.is_live(io::stderr().is_terminal()),
    }
    .go(
        conditions,
        (control, streams),
        (pinger, knocks_at),
        observing,
    )
}

struct Running<'a> {
    args: &'a ClientArgs,
    records: Arc<Records>,
    log: Option<HdrLog>,
    /// Why the log has ended before the run.
    unwritten: Option<anyhow::Error>,
    points: Vec<Point>,
    /// Each interval is printed on the standard error as it ends.
    live: bool,
}

impl Running<'_> {
    fn go(
        mut self,
        conditions: Conditions,
        (control, streams): (Option<Control>, Option<Streams>),
        (pinger, knocks_at): (Option<Pinger>, Option<SocketAddr>),
        observing: Option<Observing>,
    ) -> Result<RttResult> {
        let start_ns = clock::now_ns();
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let interval_ns = self.args.ping_interval.as_nanos() as u64;
        let end_ns = match (self.args.limit, &streams) {
            (Limit::Time(ns), _) => start_ns.saturating_add(ns),
            (Limit::Count(_), Some(_)) => u64::MAX,
            (Limit::Count(count), None) => {
                start_ns.saturating_add(count.saturating_mul(interval_ns))
            }
        };
        let plan = || echoes::Plan {
            start_ns,
            interval_ns,
            end_ns,
            done: done.clone(),
        };
        let pings = pinger.map(|pinger| echoes::start(pinger, plan(), self.records.clone()));
        let knocks =
            knocks_at.map(|to| knocks::start(to, self.args.timeout, plan(), self.records.clone()));
        let running = streams.map(|s| s.start(self.args, start_ns, &self.records));
        let from_ns = self.follow(start_ns, || match &running {
            Some(running) => !running.is_finished(),
            None => {
                pings.as_ref().is_some_and(|p| !p.is_finished())
                    || knocks.as_ref().is_some_and(|k| !k.is_finished())
            }
        });
        let ended = running.map(streams::Running::join).transpose()?;
        let now_ns = clock::now_ns();
        let elapsed_ns = now_ns - start_ns;
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let echoes: Option<Echoes> = pings.map(join).transpose()?;
        let knocks: Option<Knocks> = knocks.map(join).transpose()?;
        let mut failures = Vec::new();
        let lost = observing.map(Observing::end).transpose();
        let lost = lost.unwrap_or_else(|error| {
            failures.push(format!(
                "the interface was not watched to the end: {error:#}"
            ));
            None
        });
        self.interval(elapsed_ns, now_ns - from_ns);
        let mut troubles: Vec<String> = ended.iter().flat_map(Ended::troubles).collect();
        // What was measured here does not need it.
        let report = control.map(report).transpose().unwrap_or_else(|error| {
            troubles.push(format!(
                "the server's report is missing ({error:#}): the server's figures are not known"
            ));
            None
        });
        self.server_log(report.as_ref(), elapsed_ns);
        failures.extend(self.unwritten.take().map(|error| format!("{error:#}")));
        let mut outcome = RttResult {
            conditions,
            elapsed_ns: ended.as_ref().map_or(elapsed_ns, |e| e.elapsed_ns),
            methods: self.totals(),
            ended,
            echoes,
            knocks,
            lost,
            server: report,
            troubles,
            is_incomplete: false,
            points: self.points,
        };
        failures.into_iter().for_each(|lost| outcome.lose(lost));
        Ok(outcome)
    }

    /// Ends intervals until nothing runs any more; when the last one began.
    fn follow(&mut self, start_ns: u64, runs: impl Fn() -> bool) -> u64 {
        let interval_ns = self.args.interval().as_nanos() as u64;
        let mut from_ns = start_ns;
        while runs() {
            let end_ns = from_ns + interval_ns;
            let now = clock::now_ns();
            if now < end_ns {
                // Short looks, so that a short run is not held up by its interval.
                clock::sleep_until(end_ns.min(now + 20_000_000));
                continue;
            }
            self.interval(now - start_ns, now - from_ns);
            from_ns = now;
        }
        from_ns
    }

    /// Ends an interval at `at_ns` after the start.
    fn interval(&mut self, at_ns: u64, length_ns: u64) {
        let ended = self.records.end_interval();
        for (method, latencies) in &ended {
            self.log(method.as_str(), latencies.histogram(), at_ns, length_ns);
        }
        let at_s = at_ns as f64 / 1e9;
        if self.live {
            for (method, latencies) in &ended {
                if let Some(summary) = latencies.summary() {
                    eprintln!("{}", output::live(at_s, *method, &summary));
                }
            }
        }
        if self.args.html.is_some() {
            let point = |(method, latencies): &(RttMethod, RttLatencies)| {
                latencies.summary().map(|summary| Point {
                    at_s,
                    method: *method,
                    summary,
                })
            };
            self.points.extend(ended.iter().filter_map(point));
            self.thin();
        }
    }

    /// Writes into the log, if there is one. A log that fails ends, and the run goes on.
    fn log(&mut self, tag: &str, histogram: &Histogram<u64>, end_ns: u64, length_ns: u64) {
        let Some(log) = &mut self.log else { return };
        if let Err(error) = log.write(tag, histogram, end_ns, length_ns) {
            (self.log, self.unwritten) = (None, Some(error));
        }
    }

    /// Keeps the curves' points bounded, however long a run.
    fn thin(&mut self) {
        if self.points.len() > POINTS * self.records.methods().count().max(1) {
            let mut times: Vec<f64> = self.points.iter().map(|p| p.at_s).collect();
            times.dedup();
            let kept: Vec<f64> = times.into_iter().step_by(2).collect();
            self.points
                .retain(|p| kept.binary_search_by(|t| t.total_cmp(&p.at_s)).is_ok());
        }
    }

    /// What the server has measured goes into the log as one interval.
    fn server_log(&mut self, report: Option<&ServerReport>, elapsed_ns: u64) {
        for (word, text) in report.iter().flat_map(|report| &report.histograms) {
            if let Some(histogram) = protocol::decode(text) {
                let tag = format!("server-{}", word.0);
                self.log(&tag, &histogram, elapsed_ns, elapsed_ns);
            }
        }
    }

    fn totals(&self) -> Vec<(RttMethod, RttLatencies)> {
        let methods = self.records.methods();
        let total = |method| self.records.total(method).map(|total| (method, total));
        methods.filter_map(total).collect()
    }
}

fn join<T>(handle: thread::JoinHandle<T>) -> Result<T> {
    handle
        .join()
        .map_err(|_| anyhow::anyhow!("a thread ended by a panic"))
}

/// The address to measure to: the first that is wanted.
fn resolve(args: &ClientArgs, host: &str) -> Result<SocketAddr> {
    let found = (host, args.port)
        .to_socket_addrs()
        .with_context(|| format!("cannot find the host {host}"))?;
    let mut wanted = found.filter(|address| args.wants(address.ip()));
    wanted.next().with_context(|| {
        let version = if args.ipv6 { 6 } else { 4 };
        format!("{host} has no IPv{version} address")
    })
}

/// Starts the sampler if a method needs it. It sees all connections to the server's
/// port; only those in `own` count.
fn observe(
    args: &ClientArgs,
    address: SocketAddr,
    records: &Arc<Records>,
    own: Arc<Own>,
) -> Result<Option<Observing>> {
    let Some(mut options) = args.sampler(String::new()) else {
        return Ok(None);
    };
    options.interface = match &args.interface {
        Some(name) => name.clone(),
        None => leads_to(address)?,
    };
    let records = records.clone();
    let mut values = OwnValues::new(own);
    let tell = move |value| {
        values.tell(value, |value| {
            records.record(value.method, value.ns, value.count);
        });
    };
    Observing::start(options, args.sample_memory.as_nanos() as u64, tell).map(Some)
}

/// The interface that packets to an address leave by.
fn leads_to(address: SocketAddr) -> Result<String> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0; 8], 0).into(),
    };
    // Connecting a datagram socket sends nothing and asks for the route.
    let socket = UdpSocket::bind(any)?;
    let own = socket.connect(address).and_then(|()| socket.local_addr());
    let own = own.with_context(|| format!("there is no way to {}", address.ip()))?;
    interface_of(own.ip())
        .with_context(|| format!("no interface has the address {}: name it with -i", own.ip()))
}

/// Opens the session.
fn open(
    args: &ClientArgs,
    host: &str,
    address: SocketAddr,
    sockets: &[UdpSocket],
) -> Result<Control> {
    let port = address.port();
    let mut stream = connect(address, TIMEOUT, false, None).with_context(|| {
        format!(
            "no `causeway rtt serve` answers at {host} port {port} (start it there, or measure by -m ping,synack alone)"
        )
    })?;
    set_timeouts(&stream, Some(TIMEOUT))?;
    let udp_ports = sockets
        .iter()
        .map(|socket| socket.local_addr().map(|a| a.port()))
        .collect::<io::Result<_>>()?;
    let hello = Hello {
        causeway_rtt: VERSION,
        request: args.request.request,
        response: args.request.response,
        udp_ports,
    };
    protocol::write_line(&mut stream, &hello)?;
    let what = || format!("what listens at {host} port {port} is not `causeway rtt serve`");
    let line = protocol::read_line(&mut stream, LINE_MAX)
        .with_context(what)?
        .with_context(what)?;
    let welcome: Welcome = serde_json::from_str(&line).with_context(what)?;
    if let Some(error) = welcome.error {
        bail!("the server at {host} refuses: {error}");
    }
    let wanted = if args.transport == TransportArg::Udp {
        sockets.len()
    } else {
        0
    };
    ensure!(welcome.udp_ports.len() == wanted, what());
    ensure!(
        args.transport != TransportArg::TcpCrr || welcome.crr,
        "the server at {host} does not know -t tcp-crr: use the same build"
    );
    Ok(Control { stream, welcome })
}

fn report(mut control: Control) -> Result<ServerReport> {
    protocol::write_line(&mut control.stream, &Ask::Report)?;
    let line = protocol::read_line(&mut control.stream, LINE_MAX)
        .context("the server's report")?
        .context("the server has ended before its report")?;
    serde_json::from_str(&line).context("the server's report")
}
