// SPDX-License-Identifier: Apache-2.0
//! Decapsulation on a server.

use causeway_dataplane::abi::{self, Action, Plain, ServerVerdict};
use causeway_dataplane::skel::server::{ServerSkel, ServerSkelBuilder};
use causeway_dataplane::{Mirror, MirrorMaps, MirrorOptions};
use libbpf_rs::MapHandle;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::frame::{Ip, OWN, ROUTER, Tags, Tcp, Tuple, arriving, ethernet};
use crate::rig::{Counters, hex, open_tunnels_of, storage, test_run, write};
use crate::verdict_tests;

pub(crate) const OWN4: &str = "10.1.0.10";
pub(crate) const OWN6: &str = "fd00:1::10";
const FROM4: &str = "10.9.0.1";
const FROM6: &str = "fd00:9::1";
const VIP4: &str = "192.0.2.10";
const VIP6: &str = "2001:db8::10";

pub(crate) struct Server(ServerSkel<'static>);

impl Server {
    pub(crate) fn new() -> Self {
        let mut open = ServerSkelBuilder::default().open(storage()).expect("open");
        // As on an interface with a long MTU.
        let flags = libbpf_sys::BPF_F_XDP_HAS_FRAGS;
        open.progs.causeway_server.set_flags(flags);
        let skel = open
            .load()
            .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
        let own = [OWN4, OWN6].map(|own| (own, abi::ADDRESS_TUNNEL_END));
        let vips = [VIP4, VIP6].map(|vip| (vip, abi::ADDRESS_VIP));
        for (address, uses) in own.into_iter().chain(vips) {
            let address = abi::Address {
                bytes: abi::addr_bytes(address.parse().unwrap()),
            };
            write(
                &skel.maps.own_addresses,
                address.as_bytes(),
                &uses.to_ne_bytes(),
            );
        }
        open_tunnels_of(&skel.maps.tunnel_sources, [("10.9.0.0", 16), (FROM6, 128)]);
        Self(skel)
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters::read(&self.0.maps.verdicts)
    }

    /// Looks at the packets to come.
    pub(crate) fn mirror(&self, options: &MirrorOptions) -> causeway_dataplane::Result<Mirror> {
        let maps = &self.0.maps;
        let [ctl, counts, ring] = [&maps.mirror_ctl, &maps.mirror_counts, &maps.mirror_ring]
            .map(|map| MapHandle::try_from(map).expect("a map"));
        Mirror::open(MirrorMaps { ctl, counts, ring }, options)
    }

    pub(crate) fn send(&mut self, frame: &[u8]) -> Vec<u8> {
        test_run(&self.0.progs.causeway_server, 0, frame).1
    }

    pub(crate) fn expect(&mut self, verdict: ServerVerdict, frame: &[u8], out: &[u8]) {
        let before = self.counters();
        let (action, data) = test_run(&self.0.progs.causeway_server, 0, frame);
        assert_eq!(
            self.counters(),
            before.plus(verdict as usize, frame.len()),
            "expected {}",
            verdict.as_str()
        );
        assert_eq!(action, verdict.action() as u32);
        if verdict.action() != Action::Drop {
            assert_eq!(hex(&data), hex(out), "frame after {}", verdict.as_str());
        }
    }

    fn expect_untouched(&mut self, verdict: ServerVerdict, frame: &[u8]) {
        self.expect(verdict, frame, frame);
    }
}

fn inner4() -> Vec<u8> {
    Tuple::new("198.51.100.7", 4000, "192.0.2.10", 80).tcp(Tcp::syn(1))
}

fn inner6() -> Vec<u8> {
    Tuple::new("2001:db8:c::7", 4000, "2001:db8::10", 80).tcp(Tcp::syn(1))
}

pub(crate) fn outer(ip: Ip<'_>, to: &str, inner: &[u8]) -> Vec<u8> {
    let from = if to.contains(':') { FROM6 } else { FROM4 };
    ip.packet(
        from.parse().unwrap(),
        to.parse().unwrap(),
        if inner[0] >> 4 == 4 { 4 } else { 41 },
        inner,
    )
}

/// The packet with its traffic class set, checksum and all.
fn with_tos(tos: u8, v6: bool) -> Vec<u8> {
    let tuple = if v6 {
        Tuple::new("2001:db8:c::7", 4000, "2001:db8::10", 80)
    } else {
        Tuple::new("198.51.100.7", 4000, "192.0.2.10", 80)
    };
    Ip { tos, ..Ip::CLIENT }.packet(tuple.src, tuple.dst, 6, &tuple.tcp_segment(Tcp::syn(1)))
}

/// The inner packet behind UDP to `port`, and behind `head` of GUE's own.
pub(crate) fn gue(to: &str, port: u16, head: &[u8], inner: &[u8]) -> Vec<u8> {
    let from = if to.contains(':') { FROM6 } else { FROM4 };
    let payload = [head, inner].concat();
    let tuple = Tuple::new(from, 50_000, to, port);
    let udp = tuple.udp(&payload);
    let transport = &udp[udp.len() - payload.len() - 8..];
    Ip::OUTER.packet(tuple.src, tuple.dst, 17, transport)
}

/// GUE variant 0: no words more, or some of private data.
fn gue_head(inner: &[u8], private: &[u8]) -> Vec<u8> {
    let proto = if inner[0] >> 4 == 4 { 4 } else { 41 };
    [&[private.len() as u8 / 4, proto, 0, 0][..], private].concat()
}

verdict_tests! { Server, ServerVerdict:
    Decapsulated gue_of_both_variants(server) {
        for inner in [inner4(), inner6()] {
            for own in [OWN4, OWN6] {
                for tags in [&[][..], &[(0x88a8, 6), (0x8100, 5)]] {
                    for head in [vec![], gue_head(&inner, &[]), gue_head(&inner, &[7; 4]), gue_head(&inner, &[7; 124])] {
                        let sent = ethernet(OWN, ROUTER, tags, &gue(own, 6080, &head, &inner));
                        server.expect(ServerVerdict::Decapsulated, &sent, &ethernet(OWN, ROUTER, tags, &inner));
                    }
                }
            }
        }
    }
    NotTunnel other_ports_are_the_kernels(server) {
        server.expect_untouched(ServerVerdict::NotTunnel, &arriving(&gue(OWN4, 6081, &[], &inner4())));
    }
    NotOurs gue_of_others_is_the_kernels(server) {
        server.expect_untouched(ServerVerdict::NotOurs, &arriving(&gue("10.1.0.11", 6080, &[], &inner4())));
    }
    GueUnknown what_gue_may_say_besides_is_the_kernels(server) {
        let inner = inner4();
        let heads = [
            [0x20, 4, 0, 0],    // control
            [0x00, 47, 0, 0],   // carries no IP
            [0x01, 4, 0x80, 0], // flags
            [0x80, 4, 0, 0],    // variant 2
            [0x50, 4, 0, 0],    // variant 1 of IP version 5
        ];
        for head in heads {
            server.expect_untouched(ServerVerdict::GueUnknown, &arriving(&gue(OWN4, 6080, &head, &inner)));
        }
    }
    InnerMalformed gue_that_ends_early(server) {
        for rest in [&[][..], &[0x01, 4, 0, 0], &[0x45, 0, 0, 0, 0, 0]] {
            server.expect(ServerVerdict::InnerMalformed, &arriving(&gue(OWN4, 6080, &[], rest)), &[]);
        }
    }
    Decapsulated every_family_in_every_family_with_tags(server) {
        let tags: [Tags<'_>; 3] = [&[], &[(0x8100, 5)], &[(0x88a8, 6), (0x8100, 5)]];
        for inner in [inner4(), inner6()] {
            for own in [OWN4, OWN6] {
                for tags in tags {
                    let sent = ethernet(OWN, ROUTER, tags, &outer(Ip::OUTER, own, &inner));
                    server.expect(ServerVerdict::Decapsulated, &sent, &ethernet(OWN, ROUTER, tags, &inner));
                }
            }
        }
    }
    Decapsulated outer_options_go_too(server) {
        let options4 = Ip { options: &[1; 8], ..Ip::OUTER };
        let sent = outer(options4, OWN4, &inner6());
        server.expect(ServerVerdict::Decapsulated, &arriving(&sent), &arriving(&inner6()));
        // A tunnel encapsulation limit in destination options, as Linux writes it.
        let limit = [4, 0, 4, 1, 4, 1, 1, 0];
        let sent = Ip { options: &limit, ..Ip::OUTER }
            .packet(FROM6.parse().unwrap(), OWN6.parse().unwrap(), 60, &inner4());
        server.expect(ServerVerdict::Decapsulated, &arriving(&sent), &arriving(&inner4()));
    }
    Decapsulated congestion_reaches_the_inner_packet(server) {
        const CE: u8 = 3;
        for v6 in [false, true] {
            for ect in [1, 2] {
                for dscp in [0, 46 << 2] {
                    let sent = outer(Ip { tos: dscp | CE, ..Ip::OUTER }, OWN4, &with_tos(dscp | ect, v6));
                    server.expect(ServerVerdict::Decapsulated, &arriving(&sent), &arriving(&with_tos(dscp | CE, v6)));
                }
            }
        }
    }
    Congested what_cannot_carry_the_mark_is_dropped(server) {
        for v6 in [false, true] {
            let sent = outer(Ip { tos: 3, ..Ip::OUTER }, OWN6, &with_tos(0, v6));
            server.expect(ServerVerdict::Congested, &arriving(&sent), &[]);
        }
    }
    NotTunnel everything_else_is_the_kernels(server) {
        server.expect_untouched(ServerVerdict::NotTunnel, &arriving(&inner4()));
        server.expect_untouched(ServerVerdict::NotTunnel, &arriving(&inner6()));
        let mut arp = arriving(&[0; 46]);
        arp[12..14].copy_from_slice(&[8, 6]);
        server.expect_untouched(ServerVerdict::NotTunnel, &arp);
        let truncated = &arriving(&outer(Ip::OUTER, OWN4, &inner4()))[..30];
        server.expect_untouched(ServerVerdict::NotTunnel, truncated);
    }
    NotOurs tunnels_of_others_are_the_kernels(server) {
        for to in ["10.1.0.11", "fd00:1::11"] {
            server.expect_untouched(ServerVerdict::NotOurs, &arriving(&outer(Ip::OUTER, to, &inner4())));
        }
    }
    OuterFragment fragmented_tunnels_are_the_kernels(server) {
        let ip = Ip { more_fragments: true, dont_fragment: false, ..Ip::OUTER };
        server.expect_untouched(ServerVerdict::OuterFragment, &arriving(&outer(ip, OWN4, &inner4())));
    }
    InnerMalformed inner_headers_that_contradict(server) {
        for (inner, own) in [(inner4(), OWN4), (inner6(), OWN6)] {
            let whole = arriving(&outer(Ip::OUTER, own, &inner));
            let at = whole.len() - inner.len();
            let mut version = whole.clone();
            version[at] = 0x75;
            server.expect(ServerVerdict::InnerMalformed, &version, &[]);
            let short = Ip::OUTER.packet(
                if own == OWN4 { FROM4 } else { FROM6 }.parse().unwrap(),
                own.parse().unwrap(),
                if own == OWN4 { 4 } else { 41 },
                &inner[..16],
            );
            server.expect(ServerVerdict::InnerMalformed, &arriving(&short), &[]);
        }
    }
    TunnelRefused tunnels_are_opened_from_balancers_alone(server) {
        let inner = inner4();
        for (from, own) in [("10.10.0.1", OWN4), ("203.0.113.9", OWN4), ("fd00:9::2", OWN6), ("2001:db8:c::7", OWN6)] {
            let (from, own) = (from.parse().unwrap(), own.parse().unwrap());
            let bare = Ip::OUTER.packet(from, own, 4, &inner);
            server.expect(ServerVerdict::TunnelRefused, &arriving(&bare), &[]);
            let tuple = Tuple { src: from, dst: own, sport: 50_000, dport: 6080 };
            for head in [vec![], gue_head(&inner, &[]), vec![0x20, 4, 0, 0]] {
                let gue = tuple.udp(&[&head[..], &inner].concat());
                server.expect(ServerVerdict::TunnelRefused, &arriving(&gue), &[]);
            }
            // What is not a tunnel passes untouched.
            server.expect_untouched(ServerVerdict::NotTunnel, &arriving(&tuple.tcp(Tcp::syn(1))));
        }
    }
    InnerNotVip tunnels_carry_packets_to_vips_alone(server) {
        for own in [OWN4, OWN6] {
            for (from, to) in [("198.51.100.7", OWN4), ("198.51.100.7", "192.0.2.11"), ("198.51.100.7", "127.0.0.1"),
                               ("2001:db8:c::7", OWN6), ("2001:db8:c::7", "::1"), ("2001:db8:c::7", "ff02::1")] {
                let inner = Tuple::new(from, 4000, to, 22).tcp(Tcp::syn(1));
                server.expect(ServerVerdict::InnerNotVip, &arriving(&outer(Ip::OUTER, own, &inner)), &[]);
                server.expect(ServerVerdict::InnerNotVip, &arriving(&gue(own, 6080, &[], &inner)), &[]);
            }
        }
    }
    InnerSpoofed no_packet_comes_from_this_server_itself(server) {
        for (from, to) in [(OWN4, VIP4), (VIP4, VIP4), (OWN6, VIP6), (VIP6, VIP6)] {
            let inner = Tuple::new(from, 4000, to, 80).tcp(Tcp::syn(1));
            server.expect(ServerVerdict::InnerSpoofed, &arriving(&outer(Ip::OUTER, OWN4, &inner)), &[]);
        }
    }
}
