// SPDX-License-Identifier: Apache-2.0
//! Bad files and the sentences they give; good files and their values.

use std::path::Path;
use std::time::Duration;

use super::*;

const GOOD: &str = r#"
interface = "eth0"
[control]
interval = "50ms"
floor = 0.05
[flow_table]
ipv4 = "1Mi"
ipv6 = 65536
[encap]
source = "10.9.0.0/16"
gateway_mac = "02:00:00:00:00:01"
[[vip]]
name = "web"
address = "192.0.2.1"
port = 80
scheduler = "latency"
[[vip.real]]
address = "10.0.0.1"
[[vip.real]]
address = "10.0.0.2"
weight = 3
drain = true
[[vip]]
address = "2001:db8::1"
port = 0
protocol = "udp"
forwarding = "l2"
[[vip.real]]
address = "10.0.0.1"
mac = "02:00:00:00:00:02"
"#;

fn parse(text: &str) -> Result<BalancerConfig, ConfigErrors> {
    BalancerConfig::parse(Path::new("lb.toml"), text)
}

#[test]
fn a_good_file_gives_its_values() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.summary(), "2 VIPs with 3 reals on eth0");
    assert_eq!(config.control.interval_ns, 50_000_000);
    assert_eq!(config.control.floor, 0.05);
    assert_eq!((config.flows_v4, config.flows_v6), (1 << 20, 65536));
    assert_eq!(
        config.encap.source_v4,
        Some((Ipv4Addr::new(10, 9, 0, 0), 16))
    );
    assert_eq!(config.pin_dir, Path::new("/sys/fs/bpf/causeway"));
    assert_eq!(config.http, Some("127.0.0.1:9470".parse().unwrap()));
    let [web, other] = &config.vips[..] else {
        panic!("two VIPs")
    };
    assert_eq!(web.control, Control::Equalise);
    assert_eq!(web.reals[1].weight, 3);
    assert!(web.reals[1].drain);
    assert_eq!(other.name, "[2001:db8::1]:*/udp");
    assert_eq!(other.reals[0].mac.unwrap().to_string(), "02:00:00:00:00:02");
}

