// SPDX-License-Identifier: Apache-2.0
//! How far the product's latency is from the truth for clients that everybody has: programs
//! of the distribution, as they are, against real servers.
//!
//! Truth: from the first byte of a request to the last byte of its response, by the packets
//! that cross the client's own interface ([`truth`]), or by the client's own log where it
//! has one with times. Either belongs to the epoch in which it ended. Estimate: what the product says of the server in that epoch. With
//! timestamps `on` and `off` that is `causeway measure` on a recording of the request
//! direction behind the path; with `cookie` it is the balancer's history of the real,
//! graded as the balancer grades it. Rows of the source `agent` are what the server's agent says that the server took, over the whole run; their
//! truth is what crosses the server's interface, and the path is in neither.

mod client;
mod lane;
mod truth;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};

use self::client::{CLIENTS, EverydayClient, Service};
use self::lane::{Estimate, EverydayRun, Lane};
use self::truth::Response;
use super::client_timestamps::ClientTimestamps;
use super::{Context, Scenario, param};
use crate::statistics::median;

pub(super) const EVERYDAY: Scenario = Scenario {
    name: "everyday",
    about: "estimates against the truth for unmodified clients of the distribution",
    params: &[
        param("clients", "", "names, comma-separated; empty: all"),
        param("paths", "0,20,80", "delays of the path, ms of a round trip"),
        param(
            "timestamps",
            "on,off,cookie",
            "the client's TCP timestamps; cookie: on, through a balancer with cookies",
        ),
        param(
            "ticks",
            "1,4,10",
            "milliseconds a tick of the server's timestamps; other than 1 where the client's are on",
        ),
        param(
            "slow_clients",
            "wrk,curl,go-https,http.client-20ms,http.client-205ms,websocket-20ms",
            "of the clients those that come to servers with slower ticks, too",
        ),
        param(
            "seconds",
            "3",
            "length of a load, where its client takes one",
        ),
        param(
            "keep",
            "",
            "directory for recordings of the request direction, and truths; empty: none",
        ),
    ],
    run,
    table,
};

/// Where estimates come from.
const REQUEST_SIDE: &str = "request-side";
const AGENT: &str = "agent";

/// One client over one path.
#[derive(Debug, Serialize)]
struct Row {
    client: &'static str,
    path_ms: u64,
    timestamps: &'static str,
    /// A tick of the server's timestamps.
    tick_ms: u32,
    source: &'static str,
    /// Requests outstanding on a connection at most.
    in_flight: u32,
    /// They are streams of HTTP/2, answered in any order.
    multiplexed: bool,
    truth_us: f64,
    /// Of what is graded better than low; null: nothing is.
    estimate_us: Option<f64>,
    /// Over the epochs graded better than low.
    median_error_pct: Option<f64>,
    coverage_pct: f64,
    requests: usize,
    /// The mean that the client itself reports.
    client_us: Option<f64>,
    epoch_s: u64,
    /// Absolute errors of epochs by their grade, percent.
    errors_pct: BTreeMap<String, Vec<f64>>,
    /// Estimates by their grade of epochs in which nothing was answered.
    unmatched: BTreeMap<String, usize>,
    /// Transactions that the agent timed.
    timed: Option<u64>,
}

impl Row {
    /// What the server's agent says, held against what crossed the server's interface. Where
    /// it could time less than half, it stands for nothing.
    fn of_agent(
        client: &'static EverydayClient,
        path_ms: u64,
        (timestamps, tick_ms): (ClientTimestamps, u32),
        run: &EverydayRun,
    ) -> Self {
        let truth_us = mean(run.at_server.iter().map(|of| of.latency_us)).unwrap_or_default();
        let timed = run.timed.count as f64;
        let requests = run.at_server.len();
        let stands = timed > run.timed.overlapping as f64 && 2.0 * timed > requests as f64;
        let estimate_us = stands.then(|| run.timed.sum_s * 1e6 / timed);
        let error_pct = estimate_us.map(|of| (of / truth_us - 1.0).abs() * 100.0);
        let covered = if stands {
            timed.min(requests as f64)
        } else {
            0.0
        };
        Self {
            client: client.name,
            path_ms,
            timestamps: timestamps.word(),
            tick_ms,
            source: AGENT,
            in_flight: client.in_flight,
            multiplexed: client.is_multiplexed(),
            truth_us,
            estimate_us,
            median_error_pct: error_pct,
            coverage_pct: covered * 100.0 / requests.max(1) as f64,
            requests,
            client_us: None,
            epoch_s: run.epoch_s,
            // Agents do not grade.
            errors_pct: BTreeMap::new(),
            unmatched: BTreeMap::new(),
            timed: Some(run.timed.count),
        }
    }
}

