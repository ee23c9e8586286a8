// SPDX-License-Identifier: Apache-2.0
//! VIPs with cookies: what a cookie decides, and what happens without one.

use causeway_core::cookie::{self, CookieKey, CookieLayout, CookieMode, KeyEpoch, Keys};
use causeway_dataplane::abi::{
    CookieResult, PICK_TURN, REAL_DOWN, REAL_PRESENT, RealLoad, RealStats, RealValue,
    SamplingValue, Verdict,
};

use crate::frame::{ACK, FIN, Ip, RST, SYN, Tcp, Tuple, arriving, icmp, leaving, timestamp};
use crate::rig::{Rig, TCP, TUNNEL_SOURCE4, TUNNEL_SOURCE6, tunnel_real};
use crate::verdict_tests;

const MS: u64 = 1_000_000;
const VIP: &str = "192.0.2.10";
const VIP6: &str = "2001:db8:1::10";
/// Ids of reals 0, 1 and 2.
const IDS: [(u16, u32); 3] = [(700, 0), (0, 1), (1023, 2)];
/// An id that no real has.
const UNUSED: u16 = 9;

/// The SYN layouts of the paper's table 1 and one that only the walk finds.
const SYN_OPTIONS: [&[u8]; 4] = [
    &[
        2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 1, 3, 3, 7,
    ],
    &[
        2, 4, 5, 180, 1, 3, 3, 6, 1, 1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 4, 2, 0, 0,
    ],
    &[
        2, 4, 5, 180, 1, 3, 3, 8, 4, 2, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0,
    ],
    &[1, 8, 10, 0, 0, 0, 7, 0, 0, 0, 0, 2, 4, 5, 180, 0],
];

fn keys() -> Keys {
    Keys::new(
        KeyEpoch::Zero,
        CookieKey::from_bytes([7; 16]),
        Some(CookieKey::from_bytes([9; 16])),
    )
}

fn client(port: u16) -> Tuple {
    Tuple::new("198.51.100.7", port, VIP, 80)
}

fn client6(port: u16) -> Tuple {
    Tuple::new("2001:db8::7", port, VIP6, 80)
}

fn address(real: u32) -> String {
    format!("10.1.0.{}", 10 + real)
}

fn address6(real: u32) -> String {
    format!("fd00:1::{}", 10 + real)
}

fn tunnelled(real: u32, inner: &[u8]) -> Vec<u8> {
    let (from, to, proto) = match inner[0] >> 4 {
        4 => (TUNNEL_SOURCE4, address(real), 4),
        _ => (TUNNEL_SOURCE6, address6(real), 41),
    };
    let (from, to) = (from.parse().unwrap(), to.parse().unwrap());
    let label = match proto {
        4 => 0,
        _ => return Vec::new(), // the flow label is the forwarding tests' business
    };
    let outer = Ip {
        flow_label: label,
        ..Ip::OUTER
    };
    leaving(&outer.packet(from, to, proto, inner))
}

/// The real that an encapsulated IPv6 frame goes to.
fn real6_of(frame: &[u8]) -> u32 {
    u32::from(frame[14 + 39]) - 0x10
}

/// Three reals by turns, without measurement: nothing but cookies keeps a connection.
struct Unmeasured(Rig);

impl Unmeasured {
    fn new() -> Self {
        let mut rig = Rig::with(false);
        set_up(&mut rig);
        Self(rig)
    }

    fn counters(&self) -> crate::rig::Counters {
        self.0.counters()
    }
}

fn set_up(rig: &mut Rig) {
    for (_, real) in IDS {
        rig.tunnel_real(real, &address(real));
    }
    rig.vip(5, VIP, 80, TCP, &[0, 1, 2]);
    rig.ring(5, &[0, 1, 2]);
    rig.change_vip(VIP, 80, TCP, |vip| {
        (vip.ring_size, vip.pick) = (3, PICK_TURN);
    });
    rig.cookies((VIP, 80), &keys(), &IDS);
}

/// The echo of a server's timestamp: any clock above the server's cookie.
fn echo_of(tuple: Tuple, epoch: KeyEpoch, id: u16) -> u32 {
    let format = CookieLayout::default_of(CookieMode::Timestamp);
    let connection = cookie::Tuple::tcp(
        (tuple.src, tuple.sport).into(),
        (tuple.dst, tuple.dport).into(),
    );
    let key = *keys().get(epoch).unwrap();
    0x4321 << 16 | cookie::encode(&connection, &key, epoch, id, &format)
}

