// SPDX-License-Identifier: Apache-2.0
//! What clients are like, by their retries and by how many of them give up.

use anyhow::Result;
use causeway_core::certes::{Mix, RetryClass};
use tracing::info;

use super::{Clients, LEARN_EVERY_S, LEARN_MEMORY_S};

/// What the configured weights count for, in attempts.
const PRIOR_VOTES: f64 = 50.0;
/// A share that changed less is not worth a new model.
const WORTH_A_CHANGE: f64 = 0.05;

impl Clients {
    /// Takes up another mix where clients are not what they were taken for.
    pub(super) fn learn(&mut self) -> Result<()> {
        let keep = (-(LEARN_EVERY_S as f64) / LEARN_MEMORY_S).exp();
        self.learner.fade(keep);
        self.patience.fade(keep);
        let mut mix = self.learner.mix(PRIOR_VOTES)?;
        // Of one schedule, patience can be told as well.
        let first = &self.config.classes[0];
        let one_schedule = self
            .config
            .classes
            .iter()
            .all(|class| class.name == first.name);
        if one_schedule {
            let known_s: Vec<f64> = self
                .config
                .classes
                .iter()
                .map(|class| class.fto_s)
                .collect();
            let longest_s = known_s.iter().copied().fold(0.0, f64::max);
            let class = RetryClass {
                fto_s: longest_s,
                weight: 1.0,
                ..first.clone()
            };
            let busiest = self
                .categories
                .iter()
                .max_by_key(|category| category.totals.offered);
            let loss = busiest.map_or(0.0, |category| category.observer.standing().loss);
            mix = self.patience.split(&class, &known_s, loss)?;
        }
        if !differs(&self.mix, &mix) {
            return Ok(());
        }
        for category in &mut self.categories {
            category.observer.set_mix(self.slot_s, &mix)?;
        }
        self.mix = mix;
        info!("clients are taken to be: {}", describe(&self.mix));
        Ok(())
    }
}

fn differs(old: &Mix, new: &Mix) -> bool {
    let (old, new) = (old.classes(), new.classes());
    let moved = |(a, b): (&RetryClass, &RetryClass)| {
        (a.weight - b.weight).abs() > WORTH_A_CHANGE || (a.fto_s - b.fto_s).abs() > 1e-9
    };
    old.len() != new.len() || old.iter().zip(new).any(moved)
}

fn describe(mix: &Mix) -> String {
    let classes = mix.classes().iter();
    let class = |class: &RetryClass| {
        format!(
            "{:.0} % {} with {:.1} s of patience",
            100.0 * class.weight,
            class.name,
            class.fto_s
        )
    };
    classes.map(class).collect::<Vec<_>>().join(", ")
}
