// SPDX-License-Identifier: Apache-2.0
//! The study's report and picture.

use causeway_core::rtt::study::{Beyond, Interval, Measured};
use maud::{Markup, html};

use super::page::{figure, page};
use super::study::{Study, cell};
use crate::report::chart::{Along, Chart, Scale, Series};

/// A method's name, its colour, and what it measured in a row.
type Curve<'a, R> = (&'a str, usize, fn(&R) -> f64);

fn chart<R>(rows: &[R], wait_ms: fn(&R) -> f64, curves: Vec<Curve<'_, R>>) -> Chart {
    let series = curves.into_iter().map(|(name, colour, value)| Series {
        name: name.to_owned(),
        points: rows
            .iter()
            .map(|r| (wait_ms(r).max(0.0), value(r)))
            .collect(),
        faint: false,
        colour,
    });
    Chart {
        x_label: "between a response and the next request (ms)".into(),
        x: Along::Number,
        y_label: "what the method reports (us)".into(),
        y_scale: Scale::Log,
        marker: None,
        series: series.collect(),
        width: 960,
        height: 430,
    }
}

/// Every method by interval: the picture of docs/methods.md.
pub fn intervals(measured: &Measured) -> Chart {
    let mut chart = chart(
        &measured.intervals,
        |r: &Interval| r.wait_ms,
        vec![
            ("TCP RTT at the server", 1, |r| r.server_tcp_rtt_us),
            ("sampled at the server", 4, |r| {
                r.sampled_p50_ms.map_or(f64::NAN, |ms| ms * 1e3)
            }),
            ("causal (Causeway)", 3, |r| r.causal_us.unwrap_or(f64::NAN)),
            ("rr: what the application waits", 0, |r| r.rr_p50_us),
            ("TCP RTT at the client", 2, |r| r.client_tcp_rtt_us),
            ("ping", 5, |r| r.ping_p50_us.unwrap_or(f64::NAN)),
        ],
    );
    chart.marker = Some((40.0, "ACK timer".into()));
    chart
}

fn beyond(rows: &[Beyond]) -> Chart {
    chart(
        rows,
        |r| r.wait_ms,
        vec![
            ("sampled at the server", 4, |r| {
                r.sampled_p50_ms.map_or(f64::NAN, |ms| ms * 1e3)
            }),
            ("TCP RTT at the server", 1, |r| r.server_tcp_rtt_us),
            ("rr", 0, |r| r.rr_p50_us),
            ("TCP RTT at the client", 2, |r| r.client_tcp_rtt_us),
        ],
    )
}

/// The whole report.
pub fn render(study: &Study) -> String {
    let title = "What each latency number measures";
    let agree = study.verdicts.iter().filter(|v| v.agree).count();
    let body = html! {
        h1 { (title) }
        p.lead { (agree) " of " (study.verdicts.len()) " expected shapes agree. Same path, same moment, one clock." }
        p.note {
            "After \u{201c}A Brief Look at Round Trip Time\u{201d} (Rick Jones, Google Cloud). Settings: "
            (study.settings.to_string())
        }
        @if study.measured.intervals.len() > 1 {
            h2 { "Response/request interval" }
            (figure("Medians. The server's TCP RTT, and the sampler with it, is the client's pause until the ACK timer; nobody waits for it.", &intervals(&study.measured)))
            (interval_table(&study.measured.intervals))
        }
        @if study.measured.beyond.len() > 1 {
            h2 { "Beyond the stand-alone ACK timer" }
            (figure("Two-segment requests; streams are scaled to keep the packet rate.", &beyond(&study.measured.beyond)))
        }
        h2 { "Verdicts" }
        div.scroll { table {
            tr { th { "curve" } th.text { "expected" } th.text { "measured" } th.text { "verdict" } }
            @for v in &study.verdicts {
                tr {
                    td { (v.curve) } td.text { (v.expected) } td.text { (v.measured) }
                    @if v.agree { td.text.good { "agree" } } @else { td.text.bad { "not" } }
                }
            }
        } }
    };
    page(title, &body)
}

fn interval_table(rows: &[Interval]) -> Markup {
    html! {
        div.scroll { table {
            tr {
                th { "interval, ms" } th { "rr p50, us" } th { "rr p99, us" } th { "client TCP, us" }
                th { "server TCP, us" } th { "sampled, ms" } th { "ping, us" } th { "causal, us" }
            }
            @for r in rows {
                tr {
                    td { (format!("{:.0}", r.wait_ms)) }
                    td { (cell(Some(r.rr_p50_us))) } td { (cell(Some(r.rr_p99_us))) }
                    td { (cell(Some(r.client_tcp_rtt_us))) } td { (cell(Some(r.server_tcp_rtt_us))) }
                    td { (cell(r.sampled_p50_ms)) } td { (cell(r.ping_p50_us)) } td { (cell(r.causal_us)) }
                }
            }
        } }
    }
}
