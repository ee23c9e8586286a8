// SPDX-License-Identifier: Apache-2.0
//! The closing table: one line for each flow or server, over the whole capture.

use std::collections::HashMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::ops::Range;

use causeway_core::estimate::{Sample, Tally};
use causeway_core::flow::{FlowKey, Row};
use causeway_core::hist::Histogram;
use causeway_core::wire::proto;

use super::args::Per;

/// Sums for the table. Those of several threads merge.
pub struct Table {
    per: Per,
    lines: HashMap<(FlowKey, u8), Line>,
}

#[derive(Default)]
struct Line {
    total: Tally,
    fastest_ns: f64,
    slowest_ns: f64,
    /// Only for servers: half the weight in counts, as samples come in halves.
    latencies: Option<Histogram>,
}

impl Table {
    /// An empty table with a line per flow or per server.
    pub fn new(per: Per) -> Self {
        Self {
            per,
            lines: HashMap::new(),
        }
    }

    /// Adds a sample to the percentiles.
    pub fn sample(&mut self, flow: &FlowKey, method: u8, sample: &Sample) {
        if let (Per::Server, Some(mean_ns)) = (self.per, sample.mean_ns()) {
            let line = self.lines.entry((flow.server(), method)).or_default();
            let latencies = line.latencies.get_or_insert_with(Histogram::new);
            latencies.record_n(mean_ns as u64, u64::from(sample.count2));
        }
    }

    /// Adds an epoch of a flow.
    pub fn row(&mut self, row: &Row) {
        let Some(mean_ns) = row.tally.mean_ns() else {
            return;
        };
        let key = if self.per == Per::Server {
            row.flow.server()
        } else {
            row.flow
        };
        self.lines.entry((key, row.method)).or_default().add(&Line {
            total: row.tally,
            fastest_ns: mean_ns,
            slowest_ns: mean_ns,
            latencies: None,
        });
    }

    /// Adds another thread's sums.
    pub fn merge(&mut self, other: Table) {
        for (key, line) in other.lines {
            self.lines.entry(key).or_default().add(&line);
        }
    }

    /// Writes the table, ordered by its first columns.
    pub fn write(&self, estimators: &[&str], out: &mut impl Write) -> io::Result<()> {
        let mut lines: Vec<_> = self.lines.iter().collect();
        lines.sort_by_key(|(key, _)| **key);
        let several = estimators.len() > 1;
        let mut cells = vec![self.head(several)];
        for ((key, method), line) in lines {
            let mut row = self.body(key, line);
            if several {
                row.push(
                    estimators
                        .get(usize::from(*method))
                        .copied()
                        .unwrap_or_default()
                        .to_owned(),
                );
            }
            cells.push(row);
        }
        let text = if self.per == Per::Flow { 3 } else { 2 };
        let numbers = text..cells[0].len() - usize::from(several);
        write_aligned(&cells, numbers, out)
    }

    fn head(&self, several: bool) -> Vec<String> {
        let words: &[&str] = match self.per {
            Per::Flow => &[
                "PROTO", "CLIENT", "SERVER", "SAMPLES", "MEAN", "FASTEST", "SLOWEST",
            ],
            Per::Server => &["PROTO", "SERVER", "SAMPLES", "MEAN", "P50", "P90", "P99"],
        };
        let estimator = several.then_some(&"ESTIMATOR");
        words
            .iter()
            .chain(estimator)
            .map(|&word| word.to_owned())
            .collect()
    }

    fn body(&self, key: &FlowKey, line: &Line) -> Vec<String> {
        let proto = match key.proto() {
            proto::TCP => "tcp".to_owned(),
            proto::UDP => "udp".to_owned(),
            number => number.to_string(),
        };
        let mut cells = vec![proto];
        if self.per == Per::Flow {
            cells.push(SocketAddr::new(key.src(), key.sport()).to_string());
        }
        cells.push(SocketAddr::new(key.dst(), key.dport()).to_string());
        cells.push(line.total.samples().to_string());
        cells.push(latency(line.total.mean_ns()));
        match self.per {
            Per::Flow => {
                cells.extend([line.fastest_ns, line.slowest_ns].map(|ns| latency(Some(ns))))
            }
            Per::Server => cells.extend([0.5, 0.9, 0.99].map(|share| {
                let quantile = line.latencies.as_ref().and_then(|all| all.quantile(share));
                latency(quantile.map(|ns| ns as f64))
            })),
        }
        cells
    }
}

impl Line {
    fn add(&mut self, other: &Line) {
        let first = self.total.count2 == 0;
        self.total.merge(&other.total);
        if other.total.count2 > 0 {
            self.fastest_ns = if first {
                other.fastest_ns
            } else {
                self.fastest_ns.min(other.fastest_ns)
            };
            self.slowest_ns = self.slowest_ns.max(other.slowest_ns);
        }
        if let Some(latencies) = &other.latencies {
            self.latencies
                .get_or_insert_with(Histogram::new)
                .merge(latencies);
        }
    }
}

/// A latency with the unit that suits it.
fn latency(ns: Option<f64>) -> String {
    match ns {
        None => "-".to_owned(),
        Some(ns) if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        Some(ns) if ns < 1e9 => format!("{:.3} ms", ns / 1e6),
        Some(ns) => format!("{:.3} s", ns / 1e9),
    }
}

/// Aligns the columns in `numbers` to the right, the others to the left.
fn write_aligned(
    rows: &[Vec<String>],
    numbers: Range<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter()
            .map(|row: &Vec<String>| row[column].len())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            if numbers.contains(&column) {
                line += &format!("{gap}{cell:>width$}");
            } else {
                line += &format!("{gap}{cell:<width$}");
            }
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
