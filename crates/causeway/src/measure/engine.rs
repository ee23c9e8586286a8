// SPDX-License-Identifier: Apache-2.0
//! From the bytes of a capture to rows.
//!
//! Without workers one thread does everything. With workers the reading thread
//! hands packets out, and each worker owns the flows whose hash falls to it.
//! Packets travel in rounds: a round gives every worker one batch, every
//! batch comes back as one list of rows, each with the packet that completed it,
//! and the lists of a round are merged by that. So the output does not depend on
//! the number of workers, and bounded channels bound the memory.

use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Scope};

use causeway_core::capture::{Packet, Reader, Rest};
use causeway_core::estimate::Sample;
use causeway_core::flow::{
    Counts, FlowKey, FlowState, Headers, Meter, Observation, Row, Settings, Sink,
};
use causeway_core::wire::Skip;

use super::args::{Filter, Format};
use super::expression::Expression;
use super::input::Input;
use super::output::{Output, Style};
use super::progress::Progress;
use super::summary::Summary;
use super::table::Table;

/// Packets between two looks at the clock.
const TICK: u64 = 1 << 16;
/// Packets that one thread alone takes up before it estimates: they stay in its
/// nearest cache.
const GROUP: usize = 64;
/// Packets of a round, for all workers together.
const ROUND: usize = 1 << 14;
/// Rounds under way for each worker.
const DEPTH: usize = 4;

/// What to do with a capture.
pub struct Job<const N: usize> {
    pub settings: Settings<N>,
    pub headers: Headers,
    pub filter: Filter,
    pub expression: Option<Expression>,
    pub workers: usize,
}

/// Reads a capture to its end and gives the rows to `output`, the sums for the
/// closing table back.
pub fn run<const N: usize, W: Write + Send>(
    job: Job<N>,
    input: Input,
    output: &mut Output<W>,
) -> anyhow::Result<(Summary, Option<Table>)> {
    match job.workers {
        0 => run_alone(job, input, output),
        _ => thread::scope(|scope| run_workers(scope, job, input, output)),
    }
}

fn run_alone<const N: usize, W: Write>(
    job: Job<N>,
    input: Input,
    output: &mut Output<W>,
) -> anyhow::Result<(Summary, Option<Table>)> {
    let found = Found::new(output.style());
    let mut alone = Alone {
        meter: Meter::new(job.settings),
        waiting: Vec::with_capacity(GROUP),
        found,
        output,
    };
    let mut summary = read(input, job.headers, &job.filter, job.expression, &mut alone)?;
    alone.flush();
    let Alone {
        mut meter,
        mut found,
        output,
        ..
    } = alone;
    meter.finish(&mut found);
    write_rows(&mut found.rows, output)?;
    summary.counts = meter.counts();
    Ok((summary, found.table))
}

/// What [`read`] gives packets to.
trait Consumer {
    /// Takes the packet with this number.
    fn packet(&mut self, index: u64, seen: &Observation) -> io::Result<()>;

    /// The next packet may be long in coming.
    fn pause(&mut self) -> io::Result<()>;
}

/// One thread for everything.
struct Alone<'a, const N: usize, W: Write> {
    meter: Meter<N>,
    waiting: Batch,
    found: Found,
    output: &'a mut Output<W>,
}

impl<const N: usize, W: Write> Alone<'_, N, W> {
    fn flush(&mut self) {
        self.meter.observe_all(&self.waiting, &mut self.found);
        self.waiting.clear();
    }
}

impl<const N: usize, W: Write> Consumer for Alone<'_, N, W> {
    #[inline]
    fn packet(&mut self, index: u64, seen: &Observation) -> io::Result<()> {
        self.waiting.push((index, *seen));
        if self.waiting.len() == GROUP {
            self.flush();
        }
        Ok(())
    }

    fn pause(&mut self) -> io::Result<()> {
        self.flush();
        write_rows(&mut self.found.rows, self.output)
    }
}

/// What a meter found in a batch.
struct Found {
    at: u64,
    rows: Rows,
    keep_rows: bool,
    table: Option<Table>,
}

impl Found {
    fn new(style: &Style) -> Self {
        let table = style.format == Format::Table;
        Self {
            at: 0,
            rows: Vec::new(),
            keep_rows: !table,
            table: table.then(|| Table::new(style.per)),
        }
    }
}

impl Sink for Found {
    #[inline]
    fn packet(&mut self, index: u64) {
        self.at = index;
    }

    #[inline]
    fn sample(&mut self, flow: &FlowKey, method: u8, sample: &Sample) {
        if let Some(table) = &mut self.table {
            table.sample(flow, method, sample);
        }
    }

    fn row(&mut self, row: &Row) {
        if self.keep_rows {
            self.rows.push((self.at, *row));
        }
        if let Some(table) = &mut self.table {
            table.row(row);
        }
    }

    fn ending(&mut self, born: u64) {
        self.at = born;
    }
}

fn write_rows<W: Write>(rows: &mut Rows, output: &mut Output<W>) -> io::Result<()> {
    rows.drain(..).try_for_each(|(_, row)| output.row(&row))?;
    output.pause()
}

type Batch = Vec<(u64, Observation)>;
type Rows = Vec<(u64, Row)>;

/// What a worker sends when there are no more batches.
struct Closing {
    rows: Rows,
    table: Option<Table>,
    counts: Counts,
}

struct Worker<'scope> {
    rows: Receiver<Rows>,
    thread: thread::ScopedJoinHandle<'scope, Closing>,
}

