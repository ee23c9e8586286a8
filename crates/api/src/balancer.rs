// SPDX-License-Identifier: Apache-2.0
//! The balancer's answers and the requests that it takes.

use std::net::{IpAddr, SocketAddr};

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Moment, VerdictView};
pub use crate::change::{Change, ChangeKind, Difference};

/// Answer of `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Interface that it balances on.
    pub interface: String,
    /// `native` or `generic`.
    pub mode: String,
    /// Whether it took over a running data plane.
    pub took_over: bool,
    /// Process id.
    pub pid: u32,
    /// When it started.
    pub started: Moment,
    /// Length of a control interval.
    pub interval_ns: u64,
    /// Configuration file.
    pub config_file: String,
    /// Why the last reload was refused, if it was; the state before it holds.
    pub last_reload_error: Option<String>,
    /// Whether it runs on the copy of the last good configuration, because the file was
    /// refused at the start.
    #[serde(default)]
    pub last_good: bool,
    /// What the last change, which is in force, has left undone; tried again until it is done.
    pub unfinished: Option<String>,
    /// Why settings made by hand would be lost with the daemon, if they would.
    pub state_error: Option<String>,
    /// Why no packet is forwarded, or why the data plane would be lost with the daemon, if so.
    pub data_plane_error: Option<String>,
    /// VIPs that are addresses of this host, where that does harm.
    #[serde(default)]
    pub held_vips: Vec<HeldVip>,
}

/// A VIP that is an address of the balancer's own host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeldVip {
    /// The VIP's address.
    #[schema(value_type = String)]
    pub address: IpAddr,
    /// The interface that has it.
    pub interface: String,
    /// Length of its prefix there.
    pub prefix_length: u8,
    /// What comes of it, and what mends it.
    pub text: String,
}

/// A setting made by hand that overrides the file; `GET /v1/overrides` has a
/// list of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Override {
    /// Name of the VIP.
    pub vip: String,
    /// Address of the real.
    pub real: String,
    /// `weight`, `drain` or `maintenance`.
    pub key: String,
    /// What holds.
    pub value: serde_json::Value,
    /// What the file says.
    pub file: serde_json::Value,
    /// When it was set, nanoseconds since 1970.
    pub since_ns: u64,
}

/// Answer of `GET /v1/stats`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// When it was read.
    pub at: Moment,
    /// Every exit of the data plane.
    pub verdicts: Vec<VerdictView>,
    /// The flow table; absent from older daemons.
    #[serde(default)]
    pub flow_table: FlowTableView,
    /// Reports of agents since the daemon's start, by what became of them.
    #[serde(default)]
    pub agent_reports: BTreeMap<String, u64>,
    /// Where packets with an outer header go, by its family.
    #[serde(default)]
    pub next_hop: Vec<NextHopView>,
    /// In how many control intervals all VIPs with traffic are looked at, each once.
    #[serde(default)]
    pub control_turns: usize,
    /// Which VIPs these are, where a part of them was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<PartView>,
    /// Every VIP, in the configuration's order.
    pub vips: Vec<VipView>,
}

/// Some VIPs out of many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartView {
    /// The place of the first among all.
    pub from: usize,
    /// How many VIPs there are.
    pub total: usize,
    /// The names of all that are not ready.
    pub not_ready: Vec<String>,
}

/// The next hop of a family of reals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextHopView {
    /// `ipv4` or `ipv6`: of the reals' addresses.
    pub family: String,
    /// `reachable`, `configured` (its MAC address is), `shared` (the other family's gateway),
    /// `silent` (packets go to the last MAC address), `none` (no route has a gateway),
    /// `no_source` (there is no outer source address, and packets are dropped).
    pub state: String,
    /// The gateway's address, if one is looked for.
    pub gateway: Option<String>,
    /// Where frames go.
    pub mac: Option<String>,
    /// Reals whose routes lead to other gateways, and whose packets go to this one.
    pub other_routes: usize,
    /// Reals on the balancer's own link, whose packets go to the gateway all the same.
    #[serde(default)]
    pub on_link: usize,
    /// Since when, CLOCK_MONOTONIC.
    pub since_monotonic_ns: u64,
}