/// Each case: the good file with one text replaced, and the exact fault.
const BAD: &[(&str, &str, &str)] = &[
    (
        "interface = \"eth0\"",
        "",
        "lb.toml: `interface` is missing; name the interface that clients' packets enter by, for example interface = \"eth0\"",
    ),
    (
        "eth0",
        "a/b",
        "lb.toml:2: `a/b` is not a valid interface name; it must have 1 to 15 characters without `/` and blanks",
    ),
    (
        "interface =",
        "interfaec =",
        "lb.toml:2: unknown key `interfaec`; did you mean `interface`?",
    ),
    (
        "weight = 3",
        "wieght = 3",
        "lb.toml:21: unknown key `wieght`; did you mean `weight`?",
    ),
    (
        "weight = 3",
        "weight = 65536",
        "lb.toml:21: weight 65536 is out of range; use 0 (no new connections) to 65535",
    ),
    (
        "port = 80\n",
        "port = 80\nslow_start = \"2h\"\n",
        "lb.toml:16: slow_start must lie between 0s and 1h",
    ),
    (
        "scheduler = \"latency\"\n",
        "scheduler = \"hash\"\nslow_start = \"5s\"\n",
        "lb.toml:17: `slow_start` has no meaning with scheduler = \"hash\", to which all weights are alike; remove it, or use maglev or weighted-round-robin",
    ),
    (
        "weight = 3",
        "weight = -1",
        "lb.toml:21: weight -1 is out of range; use 0 (no new connections) to 65535",
    ),
    (
        "\"50ms\"",
        "\"50\"",
        "lb.toml:4: `50` has no unit; write for example \"100ms\" or \"2s\"",
    ),
    (
        "\"50ms\"",
        "50",
        "lb.toml:4: `50` has no unit; write for example \"100ms\" or \"2s\"",
    ),
    (
        "\"50ms\"",
        "\"-3s\"",
        "lb.toml:4: `-3s` is below zero; a time is 0s or more",
    ),
    ("weight = 3", "weight =", "lb.toml:21: the key has no value"),
    (
        "name = \"web\"",
        "name = \"a\\nb/c\"",
        "lb.toml:13: `a\\nb/c` is not a valid name; use up to 200 of letters, digits and ._:-@/",
    ),
    (
        "weight = 3",
        "weight = 3\nweight = 4",
        "lb.toml:22: `weight` is given twice, first on line 21",
    ),
    (
        "weight = 3",
        "weight = 999999999999999999999",
        "lb.toml:21: `999999999999999999999` is out of range",
    ),
    (
        "[encap]",
        "[control]",
        "lb.toml:9: `control` is given twice, first on line 3",
    ),
    (
        "weight = 3",
        "weight",
        "lb.toml:21: there is no `=` behind the key; write KEY = VALUE",
    ),
    (
        "\"50ms\"",
        "\"1ms\"",
        "lb.toml:4: control interval must lie between 10ms and 10s",
    ),
    (
        "floor = 0.05",
        "floor = 0.0",
        "lb.toml:5: floor must lie between 0.001 and 1",
    ),
    (
        "floor = 0.05",
        "min_samples = 0",
        "lb.toml:5: min_samples must lie between 1 and 100000",
    ),
    (
        "floor = 0.05",
        "alpha_low = 2.0",
        "lb.toml:5: alpha_low (2) is above alpha_high (1.5); a real would give and receive at once",
    ),
    (
        "\"1Mi\"",
        "\"1Gi\"",
        "lb.toml:7: `Gi` is not a valid suffix; use k, M, Ki or Mi",
    ),
    (
        "\"1Mi\"",
        "12",
        "lb.toml:7: flow table size must lie between 1Ki and 16Mi",
    ),
    (
        "10.9.0.0/16",
        "10.9.0.0/33",
        "lb.toml:10: `10.9.0.0/33` is not a valid source; write for example 10.0.0.1 or 10.1.0.0/16",
    ),
    (
        "00:00:01",
        "00:00",
        "lb.toml:11: `02:00:00:00:00` is not a valid Ethernet address; write for example 02:00:00:00:00:01",
    ),
    (
        "\"02:00:00:00:00:01",
        "\"03:00:00:00:00:01",
        "lb.toml:11: `03:00:00:00:00:01` is a group address; a next hop has a unicast one",
    ),
    (
        "192.0.2.1",
        "192.0.2.1:80",
        "lb.toml:14: `192.0.2.1:80` holds a port; give the address alone (reals get the VIP's port, direct server return cannot remap it)",
    ),
    (
        "192.0.2.1",
        "192.0.2",
        "lb.toml:14: `192.0.2` is not a valid IP address; write for example 192.0.2.1 or 2001:db8::1",
    ),
    (
        "192.0.2.1",
        "224.0.0.1",
        "lb.toml:14: `224.0.0.1` is not the address of a single host",
    ),
    (
        "192.0.2.1",
        "::ffff:192.0.2.1",
        "lb.toml:14: `::ffff:192.0.2.1` is an IPv4 address in IPv6 clothes; write it as IPv4",
    ),
    (
        "port = 80",
        "port = 80000",
        "lb.toml:15: port 80000 is out of range; use 1 to 65535, or 0 for every port",
    ),
    (
        "port = 80",
        "",
        "lb.toml:12: the vip has no `port`; add for example port = 80, or port = 0 for every port",
    ),
    (
        "\"latency\"",
        "\"latancy\"",
        "lb.toml:16: unknown scheduler `latancy`; did you mean `latency`?",
    ),
    (
        "\"latency\"",
        "\"xyz\"",
        "lb.toml:16: unknown scheduler `xyz`; choose one of maglev, hash, round-robin, weighted-round-robin, p2c, least-loaded, awrr, latency",
    ),
    (
        "\"latency\"",
        "\"latency\"\ncontrol = \"off\"",
        "lb.toml:17: scheduler = \"latency\" needs control = \"equalise\", \"watermark\", \"watermark-paper\" or \"observe\"; for fixed weights use scheduler = \"maglev\"",
    ),
    (
        "\"latency\"",
        "\"hash\"\ncontrol = \"watermark\"",
        "lb.toml:17: control = \"watermark\" moves weights, which scheduler = \"hash\" does not take from it; use scheduler = \"latency\", \"maglev\" or \"weighted-round-robin\", or control = \"observe\"",
    ),
    (
        "[control]",
        "[measure]\nenabled = false\n[control]",
        "lb.toml:18: the controller needs measured latency; set enabled = true under [measure]",
    ),
    (
        "10.0.0.2",
        "10.0.0.1",
        "lb.toml:19: real 10.0.0.1 is given twice in one vip, first on line 17; add up the weights in one entry",
    ),
    (
        "10.0.0.2",
        "192.0.2.1",
        "lb.toml:20: real 192.0.2.1 is the vip's own address; give the server's",
    ),
    (
        "address = \"10.0.0.2\"",
        "",
        "lb.toml:19: the real has no `address`; add for example address = \"10.0.0.1\"",
    ),
    (
        "\"udp\"",
        "\"upd\"",
        "lb.toml:26: unknown protocol `upd`; did you mean `udp`?",
    ),
    (
        "\"l2\"",
        "\"gue\"",
        "lb.toml:30: real 10.0.0.1 has a `mac`, which forwarding = \"gue\" does not use; remove it or use \"l2\"",
    ),
    (
        "mac = \"02:00:00:00:00:02\"",
        "",
        "lb.toml:28: real 10.0.0.1 has no `mac`, which forwarding = \"l2\" needs; add mac = \"02:00:00:00:00:01\", on a command line --mac 02:00:00:00:00:01",
    ),
    (
        "drain = true",
        "drain = true\nmac = \"02:00:00:00:00:02\"",
        "lb.toml:23: real 10.0.0.2 has a `mac`, which forwarding = \"ipip\" does not use; remove it or use \"l2\"",
    ),
    (
        "2001:db8::1\"\nport = 0\nprotocol = \"udp\"",
        "192.0.2.1\"\nport = 80",
        "lb.toml:23: vip 192.0.2.1:80 tcp is given twice, first on line 12; merge the two",
    ),
    (
        "[[vip]]\naddress = \"2001:db8::1\"",
        "[[vip]]\nname = \"web\"\naddress = \"2001:db8::1\"",
        "lb.toml:23: the name `web` is used twice, first on line 12; names must be unique",
    ),
    (
        "[control]",
        "http = \"0.0.0.0:9470\"\n[control]",
        "lb.toml:3: http on 0.0.0.0:9470 would be read by other hosts in clear; serve them by `[api]` with TLS and tokens, and use a loopback address such as 127.0.0.1:9470 here",
    ),
    (
        "[control]",
        "socket = \"lb.sock\"\n[control]",
        "lb.toml:3: `lb.sock` is not an absolute path; begin it with `/`",
    ),
    (
        "[control]",
        "hash_key = \"0123456789abcdef\"\n[control]",
        "lb.toml:3: hash_key must be 32 hexadecimal digits, the same on every balancer; make one with `openssl rand -hex 16`",
    ),
    (
        "[control]",
        "hash_key = \"00000000000000000000000000000000\"\n[control]",
        "lb.toml:3: a hash_key of zeros is not secret; make one with `openssl rand -hex 16`",
    ),
    (
        "[control]",
        "hash_key = \"+123456789abcdef0123456789abcdef\"\n[control]",
        "lb.toml:3: hash_key must be 32 hexadecimal digits, the same on every balancer; make one with `openssl rand -hex 16`",
    ),
    (
        "[control]",
        "[xdp]\nmode = \"navite\"\n[control]",
        "lb.toml:4: unknown XDP mode `navite`; did you mean `native`?",
    ),
    (
        "[control]",
        "[history]\nlength = \"2d\"\n[control]",
        "lb.toml:4: `d` is not a unit of time; use ns, us, ms, s, m or h",
    ),
    (
        "[encap]",
        "[encap]\ngue_port = 0",
        "lb.toml:10: gue_port must lie between 1 and 65535",
    ),
    (
        "scheduler = \"latency\"",
        "fragments = \"forward\"\n[[vip.real]]\naddress = \"10.0.0.1\"\n[[vip]]\naddress = \"192.0.2.1\"\nport = 81\nfragments = \"forward\"",
        "lb.toml:19: two vips of 192.0.2.1 take tcp fragments, the first on line 12; fragments have no port, so that one vip of an address and protocol may have fragments = \"forward\"",
    ),
    (
        "scheduler = \"latency\"",
        "scheduler = \"p2c\"\nfragments = \"forward\"",
        "lb.toml:17: fragments = \"forward\" goes by the client's address, which scheduler = \"p2c\" does not; use maglev, hash or latency",
    ),
    (
        "scheduler = \"latency\"",
        "scheduler = \"p2c\"\naffinity = \"client\"",
        "lb.toml:17: affinity = \"client\" goes by the client's address, which scheduler = \"p2c\" does not; use maglev, hash or latency",
    ),
    (
        "[control]",
        "[stateful]\nbalancers = 3\n[control]",
        "lb.toml:4: balancers must be 1, 2, 4, 8 or 16",
    ),
    (
        "[control]",
        "[stateful]\nbalancers = 4\nnumber = 4\n[control]",
        "lb.toml:5: number must lie between 0 and 3, one below balancers",
    ),
    (
        "[control]",
        "[limits]\nreals = 0\n[control]",
        "lb.toml:4: limits.reals must lie between 1 and 1Mi",
    ),
    (
        "[control]",
        "[limits]\nvips = 1\n[control]",
        "lb.toml: 2 VIPs are more than limits.vips = 1; raise vips under [limits], whose memory `causeway config check` prints",
    ),
    (
        "[control]",
        "[limits]\nreals = 2\n[control]",
        "lb.toml: 3 reals of all VIPs are more than limits.reals = 2; raise reals under [limits], whose memory `causeway config check` prints",
    ),
    (
        "[control]",
        "[stateful]\nconnections = 0\n[control]",
        "lb.toml:4: connections must lie between 1 and 16Mi",
    ),
    (
        "[control]",
        "[stateful]\ntoken_source = \"10.8.1.0/16\"\n[control]",
        "lb.toml:4: `10.8.1.0/16` is not a valid source of tokens; write a network of 16 bits, for example 10.8.0.0/16",
    ),
];

