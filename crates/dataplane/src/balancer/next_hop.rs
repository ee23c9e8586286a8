// SPDX-License-Identifier: Apache-2.0
//! The next hop in the control block.

use std::net::IpAddr;

use causeway_netio::NextHop;

use crate::abi;

/// Writes a next hop into the control block, whose other fields stay.
pub(crate) fn store_next_hop(hop: &NextHop, ctl: &mut abi::Ctl) {
    ctl.gateway_mac = hop.gateway_mac;
    ctl.gateway6_mac = hop.gateway6_mac;
    ctl.own_mac = hop.mac;
    ctl.mtu = hop.mtu;
    ctl.outer4_be = hop.source_v4.map_or([0; 4], |s| s.address.octets());
    ctl.outer4_entropy_be = hop.source_v4.map_or([0; 4], |s| s.mask());
    ctl.outer6_be = hop.source_v6.map_or([0; 16], |s| s.address.octets());
    ctl.outer6_entropy_be = hop.source_v6.map_or([0; 4], |s| s.mask());
    ctl.gue_port_be = hop.gue.port.to_be_bytes();
    let flag = |on: bool, flag: u8| if on { flag } else { 0 };
    ctl.gue_checksum = flag(hop.gue.checksum_v4, abi::GUE_CHECKSUM_4)
        | flag(hop.gue.checksum_v6, abi::GUE_CHECKSUM_6);
}

/// The outer sources that the control block has.
pub(crate) fn sources(ctl: &abi::Ctl) -> Vec<IpAddr> {
    let both = [IpAddr::from(ctl.outer4_be), IpAddr::from(ctl.outer6_be)];
    both.into_iter()
        .filter(|source| !source.is_unspecified())
        .collect()
}

#[cfg(test)]
mod tests {
    use causeway_netio::InterfaceInfo;

    use super::*;

    #[test]
    fn a_next_hop_leaves_the_hash_key_alone() {
        let info = InterfaceInfo {
            name: "eth0".to_owned(),
            index: 2,
            mac: [2; 6],
            mtu: 70_000,
            addresses: vec!["2001:db8::7".parse().unwrap(), "192.0.2.7".parse().unwrap()],
        };
        let mut ctl = abi::Ctl {
            hash_key: [3, 4],
            ..Default::default()
        };
        store_next_hop(&info.next_hop([9; 6], [8; 6], &[]), &mut ctl);
        assert_eq!(ctl.hash_key, [3, 4]);
        assert_eq!((ctl.gateway_mac, ctl.gateway6_mac), ([9; 6], [8; 6]));
        assert_eq!(ctl.own_mac, [2; 6]);
        assert_eq!(ctl.mtu, u16::MAX);
        assert_eq!(ctl.outer4_be, [192, 0, 2, 7]);
        assert_eq!(ctl.outer6_be[..4], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(ctl.outer4_entropy_be, [0; 4]);
        let mut expected = info.addresses;
        expected.reverse();
        assert_eq!(sources(&ctl), expected);
        assert!(sources(&abi::Ctl::default()).is_empty());
    }
}
