// SPDX-License-Identifier: Apache-2.0
//! UDP VIPs with QUIC connection ids: what an id decides, and what happens without one.

use causeway_core::cookie::quic::CidRoute;
use causeway_dataplane::FlowLimit;
use causeway_dataplane::abi::{CookieResult, PICK_TURN, RealValue, Verdict};
use causeway_quic_lb::{Algorithm, CidConfig, CidKey, Codec};

use crate::frame::{Ip, Tuple, arriving, icmp, leaving};
use crate::rig::{Counters, Rig, TUNNEL_SOURCE4, UDP};
use crate::verdict_tests;

const VIP: &str = "192.0.2.10";
const VIP6: &str = "2001:db8:1::10";
/// Ids of reals 0, 1 and 2.
const IDS: [(u16, u32); 3] = [(700, 0), (1, 1), (1023, 2)];
/// An id that no real has.
const UNUSED: u16 = 9;
/// Versions 1 and 2, and one that greases (RFC 9000, section 15).
const V1: u32 = 1;
const V2: u32 = 0x6b33_43cf;
const UNKNOWN_VERSION: u32 = 0x1a2a_3a4a;

/// Three reals by turns, without measurement: nothing but ids keeps a connection.
struct Unmeasured(Rig);

impl Unmeasured {
    fn new() -> Self {
        let mut rig = Rig::with(false);
        set_up(&mut rig);
        Self(rig)
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }
}

fn set_up(rig: &mut Rig) {
    for (_, real) in IDS {
        rig.tunnel_real(real, &address(real));
    }
    rig.vip(5, VIP, 443, UDP, &[0, 1, 2]);
    rig.ring(5, &[0, 1, 2]);
    rig.change_vip(VIP, 443, UDP, |vip| {
        (vip.ring_size, vip.pick) = (3, PICK_TURN);
    });
    rig.quic_ids((VIP, 443), &routes(), &IDS);
}

/// One of every kind: plain, siphash, AES in one pass, in four, of an odd length.
fn configs() -> Vec<CidConfig> {
    let key = CidKey::new([0x5a; 16]);
    [
        CidConfig::new(0, 2, 8, Algorithm::SipHash(key)),
        CidConfig::new(1, 2, 4, Algorithm::Plain),
        CidConfig::new(2, 2, 14, Algorithm::Aes128(key)),
        CidConfig::new(3, 3, 16, Algorithm::Aes128(key)),
        CidConfig::new(4, 4, 4, Algorithm::Aes128(key)),
        CidConfig::new(6, 4, 8, Algorithm::SipHash(key)),
    ]
    .into_iter()
    .collect::<Result<_, _>>()
    .expect("valid")
}

/// The configuration that is not there.
const NO_CONFIG: u8 = 5;

fn routes() -> Vec<CidRoute> {
    configs()
        .iter()
        .map(|config| CidRoute::new(config).expect("short enough"))
        .collect()
}

fn address(real: u32) -> String {
    format!("10.1.0.{}", 10 + real)
}

fn tunnelled(real: u32, inner: &[u8]) -> Vec<u8> {
    let (from, to) = (TUNNEL_SOURCE4.parse(), address(real).parse());
    leaving(&Ip::OUTER.packet(from.unwrap(), to.unwrap(), 4, inner))
}

fn client(port: u16) -> Tuple {
    Tuple::new("198.51.100.7", port, VIP, 443)
}

/// A connection id of a server under a configuration.
fn id_under(config: &CidConfig, server: u16) -> Vec<u8> {
    let number = u32::from(server).to_be_bytes();
    let server_id = &number[4 - config.server_id_len().min(4)..];
    let nonce = vec![0x77; config.nonce_len()];
    let id = Codec::new(config).encode(server_id, &nonce, 0x15);
    id.expect("lengths fit").to_vec()
}

fn id(server: u16) -> Vec<u8> {
    id_under(&configs()[0], server)
}

/// A datagram with a short header, as short as one can be.
fn short(id: &[u8]) -> Vec<u8> {
    [&[0x41][..], id, &[0xee; 20]].concat()
}

/// A long header; `kind` is that of version 1: 0 Initial, 1 0-RTT, 2 Handshake.
fn long(version: u32, kind: u8, id: &[u8]) -> Vec<u8> {
    let bits = if version == V2 { (kind + 1) % 4 } else { kind };
    let mut datagram = vec![0xc0 | bits << 4];
    datagram.extend(version.to_be_bytes());
    datagram.push(id.len() as u8);
    datagram.extend(id);
    datagram.extend([4, 1, 2, 3, 4]);
    datagram.extend([0xee; 40]);
    datagram
}

