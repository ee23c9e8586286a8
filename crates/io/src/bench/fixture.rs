// SPDX-License-Identifier: Apache-2.0
//! Private, unattached objects that a benchmark runs: the instrument that makes
//! packets, and balancers with one VIP and a hundred reals.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _};

use causeway_core::cookie::{Epoch, Format, Key, Keys, Mode, Tuple, encode};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, OpenObject, ProgramInput};

use super::{BenchError, Place, Shot};
use crate::abi::{
    CookieFormat, CookieKeys, CookieSlot, Ctl, PacketsBytes, Plain, REAL_PRESENT, Real,
    VIP_STATEFUL, Verdict, Vip, VipKey, addr_bytes,
};
use crate::skel::bench::{BenchSkel, BenchSkelBuilder};
use crate::skel::lb::{LbSkel, LbSkelBuilder};
use crate::{ConnLayout, ConnTable, flow_table};

/// VIP of `bpf/bench.bpf.c`.
const VIP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
const PORT: u16 = 443;
const REALS: u32 = 100;
const RING: u32 = 65_537;
/// A frame at least as long as any that is written over it.
const FRAME_LEN: usize = 130;
/// XDP_TX.
const TX: u32 = 3;

fn failed(doing: &'static str) -> impl Fn(libbpf_rs::Error) -> BenchError {
    move |source| BenchError::Bpf { doing, source }
}

/// The programs of `bpf/bench.bpf.c`.
pub(super) struct Instrument<'o> {
    skel: BenchSkel<'o>,
}

/// What a batch took.
pub(super) struct Batch {
    pub(super) packet_ns: f64,
    /// The last packet left by XDP_TX.
    pub(super) transmitted: bool,
}

impl<'o> Instrument<'o> {
    pub(super) fn load(storage: &'o mut MaybeUninit<OpenObject>) -> Result<Self, BenchError> {
        let open = BenchSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening bench.bpf.o"))?;
        let skel = open.load().map_err(failed("loading bench.bpf.o"))?;
        Ok(Self { skel })
    }

