// SPDX-License-Identifier: Apache-2.0
//! `causeway shadow -r`: captures of balancers that are not there, with servers whose queues
//! are known.

use std::io::{Read as _, Write as _};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::{stderr, stdout};

const MS: u64 = 1_000_000;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;

type Endpoint = ([u8; 4], u16);

/// A packet, by the time it comes.
type Stamped = (u64, Vec<u8>);

/// One end of a connection.
struct Side {
    at: Endpoint,
    seq: u32,
}

/// A connection that asks one thing after another.
struct Talk {
    client: Side,
    server: Side,
    /// Under a tunnel to this address.
    tunnel: Option<[u8; 4]>,
    /// Answers are not seen.
    one_way: bool,
    packets: Vec<Stamped>,
}

impl Talk {
    fn new(client: Endpoint, server: Endpoint) -> Self {
        let side = |at, seq| Side { at, seq };
        Self {
            client: side(client, 1000),
            server: side(server, 9000),
            tunnel: None,
            one_way: false,
            packets: Vec::new(),
        }
    }

    fn packet(&mut self, at_ns: u64, from_client: bool, flags: u8, len: usize) {
        let (from, to) = match from_client {
            true => (&mut self.client, &mut self.server),
            false => (&mut self.server, &mut self.client),
        };
        let ack = if flags == SYN { 0 } else { to.seq };
        let frame = frame(
            from.at,
            to.at,
            (from.seq, ack),
            flags,
            len,
            at_ns,
            self.tunnel,
        );
        from.seq += len as u32 + u32::from(flags & (SYN | FIN) != 0);
        if from_client || !self.one_way {
            self.packets.push((at_ns, frame));
        }
    }

    fn open(&mut self, at_ns: u64) {
        self.packet(at_ns, true, SYN, 0);
        self.packet(at_ns + 10_000, false, SYN | ACK, 0);
        self.packet(at_ns + 20_000, true, ACK, 0);
    }

    fn ask(&mut self, sent_ns: u64, done_ns: u64) {
        self.packet(sent_ns, true, PSH | ACK, 200);
        self.packet(done_ns - 20_000, false, PSH | ACK, 900);
        self.packet(done_ns, true, ACK, 0);
    }

    fn close(&mut self, at_ns: u64) {
        self.packet(at_ns, true, FIN | ACK, 0);
        self.packet(at_ns + 10_000, false, FIN | ACK, 0);
        self.packet(at_ns + 20_000, true, ACK, 0);
    }
}

fn ip(protocol: u8, source: [u8; 4], to: [u8; 4], inside: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, 0];
    header.extend((20 + inside.len() as u16).to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    header.extend(source);
    header.extend(to);
    header.extend(inside);
    header
}

fn ethernet(packet: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0][..], packet].concat()
}

fn frame(
    from: Endpoint,
    to: Endpoint,
    (seq, ack): (u32, u32),
    flags: u8,
    len: usize,
    at_ns: u64,
    tunnel: Option<[u8; 4]>,
) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend(from.1.to_be_bytes());
    tcp.extend(to.1.to_be_bytes());
    tcp.extend(seq.to_be_bytes());
    tcp.extend(ack.to_be_bytes());
    tcp.extend([0x80, flags, 0xff, 0xff, 0, 0, 0, 0, 1, 1, 8, 10]);
    let now_ms = (at_ns / MS) as u32;
    tcp.extend(now_ms.to_be_bytes());
    tcp.extend(now_ms.to_be_bytes());
    tcp.resize(tcp.len() + len, 0);
    let mut packet = ip(6, from.0, to.0, &tcp);
    if let Some(end) = tunnel {
        packet = ip(4, [10, 0, 0, 2], end, &packet);
    }
    ethernet(&packet)
}

/// What one IPVS sends another about its connections.
fn ipvs_sync() -> Vec<u8> {
    let ports = [40_000_u16, 8848].map(u16::to_be_bytes).concat();
    let udp = [&ports[..], &[0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    ethernet(&ip(17, [10, 0, 0, 2], [224, 0, 0, 81], &udp))
}

/// A pcap in nanoseconds.
fn written(mut packets: Vec<Stamped>) -> NamedTempFile {
    packets.sort_by_key(|(at_ns, _)| *at_ns);
    let mut bytes = Vec::new();
    bytes.extend(0xa1b2_3c4d_u32.to_le_bytes());
    bytes.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0]);
    for (at_ns, frame) in packets {
        let words = [
            1_700_000_000 + (at_ns / 1_000_000_000) as u32,
            (at_ns % 1_000_000_000) as u32,
            frame.len() as u32,
            frame.len() as u32,
        ];
        words
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(frame);
    }
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    file
}

