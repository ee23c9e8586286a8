// SPDX-License-Identifier: Apache-2.0
//! VIPs and reals that come in through the API.
//!
//! They have the same keys as in the file and pass the same validation: the
//! value is written as a file with one VIP, and read back.

use causeway_service::config::Words;
use serde_json::{Value, json};

use super::{BalancerConfig, Beside, Control, RealConfig, Scheduler, VipConfig, clients_of};

/// Validates one VIP, for a balancer that has `beside` for it. The error is one sentence.
pub fn vip_from_json(vip: Value, beside: Beside) -> Result<VipConfig, String> {
    let file = json!({ "interface": "api", "vip": [vip] });
    let text = toml::to_string(&file).map_err(|error| format!("not a vip: {error}"))?;
    let config = BalancerConfig::parse_request(&text, beside).map_err(|errors| {
        let first = errors.faults.into_iter().next();
        first.map_or_else(String::new, |fault| fault.message)
    })?;
    let vip = config.vips.first().map(|vip| (**vip).clone());
    vip.ok_or_else(|| "the request has no vip".to_owned())
}

/// Validates a VIP with other values of keys that `VipChange` has. The error is one sentence.
pub fn changed_vip(vip: &VipConfig, change: &Value) -> Result<VipConfig, String> {
    let mut whole = vip_to_json(vip);
    for (key, value) in change.as_object().into_iter().flatten() {
        whole[key] = value.clone();
    }
    // What belongs to the scheduler that was goes with it, unless it is named.
    let is_named = |key: &str| change.get(key).is_some();
    let scheduler = whole["scheduler"].as_str().unwrap_or_default();
    let follows_load = Scheduler::from_word(scheduler)?.follows_load();
    if is_named("scheduler") && !is_named("control") {
        remove(&mut whole, "control");
    }
    if whole.get("control").is_none_or(|word| word == "off") && !is_named("latency") {
        remove(&mut whole, "latency");
    }
    if !follows_load && !is_named("load") {
        remove(&mut whole, "load");
    }
    let changed = vip_from_json(whole, Beside::keeping(vip.cookie))?;
    // All else belongs to the file, or has requests of its own: it stays as it is.
    Ok(VipConfig {
        scheduler: changed.scheduler,
        load: changed.load,
        control: changed.control,
        latency: changed.latency,
        affinity: changed.affinity,
        flow_table: changed.flow_table,
        limit: changed.limit,
        sources: changed.sources,
        ..vip.clone()
    })
}

fn remove(object: &mut Value, key: &str) {
    if let Some(object) = object.as_object_mut() {
        object.remove(key);
    }
}

/// What other keys of a VIP are validated against.
fn vip_to_json(vip: &VipConfig) -> Value {
    let reals: Vec<Value> = vip.reals.iter().map(real_to_json).collect();
    let mut whole = json!({
        "name": vip.name,
        "address": vip.address.to_string(),
        "port": vip.port,
        "protocol": vip.protocol.to_string(),
        "scheduler": vip.scheduler.to_string(),
        "flow_table": vip.flow_table,
        "forwarding": vip.forwarding.to_string(),
        "fragments": vip.fragments.to_string(),
        "affinity": vip.affinity.to_string(),
        "control": vip.control.to_string(),
        "real": reals,
    });
    let sources = vip.sources.iter().map(clients_of::source_to_json);
    whole["source"] = sources.collect();
    if let Some(limit) = &vip.limit {
        whole["limit"] = clients_of::limit_to_json(limit);
    }
    if vip.control != Control::Off {
        whole["latency"] = json!(vip.latency.to_string());
    }
    if vip.scheduler.follows_load() {
        whole["load"] = json!(vip.load.to_string());
    }
    whole
}

/// Validates one more real of `vip`. The error is one sentence.
pub fn real_from_json(vip: &VipConfig, real: Value) -> Result<RealConfig, String> {
    let address = real.get("address").and_then(Value::as_str);
    let known = |known: &&RealConfig| address.is_some_and(|text| text.parse() == Ok(known.address));
    if let Some(known) = vip.reals.iter().find(known) {
        return Err(format!(
            "vip {} has real {} already; `causeway real weight` changes its weight",
            vip.name, known.address
        ));
    }
    let mut whole = vip_to_json(vip);
    if let Some(reals) = whole["real"].as_array_mut() {
        reals.push(real);
    }
    let mut reals = vip_from_json(whole, Beside::keeping(vip.cookie))?.reals;
    reals
        .pop()
        .ok_or_else(|| "the request has no real".to_owned())
}

/// Validates reals of `vip` that discovery found. The error is one sentence.
pub fn reals_from_json(vip: &VipConfig, reals: Vec<Value>) -> Result<Vec<RealConfig>, String> {
    let mut whole = vip_to_json(vip);
    // Those may be about reals of the file.
    remove(&mut whole, "source");
    whole["real"] = Value::Array(reals);
    let mut reals = vip_from_json(whole, Beside::keeping(vip.cookie))?.reals;
    for real in &mut reals {
        real.found = true;
    }
    Ok(reals)
}

/// A real as the file would have it.
pub fn real_to_json(real: &RealConfig) -> Value {
    let mut value = json!({
        "address": real.address.to_string(),
        "weight": real.weight,
        "role": real.role.to_string(),
        "drain": real.drain,
        "maintenance": real.maintenance,
    });
    if let Some(id) = real.id {
        value["id"] = json!(id);
    }
    if let Some(mac) = real.mac {
        value["mac"] = json!(mac.to_string());
    }
    value
}
