// SPDX-License-Identifier: Apache-2.0
//! The agent's answers.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::fleet::FleetPosition;
use super::{Moment, VerdictView};

/// Answer of an agent's `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentStatus {
    /// Version of the agent.
    pub version: String,
    /// Interface that it decapsulates on.
    pub interface: String,
    /// `native` or `generic`; `none` where it only measures.
    pub mode: String,
    /// Whether it took over a running data plane.
    pub took_over: bool,
    /// Process id.
    pub pid: u32,
    /// When it started.
    pub started: Moment,
    /// Configuration file.
    pub config_file: String,
    /// Why the last reload was refused, if it was; the state before it holds.
    pub last_reload_error: Option<String>,
    /// Whether it runs on the copy of the last good configuration, because the file was refused at
    /// the start.
    #[serde(default)]
    pub last_good: bool,
    /// Why the last good configuration would not outlive it, if so.
    #[serde(default)]
    pub state_error: Option<String>,
    /// What is wrong with the data plane's hold in the kernel, if something is: its interface
    /// is gone or renamed, or pins cannot be made again.
    pub data_plane_error: Option<String>,
    /// Why QUIC programs do not issue connection ids by the fleet's book, if they do not: what
    /// was received of it holds else, and is not acknowledged.
    pub quic_ids_error: Option<String>,
    /// Why the data plane goes by what it was told before this agent began, if it does: what was
    /// received of the fleet's book is lost, and nothing has come since.
    pub book_unheard: Option<String>,
    /// VIPs that this server does not hold: its kernel drops their packets.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub vips_missing: Vec<IpAddr>,
}

/// Answer of an agent's `GET /v1/stats`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AgentStats {
    /// When it was read.
    pub at: Moment,
    /// Tunnel addresses in force.
    #[schema(value_type = Vec<String>)]
    pub addresses: BTreeSet<IpAddr>,
    /// Every exit of the data plane.
    pub verdicts: Vec<VerdictView>,
    /// What was done with timestamps; empty without cookies.
    pub cookies: Vec<CookieEventView>,
    /// Client latency; `None` where it is not measured.
    pub clients: Option<ClientsView>,
    /// The load last reported to balancers; `None` if none has been.
    pub load: Option<LoadView>,
    /// What was received of the fleet's book; empty if none is followed.
    #[serde(default)]
    pub books: Vec<AgentBookView>,
}

/// The fleet's book as an agent goes by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentBookView {
    /// The server, as balancers know it.
    pub server: String,
    /// Which book it is.
    pub position: FleetPosition,
    /// The key of cookies that new connections get.
    pub key_issued: u64,
    /// The keys that are accepted.
    pub keys: Vec<u64>,
    /// The server's ids.
    pub ids: Vec<AgentIdView>,
    /// Where balancers receive its reports.
    pub balancers: Vec<String>,
}

/// A server's id in a VIP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgentIdView {
    /// Address, port and protocol.
    pub vip: String,
    /// The id.
    pub id: u16,
    /// Number of the configuration by which its QUIC programs issue connection ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quic_cid: Option<u8>,
}

/// A server's load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LoadView {
    /// Busy share of all CPUs, 0 to 1.
    pub cpu: f64,
    /// Connections whose client waits for an answer.
    pub in_flight: u32,
}

/// One thing that is done with the timestamp of a segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CookieEventView {
    /// Its word.
    pub event: String,
    /// Segments since the data plane was loaded; merged ones count once.
    pub segments: u64,
}

/// Answer of an agent's `GET /v1/clients`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientsView {
    /// When it was made.
    pub at: Moment,
    /// Length of a slot, seconds.
    pub slot_s: f64,
    /// What means are over: the seconds before `at`.
    pub window_s: f64,
    /// How late `exact` knows of clients that gave up, seconds.
    pub exact_settles_s: f64,
    /// The last second of the monotonic clock that is in the history; null without one.
    pub recorded_s: Option<u64>,
    /// Why nothing is written to the history now, if nothing is: it is kept and written later.
    pub history_error: Option<String>,
    /// Seconds that could not be kept so long: the history lacks them, since the agent started.
    #[serde(default)]
    pub history_lost_s: u64,
    /// What the kernel sets aside for tables and rings, bytes.
    pub memory_bytes: u64,
    /// The clients as the model takes them now.
    pub mix: Vec<ClassView>,
    /// Share of the retries that were answered that fit no schedule.
    pub unknown_retries: f64,
    /// Each service, group of clients and device that clients came to.
    pub categories: Vec<CategoryView>,
    /// Queues of the services' listeners.
    pub accept_queues: Vec<QueueView>,
    /// Hooks of interfaces that have no program now: what passes them is not counted.
    #[serde(default)]
    pub hooks_missing: u64,
    /// How often one was found without, since the agent started.
    #[serde(default)]
    pub hooks_lost: u64,
    /// The thresholds in force.
    #[serde(default)]
    pub thresholds: Vec<ThresholdView>,
}

