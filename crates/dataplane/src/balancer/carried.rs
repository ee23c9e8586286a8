// SPDX-License-Identifier: Apache-2.0
//! What of a balancer's maps comes into those of another layout or size: what leads a packet of an
//! open connection to its server, and the counters.

use libbpf_rs::{MapCore as _, MapFlags};

use super::*;
use crate::btf::Fields;
use crate::carry::{Carried, FlowFollower, FollowConns, How, Rule, Rules, Source, read_entries};

const BY_HASH: &str = "the ids of VIPs or reals cannot be read: all connections are picked again by hash, but those whose cookies or connection ids name their server";
const FLOWS: &str = "the flow table cannot be read: connections without cookies or connection ids are picked again by hash";
const SLOTS: &str =
    "the slots of stateful connections cannot be read: these connections go by the flow table";
const KEY: [&str; 5] = [
    "key.saddr_be",
    "key.daddr_be",
    "key.sport_be",
    "key.dport_be",
    "key.proto",
];
const FLOW: &[&str] = &[KEY[0], KEY[1], KEY[2], KEY[3], KEY[4], "real", "real_gen"];

/// Flows lie where the hash of a seed has them.
const fn flows(map: &'static str, with: &'static str) -> Rule {
    Rule {
        needs: FLOW,
        places_by: Some(("ctl", "table_seed")),
        with: Some(with),
        stake: FLOWS,
        ..Rule::of(map, How::Apart)
    }
}

const fn buckets(map: &'static str, with: &'static str) -> Rule {
    Rule {
        needs: &["tag"],
        with: Some(with),
        stake: FLOWS,
        ..Rule::of(map, How::Apart)
    }
}

pub(super) const RULES: Rules = Rules {
    maps: &[
        Rule {
            needs: &["addr", "port_be", "proto", "id"],
            stake: BY_HASH,
            ..Rule::of("vips", How::Copied)
        },
        Rule {
            needs: &["flags", "gen", "addr", "vip"],
            stake: BY_HASH,
            ..Rule::of("reals", How::Entries)
        },
        Rule {
            needs: &["hash_key"],
            stake: "the key of the hash cannot be read: what nothing remembers is picked by another one",
            ..Rule::of("ctl", How::Entries)
        },
        Rule {
            needs: &["real", "addr"],
            stake: "the ids in cookies and connection ids cannot be read: connections that they name are lost where servers get other ids",
            ..Rule::of("cookie_slots", How::Entries)
        },
        flows("flows4", "buckets4"),
        buckets("buckets4", "flows4"),
        flows("flows6", "buckets6"),
        buckets("buckets6", "flows6"),
        Rule {
            needs: FLOW,
            places_by: Some(("ctl", "hash_key")),
            with: Some("conn_free_slots"),
            stake: SLOTS,
            ..Rule::of("conn_slots", How::Apart)
        },
        Rule {
            with: Some("conn_slots"),
            ..Rule::of("conn_free_slots", How::Apart)
        },
        Rule::of("rings", How::Apart),
        Rule::of("vips_seen", How::Anew),
        Rule::of("step_samples", How::Anew),
        Rule::of("mirror_ctl", How::Anew),
        Rule::of("mirror_pending", How::Anew),
        Rule::of("mirror_counts", How::Anew),
        Rule::of("mirror_share", How::Anew),
        Rule::of("mirror_ring", How::Anew),
    ],
    whole: &["chain"],
    apart: carry,
};

fn carry(carried: &mut Carried) -> Result<()> {
    check_capacity(carried)?;
    carry_rings(carried)?;
    if carried.losses.iter().any(|loss| loss == BY_HASH) {
        return Ok(()); // flows name reals by id
    }
    let seed = seed_of(carried)?;
    for (buckets, flows, hashed) in [("buckets4", "flows4", 2), ("buckets6", "flows6", 5)] {
        let (from, to) = (
            carried.sources.remove(buckets),
            carried.sources.remove(flows),
        );
        let (Some(old_buckets), Some(old_flows)) = (from, to) else {
            continue;
        };
        let new = [carried.map(buckets)?, carried.map(flows)?];
        let [new_buckets, new_flows] = new.each_ref();
        let follower = FlowFollower::new(
            [&old_buckets, &old_flows],
            [new_buckets, new_flows],
            hashed,
            seed,
            carried.is_behind,
        )?;
        match follower {
            Some(follower) => carried.follow(follower)?,
            None => carried.lose(FLOWS),
        }
    }
    carry_conns(carried)?;
    freeze(carried)
}

