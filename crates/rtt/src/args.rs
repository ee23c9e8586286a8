// SPDX-License-Identifier: Apache-2.0
//! The arguments of `causeway rtt`, and what they mean.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use causeway_core::rtt::{Limit, Pacing, RttMethod, Selector};
use causeway_dataplane::SamplerOptions;
use causeway_service::config::units;
use clap::ValueEnum;

use super::protocol::{PORT, SIZE_MAX};

/// How the results are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// For people.
    Table,
    /// One row a method.
    Csv,
    /// All there is.
    Json,
    /// netperf's `-o`: headings and one row of these.
    Selected(Vec<Selector>),
}

fn output(text: &str) -> Result<Output, String> {
    match text {
        "table" => Ok(Output::Table),
        "csv" => Ok(Output::Csv),
        "json" => Ok(Output::Json),
        list => Selector::list(list)
            .map(Output::Selected)
            .map_err(|e| format!("neither table, csv nor json, and {e}")),
    }
}

/// netperf's `-k`, as one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selectors(pub Vec<Selector>);

fn selectors(text: &str) -> Result<Selectors, String> {
    Selector::list(text)
        .map(Selectors)
        .map_err(|e| e.to_string())
}

/// What carries the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TransportArg {
    /// A TCP connection (netperf's TCP_RR).
    #[value(alias = "TCP_RR", alias = "tcp_rr")]
    Tcp,
    /// A TCP connection for each request, its handshake a part of the time (netperf's TCP_CRR).
    #[value(alias = "TCP_CRR", alias = "tcp_crr")]
    TcpCrr,
    /// UDP datagrams (netperf's UDP_RR).
    #[value(alias = "UDP_RR", alias = "udp_rr")]
    Udp,
}

impl TransportArg {
    /// The protocol, as netperf names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp | Self::TcpCrr => "TCP",
            Self::Udp => "UDP",
        }
    }
}

/// A method on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodArg(pub RttMethod);

impl ValueEnum for MethodArg {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: [MethodArg; RttMethod::ALL.len()] = {
            let mut all = [MethodArg(RttMethod::Rr); RttMethod::ALL.len()];
            let mut i = 0;
            while i < all.len() {
                all[i] = MethodArg(RttMethod::ALL[i]);
                i += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(self.0.as_str()).help(self.0.meaning()))
    }
}

/// Sizes of requests and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes.
    pub request: u32,
    /// Bytes.
    pub response: u32,
}

/// `REQ,RES`; one number is both.
fn sizes(text: &str) -> Result<Sizes, String> {
    let one = |word: &str| {
        let bytes = units::count(word)?;
        match u32::try_from(bytes) {
            Ok(bytes) if (1..=SIZE_MAX).contains(&bytes) => Ok(bytes),
            _ => Err(format!("{word} is not from 1 to {SIZE_MAX} bytes")),
        }
    };
    let (request, response) = text.split_once(',').unwrap_or((text, text));
    Ok(Sizes {
        request: one(request)?,
        response: one(response)?,
    })
}

/// netperf's `-w`: a number with `s`, `m` (milliseconds), `ms`, `u` or `us`; a bare
/// number is milliseconds; a negative one means no wait.
fn wait(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let factor = match unit {
        "" | "m" | "ms" => 1e-3,
        "u" | "us" => 1e-6,
        "s" => 1.0,
        other => {
            return Err(format!(
                "`{other}` is not a valid unit of a wait; use u, m or s"
            ));
        }
    };
    let value: f64 = number
        .parse()
        .map_err(|_| format!("`{text}` is not a valid wait; write for example 39m, 500u or -1"))?;
    let seconds = (value * factor).max(0.0);
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|wait| *wait <= Duration::from_secs(3600))
        .ok_or_else(|| format!("`{text}` is more than an hour"))
}

