// SPDX-License-Identifier: Apache-2.0
//! Validation of `[[vip]]` and `[[vip.real]]`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use causeway_core::control::{Law, SAMPLING_MAX};
use causeway_core::cookie::{CookieLayout, CookieMode};
use causeway_service::config::{
    Faults, Spanned, Words, cookie_id, endpoint, host_address, number, one_of, text, time_within,
    vip_address, vip_port,
};

use super::cookie::{self, Beside};
use super::raw::{RawReal, RawVip};
use super::validate::mac;
use super::{
    Affinity, Control, ForwardingMode, Fragments, LoadSource, Protocol, RealConfig, RealRole,
    Scheduler, SharedVip, VipConfig, WEIGHT_MAX, clients_of, discover, health, quic, reports,
};

/// What a cache or a pool of connections takes to fill, in round numbers.
const SLOW_START: Duration = Duration::from_secs(30);
/// Longest name of a VIP.
const NAME_MAX: usize = 200;

/// What the VIPs of a file may not have in common, with the lines of those that had it first.
#[derive(Default)]
pub(super) struct Together {
    seen: HashMap<(IpAddr, u16, Protocol), usize>,
    names: HashMap<String, usize>,
    takers: HashMap<(IpAddr, Protocol), usize>,
    groups: usize,
}

impl Together {
    /// Holds a VIP that stands there against those before it.
    pub(super) fn add(&mut self, vip: &VipConfig, place: Range<usize>, faults: &mut Faults<'_>) {
        let line = faults.line(&place);
        let key = (vip.address, vip.port, vip.protocol);
        if let Some(first) = self.seen.insert(key, line) {
            faults.at(
                place.clone(),
                format!(
                    "vip {} {} is given twice, first on line {first}; merge the two",
                    endpoint(vip.address, vip.port),
                    vip.protocol
                ),
            );
        }
        if vip.fragments == Fragments::Forward
            && let Some(first) = self.takers.insert((vip.address, vip.protocol), line)
        {
            faults.at(
                place.clone(),
                format!(
                    "two vips of {} take {} fragments, the first on line {first}; fragments have no port, so that one vip of an address and protocol may have fragments = \"forward\"",
                    vip.address, vip.protocol
                ),
            );
        }
        if let Some(first) = self.names.insert(vip.name.clone(), line) {
            faults.at(
                place.clone(),
                format!(
                    "the name `{}` is used twice, first on line {first}; names must be unique",
                    vip.name
                ),
            );
        }
        self.groups += vip.sources.len();
        if self.groups > clients_of::SOURCES_MAX {
            faults.at(
                place,
                format!(
                    "there are more than {} sources in all; put prefixes with the same reals together",
                    clients_of::SOURCES_MAX
                ),
            );
        }
    }
}

pub(super) fn vips(
    raw: &[Spanned<RawVip>],
    measured: bool,
    beside: Beside,
    faults: &mut Faults<'_>,
) -> Vec<SharedVip> {
    let mut together = Together::default();
    let mut vips = Vec::with_capacity(raw.len());
    for spanned in raw {
        if let Some(vip) = vip(spanned, measured, beside, faults) {
            together.add(&vip, spanned.span(), faults);
            vips.push(vip.into());
        }
    }
    vips
}

