// SPDX-License-Identifier: Apache-2.0
//! Validation of `[fleet]`.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use causeway_core::fleet::{Absence, LeaseTerms, MayRemove};
use causeway_service::config::{
    Faults, Spanned, Words, directory, secret, text, time_within, within,
};
use causeway_service::tls::ClientFiles;

use super::raw::{RawFleet, RawFleetStore};
use super::words::WhenAbsent;

/// Leases: etcd keeps none of less than two seconds.
const LEASE: [&str; 2] = ["3s", "1h"];
/// The time that routers need to follow a withdrawal.
const SETTLE: [&str; 2] = ["100ms", "10m"];
/// How wrong clocks may be: a hundred times what quartz is.
const DRIFT_PPM: u64 = 10_000;
const NAME_MAX: usize = 63;

/// The fleet that this balancer is a member of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetConfig {
    /// The fleet's name: a store may have several.
    pub name: String,
    /// What this balancer is called in it.
    pub member: String,
    /// Where its book is.
    pub store: FleetStore,
    /// What a lapsed lease means, for a fleet that is founded here.
    pub absence: Absence,
    /// How long a lease is kept.
    pub lease: Duration,
    /// How long routers may go on sending to a balancer that withdraws.
    pub settle: Duration,
    /// Whether the agents of all reals get the book, and are waited for.
    pub agents: bool,
    /// Part of a VIP's reals that one change may take away unconfirmed, in thousandths.
    pub max_removed: u16,
}

impl FleetConfig {
    /// What a change may take away that no operator has confirmed.
    pub fn may_remove(&self) -> MayRemove {
        MayRemove::Part(self.max_removed)
    }

    /// A sentence where the store's password goes to another host in clear text.
    pub fn clear_password(&self) -> Option<String> {
        let FleetStore::Etcd(etcd) = &self.store else {
            return None;
        };
        let mut endpoints = etcd.endpoints.iter();
        let clear = endpoints.find(|endpoint| is_clear_to_others(endpoint));
        clear.filter(|_| etcd.user.is_some()).map(|endpoint| {
            format!(
                "{endpoint} is another host: who is on the way reads the store's password, and with it has all traffic; write https:// in `store.etcd`"
            )
        })
    }

    pub fn terms(&self) -> LeaseTerms {
        LeaseTerms {
            ttl_ns: self.lease.as_nanos() as u64,
            settle_ns: self.settle.as_nanos() as u64,
            drift_ppm: DRIFT_PPM,
        }
    }
}

impl fmt::Display for FleetConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}, store {}", self.name, self.member, self.store)
    }
}

/// Where a fleet's book is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetStore {
    /// In a directory, for balancers of one machine.
    Directory(PathBuf),
    /// In etcd.
    Etcd(EtcdConfig),
}

impl fmt::Display for FleetStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Etcd(etcd) => f.write_str(&etcd.endpoints.join(", ")),
        }
    }
}

/// How etcd is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// `http://` or `https://`, host and port of each.
    pub endpoints: Vec<String>,
    /// What its keys begin with.
    pub prefix: String,
    pub user: Option<(String, Password)>,
    /// Whom to trust, and what to show.
    pub tls: ClientFiles,
}

/// A password, which is not printed by accident.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(pub String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

pub(super) fn fleet(
    raw: &RawFleet,
    hears_agents: bool,
    faults: &mut Faults<'_>,
) -> Option<FleetConfig> {
    let agents = raw.agents.unwrap_or(false);
    if agents && !hears_agents {
        faults.file("[fleet] agents = true waits for agents that hear the book; name an address for them under [agent_reports], for example listen = \"10.0.0.254:9472\"");
    }
    let name = name(raw.name.as_ref(), "name", "edge", faults);
    let member = match &raw.member {
        Some(_) => self::name(raw.member.as_ref(), "member", "lb1", faults),
        None => host(faults),
    };
    let store = match &raw.store {
        Some(place) => store(place, faults),
        None => {
            faults.file("[fleet] needs `store`; write for example store = { etcd = [\"https://etcd1:2379\"] }, or store = { dir = \"/var/lib/causeway/fleet\" } for balancers of one machine");
            None
        }
    };
    let lease = time_within(raw.lease.as_ref(), "lease", LEASE, faults);
    let settle = time_within(raw.settle.as_ref(), "settle", SETTLE, faults);
    let max_removed = raw.max_removed.as_ref().and_then(|value| {
        let part = within(*value.as_ref(), &(0.0..=1.0), "max_removed", "0", "1");
        part.map_err(|message| faults.at(value.span(), message))
            .ok()
    });
    let absence = text(raw.absence.as_ref(), faults, WhenAbsent::from_word);
    Some(FleetConfig {
        name: name?,
        member: member?,
        store: store?,
        absence: match absence.unwrap_or(WhenAbsent::Waits) {
            WhenAbsent::Waits => Absence::Waits,
            WhenAbsent::StepsAside => Absence::StepsAside,
        },
        lease: lease.unwrap_or(Duration::from_secs(10)),
        settle: settle.unwrap_or(Duration::from_secs(3)),
        agents,
        max_removed: (max_removed.unwrap_or(0.5) * 1000.0).round() as u16,
    })
}

