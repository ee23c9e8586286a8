// SPDX-License-Identifier: Apache-2.0
//! The shapes that the study's curves should have, and whether they have them.
//!
//! The expectations are those of "A Brief Look at Round Trip Time" (Rick Jones,
//! Google Cloud), in its words where it has any. Each is judged by ratios, not by the
//! absolute times of one machine; the bounds stand in the sentence that is judged.
//! Two are not the write-up's and say so: Causeway's own estimate, and lost responses.

mod beyond;
mod intervals;
mod lossy;
#[cfg(test)]
mod tests;

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

impl Interval {
    /// Whether this run was disturbed less than another at the same interval: load of
    /// the machine only adds to a time. A run without values loses to any other.
    pub fn calmer_than(&self, other: &Self) -> bool {
        let p50_us = |r: &Self| match r.rr_p50_us {
            us if us > 0.0 => us,
            _ => f64::INFINITY,
        };
        p50_us(self) < p50_us(other)
    }
}

/// One interval beyond the stand-alone ACK timer, or one request size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beyond {
    /// Time between a response and the next request, ms.
    pub wait_ms: f64,
    /// Connections.
    pub streams: u32,
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

/// Which packets a path loses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lost {
    /// Those from client to server: requests, and ACKs of responses.
    #[default]
    Requests,
    /// Those from server to client: responses, and ACKs of requests.
    Responses,
}

impl Lost {
    /// The word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Responses => "responses",
        }
    }
}

/// One run over a path that loses packets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lossy {
    pub lost: Lost,
    pub request_bytes: u32,
    /// Share of the packets of that direction lost, percent.
    pub loss_pct: f64,
    /// Median request.
    pub rr_p50_us: f64,
    /// The slowest request.
    pub rr_max_us: f64,
    /// The largest reading of the client's smoothed round-trip time.
    pub client_tcp_rtt_max_us: f64,
    /// Segments retransmitted, both ends.
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
pub struct ExpectedCurve {
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
pub(super) fn judge(measured: &Measured) -> Vec<ExpectedCurve> {
    let mut verdicts = Vec::new();
    if measured.intervals.len() > 1 {
        verdicts.extend(intervals::judge(&measured.intervals));
    }
    if measured.beyond.len() > 1 {
        verdicts.extend(beyond::judge(&measured.beyond));
    }
    if measured.sizes.len() > 1 {
        verdicts.push(beyond::sizes(&measured.sizes));
    }
    verdicts.extend(lossy::judge(&measured.lossy));
    verdicts
}

fn wait(ms: f64) -> String {
    if ms < 0.0 {
        "none".to_owned()
    } else {
        format!("{ms:.0} ms")
    }
}

/// Milliseconds, to two significant digits below one.
fn ms(value: f64) -> String {
    match value.abs() {
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