impl NextHopView {
    /// Whether packets can be expected to arrive.
    pub fn is_up(&self) -> bool {
        !matches!(self.state.as_str(), "silent" | "none" | "no_source")
    }
}

/// What the flow table holds, and what became of flows since the daemon's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FlowTableView {
    /// Its slots, IPv4 and IPv6.
    pub slots: u64,
    /// Flows, by the last complete sweep.
    pub flows: u64,
    /// UDP flows that ended by silence.
    pub udp_idle: u64,
    /// UDP flows that were taken off reals that drain or are down.
    pub udp_drained: u64,
    /// TCP connections whose slots were offered after they had ended, or had never been
    /// completed.
    pub tcp_ended: u64,
    /// The same after a long silence.
    pub tcp_idle: u64,
}

impl FlowTableView {
    /// Flows that it is made for.
    pub fn capacity(&self) -> u64 {
        // It has five slots for each four flows, so that a bucket that is full is rare.
        self.slots * 4 / 5
    }

    /// Why flows ended, and how many did.
    pub fn ended(&self) -> [(&'static str, u64); 4] {
        [
            ("udp_idle", self.udp_idle),
            ("udp_drained", self.udp_drained),
            ("tcp_ended", self.tcp_ended),
            ("tcp_idle", self.tcp_idle),
        ]
    }
}

/// One VIP with its reals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VipView {
    /// Name.
    pub name: String,
    /// Index in the data plane.
    pub id: u32,
    /// Address.
    pub address: String,
    /// Port; 0 means every port.
    pub port: u16,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// How a new connection picks its real; the configuration's word.
    pub scheduler: String,
    /// Whether a client's connections go to one real: `client`, or `none`.
    #[serde(default)]
    pub affinity: String,
    /// What becomes of fragments: `drop`, or `forward`, by the client's address.
    #[serde(default)]
    pub fragments: String,
    /// What the scheduler takes for a real's load; absent if it looks at none.
    pub load: Option<String>,
    /// `ipip`, `gue` or `l2`.
    pub forwarding: String,
    /// `off`, `observe`, `equalise`, `watermark` or `watermark-paper`.
    pub control: String,
    /// What its controller is to steer by: `server`, `response`, `agent` or `client`.
    #[serde(default)]
    pub latency: String,
    /// Intervals steered by another one, because agents' reports or known paths were missing.
    #[serde(default)]
    pub latency_fallbacks: u64,
    /// Whether it is steered by latencies graded low, because there are hardly any better ones.
    #[serde(default)]
    pub takes_low: bool,
    /// Intervals in which it was.
    #[serde(default)]
    pub low_grade_intervals: u64,
    /// Reals that are up, or not probed; those that drain do not count.
    pub reals_up: usize,
    /// Reals that no probe has judged yet; they get connections.
    #[serde(default)]
    pub reals_unknown: usize,
    /// Reals that get new connections.
    #[serde(default)]
    pub reals_active: usize,
    /// Reals that must be up for the service to be offered.
    pub min_healthy: usize,
    /// Whether that many are.
    pub ready: bool,
    /// Whether its address is announced to routers.
    #[serde(default)]
    pub announced: bool,
    /// Packets since the VIP was made.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// What keeps its connections on their reals.
    pub cookie: CookieView,
    /// Most new flows per second and client prefix, if there is a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<f64>,
    /// Client prefixes that have reals of their own.
    #[serde(default)]
    pub sources: Vec<SourceView>,
    /// The state of discovery, if the VIP has `discover`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<DiscoveryView>,
    /// The reals, in the configuration's order.
    pub reals: Vec<RealView>,
}

/// The state of a VIP's discovery.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiscoveryView {
    /// The source: a DNS name, a file or a URL.
    pub origin: String,
    /// Reals that were discovered.
    pub found: usize,
    /// Reals that are no longer in the answers, and drain.
    pub draining: usize,
    /// When an answer came last, nanoseconds since 1970.
    pub last_answer_ns: Option<u64>,
    /// Why the last request failed.
    pub error: Option<String>,
    /// How many reals the held answer would remove.
    pub held: Option<usize>,
}

