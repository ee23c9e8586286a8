// SPDX-License-Identifier: Apache-2.0

//! The meter against one estimator per flow, run by hand.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::estimate::{
    Estimator, FixedGapConfig, Lineup, Method, ModesConfig, Packet, Sample, Tally, Technique, Three,
};

const EPOCH_NS: u64 = 200_000_000;

fn methods() -> [Method; 2] {
    [
        Method::WindowChain,
        Method::FixedGap(FixedGapConfig::default()),
    ]
}

fn settings(max_flows: u32) -> MeterSettings<2> {
    MeterSettings {
        epoch_ns: EPOCH_NS,
        methods: methods(),
        direction: Direction::default(),
        max_flows,
        seed: 1,
        early: false,
    }
}

fn meter(max_flows: u32) -> FlowMeter<2> {
    FlowMeter::new(settings(max_flows))
}

/// A request of the client with this port: the `n`th, at `t_ns`.
fn request(port: u16, n: u32, t_ns: u64) -> Observation {
    Observation {
        key: FlowKey::new(6, [10, 0, 0, 1].into(), port, [10, 0, 0, 2].into(), 80),
        hint: Hint::None,
        packet: Packet {
            t_ns,
            ip_len: 152,
            payload_len: 100,
            seq: n * 100,
            ack: n * 5000,
            tcp_flags: Packet::ACK,
            proto: Packet::TCP,
            ..Packet::default()
        },
        tsval: 0,
        first_byte: None,
    }
}

fn response(to: &Observation) -> Observation {
    Observation {
        key: to.key.reversed(),
        ..*to
    }
}

#[derive(Default)]
struct Rows {
    rows: Vec<FlowEstimate>,
    samples: u64,
}

impl Sink for Rows {
    fn sample(&mut self, _: &FlowKey, _: u8, sample: &Sample) {
        self.samples += u64::from(sample.weight_halves);
    }

    fn row(&mut self, row: &FlowEstimate) {
        self.rows.push(*row);
    }
}

/// Every sample of every flow, summed by flow, method and epoch.
fn by_hand(packets: &[Observation]) -> BTreeMap<(FlowKey, u8, u64), Tally> {
    let mut flows: BTreeMap<FlowKey, [Estimator; 2]> = BTreeMap::new();
    let mut sums: BTreeMap<(FlowKey, u8, u64), Tally> = BTreeMap::new();
    let mut add = |key: FlowKey, method: usize, sample: &Sample| {
        let epoch = sample.when_ns / EPOCH_NS * EPOCH_NS;
        sums.entry((key, method as u8, epoch))
            .or_default()
            .add(sample);
    };
    for seen in packets {
        let flow = flows
            .entry(seen.key)
            .or_insert_with(|| methods().map(|m| Estimator::new(&m)));
        for (method, estimator) in flow.iter_mut().enumerate() {
            estimator
                .packet(&seen.packet)
                .iter()
                .for_each(|sample| add(seen.key, method, sample));
        }
    }
    for (key, flow) in &mut flows {
        for (method, estimator) in flow.iter_mut().enumerate() {
            estimator
                .finish()
                .iter()
                .for_each(|sample| add(*key, method, sample));
        }
    }
    sums.retain(|_, tally| tally.samples() > 0);
    sums
}

proptest! {
    #[test]
    fn rows_are_the_sums_of_the_estimators(
        gaps in proptest::collection::vec((1u64..80_000, 0u16..3, any::<bool>()), 1..400),
    ) {
        let (mut t_ns, mut numbers) = (0, [0; 3]);
        let mut packets = Vec::new();
        for (gap_us, flow, advance) in gaps {
            t_ns += gap_us * 1000;
            numbers[usize::from(flow)] += u32::from(advance);
            packets.push(request(40_000 + flow, numbers[usize::from(flow)], t_ns));
        }
        let mut found = Rows::default();
        let mut meter = meter(100);
        for (index, seen) in packets.iter().enumerate() {
            meter.observe(index as u64, seen, &mut found);
            meter.observe(index as u64, &response(seen), &mut found);
        }
        meter.finish(&mut found);
        let rows: BTreeMap<_, _> =
            found.rows.iter().map(|row| ((row.flow, row.method, row.epoch_ns), row.tally)).collect();
        prop_assert_eq!(rows.len(), found.rows.len());
        prop_assert_eq!(&rows, &by_hand(&packets));
        let counts = meter.counts();
        prop_assert_eq!((counts.from_clients, counts.from_servers), (packets.len() as u64, packets.len() as u64));
        prop_assert!(rows.values().map(|tally| tally.weight_halves).sum::<u64>() <= found.samples);
    }
}

