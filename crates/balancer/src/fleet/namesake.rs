// SPDX-License-Identifier: Apache-2.0
//! Whether another balancer goes by this one's name. To the fleet both are one member: what the one
//! acknowledges counts for the other, to which packets come, too.

use std::path::Path;

use causeway_core::cookie::Digest;

/// One time may be a store that was set back.
const SURE: u8 = 2;

/// What tells this balancer from another of its name, and what it has seen of such.
#[derive(Debug)]
pub(super) struct Namesake {
    own: String,
    /// How often another has spoken behind this one.
    replaced: u8,
    is_there: bool,
}

impl Namesake {
    /// Machines differ by their boots, balancers of one machine by their directories.
    pub(super) fn new(boot: &str, state_dir: &Path) -> Self {
        let own = Digest::of("fleet-balancer").text(boot);
        Self {
            own: own.text(&state_dir.to_string_lossy()).finish(),
            replaced: 0,
            is_there: false,
        }
    }

    /// What this balancer is told from others by.
    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// Sees who spoke last by this name, and whether one of this name is alive; says whether to
    /// speak again. Who has not spoken yet leaves the name to the other.
    pub(super) fn see(&mut self, spoke: Option<&str>, is_alive: bool, has_spoken: bool) -> bool {
        let is_another = spoke.is_some_and(|by| by != self.own);
        if !has_spoken {
            self.is_there = is_another && is_alive;
            return false;
        }
        // Both are to see it, and to speak no more then.
        let speaks = is_another && self.replaced < SURE;
        self.replaced += u8::from(speaks);
        self.is_there = self.replaced >= SURE;
        speaks
    }

    /// Whether it holds.
    pub(super) fn is_there(&self) -> bool {
        self.is_there
    }
}