fn run(context: &Context) -> Result<Value> {
    let clients = chosen(&context.param::<String>("clients")?)?;
    let slow_clients = named(&context.param::<String>("slow_clients")?)?;
    let missing: BTreeSet<_> = clients.iter().filter_map(|c| c.missing()).collect();
    if !missing.is_empty() {
        let missing: Vec<_> = missing.into_iter().collect();
        bail!(
            "these Debian packages are missing: {}; `scripts/setup everyday` installs them, \
             or choose others with --param clients=...",
            missing.join(", ")
        );
    }
    let timestamps: Vec<ClientTimestamps> = listed(&context.param::<String>("timestamps")?)?;
    let paths: Vec<u64> = listed(&context.param::<String>("paths")?)?;
    let ticks: Vec<u32> = listed(&context.param::<String>("ticks")?)?;
    ensure!(
        ticks.iter().all(|ms| (1..=1000).contains(ms)),
        "ticks = {ticks:?}: each must be from 1 to 1000"
    );
    let plan = Plan {
        clients,
        timestamps,
        ticks,
        slow_clients,
        seconds: context.param("seconds")?,
        keep: context.param("keep")?,
        seed: context.seed,
    };
    ensure!(plan.seconds > 0, "seconds = 0: must be above 0");
    let (sender, rows) = channel();
    let mut found: Vec<Row> = Vec::new();
    thread::scope(|scope| -> Result<()> {
        let lanes: Vec<_> = paths
            .iter()
            .map(|&path_ms| {
                let (plan, sender) = (&plan, sender.clone());
                let (sandbox, binary) = (context.sandbox, &context.binary);
                scope.spawn(move || {
                    let lane = Lane::build(sandbox, binary, path_ms, plan)?;
                    plan.run(&lane, &sender)
                })
            })
            .collect();
        drop(sender);
        for row in rows {
            context.say(line(&row));
            found.push(row);
        }
        for lane in lanes {
            let result = lane.join();
            result.unwrap_or_else(|_| bail!("a thread panicked"))?;
        }
        Ok(())
    })?;
    let place = |row: &Row| CLIENTS.iter().position(|c| c.name == row.client);
    found.sort_by_key(|row| {
        let kind = (row.timestamps, row.tick_ms);
        (place(row), kind, row.path_ms, row.source)
    });
    Ok(json!({ "interface": interface(found) }))
}

/// Rows of slow clocks have the same keys as others, and are no targets.
fn interface(found: Vec<Row>) -> Value {
    let (rows, slow): (Vec<_>, Vec<_>) = found.into_iter().partition(|row| row.tick_ms == 1);
    json!({
        "rows": rows, "grades": grades(&rows), "targets": targets(&rows),
        "slow_clock_rows": slow, "slow_clock_grades": grades(&slow),
    })
}

/// Paths that there are targets for, ms.
const TARGET_PATHS_MS: [u64; 2] = [0, 20];
/// Requests in flight at most that a row is held to be near the truth with.
const FEW_IN_FLIGHT: u32 = 4;
/// How much of the requests must be covered, percent: of a row with one in flight, and of
/// all that are known to be hard to tell.
const LEAST_COVERED_PCT: f64 = 90.0;
const LEAST_COVERED_OF_HARD_PCT: f64 = 50.0;
/// A shorter truth may be graded low, or missed by so much.
const SHORT_US: f64 = 500.0;
const SHORT_MOST_OFF_US: f64 = 20.0;

impl Row {
    /// Whether one direction alone cannot always tell: without timestamps, and of several streams.
    fn is_hard(&self) -> bool {
        self.timestamps == ClientTimestamps::Off.word()
            || self.multiplexed
            || self.in_flight > FEW_IN_FLIGHT
    }

