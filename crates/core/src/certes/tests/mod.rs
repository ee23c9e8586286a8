// SPDX-License-Identifier: Apache-2.0
//! Tests of what clients lose before they are connected, by subject.

mod learning;
mod models;
mod observer;
mod tracker;

use super::*;

const MS: u64 = 1_000_000;

fn paper_mix() -> Mix {
    Mix::new([RetryClass::new("rfc1122", RFC_1122_S, 21.0)]).expect("a valid mix")
}

/// A slot in which as many connections end as begin, each after no time.
fn slot(offered: u64, accepted: u64) -> Slot {
    Slot {
        offered,
        accepted,
        completed: accepted,
        ..Slot::default()
    }
}

/// `count` slots of a server that gets `firsts` new SYNs each and drops a share of
/// everything, with the retries that RFC 1122 makes of it, to whole slots of 1 s.
fn steady(firsts: f64, drop: f64, count: usize) -> Vec<Slot> {
    let mut arriving = vec![[0.0; 3]; count + 10];
    (0..count)
        .map(|now| {
            arriving[now][0] = firsts;
            let [r0, r1, r2] = arriving[now];
            arriving[now + 3][1] += r0 * drop;
            arriving[now + 6][2] += r1 * drop;
            let offered = r0 + r1 + r2;
            slot(
                offered.round() as u64,
                (offered * (1.0 - drop)).round() as u64,
            )
        })
        .collect()
}
