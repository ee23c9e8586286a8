// SPDX-License-Identifier: Apache-2.0
//! `[agent.clients]`: what it holds, and what is wrong with it.

use std::path::Path;

use causeway_api::agent::NewThreshold;
use causeway_core::certes::LINUX_6_5_S;

use super::*;
use crate::config::AgentConfig;

const GOOD: &str = r#"
[agent]
interface = "eth0"
accept_queue = "manage"
[agent.clients]
services = ["192.0.2.1:80", "*:443"]
prefixes = ["10.0.0.0/8"]
slot = "200ms"
[[agent.clients.retry]]
schedule = "linux"
patience = "9s"
[[agent.clients.threshold]]
name = "slow"
service = "*:443"
above = "2s"
"#;

fn parse(text: &str) -> Result<AgentConfig, String> {
    AgentConfig::parse(Path::new("agent.toml"), text).map_err(|errors| errors.to_string())
}

#[test]
fn a_server_without_tunnels_can_be_measured() {
    let config = parse(GOOD).unwrap();
    assert!(config.addresses.is_empty());
    let clients = config.clients.unwrap();
    assert_eq!(clients.interfaces, ["eth0"]);
    assert_eq!(clients.accept_queue, AcceptQueuePolicy::Manage);
    assert_eq!(clients.services[1], ("*:443".to_owned(), None, 443));
    assert_eq!(clients.thresholds[0].below, Duration::from_millis(1600));
    assert_eq!(
        clients.classes,
        [RetryClass::new("linux", LINUX_6_5_S, 9.0)]
    );
    let (path, size) = clients.history.unwrap();
    assert_eq!(
        (path.to_str().unwrap(), size),
        ("/var/lib/causeway/clients.history", 64 << 20)
    );
}

