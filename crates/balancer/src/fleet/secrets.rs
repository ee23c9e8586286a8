// SPDX-License-Identifier: Apache-2.0
//! What the book has by number or mark alone, and files have whole: keys of cookies, and
//! configurations of connection ids with theirs.

use std::collections::BTreeMap;
use std::sync::Arc;

use causeway_core::cookie::quic::CidRoute;
use causeway_core::cookie::{CookieKey, KeyEpoch, Keys};
use causeway_core::fleet::{CidForm, CidPhases, FleetBook, KeyNumber};
use causeway_quic_lb::CidConfig;
use causeway_service::parse_version;
use serde::{Deserialize, Serialize};

use super::reading::Reading;
use crate::config::{BalancerConfig, VipConfig};
use crate::state_dir::StateDir;

const FILE: &str = "fleet-keys.json";
const VERSION: u32 = 1;

/// What a VIP's connection ids are read by, by VIP.
pub(crate) type CidsOfVips = BTreeMap<Arc<str>, Vec<CidRoute>>;

/// Those of the file, and former ones that the book accepts still.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Secrets {
    keys: BTreeMap<KeyNumber, CookieKey>,
    cids: BTreeMap<(Arc<str>, CidForm), CidRoute>,
    /// A key of which the file has another than this.
    otherwise: Option<KeyNumber>,
}

/// As a daemon leaves them to the next: files may have lost what the book accepts still.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretsFile {
    version: u32,
    fleet: String,
    keys: BTreeMap<KeyNumber, String>,
    cids: BTreeMap<String, Vec<CidConfig>>,
}

impl Secrets {
    /// What a former daemon has kept; nothing if there is none of this fleet.
    pub(super) fn load(dir: &StateDir, fleet: &str) -> Result<Self, String> {
        let mut secrets = Self::default();
        let Some(text) = dir.read_file(FILE)? else {
            return Ok(secrets);
        };
        let damaged = |error: String| format!("{FILE} is damaged ({error})");
        let file = parse_version::<SecretsFile>(&text, VERSION);
        let file = file.map_err(|fault| format!("{FILE} {fault}"))?;
        if file.fleet != fleet {
            return Ok(secrets);
        }
        for (number, key) in file.keys {
            let key: CookieKey = key.parse().map_err(|_| damaged(format!("key {number}")))?;
            secrets.keys.insert(number, key);
        }
        for (vip, configs) in file.cids {
            let vip: Arc<str> = vip.into();
            for config in configs {
                let route = CidRoute::new(&config).map_err(|error| damaged(error.to_string()))?;
                let of = (vip.clone(), CidForm::of(&config));
                secrets.cids.insert(of, route);
            }
        }
        Ok(secrets)
    }

    pub(super) fn save(&self, dir: &StateDir, fleet: &str) -> Result<(), String> {
        let keys = self.keys.iter();
        let mut cids: BTreeMap<String, Vec<CidConfig>> = BTreeMap::new();
        for ((vip, _), route) in &self.cids {
            let of_vip = cids.entry(vip.to_string()).or_default();
            of_vip.push(*route.config());
        }
        let file = SecretsFile {
            version: VERSION,
            fleet: fleet.to_owned(),
            keys: keys.map(|(number, key)| (*number, key.to_hex())).collect(),
            cids,
        };
        let text = serde_json::to_vec(&file).map_err(|error| error.to_string())?;
        dir.keep_file(FILE, &text)
    }

    /// The keys that were kept of a book by which cookies may have been issued.
    pub(super) fn kept_in_use(&self, book: Option<&FleetBook>) -> BTreeMap<KeyNumber, CookieKey> {
        let in_use = |number: KeyNumber| {
            book.is_some_and(|book| book.keys.accepts(number) && number <= book.keys.issued)
        };
        let keys = self.keys.iter().filter(|(number, _)| in_use(**number));
        keys.map(|(number, key)| (*number, *key)).collect()
    }

    /// Takes those of the file, which may have changed. A key that is `in_use` stays, unless other
    /// members have the file's. One that is not in use is replaced by the file's, unless the file's
    /// alone differs from other members' keys: where its own does, too, a copied file must bring it.
    pub(super) fn take(
        &mut self,
        file: &BalancerConfig,
        book: Option<&FleetBook>,
        in_use: &BTreeMap<KeyNumber, CookieKey>,
        read: &Reading,
    ) {
        // Without a book, as where the kept one is lost, that of the store may accept any of them.
        if let Some(book) = book {
            self.keys.retain(|number, _| book.keys.accepts(*number));
            self.cids.retain(|(vip, form), _| {
                let own = book.cids.get(vip);
                own.is_some_and(|own| own.forms.values().any(|accepted| accepted == form))
            });
        }
        self.keys.extend(in_use);
        self.otherwise = None;
        let is_anothers = |number, key: &CookieKey| {
            book.is_some_and(|book| read.has_another(book, number, key).is_some())
        };
        let cookies = file.cookies.iter();
        for (number, key) in cookies.flat_map(|cookies| cookies.keys.numbered()) {
            let own = self.keys.get(&number).filter(|own| **own != key);
            let stays = own.is_some_and(|own| {
                let (wanted, own) = (is_anothers(number, &key), is_anothers(number, own));
                match in_use.contains_key(&number) {
                    true => wanted || !own,
                    false => wanted && !own,
                }
            });
            match stays {
                true => self.otherwise = Some(number),
                false => drop(self.keys.insert(number, key)),
            }
        }
        for vip in &file.vips {
            let own = vip
                .quic
                .iter()
                .map(|route| (CidForm::of(route.config()), *route));
            let endpoint: Arc<str> = vip.endpoint().into();
            self.cids
                .extend(own.map(|(form, route)| ((endpoint.clone(), form), route)));
        }
    }

