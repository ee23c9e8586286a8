// SPDX-License-Identifier: Apache-2.0

//! An endpoint with its memory, its guests and its vNIC.

use std::collections::{BTreeMap, VecDeque};

use causeway_bifrost::{
    DeliveryVerdict, DropReason, Limits, PathId, PathMetrics, Release, SlotReference, Span,
    Transmit, TransportEngine, TunnelEvent, TunnelMetrics, VNET_HEADER_LEN,
};

use super::plan::{Case, Plan, VnicPlan};

/// Memory with counted references, as the contract asks for.
#[derive(Debug, Default)]
pub(super) struct Slab {
    slots: Vec<(Vec<u8>, u32)>,
    free: Vec<u32>,
    pub used: usize,
}

impl Slab {
    fn put(&mut self, bytes: Vec<u8>) -> u32 {
        self.used += 1;
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = (bytes, 0);
            return slot;
        }
        self.slots.push((bytes, 0));
        self.slots.len() as u32 - 1
    }

    fn hold(&mut self, slot: u32) {
        self.slots[slot as usize].1 += 1;
    }

    fn release(&mut self, release: Release) -> Result<(), String> {
        let (_, references) = &mut self.slots[release.slot as usize];
        if *references < release.count {
            return Err(format!("slot {} was released too often", release.slot));
        }
        *references -= release.count;
        if *references == 0 {
            self.forget(release.slot);
        }
        Ok(())
    }

    fn forget(&mut self, slot: u32) {
        self.slots[slot as usize] = (Vec::new(), 0);
        self.free.push(slot);
        self.used -= 1;
    }
}

/// What a guest put into a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub flow: u32,
    pub number: u32,
    pub sent_ns: u64,
}

const HEAD: usize = VNET_HEADER_LEN + 20;
/// A frame that holds its content.
pub(super) const MIN_FRAME: u32 = HEAD as u32 + 16;

/// A frame of a guest: no offload, IPv4, protocol 253 (RFC 3692), then content and a
/// pattern that depends on it.
pub(super) fn frame(content: Content, len: u32) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    let total = (len as usize - VNET_HEADER_LEN) as u16;
    let ip = &mut bytes[VNET_HEADER_LEN..];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[8] = 64;
    ip[9] = 253;
    bytes[HEAD..HEAD + 4].copy_from_slice(&content.flow.to_le_bytes());
    bytes[HEAD + 4..HEAD + 8].copy_from_slice(&content.number.to_le_bytes());
    bytes[HEAD + 8..HEAD + 16].copy_from_slice(&content.sent_ns.to_le_bytes());
    let mut word = (u64::from(content.flow) << 32 | u64::from(content.number)) | 1;
    for chunk in bytes[HEAD + 16..].chunks_mut(64) {
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let piece = word.to_le_bytes();
        let most = chunk.len().min(8);
        chunk[..most].copy_from_slice(&piece[..most]);
    }
    bytes
}

