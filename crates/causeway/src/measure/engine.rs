// SPDX-License-Identifier: Apache-2.0
//! From the bytes of a capture to rows.
//!
//! Without workers one thread does everything. With workers the reading thread
//! hands packets out, and each worker owns the flows whose hash falls to it.
//! Packets travel in rounds: a round gives every worker one batch. After some rounds,
//! the same for all of them, each worker hands over its list of rows, each with the
//! packet that completed it, and the lists are merged by that. So the output does not
//! depend on the number of workers, and bounded channels bound the memory.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, Scope};

use causeway_core::capture::{Packet, Reader, Rest, Visit};
use causeway_core::flow::{Counts, FlowState, Headers, Measuring, Observation};
use causeway_core::wire::Skip;

use super::args::Filter;
use super::collect::{Found, Lines, write_lines};
use super::expression::Expression;
use super::input::Input;
use super::progress::Progress;
use super::rows::Rows;
use super::summary::Summary;
use super::totals::Totals;

/// Packets between two looks at the clock.
const TICK: u64 = 1 << 16;
/// Packets that one thread alone takes up before it estimates: they stay in its
/// nearest cache.
const GROUP: usize = 64;
/// Packets of a round for each worker: what is under way stays in the caches that cores
/// share, and a thread that waited is woken seldom enough.
const ROUND: usize = 1 << 12;
/// Rounds under way for each worker.
const DEPTH: usize = 4;
/// Rounds between two lists of rows: to wake the thread that writes them costs more than
/// most rounds have to write.
const REPORT: u32 = 16;

/// What to do with a capture.
pub struct Job<M> {
    /// What measures: one for this thread, or one for each worker.
    pub meters: Vec<M>,
    /// One thread does everything.
    pub alone: bool,
    pub headers: Headers,
    pub filter: Filter,
    pub expression: Option<Expression>,
    /// Groups in the totals at most.
    pub max_groups: usize,
    /// Seed of the hash that deals flows out to workers.
    pub seed: u64,
}

/// Reads a capture to its end and gives the rows to `rows`, the sums for the end
/// back.
pub fn run<M: Measuring>(
    job: Job<M>,
    input: Input,
    rows: &mut Rows,
) -> anyhow::Result<(Summary, Option<Totals>)> {
    match job.alone {
        true => run_alone(job, input, rows),
        false => thread::scope(|scope| run_workers(scope, job, input, rows)),
    }
}

fn run_alone<M: Measuring>(
    mut job: Job<M>,
    input: Input,
    rows: &mut Rows,
) -> anyhow::Result<(Summary, Option<Totals>)> {
    let found = Found::new(rows.style(), job.max_groups, job.seed);
    let Some(meter) = job.meters.pop() else {
        anyhow::bail!("nothing measures");
    };
    let mut alone = Alone {
        meter,
        waiting: Vec::with_capacity(GROUP),
        found,
        rows,
    };
    let mut summary = read(input, job.headers, &job.filter, job.expression, &mut alone)?;
    alone.flush();
    let Alone {
        mut meter,
        mut found,
        rows,
        ..
    } = alone;
    meter.finish(&mut found);
    found.write(rows)?;
    summary.counts = meter.counts();
    Ok((summary, found.totals))
}

/// What [`read`] gives packets to.
trait Consumer {
    /// Takes the packet with this number.
    fn packet(&mut self, index: u64, seen: Observation) -> io::Result<()>;

    /// The next packet may be long in coming.
    fn pause(&mut self) -> io::Result<()>;
}

/// One thread for everything.
struct Alone<'a, M> {
    meter: M,
    waiting: Batch,
    found: Found,
    rows: &'a mut Rows,
}

impl<M: Measuring> Alone<'_, M> {
    fn flush(&mut self) {
        self.meter.observe_all(&self.waiting, &mut self.found);
        self.waiting.clear();
    }
}

impl<M: Measuring> Consumer for Alone<'_, M> {
    #[inline(always)]
    fn packet(&mut self, index: u64, seen: Observation) -> io::Result<()> {
        self.waiting.push((index, seen));
        if self.waiting.len() == GROUP {
            self.flush();
        }
        Ok(())
    }

    fn pause(&mut self) -> io::Result<()> {
        self.flush();
        self.found.write(self.rows)
    }
}

type Batch = Vec<(u64, Observation)>;

/// What a worker sends when there are no more batches.
struct Closing {
    lines: Lines,
    totals: Option<Totals>,
    counts: Counts,
}

/// What a worker is to do next.
struct Order {
    batch: Batch,
    /// Hand over the rows so far.
    report: bool,
}

