// SPDX-License-Identifier: Apache-2.0
//! One meaning in several forms: pools, defaults and lists of ports; JSON; secrets elsewhere.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::*;

const IN_FULL: &str = r#"
interface = "eth0"
[[vip]]
name = "web-80"
address = "192.0.2.1"
port = 80
scheduler = "hash"
min_healthy = 2
health = { probe = "http", path = "/up" }
[[vip.real]]
address = "10.0.0.1"
[[vip.real]]
address = "10.0.0.2"
[[vip]]
name = "web-443"
address = "192.0.2.1"
port = 443
scheduler = "hash"
min_healthy = 2
health = { probe = "http", path = "/up" }
[[vip.real]]
address = "10.0.0.1"
[[vip.real]]
address = "10.0.0.2"
[[vip]]
address = "192.0.2.2"
port = 53
protocol = "udp"
scheduler = "maglev"
min_healthy = 1
[[vip.real]]
address = "10.0.0.9"
"#;

const SHORT: &str = r#"
interface = "eth0"
[defaults]
scheduler = "maglev"
min_healthy = 1
[pool.servers]
scheduler = "hash"
min_healthy = 2
health = { probe = "http", path = "/up" }
[[pool.servers.real]]
address = "10.0.0.1"
[[pool.servers.real]]
address = "10.0.0.2"
[[vip]]
name = "web"
address = "192.0.2.1"
port = [80, 443]
pool = "servers"
[[vip]]
address = "192.0.2.2"
port = 53
protocol = "udp"
[[vip.real]]
address = "10.0.0.9"
"#;

fn parse(text: &str) -> Result<BalancerConfig, ConfigErrors> {
    BalancerConfig::parse(Path::new("lb"), text)
}

/// What is wrong with keys and values, without that values were not looked at.
fn told(text: &str) -> String {
    let told = parse(text).unwrap_err().to_string();
    let unchecked = "\nlb: the values were not checked; mend these first";
    told.trim_end_matches(unchecked).to_owned()
}

#[test]
fn what_vips_share_is_written_once() {
    assert_eq!(parse(SHORT).unwrap(), parse(IN_FULL).unwrap());
}

#[test]
fn a_fault_of_what_is_shared_is_told_once_with_its_line() {
    let text = SHORT.replace("scheduler = \"hash\"", "scheduler = \"hsh\"");
    assert_eq!(
        told(&text),
        "lb:7: unknown scheduler `hsh`; did you mean `hash`?"
    );
    let text = SHORT.replace("scheduler = \"hash\"", "schedule = \"hash\"");
    assert_eq!(
        told(&text),
        "lb:7: unknown key `schedule`; did you mean `scheduler`?"
    );
    let text = SHORT.replace("min_healthy = 1", "min_healthy = \"1\"");
    assert_eq!(
        told(&text),
        "lb:5: invalid type: string \"1\", expected a whole number"
    );
}

#[test]
fn what_cannot_be_shared_is_refused() {
    for (from, to, expected) in [
        (
            "pool = \"servers\"",
            "pool = \"server\"",
            "lb:18: there is no pool `server`; did you mean `servers`?",
        ),
        (
            "pool = \"servers\"",
            "pool = \"x\"",
            "lb:18: there is no pool `x`; describe it in [pool.x]",
        ),
        (
            "[80, 443]",
            "[]",
            "lb:17: the list of ports is empty; write for example port = [80, 443]",
        ),
        (
            "[80, 443]",
            "[80, 80]",
            "lb:14: vip 192.0.2.1:80 tcp is given twice, first on line 14; merge the two",
        ),
        (
            "[80, 443]",
            "[80, \"x\"]",
            "lb:17: invalid type: string \"x\", expected a whole number",
        ),
        (
            "[defaults]",
            "[defaults]\nport = 80",
            "lb:4: `port` cannot stand in [defaults]: it is a VIP's own",
        ),
        (
            "[pool.servers]",
            "[pool.servers]\nname = \"a\"",
            "lb:7: `name` cannot stand in [pool.servers]: it is a VIP's own",
        ),
    ] {
        let told = told(&SHORT.replace(from, to));
        assert!(told.starts_with(expected), "{told}");
    }
}

