// SPDX-License-Identifier: Apache-2.0
//! Further troubles: a path that is slow or unsteady, losses in one place or another, an
//! elephant, cubic, Redis, and tunnels that repair nothing.
//!
//! Where one path is bad it is the second one, so that plain TCP and MPTCP's first subflow
//! run over a good one; `plain_bad` is plain TCP on the bad one.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use super::compare::{CaseTrouble, Comparison, Elephant, Load};
use super::loads::{self, TcpStack};
use super::plain_tunnel::{PlainTunnel, PlainTunnelKind};
use super::redis::Redis;
use super::replay::Replays;
use super::runs::{CLIENTS, Carrier, WEB, carriers, guests, hosts};
use super::tunnel::{Setting, Tunnel};
use super::world::{LossPoint, TunnelShape, TunnelWorld};
use super::{BifrostPlan, Context};
use crate::link_emulator::{Impairment, LinkEmulator};
use crate::nginx::Nginx;

type Part = fn(&Context, &BifrostPlan, &mut Replays<'_>) -> Result<(Value, Value)>;

/// The parts by name.
pub(super) const PARTS: [(&str, Part); 6] = [
    ("delay", delay),
    ("place", by_loss_point),
    ("elephant", elephant),
    ("congestion", congestion),
    ("redis", redis),
    ("nothing", nothing),
];

/// The bad path.
const BAD: usize = 1;
/// What is done to paths.
const DELAYS: [&str; 4] = ["even", "slow", "jitter", "jitter_all"];
/// Where packets are lost.
const LOSS_POINTS: [(&str, LossPoint); 3] = [
    ("network", LossPoint::Network),
    ("card", LossPoint::Card),
    ("receiver", LossPoint::Receiver),
];
/// Rings and queues at the guest, beside the carrier's own elephant: the name, a line for
/// the engine, one for the tunnel.
const GUEST: [(&str, &str, &str); 5] = [
    ("roomy", "", ""),
    ("ring_16", "vnic_queue = 16", ""),
    ("ring_4", "vnic_queue = 4", ""),
    ("ring_1", "vnic_queue = 1", ""),
    ("device_queue", "", "queue = 4"),
];
const ELEPHANTS: [&str; 3] = ["alone", "foreign", "own"];
const CONGESTION: [&str; 2] = ["bbr", "cubic"];
const GET: &str = "get";
const BY_TUNNEL: &str = "by_tunnel";
/// After a change: what is learnt by probes once in 100 ms has been learnt.
const SETTLE: Duration = Duration::from_millis(500);

/// Every case of the parts.
pub(super) fn names() -> Vec<&'static str> {
    let places = LOSS_POINTS.iter().map(|(name, _)| *name);
    let guest = GUEST.iter().map(|(name, _, _)| *name);
    let others = DELAYS.into_iter().chain(places).chain(guest);
    others
        .chain(ELEPHANTS)
        .chain(CONGESTION)
        .chain([GET, BY_TUNNEL])
        .collect()
}

/// A world with servers and a tunnel in it.
struct Site {
    tunnel: Option<Tunnel>,
    carriers: Vec<Carrier>,
    world: TunnelWorld,
    _webs: [Nginx; 2],
}

impl Site {
    fn build(context: &Context, plan: &BifrostPlan, tag: &str, congestion: &str) -> Result<Self> {
        let shape = TunnelShape {
            paths: plan.paths,
            rate_mbit: Some(plan.mbit),
            offloads: false,
            mtu: 1500,
        };
        let world = TunnelWorld::build(context.sandbox, tag, shape, congestion)?;
        let webs = [
            Nginx::start(&world.hosts[1], "host", WEB, 1)?,
            Nginx::start(&world.guests[1], "guest", WEB, 1)?,
        ];
        let carriers = carriers(plan, &world);
        if let Some(mptcp) = carriers.iter().find(|carrier| carrier.name == "mptcp") {
            world.enable_mptcp()?;
            loads::serve_web(&mptcp.ends, mptcp.web, CLIENTS)?;
        }
        Ok(Self {
            tunnel: None,
            carriers,
            world,
            _webs: webs,
        })
    }

    /// Starts the tunnel, if there is to be one.
    fn connect(&mut self, context: &Context, plan: &BifrostPlan, setting: &Setting) -> Result<()> {
        self.tunnel = None;
        if plan.carries("causeway") {
            self.tunnel = Some(Tunnel::start(&self.world, &context.binary, setting)?);
        }
        Ok(())
    }

    /// Those that the parts without MPTCP compare.
    fn without_mptcp(&self) -> Vec<Carrier> {
        let all = self.carriers.iter().filter(|one| one.name != "mptcp");
        all.cloned().collect()
    }

    /// All, and plain TCP on the bad path.
    fn with_bad_path(&self) -> Vec<Carrier> {
        let mut all = self.carriers.clone();
        if all.iter().any(|one| one.name == "plain") {
            all.insert(
                1,
                Carrier {
                    name: "plain_bad",
                    ends: hosts(&self.world, BAD, TcpStack::Tcp),
                    web: WEB,
                },
            );
        }
        all
    }
}

