// SPDX-License-Identifier: Apache-2.0
//! Which packets `causeway capture` and `causeway trace --live` look at.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Result, bail};
use causeway_core::flow::Cidr;
use causeway_dataplane::abi::{ServerVerdict, Verdict};
use causeway_dataplane::{MirrorOptions, MirrorVip, Protocol};
use causeway_service::config::{nearest, units};

use super::plane::Plane;

/// The packets that are wanted, and how many.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Selection {
    /// Only packets to this VIP, by its name, address, or address and port; ICMP to its address among them
    #[arg(id = "to_vip", long = "vip", value_name = "VIP")]
    vip: Option<String>,
    /// Only packets from this client or network
    #[arg(id = "from_client", long = "client", value_name = "NETWORK")]
    client: Option<Cidr>,
    /// Only packets with this verdict, a word of `causeway stats`; several with commas
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    verdict: Vec<String>,
    /// Only packets that are sent to this real
    #[arg(long, value_name = "ADDRESS")]
    pub real: Option<IpAddr>,
    /// Copy one packet in N, at random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    sample: u32,
    /// Copy at most N packets a second; the others are counted
    #[arg(long, value_name = "N", default_value_t = RATE, value_parser = clap::value_parser!(u32).range(15..=1_000_000))]
    rate: u32,
    /// Stop after this many packets
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Stop after this long
    #[arg(long = "for", value_name = "TIME", value_parser = units::duration)]
    pub duration: Option<Duration>,
}

/// Packets a second, unless told otherwise.
const RATE: u32 = 10_000;

impl Selection {
    /// Whether nothing was chosen.
    pub(crate) fn is_everything(&self) -> bool {
        let chosen = self.vip.is_some() || self.client.is_some() || self.real.is_some();
        let bounded = self.count.is_some() || self.duration.is_some();
        let usual = self.sample == 1 && self.rate == RATE && self.verdict.is_empty();
        !chosen && !bounded && usual
    }

    /// What the data plane is asked for. `real` and an expression are tried here.
    pub(crate) fn options(&self, plane: &Plane, snap: u16) -> Result<MirrorOptions> {
        Ok(MirrorOptions {
            vip: self
                .vip
                .as_deref()
                .map(|vip| find_vip(plane, vip))
                .transpose()?,
            client: self.client.map(|net| (net.address(), net.prefix_len())),
            verdicts: verdicts(&self.verdict, plane)?,
            snap,
            one_in: self.sample,
            rate_pps: self.rate,
            ..MirrorOptions::default()
        })
    }
}

/// By name in the file, else by address.
fn find_vip(plane: &Plane, text: &str) -> Result<MirrorVip> {
    let named = plane.names().find(|(name, _)| *name == text);
    if let Some((_, vip)) = named {
        return Ok(MirrorVip {
            address: vip.address,
            port: Some(vip.port).filter(|port| *port != 0),
            protocol: Some(vip.protocol),
        });
    }
    let (ends, protocol) = match text.rsplit_once('/') {
        Some((ends, "tcp")) => (ends, Some(Protocol::Tcp)),
        Some((ends, "udp")) => (ends, Some(Protocol::Udp)),
        _ => (text, None),
    };
    let (address, port) = match (ends.parse(), ends.parse::<SocketAddr>()) {
        (Ok(address), _) => (address, None),
        (_, Ok(ends)) => (ends.ip(), Some(ends.port())),
        _ => {
            let names: Vec<&str> = plane.names().map(|(name, _)| name).collect();
            match nearest(text, &names) {
                Some(near) => bail!("there is no VIP `{text}`; did you mean `{near}`?"),
                None => bail!(
                    "there is no VIP `{text}`: give a name of the configuration, an address, or an address and port such as 192.0.2.1:80"
                ),
            }
        }
    };
    Ok(MirrorVip {
        address,
        port,
        protocol,
    })
}

/// A bit for each word; all of them without any.
fn verdicts(words: &[String], plane: &Plane) -> Result<u64> {
    let known: Vec<&str> = match plane {
        Plane::Balancer { .. } => Verdict::ALL.map(Verdict::as_str).to_vec(),
        Plane::Server { .. } => ServerVerdict::ALL.map(ServerVerdict::as_str).to_vec(),
    };
    let mut bits = 0;
    for word in words {
        match known.iter().position(|known| known == word) {
            Some(at) => bits |= 1 << at,
            None => match nearest(word, &known) {
                Some(near) => bail!("there is no verdict `{word}`; did you mean `{near}`?"),
                None => bail!(
                    "there is no verdict `{word}`; they are {}",
                    known.join(", ")
                ),
            },
        }
    }
    Ok(if bits == 0 { u64::MAX } else { bits })
}

#[cfg(test)]
mod tests {
    use super::super::plane::tests::balancer;
    use super::*;

    #[test]
    fn a_vip_has_several_names() {
        let plane = balancer();
        let vip = |text: &str| find_vip(&plane, text).map(|vip| (vip.port, vip.protocol));
        assert_eq!(vip("web").unwrap(), (Some(80), Some(Protocol::Tcp)));
        assert_eq!(vip("192.0.2.1").unwrap(), (None, None));
        assert_eq!(
            vip("192.0.2.1:53/udp").unwrap(),
            (Some(53), Some(Protocol::Udp))
        );
        assert_eq!(vip("[2001:db8::1]:443").unwrap(), (Some(443), None));
        let wrong = vip("wbe").unwrap_err().to_string();
        assert_eq!(wrong, "there is no VIP `wbe`; did you mean `web`?");
        assert!(vip("192.0.2.1:http").is_err());
    }

    #[test]
    fn verdicts_are_words() {
        let plane = balancer();
        let bits = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            verdicts(&words, &plane)
        };
        assert_eq!(bits(&[]).unwrap(), u64::MAX);
        let both = 1 << Verdict::NoReal as u64 | 1 << Verdict::Moved as u64;
        assert_eq!(bits(&["no_real", "moved"]).unwrap(), both);
        let wrong = bits(&["no_reel"]).unwrap_err().to_string();
        assert_eq!(
            wrong,
            "there is no verdict `no_reel`; did you mean `no_real`?"
        );
    }
}