/// netperf's `-l`: seconds, or as a negative number a count of transactions.
fn limit(text: &str) -> Result<Limit, String> {
    let refused =
        || format!("`{text}` is neither seconds (10) nor a count of transactions (-1000)");
    if let Some(count) = text.strip_prefix('-') {
        let count: u64 = count.parse().map_err(|_| refused())?;
        return match count {
            0 => Err(refused()),
            count => Ok(Limit::Count(count)),
        };
    }
    let number = text.strip_suffix('s').unwrap_or(text);
    let seconds: f64 = number.parse().map_err(|_| refused())?;
    match (0.001..=86_400.0 * 366.0).contains(&seconds) {
        true => Ok(Limit::Time((seconds * 1e9) as u64)),
        false => Err(format!("`{text}` is not from 1 ms to a year")),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is not a valid number of requests per second"))?;
    match (0.001..=1e6).contains(&rate) {
        true => Ok(rate),
        false => Err(format!(
            "`{text}` is not from 0.001 to 1000000 requests per second"
        )),
    }
}

const EXAMPLES: &str = "\
Examples:
  On one host:      causeway rtt serve
  On the other:     causeway rtt server.example
  What is slow:     causeway rtt server.example --explain
  As netperf does:  causeway rtt server.example -t TCP_RR -w 39m -b 1 -l 900 -r 1,2 \\
                      -o MIN_LATENCY,MEAN_LATENCY,P50_LATENCY,P90_LATENCY,P99_LATENCY
  A connection each: causeway rtt server.example -t TCP_CRR --rate 100
  No server there:  causeway rtt server.example -m ping,synack -p 443
  Open loop:        causeway rtt server.example --rate 1000
  All methods:      causeway rtt server.example -m rr,tcp,sampled,ping,synack,timestamps,causal
  For the record:   causeway rtt server.example --hdr-log run.hlog --html run.html";

/// Arguments of a client.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ClientArgs {
    /// Where `causeway rtt serve` runs: a name or an address; for ping and synack any host
    #[arg(required = true, value_name = "HOST")]
    pub host: Option<String>,

    /// The server's port
    #[arg(short, long, value_name = "PORT", default_value_t = PORT)]
    pub port: u16,

    /// What carries the requests
    #[arg(short, long, value_enum, default_value_t = TransportArg::Tcp)]
    pub transport: TransportArg,

    /// Bytes of a request and of a response
    #[arg(short, long = "sizes", value_name = "REQ,RES", default_value = "1,1", value_parser = sizes)]
    pub request: Sizes,

    /// Wait between a response and the next request: 39m, 500u, 2s; -1 for none
    #[arg(short, long, value_name = "WAIT", default_value = "-1", allow_hyphen_values = true, value_parser = wait)]
    pub wait: Duration,

    /// Requests one after another between two waits
    #[arg(short, long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub burst: u32,

    /// Seconds to run, or as a negative number the transactions of each stream
    #[arg(short, long = "length", value_name = "SECONDS|-COUNT", default_value = "10", allow_hyphen_values = true, value_parser = limit)]
    pub limit: Limit,

    /// What to measure by, all at once [default: rr,tcp,ping for tcp, rr,connect,tcp,ping for
    /// tcp-crr, rr,ping for udp]
    #[arg(
        short,
        long = "method",
        value_enum,
        value_delimiter = ',',
        value_name = "METHOD"
    )]
    pub methods: Vec<MethodArg>,

    /// Open loop: this many requests a second on each stream, whatever the responses
    /// do; latencies count from when a request should have been sent
    #[arg(long, value_name = "PER_SECOND", value_parser = rate, conflicts_with_all = ["wait", "burst"])]
    pub rate: Option<f64>,

    /// Connections at once
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub streams: u32,

    /// Use IPv4 only
    #[arg(short = '4', conflicts_with = "ipv6")]
    pub ipv4: bool,

    /// Use IPv6 only
    #[arg(short = '6')]
    pub ipv6: bool,

    /// Say in sentences what the numbers mean: network, application or measurement
    #[arg(short = 'x', long)]
    pub explain: bool,

    /// table, csv, json, or netperf's output selectors (MIN_LATENCY,P50_LATENCY,...; all)
    #[arg(short, long, value_name = "FORMAT|SELECTORS", default_value = "table", value_parser = output)]
    pub output: Output,

    /// netperf's output selectors as NAME=value lines
    #[arg(short, long = "keyval", value_name = "SELECTORS", value_parser = selectors, conflicts_with = "output")]
    pub keyval: Option<Selectors>,

    /// 0 leaves the headings away (netperf's -P)
    #[arg(short = 'P', long = "banner", value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub banner: u8,

    /// A tag that RESULT_BRAND repeats
    #[arg(short = 'B', long, value_name = "TEXT", default_value = "")]
    pub brand: String,

    /// Print the rr histogram too: ten buckets a decade
    #[arg(long)]
    pub histogram: bool,

    /// Write an HdrHistogram interval log, one tag a method
    #[arg(long, value_name = "FILE")]
    pub hdr_log: Option<PathBuf>,

    /// Write a report with curves, one self-contained page
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Length of an interval of the log, of the report's curves, and of the lines that are printed
    /// before a table while it runs: with -D, or where the standard error is a terminal [default:
    /// 1s]
    #[arg(short = 'D', long, value_name = "TIME", value_parser = units::duration)]
    pub interval: Option<Duration>,

    /// Time between two echo requests
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = units::duration)]
    pub ping_interval: Duration,

    /// Give a request up after this time
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    pub timeout: Duration,

    /// End of each wait that is spent looking at the clock instead of sleeping
    #[arg(long, value_name = "TIME", default_value = "50us", value_parser = units::duration)]
    pub busy: Duration,

    /// Use this congestion control, as `sysctl net.ipv4.tcp_available_congestion_control` lists them
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,

    /// Write each request in two halves with Nagle's algorithm on, as careless applications do
    #[arg(long)]
    pub split: bool,

    /// The sampler takes one packet in this many, each direction by itself
    #[arg(short = 'N', long = "sample", value_name = "COUNT", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub sample: u32,

    /// The sampler forgets a segment after this time
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::duration)]
    pub sample_memory: Duration,

    /// Interface of the sampler [default: the one that leads to HOST]
    #[arg(short, long, value_name = "INTERFACE")]
    pub interface: Option<String>,
}

