// SPDX-License-Identifier: Apache-2.0
//! One member's end.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::datagram::{self, Bodies, Challenge, FORM, SHARES_MAX};
use super::{PEERS_MAX, PeerKeys, RealName};
use crate::control::MeasuredInterval;
use crate::control::merge::{BalancerId, MeasuredTotals, Merged, Share};
use crate::cookie::CookieKey;
use crate::envelope::{self, Boot, Boots, Head, Reception, ReceptionCounts};
use crate::health::Votes;

/// A member that has been silent for this long has left.
pub const MEMBER_FRESH_NS: u64 = 1_000_000_000;
/// How long a share of a real holds: two datagrams with it may get lost.
pub const SHARE_FRESH_NS: u64 = 3_000_000_000;
/// How often a share is sent that has not changed.
const REFRESH_NS: u64 = 900_000_000;
/// Shares that a datagram holds.
pub const SHARES_OF_A_DATAGRAM: usize = SHARES_MAX;
/// Datagrams of one round to all members together, and to one: what does not fit comes in the
/// next round, the longest waiting first.
const ROUND_MAX: usize = 1024;
const ROUND_OF_A_MEMBER_MAX: usize = 64;
/// Least time between two challenges to a member.
const CHALLENGE_EVERY_NS: u64 = 50_000_000;
/// A member that starts knows no better weights than the configured ones: for this long it takes
/// those of the others, and sends none.
const JOINS_NS: u64 = 1_000_000_000;

/// What an interval brought of a real here.
#[derive(Debug, Clone, Copy)]
pub struct RealInterval {
    /// Which.
    pub name: RealName,
    /// What was measured.
    pub measured: MeasuredInterval,
    /// The weight that the controller gives it, as a part of the configured one.
    pub weight: Option<f64>,
    /// Whether it is found up.
    pub vote: Option<bool>,
}

/// The same as all members see it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RealOfAll {
    /// What all have measured since the last interval.
    pub measured: MeasuredInterval,
    /// Connections that are open at the others.
    pub others_active: u64,
    /// The mean of the weights that members give it, as parts of the configured one; `None` if no
    /// other sends one.
    pub weight: Option<f64>,
    /// What the others find.
    pub votes: Votes,
}

/// How the exchange with a member stands.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerStatus {
    /// Which.
    pub address: SocketAddr,
    /// Whether what it sends counts.
    pub live: bool,
    /// How long ago its last datagram came.
    pub heard_ns: Option<u64>,
    /// Datagrams to it.
    pub sent: u64,
    /// What became of its datagrams.
    pub received: Vec<(Reception, u64)>,
    /// Reals of which it sends shares.
    pub reals: usize,
    /// The real whose weights are furthest apart there and here, and by what part of the
    /// configured weight.
    pub farthest: Option<(RealName, f64)>,
}

/// One member's end of the exchange.
#[derive(Debug)]
pub struct PeerExchange {
    own: IpAddr,
    boot: Boot,
    keys: Option<PeerKeys>,
    boots: Boots,
    peers: BTreeMap<IpAddr, Peer>,
    next_id: BalancerId,
    /// The number of the first datagram to a new peer: it may have been one before, and knows the
    /// numbers of this boot.
    first: u64,
    reals: BTreeMap<RealName, SharedReal>,
    /// Totals of reals that are gone, and since when: others may still have them, and one that
    /// returns goes on from there.
    gone: BTreeMap<RealName, (MeasuredTotals, u64)>,
    begun_ns: Option<u64>,
    counts: ReceptionCounts,
    unknown_reals: u64,
    put_off: u64,
}

#[derive(Debug)]
struct Peer {
    id: BalancerId,
    address: SocketAddr,
    next: u64,
    heard_ns: Option<u64>,
    live: bool,
    /// The number to repeat in the next datagram, and which datagrams it answers.
    response: Option<u64>,
    answered: u64,
    challenged_ns: Option<u64>,
    sent: u64,
    counts: ReceptionCounts,
}

#[derive(Debug, Default)]
struct SharedReal {
    share: Share,
    /// As sent last, and when.
    told: Option<(Share, u64)>,
    merged: Merged,
}

impl PeerExchange {
    /// A member at this address. `boot` is of this start of the daemon: it counts from zero. The
    /// secret is random, so that no response that was recorded before fits a challenge of its.
    pub fn new(own: IpAddr, boot: Boot, secret: CookieKey) -> Self {
        Self {
            own,
            boot,
            keys: None,
            boots: Boots::new(secret),
            peers: BTreeMap::new(),
            next_id: 0,
            first: 1,
            reals: BTreeMap::new(),
            gone: BTreeMap::new(),
            begun_ns: None,
            counts: ReceptionCounts::default(),
            unknown_reals: 0,
            put_off: 0,
        }
    }

