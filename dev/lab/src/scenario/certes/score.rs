// SPDX-License-Identifier: Apache-2.0
//! Estimates against the truth.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use causeway_api::agent::{CategoryView, ClientsView, HistoryRow};
use causeway_core::certes::PercentileBucket;
use serde::Serialize;

use super::runs::{AgentTrouble, CertesRun};
use crate::accept_queue_server::Served;
use crate::clock;
use crate::impatient_clients::{Transaction, TransactionEnd};

const SECOND_NS: u64 = 1_000_000_000;

/// Number and sum of response times, seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    count: f64,
    s: f64,
}

impl Sum {
    fn add(&mut self, count: f64, s: f64) {
        self.count += count;
        self.s += s;
    }

    fn mean_s(self) -> f64 {
        self.s / self.count
    }
}

/// Transactions by how they ended.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct TransactionEnds {
    /// All answers came.
    pub done: f64,
    /// Never connected.
    pub gave_up: f64,
    /// Connected, as far as the client knew, and never served.
    pub unserved: f64,
}

impl TransactionEnds {
    fn of(truth: &[Transaction]) -> Self {
        let of = |ends: &[TransactionEnd]| {
            let of = truth.iter().filter(|of| ends.contains(&of.end));
            of.count() as f64
        };
        Self {
            done: of(&[TransactionEnd::Done]),
            gave_up: of(&[TransactionEnd::GaveUp]),
            unserved: of(&[TransactionEnd::Unserved, TransactionEnd::Broken]),
        }
    }

    fn recorded(history: &[HistoryRow]) -> Self {
        let sum = |of: fn(&HistoryRow) -> f64| history.iter().map(of).sum();
        Self {
            done: sum(|row| row.completed),
            gave_up: sum(|row| row.gave_up),
            unserved: sum(|row| row.stalled),
        }
    }
}

impl fmt::Display for TransactionEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} done, {} gave up, {} unserved",
            self.done, self.gave_up, self.unserved
        )
    }
}

/// A percentile of the response times of a whole run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PercentileScore {
    pub percent: f64,
    /// By the clients' own log, seconds.
    pub truth_s: f64,
    /// By the agent's histogram.
    pub agent_s: f64,
    /// Width of the bucket that this lies in, which is how far it may be off; none above the
    /// last bound.
    pub bucket_s: Option<f64>,
    /// Whether it is not further off.
    pub within: bool,
}

/// How long the transactions of a whole run took: by the clients' log, and by the agent's
/// histogram of those that were connected and those that gave up.
struct Distribution {
    truth_s: Vec<f64>,
    bounds_s: Vec<f64>,
    counts: Vec<u64>,
}

const PERCENTS: [f64; 3] = [50.0, 90.0, 99.0];

impl Distribution {
    fn of(truth: &[Transaction], category: &CategoryView) -> Self {
        let took_s = truth
            .iter()
            .map(|of| (of.end_ns - of.begin_ns) as f64 / 1e9);
        let mut truth_s: Vec<f64> = took_s.collect();
        truth_s.sort_by(f64::total_cmp);
        let connected = category.responses.counts.iter();
        Self {
            truth_s,
            bounds_s: category.responses.bounds_s.clone(),
            counts: connected
                .zip(&category.gave_up.counts)
                .map(|(connected, gave_up)| connected + gave_up)
                .collect(),
        }
    }

    fn percentiles(&self) -> Vec<PercentileScore> {
        let score = |percent: f64| {
            let rank = (percent / 100.0 * self.truth_s.len() as f64).ceil() as usize;
            let truth_s = *self.truth_s.get(rank.max(1) - 1)?;
            let found = PercentileBucket::of(&self.counts, &self.bounds_s, percent)?;
            let bucket_s = found.high_s - found.low_s;
            Some(PercentileScore {
                percent,
                truth_s,
                agent_s: found.value_s,
                bucket_s: bucket_s.is_finite().then_some(bucket_s),
                within: (found.value_s - truth_s).abs() <= bucket_s,
            })
        };
        PERCENTS.into_iter().filter_map(score).collect()
    }

    /// Which share took no longer: by the log, then by the histogram, at its bounds.
    fn cumulated(&self) -> [Vec<(f64, f64)>; 2] {
        let all = self.truth_s.len() as f64;
        let truth = self.truth_s.iter().enumerate();
        let truth = truth.map(|(at, s)| (*s, (at + 1) as f64 / all)).collect();
        let all = self.counts.iter().sum::<u64>() as f64;
        let mut sum = 0;
        let counted = self.bounds_s.iter().zip(&self.counts);
        let counted = counted.map(|(bound_s, count)| {
            sum += count;
            (*bound_s, sum as f64 / all)
        });
        // Before the first transaction there is nothing to see.
        [truth, counted.filter(|(_, share)| *share > 0.0).collect()]
    }
}