/// IPv4 and IPv6, both directions.
fn packet_of(flow: u16, n: u32, t_ns: u64, from_server: bool) -> Observation {
    let mut seen = request(40_000 + flow, n, t_ns);
    if flow.is_multiple_of(3) {
        let address = |last: u16| [0x2001, 0xdb8, 0, 0, 0, 0, 0, last].into();
        seen.key = FlowKey::new(17, address(flow), 40_000, address(2), 443);
        seen.packet.proto = Packet::UDP;
        seen.first_byte = Some(0x40);
    }
    seen.hint = if n == 0 { Hint::Opens } else { Hint::None };
    if from_server { response(&seen) } else { seen }
}

proptest! {
    /// Batches of any size give what single packets give, and the three estimators at
    /// once what they give one by one.
    #[test]
    fn batches_are_packets_one_by_one(
        steps in proptest::collection::vec((1u64..80_000, 0u16..7, 0u32..3, any::<bool>()), 1..400),
        size in 1usize..70,
        max_flows in 2u32..10,
    ) {
        let settings = MeterSettings {
            epoch_ns: EPOCH_NS,
            methods: [
                Method::WindowChain,
                Method::FixedGap(FixedGapConfig::default()),
                Method::Modes(ModesConfig::default()),
            ],
            direction: Direction::default(),
            max_flows,
            seed: 5,
            early: false,
        };
        let (mut t_ns, mut numbers) = (1_000_000_000, [0; 7]);
        let mut packets = Vec::new();
        for (gap_us, flow, advance, from_server) in steps {
            t_ns += gap_us * 1000;
            let n = &mut numbers[usize::from(flow)];
            *n += advance;
            packets.push(packet_of(flow, *n, t_ns, from_server && *n > 0));
        }
        let (mut one_by_one, mut expected) = (FlowMeter::new(settings.clone()), Rows::default());
        let plan = Three::plan(settings.methods.clone()).expect("these are its methods");
        let bare = MeterSettings {
            epoch_ns: EPOCH_NS,
            methods: [],
            direction: Direction::default(),
            max_flows,
            seed: 5,
            early: false,
        };
        let (mut together, mut found) = (FlowMeter::of_three(bare, plan), Rows::default());
        let hash = FlowState::new(settings.seed);
        let mut batch = Batch::with_capacity(size);
        for (index, seen) in packets.iter().enumerate() {
            let index = index as u64 + u64::from(u32::MAX) - 100;
            one_by_one.observe(index, seen, &mut expected);
            batch.push(index, seen, HashedFlow::of(&seen.key, &hash));
            prop_assert_eq!(batch.iter().last(), Some((index, *seen)));
            if batch.len() == size {
                together.observe_all(&batch, &mut found);
                batch.clear();
            }
        }
        together.observe_all(&batch, &mut found);
        one_by_one.finish(&mut expected);
        together.finish(&mut found);
        prop_assert_eq!(found.rows, expected.rows);
        prop_assert_eq!(found.samples, expected.samples);
        prop_assert_eq!(together.counts(), one_by_one.counts());
    }
}

#[test]
fn a_full_table_ends_flows_with_their_rows() {
    let mut found = Rows::default();
    let mut meter = meter(1);
    for n in 0..10 {
        meter.observe(
            0,
            &request(40_000, n, 1_000_000_000 + u64::from(n) * 1_000_000),
            &mut found,
        );
    }
    assert!(found.rows.is_empty());
    meter.observe(1, &request(40_001, 0, 1_100_000_000), &mut found);
    assert_eq!(found.rows.len(), 2);
    assert!(
        found
            .rows
            .iter()
            .all(|row| row.flow.sport() == 40_000 && row.epoch_ns == 1_000_000_000)
    );
    assert_eq!((meter.counts().flows, meter.counts().evicted), (2, 1));
}

