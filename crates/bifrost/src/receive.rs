// SPDX-License-Identifier: Apache-2.0

//! What comes in from the network. Nothing in a datagram is believed before it has
//! been checked against what this end knows; whatever is dropped has one name.

use std::net::SocketAddr;

use crate::engine::{Control, Engine};
use crate::metrics::PathState;
use crate::own::{control_place, probe_place};
use crate::path::Path;
use crate::refused::Refused;
use crate::reorder::Drops;
use crate::seal::Place;
use crate::transmit::micros;
use crate::types::{Event, Kept, PathId, Span};
use crate::virtio::{MIN_FRAME_LEN, is_safe};
use crate::window::{Arrival, WIDTH, expand};
use crate::wire::{
    Ack, DATA_HEADER_LEN, Data, Kind, Malformed, Prefix, Probe, Report, ReportKind, TAG_LEN,
    reports,
};

/// The engine's own datagrams that may wait to be sent; beyond, probes go unanswered.
const CONTROL_QUEUE: usize = 256;
/// Chunks of a batch after which an acknowledgement does not wait for its end: half of
/// what the bitmap covers, so that as many may be missing between them.
const IN_BATCH: u16 = (WIDTH / 2) as u16;
/// A round trip that took longer is not one.
const MAX_RTT_US: u32 = 5_000_000;
/// A frame that the vNIC dropped is sent again no more often than this.
const AGAIN_NS: u64 = 1_000_000;

impl From<Malformed> for Refused {
    fn from(_: Malformed) -> Refused {
        Refused::Malformed
    }
}

