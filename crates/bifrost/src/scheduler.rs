// SPDX-License-Identifier: Apache-2.0

//! Which path a frame takes. A flow stays on its path for a group of bytes; then, or
//! when nothing of it is under way, or when its path cannot take more, the choice is made again
//! among those that can take more now, and the flow switches only to one that is better by more
//! than the switch gain. It does not wait for a path that is full, however slow the others are:
//! bulk fills all paths, and where one stalls, who waits for it stalls, too. With nothing
//! under way it follows the peer's last packet, so that an acknowledgement can be piggybacked.

use crate::config::{Schedule, TransportConfig};
use crate::path::Path;
use crate::path_table::PathTable;
use crate::send_buffer::{FrameRef, SendBuffer, SendFlow};

/// A frame that takes longer than this on a path goes over several, piece by piece.
const PIECE_NS: u64 = 250_000;
/// What a suspect path costs beyond any that is not.
const SUSPECT_NS: u64 = 1 << 40;

/// Chooses paths.
#[derive(Debug, Default)]
pub(crate) struct Scheduler {
    /// With [`Schedule::Spray`], the path whose turn it is.
    spray_next: usize,
}

/// The paths at a moment, as the schedule compares them.
#[derive(Clone, Copy)]
pub(crate) struct Choice<'a> {
    pub paths: &'a PathTable,
    pub config: &'a TransportConfig,
    pub now_ns: u64,
    /// Bytes of the next datagram.
    pub len: u64,
}

impl<'a> Choice<'a> {
    /// Lower is better. A path that has just timed out is worse than any that has not.
    fn cost(&self, path: &Path) -> u64 {
        let cost = match self.config.schedule {
            Schedule::Completion | Schedule::Spray => path.completion_ns(self.now_ns),
            Schedule::LowestRtt => path.smoothed_rtt_ns(),
        };
        cost + if path.is_suspect(self.now_ns) {
            SUSPECT_NS
        } else {
            0
        }
    }

    /// The path, if the datagram may be sent on it now.
    pub(crate) fn usable(&self, index: u8) -> Option<&'a Path> {
        let path = self.paths.get(index.into())?;
        path.can_send(self.now_ns, self.len).then_some(path)
    }

    /// The best path that the datagram may be sent on, and its cost.
    pub(crate) fn best(&self, except: Option<u8>) -> Option<(usize, u64)> {
        let others = |index: usize| except.is_none_or(|except| index != usize::from(except));
        let usable = self
            .paths
            .iter()
            .filter(|(index, path)| others(*index) && path.can_send(self.now_ns, self.len));
        let costs = usable.map(|(index, path)| (index, self.cost(path)));
        costs.min_by_key(|(_, cost)| *cost)
    }

    /// The path for a chunk that path `lost_on` has lost, which has been sent this often: another
    /// one that can take it. But a single loss says little of a path, and a second one costs its
    /// timeout: after the first loss not one that takes longer than that.
    pub(crate) fn path_after_loss(&self, lost_on: Option<u8>, transmissions: u8) -> Option<usize> {
        let other = self.best(lost_on);
        let same = lost_on.and_then(|index| Some((usize::from(index), self.usable(index)?)));
        if let (Some((_, cost)), Some((same, path))) = (other, same)
            && transmissions == 1
            && cost > self.cost(path) + path.timeout_ns(self.config)
        {
            return Some(same);
        }
        other
            .map(|(index, _)| index)
            .or(same.map(|(index, _)| index))
    }

    /// The path for what is left of a frame that has been begun on path `index`.
    pub(crate) fn path_for_rest(&self, index: u8) -> Option<usize> {
        let current = self.usable(index);
        if current.is_some_and(|path| self.piece_bytes(path).is_none()) {
            return Some(usize::from(index));
        }
        let (best, lowest) = self.best(None)?;
        let limit = lowest.saturating_add(self.config.switch_gain_ns);
        match current.is_some_and(|path| self.cost(path) <= limit) {
            true => Some(usize::from(index)),
            false => Some(best),
        }
    }

    /// Bytes after which a frame's path is chosen again; `None`: it goes whole.
    pub(crate) fn piece_bytes(&self, path: &Path) -> Option<u64> {
        let bytes = path.sends_in(PIECE_NS);
        (bytes < self.config.group_bytes.into()).then_some(bytes)
    }

    /// The path that something came in on last and is to be acknowledged, if it costs no
    /// more than `limit`. Of use to a flow of which nothing is under way, which no change of
    /// its path can reorder.
    fn path_to_acknowledge(&self, limit: u64) -> Option<usize> {
        let due = self.paths.iter().filter(|(_, path)| {
            path.acks.pending > 0
                && path.can_send(self.now_ns, self.len)
                && self.cost(path) <= limit
        });
        due.max_by_key(|(_, path)| path.acks.newest_ns())
            .map(|(index, _)| index)
    }

    /// New flows go to any of the paths that cost no more than `limit`.
    fn spread(&self, flow: u16, limit: u64) -> Option<usize> {
        let good = || {
            let paths = self.paths.iter();
            paths.filter(|(_, path)| {
                path.can_send(self.now_ns, self.len) && self.cost(path) <= limit
            })
        };
        let turn = usize::from(flow).checked_rem(good().count())?;
        good().nth(turn).map(|(index, _)| index)
    }
}

impl Scheduler {
    /// The path for a frame of which nothing has been sent. `None`: no path can take its
    /// first datagram.
    pub(crate) fn path_for(
        &mut self,
        choice: &Choice<'_>,
        frames: &mut SendBuffer,
        at: FrameRef,
    ) -> Option<Assignment> {
        if choice.config.schedule == Schedule::Spray {
            let index = self.next_in_turn(choice)?;
            return Some(Assignment { index, left: None });
        }
        let flow_index = frames.get(at)?.flow;
        let idle = frames.is_first(at);
        let flow = &mut frames.flows[usize::from(flow_index)];
        let current = choice.usable(flow.path);
        if flow.left > 0
            && !idle
            && let Some(path) = current
            && !path.is_suspect(choice.now_ns)
        {
            let index = usize::from(flow.path);
            return Some(Assignment { index, left: None });
        }
        let (best, lowest) = choice.best(None)?;
        let limit = lowest.saturating_add(choice.config.switch_gain_ns);
        let chosen = if idle && let Some(index) = choice.path_to_acknowledge(limit) {
            index
        } else if current.is_some_and(|path| choice.cost(path) <= limit) {
            usize::from(flow.path)
        } else if flow.path == SendFlow::NO_PATH {
            choice.spread(flow_index, limit).unwrap_or(best)
        } else {
            best
        };
        let before = std::mem::replace(&mut flow.path, chosen as u8);
        flow.left = choice.config.group_bytes as i32;
        Some(Assignment {
            index: chosen,
            left: (before != chosen as u8).then_some(before),
        })
    }

    fn next_in_turn(&mut self, choice: &Choice<'_>) -> Option<usize> {
        let count = crate::PathId::LIMIT;
        let turn = (0..count).map(|step| (self.spray_next + step) % count);
        let usable = turn.filter_map(|index| Some((index, choice.usable(index as u8)?)));
        let (chosen, _) = usable.min_by_key(|(_, path)| path.is_suspect(choice.now_ns))?;
        self.spray_next = chosen + 1;
        Some(chosen)
    }
}

/// A path for a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assignment {
    pub index: usize,
    /// The path that the flow has left for it, if it has.
    pub left: Option<u8>,
}
