// SPDX-License-Identifier: Apache-2.0

//! What is fuzzed of the multipath transport: bytes in, no panic, no endless loop, no
//! reference to a slot that is given back twice, and what is written reads the same.
//! The fuzz targets and the tests of causeway-bifrost call these.

use std::net::SocketAddr;
use std::sync::LazyLock;

use causeway_bifrost::wire::{self, AckHeader, CommonHeader, DataHeader, PacketKind, ProbeHeader};
use causeway_bifrost::{
    DeliveryVerdict, Limits, PathConfig, PathId, SlotReference, Span, Transmit, TransportConfig,
    TransportEngine, TunnelKey,
};

/// One datagram, through the codec and back.
pub(crate) fn wire(datagram: &[u8]) {
    let Ok(prefix) = CommonHeader::parse(datagram) else {
        return;
    };
    match prefix.kind {
        PacketKind::Data => {
            let Ok(data) = DataHeader::parse(prefix, datagram) else {
                return;
            };
            assert_eq!(data.to_bytes()[..], datagram[..wire::DATA_HEADER_LEN]);
            assert!(data.chunks() <= wire::MAX_CHUNKS && data.index() < data.chunks());
            let before = data.index() * usize::from(data.size);
            assert!((1..=usize::from(data.size)).contains(&data.chunk_len()));
            assert!(before + data.chunk_len() <= data.frame_len());
        }
        PacketKind::Ack => {
            let Ok((ack, rest)) = AckHeader::parse(prefix, datagram) else {
                return;
            };
            let mut written = Vec::new();
            ack.write(&mut written);
            assert_eq!(written[..], datagram[..wire::ACK_LEN]);
            for report in wire::reports(rest) {
                let mut written = Vec::new();
                report.write(&mut written);
                assert_eq!(wire::reports(&written).next(), Some(report));
            }
        }
        PacketKind::Probe | PacketKind::Reply => {
            let Ok(probe) = ProbeHeader::parse(prefix, datagram) else {
                return;
            };
            let mut written = Vec::new();
            probe.write(&mut written);
            let again = CommonHeader::parse(&written).and_then(|p| ProbeHeader::parse(p, &written));
            assert_eq!(again, Ok(probe));
        }
    }
}

const PATHS: u8 = 2;

fn address(path: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, path], 7000))
}

/// An end with what its caller has to count.
struct End {
    engine: TransportEngine,
    /// References out, by slot.
    held: Vec<u32>,
    batch: Transmit,
}

impl End {
    fn new(instance: u64, sealed: bool) -> End {
        let mut config = TransportConfig {
            flows: 4,
            limits: Limits {
                chunks: 256,
                frames: 8,
                ..Limits::default()
            },
            ..TransportConfig::default()
        };
        config.keys.send = sealed.then_some(TunnelKey {
            id: 1,
            secret: [7; 32],
        });
        let mut engine = TransportEngine::new(config, instance).expect("the settings are valid");
        for path in 0..PATHS {
            let config = PathConfig {
                peer: address(path),
                mtu: 1500,
            };
            let added = engine.add_path(0, PathId(path), config);
            added.expect("the path is new");
        }
        End {
            engine,
            held: Vec::new(),
            batch: Transmit::default(),
        }
    }

    fn give(&mut self, now_ns: u64, path: u8, mut datagram: Vec<u8>) {
        let slot = self.held.len() as u32;
        let span = Span {
            slot,
            offset: 0,
            len: datagram.len() as u32,
        };
        let from = address(path);
        let taken = self
            .engine
            .handle_datagram(now_ns, PathId(path), from, &mut datagram, span);
        self.held.push(u32::from(taken == Ok(SlotReference::Taken)));
    }

    fn give_merged(&mut self, now_ns: u64, path: u8, mut bytes: Vec<u8>, segment: usize) {
        let slot = self.held.len() as u32;
        let span = Span {
            slot,
            offset: 0,
            len: bytes.len() as u32,
        };
        let (id, from) = (PathId(path), address(path));
        let datagrams = (&mut bytes[..], segment);
        let held = self
            .engine
            .handle_datagrams(now_ns, id, from, datagrams, span);
        self.held.push(held);
    }

