// SPDX-License-Identifier: Apache-2.0
//! Several threads for one capture.
//!
//! Flows are dealt out by their hash to shares, several for each thread, each with a
//! meter of its own. Packets travel in rounds: a round has one batch for every share.
//! Any thread takes up any share, one at a time, and its batches in the order of their
//! rounds, so that what comes out of a share does not depend on who worked on it. The
//! thread that reads takes up shares too, as soon as [`DEPTH`] rounds wait: with few
//! cores nothing else would keep them all busy, as reading costs less than estimating.
//!
//! After some rounds, the same for all of them, each share hands over its list of rows,
//! each with the packet that completed it, and the lists are merged by that. So the
//! output does not depend on the number of threads, and the bounds on rounds and on
//! reports under way bound the memory.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use causeway_core::flow::{
    Batch, FlowMeterCounts, FlowState, HashedFlow, Headers, Measuring, Observation,
};
use causeway_core::wire::Stamped;

use super::collect::{Found, Lines, write_lines};
use super::rows::Rows;
use super::totals::Totals;

/// Shares for each estimating thread: so many that the reading thread finds one that
/// no thread is at, so few that batches are worth their handing over.
pub(crate) const SHARES: usize = 4;
/// Packets of a batch, at most; the first full one ends the round. What is under way stays in
/// the caches that cores share, and a thread that waited is woken seldom enough.
const BATCH: usize = 1 << 11;
/// Rounds that may wait before the reading thread does their work.
const DEPTH: usize = 2;
/// Rounds between two lists of rows: to wake the thread that writes them costs more than
/// most rounds have to write.
const REPORT: u32 = 16;
/// Lists of rows that may wait for the thread that writes them.
const REPORTS: usize = 4;

/// What takes the packets of a capture: several threads, or one for everything.
pub(crate) trait Consumer {
    /// Takes the packet with this number.
    fn packet(&mut self, index: u64, seen: Observation) -> io::Result<()>;

    /// [`Consumer::packet`] of a frame captured at `time_ns`.
    fn stamped(
        &mut self,
        index: u64,
        frame: &Stamped<'_>,
        time_ns: u64,
        headers: Headers,
    ) -> io::Result<()>;

    /// The next packet may be long in coming.
    fn pause(&mut self) -> io::Result<()>;
}

/// What a share of the flows needs.
struct Share<M> {
    meter: M,
    found: Found,
}

/// What to do next for a share.
enum Order {
    Packets(Batch),
    /// There are no more.
    Finish,
}

/// A share, and what waits for it.
struct Desk<M> {
    orders: VecDeque<Order>,
    /// Round of the first order.
    round: u64,
    /// `None` while a thread is at it, and after its end.
    share: Option<Box<Share<M>>>,
}

/// A round that not all shares have done.
struct Round {
    /// Shares that have not.
    left: usize,
    /// The shares are to hand over their rows.
    report: bool,
    lines: Lines,
}

/// What all threads look at, for a moment at a time.
struct Board<M> {
    desks: Vec<Desk<M>>,
    /// The oldest first, which is also the first to be done.
    rounds: VecDeque<Round>,
    /// Round of the first of them.
    oldest: u64,
    reports: VecDeque<Lines>,
    /// Batches on their way back: new memory for each would cost as much as decoding.
    emptied: Vec<Batch>,
    closing: Closing,
    /// Nothing more will be read.
    closed: bool,
    /// The results are not wanted any more.
    abandoned: bool,
}

/// What shares give at their end.
#[derive(Default)]
pub(crate) struct Closing {
    pub lines: Lines,
    pub totals: Option<Totals>,
    pub counts: FlowMeterCounts,
}

/// The board, and where threads wait for it to change.
pub(crate) struct Pool<M> {
    board: Mutex<Board<M>>,
    /// For orders.
    work: Condvar,
    /// For rounds and reports to become fewer.
    room: Condvar,
    /// For reports.
    written: Condvar,
}

/// A thread that panics leaves its share undone: the others must not wait for it.
struct Watch<'a, M>(&'a Pool<M>);

impl<M> Drop for Watch<'_, M> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abandon();
        }
    }
}

