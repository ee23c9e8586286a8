// SPDX-License-Identifier: Apache-2.0

//! What comes from the network. Nothing in a datagram is believed before it has
//! been checked against what this end knows; each drop has one name.

use std::net::SocketAddr;

use super::TransportEngine;
use crate::control::Control;
use crate::drop_reason::DropReason;
use crate::events::TunnelEvent;
use crate::gro::{first_of_run, run_length};
use crate::path::{Arrival, MAX_RTT_US, WIDTH, expand};
use crate::seal::AeadInput;
use crate::types::{PathId, SlotReference, Span};
use crate::virtio::{MIN_FRAME_LEN, is_safe};
use crate::wire::{
    AckHeader, CommonHeader, DATA_HEADER_LEN, DataHeader, FlowReport, FlowReportKind, PacketKind,
    ProbeHeader, other_version, reports, stamp_us,
};

/// Chunks of a batch after which an acknowledgement does not wait for its end: half of
/// what the bitmap covers, so that as many may be missing between them.
const IN_BATCH: u16 = (WIDTH / 2) as u16;

impl TransportEngine {
    /// Takes datagrams that came in together, as GRO merges them: `bytes` holds them one after
    /// the other, all of `segment` bytes (at least 1) but for the last, which may have fewer.
    /// `span` is where they lie, all in one slot. Gives how many references to the slot are
    /// taken. What is dropped is counted; otherwise as [`TransportEngine::handle_datagram`].
    pub fn handle_datagrams(
        &mut self,
        now_ns: u64,
        path: PathId,
        from: SocketAddr,
        (bytes, segment): (&mut [u8], usize),
        span: Span,
    ) -> u32 {
        self.clock_ns = now_ns;
        let segment = segment.max(1);
        let (mut taken, mut begin) = (0, 0);
        while begin < bytes.len() {
            let rest = &mut bytes[begin..];
            let at = |begin: usize, len: usize| Span {
                slot: span.slot,
                offset: span.offset + begin as u32,
                len: len as u32,
            };
            let first = self.first_of_run(path, from, &rest[..segment.min(rest.len())]);
            let count = first.map_or(1, |data| run_length(rest, segment, &data));
            let len = rest.len().min(usize::from(count) * segment);
            let together = first.filter(|_| count > 1).is_some_and(|data| {
                self.take_run(now_ns, path, (&data, count), segment, at(begin, len))
            });
            if together {
                taken += u32::from(count);
            } else {
                for (nth, datagram) in rest[..len].chunks_mut(segment).enumerate() {
                    let span = at(begin + nth * segment, datagram.len());
                    let reference = self.handle_datagram(now_ns, path, from, datagram, span);
                    taken += u32::from(reference == Ok(SlotReference::Taken));
                }
            }
            begin += len;
        }
        taken
    }

    /// The header of a chunk that others of its frame may follow, if nothing about it is
    /// special: it is of this session, in clear, and newer than all before.
    fn first_of_run(&self, id: PathId, from: SocketAddr, datagram: &[u8]) -> Option<DataHeader> {
        if self.session.is_sealed() {
            return None;
        }
        let path = self.paths.get(id.index())?;
        let window = &path.acks.window;
        first_of_run(datagram, |header| {
            path.config.peer == from
                && usize::from(header.path) == id.index()
                && self.session.check_epoch(header).is_ok()
                && window.expand(header.number) > window.largest()
        })
    }

    /// Takes a run of datagrams of `segment` bytes that begins at `span`; or none of them.
    fn take_run(
        &mut self,
        now_ns: u64,
        path: PathId,
        (data, count): (&DataHeader, u8),
        segment: usize,
        span: Span,
    ) -> bool {
        let piece = Span {
            offset: span.offset + DATA_HEADER_LEN as u32,
            ..span
        };
        if self
            .assemble(now_ns, data, (count, segment as u32), piece)
            .is_err()
        {
            return false;
        }
        if let Some(path) = self.paths.get_mut(path.index()) {
            let number = path.acks.window.expand(data.common.number);
            path.acks.note_run(now_ns, number, count, data.stamp_us);
            path.count_received(count.into(), span.len.into());
            self.metrics.chunks_received += u64::from(count);
        }
        self.acknowledge_in_batch(now_ns, path.index());
        self.paths.on_peer_datagram(now_ns);
        true
    }