    /// Believes what is signed with these keys from now on; nothing without.
    pub fn set_keys(&mut self, keys: Option<PeerKeys>) {
        self.keys = keys;
    }

    /// Exchanges with these from now on. Its own address may be among them.
    pub fn set_members(&mut self, members: &[SocketAddr]) {
        let members = members.iter().filter(|member| member.ip() != self.own);
        let members: BTreeMap<IpAddr, SocketAddr> = members
            .map(|member| (member.ip(), *member))
            .take(PEERS_MAX)
            .collect();
        let gone: Vec<IpAddr> = self.peers.keys().copied().collect();
        for address in gone.into_iter().filter(|of| !members.contains_key(of)) {
            self.boots.forget(address);
            if let Some(peer) = self.peers.remove(&address) {
                self.first = self.first.max(peer.next);
                self.forget(peer.id);
            }
        }
        for (address, socket) in members {
            let (id, first) = (self.next_id, self.first);
            let peer = self.peers.entry(address).or_insert_with(|| Peer {
                id,
                address: socket,
                next: first,
                heard_ns: None,
                live: false,
                response: None,
                answered: first - 1,
                challenged_ns: None,
                sent: 0,
                counts: ReceptionCounts::default(),
            });
            peer.address = socket;
            self.next_id += u64::from(peer.id == id);
        }
    }

    /// Ends a control interval: takes what it brought here of every real, and gives the same of
    /// all members, in the same order. Reals that are not among these are forgotten, but for their
    /// totals, and these as soon as no member has them.
    pub fn interval(&mut self, now_ns: u64, reals: &[RealInterval]) -> Vec<RealOfAll> {
        self.look(now_ns);
        let begun_ns = *self.begun_ns.get_or_insert(now_ns);
        let tells_weights = now_ns.saturating_sub(begun_ns) >= JOINS_NS;
        let balancers = 1 + self.live().count();
        let mut former = std::mem::take(&mut self.reals);
        let of_all = reals.iter().map(|of| {
            let gone = self.gone.remove(&of.name);
            let known = former.remove(&of.name);
            let mut real = known.unwrap_or_else(|| SharedReal::after(gone));
            real.share.totals.add(&of.measured);
            real.share.active = u32::try_from(of.measured.counts.active).unwrap_or(u32::MAX);
            real.share.weight_millionths = of.weight.filter(|_| tells_weights).map(millionths);
            real.share.vote = of.vote;
            let found = real.of_all(&of.measured, balancers);
            self.reals.insert(of.name, real);
            found
        });
        let of_all = of_all.collect();
        let gone = former.into_iter();
        self.gone
            .extend(gone.map(|(name, real)| (name, (real.share.totals, now_ns))));
        of_all
    }

    /// Has members leave that are silent, and what is too old.
    fn look(&mut self, now_ns: u64) {
        let mut gone = Vec::new();
        for peer in self.peers.values_mut() {
            let heard = |at_ns: u64| now_ns.saturating_sub(at_ns) <= MEMBER_FRESH_NS;
            if peer.live && !peer.heard_ns.is_some_and(heard) {
                peer.live = false;
                gone.push(peer.id);
            }
        }
        gone.into_iter().for_each(|id| self.forget(id));
        let before_ns = now_ns.saturating_sub(SHARE_FRESH_NS);
        for real in self.reals.values_mut() {
            real.merged.forget_before(before_ns);
        }
        // They forget later than this one: by an interval, and by what datagrams take.
        let before_ns = now_ns.saturating_sub(2 * SHARE_FRESH_NS);
        self.gone.retain(|_, (_, at_ns)| *at_ns >= before_ns);
    }

    fn forget(&mut self, id: BalancerId) {
        for real in self.reals.values_mut() {
            real.merged.forget(id);
        }
    }

    /// The members that are there, but for this one.
    pub fn live(&self) -> impl Iterator<Item = IpAddr> {
        let live = self.peers.iter().filter(|(_, peer)| peer.live);
        live.map(|(address, _)| *address)
    }

