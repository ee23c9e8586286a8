// SPDX-License-Identifier: Apache-2.0

//! How frames are segmented into chunks: all equal but for the last, which may be shorter.

use crate::virtio::{MAX_FRAME_LEN, MIN_FRAME_LEN};
use crate::wire::MAX_CHUNKS;

/// Padding of a frame's last chunk to the size of the others stays below this many bytes:
/// no more are missing where chunks are equal.
pub(crate) const PADDING_LIMIT: u32 = MAX_CHUNKS as u32;

/// Size and number of equal chunks of at most `max_chunk` bytes. `None`: too short, or too long.
pub(crate) fn segment(len: u32, max_chunk: u16) -> Option<(u16, u8)> {
    if (len as usize) < MIN_FRAME_LEN || len > MAX_FRAME_LEN {
        return None;
    }
    let size = len.div_ceil(len.div_ceil(u32::from(max_chunk)));
    let chunks = len.div_ceil(size);
    (chunks as usize <= MAX_CHUNKS).then_some((size as u16, chunks as u8))
}

/// Frames of at least this many chunks are long.
const LONG_CHUNKS: u8 = 16;
/// Long frames of one length in a row from which on they are bulk.
const BULK_FRAMES: u32 = 4;

/// Segments frame after frame, and long ones alike: so that their chunks can stand in one
/// message, and that the caller knows where they will begin before it reads the frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segmenter {
    /// Bytes of a chunk of long frames; 0 before the first.
    size: u16,
    /// Bytes of the last long frame, and how many of this length came in a row.
    len: u32,
    count: u32,
}

impl Segmenter {
    /// Like [`segment`], but long frames with the size that they had before, if that makes no more
    /// chunks. Bulk of another length changes the size, where padding would not do.
    pub(crate) fn segment(&mut self, len: u32, max_chunk: u16) -> Option<(u16, u8)> {
        let (equal, chunks) = segment(len, max_chunk)?;
        if chunks < LONG_CHUNKS {
            return Some((equal, chunks));
        }
        self.count = if len == self.len { self.count + 1 } else { 1 };
        self.len = len;
        let size = u32::from(self.size);
        let fits = (1..=max_chunk).contains(&self.size) && len.div_ceil(size) == chunks.into();
        let missing = (size * u32::from(chunks)).saturating_sub(len);
        if !fits || (self.count >= BULK_FRAMES && missing >= PADDING_LIMIT) {
            self.size = equal;
        }
        Some((self.size, chunks))
    }

    /// What long frames are cut into; 0: none has come.
    pub(crate) fn size(&self) -> u16 {
        self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_equal_and_as_few_as_can_be() {
        assert_eq!(segment(65_222, 1444), Some((1418, 46)));
        assert_eq!(segment(1444, 1444), Some((1444, 1)));
        assert_eq!(segment(1445, 1444), Some((723, 2)));
        assert_eq!(segment(MAX_FRAME_LEN, 1000), None);
        assert_eq!(segment(MIN_FRAME_LEN as u32 - 1, 1000), None);
    }

    #[test]
    fn lengths_that_take_turns_keep_a_size_that_fits_both() {
        let mut segmenter = Segmenter::default();
        let mut segment = |len| segmenter.segment(len, 1444);
        assert_eq!(segment(29_022), Some((1382, 21)));
        // 48 of these, where 46 do: does not fit.
        assert_eq!(segment(65_222), Some((1418, 46)));
        // 21 of these do, too.
        assert_eq!(segment(29_022), Some((1418, 21)));
        assert_eq!(segment(65_222), Some((1418, 46)));
        // Short ones say nothing, and have chunks that are equal.
        for _ in 0..BULK_FRAMES {
            assert_eq!(segment(100), Some((100, 1)));
            assert_eq!(segment(1510), Some((755, 2)));
        }
        // Two flows of nearly one length.
        for _ in 0..10 {
            for len in [65_222, 65_222, 65_090, 65_090] {
                assert_eq!(segment(len), Some((1418, 46)));
            }
        }
        // Bulk of another length; and of one for which padding does.
        for count in 1..=BULK_FRAMES {
            let size = if count < BULK_FRAMES { 1418 } else { 1382 };
            assert_eq!(segment(29_022), Some((size, 21)));
        }
        for _ in 0..=BULK_FRAMES {
            assert_eq!(segment(29_000), Some((1382, 21)));
        }
        // A path has become narrower.
        assert_eq!(segmenter.segment(29_022, 1300), Some((1262, 23)));
        assert_eq!(segmenter.size(), 1262);
    }
}
