// SPDX-License-Identifier: Apache-2.0
//! The shapes that the study's curves should have, and whether they have them.
//!
//! The expectations are those of "A Brief Look at Round Trip Time" (Rick Jones,
//! Google Cloud). Each is judged by ratios, not by the absolute times of one
//! machine; the bounds stand in the sentence that is judged.

/// One response/request interval, single-segment requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    /// Time between a response and the next request, ms; below 0: none.
    pub wait_ms: f64,
    /// Request to response, median.
    pub rr_p50_us: f64,
    /// 99th percentile.
    pub rr_p99_us: f64,
    /// Smoothed round-trip time of the client's kernel, median reading.
    pub client_tcp_rtt_us: f64,
    /// The same of the server's.
    pub server_tcp_rtt_us: f64,
    /// The sampler at the server, buckets of 1 ms; `None` without a pair.
    pub sampled_p50_ms: Option<f64>,
    /// The sampler at the client.
    pub client_sampled_p50_ms: Option<f64>,
    /// ICMP echo, median.
    pub ping_p50_us: Option<f64>,
    /// Causeway's estimate from requests alone, median.
    pub causal_us: Option<f64>,
}

/// One interval beyond the stand-alone ACK timer, or one request size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beyond {
    /// Time between a response and the next request, ms.
    pub wait_ms: f64,
    /// Connections.
    pub streams: u32,
    /// Bytes of a request.
    pub request_bytes: u32,
    /// As in [`Interval`].
    pub rr_p50_us: f64,
    /// As in [`Interval`].
    pub client_tcp_rtt_us: f64,
    /// As in [`Interval`].
    pub server_tcp_rtt_us: f64,
    /// As in [`Interval`].
    pub sampled_p50_ms: Option<f64>,
    /// Share of the sampler's values at the server that are the application's time
    /// (half the wait or more).
    pub sampled_app_share: f64,
    /// The sampler's values at the server.
    pub sampled_values: u64,
}

/// One run over a path that loses packets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lossy {
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Share of packets lost in each direction, percent.
    pub loss_pct: f64,
    /// Median request.
    pub rr_p50_us: f64,
    /// The slowest request.
    pub rr_max_us: f64,
    /// The largest reading of the client's smoothed round-trip time.
    pub client_tcp_rtt_max_us: f64,
    /// Segments sent again, both ends.
    pub retransmitted: u64,
    /// The largest value of the samplers.
    pub sampled_max_us: Option<f64>,
    /// Echo requests without a reply, percent.
    pub ping_loss_pct: f64,
    /// The slowest echo.
    pub ping_max_us: Option<f64>,
}

/// Everything measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Ascending by wait.
    pub intervals: Vec<Interval>,
    /// Ascending by wait, two-segment requests.
    pub beyond: Vec<Beyond>,
    /// Ascending by request size, one wait beyond the timer.
    pub sizes: Vec<Beyond>,
    /// Paths with loss.
    pub lossy: Vec<Lossy>,
}

/// A judged expectation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What is judged, one word or a few.
    pub curve: &'static str,
    /// The shape that it should have.
    pub expected: &'static str,
    /// The figures it was judged by.
    pub measured: String,
    /// Whether it has it.
    pub agree: bool,
}

/// Linux's stand-alone ACK timer, ms.
const TIMER_MS: f64 = 40.0;
/// An immediate ACK is quicker than this, ms: a quarter of the timer.
const IMMEDIATE_MS: f64 = 10.0;

/// Judges all that was measured; an expectation without rows is left out.
pub fn judge(measured: &Measured) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    if measured.intervals.len() > 1 {
        verdicts.extend(intervals(&measured.intervals));
    }
    if measured.beyond.len() > 1 {
        verdicts.extend(beyond(&measured.beyond));
    }
    if measured.sizes.len() > 1 {
        verdicts.push(sizes(&measured.sizes));
    }
    if !measured.lossy.is_empty() {
        verdicts.extend(lossy(&measured.lossy));
    }
    verdicts
}