#[test]
fn each_fault_is_one_sentence_with_its_place() {
    for (from, to, expected) in BAD {
        assert!(GOOD.contains(from), "{from} is not in the good file");
        let errors = parse(&GOOD.replacen(from, to, 1)).expect_err(to);
        let text = errors.to_string();
        assert!(
            text.lines().any(|line| line == *expected),
            "replacing {from:?} by {to:?}:\n got {text}\nwant {expected}"
        );
    }
}

#[test]
fn stateful_vips_need_places_a_tunnel_and_a_way_to_tell() {
    let with = |table: &str, keys: &str| {
        let text = GOOD.replace("[control]", &format!("[stateful]\n{table}\n[control]"));
        parse(&text.replace(
            "scheduler = \"latency\"",
            &format!("stateful = true\n{keys}"),
        ))
    };
    let slots = "connections = \"1Mi\"";
    let refused = |table: &str, keys: &str| with(table, keys).expect_err(keys).to_string();
    assert!(refused("", "").contains("vip web: stateful needs connection slots"));
    assert!(refused(slots, "").contains("stateful over ipip needs token_source "));
    assert!(refused(slots, "protocol = \"udp\"").contains("stateful is for tcp"));
    let l2 = "forwarding = \"l2\"";
    assert!(refused(slots, l2).contains("stateful needs a tunnel"));
    let config = with(slots, "forwarding = \"gue\"").unwrap();
    assert_eq!(
        (config.stateful.connections, config.vips[0].stateful),
        (1 << 20, true)
    );
    with(&format!("{slots}\ntoken_source = \"10.8.0.0/16\""), "").unwrap();
    let gue = "forwarding = \"gue\"";
    assert_eq!(config.stateful.learn_period, Duration::from_secs(10));
    let hour = format!("{slots}\nlearn_period = \"1h\"");
    assert!(refused(&hour, gue).contains("learn_period must lie between 0s and 10m"));
}

