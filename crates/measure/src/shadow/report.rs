// SPDX-License-Identifier: Apache-2.0
//! The report: for programs as JSON, for people as one screen.

use std::fmt::Write as _;
use std::net::SocketAddr;

use causeway_core::estimate::Quality;
use causeway_report::table::{TextTable, course};
use serde::{Serialize, Serializer};

use super::existing::{Kind, Method};

/// All that a run reports.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The interface or file.
    pub source: String,
    pub lasted_s: f64,
    pub packets: u64,
    /// Packets that the kernel dropped before they could be looked at.
    pub lost: u64,
    pub balancer: Balancer,
    /// Latencies of clients' connections, where they were seen beside the servers'.
    pub clients: Option<Percentiles>,
    pub arrivals: Arrivals,
    pub servers: Vec<Server>,
    pub forecast: Forecast,
    pub broken: Vec<Broken>,
}

/// What stands before the servers now.
#[derive(Debug, Serialize)]
pub(super) struct Balancer {
    pub kind: Kind,
    /// How it picks.
    pub method: Method,
    /// Where clients connect to.
    pub fronts: Vec<SocketAddr>,
}

/// What comes to the servers.
#[derive(Debug, Serialize)]
pub(super) struct Arrivals {
    pub connections_per_s: f64,
    pub requests_per_s: f64,
    pub requests_per_connection: f64,
    /// Connections open at a time.
    pub live_mean: f64,
    pub live_most: u64,
}

/// Latencies; a percentile of too few is left out.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Percentiles {
    pub requests: u64,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
}

/// A server as it is today.
#[derive(Debug, Serialize)]
pub(super) struct Server {
    pub address: SocketAddr,
    pub connections: u64,
    /// Of them those that ended by a RST.
    pub resets: u64,
    /// Connections open at a time, on the mean.
    pub live: f64,
    #[serde(flatten)]
    pub latency: Percentiles,
    #[serde(serialize_with = "word")]
    pub quality: Quality,
    pub over_time: Vec<LatencySlice>,
    /// Requests that it works on at a time; `None`: nothing waited.
    pub workers: Option<usize>,
    /// Most requests that were there at once.
    pub most_at_once: usize,
    /// What it works on one on the mean.
    pub service_ms: Option<f64>,
}

/// A part of the time.
#[derive(Debug, Serialize)]
pub(super) struct LatencySlice {
    pub at_s: f64,
    #[serde(flatten)]
    pub latency: Percentiles,
}

/// Latencies with Causeway before the servers.
#[derive(Debug, Serialize)]
pub(super) struct Forecast {
    /// As measured.
    pub today: Percentiles,
    /// As the model of the servers' queues has it.
    pub modelled: Percentiles,
    pub causeway: Percentiles,
    #[serde(serialize_with = "word")]
    pub quality: Quality,
    /// Why it is not graded higher.
    pub reasons: Vec<String>,
    pub servers: Vec<ServerShare>,
}

/// What a server would have.
#[derive(Debug, Serialize)]
pub(super) struct ServerShare {
    pub address: SocketAddr,
    /// Its weight on the mean, as a part of the configured one.
    pub weight: f64,
    pub requests: u64,
    pub most_at_once: usize,
}

/// Connections that a change breaks, of those that live at a time; `None`: it is unknown.
#[derive(Debug, Serialize)]
pub(super) struct Broken {
    pub change: &'static str,
    pub today: Option<f64>,
    /// Why that many, or why it is left out.
    pub why: &'static str,
    pub cookies: Option<f64>,
    pub table: Option<f64>,
}

impl Forecast {
    pub(super) fn none(today: Percentiles, why: String) -> Self {
        Self {
            today,
            modelled: Percentiles::default(),
            causeway: Percentiles::default(),
            quality: Quality::None,
            reasons: vec![why],
            servers: Vec::new(),
        }
    }
}

impl Broken {
    pub(super) fn new(
        change: &'static str,
        today: Option<f64>,
        why: &'static str,
        cookies: Option<f64>,
        table: Option<f64>,
    ) -> Self {
        Self {
            change,
            today,
            why,
            cookies,
            table,
        }
    }
}

