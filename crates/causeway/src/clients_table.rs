// SPDX-License-Identifier: Apache-2.0
//! Client latency, as tables.

use causeway_api::agent::{ClientsView, HistoryRow};
use causeway_report::table::TextTable;

/// One row per category.
pub(crate) fn table(view: &ClientsView) -> TextTable {
    let mut table = TextTable::new(&[
        "SERVICE",
        "CLIENTS",
        "DEVICE",
        ">SYNS",
        ">DROPPED",
        ">DONE",
        ">GAVE UP",
        ">STALLED",
        ">UNUSED",
        ">DROP %",
        ">RESPONSE s",
        ">LOST s",
        ">SERVER s",
        ">NETWORK s",
        ">REQUEST s",
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
            of.totals.unused.to_string(),
            drop_pct,
            seconds(of.exact.mean_s),
            seconds(of.exact.lost_s),
            seconds(of.exact.server_s),
            seconds(of.exact.network_s),
            seconds(of.server.mean_s),
            match of.flood_share > 0.0 {
                true => format!("{}, flood {:.0} %", of.drops, 100.0 * of.flood_share),
                false => of.drops.clone(),
            },
        ]);
    }
    table
}

/// One row per second and category.
pub(crate) fn history(rows: &[HistoryRow]) -> TextTable {
    let mut table = TextTable::new(&[
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
pub(crate) fn text(view: &ClientsView) -> String {
    let mix = view.mix.iter().map(|class| {
        format!(
            "{:.0} % {} with {} s of patience",
            100.0 * class.share,
            class.name,
            class.patience_s
        )
    });
    let mut queues = TextTable::new(&["LISTENER", ">QUEUED", ">LIMIT", "ACCEPT QUEUE"]);
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
    let lost = match view.hooks_missing {
        0 => String::new(),
        count => format!(" {count} hooks have lost their program: nothing is counted there."),
    };
    format!(
        "{}{queues}\nMeans of the last {} s; those who gave up are known {:.1} s late. Clients: {}.{lost}\n",
        table(view).to_text(),
        view.window_s,
        view.exact_settles_s,
        mix.collect::<Vec<_>>().join(", ")
    )
}