#[test]
fn a_second_chance_takes_tcp_a_tunnel_and_servers() {
    let with = |keys: &str| {
        parse(&GOOD.replace(
            "scheduler = \"latency\"",
            &format!("second_chance = true\n{keys}"),
        ))
    };
    let refused = |keys: &str| with(keys).expect_err(keys).to_string();
    assert!(refused("protocol = \"udp\"").contains("second_chance is for tcp"));
    assert!(refused("forwarding = \"l2\"").contains("second_chance needs a tunnel"));
    let source = "source = [{ from = [\"10.0.0.0/8\"], reals = [\"10.0.0.1\"] }]";
    assert!(refused(source).contains("not of those of `source`"));
    assert!(with("").unwrap().vips[0].second_chance);
    assert!(!parse(GOOD).unwrap().vips[0].second_chance);
}

#[test]
fn a_tunnel_must_carry_the_least_ipv6_packet() {
    let l2 =
        "forwarding = \"l2\"\n[[vip.real]]\naddress = \"10.0.0.1\"\nmac = \"02:00:00:00:00:02\"";
    let ipip = "[[vip.real]]\naddress = \"fd00::1\"";
    assert!(GOOD.contains(l2));
    let with = |mtu, forwarding| {
        let text = GOOD.replace("[encap]", &format!("[encap]\nmtu = {mtu}"));
        parse(&text.replace(l2, forwarding))
    };
    with(1320, ipip).unwrap();
    with(1319, l2).unwrap();
    assert_eq!(
        with(1319, ipip).expect_err("1319").to_string(),
        "lb.toml:10: mtu 1319 leaves no room for vip [2001:db8::1]:*/udp, whose IPv6 packets of 1280 bytes take 1320 in ipip; raise it, or use forwarding = \"l2\""
    );
}