    fn assemble(
        &mut self,
        now_ns: u64,
        data: &DataHeader,
        run: (u8, u32),
        span: Span,
    ) -> Result<(), DropReason> {
        let (limits, released) = (self.reorder_limits(), &mut self.released);
        self.reorder
            .arrive(now_ns, data, run, span, &limits, released)
    }

    /// Takes one datagram (of a GRO batch: one segment) that came in on `path` from
    /// `from`. `datagram` are its bytes, which are decrypted in place where there are
    /// keys; `span` is where they lie.
    ///
    /// # Errors
    /// The datagram is dropped and counted; the slot is the caller's.
    pub fn handle_datagram(
        &mut self,
        now_ns: u64,
        path: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        span: Span,
    ) -> Result<SlotReference, DropReason> {
        self.clock_ns = now_ns;
        let taken = self.take_datagram(now_ns, path.index(), from, datagram, span);
        if let Err(reason) = taken {
            self.released.drops.add(reason, 1);
        }
        taken
    }

    fn take_datagram(
        &mut self,
        now_ns: u64,
        index: usize,
        from: SocketAddr,
        datagram: &mut [u8],
        span: Span,
    ) -> Result<SlotReference, DropReason> {
        let path = self.paths.get(index).ok_or(DropReason::Path)?;
        if path.config.peer != from {
            return Err(DropReason::Address);
        }
        if let Some(version) = other_version(datagram) {
            if self.session.note_version(version) {
                self.events.push(TunnelEvent::PeerVersion(version));
            }
            return Err(DropReason::Version);
        }
        let header = CommonHeader::parse(datagram)?;
        if usize::from(header.path) != index {
            return Err(DropReason::Path);
        }
        if (header.key != 0) != self.session.is_sealed() {
            return Err(DropReason::Key);
        }
        let reference = match header.kind {
            PacketKind::Data => {
                self.on_data(now_ns, index, header, datagram, span)?;
                SlotReference::Taken
            }
            PacketKind::Ack => {
                self.on_ack(now_ns, index, header, datagram)?;
                SlotReference::NotTaken
            }
            PacketKind::Reply => {
                self.on_reply(now_ns, index, header, datagram)?;
                SlotReference::NotTaken
            }
            PacketKind::Probe => {
                // Each is answered, from any sender: it does not show that the peer is awake.
                self.on_probe(now_ns, index, header, datagram)?;
                return Ok(SlotReference::NotTaken);
            }
        };
        self.paths.on_peer_datagram(now_ns);
        Ok(reference)
    }

    fn on_data(
        &mut self,
        now_ns: u64,
        index: usize,
        header: CommonHeader,
        datagram: &mut [u8],
        span: Span,
    ) -> Result<(), DropReason> {
        self.session.check_epoch(&header)?;
        let path = self.paths.get(index).ok_or(DropReason::Path)?;
        let number = path.acks.window.expand(header.number);
        match path.acks.window.check(number) {
            Arrival::New => {}
            Arrival::Duplicate => return Err(DropReason::Duplicate),
            Arrival::Old => return Err(DropReason::Old),
        }
        let wire_len = datagram.len() as u64;
        let input = AeadInput::data(&header, number);
        let datagram = self.session.open(&header, input, datagram)?;
        let data = DataHeader::parse(header, datagram)?;
        let payload = &datagram[DATA_HEADER_LEN..];
        let len = data.chunk_len();
        let padded = data.chunks() > 1 && payload.len() == usize::from(data.size);
        if !(payload.len() == len || padded) || data.frame_len() < MIN_FRAME_LEN {
            return Err(DropReason::Malformed);
        }
        let span = Span {
            offset: span.offset + DATA_HEADER_LEN as u32,
            len: len as u32,
            ..span
        };
        let safe = data.index() > 0 || is_safe(payload, data.frame_len());
        let taken = if safe {
            self.assemble(now_ns, &data, (1, 0), span)
        } else {
            Err(DropReason::Virtio)
        };
        self.note_arrival(now_ns, index, number, &data, wire_len, taken);
        taken
    }