fn intervals(rows: &[Interval]) -> Vec<Verdict> {
    // Up to where the timer may win its race: 40 ms itself is a toss-up.
    let rising: Vec<_> = rows
        .iter()
        .filter(|r| r.wait_ms >= 2.0 && r.wait_ms < TIMER_MS)
        .collect();
    let past: Vec<_> = rows.iter().filter(|r| r.wait_ms > TIMER_MS).collect();
    let follows =
        |value_ms: f64, wait_ms: f64| (value_ms - wait_ms).abs() <= (0.25 * wait_ms).max(1.5);
    let server = |r: &Interval| r.server_tcp_rtt_us / 1e3;
    let sampled = |r: &Interval| r.sampled_p50_ms.unwrap_or(f64::NAN);
    let show = |of: &dyn Fn(&Interval) -> f64, unit: &str| {
        let cells = rows
            .iter()
            .map(|r| format!("{}: {:.1}", wait(r.wait_ms), of(r)));
        format!("{unit} by wait: {}", cells.collect::<Vec<_>>().join(", "))
    };
    let highest = rows.iter().map(server).fold(0.0, f64::max);
    let base = rows[0].rr_p50_us;
    let waited = rising.last().map_or(base, |r| r.rr_p50_us);
    let longest_ms = rising.last().map_or(0.0, |r| r.wait_ms);
    let pings: Vec<f64> = rows.iter().filter_map(|r| r.ping_p50_us).collect();
    let causal: Vec<f64> = rows.iter().filter_map(|r| r.causal_us).collect();
    vec![
        Verdict {
            curve: "server tcp rtt",
            expected: "rises with the interval up to the stand-alone ACK timer (within a quarter of each wait)",
            measured: show(&server, "ms"),
            agree: !rising.is_empty() && rising.iter().all(|r| follows(server(r), r.wait_ms)),
        },
        Verdict {
            curve: "server tcp rtt past the timer",
            expected: "falls to the value of an immediate ACK (below a quarter of the timer)",
            measured: past
                .iter()
                .map(|r| format!("{:.2} ms at {} ms", server(r), r.wait_ms))
                .collect::<Vec<_>>()
                .join(", "),
            agree: !past.is_empty() && past.iter().all(|r| server(r) < IMMEDIATE_MS),
        },
        Verdict {
            curve: "client tcp rtt",
            expected: "stays low at every interval (below a tenth of the server's peak)",
            measured: show(&|r| r.client_tcp_rtt_us / 1e3, "ms"),
            agree: rows
                .iter()
                .all(|r| r.client_tcp_rtt_us / 1e3 < highest / 10.0),
        },
        Verdict {
            curve: "rr p50",
            expected: "rises gently with the interval (by less than a hundredth of the interval)",
            measured: format!(
                "{base:.1} us without a wait, {waited:.1} us at the longest wait before the timer"
            ),
            agree: waited > 0.8 * base && waited - base < longest_ms * 10.0,
        },
        Verdict {
            curve: "rr against server tcp rtt",
            expected: "never follows the server's TCP RTT (stays below a tenth of its peak)",
            measured: show(&|r| r.rr_p50_us / 1e3, "ms"),
            agree: rows.iter().all(|r| r.rr_p50_us / 1e3 < highest / 10.0),
        },
        Verdict {
            curve: "sampled at the server",
            expected: "behaves as the server's TCP RTT: follows the interval up to the timer, low past it",
            measured: show(&sampled, "ms"),
            agree: rising.iter().all(|r| follows(sampled(r), r.wait_ms))
                && past.iter().all(|r| sampled(r) < IMMEDIATE_MS),
        },
        Verdict {
            curve: "sampled at the client",
            expected: "0.5 ms everywhere: the first bucket of 1 ms, whatever the true value in it",
            measured: show(&|r| r.client_sampled_p50_ms.unwrap_or(f64::NAN), "ms"),
            agree: rows.iter().all(|r| r.client_sampled_p50_ms == Some(0.5)),
        },
        Verdict {
            curve: "ping p50",
            expected: "flat: no application and no ACK timer (within a tenth of the server's TCP peak)",
            measured: show(&|r| r.ping_p50_us.unwrap_or(f64::NAN) / 1e3, "ms"),
            agree: pings.len() == rows.len() && pings.iter().all(|us| us / 1e3 < highest / 10.0),
        },
        Verdict {
            curve: "causal",
            expected: "Causeway's estimate stays with rr where TCP timestamps of 1 ms can tell a pause from a response (below a quarter of waits of 16 ms and more); a shorter pause counts as response time, at most",
            measured: show(&|r| r.causal_us.unwrap_or(f64::NAN) / 1e3, "ms"),
            agree: causal.len() == rows.len()
                && rows.iter().zip(&causal).all(|(r, us)| {
                    let bound_ms = if r.wait_ms >= 16.0 {
                        r.wait_ms / 4.0
                    } else {
                        r.wait_ms.max(0.0) * 1.1
                    };
                    us / 1e3 < bound_ms + 2.0 * r.rr_p50_us / 1e3
                }),
        },
    ]
}

