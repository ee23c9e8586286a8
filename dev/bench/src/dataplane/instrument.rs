// SPDX-License-Identifier: Apache-2.0
//! What makes the packets of a benchmark and sends them through a program.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};

use causeway_core::cookie::{CookieKey, CookieLayout, CookieMode, KeyEpoch, Tuple, encode};
use causeway_dataplane::{Link, XdpMode};
use causeway_netio::Interface;
use causeway_quic_lb::{Algorithm, CidConfig, Codec};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject, ProgramInput};

use super::fixture::{PORT, REALS, Size, failed, vip_address};
use super::{BenchError, Place, Shot};
use crate::run_time::{RunTime, RunTimes};
use crate::skel::reference::{ReferenceSkel, ReferenceSkelBuilder};

/// A frame at least as long as any that is written over it.
const FRAME_LEN: usize = 130;
/// XDP_TX.
const TX: u32 = 3;
/// Octets of a `struct client`, and of its connection id.
const CLIENT_LEN: usize = 24;
const CID_LEN: usize = 11;

/// The programs of `bpf/reference.bpf.c`.
pub(super) struct Instrument<'o> {
    skel: ReferenceSkel<'o>,
    _held: Link,
}

/// An interface that nothing comes through: that of a network namespace which has just
/// been made for this thread, see [`super::run`].
const LOOPBACK: u32 = 1;

/// What a batch took.
pub(super) struct Batch {
    pub(super) packet_ns: f64,
    /// The last packet left by XDP_TX.
    pub(super) transmitted: bool,
}

impl<'o> Instrument<'o> {
    pub(super) fn load(storage: &'o mut MaybeUninit<OpenObject>) -> Result<Self, BenchError> {
        Self::with_capacity(storage, 0)
    }

    /// With room for this many clients, if they are more than usual.
    pub(super) fn with_capacity(
        storage: &'o mut MaybeUninit<OpenObject>,
        clients: u32,
    ) -> Result<Self, BenchError> {
        let mut open = ReferenceSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening bench.bpf.o"))?;
        for map in [&mut open.maps.clients, &mut open.maps.min_flows] {
            if clients > map.max_entries() {
                map.set_max_entries(clients)
                    .map_err(failed("sizing the tables"))?;
            }
        }
        let skel = open.load().map_err(failed("loading bench.bpf.o"))?;
        // BPF_PROG_TEST_RUN puts a program that is on no interface into the kernel's
        // XDP dispatcher and takes it out again, and waits for all CPUs each time:
        // tens of milliseconds around a batch of one.
        let loopback = Interface {
            name: "lo".to_owned(),
            index: LOOPBACK,
        };
        let program = skel.progs.bench_shot.as_fd();
        let (held, _) = Link::attach(program, &loopback, XdpMode::Generic)
            .map_err(|cause| BenchError::Attach { cause })?;
        Ok(Self { skel, _held: held })
    }

    pub(super) fn empty(&self) -> i32 {
        self.skel.progs.bench_empty.as_fd().as_raw_fd()
    }

    /// Runs the empty program this often; what it has cost since it was loaded.
    pub(super) fn run_empty(&self, runs: u32) -> Result<RunTime, BenchError> {
        let input = ProgramInput {
            data_in: Some(&[0; FRAME_LEN]),
            repeat: runs,
            ..Default::default()
        };
        let program = &self.skel.progs.bench_empty;
        let run = program.test_run(input);
        run.map_err(failed("BPF_PROG_TEST_RUN"))?;
        RunTimes::of(program.as_fd())
    }

    pub(super) fn macswap(&self) -> i32 {
        self.skel.progs.bench_macswap.as_fd().as_raw_fd()
    }

    pub(super) fn min(&self) -> i32 {
        self.skel.progs.bench_min.as_fd().as_raw_fd()
    }

    pub(super) fn min_fill(&self) -> i32 {
        self.skel.progs.bench_min_fill.as_fd().as_raw_fd()
    }

    /// The clients in this order; each one's number is its place in `tokens`, if there
    /// are any.
    pub(super) fn set_clients(&self, order: &[u32], tokens: &[u16]) -> Result<(), BenchError> {
        self.set_clients_of(order, tokens, Size::default())
    }

    /// The same of a balancer of this size.
    pub(super) fn set_clients_of(
        &self,
        order: &[u32],
        tokens: &[u16],
        size: Size,
    ) -> Result<(), BenchError> {
        let flows = order.len() as u32;
        let codec = cid_codec();
        let keys: Vec<u8> = (0..flows).flat_map(u32::to_ne_bytes).collect();
        let values: Vec<u8> = order
            .iter()
            .flat_map(|&index| client(index, tokens.get(index as usize).copied(), &codec, size))
            .collect();
        self.skel
            .maps
            .clients
            .update_batch(&keys, &values, flows, MapFlags::ANY, MapFlags::ANY)
            .map_err(failed("writing the clients"))
    }

