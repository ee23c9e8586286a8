// SPDX-License-Identifier: Apache-2.0
//! `causeway ipvs`: ipvsadm's flags, for a running balancer.
//!
//! Changes last as long as those of `causeway vip` and `causeway real`. What has no equal is
//! refused in one sentence, with exit code 2, and nothing is changed.

mod list;

use std::collections::HashMap;
use std::io::{BufRead as _, stdin};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use causeway_api::balancer::{RealChange, VipChange, VipView};
use causeway_service::config::socket_address;
use clap::Parser;
use hyper::{Method, Uri};
use serde_json::{Value, json};

use crate::client::{Credentials, Target, real_path, vip_path};
use crate::vip_cmd::change_real;
use list::Kind;

/// What ipvsadm ends with for wrong arguments.
const NO_EQUAL: u8 = 2;
/// Between the two looks of a rate; IPVS's own are means of some seconds.
const RATE_PERIOD: Duration = Duration::from_secs(1);
const ALONE: &str = "-R stands alone: rules do not name other files";

/// Use a running balancer with ipvsadm's flags
///
/// Changes last until the next reload or restart, weights until they are set back. What has no
/// equal (-m, -p, -f, -x) is refused with exit code 2.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Unix socket of the balancer
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/causeway/lb.sock",
        env = "CAUSEWAY_SOCKET"
    )]
    socket: PathBuf,
    /// Address of a balancer on another host, instead of the socket: https://HOST:PORT
    #[arg(
        long,
        value_name = "URL",
        env = "CAUSEWAY_API",
        help_heading = "Another host's daemon"
    )]
    api: Option<Uri>,
    #[command(flatten)]
    credentials: Credentials,
    #[command(flatten)]
    rule: Rule,
}

