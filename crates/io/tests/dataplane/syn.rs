// SPDX-License-Identifier: Apache-2.0
//! SYN accounting in the kernel: whole segments in, every counter out, and the
//! segments untouched. Time stands in the buffer's timestamp.

use std::net::IpAddr;

use causeway_io::abi::{
    Plain, SynEntry, SynOrigin, SynPrefix, SynRetryTime, SynSlot, SynSlotLocked, VipKey, addr_bytes,
};
use causeway_io::skel::syn::{SynSkel, SynSkelBuilder};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput, ProgramMut};

use crate::frame::{ACK, FIN, PSH, RST, SYN, Tcp, Tuple, arriving, ethernet, leaving};
use crate::rig::{TCP, hex, read, storage, write};

const MS: u64 = 1_000_000;
const SLOT_MS: u64 = 250;
const RING: u32 = 64;
const CLOCK_METADATA: u32 = 1;
const CLOCK_KTIME: u32 = 0;
/// The interface of BPF_PROG_TEST_RUN.
const LOOPBACK: u32 = 1;
/// TC_ACT_UNSPEC: on to the next filter.
const GO_ON: u32 = u32::MAX;
const SERVICE4: &str = "192.0.2.10";
const SERVICE6: &str = "2001:db8:1::10";
const ISN: u32 = 0xffff_fff0;
const SERVER_ISN: u32 = 7000;

struct Kernel {
    skel: SynSkel<'static>,
    now_ms: u64,
}

impl Kernel {
    /// Services: the two addresses on port 80 as one, the others as the second.
    /// Clients: 198.51.100.0/24, and everybody else.
    fn new() -> Self {
        Self::with_room(1024)
    }

    fn with_room(half_open: u32) -> Self {
        Self::with(half_open, CLOCK_METADATA)
    }

    fn with(half_open: u32, clock: u32) -> Self {
        let mut open = SynSkelBuilder::default().open(storage()).expect("open");
        let rodata = open.maps.rodata_data.as_deref_mut().expect("rodata");
        rodata.cfg_clock = clock;
        rodata.cfg_slot_ns = SLOT_MS * MS;
        rodata.cfg_ring = RING;
        rodata.cfg_services = 2;
        rodata.cfg_prefixes = 2;
        rodata.cfg_all_services = true;
        open.maps.syn_slots.set_max_entries(4 * RING).expect("size");
        open.maps
            .syn_half_open
            .set_max_entries(half_open)
            .expect("size");
        open.maps
            .syn_connections
            .set_max_entries(1024)
            .expect("size");
        let skel = open
            .load()
            .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
        for address in [SERVICE4, SERVICE6] {
            let key = VipKey {
                addr: addr_bytes(address.parse().unwrap()),
                port_be: 80u16.to_be_bytes(),
                proto: TCP,
                kind: 0,
            };
            write(
                &skel.maps.syn_services,
                Plain::as_bytes(&key),
                &0u32.to_ne_bytes(),
            );
        }
        let prefix = SynPrefix {
            length: 96 + 24,
            addr: addr_bytes("198.51.100.0".parse().unwrap()),
        };
        write(
            &skel.maps.syn_prefixes,
            Plain::as_bytes(&prefix),
            &0u32.to_ne_bytes(),
        );
        write(
            &skel.maps.syn_devices,
            &LOOPBACK.to_ne_bytes(),
            &0u32.to_ne_bytes(),
        );
        Self {
            skel,
            now_ms: 10_000,
        }
    }

    fn run(&self, program: &ProgramMut<'_>, frame: &[u8]) {
        // struct __sk_buff; tstamp is its u64 at 152.
        let mut context = vec![0_u8; 192];
        context[152..160].copy_from_slice(&(self.now_ms * MS).to_ne_bytes());
        let mut output = vec![0; frame.len() + 256];
        let run = program
            .test_run(ProgramInput {
                context_in: Some(&mut context),
                data_in: Some(frame),
                data_out: Some(&mut output),
                ..Default::default()
            })
            .expect("BPF_PROG_TEST_RUN; it needs root");
        assert_eq!(run.return_value, GO_ON);
        assert_eq!(
            hex(run.data.expect("data_out")),
            hex(frame),
            "it only looks on"
        );
    }

    fn come(&self, frame: &[u8]) {
        self.run(&self.skel.progs.causeway_syn_in, frame);
    }

    fn go(&self, frame: &[u8]) {
        self.run(&self.skel.progs.causeway_syn_out, frame);
    }

