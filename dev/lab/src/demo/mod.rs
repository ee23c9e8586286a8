// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab demo`: the whole thing on one machine. Clients, a router, the
//! balancer and four nginx servers in network namespaces; one server slows down
//! half-way; the same load under hashing and under the latency-aware scheduler.

mod closing;
mod page;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use causeway_lab::outcome::DegradeOutcome;
use causeway_lab::sandbox;
use causeway_lab::scenario::degrade::{self, DegradeConfig, Live};

/// Arguments of `causeway-lab demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Directory for summary.json, outcome.json and report.html
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    out: PathBuf,
    /// Source of all chance: same seed, same load
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Length of each of the two runs, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 24)]
    run: u32,
    /// How many balancers share the packets, and their measurements
    #[arg(long, default_value_t = DegradeConfig::default().balancers)]
    balancers: usize,
    /// How many times slower the degraded server becomes
    #[arg(long, default_value_t = DegradeConfig::default().factor)]
    factor: f64,
}

impl DemoArgs {
    /// Runs the demo and writes its results.
    pub(crate) fn run(self, binary: PathBuf) -> Result<ExitCode> {
        let config = self.config()?;
        let sandbox = sandbox::enter()?;
        println!("{}\n", introduction(&config));
        let outcome = degrade::run(sandbox, &binary, &config, &|live| show(live, &config))?;
        end_line();
        ensure!(
            outcome.baseline.requests > 0 && outcome.latency_aware.requests > 0,
            "no request was answered after the slowdown; `causeway-lab -v demo` shows the balancer's log"
        );
        println!("\n{}", closing::render(&outcome)?);
        save(&self.out, &outcome)?;
        Ok(ExitCode::SUCCESS)
    }

    fn config(&self) -> Result<DegradeConfig> {
        let config = DegradeConfig {
            seed: self.seed,
            run_s: f64::from(self.run),
            degrade_at_s: f64::from(self.run / 2),
            balancers: self.balancers,
            factor: self.factor,
            epoch_s: 1.0,
            ..DegradeConfig::default()
        };
        ensure!(
            config.degrade_at_s > config.settle_s,
            "--run {} is too short: the server slows down half-way, and requests count from {} s after that; use at least {:.0}",
            self.run,
            config.settle_s,
            2.0 * config.settle_s + 2.0
        );
        ensure!(
            config.factor.is_finite() && config.factor > 1.0,
            "--factor {} slows nothing down: use a number above 1",
            self.factor
        );
        Ok(config)
    }
}

fn introduction(config: &DegradeConfig) -> String {
    let [first, second] = &config.schedulers;
    format!(
        "{} nginx servers, {} users on at most {:.0} s connections, up to {} requests outstanding.\n\
         After {:.0} s one server becomes {:.0}x slower. First under {first}, then under {second}.",
        config.servers,
        config.slots,
        f64::from(u32::try_from(config.max_age_ms).unwrap_or(u32::MAX)) / 1e3,
        config.outstanding,
        config.degrade_at_s,
        config.factor,
    )
}

/// One line a second: rewritten in place on a terminal, appended elsewhere.
fn show(live: &Live, config: &DegradeConfig) {
    let line = format!(
        "{:<10} {:>3.0}/{:.0} s  {:>6.0} requests/s  mean {:>7.2} ms  broken {}{}",
        live.scheduler,
        live.at_s,
        config.run_s,
        live.requests_per_s,
        live.mean_ms,
        live.broken,
        if live.degraded {
            "  one server slow"
        } else {
            ""
        }
    );
    if io::stdout().is_terminal() {
        print!("\r\x1b[2K{line}");
        // Measuring goes on if the terminal has gone.
        let _ = io::stdout().flush();
    } else {
        println!("{line}");
    }
}

fn end_line() {
    if io::stdout().is_terminal() {
        println!();
    }
}

fn save(dir: &Path, outcome: &DegradeOutcome) -> Result<()> {
    let make = || format!("cannot create {}", dir.display());
    fs::create_dir_all(dir).with_context(make)?;
    let summary = serde_json::to_string_pretty(&outcome.summary())? + "\n";
    let whole = serde_json::to_string(outcome)? + "\n";
    for (name, text) in [
        ("summary.json", summary),
        ("outcome.json", whole),
        ("report.html", page::render(outcome)),
    ] {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}
