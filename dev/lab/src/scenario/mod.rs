// SPDX-License-Identifier: Apache-2.0
//! Scenarios: named experiments on real traffic, reproducible from their seed
//! and parameters, each with a result in JSON.

mod accept_queue;
mod accuracy;
mod accuracy_web;
mod agent_cost;
mod attack;
mod bench;
mod bifrost;
mod certes;
mod client_latency;
mod client_timestamps;
mod connections;
mod control;
mod cookie;
mod daemon_process;
pub mod degrade;
mod direct;
mod everyday;
mod fct;
mod fleet;
mod health;
mod large;
mod night;
mod packet_cost;
mod packet_rate;
mod page;
mod paper;
mod pcc_scale;
mod quic_cid;
mod quic_smoke;
mod replace;
mod rtt_explain;
mod rtt_peers;
mod rtt_study;
mod shadow;
mod smoke;
mod syn_flood;
mod takeover;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use serde_json::Value;

pub(crate) use self::bifrost::plain_tunnel;
use crate::balancer::ServerForwarding;
use crate::sandbox::Sandbox;

/// One experiment.
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// What can be set.
    pub params: &'static [Param],
    /// Runs it. An error means that it could not be run or that what it checks
    /// does not hold; figures without a verdict go into the value.
    pub run: fn(&Context) -> Result<Value>,
    /// A result as a table for people, where there is one.
    pub table: fn(&Value) -> Option<String>,
}

/// A parameter of a scenario.
#[derive(Debug, Clone, Copy)]
pub struct Param {
    /// Word before the `=`.
    pub name: &'static str,
    /// Used when it is not given.
    pub default: &'static str,
    /// Half a sentence, with the unit.
    pub about: &'static str,
}

/// Shorthand for tables of parameters.
const fn param(name: &'static str, default: &'static str, about: &'static str) -> Param {
    Param {
        name,
        default,
        about,
    }
}

/// What a scenario gets.
pub struct Context {
    /// Proof that the scenario may build things.
    pub sandbox: Sandbox,
    /// The `causeway` binary under test.
    pub binary: PathBuf,
    /// Source of all chance.
    pub seed: u64,
    params: BTreeMap<&'static str, String>,
    progress: Box<dyn Fn(&str)>,
}

impl Context {
    /// A parameter's value.
    ///
    /// # Errors
    /// When it cannot be read as a `T`, or the scenario has no such parameter.
    pub fn param<T: FromStr>(&self, name: &str) -> Result<T> {
        let text = self
            .params
            .get(name)
            .with_context(|| format!("no parameter {name}"))?;
        text.parse()
            .ok()
            .with_context(|| format!("{name} = {text:?} cannot be read"))
    }

    /// The parameter `forwarding`, one of those that the scenario has servers for.
    fn forwarding(&self, known: [ServerForwarding; 2]) -> Result<ServerForwarding> {
        let word: String = self.param("forwarding")?;
        let found = known.into_iter().find(|of| of.word() == word);
        found.with_context(|| {
            let words = known.map(ServerForwarding::word).join(" or ");
            format!("forwarding = {word:?}: choose {words}")
        })
    }

    /// Prints progress.
    pub fn say(&self, message: impl AsRef<str>) {
        (self.progress)(message.as_ref());
    }
}

/// A scenario's result with everything that is needed to run it again.
#[derive(Debug, Clone, Serialize)]
pub struct ScenarioReport {
    /// The scenario's name.
    pub scenario: &'static str,
    /// Every parameter, also those left at their defaults.
    pub parameters: BTreeMap<&'static str, String>,
    pub seed: u64,
    /// What the scenario found.
    pub result: Value,
    /// Its runs, where it makes several of one form: for outside programs, at the top.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<Value>,
    /// Figures under names that outside programs rely on, at the top as well.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub interface: Option<serde_json::Map<String, Value>>,
}

/// The key of a result under which [`ScenarioReport::interface`] stands.
const INTERFACE: &str = "interface";

