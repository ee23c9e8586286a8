// SPDX-License-Identifier: Apache-2.0
//! `causeway status`, `causeway agent status`, `causeway tunnel status`: whether a running daemon is
//! well, for people and for scripts.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use causeway_api::Moment;
use causeway_api::agent::{AgentStats, AgentStatus};
use causeway_api::balancer::{NextHopView, RealView, Stats, Status, VipView};
use causeway_api::fleet::FleetView;
use causeway_api::tunnel::{PathView, TunnelStatus};
use causeway_core::health::{FIRST_PROBE_OUT, PROBE_UNSENT};
use causeway_report::table::{OutputFormat, TextTable};
use causeway_service::config::plural;
use serde::Serialize;
use serde_json::{Value, json};

use crate::client::Target;
use crate::vip_cmd::print;

/// Without an answer: what init scripts end with where a program does not run.
const NO_ANSWER: u8 = 3;

/// Say whether a running balancer is well; exit code 1 if something is wrong
///
/// Prints what it serves, and a line for each thing that an operator should look at: a real or a VIP
/// that is down, a file that was refused, a next hop that is silent, a data plane that would not
/// outlive the daemon. What was drained by hand is no trouble, unless its VIP is then not ready. Ends
/// with 0 where there is none, with 1 where there is some, and with 3 where the daemon could not be asked.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How to print
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        run(&self.target, self.output, |target| {
            let status = target.get("/v1/status")?;
            // The active ones of a million reals are not what an operator should look at.
            let stats = target.get("/v1/stats?brief=true")?;
            let mut condition = of_balancer(&status, &stats);
            match target.get_if_any::<FleetView>("/v1/fleet") {
                Ok(fleet) => condition.troubles.extend(fleet.iter().flat_map(of_fleet)),
                Err(error) => {
                    let text = format!("how its fleet stands is not known: {error:#}");
                    condition.troubles.push(Trouble::new("fleet_unknown", text));
                }
            }
            Ok(condition)
        })
    }
}

/// How a daemon is.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Condition {
    #[serde(flatten)]
    daemon: Daemon,
    /// What it serves, in figures.
    #[serde(flatten)]
    figures: Value,
    /// The same as a sentence.
    #[serde(skip)]
    serves: String,
    troubles: Vec<Trouble>,
}

/// What runs, where and since when.
#[derive(Debug, PartialEq, Serialize)]
struct Daemon {
    daemon: &'static str,
    version: String,
    interface: String,
    /// None where no program is on the interface.
    mode: Option<String>,
    pid: u32,
    uptime_s: f64,
    config_file: String,
}

/// Something that an operator should look at.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Trouble {
    /// One word for programs; docs/reference/commands.md lists them.
    kind: &'static str,
    vip: Option<String>,
    real: Option<String>,
    /// What it is, and what mends it.
    pub text: String,
}

impl Trouble {
    fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Self {
            kind,
            vip: None,
            real: None,
            text: text.into(),
        }
    }

    fn of_vip(kind: &'static str, vip: &str, text: String) -> Self {
        Self {
            vip: Some(vip.to_owned()),
            ..Self::new(kind, text)
        }
    }
}

