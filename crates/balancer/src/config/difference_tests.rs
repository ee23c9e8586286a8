// SPDX-License-Identifier: Apache-2.0
//! What two files differ in.

use std::path::Path;

use super::*;

const FORMER: &str = r#"
interface = "eth0"
hash_key = "000102030405060708090a0b0c0d0e0f"
[[vip]]
name = "web"
address = "192.0.2.1"
port = 80
[[vip.real]]
address = "10.0.0.1"
[[vip.real]]
address = "10.0.0.2"
weight = 3
[[vip]]
name = "api"
address = "192.0.2.1"
port = 443
[[vip.real]]
address = "10.0.0.1"
"#;

/// Each change in one line.
fn changes(new: &str) -> Vec<String> {
    let parse = |text: &str| BalancerConfig::parse(Path::new("lb"), text).unwrap();
    let changes = parse(new).changes(&parse(FORMER));
    let lines = changes.iter().map(|change| {
        let said = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let restart = match (change.needs_unload, change.needs_restart) {
            (true, _) => " (unload)",
            (false, true) => " (restart)",
            (false, false) => "",
        };
        format!(
            "{:?} {} {} {}: {} > {}{restart}",
            change.change,
            said(&change.vip),
            said(&change.real),
            said(&change.key),
            said(&change.from),
            said(&change.to)
        )
    });
    lines.collect()
}

#[test]
fn a_reload_says_what_takes_a_change_that_it_does_not() {
    let parse = |text: &str| BalancerConfig::parse(Path::new("lb"), text).unwrap();
    let mode = |mode: &str| format!("{FORMER}[xdp]\nmode = \"{mode}\"\n");
    let why = |from: &str, to: &str| parse(to).refused_by_reload(&parse(from));
    let unload = |key: &str, from: &str, to: &str| {
        let why = why(from, to).unwrap();
        assert!(
            why.starts_with(&format!(
                "a change of `{key}` needs the data plane taken down"
            )) && why.contains("stop the daemon, `causeway lb unload --yes`"),
            "{why}"
        );
        why
    };
    unload("xdp.mode", FORMER, &mode("generic"));
    unload("xdp.mode", &mode("generic"), &mode("native"));
    unload("interface", FORMER, &FORMER.replace("eth0", "eth1"));
    let pins = format!("pin_dir = \"/sys/fs/bpf/other\"\n{FORMER}");
    assert!(unload("pin_dir", FORMER, &pins).ends_with("with the former pin_dir, start it"));
    // Auto goes on as it is.
    let restart = why(&mode("generic"), FORMER).unwrap();
    assert!(
        restart.starts_with("a change of `xdp.mode` needs a restart of the daemon"),
        "{restart}"
    );
    let both = format!("http = false\n{}", mode("generic"));
    let both = unload("xdp.mode", FORMER, &both);
    assert!(
        both.contains("; a change of `http` needs a restart of"),
        "{both}"
    );
    assert_eq!(why(FORMER, FORMER), None);
}

#[test]
fn a_change_is_a_line_of_the_log() {
    let parse = |text: &str| BalancerConfig::parse(Path::new("lb"), text).unwrap();
    let new = FORMER
        .replace("weight = 3", "weight = 4")
        .replace("443", "444");
    let changes = parse(&new).changes(&parse(FORMER));
    let lines: Vec<_> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "web 10.0.0.2 weight: 3 -> 4",
            "api removed: 192.0.2.1:443/tcp with 1 real",
            "api added: 192.0.2.1:444/tcp with 1 real",
        ]
    );
}

#[test]
fn the_same_has_no_changes_in_whatever_form_and_order() {
    assert!(changes(FORMER).is_empty());
    let (head, vips) = FORMER.split_at(FORMER.find("[[vip]]").unwrap());
    let (web, api) = vips.split_at(vips.rfind("[[vip]]").unwrap());
    assert!(changes(&format!("{head}{api}{web}")).is_empty());
}

#[test]
fn a_change_names_its_place_and_both_values() {
    for (from, to, expected) in [
        (
            "port = 80",
            "port = 80\nscheduler = \"latency\"",
            &[
                "Changed web - scheduler: maglev > latency",
                "Changed web - control: off > equalise",
            ][..],
        ),
        (
            "weight = 3",
            "weight = 5\ndrain = true",
            &[
                "Changed web 10.0.0.2 weight: 3 > 5",
                "Changed web 10.0.0.2 drain: false > true",
            ],
        ),
        (
            "\"10.0.0.2\"",
            "\"10.0.0.3\"",
            &[
                "Removed web 10.0.0.2 -: weight 3 > -",
                "Added web 10.0.0.3 -: - > weight 3",
            ],
        ),
        (
            "port = 443",
            "port = 444",
            &[
                "Removed api - -: 192.0.2.1:443/tcp with 1 real > -",
                "Added api - -: - > 192.0.2.1:444/tcp with 1 real",
            ],
        ),
        (
            "port = 443",
            "port = 443\nhealth = { probe = \"tcp\", port = 5 }\nlimit = { rate = 5.0, burst = 9 }",
            &[
                "Changed api - health: none > {\"fall\":3,\"interval\":\"2000000000ns\",\"passive\":false,\"port\":5,\"probe\":\"tcp\",\"rise\":2,\"timeout\":\"1000000000ns\"}",
                "Changed api - limit: none > {\"burst\":9,\"prefix4\":32,\"prefix6\":64,\"rate\":5.0}",
            ],
        ),
        (
            "interface = \"eth0\"",
            "interface = \"eth1\"\nhistory = { length = \"5m\" }\ncontrol = { floor = 0.5, interval = \"1s\" }\nstateful = { idle = \"90s\" }\nencap = { source = \"10.1.0.0/16\" }",
            &[
                "Changed - - interface: eth0 > eth1 (unload)",
                "Changed - - encap.source: none > 10.1.0.0/16",
                "Changed - - stateful.idle: 3600s > 90s (restart)",
                "Changed - - control.interval: 100ms > 1s",
                "Changed - - control.floor: 0.02 > 0.5",
                "Changed - - history.length: 600s > 300s",
            ],
        ),
        // A secret is not shown.
        (
            "0a0b0c",
            "ffffff",
            &["Changed - - hash_key: - > - (restart)"],
        ),
    ] {
        let new = FORMER.replace(from, to);
        assert_eq!(changes(&new), expected);
    }
}

#[test]
fn every_constant_of_the_controller_is_told() {
    let schema: serde_json::Value = serde_json::from_str(&BalancerConfig::schema()).unwrap();
    let keys = schema["definitions"]["RawControl"]["properties"].as_object();
    for key in keys.unwrap().keys() {
        let is_told = |value: &str| {
            let text = format!("control.{key} = {value}\n{FORMER}");
            let told = format!("Changed - - control.{key}: ");
            BalancerConfig::parse(Path::new("lb"), &text).is_ok()
                && changes(&text).iter().any(|line| line.starts_with(&told))
        };
        let values = ["0.6", "1.3", "7", "\"1s\"", "\"watermark\""];
        assert!(values.into_iter().any(is_told), "{key}");
    }
}
