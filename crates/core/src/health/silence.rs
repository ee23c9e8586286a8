// SPDX-License-Identifier: Apache-2.0
//! A passive sign that a real is not fit: clients open connections to it and none of
//! them sends anything.
//!
//! The balancer sees no SYN-ACK, only that nothing follows a SYN but itself. Clients of
//! a real that answers send requests, or say something once the server has greeted them.

/// Fewer connections than this in a window say nothing.
const OPENED_MIN: u64 = 5;

/// Watches what one real's clients do. Give it the counters as often as they are read.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    window_ns: u64,
    start_ns: u64,
    /// Counters at the start of this window, and of the one before.
    start: SilenceCounts,
    before: SilenceCounts,
}

/// Totals of a real.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SilenceCounts {
    /// Connections opened.
    pub opened: u64,
    /// Requests that clients sent.
    pub requests: u64,
}

impl Silence {
    /// Begins to watch. A connection has one to two windows to send something.
    pub fn new(now_ns: u64, window_ns: u64, counts: SilenceCounts) -> Self {
        Self {
            window_ns,
            start_ns: now_ns,
            start: counts,
            before: counts,
        }
    }

    /// How long a window is.
    pub fn window_ns(&self) -> u64 {
        self.window_ns
    }

    /// Takes the counters at `now_ns`. At the end of a window: how many connections were
    /// opened in the one before it, if there were some and nothing was sent since.
    pub fn handle_counts(&mut self, now_ns: u64, counts: SilenceCounts) -> Option<u64> {
        if now_ns.saturating_sub(self.start_ns) < self.window_ns {
            return None;
        }
        let opened = self.start.opened.saturating_sub(self.before.opened);
        let requests = counts.requests.saturating_sub(self.before.requests);
        self.before = self.start;
        self.start = counts;
        self.start_ns = now_ns;
        (opened >= OPENED_MIN && requests == 0).then_some(opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// What is concluded after each second of these `(opened, requests)` of its own.
    fn conclusions(seconds: &[(u64, u64)]) -> Vec<Option<u64>> {
        let mut total = SilenceCounts::default();
        let mut silence = Silence::new(0, S, total);
        let mut after = |(n, (opened, requests)): (u64, &(u64, u64))| {
            total.opened += opened;
            total.requests += requests;
            assert_eq!(silence.handle_counts(n * S + S / 2, total), None);
            silence.handle_counts((n + 1) * S, total)
        };
        (0..).zip(seconds).map(&mut after).collect()
    }

    #[test]
    fn connections_that_nothing_follows_are_a_sign() {
        assert_eq!(
            conclusions(&[(10, 10), (10, 0), (7, 0), (0, 0), (0, 0)]),
            [None, None, Some(10), Some(7), None]
        );
    }

    #[test]
    fn a_request_in_time_is_none_and_few_connections_are_none() {
        // Opened at the end of a window, sent at the start of the next.
        assert_eq!(conclusions(&[(10, 0), (0, 1), (0, 0)]), [None; 3]);
        assert_eq!(conclusions(&[(4, 0), (4, 0), (4, 0)]), [None; 3]);
        assert_eq!(conclusions(&[(0, 9), (0, 9)]), [None; 2]);
    }
}
