// SPDX-License-Identifier: Apache-2.0
//! Rows as an HdrHistogram interval log, which HistogramLogProcessor and other
//! tools of that family read: one interval for each epoch, one tag for each flow
//! or group (and estimator, if there are several), values in nanoseconds.

use std::io::{self, BufWriter, Write};
use std::time::Duration;

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{
    IntervalLogWriterBuilder, IntervalLogWriterError, Tag,
};

use super::{Form, Label, Line, Style};

/// Three digits keep the precision of our own buckets (within 0.4 %).
const DIGITS: u8 = 3;

pub(super) struct Hdr<W: Write> {
    out: BufWriter<W>,
    serializer: V2DeflateSerializer,
}

impl<W: Write> Hdr<W> {
    pub(super) fn new(out: W, style: &Style) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(64 << 10, out);
        let mut serializer = V2DeflateSerializer::new();
        let mut head = IntervalLogWriterBuilder::new();
        head.add_comment("[Logged with causeway measure; latencies in nanoseconds]");
        for label in &style.estimators {
            let Label {
                name,
                needs,
                measures,
                ..
            } = label;
            head.add_comment(&format!("[{name}: {measures} (sees {needs})]"));
        }
        head.add_comment("[Histogram log format version 1.3]");
        head.begin_log_with(&mut out, &mut serializer)?;
        writeln!(
            out,
            "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\""
        )?;
        Ok(Self { out, serializer })
    }
}

impl<W: Write> Form for Hdr<W> {
    fn line(&mut self, line: &Line, style: &Style) -> io::Result<()> {
        let row = &line.row;
        let mut histogram = Histogram::<u64>::new(DIGITS).map_err(io::Error::other)?;
        for bucket in line.latencies.buckets() {
            // Counts are of halves; a lone half counts.
            let count = bucket.count.div_ceil(2);
            let recorded = histogram.record_n(bucket.middle_ns(), count);
            recorded.map_err(io::Error::other)?;
        }
        let mut tag = style.grouping.label(&row.flow);
        if style.several() {
            tag = format!("{tag}/{}", style.label(row.method).name);
        }
        let mut log =
            IntervalLogWriterBuilder::new().begin_log_with(&mut self.out, &mut self.serializer)?;
        let written = log.write_histogram(
            &histogram,
            Duration::from_nanos(row.epoch_ns),
            Duration::from_nanos(style.epoch_ns),
            Tag::new(&tag),
        );
        written.map_err(|error| match error {
            IntervalLogWriterError::IoError(error) => error,
            IntervalLogWriterError::SerializeError(error) => io::Error::other(error),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn finish(&mut self, _: &Style) -> io::Result<()> {
        self.out.flush()
    }
}
