// SPDX-License-Identifier: Apache-2.0

//! The engine: one end of one tunnel. It owns the parts and has each do its own; here are
//! settings, paths, the guests' side and timeouts, in `engine/transmit.rs` what goes to the
//! network and in `engine/receive.rs` what comes from it.

mod receive;
mod transmit;

use crate::config::{MIN_MTU, PathConfig, TransportConfig, TransportConfigError};
use crate::control::{Control, ControlQueue};
use crate::drop_reason::DropReason;
use crate::events::{EventQueue, TunnelEvent};
use crate::metrics::{PathMetrics, TunnelMetrics};
use crate::outbound::Outbound;
use crate::path::{AckedChunks, LostChunk, Path};
use crate::path_table::PathTable;
use crate::read_ahead::ReadAhead;
use crate::release_queue::ReleaseQueue;
use crate::reorder::{Reorder, ReorderLimits};
use crate::scheduler::Scheduler;
use crate::segmentation::{Segmenter, segment};
use crate::session::Session;
use crate::types::{Delivery, DeliveryToken, DeliveryVerdict, PathId, Release, Span};
use crate::virtio::{MAX_FRAME_LEN, MIN_FRAME_LEN};
use crate::wire::MAX_CHUNKS;

/// One end of one tunnel. See the [crate's documentation](crate) for the contract.
pub struct TransportEngine {
    config: TransportConfig,
    session: Session,
    paths: PathTable,
    scheduler: Scheduler,
    segmenter: Segmenter,
    read_ahead: ReadAhead,
    outbound: Outbound,
    reorder: Reorder,
    control: ControlQueue,
    released: ReleaseQueue,
    events: EventQueue,
    metrics: TunnelMetrics,
    /// The largest chunk that every path lets through.
    max_chunk: u16,
    /// Whether the last batch was one of data.
    behind_data: bool,
    /// The newest time that a call has brought.
    clock_ns: u64,
    /// The smoothed RTT of the slowest living path, as of the last timeout.
    slowest_rtt_ns: u64,
    /// Since when no path has been alive, as of the last timeout.
    cut_off_ns: Option<u64>,
    /// See [`TransportEngine::set_short_of_memory`].
    short_of_memory: bool,
    /// Kept for their memory; empty between calls.
    acked: Vec<AckedChunks>,
    lost: Vec<LostChunk>,
}

impl TransportEngine {
    /// A tunnel without paths. `instance` tells this start of the endpoint from all
    /// others: 64 random bits from the operating system (0 counts as 1). With keys,
    /// sealing is safe only as long as no two starts share an instance.
    ///
    /// # Errors
    /// A setting that makes no sense.
    pub fn new(
        config: TransportConfig,
        instance: u64,
    ) -> Result<TransportEngine, TransportConfigError> {
        config.check()?;
        Ok(TransportEngine {
            session: Session::new(instance, &config.keys),
            outbound: Outbound::new(config.flows),
            config,
            paths: PathTable::new(),
            scheduler: Scheduler::default(),
            segmenter: Segmenter::default(),
            read_ahead: ReadAhead::default(),
            reorder: Reorder::default(),
            control: ControlQueue::default(),
            released: ReleaseQueue::default(),
            events: EventQueue::default(),
            metrics: TunnelMetrics::default(),
            max_chunk: 0,
            behind_data: false,
            clock_ns: 0,
            slowest_rtt_ns: 0,
            cut_off_ns: None,
            short_of_memory: false,
            acked: Vec::new(),
            lost: Vec::new(),
        })
    }

    /// Changes settings while running; `flows` cannot change. Keys: see
    /// [`crate::TunnelKeys`].
    ///
    /// # Errors
    /// A setting that makes no sense; then nothing is changed.
    pub fn reconfigure(
        &mut self,
        now_ns: u64,
        config: TransportConfig,
    ) -> Result<(), TransportConfigError> {
        config.check()?;
        if config.flows != self.config.flows {
            return Err(TransportConfigError::FlowsFixed);
        }
        self.session.set_keys(&config.keys);
        let granted = self.config.limits.credit() != config.limits.credit();
        for (_, path) in self.paths.iter_mut() {
            path.set_window_limit(config.limits.path_window);
            if granted {
                path.request_probe(now_ns);
            }
        }
        self.config = config;
        self.update_max_chunk(now_ns);
        Ok(())
    }