pub(super) fn vip(
    spanned: &Spanned<RawVip>,
    measured: bool,
    beside: Beside,
    faults: &mut Faults<'_>,
) -> Option<VipConfig> {
    let raw = spanned.as_ref();
    if raw.address.is_none() {
        faults.at(
            spanned.span(),
            "the vip has no `address`; add for example address = \"192.0.2.1\"",
        );
    }
    let address = text(raw.address.as_ref(), faults, vip_address);
    let port = port(raw, spanned.span(), faults);
    let protocol = text(raw.protocol.as_ref(), faults, |word| {
        one_of("protocol", &Protocol::WORDS, word)
    })
    .unwrap_or(Protocol::Tcp);
    let scheduler =
        text(raw.scheduler.as_ref(), faults, Scheduler::of_file).unwrap_or(Scheduler::Maglev);
    let forwarding = text(raw.forwarding.as_ref(), faults, ForwardingMode::from_word)
        .unwrap_or(ForwardingMode::Ipip);
    let fragments =
        text(raw.fragments.as_ref(), faults, Fragments::from_word).unwrap_or(Fragments::Drop);
    if fragments == Fragments::Forward {
        by_client("fragments", raw.fragments.as_ref(), scheduler, faults);
    }
    let affinity =
        text(raw.affinity.as_ref(), faults, Affinity::from_word).unwrap_or(Affinity::None);
    if affinity == Affinity::Client {
        by_client("affinity", raw.affinity.as_ref(), scheduler, faults);
    }
    let load = load_source(raw, scheduler, faults);
    let cookie = cookie::of_vip(raw, protocol, beside, faults);
    let first_tier = cookie.is_some_and(|cookie| cookie.mode() == CookieMode::Tier);
    let flow_table = flow_table(raw, scheduler, first_tier, faults);
    let control = vip_control(raw, scheduler, measured, spanned.span(), faults);
    let latency = reports::of_vip(raw, protocol, control, faults);
    if control.law().is_some() && !flow_table && cookie.is_none() {
        faults.at(
            spanned.span(),
            format!("control = \"{control}\" moves weights, and with flow_table = false and no cookies connections would move with them; keep the flow table, or give the vip cookies"),
        );
    }
    let quic = quic::of_vip(raw, protocol, faults);
    let second_chance = second_chance(raw, protocol, forwarding, first_tier, faults);
    // Without them there is no VIP; what else is wrong with it is told all the same.
    let called = match (address, port) {
        (Some(address), Some(port)) => Some(endpoint(address, port)),
        _ => None,
    };
    let health = raw.health.as_ref();
    let health =
        health.and_then(|raw| health::health(raw, protocol, port, (measured, beside), faults));
    let reals = reals(raw, address, forwarding, (cookie.as_ref(), beside), faults);
    let discover = raw.discover.as_ref();
    let discover = discover.and_then(|raw| discover::discover(raw, address, beside, faults));
    let most = discover.as_ref().map_or(0, |discover| discover.max_reals);
    let min_healthy = min_healthy(raw, &reals, most, faults);
    let slow_start = slow_start(raw, scheduler, faults);
    quic::check_ids(raw, &reals, &quic, faults);
    let limit = clients_of::limit(raw.limit.as_ref(), faults);
    let sources = clients_of::sources(raw, address, scheduler, &reals, faults);
    if let Some(lack) = lack(raw, &reals, beside) {
        let vip = called.as_ref().map(|called| format!("vip {called}"));
        let vip = vip.as_deref().unwrap_or("the vip");
        faults.at(spanned.span(), format!("{vip} {lack}"));
    }
    let default = called.map(|called| format!("{called}/{protocol}"));
    let name = text(raw.name.as_ref(), faults, |name| {
        vip_name(name, default.as_deref())
    });
    let sampling = sampling(raw, measured, faults);
    Some(VipConfig {
        name: name.or(default)?,
        address: address?,
        port: port?,
        protocol,
        scheduler,
        load,
        flow_table,
        forwarding,
        fragments,
        affinity,
        stateful: raw.stateful.as_ref().is_some_and(|on| *on.as_ref()),
        second_chance,
        control,
        latency,
        sampling,
        cookie,
        health,
        min_healthy,
        slow_start,
        limit,
        sources,
        quic,
        discover,
        reals,
    })
}

/// What keeps a VIP from having a real that serves.
fn lack(raw: &RawVip, reals: &[RealConfig], beside: Beside) -> Option<&'static str> {
    if raw.real.is_empty() {
        let may_be_empty = raw.discover.is_some() || beside.may_be_empty;
        return (!may_be_empty).then_some("has no reals; add a [[vip.real]] with an address");
    }
    let all_wait = reals.iter().all(|real| real.role != RealRole::Primary);
    (all_wait && !reals.is_empty()).then_some(
        "has none but backup and sorry servers, which wait for others to fail; give one of them role = \"primary\"",
    )
}

/// What goes by the client's address wants a scheduler that does.
fn by_client(
    key: &str,
    written: Option<&Spanned<String>>,
    scheduler: Scheduler,
    faults: &mut Faults<'_>,
) {
    if let (Some(place), false) = (
        written,
        scheduler.is_hash() || scheduler == Scheduler::Latency,
    ) {
        let word = place.as_ref();
        faults.at(
            place.span(),
            format!("{key} = \"{word}\" goes by the client's address, which scheduler = \"{scheduler}\" does not; use maglev, hash or latency"),
        );
    }
}

