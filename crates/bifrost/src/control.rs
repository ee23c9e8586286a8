// SPDX-License-Identifier: Apache-2.0

//! Control datagrams: probes, replies to them, and acknowledgements.

use std::collections::VecDeque;

use crate::batch::Transmit;
use crate::config::TransportConfig;
use crate::path::{Path, PendingAcks};
use crate::path_table::PathTable;
use crate::reorder::Reorder;
use crate::seal::AeadInput;
use crate::session::Session;
use crate::wire::{
    ACK_LEN, AckHeader, CommonHeader, MAX_REPORTS, PacketKind, ProbeHeader, REPORT_LEN, stamp_us,
};

/// Control datagrams that may wait to be sent; beyond, probes go unanswered.
const MAX_QUEUED: usize = 256;

/// A control datagram that waits to be sent.
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
    largest: u64,
    bits: [u64; 4],
    echo_us: u32,
    delay_us: u32,
}

impl AckState {
    /// What is to be said of path `of` now.
    pub(crate) fn of(now_ns: u64, of: u8, acks: &PendingAcks) -> AckState {
        let (echo_us, delay_us) = acks.echo(now_ns);
        AckState {
            of,
            largest: acks.window.largest(),
            bits: acks.window.bits(),
            echo_us,
            delay_us,
        }
    }
}

/// Control datagrams that wait to be sent.
#[derive(Debug, Default)]
pub(crate) struct ControlQueue(VecDeque<Control>);

impl ControlQueue {
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= MAX_QUEUED
    }

    pub(crate) fn push(&mut self, control: Control) {
        self.0.push_back(control);
    }

    pub(crate) fn push_front(&mut self, control: Control) {
        self.0.push_front(control);
    }

    pub(crate) fn pop(&mut self) -> Option<Control> {
        self.0.pop_front()
    }

    /// Drops acknowledgements of a session that ends.
    pub(crate) fn drop_acks(&mut self) {
        self.0.retain(|control| !matches!(control, Control::Ack(_)));
    }
}

/// Puts control datagrams together.
pub(crate) struct ControlWriter<'a> {
    pub now_ns: u64,
    pub session: &'a Session,
    pub paths: &'a mut PathTable,
    pub reorder: &'a mut Reorder,
    pub config: &'a TransportConfig,
}

impl ControlWriter<'_> {
    /// Makes the batch of a control datagram. Whether it can be sent.
    pub(crate) fn write(&mut self, control: Control, out: &mut Transmit) -> bool {
        let index = match control {
            Control::Ack(state) => match self.paths.carrier(state.of.into()) {
                Some(carrier) => {
                    self.append_ack(state, carrier, &mut out.headers);
                    carrier
                }
                None => return false,
            },
            Control::Probe { path, size } => {
                let stamp = (self.session.peer(), stamp_us(self.now_ns));
                self.write_probe(PacketKind::Probe, path, stamp, size, &mut out.headers);
                path.into()
            }
            Control::Reply {
                path,
                peer,
                stamp_us,
                size,
            } => {
                let stamp = (peer, stamp_us);
                self.write_probe(PacketKind::Reply, path, stamp, size, &mut out.headers);
                path.into()
            }
        };
        if out.headers.is_empty() {
            return false;
        }
        out.set_control(index);
        true
    }

    /// A probe of `size` bytes with IP header, or a reply to one.
    fn write_probe(
        &mut self,
        kind: PacketKind,
        index: u8,
        (peer, stamp_us): (u64, u32),
        size: u16,
        out: &mut Vec<u8>,
    ) {
        let session = self.session;
        let Some(path) = self.paths.get_mut(index.into()) else {
            return;
        };
        let number = path.take_probe_number();
        let probe = ProbeHeader {
            common: CommonHeader {
                kind,
                path: index,
                key: session.key_id(),
                extra: 0,
                epoch: (number >> 32) as u32,
                number: number as u32,
            },
            instance: session.instance(),
            peer,
            stamp_us,
            size,
            merges_udp: self.config.merges_udp,
            credit: self.config.limits.credit(),
        };
        probe.write(out);
        let tag = session.tag_len();
        if kind == PacketKind::Probe {
            path.on_probe_sent(self.now_ns);
            let len = usize::from(size).saturating_sub(path.config.ip_overhead().into());
            let len = len.saturating_sub(tag);
            out.resize(len.max(out.len()), 0);
        }
        if tag > 0 {
            out.resize(out.len() + tag, 0);
            session.seal_probe(&probe.common, out);
        }
    }

    /// Bytes that an acknowledgement would have now; `None`: more reports are due than
    /// fit in one.
    pub(crate) fn ack_len(&self) -> Option<usize> {
        let reports = self.reorder.reports_due(self.now_ns);
        let len = ACK_LEN + reports * REPORT_LEN + self.session.tag_len();
        (reports <= MAX_REPORTS).then_some(len)
    }

    /// Appends an acknowledgement that travels on path `carrier`. Gives its length.
    pub(crate) fn append_ack(
        &mut self,
        state: AckState,
        carrier: usize,
        out: &mut Vec<u8>,
    ) -> usize {
        let session = self.session;
        let begin = out.len();
        let Some(path) = self.paths.get_mut(carrier) else {
            return 0;
        };
        let number = path.take_control_number();
        path.stats.acks_sent += 1;
        let ack = AckHeader {
            common: CommonHeader {
                kind: PacketKind::Ack,
                path: carrier as u8,
                key: session.key_id(),
                extra: state.of,
                epoch: session.send_epoch(),
                number: number as u32,
            },
            largest: state.largest as u32,
            echo_us: state.echo_us,
            delay_us: state.delay_us,
            bits: state.bits,
        };
        ack.write(out);
        for _ in 0..MAX_REPORTS {
            match self.reorder.next_report(self.now_ns) {
                Some(report) => report.write(out),
                None => break,
            }
        }
        let tag = session.tag_len();
        if tag > 0 {
            out.resize(out.len() + tag, 0);
            session.seal(AeadInput::ack(&ack.common, number), &mut out[begin..]);
        }
        out.len() - begin
    }

    /// The path of which an acknowledgement is to be sent now: one where that is `due`, or
    /// any that is alive where a frame that the vNIC dropped is to be reported.
    pub(crate) fn path_to_acknowledge(
        &self,
        due: impl Fn(&PendingAcks, &TransportConfig) -> bool,
    ) -> Option<usize> {
        let is_due = |path: &Path| due(&path.acks, self.config);
        let path = self.paths.iter().find(|(_, path)| is_due(path));
        let report_ns = self.reorder.report_deadline();
        let report_due = || report_ns.is_some_and(|at_ns| at_ns <= self.now_ns);
        let any = || self.paths.alive().next().filter(|_| report_due());
        path.or_else(any).map(|(index, _)| index)
    }
}
