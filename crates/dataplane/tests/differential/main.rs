// SPDX-License-Identifier: Apache-2.0
//! The estimators as BPF bytecode against the same C as native code: random
//! workloads that cover every branch and a captured trace go through the meter by
//! BPF_PROG_TEST_RUN and through `causeway_core::estimate`. Every record and the
//! final state of every flow must be the same. Needs root; fails without.

mod frames;
mod meter;
mod native;
#[path = "../../../core/tests/estimate/workload.rs"]
mod workload;

use causeway_core::estimate::{FixedGapConfig, Method, ModesConfig, ModesIbg, Packet};

use frames::Flow;
use meter::Meter;
use native::Native;
use workload::{Client, Rng, nonsense};

const START_NS: u64 = 1_700_000_000_000_000_000;
const MS: u64 = 1_000_000;

/// Flows of closed-loop clients and of nonsense, `count` packets in all, dealt out
/// in runs of random length; within a flow the order stays.
fn traffic(seed: u64, count: usize) -> Vec<(Flow, Packet)> {
    let mut rng = Rng(seed);
    let mut flows = Vec::new();
    let mut left = count;
    while left > 0 {
        let start_ns = START_NS + rng.below(5_000 * MS);
        let mut packets = if rng.permille(250) {
            nonsense(&mut rng, start_ns, 400)
        } else {
            Client::random(&mut rng).packets(&mut rng, start_ns)
        };
        packets.truncate(left);
        left -= packets.len();
        let flow = Flow::new(flows.len() as u32, packets[0].proto);
        flows.push((flow, packets.into_iter()));
    }
    let mut dealt = Vec::with_capacity(count);
    while !flows.is_empty() {
        let index = rng.below(flows.len() as u64) as usize;
        let (flow, packets) = &mut flows[index];
        let run = 1 + rng.below(20) as usize;
        dealt.extend(packets.by_ref().take(run).map(|packet| (*flow, packet)));
        if packets.len() == 0 {
            flows.swap_remove(index);
        }
    }
    dealt
}

/// Runs both and compares. `opaque` packets reach both with their headers.
fn compare(traffic: &[(Flow, Packet)], method: &Method, epoch_ns: u64, opaque: bool) {
    let mut meter = Meter::load(method, epoch_ns, opaque);
    let mut native = Native::new(method, epoch_ns);
    let mut records = 0;
    for (index, (flow, packet)) in traffic.iter().enumerate() {
        meter.packet(*flow, packet);
        native.packet(*flow, &Packet { opaque, ..*packet });
        if index % 1000 == 999 || index + 1 == traffic.len() {
            let (kernel, user) = (meter.records(), native.records());
            assert_eq!(kernel, user, "records, around packet {index}");
            records += kernel.len();
        }
    }
    assert!(records > 0, "nothing was compared");
    assert_eq!(meter.measured(), traffic.len() as u64);
    for (flow, sums, state) in native.flows() {
        let (kernel_sums, kernel_state) = meter.flow(flow);
        assert_eq!(kernel_sums, sums, "sums of {flow:?}");
        assert_eq!(kernel_state[..state.len()], state, "state of {flow:?}");
    }
}

#[test]
fn window_chain_in_200_000_packets() {
    compare(&traffic(1, 200_000), &Method::WindowChain, MS, false);
}

#[test]
fn window_chain_without_transport_headers() {
    compare(&traffic(2, 50_000), &Method::WindowChain, MS, true);
}

#[test]
fn fixed_gap() {
    let method = Method::FixedGap(FixedGapConfig::default());
    compare(&traffic(3, 50_000), &method, MS, false);
}

#[test]
fn modes() {
    for (seed, config) in [
        (4, ModesConfig::default()),
        (5, ModesConfig::paper(50_000)),
        (
            6,
            ModesConfig {
                mtu: 0,
                modes: 3,
                ibg: ModesIbg::Largest,
                tcp_timeout_ns: 1_000 * MS,
                ..ModesConfig::default()
            },
        ),
    ] {
        compare(
            &traffic(seed, 30_000),
            &Method::Modes(config),
            200 * MS,
            false,
        );
    }
}

#[test]
fn captured_traces() {
    for name in ["w1", "w4", "h3"] {
        let traffic = frames::trace(name);
        assert!(traffic.len() > 500, "{name}: {} packets", traffic.len());
        compare(&traffic, &Method::WindowChain, MS, false);
    }
}
