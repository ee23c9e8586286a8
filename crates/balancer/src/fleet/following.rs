// SPDX-License-Identifier: Apache-2.0
//! The engine of a member: its configuration as the fleet's book has it, which says what id a
//! real has and whether it may be picked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use causeway_api::balancer::RealChange;
use causeway_api::fleet::FleetView;
use causeway_core::cookie::{CookieKey, CookieLayout, Keys};
use causeway_core::fleet::{
    CIDS_OF_FILES, CidForm, CidPhases, FleetBook, FleetVip, FleetVipReal, HandState, IdPhase,
    IdRecord, KeyNumber, KeyPhases, MemberPhase, Removal,
};
use causeway_dataplane::Forwarding;

use super::secrets::{CidsOfVips, epoch_of};
use crate::by_hand::{ByHand, put};
use crate::config::{BalancerConfig, MacAddress, RealConfig, RealRole, VipConfig, quic};
use crate::engine::{Engine, EngineError};
use crate::state_dir::{KeptReal, SetByHand};

/// A VIP by address, port and protocol, and a real of it.
pub(crate) type RealKey = (Arc<str>, IpAddr);

/// VIPs with their reals, by name.
pub(super) type Vips = BTreeMap<Arc<str>, FleetVip>;

/// What the data plane follows.
#[derive(Debug, Clone)]
pub(crate) struct Following {
    pub book: Arc<FleetBook>,
    /// The keys of cookies that the book accepts, where the file has any.
    pub keys: Option<Keys>,
    /// The configurations of connection ids that it accepts.
    pub cids: CidsOfVips,
}

impl Following {
    /// Keys by which cookies may have been issued, by number. One that is accepted before it is
    /// issued is none of them.
    pub(super) fn keys_in_use(&self) -> BTreeMap<KeyNumber, CookieKey> {
        let Self { book, keys, .. } = self;
        let former = book.keys.other.filter(|other| *other < book.keys.issued);
        let numbers = [Some(book.keys.issued), former].into_iter().flatten();
        let key = |number| Some((number, *keys.as_ref()?.get(epoch_of(number))?));
        numbers.filter_map(key).collect()
    }
}

/// Whether VIPs may be announced to routers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Service {
    /// A balancer that the fleet does not know yet: it goes on as it did without.
    #[default]
    AsBefore,
    /// They may.
    In,
    /// They are still, and are to prefer others.
    Leaving,
    /// They may not.
    Out,
}

/// What being a member means to the engine.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    /// `None` until there is a book: the file holds until then.
    pub following: Option<Following>,
    pub service: Service,
    /// When it steps aside, CLOCK_MONOTONIC, unless it is told of a later time: a store that does not
    /// answer must not keep it from that.
    pub steps_aside_ns: Option<u64>,
    /// What is set by hand here, and not in the book yet.
    pub wants: BTreeMap<RealKey, HandState>,
    /// Whether the file, or what is set by hand, may be another since the fleet was asked.
    pub told: bool,
    /// What discovery had found, by what the fleet was told of it.
    pub found: Vec<KeptReal>,
    /// What the file that was read last takes away: it is refused until that is confirmed.
    pub held: Vec<Removal>,
    /// How the fleet stood when it was looked at last.
    pub view: FleetView,
}

impl Membership {
    /// Whether there may be something new for the fleet since this was asked last.
    pub(super) fn take_told(&mut self) -> bool {
        std::mem::take(&mut self.told)
    }

    /// What a former daemon had found, with what its own file has lost of that.
    pub(crate) fn with_told(&mut self, mut found: Vec<KeptReal>) -> Vec<KeptReal> {
        for told in std::mem::take(&mut self.found) {
            let is_it = |of: &KeptReal| {
                of.vip == told.vip && of.real.get("address") == told.real.get("address")
            };
            if !found.iter().any(is_it) {
                found.push(told);
            }
        }
        found
    }
}

impl Engine {
    /// Has the data plane follow a book from now on, or leaves everything as it was.
    pub(crate) fn follow(&mut self, following: Following) -> Result<(), EngineError> {
        let Some(membership) = &mut self.fleet else {
            return Ok(());
        };
        let before = membership.following.replace(following);
        let outcome = self.take_book();
        if let (Err(_), Some(membership)) = (&outcome, &mut self.fleet) {
            membership.following = before;
        }
        outcome
    }

