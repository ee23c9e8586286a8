// SPDX-License-Identifier: Apache-2.0
//! Which Services' VIPs the balancer takes: one that it refuses must not hinder the others.

use std::collections::BTreeMap;

use crate::balancer::BalancerError;
use crate::objects::ObjectKey;

/// Tries all of them at once, and halves where that is refused, so that few refused ones cost few
/// checks. `check` says whether a file with the VIPs of these Services would be taken; those that
/// come first are kept when there is not room for all. Gives those that are refused, each with the
/// balancer's sentence; an error if it refuses its own file, too, or does not answer.
pub async fn admit(
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
        match check(&taken).await {
            Ok(()) => continue,
            Err(BalancerError::Refused(sentence)) => {
                taken.truncate(before);
                if !is_base_good {
                    check(&[]).await?;
                    is_base_good = true;
                }
                if group.len() == 1 {
                    refused.extend(group.pop().map(|service| (service, sentence)));
                    continue;
                }
            }
            Err(error) => return Err(error),
        }
        let second = group.split_off(group.len() / 2);
        open.extend([second, group]);
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

    fn refused(
        count: usize,
        takes: impl Fn(&[ObjectKey]) -> bool,
    ) -> (Result<Vec<String>, String>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let mut checks = 0;
        let refused = runtime.block_on(admit(services(count), async |of: &[ObjectKey]| {
            checks += 1;
            match takes(of) {
                true => Ok(()),
                false => Err(BalancerError::Refused("no".into())),
            }
        }));
        let refused = refused.map(|refused| refused.into_keys().map(|key| key.name).collect());
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
        assert_eq!(refused(5, |_| false), (Err("no".into()), 2), "its own file");
        assert_eq!(refused(0, |_| true), (Ok(vec![]), 1));
    }
}