#[test]
fn the_example_is_valid_and_its_comments_name_the_defaults() {
    let example = include_str!("../../../../packaging/etc/causeway.toml");
    let as_is = parse(example).unwrap();
    assert_eq!(as_is.vips.len(), 4);
    // Every line that is commented out is a key with its default.
    let uncommented: Vec<&str> = example
        .lines()
        .map(|line| line.strip_prefix("#: ").unwrap_or(line))
        .collect();
    assert_eq!(parse(&uncommented.join("\n")).unwrap(), as_is);
}

#[test]
fn a_vip_without_reals_is_refused() {
    let text = "interface = \"eth0\"\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\n";
    assert_eq!(
        parse(text).unwrap_err().to_string(),
        "lb.toml:2: vip 192.0.2.1:80 has no reals; add a [[vip.real]] with an address"
    );
}

/// What hangs on a key that is missing is not told; all else is, at once.
#[test]
fn a_vip_without_its_port_or_address_hides_nothing() {
    let rest = "health = { rise = 0 }\nlimit = { rate = -1 }\nsource = [{ from = [\"2001:db8::/32\"], reals = [\"10.0.0.1\"] }]\n[[vip.real]]\naddress = \"x\"\n[[vip.real]]\naddress = \"10.0.0.1\"\n";
    for (own, missing, other_family) in [
        ("address = \"192.0.2.1\"", "the vip has no `port`", true),
        ("port = 80", "the vip has no `address`", false),
    ] {
        let text = format!("interface = \"eth0\"\n[[vip]]\n{own}\n{rest}");
        let errors = parse(&text).unwrap_err();
        let told = errors.to_string();
        assert!(told.contains(missing), "{told}");
        assert!(told.contains("rise 0 is out of range"), "{told}");
        assert!(told.contains("rate"), "{told}");
        assert!(told.contains("`x` is not a valid IP address"), "{told}");
        assert_eq!(told.contains("another family"), other_family, "{told}");
        assert_eq!(errors.faults.len(), 4 + usize::from(other_family), "{told}");
    }
}

#[test]
fn broken_toml_names_its_line() {
    let errors = parse("interface = \"eth0\"\n[[vip]\n").unwrap_err();
    assert_eq!(errors.faults.len(), 1);
    assert_eq!(errors.faults[0].line, Some(2));
    assert!(!errors.faults[0].message.is_empty());
}

#[test]
fn text_without_quotes_is_told_as_such() {
    for value in [
        "10.30.0.1",
        "eth0",
        "2001:db8::1",
        "10.0.0.0/8",
        "/run/x.sock",
        "5s",
    ] {
        let errors = parse(&format!("http = false\ninterface = {value} # where\n")).unwrap_err();
        assert_eq!(
            errors.to_string(),
            "lb.toml:2: write the text of this value in quotes"
        );
    }
    for other in ["\"eth0", "[1", "", "1 2"] {
        let errors = parse(&format!("interface = {other}\n")).unwrap_err();
        assert!(!errors.to_string().contains("in quotes"), "{errors}");
    }
    for word in ["True", "yes"] {
        let errors = parse(&format!("http = {word}\n")).unwrap_err();
        assert_eq!(
            errors.to_string(),
            "lb.toml:1: write `true` or `false`, in small letters"
        );
    }
}

#[test]
fn other_balancers_schedulers_are_told_by_their_likes() {
    for (word, own) in [
        ("rr", "round-robin"),
        ("wrr", "weighted-round-robin"),
        ("wlc", "least-loaded"),
        ("sh", "maglev"),
        ("roundrobin", "weighted-round-robin"),
        ("leastconn", "least-loaded"),
        ("source", "maglev"),
    ] {
        let real = "real = [{ address = \"10.0.0.1\" }]";
        let text = format!(
            "interface = \"eth0\"\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\nscheduler = \"{word}\"\n{real}\n"
        );
        let told = parse(&text).unwrap_err().to_string();
        assert!(
            told.contains(&format!("its like here is `{own}`")),
            "{told}"
        );
        let with_own = text.replace(&format!("\"{word}\""), &format!("\"{own}\""));
        assert!(parse(&with_own).is_ok(), "{own}");
    }
}