impl ClientArgs {
    /// The methods to run.
    pub fn methods(&self) -> Vec<RttMethod> {
        let mut methods: Vec<RttMethod> = self.methods.iter().map(|m| m.0).collect();
        if methods.is_empty() {
            methods = match self.transport {
                TransportArg::Tcp => vec![RttMethod::Rr, RttMethod::Tcp, RttMethod::Ping],
                TransportArg::TcpCrr => vec![
                    RttMethod::Rr,
                    RttMethod::Connect,
                    RttMethod::Tcp,
                    RttMethod::Ping,
                ],
                TransportArg::Udp => vec![RttMethod::Rr, RttMethod::Ping],
            };
        }
        methods.sort_unstable();
        methods.dedup();
        methods
    }

    /// Length of an interval.
    pub(crate) fn interval(&self) -> Duration {
        self.interval.unwrap_or(Duration::from_secs(1))
    }

    /// Whether intervals are printed as they end, beside a table that follows.
    pub(crate) fn is_live(&self, terminal: bool) -> bool {
        let table = self.output == Output::Table && self.keyval.is_none();
        table && (self.interval.is_some() || terminal)
    }

    /// How requests follow each other.
    pub fn pacing(&self) -> Pacing {
        match self.rate {
            Some(rate) => Pacing::Open {
                interval_ns: (1e9 / rate) as u64,
            },
            None => Pacing::Closed {
                wait_ns: self.wait.as_nanos() as u64,
                burst: self.burst,
            },
        }
    }

    /// What cannot be, beyond what clap checks.
    pub fn check(&self) -> anyhow::Result<()> {
        let interval = Duration::from_millis(10)..=Duration::from_secs(3600);
        anyhow::ensure!(
            interval.contains(&self.interval()),
            "--interval must be from 10ms to 1h"
        );
        anyhow::ensure!(
            self.ping_interval >= Duration::from_millis(1),
            "--ping-interval must be at least 1ms"
        );
        anyhow::ensure!(
            self.timeout >= Duration::from_millis(1),
            "--timeout must be at least 1ms"
        );
        anyhow::ensure!(
            !self.split || self.request.request >= 2,
            "--split needs requests of at least 2 bytes: -r 2,1"
        );
        anyhow::ensure!(
            self.transport == TransportArg::TcpCrr || !self.methods().contains(&RttMethod::Connect),
            "connect is a method of -t tcp-crr: leave it out, or use that"
        );
        let of_tcp = |m: &RttMethod| !matches!(m, RttMethod::Rr | RttMethod::Ping);
        if self.transport == TransportArg::Udp
            && let Some(method) = self.methods().into_iter().find(of_tcp)
        {
            anyhow::bail!("{method} is a method of TCP: leave it out, or use -t tcp");
        }
        Ok(())
    }

