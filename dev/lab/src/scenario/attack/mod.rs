// SPDX-License-Identifier: Apache-2.0
//! Floods of every kind beside live connections of every kind, and what else strangers
//! may do to a balancer: hold its API's connections, and answer its probes with rubbish.
//!
//! Each flood has a balancer of its own, three phases of equal length, and connections that
//! are open through all of them. First they are alone. Then as many packets as the flood has,
//! as long, come to a port that no VIP has: what they cost is the sender's and the wire's
//! share of two cores. Then comes the flood. Latencies under the flood are judged beside those
//! under the second phase. Frames are put into the balancer's port of the router as a driver would,
//! and end where they come back from it: neither the router nor the servers are under test. With
//! `through=servers` they go on, and servers drop what claims to come from the flood's addresses.

mod captured;
mod floods;
mod hostile;
mod live;

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use causeway_api::balancer::Stats;
use causeway_bench::flood::{FloodPrograms, HOP_LIMIT};
use causeway_dataplane::Protocol;
use serde_json::{Value, json};

pub(super) use self::floods::seal_ip;
use self::floods::{COOKIES, FLOODS, FloodKind, Frames, Plan, QUIC, STATEFUL, TABLE, UDP_PORT};
use self::live::Live;
use super::bench::{Bench, QUIC_PORT};
use super::connections::{SharedKeys, cid, with_ids};
use super::daemon_process::DaemonProcess;
use super::{Context, Scenario, param};
use crate::agent::AgentProcess;
use crate::api;
use crate::background::output_of;
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding, VipEntry};
use crate::clock::until;
use crate::load::frame_flood::{FrameFlood, FrameMaker, SentFrames};
use crate::load::report::{self, ClientSummary};
use crate::quic::{Server, ServerConfig, Stack};

/// The router's port to the balancer.
const BALANCER_PORT: &str = "lb";
const SERVERS: usize = 3;
/// Where agents report.
const REPORTS_PORT: u16 = 9472;
/// Until what is bound to come has come.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Until a balancer has filled the rings of slots, also on a busy machine: what opens before has no
/// slot.
const LEARNING: Duration = Duration::from_millis(2500);
/// Tuples that share buckets under a guessed seed.
const COLLIDING: usize = 8192;
/// Requests of a phase from which on it has a p99 worth the name.
const JUDGED_FROM: u64 = 50;
/// How much slower live connections may be than under the control.
const SLOWER: f64 = 2.0;
/// What the daemon's memory may grow by in one flood.
const RSS_GROWTH_KIB: u64 = 32 * 1024;

pub(super) const ATTACK: Scenario = Scenario {
    name: "attack",
    about: "floods of every kind, slow API clients and hostile answers to probes, beside live connections",
    params: &[
        param("seconds", "3", "length of each of a flood's three phases"),
        param("rate", "200000", "frames a second"),
        param("family", "4", "of IP, for floods and connections: 4 or 6"),
        param(
            "through",
            "balancer",
            "what floods go through: the balancer, or the servers behind it, too",
        ),
        param("slots", "12", "users of each kind, one connection each"),
        param(
            "flows",
            "1048576",
            "flows of each family that the balancer's table is made for",
        ),
        param("floods", "all", "names of floods, joined by +, or none"),
        param(
            "hostile",
            "true",
            "whether slow API clients and hostile answers to probes follow",
        ),
        param(
            "planted",
            "",
            "evict-live: a table for 1,024 flows under pairs, which the campaign must find",
        ),
    ],
    run,
    table: |result| {
        let rows = result["interface"]["floods"].as_array()?;
        let mut lines = vec![format!(
            "{:<17} {:>9} {:>6} {:>7} {:>6} {:>7} {:>8}  verdicts",
            "flood", "packets/s", "ns", "broken", "p99 x", "evicted", "flows"
        )];
        lines.extend(rows.iter().map(|row| {
            let whole = |key: &str| row[key].to_string();
            format!(
                "{:<17} {:>9} {:>6} {:>7} {:>6.2} {:>7} {:>8}  {}",
                row["flood"].as_str().unwrap_or_default(),
                whole("received_per_s"),
                whole("cpu_ns"),
                whole("broken_connections"),
                row["worst_p99_ratio"].as_f64().unwrap_or(f64::NAN),
                whole("evicted_live"),
                whole("flows"),
                row["verdicts"]
            )
        }));
        Some(lines.join("\n"))
    },
};

