// SPDX-License-Identifier: Apache-2.0

//! The engine: one end of one tunnel. Here: its state, its settings and the guests' side.
//! `transmit.rs` sends, `own.rs` what is not the guests', `receive.rs` takes in and
//! `together.rs` what was merged, `recover.rs` does what time brings, `paths.rs` knows what
//! paths there are, `conversation.rs` with whom, and `cut.rs` how frames are cut.

use std::collections::VecDeque;

use crate::config::{Config, ConfigError};
use crate::cut::{Cutter, cut};
use crate::frames::{FLOW_FRAMES, FrameRef, Frames};
use crate::metrics::{PathMetrics, TunnelMetrics};
use crate::path::{Numbers, Path};
use crate::pending::Pending;
use crate::refused::Refused;
use crate::released::Released;
use crate::reorder::{Bounds, Drops, Reorder};
use crate::seal::{Greeter, Sealer};
use crate::sending::{Acked, Lost};
use crate::types::{Delivery, Event, PathId, Release, Span, Token, Verdict};
use crate::virtio::MIN_FRAME_LEN;
use crate::wire::{MAX_CHUNKS, Room};

/// The longest frame.
pub(crate) const MAX_FRAME_LEN: u32 = crate::VNET_HEADER_LEN as u32 + 65_535;
/// Events that wait for the caller; the oldest go when nobody asks.
const EVENTS: usize = 256;
/// A flow is bulk with a frame of several chunks, or with so much under way; one with so little
/// has little to send.
const BULK_BYTES: u32 = 65_536;
const LITTLE_BYTES: u32 = 16_384;
/// It stands beside bulk when it sends within this time after some,
const BESIDE_NS: u64 = 20_000_000;
/// and is expected to go on for this long.
const MIXED_NS: u64 = 10_000_000_000;
/// No more frames than this wait for a window when they are read ahead: half of what a flow may
/// have.
const AHEAD_FRAMES: usize = FLOW_FRAMES as usize / 2;
/// Frames wait at most this often for a look whether they are too old.
pub(crate) const SWEEP_NS: u64 = 10_000_000;

/// A chunk that is to be sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    pub frame: FrameRef,
    pub index: u8,
    pub tries: u8,
    /// The path that lost it, [`PathId::LIMIT`] for none.
    pub from: u8,
}

/// A datagram of the engine's own that waits to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Control {
    Ack(AckState),
    Probe {
        path: u8,
        size: u16,
    },
    Reply {
        path: u8,
        peer: u64,
        stamp_us: u32,
        size: u16,
    },
}

/// What an acknowledgement says of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckState {
    pub of: u8,
    pub largest: u64,
    pub bits: [u64; 4],
    pub echo_us: u32,
    pub delay_us: u32,
}

/// One end of one tunnel. See the [crate's documentation](crate) for the contract.
pub struct Engine {
    pub(crate) config: Config,
    pub(crate) instance: u64,
    pub(crate) peer: Option<u64>,
    pub(crate) former: VecDeque<u64>,
    /// When the conversation began.
    pub(crate) begun_ns: u64,
    /// What the peer can hold.
    pub(crate) peer_room: Room,
    pub(crate) send_epoch: u32,
    pub(crate) receive_epoch: u32,
    pub(crate) sealer: Option<Sealer>,
    pub(crate) greeter: Greeter,
    pub(crate) paths: [Option<Path>; PathId::LIMIT],
    /// Numbers of paths that were removed.
    pub(crate) numbers: [Numbers; PathId::LIMIT],
    pub(crate) frames: Frames,
    /// Frames with chunks that were never sent, and the bytes of these chunks.
    pub(crate) pending: Pending,
    pub(crate) pending_bytes: u64,
    /// The flow that had bulk last, and when it had it.
    bulk: Option<(u16, u64)>,
    /// Until then other flows are expected beside it.
    mixed_until_ns: u64,
    pub(crate) again: VecDeque<Again>,
    /// Frames that have arrived and are not known to be delivered; since when.
    pub(crate) lingering: VecDeque<(u64, FrameRef)>,
    pub(crate) sweep_ns: u64,
    pub(crate) control: VecDeque<Control>,
    /// Whether the last batch was one of data.
    pub(crate) behind_data: bool,
    pub(crate) reorder: Reorder,
    /// Token, flow, assembly and bytes of the delivery that waits for its verdict.
    pub(crate) verdict: Option<(u64, u16, u32, u32)>,
    deliveries: u64,
    /// The newest time that was heard of.
    pub(crate) clock_ns: u64,
    pub(crate) released: Released,
    pub(crate) events: VecDeque<Event>,
    pub(crate) metrics: TunnelMetrics,
    /// The largest chunk that every path lets through.
    pub(crate) chunk_room: u16,
    cutter: Cutter,
    pub(crate) spray_next: usize,
    pub(crate) acked: Vec<Acked>,
    pub(crate) lost: Vec<Lost>,
    /// Whether a path is in doubt and the peer not heard of since.
    pub(crate) doubts: bool,
    /// The smoothed RTT of the slowest living path, as of the last turn.
    slowest_ns: u64,
}

