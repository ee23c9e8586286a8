// SPDX-License-Identifier: Apache-2.0
//! Keys files, and what `[cookie]`, VIPs and agents may say of cookies.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use causeway_core::cookie::CookieMode;

use super::*;

const KEY: &str = "000102030405060708090a0b0c0d0e0f";

/// A keys file and a balancer's file that names it, with these lines for the VIP.
fn balancer(vip: &str) -> Result<BalancerConfig, String> {
    let keys = tempfile::NamedTempFile::new().unwrap();
    fs::write(keys.path(), format!("current = 0\nkey0 = \"{KEY}\"\n")).unwrap();
    let text = format!(
        "interface = \"eth0\"\n[cookie]\nkeys = \"{}\"\n[[vip]]\naddress = \"192.0.2.1\"\n\
         port = 80\n{vip}\n[[vip.real]]\naddress = \"10.0.0.1\"\nid = 3\n",
        keys.path().display()
    );
    BalancerConfig::parse(Path::new("lb.toml"), &text).map_err(|e| e.to_string())
}

#[test]
fn keys_give_tcp_vips_cookies() {
    let config = balancer("").unwrap();
    let format = config.vips[0].cookie.unwrap();
    assert_eq!(
        (format.mode(), format.bits(), format.id_bits()),
        (CookieMode::Timestamp, 16, 10)
    );
    assert_eq!(config.vips[0].reals[0].id, Some(3));
    let quarantine = config.cookies.unwrap().quarantine;
    assert_eq!(quarantine, Duration::from_secs(900));
    assert_eq!(balancer("cookie = \"none\"").unwrap().vips[0].cookie, None);
    assert_eq!(balancer("protocol = \"udp\"").unwrap().vips[0].cookie, None);
    let light = balancer("cookie = \"timestamp-light\"\ncookie_id_bits = 4").unwrap();
    let format = light.vips[0].cookie.unwrap();
    assert_eq!(
        (format.bits(), format.id_bits(), format.check_bits()),
        (10, 4, 5)
    );
    let gone = balancer("cookie = \"timestamp-msb\"").unwrap_err();
    assert!(gone.to_string().contains("write `timestamp`"), "{gone}");
}

#[test]
fn a_change_by_request_leaves_cookies_and_goes_by_them() {
    let keys = "flow_table = false\ncontrol = \"equalise\"\ncookie_id_bits = 4\n\
                sampling = \"1/8\"\nslow_start = \"0s\"\nmin_healthy = 0\nhealth = {}";
    let vip = &balancer(keys).unwrap().vips[0];
    let nothing = changed_vip(vip, &serde_json::json!({})).unwrap();
    assert_eq!(nothing, **vip);
    let observe = changed_vip(vip, &serde_json::json!({ "control": "observe" })).unwrap();
    assert_eq!((observe.cookie, observe.flow_table), (vip.cookie, false));
    // Without its cookies its connections would move with the weights.
    let bare = VipConfig {
        cookie: None,
        ..(**vip).clone()
    };
    let error = changed_vip(&bare, &serde_json::json!({})).unwrap_err();
    assert!(
        error.contains("no cookies connections would move"),
        "{error}"
    );
    let real = |id: u16| serde_json::json!({ "address": "10.0.0.2", "id": id });
    assert_eq!(real_from_json(vip, real(15)).unwrap().id, Some(15));
    let error = real_from_json(vip, real(16)).unwrap_err();
    assert!(
        error.contains("id 16 is out of range; use 0 to 15"),
        "{error}"
    );
}