    /// Adds a path; it is probed at once, and used when it answers.
    ///
    /// # Errors
    /// The number is out of range or taken, or the MTU is too small.
    pub fn add_path(
        &mut self,
        now_ns: u64,
        id: PathId,
        path: PathConfig,
    ) -> Result<(), TransportConfigError> {
        path.check(id)?;
        self.paths.add(now_ns, id, path, &self.config)?;
        self.update_max_chunk(now_ns);
        Ok(())
    }

    /// Removes a path; what is in flight on it is retransmitted on others. Does nothing
    /// to a path that does not exist.
    pub fn remove_path(&mut self, now_ns: u64, id: PathId) {
        if self.paths.get(id.index()).is_some() {
            self.stop_path(now_ns, id.index());
            self.paths.remove(id.index());
            self.update_max_chunk(now_ns);
        }
    }

    /// The path's MTU is known to have changed (`EMSGSIZE`), in bytes with IP
    /// header; raised to 1280 if smaller, lowered to the path's setting if larger. Frames
    /// that were segmented larger are segmented again. The engine finds out itself, more
    /// slowly, where this is not called, and when the MTU has become larger again.
    pub fn set_path_mtu(&mut self, now_ns: u64, id: PathId, mtu: u16) {
        if let Some(path) = self.paths.get_mut(id.index()) {
            let mtu = mtu.clamp(MIN_MTU, path.config.mtu);
            if path.set_mtu(now_ns, mtu) {
                self.events.push(TunnelEvent::PathMtu(id, mtu));
                self.update_max_chunk(now_ns);
            }
        }
    }

    /// A path may carry larger packets than its configuration said: probes find out whether they pass,
    /// and meanwhile it goes on as it is. Whether there is such a path, and `mtu` is larger.
    pub fn raise_path_mtu(&mut self, now_ns: u64, id: PathId, mtu: u16) -> bool {
        let path = self.paths.get_mut(id.index());
        path.is_some_and(|path| path.raise_mtu(now_ns, id, mtu))
    }

    /// Whether the caller's memory for datagrams runs short. As long as it does, only chunks of
    /// frames whose turn it is are taken; the others are dropped, and the peer sends them again.
    pub fn set_short_of_memory(&mut self, short: bool) {
        self.short_of_memory = short;
    }

    /// Takes a path out of use; what is in flight on it goes elsewhere.
    fn stop_path(&mut self, now_ns: u64, index: usize) {
        let Some(path) = self.paths.get_mut(index) else {
            return;
        };
        if path.stop(now_ns, &mut self.lost) {
            self.events.push(TunnelEvent::PathDead(PathId(index as u8)));
        }
        self.queue_lost(now_ns, index);
    }

    /// What path `index` has lost is to be retransmitted.
    fn queue_lost(&mut self, now_ns: u64, index: usize) {
        if self.lost.is_empty() {
            return;
        }
        if let Some(path) = self.paths.get_mut(index) {
            path.on_lost(now_ns, self.lost.len() as u32);
        }
        self.outbound.on_lost(now_ns, index as u8, &self.lost);
        self.lost.clear();
    }

    /// Recomputes what every path lets through, and segments frames again that are too
    /// large for it.
    fn update_max_chunk(&mut self, now_ns: u64) {
        let before = self.max_chunk;
        self.max_chunk = self.paths.max_chunk(self.session.is_sealed());
        // Before the first path there are no frames; behind the last one, those that were
        // segmented for it.
        if self.max_chunk > 0 && (self.max_chunk < before || before == 0) {
            self.outbound
                .resegment(now_ns, self.max_chunk, &mut self.released);
        }
    }

