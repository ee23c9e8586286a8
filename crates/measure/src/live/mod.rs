// SPDX-License-Identifier: Apache-2.0
//! `causeway measure -i`: the same estimates from live traffic, by the meter in the
//! kernel (`bpf/meter.bpf.c`) or, for all that it cannot do, by the offline engine on
//! the packets of a socket.

mod kernel;
mod metrics;
mod recent;
mod serve;
mod socket;
mod top;

use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use causeway_core::estimate::{Method, Technique};
use causeway_netio::Interface;
use causeway_service::stop;

use super::args::MeasureArgs;
use super::collect::Found;
use super::page::Source as PageSource;
use super::rows::{Line, Rows, Style};
use super::sink::Target;
use super::totals::Totals;
use super::words::{AttachName, Format, Per};
use kernel::Kernel;
use recent::Recent;
use serve::Server;
use socket::Socket;
use top::{Asked, Screen};

/// How often to look for signals and keys.
const POLL: Duration = Duration::from_millis(100);
/// How long after its end an epoch may still get latencies, before its rows are written.
const GRACE_NS: u64 = 1_000_000_000;
/// How often the screen, the metrics and the recent past move on.
const TICK: Duration = Duration::from_secs(1);

/// Where live estimates come from.
trait Source {
    /// Waits at most `timeout` for packets or latencies and puts what is new into
    /// `state`.
    fn poll(&mut self, timeout: Duration, state: &mut State) -> anyhow::Result<()>;

    /// Brings the distributions in the totals up to date.
    fn distributions(&mut self, totals: &mut Totals) -> anyhow::Result<()>;

    /// Puts what is left into `state`.
    fn finish(&mut self, state: &mut State) -> anyhow::Result<()>;

    /// What became of the packets so far.
    fn counters(&mut self) -> anyhow::Result<Counters>;
}

