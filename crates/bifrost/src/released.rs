// SPDX-License-Identifier: Apache-2.0

//! References on their way back to the caller. Neighbours of one slot go together.

use std::collections::VecDeque;

use crate::types::Release;

#[derive(Debug, Default)]
pub(crate) struct Released(VecDeque<Release>);

impl Released {
    pub(crate) fn push(&mut self, release: Release) {
        match self.0.back_mut() {
            Some(last) if last.slot == release.slot => last.count += release.count,
            _ => self.0.push_back(release),
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Release> {
        self.0.pop_front()
    }
}
