// SPDX-License-Identifier: Apache-2.0
//! The frames that are carried, and what has come of them.

pub const FRAME: usize = 65_536;
/// Of the tunnel's datagrams: header and payload.
pub const HEADER: usize = 28;
pub const CHUNK: usize = 1_472 - HEADER;
pub const CHUNKS: usize = FRAME.div_ceil(CHUNK);
/// How many there are.
pub const FRAMES: usize = 32;

/// The `index`th word of a chunk.
fn word(frame: usize, chunk: usize, index: usize) -> u64 {
    let seed = (frame * CHUNKS + chunk + 1) as u64;
    (seed << 16 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Frames with contents that tell each place in each of them.
pub fn frames() -> Vec<Vec<u8>> {
    let frame = |number| {
        let mut frame = vec![0; FRAME];
        for (chunk, bytes) in frame.chunks_mut(CHUNK).enumerate() {
            for (index, bytes) in bytes.chunks_mut(8).enumerate() {
                let word = word(number, chunk, index).to_le_bytes();
                bytes.copy_from_slice(&word[..bytes.len()]);
            }
        }
        frame
    };
    (0..FRAMES).map(frame).collect()
}

/// Frame and chunk of a datagram.
pub fn place(number: u64) -> (usize, usize) {
    let chunks = CHUNKS as u64;
    (
        (number / chunks % FRAMES as u64) as usize,
        (number % chunks) as usize,
    )
}

/// What has come in, in order.
#[derive(Default, Clone, Copy)]
pub struct Tally {
    pub next: u64,
    pub lost: u64,
    pub wrong: u64,
    /// Whether all of the payload is looked at.
    pub wholly: bool,
}

impl Tally {
    pub fn take(&mut self, datagram: &[u8]) {
        let Some((header, payload)) = datagram.split_first_chunk::<HEADER>() else {
            self.wrong += 1;
            return;
        };
        let number = header
            .first_chunk()
            .map_or(u64::MAX, |n| u64::from_le_bytes(*n));
        let (frame, chunk) = place(number);
        let length = CHUNK.min(FRAME - chunk * CHUNK);
        let is = |index| {
            let bytes = &payload[index * 8..length.min(index * 8 + 8)];
            *bytes == word(frame, chunk, index).to_le_bytes()[..bytes.len()]
        };
        let right = payload.len() == length
            && match self.wholly {
                true => (0..length.div_ceil(8)).all(is),
                false => is(0) && is((length - 1) / 8),
            };
        self.wrong += u64::from(!right || number < self.next);
        self.lost += number.saturating_sub(self.next);
        self.next = number.saturating_add(1);
    }
}