    /// Keys of cookies by their numbers.
    pub(super) fn keys(&self) -> &BTreeMap<KeyNumber, CookieKey> {
        &self.keys
    }

    /// A VIP's configuration of this form.
    pub(super) fn cid(&self, vip: &Arc<str>, form: CidForm) -> Option<&CidRoute> {
        self.cids.get(&(vip.clone(), form))
    }

    /// The last key that a fleet with this book can come to: to each by the one before.
    pub(super) fn wanted_key(&self, book: &FleetBook) -> KeyNumber {
        let next = |key: &KeyNumber| Some(key + 1).filter(|key| self.keys.contains_key(key));
        let keys = std::iter::successors(Some(book.keys.issued), next);
        keys.last().unwrap_or(book.keys.issued)
    }

    /// What is wrong with the keys of the file, though nothing of the book waits for them.
    pub(super) fn fault(&self, book: &FleetBook, file: &BalancerConfig) -> Option<String> {
        let cookies = file.cookies.as_ref()?;
        let path = cookies.file.display();
        if let Some(number) = self.otherwise {
            return Some(format!(
                "key {number} of cookies in {path} is another than the one in use, which stays; copy the file from another balancer"
            ));
        }
        let issued = book.keys.issued;
        let last = self.keys.keys().last()?;
        (*last > self.wanted_key(book)).then(|| {
            format!(
                "{path} has key {last} of cookies, and the fleet is at key {issued} without those between: it is another fleet's, or was rotated by itself; copy the file from another balancer"
            )
        })
    }

    /// The keys that a book accepts.
    pub(super) fn keys_of(
        &self,
        book: &FleetBook,
        file: &BalancerConfig,
        read: &Reading,
    ) -> Result<Option<Keys>, String> {
        let Some(cookies) = &file.cookies else {
            return Ok(None);
        };
        let of = |number: KeyNumber| {
            let key = self.keys.get(&number).ok_or_else(|| {
                format!(
                    "key {number} of cookies, which the book accepts, is not in {}; copy the file from another balancer",
                    cookies.file.display()
                )
            })?;
            match read.has_another(book, number, key) {
                None => Ok(*key),
                Some(member) => Err(format!(
                    "key {number} of cookies is another on {member}; copy {} from one balancer to all",
                    cookies.file.display()
                )),
            }
        };
        let issued = book.keys.issued;
        let other = book.keys.other.map(of).transpose()?;
        Ok(Some(Keys::new(epoch_of(issued), of(issued)?, other)))
    }

    /// The configurations of connection ids that a book accepts: as long as it accepts those of
    /// files alone, these besides.
    pub(super) fn cids_of(
        &self,
        book: &FleetBook,
        file: &BalancerConfig,
    ) -> Result<CidsOfVips, String> {
        let mut all = CidsOfVips::new();
        for vip in file.vips.iter().filter(|vip| !vip.quic.is_empty()) {
            let endpoint: Arc<str> = vip.endpoint().into();
            if let Some(own) = book.cids.get(&endpoint) {
                let routes = self.cids_of_vip(vip, &endpoint, own)?;
                all.insert(endpoint, routes);
            }
        }
        Ok(all)
    }

    fn cids_of_vip(
        &self,
        vip: &VipConfig,
        endpoint: &Arc<str>,
        own: &CidPhases,
    ) -> Result<Vec<CidRoute>, String> {
        let accepted = own.forms.values().map(|form| {
            let route = self.cid(endpoint, *form);
            route.copied().ok_or_else(|| {
                format!(
                    "configuration {} of connection ids of vip {}, which the book accepts, is not in this balancer's file, or has another key or other lengths there; copy its quic_cid and its key from another balancer",
                    form.number, vip.name
                )
            })
        });
        let mut routes = accepted.collect::<Result<Vec<_>, _>>()?;
        if own.accepts_files() {
            for route in &vip.quic {
                let number = route.config().number();
                if !routes.iter().any(|of| of.config().number() == number) {
                    routes.push(*route);
                }
            }
        }
        routes.sort_by_key(|route| route.config().number());
        Ok(routes)
    }
}

/// The epoch of a key.
pub(super) fn epoch_of(number: KeyNumber) -> KeyEpoch {
    match number & 1 {
        0 => KeyEpoch::Zero,
        _ => KeyEpoch::One,
    }
}

/// Whether by its file an operator says that connections have ids of a VIP's former configuration
/// still.
pub(super) fn keeps_former_cid(file: &BalancerConfig, book: &FleetBook, vip: &str) -> bool {
    let Some(own) = book.cids.get(vip) else {
        return false;
    };
    let wanted = book.vips.get(vip).and_then(|vip| vip.cid);
    let mut vips = file.vips.iter();
    let of_file = vips.find(|of| of.endpoint() == vip);
    let mut forms = of_file
        .into_iter()
        .flat_map(|vip| vip.quic.iter().map(|route| CidForm::of(route.config())));
    forms.any(|form| match own.other() {
        Some(former) => form == former,
        None => Some(form) != own.issued() && Some(form) != wanted,
    })
}
