// SPDX-License-Identifier: Apache-2.0
//! Where all threads of a run put their latencies.

use std::sync::{Mutex, MutexGuard, PoisonError};

use causeway_core::rtt::{RttLatencies, RttMethod};

/// A mutex that a panic elsewhere does not close.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct Recorder {
    /// All intervals that have ended.
    ended: RttLatencies,
    /// The open one.
    open: RttLatencies,
}

/// Latencies by method: two histograms each, whatever the length of a run.
#[derive(Debug)]
pub(crate) struct Records {
    methods: Vec<(RttMethod, Mutex<Recorder>)>,
}

impl Records {
    /// For these methods; what others measure is dropped.
    pub(crate) fn new(methods: &[RttMethod]) -> Self {
        Self {
            methods: methods.iter().map(|m| (*m, Mutex::default())).collect(),
        }
    }

    fn of(&self, method: RttMethod) -> Option<MutexGuard<'_, Recorder>> {
        let found = self.methods.iter().find(|(m, _)| *m == method)?;
        Some(lock(&found.1))
    }

    /// Adds a latency.
    pub(crate) fn record(&self, method: RttMethod, ns: u64, count: u32) {
        if let Some(mut recorder) = self.of(method) {
            (0..count).for_each(|_| recorder.open.record(ns));
        }
    }

    /// Ends the open interval of every method and gives it.
    pub(crate) fn end_interval(&self) -> Vec<(RttMethod, RttLatencies)> {
        let methods = self.methods.iter().map(|(method, recorder)| {
            let mut recorder = lock(recorder);
            let interval = std::mem::take(&mut recorder.open);
            recorder.ended.merge(&interval);
            (*method, interval)
        });
        methods.collect()
    }

    /// Everything so far; `None` for a method that is not measured.
    pub(crate) fn total(&self, method: RttMethod) -> Option<RttLatencies> {
        let recorder = self.of(method)?;
        let mut total = recorder.ended.clone();
        total.merge(&recorder.open);
        Some(total)
    }

    /// The methods measured.
    pub(crate) fn methods(&self) -> impl Iterator<Item = RttMethod> + '_ {
        self.methods.iter().map(|(method, _)| *method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_add_up_to_the_total() {
        let records = Records::new(&[RttMethod::Rr, RttMethod::Ping]);
        records.record(RttMethod::Rr, 1_000, 1);
        records.record(RttMethod::Rr, 3_000, 2);
        records.record(RttMethod::Tcp, 9_000, 1);
        let ended = records.end_interval();
        assert_eq!(ended[0].1.count(), 3);
        assert_eq!(ended[1].1.count(), 0);
        records.record(RttMethod::Rr, 5_000, 1);
        assert_eq!(records.total(RttMethod::Rr).map(|l| l.count()), Some(4));
        assert!(records.total(RttMethod::Tcp).is_none());
        assert_eq!(records.end_interval()[0].1.count(), 1);
        assert_eq!(records.total(RttMethod::Rr).map(|l| l.count()), Some(4));
    }
}
