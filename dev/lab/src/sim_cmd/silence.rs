// SPDX-License-Identifier: Apache-2.0
//! `causeway-lab sim silence`: which silences a connection survives, by the encoding of its cookie.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use causeway_sim::silence::{Encoding, stall};
use serde::Serialize;

use super::planted;

/// Where the server's clock begins, ms.
const BEGIN_MS: u64 = 10_000;

/// Arguments of `causeway-lab sim silence`.
#[derive(Debug, clap::Args)]
pub(super) struct SilenceArgs {
    /// Silences up to this length, by the second
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u32).range(132..=86_400))]
    seconds: u32,
    /// How often the server's kernel probes where it does (TCP keepalive)
    #[arg(long, value_name = "S", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=7200))]
    keepalive: u32,
    /// Write the figures as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct Row {
    encoding: &'static str,
    /// What the encoding has that the product's have not; it must be found to stall connections.
    baseline: &'static str,
    /// `None`: no probes.
    keepalive_s: Option<u32>,
    /// Silences behind which data was rejected, from and to, s.
    rejected_s: Vec<(u32, u32)>,
    /// From the first attempt to the one that was taken.
    longest_stall_s: f64,
}

impl Row {
    fn new(encoding: Encoding, keepalive_s: Option<u32>, upto_s: u32) -> Self {
        let mut row = Self {
            encoding: encoding.word(),
            baseline: match encoding {
                Encoding::Msb => "Cheetah's: the cookie in the high bits",
                Encoding::Kernel | Encoding::Timestamp | Encoding::Light => "",
            },
            keepalive_s,
            rejected_s: Vec::new(),
            longest_stall_s: 0.0,
        };
        let probes_ms = keepalive_s.map(|s| u64::from(s) * 1000);
        for silence_s in 1..=upto_s {
            let stall = stall(encoding, BEGIN_MS, u64::from(silence_s) * 1000, probes_ms);
            if stall.rejected == 0 {
                continue;
            }
            match row.rejected_s.last_mut() {
                Some((_, to)) if *to + 1 == silence_s => *to = silence_s,
                _ => row.rejected_s.push((silence_s, silence_s)),
            }
            let s = stall.ms.map_or(f64::INFINITY, |ms| ms as f64 / 1e3);
            row.longest_stall_s = row.longest_stall_s.max(s);
        }
        row
    }
}

impl planted::Row for Row {
    const HEADER: &'static [&'static str] = &[
        "encoding",
        ">keepalive s",
        "rejected behind s",
        ">longest stall s",
        "baseline",
    ];

    fn cells(&self) -> Vec<String> {
        let spans = self.rejected_s.iter();
        let spans: Vec<String> = spans.map(|(from, to)| format!("{from} to {to}")).collect();
        vec![
            self.encoding.to_owned(),
            self.keepalive_s
                .map_or("none".to_owned(), |s| s.to_string()),
            spans.join(", "),
            format!("{:.1}", self.longest_stall_s),
            self.baseline.to_owned(),
        ]
    }

    fn planted(&self) -> &str {
        self.baseline
    }

    fn has_fault(&self) -> bool {
        !self.rejected_s.is_empty()
    }
}

impl SilenceArgs {
    /// Runs the command; it fails if an encoding of the product stalls a connection, or the paper's
    /// none.
    pub(super) fn run(self) -> Result<ExitCode> {
        let rows = Encoding::ALL.into_iter().flat_map(|encoding| {
            [None, Some(self.keepalive)].map(|probes| Row::new(encoding, probes, self.seconds))
        });
        let rows: Vec<Row> = rows.collect();
        planted::tell(&rows, self.json.as_deref())
    }
}
