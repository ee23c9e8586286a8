// SPDX-License-Identifier: Apache-2.0
//! An HTTP/1.1 server with a fixed number of workers behind the kernel's accept queue, each
//! of which serves one connection at a time: what overflows the queue is dropped by the
//! kernel, as with a real server of that kind. A request's service time is modelled.

use std::net::SocketAddrV4;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use nix::sys::socket::{Backlog, listen};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::background::{Background, own_runtime};
use crate::chance::exponential;
use crate::clock::monotonic_ns;
use crate::impatient_clients::RESPONSE_TIMEOUT;
use crate::modelled_servers::{listen_on, next_head, write_answer};
use crate::netns::Netns;

/// What the server does.
#[derive(Debug, Clone)]
pub struct AcceptQueueConfig {
    /// Where it listens.
    pub address: SocketAddrV4,
    /// Connections that are served at a time.
    pub workers: usize,
    /// Mean service time of a request, exponentially distributed.
    pub service: Duration,
    /// Limits of the accept queue: each holds for `period`, then the next one.
    pub backlog: Vec<i32>,
    /// How long each limit holds.
    pub period: Duration,
    /// Source of all chance.
    pub seed: u64,
}

/// A connection in the server's own log.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// When it was closed, CLOCK_MONOTONIC.
    pub end_ns: u64,
    /// From accept(2) to the last answer, nanoseconds.
    pub took_ns: u64,
}

type ServedLog = Arc<Mutex<Vec<Served>>>;

/// A server at work; dropped, it ends.
pub struct AcceptQueueServer {
    served: ServedLog,
    socket: std::net::TcpListener,
    _thread: Background,
}

impl AcceptQueueServer {
    /// Listens, then serves on a thread of its own.
    pub fn start(netns: &Netns, config: AcceptQueueConfig) -> Result<Self> {
        let (address, first) = (config.address, config.backlog[0]);
        let socket = netns.run(move || listen_on(address.into(), first))?;
        let served = ServedLog::default();
        let (listener, log) = (socket.try_clone()?, served.clone());
        let thread = Background::spawn(move |stop| {
            let runtime = own_runtime()?;
            let again = listener.try_clone()?;
            let start = Instant::now();
            let mut turn = 0;
            let result = runtime.block_on(async {
                start_workers(listener, &config, &log)?;
                while !stop.load(Ordering::Relaxed) {
                    sleep(Duration::from_millis(50)).await;
                    let period = config.period.as_nanos().max(1);
                    let now = (start.elapsed().as_nanos() / period) as usize;
                    if config.backlog.len() > 1 && now != turn {
                        turn = now;
                        let limit = config.backlog[turn % config.backlog.len()];
                        listen(&again, Backlog::new(limit)?)?;
                    }
                }
                Ok(())
            });
            runtime.shutdown_background();
            result
        });
        Ok(Self {
            served,
            socket,
            _thread: thread,
        })
    }

    /// What it has served so far.
    pub fn served(&self) -> Vec<Served> {
        self.served
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sets the limit of its accept queue, as a process does that calls listen(2) again.
    pub fn set_backlog(&self, limit: u32) -> Result<()> {
        Ok(listen(&self.socket, Backlog::new(limit as i32)?)?)
    }
}

fn start_workers(
    listener: std::net::TcpListener,
    config: &AcceptQueueConfig,
    served: &ServedLog,
) -> Result<()> {
    let listener = Arc::new(TcpListener::from_std(listener)?);
    for worker in 0..config.workers {
        let seed = config.seed ^ (worker as u64).wrapping_mul(0x517c_c1b7);
        let rng = StdRng::seed_from_u64(seed);
        tokio::spawn(work(listener.clone(), config.service, rng, served.clone()));
    }
    Ok(())
}

async fn work(listener: Arc<TcpListener>, service: Duration, mut rng: StdRng, served: ServedLog) {
    loop {
        // Errors are of one connection.
        let Ok((mut stream, _)) = listener.accept().await else {
            continue;
        };
        let begin_ns = monotonic_ns();
        let serving = serve(&mut stream, service, &mut rng);
        if !matches!(timeout(RESPONSE_TIMEOUT, serving).await, Ok(Ok(()))) {
            continue;
        }
        let end_ns = monotonic_ns();
        served
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Served {
                end_ns,
                took_ns: end_ns - begin_ns,
            });
    }
}

/// Answers `GET /b/SIZE/US` until one of them asks to close; how long that takes is the
/// server's to say, `US` is ignored.
async fn serve(stream: &mut TcpStream, service: Duration, rng: &mut StdRng) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let head = next_head(stream, &mut buffer).await?;
        let head = head.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        let size = head
            .strip_prefix("GET /b/")
            .and_then(|rest| rest.split('/').next());
        let size = size.and_then(|size| size.parse().ok());
        let size = size.ok_or(std::io::ErrorKind::InvalidData)?;
        sleep(service.mul_f64(exponential(rng))).await;
        write_answer(stream, "queue", size, Duration::ZERO).await?;
        if head.contains("Connection: close\r\n") {
            return Ok(());
        }
    }
}