fn segment(tuple: Tuple, flags: u8, seq: u32, tsecr: u32) -> Vec<u8> {
    let options = timestamp(55, tsecr);
    tuple.tcp(Tcp {
        flags,
        seq,
        ack: 1,
        options: &options,
        payload: b"x",
    })
}

fn syn(tuple: Tuple, seq: u32, options: &[u8]) -> Vec<u8> {
    tuple.tcp(Tcp {
        options,
        ..Tcp::syn(seq)
    })
}

verdict_tests! { Unmeasured, Verdict:
    Established a_cookie_names_its_real_and_leaves_no_flow(world) {
        let rig = &mut world.0;
        for (id, real) in IDS {
            for epoch in KeyEpoch::ALL {
                let packet = segment(client(4000), ACK, 9, echo_of(client(4000), epoch, id));
                rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(real, &packet));
            }
        }
        assert!(rig.flow(client(4000), TCP).is_none());
        let counts = rig.cookie_counts(5);
        assert_eq!(counts, [(CookieResult::Epoch0, 3), (CookieResult::Epoch1, 3)]);
    }
    Established a_cookie_is_found_among_odd_options(world) {
        let rig = &mut world.0;
        let echo = echo_of(client(4000), KeyEpoch::Zero, 700).to_be_bytes();
        let value = [0, 0, 0, 9];
        let sack = [5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        let orders: [Vec<u8>; 4] = [
            [&[1, 1, 8, 10][..], &value, &echo, &[1, 1], &sack].concat(),
            [&[1, 1][..], &sack, &[1, 1, 8, 10], &value, &echo].concat(),
            [&[8, 10][..], &value, &echo, &[0, 0]].concat(),
            [&[1, 8, 10][..], &value, &echo, &[1]].concat(),
        ];
        for options in orders {
            let packet = client(4000).tcp(Tcp { flags: ACK, options: &options, ..Tcp::default() });
            rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(0, &packet));
        }
    }
    Opened syns_with_timestamps_take_turns_and_leave_no_flow(world) {
        let rig = &mut world.0;
        for (turn, options) in (0..).zip(SYN_OPTIONS) {
            let packet = syn(client(4000 + turn as u16), 1000, options);
            rig.expect(Verdict::Opened, &arriving(&packet), &tunnelled(turn % 3, &packet));
            assert!(rig.flow(client(4000 + turn as u16), TCP).is_none());
        }
        assert_eq!(rig.cookie_counts(5), [(CookieResult::Syn, 4)]);
        assert_eq!(rig.real_stats(0).conns_opened, 2);
    }
    SynAgain a_syn_that_is_sent_again_goes_to_the_same_real(world) {
        let rig = &mut world.0;
        let first = syn(client(4000), 1000, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&first), &tunnelled(0, &first));
        for _ in 0..3 {
            rig.expect(Verdict::SynAgain, &arriving(&first), &tunnelled(0, &first));
        }
        // Another connection on the same tuple is another turn.
        let other = syn(client(4000), 77, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&other), &tunnelled(1, &other));
        rig.expect(Verdict::SynAgain, &arriving(&other), &tunnelled(1, &other));
        // A real that is gone gets no SYN.
        rig.real(1, RealValue::default());
        rig.expect(Verdict::Opened, &arriving(&other), &tunnelled(2, &other));
    }
    Opened a_real_that_is_down_keeps_no_syn_that_is_sent_again(world) {
        let rig = &mut world.0;
        let first = syn(client(4000), 1000, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&first), &tunnelled(0, &first));
        rig.expect(Verdict::SynAgain, &arriving(&first), &tunnelled(0, &first));
        rig.real(0, RealValue { flags: REAL_PRESENT | REAL_DOWN, ..tunnel_real(&address(0)) });
        // A connection that it has is its.
        let reset = client(4000).tcp(Tcp { flags: RST, seq: 1001, ..Tcp::default() });
        rig.expect(Verdict::Established, &arriving(&reset), &tunnelled(0, &reset));
        rig.expect(Verdict::Opened, &arriving(&first), &tunnelled(1, &first));
        rig.expect(Verdict::SynAgain, &arriving(&first), &tunnelled(1, &first));
    }
    Opened clients_without_timestamps_go_by_hash_and_table(world) {
        let rig = &mut world.0;
        let packet = client(4000).tcp(Tcp::syn(1000));
        let (action, out) = rig.send(&arriving(&packet));
        assert_eq!(action, Verdict::Opened.action() as u32);
        let ack = client(4000).tcp(Tcp::ack(1001, 1));
        let real = u32::from(out[14 + 19]) - 10;
        rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(real, &ack));
        // A balancer that knows nothing of it finds the same real.
        let mut other = Unmeasured::new();
        other.0.send(&arriving(&client(5).tcp(Tcp::syn(1))));
        other.0.expect(Verdict::Adopted, &arriving(&ack), &tunnelled(real, &ack));
        assert_eq!(rig.cookie_counts(5), [(CookieResult::Plain, 2)]);
    }
    CookieForged a_cookie_of_nobody_is_dropped(world) {
        let rig = &mut world.0;
        let good = echo_of(client(4000), KeyEpoch::Zero, 700);
        let mut dropped = 0;
        for flipped in 0..15 {
            let packet = segment(client(4000), ACK, 9, good ^ 1 << flipped);
            let (action, _) = rig.send(&arriving(&packet));
            dropped += u32::from(action == Verdict::CookieForged.action() as u32);
        }
        // One guess in 32 passes the check, and then has an id that no real has.
        assert_eq!(dropped, 15);
        let stolen = segment(client(4001), ACK, 9, good);
        rig.expect_untouched(Verdict::CookieForged, &arriving(&stolen));
        // A key that is not there makes no cookie valid.
        let one = Keys::new(KeyEpoch::Zero, *keys().get(KeyEpoch::Zero).unwrap(), None);
        rig.cookies((VIP, 80), &one, &IDS);
        let late = segment(client(4000), ACK, 9, echo_of(client(4000), KeyEpoch::One, 700));
        rig.expect_untouched(Verdict::CookieForged, &arriving(&late));
    }
    CookieUnknown an_id_of_nobody_never_goes_to_the_pool(world) {
        let rig = &mut world.0;
        let packet = segment(client(4000), ACK, 9, echo_of(client(4000), KeyEpoch::Zero, UNUSED));
        rig.expect_untouched(Verdict::CookieUnknown, &arriving(&packet));
        // Nor does that of a real that was removed.
        rig.real(1, RealValue::default());
        let packet = segment(client(4000), ACK, 9, echo_of(client(4000), KeyEpoch::Zero, 0));
        rig.expect_untouched(Verdict::CookieUnknown, &arriving(&packet));
        assert_eq!(rig.cookie_counts(5), [(CookieResult::Unknown, 2)]);
    }
    Established an_echo_that_names_nobody_by_chance_goes_where_the_syn_went(world) {
        let rig = &mut world.0;
        let opening = syn(client(4000), 1000, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&opening), &tunnelled(0, &opening));
        // The server writes no cookies. After a pause its clients echo one timestamp only.
        let echo = echo_of(client(4000), KeyEpoch::Zero, UNUSED);
        for seq in [1001, 1002] {
            let packet = segment(client(4000), ACK, seq, echo);
            rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(0, &packet));
        }
        let counts = [(CookieResult::Syn, 1), (CookieResult::Table, 1), (CookieResult::SynCache, 1)];
        assert_eq!(rig.cookie_counts(5), counts);
    }
    CookieUnknown where_a_syn_went_is_forgotten_with_its_real(world) {
        let rig = &mut world.0;
        let opening = syn(client(4000), 1000, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&opening), &tunnelled(0, &opening));
        // Another real has got the slot, perhaps of another VIP.
        rig.real(0, RealValue { r#gen: 1, ..tunnel_real("10.1.0.99") });
        let packet = segment(client(4000), ACK, 1001, echo_of(client(4000), KeyEpoch::Zero, UNUSED));
        rig.expect_untouched(Verdict::CookieUnknown, &arriving(&packet));
    }
    Established an_end_that_is_sent_again_lowers_the_load_once(world) {
        let rig = &mut world.0;
        rig.set_load(2, RealLoad { load: 100, fall: 10, ..RealLoad::default() });
        let fin = |port, seq| segment(client(port), FIN | ACK, seq, echo_of(client(port), KeyEpoch::Zero, 1023));
        for seq in 0..10 {
            for port in [4000, 4001] {
                rig.expect(Verdict::Established, &arriving(&fin(port, seq)), &tunnelled(2, &fin(port, seq)));
            }
        }
        assert_eq!((rig.load(2).load, rig.real_stats(2).conns_closed), (80, 2));
        // A new connection on the tuple ends for itself.
        rig.send(&arriving(&syn(client(4000), 7000, SYN_OPTIONS[0])));
        rig.expect(Verdict::Established, &arriving(&fin(4000, 7001)), &tunnelled(2, &fin(4000, 7001)));
        assert_eq!((rig.load(2).load, rig.real_stats(2).conns_closed), (70, 3));
    }
    Established a_server_without_an_agent_is_served_by_the_table(world) {
        let rig = &mut world.0;
        let opening = syn(client(4000), 1000, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&opening), &tunnelled(0, &opening));
        // Its timestamps are not cookies. The SYN cache knows where the SYN went.
        let plain = 0x1234_0000 | (echo_of(client(4000), KeyEpoch::Zero, 700) & 0xffff ^ 1);
        let first = segment(client(4000), ACK, 1001, plain);
        rig.expect(Verdict::Established, &arriving(&first), &tunnelled(0, &first));
        assert!(rig.flow(client(4000), TCP).is_some());
        let second = segment(client(4000), ACK, 1002, plain);
        rig.expect(Verdict::Established, &arriving(&second), &tunnelled(0, &second));
        let counts = [(CookieResult::Syn, 1), (CookieResult::Table, 1), (CookieResult::SynCache, 1)];
        assert_eq!(rig.cookie_counts(5), counts);
        // One that answers without timestamps, too.
        let opening = syn(client(4001), 1000, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&opening), &tunnelled(1, &opening));
        let bare = client(4001).tcp(Tcp::ack(1001, 1));
        rig.expect(Verdict::Established, &arriving(&bare), &tunnelled(1, &bare));
    }
    Established a_tuple_that_is_opened_again_goes_where_its_newest_syn_went(world) {
        let rig = &mut world.0;
        let plain = |port, flags, seq| {
            let echo = 0x1234_0000 | (echo_of(client(port), KeyEpoch::Zero, 700) & 0xffff ^ 1);
            segment(client(port), flags, seq, echo)
        };
        // By a SYN that the table does not hear of: from a server that writes no cookies.
        let first = syn(client(4000), 1000, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&first), &tunnelled(0, &first));
        let fin = plain(4000, FIN | ACK, 1001);
        for packet in [plain(4000, ACK, 1001), fin] {
            rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(0, &packet));
        }
        let again = syn(client(4000), 7000, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&again), &tunnelled(1, &again));
        for seq in [7001, 7002] {
            let ack = plain(4000, ACK, seq);
            rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(1, &ack));
        }
        assert_eq!(rig.flow(client(4000), TCP).expect("entry").real, 1);
        // A forged one moves no connection that is open.
        let forged = syn(client(4000), 9000, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&forged), &tunnelled(2, &forged));
        let ack = plain(4000, ACK, 7003);
        rig.expect(Verdict::Established, &arriving(&ack), &tunnelled(1, &ack));
    }
    Established a_syn_of_an_earlier_connection_takes_no_packets(world) {
        let rig = &mut world.0;
        // Behind one address translator: a client with timestamps, then one without.
        for port in 4000..4008 {
            rig.send(&arriving(&syn(client(port), 1000, SYN_OPTIONS[0])));
            rig.send(&arriving(&client(port).tcp(Tcp::syn(50_000))));
            let real = rig.flow(client(port), TCP).expect("entry").real;
            let fin = client(port).tcp(Tcp { flags: FIN | ACK, seq: 50_001, ..Tcp::default() });
            let ack = client(port).tcp(Tcp::ack(50_002, 1));
            for packet in [fin, ack.clone(), ack] {
                rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(real, &packet));
            }
        }
    }
    Established what_ends_a_connection_goes_where_its_syn_went(world) {
        let rig = &mut world.0;
        let opening = syn(client(4000), 1000, SYN_OPTIONS[0]);
        rig.send(&arriving(&syn(client(9), 1, SYN_OPTIONS[0])));
        rig.expect(Verdict::Opened, &arriving(&opening), &tunnelled(1, &opening));
        let reset = client(4000).tcp(Tcp { flags: RST, seq: 1001, ..Tcp::default() });
        rig.expect(Verdict::Established, &arriving(&reset), &tunnelled(1, &reset));
        assert!(rig.flow(client(4000), TCP).is_none());
        // With a timestamp the cookie says it.
        let fin = segment(client(4001), FIN | ACK, 1001, echo_of(client(4001), KeyEpoch::Zero, 1023));
        rig.expect(Verdict::Established, &arriving(&fin), &tunnelled(2, &fin));
        assert_eq!(rig.real_stats(2).conns_closed, 1);
    }
    Adopted a_reset_of_nobody_is_a_guess_and_leaves_nothing(world) {
        let rig = &mut world.0;
        let reset = client(4000).tcp(Tcp { flags: RST, seq: 1001, ..Tcp::default() });
        rig.send(&arriving(&reset));
        assert_eq!(rig.cookie_counts(5), [(CookieResult::Guessed, 1)]);
        assert!(rig.flow(client(4000), TCP).is_none());
    }
    IcmpError an_error_goes_by_the_cookie_that_it_quotes(world) {
        let rig = &mut world.0;
        let options = timestamp(echo_of(client(4000), KeyEpoch::One, 1023), 55);
        let answer = client(4000).reversed().tcp(Tcp { flags: ACK, options: &options, ..Tcp::default() });
        let (router, vip) = ("203.0.113.9".parse().unwrap(), VIP.parse().unwrap());
        let error = |quoted: &[u8]| {
            let message = icmp(router, vip, 3, 4, [0, 0, 5, 0], quoted);
            Ip::CLIENT.packet(router, vip, 1, &message)
        };
        let packet = error(&answer);
        rig.expect(Verdict::IcmpError, &arriving(&packet), &tunnelled(2, &packet));
        assert_eq!(rig.cookie_counts(5), [(CookieResult::Quoted, 1)]);
        // A router that quotes little is guessed for, or helped by the SYN.
        let opening = syn(client(4000), 1000, SYN_OPTIONS[0]);
        rig.expect(Verdict::Opened, &arriving(&opening), &tunnelled(0, &opening));
        let short = error(&answer[..28]);
        rig.expect(Verdict::IcmpError, &arriving(&short), &tunnelled(0, &short));
    }
    NoReal an_empty_pool_keeps_what_it_has(world) {
        let rig = &mut world.0;
        rig.change_vip(VIP, 80, TCP, |vip| vip.ring_size = 0);
        let opening = syn(client(4000), 1000, SYN_OPTIONS[0]);
        rig.expect_untouched(Verdict::NoReal, &arriving(&opening));
        // A real that drains is in no ring and routable.
        let packet = segment(client(4000), ACK, 9, echo_of(client(4000), KeyEpoch::Zero, 700));
        rig.expect(Verdict::Established, &arriving(&packet), &tunnelled(0, &packet));
    }
}

