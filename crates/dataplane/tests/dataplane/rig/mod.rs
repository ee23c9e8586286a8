// SPDX-License-Identifier: Apache-2.0
//! A balancer in the kernel that no interface knows: maps filled by the test,
//! packets by BPF_PROG_TEST_RUN, time from the XDP metadata.

mod fill;
mod look;
mod pool;

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use causeway_core::cookie::quic::CidRoute;
use causeway_core::cookie::{CookieLayout, CookieMode, Keys};
use causeway_dataplane::abi::{
    self, Action, CookieCounts, CookieFormat, CookieKeys, CookieResult, CookieSlot, Ctl, FlowEntry,
    FlowKey4, FlowKey6, MirrorCtl, PacketsBytes, Plain, QuicLbConfig, RealLoad, RealStats,
    RealValue, SourceGroup, SourceKey, TunnelSource, Verdict, VipKey, VipValue,
};
use causeway_dataplane::flow_table::{self, WAYS};
use causeway_dataplane::skel::lb::{LbSkel, LbSkelBuilder};
use causeway_dataplane::skel::probe::{ProbeSkel, ProbeSkelBuilder};
use causeway_dataplane::{FlowLimit, Mirror, MirrorMaps, MirrorOptions};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, OpenObject, ProgramInput, ProgramMut};

use self::pool::{Loan, Variant};
use crate::frame::{OWN, ROUTER, Tuple};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const TUNNEL_SOURCE4: &str = "10.9.0.1";
pub(crate) const TUNNEL_SOURCE6: &str = "fd00:9::1";
pub(crate) const HASH_KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
const CLOCK_METADATA: u32 = 1;
const RING_SIZE: u32 = 17;
/// Not the first block, so that the base counts.
const COOKIE_BASE: u32 = 1024;
pub(crate) const PARTITIONS: u32 = 2;

/// Loads the program that hands frames on without headroom; build.rs compiles it.
pub(crate) fn no_headroom() -> libbpf_rs::Object {
    let object = include_bytes!(concat!(env!("OUT_DIR"), "/no_headroom.bpf.o"));
    let open = libbpf_rs::ObjectBuilder::default().open_memory(object);
    let mut open = open.expect("open");
    // A program calls others of its kind alone: ours takes frames of several buffers.
    for mut program in open.progs_mut() {
        program.set_flags(libbpf_sys::BPF_F_XDP_HAS_FRAGS);
    }
    open.load().expect("load")
}

/// Storage that the object borrows; it lives as long as the test process.
pub(crate) fn storage() -> &'static mut MaybeUninit<OpenObject> {
    Box::leak(Box::new(MaybeUninit::uninit()))
}

pub(crate) fn read<T: Plain>(map: &impl MapCore, key: &[u8]) -> Option<T> {
    map.lookup(key, MapFlags::ANY)
        .expect("map lookup")
        .and_then(|bytes| T::from_bytes(&bytes))
}

pub(crate) fn read_percpu<T: Plain>(map: &impl MapCore, index: u32) -> Vec<T> {
    let values = map
        .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
        .expect("map lookup")
        .expect("index");
    values
        .iter()
        .map(|bytes| T::from_bytes(&bytes[..size_of::<T>()]).expect("size"))
        .collect()
}

pub(crate) fn write(map: &impl MapCore, key: &[u8], value: &[u8]) {
    map.update(key, value, MapFlags::ANY).expect("map update");
}

/// All verdict counters of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counters(Vec<PacketsBytes>);

impl Counters {
    pub(crate) fn read(map: &impl MapCore) -> Self {
        let sum = |index| {
            let cpus: Vec<PacketsBytes> = read_percpu(map, index);
            cpus.iter()
                .fold(PacketsBytes::default(), |sum, cpu| PacketsBytes {
                    packets: sum.packets + cpu.packets,
                    bytes: sum.bytes + cpu.bytes,
                })
        };
        Self((0..map.max_entries()).map(sum).collect())
    }

