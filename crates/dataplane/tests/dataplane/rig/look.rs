// SPDX-License-Identifier: Apache-2.0
//! What a test finds in them.

use super::*;

impl Rig {
    /// SYNs that found no free place.
    pub(crate) fn places_refused(&self) -> u32 {
        let map = &self.skel.maps.conn_free_slots;
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
    pub(crate) fn conn(&self, tuple: Tuple, word: u16) -> Option<FlowEntry> {
        self.placed(tuple, word).map(|(_, flow)| flow)
    }

    /// The connection with its partition.
    pub(crate) fn placed(&self, tuple: Tuple, word: u16) -> Option<(u32, FlowEntry)> {
        let map = &self.skel.maps.conn_slots;
        let size = map.max_entries() / PARTITIONS;
        let mut found = (0..PARTITIONS).filter_map(|partition| {
            let index = partition * size + u32::from(word) % size;
            let flow: FlowEntry = read(map, &index.to_ne_bytes())?;
            let port = match tuple.src {
                IpAddr::V4(_) => flow.key.saddr_be[8..10].try_into().expect("two bytes"),
                IpAddr::V6(_) => flow.key.sport_be,
            };
            (u16::from_be_bytes(port) == tuple.sport).then_some((partition, flow))
        });
        found.next()
    }

    /// New flows that went by a group's ring.
    pub(crate) fn source_picks(&self, group: u32) -> u64 {
        let cpus: Vec<u64> = read_percpu(&self.skel.maps.source_picks, group);
        cpus.iter().sum()
    }

    /// Packets of a VIP by what their cookies said; those that were none are left out.
    pub(crate) fn cookie_counts(&self, vip: u32) -> Vec<(CookieResult, u64)> {
        let cpus: Vec<CookieCounts> = read_percpu(&self.skel.maps.cookie_counts, vip);
        let sum = |result: CookieResult| cpus.iter().map(|c| c.packets[result as usize]).sum();
        let all = CookieResult::ALL.into_iter().map(|r| (r, sum(r)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    pub(crate) fn load(&self, real: u32) -> RealLoad {
        read(&self.skel.maps.real_loads, &real.to_ne_bytes()).expect("index")
    }

    pub(crate) fn real_stats(&self, id: u32) -> RealStats {
        let cpus: Vec<RealStats> = read_percpu(&self.skel.maps.real_stats, id);
        cpus.iter().fold(RealStats::default(), |mut sum, cpu| {
            sum.add(cpu);
            sum
        })
    }

    pub(crate) fn vip_stats(&self, id: u32) -> PacketsBytes {
        let cpus: Vec<PacketsBytes> = read_percpu(&self.skel.maps.vip_stats, id);
        PacketsBytes {
            packets: cpus.iter().map(|c| c.packets).sum(),
            bytes: cpus.iter().map(|c| c.bytes).sum(),
        }
    }

    /// Samples in each bucket of a real's histogram.
    pub(crate) fn histogram(&self, id: u32) -> Vec<u64> {
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
    pub(crate) fn known_ports(&self, client: &str) -> HashSet<u16> {
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
    pub(crate) fn flow(&self, tuple: Tuple, proto: u8) -> Option<FlowEntry> {
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

    /// Which command copies packets, and until when.
    pub(crate) fn mirror_ctl(&self) -> MirrorCtl {
        read(&self.skel.maps.mirror_ctl, &0u32.to_ne_bytes()).expect("index")
    }
}