    /// The sampler that the methods need, if any, towards a server on this port.
    pub fn sampler(&self, interface: String) -> Option<SamplerOptions> {
        let methods = self.methods();
        let follow = [RttMethod::Synack, RttMethod::Timestamps, RttMethod::Causal];
        let follow = follow.iter().any(|m| methods.contains(m));
        let sampled = methods.contains(&RttMethod::Sampled);
        (follow || sampled).then_some(SamplerOptions {
            interface,
            port: self.port,
            one_in: if sampled { self.sample } else { 0 },
            follow,
        })
    }

    /// Whether an address may be used.
    pub fn wants(&self, address: IpAddr) -> bool {
        !(self.ipv4 && address.is_ipv6() || self.ipv6 && address.is_ipv4())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ClientArgs,
    }

    fn parse(text: &str) -> Result<ClientArgs, String> {
        let words = ["rtt"].into_iter().chain(text.split_whitespace());
        Cli::try_parse_from(words)
            .map(|cli| cli.args)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn netperfs_command_line_of_the_write_up_is_understood() {
        let args = parse(
            "h -t TCP_RR -B 1670,-1 -l 900 -w -1m -b 1 -r 1,2 -P 0 \
             -o result_brand,MIN_LATENCY,MEAN_LATENCY,P50_LATENCY,P90_LATENCY,P99_LATENCY",
        )
        .unwrap();
        assert_eq!(
            args.pacing(),
            Pacing::Closed {
                wait_ns: 0,
                burst: 1
            }
        );
        assert_eq!(args.limit, Limit::Time(900_000_000_000));
        assert_eq!((args.request.request, args.request.response), (1, 2));
        assert_eq!((args.banner, args.brand.as_str()), (0, "1670,-1"));
        assert!(matches!(&args.output, Output::Selected(list) if list.len() == 6));
    }

    #[test]
    fn units_are_netperfs() {
        let wait_ns = |text: &str| parse(&format!("h -w {text}")).unwrap().wait.as_nanos();
        assert_eq!(wait_ns("39m"), 39_000_000);
        assert_eq!(wait_ns("39"), 39_000_000);
        assert_eq!(wait_ns("500u"), 500_000);
        assert_eq!(wait_ns("2s"), 2_000_000_000);
        assert_eq!(wait_ns("-1"), 0);
        assert_eq!(parse("h -l -1000").unwrap().limit, Limit::Count(1000));
        assert_eq!(parse("h -l 0.5").unwrap().limit, Limit::Time(500_000_000));
        let both = parse("h -r 100").unwrap().request;
        assert_eq!((both.request, both.response), (100, 100));
    }

    #[test]
    fn methods_have_a_default_for_each_transport() {
        assert_eq!(
            parse("h").unwrap().methods(),
            [RttMethod::Rr, RttMethod::Tcp, RttMethod::Ping]
        );
        assert_eq!(
            parse("h -t udp").unwrap().methods(),
            [RttMethod::Rr, RttMethod::Ping]
        );
        let each = parse("h -t TCP_CRR").unwrap();
        assert_eq!(each.methods()[..2], [RttMethod::Rr, RttMethod::Connect]);
        assert!(each.check().is_ok());
        let said = parse("h -m rr,connect").unwrap().check().unwrap_err();
        assert!(said.to_string().contains("-t tcp-crr"), "{said}");
        let given = parse("h -m ping,rr,ping").unwrap().methods();
        assert_eq!(given, [RttMethod::Rr, RttMethod::Ping]);
        let udp = parse("h -t udp -m rr,tcp").unwrap();
        let said = udp.check().unwrap_err().to_string();
        assert_eq!(said, "tcp is a method of TCP: leave it out, or use -t tcp");
    }

    #[test]
    fn what_cannot_be_is_refused_with_a_sentence() {
        for (text, expected) in [
            ("h -w 5x", "`x` is not a valid unit of a wait"),
            ("h -l -0", "neither seconds (10) nor a count"),
            ("h -r 0,1", "0 is not from 1 to 1048576 bytes"),
            ("h -o P95_LATENCY", "is not an output selector; choose from"),
            ("h --rate 0", "is not from 0.001"),
            ("h --rate 10 -w 5m", "cannot be used with"),
            ("", "required"),
        ] {
            let said = parse(text).unwrap_err();
            assert!(said.contains(expected), "{text}: {said}");
        }
        let said = parse("h --split").unwrap().check().unwrap_err().to_string();
        assert!(said.contains("-r 2,1"), "{said}");
    }
}
