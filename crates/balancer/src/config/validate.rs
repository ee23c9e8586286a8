// SPDX-License-Identifier: Apache-2.0
//! From what the file says to what the daemon may rely on.

use std::collections::BTreeSet;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use causeway_dataplane::{Prefix, XdpMode};
use causeway_service::api::api;
use causeway_service::config::{
    Faults, Spanned, TimeValue, Words, address_or_network, count_within, directory, gue_port, http,
    interface, number_within, octets, one_of, prefix_length, secret, socket_group, text,
    time_within, vip_address,
};
use causeway_service::last_good::STATE_DIR;

use super::cookie::{self, Beside};
use super::raw::{RawConfig, RawEncap, RawFlowTable};
use super::words::LAWS;
use super::{
    BalancerConfig, Encap, FlowIdle, GueChecksum, HashKey, MacAddress, SharedVip, TunnelEnds,
    Unserved, VipConfig, announce, control, fleet, limits, peers, reports, stateful, vip,
};

/// The least MTU of IPv6 (RFC 8200, section 5).
const IPV6_MTU_MIN: u16 = 1280;
/// Port of the balancer's HTTP API.
const HTTP_PORT: u16 = 9470;
/// Flow tables: smaller ones evict at once, larger ones are 2 GB and more.
const FLOWS: [&str; 2] = ["1Ki", "16Mi"];
/// Silent flows: shorter times end flows whose packets are on their way.
const FLOW_IDLE: [&str; 2] = ["2s", "168h"];
/// History: every epoch of every real is kept in memory.
const HISTORY: [&str; 2] = ["1s", "6h"];

/// `beside`: what there is besides what it names.
pub(super) fn config(
    mut raw: RawConfig,
    beside: Beside,
    faults: &mut Faults<'_>,
) -> Option<BalancerConfig> {
    let vips = mem::take(&mut raw.vip);
    config_with(raw, beside, faults, |measured, beside, faults| {
        vip::vips(&vips, measured, beside, faults)
    })
}

