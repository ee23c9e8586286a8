// SPDX-License-Identifier: Apache-2.0
//! A thread that works until it is told to stop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tracing::warn;

/// Handle of the thread.
pub(crate) struct Worker {
    thread: JoinHandle<()>,
    stop: Arc<AtomicBool>,
}

impl Worker {
    /// Begins. The work gets what says that it is to end; parked, it is woken then.
    pub(crate) fn start(
        name: &str,
        work: impl FnOnce(&AtomicBool) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || work(&stopped))?;
        Ok(Self { thread, stop })
    }

    /// Begins what is done again and again, and once more behind the stop: what is kept is to be
    /// as it was left.
    pub(crate) fn repeat(
        name: &str,
        every: Duration,
        mut work: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        Self::start(name, move |stopped| {
            loop {
                let is_last = stopped.load(Ordering::Relaxed);
                work();
                if is_last {
                    return;
                }
                thread::park_timeout(every);
            }
        })
    }

    /// Ends it.
    pub(crate) fn stop(self) {
        self.tell();
        // A panic in it was reported.
        let _ = self.thread.join();
    }

    /// Ends it, or gives it up: it may wait for a disk or a router that is not answering.
    pub(crate) fn stop_within(self, timeout: Duration) {
        self.tell();
        let until = Instant::now() + timeout;
        while !self.thread.is_finished() {
            if Instant::now() >= until {
                let name = self.thread.thread().name().unwrap_or_default();
                warn!("the work of the thread `{name}` is given up: it does not end");
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        self.stop();
    }

    fn tell(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_stop_does_not_wait_for_what_hangs() {
        let (begun, begins) = mpsc::channel();
        let (_hangs, hung) = mpsc::channel::<()>();
        let work = move || {
            begun.send(()).unwrap();
            let _ = hung.recv();
        };
        let worker = Worker::repeat("state", Duration::ZERO, work).unwrap();
        begins.recv().unwrap();
        worker.stop_within(Duration::from_millis(10));
        assert!(begins.try_recv().is_err(), "it hangs still");
    }

    /// What changed since the last time would not be kept.
    #[test]
    fn a_stop_has_the_work_done_once_more() {
        let (begun, begins) = mpsc::channel();
        let work = move || begun.send(()).unwrap();
        let worker = Worker::repeat("state", Duration::from_secs(3600), work).unwrap();
        begins.recv().unwrap();
        worker.stop_within(Duration::from_secs(60));
        assert!(begins.try_recv().is_ok());
    }
}
