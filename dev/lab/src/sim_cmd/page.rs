// SPDX-License-Identifier: Apache-2.0
//! The report of `causeway-lab sim certes`: one HTML file, its plots inside.

use causeway_sim::certes::Method;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::certes::{Table, errors};
use super::figures::Figure;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--dim:#666;--paper:#fbfbfa;--line:#ddd}\
@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--dim:#a8a8a8;--paper:#161718;--line:#3a3a3a}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:78rem;margin:0 auto;padding:1.5rem 1rem 4rem}\
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .5rem}\
.note{color:var(--dim);font-size:.9rem}.scroll{overflow-x:auto}\
table{border-collapse:collapse;width:100%;font-size:.85rem;font-variant-numeric:tabular-nums}\
th,td{white-space:nowrap;padding:.25rem .5rem;text-align:right;border-bottom:1px solid var(--line)}\
th:first-child,td:first-child{text-align:left}\
figure{margin:.5rem 0;background:#fff;border:1px solid var(--line);border-radius:6px;padding:.3rem}";

const METHODS: [Method; 9] = Method::ALL;

/// The whole page.
pub fn render(seed: u64, seconds: u32, tables: &[Table], figures: &[Figure]) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                title { "Causeway: what clients lose before they are connected" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "What clients lose before they are connected" }
                p.note { "The sixteen workloads of Certes, table II, in virtual time: " (seconds) " s each, seed " (seed) ". Figure 16 is the tables." }
                @for table in tables { (one_table(table)) }
                @for figure in figures {
                    h2 { (figure.title) }
                    figure { (PreEscaped(figure.chart.svg())) }
                    p.note { (figure.caption) }
                }
            }
        }
    }
    .into_string()
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
