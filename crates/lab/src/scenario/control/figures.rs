// SPDX-License-Identifier: Apache-2.0
//! From runs to the figures that are asked for.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::Way;
use super::world::Felt;

/// All runs under one load.
pub struct LoadFigures {
    load: f64,
    runs: Vec<(Way, Felt)>,
}

impl LoadFigures {
    pub fn new(load: f64) -> Self {
        Self {
            load,
            runs: Vec::new(),
        }
    }

    pub fn add(&mut self, way: Way, felt: Felt) {
        self.runs.push((way, felt));
    }

    fn p99(&self, way: Way) -> Vec<f64> {
        let runs = self.runs.iter().filter(|(of, _)| *of == way);
        runs.map(|(_, felt)| felt.p99_ms).collect()
    }

    fn ratio(&self, way: Way) -> f64 {
        quantile(&self.p99(way), 0.5) / quantile(&self.p99(Way::Maglev), 0.5)
    }

    fn spread(&self, way: Way) -> f64 {
        let p99 = self.p99(way);
        quantile(&p99, 1.0) - quantile(&p99, 0.0)
    }

    fn json(&self) -> Value {
        let broken: u64 = self.runs.iter().map(|(_, felt)| felt.broken).sum();
        json!({
            "load": self.load,
            "maglev_p99_ms": self.p99(Way::Maglev),
            "paper_p99_ms": self.p99(Way::Paper),
            "causeway_p99_ms": self.p99(Way::Causeway),
            "ratio": self.ratio(Way::Causeway),
            "paper_ratio": self.ratio(Way::Paper),
            "broken_connections": broken,
            "busy": self.runs.iter().map(|(_, felt)| felt.cpu).fold(0.0, f64::max),
        })
    }
}

/// The figures over all loads. Ratios are of medians, ours over Maglev's; a spread is
/// the range of p99 over the runs of a load.
pub fn summary(loads: &[LoadFigures]) -> Value {
    let mean = |of: &dyn Fn(&LoadFigures) -> f64| {
        loads.iter().map(of).sum::<f64>() / loads.len().max(1) as f64
    };
    let cut = |way| mean(&|load| (1.0 - load.ratio(way)) * 100.0);
    let spread = |way| mean(&|load| load.spread(way) / load.spread(Way::Maglev));
    let worst = loads.iter().map(|load| load.ratio(Way::Causeway));
    json!({
        "loads": loads.iter().map(LoadFigures::json).collect::<Vec<_>>(),
        "p99_reduction_pct_mean": cut(Way::Causeway),
        "paper_p99_reduction_pct_mean": cut(Way::Paper),
        "worst_p99_ratio": worst.fold(0.0, f64::max),
        "spread_ratio": spread(Way::Causeway),
        "paper_spread_ratio": spread(Way::Paper),
        "reaction_ms": null,
        "noise_weight_deviation_pct": null,
    })
}

/// Puts the keys of `more` into `result`.
pub fn add(result: &mut Value, more: Value) {
    if let (Some(result), Value::Object(more)) = (result.as_object_mut(), more) {
        result.extend(more);
    }
}

/// The value that a share `q` of the values does not exceed.
pub fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    let rank = (q * last as f64).round() as usize;
    sorted.get(rank).copied().unwrap_or(f64::NAN)
}

/// The table for people, with targets.
pub fn table(result: &Value) -> String {
    let mut text = String::from(
        "p99, ms: median (lowest to highest) over the runs\n\
         load   maglev                  paper                   causeway                ratio\n",
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
            "{:3.0} %  {:<22}  {:<22}  {:<22}  {:.2}",
            number("load") * 100.0,
            cell("maglev_p99_ms"),
            cell("paper_p99_ms"),
            cell("causeway_p99_ms"),
            number("ratio")
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
        ("spread against Maglev's", "spread_ratio", false, 0.5),
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

    fn felt(p99_ms: f64) -> Felt {
        Felt {
            p50_ms: 1.0,
            p99_ms,
            requests: 100,
            broken: 0,
            cpu: 0.5,
        }
    }

    #[test]
    fn ratios_are_of_medians_and_spreads_of_ranges() {
        let mut light = LoadFigures::new(0.3);
        let mut heavy = LoadFigures::new(0.9);
        for (maglev, paper, ours) in [(10.0, 9.0, 10.0), (20.0, 18.0, 9.0), (30.0, 40.0, 11.0)] {
            light.add(Way::Maglev, felt(maglev));
            light.add(Way::Paper, felt(paper));
            light.add(Way::Causeway, felt(ours));
            heavy.add(Way::Maglev, felt(10.0 * maglev));
            heavy.add(Way::Paper, felt(10.0 * paper));
            heavy.add(Way::Causeway, felt(10.0 * ours * 2.1));
        }
        let all = summary(&[light, heavy]);
        let number = |key: &str| all[key].as_f64().unwrap_or(f64::NAN);
        assert!((number("worst_p99_ratio") - 1.05).abs() < 1e-9);
        assert!((number("p99_reduction_pct_mean") - (50.0 - 5.0) / 2.0).abs() < 1e-9);
        assert!((number("spread_ratio") - (0.1 + 0.21) / 2.0).abs() < 1e-9);
        assert_eq!(all["loads"][0]["maglev_p99_ms"], json!([10.0, 20.0, 30.0]));
        assert!(table(&all).contains("worst ratio at a load"));
    }
}
