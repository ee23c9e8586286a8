// SPDX-License-Identifier: Apache-2.0
//! What clients are like, by their retries and by how many of them give up.

use anyhow::Result;
use causeway_core::certes::{BSD_S, Judge, LINUX_6_5_S, Mix, RFC_1122_S, RFC_6298_S, RetryClass};
use tracing::info;

use super::{Clients, LEARN_EVERY_S, LEARN_MEMORY_S};

/// What the configured weights count for, in attempts.
const PRIOR_VOTES: f64 = 50.0;
/// A schedule with this share of the clients is taken for that of all when patience is learned.
const NEARLY_ALL: f64 = 0.9;
/// A share that changed less is not worth a new model.
const WORTH_A_CHANGE: f64 = 0.05;

impl Clients {
    /// Takes up another mix where clients are not what they were taken for.
    pub(super) fn learn(&mut self) -> Result<()> {
        let keep = (-(LEARN_EVERY_S as f64) / LEARN_MEMORY_S).exp();
        self.learner.fade(keep);
        self.patience.fade(keep);
        let mut mix = self.learner.mix(PRIOR_VOTES)?;
        let busiest = self.categories.iter();
        let busiest = busiest.max_by_key(|category| category.totals.offered);
        let loss = busiest.map_or(0.0, |category| category.observer.standing().loss);
        if let Some(split) = self.split_patience(&mix, loss)? {
            mix = split;
        }
        if !differs(&self.mix, &mix) {
            return Ok(());
        }
        self.take_mix(mix)
    }

    /// Goes on with another mix.
    pub(super) fn take_mix(&mut self, mix: Mix) -> Result<()> {
        for category in &mut self.categories {
            category.observer.set_mix(self.slot_s, &mix)?;
        }
        self.judge = judge(&mix, &self.config.classes);
        self.mix = mix;
        self.set_keep();
        info!("clients are taken to be: {}", describe(&self.mix));
        Ok(())
    }

    /// Who waits longer is judged later.
    pub(super) fn set_keep(&mut self) {
        let keep = self.keep_slots();
        for category in &mut self.categories {
            category.observer.set_keep(keep);
        }
    }

    /// The last retry of clients that gave up shows their patience only if nearly all clients
    /// follow one schedule: on another schedule the same retry comes at another time.
    fn split_patience(&self, mix: &Mix, loss: f64) -> Result<Option<Mix>> {
        let share = |name: &str| -> f64 {
            let same = mix.classes().iter().filter(|class| class.name == name);
            same.map(|class| class.weight).sum()
        };
        let configured = self.config.classes.iter();
        let Some(main) = configured
            .clone()
            .find(|class| share(&class.name) >= NEARLY_ALL)
        else {
            return Ok(None);
        };
        let known_s: Vec<f64> = configured
            .filter(|class| class.name == main.name)
            .map(|class| class.fto_s)
            .collect();
        let class = RetryClass {
            fto_s: known_s.iter().copied().fold(0.0, f64::max),
            weight: 1.0,
            ..main.clone()
        };
        let split = self.patience.split(&class, &known_s, loss)?;
        let share = share(&main.name);
        let split = split.classes().iter().cloned();
        let split = split.map(|class| RetryClass {
            weight: class.weight * share,
            ..class
        });
        let others = mix.classes().iter().filter(|class| class.name != main.name);
        Ok(Some(Mix::new(split.chain(others.cloned()))?))
    }
}

/// Judges by every schedule in use: those of the file, likeliest first, and behind them those
/// that it does not name. Patience as learned, or as the file has it.
pub(super) fn judge(mix: &Mix, configured: &[RetryClass]) -> Judge {
    let patience = mix.classes().iter().chain(configured).cloned();
    let patience = Mix::new(patience).unwrap_or_else(|_| mix.clone());
    let mut by_weight: Vec<&RetryClass> = configured.iter().collect();
    by_weight.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let known = [LINUX_6_5_S, RFC_6298_S, BSD_S, RFC_1122_S].map(<[f64]>::to_vec);
    let named = by_weight.iter().map(|class| class.retries_s.clone());
    let mut schedules_s: Vec<Vec<f64>> = Vec::new();
    for retries_s in named.chain(known) {
        if !schedules_s.contains(&retries_s) {
            schedules_s.push(retries_s);
        }
    }
    Judge::new(&patience, schedules_s)
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
