// SPDX-License-Identifier: Apache-2.0
//! Which Services' VIPs the balancer takes: one that it refuses must not hinder the others.

use std::collections::{BTreeMap, BTreeSet};

use crate::balancer::BalancerError;
use crate::objects::ObjectKey;

/// What the balancer said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Services whose VIPs it does not take as they are wanted, each with its sentence.
    pub refused: BTreeMap<ObjectKey, String>,
    /// Of these, those that keep the VIPs that are in force.
    pub kept: BTreeSet<ObjectKey>,
}

/// Finds those that are refused. `check` says whether a file would be taken in which the first ones
/// have the VIPs that are wanted, and others of `kept` those that they have in force. What is in force
/// is given up only if that is refused, too. An error if the balancer refuses its own file, or does not
/// answer.
pub async fn admit(
    services: Vec<ObjectKey>,
    mut kept: BTreeSet<ObjectKey>,
    mut check: impl AsyncFnMut(&[ObjectKey], &BTreeSet<ObjectKey>) -> Result<(), BalancerError>,
) -> Result<Admitted, BalancerError> {
    let first = divide(services.clone(), async |of: &[ObjectKey]| {
        check(of, &kept).await
    });
    let first = first.await;
    let refused = match first {
        Err(BalancerError::Refused(_)) if !kept.is_empty() => {
            // Something that is in force does not go with the file any more.
            let all = kept.iter().cloned().collect();
            let given_up = divide(all, async |of: &[ObjectKey]| {
                check(&[], &of.iter().cloned().collect()).await
            });
            let given_up = given_up.await?;
            kept.retain(|service| !given_up.contains_key(service));
            let second = divide(services, async |of: &[ObjectKey]| check(of, &kept).await);
            second.await?
        }
        other => other?,
    };
    kept.retain(|service| refused.contains_key(service));
    Ok(Admitted { refused, kept })
}

/// Tries all of them at once, and halves where that is refused, so that few refused ones cost few
/// checks. Those that come first are taken when there is not room for all. An error if not even none
/// of them is taken.
async fn divide(
    services: Vec<ObjectKey>,
    mut check: impl AsyncFnMut(&[ObjectKey]) -> Result<(), BalancerError>,
) -> Result<BTreeMap<ObjectKey, String>, BalancerError> {
    let mut taken: Vec<ObjectKey> = Vec::new();
    let mut refused = BTreeMap::new();
    let mut open = vec![services];
    let mut is_base_good = false;
    while let Some(mut group) = open.pop() {
        let before = taken.len();
        taken.extend(group.iter().cloned());
        let sentence = match check(&taken).await {
            Ok(()) => {
                is_base_good = true;
                continue;
            }
            Err(BalancerError::Refused(sentence)) => sentence,
            Err(error) => return Err(error),
        };
        taken.truncate(before);
        if group.len() > 1 {
            let second = group.split_off(group.len() / 2);
            open.extend([second, group]);
            continue;
        }
        if !is_base_good {
            check(&[]).await?;
            is_base_good = true;
        }
        refused.extend(group.pop().map(|service| (service, sentence)));
    }
    Ok(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn services(count: usize) -> Vec<ObjectKey> {
        let key = |at| ObjectKey {
            namespace: "a".into(),
            name: format!("{at:02}"),
        };
        (0..count).map(key).collect()
    }

    fn block<T>(of: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(of)
    }

    fn names(of: impl IntoIterator<Item = ObjectKey>) -> Vec<String> {
        of.into_iter().map(|key| key.name).collect()
    }

    fn refused(
        count: usize,
        takes: impl Fn(&[ObjectKey]) -> bool,
    ) -> (Result<Vec<String>, String>, usize) {
        let mut checks = 0;
        let refused = block(divide(services(count), async |of: &[ObjectKey]| {
            checks += 1;
            match takes(of) {
                true => Ok(()),
                false => Err(BalancerError::Refused("no".into())),
            }
        }));
        let refused = refused.map(|refused| names(refused.into_keys()));
        (refused.map_err(|error| error.to_string()), checks)
    }

    #[test]
    fn what_is_refused_is_found_and_the_others_are_kept() {
        assert_eq!(refused(64, |_| true), (Ok(vec![]), 1));
        let bad = |of: &[ObjectKey]| !of.iter().any(|key| key.name == "17" || key.name == "40");
        let (found, checks) = refused(64, bad);
        assert_eq!(found, Ok(vec!["17".to_owned(), "40".to_owned()]));
        assert!(checks <= 27, "{checks}");
        // Room for ten: the first ones stay.
        let (found, _) = refused(12, |of| of.len() <= 10);
        assert_eq!(found, Ok(vec!["10".to_owned(), "11".to_owned()]));
        assert_eq!(refused(5, |_| false), (Err("no".into()), 4), "its own file");
        assert_eq!(refused(0, |_| true), (Ok(vec![]), 1));
    }

    #[test]
    fn a_file_that_must_not_be_empty_is_not_tried_empty() {
        let takes = |of: &[ObjectKey]| !of.is_empty() && of.iter().all(|key| key.name != "03");
        assert_eq!(refused(4, takes).0, Ok(vec!["03".to_owned()]));
    }

    /// Names of those that are refused, and of those that keep what is in force, which the first
    /// `count` of three have.
    fn admitted(
        count: usize,
        takes: impl Fn(&[String], &[String]) -> bool,
    ) -> (Vec<String>, Vec<String>) {
        let kept = services(count).into_iter().collect();
        let admitted = block(admit(
            services(3),
            kept,
            async |wanted: &[ObjectKey], kept: &BTreeSet<ObjectKey>| {
                let rest = kept.iter().filter(|of| !wanted.contains(of)).cloned();
                match takes(&names(wanted.to_vec()), &names(rest)) {
                    true => Ok(()),
                    false => Err(BalancerError::Refused("no".into())),
                }
            },
        ));
        let Admitted { refused, kept } = admitted.unwrap();
        (names(refused.into_keys()), names(kept))
    }

    #[test]
    fn what_is_in_force_is_kept_unless_that_is_refused_too() {
        let all = |names: &[&str]| -> Vec<String> { names.iter().map(|of| (*of).into()).collect() };
        // Each has two reals and is to have three, and there is room for eight.
        let room = |wanted: &[String], kept: &[String]| 3 * wanted.len() + 2 * kept.len() <= 8;
        assert_eq!(admitted(3, room), (all(&["02"]), all(&["02"])));
        let room = |wanted: &[String], kept: &[String]| 3 * wanted.len() + 2 * kept.len() <= 6;
        assert_eq!(
            admitted(3, room),
            (all(&["00", "01", "02"]), all(&["00", "01", "02"]))
        );
        // One that is new has nothing to keep.
        assert_eq!(admitted(2, room), (all(&["02"]), all(&[])));
        // What one has is refused, too, and hinders no other.
        let bad = "01".to_owned();
        let takes =
            |wanted: &[String], kept: &[String]| !wanted.contains(&bad) && !kept.contains(&bad);
        assert_eq!(admitted(3, takes), (all(&["01"]), all(&[])));
        // What is wanted in its place is good.
        let takes = |wanted: &[String], kept: &[String]| {
            !wanted.contains(&"02".to_owned()) && !kept.contains(&bad)
        };
        assert_eq!(admitted(3, takes), (all(&["02"]), all(&["02"])));
    }
}