/// Servers can be sent a slot's former owner, and can say which connections they know.
fn second_chance(
    raw: &RawVip,
    protocol: Protocol,
    forwarding: ForwardingMode,
    first_tier: bool,
    faults: &mut Faults<'_>,
) -> bool {
    let Some(place) = raw.second_chance.as_ref().filter(|wanted| *wanted.as_ref()) else {
        return false;
    };
    let obstacle = if protocol != Protocol::Tcp {
        "second_chance is for tcp: of a datagram a server cannot tell whether it knows the flow; remove it"
    } else if forwarding == ForwardingMode::L2 {
        "second_chance needs a tunnel, which informs the server; use forwarding = \"ipip\" or \"gue\""
    } else if first_tier {
        "the reals of a first tier (cookie = \"tier\") are balancers, which know no connections by sockets; set second_chance at the second tier"
    } else if !raw.source.is_empty() {
        "second_chance knows the former owners of the VIP's own ring, not of those of `source`; remove one of the two"
    } else {
        return true;
    };
    faults.at(place.span(), obstacle);
    false
}

fn port(raw: &RawVip, vip: Range<usize>, faults: &mut Faults<'_>) -> Option<u16> {
    let Some(port) = &raw.port else {
        faults.at(
            vip,
            "the vip has no `port`; add for example port = 80, or port = 0 for every port",
        );
        return None;
    };
    vip_port(port, faults)
}

/// A sorry server serves where none is healthy: its VIP is to be there then.
fn min_healthy(raw: &RawVip, reals: &[RealConfig], found: usize, faults: &mut Faults<'_>) -> usize {
    let probed = reals
        .iter()
        .filter(|real| real.role != RealRole::Sorry)
        .count();
    let default = usize::from(probed == reals.len());
    let reals = probed + found;
    let fits = |need: &usize| *need <= reals.max(1);
    let need = number(raw.min_healthy.as_ref(), fits, faults, |need| {
        format!("min_healthy {need} is out of range; use 0 to {reals}, the number of reals")
    });
    need.unwrap_or(default)
}

fn slow_start(raw: &RawVip, scheduler: Scheduler, faults: &mut Faults<'_>) -> Duration {
    let time = time_within(raw.slow_start.as_ref(), "slow_start", ["0s", "1h"], faults);
    if let Some(place) = raw.slow_start.as_ref().filter(|_| !scheduler.has_weights()) {
        faults.at(
            place.span(),
            format!("`slow_start` has no meaning with scheduler = \"{scheduler}\", to which all weights are alike; remove it, or use maglev or weighted-round-robin"),
        );
    }
    time.unwrap_or(SLOW_START)
}

/// `auto`, or 1 in a power of two.
fn sampling(raw: &RawVip, measured: bool, faults: &mut Faults<'_>) -> Option<u8> {
    let most = 1_u32 << SAMPLING_MAX;
    let sampling = text(raw.sampling.as_ref(), faults, |word| {
        let one_in = word.strip_prefix("1/").and_then(|n| n.parse::<u32>().ok());
        match one_in.filter(|n| n.is_power_of_two() && *n <= most) {
            Some(one_in) => Ok(Some(one_in.trailing_zeros() as u8)),
            None if word == "auto" => Ok(None),
            None => Err(format!(
                "sampling `{word}` is none; use \"auto\", or \"1/N\" with a power of two up to {most}, as in \"1/8\""
            )),
        }
    });
    if let (Some(place), false) = (&raw.sampling, measured) {
        faults.at(place.span(), "`sampling` needs measurement, and enabled = false stands under [measure]; remove one of them");
    }
    sampling.flatten()
}

fn load_source(raw: &RawVip, scheduler: Scheduler, faults: &mut Faults<'_>) -> LoadSource {
    let load = text(raw.load.as_ref(), faults, LoadSource::from_word);
    if let Some(place) = raw.load.as_ref().filter(|_| !scheduler.follows_load()) {
        faults.at(
            place.span(),
            format!("`load` has no meaning with scheduler = \"{scheduler}\"; remove it, or use p2c, least-loaded or awrr"),
        );
    }
    load.unwrap_or(LoadSource::Connections)
}

/// A first tier needs none: what timestamps do not decide goes by hash.
fn flow_table(
    raw: &RawVip,
    scheduler: Scheduler,
    first_tier: bool,
    faults: &mut Faults<'_>,
) -> bool {
    let Some(place) = &raw.flow_table else {
        return !first_tier || !scheduler.is_hash();
    };
    if !place.as_ref() && !scheduler.is_hash() {
        faults.at(
            place.span(),
            format!("flow_table = false needs a scheduler that finds the same real for each packet of a connection; {scheduler} does not, use maglev or hash"),
        );
    }
    *place.as_ref()
}

