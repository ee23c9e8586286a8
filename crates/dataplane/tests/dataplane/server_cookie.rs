// SPDX-License-Identifier: Apache-2.0
//! A server's cookies without sockets: what goes into SYN-ACKs and into `light`
//! timestamps, wherever the option is, with the checksum right and all else as it was.

use std::collections::BTreeMap;
use std::net::IpAddr;

use causeway_core::cookie::{self, CookieKey, CookieLayout, CookieMode, KeyEpoch, Keys};
use causeway_dataplane::abi::{
    CookieFormat, CookieKeys, Plain, ServerCookie, ServerVip, VipKey, addr_bytes,
};
use causeway_dataplane::skel::server::{ServerSkel, ServerSkelBuilder};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};

use crate::frame::{ACK, Ip, SYN, Tcp, Tuple, arriving, ethernet};
use crate::rig::{TCP, hex, read_percpu, run_alone, storage, write};

const VIP4: &str = "192.0.2.10";
const VIP6: &str = "2001:db8:1::10";
const ID: u16 = 77;
const TSVAL: u32 = 0x1234_5678;
const TSECR: u32 = 0x0a0b_0c0d;

/// TC_ACT_UNSPEC: on to the next filter.
const GO_ON: u32 = u32::MAX;

struct Server {
    skel: ServerSkel<'static>,
    format: CookieLayout,
}

fn keys() -> Keys {
    let key = |byte| CookieKey::from_bytes([byte; 16]);
    Keys::new(KeyEpoch::One, key(9), Some(key(7)))
}

impl Server {
    fn new(mode: CookieMode) -> Self {
        Self::with_inner_mtu(mode, 0)
    }

    fn with_inner_mtu(mode: CookieMode, mtu: u16) -> Self {
        let mut open = ServerSkelBuilder::default().open(storage()).expect("open");
        let settings = open.maps.rodata_data.as_deref_mut().expect("rodata");
        settings.cfg_inner_mtu = mtu;
        let skel = open
            .load()
            .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
        let format = CookieLayout::default_of(mode);
        let keys = CookieKeys::from(Some(&keys()));
        let zero = 0u32.to_ne_bytes();
        write(&skel.maps.cookie_keys, &zero, Plain::as_bytes(&keys));
        for vip in [VIP4, VIP6] {
            let key = VipKey {
                addr: addr_bytes(vip.parse().unwrap()),
                port_be: 80u16.to_be_bytes(),
                proto: TCP,
                kind: 0,
            };
            let value = ServerVip {
                id: u32::from(ID % format.ids()),
                cookie: CookieFormat::from(&format),
            };
            let vips = &skel.maps.cookie_vips;
            write(vips, Plain::as_bytes(&key), Plain::as_bytes(&value));
        }
        Self { skel, format }
    }

    fn out(&self, frame: &[u8]) -> Vec<u8> {
        let (action, out) = run_alone(&self.skel.progs.causeway_cookie_out, frame);
        assert_eq!(action, GO_ON);
        out
    }

    fn inwards(&self, frame: &[u8]) -> Vec<u8> {
        let (action, out) = run_alone(&self.skel.progs.causeway_cookie_in, frame);
        assert_eq!(action, GO_ON);
        out
    }

    /// What it gives the connection of this client.
    fn cookie(&self, client: Tuple) -> u32 {
        let connection = cookie::Tuple::tcp(
            (client.src, client.sport).into(),
            (client.dst, client.dport).into(),
        );
        let id = ID % self.format.ids();
        let key = *keys().get(KeyEpoch::One).unwrap();
        cookie::encode(&connection, &key, KeyEpoch::One, id, &self.format)
    }

    fn events(&self) -> BTreeMap<&'static str, u64> {
        let count = |event: ServerCookie| {
            let cpus: Vec<u64> = read_percpu(&self.skel.maps.cookie_events, event as u32);
            (event.as_str(), cpus.iter().sum())
        };
        let all = ServerCookie::ALL.into_iter().map(count);
        all.filter(|(_, count)| *count > 0).collect()
    }
}

fn clients() -> [Tuple; 2] {
    [
        Tuple::new("198.51.100.7", 4000, VIP4, 80),
        Tuple::new("2001:db8::7", 4000, VIP6, 80),
    ]
}