/// Clients that behave alike.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassView {
    /// Its schedule.
    pub name: String,
    /// Its share.
    pub share: f64,
    /// How long they try, seconds.
    pub patience_s: f64,
}

/// One category: counts since it was first seen, means over the window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CategoryView {
    /// Address and port; `others`.
    pub service: String,
    /// Their prefix; `all` where there is none, `others` beside some.
    pub clients: String,
    /// The interface.
    pub device: String,
    /// SYNs since the agent counts.
    pub totals: ClientTotals,
    /// SYNs dropped in the window, percent of those that came.
    pub syn_drop_pct: Option<f64>,
    /// By the tracker, in the window.
    pub exact: EstimateView,
    /// By the model, in the window.
    pub model: EstimateView,
    /// The server's own view: mean SYN-to-END, seconds.
    pub syn_to_end_s: Option<f64>,
    /// `even`, `uneven` or `unknown`: whether retries are dropped like first SYNs.
    pub drops: String,
    /// Odds of a retry's drop over a first SYN's.
    pub drop_odds_ratio: Option<f64>,
    /// Share of packets that the network loses, one way.
    pub network_loss: f64,
    /// Share of first SYNs that are of a flood.
    pub flood_share: f64,
    /// SYNs that are expected as retries in the next second.
    pub forecast_retries: f64,
    /// How long transactions took, completed and stalled, since the kernel counts.
    #[serde(default)]
    pub responses: HistogramView,
    /// How long clients waited that gave up, since the agent counts.
    #[serde(default)]
    pub gave_up: HistogramView,
    /// What the server took, in the window.
    #[serde(default)]
    pub server: ServerTimeView,
}

/// What a server took for transactions, from the first packet of a request to its last data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServerTimeView {
    /// The mean, seconds.
    pub mean_s: Option<f64>,
    /// Transactions of which it is known.
    pub timed: f64,
    /// Those for which it is unknown: their clients asked before they had their answers.
    pub overlapping: f64,
}

/// Response times by bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistogramView {
    /// Upper bounds of all buckets but the last, seconds.
    pub bounds_s: Vec<f64>,
    /// Transactions of each bucket.
    pub counts: Vec<u64>,
    /// Of all together, seconds.
    pub sum_s: f64,
}

/// Sums since the agent counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientTotals {
    /// SYNs that came and had not been answered.
    pub offered: u64,
    /// Of those the ones that were answered.
    pub accepted: u64,
    /// SYNs answered with a RST.
    pub refused: u64,
    /// SYNs that had been answered.
    pub duplicates: u64,
    /// Clients whose first ACK came.
    pub established: u64,
    /// Transactions that ended with an answer.
    pub completed: u64,
    /// Of those the ones that began with a request on an open connection.
    #[serde(default)]
    pub later: u64,
    /// Connections that their clients had and the server never served.
    pub stalled: u64,
    /// Attempts that ended before their clients were connected.
    pub abandoned: u64,
    /// Connections that ended and on which nothing was asked.
    #[serde(default)]
    pub unused: u64,
    /// Clients that gave up before they were connected.
    pub gave_up: u64,
    /// Sums of times, seconds: lost before the connection, at the server, on the network.
    pub lost_s: f64,
    /// SYN-to-END.
    pub server_s: f64,
    /// Round trips.
    pub network_s: f64,
    /// Transactions of which it is known what the server took from the request on.
    #[serde(default)]
    pub timed: u64,
    /// That, seconds.
    #[serde(default)]
    pub timed_s: f64,
    /// Those for which it is unknown: their clients asked before they had their answers.
    #[serde(default)]
    pub overlapping: u64,
}

/// A mean in parts, over the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EstimateView {
    /// Transactions: completed, given up, stalled.
    pub transactions: f64,
    /// Of those the ones that were given up.
    pub gave_up: f64,
    /// Mean client response time, seconds.
    pub mean_s: Option<f64>,
    /// Lost before the connection.
    pub lost_s: Option<f64>,
    /// At the server.
    pub server_s: Option<f64>,
    /// On the network.
    pub network_s: Option<f64>,
}

/// The accept queue of a listener.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    /// Where it listens.
    pub address: String,
    /// Connections that wait in it.
    pub length: u32,
    /// How many may.
    pub limit: u32,
    /// `observe` or `manage`.
    pub mode: String,
}

