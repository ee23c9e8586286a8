// SPDX-License-Identifier: Apache-2.0

//! Files written here byte by byte, files written by libpcap and Wireshark
//! (through pcap-parser, an independent decoder), and damaged ones.

use pcap_parser::{Block, PcapBlockOwned, PcapError};
use proptest::prelude::*;

use super::*;

/// A packet that outlives the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    time_ns: Option<u64>,
    link: Option<LinkType>,
    wire_len: u32,
    data: Vec<u8>,
}

type Decoded = (Vec<Owned>, Totals, Option<CaptureFileError>);

/// Feeds `file` in pieces of the given size.
fn decode(file: &[u8], piece: usize) -> Decoded {
    let mut reader = Reader::new();
    let mut pieces = file.chunks(piece.max(1));
    let mut packets = Vec::new();
    loop {
        match reader.poll() {
            Ok(Poll::Packet(packet)) => packets.push(Owned {
                time_ns: packet.time_ns,
                link: packet.link,
                wire_len: packet.wire_len,
                data: packet.data.to_vec(),
            }),
            Ok(Poll::NeedBytes) => match pieces.next() {
                Some(bytes) => reader.feed(bytes),
                None => reader.finish(),
            },
            Ok(Poll::End) => return (packets, reader.totals(), None),
            Err(error) => return (packets, reader.totals(), Some(error)),
        }
    }
}

/// [`decode`] by [`Reader::each`], whose visitor breaks off after every `stop`th packet.
fn decode_each(file: &[u8], piece: usize, stop: usize) -> Decoded {
    let mut reader = Reader::new();
    let mut pieces = file.chunks(piece.max(1));
    let mut packets = Vec::new();
    loop {
        let rest = reader.each(|packet| {
            packets.push(Owned {
                time_ns: packet.time_ns,
                link: packet.link,
                wire_len: packet.wire_len,
                data: packet.data.to_vec(),
            });
            match packets.len().is_multiple_of(stop) {
                true => ControlFlow::Break(packets.len()),
                false => ControlFlow::Continue(()),
            }
        });
        match rest {
            Ok(Rest::Stopped(count)) => assert_eq!(count, packets.len()),
            Ok(Rest::NeedBytes) => match pieces.next() {
                Some(bytes) => reader.feed(bytes),
                None => reader.finish(),
            },
            Ok(Rest::End) => return (packets, reader.totals(), None),
            Err(error) => return (packets, reader.totals(), Some(error)),
        }
    }
}

/// Writes integers in one byte order.
struct Writer {
    order: Order,
    bytes: Vec<u8>,
}

impl Writer {
    fn new(order: Order) -> Self {
        Self {
            order,
            bytes: Vec::new(),
        }
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        match self.order {
            Order::Little => self.bytes.extend(value.to_le_bytes()),
            Order::Big => self.bytes.extend(value.to_be_bytes()),
        }
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        match self.order {
            Order::Little => self.bytes.extend(value.to_le_bytes()),
            Order::Big => self.bytes.extend(value.to_be_bytes()),
        }
        self
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend(bytes);
        self
    }

    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Writer)) -> &mut Self {
        let mut inner = Writer::new(self.order);
        body(&mut inner);
        inner.bytes.resize(inner.bytes.len().next_multiple_of(4), 0);
        let len = inner.bytes.len() as u32 + 12;
        self.u32(kind).u32(len).raw(&inner.bytes).u32(len)
    }

    fn section(&mut self) -> &mut Self {
        self.block(0x0a0d_0d0a, |body| {
            body.u32(BYTE_ORDER).u16(1).u16(0).u32(!0).u32(!0);
        })
    }

    fn interface(&mut self, link: u16, snap_len: u32, options: &[(u16, &[u8])]) -> &mut Self {
        self.block(1, |body| {
            body.u16(link).u16(0).u32(snap_len);
            for (code, value) in options {
                body.u16(*code).u16(value.len() as u16).raw(value);
                body.bytes.resize(body.bytes.len().next_multiple_of(4), 0);
            }
        })
    }

    fn enhanced(&mut self, interface: u32, units: u64, wire_len: u32, data: &[u8]) -> &mut Self {
        self.block(6, |body| {
            body.u32(interface)
                .u32((units >> 32) as u32)
                .u32(units as u32);
            body.u32(data.len() as u32).u32(wire_len).raw(data);
        })
    }
}

