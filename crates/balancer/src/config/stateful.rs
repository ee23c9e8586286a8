// SPDX-License-Identifier: Apache-2.0
//! Validation of `[stateful]`, and of what it asks of the VIPs that use it.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use causeway_service::config::{
    Faults, count_within, number, text, time_within, token_source_v4, token_source_v6,
};

use super::raw::RawStateful;
use super::{ForwardingMode, VipConfig};

/// Connection slots: more would take 3 GB and more.
const CONNECTIONS: [&str; 2] = ["1", "16Mi"];
/// Agents report every second, so a balancer knows what is open after two; traffic must come to it
/// well before the end, so that reports of what its predecessor opens until then still count.
const LEARN_PERIOD: Duration = Duration::from_secs(10);
/// Second-tier balancers: each takes a part of the 32,768 slots of a partition.
const BALANCERS_MAX: u32 = 16;

/// Slots for connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stateful {
    /// How many; 0 without stateful VIPs.
    pub connections: u32,
    /// Source of IP-in-IP headers whose last 16 bits are a connection's token.
    pub token_source_v4: Option<Ipv4Addr>,
    /// The same over IPv6.
    pub token_source_v6: Option<Ipv6Addr>,
    /// How many second-tier balancers there are, a power of two.
    pub balancers: u32,
    /// Which of them this is, from 0.
    pub number: u32,
    /// How long an open connection may be silent.
    pub idle: Duration,
    /// How long a balancer that begins empty asks agents for open connections, and gives
    /// out no slots meanwhile.
    pub learn_period: Duration,
}

pub(super) fn stateful(raw: &RawStateful, faults: &mut Faults<'_>) -> Stateful {
    let fits = |count: &u32| count.is_power_of_two() && *count <= BALANCERS_MAX;
    let balancers = number(raw.balancers.as_ref(), fits, faults, |_| {
        format!("balancers must be 1, 2, 4, 8 or {BALANCERS_MAX}")
    });
    let balancers = balancers.unwrap_or(1);
    let fits = |number: &u32| *number < balancers;
    let number = number(raw.number.as_ref(), fits, faults, |_| {
        let last = balancers - 1;
        format!("number must lie between 0 and {last}, one below balancers")
    });
    let idle = time_within(raw.idle.as_ref(), "idle", ["60s", "168h"], faults);
    let learn_period = raw.learn_period.as_ref();
    let learn_period = time_within(learn_period, "learn_period", ["0s", "10m"], faults);
    let connections = raw.connections.as_ref();
    let connections = count_within(connections, "connections", CONNECTIONS, faults);
    Stateful {
        learn_period: learn_period.unwrap_or(LEARN_PERIOD),
        connections: connections.map_or(0, |count| count as u32),
        token_source_v4: text(raw.token_source.as_ref(), faults, token_source_v4),
        token_source_v6: text(raw.token_source6.as_ref(), faults, token_source_v6),
        balancers,
        number: number.unwrap_or(0),
        idle: idle.unwrap_or(Duration::from_secs(3600)),
    }
}

/// What keeps a VIP from being stateful; `None` for nothing.
pub(super) fn obstacle(vip: &VipConfig, stateful: &Stateful) -> Option<String> {
    let reals = |v4: bool| vip.reals.iter().any(|real| real.address.is_ipv4() == v4);
    let mute = |v4: bool, source: bool| reals(v4) && !source;
    if vip.protocol != super::Protocol::Tcp {
        return Some(
            "stateful is for tcp: connection slots are named in its timestamps".to_owned(),
        );
    }
    if vip.is_first_tier() {
        return Some(
            "a first tier (cookie = \"tier\") keeps nothing of connections; stateful is for the second".to_owned(),
        );
    }
    if stateful.connections == 0 {
        return Some(
            "stateful needs connection slots: set connections under [stateful], for example \"1Mi\""
                .to_owned(),
        );
    }
    match vip.forwarding {
        ForwardingMode::L2 => Some("stateful needs a tunnel, which informs the server; use forwarding = \"gue\"".to_owned()),
        ForwardingMode::Ipip if mute(true, stateful.token_source_v4.is_some()) => Some(
            "stateful over ipip needs token_source under [stateful], for example \"10.8.0.0/16\"; or use forwarding = \"gue\"".to_owned(),
        ),
        ForwardingMode::Ipip if mute(false, stateful.token_source_v6.is_some()) => Some(
            "stateful over ipip needs token_source6 under [stateful], for example \"fd00:8::/112\"; or use forwarding = \"gue\"".to_owned(),
        ),
        ForwardingMode::Ipip | ForwardingMode::Gue => None,
    }
}