    /// Whether a frame would be taken now, and sent soon.
    pub fn can_accept(&self) -> bool {
        let limits = &self.config.limits;
        let windows = || {
            self.paths
                .iter()
                .map(|(_, path)| path.window_left(self.clock_ns))
        };
        let ahead = || {
            let frames = self.outbound.waiting_frames();
            let sends_in = |time_ns| {
                let paths = self.paths.alive();
                paths.map(|(_, path)| path.sends_in(time_ns)).sum()
            };
            self.read_ahead
                .bytes(self.clock_ns, frames, &self.config, sends_in)
        };
        self.session.is_established()
            && self
                .outbound
                .accepts(MAX_FRAME_LEN, MAX_CHUNKS as u8, limits, self.session.credit)
            && windows().sum::<u64>() + ahead() > self.outbound.waiting_bytes(self.max_chunk)
    }

    /// Whether no path has been alive for longer than a frame may wait. What a guest sends should
    /// then be read and given to [`TransportEngine::handle_frame`], which drops it: else the oldest
    /// would be sent first when a path is back.
    pub fn is_cut_off(&self) -> bool {
        let since = self.cut_off_ns.filter(|_| !self.paths.any_alive());
        since.is_some_and(|since_ns| {
            self.clock_ns.saturating_sub(since_ns) > self.frame_lifetime_ns()
        })
    }

    /// Whether the peer's device takes the guests' UDP merged.
    pub fn peer_merges_udp(&self) -> bool {
        self.session.peer_merges_udp == Some(true)
    }

    /// Bytes of the chunks that the next long frame will most likely be segmented into; 0: not
    /// known, or of no use, as sealing copies them. A frame may lie in pieces of this size, each
    /// behind room for a header, so that datagrams are whole in memory. A guess: where each
    /// chunk lies is known when it is sent ([`crate::DatagramParts::payload`]).
    pub fn chunk_bytes(&self) -> usize {
        match self.session.is_sealed() {
            true => 0,
            false => self.segmenter.size().into(),
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
    ) -> Result<(), DropReason> {
        let taken = self.take_frame(now_ns, frame, flow_hash);
        if let Err(reason) = taken {
            self.released.drops.add(reason, 1);
        }
        taken
    }

    fn take_frame(&mut self, now_ns: u64, frame: Span, flow_hash: u64) -> Result<(), DropReason> {
        if !self.session.is_established() || self.max_chunk == 0 || self.is_cut_off() {
            return Err(DropReason::NoPeer);
        }
        let chunks = match self.session.is_sealed() {
            true => segment(frame.len, self.max_chunk),
            false => self.segmenter.segment(frame.len, self.max_chunk),
        };
        let long = frame.len as usize >= MIN_FRAME_LEN;
        let (size, chunks) = chunks.ok_or(match long {
            true => DropReason::FrameLong,
            false => DropReason::FrameShort,
        })?;
        let flow = (flow_hash ^ (flow_hash >> 32)) as u32 & (self.config.flows - 1);
        let flow = flow as u16;
        let (limits, credit) = (&self.config.limits, self.session.credit);
        if !self.outbound.accepts(frame.len, chunks, limits, credit) {
            return Err(DropReason::Backpressure);
        }
        let frames = &self.outbound.frames;
        if !frames.flow_accepts(flow, frame.len, limits.flow_bytes) {
            return Err(DropReason::FlowFull);
        }
        self.outbound.push(now_ns, frame, flow, (size, chunks));
        let held = self.outbound.frames.flow_holds(flow);
        self.read_ahead.on_frame(now_ns, flow, chunks, held);
        self.metrics.frames_in += 1;
        self.metrics.frame_bytes_in += u64::from(frame.len);
        Ok(())
    }

    /// The next frame for the TUN.
    pub fn poll_deliver(&mut self) -> Option<Delivery<'_>> {
        if let Some(token) = self.reorder.outstanding() {
            self.delivered(self.clock_ns, token, DeliveryVerdict::Ok);
        }
        self.reorder.poll_deliver(&mut self.released)
    }

    /// The vNIC's verdict on a delivery, before the next `poll_deliver`. A delivery
    /// without verdict counts as taken.
    pub fn delivered(&mut self, now_ns: u64, token: DeliveryToken, verdict: DeliveryVerdict) {
        let (released, metrics) = (&mut self.released, &mut self.metrics);
        self.reorder
            .on_verdict(now_ns, token, verdict, released, metrics);
    }