    /// The datagrams of a round, ten of which are due a second.
    pub fn transmits(&mut self, now_ns: u64) -> Vec<(SocketAddr, Vec<u8>)> {
        let Some(keys) = &self.keys else {
            return Vec::new();
        };
        let mut due: Vec<(&RealName, &mut SharedReal)> = self.reals.iter_mut().collect();
        due.retain(|(_, real)| real.is_due(now_ns));
        due.sort_by_key(|(_, real)| (Reverse(real.votes_anew()), real.told.map(|(_, at)| at)));
        let each = (ROUND_MAX / self.peers.len().max(1)).clamp(1, ROUND_OF_A_MEMBER_MAX);
        let room = each * SHARES_MAX;
        self.put_off += due.len().saturating_sub(room) as u64;
        let told: Vec<(RealName, Share)> = due
            .into_iter()
            .take(room)
            .map(|(name, real)| {
                real.told = Some((real.share, now_ns));
                (*name, real.share)
            })
            .collect();
        let mut parts: Vec<Vec<u8>> = told.chunks(SHARES_MAX).map(datagram::shares).collect();
        if parts.is_empty() {
            // One that has nothing to report sends a datagram all the same.
            parts.push(Vec::new());
        }
        let mut transmits = Vec::with_capacity(parts.len() * self.peers.len());
        for (to, peer) in &mut self.peers {
            let key = keys.key(self.own, *to, keys.current);
            for part in &parts {
                let response = peer.response.take().map(datagram::response);
                let response = response.unwrap_or_default();
                let bodies = [part.as_slice(), &response];
                let head = peer.head(self.own, self.boot);
                transmits.push((peer.address, write(&head, keys, key.as_ref(), bodies)));
            }
        }
        transmits
    }

    /// Takes a datagram in that came at `now_ns`; gives what is to be sent in answer, where its
    /// sender is first to show that it is alive.
    pub fn handle_datagram(
        &mut self,
        datagram: &[u8],
        now_ns: u64,
    ) -> (Reception, Option<(SocketAddr, Vec<u8>)>) {
        let opened = envelope::open(datagram, FORM, |sender, epoch| {
            // Only a member's key can be known.
            let known = self.peers.contains_key(&sender);
            let keys = self.keys.as_ref().filter(|_| known)?;
            keys.key(sender, self.own, epoch)
        });
        let outcome = opened.and_then(|(head, bodies)| Ok((head, Bodies::decode(bodies)?)));
        let (outcome, sender) = match outcome {
            Ok((head, bodies)) => {
                let taken = self.take(&head, bodies, now_ns);
                (taken.err().unwrap_or(Reception::Taken), Some(head))
            }
            Err(refused) => (refused, None),
        };
        self.counts.add(outcome);
        let address = envelope::address(datagram, 16);
        if let Some(peer) = address.and_then(|of| self.peers.get_mut(&of)) {
            peer.counts.add(outcome);
        }
        let answer = match (outcome, sender) {
            (Reception::Unproven, Some(head)) => self.challenge(&head, now_ns),
            _ => None,
        };
        (outcome, answer)
    }

    fn take(&mut self, head: &Head, bodies: Bodies, now_ns: u64) -> Result<(), Reception> {
        let peer = self.peers.get_mut(&head.sender).ok_or(Reception::NoKey)?;
        if let Some(challenge) = bodies.challenge {
            return match peer.answers(&challenge, self.boot) {
                true => Ok(()),
                false => Err(Reception::Replayed),
            };
        }
        let responds = |number| bodies.response == Some(number);
        let begins_anew = self.boots.admit(head, now_ns, responds)?;
        (peer.heard_ns, peer.live) = (Some(now_ns), true);
        let id = peer.id;
        if begins_anew {
            self.forget(id);
        }
        let (mut newer, mut known) = (bodies.shares.is_empty(), false);
        for (name, share) in bodies.shares {
            match self.reals.get_mut(&name) {
                Some(real) => {
                    known = true;
                    newer |= real.merged.put(id, head.sequence, share, now_ns);
                }
                None => self.unknown_reals += 1,
            }
        }
        match known && !newer {
            true => Err(Reception::Late),
            false => Ok(()),
        }
    }

    fn challenge(&mut self, of: &Head, now_ns: u64) -> Option<(SocketAddr, Vec<u8>)> {
        let number = self.boots.challenge(of, now_ns);
        let keys = self.keys.as_ref()?;
        let peer = self.peers.get_mut(&of.sender)?;
        let lately = |at_ns: u64| now_ns.saturating_sub(at_ns) < CHALLENGE_EVERY_NS;
        if peer.challenged_ns.is_some_and(lately) {
            return None;
        }
        peer.challenged_ns = Some(now_ns);
        let challenge = Challenge {
            boot: of.boot,
            sequence: of.sequence,
            number,
        };
        let key = keys.key(self.own, of.sender, keys.current);
        let head = peer.head(self.own, self.boot);
        let challenge = challenge.encode();
        let bodies = [challenge.as_slice(), &[]];
        Some((peer.address, write(&head, keys, key.as_ref(), bodies)))
    }

