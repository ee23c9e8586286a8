// SPDX-License-Identifier: Apache-2.0

//! The block format: sections, each with its byte order and its interfaces.

use super::{Decode, Fault, Found, MAX_BLOCK, Order, Step};
use crate::wire::LinkType;

/// The type of a section header block, the same in both byte orders.
pub(super) const SECTION_MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

pub(super) const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;

pub(super) const INTERFACE: u32 = 1;
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
pub(super) const ENHANCED_PACKET: u32 = 6;

pub(super) const OPTION_END: u16 = 0;
pub(super) const OPTION_TSRESOL: u16 = 9;
const OPTION_TSOFFSET: u16 = 14;

/// Interfaces of one section. Each takes memory, and a file could go on forever.
const MAX_INTERFACES: usize = 1 << 16;

/// Type, length, and the length once more at the end.
const FRAME_LEN: usize = 12;
/// A packet block's fields before the data, with type and length.
const PACKET_HEADER_LEN: usize = 28;
/// The length at the end.
const LENGTH_LEN: usize = 4;

/// How an interface counts time.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: Option<LinkType>,
    snap_len: u32,
    clock: Clock,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    per_second: u64,
    /// Nanoseconds per unit where that is a whole number, else 0.
    unit_ns: u64,
    offset_s: i64,
}

impl Clock {
    /// From the if_tsresol octet: a negative power of 10, or of 2 with the top bit set.
    fn new(resolution: u8, offset_s: i64) -> Result<Self, Fault> {
        let base: u64 = if resolution & 0x80 == 0 { 10 } else { 2 };
        let per_second = base
            .checked_pow(u32::from(resolution & 0x7f))
            .ok_or(Fault("a time resolution beyond 64 bits"))?;
        let unit_ns = if 1_000_000_000 % per_second == 0 {
            1_000_000_000 / per_second
        } else {
            0
        };
        Ok(Self {
            per_second,
            unit_ns,
            offset_s,
        })
    }

    /// Nanoseconds since the Unix epoch; times beyond the range of 64 bits
    /// (before 1970, after 2554) stay at its ends.
    #[inline]
    fn time_ns(&self, units: u64) -> u64 {
        if self.offset_s == 0 && self.unit_ns != 0 {
            return units.saturating_mul(self.unit_ns);
        }
        let since = i128::from(units) * 1_000_000_000 / i128::from(self.per_second);
        let time_ns = since + i128::from(self.offset_s) * 1_000_000_000;
        time_ns.clamp(0, i128::from(u64::MAX)) as u64
    }
}

