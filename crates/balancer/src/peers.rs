// SPDX-License-Identifier: Apache-2.0
//! What the balancers of the same VIPs send each other (`[peers]`): each steers by what all have
//! measured, and a real is up or down by a vote.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use causeway_api::Moment;
use causeway_api::balancer::VotesView;
use causeway_api::fleet::{PeerView, PeersView};
use causeway_core::agent_report::{Boot, DATAGRAM_MAX, Reception};
use causeway_core::control::MeasuredInterval;
use causeway_core::cookie::CookieKey;
use causeway_core::health::{self, Check, HealthState, PROBERS, Votes};
use causeway_core::peer::{PeerExchange, RealInterval, RealName, RealOfAll, real_name};
use causeway_dataplane::RealId;
use tracing::{info, warn};

use super::pool::Pool;
use crate::config::{PeersConfig, RealConfig, VipConfig};

/// From one round of datagrams to the next.
const ROUND: Duration = Duration::from_millis(100);
/// Pause after an error, so that a lasting one does not keep a core busy.
const PAUSE: Duration = Duration::from_millis(100);

/// What this balancer's probes have found, by real.
type Checks = HashMap<RealId, Check>;

/// One member's end of the exchange; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct PeerLink(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    own: SocketAddr,
    exchange: Mutex<PeerExchange>,
    /// Datagrams that the system did not take.
    unsent: AtomicU64,
}

impl PeerLink {
    fn new(own: SocketAddr) -> Self {
        let random = RandomState::new(); // the system's random numbers, by a SipHash
        let secret = CookieKey::from_words([0_u64, 1].map(|word| random.hash_one(word)));
        let boot = Boot {
            time_s: (Moment::now().realtime_ns / 1_000_000_000) as u32,
            id: random.hash_one(2_u64) as u32,
        };
        Self(Arc::new(Shared {
            own,
            exchange: Mutex::new(PeerExchange::new(own.ip(), boot, secret)),
            unsent: AtomicU64::new(0),
        }))
    }

    /// Whole after every statement.
    pub(super) fn exchange(&self) -> MutexGuard<'_, PeerExchange> {
        let exchange = self.0.exchange.lock();
        exchange.unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a round.
    fn send(&self, socket: &UdpSocket) {
        let round = self.exchange().transmits(Moment::now().monotonic_ns);
        for (to, datagram) in round {
            self.send_to(socket, to, &datagram);
        }
    }

