// SPDX-License-Identifier: Apache-2.0
//! Clients that lose patience, and a server whose accept queue is the one that the
//! kernel has: both in one thread each, with real connections.
//!
//! What clients log is the truth: from connect(2) to the last byte, or until they gave
//! up, which counts as what they had waited (Certes, eq. 4).

use std::net::SocketAddrV4;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, bind, listen, setsockopt, socket,
    sockopt,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::clock::monotonic_ns;
use crate::cpu;
use crate::netns::Netns;

/// Bytes of an answer.
const ANSWER: usize = 4000;
/// Longest head of an answer by HTTP.
const HEAD_MAX: usize = 1024;
/// How long a connected client waits for an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
/// A client begins anew after a refusal no sooner than this.
const BREATH: Duration = Duration::from_millis(50);

/// How a transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All answers came.
    Done,
    /// The client was not connected in time.
    GaveUp,
    /// It was connected and got no answer.
    Unserved,
    /// The connection broke.
    Broken,
}

/// A transaction as its client felt it. CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy)]
pub struct Transaction {
    /// connect(2).
    pub begin_ns: u64,
    /// Last byte, or when the client gave up.
    pub end_ns: u64,
    /// How it ended.
    pub end: End,
}

/// What the clients do.
#[derive(Debug, Clone)]
pub struct ImpatientClientsConfig {
    /// The server.
    pub target: SocketAddrV4,
    /// How many begin anew as soon as they are done; or as many as there are at most
    /// at a time, with `arrivals`.
    pub clients: usize,
    /// Requests of a connection, one after another.
    pub requests: u32,
    /// How long clients try to connect; client `i` has the `i`-th, round and round.
    pub patience: Vec<Duration>,
    /// All clients pause after the first for the second.
    pub on_off: Option<(Duration, Duration)>,
    /// Instead of clients that begin anew: arrivals per second by chance, during the
    /// on time and during the off time.
    pub arrivals: Option<(f64, f64)>,
    /// How long they begin transactions.
    pub duration: Duration,
    /// Asks a web server by HTTP for answers that take so long on average, by chance;
    /// else the server here, by its own protocol.
    pub http: Option<Duration>,
    /// Source of all chance.
    pub seed: u64,
}

/// Clients at work.
pub struct ImpatientClients(JoinHandle<Result<Vec<Transaction>>>);

impl ImpatientClients {
    /// Starts them in `netns`.
    pub fn start(netns: &Netns, config: ImpatientClientsConfig) -> Self {
        Self(netns.thread(move || {
            cpu::go_first().context("the clients cannot go first")?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            Ok(runtime.block_on(run(config)))
        }))
    }

    /// Waits until the last transaction has ended.
    pub fn finish(self) -> Result<Vec<Transaction>> {
        match self.0.join() {
            Ok(result) => result,
            Err(_) => bail!("the clients' thread panicked"),
        }
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
    let patience = config.patience[number % config.patience.len()];
    sleep(Duration::from_secs_f64(rng.random_range(0.0..1.0))).await;
    while start.elapsed() < config.duration {
        if let Some(until) = pause_until(&config, start) {
            sleep_until(until + Duration::from_secs_f64(rng.random_range(0.0..0.5))).await;
            continue;
        }
        let end = transact(&config, patience, &mut rng, &log).await;
        if end == End::Broken {
            sleep(BREATH).await;
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
        let gap_s = -(1.0 - rng.random::<f64>()).ln() / rate;
        next += Duration::from_secs_f64(gap_s);
        sleep_until(next).await;
        while tasks.try_join_next().is_some() {}
        if tasks.len() >= config.clients {
            continue;
        }
        let patience = config.patience[number % config.patience.len()];
        number += 1;
        let (config, log) = (config.clone(), Arc::clone(log));
        let mut own = StdRng::seed_from_u64(rng.random());
        tasks.spawn(async move {
            transact(&config, patience, &mut own, &log).await;
        });
    }
}

async fn transact(
    config: &ImpatientClientsConfig,
    patience: Duration,
    rng: &mut StdRng,
    log: &Log,
) -> End {
    let begin_ns = monotonic_ns();
    let connecting = async { TcpSocket::new_v4()?.connect(config.target.into()).await };
    let end = match timeout(patience, connecting).await {
        Err(_) => End::GaveUp,
        Ok(Err(_)) => End::Broken,
        Ok(Ok(mut stream)) => {
            let asking = ask(&mut stream, config, rng);
            let end = match timeout(ANSWER_PATIENCE, asking).await {
                Err(_) => End::Unserved,
                Ok(Err(_)) => End::Broken,
                Ok(Ok(())) => End::Done,
            };
            if end != End::Done {
                // Nobody is there any more: the server learns it by a RST. A socket
                // that is closed already needs none.
                let _ = setsockopt(
                    &stream,
                    sockopt::Linger,
                    &libc::linger {
                        l_onoff: 1,
                        l_linger: 0,
                    },
                );
            }
            end
        }
    };
    let transaction = Transaction {
        begin_ns,
        end_ns: monotonic_ns(),
        end,
    };
    log.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(transaction);
    end
}

/// One request after the other; the last one says that it is.
async fn ask(
    stream: &mut TcpStream,
    config: &ImpatientClientsConfig,
    rng: &mut StdRng,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut answer = vec![0; ANSWER];
    for request in 1..=config.requests {
        let last = request == config.requests;
        if let Some(service) = config.http {
            let service = service.mul_f64(exponential(rng));
            ask_by_http(stream, service, last, &mut answer).await?;
            continue;
        }
        let text: &[u8] = if last { b"GET /last\n" } else { b"GET /more\n" };
        stream.write_all(text).await?;
        stream.read_exact(&mut answer).await?;
    }
    Ok(())
}

/// Of mean 1.
fn exponential(rng: &mut StdRng) -> f64 {
    -(1.0 - rng.random::<f64>()).ln()
}

async fn ask_by_http(
    stream: &mut TcpStream,
    service: Duration,
    last: bool,
    body: &mut [u8],
) -> std::io::Result<()> {
    let connection = if last { "close" } else { "keep-alive" };
    let text = format!(
        "GET /b/{ANSWER}/{} HTTP/1.1\r\nHost: clients\r\nConnection: {connection}\r\n\r\n",
        service.as_micros()
    );
    stream.write_all(text.as_bytes()).await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > HEAD_MAX {
            return Err(std::io::Error::other(
                "an answer without an end of its head",
            ));
        }
        head.push(stream.read_u8().await?);
    }
    if !head.starts_with(b"HTTP/1.1 200") {
        return Err(std::io::Error::other(
            "the web server did not answer with 200",
        ));
    }
    stream.read_exact(body).await.map(drop)
}

/// A server: so many workers, and in front of them the kernel's accept queue.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Where it listens.
    pub address: SocketAddrV4,
    /// Connections that are served at a time.
    pub workers: usize,
    /// Mean time of a request, exponentially distributed.
    pub service: Duration,
    /// Limit of the accept queue; several are gone through, each for `period`.
    pub backlog: Vec<i32>,
    /// How long each limit holds.
    pub period: Duration,
    /// Source of all chance.
    pub seed: u64,
}

