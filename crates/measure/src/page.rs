// SPDX-License-Identifier: Apache-2.0
//! The report: one HTML page, its plots inside, no external request.

use std::io::{self, Write};

use causeway_core::flow::FlowKey;
use causeway_report::plot::{self, Line, Plot, Scale};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::rows::{PERCENTILES, Style};
use super::table::{applies, by_group, latency};
use super::totals::{Total, Totals};

/// Groups that get pictures, those with the most samples; the table has them all.
const PICTURED: usize = 20;
/// Groups in the table.
const LISTED: usize = 1000;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d1f21;--dim:#5f666d;--paper:#fbfbfa;--card:#fff;--line:#dfe1e3}\
@media(prefers-color-scheme:dark){:root{--ink:#e6e8ea;--dim:#a3a9af;--paper:#15171a;--card:#1c1f23;--line:#363b41}}\
*{box-sizing:border-box}\
body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:78rem;margin:0 auto;padding:1.8rem 1.2rem 4rem}\
h1{font-size:1.45rem;margin:0 0 .3rem;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:2.4rem 0 .6rem}\
h3{font-size:1rem;margin:0 0 .4rem;overflow-wrap:anywhere}\
.note{color:var(--dim);font-size:.9rem;margin:.2rem 0 .8rem}\
.scroll{overflow-x:auto}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}\
th,td{padding:.28rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th{font-weight:600;color:var(--dim)}.l{text-align:left}.wrap{white-space:normal}\
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:1rem 1.1rem;margin:1rem 0}\
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(24rem,1fr));gap:1rem}\
figure{margin:0}figcaption{color:var(--dim);font-size:.85rem;margin-bottom:.3rem}\
.keys{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.88rem;margin:.5rem 0 0}\
.low{color:var(--c1)}.none{color:var(--dim)}";

/// What the page says of its input.
#[derive(Clone, Debug)]
pub struct Source {
    /// File or interface.
    pub name: String,
    /// The closing line: packets, flows, what was skipped.
    pub summary: String,
}

/// Writes the page.
pub fn write(
    totals: &Totals,
    style: &Style,
    source: &Source,
    out: &mut impl Write,
) -> io::Result<()> {
    let css = format!("{STYLE}{}", plot::style());
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                title { "Latency of " (source.name) }
                style { (PreEscaped(css)) }
            }
            body {
                h1 { "Latency of " (source.name) }
                p.note { (source.summary) }
                (listing(totals, style))
                (pictures(totals, style))
                (meanings(style))
            }
        }
    };
    out.write_all(page.into_string().as_bytes())
}

fn listing(totals: &Totals, style: &Style) -> Markup {
    let groups = totals.groups();
    let listed = &groups[..groups.len().min(LISTED)];
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
                @for (key, method, total) in listed { (line(style, key, *method, total)) }
            } }
            @if groups.len() > LISTED {
                p.note { "The first " (LISTED) " of " (groups.len()) " lines; `-o csv` has them all." }
            }
            p.note {
                "A percentile needs one sample beyond it. W is the number of requests that a client keeps "
                "outstanding at most, as far as the estimator infers it. Quality says how far to trust a mean: "
                "none, low (fewer than five samples, or upper bounds among them), medium, high."
            }
        }
    }
}

fn line(style: &Style, key: &FlowKey, method: u8, total: &Total) -> Markup {
    let confidence = total.tally.confidence();
    html! {
        tr {
            @for cell in style.grouping.cells(key) { td.l { (cell) } }
            @if style.several() { td.l { (style.label(method).name) } }
            td { (confidence.samples) } td { (latency(total.tally.mean_ns())) }
            @for (share, ..) in PERCENTILES {
                td { (latency(total.quantile(share).map(|ns| ns as f64))) }
            }
            td { @if let Some(window) = confidence.window { (window) } }
            td.l.(confidence.quality.name()) { (confidence.quality) }
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
    html! {
        div.card {
            h3 { (name) }
            div.pair {
                figure {
                    figcaption { "Share of samples up to a latency" }
                    (PreEscaped(cdf(style, &name, lines).svg()))
                }
                figure {
                    figcaption { "Mean of each epoch" }
                    (PreEscaped(course(style, &name, lines).svg()))
                }
            }
            div.keys {
                @for (_, method, _) in lines {
                    span {
                        span class={ "key " (plot::class(usize::from(*method))) } {}
                        (style.label(*method).name)
                    }
                }
                @if !silent.is_empty() { span.none { "none: " (silent.join(", ")) } }
            }
        }
    }
}

fn cdf(style: &Style, name: &str, lines: &[(FlowKey, u8, &Total)]) -> Plot {
    let curve = |&(_, method, total): &(FlowKey, u8, &Total)| {
        let all = total.latencies.count() as f64;
        let mut seen = 0.0;
        let mut points = Vec::new();
        for bucket in total.latencies.buckets() {
            if points.is_empty() {
                points.push((bucket.from_ns as f64, 0.0));
            }
            seen += bucket.count as f64;
            points.push((bucket.middle_ns() as f64, seen / all));
        }
        Line {
            name: style.label(method).name.to_owned(),
            colour: method.into(),
            points,
        }
    };
    Plot {
        title: format!("Distribution of latency, {name}"),
        x: (Scale::Latency, "latency".to_owned()),
        y: (Scale::Share, "share of samples".to_owned()),
        lines: lines.iter().map(curve).collect(),
    }
}

fn course(style: &Style, name: &str, lines: &[(FlowKey, u8, &Total)]) -> Plot {
    let starts = lines
        .iter()
        .filter_map(|line| Some(line.2.series.points().next()?.0));
    let start_ns = starts.min().unwrap_or(0);
    let curve = |&(_, method, total): &(FlowKey, u8, &Total)| Line {
        name: style.label(method).name.to_owned(),
        colour: method.into(),
        points: total
            .series
            .points()
            .map(|(at_ns, mean_ns)| ((at_ns - start_ns) as f64 / 1e9, mean_ns))
            .collect(),
    };
    Plot {
        title: format!("Mean latency over time, {name}"),
        x: (Scale::Linear, "seconds since the first estimate".to_owned()),
        y: (Scale::Latency, "mean latency".to_owned()),
        lines: lines.iter().map(curve).collect(),
    }
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