/// A VIP's cookies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CookieView {
    /// `none`, `timestamp`, `timestamp-light`, `tier` or `quic`.
    pub mode: String,
    /// Bits of a cookie; 0 without cookies.
    pub bits: u8,
    /// Of them the server's id.
    pub id_bits: u8,
    /// What became of its packets; empty without cookies.
    pub results: Vec<CookieResultView>,
}

/// What a packet's cookie, or the lack of one, led to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CookieResultView {
    /// Its word.
    pub result: String,
    /// `tx` or `drop`.
    pub action: String,
    /// Packets since the VIP was made.
    pub packets: u64,
}

/// One real of a VIP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RealView {
    /// Index in the data plane.
    pub id: u32,
    /// Address.
    pub address: String,
    /// Ethernet address, with forwarding `l2`.
    pub mac: Option<String>,
    /// Whether it is on the balancer's own link, and its packets go to the gateway all the same.
    #[serde(default)]
    pub on_link: bool,
    /// Its ids in cookies; the last one that was given is that of new connections.
    pub cookie_ids: Vec<u16>,
    /// `primary`, `backup`, or `sorry`.
    pub role: String,
    /// Whether it was discovered, and is not in the file.
    #[serde(default)]
    pub found: bool,
    /// `active`, `waiting` for its first probe, `standby` while it waits for others to fail, `drain`,
    /// `maintenance`, or `down` by its health.
    pub state: String,
    /// What its probes say; absent if there are none.
    pub health: Option<HealthView>,
    /// Configured weight.
    pub weight: u32,
    /// What it is meant to have now, before latency or load moves it: the configured weight times
    /// what it says of itself, or a part of that while it returns; 0 without new connections.
    #[serde(default)]
    pub meant_weight: f64,
    /// Weight in force, in the same units.
    pub effective_weight: f64,
    /// What the controller would set; differs from `effective_weight` when it
    /// only observes.
    pub wanted_weight: f64,
    /// Word for the controller's last decision; `off` without a controller.
    pub reason: String,
    /// The same as a sentence with figures.
    pub reason_text: String,
    /// Packets since the real was made.
    pub packets: u64,
    /// Bytes of their frames.
    pub bytes: u64,
    /// Connections that picked it.
    pub connections_opened: u64,
    /// Connections that the client closed.
    pub connections_closed: u64,
    /// Estimate of connections open now.
    pub connections_active: u64,
    /// Whether some may be open that are not in it: the flow table does not have all of them.
    #[serde(default)]
    pub connections_estimated: bool,
    /// Load by the VIP's measure, in its unit; absent if it is not known.
    pub load: Option<f64>,
    /// Requests.
    pub requests: u64,
    /// Response latency.
    pub latency: LatencyView,
    /// Time until it has its whole weight again, if it has returned recently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slow_start_s: Option<f64>,
    /// Latencies that were not counted because they are upper bounds.
    #[serde(default)]
    pub latency_bounds: u64,
    /// Of the latencies that were counted those graded low, as all of their connection are
    /// wrong in the same direction.
    #[serde(default)]
    pub latency_low: u64,
    /// Its agent's last report while it is valid; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentReportView>,
}

/// A server as a real of one VIP.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VipReal {
    /// Name of the VIP.
    pub vip: String,
    /// What it is there.
    #[serde(flatten)]
    pub real: RealView,
}

/// The last report of a real's agent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentReportView {
    /// Busy share of all its CPUs, 0 to 1.
    pub cpu: Option<f64>,
    /// Connections whose client waits for an answer.
    pub in_flight: Option<u32>,
    /// Mean time that the VIP's clients waited in the agent's last second, attempts that were
    /// lost before a connection included; absent if no transaction ended.
    pub client_us: Option<f64>,
    /// Transactions in this mean; absent if the agent does not report this VIP.
    pub client_transactions: Option<f64>,
    /// Age of its last report of client latency.
    pub client_age_s: Option<f64>,
}

