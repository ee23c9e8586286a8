// SPDX-License-Identifier: Apache-2.0
//! The report: one HTML page, its plots inside, no external request.

use std::io::{self, Write};

use causeway_core::estimate::Quality;
use causeway_core::flow::FlowKey;
use causeway_report::chart::{Chart, Scale, Series};
use causeway_report::page::{bare_figure, page};
use maud::{Markup, html};

use super::rows::{PERCENTILES, Style};
use super::table::{applies, by_group, latency};
use super::totals::{Total, Totals};

/// Groups that get pictures, those with the most samples; the table has them all.
const PICTURED: usize = 20;
/// Groups in the table.
const LISTED: usize = 1000;

/// What the page says of its input.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// File or interface.
    pub name: String,
    /// The closing line: packets, flows, what was skipped.
    pub summary: String,
}

/// Writes the page.
pub(crate) fn write(
    totals: &Totals,
    style: &Style,
    source: &Source,
    out: &mut impl Write,
) -> io::Result<()> {
    let title = format!("Latency of {}", source.name);
    let body = html! {
        h1 { (title) }
        p.note { (source.summary) }
        (listing(totals, style))
        (pictures(totals, style))
        (meanings(style))
    };
    out.write_all(page(&title, &body).as_bytes())
}

fn listing(totals: &Totals, style: &Style) -> Markup {
    let groups = totals.groups();
    let mut listed = groups.clone();
    if listed.len() > LISTED {
        listed.sort_by_key(|(_, _, total)| std::cmp::Reverse(total.tally.samples()));
        listed.truncate(LISTED);
        listed.sort_by_key(|(key, method, _)| (*key, *method));
    }
    let rest = totals.rest().map(|(_, total)| total.tally.samples());
    let rest: u64 = rest.sum();
    html! {
        h2 { "Over the whole input" }
        @if groups.is_empty() {
            p { "No flow gave an estimate." }
        } @else {
            div.scroll { table {
                tr {
                    @for name in style.grouping.head() { th.l { (name.to_lowercase()) } }
                    @if style.several() { th.l { "estimator" } }
                    th { "samples" } th { "mean" }
                    @for (_, name, _) in PERCENTILES { th { (name.to_lowercase()) } }
                    th { "W" } th.l { "quality" }
                }
                @for (key, method, total) in &listed { (line(style, key, *method, total)) }
            } }
            @if groups.len() > LISTED {
                p.note { "The " (LISTED) " of " (groups.len()) " lines with the most samples; `-o csv` has them all." }
            }
            @if rest > 0 {
                p.note { (rest) " samples are of others, beyond `--max-flows`." }
            }
            p.note {
                "A percentile needs one sample beyond it. W is the number of requests that a client keeps "
                "outstanding at most, as far as the estimator infers it. Quality says how far to trust a mean: "
                "none, low (too few samples, too fast, or many that are bounds), medium, high."
            }
        }
    }
}

fn line(style: &Style, key: &FlowKey, method: u8, total: &Total) -> Markup {
    let confidence = total.tally.confidence();
    let trust = match confidence.quality {
        Quality::None => "dim",
        Quality::Low => "bad",
        Quality::Medium | Quality::High => "",
    };
    html! {
        tr {
            @for cell in style.grouping.cells(key) { td.l { (cell) } }
            @if style.several() { td.l { (style.label(method).name) } }
            td { (confidence.samples) } td { (latency(total.tally.mean_ns())) }
            @for (share, ..) in PERCENTILES {
                td { (latency(total.quantile(share).map(|ns| ns as f64))) }
            }
            td { @if let Some(window) = confidence.window { (window) } }
            td.l.(trust) { (confidence.quality) }
        }
    }
}

fn pictures(totals: &Totals, style: &Style) -> Markup {
    let groups = totals.groups();
    let mut cards: Vec<_> = by_group(&groups).collect();
    let weight = |lines: &[(FlowKey, u8, &Total)]| -> u64 {
        lines
            .iter()
            .map(|line| line.2.tally.samples())
            .max()
            .unwrap_or(0)
    };
    let count = cards.len();
    cards.sort_by_key(|(_, lines)| std::cmp::Reverse(weight(lines)));
    cards.truncate(PICTURED);
    html! {
        @if !cards.is_empty() { h2 { "Distributions and course" } }
        @if count > PICTURED {
            p.note { "The " (PICTURED) " of " (count) " with the most samples." }
        }
        @for (key, lines) in cards { (card(style, &key, lines)) }
    }
}

fn card(style: &Style, key: &FlowKey, lines: &[(FlowKey, u8, &Total)]) -> Markup {
    let name = style.grouping.cells(key).join("  ");
    let silent: Vec<&str> = (0..style.estimators.len() as u8)
        .filter(|method| applies(style, *method, key) && lines.iter().all(|line| line.1 != *method))
        .map(|method| style.label(method).name)
        .collect();
    let distribution = distribution(style, lines);
    html! {
        div.card {
            h3 { (name) }
            div.grid { (bare_figure(&distribution)) (bare_figure(&course(style, lines))) }
            div.keys {
                (distribution.keys())
                @if !silent.is_empty() { span.dim { "none: " (silent.join(", ")) } }
            }
        }
    }
}

fn distribution(style: &Style, lines: &[(FlowKey, u8, &Total)]) -> Chart {
    let curve = |&(_, method, total): &(FlowKey, u8, &Total)| {
        let all = total.latencies.count() as f64;
        let least = total.latencies.buckets().next();
        let mut points: Vec<_> = least.map(|b| (b.from_ns as f64, 0.0)).into_iter().collect();
        let mut seen = 0.0;
        for bucket in total.latencies.buckets() {
            seen += bucket.count as f64;
            points.push((bucket.middle_ns() as f64, seen / all));
        }
        Series::new(style.label(method).name, points).coloured(method.into())
    };
    Chart::new(
        "Share of samples up to a latency",
        (Scale::Latency, "latency"),
        (Scale::Share, "share of samples"),
        lines.iter().map(curve).collect(),
    )
}

fn course(style: &Style, lines: &[(FlowKey, u8, &Total)]) -> Chart {
    let starts = lines
        .iter()
        .filter_map(|line| Some(line.2.series.points().next()?.0));
    let start_ns = starts.min().unwrap_or(0);
    let curve = |&(_, method, total): &(FlowKey, u8, &Total)| {
        let points = total.series.points();
        let points = points.map(|(at_ns, mean_ns)| ((at_ns - start_ns) as f64 / 1e9, mean_ns));
        Series::new(style.label(method).name, points).coloured(method.into())
    };
    Chart::new(
        "Mean of each epoch",
        (Scale::Linear, "seconds since the first estimate"),
        (Scale::Latency, "mean latency"),
        lines.iter().map(curve).collect(),
    )
}

fn meanings(style: &Style) -> Markup {
    html! {
        h2 { "What was measured" }
        div.scroll { table {
            tr { th.l { "estimator" } th.l { "sees" } th.l { "of" } th.l { "measures" } }
            @for label in &style.estimators {
                tr {
                    td.l { (label.name) } td.l { (label.needs) } td.l { (label.protocol) }
                    td.l.wrap { (label.measures) }
                }
            }
        } }
    }
}