impl Engine {
    /// A tunnel without paths. `instance` tells this start of the endpoint from all
    /// others: 64 random bits from the operating system (0 counts as 1). With keys,
    /// sealing is safe only as long as no two starts share an instance.
    ///
    /// # Errors
    /// A setting that makes no sense.
    pub fn new(config: Config, instance: u64) -> Result<Engine, ConfigError> {
        config.check()?;
        let instance = instance.max(1);
        Ok(Engine {
            greeter: Greeter::new(&config.keys, instance),
            frames: Frames::new(config.flows),
            config,
            instance,
            peer: None,
            former: VecDeque::new(),
            begun_ns: 0,
            peer_room: Room::MOST,
            send_epoch: 0,
            receive_epoch: 0,
            sealer: None,
            paths: [const { None }; PathId::LIMIT],
            numbers: [const { None }; PathId::LIMIT].map(|_: Option<()>| Numbers::new()),
            pending: Pending::new(),
            pending_bytes: 0,
            bulk: None,
            mixed_until_ns: 0,
            again: VecDeque::new(),
            lingering: VecDeque::new(),
            sweep_ns: 0,
            control: VecDeque::new(),
            behind_data: false,
            reorder: Reorder::new(),
            verdict: None,
            deliveries: 0,
            clock_ns: 0,
            released: Released::default(),
            events: VecDeque::new(),
            metrics: TunnelMetrics::default(),
            chunk_room: 0,
            cutter: Cutter::default(),
            spray_next: 0,
            acked: Vec::new(),
            lost: Vec::new(),
            doubts: false,
            slowest_ns: 0,
        })
    }

    /// Changes settings while running; `flows` cannot change. Keys: see
    /// [`crate::Keys`].
    ///
    /// # Errors
    /// A setting that makes no sense; then nothing is changed.
    pub fn reconfigure(&mut self, now_ns: u64, config: Config) -> Result<(), ConfigError> {
        config.check()?;
        if config.flows != self.config.flows {
            return Err(ConfigError::FlowsFixed);
        }
        if config.keys != self.config.keys {
            self.greeter = Greeter::new(&config.keys, self.instance);
            self.sealer = self
                .peer
                .map(|peer| Sealer::new(&config.keys, self.instance, peer));
        }
        let told = Room::of(&self.config.limits) != Room::of(&config.limits);
        for path in self.paths.iter_mut().flatten() {
            path.congestion.set_limit(config.limits.path_window);
            if told {
                path.ask(now_ns);
            }
        }
        self.config = config;
        self.note_chunk_room(now_ns);
        Ok(())
    }

    /// Whether a frame would be taken now, and sent soon.
    pub fn can_accept(&self) -> bool {
        let waiting = self.pending_bytes + self.again.len() as u64 * u64::from(self.chunk_room);
        let alive = || self.paths.iter().flatten().filter(|path| path.is_alive());
        let room = || alive().map(Path::room).sum::<u64>();
        let ahead = || match self.reads_ahead() {
            true => alive()
                .map(|path| path.sends_in(self.ahead_ns()))
                .sum::<u64>()
                .min(self.config.limits.flow_bytes / 2),
            false => 0,
        };
        self.peer.is_some()
            && self.may_hold(MAX_FRAME_LEN, MAX_CHUNKS as u8)
            && room() + ahead() > waiting
    }