/// Between the switch of programs and the last look at the old table, what the new one does not
/// know may be of a connection that has just been opened, or of one that is hidden: it may be on
/// another real than a pick gives it. What no table knows is therefore dropped for these
/// milliseconds: clients send it again. A start that was killed may have left VIPs so; when its
/// flows have been copied they come over once more.
fn freeze(carried: &mut Carried) -> Result<()> {
    let (vips, ctl) = (carried.map("vips")?, carried.map("ctl")?);
    let (types, of_ctl) = (carried.types("vips").value, carried.types("ctl").value);
    let failed = |e: libbpf_rs::Error| DataPlaneError::map("write", "vips", io_error(&e));
    let mut frozen = Vec::new();
    let at_rest = match carried.is_behind {
        true => Vec::new(),
        false => read_entries(&vips)?,
    };
    for (key, value) in at_rest {
        let number = |field| types.number(&value, field, 0).unwrap_or(0);
        if number("flags") & u64::from(abi::VIP_FORGET) != 0 {
            continue;
        }
        let mut without = value.clone();
        for field in ["ring_size", "plain_size", "former_size"] {
            set(&types, &mut without, field, 0);
        }
        let flags = number("flags") & !u64::from(abi::VIP_SOURCES);
        set(&types, &mut without, "flags", flags);
        vips.update(&key, &without, MapFlags::ANY).map_err(failed)?;
        frozen.push((key, value));
    }
    carried.thaw_by(move || {
        for (key, value) in frozen {
            vips.update(&key, &value, MapFlags::ANY).map_err(failed)?;
        }
        // CPUs keep copies of VIPs, which are good for one version.
        let mut value = read_ctl(&ctl)?;
        let version = of_ctl.number(&value, "vips_version", 0).unwrap_or(0);
        set(&of_ctl, &mut value, "vips_version", version.wrapping_add(1));
        ctl.update(&0_u32.to_ne_bytes(), &value, MapFlags::ANY)
            .map_err(|e| DataPlaneError::map("write", "ctl", io_error(&e)))
    });
    Ok(())
}

/// Sets a number of a value, cut to its field.
fn set(types: &Fields, value: &mut [u8], path: &str, number: u64) {
    let Some(field) = types.get(path) else {
        return;
    };
    let target = value.get_mut(field.offset..field.offset + field.size);
    match (target, field.size) {
        (Some(target), 4) => target.copy_from_slice(&(number as u32).to_ne_bytes()),
        (Some(target), 8) => target.copy_from_slice(&number.to_ne_bytes()),
        _ => {}
    }
}

fn read_ctl(ctl: &MapHandle) -> Result<Vec<u8>> {
    let value = ctl.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
    let value = value.map_err(|e| DataPlaneError::map("read", "ctl", io_error(&e)))?;
    Ok(value.unwrap_or_default())
}

/// A table may become smaller as long as it holds what is in use.
fn check_capacity(carried: &Carried) -> Result<()> {
    let vips = u64::from(carried.map("vip_stats")?.max_entries());
    let blocks = u64::from(carried.map("cookie_slots")?.max_entries());
    let types = carried.types("vips").value;
    let (mut id, mut block) = (None, None);
    for (_, value) in read_entries(&carried.map("vips")?)? {
        let number = |field| types.number(&value, field, 0);
        id = id.max(number("id"));
        if number("cookie.mode").is_some_and(|mode| mode != 0) {
            block = block.max(number("cookie_base"));
        }
    }
    let ids = u64::from(causeway_core::cookie::IDS);
    let block = block.map(|base| base / ids);
    let reals = u64::from(carried.map("reals")?.max_entries());
    let real = carried.last_cut_off("reals");
    for (what, used, max, setting) in [
        ("VIP", id, vips, "limits.vips"),
        (
            "VIP with cookies",
            block,
            blocks / ids,
            "limits.cookie_vips",
        ),
        ("real", real, reals, "limits.reals"),
    ] {
        if let Some(number) = used.filter(|number| *number >= max) {
            return Err(DataPlaneError::InUse {
                what,
                number,
                max,
                setting,
            });
        }
    }
    Ok(())
}

