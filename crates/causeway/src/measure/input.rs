// SPDX-License-Identifier: Apache-2.0
//! Where the bytes of a capture come from: a file or standard input, plain or
//! compressed. The compression is told by the first bytes, never by the name.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A zstd file may begin with skippable frames, of 16 types.
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];

const BUFFER: usize = 128 << 10;

/// An open capture.
pub struct Input {
    /// The capture, decompressed.
    pub bytes: Box<dyn Read + Send>,
    /// How much of the file has been read, before decompression.
    pub position: Arc<AtomicU64>,
    /// Length of the file; `None` for pipes.
    pub len: Option<u64>,
}

impl Input {
    /// Opens `path`, or standard input for `-`.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = || path.display().to_string();
        if path == Path::new("-") {
            return Self::new(io::stdin(), None).context("standard input");
        }
        let file = File::open(path).with_context(name)?;
        let metadata = file.metadata().with_context(name)?;
        if metadata.is_dir() {
            anyhow::bail!("{}: is a directory", name());
        }
        Self::new(file, metadata.is_file().then_some(metadata.len())).with_context(name)
    }

    fn new(source: impl Read + Send + 'static, len: Option<u64>) -> io::Result<Self> {
        let position = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            source,
            position: Arc::clone(&position),
        };
        let mut buffered = BufReader::with_capacity(BUFFER, counted);
        // A pipe may hand over its first bytes one at a time.
        let mut start = Vec::with_capacity(4);
        (&mut buffered).take(4).read_to_end(&mut start)?;
        let joined = io::Cursor::new(start.clone()).chain(buffered);
        Ok(Self {
            bytes: decompress(&start, joined)?,
            position,
            len,
        })
    }
}

fn decompress(
    start: &[u8],
    source: impl BufRead + Send + 'static,
) -> io::Result<Box<dyn Read + Send>> {
    let skippable = start.len() == 4 && start[1..] == ZSTD_SKIPPABLE && start[0] & 0xf0 == 0x50;
    if start.starts_with(&GZIP) {
        Ok(Box::new(flate2::bufread::MultiGzDecoder::new(source)))
    } else if start.starts_with(&ZSTD) || skippable {
        Ok(Box::new(zstd::Decoder::with_buffer(source)?))
    } else {
        Ok(Box::new(source))
    }
}

/// Counts what passes through.
struct Counted<R> {
    source: R,
    position: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(buffer)?;
        self.position.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
