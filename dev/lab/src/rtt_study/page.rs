// SPDX-License-Identifier: Apache-2.0
//! The study's report and picture.

use causeway_report::chart::{Chart, Scale, Series};
use causeway_report::page::{figure, page};
use maud::{Markup, html};
use serde_json::Value;

use super::Study;
use super::judge::{Beyond, Interval, Lossy, Measured};
use super::output::cell;

/// A method's name, its colour, and what it measured in a row, microseconds.
type Curve<'a, R> = (&'a str, usize, fn(&R) -> f64);

fn chart<R>(title: &str, rows: &[R], wait_ms: fn(&R) -> f64, curves: Vec<Curve<'_, R>>) -> Chart {
    let series = curves.into_iter().map(|(name, colour, value)| {
        let points = rows.iter().map(|r| (wait_ms(r).max(0.0), value(r) * 1e3));
        Series::new(name, points).coloured(colour)
    });
    Chart::new(
        title,
        (
            Scale::Linear,
            "between a response and the next request (ms)",
        ),
        (Scale::Latency, "what the method reports"),
        series.collect(),
    )
}

/// Every method by interval: the picture of docs/design/latency-study.md.
pub(super) fn intervals(measured: &Measured) -> Chart {
    chart(
        "Medians. The server's TCP RTT, and the sampler with it, is the client's pause until the ACK timer; nobody waits for it.",
        &measured.intervals,
        |r: &Interval| r.wait_ms,
        vec![
            ("sampled at the server: the client's pause", 4, |r| {
                r.sampled_p50_ms.map_or(f64::NAN, |ms| ms * 1e3)
            }),
            ("TCP RTT at the server: the client's pause", 1, |r| {
                r.server_tcp_rtt_us
            }),
            (
                "causal (Causeway): response, pauses above 6 ms left out",
                3,
                |r| r.causal_us.unwrap_or(f64::NAN),
            ),
            ("rr: what the application waits for", 0, |r| r.rr_p50_us),
            ("TCP RTT at the client: network", 2, |r| r.client_tcp_rtt_us),
            ("ping: network", 5, |r| r.ping_p50_us.unwrap_or(f64::NAN)),
        ],
    )
    .marked(40.0, "ACK timer")
}

/// The same as a picture that says by itself what it shows.
pub(super) fn picture(measured: &Measured) -> String {
    let title = "One path, one moment: what each method calls latency while a client pauses";
    let chart = intervals(measured);
    Chart {
        title: title.to_owned(),
        ..chart
    }
    .file()
}

