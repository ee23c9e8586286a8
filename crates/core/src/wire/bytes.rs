// SPDX-License-Identifier: Apache-2.0

//! Big-endian fields at an offset. `None` when the bytes are not there.

#[inline]
pub(super) fn be16(data: &[u8], at: usize) -> Option<u16> {
    let field = data.get(at..at + 2)?;
    Some(u16::from_be_bytes([field[0], field[1]]))
}

#[inline]
pub(super) fn be32(data: &[u8], at: usize) -> Option<u32> {
    let field = data.get(at..at + 4)?;
    Some(u32::from_be_bytes([field[0], field[1], field[2], field[3]]))
}

/// The first `N` bytes of a header that must be there in full.
#[inline]
pub(super) fn fixed<const N: usize>(data: &[u8]) -> Option<&[u8; N]> {
    data.first_chunk::<N>()
}
