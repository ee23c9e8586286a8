// SPDX-License-Identifier: Apache-2.0

//! The engine's own datagrams: probes, replies to them, and acknowledgements.

use crate::config::Config;
use crate::engine::{AckState, Control, Engine};
use crate::path::{Path, Receiving};
use crate::seal::{CONTROL, Place};
use crate::transmit::micros;
use crate::types::Transmit;
use crate::wire::{
    Ack, Kind, MAX_REPORTS, PREFIX_LEN, PROBE_CLEAR_LEN, Prefix, Probe, Report, ReportKind, Room,
};

impl Engine {
    pub(crate) fn send_control(&mut self, now_ns: u64, out: &mut Transmit) -> bool {
        while let Some(control) = self.control.pop_front() {
            let sent = match control {
                Control::Ack(state) => self.write_ack(now_ns, state, out),
                Control::Probe { path, size } => {
                    let peer = self.peer.unwrap_or(0);
                    self.write_probe(Kind::Probe, path, peer, micros(now_ns), size, out)
                }
                Control::Reply {
                    path,
                    peer,
                    stamp_us,
                    size,
                } => self.write_probe(Kind::Reply, path, peer, stamp_us, size, out),
            };
            if sent {
                return true;
            }
        }
        false
    }

    /// A probe of `size` bytes with IP header, or a reply to one.
    fn write_probe(
        &mut self,
        kind: Kind,
        index: u8,
        peer: u64,
        stamp_us: u32,
        size: u16,
        out: &mut Transmit,
    ) -> bool {
        let (tag, key) = (self.tag_len(), self.key_id());
        let instance = self.instance;
        let Some(path) = &mut self.paths[usize::from(index)] else {
            return false;
        };
        let number = path.probe;
        path.probe += 1;
        let probe = Probe {
            prefix: Prefix {
                kind,
                path: index,
                key,
                extra: 0,
                epoch: (number >> 32) as u32,
                number: number as u32,
            },
            instance,
            peer,
            stamp_us,
            size,
            room: Room::of(&self.config.limits),
        };
        probe.write(&mut out.headers);
        if kind == Kind::Probe {
            path.stats.probes_sent += 1;
            let len = usize::from(size).saturating_sub(path.config.ip_overhead().into());
            let len = len.saturating_sub(tag);
            out.headers.resize(len.max(out.headers.len()), 0);
        }
        if tag > 0 {
            out.headers.resize(out.headers.len() + tag, 0);
            self.greeter
                .seal(probe_place(&probe.prefix), &mut out.headers);
        }
        out.set_own(usize::from(index));
        true
    }

    /// An acknowledgement that is due on some path.
    pub(crate) fn send_ack(
        &mut self,
        now_ns: u64,
        out: &mut Transmit,
        due: impl Fn(&Receiving, &Config) -> bool,
    ) -> bool {
        if self.peer.is_none() {
            return false;
        }
        let due = |path: &Option<Path>| {
            path.as_ref()
                .is_some_and(|path| due(&path.receiving, &self.config))
        };
        let gap_due = self
            .reorder
            .refusal_deadline()
            .is_some_and(|at_ns| at_ns <= now_ns);
        let any = || {
            self.paths
                .iter()
                .position(|path| path.as_ref().is_some_and(Path::is_alive))
        };
        let index = self
            .paths
            .iter()
            .position(due)
            .or_else(|| gap_due.then(any)?);
        let Some(state) = index.and_then(|index| self.ack_state(now_ns, index)) else {
            return false;
        };
        self.write_ack(now_ns, state, out)
    }

    /// What is to be said of a path now; it counts as said.
    pub(crate) fn ack_state(&mut self, now_ns: u64, index: usize) -> Option<AckState> {
        let path = self.paths[index].as_mut()?;
        let (echo_us, delay_us) = path.receiving.echo(now_ns);
        path.receiving.acknowledged(now_ns, &self.config);
        Some(AckState {
            of: index as u8,
            largest: path.receiving.window.largest(),
            bits: path.receiving.window.bits(),
            echo_us,
            delay_us,
        })
    }

    fn write_ack(&mut self, now_ns: u64, state: AckState, out: &mut Transmit) -> bool {
        let Some(carrier) = self.carrier(state.of) else {
            return false;
        };
        self.write_ack_on(now_ns, carrier, state, &mut out.headers);
        if out.headers.is_empty() {
            return false;
        }
        out.set_own(carrier);
        true
    }

    /// Appends an acknowledgement that travels on path `carrier`.
    pub(crate) fn write_ack_on(
        &mut self,
        now_ns: u64,
        carrier: usize,
        state: AckState,
        out: &mut Vec<u8>,
    ) {
        let (tag, key, epoch) = (self.tag_len(), self.key_id(), self.send_epoch);
        let Some(path) = &mut self.paths[carrier] else {
            return;
        };
        let number = path.control;
        path.control += 1;
        path.stats.acks_sent += 1;
        let ack = Ack {
            prefix: Prefix {
                kind: Kind::Ack,
                path: carrier as u8,
                key,
                extra: state.of,
                epoch,
                number: number as u32,
            },
            largest: state.largest as u32,
            echo_us: state.echo_us,
            delay_us: state.delay_us,
            bits: state.bits,
        };
        let begin = out.len();
        ack.write(out);
        self.write_reports(now_ns, out);
        if tag > 0 {
            out.resize(out.len() + tag, 0);
            if let Some(sealer) = &self.sealer {
                sealer.seal(control_place(&ack.prefix, number), &mut out[begin..]);
            }
        }
    }

    fn write_reports(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        for _ in 0..MAX_REPORTS {
            let (kind, (flow, sequence)) = if let Some(gap) = self.reorder.next_refusal(now_ns) {
                (ReportKind::Gap, gap)
            } else if let Some(watermark) = self.reorder.next_watermark() {
                (ReportKind::Delivered, watermark)
            } else {
                break;
            };
            let report = Report {
                kind,
                flow,
                sequence,
            };
            report.write(out);
        }
    }

    /// The path that takes an acknowledgement of path `of`: the same, or if that is
    /// not alive, the fastest that is.
    fn carrier(&self, of: u8) -> Option<usize> {
        let own = usize::from(of);
        if self.paths[own].as_ref().is_some_and(Path::is_alive) {
            return Some(own);
        }
        let alive = self.paths.iter().enumerate().filter_map(|(index, path)| {
            let path = path.as_ref().filter(|path| path.is_alive())?;
            Some((index, path.rtt.smoothed_ns()))
        });
        alive
            .min_by_key(|(_, rtt_ns)| *rtt_ns)
            .map(|(index, _)| index)
            .or_else(|| self.paths[own].is_some().then_some(own))
    }
}

pub(crate) fn control_place(prefix: &Prefix, number: u64) -> Place {
    Place {
        epoch: prefix.epoch,
        path: prefix.path,
        number: number | CONTROL,
        clear: PREFIX_LEN,
    }
}

/// Probes number themselves in 64 bits, in the fields of epoch and number.
pub(crate) fn probe_place(prefix: &Prefix) -> Place {
    Place {
        epoch: prefix.epoch,
        path: prefix.path,
        number: u64::from(prefix.number) | CONTROL,
        clear: PROBE_CLEAR_LEN,
    }
}