fn run(context: &Context) -> Result<Value> {
    let planted: String = context.param("planted")?;
    let world = World::build(context, &planted)?;
    let chosen: String = context.param("floods")?;
    let chosen = match planted.as_str() {
        "" => chosen,
        "evict-live" => "pairs".to_owned(),
        other => bail!("{other:?} is not a planted fault; there is evict-live"),
    };
    let mut rows = Vec::new();
    for kind in choose(&chosen)? {
        rows.push(
            world
                .run(kind)
                .with_context(|| format!("flood {}", kind.name))?,
        );
    }
    let faults: Vec<&Value> = rows
        .iter()
        .filter(|row| row["fault"] != Value::Null)
        .collect();
    if !planted.is_empty() {
        ensure!(
            !faults.is_empty(),
            "the planted fault was not found: {rows:?}"
        );
        return Ok(json!({ "interface": { "floods": rows, "planted_found": planted } }));
    }
    ensure!(faults.is_empty(), "{}", json!(faults));
    let hostile = match context.param("hostile")? {
        true => hostile::run(context, &world)?,
        false => Value::Null,
    };
    let count = |key: &str| rows.iter().filter(|row| row[key] == true).count();
    let summary = json!({
        "floods": rows.len(), "within_twice": count("within_twice"),
        "fast_enough": count("fast_enough"),
    });
    Ok(json!({ "interface": { "summary": summary, "floods": rows, "hostile": hostile } }))
}

fn choose(names: &str) -> Result<Vec<&'static FloodKind>> {
    match names {
        "all" => return Ok(FLOODS.iter().collect()),
        "none" => return Ok(Vec::new()),
        _ => {}
    }
    let of = |name: &str| {
        let found = FLOODS.iter().find(|kind| kind.name == name);
        let known = || FLOODS.iter().map(|kind| kind.name).collect::<Vec<_>>();
        found.with_context(|| format!("no flood is called {name:?}; there are {:?}", known()))
    };
    names.split('+').map(of).collect()
}

/// What all floods share: machines, servers, agents and keys.
struct World<'a> {
    context: &'a Context,
    bench: Bench,
    keys: SharedKeys,
    flows: u32,
    plan: Plan,
    /// Ends floods behind the balancer.
    end: Option<FloodPrograms>,
    _agents: Vec<AgentProcess>,
    _quic: Vec<Server>,
}

/// What is held against each other before and after a phase.
struct Look {
    stats: Stats,
    process: DaemonProcess,
    /// Connections in slots.
    slots: usize,
}

impl<'a> World<'a> {
    fn build(context: &'a Context, planted: &str) -> Result<Self> {
        let bench = Bench::build(context.sandbox, 3, SERVERS)?;
        let keys = SharedKeys::with_cookies(&context.binary)?;
        prepare(&bench)?;
        let through: String = context.param("through")?;
        let router = &bench.topology.router.netns;
        let end = match through.as_str() {
            "balancer" => Some(router.run(|| FloodPrograms::load(BALANCER_PORT))?),
            "servers" => None,
            other => bail!("floods go through the balancer or the servers, not through {other:?}"),
        };
        if let Some(end) = &end {
            bench.topology.run_behind_balancer(end.end())?;
        }
        let family: u8 = context.param("family")?;
        ensure!([4, 6].contains(&family), "the family is 4 or 6");
        let plan = Plan {
            balancer_mac: bench.topology.balancer.mac,
            seed: context.seed,
            ipv6: family == 6,
            hop_limit: if end.is_some() { HOP_LIMIT } else { 63 },
        };
        let agents = (0..SERVERS)
            .map(|index| {
                let lines = agent_lines(&bench, &keys, &plan, index);
                bench.agent(&context.binary, index, &lines)
            })
            .collect::<Result<_>>()?;
        let servers = bench.topology.servers.iter().enumerate();
        let quic = servers
            .map(|(index, node)| {
                let config = ServerConfig {
                    cid: Some(cid(0, index)),
                    ..ServerConfig::new(&node.ipv4.to_string(), QUIC_PORT)?
                };
                Server::start(&node.netns, Stack::Quinn, &config)
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            context,
            plan,
            end,
            bench,
            keys,
            flows: match planted {
                "evict-live" => 1024,
                _ => context.param("flows")?,
            },
            _agents: agents,
            _quic: quic,
        })
    }