fn beyond(rows: &[Beyond]) -> Chart {
    chart(
        "Two-segment requests; streams are scaled to keep the packet rate.",
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
pub(super) fn render(study: &Study) -> String {
    let title = "What each latency number measures";
    let agree = study.verdicts.iter().filter(|v| v.agree).count();
    let m = &study.measured;
    let body = html! {
        h1 { (title) }
        p.lead { (agree) " of " (study.verdicts.len()) " expected shapes agree. Same path, same moment, one clock." }
        p.note {
            "After \u{201c}A Brief Look at Round Trip Time\u{201d} (Rick Jones, Google Cloud). " (settings(&study.settings))
        }
        @if m.intervals.len() > 1 {
            h2 { "Response/request interval" }
            (figure(&intervals(m)))
            (table(INTERVAL, m.intervals.iter().map(interval_cells)))
        }
        @if m.beyond.len() > 1 {
            h2 { "Beyond the stand-alone ACK timer" }
            (figure(&beyond(&m.beyond)))
            (table(BEYOND, m.beyond.iter().map(beyond_cells)))
        }
        @if !m.sizes.is_empty() {
            h2 { "Request sizes" }
            (table(BEYOND, m.sizes.iter().map(beyond_cells)))
        }
        @if !m.lossy.is_empty() {
            h2 { "A path that loses packets" }
            (table(LOSSY, m.lossy.iter().map(lossy_cells)))
        }
        h2 { "Verdicts" }
        div.scroll { table.stacked {
            tr { th { "verdict" } th.l { "curve" } th.l { "expected" } th.l { "measured" } }
            @for v in &study.verdicts {
                tr {
                    @if v.agree { td.good { "agree" } } @else { td.bad { "not" } }
                    td.l { b { (v.curve) } } td.l.wrap { (v.expected) } td.l.wrap { (v.measured) }
                }
            }
        } }
    };
    page(title, &body)
}

/// The settings as sentences.
fn settings(settings: &Value) -> String {
    let text = |key: &str| match &settings[key] {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let place = match settings["lab"].as_bool() {
        Some(true) => match settings["cpus"].as_array().map(Vec::as_slice) {
            Some([client, server]) => format!(
                "in network namespaces of one machine, the client on CPU {client}, the server on CPU {server}"
            ),
            _ => "in network namespaces of one machine".to_owned(),
        },
        _ => format!("to {}", text("host")),
    };
    let version = if settings["ipv6"] == true { 6 } else { 4 };
    format!(
        "Linux {}, {}, IPv{version}, {}; runs of {} s, of {} at each interval up to the timer the calmest. 1 packet in {} is sampled, and the sampler forgets a segment after {} ms. {} % of the packets are lost in one direction where loss is studied. Clock: {}.",
        text("kernel"),
        place,
        text("congestion"),
        text("seconds"),
        text("rounds"),
        text("sample"),
        text("sample_memory_ms"),
        text("loss_pct"),
        text("clock"),
    )
}

const INTERVAL: &[&str] = &[
    "interval, ms",
    "rr p50, us",
    "rr p99, us",
    "client TCP, us",
    "server TCP, us",
    "sampled, ms",
    "ping, us",
    "causal, us",
];
const BEYOND: &[&str] = &[
    "interval, ms",
    "streams",
    "request, B",
    "rr p50, us",
    "client TCP, us",
    "server TCP, us",
    "sampled, ms",
    "of the application, %",
    "values",
];
const LOSSY: &[&str] = &[
    "lost",
    "request, B",
    "rr p50, us",
    "rr max, ms",
    "client TCP max, ms",
    "sampled max, ms",
    "ping max, ms",
    "ping loss, %",
    "segments sent again",
];

fn interval_cells(r: &Interval) -> Vec<String> {
    let wait = if r.wait_ms < 0.0 {
        "none".to_owned()
    } else {
        format!("{:.0}", r.wait_ms)
    };
    vec![
        wait,
        cell(Some(r.rr_p50_us)),
        cell(Some(r.rr_p99_us)),
        cell(Some(r.client_tcp_rtt_us)),
        cell(Some(r.server_tcp_rtt_us)),
        cell(r.sampled_p50_ms),
        cell(r.ping_p50_us),
        cell(r.causal_us),
    ]
}

fn beyond_cells(r: &Beyond) -> Vec<String> {
    vec![
        format!("{:.0}", r.wait_ms),
        r.streams.to_string(),
        r.request_bytes.to_string(),
        cell(Some(r.rr_p50_us)),
        cell(Some(r.client_tcp_rtt_us)),
        cell(Some(r.server_tcp_rtt_us)),
        cell(r.sampled_p50_ms),
        format!("{:.0}", 100.0 * r.sampled_app_share),
        r.sampled_values.to_string(),
    ]
}

fn lossy_cells(r: &Lossy) -> Vec<String> {
    let ms = |us: Option<f64>| cell(us.map(|us| us / 1e3));
    vec![
        format!("{} % of {}", r.loss_pct, r.lost.as_str()),
        r.request_bytes.to_string(),
        cell(Some(r.rr_p50_us)),
        ms(Some(r.rr_max_us)),
        ms(Some(r.client_tcp_rtt_max_us)),
        ms(r.sampled_max_us),
        ms(r.ping_max_us),
        cell(Some(r.ping_loss_pct)),
        r.retransmitted.to_string(),
    ]
}

fn table(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Markup {
    html! {
        div.scroll { table {
            tr { @for heading in headings { th { (heading) } } }
            @for row in rows {
                tr { @for cell in row { td { (cell) } } }
            }
        } }
    }
}
