// SPDX-License-Identifier: Apache-2.0
//! What loss and bad paths do to tails and throughput, with `causeway tunnel` and
//! without: the evaluation of "Understanding the Long Tail Latency of TCP in Large-Scale
//! Cloud Networks" (Bifrost), on one machine.

mod balancer;
mod cases;
mod compare;
mod faults;
mod flap;
mod hostile;
mod kept;
mod latencies;
mod loads;
mod machine;
pub(crate) mod plain_tunnel;
mod redis;
mod replay;
mod runs;
mod table;
mod tails;
mod tunnel;
mod world;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Context, Scenario, param};
pub(super) use balancer::BIFROST_BALANCER;
pub(super) use faults::BIFROST_FAULTS;
use replay::Rule;

/// The carriers of loads.
const CARRIERS: [&str; 3] = ["plain", "mptcp", "causeway"];
/// What is run unless something else is asked for.
const PARTS: [&str; 7] = ["tails", "kept", "cpu", "flap", "gbps", "idle", "more"];

/// What may be run.
fn all_parts() -> Vec<&'static str> {
    let further = cases::PARTS.iter().map(|(name, _)| *name);
    PARTS.into_iter().chain(further).collect()
}

pub(super) const BIFROST: Scenario = Scenario {
    name: "bifrost",
    about: "tails and throughput under loss and flapping paths: the tunnel, plain TCP, MPTCP",
    params: &[
        param(
            "seconds",
            "6",
            "length of each run of short connections and ping-pong",
        ),
        param(
            "tail_rounds",
            "1",
            "blocks that each such run of the part tails is cut into, by turns; requests are pooled",
        ),
        param("bulk_s", "4", "measured time of each bulk run"),
        param(
            "rounds",
            "9",
            "runs of each tunnel in the throughput comparison",
        ),
        param(
            "kept_rounds",
            "12",
            "rounds of throughput kept under loss: a single ratio scatters by 6 %",
        ),
        param(
            "flap_rounds",
            "5",
            "rounds of a flapping path, of whose p99s the median counts",
        ),
        param("loss_pct", "0,0.1,1,2", "losses, joined by commas"),
        param("carriers", "plain,mptcp,causeway", "joined by commas"),
        param(
            "parts",
            "tails,kept,cpu,flap,gbps,idle,more",
            "joined by commas; further ones: delay, place, elephant, congestion, redis, nothing",
        ),
        param(
            "case_rounds",
            "1",
            "rounds of the further parts, of whose percentiles the medians count",
        ),
        param(
            "cases",
            "",
            "of the further parts these alone, joined by commas",
        ),
        param(
            "rtt_us",
            "500",
            "round trip of a path in the part delay, before one of them gets worse",
        ),
        param("paths", "4", "paths between the hosts"),
        param(
            "mbit",
            "250",
            "rate of each, but where the machine is the limit",
        ),
        param("rate", "500", "short connections and messages per second"),
        param("bytes", "4096", "size of an answer to a short connection"),
        param("flows", "4", "bulk connections"),
        param("congestion", "bbr", "TCP's congestion control"),
        param(
            "engine",
            "",
            "lines for the [tunnel.engine] table, with ; between them",
        ),
        param(
            "lines",
            "",
            "lines for the [tunnel] table, with ; between them",
        ),
        param("threads", "1", "threads of each tunnel end"),
        param(
            "tunnels",
            "causeway,super_packet_tunnel,packet_tunnel",
            "compared by one flow and idle round trips, joined by commas",
        ),
        param(
            "other",
            "",
            "another build's executable, compared like them",
        ),
        param(
            "stolen_max_pct",
            "1",
            "a round in which the host takes more of all CPU time is played again",
        ),
        param("replays", "3", "times that a round may be played again"),
        param(
            "replay_s",
            "300",
            "time for that in the whole run; parts share it by their lengths",
        ),
    ],
    run,
    table,
};

fn run(context: &Context) -> Result<Value> {
    let plan = BifrostPlan::read(context)?;
    runs::all(context, &plan)
}

fn table(result: &Value) -> Option<String> {
    Some(table::of(result))
}

/// The parameters, checked.
pub(super) struct BifrostPlan {
    lasts: Duration,
    tail_rounds: usize,
    bulk: Duration,
    rounds: usize,
    kept_rounds: usize,
    flap_rounds: usize,
    losses: Vec<f64>,
    carriers: Vec<String>,
    parts: Vec<String>,
    case_rounds: usize,
    cases: Vec<String>,
    rtt_us: u64,
    paths: usize,
    mbit: u32,
    rate: f64,
    bytes: u32,
    flows: usize,
    congestion: String,
    setting: tunnel::Setting,
    tunnels: Vec<String>,
    /// Another build.
    other: Option<PathBuf>,
    rule: Rule,
}

