// SPDX-License-Identifier: Apache-2.0
//! Digests of what must be equal on balancers of the same VIPs, so that each of them sends a
//! packet to the same server.

use causeway_api::fleet::{Agreement, AgreementItem};
use causeway_core::cookie::{CookieKey, Digest, KeyEpoch};
use causeway_core::fleet::CidForm;

use super::engine::Engine;
use super::pool::Pool;
use super::rings;
use crate::config::{RealRole, VipConfig};

/// What is in force here.
pub(crate) fn agreement(engine: &Engine) -> anyhow::Result<Agreement> {
    let key = CookieKey::from_words(engine.plane.hash_key()?.0);
    let mut items = vec![item("hash-key", None, |digest| digest.secret(&key))];
    if let Some(cookies) = &engine.config.cookies {
        // Which of the two agents write by is theirs to agree on: both are accepted.
        items.push(item("cookie-keys", None, |digest| {
            KeyEpoch::ALL.into_iter().fold(digest, |digest, epoch| {
                match cookies.keys.cookies.get(epoch) {
                    Some(key) => digest.secret(key),
                    None => digest.number(0),
                }
            })
        }));
    }
    for pool in &engine.pools {
        of_vip(engine, pool, &mut items)?;
    }
    items.sort();
    Ok(Agreement { items })
}

fn of_vip(engine: &Engine, pool: &Pool, items: &mut Vec<AgreementItem>) -> anyhow::Result<()> {
    let vip = pool.vip();
    if let Some(format) = &vip.cookie {
        items.push(item("cookie-format", Some(vip), |digest| {
            let sizes = <[u8; 3]>::from(*format).into_iter();
            sizes.fold(digest, |digest, size| digest.number(size.into()))
        }));
    }
    if !vip.quic.is_empty() {
        items.push(item("connection-ids", Some(vip), |digest| {
            connection_ids(vip, digest)
        }));
    }
    if vip.cookie.is_some() || !vip.quic.is_empty() {
        let ids = engine.plane.cookie_ids(pool.id())?;
        let mut ids: Vec<_> = ids
            .held
            .iter()
            .filter(|(_, real)| real.is_some())
            .map(|(held, _)| (held.id, held.address))
            .collect();
        ids.sort_unstable();
        items.push(item("server-ids", Some(vip), |digest| {
            ids.iter().fold(digest, |digest, (id, address)| {
                digest.number((*id).into()).text(&address.to_string())
            })
        }));
    }
    let of_weights = |vip: &VipConfig| item("weights", None, |digest| weights(vip, digest)).digest;
    items.push(AgreementItem {
        what: "weights".to_owned(),
        vip: Some(vip.endpoint()),
        digest: pool.weights_digest(of_weights).to_owned(),
    });
    Ok(())
}

fn connection_ids(vip: &VipConfig, digest: Digest) -> Digest {
    let mut configs: Vec<_> = vip.quic.iter().map(|route| *route.config()).collect();
    configs.sort_by_key(|config| config.number());
    let marks = configs.iter().map(|config| CidForm::of(config).mark);
    marks.fold(digest, Digest::number)
}

/// What the ring of clients is made of that have neither cookies nor ids.
fn weights(vip: &VipConfig, digest: Digest) -> Digest {
    let digest = match rings::has_plain(vip) {
        true => digest.number(1),
        false => digest.text(&vip.scheduler.to_string()),
    };
    let mut reals: Vec<_> = vip
        .reals
        .iter()
        .map(|real| {
            let weight = match real.is_wanted() && !vip.is_reserved(real) {
                true => real.weight,
                false => 0,
            };
            (real.address, weight, real.role)
        })
        .collect();
    reals.sort_unstable_by_key(|(address, ..)| *address);
    reals
        .iter()
        .fold(digest, |digest, (address, weight, role)| {
            let digest = digest.text(&address.to_string()).number((*weight).into());
            match role {
                RealRole::Primary => digest,
                other => digest.text(&other.to_string()),
            }
        })
}

fn item(what: &str, vip: Option<&VipConfig>, of: impl FnOnce(Digest) -> Digest) -> AgreementItem {
    AgreementItem {
        what: what.to_owned(),
        vip: vip.map(VipConfig::endpoint),
        digest: of(Digest::of(what)).finish(),
    }
}