impl<M> Pool<M> {
    /// A pool of one share for each meter.
    pub(crate) fn new(shares: impl Iterator<Item = (M, Found)>) -> Self {
        let desk = |(meter, found)| Desk {
            orders: VecDeque::new(),
            round: 0,
            share: Some(Box::new(Share { meter, found })),
        };
        Self {
            board: Mutex::new(Board {
                desks: shares.map(desk).collect(),
                rounds: VecDeque::new(),
                oldest: 0,
                reports: VecDeque::new(),
                emptied: Vec::new(),
                closing: Closing::default(),
                closed: false,
                abandoned: false,
            }),
            work: Condvar::new(),
            room: Condvar::new(),
            written: Condvar::new(),
        }
    }

    fn board(&self) -> MutexGuard<'_, Board<M>> {
        // A thread that panics at the board has the process end for it.
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has all threads stop where they are.
    fn abandon(&self) {
        self.board().abandoned = true;
        self.work.notify_all();
        self.room.notify_all();
        self.written.notify_all();
    }

    /// What the shares gave at their end.
    pub(crate) fn into_closing(self) -> Closing {
        let board = self.board.into_inner();
        board.unwrap_or_else(PoisonError::into_inner).closing
    }
}

fn wait<'a, T>(on: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    on.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

impl<M> Board<M> {
    /// The oldest order that waits for a share at which no thread is. Of shares that are
    /// equal in that, the one nearest to `home`, so that a thread mostly finds those again
    /// whose flows its core knows.
    fn next(&self, home: usize) -> Option<usize> {
        let free = |desk: &Desk<M>| desk.share.is_some() && !desk.orders.is_empty();
        (0..self.desks.len())
            .filter(|&at| free(&self.desks[at]))
            .min_by_key(|&at| (self.desks[at].round, at.abs_diff(home)))
    }

    fn done(&self) -> bool {
        self.abandoned || self.closed && self.rounds.is_empty()
    }
}

impl<M: Measuring> Pool<M> {
    /// Estimates until there is nothing left to do.
    pub(crate) fn work(&self, home: usize) {
        let _watch = Watch(self);
        let mut board = self.board();
        while !board.done() {
            board = match board.next(home) {
                Some(at) => self.take_up(board, at),
                None => wait(&self.work, board),
            };
        }
    }

    /// Does the first order of a share.
    fn take_up<'a>(
        &'a self,
        mut board: MutexGuard<'a, Board<M>>,
        at: usize,
    ) -> MutexGuard<'a, Board<M>> {
        let desk = &mut board.desks[at];
        let round = desk.round;
        let (Some(order), Some(mut share)) = (desk.orders.pop_front(), desk.share.take()) else {
            return board;
        };
        desk.round += 1;
        let index = (round - board.oldest) as usize;
        let report = board.rounds[index].report;
        drop(board);
        let (emptied, lines, share) = match order {
            Order::Packets(mut batch) => {
                share.meter.observe_all(&batch, &mut share.found);
                batch.clear();
                let lines = report.then(|| std::mem::take(&mut share.found.lines));
                (Some(batch), lines.unwrap_or_default(), Some(share))
            }
            Order::Finish => {
                let Share {
                    mut meter,
                    mut found,
                } = *share;
                meter.finish(&mut found);
                let counts = meter.counts();
                let mut board = self.board();
                board.closing.add(found, &counts);
                drop(board);
                (None, Lines::new(), None)
            }
        };
        let mut board = self.board();
        board.emptied.extend(emptied);
        let more = share.is_some() && !board.desks[at].orders.is_empty();
        board.desks[at].share = share;
        self.complete(&mut board, round, lines);
        // A thread that found this share taken may have gone to sleep.
        if more {
            self.work.notify_one();
        }
        board
    }

    /// One share has done its part of a round.
    fn complete(&self, board: &mut Board<M>, round: u64, lines: Lines) {
        let index = (round - board.oldest) as usize;
        let at = &mut board.rounds[index];
        at.left -= 1;
        at.lines.extend(lines);
        // Each share goes by the order of rounds, so that they end in it.
        if at.left > 0 {
            return;
        }
        if let Some(done) = board.rounds.pop_front() {
            board.oldest += 1;
            if done.report {
                board.reports.push_back(done.lines);
                self.written.notify_one();
            }
        }
        self.room.notify_one();
        if board.done() {
            self.work.notify_all();
            self.written.notify_all();
        }
    }

    /// Writes the rows of each report in the order of the packets that completed them.
    pub(crate) fn write(&self, rows: &mut Rows) -> io::Result<()> {
        let _watch = Watch(self);
        let mut board = self.board();
        loop {
            if let Some(mut lines) = board.reports.pop_front() {
                self.room.notify_one();
                drop(board);
                lines.sort_by_key(|(at, _)| *at);
                if let Err(error) = write_lines(&mut lines, rows) {
                    self.abandon();
                    return Err(error);
                }
                board = self.board();
            } else if board.done() {
                return Ok(());
            } else {
                board = wait(&self.written, board);
            }
        }
    }
}

