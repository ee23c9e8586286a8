// SPDX-License-Identifier: Apache-2.0

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::*;
use crate::agent_report::{ReportKeys, ReportSecrets};
use crate::control::{GradedLatencies, MeasuredInterval, Reading};
use crate::cookie::{CookieKey, KeyEpoch};
use crate::envelope::{self, Boot, DATAGRAM_MAX, Reception};
use crate::health::Votes;

const S: u64 = 1_000_000_000;
const ROUND: u64 = S / 10;
const WEB: RealName = 7;

fn keys(digit: &str) -> PeerKeys {
    let reports = ReportKeys {
        current: KeyEpoch::Zero,
        secrets: ReportSecrets::Root([digit, ""].map(|digit| digit.repeat(32).parse().ok())),
    };
    PeerKeys::of(&reports).expect("a balancer's")
}

fn socket(member: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, member], 9473))
}

/// A member of a fleet of this many, at the n-th start of its daemon.
fn member(own: u8, of: u8, start: u32) -> PeerExchange {
    let boot = Boot {
        time_s: 1_000,
        id: start,
    };
    let secret = CookieKey::from_bytes([own; 16]);
    let mut member = PeerExchange::new(socket(own).ip(), boot, secret);
    member.set_keys(Some(keys("7")));
    member.set_members(&(1..=of).map(socket).collect::<Vec<_>>());
    member
}

fn samples(count: u64) -> MeasuredInterval {
    MeasuredInterval {
        good: GradedLatencies {
            sum_halves_ns: 2_000_000 * count,
            weight_halves: 2 * count,
            ..GradedLatencies::default()
        },
        counts: Reading {
            requests: count,
            all_requests: count,
            active: 3,
            ..Reading::default()
        },
        ..MeasuredInterval::default()
    }
}

fn web(count: u64) -> RealInterval {
    RealInterval {
        name: WEB,
        measured: samples(count),
        weight: Some(1.0),
        vote: Some(true),
    }
}

/// Members whose datagrams arrive at once, but for those that `lost` holds back.
struct Net {
    members: Vec<PeerExchange>,
    now_ns: u64,
}

impl Net {
    fn of(count: u8) -> Self {
        Self {
            members: (1..=count).map(|own| member(own, count, 1)).collect(),
            now_ns: 100 * S,
        }
    }

    /// A round in which each member has measured this of its reals.
    fn round(
        &mut self,
        measured: impl Fn(usize) -> Vec<RealInterval>,
        lost: impl Fn(usize, usize) -> bool,
    ) -> Vec<Vec<RealOfAll>> {
        self.now_ns += ROUND;
        let now_ns = self.now_ns;
        let members = self.members.iter_mut().enumerate();
        let found = members.map(|(index, member)| member.interval(now_ns, &measured(index)));
        let found = found.collect();
        for from in 0..self.members.len() {
            for (to, datagram) in self.members[from].transmits(now_ns) {
                self.deliver(from, to, &datagram, &lost);
            }
        }
        found
    }

    fn deliver(
        &mut self,
        from: usize,
        to: SocketAddr,
        datagram: &[u8],
        lost: &impl Fn(usize, usize) -> bool,
    ) {
        assert!(datagram.len() <= DATAGRAM_MAX);
        let index = (1..)
            .zip(0..self.members.len())
            .find(|(n, _)| socket(*n) == to);
        let (_, to) = index.expect("a member");
        if lost(from, to) {
            return;
        }
        let (_, answer) = self.members[to].handle_datagram(datagram, self.now_ns);
        if let Some((back, answer)) = answer {
            self.deliver(to, back, &answer, lost);
        }
    }

    /// Until all know all.
    fn settle(&mut self) {
        for _ in 0..12 {
            self.round(|_| vec![web(0)], |_, _| false);
        }
    }
}

fn count(member: &PeerExchange, outcome: Reception) -> u64 {
    let mut counts = member.counts();
    counts
        .find(|(of, _)| *of == outcome)
        .map_or(0, |(_, count)| count)
}