    fn take_book(&mut self) -> Result<(), EngineError> {
        let by_hand = self.by_hand_of_fleet();
        let config = self.in_force(&self.file, &by_hand)?.0;
        let stale = self.held_otherwise(&config)?;
        if !stale.is_empty() {
            // Only a balancer that was out of service finds an id with another real: it
            // forgets both before it takes the book.
            let mut without = config.clone();
            for vip in &mut without.vips {
                let endpoint: Arc<str> = vip.endpoint().into();
                let stays = |real: &RealConfig| !stale.contains(&(endpoint.clone(), real.address));
                vip.reals.retain(stays);
            }
            self.replace(without)?;
        }
        self.replace(config)?;
        self.by_hand = by_hand;
        Ok(())
    }

    /// Reals that have an id in the data plane that another is to have, and the others.
    fn held_otherwise(&self, config: &BalancerConfig) -> anyhow::Result<BTreeSet<RealKey>> {
        let mut stale = BTreeSet::new();
        let present = self.plane.vips()?;
        for vip in config.vips.iter().filter(|vip| is_of_fleet(vip)) {
            let Some((id, _)) = present.iter().find(|(_, known)| *known == vip.key()) else {
                continue;
            };
            let endpoint: Arc<str> = vip.endpoint().into();
            let held = self.plane.cookie_ids(*id)?.held;
            for (held, _) in held.iter().filter(|(_, owner)| owner.is_some()) {
                let mut reals = vip.reals.iter();
                let to_have = reals.find(|real| real.id == Some(held.id));
                if let Some(real) = to_have.filter(|real| real.address != held.address) {
                    stale.insert((endpoint.clone(), held.address));
                    stale.insert((endpoint.clone(), real.address));
                }
            }
        }
        Ok(stale)
    }

    /// A file with what is set by hand and, if a book is followed, as that has it; and what of
    /// the former is left.
    pub(crate) fn in_force(
        &self,
        file: &BalancerConfig,
        by_hand: &ByHand,
    ) -> Result<(BalancerConfig, ByHand), EngineError> {
        let (config, left) = by_hand.over(file);
        let following = self
            .fleet
            .as_ref()
            .and_then(|fleet| fleet.following.as_ref());
        let Some(following) = following else {
            return Ok((config, left));
        };
        let mac_of = |vip: &VipConfig, address: IpAddr| {
            let id = self.plane.vip_id(&vip.key())?;
            match self.plane.real_at(id, address)?.1.forwarding {
                Forwarding::L2(mac) => Some(MacAddress(mac)),
                Forwarding::Ipip | Forwarding::Gue => None,
            }
        };
        let config = over(config, &self.config, mac_of, by_hand, following);
        let config = config.map_err(EngineError::Conflict)?;
        // The book keeps what is set by hand, whatever a file says.
        Ok((config, by_hand.clone()))
    }

    /// What is set by hand in the book, and here.
    pub(crate) fn by_hand_of_fleet(&self) -> ByHand {
        let Some(Membership {
            following: Some(following),
            wants,
            ..
        }) = &self.fleet
        else {
            return self.by_hand.clone();
        };
        let mut states = following.book.by_hand.clone();
        states.extend(wants.iter().map(|(of, state)| (of.clone(), *state)));
        states.retain(|_, state| *state != HandState::default());
        let since_ns = |vip: &str, real: IpAddr| {
            let known = self.by_hand.of(vip, real);
            known.map_or_else(|| self.realtime_ns(), |set| set.since_ns)
        };
        let set = |((vip, real), state): ((Arc<str>, IpAddr), HandState)| SetByHand {
            since_ns: since_ns(&vip, real),
            vip: vip.to_string(),
            real,
            set: RealChange {
                drain: state.drain,
                maintenance: state.maintenance,
                weight: state.weight,
            },
        };
        ByHand::new(states.into_iter().map(set).collect())
    }

    /// What has been dropped here, and has still to be dropped from the book.
    pub(crate) fn dropped_by_hand(&self) -> Vec<SetByHand> {
        let wants = self.fleet.iter().flat_map(|fleet| &fleet.wants);
        let dropped = wants.filter(|(_, state)| **state == HandState::default());
        let none = |((vip, real), _): (&RealKey, &HandState)| SetByHand {
            vip: vip.to_string(),
            real: *real,
            set: RealChange::default(),
            since_ns: 0,
        };
        dropped.map(none).collect()
    }