fn beyond(rows: &[Beyond]) -> Vec<Verdict> {
    let list = |of: &dyn Fn(&Beyond) -> f64| {
        let cells = rows
            .iter()
            .map(|r| format!("{}: {:.2}", wait(r.wait_ms), of(r)));
        cells.collect::<Vec<_>>().join(", ")
    };
    let sampled = |r: &Beyond| r.sampled_p50_ms.unwrap_or(f64::NAN);
    let near = |r: &&Beyond| r.wait_ms <= 1000.0;
    let far = |r: &&Beyond| r.wait_ms >= 3000.0;
    let follows = |r: &Beyond| (sampled(r) / r.wait_ms - 1.0).abs() <= 0.3;
    vec![
        Verdict {
            curve: "tcp rtt beyond the timer",
            expected: "flat at both ends, whatever the interval (below a quarter of the timer)",
            measured: format!(
                "ms by wait: client {}; server {}",
                list(&|r| r.client_tcp_rtt_us / 1e3),
                list(&|r| r.server_tcp_rtt_us / 1e3)
            ),
            agree: rows
                .iter()
                .all(|r| r.client_tcp_rtt_us.max(r.server_tcp_rtt_us) / 1e3 < IMMEDIATE_MS),
        },
        Verdict {
            curve: "sampled beyond the timer",
            expected: "follows the application's time up to about 1000 ms (within 30 %)",
            measured: format!("ms by wait: {}", list(&sampled)),
            agree: rows.iter().any(|r| near(&r)) && rows.iter().filter(near).all(follows),
        },
        Verdict {
            curve: "sampled near 3000 ms",
            expected: "has departed from the application's time (below half of it)",
            measured: format!("ms by wait: {}", list(&sampled)),
            agree: rows.iter().any(|r| far(&r))
                && rows
                    .iter()
                    .filter(far)
                    .all(|r| sampled(r) < r.wait_ms / 2.0),
        },
    ]
}

fn sizes(rows: &[Beyond]) -> Verdict {
    let cells = rows.iter().map(|r| {
        format!(
            "{} B: {:.0} % of {}",
            r.request_bytes,
            100.0 * r.sampled_app_share,
            r.sampled_values
        )
    });
    // Neighbours may be within chance of each other; the ends may not.
    let (first, last) = (rows[0], rows[rows.len() - 1]);
    let steps = rows
        .windows(2)
        .all(|pair| pair[1].sampled_app_share > pair[0].sampled_app_share - 0.1);
    Verdict {
        curve: "sampled by request size",
        expected: "the more data segments to a bare ACK, the more of its values are the application's time",
        measured: cells.collect::<Vec<_>>().join(", "),
        agree: steps && last.sampled_app_share > first.sampled_app_share,
    }
}

