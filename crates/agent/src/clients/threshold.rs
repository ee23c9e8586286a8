// SPDX-License-Identifier: Apache-2.0
//! Thresholds with hysteresis: when a mean response time is too long, and when no more.

use std::time::Duration;

use crate::config::Threshold;

/// A change of a threshold's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// The mean has been above for as long as was asked.
    Exceeded,
    /// It has been below for as long again.
    Recovered,
}

/// One threshold on one category.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    threshold: Threshold,
    exceeded: bool,
    /// Since when the mean has been on the other side, seconds of the caller's clock.
    since_s: Option<f64>,
}

impl Watch {
    /// Begins below the threshold.
    pub(super) fn new(threshold: Threshold) -> Self {
        Self {
            threshold,
            exceeded: false,
            since_s: None,
        }
    }

    /// What it watches for.
    pub(super) fn threshold(&self) -> &Threshold {
        &self.threshold
    }

    /// Takes in a mean, `None` if no client came: that neither begins nor ends anything.
    /// `now_s` must not go back.
    pub(super) fn step(&mut self, now_s: f64, mean_s: Option<f64>) -> Option<Change> {
        let mean_s = mean_s?;
        let other_side = match self.exceeded {
            false => mean_s > self.threshold.above.as_secs_f64(),
            true => mean_s < self.threshold.below.as_secs_f64(),
        };
        if !other_side {
            self.since_s = None;
            return None;
        }
        let since_s = *self.since_s.get_or_insert(now_s);
        if Duration::from_secs_f64((now_s - since_s).max(0.0)) < self.threshold.lasting {
            return None;
        }
        self.since_s = None;
        self.exceeded = !self.exceeded;
        Some(match self.exceeded {
            true => Change::Exceeded,
            false => Change::Recovered,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> Watch {
        Watch::new(Threshold {
            name: "slow".to_owned(),
            service: None,
            above: Duration::from_secs(2),
            below: Duration::from_secs(1),
            lasting: Duration::from_secs(3),
            webhook: None,
            exec: Vec::new(),
        })
    }

    fn changes(means: &[f64]) -> Vec<(usize, Change)> {
        let mut watch = watch();
        let steps = means.iter().enumerate();
        steps
            .filter_map(|(at, &mean)| Some((at, watch.step(at as f64, Some(mean))?)))
            .collect()
    }

    #[test]
    fn it_takes_as_long_as_asked_on_the_other_side_to_change() {
        use Change::*;
        assert_eq!(changes(&[0.5, 3.0, 3.0, 3.0, 3.0, 3.0]), [(4, Exceeded)]);
        assert_eq!(
            changes(&[3.0, 3.0, 3.0, 0.5, 3.0, 3.0, 3.0]),
            [],
            "interrupted"
        );
        let there_and_back = [3.0, 3.0, 3.0, 3.0, 1.5, 1.5, 1.5, 1.5, 0.5, 0.5, 0.5, 0.5];
        assert_eq!(changes(&there_and_back), [(3, Exceeded), (11, Recovered)]);
        let between = [3.0, 3.0, 3.0, 3.0, 1.5, 3.0, 1.5, 3.0, 1.5, 3.0, 1.5];
        assert_eq!(changes(&between), [(3, Exceeded)], "no chatter in between");
    }

    #[test]
    fn silence_changes_nothing() {
        let mut watch = watch();
        for at in 0..10 {
            let mean = (at % 2 == 0).then_some(3.0);
            let change = watch.step(f64::from(at), mean);
            assert_eq!(change.is_some(), at == 4, "{at}");
        }
    }
}