type Seconds = BTreeMap<u64, Sum>;

/// One run's row.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Score {
    pub name: String,
    pub truth_mean_s: f64,
    pub rate_per_s: f64,
    pub syn_drop_pct: f64,
    pub gave_up_pct: f64,
    pub stalled: f64,
    pub broken: usize,
    pub exact_error_pct: f64,
    pub model_error_pct: f64,
    pub syn_to_end_error_pct: f64,
    pub application_error_pct: f64,
    pub exact_mae_pct: f64,
    pub model_mae_pct: f64,
    /// Whether retries were dropped like first SYNs.
    pub drops: String,
    pub drop_odds_ratio: Option<f64>,
    pub network_loss_pct: f64,
    pub flood_share: f64,
    /// Transactions: the clients' and the tracker's.
    pub transactions: f64,
    pub exact_transactions: f64,
    /// The same of the whole run, from the first client to the last, which has no edges
    /// where an end may count on either side; and the tracker's error of its mean.
    pub all_transactions: f64,
    pub all_exact_transactions: f64,
    pub all_exact_error_pct: f64,
    /// How they ended: as clients and as the tracker have it.
    pub all_ends: TransactionEnds,
    pub all_exact_ends: TransactionEnds,
    /// Of the whole run; empty where the agent that counted some is gone.
    pub percentiles: Vec<PercentileScore>,
    /// The cumulative distribution of the same, by the clients' log and by the agent.
    #[serde(skip)]
    pub cumulated: [Vec<(f64, f64)>; 2],
    /// Means of the seconds from the first client on: client latency, and SYN-to-END.
    #[serde(skip)]
    pub client_latency: Vec<(f64, f64)>,
    #[serde(skip)]
    pub served: Vec<(f64, f64)>,
}

impl Score {
    pub(crate) fn of(
        run: &CertesRun,
        range: Range<u64>,
        truth: &[Transaction],
        served: &[Served],
        history: &[HistoryRow],
        live: &ClientsView,
    ) -> Result<Self> {
        let actual = client_latency(truth);
        let begin = begin_ns(truth)? / SECOND_NS;
        let over_time = |seconds: &Seconds| -> Vec<(f64, f64)> {
            let known = seconds.iter().filter(|(_, of)| of.count > 0.0);
            known
                .map(|(second, of)| (second.saturating_sub(begin) as f64, of.mean_s()))
                .collect()
        };
        let (mut exact, mut model, mut syn_to_end) =
            (Seconds::new(), Seconds::new(), Seconds::new());
        let (mut offered, mut accepted, mut stalled) = (0, 0, 0.0);
        let mut all_exact = Sum::default();
        for row in history {
            let of = |mean_s: Option<f64>, gave_up: f64| {
                let count = row.completed + row.stalled + gave_up;
                (count, mean_s.unwrap_or(0.0) * count)
            };
            let (count, s) = of(row.exact_s, row.gave_up);
            all_exact.add(count, s);
            if !range.contains(&row.second) {
                continue;
            }
            exact.entry(row.second).or_default().add(count, s);
            let (count, s) = of(row.model_s, row.model_gave_up);
            model.entry(row.second).or_default().add(count, s);
            let served_s = row.syn_to_end_s.unwrap_or(0.0) * row.completed;
            syn_to_end
                .entry(row.second)
                .or_default()
                .add(row.completed, served_s);
            offered += row.offered;
            accepted += row.accepted;
            stalled += row.stalled;
        }
        let mut application = Sum::default();
        for of in served
            .iter()
            .filter(|of| range.contains(&(of.end_ns / SECOND_NS)))
        {
            application.add(1.0, of.took_ns as f64 / 1e9);
        }
        let total = |seconds: &Seconds| {
            seconds
                .range(range.clone())
                .fold(Sum::default(), |mut sum, (_, of)| {
                    sum.add(of.count, of.s);
                    sum
                })
        };
        let (all, by_exact) = (total(&actual), total(&exact));
        ensure!(
            all.count > 0.0,
            "{}: no transaction ended in time",
            run.name
        );
        let mean_s = all.mean_s();
        let mut all_actual = Sum::default();
        actual
            .values()
            .for_each(|of| all_actual.add(of.count, of.s));
        let error_pct = |of: Sum| 100.0 * (of.mean_s() / mean_s - 1.0);
        let within = |of: &&Transaction| range.contains(&(of.end_ns / SECOND_NS));
        let gave_up = truth
            .iter()
            .filter(within)
            .filter(|of| of.end == TransactionEnd::GaveUp)
            .count();
        let broken = truth
            .iter()
            .filter(within)
            .filter(|of| of.end == TransactionEnd::Broken)
            .count();
        let category = live.categories.first().cloned().unwrap_or_default();
        let distribution = Distribution::of(truth, &category);
        Ok(Self {
            name: run.name.clone(),
            truth_mean_s: mean_s,
            rate_per_s: total(&syn_to_end).count / range.clone().count() as f64,
            syn_drop_pct: 100.0 * (offered - accepted) as f64 / (offered as f64).max(1.0),
            gave_up_pct: 100.0 * gave_up as f64 / all.count,
            stalled,
            broken,
            exact_error_pct: error_pct(by_exact),
            model_error_pct: error_pct(total(&model)),
            syn_to_end_error_pct: error_pct(total(&syn_to_end)),
            application_error_pct: error_pct(application),
            exact_mae_pct: per_second_pct(&actual, &exact, range.clone(), mean_s),
            model_mae_pct: per_second_pct(&actual, &model, range.clone(), mean_s),
            drops: category.drops,
            drop_odds_ratio: category.drop_odds_ratio,
            network_loss_pct: 100.0 * category.network_loss,
            flood_share: category.flood_share,
            transactions: all.count,
            exact_transactions: by_exact.count,
            all_transactions: all_actual.count,
            all_exact_transactions: all_exact.count,
            all_exact_error_pct: 100.0 * (all_exact.mean_s() / all_actual.mean_s() - 1.0),
            all_ends: TransactionEnds::of(truth),
            all_exact_ends: TransactionEnds::recorded(history),
            percentiles: match run.trouble {
                Some(AgentTrouble::Restart) => Vec::new(),
                _ => distribution.percentiles(),
            },
            cumulated: distribution.cumulated(),
            client_latency: over_time(&actual),
            served: over_time(&syn_to_end),
        })
    }

