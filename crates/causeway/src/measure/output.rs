// SPDX-License-Identifier: Apache-2.0
//! Rows as CSV or JSON lines, as they come.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;

use causeway_core::estimate::Tally;
use causeway_core::flow::{FlowKey, Row};
use serde::Serialize;

use super::args::{Format, Per};
use super::table::Table;

/// How long a server's epoch stays open for flows that are late, when the
/// input has no known end. Nanoseconds.
const SERVER_EPOCH_OPEN_NS: u64 = 120_000_000_000;

/// What results look like.
#[derive(Clone)]
pub struct Style {
    pub format: Format,
    pub per: Per,
    pub estimators: Vec<&'static str>,
    /// The input may never end: nothing may wait for its end.
    pub endless: bool,
}

/// Where rows go.
pub struct Output<W: Write> {
    out: BufWriter<W>,
    style: Style,
    header_written: bool,
    servers: ServerEpochs,
}

/// One row as JSON. Field names and meaning are those of the CSV columns.
#[derive(Serialize)]
struct JsonRow<'a> {
    proto: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    src: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sport: Option<u16>,
    dst: IpAddr,
    dport: u16,
    epoch_start_ns: u64,
    estimate_us: f64,
    samples: u64,
    estimator: &'a str,
}

impl<W: Write> Output<W> {
    /// Results of this style to `out`.
    pub fn new(style: Style, out: W) -> Self {
        let open_ns = if style.endless {
            SERVER_EPOCH_OPEN_NS
        } else {
            u64::MAX
        };
        Self {
            out: BufWriter::with_capacity(64 << 10, out),
            style,
            header_written: false,
            servers: ServerEpochs {
                open_ns,
                ..ServerEpochs::default()
            },
        }
    }

    /// What the results look like.
    pub fn style(&self) -> &Style {
        &self.style
    }

    /// Takes the next row.
    pub fn row(&mut self, row: &Row) -> io::Result<()> {
        match self.style.per {
            Per::Flow => self.write(row),
            Per::Server => {
                self.servers.add(row);
                while let Some(done) = self.servers.pop_done() {
                    self.write(&done)?;
                }
                Ok(())
            }
        }
    }

    /// Hands rows on to whoever reads them, where the input may never end.
    pub fn pause(&mut self) -> io::Result<()> {
        if self.style.endless {
            self.out.flush()
        } else {
            Ok(())
        }
    }

    /// Writes what is left and, if that is the format, the table.
    pub fn finish(mut self, table: Option<&Table>) -> io::Result<()> {
        while let Some(row) = self.servers.pop() {
            self.write(&row)?;
        }
        match (self.style.format, table) {
            (Format::Csv, _) => self.csv_header()?,
            (Format::Table, Some(table)) => table.write(&self.style.estimators, &mut self.out)?,
            _ => {}
        }
        self.out.flush()
    }

    fn write(&mut self, row: &Row) -> io::Result<()> {
        match (self.style.format, row.tally.mean_ns()) {
            (Format::Csv, Some(mean_ns)) => self.csv_row(row, mean_ns),
            (Format::Json, Some(mean_ns)) => self.json_row(row, mean_ns),
            _ => Ok(()),
        }
    }

    fn csv_header(&mut self) -> io::Result<()> {
        if self.header_written {
            return Ok(());
        }
        self.header_written = true;
        let client = if self.style.per == Per::Flow {
            "src,sport,"
        } else {
            ""
        };
        let estimator = if self.style.estimators.len() > 1 {
            ",estimator"
        } else {
            ""
        };
        writeln!(
            self.out,
            "proto,{client}dst,dport,epoch_start_ns,estimate_us,samples{estimator}"
        )
    }

    fn csv_row(&mut self, row: &Row, mean_ns: f64) -> io::Result<()> {
        self.csv_header()?;
        let (ns, flow) = (mean_ns.round() as u64, &row.flow);
        write!(self.out, "{},", flow.proto())?;
        if self.style.per == Per::Flow {
            write!(self.out, "{},{},", flow.src(), flow.sport())?;
        }
        let (us, rest, samples) = (ns / 1000, ns % 1000, row.tally.samples());
        write!(
            self.out,
            "{},{},{},{us}.{rest:03},{samples}",
            flow.dst(),
            flow.dport(),
            row.epoch_ns
        )?;
        if self.style.estimators.len() > 1 {
            write!(self.out, ",{}", self.estimator(row.method))?;
        }
        writeln!(self.out)
    }

    fn json_row(&mut self, row: &Row, mean_ns: f64) -> io::Result<()> {
        let flow = &row.flow;
        let client = self.style.per == Per::Flow;
        let json = JsonRow {
            proto: flow.proto(),
            src: client.then_some(flow.src()),
            sport: client.then_some(flow.sport()),
            dst: flow.dst(),
            dport: flow.dport(),
            epoch_start_ns: row.epoch_ns,
            estimate_us: mean_ns.round() / 1000.0,
            samples: row.tally.samples(),
            estimator: self.estimator(row.method),
        };
        serde_json::to_writer(&mut self.out, &json)?;
        writeln!(self.out)
    }

    fn estimator(&self, method: u8) -> &'static str {
        self.style
            .estimators
            .get(usize::from(method))
            .copied()
            .unwrap_or_default()
    }
}

/// Sums of flows per server and epoch, in the order of epochs.
#[derive(Default)]
struct ServerEpochs {
    open: BTreeMap<(u64, FlowKey, u8), Tally>,
    newest_ns: u64,
    /// Epochs before this one are written; what comes later counts for it.
    oldest_ns: u64,
    open_ns: u64,
}

impl ServerEpochs {
    fn add(&mut self, row: &Row) {
        let epoch_ns = row.epoch_ns.max(self.oldest_ns);
        self.newest_ns = self.newest_ns.max(epoch_ns);
        let tally = self
            .open
            .entry((epoch_ns, row.flow.server(), row.method))
            .or_default();
        tally.merge(&row.tally);
    }

    fn pop_done(&mut self) -> Option<Row> {
        let (&(epoch_ns, ..), _) = self.open.first_key_value()?;
        if self.newest_ns - epoch_ns <= self.open_ns {
            return None;
        }
        self.oldest_ns = self
            .open
            .keys()
            .map(|key| key.0)
            .find(|&at| at > epoch_ns)?;
        self.pop()
    }

    fn pop(&mut self) -> Option<Row> {
        let ((epoch_ns, flow, method), tally) = self.open.pop_first()?;
        Some(Row {
            flow,
            method,
            epoch_ns,
            tally,
        })
    }
}
