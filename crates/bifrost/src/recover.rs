// SPDX-License-Identifier: Apache-2.0

//! What time brings: timeouts, deaths, probes, frames that are too old.

use crate::engine::{Again, Control, Engine, SWEEP_NS};
use crate::frames::FrameRef;
use crate::metrics::PathState;
use crate::path::Path;
use crate::refused::Refused;
use crate::types::PathId;

/// A frame that has arrived whole is kept so long for a report that it was dropped in
/// front of the guest.
const LINGER_NS: u64 = 100_000_000;

impl Engine {
    /// When to call [`Engine::handle_timeout`], in nanoseconds of the caller's clock.
    pub fn poll_timeout(&self) -> Option<u64> {
        let paths = self.paths.iter().flatten();
        let paths = paths.filter_map(|path| path.deadline(&self.config)).min();
        let lingering = self
            .lingering
            .front()
            .map(|(since_ns, _)| since_ns + LINGER_NS);
        // Nobody can be told before a path is alive.
        let alive = self.paths.iter().flatten().any(Path::is_alive);
        let refusal = self.reorder.refusal_deadline().filter(|_| alive);
        let queued = !self.pending.is_empty() || !self.again.is_empty();
        let deadlines = [
            paths,
            lingering,
            queued.then_some(self.sweep_ns),
            self.reorder.deadline(),
            refusal,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Does what has become due; cheap when nothing has. `poll_deliver` and
    /// `poll_transmit` give its results.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.clock_ns = now_ns;
        self.note_slowest();
        for index in 0..PathId::LIMIT {
            if self.paths[index].is_some() {
                self.time_path(now_ns, index);
            }
        }
        if self.reorder.deadline().is_some_and(|at_ns| at_ns <= now_ns) {
            let bounds = self.bounds();
            self.reorder.handle_timeout(now_ns, &bounds);
        }
        while let Some((since_ns, at)) = self.lingering.front().copied()
            && since_ns + LINGER_NS <= now_ns
        {
            self.lingering.pop_front();
            // One that is being sent again as a whole comes back when it has arrived.
            if self.frames.get(at).is_some_and(|frame| frame.is_complete())
                && let Some(release) = self.frames.remove(at)
            {
                self.released.push(release);
            }
        }
        if now_ns >= self.sweep_ns && !(self.pending.is_empty() && self.again.is_empty()) {
            self.sweep(now_ns);
        }
    }

    fn time_path(&mut self, now_ns: u64, index: usize) {
        let Some(path) = &mut self.paths[index] else {
            return;
        };
        let timeout_ns = path.timeout_ns(&self.config);
        if path
            .sending
            .gap_deadline(path.gap_wait_ns())
            .is_some_and(|at_ns| at_ns <= now_ns)
        {
            path.sending.lose_gap(&mut self.lost);
            path.stats.lost_by_gap += self.lost.len() as u64;
        }
        let by_gap = self.lost.len();
        let is_due = |deadline: Option<u64>| deadline.is_some_and(|at_ns| at_ns <= now_ns);
        let mut silent = false;
        if is_due(path.sending.timeout(timeout_ns)) {
            path.stats.timeouts += 1;
            if path.believes_timeout(now_ns, self.config.rto) {
                path.sending.lose_oldest(&mut self.lost);
                path.sending.back_off(now_ns);
                silent = path.is_silent();
            } else {
                path.sending.back_off(now_ns);
                self.ask_others(now_ns, index);
            }
        } else if is_due(path.doubt_deadline()) {
            path.believe();
            path.sending.lose_oldest(&mut self.lost);
        } else {
            self.queue_lost(now_ns, index);
            return self.probe_path(now_ns, index, timeout_ns);
        }
        if let Some(path) = &mut self.paths[index] {
            path.sending.tidy(now_ns);
            path.stats.lost_by_timeout += (self.lost.len() - by_gap) as u64;
            path.suspect(now_ns);
        }
        self.queue_lost(now_ns, index);
        if silent {
            self.stop_path(now_ns, index, PathState::Dead);
        }
        self.probe_path(now_ns, index, timeout_ns);
    }

    fn probe_path(&mut self, now_ns: u64, index: usize, timeout_ns: u64) {
        let alone = !self.paths.iter().flatten().any(Path::is_alive);
        let Some(path) = &mut self.paths[index] else {
            return;
        };
        match path.probe_due(now_ns, timeout_ns, alone) {
            Ok(None) => {}
            Ok(Some(size)) => self.control.push_back(Control::Probe {
                path: index as u8,
                size,
            }),
            Err(_) => self.stop_path(now_ns, index, PathState::Dead),
        }
    }

    /// What path `from` has lost goes to the queue of what is sent again, but for
    /// chunks that the peer has or whose frame is gone.
    pub(crate) fn queue_lost(&mut self, now_ns: u64, from: usize) {
        if self.lost.is_empty() {
            return;
        }
        if self.pending.is_empty() && self.again.is_empty() {
            self.sweep_ns = now_ns + SWEEP_NS;
        }
        for sent in self.lost.drain(..) {
            if let Some(path) = &mut self.paths[from] {
                path.congestion.on_lost();
            }
            let missing = |frame: &crate::frames::Frame| !frame.has(sent.index);
            if self.frames.get(sent.frame).is_some_and(missing) {
                self.again.push_back(Again {
                    frame: sent.frame,
                    index: sent.index,
                    tries: sent.tries,
                    from: from as u8,
                });
            }
        }
    }

    /// The peer dropped a frame in front of its guest: all of it goes again.
    pub(crate) fn send_whole(&mut self, at: FrameRef) {
        self.frames.forget_acks(at);
        self.metrics.frames_again += 1;
        let chunks = self.frames.get(at).map_or(0, |frame| frame.chunks);
        self.again.extend((0..chunks).map(|index| Again {
            frame: at,
            index,
            tries: 1,
            from: PathId::LIMIT as u8,
        }));
    }

    /// Gives up frames that wait for a path for too long.
    fn sweep(&mut self, now_ns: u64) {
        self.sweep_ns = now_ns + SWEEP_NS;
        let give_up_ns = self.config.give_up_ns;
        let frames = &self.frames;
        let queued = self.again.iter().map(|again| again.frame);
        let old: Vec<FrameRef> = queued
            .chain(self.pending.iter())
            .filter(|at| {
                let accepted_ns = frames.get(*at).map(|frame| frame.accepted_ns);
                accepted_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) > give_up_ns)
            })
            .collect();
        for at in old {
            self.drop_frame(at, Refused::GaveUp);
        }
        let frames = &self.frames;
        self.again.retain(|again| frames.get(again.frame).is_some());
        self.pending.retain(|at| frames.get(at).is_some());
    }
}
