// SPDX-License-Identifier: Apache-2.0
//! A balancer in the kernel that no interface knows: maps filled by the test,
//! packets by BPF_PROG_TEST_RUN, time from the XDP metadata.

use std::collections::HashSet;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use causeway_core::cookie::quic::Route;
use causeway_core::cookie::{Format, Keys, Mode};
use causeway_io::FlowLimit;
use causeway_io::abi::{
    self, Action, CookieCounts, CookieFormat, CookieKeys, CookieResult, CookieSlot, Ctl, Flow,
    FlowKey4, FlowKey6, PacketsBytes, Plain, QuicLbConfig, Real, RealLoad, RealStats, SourceGroup,
    SourceKey, TapCtl, Verdict, Vip, VipKey,
};
use causeway_io::flow_table::{self, WAYS};
use causeway_io::skel::lb::{LbSkel, LbSkelBuilder, OpenLbSkel};
use causeway_io::{Tap, TapMaps, TapOptions};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, OpenObject, ProgramInput, ProgramMut};

use crate::frame::{ROUTER, Tuple};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const TUNNEL_SOURCE4: &str = "10.9.0.1";
pub const TUNNEL_SOURCE6: &str = "fd00:9::1";
pub const HASH_KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
const CLOCK_METADATA: u32 = 1;
const RING_SIZE: u32 = 17;
/// Not the first block, so that the base counts.
const COOKIE_BASE: u32 = 1024;
pub const PARTITIONS: u32 = 2;

/// Storage that the object borrows; it lives as long as the test process.
pub fn storage() -> &'static mut MaybeUninit<OpenObject> {
    Box::leak(Box::new(MaybeUninit::uninit()))
}

pub fn read<T: Plain>(map: &impl MapCore, key: &[u8]) -> Option<T> {
    map.lookup(key, MapFlags::ANY)
        .expect("map lookup")
        .and_then(|bytes| T::from_bytes(&bytes))
}

pub fn read_percpu<T: Plain>(map: &impl MapCore, index: u32) -> Vec<T> {
    let values = map
        .lookup_percpu(&index.to_ne_bytes(), MapFlags::ANY)
        .expect("map lookup")
        .expect("index");
    values
        .iter()
        .map(|bytes| T::from_bytes(&bytes[..size_of::<T>()]).expect("size"))
        .collect()
}

pub fn write(map: &impl MapCore, key: &[u8], value: &[u8]) {
    map.update(key, value, MapFlags::ANY).expect("map update");
}

/// All verdict counters of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters(Vec<PacketsBytes>);

