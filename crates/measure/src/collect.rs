// SPDX-License-Identifier: Apache-2.0
//! What comes out of the estimators of one thread: rows, with the distributions of
//! their samples where those are wanted, and sums for the end.

use std::collections::HashMap;
use std::io;

use causeway_core::estimate::Sample;
use causeway_core::flow::{FlowEstimate, FlowKey, FlowState, Sink};
use causeway_core::hist::Latencies;

use super::rows::{Line, Rows, Style};
use super::totals::{Totals, Wanted};
use super::words::Format;

/// Lines, each with the number of the packet that completed it.
pub(crate) type Lines = Vec<(u64, Line)>;

/// Takes what a meter finds in a batch.
#[derive(Debug)]
pub(crate) struct Found {
    /// Number of the packet under way.
    pub at: u64,
    pub lines: Lines,
    pub totals: Option<Totals>,
    keep_lines: bool,
    /// Single samples are wanted, by `totals` or `open`.
    keeps_samples: bool,
    /// Distributions of epochs that are not complete, if rows are to have them.
    open: Option<Open>,
}

/// Distributions by flow, estimator and start of the epoch.
#[derive(Debug)]
struct Open {
    epoch_ns: u64,
    flows: HashMap<(FlowKey, u8), Vec<(u64, Latencies)>, FlowState>,
    /// Half a sample never becomes a row: beyond this many entries those of old
    /// epochs are dropped.
    sweep_at: usize,
}

/// An epoch without a row for so long will have none.
const STALE_NS: u64 = 3_600_000_000_000;

impl Open {
    fn add(&mut self, flow: &FlowKey, method: u8, sample: &Sample) {
        let start_ns = sample.when_ns - sample.when_ns % self.epoch_ns;
        let epochs = self.flows.entry((*flow, method)).or_default();
        let at = epochs.iter().position(|(start, _)| *start == start_ns);
        let at = at.unwrap_or_else(|| {
            epochs.push((start_ns, Latencies::default()));
            epochs.len() - 1
        });
        epochs[at].1.record(sample);
        if self.flows.len() >= self.sweep_at {
            let fresh = |(start, _): &(u64, _)| start.saturating_add(STALE_NS) > start_ns;
            self.flows.retain(|_, epochs| epochs.iter().any(fresh));
            self.sweep_at = self.flows.len() * 2;
        }
    }

    /// All up to the row's epoch: a sample that came late counts for it.
    fn take(&mut self, row: &FlowEstimate) -> Latencies {
        let key = (row.flow, row.method);
        let mut sum = Latencies::default();
        let Some(epochs) = self.flows.get_mut(&key) else {
            return sum;
        };
        epochs.retain(|(start_ns, latencies)| {
            let taken = *start_ns <= row.epoch_ns;
            if taken {
                sum.merge(latencies);
            }
            !taken
        });
        if epochs.is_empty() {
            self.flows.remove(&key);
        }
        sum
    }
}

impl Found {
    /// Finds what the style needs, of so many flows or other groups; each estimator has one of its own of each.
    pub(crate) fn new(style: &Style, max_groups: usize, seed: u64) -> Self {
        let max_groups = max_groups.saturating_mul(style.estimators.len().max(1));
        let totals = (!style.format.is_rows()).then(|| {
            Totals::new(Wanted {
                grouping: style.grouping,
                latencies: style.total_latencies(),
                series: style.format == Format::Html,
                max_groups,
                seed,
            })
        });
        Self {
            at: 0,
            lines: Vec::new(),
            totals,
            keep_lines: style.format.is_rows(),
            keeps_samples: !style.format.is_rows() || style.row_latencies(),
            open: style.row_latencies().then(|| Open {
                epoch_ns: style.epoch_ns.max(1),
                flows: HashMap::with_hasher(FlowState::new(seed)),
                sweep_at: max_groups.saturating_mul(2).max(1024),
            }),
        }
    }

    /// What one of so many shares finds.
    pub(crate) fn of_shares(self, shares: usize) -> Self {
        Self {
            totals: self.totals.map(|totals| totals.of_shares(shares)),
            ..self
        }
    }

    /// Finds rows alone, whatever the format; sums are kept elsewhere.
    pub(crate) fn lines_alone(style: &Style, max_flows: usize, seed: u64) -> Self {
        Self {
            totals: None,
            keep_lines: true,
            ..Self::new(style, max_flows, seed)
        }
    }

    #[inline(never)]
    fn keep(&mut self, flow: &FlowKey, method: u8, sample: &Sample) {
        if let Some(totals) = &mut self.totals {
            totals.sample(flow, method, sample);
        }
        if let Some(open) = &mut self.open
            && sample.weight_halves > 0
        {
            open.add(flow, method, sample);
        }
    }

    /// Hands the lines on.
    pub(crate) fn write(&mut self, rows: &mut Rows) -> io::Result<()> {
        write_lines(&mut self.lines, rows)
    }
}

/// Hands lines on, in their order.
pub(crate) fn write_lines(lines: &mut Lines, rows: &mut Rows) -> io::Result<()> {
    lines.drain(..).try_for_each(|(_, line)| rows.line(line))?;
    rows.pause()
}

impl Sink for Found {
    #[inline]
    fn packet(&mut self, index: u64) {
        self.at = index;
    }

    #[inline(always)]
    fn sample(&mut self, flow: &FlowKey, method: u8, sample: &Sample) {
        if self.keeps_samples {
            self.keep(flow, method, sample);
        }
    }

    fn row(&mut self, row: &FlowEstimate) {
        if let Some(totals) = &mut self.totals {
            totals.row(row);
        }
        if self.keep_lines {
            let open = self.open.as_mut();
            let latencies = open.map(|open| open.take(row)).unwrap_or_default();
            let line = Line {
                row: *row,
                latencies,
            };
            self.lines.push((self.at, line));
        }
    }

    fn ending(&mut self, born: u64) {
        self.at = born;
    }
}