    fn at(&mut self, ms: u64) -> &mut Self {
        self.now_ms = 10_000 + ms;
        self
    }

    /// The counts of a slot after the start, of service and clients.
    fn slot(&self, service: u32, prefix: u32, slot: u64) -> SynSlot {
        let number = 10_000 / SLOT_MS + slot;
        let index = (service * 2 + prefix) * RING + (number % u64::from(RING)) as u32;
        let locked: SynSlotLocked = read(&self.skel.maps.syn_slots, &index.to_ne_bytes()).unwrap();
        match locked.slot.number == number {
            true => SynSlot {
                number: 0,
                ..locked.slot
            },
            false => SynSlot::default(),
        }
    }

    /// Attempts and connections in the tables.
    fn entries(&self) -> (usize, usize) {
        (
            self.skel.maps.syn_half_open.keys().count(),
            self.skel.maps.syn_connections.keys().count(),
        )
    }
}

/// One client's connection; methods send a segment each.
struct Client<'a> {
    kernel: &'a mut Kernel,
    tuple: Tuple,
    isn: u32,
    /// Bytes that it sent.
    sent: u32,
}

impl Client<'_> {
    fn says(&mut self, ms: u64, flags: u8, payload: &[u8]) -> &mut Self {
        let tcp = Tcp {
            flags,
            seq: match flags {
                flags if flags & SYN != 0 => self.isn,
                // Behind the data that it sent.
                flags if flags & (FIN | RST) != 0 && payload.is_empty() => {
                    self.isn.wrapping_add(1 + self.sent)
                }
                _ => self.isn.wrapping_add(1),
            },
            ack: if flags & ACK != 0 { SERVER_ISN + 1 } else { 0 },
            options: &[],
            payload,
        };
        self.sent += payload.len() as u32;
        self.kernel.at(ms).come(&arriving(&self.tuple.tcp(tcp)));
        self
    }

    fn hears(&mut self, ms: u64, flags: u8, payload: &[u8]) -> &mut Self {
        let tcp = Tcp {
            flags,
            seq: if flags & SYN != 0 {
                SERVER_ISN
            } else {
                SERVER_ISN + 1
            },
            ack: self.isn.wrapping_add(1),
            options: &[],
            payload,
        };
        self.kernel
            .at(ms)
            .go(&leaving(&self.tuple.reversed().tcp(tcp)));
        self
    }
}

fn clients() -> [Tuple; 2] {
    [
        Tuple::new("198.51.100.7", 4000, SERVICE4, 80),
        Tuple::new("2001:db8::7", 4000, SERVICE6, 80),
    ]
}

fn client(kernel: &mut Kernel, port: u16) -> Client<'_> {
    Client {
        kernel,
        tuple: Tuple::new("198.51.100.7", port, SERVICE4, 80),
        isn: ISN,
        sent: 0,
    }
}

fn prefix_of(client: Tuple) -> u32 {
    u32::from(client.src.is_ipv6())
}

#[test]
fn a_connection_from_dropped_syns_to_last_data_counter_by_counter() {
    for tuple in clients() {
        let mut kernel = Kernel::new();
        let prefix = prefix_of(tuple);
        let mut client = Client {
            kernel: &mut kernel,
            tuple,
            isn: ISN,
            sent: 0,
        };
        client
            .says(0, SYN, b"")
            .says(1020, SYN, b"")
            .says(2045, SYN, b"")
            .hears(2046, SYN | ACK, b"")
            .says(2054, ACK, b"")
            .says(2055, ACK | PSH, b"GET /")
            .hears(2056, ACK, b"")
            .hears(2500, ACK | PSH, b"200 OK")
            .hears(2700, ACK | FIN, b"the rest")
            .says(2710, ACK | FIN, b"")
            .hears(2711, ACK, b"");
        let offered = |retry: usize| {
            let mut slot = SynSlot::default();
            slot.offered[retry] = 1;
            slot
        };
        let mut first = offered(0);
        first.heard = 1;
        let second = offered(1);
        let mut third = offered(2);
        (third.accepted[2], third.established, third.served) = (1, 1, 1);
        let done = SynSlot {
            completed: 1,
            conn_fail_ns: 2045 * MS,
            syn_to_end_ns: 655 * MS,
            rtt_ns: 8 * MS,
            ..SynSlot::default()
        };
        assert_eq!(kernel.slot(0, prefix, 0), first);
        assert_eq!(kernel.slot(0, prefix, 4), second);
        assert_eq!(kernel.slot(0, prefix, 8), third);
        assert_eq!(kernel.slot(0, prefix, 10), done);
        for slot in [1, 2, 3, 5, 6, 7, 9, 11] {
            assert_eq!(
                kernel.slot(0, prefix, slot),
                SynSlot::default(),
                "slot {slot}"
            );
        }
        assert_eq!(
            kernel.slot(0, 1 - prefix, 0),
            SynSlot::default(),
            "other clients"
        );
        let origin = SynOrigin {
            number: 50,
            category: prefix,
            slots_ago: 2,
        };
        let origins = &kernel.skel.maps.syn_origins;
        assert_eq!(read::<u64>(origins, Plain::as_bytes(&origin)), Some(1));
        let time = SynRetryTime {
            retry: 2,
            at_cs: 204,
        };
        let times = &kernel.skel.maps.syn_retry_times;
        assert_eq!(read::<u64>(times, Plain::as_bytes(&time)), Some(1));
        assert_eq!(kernel.entries(), (0, 0), "nothing is left of it");
    }
}