/// One call of ipvsadm, or one line of what `-R` reads.
#[derive(Debug, clap::Args)]
struct Rule {
    #[command(flatten)]
    action: Action,
    #[command(flatten)]
    service: Service,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    listing: Listing,
    #[command(flatten)]
    without: Without,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Action {
    /// Add a service
    #[arg(short = 'A', long)]
    add_service: bool,
    /// Change a service's scheduler
    #[arg(short = 'E', long)]
    edit_service: bool,
    /// Remove a service
    #[arg(short = 'D', long)]
    delete_service: bool,
    /// Add a real to a service
    #[arg(short = 'a', long)]
    add_server: bool,
    /// Change a real's weight
    #[arg(short = 'e', long)]
    edit_server: bool,
    /// Remove a real
    #[arg(short = 'd', long)]
    delete_server: bool,
    /// List services, or the one that is named
    #[arg(short = 'L', short_alias = 'l', long)]
    list: bool,
    /// Remove all services
    #[arg(short = 'C', long)]
    clear: bool,
    /// Read rules from standard input
    #[arg(short = 'R', long)]
    restore: bool,
    /// Write rules to standard output
    #[arg(short = 'S', long)]
    save: bool,
    /// Counters only grow: refused
    #[arg(short = 'Z', long)]
    zero: bool,
}

#[derive(Debug, clap::Args)]
struct Service {
    /// Service by TCP
    #[arg(short = 't', long, value_name = "ADDRESS:PORT", value_parser = socket_address, conflicts_with = "udp_service")]
    tcp_service: Option<SocketAddr>,
    /// Service by UDP
    #[arg(short = 'u', long, value_name = "ADDRESS:PORT", value_parser = socket_address)]
    udp_service: Option<SocketAddr>,
    /// rr, wrr, lc, wlc, sed, nq, sh, mh, twos; hash, awrr or latency; wlc unless given
    #[arg(short = 's', long, value_enum, hide_possible_values = true)]
    scheduler: Option<SchedulerWord>,
    /// sh-port, mh-port: by port, too
    #[arg(short = 'b', long, value_name = "FLAGS", value_delimiter = ',')]
    sched_flags: Vec<String>,
    /// Of a new service: how its reals get their packets
    #[arg(long, value_enum)]
    forwarding: Option<Forwarding>,
}

#[derive(Debug, clap::Args)]
struct Server {
    /// The real; its port is the service's
    #[arg(short = 'r', long, value_name = "ADDRESS[:PORT]", value_parser = real_server)]
    real_server: Option<(IpAddr, Option<u16>)>,
    /// Weight; 0 takes no new connections
    #[arg(short = 'w', long)]
    weight: Option<u32>,
    /// By MAC address; the service's reals all are, or none
    #[arg(short = 'g', long, conflicts_with_all = ["ipip", "masquerading"])]
    gatewaying: bool,
    /// In an outer header; the service's reals all are, or none
    #[arg(short = 'i', long, conflicts_with = "masquerading")]
    ipip: bool,
    /// Type of that header: ipip, or gue
    #[arg(long, value_name = "TYPE")]
    tun_type: Option<String>,
    /// Of a real that gets its packets by MAC address
    #[arg(long, value_name = "MAC")]
    mac: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Listing {
    /// Numbers are printed in any case
    #[arg(short = 'n', long)]
    numeric: bool,
    /// Counts since the service was made
    #[arg(long, conflicts_with = "rate")]
    stats: bool,
    /// Counts in a second
    #[arg(long)]
    rate: bool,
    /// Counts without units
    #[arg(long)]
    exact: bool,
    /// As they always are
    #[arg(long, hide = true)]
    sort: bool,
    /// As they always are
    #[arg(long, hide = true)]
    nosort: bool,
}

/// What has no equal: understood, so that the refusal can say why.
#[derive(Debug, clap::Args)]
struct Without {
    #[arg(short = 'm', long, hide = true)]
    masquerading: bool,
    #[arg(short = 'p', long, hide = true, num_args = 0..=1, default_missing_value = "300")]
    persistent: Option<String>,
    #[arg(short = 'M', long, hide = true)]
    netmask: Option<String>,
    #[arg(short = 'f', long, hide = true)]
    fwmark_service: Option<String>,
    #[arg(long, hide = true)]
    sctp_service: Option<String>,
    #[arg(short = 'x', long, hide = true)]
    u_threshold: Option<u32>,
    #[arg(short = 'y', long, hide = true)]
    l_threshold: Option<u32>,
    #[arg(short = 'O', long, hide = true)]
    ops: bool,
    #[arg(long, hide = true)]
    pe: Option<String>,
    #[arg(short = 'c', long, hide = true)]
    connection: bool,
    #[arg(long, hide = true)]
    timeout: bool,
    #[arg(long, hide = true)]
    daemon: bool,
    #[arg(long, hide = true)]
    thresholds: bool,
    #[arg(long, hide = true)]
    persistent_conn: bool,
    // Actions of ipvsadm, which stand without another.
    #[arg(long, hide = true, num_args = 3, group = "Action")]
    set: Vec<String>,
    #[arg(long, hide = true, group = "Action")]
    start_daemon: Option<String>,
    #[arg(long, hide = true, group = "Action")]
    stop_daemon: Option<String>,
}

/// IPVS's words for schedulers that have an equal, and Causeway's for the others, as lists have
/// them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum SchedulerWord {
    Rr,
    Wrr,
    Lc,
    Wlc,
    Sed,
    Nq,
    Sh,
    Mh,
    Twos,
    Hash,
    Awrr,
    Latency,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Forwarding {
    Ipip,
    Gue,
    L2,
}

impl Forwarding {
    fn word(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Gue => "gue",
            Self::L2 => "l2",
        }
    }
}

impl SchedulerWord {
    fn scheduler(self) -> &'static str {
        match self {
            Self::Rr => "round-robin",
            Self::Wrr => "weighted-round-robin",
            Self::Lc | Self::Wlc | Self::Sed | Self::Nq => "least-loaded",
            Self::Sh | Self::Mh => "maglev",
            Self::Twos => "p2c",
            Self::Hash => "hash",
            Self::Awrr => "awrr",
            Self::Latency => "latency",
        }
    }
}

fn real_server(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    match text.parse::<IpAddr>() {
        Ok(address) => Ok((address, None)),
        Err(_) => socket_address(text).map(|at| (at.ip(), Some(at.port()))),
    }
}

