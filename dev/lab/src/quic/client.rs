// SPDX-License-Identifier: Apache-2.0
//! The load over HTTP/3: users with one connection each, on one thread per client
//! namespace.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::{Buf, Bytes};
use futures_util::future::{LocalBoxFuture, try_join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use quinn::{ConnectionError, TransportConfig, VarInt};
use rand::Rng;
use rand::rngs::StdRng;
use tokio::task::{LocalSet, spawn_local};

use super::nat::Nat;
use super::socket::{fault_of, open_endpoint, wander};
use super::{clock as precise, tls};
use crate::background::own_runtime;
use crate::clock;
use crate::load::log::{ConnectionFault, Log, LoggedConnection, LoggedResponse};
use crate::load::page::{self, PageRun};
use crate::load::{self, LoadConfig, Progress, RunningLoad};
use crate::netns::Netns;

/// Random streams of a slot beside those of its pages.
const STREAM_PHASE: u64 = 1 << 41;
/// A page that begins this much later than the timetable has it counts from then.
const LATE_NS: u64 = 50_000_000;
/// How long closing words may take at the end.
const FAREWELL: Duration = Duration::from_millis(200);
const PROTO_UDP: u8 = 17;

type Sender = h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>;

/// What only QUIC clients can do.
#[derive(Debug, Clone, Default)]
pub struct QuicClientOptions {
    /// Each connection moves to another port of the client this often
    /// (connection migration: another connection id of the server's is used).
    pub migrate_ms: Option<u64>,
    /// A NAT gives each connection another port this often, unknown to the client: its connection
    /// ids stay.
    pub nat_ms: Option<u64>,
}

/// Starts the load, slots dealt out over `clients` in turn.
pub fn start(
    clients: &[Netns],
    config: &LoadConfig,
    options: &QuicClientOptions,
) -> Result<RunningLoad> {
    let certificate = tls::identity()?.certificate.clone();
    let options = options.clone();
    load::start_with(clients, config, move |config, slots, start_ns, progress| {
        run(config, &options, &certificate, slots, start_ns, progress)
    })
}

/// What all users of a thread share.
struct World<'a> {
    config: &'a LoadConfig,
    options: &'a QuicClientOptions,
    progress: &'a Progress,
    client: quinn::ClientConfig,
    start_ns: u64,
    end_ns: u64,
    log: Rc<RefCell<Log>>,
}

fn run(
    config: &LoadConfig,
    options: &QuicClientOptions,
    certificate: &Path,
    slots: &[usize],
    start_ns: u64,
    progress: &Progress,
) -> Result<Log> {
    // Timers are by default up to 50 us late.
    // SAFETY: PR_SET_TIMERSLACK takes one integer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let world = World {
        config,
        options,
        progress,
        client: client_config(certificate, config, options)?,
        start_ns,
        end_ns: start_ns + config.duration_ms * 1_000_000,
        log: Rc::new(RefCell::new(Log {
            wall_offset_ns: clock::wall_offset_ns(),
            ..Log::default()
        })),
    };
    let runtime = own_runtime()?;
    LocalSet::new().block_on(&runtime, async {
        let users = slots.iter().map(|&slot| User::new(&world, slot).run());
        let ended = try_join_all(users).await;
        tokio::time::sleep(FAREWELL).await;
        ended
    })?;
    let mut log = world.log.take();
    log.cost.cpu_ns = clock::thread_cpu_ns();
    Ok(log)
}

fn client_config(
    certificate: &Path,
    config: &LoadConfig,
    options: &QuicClientOptions,
) -> Result<quinn::ClientConfig> {
    let mut transport = TransportConfig::default();
    // A request's own timeout comes first; an idle connection may rest longer.
    let idle_ms = u32::try_from(config.timeout_ms.max(60_000)).context("timeout_ms")?;
    transport.max_idle_timeout(Some(VarInt::from_u32(idle_ms).into()));
    // A client that only waits must send something, or the server never learns that
    // the NAT has another port for it.
    transport.keep_alive_interval(options.nat_ms.map(|ms| Duration::from_millis(ms / 4)));
    let mut client = quinn::ClientConfig::new(Arc::new(tls::client(certificate)?));
    client.transport_config(Arc::new(transport));
    Ok(client)
}