/// An id that a client makes up for its first packets; its bits name configuration 0.
const MADE_UP: [u8; 12] = [0x1f, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];

verdict_tests! { Unmeasured, Verdict:
    Established an_id_names_its_real_and_leaves_no_flow(world) {
        let rig = &mut world.0;
        let mut sent = 0;
        for config in configs() {
            for (server, real) in IDS {
                let id = id_under(&config, server);
                for datagram in [short(&id), long(V1, 2, &id), long(V2, 2, &id), long(V1, 0, &id)] {
                    let packet = client(4000).udp(&datagram);
                    rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(real, &packet));
                    sent += 1;
                }
            }
        }
        assert!(rig.flow(client(4000), UDP).is_none());
        assert_eq!(rig.cookie_counts(5), [(CookieResult::Cid, sent)]);
    }
    Established an_id_survives_another_address(world) {
        let rig = &mut world.0;
        for port in [4000, 4001, 9, 60_000] {
            let packet = client(port).udp(&short(&id(1023)));
            rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(2, &packet));
        }
        let roaming = Tuple::new("203.0.113.77", 5, VIP, 443).udp(&short(&id(1023)));
        rig.expect(Verdict::Established, &arriving(&roaming), &tunnelled(2, &roaming));
    }
    Established ids_may_be_longer_than_their_configuration(world) {
        let rig = &mut world.0;
        let longer = [&id(700)[..], &[1, 2, 3]].concat();
        for datagram in [short(&longer), long(V1, 2, &longer)] {
            let packet = client(4000).udp(&datagram);
            rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(0, &packet));
        }
    }
    FirstDatagram openings_take_turns_and_stay(world) {
        let rig = &mut world.0;
        let openings = [
            long(V1, 0, &MADE_UP),
            long(V1, 1, &MADE_UP),
            long(V2, 0, &MADE_UP),
            long(V2, 1, &MADE_UP),
            long(UNKNOWN_VERSION, 2, &MADE_UP),
            long(V1, 0, &id(UNUSED)),
            long(V1, 0, &[0x1f; 8]),
            long(V1, 0, &[]),
        ];
        for (turn, datagram) in (0..).zip(&openings) {
            let tuple = client(4000 + turn as u16);
            let packet = tuple.udp(datagram);
            rig.expect(Verdict::FirstDatagram, &arriving(&packet), &tunnelled(turn % 3, &packet));
            rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(turn % 3, &packet));
            assert!(rig.flow(tuple, UDP).is_some());
        }
        assert_eq!(rig.cookie_counts(5), [(CookieResult::CidNew, 16)]);
    }
    Established the_table_is_for_handshakes_alone(world) {
        let rig = &mut world.0;
        let opening = client(4000).udp(&long(V1, 0, &MADE_UP));
        rig.expect(Verdict::FirstDatagram, &arriving(&opening), &tunnelled(0, &opening));
        // The server's own id wins over what the tuple was: another connection had it.
        let packet = client(4000).udp(&short(&id(1)));
        rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(1, &packet));
        assert_eq!(rig.flow(client(4000), UDP).unwrap().real, 0);
    }
    FirstDatagram ids_of_no_configuration_go_by_table_and_hash(world) {
        let rig = &mut world.0;
        let mut foreign = id(700);
        let mut reals = Vec::new();
        for codepoint in [NO_CONFIG, 7] {
            foreign[0] = codepoint << 5;
            for datagram in [short(&foreign), long(V1, 2, &foreign)] {
                let tuple = client(4000 + reals.len() as u16);
                let packet = tuple.udp(&datagram);
                let (_, out) = rig.send(&arriving(&packet));
                let real = u32::from(out[14 + 19]) - 10;
                reals.push(real);
                rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(real, &packet));
                // A balancer that knows nothing of it finds the same real.
                Unmeasured::new().0.expect(
                    Verdict::FirstDatagram, &arriving(&packet), &tunnelled(real, &packet));
            }
        }
        assert_eq!(rig.cookie_counts(5), [(CookieResult::CidOther, 8)]);
    }
    RateLimited what_may_open_a_connection_is_limited_and_no_open_one(world) {
        let rig = &mut world.0;
        rig.limit((VIP, 443, UDP), 5, FlowLimit::new(0.001, 1, 32, 64).unwrap());
        let mut foreign = id(700);
        foreign[0] = 7 << 5;
        let opening = |port| client(port).udp(&long(V1, 0, &MADE_UP));
        rig.expect(Verdict::FirstDatagram, &arriving(&opening(4000)), &tunnelled(0, &opening(4000)));
        rig.expect_untouched(Verdict::RateLimited, &arriving(&opening(4001)));
        // Of connections that an earlier balancer had, of servers without ids.
        for port in 4002..4042 {
            let (action, _) = rig.send(&arriving(&client(port).udp(&short(&foreign))));
            assert_eq!(action, Verdict::FirstDatagram.action() as u32);
        }
    }
    FirstDatagram what_is_no_quic_goes_by_table_and_hash(world) {
        let rig = &mut world.0;
        for (i, datagram) in [&[][..], &[0x41], &short(&id(700))[..26], &[0xff; 26]].iter().enumerate() {
            let packet = client(4000 + i as u16).udp(datagram);
            let (action, _) = rig.send(&arriving(&packet));
            assert_eq!(action, Verdict::FirstDatagram.action() as u32);
        }
        assert_eq!(rig.cookie_counts(5), [(CookieResult::CidOther, 4)]);
    }
    CookieUnknown an_id_of_nobody_never_goes_to_the_pool(world) {
        let rig = &mut world.0;
        for datagram in [short(&id(UNUSED)), short(&id(1024)), long(V1, 2, &id(UNUSED))] {
            let packet = client(4000).udp(&datagram);
            rig.expect_untouched(Verdict::CookieUnknown, &arriving(&packet));
        }
        // Nor does that of a real that was removed.
        rig.real(1, RealValue::default());
        let packet = client(4000).udp(&short(&id(1)));
        rig.expect_untouched(Verdict::CookieUnknown, &arriving(&packet));
        assert_eq!(rig.cookie_counts(5), [(CookieResult::Unknown, 4)]);
    }
    Established connections_from_before_the_configuration_stay(world) {
        let rig = &mut world.0;
        rig.quic_ids((VIP, 443), &[], &IDS);
        let packet = client(4000).udp(&short(&id(UNUSED)));
        let (_, out) = rig.send(&arriving(&packet));
        let real = u32::from(out[14 + 19]) - 10;
        rig.quic_ids((VIP, 443), &routes(), &IDS);
        rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(real, &packet));
        let counts = [(CookieResult::Table, 1), (CookieResult::CidOther, 1)];
        assert_eq!(rig.cookie_counts(5), counts);
    }
    IcmpError an_error_goes_by_the_table(world) {
        let rig = &mut world.0;
        let opening = client(4000).udp(&long(V1, 0, &MADE_UP));
        rig.expect(Verdict::FirstDatagram, &arriving(&opening), &tunnelled(0, &opening));
        let answer = client(4000).reversed().udp(&short(&[9; 8]));
        let (router, vip) = ("203.0.113.9".parse().unwrap(), VIP.parse().unwrap());
        let message = icmp(router, vip, 3, 4, [0, 0, 5, 0], &answer);
        let packet = Ip::CLIENT.packet(router, vip, 1, &message);
        rig.expect(Verdict::IcmpError, &arriving(&packet), &tunnelled(0, &packet));
    }
    NoReal an_empty_pool_keeps_what_it_has(world) {
        let rig = &mut world.0;
        rig.change_vip(VIP, 443, UDP, |vip| vip.ring_size = 0);
        let opening = client(4000).udp(&long(V1, 0, &MADE_UP));
        rig.expect_untouched(Verdict::NoReal, &arriving(&opening));
        // A real that drains is in no ring and routable.
        let packet = client(4000).udp(&short(&id(700)));
        rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(0, &packet));
    }
}

