// SPDX-License-Identifier: Apache-2.0
//! The arguments of `causeway measure`, and what they mean.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use causeway_core::estimate::{FixedGapConfig, Method, ModesConfig, ModesIbg, Side, Technique};
use causeway_core::flow::{Cidr, Direction, FlowKey, Headers};
use causeway_service::config::{socket_address as endpoint, units};
use clap::ValueEnum as _;

use super::group::{Grouping, PrefixLen};
use super::rows::{Label, Style};
use super::words::{AttachName, EstimatorName, Format, HeadersName, IbgName, Per};

/// Measure response latency from the packets that travel from clients to servers
///
/// The response latency is the time from a client's request to the last byte of
/// the response at the client. One direction is enough: a response shows in the
/// request that it triggers.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("source").args(["read", "interface"]).required(true))]
pub struct MeasureArgs {
    /// Read packets from this pcap or pcapng file, `-` for standard input; gzip, zstd, xz and lz4 are recognised
    #[arg(short, long, value_name = "FILE")]
    pub(crate) read: Option<PathBuf>,

    /// Measure on this interface, which packets from clients cross, until Ctrl-C (needs root)
    #[arg(short, long, value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,

    /// Length of an epoch; each gives one estimate, aligned to its multiples since the Unix epoch
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = epoch)]
    pub(crate) epoch: Duration,

    /// What an estimate is for
    ///
    /// [default: flow; for --serve and the terminal view server]
    #[arg(long, value_enum)]
    pub(crate) per: Option<Per>,

    /// Lengths of the clients' prefixes with --per prefix, for IPv4 and IPv6
    #[arg(long, value_name = "V4,V6", default_value = "24,48")]
    pub(crate) prefix_len: PrefixLen,

    /// How to estimate; several, separated by commas, are put side by side [default: window-chain]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(crate) estimator: Vec<EstimatorName>,

    /// Put estimators side by side, all unless --estimator names some, with their distributions
    #[arg(long)]
    pub(crate) compare: bool,

    /// Add p50, p90, p95, p99 and p99.9: to rows, and to the table of flows
    #[arg(long)]
    pub(crate) percentiles: bool,

    /// For sampled and sampled-client: one packet in this many is used
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) sample_one_in: u32,

    /// What fixed-gap takes for a pause between two batches of requests
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = units::duration)]
    pub(crate) gap: Duration,

    /// How close to a mode a gap must be to belong to it, for modes: a time, or a share of the mode
    #[arg(long, value_name = "TIME|PERCENT", default_value = "25%", value_parser = epsilon)]
    pub(crate) epsilon: Epsilon,

    /// Which mode separates two batches of requests, for modes
    #[arg(long, value_enum, default_value_t = IbgName::MostTime)]
    pub(crate) ibg: IbgName,

    /// Use TCP's header fields, or sizes and times alone
    #[arg(long, value_enum, default_value_t = HeadersName::Clear)]
    pub(crate) headers: HeadersName,

    /// Format of the results
    ///
    /// [default: table; with -i on a terminal the view of --top, and the table at its end]
    #[arg(short, long, value_enum)]
    pub(crate) output: Option<Format>,

    /// Write the results to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Where no SYN was seen, the client is the side inside this network; may be repeated
    ///
    /// Without it the client is then the side whose port is not one of --port, else the one
    /// with the higher port.
    #[arg(long, value_name = "CIDR")]
    pub(crate) client_net: Vec<Cidr>,

    /// Only packets from or to this port; may be repeated
    #[arg(long, value_name = "PORT")]
    pub(crate) port: Vec<u16>,

    /// Only packets from or to this address or network; may be repeated
    #[arg(long, value_name = "CIDR")]
    pub(crate) host: Vec<Cidr>,

    /// Live: where the meter runs in the kernel
    #[arg(long, value_enum, default_value_t = AttachName::Auto, requires = "interface")]
    pub(crate) attach: AttachName,

    /// Live: measure on a packet socket (AF_PACKET) instead of in the kernel
    ///
    /// Implied by estimators that the kernel does not run, by filter expressions and
    /// by percentiles of anything but servers.
    #[arg(long, requires = "interface", conflicts_with = "attach")]
    pub(crate) no_bpf: bool,

    /// Live: after measuring hand packets on to this pinned XDP program, or array of programs
    #[arg(long, value_name = "PIN", requires = "interface")]
    pub(crate) next_program: Option<PathBuf>,

    /// Live: show groups with their course and distribution; `q` ends it
    #[arg(long, requires = "interface")]
    pub(crate) top: bool,

    /// Live: serve metrics for Prometheus on this loopback address, under /metrics
    #[arg(long, value_name = "ADDRESS:PORT", requires = "interface", value_parser = endpoint)]
    pub(crate) serve: Option<SocketAddr>,

    /// Flows held at once; beyond that, those silent for long are ended early
    ///
    /// [default: 1Mi; in the kernel, which takes the memory at once, 128Ki]
    #[arg(long, value_name = "COUNT", value_parser = flows)]
    max_flows: Option<u32>,

    /// Threads that estimate, beside the one that reads; 0 for one thread in all
    #[arg(long, value_name = "COUNT")]
    pub(crate) threads: Option<usize>,

    /// Only packets that this expression of tcpdump's filter language matches (pcap-filter(7); needs libpcap)
    #[arg(value_name = "EXPRESSION")]
    pub(crate) expression: Vec<String>,
}