/// A name that can be part of a key and of a file's name.
fn name(
    value: Option<&Spanned<String>>,
    key: &str,
    example: &str,
    faults: &mut Faults<'_>,
) -> Option<String> {
    if value.is_none() {
        faults.file(format!(
            "[fleet] needs `{key}`; write for example {key} = \"{example}\""
        ));
    }
    text(value, faults, |name| match is_name(name) {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "`{name}` is not a valid {key} of a fleet; use 1 to {NAME_MAX} letters, digits, `-`, `_` and `.`"
        )),
    })
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (1..=NAME_MAX).contains(&name.len()) && name.chars().all(fits) && !name.starts_with('.')
}

/// The host's name, so that one file does for all balancers.
fn host(faults: &mut Faults<'_>) -> Option<String> {
    let host = nix::unistd::gethostname().ok();
    let host = host.and_then(|host| host.into_string().ok());
    let host = host.filter(|host| is_name(host));
    if host.is_none() {
        faults.file("[fleet] needs `member`, as this host has no name that will do; write for example member = \"lb1\"");
    }
    host
}

fn store(place: &Spanned<RawFleetStore>, faults: &mut Faults<'_>) -> Option<FleetStore> {
    let raw = place.as_ref();
    let of_etcd = [&raw.prefix, &raw.user, &raw.ca, &raw.certificate, &raw.key];
    let endpoints = match (&raw.dir, &raw.etcd) {
        (Some(dir), None) => {
            if of_etcd.into_iter().any(Option::is_some) || raw.password.is_some() {
                faults.at(place.span(), "a store in a directory has `dir` alone");
            }
            return Some(FleetStore::Directory(directory(Some(dir), "", faults)));
        }
        (None, Some(endpoints)) => endpoints,
        _ => {
            faults.at(
                place.span(),
                "the store is either `dir`, a directory, or `etcd`, a list of addresses",
            );
            return None;
        }
    };
    if endpoints.is_empty() {
        faults.at(
            place.span(),
            "`etcd` names no server; write for example etcd = [\"https://etcd1:2379\"]",
        );
    }
    let endpoints = endpoints
        .iter()
        .filter_map(|place| text(Some(place), faults, endpoint))
        .collect();
    let prefix = text(raw.prefix.as_ref(), faults, |prefix| {
        match prefix.starts_with('/') && !prefix.ends_with('/') {
            true => Ok(prefix.to_owned()),
            false => Err(format!(
                "`{prefix}` is not a valid prefix; begin it with `/` and end it without, for example /causeway"
            )),
        }
    });
    let password = secret(raw.password.as_ref(), faults, |text| Ok(text.to_owned()));
    let user = match (&raw.user, password) {
        (Some(user), Some(password)) => Some((user.as_ref().clone(), Password(password))),
        (None, None) => None,
        (Some(_), None) if raw.password.is_some() => None,
        _ => {
            faults.at(place.span(), "`user` and `password` come together");
            None
        }
    };
    let path = |value: &Option<Spanned<String>>, faults: &mut Faults<'_>| {
        value.as_ref().map(|path| directory(Some(path), "", faults))
    };
    let (certificate, key) = (path(&raw.certificate, faults), path(&raw.key, faults));
    if certificate.is_some() != key.is_some() {
        faults.at(place.span(), "`certificate` and `key` come together");
    }
    Some(FleetStore::Etcd(EtcdConfig {
        endpoints,
        prefix: prefix.unwrap_or_else(|| "/causeway".to_owned()),
        user,
        tls: ClientFiles {
            ca: path(&raw.ca, faults),
            identity: certificate.zip(key),
        },
    }))
}

fn endpoint(text: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "`{text}` is not a valid address of etcd; write for example https://etcd1.example:2379"
        )
    };
    let rest = text
        .strip_prefix("https://")
        .or(text.strip_prefix("http://"));
    let (host, port) = rest
        .and_then(|rest| rest.rsplit_once(':'))
        .ok_or_else(wrong)?;
    let port: Option<u16> = port.parse().ok();
    match !host.is_empty() && !host.contains('/') && port.is_some_and(|port| port != 0) {
        true => Ok(text.to_owned()),
        false => Err(wrong()),
    }
}

