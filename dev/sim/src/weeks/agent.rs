// SPDX-License-Identifier: Apache-2.0
//! What runs at the servers' agents, and between them and the balancers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use causeway_core::agent_report::{
    Body, Boot, Question, Reception, ReportKeys, ReportReceiver, ReportSecrets, ReportSender,
    ServerLoad,
};
use causeway_core::certes::{
    CategoryObserver, ConnectionEvent, Count, LINUX_6_5_S, Mix, RetryClass, Slot, Tracker,
};
use causeway_core::cookie::{CookieKey, KeyEpoch};
use rand::Rng as _;

use super::{BrokenProperty, DAY, HOUR, Life, MINUTE, MS, Machine, SECOND, US};

pub(super) const SYN_TRACK: Machine = Machine {
    name: "syn-track",
    wraps: "none: times have 64 bits; connections of days",
    planted: "its clock is a u32 of ns",
    run: syn_track,
};
pub(super) const SYN_SLOTS: Machine = Machine {
    name: "syn-slots",
    wraps: "the model's rings of slots of 250 ms",
    planted: "times of completion are a u32 of ns",
    run: syn_slots,
};
pub(super) const REPORTS: Machine = Machine {
    name: "agent-reports",
    wraps: "replay window (64), a boot each day, agents that start anew",
    planted: "an agent counts from a u32 of us",
    run: reports,
};

/// Connections that live from milliseconds to days, each with transactions.
fn syn_track(life: &mut Life) -> Result<(), BrokenProperty> {
    let clock_ns = |life: &Life| match life.plan.planted {
        true => u64::from(life.now_ns as u32),
        false => life.now_ns,
    };
    let mut isn = u32::MAX - 1_000_000;
    while life.lasts() {
        isn = isn.wrapping_add(life.rng.random_range(0..100_000));
        let mut tracker = Tracker::default();
        let mut step = |life: &Life, event| tracker.step(event, clock_ns(life));
        let mut lost_ns = 0;
        step(life, ConnectionEvent::Syn(isn));
        for retry in 0..life.rng.random_range(0..3_u64) {
            life.wait(SECOND << retry, 1 << 32);
            lost_ns += SECOND << retry;
            step(life, ConnectionEvent::Syn(isn));
        }
        let accepted = step(life, ConnectionEvent::SynAck);
        let is_right = (accepted.count, accepted.conn_fail_ns) == (Count::Accepted, lost_ns);
        life.holds(is_right, || format!("{lost_ns} ns are lost: {accepted:?}"))?;
        let rtt_ns = life.rng.random_range(20 * US..100 * MS) / US * US;
        life.wait(rtt_ns, 1 << 32);
        let established = step(life, ConnectionEvent::Ack);
        life.holds(established.rtt_ns == rtt_ns, || {
            format!("a round trip of {rtt_ns} ns: {established:?}")
        })?;
        let mut answered_ns = None;
        for _ in 0..life.rng.random_range(1..30) {
            let think_ns = match life.rng.random_range(0..300) {
                0 => life.rng.random_range(HOUR..9 * HOUR),
                1..10 => life.rng.random_range(3 * SECOND..MINUTE),
                _ => life.rng.random_range(US..100 * MS),
            };
            let first = answered_ns.is_none();
            // One that asks late had opened its connection in advance.
            let think_ns = if first {
                think_ns.min(100 * MS)
            } else {
                think_ns
            };
            life.wait(think_ns, 1 << 32);
            let since_ns = if first { rtt_ns + think_ns } else { 0 };
            let before = step(life, ConnectionEvent::Request);
            let told = answered_ns.is_none_or(|ns: u64| before.syn_to_end_ns == ns);
            life.holds(told, || {
                format!("an answer after {answered_ns:?} ns: {before:?}")
            })?;
            let answer_ns = life.rng.random_range(US..SECOND);
            life.wait(answer_ns, 1 << 32);
            step(life, ConnectionEvent::Data);
            answered_ns = Some(since_ns + answer_ns);
        }
        let end = step(life, ConnectionEvent::ServerFin);
        life.holds(answered_ns == Some(end.syn_to_end_ns), || {
            format!("an answer after {answered_ns:?} ns: {end:?}")
        })?;
    }
    Ok(())
}