#[test]
fn ipv6_and_options_move_the_id() {
    let mut rig = Rig::with(false);
    for (_, real) in IDS {
        rig.tunnel_real(real, &format!("fd00:1::{}", 10 + real));
    }
    rig.vip(5, VIP6, 443, UDP, &[0, 1, 2]);
    rig.quic_ids((VIP6, 443), &routes(), &IDS);
    let tuple = Tuple::new("2001:db8::7", 4000, VIP6, 443);
    for (server, real) in IDS {
        let (action, out) = rig.send(&arriving(&tuple.udp(&short(&id(server)))));
        assert_eq!(action, Verdict::Established.action() as u32);
        assert_eq!(u32::from(out[14 + 39]) - 0x10, real);
    }
    assert_eq!(rig.cookie_counts(5), [(CookieResult::Cid, 3)]);
}

#[test]
fn with_measurement_an_id_makes_the_flow() {
    let mut rig = Rig::new();
    set_up(&mut rig);
    for (server, real) in IDS {
        let packet = client(4000).udp(&short(&id(server)));
        rig.expect(
            Verdict::Established,
            &arriving(&packet),
            &tunnelled(real, &packet),
        );
        // Another connection on the tuple is measured again, at its own real.
        assert_eq!(rig.flow(client(4000), UDP).unwrap().real, real);
    }
}
