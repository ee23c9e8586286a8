// SPDX-License-Identifier: Apache-2.0
//! What a test puts into the balancer's maps.

use std::time::Duration;

use super::*;

impl Rig {
    /// Makes a VIP a first tier's, whose reals are second-tier balancers with these
    /// numbers, as `(number, real)`.
    pub(crate) fn tier(&self, vip: (&str, u16), id_bits: u8, numbers: &[(u16, u32)]) {
        self.set_ctl(|ctl| ctl.vip_first = abi::VIP_FIRST_TCP);
        let format = CookieLayout::new(CookieMode::Tier, 15, id_bits).expect("a format");
        self.change_vip(vip.0, vip.1, TCP, |value| {
            value.flags |= abi::VIP_FORGET;
            value.cookie_base = COOKIE_BASE;
            value.cookie = CookieFormat::from(&format);
        });
        self.give_ids(numbers);
    }

    /// Puts free places into every ring: of each CPU others, so that no place is in two.
    pub(crate) fn fill_rings(&self, places: &[u16]) {
        let map = &self.skel.maps.conn_free_slots;
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

    /// Empties the flow table.
    pub(crate) fn forget_flows(&self) {
        for map in [&self.skel.maps.buckets4, &self.skel.maps.buckets6] {
            for bucket in 0..map.max_entries() {
                write(map, &bucket.to_ne_bytes(), &[0; 64]);
            }
        }
    }

    /// Makes all flows of the IPv4 table gone, as the sweep does with silent ones.
    pub(crate) fn end_flows(&self) {
        let map = &self.skel.maps.buckets4;
        for bucket in 0..map.max_entries() {
            let key = bucket.to_ne_bytes();
            let old = map.lookup(&key, MapFlags::ANY).expect("lookup");
            let mut tags = old.expect("a bucket");
            // The age class is in the lowest bits of each tag.
            tags.chunks_mut(4).for_each(|tag| tag[0] &= !3);
            write(map, &key, &tags);
        }
    }

    pub(crate) fn ctl() -> Ctl {
        let IpAddr::V4(outer4) = TUNNEL_SOURCE4.parse().unwrap() else {
            unreachable!()
        };
        let IpAddr::V6(outer6) = TUNNEL_SOURCE6.parse().unwrap() else {
            unreachable!()
        };
        Ctl {
            gateway_mac: ROUTER,
            own_mac: OWN,
            outer4_be: outer4.octets(),
            outer6_be: outer6.octets(),
            hash_key: HASH_KEY,
            table_seed: 0x5eed,
            ..Ctl::default()
        }
    }

    /// The usual settings with a change.
    pub(crate) fn set_ctl(&self, change: impl FnOnce(&mut Ctl)) {
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
    pub(super) fn write_vip(&self, key: &VipKey, vip: &VipValue) {
        let maps = &self.skel.maps;
        write(&maps.vips, Plain::as_bytes(key), Plain::as_bytes(vip));
        let zero = 0u32.to_ne_bytes();
        let mut ctl: Ctl = read(&maps.ctl, &zero).expect("index");
        ctl.vips_version = new_version();
        write(&maps.ctl, &zero, Plain::as_bytes(&ctl));
    }

    /// A VIP with its address entry, and a ring that holds `reals` in turn.
    pub(crate) fn vip(&mut self, id: u32, addr: &str, port: u16, proto: u8, reals: &[u32]) {
        let addr = abi::addr_bytes(addr.parse().unwrap());
        let key = VipKey {
            addr,
            port_be: port.to_be_bytes(),
            proto,
            kind: 0,
        };
        let ring_size = if reals.is_empty() { 0 } else { RING_SIZE };
        let vip = VipValue {
            id,
            ring_size,
            ..VipValue::default()
        };
        self.write_vip(&key, &vip);
        let address = VipKey {
            addr,
            ..VipKey::default()
        };
        self.write_vip(&address, &VipValue::default());
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
    pub(crate) fn take_fragments(&self, id: u32, addr: &str, port: u16, proto: u8) {
        let key = VipKey {
            addr: abi::addr_bytes(addr.parse().unwrap()),
            port_be: port.to_be_bytes(),
            proto,
            kind: 0,
        };
        let vip = VipValue {
            id,
            ring_size: RING_SIZE,
            flags: abi::VIP_PICK_BY_ADDRESS,
            ..VipValue::default()
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

    pub(crate) fn ring(&mut self, vip: u32, slots: &[u32]) {
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
    pub(crate) fn source(&self, vip: u32, (address, length): (&str, u32), group: u32) {
        let address: IpAddr = address.parse().unwrap();
        let key = SourceKey {
            length: 32 + length + if address.is_ipv4() { 96 } else { 0 },
            vip,
            addr: abi::addr_bytes(address),
        };
        let maps = &self.skel.maps;
        write(&maps.sources, Plain::as_bytes(&key), &group.to_ne_bytes());
    }

    /// Gives a VIP a ring of configured weights beside its own.
    pub(crate) fn plain_ring(
        &mut self,
        id: u32,
        (vip, port, proto): (&str, u16, u8),
        reals: &[u32],
    ) {
        // Behind those of as many VIPs and groups as there may be by default.
        self.ring(1024 + abi::SOURCE_GROUPS + id, reals);
        self.change_vip(vip, port, proto, |vip| vip.plain_size = reals.len() as u32);
    }

    /// Gives a VIP a ring of who had its slots before.
    pub(crate) fn former_ring(
        &mut self,
        id: u32,
        (vip, port, proto): (&str, u16, u8),
        reals: &[u32],
    ) {
        // Behind both rings of as many VIPs and groups as there may be by default.
        self.ring(2 * (1024 + abi::SOURCE_GROUPS) + id, reals);
        self.change_vip(vip, port, proto, |vip| vip.former_size = reals.len() as u32);
    }

    /// The reals of a group of client prefixes.
    pub(crate) fn source_group(&mut self, group: u32, reals: &[u32], strict: bool) {
        if !reals.is_empty() {
            // Behind those of as many VIPs as there may be by default.
            self.ring(1024 + group, reals);
        }
        let value = SourceGroup {
            ring_size: reals.len() as u32,
            strict: strict.into(),
            plain_size: 0,
        };
        let groups = &self.skel.maps.source_groups;
        write(groups, &group.to_ne_bytes(), Plain::as_bytes(&value));
    }

    /// Limits the new flows of a VIP, given by address, port, protocol and id.
    pub(crate) fn limit(&self, (address, port, proto): (&str, u16, u8), id: u32, limit: FlowLimit) {
        let limits = &self.skel.maps.vip_limits;
        write(limits, &id.to_ne_bytes(), Plain::as_bytes(&limit.value()));
        self.change_vip(address, port, proto, |vip| vip.flags |= abi::VIP_LIMITED);
    }

    /// Fills the table of limited prefixes with others that are due so far ahead.
    pub(crate) fn fill_limits(&self, ahead: Duration) {
        let clock = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
        let due = Duration::from(clock.expect("the clock")) + ahead;
        let due = (due.as_nanos() >> 10) as u64 & ((1 << 40) - 1);
        let map = &self.skel.maps.limits;
        for bucket in 0..map.max_entries() {
            let ways = (1..=8_u64).flat_map(|tag| (tag << 40 | due).to_ne_bytes());
            write(map, &bucket.to_ne_bytes(), &ways.collect::<Vec<_>>());
        }
    }

    /// Changes the value of a VIP, which must exist.
    pub(crate) fn change_vip(
        &self,
        addr: &str,
        port: u16,
        proto: u8,
        change: impl FnOnce(&mut VipValue),
    ) {
        let key = VipKey {
            addr: abi::addr_bytes(addr.parse().unwrap()),
            port_be: port.to_be_bytes(),
            proto,
            kind: 0,
        };
        let mut vip: VipValue = read(&self.skel.maps.vips, Plain::as_bytes(&key)).expect("the VIP");
        change(&mut vip);
        self.write_vip(&key, &vip);
    }

    /// Gives a VIP cookies of the default kind and these ids, as `(id, real)`.
    pub(crate) fn cookies(&self, vip: (&str, u16), keys: &Keys, ids: &[(u16, u32)]) {
        self.set_ctl(|ctl| ctl.vip_first = abi::VIP_FIRST_TCP);
        let value = CookieKeys::from(Some(keys));
        let zero = 0u32.to_ne_bytes();
        write(&self.skel.maps.cookie_keys, &zero, Plain::as_bytes(&value));
        self.change_vip(vip.0, vip.1, TCP, |value| {
            value.cookie_base = COOKIE_BASE;
            value.cookie = CookieFormat::from(&CookieLayout::default_of(CookieMode::Timestamp));
        });
        self.give_ids(ids);
    }

    /// Has a UDP VIP's packets routed by their connection ids.
    pub(crate) fn quic_ids(&self, vip: (&str, u16), routes: &[CidRoute], ids: &[(u16, u32)]) {
        self.set_ctl(|ctl| ctl.vip_first = abi::VIP_FIRST_UDP);
        self.change_vip(vip.0, vip.1, UDP, |value| {
            value.cookie_base = COOKIE_BASE;
            value.cookie.mode = abi::COOKIE_QUIC;
        });
        let first = COOKIE_BASE / 1024 * abi::QUIC_CODEPOINTS;
        for codepoint in 0..abi::QUIC_CODEPOINTS {
            let is_of = |route: &&CidRoute| u32::from(route.config().number()) == codepoint;
            let route = routes.iter().find(is_of);
            let value = route.map(QuicLbConfig::from).unwrap_or_default();
            let key = (first + codepoint).to_ne_bytes();
            write(&self.skel.maps.quic_configs, &key, Plain::as_bytes(&value));
        }
        self.give_ids(ids);
    }

    /// Takes an id away.
    pub(crate) fn forget_number(&self, id: u16) {
        let slots = &self.skel.maps.cookie_slots;
        let index = COOKIE_BASE + u32::from(id);
        let none = CookieSlot::default();
        write(slots, &index.to_ne_bytes(), Plain::as_bytes(&none));
    }

    pub(super) fn give_ids(&self, ids: &[(u16, u32)]) {
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

    pub(crate) fn set_load(&self, real: u32, load: RealLoad) {
        write(
            &self.skel.maps.real_loads,
            &real.to_ne_bytes(),
            Plain::as_bytes(&load),
        );
    }

    pub(crate) fn real(&self, id: u32, real: RealValue) {
        write(
            &self.skel.maps.reals,
            &id.to_ne_bytes(),
            Plain::as_bytes(&real),
        );
    }

    /// A real behind a tunnel.
    /// Has 1 in 2^k connections of a VIP and of its reals measured.
    pub(crate) fn sample(
        &self,
        (address, port): (&str, u16),
        reals: &[u32],
        ks: abi::SamplingValue,
    ) {
        for id in reals {
            let real: RealValue = read(&self.skel.maps.reals, &id.to_ne_bytes()).expect("index");
            self.real(
                *id,
                RealValue {
                    sampling: ks,
                    ..real
                },
            );
        }
        self.change_vip(address, port, TCP, |vip| vip.sampling = ks);
    }

    pub(crate) fn tunnel_real(&self, id: u32, addr: &str) {
        self.real(id, tunnel_real(addr));
    }

    pub(crate) fn set_mirror_ctl(&self, value: MirrorCtl) {
        write(
            &self.skel.maps.mirror_ctl,
            &0u32.to_ne_bytes(),
            Plain::as_bytes(&value),
        );
    }
}
