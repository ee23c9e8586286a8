// SPDX-License-Identifier: Apache-2.0
//! What `causeway real` does only with `--yes`: what breaks connections, or leaves a VIP without a
//! server. The API and `causeway ipvs` do as they are told.

use std::net::IpAddr;

use anyhow::{Context as _, bail};
use causeway_api::balancer::{RealState, RealView, VipReal, VipView};
use causeway_service::config::plural;

use crate::client::{Target, server_path, vip_path};

const UNCHANGED: &str = "nothing was changed";

/// Refuses to remove a real that has connections, or that is the last to take new ones.
pub(crate) fn removal(target: &Target, vip: &str, real: &str) -> anyhow::Result<()> {
    let view: VipView = target.get(&vip_path(vip)).context(UNCHANGED)?;
    refuse(broken(&view, real).or_else(|| last(&view, real)))
}

/// Refuses to have a real of a VIP, or of all VIPs that have the server, take no new connections, where
/// nothing else would.
pub(crate) fn drain(target: &Target, vip: Option<&str>, real: &str) -> anyhow::Result<()> {
    let vips = match vip {
        Some(vip) => vec![vip.to_owned()],
        None => {
            let reals: Vec<VipReal> = target.get(&server_path(real)).context(UNCHANGED)?;
            reals.into_iter().map(|of| of.vip).collect()
        }
    };
    for vip in vips {
        let view: VipView = target.get(&vip_path(&vip)).context(UNCHANGED)?;
        refuse(last(&view, real))?;
    }
    Ok(())
}

fn refuse(why: Option<String>) -> anyhow::Result<()> {
    match why {
        Some(why) => bail!("{UNCHANGED}: {why}; say --yes if that is meant"),
        None => Ok(()),
    }
}

/// What breaks if a real goes at once.
fn broken(vip: &VipView, real: &str) -> Option<String> {
    let open = vip
        .reals
        .iter()
        .find(|of| is_at(of, real))?
        .connections_active;
    let (name, has) = (&vip.name, plural(open as usize, "open connection"));
    (open > 0).then(|| {
        format!(
            "{real} has {has}, which would break: drain it first (`causeway real drain {name} {real} --wait`)"
        )
    })
}

/// What comes of it if a real takes no new connections, and is the last that does.
fn last(vip: &VipView, real: &str) -> Option<String> {
    let exclusive = vip.sources.iter().filter(|source| source.exclusive);
    let reserved: Vec<&String> = exclusive.flat_map(|source| &source.reals).collect();
    let takes = |of: &&RealView| {
        use RealState::{Active, Standby, Waiting};
        of.is(&[Active, Standby, Waiting]) && of.weight > 0 && !reserved.contains(&&of.address)
    };
    let mut taking = vip.reals.iter().filter(takes);
    let is_last = taking.next().is_some_and(|of| is_at(of, real)) && taking.next().is_none();
    let is_down = |of: &RealView| of.is(&[RealState::Down]) && of.weight > 0;
    is_last.then(|| {
        let others = match vip.reals.iter().any(is_down) {
            true => "new ones would go to reals that are down",
            false => "new ones would be dropped",
        };
        format!(
            "{real} is the last real of {} that takes connections, and {others}",
            vip.name
        )
    })
}

fn is_at(of: &RealView, real: &str) -> bool {
    let address = real.parse::<IpAddr>();
    of.address == real || (address.is_ok() && of.address.parse() == address)
}

#[cfg(test)]
mod tests {
    use causeway_api::balancer::Stats;

    use super::*;

    /// A VIP whose reals have these states, no connection and weight 1.
    fn vip(states: &[&str]) -> VipView {
        let mut stats: Stats = serde_json::from_str(crate::stats_cmd::ANSWER).expect("an answer");
        let mut vip = stats.vips.remove(0);
        vip.reals.truncate(states.len());
        for (real, state) in vip.reals.iter_mut().zip(states) {
            (real.state, real.weight) = ((*state).to_owned(), 1);
            real.connections_active = 0;
        }
        vip
    }

    #[test]
    fn the_last_real_that_takes_connections_is_asked_about() {
        let why = |states: &[&str]| last(&vip(states), "10.0.0.1");
        for well in [
            &["active", "active"][..],
            &["active", "standby"],
            &["active", "waiting"],
            &["drain", "active"],
            &["drain", "drain"],
            &["down", "active"],
        ] {
            assert_eq!(why(well), None, "{well:?}");
        }
        let alone = "10.0.0.1 is the last real of web that takes connections, and new ones would ";
        assert_eq!(
            why(&["active", "drain"]),
            Some(format!("{alone}be dropped"))
        );
        assert_eq!(
            why(&["active", "down"]),
            Some(format!("{alone}go to reals that are down"))
        );
        let mut weightless = vip(&["active", "active"]);
        weightless.reals[1].weight = 0;
        assert!(last(&weightless, "10.0.0.1").is_some());
        let mut reserved = vip(&["active", "active"]);
        reserved.sources = vec![
            serde_json::from_value(serde_json::json!({
                "from": ["10.9.0.0/16"], "reals": ["10.0.0.2"], "fallback": "pool",
                "exclusive": true, "picked": 0,
            }))
            .expect("a source"),
        ];
        assert!(last(&reserved, "10.0.0.1").is_some());
    }

    #[test]
    fn open_connections_are_not_broken_without_a_question() {
        let mut vip = vip(&["active", "active"]);
        assert_eq!(broken(&vip, "10.0.0.1"), None);
        vip.reals[0].connections_active = 1;
        assert_eq!(
            broken(&vip, "10.0.0.1").as_deref(),
            Some(
                "10.0.0.1 has 1 open connection, which would break: drain it first (`causeway real drain web 10.0.0.1 --wait`)"
            )
        );
        assert_eq!(broken(&vip, "10.0.0.2"), None);
    }
}