#[test]
fn each_member_sees_what_all_have_measured() {
    let mut net = Net::of(3);
    net.settle();
    net.round(|own| vec![web(10 * (own as u64 + 1))], |_, _| false);
    let found = net.round(|_| vec![web(0)], |_, _| false);
    for (own, found) in found.iter().enumerate() {
        let others = 60 - 10 * (own as u64 + 1);
        assert_eq!(found[0].measured.counts.requests, others);
        assert_eq!(found[0].measured.counts.active, 9);
        assert_eq!(found[0].others_active, 6);
        assert_eq!(found[0].weight, Some(1.0));
        let votes = Votes {
            up: 2,
            down: 0,
            balancers: 3,
        };
        assert_eq!(found[0].votes, votes);
    }
    let refused = Reception::ALL
        .into_iter()
        .filter(|of| *of != Reception::Taken);
    for outcome in refused.filter(|of| *of != Reception::Unproven) {
        assert!(
            net.members.iter().all(|of| count(of, outcome) == 0),
            "{outcome:?}"
        );
    }
}

#[test]
fn what_is_lost_comes_with_the_next() {
    let mut net = Net::of(2);
    net.settle();
    let mut seen = 0;
    for round in 0..30 {
        let found = net.round(|own| vec![web(own as u64)], |_, _| round % 3 != 2);
        seen += found[0][0].measured.counts.requests;
    }
    seen += net.round(|_| vec![web(0)], |_, _| false)[0][0]
        .measured
        .counts
        .requests;
    assert_eq!(seen, 30);
}

#[test]
fn a_member_that_falls_silent_leaves_and_returns_without_a_lump() {
    let mut net = Net::of(2);
    net.settle();
    let mut left_after = None;
    for round in 0..40 {
        let found = net.round(|own| vec![web(5 * own as u64)], |_, _| true);
        let alone = found[0][0].votes.balancers == 1;
        left_after = left_after.or(alone.then_some(round));
        if alone {
            assert_eq!((found[0][0].weight, found[0][0].others_active), (None, 0));
        }
    }
    assert_eq!(left_after, Some(10));
    for _ in 0..5 {
        let found = net.round(|own| vec![web(5 * own as u64)], |_, _| false);
        assert!(found[0][0].measured.counts.requests <= 5);
    }
    assert_eq!(net.members[0].live().count(), 1);
}

#[test]
fn a_daemon_that_starts_again_proves_itself_and_takes_the_others_weights() {
    let mut net = Net::of(2);
    net.settle();
    net.members[1] = member(2, 2, 2);
    let moved = |own| {
        vec![RealInterval {
            weight: Some([0.4, 1.0][own]),
            ..web(5)
        }]
    };
    for _ in 0..5 {
        let found = net.round(moved, |_, _| false);
        // What it had counted before its end counts no more, and not twice.
        assert!(found[0][0].measured.counts.requests <= 10);
    }
    let found = net.round(moved, |_, _| false);
    assert_eq!(found[1][0].weight, Some(0.4));
    assert_eq!(found[0][0].weight, None);
    for _ in 0..10 {
        net.round(moved, |_, _| false);
    }
    let found = net.round(moved, |_, _| false);
    assert_eq!(
        (found[0][0].weight, found[1][0].weight),
        (Some(0.7), Some(0.7))
    );
    let farthest = net.members[0].statuses(net.now_ns)[0].farthest;
    assert_eq!(farthest, Some((WEB, 0.6)));
}

