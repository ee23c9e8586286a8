// SPDX-License-Identifier: Apache-2.0
//! Client latency, as people and programs see it.

use causeway_api::agent::{EstimateView, HistoryRow, ServerTimeView};
use causeway_core::certes::{Estimate, Parts};

use super::history::Record;

/// An estimate in the API's form.
pub fn estimate(estimate: &Estimate) -> EstimateView {
    let part = |of: fn(&Parts) -> f64| estimate.parts().as_ref().map(of);
    EstimateView {
        transactions: estimate.transactions(),
        gave_up: estimate.gave_up,
        mean_s: estimate.mean_s(),
        lost_s: part(|parts| parts.lost_connection_s),
        server_s: part(|parts| parts.server_s),
        network_s: part(|parts| parts.network_s),
    }
}

/// What the server took, in the API's form.
pub fn server_time(exact: &Estimate) -> ServerTimeView {
    ServerTimeView {
        mean_s: exact.server_mean_s(),
        timed: exact.timed,
        overlapping: exact.overlapping,
    }
}

/// A second of the history in the API's form.
pub fn history_row(of: &Record) -> HistoryRow {
    HistoryRow {
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