/// A connection of three requests that its client closes.
fn closed(port: u16) -> Vec<Observation> {
    let at = |n: u32| 1_000_000_000 + u64::from(n) * 5_000_000;
    let mut packets: Vec<_> = (0..4).map(|n| request(port, n, at(n))).collect();
    packets[3].packet.tcp_flags |= Packet::FIN;
    packets[3].packet.payload_len = 0;
    packets
}

fn early() -> MeterSettings<0> {
    MeterSettings {
        epoch_ns: EPOCH_NS,
        methods: [],
        direction: Direction::default(),
        max_flows: 10,
        seed: 1,
        early: true,
    }
}

/// Where the input may never end, and otherwise at the end alone.
#[test]
fn a_connection_that_its_client_closes_has_its_rows_at_once() {
    let techniques = methods().map(Technique::Request).to_vec();
    let (mut at_end, mut expected) = (meter(10), Rows::default());
    let early_settings = MeterSettings {
        early: true,
        ..settings(10)
    };
    let (mut at_once, mut found) = (FlowMeter::new(early_settings), Rows::default());
    let (mut listed, mut compared) = (Comparison::new(early(), techniques, 0), Rows::default());
    for seen in closed(40_000) {
        at_end.observe(0, &seen, &mut expected);
        at_once.observe(0, &seen, &mut found);
        listed.observe(0, &seen, &mut compared);
    }
    assert!(expected.rows.is_empty());
    at_end.finish(&mut expected);
    assert!(!expected.rows.is_empty());
    assert_eq!(found.rows, expected.rows);
    assert_eq!(compared.rows, expected.rows);
    // Nothing comes a second time.
    at_once.finish(&mut found);
    listed.finish(&mut compared);
    assert_eq!(found.rows, expected.rows);
    assert_eq!(compared.rows, expected.rows);
}

#[test]
fn epochs_that_are_long_over_are_handed_out_when_that_is_asked_for() {
    let techniques = vec![
        Technique::Request(Method::WindowChain),
        Technique::Request(Method::Modes(ModesConfig::default())),
    ];
    let meter = || Comparison::new(early(), techniques.clone(), 0);
    let (mut asked, mut found) = (meter(), Rows::default());
    let (mut unasked, mut expected) = (meter(), Rows::default());
    for n in 0..30 {
        let t_ns = 1_000_000_000 + u64::from(n) * 5_000_000;
        asked.observe(0, &request(40_000, n, t_ns), &mut found);
        unasked.observe(0, &request(40_000, n, t_ns), &mut expected);
    }
    asked.hand_out(1_000_000_000, &mut found);
    assert!(found.rows.is_empty(), "the epoch is not over");
    asked.hand_out(1_000_000_000 + EPOCH_NS, &mut found);
    let handed = found.rows.iter().map(|row| (row.method, row.epoch_ns));
    assert_eq!(
        handed.collect::<Vec<_>>(),
        [(0, 1_000_000_000), (1, 1_000_000_000)]
    );
    asked.finish(&mut found);
    unasked.finish(&mut expected);
    // The response to the last request is known at the end alone.
    let sum = |rows: &Rows| {
        let weights = rows.rows.iter().map(|row| row.tally.weight_halves);
        weights.sum::<u64>()
    };
    assert_eq!(sum(&found), sum(&expected));
}

#[test]
fn a_clock_that_jumps_back_loses_no_samples() {
    let mut found = Rows::default();
    let mut meter = meter(10);
    let hour = 3_600_000_000_000;
    for n in 0..40u32 {
        let start = if n < 20 { 2 * hour } else { hour };
        meter.observe(
            0,
            &request(40_000, n, start + u64::from(n) * 1_000_000),
            &mut found,
        );
    }
    meter.finish(&mut found);
    let total: u64 = found.rows.iter().map(|row| row.tally.weight_halves).sum();
    assert_eq!(total, found.samples);
}
