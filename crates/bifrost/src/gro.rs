// SPDX-License-Identifier: Apache-2.0

//! Datagrams that come in merged, as GRO does it. Chunks of one frame that left together are
//! taken together, as a run; what is special about any of them makes it go by itself.

use crate::virtio::{MIN_FRAME_LEN, is_safe};
use crate::wire::{CommonHeader, DATA_HEADER_LEN, DataHeader, PacketKind};

/// The header of a data datagram in clear, if nothing about it is special: chunks that follow
/// it in its frame may be taken with it. `is_expected` checks the common header.
pub(crate) fn first_of_run(
    datagram: &[u8],
    is_expected: impl FnOnce(&CommonHeader) -> bool,
) -> Option<DataHeader> {
    let header = CommonHeader::parse(datagram).ok()?;
    if header.kind != PacketKind::Data || header.key != 0 || !is_expected(&header) {
        return None;
    }
    let data = DataHeader::parse(header, datagram).ok()?;
    let payload = &datagram[DATA_HEADER_LEN..];
    let frame_len = data.frame_len();
    let whole = data.index() + 1 < data.chunks() && payload.len() == usize::from(data.size);
    let safe = frame_len >= MIN_FRAME_LEN && (data.index() > 0 || is_safe(payload, frame_len));
    (whole && safe).then_some(data)
}

/// How many of the datagrams in `bytes`, all of `segment` bytes but for the last, are chunks of
/// one frame that left together: the first included, whose header is `data`.
pub(crate) fn run_length(bytes: &[u8], segment: usize, data: &DataHeader) -> u8 {
    let mut datagrams = bytes.chunks(segment);
    let Some(first) = datagrams.next().and_then(<[u8]>::first_chunk) else {
        return 1;
    };
    let (size, last) = (usize::from(data.size), data.chunks() - 1);
    let last_len = data.frame_len() - last * size;
    let mut count = 1;
    for next in datagrams.take(last - data.index()) {
        let is_last = data.index() + usize::from(count) == last;
        // The last one may be padded to the others' size.
        let fits = next
            .len()
            .checked_sub(DATA_HEADER_LEN)
            .is_some_and(|payload| payload == size || (is_last && payload == last_len));
        let follows = |header| DataHeader::follows(header, first, count);
        if !fits || !next.first_chunk().is_some_and(follows) {
            break;
        }
        count += 1;
    }
    count
}
