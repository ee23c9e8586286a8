// SPDX-License-Identifier: Apache-2.0
//! `[[vip.quic_cid]]`: how QUIC connection ids carry a server's id.

use std::path::Path;

use causeway_core::cookie::IDS;
use causeway_core::cookie::quic::CidRoute;
use causeway_quic_lb::{Algorithm, CidConfig, CidKey};
use causeway_service::config::{
    Faults, SecretValue, Spanned, Words, absolute_path, or_made_by, read_secrets, secret, text,
};

use super::raw::{RawQuicCid, RawVip};
use super::words::QuicAlgorithm;
use super::{Protocol, RealConfig};

const SERVER_ID_LENGTH: u8 = 2;
const NONCE_LENGTH: u8 = 8;

/// A VIP's configurations, by number at most one each; empty: its packets are not
/// asked for connection ids.
pub(super) fn of_vip(raw: &RawVip, protocol: Protocol, faults: &mut Faults<'_>) -> Vec<CidRoute> {
    let mut routes: Vec<CidRoute> = Vec::new();
    for spanned in &raw.quic_cid {
        if protocol != Protocol::Udp {
            faults.at(
                spanned.span(),
                "quic_cid needs protocol = \"udp\", over which QUIC runs",
            );
            return Vec::new();
        }
        let Some(route) = route(spanned, faults) else {
            continue;
        };
        let number = route.config().number();
        if routes.iter().any(|other| other.config().number() == number) {
            faults.at(
                spanned.span(),
                format!("the vip has two quic_cid with config = {number}; give each its own"),
            );
        }
        routes.push(route);
    }
    routes
}

fn route(spanned: &Spanned<RawQuicCid>, faults: &mut Faults<'_>) -> Option<CidRoute> {
    let raw = spanned.as_ref();
    let algorithm = text(raw.algorithm.as_ref(), faults, QuicAlgorithm::from_word)
        .unwrap_or(QuicAlgorithm::Siphash);
    let key = key(raw.key.as_ref(), faults);
    let algorithm = match (algorithm, key, &raw.key) {
        (QuicAlgorithm::Plain, _, Some(place)) => {
            faults.at(place.span(), "algorithm = \"plain\" takes no key");
            return None;
        }
        (QuicAlgorithm::Plain, _, None) => Algorithm::Plain,
        (QuicAlgorithm::Siphash, Some(key), _) => Algorithm::SipHash(key),
        (QuicAlgorithm::Aes, Some(key), _) => Algorithm::Aes128(key),
        (_, None, Some(_)) => return None, // said already
        (algorithm, None, None) => {
            faults.at(
                spanned.span(),
                format!(
                    "algorithm = \"{algorithm}\" needs a key; name its file with key, and make \
                     it with `openssl rand -hex 16`"
                ),
            );
            return None;
        }
    };
    let octet = |value: &Option<Spanned<i64>>, default: u8| match value {
        None => default,
        Some(value) => u8::try_from(*value.as_ref()).unwrap_or(u8::MAX),
    };
    let made = CidConfig::new(
        octet(&raw.config, 0),
        octet(&raw.server_id_length, SERVER_ID_LENGTH),
        octet(&raw.nonce_length, NONCE_LENGTH),
        algorithm,
    );
    let made = made.map_err(|error| error.to_string());
    match made.and_then(|config| CidRoute::new(&config).map_err(|error| error.to_string())) {
        Ok(route) => Some(route),
        Err(error) => {
            faults.at(spanned.span(), error);
            None
        }
    }
}

/// The key, wherever it is; text is the name of its file.
fn key(place: Option<&Spanned<SecretValue>>, faults: &mut Faults<'_>) -> Option<CidKey> {
    let written = place?;
    let SecretValue::Text(path) = written.as_ref() else {
        return secret(place, faults, |text| {
            text.parse()
                .map_err(|error| format!("{error}; make one with `openssl rand -hex 16`"))
        });
    };
    let read = read_key(path);
    read.map_err(|message| faults.at(written.span(), message))
        .ok()
}

/// The key in a file. The error is one sentence.
fn read_key(path: &str) -> Result<CidKey, String> {
    absolute_path(path)?;
    let makes = "make one with `openssl rand -hex 16`";
    let text = read_secrets(Path::new(path)).map_err(|error| {
        let error = or_made_by(Path::new(path), error, makes);
        format!("key file {path}: {error}")
    })?;
    text.trim()
        .parse()
        .map_err(|error| format!("key file {path}: {error}"))
}

/// How many ids a VIP's reals can have.
pub fn ids(routes: &[CidRoute]) -> u16 {
    let shortest = routes.iter().map(|r| r.config().server_id_len()).min();
    match shortest {
        Some(1) => 256,
        _ => IDS,
    }
}

/// Ids that do not fit into every configuration's server ids.
pub(super) fn check_ids(
    raw: &RawVip,
    reals: &[RealConfig],
    routes: &[CidRoute],
    faults: &mut Faults<'_>,
) {
    if routes.is_empty() {
        return;
    }
    let ids = ids(routes);
    for real in reals.iter().filter(|real| real.id >= Some(ids)) {
        let named = |raw: &&Spanned<super::raw::RawReal>| {
            raw.as_ref().id.as_ref().map(|id| *id.as_ref()) == real.id.map(i64::from)
        };
        if let Some(place) = raw.real.iter().find(named) {
            faults.at(
                place.span(),
                format!("the id of {} does not fit into one octet, which is what a quic_cid of the vip has; use 0 to 255", real.address),
            );
        }
    }
}