/// An answered or failed request.
struct Arrival {
    object: usize,
    response: LoggedResponse,
    real: Result<String, ConnectionFault>,
}

struct Open {
    connection: quinn::Connection,
    sender: Sender,
    /// Index into the log's connections.
    number: usize,
    /// No request is sent after this.
    retire_ns: u64,
    waiting: FuturesUnordered<LocalBoxFuture<'static, Arrival>>,
    /// Requests whose responses have just come and have set off none yet.
    arrived: VecDeque<u32>,
    /// When they came.
    arrived_ns: u64,
}

impl Open {
    /// The response that sets off a request for an object named by request
    /// `parent`: that one's, if it has just come, else one that made room.
    fn trigger(&mut self, parent: Option<u32>) -> Option<u32> {
        let own = self.arrived.iter().position(|&id| Some(id) == parent);
        self.arrived.remove(own.unwrap_or(0))
    }
}

struct User<'a> {
    world: &'a World<'a>,
    slot: usize,
    rng: StdRng,
    phase_ns: u64,
    next_page: u32,
    next_id: u32,
    open: Option<Open>,
}

impl<'a> User<'a> {
    fn new(world: &'a World<'a>, slot: usize) -> Self {
        let mut rng = page::rng(world.config.seed, slot, STREAM_PHASE);
        let interval_ns = world.config.page_interval_ms.max(1) * 1_000_000;
        Self {
            world,
            slot,
            phase_ns: rng.random_range(0..interval_ns),
            rng,
            next_page: 0,
            next_id: 0,
            open: None,
        }
    }

    async fn run(mut self) -> Result<()> {
        loop {
            let due_ns = self.due_ns();
            let last = clock::monotonic_ns().max(due_ns) >= self.world.end_ns
                || self.world.progress.is_stopped();
            // A connection that would be too old by the next page goes now.
            if let Some(open) = &self.open
                && (last || due_ns >= open.retire_ns)
            {
                self.close(None);
            }
            if last {
                return Ok(());
            }
            precise::sleep_until(due_ns).await.context("timer")?;
            if let Err(fault) = self.page(due_ns).await {
                self.close(Some(fault));
            }
        }
    }

    /// When the timetable has the next page begin.
    fn due_ns(&mut self) -> u64 {
        if let Some(rest_ns) = self.world.config.rest_ns(&mut self.rng, self.next_page) {
            return clock::monotonic_ns() + rest_ns;
        }
        let interval_ns = self.world.config.page_interval_ms * 1_000_000;
        self.world.start_ns + self.phase_ns + u64::from(self.next_page) * interval_ns
    }

    /// One page from its root to its last object. An error ends the connection.
    async fn page(&mut self, due_ns: u64) -> Result<(), ConnectionFault> {
        let now = clock::monotonic_ns();
        let world = self.world;
        let objects = page::draw(
            &world.config.page,
            world.config.seed,
            self.slot,
            self.next_page,
        );
        let count = objects.len() as u32;
        let ready_ns = if now - due_ns < LATE_NS { due_ns } else { now };
        let mut run = PageRun::new(objects, self.next_page, self.next_id, ready_ns);
        self.next_page += 1;
        self.next_id += count;
        if let Some(open) = &mut self.open {
            // A page that was due before the last answer came was set off by it.
            if open.arrived_ns < due_ns {
                open.arrived.clear();
            }
            if let Some(reason) = open.connection.close_reason() {
                return Err(idle_fault(&reason));
            }
        }
        while !run.is_complete() {
            self.send(&mut run).await?;
            self.receive(&mut run).await?;
        }
        Ok(())
    }