#[test]
fn what_is_not_ours_or_not_tcp_counts_nowhere() {
    let mut kernel = Kernel::new();
    let client = clients()[0];
    kernel.come(&arriving(&client.udp(b"syn")));
    kernel.come(&arriving(&client.tcp(Tcp::syn(ISN))[..30]));
    // Behind a tunnel that nobody opened; TCP of which nothing is known; absurd flags.
    let inner = client.tcp(Tcp::syn(ISN));
    let outer = crate::frame::Ip::OUTER;
    kernel.come(&arriving(&outer.packet(client.src, client.dst, 4, &inner)));
    for flags in [ACK, ACK | FIN, RST, SYN | FIN, SYN | RST, 0] {
        let segment = Tcp {
            flags,
            seq: ISN,
            ..Tcp::default()
        };
        kernel.come(&arriving(&client.tcp(segment)));
    }
    for flags in [SYN, SYN | ACK, ACK, ACK | FIN, RST] {
        let segment = Tcp {
            flags,
            seq: ISN,
            ack: 3,
            ..Tcp::default()
        };
        kernel.go(&leaving(&client.reversed().tcp(segment)));
    }
    assert_eq!(kernel.entries(), (0, 0));
    for category in 0..4 {
        assert_eq!(
            kernel.slot(category / 2, category % 2, 0),
            SynSlot::default()
        );
    }
    // An interface that is not to be measured.
    let devices = &kernel.skel.maps.syn_devices;
    devices.delete(&LOOPBACK.to_ne_bytes()).expect("delete");
    kernel.at(0).come(&arriving(&client.tcp(Tcp::syn(ISN))));
    assert_eq!(kernel.entries(), (0, 0));
}

#[test]
fn an_acknowledgement_that_guesses_establishes_nothing() {
    let tuple = clients()[0];
    let mut kernel = Kernel::new();
    let mut client = Client {
        kernel: &mut kernel,
        tuple,
        isn: ISN,
        sent: 0,
    };
    client.says(0, SYN, b"").hears(1, SYN | ACK, b"");
    let guess = Tcp {
        flags: ACK,
        seq: ISN + 1,
        ack: SERVER_ISN - 5,
        ..Tcp::default()
    };
    kernel.at(2).come(&arriving(&tuple.tcp(guess)));
    assert_eq!(kernel.slot(0, 0, 0).established, 0);
    assert_eq!(kernel.entries(), (1, 0));
}

#[test]
fn another_service_is_another_category_and_a_tuple_used_again_another_attempt() {
    let mut kernel = Kernel::new();
    let tuple = Tuple::new("203.0.113.9", 4000, SERVICE4, 443);
    for isn in [ISN, 5] {
        let mut client = Client {
            kernel: &mut kernel,
            tuple,
            isn,
            sent: 0,
        };
        client
            .says(0, SYN, b"")
            .hears(1, SYN | ACK, b"")
            .says(2, SYN, b"")
            .says(3, ACK, b"")
            .says(4, SYN, b"");
    }
    let slot = kernel.slot(1, 1, 0);
    assert_eq!(
        (slot.offered[0], slot.accepted[0], slot.duplicates),
        (2, 2, 4)
    );
    assert_eq!(
        (slot.established, slot.heard, slot.heard_answered),
        (2, 2, 2)
    );
    assert_eq!(kernel.slot(0, 1, 0), SynSlot::default());
}

