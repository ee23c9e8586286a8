// SPDX-License-Identifier: Apache-2.0
//! Clocks, keys and ids of cookies.

use std::collections::{HashSet, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};

use causeway_core::cookie::quic::CidRoute;
use causeway_core::cookie::{
    self, Clock, CookieKey, CookieLayout, CookieMode, EchoFlow, KeyEpoch, Keys, Kind, Tuple,
};
use causeway_core::estimate::Packet;
use causeway_quic_lb::{Algorithm, CidConfig, CidKey, Issuer};
use rand::Rng as _;

use super::{BrokenProperty, DAY, HOUR, Life, MINUTE, MS, Machine, SECOND, US};
use crate::silence::Recent;

pub(super) const CLOCK_MS: Machine = Machine {
    name: "cookie-clock-ms",
    wraps: "T's ring (65.5 s), TSval in ms (49.7 d)",
    planted: "the kernel's clock is a u32 of ns",
    run: clock_ms,
};
pub(super) const CLOCK_US: Machine = Machine {
    name: "cookie-clock-us",
    wraps: "T's ring, TSval in us (71.6 min)",
    planted: "T is the time itself, modulo its ring",
    run: clock_us,
};
pub(super) const LEASE: Machine = Machine {
    name: "timestamp-cache",
    wraps: "leases of T, TSval in ms",
    planted: "who finds its line taken goes on from its own T",
    run: lease,
};
pub(super) const ECHO: Machine = Machine {
    name: "cookie-echo",
    wraps: "the balancer's ms (49.7 d), distances (73 min)",
    planted: "packets' times are a u32 of us",
    run: echo,
};
pub(super) const KEYS: Machine = Machine {
    name: "cookie-keys",
    wraps: "epochs (1 bit), 4 rotations a day",
    planted: "the former key is taken at the switch",
    run: keys,
};
pub(super) const QUIC_IDS: Machine = Machine {
    name: "quic-ids",
    wraps: "configurations (0 to 6), 48 rotations a day",
    planted: "a number is used again while ids of it live",
    run: quic_ids,
};

/// The time to a server's next segment: most come in bursts, some after minutes, hours, and
/// just when a clock of `round_ns` has gone round.
fn pause(life: &mut Life, round_ns: u64) -> u64 {
    match life.rng.random_range(0..2000) {
        0 => life.rng.random_range(MINUTE..3 * HOUR),
        1 if round_ns < DAY => round_ns - 2 * SECOND + life.rng.random_range(0..4 * SECOND),
        2..50 => life.rng.random_range(SECOND..2 * MINUTE),
        50..500 => life.rng.random_range(40 * MS..SECOND),
        _ => life.rng.random_range(10 * US..40 * MS),
    }
}

fn clock_ms(life: &mut Life) -> Result<(), BrokenProperty> {
    clock(life, MS, 1)
}

fn clock_us(life: &mut Life) -> Result<(), BrokenProperty> {
    clock(life, US, 1000)
}

fn clock(life: &mut Life, tick_ns: u64, unit: u16) -> Result<(), BrokenProperty> {
    for bits in [16, 20] {
        one_clock(life, tick_ns, unit, bits)?;
    }
    Ok(())
}

