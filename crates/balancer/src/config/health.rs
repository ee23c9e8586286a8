// SPDX-License-Identifier: Apache-2.0
//! Validation of a VIP's `health`.

use std::fmt::Display;
use std::ops::RangeInclusive;

use causeway_core::health::HealthParams;
use causeway_service::config::{Faults, Spanned, Words, number, text, time_within};
use serde_json::{Value, json};

use super::Protocol;
use super::cookie::Beside;
use super::probe::{self, ProbeConfig};
use super::raw::RawHealth;
use super::words::{HealthProbe, ProbeTo};

/// Shorter ones would be a load of their own, longer ones no check.
const INTERVAL: [&str; 2] = ["100ms", "1h"];
const ROWS: RangeInclusive<u32> = 1..=100;

/// How a VIP's reals are probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// What a probe does.
    pub probe: ProbeConfig,
    /// Where it is sent.
    pub to: ProbeTo,
    /// Port that it goes to.
    pub port: u16,
    /// How often, and what follows.
    pub params: HealthParams,
    /// Whether clients that open connections and send nothing count, too.
    pub passive: bool,
    /// Whether the weight that a real's answer says is taken.
    pub take_weight: bool,
}

pub(super) fn health(
    raw: &Spanned<RawHealth>,
    protocol: Protocol,
    vip_port: Option<u16>,
    (measure, beside): (bool, Beside),
    faults: &mut Faults<'_>,
) -> Option<Health> {
    use HealthProbe::{Dns, Icmp, Quic, Script};
    let place = raw.span();
    let raw = raw.as_ref();
    let default = match protocol {
        Protocol::Tcp => HealthProbe::Tcp,
        Protocol::Udp => HealthProbe::Dns,
    };
    let kind = text(raw.probe.as_ref(), faults, HealthProbe::from_word).unwrap_or(default);
    let to = text(raw.to.as_ref(), faults, ProbeTo::from_word).unwrap_or(ProbeTo::Vip);
    let fits = match kind {
        Dns | Icmp | Script => protocol,
        Quic => Protocol::Udp,
        // What a server says of itself need not come by the VIP's protocol.
        _ if to == ProbeTo::Real => protocol,
        _ => Protocol::Tcp,
    };
    if fits != protocol {
        faults.at(
            raw.probe.as_ref().map_or(place.clone(), Spanned::span),
            format!("probe = \"{kind}\" goes by {fits}, and the vip is {protocol}; use {default}"),
        );
    }
    let port = in_range(raw.port.as_ref(), 1..=u16::MAX, "port", faults);
    let needs_port = !matches!(kind, Icmp | Script);
    let port = port.or(vip_port.filter(|port| *port != 0 || !needs_port));
    if port.is_none() && vip_port.is_some() {
        faults.at(
            place.clone(),
            "the vip takes every port, so `health` needs one to probe; add for example port = 80",
        );
    }
    let params = params(raw, place.clone(), faults);
    let probe = probe::probe(raw, kind, place, beside, faults);
    let passive = passive(raw, protocol, measure, faults);
    Some(Health {
        probe: probe?,
        to,
        port: port?,
        params,
        passive,
        take_weight: raw.take_weight.as_ref().is_some_and(|take| *take.as_ref()),
    })
}

/// Clients' silence shows in the requests that the data plane sees, in TCP alone.
fn passive(raw: &RawHealth, protocol: Protocol, measure: bool, faults: &mut Faults<'_>) -> bool {
    let Some(passive) = raw.passive.as_ref().filter(|passive| *passive.as_ref()) else {
        return false;
    };
    if protocol != Protocol::Tcp {
        faults.at(
            passive.span(),
            "passive signs are read from TCP connections, and the vip is udp; remove `passive`",
        );
    } else if !measure {
        faults.at(passive.span(), "passive signs need measurement, and enabled = false stands under [measure]; remove one of them");
    }
    true
}

