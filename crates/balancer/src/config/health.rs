// SPDX-License-Identifier: Apache-2.0
//! Validation of a VIP's `health`.

use std::ops::RangeInclusive;
use std::time::Duration;

use causeway_core::health::HealthParams;
use causeway_service::config::{Faults, Spanned, Words, text, units};
use serde_json::{Value, json};

use super::Protocol;
use super::raw::RawHealth;
use super::words::HealthProbe;

/// Shorter ones would be a load of their own, longer ones no check.
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);
const ROWS: RangeInclusive<i64> = 1..=100;
const STATUS: RangeInclusive<i64> = 100..=599;
/// Longest name in the DNS (RFC 1035, section 2.3.4), and longest label.
const NAME_MAX: usize = 253;
const LABEL_MAX: usize = 63;

/// How a VIP's reals are probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// What a probe does.
    pub probe: ProbeConfig,
    /// Port of the VIP that it goes to.
    pub port: u16,
    /// How often, and what follows.
    pub params: HealthParams,
    /// Whether clients that open connections and send nothing count, too.
    pub passive: bool,
}

/// What a probe does, and what it takes for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeConfig {
    /// Opens a connection.
    Tcp,
    /// Asks for a page.
    Http {
        /// Within TLS. The certificate is not checked.
        tls: bool,
        /// Path of the request.
        path: String,
        /// `Host` of the request; the VIP's address if not given.
        host: Option<String>,
        /// The status that is right.
        status: u16,
    },
    /// Asks for a name's address by UDP; any answer of a working server will do.
    Dns {
        /// The name.
        name: String,
    },
    /// Completes a QUIC handshake. The certificate is not checked.
    Quic {
        /// Name of the server; the VIP's address if not given.
        host: Option<String>,
        /// The application's protocol.
        alpn: String,
    },
}

pub(super) fn health(
    raw: &Spanned<RawHealth>,
    protocol: Protocol,
    vip_port: u16,
    measure: bool,
    faults: &mut Faults<'_>,
) -> Option<Health> {
    let place = raw.span();
    let raw = raw.as_ref();
    let default = match protocol {
        Protocol::Tcp => HealthProbe::Tcp,
        Protocol::Udp => HealthProbe::Dns,
    };
    let kind = text(raw.probe.as_ref(), faults, HealthProbe::from_word).unwrap_or(default);
    let fits = match kind {
        HealthProbe::Tcp | HealthProbe::Http | HealthProbe::Https => Protocol::Tcp,
        HealthProbe::Dns | HealthProbe::Quic => Protocol::Udp,
    };
    if fits != protocol {
        faults.at(
            raw.probe.as_ref().map_or(place.clone(), Spanned::span),
            format!("probe = \"{kind}\" goes by {fits}, and the vip is {protocol}; use {default}"),
        );
    }
    let port = number(raw.port.as_ref(), 1..=65_535, "port", faults).map(|port| port as u16);
    let port = port.or((vip_port != 0).then_some(vip_port));
    if port.is_none() {
        faults.at(
            place.clone(),
            "the vip takes every port, so `health` needs one to probe; add for example port = 80",
        );
    }
    others_unused(raw, kind, faults);
    let params = params(raw, place, faults);
    let probe = match kind {
        HealthProbe::Tcp => ProbeConfig::Tcp,
        HealthProbe::Http | HealthProbe::Https => ProbeConfig::Http {
            tls: kind == HealthProbe::Https,
            path: text(raw.path.as_ref(), faults, path).unwrap_or_else(|| "/".to_owned()),
            host: text(raw.host.as_ref(), faults, host),
            status: number(raw.status.as_ref(), STATUS, "status", faults).unwrap_or(200) as u16,
        },
        HealthProbe::Dns => ProbeConfig::Dns {
            name: text(raw.name.as_ref(), faults, name).unwrap_or_else(|| ".".to_owned()),
        },
        HealthProbe::Quic => ProbeConfig::Quic {
            host: text(raw.host.as_ref(), faults, host),
            alpn: text(raw.alpn.as_ref(), faults, alpn).unwrap_or_else(|| "h3".to_owned()),
        },
    };
    Some(Health {
        probe,
        port: port?,
        params,
        passive: passive(raw, protocol, measure, faults),
    })
}

/// Clients' silence is told by the requests that the data plane sees, in TCP alone.
fn passive(raw: &RawHealth, protocol: Protocol, measure: bool, faults: &mut Faults<'_>) -> bool {
    let Some(passive) = raw.passive.as_ref().filter(|passive| *passive.as_ref()) else {
        return false;
    };
    if protocol != Protocol::Tcp {
        faults.at(
            passive.span(),
            "passive signs are told from TCP connections, and the vip is udp; remove `passive`",
        );
    } else if !measure {
        faults.at(passive.span(), "passive signs need measurement, and enabled = false stands under [measure]; remove one of them");
    }
    true
}