/// Losses that these parts play: a tenth of a percent says little in runs this short.
fn losses(plan: &BifrostPlan) -> impl Iterator<Item = f64> + '_ {
    let all = plan.losses.iter().copied();
    all.filter(|loss| *loss == 0.0 || *loss >= 1.0)
}

/// One path with ten times the RTT or with jitter, and jitter on all.
fn delay(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
) -> Result<(Value, Value)> {
    let mut site = Site::build(context, plan, "delay", &plan.congestion)?;
    let even = Impairment {
        round_trip_us: plan.rtt_us,
        ..Impairment::default()
    };
    let lines = (0..plan.paths)
        .map(|path| site.world.lengthen(path, even, context.seed ^ path as u64))
        .collect::<Result<Vec<LinkEmulator>>>()?;
    site.connect(context, plan, &plan.setting)?;
    let carriers = site.with_bad_path();
    let mut comparison = Comparison::new(context, plan, replays);
    for case in DELAYS.into_iter().filter(|case| plan.has(case)) {
        for (path, line) in lines.iter().enumerate() {
            line.set(delayed(case, path, even));
        }
        std::thread::sleep(SETTLE);
        for loss in losses(plan) {
            let _injected = site
                .world
                .lose(loss / 100.0, LossPoint::Network, context.seed)?;
            for load in [Load::Short, Load::Rr] {
                comparison.run(&CaseTrouble::new(case, loss), load, &carriers)?;
            }
        }
    }
    Ok(comparison.finish())
}

fn delayed(case: &str, path: usize, even: Impairment) -> Impairment {
    match case {
        "slow" if path == BAD => Impairment {
            round_trip_us: 10 * even.round_trip_us,
            ..even
        },
        "jitter" if path == BAD => Impairment {
            jitter_us: 5 * even.round_trip_us,
            ..even
        },
        "jitter_all" => Impairment {
            jitter_us: even.round_trip_us,
            overtake: true,
            ..even
        },
        _ => even,
    }
}

/// Losses in the network, in front of the sending card, behind the receiving one, and in
/// front of a guest beside an elephant.
fn by_loss_point(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
) -> Result<(Value, Value)> {
    let mut site = Site::build(context, plan, "place", &plan.congestion)?;
    site.connect(context, plan, &plan.setting)?;
    let mut comparison = Comparison::new(context, plan, replays);
    for (case, place) in LOSS_POINTS.into_iter().filter(|(case, _)| plan.has(case)) {
        for loss in losses(plan).filter(|loss| *loss > 0.0) {
            let _injected = site.world.lose(loss / 100.0, place, context.seed)?;
            for load in [Load::Short, Load::Rr] {
                comparison.run(&CaseTrouble::new(case, loss), load, &site.carriers)?;
            }
        }
    }
    let tunnel = site.carriers.iter().filter(|one| one.name == "causeway");
    let tunnel: Vec<Carrier> = tunnel.cloned().collect();
    for (case, engine, line) in GUEST.into_iter().filter(|(case, _, _)| plan.has(case)) {
        let mut setting = plan.setting.clone();
        setting.engine.push(engine.to_owned());
        setting.lines.push(line.to_owned());
        site.connect(context, plan, &setting)?;
        let Some(ends) = &site.tunnel else { break };
        let trouble = CaseTrouble {
            elephant: Elephant::Own,
            ..CaseTrouble::new(case, 0.0)
        };
        for load in [Load::Short, Load::Rr] {
            let counts = || {
                Ok([
                    ("vnic_full", ends.total(|of| of.vnic_full)?),
                    ("chunks_resent", ends.total(|of| of.chunks_retransmitted)?),
                    ("device_drops", drops(&site.world)?),
                ])
            };
            let columns = comparison.count(&trouble, load, &tunnel, &counts)?;
            context.say(format!("{case}: {columns}"));
        }
    }
    Ok(comparison.finish())
}

/// What the guests' devices dropped on its way into the tunnel.
fn drops(world: &TunnelWorld) -> Result<u64> {
    let guests = world.guests.iter();
    guests.map(TunnelWorld::device_drops).sum()
}

/// Bulk beside requests: TCP's on one path, towards the clients as the answers are, or the
/// carrier's own.
fn elephant(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
) -> Result<(Value, Value)> {
    let mut site = Site::build(context, plan, "elephant", &plan.congestion)?;
    site.connect(context, plan, &plan.setting)?;
    let carriers = site.with_bad_path();
    let mut comparison = Comparison::new(context, plan, replays);
    for case in ELEPHANTS.into_iter().filter(|case| plan.has(case)) {
        let elephant = match case {
            "own" => Elephant::Own,
            "foreign" => {
                let mut ends = hosts(&site.world, BAD, TcpStack::Tcp);
                std::mem::swap(&mut ends.client, &mut ends.server);
                ends.address = format!("10.9.{BAD}.1");
                Elephant::Foreign(ends)
            }
            _ => Elephant::None,
        };
        let trouble = CaseTrouble {
            elephant,
            ..CaseTrouble::new(case, 0.0)
        };
        for load in [Load::Short, Load::Rr] {
            comparison.run(&trouble, load, &carriers)?;
        }
    }
    Ok(comparison.finish())
}

