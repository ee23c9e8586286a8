// SPDX-License-Identifier: Apache-2.0
//! The clients: visitors, who come by chance and ask some things one after another, and
//! those who hold a connection and ask now and then. The same seed gives the same visits with
//! the same work, whatever the servers do.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use crate::background::{joined, own_runtime};
use crate::chance::exponential;
use crate::load::get::HttpSession;
use crate::modelled_servers;
use crate::netns::Netns;

/// Bytes of an answer.
const SIZE: u32 = 2_000;
/// A client that waits for longer has a broken connection; one that waits behind a replaced
/// forwarder for an answer that nobody translates hears of it in no other way.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
/// What a holder asks for, and how often.
const KEPT_WORK: Duration = Duration::from_micros(200);
const KEPT_EVERY: Duration = Duration::from_secs(2);

/// What they do.
#[derive(Debug, Clone)]
pub(super) struct Visits {
    pub target: SocketAddr,
    /// Visitors per second.
    pub rate: f64,
    /// Requests of each.
    pub requests: u32,
    /// Mean work of one, exponential.
    pub work: Duration,
    pub holders: usize,
    pub seed: u64,
}

/// What they have seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// When each request was sent, and how long its answer took.
    answers: Mutex<Vec<(Instant, Duration)>>,
    /// Connections that were open and ended before their client was done.
    broken: AtomicU64,
    /// Connections that never opened.
    refused: AtomicU64,
    live: AtomicU64,
}

impl Seen {
    pub(super) fn broken(&self) -> u64 {
        self.broken.load(Ordering::Relaxed)
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Milliseconds of the requests sent in this time, in order of length.
    pub(super) fn sent_in(&self, from: Instant, upto: Instant) -> Vec<f64> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let within = answers
            .iter()
            .filter(|(sent, _)| (from..upto).contains(sent));
        let mut ms: Vec<f64> = within.map(|(_, took)| took.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        ms
    }
}

/// Clients that run until they are asked to end.
pub(super) struct RunningVisits {
    threads: Vec<JoinHandle<Result<()>>>,
    pub seen: Arc<Seen>,
    ends: Arc<std::sync::atomic::AtomicBool>,
}

impl RunningVisits {
    pub(super) fn start(clients: &[Netns], visits: &Visits) -> Self {
        let (seen, ends) = (Arc::<Seen>::default(), Arc::default());
        let threads = (0_u64..).zip(clients).map(|(index, netns)| {
            let count = clients.len();
            let visits = Visits {
                rate: visits.rate / count as f64,
                holders: (index as usize..visits.holders).step_by(count).count(),
                seed: visits.seed.wrapping_mul(1_000_003).wrapping_add(index),
                ..visits.clone()
            };
            let (seen, ends) = (Arc::clone(&seen), Arc::clone(&ends));
            netns.thread(move || {
                let runtime = own_runtime()?;
                runtime.block_on(visits.run(seen, ends));
                Ok(())
            })
        });
        Self {
            threads: threads.collect(),
            seen,
            ends,
        }
    }

    /// No more come; waits for those there are.
    pub(super) fn finish(self) -> Result<Arc<Seen>> {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads {
            joined(thread)?;
        }
        Ok(self.seen)
    }
}

type Ends = Arc<std::sync::atomic::AtomicBool>;

impl Visits {
    async fn run(self, seen: Arc<Seen>, ends: Ends) {
        let mut clients = JoinSet::new();
        for index in 0..self.holders {
            let phase = KEPT_EVERY.mul_f64(index as f64 / self.holders as f64);
            let (seen, ends) = (Arc::clone(&seen), Arc::clone(&ends));
            clients.spawn(keep_open(self.target, phase, seen, ends));
        }
        let mut rng = StdRng::seed_from_u64(self.seed);
        let (start, mut at) = (tokio::time::Instant::now(), Duration::ZERO);
        while !ends.load(Ordering::Relaxed) {
            at += Duration::from_secs_f64(1.0 / self.rate).mul_f64(exponential(&mut rng));
            let works = (0..self.requests).map(|_| self.work.mul_f64(exponential(&mut rng)));
            let paths: Vec<String> = works
                .map(|work| modelled_servers::queued(SIZE, work))
                .collect();
            sleep_until(start + at).await;
            clients.spawn(visit(self.target, paths, Arc::clone(&seen)));
            while clients.try_join_next().is_some() {}
        }
        while clients.join_next().await.is_some() {}
    }
}

/// A connection that counts while it is open.
struct Session<'a> {
    http: HttpSession,
    seen: &'a Seen,
}

impl<'a> Session<'a> {
    async fn open(target: SocketAddr, seen: &'a Seen) -> Option<Self> {
        let Ok(http) = HttpSession::open(target, TIMEOUT).await else {
            seen.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        seen.live.fetch_add(1, Ordering::Relaxed);
        Some(Self { http, seen })
    }

    /// Whether it was answered.
    async fn get(&mut self, path: &str) -> bool {
        let sent = Instant::now();
        if self.http.get(path).await.is_err() {
            self.seen.broken.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        let mut answers = self
            .seen
            .answers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        answers.push((sent, sent.elapsed()));
        true
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.seen.live.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn visit(target: SocketAddr, paths: Vec<String>, seen: Arc<Seen>) {
    let Some(mut session) = Session::open(target, &seen).await else {
        return;
    };
    for path in paths {
        if !session.get(&path).await {
            return;
        }
    }
}

/// A request now and then on one connection; a new one if it breaks.
async fn keep_open(target: SocketAddr, phase: Duration, seen: Arc<Seen>, ends: Ends) {
    let path = modelled_servers::queued(SIZE, KEPT_WORK);
    let mut due = tokio::time::Instant::now() + phase;
    while !ends.load(Ordering::Relaxed) {
        sleep_until(due).await;
        let Some(mut session) = Session::open(target, &seen).await else {
            due += KEPT_EVERY;
            continue;
        };
        while !ends.load(Ordering::Relaxed) && session.get(&path).await {
            due += KEPT_EVERY;
            sleep_until(due).await;
        }
    }
}