#[test]
fn ipv6_has_cookies_too() {
    let mut rig = Rig::with(false);
    for (_, real) in IDS {
        rig.tunnel_real(real, &address6(real));
    }
    rig.vip(5, VIP6, 80, TCP, &[0, 1, 2]);
    rig.cookies((VIP6, 80), &keys(), &IDS);
    for (id, real) in IDS {
        let packet = segment(
            client6(4000),
            ACK,
            9,
            echo_of(client6(4000), KeyEpoch::One, id),
        );
        let (action, out) = rig.send(&arriving(&packet));
        assert_eq!(action, Verdict::Established.action() as u32);
        assert_eq!(real6_of(&out), real);
    }
    assert_eq!(rig.cookie_counts(5), [(CookieResult::Epoch1, 3)]);
}

#[test]
fn with_measurement_a_valid_cookie_makes_the_flow() {
    let mut rig = Rig::new();
    set_up(&mut rig);
    let packet = segment(
        client(4000),
        ACK,
        9,
        echo_of(client(4000), KeyEpoch::Zero, 1023),
    );
    rig.expect(
        Verdict::Established,
        &arriving(&packet),
        &tunnelled(2, &packet),
    );
    assert_eq!(rig.flow(client(4000), TCP).unwrap().real, 2);
    // The table follows the cookie, not the other way round.
    let moved = segment(
        client(4000),
        ACK,
        10,
        echo_of(client(4000), KeyEpoch::Zero, 700),
    );
    rig.expect(
        Verdict::Established,
        &arriving(&moved),
        &tunnelled(0, &moved),
    );
    assert_eq!(rig.flow(client(4000), TCP).unwrap().real, 0);
    // Forged ones change nothing, while the table knows the connection.
    let forged = segment(
        client(4000),
        ACK,
        10,
        echo_of(client(4000), KeyEpoch::Zero, 700) ^ 2,
    );
    rig.expect(
        Verdict::Established,
        &arriving(&forged),
        &tunnelled(0, &forged),
    );
    assert_eq!(
        rig.cookie_counts(5),
        [(CookieResult::Epoch0, 2), (CookieResult::Table, 1)]
    );
    let opening = syn(client(4001), 1000, SYN_OPTIONS[0]);
    rig.expect(
        Verdict::Opened,
        &arriving(&opening),
        &tunnelled(0, &opening),
    );
    assert_eq!(rig.flow(client(4001), TCP).unwrap().isn, 1000);
}