impl Without {
    /// The sentence for the first of them that is given.
    fn sentence(&self) -> Option<&'static str> {
        let has_mark = self.fwmark_service.is_some() || self.sctp_service.is_some();
        let has_threshold = self.u_threshold.or(self.l_threshold).is_some() || self.thresholds;
        let is_persistent = self.persistent.is_some()
            || self.netmask.is_some()
            || self.pe.is_some()
            || self.persistent_conn;
        let daemons = self.daemon || self.start_daemon.is_some() || self.stop_daemon.is_some();
        let cases = [
            (
                self.masquerading,
                "addresses are not rewritten: use -i, and let the server hold the VIP and answer clients itself",
            ),
            (
                is_persistent,
                "connections are picked one by one: for one real a client, use -s sh",
            ),
            (
                has_mark,
                "services go by address, port and TCP or UDP (-t, -u); port 0 takes every port",
            ),
            (
                has_threshold,
                "reals have no bound of connections: use -s wlc, and weights as large as servers",
            ),
            (
                self.ops,
                "flows stay on their real: a packet is not picked alone",
            ),
            (
                self.connection,
                "connections are not listed one by one: see `causeway conns top` for those of stateful VIPs",
            ),
            (
                self.timeout || !self.set.is_empty(),
                "timeouts stand in the file: flow_table.tcp_idle, closed_idle and udp_idle",
            ),
            (
                daemons,
                "no daemon copies connections: cookies keep them on other balancers, too (docs/how-to/several-balancers.md)",
            ),
        ];
        let mut told = cases.into_iter().filter(|(given, _)| *given);
        told.next().map(|(_, sentence)| sentence)
    }
}

/// How a call ended.
enum Outcome {
    Done,
    /// It has no equal, for this reason.
    NoEqual(String),
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let target = Target::balancer(self.socket).or_at(self.api, self.credentials);
        let outcome = match self.rule.action.restore {
            true => restore(&target)?,
            false => self.rule.run(&target)?,
        };
        match outcome {
            Outcome::Done => Ok(ExitCode::SUCCESS),
            Outcome::NoEqual(why) => {
                eprintln!("causeway: {why}");
                Ok(ExitCode::from(NO_EQUAL))
            }
        }
    }
}

/// A line of a file of rules.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_version_flag = true)]
struct RuleLine {
    #[command(flatten)]
    rule: Rule,
}

/// The services that there are, by protocol and endpoint, and how the reals of each get their packets.
type Services = HashMap<(String, SocketAddr), String>;

/// Every line is read, and tried on what is there, before the first is carried out.
fn restore(target: &Target) -> anyhow::Result<Outcome> {
    let mut rules = Vec::new();
    for (index, line) in stdin().lock().lines().enumerate() {
        let line = line.context("cannot read standard input")?;
        let words = line.split_whitespace();
        if words
            .clone()
            .next()
            .is_none_or(|word| word.starts_with('#'))
        {
            continue;
        }
        let wrong = |error: clap::Error| {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default().to_owned();
            format!("line {}: {first}", index + 1)
        };
        match RuleLine::try_parse_from(words) {
            Ok(line) => rules.push((index + 1, line.rule)),
            Err(error) => return Ok(Outcome::NoEqual(wrong(error))),
        }
    }
    let vips = sorted(target)?.into_iter();
    let service = |vip: VipView| -> Option<_> {
        let at = SocketAddr::new(vip.address.parse().ok()?, vip.port);
        Some(((vip.protocol, at), vip.forwarding))
    };
    let mut services: Services = vips.filter_map(service).collect();
    for (line, rule) in &rules {
        let obstacle = rule.rehearse(&mut services);
        if let Some(why) = obstacle.with_context(|| format!("line {line}"))? {
            return Ok(Outcome::NoEqual(format!("line {line}: {why}")));
        }
    }
    for (line, rule) in rules {
        let outcome = rule.run(target).with_context(|| format!("line {line}"))?;
        if let Outcome::NoEqual(why) = outcome {
            return Ok(Outcome::NoEqual(format!("line {line}: {why}")));
        }
    }
    Ok(Outcome::Done)
}

