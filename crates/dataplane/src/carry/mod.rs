// SPDX-License-Identifier: Apache-2.0
//! What a start takes from the maps of a data plane that it cannot use as they are: those of
//! another layout, or of another size.
//!
//! A map whose types and size are the same is used on, whatever build made it. The others are made
//! beside the old ones. Their entries come over by the names of fields ([`translate`]), once while
//! the old program runs, and what has changed meanwhile around the moment at which the new one
//! takes its place ([`Carried::during`]). docs/decisions/169-other-layouts.md says why.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use libbpf_rs::{MapCore as _, MapHandle, MapType};

use crate::btf::{MapTypes, TypesOfMaps};
use crate::error::Result;
use crate::map::Shape;

mod conns;
mod entries;
mod flows;
mod translate;

pub(crate) use conns::FollowConns;
pub(crate) use entries::read as read_entries;
pub(crate) use flows::FlowFollower;
use translate::Translator;

/// How a map's entries come over that cannot be used on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Each under its key.
    Entries,
    /// The same, also if the map is the same: it differs for a moment.
    Copied,
    /// Not at all; but a map that is the same is used on.
    Kept,
    /// Not at all, nor is the map used on: what it holds is of the moment, or has no types.
    Anew,
    /// As [`Rules::apart`] has it.
    Apart,
}

/// What a map's entries need, and who needs them. Maps without a rule come by
/// [`How::Entries`], and nobody misses what they lack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) map: &'static str,
    pub(crate) how: How,
    /// Fields of key or value that the old layout has to have.
    pub(crate) needs: &'static [&'static str],
    /// A field of another map that has to be there for this one to be used on: what the map's
    /// places are reckoned by.
    pub(crate) places_by: Option<(&'static str, &'static str)>,
    /// The map that is used on with this one, or not at all.
    pub(crate) with: Option<&'static str>,
    /// What becomes of connections without it, in a sentence; empty: nothing.
    pub(crate) stake: &'static str,
}

impl Rule {
    /// The rule of a map that has none of its own.
    pub(crate) const fn of(map: &'static str, how: How) -> Self {
        Self {
            map,
            how,
            needs: &[],
            places_by: None,
            with: None,
            stake: "",
        }
    }
}

/// What comes over of one kind of data plane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) maps: &'static [Rule],
    /// Parts of values that come over whole or not at all.
    pub(crate) whole: &'static [&'static str],
    /// Copies the maps of [`How::Apart`]; those of [`How::Entries`] have been copied before.
    pub(crate) apart: fn(&mut Carried) -> Result<()>,
}

impl Rules {
    fn of(&self, map: &str) -> Rule {
        let own = self.maps.iter().find(|rule| rule.map == map);
        own.copied().unwrap_or(Rule::of("", How::Entries))
    }
}

/// A map of the object that is being started.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) types: Option<MapTypes>,
    pub(crate) pinned: Option<MapHandle>,
}

/// A map whose entries are to come over.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) map: MapHandle,
    pub(crate) old: MapTypes,
    pub(crate) new: MapTypes,
    pub(crate) key: Translator,
    pub(crate) value: Translator,
}

/// What is used on, what is copied, what is lost.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    kept: BTreeSet<String>,
    sources: BTreeMap<String, Source>,
    /// Types of the maps that are wanted.
    types: BTreeMap<String, MapTypes>,
    losses: Vec<String>,
    /// The new maps are at work already: what they have stays.
    is_behind: bool,
}

impl Plan {
    /// What a start that was killed behind its switch had not copied any more: out of the maps
    /// that are `pinned` still, into those of the program at work.
    pub(crate) fn behind(rules: &Rules, wanted: Vec<Wanted>) -> io::Result<Self> {
        let plan = Self {
            is_behind: true,
            ..Self::default()
        };
        plan.of(rules, wanted, false)
    }

    /// `same_layout`: the maps are of this build, and differ in size.
    pub(crate) fn new(rules: &Rules, wanted: Vec<Wanted>, same_layout: bool) -> io::Result<Self> {
        Self::default().of(rules, wanted, same_layout)
    }