    /// A VIP for each way of remembering, and one for datagrams.
    fn vips(&self) -> Result<Vec<VipEntry>> {
        let tcp = |vip| {
            let of = if self.plan.ipv6 {
                Bench::vip6
            } else {
                Bench::vip4
            };
            of(&self.bench, vip, "round-robin", ServerForwarding::Ipip)
        };
        let mut stateful = with_ids(tcp(STATEFUL));
        stateful.forwarding = ServerForwarding::Gue;
        stateful.keys.push("stateful = true".to_owned());
        let quic = VipEntry {
            port: QUIC_PORT,
            protocol: Protocol::Udp,
            ..tcp(QUIC)
        };
        let mut udp = quic.clone();
        udp.port = UDP_PORT;
        let mut quic = with_ids(quic);
        quic.keys = vec![format!("quic_cid = [{}]", self.keys.quic_cid(0)?)];
        let mut table = tcp(TABLE);
        table.keys.push("cookie = \"none\"".to_owned());
        let cookies = with_ids(tcp(COOKIES));
        Ok(vec![cookies, table, stateful, quic, udp])
    }

    fn settings(&self) -> Result<BalancerSettings> {
        let head = vec![
            self.keys.balancer_lines(),
            // No slot is given out before that.
            "[stateful]\nconnections = \"64Ki\"\nlearn_period = \"1s\"".to_owned(),
            format!(
                "[agent_reports]\nlisten = \"{}\"",
                reports_address(&self.bench)
            ),
        ];
        Ok(BalancerSettings {
            vips: self.vips()?,
            flows: Some(self.flows),
            head,
            ..BalancerSettings::default()
        })
    }

    fn balancer(&self) -> Result<Balancer> {
        self.bench.balancer(&self.context.binary, &self.settings()?)
    }

