// SPDX-License-Identifier: Apache-2.0
//! The clients of a run, each a sequence of steps; all of a namespace share a thread.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, bail};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep_until};

use super::session::{ClientSession, TargetService};
use super::tally::Tally;
use crate::background::{joined, own_runtime};
use crate::chance::{exponential, log_normal};
use crate::modelled_servers;
use crate::netns::Netns;

/// Longest wait for the next byte of an answer. Retransmissions of what was lost come
/// after 0.2, 0.6, 1.4, 3.0 and 6.2 s: a client without an answer by then will get none.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Sizes and durations of web answers are log-normal: medians, the standard deviation
/// of the logarithm, and the largest. Most are short; the mean duration is five times
/// the median, and those that last are what a change of the pool can break.
const SIZE_MEDIAN: f64 = 10_000.0;
const SIZE_SIGMA: f64 = 1.2;
const SIZE_MAX: f64 = 500_000.0;
const LASTS_MEDIAN_S: f64 = 0.3;
const LASTS_SIGMA: f64 = 1.8;
/// What a streaming client asks for, and how often.
const STREAM_SIZE: u32 = 8_000;
const STREAM_EVERY: Duration = Duration::from_millis(250);

/// The load of a run.
#[derive(Debug, Clone)]
pub(in crate::scenario) struct ConnectionLoad {
    /// The services, IPv4 and IPv6; clients take them by turns.
    pub targets: Vec<SocketAddr>,
    /// Whether they speak QUIC.
    pub quic: bool,
    /// How long new connections come at least.
    pub lasts: Duration,
    /// Lowest and highest rate of new connections per second.
    pub rates: (f64, f64),
    /// Clients that send a request every quarter of a second, all the time.
    pub streams: usize,
    /// Clients that send one request, wait, and send another.
    pub idlers: usize,
    /// Shortest and longest of those waits.
    pub idle: (Duration, Duration),
    /// Source of all chance.
    pub seed: u64,
}

impl ConnectionLoad {
    /// Rate of new connections at a time: one wave of a cosine, highest in the middle.
    fn rate(&self, at: Duration) -> f64 {
        let (low, high) = self.rates;
        let phase = at.as_secs_f64() / self.lasts.as_secs_f64() * std::f64::consts::TAU;
        low + (high - low) * (1.0 - phase.cos()) / 2.0
    }

    /// The load of one of several namespaces.
    fn part(&self, index: usize, of: usize) -> Self {
        let share = |all: usize| all / of + usize::from(index < all % of);
        Self {
            rates: (self.rates.0 / of as f64, self.rates.1 / of as f64),
            streams: share(self.streams),
            idlers: share(self.idlers),
            seed: self.seed.wrapping_mul(1_000_003).wrapping_add(index as u64),
            ..self.clone()
        }
    }
}

/// A load that runs, also beyond its length: what happens to a pool meanwhile takes longer on a
/// busy machine.
pub(in crate::scenario) struct RunningClients {
    threads: Vec<JoinHandle<Result<()>>>,
    over: Arc<AtomicBool>,
}

impl RunningClients {
    /// Starts the load from these namespaces.
    pub(in crate::scenario) fn start(
        clients: &[Netns],
        load: &ConnectionLoad,
        tally: &Arc<Tally>,
    ) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let threads = clients.iter().enumerate().map(|(index, netns)| {
            let (load, tally) = (load.part(index, clients.len()), Arc::clone(tally));
            let over = Arc::clone(&over);
            netns.thread(move || {
                let runtime = own_runtime()?;
                LocalSet::new().block_on(&runtime, run(load, tally, over))
            })
        });
        Self {
            threads: threads.collect(),
            over,
        }
    }

    /// Lets the load end once it has lasted as long as it should, and waits for every client.
    pub(in crate::scenario) fn finish(self) -> Result<()> {
        self.over.store(true, Relaxed);
        for thread in self.threads {
            joined(thread)?;
        }
        Ok(())
    }
}

/// When a load ends.
#[derive(Clone)]
struct End {
    not_before: Instant,
    over: Arc<AtomicBool>,
}

impl End {
    fn is_before(&self, at: Instant) -> bool {
        at >= self.not_before && self.over.load(Relaxed)
    }
}

