// SPDX-License-Identifier: Apache-2.0
//! The demo's report: one HTML file, its plots inside, no external request.

use causeway_lab::outcome::{Outcome, RealEpoch, RealTrack, Run, Second, Summary};
use causeway_report::chart::{Along, Chart, Scale, Series};
use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--dim:#666;--paper:#fbfbfa;--line:#ddd;--good:#00795a}\
@media(prefers-color-scheme:dark){:root{--ink:#e8e8e8;--dim:#a8a8a8;--paper:#161718;--line:#3a3a3a;--good:#4fd1a5}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:0 auto;padding:1.5rem 1rem 4rem}\
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .5rem}\
.lead{font-size:1.1rem}.note{color:var(--dim);font-size:.9rem}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line)}\
th:first-child,td:first-child{text-align:left}th{font-weight:600}\
.scroll{overflow-x:auto}\
.plain td{text-align:left}\
figure{margin:.5rem 0;background:#fff;border:1px solid var(--line);border-radius:6px;padding:.3rem}\
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:.8rem}\
figcaption{color:#444;font-size:.85rem;padding:.2rem .6rem}\
.good{color:var(--good);font-weight:600}";

/// The whole page.
pub fn render(outcome: &Outcome) -> String {
    let summary = outcome.summary();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                title { "Causeway demo: " (outcome.baseline.scheduler) " and " (outcome.latency_aware.scheduler) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (lead(outcome, &summary))
                (comparison(&summary))
                (over_time(outcome))
                (distribution(outcome))
                (per_real(outcome, &summary))
                (weights(outcome))
                (conditions(outcome))
            }
        }
    }
    .into_string()
}

fn lead(outcome: &Outcome, summary: &Summary) -> Markup {
    html! {
        h1 { "One of " (outcome.latency_aware.reals.len()) " servers slows down" }
        p.lead {
            "The same clients, the same load, twice. Under the " (summary.baseline.scheduler)
            " scheduler the 99th percentile is " (ms(summary.baseline.p99_ms))
            "; under " (summary.latency_aware.scheduler) " it is "
            span.good { (ms(summary.latency_aware.p99_ms)) }
            ", " (percent(summary.p99_reduction_pct)) " lower. Broken connections: "
            (summary.baseline.broken_connections) " and " (summary.latency_aware.broken_connections) "."
        }
        p {
            "Causeway saw only the packets from clients to servers. Its estimate of each server's response latency is off by "
            (percent(summary.estimate.median_error_pct))
            " (median over servers and epochs) against what the clients measured themselves."
        }
    }
}

fn comparison(summary: &Summary) -> Markup {
    let runs = [&summary.baseline, &summary.latency_aware];
    html! {
        h2 { "What the clients felt" }
        p.note { "Requests sent from " (summary.conditions.settle_s) " s after the slowdown until the end of the run." }
        div.scroll { table {
            tr { th { "scheduler" } th { "p50" } th { "p90" } th { "p99" } th { "requests" } th { "requests/s" } th { "broken connections" } }
            @for run in runs {
                tr {
                    td { (run.scheduler) } td { (ms(run.p50_ms)) } td { (ms(run.p90_ms)) } td { (ms(run.p99_ms)) }
                    td { (run.requests) } td { (format!("{:.0}", run.requests_per_s)) } td { (run.broken_connections) }
                }
            }
        } }
    }
}