#[test]
fn flags_of_a_syn_ack_open_nothing() {
    let mut world = Unmeasured::new();
    let rig = &mut world.0;
    let stray = client(4000).tcp(Tcp {
        flags: SYN | ACK,
        seq: 9,
        options: SYN_OPTIONS[0],
        ..Tcp::default()
    });
    rig.expect_untouched(Verdict::CookieForged, &arriving(&stray));
}

/// As long as the machine has been up, mostly.
const UPTIME_MS: u64 = 100_000;

/// A client under cookies: its connection's clock at the server, and what it echoes.
struct Thinker {
    clock: cookie::Clock,
    cookie: u32,
    echo: u32,
    asked: u32,
}

impl Thinker {
    /// The server's clock, which began at another time than the balancer's.
    fn server_ms(rig: &Rig) -> u32 {
        (rig.now_ns / MS) as u32 ^ 0x8000_0000
    }

    /// A handshake of 1 ms.
    fn open(rig: &mut Rig) -> Self {
        rig.send(&arriving(&syn(client(4000), 0, SYN_OPTIONS[0])));
        let synack = Self::server_ms(rig) & 0xffff;
        rig.now_ns += MS;
        let mut this = Self {
            clock: cookie::Clock::start(Self::server_ms(rig), synack, 1, 16),
            cookie: echo_of(client(4000), KeyEpoch::Zero, 700) & 0xffff,
            echo: synack,
            asked: 0,
        };
        this.send(rig, &[]);
        this
    }