impl Rule {
    /// Why it has no equal, whatever services there are.
    fn without_equal(&self) -> Option<&'static str> {
        let zero = "counters only grow: take differences, or --rate";
        let sentence = self.without.sentence();
        sentence.or(self.action.zero.then_some(zero))
    }

    /// Why it has no equal, where these services are there; else makes of them what it makes.
    fn rehearse(&self, services: &mut Services) -> anyhow::Result<Option<String>> {
        if let Some(why) = self.without_equal() {
            return Ok(Some(why.to_owned()));
        }
        let action = &self.action;
        if action.restore {
            bail!("{ALONE}");
        }
        if action.clear {
            services.clear();
        }
        if action.list || action.save || action.clear {
            return Ok(None);
        }
        let (at, protocol) = self.service.at()?;
        let service = (protocol.to_owned(), at);
        if action.add_service {
            let forwarding = self.service.forwarding().to_owned();
            let former = services.insert(service, forwarding);
            anyhow::ensure!(
                former.is_none(),
                "service {protocol} {at} exists already; remove it first (-D)"
            );
            return Ok(None);
        }
        let forwarding = services
            .get(&service)
            .with_context(|| lacks(protocol, at))?;
        if action.delete_service {
            services.remove(&service);
        } else if !action.edit_service {
            let (_, obstacle) = self.server.at(at, forwarding)?;
            return Ok(obstacle);
        }
        Ok(None)
    }

    /// Does what the rule says.
    fn run(&self, target: &Target) -> anyhow::Result<Outcome> {
        if let Some(why) = self.without_equal() {
            return Ok(Outcome::NoEqual(why.to_owned()));
        }
        let action = &self.action;
        if action.list {
            return self.list(target);
        }
        if action.save {
            print!("{}", list::rules(&sorted(target)?));
            return Ok(Outcome::Done);
        }
        if action.clear {
            for vip in sorted(target)? {
                target.delete(&vip_path(&vip.name))?;
            }
            return Ok(Outcome::Done);
        }
        if action.restore {
            bail!("{ALONE}");
        }
        let (at, protocol) = self.service.at()?;
        if action.add_service {
            let body = self.service.body(at, protocol);
            target.send(Method::POST, "/v1/vips", &body)?;
            return Ok(Outcome::Done);
        }
        let vip = find(target, at, protocol)?;
        if action.delete_service {
            target.delete(&vip_path(&vip.name))?;
        } else if action.edit_service {
            let change = VipChange {
                scheduler: Some(self.service.word().scheduler().to_owned()),
                affinity: Some(self.service.affinity().to_owned()),
                ..VipChange::default()
            };
            target.send(Method::PATCH, &vip_path(&vip.name), &change)?;
        } else {
            return self.change_server(target, at, &vip);
        }
        Ok(Outcome::Done)
    }

    fn list(&self, target: &Target) -> anyhow::Result<Outcome> {
        let wanted = self.service.at().ok();
        let read = || -> anyhow::Result<Vec<VipView>> {
            match wanted {
                Some((at, protocol)) => Ok(vec![find(target, at, protocol)?]),
                None => sorted(target),
            }
        };
        let began = Instant::now();
        let vips = read()?;
        let (vips, kind) = match (self.listing.stats, self.listing.rate) {
            (_, true) => {
                thread::sleep(RATE_PERIOD);
                let after = read()?;
                let seconds = began.elapsed().as_secs_f64();
                (list::rates(&vips, &after, seconds), Kind::Rate)
            }
            (true, false) => (vips, Kind::Stats),
            (false, false) => (vips, Kind::Plain),
        };
        print!("{}", list::list(&vips, kind, self.listing.exact));
        Ok(Outcome::Done)
    }

    /// Adds, changes or removes a real.
    fn change_server(
        &self,
        target: &Target,
        at: SocketAddr,
        vip: &VipView,
    ) -> anyhow::Result<Outcome> {
        let server = &self.server;
        let (real, obstacle) = server.at(at, &vip.forwarding)?;
        if let Some(why) = obstacle {
            return Ok(Outcome::NoEqual(why));
        }
        let real = real.to_string();
        if self.action.delete_server {
            target.delete(&format!("{}?last=true", real_path(&vip.name, &real)))?;
        } else if self.action.edit_server {
            let change = RealChange {
                // As ipvsadm has it, where none is given.
                weight: Some(server.weight.unwrap_or(1)),
                ..RealChange::default()
            };
            change_real(target, &real_path(&vip.name, &real), &change)?;
        } else {
            let mut body = json!({ "address": real, "weight": server.weight.unwrap_or(1) });
            if let Some(mac) = &server.mac {
                body["mac"] = json!(mac);
            }
            let path = format!("{}/reals", vip_path(&vip.name));
            target.send(Method::POST, &path, &body)?;
        }
        Ok(Outcome::Done)
    }
}