fn over_time(outcome: &Outcome) -> Markup {
    // Answers that come after the load's end are too few for percentiles.
    let during = |run: &Run, value: fn(&Second) -> f64| {
        let seconds = run
            .seconds
            .iter()
            .filter(|s| s.at_s < outcome.conditions.run_s);
        seconds.map(|s| (s.at_s, value(s))).collect()
    };
    let mut series = Vec::new();
    for (colour, run) in [&outcome.baseline, &outcome.latency_aware]
        .into_iter()
        .enumerate()
    {
        series.push(Series {
            name: format!("{} p99", run.scheduler),
            points: during(run, |s| s.p99_ms),
            faint: false,
            colour,
        });
        series.push(Series {
            name: format!("{} p50", run.scheduler),
            points: during(run, |s| s.p50_ms),
            faint: true,
            colour,
        });
    }
    figure(
        "Response latency at the clients, second by second",
        &Chart {
            x_label: "time since the run's start (s)".into(),
            x: Along::Number,
            y_label: "latency (ms)".into(),
            y_scale: Scale::Log,
            marker: Some((
                outcome.conditions.degraded_at_s,
                "one server slows down".into(),
            )),
            series,
            width: 960,
            height: 320,
        },
    )
}

fn distribution(outcome: &Outcome) -> Markup {
    let series = [&outcome.baseline, &outcome.latency_aware]
        .into_iter()
        .enumerate()
        .map(|(colour, run)| Series {
            name: run.scheduler.clone(),
            points: run.quantiles.iter().map(|q| (nines(q.0), q.1)).collect(),
            faint: false,
            colour,
        })
        .collect();
    figure(
        "Latency by percentile, from the slowdown on",
        &Chart {
            x_label: "share of requests at most as slow".into(),
            x: Along::Nines,
            y_label: "latency (ms)".into(),
            y_scale: Scale::Log,
            marker: None,
            series,
            width: 960,
            height: 280,
        },
    )
}

/// A quantile as its number of nines: 0.9 is 1, 0.999 is 3.
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile.min(0.999_999)).log10()
}

fn per_real(outcome: &Outcome, summary: &Summary) -> Markup {
    html! {
        h2 { "Causeway's estimate beside the clients' own measurement" }
        div.scroll { table {
            tr { th { "server" } th { "estimate" } th { "clients" } th { "error" } th { "epochs" } }
            @for real in &summary.estimate.per_real {
                tr {
                    td { (real.real) } td { (ms(real.estimate_ms)) } td { (ms(real.client_ms)) }
                    td { (percent(real.error_pct)) } td { (real.epochs) }
                }
            }
        } }
        p.note { "Estimate and clients: mean over the run. Error: median over epochs of the absolute relative error." }
        div.grid { @for real in &outcome.latency_aware.reals { (real_chart(outcome, real)) } }
    }
}

fn real_chart(outcome: &Outcome, real: &RealTrack) -> Markup {
    let line = |name: &str, colour, faint, value: fn(&RealEpoch) -> Option<f64>| Series {
        name: name.into(),
        points: real
            .epochs
            .iter()
            .map(|e| (e.at_s, value(e).unwrap_or(f64::NAN)))
            .collect(),
        faint,
        colour,
    };
    figure(
        &format!("{} under {}", real.real, outcome.latency_aware.scheduler),
        &Chart {
            x_label: "time (s)".into(),
            x: Along::Number,
            y_label: "latency (ms)".into(),
            y_scale: Scale::Log,
            marker: Some((outcome.conditions.degraded_at_s, String::new())),
            series: vec![
                line("clients", 0, true, |e| e.client_ms),
                line("Causeway", 1, false, |e| e.estimate_ms),
            ],
            width: 470,
            height: 230,
        },
    )
}

fn weights(outcome: &Outcome) -> Markup {
    let series = outcome
        .latency_aware
        .reals
        .iter()
        .enumerate()
        .map(|(colour, real)| Series {
            name: real.real.clone(),
            points: real.epochs.iter().map(|e| (e.at_s, e.weight)).collect(),
            faint: false,
            colour,
        })
        .collect();
    html! {
        h2 { "Where new connections went" }
        (figure("Effective weight of each server, latency-aware run", &Chart {
            x_label: "time since the run's start (s)".into(),
            x: Along::Number,
            y_label: "weight".into(),
            y_scale: Scale::Linear,
            marker: Some((outcome.conditions.degraded_at_s, "one server slows down".into())),
            series,
            width: 960,
            height: 280,
        }))
    }
}