const BYTE_ORDER: u32 = 0x1a2b_3c4d;

fn pcap_header(order: Order, magic: u32, link: u32) -> Writer {
    let mut out = Writer::new(order);
    out.u32(magic)
        .u16(2)
        .u16(4)
        .u32(0)
        .u32(0)
        .u32(128)
        .u32(link);
    out
}

fn pcap(order: Order, magic: u32, packets: &[Owned]) -> Vec<u8> {
    let unit = if magic == 0xa1b2_3c4d { 1 } else { 1000 };
    let mut out = pcap_header(order, magic, 1);
    for packet in packets {
        let time_ns = packet.time_ns.unwrap();
        out.u32((time_ns / 1_000_000_000) as u32)
            .u32((time_ns % 1_000_000_000 / unit) as u32);
        out.u32(packet.data.len() as u32)
            .u32(packet.wire_len)
            .raw(&packet.data);
    }
    out.bytes
}

fn pcapng(order: Order, packets: &[Owned]) -> Vec<u8> {
    let mut out = Writer::new(order);
    out.section().interface(1, 128, &[(9, &[9])]);
    for packet in packets {
        out.enhanced(0, packet.time_ns.unwrap(), packet.wire_len, &packet.data);
    }
    out.bytes
}

const ORDERS: [Order; 2] = [Order::Little, Order::Big];

prop_compose! {
    fn any_packet()(
        micros in 0u64..4_000_000_000_000_000, extra in 0u32..100_000,
        data in proptest::collection::vec(any::<u8>(), 0..150),
    ) -> Owned {
        Owned {
            time_ns: Some(micros * 1000), link: Some(LinkType::Ethernet),
            wire_len: data.len() as u32 + extra, data,
        }
    }
}

proptest! {
    #[test]
    fn every_format_and_any_piece_size_give_the_same(
        packets in proptest::collection::vec(any_packet(), 0..20), piece in 1usize..400,
    ) {
        for order in ORDERS {
            for file in [
                pcap(order, 0xa1b2_c3d4, &packets),
                pcap(order, 0xa1b2_3c4d, &packets),
                pcapng(order, &packets),
            ] {
                let (got, totals, error) = decode(&file, piece);
                prop_assert_eq!(&got, &packets);
                prop_assert_eq!((&error, totals.cut), (&None, false));
                prop_assert_eq!(decode_each(&file, piece, 4), (got, totals, error));
                prop_assert_eq!(totals.packets, packets.len() as u64);
                let backwards = packets.windows(2).filter(|w| w[1].time_ns < w[0].time_ns).count();
                prop_assert_eq!(totals.backwards, backwards as u64);
            }
        }
    }

    #[test]
    fn a_cut_file_gives_its_whole_records(
        packets in proptest::collection::vec(any_packet(), 1..8), cut in 1usize..1000, ng: bool,
    ) {
        let file = if ng { pcapng(Order::Big, &packets) } else { pcap(Order::Big, 0xa1b2_3c4d, &packets) };
        let keep = file.len().saturating_sub(cut).max(60);
        let (got, totals, error) = decode(&file[..keep.min(file.len())], 64);
        prop_assert_eq!(error, None);
        prop_assert!(packets.starts_with(&got));
        prop_assert!(totals.cut || got.len() == packets.len() || keep_ends_a_record(&file, keep, &got, ng));
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        head in 0usize..5, data in proptest::collection::vec(any::<u8>(), 0..300), piece in 1usize..64,
    ) {
        let start = match head {
            0 => pcap_header(Order::Little, 0xa1b2_c3d4, 1).bytes,
            1 => pcap_header(Order::Big, 0xa1b2_3c4d, 101).bytes,
            2 => pcapng(Order::Little, &[]),
            3 => pcapng(Order::Big, &[]),
            _ => Vec::new(),
        };
        let file = [start, data].concat();
        let expected = decode(&file, file.len());
        prop_assert_eq!(&decode(&file, piece), &expected);
        for stop in [1, 3, usize::MAX] {
            prop_assert_eq!(&decode_each(&file, piece, stop), &expected);
        }
    }
}