/// The content of a frame that arrived.
fn content(bytes: &[u8]) -> Result<Content, String> {
    let word = |at: usize| {
        let bytes = bytes
            .get(HEAD + at..HEAD + at + 4)
            .ok_or("a frame was cut off")?;
        Ok::<u32, String>(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let content = Content {
        flow: word(0)?,
        number: word(4)?,
        sent_ns: u64::from(word(8)?) | u64::from(word(12)?) << 32,
    };
    if frame(content, bytes.len() as u32) != bytes {
        return Err(format!("{content:?} arrived changed"));
    }
    Ok(content)
}

/// A vNIC: a ring that its guest empties at a steady pace.
#[derive(Debug)]
struct Vnic {
    plan: VnicPlan,
    free_ns: u64,
}

/// What the checks need to know of an endpoint, over all its lives.
#[derive(Clone, Debug, Default)]
pub(super) struct Record {
    /// Frames that the engine took, and those that it refused.
    pub accepted: u64,
    pub refused: u64,
    pub delivered: u64,
    /// Datagrams refused, by the engine's own answers.
    pub datagrams_refused: BTreeMap<DropReason, u64>,
    /// The newest frame of each guest flow that was delivered.
    newest: BTreeMap<u32, u32>,
    pub slowest_ns: u64,
    pub last_delivered_ns: u64,
    pub events: Vec<TunnelEvent>,
    /// Metrics of former lives.
    pub former: Vec<(TunnelMetrics, Vec<PathMetrics>)>,
}

/// See the module.
pub(super) struct Host {
    pub engine: TransportEngine,
    pub slab: Slab,
    pub stalled_until_ns: u64,
    pub wake_ns: u64,
    /// Wake-ups in a row that wanted another one at the same time.
    pub wakes_in_place: u32,
    inbox: Vec<(usize, Vec<u8>)>,
    queue: VecDeque<Vec<u8>>,
    vnic: Option<Vnic>,
    /// The most that the engine may ever hold.
    limits: Limits,
    pub record: Record,
    /// Whether datagrams are merged when they come in, as GRO does.
    merges: bool,
    batch: Transmit,
}

/// Datagrams of a guest's queue, at most; more are dropped before the engine sees them.
const QUEUE: usize = 1000;
/// Bytes of datagrams that are merged, at most.
const MERGED_MAX: usize = 65_507;

impl Host {
    pub(super) fn new(engine: TransportEngine, plan: &Plan) -> Host {
        Host {
            engine,
            slab: Slab::default(),
            stalled_until_ns: 0,
            wake_ns: u64::MAX,
            wakes_in_place: 0,
            inbox: Vec::new(),
            queue: VecDeque::new(),
            vnic: plan.vnic.map(|plan| Vnic { plan, free_ns: 0 }),
            limits: plan.config.limits,
            record: Record::default(),
            merges: (plan.seed / Case::ALL.len() as u64).is_multiple_of(2),
            batch: Transmit::default(),
        }
    }

    pub(super) fn offer(&mut self, bytes: Vec<u8>) {
        if self.queue.len() < QUEUE {
            self.queue.push_back(bytes);
        }
    }

    pub(super) fn receive(&mut self, path: usize, datagram: Vec<u8>) {
        self.inbox.push((path, datagram));
    }

    /// Everything that is to be done at `now_ns`, in the order of the contract.
    /// `send` gets each datagram with its path.
    pub(super) fn work(
        &mut self,
        now_ns: u64,
        mut send: impl FnMut(usize, Vec<u8>),
    ) -> Result<(), String> {
        let mut inbox = std::mem::take(&mut self.inbox).into_iter().peekable();
        while let Some((path, datagram)) = inbox.next() {
            // An empty one is never merged.
            if !self.merges || datagram.is_empty() {
                self.take(now_ns, path, datagram);
                continue;
            }
            let (segment, mut merged) = (datagram.len(), datagram);
            let joins = |merged: &[u8], next: &(usize, Vec<u8>)| {
                next.0 == path
                    && next.1.len() <= segment
                    && merged.len().is_multiple_of(segment)
                    && merged.len() + next.1.len() <= MERGED_MAX
            };
            while let Some((_, next)) = inbox.next_if(|next| joins(&merged, next)) {
                merged.extend(next);
            }
            self.take_merged(now_ns, path, merged, segment);
        }
        self.engine.handle_timeout(now_ns);
        while self.engine.can_accept()
            && let Some(bytes) = self.queue.pop_front()
        {
            self.accept(now_ns, bytes);
        }
        self.deliver(now_ns)?;
        self.transmit(now_ns, &mut send)?;
        while let Some(release) = self.engine.poll_release() {
            self.slab.release(release)?;
        }
        while let Some(event) = self.engine.poll_event() {
            self.record.events.push(event);
        }
        self.caps_hold()
    }

    /// The engine holds no more than it may. (A cap that is lowered is met when what is
    /// held has gone; the plans lower none below what `limits` says.)
    fn caps_hold(&self) -> Result<(), String> {
        let (now, most) = (self.engine.metrics(), &self.limits);
        let frame = VNET_HEADER_LEN as u64 + 65_535;
        for (what, held, most) in [
            ("frames", u64::from(now.frames_held), most.frames.into()),
            (
                "bytes of frames",
                now.frame_bytes_held,
                most.frame_bytes + frame,
            ),
            ("chunks", now.chunks_held.into(), most.chunks.into()),
            ("bytes of chunks", now.chunk_bytes_held, most.chunk_bytes),
        ] {
            if held > most {
                return Err(format!("{held} {what} are held, {most} may be"));
            }
        }
        Ok(())
    }

    fn take(&mut self, now_ns: u64, path: usize, mut datagram: Vec<u8>) {
        let slot = self.slab.put(Vec::new());
        let span = Span {
            slot,
            offset: 0,
            len: datagram.len() as u32,
        };
        let from = super::world::address(path);
        let id = PathId(path as u8);
        let taken = self
            .engine
            .handle_datagram(now_ns, id, from, &mut datagram, span);
        match taken {
            Ok(SlotReference::Taken) => {
                self.slab.slots[slot as usize].0 = datagram;
                self.slab.hold(slot);
            }
            Ok(SlotReference::NotTaken) => self.slab.forget(slot),
            Err(reason) => {
                self.slab.forget(slot);
                *self.record.datagrams_refused.entry(reason).or_default() += 1;
            }
        }
    }

    fn take_merged(&mut self, now_ns: u64, path: usize, mut bytes: Vec<u8>, segment: usize) {
        let slot = self.slab.put(Vec::new());
        let span = Span {
            slot,
            offset: 0,
            len: bytes.len() as u32,
        };
        let (id, from) = (PathId(path as u8), super::world::address(path));
        let datagrams = (&mut bytes[..], segment);
        let held = self
            .engine
            .handle_datagrams(now_ns, id, from, datagrams, span);
        if held == 0 {
            return self.slab.forget(slot);
        }
        self.slab.slots[slot as usize] = (bytes, held);
    }

    fn accept(&mut self, now_ns: u64, bytes: Vec<u8>) {
        let flow = u32::from_le_bytes([bytes[HEAD], bytes[HEAD + 1], bytes[HEAD + 2], 0]);
        let len = bytes.len() as u32;
        let slot = self.slab.put(bytes);
        let span = Span {
            slot,
            offset: 0,
            len,
        };
        if self.engine.handle_frame(now_ns, span, flow.into()).is_ok() {
            self.slab.hold(slot);
            self.record.accepted += 1;
        } else {
            self.slab.forget(slot);
            self.record.refused += 1;
        }
    }

    fn deliver(&mut self, now_ns: u64) -> Result<(), String> {
        while let Some(delivery) = self.engine.poll_deliver() {
            let mut bytes = Vec::with_capacity(delivery.len as usize);
            let (token, len) = (delivery.token, delivery.len);
            let spans = delivery.spans.to_vec();
            for span in &spans {
                let slot = &self.slab.slots[span.slot as usize].0;
                let end = (span.offset + span.len) as usize;
                bytes.extend_from_slice(&slot[span.offset as usize..end]);
            }
            if bytes.len() != len as usize {
                return Err(format!("a delivery of {len} bytes has {}", bytes.len()));
            }
            for span in spans {
                let slot = span.slot;
                self.slab.release(Release { slot, count: 1 })?;
            }
            let verdict = self
                .vnic
                .as_mut()
                .map_or(DeliveryVerdict::Ok, |vnic| vnic.offer(now_ns));
            if verdict == DeliveryVerdict::Ok {
                self.record.note(now_ns, content(&bytes)?)?;
            }
            self.engine.delivered(now_ns, token, verdict);
        }
        Ok(())
    }

    fn transmit(
        &mut self,
        now_ns: u64,
        send: &mut impl FnMut(usize, Vec<u8>),
    ) -> Result<(), String> {
        while self.engine.poll_transmit(now_ns, &mut self.batch) {
            let batch = &self.batch;
            let mut headers = &batch.headers[..];
            let mut total = 0;
            for (index, segment) in batch.datagrams.iter().enumerate() {
                let (header, rest) = headers.split_at(segment.header_len.into());
                headers = rest;
                let mut datagram = header.to_vec();
                let span = segment.payload;
                if span.len > 0 {
                    let slot = &self.slab.slots[span.slot as usize].0;
                    let end = (span.offset + span.len) as usize;
                    datagram.extend_from_slice(&slot[span.offset as usize..end]);
                    datagram.resize(datagram.len() + usize::from(segment.padding), 0);
                    if batch.to_seal {
                        datagram.resize(datagram.len() + causeway_bifrost::wire::TAG_LEN, 0);
                        self.engine.seal(&mut datagram);
                    }
                }
                let (len, size) = (datagram.len(), usize::from(batch.segment_size));
                let last = index + 1 == batch.datagrams.len();
                if len > size || (len < size && !last) {
                    return Err(format!("a batch of {size} bytes has a datagram of {len}"));
                }
                total += len;
                send(batch.path.0.into(), datagram);
            }
            if total != batch.total as usize {
                return Err(format!("a batch of {} bytes has {total}", batch.total));
            }
        }
        Ok(())
    }

    /// The endpoint is restarted: its memory is gone, its guests stay.
    pub(super) fn restart(&mut self, engine: TransportEngine, paths: usize) {
        let old = std::mem::replace(&mut self.engine, engine);
        self.record.former.push(metrics(&old, paths));
        self.slab = Slab::default();
        self.inbox.clear();
    }

    /// Metrics of all lives.
    pub(super) fn lives(&self, paths: usize) -> Vec<(TunnelMetrics, Vec<PathMetrics>)> {
        let mut lives = self.record.former.clone();
        lives.push(metrics(&self.engine, paths));
        lives
    }
}

fn metrics(engine: &TransportEngine, paths: usize) -> (TunnelMetrics, Vec<PathMetrics>) {
    let paths = (0..paths).filter_map(|index| engine.path_metrics(PathId(index as u8)));
    (engine.metrics(), paths.collect())
}

impl Vnic {
    fn offer(&mut self, now_ns: u64) -> DeliveryVerdict {
        let waiting_ns = self.free_ns.saturating_sub(now_ns);
        if waiting_ns / self.plan.frame_ns >= self.plan.frames {
            return DeliveryVerdict::Full;
        }
        self.free_ns = self.free_ns.max(now_ns) + self.plan.frame_ns;
        DeliveryVerdict::Ok
    }
}

impl Record {
    /// Order, and at most one delivery: numbers of a flow only grow.
    fn note(&mut self, now_ns: u64, content: Content) -> Result<(), String> {
        let newest = self.newest.insert(content.flow, content.number);
        if let Some(newest) = newest
            && newest >= content.number
        {
            return Err(format!(
                "flow {}: frame {} was delivered after frame {newest}",
                content.flow, content.number
            ));
        }
        self.delivered += 1;
        self.last_delivered_ns = now_ns;
        self.slowest_ns = self.slowest_ns.max(now_ns - content.sent_ns);
        Ok(())
    }

    pub(super) fn newest_of(&self, flow: u32) -> Option<u32> {
        self.newest.get(&flow).copied()
    }
}