    /// What became of all datagrams.
    pub fn counts(&self) -> impl Iterator<Item = (Reception, u64)> + use<> {
        self.counts.each()
    }

    /// Shares of reals that are unknown here, and shares that waited for a later round.
    pub fn left_out(&self) -> (u64, u64) {
        (self.unknown_reals, self.put_off)
    }

    /// How the exchange stands, by member.
    pub fn statuses(&self, now_ns: u64) -> Vec<PeerStatus> {
        let peers = self.peers.values();
        let status = |peer: &Peer| {
            let shares = || {
                self.reals.iter().filter_map(|(name, real)| {
                    let share = real.merged.share(peer.id)?;
                    Some((*name, real, share))
                })
            };
            let apart = shares().filter_map(|(name, real, share)| {
                let (own, other) = real.share.weight_millionths.zip(share.weight_millionths)?;
                Some((name, f64::from(own.abs_diff(other)) / 1e6))
            });
            PeerStatus {
                address: peer.address,
                live: peer.live,
                heard_ns: peer.heard_ns.map(|at_ns| now_ns.saturating_sub(at_ns)),
                sent: peer.sent,
                received: peer.counts.each().collect(),
                reals: shares().count(),
                farthest: apart.max_by(|a, b| a.1.total_cmp(&b.1)),
            }
        };
        peers.map(status).collect()
    }
}

impl Peer {
    /// Of the next datagram to it.
    fn head(&mut self, own: IpAddr, boot: Boot) -> Head {
        let sequence = self.next;
        self.next += 1;
        self.sent += 1;
        Head {
            sender: own,
            boot,
            sequence,
        }
    }

    /// Takes a challenge that answers a datagram newer than those answered before: whether it
    /// is one.
    fn answers(&mut self, challenge: &Challenge, boot: Boot) -> bool {
        let sequence = challenge.sequence;
        let fresh = challenge.boot == boot && sequence > self.answered && sequence < self.next;
        if fresh {
            self.answered = sequence;
            self.response = Some(challenge.number);
        }
        fresh
    }
}

impl SharedReal {
    /// One that returns, with the totals that it had.
    fn after(gone: Option<(MeasuredTotals, u64)>) -> Self {
        let mut real = Self::default();
        if let Some((totals, _)) = gone {
            real.share.totals = totals;
        }
        real
    }

    fn of_all(&mut self, own: &MeasuredInterval, balancers: usize) -> RealOfAll {
        let others = self.merged.take();
        let mut votes = Votes {
            balancers,
            ..Votes::default()
        };
        let (mut weights, mut sum) = (0_u32, 0.0);
        for share in self.merged.shares() {
            votes.up += usize::from(share.vote == Some(true));
            votes.down += usize::from(share.vote == Some(false));
            if let Some(weight) = share.weight_millionths {
                weights += 1;
                sum += f64::from(weight) / 1e6;
            }
        }
        let others_tell = weights > 0;
        if let Some(weight) = self.share.weight_millionths {
            weights += 1;
            sum += f64::from(weight) / 1e6;
        }
        RealOfAll {
            measured: own.and(others),
            others_active: others.counts.active,
            weight: others_tell.then(|| sum / f64::from(weights)),
            votes,
        }
    }

    fn is_due(&self, now_ns: u64) -> bool {
        self.told.is_none_or(|(told, at_ns)| {
            told != self.share || now_ns.saturating_sub(at_ns) >= REFRESH_NS
        })
    }

    /// Whether what it is voted has changed: that comes first.
    fn votes_anew(&self) -> bool {
        let told: Option<&Share> = self.told.as_ref().map(|(told, _)| told);
        self.share.vote != told.and_then(|told| told.vote)
    }
}

fn write(head: &Head, keys: &PeerKeys, key: Option<&CookieKey>, bodies: [&[u8]; 2]) -> Vec<u8> {
    let mut bytes = head.begin(FORM, keys.current);
    bodies.iter().for_each(|body| bytes.extend(*body));
    envelope::seal(&mut bytes, key);
    bytes
}

fn millionths(part: f64) -> u32 {
    // No weight is four thousand times the configured one.
    (part * 1e6).round().clamp(0.0, 4e9) as u32
}
