// SPDX-License-Identifier: Apache-2.0
//! Rows on their way out: grouped, in the order of epochs where the format or the
//! group wants that, then in the format's form.

mod csv;
mod hdr;
mod json;
#[cfg(feature = "parquet")]
mod parquet;

use std::collections::BTreeMap;
use std::io::{self, Write};

use causeway_core::estimate::Tally;
use causeway_core::flow::{FlowEstimate, FlowKey};
use causeway_core::hist::Latencies;

use super::group::Grouping;
use super::words::{Format, Per};

/// The percentiles of all outputs: share, name in tables, column in CSV and JSON.
pub(crate) const PERCENTILES: [(f64, &str, &str); 5] = [
    (0.5, "P50", "p50_us"),
    (0.9, "P90", "p90_us"),
    (0.95, "P95", "p95_us"),
    (0.99, "P99", "p99_us"),
    (0.999, "P99.9", "p99_9_us"),
];

/// How long a group's epoch stays open for flows that are late, when the input has
/// no known end. Nanoseconds.
const GROUP_EPOCH_OPEN_NS: u64 = 120_000_000_000;

/// One estimator's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    pub(crate) name: &'static str,
    pub(crate) needs: &'static str,
    pub(crate) measures: &'static str,
    /// What it must find in a packet.
    pub(crate) protocol: &'static str,
}

/// What results look like.
#[derive(Clone, Debug)]
pub struct Style {
    pub(crate) format: Format,
    pub(crate) grouping: Grouping,
    pub(crate) estimators: Vec<Label>,
    /// Percentiles in rows, and in the table of flows.
    pub(crate) percentiles: bool,
    /// Estimators beside each other, with their distributions.
    pub(crate) compare: bool,
    pub(crate) epoch_ns: u64,
    /// The input may never end: nothing may wait for its end.
    pub(crate) endless: bool,
}

impl Style {
    /// Whether each row needs its distribution.
    pub fn row_latencies(&self) -> bool {
        self.format == Format::Hdr || self.format.is_rows() && self.percentiles
    }

    /// Whether the totals need distributions.
    pub fn total_latencies(&self) -> bool {
        !self.format.is_rows()
            && (self.percentiles
                || self.compare
                || self.format == Format::Html
                || self.grouping.per != Per::Flow)
    }

    /// The words of a row's estimator.
    pub fn label(&self, method: u8) -> Label {
        let unknown = Label {
            name: "",
            needs: "",
            measures: "",
            protocol: "",
        };
        let label = self.estimators.get(usize::from(method));
        label.copied().unwrap_or(unknown)
    }

    /// Whether results must say whose they are.
    pub fn several(&self) -> bool {
        self.estimators.len() > 1
    }
}

/// An estimate of one flow or group, epoch and estimator.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) row: FlowEstimate,
    /// Distribution of its samples in half counts, if it was wanted.
    pub(crate) latencies: Latencies,
}

/// Writes rows in some form.
trait Form {
    fn line(&mut self, line: &Line, style: &Style) -> io::Result<()>;
    fn flush(&mut self) -> io::Result<()>;
    /// Writes what is left; nothing comes after it.
    fn finish(&mut self, style: &Style) -> io::Result<()>;
}

/// Where rows go.
pub(crate) struct Rows {
    style: Style,
    form: Option<Box<dyn Form>>,
    epochs: Option<Epochs>,
}

impl Rows {
    /// Rows of this style to `out`; a format without rows keeps none.
    ///
    /// # Errors
    /// A format that this build does not have.
    pub(crate) fn new(style: Style, out: impl Write + Send + 'static) -> anyhow::Result<Self> {
        let form: Option<Box<dyn Form>> = match style.format {
            Format::Csv => Some(Box::new(csv::Csv::new(out))),
            Format::Json => Some(Box::new(json::Json::new(out))),
            Format::Hdr => Some(Box::new(hdr::Hdr::new(out, &style)?)),
            #[cfg(feature = "parquet")]
            Format::Parquet => Some(Box::new(parquet::Parquet::new(out, &style)?)),
            #[cfg(not(feature = "parquet"))]
            Format::Parquet => anyhow::bail!(
                "this build has no Parquet: build with `cargo build --features parquet`, \
                 or convert the CSV"
            ),
            Format::Table | Format::Html => None,
        };
        let open_ns = if style.endless {
            GROUP_EPOCH_OPEN_NS
        } else {
            u64::MAX
        };
        // A log's intervals stand in the order of time, a group's epoch waits for
        // its flows.
        let ordered = style.grouping.per != Per::Flow || style.format == Format::Hdr;
        let epochs = (ordered && form.is_some()).then(|| Epochs::new(open_ns));
        Ok(Self {
            style,
            form,
            epochs,
        })
    }

