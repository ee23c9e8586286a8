// SPDX-License-Identifier: Apache-2.0
//! Rows as Parquet: the CSV's columns with types, compressed with zstd. What does
//! not apply is null. The file is complete with its last bytes alone.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use super::super::totals::quantile_of;
use super::{Form, Line, PERCENTILES, Style};

/// Rows of a row group, which memory holds.
const GROUP: usize = 1 << 16;

const SCHEMA: &str = "
message estimates {
  optional int32 proto (INTEGER(8, false));
  optional binary client_net (STRING);
  optional binary src (STRING);
  optional int32 sport (INTEGER(16, false));
  optional binary dst (STRING);
  optional int32 dport (INTEGER(16, false));
  required int64 epoch_start_ns (INTEGER(64, false));
  required double estimate_us;
  required int64 samples (INTEGER(64, false));
  required binary estimator (STRING);
  optional int32 window (INTEGER(8, false));
  required binary quality (STRING);
  optional double p50_us;
  optional double p90_us;
  optional double p95_us;
  optional double p99_us;
  optional double p99_9_us;
}";

pub(super) struct Parquet<W: Write + Send> {
    /// `None` once it is finished.
    file: Option<SerializedFileWriter<W>>,
    lines: Vec<Line>,
}

impl<W: Write + Send> Parquet<W> {
    pub(super) fn new(out: W, style: &Style) -> io::Result<Self> {
        let words = style.estimators.iter().map(|label| {
            let text = format!("{} (sees {})", label.measures, label.needs);
            parquet::file::metadata::KeyValue::new(format!("causeway.{}", label.name), text)
        });
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_created_by(concat!("causeway ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_key_value_metadata(Some(words.collect()))
            .build();
        let schema = parse_message_type(SCHEMA).map_err(other)?;
        let file = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties));
        Ok(Self {
            file: Some(file.map_err(other)?),
            lines: Vec::new(),
        })
    }

    fn write_group(&mut self, style: &Style) -> io::Result<()> {
        let lines = std::mem::take(&mut self.lines);
        match &mut self.file {
            Some(file) if !lines.is_empty() => write_lines(file, &lines, style).map_err(other),
            _ => Ok(()),
        }
    }
}

fn other(error: ParquetError) -> io::Error {
    match error {
        // A broken pipe stays one.
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(inner) => io::Error::other(inner),
        },
        error => io::Error::other(error),
    }
}

impl<W: Write + Send> Form for Parquet<W> {
    fn line(&mut self, line: &Line, style: &Style) -> io::Result<()> {
        self.lines.push(line.clone());
        match self.lines.len() {
            GROUP => self.write_group(style),
            _ => Ok(()),
        }
    }

    /// A row group is written when it is full, not when the input pauses: small ones
    /// would make the file slow to read.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, style: &Style) -> io::Result<()> {
        self.write_group(style)?;
        match self.file.take() {
            Some(file) => file.close().map(drop).map_err(other),
            None => Ok(()),
        }
    }
}

/// One row group, column by column in the order of the schema.
fn write_lines<W: Write + Send>(
    file: &mut SerializedFileWriter<W>,
    lines: &[Line],
    style: &Style,
) -> Result<(), ParquetError> {
    let names: Vec<_> = lines
        .iter()
        .map(|line| style.grouping.name(&line.row.flow))
        .collect();
    let confidence: Vec<_> = lines
        .iter()
        .map(|line| line.row.tally.confidence())
        .collect();
    let text = |text: String| ByteArray::from(text.into_bytes());
    let mut group = file.next_row_group()?;
    let out = &mut group;
    optional::<Int32Type, W>(out, names.iter().map(|name| name.proto.map(i32::from)))?;
    optional::<ByteArrayType, W>(
        out,
        names.iter().map(|name| name.client_net.clone().map(text)),
    )?;
    optional::<ByteArrayType, W>(
        out,
        names
            .iter()
            .map(|name| name.src.map(|ip| text(ip.to_string()))),
    )?;
    optional::<Int32Type, W>(out, names.iter().map(|name| name.sport.map(i32::from)))?;
    optional::<ByteArrayType, W>(
        out,
        names
            .iter()
            .map(|name| name.dst.map(|ip| text(ip.to_string()))),
    )?;
    optional::<Int32Type, W>(out, names.iter().map(|name| name.dport.map(i32::from)))?;
    required::<Int64Type, W>(out, lines.iter().map(|line| line.row.epoch_ns as i64))?;
    let mean_us = |line: &Line| line.row.tally.mean_ns().map(|ns| ns.round() / 1e3);
    required::<DoubleType, W>(
        out,
        lines.iter().map(|line| mean_us(line).unwrap_or_default()),
    )?;
    required::<Int64Type, W>(out, confidence.iter().map(|c| c.samples as i64))?;
    let name = |line: &Line| text(style.label(line.row.method).name.to_owned());
    required::<ByteArrayType, W>(out, lines.iter().map(name))?;
    optional::<Int32Type, W>(out, confidence.iter().map(|c| c.window.map(i32::from)))?;
    required::<ByteArrayType, W>(out, confidence.iter().map(|c| text(c.quality.to_string())))?;
    for (share, ..) in PERCENTILES {
        let value = lines.iter().zip(&confidence).map(|(line, confidence)| {
            let ns = quantile_of(&line.latencies, confidence.samples, share);
            ns.map(|ns| ns as f64 / 1e3)
        });
        optional::<DoubleType, W>(out, value)?;
    }
    group.close().map(drop)
}

/// The next column, whose values may be missing.
fn optional<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let (mut there, mut levels) = (Vec::new(), Vec::new());
    for value in values {
        levels.push(i16::from(value.is_some()));
        there.extend(value);
    }
    column::<T, W>(group, &there, Some(&levels))
}

/// The next column, whose values are all there.
fn required<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: impl Iterator<Item = T::T>,
) -> Result<(), ParquetError> {
    let values: Vec<T::T> = values.collect();
    column::<T, W>(group, &values, None)
}

fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("more columns than the schema has".to_owned());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}