#[test]
fn many_faults_are_listed_up_to_a_bound() {
    let mut text = "interface = \"eth0\"\n".to_owned();
    for _ in 0..50 {
        text.push_str("[[vip]]\naddress = \"x\"\nport = 80\nreal = [{ address = \"10.0.0.1\" }]\n");
    }
    let shown = parse(&text).unwrap_err().to_string();
    assert_eq!(shown.lines().count(), 21);
    assert!(shown.ends_with("lb.toml: and 30 more faults"));
}

#[test]
fn a_missing_file_is_one_sentence() {
    let errors = BalancerConfig::load(Path::new("/nonexistent/lb.toml")).unwrap_err();
    assert_eq!(
        errors.to_string(),
        "/nonexistent/lb.toml: there is no such file; name yours, or begin with an example of packaging/etc (packages: /usr/share/doc/causeway-*/examples)"
    );
}

#[test]
fn silent_flows_have_their_time() {
    let text = |lines: &str| format!("interface = \"eth0\"\n[flow_table]\n{lines}\n");
    let parse = |lines: &str| BalancerConfig::parse(Path::new("lb.toml"), &text(lines));
    let idle = parse("").unwrap().flow_idle;
    assert_eq!((idle, idle.udp_drain), (FlowIdle::default(), None));
    let idle =
        parse("udp_idle = \"30s\"\nclosed_idle = \"5s\"\ntcp_idle = \"2h\"\nudp_drain = \"10m\"")
            .unwrap();
    let seconds = Duration::from_secs;
    assert_eq!(
        idle.flow_idle,
        FlowIdle {
            udp: seconds(30),
            ended: seconds(5),
            tcp: seconds(7200),
            udp_drain: Some(seconds(600)),
        }
    );
    let error = parse("udp_idle = \"1s\"").unwrap_err().to_string();
    assert!(
        error.contains("udp_idle must lie between 2s and 168h"),
        "{error}"
    );
}

#[test]
fn a_word_in_the_place_of_a_table_is_told_its_keys() {
    let text = GOOD.replacen("port = 80\n", "port = 80\nhealth = \"http\"\n", 1);
    let told = parse(&text).expect_err("a fault").to_string();
    let (before, keys) = told.split_once(" in { }, with some of ").expect(&told);
    let begin = "lb.toml:16: invalid type: string \"http\", expected a table";
    assert_eq!(before, begin);
    let keys: Vec<&str> = keys
        .lines()
        .next()
        .unwrap_or_default()
        .split(", ")
        .collect();
    assert!(
        keys.contains(&"probe") && keys.contains(&"interval"),
        "{told}"
    );
}

#[test]
fn a_key_with_another_name_is_told_its_new_one() {
    let text = "interface = \"eth0\"\n[control]\ntake_max = 0.4\n[stateful]\nadopt = \"1s\"\n\
                tiers = 2\ntier = 1\n[peers]\nkey_file = \"/keys\"\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\nneed = 1\n\
                [[vip.real]]\naddress = \"10.0.0.1\"\n";
    let told = BalancerConfig::parse(Path::new("lb.toml"), text).unwrap_err();
    assert_eq!(
        told.to_string(),
        "lb.toml:3: `take_max` is called `max_decrease` now\n\
         lb.toml:5: `adopt` is called `learn_period` now\n\
         lb.toml:6: `tiers` is called `balancers` now\n\
         lb.toml:7: `tier` is called `number` now\n\
         lb.toml:9: `key_file` is called `keys` now\n\
         lb.toml:13: `need` is called `min_healthy` now\n\
         lb.toml: the values were not checked; mend these first"
    );
}

#[test]
fn octets_and_prefix_lengths_have_no_sign() {
    assert!(super::validate::mac("02:00:00:00:00:01").is_ok());
    for wrong in [
        "+2:00:00:00:00:01",
        "02:00:00:00:00",
        "02:00:00:00:00:1",
        "02:00:00:00:00:01:02",
    ] {
        assert!(super::validate::mac(wrong).is_err(), "{wrong}");
    }
    let text = "interface = \"eth0\"\n[encap]\nsource = \"10.8.0.1/+24\"\n[[vip]]\naddress = \"192.0.2.1\"\nport = 80\n\
                forwarding = \"ipip\"\n[[vip.real]]\naddress = \"10.0.0.1\"\n";
    let told = BalancerConfig::parse(Path::new("lb.toml"), text).unwrap_err();
    assert!(told.to_string().contains("is not a valid source"), "{told}");
}