    pub(crate) fn capacity(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn seen(&self, verdict: usize) -> bool {
        self.0[verdict].packets > 0
    }

    /// These counters after one more packet.
    pub(crate) fn plus(mut self, verdict: usize, len: usize) -> Self {
        self.0[verdict].packets += 1;
        self.0[verdict].bytes += len as u64;
        self
    }
}

/// Runs an XDP program once; its action and the frame afterwards. `now_ns` is put
/// in front of the frame as metadata.
pub(crate) fn test_run(program: &ProgramMut<'_>, now_ns: u64, frame: &[u8]) -> (u32, Vec<u8>) {
    let input = [&now_ns.to_ne_bytes()[..], frame].concat();
    let meta = size_of::<u64>();
    // struct xdp_md: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
    let mut context: Vec<u8> = [meta as u32, input.len() as u32, 0, 0, 0, 0]
        .iter()
        .flat_map(|v: &u32| v.to_ne_bytes())
        .collect();
    let mut context_out = vec![0; context.len()];
    let mut output = vec![0; input.len() + 256];
    let run = program
        .test_run(ProgramInput {
            context_in: Some(&mut context),
            context_out: Some(&mut context_out),
            data_in: Some(&input),
            data_out: Some(&mut output),
            ..Default::default()
        })
        .expect("BPF_PROG_TEST_RUN; it needs root");
    let data = run.data.expect("data_out");
    assert_eq!(
        data[..meta],
        now_ns.to_ne_bytes(),
        "the metadata moves with the packet"
    );
    (run.return_value, data[meta..].to_vec())
}

/// The same without metadata.
pub(crate) fn run_alone(program: &ProgramMut<'_>, frame: &[u8]) -> (u32, Vec<u8>) {
    let mut output = vec![0; frame.len() + 256];
    let run = program
        .test_run(ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut output),
            ..Default::default()
        })
        .expect("BPF_PROG_TEST_RUN; it needs root");
    (run.return_value, run.data.expect("data_out").to_vec())
}

/// One that no VIPs have had.
fn new_version() -> u32 {
    static VERSION: AtomicU32 = AtomicU32::new(1);
    VERSION.fetch_add(1, Ordering::Relaxed)
}

pub(crate) struct Rig {
    skel: Loan,
    /// The clock of the packets to come, ns.
    pub now_ns: u64,
    rings: Vec<MapHandle>,
}

impl Rig {
    /// A balancer with a next hop and with tunnel sources, but without VIPs.
    pub(crate) fn new() -> Self {
        Self::with(true)
    }

    pub(crate) fn with(measure: bool) -> Self {
        Self::of(match measure {
            true => Variant::Measuring,
            false => Variant::NotMeasuring,
        })
    }

    /// With places for connections in two partitions, which are in no ring yet; as
    /// second-tier balancer number `tier` of 2^`tier_bits`.
    pub(crate) fn stateful(tier_bits: u32, tier: u32) -> Self {
        Self::of(Variant::Stateful { tier_bits, tier })
    }

    /// A second-tier balancer: what a first tier of `sources` sends to `ends` is taken out
    /// of its tunnel.
    pub(crate) fn second_tier(ends: [&str; 2], sources: [(&str, u32); 2]) -> Self {
        let rig = Self::of(Variant::SecondTier);
        open_tunnels_of(&rig.skel.maps.tunnel_sources, sources);
        let [v4, v6] = ends.map(|end| end.parse::<IpAddr>().expect("an address"));
        rig.set_ctl(|ctl| {
            ctl.tunnel4_be = abi::addr_bytes(v4)[12..].try_into().expect("four bytes");
            ctl.tunnel6_be = abi::addr_bytes(v6);
        });
        rig
    }

    fn of(variant: Variant) -> Self {
        let rig = Self {
            skel: Loan::of(variant, || Self::loaded(variant)),
            now_ns: 1_000_000_000,
            rings: Vec::new(),
        };
        rig.set_ctl(|_| ());
        rig
    }