/// The same with VIPs from elsewhere; `vips` gets whether latency is measured, and what is beside a VIP.
pub(super) fn config_with(
    raw: RawConfig,
    beside: Beside,
    faults: &mut Faults<'_>,
    vips: impl FnOnce(bool, Beside, &mut Faults<'_>) -> Vec<SharedVip>,
) -> Option<BalancerConfig> {
    let interface = interface(raw.interface.as_ref(), "clients'", faults);
    let law = text(raw.control.law.as_ref(), faults, |word| {
        one_of("law", &LAWS, word)
    })
    .unwrap_or_default();
    let http = http(raw.http.as_ref(), HTTP_PORT, faults);
    let api = api(raw.api.as_ref(), http, faults);
    let control = control::params(&raw.control, faults);
    let encap = encap(&raw.encap, faults);
    let history = raw.history.length.as_ref();
    let history = time_within(history, "history length", HISTORY, faults);
    let mut flows = |value, default| {
        let flows = count_within(value, "flow table size", FLOWS, faults);
        flows.map_or(default, |count| count as u32)
    };
    let flows_v4 = flows(raw.flow_table.ipv4.as_ref(), 1 << 20);
    let flows_v6 = flows(raw.flow_table.ipv6.as_ref(), 1 << 18);
    let measure = raw.measure.enabled.unwrap_or(true);
    let cookies = cookie::cookies(&raw.cookie, faults);
    let agent_reports = raw.agent_reports.as_ref();
    let agent_reports = agent_reports.map(|raw| reports::reports(raw, cookies.as_ref(), faults));
    let peers = raw.peers.as_ref();
    let peers = peers.and_then(|raw| peers::peers(raw, cookies.as_ref(), faults));
    let stateful = stateful::stateful(&raw.stateful, faults);
    let tunnel_ends = tunnel_ends(&raw.encap.tunnel_ends, faults);
    let beside = Beside {
        has_keys: beside.has_keys || cookies.is_some(),
        balancers: beside.balancers.max(stateful.balancers),
        tunnel_ends,
        ..beside
    };
    let vips = vips(measure, beside, faults);
    for vip in vips.iter().filter(|vip| vip.stateful) {
        if let Some(message) = stateful::obstacle(vip, &stateful) {
            faults.file(format!("vip {}: {message}", vip.name));
        }
    }
    let limits = limits::limits(&raw.limits, faults);
    limits::check(&vips, &limits, faults);
    if let (Some(place), Some(mtu)) = (&raw.encap.mtu, encap.mtu) {
        check_mtu_for_ipv6(mtu, place, &vips, faults);
    }
    Some(BalancerConfig {
        interface: interface?,
        pin_dir: directory(raw.pin_dir.as_ref(), "/sys/fs/bpf/causeway", faults),
        state_dir: directory(raw.state_dir.as_ref(), STATE_DIR, faults),
        socket: directory(raw.socket.as_ref(), "/run/causeway/lb.sock", faults),
        socket_group: socket_group(raw.socket_group.as_ref(), faults),
        http,
        api,
        reconcile: raw.reconcile.unwrap_or(true),
        allow_empty: raw.reload.allow_empty.unwrap_or(false),
        hash_key: secret(raw.hash_key.as_ref(), faults, HashKey::from_str),
        unserved: text(raw.unserved.as_ref(), faults, Unserved::from_word)
            .unwrap_or(Unserved::Drop),
        xdp_mode: text(raw.xdp.mode.as_ref(), faults, |word| {
            one_of("XDP mode", &XdpMode::WORDS, word)
        })
        .unwrap_or(XdpMode::Auto),
        encap,
        flows_v4,
        flows_v6,
        flow_idle: flow_idle(&raw.flow_table, faults),
        stateful,
        limits,
        measure,
        tunnel_ends,
        tunnel_sources: tunnel_sources(&raw.encap, faults),
        control,
        law,
        cookies,
        announce: announce::announce(&raw.announce, faults),
        agent_reports: agent_reports.flatten(),
        fleet: raw
            .fleet
            .as_ref()
            .and_then(|own| fleet::fleet(own, raw.agent_reports.is_some(), faults)),
        peers,
        history: history.unwrap_or(Duration::from_secs(600)),
        vips,
    })
}

fn flow_idle(raw: &RawFlowTable, faults: &mut Faults<'_>) -> FlowIdle {
    let mut length =
        |value: Option<&Spanned<TimeValue>>, key: &str| time_within(value, key, FLOW_IDLE, faults);
    let default = FlowIdle::default();
    FlowIdle {
        udp: length(raw.udp_idle.as_ref(), "udp_idle").unwrap_or(default.udp),
        ended: length(raw.closed_idle.as_ref(), "closed_idle").unwrap_or(default.ended),
        tcp: length(raw.tcp_idle.as_ref(), "tcp_idle").unwrap_or(default.tcp),
        udp_drain: length(raw.udp_drain.as_ref(), "udp_drain"),
    }
}

fn encap(raw: &RawEncap, faults: &mut Faults<'_>) -> Encap {
    Encap {
        source_v4: text(raw.source.as_ref(), faults, |source| {
            prefix::<Ipv4Addr>(source, 32, "10.0.0.1 or 10.1.0.0/16")
        }),
        source_v6: text(raw.source6.as_ref(), faults, |source| {
            prefix::<Ipv6Addr>(source, 128, "fd00::1 or fd00:1::/64")
        }),
        gateway_mac: text(raw.gateway_mac.as_ref(), faults, mac),
        mtu: number_within(raw.mtu.as_ref(), "mtu", 1280..=9216, faults),
        gue_port: gue_port(raw.gue_port.as_ref(), faults),
        gue_checksum: text(raw.gue_checksum.as_ref(), faults, GueChecksum::from_word)
            .unwrap_or(GueChecksum::Auto),
    }
}

/// One address of each family at most.
fn tunnel_ends(raw: &[Spanned<String>], faults: &mut Faults<'_>) -> TunnelEnds {
    let mut ends = TunnelEnds::default();
    for place in raw {
        let Some(address) = text(Some(place), faults, vip_address) else {
            continue;
        };
        let former = match address {
            IpAddr::V4(v4) => ends.v4.replace(v4).map(IpAddr::from),
            IpAddr::V6(v6) => ends.v6.replace(v6).map(IpAddr::from),
        };
        if let Some(former) = former {
            faults.at(
                place.span(),
                format!("tunnels end at {former} already; give one address of each family"),
            );
        }
    }
    ends
}

/// Where a first tier's tunnels come from.
fn tunnel_sources(raw: &RawEncap, faults: &mut Faults<'_>) -> BTreeSet<Prefix> {
    let sources = &raw.tunnel_sources;
    if let (Some(end), true) = (raw.tunnel_ends.first(), sources.is_empty()) {
        faults.at(
            end.span(),
            "`tunnel_sources` is missing; tunnels are opened from a first tier alone: name the addresses or networks that theirs come from, for example tunnel_sources = [\"10.0.0.254\"]",
        );
    }
    if let (Some(source), true) = (sources.first(), raw.tunnel_ends.is_empty()) {
        faults.at(
            source.span(),
            "no tunnel ends here; name this balancer's own address in `tunnel_ends`, or remove `tunnel_sources`",
        );
    }
    let read = |place| text(Some(place), faults, address_or_network);
    sources.iter().filter_map(read).collect()
}

/// An IPv6 packet of 1280 bytes must fit the tunnel: no "packet too big" may ask for less.
fn check_mtu_for_ipv6(mtu: u16, place: &Spanned<i64>, vips: &[SharedVip], faults: &mut Faults<'_>) {
    let needs = |vip: &VipConfig| IPV6_MTU_MIN + vip.forwarding.overhead(true);
    let tunnelled = |vip: &&SharedVip| vip.address.is_ipv6() && vip.forwarding.encapsulates();
    let mut tunnelled = vips.iter().filter(tunnelled);
    if let Some(vip) = tunnelled.find(|vip| mtu < needs(vip)) {
        faults.at(
            place.span(),
            format!(
                "mtu {mtu} leaves no room for vip {}, whose IPv6 packets of {IPV6_MTU_MIN} bytes take {} in {}; raise it, or use forwarding = \"l2\"",
                vip.name,
                needs(vip),
                vip.forwarding
            ),
        );
    }
}

fn prefix<A: FromStr>(text: &str, bits: u8, example: &str) -> Result<(A, u8), String> {
    let (address, length) = text
        .split_once('/')
        .map_or((text, None), |(a, l)| (a, Some(l)));
    let length = match length {
        None => Some(bits),
        Some(length) => prefix_length(length, bits),
    };
    match (A::from_str(address), length) {
        (Ok(address), Some(length)) => Ok((address, length)),
        _ => Err(format!(
            "`{text}` is not a valid source; write for example {example}"
        )),
    }
}

pub(super) fn mac(text: &str) -> Result<MacAddress, String> {
    let wrong =
        || format!("`{text}` is not a valid Ethernet address; write for example 02:00:00:00:00:01");
    let parts: Option<Vec<[u8; 1]>> = text.split(':').map(octets).collect();
    let bytes = parts.map(|parts| parts.concat());
    let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
    let bytes = bytes.ok_or_else(wrong)?;
    match bytes[0] & 1 {
        0 => Ok(MacAddress(bytes)),
        _ => Err(format!(
            "`{text}` is a group address; a next hop has a unicast one"
        )),
    }
}
