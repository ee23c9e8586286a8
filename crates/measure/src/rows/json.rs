// SPDX-License-Identifier: Apache-2.0
//! Rows as JSON, one object a line. Field names and meaning are those of the CSV
//! columns; what does not apply is left out.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};

use serde::Serialize;

use super::super::group::Name;
use super::super::totals::quantile_of;
use super::{Form, Line, PERCENTILES, Style};

pub(super) struct Json<W: Write> {
    out: BufWriter<W>,
}

#[derive(Serialize)]
struct Object {
    #[serde(flatten)]
    name: Name,
    epoch_start_ns: u64,
    estimate_us: f64,
    samples: u64,
    estimator: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u8>,
    quality: &'static str,
    /// Null where the samples are too few to tell.
    #[serde(flatten)]
    percentiles: BTreeMap<&'static str, Option<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    needs: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measures: Option<&'static str>,
}

impl<W: Write> Json<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out: BufWriter::with_capacity(64 << 10, out),
        }
    }
}

impl<W: Write> Form for Json<W> {
    fn line(&mut self, line: &Line, style: &Style) -> io::Result<()> {
        let row = &line.row;
        let confidence = row.tally.confidence();
        let label = style.label(row.method);
        let percentile = |(share, _, column)| {
            let ns = quantile_of(&line.latencies, confidence.samples, share);
            (column, ns.map(|ns| ns as f64 / 1000.0))
        };
        let percentiles = match style.percentiles {
            true => PERCENTILES.map(percentile).into(),
            false => BTreeMap::new(),
        };
        let object = Object {
            name: style.grouping.name(&row.flow),
            epoch_start_ns: row.epoch_ns,
            estimate_us: row.tally.mean_ns().unwrap_or_default().round() / 1000.0,
            samples: confidence.samples,
            estimator: label.name,
            window: confidence.window,
            quality: confidence.quality.name(),
            percentiles,
            needs: style.several().then_some(label.needs),
            measures: style.several().then_some(label.measures),
        };
        serde_json::to_writer(&mut self.out, &object)?;
        writeln!(self.out)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn finish(&mut self, _: &Style) -> io::Result<()> {
        self.out.flush()
    }
}
