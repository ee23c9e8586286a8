// SPDX-License-Identifier: Apache-2.0
//! From runs to the figures that are asked for.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Way;
use super::world::ClientLatency;
use crate::statistics::quantile;

/// All runs under one load: some on each of several traces of capacities.
pub(super) struct LoadFigures {
    load: f64,
    runs: Vec<Compared>,
}

/// One run that is compared with others.
struct Compared {
    trace: u64,
    way: Way,
    client_latency: ClientLatency,
}

impl LoadFigures {
    pub(super) fn new(load: f64) -> Self {
        Self {
            load,
            runs: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, trace: u64, way: Way, client_latency: ClientLatency) {
        self.runs.push(Compared {
            trace,
            way,
            client_latency,
        });
    }

    fn p99(&self, way: Way, trace: Option<u64>) -> Vec<f64> {
        let runs = self.runs.iter();
        runs.filter(|run| run.way == way && trace.is_none_or(|of| of == run.trace))
            .map(|run| run.client_latency.p99_ms)
            .collect()
    }

    fn traces(&self) -> Vec<u64> {
        let mut traces: Vec<u64> = self.runs.iter().map(|run| run.trace).collect();
        traces.sort_unstable();
        traces.dedup();
        traces
    }

    /// Of a figure of the runs on one trace, the mean over the traces.
    fn mean(&self, of: impl Fn(u64) -> f64) -> f64 {
        let traces = self.traces();
        traces.iter().map(|trace| of(*trace)).sum::<f64>() / traces.len().max(1) as f64
    }

    fn ratio(&self, way: Way) -> f64 {
        let median = |way, trace| quantile(&self.p99(way, Some(trace)), 0.5);
        self.mean(|trace| median(way, trace) / median(Way::Maglev, trace))
    }

    /// How far runs of one trace lie apart, in ms.
    fn spread(&self, way: Way) -> f64 {
        self.mean(|trace| range(&self.p99(way, Some(trace))))
    }

    fn json(&self) -> Value {
        let sum = |of: fn(&ClientLatency) -> u64| -> u64 {
            self.runs.iter().map(|run| of(&run.client_latency)).sum()
        };
        let traces = self.runs.iter().filter(|run| run.way == Way::Causeway);
        json!({
            "load": self.load,
            "trace": traces.map(|run| run.trace).collect::<Vec<_>>(),
            "maglev_p99_ms": self.p99(Way::Maglev, None),
            "paper_p99_ms": self.p99(Way::Paper, None),
            "causeway_p99_ms": self.p99(Way::Causeway, None),
            "ratio": self.ratio(Way::Causeway),
            "paper_ratio": self.ratio(Way::Paper),
            "maglev_spread_ms": self.spread(Way::Maglev),
            "paper_spread_ms": self.spread(Way::Paper),
            "causeway_spread_ms": self.spread(Way::Causeway),
            "broken_connections": sum(|of| of.broken),
            "requests_cut_short": sum(|of| of.cut_short),
            "busy": self.runs.iter().map(|run| run.client_latency.cpu).fold(0.0, f64::max),
        })
    }
}

fn range(values: &[f64]) -> f64 {
    quantile(values, 1.0) - quantile(values, 0.0)
}

/// The figures over all loads. Ratios are of medians over the runs of a trace, ours over
/// Maglev's; a spread is the range of p99 over the runs of a trace, which differ by
/// chance alone. Both are means over the traces. Beside it stands the range over all runs
/// of a load, on whatever trace.
pub(super) fn summary(loads: &[LoadFigures]) -> Value {
    let mean = |of: &dyn Fn(&LoadFigures) -> f64| {
        let sum = loads.iter().map(of).sum::<f64>();
        (!loads.is_empty()).then(|| sum / loads.len() as f64)
    };
    let cut = |way| mean(&|load| (1.0 - load.ratio(way)) * 100.0);
    let spread = |way| mean(&|load| load.spread(way) / load.spread(Way::Maglev));
    let whole =
        |way| mean(&|load| range(&load.p99(way, None)) / range(&load.p99(Way::Maglev, None)));
    let worst = loads.iter().map(|load| load.ratio(Way::Causeway));
    json!({
        "loads": loads.iter().map(LoadFigures::json).collect::<Vec<_>>(),
        "p99_reduction_pct_mean": cut(Way::Causeway),
        "paper_p99_reduction_pct_mean": cut(Way::Paper),
        "worst_p99_ratio": worst.max_by(f64::total_cmp),
        "spread_ratio": spread(Way::Causeway),
        "paper_spread_ratio": spread(Way::Paper),
        "spread_over_traces_ratio": whole(Way::Causeway),
        "paper_spread_over_traces_ratio": whole(Way::Paper),
        "reaction_ms": null,
        "noise_weight_deviation_pct": null,
    })
}

/// Puts the keys of `more` into `result`.
pub(super) fn add(result: &mut Value, more: Value) {
    if let (Some(result), Value::Object(more)) = (result.as_object_mut(), more) {
        result.extend(more);
    }
}

/// The table for people, with targets.
pub(super) fn table(result: &Value) -> String {
    let mut text = String::from(
        "p99, ms: median (lowest to highest) over the runs\n\
         load   maglev                  paper                   causeway                ratio  spread\n",
    );
    // Writing to a String does not fail.
    for load in result["loads"].as_array().into_iter().flatten() {
        let cell = |key: &str| {
            let values = load[key].as_array().into_iter().flatten();
            let values: Vec<f64> = values.filter_map(Value::as_f64).collect();
            let q = |q| quantile(&values, q);
            format!("{:.1} ({:.1} to {:.1})", q(0.5), q(0.0), q(1.0))
        };
        let number = |key: &str| load[key].as_f64().unwrap_or(f64::NAN);
        let _ = writeln!(
            text,
            "{:3.0} %  {:<22}  {:<22}  {:<22}  {:.2}   {:.2}",
            number("load") * 100.0,
            cell("maglev_p99_ms"),
            cell("paper_p99_ms"),
            cell("causeway_p99_ms"),
            number("ratio"),
            number("causeway_spread_ms") / number("maglev_spread_ms"),
        );
    }
    for (name, key, at_least, bound) in [
        (
            "p99 below Maglev's, mean over loads, %",
            "p99_reduction_pct_mean",
            true,
            50.0,
        ),
        (
            "the same by the paper's law, %",
            "paper_p99_reduction_pct_mean",
            true,
            0.0,
        ),
        ("worst ratio at a load", "worst_p99_ratio", false, 1.05),
        (
            "spread between runs of a trace, against Maglev's",
            "spread_ratio",
            false,
            0.5,
        ),
        (
            "90 % of a slow server's connections moved, ms",
            "reaction_ms",
            false,
            1000.0,
        ),
        (
            "equal servers: 95 % of weights within, %",
            "noise_weight_deviation_pct",
            false,
            5.0,
        ),
    ] {
        let value = result[key].as_f64();
        let met = value.is_some_and(|value| {
            if at_least {
                value >= bound
            } else {
                value <= bound
            }
        });
        let verdict = match (value, met) {
            (None, _) => "not measured",
            (_, true) => "met",
            (_, false) => "missed",
        };
        let value = value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let sign = if at_least { ">=" } else { "<=" };
        let _ = writeln!(text, "{name:<48} {value:>9}  {sign} {bound}: {verdict}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client_latency(p99_ms: f64) -> ClientLatency {
        ClientLatency {
            p50_ms: 1.0,
            p99_ms,
            requests: 100,
            cut_short: 0,
            broken: 0,
            cpu: 0.5,
        }
    }

    #[test]
    fn ratios_are_of_medians_and_spreads_of_ranges() {
        let mut light = LoadFigures::new(0.3);
        let mut heavy = LoadFigures::new(0.9);
        for (trace, far) in [(7, 0.0), (8, 100.0)] {
            for (maglev, ours) in [(10.0, 10.0), (20.0, 9.0), (30.0, 11.0)] {
                light.add(trace, Way::Maglev, client_latency(maglev));
                light.add(trace, Way::Paper, client_latency(2.0 * maglev));
                light.add(trace, Way::Causeway, client_latency(ours));
                heavy.add(trace, Way::Maglev, client_latency(10.0 * maglev + far));
                heavy.add(trace, Way::Paper, client_latency(10.0 * maglev + far));
                heavy.add(
                    trace,
                    Way::Causeway,
                    client_latency(21.0 * ours + 2.1 * far),
                );
            }
        }
        let all = summary(&[light, heavy]);
        let number = |key: &str| all[key].as_f64().unwrap_or(f64::NAN);
        // Under light load 10 of 20 ms on each trace; under heavy load 210 of 200 and
        // 420 of 300 ms.
        let heavy = (1.05 + 1.4) / 2.0;
        assert!((number("worst_p99_ratio") - heavy).abs() < 1e-9);
        let mean = (50.0 + (1.0 - heavy) * 100.0) / 2.0;
        assert!((number("p99_reduction_pct_mean") - mean).abs() < 1e-9);
        // 2 of 20 ms, 42 of 200; over both traces 2 of 20, 252 of 300.
        assert!((number("spread_ratio") - (0.1 + 0.21) / 2.0).abs() < 1e-9);
        assert!((number("spread_over_traces_ratio") - (0.1 + 0.84) / 2.0).abs() < 1e-9);
        assert!((number("paper_spread_ratio") - 1.5).abs() < 1e-9);
        assert_eq!(
            all["loads"][0]["maglev_p99_ms"],
            json!([10.0, 20.0, 30.0, 10.0, 20.0, 30.0])
        );
        assert_eq!(all["loads"][0]["trace"], json!([7, 7, 7, 8, 8, 8]));
        assert!(table(&all).contains("worst ratio at a load"));
    }
}