fn params(raw: &RawHealth, place: std::ops::Range<usize>, faults: &mut Faults<'_>) -> HealthParams {
    let mut time_ns = |value| {
        let time = time_within(value, "it", INTERVAL, faults)?;
        Some(time.as_nanos() as u64)
    };
    let default = HealthParams::default();
    let interval_ns = time_ns(raw.interval.as_ref()).unwrap_or(default.interval_ns);
    let timeout_ns = time_ns(raw.timeout.as_ref()).unwrap_or(default.timeout_ns.min(interval_ns));
    if timeout_ns > interval_ns {
        faults.at(
            raw.timeout.as_ref().map_or(place, Spanned::span),
            "a probe's timeout is at most the interval: one is out at a time",
        );
    }
    let mut row = |value, what, default| in_range(value, ROWS, what, faults).unwrap_or(default);
    HealthParams {
        interval_ns,
        timeout_ns,
        rise: row(raw.rise.as_ref(), "rise", default.rise),
        fall: row(raw.fall.as_ref(), "fall", default.fall),
    }
}

fn in_range<T: TryFrom<i64> + PartialOrd + Display>(
    value: Option<&Spanned<i64>>,
    range: RangeInclusive<T>,
    what: &str,
    faults: &mut Faults<'_>,
) -> Option<T> {
    let fits = |number: &T| range.contains(number);
    let (low, high) = (range.start(), range.end());
    number(value, fits, faults, |number| {
        format!("{what} {number} is out of range; use {low} to {high}")
    })
}

