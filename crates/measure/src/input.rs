// SPDX-License-Identifier: Apache-2.0
//! Where the bytes of a capture come from: a file or standard input, plain or
//! compressed. The compression is recognised by the first bytes, never by the name.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use causeway_service::stop;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// A zstd file may begin with skippable frames, of 16 types.
const ZSTD_SKIPPABLE: [u8; 3] = [0x2a, 0x4d, 0x18];

const XZ: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const LZ4: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
/// Longest of the above.
const MAGIC_LEN: u64 = 6;

const BUFFER: usize = 128 << 10;
/// What a decompressor may take for its dictionary: as much as zstd's default, and
/// twice what `xz -9` asks for. A hostile file would name 4 GiB.
const DICTIONARY_KIB: u32 = 128 << 10;
/// Pieces that decompression may be ahead.
const PIECES_AHEAD: usize = 4;

/// An open capture.
pub(crate) struct Input {
    /// The capture, decompressed.
    pub bytes: Box<dyn Read + Send>,
    /// How much of the file has been read, before decompression.
    pub position: Arc<AtomicU64>,
    /// Length of the file, standard input too; `None` for pipes.
    pub len: Option<u64>,
    /// Device and inode of a file.
    pub file: Option<(u64, u64)>,
}

impl Input {
    /// Opens `path`, or standard input for `-`. With `ahead`, decompression has a
    /// thread of its own.
    pub(crate) fn open(path: &Path, ahead: bool) -> anyhow::Result<Self> {
        let (name, file) = match path == Path::new("-") {
            // Not `io::stdin`, whose buffer would hide from `Awaited` what is there.
            true => {
                let stdin = io::stdin().as_fd().try_clone_to_owned();
                ("standard input".to_owned(), stdin.map(File::from))
            }
            false => (path.display().to_string(), File::open(path)),
        };
        let file = file.with_context(|| name.clone())?;
        let metadata = file.metadata().with_context(|| name.clone())?;
        if metadata.is_dir() {
            anyhow::bail!("{name}: is a directory");
        }
        let len = metadata.is_file().then_some(metadata.len());
        let identity = metadata.is_file().then(|| (metadata.dev(), metadata.ino()));
        let input = Self::new(Awaited { file, until: None }, len, ahead).context(name)?;
        Ok(Self {
            file: identity,
            ..input
        })
    }

    fn new(source: impl Read + Send + 'static, len: Option<u64>, ahead: bool) -> io::Result<Self> {
        let position = Arc::new(AtomicU64::new(0));
        let counted = Counted {
            source,
            position: Arc::clone(&position),
        };
        let mut buffered = BufReader::with_capacity(BUFFER, counted);
        // A pipe may hand over its first bytes one at a time.
        let mut start = Vec::with_capacity(MAGIC_LEN as usize);
        (&mut buffered).take(MAGIC_LEN).read_to_end(&mut start)?;
        let joined = io::Cursor::new(start.clone()).chain(buffered);
        Ok(Self {
            bytes: decompress(&start, joined, ahead)?,
            position,
            len,
            file: None,
        })
    }
}

fn decompress(
    start: &[u8],
    source: impl BufRead + Send + 'static,
    ahead: bool,
) -> io::Result<Box<dyn Read + Send>> {
    let skippable = matches!(start, [0x50..=0x5f, rest @ ..] if rest.starts_with(&ZSTD_SKIPPABLE));
    let plain: Box<dyn Read + Send> = if start.starts_with(&GZIP) {
        Box::new(flate2::bufread::MultiGzDecoder::new(source))
    } else if start.starts_with(&ZSTD) || skippable {
        Box::new(zstd::Decoder::with_buffer(source)?)
    } else if start.starts_with(&XZ) {
        Box::new(lzma_rust2::XzReader::new_mem_limit(
            source,
            true,
            DICTIONARY_KIB,
        ))
    } else if start.starts_with(&LZ4) {
        Box::new(Lz4Frames(lz4_flex::frame::FrameDecoder::new(source)))
    } else {
        return Ok(Box::new(source));
    };
    if ahead {
        Ok(Box::new(Ahead::new(plain)?))
    } else {
        Ok(plain)
    }
}

/// All frames of a file of lz4, which may be several like a file of the others: their decoder
/// ends at the end of each.
struct Lz4Frames<R: Read>(lz4_flex::frame::FrameDecoder<R>);

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.0.read(buffer)?;
            if count > 0 || buffer.is_empty() || self.0.get_mut().fill_buf()?.is_empty() {
                return Ok(count);
            }
        }
    }
}

/// Reads in a thread of its own, a few pieces ahead. Each piece is handed over as
/// soon as it is there, so that a pipe is not held up.
struct Ahead {
    pieces: Receiver<io::Result<Vec<u8>>>,
    /// Emptied pieces, on their way back.
    empty: Sender<Vec<u8>>,
    piece: Vec<u8>,
    taken: usize,
}

impl Ahead {
    fn new(mut source: Box<dyn Read + Send>) -> io::Result<Self> {
        let (full, pieces) = sync_channel(PIECES_AHEAD);
        let (empty, emptied) = channel::<Vec<u8>>();
        let read = move || {
            loop {
                let mut piece = emptied.try_recv().unwrap_or_default();
                piece.resize(BUFFER, 0);
                let result = source.read(&mut piece);
                let end = !matches!(result, Ok(1..));
                let piece = result.map(|count| {
                    piece.truncate(count);
                    piece
                });
                // The receiver is gone when the reader stopped early.
                if full.send(piece).is_err() || end {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("decompress".to_owned())
            .spawn(read)?;
        Ok(Self {
            pieces,
            empty,
            piece: Vec::new(),
            taken: 0,
        })
    }
}

impl Read for Ahead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.len() {
            // After the last piece, or an error, the thread has hung up.
            let Ok(next) = self.pieces.recv() else {
                return Ok(0);
            };
            let done = std::mem::replace(&mut self.piece, next?);
            self.taken = 0;
            // The thread may be gone; then the buffer is not needed.
            let _ = self.empty.send(done);
        }
        let rest = &self.piece[self.taken..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.taken += count;
        Ok(count)
    }
}

/// A file that ends where a signal ends it: soon after it, as what writes into a pipe may get
/// the same Ctrl-C, and hand over what it still has.
struct Awaited {
    file: File,
    /// When it ends, once a signal has come.
    until: Option<Instant>,
}

/// How long a pipe may still bring something once a signal has come.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// How often to look for signals while nothing comes: any thread may get them.
const LOOK: Duration = Duration::from_millis(100);

impl Read for Awaited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if stop::stopped() {
                let until = *self
                    .until
                    .get_or_insert_with(|| Instant::now() + LAST_WORDS);
                if Instant::now() >= until {
                    return Ok(0);
                }
            }
            let mut ready = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
            match poll(&mut ready, LOOK.as_millis() as u16) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return self.file.read(buffer),
                Err(error) => return Err(error.into()),
            }
        }
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
