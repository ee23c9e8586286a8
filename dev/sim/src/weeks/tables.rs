// SPDX-License-Identifier: Apache-2.0
//! Ages and times in the data plane's tables.

use std::time::Duration;

use causeway_core::ages::{SilentRounds, SlotAge};
use causeway_core::limit::{LimitBucket, LimitTimes};
use rand::Rng as _;

use super::{BrokenProperty, HOUR, Life, MINUTE, MS, Machine, SECOND, US};

pub(super) const LIMIT: Machine = Machine {
    name: "limit",
    wraps: "times of 40 bits of 1024 ns (13 d)",
    planted: "its clock is a u32 of ns",
    run: limit,
};
pub(super) const FLOW_AGES: Machine = Machine {
    name: "flow-ages",
    wraps: "rounds of silence (24 bits)",
    planted: "rounds are counted in 16 bits",
    run: flow_ages,
};
pub(super) const SLOT_AGES: Machine = Machine {
    name: "slot-ages",
    wraps: "ms of a slot's last packet (49.7 d)",
    planted: "its clock is a u32 of us",
    run: slot_ages,
};

const UNIT_NS: u64 = 1024;

/// Prefixes that open flows now and then, against the algorithm with times without end.
fn limit(life: &mut Life) -> Result<(), BrokenProperty> {
    let round_ns = UNIT_NS << 40;
    // 100 a second and 50 at once; one in 20 s and 3 at once.
    for (interval, tolerance) in [(9766, 49 * 9766), (19_531_250, 2 * 19_531_250)] {
        life.begin_around(round_ns);
        let limit = LimitTimes::new(interval, tolerance);
        let (interval, tolerance) = (u64::from(interval), u64::from(tolerance));
        let mut bucket = LimitBucket::default();
        // By prefix: when its next flow is due.
        let mut due = [0_u64; 6];
        while life.lasts() {
            let gap = match life.rng.random_range(0..3000) {
                0 => life.rng.random_range(MINUTE..6 * HOUR),
                1..200 => life.rng.random_range(MS..10 * SECOND),
                _ => life.rng.random_range(US..20 * MS),
            };
            life.wait(gap, round_ns);
            let prefix = life.rng.random_range(0..due.len());
            let clock_ns = match life.plan.planted {
                true => u64::from(life.now_ns as u32),
                false => life.now_ns,
            };
            let is_let_in = bucket.admit(prefix as u32 + 1, clock_ns, limit);
            let now = life.now_ns / UNIT_NS;
            let owed = due[prefix].saturating_sub(now);
            // What a prefix owed a whole round ago is taken for what it owes now.
            let is_of_former_round = (now - due[prefix].min(now)) + tolerance + interval >= 1 << 40;
            let truth = owed <= tolerance;
            life.holds(
                is_let_in == truth || is_of_former_round && !is_let_in,
                || format!("a prefix that owes {owed} of {tolerance} units is let in: {is_let_in}"),
            )?;
            if is_let_in {
                due[prefix] = due[prefix].max(now) + interval;
            }
        }
    }
    Ok(())
}

/// Silences of all lengths that a file may ask for, beside rounds of all lengths.
fn flow_ages(life: &mut Life) -> Result<(), BrokenProperty> {
    const LOOKS: u32 = 8;
    let mut idles: Vec<u64> = vec![2, 60, 120, 3600, 86_400, 7 * 86_400];
    // Without what the span has no room for.
    idles.retain(|idle_s| *idle_s == 7 * 86_400 || idle_s * SECOND < life.span_ns());
    for shortest_s in [2, 60] {
        let round = (Duration::from_secs(shortest_s) / LOOKS).max(Duration::from_millis(250));
        for idle_s in &idles {
            life.begin(10 * SECOND);
            let idle = Duration::from_secs(*idle_s);
            let limit = SilentRounds::of(idle, round);
            let (mut silent, mut since_ns) = (SilentRounds::default(), life.now_ns);
            loop {
                life.wait(round.as_nanos() as u64, round.as_nanos() as u64 * (1 << 24));
                silent = silent.and_one();
                let counted = match life.plan.planted {
                    true => silent.get().min(u32::from(u16::MAX)),
                    false => silent.get(),
                };
                let limit = match life.plan.planted {
                    true => limit.min(u32::from(u16::MAX)),
                    false => limit,
                };
                let age = Duration::from_nanos(life.now_ns - since_ns);
                let is_over = counted >= limit;
                let (early, late) = (is_over && age < idle, !is_over && age > idle + 2 * round);
                life.holds(!early && !late, || {
                    format!("a flow that may be silent for {idle:?} is over: {is_over}, at {age:?}")
                })?;
                if is_over {
                    (silent, since_ns) = (SilentRounds::default(), life.now_ns);
                    if !life.lasts() {
                        break;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Slots whose connections are silent for longer and shorter than is allowed.
fn slot_ages(life: &mut Life) -> Result<(), BrokenProperty> {
    let round_ns = MS << 32;
    for (idle_s, look_ns) in [(60, SECOND / 2), (3600, 7 * SECOND), (7 * 86_400, MINUTE)] {
        life.begin_around(round_ns);
        let idle = Duration::from_secs(idle_s);
        let (mut age, mut packets) = (SlotAge::default(), 0_u32);
        let (mut since_ns, mut next_ns) = (life.now_ns, life.now_ns);
        while life.lasts() {
            life.wait(look_ns, round_ns);
            if life.now_ns >= next_ns {
                packets = packets.wrapping_add(life.rng.random_range(1..100));
                next_ns = life.now_ns + life.rng.random_range(0..2 * idle_s * SECOND);
                since_ns = life.now_ns;
            }
            let now = match life.plan.planted {
                true => Duration::from_micros(u64::from((life.now_ns / US) as u32)),
                false => Duration::from_nanos(life.now_ns),
            };
            let told = age.silent(now, packets).unwrap_or_default();
            let truth = Duration::from_nanos(life.now_ns - since_ns);
            let error = told.abs_diff(truth);
            life.holds(error <= Duration::from_nanos(look_ns + MS), || {
                format!("silent for {truth:?} of {idle:?} reads {told:?}")
            })?;
        }
    }
    Ok(())
}
