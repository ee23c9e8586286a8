// SPDX-License-Identifier: Apache-2.0

//! How frames are cut into chunks: all equal but for the last, which may be shorter.

use crate::batch::PADDING_LIMIT;
use crate::engine::MAX_FRAME_LEN;
use crate::virtio::MIN_FRAME_LEN;
use crate::wire::MAX_CHUNKS;

/// Size and number of equal chunks of at most `room` bytes. `None`: too short, or too long.
pub(crate) fn cut(len: u32, room: u16) -> Option<(u16, u8)> {
    if (len as usize) < MIN_FRAME_LEN || len > MAX_FRAME_LEN {
        return None;
    }
    let size = len.div_ceil(len.div_ceil(u32::from(room)));
    let chunks = len.div_ceil(size);
    (chunks as usize <= MAX_CHUNKS).then_some((size as u16, chunks as u8))
}

/// Frames of fewer chunks are not long.
const LONG: u8 = 16;
/// So many frames of one length are bulk.
const BULK: u32 = 4;

/// Cuts frame after frame, and long ones alike: so that their chunks can stand in one
/// message, and that the caller knows where they will begin before it reads the frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cutter {
    /// Bytes of a chunk of long frames; 0 before the first.
    size: u16,
    /// Bytes of the last long frame, and how many of this length came in a row.
    len: u32,
    count: u32,
}

impl Cutter {
    /// Like [`cut`], but long frames with the size that they had before, if that makes no more
    /// chunks. Bulk of another length changes the size, where padding would not do.
    pub(crate) fn cut(&mut self, len: u32, room: u16) -> Option<(u16, u8)> {
        let (equal, chunks) = cut(len, room)?;
        if chunks < LONG {
            return Some((equal, chunks));
        }
        self.count = if len == self.len { self.count + 1 } else { 1 };
        self.len = len;
        let size = u32::from(self.size);
        let fits = (1..=room).contains(&self.size) && len.div_ceil(size) == chunks.into();
        let missing = (size * u32::from(chunks)).saturating_sub(len);
        if !fits || (self.count >= BULK && missing >= PADDING_LIMIT) {
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
        assert_eq!(cut(65_222, 1444), Some((1418, 46)));
        assert_eq!(cut(1444, 1444), Some((1444, 1)));
        assert_eq!(cut(1445, 1444), Some((723, 2)));
        assert_eq!(cut(MAX_FRAME_LEN, 1000), None);
        assert_eq!(cut(MIN_FRAME_LEN as u32 - 1, 1000), None);
    }

    #[test]
    fn lengths_that_take_turns_keep_a_size_that_fits_both() {
        let mut cutter = Cutter::default();
        let mut cut = |len| cutter.cut(len, 1444);
        assert_eq!(cut(29_022), Some((1382, 21)));
        // 48 of these, where 46 do: does not fit.
        assert_eq!(cut(65_222), Some((1418, 46)));
        // 21 of these do, too.
        assert_eq!(cut(29_022), Some((1418, 21)));
        assert_eq!(cut(65_222), Some((1418, 46)));
        // Short ones say nothing, and have chunks that are equal.
        for _ in 0..BULK {
            assert_eq!(cut(100), Some((100, 1)));
            assert_eq!(cut(1510), Some((755, 2)));
        }
        // Two flows of nearly one length.
        for _ in 0..10 {
            for len in [65_222, 65_222, 65_090, 65_090] {
                assert_eq!(cut(len), Some((1418, 46)));
            }
        }
        // Bulk of another length; and of one for which padding does.
        for count in 1..=BULK {
            let size = if count < BULK { 1418 } else { 1382 };
            assert_eq!(cut(29_022), Some((size, 21)));
        }
        for _ in 0..=BULK {
            assert_eq!(cut(29_000), Some((1382, 21)));
        }
        // A path has become narrower.
        assert_eq!(cutter.cut(29_022, 1300), Some((1262, 23)));
        assert_eq!(cutter.size(), 1262);
    }
}