#[test]
fn cookies_that_cannot_be_are_refused_with_their_mend() {
    for (vip, expected) in [
        ("cookie = \"timestmp\"", "did you mean `timestamp`?"),
        (
            "cookie_bits = 40",
            "a cookie of this mode has 8 to 20 bits, not 40",
        ),
        ("cookie_bits = -1", "a cookie of this mode has 8 to 20 bits"),
        ("cookie_id_bits = 11", "room for 1 to 10 bits of id, not 11"),
        ("cookie_id_bits = 1", "id 3 is out of range; use 0 to 1"),
        ("cookie = \"timestamp\"\nprotocol = \"udp\"", "needs TCP"),
    ] {
        let error = balancer(vip).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let text = "interface = \"eth0\"\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\n\
                cookie = \"timestamp\"\nreal = [{ address = \"10.0.0.1\" }]\n";
    let error = BalancerConfig::parse(Path::new("lb.toml"), text).unwrap_err();
    assert!(error.to_string().contains("needs keys"), "{error}");
    let text = "interface = \"eth0\"\n[cookie]\nkeys = \"/nowhere/keys\"\n";
    let error = BalancerConfig::parse(Path::new("lb.toml"), text).unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("keys file /nowhere/keys: cannot be read"),
        "{said}"
    );
    assert!(
        said.contains("`causeway cookie new-keys` makes one"),
        "{said}"
    );
    let keys = tempfile::NamedTempFile::new().unwrap();
    fs::set_permissions(keys.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let text = text.replace("/nowhere/keys", &keys.path().display().to_string());
    let error = BalancerConfig::parse(Path::new("lb.toml"), &text).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("`chmod o= "), "{said}");
    assert!(!said.contains("new-keys"), "{said}");
}

#[test]
fn a_first_tier_needs_numbers_and_keeps_nothing() {
    let first = |head: &str, vip: &str| {
        let text = format!(
            "interface = \"eth0\"\n{head}\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\n\
             cookie = \"tier\"\n{vip}\n"
        );
        BalancerConfig::parse(Path::new("lb.toml"), &text).map_err(|e| e.to_string())
    };
    let (second, reals) = (
        "[stateful]\nbalancers = 4",
        "real = [{ address = \"10.0.0.1\", id = 3 }]",
    );
    let config = first(second, reals).unwrap();
    let vip = &config.vips[0];
    let format = vip.cookie.unwrap();
    assert_eq!(
        (format.mode(), format.bits(), format.id_bits()),
        (CookieMode::Tier, 15, 2)
    );
    assert!(vip.is_first_tier() && !vip.flow_table);
    for (head, vip, expected) in [
        ("", reals, "set `balancers` under [stateful]"),
        (second, "real = [{ address = \"10.0.0.1\" }]", "add id"),
        (
            second,
            "real = [{ address = \"10.0.0.1\", id = 4 }]",
            "id 4 is out of range; use 0 to 3",
        ),
        (
            second,
            "cookie_bits = 15\nreal = [{ address = \"10.0.0.1\", id = 3 }]",
            "remove cookie_bits",
        ),
        (
            "[stateful]\nbalancers = 4\nconnections = 1024",
            "stateful = true\nreal = [{ address = \"10.0.0.1\", id = 3 }]",
            "stateful is for the second",
        ),
        (
            "[encap]\ntunnel_ends = [\"10.0.0.1\", \"fd00::1\", \"10.0.0.2\"]\n[stateful]\nbalancers = 4",
            reals,
            "tunnels end at 10.0.0.1 already",
        ),
        (
            "[encap]\ntunnel_ends = [\"10.0.0.1\"]\n[stateful]\nbalancers = 4",
            reals,
            "`tunnel_sources` is missing; tunnels are opened from a first tier alone",
        ),
        (
            "[encap]\ntunnel_sources = [\"10.0.0.1\"]\n[stateful]\nbalancers = 4",
            reals,
            "no tunnel ends here; name this balancer's own address in `tunnel_ends`",
        ),
        (
            "[encap]\ntunnel_ends = [\"10.0.0.1\"]\ntunnel_sources = [\"10.0.0.9\"]\n[stateful]\nbalancers = 4",
            reals,
            "real 10.0.0.1 is this balancer itself, where `tunnel_ends` has tunnels end: its packets would come back; give the server's address",
        ),
    ] {
        let error = first(head, vip).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    let ends = "[encap]\ntunnel_ends = [\"fd00::1\"]\ntunnel_sources = [\"fd00::/64\", \"fd01::1\"]\n[stateful]\nbalancers = 4";
    let config = first(ends, reals).unwrap();
    let ends = config.tunnel_ends;
    assert_eq!((ends.v4, ends.v6), (None, "fd00::1".parse().ok()));
    let sources = [("fd00::", 64), ("fd01::1", 128)];
    let sources = sources.map(|(address, bits)| (address.parse().unwrap(), bits));
    assert_eq!(config.tunnel_sources, sources.into());
}