fn one_clock(life: &mut Life, tick_ns: u64, unit: u16, bits: u8) -> Result<(), BrokenProperty> {
    let round_ns = tick_ns << 32;
    life.begin_around(round_ns);
    let (mask, cookie) = (u32::MAX >> bits, 0x155);
    let stamped = |life: &Life| match life.plan.planted && unit == 1 {
        true => u64::from(life.now_ns as u32) / tick_ns,
        false => life.now_ns / tick_ns,
    };
    let o = stamped(life) as u32;
    let first = (o / u32::from(unit)) & mask;
    let (mut clock, mut recent) = (Clock::start(o, first, unit, bits), Recent::default());
    // T of the newest segment, and when it was first sent, in ticks; whether it was echoed.
    let mut newest = (first, life.now_ns / tick_ns);
    let mut is_echoed = true;
    while life.lasts() {
        let gap = pause(life, round_ns);
        life.wait(gap, round_ns);
        let (ticks, o) = (life.now_ns / tick_ns, stamped(life) as u32);
        let kind = match life.rng.random_range(0..8) {
            0 => Kind::Moves,
            1 => Kind::Ack,
            2 => Kind::ReceivingAck,
            _ => Kind::Data,
        };
        let t = match life.plan.planted && unit > 1 {
            true => (o / u32::from(unit)) & mask,
            false => clock.stamp_kind(o, kind),
        };
        let since_ns = (ticks - newest.1) * tick_ns;
        let taken = recent.takes(life.now_ns / MS, t << bits | cookie);
        // A clock that has gone round but for a second, and nothing that would distinguish it from
        // one that was read a second earlier than the last time.
        let is_round = (round_ns - 1100 * MS..round_ns + MS).contains(&since_ns) && !is_echoed;
        life.holds(taken || is_round && unit > 1, || {
            format!("bits {bits}: PAWS rejects {kind:?} behind {gap} ns")
        })?;
        if !taken {
            continue;
        }
        if t != newest.0 {
            newest = (t, ticks);
            is_echoed = false;
        }
        // A bare acknowledgement is not answered.
        if matches!(kind, Kind::Ack | Kind::ReceivingAck) && life.rng.random_range(0..4) > 0 {
            continue;
        }
        let way = life.rng.random_range(20 * US..200 * MS);
        life.wait(way, round_ns);
        let now_o = stamped(life) as u32;
        let back = clock.echo(t, now_o);
        is_echoed = true;
        // The clock that the socket reckons with sees the time of that segment.
        let rtt = (now_o.wrapping_sub(back)) as i32;
        let truth = (life.now_ns / tick_ns - newest.1) as i64;
        let unit = i64::from(unit);
        life.holds(
            back != 0 && rtt >= 0 && i64::from(rtt) <= truth + 2 * unit,
            || format!("bits {bits}: a round trip of {truth} ticks reads {rtt}"),
        )?;
        // Where T had moved just before it is exact.
        let exact = newest.1 == ticks;
        life.holds(!exact || (i64::from(rtt) - truth).abs() <= 2 * unit, || {
            format!("bits {bits}: a round trip of {truth} ticks reads {rtt}")
        })?;
    }
    Ok(())
}

/// A socket's storage, and the cache's line that it lends its clock to.
fn lease(life: &mut Life) -> Result<(), BrokenProperty> {
    const BITS: u8 = 16;
    let (mask, round_ns) = (u32::MAX >> BITS, MS << 32);
    let period = 4096;
    let ahead = |a: u32, b: u32| (a.wrapping_sub(b) << BITS) as i32 >> BITS;
    life.begin_around(round_ns);
    let o = (life.now_ns / MS) as u32;
    let mut storage = Clock::start(o, o & mask, 1, BITS);
    let mut recent = Recent::default();
    // T of the storage's clock.
    let mut stored_t = o & mask;
    while life.lasts() {
        let (lease, mut line, mut t) = (storage.lease(), storage.clone(), stored_t);
        let is_lent = ahead(lease, t) > 0;
        for _ in 0..life.rng.random_range(1..40) {
            let gap = pause(life, round_ns);
            life.wait(gap, round_ns);
            let o = (life.now_ns / MS) as u32;
            if is_lent && ahead(lease, t) < period {
                break;
            }
            let clock = if is_lent { &mut line } else { &mut storage };
            t = clock.stamp_kind(o, Kind::Moves);
            let taken = recent.takes(life.now_ns / MS, t << BITS);
            life.holds(taken, || format!("PAWS rejects T = {t}"))?;
            life.holds(!is_lent || ahead(lease, t) >= 0, || {
                format!("T = {t} is beyond its lease of {lease}")
            })?;
            if life.rng.random_range(0..4) > 0 {
                clock.echo(t, o);
            }
        }
        let o = (life.now_ns / MS) as u32;
        match life.rng.random_range(0..4) {
            // Another connection has the line.
            0 if is_lent && life.plan.planted => {}
            0 if is_lent => {
                storage.resume(o, lease);
                stored_t = storage.stamp(o);
                let taken = recent.takes(life.now_ns / MS, stored_t << BITS);
                life.holds(taken, || {
                    format!("PAWS rejects T = {stored_t} behind a lease")
                })?;
                storage.echo(stored_t, o);
            }
            _ => {
                if is_lent {
                    storage = line;
                }
                stored_t = t;
            }
        }
    }
    Ok(())
}

