// SPDX-License-Identifier: Apache-2.0
//! `[agent.load]`: balancers that are told of a server's load.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use causeway_core::cookie::Keys;
use causeway_service::config::{Faults, keys_of, notice_address, text, units};

use super::raw::RawLoad;

/// How often balancers may be told: none of them acts more often.
const INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_millis(300);

/// Who is told of a server's load.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentLoad {
    /// `clients.listen` of the balancers.
    pub balancers: Vec<SocketAddr>,
    /// Time between two reports.
    pub interval: Duration,
    /// What they are signed with.
    pub keys: Keys,
}

/// Reads the table. `cookies` are the keys of cookies, if there are any.
pub(super) fn load(
    raw: &RawLoad,
    cookies: Option<Keys>,
    addresses: &BTreeSet<IpAddr>,
    vips: &BTreeSet<IpAddr>,
    faults: &mut Faults<'_>,
) -> Option<AgentLoad> {
    let balancers = raw.balancers.iter();
    let balancers: Vec<SocketAddr> = balancers
        .filter_map(|one| text(Some(one), faults, notice_address))
        .collect();
    for (nobody, message) in [
        (
            raw.balancers.is_empty(),
            "`balancers` is missing under [agent.load]; name the `clients.listen` of each, for example balancers = [\"10.0.0.254:9473\"]",
        ),
        (
            addresses.is_empty(),
            "[agent.load]: balancers know this server by its `addresses`; name them under [agent]",
        ),
        (
            vips.is_empty(),
            "[agent.load] counts connections to `vips`; name them under [agent]",
        ),
    ] {
        if nobody {
            faults.file(message);
        }
    }
    let interval = text(raw.interval.as_ref(), faults, |text| {
        let interval = units::duration(text)?;
        match INTERVAL.contains(&interval) {
            true => Ok(interval),
            false => Err(format!(
                "interval {text} is out of range; use 10ms to 300ms: a report holds for a second"
            )),
        }
    });
    let keys = match (&raw.keys, cookies) {
        (Some(_), _) => keys_of(raw.keys.as_ref(), faults).map(|(_, keys)| keys),
        (None, Some(keys)) => Some(keys),
        (None, None) => {
            faults.file("reports of load are signed: name the keys file with `keys` under [agent.load], the same as under [clients] on balancers");
            None
        }
    };
    Some(AgentLoad {
        balancers,
        interval: interval.unwrap_or(Duration::from_millis(100)),
        keys: keys?,
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
[agent.load]
balancers = ["10.0.0.254:9473"]
keys = "KEYS"
"#;

    fn parse(text: &str) -> Result<AgentConfig, String> {
        let mut keys = tempfile::NamedTempFile::new().unwrap();
        let key = "7".repeat(32);
        write!(keys, "current = 0\nkey0 = \"{key}\"\n").unwrap();
        let text = text.replace("KEYS", &keys.path().display().to_string());
        AgentConfig::parse(Path::new("agent.toml"), &text).map_err(|errors| errors.to_string())
    }

    #[test]
    fn balancers_are_told_ten_times_a_second_or_as_often_as_one_likes() {
        let config = parse(FILE).unwrap();
        let load = config.load.clone().unwrap();
        assert_eq!(load.interval, Duration::from_millis(100));
        assert_eq!(load.balancers, ["10.0.0.254:9473".parse().unwrap()]);
        let often = parse(&format!("{FILE}interval = \"10ms\"\n")).unwrap();
        assert_eq!(often.load.unwrap().interval, Duration::from_millis(10));
        let cookies = FILE.replace(
            "[agent.load]",
            "[agent.cookie]\nkeys = \"KEYS\"\n[agent.load]",
        );
        let cookies = cookies.replace("9473\"]\nkeys = \"KEYS\"", "9473\"]");
        assert!(parse(&cookies).unwrap().load.is_some());
        assert_eq!(parse(FILE).unwrap().needs_restart(&config), None);
    }

    #[test]
    fn each_fault_is_one_sentence() {
        for (from, to, expected) in [
            (
                "balancers = [\"10.0.0.254:9473\"]\n",
                "",
                "`balancers` is missing under [agent.load]",
            ),
            ("10.0.0.254:9473", "10.0.0.254", "is no address with a port"),
            (
                "vips = [\"192.0.2.1\"]\n",
                "",
                "[agent.load] counts connections to `vips`",
            ),
            (
                "keys = \"KEYS\"\n",
                "",
                "name the keys file with `keys` under [agent.load]",
            ),
            (
                "keys = \"KEYS\"\n",
                "keys = \"KEYS\"\ninterval = \"1s\"\n",
                "interval 1s is out of range; use 10ms to 300ms",
            ),
        ] {
            let error = parse(&FILE.replacen(from, to, 1)).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