    /// Sends what the page and the connection allow. Opens a connection where there
    /// is none; one that is too old goes when nothing is outstanding.
    async fn send(&mut self, run: &mut PageRun) -> Result<(), ConnectionFault> {
        let retired = |open: &Open| clock::monotonic_ns() >= open.retire_ns;
        if let Some(open) = self.open.as_ref().filter(|open| retired(open)) {
            if !open.waiting.is_empty() {
                return Ok(());
            }
            self.close(None);
        }
        if self.open.is_none() {
            self.open = Some(self.connect().await?);
        }
        let Some(open) = self.open.as_mut() else {
            return Ok(());
        };
        while open.waiting.len() < self.world.config.outstanding
            && let Some((object, wanted, ready_ns)) = run.take_ready()
        {
            let (id, parent) = run.ids(object);
            // A page's first request waits for its connection.
            let connected_ns = self.world.log.borrow().connections[open.number].connected_ns;
            let response = LoggedResponse {
                connection: open.number as u32,
                page: run.number,
                id,
                parent: open.trigger(parent),
                intended_ns: ready_ns.max(connected_ns),
                send_ns: 0,
                last_ns: 0,
                size: wanted.size,
                real: 0,
                srtt_us: 0,
            };
            let fetch = fetch(
                open.connection.clone(),
                open.sender.clone(),
                (object, response),
                wanted.service_us,
                Duration::from_millis(self.world.config.timeout_ms),
            );
            open.waiting.push(fetch.boxed_local());
        }
        Ok(())
    }

    /// Waits for an answer and takes all that have come by then.
    async fn receive(&mut self, run: &mut PageRun) -> Result<(), ConnectionFault> {
        let Some(open) = self.open.as_mut() else {
            return Ok(());
        };
        open.arrived.clear();
        let mut next = open.waiting.next().await;
        let mut log = self.world.log.borrow_mut();
        log.cost.wakeups += 1;
        while let Some(mut arrival) = next {
            let name = arrival.real?;
            let real = log.real(&name);
            if *log.connections[open.number].real.get_or_insert(real) != real {
                return Err(ConnectionFault::WrongReal);
            }
            arrival.response.real = real;
            open.arrived.push_back(arrival.response.id);
            open.arrived_ns = arrival.response.last_ns;
            run.complete(arrival.object, arrival.response.last_ns);
            self.world.progress.answered(arrival.response.latency_ns());
            log.responses.push(arrival.response);
            next = open.waiting.next().now_or_never().flatten();
        }
        Ok(())
    }

    async fn connect(&mut self) -> Result<Open, ConnectionFault> {
        let now = clock::monotonic_ns();
        let max_age_ns = self.world.config.max_age_ms * 1_000_000;
        let retire_ns = now + self.rng.random_range(max_age_ns / 2..=max_age_ns);
        let target = self.world.config.target;
        let number = self.log_connection(target, now);
        let opened = self.handshake(target, number).await;
        let (connection, sender) = opened.inspect_err(|&fault| self.broke(number, fault, 0))?;
        self.world.log.borrow_mut().connections[number].connected_ns = clock::monotonic_ns();
        Ok(Open {
            connection,
            sender,
            number,
            retire_ns,
            waiting: FuturesUnordered::new(),
            arrived: VecDeque::new(),
            arrived_ns: 0,
        })
    }

    fn log_connection(&self, target: SocketAddr, now: u64) -> usize {
        let mut log = self.world.log.borrow_mut();
        log.connections.push(LoggedConnection {
            proto: PROTO_UDP,
            slot: self.slot as u32,
            local: target,
            remote: target,
            open_ns: now,
            connected_ns: 0,
            close_ns: 0,
            real: None,
            fault: None,
            lost: 0,
        });
        log.connections.len() - 1
    }

