// SPDX-License-Identifier: Apache-2.0
//! Client latency, as tables.

use causeway_api::agent::{ClientsView, HistoryRow};
use causeway_report::table::{TextTable, ms};

fn of_seconds(s: Option<f64>) -> String {
    ms(s.map(|s| s * 1e6))
}

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
        ">RESPONSE MS",
        ">LOST MS",
        ">SERVER MS",
        ">NETWORK MS",
        ">REQUEST MS",
        "DROPS",
    ]);
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
            of_seconds(of.exact.mean_s),
            of_seconds(of.exact.lost_s),
            of_seconds(of.exact.server_s),
            of_seconds(of.exact.network_s),
            of_seconds(of.server.mean_s),
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
        ">EXACT MS",
        ">MODEL MS",
        ">SYN-TO-END MS",
    ]);
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
            of_seconds(row.exact_s),
            of_seconds(row.model_s),
            of_seconds(row.syn_to_end_s),
        ]);
    }
    table
}

/// The table with what holds for all of it; what is assumed only if `all`.
pub(crate) fn text(view: &ClientsView, all: bool) -> String {
    let mut text = table(view).to_text();
    let mut queues = TextTable::new(&["LISTENER", ">QUEUED", ">LIMIT", "ACCEPT QUEUE"]);
    for queue in &view.accept_queues {
        queues.push(vec![
            queue.address.clone(),
            queue.length.to_string(),
            queue.limit.to_string(),
            queue.mode.clone(),
        ]);
    }
    if !view.accept_queues.is_empty() {
        text += &format!("\n{}", queues.to_text());
    }
    text += &format!("\nMeans of the last {} s.\n", view.window_s);
    if view.hooks_missing > 0 {
        text += &format!(
            "{} hooks have lost their program: nothing is counted there.\n",
            view.hooks_missing
        );
    }
    if all {
        let mix = view.mix.iter().map(|class| {
            format!(
                "{:.0} % retry as {} and give up after {} s",
                100.0 * class.share,
                class.name,
                class.patience_s
            )
        });
        text += &format!(
            "Assumed until learned: of the clients {}. Who gives up is counted {:.1} s later.\n",
            mix.collect::<Vec<_>>().join(", "),
            view.exact_settles_s
        );
    }
    text
}