/// A worker, as the reading thread sees it.
struct Lane {
    /// The round's packets so far.
    batch: Batch,
    full: SyncSender<Order>,
    /// Batches on their way back: new memory for each would cost as much as decoding.
    emptied: Receiver<Batch>,
}

struct Worker<'scope> {
    lines: Receiver<Lines>,
    thread: thread::ScopedJoinHandle<'scope, Closing>,
}

fn run_workers<'scope, M: Measuring + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    job: Job<M>,
    input: Input,
    rows: &mut Rows,
) -> anyhow::Result<(Summary, Option<Totals>)> {
    let mut lanes = Vec::new();
    let mut workers = Vec::new();
    for meter in job.meters {
        let (full, orders) = sync_channel(DEPTH);
        let (empty, emptied) = channel();
        let (lines_in, lines_out) = sync_channel(DEPTH);
        let found = Found::new(rows.style(), job.max_groups, job.seed);
        let thread = scope.spawn(move || work(meter, found, &orders, &empty, &lines_in));
        lanes.push(Lane {
            batch: Batch::new(),
            full,
            emptied,
        });
        workers.push(Worker {
            lines: lines_out,
            thread,
        });
    }
    let seed = FlowState::new(job.seed);
    let endless = rows.style().endless;
    let reading = scope.spawn(move || {
        let mut rounds = Rounds::new(lanes, seed, endless);
        let summary = read(input, job.headers, &job.filter, job.expression, &mut rounds);
        // A worker that hung up has no use for the rest; its thread tells why.
        let _ = rounds.send();
        summary
    });
    let written = merge(&workers, rows);
    close(workers, reading, written, rows)
}

/// Deals packets out to workers.
struct Rounds {
    lanes: Vec<Lane>,
    seed: FlowState,
    waiting: usize,
    /// Rounds since the last report.
    unreported: u32,
    /// Send what waits whenever the input pauses, be the round full or not.
    eager: bool,
}

impl Rounds {
    fn new(lanes: Vec<Lane>, seed: FlowState, eager: bool) -> Self {
        Self {
            lanes,
            seed,
            waiting: 0,
            unreported: 0,
            eager,
        }
    }

    #[inline(never)]
    fn send(&mut self) -> io::Result<()> {
        self.waiting = 0;
        self.unreported += 1;
        let report = self.eager || self.unreported == REPORT;
        if report {
            self.unreported = 0;
        }
        for lane in &mut self.lanes {
            let next = lane.emptied.try_recv().unwrap_or_default();
            let batch = std::mem::replace(&mut lane.batch, next);
            // A worker hangs up only when its results are no longer wanted.
            let sent = lane.full.send(Order { batch, report });
            sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        }
        Ok(())
    }
}

impl Consumer for Rounds {
    #[inline(always)]
    fn packet(&mut self, index: u64, seen: Observation) -> io::Result<()> {
        let lane = match self.lanes.len() {
            1 => 0,
            count => seen.key.shard(&self.seed, count),
        };
        self.lanes[lane].batch.push((index, seen));
        self.waiting += 1;
        if self.waiting == ROUND * self.lanes.len() {
            self.send()
        } else {
            Ok(())
        }
    }

    fn pause(&mut self) -> io::Result<()> {
        if self.eager && self.waiting > 0 {
            self.send()
        } else {
            Ok(())
        }
    }
}

fn work<M: Measuring>(
    mut meter: M,
    mut found: Found,
    orders: &Receiver<Order>,
    empty: &Sender<Batch>,
    lines: &SyncSender<Lines>,
) -> Closing {
    for Order { mut batch, report } in orders {
        meter.observe_all(&batch, &mut found);
        batch.clear();
        // At the end nobody needs it any more.
        let _ = empty.send(batch);
        if report && lines.send(std::mem::take(&mut found.lines)).is_err() {
            break;
        }
    }
    // Before the rows of the flows that end now, which stand in another order.
    let _ = lines.send(std::mem::take(&mut found.lines));
    meter.finish(&mut found);
    Closing {
        lines: found.lines,
        totals: found.totals,
        counts: meter.counts(),
    }
}