/// Whether the file was cut exactly between two records.
fn keep_ends_a_record(file: &[u8], keep: usize, got: &[Owned], ng: bool) -> bool {
    let records: usize = got
        .iter()
        .map(|packet| match ng {
            true => 32 + packet.data.len().next_multiple_of(4),
            false => 16 + packet.data.len(),
        })
        .sum();
    let header = if ng {
        pcapng(Order::Big, &[]).len()
    } else {
        24
    };
    keep <= file.len() && keep == header + records
}

/// A fixed sequence of single-byte and cut mutations, so that a failure repeats.
#[test]
fn damaged_files_end_in_a_sentence_or_in_packets() {
    let packets: Vec<Owned> = (0..6)
        .map(|n| Owned {
            time_ns: Some(n * 1000),
            link: Some(LinkType::Ethernet),
            wire_len: 60,
            data: vec![n as u8; 40],
        })
        .collect();
    for file in [
        pcap(Order::Little, 0xa1b2_3c4d, &packets),
        pcapng(Order::Big, &packets),
    ] {
        for at in 0..file.len() {
            for byte in [0x00, 0x01, 0x7f, 0x80, 0xff] {
                let mut damaged = file.clone();
                damaged[at] = byte;
                let (got, totals, error) = decode(&damaged, 37);
                let each = decode_each(&damaged, 37, 2);
                assert_eq!(
                    each,
                    (got.clone(), totals, error.clone()),
                    "byte {at} = {byte}"
                );
                assert_eq!(got.len() as u64, totals.packets);
                assert!(
                    got.len() <= packets.len(),
                    "byte {at} = {byte} made packets"
                );
                if let Some(error) = error {
                    assert!(!error.to_string().is_empty());
                }
            }
            let (_, _, error) = decode(&file[..at], 37);
            assert!(at < 24 || error.is_none(), "cut at {at}: {error:?}");
        }
    }
}

/// Blocks whose frames are right and whose bodies are too short for their fields.
#[test]
fn a_well_framed_block_of_any_length_and_kind_is_read_or_refused() {
    for order in ORDERS {
        for (kind, least) in [(1, 8), (2, 20), (3, 4), (6, 20)] {
            for words in 0..12 {
                for fill in [0, 1, 0xff] {
                    let mut out = Writer::new(order);
                    out.section().interface(1, 0, &[]);
                    out.block(kind, |body| body.bytes.resize(words * 4, fill));
                    let (got, totals, error) = decode(&out.bytes, 37);
                    assert_eq!(
                        decode_each(&out.bytes, 37, 1),
                        (got.clone(), totals, error.clone())
                    );
                    let context = format!("kind {kind}, {words} words of {fill:#x}");
                    if words * 4 < least {
                        assert!(error.is_some() && got.is_empty(), "{context}");
                    }
                    let of_packets = kind != 1;
                    assert!(got.len() <= usize::from(of_packets), "{context}");
                }
            }
        }
    }
}

