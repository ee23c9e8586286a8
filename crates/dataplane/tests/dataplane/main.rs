// SPDX-License-Identifier: Apache-2.0
//! Whole packets in, whole packets out: every branch of the data plane's programs
//! runs in the kernel through BPF_PROG_TEST_RUN, and every byte, the XDP action
//! and all counters are compared. The objects are private to each test: nothing is
//! pinned or attached. Needs root; fails without.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot build its packet has failed"
)]

mod frame;
mod jumbo;
mod lb_clients;
mod lb_conns;
mod lb_cookie;
mod lb_errors;
mod lb_flows;
mod lb_forwarding;
mod lb_fragments;
mod lb_gue;
mod lb_icmp;
mod lb_measure;
mod lb_pick;
mod lb_quic;
mod lb_tier;
mod mirror;
mod object;
mod probe;
mod rig;
mod second_chance;
mod server;
mod server_cookie;
mod syn;

use std::collections::HashSet;

use causeway_dataplane::abi::{ServerVerdict, Verdict};

/// Declares tests, each with a verdict that it must produce. The verdicts are
/// listed in `COVERED`, so that a verdict without a test is noticed.
#[macro_export]
macro_rules! verdict_tests {
    ($rig:ty, $kind:ident: $($verdict:ident $(#[$attr:meta])* $name:ident($world:ident) $body:block)*) => {
        $(#[test]
        $(#[$attr])*
        fn $name() {
            let mut rig = <$rig>::new();
            let $world = &mut rig;
            $body
            let verdict = causeway_dataplane::abi::$kind::$verdict;
            assert!(rig.counters().seen(verdict as usize), "no packet here was {}", verdict.as_str());
        })*
        pub(crate) const COVERED: &[causeway_dataplane::abi::$kind] = &[$(causeway_dataplane::abi::$kind::$verdict),*];
    };
}

#[test]
fn every_verdict_of_the_balancer_has_a_test() {
    let covered: HashSet<_> = [
        lb_clients::COVERED,
        lb_cookie::COVERED,
        lb_conns::COVERED,
        lb_errors::COVERED,
        lb_flows::COVERED,
        lb_forwarding::COVERED,
        lb_fragments::COVERED,
        lb_gue::COVERED,
        lb_icmp::COVERED,
        lb_measure::COVERED,
        lb_pick::COVERED,
        lb_quic::COVERED,
        lb_tier::COVERED,
        lb_tier::second::COVERED,
    ]
    .concat()
    .into_iter()
    .collect();
    let missing: Vec<_> = Verdict::ALL
        .into_iter()
        .filter(|v| !covered.contains(v))
        .collect();
    assert!(missing.is_empty(), "no test produces {missing:?}");
}

/// A pinned map keeps its size, so that it must not depend on this build's verdicts.
#[test]
fn verdict_maps_have_room_for_verdicts_to_come() {
    assert_eq!(rig::Rig::new().counters().capacity(), 64);
    assert_eq!(server::Server::new().counters().capacity(), 64);
}

#[test]
fn every_verdict_of_the_server_has_a_test() {
    let covered = [server::COVERED, second_chance::COVERED].concat();
    let covered: HashSet<_> = covered.into_iter().collect();
    let missing: Vec<_> = ServerVerdict::ALL
        .into_iter()
        .filter(|v| !covered.contains(v))
        .collect();
    assert!(missing.is_empty(), "no test produces {missing:?}");
}
