// SPDX-License-Identifier: Apache-2.0
//! Numbers out of a load's log.

use std::collections::{BTreeMap, HashMap};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::log::{Log, LoggedResponse};
use crate::outcome::RunSecond;

/// Percentiles and counts over one window of sending times.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ClientSummary {
    /// Responses to requests sent in the window.
    pub requests: u64,
    /// Requests per second of the window.
    pub rps: f64,
    /// Arithmetic mean of the latency (sending to last byte), like the others in
    /// milliseconds.
    pub mean_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90 % were as fast or faster.
    pub p90_ms: f64,
    /// 99 %.
    pub p99_ms: f64,
    /// The slowest.
    pub max_ms: f64,
    /// Connections opened during the whole load.
    pub connections: u64,
    /// Connections that broke during the whole load.
    pub broken_connections: u64,
    /// The same by reason.
    pub faults: BTreeMap<String, u64>,
    /// The generator's own cost.
    pub generator: GeneratorCost,
}

/// What the load generator used and how exact it was.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct GeneratorCost {
    /// CPU time over run time: 1.0 is one core.
    pub cores: f64,
    /// CPU microseconds per response.
    pub cpu_us_per_request: f64,
    /// Time from the moment a request could be sent to its sending, over
    /// requests that had not to wait for others on their connection: median.
    pub send_delay_p50_us: f64,
    /// See `send_delay_p50_us`: 99 %.
    pub send_delay_p99_us: f64,
}

/// Mean latencies of one server in one epoch, as the clients saw them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EpochTruth {
    /// Server.
    pub real: String,
    /// Start of the epoch, CLOCK_MONOTONIC nanoseconds.
    pub start_ns: u64,
    /// Mean time from a request to the last byte of its response, over responses
    /// whose last byte came in this epoch.
    pub req_to_res_ms: f64,
    /// How many those are.
    pub responses: u64,
    /// Mean time from a request to the first request that its response set off,
    /// over those set off in this epoch: what can be seen from the request side
    /// at best.
    pub req_to_req_ms: Option<f64>,
}

/// Three significant digits; up to ten minutes.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(600_000_000, 3).unwrap_or_else(|_| unreachable!("valid bounds"))
}

/// Percentiles over requests sent from `from_ns` (inclusive) to `to_ns`.
pub fn summary(log: &Log, from_ns: u64, to_ns: u64) -> ClientSummary {
    let mut latency_us = histogram();
    let mut total_ns = 0;
    for r in log
        .responses
        .iter()
        .filter(|r| (from_ns..to_ns).contains(&r.send_ns))
    {
        latency_us.saturating_record(r.latency_ns() / 1000);
        total_ns += r.latency_ns();
    }
    let requests = latency_us.len();
    let ms = |quantile: f64| latency_us.value_at_quantile(quantile) as f64 / 1000.0;
    ClientSummary {
        requests,
        rps: requests as f64 * 1e9 / to_ns.saturating_sub(from_ns).max(1) as f64,
        mean_ms: total_ns as f64 / 1e6 / requests.max(1) as f64,
        p50_ms: ms(0.5),
        p90_ms: ms(0.9),
        p99_ms: ms(0.99),
        max_ms: latency_us.max() as f64 / 1000.0,
        connections: log.connections.len() as u64,
        broken_connections: log.connections.iter().filter(|c| c.fault.is_some()).count() as u64,
        faults: log
            .faults()
            .into_iter()
            .map(|(name, n)| (name.to_owned(), n))
            .collect(),
        generator: generator(log),
    }
}

/// The clients' view second by second, by sending time.
pub fn seconds(log: &Log) -> Vec<RunSecond> {
    const SECOND_NS: u64 = 1_000_000_000;
    let mut by_second: BTreeMap<u64, Histogram<u64>> = BTreeMap::new();
    for r in &log.responses {
        let second = r.send_ns.saturating_sub(log.start_ns) / SECOND_NS;
        let latency_us = by_second.entry(second).or_insert_with(histogram);
        latency_us.saturating_record(r.latency_ns() / 1000);
    }
    by_second
        .into_iter()
        .map(|(second, latency_us)| RunSecond {
            at_s: second as f64,
            p50_ms: latency_us.value_at_quantile(0.5) as f64 / 1000.0,
            p99_ms: latency_us.value_at_quantile(0.99) as f64 / 1000.0,
            requests: latency_us.len(),
        })
        .collect()
}

/// (quantile, milliseconds), ascending, over requests sent in the window.
pub fn quantiles(log: &Log, from_ns: u64, to_ns: u64) -> Vec<(f64, f64)> {
    let mut latency_us = histogram();
    for r in log
        .responses
        .iter()
        .filter(|r| (from_ns..to_ns).contains(&r.send_ns))
    {
        latency_us.saturating_record(r.latency_ns() / 1000);
    }
    let hundredths = (0..=99).map(|i| f64::from(i) / 100.0);
    let tail = (1..=10).map(|i| 0.99 + f64::from(i) / 1000.0);
    hundredths
        .chain(tail)
        .map(|q| (q, latency_us.value_at_quantile(q) as f64 / 1000.0))
        .collect()
}