    /// Whether what is graded better than low is near the truth; `None`: nothing is.
    fn is_near(&self) -> Option<bool> {
        let (error_pct, estimate_us) = (self.median_error_pct?, self.estimate_us?);
        let is_short = self.truth_us < SHORT_US;
        let most_off_pct = if self.in_flight == 1 && !is_short {
            5.0
        } else {
            10.0
        };
        let off_us = (estimate_us - self.truth_us).abs();
        Some(error_pct <= most_off_pct && (!is_short || off_us <= SHORT_MOST_OFF_US))
    }

    /// Whether the row is what its client needs.
    fn is_met(&self) -> bool {
        let covered = self.in_flight > 1 || self.coverage_pct >= LEAST_COVERED_PCT;
        self.is_near()
            .map_or(self.truth_us < SHORT_US, |near| near && covered)
    }

    /// Whether it is as far off as its grade says at most.
    fn is_graded_well(&self) -> bool {
        [("high", 10.0), ("medium", 25.0)]
            .iter()
            .all(|(grade, most_off_pct)| {
                let errors = self.errors_pct.get(*grade);
                errors.is_none_or(|errors| median(errors) <= *most_off_pct)
            })
    }
}

/// How many rows there are, and which of them miss a target.
#[derive(Debug, Default, Serialize)]
struct RowsMet {
    of: usize,
    met: usize,
    missed: Vec<String>,
}

impl RowsMet {
    fn add(&mut self, row: &Row, met: bool) {
        self.of += 1;
        self.met += usize::from(met);
        if !met {
            let Row {
                client,
                path_ms,
                timestamps,
                ..
            } = row;
            self.missed
                .push(format!("{client}, {path_ms} ms, {timestamps}"));
        }
    }
}

/// What rows by requests alone are held to. With timestamps and under cookies each one must be
/// near and covered. Of those that are hard to tell what is graded better than low must be, no
/// grade may be wrong, and half must be covered over all of them.
fn targets(rows: &[Row]) -> Value {
    let mut easy: BTreeMap<_, BTreeMap<_, RowsMet>> = BTreeMap::new();
    let (mut near, mut graded, mut covered) = (RowsMet::default(), RowsMet::default(), Vec::new());
    let has_target =
        |row: &&Row| row.source == REQUEST_SIDE && TARGET_PATHS_MS.contains(&row.path_ms);
    for row in rows.iter().filter(has_target) {
        if row.is_hard() {
            if let Some(is_near) = row.is_near() {
                near.add(row, is_near);
            }
            graded.add(row, row.is_graded_well());
            covered.push(row.coverage_pct);
        } else {
            let several = ["one_in_flight", "up_to_four"][usize::from(row.in_flight > 1)];
            let of_kind = easy.entry(row.timestamps).or_default();
            of_kind.entry(several).or_default().add(row, row.is_met());
        }
    }
    let covered_pct = mean(covered.into_iter());
    let is_covered = covered_pct.map(|pct| pct >= LEAST_COVERED_OF_HARD_PCT);
    json!({
        "easy": easy,
        "hard": {
            "near": near, "graded": graded, "covered_pct": covered_pct, "covered": is_covered,
        },
    })
}

fn grades(rows: &[Row]) -> Value {
    json!({
        "high_within_10_pct": within(rows, "high", 10.0),
        "medium_within_25_pct": within(rows, "medium", 25.0),
    })
}

/// What all lanes do.
struct Plan {
    clients: Vec<&'static EverydayClient>,
    timestamps: Vec<ClientTimestamps>,
    ticks: Vec<u32>,
    slow_clients: Vec<&'static EverydayClient>,
    seconds: u64,
    keep: String,
    seed: u64,
}

impl Plan {
    fn services(&self) -> BTreeSet<Service> {
        self.clients.iter().map(|c| c.service).collect()
    }