/// How close a gap must be to a mode to belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Epsilon {
    /// In nanoseconds.
    Absolute(u64),
    /// In thousandths of the mode.
    Permille(u32),
}

/// Which packets to look at. Empty lists let everything pass.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    ports: Vec<u16>,
    hosts: Vec<Cidr>,
}

impl Filter {
    /// Packets from or to these ports.
    pub fn of_ports(ports: Vec<u16>) -> Self {
        Self {
            ports,
            hosts: Vec::new(),
        }
    }

    /// Whether every packet passes.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.hosts.is_empty()
    }

    /// Whether a packet passes.
    #[inline]
    pub fn passes(&self, key: &FlowKey) -> bool {
        let port = |port| self.ports.contains(&port);
        let host = |address: IpAddr| self.hosts.iter().any(|net| net.contains(address));
        (self.ports.is_empty() || port(key.sport()) || port(key.dport()))
            && (self.hosts.is_empty() || host(key.src()) || host(key.dst()))
    }
}

impl MeasureArgs {
    /// The estimators with their parameters, in the order given, each once.
    pub fn techniques(&self) -> Vec<Technique> {
        let mut techniques: Vec<Technique> = Vec::new();
        let names = match (&self.estimator[..], self.compare) {
            ([], false) => &[EstimatorName::WindowChain][..],
            ([], true) => &[EstimatorName::All],
            (names, _) => names,
        };
        for name in names {
            for technique in self.technique(*name) {
                if !techniques.contains(&technique) {
                    techniques.push(technique);
                }
            }
        }
        techniques
    }

    fn technique(&self, name: EstimatorName) -> Vec<Technique> {
        vec![match name {
            EstimatorName::WindowChain => Technique::Request(Method::WindowChain),
            EstimatorName::FixedGap => Technique::Request(Method::FixedGap(FixedGapConfig {
                delta_ns: self.gap.as_nanos() as u64,
                ..FixedGapConfig::default()
            })),
            EstimatorName::Modes => Technique::Request(Method::Modes(self.modes())),
            EstimatorName::Handshake => Technique::Handshake,
            EstimatorName::TsEcho => Technique::TsEcho,
            EstimatorName::Spin => Technique::Spin,
            EstimatorName::SeqAck => Technique::SeqAck(Side::Server),
            EstimatorName::SeqAckClient => Technique::SeqAck(Side::Client),
            EstimatorName::Timestamps => Technique::Timestamps(Side::Server),
            EstimatorName::TimestampsClient => Technique::Timestamps(Side::Client),
            EstimatorName::Sampled => Technique::Sampled(Side::Server, self.sample_one_in),
            EstimatorName::SampledClient => Technique::Sampled(Side::Client, self.sample_one_in),
            EstimatorName::All => {
                let all = EstimatorName::value_variants().iter();
                let others = all.filter(|name| **name != EstimatorName::All);
                return others.flat_map(|name| self.technique(*name)).collect();
            }
        }]
    }

