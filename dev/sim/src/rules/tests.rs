// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::races::explore;

#[test]
fn no_order_of_events_breaks_a_connection_or_stops_a_change_for_good() {
    for rules in models(false) {
        let explored = explore(&rules);
        assert_eq!(explored.fault, None, "{}", rules.name);
        assert!(explored.states > 500, "{}: {explored:?}", rules.name);
        assert_eq!(explored.ends, 0, "{}: a fleet never ends", rules.name);
    }
}

#[test]
fn planted_faults_are_found() {
    let mut kinds = HashSet::new();
    for rules in planted() {
        let fault = explore(&rules).fault;
        assert!(fault.is_some(), "{:?}", rules.planted);
        kinds.extend(fault.map(|(_, wrong)| wrong));
    }
    for wrong in [
        "a packet goes to another server",
        "an id is given to another real while cookies live",
        "a real is forgotten under a connection without a cookie",
        "a packet is dropped for an unknown id",
        "a packet is dropped for an unknown key",
        "a packet is dropped for an unknown configuration",
        "a connection id is read by another configuration",
        "a change of configurations does not end",
        "a token is given to two",
        "the last real goes, and nobody has confirmed it",
        "a connection gets no cookie",
        "a rotation of keys does not end",
        "a real does not come to be picked, or its id not to be forgotten",
    ] {
        assert!(kinds.contains(wrong), "nothing planted leads to: {wrong}");
    }
}
