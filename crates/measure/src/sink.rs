// SPDX-License-Identifier: Apache-2.0
//! Where results go: standard output or a file.

use std::fs::{self, File};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::page::{self, Source};
use super::rows::Rows;
use super::table;
use super::totals::Totals;
use super::words::Format;

/// The place, and a file open from the start: whatever is wrong with it shows
/// before hours of measuring.
#[derive(Debug)]
pub(crate) struct Target {
    file: Option<(PathBuf, File)>,
}

impl Target {
    /// The file at `path`, or standard output. `input` has device and inode of the file that is
    /// read.
    ///
    /// # Errors
    /// A file that cannot be written, or is the input; binary data for a terminal.
    pub(crate) fn new(
        path: Option<&Path>,
        format: Format,
        input: Option<(u64, u64)>,
    ) -> anyhow::Result<Self> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            anyhow::ensure!(
                format != Format::Parquet || !io::stdout().is_terminal(),
                "Parquet cannot be written to a terminal: name a file with --out"
            );
            return Ok(Self { file: None });
        };
        let there = fs::metadata(path).map(|there| (there.dev(), there.ino()));
        anyhow::ensure!(
            input.is_none() || there.ok() != input,
            "{} is the capture itself: name another file with --out",
            path.display()
        );
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self {
            file: Some((path.to_owned(), file)),
        })
    }

    /// A writer of rows.
    pub(crate) fn writer(&self) -> anyhow::Result<Box<dyn Write + Send>> {
        Ok(match &self.file {
            None => Box::new(io::stdout()),
            Some((path, file)) => Box::new(file.try_clone().with_context(|| self.name(path))?),
        })
    }

    /// Writes what is left: rows, and the totals as a table or page.
    pub(crate) fn finish(
        self,
        rows: Rows,
        totals: Option<&Totals>,
        source: &Source,
    ) -> anyhow::Result<()> {
        let style = rows.style().clone();
        let written = rows.finish().and_then(|()| {
            let mut out = match &self.file {
                None => BufWriter::new(Box::new(io::stdout()) as Box<dyn Write>),
                Some((_, file)) => BufWriter::new(Box::new(file.try_clone()?) as Box<dyn Write>),
            };
            match (style.format, totals) {
                (Format::Table, Some(totals)) => table::write(totals, &style, &mut out)?,
                (Format::Html, Some(totals)) => page::write(totals, &style, source, &mut out)?,
                _ => {}
            }
            out.flush()
        });
        let name = || match &self.file {
            None => "standard output".to_owned(),
            Some((path, _)) => self.name(path),
        };
        written.with_context(name)
    }

    fn name(&self, path: &Path) -> String {
        format!("cannot write {}", path.display())
    }
}