fn lossy(rows: &[Lossy]) -> Vec<Verdict> {
    let show = |of: &dyn Fn(&Lossy) -> f64| {
        let cells = rows
            .iter()
            .map(|r| format!("{} B: {:.2}", r.request_bytes, of(r)));
        cells.collect::<Vec<_>>().join(", ")
    };
    let sampled = |r: &Lossy| r.sampled_max_us.unwrap_or(f64::NAN);
    vec![
        Verdict {
            curve: "rr under loss",
            expected: "the slowest requests contain the retransmission (5 times the median and more)",
            measured: format!(
                "slowest, ms: {}; segments sent again: {}",
                show(&|r| r.rr_max_us / 1e3),
                show(&|r| r.retransmitted as f64)
            ),
            agree: rows
                .iter()
                .all(|r| r.retransmitted > 0 && r.rr_max_us > 5.0 * r.rr_p50_us),
        },
        Verdict {
            curve: "client tcp rtt under loss",
            expected: "never contains it: retransmitted segments give no RTT (largest reading below half the slowest request)",
            measured: format!(
                "largest reading, ms: {}",
                show(&|r| r.client_tcp_rtt_max_us / 1e3)
            ),
            agree: rows
                .iter()
                .all(|r| r.client_tcp_rtt_max_us < r.rr_max_us / 2.0),
        },
        Verdict {
            curve: "sampled under loss",
            expected: "may contain it: a sampler cannot tell which copy was acknowledged (some value above the largest TCP reading)",
            measured: format!("largest value, ms: {}", show(&|r| sampled(r) / 1e3)),
            agree: rows.iter().any(|r| sampled(r) > r.client_tcp_rtt_max_us),
        },
        Verdict {
            curve: "ping under loss",
            expected: "shows loss as loss, never as time (slowest echo below half the slowest request)",
            measured: format!(
                "lost: {} %; slowest echo, ms: {}",
                show(&|r| r.ping_loss_pct),
                show(&|r| r.ping_max_us.unwrap_or(f64::NAN) / 1e3)
            ),
            agree: rows.iter().any(|r| r.ping_loss_pct > 0.0)
                && rows
                    .iter()
                    .all(|r| r.ping_max_us.is_some_and(|us| us < r.rr_max_us / 2.0)),
        },
    ]
}