#[test]
fn forged_replayed_and_strange_datagrams_are_dropped_by_name() {
    let mut net = Net::of(3);
    net.settle();
    let now_ns = net.now_ns + ROUND;
    net.members[0].interval(now_ns, &[web(3)]);
    let sent = net.members[0].transmits(now_ns);
    let to_second = &sent.iter().find(|(to, _)| *to == socket(2)).expect("one").1;
    let second = &mut net.members[1];
    let mut expect = |bytes: &[u8], outcome| {
        let (found, answer) = second.handle_datagram(bytes, now_ns);
        assert_eq!((found, answer), (outcome, None));
    };
    expect(to_second, Reception::Taken);
    expect(to_second, Reception::Replayed);
    let mut changed = to_second.clone();
    changed[100] ^= 1;
    expect(&changed, Reception::Forged);
    // What the first sends the third does not concern the second.
    let to_third = &sent.iter().find(|(to, _)| *to == socket(3)).expect("one").1;
    expect(to_third, Reception::Forged);
    // Nor is its own word to the first, sent back.
    let mut stranger = member(9, 3, 1);
    stranger.interval(now_ns, &[web(3)]);
    for (_, datagram) in stranger.transmits(now_ns) {
        expect(&datagram, Reception::NoKey);
    }
    let mut other = member(1, 3, 1);
    other.set_keys(Some(keys("8")));
    other.interval(now_ns, &[web(3)]);
    for (_, datagram) in other.transmits(now_ns) {
        expect(&datagram, Reception::Forged);
    }
    expect(&to_second[..40], Reception::Truncated);
    expect(&[0; 100], Reception::Malformed);
    let own = net.members[1].transmits(now_ns);
    let back = own.iter().find(|(to, _)| *to == socket(1)).expect("one");
    assert_eq!(
        net.members[1].handle_datagram(&back.1, now_ns).0,
        Reception::NoKey
    );
}

/// A recorded datagram is worth nothing to a daemon that has started since.
#[test]
fn an_old_datagram_does_not_move_a_new_daemon() {
    let mut net = Net::of(2);
    net.settle();
    let now_ns = net.now_ns + ROUND;
    net.members[1].interval(now_ns, &[web(1_000)]);
    let recorded = net.members[1].transmits(now_ns);
    let mut anew = member(1, 2, 5);
    anew.interval(now_ns, &[web(0)]);
    let (outcome, challenge) = anew.handle_datagram(&recorded[0].1, now_ns);
    assert_eq!(outcome, Reception::Unproven);
    assert_eq!(anew.interval(now_ns + ROUND, &[web(0)])[0].others_active, 0);
    // The challenge is answered once.
    let (_, challenge) = challenge.expect("a challenge");
    let mut take = || net.members[1].handle_datagram(&challenge, now_ns).0;
    assert_eq!((take(), take()), (Reception::Taken, Reception::Replayed));
}

#[test]
fn many_reals_go_in_many_datagrams_and_what_has_not_changed_waits() {
    let mut net = Net::of(2);
    let reals = 5_000_u64;
    let all = |busy: u64| {
        let real = move |name: u64| RealInterval {
            name,
            ..web(if name < busy { 1 } else { 0 })
        };
        (0..reals).map(real).collect::<Vec<_>>()
    };
    let rounds = reals as usize / (64 * SHARES_OF_A_DATAGRAM) + 2;
    for _ in 0..2 * rounds + 10 {
        net.round(|_| all(0), |_, _| false);
    }
    assert!(net.members[0].left_out().1 > 0);
    // Of all, and those that are sent once a second beside them.
    let status = |net: &Net| net.members[0].statuses(net.now_ns)[0].clone();
    assert_eq!(status(&net).reals, reals as usize);
    let before = status(&net).sent;
    for _ in 0..10 {
        net.round(|_| all(24), |_, _| false);
    }
    let datagrams = |shares: u64| shares.div_ceil(SHARES_OF_A_DATAGRAM as u64);
    let most = 10 * datagrams(24) + 2 * datagrams(reals) + 10;
    assert!(status(&net).sent - before <= most);
    // At once, but in a round that is full of those whose second is over.
    let mut requests = (0..10).map(|_| {
        let found = net.round(|_| all(24), |_, _| false);
        let counts = found[1].iter().map(|of| of.measured.counts.requests);
        counts.sum::<u64>()
    });
    assert!(requests.any(|of_both| of_both == 2 * 24));
}