/// What the probes of a real say.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HealthView {
    /// `unknown`, `up` or `down`.
    pub state: String,
    /// Since when, CLOCK_MONOTONIC.
    pub since_monotonic_ns: u64,
    /// What the last probe saw.
    pub reason: String,
    /// Probes that succeeded.
    pub succeeded: u64,
    /// Probes that failed.
    pub failed: u64,
    /// The weight that its last answer said, where the VIP goes by that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// How the other balancers vote, where there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub votes: Option<VotesView>,
}

/// Votes of the other balancers on a real.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VotesView {
    /// Those that find it up.
    pub up: usize,
    /// Those that find it down.
    pub down: usize,
    /// So many balancers are to probe it, this one perhaps among them.
    pub voters: usize,
    /// Whether this one is.
    pub probed_here: bool,
}

/// Response latency of a real; absent values had no samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencyView {
    /// Mean of the last epoch with samples.
    pub last_us: Option<f64>,
    /// Mean over the last ten seconds.
    pub mean_us: Option<f64>,
    /// Samples over the last ten seconds.
    pub samples: u64,
    /// Of these the ones that are graded low.
    #[serde(default)]
    pub low: u64,
    /// Latencies of the same time that are only upper bounds, and in no mean or percentile.
    #[serde(default)]
    pub bounds: u64,
    /// How far to trust them: `none`, `low`, `medium`, `high`.
    #[serde(default)]
    pub quality: String,
    /// One in this many connections is measured; 0: unknown, of an older daemon.
    #[serde(default)]
    pub one_in: u32,
    /// What the server added, mean over the last ten seconds' samples with a known path.
    pub server_us: Option<f64>,
    /// The path's round trip, mean over the same samples.
    pub path_us: Option<f64>,
    /// How many these are.
    #[serde(default)]
    pub path_samples: u64,
    /// Median of the last 10 to 20 s.
    pub p50_us: Option<f64>,
    /// 90th percentile of the last 10 to 20 s.
    pub p90_us: Option<f64>,
    /// 99th percentile of the last 10 to 20 s.
    pub p99_us: Option<f64>,
}

/// Answer of `GET /v1/history`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// Length of an epoch.
    pub epoch_ns: u64,
    /// One series per VIP and real.
    pub series: Vec<RealHistory>,
    /// Where the next page begins, CLOCK_MONOTONIC; null if this is the last.
    pub next_since_monotonic_ns: Option<u64>,
}

/// One real of one VIP over time, oldest epoch first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RealHistory {
    /// Name of the VIP.
    pub vip: String,
    /// Index of the real in the data plane.
    pub id: u32,
    /// Address of the real.
    pub real: String,
    /// The epochs.
    pub epochs: Vec<EpochView>,
}

/// Whether a real gets new connections, or why not: what [`RealView::state`] says. That is a text,
/// as a command may be older than the daemon that it asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RealState {
    /// It gets some.
    Active,
    /// It waits for its first probe, among others that serve.
    Waiting,
    /// It waits for others to fail.
    Standby,
    /// An operator wants it to get none.
    Drain,
    /// An operator works on it.
    Maintenance,
    /// Its health forbids it.
    Down,
}

impl RealState {
    const ALL: [Self; 6] = [
        Self::Active,
        Self::Waiting,
        Self::Standby,
        Self::Drain,
        Self::Maintenance,
        Self::Down,
    ];

    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Waiting => "waiting",
            Self::Standby => "standby",
            Self::Drain => "drain",
            Self::Maintenance => "maintenance",
            Self::Down => "down",
        }
    }

    /// That of a word, if this build knows it.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

impl RealView {
    /// Whether it is in one of these states.
    pub fn is(&self, states: &[RealState]) -> bool {
        RealState::of(&self.state).is_some_and(|state| states.contains(&state))
    }
}

/// How far to trust an estimate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// There is none.
    #[default]
    None,
    /// It rests on few samples, or on samples that are ambiguous.
    Low,
    /// Most are within 25 %.
    Medium,
    /// Most are within 10 %.
    High,
}