fn vip_control(
    raw: &RawVip,
    scheduler: Scheduler,
    measured: bool,
    vip: Range<usize>,
    faults: &mut Faults<'_>,
) -> Control {
    let place = raw
        .control
        .as_ref()
        .or(raw.scheduler.as_ref())
        .map_or(vip, Spanned::span);
    let default = match scheduler {
        Scheduler::Latency => Control::by(Law::default()),
        _ => Control::Off,
    };
    let control = text(raw.control.as_ref(), faults, Control::from_word).unwrap_or(default);
    if scheduler == Scheduler::Latency && control == Control::Off {
        faults.at(place, "scheduler = \"latency\" needs control = \"equalise\", \"watermark\", \"watermark-paper\" or \"observe\"; for fixed weights use scheduler = \"maglev\"");
    } else if control.law().is_some() && !scheduler.follows_weights() {
        faults.at(place, format!("control = \"{control}\" moves weights, which scheduler = \"{scheduler}\" does not take from it; use scheduler = \"latency\", \"maglev\" or \"weighted-round-robin\", or control = \"observe\""));
    } else if control != Control::Off && !measured {
        faults.at(
            place,
            "the controller needs measured latency; set enabled = true under [measure]",
        );
    }
    control
}

fn reals(
    raw: &RawVip,
    vip: Option<IpAddr>,
    forwarding: ForwardingMode,
    (cookie, beside): (Option<&CookieLayout>, Beside),
    faults: &mut Faults<'_>,
) -> Vec<RealConfig> {
    let mut seen: HashMap<IpAddr, usize> = HashMap::new();
    let mut reals = Vec::with_capacity(raw.real.len());
    for spanned in &raw.real {
        let Some(real) = real(spanned, vip, forwarding, cookie, faults) else {
            continue;
        };
        if beside.tunnel_ends.contains(real.address) {
            faults.at(
                spanned.span(),
                format!(
                    "real {} is this balancer itself, where `tunnel_ends` has tunnels end: its packets would come back; give the server's address",
                    real.address
                ),
            );
        }
        let line = faults.line(&spanned.span());
        if let Some(first) = seen.insert(real.address, line) {
            faults.at(
                spanned.span(),
                format!(
                    "real {} is given twice in one vip, first on line {first}; add up the weights in one entry",
                    real.address
                ),
            );
        }
        reals.push(real);
    }
    reals
}

fn real(
    spanned: &Spanned<RawReal>,
    vip: Option<IpAddr>,
    forwarding: ForwardingMode,
    cookie: Option<&CookieLayout>,
    faults: &mut Faults<'_>,
) -> Option<RealConfig> {
    let raw = spanned.as_ref();
    let Some(place) = &raw.address else {
        faults.at(
            spanned.span(),
            "the real has no `address`; add for example address = \"10.0.0.1\"",
        );
        return None;
    };
    let address = text(Some(place), faults, host_address)?;
    if Some(address) == vip {
        faults.at(
            place.span(),
            format!("real {address} is the vip's own address; give the server's"),
        );
    }
    let mac = text(raw.mac.as_ref(), faults, mac);
    if raw.mac.is_none() && forwarding == ForwardingMode::L2 {
        faults.at(
            spanned.span(),
            format!("real {address} has no `mac`, which forwarding = \"l2\" needs; add mac = \"02:00:00:00:00:01\", on a command line --mac 02:00:00:00:00:01"),
        );
    }
    if let (Some(place), true) = (&raw.mac, forwarding.encapsulates()) {
        faults.at(
            place.span(),
            format!("real {address} has a `mac`, which forwarding = \"{forwarding}\" does not use; remove it or use \"l2\""),
        );
    }
    let weight = weight(raw.weight.as_ref(), faults);
    Some(RealConfig {
        address,
        weight,
        mac,
        role: text(raw.role.as_ref(), faults, RealRole::from_word).unwrap_or(RealRole::Primary),
        drain: raw.drain.unwrap_or(false),
        id: cookie_id(raw.id.as_ref(), cookie, faults),
        maintenance: raw.maintenance.unwrap_or(false),
        found: false,
        gone: false,
    })
}

/// Tables, sentences, metrics and paths of the API have it.
fn vip_name(name: &str, default: Option<&str>) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._:-@/".contains(c);
    let fits = (1..=NAME_MAX).contains(&name.len()) && name.chars().all(is_plain);
    match fits || Some(name) == default {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "`{}` is not a valid name; use up to {NAME_MAX} of letters, digits and ._:-@/",
            name.escape_default()
        )),
    }
}

fn weight(value: Option<&Spanned<i64>>, faults: &mut Faults<'_>) -> u32 {
    let fits = |weight: &u32| *weight <= WEIGHT_MAX;
    let weight = number(value, fits, faults, |weight| {
        format!("weight {weight} is out of range; use 0 (no new connections) to {WEIGHT_MAX}")
    });
    weight.unwrap_or(1)
}
