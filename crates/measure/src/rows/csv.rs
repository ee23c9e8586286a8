// SPDX-License-Identifier: Apache-2.0
//! Rows as CSV, as they come.

use std::io::{self, BufWriter, Write};

use super::super::digits::{decimal, micros};
use super::super::totals::quantile_of;
use super::{Form, Line, PERCENTILES, Style};

pub(super) struct Csv<W: Write> {
    out: BufWriter<W>,
    header_written: bool,
}

impl<W: Write> Csv<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out: BufWriter::with_capacity(64 << 10, out),
            header_written: false,
        }
    }

    fn header(&mut self, style: &Style) -> io::Result<()> {
        if std::mem::replace(&mut self.header_written, true) {
            return Ok(());
        }
        let estimator = if style.several() { ",estimator" } else { "" };
        let group = style.grouping.csv_head();
        write!(
            self.out,
            "{group}epoch_start_ns,estimate_us,samples{estimator},window,quality"
        )?;
        if style.percentiles {
            for (_, _, column) in PERCENTILES {
                write!(self.out, ",{column}")?;
            }
        }
        writeln!(self.out)
    }
}

impl<W: Write> Form for Csv<W> {
    fn line(&mut self, line: &Line, style: &Style) -> io::Result<()> {
        self.header(style)?;
        let row = &line.row;
        style.grouping.write_csv(&row.flow, &mut self.out)?;
        let confidence = row.tally.confidence();
        let out = &mut self.out;
        decimal(out, row.epoch_ns)?;
        out.write_all(b",")?;
        micros(out, row.tally.mean_ns().unwrap_or_default())?;
        out.write_all(b",")?;
        decimal(out, confidence.samples)?;
        out.write_all(b",")?;
        if style.several() {
            out.write_all(style.label(row.method).name.as_bytes())?;
            out.write_all(b",")?;
        }
        if let Some(window) = confidence.window {
            decimal(out, window)?;
        }
        out.write_all(b",")?;
        out.write_all(confidence.quality.name().as_bytes())?;
        if style.percentiles {
            for (share, ..) in PERCENTILES {
                self.out.write_all(b",")?;
                if let Some(ns) = quantile_of(&line.latencies, confidence.samples, share) {
                    micros(&mut self.out, ns as f64)?;
                }
            }
        }
        self.out.write_all(b"\n")
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn finish(&mut self, style: &Style) -> io::Result<()> {
        self.header(style)?;
        self.out.flush()
    }
}