/// One epoch of one real.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EpochView {
    /// Start, CLOCK_REALTIME.
    pub start_ns: u64,
    /// Start, CLOCK_MONOTONIC.
    pub start_monotonic_ns: u64,
    /// Mean latency of the epoch's samples.
    pub estimate_us: Option<f64>,
    /// Samples; halves occur.
    pub samples: f64,
    /// Of these the ones graded low, and upper bounds, which are not among them.
    #[serde(default)]
    pub low: f64,
    /// How far to trust the mean.
    #[serde(default)]
    pub quality: Grade,
    /// Requests that went in.
    pub requests: u64,
    /// Connections that picked the real.
    pub opened: u64,
    /// Estimate of open connections at the end.
    pub active: u64,
    /// Configured weight; 0 while draining.
    pub configured: f64,
    /// Weight in force during the epoch.
    pub weight: f64,
}

/// Answer of `GET /v1/vips/{vip}/timeline`: the last quarter of an hour in steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Timeline {
    /// When it was read.
    pub at: Moment,
    /// Length of a step; one may be longer, after a stall.
    pub step_ns: u64,
    /// Where the buckets of latencies begin; each ends where the next begins.
    pub bucket_floors_us: Vec<f64>,
    /// The reals, in the configuration's order.
    pub reals: Vec<RealTimeline>,
}

/// One real over time, oldest step first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RealTimeline {
    /// Address of the real.
    pub real: String,
    /// The steps.
    pub steps: Vec<StepView>,
}

/// What happened to one real within a step; latencies are absent where it had no sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StepView {
    /// Its end.
    pub end: Moment,
    /// Median of the step's samples.
    pub p50_us: Option<f64>,
    /// 99th percentile.
    pub p99_us: Option<f64>,
    /// Mean.
    pub mean_us: Option<f64>,
    /// Samples.
    pub samples: u64,
    /// How far to trust them.
    pub quality: String,
    /// Samples by bucket: places in `bucket_floors_us`, and how many are there.
    pub buckets: Vec<(u8, u64)>,
    /// Requests that went in.
    pub requests: u64,
    /// Connections that picked the real.
    pub opened: u64,
    /// Estimate of open connections at the end.
    pub active: u64,
    /// Configured weight; 0 while draining.
    pub configured: f64,
    /// Weight in force at the end.
    pub weight: f64,
    /// Its state at the end.
    pub state: String,
}

/// Answer of `GET /v1/drops`: what was dropped in the last quarter of an hour, by name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Drops {
    /// Length of a step; one may be longer, after a stall.
    pub step_ns: u64,
    /// The steps, oldest first.
    pub steps: Vec<DropStep>,
}

/// What was dropped within a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DropStep {
    /// Its end.
    pub end: Moment,
    /// Packets by verdict; those of which there were none are left out.
    pub packets: BTreeMap<String, u64>,
}

/// Answer of `GET /v1/moves`: changes of weight, oldest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Moves {
    /// The last thousand or so.
    pub moves: Vec<Move>,
}

/// One change of one weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Move {
    /// When.
    pub at: Moment,
    /// Name of the VIP.
    pub vip: String,
    /// Address of the real.
    pub real: String,
    /// Weight before.
    pub before: f64,
    /// Weight after.
    pub after: f64,
    /// Latency that the decision rests on.
    pub latency_us: Option<f64>,
    /// Word for the reason.
    pub reason: String,
    /// The reason as a sentence.
    pub reason_text: String,
    /// Whether it was only computed (`control = "observe"`).
    pub observed: bool,
}

/// Answer of `GET /v1/vips/{vip}/reals/{real}/decisions`: why it has its weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Name of the VIP.
    pub vip: String,
    /// Address of the real.
    pub real: String,
    /// How the VIP picks.
    pub scheduler: String,
    /// What its controller does.
    pub control: String,
    /// The law that decides; absent without a controller.
    pub law: Option<String>,
    /// Configured weight.
    pub weight: u32,
    /// Weight in force.
    pub effective_weight: f64,
    /// Whether it gets new connections at all, half a sentence.
    pub state: String,
    /// Estimate of connections open now.
    pub connections_active: u64,
    /// What its controller is to steer by: `server`, `response`, `agent` or `client`.
    #[serde(default)]
    pub latency: String,
    /// Intervals of its VIP steered by another one, because agents' reports or known
    /// paths were missing.
    #[serde(default)]
    pub latency_fallbacks: u64,
    /// Whether its VIP is steered by latencies graded low, because there are hardly any better ones.
    #[serde(default)]
    pub takes_low: bool,
    /// What responses take, and of that the path and the server.
    #[serde(default)]
    pub measured: LatencyView,
    /// Age of the last report of client latency by this real's agent, seconds.
    pub report_age_s: Option<f64>,
    /// The last decisions, oldest first.
    pub decisions: Vec<DecisionView>,
}