#[test]
fn interfaces_keep_their_clocks_and_links() {
    for order in ORDERS {
        let mut out = Writer::new(order);
        let offset = match order {
            Order::Little => 10i64.to_le_bytes(),
            Order::Big => 10i64.to_be_bytes(),
        };
        out.section();
        out.interface(1, 0, &[]);
        out.interface(101, 0, &[(2, b"eth0"), (9, &[9]), (0, &[])]);
        out.interface(228, 0, &[(9, &[0x80 | 10]), (14, &offset)]);
        out.interface(147, 0, &[(9, &[12])]);
        out.block(5, |statistics| _ = statistics.u32(0).u32(0).u32(0));
        out.enhanced(0, 1_000_001, 9, b"a")
            .enhanced(1, 1_000_000_001, 9, b"bc");
        out.enhanced(2, 1536, 9, b"def")
            .enhanced(3, 2_000_000_000_000, 9, b"ghij");
        out.block(2, |old| {
            old.u16(1).u16(0).u32(0).u32(7).u32(1).u32(9).raw(b"k");
        });
        out.block(3, |simple| _ = simple.u32(3).raw(b"lmn"));
        let (got, totals, error) = decode(&out.bytes, 11);
        assert_eq!((error, totals.packets, totals.backwards), (None, 6, 3));
        let times: Vec<_> = got.iter().map(|packet| packet.time_ns).collect();
        let second = 1_000_000_000;
        assert_eq!(
            times,
            [
                Some(second + 1000),
                Some(second + 1),
                Some(11 * second + second / 2),
                Some(2 * second),
                Some(7),
                None
            ]
        );
        let links: Vec<_> = got.iter().map(|packet| packet.link).collect();
        let (ethernet, raw) = (Some(LinkType::Ethernet), Some(LinkType::Raw));
        assert_eq!(
            links,
            [ethernet, raw, Some(LinkType::Ipv4), None, raw, ethernet]
        );
        let data: Vec<_> = got.iter().map(|packet| &packet.data[..]).collect();
        assert_eq!(data, [&b"a"[..], b"bc", b"def", b"ghij", b"k", b"lmn"]);
    }
}

/// The records of old and patched programs, as libpcap reads them.
#[test]
fn records_of_other_shapes_read_the_same() {
    for order in ORDERS {
        for (magic, minor) in [(0xa1b2_c3d4, 2), (0xa1b2_c3d4, 3), (0xa1b2_cd34, 4)] {
            let mut out = Writer::new(order);
            out.u32(magic).u16(2).u16(minor).raw(&[0; 12]).u32(101);
            for n in 0..3u8 {
                let (captured, wire_len) = (u32::from(n) + 2, 60);
                let (first, second) = match minor {
                    2 => (wire_len, captured),
                    _ => (captured, wire_len),
                };
                out.u32(7).u32(u32::from(n)).u32(first).u32(second);
                if magic == 0xa1b2_cd34 {
                    out.u32(3).u16(0x0800).raw(&[0, 0]);
                }
                out.raw(&vec![n; captured as usize]);
            }
            let (got, totals, error) = decode(&out.bytes, 7);
            let expected = |n: u8| Owned {
                time_ns: Some(7_000_000_000 + u64::from(n) * 1000),
                link: Some(LinkType::Raw),
                wire_len: 60,
                data: vec![n; usize::from(n) + 2],
            };
            assert_eq!(
                got,
                [0, 1, 2].map(expected),
                "{magic:#x} 2.{minor} {order:?}"
            );
            assert_eq!((error, totals.cut), (None, false));
        }
    }
}

#[test]
fn interfaces_without_end_are_an_error() {
    let mut out = Writer::new(Order::Little);
    out.section();
    for _ in 0..=1 << 16 {
        out.interface(1, 0, &[]);
    }
    let error = decode(&out.bytes, 1 << 20).2.expect("an error");
    assert!(error.to_string().ends_with("more than 65536 interfaces"));
}

#[test]
fn a_new_section_may_turn_the_byte_order() {
    let packet = |n: u8| Owned {
        time_ns: Some(u64::from(n)),
        link: Some(LinkType::Ethernet),
        wire_len: 1,
        data: vec![n],
    };
    let file = [
        pcapng(Order::Big, &[packet(1)]),
        pcapng(Order::Little, &[packet(2)]),
    ]
    .concat();
    assert_eq!(decode(&file, 5).0, [packet(1), packet(2)]);
}