#[test]
fn refused_abandoned_and_stalled_are_told_apart() {
    let mut kernel = Kernel::new();
    let connected: [(u64, u8); 3] = [(0, SYN), (1, SYN | ACK), (2, ACK)];
    let connect = |client: &mut Client<'_>| {
        for (ms, flags) in connected {
            match flags & (SYN | ACK) == (SYN | ACK) {
                true => client.hears(ms, flags, b""),
                false => client.says(ms, flags, b""),
            };
        }
    };
    client(&mut kernel, 1)
        .says(0, SYN, b"")
        .hears(1, RST | ACK, b"");
    client(&mut kernel, 2)
        .says(0, SYN, b"")
        .hears(1, SYN | ACK, b"")
        .says(2, RST, b"");
    let mut stalled = client(&mut kernel, 3);
    connect(&mut stalled);
    stalled
        .says(3, ACK | PSH, b"GET /")
        .hears(1020, SYN | ACK, b"");
    stalled
        .says(1500, ACK | FIN, b"")
        .says(1700, ACK | FIN, b"");
    let mut half_closed = client(&mut kernel, 4);
    connect(&mut half_closed);
    half_closed
        .says(3, ACK | FIN, b"GET /")
        .hears(4, ACK, b"")
        .hears(1600, ACK | FIN, b"200 OK");
    let slot = kernel.slot(0, 0, 0);
    assert_eq!((slot.offered[0], slot.accepted[0]), (3, 3));
    assert_eq!((slot.refused, slot.abandoned, slot.established), (1, 1, 2));
    let later = kernel.slot(0, 0, 6);
    assert_eq!((later.stalled, later.stalled_ns), (1, 1500 * MS));
    assert_eq!((later.completed, later.syn_to_end_ns), (1, 1600 * MS));
    assert_eq!(kernel.entries().1, 0);
}

/// The end of an answer is lost and sent again, with a FIN as before.
#[test]
fn what_is_sent_again_behind_a_fin_counts_once_and_lasts_longer() {
    let mut kernel = Kernel::new();
    let mut lossy = client(&mut kernel, 1);
    lossy
        .says(0, SYN, b"")
        .hears(1, SYN | ACK, b"")
        .says(101, ACK, b"")
        .says(102, ACK | PSH, b"GET /")
        .hears(1200, ACK | FIN, b"200 OK");
    assert_eq!(kernel.entries(), (0, 1), "its end may come again");
    let mut lossy = client(&mut kernel, 1);
    lossy
        .hears(1510, ACK | FIN, b"200 OK")
        .says(1610, ACK | FIN, b"")
        .hears(1611, ACK, b"");
    let first = kernel.slot(0, 0, 5);
    assert_eq!((first.completed, first.syn_to_end_ns), (1, 1200 * MS));
    let again = SynSlot {
        syn_to_end_ns: 310 * MS,
        ..SynSlot::default()
    };
    assert_eq!(kernel.slot(0, 0, 6), again);
    assert_eq!(kernel.entries(), (0, 0));
}

#[test]
fn a_slot_is_emptied_when_its_place_in_the_ring_is_taken_again() {
    let mut kernel = Kernel::new();
    let round = u64::from(RING);
    let mut port = 1000;
    let mut syn = |kernel: &mut Kernel, ms: u64| {
        port += 1;
        let tuple = Tuple::new("198.51.100.7", port, SERVICE4, 80);
        kernel.at(ms).come(&arriving(&tuple.tcp(Tcp::syn(ISN))));
    };
    syn(&mut kernel, 0);
    syn(&mut kernel, round * SLOT_MS + 10);
    syn(&mut kernel, round * SLOT_MS + 20);
    assert_eq!(kernel.slot(0, 0, 0), SynSlot::default());
    assert_eq!(kernel.slot(0, 0, round).offered[0], 2);
    // One that was on its way for a whole round comes too late to be counted.
    syn(&mut kernel, 30);
    assert_eq!(kernel.slot(0, 0, round).offered[0], 2);
}

