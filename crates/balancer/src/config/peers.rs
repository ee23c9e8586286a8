// SPDX-License-Identifier: Apache-2.0
//! `[peers]`: the balancers that serve the same VIPs, with which measurements and votes are
//! exchanged.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use causeway_core::peer::{PEERS_MAX, PeerKeys};
use causeway_service::config::{Faults, Spanned, Text, plural, report_address, text};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Cookies;
use super::reports::report_keys;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPeers {
    pub listen: Text,
    pub keys: Text,
    #[serde(default)]
    pub members: Vec<Spanned<String>>,
}

/// The balancers of the same VIPs.
#[derive(Debug, Clone, PartialEq)]
pub struct PeersConfig {
    /// Own UDP address, by which the others know this one.
    pub listen: SocketAddr,
    /// What keys of datagrams are derived from.
    pub keys: PeerKeys,
    /// The others, in order.
    pub members: Vec<SocketAddr>,
}

pub(super) fn peers(
    raw: &RawPeers,
    cookies: Option<&Cookies>,
    faults: &mut Faults<'_>,
) -> Option<PeersConfig> {
    if raw.listen.is_none() {
        faults.file("`listen` is missing under [peers]; name this balancer's own address among `members`, for example listen = \"10.0.0.254:9473\"");
    }
    let listen = text(raw.listen.as_ref(), faults, own_address);
    let keys = report_keys(
        raw.keys.as_ref(),
        cookies,
        "balancers sign what they send each other: name a keys file with `keys` under [peers] (`causeway cookie new-keys` makes one), or the cookies' under [cookie]",
        faults,
    );
    let members = members(&raw.members, listen, faults);
    Some(PeersConfig {
        listen: listen?,
        keys: PeerKeys::of(&keys?)?,
        members,
    })
}

fn own_address(text: &str) -> Result<SocketAddr, String> {
    let address = report_address(text)?;
    match address.ip().is_unspecified() {
        false => Ok(address),
        true => Err(format!(
            "`{text}` is every address of this machine; name the one by which the other members know it"
        )),
    }
}

/// The others: the same file is on all members, and names this one, too.
fn members(
    raw: &[Spanned<String>],
    own: Option<SocketAddr>,
    faults: &mut Faults<'_>,
) -> Vec<SocketAddr> {
    let (mut members, mut known) = (Vec::new(), BTreeSet::new());
    for word in raw {
        let member = match own_address(word.as_ref()) {
            Ok(member) => member,
            Err(fault) => {
                faults.at(word.span(), fault);
                continue;
            }
        };
        if !known.insert(member.ip()) {
            faults.at(
                word.span(),
                format!(
                    "members are identified by their addresses, and {} is there twice; leave one out",
                    member.ip()
                ),
            );
        } else if own.is_none_or(|own| own.ip() != member.ip()) {
            members.push(member);
        }
    }
    if members.is_empty() {
        faults.file("[peers] names no other balancer; write their `listen` under `members`, for example members = [\"10.0.0.253:9473\"], or leave the table out");
    }
    if members.len() > PEERS_MAX {
        faults.file(format!(
            "[peers] names {}; at most {PEERS_MAX} others exchange with one",
            plural(members.len(), "other balancer")
        ));
    }
    members.sort();
    members
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::path::Path;

    use super::super::BalancerConfig;

    const FILE: &str = r#"
interface = "eth0"
[peers]
listen = "10.0.0.254:9473"
keys = "KEYS"
members = ["10.0.0.253:9473", "10.0.0.254:9473", "[2001:db8::2]:9473"]
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
    fn one_list_does_on_every_member() {
        let peers = parse(FILE).unwrap().peers.unwrap();
        let members = peers.members.iter().map(ToString::to_string);
        assert_eq!(
            members.collect::<Vec<_>>(),
            ["10.0.0.253:9473", "[2001:db8::2]:9473"]
        );
        let by_cookies = FILE
            .replace("keys = \"KEYS\"\n", "")
            .replace("[peers]", "[cookie]\nkeys = \"KEYS\"\n[peers]");
        assert_eq!(parse(&by_cookies).unwrap().peers.unwrap().members.len(), 2);
        assert_eq!(parse("interface = \"eth0\"\n").unwrap().peers, None);
    }

    #[test]
    fn members_and_keys_change_while_it_runs_and_the_own_address_does_not() {
        let of = |text: &str| parse(text).unwrap();
        let former = of(FILE);
        let fewer = of(&FILE.replace(", \"[2001:db8::2]:9473\"", ""));
        assert!(fewer.needs_restart(&former).is_empty());
        let changes = fewer.changes(&former);
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].key.as_deref(), Some("peers.members"));
        assert_eq!(changes[0].to.as_deref(), Some("10.0.0.253:9473"));
        let moved = of(&FILE.replacen("254:9473", "252:9473", 1));
        assert_eq!(moved.needs_restart(&former), ["peers.listen"]);
        let none = of("interface = \"eth0\"\n");
        assert_eq!(none.needs_restart(&former), ["peers.listen"]);
        assert!(none.changes(&former)[0].needs_restart);
    }

    #[test]
    fn each_fault_is_one_sentence() {
        for (from, to, expected) in [
            (
                "listen = \"10.0.0.254:9473\"\n",
                "",
                "`listen` is missing under [peers]",
            ),
            (
                "10.0.0.254:9473",
                "0.0.0.0:9473",
                "every address of this machine",
            ),
            (
                "10.0.0.254:9473",
                "10.0.0.254",
                "is not an address with a port",
            ),
            (
                "keys = \"KEYS\"\n",
                "",
                "name a keys file with `keys` under [peers]",
            ),
            (
                "10.0.0.253:9473",
                "10.0.0.254:9474",
                "10.0.0.254 is there twice",
            ),
            (
                "[\"10.0.0.253:9473\", ",
                "[\"lb2\", ",
                "`lb2` is not an address with a port",
            ),
            (
                "\"10.0.0.253:9473\", \"10.0.0.254:9473\", \"[2001:db8::2]:9473\"",
                "\"10.0.0.254:9473\"",
                "[peers] names no other balancer",
            ),
            (
                "members",
                "member",
                "unknown key `member` here; did you mean `members`? `member` belongs to `[fleet]`",
            ),
        ] {
            let error = parse(&FILE.replacen(from, to, 1)).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
