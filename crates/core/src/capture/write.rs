// SPDX-License-Identifier: Apache-2.0

//! pcapng, written: a section, its interfaces, packets with what is to be said of
//! them, and counts at the end. Every function gives the bytes of one whole block, so
//! that a file that is cut between two blocks is a good one. Little endian; times in
//! nanoseconds since the Unix epoch.
//!
//! Format: <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html>, sections
//! 4.1 to 4.6.

use super::pcapng::{ENHANCED_PACKET, INTERFACE, OPTION_END, OPTION_TSRESOL};
use crate::wire::LinkType;

const SECTION: u32 = 0x0a0d_0d0a;
const STATISTICS: u32 = 5;

const COMMENT: u16 = 1;
const SECTION_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const PACKET_FLAGS: u16 = 2;
const PACKET_ID: u16 = 5;
const PACKET_VERDICT: u16 = 7;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_FILTERED: u16 = 6;
const STATISTICS_DROPPED: u16 = 7;

/// `epb_verdict`: what an XDP program returned.
const VERDICT_XDP: u8 = 2;
/// `if_tsresol`: units of 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    /// It came.
    In,
    /// It left.
    Out,
}

/// A packet of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Number of the interface, in the order of [`interface`].
    pub interface: u32,
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// What was captured of them.
    pub data: &'a [u8],
    /// What is to be said of it; one line.
    pub comment: &'a str,
    /// Which way it went.
    pub way: PacketDirection,
    /// Packets that are the same one, before and after, have the same number.
    pub id: u64,
    /// What the XDP program returned (`enum xdp_action`).
    pub xdp_action: Option<u64>,
}

/// Counts of an interface, for the end of the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// When they were read, nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Packets that came.
    pub received: u64,
    /// Of those, wanted by the filter.
    pub filtered: u64,
    /// Of those, not in the file: for want of room, or beyond a rate.
    pub dropped: u64,
}

/// The head of a file: `application` wrote it.
pub fn section(application: &str) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(super::pcapng::BYTE_ORDER_MAGIC.to_le_bytes());
    body.extend([1, 0, 0, 0]); // version 1.0
    body.extend(u64::MAX.to_le_bytes()); // its length is not known
    option(&mut body, SECTION_APPLICATION, application.as_bytes());
    block(SECTION, body)
}

/// An interface with Ethernet frames, of which at most `snap_len` bytes are captured.
pub fn interface(name: &str, description: &str, snap_len: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend((LinkType::Ethernet.dlt() as u16).to_le_bytes());
    body.extend([0, 0]);
    body.extend(snap_len.to_le_bytes());
    option(&mut body, INTERFACE_NAME, name.as_bytes());
    option(&mut body, INTERFACE_DESCRIPTION, description.as_bytes());
    option(&mut body, OPTION_TSRESOL, &[NANOSECONDS]);
    block(INTERFACE, body)
}

/// A packet.
pub fn packet(entry: &Entry<'_>) -> Vec<u8> {
    let mut body = Vec::with_capacity(entry.data.len() + entry.comment.len() + 80);
    body.extend(entry.interface.to_le_bytes());
    time(&mut body, entry.time_ns);
    body.extend((entry.data.len() as u32).to_le_bytes());
    body.extend(entry.wire_len.to_le_bytes());
    body.extend(entry.data);
    pad(&mut body);
    if !entry.comment.is_empty() {
        option(&mut body, COMMENT, entry.comment.as_bytes());
    }
    let way: u32 = match entry.way {
        PacketDirection::In => 1,
        PacketDirection::Out => 2,
    };
    option(&mut body, PACKET_FLAGS, &way.to_le_bytes());
    option(&mut body, PACKET_ID, &entry.id.to_le_bytes());
    if let Some(action) = entry.xdp_action {
        let verdict = [&[VERDICT_XDP][..], &action.to_le_bytes()].concat();
        option(&mut body, PACKET_VERDICT, &verdict);
    }
    block(ENHANCED_PACKET, body)
}

/// Counts of an interface.
pub fn statistics(interface: u32, statistics: &Statistics) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(interface.to_le_bytes());
    time(&mut body, statistics.time_ns);
    let counts = [
        (STATISTICS_RECEIVED, statistics.received),
        (STATISTICS_FILTERED, statistics.filtered),
        (STATISTICS_DROPPED, statistics.dropped),
    ];
    for (code, count) in counts {
        option(&mut body, code, &count.to_le_bytes());
    }
    block(STATISTICS, body)
}