    /// Puts `program` behind the packets.
    pub(super) fn select(&self, program: i32) -> Result<(), BenchError> {
        self.skel
            .maps
            .under_test
            .update(&0u32.to_ne_bytes(), &program.to_ne_bytes(), MapFlags::ANY)
            .map_err(failed("selecting the program under test"))
    }

    /// Sends one packet of every client through `program`.
    pub(super) fn fill(&mut self, program: i32, shot: Shot, flows: u32) -> Result<(), BenchError> {
        self.select(program)?;
        self.batch(shot, flows, &mut Place::default(), flows)
            .map(|_| ())
    }

    /// Sends `count` packets from `place` on, which moves along.
    pub(super) fn batch(
        &mut self,
        shot: Shot,
        flows: u32,
        place: &mut Place,
        count: u32,
    ) -> Result<Batch, BenchError> {
        if let Some(bss) = self.skel.maps.bss_data.as_deref_mut() {
            let shots = &mut bss.shots;
            (shots.kind, shots.flows) = (shot as u32, flows);
            (shots.position, shots.pass, shots.syns) = (place.position, place.pass, place.syns);
        }
        let run = self
            .skel
            .progs
            .bench_shot
            .test_run(ProgramInput {
                data_in: Some(&[0; FRAME_LEN]),
                repeat: count,
                ..Default::default()
            })
            .map_err(failed("BPF_PROG_TEST_RUN"))?;
        if let Some(bss) = self.skel.maps.bss_data.as_deref() {
            *place = Place {
                position: bss.shots.position,
                pass: bss.shots.pass,
                syns: bss.shots.syns,
            };
        }
        Ok(Batch {
            packet_ns: run.duration.as_nanos() as f64,
            transmitted: run.return_value == TX,
        })
    }
}

/// The numbers below `flows`, shuffled.
pub(super) fn shuffled(flows: u32, mut seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..flows).collect();
    for left in (1..order.len()).rev() {
        order.swap(left, (next_random(&mut seed) % (left as u64 + 1)) as usize);
    }
    order
}

/// `struct client` number `index`: an address of 10.0.0.0/8 and a port.
fn client(index: u32, token: Option<u16>, codec: &Codec, size: Size) -> [u8; CLIENT_LEN] {
    let mut client = [0; CLIENT_LEN];
    client[..4].copy_from_slice(&(0x0a00_0000 + index / 50).to_be_bytes());
    client[4..6].copy_from_slice(&(1024 + (index % 50 * 1237) as u16).to_be_bytes());
    client[6..8].copy_from_slice(&token.unwrap_or(0).to_ne_bytes());
    let vip = size.vip_of(index);
    client[8..10].copy_from_slice(&cookie(index, vip).to_ne_bytes());
    client[22..24].copy_from_slice(&(vip as u16).to_ne_bytes());
    let nonce = [&[0; 4][..], &index.to_be_bytes()].concat();
    if let Ok(id) = codec.encode(&cookie_id(index).to_be_bytes(), &nonce, 0) {
        client[10..10 + CID_LEN].copy_from_slice(&id[..CID_LEN]);
    }
    client
}

/// How the servers make connection ids: as `causeway cookie` has it by default, two
/// octets of id and eight of nonce under SipHash.
pub(super) fn cid_config() -> CidConfig {
    let key = causeway_quic_lb::CidKey::new([7; 16]);
    CidConfig::new(0, 2, 8, Algorithm::SipHash(key)).unwrap_or_else(|e| unreachable!("{e}"))
}

fn cid_codec() -> Codec {
    Codec::new(&cid_config())
}

/// The id in the cookies of client number `index`; the real's number is one less.
pub(super) fn cookie_id(index: u32) -> u16 {
    (index % REALS) as u16 + 1
}

/// The cookie that the server of client number `index` writes.
fn cookie(index: u32, vip: u32) -> u16 {
    let host = Ipv4Addr::from(0x0a00_0000 + index / 50);
    let port = 1024 + (index % 50 * 1237) as u16;
    let tuple = Tuple::tcp((host, port).into(), (vip_address(vip), PORT).into());
    let format = CookieLayout::default_of(CookieMode::Timestamp);
    encode(
        &tuple,
        &cookie_key(),
        KeyEpoch::Zero,
        cookie_id(index),
        &format,
    ) as u16
}

pub(super) fn cookie_key() -> CookieKey {
    CookieKey::from_bytes([7; 16])
}

/// The number of the client with this address.
pub(super) fn client_number(client: SocketAddr) -> Option<u32> {
    let IpAddr::V4(host) = client.ip() else {
        return None;
    };
    let host = u32::from(host).checked_sub(0x0a00_0000)?;
    Some(host * 50 + u32::from(client.port().checked_sub(1024)?) / 1237)
}

/// xorshift64 (Marsaglia 2003).
fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
