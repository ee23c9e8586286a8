// SPDX-License-Identifier: Apache-2.0
//! `[agent.report]`: balancers, and what an agent reports to them.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use causeway_core::agent_report::{ReportKeys, SERVICES_MAX};
use causeway_service::config::{
    Faults, SERVERS_KEYS, keys_of, report_address, report_keys_of_server, text, units,
};

use super::raw::RawAgentReport;
use super::{AgentCookies, ClientsConfig};

/// How often the load may be reported: none of the balancers acts more often.
const LOAD_INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_millis(300);

/// The longest slot whose latencies may be reported: they hold for three seconds, in which two
/// reports may get lost.
const LATENCY_SLOT: Duration = Duration::from_secs(1);

/// To whom an agent reports, and what.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentReportConfig {
    /// `agent_reports.listen` of the balancers.
    pub to: Vec<SocketAddr>,
    /// What reports are signed with.
    pub keys: ReportKeys,
    /// Whether this server follows the fleet's book, which balancers send.
    pub book: bool,
    /// Whether connections are reported as they open and close.
    pub connections: bool,
    /// Whether it is reported what clients of services wait for.
    pub client_latency: bool,
    /// Time between two reports of the server's load; `None`: it is not reported.
    pub load: Option<Duration>,
}

impl AgentReportConfig {
    /// What cannot change while the agent runs.
    pub(super) fn features(&self) -> [bool; 4] {
        let load = self.load.is_some();
        [self.book, self.connections, self.client_latency, load]
    }
}

/// What of the rest of the file a report is made from.
pub(super) struct Sources<'a> {
    pub addresses: &'a BTreeSet<IpAddr>,
    pub vips: &'a BTreeSet<IpAddr>,
    pub cookies: Option<&'a AgentCookies>,
    pub clients: Option<&'a ClientsConfig>,
}