impl Report {
    /// For people.
    pub(super) fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let Self {
            balancer, arrivals, ..
        } = self;
        let fronts: Vec<String> = balancer.fronts.iter().map(ToString::to_string).collect();
        writeln!(
            out,
            "{}: {:.0} s, {} packets, nothing changed",
            self.source, self.lasted_s, self.packets
        )?;
        writeln!(
            out,
            "balancer: {}; picks {}{}",
            balancer.kind,
            balancer.method,
            match fronts.is_empty() {
                true => String::new(),
                false => format!("; clients connect to {}", fronts.join(", ")),
            }
        )?;
        writeln!(
            out,
            "arrivals: {:.1} connections/s, {:.1} requests/s, {:.1} requests a connection, {:.0} connections at a time (most {})",
            arrivals.connections_per_s,
            arrivals.requests_per_s,
            arrivals.requests_per_connection,
            arrivals.live_mean,
            arrivals.live_most
        )?;
        writeln!(out, "\nservers today, {}\n", self.side())?;
        out.push_str(&self.servers_table().to_text());
        if let Some(clients) = &self.clients {
            writeln!(
                out,
                "\nclients of the balancer: p50 {}, p99 {} ms, path to the clients included",
                ms(clients.p50_ms),
                ms(clients.p99_ms)
            )?;
        }
        writeln!(
            out,
            "\nforecast of latency, ms (graded {})\n",
            self.forecast.quality
        )?;
        out.push_str(&self.forecast.table().to_text());
        for reason in &self.forecast.reasons {
            writeln!(out, "  - {reason}")?;
        }
        if !self.broken.is_empty() {
            writeln!(
                out,
                "\nforecast of broken connections, of {:.0} at a time\n",
                arrivals.live_mean
            )?;
            out.push_str(&self.broken_table().to_text());
        }
        Ok(())
    }

    /// Of what the latencies are.
    fn side(&self) -> &'static str {
        match self.balancer.kind {
            Kind::Proxy => "between balancer and servers",
            Kind::Forwarder => "as the clients have it, paths included",
            Kind::Unknown => "at the hosts that connect to them",
        }
    }

    fn servers_table(&self) -> TextTable {
        let mut table = TextTable::new(&[
            "SERVER",
            ">CONNS",
            ">LIVE",
            ">REQUESTS",
            ">P50 MS",
            ">P99 MS",
            "P99 OVER TIME",
            "QUALITY",
            ">AT ONCE",
            ">WORKERS",
            ">SERVICE MS",
        ]);
        for of in &self.servers {
            let over_time: Vec<Option<f64>> = of
                .over_time
                .iter()
                .map(|slice| slice.latency.p99_ms)
                .collect();
            table.push(vec![
                of.address.to_string(),
                of.connections.to_string(),
                format!("{:.1}", of.live),
                of.latency.requests.to_string(),
                ms(of.latency.p50_ms),
                ms(of.latency.p99_ms),
                course(&over_time),
                of.quality.to_string(),
                of.most_at_once.to_string(),
                of.workers.map_or("-".to_owned(), |n| n.to_string()),
                ms(of.service_ms),
            ]);
        }
        table
    }

    fn broken_table(&self) -> TextTable {
        let mut table = TextTable::new(&[
            "CHANGE",
            ">TODAY",
            ">CAUSEWAY, COOKIES",
            ">CAUSEWAY, TABLE",
            "TODAY, BECAUSE",
        ]);
        let count = |of: Option<f64>| of.map_or("unknown".to_owned(), |n| format!("{n:.0}"));
        for of in &self.broken {
            table.push(vec![
                of.change.replace('_', " "),
                count(of.today),
                count(of.cookies),
                count(of.table),
                of.why.to_owned(),
            ]);
        }
        table
    }
}

impl Forecast {
    fn table(&self) -> TextTable {
        let mut table = TextTable::new(&["", ">P50", ">P99", "WEIGHTS"]);
        let weights = || {
            let each = self.servers.iter();
            let each: Vec<String> = each
                .map(|of| format!("{} {:.2}", of.address, of.weight))
                .collect();
            each.join(", ")
        };
        for (name, of, weights) in [
            ("today", &self.today, String::new()),
            ("with Causeway", &self.causeway, weights()),
        ] {
            table.push(vec![name.to_owned(), ms(of.p50_ms), ms(of.p99_ms), weights]);
        }
        table
    }
}

fn ms(of: Option<f64>) -> String {
    of.map_or("-".to_owned(), |ms| format!("{ms:.2}"))
}

fn word<S: Serializer>(quality: &Quality, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(quality.name())
}
