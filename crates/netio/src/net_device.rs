// SPDX-License-Identifier: Apache-2.0
//! The devices of the calling thread's network namespace, and which lies on which.

use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{
    InfoBond, InfoData, InfoKind, InfoVlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};

use crate::netlink::{dump, get};

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetDevice {
    /// Its name.
    pub name: String,
    /// Its number.
    pub index: u32,
    /// What it is, where it is made by software: `vlan`, `bond`, `veth`, ...
    pub kind: Option<String>,
    /// Whether it is turned on.
    pub up: bool,
    /// Whether its link is there.
    pub carrier: bool,
    /// Its MTU, bytes.
    pub mtu: u32,
    /// Number of the device below it, of a VLAN say.
    pub below: Option<u32>,
    /// Number of the bond or bridge that it is part of.
    pub controller: Option<u32>,
    /// A bond's mode, by the kernel's word.
    pub bond_mode: Option<String>,
    /// What a bond chooses its ports by, by the kernel's word.
    pub bond_hash: Option<String>,
    /// A VLAN's id.
    pub vlan_id: Option<u16>,
    /// Queues that receive and that send.
    pub queues: (u32, u32),
}

/// All of them.
///
/// # Errors
/// If the kernel does not answer.
pub fn net_devices() -> io::Result<Vec<NetDevice>> {
    let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
    dump(request, |message| match message {
        RouteNetlinkMessage::NewLink(link) => Some(device(&link)),
        _ => None,
    })
}

/// The one with this number.
pub(crate) fn net_device(index: u32) -> io::Result<Option<NetDevice>> {
    let mut request = LinkMessage::default();
    request.header.index = index;
    Ok(match get(RouteNetlinkMessage::GetLink(request))? {
        Some(RouteNetlinkMessage::NewLink(link)) => Some(device(&link)),
        _ => None,
    })
}

fn device(link: &LinkMessage) -> NetDevice {
    let flags = link.header.flags;
    let mut device = NetDevice {
        index: link.header.index,
        up: flags.contains(LinkFlags::Up),
        carrier: flags.contains(LinkFlags::LowerUp),
        ..NetDevice::default()
    };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => device.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => device.mtu = *mtu,
            LinkAttribute::Link(below) => device.below = Some(*below),
            LinkAttribute::Controller(index) => device.controller = Some(*index),
            LinkAttribute::NumRxQueues(queues) => device.queues.0 = *queues,
            LinkAttribute::NumTxQueues(queues) => device.queues.1 = *queues,
            LinkAttribute::LinkInfo(infos) => infos.iter().for_each(|i| describe(&mut device, i)),
            _ => {}
        }
    }
    device
}

fn describe(device: &mut NetDevice, info: &LinkInfo) {
    match info {
        LinkInfo::Kind(InfoKind::Other(kind)) => device.kind = Some(kind.clone()),
        LinkInfo::Kind(kind) => device.kind = Some(kind.to_string()),
        LinkInfo::Data(InfoData::Vlan(data)) => {
            device.vlan_id = data.iter().find_map(|datum| match datum {
                InfoVlan::Id(id) => Some(*id),
                _ => None,
            });
        }
        LinkInfo::Data(InfoData::Bond(data)) => {
            for datum in data {
                match datum {
                    InfoBond::Mode(mode) => device.bond_mode = Some(mode.to_string()),
                    InfoBond::XmitHashPolicy(hash) => device.bond_hash = Some(hash.to_string()),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::link::{BondMode, BondXmitHashPolicy};

    use super::*;

    fn link(attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut link = LinkMessage::default();
        link.header.flags = LinkFlags::Up;
        link.attributes = attributes;
        link
    }

    #[test]
    fn bonds_and_vlans_are_told_by_the_kernels_words() {
        let bond = device(&link(vec![
            LinkAttribute::IfName("bond0".to_owned()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Bond),
                LinkInfo::Data(InfoData::Bond(vec![
                    InfoBond::Mode(BondMode::BalanceAlb),
                    InfoBond::XmitHashPolicy(BondXmitHashPolicy::VlanSrcMac),
                ])),
            ]),
        ]));
        assert_eq!(bond.kind.as_deref(), Some("bond"));
        assert_eq!(bond.bond_mode.as_deref(), Some("balance-alb"));
        assert_eq!(bond.bond_hash.as_deref(), Some("vlan+srcmac"));
        assert!(bond.up && !bond.carrier);
        let vlan = device(&link(vec![
            LinkAttribute::Link(2),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vlan),
                LinkInfo::Data(InfoData::Vlan(vec![InfoVlan::Id(100)])),
            ]),
        ]));
        assert_eq!((vlan.below, vlan.vlan_id), (Some(2), Some(100)));
    }
}
