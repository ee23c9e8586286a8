// SPDX-License-Identifier: Apache-2.0
//! Which real gets which id of its VIP.
//!
//! What runs is the truth: a real keeps the id that connections carry. A new one gets
//! the id that its configuration names, else one that follows from its address, so
//! that balancers which never met agree, as far as no two addresses collide. An id
//! that was taken away rests before another real gets it.

use std::net::IpAddr;

use thiserror::Error;

use super::causeway_cookie_hash;

/// A real of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its address.
    pub address: IpAddr,
    /// The id that the configuration names, if it does.
    pub id: Option<u16>,
}

/// An id that is known to the data plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownId {
    /// The id.
    pub id: u16,
    /// Of the real that has or had it.
    pub address: IpAddr,
    /// When it was taken away, seconds of a clock that nobody sets; `None` while it is in use.
    pub freed_s: Option<u64>,
}

/// Why no id can be given.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdError {
    /// Another real has it.
    #[error("id {id} of real {address} belongs to {holder}; choose another")]
    Taken {
        /// The id.
        id: u16,
        /// The real that wants it.
        address: IpAddr,
        /// The real that has it.
        holder: IpAddr,
    },
    /// It has just been taken away from another real.
    #[error(
        "id {id} of real {address} rests for another {left_s} s, until no packet of {holder}'s connections comes any more; choose another, or wait"
    )]
    Resting {
        /// The id.
        id: u16,
        /// The real that wants it.
        address: IpAddr,
        /// The real that had it.
        holder: IpAddr,
        /// Until it may be given out, seconds.
        left_s: u64,
    },
    /// It has more bits than ids have.
    #[error("id {id} of real {address} is out of range; this VIP has ids 0 to {max}")]
    Range {
        /// The id.
        id: u16,
        /// The real that wants it.
        address: IpAddr,
        /// The largest.
        max: u16,
    },
    /// There is none left.
    #[error("there is no id left for real {address}: all {ids} are in use or resting")]
    Full {
        /// The real that wants one.
        address: IpAddr,
        /// How many there are.
        ids: u16,
    },
}

/// The id that an address would have on a VIP of its own.
fn preferred(address: IpAddr, ids: u16) -> u16 {
    let octets = super::octets6(address);
    let mut words = [0_u64; 2];
    for (word, chunk) in words.iter_mut().zip(octets.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        *word = u64::from_le_bytes(eight);
    }
    let key = [0_u64; 2];
    // SAFETY: two words and two of the key are there to read.
    let hash = unsafe { causeway_cookie_hash(words.as_ptr(), 2, key.as_ptr()) };
    (hash % u64::from(ids)) as u16
}

/// The id of every wanted real, in their order. `ids` is how many there are, `now_s` the time on the
/// clock of [`KnownId::freed_s`], `rest_s` how long one rests.
pub fn assign(
    wanted: &[Wanted],
    held: &[KnownId],
    ids: u16,
    now_s: u64,
    rest_s: u64,
) -> Result<Vec<u16>, IdError> {
    let mut given: Vec<Option<u16>> = vec![None; wanted.len()];
    // Named ids first, then those that run, so that no new real takes one of them.
    for (slot, real) in given.iter_mut().zip(wanted) {
        if let Some(id) = real.id {
            check(real.address, id, held, ids, now_s, rest_s)?;
            *slot = Some(id);
        }
    }
    for (index, real) in wanted.iter().enumerate() {
        let running = held
            .iter()
            .find(|held| held.freed_s.is_none() && held.address == real.address && held.id < ids);
        let running = running.map(|held| held.id);
        if given[index].is_none() && !running.is_some_and(|id| given.contains(&Some(id))) {
            given[index] = running;
        }
    }
    for (index, real) in wanted.iter().enumerate() {
        if given[index].is_none() {
            let first = preferred(real.address, ids);
            let free = |id: &u16| {
                !given.contains(&Some(*id))
                    && check(real.address, *id, held, ids, now_s, rest_s).is_ok()
            };
            let id = (0..ids).map(|step| (first + step) % ids).find(free);
            given[index] = Some(id.ok_or(IdError::Full {
                address: real.address,
                ids,
            })?);
        }
    }
    for (index, id) in given.iter().enumerate() {
        if let Some(other) = given[..index].iter().position(|earlier| earlier == id) {
            return Err(IdError::Taken {
                id: id.unwrap_or_default(),
                address: wanted[index].address,
                holder: wanted[other].address,
            });
        }
    }
    Ok(given.into_iter().flatten().collect())
}

