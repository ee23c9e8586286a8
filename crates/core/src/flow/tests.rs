// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

fn key(src: &str, sport: u16, dst: &str, dport: u16) -> FlowKey {
    FlowKey::new(6, src.parse().unwrap(), sport, dst.parse().unwrap(), dport)
}

fn request() -> FlowKey {
    key("10.0.0.1", 40_000, "10.0.0.2", 80)
}

fn table(max: u32) -> FlowTable<u32> {
    FlowTable::new(Direction::default(), max, 7)
}

fn see(
    table: &mut FlowTable<u32>,
    packet: FlowKey,
    hint: Hint,
    now_ns: u64,
) -> (Sender, FlowKey, u32) {
    let found = table.look_up(&packet, hint, now_ns, || 0, |_| ());
    *found.value += 1;
    (found.sender, found.name.flow(), *found.value)
}

#[test]
fn the_higher_port_is_the_client() {
    let mut table = table(10);
    assert_eq!(
        see(&mut table, request().reversed(), Hint::None, 1),
        (Sender::Server, request(), 1)
    );
    assert_eq!(
        see(&mut table, request(), Hint::None, 2),
        (Sender::Client, request(), 2)
    );
    assert_eq!(table.len(), 1);
}

#[test]
fn a_syn_overrules_the_ports() {
    let mut table = table(10);
    let odd = request().reversed();
    assert_eq!(
        see(&mut table, odd, Hint::Opens, 1),
        (Sender::Client, odd, 1)
    );
    assert_eq!(
        see(&mut table, odd.reversed(), Hint::Answers, 2),
        (Sender::Server, odd, 2)
    );
    assert_eq!(
        see(&mut table, odd, Hint::None, 3),
        (Sender::Client, odd, 3)
    );
}

#[test]
fn a_syn_answer_names_the_server() {
    let mut table = table(10);
    assert_eq!(
        see(&mut table, request(), Hint::Answers, 1).0,
        Sender::Server
    );
    assert_eq!(
        see(&mut table, request().reversed(), Hint::None, 1).0,
        Sender::Client
    );
}

#[test]
fn a_late_syn_turns_the_flow_round() {
    let mut table = table(10);
    let odd = request().reversed();
    see(&mut table, odd, Hint::None, 1);
    let mut evicted = Vec::new();
    let found = table.look_up(&odd, Hint::Opens, 2, || 5, |old| evicted.push(old));
    assert_eq!(
        (found.sender, found.name.flow(), *found.value),
        (Sender::Client, odd, 5)
    );
    assert_eq!(
        evicted,
        [Evicted {
            flow: request(),
            value: 1
        }]
    );
    assert_eq!((table.len(), table.evictions()), (1, 0));
}

#[test]
fn client_networks_overrule_the_ports() {
    let direction = Direction::new(vec!["10.0.0.2/32".parse().unwrap()]);
    let mut table = FlowTable::new(direction, 10, 7);
    assert_eq!(see(&mut table, request(), Hint::None, 1).0, Sender::Server);
    let elsewhere = key("10.0.0.9", 40_000, "10.0.0.8", 80);
    assert_eq!(see(&mut table, elsewhere, Hint::None, 1).0, Sender::Client);
}

/// As gRPC's port and Linux' clients have them.
#[test]
fn a_servers_port_overrules_the_higher_one() {
    let key = key("10.0.0.1", 40_000, "10.0.0.2", 50_051);
    let direction = |ports: &[u16]| Direction::default().with_server_ports(ports.to_vec());
    let is_client = |ports, key: &FlowKey| direction(ports).sender_is_client(key, Hint::None);
    assert!(!is_client(&[], &key));
    assert!(is_client(&[50_051, 443], &key));
    assert!(!is_client(&[50_051, 443], &key.reversed()));
    // Both: as without.
    assert!(!is_client(&[50_051, 40_000], &key));
    assert!(!direction(&[50_051]).sender_is_client(&key, Hint::Answers));
}

#[test]
fn equal_ports_leave_it_to_the_first_packet() {
    for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")] {
        let mut table = table(10);
        let first = key(src, 123, dst, 123);
        assert_eq!(see(&mut table, first, Hint::None, 1).0, Sender::Client);
        assert_eq!(
            see(&mut table, first.reversed(), Hint::None, 2),
            (Sender::Server, first, 2)
        );
    }
}

#[test]
fn a_full_table_gives_up_a_silent_flow() {
    let mut table = table(8);
    let flow = |n: u16| key("10.0.0.1", 40_000 + n, "10.0.0.2", 80);
    for n in 0..8 {
        see(
            &mut table,
            flow(n),
            Hint::None,
            if n == 3 { 0 } else { 100 + u64::from(n) },
        );
    }
    let mut gone = Vec::new();
    table.look_up(&flow(8), Hint::None, 200, || 0, |old| gone.push(old.flow));
    assert_eq!(gone, [flow(3)]);
    assert_eq!((table.len(), table.evictions()), (8, 1));
    assert_eq!(see(&mut table, flow(8), Hint::None, 201).2, 1);
}

#[test]
fn networks_are_read_and_matched() {
    let net: Cidr = "10.1.0.0/16".parse().unwrap();
    assert!(net.contains("10.1.255.255".parse().unwrap()));
    assert!(!net.contains("10.2.0.0".parse().unwrap()));
    assert!(!net.contains("::ffff:10.1.0.1".parse().unwrap()));
    let all: Cidr = "::/0".parse().unwrap();
    assert!(all.contains("2001:db8::1".parse().unwrap()));
    assert!(
        "2001:db8::1"
            .parse::<Cidr>()
            .unwrap()
            .contains("2001:db8::1".parse().unwrap())
    );
    for bad in ["", "10.0.0.0/33", "::/129", "10.0.0.0/x", "10.0.0/8", "/8"] {
        assert!(bad.parse::<Cidr>().is_err(), "{bad}");
    }
}

fn any_key() -> impl Strategy<Value = FlowKey> {
    // Few values, so that flows and their reverses collide.
    let address = prop_oneof![
        (0u8..3).prop_map(|n| IpAddr::from([10, 0, 0, n])),
        (0u16..3).prop_map(|n| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, n])),
    ];
    (0u8..2, address.clone(), 0u16..3, address, 0u16..3)
        .prop_map(|(proto, src, sport, dst, dport)| FlowKey::new(proto, src, sport, dst, dport))
}

proptest! {
    /// The table against an ordered map of both directions.
    #[test]
    fn the_table_agrees_with_a_plain_map(packets in proptest::collection::vec(any_key(), 1..200)) {
        let mut table = table(1000);
        let mut oracle: BTreeMap<FlowKey, (FlowKey, u32)> = BTreeMap::new();
        for packet in packets {
            let known = [packet, packet.reversed()].into_iter().find(|key| oracle.contains_key(key));
            let client = if packet.sport() >= packet.dport() { packet } else { packet.reversed() };
            let entry = oracle.entry(known.unwrap_or(packet)).or_insert((client, 0));
            entry.1 += 1;
            let (sender, flow, count) = see(&mut table, packet, Hint::None, 0);
            prop_assert_eq!((flow, count), *entry);
            prop_assert_eq!(sender == Sender::Client, flow == packet);
        }
        prop_assert_eq!(table.len(), oracle.len());
    }

    #[test]
    fn equal_keys_hash_equal_and_seeds_matter(a in any_key(), seed: u64) {
        let state = FlowState::new(seed);
        prop_assert_eq!(state.hash_one(a), FlowState::new(seed).hash_one(a));
        prop_assert_ne!(state.hash_one(a), FlowState::new(!seed).hash_one(a));
    }
}