impl Closing {
    fn add(&mut self, found: Found, counts: &FlowMeterCounts) {
        self.lines.extend(found.lines);
        self.counts.merge(counts);
        self.totals = match (self.totals.take(), found.totals) {
            (Some(mut all), Some(one)) => {
                all.merge(one);
                Some(all)
            }
            (all, one) => all.or(one),
        };
    }
}

/// Deals packets out to shares.
pub(crate) struct Rounds<'a, M: Measuring> {
    pool: &'a Pool<M>,
    /// The round's packets so far, by share.
    batches: Vec<Batch>,
    seed: FlowState,
    /// Rounds since the last report.
    unreported: u32,
    /// Send what waits whenever the input pauses, be the round full or not.
    eager: bool,
    _watch: Watch<'a, M>,
}

impl<'a, M: Measuring> Rounds<'a, M> {
    pub(crate) fn new(pool: &'a Pool<M>, seed: FlowState, eager: bool) -> Self {
        let shares = pool.board().desks.len();
        Self {
            pool,
            batches: (0..shares).map(|_| Batch::with_capacity(BATCH)).collect(),
            seed,
            unreported: 0,
            eager,
            _watch: Watch(pool),
        }
    }

    #[inline(never)]
    fn send(&mut self) -> io::Result<()> {
        self.unreported += 1;
        let report = self.eager || self.unreported == REPORT;
        self.post(report, false)?;
        self.help()
    }

    /// Gives every share its part of a round.
    fn post(&mut self, report: bool, last: bool) -> io::Result<()> {
        let mut board = self.pool.board();
        if board.abandoned {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if report {
            self.unreported = 0;
        }
        let board = &mut *board;
        for (desk, batch) in board.desks.iter_mut().zip(&mut self.batches) {
            desk.orders.push_back(match last {
                true => Order::Finish,
                false => {
                    let next = board.emptied.pop();
                    let next = next.unwrap_or_else(|| Batch::with_capacity(BATCH));
                    Order::Packets(std::mem::replace(batch, next))
                }
            });
        }
        board.rounds.push_back(Round {
            left: board.desks.len(),
            report,
            lines: Lines::new(),
        });
        board.closed = last;
        self.pool.work.notify_all();
        Ok(())
    }

    /// Estimates, or waits, until there is room for another round.
    fn help(&self) -> io::Result<()> {
        let mut board = self.pool.board();
        let last = board.desks.len() - 1;
        loop {
            if board.abandoned {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if board.rounds.len() <= DEPTH && board.reports.len() <= REPORTS {
                return Ok(());
            }
            board = match board.next(last) {
                Some(at) => self.pool.take_up(board, at),
                None => wait(&self.pool.room, board),
            };
        }
    }

    /// Ends all shares, with what is left.
    pub(crate) fn finish(mut self) {
        // Before the rows of the flows that end now, which stand in another order.
        let sent = self.post(true, false).and_then(|()| self.post(false, true));
        // Broken off: the rest is not wanted.
        if sent.is_ok() {
            self.pool.work(self.batches.len() - 1);
        }
    }
}

impl<M: Measuring> Consumer for Rounds<'_, M> {
    #[inline(always)]
    fn packet(&mut self, index: u64, seen: Observation) -> io::Result<()> {
        let place = HashedFlow::of(&seen.key, &self.seed);
        let share = place.share(self.batches.len());
        let batch = &mut self.batches[share];
        batch.push(index, &seen, place);
        if batch.len() == BATCH {
            self.send()
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn stamped(
        &mut self,
        index: u64,
        frame: &Stamped<'_>,
        time_ns: u64,
        headers: Headers,
    ) -> io::Result<()> {
        let place = HashedFlow::of_stamped(frame, &self.seed);
        let share = place.share(self.batches.len());
        let batch = &mut self.batches[share];
        batch.push_stamped(index, frame, time_ns, headers, place);
        if batch.len() == BATCH {
            self.send()
        } else {
            Ok(())
        }
    }

    fn pause(&mut self) -> io::Result<()> {
        if self.eager && self.batches.iter().any(|batch| !batch.is_empty()) {
            self.send()
        } else {
            Ok(())
        }
    }
}