    fn send(&mut self, rig: &mut Rig, payload: &[u8]) {
        let options = timestamp(55, self.echo << 16 | self.cookie);
        let packet = client(4000).tcp(Tcp {
            flags: ACK,
            seq: 1 + self.asked * 100,
            ack: 1 + self.asked * 1000,
            options: &options,
            payload,
        });
        let (action, _) = rig.send(&arriving(&packet));
        assert_eq!(action, Verdict::Established.action() as u32);
        self.clock.echo(self.echo, Self::server_ms(rig));
    }

    /// A request, whose response takes 2 ms; the server acknowledges it before, or not.
    fn ask(&mut self, rig: &mut Rig, acknowledged: Option<cookie::Kind>) {
        self.send(rig, &[7; 100]);
        self.asked += 1;
        rig.now_ns += MS / 2;
        if let Some(kind) = acknowledged {
            self.clock.stamp_kind(Self::server_ms(rig), kind);
        }
        rig.now_ns += MS / 2;
        self.echo = self
            .clock
            .stamp_kind(Self::server_ms(rig), cookie::Kind::Data);
        rig.now_ns += MS; // the way to the client
    }

    /// The client acknowledges what it has had for 40 ms.
    fn pause(&mut self, rig: &mut Rig, pause_ns: u64) {
        let delay_ns = pause_ns.min(40 * MS);
        rig.now_ns += delay_ns;
        if pause_ns > delay_ns {
            self.send(rig, &[]);
            rig.now_ns += pause_ns - delay_ns;
        }
    }
}

