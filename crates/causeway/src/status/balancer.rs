// SPDX-License-Identifier: Apache-2.0
//! How a balancer is.

use std::collections::BTreeMap;

use causeway_api::balancer::{NextHopView, RealState, RealView, Stats, Status, VipView};
use causeway_api::fleet::FleetView;
use causeway_core::health::{FIRST_PROBE_OUT, PROBE_UNSENT};
use causeway_service::config::plural;
use serde_json::json;

use super::{Condition, Daemon, Trouble, mode, refused, seconds, told};
use crate::client::Target;

/// Asks a balancer how it is.
pub(super) fn ask(target: &Target) -> anyhow::Result<Condition> {
    let status = target.get("/v1/status")?;
    // The active ones of a million reals are not what an operator should look at.
    let stats = target.get("/v1/stats?brief=true")?;
    let mut condition = condition(&status, &stats);
    match target.get_if_any::<FleetView>("/v1/fleet") {
        Ok(fleet) => condition.troubles.extend(fleet.iter().flat_map(of_fleet)),
        Err(error) => {
            let text = format!("how its fleet stands is not known: {error:#}");
            condition.troubles.push(Trouble::new("fleet_unknown", text));
        }
    }
    Ok(condition)
}

/// How a balancer is.
fn condition(status: &Status, stats: &Stats) -> Condition {
    let mut troubles = Vec::new();
    troubles.extend(told("data_plane", &status.data_plane_error));
    let held = status.held_vips.iter();
    troubles.extend(held.map(|held| {
        let vip = held.address.to_string();
        Trouble::of_vip("vip_held", &vip, held.text.clone())
    }));
    troubles.extend(told("state_not_kept", &status.state_error));
    troubles.extend(refused(
        &status.config_file,
        status.last_good,
        &status.last_reload_error,
        "causeway reload",
    ));
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
    let vips = stats.vips.iter();
    troubles.extend(vips.flat_map(|vip| of_vip(vip, &stats.next_hop)));

    let ready = stats.vips.iter().filter(|vip| vip.ready).count();
    let mut states: BTreeMap<&str, usize> = BTreeMap::new();
    for vip in &stats.vips {
        for real in vip
            .reals
            .iter()
            .filter(|real| !real.is(&[RealState::Active]))
        {
            *states.entry(&real.state).or_default() += 1;
        }
        if vip.reals_active > 0 {
            *states.entry(RealState::Active.word()).or_default() += vip.reals_active;
        }
    }
    let figures = json!({ "vips": stats.vips.len(), "vips_ready": ready, "reals": states });
    let states: Vec<String> = states
        .iter()
        .map(|(state, count)| match *state {
            state if RealState::of(state) == Some(RealState::Waiting) => {
                format!("{count} waiting for a first probe")
            }
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

fn of_vip(vip: &VipView, next_hops: &[NextHopView]) -> Vec<Trouble> {
    let mut troubles: Vec<Trouble> = not_ready(vip).into_iter().collect();
    troubles.extend(discovery(vip));
    troubles.extend(unsent(vip));
    let are_down = vip.reals.iter().filter(|real| real.is(&[RealState::Down]));
    troubles.extend(are_down.map(|real| down(&vip.name, real, next_hops)));
    troubles
}

/// That it serves too little, with the reals that have to do with it.
fn not_ready(vip: &VipView) -> Option<Trouble> {
    if vip.ready {
        return None;
    }
    let name = &vip.name;
    let reals = vip
        .reals
        .iter()
        .filter(|real| !real.is(&[RealState::Active]));
    let health = vip.reals.iter().filter_map(|real| real.health.as_ref());
    let unknown = health.filter(|health| health.state == "unknown");
    let (unprobed, probed): (Vec<_>, Vec<_>) =
        unknown.partition(|health| health.succeeded + health.failed == 0);
    let (waits, unprobed): (Vec<_>, Vec<_>) = unprobed
        .into_iter()
        .partition(|health| health.reason == FIRST_PROBE_OUT);
    let is_drained = |real: &&RealView| real.is(&[RealState::Drain, RealState::Maintenance]);
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
        plural(reals.count() + vip.reals_active, "real"),
        vip.min_healthy,
        of(drained, "drained"),
        of(weightless.count(), "of weight 0"),
        of(unprobed.len(), "not probed yet"),
        of(waits.len(), "whose first probe is not answered yet"),
        of(probed.len(), "with too few probes yet"),
    );
    Some(Trouble::of_vip("vip_not_ready", name, text))
}

fn discovery(vip: &VipView) -> Vec<Trouble> {
    let Some(discovery) = &vip.discovery else {
        return Vec::new();
    };
    let (name, origin) = (&vip.name, &discovery.origin);
    let error = discovery.error.iter().map(|error| {
        let text = format!("reals of {name} from {origin}: {error}");
        Trouble::of_vip("discovery", name, text)
    });
    let held = discovery.held.iter().map(|reals| {
        Trouble::of_vip("discovery_held", name, format!(
            "an answer of {origin} that removes {} of {name} waits for you: `causeway vip accept {name}` applies it",
            plural(*reals, "real")
        ))
    });
    error.chain(held).collect()
}

fn unsent(vip: &VipView) -> Option<Trouble> {
    let name = &vip.name;
    let last_probes = vip.reals.iter().filter_map(|real| real.health.as_ref());
    let mut unsent = last_probes.filter_map(|health| health.reason.strip_prefix(PROBE_UNSENT));
    let why = unsent.next()?;
    let text = format!(
        "this host could not send the last probe of {} of {name}, whose state stays as it is: {why}",
        plural(1 + unsent.count(), "real"),
    );
    Some(Trouble::of_vip("probe_unsent", name, text))
}

fn down(vip: &str, real: &RealView, next_hops: &[NextHopView]) -> Trouble {
    let mut text = format!("{} of {vip} is down", real.address);
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
    Trouble {
        real: Some(real.address.clone()),
        ..Trouble::of_vip("real_down", vip, text)
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::Moment;
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
        for vip in &mut stats.vips {
            let active = vip
                .reals
                .iter()
                .filter(|real| real.is(&[RealState::Active]));
            vip.reals_active = active.count();
        }
        stats
    }

    #[test]
    fn a_balancer_that_is_well_says_so() {
        let stats = stats(|stats| "drain".clone_into(&mut stats.vips[0].reals[0].state));
        let condition = condition(&status(), &stats);
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
        let condition = json!(condition(&status(), &stats));
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
            let condition = condition(status, stats);
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
        let troubles = condition(&status(), &stats).troubles;
        assert!(troubles[0].text.contains("; 1 of weight 0"), "{troubles:?}");
        let mut none = stats;
        none.vips.clear();
        let troubles = condition(&status(), &none).troubles;
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
            let troubles = condition(&status(), &stats).troubles;
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
        let troubles = condition(&status(), &stats).troubles;
        assert_eq!(troubles.len(), 1, "{troubles:?}");
        assert_eq!(troubles[0].kind, "probe_unsent");
        assert_eq!(
            troubles[0].text,
            "this host could not send the last probe of 1 real of web, whose state stays as it is: Cannot assign requested address"
        );
    }
}