    /// Kinds of timestamps, with the server's ticks: slow ones where both ends have them and
    /// no agent writes another clock.
    fn kinds(&self) -> impl Iterator<Item = (ClientTimestamps, u32)> + '_ {
        let every = self.timestamps.iter();
        every.flat_map(|&timestamps| {
            let slow = timestamps == ClientTimestamps::On;
            let ticks = self.ticks.iter().copied();
            let ticks = ticks.filter(move |&tick_ms| tick_ms == 1 || slow);
            ticks.map(move |tick_ms| (timestamps, tick_ms))
        })
    }

    /// All clients over one path, one after another.
    fn run(&self, lane: &Lane, rows: &Sender<Row>) -> Result<()> {
        let mut ticks = lane.slow_ticks()?;
        for (timestamps, tick_ms) in self.kinds() {
            ticks.set(tick_ms);
            let every = |client: &&&EverydayClient| {
                tick_ms == 1
                    || self
                        .slow_clients
                        .iter()
                        .any(|slow| slow.name == client.name)
            };
            for client in self.clients.iter().filter(every) {
                let run = lane
                    .run(
                        client,
                        (timestamps, tick_ms),
                        client.seconds(lane.path_ms, self.seconds),
                        &self.keep,
                    )
                    .with_context(|| {
                        let path_ms = lane.path_ms;
                        format!(
                            "{}, {path_ms} ms, timestamps {timestamps}, ticks of {tick_ms} ms",
                            client.name
                        )
                    })?;
                let judged = judge(&run.responses, &run.estimates, run.epoch_s * 1_000_000_000);
                // The other end is gone only when the scenario has failed.
                let _ = rows.send(Row::of_agent(
                    client,
                    lane.path_ms,
                    (timestamps, tick_ms),
                    &run,
                ));
                let _ = rows.send(Row {
                    client: client.name,
                    path_ms: lane.path_ms,
                    timestamps: timestamps.word(),
                    tick_ms,
                    source: REQUEST_SIDE,
                    in_flight: client.in_flight,
                    multiplexed: client.is_multiplexed(),
                    truth_us: mean(run.responses.iter().map(|r| r.latency_us)).unwrap_or_default(),
                    estimate_us: judged.estimate_us,
                    median_error_pct: judged.median_error_pct,
                    coverage_pct: judged.coverage_pct,
                    requests: run.responses.len(),
                    client_us: run.client_us,
                    epoch_s: run.epoch_s,
                    errors_pct: judged.errors_pct,
                    unmatched: judged.unmatched,
                    timed: None,
                });
            }
        }
        Ok(())
    }
}

/// Estimates held against the truth.
struct Judged {
    estimate_us: Option<f64>,
    median_error_pct: Option<f64>,
    coverage_pct: f64,
    errors_pct: BTreeMap<String, Vec<f64>>,
    unmatched: BTreeMap<String, usize>,
}

fn judge(responses: &[Response], estimates: &[Estimate], epoch_ns: u64) -> Judged {
    let mut truths: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for response in responses {
        let epoch = truths.entry(response.end_ns / epoch_ns).or_default();
        epoch.push(response.latency_us);
    }
    let mut errors_pct: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut unmatched: BTreeMap<String, usize> = BTreeMap::new();
    let (mut better, mut sum, mut weight, mut covered) = (Vec::new(), 0.0, 0.0, 0.0);
    for estimate in estimates {
        let low = estimate.quality == "low";
        if !low {
            sum += estimate.mean_us * estimate.samples;
            weight += estimate.samples;
        }
        let truth = truths.get(&(estimate.start_ns / epoch_ns));
        let found = truth.and_then(|of| Some((of.len() as f64, mean(of.iter().copied())?)));
        let Some((answered, truth_us)) = found else {
            *unmatched.entry(estimate.quality.clone()).or_default() += 1;
            continue;
        };
        let error = (estimate.mean_us / truth_us - 1.0).abs() * 100.0;
        let of_grade = errors_pct.entry(estimate.quality.clone()).or_default();
        of_grade.push((error * 100.0).round() / 100.0);
        if !low {
            better.push(error);
            covered += estimate.samples.min(answered);
        }
    }
    Judged {
        estimate_us: (weight > 0.0).then(|| sum / weight),
        median_error_pct: (!better.is_empty()).then(|| median(&better)),
        coverage_pct: covered * 100.0 / responses.len().max(1) as f64,
        errors_pct,
        unmatched,
    }
}