    /// Puts what is set by hand here into force, and has it written to the book.
    ///
    /// It holds here at once, store or none: a real whose id not all know is not picked even so.
    pub(crate) fn want_by_hand(
        &mut self,
        states: impl IntoIterator<Item = (RealKey, RealChange)>,
    ) -> Result<(), EngineError> {
        let Some(membership) = &mut self.fleet else {
            return Ok(());
        };
        let before = membership.wants.clone();
        for (of, set) in states {
            membership.wants.insert(of, state_of(&set));
        }
        let by_hand = self.by_hand_of_fleet();
        let taken = self
            .in_force(&self.file, &by_hand)
            .and_then(|(config, _)| self.replace(config));
        match taken {
            Ok(()) => {
                self.by_hand = by_hand;
                self.tell_fleet();
            }
            Err(_) => {
                if let Some(membership) = &mut self.fleet {
                    membership.wants = before;
                }
            }
        }
        taken
    }

    /// Has the fleet look at the file and at what is set by hand.
    pub(crate) fn tell_fleet(&mut self) {
        if let Some(membership) = &mut self.fleet {
            membership.told = true;
        }
    }

    /// Whether VIPs may be announced to routers.
    pub(crate) fn service_at(&self, now_ns: u64) -> Service {
        let fleet = self.fleet.as_ref();
        let steps_aside = fleet.and_then(|fleet| fleet.steps_aside_ns);
        match self.service() {
            Service::In if steps_aside.is_some_and(|at| now_ns >= at) => Service::Out,
            service => service,
        }
    }

    /// The same as the fleet has told it last.
    pub(crate) fn service(&self) -> Service {
        self.fleet
            .as_ref()
            .map_or(Service::In, |fleet| fleet.service)
    }

    /// Whether a book says which reals there are.
    pub(crate) fn follows_book(&self) -> bool {
        let fleet = self.fleet.as_ref();
        fleet.is_some_and(|fleet| fleet.following.is_some())
    }

    /// Refuses what the next book would undo.
    pub(crate) fn goes_by_itself(&self) -> Result<(), EngineError> {
        match self.fleet {
            None => Ok(()),
            Some(_) => Err(EngineError::Conflict(
                "this balancer is a member of a fleet, whose VIPs and reals are those of its file and of the fleet's book; change the file and reload".to_owned(),
            )),
        }
    }

    /// A book in which everything is as it runs here: the first of a fleet.
    pub(super) fn first_book(&self, mut book: FleetBook) -> anyhow::Result<FleetBook> {
        book.vips = vips_of(&self.file);
        let since = book.position;
        for vip in self.file.vips.iter().filter(|vip| is_of_fleet(vip)) {
            if let Some(route) = vip.quic.last() {
                let phases = KeyPhases {
                    issued: CIDS_OF_FILES + 1,
                    other: (vip.quic.len() > 1).then_some(CIDS_OF_FILES),
                    since,
                };
                let form = CidForm::of(route.config());
                let forms = [(phases.issued, form)].into();
                book.cids
                    .insert(vip.endpoint().into(), CidPhases { phases, forms });
            }
        }
        for pool in self.pools.iter().filter(|pool| is_of_fleet(pool.vip())) {
            let held = self.plane.cookie_ids(pool.id())?;
            let vip: Arc<str> = pool.vip().endpoint().into();
            for (real, member) in pool.members() {
                let of_real = held.of_real(member.id);
                let named = real.id.filter(|id| of_real.contains(id));
                if let Some(id) = named.or(of_real.last().copied()) {
                    let record = IdRecord {
                        real: real.address,
                        phase: IdPhase::Live,
                        since,
                        agent: has_agents(&self.file),
                    };
                    book.ids.insert((vip.clone(), id), record);
                }
            }
        }
        if let Some(cookies) = &self.file.cookies {
            let current = cookies.keys.number;
            let mut numbers = cookies.keys.numbered().map(|(number, _)| number);
            book.keys.other = numbers.find(|number| *number < current);
        }
        for set in self.by_hand.sets() {
            let of = (set.vip.as_str().into(), set.real);
            book.by_hand.insert(of, state_of(&set.set));
        }
        Ok(book)
    }
}

/// What is set by hand, as a book has it.
pub(super) fn state_of(set: &RealChange) -> HandState {
    HandState {
        drain: set.drain,
        maintenance: set.maintenance,
        weight: set.weight,
    }
}

