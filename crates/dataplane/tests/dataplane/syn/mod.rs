// SPDX-License-Identifier: Apache-2.0
//! SYN accounting in the kernel: whole segments in, every counter out, and the
//! segments untouched. Time stands in the buffer's timestamp.

mod connections;
mod tables;

use std::net::IpAddr;

use causeway_dataplane::abi::{
    Plain, SynAttempt, SynEntry, SynOrigin, SynPrefix, SynResponses, SynRetryTime, SynSlot,
    SynSlotLocked, VipKey, addr_bytes,
};
use causeway_dataplane::skel::syn::{SynSkel, SynSkelBuilder};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput, ProgramMut};

use crate::frame::{ACK, FIN, PSH, RST, SYN, Tcp, Tuple, arriving, ethernet, leaving};
use crate::rig::{TCP, hex, read, storage, write};

const MS: u64 = 1_000_000;
const SLOT_MS: u64 = 250;
const RING: u32 = 64;
const CLOCK_METADATA: u32 = 1;
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
    /// How segments with data are merged.
    merged: Option<Merged>,
}

/// What BIG TCP makes of the headers of segments that it merges to more than 64 KiB.
#[derive(Clone, Copy, Debug)]
enum Merged {
    /// The length is 0.
    WithoutLength,
    /// And IPv6 has a jumbo option (RFC 2675), as on older kernels.
    WithOption,
}

impl Merged {
    fn frame(self, mut frame: Vec<u8>) -> Vec<u8> {
        const IP: usize = 14;
        match (frame[IP] >> 4, self) {
            (4, _) => frame[IP + 2..IP + 4].fill(0),
            (_, Self::WithoutLength) => frame[IP + 4..IP + 6].fill(0),
            (_, Self::WithOption) => {
                let length = u32::try_from(frame.len() - IP - 40 + 8).unwrap();
                frame[IP + 4..IP + 6].fill(0);
                let next = std::mem::replace(&mut frame[IP + 6], 0);
                let option = [&[next, 0, 0xc2, 4][..], &length.to_be_bytes()].concat();
                frame.splice(IP + 40..IP + 40, option);
            }
        }
        frame
    }
}

impl Kernel {
    /// Services: the two addresses on port 80 as one, the others as the second.
    /// Clients: 198.51.100.0/24, and all others.
    fn new() -> Self {
        Self::with_room(1024)
    }

    fn with_room(half_open: u32) -> Self {
        let mut open = SynSkelBuilder::default().open(storage()).expect("open");
        let rodata = open.maps.rodata_data.as_deref_mut().expect("rodata");
        rodata.cfg_clock = CLOCK_METADATA;
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
        open.maps.syn_responses.set_max_entries(4).expect("size");
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
        let open = VipKey {
            addr: addr_bytes(SERVICE4.parse().unwrap()),
            port_be: 443u16.to_be_bytes(),
            proto: TCP,
            kind: 0,
        };
        write(
            &skel.maps.syn_open,
            Plain::as_bytes(&open),
            &1u32.to_ne_bytes(),
        );
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
            merged: None,
        }
    }

    fn run(&self, program: &ProgramMut<'_>, frame: &[u8]) {
        self.run_merged(program, frame, 0);
    }

    fn run_merged(&self, program: &ProgramMut<'_>, frame: &[u8], gso_size: u32) {
        // struct __sk_buff; tstamp is its u64 at 152, gso_size its u32 at 176.
        let mut context = vec![0_u8; 192];
        context[152..160].copy_from_slice(&(self.now_ms * MS).to_ne_bytes());
        context[176..180].copy_from_slice(&gso_size.to_ne_bytes());
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

    /// A segment, merged if it has data and that is wanted.
    fn segment(&self, program: &ProgramMut<'_>, frame: Vec<u8>, payload: &[u8]) {
        match self.merged.filter(|_| !payload.is_empty()) {
            Some(merged) => self.run_merged(program, &merged.frame(frame), 1400),
            None => self.run(program, &frame),
        }
    }

    /// The agent's search for answers that are over.
    fn look(&self) {
        self.run(&self.skel.progs.causeway_syn_silence, &[0; 64]);
    }

    /// Response times of service and clients.
    fn responses(&self, service: u32, prefix: u32) -> SynResponses {
        let category = (service * 2 + prefix).to_ne_bytes();
        let responses = &self.skel.maps.syn_responses;
        let cpus = responses.lookup_percpu(&category, MapFlags::ANY);
        let mut sum = SynResponses::default();
        for of in cpus.expect("lookup").expect("a category") {
            let of = SynResponses::from_bytes(&of).expect("its size");
            sum.sum_ns += of.sum_ns;
            (0..16).for_each(|bucket| sum.count[bucket] += of.count[bucket]);
        }
        sum
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
    /// Bytes that it got, and acknowledges.
    heard: u32,
}

impl Client<'_> {
    fn says(&mut self, ms: u64, flags: u8, payload: &[u8]) -> &mut Self {
        let tcp = Tcp {
            flags,
            seq: match flags {
                flags if flags & SYN != 0 => self.isn,
                // Behind the data that it sent.
                _ => self.isn.wrapping_add(1 + self.sent),
            },
            ack: if flags & ACK != 0 {
                SERVER_ISN + 1 + self.heard
            } else {
                0
            },
            options: &[],
            payload,
        };
        self.sent += payload.len() as u32;
        let frame = arriving(&self.tuple.tcp(tcp));
        let kernel = self.kernel.at(ms);
        kernel.segment(&kernel.skel.progs.causeway_syn_in, frame, payload);
        self
    }

    fn hears(&mut self, ms: u64, flags: u8, payload: &[u8]) -> &mut Self {
        let tcp = Tcp {
            flags,
            seq: if flags & SYN != 0 {
                SERVER_ISN
            } else {
                SERVER_ISN + 1 + self.heard
            },
            ack: self.isn.wrapping_add(1),
            options: &[],
            payload,
        };
        self.heard += payload.len() as u32;
        let frame = leaving(&self.tuple.reversed().tcp(tcp));
        let kernel = self.kernel.at(ms);
        kernel.segment(&kernel.skel.progs.causeway_syn_out, frame, payload);
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
        heard: 0,
    }
}

fn prefix_of(client: Tuple) -> u32 {
    u32::from(client.src.is_ipv6())
}