/// Share of the epochs of a grade whose error is within `most`, percent; null: there are none.
fn within(rows: &[Row], grade: &str, most: f64) -> Option<f64> {
    let errors = rows.iter().filter_map(|row| row.errors_pct.get(grade));
    let errors: Vec<f64> = errors.flatten().copied().collect();
    let near = errors.iter().filter(|error| **error <= most).count();
    (!errors.is_empty()).then(|| near as f64 * 100.0 / errors.len() as f64)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// The clients of these names; all for no name.
fn chosen(names: &str) -> Result<Vec<&'static EverydayClient>> {
    let named = named(names)?;
    Ok(match named.is_empty() {
        true => CLIENTS.iter().collect(),
        false => named,
    })
}

/// The clients of these names, in the order of the table.
fn named(names: &str) -> Result<Vec<&'static EverydayClient>> {
    let wanted: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
    for name in &wanted {
        let known = || {
            CLIENTS
                .iter()
                .map(|c| c.name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        ensure!(
            CLIENTS.iter().any(|c| c.name == *name),
            "there is no client {name:?}; choose of {}",
            known()
        );
    }
    let wanted = |c: &&EverydayClient| wanted.contains(&c.name);
    Ok(CLIENTS.iter().filter(wanted).collect())
}

/// Words between commas.
fn listed<T: std::str::FromStr>(text: &str) -> Result<Vec<T>> {
    let one = |word: &str| {
        let read = word.parse().ok();
        read.with_context(|| format!("{word:?} in {text:?} cannot be read"))
    };
    text.split(',').map(one).collect()
}

/// For people who watch.
fn line(row: &Row) -> String {
    let or_dash = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.1}"));
    format!(
        "{:<22} {:>2} ms {:<7} {:>2} ms {:<12} truth {:>9.0} us, estimate {:>9} us, error {:>7} %, covered {:.0} %",
        row.client,
        row.path_ms,
        row.timestamps,
        row.tick_ms,
        row.source,
        row.truth_us,
        or_dash(row.estimate_us),
        or_dash(row.median_error_pct),
        row.coverage_pct,
    )
}

/// For documents: a table for each source.
fn table(result: &Value) -> Option<String> {
    let interface = result.get("interface")?;
    let [request_side, agent] = [REQUEST_SIDE, AGENT].map(|source| table_of(interface, source));
    let (grades, targets) = (interface.get("grades")?, interface.get("targets")?);
    Some(format!(
        "{}\nBy agents:\n\n{}\n{grades}\n{targets}\n",
        request_side?, agent?
    ))
}

