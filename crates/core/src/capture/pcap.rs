// SPDX-License-Identifier: Apache-2.0

//! The classic format: one file header, then records.

use super::{CaptureFileError, Decode, Fault, Found, MAX_BLOCK, Order, Step};
use crate::wire::LinkType;

pub(super) const FILE_HEADER_LEN: usize = 24;
const RECORD_HEADER_LEN: usize = 16;
/// With interface, protocol and packet type behind it (Kuznetsov's patch to libpcap).
const PATCHED_RECORD_HEADER_LEN: usize = 24;

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
const MAGIC_PATCHED: u32 = 0xa1b2_cd34;

#[derive(Debug)]
pub(super) struct Decoder {
    order: Order,
    link: LinkType,
    fraction_ns: u64,
    header_len: usize,
    lengths: Lengths,
}

/// Which of a record's two lengths comes first: until version 2.3 that depended on
/// the program (libpcap's `LengthsSwapped`).
#[derive(Clone, Copy, Debug)]
enum Lengths {
    CapturedFirst,
    WireFirst,
    SmallerIsCaptured,
}

impl Decoder {
    /// Reads the file header. `None`: more bytes are needed.
    pub(super) fn new(window: &[u8]) -> Result<Option<Self>, CaptureFileError> {
        let magic = *window
            .first_chunk::<4>()
            .ok_or(CaptureFileError::ShortHeader)?;
        let little = u32::from_le_bytes(magic);
        let (order, magic) = match little {
            MAGIC_MICROSECONDS | MAGIC_NANOSECONDS | MAGIC_PATCHED => (Order::Little, little),
            _ => (Order::Big, little.swap_bytes()),
        };
        let (fraction_ns, header_len) = match magic {
            MAGIC_MICROSECONDS => (1000, RECORD_HEADER_LEN),
            MAGIC_NANOSECONDS => (1, RECORD_HEADER_LEN),
            MAGIC_PATCHED => (1000, PATCHED_RECORD_HEADER_LEN),
            _ => return Err(CaptureFileError::NotCapture),
        };
        let Some(header) = window.first_chunk::<FILE_HEADER_LEN>() else {
            return Ok(None);
        };
        let major = order.u16([header[4], header[5]]);
        let minor = order.u16([header[6], header[7]]);
        if major != 2 {
            return Err(CaptureFileError::Version(major, minor));
        }
        let lengths = match minor {
            0..=2 => Lengths::WireFirst,
            3 => Lengths::SmallerIsCaptured,
            _ => Lengths::CapturedFirst,
        };
        // The upper bits say whether frames end in a check sequence. It lies
        // behind the IP packet, which is as far as is read.
        let number = order.word(header, 5) & 0x03ff_ffff;
        let link = LinkType::from_number(number).ok_or(CaptureFileError::LinkType(number))?;
        Ok(Some(Self {
            order,
            link,
            fraction_ns,
            header_len,
            lengths,
        }))
    }

    /// The same for records as nearly all files have them.
    #[inline]
    pub(super) fn common(&self) -> Option<Common> {
        let is_common = self.order == Order::Little
            && self.header_len == RECORD_HEADER_LEN
            && matches!(self.lengths, Lengths::CapturedFirst);
        is_common.then_some(Common {
            link: self.link,
            fraction_ns: self.fraction_ns,
        })
    }

    #[inline(always)]
    fn read(&self, window: &[u8]) -> Result<Step, Fault> {
        let Some(header) = window.first_chunk::<RECORD_HEADER_LEN>() else {
            return Ok(Step::Need(self.header_len));
        };
        let [seconds, fraction, first, second] = self.order.words(header);
        let (captured, wire_len) = match self.lengths {
            Lengths::CapturedFirst => (first, second),
            Lengths::WireFirst => (second, first),
            Lengths::SmallerIsCaptured => (first.min(second), first.max(second)),
        };
        if captured > MAX_BLOCK {
            return Err(Fault("a record claims more than 16 MiB"));
        }
        let record = self.header_len + captured as usize;
        if window.len() < record {
            return Ok(Step::Need(record));
        }
        let time_ns = u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.fraction_ns;
        Ok(Step::Packet(Found {
            time_ns: Some(time_ns),
            link: Some(self.link),
            wire_len,
            offset: self.header_len,
            captured: captured as usize,
            record,
        }))
    }
}

impl Decode for Decoder {
    #[inline(always)]
    fn step(&mut self, window: &[u8]) -> Result<Step, Fault> {
        self.read(window)
    }
}

/// A [`Decoder`] of which the compiler knows most.
#[derive(Clone, Copy)]
pub(super) struct Common {
    link: LinkType,
    fraction_ns: u64,
}

impl Decode for Common {
    #[inline(always)]
    fn step(&mut self, window: &[u8]) -> Result<Step, Fault> {
        let decoder = Decoder {
            order: Order::Little,
            link: self.link,
            fraction_ns: self.fraction_ns,
            header_len: RECORD_HEADER_LEN,
            lengths: Lengths::CapturedFirst,
        };
        decoder.read(window)
    }
}
