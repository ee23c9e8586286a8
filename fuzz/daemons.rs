// SPDX-License-Identifier: Apache-2.0

//! What daemons read of people and programs: files of configuration and keys, bodies of
//! requests. Bytes in; no panic, and what is taken can be used.

use std::path::Path;

use causeway_agent::AgentConfig;
use causeway_api::balancer::{MoveConnection, RealChange, VipChange};
use causeway_balancer::BalancerConfig;
use causeway_balancer::config::{Beside, changed_vip, real_from_json, vip_from_json};
use causeway_balancer::kernel::memory;
use causeway_service::config::KeysFile;
use causeway_tunnel::TunnelConfig;

/// A configuration, in TOML or JSON, for each daemon: read and validated, and of what is valid
/// all that a start asks before it touches the machine.
pub(crate) fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let path = Path::new("fuzzed");
    match BalancerConfig::of_balancer(path, text) {
        Ok(config) => {
            // By pieces or at once, a text says the same.
            assert_eq!(BalancerConfig::read_whole(path, text).as_ref(), Ok(&config));
            assert!(config.needs_restart(&config).is_empty());
            let _ = (
                config.summary(),
                memory(&config),
                config.encapsulated_reals(),
            );
            for vip in &config.vips {
                // What the API shows of a VIP, it takes.
                let same = changed_vip(vip, &serde_json::json!({}));
                assert!(same.is_ok(), "{same:?}");
            }
        }
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
    match AgentConfig::parse(path, text) {
        Ok(config) => {
            assert_eq!(config.needs_restart(&config), None);
            let _ = (
                config.summary(),
                config.tunnelled_vips(),
                config.inner_mtu(),
            );
        }
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
    match TunnelConfig::parse(path, text) {
        Ok(config) => {
            assert_eq!(config.needs_restart(&config), None);
            let _ = config.summary();
        }
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
}

/// The body of a request that changes something.
pub(crate) fn request(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(data) else {
        return;
    };
    let beside = Beside {
        has_keys: true,
        may_be_empty: true,
        ..Beside::NOTHING
    };
    let _ = serde_json::from_value::<VipChange>(value.clone());
    let _ = serde_json::from_value::<RealChange>(value.clone());
    let _ = serde_json::from_value::<MoveConnection>(value.clone());
    if let Ok(vip) = vip_from_json(value.clone(), beside) {
        let _ = changed_vip(&vip, &value);
        let _ = real_from_json(&vip, value);
    }
}

/// A keys file: what is taken is written so that it reads the same.
pub(crate) fn keys(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(file) = text.parse::<KeysFile>() else {
        return;
    };
    assert_eq!(file.to_text().parse(), Ok(file.clone()));
    let _ = file.for_server(&[std::net::Ipv4Addr::LOCALHOST.into()]);
    for next in [file.switch(), file.retire()].into_iter().flatten() {
        assert_eq!(next.to_text().parse(), Ok(next));
    }
}