    /// Notes for the acknowledgement what has become of a packet. What should come
    /// again stays out of the bitmap.
    fn note_arrival(
        &mut self,
        now_ns: u64,
        index: usize,
        number: u64,
        data: &DataHeader,
        wire_len: u64,
        taken: Result<(), DropReason>,
    ) {
        let Some(path) = self.paths.get_mut(index) else {
            return;
        };
        if matches!(taken, Err(DropReason::FlowWindow | DropReason::MemoryCap)) {
            return;
        }
        path.acks.note(now_ns, number, data.stamp_us);
        if taken.is_ok() {
            path.count_received(1, wire_len);
            self.metrics.chunks_received += 1;
        } else {
            // The sender does not know that it had arrived.
            path.acks.urgent = true;
        }
        self.acknowledge_in_batch(now_ns, index);
    }

    /// At the end of the caller's batch one acknowledgement speaks of all of it, unless the
    /// bitmap could run over before.
    fn acknowledge_in_batch(&mut self, now_ns: u64, index: usize) {
        let path = self.paths.get(index);
        if path.is_some_and(|path| path.acks.pending >= IN_BATCH)
            && !self.control.is_full()
            && let Some(state) = self.take_ack(now_ns, index)
        {
            self.control.push(Control::Ack(state));
        }
    }

    fn on_ack(
        &mut self,
        now_ns: u64,
        carrier: usize,
        header: CommonHeader,
        datagram: &mut [u8],
    ) -> Result<(), DropReason> {
        self.session.check_epoch(&header)?;
        let path = self.paths.get(carrier).ok_or(DropReason::Path)?;
        let number = path.acks.expand_control(header.number);
        let input = AeadInput::ack(&header, number);
        let datagram = self.session.open(&header, input, datagram)?;
        let (ack, rest) = AckHeader::parse(header, datagram)?;
        let of = usize::from(header.extra);
        let path = self.paths.get(of).ok_or(DropReason::Malformed)?;
        let next = path.next_number();
        let largest = expand(next - 1, ack.largest);
        if largest >= next {
            // A new acknowledgement of this session for what this end has not sent, as far as it
            // knows: its memory is an earlier one, of a snapshot. A recorded one of long ago, when
            // numbers of 32 bits were others, is none.
            let carrier_path = self.paths.get(carrier);
            if carrier_path.is_some_and(|path| path.acks.is_newest_control(number)) {
                self.begin_as_another(now_ns, carrier, largest);
            }
            return Err(DropReason::Malformed);
        }
        let path = self.paths.get_mut(carrier).ok_or(DropReason::Path)?;
        let newest = path.acks.note_control(number);
        path.stats.acks_received += 1;
        if newest {
            for report in reports(rest) {
                self.on_report(now_ns, report);
            }
        }
        if let Some(path) = self.paths.get_mut(of) {
            let target_ns = self.config.queue_target_ns;
            let timed = newest && of == carrier;
            let outcome = (&mut self.acked, &mut self.lost);
            path.on_ack(now_ns, (largest, &ack), timed, target_ns, outcome);
            let held_ns = self.repair_ns();
            self.outbound.on_acked(now_ns, held_ns, &self.acked);
            self.acked.clear();
            self.queue_lost(now_ns, of);
        }
        self.outbound.forget_delivered();
        Ok(())
    }

    fn on_report(&mut self, now_ns: u64, report: FlowReport) {
        let FlowReport { flow, sequence, .. } = report;
        match report.kind {
            FlowReportKind::Delivered => {
                self.outbound
                    .on_delivered(flow, sequence, &mut self.released);
            }
            FlowReportKind::Gap => {
                let all = self.outbound.on_guest_drop(now_ns, flow, sequence);
                self.metrics.frames_retransmitted += u64::from(all);
            }
        }
    }

    fn on_probe(
        &mut self,
        now_ns: u64,
        index: usize,
        header: CommonHeader,
        datagram: &mut [u8],
    ) -> Result<(), DropReason> {
        // Before it costs anything: it could not be answered.
        if self.control.is_full() {
            return Err(DropReason::Flood);
        }
        let probe = self.session.open_probe(now_ns, &header, datagram)?;
        let known = self.session.is_with(probe.instance);
        if !self.session.is_established() && probe.peer == self.session.instance() {
            // Only a peer that has received of this instance can know its number.
            self.meet_peer(now_ns, probe.instance);
        } else if !known {
            // It may have gone since it sent this: an answer shows that it has not. Its
            // own answer goes behind, so that it proves itself before it sends data.
            let path = self.paths.get_mut(index);
            if let Some(size) = path.and_then(|path| path.challenge(now_ns)) {
                let path = index as u8;
                self.control.push(Control::Probe { path, size });
            }
        }
        if self.session.is_with(probe.instance) {
            self.note_peer(&probe);
        }
        if let Some(path) = self.paths.get_mut(index) {
            path.acks.repeat(now_ns);
        }
        self.control.push(Control::Reply {
            path: index as u8,
            peer: probe.instance,
            stamp_us: probe.stamp_us,
            size: probe.size,
        });
        Ok(())
    }