/// Writes the rows of each report in the order of the packets that completed them.
fn merge(workers: &[Worker<'_>], rows: &mut Rows) -> io::Result<()> {
    let mut round = Lines::new();
    loop {
        for worker in workers {
            match worker.lines.recv() {
                Ok(lines) => round.extend(lines),
                Err(_) => return Ok(()),
            }
        }
        round.sort_by_key(|(at, _)| *at);
        write_lines(&mut round, rows)?;
    }
}

fn close(
    workers: Vec<Worker<'_>>,
    reading: thread::ScopedJoinHandle<'_, anyhow::Result<Summary>>,
    written: io::Result<()>,
    rows: &mut Rows,
) -> anyhow::Result<(Summary, Option<Totals>)> {
    let mut rest = Lines::new();
    let mut totals: Option<Totals> = None;
    let mut counts = Counts::default();
    for Worker { lines, thread } in workers {
        // Hanging up makes the worker, then the reader, stop.
        drop(lines);
        let closing = thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        rest.extend(closing.lines);
        counts.merge(&closing.counts);
        totals = match (totals, closing.totals) {
            (Some(mut all), Some(one)) => {
                all.merge(one);
                Some(all)
            }
            (all, one) => all.or(one),
        };
    }
    let summary = reading
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    written?;
    let summary = Summary { counts, ..summary? };
    rest.sort_by_key(|(at, _)| *at);
    write_lines(&mut rest, rows)?;
    Ok((summary, totals))
}

/// Decodes a capture and gives every packet that can be measured to `consumer`.
fn read(
    input: Input,
    headers: Headers,
    filter: &Filter,
    mut expression: Option<Expression>,
    consumer: &mut impl Consumer,
) -> anyhow::Result<Summary> {
    let Input {
        mut bytes,
        position,
        len,
    } = input;
    let mut progress = Progress::new(position, len);
    let mut reader = Reader::new();
    let mut gate = Gate {
        headers,
        open: filter.is_empty() && expression.is_none(),
        filter: (!filter.is_empty()).then_some(filter),
        expression: expression.as_mut(),
        summary: Summary::default(),
        index: 0,
        consumer,
    };
    let mut tick = TICK;
    loop {
        match reader.give(&mut gate) {
            Ok(Rest::Stopped(error)) => return Err(error),
            Ok(Rest::NeedBytes) => {
                gate.consumer.pause()?;
                match read_some(&mut bytes, reader.space())? {
                    0 => reader.finish(),
                    count => reader.filled(count),
                }
                if reader.totals().packets >= tick {
                    tick = reader.totals().packets + TICK;
                    progress.tick(tick);
                }
            }
            Ok(Rest::End) => break,
            Err(error) => {
                gate.summary.damage = Some(error);
                break;
            }
        }
    }
    let mut summary = gate.summary;
    if let Some(expression) = &mut expression {
        expression.check()?;
    }
    summary.totals = reader.totals();
    match summary.damage {
        Some(error) if summary.totals.packets == 0 => Err(error.into()),
        _ => Ok(summary),
    }
}

/// What stands between the reader and the consumer.
struct Gate<'a, C> {
    headers: Headers,
    /// There is neither filter nor expression.
    open: bool,
    filter: Option<&'a Filter>,
    expression: Option<&'a mut Expression>,
    summary: Summary,
    index: u64,
    consumer: &'a mut C,
}

impl<C: Consumer> Visit<anyhow::Error> for Gate<'_, C> {
    #[inline(always)]
    fn visit(&mut self, packet: &Packet<'_>) -> ControlFlow<anyhow::Error> {
        if self.open
            && let (Some(time_ns), Some(link)) = (packet.time_ns, packet.link)
            && let Some(seen) =
                Observation::of_common_frame(link, packet.data, time_ns, self.headers)
        {
            self.index += 1;
            return match self.consumer.packet(self.index - 1, seen) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error.into()),
            };
        }
        match self.examine(packet) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

impl<C: Consumer> Gate<'_, C> {
    /// The long way, for what is filtered or not of the commonest sort.
    #[inline(never)]
    fn examine(&mut self, packet: &Packet<'_>) -> anyhow::Result<()> {
        // What cannot be read is not the expression's affair.
        if let (Some(expression), Some(link)) = (&mut self.expression, packet.link)
            && !expression.matches(link, packet)?
        {
            self.summary.filtered += 1;
            return Ok(());
        }
        match reduce(packet, self.headers) {
            Ok(seen) if self.filter.is_none_or(|filter| filter.passes(&seen.key)) => {
                self.consumer.packet(self.index, seen)?;
                self.index += 1;
            }
            Ok(_) => self.summary.filtered += 1,
            Err(skip) => self.summary.skipped.add(skip),
        }
        Ok(())
    }
}

#[inline]
fn reduce(packet: &Packet<'_>, headers: Headers) -> Result<Observation, Skip> {
    let time_ns = packet.time_ns.ok_or(Skip::NoTime)?;
    let link = packet.link.ok_or(Skip::LinkType)?;
    Observation::of_frame(link, packet.data, packet.wire_len, time_ns, headers)
}

fn read_some(bytes: &mut impl Read, space: &mut [u8]) -> io::Result<usize> {
    loop {
        match bytes.read(space) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
