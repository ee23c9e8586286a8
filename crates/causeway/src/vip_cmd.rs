// SPDX-License-Identifier: Apache-2.0
//! `causeway vip` and `causeway real`: look at and change a running balancer.
//!
//! Drains, maintenance and weights outlive reloads and restarts. Other changes last until the
//! next of these, which makes the file the truth again; the commands say so.

use std::net::SocketAddr;
use std::ops::Not;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use causeway_api::balancer::{DiscoveryView, RealChange, RealView, Status, VipReal, VipView};
use causeway_balancer::config::{
    Affinity, Control, ForwardingMode, Fragments, LatencySource, LoadSource, RealRole, Scheduler,
    WEIGHT_MAX,
};
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::config::{CookieKind, socket_address as endpoint, units};
use clap::{ArgGroup, Subcommand};
use hyper::Method;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::client::{Target, real_path, server_path, vip_path};
use crate::confirm;
use crate::drain;
use crate::stats_cmd;
use crate::words_arg::word;

const NOT_LASTING: &str = "until the next reload or restart; change the file to keep it";

/// Arguments of `causeway vip`.
#[derive(Debug, clap::Args)]
pub(crate) struct VipArgs {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    action: VipAction,
}

#[derive(Debug, Subcommand)]
enum VipAction {
    /// List the VIPs
    List {
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Show one VIP with its reals
    Show {
        /// Name, or address:port
        vip: String,
        /// Show all columns
        #[arg(short, long)]
        all: bool,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Apply the discovery answer that is held because it removes too many reals
    Accept {
        /// Name, or address:port
        vip: String,
    },
    /// Add a VIP
    Add(Box<VipAdd>),
    /// Change how a VIP gives connections to its reals
    Set(VipSet),
    /// Remove a VIP; its packets go to the kernel from then on
    Del {
        /// Name, or address:port
        vip: String,
    },
}

#[derive(Debug, clap::Args, Serialize)]
struct VipAdd {
    /// Address and port: 192.0.2.1:80, [2001:db8::1]:443; port 0 takes every port
    #[arg(value_parser = endpoint)]
    #[serde(flatten, serialize_with = "in_two_keys")]
    endpoint: SocketAddr,
    /// A server, with its weight and its Ethernet address: 10.0.0.1, 10.0.0.1=3,
    /// 10.0.0.1=3@02:00:00:00:00:01; may be repeated
    #[arg(short, long = "real", required = true, value_name = "ADDRESS[=WEIGHT][@MAC]", value_parser = parse_real)]
    #[serde(rename = "real")]
    reals: Vec<Value>,
    /// Name
    #[arg(long)]
    name: Option<String>,
    /// tcp or udp
    #[arg(short, long, default_value = "tcp", value_parser = ["tcp", "udp"])]
    protocol: String,
    /// How a new connection picks its real
    #[arg(long, default_value = "maglev", value_parser = word::<Scheduler>())]
    scheduler: String,
    /// What p2c, least-loaded and awrr look at
    #[arg(long, value_parser = word::<LoadSource>())]
    load: Option<String>,
    /// What the controller does
    #[arg(long, value_parser = word::<Control>())]
    control: Option<String>,
    /// Latency that steers the controller
    #[arg(long, value_parser = word::<LatencySource>())]
    latency: Option<String>,
    /// How packets reach the reals
    #[arg(long, value_parser = word::<ForwardingMode>())]
    forwarding: Option<String>,
    /// What becomes of fragments
    #[arg(long, value_parser = word::<Fragments>())]
    fragments: Option<String>,
    /// Whether a client's connections go to one real, with maglev, hash and latency
    #[arg(long, value_parser = word::<Affinity>())]
    affinity: Option<String>,
    /// What keeps TCP connections on their reals
    #[arg(long, value_parser = word::<CookieKind>())]
    cookie: Option<String>,
    /// How reals are probed: keys of `health` in the file, as in probe=http,path=/up,interval=1s
    #[arg(long, value_name = "KEY=VALUE,...", value_parser = parse_health)]
    health: Option<Value>,
    /// Reals that must be up for the VIP to be ready
    #[arg(long, value_name = "N")]
    min_healthy: Option<u32>,
    /// Time in which a real that returns gets its weight back
    #[arg(long, value_name = "TIME")]
    slow_start: Option<String>,
    /// Whether connections are remembered
    #[arg(long)]
    flow_table: Option<bool>,
    /// Whether connections get a connection slot each
    #[arg(long)]
    #[serde(skip_serializing_if = "Not::not")]
    stateful: bool,
    /// Whether segments that nothing remembers carry the slot's former owner to servers
    #[arg(long)]
    #[serde(skip_serializing_if = "Not::not")]
    second_chance: bool,
    /// New flows per second of a client prefix, and how many at once
    #[arg(long, value_name = "RATE[/BURST]", value_parser = parse_limit)]
    limit: Option<Value>,
    /// Clients with reals of their own; may be repeated
    #[arg(long = "source", value_name = "PREFIX=REAL[,REAL]", value_parser = parse_source)]
    #[serde(rename = "source", skip_serializing_if = "Vec::is_empty")]
    sources: Vec<Value>,
}

#[derive(Debug, clap::Args, Serialize)]
struct VipSet {
    /// Name, or address:port
    #[serde(skip)]
    vip: String,
    /// How a new connection picks its real
    #[arg(long, value_parser = word::<Scheduler>())]
    scheduler: Option<String>,
    /// What p2c, least-loaded and awrr look at
    #[arg(long, value_parser = word::<LoadSource>())]
    load: Option<String>,
    /// What the controller does
    #[arg(long, value_parser = word::<Control>())]
    control: Option<String>,
    /// Latency that steers the controller
    #[arg(long, value_parser = word::<LatencySource>())]
    latency: Option<String>,
    /// Whether a client's connections go to one real, with maglev, hash and latency
    #[arg(long, value_parser = word::<Affinity>())]
    affinity: Option<String>,
    /// Whether connections are remembered
    #[arg(long)]
    flow_table: Option<bool>,
    /// New flows per second of a client prefix, and how many at once; 0 for no limit
    #[arg(long, value_name = "RATE[/BURST]", value_parser = parse_limit)]
    limit: Option<Value>,
    /// Clients with reals of their own, in the place of all that the VIP had; may be repeated
    #[arg(long = "source", value_name = "PREFIX=REAL[,REAL]", value_parser = parse_source)]
    #[serde(rename = "source")]
    sources: Option<Vec<Value>>,
    /// No client has reals of its own any more
    #[arg(long, conflicts_with = "sources")]
    #[serde(skip)]
    no_sources: bool,
}

impl VipSet {
    fn change(&self) -> anyhow::Result<Value> {
        let mut change = given(self)?;
        if self.no_sources {
            change["source"] = json!([]);
        }
        Ok(change)
    }
}

/// Arguments of `causeway real`.
#[derive(Debug, clap::Args)]
pub(crate) struct RealArgs {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    action: RealAction,
}

#[derive(Debug, Subcommand)]
enum RealAction {
    /// List the reals of all VIPs, or of one
    List {
        /// Name, or address:port
        vip: Option<String>,
        /// Show all columns
        #[arg(short, long)]
        all: bool,
        /// How to print
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Add a real to a VIP
    Add {
        /// Name, or address:port
        vip: String,
        /// Address of the server
        real: String,
        /// Weight
        #[arg(long, default_value_t = 1, value_parser = weight)]
        weight: u32,
        /// Ethernet address, with forwarding l2
        #[arg(long)]
        mac: Option<String>,
        /// When it gets new connections
        #[arg(long, default_value = "primary", value_parser = word::<RealRole>())]
        role: String,
    },
    /// Remove a real at once; drain it first to keep its connections
    ///
    /// Refused where connections are open, or no other real takes new ones, unless --yes is given.
    Del {
        /// Name, or address:port
        vip: String,
        /// Address of the server
        real: String,
        /// Also if connections break, or new ones are dropped
        #[arg(long)]
        yes: bool,
    },
    /// Give a real no new connections; those it has go on
    ///
    /// With --wait the exit code is 0 once no connection is open, and 1 if the time is over first.
    /// The number of open connections is an estimate: one whose end was not seen counts for 15
    /// minutes on average.
    #[command(allow_missing_positional = true)]
    Drain {
        #[command(flatten)]
        which: Which,
        /// End the draining
        #[arg(long, conflicts_with = "wait")]
        undo: bool,
        /// Wait until no connection is open, and show the progress
        #[arg(long)]
        wait: bool,
        /// With --wait: for so long at most
        #[arg(long, value_name = "TIME", default_value = "5m", value_parser = units::duration, requires = "wait")]
        timeout: Duration,
        /// Also if no other real takes connections
        #[arg(long)]
        yes: bool,
    },
    /// Give a real no new connections and no probes while it is worked on
    #[command(allow_missing_positional = true)]
    Maintenance {
        #[command(flatten)]
        which: Which,
        /// End the maintenance
        #[arg(long)]
        undo: bool,
        /// Also if no other real takes connections
        #[arg(long)]
        yes: bool,
    },
    /// Set the configured weight of a real
    Weight {
        /// Name, or address:port
        vip: String,
        /// Address of the server
        real: String,
        /// New weight; 0 takes no new connections
        #[arg(value_parser = weight, allow_negative_numbers = true)]
        weight: u32,
        /// Also if it is 0, and no other real takes connections
        #[arg(long)]
        yes: bool,
    },
}

/// A server in one VIP, or in all.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("where").args(["vip", "all"]).required(true))]
struct Which {
    /// Name, or address:port
    vip: Option<String>,
    /// Address of the server
    real: String,
    /// In all VIPs that have the server
    #[arg(long)]
    all: bool,
}

impl Which {
    /// Changes it; says of which VIPs it is a real.
    fn change(&self, target: &Target, change: &RealChange) -> anyhow::Result<String> {
        let real = &self.real;
        let vips = match &self.vip {
            Some(vip) => {
                change_real(target, &real_path(vip, real), change)?;
                vip.clone()
            }
            None => {
                change_real(target, &server_path(real), change)?;
                let reals = target.get(&server_path(real));
                let reals: Vec<VipReal> =
                    reals.context("it was changed, and of which VIPs is not known")?;
                let vips: Vec<String> = reals.into_iter().map(|of| of.vip).collect();
                vips.join(", ")
            }
        };
        Ok(format!("real {real} of {vips}"))
    }
}

fn weight(text: &str) -> Result<u32, String> {
    let parsed = text.parse().ok().filter(|weight| *weight <= WEIGHT_MAX);
    parsed.ok_or_else(|| {
        format!("weight {text} is not a whole number from 0 (no new connections) to {WEIGHT_MAX}")
    })
}

fn parse_real(text: &str) -> Result<Value, String> {
    let (text, mac) = text
        .split_once('@')
        .map_or((text, None), |(text, mac)| (text, Some(mac)));
    let (address, share) = text.split_once('=').unwrap_or((text, "1"));
    let mut real = json!({ "address": address, "weight": weight(share)? });
    if let Some(mac) = mac {
        real["mac"] = json!(mac);
    }
    Ok(real)
}

/// `probe=http,path=/up,port=80`: numbers and booleans are what they look like.
fn parse_health(text: &str) -> Result<Value, String> {
    let mut health = json!({});
    for pair in text.split(',') {
        let (key, value) = pair.split_once('=').ok_or_else(|| {
            format!("`{pair}` is not a key with a value; write for example probe=http,path=/up")
        })?;
        health[key] = match (value.parse::<i64>(), value.parse::<bool>()) {
            (Ok(number), _) => json!(number),
            (_, Ok(switch)) => json!(switch),
            _ => json!(value),
        };
    }
    Ok(health)
}

/// `100`, or `100/200` with the burst.
fn parse_limit(text: &str) -> Result<Value, String> {
    let (rate, burst) = text
        .split_once('/')
        .map_or((text, None), |(rate, burst)| (rate, Some(burst)));
    let wrong = || format!("`{text}` is not a valid limit; write for example 100 or 100/200");
    let rate: f64 = rate.parse().map_err(|_| wrong())?;
    let mut limit = json!({ "rate": rate });
    if let Some(burst) = burst {
        limit["burst"] = json!(burst.parse::<u32>().map_err(|_| wrong())?);
    }
    Ok(limit)
}

fn parse_source(text: &str) -> Result<Value, String> {
    let (prefix, reals) = text.split_once('=').ok_or_else(|| {
        format!("`{text}` names no reals; write for example 10.0.0.0/8=10.1.0.1,10.1.0.2")
    })?;
    let reals: Vec<&str> = reals.split(',').collect();
    Ok(json!({ "from": [prefix], "reals": reals }))
}

/// The state of reals that are discovered, in one sentence.
fn told(discovery: &DiscoveryView) -> String {
    let mut text = format!(
        "reals by {}: {} found, {} draining",
        discovery.origin, discovery.found, discovery.draining
    );
    if let Some(held) = discovery.held {
        text += &format!("; an answer that takes away {held} is held, see `causeway vip accept`");
    }
    if let Some(error) = &discovery.error {
        text += &format!("; no answer: {error}");
    }
    text
}

pub(crate) fn print(format: OutputFormat, json: &Value, table: &TextTable) -> anyhow::Result<()> {
    match format {
        OutputFormat::Table => print!("{}", table.to_text()),
        OutputFormat::Csv => print!("{}", table.to_csv()),
        OutputFormat::Json => println!("{}", serde_json::to_string_pretty(json)?),
    }
    Ok(())
}

impl VipArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let target = &self.target;
        match self.action {
            VipAction::List { output } => {
                let vips: Vec<VipView> = target.get("/v1/vips")?;
                print(output, &json!(vips), &stats_cmd::vips(&vips))?;
            }
            VipAction::Show { vip, all, output } => {
                let vip: VipView = target.get(&vip_path(&vip))?;
                let vips = std::slice::from_ref(&vip);
                if output == OutputFormat::Table {
                    println!("{}", stats_cmd::vips(vips).to_text());
                    if let Some(discovery) = &vip.discovery {
                        println!("{}\n", told(discovery));
                    }
                }
                let all = all || output == OutputFormat::Csv;
                print(output, &json!(vip), &stats_cmd::reals(vips, all))?;
            }
            VipAction::Accept { vip } => {
                let path = format!("{}/discovery/accept", vip_path(&vip));
                target.send(Method::POST, &path, &json!({}))?;
                println!("took the answer that was held for {vip}");
            }
            VipAction::Add(add) => {
                target.send(Method::POST, "/v1/vips", &given(&add)?)?;
                println!("added vip {} {NOT_LASTING}", add.endpoint);
            }
            VipAction::Set(set) => {
                let change = set.change()?;
                anyhow::ensure!(
                    change != json!({}),
                    "nothing to change; give for example --scheduler p2c"
                );
                target.change(&vip_path(&set.vip), &change, "causeway vip list")?;
                println!("changed vip {} {NOT_LASTING}", set.vip);
            }
            VipAction::Del { vip } => {
                target.delete(&vip_path(&vip))?;
                println!("removed vip {vip} {NOT_LASTING}");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The keys that are given; the others are the daemon's to choose.
fn given(options: &impl Serialize) -> anyhow::Result<Value> {
    let mut keys = serde_json::to_value(options)?;
    if let Value::Object(keys) = &mut keys {
        keys.retain(|_, value| !value.is_null());
    }
    Ok(keys)
}

fn in_two_keys<S: Serializer>(endpoint: &SocketAddr, to: S) -> Result<S::Ok, S::Error> {
    json!({ "address": endpoint.ip(), "port": endpoint.port() }).serialize(to)
}

impl RealArgs {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let target = &self.target;
        match self.action {
            RealAction::List { vip, all, output } => {
                let vips: Vec<VipView> = match vip {
                    Some(vip) => vec![target.get(&vip_path(&vip))?],
                    None => target.get("/v1/vips")?,
                };
                let reals = vips.iter().flat_map(|vip| {
                    let of = |real: &RealView| VipReal {
                        vip: vip.name.clone(),
                        real: real.clone(),
                    };
                    vip.reals.iter().map(of)
                });
                let reals: Vec<VipReal> = reals.collect();
                let all = all || output == OutputFormat::Csv;
                print(output, &json!(reals), &stats_cmd::reals(&vips, all))?;
            }
            RealAction::Add {
                vip,
                real,
                weight,
                mac,
                role,
            } => {
                let mut body = json!({ "address": real, "weight": weight, "role": role });
                if let Some(mac) = mac {
                    body["mac"] = json!(mac);
                }
                let path = format!("{}/reals", vip_path(&vip));
                target.send(Method::POST, &path, &body)?;
                println!("added real {real} to {vip} {NOT_LASTING}");
            }
            RealAction::Del { vip, real, yes } => {
                if !yes {
                    confirm::removal(target, &vip, &real)?;
                }
                target.delete(&real_path(&vip, &real))?;
                println!("removed real {real} from {vip} {NOT_LASTING}");
            }
            RealAction::Drain {
                which,
                undo,
                wait,
                timeout,
                yes,
            } => {
                if !yes && !undo {
                    confirm::drain(target, which.vip.as_deref(), &which.real)?;
                }
                let change = RealChange {
                    drain: Some(!undo),
                    ..RealChange::default()
                };
                let reals = which.change(target, &change)?;
                let done = if undo {
                    "no longer draining"
                } else {
                    "draining"
                };
                println!("{done}: {reals}");
                if wait {
                    return drain::wait(target, which.vip.as_deref(), &which.real, &reals, timeout);
                }
            }
            RealAction::Maintenance { which, undo, yes } => {
                if !yes && !undo {
                    confirm::drain(target, which.vip.as_deref(), &which.real)?;
                }
                let change = RealChange {
                    maintenance: Some(!undo),
                    ..RealChange::default()
                };
                let reals = which.change(target, &change)?;
                let state = if undo { "back from" } else { "under" };
                println!("{state} maintenance: {reals}");
            }
            RealAction::Weight {
                vip,
                real,
                weight,
                yes,
            } => {
                if !yes && weight == 0 {
                    confirm::drain(target, Some(&vip), &real)?;
                }
                let change = RealChange {
                    weight: Some(weight),
                    ..RealChange::default()
                };
                change_real(target, &real_path(&vip, &real), &change)?;
                println!("weight {weight} for real {real} of {vip}");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

pub(crate) fn change_real(target: &Target, path: &str, change: &RealChange) -> anyhow::Result<()> {
    target.change(path, change, "causeway real list")?;
    let status: Status = match target.get("/v1/status") {
        Ok(status) => status,
        // The change is made.
        Err(error) => {
            eprintln!("causeway: whether this outlives the daemon is not known: {error:#}");
            return Ok(());
        }
    };
    if let Some(error) = status.state_error {
        eprintln!("causeway: this would not outlive the daemon: {error}");
    }
    if let Some(error) = status.data_plane_error {
        eprintln!("causeway: {error}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use causeway_api::balancer::VipChange;
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        set: VipSet,
    }

    #[test]
    fn a_change_of_a_vip_has_what_is_given_and_the_daemon_takes_it() {
        let change = |options: &[&str]| {
            let words = ["set", "web"].iter().chain(options);
            Line::try_parse_from(words).unwrap().set.change().unwrap()
        };
        assert_eq!(change(&[]), json!({}));
        assert_eq!(change(&["--no-sources"]), json!({ "source": [] }));
        let all = change(&[
            "--scheduler=p2c",
            "--load=cpu",
            "--control=off",
            "--latency=server",
            "--affinity=none",
            "--flow-table=false",
            "--limit=100/200",
            "--source=10.0.0.0/8=10.1.0.1,10.1.0.2",
        ]);
        let taken: VipChange = serde_json::from_value(all.clone()).unwrap();
        assert_eq!(json!(taken), all);
        assert_eq!(all["source"][0]["reals"], json!(["10.1.0.1", "10.1.0.2"]));
        assert_eq!(all.as_object().map(|keys| keys.len()), Some(8));
    }
}
