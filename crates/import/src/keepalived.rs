// SPDX-License-Identifier: Apache-2.0
//! keepalived.conf: blocks of words, of which virtual servers are carried over.

mod blocks;
mod check;

use std::collections::HashMap;
use std::net::IpAddr;

use crate::draft::{Draft, Health, Protocol, Service, remark};
use crate::ipvs::{self, Method, Server};
use crate::words::{addresses, ports};
use crate::{ImportContext, Remark, Unreadable};
use blocks::Block;

const NO_SCRIPTS: &str =
    "no scripts run: alert by Prometheus (docs/how-to/alert-with-prometheus.md), announce by BIRD";
const NO_MARKS: &str = "no service goes by firewall mark: write a VIP for each address and port (port = 0 takes every port)";

/// Settings whose meaning is taken elsewhere, or that change nothing here.
const SILENT: [&str; 9] = [
    "connect_timeout",
    "delay_before_retry",
    "delay_loop",
    "ip_family",
    "retry",
    "snmp_name",
    "virtualhost",
    "warmup",
    "weight",
];

/// What is left out.
#[derive(Debug, Default)]
pub(crate) struct Left(Vec<Remark>);

impl Left {
    fn out(&mut self, block: &Block, what: &str, instead: &str) {
        self.0
            .push(remark(block.line, format!("{what}, left out"), instead));
    }

    /// The line itself.
    fn line(&mut self, block: &Block, instead: &str) {
        self.out(block, &block.words.join(" "), instead);
    }
}

pub(crate) fn read(text: &str, beside: &ImportContext) -> Result<Draft, Unreadable> {
    let blocks = blocks::parse(text)?;
    let mut draft = Draft {
        origin: "keepalived",
        ..Draft::default()
    };
    let groups: HashMap<&str, &Block> = blocks
        .iter()
        .filter(|block| block.word(0) == "virtual_server_group")
        .map(|block| (block.word(1), block))
        .collect();
    let mut left = Left::default();
    let mut found = groups.len();
    for block in &blocks {
        let named = format!("{} {}", block.word(0), block.word(1));
        match block.word(0) {
            "virtual_server" => {
                virtual_server(block, &groups, &mut draft, beside);
                found += 1;
            }
            "virtual_server_group" => continue,
            "global_defs" => {
                draft.asides.push(format!(
                    "line {}: global_defs is about keepalived itself; for alerts see docs/how-to/alert-with-prometheus.md.",
                    block.line
                ));
                found += 1;
            }
            "vrrp_instance" | "vrrp_sync_group" => {
                left.out(
                    block,
                    &named,
                    "the balancer moves no address; keepalived may go on doing that (docs/how-to/fail-over-with-keepalived.md), or routers learn from BIRD which balancers are ready ([announce]), and several serve at a time",
                );
                found += 1;
            }
            "vrrp_script" | "vrrp_track_process" | "vrrp_track_file" | "track_file"
            | "bfd_instance" => {
                left.out(
                    block,
                    &named,
                    "a VIP is announced as long as `min_healthy` of its reals are up ([announce])",
                );
            }
            word if word.starts_with("include") => {
                left.out(
                    block,
                    &named,
                    "import that file, too, and put its VIPs here",
                );
                found += 1;
            }
            _ => left.line(block, "nothing here is like it"),
        }
    }
    draft.remarks.append(&mut left.0);
    match found {
        0 => Err(Unreadable {
            line: 0,
            message: "there is no virtual_server in it; give keepalived.conf".to_owned(),
        }),
        _ => Ok(draft),
    }
}

/// Where a virtual server is: an address and port each.
fn endpoints(block: &Block, groups: &HashMap<&str, &Block>, left: &mut Left) -> Vec<(IpAddr, u16)> {
    if block.word(1) != "group" {
        return of_entry(block, 1, left);
    }
    match groups.get(block.word(2)) {
        Some(group) => {
            let entries = group.children.iter();
            entries.flat_map(|entry| of_entry(entry, 0, left)).collect()
        }
        None => {
            left.line(block, "there is no virtual_server_group of this name");
            Vec::new()
        }
    }
}

fn of_entry(entry: &Block, at: usize, left: &mut Left) -> Vec<(IpAddr, u16)> {
    if entry.word(at) == "fwmark" {
        left.line(entry, NO_MARKS);
        return Vec::new();
    }
    let port = match entry.word(at + 1) {
        "" => Some(0..=0),
        word => ports(word),
    };
    let (Some(addresses), Some(ports)) = (addresses(entry.word(at)), port) else {
        left.line(entry, "write addresses and ports as numbers");
        return Vec::new();
    };
    let of_address = |address| ports.clone().map(move |port| (address, port));
    addresses.into_iter().flat_map(of_address).collect()
}

/// What a block says of a service, wherever it is.
struct Template {
    protocol: Protocol,
    method: Method,
    gue_port: Option<u16>,
    scheduler: (usize, String),
    flags: Vec<String>,
    min_healthy: Option<u64>,
    persistence: Option<(usize, String)>,
    servers: Vec<(Server, Option<Health>)>,
    sorry: Option<Server>,
}

