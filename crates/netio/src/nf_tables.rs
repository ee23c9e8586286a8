// SPDX-License-Identifier: Apache-2.0
//! The packet filter's chains that drop what no rule accepts.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;

use crate::netlink::{attribute, raw_dump};

// linux/netfilter/nfnetlink.h and nf_tables.h
const SUBSYSTEM: u16 = 10 << 8;
const NEW_CHAIN: u16 = SUBSYSTEM | 3;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
/// Bytes of `struct nfgenmsg`.
const GENERIC_LEN: usize = 4;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
/// NF_INET_LOCAL_IN and NF_DROP of linux/netfilter.h.
const LOCAL_IN: u32 = 1;
const DROP: u32 = 0;
/// Of families, those whose hooks have these numbers: inet, IPv4 and IPv6.
const FAMILIES: [(u8, &str); 3] = [(1, "inet"), (2, "ip"), (10, "ip6")];

/// Chains of packets for this host whose policy is to drop, as `family table chain`. Empty where
/// the kernel has no nf_tables.
///
/// # Errors
/// No right to ask.
pub fn closed_input_chains() -> io::Result<Vec<String>> {
    let mut chains = Vec::new();
    let take = |kind, body: &[u8]| {
        if kind == NEW_CHAIN {
            chains.extend(closed_input(body));
        }
    };
    match raw_dump(NETLINK_NETFILTER, GET_CHAIN, &[0; GENERIC_LEN], take) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Err(error),
        _ => Ok(chains),
    }
}

fn closed_input(body: &[u8]) -> Option<String> {
    let family = *body.first()?;
    let (_, family) = FAMILIES.iter().find(|(number, _)| *number == family)?;
    let body = body.get(GENERIC_LEN..)?;
    let number = |bytes: &[u8]| bytes.first_chunk().map(|word| u32::from_be_bytes(*word));
    let hook = number(attribute(attribute(body, CHAIN_HOOK)?, HOOK_NUMBER)?)?;
    let policy = number(attribute(body, CHAIN_POLICY)?)?;
    let text = |kind| {
        let bytes = attribute(body, kind)?;
        let text = bytes.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let (table, chain) = (text(CHAIN_TABLE)?, text(CHAIN_NAME)?);
    (hook == LOCAL_IN && policy == DROP).then(|| format!("{family} {table} {chain}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::from(((value.len() + 4) as u16).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn chain(hook: u32, policy: u32) -> Vec<u8> {
        let mut body = vec![1, 0, 0, 0];
        body.extend(put(CHAIN_TABLE, b"filter\0"));
        body.extend(put(CHAIN_NAME, b"input\0"));
        let hook = put(HOOK_NUMBER, &hook.to_be_bytes());
        // With the bit that says that attributes lie within.
        body.extend(put(CHAIN_HOOK | 0x8000, &hook));
        body.extend(put(CHAIN_POLICY, &policy.to_be_bytes()));
        body
    }

    #[test]
    fn a_chain_is_closed_if_it_drops_what_is_for_this_host() {
        assert_eq!(
            closed_input(&chain(1, 0)).as_deref(),
            Some("inet filter input")
        );
        assert_eq!(closed_input(&chain(1, 1)), None);
        assert_eq!(closed_input(&chain(2, 0)), None);
    }

    #[test]
    fn what_is_cut_off_is_no_chain() {
        let whole = chain(1, 0);
        for len in 0..whole.len() {
            assert_eq!(closed_input(&whole[..len]), None, "{len}");
        }
    }
}
