// SPDX-License-Identifier: Apache-2.0
//! Response latency from the timestamps that clients echo (TSecr of RFC 7323),
//! from one direction.
//!
//! An echo says when, by the server's clock, the server sent what the client now
//! acknowledges. The quickest acknowledgement of a flow ties that clock to ours:
//! it came at once. A later one that is slower by `lag` was held back by the
//! client, and the response was there `lag` earlier. So the response latency is
//! the time from a request to the last new acknowledgement before the next
//! request, less its lag: without the client's own pauses, which a gap between requests cannot
//! separate from the server's.
//!
//! Servers' clocks tick in milliseconds, so a value is true to about half of one.
//! It follows one request at a time: with several outstanding it sees batches.
//! A server whose clock does not tick in milliseconds is found out and left alone.

use super::technique::{Segment, Side, after, known};
use super::{Packet, Samples};

const TICK_NS: i64 = 1_000_000;
/// Clocks drift: what ties them is let go by this much of the time (100 ppm).
const DRIFT: i64 = 10_000;
/// Ticks after which the clock's rate is looked at.
const ENOUGH_TICKS: i64 = 256;

/// One flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TsEcho {
    clock: Option<Clock>,
    /// The highest acknowledgement so far.
    acked: Option<u32>,
    /// When the open request was seen.
    request_ns: Option<u64>,
    /// When the newest part of its response was there.
    response_ns: Option<u64>,
}

/// The server's clock, beside ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Clock {
    first: (u64, u32),
    /// The newest echo, and its ticks since the first.
    newest: (u32, i64),
    /// The least of our time since the first packet minus the server's, and when
    /// it was last looked at.
    least_ns: i64,
    seen_ns: u64,
}

impl TsEcho {
    /// Takes the next packet.
    pub fn packet(&mut self, segment: &Segment) -> Samples {
        let packet = &segment.packet;
        let passing = Packet::SYN | Packet::RST | Packet::FIN;
        if segment.from != Side::Client
            || !segment.is_tcp()
            || !packet.has_ts
            || packet.tsecr == 0
            || segment.has(passing)
        {
            return Samples::default();
        }
        let lag_ns = self.lag_ns(packet);
        if self.acked.is_none_or(|acked| after(packet.ack, acked)) {
            self.acked = Some(packet.ack);
            self.response_ns = lag_ns.map(|lag_ns| packet.t_ns.saturating_sub(lag_ns));
        }
        if packet.payload_len == 0 {
            return Samples::default();
        }
        self.request(packet.t_ns)
    }

    /// A packet with data: the next request, if the one before has its response.
    fn request(&mut self, t_ns: u64) -> Samples {
        let Some(request_ns) = self.request_ns else {
            self.request_ns = Some(t_ns);
            self.response_ns = None;
            return Samples::default();
        };
        let Some(response_ns) = self.response_ns.take() else {
            return Samples::default();
        };
        self.request_ns = Some(t_ns);
        match response_ns.checked_sub(request_ns) {
            Some(latency_ns) if latency_ns > 0 => known(latency_ns, t_ns),
            _ => Samples::default(),
        }
    }

    /// How long the client held back what it echoes; `None` where the server's
    /// clock is not understood.
    fn lag_ns(&mut self, packet: &Packet) -> Option<u64> {
        let (t_ns, tsecr) = (packet.t_ns, packet.tsecr);
        let clock = self.clock.get_or_insert(Clock {
            first: (t_ns, tsecr),
            newest: (tsecr, 0),
            least_ns: 0,
            seen_ns: t_ns,
        });
        let ticks = clock.newest.1 + i64::from(tsecr.wrapping_sub(clock.newest.0) as i32);
        if ticks > clock.newest.1 {
            clock.newest = (tsecr, ticks);
        }
        let elapsed_ns = t_ns.wrapping_sub(clock.first.0) as i64;
        let apart_ns = elapsed_ns - ticks.saturating_mul(TICK_NS);
        let drift_ns = t_ns.saturating_sub(clock.seen_ns) as i64 / DRIFT;
        clock.seen_ns = clock.seen_ns.max(t_ns);
        clock.least_ns = apart_ns.min(clock.least_ns + drift_ns);
        if ticks >= ENOUGH_TICKS {
            let expected_ns = ticks.saturating_mul(TICK_NS);
            if (elapsed_ns - expected_ns).saturating_abs() > expected_ns / 4 {
                return None;
            }
        }
        // A stamp is up to a tick old when it is sent.
        Some((apart_ns - clock.least_ns - TICK_NS / 2).max(0) as u64)
    }
}