    async fn handshake(
        &self,
        target: SocketAddr,
        number: usize,
    ) -> Result<(quinn::Connection, Sender), ConnectionFault> {
        let log = self.world.log.clone();
        let moved = move || log.borrow_mut().migrations += 1;
        let nat = self
            .world
            .options
            .nat_ms
            .map(|ms| Nat::open(target, ms, moved.clone()));
        let nat = nat.transpose().map_err(|_| ConnectionFault::SendFailed)?;
        let to = nat.as_ref().map_or(target, |nat| nat.inside);
        let endpoint = open_endpoint(to).map_err(|_| ConnectionFault::SendFailed)?;
        let outside = nat.as_ref().map(|nat| nat.outside);
        if let Ok(local) = outside.map_or_else(|| endpoint.local_addr(), Ok) {
            self.world.log.borrow_mut().connections[number].local = local;
        }
        let connecting = endpoint
            .connect_with(self.world.client.clone(), to, tls::SERVER_NAME)
            .map_err(|_| ConnectionFault::SendFailed)?;
        let limit = Duration::from_millis(self.world.config.timeout_ms);
        let connection = match tokio::time::timeout(limit, connecting).await {
            Ok(result) => result.map_err(|e| fault_of(&e, ConnectionFault::ConnectTimeout))?,
            Err(_) => {
                let local = self.world.log.borrow().connections[number].local;
                tracing::warn!("quinn: no handshake between {local} and {target}");
                return Err(ConnectionFault::ConnectTimeout);
            }
        };
        if let Some(nat) = nat {
            let _ = nat.connection.set(connection.clone());
        }
        if let Some(every_ms) = self.world.options.migrate_ms {
            spawn_local(wander(endpoint, connection.clone(), to, every_ms, moved));
        }
        let transport = h3_quinn::Connection::new(connection.clone());
        let (mut driver, sender) = h3::client::builder()
            .send_grease(false)
            .build(transport)
            .await
            .map_err(|_| ConnectionFault::BadResponse)?;
        spawn_local(async move { std::future::poll_fn(|cx| driver.poll_close(cx)).await });
        Ok((connection, sender))
    }

    /// Ends the connection, in good order or as broken.
    fn close(&mut self, fault: Option<ConnectionFault>) {
        let Some(open) = self.open.take() else { return };
        match fault {
            Some(fault) => self.broke(open.number, fault, open.waiting.len() as u32),
            None => {
                let now = clock::monotonic_ns();
                self.world.log.borrow_mut().connections[open.number].close_ns = now;
            }
        }
        open.connection
            .close((h3::error::Code::H3_NO_ERROR.value() as u32).into(), b"");
    }

    fn broke(&self, number: usize, fault: ConnectionFault, lost: u32) {
        let connection = &mut self.world.log.borrow_mut().connections[number];
        connection.close_ns = clock::monotonic_ns();
        connection.fault = Some(fault);
        connection.lost = lost;
        self.world.progress.broke();
    }
}

/// Why an idle connection is gone.
fn idle_fault(reason: &ConnectionError) -> ConnectionFault {
    match fault_of(reason, ConnectionFault::ServerClosed) {
        ConnectionFault::ShortRead => ConnectionFault::ServerClosed,
        fault => fault,
    }
}

/// One request and its answer; sends when it is polled first.
async fn fetch(
    connection: quinn::Connection,
    mut sender: Sender,
    (object, mut response): (usize, LoggedResponse),
    service_us: u32,
    limit: Duration,
) -> Arrival {
    response.send_ns = clock::monotonic_ns();
    let exchange = exchange(&mut sender, response.size, service_us);
    let real = match tokio::time::timeout(limit, exchange).await {
        Ok(Ok(Some(real))) => Ok(real),
        Ok(Ok(None)) => Err(ConnectionFault::BadResponse),
        Ok(Err(_)) => Err(connection
            .close_reason()
            .map_or(ConnectionFault::BadResponse, |e| {
                fault_of(&e, ConnectionFault::ResponseTimeout)
            })),
        Err(_) => Err(ConnectionFault::ResponseTimeout),
    };
    response.last_ns = clock::monotonic_ns();
    Arrival {
        object,
        response,
        real,
    }
}

/// The server's name; none if the answer is not what was asked for.
async fn exchange(sender: &mut Sender, size: u32, service_us: u32) -> Result<Option<String>> {
    let uri = format!("https://{}/r/{size}/{service_us}", tls::SERVER_NAME);
    let mut stream = sender
        .send_request(http::Request::get(uri).body(())?)
        .await?;
    stream.finish().await?;
    let head = stream.recv_response().await?;
    let mut missing = u64::from(size);
    while let Some(piece) = stream.recv_data().await? {
        let Some(rest) = missing.checked_sub(piece.remaining() as u64) else {
            return Ok(None);
        };
        missing = rest;
    }
    let real = head.headers().get("x-real").and_then(|v| v.to_str().ok());
    let good = head.status() == http::StatusCode::OK && missing == 0;
    Ok(real.filter(|_| good).map(str::to_owned))
}
