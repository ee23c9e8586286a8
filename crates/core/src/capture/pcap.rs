// SPDX-License-Identifier: Apache-2.0

//! The classic format: one file header, then records.

use super::{CaptureError, Decode, Fault, Found, MAX_BLOCK, Order, Step};
use crate::wire::LinkType;

pub(super) const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;

#[derive(Debug)]
pub(super) struct Decoder {
    order: Order,
    link: LinkType,
    fraction_ns: u64,
}

impl Decoder {
    /// Reads the file header. `None`: more bytes are needed.
    pub(super) fn new(window: &[u8]) -> Result<Option<Self>, CaptureError> {
        let magic = *window.first_chunk::<4>().ok_or(CaptureError::ShortHeader)?;
        let (order, fraction_ns) = match (u32::from_le_bytes(magic), u32::from_be_bytes(magic)) {
            (MAGIC_MICROSECONDS, _) => (Order::Little, 1000),
            (MAGIC_NANOSECONDS, _) => (Order::Little, 1),
            (_, MAGIC_MICROSECONDS) => (Order::Big, 1000),
            (_, MAGIC_NANOSECONDS) => (Order::Big, 1),
            _ => return Err(CaptureError::NotCapture),
        };
        let Some(header) = window.first_chunk::<FILE_HEADER_LEN>() else {
            return Ok(None);
        };
        let major = order.u16([header[4], header[5]]);
        if major != 2 {
            return Err(CaptureError::Version(
                major,
                order.u16([header[6], header[7]]),
            ));
        }
        // The upper bits say whether frames end in a check sequence. It lies
        // behind the IP packet, where nobody looks.
        let number = order.word(header, 5) & 0x03ff_ffff;
        let link = LinkType::from_number(number).ok_or(CaptureError::LinkType(number))?;
        Ok(Some(Self {
            order,
            link,
            fraction_ns,
        }))
    }
}

impl Decode for Decoder {
    #[inline(always)]
    fn step(&mut self, window: &[u8]) -> Result<Step, Fault> {
        let Some(header) = window.first_chunk::<RECORD_HEADER_LEN>() else {
            return Ok(Step::Need(RECORD_HEADER_LEN));
        };
        let captured = self.order.word(header, 2);
        if captured > MAX_BLOCK {
            return Err(Fault("a record claims more than 16 MiB"));
        }
        let record = RECORD_HEADER_LEN + captured as usize;
        if window.len() < record {
            return Ok(Step::Need(record));
        }
        let seconds = u64::from(self.order.word(header, 0));
        let fraction = u64::from(self.order.word(header, 1));
        Ok(Step::Packet(Found {
            time_ns: Some(seconds * 1_000_000_000 + fraction * self.fraction_ns),
            link: Some(self.link),
            wire_len: self.order.word(header, 3),
            offset: RECORD_HEADER_LEN,
            captured: captured as usize,
            record,
        }))
    }
}