    fn frame(&mut self, now_ns: u64, len: u32, flow: u64) {
        let slot = self.held.len() as u32;
        let span = Span {
            slot,
            offset: 0,
            len,
        };
        let taken = self.engine.handle_frame(now_ns, span, flow).is_ok();
        self.held.push(u32::from(taken));
    }

    /// All that may be polled; gives the datagrams sent, payload as zeros but for what
    /// makes a frame acceptable.
    fn work(&mut self, now_ns: u64, full: bool) -> Vec<(u8, Vec<u8>)> {
        self.engine.handle_timeout(now_ns);
        while let Some(delivery) = self.engine.poll_deliver() {
            let token = delivery.token;
            let slots: Vec<u32> = delivery.spans.iter().map(|span| span.slot).collect();
            for slot in slots {
                self.release(slot, 1);
            }
            let verdict = if full {
                DeliveryVerdict::Full
            } else {
                DeliveryVerdict::Ok
            };
            self.engine.delivered(now_ns, token, verdict);
        }
        let mut sent = Vec::new();
        for _ in 0..1000 {
            if !self.engine.poll_transmit(now_ns, &mut self.batch) {
                break;
            }
            sent.extend(self.datagrams());
        }
        assert!(sent.len() < 64_000, "sends without end");
        while let Some(release) = self.engine.poll_release() {
            self.release(release.slot, release.count);
        }
        while self.engine.poll_event().is_some() {}
        sent
    }

    fn datagrams(&self) -> Vec<(u8, Vec<u8>)> {
        let mut headers = &self.batch.headers[..];
        let mut all = Vec::new();
        for segment in &self.batch.datagrams {
            let (header, rest) = headers.split_at(segment.header_len.into());
            headers = rest;
            let mut datagram = header.to_vec();
            if segment.payload.len > 0 {
                let payload = segment.payload.len as usize + usize::from(segment.padding);
                datagram.resize(datagram.len() + payload, 0);
                if segment.payload.offset == 0 {
                    let packet = &mut datagram[wire::DATA_HEADER_LEN + 10..];
                    packet[0] = 0x45;
                    packet[3] = 20;
                }
                if self.batch.to_seal {
                    datagram.resize(datagram.len() + wire::TAG_LEN, 0);
                    self.engine.seal(&mut datagram);
                }
            }
            all.push((self.batch.path.0, datagram));
        }
        all
    }

    fn release(&mut self, slot: u32, count: u32) {
        let held = &mut self.held[slot as usize];
        assert!(*held >= count, "slot {slot} is given back too often");
        *held -= count;
    }
}

/// What names the conversation in the peer's datagrams; it follows from the instances.
static EPOCH: LazyLock<[u8; 4]> = LazyLock::new(|| {
    let (mut ends, now_ns) = greeted(false);
    ends[1].frame(now_ns, 30, 0);
    let sent = ends[1].work(now_ns, false);
    let (_, data) = sent
        .iter()
        .find(|(_, datagram)| kind(datagram) == Some(PacketKind::Data))
        .expect("ends that know each other send data");
    [data[4], data[5], data[6], data[7]]
});

fn kind(datagram: &[u8]) -> Option<PacketKind> {
    CommonHeader::parse(datagram).ok().map(|prefix| prefix.kind)
}

/// Two ends that know each other, and the time.
fn greeted(sealed: bool) -> ([End; 2], u64) {
    let mut ends = [End::new(1, sealed), End::new(2, sealed)];
    let mut now_ns = 1_000_000;
    let mut flying = Flying::new();
    for _ in 0..4 {
        step(&mut ends, now_ns, false, &mut flying);
        deliver(&mut ends, now_ns, &mut flying);
        now_ns += 100_000;
    }
    (ends, now_ns)
}

