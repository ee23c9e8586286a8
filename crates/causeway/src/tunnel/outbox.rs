// SPDX-License-Identifier: Apache-2.0
//! What the engine has to send, gathered by path and sent in as few calls as there are
//! paths.

use std::ops::Range;

use causeway_bifrost::wire::TAG_LEN;
use causeway_bifrost::{Engine, Transmit};
use causeway_io::tunnel::{SendBatch, SendBuffers, Sent, UdpPath};

use super::memory::{Memory, Region};

/// Most batches of a turn. More wait for the next: acknowledgements come in between.
const BATCHES: usize = 32;
/// What one message can hold: UDP's length field over IPv4.
const MESSAGE_MAX: usize = 65_507;

/// What the last chunk of a frame is padded with.
const ZEROES: [u8; 256] = [0; 256];

/// Batches that wait to be sent.
#[derive(Default)]
pub struct Outbox {
    batches: Vec<Batch>,
    used: usize,
    buffers: SendBuffers,
}

#[derive(Default)]
struct Batch {
    transmit: Transmit,
    /// The whole datagrams, where the tunnel has keys.
    sealed: Vec<u8>,
    /// What its messages are made of, where it has none.
    parts: Vec<Part>,
}

/// A part of a batch's messages, in their order.
enum Part {
    /// A message begins, with datagrams of this size; 0: it is a single one.
    Message(u16),
    /// Headers that stand in the transmit.
    Header(Range<usize>),
    /// Payload, or whole datagrams.
    Region(Region),
    /// Padding.
    Zeroes(u8),
}

impl Outbox {
    /// Takes what the engine has to send; whether there may be more.
    pub fn fill(&mut self, now_ns: u64, engine: &mut Engine, memory: &mut Memory) -> bool {
        self.used = 0;
        while self.used < BATCHES {
            if self.used == self.batches.len() {
                self.batches.push(Batch::default());
            }
            let batch = &mut self.batches[self.used];
            if !engine.poll_transmit(now_ns, &mut batch.transmit) {
                return false;
            }
            match batch.transmit.to_seal {
                true => batch.seal(engine, memory),
                false => batch.gather(memory),
            }
            self.used += 1;
        }
        true
    }

    /// Sends what is for the path with this id.
    pub fn send(&mut self, id: u8, path: &UdpPath, memory: &Memory) -> Option<Sent> {
        let mut batches = self.batches[..self.used]
            .iter()
            .filter(|batch| batch.transmit.path.0 == id)
            .peekable();
        batches.peek()?;
        let mut message = self.buffers.batch();
        for batch in batches {
            match batch.transmit.to_seal {
                true => batch.add_sealed(&mut message),
                false => batch.add(&mut message, memory),
            }
        }
        Some(message.send(path))
    }
}

impl Batch {
    fn seal(&mut self, engine: &Engine, memory: &Memory) {
        self.sealed.clear();
        let mut header_at = 0;
        for segment in &self.transmit.segments {
            let begin = self.sealed.len();
            let header_end = header_at + usize::from(segment.header_len);
            self.sealed
                .extend_from_slice(&self.transmit.headers[header_at..header_end]);
            // The engine's own are sealed already.
            if segment.payload.len > 0 {
                for region in memory.frame_regions(segment.payload) {
                    self.sealed.extend_from_slice(memory.region(&region));
                }
                let more = usize::from(segment.padding) + TAG_LEN;
                self.sealed.resize(self.sealed.len() + more, 0);
                engine.seal(&mut self.sealed[begin..]);
            }
            header_at = header_end;
        }
    }

    fn add_sealed<'a>(&'a self, message: &mut SendBatch<'a>) {
        let size = usize::from(self.transmit.segment_size).max(1);
        let many = (MESSAGE_MAX / size).max(1) * size;
        for part in self.sealed.chunks(many) {
            message.message(if part.len() > size { size as u16 } else { 0 });
            message.part(part);
        }
    }

    fn gather(&mut self, memory: &mut Memory) {
        self.parts.clear();
        let size = self.transmit.segment_size;
        let many = (MESSAGE_MAX / usize::from(size).max(1)).max(1);
        let mut header_at = 0;
        for segments in self.transmit.segments.chunks(many) {
            let size = if segments.len() > 1 { size } else { 0 };
            self.parts.push(Part::Message(size));
            for segment in segments {
                let header = header_at..header_at + usize::from(segment.header_len);
                header_at = header.end;
                if segment.payload.len == 0 {
                    self.parts.push(Part::Header(header));
                    continue;
                }
                let bytes = &self.transmit.headers[header.clone()];
                if let Ok(bytes) = bytes.try_into()
                    && let Some(datagram) = memory.complete(segment, bytes)
                {
                    let joined = match self.parts.last_mut() {
                        Some(Part::Region(last)) => last.join(&datagram),
                        _ => false,
                    };
                    if !joined {
                        self.parts.push(Part::Region(datagram));
                    }
                    continue;
                }
                self.parts.push(Part::Header(header));
                let regions = memory.frame_regions(segment.payload);
                self.parts.extend(regions.map(Part::Region));
                if segment.padding > 0 {
                    self.parts.push(Part::Zeroes(segment.padding));
                }
            }
        }
    }

    fn add<'a>(&'a self, message: &mut SendBatch<'a>, memory: &'a Memory) {
        for part in &self.parts {
            match part {
                Part::Message(size) => message.message(*size),
                Part::Header(bytes) => message.part(&self.transmit.headers[bytes.clone()]),
                Part::Region(region) => message.part(memory.region(region)),
                Part::Zeroes(count) => message.part(&ZEROES[..usize::from(*count)]),
            }
        }
    }
}

#[cfg(test)]
mod tests;
