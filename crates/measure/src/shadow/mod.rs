// SPDX-License-Identifier: Apache-2.0
//! `causeway shadow`: what Causeway would do in the place of another balancer, from its
//! packets alone. It reads copies of them (a packet socket or a capture) and attaches nothing.
//!
//! [`recording`] makes connections of packets, [`pool`] says which balancer that is, [`queue`]
//! what its servers are, [`replay`] has the controller at it, [`forecast`] puts it together.

#[cfg(test)]
mod chance;
mod existing;
mod forecast;
mod queue;
mod recording;
mod replay;
mod report;

use std::collections::hash_map::RandomState;
use std::convert::Infallible;
use std::hash::BuildHasher;
use std::io::{ErrorKind, Write as _};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use causeway_core::capture::{CapturedPacket, Reader, Rest};
use causeway_core::estimate::Packet;
use causeway_core::flow::{Cidr, Direction, FlowKey, Headers, Observation};
use causeway_core::wire::{EthernetFrame, LinkType, Network, proto};
use causeway_netio::{Capture, Frame, Interface};
use causeway_service::config::units;
use causeway_service::stop;

use super::args::Filter;
use super::engine::read_some;
use super::input::Input;
use recording::{Recorder, Recording};
use report::Report;

/// Room for packets that wait to be looked at.
const RING_BYTES: usize = 64 << 20;
/// Ports of GUE: IANA's, Katran's, and that of GLB Director.
const GUE_PORTS: [u16; 3] = [6080, 9886, 19523];
/// Port of the multicasts in which one IPVS tells another its connections.
const IPVS_SYNC: u16 = 8848;
/// How often to look for signals and the time.
const POLL: Duration = Duration::from_millis(100);

/// Forecast what Causeway would do in the place of another balancer
///
/// Watches the packets of HAProxy, IPVS, Katran or kube-proxy on their own host or on a mirror
/// port, changes nothing, and reports what each server's latency is today, what p99 would be with
/// Causeway's controller, and which changes would break how many connections.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").args(["read", "interface"]).required(true))]
pub struct ShadowArgs {
    /// Read packets from this pcap or pcapng file, `-` for standard input; gzip, zstd, xz and lz4 are recognised
    #[arg(short, long, value_name = "FILE")]
    read: Option<PathBuf>,

    /// Watch this interface, which packets to the servers cross (needs root)
    #[arg(short, long, value_name = "INTERFACE")]
    interface: Option<String>,

    /// Live: how long to watch; Ctrl-C ends it early, with the report of what was seen
    #[arg(
        long = "for",
        value_name = "TIME",
        default_value = "10m",
        value_parser = units::duration,
        conflicts_with = "read"
    )]
    lasts: Duration,

    /// Address or network of servers; may be repeated
    ///
    /// Without it they are the endpoints that together have the connections of one other.
    #[arg(long, value_name = "CIDR")]
    server: Vec<Cidr>,

    /// Where no SYN was seen, the client is the side inside this network; may be repeated
    ///
    /// Without it the client is then the side with the higher port.
    #[arg(long, value_name = "CIDR")]
    client_net: Vec<Cidr>,

    /// Only packets from or to this port; may be repeated
    #[arg(long, value_name = "PORT")]
    port: Vec<u16>,

    /// Format of the report
    #[arg(short, long, value_enum, default_value_t = ReportFormat::Table)]
    output: ReportFormat,
}

/// How the report looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ReportFormat {
    /// One screen for people.
    Table,
    /// One JSON object.
    Json,
}

