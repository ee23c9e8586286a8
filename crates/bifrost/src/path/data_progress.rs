// SPDX-License-Identifier: Apache-2.0

//! Whether data arrive on a path. A path that answers probes may lose all data, by what the
//! network thinks of them: no timeout finds that, as each answer shows a path that works. It is left
//! alone for a while where the peer takes data by another path; else it is slowed down.

/// Times that data are lost, without any that arrive, from which on it is no accident: half of
/// all lost, such a row comes once in 256.
const LOSSES: u32 = 8;
/// How long the path is then left alone; twice as long each time, until data arrive.
const LEFT_ALONE_NS: u64 = 1_000_000_000;
/// At most so often twice: 16 s.
const DOUBLINGS: u32 = 4;

/// What has become of a path's data lately.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DataProgress {
    /// When data were last acknowledged,
    acked_ns: u64,
    /// and when some were first lost after that.
    lost_ns: u64,
    /// How often, since they were acknowledged or the path came back.
    losses: u32,
    /// Times that the path was left alone since data were acknowledged.
    left_alone: u32,
}

impl DataProgress {
    pub(super) fn on_acked(&mut self, now_ns: u64) {
        *self = DataProgress {
            acked_ns: now_ns,
            ..DataProgress::default()
        };
    }

    /// The path carries data again: what it lost when it failed says nothing of it now.
    pub(super) fn begin(&mut self) {
        self.losses = 0;
    }

    pub(super) fn on_lost(&mut self, now_ns: u64) {
        if self.losses == 0 {
            self.lost_ns = now_ns;
        }
        self.losses += 1;
    }

    /// Whether all data are lost.
    pub(super) fn loses_all(&self) -> bool {
        self.losses >= LOSSES
    }

    /// The same, while the peer takes those of `other`.
    pub(super) fn loses_all_beside(&self, other: &DataProgress) -> bool {
        self.loses_all() && other.acked_ns > self.lost_ns
    }

    /// The path is left alone: for how long.
    pub(super) fn leave_alone(&mut self) -> u64 {
        let time_ns = LEFT_ALONE_NS << self.left_alone.min(DOUBLINGS);
        self.left_alone += 1;
        time_ns
    }
}
