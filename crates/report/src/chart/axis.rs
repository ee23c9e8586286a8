// SPDX-License-Identifier: Apache-2.0
//! An axis: which values it spans, where they lie, and what its labels say.

/// How an axis is divided, and what its numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal steps from the least value to the largest.
    Linear,
    /// Equal steps, zero among them.
    FromZero,
    /// Powers of ten; values of zero and below are gaps.
    Log,
    /// The same for nanoseconds, labelled as times: 10 us, 1 ms, 1 s.
    Latency,
    /// 0 to 1, as percent.
    Share,
    /// Nines of a quantile: 1 is 90 %, 2 is 99 %.
    Nines,
}

/// One axis: values to positions.
pub(super) struct Axis {
    scale: Scale,
    /// The values at its ends, and where these lie.
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    /// An axis around all that it can show, and by a share of that longer.
    pub(super) fn new(
        scale: Scale,
        values: impl Iterator<Item = f64>,
        (start, end): (f64, f64),
        headroom: f64,
    ) -> Self {
        let extent = values
            .filter(|v| shows(scale, *v))
            .map(|v| (v, v))
            .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
        let (low, high) = extent.unwrap_or((1.0, 10.0));
        let above = |low: f64, high: f64| if high > low { high } else { low + 1.0 };
        let (from, to) = match scale {
            Scale::Share => (0.0, 1.0),
            Scale::Nines => (0.0, above(0.0, high)),
            Scale::Linear => (low, above(low, high)),
            Scale::FromZero => (low.min(0.0), above(low.min(0.0), 1.04 * high)),
            Scale::Log | Scale::Latency => (low / 1.1, (1.1 * high).max(1.5 * low)),
        };
        let to = match scale {
            Scale::Log | Scale::Latency => to * (to / from).powf(headroom),
            _ => to + (to - from) * headroom,
        };
        Self {
            scale,
            from,
            to,
            start,
            end,
        }
    }

    fn is_log(&self) -> bool {
        matches!(self.scale, Scale::Log | Scale::Latency)
    }

    pub(super) fn shows(&self, value: f64) -> bool {
        shows(self.scale, value)
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let along = match self.is_log() {
            true => (value / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.start + along.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Where its labels stand, and what they say.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let values = match self.scale {
            Scale::Share => vec![0.0, 0.25, 0.5, 0.75, 0.9, 1.0],
            Scale::Nines => self.steps((self.to / 5.0).ceil()),
            Scale::Log | Scale::Latency => self.powers(),
            Scale::Linear | Scale::FromZero => self.steps(nice_step((self.to - self.from) / 7.0)),
        };
        let label = |value| match self.scale {
            Scale::Share => percent(value),
            Scale::Nines => percent(1.0 - 10f64.powf(-value)),
            Scale::Latency => time(value),
            _ => plain(value),
        };
        values.into_iter().map(|v| (self.at(v), label(v))).collect()
    }

    /// What a label takes: its width, or on the vertical axis, which goes up, its height.
    fn label_size(&self) -> f64 {
        if self.end > self.start { 62.0 } else { 21.0 }
    }

    fn steps(&self, step: f64) -> Vec<f64> {
        let first = (self.from / step - 1e-9).ceil() as i64;
        let last = (self.to / step + 1e-9).floor() as i64;
        (first..=last).map(|n| n as f64 * step).collect()
    }

    /// 1, 2 and 5 of each power of ten, the powers alone where these are many, equal
    /// steps where they are hardly one.
    fn powers(&self) -> Vec<f64> {
        let decades = (self.to / self.from).log10();
        let mantissas: &[f64] = match decades {
            d if d < 0.8 => return self.steps(nice_step((self.to - self.from) / 5.0)),
            d if 0.3 * (self.end - self.start).abs() / d > self.label_size() => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let range = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        range
            .flat_map(|exponent| mantissas.iter().map(move |m| m * 10f64.powi(exponent)))
            .filter(|v| (self.from..=self.to).contains(v))
            .collect()
    }
}

fn shows(scale: Scale, value: f64) -> bool {
    value.is_finite() && (!matches!(scale, Scale::Log | Scale::Latency) || value > 0.0)
}

/// The next of 1, 2 and 5 times a power of ten.
fn nice_step(rough: f64) -> f64 {
    let power = 10f64.powf(rough.max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|m| m * power);
    let found = steps.into_iter().find(|step| *step >= rough);
    found.unwrap_or(10.0 * power)
}

/// A number as short as it can be read: 0.05, 2.5, 40, 1200.
fn plain(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A share; all its nines, and no more digits than these.
fn percent(share: f64) -> String {
    let digits = (-(1.0 - share).max(1e-9).log10() - 2.0)
        .round()
        .clamp(0.0, 7.0);
    match share < 1.0 {
        true => format!("{:.*} %", digits as usize, 100.0 * share),
        false => "100 %".to_owned(),
    }
}

/// Nanoseconds in the unit that makes them a small number.
fn time(ns: f64) -> String {
    match ns {
        ns if ns < 999.5 => format!("{} ns", plain(ns)),
        ns if ns < 999.5e3 => format!("{} us", plain(ns / 1e3)),
        ns if ns < 999.5e6 => format!("{} ms", plain(ns / 1e6)),
        ns => format!("{} s", plain(ns / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scale_has_round_labels() {
        let labels = |scale, low: f64, high: f64| {
            let axis = Axis::new(scale, [low, high].into_iter(), (0.0, 500.0), 0.0);
            let labels: Vec<String> = axis.ticks().into_iter().map(|tick| tick.1).collect();
            labels.join(", ")
        };
        let cases = [
            (Scale::Linear, 3.0, 9.0, "3, 4, 5, 6, 7, 8, 9"),
            (Scale::Linear, -1.0, 1.0, "-1, -0.5, 0, 0.5, 1"),
            (Scale::FromZero, 10.0, 48.0, "0, 10, 20, 30, 40"),
            (Scale::Share, 0.4, 0.5, "0 %, 25 %, 50 %, 75 %, 90 %, 100 %"),
            (Scale::Nines, 0.3, 3.2, "0 %, 90 %, 99 %, 99.9 %"),
            (Scale::Nines, 0.3, 6.0, "0 %, 99 %, 99.99 %, 99.9999 %"),
            (Scale::Log, 0.3, 2e3, "1, 10, 100, 1000"),
            (Scale::Latency, 1.3e6, 4e7, "2 ms, 5 ms, 10 ms, 20 ms"),
            (Scale::Latency, 2e4, 4e9, "100 us, 1 ms, 10 ms, 100 ms, 1 s"),
            (Scale::Latency, 2.3e6, 2.4e6, "2.5 ms, 3 ms"),
        ];
        for (scale, low, high, expected) in cases {
            assert_eq!(labels(scale, low, high), expected, "{scale:?} {low} {high}");
        }
    }
}
