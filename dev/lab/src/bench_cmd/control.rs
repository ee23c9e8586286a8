// SPDX-License-Identifier: Apache-2.0
//! What the controller costs: the daemon's engine on real maps, with latencies made up.
//!
//! Everything but the latencies is the product: counters and histograms are read from
//! the kernel's maps, decisions taken, rings built and swapped. Intervals follow one
//! another without a pause; CPU time is this thread's, the kernel's part included.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};
use causeway_api::Moment;
use causeway_balancer::BalancerConfig;
use causeway_balancer::engine::Engine;
use causeway_balancer::kernel::KernelPlane;
use causeway_dataplane::{RealId, RealStats};
use causeway_lab::chance::exponential;
use causeway_report::table::TextTable;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::time::{ClockId, clock_gettime};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;

/// Requests of a real in an interval, and their mean latency.
const REQUESTS: u64 = 20;
const LATENCY_NS: f64 = 5e6;
/// One in this many reals is ten times slower for a second.
const TROUBLED: usize = 20;

#[derive(Debug, clap::Args)]
pub(super) struct ControlBenchArgs {
    /// Reals in all
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=4000))]
    reals: u32,
    /// VIPs that share them out
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    vips: u32,
    /// Intervals of each case
    #[arg(long, default_value_t = 100)]
    intervals: u32,
    /// Write the rows to FILE, too
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One case, at the configured interval of 100 ms.
#[derive(Debug, Serialize)]
struct Row {
    case: &'static str,
    reals: u32,
    vips: u32,
    cpu_ms_per_interval: f64,
    cpu_pct_of_a_core: f64,
    rings_per_s: f64,
    slots_written_per_s: f64,
}

impl ControlBenchArgs {
    pub(super) fn run(self) -> Result<()> {
        ensure!(
            self.reals >= self.vips,
            "{} reals are too few for {} VIPs",
            self.reals,
            self.vips
        );
        let json = self.json.clone();
        // Namespaces belong to the thread, and go with it.
        let rows = std::thread::spawn(move || self.measure())
            .join()
            .map_err(|_| anyhow!("the measuring thread panicked"))??;
        if let Some(path) = json {
            std::fs::write(&path, serde_json::to_string_pretty(&rows)? + "\n")
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        print!("{}", table(&rows).to_text());
        Ok(())
    }

    fn measure(&self) -> Result<Vec<Row>> {
        enter().context("this needs root: it loads the data plane in namespaces of its own")?;
        let config = BalancerConfig::parse(Path::new("bench"), &self.config())?;
        let (plane, _) = KernelPlane::start(&config)?;
        let mut engine = Engine::start(Box::new(plane), config, Moment::now())?;
        let mut source = Source::new();
        // The first seconds learn what is normal.
        self.drive(&mut engine, &mut source, 50, 0)?;
        let rows = [
            ("quiet", 0),
            ("one real in 20 slow, others each second", TROUBLED),
        ]
        .into_iter()
        .map(|(case, troubled)| self.case(&mut engine, &mut source, case, troubled));
        rows.collect()
    }

    fn case(
        &self,
        engine: &mut Engine,
        source: &mut Source,
        case: &'static str,
        troubled: usize,
    ) -> Result<Row> {
        let (rings, slots) = engine.rings_set();
        let before = cpu_ns()?;
        self.drive(engine, source, self.intervals, troubled)?;
        let cpu_ms = (cpu_ns()? - before) as f64 / 1e6 / f64::from(self.intervals);
        let interval_ms = engine.config().control.interval_ns as f64 / 1e6;
        let seconds = f64::from(self.intervals) * interval_ms / 1e3;
        let since = engine.rings_set();
        Ok(Row {
            case,
            reals: self.reals,
            vips: self.vips,
            cpu_ms_per_interval: cpu_ms,
            cpu_pct_of_a_core: cpu_ms / interval_ms * 100.0,
            rings_per_s: (since.0 - rings) as f64 / seconds,
            slots_written_per_s: (since.1 - slots) as f64 / seconds,
        })
    }

    fn drive(
        &self,
        engine: &mut Engine,
        source: &mut Source,
        intervals: u32,
        troubled: usize,
    ) -> Result<()> {
        for _ in 0..intervals {
            let now = source.advance(engine.config().control.interval_ns);
            engine.tick_with(now, |id, totals| source.add(id, totals, troubled))?;
        }
        Ok(())
    }

    fn config(&self) -> String {
        let mut text = String::from(
            "interface = \"lo\"\npin_dir = \"/sys/fs/bpf/bench\"\nhttp = false\n\
             [xdp]\nmode = \"generic\"\n[flow_table]\nipv4 = \"1Ki\"\nipv6 = \"1Ki\"\n",
        );
        for vip in 0..self.vips {
            text += &format!(
                "[[vip]]\nname = \"v{vip}\"\naddress = \"10.1.{vip}.1\"\nport = 80\n\
                 scheduler = \"latency\"\nforwarding = \"l2\"\n"
            );
            for real in (vip..self.reals).step_by(self.vips as usize) {
                let (high, low) = (real / 250, real % 250 + 1);
                text += &format!(
                    "[[vip.real]]\naddress = \"10.2.{high}.{low}\"\nweight = 100\n\
                     mac = \"02:00:00:00:{high:02x}:{low:02x}\"\n"
                );
            }
        }
        text
    }
}

/// Latencies made up, one after another from a seed.
struct Source {
    rng: StdRng,
    now: Moment,
    interval: u64,
    sums: std::collections::HashMap<RealId, (u64, u64)>,
}

impl Source {
    fn new() -> Self {
        Self {
            rng: StdRng::seed_from_u64(1),
            now: Moment::now(),
            interval: 0,
            sums: std::collections::HashMap::new(),
        }
    }

