// SPDX-License-Identifier: Apache-2.0
//! Intervals up to and past the stand-alone ACK timer.

use super::{ExpectedCurve, IMMEDIATE_MS, Interval, TIMER_MS, ms, wait};

/// Pauses that the estimator distinguishes from a response, when the echoed timestamp alone shows
/// them: `WC_ECHO_IDLE_MIN_NS` of bpf/shared/window_chain.h.
const ECHO_IDLE_MS: f64 = 6.0;
/// How well it does: a tick of TCP's timestamps and half of one.
const ECHO_ERROR_MS: f64 = 1.5;

/// The rows, and what several verdicts compare with.
struct Rows<'a> {
    all: &'a [Interval],
    /// Up to where the timer may win its race: 40 ms itself is a toss-up.
    rising: Vec<&'a Interval>,
    past: Vec<&'a Interval>,
    /// Of the server's TCP RTT, ms.
    peak_ms: f64,
}

pub(super) fn judge(all: &[Interval]) -> Vec<ExpectedCurve> {
    let before = |r: &&Interval| r.wait_ms >= 2.0 && r.wait_ms < TIMER_MS;
    let rows = Rows {
        all,
        rising: all.iter().filter(before).collect(),
        past: all.iter().filter(|r| r.wait_ms > TIMER_MS).collect(),
        peak_ms: all.iter().map(server).fold(0.0, f64::max),
    };
    let mut verdicts = Vec::from(rows.tcp());
    verdicts.extend(rows.rr());
    verdicts.extend(rows.sampled());
    verdicts.extend([rows.ping(), rows.causal()]);
    verdicts
}

fn server(r: &Interval) -> f64 {
    r.server_tcp_rtt_us / 1e3
}

fn follows(value_ms: f64, wait_ms: f64) -> bool {
    (value_ms - wait_ms).abs() <= (0.25 * wait_ms).max(1.5)
}

impl Rows<'_> {
    fn show(&self, of: impl Fn(&Interval) -> f64) -> String {
        let cell = |r: &Interval| format!("{}: {}", wait(r.wait_ms), ms(of(r)));
        let cells: Vec<String> = self.all.iter().map(cell).collect();
        format!("ms, by pause: {}", cells.join(", "))
    }

    fn tcp(&self) -> [ExpectedCurve; 3] {
        let past = self.past.iter();
        let past = past.map(|r| format!("{} ms at {} ms", ms(server(r)), r.wait_ms));
        [
            ExpectedCurve {
                curve: "server tcp rtt",
                expected: "rises with the interval up to the stand-alone ACK timer (within a quarter of each wait)",
                measured: self.show(server),
                agree: !self.rising.is_empty()
                    && self.rising.iter().all(|r| follows(server(r), r.wait_ms)),
            },
            ExpectedCurve {
                curve: "server tcp rtt past the timer",
                expected: "falls to the value of an immediate ACK (below a quarter of the timer)",
                measured: past.collect::<Vec<_>>().join(", "),
                agree: !self.past.is_empty() && self.past.iter().all(|r| server(r) < IMMEDIATE_MS),
            },
            ExpectedCurve {
                curve: "client tcp rtt",
                expected: "stays low at every interval (below a tenth of the server's peak)",
                measured: self.show(|r| r.client_tcp_rtt_us / 1e3),
                agree: self
                    .all
                    .iter()
                    .all(|r| r.client_tcp_rtt_us / 1e3 < self.peak_ms / 10.0),
            },
        ]
    }

    fn rr(&self) -> [ExpectedCurve; 2] {
        let base_us = self.all[0].rr_p50_us;
        let longest = self.rising.last().copied().unwrap_or(&self.all[0]);
        let rise_us = longest.rr_p50_us - base_us;
        let server_rise_us = longest.server_tcp_rtt_us - self.all[0].server_tcp_rtt_us;
        [
            ExpectedCurve {
                curve: "rr p50",
                expected: "increases somewhat with the interval, not at all like the server's TCP RTT (by less than a hundredth of that one's rise)",
                measured: format!(
                    "{base_us:.1} us with the first wait, {:.1} us at {} ms: {:.1} times as much (the write-up: 2.0 times), and {:.2} % of the server's rise (the write-up: 0.24 %)",
                    longest.rr_p50_us,
                    longest.wait_ms,
                    longest.rr_p50_us / base_us,
                    100.0 * rise_us / server_rise_us
                ),
                agree: rise_us > 0.0 && rise_us < server_rise_us / 100.0,
            },
            ExpectedCurve {
                curve: "rr against server tcp rtt",
                expected: "never follows the server's TCP RTT (stays below a tenth of its peak)",
                measured: self.show(|r| r.rr_p50_us / 1e3),
                agree: self
                    .all
                    .iter()
                    .all(|r| r.rr_p50_us / 1e3 < self.peak_ms / 10.0),
            },
        ]
    }

    /// Past the timer there is an immediate ACK and then the next request, which covers
    /// the same data. A sampler that takes 1 packet in N meets the first with 1/N, else
    /// the second with (1 - 1/N)/N: nearly as often, and the median falls on either. The
    /// write-up takes requests of two segments to see the second "more reliably".
    fn sampled(&self) -> [ExpectedCurve; 2] {
        let sampled = |r: &Interval| r.sampled_p50_ms.unwrap_or(f64::NAN);
        let client = |r: &Interval| r.client_sampled_p50_ms.unwrap_or(f64::NAN);
        let either = |r: &Interval| sampled(r) < IMMEDIATE_MS || follows(sampled(r), r.wait_ms);
        [
            ExpectedCurve {
                curve: "sampled at the server",
                expected: "follows the server's TCP RTT up to the timer (within a quarter of each wait); past it the immediate ACK or the next request, whichever it meets more often",
                measured: self.show(sampled),
                agree: !self.rising.is_empty()
                    && self.rising.iter().all(|r| follows(sampled(r), r.wait_ms))
                    && self.past.iter().all(|r| either(r)),
            },
            ExpectedCurve {
                curve: "sampled at the client",
                expected: "0.5 ms everywhere: the first bucket of 1 ms, whatever the true value in it",
                measured: self.show(client),
                agree: self
                    .all
                    .iter()
                    .all(|r| r.client_sampled_p50_ms == Some(0.5)),
            },
        ]
    }

    fn ping(&self) -> ExpectedCurve {
        let ping = |r: &Interval| r.ping_p50_us.unwrap_or(f64::NAN) / 1e3;
        ExpectedCurve {
            curve: "ping p50",
            expected: "flat: no application and no ACK timer (below a tenth of the server's TCP peak)",
            measured: self.show(ping),
            agree: self.all.iter().all(|r| ping(r) < self.peak_ms / 10.0),
        }
    }

    fn causal(&self) -> ExpectedCurve {
        let causal = |r: &Interval| r.causal_us.unwrap_or(f64::NAN) / 1e3;
        let as_designed = |r: &Interval| {
            let rr_ms = r.rr_p50_us / 1e3;
            if r.wait_ms > ECHO_IDLE_MS {
                (causal(r) - rr_ms).abs() <= ECHO_ERROR_MS
            } else {
                causal(r) <= 1.1 * r.wait_ms.max(0.0) + 2.0 * rr_ms
            }
        };
        ExpectedCurve {
            curve: "causal",
            expected: "not the write-up's: by its design Causeway's estimate leaves out pauses above 6 ms (within 1.5 ms of rr) and takes shorter ones for response time",
            measured: self.show(causal),
            agree: self.all.iter().all(as_designed),
        }
    }
}
