// SPDX-License-Identifier: Apache-2.0

//! References on their way back to the caller, and why what they named was dropped.
//! References to one slot that follow each other go back together.

use std::collections::VecDeque;

use crate::drop_reason::DropCounters;
use crate::types::Release;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ReleaseQueue {
    queue: VecDeque<Release>,
    /// Every drop of the engine is counted here.
    pub drops: DropCounters,
}

impl ReleaseQueue {
    pub(crate) fn push(&mut self, release: Release) {
        match self.queue.back_mut() {
            Some(last) if last.slot == release.slot => last.count += release.count,
            _ => self.queue.push_back(release),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Release> {
        self.queue.pop_front()
    }
}
