// SPDX-License-Identifier: Apache-2.0
//! Keys that the balancer's and the agent's files share: cookies, addresses, XDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use causeway_core::cookie::{CookieLayout, CookieMode};
use schemars::JsonSchema;
use serde::Deserialize;

use super::error::Faults;
use super::spanned::Spanned;
use super::values::{Text, number, number_within};
use super::words::Words;
use crate::words;

words! {
    /// What keeps a connection on its real, whatever changes.
    CookieKind, "cookie", {
        /// Nothing but the flow table.
        None = "none",
        /// In the low bits of TCP timestamps, with a clock of its own above.
        Timestamp = "timestamp",
        /// The same with the natural clock: no state at the server, no echo for it.
        TimestampLight = "timestamp-light",
        /// None of its own: a first tier that reads the tokens of stateful balancers.
        Tier = "tier",
    }
}

/// The cookie that a word stands for.
pub fn cookie_kind(word: &str) -> Result<CookieKind, String> {
    if word == "timestamp-msb" {
        return Err(
            "`timestamp-msb` is gone: connections that were silent for 66 s stalled; write `timestamp`"
                .to_owned(),
        );
    }
    CookieKind::from_word(word)
}

/// UDP port of GUE (draft-ietf-intarea-gue-09).
const GUE_PORT: u16 = 6080;

/// The UDP port of GUE.
pub fn gue_port(value: Option<&Spanned<i64>>, faults: &mut Faults<'_>) -> u16 {
    number_within(value, "gue_port", 1..=u16::MAX, faults).unwrap_or(GUE_PORT)
}

/// `[xdp]`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawXdp {
    /// How to attach.
    pub mode: Text,
}

/// A format from its keys: what is not given is the mode's own.
pub fn cookie_format(
    kind: CookieKind,
    bits: Option<&Spanned<i64>>,
    id_bits: Option<&Spanned<i64>>,
    faults: &mut Faults<'_>,
) -> Option<CookieLayout> {
    let mode = match kind {
        CookieKind::None => return None,
        CookieKind::Timestamp => CookieMode::Timestamp,
        CookieKind::TimestampLight => CookieMode::Light,
        CookieKind::Tier => CookieMode::Tier,
    };
    let default = CookieLayout::default_of(mode);
    let octet = |value: Option<&Spanned<i64>>, default: u8| match value {
        None => default,
        Some(value) => u8::try_from(*value.as_ref()).unwrap_or(u8::MAX),
    };
    let wanted = (
        octet(bits, default.bits()),
        octet(id_bits, default.id_bits()),
    );
    match CookieLayout::new(mode, wanted.0, wanted.1) {
        Ok(format) => Some(format),
        Err(error) => {
            let place = bits.or(id_bits).map(Spanned::span);
            faults.at(place.unwrap_or_default(), error.to_string());
            None
        }
    }
}

/// Where reports go: an address and a port.
pub fn report_address(text: &str) -> Result<SocketAddr, String> {
    let address = SocketAddr::from_str(text).ok();
    address.filter(|address| address.port() != 0).ok_or_else(|| {
        format!(
            "`{text}` is not an address with a port; write for example 192.0.2.1:9471 or [2001:db8::1]:9471"
        )
    })
}

pub fn token_source_v4(text: &str) -> Result<Ipv4Addr, String> {
    let address = text
        .strip_suffix("/16")
        .and_then(|address| Ipv4Addr::from_str(address).ok());
    address
        .filter(|address| u32::from(*address) & 0xffff == 0 && !address.is_unspecified())
        .ok_or_else(|| format!("`{text}` is not a valid source of tokens; write a network of 16 bits, for example 10.8.0.0/16"))
}

pub fn token_source_v6(text: &str) -> Result<Ipv6Addr, String> {
    let address = text
        .strip_suffix("/112")
        .and_then(|address| Ipv6Addr::from_str(address).ok());
    address
        .filter(|address| address.segments()[7] == 0 && address.segments()[0] != 0)
        .ok_or_else(|| format!("`{text}` is not a valid source of tokens; write a network of 16 bits, for example fd00:8::/112"))
}

/// `192.0.2.1:80`, `[2001:db8::1]:80`, and `:*` for every port.
pub fn endpoint(address: IpAddr, port: u16) -> String {
    match (address, port) {
        (IpAddr::V4(address), 0) => format!("{address}:*"),
        (IpAddr::V6(address), 0) => format!("[{address}]:*"),
        _ => SocketAddr::new(address, port).to_string(),
    }
}

pub fn vip_address(text: &str) -> Result<IpAddr, String> {
    let address = host_address(text)?;
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(format!(
            "`{text}` is an IPv4 address in IPv6 clothes; write it as IPv4"
        )),
        _ => Ok(address),
    }
}

/// The port of a VIP; 0 is every port.
pub fn vip_port(value: &Spanned<i64>, faults: &mut Faults<'_>) -> Option<u16> {
    let any = |_: &u16| true;
    number(Some(value), any, faults, |port| {
        format!("port {port} is out of range; use 1 to 65535, or 0 for every port")
    })
}

/// An address of one host.
pub fn host_address(text: &str) -> Result<IpAddr, String> {
    let address = IpAddr::from_str(text).map_err(|_| match SocketAddr::from_str(text) {
        Ok(_) => format!("`{text}` holds a port; give the address alone (reals get the VIP's port, direct server return cannot remap it)"),
        Err(_) => format!("`{text}` is not a valid IP address; write for example 192.0.2.1 or 2001:db8::1"),
    })?;
    match address.is_multicast() || address.is_unspecified() {
        true => Err(format!("`{text}` is not the address of a single host")),
        false => Ok(address),
    }
}

/// A server's id in a VIP.
pub fn cookie_id(
    value: Option<&Spanned<i64>>,
    format: Option<&CookieLayout>,
    faults: &mut Faults<'_>,
) -> Option<u16> {
    let ids = format.map_or(causeway_core::cookie::IDS, CookieLayout::ids);
    let fits = |id: &u16| *id < ids;
    number(value, fits, faults, |id| {
        format!("id {id} is out of range; use 0 to {}", ids - 1)
    })
}
