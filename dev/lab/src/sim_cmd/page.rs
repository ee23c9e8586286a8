// SPDX-License-Identifier: Apache-2.0
//! The report of `causeway-lab sim certes`: one HTML file, its plots inside.

use causeway_report::page;
use causeway_sim::certes::CertesMethod;
use maud::{Markup, html};

use super::certes::{Table, errors};
use super::figures::Figure;

const METHODS: [CertesMethod; 9] = CertesMethod::ALL;

/// The whole page.
pub(super) fn render(seed: u64, seconds: u32, tables: &[Table], figures: &[Figure]) -> String {
    let body = html! {
        h1 { "What clients lose before they are connected" }
        p.note { "The sixteen workloads of Certes, table II, in virtual time: " (seconds) " s each, seed " (seed) ". Figure 16 is the tables." }
        @for table in tables { (one_table(table)) }
        @for figure in figures {
            h2 { (figure.title) }
            (page::figure(&figure.chart))
        }
    };
    page::page(
        "Causeway: what clients lose before they are connected",
        &body,
    )
}

fn one_table(table: &Table) -> Markup {
    html! {
        h2 { "Errors of the mean, in percent: " (table.schedule.name()) " schedule" }
        div.scroll { table {
            tr {
                th { "workload" } th { "truth, s" } th { "SYNs dropped" } th { "gave up" } th { "drops" }
                @for method in METHODS { th { (method.name().replace('_', " ")) } }
            }
            @for row in &table.rows {
                tr {
                    td { (row.name) }
                    td { (format!("{:.2}", row.truth_mean_s)) }
                    td { (format!("{:.1} %", row.syn_drop_pct)) }
                    td { (format!("{:.1} %", row.gave_up_pct)) }
                    td { (row.confidence.as_str()) }
                    @for method in METHODS { td { (format!("{:+.1}", errors(row, method).0)) } }
                }
            }
        } }
        p.note { "drops: whether retries are dropped about as often as first SYNs (the model's hypothesis). model uses the odds and the network loss that the server measured, paper model does not; learned also knows the clients' patience from who came again." }
    }
}