    fn of(self, rules: &Rules, wanted: Vec<Wanted>, same_layout: bool) -> io::Result<Self> {
        let mut plan = self;
        let mut kernel = TypesOfMaps::default();
        let mut pinned = Vec::new();
        for map in wanted {
            plan.types.extend(
                map.types
                    .iter()
                    .map(|types| (map.name.clone(), types.clone())),
            );
            let rule = rules.of(&map.name);
            let Some(old) = map.pinned else {
                if !plan.is_behind {
                    plan.lose(rule.stake);
                }
                continue;
            };
            let has = Shape::of(&old);
            let fits = (has.key, has.value) == (map.shape.key, map.shape.value);
            let types = match same_layout && fits {
                true => map.types.clone(),
                false => kernel.of_kernel(&old)?,
            };
            // Rings of reals have no types, and are numbers throughout.
            let is_same = types == map.types
                && has == map.shape
                && (types.is_some() || has.kind == MapType::ArrayOfMaps);
            let is_copied = plan.is_behind || [How::Anew, How::Copied].contains(&rule.how);
            if is_same && !is_copied {
                plan.kept.insert(map.name.clone());
            }
            pinned.push((map.name, map.shape, old, types, map.types, rule));
        }
        let has_field = |(of, field): (&str, &str)| {
            let of = pinned.iter().find(|(name, ..)| name == of);
            let types = of.and_then(|(_, _, _, types, ..)| types.as_ref());
            types.is_some_and(|types| types.value.get(field).is_some())
        };
        for _ in 0..2 {
            for (name, .., rule) in &pinned {
                let with = rule.with.is_none_or(|with| plan.kept.contains(with));
                if !with || !rule.places_by.is_none_or(has_field) {
                    plan.kept.remove(name);
                }
            }
        }
        for (name, shape, map, old, new, rule) in pinned {
            if plan.kept.contains(&name) || rule.how == How::Anew {
                continue;
            }
            if rule.how == How::Kept {
                plan.lose(rule.stake);
                continue;
            }
            let (Some(old), Some(new)) = (old, new) else {
                if map.map_type() != MapType::ArrayOfMaps {
                    plan.lose(rule.stake);
                    continue;
                }
                let none = MapTypes::default();
                plan.copy(name, map, none.clone(), none, &shape, rules);
                continue;
            };
            let source = plan.copy(name.clone(), map, old, new, &shape, rules);
            let has = |field: &&str| source.key.has(&[field]) || source.value.has(&[field]);
            if !rule.needs.iter().all(has) {
                plan.sources.remove(&name);
                plan.lose(rule.stake);
            }
        }
        Ok(plan)
    }

    fn copy(
        &mut self,
        name: String,
        map: MapHandle,
        old: MapTypes,
        new: MapTypes,
        shape: &Shape,
        rules: &Rules,
    ) -> &Source {
        let translate = |old, new, len: u32| Translator::new(old, new, len as usize, rules.whole);
        let source = Source {
            key: translate(&old.key, &new.key, shape.key),
            value: translate(&old.value, &new.value, shape.value),
            map,
            old,
            new,
        };
        self.sources.entry(name).or_insert(source)
    }

    fn lose(&mut self, stake: &str) {
        if !stake.is_empty() && !self.losses.iter().any(|known| known == stake) {
            self.losses.push(stake.to_owned());
        }
    }

    /// Whether the pinned map of this name is used on.
    pub(crate) fn keeps(&self, map: &str) -> bool {
        self.kept.contains(map)
    }

    /// Copies what there is into the maps of the loaded object.
    pub(crate) fn carry_out(
        self,
        rules: &Rules,
        maps: &BTreeMap<String, MapHandle>,
    ) -> Result<Carried> {
        let mut carried = Carried {
            sources: BTreeMap::new(),
            maps: BTreeMap::new(),
            types: self.types,
            followers: Vec::new(),
            cut_off: BTreeMap::new(),
            thaw: None,
            losses: self.losses,
            is_behind: self.is_behind,
        };
        // Of maps at work: what lets packets be picked for comes when flows are known.
        let mut last = Vec::new();
        for (name, map) in maps {
            let another = MapHandle::try_from(map).map_err(|e| {
                crate::error::DataPlaneError::map("open", name, crate::map::io_error(&e))
            })?;
            carried.maps.insert(name.clone(), another);
        }
        for (name, source) in self.sources {
            let rule = rules.of(&name);
            let Some(new) = carried.maps.get(&name) else {
                continue;
            };
            match (rule.how, source.map.map_type()) {
                (How::Apart, _) => {
                    carried.sources.insert(name, source);
                }
                (_, MapType::Array | MapType::Hash | MapType::LruHash | MapType::LpmTrie) => {
                    let new = carried.map(&name)?;
                    // Nobody but a process changes these.
                    let overwrites = self.is_behind && rule.how == How::Copied;
                    let mut follower = entries::EntryFollower::new(source, new, overwrites);
                    if overwrites {
                        last.push(follower);
                        continue;
                    }
                    follower.follow(self.is_behind)?;
                    let cut_off = follower.last_cut_off().map(u64::from);
                    carried.cut_off.extend(cut_off.map(|last| (name, last)));
                    carried.followers.push(Box::new(follower));
                }
                (_, MapType::PercpuArray) if self.is_behind => {}
                (_, MapType::PercpuArray) => entries::copy_counters(&source, new)?,
                // There is no other whose entries matter.
                _ => {}
            }
        }
        (rules.apart)(&mut carried)?;
        last.into_iter()
            .try_for_each(|follower| carried.follow(follower))?;
        Ok(carried)
    }
}

