// SPDX-License-Identifier: Apache-2.0
//! A run's report: one HTML file, its curves inside, no external request.

use causeway_core::rtt::Method;
use causeway_core::rtt::explain::time;
use causeway_report::chart::{Along, Chart, Scale, Series};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::result::{Outcome, Row};

/// Style of every page of `causeway rtt`.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--dim:#666;--paper:#fbfbfa;--line:#ddd;--good:#00795a;--bad:#b33a00}\
@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--dim:#a8a8a8;--paper:#161718;--line:#3a3a3a;--good:#4fd1a5;--bad:#ff9a66}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:64rem;margin:0 auto;padding:1.5rem 1rem 4rem}\
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .5rem}\
.lead{font-size:1.1rem}.note{color:var(--dim);font-size:.9rem}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}\
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}\
th:first-child,td:first-child,.text{text-align:left}th{font-weight:600}\
.scroll{overflow-x:auto}\
figure{margin:.5rem 0;background:#fff;border:1px solid var(--line);border-radius:6px;padding:.3rem}\
figure svg{display:block;min-width:34rem}figure{overflow-x:auto}\
figcaption{color:#444;font-size:.85rem;padding:.2rem .6rem}\
.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}\
@media(max-width:40rem){.cards tr:first-child{display:none}.cards tr{display:block;padding:.5rem 0;border-bottom:1px solid var(--line)}\
.cards td{display:block;text-align:left;border:0;padding:.1rem 0}}";

/// A whole page.
pub fn page(title: &str, body: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    }
    .into_string()
}

/// A chart with its caption.
pub fn figure(caption: &str, chart: &Chart) -> Markup {
    html! { figure { (PreEscaped(chart.svg())) figcaption { (caption) } } }
}

/// The report of one run.
pub fn render(outcome: &Outcome) -> String {
    let c = &outcome.conditions;
    let title = format!("Latency to {} by every method", c.host);
    let body = html! {
        h1 { (title) }
        p.note {
            (c.transport) " to " (c.address) " port " (c.port) ", " (c.request_bytes) " B requests, "
            (c.response_bytes) " B responses, " (c.streams) " stream(s), "
            (format!("{:.1} s; ", outcome.elapsed_ns as f64 / 1e9)) (c.loop_text()) "."
        }
        @for sentence in outcome.verdicts().1 { p.lead { (sentence) } }
        (over_time(outcome))
        (distribution(outcome))
        (figures(&outcome.rows()))
        p.note {
            "Clock: " (c.clock) " of " (c.busy_us) " us. Linux " (c.kernel)
            @if let Some(kernel) = &c.server_kernel { " here, " (kernel) " at the server" } "."
        }
    };
    page(&title, &body)
}

fn over_time(outcome: &Outcome) -> Markup {
    let methods: Vec<Method> = outcome.methods.iter().map(|(m, _)| *m).collect();
    let mut series = Vec::new();
    for (colour, method) in methods.iter().enumerate() {
        let of = |value: fn(&causeway_core::rtt::Summary) -> u64| {
            let points = outcome.points.iter().filter(|p| p.method == *method);
            points
                .map(|p| (p.at_s, value(&p.summary) as f64 / 1e3))
                .collect::<Vec<_>>()
        };
        let medians = of(|s| s.p50_ns);
        if medians.len() < 2 {
            continue;
        }
        series.push(Series {
            name: format!("{method} p50"),
            points: medians,
            faint: false,
            colour,
        });
        if matches!(method, Method::Rr | Method::Ping) {
            series.push(Series {
                name: format!("{method} p99"),
                points: of(|s| s.p99_ns),
                faint: true,
                colour,
            });
        }
    }
    if series.is_empty() {
        return html! {};
    }
    let chart = Chart {
        x_label: "time since the start (s)".into(),
        x: Along::Number,
        y_label: "latency (us)".into(),
        y_scale: Scale::Log,
        marker: None,
        series,
        width: 960,
        height: 340,
    };
    html! {
        h2 { "Interval by interval" }
        (figure("Median of each interval; faint: 99th percentile. One clock, one path, at once.", &chart))
    }
}

/// Latency by nines.
fn distribution(outcome: &Outcome) -> Markup {
    let curve = |(colour, (method, latencies)): (usize, &(Method, _))| {
        let latencies: &causeway_core::rtt::Latencies = latencies;
        // As many nines as there are values for.
        let nines = (latencies.count() as f64).log10();
        let steps = (0..=100).map(|i| f64::from(i) * 0.05);
        let points = steps.take_while(|x| *x <= nines).filter_map(|x| {
            let ns = latencies.quantile(1.0 - 10f64.powf(-x))?;
            Some((x, ns as f64 / 1e3))
        });
        Series {
            name: method.to_string(),
            points: points.collect(),
            faint: false,
            colour,
        }
    };
    let series: Vec<Series> = outcome
        .methods
        .iter()
        .enumerate()
        .map(curve)
        .filter(|s| s.points.len() > 2)
        .collect();
    if series.is_empty() {
        return html! {};
    }
    let chart = Chart {
        x_label: "share of the values".into(),
        x: Along::Nines,
        y_label: "latency (us)".into(),
        y_scale: Scale::Log,
        marker: None,
        series,
        width: 960,
        height: 340,
    };
    html! {
        h2 { "Distribution" }
        (figure("How much is at most how slow.", &chart))
    }
}

fn figures(rows: &[Row]) -> Markup {
    html! {
        h2 { "Figures" }
        div.scroll { table {
            tr {
                th { "method" } th.text { "end" } th { "count" } th { "min" } th { "mean" } th { "p50" }
                th { "p90" } th { "p99" } th { "max" } th.text { "what it times" }
            }
            @for row in rows {
                @let s = row.summary;
                tr {
                    td { (row.method) } td.text { (row.end.as_str()) } td { (s.count) }
                    td { (time(s.min_ns)) } td { (time(s.mean_ns as u64)) } td { (time(s.p50_ns)) }
                    td { (time(s.p90_ns)) } td { (time(s.p99_ns)) } td { (time(s.max_ns)) }
                    td.text { (row.method.meaning()) }
                }
            }
        } }
    }
}
