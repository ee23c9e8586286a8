// SPDX-License-Identifier: Apache-2.0
//! A line on standard error that shows how far a long file is.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Short files need no line at all.
const DELAY: Duration = Duration::from_millis(500);
const RENEWED_PER_S: u8 = 5;

/// The line; silent when standard error is not a terminal.
pub(crate) struct Progress {
    position: Arc<AtomicU64>,
    len: Option<u64>,
    started: Instant,
    /// Not shown.
    silent: bool,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// For a file of `len` bytes, of which `position` have been read.
    pub(crate) fn new(position: Arc<AtomicU64>, len: Option<u64>) -> Self {
        Self {
            position,
            len,
            started: Instant::now(),
            silent: !io::stderr().is_terminal(),
            bar: None,
        }
    }

    /// Renews the line when it is time. Call it often.
    pub(crate) fn tick(&mut self, packets: u64) {
        if self.silent || self.bar.is_none() && self.started.elapsed() < DELAY {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| bar(self.len));
        let rate = packets as f64 / self.started.elapsed().as_secs_f64() / 1e6;
        bar.set_position(self.position.load(Ordering::Relaxed));
        bar.set_message(format!(
            "{:.1} Mpkt, {rate:.1} Mpkt/s",
            packets as f64 / 1e6
        ));
    }
}

fn bar(len: Option<u64>) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(RENEWED_PER_S);
    let template = match len {
        Some(_) => "[{bar:30}] {percent:>3} %  {msg}  {eta} left",
        None => "{bytes}  {msg}",
    };
    // The templates are ours; a plain bar would do as well.
    let style = ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ");
    ProgressBar::with_draw_target(len, target).with_style(style)
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