/// What the server's own log says of a connection: when it was closed and how long
/// after accept(2).
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// CLOCK_MONOTONIC.
    pub end_ns: u64,
    /// From accept(2) to the last answer, nanoseconds.
    pub took_ns: u64,
}

/// A server at work; dropped, it ends.
pub struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
    served: Arc<Mutex<Vec<Served>>>,
    socket: Arc<OwnedFd>,
}

impl Server {
    /// Listens, then serves on a thread of its own.
    pub fn start(netns: &Netns, config: ServerConfig) -> Result<Self> {
        let (address, first) = (config.address, config.backlog[0]);
        let socket = Arc::new(netns.run(move || listen_on(address, first))?);
        let stop = Arc::new(AtomicBool::new(false));
        let served = Arc::new(Mutex::new(Vec::new()));
        let thread = {
            let (stop, served) = (stop.clone(), served.clone());
            let socket = socket.as_ref().try_clone()?;
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                let result = runtime.block_on(serve(socket, config, &stop, &served));
                runtime.shutdown_background();
                result
            })
        };
        Ok(Self {
            stop,
            thread: Some(thread),
            served,
            socket,
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
        Ok(listen(&*self.socket, Backlog::new(limit as i32)?)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }
}

/// A listening socket with this limit of its accept queue.
pub fn listen_on(address: SocketAddrV4, backlog: i32) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind(fd.as_raw_fd(), &SockaddrIn::from(address)).context("binding the server")?;
    listen(&fd, Backlog::new(backlog)?)?;
    Ok(fd)
}

async fn serve(
    socket: OwnedFd,
    config: ServerConfig,
    stop: &AtomicBool,
    served: &Arc<Mutex<Vec<Served>>>,
) -> Result<()> {
    let again = socket.try_clone()?;
    let listener = Arc::new(TcpListener::from_std(socket.into())?);
    for worker in 0..config.workers {
        let seed = config.seed ^ (worker as u64).wrapping_mul(0x517c_c1b7);
        let (listener, served) = (listener.clone(), served.clone());
        tokio::spawn(work(
            listener,
            config.service,
            StdRng::seed_from_u64(seed),
            served,
        ));
    }
    let start = Instant::now();
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(50)).await;
        let now = (start.elapsed().as_nanos() / config.period.as_nanos().max(1)) as usize;
        if config.backlog.len() > 1 && now != turn {
            turn = now;
            let limit = config.backlog[turn % config.backlog.len()];
            listen(&again, Backlog::new(limit)?)?;
        }
    }
    Ok(())
}

async fn work(
    listener: Arc<TcpListener>,
    service: Duration,
    mut rng: StdRng,
    served: Arc<Mutex<Vec<Served>>>,
) {
    loop {
        // Errors are of one connection.
        let Ok((mut stream, _)) = listener.accept().await else {
            continue;
        };
        let begin_ns = monotonic_ns();
        let serving = answer(&mut stream, service, &mut rng);
        if !matches!(timeout(ANSWER_PATIENCE, serving).await, Ok(Ok(()))) {
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

async fn answer(
    stream: &mut TcpStream,
    service: Duration,
    rng: &mut StdRng,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let body = vec![b'c'; ANSWER];
    let mut request = [0; 10];
    loop {
        stream.read_exact(&mut request).await?;
        sleep(service.mul_f64(exponential(rng))).await;
        stream.write_all(&body).await?;
        if request == *b"GET /last\n" {
            return Ok(());
        }
    }
}
