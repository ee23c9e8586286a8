// SPDX-License-Identifier: Apache-2.0

use causeway_bifrost::Schedule;

use super::*;

const GOOD: &str = r#"
[tunnel]
device = "cw0"
addresses = ["10.5.0.1/24", "fd05::1/64"]
keys = "none"
threads = 2
[tunnel.engine]
schedule = "spray"
rto = "4ms"
[[tunnel.path]]
id = 0
local = "192.0.2.1:7000"
remote = "192.0.2.2:7000"
[[tunnel.path]]
id = 3
local = "192.0.2.1:7010"
remote = "192.0.2.2:7010"
mtu = 1400
"#;

fn parse(text: &str) -> Result<TunnelConfig, ConfigErrors> {
    TunnelConfig::parse(Path::new("tunnel.toml"), text)
}

#[test]
fn a_good_file_gives_its_values() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.summary(), "cw0 with 2 paths and 2 threads, in clear");
    assert_eq!(config.paths[&3].mtu, Some(1400));
    assert_eq!(config.engine.rto, Rto::Fixed(4_000_000));
    assert_eq!(config.engine.schedule, Schedule::Spray);
    assert_eq!(config.http, Some("127.0.0.1:9473".parse().unwrap()));
    assert_eq!(config.needs_restart(&config), None);
    let other = parse(&GOOD.replace("threads = 2", "threads = 3")).unwrap();
    assert_eq!(other.needs_restart(&config), Some("threads"));
    // Paths come and go.
    let other = parse(&GOOD.replace("id = 3", "id = 4")).unwrap();
    assert_eq!(other.needs_restart(&config), None);
}

#[test]
fn a_start_does_without_files_of_the_api() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "{GOOD}[tunnel.api]\nlisten = \"127.0.0.1:9475\"\ncertificate = \"/nowhere/c\"\nkey = \"/nowhere/k\"\ntokens = \"/nowhere/t\"\n"
    );
    std::fs::write(file.path(), &text).unwrap();
    let errors = TunnelConfig::load(file.path()).unwrap_err();
    assert_eq!(errors.faults.len(), 3, "{errors}");
    let start = TunnelConfig::load_to_start(file.path()).unwrap();
    assert!(start.config.api.is_some() && start.refusal().is_some());
    std::fs::write(file.path(), text.replace("mtu = 1400", "mtu = 1")).unwrap();
    let errors = TunnelConfig::load_to_start(file.path()).unwrap_err();
    assert_eq!(errors.faults.len(), 4, "{errors}");
}

#[test]
fn each_fault_is_one_sentence_with_its_place() {
    for (from, to, expected) in [
        (
            "device = \"cw0\"",
            "",
            "tunnel.toml: `device` is missing; name the TUN device that guests are routed to, for example device = \"cw0\"",
        ),
        (
            "keys = \"none\"",
            "",
            "tunnel.toml: `keys` is missing; name the file with the keys of both ends, for example keys = \"/etc/causeway/tunnel.keys\", or write keys = \"none\" to send everything in clear",
        ),
        (
            "keys = \"none\"",
            "keys = \"/nowhere/keys\"",
            "tunnel.toml:5: keys file /nowhere/keys: cannot be read: No such file or directory (os error 2); write `send = 1`, `[keys]` and `1 = \"KEY\"` into it, a line each, with KEY from `openssl rand -hex 32`, and copy it to the other end",
        ),
        (
            "device =",
            "devise =",
            "tunnel.toml:3: unknown key `devise`; did you mean `device`?",
        ),
        (
            "10.5.0.1/24",
            "10.5.0.1",
            "tunnel.toml:4: `10.5.0.1` is not an address with a prefix length; write for example 10.5.0.1/24",
        ),
        (
            "threads = 2",
            "threads = 0",
            "tunnel.toml:6: threads must lie between 1 and 64",
        ),
        (
            "spray",
            "sprey",
            "tunnel.toml:8: unknown schedule `sprey`; did you mean `spray`?",
        ),
        (
            "4ms",
            "4",
            "tunnel.toml:9: rto = \"4\" is neither \"adaptive\" nor a time from 100us to 1s, such as \"4ms\"",
        ),
        (
            "192.0.2.2:7010",
            "[2001:db8::2]:7010",
            "tunnel.toml:14: local 192.0.2.1:7010 and remote [2001:db8::2]:7010 are not of one family",
        ),
        (
            "192.0.2.1:7010",
            "192.0.2.1:7001",
            "tunnel.toml:14: path 3 and path 0 share local ports: each takes 2 ports, from its own on",
        ),
        (
            "192.0.2.1:7010",
            "192.0.2.1:65535",
            "tunnel.toml:16: `192.0.2.1:65535`: the threads take ports from 65535 to 65536, which must lie between 1 and 65535",
        ),
        (
            "192.0.2.1:7010",
            "192.0.2.1",
            "tunnel.toml:16: `192.0.2.1` is not an address with a port; write for example 192.0.2.1:7000 or [2001:db8::1]:7000",
        ),
        ("id = 3", "id = 0", "tunnel.toml:14: path 0 is given twice"),
        (
            "id = 3",
            "id = 16",
            "tunnel.toml:15: id must lie between 0 and 15",
        ),
        (
            "mtu = 1400",
            "mtu = 576",
            "tunnel.toml:18: mtu must lie between 1280 and 65535",
        ),
    ] {
        let errors = parse(&GOOD.replacen(from, to, 1)).expect_err(to);
        let text = errors.to_string();
        assert!(text.lines().any(|line| line == expected), "{text}");
    }
    assert_eq!(
        parse("").unwrap_err().to_string(),
        "tunnel.toml: `[tunnel]` is missing; a tunnel's file has all its keys in that table"
    );
    let without = GOOD.split("[[tunnel.path]]").next().unwrap();
    assert_eq!(
        parse(without).unwrap_err().to_string(),
        "tunnel.toml: there is no [[tunnel.path]]; a tunnel needs one at least, with id, local and remote"
    );
}

#[test]
fn the_example_is_valid_and_its_comments_name_the_defaults() {
    let example = include_str!("../../../../packaging/etc/causeway-tunnel.toml")
        .replace("\"/etc/causeway/tunnel.keys\"", "\"none\"");
    let uncommented: Vec<&str> = example
        .lines()
        .map(|line| line.strip_prefix("#: ").unwrap_or(line))
        .collect();
    assert_ne!(uncommented.join("\n"), example);
    assert_eq!(parse(&uncommented.join("\n")), parse(&example));
    assert!(parse(&example).is_ok());
}

#[test]
fn the_kinds_of_file_are_told_apart() {
    assert!(is_tunnels(GOOD));
    assert!(!is_tunnels("[agent]\n"));
}