/// One second of one category, out of the history.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryRow {
    /// Time of day of its begin, milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// The same on the machine's monotonic clock, seconds.
    pub second: u64,
    /// Service, clients and device.
    pub category: String,
    /// SYNs that came and had not been answered.
    pub offered: u64,
    /// Of those the ones that were.
    pub accepted: u64,
    /// Transactions that ended with an answer.
    pub completed: f64,
    /// Connections that were never served.
    pub stalled: f64,
    /// Clients that gave up, by the tracker.
    pub gave_up: f64,
    /// By the model.
    pub model_gave_up: f64,
    /// Mean response time by the tracker, seconds.
    pub exact_s: Option<f64>,
    /// By the model.
    pub model_s: Option<f64>,
    /// Mean SYN-to-END.
    pub syn_to_end_s: Option<f64>,
    /// Share of first SYNs that was taken for a flood.
    pub flood_share: f64,
    /// Odds of a retry's drop over a first SYN's; 0: unknown.
    pub drop_odds_ratio: f64,
}

/// Body of an agent's `POST /v1/clients/thresholds`: a response time of clients at which to tell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewThreshold {
    /// What events call it; `client-response-time` unless given.
    pub name: Option<String>,
    /// One of `services`, or `others`; each unless given.
    pub service: Option<String>,
    /// One of `prefixes`, or `others`; each unless given.
    pub clients: Option<String>,
    /// `mean`, or a percentile such as `p99`; `mean` unless given.
    pub statistic: Option<String>,
    /// It begins above this, seconds,
    pub above_s: f64,
    /// and ends below this; a fifth less unless given.
    pub below_s: Option<f64>,
    /// Each once it has held for so long; 5 s unless given.
    pub for_s: Option<f64>,
    /// The seconds that the statistic is of; 10 unless given.
    pub window_s: Option<f64>,
}

/// A threshold in force.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ThresholdView {
    /// Its id, for as long as the agent runs.
    pub id: u64,
    /// What events call it.
    pub name: String,
    /// Whether it is the file's; else it ends with the agent.
    pub from_file: bool,
    /// The service; null: each.
    pub service: Option<String>,
    /// The group of clients; null: each.
    pub clients: Option<String>,
    /// `mean` or a percentile.
    pub statistic: String,
    /// Seconds.
    pub above_s: f64,
    /// Seconds.
    pub below_s: f64,
    /// Seconds.
    pub for_s: f64,
    /// Seconds.
    pub window_s: f64,
    /// Where it holds or does not, as far as clients have come there.
    pub categories: Vec<WatchedCategory>,
}

/// What a threshold watches.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WatchedCategory {
    /// The service.
    pub service: String,
    /// The group of clients.
    pub clients: String,
    /// The interface.
    pub device: String,
    /// Whether it is exceeded.
    pub exceeded: bool,
    /// The statistic as last seen, seconds.
    pub value_s: Option<f64>,
}

/// A threshold is exceeded, or no more. The body of a webhook, and the standard input of a program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientEvent {
    /// Its number, which grows with each event, also from one agent to the next.
    pub id: u64,
    /// Name of the threshold.
    pub threshold: String,
    /// Its id.
    pub threshold_id: u64,
    /// `exceeded`; `recovered`; `removed`, of a threshold that went while it was exceeded.
    pub state: String,
    /// The service that it is about.
    pub service: String,
    /// The group of clients.
    pub clients: String,
    /// The interface.
    pub device: String,
    /// `mean` or a percentile.
    pub statistic: String,
    /// What that is, seconds.
    pub value_s: f64,
    /// What it was compared with, seconds.
    pub limit_s: f64,
    /// The seconds that it is of.
    pub window_s: f64,
    /// Mean client response time of the same, seconds.
    pub mean_s: f64,
    /// Time of day, milliseconds since the Unix epoch.
    pub unix_ms: u64,
}

/// One sentence, for logs and people.
impl fmt::Display for ClientEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value_s, limit_s) = (self.value_s, self.limit_s);
        write!(
            f,
            "{}: the {} client response time of {} ({} on {}) ",
            self.threshold, self.statistic, self.service, self.clients, self.device
        )?;
        match self.state.as_str() {
            "exceeded" => write!(f, "is {value_s:.3} s, above {limit_s:.3} s"),
            "recovered" => write!(f, "is {value_s:.3} s, below {limit_s:.3} s"),
            _ => write!(f, "was {value_s:.3} s, and is watched no more"),
        }
    }
}

/// Answer of an agent's `GET /v1/clients/events`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClientEvents {
    /// Those that were asked for, in order.
    pub events: Vec<ClientEvent>,
    /// What to ask for next, as `after`.
    pub last: u64,
    /// Whether there were more than are remembered.
    pub missed: bool,
}