    /// What is lost is sent again in the next round.
    fn send_to(&self, socket: &UdpSocket, to: SocketAddr, datagram: &[u8]) {
        if socket.send_to(datagram, to).is_err() {
            self.0.unsent.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What the engine knows by its peers.
#[derive(Debug, Default)]
pub struct PeerSteering {
    link: Option<PeerLink>,
    /// The members that were there at the last interval.
    live: Vec<IpAddr>,
    reals: HashMap<RealId, OfPeers>,
}

/// What they report of a real.
#[derive(Debug, Clone, Copy)]
struct OfPeers {
    probes: bool,
    votes: Votes,
    active: u64,
    /// The state by their votes alone. Members that fall silent take their votes with them, but not
    /// what they have found: that holds until it is found otherwise.
    found: HealthState,
    /// As it was logged.
    told: HealthState,
}

impl PeerSteering {
    /// Exchanges as configured from now on.
    pub(super) fn follow(&mut self, config: Option<&PeersConfig>) {
        let Some(config) = config else { return };
        let link = self
            .link
            .get_or_insert_with(|| PeerLink::new(config.listen));
        let mut exchange = link.exchange();
        exchange.set_keys(Some(config.keys.clone()));
        exchange.set_members(&config.members);
    }

    /// This balancer's end, if it has peers.
    pub(crate) fn link(&self) -> Option<&PeerLink> {
        self.link.as_ref()
    }

    /// Forgets a real: the next one may have its id before the votes on it are in.
    pub(super) fn forget(&mut self, real: RealId) {
        self.reals.remove(&real);
    }

    /// Connections to a real that are open at other balancers.
    pub(super) fn active(&self, real: RealId) -> u64 {
        self.reals.get(&real).map_or(0, |of| of.active)
    }

    /// Balancers that are there, this one included.
    pub(super) fn balancers(&self) -> usize {
        1 + self.live.len()
    }

    /// Whether a real is probed from here: if it is one of this balancer's, and as long as it is
    /// down by what is seen here, for no other member can say when that is over.
    pub(super) fn probes(&self, real: RealId, own: HealthState) -> bool {
        own == HealthState::Down || self.reals.get(&real).is_none_or(|of| of.probes)
    }

    /// The state of a real of which this balancer has found out `own`.
    pub(super) fn decide(&self, real: RealId, own: HealthState) -> HealthState {
        let Some(of) = self.reals.get(&real) else {
            return own;
        };
        // What a former duty found is old.
        let own = match of.probes || own == HealthState::Down {
            true => own,
            false => HealthState::Unknown,
        };
        match of.votes.decide(own) {
            HealthState::Unknown => of.found,
            state => state,
        }
    }

    /// How the vote on a real stands.
    pub(crate) fn votes(&self, real: RealId) -> Option<VotesView> {
        let of = self.reals.get(&real)?;
        Some(VotesView {
            up: of.votes.up,
            down: of.votes.down,
            voters: of.votes.balancers.min(PROBERS),
            probed_here: of.probes,
        })
    }
}

impl PeerSteering {
    /// Tells the others what an interval has brought of the reals of each pool, and takes what all
    /// balancers of them have measured, in the same order; `None`: there are no others. Checks whose
    /// duty passes to this balancer begin as the others find.
    pub(super) fn exchange(
        &mut self,
        now_ns: u64,
        pools: &[Pool],
        checks: &mut Checks,
        measured: &[Vec<MeasuredInterval>],
    ) -> Option<Vec<RealOfAll>> {
        let link = self.link.clone()?;
        let intervals = self.intervals(pools, checks, measured);
        let (of_all, live) = {
            let mut exchange = link.exchange();
            let of_all = exchange.interval(now_ns, &intervals);
            (of_all, exchange.live().collect::<Vec<IpAddr>>())
        };
        let own = link.0.own.ip();
        self.take_votes(now_ns, (own, live), pools, checks, &intervals, &of_all);
        Some(of_all)
    }

    fn intervals(
        &self,
        pools: &[Pool],
        checks: &Checks,
        measured: &[Vec<MeasuredInterval>],
    ) -> Vec<RealInterval> {
        let pools = pools.iter().zip(measured);
        let of_pool = |(pool, measured): (&Pool, &Vec<MeasuredInterval>)| {
            let weights = pool.relative_weights();
            let members = pool.members().zip(measured).zip(weights);
            let intervals = members.map(|(((real, member), measured), weight)| RealInterval {
                name: name_of(pool.vip(), real),
                measured: *measured,
                weight,
                vote: self.vote(member.id, checks),
            });
            intervals.collect::<Vec<_>>()
        };
        pools.flat_map(of_pool).collect()
    }

    /// What this balancer finds of a real that it is to probe.
    fn vote(&self, real: RealId, checks: &Checks) -> Option<bool> {
        let known = self.reals.get(&real);
        let check = known.filter(|of| of.probes).and(checks.get(&real))?;
        match check.state() {
            HealthState::Up => Some(true),
            HealthState::Down => Some(false),
            HealthState::Unknown => None,
        }
    }

    /// Takes the votes of an interval, and who probes which real from now on.
    fn take_votes(
        &mut self,
        now_ns: u64,
        (own, live): (IpAddr, Vec<IpAddr>),
        pools: &[Pool],
        checks: &mut Checks,
        intervals: &[RealInterval],
        of_all: &[RealOfAll],
    ) {
        tell_members(&self.live, &live);
        let same = self.live == live;
        self.live = live;
        let mut former = std::mem::take(&mut self.reals);
        let mut intervals = intervals.iter().zip(of_all);
        for pool in pools {
            for ((_, member), (interval, of_all)) in pool.members().zip(intervals.by_ref()) {
                let before = former.remove(&member.id);
                let probes = match before {
                    Some(before) if same => before.probes,
                    _ => health::probes(own, self.live.iter().copied(), interval.name),
                };
                let told = before.map_or(HealthState::Unknown, |before| before.told);
                // What is not probed, as in maintenance, is to be found anew.
                let is_probed = checks.contains_key(&member.id);
                let held = before.filter(|_| is_probed);
                let own = held.filter(|before| before.probes);
                let own = own.and_then(|_| Some(checks.get(&member.id)?.state()));
                let found = [of_all.votes.decide(HealthState::Unknown)]
                    .into_iter()
                    .chain(own)
                    .chain(held.map(|before| before.found))
                    .find(|found| *found != HealthState::Unknown)
                    .unwrap_or(HealthState::Unknown);
                let of = OfPeers {
                    probes,
                    votes: of_all.votes,
                    active: of_all.others_active,
                    found,
                    told,
                };
                // What a former duty found is old: its successor begins as the others find.
                let begins = probes && before.is_some_and(|before| !before.probes);
                if let (true, Some(check), Some(health)) =
                    (begins, checks.get_mut(&member.id), &pool.vip().health)
                    && check.state() != HealthState::Down
                {
                    let anew = Check::new(health.params, now_ns, u64::from(member.id));
                    *check = match of.found == HealthState::Down {
                        true => anew.beginning_down("the other balancers find it down"),
                        false => anew,
                    };
                }
                self.reals.insert(member.id, of);
            }
        }
    }

    /// Says what the vote has decided otherwise than the own check.
    pub(super) fn tell_votes(&mut self, pools: &[Pool], checks: &Checks) {
        let pools = pools.iter();
        let probed = pools.filter(|pool| pool.vip().health.is_some());
        for pool in probed {
            for (real, member) in pool.members() {
                let Some(check) = checks.get(&member.id) else {
                    continue;
                };
                let found = self.decide(member.id, check.state());
                let Some(of) = self.reals.get_mut(&member.id) else {
                    continue;
                };
                let before = std::mem::replace(&mut of.told, found);
                if before == found || found == check.state() {
                    continue;
                }
                let (name, votes) = (&pool.vip().name, of.votes);
                let line = format!(
                    "{name} {}: {before} -> {found} by vote: {} of the other balancers find it up, {} down",
                    real.address, votes.up, votes.down
                );
                match found {
                    HealthState::Down => warn!("{line}"),
                    _ => info!("{line}"),
                }
            }
        }
    }

    /// How the exchange stands.
    pub(crate) fn view(&self, pools: &[Pool], now_ns: u64) -> PeersView {
        let Some(link) = self.link() else {
            return PeersView::default();
        };
        let exchange = link.exchange();
        let names: HashMap<RealName, String> = pools
            .iter()
            .flat_map(|pool| pool.members().map(move |(real, _)| (pool.vip(), real)))
            .map(|(vip, real)| {
                let shown = format!("{} {}", vip.name, real.address);
                (name_of(vip, real), shown)
            })
            .collect();
        let members = exchange.statuses(now_ns).into_iter().map(|of| {
            let taken = |(outcome, _): &&(Reception, u64)| *outcome == Reception::Taken;
            PeerView {
                address: of.address.to_string(),
                live: of.live,
                heard_s: of.heard_ns.map(|ns| ns as f64 / 1e9),
                sent: of.sent,
                received: of
                    .received
                    .iter()
                    .find(taken)
                    .map_or(0, |(_, count)| *count),
                dropped: of
                    .received
                    .iter()
                    .filter(|of| !taken(of) && of.1 > 0)
                    .map(|(outcome, count)| (outcome.as_str().to_owned(), *count))
                    .collect(),
                reals: of.reals,
                weights_apart: of.farthest.map(|(_, apart)| apart),
                farthest_real: of.farthest.and_then(|(name, _)| names.get(&name).cloned()),
            }
        });
        let (unknown_reals, put_off) = exchange.left_out();
        PeersView {
            own: Some(link.0.own.to_string()),
            members: members.collect(),
            results: exchange
                .counts()
                .map(|(outcome, count)| (outcome.as_str().to_owned(), count))
                .collect(),
            unknown_reals,
            put_off,
            unsent: link.0.unsent.load(Ordering::Relaxed),
        }
    }
}

/// Says who has come and gone.
fn tell_members(before: &[IpAddr], now: &[IpAddr]) {
    let all = now.len() + 1;
    for member in now.iter().filter(|one| !before.contains(one)) {
        info!("measurements from balancer {member}: {all} steer together");
    }
    for member in before.iter().filter(|one| !now.contains(one)) {
        warn!("no measurements from balancer {member} any more: {all} steer together");
    }
}

fn name_of(vip: &VipConfig, real: &RealConfig) -> RealName {
    let vip = (vip.address, vip.port, vip.protocol as u8);
    real_name(vip, real.address)
}

/// The socket of the exchange.
pub(crate) struct PeerSocket {
    socket: UdpSocket,
}

impl PeerSocket {
    /// Takes the address.
    ///
    /// # Errors
    /// If it is not this machine's, or taken.
    pub(crate) fn bind(address: SocketAddr) -> anyhow::Result<Self> {
        let socket = UdpSocket::bind(address).with_context(|| {
            format!("cannot listen for other balancers on {address} (peers.listen)")
        })?;
        Ok(Self { socket })
    }

    /// Sends and receives from now on, on threads that end with the process.
    pub(crate) fn serve(self, link: &PeerLink) -> std::io::Result<()> {
        let sends = self.socket.try_clone()?;
        let sender = link.clone();
        thread::Builder::new()
            .name("peers-send".to_owned())
            .spawn(move || {
                loop {
                    sender.send(&sends);
                    thread::sleep(ROUND);
                }
            })?;
        let receiver = link.clone();
        thread::Builder::new()
            .name("peers".to_owned())
            .spawn(move || self.receive(&receiver))?;
        Ok(())
    }

    fn receive(&self, link: &PeerLink) {
        // One byte more than the longest: a longer datagram is seen to be one.
        let mut buffer = [0; DATAGRAM_MAX + 1];
        loop {
            let length = match self.socket.recv_from(&mut buffer) {
                Ok((length, _)) => length,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // A member that is gone answers with an ICMP error: no news.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(error) => {
                    warn!("cannot receive measurements of other balancers: {error}");
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            let now_ns = Moment::now().monotonic_ns;
            let (_, answer) = link.exchange().handle_datagram(&buffer[..length], now_ns);
            if let Some((to, answer)) = answer {
                link.send_to(&self.socket, to, &answer);
            }
        }
    }
}
