// SPDX-License-Identifier: Apache-2.0
//! From the bytes of a capture to rows.
//!
//! One thread does everything, or a [`Pool`] does.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::thread;

use causeway_core::capture::{CapturedPacket, Reader, Rest, Visit};
use causeway_core::flow::{Batch, FlowState, HashedFlow, Headers, Measuring, Observation};
use causeway_core::wire::{Skip, Stamped};
use causeway_service::stop;

use super::args::Filter;
use super::collect::{Found, write_lines};
use super::expression::Expression;
use super::input::Input;
use super::progress::Progress;
use super::rows::Rows;
use super::summary::Summary;
use super::threads::{Closing, Consumer, Pool, Rounds, SHARES};
use super::totals::Totals;

/// Packets between two looks at the clock.
const TICK: u64 = 1 << 16;
/// Packets that one thread alone takes up before it estimates: they stay in its
/// nearest cache.
const GROUP: usize = 64;

/// What to do with a capture.
pub(crate) struct Job<M> {
    /// What measures: one for this thread, or one for each share of the flows.
    pub meters: Vec<M>,
    /// Threads that estimate beside the one that reads; 0: one thread does everything.
    pub threads: usize,
    pub headers: Headers,
    pub filter: Filter,
    pub expression: Option<Expression>,
    /// Groups in the totals at most.
    pub max_groups: usize,
    /// Seed of the hash of flows, the meters' own.
    pub seed: u64,
}

/// Reads a capture to its end and gives the rows to `rows`, the sums for the end
/// back.
pub(crate) fn run<M: Measuring>(
    job: Job<M>,
    input: Input,
    rows: &mut Rows,
) -> anyhow::Result<(Summary, Option<Totals>)> {
    match job.threads {
        0 => run_alone(job, input, rows),
        _ => run_pool(job, input, rows),
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
        waiting: Batch::with_capacity(GROUP),
        seed: FlowState::new(job.seed),
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

/// One thread for everything.
struct Alone<'a, M> {
    meter: M,
    waiting: Batch,
    seed: FlowState,
    found: Found,
    rows: &'a mut Rows,
}

impl<M: Measuring> Alone<'_, M> {
    #[inline(never)]
    fn flush(&mut self) {
        self.meter.observe_all(&self.waiting, &mut self.found);
        self.waiting.clear();
    }
}

impl<M: Measuring> Consumer for Alone<'_, M> {
    #[inline(always)]
    fn packet(&mut self, index: u64, seen: Observation) -> io::Result<()> {
        let place = HashedFlow::of(&seen.key, &self.seed);
        self.waiting.push(index, &seen, place);
        if self.waiting.len() == GROUP {
            self.flush();
        }
        Ok(())
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
        self.waiting
            .push_stamped(index, frame, time_ns, headers, place);
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

fn run_pool<M: Measuring>(
    job: Job<M>,
    input: Input,
    rows: &mut Rows,
) -> anyhow::Result<(Summary, Option<Totals>)> {
    let Job {
        meters,
        threads,
        headers,
        filter,
        expression,
        max_groups,
        seed,
    } = job;
    let style = rows.style().clone();
    let shares = meters.len();
    let found = || Found::new(&style, max_groups, seed).of_shares(shares);
    let pool = Pool::new(meters.into_iter().map(|meter| (meter, found())));
    let (summary, written) = thread::scope(|scope| {
        let pool = &pool;
        for worker in 0..threads {
            scope.spawn(move || pool.work(worker * SHARES));
        }
        let reading = scope.spawn(move || {
            let mut rounds = Rounds::new(pool, FlowState::new(seed), style.endless);
            let summary = read(input, headers, &filter, expression, &mut rounds);
            rounds.finish();
            summary
        });
        let written = pool.write(rows);
        let summary = reading.join();
        let summary = summary.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (summary, written)
    });
    let Closing {
        mut lines,
        totals,
        counts,
    } = pool.into_closing();
    written?;
    let summary = Summary { counts, ..summary? };
    lines.sort_by_key(|(at, _)| *at);
    write_lines(&mut lines, rows)?;
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
        ..
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
                match read_some(&mut bytes, reader.space()) {
                    Ok(0) => reader.finish(),
                    Ok(count) => reader.filled(count),
                    // A stream that a signal ended is not complete, and needs not be.
                    Err(error)
                        if stop::stopped() && error.kind() == io::ErrorKind::UnexpectedEof =>
                    {
                        reader.finish();
                    }
                    Err(error) => {
                        gate.summary.damage = Some(error.into());
                        break;
                    }
                }
                if reader.totals().packets >= tick {
                    tick = reader.totals().packets + TICK;
                    progress.tick(tick);
                }
            }
            Ok(Rest::End) => break,
            Err(error) => {
                gate.summary.damage = Some(error.into());
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
        Some(error) if summary.totals.packets == 0 => Err(error),
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
    fn visit(&mut self, packet: &CapturedPacket<'_>) -> ControlFlow<anyhow::Error> {
        if self.open
            && let (Some(time_ns), Some(link)) = (packet.time_ns, packet.link)
            && let Some(frame) = Stamped::of(link, packet.data)
        {
            self.index += 1;
            let (index, headers) = (self.index - 1, self.headers);
            return match self.consumer.stamped(index, &frame, time_ns, headers) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error.into()),
            };
        }
        // A copy: the packet itself need not be laid out in memory for the way above.
        let packet = *packet;
        match self.less_common(&packet) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}

impl<C: Consumer> Gate<'_, C> {
    /// For UDP, and TCP without timestamps.
    #[inline(never)]
    fn less_common(&mut self, packet: &CapturedPacket<'_>) -> anyhow::Result<()> {
        if self.open
            && let (Some(time_ns), Some(link)) = (packet.time_ns, packet.link)
            && let Some(seen) =
                Observation::of_common_frame(link, packet.data, time_ns, self.headers)
        {
            self.index += 1;
            self.consumer.packet(self.index - 1, seen)?;
            return Ok(());
        }
        self.examine(packet)
    }

    /// The long way, for what is filtered or not of the commonest sort.
    #[inline(never)]
    fn examine(&mut self, packet: &CapturedPacket<'_>) -> anyhow::Result<()> {
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
fn reduce(packet: &CapturedPacket<'_>, headers: Headers) -> Result<Observation, Skip> {
    let time_ns = packet.time_ns.ok_or(Skip::NoTime)?;
    let link = packet.link.ok_or(Skip::LinkType)?;
    Observation::of_frame(link, packet.data, packet.wire_len, time_ns, headers)
}

/// Reads what there is; a signal is no error.
pub(crate) fn read_some(bytes: &mut impl Read, space: &mut [u8]) -> io::Result<usize> {
    loop {
        match bytes.read(space) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