fn virtual_server(
    block: &Block,
    groups: &HashMap<&str, &Block>,
    draft: &mut Draft,
    beside: &ImportContext,
) {
    let mut left = Left::default();
    let endpoints = endpoints(block, groups, &mut left);
    draft.remarks.append(&mut left.0);
    let template = match endpoints.is_empty() {
        true => None,
        false => template(block, &mut left),
    };
    let Some(template) = template else {
        draft.remarks.append(&mut left.0);
        return;
    };
    if let Some(port) = template.gue_port {
        draft.encap.retain(|(key, _)| *key != "gue_port");
        draft.encap.push(("gue_port", port.to_string()));
    }
    for (address, port) in endpoints {
        let mut service = Service::new(block.line, address, port, template.protocol);
        if block.word(1) == "group" {
            service.name = Some(block.word(2).to_owned());
        }
        service.remarks.clone_from(&left.0);
        service.settings.min_healthy = template.min_healthy;
        service.settings.health = health(&template, &mut service);
        let servers = template.servers.iter().map(|(server, _)| server);
        let servers = servers.chain(&template.sorry).map(|server| {
            let mut server = server.clone();
            if server.port == 0 {
                server.port = port;
            }
            server
        });
        ipvs::take_servers(&mut service, servers.collect(), beside);
        let (line, word) = &template.scheduler;
        ipvs::scheduler(&mut service, *line, word, &template.flags);
        if let Some((line, what)) = &template.persistence {
            ipvs::persistence(&mut service, *line, what.clone());
        }
        draft.services.push(service);
    }
}

/// The check of the VIP: keepalived has one for each real.
fn health(template: &Template, service: &mut Service) -> Option<Health> {
    let first = template
        .servers
        .iter()
        .find_map(|(_, health)| health.clone())?;
    for (server, health) in &template.servers {
        let address = server.real.address;
        let what = match health {
            Some(health) if *health == first => continue,
            Some(_) => format!("real {address} has another check, left out"),
            None => format!("real {address} without a check, checked as the others"),
        };
        service.remark(server.real.line, what, "a VIP's reals are all probed alike");
    }
    Some(first)
}

fn template(block: &Block, left: &mut Left) -> Option<Template> {
    let mut template = Template {
        protocol: Protocol::Tcp,
        method: Method::Masquerade,
        gue_port: None,
        scheduler: (block.line, "wlc".to_owned()),
        flags: Vec::new(),
        min_healthy: None,
        persistence: None,
        servers: Vec::new(),
        sorry: None,
    };
    // What a real does not say itself stands anywhere in the block.
    for child in &block.children {
        let word = child.word(1);
        match child.word(0) {
            "lb_algo" | "lvs_sched" => template.scheduler = (child.line, word.to_owned()),
            "sh-port" | "mh-port" | "sh-fallback" | "mh-fallback" | "flag-1" | "flag-2"
            | "flag-3" => template.flags.push(child.word(0).to_owned()),
            "lb_kind" | "lvs_method" => match kind(child, &mut template.gue_port) {
                Some(method) => template.method = method,
                None => left.line(child, "the methods are NAT, DR and TUN"),
            },
            "protocol" if word.eq_ignore_ascii_case("udp") => template.protocol = Protocol::Udp,
            "protocol" if !word.eq_ignore_ascii_case("tcp") => {
                let what = format!("a virtual_server of {word}");
                left.out(block, &what, "only TCP and UDP are balanced");
                return None;
            }
            "sorry_server" => sorry_server(child, &mut template, left),
            "persistence_timeout" | "persistence_engine" | "persistence_granularity" => {
                let what = child.words.join(" ");
                template.persistence.get_or_insert((child.line, what));
            }
            _ => {}
        }
    }
    for child in &block.children {
        if child.word(0) == "real_server" {
            real_server(block, child, &mut template, left);
        } else {
            unlike(child, left);
        }
    }
    template.min_healthy = min_healthy(block, &template, left);
    // By the service's method, unless it has its own.
    let method = block.child("sorry_server_lvs_method");
    let method = method.and_then(|line| kind(line, &mut template.gue_port));
    if let Some(sorry) = &mut template.sorry {
        sorry.method = method.unwrap_or(template.method);
    }
    Some(template)
}

/// As many reals as have the weight of `quorum`, if that is one number.
fn min_healthy(block: &Block, template: &Template, left: &mut Left) -> Option<u64> {
    let line = block.child("quorum")?;
    let quorum: u64 = line.word(1).parse().ok()?;
    let weights = template.servers.iter();
    let mut weights: Vec<u64> = weights.map(|(s, _)| s.real.weight.into()).collect();
    weights.sort_unstable();
    // keepalived lowers it to what there is.
    let quorum = quorum.min(weights.iter().sum());
    let fewest = reals_of(quorum, weights.iter().rev());
    let most = reals_of(quorum, weights.iter());
    match &template.sorry {
        None if fewest == most && most > 0 => return Some(most),
        None => left.line(
            line,
            "keepalived adds up the weights of reals that are up, `min_healthy` counts them: set it to how many the VIP cannot do without",
        ),
        // The sorry server comes when none of the others is up, here as there.
        Some(_) if most == 1 => {}
        Some(_) => left.line(
            line,
            "the sorry server comes when no other real is up; as long as one is, it gets the connections",
        ),
    }
    None
}