/// The upper half of a time goes first, in either byte order.
fn time(body: &mut Vec<u8>, time_ns: u64) {
    body.extend(((time_ns >> 32) as u32).to_le_bytes());
    body.extend((time_ns as u32).to_le_bytes());
}

/// Lengths stand in 16 bits: what is longer is cut.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    pad(body);
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

/// The end of the options, and the lengths around them; all blocks here have options.
fn block(kind: u32, mut body: Vec<u8>) -> Vec<u8> {
    body.extend(OPTION_END.to_le_bytes());
    body.extend([0, 0]);
    let len = (body.len() as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes()[..], &len, &body, &len].concat()
}

#[cfg(test)]
mod tests {
    use pcap_parser::{Block, PcapBlockOwned, PcapNGReader, traits::PcapReaderIterator as _};

    use super::*;
    use crate::capture::{CapturedPacket, Poll, Reader};

    fn file() -> Vec<u8> {
        let entry = Entry {
            interface: 0,
            time_ns: 1_763_000_000_123_456_789,
            wire_len: 1_500,
            data: &[7; 61],
            comment: "opened",
            way: PacketDirection::In,
            id: 9,
            xdp_action: Some(3),
        };
        let after = Entry {
            interface: 1,
            data: &[8; 64],
            comment: "",
            way: PacketDirection::Out,
            xdp_action: None,
            ..entry
        };
        let counts = Statistics {
            time_ns: entry.time_ns,
            received: 5,
            filtered: 4,
            dropped: 3,
        };
        [
            section("a test"),
            interface("before", "as they came", 256),
            interface("after", "as they left", 256),
            packet(&entry),
            packet(&after),
            statistics(0, &counts),
        ]
        .concat()
    }

    #[test]
    fn our_own_reader_reads_it() {
        let mut reader = Reader::new();
        reader.feed(&file());
        reader.finish();
        let mut packets = Vec::new();
        while let Poll::Packet(CapturedPacket {
            time_ns,
            link,
            wire_len,
            data,
        }) = reader.poll().expect("a good file")
        {
            packets.push((time_ns, link, wire_len, data.to_vec()));
        }
        let (time, link) = (Some(1_763_000_000_123_456_789), Some(LinkType::Ethernet));
        assert_eq!(packets[0], (time, link, 1_500, vec![7; 61]));
        assert_eq!(packets[1], (time, link, 1_500, vec![8; 64]));
        assert_eq!(packets.len(), 2);
    }

    #[test]
    fn another_reader_finds_every_option() {
        let file = file();
        let mut reader = PcapNGReader::new(65_536, &file[..]).expect("pcapng");
        let mut options = Vec::new();
        while let Ok((used, block)) = reader.next() {
            let PcapBlockOwned::NG(block) = block else {
                panic!("not pcapng");
            };
            let found = match &block {
                Block::SectionHeader(it) => &it.options,
                Block::InterfaceDescription(it) => &it.options,
                Block::EnhancedPacket(it) => &it.options,
                Block::InterfaceStatistics(it) => &it.options,
                other => panic!("{other:?}"),
            };
            let of = |o: &pcap_parser::PcapNGOption<'_>| {
                (o.code.0, o.as_bytes().expect("a length").to_vec())
            };
            options.push(
                found
                    .iter()
                    .map(of)
                    .filter(|(code, _)| *code != 0)
                    .collect::<Vec<_>>(),
            );
            reader.consume(used);
        }
        assert_eq!(options.len(), 6);
        assert_eq!(options[0], [(4, b"a test".to_vec())]);
        assert!(options[2].contains(&(2, b"after".to_vec())));
        let verdict = [vec![2], 3_u64.to_le_bytes().to_vec()].concat();
        let expected = [
            (1, b"opened".to_vec()),
            (2, vec![1, 0, 0, 0]),
            (5, 9_u64.to_le_bytes().to_vec()),
            (7, verdict),
        ];
        assert_eq!(options[3], expected);
        assert_eq!(options[4].iter().map(|o| o.0).collect::<Vec<_>>(), [2, 5]);
        assert_eq!(options[5][2], (7, 3_u64.to_le_bytes().to_vec()));
    }
}