/// Whether a real may have an id.
fn check(
    address: IpAddr,
    id: u16,
    held: &[KnownId],
    ids: u16,
    now_s: u64,
    rest_s: u64,
) -> Result<(), IdError> {
    if id >= ids {
        let max = ids - 1;
        return Err(IdError::Range { id, address, max });
    }
    let Some(other) = held.iter().find(|held| held.id == id) else {
        return Ok(());
    };
    let holder = other.address;
    match other.freed_s {
        _ if holder == address => Ok(()),
        None => Err(IdError::Taken {
            id,
            address,
            holder,
        }),
        Some(freed_s) => match (freed_s + rest_s).checked_sub(now_s) {
            None | Some(0) => Ok(()),
            Some(left_s) => Err(IdError::Resting {
                id,
                address,
                holder,
                left_s,
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(last: u8, id: Option<u16>) -> Wanted {
        let address = IpAddr::from([10, 0, 0, last]);
        Wanted { address, id }
    }

    fn held(id: u16, last: u8, freed_s: Option<u64>) -> KnownId {
        let address = IpAddr::from([10, 0, 0, last]);
        KnownId {
            id,
            address,
            freed_s,
        }
    }

    fn auto(range: std::ops::Range<u8>) -> Vec<Wanted> {
        range.map(|last| real(last, None)).collect()
    }

    #[test]
    fn balancers_that_never_met_agree() {
        let all = assign(&auto(1..40), &[], 1024, 0, 600).unwrap();
        let some = assign(&auto(20..30), &[], 1024, 0, 600).unwrap();
        assert_eq!(all[19..29], some);
        let mut unique = all.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), all.len());
    }

    #[test]
    fn what_runs_keeps_its_id_and_names_go_first() {
        let running = [held(7, 1, None), held(8, 2, None)];
        let wanted = [real(1, None), real(2, None), real(3, Some(9))];
        assert_eq!(assign(&wanted, &running, 1024, 0, 600), Ok(vec![7, 8, 9]));
        // A running real may get another id by name; the data plane keeps both.
        let renamed = [real(1, Some(70)), real(2, None)];
        assert_eq!(assign(&renamed, &running, 1024, 0, 600), Ok(vec![70, 8]));
    }

    #[test]
    fn an_id_rests_before_another_real_gets_it() {
        let gone = [held(5, 1, Some(1000))];
        let other = [real(2, Some(5))];
        let error = assign(&other, &gone, 1024, 1100, 600).unwrap_err();
        let left_s = 500;
        assert!(matches!(error, IdError::Resting { id: 5, left_s: l, .. } if l == left_s));
        assert_eq!(assign(&other, &gone, 1024, 1600, 600), Ok(vec![5]));
        // The real that had it may come back at any time.
        assert_eq!(
            assign(&[real(1, Some(5))], &gone, 1024, 1100, 600),
            Ok(vec![5])
        );
        // Automatic ids avoid it.
        let all_but_one: Vec<KnownId> = (0..1023).map(|id| held(id, 200, Some(1000))).collect();
        let ids = assign(&[real(9, None)], &all_but_one, 1024, 1100, 600);
        assert_eq!(ids, Ok(vec![1023]));
        let full = assign(&auto(9..11), &all_but_one, 1024, 1100, 600);
        assert!(matches!(full, Err(IdError::Full { ids: 1024, .. })));
    }

    #[test]
    fn ids_that_cannot_be_are_refused() {
        let twice = [real(1, Some(3)), real(2, Some(3))];
        assert!(matches!(
            assign(&twice, &[], 64, 0, 0),
            Err(IdError::Taken { id: 3, .. })
        ));
        let large = [real(1, Some(64))];
        assert!(matches!(
            assign(&large, &[], 64, 0, 0),
            Err(IdError::Range { max: 63, .. })
        ));
        let running = [held(3, 1, None)];
        let stolen = [real(1, None), real(2, Some(3))];
        assert!(matches!(
            assign(&stolen, &running, 64, 0, 0),
            Err(IdError::Taken { .. })
        ));
    }
}