/// A conversation into which the input interferes. First byte: whether it is sealed.
/// Then steps, each of a word and what it takes:
/// 0 and a length: this many bytes go to the first end as they are;
/// 1 and a length: the same with the epoch of the conversation put in;
/// 2 and a place: the peer's datagram at this place of those in flight gets through;
/// 3, a place and a byte: the same, changed;
/// 4 and a byte: this many times 100 us go by;
/// 5 and two bytes: the peer sends a frame;
/// 6 and two bytes: so does the first end;
/// others: all in flight gets through, with 8 in them to a full vNIC, with 16 merged: each
/// end's one after the other as if all had the first one's size and path.
pub(crate) fn tunnel(input: &[u8]) {
    let mut bytes = input.iter().copied();
    let sealed = bytes.next().is_some_and(|byte| byte & 1 == 1);
    let (mut ends, mut now_ns) = greeted(sealed);
    let mut flying = Flying::new();
    while let Some(word) = bytes.next() {
        let full = match word % 8 {
            kind @ (0 | 1) => {
                let len = bytes.next().unwrap_or(0);
                let mut datagram: Vec<u8> = bytes.by_ref().take(len.into()).collect();
                if kind == 1 && datagram.len() >= 8 {
                    datagram[4..8].copy_from_slice(&*EPOCH);
                }
                let path = datagram.get(1).copied().unwrap_or(0);
                ends[0].give(now_ns, path, datagram);
                false
            }
            kind @ (2 | 3) => {
                let place = usize::from(bytes.next().unwrap_or(0));
                let change = if kind == 3 {
                    bytes.next().unwrap_or(0)
                } else {
                    0
                };
                if place < flying.len() {
                    let (to, path, mut datagram) = flying.swap_remove(place);
                    let at = usize::from(change) % datagram.len().max(1);
                    if kind == 3 && !datagram.is_empty() {
                        datagram[at] ^= change | 1;
                    }
                    ends[to].give(now_ns, path, datagram);
                }
                false
            }
            4 => {
                now_ns += 100_000 * u64::from(bytes.next().unwrap_or(0));
                false
            }
            kind @ (5 | 6) => {
                let (low, high) = (bytes.next().unwrap_or(0), bytes.next().unwrap_or(0));
                let len = 30 + u32::from(u16::from_le_bytes([low, high]));
                ends[usize::from(kind == 5)].frame(now_ns, len, low.into());
                false
            }
            _ if word & 16 == 16 => {
                deliver_merged(&mut ends, now_ns, &mut flying);
                word & 8 == 8
            }
            _ => {
                deliver(&mut ends, now_ns, &mut flying);
                word & 8 == 8
            }
        };
        step(&mut ends, now_ns, full, &mut flying);
    }
    for end in &ends {
        let metrics = end.engine.metrics();
        let held: u32 = end.held.iter().sum();
        assert_eq!(
            held,
            metrics.chunks_held + metrics.frames_held,
            "slots are lost"
        );
    }
}

/// Datagrams under way: to which end, on which path.
type Flying = Vec<(usize, u8, Vec<u8>)>;

fn deliver(ends: &mut [End; 2], now_ns: u64, flying: &mut Flying) {
    for (to, path, datagram) in flying.drain(..) {
        ends[to].give(now_ns, path, datagram);
    }
}

fn deliver_merged(ends: &mut [End; 2], now_ns: u64, flying: &mut Flying) {
    for (index, end) in ends.iter_mut().enumerate() {
        let mut own = flying.iter().filter(|(to, ..)| *to == index).peekable();
        let Some((_, path, first)) = own.peek() else {
            continue;
        };
        let (path, segment) = (*path, first.len());
        let bytes: Vec<u8> = own
            .flat_map(|(.., datagram)| datagram.iter().copied())
            .collect();
        end.give_merged(now_ns, path, bytes, segment);
    }
    flying.clear();
}

fn step(ends: &mut [End; 2], now_ns: u64, full: bool, flying: &mut Flying) {
    for (from, end) in ends.iter_mut().enumerate() {
        for (path, datagram) in end.work(now_ns, full) {
            if flying.len() < 512 {
                flying.push((1 - from, path, datagram));
            }
        }
    }
}
