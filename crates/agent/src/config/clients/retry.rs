// SPDX-License-Identifier: Apache-2.0
//! `[[agent.clients.retry]]`: how clients come again, and for how long.

use std::time::Duration;

use causeway_core::certes::{BSD_S, LINUX_6_5_S, Mix, RFC_1122_S, RFC_6298_S, RetryClass};
use causeway_service::config::{Faults, Spanned, Words as _, text, time_within, units};

use crate::config::raw::RawRetry;
use crate::config::words::RetrySchedule;

/// Begins the names of schedules that the file lists.
const GIVEN: &str = "given";
/// How long clients wait that no `retry` names.
const PATIENCE: Duration = Duration::from_secs(21);

impl RetrySchedule {
    /// When retries come after the first SYN, seconds.
    pub(crate) fn retries_s(self) -> &'static [f64] {
        match self {
            Self::Linux => LINUX_6_5_S,
            Self::Rfc6298 => RFC_6298_S,
            Self::Rfc1122 => RFC_1122_S,
            Self::Bsd => BSD_S,
        }
    }
}

/// How clients retry. If the file says nothing: the stacks in use, as likely as each other until
/// retries show their shares.
pub(super) fn classes(raw: &[Spanned<RawRetry>], faults: &mut Faults<'_>) -> Vec<RetryClass> {
    if raw.is_empty() {
        let stacks = [
            RetrySchedule::Rfc6298,
            RetrySchedule::Linux,
            RetrySchedule::Bsd,
        ];
        return stacks
            .map(|of| RetryClass::new(&of.to_string(), of.retries_s(), PATIENCE.as_secs_f64()))
            .to_vec();
    }
    let mut classes: Vec<RetryClass> = Vec::new();
    for spanned in raw {
        let Some(class) = class(spanned, &classes, faults) else {
            continue;
        };
        classes.push(class);
    }
    classes
}

/// What messages call retries that the file lists: the same list, the same name.
fn given_name(retries_s: &[f64], before: &[RetryClass]) -> String {
    let mut lists: Vec<&[f64]> = Vec::new();
    for class in before.iter().filter(|of| of.name.starts_with(GIVEN)) {
        if !lists.contains(&&*class.retries_s) {
            lists.push(&class.retries_s);
        }
    }
    let number = lists.iter().position(|list| *list == retries_s);
    format!("{GIVEN} {}", 1 + number.unwrap_or(lists.len()))
}

fn class(
    spanned: &Spanned<RawRetry>,
    before: &[RetryClass],
    faults: &mut Faults<'_>,
) -> Option<RetryClass> {
    let raw = spanned.as_ref();
    let patience = time_within(raw.patience.as_ref(), "patience", ["100ms", "10m"], faults);
    let schedule = text(raw.schedule.as_ref(), faults, RetrySchedule::from_word);
    let given: Vec<f64> = raw
        .retries
        .iter()
        .filter_map(|retry| text(Some(retry), faults, units::duration))
        .map(|at| at.as_secs_f64())
        .collect();
    let (name, retries_s) = match (schedule, given.is_empty()) {
        (Some(schedule), true) => (schedule.to_string(), schedule.retries_s().to_vec()),
        (None, false) => (given_name(&given, before), given),
        _ => {
            faults.at(
                spanned.span(),
                "a [[agent.clients.retry]] has either `schedule` or `retries`, the times after the first SYN",
            );
            return None;
        }
    };
    let class = RetryClass::new(
        &name,
        &retries_s,
        patience.unwrap_or(PATIENCE).as_secs_f64(),
    )
    .with_weight(raw.weight.unwrap_or(1.0));
    if let Err(error) = Mix::new([class.clone()]) {
        faults.at(spanned.span(), error.to_string());
        return None;
    }
    Some(class)
}