    pub(crate) fn sentence(&self) -> String {
        format!(
            "{}: client latency {:.3} s; exact {:+.2} %, model {:+.2} %, SYN-to-END {:+.1} %, application {:+.1} %; in all {:+.2} %: {}; exact: {}",
            self.name,
            self.truth_mean_s,
            self.exact_error_pct,
            self.model_error_pct,
            self.syn_to_end_error_pct,
            self.application_error_pct,
            self.all_exact_error_pct,
            self.all_ends,
            self.all_exact_ends
        )
    }
}

/// The seconds that count, on the monotonic clock.
pub(super) fn range(
    truth: &[Transaction],
    warm_up: Duration,
    counts: Duration,
) -> Result<Range<u64>> {
    let from = (begin_ns(truth)? + warm_up.as_nanos() as u64) / SECOND_NS + 1;
    Ok(from..from + counts.as_secs())
}

/// The second in which the last transaction ended.
pub(super) fn last_second(truth: &[Transaction]) -> Result<u64> {
    let ended = truth.iter().map(|of| of.end_ns / SECOND_NS);
    ended.max().context("no client came")
}

/// That records bear both times of day to which the agent's clock was set: back by an hour,
/// and on to the next day.
pub(super) fn check_clock(history: &[HistoryRow]) -> Result<()> {
    const SLACK_MS: i64 = 60_000;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64;
    let boot_ms = now_ms - (clock::monotonic_ns() / 1_000_000) as i64;
    let off_ms = |row: &HistoryRow| row.unix_ms as i64 - (boot_ms + 1000 * row.second as i64);
    for expected_ms in [-3_600_000, 86_400_000] {
        let set = |row: &HistoryRow| (off_ms(row) - expected_ms).abs() < SLACK_MS;
        ensure!(
            history.iter().any(set),
            "no record of {} was made while the clock was off by {expected_ms} ms",
            history.len()
        );
    }
    Ok(())
}

fn begin_ns(truth: &[Transaction]) -> Result<u64> {
    let begun = truth.iter().map(|of| of.begin_ns);
    begun.min().context("no client began")
}

/// Client latency, by the second in which it ended. A connection that broke took as
/// long as its client waited: most are those whose final ACK was dropped, until the
/// server reset them.
fn client_latency(truth: &[Transaction]) -> Seconds {
    let mut seconds = Seconds::new();
    for of in truth {
        let s = (of.end_ns - of.begin_ns) as f64 / 1e9;
        seconds
            .entry(of.end_ns / SECOND_NS)
            .or_default()
            .add(1.0, s);
    }
    seconds
}

/// Mean error of the seconds' means, each weighed by its transactions, in percent of
/// the whole mean.
fn per_second_pct(truth: &Seconds, estimate: &Seconds, range: Range<u64>, mean_s: f64) -> f64 {
    let mut off = Sum::default();
    for second in range {
        let (Some(true_), found) = (truth.get(&second), estimate.get(&second)) else {
            continue;
        };
        let found_s = found
            .filter(|of| of.count > 0.0)
            .map_or(0.0, |of| of.mean_s());
        off.add(true_.count, true_.count * (true_.mean_s() - found_s).abs());
    }
    100.0 * off.mean_s() / mean_s
}