/// What is known of a real whose client pauses so long by turns. The machine has been up for
/// `uptime_ms`.
fn measured_of_thinkers(
    uptime_ms: u64,
    pauses_ms: &[u64],
    acknowledged: Option<cookie::Kind>,
) -> RealStats {
    let mut rig = Rig::with(true);
    rig.now_ns = uptime_ms * MS;
    set_up(&mut rig);
    rig.ring(5, &[0]);
    rig.change_vip(VIP, 80, TCP, |vip| vip.ring_size = 1);
    let mut thinker = Thinker::open(&mut rig);
    for turn in 0..200 {
        thinker.ask(&mut rig, acknowledged);
        let pause_ms = pauses_ms[turn % pauses_ms.len()];
        // Wherever between two ticks of the server's clock.
        thinker.pause(&mut rig, pause_ms * MS + turn as u64 * 37_001 % MS);
    }
    rig.real_stats(0)
}

#[test]
fn the_latency_of_clients_that_pause_is_seen_under_cookies() {
    let hour = 3_600_000;
    for pauses_ms in [
        &[10][..],
        &[60],
        &[300],
        &[1000],
        &[4096],
        &[5000],
        &[100_000],
        &[10, 5000, 60, hour, 300],
    ] {
        let stats = measured_of_thinkers(UPTIME_MS, pauses_ms, None);
        assert!(stats.latencies().weight_halves >= 2 * 100, "{stats:?}");
        let mean_ns = stats.latencies().sum_halves_ns / stats.latencies().weight_halves;
        // Where the client pauses each time, one echo of the handshake dates all others, and
        // was itself sent anywhere in a tick of 1 ms.
        assert!(
            mean_ns.abs_diff(2 * MS) < MS * 3 / 10,
            "pauses of {pauses_ms:?} ms: {mean_ns} ns"
        );
    }
}

