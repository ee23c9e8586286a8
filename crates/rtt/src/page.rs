// SPDX-License-Identifier: Apache-2.0
//! A run's report: one HTML file, its curves inside, no external request.

use causeway_core::rtt::explain::time;
use causeway_core::rtt::{LatencySummary, RttLatencies, RttMethod};
use causeway_report::chart::{Chart, Scale, Series};
use causeway_report::page::{figure, page};
use maud::{Markup, html};

use super::result::{Row, RttResult};

/// The report of one run.
pub fn render(outcome: &RttResult) -> String {
    let c = &outcome.conditions;
    let title = format!("Latency to {} by every method", c.host);
    let body = html! {
        h1 { (title) }
        p.note {
            (c.transport) " to " (c.address) " port " (c.port) ", " (c.request_bytes) " B requests, "
            (c.response_bytes) " B responses, " (c.streams) " stream(s), "
            @if c.connection_each { "a connection for each request, " }
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

fn over_time(outcome: &RttResult) -> Markup {
    let mut series = Vec::new();
    for (colour, (method, _)) in outcome.methods.iter().enumerate() {
        let of = |name: &str, value: fn(&LatencySummary) -> u64| {
            let points = outcome.points.iter().filter(|p| p.method == *method);
            let points = points.map(|p| (p.at_s, value(&p.summary) as f64));
            Series::new(format!("{method} {name}"), points).coloured(colour)
        };
        let medians = of("p50", |s| s.p50_ns);
        if medians.points.len() < 2 {
            continue;
        }
        series.push(medians);
        if matches!(method, RttMethod::Rr | RttMethod::Ping) {
            series.push(of("p99", |s| s.p99_ns).faint());
        }
    }
    let chart = Chart::new(
        "Median of each interval; faint: 99th percentile. One clock, one path, at once.",
        (Scale::Linear, "time since the start (s)"),
        (Scale::Latency, "latency"),
        series,
    );
    html! {
        @if !chart.series.is_empty() { h2 { "Interval by interval" } (figure(&chart)) }
    }
}

/// Latency by nines.
fn distribution(outcome: &RttResult) -> Markup {
    let curve = |(colour, (method, latencies)): (usize, &(RttMethod, RttLatencies))| {
        // As many nines as there are values for.
        let nines = (latencies.count() as f64).log10();
        let steps = (0..=100).map(|i| f64::from(i) * 0.05);
        let points = steps.take_while(|x| *x <= nines).filter_map(|x| {
            let ns = latencies.quantile(1.0 - 10f64.powf(-x))?;
            Some((x, ns as f64))
        });
        Series::new(method.to_string(), points).coloured(colour)
    };
    let series = outcome.methods.iter().enumerate().map(curve);
    let chart = Chart::new(
        "How much is at most how slow.",
        (Scale::Nines, "share of the values"),
        (Scale::Latency, "latency"),
        series.filter(|s| s.points.len() > 2).collect(),
    );
    html! {
        @if !chart.series.is_empty() { h2 { "Distribution" } (figure(&chart)) }
    }
}

fn figures(rows: &[Row]) -> Markup {
    html! {
        h2 { "Figures" }
        div.scroll { table {
            tr {
                th { "method" } th.l { "end" } th { "count" } th { "min" } th { "mean" } th { "p50" }
                th { "p90" } th { "p99" } th { "max" } th.l { "what it times" }
            }
            @for row in rows {
                @let s = row.summary;
                tr {
                    td { (row.method) } td.l { (row.end.as_str()) } td { (s.count) }
                    td { (time(s.min_ns)) } td { (time(s.mean_ns as u64)) } td { (time(s.p50_ns)) }
                    td { (time(s.p90_ns)) } td { (time(s.p99_ns)) } td { (time(s.max_ns)) }
                    td.l.wrap { (row.method.meaning()) }
                }
            }
        } }
    }
}
