// SPDX-License-Identifier: Apache-2.0
//! The balancer's file: its operator's, with the cluster's VIPs behind it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use serde::Deserialize;

use crate::claims::Transport;
use crate::objects::ObjectKey;
use crate::wanted::{NodeProbe, WantedVip};

/// What stands between the operator's part and this program's.
const MARK: &str = "\n# From here on written by causeway-kubernetes: changes are lost.\n";

/// What the operator wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseFile {
    text: String,
    reserved: BTreeSet<IpAddr>,
    /// Whether it says itself, under `[reload]`, what is to become of a file without VIPs.
    has_reload: bool,
}

impl BaseFile {
    /// Reads the text of a file. The balancer checks what it says; here, only what would not go
    /// together with more VIPs is refused. The error is one sentence.
    pub fn parse(text: String) -> Result<Self, String> {
        if text.trim_start().starts_with('{') {
            return Err(
                "it is JSON, behind which no VIP can be written; write it as TOML".to_owned(),
            );
        }
        let table: toml::Table = text
            .parse()
            .map_err(|error: toml::de::Error| format!("it is not TOML: {}", error.message()))?;
        let vips = table.get("vip").and_then(toml::Value::as_array);
        let addresses = vips.into_iter().flatten();
        let addresses = addresses.filter_map(|vip| vip.get("address")?.as_str()?.parse().ok());
        let base = Self {
            reserved: addresses.collect(),
            has_reload: table.contains_key("reload"),
            text,
        };
        let more = format!("{}\n[[vip]]\n", base.text);
        if more.parse::<toml::Table>().is_err() {
            return Err(
                "its `vip` is a list in brackets, to which none can be added; write each as [[vip]]"
                    .to_owned(),
            );
        }
        Ok(base)
    }

    /// Addresses of its own VIPs.
    pub fn reserved(&self) -> &BTreeSet<IpAddr> {
        &self.reserved
    }

    /// The file with these VIPs. What the operator wrote stays on its lines, for the balancer's
    /// messages name them.
    pub fn with<'a>(&self, vips: impl IntoIterator<Item = &'a WantedVip>) -> String {
        let mut text = self.alone();
        if !self.has_reload {
            // The last Service may go.
            text += "\n[reload]\nallow_empty = true\n";
        }
        for vip in vips {
            // Writing to a string does not fail.
            let _ = write(&mut text, vip);
        }
        text
    }

    /// The file before anything is known of the cluster: that it has no VIPs is not meant.
    pub fn alone(&self) -> String {
        let end = if self.text.ends_with('\n') { "" } else { "\n" };
        format!("{}{end}{MARK}", self.text)
    }
}

/// Both parts of a file that was written: the operator's, and the cluster's VIPs. `None` if it was not
/// written by this program.
pub fn parts(text: &str) -> Option<(BaseFile, Vec<WantedVip>)> {
    let (base, rest) = text.rsplit_once(MARK)?;
    let written: Written = toml::from_str(rest).ok()?;
    let vips: Option<Vec<WantedVip>> = written.vip.into_iter().map(WrittenVip::read).collect();
    Some((BaseFile::parse(base.to_owned()).ok()?, vips?))
}

/// What [`write`] writes.
#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    vip: Vec<WrittenVip>,
}

#[derive(Deserialize)]
struct WrittenVip {
    name: String,
    address: IpAddr,
    port: u16,
    protocol: String,
    affinity: Option<String>,
    health: Option<WrittenProbe>,
    real: Vec<WrittenReal>,
}

#[derive(Deserialize)]
struct WrittenProbe {
    port: u16,
    #[serde(default)]
    take_weight: bool,
}

#[derive(Deserialize)]
struct WrittenReal {
    address: IpAddr,
    #[serde(default)]
    drain: bool,
}