/// Plain TCP, and TCP in the tunnel, by congestion control.
fn congestion(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
) -> Result<(Value, Value)> {
    let mut comparison = Comparison::new(context, plan, replays);
    for case in CONGESTION.into_iter().filter(|case| plan.has(case)) {
        // A listener hands its algorithm on to what it accepts: servers restart.
        let mut site = Site::build(context, plan, case, case)?;
        site.connect(context, plan, &plan.setting)?;
        let carriers = site.without_mptcp();
        for carrier in &carriers {
            let found = loads::congestion_control(&carrier.ends, carrier.web)?;
            ensure!(found == case, "{} has {found}, not {case}", carrier.name);
        }
        for loss in losses(plan) {
            let _injected = site
                .world
                .lose(loss / 100.0, LossPoint::Network, context.seed)?;
            for load in [Load::Short, Load::Rr, Load::Bulk] {
                comparison.run(&CaseTrouble::new(case, loss), load, &carriers)?;
            }
        }
    }
    Ok(comparison.finish())
}

/// GETs from Redis. Debian's does not speak MPTCP.
fn redis(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
) -> Result<(Value, Value)> {
    let mut comparison = Comparison::new(context, plan, replays);
    if plan.has(GET) {
        let mut site = Site::build(context, plan, "redis", &plan.congestion)?;
        let _servers = [
            Redis::start(&site.world.hosts[1])?,
            Redis::start(&site.world.guests[1])?,
        ];
        site.connect(context, plan, &plan.setting)?;
        let carriers = site.without_mptcp();
        for loss in losses(plan) {
            let _injected = site
                .world
                .lose(loss / 100.0, LossPoint::Network, context.seed)?;
            comparison.run(&CaseTrouble::new(GET, loss), Load::Redis, &carriers)?;
        }
    }
    Ok(comparison.finish())
}

/// Plain TCP, a tunnel that does nothing, ours over one path, and over all. The tunnels take
/// turns at the guests' device.
fn nothing(
    context: &Context,
    plan: &BifrostPlan,
    replays: &mut Replays<'_>,
) -> Result<(Value, Value)> {
    let mut comparison = Comparison::new(context, plan, replays);
    if !plan.has(BY_TUNNEL) {
        return Ok(comparison.finish());
    }
    let mut site = Site::build(context, plan, "nothing", &plan.congestion)?;
    let plain = site.carriers.iter().find(|one| one.name == "plain");
    let plain: Vec<Carrier> = plain.cloned().into_iter().collect();
    let through = |name| Carrier {
        name,
        ends: guests(&site.world),
        web: WEB,
    };
    let tunnels = [
        through("do_nothing"),
        through("causeway_one_path"),
        through("causeway"),
    ];
    for loss in losses(plan) {
        let trouble = CaseTrouble::new(BY_TUNNEL, loss);
        let _injected = site
            .world
            .lose(loss / 100.0, LossPoint::Network, context.seed)?;
        let all = |comparison: &mut Comparison<'_, '_>, carrier: &[Carrier]| {
            [Load::Short, Load::Rr, Load::Bulk]
                .into_iter()
                .try_for_each(|load| comparison.run(&trouble, load, carrier))
        };
        all(&mut comparison, &plain)?;
        for tunnel in &tunnels {
            // One device, one tunnel: the one before goes first.
            site.tunnel = None;
            let _plain;
            match tunnel.name {
                "do_nothing" => {
                    _plain = PlainTunnel::start(&site.world, PlainTunnelKind::SuperPacket)?
                }
                "causeway_one_path" => {
                    let mut setting = plan.setting.clone();
                    setting.paths.truncate(1);
                    site.connect(context, plan, &setting)?;
                }
                _ => site.connect(context, plan, &plan.setting)?,
            }
            if tunnel.name == "do_nothing" || site.tunnel.is_some() {
                all(&mut comparison, std::slice::from_ref(tunnel))?;
            }
        }
    }
    Ok(comparison.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_gets_worse_or_all_do() {
        let even = Impairment {
            round_trip_us: 500,
            ..Impairment::default()
        };
        let at = |case| [0, BAD].map(|path| delayed(case, path, even));
        assert_eq!(at("even"), [even; 2]);
        assert_eq!(at("slow")[0], even);
        assert_eq!(at("slow")[1].round_trip_us, 5000);
        assert_eq!(at("jitter")[0], even);
        assert_eq!(at("jitter")[1].jitter_us, 2500);
        assert!(at("jitter_all").iter().all(|one| one.overtake));
        let names = names();
        for case in DELAYS {
            assert!(names.contains(&case));
        }
    }
}