/// The seed of the flow table's hash; a new one where the old layout has none by this name.
fn seed_of(carried: &Carried) -> Result<u64> {
    let (ctl, types) = (carried.map("ctl")?, carried.types("ctl").value);
    let mut value = read_ctl(&ctl)?;
    let known = types.number(&value, "table_seed", 0);
    if let Some(seed) = known.filter(|seed| *seed != 0) {
        return Ok(seed);
    }
    let seed = flow_table::new_seed();
    set(&types, &mut value, "table_seed", seed);
    ctl.update(&0_u32.to_ne_bytes(), &value, MapFlags::ANY)
        .map_err(|e| DataPlaneError::map("write", "ctl", io_error(&e)))?;
    Ok(seed)
}

fn carry_conns(carried: &mut Carried) -> Result<()> {
    let slots = carried.sources.remove("conn_slots");
    let rings = carried.sources.remove("conn_free_slots");
    let (Some(slots), Some(rings)) = (slots, rings) else {
        return Ok(());
    };
    let types = carried.types("ctl").value;
    let seed = types.number(&read_ctl(&carried.map("ctl")?)?, "hash_key", 1);
    let follower = FollowConns::new(
        &slots,
        rings.map.max_entries(),
        &carried.map("conn_slots")?,
        carried.map("conn_free_slots")?.max_entries(),
        possible_cpus()?,
        seed.unwrap_or(0),
    )?;
    match follower {
        FollowConns::By(follower) => carried.follow(follower)?,
        FollowConns::Nothing => {}
        FollowConns::Lost => carried.lose(SLOTS),
    }
    Ok(())
}

/// Rings are used on, under the numbers that other limits give them.
fn carry_rings(carried: &mut Carried) -> Result<()> {
    let Some(Source { map: old, .. }) = carried.sources.remove("rings") else {
        return Ok(());
    };
    // The start that switched has done it before.
    if carried.is_behind {
        return Ok(());
    }
    let new = carried.map("rings")?;
    // Of each VIP and each group of client prefixes: its own, one of configured weights; of
    // former owners for each VIP.
    let vips = |rings: u32| (rings - 2 * abi::SOURCE_GROUPS) / 3;
    let (from, to) = (vips(old.max_entries()), vips(new.max_entries()));
    let part = |vips: u32| vips + abi::SOURCE_GROUPS;
    let (from, to) = ((from, part(from)), (to, part(to)));
    let number = |ring: u32| {
        let (kind, at) = (ring / from.1, ring % from.1);
        match at.checked_sub(from.0) {
            None => (at < to.0).then(|| kind * to.1 + at),
            Some(group) => Some(kind * to.1 + to.0 + group),
        }
    };
    let (old, new) = (Rings::new(old)?, Rings::new(new)?);
    let in_use = rings_in_use(carried, from)?.into_iter();
    let in_use = in_use.filter_map(|ring| Some((ring, number(ring)?)));
    let (from, to): (Vec<u32>, Vec<u32>) = in_use.unzip();
    let rings = to.into_iter().zip(old.inner(&from)?);
    let rings = rings.filter_map(|(to, ring)| Some((to, ring?)));
    new.swap(&Vec::from_iter(rings))
}

/// Numbers of the rings that VIPs and groups of client prefixes say they have: to ask for each one
/// there could be takes too long ([`Rings::swap`]). `vips` is how many VIPs there can be, and how
/// many rings of a kind. A VIP is asked for its own in any case: one that [`freeze`] has left
/// says that it has none.
fn rings_in_use(carried: &Carried, (vips, part): (u32, u32)) -> Result<Vec<u32>> {
    let mut rings = Vec::new();
    let types = carried.types("vips").value;
    for (_, value) in read_entries(&carried.map("vips")?)? {
        let number = |field| types.number(&value, field, 0).unwrap_or(0);
        let of_vip = number("id") as u32;
        for (kind, is_there) in [
            (0, true),
            (1, number("plain_size") > 0),
            (2, number("former_size") > 0),
        ] {
            if is_there && of_vip < vips {
                rings.push(kind * part + of_vip);
            }
        }
    }
    let types = carried.types("source_groups").value;
    for (key, value) in read_entries(&carried.map("source_groups")?)? {
        let number = |field| types.number(&value, field, 0).unwrap_or(0);
        let group = key.try_into().map_or(0, u32::from_ne_bytes);
        for (kind, size) in [(0, "ring_size"), (1, "plain_size")] {
            if number(size) > 0 {
                rings.push(kind * part + vips + group);
            }
        }
    }
    // Beside a VIP stands the entry of its address, which names VIP 0.
    rings.sort_unstable();
    rings.dedup();
    Ok(rings)
}

#[cfg(test)]
mod tests;