fn wait(ms: f64) -> String {
    if ms < 0.0 {
        "none".to_owned()
    } else {
        format!("{ms:.0} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The write-up's own table, with its charts read off by eye.
    fn write_up() -> Measured {
        let waits: [f64; 10] = [-1.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 39.0, 40.0, 41.0];
        let p50 = [
            95.0, 141.0, 153.0, 146.0, 149.0, 162.0, 186.0, 190.0, 189.0, 186.0,
        ];
        let p99 = [
            197.0, 277.0, 293.0, 299.0, 300.0, 324.0, 342.0, 352.0, 353.0, 334.0,
        ];
        let intervals = waits
            .iter()
            .zip(p50.iter().zip(p99))
            .map(|(&wait_ms, (&p50, p99))| {
                let server_ms = if wait_ms > 40.0 {
                    0.2
                } else {
                    wait_ms.max(0.1)
                };
                Interval {
                    wait_ms,
                    rr_p50_us: p50,
                    rr_p99_us: p99,
                    client_tcp_rtt_us: 150.0,
                    server_tcp_rtt_us: server_ms * 1e3,
                    sampled_p50_ms: Some(super::super::bucket_ms((server_ms * 1e6) as u64)),
                    client_sampled_p50_ms: Some(0.5),
                    ping_p50_us: Some(120.0),
                    // The write-up knows no such estimate; here it is what rr is.
                    causal_us: Some(p50),
                }
            });
        let beyond = [100.0, 300.0, 500.0, 1000.0, 3000.0, 5000.0].map(|wait_ms| Beyond {
            wait_ms,
            streams: wait_ms as u32 / 10,
            request_bytes: 1409,
            rr_p50_us: 200.0,
            client_tcp_rtt_us: 150.0,
            server_tcp_rtt_us: 150.0,
            sampled_p50_ms: Some(if wait_ms > 2000.0 { 5.0 } else { wait_ms + 0.5 }),
            sampled_app_share: 0.67,
            sampled_values: 100,
        });
        let sizes = [(1, 0.5), (1409, 0.67), (2818, 0.75)].map(|(request_bytes, share)| Beyond {
            request_bytes,
            sampled_app_share: share,
            ..beyond[0]
        });
        Measured {
            intervals: intervals.collect(),
            beyond: beyond.to_vec(),
            sizes: sizes.to_vec(),
            lossy: vec![Lossy {
                request_bytes: 1,
                loss_pct: 2.0,
                rr_p50_us: 150.0,
                rr_max_us: 210_000.0,
                client_tcp_rtt_max_us: 900.0,
                retransmitted: 12,
                sampled_max_us: Some(203_000.0),
                ping_loss_pct: 3.0,
                ping_max_us: Some(800.0),
            }],
        }
    }

    fn disagreeing(measured: &Measured) -> Vec<&'static str> {
        let verdicts = judge(measured);
        assert!(verdicts.iter().all(|v| !v.measured.is_empty()));
        verdicts
            .iter()
            .filter(|v| !v.agree)
            .map(|v| v.curve)
            .collect()
    }

    #[test]
    fn the_write_up_agrees_with_itself() {
        assert_eq!(judge(&write_up()).len(), 17);
        assert_eq!(disagreeing(&write_up()), [""; 0]);
        assert!(judge(&Measured::default()).is_empty());
    }

    #[test]
    fn each_wrong_shape_is_called_wrong() {
        type Spoil = fn(&mut Measured);
        let cases: [(&str, Spoil); 12] = [
            ("server tcp rtt", |m| {
                m.intervals[5].server_tcp_rtt_us = 300.0
            }),
            ("server tcp rtt past the timer", |m| {
                m.intervals[9].server_tcp_rtt_us = 40_000.0
            }),
            ("client tcp rtt", |m| {
                m.intervals[6].client_tcp_rtt_us = 32_000.0
            }),
            ("rr p50", |m| m.intervals[7].rr_p50_us = 1_000.0),
            ("rr against server tcp rtt", |m| {
                m.intervals[6].rr_p50_us = 32_000.0
            }),
            ("sampled at the server", |m| {
                m.intervals[6].sampled_p50_ms = Some(0.5)
            }),
            ("sampled at the client", |m| {
                m.intervals[6].client_sampled_p50_ms = None
            }),
            ("ping p50", |m| m.intervals[6].ping_p50_us = None),
            ("causal", |m| m.intervals[6].causal_us = Some(32_000.0)),
            ("tcp rtt beyond the timer", |m| {
                m.beyond[1].client_tcp_rtt_us = 40_000.0
            }),
            ("sampled beyond the timer", |m| {
                m.beyond[0].sampled_p50_ms = Some(0.5)
            }),
            ("sampled near 3000 ms", |m| {
                m.beyond[4].sampled_p50_ms = Some(3_000.5)
            }),
        ];
        for (curve, spoil) in cases {
            let mut measured = write_up();
            spoil(&mut measured);
            assert_eq!(disagreeing(&measured), [curve]);
        }
        let mut measured = write_up();
        measured.sizes.reverse();
        assert_eq!(disagreeing(&measured), ["sampled by request size"]);
        measured = write_up();
        measured.lossy[0].client_tcp_rtt_max_us = 205_000.0;
        let wrong = disagreeing(&measured);
        assert_eq!(wrong, ["client tcp rtt under loss", "sampled under loss"]);
        measured = write_up();
        measured.lossy[0].retransmitted = 0;
        assert_eq!(disagreeing(&measured), ["rr under loss"]);
    }
}