/// A client that asks and pauses: latencies by what it echoes.
fn echo(life: &mut Life) -> Result<(), BrokenProperty> {
    const BITS: u8 = 16;
    const LATENCY_NS: u64 = 2 * MS;
    let round_ns = MS << 32;
    life.begin_around(round_ns);
    let server_ms = |life: &Life| (life.now_ns / MS) as u32 ^ 0x8000_0000;
    let t = server_ms(life) & 0xffff;
    let mut clock = Clock::start(server_ms(life), t, 1, BITS);
    let (mut flow, mut echoed, mut asked) = (EchoFlow::default(), t, 0_u32);
    let (mut sum, mut weight, mut undated) = (0, 0, 0);
    let mut send = |life: &mut Life, echoed: u32, asked: u32, len: u32| {
        let t_ns = match life.plan.planted {
            true => life.now_ns % (US << 32),
            false => life.now_ns,
        };
        let packet = Packet {
            t_ns,
            ip_len: 52 + len,
            payload_len: len,
            seq: asked.wrapping_mul(100),
            ack: asked.wrapping_mul(1000),
            tsecr: echoed << BITS,
            tcp_flags: Packet::ACK,
            has_ts: true,
            proto: Packet::TCP,
            opaque: false,
        };
        let mut told = (0, 0, 0);
        for sample in flow.packet(&packet, BITS).iter() {
            if sample.bound_halves == 0 {
                told.0 += sample.sum_halves_ns;
                told.1 += u64::from(sample.weight_halves);
                let mean_ns = sample.sum_halves_ns / u64::from(sample.weight_halves.max(1));
                told.2 = mean_ns.max(told.2);
            }
        }
        told
    };
    // The SYN-ACK has gone one way and the ACK the other.
    life.wait(MS, round_ns);
    send(life, echoed, asked, 0);
    while life.lasts() {
        let told = send(life, echoed, asked, 100);
        sum += told.0;
        weight += told.1;
        let most_ns = LATENCY_NS + 45 * MS;
        life.holds(told.2 < most_ns, || {
            format!("a latency of {LATENCY_NS} ns reads {}", told.2)
        })?;
        asked = asked.wrapping_add(1);
        life.wait(LATENCY_NS / 2, round_ns);
        echoed = clock.stamp_kind(server_ms(life), Kind::Data);
        life.wait(LATENCY_NS / 2, round_ns);
        clock.echo(echoed, server_ms(life));
        let pause_ns = match life.rng.random_range(0..1000) {
            0 => life.rng.random_range(MINUTE..HOUR),
            1..10 => life.rng.random_range(5 * SECOND..MINUTE),
            // At once, without which the least distance creeps by 8 ns a packet.
            10..200 => life.rng.random_range(US..MS),
            _ => life.rng.random_range(5 * MS..5 * SECOND),
        };
        undated += u64::from(pause_ns >> 40 > 0);
        let delay_ns = pause_ns.min(40 * MS);
        life.wait(delay_ns, round_ns);
        if pause_ns > delay_ns {
            send(life, echoed, asked, 0);
            life.wait(pause_ns - delay_ns, round_ns);
        }
        if weight >= 200 {
            // An echo of more than 18 minutes says nothing, so that the delay of an
            // acknowledgement is left in.
            let (mean_ns, left_in_ns) = (sum / weight, undated * 2 * 45 * MS / weight);
            life.holds(mean_ns.abs_diff(LATENCY_NS) < MS + left_in_ns, || {
                format!("a latency of {LATENCY_NS} ns reads {mean_ns}")
            })?;
            (sum, weight, undated) = (0, 0, 0);
        }
    }
    Ok(())
}