/// Slots of a server that is asked by day and sleeps by night, settled in pieces.
fn syn_slots(life: &mut Life) -> Result<(), BrokenProperty> {
    const SLOT_NS: u64 = 250 * MS;
    const KEEP: usize = 240;
    let mix = Mix::new([RetryClass::new("linux", LINUX_6_5_S, 10.0)]);
    let fail = |what: String| BrokenProperty { day: 0.0, what };
    let mix = mix.map_err(|e| fail(e.to_string()))?;
    let observer = CategoryObserver::new(0.25, &mix, KEEP);
    let mut observer = observer.map_err(|e| fail(e.to_string()))?;
    let mut number = life.now_ns / SLOT_NS;
    while life.lasts() {
        let settled: Vec<(u64, Slot)> = (0..240)
            .map(|nth| {
                let by_night = (number + nth) * SLOT_NS % DAY > DAY * 2 / 3;
                let asked = if by_night {
                    0
                } else {
                    life.rng.random_range(0..40)
                };
                let begun_ns = (number + nth) * SLOT_NS;
                // As the tracker reports them: end less beginning.
                let end_ns = begun_ns + life.rng.random_range(US..200 * MS);
                let served_ns = match life.plan.planted {
                    true => u64::from(end_ns as u32).wrapping_sub(u64::from(begun_ns as u32)),
                    false => end_ns - begun_ns,
                };
                let slot = Slot {
                    offered: asked,
                    accepted: asked,
                    first_offered: asked,
                    first_accepted: asked,
                    heard: asked,
                    heard_answered: asked,
                    established: asked,
                    established_first: asked,
                    served: asked,
                    served_first: asked,
                    completed: asked,
                    syn_to_end_ns: served_ns.saturating_mul(asked),
                    rtt_ns: MS * asked,
                    ..Slot::default()
                };
                (number + nth, slot)
            })
            .collect();
        number += 240;
        life.wait(240 * SLOT_NS, SLOT_NS * KEEP as u64);
        let fed = observer.feed(&settled, &[]);
        life.holds(fed.is_ok(), || format!("{fed:?}"))?;
        life.holds(observer.next() == Some(number), || {
            format!("slot {number} is {:?}", observer.next())
        })?;
        for (of, (_, slot)) in observer.recent().zip(&settled) {
            let asked = slot.completed as f64;
            let (exact_s, model_s) = (of.exact.mean_s(), of.model.mean_s());
            let is_sane = |mean_s: Option<f64>| mean_s.is_none_or(|s| (0.0..1.0).contains(&s));
            life.holds(is_sane(exact_s) && is_sane(model_s), || {
                format!("{asked} transactions of at most 0.2 s: {exact_s:?}, {model_s:?}")
            })?;
            let transactions = of.exact.transactions();
            life.holds(transactions == asked, || {
                format!("{asked} transactions: {transactions}")
            })?;
        }
    }
    Ok(())
}

/// Agents that report each second, restart each hour and boot each day; an attacker sends again
/// what they sent.
fn reports(life: &mut Life) -> Result<(), BrokenProperty> {
    let server = IpAddr::from(Ipv4Addr::new(10, 0, 0, 1));
    let balancer = SocketAddr::from((Ipv4Addr::new(10, 0, 0, 2), 9474));
    let keys = ReportKeys {
        current: KeyEpoch::Zero,
        secrets: ReportSecrets::Root([Some(CookieKey::from_words([1, 2])), None]),
    };
    let mut receiver = ReportReceiver::new(CookieKey::from_words([3, 4]));
    let (mut boot_ns, mut former) = (0, Vec::<Vec<u8>>::new());
    life.begin(40 * MINUTE);
    let mut sender = None;
    let mut started = (u64::MAX, u64::MAX);
    while life.lasts() {
        life.wait(SECOND, HOUR);
        let begun = (life.now_ns / DAY, life.now_ns / HOUR);
        if begun != started {
            if begun.0 != started.0 {
                boot_ns = life.now_ns - MINUTE;
            }
            started = begun;
            let boot = Boot {
                time_s: (boot_ns / SECOND) as u32,
                id: (boot_ns / MS) as u32,
            };
            let up_ns = life.now_ns - boot_ns;
            let up_ns = match life.plan.planted {
                true => u64::from((up_ns / US) as u32 / 4 % 500_000_000) * US,
                false => up_ns,
            };
            sender = Some(ReportSender::new(boot, up_ns));
        }
        let Some(sender) = &mut sender else { continue };
        let load = ServerLoad {
            cpu_milli: life.rng.random_range(0..1000),
            in_flight: 1,
        };
        let datagram = sender.datagram(server, vec![Body::Load(load)], &keys);
        let mut outcome = receiver.receive(&datagram, Some(&keys), life.now_ns);
        if matches!(outcome, Err(Reception::Unproven)) {
            let challenge = receiver.challenge(&datagram, &keys, life.now_ns);
            let question = challenge
                .and_then(|challenge| sender.question(&challenge, balancer, &[server], &keys));
            if let Some(Question::Challenge(server, number)) = question {
                let bodies = vec![Body::Load(load), Body::Response(number)];
                let response = sender.datagram(server, bodies, &keys);
                outcome = receiver.receive(&response, Some(&keys), life.now_ns);
            }
        }
        life.holds(outcome.is_ok(), || {
            format!("a report is refused: {outcome:?}")
        })?;
        let known = receiver.load(server, life.now_ns);
        life.holds(known == Some(load), || format!("{load:?} is {known:?}"))?;
        if let Some(old) = former.get(life.rng.random_range(0..1000)) {
            let again = receiver.receive(old, Some(&keys), life.now_ns);
            life.holds(again.is_err(), || {
                format!("a report counts again: {again:?}")
            })?;
        }
        match former.len() < 1000 {
            true => former.push(datagram),
            false => former[life.rng.random_range(0..1000)] = datagram,
        }
    }
    Ok(())
}
