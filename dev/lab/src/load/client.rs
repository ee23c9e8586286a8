// SPDX-License-Identifier: Apache-2.0
//! One client thread: an event loop over the slots of one namespace.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use rand::Rng;

use super::http::Response as HttpResponse;
use super::log::{ConnectionFault, Log, LoggedConnection, LoggedResponse};
use super::page::{self, PageRun};
use super::poll::{Interest, Poll};
use super::slot::{Open, Outstanding, Slot};
use super::socket::{begin_connect, fault_of, send, smoothed_rtt_us};
use super::{LoadConfig, Progress};
use crate::clock;

const PROTO_TCP: u8 = 6;
/// How often overdue connects and answers are looked for.
const TICK_NS: u64 = 50_000_000;

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
    /// The request being written.
    request: Vec<u8>,
}

/// Runs `slots` (their numbers) from `start_ns` to the configured end in the
/// calling thread's network namespace.
pub(super) fn run(
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
        request: Vec::new(),
    };
    client.run().context("load generator")?;
    client.log.cost.cpu_ns = clock::thread_cpu_ns();
    Ok(client.log)
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
        let now = clock::monotonic_ns();
        let of = &mut self.slots[slot];
        let at = match self.config.rest_ns(&mut of.rng, of.next_page) {
            Some(rest_ns) => now + rest_ns,
            None => self.start_ns + of.nominal_ns(self.config),
        };
        if at < self.end_ns && now < self.end_ns && !self.progress.is_stopped() {
            self.timers.push(Reverse((at, slot)));
        }
    }

    fn start_due_pages(&mut self, now: u64) {
        while let Some(&Reverse((at, slot))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            if !self.progress.is_stopped() {
                self.start_page(slot, at);
            }
        }
    }

    fn start_page(&mut self, index: usize, due_ns: u64) {
        let now = clock::monotonic_ns();
        let slot = &mut self.slots[index];
        // A page that was due before the last answer came was set off by it.
        if let Some(open) = slot.open.as_mut()
            && open.arrived_ns < due_ns
        {
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
            let Some(run) = slot.run.as_ref() else { return };
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
            if open.outstanding.len() >= self.config.outstanding
                || self.config.pipeline && !open.outstanding.is_empty()
            {
                return;
            }
            match self.send_some(index) {
                Ok(0) => return,
                Ok(_) => {}
                Err(_) => {
                    self.break_off(index, ConnectionFault::SendFailed);
                    return;
                }
            }
        }
    }

    /// Sends the next request or, pipelined, as many as may be outstanding, in
    /// one write. Returns how many it sent.
    fn send_some(&mut self, index: usize) -> io::Result<usize> {
        let slot = &mut self.slots[index];
        let (Some(run), Some(open)) = (slot.run.as_mut(), slot.open.as_mut()) else {
            return Ok(0);
        };
        let most = match self.config.pipeline {
            true => self.config.outstanding,
            false => 1,
        };
        let connected_ns = self.log.connections[open.number].connected_ns;
        let before = open.outstanding.len();
        self.request.clear();
        while open.outstanding.len() - before < most
            && let Some((object, wanted, ready_ns)) = run.take_ready()
        {
            let (id, parent) = run.ids(object);
            let response = LoggedResponse {
                connection: open.number as u32,
                page: run.number,
                id,
                parent: open.trigger(parent),
                // A page's first request waits for its connection.
                intended_ns: ready_ns.max(connected_ns),
                send_ns: 0,
                last_ns: 0,
                size: wanted.size,
                real: 0,
                srtt_us: 0,
            };
            self.config.protocol.request(&wanted, &mut self.request);
            open.outstanding.push_back(Outstanding {
                object,
                body: self.config.protocol.body(&wanted),
                response,
            });
        }
        let sent = open.outstanding.len() - before;
        if sent > 0 {
            let now = clock::monotonic_ns();
            open.outstanding
                .iter_mut()
                .skip(before)
                .for_each(|o| o.response.send_ns = now);
            send(&mut open.stream, &self.request)?;
        }
        Ok(sent)
    }

    fn open(&mut self, index: usize) {
        let now = clock::monotonic_ns();
        let max_age_ns = self.config.max_age_ms * 1_000_000;
        let slot = &mut self.slots[index];
        let age_ns = slot.rng.random_range(max_age_ns / 2..=max_age_ns);
        let number = self.log.connections.len();
        let opened = begin_connect(self.config.target);
        self.log.connections.push(LoggedConnection {
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
                    parser: self.config.protocol.parser(),
                    outstanding: VecDeque::new(),
                    arrived: VecDeque::new(),
                    arrived_ns: 0,
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
                    self.break_off(index, ConnectionFault::SendFailed);
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
                    ConnectionFault::ServerClosed
                } else {
                    ConnectionFault::ShortRead
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
        open.arrived_ns = now;
        let buffer = std::mem::take(&mut self.buffer);
        let fault = self.take_responses(index, &buffer[..count], now);
        self.buffer = buffer;
        match fault {
            Ok(()) => self.after_responses(index),
            Err(fault) => self.break_off(index, fault),
        }
    }

    fn take_responses(
        &mut self,
        index: usize,
        mut bytes: &[u8],
        now: u64,
    ) -> Result<(), ConnectionFault> {
        while !bytes.is_empty() {
            let slot = &mut self.slots[index];
            let Some(open) = slot.open.as_mut() else {
                return Ok(());
            };
            let Some(answer) = open
                .parser
                .feed(&mut bytes)
                .map_err(|_| ConnectionFault::BadResponse)?
            else {
                continue;
            };
            let sent = open
                .outstanding
                .pop_front()
                .ok_or(ConnectionFault::BadResponse)?;
            open.arrived.push_back(sent.response.id);
            if let Some(run) = slot.run.as_mut() {
                run.complete(sent.object, now);
            }
            let number = open.number;
            let srtt_us = match self.config.tcp_info {
                true => smoothed_rtt_us(&open.stream),
                false => 0,
            };
            self.record(number, sent, &answer, (now, srtt_us))?;
        }
        Ok(())
    }

    fn record(
        &mut self,
        number: usize,
        sent: Outstanding,
        answer: &HttpResponse,
        (now, srtt_us): (u64, u32),
    ) -> Result<(), ConnectionFault> {
        let mut response = sent.response;
        if answer.status != 200 || answer.size != sent.body {
            return Err(ConnectionFault::BadResponse);
        }
        let real = self.log.real(&answer.real);
        if *self.log.connections[number].real.get_or_insert(real) != real {
            return Err(ConnectionFault::WrongReal);
        }
        response.real = real;
        response.last_ns = now;
        response.srtt_us = srtt_us;
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
        if self.config.idle_ms <= 0.0
            && slot
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
    fn break_off(&mut self, index: usize, fault: ConnectionFault) {
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
                    ConnectionFault::ConnectTimeout,
                ),
                Some(oldest) => (oldest.response.send_ns, ConnectionFault::ResponseTimeout),
                None => continue,
            };
            if now.saturating_sub(since) > timeout_ns {
                self.break_off(index, fault);
            }
        }
    }
}