/// Decisions in a row that had the same reason and changed nothing, or one that did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// When the first and the last of them were taken.
    pub first: Moment,
    /// See `first`.
    pub last: Moment,
    /// How many.
    pub intervals: u64,
    /// The law's word.
    pub law: String,
    /// Weight before the first of them.
    pub before: f64,
    /// Weight after the last.
    pub after: f64,
    /// The latency that they used: the last, as the other figures.
    pub latency_us: Option<f64>,
    /// Its kind: `server`, `response`, `agent` or `client`.
    #[serde(default)]
    pub latency_kind: String,
    /// The lowest of the pool.
    pub lowest_us: Option<f64>,
    /// Effective number of samples behind the latency.
    pub samples: f64,
    /// Standard error of the latency, percent.
    pub error_pct: Option<f64>,
    /// Requests per active connection and interval.
    pub freshness: f64,
    /// Word for the reason.
    pub reason: String,
    /// The reason as a sentence.
    pub reason_text: String,
    /// Whether they were only computed.
    pub observed: bool,
}

/// Body of `PATCH /v1/vips/{vip}/reals/{real}` and of `PATCH /v1/reals/{real}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RealChange {
    /// New configured weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Start or end draining.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<bool>,
    /// Start or end maintenance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<bool>,
}

/// Body of `PATCH /v1/vips/{vip}`: the keys of the file, with new values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VipChange {
    /// New scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Whether a client's connections go to one real.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<String>,
    /// New measure of load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<String>,
    /// New controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub control: Option<String>,
    /// Latency that steers it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<String>,
    /// Whether connections are remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow_table: Option<bool>,
    /// New limit of new flows; `{"rate": 0}` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<serde_json::Value>,
    /// All client prefixes that have reals of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Vec<serde_json::Value>>,
}

/// Client prefixes of a VIP that have reals of their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SourceView {
    /// Their prefixes.
    pub from: Vec<String>,
    /// The reals.
    pub reals: Vec<String>,
    /// `pool` or `drop`: what is done if none of these is usable.
    pub fallback: String,
    /// Whether these reals are for them alone.
    pub exclusive: bool,
    /// New flows of these prefixes, since the group was made.
    pub picked: u64,
}

/// What agents have reported, since the start.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
pub struct Notified {
    /// Connections that ended, whose slots are free by that.
    pub ended: u64,
    /// Connections of another balancer, which have slots here now.
    pub learned: u64,
    /// The same without a slot: it is in use, or their server is not here.
    pub not_learned: u64,
}

/// A connection and what it sends.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct HeavyConnection {
    /// The client.
    pub client: String,
    /// The VIP.
    pub vip: String,
    /// Number of the real.
    pub real_id: u32,
    /// Its address; empty if it is there no more.
    #[serde(default)]
    pub real: String,
    /// Packets per second.
    pub rate_pps: f64,
    /// Packets since its SYN, modulo 2^32.
    pub packets: u32,
    /// The client has ended it.
    pub closed: bool,
}

/// Body of `POST /v1/connections/move`.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveConnection {
    /// The client.
    #[schema(value_type = String)]
    pub client: SocketAddr,
    /// The VIP.
    #[schema(value_type = String)]
    pub vip: SocketAddr,
    /// The real that its packets go to from now on.
    #[schema(value_type = String)]
    pub real: IpAddr,
}

/// Connections that hold slots, and those that send most.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Connections {
    /// Slots in use.
    pub open: usize,
    /// SYNs that found no free slot and went by the flow table, since the start.
    pub refused: u64,
    /// What agents have reported.
    #[serde(flatten)]
    pub told: Notified,
    /// The senders, heaviest first.
    pub heaviest: Vec<HeavyConnection>,
}
