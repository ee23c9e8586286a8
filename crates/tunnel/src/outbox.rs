// SPDX-License-Identifier: Apache-2.0
//! What the engine has to send, gathered by path and sent in as few calls as there are
//! paths.

use std::ops::Range;

use causeway_bifrost::wire::TAG_LEN;
use causeway_bifrost::{Transmit, TransportEngine};
use causeway_netio::tunnel::{SendBatch, SendBuffers, Sent, UdpPath};

use super::memory::{Memory, Region};

/// Most batches of a turn. More wait for the next: acknowledgements come in between.
const BATCHES_PER_TURN: usize = 32;
/// What the last chunk of a frame is padded with.
const ZEROES: [u8; 256] = [0; 256];

/// Batches that wait to be sent.
#[derive(Default)]
pub(crate) struct Outbox {
    batches: Vec<Batch>,
    used: usize,
    buffers: SendBuffers,
}

#[derive(Default)]
struct Batch {
    transmit: Transmit,
    /// The whole datagrams, where the tunnel has keys.
    sealed: Vec<u8>,
    /// What its message is made of, where it has none.
    parts: Vec<Part>,
}

/// A part of a batch's message, in their order.
enum Part {
    /// Headers that stand in the transmit.
    Header(Range<usize>),
    /// Payload, or whole datagrams.
    Region(Region),
    /// Padding.
    Zeroes(u8),
}

impl Outbox {
    /// Takes what the engine has to send; whether there may be more.
    pub(crate) fn fill(
        &mut self,
        now_ns: u64,
        engine: &mut TransportEngine,
        memory: &mut Memory,
    ) -> bool {
        self.used = 0;
        while self.used < BATCHES_PER_TURN {
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

    pub(crate) fn send(&mut self, id: u8, path: &UdpPath, memory: &Memory) -> Option<Sent> {
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
    fn seal(&mut self, engine: &TransportEngine, memory: &Memory) {
        self.sealed.clear();
        let mut header_at = 0;
        for segment in &self.transmit.datagrams {
            let begin = self.sealed.len();
            let header_end = header_at + usize::from(segment.header_len);
            self.sealed
                .extend_from_slice(&self.transmit.headers[header_at..header_end]);
            // Control datagrams are sealed already.
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

    /// The size of the datagrams of a message of `bytes`; 0: it is a single one.
    fn segment(&self, bytes: usize) -> u16 {
        let size = self.transmit.segment_size;
        if bytes > size.into() { size } else { 0 }
    }

    fn add_sealed<'a>(&'a self, message: &mut SendBatch<'a>) {
        message.message(self.segment(self.sealed.len()));
        message.part(&self.sealed);
    }

    fn gather(&mut self, memory: &mut Memory) {
        self.parts.clear();
        let mut header_at = 0;
        for segment in &self.transmit.datagrams {
            let header = header_at..header_at + usize::from(segment.header_len);
            header_at = header.end;
            if segment.payload.len == 0 {
                self.parts.push(Part::Header(header));
                continue;
            }
            let bytes = &self.transmit.headers[header.clone()];
            if let Ok(bytes) = bytes.try_into()
                && let Some(datagram) = memory.complete_datagram(segment, bytes)
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

    fn add<'a>(&'a self, message: &mut SendBatch<'a>, memory: &'a Memory) {
        message.message(self.segment(self.transmit.total as usize));
        for part in &self.parts {
            message.part(match part {
                Part::Header(bytes) => &self.transmit.headers[bytes.clone()],
                Part::Region(region) => memory.region(region),
                Part::Zeroes(count) => &ZEROES[..usize::from(*count)],
            });
        }
    }
}

#[cfg(test)]
mod tests;