fn run_workers<'scope, const N: usize, W: Write + Send>(
    scope: &'scope Scope<'scope, '_>,
    job: Job<N>,
    input: Input,
    output: &mut Output<W>,
) -> anyhow::Result<(Summary, Option<Table>)> {
    let mut batches = Vec::new();
    let mut workers = Vec::new();
    for _ in 0..job.workers {
        let mut settings = job.settings.clone();
        settings.max_flows = settings.max_flows.div_ceil(job.workers as u32);
        let (batch_in, batch_out) = sync_channel(DEPTH);
        let (rows_in, rows_out) = sync_channel(DEPTH);
        let found = Found::new(output.style());
        let thread = scope.spawn(move || work(settings, found, &batch_out, &rows_in));
        batches.push(batch_in);
        workers.push(Worker {
            rows: rows_out,
            thread,
        });
    }
    let seed = FlowState::new(job.settings.seed);
    let endless = output.style().endless;
    let reading = scope.spawn(move || {
        let mut rounds = Rounds::new(batches, seed, endless);
        let summary = read(input, job.headers, &job.filter, job.expression, &mut rounds);
        // A worker that hung up has no use for the rest; its thread tells why.
        let _ = rounds.send();
        summary
    });
    let written = merge(&workers, output);
    close(workers, reading, written, output)
}

/// Deals packets out to workers.
struct Rounds {
    batches: Vec<Batch>,
    workers: Vec<SyncSender<Batch>>,
    seed: FlowState,
    waiting: usize,
    /// Send what waits whenever the input pauses, be the round full or not.
    eager: bool,
}

impl Rounds {
    fn new(workers: Vec<SyncSender<Batch>>, seed: FlowState, eager: bool) -> Self {
        let batches = workers.iter().map(|_| Batch::new()).collect();
        Self {
            batches,
            workers,
            seed,
            waiting: 0,
            eager,
        }
    }

    fn send(&mut self) -> io::Result<()> {
        self.waiting = 0;
        for (batch, worker) in self.batches.iter_mut().zip(&self.workers) {
            let next = Batch::with_capacity(batch.len() + batch.len() / 8);
            // A worker hangs up only when its results are no longer wanted.
            let sent = worker.send(std::mem::replace(batch, next));
            sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        }
        Ok(())
    }
}

impl Consumer for Rounds {
    #[inline]
    fn packet(&mut self, index: u64, seen: &Observation) -> io::Result<()> {
        let worker = seen.key.shard(&self.seed, self.workers.len());
        self.batches[worker].push((index, *seen));
        self.waiting += 1;
        if self.waiting == ROUND {
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

fn work<const N: usize>(
    settings: Settings<N>,
    mut found: Found,
    batches: &Receiver<Batch>,
    rows: &SyncSender<Rows>,
) -> Closing {
    let mut meter = Meter::new(settings);
    for batch in batches {
        meter.observe_all(&batch, &mut found);
        if rows.send(std::mem::take(&mut found.rows)).is_err() {
            break;
        }
    }
    meter.finish(&mut found);
    Closing {
        rows: found.rows,
        table: found.table,
        counts: meter.counts(),
    }
}

/// Writes the rows of each round in the order of the packets that completed them.
fn merge<W: Write>(workers: &[Worker<'_>], output: &mut Output<W>) -> io::Result<()> {
    let mut round = Rows::new();
    loop {
        for worker in workers {
            match worker.rows.recv() {
                Ok(rows) => round.extend(rows),
                Err(_) => return Ok(()),
            }
        }
        round.sort_by_key(|(at, _)| *at);
        write_rows(&mut round, output)?;
    }
}

fn close<W: Write>(
    workers: Vec<Worker<'_>>,
    reading: thread::ScopedJoinHandle<'_, anyhow::Result<Summary>>,
    written: io::Result<()>,
    output: &mut Output<W>,
) -> anyhow::Result<(Summary, Option<Table>)> {
    let mut rest = Rows::new();
    let mut table: Option<Table> = None;
    let mut counts = Counts::default();
    for Worker { rows, thread } in workers {
        // Hanging up makes the worker, then the reader, stop.
        drop(rows);
        let closing = thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        rest.extend(closing.rows);
        counts.merge(&closing.counts);
        table = match (table, closing.table) {
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
    write_rows(&mut rest, output)?;
    Ok((summary, table))
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
        filter: (!filter.is_empty()).then_some(filter),
        expression: expression.as_mut(),
        summary: Summary::default(),
        index: 0,
    };
    let mut tick = TICK;
    loop {
        let rest = reader.each(|packet| match gate.pass(packet, consumer) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        });
        match rest {
            Ok(Rest::Stopped(error)) => return Err(error),
            Ok(Rest::NeedBytes) => {
                consumer.pause()?;
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
struct Gate<'a> {
    headers: Headers,
    filter: Option<&'a Filter>,
    expression: Option<&'a mut Expression>,
    summary: Summary,
    index: u64,
}

impl Gate<'_> {
    #[inline]
    fn pass(&mut self, packet: &Packet<'_>, consumer: &mut impl Consumer) -> anyhow::Result<()> {
        // What cannot be read is not the expression's affair.
        if let (Some(expression), Some(link)) = (&mut self.expression, packet.link)
            && !expression.matches(link, packet)?
        {
            self.summary.filtered += 1;
            return Ok(());
        }
        match reduce(packet, self.headers) {
            Ok(seen) if self.filter.is_none_or(|filter| filter.passes(&seen.key)) => {
                consumer.packet(self.index, &seen)?;
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
