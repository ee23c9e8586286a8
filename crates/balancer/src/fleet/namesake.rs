// SPDX-License-Identifier: Apache-2.0
//! Whether another balancer goes by this one's name. To the fleet both are one member: what the one
//! acknowledges counts for the other, to which packets come, too.

use std::collections::BTreeSet;
use std::path::Path;

use causeway_core::cookie::Digest;

use super::book_text::AckText;

/// What tells this balancer from another of its name, and what it has seen of such.
#[derive(Debug)]
pub(super) struct Namesake {
    own: String,
    /// Before it speaks: which other spoke last, and whether the name was free then.
    former: Option<String>,
    is_free: bool,
    /// Others that have spoken since it did.
    heard: BTreeSet<String>,
    /// One of them has heard this one, too.
    is_sure: bool,
}

impl Namesake {
    /// Machines differ by their boots, balancers of one machine by their directories.
    pub(super) fn new(boot: &str, state_dir: &Path) -> Self {
        let own = Digest::of("fleet-balancer").text(boot);
        Self {
            own: own.text(&state_dir.to_string_lossy()).finish(),
            former: None,
            is_free: false,
            heard: BTreeSet::new(),
            is_sure: false,
        }
    }

    /// What this balancer is told from others by.
    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// What it says of others.
    pub(super) fn heard(&self) -> &BTreeSet<String> {
        &self.heard
    }

    /// Sees what was said last by this name, and whether one of this name is alive; says whether
    /// to speak again.
    pub(super) fn see(&mut self, said: &AckText, is_alive: bool, has_spoken: bool) -> bool {
        let other = Some(&said.balancer).filter(|by| !by.is_empty() && **by != self.own);
        if !has_spoken {
            // Whom the name was taken from may be itself, before a boot. Its own lease makes it
            // alive from then on, so only another word says that the name is not free.
            let stays = self.is_free && self.former.as_ref() == other;
            self.is_free = stays || other.is_none() || !is_alive;
            self.former = other.cloned();
            return false;
        }
        let Some(other) = other else {
            return false;
        };
        // Both are to hear of it, and to speak no more then.
        let speaks = !self.is_sure;
        self.heard.insert(other.clone());
        // Any other word may be one from before, in a store that was set back.
        self.is_sure |= said.heard.contains(&self.own);
        speaks
    }

    /// Whether it may take a lease. Who has not spoken yet leaves the name to who has.
    pub(super) fn is_free(&self, has_spoken: bool) -> bool {
        has_spoken || self.is_free
    }

    /// Whether it holds.
    pub(super) fn is_there(&self, has_spoken: bool) -> bool {
        match has_spoken {
            true => self.is_sure,
            false => !self.is_free,
        }
    }
}
