// SPDX-License-Identifier: Apache-2.0
//! A web-like load generator that knows the truth: when each request was sent,
//! when the last byte of its answer came, and which request that answer set off.
//!
//! It is closed-loop (a page's objects wait for the objects that name them, and
//! at most `outstanding` requests wait on one connection, pipelined as HTTP/1.1
//! has it) but paced: each of its slots begins its pages by a timetable, so that
//! two runs with one seed offer the same pages at the same times as long as the
//! servers keep up. Connections come and go.
//!
//! One thread per client namespace waits in epoll with nanosecond timeouts.
//! [`log::Cost`] states what that thread itself used and how late it sent.

mod client;
pub mod flood;
pub mod frame_flood;
pub mod get;
pub mod http;
pub mod log;
pub mod page;
pub(crate) mod poll;
pub mod protocol;
pub mod report;
mod slot;
pub(crate) mod socket;
pub mod wrk;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Result, bail};
use rand::Rng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use crate::background::joined;
use crate::clock;
use crate::netns::Netns;
use log::Log;
use page::PageShape;
use protocol::AppProtocol;

/// What to send, where, and for how long.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LoadConfig {
    /// The VIP and port.
    pub target: SocketAddr,
    /// What is spoken.
    pub protocol: AppProtocol,
    /// Same seed, same pages at the same nominal times.
    pub seed: u64,
    /// Pages begin for this long; answers still out are then waited for.
    pub duration_ms: u64,
    /// Users, each with at most one connection at a time.
    pub slots: usize,
    /// Requests that may wait on one connection.
    pub outstanding: usize,
    /// Send only when nothing is outstanding, and then all that may be, in one
    /// write, as pipelining Redis clients do.
    pub pipeline: bool,
    /// Connections live for between half of this and this long, then are closed
    /// at the next moment without outstanding requests.
    pub max_age_ms: u64,
    /// Each slot begins a page once per interval, or as soon after as the
    /// previous one is complete.
    pub page_interval_ms: u64,
    /// Above 0, a slot rests between its pages instead: an exponential time with
    /// this mean.
    pub idle_ms: f64,
    /// What a page consists of.
    pub page: PageShape,
    /// A connection that does not open, or a request that is not answered,
    /// within this time is broken.
    pub timeout_ms: u64,
    /// Log the kernel's own round-trip time of the connection with each response.
    pub tcp_info: bool,
}

impl LoadConfig {
    /// Twenty users, four requests outstanding, connections of at most 2 s.
    pub fn new(target: SocketAddr, seed: u64) -> Self {
        Self {
            target,
            protocol: AppProtocol::Http,
            seed,
            duration_ms: 10_000,
            slots: 20,
            outstanding: 4,
            pipeline: false,
            max_age_ms: 2_000,
            page_interval_ms: 500,
            idle_ms: 0.0,
            page: PageShape::default(),
            timeout_ms: 10_000,
            tcp_info: false,
        }
    }

    /// How long a slot rests before a page, in ns, where pages have no timetable.
    pub(crate) fn rest_ns(&self, rng: &mut StdRng, page: u32) -> Option<u64> {
        if self.idle_ms <= 0.0 || page == 0 {
            return None;
        }
        let uniform = 1.0 - rng.random::<f64>();
        Some((-uniform.ln() * self.idle_ms * 1e6) as u64)
    }

    /// Requests per second that are offered while servers keep up.
    pub fn offered_rps(&self) -> f64 {
        self.slots as f64 * self.page.mean_objects() * 1000.0 / self.page_interval_ms as f64
    }
}

/// Counts that can be read while the load runs.
#[derive(Debug, Default)]
pub struct Progress {
    requests: AtomicU64,
    broken: AtomicU64,
    latency_ns: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    /// Answers so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Broken connections so far.
    pub fn broken(&self) -> u64 {
        self.broken.load(Ordering::Relaxed)
    }

    /// Sum over all answers of the time from sending to the last byte.
    pub fn latency_ns(&self) -> u64 {
        self.latency_ns.load(Ordering::Relaxed)
    }

    /// Whether no page begins any more, before the time that was set.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn broke(&self) {
        self.broken.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self, latency_ns: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.latency_ns.fetch_add(latency_ns, Ordering::Relaxed);
    }
}

/// A load that is under way.
#[derive(Debug)]
pub struct RunningLoad {
    threads: Vec<JoinHandle<Result<Log>>>,
    progress: Arc<Progress>,
    start_ns: u64,
    end_ns: u64,
}

/// Starts the load over HTTP/1.1, slots dealt out over `clients` in turn.
pub fn start(clients: &[Netns], config: &LoadConfig) -> Result<RunningLoad> {
    start_with(clients, config, client::run)
}

/// Starts a load whose slots `run` serves, on a thread in each of `clients`: it
/// gets the configuration, its slots, the start and the live counts.
pub(crate) fn start_with<F>(clients: &[Netns], config: &LoadConfig, run: F) -> Result<RunningLoad>
where
    F: Fn(&LoadConfig, &[usize], u64, &Progress) -> Result<Log> + Clone + Send + 'static,
{
    if clients.is_empty() || config.slots == 0 || config.outstanding == 0 {
        bail!("a load needs a client, a slot and an outstanding request");
    }
    let progress = Arc::new(Progress::default());
    // Far enough off for every thread to be ready.
    let start_ns = clock::monotonic_ns() + 50_000_000;
    let threads = clients
        .iter()
        .enumerate()
        .map(|(i, netns)| {
            let slots: Vec<usize> = (i..config.slots).step_by(clients.len()).collect();
            let (config, progress, run) = (config.clone(), progress.clone(), run.clone());
            netns.thread(move || run(&config, &slots, start_ns, &progress))
        })
        .collect();
    let end_ns = start_ns + config.duration_ms * 1_000_000;
    Ok(RunningLoad {
        threads,
        progress,
        start_ns,
        end_ns,
    })
}

impl RunningLoad {
    /// Live counts.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// CLOCK_MONOTONIC nanoseconds at which the load began.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Whether pages still begin.
    pub fn is_active(&self) -> bool {
        clock::monotonic_ns() < self.end_ns
    }

    /// Ends the load now: pages that have begun are completed, no other begins.
    pub fn stop(&mut self) {
        self.progress.stopped.store(true, Ordering::Relaxed);
        self.end_ns = self.end_ns.min(clock::monotonic_ns());
    }

    /// Waits for the end and returns what the clients saw.
    pub fn finish(self) -> Result<Log> {
        let mut log = Log::default();
        for thread in self.threads {
            let part = joined(thread)?;
            log.append(part);
        }
        log.start_ns = self.start_ns;
        log.end_ns = self.end_ns;
        log.sort();
        Ok(log)
    }
}