/// Copies a map, and later what has changed in it.
pub(crate) trait Follower {
    /// Brings over what has changed since the last call; at first, everything. Newer entries of the
    /// new program stay. At rest: the old program is not at work any more.
    fn follow(&mut self, is_at_rest: bool) -> Result<()>;

    /// Whether packets go astray until it has followed.
    fn is_urgent(&self) -> bool {
        false
    }

    /// What did not come over, in a sentence.
    fn loss(&self) -> Option<String> {
        None
    }
}

/// Lets packets be picked for.
type Thaw = Box<dyn FnOnce() -> Result<()>>;

/// Maps that have been copied, and are followed until the program is replaced.
pub(crate) struct Carried {
    /// Those that are copied by [`Rules::apart`].
    pub(crate) sources: BTreeMap<String, Source>,
    /// All of the new program.
    maps: BTreeMap<String, MapHandle>,
    types: BTreeMap<String, MapTypes>,
    followers: Vec<Box<dyn Follower>>,
    /// The last entry of each array that is in use and has no place in the new one.
    cut_off: BTreeMap<String, u64>,
    thaw: Option<Thaw>,
    pub(crate) losses: Vec<String>,
    /// The new maps are at work already.
    pub(crate) is_behind: bool,
}

impl Carried {
    /// A map of the new program.
    pub(crate) fn map(&self, name: &str) -> Result<MapHandle> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let map = self.maps.get(name);
        let map = map.ok_or_else(|| crate::error::DataPlaneError::map("find", name, missing()))?;
        MapHandle::try_from(map)
            .map_err(|e| crate::error::DataPlaneError::map("open", name, crate::map::io_error(&e)))
    }

    /// The types of a map of the new program.
    pub(crate) fn types(&self, name: &str) -> MapTypes {
        self.types.get(name).cloned().unwrap_or_default()
    }

    /// The last entry of an array that is in use and has no place in the new one.
    pub(crate) fn last_cut_off(&self, name: &str) -> Option<u64> {
        self.cut_off.get(name).copied()
    }

    /// Copies by this from now on.
    pub(crate) fn follow(&mut self, mut follower: impl Follower + 'static) -> Result<()> {
        follower.follow(self.is_behind)?;
        self.followers.push(Box::new(follower));
        Ok(())
    }

    pub(crate) fn lose(&mut self, stake: &str) {
        self.losses.push(stake.to_owned());
    }

    /// Has `thaw` done as soon as flows have been copied behind the switch of programs.
    pub(crate) fn thaw_by(&mut self, thaw: impl FnOnce() -> Result<()> + 'static) {
        self.thaw = Some(Box::new(thaw));
    }

    /// Does `switch`, which puts the new program in the place of the old one, and copies what that
    /// has written last.
    pub(crate) fn during<T>(&mut self, switch: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut followers = std::mem::take(&mut self.followers);
        let mut follow = |urgent: bool, is_at_rest: bool| {
            let mut some = followers.iter_mut().filter(|of| of.is_urgent() == urgent);
            some.try_for_each(|of| of.follow(is_at_rest))
        };
        // What is left to do behind the switch is soon done then.
        follow(true, self.is_behind)?;
        let done = switch()?;
        // Packets that the old program has begun with open connections, too.
        crate::map::wait_for_programs();
        // The program has been replaced: what fails now fails no start.
        let at_once = follow(true, true);
        let thawed = self.thaw.take().map_or(Ok(()), |thaw| thaw());
        for error in [at_once, thawed, follow(false, true)]
            .into_iter()
            .filter_map(Result::err)
        {
            self.losses.push(format!(
                "what the former program changed last may be missing: {error}"
            ));
        }
        self.losses
            .extend(followers.iter().filter_map(|of| of.loss()));
        Ok(done)
    }
}