pub(super) fn report(
    raw: &RawAgentReport,
    sources: &Sources<'_>,
    faults: &mut Faults<'_>,
) -> Option<AgentReportConfig> {
    let to = raw.to.iter();
    let to: Vec<SocketAddr> = to
        .filter_map(|one| text(Some(one), faults, report_address))
        .collect();
    let on = |switch: Option<bool>| switch.unwrap_or(false);
    let (connections, client_latency, load) =
        (on(raw.connections), on(raw.client_latency), on(raw.load));
    let book = on(raw.book);
    let services = sources.clients.map_or(0, |clients| clients.services.len());
    for (wrong, message) in [
        (
            raw.to.is_empty(),
            "`to` is missing under [agent.report]; name the `agent_reports.listen` of each balancer, for example to = [\"10.0.0.254:9472\"]",
        ),
        (
            sources.addresses.is_empty(),
            "[agent.report]: balancers know this server by its `addresses`; name them under [agent]",
        ),
        (
            !(book || connections || client_latency || load),
            "[agent.report] reports nothing; set one of book, connections, client_latency and load to true",
        ),
        (
            book && sources.cookies.is_none(),
            "[agent.report] book: ids and keys of cookies come with it; add [agent.cookie] with `keys`, this server's keys file",
        ),
        (
            connections && sources.cookies.is_none(),
            "[agent.report] connections: those with cookies are reported; add [agent.cookie]",
        ),
        (
            client_latency && services == 0,
            "[agent.report] client_latency: clients of services are reported; name their VIPs under [agent.clients], for example services = [\"192.0.2.1:80\"]",
        ),
        (
            client_latency && sources.clients.is_some_and(|of| of.slot > LATENCY_SLOT),
            "[agent.report] client_latency: balancers are told each `slot`, and take it for that of a second; use a slot of at most 1s under [agent.clients]",
        ),
        (
            load && !book && sources.vips.is_empty(),
            "[agent.report] load: connections to `vips` are counted; name them under [agent]",
        ),
        (
            !load && raw.load_interval.is_some(),
            "[agent.report] load_interval has no meaning without load = true",
        ),
    ] {
        if wrong {
            faults.file(message);
        }
    }
    if client_latency && services > SERVICES_MAX {
        faults.file(format!(
            "[agent.clients] names {services} services; at most {SERVICES_MAX} can be reported to balancers"
        ));
    }
    let interval = text(raw.load_interval.as_ref(), faults, |text| {
        let interval = units::duration(text)?;
        match LOAD_INTERVAL.contains(&interval) {
            true => Ok(interval),
            false => Err(format!(
                "load_interval {text} is out of range; use 10ms to 300ms: a load holds for a second"
            )),
        }
    });
    let file = match (&raw.keys, sources.cookies) {
        (Some(_), _) => keys_of(raw.keys.as_ref(), SERVERS_KEYS, faults),
        (None, Some(cookies)) => Some((cookies.file.clone(), cookies.keys.clone())),
        (None, None) => {
            faults.file("reports are signed: name the keys file with `keys` under [agent.report]; `causeway cookie server-keys` on a balancer makes this server's");
            None
        }
    };
    let keys = file.and_then(|(path, file)| {
        let keys = report_keys_of_server(&path, &file, sources.addresses);
        keys.map_err(|fault| faults.file(fault)).ok()
    });
    Some(AgentReportConfig {
        to,
        keys: keys?,
        book,
        connections,
        client_latency,
        load: load.then(|| interval.unwrap_or(Duration::from_millis(100))),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::Path;

    use super::super::AgentConfig;
    use super::*;

    const FILE: &str = r#"
[agent]
interface = "eth0"
addresses = ["10.0.0.1"]
vips = ["192.0.2.1"]
balancers = ["10.0.0.254"]
[agent.clients]
services = ["192.0.2.1:80"]
[agent.report]
to = ["10.0.0.254:9472"]
keys = "KEYS"
client_latency = true
load = true
"#;

    fn parse(text: &str) -> Result<AgentConfig, String> {
        let mut keys = tempfile::NamedTempFile::new().unwrap();
        let key = "7".repeat(32);
        write!(
            keys,
            "current = 0\nkey0 = \"{key}\"\n[server.\"10.0.0.1\"]\nreports0 = \"{key}\"\n"
        )
        .unwrap();
        let text = text.replace("KEYS", &keys.path().display().to_string());
        AgentConfig::parse(Path::new("agent.toml"), &text).map_err(|errors| errors.to_string())
    }

    #[test]
    fn what_is_reported_is_switched_on_one_by_one() {
        let config = parse(FILE).unwrap();
        let report = config.report.clone().unwrap();
        assert_eq!(report.to, ["10.0.0.254:9472".parse().unwrap()]);
        assert_eq!(report.load, Some(Duration::from_millis(100)));
        assert!(report.client_latency && !report.connections);
        let often = parse(&format!("{FILE}load_interval = \"10ms\"\n")).unwrap();
        assert_eq!(often.report.unwrap().load, Some(Duration::from_millis(10)));
        let with_cookies = FILE.replace(
            "[agent.report]",
            "[agent.cookie]\nkeys = \"KEYS\"\n[agent.report]\nconnections = true",
        );
        let with_cookies = with_cookies.replace("9472\"]\nkeys = \"KEYS\"", "9472\"]");
        let with_cookies = parse(&with_cookies).unwrap();
        assert!(with_cookies.report.as_ref().unwrap().connections);
        // Where to report may change at any time, what to report only with the agent's restart.
        let elsewhere = parse(&FILE.replace("9472", "9474")).unwrap();
        assert_eq!(elsewhere.needs_restart(&config), None);
        let less = parse(&FILE.replace("load = true", "load = false")).unwrap();
        assert_eq!(less.needs_restart(&config), Some("report"));
    }

    #[test]
    fn a_server_has_keys_for_each_address_that_balancers_know() {
        let more = FILE.replace("[\"10.0.0.1\"]", "[\"10.0.0.1\", \"10.0.0.2\"]");
        let error = parse(&more).unwrap_err();
        let expected = "`causeway cookie server-keys 10.0.0.1 10.0.0.2`";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn each_fault_is_one_sentence() {
        for (from, to, expected) in [
            (
                "to = [\"10.0.0.254:9472\"]\n",
                "",
                "`to` is missing under [agent.report]",
            ),
            (
                "10.0.0.254:9472",
                "10.0.0.254",
                "is not an address with a port",
            ),
            (
                "addresses = [\"10.0.0.1\"]\n",
                "",
                "balancers know this server by its `addresses`",
            ),
            (
                "vips = [\"192.0.2.1\"]\n",
                "",
                "[agent.report] load: connections to `vips` are counted",
            ),
            (
                "services = [\"192.0.2.1:80\"]\n",
                "",
                "[agent.report] client_latency: clients of services are reported",
            ),
            (
                "services = [\"192.0.2.1:80\"]\n",
                "services = [\"192.0.2.1:80\"]\nslot = \"3s\"\n",
                "use a slot of at most 1s under [agent.clients]",
            ),
            ("load = true", "connections = true", "add [agent.cookie]"),
            (
                "client_latency = true\nload = true\n",
                "",
                "[agent.report] reports nothing",
            ),
            (
                "keys = \"KEYS\"\n",
                "keys = \"/nowhere/keys\"\n",
                "or `causeway agent join`, makes it",
            ),
            (
                "keys = \"KEYS\"\n",
                "",
                "name the keys file with `keys` under [agent.report]",
            ),
            (
                "load = true\n",
                "load = true\nload_interval = \"1s\"\n",
                "load_interval 1s is out of range; use 10ms to 300ms",
            ),
            (
                "load = true\n",
                "load_interval = \"50ms\"\n",
                "load_interval has no meaning without load = true",
            ),
        ] {
            let error = parse(&FILE.replacen(from, to, 1)).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
