// SPDX-License-Identifier: Apache-2.0
//! Frames that take several buffers: the kernel's test run shows programs the first one.

use causeway_dataplane::abi::{REAL_GUE, ServerVerdict, Verdict};

use crate::frame::{Ip, Tcp, Tuple, arriving, leaving};
use crate::rig::{Rig, TCP, TUNNEL_SOURCE4, TUNNEL_SOURCE6, tunnel_real};
use crate::server::{OWN4, OWN6, Server, outer};

const CLIENTS: [(&str, &str); 2] = [
    ("198.51.100.7", "192.0.2.10"),
    ("2001:db8:c::7", "2001:db8::10"),
];
/// Not a multiple of anything.
const LENGTHS: [usize; 4] = [3000, 4111, 8901, 8948];

fn segment(client: &str, vip: &str, payload: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload).map(|n| (n % 251) as u8).collect();
    Tuple::new(client, 4000, vip, 80).tcp(Tcp {
        payload: &payload,
        ..Tcp::ack(1001, 1)
    })
}

fn balancer(vip: &str, real: &str, flags: u8) -> Rig {
    let mut rig = Rig::new();
    let mut value = tunnel_real(real);
    value.flags |= flags;
    rig.real(0, value);
    rig.vip(5, vip, 80, TCP, &[0]);
    rig.set_ctl(|ctl| ctl.mtu = 9100);
    rig
}

#[test]
fn long_packets_are_encapsulated_and_counted_whole() {
    for (client, vip) in CLIENTS {
        for (real, source) in [(OWN4, TUNNEL_SOURCE4), (OWN6, TUNNEL_SOURCE6)] {
            let mut rig = balancer(vip, real, 0);
            for (round, length) in LENGTHS.into_iter().enumerate() {
                let packet = segment(client, vip, length);
                let proto = if vip.contains(':') { 41 } else { 4 };
                let sent = rig.send(&arriving(&packet)).1;
                let flow_label = match real.contains(':') {
                    true => u32::from_be_bytes(sent[14..18].try_into().unwrap()) & 0xf_ffff,
                    false => 0,
                };
                let ip = Ip {
                    flow_label,
                    ..Ip::OUTER
                };
                let whole = ip.packet(
                    source.parse().unwrap(),
                    real.parse().unwrap(),
                    proto,
                    &packet,
                );
                // Counted whole: `expect` compares bytes, too.
                rig.expect(Verdict::Established, &arriving(&packet), &leaving(&whole));
                let counted = rig.vip_stats(5);
                assert_eq!(counted.packets, 2 * (round as u64 + 1));
                assert!(counted.bytes >= 2 * length as u64);
            }
        }
    }
}

#[test]
fn servers_open_long_tunnels_of_both_kinds() {
    let mut server = Server::new();
    for (client, vip) in CLIENTS {
        for real in [OWN4, OWN6] {
            for flags in [0, REAL_GUE] {
                let mut rig = balancer(vip, real, flags);
                for length in LENGTHS {
                    let packet = segment(client, vip, length);
                    let sent = rig.send(&arriving(&packet)).1;
                    let mut arrives = sent.clone();
                    arrives[..12].copy_from_slice(&arriving(&packet)[..12]);
                    server.expect(ServerVerdict::Decapsulated, &arrives, &arriving(&packet));
                }
            }
        }
    }
}

#[test]
fn what_is_longer_than_its_frame_is_malformed_however_long_that_is() {
    for (client, vip) in CLIENTS {
        let mut rig = balancer(vip, OWN4, 0);
        for length in LENGTHS {
            let packet = segment(client, vip, length);
            let cut = &packet[..packet.len() - 1];
            rig.expect_untouched(Verdict::Malformed, &arriving(cut));
        }
    }
}

#[test]
fn what_is_too_long_for_the_link_is_answered() {
    for (client, vip) in CLIENTS {
        let mut rig = balancer(vip, OWN4, 0);
        rig.set_ctl(|ctl| ctl.mtu = 4000);
        for length in [4111, 8948] {
            let before = rig.counters();
            let packet = arriving(&segment(client, vip, length));
            let (action, answer) = rig.send(&packet);
            assert_eq!(action, Verdict::TooBigAnswered.action() as u32);
            let verdict = Verdict::TooBigAnswered as usize;
            assert_eq!(rig.counters(), before.plus(verdict, packet.len()));
            assert!(answer.len() < 700, "{}", answer.len());
        }
    }
    // A tunnel's inner packet, too, is longer than what the program sees.
    let inner = segment(CLIENTS[0].0, CLIENTS[0].1, 8000);
    let mut server = Server::new();
    let whole = arriving(&outer(Ip::OUTER, OWN4, &inner));
    server.expect(ServerVerdict::Decapsulated, &whole, &arriving(&inner));
}
