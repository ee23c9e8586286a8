// SPDX-License-Identifier: Apache-2.0
//! `causeway capture`: packets of a running data plane as they came and as they left,
//! with what it did. `causeway trace --live` is the same as lines of reasons.

mod line;
mod output;
mod plane;
mod selection;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use causeway_core::capture::CapturedPacket;
use causeway_core::wire::LinkType;
use causeway_dataplane::{Mirror, MirrorMaps, MirroredPacket};
use causeway_measure::Expression;
use causeway_netio::monotonic_ns;
use causeway_service::stop;

use line::Line;
use output::Output;
pub(crate) use output::Style;
pub(crate) use plane::Plane;
pub(crate) use plane::ensure_named;
pub(crate) use selection::Selection;

/// The packets of a moment wait for so long.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often VIPs and reals are read again: they may change.
const REFRESH_EVERY: Duration = Duration::from_secs(1);

/// Capture packets of a running balancer, before and after it, with its verdicts
///
/// Writes pcapng with two interfaces: `before` has packets as they came, `after` as they
/// left. Each packet's comment has the verdict, the VIP, the real and the reason, and
/// a packet has the same packet id in both. tcpdump, tshark and Wireshark read
/// it. Without -w it prints a line for each packet.
///
/// EXPRESSION is tcpdump's filter language, for packets as they came. VIP, client,
/// verdict and sample are applied in the data plane; EXPRESSION and --real to the packets
/// that it copies, after the rate.
///
/// While no capture runs, this costs the data plane two reads of a word for each packet.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Configuration of the running balancer, or of a server's agent
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/causeway/causeway.toml"
    )]
    config: PathBuf,
    /// Write pcapng to this file; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Bytes to keep of each packet, before and after
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(96..=2048))]
    snaplen: u16,
    /// Without -w: how to print
    #[arg(short, long, value_enum, default_value_t, conflicts_with = "write")]
    output: PacketFormat,
    #[command(flatten)]
    selection: Selection,
    /// Only packets that match, in tcpdump's filter language
    #[arg(value_name = "EXPRESSION")]
    expression: Vec<String>,
}

/// How packets are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum PacketFormat {
    /// Lines for people
    #[default]
    Table,
    /// An object for each, a line each
    Json,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let style = match self.output {
            PacketFormat::Json => Style::Json,
            PacketFormat::Table => Style::Lines,
        };
        let mut expression = Expression::new(&self.expression);
        if let Some(expression) = &mut expression {
            expression.check()?;
        }
        let plane = Plane::load(&self.config)?;
        let output = |plane: &Plane| match &self.write {
            Some(file) => Output::pcapng(file, plane.interface(), self.snaplen),
            None => Ok(Output::lines(style)),
        };
        run(plane, &self.selection, expression, self.snaplen, output)
    }
}

/// `causeway trace --live`.
pub(crate) fn trace_live(
    config: &std::path::Path,
    style: Style,
    selection: &Selection,
) -> Result<ExitCode> {
    let snap = causeway_dataplane::mirror::SNAP_RANGE.0 * 2;
    let output = |_: &Plane| Ok(Output::lines(style));
    run(Plane::load(config)?, selection, None, snap, output)
}

/// Follows the mirror to its end. `open` is called once packets are copied: a file that is there is
/// not emptied for a capture that cannot run.
fn run(
    mut plane: Plane,
    selection: &Selection,
    expression: Option<Expression>,
    snap: u16,
    open: impl FnOnce(&Plane) -> Result<Output>,
) -> Result<ExitCode> {
    let options = selection.options(&plane, snap)?;
    let maps = MirrorMaps::pinned(plane.pin_dir())?;
    plane.refresh()?;
    let mut mirror = Mirror::open(maps, &options)?;
    stop::catch_signals().context("cannot catch signals")?;
    let output = open(&plane)?;
    let mut session = Session {
        plane,
        selection,
        expression,
        output,
        written: 0,
    };
    let ended = session.follow(&mut mirror);
    let counts = mirror.counts()?;
    drop(mirror);
    if !ended? {
        return Ok(ExitCode::SUCCESS);
    }
    session.output.end(&counts, wall_ns(monotonic_ns()))?;
    eprintln!(
        "causeway: {} of {} packets; {} more than --rate, {} not looked at, {} lost",
        session.written, counts.matched, counts.over_rate, counts.skipped, counts.lost
    );
    Ok(ExitCode::SUCCESS)
}

struct Session<'a> {
    plane: Plane,
    selection: &'a Selection,
    expression: Option<Expression>,
    output: Output,
    written: u64,
}

impl Session<'_> {
    /// Writes packets until there are enough, or a signal comes. `false`: the reader is gone.
    fn follow(&mut self, mirror: &mut Mirror) -> Result<bool> {
        let start = Instant::now();
        let mut refreshed = start;
        loop {
            // Told before the packets are taken, so that the last ones are written.
            let last = stop::stopped()
                || self
                    .selection
                    .duration
                    .is_some_and(|d| start.elapsed() >= d);
            for mirrored in mirror.take()? {
                if self
                    .selection
                    .count
                    .is_some_and(|most| self.written >= most)
                {
                    return Ok(true);
                }
                if !self.write(&mirrored)? {
                    return Ok(false);
                }
            }
            if !self.output.flush()? {
                return Ok(false);
            }
            if last
                || self
                    .selection
                    .count
                    .is_some_and(|most| self.written >= most)
            {
                return Ok(true);
            }
            if refreshed.elapsed() >= REFRESH_EVERY {
                refreshed = Instant::now();
                self.plane.refresh()?;
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Writes a packet if it is wanted. `false`: the reader is gone.
    fn write(&mut self, mirrored: &MirroredPacket) -> Result<bool> {
        if let Some(expression) = &mut self.expression {
            let packet = CapturedPacket {
                time_ns: None,
                link: Some(LinkType::Ethernet),
                wire_len: mirrored.before.len,
                data: &mirrored.before.data,
            };
            if !expression.matches(LinkType::Ethernet, &packet)? {
                return Ok(true);
            }
        }
        if let Some(real) = self.selection.real {
            let sent = self.plane.sent_to(mirrored);
            if !sent.is_some_and(|(id, address)| id.is_some() && address == real) {
                return Ok(true);
            }
        }
        let time_ns = wall_ns(mirrored.t_ns);
        let Some(line) = Line::new(&self.plane, mirrored, time_ns) else {
            return Ok(true);
        };
        let action = self
            .plane
            .outcome(mirrored.verdict)
            .map(|outcome| outcome.action);
        self.written += 1;
        self.output
            .packet(&line, mirrored, time_ns, self.written, action)
    }
}

/// A time of the kernel's monotonic clock as nanoseconds since the Unix epoch, by what
/// the two clocks read now: a step of the one shows in what comes after it.
fn wall_ns(monotonic: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_ns = now.map_or(0, |now| now.as_nanos() as u64);
    now_ns.saturating_sub(monotonic_ns().saturating_sub(monotonic))
}