    fn on_reply(
        &mut self,
        now_ns: u64,
        index: usize,
        header: CommonHeader,
        datagram: &mut [u8],
    ) -> Result<(), DropReason> {
        let probe = self.session.open_probe(now_ns, &header, datagram)?;
        if probe.peer != self.session.instance() {
            return Err(DropReason::Epoch);
        }
        let age_us = stamp_us(now_ns).wrapping_sub(probe.stamp_us);
        let path = self.paths.get_mut(index).ok_or(DropReason::Path)?;
        if age_us > MAX_RTT_US || !path.take_answered(now_ns, age_us) {
            return Err(DropReason::Old);
        }
        if !self.session.is_with(probe.instance) {
            let probe_ns = now_ns.saturating_sub(u64::from(age_us) * 1000);
            if !self.session.is_later(probe_ns) {
                return Err(DropReason::Epoch);
            }
            self.meet_peer(now_ns, probe.instance);
            self.probe_before_data(index);
        }
        self.note_peer(&probe);
        let path = self.paths.get_mut(index).ok_or(DropReason::Path)?;
        let outcome = path.on_reply(now_ns, age_us, probe.size, &self.config);
        if !outcome.fresh {
            return Err(DropReason::Duplicate);
        }
        let id = PathId(index as u8);
        if outcome.revived {
            self.events.push(TunnelEvent::PathAlive(id));
        }
        if let Some(mtu) = outcome.mtu {
            self.events.push(TunnelEvent::PathMtu(id, mtu));
            self.update_max_chunk(now_ns);
        }
        if self.paths.loses_all(index) {
            self.events.push(TunnelEvent::PathLosesData(id));
            self.stop_path(now_ns, index);
            if let Some(path) = self.paths.get_mut(index) {
                path.leave_alone(now_ns);
            }
        }
        Ok(())
    }

    /// What the peer says of itself.
    fn note_peer(&mut self, probe: &ProbeHeader) {
        self.session.credit = probe.credit.at_least_a_frame();
        let merges = Some(probe.merges_udp);
        if std::mem::replace(&mut self.session.peer_merges_udp, merges) != merges {
            self.events
                .push(TunnelEvent::PeerMergesUdp(probe.merges_udp));
        }
    }

    /// Before any data: this probe shows the peer that we know its instance.
    fn probe_before_data(&mut self, index: usize) {
        if let Some(path) = self.paths.get(index) {
            self.control.push_front(Control::Probe {
                path: index as u8,
                size: path.mtu(),
            });
        }
    }

    /// This end was set back, as an acknowledgement on path `index` of packet `number` shows.
    fn begin_as_another(&mut self, now_ns: u64, index: usize, number: u64) {
        self.events.push(TunnelEvent::SetBack);
        self.session.become_another(number);
        self.begin_session(now_ns, self.session.peer());
        self.probe_before_data(index);
    }

    /// The peer has proved to be `instance`, which it was not until now.
    fn meet_peer(&mut self, now_ns: u64, instance: u64) {
        let restarted = self.begin_session(now_ns, instance);
        self.events.push(match restarted {
            true => TunnelEvent::PeerRestarted,
            false => TunnelEvent::PeerUp,
        });
    }

    /// Everything begins again; says whether there was a session before.
    fn begin_session(&mut self, now_ns: u64, instance: u64) -> bool {
        let restarted = self.session.begin(now_ns, instance);
        self.outbound.clear(&mut self.released);
        self.reorder.clear(&mut self.released);
        self.control.drop_acks();
        self.paths.begin_session(now_ns, &self.config);
        self.metrics.sessions += 1;
        restarted
    }
}
