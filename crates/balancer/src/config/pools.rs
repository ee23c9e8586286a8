// SPDX-License-Identifier: Apache-2.0
//! What VIPs share, put out in full for each before the keys are read: `[defaults]`, `[pool.NAME]`
//! and lists of ports. Values keep their places, so that a fault names the line that is written.

use std::borrow::Cow;
use std::mem;

use causeway_service::config::{Faults, nearest};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// Keys that are a VIP's own.
const OWN: [&str; 4] = ["name", "address", "port", "pool"];

/// Gives each VIP of a document what its pool and the defaults say and itself does not: a key with
/// all its value. A VIP with several ports becomes as many.
pub(super) fn put_out(document: &mut DeTable<'_>, faults: &mut Faults<'_>) {
    InCommon::of(document, faults).put_out(document, faults);
}

/// What VIPs share.
pub(super) struct InCommon<'t> {
    defaults: Option<DeTable<'t>>,
    pools: DeTable<'t>,
}

impl<'t> InCommon<'t> {
    pub(super) fn of(document: &DeTable<'t>, faults: &mut Faults<'_>) -> Self {
        let defaults = table(document.get("defaults")).cloned();
        let pools = table(document.get("pool")).cloned().unwrap_or_default();
        if let Some(defaults) = &defaults {
            own_keys(defaults, "[defaults]", faults);
        }
        for (name, pool) in &pools {
            if let Some(pool) = table(Some(pool)) {
                own_keys(pool, &format!("[pool.{}]", name.get_ref()), faults);
            }
        }
        Self { defaults, pools }
    }

    pub(super) fn put_out(&self, document: &mut DeTable<'t>, faults: &mut Faults<'_>) {
        let Some(DeValue::Array(vips)) = document.get_mut("vip").map(Spanned::get_mut) else {
            return;
        };
        for mut element in mem::replace(vips, DeArray::new()) {
            let at = element.span();
            let DeValue::Table(vip) = element.get_mut() else {
                vips.push(element);
                continue;
            };
            let pool = pool_of(vip, &self.pools, faults);
            for shared in pool.into_iter().chain(&self.defaults) {
                for (key, value) in shared {
                    if !vip.contains_key(key.get_ref().as_ref()) {
                        vip.insert(key.clone(), value.clone());
                    }
                }
            }
            match ports_of(vip, faults) {
                None => vips.push(element),
                Some(ports) => {
                    for port in ports {
                        let vip = DeValue::Table(with_port(vip, port));
                        vips.push(Spanned::new(at.clone(), vip));
                    }
                }
            }
        }
    }
}

fn own_keys(shared: &DeTable<'_>, place: &str, faults: &mut Faults<'_>) {
    let own = |key: &str| OWN.contains(&key) || (place == "[defaults]" && key == "real");
    for key in shared.keys().filter(|key| own(key.get_ref())) {
        faults.at(
            key.span(),
            format!(
                "`{}` cannot stand in {place}: it is a VIP's own",
                key.get_ref()
            ),
        );
    }
}

/// The pool that a VIP names.
fn pool_of<'p, 't>(
    vip: &DeTable<'_>,
    pools: &'p DeTable<'t>,
    faults: &mut Faults<'_>,
) -> Option<&'p DeTable<'t>> {
    let named = vip.get("pool")?;
    // What is not text is refused where all keys are read.
    let name = named.get_ref().as_str()?;
    if let Some(pool) = pools.get(name) {
        return table(Some(pool));
    }
    let known: Vec<&str> = pools.keys().map(|name| name.get_ref().as_ref()).collect();
    let mend = match nearest(name, &known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("describe it in [pool.{name}]"),
    };
    faults.at(named.span(), format!("there is no pool `{name}`; {mend}"));
    None
}

/// The ports of a VIP that has a list of them.
fn ports_of<'t>(
    vip: &mut DeTable<'t>,
    faults: &mut Faults<'_>,
) -> Option<Vec<Spanned<DeValue<'t>>>> {
    let port = vip.get("port")?;
    let ports: Vec<_> = port.get_ref().as_array()?.iter().cloned().collect();
    if ports.is_empty() {
        faults.at(
            port.span(),
            "the list of ports is empty; write for example port = [80, 443]",
        );
    }
    Some(ports)
}

fn with_port<'t>(vip: &DeTable<'t>, port: Spanned<DeValue<'t>>) -> DeTable<'t> {
    let mut vip = vip.clone();
    // Names distinguish VIPs.
    if let (Some(DeValue::String(name)), DeValue::Integer(number)) =
        (vip.get_mut("name").map(Spanned::get_mut), port.get_ref())
    {
        *name = Cow::Owned(format!("{name}-{}", number.as_str()));
    }
    if let Some(value) = vip.get_mut("port") {
        *value = port;
    }
    vip
}

fn table<'v, 't>(value: Option<&'v Spanned<DeValue<'t>>>) -> Option<&'v DeTable<'t>> {
    value?.get_ref().as_table()
}