/// Asks, and prints the answer.
pub(crate) fn run(
    target: &Target,
    output: OutputFormat,
    ask: impl Fn(&Target) -> anyhow::Result<Condition>,
) -> anyhow::Result<ExitCode> {
    let condition = match ask(target) {
        Ok(condition) => condition,
        Err(error) => {
            eprintln!("causeway: {error:#}");
            return Ok(ExitCode::from(NO_ANSWER));
        }
    };
    match output {
        OutputFormat::Table => print!("{}", condition.text()),
        output => print(output, &json!(condition), &condition.table())?,
    }
    Ok(match condition.troubles.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl Condition {
    fn text(&self) -> String {
        let mut lines = vec![self.daemon.text(), self.serves.clone()];
        let troubles = self.troubles.iter();
        lines.extend(troubles.map(|trouble| format!("trouble: {}", trouble.text)));
        if self.troubles.is_empty() {
            lines.push("all is well".to_owned());
        }
        lines.join("\n") + "\n"
    }

    fn table(&self) -> TextTable {
        let mut table = TextTable::new(&["kind", "vip", "real", "text"]);
        for trouble in &self.troubles {
            table.push(vec![
                trouble.kind.to_owned(),
                trouble.vip.clone().unwrap_or_default(),
                trouble.real.clone().unwrap_or_default(),
                trouble.text.clone(),
            ]);
        }
        table
    }
}

/// How a balancer is.
fn of_balancer(status: &Status, stats: &Stats) -> Condition {
    let mut troubles = Vec::new();
    troubles.extend(told("data_plane", &status.data_plane_error));
    let held = status.held_vips.iter();
    troubles.extend(held.map(|held| {
        let vip = held.address.to_string();
        Trouble::of_vip("vip_held", &vip, held.text.clone())
    }));
    troubles.extend(told("state_not_kept", &status.state_error));
    let refusal = status.last_reload_error.as_deref();
    if status.last_good {
        let file = &status.config_file;
        let why = refusal.map_or_else(String::new, |why| format!(": {why}"));
        troubles.push(Trouble::new("last_good", format!(
            "{file} was refused at the start, and the copy of the last good one is in force: correct it, then `causeway reload`{why}"
        )));
    } else {
        troubles.extend(refused(&status.last_reload_error));
    }
    let unfinished = status.unfinished.iter();
    troubles.extend(unfinished.map(|what| {
        Trouble::new(
            "unfinished",
            format!("the last change is not complete: {what}"),
        )
    }));
    for hop in stats.next_hop.iter().filter(|hop| !hop.is_up()) {
        let text = match &hop.gateway {
            _ if hop.state == "no_source" => format!(
                "there is no source address for packets to {} reals, which are dropped: give the interface one of global scope, or set `source` or `source6` of [encap]",
                hop.family
            ),
            Some(gateway) => format!(
                "the next hop of {} reals, {gateway}, is silent: packets go to its last MAC address",
                hop.family
            ),
            None => format!(
                "no route to {} reals has a gateway: what is encapsulated goes nowhere",
                hop.family
            ),
        };
        troubles.push(Trouble::new("next_hop", text));
    }
    let flows = &stats.flow_table;
    if 10 * flows.flows > 9 * flows.capacity() {
        troubles.push(Trouble::new("flow_table", format!(
            "the flow table is nearly full, with {} of {} flows; in a full one new flows evict old ones: raise [flow_table], or use cookies",
            flows.flows, flows.capacity()
        )));
    }
    if stats.vips.is_empty() {
        troubles.push(Trouble::new(
            "no_vip",
            "it has no VIP, and balances nothing: add [[vip]] to its file, or use `causeway vip add`",
        ));
    }
    for vip in &stats.vips {
        of_vip(vip, &stats.next_hop, &mut troubles);
    }

    let ready = stats.vips.iter().filter(|vip| vip.ready).count();
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for vip in &stats.vips {
        for real in vip.reals.iter().filter(|real| real.state != ACTIVE) {
            *states.entry(&real.state).or_default() += 1;
        }
        if active(vip) > 0 {
            *states.entry(ACTIVE).or_default() += active(vip);
        }
    }
    let figures = json!({ "vips": stats.vips.len(), "vips_ready": ready, "reals": states });
    let states: Vec<String> = states
        .iter()
        .map(|(state, count)| match *state {
            WAITING => format!("{count} waiting for a first probe"),
            state => format!("{count} {state}"),
        })
        .collect();
    Condition {
        daemon: Daemon {
            daemon: "balancer",
            version: status.version.clone(),
            interface: status.interface.clone(),
            mode: mode(&status.mode),
            pid: status.pid,
            uptime_s: seconds(status.started, stats.at),
            config_file: status.config_file.clone(),
        },
        figures,
        serves: format!(
            "{ready} of {} ready; reals: {}",
            plural(stats.vips.len(), "VIP"),
            match states.is_empty() {
                true => "none".to_owned(),
                false => states.join(", "),
            }
        ),
        troubles,
    }
}

/// What is wrong with a balancer's place in its fleet, and with the others.
fn of_fleet(view: &FleetView) -> Vec<Trouble> {
    let (fleet, member) = (&view.fleet, &view.member);
    if view.state == "left" {
        return vec![Trouble::new(
            "fleet_left",
            format!(
                "{member} has left the fleet {fleet}, and routers send it nothing: `causeway fleet join` brings it back"
            ),
        )];
    }
    let mut troubles = Vec::new();
    if !view.in_service {
        let why = view.hold.as_deref().unwrap_or(&view.state);
        let text = format!("not in service in the fleet {fleet}: {why}");
        troubles.push(Trouble::new("fleet_not_in_service", text));
    }
    let store_error = view.store_error.iter();
    troubles.extend(store_error.map(|error| {
        Trouble::new("fleet_store", format!("the store of the fleet {fleet} does not work, and the last good book is in force: {error}"))
    }));
    let others = view.members.iter().filter(|other| other.name != *member);
    troubles.extend(others.filter(|other| !other.alive).map(|other| {
        Trouble::new("fleet_member_gone", format!(
            "the lease of {name} is over: start it, or `causeway fleet pass-by {name}` if it is gone for good",
            name = other.name
        ))
    }));
    let held = view.held.iter();
    troubles.extend(held.map(|removal| {
        let text = format!("the file's removal waits for you (`causeway fleet push`): {removal}");
        Trouble::new("fleet_held", text)
    }));
    troubles
}

/// Of a real that is new among others that serve.
const WAITING: &str = "waiting";

/// Of a real that gets new connections.
const ACTIVE: &str = "active";

/// How many of a VIP's reals are active; older daemons list all of them.
fn active(vip: &VipView) -> usize {
    let listed = vip.reals.iter().filter(|real| real.state == ACTIVE);
    listed.count().max(vip.reals_active)
}

fn of_vip(vip: &VipView, next_hops: &[NextHopView], troubles: &mut Vec<Trouble>) {
    let name = &vip.name;
    if !vip.ready {
        let reals = vip.reals.iter().filter(|real| real.state != ACTIVE);
        let health = vip.reals.iter().filter_map(|real| real.health.as_ref());
        let unknown = health.filter(|health| health.state == "unknown");
        let (unprobed, probed): (Vec<_>, Vec<_>) =
            unknown.partition(|health| health.succeeded + health.failed == 0);
        let (waits, unprobed): (Vec<_>, Vec<_>) = unprobed
            .into_iter()
            .partition(|health| health.reason == FIRST_PROBE_OUT);
        let is_drained = |real: &&RealView| real.state == "drain" || real.state == "maintenance";
        let drained = vip.reals.iter().filter(is_drained).count();
        let weightless = vip
            .reals
            .iter()
            .filter(|real| !is_drained(real) && real.weight == 0);
        let of = |count: usize, what: &str| match count {
            0 => String::new(),
            _ => format!("; {count} {what}"),
        };
        let text = format!(
            "VIP {name} is not ready: {} of its {} up, and min_healthy is {}{}{}{}{}{}",
            vip.reals_up,
            plural(reals.count() + active(vip), "real"),
            vip.min_healthy,
            of(drained, "drained"),
            of(weightless.count(), "of weight 0"),
            of(unprobed.len(), "not probed yet"),
            of(waits.len(), "whose first probe is not answered yet"),
            of(probed.len(), "with too few probes yet"),
        );
        troubles.push(Trouble::of_vip("vip_not_ready", name, text));
    }
    if let Some(discovery) = &vip.discovery {
        let origin = &discovery.origin;
        let error = discovery.error.iter();
        troubles.extend(error.map(|error| {
            let text = format!("reals of {name} from {origin}: {error}");
            Trouble::of_vip("discovery", name, text)
        }));
        let held = discovery.held.iter();
        troubles.extend(held.map(|reals| {
            Trouble::of_vip("discovery_held", name, format!(
                "an answer of {origin} that removes {} of {name} waits for you: `causeway vip accept {name}` applies it",
                plural(*reals, "real")
            ))
        }));
    }
    let last_probes = vip.reals.iter().filter_map(|real| real.health.as_ref());
    let mut unsent = last_probes.filter_map(|health| health.reason.strip_prefix(PROBE_UNSENT));
    if let Some(why) = unsent.next() {
        let text = format!(
            "this host could not send the last probe of {} of {name}, whose state stays as it is: {why}",
            plural(1 + unsent.count(), "real"),
        );
        troubles.push(Trouble::of_vip("probe_unsent", name, text));
    }
    for real in vip.reals.iter().filter(|real| real.state == "down") {
        let mut text = format!("{} of {name} is down", real.address);
        if let Some(health) = &real.health {
            if let Some(votes) = health.votes.filter(|votes| votes.down > 0) {
                text += &format!(" for {} of {} balancers", votes.down, votes.voters);
            }
            text += &format!("; its last probe: {}", health.reason);
        }
        if real.on_link {
            let family = if real.address.contains(':') {
                "ipv6"
            } else {
                "ipv4"
            };
            let hop = next_hops.iter().find(|hop| hop.family == family);
            let gateway = hop.and_then(|hop| hop.gateway.as_deref());
            text += &format!(
                "; it is on this balancer's link, and its packets go by the gateway {}, which has to forward them back: if it does not, use forwarding = \"l2\"",
                gateway.unwrap_or_default()
            );
        }
        troubles.push(Trouble {
            real: Some(real.address.clone()),
            ..Trouble::of_vip("real_down", name, text)
        });
    }
}

/// How an agent is.
pub(crate) fn of_agent(target: &Target) -> anyhow::Result<Condition> {
    let (status, stats) = (target.get("/v1/status")?, target.get("/v1/stats")?);
    Ok(agent(&status, &stats))
}

fn agent(status: &AgentStatus, stats: &AgentStats) -> Condition {
    let mut troubles: Vec<Trouble> = told("data_plane", &status.data_plane_error)
        .into_iter()
        .collect();
    troubles.extend(refused(&status.last_reload_error));
    troubles.extend(told("quic_ids", &status.quic_ids_error));
    for vip in &status.vips_missing {
        let length = if vip.is_ipv4() { 32 } else { 128 };
        troubles.push(Trouble::of_vip("vip_missing", &vip.to_string(), format!(
            "this server does not hold the VIP {vip}, so the kernel drops its packets: `ip addr add {vip}/{length} dev lo`"
        )));
    }
    let missing = stats.clients.as_ref().map_or(0, |c| c.hooks_missing);
    if missing > 0 {
        let text = format!(
            "{} of interfaces without a program: clients that pass there are not measured",
            plural(missing as usize, "hook")
        );
        troubles.push(Trouble::new("hooks_missing", text));
    }
    let clients = stats.clients.iter();
    troubles.extend(clients.filter_map(|of| told("history", &of.history_error)));
    let mut serves = Vec::new();
    if !stats.addresses.is_empty() {
        let addresses: Vec<String> = stats.addresses.iter().map(ToString::to_string).collect();
        serves.push(format!("tunnels end at {}", addresses.join(", ")));
    }
    if let Some(clients) = &stats.clients {
        serves.push(match clients.categories.len() {
            1 => "clients measured in 1 category".to_owned(),
            categories => format!("clients measured in {categories} categories"),
        });
    }
    for book in &stats.books {
        serves.push(format!(
            "{} follows the book, at {}",
            book.server, book.position
        ));
    }
    let books = stats
        .books
        .iter()
        .map(|book| json!({ "server": book.server, "position": book.position.to_string() }));
    Condition {
        daemon: Daemon {
            daemon: "agent",
            version: status.version.clone(),
            interface: status.interface.clone(),
            mode: mode(&status.mode),
            pid: status.pid,
            uptime_s: seconds(status.started, stats.at),
            config_file: status.config_file.clone(),
        },
        figures: json!({
            "addresses": stats.addresses,
            "client_categories": stats.clients.as_ref().map(|clients| clients.categories.len()),
            "books": books.collect::<Vec<_>>(),
        }),
        serves: match serves.is_empty() {
            true => "nothing to do".to_owned(),
            false => serves.join("; "),
        },
        troubles,
    }
}

/// How a tunnel's end is.
pub(crate) fn of_tunnel(target: &Target) -> anyhow::Result<Condition> {
    Ok(tunnel(&target.get("/v1/status")?))
}

fn tunnel(status: &TunnelStatus) -> Condition {
    let paths = &status.paths;
    let carrying = paths.iter().filter(|path| carries(path)).count();
    Condition {
        daemon: Daemon {
            daemon: "tunnel",
            version: status.version.clone(),
            interface: status.device.clone(),
            mode: None,
            pid: status.pid,
            uptime_s: seconds(status.started, status.at),
            config_file: status.config_file.clone(),
        },
        figures: json!({
            "paths": paths.len(),
            "paths_carrying": carrying,
            "key": (status.key != 0).then_some(status.key),
        }),
        serves: format!(
            "{carrying} of {} carry, {}",
            plural(paths.len(), "path"),
            match status.key {
                0 => "in clear".to_owned(),
                key => format!("sealed with key {key}"),
            }
        ),
        troubles: of_paths(status.totals.sessions, paths)
            .into_iter()
            .chain(refused(&status.last_reload_error))
            .collect(),
    }
}

/// What keeps a tunnel, or some of its paths, from carrying.
pub(crate) fn tunnel_troubles(status: &TunnelStatus) -> Vec<Trouble> {
    tunnel(status).troubles
}

fn carries(path: &PathView) -> bool {
    ["alive", "partly"].contains(&path.state.as_str())
}

fn of_paths(sessions: u64, paths: &[PathView]) -> Vec<Trouble> {
    let carried = paths.iter().any(carries);
    let nothing = (!carried).then(|| match sessions {
        0 => Trouble::new(
            "no_answer",
            "the other end has not answered yet: is it started, with these paths, keys and as many threads, and do firewalls let UDP pass?",
        ),
        _ => Trouble::new(
            "no_path",
            "no path is alive: nothing is carried until the other end answers",
        ),
    });
    // Where nothing is carried, that a path does not answer is said.
    let troubled = paths
        .iter()
        .filter(|path| path.state != "alive" && (carried || path.open_error.is_some()));
    let text = |path: &PathView| match &path.open_error {
        Some(error) => format!("path {} is {}: {error}", path.id, path.state),
        None => format!(
            "path {} from {} to {} is {}",
            path.id, path.local, path.remote, path.state
        ),
    };
    let troubled = troubled.map(|path| Trouble::new("path_down", text(path)));
    nothing.into_iter().chain(troubled).collect()
}

fn refused(last_reload_error: &Option<String>) -> Option<Trouble> {
    let error = last_reload_error.as_ref()?;
    Some(Trouble::new(
        "reload_refused",
        format!("the last reload was refused, and what was before holds: {error}"),
    ))
}

/// A sentence of the daemon's own.
fn told(kind: &'static str, error: &Option<String>) -> Option<Trouble> {
    Some(Trouble::new(kind, error.as_ref()?))
}

fn mode(word: &str) -> Option<String> {
    (word != "none").then(|| word.to_owned())
}

fn seconds(started: Moment, now: Moment) -> f64 {
    now.monotonic_ns.saturating_sub(started.monotonic_ns) as f64 / 1e9
}

impl Daemon {
    fn text(&self) -> String {
        let mode = match (&self.mode, self.daemon) {
            (Some(mode), _) => format!(" in {mode} mode"),
            (None, "tunnel") => String::new(),
            (None, _) => " without XDP".to_owned(),
        };
        format!(
            "{} {} on {}{mode}, pid {}, runs for {} with {}",
            self.daemon,
            self.version,
            self.interface,
            self.pid,
            span(Duration::from_secs_f64(self.uptime_s)),
            self.config_file
        )
    }
}

/// Its two largest units.
fn span(of: Duration) -> String {
    let seconds = of.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let minutes = seconds / 60 % 60;
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::balancer::HeldVip;

    use super::*;

    fn status() -> Status {
        serde_json::from_value(json!({
            "version": "0.1.0", "interface": "eth0", "mode": "native", "took_over": false,
            "pid": 7, "started": Moment::default(), "interval_ns": 100_000_000,
            "config_file": "lb.toml", "last_reload_error": null,
        }))
        .unwrap()
    }

    fn stats(change: impl FnOnce(&mut Stats)) -> Stats {
        let mut stats: Stats = serde_json::from_str(crate::stats_cmd::ANSWER).unwrap();
        for real in stats.vips.iter_mut().flat_map(|vip| &mut vip.reals) {
            "active".clone_into(&mut real.state);
        }
        stats.at.monotonic_ns = 90_061_000_000_000;
        change(&mut stats);
        stats
    }

    #[test]
    fn a_balancer_that_is_well_says_so() {
        let stats = stats(|stats| "drain".clone_into(&mut stats.vips[0].reals[0].state));
        let condition = of_balancer(&status(), &stats);
        assert_eq!(condition.troubles, []);
        let text = condition.text();
        assert!(
            text.starts_with(
                "balancer 0.1.0 on eth0 in native mode, pid 7, runs for 1 d 1 h with lb.toml\n"
            ),
            "{text}"
        );
        assert!(
            text.contains(" ready; reals: ") && text.contains("1 drain"),
            "{text}"
        );
        assert!(text.ends_with("all is well\n"), "{text}");
    }

    #[test]
    fn programs_get_figures_and_words() {
        let stats = stats(|stats| "down".clone_into(&mut stats.vips[0].reals[0].state));
        let address = stats.vips[0].reals[0].address.clone();
        let condition = json!(of_balancer(&status(), &stats));
        assert_eq!(condition["daemon"], "balancer");
        assert_eq!(condition["uptime_s"], 90_061.0);
        assert_eq!(condition["vips"], stats.vips.len());
        assert_eq!(condition["reals"]["down"], 1);
        let trouble = &condition["troubles"][0];
        assert_eq!(
            (&trouble["kind"], &trouble["vip"], &trouble["real"]),
            (&json!("real_down"), &json!("web"), &json!(address))
        );
    }

    #[test]
    fn each_trouble_of_a_balancer_is_a_line() {
        let told = |status: &Status, stats: &Stats, expected: &str| {
            let condition = of_balancer(status, stats);
            assert_eq!(condition.troubles.len(), 1, "{condition:?}");
            assert!(
                condition.troubles[0].text.contains(expected),
                "{condition:?}"
            );
            assert!(!condition.text().contains("all is well"));
        };
        let well = stats(|_| {});
        let with = |change: fn(&mut Status)| {
            let mut status = status();
            change(&mut status);
            status
        };
        for (status, expected) in [
            (
                with(|s| s.last_reload_error = Some("lb.toml:3: x".to_owned())),
                "refused, and what was before holds: lb.toml:3: x",
            ),
            (
                with(|s| s.last_good = true),
                "lb.toml was refused at the start",
            ),
            (
                with(|s| {
                    (s.last_good, s.last_reload_error) = (true, Some("lb.toml:3: x".to_owned()))
                }),
                "then `causeway reload`: lb.toml:3: x",
            ),
            (
                with(|s| s.unfinished = Some("web".to_owned())),
                "not complete: web",
            ),
            (
                with(|s| s.state_error = Some("disk full".to_owned())),
                "disk full",
            ),
            (
                with(|s| s.data_plane_error = Some("eth0 is gone".to_owned())),
                "eth0 is gone",
            ),
            (
                with(|s| {
                    s.held_vips = vec![HeldVip {
                        address: [192, 0, 2, 1].into(),
                        interface: "eth0".to_owned(),
                        prefix_length: 24,
                        text: "this host holds the VIP 192.0.2.1".to_owned(),
                    }];
                }),
                "this host holds the VIP 192.0.2.1",
            ),
        ] {
            told(&status, &well, expected);
        }
        for (stats, expected) in [
            (
                stats(|s| s.flow_table.flows = s.flow_table.slots),
                "new flows evict old ones",
            ),
            (stats(|s| s.vips[0].ready = false), "VIP web is not ready: "),
            (
                stats(|s| "down".clone_into(&mut s.vips[0].reals[0].state)),
                " of web is down",
            ),
            (
                stats(|s| {
                    let real = &mut s.vips[0].reals[0];
                    (real.state, real.on_link) = ("down".to_owned(), true);
                    s.next_hop = serde_json::from_value(json!([
                        { "family": "ipv4", "state": "reachable", "gateway": "10.0.0.254", "mac": null,
                          "other_routes": 0, "on_link": 1, "since_monotonic_ns": 0 },
                    ]))
                    .unwrap();
                }),
                "its packets go by the gateway 10.0.0.254, which has to forward them back",
            ),
            (
                stats(|s| {
                    s.next_hop = serde_json::from_value(json!([
                        { "family": "ipv4", "state": "silent", "gateway": "10.0.0.254", "mac": null,
                          "other_routes": 0, "since_monotonic_ns": 0 },
                        { "family": "ipv6", "state": "shared", "gateway": null, "mac": null,
                          "other_routes": 0, "since_monotonic_ns": 0 },
                    ]))
                    .unwrap();
                }),
                "the next hop of ipv4 reals, 10.0.0.254, is silent",
            ),
            (
                stats(|s| {
                    s.next_hop = serde_json::from_value(json!([
                        { "family": "ipv6", "state": "no_source", "gateway": "fe80::1", "mac": null,
                          "other_routes": 0, "since_monotonic_ns": 0 },
                    ]))
                    .unwrap();
                }),
                "no source address for packets to ipv6 reals",
            ),
        ] {
            told(&status(), &stats, expected);
        }
    }

    #[test]
    fn a_balancer_out_of_its_fleet_and_members_that_are_gone_are_troubles() {
        let view = |change: fn(&mut FleetView)| {
            let mut view: FleetView = serde_json::from_value(json!({
                "fleet": "home", "member": "lb1", "store": "/srv/book", "store_error": null,
                "hold": null, "state": "serving", "in_service": true, "book": null, "applied": null,
                "absence": "waits", "key_issued": 0, "key_other": null, "ids": [], "waiting": [],
                "members": [
                    { "name": "lb1", "phase": "serving", "alive": true, "acknowledged": null },
                    { "name": "lb2", "phase": "serving", "alive": true, "acknowledged": null },
                ],
            }))
            .unwrap();
            change(&mut view);
            of_fleet(&view)
        };
        assert_eq!(view(|_| {}), []);
        for (troubles, expected) in [
            (
                view(|v| v.members[1].alive = false),
                "the lease of lb2 is over",
            ),
            (
                view(|v| {
                    "left".clone_into(&mut v.state);
                    v.in_service = false;
                }),
                "lb1 has left the fleet home",
            ),
            (
                view(|v| {
                    v.in_service = false;
                    v.hold = Some("there is no book".to_owned());
                }),
                "not in service in the fleet home: there is no book",
            ),
            (
                view(|v| v.store_error = Some("refused".to_owned())),
                "the last good book is in force: refused",
            ),
        ] {
            assert_eq!(troubles.len(), 1, "{troubles:?}");
            assert!(troubles[0].text.contains(expected), "{troubles:?}");
        }
    }

    #[test]
    fn reals_of_weight_0_serve_nothing() {
        let stats = stats(|stats| {
            stats.vips[0].ready = false;
            stats.vips[0].reals[0].weight = 0;
        });
        let troubles = of_balancer(&status(), &stats).troubles;
        assert!(troubles[0].text.contains("; 1 of weight 0"), "{troubles:?}");
        let mut none = stats;
        none.vips.clear();
        let troubles = of_balancer(&status(), &none).troubles;
        assert!(troubles[0].text.contains("it has no VIP"), "{troubles:?}");
    }

    #[test]
    fn a_real_that_is_not_probed_yet_is_not_called_down() {
        for (reason, succeeded, expected) in [
            ("not probed yet", 0, "; 1 not probed yet"),
            (
                FIRST_PROBE_OUT,
                0,
                "; 1 whose first probe is not answered yet",
            ),
            ("connected", 1, "; 1 with too few probes yet"),
        ] {
            let stats = stats(|stats| {
                stats.vips[0].ready = false;
                stats.vips[0].reals[0].health = serde_json::from_value(json!({
                    "state": "unknown", "since_monotonic_ns": 0, "reason": reason,
                    "succeeded": succeeded, "failed": 0,
                }))
                .unwrap();
            });
            let troubles = of_balancer(&status(), &stats).troubles;
            assert_eq!(troubles.len(), 1, "{troubles:?}");
            assert!(troubles[0].text.ends_with(expected), "{troubles:?}");
        }
    }

    #[test]
    fn a_probe_that_could_not_be_sent_is_a_trouble() {
        let stats = stats(|stats| {
            stats.vips[0].reals[0].health = serde_json::from_value(json!({
                "state": "up", "since_monotonic_ns": 0, "succeeded": 9, "failed": 0,
                "reason": format!("{PROBE_UNSENT}Cannot assign requested address"),
            }))
            .unwrap();
        });
        let troubles = of_balancer(&status(), &stats).troubles;
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        assert_eq!(troubles[0].kind, "probe_unsent");
        assert_eq!(
            troubles[0].text,
            "this host could not send the last probe of 1 real of web, whose state stays as it is: Cannot assign requested address"
        );
    }

    #[test]
    fn a_tunnel_that_carries_nothing_says_so() {
        let path = |state: &str| PathView {
            state: state.to_owned(),
            ..PathView::default()
        };
        let told = |sessions, states: [&str; 2]| {
            let troubles = of_paths(sessions, &states.map(path));
            let texts: Vec<String> = troubles.into_iter().map(|trouble| trouble.text).collect();
            texts.join("|")
        };
        assert!(told(0, ["probing", "probing"]).contains("not answered yet"));
        assert!(told(1, ["dead", "down"]).contains("no path is alive"));
        assert_eq!(told(1, ["alive", "alive"]), "");
        assert_eq!(told(1, ["dead", "alive"]), "path 0 from  to  is dead");
        assert_eq!(told(1, ["partly", "alive"]), "path 0 from  to  is partly");

        let closed = PathView {
            open_error: Some("path a to b: x".to_owned()),
            ..path("down")
        };
        for (other, expected) in [
            ("alive", vec!["path 0 is down: path a to b: x"]),
            (
                "dead",
                vec![
                    "no path is alive: nothing is carried until the other end answers",
                    "path 0 is down: path a to b: x",
                ],
            ),
        ] {
            let troubles = of_paths(1, &[closed.clone(), path(other)]);
            let texts: Vec<&str> = troubles.iter().map(|t| t.text.as_str()).collect();
            assert_eq!(texts, expected);
        }
    }

    #[test]
    fn an_agent_tells_what_it_does_and_what_is_wrong() {
        let status: AgentStatus = serde_json::from_value(json!({
            "version": "0.1.0", "interface": "eth0", "mode": "native", "took_over": false,
            "pid": 8, "started": Moment::default(), "config_file": "agent.toml",
            "last_reload_error": "agent.toml:2: y", "vips_missing": ["2001:db8::1"],
            "quic_ids_error": "cannot write ids",
        }))
        .unwrap();
        let stats: AgentStats = serde_json::from_value(json!({
            "at": { "monotonic_ns": 61_000_000_000u64, "realtime_ns": 0 },
            "addresses": ["10.0.0.1"], "verdicts": [], "cookies": [],
        }))
        .unwrap();
        assert_eq!(
            agent(&status, &stats).text(),
            "agent 0.1.0 on eth0 in native mode, pid 8, runs for 1 min 1 s with agent.toml\n\
             tunnels end at 10.0.0.1\n\
             trouble: the last reload was refused, and what was before holds: agent.toml:2: y\n\
             trouble: cannot write ids\n\
             trouble: this server does not hold the VIP 2001:db8::1, so the kernel drops its packets: `ip addr add 2001:db8::1/128 dev lo`\n"
        );
    }
}