    /// What the results look like.
    pub(crate) fn style(&self) -> &Style {
        &self.style
    }

    /// Takes the next row.
    pub(crate) fn line(&mut self, mut line: Line) -> io::Result<()> {
        let Some(form) = &mut self.form else {
            return Ok(());
        };
        line.row.flow = self.style.grouping.key(&line.row.flow);
        let Some(epochs) = &mut self.epochs else {
            return put(form.as_mut(), &line, &self.style);
        };
        epochs.add(line);
        while let Some(done) = epochs.pop_done() {
            put(form.as_mut(), &done, &self.style)?;
        }
        Ok(())
    }

    /// Hands rows on to their reader, where the input may never end.
    pub(crate) fn pause(&mut self) -> io::Result<()> {
        match &mut self.form {
            Some(form) if self.style.endless => form.flush(),
            _ => Ok(()),
        }
    }

    /// Writes what is left.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let Some(form) = &mut self.form else {
            return Ok(());
        };
        while let Some(line) = self.epochs.as_mut().and_then(Epochs::pop) {
            put(form.as_mut(), &line, &self.style)?;
        }
        form.finish(&self.style)
    }
}

fn put(form: &mut dyn Form, line: &Line, style: &Style) -> io::Result<()> {
    match line.row.tally.samples() {
        0 => Ok(()),
        _ => form.line(line, style),
    }
}

/// Sums per group and epoch, in the order of epochs. What comes when its epoch is written
/// is a line of its own: in another epoch's sums it would tell of a time that it is not of.
struct Epochs {
    open: BTreeMap<(u64, FlowKey, u8), (Tally, Latencies)>,
    newest_ns: u64,
    open_ns: u64,
}

impl Epochs {
    fn new(open_ns: u64) -> Self {
        Self {
            open: BTreeMap::new(),
            newest_ns: 0,
            open_ns,
        }
    }

    fn add(&mut self, line: Line) {
        let row = &line.row;
        self.newest_ns = self.newest_ns.max(row.epoch_ns);
        let sums = self.open.entry((row.epoch_ns, row.flow, row.method));
        let (tally, latencies) = sums.or_default();
        tally.merge(&row.tally);
        latencies.merge(&line.latencies);
    }

    fn pop_done(&mut self) -> Option<Line> {
        let (&(epoch_ns, ..), _) = self.open.first_key_value()?;
        if self.newest_ns - epoch_ns <= self.open_ns {
            return None;
        }
        self.pop()
    }

    fn pop(&mut self) -> Option<Line> {
        let ((epoch_ns, flow, method), (tally, latencies)) = self.open.pop_first()?;
        let row = FlowEstimate {
            flow,
            method,
            epoch_ns,
            tally,
        };
        Some(Line { row, latencies })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_row_stands_at_its_own_epoch() {
        let mut epochs = Epochs::new(10);
        let mut written = Vec::new();
        for (epoch_ns, samples) in [(0, 1), (0, 2), (5, 1), (11, 1), (0, 4), (16, 1)] {
            let row = FlowEstimate {
                flow: FlowKey::new(6, [10, 0, 0, 1].into(), 1, [10, 0, 0, 2].into(), 80),
                method: 0,
                epoch_ns,
                tally: Tally {
                    weight_halves: 2 * samples,
                    ..Tally::default()
                },
            };
            epochs.add(Line {
                row,
                latencies: Latencies::default(),
            });
            let done = std::iter::from_fn(|| epochs.pop_done());
            written.extend(done.map(|line| (line.row.epoch_ns, line.row.tally.samples())));
        }
        assert_eq!(written, [(0, 3), (0, 4), (5, 1)]);
    }
}