    pub(super) fn empty(&self) -> i32 {
        self.skel.progs.bench_empty.as_fd().as_raw_fd()
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

    /// The clients 0.. in turn, or shuffled, with the words of their servers if there
    /// are any.
    pub(super) fn set_clients(
        &self,
        flows: u32,
        shuffle: Option<u64>,
        words: &[u16],
    ) -> Result<(), BenchError> {
        let mut order: Vec<u32> = (0..flows).collect();
        if let Some(mut seed) = shuffle {
            for left in (1..order.len()).rev() {
                order.swap(left, (next_random(&mut seed) % (left as u64 + 1)) as usize);
            }
        }
        let keys: Vec<u8> = (0..flows).flat_map(u32::to_ne_bytes).collect();
        let values: Vec<u8> = order
            .into_iter()
            .flat_map(|index| client(index, words.get(index as usize).copied()))
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

/// `struct client` number `index`: an address of 10.0.0.0/8 and a port.
fn client(index: u32, word: Option<u16>) -> [u8; 12] {
    let mut client = [0; 12];
    client[..4].copy_from_slice(&(0x0a00_0000 + index / 50).to_be_bytes());
    client[4..6].copy_from_slice(&(1024 + (index % 50 * 1237) as u16).to_be_bytes());
    client[6..8].copy_from_slice(&word.unwrap_or(0).to_ne_bytes());
    client[8..10].copy_from_slice(&cookie(index).to_ne_bytes());
    client
}

/// The id in the cookies of client number `index`; the real's number is one less.
fn cookie_id(index: u32) -> u16 {
    (index % REALS) as u16 + 1
}

/// The cookie that the server of client number `index` writes.
fn cookie(index: u32) -> u16 {
    let host = Ipv4Addr::from(0x0a00_0000 + index / 50);
    let port = 1024 + (index % 50 * 1237) as u16;
    let tuple = Tuple::tcp((host, port).into(), (VIP, PORT).into());
    let format = Format::default_of(Mode::Timestamp);
    encode(
        &tuple,
        &cookie_key(),
        Epoch::Zero,
        cookie_id(index),
        &format,
    ) as u16
}

fn cookie_key() -> Key {
    Key::from_bytes([7; 16])
}

/// The number of the client with this address.
fn client_number(client: SocketAddr) -> Option<u32> {
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

/// A balancer with one VIP for TCP and UDP, and with tables of the default size.
pub(super) struct Balancer<'o> {
    skel: LbSkel<'o>,
}

impl<'o> Balancer<'o> {
    /// With tables of its own, measuring; or with those of `shared`, and not.
    pub(super) fn load(
        storage: &'o mut MaybeUninit<OpenObject>,
        shared: Option<&Balancer<'_>>,
    ) -> Result<Self, BenchError> {
        let mut open = LbSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening lb.bpf.o"))?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.cfg_measure = shared.is_none();
        }
        if let Some(other) = shared {
            let (maps, theirs) = (&mut open.maps, &other.skel.maps);
            for (map, other) in [
                (&mut maps.flows4, &theirs.flows4),
                (&mut maps.flows6, &theirs.flows6),
                (&mut maps.buckets4, &theirs.buckets4),
                (&mut maps.buckets6, &theirs.buckets6),
                (&mut maps.vips, &theirs.vips),
                (&mut maps.reals, &theirs.reals),
                (&mut maps.rings, &theirs.rings),
                (&mut maps.ctl, &theirs.ctl),
                (&mut maps.verdicts, &theirs.verdicts),
                (&mut maps.vip_stats, &theirs.vip_stats),
                (&mut maps.real_stats, &theirs.real_stats),
                (&mut maps.real_hist, &theirs.real_hist),
            ] {
                map.reuse_fd(other.as_fd())
                    .map_err(failed("sharing a map"))?;
            }
        }
        let skel = open.load().map_err(failed("loading lb.bpf.o"))?;
        let ring = new_ring()?;
        let balancer = Self { skel };
        balancer
            .configure(&ring)
            .map_err(failed("configuring the balancer"))?;
        Ok(balancer)
    }

    /// With a place for every flow, and a small flow table: measuring.
    pub(super) fn stateful(
        storage: &'o mut MaybeUninit<OpenObject>,
        flows: u32,
    ) -> Result<Self, BenchError> {
        let mut open = LbSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening lb.bpf.o"))?;
        flow_table::set_size(&mut open, 1024, 1024).map_err(failed("sizing the flow table"))?;
        let layout = places(flows);
        let cpus = libbpf_rs::num_possible_cpus().map_err(failed("counting the CPUs"))? as u32;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.cfg_conn_partitions = layout.partitions();
        }
        let sized = [
            (
                &mut open.maps.conns,
                layout.partitions() * layout.partition_size(),
            ),
            (&mut open.maps.conn_rings, layout.partitions() * cpus),
        ];
        for (map, entries) in sized {
            map.set_max_entries(entries)
                .map_err(failed("sizing the places"))?;
        }
        let skel = open.load().map_err(failed("loading lb.bpf.o"))?;
        let balancer = Self { skel };
        balancer
            .configure(&new_ring()?)
            .and_then(|()| balancer.change_vips(|vip| vip.flags |= VIP_STATEFUL))
            .map_err(failed("configuring the balancer"))?;
        Ok(balancer)
    }

    /// Opens every client's connection; the word that each server was told.
    pub(super) fn open_all(
        &self,
        instrument: &mut Instrument<'_>,
        flows: u32,
    ) -> Result<Vec<u16>, BenchError> {
        let layout = places(flows);
        let mut table = ConnTable::new(
            &MapHandle::try_from(&self.skel.maps.conns).map_err(failed("opening a map"))?,
            &MapHandle::try_from(&self.skel.maps.conn_rings).map_err(failed("opening a map"))?,
            layout,
        )
        .map_err(|source| BenchError::Places { source })?;
        instrument.select(self.program())?;
        let mut place = Place::default();
        let mut left = flows;
        while left > 0 {
            let count = left.min(OPEN_AT_ONCE);
            instrument.batch(Shot::Open, flows, &mut place, count)?;
            table.top_up();
            left -= count;
        }
        let mut words = vec![0; flows as usize];
        let mut opened = 0;
        for connection in table.connections() {
            let number = client_number(connection.client).map_or(usize::MAX, |n| n as usize);
            if let Some(word) = words.get_mut(number) {
                *word = (connection.place % layout.partition_size()) as u16;
                opened += 1;
            }
        }
        if opened < flows {
            return Err(BenchError::WrongVerdict {
                case: "opening connections in places",
                flows,
                counted: opened.into(),
                shots: flows.into(),
                verdict: "opened",
            });
        }
        Ok(words)
    }

    /// With cookies of the default format; reals have the flags `forwarding` besides.
    pub(super) fn with_cookies(
        storage: &'o mut MaybeUninit<OpenObject>,
        measure: bool,
        forwarding: u8,
    ) -> Result<Self, BenchError> {
        let mut open = LbSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening lb.bpf.o"))?;
        if !measure {
            // Nothing is remembered.
            flow_table::set_size(&mut open, 1024, 1024).map_err(failed("sizing the flow table"))?;
        }
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.cfg_measure = measure;
        }
        let skel = open.load().map_err(failed("loading lb.bpf.o"))?;
        let balancer = Self { skel };
        balancer
            .configure(&new_ring()?)
            .and_then(|()| balancer.give_cookies())
            .and_then(|()| balancer.change_reals(|real| real.flags |= forwarding))
            .map_err(failed("configuring the balancer"))?;
        Ok(balancer)
    }

