// SPDX-License-Identifier: Apache-2.0
//! Latency estimators, whose clients pause for microseconds to days.

use causeway_core::estimate::{FixedGap, FixedGapConfig, Packet, Samples, WindowChain};
use rand::Rng as _;

use super::{BrokenProperty, DAY, HOUR, Life, MINUTE, MS, Machine, SECOND, US};

pub(super) const WINDOW_CHAIN: Machine = Machine {
    name: "window-chain",
    wraps: "ring of 16-bit times, distances (73 min), TSecr (49.7 d), sequence numbers",
    planted: "packets' times are a u32 of ns",
    run: window_chain,
};
pub(super) const FIXED_GAP: Machine = Machine {
    name: "fixed-gap",
    wraps: "none: times have 64 bits; pauses of days",
    planted: "packets' times are a u32 of ns",
    run: fixed_gap,
};

/// A client that has nothing to say acknowledges after so long.
const DELAY_NS: u64 = 40 * MS;

/// Until the client's next request: mostly at once.
fn pause_ns(life: &mut Life) -> u64 {
    match life.rng.random_range(0..20_000) {
        0 => life.rng.random_range(HOUR..30 * HOUR),
        1..20 => life.rng.random_range(MINUTE..HOUR),
        20..200 => life.rng.random_range(SECOND..MINUTE),
        200..2000 => life.rng.random_range(300 * MS..SECOND),
        _ => life.rng.random_range(US..3 * US),
    }
}

fn arrival_ns(life: &Life) -> u64 {
    match life.plan.planted {
        true => u64::from(life.now_ns as u32),
        false => life.now_ns,
    }
}

/// One connection, one request at a time.
struct Client {
    chain: WindowChain,
    seq: u32,
    ack: u32,
    echo_ms: u32,
}

impl Client {
    fn send(&mut self, life: &Life, flags: u8, len: u32) -> Samples {
        let samples = self.chain.packet(&Packet {
            t_ns: arrival_ns(life),
            ip_len: 52 + len,
            payload_len: len,
            seq: self.seq,
            ack: self.ack,
            tsecr: self.echo_ms,
            tcp_flags: flags,
            has_ts: true,
            proto: Packet::TCP,
            opaque: false,
        });
        self.seq = self.seq.wrapping_add(len);
        samples
    }
}

fn window_chain(life: &mut Life) -> Result<(), BrokenProperty> {
    let round_ns = MS << 32;
    life.begin_around(round_ns);
    let mut client = Client {
        chain: WindowChain::default(),
        seq: u32::MAX - 1_000_000,
        ack: u32::MAX - 3_000_000,
        echo_ms: (life.now_ns / MS) as u32,
    };
    client.send(life, Packet::SYN, 0);
    client.seq = client.seq.wrapping_add(1);
    life.wait(MS, round_ns);
    client.send(life, Packet::ACK, 0);
    // What a sample may contain: latencies of this request and the one before.
    let (mut latencies, mut unprompted, mut is_undated) = ([MS; 2], 0, false);
    while life.lasts() {
        for sample in client.send(life, Packet::ACK, 200).iter() {
            let Some(mean_ns) = sample.mean_ns() else {
                continue;
            };
            let (least, most) = (
                latencies[0].min(latencies[1]),
                latencies[0].max(latencies[1]),
            );
            // Echoes show pauses by ticks of 1 ms; not of one of 18 minutes and more, nor
            // behind that until a request comes at once: the delay of the client's
            // acknowledgement is left in.
            let delay_ns = if is_undated { DELAY_NS } else { 0 };
            let most = (most + delay_ns) as f64 * 1.1 + 2e6;
            let is_right = (least as f64 * 0.9 - 2e6..=most).contains(&mean_ns);
            life.holds(is_right || sample.bound_halves > 0, || {
                format!("latencies of {latencies:?} ns read {mean_ns}")
            })?;
        }
        let latency_ns = life.rng.random_range(MS..20 * MS);
        latencies = [latencies[1], latency_ns];
        life.wait(latency_ns, round_ns);
        client.ack = client.ack.wrapping_add(1000);
        client.echo_ms = (life.now_ns / MS) as u32;
        let pause_ns = pause_ns(life);
        // The sample of this pause comes with the request behind the next one.
        is_undated = unprompted > 0;
        unprompted = match pause_ns {
            _ if pause_ns >> 40 > 0 => 3,
            _ if pause_ns < MS => unprompted.min(2) / 2,
            _ => unprompted,
        };
        is_undated |= unprompted > 0;
        if pause_ns > DELAY_NS {
            life.wait(DELAY_NS, round_ns);
            client.send(life, Packet::ACK, 0);
            life.wait(pause_ns - DELAY_NS, round_ns);
        } else {
            life.wait(pause_ns, round_ns);
        }
    }
    Ok(())
}

/// Batches of one packet; gaps up to a second are latencies, others are idle time.
fn fixed_gap(life: &mut Life) -> Result<(), BrokenProperty> {
    let config = FixedGapConfig {
        delta_ns: 500 * US,
        idle_ns: SECOND,
    };
    let mut estimator = FixedGap::new(config);
    let mut gap_ns = 0;
    while life.lasts() {
        let samples = estimator.packet(&Packet {
            t_ns: arrival_ns(life),
            ip_len: 152,
            payload_len: 100,
            proto: Packet::UDP,
            ..Packet::default()
        });
        let told = samples.iter().find_map(|sample| sample.mean_ns());
        let truth = (config.delta_ns < gap_ns && gap_ns < config.idle_ns).then_some(gap_ns as f64);
        life.holds(told == truth, || {
            format!("a gap of {gap_ns} ns reads {told:?}")
        })?;
        gap_ns = match life.rng.random_range(0..100_000) {
            0 => life.rng.random_range(HOUR..2 * DAY),
            1..1000 => life.rng.random_range(SECOND..MINUTE),
            _ => life.rng.random_range(MS..SECOND),
        };
        life.wait(gap_ns, 1 << 32);
    }
    Ok(())
}
