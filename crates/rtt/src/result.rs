// SPDX-License-Identifier: Apache-2.0
//! What a run has found.

use std::net::SocketAddr;

use causeway_core::rtt::explain::{self, Evidence, Finding, Ping};
use causeway_core::rtt::{Figures, LatencySummary, Limit, RttLatencies, RttMethod};
use causeway_netio::rtt::clock;
use serde::Serialize;

use super::args::{ClientArgs, TransportArg};
use super::echoes::Echoes;
use super::knocks::Knocks;
use super::observing::Unobserved;
use super::protocol::{self, MethodFigures, ServerReport, Welcome};
use super::session::kernel;
use super::streams::Ended;

/// How it was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Conditions {
    pub host: String,
    pub address: String,
    pub port: u16,
    pub transport: &'static str,
    pub request_bytes: u32,
    pub response_bytes: u32,
    /// `closed` or `open`.
    #[serde(rename = "loop")]
    pub kind: &'static str,
    /// Between a response and the next request; closed loop.
    pub wait_us: Option<u64>,
    pub burst: Option<u32>,
    /// Requests per second and stream; open loop.
    pub rate: Option<f64>,
    pub streams: u32,
    /// Each request has a connection of its own (TCP_CRR).
    pub connection_each: bool,
    /// As asked for: seconds, or transactions per stream.
    pub seconds: Option<f64>,
    pub transactions: Option<u64>,
    pub clock: &'static str,
    pub busy_us: u64,
    pub kernel: String,
    pub server_kernel: Option<String>,
    /// 1 in this many packets is sampled here, and at the server; 0: none.
    pub sample: u32,
    pub server_sample: u32,
    pub brand: String,
}

impl Conditions {
    /// The arguments, as they came to mean.
    pub fn new(
        args: &ClientArgs,
        host: &str,
        address: SocketAddr,
        server: Option<&Welcome>,
    ) -> Self {
        let closed = args.rate.is_none();
        Self {
            host: host.to_owned(),
            address: address.ip().to_string(),
            port: address.port(),
            transport: args.transport.as_str(),
            request_bytes: args.request.request,
            response_bytes: args.request.response,
            kind: if closed { "closed" } else { "open" },
            wait_us: closed.then_some(args.wait.as_micros() as u64),
            burst: closed.then_some(args.burst),
            rate: args.rate,
            streams: args.streams,
            connection_each: args.transport == TransportArg::TcpCrr,
            seconds: match args.limit {
                Limit::Time(ns) => Some(ns as f64 / 1e9),
                Limit::Count(_) => None,
            },
            transactions: match args.limit {
                Limit::Time(_) => None,
                Limit::Count(count) => Some(count),
            },
            clock: clock::DESCRIPTION,
            busy_us: args.busy.as_micros() as u64,
            kernel: kernel(),
            server_kernel: server.map(|s| s.kernel.clone()),
            sample: if args.methods().contains(&RttMethod::Sampled) {
                args.sample
            } else {
                0
            },
            server_sample: server.map_or(0, |s| s.sample),
            brand: args.brand.clone(),
        }
    }

    /// One line on how requests followed each other.
    pub fn loop_text(&self) -> String {
        match (self.rate, self.wait_us) {
            (Some(rate), _) => format!(
                "open loop, {rate} requests/s and stream; latency counts from the intended start"
            ),
            (None, Some(wait_us)) if wait_us > 0 => format!(
                "closed loop, {} between response and request: what is slow is measured less often (coordinated omission; --rate does without)",
                explain::time(wait_us * 1_000)
            ),
            _ => "closed loop without a wait: what is slow is measured less often (coordinated omission; --rate does without)".to_owned(),
        }
    }
}

/// One interval of one method.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// End of the interval, seconds since the start.
    pub at_s: f64,
    pub method: RttMethod,
    pub summary: LatencySummary,
}

/// Where something was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum End {
    Client,
    Server,
}

impl End {
    /// The word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// One row of the results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub method: RttMethod,
    pub end: End,
    pub summary: LatencySummary,
}

