// SPDX-License-Identifier: Apache-2.0
//! One client thread: an event loop over the slots of one namespace.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use rand::Rng;
use rand::rngs::StdRng;

use super::http::{Response as HttpResponse, ResponseParser};
use super::log::{Connection, Fault, Log, Response};
use super::page::{self, PageRun};
use super::poll::{Interest, Poll};
use super::socket::{begin_connect, fault_of, send};
use super::{LoadConfig, Progress};
use crate::clock;

const PROTO_TCP: u8 = 6;
/// How often overdue connects and answers are looked for.
const TICK_NS: u64 = 50_000_000;
/// Random streams of a slot beside those of its pages.
const STREAM_PHASE: u64 = 1 << 40;

/// A request on the wire.
struct Outstanding {
    object: usize,
    /// Page and identifiers at the time of sending.
    response: Response,
}

struct Open {
    stream: TcpStream,
    /// Index into the log's connections.
    number: usize,
    connected: bool,
    /// No request is sent after this.
    retire_ns: u64,
    parser: ResponseParser,
    outstanding: VecDeque<Outstanding>,
    /// Requests whose responses came in the last read and have set off none yet.
    arrived: VecDeque<u32>,
}

impl Open {
    /// The response that sets off a request for an object named by request
    /// `parent`: that one's, if it has just come, else one that made room.
    fn trigger(&mut self, parent: Option<u32>) -> Option<u32> {
        let own = self.arrived.iter().position(|&id| Some(id) == parent);
        self.arrived.remove(own.unwrap_or(0))
    }
}

struct Slot {
    number: usize,
    rng: StdRng,
    phase_ns: u64,
    next_page: u32,
    next_id: u32,
    run: Option<PageRun>,
    open: Option<Open>,
}

struct Client<'a> {
    config: &'a LoadConfig,
    progress: &'a Progress,
    start_ns: u64,
    end_ns: u64,
    poll: Poll,
    slots: Vec<Slot>,
    /// Page starts: time and index into `slots`.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    log: Log,
    buffer: Vec<u8>,
}

/// Runs `slots` (their numbers) from `start_ns` to the configured end in the
/// calling thread's network namespace.
pub fn run(
    config: &LoadConfig,
    slots: &[usize],
    start_ns: u64,
    progress: &Progress,
) -> Result<Log> {
    // Timeouts of epoll are by default up to 50 us late.
    // SAFETY: PR_SET_TIMERSLACK takes one integer.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    let mut client = Client {
        config,
        progress,
        start_ns,
        end_ns: start_ns + config.duration_ms * 1_000_000,
        poll: Poll::new().context("epoll")?,
        slots: slots
            .iter()
            .map(|&number| Slot::new(config, number))
            .collect(),
        timers: BinaryHeap::new(),
        log: Log {
            wall_offset_ns: clock::wall_offset_ns(),
            ..Log::default()
        },
        buffer: vec![0; 128 * 1024],
    };
    client.run().context("load generator")?;
    client.log.cost.cpu_ns = clock::thread_cpu_ns();
    Ok(client.log)
}

impl Slot {
    fn new(config: &LoadConfig, number: usize) -> Self {
        let mut rng = page::rng(config.seed, number, STREAM_PHASE);
        let phase_ns = rng.random_range(0..config.page_interval_ms.max(1) * 1_000_000);
        Self {
            number,
            rng,
            phase_ns,
            next_page: 0,
            next_id: 0,
            run: None,
            open: None,
        }
    }

    /// When the timetable has the next page begin, counted from the start.
    fn nominal_ns(&self, config: &LoadConfig) -> u64 {
        self.phase_ns + u64::from(self.next_page) * config.page_interval_ms * 1_000_000
    }
}

