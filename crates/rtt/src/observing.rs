// SPDX-License-Identifier: Apache-2.0
//! A thread that reads the sampler and turns packets into latencies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result};
use causeway_core::rtt::{RttObserver, Value};
use causeway_dataplane::{Sampler, SamplerOptions};
use causeway_netio::rtt::clock;

/// How often the sampler is read. The kernel keeps what comes in between.
const EVERY_NS: u64 = 20_000_000;
/// Connections followed at once.
const FLOWS: usize = 4096;

/// A running sampler.
pub(crate) struct Observing {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Result<Unobserved>>,
}

/// What was not observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unobserved {
    /// Packets for which the kernel had no room.
    pub records: u64,
    /// Packets of connections beyond the bound.
    pub refused: u64,
}

impl Observing {
    /// Starts a sampler that forgets segments after `memory_ns`; `tell` is called with each
    /// latency. Returns when the sampler is on its interface.
    ///
    /// # Errors
    /// Those of [`Sampler::start`].
    pub(crate) fn start(
        options: SamplerOptions,
        memory_ns: u64,
        tell: impl FnMut(Value) + Send + 'static,
    ) -> Result<Self> {
        let done = Arc::new(AtomicBool::new(false));
        let ended = done.clone();
        let (ready, started) = mpsc::sync_channel(1);
        let thread = thread::Builder::new()
            .name("rtt-sampler".to_owned())
            .spawn(move || {
                let sampler = match Sampler::start(&options) {
                    Ok(sampler) => sampler,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return Ok(Unobserved::default());
                    }
                };
                // The thread that started this one waits for it.
                let _ = ready.send(Ok(()));
                read(sampler, memory_ns, &ended, tell)
            })
            .context("cannot start a thread")?;
        started
            .recv()
            .context("the sampler's thread has ended")?
            .context("the sampler")?;
        Ok(Self { done, thread })
    }

    /// Takes the sampler off and gives what it missed.
    pub(crate) fn end(self) -> Result<Unobserved> {
        self.done.store(true, Ordering::Release);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the sampler ended by a panic"))?
    }
}

fn read(
    mut sampler: Sampler,
    memory_ns: u64,
    done: &AtomicBool,
    mut tell: impl FnMut(Value),
) -> Result<Unobserved> {
    let mut observer = RttObserver::new(FLOWS, memory_ns);
    loop {
        // Looked at before reading: what came until then is read.
        let last = done.load(Ordering::Acquire);
        for seen in sampler.take()? {
            observer.seen(&seen, &mut tell);
        }
        if last {
            break;
        }
        clock::sleep_until(clock::now_ns() + EVERY_NS);
    }
    observer.finish(&mut tell);
    Ok(Unobserved {
        records: sampler.lost(),
        refused: observer.refused(),
    })
}