impl ShadowArgs {
    /// Runs the command; a file that cannot be read to its end gives exit code 1, behind the
    /// report of what could be read.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match &self.interface {
            Some(interface) => self.watch(interface),
            None => self.read(self.read.as_deref().unwrap_or(Path::new("-"))),
        }
    }

    fn tap(&self) -> Tap {
        Tap {
            recorder: Recorder::new(
                Direction::new(self.client_net.clone()),
                RandomState::new().hash_one(0u8),
            ),
            filter: Filter::of_ports(self.port.clone()),
        }
    }

    fn watch(&self, interface: &str) -> anyhow::Result<ExitCode> {
        let found = Interface::find(interface)?;
        let mut capture = Capture::open(interface, RING_BYTES)?;
        // Before it says that it watches: who reads that may end it at once.
        stop::catch_signals().context("cannot catch signals")?;
        capture.start()?;
        eprintln!(
            "watching {interface} for {:?}; Ctrl-C ends it early",
            self.lasts
        );
        let mut tap = self.tap();
        let (link, ends) = (capture.link(), Instant::now() + self.lasts);
        let mut poll = |wait, tap: &mut Tap| {
            capture.poll(wait, |frame: Frame<'_>| {
                tap.frame(link, frame.data, frame.wire_len, frame.time_ns);
            })
        };
        while Instant::now() < ends && !stop::stopped() && found.is_there() {
            let left = ends.saturating_duration_since(Instant::now());
            poll(left.min(POLL), &mut tap)?;
        }
        // What the ring still holds belongs to the time that was asked for.
        poll(Duration::ZERO, &mut tap)?;
        let lost = capture.counts()?.dropped;
        self.print(&tap.finish(), interface.to_owned(), lost)?;
        anyhow::ensure!(
            found.is_there(),
            "{interface} was deleted: the report is of the time before"
        );
        Ok(ExitCode::SUCCESS)
    }

    fn read(&self, path: &Path) -> anyhow::Result<ExitCode> {
        let name = path.display().to_string();
        let mut input = Input::open(path, true)?;
        // What ends `tcpdump -w - | causeway shadow -r -`; a file ends by itself.
        if input.len.is_none() {
            stop::catch_signals().context("cannot catch signals")?;
        }
        let mut tap = self.tap();
        let mut reader = Reader::new();
        let damage: Option<anyhow::Error> = loop {
            let mut visit = |packet: &CapturedPacket<'_>| {
                if let (Some(time_ns), Some(link)) = (packet.time_ns, packet.link) {
                    tap.frame(link, packet.data, packet.wire_len, time_ns);
                }
                ControlFlow::<Infallible>::Continue(())
            };
            match reader.each(&mut visit) {
                Ok(Rest::NeedBytes) => match read_some(&mut input.bytes, reader.space()) {
                    Ok(0) => reader.finish(),
                    Ok(count) => reader.filled(count),
                    // A stream that a signal ended is not complete, and needs not be.
                    Err(error) if stop::stopped() && error.kind() == ErrorKind::UnexpectedEof => {
                        reader.finish();
                    }
                    Err(error) if reader.totals().packets == 0 => {
                        return Err(error).with_context(|| name);
                    }
                    Err(error) => break Some(error.into()),
                },
                Ok(Rest::Stopped(never)) => match never {},
                Ok(Rest::End) => break None,
                Err(error) if reader.totals().packets == 0 => {
                    return Err(error).with_context(|| name);
                }
                Err(error) => break Some(error.into()),
            }
        };
        self.print(&tap.finish(), name.clone(), 0)?;
        match damage {
            Some(error) => Err(error).with_context(|| name),
            None => Ok(ExitCode::SUCCESS),
        }
    }

    fn print(&self, recording: &Recording, source: String, lost: u64) -> anyhow::Result<()> {
        let report: Report = forecast::report(recording, &self.server, source, lost);
        let text = match self.output {
            ReportFormat::Table => report.to_text(),
            ReportFormat::Json => serde_json::to_string_pretty(&report)? + "\n",
        };
        match std::io::stdout().write_all(text.as_bytes()) {
            // A reader that went away (`| head`) wants no more, and no complaint.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            result => Ok(result?),
        }
    }
}

/// Reduces frames to what the recorder takes.
struct Tap {
    recorder: Recorder,
    filter: Filter,
}

impl Tap {
    fn frame(&mut self, link: LinkType, data: &[u8], wire_len: u32, time_ns: u64) {
        let seen = Observation::of_frame(link, data, wire_len, time_ns, Headers::Clear);
        let Ok(mut seen) = seen else { return };
        if seen.packet.proto == Packet::UDP
            && seen.key.dport() == IPVS_SYNC
            && seen.key.dst().is_multicast()
        {
            self.recorder.tells_connections();
        }
        if seen.packet.proto != Packet::TCP || !self.filter.passes(&seen.key) {
            return;
        }
        // In a tunnel to its server, the inner destination is the service.
        if let Some(server) = tunnel_end(link, data)
            && server.is_ipv4() == seen.key.dst().is_ipv4()
        {
            let key = seen.key;
            seen.key = FlowKey::new(key.proto(), key.src(), key.sport(), server, key.dport());
        }
        self.recorder.packet(&seen);
    }

    fn finish(self) -> Recording {
        self.recorder.finish()
    }
}

/// Where a tunnel of balancers ends: IP in IP, or GUE.
fn tunnel_end(link: LinkType, data: &[u8]) -> Option<IpAddr> {
    let network = match link {
        LinkType::Ethernet => EthernetFrame::new(data).ok()?.network().ok()?,
        LinkType::Raw => Network::by_version(data).ok()?,
        _ => return None,
    };
    let (bytes, protocol, header, end): (&[u8], u8, usize, IpAddr) = match network {
        Network::Ipv4(bytes) => {
            let end = <[u8; 4]>::try_from(bytes.get(16..20)?).ok()?;
            let header = usize::from(bytes[0] & 0xf) * 4;
            (bytes, bytes[9], header, end.into())
        }
        Network::Ipv6(bytes) => {
            let end = <[u8; 16]>::try_from(bytes.get(24..40)?).ok()?;
            (bytes, bytes[6], 40, end.into())
        }
    };
    let port = || {
        bytes
            .get(header + 2..header + 4)
            .map(|at| u16::from_be_bytes([at[0], at[1]]))
    };
    let tunnels = match protocol {
        proto::IPIP | proto::IPV6 => true,
        proto::UDP => port().is_some_and(|port| GUE_PORTS.contains(&port)),
        _ => false,
    };
    tunnels.then_some(end)
}