/// Options with a timestamp at every alignment, among others that TCP knows.
fn layouts(tsval: u32, tsecr: u32) -> Vec<Vec<u8>> {
    let ts = [&[8, 10][..], &tsval.to_be_bytes(), &tsecr.to_be_bytes()].concat();
    let (nop, mss, ws, sack_ok) = ([1], [2, 4, 5, 180], [3, 3, 7], [4, 2]);
    let sack = [5, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    vec![
        [&nop[..], &nop, &ts].concat(),
        [&mss[..], &sack_ok, &ts, &nop, &ws].concat(),
        [&ts[..], &nop, &nop].concat(),
        [&nop[..], &ts, &nop].concat(),
        [&ws[..], &ts, &ws].concat(),
        [&nop[..], &nop, &sack, &nop, &nop, &ts].concat(),
        [&sack[..], &ts].concat(),
        [&mss[..], &nop, &ws, &nop, &nop, &ts, &sack_ok, &[0, 0]].concat(),
    ]
}

fn frame(tuple: Tuple, flags: u8, options: &[u8]) -> Vec<u8> {
    arriving(&tuple.tcp(Tcp {
        flags,
        seq: 5,
        ack: 6,
        options,
        payload: b"odd",
    }))
}

#[test]
fn a_syn_ack_carries_the_cookie_wherever_its_timestamp_is() {
    let server = Server::new(CookieMode::Timestamp);
    let mut segments = 0;
    for client in clients() {
        let wanted = (TSVAL & 0xffff) << 16 | server.cookie(client);
        for (before, after) in layouts(TSVAL, TSECR).iter().zip(layouts(wanted, TSECR)) {
            let out = server.out(&frame(client.reversed(), SYN | ACK, before));
            // Built again with the other value: bytes and checksum.
            let expected = frame(client.reversed(), SYN | ACK, &after);
            assert_eq!(hex(&out), hex(&expected), "{before:?}");
            segments += 1;
        }
    }
    assert_eq!(server.events(), BTreeMap::from([("syn_ack", segments)]));
}

#[test]
fn a_syn_ack_asks_for_segments_that_fit_the_tunnel() {
    let server = Server::with_inner_mtu(CookieMode::Timestamp, 1452);
    let mss = |mss: u16| [&[2, 4][..], &mss.to_be_bytes()].concat();
    let with = |mss: Vec<u8>, tsval: u32| {
        let ts = [&[8, 10][..], &tsval.to_be_bytes(), &TSECR.to_be_bytes()].concat();
        [&mss[..], &[4, 2], &ts].concat()
    };
    let mut lowered = 0;
    for client in clients() {
        let most = if client.src.is_ipv4() { 1412 } else { 1392 };
        let stamped = (TSVAL & 0xffff) << 16 | server.cookie(client);
        for (before, after) in [(1460, most), (most + 1, most), (most, most), (536, 536)] {
            lowered += u64::from(before != after);
            let out = server.out(&frame(
                client.reversed(),
                SYN | ACK,
                &with(mss(before), TSVAL),
            ));
            let expected = frame(client.reversed(), SYN | ACK, &with(mss(after), stamped));
            assert_eq!(hex(&out), hex(&expected), "{before}");
        }
        // Without timestamps, too; not where another option is first, nor in a SYN.
        lowered += 1;
        let out = server.out(&frame(client.reversed(), SYN | ACK, &mss(1460)));
        assert_eq!(
            hex(&out),
            hex(&frame(client.reversed(), SYN | ACK, &mss(most)))
        );
        let behind = [&[1, 1, 4, 2][..], &mss(1460)].concat();
        let odd = frame(client.reversed(), SYN | ACK, &behind);
        assert_eq!(hex(&server.out(&odd)), hex(&odd));
        // A service that is not a VIP's.
        let other = Tuple {
            dport: 81,
            ..client
        };
        let other = frame(other.reversed(), SYN | ACK, &mss(1460));
        assert_eq!(hex(&server.out(&other)), hex(&other));
    }
    assert_eq!(server.events()["mss_lowered"], lowered);
    let plain = Server::new(CookieMode::Timestamp);
    let client = clients()[0];
    let as_it_is = frame(client.reversed(), SYN | ACK, &mss(1460));
    assert_eq!(hex(&plain.out(&as_it_is)), hex(&as_it_is));
}

#[test]
fn light_cookies_need_no_connection_and_leave_no_echo() {
    let server = Server::new(CookieMode::Light);
    for client in clients() {
        let wanted = (TSVAL & !0x3ff) | server.cookie(client);
        for (before, after) in layouts(TSVAL, TSECR).iter().zip(layouts(wanted, TSECR)) {
            let out = server.out(&frame(client.reversed(), ACK, before));
            let expected = frame(client.reversed(), ACK, &after);
            assert_eq!(hex(&out), hex(&expected), "{before:?}");
        }
        for (before, after) in layouts(TSVAL, TSECR).iter().zip(layouts(TSVAL, 0)) {
            let out = server.inwards(&frame(client, ACK, before));
            let expected = frame(client, ACK, &after);
            assert_eq!(hex(&out), hex(&expected), "{before:?}");
        }
    }
}

#[test]
fn a_cookie_comes_back_behind_extension_headers() {
    let server = Server::new(CookieMode::Light);
    let client = clients()[1];
    let framed = |extensions: &[u8], first: u8, options: &[u8]| {
        let segment = client.tcp_segment(Tcp {
            flags: ACK,
            seq: 5,
            ack: 6,
            options,
            payload: b"odd",
        });
        let ip = Ip {
            options: extensions,
            ..Ip::CLIENT
        };
        arriving(&ip.packet(client.src, client.dst, first, &segment))
    };
    let (before, after) = (&layouts(TSVAL, TSECR)[0], &layouts(TSVAL, 0)[0]);
    // Hop-by-hop (0), then destination options (60), padded to 8 and to 56 bytes.
    let mut options = vec![TCP, 6, 1, 52];
    options.resize(56, 0);
    let two = [&[60, 0, 1, 4, 0, 0, 0, 0][..], &options].concat();
    for (extensions, first) in [(&options[..], 60), (&two, 0)] {
        let out = server.inwards(&framed(extensions, first, before));
        assert_eq!(hex(&out), hex(&framed(extensions, first, after)));
    }
    // A third, more than 64 bytes, one that ends early, another protocol behind it.
    let three = [&[0, 0, 1, 4, 0, 0, 0, 0][..], &two].concat();
    let long = [&[60, 1, 1, 12][..], &[0; 12], &options].concat();
    let cut = [TCP, 200, 1, 4, 0, 0, 0, 0];
    let udp = [17, 0, 1, 4, 0, 0, 0, 0];
    for (extensions, first) in [(&three[..], 0), (&long, 0), (&cut, 60), (&udp, 60)] {
        let same = framed(extensions, first, before);
        assert_eq!(hex(&server.inwards(&same)), hex(&same));
    }
}

/// As of a container behind NAT, whose connections this kernel does not know.
#[test]
fn what_is_only_forwarded_gets_no_cookie() {
    for mode in [CookieMode::Timestamp, CookieMode::Light] {
        let server = Server::new(mode);
        let mut segments = 0;
        for client in clients() {
            for flags in [SYN | ACK, ACK] {
                let frame = frame(client.reversed(), flags, &layouts(TSVAL, TSECR)[0]);
                // struct __sk_buff; ingress_ifindex is its u32 at 36.
                let mut context = vec![0_u8; 192];
                context[36..40].copy_from_slice(&1u32.to_ne_bytes());
                let mut output = vec![0; frame.len() + 256];
                let run = server
                    .skel
                    .progs
                    .causeway_cookie_out
                    .test_run(ProgramInput {
                        context_in: Some(&mut context),
                        data_in: Some(&frame),
                        data_out: Some(&mut output),
                        ..Default::default()
                    });
                let run = run.expect("BPF_PROG_TEST_RUN; it needs root");
                assert_eq!(run.return_value, GO_ON);
                assert_eq!(hex(run.data.expect("data_out")), hex(&frame), "{mode:?}");
                segments += 1;
            }
        }
        assert_eq!(server.events(), BTreeMap::from([("forwarded", segments)]));
    }
}

/// Who listens stands for handshakes answered by SYN cookies, and for connections that are
/// forwarded, as a container's.
#[test]
fn beside_a_listener_the_echoes_of_others_stay() {
    let beside = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("a namespace");
        let _listener = std::net::TcpListener::bind("[::]:80").expect("a listener");
        let server = Server::new(CookieMode::Timestamp);
        for client in clients() {
            let foreign = frame(client, ACK, &layouts(TSVAL, TSECR)[0]);
            assert_eq!(hex(&server.inwards(&foreign)), hex(&foreign));
            let echo = TSECR & !0xffff | server.cookie(client);
            let own = frame(client, ACK, &layouts(TSVAL, echo)[0]);
            let restored = frame(client, ACK, &layouts(TSVAL, TSECR >> 16)[0]);
            assert_eq!(hex(&server.inwards(&own)), hex(&restored));
        }
        let counted = [("foreign", 2), ("restored_opening", 2)];
        assert_eq!(server.events(), BTreeMap::from(counted));
    };
    std::thread::spawn(beside).join().expect("a run");
}