async fn run(load: ConnectionLoad, tally: Arc<Tally>, over: Arc<AtomicBool>) -> Result<()> {
    let start = Instant::now();
    let end = End {
        not_before: start + load.lasts,
        over,
    };
    let mut rng = StdRng::seed_from_u64(load.seed);
    let mut clients = JoinSet::new();
    let silence = load.idle.1 + load.lasts;
    let mut services = TargetService::all(&load.targets, load.quic, silence)?
        .into_iter()
        .cycle();
    let mut service = move || services.next();
    // They come within the first twentieth, not all at once.
    let soon = |rng: &mut StdRng| start + load.lasts.mul_f64(rng.random_range(0.0..0.05));
    for _ in 0..load.streams {
        let (Some(service), begin) = (service(), soon(&mut rng)) else {
            bail!("no service to talk to");
        };
        clients.spawn_local(stream(service, begin, end.clone(), Arc::clone(&tally)));
    }
    for _ in 0..load.idlers {
        let (Some(service), begin) = (service(), soon(&mut rng)) else {
            bail!("no service to talk to");
        };
        let idle = rng.random_range(load.idle.0..=load.idle.1);
        clients.spawn_local(idle_between(service, begin, idle, Arc::clone(&tally)));
    }
    let mut at = Duration::ZERO;
    loop {
        // A Poisson process whose rate follows the wave.
        let gap = exponential(&mut rng) / load.rate(at);
        at += Duration::from_secs_f64(gap.min(load.lasts.as_secs_f64()));
        if end.is_before(start + at) {
            break;
        }
        let size = log_normal(&mut rng, SIZE_MEDIAN, SIZE_SIGMA).min(SIZE_MAX) as u32;
        let lasts = log_normal(&mut rng, LASTS_MEDIAN_S, LASTS_SIGMA);
        let lasts = Duration::from_secs_f64(lasts).min(load.lasts / 4);
        sleep_until(start + at).await;
        if let Some(service) = service() {
            clients.spawn_local(web(
                service,
                modelled_servers::spread(size, lasts),
                Arc::clone(&tally),
            ));
        }
        while clients.try_join_next().is_some() {}
    }
    while clients.join_next().await.is_some() {}
    Ok(())
}

/// One request on a connection of its own.
async fn web(service: TargetService, path: String, tally: Arc<Tally>) {
    const KIND: &str = "web";
    tally.connection(KIND);
    let answer = async {
        ClientSession::open(&service, READ_TIMEOUT, &tally)
            .await?
            .get(&path)
            .await
    };
    match answer.await {
        Ok(_) => tally.answered(),
        Err(fault) => tally.broke(KIND, fault),
    }
}

/// A request every quarter of a second on one connection; a new one if it breaks.
async fn stream(service: TargetService, begin: Instant, end: End, tally: Arc<Tally>) {
    const KIND: &str = "stream";
    let mut due = begin;
    while !end.is_before(due) {
        sleep_until(due).await;
        tally.connection(KIND);
        let result = async {
            let mut session = ClientSession::open(&service, READ_TIMEOUT, &tally).await?;
            while !end.is_before(due) {
                session
                    .get(&modelled_servers::spread(STREAM_SIZE, Duration::ZERO))
                    .await?;
                tally.answered();
                due = (due + STREAM_EVERY).max(Instant::now());
                sleep_until(due).await;
            }
            Ok(())
        };
        if let Err(fault) = result.await {
            tally.broke(KIND, fault);
            due = Instant::now() + STREAM_EVERY;
        }
    }
}

/// A request, a long silence, and another request.
async fn idle_between(service: TargetService, begin: Instant, idle: Duration, tally: Arc<Tally>) {
    const KIND: &str = "idle";
    sleep_until(begin).await;
    tally.connection(KIND);
    let path = modelled_servers::spread(STREAM_SIZE, Duration::ZERO);
    let result = async {
        let mut session = ClientSession::open(&service, READ_TIMEOUT, &tally).await?;
        session.get(&path).await?;
        tally.answered();
        sleep_until(Instant::now() + idle).await;
        session.get(&path).await?;
        tally.answered();
        Ok(())
    };
    if let Err(fault) = result.await {
        tally.broke(KIND, fault);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> ConnectionLoad {
        ConnectionLoad {
            targets: Vec::new(),
            quic: false,
            lasts: Duration::from_secs(100),
            rates: (60.0, 100.0),
            streams: 7,
            idlers: 8,
            idle: (Duration::ZERO, Duration::ZERO),
            seed: 1,
        }
    }

    #[test]
    fn the_wave_is_lowest_at_the_ends() {
        for (at, rate) in [(0, 60.0), (25, 80.0), (50, 100.0), (100, 60.0)] {
            assert!((load().rate(Duration::from_secs(at)) - rate).abs() < 1e-9);
        }
    }

    #[test]
    fn parts_add_up() {
        let parts: Vec<ConnectionLoad> = (0..3).map(|index| load().part(index, 3)).collect();
        assert_eq!(parts.iter().map(|part| part.streams).sum::<usize>(), 7);
        assert_eq!(parts.iter().map(|part| part.idlers).sum::<usize>(), 8);
        assert!((parts.iter().map(|part| part.rates.1).sum::<f64>() - 100.0).abs() < 1e-9);
        assert_ne!(parts[0].seed, parts[1].seed);
    }

    #[test]
    fn the_median_is_the_median() {
        let mut rng = StdRng::seed_from_u64(3);
        let below = (0..10_000).filter(|_| log_normal(&mut rng, 5.0, 1.8) < 5.0);
        assert!((4_800..5_200).contains(&below.count()));
    }
}
