// SPDX-License-Identifier: Apache-2.0
//! HdrHistogram interval logs (format 1.3): one line an interval and method, the
//! method as the tag. HistogramLogAnalyzer and its kin read them. Values are in
//! nanoseconds; the column of the interval's maximum is in milliseconds.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;

use super::protocol;

/// An open log.
pub(crate) struct HdrLog {
    path: PathBuf,
    file: BufWriter<File>,
}

impl HdrLog {
    /// Begins a log.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let created = || -> io::Result<_> {
            let mut file = BufWriter::new(File::create(path)?);
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            let start_s = since.map_or(0.0, |since| since.as_secs_f64());
            writeln!(file, "#[Logged by causeway rtt; values in nanoseconds]")?;
            writeln!(file, "#[Histogram log format version 1.3]")?;
            writeln!(file, "#[StartTime: {start_s:.3} (seconds since epoch)]")?;
            writeln!(
                file,
                "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\""
            )?;
            Ok(file)
        };
        let file = created().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Writes an interval of `length_ns` that ended `end_ns` after the start.
    pub(crate) fn write(
        &mut self,
        tag: &str,
        histogram: &Histogram<u64>,
        end_ns: u64,
        length_ns: u64,
    ) -> Result<()> {
        if histogram.is_empty() {
            return Ok(());
        }
        let text = protocol::encode(histogram).context("cannot encode a histogram")?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        writeln!(
            self.file,
            "Tag={tag},{:.3},{:.3},{:.3},{text}",
            seconds(end_ns.saturating_sub(length_ns)),
            seconds(length_ns),
            histogram.max() as f64 / 1e6,
        )
        .and_then(|()| self.file.flush())
        .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use causeway_core::rtt::RttLatencies;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    use super::*;

    #[test]
    fn another_reader_understands_the_log() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut log = HdrLog::create(file.path()).unwrap();
        let mut latencies = RttLatencies::new();
        (1..=100).for_each(|i| latencies.record(i * 1_000_000));
        let second = 1_000_000_000;
        log.write("rr", latencies.histogram(), 2 * second, second)
            .unwrap();
        log.write("ping", RttLatencies::new().histogram(), second, second)
            .unwrap();
        drop(log);
        let bytes = std::fs::read(file.path()).unwrap();
        let entries: Vec<_> = IntervalLogIterator::new(&bytes)
            .map(|entry| entry.expect("a readable line"))
            .collect();
        let intervals: Vec<_> = entries
            .iter()
            .filter_map(|entry| match entry {
                LogEntry::Interval(interval) => Some(interval),
                _ => None,
            })
            .collect();
        assert!(matches!(entries[0], LogEntry::StartTime(_)));
        assert_eq!(intervals.len(), 1, "an empty interval has no line");
        assert_eq!(
            intervals[0].tag().map(|t| t.as_str().to_owned()),
            Some("rr".into())
        );
        assert_eq!(intervals[0].start_timestamp().as_secs_f64(), 1.0);
        assert!((intervals[0].max() - 100.0).abs() < 0.1);
        let found = protocol::decode(intervals[0].encoded_histogram()).unwrap();
        assert_eq!(&found, latencies.histogram());
    }
}
