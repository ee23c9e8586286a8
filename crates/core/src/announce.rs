// SPDX-License-Identifier: Apache-2.0
//! Which VIP addresses a balancer offers to the network's routers.
//!
//! An address is offered as long as one of its services is ready, so that a service
//! without servers does not take those beside it off the network. It is offered once it
//! has been ready for a while, and withdrawn at once: what flaps stays away. What is
//! offered stays so while health is unknown: a balancer that starts goes on with what its
//! predecessor offered until it has found out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// How a service stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// As many servers are up as it needs.
    Ready,
    /// Too few are known to be up, but those that are not known would do.
    Unknown,
    /// Too few are up.
    Unready,
}

/// The addresses that are offered. Give it the state of the services often.
#[derive(Clone, Debug, Default)]
pub struct Announcer {
    /// Since when each address has been ready, ns.
    ready_since: BTreeMap<IpAddr, u64>,
    offered: BTreeSet<IpAddr>,
}

impl Announcer {
    /// Goes on with what a predecessor offered.
    pub fn succeeding(offered: BTreeSet<IpAddr>) -> Self {
        Self {
            ready_since: BTreeMap::new(),
            offered,
        }
    }

    /// The state of the services at `now_ns`, by address; an address that is not named is
    /// none of ours. Gives what is to be offered from now on.
    pub fn handle_services(
        &mut self,
        now_ns: u64,
        delay_ns: u64,
        services: &[(IpAddr, Readiness)],
    ) -> &BTreeSet<IpAddr> {
        let with = |wanted: Readiness| {
            let of = services
                .iter()
                .filter(move |(_, standing)| *standing == wanted);
            of.map(|(address, _)| *address)
                .collect::<BTreeSet<IpAddr>>()
        };
        let (ready, unknown) = (with(Readiness::Ready), with(Readiness::Unknown));
        self.ready_since
            .retain(|address, _| ready.contains(address));
        for address in &ready {
            self.ready_since.entry(*address).or_insert(now_ns);
        }
        let stays = |address: &&IpAddr| ready.contains(address) || unknown.contains(address);
        let ripe = |since: u64| now_ns.saturating_sub(since) >= delay_ns;
        let ripe = self.ready_since.iter().filter(|(_, since)| ripe(**since));
        let ripe = ripe.map(|(address, _)| address);
        self.offered = self
            .offered
            .iter()
            .filter(stays)
            .chain(ripe)
            .copied()
            .collect();
        &self.offered
    }
}

/// Has routers prefer others (RFC 8326), in BIRD's words.
const GRACEFUL_SHUTDOWN: &str = " { bgp_community.add((65535, 0)); }";

/// What a file of [`bird`] offers; lines that it would not have are passed over.
pub fn offered_in(text: &str) -> BTreeSet<IpAddr> {
    let route = |line: &str| {
        let prefix = line.trim().strip_prefix("route ")?.strip_suffix(';')?;
        let prefix = prefix.strip_suffix(GRACEFUL_SHUTDOWN).unwrap_or(prefix);
        let prefix = prefix.strip_suffix(" blackhole")?;
        prefix.split_once('/')?.0.parse().ok()
    };
    text.lines().filter_map(route).collect()
}

/// BIRD's configuration for these addresses: two static protocols, to be included.
/// Each route's target is a black hole; it is for export to neighbours, not to the
/// kernel. One that leaves has routers prefer others while it is still offered.
pub fn bird(addresses: &BTreeSet<IpAddr>, leaves: bool) -> String {
    let community = match leaves {
        true => GRACEFUL_SHUTDOWN,
        false => "",
    };
    let mut text = String::from("# Written by causeway; changes are lost.\n");
    for (name, channel, length) in [("causeway4", "ipv4", 32), ("causeway6", "ipv6", 128)] {
        text += &format!("protocol static {name} {{\n\t{channel};\n");
        let of_family = |address: &&IpAddr| address.is_ipv4() == (length == 32);
        for address in addresses.iter().filter(of_family) {
            text += &format!("\troute {address}/{length} blackhole{community};\n");
        }
        text += "}\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    const UP: Readiness = Readiness::Ready;
    const DOWN: Readiness = Readiness::Unready;

    #[test]
    fn an_address_is_offered_after_a_while_and_withdrawn_at_once() {
        let [a, b] = ["192.0.2.1", "2001:db8::1"].map(address);
        let mut announcer = Announcer::default();
        let mut offered = |at_s: u64, services: &[(IpAddr, Readiness)]| {
            let offered = announcer.handle_services(at_s * S, 3 * S, services);
            offered.iter().copied().collect::<Vec<IpAddr>>()
        };
        assert!(offered(0, &[(a, UP), (b, DOWN)]).is_empty());
        assert!(offered(2, &[(a, UP), (b, UP)]).is_empty());
        assert_eq!(offered(3, &[(a, UP), (b, UP)]), [a]);
        // One of two services is enough.
        assert_eq!(offered(5, &[(a, DOWN), (a, UP), (b, UP)]), [a, b]);
        assert_eq!(offered(6, &[(a, DOWN), (b, UP)]), [b]);
        // What comes back waits again; what is no longer named goes.
        assert!(offered(7, &[(a, UP)]).is_empty());
        assert!(offered(9, &[(a, UP)]).is_empty());
        assert_eq!(offered(10, &[(a, UP)]), [a]);
    }

    #[test]
    fn a_longer_delay_withdraws_nothing() {
        let a = address("192.0.2.1");
        let mut announcer = Announcer::default();
        assert_eq!(announcer.handle_services(0, 0, &[(a, UP)]).len(), 1);
        assert_eq!(announcer.handle_services(S, 60 * S, &[(a, UP)]).len(), 1);
    }

    #[test]
    fn a_successor_withdraws_nothing_before_it_knows() {
        let [a, b, c] = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(address);
        let before = BTreeSet::from([a, b]);
        let mut announcer = Announcer::succeeding(offered_in(&bird(&before, false)));
        let unknown = [a, b, c].map(|address| (address, Readiness::Unknown));
        assert_eq!(*announcer.handle_services(0, S, &unknown), before);
        let known = [(a, UP), (b, DOWN), (c, Readiness::Unknown)];
        assert_eq!(
            *announcer.handle_services(S / 2, S, &known),
            BTreeSet::from([a])
        );
    }

    #[test]
    fn birds_file_has_a_protocol_for_each_family() {
        let addresses = ["192.0.2.1", "198.51.100.1", "2001:db8::1"].map(address);
        let expected = "# Written by causeway; changes are lost.\n\
            protocol static causeway4 {\n\tipv4;\n\
            \troute 192.0.2.1/32 blackhole;\n\troute 198.51.100.1/32 blackhole;\n}\n\
            protocol static causeway6 {\n\tipv6;\n\troute 2001:db8::1/128 blackhole;\n}\n";
        assert_eq!(bird(&BTreeSet::from(addresses), false), expected);
        let leaves = bird(&BTreeSet::from(addresses), true);
        assert!(
            leaves.contains("route 192.0.2.1/32 blackhole { bgp_community.add((65535, 0)); };"),
            "{leaves}"
        );
        assert_eq!(offered_in(&leaves), BTreeSet::from(addresses));
        assert!(!bird(&BTreeSet::new(), true).contains("route"));
    }
}