impl WrittenVip {
    fn read(self) -> Option<WantedVip> {
        let (service, _) = self.name.split_once(':')?;
        let (namespace, name) = service.split_once('/')?;
        let mut protocols = [Transport::Tcp, Transport::Udp].into_iter();
        let reals = self.real.into_iter();
        Some(WantedVip {
            service: ObjectKey {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
            address: self.address,
            port: self.port,
            protocol: protocols.find(|of| of.word() == self.protocol)?,
            affinity: self.affinity.is_some(),
            health: self.health.map(|probe| NodeProbe {
                port: probe.port,
                weight: probe.take_weight,
            }),
            reals: reals.map(|real| (real.address, real.drain)).collect(),
            name: self.name,
        })
    }
}

/// The name is the only text that comes from the cluster.
fn write(text: &mut String, vip: &WantedVip) -> std::fmt::Result {
    let name = toml::Value::from(vip.name.as_str());
    writeln!(text, "\n[[vip]]\nname = {name}")?;
    writeln!(text, "address = \"{}\"\nport = {}", vip.address, vip.port)?;
    writeln!(text, "protocol = \"{}\"", vip.protocol.word())?;
    // Pods answer, whose timestamps no agent writes: whatever keys or `[defaults]` there are.
    writeln!(text, "cookie = \"none\"")?;
    if vip.affinity {
        writeln!(text, "affinity = \"client\"")?;
    }
    if let Some(probe) = &vip.health {
        write!(
            text,
            "health = {{ probe = \"http\", to = \"real\", port = {}, path = \"{}\"",
            probe.port,
            NodeProbe::PATH
        )?;
        if probe.weight {
            write!(text, ", take_weight = true")?;
        }
        writeln!(text, " }}")?;
    }
    writeln!(text, "real = [")?;
    for (address, drains) in &vip.reals {
        let drain = if *drains { ", drain = true" } else { "" };
        writeln!(text, "  {{ address = \"{address}\"{drain} }},")?;
    }
    writeln!(text, "]")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use causeway_balancer::BalancerConfig;

    use super::*;

    fn vip(port: u16, health: Option<NodeProbe>) -> WantedVip {
        WantedVip {
            name: format!("default/web:{port}/udp"),
            service: ObjectKey {
                namespace: "default".into(),
                name: "web".into(),
            },
            address: "2001:db8::1".parse().unwrap(),
            port,
            protocol: Transport::Udp,
            affinity: port == 53,
            health,
            reals: [("10.0.0.1", false), ("fd00::1", true)]
                .map(|(address, drains)| (address.parse().unwrap(), drains))
                .into(),
        }
    }

    #[test]
    fn a_base_that_cannot_have_more_vips_is_refused() {
        for (text, expected) in [
            ("{\"interface\": \"eth0\"}", "it is JSON"),
            ("interface = ", "it is not TOML: "),
            (
                "vip = [{ address = \"192.0.2.1\", port = 80 }]",
                "its `vip` is a list in brackets",
            ),
        ] {
            let error = BaseFile::parse(text.to_owned()).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn what_the_operator_wrote_stays_on_its_lines_and_its_addresses_are_taken() {
        let text = "interface = \"eth0\"\n# mine\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80";
        let base = BaseFile::parse(text.to_owned()).unwrap();
        assert_eq!(
            base.reserved(),
            &BTreeSet::from(["192.0.2.1".parse().unwrap()])
        );
        assert!(
            base.with([])
                .starts_with(&format!("{text}\n\n# From here on"))
        );
    }

    #[test]
    fn a_file_without_vips_is_meant_once_the_cluster_is_known_unless_the_operator_says_otherwise() {
        let base = |text: &str| BaseFile::parse(text.to_owned()).unwrap();
        let own = base("interface = \"eth0\"\n");
        assert!(own.with([]).ends_with("\n[reload]\nallow_empty = true\n"));
        assert!(!own.alone().contains("allow_empty"));
        let said = base("reload.allow_empty = false\n");
        assert!(!said.with([]).contains("allow_empty = true"));
    }

    #[test]
    fn vips_of_the_cluster_have_no_cookies_whatever_the_operators_have() {
        let keys = tempfile::NamedTempFile::new().unwrap();
        fs::write(keys.path(), format!("current = 0\nkey0 = \"{:032x}\"\n", 1)).unwrap();
        for defaults in ["", "[defaults]\ncookie = \"timestamp-light\"\n"] {
            let base = format!(
                "interface = \"eth0\"\n[cookie]\nkeys = \"{}\"\n{defaults}[[vip]]\naddress = \"192.0.2.1\"\n\
                 port = 80\nreal = [{{ address = \"10.0.0.1\" }}]\n",
                keys.path().display()
            );
            let base = BaseFile::parse(base).unwrap();
            let vips = [(Transport::Tcp, 53), (Transport::Udp, 54)];
            let vips = vips.map(|(protocol, port)| WantedVip {
                protocol,
                ..vip(port, None)
            });
            let text = base.with(&vips);
            let config = BalancerConfig::parse(Path::new("lb.toml"), &text).unwrap();
            let have: Vec<bool> = config.vips.iter().map(|of| of.cookie.is_some()).collect();
            assert_eq!(have, [true, false, false], "{text}");
        }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let probe = |weight| NodeProbe { port: 7, weight };
        let vips = [
            vip(53, Some(probe(true))),
            vip(54, Some(probe(false))),
            vip(55, None),
        ];
        let base = BaseFile::parse("interface = \"eth0\"\n".to_owned()).unwrap();
        let read = parts(&base.with(&vips)).unwrap();
        assert_eq!(read, (base.clone(), vips.to_vec()));
        assert_eq!(parts(&base.alone()), Some((base, vec![])));
        assert_eq!(parts("interface = \"eth0\"\n"), None);
    }
}