/// Packets by what became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// By their words.
    pub packets: Vec<(String, u64)>,
    /// What was lost on the way here, with its cause.
    pub lost: Option<(u64, &'static str)>,
    /// What there was no room for among the flows, and what it means.
    pub evicted: Option<(u64, &'static str)>,
}

impl Counters {
    /// All packets.
    pub(crate) fn total(&self) -> u64 {
        self.packets.iter().map(|(_, count)| count).sum()
    }

    /// The closing lines.
    fn report(&self) {
        let seen = self.packets.iter().filter(|(_, count)| *count > 0);
        let words: Vec<_> = seen
            .map(|(word, count)| format!("{word} {count}"))
            .collect();
        match words.is_empty() {
            true => eprintln!("packets: none"),
            false => eprintln!("packets: {}", words.join(", ")),
        }
        // The words of the meter in the kernel, and of the one on a socket.
        let of = |words: [&str; 2]| {
            let packets = self.packets.iter();
            let counted = packets.filter(|(word, _)| words.contains(&word.as_str()));
            counted.map(|(_, count)| count).sum::<u64>()
        };
        if of(["measured", "from clients"]) == 0 && of(["server_side", "from servers"]) > 0 {
            eprintln!(
                "packets came from servers alone, and only those of clients are measured: measure where these arrive, or name the clients' network with --client-net"
            );
        }
        if let Some((lost, why)) = self.lost.filter(|(lost, _)| *lost > 0) {
            eprintln!("{lost} {why}");
        }
        if let Some((evicted, what)) = self.evicted.filter(|(evicted, _)| *evicted > 0) {
            eprintln!("{evicted} {what}");
        }
    }
}

/// What is known so far.
struct State {
    rows: Rows,
    totals: Totals,
    recent: Recent,
}

impl State {
    /// Takes a row with the distribution of its samples, if the source has it. One
    /// without a whole sample is none.
    fn line(&mut self, line: Line) -> io::Result<()> {
        if line.row.tally.samples() == 0 {
            return Ok(());
        }
        self.totals.row(&line.row);
        self.recent.add(&line.row);
        self.rows.line(line)
    }
}

/// Measures on an interface until SIGINT, SIGTERM or `q`.
pub(crate) fn run(
    args: &MeasureArgs,
    interface: &str,
    techniques: &[Technique],
) -> anyhow::Result<ExitCode> {
    let style = style(args, techniques);
    let screen =
        args.top || args.output.is_none() && args.out.is_none() && io::stdout().is_terminal();
    anyhow::ensure!(
        !screen || !style.format.is_rows(),
        "--top shows a table; leave -o away, or --top"
    );
    anyhow::ensure!(
        args.serve.is_none() || style.grouping.per != Per::Flow,
        "a time series for each flow would flood Prometheus: --serve goes with --per server, prefix or vip"
    );
    anyhow::ensure!(
        interface != "any",
        "name one interface; what tcpdump takes from all of them can be measured by `tcpdump -i any -s 128 -w - | causeway measure -r -`"
    );
    let target = Target::new(args.out.as_deref(), style.format, None)?;
    let server = args.serve.map(Server::start).transpose()?;
    // Before the source says that it measures: who reads that may end it at once.
    stop::catch_signals().context("cannot catch signals")?;
    let interface = Interface::find(interface)?;
    let mut source = source(args, &interface, techniques, &style)?;
    let Found { totals, .. } = Found::new(&with_totals(&style), args.max_flows() as usize, 0);
    let mut state = State {
        rows: Rows::new(style.clone(), target.writer()?)?,
        totals: totals.context("a table has totals")?,
        recent: Recent::new(style.grouping),
    };
    if let Some(server) = &server {
        eprintln!("metrics on http://{}/metrics", server.address());
    }
    let screen = match screen {
        true => Some(Screen::open(&interface.name).context("cannot draw on this terminal")?),
        false => None,
    };
    // The screen is gone before anything else is printed.
    let followed = follow(
        source.as_mut(),
        &mut state,
        &style,
        server.as_ref(),
        screen,
        &interface,
    );
    // What was measured before an error is printed all the same.
    let finished = source.finish(&mut state);
    let finished = finished.and_then(|()| source.distributions(&mut state.totals));
    let failed = match followed.and(finished) {
        Err(error) if super::is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
        result => result.err(),
    };
    let counters = match source.counters() {
        Err(_) if failed.is_some() => Counters::default(),
        counters => counters?,
    };
    let page = PageSource {
        name: interface.name,
        summary: format!("{} packets", counters.total()),
    };
    match target.finish(state.rows, Some(&state.totals), &page) {
        Err(error) if super::is_broken_pipe(&error) => return Ok(ExitCode::SUCCESS),
        result => result?,
    }
    counters.report();
    match failed {
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Live, screens and metrics are about servers unless something else is asked for.
fn style(args: &MeasureArgs, techniques: &[Technique]) -> Style {
    let mut style = args.style(techniques, true);
    let watched = args.serve.is_some()
        || args.top
        || args.output.is_none() && args.out.is_none() && io::stdout().is_terminal();
    if args.per.is_none() && watched {
        style.grouping.per = Per::Server;
    }
    style
}

/// Totals are kept whatever the format: for metrics and the screen.
fn with_totals(style: &Style) -> Style {
    Style {
        format: match style.format {
            Format::Html => Format::Html,
            _ => Format::Table,
        },
        ..style.clone()
    }
}

/// The kernel's meter, or a socket where that is asked for or needed.
fn source(
    args: &MeasureArgs,
    place: &Interface,
    techniques: &[Technique],
    style: &Style,
) -> anyhow::Result<Box<dyn Source>> {
    let interface = place.name.as_str();
    let reason = match place.has_ethernet_header()? {
        true => why_socket(args, techniques, style),
        false => Some(format!(
            "the meter in the kernel needs an Ethernet header, which {interface} does not have"
        )),
    };
    if args.no_bpf || reason.is_some() {
        let wanted = [
            (args.next_program.is_some(), "--next-program"),
            (args.attach != AttachName::Auto, "--attach"),
        ];
        if let Some((_, option)) = wanted.iter().find(|(is_wanted, _)| *is_wanted) {
            let reason = reason.map_or(String::new(), |reason| format!(", and {reason}"));
            anyhow::bail!("{option} is for the meter in the kernel{reason}");
        }
        let socket = Socket::open(args, interface, techniques, style)?;
        match reason {
            Some(reason) if !args.no_bpf => {
                eprintln!(
                    "measuring on {interface} through a packet socket, since {reason}; Ctrl-C ends"
                );
            }
            _ => eprintln!("measuring on {interface} through a packet socket; Ctrl-C ends"),
        }
        return Ok(Box::new(socket));
    }
    let methods: Vec<Method> = techniques
        .iter()
        .filter_map(|technique| match technique {
            Technique::Request(method) => Some(method.clone()),
            _ => None,
        })
        .collect();
    let kernel = Kernel::start(args, interface, &methods, style)?;
    if let Some(refused) = kernel.refused() {
        eprintln!("the driver of {interface} refuses XDP as things are ({refused})");
    }
    eprintln!("measuring on {interface} ({}); Ctrl-C ends", kernel.hook());
    Ok(Box::new(kernel))
}

/// What the meter in the kernel cannot do.
fn why_socket(args: &MeasureArgs, techniques: &[Technique], style: &Style) -> Option<String> {
    let outside = techniques
        .iter()
        .find(|technique| !matches!(technique, Technique::Request(_)));
    if let Some(technique) = outside {
        return Some(format!("{} runs in user space alone", technique.name()));
    }
    if !args.expression.is_empty() {
        return Some("filter expressions run on sockets".to_owned());
    }
    if style.row_latencies() {
        return Some("the kernel has no percentiles of single epochs".to_owned());
    }
    let servers = matches!(style.grouping.per, Per::Server | Per::Vip);
    let latencies = style.total_latencies() || args.serve.is_some();
    if latencies && !args.host.is_empty() {
        let of_all =
            "the kernel's percentiles are of all clients of a server, and --host may name some";
        return Some(of_all.to_owned());
    }
    (latencies && !servers).then(|| "the kernel has percentiles of servers alone".to_owned())
}

/// The loop: what is new, and once a second the screen and the metrics.
fn follow(
    source: &mut dyn Source,
    state: &mut State,
    style: &Style,
    server: Option<&Server>,
    mut screen: Option<Screen>,
    interface: &Interface,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut next_tick = started;
    while !stop::stopped() {
        source.poll(POLL, state)?;
        state.rows.pause()?;
        let mut draw = false;
        if let Some(screen) = &mut screen {
            match screen.asked()? {
                Asked::Quit => break,
                Asked::Redraw => draw = true,
                Asked::Nothing => {}
            }
        }
        let now = Instant::now();
        if now >= next_tick {
            // After a standstill (suspend) there is one tick, not many.
            next_tick = now.max(next_tick + TICK);
            anyhow::ensure!(
                interface.is_there(),
                "{} was deleted: start again to measure on another of that name",
                interface.name
            );
            state.recent.tick();
            source.distributions(&mut state.totals)?;
            draw = true;
            if let Some(server) = server {
                server.publish(metrics::page(&state.totals, style, &source.counters()?));
            }
        }
        if let (true, Some(screen)) = (draw, &mut screen) {
            screen.draw(&state.totals, &state.recent, style, &source.counters()?)?;
        }
    }
    Ok(())
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos() as u64)
}
