// SPDX-License-Identifier: Apache-2.0
//! `[agent_reports]` of a balancer: where agents report, and which VIPs need that.

use std::net::SocketAddr;

use causeway_core::agent_report::ReportKeys;
use causeway_service::config::{
    BALANCERS_KEYS, Faults, Spanned, Words as _, keys_of, report_address, report_keys_of_balancer,
    text,
};

use super::raw::{RawReports, RawVip};
use super::words::LatencySource;
use super::{BalancerConfig, Control, Cookies, Protocol};

/// Where agents report, and whose reports are believed.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentReportsConfig {
    /// UDP address.
    pub listen: SocketAddr,
    /// The keys that they are signed with.
    pub keys: ReportKeys,
}

pub(super) fn reports(
    raw: &RawReports,
    cookies: Option<&Cookies>,
    faults: &mut Faults<'_>,
) -> Option<AgentReportsConfig> {
    if raw.listen.is_none() {
        faults.file("`listen` is missing under [agent_reports]; name an address for agents' reports, for example listen = \"10.0.0.254:9472\"");
    }
    let listen = text(raw.listen.as_ref(), faults, report_address);
    let keys = report_keys(
        raw.keys.as_ref(),
        cookies,
        "agents sign their reports: name a keys file with `keys` under [agent_reports] (`causeway cookie new-keys` makes one), or the cookies' under [cookie]",
        faults,
    );
    Some(AgentReportsConfig {
        listen: listen?,
        keys: keys?,
    })
}

/// The keys of reports in the file that is named, or in the cookies'; `missing` is the error if
/// there is neither.
pub(super) fn report_keys(
    named: Option<&Spanned<String>>,
    cookies: Option<&Cookies>,
    missing: &str,
    faults: &mut Faults<'_>,
) -> Option<ReportKeys> {
    let (path, file) = match (named, cookies) {
        (Some(_), _) => keys_of(named, BALANCERS_KEYS, faults)?,
        (None, Some(cookies)) => (cookies.file.clone(), cookies.keys.clone()),
        (None, None) => {
            faults.file(missing);
            return None;
        }
    };
    let keys = report_keys_of_balancer(&path, &file);
    keys.map_err(|fault| faults.file(fault)).ok()
}

/// What a VIP's controller goes by.
pub(super) fn of_vip(
    raw: &RawVip,
    protocol: Protocol,
    control: Control,
    faults: &mut Faults<'_>,
) -> LatencySource {
    let source = text(raw.latency.as_ref(), faults, LatencySource::from_word);
    // The path is known by TCP's handshake.
    let source = source.unwrap_or(match protocol {
        Protocol::Tcp => LatencySource::Server,
        Protocol::Udp => LatencySource::Response,
    });
    let Some(place) = &raw.latency else {
        return source;
    };
    if control == Control::Off {
        faults.at(place.span(), "`latency` has no meaning without a controller; use scheduler = \"latency\", or set `control`");
    }
    let needs = match (source, protocol) {
        (_, Protocol::Tcp) | (LatencySource::Response, _) => return source,
        (LatencySource::Client, _) => "agents count connection attempts",
        (LatencySource::Agent, _) => "agents follow connections",
        (LatencySource::Server, _) => "the handshake separates the path from the server",
    };
    faults.at(
        place.span(),
        format!("latency = \"{source}\" needs TCP: {needs}; a udp vip has none, use \"response\""),
    );
    source
}

/// A VIP cannot be steered by reports that no agent sends.
pub(super) fn check(config: &BalancerConfig, faults: &mut Faults<'_>) {
    if config.agent_reports.is_some() {
        return;
    }
    for vip in &config.vips {
        let key = match (vip.latency, vip.load) {
            (source, _) if source.is_told() => format!("latency = \"{source}\""),
            (_, load) if load.is_told() => format!("load = \"{load}\""),
            _ => continue,
        };
        faults.file(format!(
            "vip {}: {key} needs reports of agents; name an address for them under [agent_reports], for example listen = \"10.0.0.254:9472\"",
            vip.name
        ));
        return;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::Path;

    use super::*;

    const FILE: &str = r#"
interface = "eth0"
[agent_reports]
listen = "10.0.0.254:9472"
keys = "KEYS"
[[vip]]
name = "web"
address = "192.0.2.1"
port = 80
scheduler = "latency"
latency = "client"
real = [{ address = "10.0.0.1" }]
"#;

    fn parse(text: &str) -> Result<BalancerConfig, String> {
        let mut keys = tempfile::NamedTempFile::new().unwrap();
        let key = "7".repeat(32);
        write!(
            keys,
            "current = 0\nkey0 = \"{key}\"\nreports0 = \"{key}\"\n"
        )
        .unwrap();
        let text = text.replace("KEYS", &keys.path().display().to_string());
        BalancerConfig::parse(Path::new("lb.toml"), &text).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_vip_may_go_by_what_agents_tell() {
        let config = parse(FILE).unwrap();
        assert_eq!(config.vips[0].latency, LatencySource::Client);
        let listen = config.agent_reports.unwrap().listen;
        assert_eq!(listen.to_string(), "10.0.0.254:9472");
        let text = FILE.replace("latency = \"client\"\n", "");
        assert_eq!(parse(&text).unwrap().vips[0].latency, LatencySource::Server);
        let udp = text.replace("port = 80", "port = 80\nprotocol = \"udp\"");
        assert_eq!(
            parse(&udp).unwrap().vips[0].latency,
            LatencySource::Response
        );
    }

    #[test]
    fn cookies_keys_do_where_there_are_some() {
        let text = FILE.replace(
            "[agent_reports]",
            "[cookie]\nkeys = \"KEYS\"\n[agent_reports]",
        );
        let text = text.replace("9472\"\nkeys = \"KEYS\"", "9472\"");
        let config = parse(&text).unwrap();
        assert_eq!(
            Some(config.agent_reports.unwrap().keys),
            config.cookies.unwrap().keys.reports
        );
    }

    #[test]
    fn each_fault_is_one_sentence() {
        for (from, to, expected) in [
            (
                "listen = \"10.0.0.254:9472\"\n",
                "",
                "`listen` is missing under [agent_reports]",
            ),
            (
                "10.0.0.254:9472",
                "10.0.0.254",
                "is not an address with a port",
            ),
            (
                "keys = \"KEYS\"\n",
                "",
                "name a keys file with `keys` under [agent_reports]",
            ),
            (
                "scheduler = \"latency\"\n",
                "",
                "has no meaning without a controller",
            ),
            ("port = 80", "port = 80\nprotocol = \"udp\"", "needs TCP"),
            (
                "latency = \"client\"",
                "latency = \"server\"\nprotocol = \"udp\"",
                "the handshake separates the path from the server; a udp vip has none",
            ),
            (
                "[agent_reports]\nlisten = \"10.0.0.254:9472\"\nkeys = \"KEYS\"\n",
                "",
                "vip web: latency = \"client\" needs reports of agents",
            ),
            (
                "[agent_reports]\nlisten = \"10.0.0.254:9472\"\nkeys = \"KEYS\"\n[[vip]]\nname = \"web\"\naddress = \"192.0.2.1\"\nport = 80\nscheduler = \"latency\"\nlatency = \"client\"\n",
                "[[vip]]\nname = \"web\"\naddress = \"192.0.2.1\"\nport = 80\nscheduler = \"p2c\"\nload = \"in-flight\"\n",
                "vip web: load = \"in-flight\" needs reports of agents",
            ),
        ] {
            let error = parse(&FILE.replacen(from, to, 1)).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