    fn advance(&mut self, interval_ns: u64) -> Moment {
        self.interval += 1;
        self.now.monotonic_ns += interval_ns;
        self.now.realtime_ns += interval_ns;
        self.now
    }

    /// Adds an interval to a real's totals: exponential latencies around the mean.
    fn add(&mut self, id: RealId, totals: &mut RealStats, troubled: usize) {
        let second = self.interval / 10;
        let slow = troubled > 0 && (u64::from(id) + second).is_multiple_of(troubled as u64);
        let mean = if slow { 10.0 * LATENCY_NS } else { LATENCY_NS };
        let sum: f64 = (0..REQUESTS)
            .map(|_| mean * exponential(&mut self.rng))
            .sum();
        let sums = self.sums.entry(id).or_default();
        sums.0 += 2 * sum as u64;
        sums.1 += REQUESTS;
        totals.good.sum_halves_ns += sums.0;
        totals.good.weight_halves += 2 * sums.1;
        totals.good.server_sum_halves_ns += sums.0;
        totals.good.path_weight_halves += 2 * sums.1;
        totals.requests += sums.1;
        totals.conns_opened += sums.1 / 4;
        totals.conns_closed += (sums.1 / 4).saturating_sub(20);
    }
}

fn enter() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(none, "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none)?;
    Ok(())
}

fn cpu_ns() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

fn table(rows: &[Row]) -> TextTable {
    let mut table = TextTable::new(&[
        "Case",
        ">Reals",
        ">VIPs",
        ">CPU ms per interval",
        ">% of a core",
        ">Rings/s",
        ">Slots/s",
    ]);
    for row in rows {
        table.push(vec![
            row.case.to_owned(),
            row.reals.to_string(),
            row.vips.to_string(),
            format!("{:.2}", row.cpu_ms_per_interval),
            format!("{:.1}", row.cpu_pct_of_a_core),
            format!("{:.1}", row.rings_per_s),
            format!("{:.0}", row.slots_written_per_s),
        ]);
    }
    table
}
