// SPDX-License-Identifier: Apache-2.0

//! A timeout asks before it believes. A peer that waits for a CPU acknowledges nothing
//! for milliseconds, and looks from here as a path does that has lost a packet. So the
//! first timeout of a path sends nothing again: it has this path and all others probed
//! (as RFC 9002, section 6.2, whose probes carry data). An answer on this path tells what
//! is missing. A sign of life on another one tells that the peer is awake and this path
//! silent: then the packet is lost. Without either, nobody could be told anything, and
//! the third timeout is believed.

use crate::config::Rto;
use crate::engine::Engine;
use crate::path::Path;

/// An acknowledgement may come this long after what shows that the peer is awake.
const SLACK_NS: u64 = 200_000;

/// A path's timeout that is not believed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    since_ns: u64,
    /// When the peer was first heard of since then, on any path.
    awake_ns: Option<u64>,
    /// The oldest packets were taken for lost.
    believed: bool,
}

impl Path {
    /// Whether the timeout that is due now is to be believed; else the path is in doubt.
    pub(crate) fn believes_timeout(&mut self, now_ns: u64, rto: Rto) -> bool {
        let awake = self.doubt.is_some_and(|doubt| doubt.awake_ns.is_some());
        if matches!(rto, Rto::Fixed(_)) || awake || self.sending.backoff() >= 2 {
            return true;
        }
        self.doubt.get_or_insert(Doubt {
            since_ns: now_ns,
            awake_ns: None,
            believed: false,
        });
        false
    }

    /// When silence on this path, with a peer that is awake, means loss.
    pub(crate) fn doubt_deadline(&self) -> Option<u64> {
        let doubt = self.doubt.filter(|doubt| !doubt.believed)?;
        let answer_ns = doubt.since_ns + self.rtt.spread_ns();
        Some(doubt.awake_ns?.max(answer_ns) + SLACK_NS)
    }

    /// That time has come.
    pub(crate) fn believe(&mut self) {
        if let Some(doubt) = &mut self.doubt {
            doubt.believed = true;
        }
    }

    /// The peer has been heard of. What it sent before it could know of the probes says
    /// nothing.
    fn hear(&mut self, now_ns: u64) {
        let lowest_ns = self.rtt.lowest_ns();
        if let Some(doubt) = &mut self.doubt
            && now_ns >= doubt.since_ns + lowest_ns
        {
            doubt.awake_ns.get_or_insert(now_ns);
        }
    }

    /// Whether others are better: a timeout without a sign of life since, or a probe
    /// that should have been answered.
    pub(crate) fn is_suspect(&self, now_ns: u64) -> bool {
        let overdue = || {
            let since_ns = self.health.unanswered_since();
            since_ns.is_some_and(|at_ns| now_ns > at_ns + self.rtt.spread_ns() + SLACK_NS)
        };
        self.sending.backoff() > 0 || overdue()
    }
}

impl Engine {
    /// A datagram of the peer's was taken.
    pub(crate) fn hear(&mut self, now_ns: u64) {
        if self.doubts {
            let paths = self.paths.iter_mut().flatten();
            paths.for_each(|path| path.hear(now_ns));
            let open = |path: &Path| path.doubt.is_some_and(|doubt| doubt.awake_ns.is_none());
            self.doubts = self.paths.iter().flatten().any(open);
        }
    }

    /// Path `index` is in doubt: all others are asked, too. Those that carry nothing may
    /// have died unnoticed, and would be chosen next.
    pub(crate) fn ask_others(&mut self, now_ns: u64, index: usize) {
        self.doubts = true;
        for (other, path) in self.paths.iter_mut().enumerate() {
            if let Some(path) = path.as_mut().filter(|path| path.is_alive())
                && other != index
            {
                path.ask(now_ns);
            }
        }
    }
}