/// The file as JSON has it.
fn as_json(text: &str) -> String {
    let value: toml::Table = toml::from_str(text).unwrap();
    serde_json::to_string_pretty(&value).unwrap()
}

#[test]
fn json_says_what_toml_says() {
    let example = include_str!("../../../../packaging/etc/causeway.toml");
    for text in [IN_FULL, SHORT, example] {
        assert_eq!(parse(&as_json(text)).unwrap(), parse(text).unwrap());
    }
    let named = as_json(SHORT).replacen('{', "{ \"$schema\": \"balancer.json\",", 1);
    assert_eq!(parse(&named).unwrap(), parse(SHORT).unwrap());
}

#[test]
fn faults_of_json_have_their_lines() {
    for (text, expected) in [
        (
            "{\n  \"interface\": \"eth0\",\n  \"xdp\": { \"mod\": 1 }\n}",
            "lb:3: unknown key `mod`; did you mean `mode`?",
        ),
        (
            "{\n  \"interface\": 5\n}",
            "lb:2: invalid type: integer `5`, expected a string",
        ),
        (
            "{\n  \"interface\": \"eth0\",\n  \"http\": null\n}",
            "lb:3: null is not a value; leave the key out",
        ),
        (
            "{\n  \"interface\": \"eth0\",\n  \"interface\": \"eth1\"\n}",
            "lb:3: `interface` stands here twice",
        ),
        (
            "{\n  \"interface\": \"eth0\",\n}",
            "lb:3: this is not valid JSON: key must be a string",
        ),
        (
            "{\n  \"interface\": \"\\ud800\"\n}",
            "lb:2: this is not valid JSON: unexpected end of hex escape",
        ),
        (
            "{ \"interface\": \"eth0\" } x",
            "lb:1: this is not valid JSON: trailing characters",
        ),
    ] {
        assert_eq!(told(text), expected);
    }
    let deep = format!(
        "{{ \"vip\": {}1{} }}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert_eq!(told(&deep), "lb:1: this is nested deeper than any key");
}

#[test]
fn a_secret_may_be_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hash.key");
    let key = "000102030405060708090a0b0c0d0e0f";
    let text = format!(
        "interface = \"eth0\"\nhash_key = {{ file = \"{}\" }}\n",
        file.display()
    );
    let place = format!("lb:2: file {}", file.display());
    assert!(told(&text).starts_with(&format!("{place}: cannot be read: ")));
    std::fs::write(&file, format!("{key}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(
        told(&text),
        format!(
            "{place}: every user of this machine can read it; `chmod o= {}`",
            file.display()
        )
    );
    for (written, shown) in [
        ("hash_key = \"00\"", Some("hash_key")),
        ("hash_key = { file = \"/k\" }", None),
        ("[fleet.store]\npassword = \"a\"", Some("store.password")),
        ("[api]\nkey = \"/k\"", None),
    ] {
        let name = file.display();
        let expected = shown.map(|key| format!("{name}: `{key}` stands in a file that every user of this machine can read; `chmod o= {name}`, or name a file that holds it"));
        assert_eq!(BalancerConfig::open_secret(&file, written), expected);
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(
        BalancerConfig::open_secret(&file, "hash_key = \"00\""),
        None
    );
    let inline = parse(&format!("interface = \"eth0\"\nhash_key = \"{key}\"\n")).unwrap();
    assert_eq!(parse(&text).unwrap(), inline);
    assert_eq!(
        told("interface = \"eth0\"\nhash_key = { env = \"CAUSEWAY_TEST_UNSET\" }\n"),
        "lb:2: environment variable CAUSEWAY_TEST_UNSET: is not set; a unit sets it by EnvironmentFile="
    );
    assert_eq!(
        told("interface = \"eth0\"\nhash_key = { path = \"/x\" }\n"),
        "lb:2: not a secret; write { file = \"/path\" }, { env = \"NAME\" }, or the text itself"
    );
}