/// How many reals have this weight together, one after the other.
fn reals_of<'w>(quorum: u64, weights: impl Iterator<Item = &'w u64>) -> u64 {
    let mut sum = 0;
    let short = |weight: &&u64| {
        let short = sum < quorum;
        sum += **weight;
        short
    };
    weights.take_while(short).count() as u64
}

/// The server that stands in for all that are down.
fn sorry_server(line: &Block, template: &mut Template, left: &mut Left) {
    let port = match line.word(2) {
        "" => Some(0),
        word => word.parse().ok(),
    };
    let (Ok(address), Some(port)) = (line.word(1).parse(), port) else {
        left.line(line, "write the address and the port as numbers");
        return;
    };
    let mut server = Server::new(line.line, address, port);
    server.real.role = Some("sorry");
    template.sorry = Some(server);
}

/// Reports what of a virtual or real server has no equal.
fn unlike(child: &Block, left: &mut Left) {
    let instead = match child.word(0) {
        "ops" => {
            "flows stay on their real; scheduler = \"maglev\" with flow_table = false keeps no state"
        }
        "alpha" => "at a first start reals count as up until `fall` probes have failed",
        "omega" => "routes stay when the daemon stops: announce.on_stop",
        "ha_suspend" => "every balancer probes; a VIP is announced where its reals are up",
        "hysteresis" => "set `min_healthy`, and announce.delay against flapping",
        // It is a real, and those that are down get nothing new.
        "sorry_server" | "sorry_server_inhibit" | "sorry_server_lvs_method" => return,
        "quorum_up" | "quorum_down" | "notify_up" | "notify_down" => NO_SCRIPTS,
        "smtp_alert" => "alert by Prometheus (docs/how-to/alert-with-prometheus.md)",
        "uthreshold" | "lthreshold" => {
            "reals have no bound of connections: use scheduler = \"least-loaded\", and weights as large as servers"
        }
        // A real that is down gets no new connections, and keeps those that it has.
        "inhibit_on_failure" => return,
        "lb_algo" | "lvs_sched" | "lb_kind" | "lvs_method" | "protocol" | "quorum" => return,
        "sh-port" | "mh-port" | "sh-fallback" | "mh-fallback" | "flag-1" | "flag-2" | "flag-3" => {
            return;
        }
        "persistence_timeout" | "persistence_engine" | "persistence_granularity" => return,
        word if SILENT.contains(&word) || check::CHECKS.contains(&word) => return,
        _ => "nothing here is like it",
    };
    left.line(child, instead);
}

/// `lvs_method TUN type gue port 6080`.
fn kind(line: &Block, gue_port: &mut Option<u16>) -> Option<Method> {
    let after = |word: &str| {
        let at = line.words.iter().position(|w| w == word)?;
        line.words.get(at + 1)
    };
    let method = Method::of_kind(line.word(1))?;
    match after("type").map(String::as_str) {
        Some("gue") => {
            let port = after("port").and_then(|port| port.parse().ok());
            *gue_port = port.filter(|port| *port > 0);
            Some(Method::Gue)
        }
        Some("gre") => Some(Method::Gre),
        _ => Some(method),
    }
}

fn real_server(block: &Block, real: &Block, template: &mut Template, left: &mut Left) {
    let port = match real.word(2) {
        "" => Some(0),
        word => word.parse::<u16>().ok(),
    };
    let (Ok(address), Some(port)) = (real.word(1).parse::<IpAddr>(), port) else {
        left.line(real, "write the address and the port as numbers");
        return;
    };
    let mut server = Server::new(real.line, address, port);
    server.method = template.method;
    let method = real.child("lb_kind").or(real.child("lvs_method"));
    if let Some(method) = method.and_then(|line| kind(line, &mut template.gue_port)) {
        server.method = method;
    }
    let weight = real.child("weight").or(block.child("weight"));
    if let Some(weight) = weight {
        match weight.word(1).parse() {
            Ok(weight) => server.real.weight = weight,
            Err(_) => left.line(weight, "a weight is a number"),
        }
    }
    for child in &real.children {
        unlike(child, left);
    }
    let is_check = |child: &&Block| check::CHECKS.contains(&child.word(0));
    let of_real: Vec<&Block> = real.children.iter().filter(is_check).collect();
    let of_server: Vec<&Block> = block.children.iter().filter(is_check).collect();
    let mut checks = of_real.into_iter().chain(of_server);
    let health = checks
        .next()
        .map(|check| check::health(block, real, check, left));
    for other in checks {
        left.out(other, other.word(0), "a real is probed in one way");
    }
    template.servers.push((server, health));
}