/// By its name the agent finds all retries of a class's schedule.
#[test]
fn lists_of_retries_have_names_of_their_own() {
    let retry = |retries, patience| {
        format!("[[agent.clients.retry]]\nretries = {retries}\npatience = \"{patience}s\"\n")
    };
    let lists = [
        retry(r#"["1s", "3s"]"#, 9),
        retry(r#"["2s", "6s"]"#, 9),
        retry(r#"["1s", "3s"]"#, 20),
    ];
    let clients = parse(&(GOOD.to_owned() + &lists.concat())).unwrap().clients;
    let names: Vec<String> = clients
        .unwrap()
        .classes
        .into_iter()
        .map(|of| of.name)
        .collect();
    assert_eq!(names, ["linux", "given 1", "given 2", "given 1"]);
}

#[test]
fn each_fault_is_one_sentence_with_its_place() {
    for (from, to, expected) in [
        (
            "slot = \"200ms\"",
            "slot = \"1.1s\"",
            "agent.toml:8: a slot of 1.1 s is not shorter than the first retry gap of class `linux` (1.02 s): take a slot below it",
        ),
        (
            "*:443\"]",
            "*:0\"]",
            "agent.toml:6: `*:0` is every service: that is what `others` measures",
        ),
        (
            "192.0.2.1:80",
            "192.0.2.1",
            "agent.toml:6: `192.0.2.1` is not a valid service; write for example 192.0.2.1:80, [2001:db8::1]:443 or *:8080",
        ),
        (
            "10.0.0.0/8",
            "10.0.0.1/8",
            "agent.toml:7: `10.0.0.1/8` has bits behind its length; set them to zero",
        ),
        (
            "schedule = \"linux\"",
            "schedule = \"linus\"",
            "agent.toml:10: unknown schedule `linus`; did you mean `linux`?",
        ),
        (
            "service = \"*:443\"",
            "service = \"*:444\"",
            "agent.toml:12: threshold slow is for the service `*:444`, which `services` does not name",
        ),
        (
            // One that is wrong by itself does not lend its place to the next.
            "[[agent.clients.threshold]]",
            "[[agent.clients.threshold]]\nname = \"first\"\n[[agent.clients.threshold]]\nservice = \"*:9\"\nabove = \"1s\"\n[[agent.clients.threshold]]",
            "agent.toml:14: threshold client-response-time is for the service `*:9`, which `services` does not name",
        ),
        (
            "above = \"2s\"",
            "above = \"2s\"\nbelow = \"3s\"",
            "agent.toml:12: `below` is more than `above`: the threshold would never end",
        ),
        (
            "above = \"2s\"",
            "above = \"2s\"\nclients = \"10.1.0.0/16\"",
            "agent.toml:12: threshold slow is for the clients `10.1.0.0/16`, which `prefixes` does not name",
        ),
        (
            "above = \"2s\"",
            "above = \"2s\"\nstatistic = \"p100\"",
            "agent.toml:16: `p100` is not a statistic; write mean, or a percentile from p1 to p99.9, for example p99",
        ),
        (
            "above = \"2s\"",
            "above = \"2s\"\nwindow = \"2m\"",
            "agent.toml:12: window must lie between 1s and 60s",
        ),
        (
            "above = \"2s\"",
            "above = \"2s\"\nwebhook = \"https://x/\"",
            "agent.toml:16: `https://x/` is not an http:// address; for TLS let `exec` call curl",
        ),
        (
            "slot = \"200ms\"",
            "backlog = [9, 3]",
            "agent.toml:8: backlog is a least and a largest limit from 1 to 65535, for example backlog = [16, 4096]",
        ),
    ] {
        let text = parse(&GOOD.replacen(from, to, 1)).expect_err(to);
        assert!(text.lines().any(|line| line == expected), "{text}");
    }
    let alone = "[agent]\ninterface = \"eth0\"\naddresses = [\"10.0.0.1\"]\nvips = [\"192.0.2.1\"]\n\
                 balancers = [\"10.0.0.254\"]\naccept_queue = \"manage\"\n";
    assert_eq!(
        parse(alone).unwrap_err(),
        "agent.toml:6: `accept_queue` goes by client latency; add [agent.clients], which measures it"
    );
}

/// What user space alone decides changes while the agent runs.
#[test]
fn a_restart_is_needed_for_what_the_kernel_counts_by_and_its_key_is_named() {
    let running = parse(GOOD).unwrap();
    for (from, to, key) in [
        ("*:443\"]", "*:443\", \"*:444\"]", Some("clients.services")),
        ("10.0.0.0/8", "10.0.0.0/9", Some("clients.prefixes")),
        ("200ms", "250ms", Some("clients.slot")),
        ("slot", "others = false\nslot", Some("clients.others")),
        (
            "slot",
            "half_open = \"1Ki\"\nslot",
            Some("clients.half_open"),
        ),
        (
            "slot",
            "connections = \"1Ki\"\nslot",
            Some("clients.connections"),
        ),
        (
            "slot",
            "interfaces = [\"eth1\"]\nslot",
            Some("clients.interfaces"),
        ),
        ("\"2s\"", "\"3s\"", None),
        ("\"2s\"", "\"2s\"\nstatistic = \"p99.9\"", None),
        ("\"9s\"", "\"21s\"", None),
        ("slot", "learn = false\nslot", None),
        ("slot", "history = \"\"\nslot", None),
        (
            "slot",
            "backlog = [1, 2]\nbacklog_period = \"1s\"\nslot",
            None,
        ),
        ("manage", "observe", None),
    ] {
        let wanted = parse(&GOOD.replacen(from, to, 1)).expect(to);
        assert_eq!(wanted.needs_restart(&running), key, "{to}");
        assert_ne!(wanted, running, "{to}");
    }
    let without = "[agent]\ninterface = \"eth0\"\naddresses = [\"10.0.0.1\"]\nvips = [\"192.0.2.1\"]\n\
                   balancers = [\"10.0.0.254\"]\n";
    let without = parse(without).unwrap();
    assert_eq!(without.needs_restart(&running), Some("clients"));
}

#[test]
fn what_is_asked_for_at_run_time_is_checked_as_the_files() {
    let config = parse(GOOD).unwrap().clients.unwrap();
    let asked = |more: &str| {
        let text = format!("{{\"above_s\": 2{more}}}");
        let by: NewThreshold = serde_json::from_str(&text).expect("JSON");
        Threshold::asked(&by, &config)
    };
    let found = asked(
        ", \"service\": \"others\", \"clients\": \"10.0.0.0/8\", \"statistic\": \"p99.9\", \"window_s\": 60",
    )
    .unwrap();
    assert_eq!(found.name, "client-response-time");
    assert_eq!(found.statistic, Statistic::Percentile(99.9));
    assert_eq!(found.statistic.to_string(), "p99.9");
    assert_eq!(found.below, Duration::from_millis(1600));
    assert_eq!(found.lasting, Duration::from_secs(5));
    assert!(found.is_about("others", "10.0.0.0/8"));
    assert!(!found.is_about("*:443", "10.0.0.0/8") && !found.is_about("others", "others"));
    for (more, expected) in [
        (
            ", \"service\": \"*:9\"",
            "threshold client-response-time is for the service `*:9`, which `services` does not name",
        ),
        (
            ", \"clients\": \"10.0.0.0/9\"",
            "threshold client-response-time is for the clients `10.0.0.0/9`, which `prefixes` does not name",
        ),
        (
            ", \"clients\": \"all\"",
            "`all` is not a valid prefix; write for example 10.0.0.0/8 or 2001:db8::/32",
        ),
        (
            ", \"statistic\": \"median\"",
            "`median` is not a statistic; write mean, or a percentile from p1 to p99.9, for example p99",
        ),
        (
            ", \"below_s\": 3",
            "`below` is more than `above`: the threshold would never end",
        ),
        (
            ", \"for_s\": -1",
            "for_s -1 is out of range; write seconds from 0 to 86400",
        ),
        (", \"window_s\": 61", "window must lie between 1s and 60s"),
        (
            ", \"name\": \"\"",
            "the name `` is not valid; use 1 to 64 bytes without control characters",
        ),
    ] {
        assert_eq!(asked(more).unwrap_err(), expected);
    }
}
