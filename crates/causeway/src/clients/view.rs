// SPDX-License-Identifier: Apache-2.0
//! What clients feel, as people and programs see it.

use causeway_core::certes::{Estimate, Parts};
use serde::{Deserialize, Serialize};

use super::history::Record;
use crate::daemon::clock::Moment;
use crate::output::Table;

/// Answer of an agent's `GET /v1/clients`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    #[serde(default)]
    pub recorded_s: Option<u64>,
    /// What the kernel sets aside for tables and rings, bytes.
    pub memory_bytes: u64,
    /// The clients as the model takes them now.
    pub mix: Vec<ClassView>,
    /// Share of the retries that were answered that fit no schedule.
    pub unknown_retries: f64,
    /// Each service, group of clients and device that anybody came to.
    pub categories: Vec<CategoryView>,
    /// Queues of the services' listeners.
    pub accept_queues: Vec<QueueView>,
}

/// Clients that behave alike.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassView {
    /// Its schedule.
    pub name: String,
    /// Its share.
    pub share: f64,
    /// How long they try, seconds.
    pub patience_s: f64,
}

/// One category: counts since it was first seen, means over the window.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CategoryView {
    /// Address and port; `others`.
    pub service: String,
    /// Their prefix; `all` where there is none, `others` beside some.
    pub clients: String,
    /// The interface.
    pub device: String,
    /// SYNs since the agent counts.
    pub totals: Totals,
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
}

/// Sums since the agent counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
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
    /// Connections that ended.
    pub completed: u64,
    /// Connections that their clients had and the server never served.
    pub stalled: u64,
    /// Attempts that their clients ended before they asked for anything.
    pub abandoned: u64,
    /// Clients that gave up before they were connected.
    pub gave_up: u64,
    /// Sums of times, seconds: lost before the connection, at the server, on the network.
    pub lost_s: f64,
    /// SYN-to-END.
    pub server_s: f64,
    /// Round trips.
    pub network_s: f64,
}

/// A mean in parts, over the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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

impl From<&Estimate> for EstimateView {
    fn from(estimate: &Estimate) -> Self {
        let part = |of: fn(&Parts) -> f64| estimate.parts().as_ref().map(of);
        Self {
            transactions: estimate.transactions(),
            gave_up: estimate.gave_up,
            mean_s: estimate.mean_s(),
            lost_s: part(|parts| parts.lost_connection_s),
            server_s: part(|parts| parts.server_s),
            network_s: part(|parts| parts.network_s),
        }
    }
}

/// One row per category.
pub fn table(view: &ClientsView) -> Table {
    let mut table = Table::new(&[
        "SERVICE",
        "CLIENTS",
        "DEVICE",
        ">SYNS",
        ">DROPPED",
        ">DONE",
        ">GAVE UP",
        ">STALLED",
        ">DROP %",
        ">EXACT s",
        ">MODEL s",
        ">LOST s",
        ">SERVER s",
        ">NETWORK s",
        "DROPS",
    ]);
    let seconds = |s: Option<f64>| s.map_or_else(|| "-".to_owned(), |s| format!("{s:.3}"));
    for of in &view.categories {
        let drop_pct = of
            .syn_drop_pct
            .map_or_else(|| "-".to_owned(), |pct| format!("{pct:.1}"));
        table.push(vec![
            of.service.clone(),
            of.clients.clone(),
            of.device.clone(),
            of.totals.offered.to_string(),
            of.totals
                .offered
                .saturating_sub(of.totals.accepted)
                .to_string(),
            of.totals.completed.to_string(),
            of.totals.gave_up.to_string(),
            of.totals.stalled.to_string(),
            drop_pct,
            seconds(of.exact.mean_s),
            seconds(of.model.mean_s),
            seconds(of.model.lost_s),
            seconds(of.model.server_s),
            seconds(of.model.network_s),
            match of.flood_share > 0.0 {
                true => format!("{}, flood {:.0} %", of.drops, 100.0 * of.flood_share),
                false => of.drops.clone(),
            },
        ]);
    }
    table
}

/// One second of one category, out of the history.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    /// Connections that ended.
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

impl From<&Record> for HistoryRow {
    fn from(of: &Record) -> Self {
        Self {
            unix_ms: of.unix_ms,
            second: of.second,
            category: of.category.clone(),
            offered: of.offered,
            accepted: of.accepted,
            completed: of.exact.completed,
            stalled: of.exact.stalled,
            gave_up: of.exact.gave_up,
            model_gave_up: of.model.gave_up,
            exact_s: of.exact.mean_s(),
            model_s: of.model.mean_s(),
            syn_to_end_s: of.exact.syn_to_end_mean_s(),
            flood_share: of.flood,
            drop_odds_ratio: of.odds_ratio,
        }
    }
}

/// One row per second and category.
pub fn history(rows: &[HistoryRow]) -> Table {
    let mut table = Table::new(&[
        ">UNIX MS",
        ">SECOND",
        "CATEGORY",
        ">SYNS",
        ">ACCEPTED",
        ">DONE",
        ">STALLED",
        ">GAVE UP",
        ">EXACT s",
        ">MODEL s",
        ">SYN-TO-END s",
    ]);
    let seconds = |s: Option<f64>| s.map_or_else(|| "-".to_owned(), |s| format!("{s:.4}"));
    for row in rows {
        table.push(vec![
            row.unix_ms.to_string(),
            row.second.to_string(),
            row.category.clone(),
            row.offered.to_string(),
            row.accepted.to_string(),
            row.completed.to_string(),
            row.stalled.to_string(),
            row.gave_up.to_string(),
            seconds(row.exact_s),
            seconds(row.model_s),
            seconds(row.syn_to_end_s),
        ]);
    }
    table
}

/// The table with what holds for all of it.
pub fn text(view: &ClientsView) -> String {
    let mix = view.mix.iter().map(|class| {
        format!(
            "{:.0} % {} with {} s of patience",
            100.0 * class.share,
            class.name,
            class.patience_s
        )
    });
    let mut queues = Table::new(&["LISTENER", ">QUEUED", ">LIMIT", "ACCEPT QUEUE"]);
    for queue in &view.accept_queues {
        queues.push(vec![
            queue.address.clone(),
            queue.length.to_string(),
            queue.limit.to_string(),
            queue.mode.clone(),
        ]);
    }
    let queues = match view.accept_queues.is_empty() {
        true => String::new(),
        false => format!("\n{}", queues.to_text()),
    };
    format!(
        "{}{queues}\nMeans of the last {} s; `exact` learns of those who gave up {:.1} s late. Clients: {}.\n",
        table(view).to_text(),
        view.window_s,
        view.exact_settles_s,
        mix.collect::<Vec<_>>().join(", ")
    )
}