/// Keys change every six hours: the next one is prepared, then switched to, then the former one
/// is taken. What has opened less than three hours ago keeps its server.
fn keys(life: &mut Life) -> Result<(), BrokenProperty> {
    const PERIOD_NS: u64 = 6 * HOUR;
    const KEPT_NS: u64 = 3 * HOUR;
    let key = |number: u64| CookieKey::from_words([number, !number]);
    let epoch = |number: u64| match number % 2 {
        0 => KeyEpoch::Zero,
        _ => KeyEpoch::One,
    };
    let format = CookieLayout::default_of(CookieMode::Timestamp);
    let vip = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 443));
    let mut open: VecDeque<(u64, Tuple, u32, u16)> = VecDeque::new();
    while life.lasts() {
        let gap = life.rng.random_range(MS..4 * SECOND);
        life.wait(gap, 2 * PERIOD_NS);
        let (number, phase_ns) = (life.now_ns / PERIOD_NS, life.now_ns % PERIOD_NS);
        let (current, other) = match 8 * phase_ns / PERIOD_NS {
            0 => (number, Some(number + 1)),
            1..6 if !life.plan.planted => (number + 1, Some(number)),
            _ => (number + 1, None),
        };
        let keys = Keys::new(epoch(current), key(current), other.map(key));
        let id = life.rng.random_range(0..format.ids());
        let client = SocketAddr::from((Ipv4Addr::from(life.rng.random::<u32>()), 4000));
        let tuple = Tuple::tcp(client, vip);
        let cookie = cookie::encode(&tuple, &key(current), epoch(current), id, &format);
        open.push_back((life.now_ns, tuple, cookie, id));
        while open.front().is_some_and(|of| life.now_ns - of.0 > KEPT_NS) {
            open.pop_front();
        }
        let (since_ns, tuple, cookie, id) = open[life.rng.random_range(0..open.len())];
        let found = cookie::decode(&tuple, &keys, cookie, &format).map(|(_, id)| id);
        let age_s = (life.now_ns - since_ns) / SECOND;
        life.holds(found == Some(id), || {
            format!("a connection of {age_s} s names {found:?} in place of {id}")
        })?;
    }
    Ok(())
}

/// Configurations of connection ids change twice an hour and take the numbers 0 to 6 by turns;
/// a connection keeps an id for an hour and a half at most.
fn quic_ids(life: &mut Life) -> Result<(), BrokenProperty> {
    let (turn_ns, kept_ns) = (HOUR / 2, HOUR / 2 * 3);
    let numbers = if life.plan.planted { 2 } else { 7 };
    let config = |turn: u64| {
        let mut octets = [7; 16];
        octets[..8].copy_from_slice(&turn.to_le_bytes());
        let number = (turn % numbers) as u8;
        CidConfig::new(number, 2, 6, Algorithm::SipHash(CidKey::new(octets)))
    };
    let mut routes: [Option<CidRoute>; 8] = Default::default();
    let mut held: VecDeque<(u64, Vec<u8>, u32)> = VecDeque::new();
    let mut issued = HashSet::new();
    let mut issuer: Option<(u64, Vec<Issuer>)> = None;
    while life.lasts() {
        let gap = life.rng.random_range(MS..4 * SECOND);
        life.wait(gap, turn_ns * 7);
        let turn = life.now_ns / turn_ns;
        if issuer.as_ref().is_none_or(|(of, _)| *of != turn) {
            let Ok(config) = config(turn) else { continue };
            routes[usize::from(config.number())] = CidRoute::new(&config).ok();
            let servers = (0..4).filter_map(|server| Issuer::new(&config, server).ok());
            issuer = Some((turn, servers.collect()));
            issued.clear();
        }
        let Some((_, issuers)) = &mut issuer else {
            continue;
        };
        let server = life.rng.random_range(0..4_u32);
        let id = issuers[server as usize].issue().as_ref().to_vec();
        life.holds(issued.insert(id.clone()), || {
            format!("{id:?} is issued twice")
        })?;
        held.push_back((life.now_ns, id, server));
        while held.front().is_some_and(|of| life.now_ns - of.0 > kept_ns) {
            held.pop_front();
        }
        let at = life.rng.random_range(0..held.len());
        let (_, id, server) = &held[at];
        let route = routes[usize::from(id[0] >> 5)].as_ref();
        let found = route.and_then(|route| route.server(id));
        life.holds(found == Some(*server), || {
            format!("an id of server {server} names {found:?}")
        })?;
    }
    Ok(())
}