/// Everything a run has found.
#[derive(Clone, Debug)]
pub struct RttResult {
    pub conditions: Conditions,
    pub elapsed_ns: u64,
    /// Measured at this end.
    pub methods: Vec<(RttMethod, RttLatencies)>,
    pub ended: Option<Ended>,
    pub echoes: Option<Echoes>,
    /// Connections to a host where nothing of ours runs.
    pub knocks: Option<Knocks>,
    /// What the sampler here missed.
    pub lost: Option<Unobserved>,
    /// What the server has measured.
    pub server: Option<ServerReport>,
    /// What failed and left the rest, each in a sentence.
    pub troubles: Vec<String>,
    /// Something that was asked for could not be written or watched: one of the troubles.
    pub is_incomplete: bool,
    pub points: Vec<Point>,
}

impl RttResult {
    /// Something that was asked for is lost, which costs nothing of the rest.
    pub(crate) fn lose(&mut self, trouble: String) {
        self.troubles.push(trouble);
        self.is_incomplete = true;
    }

    /// Whether no method has a single value.
    pub fn is_empty(&self) -> bool {
        self.methods.iter().all(|(_, l)| l.count() == 0)
    }

    /// The latencies of a method at this end.
    pub fn latencies(&self, method: RttMethod) -> Option<&RttLatencies> {
        let found = self.methods.iter().find(|(m, _)| *m == method);
        found.map(|(_, latencies)| latencies)
    }

    /// The figures of a method at this end.
    pub fn summary(&self, method: RttMethod) -> Option<LatencySummary> {
        self.latencies(method)?.summary()
    }

    /// Share of the server's sampled values that are at least `ns`; 0 without any.
    pub fn server_sampled_share(&self, ns: u64) -> f64 {
        let histograms = self.server.iter().flat_map(|s| &s.histograms);
        let mut sampled = histograms.filter(|(word, _)| word.0 == RttMethod::Sampled);
        let histogram = sampled.next().and_then(|(_, text)| protocol::decode(text));
        histogram.filter(|h| !h.is_empty()).map_or(0.0, |h| {
            h.count_between(ns, h.high()) as f64 / h.len() as f64
        })
    }

    /// The figures of a method at the server.
    pub fn server_summary(&self, method: RttMethod) -> Option<LatencySummary> {
        let methods = &self.server.as_ref()?.methods;
        let found = methods.iter().find(|m| m.method.0 == method);
        found.map(MethodFigures::summary)
    }