fn is_clear_to_others(endpoint: &str) -> bool {
    let rest = endpoint.strip_prefix("http://");
    rest.and_then(|rest| rest.rsplit_once(':'))
        .is_some_and(|(host, _)| {
            let address = host.trim_matches(['[', ']']).parse();
            host != "localhost" && !address.is_ok_and(|address: IpAddr| address.is_loopback())
        })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::BalancerConfig;
    use super::*;

    fn parse(fleet: &str) -> Result<Option<FleetConfig>, String> {
        let text = format!(
            "interface = \"eth0\"\n{fleet}\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\nreal = [{{ address = \"10.0.0.1\" }}]\n"
        );
        let config = BalancerConfig::parse(Path::new("lb.toml"), &text);
        config
            .map(|config| config.fleet)
            .map_err(|errors| errors.faults[0].message.clone())
    }

    #[test]
    fn a_fleet_has_defaults_and_none_is_none() {
        assert_eq!(parse("").unwrap(), None);
        let fleet = parse("[fleet]\nname = \"edge\"\nmember = \"lb1\"\nstore = { dir = \"/f\" }");
        let fleet = fleet.unwrap().unwrap();
        assert_eq!(fleet.to_string(), "edge as lb1, store /f");
        assert_eq!(fleet.absence, Absence::Waits);
        assert_eq!(fleet.terms().held_until(0), 9_800_000_000);
        let etcd = "[fleet]\nname = \"edge\"\nabsence = \"steps-aside\"\nstore = { etcd = [\"https://e1:2379\", \"https://[::1]:2379\"], user = \"u\", password = \"secret\", ca = \"/ca\" }";
        let fleet = parse(etcd).unwrap().unwrap();
        assert_eq!(fleet.absence, Absence::StepsAside);
        assert!(!fleet.member.is_empty(), "the host's name");
        assert!(!format!("{fleet:?}").contains("secret"));
        let FleetStore::Etcd(etcd) = fleet.store else {
            panic!("another store");
        };
        assert_eq!(
            (etcd.endpoints.len(), etcd.prefix.as_str()),
            (2, "/causeway")
        );
    }

    #[test]
    fn a_password_that_others_can_read_on_the_way_is_told() {
        let user = ", user = \"u\", password = \"secret\"";
        for (etcd, user, told) in [
            ("https://e1:2379", user, false),
            ("http://e1:2379", "", false),
            ("http://localhost:2379", user, false),
            ("http://127.0.0.2:2379", user, false),
            ("http://[::1]:2379", user, false),
            ("http://[2001:db8::1]:2379", user, true),
            ("http://e1:2379", user, true),
        ] {
            let fleet = format!(
                "[fleet]\nname = \"edge\"\nmember = \"lb1\"\nstore = {{ etcd = [\"https://e0:2379\", \"{etcd}\"]{user} }}"
            );
            let sentence = parse(&fleet).unwrap().unwrap().clear_password();
            assert_eq!(sentence.is_some(), told, "{fleet}: {sentence:?}");
            assert!(sentence.is_none_or(|of| of.starts_with(etcd)));
        }
    }

    #[test]
    fn each_fault_is_one_sentence() {
        for (keys, expected) in [
            ("store = { dir = \"/f\" }", "[fleet] needs `name`"),
            ("name = \"a\"", "[fleet] needs `store`"),
            (
                "name = \"a/b\"\nstore = { dir = \"/f\" }",
                "`a/b` is not a valid name",
            ),
            (
                "name = \"a\"\nstore = { dir = \"f\" }",
                "`f` is not an absolute path",
            ),
            ("name = \"a\"\nstore = {}", "the store is either"),
            (
                "name = \"a\"\nstore = { dir = \"/f\", user = \"u\" }",
                "a store in a directory has",
            ),
            (
                "name = \"a\"\nstore = { etcd = [] }",
                "`etcd` names no server",
            ),
            (
                "name = \"a\"\nstore = { etcd = [\"e1\"] }",
                "`e1` is not a valid address of etcd",
            ),
            (
                "name = \"a\"\nstore = { etcd = [\"http://e:1\"], user = \"u\" }",
                "`user` and `password`",
            ),
            (
                "name = \"a\"\nstore = { etcd = [\"http://e:1\"], key = \"/k\" }",
                "`certificate` and `key`",
            ),
            (
                "name = \"a\"\nstore = { etcd = [\"http://e:1\"], prefix = \"a\" }",
                "`a` is not a valid prefix",
            ),
            (
                "name = \"a\"\nstore = { dir = \"/f\" }\nlease = \"1s\"",
                "lease must lie between",
            ),
            (
                "name = \"a\"\nstore = { dir = \"/f\" }\nmax_removed = 2.0",
                "max_removed must lie between 0 and 1",
            ),
            (
                "name = \"a\"\nstore = { dir = \"/f\" }\nabsence = \"goes\"",
                "unknown absence `goes`",
            ),
        ] {
            let said = parse(&format!("[fleet]\nmember = \"m\"\n{keys}")).unwrap_err();
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