#[derive(Debug)]
pub(super) struct Decoder {
    order: Order,
    interfaces: Vec<Interface>,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self {
            order: Order::Little,
            interfaces: Vec::new(),
        }
    }

    /// A section header sets the byte order and forgets the interfaces.
    fn begin_section(&mut self, head: &[u8; FRAME_LEN]) -> Result<(), Fault> {
        let magic = [head[8], head[9], head[10], head[11]];
        self.order = if u32::from_le_bytes(magic) == BYTE_ORDER_MAGIC {
            Order::Little
        } else if u32::from_be_bytes(magic) == BYTE_ORDER_MAGIC {
            Order::Big
        } else {
            return Err(Fault("a section header without its byte-order magic"));
        };
        self.interfaces.clear();
        Ok(())
    }

    fn interface(&self, body: &[u8]) -> Result<Interface, Fault> {
        let head = body
            .first_chunk::<8>()
            .ok_or(Fault("an interface block too short"))?;
        let link = LinkType::from_number(u32::from(self.order.u16([head[0], head[1]])));
        let snap_len = match self.order.word(head, 1) {
            0 => u32::MAX,
            len => len,
        };
        let (mut resolution, mut offset_s) = (6, 0);
        let mut rest = &body[8..];
        while let Some(option) = rest.first_chunk::<4>() {
            let code = self.order.u16([option[0], option[1]]);
            let len = usize::from(self.order.u16([option[2], option[3]]));
            let value = rest
                .get(4..4 + len)
                .ok_or(Fault("an option longer than its block"))?;
            match (code, value) {
                (OPTION_END, _) => break,
                (OPTION_TSRESOL, &[octet]) => resolution = octet,
                (OPTION_TSOFFSET, &[a, b, c, d, e, f, g, h]) => {
                    let (first, second) =
                        (self.order.u32([a, b, c, d]), self.order.u32([e, f, g, h]));
                    let (low, high) = match self.order {
                        Order::Little => (first, second),
                        Order::Big => (second, first),
                    };
                    offset_s = (u64::from(high) << 32 | u64::from(low)) as i64;
                }
                _ => {}
            }
            rest = rest.get(4 + len.next_multiple_of(4)..).unwrap_or(&[]);
        }
        Ok(Interface {
            link,
            snap_len,
            clock: Clock::new(resolution, offset_s)?,
        })
    }

    #[inline]
    fn packet(&self, kind: u32, block: &[u8]) -> Result<Found, Fault> {
        if kind == SIMPLE_PACKET {
            return self.simple_packet(block);
        }
        let head = block.first_chunk::<PACKET_HEADER_LEN>();
        let room = block.len().checked_sub(PACKET_HEADER_LEN + LENGTH_LEN);
        let (head, room) = head
            .zip(room)
            .ok_or(Fault("a packet block too short for its fields"))?;
        let index = match kind {
            OLD_PACKET => u32::from(self.order.u16([head[8], head[9]])),
            _ => self.order.word(head, 2),
        };
        let interface = self.interface_at(index)?;
        let captured = self.order.word(head, 5) as usize;
        if captured > room {
            return Err(Fault("a packet longer than its block"));
        }
        let units = u64::from(self.order.word(head, 3)) << 32 | u64::from(self.order.word(head, 4));
        Ok(Found {
            time_ns: Some(interface.clock.time_ns(units)),
            link: interface.link,
            wire_len: self.order.word(head, 6),
            offset: PACKET_HEADER_LEN,
            captured,
            record: block.len(),
        })
    }

    fn simple_packet(&self, block: &[u8]) -> Result<Found, Fault> {
        let head = block
            .first_chunk::<12>()
            .ok_or(Fault("an empty simple packet"))?;
        let interface = self.interface_at(0)?;
        let wire_len = self.order.word(head, 2);
        let room = block
            .len()
            .checked_sub(16)
            .ok_or(Fault("an empty simple packet"))?;
        let captured = room.min(wire_len.min(interface.snap_len) as usize);
        Ok(Found {
            time_ns: None,
            link: interface.link,
            wire_len,
            offset: 12,
            captured,
            record: block.len(),
        })
    }

    #[inline]
    fn interface_at(&self, index: u32) -> Result<&Interface, Fault> {
        self.interfaces
            .get(index as usize)
            .ok_or(Fault("a packet of an interface not described"))
    }
}

impl Decode for Decoder {
    #[inline(always)]
    fn step(&mut self, window: &[u8]) -> Result<Step, Fault> {
        let Some(head) = window.first_chunk::<FRAME_LEN>() else {
            return Ok(Step::Need(FRAME_LEN));
        };
        if head[..4] == SECTION_MAGIC {
            self.begin_section(head)?;
        }
        let kind = self.order.word(head, 0);
        let len = self.order.word(head, 1);
        if !len.is_multiple_of(4) || (len as usize) < FRAME_LEN {
            return Err(Fault(
                "a block length that is too small or not a multiple of 4",
            ));
        }
        let wanted = matches!(
            kind,
            INTERFACE | OLD_PACKET | SIMPLE_PACKET | ENHANCED_PACKET
        );
        if !wanted {
            return Ok(Step::Skip(u64::from(len)));
        }
        if len > MAX_BLOCK {
            return Err(Fault("a block claims more than 16 MiB"));
        }
        let len = len as usize;
        let Some(block) = window.get(..len) else {
            return Ok(Step::Need(len));
        };
        let tail = block.last_chunk::<4>().ok_or(Fault("an empty block"))?;
        if self.order.u32(*tail) as usize != len {
            return Err(Fault("a block whose two lengths differ"));
        }
        if kind == INTERFACE {
            if self.interfaces.len() == MAX_INTERFACES {
                return Err(Fault("a section with more than 65536 interfaces"));
            }
            let interface = self.interface(&block[8..len - 4])?;
            self.interfaces.push(interface);
            return Ok(Step::Skip(len as u64));
        }
        self.packet(kind, block).map(Step::Packet)
    }
}