#[test]
fn members_and_reals_come_and_go() {
    let mut net = Net::of(3);
    net.settle();
    let first = &mut net.members[0];
    first.set_members(&[socket(1), socket(3)]);
    assert_eq!(first.live().collect::<Vec<IpAddr>>(), [socket(3).ip()]);
    let found = first.interval(net.now_ns, &[web(0)]);
    assert_eq!(found[0].votes.up, 1);
    // A real that others do not have is not a fault of theirs.
    let found = net.round(
        |own| match own {
            0 => vec![RealInterval { name: 8, ..web(1) }],
            _ => vec![web(1)],
        },
        |_, _| false,
    );
    assert_eq!(found[0][0].votes.up, 0);
    assert!(net.members[2].left_out().0 > 0);
}

/// As scripts do that go host by host. Its totals only grow for a member that has had them.
#[test]
fn a_real_that_is_removed_and_added_again_brings_no_lump() {
    for rounds in [1, 3, 29, 31, 40] {
        let mut net = Net::of(2);
        for _ in 0..10 {
            net.round(|_| vec![web(24)], |_, _| false);
        }
        for _ in 0..rounds {
            let without = |index| match index {
                0 => vec![],
                _ => vec![web(24)],
            };
            net.round(without, |_, _| false);
        }
        let mut seen = 0;
        for _ in 0..10 {
            let again = |index| vec![web(if index == 0 { 1 } else { 24 })];
            let found = net.round(again, |_, _| false);
            let requests = found[1][0].measured.counts.requests;
            assert!(requests <= 48, "{rounds}: {requests}");
            seen += requests - 24;
        }
        assert!((8..=10).contains(&seen), "{rounds}: {seen}");
    }
}

#[test]
fn a_member_that_was_left_out_for_a_while_is_believed_at_once() {
    let mut net = Net::of(2);
    for _ in 0..3 {
        net.settle();
    }
    net.members[0].set_members(&[socket(1)]);
    net.round(|_| vec![web(0)], |_, _| false);
    net.members[0].set_members(&[socket(1), socket(2)]);
    let replayed = count(&net.members[1], Reception::Replayed);
    net.settle();
    assert_eq!(count(&net.members[1], Reception::Replayed), replayed);
    let found = net.round(|_| vec![web(1)], |_, _| false);
    assert_eq!(found[1][0].votes.up, 1);
}

proptest! {
    /// Whatever stands under a right tag: no panic, and what is taken is of reals that are there.
    #[test]
    fn a_member_may_say_anything(
        noise in prop::collection::vec(any::<u8>(), 0..1_100),
        cut in 0..200_usize,
        at in 48..1_200_usize,
        sequence in any::<u64>(),
    ) {
        let mut net = Net::of(2);
        net.settle();
        let now_ns = net.now_ns + ROUND;
        net.members[0].interval(now_ns, &[web(3)]);
        let mut bytes = net.members[0].transmits(now_ns).remove(0).1;
        bytes[40..48].copy_from_slice(&sequence.to_be_bytes());
        let key = keys("7").key(socket(1).ip(), socket(2).ip(), KeyEpoch::Zero);
        match noise.len() % 3 {
            0 => bytes.extend(&noise),
            1 => bytes.truncate((bytes.len().saturating_sub(cut)).max(48)),
            _ => bytes[at.min(150)] ^= noise.first().copied().unwrap_or(1),
        }
        bytes.truncate(bytes.len() / 8 * 8);
        envelope::seal(&mut bytes, key.as_ref());
        net.members[1].handle_datagram(&bytes, now_ns);
        let found = net.members[1].interval(now_ns + ROUND, &[web(0)]);
        prop_assert_eq!(found.len(), 1);
        prop_assert!(net.members[1].statuses(now_ns)[0].reals <= 1);
    }
}

#[test]
fn names_tell_reals_apart() {
    let vip = IpAddr::from([192, 0, 2, 1]);
    let real = |n| IpAddr::from([10, 0, 0, n]);
    let names = [
        real_name((vip, 80, 6), real(1)),
        real_name((vip, 80, 17), real(1)),
        real_name((vip, 81, 6), real(1)),
        real_name((vip, 80, 6), real(2)),
        real_name((real(1), 80, 6), vip),
    ];
    let distinct: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    assert_eq!(names[0], real_name((vip, 80, 6), real(1)));
}