impl BifrostPlan {
    fn read(context: &Context) -> Result<Self> {
        let words = |name: &str, by: char| -> Result<Vec<String>> {
            let text: String = context.param(name)?;
            let words = text
                .split(by)
                .map(str::trim)
                .filter(|word| !word.is_empty());
            Ok(words.map(str::to_owned).collect())
        };
        let seconds = |name| -> Result<Duration> {
            let seconds = Duration::try_from_secs_f64(context.param(name)?);
            seconds.with_context(|| format!("{name} is not a valid length of time"))
        };
        let rule = Rule {
            limit_pct: context.param("stolen_max_pct")?,
            replays: context.param("replays")?,
            budget: seconds("replay_s")?,
        };
        ensure!(
            (0.0..=100.0).contains(&rule.limit_pct),
            "stolen_max_pct lies between 0 and 100"
        );
        let tail_rounds = context.param("tail_rounds")?;
        ensure!(
            (1..=100).contains(&tail_rounds),
            "tail_rounds lies between 1 and 100"
        );
        let losses = words("loss_pct", ',')?;
        let losses: Vec<f64> = losses
            .iter()
            .map(|loss| loss.parse())
            .collect::<Result<_, _>>()?;
        ensure!(
            losses.iter().all(|loss| (0.0..=50.0).contains(loss)),
            "loss_pct lies between 0 and 50"
        );
        let paths = context.param("paths")?;
        ensure!((2..=8).contains(&paths), "paths lies between 2 and 8");
        let mut setting = tunnel::Setting::plain(paths);
        setting.threads = context.param("threads")?;
        setting.engine = words("engine", ';')?;
        setting.lines = words("lines", ';')?;
        let other: String = context.param("other")?;
        let tunnels = words("tunnels", ',')?;
        let (carriers, parts) = (words("carriers", ',')?, words("parts", ',')?);
        all_known("tunnel", &tunnels, &machine::TUNNELS)?;
        all_known("carrier", &carriers, &CARRIERS)?;
        all_known("part", &parts, &all_parts())?;
        let cases = words("cases", ',')?;
        all_known("case", &cases, &cases::names())?;
        Ok(Self {
            other: (!other.is_empty()).then(|| PathBuf::from(other)),
            lasts: seconds("seconds")?,
            tail_rounds,
            bulk: seconds("bulk_s")?,
            rounds: context.param("rounds")?,
            kept_rounds: context.param("kept_rounds")?,
            flap_rounds: context.param("flap_rounds")?,
            losses,
            carriers,
            tunnels,
            parts,
            case_rounds: context.param("case_rounds")?,
            cases,
            rtt_us: context.param("rtt_us")?,
            paths,
            mbit: context.param("mbit")?,
            rate: context.param("rate")?,
            bytes: context.param("bytes")?,
            flows: context.param("flows")?,
            congestion: context.param("congestion")?,
            setting,
            rule,
        })
    }

    fn wants(&self, part: &str) -> bool {
        self.parts.iter().any(|wanted| wanted == part)
    }

    /// Whether a case of a further part is wanted.
    fn has(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|wanted| wanted == case)
    }

    fn carries(&self, carrier: &str) -> bool {
        self.carriers.iter().any(|wanted| wanted == carrier)
    }

    /// Throughput and idle round trips share their rounds.
    fn fast(&self) -> Option<&'static str> {
        match (self.wants("gbps"), self.wants("idle")) {
            (true, true) => Some("gbps, idle"),
            (true, false) => Some("gbps"),
            (false, true) => Some("idle"),
            (false, false) => None,
        }
    }

    /// Parts in the order of play, with the time that they measure: roughly for the further ones.
    fn lengths(&self) -> Vec<(String, Duration)> {
        let times = |count: usize, each: Duration| each * u32::try_from(count).unwrap_or(u32::MAX);
        let bulk = self.bulk + runs::WARM_UP;
        let carriers = self.carriers.len();
        let mut parts = vec![
            ("tails", times(2 * self.losses.len() * carriers, self.lasts)),
            (
                "kept",
                times(self.kept_rounds * kept::losses(self).len(), bulk),
            ),
            ("flap", times(2 * self.flap_rounds, self.lasts)),
            ("more", times(3, self.lasts)),
        ];
        for (part, _) in cases::PARTS {
            parts.push((part, times(24 * self.case_rounds, self.lasts)));
        }
        parts.push(("cpu", times(2 * self.rounds, bulk)));
        parts.retain(|(part, _)| self.wants(part));
        if let Some(part) = self.fast() {
            let gbps = times(self.rounds * self.tunnels.len(), bulk);
            let idle = times(2 * self.rounds, self.bulk);
            let of = |name, length| {
                if self.wants(name) {
                    length
                } else {
                    Duration::ZERO
                }
            };
            parts.push((part, of("gbps", gbps) + of("idle", idle)));
        }
        let named = parts.into_iter();
        named
            .map(|(part, length)| (part.to_owned(), length))
            .collect()
    }
}

/// A word that is misspelt would else leave something out in silence.
fn all_known(what: &str, wanted: &[String], known: &[&str]) -> Result<()> {
    for name in wanted {
        ensure!(
            known.contains(&name.as_str()),
            "there is no {what} `{name}`; choose of {}",
            known.join(", ")
        );
    }
    Ok(())
}

/// Puts what outside programs read at the top of the report.
fn with_interface(interface: Value, rest: Value) -> Value {
    json!({ super::INTERFACE: interface, "more": rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_words_are_refused_with_those_known() {
        let (parts, cases) = (all_parts(), cases::names());
        for (what, known) in [
            ("part", &parts[..]),
            ("carrier", &CARRIERS[..]),
            ("case", &cases[..]),
        ] {
            let all: Vec<String> = known.iter().map(|name| name.to_string()).collect();
            assert!(all_known(what, &all, known).is_ok());
            let error = all_known(what, &["kpet".to_owned()], known).unwrap_err();
            let expected = format!("there is no {what} `kpet`; choose of {}", all.join(", "));
            assert_eq!(error.to_string(), expected);
        }
        let default = |name: &str| {
            BIFROST
                .params
                .iter()
                .find(|p| p.name == name)
                .unwrap()
                .default
        };
        assert_eq!(default("parts"), PARTS.join(","));
        let about = BIFROST.params.iter().find(|p| p.name == "parts");
        let further: Vec<&str> = cases::PARTS.iter().map(|(name, _)| *name).collect();
        assert!(about.unwrap().about.ends_with(&further.join(", ")));
        assert_eq!(default("carriers"), CARRIERS.join(","));
    }
}