    fn run(&self, kind: &FloodKind) -> Result<Value> {
        let seconds: f64 = self.context.param("seconds")?;
        let phase = Duration::from_secs_f64(seconds);
        let balancer = self.balancer()?;
        sleep(LEARNING);
        // What takes long to find is found before clients come; what is replayed is theirs.
        let found = matches!(kind.frames, Frames::Made(_) | Frames::Collisions)
            .then(|| self.frames(kind))
            .transpose()?;
        let live = Live::start(self)?;
        sleep(live::WARM_UP);
        let frames = found.map_or_else(|| self.frames(kind), Ok)?;
        let length = self.frame_length(kind, &frames);
        let flood = match frames {
            Made::Maker(maker) => maker,
            Made::Packet(packet) => self.plan.replay(packet),
        };
        let start = look(&balancer)?;
        let calm_ns = crate::clock::monotonic_ns();
        let answers = live.answers();
        sleep(phase);
        // Each kind has sent some and had their answers.
        let some = 2 * live::slots(self)? as u64;
        let are_served = || {
            let mut all = live.answers().into_iter().zip(&answers);
            Ok(all.all(|(now, then)| now > then + some).then_some(()))
        };
        until(TIMEOUT, are_served)?.context("a kind of client is not served")?;
        let calm = look(&balancer)?;
        let control_ns = crate::clock::monotonic_ns();
        let of_control = self.send(self.plan.unserved(length), phase)?;
        let before = look(&balancer)?;
        let ended = self.ended();
        let flood_ns = crate::clock::monotonic_ns();
        let sent = self.send(flood, phase)?;
        let end_ns = crate::clock::monotonic_ns();
        // What is sent last may wait for a processor: for a moment, in which live connections send
        // far less than the flood has.
        let counted = |now: &Look| changed(&now.stats, &before.stats).values().sum::<u64>();
        let are_counted = || {
            let now = look(&balancer)?;
            Ok((counted(&now) >= sent.frames).then_some(now))
        };
        let after = until(phase, are_counted)?.map_or_else(|| look(&balancer), Ok)?;
        let logs = live.finish()?;
        let adopted = api::verdict(&after.stats.verdicts, "adopted");
        let flows = flows_seen(kind, &balancer, adopted)?;
        let end = look(&balancer)?;
        balancer.end()?;

        let mut clients = serde_json::Map::new();
        let (mut broken, mut worst) = (0, None);
        for (name, log) in &logs {
            let of = |from, to| report::summary(log, from, to);
            let (alone, control) = (of(calm_ns, control_ns), of(control_ns, flood_ns));
            let under = of(flood_ns, end_ns);
            ensure!(
                alone.requests > 0,
                "no {name} client was served: {:?}",
                alone.faults
            );
            let ratio = p99_ratio(&control, &under);
            worst = worst.into_iter().chain(ratio).reduce(f64::max);
            broken += under.broken_connections;
            clients.insert(
                (*name).to_owned(),
                json!({
                    "connections": under.connections, "broken": under.broken_connections,
                    "faults": under.faults, "p99_ratio": ratio,
                    "requests": under.requests, "control_requests": control.requests,
                    "p50_ms": under.p50_ms, "p99_ms": under.p99_ms,
                    "control_p99_ms": control.p99_ms, "alone_p99_ms": alone.p99_ms,
                }),
            );
        }
        let verdicts = changed(&after.stats, &before.stats);
        let usual = changed(&calm.stats, &start.stats);
        let span_ns =
            |from: &Look, to: &Look| to.stats.at.monotonic_ns - from.stats.at.monotonic_ns;
        let spans = span_ns(&before, &after) as f64 / span_ns(&start, &calm) as f64;
        let live_packets = (usual.values().sum::<u64>() as f64 * spans) as u64;
        let counted = counted(&after);
        let received = counted.saturating_sub(live_packets);
        let astray: Vec<&str> = verdicts
            .keys()
            .copied()
            .filter(|name| !kind.verdicts.contains(name) && !OF_THE_HOST.contains(name))
            .collect();
        let adopts = kind.verdicts.contains(&"adopted");
        // Only live TCP connections of the table can be adopted where the flood's packets are not.
        let evicted = (!adopts).then(|| verdicts.get("adopted").copied().unwrap_or(0));
        let fault = [
            (broken > 0).then(|| format!("{broken} connections broke")),
            evicted
                .filter(|&n| n > 0)
                .map(|n| format!("{n} live flows were evicted")),
            (!astray.is_empty()).then(|| format!("packets ended as {astray:?}")),
            (counted < sent.frames).then(|| format!("{} sent, {counted} counted", sent.frames)),
            // A flood may take free ones, and none of those that are open.
            (after.slots.min(before.slots) < live::slots(self)?)
                .then(|| format!("of connections in slots {} are left", after.slots)),
            (end.process.maps_bytes != start.process.maps_bytes).then(|| "maps grew".to_owned()),
            (end.process.rss_kib > start.process.rss_kib + RSS_GROWTH_KIB)
                .then(|| "the daemon grew".to_owned()),
            wrong_spread(kind, flows, adopted),
        ];
        let fault: Vec<String> = fault.into_iter().flatten().collect();
        let rate = (received as f64 / sent.seconds) as u64;
        self.context.say(format!(
            "{}: {rate} packets/s, {broken} broken, p99 {:.2} of the control's {fault:?}",
            kind.name,
            worst.unwrap_or(f64::NAN)
        ));
        let reports = |look: &Look| json!(look.stats.agent_reports);
        Ok(json!({
            "flood": kind.name, "sent": sent.frames, "received": received,
            "received_per_s": rate, "fast_enough": rate >= 150_000,
            "control_sent": of_control.frames, "control_cpu_ns": of_control.cpu_ns(),
            "cpu_ns": sent.cpu_ns(), "making_ns": sent.making_ns(),
            "ended_behind": self.ended() - ended, "frame_bytes": length, "clients": clients, "broken_connections": broken,
            "worst_p99_ratio": worst, "within_twice": worst.is_some_and(|ratio| ratio <= SLOWER),
            "verdicts": verdicts, "evicted_live": evicted, "flows": flows,
            "slots": [before.slots, after.slots],
            "agent_reports": [reports(&before), reports(&after)],
            "rss_kib": [start.process.rss_kib, end.process.rss_kib],
            "descriptors": [start.process.descriptors, end.process.descriptors],
            "maps": [start.process.maps, end.process.maps],
            "maps_bytes": [start.process.maps_bytes, end.process.maps_bytes],
            "fault": if fault.is_empty() { Value::Null } else { json!(fault) },
        }))
    }

