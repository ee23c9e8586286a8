// SPDX-License-Identifier: Apache-2.0
//! Private, unattached objects that a benchmark runs: the instrument that makes
//! packets, and balancers with one VIP and a hundred reals.

use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _};

use causeway_core::cookie::{self, Epoch, Format, Key, Keys, Mode};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, OpenObject, ProgramInput};

use super::{BenchError, Place, Shot};
use crate::abi::{
    CookieFormat, CookieKeys, CookieSlot, Ctl, PacketsBytes, Plain, REAL_PRESENT, Real, Verdict,
    Vip, VipKey, addr_bytes,
};
use crate::skel::bench::{BenchSkel, BenchSkelBuilder};
use crate::skel::lb::{LbSkel, LbSkelBuilder};

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

    /// The clients 0.. in turn, or shuffled.
    pub(super) fn set_clients(&self, flows: u32, shuffle: Option<u64>) -> Result<(), BenchError> {
        let mut order: Vec<u32> = (0..flows).collect();
        if let Some(mut seed) = shuffle {
            for left in (1..order.len()).rev() {
                order.swap(left, (next_random(&mut seed) % (left as u64 + 1)) as usize);
            }
        }
        let keys: Vec<u8> = (0..flows).flat_map(u32::to_ne_bytes).collect();
        let values: Vec<u8> = order.into_iter().flat_map(client).collect();
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

/// `struct client` number `index`: an address of 10.0.0.0/8, a port, and a cookie.
fn client(index: u32) -> [u8; 8] {
    let address = Ipv4Addr::from(0x0a00_0000 + index / 50);
    let port = 1024 + (index % 50 * 1237) as u16;
    let tuple = cookie::Tuple::tcp((address, port).into(), (VIP, PORT).into());
    let id = (index % REALS) as u16;
    let cookie = cookie::encode(&tuple, &cookie_key(), Epoch::Zero, id, &cookie_format());
    let mut client = [0; 8];
    client[..4].copy_from_slice(&address.octets());
    client[4..6].copy_from_slice(&port.to_be_bytes());
    client[6..].copy_from_slice(&(cookie as u16).to_ne_bytes());
    client
}

fn cookie_key() -> Key {
    Key::from_bytes([7; 16])
}

fn cookie_format() -> Format {
    Format::default_of(Mode::Timestamp)
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

    /// With tables of its own and a VIP whose connections have cookies; each real's
    /// number is its id.
    pub(super) fn load_with_cookies(
        storage: &'o mut MaybeUninit<OpenObject>,
        measure: bool,
    ) -> Result<Self, BenchError> {
        let mut open = LbSkelBuilder::default()
            .open(storage)
            .map_err(failed("opening lb.bpf.o"))?;
        if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
            rodata.cfg_measure = measure;
        }
        let skel = open.load().map_err(failed("loading lb.bpf.o"))?;
        let balancer = Self { skel };
        balancer
            .configure(&new_ring()?)
            .and_then(|()| balancer.configure_cookies())
            .map_err(failed("configuring the balancer"))?;
        Ok(balancer)
    }

    fn configure_cookies(&self) -> libbpf_rs::Result<()> {
        let (maps, zero) = (&self.skel.maps, 0u32.to_ne_bytes());
        let keys = CookieKeys::from(Some(&Keys::new(Epoch::Zero, cookie_key(), None)));
        maps.cookie_keys
            .update(&zero, keys.as_bytes(), MapFlags::ANY)?;
        for id in 0..REALS {
            let slot = CookieSlot {
                real: id + 1,
                ..CookieSlot::default()
            };
            maps.cookie_slots
                .update(&id.to_ne_bytes(), slot.as_bytes(), MapFlags::ANY)?;
        }
        let key = VipKey {
            addr: addr_bytes(VIP.into()),
            port_be: PORT.to_be_bytes(),
            proto: 6,
            kind: 0,
        };
        let vip = Vip {
            ring_size: RING,
            cookie: CookieFormat::from(&cookie_format()),
            ..Vip::default()
        };
        maps.vips
            .update(key.as_bytes(), vip.as_bytes(), MapFlags::ANY)?;
        let ctl = maps.ctl.lookup(&zero, MapFlags::ANY)?;
        let mut ctl = ctl
            .and_then(|ctl| Ctl::from_bytes(&ctl))
            .unwrap_or_default();
        ctl.cookies = 1;
        maps.ctl.update(&zero, ctl.as_bytes(), MapFlags::ANY)
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
