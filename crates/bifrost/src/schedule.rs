// SPDX-License-Identifier: Apache-2.0

//! Which path a frame takes. A flow stays on its path for a group of bytes; then, or
//! when nothing of it is under way, or when its path cannot take more, the choice is
//! made anew, and the flow moves only for a path that is better by more than delta. With
//! nothing under way it follows the peer's last packet, where an acknowledgement can ride.

use crate::config::Schedule;
use crate::engine::Engine;
use crate::frames::{FlowSend, FrameRef};
use crate::path::Path;

/// A frame that takes longer than this on a path goes over several, piece by piece.
const PIECE_NS: u64 = 250_000;

impl Engine {
    /// What the schedule compares: lower is better. A path that has just timed out is
    /// worse than any that has not.
    fn cost(&self, now_ns: u64, path: &Path) -> u64 {
        const SUSPECT_NS: u64 = 1 << 40;
        let cost = match self.config.schedule {
            Schedule::Completion | Schedule::Spray => path.completion_ns(now_ns),
            Schedule::LowestRtt => path.rtt.smoothed_ns(),
        };
        cost + if path.is_suspect(now_ns) {
            SUSPECT_NS
        } else {
            0
        }
    }

    /// The best path with room for `len` bytes, and its cost.
    pub(crate) fn best_path(&self, now_ns: u64, len: u64, except: usize) -> Option<(usize, u64)> {
        let paths = self.paths.iter().enumerate();
        let usable = paths.filter_map(|(index, path)| {
            let path = path
                .as_ref()
                .filter(|path| index != except && path.has_room(len))?;
            Some((index, self.cost(now_ns, path)))
        });
        usable.min_by_key(|(_, cost)| *cost)
    }

    /// The path for a frame of which nothing has been sent, when its first datagram has
    /// `len` bytes. `None`: no path has room.
    pub(crate) fn path_for(&mut self, now_ns: u64, at: FrameRef, len: u64) -> Option<usize> {
        if self.config.schedule == Schedule::Spray {
            return self.next_in_turn(now_ns, len);
        }
        let flow_index = self.frames.get(at)?.flow;
        let idle = self.frames.is_first(at);
        let flow = self.frames.flows[usize::from(flow_index)];
        let current = self.path_with_room(flow.path, len);
        if flow.left > 0
            && !idle
            && let Some(path) = current
            && !path.is_suspect(now_ns)
        {
            return Some(usize::from(flow.path));
        }
        let (best, lowest) = self.best_path(now_ns, len, usize::MAX)?;
        let limit = lowest.saturating_add(self.config.delta_ns);
        let chosen = if idle && let Some(index) = self.path_to_acknowledge(now_ns, len, limit) {
            index
        } else if current.is_some_and(|path| self.cost(now_ns, path) <= limit) {
            usize::from(flow.path)
        } else if flow.path == FlowSend::NO_PATH {
            self.spread(now_ns, flow_index, len, limit).unwrap_or(best)
        } else {
            best
        };
        if chosen != usize::from(flow.path)
            && let Some(Some(old)) = self.paths.get_mut(usize::from(flow.path))
        {
            old.stats.moves += 1;
        }
        let flow = &mut self.frames.flows[usize::from(flow_index)];
        flow.path = chosen as u8;
        flow.left = self.config.group_bytes as i32;
        Some(chosen)
    }

    /// The path for what is left of a frame that has been begun on path `index`.
    pub(crate) fn path_for_rest(&self, now_ns: u64, index: u8, len: u64) -> Option<usize> {
        let current = self.path_with_room(index, len);
        if current.is_some_and(|path| self.piece_bytes(path).is_none()) {
            return Some(usize::from(index));
        }
        let (best, lowest) = self.best_path(now_ns, len, usize::MAX)?;
        let limit = lowest.saturating_add(self.config.delta_ns);
        match current.is_some_and(|path| self.cost(now_ns, path) <= limit) {
            true => Some(usize::from(index)),
            false => Some(best),
        }
    }

    /// Bytes after which a frame's path is thought over; `None`: it goes whole.
    pub(crate) fn piece_bytes(&self, path: &Path) -> Option<u64> {
        let bytes = path.sends_in(PIECE_NS);
        (bytes < self.config.group_bytes.into()).then_some(bytes)
    }

    /// The path that something came in on last and is to be acknowledged, if it is as
    /// good as the best: the acknowledgement can ride. Of use to a flow of which nothing is
    /// under way, which no change of its path can reorder.
    fn path_to_acknowledge(&self, now_ns: u64, len: u64, limit: u64) -> Option<usize> {
        let paths = self.paths.iter().enumerate();
        let due = paths.filter_map(|(index, path)| {
            let path = path.as_ref()?;
            let rides = path.receiving.pending > 0
                && path.has_room(len)
                && self.cost(now_ns, path) <= limit;
            rides.then_some((index, path.receiving.newest_ns()))
        });
        due.max_by_key(|(_, at_ns)| *at_ns).map(|(index, _)| index)
    }

    /// New flows go to any of the paths that are as good as the best.
    fn spread(&self, now_ns: u64, flow: u16, len: u64, limit: u64) -> Option<usize> {
        let good = |index: &usize| {
            let path = self.path_with_room(*index as u8, len);
            path.is_some_and(|path| self.cost(now_ns, path) <= limit)
        };
        let count = (0..self.paths.len()).filter(good).count();
        let turn = usize::from(flow).checked_rem(count)?;
        (0..self.paths.len()).filter(good).nth(turn)
    }

    fn next_in_turn(&mut self, now_ns: u64, len: u64) -> Option<usize> {
        let count = self.paths.len();
        let turn = (0..count).map(|step| (self.spray_next + step) % count);
        let chosen = turn
            .filter(|index| self.path_with_room(*index as u8, len).is_some())
            .min_by_key(|index| {
                self.paths[*index]
                    .as_ref()
                    .is_some_and(|path| path.is_suspect(now_ns))
            })?;
        self.spray_next = chosen + 1;
        Some(chosen)
    }

    pub(crate) fn path_with_room(&self, index: u8, len: u64) -> Option<&Path> {
        let path = self.paths.get(usize::from(index))?.as_ref()?;
        path.has_room(len).then_some(path)
    }
}