fn shadow(file: &NamedTempFile, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_causeway"))
        .args(["shadow", "-r"])
        .arg(file.path())
        .args(args)
        .output()
        .unwrap()
}

fn json(file: &NamedTempFile, args: &[&str]) -> Value {
    let output = shadow(file, &[&["-o", "json"], args].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Exponential chance, the same each time.
struct Chance(u64);

impl Chance {
    fn exponential(&mut self, mean_ns: f64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let uniform = (self.0 >> 11) as f64 / (1_u64 << 53) as f64;
        (-(1.0 - uniform).ln() * mean_ns) as u64
    }
}

const VIP: Endpoint = ([10, 0, 0, 1], 80);

fn server(index: usize) -> Endpoint {
    ([10, 0, 1, 10 + index as u8], 8080)
}

/// Three servers that work on one request at a time, by turns, the last three times as long;
/// `talks` makes of a client, a server, and what is asked when, the connections.
fn by_turns(
    seconds: u64,
    talks: impl Fn(u16, Endpoint, Endpoint, &[(u64, u64)]) -> Vec<Talk>,
) -> NamedTempFile {
    let mut chance = Chance(7);
    let mut free_ns = [0; 3];
    let (mut now_ns, mut packets) = (0, Vec::new());
    for number in 0_u16.. {
        now_ns += 1 + chance.exponential(16e6);
        if now_ns > seconds * 1000 * MS {
            break;
        }
        let index = usize::from(number) % 3;
        let factor = if index == 2 { 3.0 } else { 1.0 };
        let sent_ns = now_ns + 100_000;
        let begin_ns = sent_ns.max(free_ns[index]);
        let done_ns = begin_ns + MS + chance.exponential(9e6 * factor);
        free_ns[index] = done_ns;
        let client = ([10, 9, 0, 1 + (number % 50) as u8], 20_000 + number);
        for mut talk in talks(number, client, server(index), &[(sent_ns, done_ns)]) {
            packets.append(&mut talk.packets);
        }
    }
    written(packets)
}

fn asked(mut talk: Talk, asks: &[(u64, u64)], open_ns: u64) -> Talk {
    talk.open(open_ns);
    for (sent_ns, done_ns) in asks {
        talk.ask(*sent_ns, *done_ns);
    }
    talk.close(asks[asks.len() - 1].1 + 30_000);
    talk
}

fn proxied(seconds: u64) -> NamedTempFile {
    by_turns(seconds, |number, client, server, asks| {
        let begin_ns = asks[0].0 - 60_000;
        let own = ([10, 0, 0, 2], 20_000 + number);
        vec![
            asked(Talk::new(client, VIP), asks, begin_ns),
            asked(Talk::new(own, server), asks, begin_ns + 1000),
        ]
    })
}

fn number(report: &Value, pointer: &str) -> f64 {
    let found = report.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("no number at {pointer}: {report:#}"))
}

#[test]
fn beside_a_proxy_servers_are_measured_and_causeway_is_forecast() {
    let file = proxied(60);
    let report = json(&file, &[]);
    assert_eq!(report["balancer"]["kind"], "proxy");
    assert_eq!(report["balancer"]["method"], "turns");
    assert_eq!(report["balancer"]["fronts"][0], "10.0.0.1:80");
    let servers = report["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 3, "{report:#}");
    for of in servers {
        assert_eq!(of["workers"], 1, "{of:#}");
        assert_eq!(of["quality"], "high");
    }
    // In truth 10 ms, and 28.
    assert!((8.0..12.0).contains(&number(&report, "/servers/0/service_ms")));
    assert!((24.0..32.0).contains(&number(&report, "/servers/2/service_ms")));
    let today = number(&report, "/forecast/today/p99_ms");
    let causeway = number(&report, "/forecast/causeway/p99_ms");
    assert!(causeway < today, "{causeway} of {today} ms");
    assert!(number(&report, "/forecast/servers/2/weight") < 0.9);
    assert_ne!(report["forecast"]["quality"], "none");
    let live = number(&report, "/arrivals/live_mean");
    let broken = report["broken"].as_array().unwrap();
    let of = |change: &str| broken.iter().find(|of| of["change"] == change).unwrap();
    assert_eq!(of("pool_changed")["today"], 0.0);
    assert_eq!(of("balancer_replaced")["today"], live);
    assert_eq!(
        of("balancer_replaced")["cookies"],
        0.0,
        "all had timestamps"
    );
    let table = number(of("balancer_replaced"), "/table");
    assert!(
        (0.5 * live..0.8 * live).contains(&table),
        "two in three go astray"
    );
    assert_eq!(of("balancer_restarted")["cookies"], 0.0);
    let screen = shadow(&file, &[]);
    for part in ["a proxy", "by turns", "with Causeway", "10.0.1.12:8080"] {
        assert!(
            stdout(&screen).contains(part),
            "{part}: {}",
            stdout(&screen)
        );
    }
}

/// A forwarder that tunnels, seen at its own interface.
fn tunnelled(more: impl Fn(u16, u64) -> Vec<Stamped>) -> NamedTempFile {
    by_turns(40, |number, client, server, asks| {
        let begin_ns = asks[0].0 - 60_000;
        let one_way = |tunnel| Talk {
            tunnel,
            one_way: true,
            ..Talk::new(client, VIP)
        };
        let mut first = asked(one_way(None), asks, begin_ns);
        first.packets.append(&mut more(number, begin_ns));
        vec![first, asked(one_way(Some(server.0)), asks, begin_ns + 1000)]
    })
}

/// What a replaced balancer breaks today.
fn replaced_today(report: &Value) -> &Value {
    let broken = report["broken"].as_array().unwrap();
    let replaced = broken.iter().find(|of| of["change"] == "balancer_replaced");
    &replaced.unwrap()["today"]
}

#[test]
fn behind_a_tunnel_the_servers_are_where_it_ends() {
    let report = json(&tunnelled(|_, _| Vec::new()), &[]);
    assert_eq!(report["balancer"]["kind"], "forwarder");
    assert_eq!(report["balancer"]["method"], "turns");
    assert_eq!(report["servers"].as_array().unwrap().len(), 3);
    assert!(number(&report, "/forecast/causeway/p99_ms") > 0.0);
    assert_eq!(
        *replaced_today(&report),
        report["arrivals"]["live_mean"],
        "what goes by turns has a table, and no other machine was told of it"
    );
}

#[test]
fn what_a_forwarder_that_tells_its_table_breaks_is_not_told() {
    let report = json(
        &tunnelled(|number, at_ns| match number {
            9 => vec![(at_ns, ipvs_sync())],
            _ => Vec::new(),
        }),
        &[],
    );
    assert_eq!(*replaced_today(&report), Value::Null);
}

#[test]
fn what_cannot_be_known_is_not_told_and_the_reason_is() {
    let file = proxied(12);
    let short = json(&file, &[]);
    assert_eq!(short["forecast"]["quality"], "low");
    let reason = |report: &Value| report["forecast"]["reasons"].to_string();
    assert!(
        reason(&short).contains("watch for 30 s"),
        "{}",
        reason(&short)
    );
    let one = json(&file, &["--server", "10.0.1.10"]);
    assert_eq!(one["forecast"]["quality"], "none");
    assert_eq!(one["forecast"]["causeway"]["p99_ms"], Value::Null);
    assert!(reason(&one).contains("--server"), "{}", reason(&one));
    let nothing = json(&file, &["--port", "9"]);
    assert_eq!(nothing["forecast"]["quality"], "none");
    assert_eq!(nothing["broken"].as_array().unwrap().len(), 0);
    let few = json(&proxied(1), &[]);
    assert!(reason(&few).contains("--for"), "{}", reason(&few));
    let absent = NamedTempFile::new().unwrap();
    let output = shadow(&absent, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("the input is empty"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_could_be_read_of_a_damaged_file_is_reported() {
    let whole = std::fs::read(proxied(12).path()).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzEncoder::new(&whole[..], flate2::Compression::fast())
        .read_to_end(&mut bytes)
        .unwrap();
    bytes.truncate(bytes.len() - 20);
    let mut cut = NamedTempFile::new().unwrap();
    cut.write_all(&bytes).unwrap();
    let output = shadow(&cut, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(!stderr(&output).is_empty());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["balancer"]["kind"], "proxy");
}