impl Client<'_> {
    fn run(&mut self) -> io::Result<()> {
        for slot in 0..self.slots.len() {
            self.schedule_page(slot);
        }
        let mut ready = Vec::new();
        let mut next_tick = self.start_ns;
        loop {
            let now = clock::monotonic_ns();
            self.start_due_pages(now);
            if now >= next_tick {
                self.break_overdue(now);
                next_tick = now + TICK_NS;
            }
            if self.timers.is_empty() && self.slots.iter().all(|s| s.run.is_none()) {
                break;
            }
            let timer = self.timers.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let wait = timer.min(next_tick).saturating_sub(clock::monotonic_ns());
            self.poll.wait(wait, &mut ready)?;
            self.log.cost.wakeups += 1;
            for &slot in &ready {
                self.on_ready(slot);
            }
        }
        for slot in 0..self.slots.len() {
            self.close(slot, clock::monotonic_ns());
        }
        Ok(())
    }

    /// Puts the slot's next page on the timetable, unless the load ends before.
    fn schedule_page(&mut self, slot: usize) {
        let at = self.start_ns + self.slots[slot].nominal_ns(self.config);
        if at < self.end_ns && clock::monotonic_ns() < self.end_ns {
            self.timers.push(Reverse((at, slot)));
        }
    }

    fn start_due_pages(&mut self, now: u64) {
        while let Some(&Reverse((at, slot))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            self.start_page(slot, at);
        }
    }

    fn start_page(&mut self, index: usize, due_ns: u64) {
        let now = clock::monotonic_ns();
        let slot = &mut self.slots[index];
        if let Some(open) = slot.open.as_mut() {
            open.arrived.clear();
        }
        let objects = page::draw(
            &self.config.page,
            self.config.seed,
            slot.number,
            slot.next_page,
        );
        let count = objects.len() as u32;
        // A page behind the timetable could begin only when the slot was free.
        let ready_ns = if now - due_ns < TICK_NS { due_ns } else { now };
        slot.run = Some(PageRun::new(
            objects,
            slot.next_page,
            slot.next_id,
            ready_ns,
        ));
        slot.next_page += 1;
        slot.next_id += count;
        self.advance(index);
    }

    /// Does whatever the slot can do now: send, retire its connection, open one.
    fn advance(&mut self, index: usize) {
        loop {
            let slot = &mut self.slots[index];
            let Some(run) = slot.run.as_mut() else { return };
            let Some(open) = slot.open.as_mut() else {
                if run.is_complete() {
                    return;
                }
                self.open(index);
                return;
            };
            if !open.connected {
                return;
            }
            if clock::monotonic_ns() >= open.retire_ns {
                if open.outstanding.is_empty() {
                    self.close(index, clock::monotonic_ns());
                    continue;
                }
                return;
            }
            if open.outstanding.len() >= self.config.outstanding {
                return;
            }
            let Some((object, wanted, ready_ns)) = run.take_ready() else {
                return;
            };
            let (id, parent) = run.ids(object);
            let parent = open.trigger(parent);
            // A page's first request waits for its connection.
            let connected_ns = self.log.connections[open.number].connected_ns;
            let response = Response {
                connection: open.number as u32,
                page: run.number,
                id,
                parent,
                intended_ns: ready_ns.max(connected_ns),
                send_ns: clock::monotonic_ns(),
                last_ns: 0,
                size: wanted.size,
                real: 0,
            };
            if send(&mut open.stream, wanted.size, wanted.service_us).is_err() {
                self.break_off(index, Fault::SendFailed);
                return;
            }
            open.outstanding.push_back(Outstanding { object, response });
        }
    }

    fn open(&mut self, index: usize) {
        let now = clock::monotonic_ns();
        let max_age_ns = self.config.max_age_ms * 1_000_000;
        let slot = &mut self.slots[index];
        let age_ns = slot.rng.random_range(max_age_ns / 2..=max_age_ns);
        let number = self.log.connections.len();
        let opened = begin_connect(self.config.target);
        self.log.connections.push(Connection {
            proto: PROTO_TCP,
            slot: slot.number as u32,
            local: opened
                .as_ref()
                .map_or(self.config.target, |(_, local)| *local),
            remote: self.config.target,
            open_ns: now,
            connected_ns: 0,
            close_ns: 0,
            real: None,
            fault: None,
            lost: 0,
        });
        let opened = opened.and_then(|(stream, _)| {
            self.poll
                .add(stream.as_raw_fd(), index, Interest::Connect)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                slot.open = Some(Open {
                    stream,
                    number,
                    connected: false,
                    retire_ns: now + age_ns,
                    parser: ResponseParser::default(),
                    outstanding: VecDeque::new(),
                    arrived: VecDeque::new(),
                });
            }
            Err(e) => {
                self.log.connections[number].fault = Some(fault_of(&e));
                self.log.connections[number].close_ns = now;
                self.progress.broke();
                self.abandon_page(index);
            }
        }
    }

    fn on_ready(&mut self, index: usize) {
        // An event of a connection closed earlier in this round finds another
        // one, or none; reading it is harmless.
        let Some(open) = self.slots[index].open.as_mut() else {
            return;
        };
        if open.connected {
            self.read(index);
            return;
        }
        match open.stream.take_error() {
            Ok(None) if open.stream.peer_addr().is_ok() => {
                open.connected = true;
                let fd = open.stream.as_raw_fd();
                let connection = &mut self.log.connections[open.number];
                connection.connected_ns = clock::monotonic_ns();
                if let Ok(local) = open.stream.local_addr() {
                    connection.local = local;
                }
                if self.poll.change(fd, index, Interest::Read).is_err() {
                    self.break_off(index, Fault::SendFailed);
                    return;
                }
                self.advance(index);
            }
            Ok(None) => {}
            Ok(Some(e)) | Err(e) => self.break_off(index, fault_of(&e)),
        }
    }

    fn read(&mut self, index: usize) {
        let Some(open) = self.slots[index].open.as_mut() else {
            return;
        };
        let count = match open.stream.read(&mut self.buffer) {
            Ok(0) => {
                let idle = open.outstanding.is_empty() && open.parser.is_idle();
                let fault = if idle {
                    Fault::ServerClosed
                } else {
                    Fault::ShortRead
                };
                self.break_off(index, fault);
                return;
            }
            Ok(count) => count,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return,
            Err(e) => {
                self.break_off(index, fault_of(&e));
                return;
            }
        };
        let now = clock::monotonic_ns();
        open.arrived.clear();
        let buffer = std::mem::take(&mut self.buffer);
        let fault = self.take_responses(index, &buffer[..count], now);
        self.buffer = buffer;
        match fault {
            Ok(()) => self.after_responses(index),
            Err(fault) => self.break_off(index, fault),
        }
    }

    fn take_responses(&mut self, index: usize, mut bytes: &[u8], now: u64) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let slot = &mut self.slots[index];
            let Some(open) = slot.open.as_mut() else {
                return Ok(());
            };
            let Some(answer) = open
                .parser
                .feed(&mut bytes)
                .map_err(|_| Fault::BadResponse)?
            else {
                continue;
            };
            let sent = open.outstanding.pop_front().ok_or(Fault::BadResponse)?;
            open.arrived.push_back(sent.response.id);
            if let Some(run) = slot.run.as_mut() {
                run.complete(sent.object, now);
            }
            let number = open.number;
            self.record(number, sent.response, &answer, now)?;
        }
        Ok(())
    }

    fn record(
        &mut self,
        number: usize,
        mut response: Response,
        answer: &HttpResponse,
        now: u64,
    ) -> Result<(), Fault> {
        if answer.status != 200 || answer.size != u64::from(response.size) {
            return Err(Fault::BadResponse);
        }
        let real = self.log.real(&answer.real);
        if *self.log.connections[number].real.get_or_insert(real) != real {
            return Err(Fault::WrongReal);
        }
        response.real = real;
        response.last_ns = now;
        self.progress.answered(response.latency_ns());
        self.log.responses.push(response);
        Ok(())
    }

    /// Ends the page if it is complete, else goes on with it.
    fn after_responses(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if !slot.run.as_ref().is_some_and(PageRun::is_complete) {
            self.advance(index);
            return;
        }
        slot.run = None;
        // A connection that would be too old by the next page goes now.
        let next_ns = self.start_ns + slot.nominal_ns(self.config);
        if slot
            .open
            .as_ref()
            .is_some_and(|open| next_ns >= open.retire_ns)
        {
            self.close(index, clock::monotonic_ns());
        }
        self.schedule_page(index);
    }

    /// Closes the connection in good order.
    fn close(&mut self, index: usize, now: u64) {
        if let Some(open) = self.slots[index].open.take() {
            self.log.connections[open.number].close_ns = now;
        }
    }

    /// Closes the connection as broken; the rest of its page is given up.
    fn break_off(&mut self, index: usize, fault: Fault) {
        let Some(open) = self.slots[index].open.take() else {
            return;
        };
        let connection = &mut self.log.connections[open.number];
        connection.close_ns = clock::monotonic_ns();
        connection.fault = Some(fault);
        connection.lost = open.outstanding.len() as u32;
        self.progress.broke();
        self.abandon_page(index);
    }

    fn abandon_page(&mut self, index: usize) {
        if self.slots[index].run.take().is_some() {
            self.schedule_page(index);
        }
    }

    fn break_overdue(&mut self, now: u64) {
        let timeout_ns = self.config.timeout_ms * 1_000_000;
        for index in 0..self.slots.len() {
            let Some(open) = self.slots[index].open.as_ref() else {
                continue;
            };
            let (since, fault) = match open.outstanding.front() {
                _ if !open.connected => (
                    self.log.connections[open.number].open_ns,
                    Fault::ConnectTimeout,
                ),
                Some(oldest) => (oldest.response.send_ns, Fault::ResponseTimeout),
                None => continue,
            };
            if now.saturating_sub(since) > timeout_ns {
                self.break_off(index, fault);
            }
        }
    }
}