    fn loaded(variant: Variant) -> LbSkel<'static> {
        let mut open = LbSkelBuilder::default().open(storage()).expect("open");
        let rodata = open.maps.rodata_data.as_deref_mut().expect("rodata");
        rodata.cfg_measure = variant != Variant::NotMeasuring;
        rodata.cfg_tunnel_end = variant == Variant::SecondTier;
        rodata.cfg_clock = CLOCK_METADATA;
        if let Variant::Stateful { tier_bits, tier } = variant {
            (
                rodata.cfg_conn_partitions,
                rodata.cfg_tier_bits,
                rodata.cfg_tier,
            ) = (PARTITIONS, tier_bits, tier);
            let cpus = libbpf_rs::num_possible_cpus().expect("CPUs") as u32;
            let (slots, rings) = (PARTITIONS << (15 - tier_bits), PARTITIONS * cpus);
            open.maps.conn_slots.set_max_entries(slots).expect("size");
            let free = &mut open.maps.conn_free_slots;
            free.set_max_entries(rings).expect("size");
        }
        flow_table::set_size(&mut open, 1024, 1024).expect("size");
        for map in [
            &mut open.maps.reals,
            &mut open.maps.real_loads,
            &mut open.maps.real_stats,
            &mut open.maps.real_hist,
        ] {
            map.set_max_entries(16).expect("size");
        }
        // As on an interface with a long MTU.
        let flags = libbpf_sys::BPF_F_XDP_HAS_FRAGS;
        open.progs.causeway_lb.set_flags(flags);
        open.load()
            .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"))
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters::read(&self.skel.maps.verdicts)
    }

    /// Sends `frame`; asserts verdict, all counters, and the frame that comes out.
    pub(crate) fn expect(&mut self, verdict: Verdict, frame: &[u8], out: &[u8]) {
        let before = self.counters();
        let (action, data) = test_run(&self.skel.progs.causeway_lb, self.now_ns, frame);
        let after = self.counters();
        assert_eq!(
            after,
            before.plus(verdict as usize, frame.len()),
            "counters, expected {}",
            verdict.as_str()
        );
        assert_eq!(
            action,
            verdict.action() as u32,
            "action of {}",
            verdict.as_str()
        );
        if verdict.action() != Action::Drop {
            assert_eq!(hex(&data), hex(out), "frame after {}", verdict.as_str());
        }
    }

    /// Sends a frame that must not be changed, or is dropped.
    pub(crate) fn expect_untouched(&mut self, verdict: Verdict, frame: &[u8]) {
        self.expect(verdict, frame, frame);
    }

    /// Sends a frame; the verdict and what came out, unasserted.
    pub(crate) fn send(&mut self, frame: &[u8]) -> (u32, Vec<u8>) {
        test_run(&self.skel.progs.causeway_lb, self.now_ns, frame)
    }

    /// Looks at the packets to come.
    pub(crate) fn mirror(&self, options: &MirrorOptions) -> causeway_dataplane::Result<Mirror> {
        let maps = &self.skel.maps;
        let [ctl, counts, ring] = [&maps.mirror_ctl, &maps.mirror_counts, &maps.mirror_ring]
            .map(|map| MapHandle::try_from(map).expect("a map"));
        Mirror::open(MirrorMaps { ctl, counts, ring }, options)
    }

    /// The program itself, for others to call.
    pub(crate) fn program(&self) -> &ProgramMut<'static> {
        &self.skel.progs.causeway_lb
    }

    /// The program that sends probes to this balancer's reals.
    pub(crate) fn probes(&self) -> ProbeSkel<'static> {
        let mut open = ProbeSkelBuilder::default().open(storage()).expect("open");
        let (of, maps) = (&self.skel.maps, &mut open.maps);
        let reals = of.reals.max_entries();
        maps.reals.set_max_entries(reals).expect("size");
        maps.reals.reuse_fd(of.reals.as_fd()).expect("the reals");
        maps.ctl.reuse_fd(of.ctl.as_fd()).expect("the settings");
        open.load()
            .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"))
    }
}

/// Everything that a flow table holds.
fn flows_in(buckets: &dyn MapCore, flows: &dyn MapCore) -> Vec<FlowEntry> {
    let number = |bytes: Vec<u8>| u32::from_ne_bytes(bytes.try_into().expect("a word"));
    let mut found = Vec::new();
    for bucket in 0..buckets.max_entries() {
        let words = buckets
            .lookup(&bucket.to_ne_bytes(), MapFlags::ANY)
            .expect("lookup");
        for (word, way) in words.expect("a bucket").chunks(4).zip(0..) {
            if number(word.to_vec()) != 0 {
                let index: u32 = bucket * WAYS + way;
                let flow = flows
                    .lookup(&index.to_ne_bytes(), MapFlags::ANY)
                    .expect("lookup");
                found.push(FlowEntry::from_bytes(&flow.expect("a flow")).expect("size"));
            }
        }
    }
    found
}

pub(crate) fn tunnel_real(addr: &str) -> RealValue {
    let addr: IpAddr = addr.parse().unwrap();
    RealValue {
        flags: abi::REAL_PRESENT,
        family: if addr.is_ipv4() { 4 } else { 6 },
        addr: abi::addr_bytes(addr),
        ..RealValue::default()
    }
}

/// Has a program open tunnels that come from these networks.
pub(crate) fn open_tunnels_of<const N: usize>(sources: &impl MapCore, networks: [(&str, u32); N]) {
    for (address, length) in networks {
        let address: IpAddr = address.parse().unwrap();
        let key = TunnelSource {
            length: length + if address.is_ipv4() { 96 } else { 0 },
            addr: abi::addr_bytes(address),
        };
        write(sources, Plain::as_bytes(&key), &1u32.to_ne_bytes());
    }
}

/// Bytes in rows of 16, so that a difference shows where it is.
pub(crate) fn hex(bytes: &[u8]) -> Vec<String> {
    bytes
        .chunks(16)
        .map(|row| {
            row.iter()
                .map(|b| format!("{b:02x}"))
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect()
}