    /// The next references that come back.
    pub fn poll_release(&mut self) -> Option<Release> {
        self.released.pop()
    }

    /// The next event. Those that are not polled are dropped, the oldest first.
    pub fn poll_event(&mut self) -> Option<TunnelEvent> {
        self.events.pop()
    }

    /// When to call [`TransportEngine::handle_timeout`], in nanoseconds of the caller's clock.
    pub fn poll_timeout(&self) -> Option<u64> {
        let paths = self.paths.iter();
        let paths = paths.filter_map(|(_, path)| path.deadline(&self.config));
        // No report can be sent before a path is alive.
        let report = self.reorder.report_deadline();
        let report = report.filter(|_| self.paths.any_alive());
        let deadlines = [
            paths.min(),
            self.outbound.deadline(),
            self.reorder.deadline(),
            report,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Does what has become due; cheap when nothing has. `poll_deliver` and
    /// `poll_transmit` give its results.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.clock_ns = now_ns;
        // What is out when the last path dies is not older for it.
        if self.paths.any_alive() {
            self.slowest_rtt_ns = self.paths.slowest_rtt_ns();
        }
        self.cut_off_ns = match self.paths.any_alive() {
            true => None,
            false => self.cut_off_ns.or(Some(now_ns)),
        };
        for index in 0..PathId::LIMIT {
            self.handle_path_timeout(now_ns, index);
        }
        if self.reorder.deadline().is_some_and(|at_ns| at_ns <= now_ns) {
            let limits = self.reorder_limits();
            self.reorder.handle_timeout(now_ns, &limits);
        }
        let lifetime_ns = self.frame_lifetime_ns();
        self.outbound
            .handle_timeout(now_ns, lifetime_ns, &mut self.released);
    }

    fn handle_path_timeout(&mut self, now_ns: u64, index: usize) {
        let Some(path) = self.paths.get_mut(index) else {
            return;
        };
        let timeout_ns = path.timeout_ns(&self.config);
        let timeout = (timeout_ns, self.config.rto);
        let outcome = path.handle_timers(now_ns, timeout, &mut self.lost);
        if outcome.probe_others {
            self.paths.probe_others(now_ns, index);
        }
        self.queue_lost(now_ns, index);
        if outcome.dead {
            self.stop_path(now_ns, index);
        }
        let alone = !self.paths.any_alive();
        let probe = self
            .paths
            .get_mut(index)
            .map(|path| path.probe_due(now_ns, timeout_ns, alone));
        match probe {
            Some(Ok(Some(size))) => self.control.push(Control::Probe {
                path: index as u8,
                size,
            }),
            Some(Err(_)) => self.stop_path(now_ns, index),
            Some(Ok(None)) | None => {}
        }
    }

    /// The tunnel's counters.
    pub fn metrics(&self) -> TunnelMetrics {
        let frames = &self.outbound.frames;
        let mut metrics = TunnelMetrics {
            frames_held: frames.held,
            frame_bytes_held: frames.held_bytes,
            drops: self.released.drops,
            ..self.metrics
        };
        self.reorder.add_metrics(&mut metrics);
        metrics
    }

    /// The path's counters; `None` if there is no such path.
    pub fn path_metrics(&self, id: PathId) -> Option<PathMetrics> {
        let path: &Path = self.paths.get(id.index())?;
        Some(path.metrics(&self.config))
    }

    /// What a loss that is repaired takes on the slowest path, a second one included: lost, missed,
    /// asked for and sent again.
    fn repair_ns(&self) -> u64 {
        4 * self.slowest_rtt_ns
    }

    fn frame_lifetime_ns(&self) -> u64 {
        self.config.frame_lifetime_ns.max(self.repair_ns())
    }

    fn reorder_limits(&self) -> ReorderLimits {
        let config = &self.config;
        ReorderLimits {
            chunks: config.limits.chunks,
            bytes: config.limits.chunk_bytes,
            timeout_ns: config.reorder_timeout_ns.max(self.repair_ns()),
            frame_lifetime_ns: self.frame_lifetime_ns(),
            only_first: self.short_of_memory,
        }
    }
}

#[cfg(test)]
mod tests;
