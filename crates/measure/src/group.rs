// SPDX-License-Identifier: Apache-2.0
//! What an estimate is for: how flows fall into groups, and what groups are called.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use causeway_core::flow::FlowKey;
use causeway_core::wire::proto;
use serde::Serialize;

use super::digits::{address, decimal};
use super::words::Per;

/// Lengths of the prefixes that clients are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixLen {
    v4: u8,
    v6: u8,
}

impl Default for PrefixLen {
    /// What the Internet routes: /24 and /48.
    fn default() -> Self {
        Self { v4: 24, v6: 48 }
    }
}

impl FromStr for PrefixLen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a pair of prefix lengths: write IPv4's and IPv6's, such as 24,48"
            )
        };
        let (v4, v6) = text.split_once(',').ok_or_else(wrong)?;
        match (v4.trim().parse(), v6.trim().parse()) {
            (Ok(v4 @ 0..=32), Ok(v6 @ 0..=128)) => Ok(Self { v4, v6 }),
            _ => Err(wrong()),
        }
    }
}

impl PrefixLen {
    fn network(self, address: IpAddr) -> (IpAddr, u8) {
        match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.v4)).unwrap_or(0);
                (
                    Ipv4Addr::from_bits(address.to_bits() & mask).into(),
                    self.v4,
                )
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.v6)).unwrap_or(0);
                (
                    Ipv6Addr::from_bits(address.to_bits() & mask).into(),
                    self.v6,
                )
            }
        }
    }
}

/// The groups, each named by a flow key whose other fields are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grouping {
    /// What an estimate is for.
    pub per: Per,
    /// For [`Per::Prefix`].
    pub prefix: PrefixLen,
}

/// A group's name as JSON and Parquet have it: what does not apply is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Name {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proto: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_net: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub src: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sport: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dst: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dport: Option<u16>,
}

impl Grouping {
    /// The group of a flow.
    pub(crate) fn key(&self, flow: &FlowKey) -> FlowKey {
        let none = |like: IpAddr| match like {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        match self.per {
            Per::Flow => *flow,
            Per::Server => flow.server(),
            Per::Prefix => {
                let (network, _) = self.prefix.network(flow.src());
                FlowKey::new(0, network, 0, none(network), 0)
            }
            Per::Vip => FlowKey::new(0, none(flow.dst()), 0, flow.dst(), 0),
        }
    }

    /// Headers of the table's first columns.
    pub(crate) fn head(&self) -> &'static [&'static str] {
        match self.per {
            Per::Flow => &["PROTO", "CLIENT", "SERVER"],
            Per::Server => &["PROTO", "SERVER"],
            Per::Prefix => &["CLIENTS"],
            Per::Vip => &["VIP"],
        }
    }

    /// The table's first columns.
    pub(crate) fn cells(&self, key: &FlowKey) -> Vec<String> {
        let client = || SocketAddr::new(key.src(), key.sport()).to_string();
        let server = || SocketAddr::new(key.dst(), key.dport()).to_string();
        match self.per {
            Per::Flow => vec![protocol(key), client(), server()],
            Per::Server => vec![protocol(key), server()],
            Per::Prefix => vec![self.client_net(key)],
            Per::Vip => vec![key.dst().to_string()],
        }
    }

    /// The group in one piece, without blanks or commas.
    pub(crate) fn label(&self, key: &FlowKey) -> String {
        match self.per {
            Per::Flow => {
                let cells = self.cells(key);
                format!("{}:{}>{}", cells[0], cells[1], cells[2])
            }
            _ => self.cells(key).join(":"),
        }
    }

    /// Names of the first CSV columns, each with a comma behind.
    pub(crate) fn csv_head(&self) -> &'static str {
        match self.per {
            Per::Flow => "proto,src,sport,dst,dport,",
            Per::Server => "proto,dst,dport,",
            Per::Prefix => "client_net,",
            Per::Vip => "dst,",
        }
    }

    /// The first CSV columns, each with a comma behind.
    pub(crate) fn write_csv(
        &self,
        key: &FlowKey,
        out: &mut impl std::io::Write,
    ) -> std::io::Result<()> {
        if matches!(self.per, Per::Flow | Per::Server) {
            decimal(out, key.proto())?;
            out.write_all(b",")?;
        }
        match self.per {
            Per::Flow => {
                address(out, key.src())?;
                out.write_all(b",")?;
                decimal(out, key.sport())?;
                out.write_all(b",")?;
            }
            Per::Prefix => write!(out, "{},", self.client_net(key))?,
            Per::Server | Per::Vip => {}
        }
        if self.per != Per::Prefix {
            address(out, key.dst())?;
            out.write_all(b",")?;
        }
        if matches!(self.per, Per::Flow | Per::Server) {
            decimal(out, key.dport())?;
            out.write_all(b",")?;
        }
        Ok(())
    }

    /// The group's name, field by field.
    pub(crate) fn name(&self, key: &FlowKey) -> Name {
        let mut name = Name::default();
        match self.per {
            Per::Prefix => name.client_net = Some(self.client_net(key)),
            Per::Vip => name.dst = Some(key.dst()),
            Per::Flow | Per::Server => {
                name.proto = Some(key.proto());
                name.dst = Some(key.dst());
                name.dport = Some(key.dport());
            }
        }
        if self.per == Per::Flow {
            name.src = Some(key.src());
            name.sport = Some(key.sport());
        }
        name
    }

    fn client_net(&self, key: &FlowKey) -> String {
        let (network, len) = self.prefix.network(key.src());
        format!("{network}/{len}")
    }
}

fn protocol(key: &FlowKey) -> String {
    match key.proto() {
        proto::TCP => "tcp".to_owned(),
        proto::UDP => "udp".to_owned(),
        number => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(src: &str, dst: &str) -> FlowKey {
        FlowKey::new(6, src.parse().unwrap(), 40_000, dst.parse().unwrap(), 443)
    }

    fn label(per: Per, prefix: &str, flow: &FlowKey) -> String {
        let grouping = Grouping {
            per,
            prefix: prefix.parse().unwrap(),
        };
        grouping.label(&grouping.key(flow))
    }

    #[test]
    fn flows_fall_into_groups() {
        let four = flow("10.1.2.3", "192.0.2.1");
        let six = flow("2001:db8:1:2::3", "2001:db8::1");
        let cases = [
            (Per::Flow, &four, "tcp:10.1.2.3:40000>192.0.2.1:443"),
            (Per::Server, &four, "tcp:192.0.2.1:443"),
            (Per::Prefix, &four, "10.1.2.0/24"),
            (Per::Vip, &four, "192.0.2.1"),
            (Per::Server, &six, "tcp:[2001:db8::1]:443"),
            (Per::Prefix, &six, "2001:db8:1::/48"),
            (Per::Vip, &six, "2001:db8::1"),
        ];
        for (per, flow, expected) in cases {
            assert_eq!(label(per, "24,48", flow), expected);
        }
        assert_eq!(label(Per::Prefix, "0,0", &four), "0.0.0.0/0");
        assert_eq!(label(Per::Prefix, "32,128", &six), "2001:db8:1:2::3/128");
    }

    #[test]
    fn prefix_lengths_are_checked() {
        for bad in ["", "24", "33,48", "24,129", "a,b", "24;48"] {
            assert!(bad.parse::<PrefixLen>().is_err(), "{bad}");
        }
    }
}