#[test]
fn unknown_blocks_of_any_size_are_passed_over() {
    let mut out = Writer::new(Order::Little);
    out.section();
    out.block(0x0bad, |body| body.bytes.resize(20 << 20, 0));
    out.interface(1, 0, &[]).enhanced(0, 1, 1, b"x");
    let (got, totals, error) = decode(&out.bytes, 1 << 20);
    assert_eq!((got.len(), totals.cut, error), (1, false, None));
    let (_, totals, error) = decode(&out.bytes[..1 << 20], 1 << 20);
    assert_eq!((totals.cut, error), (true, None));
}

#[test]
fn errors_say_what_is_wrong() {
    let error = |file: &[u8]| {
        decode(file, 64)
            .2
            .map(|error| error.to_string())
            .unwrap_or_default()
    };
    assert_eq!(error(b""), "the input is empty");
    let none = "not a capture file: it starts neither like pcap nor like pcapng";
    assert_eq!(error(b"GET"), none);
    assert_eq!(error(b"GET / HTTP/1.1"), none);
    let whole = pcap_header(Order::Little, 0xa1b2_c3d4, 1).bytes;
    assert_eq!(
        error(&whole[..20]),
        "the capture file is cut within its header"
    );
    let bluetooth = pcap_header(Order::Big, 0xa1b2_c3d4, 187).bytes;
    assert!(error(&bluetooth).starts_with("link type 187 is not supported"));
    let mut future = Writer::new(Order::Little);
    future.u32(0xa1b2_c3d4).u16(3).u16(1).raw(&[0; 16]);
    assert_eq!(
        error(&future.bytes),
        "capture format version 3.1 is not known"
    );
    let huge = [&whole[..], &[0; 8], &[0xff; 8]].concat();
    assert_eq!(
        error(&huge),
        "the capture file is damaged at byte 24: a record claims more than 16 MiB"
    );
    let mut stray = Writer::new(Order::Little);
    stray.section().enhanced(0, 1, 1, b"x");
    assert!(error(&stray.bytes).ends_with("a packet of an interface not described"));
}

/// The packets that pcap-parser finds, with times in nanoseconds.
fn by_pcap_parser(file: &[u8]) -> Vec<(u64, u32, Vec<u8>)> {
    let mut packets = Vec::new();
    let mut unit_ns = Vec::new();
    let mut reader = pcap_parser::create_reader(1 << 20, file).unwrap();
    loop {
        let used = match reader.next() {
            Ok((used, block)) => {
                match block {
                    PcapBlockOwned::NG(Block::SectionHeader(_)) => unit_ns.clear(),
                    PcapBlockOwned::NG(Block::InterfaceDescription(interface)) => {
                        unit_ns.push(1_000_000_000 / interface.ts_resolution().unwrap());
                    }
                    PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                        let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                        let data = packet.data[..packet.caplen as usize].to_vec();
                        packets.push((
                            units * unit_ns[packet.if_id as usize],
                            packet.origlen,
                            data,
                        ));
                    }
                    PcapBlockOwned::Legacy(packet) => {
                        let time = u64::from(packet.ts_sec) * 1_000_000_000
                            + u64::from(packet.ts_usec) * 1000;
                        packets.push((time, packet.origlen, packet.data.to_vec()));
                    }
                    _ => {}
                }
                used
            }
            Err(PcapError::Eof) => return packets,
            Err(PcapError::Incomplete(_)) => {
                reader.refill().unwrap();
                continue;
            }
            Err(error) => panic!("{error:?}"),
        };
        reader.consume(used);
    }
}

proptest! {
    #[test]
    fn pcap_parser_agrees(packets in proptest::collection::vec(any_packet(), 1..20)) {
        for file in [pcap(Order::Little, 0xa1b2_c3d4, &packets), pcapng(Order::Little, &packets), pcapng(Order::Big, &packets)] {
            let ours: Vec<_> = decode(&file, 100).0.into_iter()
                .map(|packet| (packet.time_ns.unwrap(), packet.wire_len, packet.data)).collect();
            prop_assert_eq!(by_pcap_parser(&file), ours);
        }
    }
}