    /// Whether to read beyond what windows let through. A request would else wait in the TUN
    /// behind all that bulk flows have put there: here flows take turns. Bulk alone stays
    /// there, as what waits leaves the cache.
    fn reads_ahead(&self) -> bool {
        self.clock_ns < self.mixed_until_ns && self.pending.len() < AHEAD_FRAMES
    }

    /// What waits for long is given up.
    fn ahead_ns(&self) -> u64 {
        self.config.read_ahead_ns.min(self.config.give_up_ns / 4)
    }

    /// Whether another frame may be under way: neither this end nor the peer, which may
    /// have to keep all of it until an earlier frame of its flow has come, is full.
    fn may_hold(&self, len: u32, chunks: u8) -> bool {
        let limits = &self.config.limits;
        self.frames.held < limits.frames
            && self.frames.held_bytes < limits.frame_bytes
            && self.frames.held_bytes + u64::from(len) <= self.peer_room.bytes()
            && self.frames.held_chunks + u32::from(chunks) <= self.peer_room.chunks
    }

    /// Bytes of the chunks that the next long frame will most likely be cut into; 0: not known,
    /// or of no use, as sealing copies them. A frame may lie in pieces of this size, each behind room
    /// for a header, so that datagrams are whole in memory. A guess: each chunk's place
    /// is told when it is sent ([`crate::Segment::payload`]).
    pub fn chunk_bytes(&self) -> usize {
        match self.config.keys.sealed() {
            true => 0,
            false => self.cutter.size().into(),
        }
    }

    /// Takes a frame: one read of the TUN. `flow_hash` is [`crate::flow_hash`] of its
    /// packet, or any other number that is the same for packets that must stay in
    /// order. Takes a reference to the slot on success.
    ///
    /// # Errors
    /// The frame is dropped and counted; the slot is the caller's.
    pub fn handle_frame(
        &mut self,
        now_ns: u64,
        frame: Span,
        flow_hash: u64,
    ) -> Result<(), Refused> {
        let refuse = |metrics: &mut TunnelMetrics, reason| {
            metrics.refused.add(reason, 1);
            Err(reason)
        };
        if self.peer.is_none() || self.chunk_room == 0 {
            return refuse(&mut self.metrics, Refused::NoPeer);
        }
        let cut = match self.config.keys.sealed() {
            true => cut(frame.len, self.chunk_room),
            false => self.cutter.cut(frame.len, self.chunk_room),
        };
        let Some((size, chunks)) = cut else {
            let long = frame.len as usize >= MIN_FRAME_LEN;
            let reason = if long {
                Refused::FrameLong
            } else {
                Refused::FrameShort
            };
            return refuse(&mut self.metrics, reason);
        };
        let flow = (flow_hash ^ (flow_hash >> 32)) as u32 & (self.config.flows - 1);
        if !self.may_hold(frame.len, chunks) {
            return refuse(&mut self.metrics, Refused::NoRoom);
        }
        if !self
            .frames
            .flow_has_room(flow as u16, frame.len, self.config.limits.flow_bytes)
        {
            return refuse(&mut self.metrics, Refused::FlowFull);
        }
        let at = self.frames.insert(now_ns, frame, flow as u16, size, chunks);
        self.note_mix(now_ns, flow as u16, chunks);
        if self.pending.is_empty() && self.again.is_empty() {
            self.sweep_ns = now_ns + SWEEP_NS;
        }
        self.pending.push(flow as u16, at);
        self.pending_bytes += u64::from(frame.len);
        self.metrics.frames_in += 1;
        self.metrics.frame_bytes_in += u64::from(frame.len);
        Ok(())
    }

    /// Notes whether a flow with little to send stands beside another one's bulk.
    fn note_mix(&mut self, now_ns: u64, flow: u16, chunks: u8) {
        let held = self.frames.flow_holds(flow);
        if chunks > 1 || held > BULK_BYTES {
            self.bulk = Some((flow, now_ns));
        } else if let Some((bulk, at_ns)) = self.bulk
            && flow != bulk
            && held <= LITTLE_BYTES
            && now_ns < at_ns + BESIDE_NS
        {
            self.mixed_until_ns = now_ns + MIXED_NS;
        }
    }