impl Counters {
    pub fn read(map: &impl MapCore) -> Self {
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

    pub fn capacity(&self) -> usize {
        self.0.len()
    }

    pub fn seen(&self, verdict: usize) -> bool {
        self.0[verdict].packets > 0
    }

    /// These counters after one more packet.
    pub fn plus(mut self, verdict: usize, len: usize) -> Self {
        self.0[verdict].packets += 1;
        self.0[verdict].bytes += len as u64;
        self
    }
}

/// Runs an XDP program once; its action and the frame afterwards. `now_ns` is put
/// in front of the frame as metadata.
pub fn test_run(program: &ProgramMut<'_>, now_ns: u64, frame: &[u8]) -> (u32, Vec<u8>) {
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
pub fn run_alone(program: &ProgramMut<'_>, frame: &[u8]) -> (u32, Vec<u8>) {
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

pub struct Rig {
    skel: LbSkel<'static>,
    /// The clock of the packets to come, ns.
    pub now_ns: u64,
    rings: Vec<MapHandle>,
}

impl Rig {
    /// A balancer with a next hop and with tunnel sources, but without VIPs.
    pub fn new() -> Self {
        Self::with(true)
    }

    pub fn with(measure: bool) -> Self {
        Self::loaded(measure, |_| ())
    }

    /// With places for connections in two partitions, which are in no ring yet; as
    /// second-tier balancer number `tier` of 2^`tier_bits`.
    pub fn stateful(tier_bits: u32, tier: u32) -> Self {
        Self::loaded(true, |open| {
            let rodata = open.maps.rodata_data.as_deref_mut().expect("rodata");
            (
                rodata.cfg_conn_partitions,
                rodata.cfg_tier_bits,
                rodata.cfg_tier,
            ) = (PARTITIONS, tier_bits, tier);
            let cpus = libbpf_rs::num_possible_cpus().expect("CPUs") as u32;
            open.maps
                .conns
                .set_max_entries(PARTITIONS << (15 - tier_bits))
                .expect("size");
            open.maps
                .conn_rings
                .set_max_entries(PARTITIONS * cpus)
                .expect("size");
        })
    }

    /// A second-tier balancer: what a first tier sends to `ends` is taken out of its
    /// tunnel.
    pub fn second_tier(ends: [&str; 2]) -> Self {
        let rig = Self::loaded(true, |open| {
            let rodata = open.maps.rodata_data.as_deref_mut().expect("rodata");
            rodata.cfg_tunnel_end = true;
        });
        let [v4, v6] = ends.map(|end| end.parse::<IpAddr>().expect("an address"));
        rig.set_ctl(|ctl| {
            ctl.tunnel4_be = abi::addr_bytes(v4)[12..].try_into().expect("four bytes");
            ctl.tunnel6_be = abi::addr_bytes(v6);
        });
        rig
    }

    /// Makes a VIP a first tier's, whose reals are second-tier balancers with these
    /// numbers, as `(number, real)`.
    pub fn tier(&self, vip: (&str, u16), id_bits: u8, numbers: &[(u16, u32)]) {
        self.set_ctl(|ctl| ctl.cookies = abi::COOKIES_TCP);
        let format = Format::new(Mode::Tier, 15, id_bits).expect("a format");
        self.change_vip(vip.0, vip.1, TCP, |value| {
            value.flags |= abi::VIP_FORGET;
            value.cookie_base = COOKIE_BASE;
            value.cookie = CookieFormat::from(&format);
        });
        self.give_ids(numbers);
    }

    /// Puts free places into every ring: of each CPU others, so that no place is in two.
    pub fn fill_rings(&self, places: &[u16]) {
        let map = &self.skel.maps.conn_rings;
        for ring in 0..map.max_entries() {
            let mut value = vec![0u8; map.value_size() as usize];
            let cpu = (ring / PARTITIONS) as u16;
            for (slot, place) in value[128..].chunks_mut(2).zip(places) {
                slot.copy_from_slice(&(place + 256 * cpu).to_ne_bytes());
            }
            value[64..68].copy_from_slice(&(places.len() as u32).to_ne_bytes());
            write(map, &ring.to_ne_bytes(), &value);
        }
    }

    /// SYNs that found no free place.
    pub fn places_refused(&self) -> u32 {
        let map = &self.skel.maps.conn_rings;
        let ring = |n: u32| {
            map.lookup(&n.to_ne_bytes(), MapFlags::ANY)
                .expect("lookup")
                .expect("ring")
        };
        (0..map.max_entries())
            .map(|n| u32::from_ne_bytes(*ring(n)[4..].first_chunk().expect("empty")))
            .sum()
    }

    /// The connection in a place of either partition.
    pub fn conn(&self, tuple: Tuple, word: u16) -> Option<Flow> {
        self.placed(tuple, word).map(|(_, flow)| flow)
    }

    /// The connection with its partition.
    pub fn placed(&self, tuple: Tuple, word: u16) -> Option<(u32, Flow)> {
        let map = &self.skel.maps.conns;
        let size = map.max_entries() / PARTITIONS;
        let mut found = (0..PARTITIONS).filter_map(|partition| {
            let index = partition * size + u32::from(word) % size;
            let flow: Flow = read(map, &index.to_ne_bytes())?;
            let port = match tuple.src {
                IpAddr::V4(_) => flow.key.saddr_be[8..10].try_into().expect("two bytes"),
                IpAddr::V6(_) => flow.key.sport_be,
            };
            (u16::from_be_bytes(port) == tuple.sport).then_some((partition, flow))
        });
        found.next()
    }

    /// Empties the flow table.
    pub fn forget_flows(&self) {
        for map in [&self.skel.maps.buckets4, &self.skel.maps.buckets6] {
            for bucket in 0..map.max_entries() {
                write(map, &bucket.to_ne_bytes(), &[0; 64]);
            }
        }
    }

    /// Makes all flows of the IPv4 table gone, as the sweep does with silent ones.
    pub fn end_flows(&self) {
        let map = &self.skel.maps.buckets4;
        for bucket in 0..map.max_entries() {
            let key = bucket.to_ne_bytes();
            let old = map.lookup(&key, MapFlags::ANY).expect("lookup");
            let mut words = old.expect("a bucket");
            // The standing is in the lowest bits of each word.
            words.chunks_mut(4).for_each(|word| word[0] &= !3);
            write(map, &key, &words);
        }
    }

    fn loaded(measure: bool, change: impl FnOnce(&mut OpenLbSkel<'_>)) -> Self {
        let mut open = LbSkelBuilder::default().open(storage()).expect("open");
        let rodata = open.maps.rodata_data.as_deref_mut().expect("rodata");
        rodata.cfg_measure = measure;
        rodata.cfg_clock = CLOCK_METADATA;
        flow_table::set_size(&mut open, 1024, 1024).expect("size");
        for map in [
            &mut open.maps.reals,
            &mut open.maps.real_loads,
            &mut open.maps.real_stats,
            &mut open.maps.real_hist,
        ] {
            map.set_max_entries(16).expect("size");
        }
        change(&mut open);
        let skel = open
            .load()
            .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
        let rig = Self {
            skel,
            now_ns: 1_000_000_000,
            rings: Vec::new(),
        };
        rig.set_ctl(|_| ());
        rig
    }

    pub fn ctl() -> Ctl {
        let IpAddr::V4(outer4) = TUNNEL_SOURCE4.parse().unwrap() else {
            unreachable!()
        };
        let IpAddr::V6(outer6) = TUNNEL_SOURCE6.parse().unwrap() else {
            unreachable!()
        };
        Ctl {
            gateway_mac: ROUTER,
            outer4_be: outer4.octets(),
            outer6_be: outer6.octets(),
            hash_key: HASH_KEY,
            table_seed: 0x5eed,
            ..Ctl::default()
        }
    }

    /// The usual settings with a change.
    pub fn set_ctl(&self, change: impl FnOnce(&mut Ctl)) {
        let mut ctl = Self::ctl();
        ctl.vips_version = new_version();
        change(&mut ctl);
        write(
            &self.skel.maps.ctl,
            &0u32.to_ne_bytes(),
            Plain::as_bytes(&ctl),
        );
    }

    /// Writes an entry, and ends the copies that CPUs have.
    fn write_vip(&self, key: &VipKey, vip: &Vip) {
        let maps = &self.skel.maps;
        write(&maps.vips, Plain::as_bytes(key), Plain::as_bytes(vip));
        let zero = 0u32.to_ne_bytes();
        let mut ctl: Ctl = read(&maps.ctl, &zero).expect("index");
        ctl.vips_version = new_version();
        write(&maps.ctl, &zero, Plain::as_bytes(&ctl));
    }

    /// A VIP with its address entry, and a ring that holds `reals` in turn.
    pub fn vip(&mut self, id: u32, addr: &str, port: u16, proto: u8, reals: &[u32]) {
        let addr = abi::addr_bytes(addr.parse().unwrap());
        let key = VipKey {
            addr,
            port_be: port.to_be_bytes(),
            proto,
            kind: 0,
        };
        let ring_size = if reals.is_empty() { 0 } else { RING_SIZE };
        let vip = Vip {
            id,
            ring_size,
            ..Vip::default()
        };
        self.write_vip(&key, &vip);
        let address = VipKey {
            addr,
            ..VipKey::default()
        };
        self.write_vip(&address, &Vip::default());
        if !reals.is_empty() {
            let slots: Vec<u32> = reals
                .iter()
                .copied()
                .cycle()
                .take(RING_SIZE as usize)
                .collect();
            self.ring(id, &slots);
        }
    }

    /// Lets a VIP take the fragments to its address.
    pub fn take_fragments(&self, id: u32, addr: &str, port: u16, proto: u8) {
        let key = VipKey {
            addr: abi::addr_bytes(addr.parse().unwrap()),
            port_be: port.to_be_bytes(),
            proto,
            kind: 0,
        };
        let vip = Vip {
            id,
            ring_size: RING_SIZE,
            flags: abi::VIP_PICK_BY_ADDRESS,
            ..Vip::default()
        };
        let fragments = VipKey {
            port_be: [0; 2],
            kind: abi::VIP_OF_FRAGMENTS,
            ..key
        };
        for key in [key, fragments] {
            self.write_vip(&key, &vip);
        }
    }

    pub fn ring(&mut self, vip: u32, slots: &[u32]) {
        let mut options: libbpf_sys::bpf_map_create_opts = Default::default();
        options.sz = size_of_val(&options) as _;
        options.map_flags = libbpf_sys::BPF_F_INNER_MAP | libbpf_sys::BPF_F_MMAPABLE;
        let ring = MapHandle::create(
            MapType::Array,
            Some("ring"),
            4,
            4,
            slots.len() as u32,
            &options,
        )
        .expect("ring");
        for (index, real) in slots.iter().enumerate() {
            write(&ring, &(index as u32).to_ne_bytes(), &real.to_ne_bytes());
        }
        write(
            &self.skel.maps.rings,
            &vip.to_ne_bytes(),
            &std::os::fd::AsFd::as_fd(&ring).as_raw_fd().to_ne_bytes(),
        );
        self.rings.push(ring);
    }

    /// A client prefix of a VIP, whose ring is that of a group.
    pub fn source(&self, vip: u32, (address, length): (&str, u32), group: u32) {
        let address: IpAddr = address.parse().unwrap();
        let key = SourceKey {
            length: 32 + length + if address.is_ipv4() { 96 } else { 0 },
            vip,
            addr: abi::addr_bytes(address),
        };
        let maps = &self.skel.maps;
        write(&maps.sources, Plain::as_bytes(&key), &group.to_ne_bytes());
    }

    /// The reals of a group of client prefixes.
    pub fn source_group(&mut self, group: u32, reals: &[u32], strict: bool) {
        if !reals.is_empty() {
            // Behind those of as many VIPs as there may be by default.
            self.ring(1024 + group, reals);
        }
        let value = SourceGroup {
            ring_size: reals.len() as u32,
            strict: strict.into(),
        };
        let groups = &self.skel.maps.source_groups;
        write(groups, &group.to_ne_bytes(), Plain::as_bytes(&value));
    }

    /// New flows that went by a group's ring.
    pub fn source_picks(&self, group: u32) -> u64 {
        let cpus: Vec<u64> = read_percpu(&self.skel.maps.source_picks, group);
        cpus.iter().sum()
    }

    /// Limits the new flows of a VIP, given by address, port, protocol and id.
    pub fn limit(&self, (address, port, proto): (&str, u16, u8), id: u32, limit: FlowLimit) {
        let limits = &self.skel.maps.vip_limits;
        write(limits, &id.to_ne_bytes(), Plain::as_bytes(&limit.value()));
        self.change_vip(address, port, proto, |vip| vip.flags |= abi::VIP_LIMITED);
    }

    /// Changes the value of a VIP, which must exist.
    pub fn change_vip(&self, addr: &str, port: u16, proto: u8, change: impl FnOnce(&mut Vip)) {
        let key = VipKey {
            addr: abi::addr_bytes(addr.parse().unwrap()),
            port_be: port.to_be_bytes(),
            proto,
            kind: 0,
        };
        let mut vip: Vip = read(&self.skel.maps.vips, Plain::as_bytes(&key)).expect("the VIP");
        change(&mut vip);
        self.write_vip(&key, &vip);
    }

    /// Gives a VIP cookies of the default kind and these ids, as `(id, real)`.
    pub fn cookies(&self, vip: (&str, u16), keys: &Keys, ids: &[(u16, u32)]) {
        self.set_ctl(|ctl| ctl.cookies = abi::COOKIES_TCP);
        let value = CookieKeys::from(Some(keys));
        let zero = 0u32.to_ne_bytes();
        write(&self.skel.maps.cookie_keys, &zero, Plain::as_bytes(&value));
        self.change_vip(vip.0, vip.1, TCP, |value| {
            value.cookie_base = COOKIE_BASE;
            value.cookie = CookieFormat::from(&Format::default_of(Mode::Timestamp));
        });
        self.give_ids(ids);
    }

    /// Has a UDP VIP's packets routed by their connection ids.
    pub fn quic_ids(&self, vip: (&str, u16), routes: &[Route], ids: &[(u16, u32)]) {
        self.set_ctl(|ctl| ctl.cookies = abi::COOKIES_UDP);
        self.change_vip(vip.0, vip.1, UDP, |value| {
            value.cookie_base = COOKIE_BASE;
            value.cookie.mode = abi::COOKIE_QUIC;
        });
        let first = COOKIE_BASE / 1024 * abi::QUIC_CODEPOINTS;
        for codepoint in 0..abi::QUIC_CODEPOINTS {
            let is_of = |route: &&Route| u32::from(route.config().number()) == codepoint;
            let route = routes.iter().find(is_of);
            let value = route.map(QuicLbConfig::from).unwrap_or_default();
            let key = (first + codepoint).to_ne_bytes();
            write(&self.skel.maps.quic_configs, &key, Plain::as_bytes(&value));
        }
        self.give_ids(ids);
    }

    /// Takes an id away.
    pub fn forget_number(&self, id: u16) {
        let slots = &self.skel.maps.cookie_slots;
        let index = COOKIE_BASE + u32::from(id);
        let none = CookieSlot::default();
        write(slots, &index.to_ne_bytes(), Plain::as_bytes(&none));
    }

    fn give_ids(&self, ids: &[(u16, u32)]) {
        for (id, real) in ids {
            let slot = CookieSlot {
                real: real + 1,
                ..CookieSlot::default()
            };
            let index = COOKIE_BASE + u32::from(*id);
            let slots = &self.skel.maps.cookie_slots;
            write(slots, &index.to_ne_bytes(), Plain::as_bytes(&slot));
        }
    }

    /// Packets of a VIP by what their cookies said; those that were none are left out.
    pub fn cookie_counts(&self, vip: u32) -> Vec<(CookieResult, u64)> {
        let cpus: Vec<CookieCounts> = read_percpu(&self.skel.maps.cookie_counts, vip);
        let sum = |result: CookieResult| cpus.iter().map(|c| c.packets[result as usize]).sum();
        let all = CookieResult::ALL.into_iter().map(|r| (r, sum(r)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    pub fn load(&self, real: u32) -> RealLoad {
        read(&self.skel.maps.real_loads, &real.to_ne_bytes()).expect("index")
    }

    pub fn set_load(&self, real: u32, load: RealLoad) {
        write(
            &self.skel.maps.real_loads,
            &real.to_ne_bytes(),
            Plain::as_bytes(&load),
        );
    }

    pub fn real(&self, id: u32, real: Real) {
        write(
            &self.skel.maps.reals,
            &id.to_ne_bytes(),
            Plain::as_bytes(&real),
        );
    }

    /// A real behind a tunnel.
    pub fn tunnel_real(&self, id: u32, addr: &str) {
        self.real(id, tunnel_real(addr));
    }

    pub fn counters(&self) -> Counters {
        Counters::read(&self.skel.maps.verdicts)
    }

    /// Sends `frame`; asserts verdict, all counters, and the frame that comes out.
    pub fn expect(&mut self, verdict: Verdict, frame: &[u8], out: &[u8]) {
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
    pub fn expect_untouched(&mut self, verdict: Verdict, frame: &[u8]) {
        self.expect(verdict, frame, frame);
    }

    /// Sends a frame; the verdict and what came out, unasserted.
    pub fn send(&mut self, frame: &[u8]) -> (u32, Vec<u8>) {
        test_run(&self.skel.progs.causeway_lb, self.now_ns, frame)
    }

    pub fn real_stats(&self, id: u32) -> RealStats {
        let cpus: Vec<RealStats> = read_percpu(&self.skel.maps.real_stats, id);
        cpus.into_iter()
            .fold(RealStats::default(), |a, b| RealStats {
                packets: a.packets + b.packets,
                bytes: a.bytes + b.bytes,
                conns_opened: a.conns_opened + b.conns_opened,
                conns_closed: a.conns_closed + b.conns_closed,
                requests: a.requests + b.requests,
                latency_sum2_ns: a.latency_sum2_ns + b.latency_sum2_ns,
                latency_count2: a.latency_count2 + b.latency_count2,
                latency_at_ns: a.latency_at_ns.max(b.latency_at_ns),
            })
    }

    pub fn vip_stats(&self, id: u32) -> PacketsBytes {
        let cpus: Vec<PacketsBytes> = read_percpu(&self.skel.maps.vip_stats, id);
        PacketsBytes {
            packets: cpus.iter().map(|c| c.packets).sum(),
            bytes: cpus.iter().map(|c| c.bytes).sum(),
        }
    }

    /// Samples in each bucket of a real's histogram.
    pub fn histogram(&self, id: u32) -> Vec<u64> {
        let bytes = self
            .skel
            .maps
            .real_hist
            .lookup(&id.to_ne_bytes(), MapFlags::ANY)
            .unwrap()
            .unwrap();
        bytes
            .chunks(8)
            .map(|c| u64::from_ne_bytes(c.try_into().unwrap()))
            .collect()
    }

    /// Ports of one IPv4 client that the table has TCP flows of.
    pub fn known_ports(&self, client: &str) -> HashSet<u16> {
        let IpAddr::V4(client) = client.parse().unwrap() else {
            unreachable!()
        };
        let flows = flows_in(&self.skel.maps.buckets4, &self.skel.maps.flows4);
        let keys = flows
            .iter()
            .map(|flow| *Plain::as_bytes(&flow.key).first_chunk().expect("16 bytes"));
        let keys = keys.map(|key: [u8; 16]| FlowKey4::from_bytes(&key).expect("size"));
        keys.filter(|key| key.saddr_be == client.octets() && key.proto == TCP)
            .map(|key| u16::from_be_bytes(key.sport_be))
            .collect()
    }

    /// The flow that the table has for a tuple, found the slow way.
    pub fn flow(&self, tuple: Tuple, proto: u8) -> Option<Flow> {
        let (sport_be, dport_be) = (tuple.sport.to_be_bytes(), tuple.dport.to_be_bytes());
        let maps = &self.skel.maps;
        let (key, buckets, flows): (_, &dyn MapCore, &dyn MapCore) = match (tuple.src, tuple.dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => {
                let key = FlowKey4 {
                    saddr_be: s.octets(),
                    daddr_be: d.octets(),
                    sport_be,
                    dport_be,
                    proto,
                    pad: [0; 3],
                };
                (Plain::as_bytes(&key).to_vec(), &maps.buckets4, &maps.flows4)
            }
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                let key = FlowKey6 {
                    saddr_be: s.octets(),
                    daddr_be: d.octets(),
                    sport_be,
                    dport_be,
                    proto,
                    pad: [0; 3],
                };
                (Plain::as_bytes(&key).to_vec(), &maps.buckets6, &maps.flows6)
            }
            _ => return None,
        };
        let mut found = flows_in(buckets, flows)
            .into_iter()
            .filter(|flow| Plain::as_bytes(&flow.key).starts_with(&key));
        let flow = found.next();
        assert_eq!(found.count(), 0, "a flow has one place");
        flow
    }

    /// Looks at the packets to come.
    pub fn tap(&self, options: &TapOptions) -> causeway_io::Result<Tap> {
        let maps = &self.skel.maps;
        let [ctl, counts, ring] = [&maps.tap_ctl, &maps.tap_counts, &maps.tap_ring]
            .map(|map| MapHandle::try_from(map).expect("a map"));
        Tap::open(TapMaps { ctl, counts, ring }, options)
    }

    /// Who looks at packets, and until when.
    pub fn tap_ctl(&self) -> TapCtl {
        read(&self.skel.maps.tap_ctl, &0u32.to_ne_bytes()).expect("index")
    }

    pub fn set_tap_ctl(&self, value: TapCtl) {
        write(
            &self.skel.maps.tap_ctl,
            &0u32.to_ne_bytes(),
            Plain::as_bytes(&value),
        );
    }

    /// The program itself, for others to call.
    pub fn program(&self) -> &ProgramMut<'static> {
        &self.skel.progs.causeway_lb
    }
}

/// Everything that a flow table holds.
fn flows_in(buckets: &dyn MapCore, flows: &dyn MapCore) -> Vec<Flow> {
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
                found.push(Flow::from_bytes(&flow.expect("a flow")).expect("size"));
            }
        }
    }
    found
}

pub fn tunnel_real(addr: &str) -> Real {
    let addr: IpAddr = addr.parse().unwrap();
    Real {
        flags: abi::REAL_PRESENT,
        family: if addr.is_ipv4() { 4 } else { 6 },
        addr: abi::addr_bytes(addr),
        ..Real::default()
    }
}

/// Bytes in rows of 16, so that a difference shows where it is.
pub fn hex(bytes: &[u8]) -> Vec<String> {
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