impl Service {
    fn at(&self) -> anyhow::Result<(SocketAddr, &'static str)> {
        let tcp = self.tcp_service.map(|at| (at, "tcp"));
        let udp = self.udp_service.map(|at| (at, "udp"));
        tcp.or(udp).context("name the service (-t, -u)")
    }

    fn word(&self) -> SchedulerWord {
        self.scheduler.unwrap_or(SchedulerWord::Wlc)
    }

    fn forwarding(&self) -> &'static str {
        self.forwarding.unwrap_or(Forwarding::Ipip).word()
    }

    /// `sh` and `mh` go by the client's address, unless the ports are asked for, too.
    fn affinity(&self) -> &'static str {
        let by_port = self.sched_flags.iter().any(|flag| flag.ends_with("-port"));
        match self.word() {
            SchedulerWord::Sh | SchedulerWord::Mh if !by_port => "client",
            _ => "none",
        }
    }

    /// The VIP, as the API takes it; its reals come later.
    fn body(&self, at: SocketAddr, protocol: &str) -> Value {
        json!({
            "address": at.ip().to_string(),
            "port": at.port(),
            "protocol": protocol,
            "scheduler": self.word().scheduler(),
            "affinity": self.affinity(),
            "forwarding": self.forwarding(),
            "real": [],
        })
    }
}

impl Server {
    /// The real, and why it cannot be one of the service there, whose reals get their packets in
    /// this way.
    fn at(&self, at: SocketAddr, forwarding: &str) -> anyhow::Result<(IpAddr, Option<String>)> {
        let (real, port) = self.real_server.context("name the real (-r)")?;
        let obstacle = match port {
            Some(port) if port != at.port() => Some(format!(
                "ports are not rewritten: {real} gets packets for port {} as they are",
                at.port()
            )),
            _ => self.unlike(at, forwarding),
        };
        Ok((real, obstacle))
    }

    /// Why the real cannot get its packets in this way.
    fn unlike(&self, at: SocketAddr, forwarding: &str) -> Option<String> {
        let wanted = match self.tun_type.as_deref() {
            Some("ipip") => Some("ipip"),
            Some("gue") => Some("gue"),
            Some(other) => return Some(format!("no real takes {other}: use ipip or gue")),
            None if self.gatewaying => Some("l2"),
            None if self.ipip && forwarding == "l2" => Some("ipip"),
            None => None,
        };
        let wanted = wanted.filter(|wanted| *wanted != forwarding)?;
        Some(format!(
            "forwarding is the service's, and {at} has {forwarding}: make it with --forwarding {wanted}"
        ))
    }
}

/// All VIPs, in ipvsadm's order.
fn sorted(target: &Target) -> anyhow::Result<Vec<VipView>> {
    let mut vips: Vec<VipView> = target.get("/v1/vips")?;
    let key = |vip: &VipView| {
        (
            vip.protocol.clone(),
            vip.address.parse::<IpAddr>().ok(),
            vip.port,
        )
    };
    vips.sort_by_key(key);
    Ok(vips)
}

fn find(target: &Target, at: SocketAddr, protocol: &str) -> anyhow::Result<VipView> {
    let vips: Vec<VipView> = target.get("/v1/vips")?;
    let is_it = |vip: &VipView| {
        vip.address.parse() == Ok(at.ip()) && vip.port == at.port() && vip.protocol == protocol
    };
    let found = vips.into_iter().find(is_it);
    found.with_context(|| lacks(protocol, at))
}

fn lacks(protocol: &str, at: SocketAddr) -> String {
    format!("there is no service {protocol} {at}")
}