/// One line for a client, paths and kinds of timestamps side by side: error and coverage, percent.
fn table_of(interface: &Value, source: &str) -> Option<String> {
    let mut lines: BTreeMap<(u64, usize), Vec<&Value>> = BTreeMap::new();
    let mut paths_ms = BTreeSet::new();
    let (rows, slow) = (interface.get("rows")?, interface.get("slow_clock_rows")?);
    let rows = rows.as_array()?.iter().chain(slow.as_array()?);
    for row in rows.filter(|row| row["source"] == source) {
        let name = row.get("client")?.as_str()?;
        let place = CLIENTS.iter().position(|c| c.name == name)?;
        let tick_ms = row.get("tick_ms")?.as_u64()?;
        paths_ms.insert(row.get("path_ms")?.as_u64()?);
        lines.entry((tick_ms, place)).or_default().push(row);
    }
    let kinds = ClientTimestamps::ALL.map(ClientTimestamps::word);
    let [mut text, mut rule] = ["| client | in flight |", "| --- | --: |"].map(str::to_owned);
    for path_ms in &paths_ms {
        text += &format!(" {path_ms} ms: truth ms | {} |", kinds.join(" | "));
        rule += &" --: |".repeat(1 + kinds.len());
    }
    text += &format!("\n{rule}\n");
    for ((tick_ms, place), rows) in &lines {
        let client = &CLIENTS[*place];
        let name = match tick_ms {
            1 => client.name.to_owned(),
            _ => format!("{}, ticks of {tick_ms} ms", client.name),
        };
        text += &format!("| {name} | {} |", client.in_flight);
        let figure = |row: &Value, name: &str| row.get(name).and_then(Value::as_f64);
        for path_ms in &paths_ms {
            let of_path: Vec<_> = rows
                .iter()
                .filter(|row| row["path_ms"] == *path_ms)
                .collect();
            let truth_us = mean(of_path.iter().filter_map(|row| figure(row, "truth_us")));
            text += &truth_us.map_or(" - |".to_owned(), |us| format!(" {:.2} |", us / 1000.0));
            for kind in kinds {
                let row = of_path.iter().find(|row| row["timestamps"] == kind);
                let found = row.and_then(|row| {
                    Some((
                        figure(row, "median_error_pct")?,
                        figure(row, "coverage_pct")?,
                    ))
                });
                text += &found.map_or(" - |".to_owned(), |(error, covered)| {
                    format!(" {error:.1}, {covered:.0} |")
                });
            }
        }
        text.push('\n');
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::lane::Timed;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn response(end_ns: u64, latency_us: f64) -> Response {
        Response { end_ns, latency_us }
    }

    fn estimate(start_ns: u64, mean_us: f64, samples: f64, quality: &str) -> Estimate {
        Estimate {
            start_ns,
            mean_us,
            samples,
            quality: quality.to_owned(),
        }
    }

    #[test]
    fn errors_count_by_epoch_and_low_covers_nothing() {
        let responses = [
            response(SECOND, 90.0),
            response(SECOND + 5, 110.0),
            response(2 * SECOND, 200.0),
            response(3 * SECOND, 50.0),
        ];
        let estimates = [
            estimate(SECOND, 110.0, 3.0, "high"),
            estimate(2 * SECOND, 300.0, 1.0, "low"),
            // Nothing ended here.
            estimate(4 * SECOND, 70.0, 1.0, "medium"),
        ];
        let judged = judge(&responses, &estimates, SECOND);
        assert_eq!(judged.median_error_pct.map(f64::round), Some(10.0));
        assert_eq!(judged.estimate_us, Some(100.0));
        // Two of the four, however many samples there were.
        assert_eq!(judged.coverage_pct, 50.0);
        assert_eq!(judged.errors_pct["low"], [50.0]);
        assert!(!judged.errors_pct.contains_key("medium"));
        assert_eq!(judged.unmatched, BTreeMap::from([("medium".to_owned(), 1)]));
    }

    fn row(path_ms: u64, found: Option<f64>, coverage_pct: f64) -> Row {
        Row {
            client: "wrk",
            path_ms,
            timestamps: "on",
            tick_ms: 1,
            source: REQUEST_SIDE,
            in_flight: 1,
            multiplexed: false,
            truth_us: 5000.0,
            estimate_us: found.map(|pct| 5000.0 * (1.0 + pct / 100.0)),
            median_error_pct: found,
            coverage_pct,
            requests: 100,
            client_us: None,
            epoch_s: 1,
            errors_pct: BTreeMap::new(),
            unmatched: BTreeMap::new(),
            timed: None,
        }
    }

    #[test]
    fn a_row_without_an_estimate_misses_the_target() {
        let by_agent = Row {
            source: AGENT,
            ..row(0, Some(1.0), 95.0)
        };
        let slow = Row {
            tick_ms: 4,
            ..row(0, Some(1.0), 95.0)
        };
        let all = interface(vec![
            row(0, None, 0.0),
            row(0, Some(1.0), 95.0),
            row(20, Some(5.1), 95.0),
            row(20, Some(1.0), 89.0),
            row(80, Some(1.0), 95.0),
            by_agent,
            slow,
        ]);
        let held = &all["targets"]["easy"]["on"]["one_in_flight"];
        assert_eq!((&held["met"], &held["of"]), (&json!(1), &json!(4)));
        assert_eq!(
            held["missed"],
            json!(["wrk, 0 ms, on", "wrk, 20 ms, on", "wrk, 20 ms, on"])
        );
    }

    #[test]
    fn several_in_flight_may_be_further_off_and_short_truths_graded_low() {
        let several = |found, coverage_pct| Row {
            in_flight: 4,
            ..row(0, found, coverage_pct)
        };
        assert!(several(Some(9.9), 10.0).is_met());
        assert!(!several(Some(10.1), 99.0).is_met());
        assert!(!several(None, 0.0).is_met());
        let short = |truth_us, found| Row {
            truth_us,
            estimate_us: Some(truth_us * 1.09),
            ..row(0, found, 95.0)
        };
        assert!(short(100.0, None).is_met());
        assert!(short(100.0, Some(9.0)).is_met());
        assert!(!short(400.0, Some(9.0)).is_met(), "by 36 us");
        assert!(!short(600.0, None).is_met());
    }

    #[test]
    fn what_is_hard_to_tell_is_held_to_its_grades_and_half_of_it_covered() {
        let off = |found, coverage_pct| Row {
            timestamps: "off",
            ..row(0, found, coverage_pct)
        };
        let streams = Row {
            in_flight: 2,
            multiplexed: true,
            ..row(20, None, 0.0)
        };
        let wrong = Row {
            errors_pct: BTreeMap::from([("medium".to_owned(), vec![1.0, 26.0, 27.0])]),
            ..off(Some(26.0), 100.0)
        };
        let all = interface(vec![off(None, 0.0), off(Some(4.0), 90.0), streams, wrong]);
        let hard = &all["targets"]["hard"];
        assert_eq!(
            (&hard["near"]["met"], &hard["near"]["of"]),
            (&json!(1), &json!(2))
        );
        assert_eq!(
            (&hard["graded"]["met"], &hard["graded"]["of"]),
            (&json!(3), &json!(4))
        );
        assert_eq!(hard["covered_pct"], 47.5);
        assert_eq!(hard["covered"], false);
        assert_eq!(all["targets"]["easy"], json!({}));
    }

    #[test]
    fn an_agent_that_timed_less_than_half_stands_for_nothing() {
        let of_agent = |count, requests: usize| {
            let run = EverydayRun {
                responses: Vec::new(),
                estimates: Vec::new(),
                client_us: None,
                epoch_s: 1,
                at_server: vec![response(SECOND, 100.0); requests],
                timed: Timed {
                    count,
                    sum_s: count as f64 * 1e-4,
                    overlapping: 20,
                    completed: 0,
                },
            };
            Row::of_agent(&CLIENTS[0], 0, (ClientTimestamps::On, 1), &run)
        };
        let row = of_agent(48, 301);
        assert_eq!((row.estimate_us, row.coverage_pct), (None, 0.0));
        let row = of_agent(90, 100);
        assert_eq!(
            (row.median_error_pct.map(f64::round), row.coverage_pct),
            (Some(0.0), 90.0)
        );
        // One request timed as three is told.
        let row = of_agent(300, 100);
        assert_eq!((row.coverage_pct, row.timed), (100.0, Some(300)));
    }

    #[test]
    fn grades_are_of_rows_and_slow_clocks_have_their_own() {
        let row = |tick_ms, error_pct| Row {
            tick_ms,
            errors_pct: BTreeMap::from([("high".to_owned(), vec![error_pct])]),
            ..row(0, None, 100.0)
        };
        let all = interface(vec![row(1, 2.0), row(4, 60.0)]);
        let within = |grades: &str| all[grades]["high_within_10_pct"].as_f64();
        assert_eq!(within("grades"), Some(100.0));
        assert_eq!(within("slow_clock_grades"), Some(0.0));
        assert_eq!(all["grades"]["medium_within_25_pct"], Value::Null);
        assert_eq!(all["rows"][0]["tick_ms"], 1);
        assert_eq!(all["slow_clock_rows"][0]["tick_ms"], 4);
    }

    #[test]
    fn names_of_clients_are_unique_and_checked() {
        let names: BTreeSet<_> = CLIENTS.iter().map(|c| c.name).collect();
        assert_eq!(names.len(), CLIENTS.len());
        assert_eq!(chosen("").map(|all| all.len()).ok(), Some(CLIENTS.len()));
        let unknown = chosen("wrk,irgendwas").err().map(|e| e.to_string());
        assert!(unknown.unwrap_or_default().contains("wrk-https"));
        assert!(named("").is_ok_and(|none| none.is_empty()));
    }
}
