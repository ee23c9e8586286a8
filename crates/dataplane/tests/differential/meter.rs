// SPDX-License-Identifier: Apache-2.0
//! The meter in the kernel, on no interface.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::rc::Rc;

use causeway_core::estimate::{Method, Packet};
use causeway_dataplane::abi::{MeterRecord, MeterSums, MeterVerdict, PacketsBytes, Plain};
use causeway_dataplane::skel::meter::{MeterSkel, MeterSkelBuilder};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, ProgramInput, RingBuffer, RingBufferBuilder};

use crate::frames::Flow;

const CLOCK_METADATA: u32 = 1;
/// Far more than flows: an LRU map evicts early.
const FLOWS: u32 = 1 << 16;
const XDP_PASS: u32 = 2;

pub(crate) struct Meter {
    skel: MeterSkel<'static>,
    ring: RingBuffer<'static>,
    records: Rc<RefCell<Vec<MeterRecord>>>,
}

impl Meter {
    pub(crate) fn load(method: &Method, epoch_ns: u64, opaque: bool) -> Self {
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = MeterSkelBuilder::default().open(storage).expect("open");
        let rodata = open.maps.rodata_data.as_deref_mut().expect("rodata");
        rodata.cfg_clock = CLOCK_METADATA;
        rodata.cfg_epoch_ns = epoch_ns;
        rodata.cfg_opaque = opaque;
        causeway_dataplane::meter::set_method(rodata, method);
        open.maps.flows.set_max_entries(FLOWS).expect("size");
        let skel = open
            .load()
            .unwrap_or_else(|e| panic!("loading needs root and BPF: {e}"));
        let records = Rc::new(RefCell::new(Vec::new()));
        let sink = records.clone();
        let map: &'static MapHandle = Box::leak(Box::new(
            MapHandle::try_from(&skel.maps.records).expect("ring buffer"),
        ));
        let mut ring = RingBufferBuilder::new();
        ring.add(map, move |bytes| {
            let record = MeterRecord::from_bytes(bytes).expect("size of a record");
            sink.borrow_mut().push(record);
            0
        })
        .expect("ring buffer");
        Self {
            ring: ring.build().expect("ring buffer"),
            skel,
            records,
        }
    }

    pub(crate) fn packet(&mut self, flow: Flow, packet: &Packet) {
        let input = [&packet.t_ns.to_ne_bytes()[..], &flow.frame(packet)].concat();
        // struct xdp_md: data, data_end, data_meta, and three that stay 0.
        let mut context: Vec<u8> = [size_of::<u64>() as u32, input.len() as u32, 0, 0, 0, 0]
            .iter()
            .flat_map(|v: &u32| v.to_ne_bytes())
            .collect();
        let run = self
            .skel
            .progs
            .causeway_meter
            .test_run(ProgramInput {
                context_in: Some(&mut context),
                data_in: Some(&input),
                ..Default::default()
            })
            .expect("BPF_PROG_TEST_RUN");
        assert_eq!(run.return_value, XDP_PASS);
    }

    /// Records since the last call.
    pub(crate) fn records(&mut self) -> Vec<MeterRecord> {
        self.ring.consume().expect("ring buffer");
        self.records.take()
    }

    /// Packets that were measured.
    pub(crate) fn measured(&self) -> u64 {
        let key = MeterVerdict::Measured as u32;
        let cpus = self
            .skel
            .maps
            .verdicts
            .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
            .expect("map")
            .expect("index");
        let packets = |cpu: &Vec<u8>| PacketsBytes::from_bytes(cpu).expect("size").packets;
        cpus.iter().map(packets).sum()
    }

    /// Sums and state of a flow.
    pub(crate) fn flow(&self, flow: Flow) -> (MeterSums, Vec<u8>) {
        let value = self
            .skel
            .maps
            .flows
            .lookup(flow.key().as_bytes(), MapFlags::ANY)
            .expect("map")
            .unwrap_or_else(|| panic!("{flow:?} was evicted"));
        let (sums, state) = value.split_at(size_of::<MeterSums>());
        (MeterSums::from_bytes(sums).expect("size"), state.to_vec())
    }
}
