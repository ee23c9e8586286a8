// SPDX-License-Identifier: Apache-2.0
//! The demo's report: one HTML file, its plots inside, no external request.

use causeway_lab::outcome::{DegradeOutcome, DegradeSummary, RealEpoch, RealTrack, Run, RunSecond};
use causeway_report::chart::{Chart, Scale, Series};
use causeway_report::page::{figure, page};
use maud::{Markup, html};

const NS_PER_MS: f64 = 1e6;

/// The whole page.
pub(super) fn render(outcome: &DegradeOutcome) -> String {
    let summary = outcome.summary();
    let title = format!(
        "Causeway demo: {} and {}",
        outcome.baseline.scheduler, outcome.latency_aware.scheduler
    );
    let body = html! {
        (lead(outcome, &summary))
        (comparison(&summary))
        (over_time(outcome))
        (distribution(outcome))
        (per_real(outcome, &summary))
        (weights(outcome))
        (conditions(outcome))
    };
    page(&title, &body)
}

fn lead(outcome: &DegradeOutcome, summary: &DegradeSummary) -> Markup {
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

fn comparison(summary: &DegradeSummary) -> Markup {
    let runs = [&summary.baseline, &summary.latency_aware];
    html! {
        h2 { "Client latency" }
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

fn over_time(outcome: &DegradeOutcome) -> Markup {
    let mut series = Vec::new();
    for (colour, run) in [&outcome.baseline, &outcome.latency_aware]
        .into_iter()
        .enumerate()
    {
        // Answers that come after the load's end are too few for percentiles.
        let during = |name: &str, value_ms: fn(&RunSecond) -> f64| {
            let seconds = run
                .seconds
                .iter()
                .filter(|s| s.at_s < outcome.conditions.run_s);
            let points = seconds.map(|s| (s.at_s, value_ms(s) * NS_PER_MS));
            Series::new(format!("{} {name}", run.scheduler), points).coloured(colour)
        };
        series.push(during("p99", |s| s.p99_ms));
        series.push(during("p50", |s| s.p50_ms).faint());
    }
    let chart = Chart::new(
        "Response latency at the clients, second by second",
        (Scale::Linear, "time since the run's start (s)"),
        (Scale::Latency, "latency"),
        series,
    );
    figure(&chart.marked(outcome.conditions.degraded_at_s, "one server slows down"))
}

fn distribution(outcome: &DegradeOutcome) -> Markup {
    let series = [&outcome.baseline, &outcome.latency_aware].map(|run| {
        let points = run.quantiles.iter();
        let points = points.map(|&(quantile, ms)| (nines(quantile), ms * NS_PER_MS));
        Series::new(run.scheduler.as_str(), points)
    });
    figure(&Chart::new(
        "Latency by percentile, from the slowdown on",
        (Scale::Nines, "share of requests at most as slow"),
        (Scale::Latency, "latency"),
        series.into(),
    ))
}

/// A quantile as its number of nines: 0.9 is 1, 0.999 is 3.
fn nines(quantile: f64) -> f64 {
    -(1.0 - quantile.min(0.999_999)).log10()
}

fn per_real(outcome: &DegradeOutcome, summary: &DegradeSummary) -> Markup {
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

fn real_chart(outcome: &DegradeOutcome, real: &RealTrack) -> Markup {
    let series = |name: &str, value_ms: fn(&RealEpoch) -> Option<f64>| {
        let epochs = real.epochs.iter();
        Series::new(
            name,
            epochs.map(|e| (e.at_s, value_ms(e).map_or(f64::NAN, |ms| ms * NS_PER_MS))),
        )
    };
    let chart = Chart::new(
        format!("{} under {}", real.real, outcome.latency_aware.scheduler),
        (Scale::Linear, "time (s)"),
        (Scale::Latency, "latency"),
        vec![
            series("Causeway", |e| e.estimate_ms).coloured(1),
            series("clients", |e| e.client_ms).coloured(0).faint(),
        ],
    );
    figure(&chart.marked(outcome.conditions.degraded_at_s, ""))
}

fn weights(outcome: &DegradeOutcome) -> Markup {
    let series = outcome.latency_aware.reals.iter().map(|real| {
        let points = real.epochs.iter().map(|e| (e.at_s, e.weight));
        Series::new(real.real.as_str(), points)
    });
    let chart = Chart::new(
        "Effective weight of each server, latency-aware run",
        (Scale::Linear, "time since the run's start (s)"),
        (Scale::FromZero, "weight"),
        series.collect(),
    );
    html! {
        h2 { "Where new connections went" }
        (figure(&chart.marked(outcome.conditions.degraded_at_s, "one server slows down")))
    }
}

fn conditions(outcome: &DegradeOutcome) -> Markup {
    let c = &outcome.conditions;
    html! {
        h2 { "Conditions" }
        div.scroll { table.stacked {
            tr { td { "slowdown" } td.l.wrap { (c.degradation) } }
            tr { td { "load" } td.l.wrap { (c.load) } }
            tr { td { "run length, slowdown at" } td.l.wrap { (c.run_s) " s, " (c.degraded_at_s) " s" } }
            tr { td { "seed" } td.l.wrap { (c.seed) } }
            tr { td { "machine busy (both runs)" } td.l.wrap { (percent(busy(&outcome.baseline))) ", " (percent(busy(&outcome.latency_aware))) } }
        } }
        p.note { "Clients, router, balancer and nginx servers are network namespaces on one machine." }
    }
}

fn busy(run: &Run) -> f64 {
    run.cpu_busy_pct
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
    use causeway_lab::outcome::RunConditions;

    use super::*;

    fn run(scheduler: &str, slow_ms: f64) -> Run {
        let second = |s: u32| {
            let at_s = f64::from(s);
            let p99_ms = if at_s < 10.0 { 12.0 } else { slow_ms };
            RunSecond {
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

    fn outcome() -> DegradeOutcome {
        DegradeOutcome {
            baseline: run("maglev", 90.0),
            latency_aware: run("latency", 13.0),
            conditions: RunConditions {
                degradation: "10.20.0.10: service time <10x>".into(),
                degraded_at_s: 10.0,
                run_s: 20.0,
                ..RunConditions::default()
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
