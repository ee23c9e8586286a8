// SPDX-License-Identifier: Apache-2.0

//! What is fuzzed: bytes in, no panic, no endless loop, and the quick ways agree
//! with the plain ones. The fuzz targets and the tests of causeway-core call these.

use std::ops::ControlFlow;

use causeway_core::capture::{CaptureFileError, Poll, Reader, Rest, Totals};
use causeway_core::estimate::{FixedGapConfig, Method, ModesConfig};
use causeway_core::filter::{Instruction, Program};
use causeway_core::flow::{
    Batch, Direction, FlowEstimate, FlowMeter, FlowState, HashedFlow, Headers, MeterSettings,
    Observation, Sink,
};
use causeway_core::wire::{LinkType, parse, parse_quickly};

/// Of the hash of flows.
const SEED: u64 = 1;

/// What a reader makes of a file: each packet's time, link and bytes, the counts,
/// the error.
type Decoded = (
    Vec<(Option<u64>, Option<LinkType>, u32, Vec<u8>)>,
    Totals,
    Option<CaptureFileError>,
);

/// A capture file of any format: read whole and in pieces, then measured.
pub(crate) fn capture(file: &[u8]) {
    let (packets, totals, error) = by_poll(file);
    assert_eq!(totals.packets, packets.len() as u64);
    assert_eq!(by_each(file), (packets.clone(), totals, error));
    let mut observations = Vec::new();
    for (index, (time_ns, link, wire_len, data)) in packets.iter().enumerate() {
        if let (Some(time_ns), Some(link)) = (time_ns, link)
            && let Ok(seen) =
                Observation::of_frame(*link, data, *wire_len, *time_ns, Headers::Clear)
        {
            observations.push((index as u64, seen));
        }
    }
    let one_by_one = measure(|meter, rows| {
        for (index, seen) in &observations {
            meter.observe(*index, seen, rows);
        }
    });
    let mut batch = Batch::default();
    for (index, seen) in &observations {
        batch.push(
            *index,
            seen,
            HashedFlow::of(&seen.key, &FlowState::new(SEED)),
        );
    }
    let together = measure(|meter, rows| meter.observe_all(&batch, rows));
    assert_eq!(one_by_one, together);
}

fn by_poll(file: &[u8]) -> Decoded {
    let mut reader = Reader::new();
    reader.feed(file);
    reader.finish();
    let mut packets = Vec::new();
    let error = loop {
        match reader.poll() {
            Ok(Poll::Packet(packet)) => packets.push((
                packet.time_ns,
                packet.link,
                packet.wire_len,
                packet.data.to_vec(),
            )),
            Ok(Poll::NeedBytes) => unreachable!("the reader has the whole file"),
            Ok(Poll::End) => break None,
            Err(error) => break Some(error),
        }
    };
    (packets, reader.totals(), error)
}

/// In pieces of a size that the file itself gives.
fn by_each(file: &[u8]) -> Decoded {
    let size = 1 + usize::from(file.last().copied().unwrap_or(0));
    let mut pieces = file.chunks(size);
    let mut reader = Reader::new();
    let mut packets = Vec::new();
    let error = loop {
        let rest = reader.each(|packet| {
            packets.push((
                packet.time_ns,
                packet.link,
                packet.wire_len,
                packet.data.to_vec(),
            ));
            if packets.len() % 3 == 0 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        match rest {
            Ok(Rest::Stopped(())) => {}
            Ok(Rest::NeedBytes) => match pieces.next() {
                Some(piece) => reader.feed(piece),
                None => reader.finish(),
            },
            Ok(Rest::End) => break None,
            Err(error) => break Some(error),
        }
    };
    (packets, reader.totals(), error)
}

#[derive(Default)]
struct Rows {
    at: u64,
    rows: Vec<(u64, FlowEstimate)>,
}

impl Sink for Rows {
    fn packet(&mut self, index: u64) {
        self.at = index;
    }

    fn row(&mut self, row: &FlowEstimate) {
        self.rows.push((self.at, *row));
    }

    fn ending(&mut self, born: u64) {
        self.at = born;
    }
}

/// All estimators at once, on a table so small that flows are evicted.
fn measure(feed: impl FnOnce(&mut FlowMeter<3>, &mut Rows)) -> Vec<(u64, FlowEstimate)> {
    let mut meter = FlowMeter::new(MeterSettings {
        epoch_ns: 1_000_000,
        methods: [
            Method::WindowChain,
            Method::FixedGap(FixedGapConfig::default()),
            Method::Modes(ModesConfig::default()),
        ],
        direction: Direction::default(),
        max_flows: 3,
        seed: SEED,
        early: true,
    });
    let mut rows = Rows::default();
    feed(&mut meter, &mut rows);
    meter.finish(&mut rows);
    rows.rows
}

/// Two bytes of link type, four of length on the wire, then a captured frame.
pub(crate) fn frame(data: &[u8]) {
    let Some((head, frame)) = data.split_first_chunk::<6>() else {
        return;
    };
    let number = u32::from(u16::from_be_bytes([head[0], head[1]]));
    let Some(link) = LinkType::from_number(number) else {
        return;
    };
    let wire_len = u32::from_be_bytes([head[2], head[3], head[4], head[5]]);
    let plain = parse(link, frame, wire_len);
    if let Some(quick) = parse_quickly(link, frame) {
        assert_eq!(plain, Ok(quick.into()));
    }
    for headers in [Headers::Clear, Headers::Opaque] {
        let expected = plain.and_then(|datagram| Observation::new(&datagram, 7, headers));
        let seen = Observation::of_frame(link, frame, wire_len, 7, headers);
        assert_eq!(seen, expected);
    }
}

/// A count of instructions, those of eight bytes each as in `struct sock_filter`
/// (big-endian), then a packet.
pub(crate) fn filter(data: &[u8]) {
    let Some((&count, rest)) = data.split_first() else {
        return;
    };
    let (program, packet) = rest.split_at(rest.len().min(8 * usize::from(count)));
    let instructions = program.chunks_exact(8).map(|raw| Instruction {
        code: u16::from_be_bytes([raw[0], raw[1]]),
        jt: raw[2],
        jf: raw[3],
        k: u32::from_be_bytes([raw[4], raw[5], raw[6], raw[7]]),
    });
    if let Ok(program) = Program::new(instructions.collect()) {
        let keep = program.run(packet, packet.len() as u32);
        assert_eq!(program.matches(packet, packet.len() as u32), keep != 0);
    }
}