#[test]
fn what_is_not_the_vips_stays_as_it_is() {
    let server = Server::new(CookieMode::Light);
    let options = &layouts(TSVAL, TSECR)[0];
    let other_port = Tuple {
        dport: 81,
        ..clients()[0]
    };
    let other_address = Tuple::new("198.51.100.7", 4000, "192.0.2.11", 80);
    for tuple in [other_port, other_address] {
        let frame_out = frame(tuple.reversed(), ACK, options);
        assert_eq!(hex(&server.out(&frame_out)), hex(&frame_out));
        let frame_in = frame(tuple, ACK, options);
        assert_eq!(hex(&server.inwards(&frame_in)), hex(&frame_in));
    }
    let client = clients()[0];
    let udp = arriving(&client.reversed().udp(&[1; 60]));
    assert_eq!(hex(&server.out(&udp)), hex(&udp));
    // A SYN has no echo, whatever it says; options may end, or lie about their length.
    for options in [
        &[0; 12][..],
        &[8, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        &[2, 0, 8, 10, 1, 1, 1, 1, 1, 1, 1, 1],
    ] {
        let odd = frame(client.reversed(), ACK, options);
        assert_eq!(hex(&server.out(&odd)), hex(&odd));
    }
    let syn = frame(client, SYN, options);
    assert_eq!(hex(&server.inwards(&syn)), hex(&syn));
    let short = ethernet([2; 6], [4; 6], &[], &client.tcp(Tcp::syn(1))[..30]);
    assert_eq!(hex(&server.out(&short)), hex(&short));
}

/// `segment_name` of `bpf/server/cookie.h` with a seed that is not set.
fn name_of(client: Tuple) -> u64 {
    let ports = u64::from(client.sport.to_be()) | u64::from(client.dport.to_be()) << 16;
    let tail = ports | u64::from(TCP) << 32;
    let words = match (client.src, client.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let [src, dst] = [src, dst].map(|ip| u64::from(u32::from_ne_bytes(ip.octets())));
            vec![src | dst << 32, tail]
        }
        (src, dst) => {
            let bytes = [addr_bytes(src), addr_bytes(dst)].concat();
            let words = bytes.chunks_exact(8);
            let words = words.map(|word| u64::from_ne_bytes(word.try_into().expect("eight")));
            words.chain([tail]).collect()
        }
    };
    let mut name: u64 = 1;
    for (at, word) in words.into_iter().enumerate() {
        let folded = if at == 0 { name } else { name ^ name >> 32 };
        name = (folded ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    name = (name ^ name >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    name ^ name >> 29
}

const LAST_O: u32 = 5_000_200;
const LAST_T: u32 = 1200;
/// What is left of a pause of 89,963 ms without its 21 whole periods.
const PAUSE_T: u32 = 3947;
/// A step of up to 4,096 short of what the test sends within it.
const LEASE_T: u32 = LAST_T + 37 + PAUSE_T + 36 + 4095;
/// Newest T that has come back.
const ECHOED_T: u32 = 900;
/// Where in a line the way in writes what the client has echoed.
const ECHOED_AT: std::ops::Range<usize> = 36..40;
/// How far that is rounded up: a sixty-fourth of the ring is more.
const GAP: u32 = 256;
/// TSval of the last bare acknowledgement from the CPU that takes segments in.
const ACKED_O: u32 = LAST_O - 10;

/// A connection's line, and its clock: that reads `T` 1000 to 1200 as 5,000,000 to
/// 5,000,200, and what is below 1000 as so much before 4,000,000.
fn line_of(client: Tuple, cookie: u32) -> (Vec<u8>, Vec<u8>) {
    let unit_bits_adopted = 1 | 16 << 16;
    let (change, is_claimed, asked) = (0, 0, 0);
    let (now, past) = ([5_000_000, 1000], [4_000_000, 1000]);
    let line = [
        &[change, cookie][..],
        &now,
        &past,
        &[LEASE_T, ECHOED_T, unit_bits_adopted],
        &[0; 5],
    ];
    let clock = [
        &[LAST_O, LAST_T, ECHOED_T, unit_bits_adopted][..],
        &now,
        &past,
        &[ACKED_O, is_claimed, asked],
        &[0; 5],
    ];
    let bytes = |words: Vec<u32>| words.into_iter().flat_map(u32::to_ne_bytes);
    let name = name_of(client).to_ne_bytes().into_iter();
    (
        name.chain(bytes(line.concat())).collect(),
        bytes(clock.concat()).collect(),
    )
}

impl Server {
    /// Gives the connection its line and its clock; their index.
    fn lend(&self, client: Tuple, cookie: u32) -> [u8; 4] {
        let index = ((name_of(client) as u32) & 0xffff).to_ne_bytes();
        let (line, clock) = line_of(client, cookie);
        write(&self.skel.maps.timestamp_cache, &index, &line);
        write(&self.skel.maps.timestamp_clocks, &index, &clock);
        index
    }

    /// The line, which the way in reads, and the clock, which it does not.
    fn line(&self, index: [u8; 4]) -> (Vec<u8>, Vec<u8>) {
        let maps = &self.skel.maps;
        let line = maps.timestamp_cache.lookup(&index, MapFlags::ANY);
        let clock = maps.timestamp_clocks.lookup(&index, MapFlags::ANY);
        [line, clock]
            .map(|value| value.expect("lookup").expect("index"))
            .into()
    }
}

/// A bare acknowledgement of the server with this timestamp.
fn bare(client: Tuple, tsval: u32) -> Vec<u8> {
    arriving(&client.reversed().tcp(Tcp {
        flags: ACK,
        seq: 5,
        ack: 7,
        options: &layouts(tsval, TSECR)[0],
        payload: b"",
    }))
}

#[test]
fn an_open_connection_is_stamped_without_its_socket() {
    let server = Server::new(CookieMode::Timestamp);
    let (mut stamped, mut answered) = (0, 0);
    for client in clients() {
        let cookie = server.cookie(client);
        let wire = |t: u32| t << 16 | cookie;
        let index = server.lend(client, cookie);
        for (at, (before, after)) in layouts(LAST_O + 5, TSECR)
            .iter()
            .zip(layouts(wire(LAST_T + 5), TSECR))
            .enumerate()
        {
            let out = server.out(&frame(client.reversed(), ACK, before));
            let expected = frame(client.reversed(), ACK, &after);
            assert_eq!(hex(&out), hex(&expected), "layout {at}");
            stamped += 1;
        }
        // Bare acknowledgements move the clock after an eighth of a gap; a pause loses whole
        // periods. Then the lease is too short.
        for (o, t) in [
            (LAST_O + 36, LAST_T + 5),
            (LAST_O + 37, LAST_T + 37),
            (LAST_O + 68, LAST_T + 37),
            (LAST_O + 90_000, LAST_T + 37 + PAUSE_T),
            (LAST_O + 90_036, LAST_T + 37 + PAUSE_T + 36),
        ] {
            let out = server.out(&bare(client, o));
            assert_eq!(hex(&out), hex(&bare(client, wire(t))), "{o}");
            stamped += 1;
        }
        // What the client echoes of that comes back as it was.
        let echo = frame(client, ACK, &layouts(TSVAL, wire(LAST_T + 37 + PAUSE_T))[0]);
        let o = frame(client, ACK, &layouts(TSVAL, LAST_O + 90_000)[0]);
        assert_eq!(hex(&server.inwards(&echo)), hex(&o));
        // 4,095 are left, and a step takes up to 4,096: by the socket, which is not there.
        let before = server.line(index);
        let fin = 1;
        let ends = frame(
            client.reversed(),
            ACK | fin,
            &layouts(LAST_O + 90_037, TSECR)[0],
        );
        for left in [bare(client, LAST_O + 90_037), ends] {
            let out = server.out(&left);
            let stateless = (LAST_O + 90_037) << 16 | cookie;
            let tsval = u32::from_be_bytes(out[58..62].try_into().expect("four"));
            if client.src.is_ipv4() {
                assert_eq!(tsval, stateless);
            }
            answered += 1;
        }
        assert_eq!(server.line(index), before);
    }
    assert_eq!(
        server.events(),
        BTreeMap::from([
            ("answered", answered),
            ("restored_quickly", 2),
            ("stamped", stamped)
        ])
    );
}

#[test]
fn an_open_connections_echo_is_restored_without_its_socket() {
    let server = Server::new(CookieMode::Timestamp);
    let (mut quickly, mut remembered) = (0, 0);
    for client in clients() {
        let cookie = server.cookie(client);
        let index = server.lend(client, cookie);
        for (t, o) in [(1000, 5_000_000), (1200, 5_000_200), (950, 3_999_950)] {
            let echo = t << 16 | cookie;
            for (before, after) in layouts(TSVAL, echo).iter().zip(layouts(TSVAL, o)) {
                let out = server.inwards(&frame(client, ACK, before));
                assert_eq!(hex(&out), hex(&frame(client, ACK, &after)), "{before:?}");
                quickly += 1;
            }
        }
        // From beyond the lease, another cookie, or the end: the socket's, which is not there.
        let fin = 1;
        for (echo, flags) in [
            ((LEASE_T + 1) << 16 | cookie, ACK),
            (1100 << 16 | (cookie ^ 1), ACK),
            (1100 << 16 | cookie, ACK | fin),
            (1100 << 16 | cookie, ACK),
        ] {
            let same = frame(client, flags, &layouts(TSVAL, echo)[0]);
            assert_eq!(hex(&server.inwards(&same)), hex(&same));
            remembered += 1;
        }
        assert_eq!(server.line(index).0[..8], [0; 8], "no socket has it");
    }
    assert_eq!(
        server.events(),
        BTreeMap::from([("remembered", remembered), ("restored_quickly", quickly)])
    );
}

#[test]
fn each_way_writes_a_cache_line_of_its_own() {
    let server = Server::new(CookieMode::Timestamp);
    for client in clients() {
        let cookie = server.cookie(client);
        let index = server.lend(client, cookie);
        let sends = |o: u32| server.out(&frame(client.reversed(), ACK, &layouts(o, TSECR)[0]));
        let echoes = |t: u32| {
            let echo = t << 16 | cookie;
            server.inwards(&frame(client, ACK, &layouts(TSVAL, echo)[0]))
        };
        // Out: the clock moves, and nothing that the way in reads.
        let before = server.line(index);
        sends(LAST_O + 5);
        let after = server.line(index);
        assert_eq!(after.0, before.0);
        assert_ne!(after.1, before.1);
        // In: what came back is rounded up, so that it is written once a gap.
        let before = after;
        echoes(LAST_T);
        let after = server.line(index);
        let echoed = |line: &[u8]| u32::from_ne_bytes(line[ECHOED_AT].try_into().expect("four"));
        assert_eq!(echoed(&after.0), LAST_T + GAP);
        assert_eq!(after.1, before.1);
        echoes(LAST_T + 5);
        assert_eq!(server.line(index), after);
        // A pause turns the clock: what was sent before and after it is restored right.
        sends(LAST_O + 90_000);
        let turned = server.line(index);
        assert_ne!(turned.0, after.0);
        let t = LAST_T + 5 + (89_995 & 4095);
        for (t, o) in [(t, LAST_O + 90_000), (LAST_T + 5, LAST_O + 5)] {
            let restored = frame(client, ACK, &layouts(TSVAL, o)[0]);
            assert_eq!(hex(&echoes(t)), hex(&restored), "{t}");
        }
    }
}