/// The balancer's clock of milliseconds has 32 bits: it wraps after 49.7 days.
#[test]
fn the_latency_of_clients_that_pause_is_seen_on_a_balancer_that_has_been_up_for_months() {
    let wrap_ms = 1 << 32;
    for uptime_ms in [
        wrap_ms - 100_000,
        wrap_ms + 100_000,
        2 * wrap_ms + 100_000,
        5 * wrap_ms + 100_000,
    ] {
        let stats = measured_of_thinkers(uptime_ms, &[300, 10, 5000, 1000], None);
        assert!(stats.latencies().weight_halves >= 2 * 100, "{stats:?}");
        let mean_ns = stats.latencies().sum_halves_ns / stats.latencies().weight_halves;
        assert!(
            mean_ns.abs_diff(2 * MS) < MS * 3 / 10,
            "up for {uptime_ms} ms: {mean_ns} ns"
        );
    }
}

#[test]
fn under_cookies_the_handshake_shows_the_path() {
    let stats = measured_of_thinkers(UPTIME_MS, &[0], None);
    let sums = stats.latencies();
    assert!(sums.weight_halves >= 2 * 100, "{stats:?}");
    assert_eq!(sums.path_weight_halves, sums.weight_halves);
    let path_ns = sums.path_sum_halves_ns / sums.path_weight_halves;
    assert!(path_ns.abs_diff(MS) < MS / 20, "{path_ns} ns");
    let server_ns = sums.server_sum_halves_ns / sums.path_weight_halves;
    assert!(server_ns.abs_diff(MS) < MS * 3 / 10, "{server_ns} ns");
}

#[test]
fn an_echo_of_a_clock_that_stood_still_dates_nothing() {
    // The receiving CPU acknowledged a request, so that the answer repeats the clock's last
    // value. What the packets' times say is a bound, and no sample.
    let stats = measured_of_thinkers(UPTIME_MS, &[10], Some(cookie::Kind::ReceivingAck));
    assert!(
        stats.bound_weight_halves > stats.latencies().weight_halves,
        "{stats:?}"
    );
    // The others follow an acknowledgement that moved the clock.
    let mean_ns = stats.latencies().sum_halves_ns / stats.latencies().weight_halves;
    assert!((2 * MS..3 * MS).contains(&mean_ns), "{mean_ns} ns");
}

/// 1 in 2^k connections is measured; recently it was from 1 in 2^least to 1 in 2^most.
fn sample(rig: &Rig, opening: u8, least: u8, most: u8) {
    let ks = SamplingValue {
        opening,
        least,
        most,
    };
    rig.sample((VIP, 80), &[0, 1, 2], ks);
}

/// Where its SYN goes, and the cookie of that server.
fn open(rig: &mut Rig, port: u16, seq: u32, verdict: Verdict) -> u32 {
    let before = rig.counters();
    let (_, out) = rig.send(&arriving(&syn(client(port), seq, SYN_OPTIONS[0])));
    let real = u32::from(out[14 + 19]) - 10;
    let len = arriving(&syn(client(port), seq, SYN_OPTIONS[0])).len();
    assert_eq!(rig.counters(), before.plus(verdict as usize, len), "{port}");
    let (id, _) = IDS.iter().find(|(_, of)| *of == real).expect("one of them");
    echo_of(client(port), KeyEpoch::Zero, *id)
}

fn go_on(rig: &mut Rig, port: u16, flags: u8, seq: u32, echo: u32) {
    let (action, _) = rig.send(&arriving(&segment(client(port), flags, seq, echo)));
    assert_eq!(action, Verdict::Established.action() as u32);
    rig.now_ns += MS;
}

/// Connections opened, closed and measured, and requests seen, of all reals.
fn sums(rig: &Rig) -> (u64, u64, u64, u64) {
    let each = [0, 1, 2].map(|real| rig.real_stats(real));
    each.iter().fold((0, 0, 0, 0), |(a, b, c, d), of| {
        (
            a + of.conns_opened,
            b + of.conns_closed,
            c + of.conns_measured,
            d + of.requests_seen,
        )
    })
}