    fn give_cookies(&self) -> libbpf_rs::Result<()> {
        let (maps, zero) = (&self.skel.maps, 0u32.to_ne_bytes());
        let old = maps.ctl.lookup(&zero, MapFlags::ANY)?.unwrap_or_default();
        let ctl = Ctl {
            cookies: 1,
            ..Ctl::from_bytes(&old).unwrap_or_default()
        };
        maps.ctl.update(&zero, ctl.as_bytes(), MapFlags::ANY)?;
        let keys = Keys::new(Epoch::Zero, cookie_key(), None);
        let keys = CookieKeys::from(Some(&keys));
        maps.cookie_keys
            .update(&zero, keys.as_bytes(), MapFlags::ANY)?;
        for real in 0..REALS {
            let slot = CookieSlot {
                real: real + 1,
                ..CookieSlot::default()
            };
            let id = u32::from(cookie_id(real));
            maps.cookie_slots
                .update(&id.to_ne_bytes(), slot.as_bytes(), MapFlags::ANY)?;
        }
        let format = Format::default_of(Mode::Timestamp);
        self.change_vips(|vip| vip.cookie = CookieFormat::from(&format))
    }

    fn change_reals(&self, change: impl Fn(&mut Real)) -> libbpf_rs::Result<()> {
        let reals = &self.skel.maps.reals;
        for id in 0..REALS {
            let value = reals.lookup(&id.to_ne_bytes(), MapFlags::ANY)?;
            let mut real = Real::from_bytes(&value.unwrap_or_default()).unwrap_or_default();
            change(&mut real);
            reals.update(&id.to_ne_bytes(), real.as_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    fn change_vips(&self, change: impl Fn(&mut Vip)) -> libbpf_rs::Result<()> {
        let vips = &self.skel.maps.vips;
        for key in vips.keys() {
            let value = vips.lookup(&key, MapFlags::ANY)?.unwrap_or_default();
            let mut vip = Vip::from_bytes(&value).unwrap_or_default();
            change(&mut vip);
            vips.update(&key, vip.as_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    fn configure(&self, ring: &MapHandle) -> libbpf_rs::Result<()> {
        let maps = &self.skel.maps;
        let ctl = Ctl {
            gateway_mac: [2, 0, 0, 0, 0, 1],
            outer4_be: [10, 9, 0, 1],
            hash_key: [1, 2],
            table_seed: 3,
            ..Ctl::default()
        };
        maps.ctl
            .update(&0u32.to_ne_bytes(), ctl.as_bytes(), MapFlags::ANY)?;
        for id in 0..REALS {
            let addr = addr_bytes(Ipv4Addr::from(0x0a01_0000 + id).into());
            let real = Real {
                flags: REAL_PRESENT,
                family: 4,
                addr,
                ..Real::default()
            };
            maps.reals
                .update(&id.to_ne_bytes(), real.as_bytes(), MapFlags::ANY)?;
        }
        let ring = ring.as_fd().as_raw_fd();
        maps.rings
            .update(&0u32.to_ne_bytes(), &ring.to_ne_bytes(), MapFlags::ANY)?;
        self.write_vips(Vip {
            ring_size: RING,
            ..Vip::default()
        })
    }

    /// Sets how the VIPs pick, and their flags.
    pub(super) fn set_vips(&self, pick: u32, flags: u32) -> Result<(), BenchError> {
        let vip = Vip {
            ring_size: RING,
            flags,
            pick,
            ..Vip::default()
        };
        self.write_vips(vip).map_err(failed("setting the VIPs"))
    }

    fn write_vips(&self, vip: Vip) -> libbpf_rs::Result<()> {
        for proto in [6, 17] {
            let key = VipKey {
                addr: addr_bytes(VIP.into()),
                port_be: PORT.to_be_bytes(),
                proto,
                kind: 0,
            };
            let vips = &self.skel.maps.vips;
            vips.update(key.as_bytes(), vip.as_bytes(), MapFlags::ANY)?;
        }
        Ok(())
    }

    pub(super) fn program(&self) -> i32 {
        self.skel.progs.causeway_lb.as_fd().as_raw_fd()
    }

    /// Packets that had this verdict, on all CPUs.
    pub(super) fn count(&self, verdict: Verdict) -> Result<u64, BenchError> {
        let cpus = self
            .skel
            .maps
            .verdicts
            .lookup_percpu(&(verdict as u32).to_ne_bytes(), MapFlags::ANY)
            .map_err(failed("reading the verdicts"))?;
        let counters = cpus
            .iter()
            .flatten()
            .filter_map(|cpu| PacketsBytes::from_bytes(cpu));
        Ok(counters.map(|counter| counter.packets).sum())
    }
}

/// SYNs between two fillings of the CPUs' rings of free places.
const OPEN_AT_ONCE: u32 = 1000;

/// Half as many places again as flows: a few partitions have more flows than others.
fn places(flows: u32) -> ConnLayout {
    ConnLayout {
        connections: flows + flows / 2,
        ..ConnLayout::default()
    }
}

/// All reals in turn.
fn new_ring() -> Result<MapHandle, BenchError> {
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_sys::BPF_F_INNER_MAP | libbpf_sys::BPF_F_MMAPABLE,
        ..Default::default()
    };
    let ring = MapHandle::create(MapType::Array, Some("ring"), 4, 4, RING, &options)
        .map_err(failed("making a ring"))?;
    let keys: Vec<u8> = (0..RING).flat_map(u32::to_ne_bytes).collect();
    let values: Vec<u8> = (0..RING)
        .flat_map(|slot| (slot % REALS).to_ne_bytes())
        .collect();
    ring.update_batch(&keys, &values, RING, MapFlags::ANY, MapFlags::ANY)
        .map_err(failed("filling a ring"))?;
    Ok(ring)
}