/// All scenarios, by name.
pub fn all() -> &'static [Scenario] {
    &[
        direct::DIRECT,
        smoke::SMOKE,
        takeover::TAKEOVER,
        replace::REPLACE,
        accuracy::ACCURACY,
        accuracy::MODES_SWEEP,
        accuracy_web::ACCURACY_WEB,
        everyday::EVERYDAY,
        bifrost::BIFROST,
        bifrost::BIFROST_FAULTS,
        bifrost::BIFROST_BALANCER,
        degrade::DEGRADE,
        control::CONTROL,
        rtt_explain::RTT_EXPLAIN,
        rtt_peers::RTT_PEERS,
        rtt_study::RTT_STUDY,
        packet_cost::PACKET_COST,
        packet_rate::PACKET_RATE,
        certes::CERTES,
        certes::CERTES_DROPS,
        certes::CLIENTS_EVERYBODY,
        accept_queue::ACCEPT_QUEUE,
        client_latency::CLIENT_LATENCY,
        agent_cost::AGENT_COST,
        attack::ATTACK,
        pcc_scale::PCC_SCALE,
        fct::FCT,
        fleet::FLEET,
        cookie::COOKIE,
        cookie::COOKIE_SOAK,
        cookie::COOKIE_LOSS,
        cookie::COOKIE_UPLOADS,
        cookie::MPTCP,
        cookie::TIERS,
        health::HEALTH,
        large::LARGE,
        night::NIGHT,
        page::PAGE_STATES,
        paper::PAPER,
        quic_cid::QUIC_CID,
        quic_smoke::QUIC_SMOKE,
        shadow::SHADOW,
        syn_flood::SYN_FLOOD,
    ]
}

/// A request to run a scenario.
pub struct Request {
    pub name: String,
    /// Source of all chance.
    pub seed: u64,
    /// Parameters that differ from their defaults.
    pub params: Vec<(String, String)>,
    /// The `causeway` binary under test.
    pub binary: PathBuf,
    /// Takes progress messages.
    pub progress: Box<dyn Fn(&str)>,
}

/// Runs one scenario.
///
/// # Errors
/// When there is no such scenario or parameter, or the scenario fails.
pub fn execute(sandbox: Sandbox, request: Request) -> Result<ScenarioReport> {
    let scenario = find(&request.name)?;
    let params = merge(scenario, request.params)?;
    let context = Context {
        sandbox,
        binary: request.binary,
        seed: request.seed,
        params,
        progress: request.progress,
    };
    let mut result = (scenario.run)(&context)
        .with_context(|| format!("scenario {} (seed {})", scenario.name, context.seed))?;
    let runs = result.as_object_mut().and_then(|all| all.remove("runs"));
    let mut interface = result.get(INTERFACE).and_then(Value::as_object).cloned();
    if let Some(interface) = &mut interface {
        // The report has it already.
        interface.remove("seed");
    }
    Ok(ScenarioReport {
        scenario: scenario.name,
        parameters: context.params,
        seed: context.seed,
        result,
        runs,
        interface,
    })
}

/// The scenario of that name.
///
/// # Errors
/// When there is none; the message lists those that exist.
pub fn find(name: &str) -> Result<&'static Scenario> {
    if let Some(found) = all().iter().find(|s| s.name == name) {
        return Ok(found);
    }
    let names: Vec<_> = all().iter().map(|s| s.name).collect();
    bail!(
        "there is no scenario {name:?}; choose one of {}",
        names.join(", ")
    )
}

fn merge(
    scenario: &Scenario,
    given: Vec<(String, String)>,
) -> Result<BTreeMap<&'static str, String>> {
    let known = scenario.params;
    let mut values: BTreeMap<_, _> = known
        .iter()
        .map(|p| (p.name, p.default.to_owned()))
        .collect();
    for (name, value) in given {
        let Some(param) = known.iter().find(|p| p.name == name) else {
            let names: Vec<_> = known.iter().map(|p| p.name).collect();
            bail!(
                "{} has no parameter {name:?}; it has {}",
                scenario.name,
                names.join(", ")
            );
        };
        values.insert(param.name, value);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_parameters_are_unique() {
        for (i, scenario) in all().iter().enumerate() {
            assert!(all()[..i].iter().all(|s| s.name != scenario.name));
            let params = scenario.params;
            for (j, param) in params.iter().enumerate() {
                assert!(params[..j].iter().all(|p| p.name != param.name));
            }
        }
    }

    #[test]
    fn unknown_words_are_refused_with_those_known() {
        let unknown = find("direkt")
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default();
        assert!(unknown.contains("direct"), "{unknown}");
        let bad = merge(&direct::DIRECT, vec![("slot".into(), "1".into())]).err();
        assert!(
            bad.map(|e| e.to_string())
                .unwrap_or_default()
                .contains("slots")
        );
    }
}