    /// Frames that came back from the balancer and ended there.
    fn ended(&self) -> u64 {
        self.end.as_ref().map_or(0, FloodPrograms::ended)
    }

    fn frames(&self, kind: &FloodKind) -> Result<Made> {
        let router = &self.bench.topology.router.netns;
        Ok(match kind.frames {
            Frames::Made(frame) => Made::Maker(self.plan.maker(frame)),
            Frames::Collisions => Made::Maker(self.plan.collisions(COLLIDING)),
            Frames::ReplayOfClient => {
                let plan = self.plan;
                Made::Packet(captured::frame(router, move |frame| {
                    plan.is_request(frame)
                })?)
            }
            Frames::ReplayOfReport => Made::Packet(captured::frame(router, |frame| {
                frame.len() > 42 && frame[23] == 17 && frame[36..38] == REPORTS_PORT.to_be_bytes()
            })?),
        })
    }

    fn frame_length(&self, kind: &FloodKind, frames: &Made) -> usize {
        match (kind.frames, frames) {
            (_, Made::Packet(packet)) => packet.len(),
            (Frames::Made(make), _) => {
                make(&self.plan, 1, &mut [0; crate::load::frame_flood::FRAME_MAX])
            }
            _ => 54,
        }
    }

    fn send(&self, frames: FrameMaker, phase: Duration) -> Result<SentFrames> {
        let router = &self.bench.topology.router.netns;
        let rate = self.context.param("rate")?;
        let flood = FrameFlood::start(router, BALANCER_PORT, rate, frames)?;
        sleep(phase);
        flood.finish()
    }
}

/// How much slower clients are under a flood than under the control; `None` where there are too
/// few requests for a p99. A flood that leaves too few of many has all but stopped them: no number.
fn p99_ratio(control: &ClientSummary, under: &ClientSummary) -> Option<f64> {
    if control.requests < JUDGED_FROM {
        return None;
    }
    if under.requests >= JUDGED_FROM {
        return Some(under.p99_ms / control.p99_ms);
    }
    (2 * under.requests < control.requests).then_some(f64::INFINITY)
}

/// Flows in the table by the next whole look at it, where the row is about them. A look takes
/// 7.5 s, and the one that has begun before the flood's end misses some.
fn flows_seen(kind: &FloodKind, balancer: &Balancer, adopted: u64) -> Result<u64> {
    let flows = || anyhow::Ok(api::stats(&balancer.socket())?.flow_table.flows);
    for _ in 0..300 {
        if wrong_spread(kind, flows()?, adopted).is_none() {
            break;
        }
        sleep(Duration::from_millis(100));
    }
    flows()
}