    /// The next frame for the TUN.
    pub fn poll_deliver(&mut self) -> Option<Delivery<'_>> {
        if let Some((token, ..)) = self.verdict {
            self.delivered(self.clock_ns, Token(token), Verdict::Ok);
        }
        let mut drops = Drops {
            counters: &mut self.metrics.refused,
            released: &mut self.released,
        };
        let (flow, _, len, at) = self.reorder.next(&mut drops)?;
        self.deliveries += 1;
        self.verdict = Some((self.deliveries, flow, at, len));
        Some(Delivery {
            token: Token(self.deliveries),
            flow,
            len,
            spans: self.reorder.spans(at),
        })
    }

    /// The vNIC's verdict on a delivery, before the next `poll_deliver`. A delivery
    /// without verdict counts as taken.
    pub fn delivered(&mut self, now_ns: u64, token: Token, verdict: Verdict) {
        let Some((_, flow, at, len)) = self.verdict.take_if(|verdict| verdict.0 == token.0) else {
            return;
        };
        match verdict {
            Verdict::Ok => {
                self.metrics.frames_out += 1;
                self.metrics.frame_bytes_out += u64::from(len);
                self.reorder.delivered(now_ns, flow, at);
            }
            Verdict::Full => {
                self.metrics.vnic_full += 1;
                let mut drops = Drops {
                    counters: &mut self.metrics.refused,
                    released: &mut self.released,
                };
                self.reorder.refused(now_ns, flow, at, &mut drops);
            }
        }
    }

    /// The next references that come back.
    pub fn poll_release(&mut self) -> Option<Release> {
        self.released.pop()
    }

    /// The next event. Those that nobody asks for are forgotten, the oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The tunnel's counters.
    pub fn metrics(&self) -> TunnelMetrics {
        TunnelMetrics {
            frames_held: self.frames.held,
            frame_bytes_held: self.frames.held_bytes,
            chunks_held: self.reorder.held.chunks,
            chunk_bytes_held: self.reorder.held.bytes,
            chunks_held_peak: self.reorder.held.peak,
            frames_reordered: self.reorder.held.reordered,
            frames_skipped: self.reorder.held.skipped,
            ..self.metrics
        }
    }

    /// The path's counters; `None` if there is no such path.
    pub fn path_metrics(&self, id: PathId) -> Option<PathMetrics> {
        let path = self.paths.get(id.index())?.as_ref()?;
        let known = |value| if path.rtt.is_known() { value } else { 0 };
        Some(PathMetrics {
            state: path.state,
            mtu: path.mtu,
            srtt_ns: known(path.rtt.smoothed_ns()),
            min_rtt_ns: known(path.rtt.lowest_ns()),
            rtt_var_ns: known(path.rtt.deviation_ns()),
            rto_ns: path.timeout_ns(&self.config),
            window_bytes: path.congestion.bytes(),
            inflight_bytes: path.sending.inflight(),
            reorder_threshold: path.sending.threshold(),
            ..path.stats
        })
    }

    pub(crate) fn event(&mut self, event: Event) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    pub(crate) fn note_slowest(&mut self) {
        let alive = self.paths.iter().flatten().filter(|path| path.is_alive());
        self.slowest_ns = alive.map(|path| path.rtt.smoothed_ns()).max().unwrap_or(0);
    }

    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            chunks: self.config.limits.chunks,
            bytes: self.config.limits.chunk_bytes,
            hold_ns: self.config.hold_ns.max(4 * self.slowest_ns),
            give_up_ns: self.config.give_up_ns,
        }
    }

    /// Bytes of a frame that were never sent.
    pub(crate) fn unsent(&self, at: FrameRef) -> u64 {
        let unsent = |frame: &crate::frames::Frame| {
            let sent = u64::from(frame.begun) * u64::from(frame.size);
            u64::from(frame.span.len).saturating_sub(sent)
        };
        self.frames.get(at).map_or(0, unsent)
    }

    /// Takes a frame out of everything, for a reason.
    pub(crate) fn drop_frame(&mut self, at: FrameRef, reason: Refused) {
        self.pending_bytes = self.pending_bytes.saturating_sub(self.unsent(at));
        if let Some(release) = self.frames.remove(at) {
            self.released.push(release);
            self.metrics.refused.add(reason, 1);
        }
    }
}