    /// All rows, this end's first.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let row = |method, end, summary| Row {
            method,
            end,
            summary,
        };
        let mut rows = Vec::new();
        for method in RttMethod::ALL {
            let here = self.summary(method);
            rows.extend(here.map(|s| row(method, End::Client, s)));
            let asked = self.latencies(method).is_some();
            let there = self.server_summary(method).filter(|_| asked);
            rows.extend(there.map(|s| row(method, End::Server, s)));
        }
        rows
    }

    /// What netperf's selectors choose from.
    pub fn figures(&self, command_line: String) -> Figures {
        let conditions = &self.conditions;
        let ended = self.ended.clone().unwrap_or_default();
        let server = self.server.as_ref().and_then(|s| s.tcp.as_ref());
        Figures {
            latency: self.summary(RttMethod::Rr).unwrap_or_default(),
            elapsed_s: self.elapsed_ns as f64 / 1e9,
            protocol: conditions.transport,
            brand: conditions.brand.clone(),
            command_line,
            request_bytes: conditions.request_bytes,
            response_bytes: conditions.response_bytes,
            burst: conditions.burst.unwrap_or(1),
            wait_us: conditions.wait_us.unwrap_or(0),
            streams: conditions.streams,
            source: ended
                .source
                .map_or_else(String::new, |s| s.ip().to_string()),
            destination: conditions.address.clone(),
            port: conditions.port,
            local_retrans: ended.tcp.as_ref().map(|t| t.retrans),
            remote_retrans: server.map(|t| t.retrans),
            congestion_control: ended.congestion.unwrap_or_default(),
            mss: ended.tcp.map(|t| t.least.mss),
        }
    }

    /// What the verdicts are made of.
    pub fn evidence(&self) -> Evidence {
        let tcp = |of: Option<&protocol::TcpFigures>, rtt: Option<LatencySummary>| {
            of.map(|tcp| explain::TcpEvidence {
                rtt: rtt.unwrap_or_default(),
                min_rtt_ns: (tcp.minrtt_us * 1e3) as u64,
                segments: tcp.data_segs_out,
                retransmitted: tcp.retrans.saturating_sub(tcp.dsack_dups),
                duplicates: tcp.dsack_dups,
                retransmits: tcp.retransmits,
            })
        };
        let ended = self.ended.as_ref();
        let wait_ns = self.conditions.wait_us.map(|us| us * 1_000);
        let rr_tenth = |latencies: &RttLatencies| match wait_ns {
            Some(wait_ns) => latencies.by_time(0.1, wait_ns),
            // By a timetable a tenth of the requests is a tenth of the time.
            None => latencies.quantile(0.9),
        };
        Evidence {
            rr: self
                .summary(RttMethod::Rr)
                .map(|rr| self.without_handshake(rr)),
            rr_tenth_ns: self.latencies(RttMethod::Rr).and_then(rr_tenth),
            wait_ns,
            request_segments: self.request_segments(),
            one_segment: self.one_segment(),
            timeouts: ended.map_or(0, |e| e.timeouts),
            ping: self.echoes.map(|echoes| Ping {
                sent: echoes.transmitted,
                rtt: self.summary(RttMethod::Ping).unwrap_or_default(),
            }),
            echo_hole: self.echoes.map(|echoes| echoes.hole).unwrap_or_default(),
            client: tcp(
                ended.and_then(|e| e.tcp.as_ref()),
                self.summary(RttMethod::Tcp),
            ),
            server: tcp(
                self.server.as_ref().and_then(|s| s.tcp.as_ref()),
                self.server_summary(RttMethod::Tcp),
            ),
            server_app_ns: self.server.as_ref().and_then(|s| s.app_p50_ns),
        }
    }

    fn one_segment(&self) -> bool {
        let tcp = self.ended.as_ref().and_then(|e| e.tcp.as_ref());
        let c = &self.conditions;
        tcp.is_some_and(|tcp| c.request_bytes.max(c.response_bytes) <= tcp.least.mss)
    }

    /// Where each request has a connection of its own, the usual time behind the handshake:
    /// verdicts are of requests.
    fn without_handshake(&self, rr: LatencySummary) -> LatencySummary {
        let connect_ns = self.summary(RttMethod::Connect).map_or(0, |s| s.p50_ns);
        LatencySummary {
            p50_ns: rr.p50_ns.saturating_sub(connect_ns),
            ..rr
        }
    }

    /// The segments that the requests fill if each is written at once, with the line
    /// that opens a connection; `None` where TCP was not asked.
    fn request_segments(&self) -> Option<u64> {
        let tcp = self.ended.as_ref()?.tcp.as_ref()?;
        let requests = self.summary(RttMethod::Rr)?.count;
        let bytes = u64::from(self.conditions.request_bytes);
        let segments = |bytes: u64| bytes.div_ceil(u64::from(tcp.least.mss.max(1)));
        Some(match self.conditions.connection_each {
            true => requests * segments(bytes + protocol::CRR_LINE),
            false => requests * segments(bytes) + u64::from(tcp.streams),
        })
    }

    /// The verdicts, with the sentences that go with them.
    pub fn verdicts(&self) -> (Vec<Finding>, Vec<String>) {
        let evidence = self.evidence();
        let findings = explain::explain(&evidence);
        let mut sentences: Vec<String> = findings.iter().map(Finding::sentence).collect();
        sentences.extend(explain::closing(&evidence, &findings));
        (findings, sentences)
    }
}
