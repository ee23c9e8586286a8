// SPDX-License-Identifier: Apache-2.0
//! Ethernet frames of what an estimator sees, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use causeway_core::capture::{Poll, Reader};
use causeway_core::estimate::Packet;
use causeway_core::wire::{TransportHeader, parse};
use causeway_dataplane::abi::{FlowKey6, addr_bytes};

/// A flow of a client; its number gives its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Flow {
    number: u32,
    proto: u8,
}

impl Flow {
    pub(crate) fn new(number: u32, proto: u8) -> Self {
        Self { number, proto }
    }

    fn client(self) -> IpAddr {
        // Every third flow is IPv6.
        if self.number.is_multiple_of(3) {
            Ipv6Addr::from((0x2001_0db8_u128 << 96) | u128::from(self.number)).into()
        } else {
            Ipv4Addr::from(0x0a00_0000 + self.number).into()
        }
    }

    fn server(self) -> IpAddr {
        match self.client() {
            IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
            IpAddr::V6(_) => Ipv6Addr::from((0x2001_0db8_u128 << 96) | (1 << 64)).into(),
        }
    }

    fn ports(self) -> (u16, u16) {
        (10_000 + (self.number % 50_000) as u16, 443)
    }

    pub(crate) fn key(self) -> FlowKey6 {
        let (sport, dport) = self.ports();
        FlowKey6 {
            saddr_be: addr_bytes(self.client()),
            daddr_be: addr_bytes(self.server()),
            sport_be: sport.to_be_bytes(),
            dport_be: dport.to_be_bytes(),
            proto: self.proto,
            pad: [0; 3],
        }
    }

    /// IP header bytes of its packets.
    fn ip_header(self) -> u32 {
        if self.client().is_ipv4() { 20 } else { 40 }
    }

    /// What a packet looks like on this flow: headers decide its IP length.
    pub(crate) fn adapt(self, packet: &Packet) -> Packet {
        let transport = match (packet.proto, packet.has_ts) {
            (Packet::TCP, true) => 32,
            (Packet::TCP, false) => 20,
            _ => 8,
        };
        Packet {
            ip_len: self.ip_header() + transport + packet.payload_len,
            ..*packet
        }
    }

    /// The frame, with zeros for payload and without checksums.
    pub(crate) fn frame(self, packet: &Packet) -> Vec<u8> {
        let packet = self.adapt(packet);
        let (sport, dport) = self.ports();
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        match (self.client(), self.server()) {
            (IpAddr::V4(client), IpAddr::V4(server)) => {
                frame.extend([8, 0, 0x45, 0]);
                frame.extend((packet.ip_len as u16).to_be_bytes());
                frame.extend([0, 0, 0x40, 0, 64, self.proto, 0, 0]);
                frame.extend(client.octets());
                frame.extend(server.octets());
            }
            (client, server) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                frame.extend((packet.ip_len as u16 - 40).to_be_bytes());
                frame.extend([self.proto, 64]);
                frame.extend(addr_bytes(client));
                frame.extend(addr_bytes(server));
            }
        }
        frame.extend(sport.to_be_bytes());
        frame.extend(dport.to_be_bytes());
        if self.proto == Packet::TCP {
            frame.extend(packet.seq.to_be_bytes());
            frame.extend(packet.ack.to_be_bytes());
            let words: u8 = if packet.has_ts { 8 } else { 5 };
            frame.extend([words << 4, packet.tcp_flags, 255, 255, 0, 0, 0, 0]);
            if packet.has_ts {
                frame.extend([1, 1, 8, 10, 0, 0, 0, 0]);
                frame.extend(packet.tsecr.to_be_bytes());
            }
        } else {
            frame.extend((packet.payload_len as u16 + 8).to_be_bytes());
            frame.extend([0, 0]);
        }
        frame.resize(14 + packet.ip_len as usize, 0);
        frame
    }
}

/// A capture of the repository; all its packets are clients'.
pub(crate) fn trace(name: &str) -> Vec<(Flow, Packet)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/measure");
    let file = std::fs::File::open(root.join(format!("{name}.pcap.zst"))).expect("trace");
    let bytes = zstd::decode_all(file).expect("zstd");
    let mut reader = Reader::new();
    reader.feed(&bytes);
    reader.finish();
    let mut flows = Vec::new();
    let mut packets = Vec::new();
    while let Poll::Packet(captured) = reader.poll().expect("pcap") {
        let t_ns = captured.time_ns.expect("time");
        let datagram = parse(
            captured.link.expect("link type"),
            captured.data,
            captured.wire_len,
        )
        .expect("packet");
        let name = (datagram.src, datagram.dst, datagram.transport.ports());
        let number = flows.iter().position(|f| *f == name).unwrap_or_else(|| {
            flows.push(name);
            flows.len() - 1
        });
        let proto = datagram.transport.protocol();
        let packet = match datagram.transport {
            TransportHeader::Tcp {
                seq,
                ack,
                flags,
                timestamps,
                payload_len,
                ..
            } => Packet {
                t_ns,
                payload_len,
                seq,
                ack,
                tsecr: timestamps.map_or(0, |ts| ts.echo),
                has_ts: timestamps.is_some(),
                tcp_flags: flags.0,
                proto,
                ..Packet::default()
            },
            TransportHeader::Udp { payload_len, .. } => Packet {
                t_ns,
                payload_len,
                proto,
                ..Packet::default()
            },
            other => panic!("{other:?}"),
        };
        packets.push((Flow::new(number as u32, proto), packet));
    }
    packets
}