/// Tuples that collide under a guessed seed must have room each under the true one.
fn wrong_spread(kind: &FloodKind, flows: u64, adopted: u64) -> Option<String> {
    let tuples = adopted.min(COLLIDING as u64);
    let crowded = matches!(kind.frames, Frames::Collisions) && flows < tuples * 9 / 10;
    crowded.then(|| format!("{tuples} tuples left {flows} entries"))
}

enum Made {
    Maker(FrameMaker),
    Packet(Vec<u8>),
}

/// What packets of live connections, and of hosts beside them, end as.
const OF_THE_HOST: [&str; 4] = ["established", "not_ip", "not_vip", "icmp_other"];

fn reports_address(bench: &Bench) -> String {
    format!("{}:{REPORTS_PORT}", bench.topology.balancer.ipv4)
}

fn agent_lines(bench: &Bench, keys: &SharedKeys, plan: &Plan, index: usize) -> String {
    let vips = [COOKIES, STATEFUL].map(|vip| (plan.vip(vip), super::bench::PORT).into());
    format!(
        "{}[agent.report]\nload = true\nto = [\"{}\"]\nkeys = \"{}\"\n",
        keys.cookies_for(index, &vips),
        reports_address(bench),
        keys.cookies().display(),
    )
}

/// Servers drop what floods bring them, the router what they and the balancer answer.
fn prepare(bench: &Bench) -> Result<()> {
    let topology = &bench.topology;
    for server in &topology.servers {
        // Local addresses are looked up first unless the rule says otherwise.
        for (family, sources) in ["-4", "-6"].into_iter().zip(floods::SOURCES) {
            for rule in [
                "add pref 100 lookup local".to_owned(),
                format!("add pref 10 from {sources} blackhole"),
                "del pref 0".to_owned(),
            ] {
                let mut command = server.netns.command("ip");
                output_of(command.args([family, "rule"]).args(rule.split(' ')))?;
            }
        }
    }
    let router = &topology.router.netns;
    for sources in floods::SOURCES {
        router.ip(&format!("route add blackhole {sources}\n"))?;
    }
    topology.clients[live::PLAIN]
        .netns
        .sysctl("net/ipv4/tcp_timestamps", "0")
}

fn look(balancer: &Balancer) -> Result<Look> {
    let pid = balancer.pid().context("the balancer does not run")?;
    let connections: Value = api::get(&balancer.socket(), "/v1/connections?count=1&ms=0")?;
    Ok(Look {
        stats: api::stats(&balancer.socket())?,
        process: DaemonProcess::of(pid)?,
        slots: connections["open"].as_u64().unwrap_or(0) as usize,
    })
}

/// Packets of each verdict between two looks.
fn changed<'s>(now: &'s Stats, before: &Stats) -> std::collections::BTreeMap<&'s str, u64> {
    let verdicts = now.verdicts.iter();
    verdicts
        .map(|v| {
            let earlier = api::verdict(&before.verdicts, &v.verdict);
            (v.verdict.as_str(), v.packets - earlier)
        })
        .filter(|(_, packets)| *packets > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_a_flood_stops_are_infinitely_slower() {
        let of = |requests, p99_ms| ClientSummary {
            requests,
            p99_ms,
            ..ClientSummary::default()
        };
        assert_eq!(p99_ratio(&of(700, 20.0), &of(600, 30.0)), Some(1.5));
        // A dozen connections with four requests each that nothing answers.
        assert_eq!(
            p99_ratio(&of(700, 20.0), &of(12, 20.0)),
            Some(f64::INFINITY)
        );
        assert_eq!(p99_ratio(&of(700, 20.0), &of(0, 0.0)), Some(f64::INFINITY));
        assert_eq!(p99_ratio(&of(49, 20.0), &of(600, 30.0)), None);
        assert_eq!(p99_ratio(&of(55, 20.0), &of(49, 20.0)), None);
    }
}
