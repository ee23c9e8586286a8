// SPDX-License-Identifier: Apache-2.0
//! A line on standard error that shows how far a long file is.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Short files need no line at all.
const DELAY: Duration = Duration::from_millis(500);
const INTERVAL: Duration = Duration::from_millis(200);
const WIDTH: usize = 30;

/// The line; silent when standard error is no terminal.
pub struct Progress {
    position: Arc<AtomicU64>,
    len: Option<u64>,
    started: Instant,
    next: Option<Instant>,
    shown: bool,
}

impl Progress {
    /// For a file of `len` bytes, of which `position` have been read.
    pub fn new(position: Arc<AtomicU64>, len: Option<u64>) -> Self {
        let started = Instant::now();
        let next = io::stderr().is_terminal().then_some(started + DELAY);
        Self {
            position,
            len,
            started,
            next,
            shown: false,
        }
    }

    /// Renews the line when it is time. Call it often.
    pub fn tick(&mut self, packets: u64) {
        let Some(next) = self.next else { return };
        let now = Instant::now();
        if now < next {
            return;
        }
        self.next = Some(now + INTERVAL);
        self.shown = true;
        let line = self.line(packets, now - self.started);
        // Progress is a courtesy: a terminal that went away is no error.
        let _ = write!(io::stderr(), "\r{line}\x1b[K");
    }

    fn line(&self, packets: u64, elapsed: Duration) -> String {
        let position = self.position.load(Ordering::Relaxed);
        let rate = packets as f64 / elapsed.as_secs_f64().max(1e-9) / 1e6;
        let tail = format!("{:.1} Mpkt, {rate:.1} Mpkt/s", packets as f64 / 1e6);
        match self.len {
            Some(len @ 1..) => {
                let share = (position as f64 / len as f64).min(1.0);
                let full = (share * WIDTH as f64) as usize;
                let bar = "=".repeat(full);
                format!("[{bar:<WIDTH$}] {:3.0} %  {tail}", share * 100.0)
            }
            _ => format!("{} MiB  {tail}", position >> 20),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