#[test]
fn a_connection_that_is_not_measured_is_in_no_table() {
    let mut rig = Rig::new();
    set_up(&mut rig);
    sample(&rig, 3, 3, 3);
    let ports = 4000..4512;
    for port in ports.clone() {
        let echo = open(&mut rig, port, 1000, Verdict::Opened);
        // A retransmitted SYN goes where the first went, measured or not.
        assert_eq!(open(&mut rig, port, 1000, Verdict::SynAgain), echo);
        go_on(&mut rig, port, ACK, 1001, echo);
        go_on(&mut rig, port, ACK, 1002, echo);
    }
    // 1 in 8 of 512, three standard deviations to either side.
    let known = rig.known_ports("198.51.100.7").len() as u64;
    assert!((64 - 22..=64 + 22).contains(&known), "{known}");
    let (opened, closed, measured, requests) = sums(&rig);
    assert_eq!((opened, closed, measured), (512, 0, known));
    assert!(requests >= known, "{requests}");
    // Ends are counted once, of all.
    for port in ports {
        let (id, _) = IDS[0];
        let known = rig.flow(client(port), TCP).map(|flow| flow.real);
        let id = IDS
            .iter()
            .find(|(_, real)| Some(*real) == known)
            .map_or(id, |(id, _)| *id);
        for _ in 0..2 {
            go_on(
                &mut rig,
                port,
                ACK | FIN,
                1003,
                echo_of(client(port), KeyEpoch::Zero, id),
            );
        }
    }
    let (opened, closed, ..) = sums(&rig);
    assert_eq!((opened, closed), (512, 512));
    assert_eq!(rig.known_ports("198.51.100.7").len() as u64, known);
}

#[test]
fn a_connection_keeps_its_fate_when_the_rate_changes() {
    let mut rig = Rig::new();
    set_up(&mut rig);
    sample(&rig, 2, 2, 2);
    let echoes: Vec<(u16, u32)> = (4000..4256)
        .map(|port| (port, open(&mut rig, port, 1000, Verdict::Opened)))
        .collect();
    let measured = rig.known_ports("198.51.100.7");
    let ask = |rig: &mut Rig, seq| {
        let before = sums(rig).3;
        for (port, echo) in &echoes {
            go_on(rig, *port, ACK, seq, *echo);
        }
        sums(rig).3 - before
    };
    assert_eq!(ask(&mut rig, 1001), measured.len() as u64);
    // Fewer of the new ones, all of them, and fewer again.
    let mut seq = 1001;
    for (k, least, most) in [(5, 2, 5), (0, 0, 5), (6, 0, 6)] {
        sample(&rig, k, least, most);
        seq += 1;
        assert_eq!(ask(&mut rig, seq), measured.len() as u64, "{k}");
        assert_eq!(rig.known_ports("198.51.100.7"), measured);
    }
    // One that every recent rate takes is measured even if its SYN went elsewhere.
    rig.forget_flows();
    sample(&rig, 2, 2, 2);
    ask(&mut rig, 1010);
    assert_eq!(rig.known_ports("198.51.100.7"), measured);
}

#[test]
fn an_end_counts_where_the_table_has_an_older_connection_of_the_tuple() {
    let mut rig = Rig::new();
    set_up(&mut rig);
    let echo = open(&mut rig, 4000, 1000, Verdict::Opened);
    go_on(&mut rig, 4000, ACK, 1001, echo);
    // The tuple opens again on another real, by a SYN that the table is not told of.
    sample(&rig, 20, 20, 20);
    rig.real(0, RealValue::default());
    let echo = open(&mut rig, 4000, 7000, Verdict::Opened);
    assert_eq!(rig.flow(client(4000), TCP).expect("the older one").real, 0);
    sample(&rig, 20, 0, 20);
    for _ in 0..2 {
        go_on(&mut rig, 4000, FIN | ACK, 7001, echo);
    }
    let of = rig.real_stats(1);
    assert_eq!((of.conns_opened, of.conns_closed), (1, 1));
    assert_eq!(rig.real_stats(0).conns_closed, 0);
}

#[test]
fn a_tuple_that_opens_again_on_its_real_counts_again() {
    let mut rig = Rig::new();
    set_up(&mut rig);
    rig.ring(5, &[0, 0, 0]);
    for seq in [1000, 7000] {
        let echo = open(&mut rig, 4000, seq, Verdict::Opened);
        go_on(&mut rig, 4000, ACK, seq + 1, echo);
        go_on(&mut rig, 4000, FIN | ACK, seq + 1, echo);
        // From now on the table is told of few that open.
        sample(&rig, 20, 0, 20);
    }
    let of = rig.real_stats(0);
    assert_eq!((of.conns_opened, of.conns_closed), (2, 2));
}
