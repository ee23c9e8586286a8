// SPDX-License-Identifier: Apache-2.0
//! What thresholds have told, for programs that ask. They say up to which event they know, and wait
//! for the next ones: one that comes again, also to the next agent, has missed nothing that is
//! remembered.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use causeway_api::Moment;
use causeway_api::agent::{ClientEvent, ClientEvents};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Events that are remembered.
const KEPT: usize = 1024;
/// Requests that wait at a time: each has a connection, of which there are 64.
pub(crate) const LISTENERS_MAX: usize = 16;

/// The last events, by number.
#[derive(Debug)]
pub(crate) struct EventLog {
    told: Mutex<Told>,
    news: Notify,
    listeners: Semaphore,
}

#[derive(Debug)]
struct Told {
    events: VecDeque<ClientEvent>,
    /// The number before that of the first in `events`.
    forgotten: u64,
    last: u64,
}

/// As many listen as may.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooManyListeners;

impl EventLog {
    /// Numbers begin with the time of day, in milliseconds: above those of the agent before.
    pub(crate) fn new() -> Self {
        Self::from(Moment::now().realtime_ns / 1_000_000)
    }

    fn from(last: u64) -> Self {
        Self {
            told: Mutex::new(Told {
                events: VecDeque::new(),
                forgotten: last,
                last,
            }),
            news: Notify::new(),
            listeners: Semaphore::new(LISTENERS_MAX),
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an event in and gives it its number.
    pub(crate) fn tell(&self, event: &mut ClientEvent) {
        let mut told = self.told();
        told.last += 1;
        event.id = told.last;
        told.events.push_back(event.clone());
        if told.events.len() > KEPT {
            told.forgotten = told.events.pop_front().map_or(told.last, |of| of.id);
        }
        drop(told);
        self.news.notify_waiters();
    }

    /// Those after a number: 0 for all that are remembered, `None` for none of them.
    pub(crate) fn after(&self, after: Option<u64>) -> ClientEvents {
        let told = self.told();
        let Some(after) = after else {
            return ClientEvents {
                last: told.last,
                ..ClientEvents::default()
            };
        };
        // The time of day was set back, and another agent began.
        let is_foreign = after > told.last;
        let events = told.events.iter();
        ClientEvents {
            events: events
                .filter(|of| of.id > after || is_foreign)
                .cloned()
                .collect(),
            last: told.last,
            missed: after > 0 && (after < told.forgotten || is_foreign),
        }
    }

    /// The same once there are any, or when the time is over.
    pub(crate) async fn wait(
        &self,
        after: u64,
        limit: Duration,
    ) -> Result<ClientEvents, TooManyListeners> {
        let _listener = self.listeners.try_acquire().map_err(|_| TooManyListeners)?;
        let deadline = Instant::now() + limit;
        loop {
            // Before the look, so that nothing comes between.
            let news = self.news.notified();
            let found = self.after(Some(after));
            if !found.events.is_empty() || found.missed {
                return Ok(found);
            }
            if timeout_at(deadline, news).await.is_err() {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    fn tell(log: &EventLog, count: usize) {
        for _ in 0..count {
            log.tell(&mut ClientEvent::default());
        }
    }

    fn ids(of: &ClientEvents) -> Vec<u64> {
        of.events.iter().map(|event| event.id).collect()
    }

    #[test]
    fn who_says_up_to_where_it_knows_gets_the_rest_and_is_told_of_gaps() {
        let log = EventLog::from(1000);
        assert_eq!(log.after(None).last, 1000);
        tell(&log, 3);
        let found = log.after(Some(1001));
        assert_eq!(
            (ids(&found), found.last, found.missed),
            (vec![1002, 1003], 1003, false)
        );
        assert!(log.after(None).events.is_empty());
        // Of the agent before, and of one whose clock was ahead.
        for other in [900, 5000] {
            let found = log.after(Some(other));
            assert_eq!((found.events.len(), found.missed), (3, true), "{other}");
        }
        let found = log.after(Some(0));
        assert_eq!((found.events.len(), found.missed), (3, false));
        tell(&log, KEPT);
        assert!(log.after(Some(1002)).missed);
        let found = log.after(Some(1003));
        assert_eq!((found.events.len(), found.missed), (KEPT, false));
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_the_next_event_and_only_so_many_may() {
        let log = Arc::new(EventLog::from(1000));
        let wait = |log: &Arc<EventLog>| {
            let log = Arc::clone(log);
            tokio::spawn(async move { log.wait(1000, LONG).await })
        };
        let waiting: Vec<_> = (0..LISTENERS_MAX).map(|_| wait(&log)).collect();
        while log.listeners.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(log.wait(1000, LONG).await, Err(TooManyListeners));
        tell(&log, 1);
        for one in waiting {
            let found = one.await.unwrap().unwrap();
            assert_eq!(ids(&found), [1001]);
        }
        let nothing = log.wait(1001, Duration::ZERO).await.unwrap();
        assert_eq!((ids(&nothing), nothing.last), (vec![], 1001));
    }
}