/// Whether a VIP's reals have ids, which a fleet shares. The numbers of second-tier balancers are
/// their own.
pub(super) fn is_of_fleet(vip: &VipConfig) -> bool {
    (vip.cookie.is_some() || !vip.quic.is_empty()) && !vip.is_first_tier()
}

/// Whether the agents of all reals get the book, and are waited for.
fn has_agents(file: &BalancerConfig) -> bool {
    file.fleet.as_ref().is_some_and(|fleet| fleet.agents)
}

/// The VIPs of a file that a fleet shares. Of several configurations of
/// connection ids the last one is to come to be issued.
pub(super) fn vips_of(file: &BalancerConfig) -> Vips {
    let real = |real: &RealConfig| {
        let wanted = FleetVipReal {
            id: real.id,
            agent: has_agents(file),
        };
        (real.address, wanted)
    };
    let vip = |vip: &VipConfig| {
        let ids = match vip.quic.is_empty() {
            true => vip.cookie.as_ref().map_or(0, CookieLayout::ids),
            false => quic::ids(&vip.quic),
        };
        let reals = vip.reals.iter().map(real).collect();
        let cid = vip.quic.last().map(|route| CidForm::of(route.config()));
        (vip.endpoint().into(), FleetVip { ids, cid, reals })
    };
    let vips = file.vips.iter().filter(|vip| is_of_fleet(vip));
    vips.map(|of| vip(of)).collect()
}

/// `config` as the book has it. What the file does not have is as it is in what runs, or in the
/// data plane that a start takes over.
fn over(
    mut config: BalancerConfig,
    running: &BalancerConfig,
    mac_of: impl Fn(&VipConfig, IpAddr) -> Option<MacAddress>,
    by_hand: &ByHand,
    following: &Following,
) -> Result<BalancerConfig, String> {
    if let (Some(cookies), Some(keys)) = (&mut config.cookies, following.keys) {
        cookies.keys.cookies = keys;
    }
    for vip in config.vips.iter_mut().filter(|vip| is_of_fleet(vip)) {
        let endpoint = vip.endpoint();
        if let Some(routes) = following.cids.get(endpoint.as_str()) {
            vip.quic.clone_from(routes);
        }
        let of_book = following.book.of_vip(&endpoint);
        let mut ids: BTreeMap<IpAddr, (u16, IdPhase)> = of_book
            .map(|(id, record)| (record.real, (id, record.phase)))
            .collect();
        let former = running.vips.iter().find(|former| former.key() == vip.key());
        let mut reals = Vec::with_capacity(ids.len());
        for real in std::mem::take(&mut vip.reals) {
            if let Some(own) = ids.remove(&real.address) {
                reals.push(with_id(real, own));
            }
        }
        for (address, own) in ids {
            let mut former = former.iter().flat_map(|vip| &vip.reals);
            let former = former.find(|real| real.address == address);
            let mac = former.and_then(|real| real.mac);
            let mac = mac.or_else(|| mac_of(vip, address));
            if mac.is_none() && !vip.forwarding.encapsulates() {
                if own.1 != IdPhase::Live {
                    continue; // it is on its way out, and nobody here knows where it was
                }
                return Err(format!(
                    "vip {}: the book has real {address}, and the file has no MAC address of it; add it to the file",
                    vip.name
                ));
            }
            let mut real = RealConfig {
                role: former.map_or(RealRole::Primary, |real| real.role),
                found: former.is_some_and(|real| real.found),
                address,
                weight: former.map_or(1, |real| real.weight),
                mac,
                drain: false,
                gone: false,
                id: None,
                maintenance: false,
            };
            if let Some(set) = by_hand.of(&endpoint, address) {
                put(&mut real, &set.set);
            }
            reals.push(with_id(real, own));
        }
        vip.reals = reals;
    }
    Ok(config)
}

/// A real with its id: picked only where all know it.
fn with_id(mut real: RealConfig, (id, phase): (u16, IdPhase)) -> RealConfig {
    real.id = Some(id);
    real.drain |= phase != IdPhase::Live;
    real
}

pub(super) fn phase_word(phase: MemberPhase) -> &'static str {
    match phase {
        MemberPhase::Joining => "joining",
        MemberPhase::Serving => "serving",
    }
}