/// Identifications of protocols have 1 to 255 bytes (RFC 7301, section 3.1).
fn alpn(text: &str) -> Result<String, String> {
    match (1..=255).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{text}` is no protocol for ALPN; write for example \"h3\""
        )),
    }
}

fn params(raw: &RawHealth, place: std::ops::Range<usize>, faults: &mut Faults<'_>) -> HealthParams {
    let time = |text: &str| {
        let time = units::duration(text)?;
        match INTERVAL.contains(&time) {
            true => Ok(time.as_nanos() as u64),
            false => Err("it must lie between 100ms and 1h".to_owned()),
        }
    };
    let default = HealthParams::default();
    let interval_ns = text(raw.interval.as_ref(), faults, time).unwrap_or(default.interval_ns);
    let timeout_ns =
        text(raw.timeout.as_ref(), faults, time).unwrap_or(default.timeout_ns.min(interval_ns));
    if timeout_ns > interval_ns {
        faults.at(
            raw.timeout.as_ref().map_or(place, Spanned::span),
            "a probe's timeout is at most the interval: one is out at a time",
        );
    }
    let row = |value, what, default, faults: &mut Faults<'_>| {
        number(value, ROWS, what, faults).map_or(default, |value| value as u32)
    };
    HealthParams {
        interval_ns,
        timeout_ns,
        rise: row(raw.rise.as_ref(), "rise", default.rise, faults),
        fall: row(raw.fall.as_ref(), "fall", default.fall, faults),
    }
}

/// Keys that belong to another kind of probe would be read by nobody.
fn others_unused(raw: &RawHealth, kind: HealthProbe, faults: &mut Faults<'_>) {
    use HealthProbe::{Dns, Http, Https, Quic};
    let keys: [(&str, Option<_>, &[HealthProbe]); 5] = [
        ("path", raw.path.as_ref().map(Spanned::span), &[Http, Https]),
        (
            "host",
            raw.host.as_ref().map(Spanned::span),
            &[Http, Https, Quic],
        ),
        (
            "status",
            raw.status.as_ref().map(Spanned::span),
            &[Http, Https],
        ),
        ("name", raw.name.as_ref().map(Spanned::span), &[Dns]),
        ("alpn", raw.alpn.as_ref().map(Spanned::span), &[Quic]),
    ];
    for (key, place, kinds) in keys {
        if let Some(place) = place.filter(|_| !kinds.contains(&kind)) {
            faults.at(
                place,
                format!("`{key}` has no meaning with probe = \"{kind}\"; remove it"),
            );
        }
    }
}

fn number(
    value: Option<&Spanned<i64>>,
    range: RangeInclusive<i64>,
    what: &str,
    faults: &mut Faults<'_>,
) -> Option<i64> {
    let value = value?;
    if range.contains(value.as_ref()) {
        return Some(*value.as_ref());
    }
    faults.at(
        value.span(),
        format!(
            "{what} {} is out of range; use {} to {}",
            value.as_ref(),
            range.start(),
            range.end()
        ),
    );
    None
}

fn path(text: &str) -> Result<String, String> {
    let is_path = text.starts_with('/') && text.bytes().all(|c| c.is_ascii_graphic());
    match is_path {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{text}` is no path; write for example \"/health\""
        )),
    }
}

fn host(text: &str) -> Result<String, String> {
    match !text.is_empty() && text.bytes().all(|c| c.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err(format!("`{text}` is no host name")),
    }
}

fn name(text: &str) -> Result<String, String> {
    let bare = text.strip_suffix('.').unwrap_or(text);
    let is_label = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len()) && label.bytes().all(|c| c.is_ascii_graphic())
    };
    match bare.is_empty() || bare.len() <= NAME_MAX && bare.split('.').all(is_label) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{text}` is no name in the DNS; write for example \"example.org\""
        )),
    }
}

/// The same as the file would have it.
pub(super) fn to_json(health: &Health) -> Value {
    let ns = |ns: u64| format!("{ns}ns");
    let mut value = json!({
        "port": health.port,
        "interval": ns(health.params.interval_ns),
        "timeout": ns(health.params.timeout_ns),
        "rise": health.params.rise,
        "fall": health.params.fall,
        "passive": health.passive,
    });
    match &health.probe {
        ProbeConfig::Tcp => value["probe"] = json!("tcp"),
        ProbeConfig::Http {
            tls,
            path,
            host,
            status,
        } => {
            value["probe"] = json!(if *tls { "https" } else { "http" });
            value["path"] = json!(path);
            value["status"] = json!(status);
            if let Some(host) = host {
                value["host"] = json!(host);
            }
        }
        ProbeConfig::Dns { name } => {
            value["probe"] = json!("dns");
            value["name"] = json!(name);
        }
        ProbeConfig::Quic { host, alpn } => {
            value["probe"] = json!("quic");
            value["alpn"] = json!(alpn);
            if let Some(host) = host {
                value["host"] = json!(host);
            }
        }
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
        assert_eq!(udp.probe, ProbeConfig::Dns { name: ".".into() });
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
                "`` is no protocol for ALPN; write for example \"h3\"",
            ),
            (
                "udp",
                "passive = true",
                "passive signs are told from TCP connections, and the vip is udp; remove `passive`",
            ),
            (
                "tcp",
                "probe = \"http\", path = \"up\"",
                "`up` is no path; write for example \"/health\"",
            ),
            (
                "udp",
                "name = \"a..b\"",
                "`a..b` is no name in the DNS; write for example \"example.org\"",
            ),
        ] {
            assert_eq!(parse(protocol, health).unwrap_err(), expected);
        }
    }
}
