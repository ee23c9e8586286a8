// SPDX-License-Identifier: Apache-2.0
//! Clients that stop trying to connect after some time.
//!
//! What they log is the truth: from connect(2) to the last byte, or until they gave up,
//! which counts as what they had waited (Certes, eq. 4).

use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::background::{joined, own_runtime};
use crate::chance::exponential;
use crate::clock::monotonic_ns;
use crate::cpu;
use crate::load::get::HttpSession;
use crate::load::log::ConnectionFault;
use crate::netns::Netns;

const ANSWER_BYTES: usize = 4000;
/// How long a connected client waits for an answer.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// A client whose connection broke begins again no sooner than this.
const RETRY_BACKOFF: Duration = Duration::from_millis(50);

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionEnd {
    /// All answers came.
    Done,
    /// The client was not connected in time.
    GaveUp,
    /// It was connected and got no answer.
    Unserved,
    /// The connection broke.
    Broken,
}

/// A transaction in its client's log. CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
pub struct Transaction {
    /// connect(2).
    pub begin_ns: u64,
    /// Last byte, or when the client gave up.
    pub end_ns: u64,
    /// How it ended.
    pub end: TransactionEnd,
}

/// What the clients do.
#[derive(Debug, Clone)]
pub struct ImpatientClientsConfig {
    /// The server.
    pub target: SocketAddrV4,
    /// How many begin again as soon as they are done; or as many as there are at most
    /// at a time, with `arrivals`.
    pub clients: usize,
    /// Requests of a connection, one after another.
    pub requests: u32,
    /// How long clients try to connect; client `i` has the `i`-th, round and round.
    pub connect_timeouts: Vec<Duration>,
    /// All clients pause after the first for the second.
    pub on_off: Option<(Duration, Duration)>,
    /// Instead of clients that begin again: arrivals per second by chance, during the
    /// on time and during the off time.
    pub arrivals: Option<(f64, f64)>,
    /// How long they begin transactions.
    pub duration: Duration,
    /// Mean service time that requests ask for, exponentially distributed; some servers
    /// have their own.
    pub service: Duration,
    /// Source of all chance.
    pub seed: u64,
}

/// Clients at work.
pub struct ImpatientClients(JoinHandle<Result<Vec<Transaction>>>);

impl ImpatientClients {
    pub fn start(netns: &Netns, config: ImpatientClientsConfig) -> Self {
        Self(netns.thread(move || {
            cpu::go_first().context("the clients cannot go first")?;
            let runtime = own_runtime()?;
            Ok(runtime.block_on(run(config)))
        }))
    }

    /// Waits until the last transaction has ended.
    pub fn finish(self) -> Result<Vec<Transaction>> {
        joined(self.0)
    }
}

type Log = Arc<Mutex<Vec<Transaction>>>;

async fn run(config: ImpatientClientsConfig) -> Vec<Transaction> {
    let log: Log = Arc::default();
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    match config.arrivals {
        None => {
            for number in 0..config.clients {
                tasks.spawn(closed(config.clone(), number, start, Arc::clone(&log)));
            }
        }
        Some(rates) => arrive(&config, rates, start, &mut tasks, &log).await,
    }
    while tasks.join_next().await.is_some() {}
    std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Until when all clients pause, if they do now.
fn pause_until(config: &ImpatientClientsConfig, start: Instant) -> Option<Instant> {
    let (on, off) = config.on_off?;
    let phase = start.elapsed().as_secs_f64() % (on + off).as_secs_f64();
    (phase > on.as_secs_f64())
        .then(|| Instant::now() + (on + off).saturating_sub(Duration::from_secs_f64(phase)))
}

async fn closed(config: ImpatientClientsConfig, number: usize, start: Instant, log: Log) {
    let mut rng = StdRng::seed_from_u64(config.seed ^ (number as u64).wrapping_mul(0x9e37_79b9));
    let connect_timeout = config.connect_timeouts[number % config.connect_timeouts.len()];
    sleep(Duration::from_secs_f64(rng.random_range(0.0..1.0))).await;
    while start.elapsed() < config.duration {
        if let Some(until) = pause_until(&config, start) {
            sleep_until(until + Duration::from_secs_f64(rng.random_range(0.0..0.5))).await;
            continue;
        }
        let end = transact(&config, connect_timeout, &mut rng, &log).await;
        if end == TransactionEnd::Broken {
            sleep(RETRY_BACKOFF).await;
        }
    }
}

async fn arrive(
    config: &ImpatientClientsConfig,
    (on_rate, off_rate): (f64, f64),
    start: Instant,
    tasks: &mut tokio::task::JoinSet<()>,
    log: &Log,
) {
    let mut rng = StdRng::seed_from_u64(config.seed);
    let mut number = 0;
    let mut next = start;
    while start.elapsed() < config.duration {
        let rate = match pause_until(config, start) {
            Some(_) => off_rate,
            None => on_rate,
        };
        let gap_s = exponential(&mut rng) / rate;
        next += Duration::from_secs_f64(gap_s);
        sleep_until(next).await;
        while tasks.try_join_next().is_some() {}
        if tasks.len() >= config.clients {
            continue;
        }
        let connect_timeout = config.connect_timeouts[number % config.connect_timeouts.len()];
        number += 1;
        let (config, log) = (config.clone(), Arc::clone(log));
        let mut own = StdRng::seed_from_u64(rng.random());
        tasks.spawn(async move {
            transact(&config, connect_timeout, &mut own, &log).await;
        });
    }
}

/// Each request is a transaction, the first with what the connection took.
async fn transact(
    config: &ImpatientClientsConfig,
    connect_timeout: Duration,
    rng: &mut StdRng,
    log: &Log,
) -> TransactionEnd {
    let begin_ns = monotonic_ns();
    let write = |begin_ns, end| {
        let end_ns = monotonic_ns();
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.push(Transaction {
            begin_ns,
            end_ns,
            end,
        });
        end
    };
    let mut session = match HttpSession::open(config.target.into(), connect_timeout).await {
        Err(ConnectionFault::ConnectTimeout) => return write(begin_ns, TransactionEnd::GaveUp),
        Err(_) => return write(begin_ns, TransactionEnd::Broken),
        Ok(session) => session,
    };
    for request in 1..=config.requests {
        let begin_ns = match request {
            1 => begin_ns,
            _ => monotonic_ns(),
        };
        let asking = ask(&mut session, config, request == config.requests, rng);
        let end = match timeout(RESPONSE_TIMEOUT, asking).await {
            Err(_) | Ok(Err(ConnectionFault::ResponseTimeout)) => TransactionEnd::Unserved,
            Ok(Err(_)) => TransactionEnd::Broken,
            Ok(Ok(())) => TransactionEnd::Done,
        };
        write(begin_ns, end);
        if end != TransactionEnd::Done {
            // The server is to learn at once that this client is gone.
            session.reset_on_close();
            return end;
        }
    }
    TransactionEnd::Done
}

/// One request; after the last one the server closes.
async fn ask(
    session: &mut HttpSession,
    config: &ImpatientClientsConfig,
    is_last: bool,
    rng: &mut StdRng,
) -> Result<(), ConnectionFault> {
    let service = config.service.mul_f64(exponential(rng));
    let path = format!("/b/{ANSWER_BYTES}/{}", service.as_micros());
    match is_last {
        true => session.get_last(&path).await.map(drop),
        false => session.get(&path).await.map(drop),
    }
}