/// A table full of SYNs of nobody: connections go on being measured, and so is who
/// connects at once.
#[test]
fn a_flood_fills_the_table_of_attempts_and_leaves_connections_alone() {
    let mut kernel = Kernel::with_room(256);
    let open = |kernel: &mut Kernel, port: u16, ms: u64| {
        let tuple = Tuple::new("198.51.100.7", port, SERVICE4, 80);
        let mut client = Client {
            kernel,
            tuple,
            isn: ISN,
            sent: 0,
        };
        client
            .says(ms, SYN, b"")
            .hears(ms, SYN | ACK, b"")
            .says(ms, ACK, b"");
    };
    open(&mut kernel, 1, 0);
    for flood in 0..2000_u32 {
        let source = IpAddr::from([203, 0, (flood >> 8) as u8, flood as u8]);
        let tuple = Tuple {
            src: source,
            ..Tuple::new("0.0.0.0", 9, SERVICE4, 80)
        };
        kernel.at(10).come(&arriving(&tuple.tcp(Tcp::syn(flood))));
        if flood % 100 == 0 {
            open(&mut kernel, 100 + flood as u16, 20);
        }
    }
    let (half_open, connections) = kernel.entries();
    assert!(half_open <= 256, "{half_open}");
    assert_eq!(connections, 21);
    for port in std::iter::once(1).chain((0..20).map(|n| 100 + 100 * n)) {
        let tuple = Tuple::new("198.51.100.7", port, SERVICE4, 80);
        let mut client = Client {
            kernel: &mut kernel,
            tuple,
            isn: ISN,
            sent: 0,
        };
        client
            .hears(400, ACK | PSH, b"200 OK")
            .says(450, ACK | FIN, b"");
    }
    assert_eq!(kernel.slot(0, 0, 1).completed, 21);
    assert_eq!(
        kernel.slot(0, 1, 0).offered[0],
        2000,
        "every SYN is counted"
    );
}

/// What a packet costs, printed for docs/status.md: the programs write nothing to the
/// packet, so that it can be run again and again. The kernel's own part of such a run is
/// in it, and so is the clock.
#[test]
fn cost_of_a_packet() {
    const RUNS: u32 = 100_000;
    let mut kernel = Kernel::with(1024, CLOCK_KTIME);
    let mut client = client(&mut kernel, 1);
    client
        .says(0, SYN, b"")
        .hears(1, SYN | ACK, b"")
        .says(2, ACK, b"");
    let tuple = client.tuple;
    let segment = |flags, payload| Tcp {
        flags,
        seq: ISN.wrapping_add(1),
        ack: ISN.wrapping_add(1),
        options: &[],
        payload,
    };
    let request = arriving(&tuple.tcp(segment(ACK | PSH, b"GET /")));
    let answer = leaving(&tuple.reversed().tcp(segment(ACK | PSH, &[b'c'; 1400])));
    let duplicate = arriving(&tuple.tcp(Tcp::syn(ISN)));
    let other = arriving(&tuple.udp(b"no TCP"));
    let programs = &kernel.skel.progs;
    for (what, program, frame) in [
        ("nothing of ours", &programs.causeway_syn_in, &other),
        (
            "a request of a connection",
            &programs.causeway_syn_in,
            &request,
        ),
        ("an answer", &programs.causeway_syn_out, &answer),
        (
            "a SYN that had been answered",
            &programs.causeway_syn_in,
            &duplicate,
        ),
    ] {
        let mut times: Vec<u128> = (0..5)
            .map(|_| {
                let run = program.test_run(ProgramInput {
                    data_in: Some(frame),
                    repeat: RUNS,
                    ..Default::default()
                });
                run.expect("BPF_PROG_TEST_RUN").duration.as_nanos()
            })
            .collect();
        times.sort_unstable();
        println!("{what}: {} ns", times[2]);
        assert!(times[2] < 5000, "{what}: {} ns", times[2]);
    }
}

/// Segments that a driver tagged or left in pages are read like others: the tag is in
/// the buffer's metadata, so that a frame with one in its bytes is nobody's.
#[test]
fn entries_have_the_size_that_documents_state() {
    assert_eq!(size_of::<SynEntry>(), 56);
    assert_eq!(size_of::<SynSlotLocked>(), 224);
    let mut kernel = Kernel::new();
    let tagged = ethernet(
        crate::frame::OWN,
        crate::frame::ROUTER,
        &[(0x8100, 5)],
        &clients()[0].tcp(Tcp::syn(ISN)),
    );
    kernel.at(0).come(&tagged);
    let flags = MapFlags::ANY;
    assert!(
        kernel
            .skel
            .maps
            .syn_half_open
            .lookup(&[0; 40], flags)
            .expect("lookup")
            .is_none()
    );
}
