// SPDX-License-Identifier: Apache-2.0
//! Filter expressions: compiled by libpcap, run here, compared with libpcap's own
//! interpreter on recorded frames, on cut ones and on frames with a byte changed.

#![allow(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::Path;

use causeway_core::capture::{Poll, Reader};
use causeway_core::filter::{Instruction, Program};
use causeway_core::wire::LinkType;
use causeway_netio::FilterError;
use causeway_netio::filter::{asks_for_vlan, attach, compile};
use libloading::Library;

const EXPRESSIONS: &[&str] = &[
    "",
    "tcp",
    "udp",
    "ip6",
    "arp",
    "not tcp",
    "tcp dst port 8080",
    "tcp dst port 443 and net 10.0.0.0/8",
    "port 8080 or port 443",
    "portrange 8000-9000",
    "src host 10.9.1.2",
    "dst net 10.9.2.0/24 and not udp",
    "greater 100",
    "less 100",
    "len >= 200 and len < 300",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "tcp[13] & 8 != 0 and ip[2:2] - ((ip[0] & 0xf) << 2) > 40",
    "udp[8] & 0x80 = 0",
    "ip[8] / 2 = 32 or ip[8] % 3 = 1",
    "ip proto 47 or ip proto 4",
    "vlan and ip",
    "mpls",
    "ether host 02:00:00:00:00:01 or ether broadcast",
    "icmp[0] = 8",
    "ip6 and tcp port 80",
];

/// libpcap's `bpf_filter`, the oracle.
struct Oracle(Library);

type BpfFilter = unsafe extern "C" fn(*const libc::sock_filter, *const u8, u32, u32) -> u32;

impl Oracle {
    fn new() -> Self {
        // SAFETY: libpcap, which this test needs, has harmless initialisers.
        Self(unsafe { Library::new("libpcap.so.0.8") }.expect("libpcap; see scripts/setup"))
    }

    fn run(&self, program: &Program, data: &[u8], wire_len: u32) -> u32 {
        let raw = |one: &Instruction| libc::sock_filter {
            code: one.code,
            jt: one.jt,
            jf: one.jf,
            k: one.k,
        };
        let program: Vec<_> = program.instructions().iter().map(raw).collect();
        // SAFETY: the type is that of pcap/bpf.h; the packet has the length given.
        unsafe {
            let run = self.0.get::<BpfFilter>(b"bpf_filter\0").unwrap();
            run(program.as_ptr(), data.as_ptr(), wire_len, data.len() as u32)
        }
    }
}

/// Every `step`th frame of a recording.
fn frames(name: &str, step: usize) -> Vec<(Vec<u8>, u32)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/measure");
    let bytes = zstd::decode_all(File::open(path.join(name)).unwrap()).unwrap();
    let mut reader = Reader::new();
    reader.feed(&bytes);
    reader.finish();
    let mut frames = Vec::new();
    while let Poll::Packet(packet) = reader.poll().unwrap() {
        frames.push((packet.data.to_vec(), packet.wire_len));
    }
    frames.into_iter().step_by(step).collect()
}

#[test]
fn our_interpreter_agrees_with_libpcaps() {
    let oracle = Oracle::new();
    let frames = [frames("w4.pcap.zst", 211), frames("h3.pcap.zst", 97)].concat();
    let (mut matched, mut missed) = (0, 0);
    for expression in EXPRESSIONS {
        let program = compile(expression, LinkType::Ethernet, 128).unwrap();
        let mut check = |data: &[u8], wire_len: u32| {
            let ours = program.run(data, wire_len);
            let theirs = oracle.run(&program, data, wire_len);
            assert_eq!(ours, theirs, "`{expression}` on {data:02x?}");
            *if ours == 0 { &mut missed } else { &mut matched } += 1;
        };
        for (data, wire_len) in &frames {
            check(data, *wire_len);
            for len in 0..data.len().min(70) {
                check(&data[..len], *wire_len);
            }
            let mut other = data.clone();
            for at in 12..data.len().min(60) {
                other[at] ^= 0x41;
                check(&other, *wire_len);
                other[at] ^= 0x41;
            }
        }
    }
    assert!(matched > 1000 && missed > 1000, "{matched} {missed}");
}

#[test]
fn expressions_are_compiled_for_every_link_type_that_libpcap_can() {
    for number in 0..300 {
        let Some(link) = LinkType::from_number(number) else {
            continue;
        };
        let program = compile("tcp dst port 443", link, 65_535);
        if matches!(link, LinkType::Nflog | LinkType::Pktap) {
            // libpcap cannot look behind their headers, and says so.
            assert!(matches!(program, Err(FilterError::Refused { .. })));
        } else {
            assert!(program.is_ok(), "{link:?}: {}", program.unwrap_err());
        }
    }
}

#[test]
fn a_wrong_expression_is_one_sentence() {
    let error = |expression| {
        let error = compile(expression, LinkType::Ethernet, 128).expect_err("a wrong expression");
        error.to_string()
    };
    let syntax = error("tcp dst and 443");
    assert!(
        syntax.starts_with("the filter expression `tcp dst and 443` is refused: ")
            && syntax.contains("syntax error")
            && syntax.ends_with("; pcap-filter(7) describes the language"),
        "{syntax}"
    );
    assert!(error("host 300.1.2.3.4").contains("300.1.2.3.4"));
    assert!(error("tcp\0").contains("zero byte"));
    assert!(error("ip broadcast").contains("netmask"));
}

#[test]
fn a_socket_receives_what_matches() {
    // Return 64 KiB where the first byte behind the UDP header is `y`.
    let ins = |code, jt, jf, k| Instruction { code, jt, jf, k };
    let program = Program::new(vec![
        ins(0x30, 0, 0, 8),
        ins(0x15, 0, 1, u32::from(b'y')),
        ins(0x06, 0, 0, 65_536),
        ins(0x06, 0, 0, 0),
    ])
    .unwrap();
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    attach(receiver.as_fd(), &program).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for text in [&b"no"[..], b"yes", b"none", b"y"] {
        sender
            .send_to(text, receiver.local_addr().unwrap())
            .unwrap();
    }
    let mut buffer = [0; 16];
    for expected in [&b"yes"[..], b"y"] {
        let count = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..count], expected);
    }
}

#[test]
fn tags_are_asked_for_by_the_word_alone() {
    for asks in ["vlan", "vlan 5 and tcp", "tcp or(vlan)", "not vlan&&ip"] {
        assert!(asks_for_vlan(asks), "{asks}");
    }
    for not in ["", "tcp port 80", "host vlan-gw", "host my.vlan.example"] {
        assert!(!asks_for_vlan(not), "{not}");
    }
}