/// The same as the file would have it.
pub(super) fn to_json(health: &Health) -> Value {
    let ns = |ns: u64| format!("{ns}ns");
    let mut value = health.probe.to_json();
    if !matches!(health.probe, ProbeConfig::Icmp) {
        value["port"] = json!(health.port);
    }
    value["interval"] = json!(ns(health.params.interval_ns));
    value["timeout"] = json!(ns(health.params.timeout_ns));
    value["rise"] = json!(health.params.rise);
    value["fall"] = json!(health.params.fall);
    value["passive"] = json!(health.passive);
    if health.to != ProbeTo::Vip {
        value["to"] = json!(health.to.to_string());
    }
    if health.take_weight {
        value["take_weight"] = json!(true);
    }
    value
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{BalancerConfig, Beside, vip_from_json};
    use super::*;

    fn parse(protocol: &str, health: &str) -> Result<Health, String> {
        let text = format!(
            "interface = \"eth0\"\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\n\
             protocol = \"{protocol}\"\nhealth = {{ {health} }}\nreal = [{{ address = \"10.0.0.1\" }}]\n"
        );
        let config = BalancerConfig::parse(Path::new("lb.toml"), &text);
        let config = config.map_err(|errors| errors.faults[0].message.clone())?;
        Ok(config.vips[0].health.clone().expect("health"))
    }

    #[test]
    fn defaults_follow_the_protocol() {
        let tcp = parse("tcp", "").unwrap();
        assert_eq!((tcp.probe, tcp.port), (ProbeConfig::Tcp, 80));
        assert_eq!(tcp.params, HealthParams::default());
        let udp = parse("udp", "interval = \"500ms\"").unwrap();
        let root = ProbeConfig::Dns {
            name: ".".into(),
            record: super::super::RecordType::A,
            rcodes: vec![0, 3],
        };
        assert_eq!(udp.probe, root);
        assert_eq!(udp.params.timeout_ns, 500_000_000);
    }

    #[test]
    fn what_json_says_is_read_back() {
        for (protocol, text) in [
            (
                "tcp",
                "probe = \"https\", path = \"/up\", host = \"a.example\", status = 204, rise = 1, fall = 5, port = 8080",
            ),
            ("tcp", "probe = \"http\", passive = true"),
            (
                "udp",
                "probe = \"http\", to = \"real\", take_weight = true, port = 30256",
            ),
            (
                "tcp",
                "probe = \"http\", status = \"200-299 304\", body = \"ok\"",
            ),
            ("tcp", "probe = \"https\", ca = \"system\""),
            ("tcp", "probe = \"grpcs\", service = \"shop.Cart\""),
            ("tcp", "probe = \"redis\""),
            ("tcp", "probe = \"postgres\", user = \"app\""),
            (
                "tcp",
                "probe = \"dns\", name = \"a.example\", record = \"srv\", rcode = \"noerror refused\"",
            ),
            ("udp", "probe = \"icmp\""),
            (
                "udp",
                "probe = \"script\", command = [\"/bin/true\", \"x\"]",
            ),
            (
                "udp",
                "probe = \"quic\", host = \"a.example\", alpn = \"hq\"",
            ),
        ] {
            let health = parse(protocol, text).unwrap();
            let vip = vip_from_json(
                json!({
                    "address": "192.0.2.1", "port": 80, "protocol": protocol,
                    "health": to_json(&health), "real": [{ "address": "10.0.0.1" }],
                }),
                Beside::NOTHING,
            );
            assert_eq!(vip.unwrap().health, Some(health));
        }
    }

    #[test]
    fn faults_say_how_to_mend_them() {
        for (protocol, health, expected) in [
            (
                "udp",
                "probe = \"http\"",
                "probe = \"http\" goes by tcp, and the vip is udp; use dns",
            ),
            (
                "tcp",
                "probe = \"htp\"",
                "unknown probe `htp`; did you mean `http`?",
            ),
            (
                "tcp",
                "take_weight = true",
                "`take_weight` has no meaning with probe = \"tcp\"; remove it",
            ),
            (
                "udp",
                "to = \"real\"",
                "`to` has no meaning with probe = \"dns\"; remove it",
            ),
            (
                "tcp",
                "path = \"/\"",
                "`path` has no meaning with probe = \"tcp\"; remove it",
            ),
            (
                "tcp",
                "interval = \"1ms\"",
                "it must lie between 100ms and 1h",
            ),
            (
                "tcp",
                "interval = \"1s\", timeout = \"2s\"",
                "a probe's timeout is at most the interval: one is out at a time",
            ),
            ("tcp", "rise = 0", "rise 0 is out of range; use 1 to 100"),
            (
                "tcp",
                "probe = \"quic\"",
                "probe = \"quic\" goes by udp, and the vip is tcp; use tcp",
            ),
            (
                "udp",
                "probe = \"quic\", alpn = \"\"",
                "`` is not a valid ALPN protocol; write for example \"h3\"",
            ),
            (
                "udp",
                "passive = true",
                "passive signs are read from TCP connections, and the vip is udp; remove `passive`",
            ),
            (
                "tcp",
                "probe = \"http\", path = \"up\"",
                "`up` is not a valid path; write for example \"/health\"",
            ),
            (
                "tcp",
                "probe = \"http\", status = \"299-200\"",
                "`299-200` is not a valid status; use 100 to 599, as in 200, \"200-299\" or \"200 204 301-308\"",
            ),
            (
                "tcp",
                "probe = \"http\", body = \"\"",
                "`body` has 1 to 120 octets",
            ),
            (
                "tcp",
                "probe = \"http\", ca = \"system\"",
                "`ca` has no meaning with probe = \"http\"; remove it",
            ),
            (
                "tcp",
                "probe = \"https\", ca = \"/dev/zero\"",
                "file /dev/zero: it is not a file of certificates",
            ),
            (
                "tcp",
                "probe = \"icmp\", port = 80",
                "`port` has no meaning with probe = \"icmp\"; remove it",
            ),
            (
                "tcp",
                "probe = \"dns\", rcode = \"noeror\"",
                "unknown rcode `noeror`; did you mean `noerror`?",
            ),
            (
                "tcp",
                "probe = \"script\"",
                "probe = \"script\" has no `command`; add for example command = [\"/usr/local/lib/check\", \"--fast\"]",
            ),
            (
                "tcp",
                "probe = \"script\", command = [\"true\"]",
                "`true` is not an absolute path",
            ),
            (
                "tcp",
                "probe = \"script\", command = [\"/etc/passwd\"]",
                "`/etc/passwd` is not an executable file; make it executable",
            ),
            (
                "udp",
                "name = \"a..b\"",
                "`a..b` is not a valid DNS name; write for example \"example.org\"",
            ),
        ] {
            assert_eq!(parse(protocol, health).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_script_comes_by_the_file_alone() {
        let vip = |beside| {
            let health = json!({ "probe": "script", "command": ["/bin/true"] });
            vip_from_json(
                json!({
                    "address": "192.0.2.1", "port": 80, "health": health,
                    "real": [{ "address": "10.0.0.1" }],
                }),
                beside,
            )
        };
        assert!(vip(Beside::NOTHING).is_ok());
        let refused = vip(Beside::keeping(None)).unwrap_err();
        assert!(refused.starts_with("a script stands in the file alone"));
    }
}