fn generator(log: &Log) -> GeneratorCost {
    let mut delay_ns = histogram();
    let mut busy: HashMap<u32, Vec<u64>> = HashMap::new();
    for r in &log.responses {
        busy.entry(r.connection).or_default().push(r.last_ns);
    }
    for r in &log.responses {
        // A response between intention and sending may have freed the place that
        // this request was waiting for: that wait is the window's, not ours.
        let last = &busy[&r.connection];
        let after = last.partition_point(|&last| last <= r.intended_ns);
        let waited = last.get(after).is_some_and(|&last| last <= r.send_ns);
        if !waited {
            delay_ns.saturating_record(r.send_ns.saturating_sub(r.intended_ns));
        }
    }
    let run_ns = log.end_ns.saturating_sub(log.start_ns).max(1);
    let us = |quantile: f64| delay_ns.value_at_quantile(quantile) as f64 / 1000.0;
    GeneratorCost {
        cores: log.cost.cpu_ns as f64 / run_ns as f64,
        cpu_us_per_request: log.cost.cpu_ns as f64 / 1000.0 / log.responses.len().max(1) as f64,
        send_delay_p50_us: us(0.5),
        send_delay_p99_us: us(0.99),
    }
}

#[derive(Default)]
struct Sums {
    res_ns: u64,
    res: u64,
    req_ns: u64,
    req: u64,
}

/// Truth per server and epoch, in order of time. Epochs are multiples of
/// `epoch_ns` on CLOCK_MONOTONIC.
pub fn truth(log: &Log, epoch_ns: u64) -> Vec<EpochTruth> {
    truth_in(log, |ns| Some(ns / epoch_ns * epoch_ns))
}

/// Truth per server and interval. `epoch_of` maps a moment to the start of its
/// interval, or to none. This lets intervals be those between two readings of a
/// counter.
pub fn truth_in(log: &Log, epoch_of: impl Fn(u64) -> Option<u64>) -> Vec<EpochTruth> {
    let mut sums: BTreeMap<(u64, u16), Sums> = BTreeMap::new();
    for r in &log.responses {
        if let Some(start) = epoch_of(r.last_ns) {
            let s = sums.entry((start, r.real)).or_default();
            s.res_ns += r.latency_ns();
            s.res += 1;
        }
    }
    for (sent_ns, trigger) in triggered(log) {
        if let Some(start) = epoch_of(sent_ns) {
            let s = sums.entry((start, trigger.real)).or_default();
            s.req_ns += sent_ns - trigger.send_ns;
            s.req += 1;
        }
    }
    let mean = |sum: u64, n: u64| sum as f64 / 1e6 / n as f64;
    sums.into_iter()
        .filter(|(_, s)| s.res > 0)
        .map(|((start_ns, real), s)| EpochTruth {
            real: log.reals[real as usize].clone(),
            start_ns,
            req_to_res_ms: mean(s.res_ns, s.res),
            responses: s.res,
            req_to_req_ms: (s.req > 0).then(|| mean(s.req_ns, s.req)),
        })
        .collect()
}

/// Per response that set off a request on its own connection: when the first of
/// these was sent, and the response.
pub fn triggered(log: &Log) -> Vec<(u64, &LoggedResponse)> {
    let mut first: HashMap<(u32, u32), u64> = HashMap::new();
    for r in &log.responses {
        if let Some(parent) = r.parent {
            let sent = first.entry((r.connection, parent)).or_insert(u64::MAX);
            *sent = (*sent).min(r.send_ns);
        }
    }
    log.responses
        .iter()
        .filter_map(|r| first.get(&(r.connection, r.id)).map(|&sent| (sent, r)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(id: u32, parent: Option<u32>, send_ns: u64, last_ns: u64) -> LoggedResponse {
        LoggedResponse {
            connection: 0,
            page: 0,
            id,
            parent,
            intended_ns: send_ns,
            send_ns,
            last_ns,
            size: 1,
            real: 0,
            srtt_us: 0,
        }
    }

    #[test]
    fn truth_is_grouped_by_last_byte_and_by_triggered_request() {
        let log = Log {
            reals: vec!["s0".into()],
            responses: vec![
                response(0, None, 0, 4_000_000),
                response(1, Some(0), 5_000_000, 11_000_000),
                response(2, Some(0), 6_000_000, 13_000_000),
                response(3, Some(1), 12_000_000, 19_000_000),
            ],
            ..Log::default()
        };
        let truth = truth(&log, 10_000_000);
        let row = |i: usize| {
            (
                truth[i].start_ns,
                truth[i].responses,
                truth[i].req_to_res_ms,
            )
        };
        assert_eq!(truth.len(), 2);
        assert_eq!(row(0), (0, 1, 4.0));
        assert_eq!(row(1), (10_000_000, 3, (6.0 + 7.0 + 7.0) / 3.0));
        assert_eq!(truth[0].req_to_req_ms, Some(5.0));
        assert_eq!(truth[1].req_to_req_ms, Some(7.0));
    }

    #[test]
    fn the_window_is_of_sending_times() {
        let log = Log {
            responses: (0..100)
                .map(|i| {
                    response(
                        i,
                        None,
                        u64::from(i) * 1000,
                        u64::from(i) * 1000 + 2_000_000,
                    )
                })
                .collect(),
            ..Log::default()
        };
        let summary = summary(&log, 50_000, 100_000);
        assert_eq!(summary.requests, 50);
        assert!((summary.p99_ms - 2.0).abs() < 0.01);
        assert!((summary.mean_ms - 2.0).abs() < 1e-9);
    }
}
