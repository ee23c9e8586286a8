// SPDX-License-Identifier: Apache-2.0
//! When the next request is due.
//!
//! A *closed* loop sends the next request a wait after the last response (netperf's
//! `-w`): while a response is late nothing is sent, so the worst moments are
//! measured least (coordinated omission). An *open* loop sends by a timetable, and
//! a latency counts from the time that the table names, not from when the sender
//! got round to it.

/// How requests follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// `burst` requests, each as soon as the last response is there; then `wait_ns`;
    /// and so on.
    Closed {
        /// Time from a burst's last response to the next request, nanoseconds.
        wait_ns: u64,
        /// Requests between two waits; at least 1.
        burst: u32,
    },
    /// One request every `interval_ns`, whatever the responses do.
    Open {
        /// Time from one request to the next, nanoseconds.
        interval_ns: u64,
    },
}

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After this time, nanoseconds.
    Time(u64),
    /// After this many transactions.
    Count(u64),
}

/// The next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// Send it at this time; a past time means at once.
    pub at_ns: u64,
    /// Count its latency from `at_ns` even if it was sent later.
    pub intended: bool,
}

/// Decides when each request of one stream is due. Call [`Pace::next`], send at
/// that time, wait for the response, call [`Pace::completed`], and so on.
#[derive(Clone, Debug)]
pub struct Pace {
    pacing: Pacing,
    limit: Limit,
    start_ns: u64,
    done: u64,
    /// When the last response came.
    last_ns: u64,
}

impl Pace {
    /// A stream that begins at `start_ns`.
    pub fn new(pacing: Pacing, limit: Limit, start_ns: u64) -> Self {
        Self {
            pacing,
            limit,
            start_ns,
            done: 0,
            last_ns: start_ns,
        }
    }

    /// When the next request is due; `None` at the end.
    pub fn next(&self) -> Option<Due> {
        let due = match self.pacing {
            Pacing::Closed { wait_ns, burst } => Due {
                at_ns: if self.done > 0 && self.done.is_multiple_of(u64::from(burst.max(1))) {
                    self.last_ns.saturating_add(wait_ns)
                } else {
                    self.last_ns
                },
                intended: false,
            },
            Pacing::Open { interval_ns } => Due {
                at_ns: self
                    .start_ns
                    .saturating_add(self.done.saturating_mul(interval_ns)),
                intended: true,
            },
        };
        let over = match self.limit {
            Limit::Count(count) => self.done >= count,
            // An open loop that has fallen behind ends with its timetable or with
            // the clock, whichever is later passed first.
            Limit::Time(ns) => due.at_ns.max(self.last_ns) >= self.start_ns.saturating_add(ns),
        };
        (!over).then_some(due)
    }

    /// The response to the last request is complete, or it was given up.
    pub fn completed(&mut self, now_ns: u64) {
        self.done += 1;
        self.last_ns = now_ns;
    }

    /// Transactions so far.
    pub fn done(&self) -> u64 {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_closed_loop_waits_after_each_burst() {
        let pacing = Pacing::Closed {
            wait_ns: 10 * MS,
            burst: 2,
        };
        let mut pace = Pace::new(pacing, Limit::Count(4), 5);
        let at = |pace: &Pace| pace.next().map(|due| due.at_ns);
        assert_eq!(at(&pace), Some(5));
        pace.completed(MS);
        assert_eq!(at(&pace), Some(MS));
        pace.completed(2 * MS);
        assert_eq!(at(&pace), Some(12 * MS));
        pace.completed(13 * MS);
        assert_eq!(at(&pace), Some(13 * MS));
        pace.completed(14 * MS);
        assert_eq!((at(&pace), pace.done()), (None, 4));
    }

    #[test]
    fn an_open_loop_keeps_its_timetable_when_responses_are_late() {
        let pacing = Pacing::Open { interval_ns: MS };
        let mut pace = Pace::new(pacing, Limit::Time(5 * MS), 100 * MS);
        let mut due = Vec::new();
        let mut now = 100 * MS;
        while let Some(next) = pace.next() {
            assert!(next.intended);
            due.push((next.at_ns - 100 * MS) / MS);
            // The second response takes 3 ms.
            now = now.max(next.at_ns) + if due.len() == 2 { 3 * MS } else { MS / 10 };
            pace.completed(now);
        }
        assert_eq!(due, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_time_limit_ends_before_a_request_that_would_be_late() {
        let pacing = Pacing::Closed {
            wait_ns: 40 * MS,
            burst: 1,
        };
        let mut pace = Pace::new(pacing, Limit::Time(100 * MS), 0);
        let mut sent = 0;
        while let Some(due) = pace.next() {
            sent += 1;
            pace.completed(due.at_ns + MS);
        }
        // At 0, 41 and 82 ms.
        assert_eq!(sent, 3);
    }
}