    /// What the results look like.
    pub fn style(&self, techniques: &[Technique], endless: bool) -> Style {
        let label = |technique: &Technique| Label {
            name: technique.name(),
            needs: technique.needs().as_str(),
            measures: technique.measures(),
            protocol: technique.protocol(),
        };
        Style {
            format: self.output.unwrap_or(Format::Table),
            grouping: Grouping {
                per: self.per.unwrap_or(Per::Flow),
                prefix: self.prefix_len,
            },
            estimators: techniques.iter().map(label).collect(),
            percentiles: self.percentiles,
            compare: self.compare,
            epoch_ns: self.epoch_ns(),
            endless,
        }
    }

    fn modes(&self) -> ModesConfig {
        let (epsilon_ns, epsilon_permille) = match self.epsilon {
            Epsilon::Absolute(ns) => (ns, 0),
            Epsilon::Permille(permille) => (0, permille),
        };
        let ibg = match self.ibg {
            IbgName::MostTime => ModesIbg::MostTime,
            IbgName::Largest => ModesIbg::Largest,
        };
        ModesConfig {
            epsilon_ns,
            epsilon_permille,
            ibg,
            ..ModesConfig::default()
        }
    }

    /// The epoch in nanoseconds.
    pub fn epoch_ns(&self) -> u64 {
        self.epoch.as_nanos() as u64
    }

    /// What the estimators may look at.
    pub fn headers(&self) -> Headers {
        match self.headers {
            HeadersName::Clear => Headers::Clear,
            HeadersName::Opaque => Headers::Opaque,
        }
    }

    /// Which side is the client where no SYN tells. The ports that are looked at are
    /// servers' mostly: where both sides have one of them it tells nothing.
    pub fn direction(&self) -> Direction {
        Direction::new(self.client_net.clone()).with_server_ports(self.port.clone())
    }

    /// The packets to look at.
    pub fn filter(&self) -> Filter {
        Filter {
            ports: self.port.clone(),
            hosts: self.host.clone(),
        }
    }

    /// Flows held at once.
    pub fn max_flows(&self) -> u32 {
        self.max_flows.unwrap_or(1 << 20)
    }

    /// The same of the meter in the kernel, some 300 bytes each for each estimator.
    pub fn max_flows_in_kernel(&self) -> u32 {
        self.max_flows.unwrap_or(1 << 17)
    }

    /// Estimating threads beside the reading one.
    pub fn workers(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        self.threads.unwrap_or_else(|| cores() - 1).min(64)
    }
}

/// A duration that can be the length of an epoch.
fn epoch(text: &str) -> Result<Duration, String> {
    let epoch = units::duration(text)?;
    if epoch < Duration::from_micros(1) {
        return Err("an epoch is at least 1us".to_owned());
    }
    Ok(epoch)
}

/// `100us` or `25%`.
fn epsilon(text: &str) -> Result<Epsilon, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return Ok(Epsilon::Absolute(units::duration(text)?.as_nanos() as u64));
    };
    match percent.parse::<f64>() {
        Ok(percent @ 0.0..=100.0) => Ok(Epsilon::Permille((percent * 10.0).round() as u32)),
        _ => Err(format!(
            "`{text}` is not a valid share of a mode; 0% to 100%"
        )),
    }
}

fn flows(text: &str) -> Result<u32, String> {
    match units::count(text)?.try_into() {
        Ok(count @ 1..) => Ok(count),
        _ => Err(format!(
            "`{text}` is not a valid number of flows; 1 to 4294967295"
        )),
    }
}
