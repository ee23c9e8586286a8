// SPDX-License-Identifier: Apache-2.0
//! The balancer's file: its operator's, with the cluster's VIPs behind it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use crate::wanted::{NodeProbe, WantedVip};

/// What the operator wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseFile {
    text: String,
    reserved: BTreeSet<IpAddr>,
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
        let mut text = self.text.clone();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text += "\n# From here on written by causeway-kubernetes: changes are lost.\n";
        for vip in vips {
            // Writing to a string does not fail.
            let _ = write(&mut text, vip);
        }
        text
    }
}

/// The name is the only text that comes from the cluster.
fn write(text: &mut String, vip: &WantedVip) -> std::fmt::Result {
    let name = toml::Value::from(vip.name.as_str());
    writeln!(text, "\n[[vip]]\nname = {name}")?;
    writeln!(text, "address = \"{}\"\nport = {}", vip.address, vip.port)?;
    writeln!(text, "protocol = \"{}\"", vip.protocol.word())?;
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
    use super::*;

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
}