fn conditions(outcome: &Outcome) -> Markup {
    let c = &outcome.conditions;
    html! {
        h2 { "Conditions" }
        div.scroll { table.plain {
            tr { td { "slowdown" } td { (c.degradation) } }
            tr { td { "load" } td { (c.load) } }
            tr { td { "run length, slowdown at" } td { (c.run_s) " s, " (c.degraded_at_s) " s" } }
            tr { td { "seed" } td { (c.seed) } }
            tr { td { "machine busy (both runs)" } td { (percent(busy(&outcome.baseline))) ", " (percent(busy(&outcome.latency_aware))) } }
        } }
        p.note { "Clients, router, balancer and nginx servers are network namespaces on one machine." }
    }
}

fn busy(run: &Run) -> f64 {
    run.cpu_busy_pct
}

fn figure(caption: &str, chart: &Chart) -> Markup {
    html! { figure { (PreEscaped(chart.svg())) figcaption { (caption) } } }
}

fn ms(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0} ms"),
        v if v >= 10.0 => format!("{v:.1} ms"),
        v => format!("{v:.2} ms"),
    }
}

fn percent(value: f64) -> String {
    if value.abs() >= 10.0 {
        format!("{value:.0} %")
    } else {
        format!("{value:.2} %")
    }
}

#[cfg(test)]
mod tests {
    use causeway_lab::outcome::Conditions;

    use super::*;

    fn run(scheduler: &str, slow_ms: f64) -> Run {
        let second = |s: u32| {
            let at_s = f64::from(s);
            let p99_ms = if at_s < 10.0 { 12.0 } else { slow_ms };
            Second {
                at_s,
                p50_ms: 6.0,
                p99_ms,
                requests: 400,
            }
        };
        let real = |n: u32| RealTrack {
            real: format!("10.20.0.{}", 10 + n),
            epochs: (0..20)
                .map(|s| RealEpoch {
                    at_s: f64::from(s),
                    estimate_ms: (s != 7).then_some(6.1 + f64::from(s % 3)),
                    client_ms: Some(6.0 + f64::from(s % 3)),
                    client_samples: 50,
                    weight: if n == 0 && s > 10 { 2.0 } else { 100.0 },
                    ..RealEpoch::default()
                })
                .collect(),
        };
        Run {
            scheduler: scheduler.into(),
            p50_ms: 6.0,
            p90_ms: 9.0,
            p99_ms: slow_ms,
            requests: 8000,
            requests_per_s: 400.0,
            seconds: (0..20).map(second).collect(),
            quantiles: vec![
                (0.5, 6.0),
                (0.9, 9.0),
                (0.99, slow_ms),
                (0.999, 1.2 * slow_ms),
            ],
            reals: (0..4).map(real).collect(),
            ..Run::default()
        }
    }

    fn outcome() -> Outcome {
        Outcome {
            baseline: run("maglev", 90.0),
            latency_aware: run("latency", 13.0),
            conditions: Conditions {
                degradation: "10.20.0.10: service time <10x>".into(),
                degraded_at_s: 10.0,
                run_s: 20.0,
                ..Conditions::default()
            },
        }
    }

    #[test]
    fn the_page_says_what_was_measured_and_loads_nothing() {
        let page = render(&outcome());
        for expected in [
            "maglev",
            "latency",
            "90.0 ms",
            "13.0 ms",
            "86 % lower",
            "10.20.0.13",
        ] {
            assert!(page.contains(expected), "{expected} is missing");
        }
        assert_eq!(page.matches("<svg").count(), 2 + 4 + 1);
        assert!(page.contains("&lt;10x&gt;"), "text is escaped");
        for external in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(external), "{external} loads something");
        }
        if let Some(path) = std::env::var_os("CAUSEWAY_KEEP_PAGE") {
            std::fs::write(path, page).expect("the page is written");
        }
    }
}