impl Engine {
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
    ) -> Result<Kept, Refused> {
        self.clock_ns = now_ns;
        let taken = self.take(now_ns, path, from, datagram, span);
        if let Err(reason) = taken {
            self.metrics.refused.add(reason, 1);
        }
        taken
    }

    fn take(
        &mut self,
        now_ns: u64,
        path: PathId,
        from: SocketAddr,
        datagram: &mut [u8],
        span: Span,
    ) -> Result<Kept, Refused> {
        let index = path.index();
        let known = self
            .paths
            .get(index)
            .and_then(Option::as_ref)
            .ok_or(Refused::Path)?;
        if known.config.peer != from {
            return Err(Refused::Address);
        }
        let prefix = Prefix::parse(datagram)?;
        if usize::from(prefix.path) != index {
            return Err(Refused::Path);
        }
        if (prefix.key != 0) != self.config.keys.sealed() {
            return Err(Refused::Key);
        }
        let taken = match prefix.kind {
            Kind::Data => self.on_data(now_ns, index, prefix, datagram, span),
            Kind::Ack => self.on_ack(now_ns, index, prefix, datagram),
            Kind::Reply => self.on_reply(now_ns, index, prefix, datagram),
            // Anybody's is answered: it is no sign of the peer.
            Kind::Probe => return self.on_probe(now_ns, index, prefix, datagram),
        };
        if taken.is_ok() {
            self.hear(now_ns);
        }
        taken
    }

    pub(crate) fn check_epoch(&self, prefix: &Prefix) -> Result<(), Refused> {
        if self.peer.is_none() || prefix.epoch != self.receive_epoch {
            return Err(Refused::Epoch);
        }
        Ok(())
    }

    /// Opens a datagram of the conversation; gives its bytes without the tag.
    fn open<'a>(
        &self,
        prefix: &Prefix,
        at: Place,
        datagram: &'a mut [u8],
    ) -> Result<&'a [u8], Refused> {
        if prefix.key == 0 {
            return Ok(datagram);
        }
        let opened = self
            .sealer
            .as_ref()
            .and_then(|sealer| sealer.open(prefix.key, at, datagram));
        match opened {
            None => Err(Refused::Key),
            Some(false) => Err(Refused::Forged),
            Some(true) => Ok(&datagram[..datagram.len() - TAG_LEN]),
        }
    }

    fn on_data(
        &mut self,
        now_ns: u64,
        index: usize,
        prefix: Prefix,
        datagram: &mut [u8],
        span: Span,
    ) -> Result<Kept, Refused> {
        self.check_epoch(&prefix)?;
        let path = self.paths[index].as_ref().ok_or(Refused::Path)?;
        let number = path.receiving.window.expand(prefix.number);
        match path.receiving.window.check(number) {
            Arrival::New => {}
            Arrival::Duplicate => return Err(Refused::Duplicate),
            Arrival::Old => return Err(Refused::Old),
        }
        let at = Place {
            epoch: prefix.epoch,
            path: prefix.path,
            number,
            clear: DATA_HEADER_LEN,
        };
        let wire_len = datagram.len() as u64;
        let datagram = self.open(&prefix, at, datagram)?;
        let data = Data::parse(prefix, datagram)?;
        let payload = &datagram[DATA_HEADER_LEN..];
        let len = data.chunk_len();
        let padded = data.chunks() > 1 && payload.len() == usize::from(data.size);
        if !(payload.len() == len || padded) || data.frame_len() < MIN_FRAME_LEN {
            return Err(Refused::Malformed);
        }
        let span = Span {
            offset: span.offset + DATA_HEADER_LEN as u32,
            len: len as u32,
            ..span
        };
        let safe = data.index() > 0 || is_safe(payload, data.frame_len());
        let taken = if safe {
            self.assemble(now_ns, &data, span)
        } else {
            Err(Refused::Virtio)
        };
        self.note_arrival(now_ns, index, number, &data, wire_len, taken);
        taken.map(|()| Kept::Held)
    }

    fn assemble(&mut self, now_ns: u64, data: &Data, span: Span) -> Result<(), Refused> {
        let bounds = self.bounds();
        let mut drops = Drops {
            counters: &mut self.metrics.refused,
            released: &mut self.released,
        };
        self.reorder.arrive(now_ns, data, span, &bounds, &mut drops)
    }

    /// Notes for the acknowledgement what has become of a packet. What should come
    /// again stays out of the bitmap.
    fn note_arrival(
        &mut self,
        now_ns: u64,
        index: usize,
        number: u64,
        data: &Data,
        wire_len: u64,
        taken: Result<(), Refused>,
    ) {
        let Some(path) = &mut self.paths[index] else {
            return;
        };
        if matches!(taken, Err(Refused::FlowWindow | Refused::MemoryCap)) {
            return;
        }
        path.receiving.note(now_ns, number, data.stamp_us);
        if taken.is_ok() {
            path.stats.received_chunks += 1;
            path.stats.received_bytes += wire_len;
            self.metrics.chunks_received += 1;
        } else {
            // The sender does not know that it had arrived.
            path.receiving.urgent = true;
        }
        self.acknowledge_in_batch(now_ns, index);
    }

    /// At the end of the caller's batch one acknowledgement speaks of all of it, unless the
    /// bitmap could run over before.
    pub(crate) fn acknowledge_in_batch(&mut self, now_ns: u64, index: usize) {
        let pending = self.paths[index]
            .as_ref()
            .map(|path| path.receiving.pending);
        if pending.is_some_and(|pending| pending >= IN_BATCH)
            && self.control.len() < CONTROL_QUEUE
            && let Some(state) = self.ack_state(now_ns, index)
        {
            self.control.push_back(Control::Ack(state));
        }
    }

    fn on_ack(
        &mut self,
        now_ns: u64,
        carrier: usize,
        prefix: Prefix,
        datagram: &mut [u8],
    ) -> Result<Kept, Refused> {
        self.check_epoch(&prefix)?;
        let number = {
            let path = self.paths[carrier].as_ref().ok_or(Refused::Path)?;
            path.receiving.expand_control(prefix.number)
        };
        let datagram = self.open(&prefix, control_place(&prefix, number), datagram)?;
        let (ack, rest) = Ack::parse(prefix, datagram)?;
        let of = usize::from(prefix.extra);
        let path = self
            .paths
            .get(of)
            .and_then(Option::as_ref)
            .ok_or(Refused::Malformed)?;
        let next = path.sending.next();
        let largest = expand(next - 1, ack.largest);
        if largest >= next {
            return Err(Refused::Malformed);
        }
        let path = self.paths[carrier].as_mut().ok_or(Refused::Path)?;
        let newest = path.receiving.note_control(number);
        path.stats.acks_received += 1;
        if newest {
            for report in reports(rest) {
                self.on_report(now_ns, report);
            }
        }
        self.on_bitmap(now_ns, of, largest, &ack, newest && of == carrier);
        self.forget_delivered();
        Ok(Kept::Done)
    }

    fn on_report(&mut self, now_ns: u64, report: Report) {
        let Report { flow, sequence, .. } = report;
        match report.kind {
            ReportKind::Delivered => {
                while let Some(at) = self.frames.first_delivered(flow, sequence) {
                    self.pending_bytes = self.pending_bytes.saturating_sub(self.unsent(at));
                    match self.frames.remove(at) {
                        Some(release) => self.released.push(release),
                        None => break,
                    }
                }
            }
            ReportKind::Gap => {
                let Some(at) = self.frames.find(flow, sequence) else {
                    return;
                };
                let Some(frame) = self.frames.get_mut(at) else {
                    return;
                };
                // What is not complete is being sent again already.
                if frame.is_complete() && now_ns >= frame.again_ns + AGAIN_NS {
                    frame.again_ns = now_ns;
                    self.send_whole(at);
                }
            }
        }
    }

    /// Nobody has to wake up for frames that lingered and are gone.
    fn forget_delivered(&mut self) {
        while let Some((_, at)) = self.lingering.front()
            && self.frames.get(*at).is_none()
        {
            self.lingering.pop_front();
        }
    }

    fn on_bitmap(&mut self, now_ns: u64, of: usize, largest: u64, ack: &Ack, timed: bool) {
        let Some(path) = &mut self.paths[of] else {
            return;
        };
        let ahead = path.sending.ahead_of(largest);
        let progress = path
            .sending
            .acknowledge(now_ns, largest, &ack.bits, &mut self.acked);
        let sample_ns = timed
            .then(|| round_trip_ns(now_ns, ack))
            .flatten()
            .filter(|_| progress.chunks > 0);
        if let Some(sample_ns) = sample_ns {
            path.rtt.sample(now_ns, sample_ns);
        }
        if progress.chunks > 0 {
            path.note_progress(now_ns);
            path.stats.acked_chunks += u64::from(progress.chunks);
            path.stats.spurious += u64::from(progress.spurious);
        }
        path.sending.lose_overtaken(now_ns, &mut self.lost);
        path.stats.lost_by_gap += self.lost.len() as u64;
        path.congestion.on_ack(
            now_ns,
            &mut path.rtt,
            sample_ns,
            (progress.chunks, progress.bytes),
            ahead,
            self.config.queue_target_ns,
        );
        let acked = std::mem::take(&mut self.acked);
        for run in &acked {
            if self.frames.acknowledge(run.frame, run.chunks) {
                self.lingering.push_back((now_ns, run.frame));
            }
        }
        self.acked = acked;
        self.acked.clear();
        self.queue_lost(now_ns, of);
    }

    fn open_greeting(&mut self, prefix: &Prefix, datagram: &mut [u8]) -> Result<Probe, Refused> {
        if prefix.key != 0 {
            let instance = Probe::instance_of(datagram)?;
            let at = probe_place(prefix);
            match self.greeter.open(prefix.key, instance, at, datagram) {
                None => return Err(Refused::Key),
                Some(false) => return Err(Refused::Forged),
                Some(true) => {}
            }
        }
        let probe = Probe::parse(*prefix, datagram)?;
        // One's own probes, sent back, or those of an instance that is gone.
        if probe.instance == self.instance || self.is_former(probe.instance) {
            return Err(Refused::Epoch);
        }
        Ok(probe)
    }

    fn on_probe(
        &mut self,
        now_ns: u64,
        index: usize,
        prefix: Prefix,
        datagram: &mut [u8],
    ) -> Result<Kept, Refused> {
        let probe = self.open_greeting(&prefix, datagram)?;
        if self.control.len() >= CONTROL_QUEUE {
            return Err(Refused::Flood);
        }
        let known = self.peer == Some(probe.instance);
        if self.peer.is_none() && probe.peer == self.instance {
            // Only who has heard of this instance can know its number.
            self.begin_conversation(now_ns, probe.instance);
        } else if !known {
            // It may have gone since it sent this: an answer tells that it has not. Its
            // own answer goes behind, so that it proves itself before it sends data.
            let path = self.paths[index].as_mut();
            if let Some(size) = path.and_then(|path| path.challenge(now_ns)) {
                let path = index as u8;
                self.control.push_back(Control::Probe { path, size });
            }
        }
        if self.peer == Some(probe.instance) {
            self.peer_room = probe.room.at_least_a_frame();
        }
        if let Some(path) = &mut self.paths[index] {
            path.receiving.say_again(now_ns);
        }
        self.control.push_back(Control::Reply {
            path: index as u8,
            peer: probe.instance,
            stamp_us: probe.stamp_us,
            size: probe.size,
        });
        Ok(Kept::Done)
    }

    fn on_reply(
        &mut self,
        now_ns: u64,
        index: usize,
        prefix: Prefix,
        datagram: &mut [u8],
    ) -> Result<Kept, Refused> {
        let probe = self.open_greeting(&prefix, datagram)?;
        if probe.peer != self.instance {
            return Err(Refused::Epoch);
        }
        let age_us = micros(now_ns).wrapping_sub(probe.stamp_us);
        if age_us > MAX_RTT_US {
            return Err(Refused::Old);
        }
        let age_ns = u64::from(age_us) * 1000;
        if self.peer != Some(probe.instance) {
            if !self.is_later(now_ns.saturating_sub(age_ns)) {
                return Err(Refused::Epoch);
            }
            self.begin_conversation(now_ns, probe.instance);
            // Before any data: this probe tells the peer that we know its instance.
            if let Some(path) = &mut self.paths[index] {
                self.control.push_front(Control::Probe {
                    path: index as u8,
                    size: path.mtu,
                });
            }
        }
        self.peer_room = probe.room.at_least_a_frame();
        let Some(path) = &mut self.paths[index] else {
            return Err(Refused::Path);
        };
        if path.state == PathState::Down {
            return Ok(Kept::Done);
        }
        let change = path.on_reply(now_ns, age_ns, probe.stamp_us, probe.size);
        if !change.fresh {
            return Err(Refused::Duplicate);
        }
        path.stats.replies_received += 1;
        path.rtt.sample(now_ns, u64::from(age_us.max(1)) * 1000);
        // The stamp is rounded: what left in the same microsecond came after the probe.
        let probe_ns = now_ns.saturating_sub(age_ns + 2000);
        path.sending.answered(now_ns, probe_ns);
        if change.revived {
            path.revive(&self.config);
            self.event(Event::PathAlive(PathId(index as u8)));
        }
        if let Some(mtu) = change.mtu {
            self.event(Event::PathMtu(PathId(index as u8), mtu));
            self.note_chunk_room(now_ns);
        }
        Ok(Kept::Done)
    }
}

/// The time between sending the packet that `ack` echoes and now, without the time
/// that the peer waited.
fn round_trip_ns(now_ns: u64, ack: &Ack) -> Option<u64> {
    let since_us = micros(now_ns).wrapping_sub(ack.echo_us);
    let rtt_us = since_us.checked_sub(ack.delay_us)?;
    (rtt_us <= MAX_RTT_US).then(|| u64::from(rtt_us.max(1)) * 1000)
}

impl Path {
    /// The path carries traffic again: its window is learnt anew.
    fn revive(&mut self, config: &crate::config::Config) {
        self.congestion = crate::congestion::Congestion::new(self.mtu, config.limits.path_window);
    }
}
