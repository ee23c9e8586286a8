// SPDX-License-Identifier: Apache-2.0
//! Files of other load balancers, written as Causeway's: each result is read back by the balancer,
//! which says what the file would do.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use causeway_balancer::BalancerConfig;
use causeway_balancer::config::{
    Affinity, Authorities, ForwardingMode, ProbeConfig, Protocol, RealRole, RecordType, Scheduler,
    VipConfig,
};
use causeway_import::{ImportContext, Imported, SourceFormat, import, neighbours};

fn sample(name: &str) -> String {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/samples");
    std::fs::read_to_string(dir.join(name)).expect("a sample")
}

/// What was written, as the balancer reads it.
fn read(imported: &Imported) -> BalancerConfig {
    let config = BalancerConfig::parse(Path::new("lb.toml"), &imported.toml);
    config.unwrap_or_else(|errors| panic!("{errors}\n{}", imported.toml))
}

fn beside() -> ImportContext {
    ImportContext::interface("eth7")
}

fn all(origin: SourceFormat, name: &str, beside: &ImportContext) -> (Imported, BalancerConfig) {
    let imported = import(origin, &sample(name), beside);
    let imported = imported.unwrap_or_else(|error| panic!("{name}: {error}"));
    let config = read(&imported);
    assert_eq!(config.vips.len(), imported.vips, "{}", imported.toml);
    (imported, config)
}

/// The lines of what is reported, with the first words of each message.
fn told(imported: &Imported) -> Vec<String> {
    for remark in &imported.remarks {
        // The file says it, too.
        assert!(
            imported.toml.contains(&format!("# {remark}\n")),
            "{remark} in\n{}",
            imported.toml
        );
        assert!(!remark.instead.is_empty());
    }
    let text = |r: &causeway_import::Remark| format!("{}: {}", r.line, r.what);
    imported.remarks.iter().map(text).collect()
}

fn vip<'c>(config: &'c BalancerConfig, address: &str, port: u16) -> &'c VipConfig {
    let address: IpAddr = address.parse().expect("an address");
    let mut vips = config.vips.iter();
    let found = vips.find(|vip| vip.address == address && vip.port == port);
    found.unwrap_or_else(|| panic!("there is no VIP {address} {port}"))
}

fn weights(vip: &VipConfig) -> Vec<u32> {
    vip.reals.iter().map(|real| real.weight).collect()
}

#[test]
fn rules_of_ipvsadm_are_carried_over() {
    let (imported, config) = all(SourceFormat::Ipvsadm, "ipvsadm.rules", &beside());
    assert_eq!(told(&imported), [] as [&str; 0], "{}", imported.toml);
    assert_eq!(config.interface, "eth7");
    let web = vip(&config, "192.0.2.1", 80);
    assert_eq!(web.scheduler, Scheduler::WeightedRoundRobin);
    assert_eq!(web.forwarding, ForwardingMode::Ipip);
    assert_eq!(weights(web), [3, 0]);
    assert_eq!(vip(&config, "192.0.2.1", 443).reals, web.reals);
    // Written once, for both ports.
    assert!(
        imported.toml.contains("port = [80, 443]"),
        "{}",
        imported.toml
    );
    let dns = vip(&config, "192.0.2.1", 53);
    assert_eq!(dns.protocol, Protocol::Udp);
    assert_eq!(dns.scheduler, Scheduler::LeastLoaded);
    // lc does not look at weights.
    assert_eq!(weights(dns), [1, 1]);
    let by_client = vip(&config, "2001:db8::1", 80);
    assert_eq!(by_client.scheduler, Scheduler::Maglev);
    assert_eq!(by_client.affinity, Affinity::Client);
    let by_port = vip(&config, "192.0.2.2", 80);
    assert_eq!(by_port.affinity, Affinity::None);
    assert_eq!(by_port.forwarding, ForwardingMode::Gue);
    assert_eq!(config.encap.gue_port, 6081);
}

#[test]
fn what_ipvs_has_and_causeway_has_not_is_told() {
    let (imported, config) = all(SourceFormat::Ipvsadm, "ipvsadm-unlike.rules", &beside());
    assert_eq!(
        told(&imported),
        [
            "1: persistent 360, left out",
            "2: the server has port 8080, in maintenance until it has the VIP's",
            "2: masquerading, written as ipip",
            "3: upper threshold 500, left out",
            "3: lower threshold 400, left out",
            "3: direct routing, written as ipip",
            "4: service FWM 1, left out with its reals",
            "6: scheduler sed",
            "8: scheduler lblc",
            "10: one packet, one pick (ops), left out",
            "10: service 192.0.2.3:53 has no reals, left out",
        ]
    );
    let web = vip(&config, "192.0.2.1", 80);
    let waits: Vec<bool> = web.reals.iter().map(|real| real.maintenance).collect();
    assert_eq!(waits, [true, false]);
    assert_eq!(config.vips.len(), 3);
}

#[test]
fn a_list_of_ipvsadm_with_the_neighbours_keeps_direct_routing() {
    let macs = neighbours(
        "10.0.0.1 dev eth0 lladdr 02:00:00:00:00:01 REACHABLE\n\
         10.0.0.2 dev eth0 lladdr 02:00:00:00:00:02 STALE\n10.0.0.3 dev eth0 FAILED\n",
    );
    assert_eq!(macs.len(), 2);
    let beside = ImportContext { macs, ..beside() };
    let (imported, config) = all(SourceFormat::Ipvsadm, "ipvsadm.list", &beside);
    assert_eq!(
        told(&imported),
        [
            "4: persistent 300, left out",
            "9: service FWM 7, left out with its reals"
        ]
    );
    let web = vip(&config, "192.0.2.1", 80);
    assert_eq!(web.forwarding, ForwardingMode::L2);
    assert_eq!(
        web.reals[1].mac.map(|mac| mac.to_string()).as_deref(),
        Some("02:00:00:00:00:02")
    );
    assert_eq!(weights(web), [1, 2]);
    let dns = vip(&config, "2001:db8::1", 53);
    assert_eq!(
        (dns.protocol, dns.scheduler),
        (Protocol::Udp, Scheduler::RoundRobin)
    );
}

#[test]
fn virtual_servers_of_keepalived_are_carried_over() {
    let (imported, config) = all(SourceFormat::Keepalived, "keepalived.conf", &beside());
    assert_eq!(
        told(&imported),
        [
            "9: vrrp_instance VI_1, left out",
            "35: another interval while a check fails (1000 ms), left out",
            "43: another interval while a check fails (1000 ms), left out",
            "55: persistence_timeout 50, left out",
            "57: alpha, left out",
            "59: direct routing, written as ipip",
            "62: notify_down /usr/local/bin/tell down, left out",
            "69: a second url /other, left out",
            "74: another interval while a check fails (1000 ms), left out",
            "77: real 10.0.0.4 has another check, left out",
            "77: the server has port 8081, in maintenance until it has the VIP's",
            "77: masquerading, written as ipip",
            "80: MISC_CHECK, left out",
            "106: another interval while a check fails (3000 ms), left out",
            "116: virtual_server fwmark 3, left out",
        ]
    );
    let web = vip(&config, "192.0.2.1", 443);
    // One real has the weight of `quorum 2`, and without it the sorry server comes.
    assert_eq!(web.min_healthy, 0);
    assert_eq!(web.scheduler, Scheduler::LeastLoaded);
    assert_eq!(weights(web), [2, 2, 1]);
    let roles: Vec<RealRole> = web.reals.iter().map(|real| real.role).collect();
    assert_eq!(
        roles,
        [RealRole::Primary, RealRole::Primary, RealRole::Sorry]
    );
    let health = web.health.as_ref().expect("a check");
    assert_eq!((&health.probe, health.port), (&ProbeConfig::Tcp, 80));
    assert_eq!(health.params.interval_ns, 6_000_000_000);
    assert_eq!(health.params.timeout_ns, 3_000_000_000);
    assert_eq!((health.params.rise, health.params.fall), (1, 3));
    // Three VIPs of one group, one pool.
    assert!(imported.toml.contains("[pool.web]"), "{}", imported.toml);
    assert_eq!(vip(&config, "2001:db8::1", 80).reals, web.reals);
    let page = vip(&config, "192.0.2.3", 8080).health.as_ref();
    assert_eq!(
        page.map(|health| &health.probe),
        Some(&ProbeConfig::Http {
            tls: None,
            path: "/up".into(),
            host: None,
            status: "204 300-399".parse().unwrap(),
            body: Some("all is well".into()),
        })
    );
    let dns = vip(&config, "192.0.2.4", 53).health.as_ref();
    assert_eq!(
        dns.map(|health| &health.probe),
        Some(&ProbeConfig::Dns {
            name: "example.org".into(),
            record: RecordType::Soa,
            rcodes: vec![0, 3],
        })
    );
    let shop = vip(&config, "192.0.2.5", 443).health.as_ref();
    assert_eq!(
        shop.map(|health| &health.probe),
        Some(&ProbeConfig::Http {
            tls: Some(Authorities::default()),
            path: "/".into(),
            host: Some("shop.example.org".into()),
            status: "200-299".parse().unwrap(),
            body: None,
        })
    );
}

/// A virtual server at 192.0.2.1:80 with these lines, its reals at 10.0.0.1 and up.
fn virtual_server(lines: &str, reals: &[&str]) -> (Imported, BalancerConfig) {
    let mut text = format!(
        "virtual_server 192.0.2.1 80 {{\nlvs_sched wrr\nlvs_method TUN\ndelay_loop 1\n{lines}\n"
    );
    for (at, lines) in reals.iter().enumerate() {
        text += &format!("real_server 10.0.0.{} 80 {{\n{lines}\n}}\n", at + 1);
    }
    let imported = import(SourceFormat::Keepalived, &(text + "}\n"), &beside());
    let imported = imported.expect("a keepalived.conf");
    let config = read(&imported);
    (imported, config)
}

#[test]
fn a_quorum_is_as_many_reals_as_have_its_weight() {
    let left = "5: quorum 15, left out";
    let sorry = "sorry_server 10.0.0.9";
    for (lines, weights, min_healthy, expected) in [
        ("quorum 2", &[2, 2][..], 1, &[][..]),
        ("quorum 15", &[10, 10, 10], 2, &[]),
        ("quorum 9", &[1, 1], 2, &[]),
        // The heavy one alone, or the two light ones together.
        ("quorum 15", &[20, 10, 10], 1, &[left]),
        ("quorum 30", &[20, 10, 10], 1, &["5: quorum 30, left out"]),
        ("quorum 40", &[20, 10, 10], 3, &[]),
        // A real without weight is up, and counts here.
        ("quorum 2", &[2, 2, 0], 1, &["5: quorum 2, left out"]),
        (&format!("quorum 10\n{sorry}"), &[10, 10], 0, &[]),
        (&format!("quorum 15\n{sorry}"), &[10, 10], 0, &[left]),
    ] {
        let reals: Vec<String> = weights.iter().map(|w| format!("weight {w}")).collect();
        let reals: Vec<&str> = reals.iter().map(String::as_str).collect();
        let (imported, config) = virtual_server(lines, &reals);
        assert_eq!(told(&imported), expected, "{lines} {weights:?}");
        assert_eq!(
            config.vips[0].min_healthy, min_healthy,
            "{lines} {weights:?}"
        );
    }
}

#[test]
fn protocols_of_keepalived_have_no_case() {
    for (word, protocol) in [("tcp", Protocol::Tcp), ("Udp", Protocol::Udp)] {
        let (imported, config) = virtual_server(&format!("protocol {word}"), &[""]);
        assert_eq!(told(&imported), [] as [&str; 0], "{word}");
        assert_eq!(config.vips[0].protocol, protocol, "{word}");
    }
    let (imported, config) = virtual_server("protocol sctp", &[""]);
    assert_eq!(told(&imported), ["1: a virtual_server of sctp, left out"]);
    assert!(config.vips.is_empty());
}

#[test]
fn a_real_of_keepalived_without_a_check_is_told_from_one_with_another() {
    let check = |kind: &str| format!("{kind} {{\nretry 0\n}}");
    let (imported, config) = virtual_server(
        "connect_timeout 1",
        &[&check("TCP_CHECK"), &check("PING_CHECK"), ""],
    );
    assert_eq!(
        told(&imported),
        [
            "11: real 10.0.0.2 has another check, left out",
            "16: real 10.0.0.3 without a check, checked as the others",
        ]
    );
    assert!(config.vips[0].health.is_some());
}

/// What keepalived tries again, and when, by keepalived.conf(5) of version 2.2.
#[test]
fn a_check_of_keepalived_fails_as_often_as_there() {
    let page = "url {\npath /\n}";
    let later = |ms: u32| format!("7: another interval while a check fails ({ms} ms), left out");
    for (kind, lines, fall, expected) in [
        ("TCP_CHECK", "", 2, vec![]),
        ("HTTP_GET", page, 2, vec![later(3000)]),
        ("SSL_GET", page, 2, vec![later(3000)]),
        ("PING_CHECK", "", 2, vec![]),
        ("DNS_CHECK", "", 4, vec![]),
        (
            "MISC_CHECK",
            "",
            1,
            vec!["7: MISC_CHECK, left out".to_owned()],
        ),
        (
            "HTTP_GET",
            &format!("nb_get_retry 4\n{page}"),
            5,
            vec![later(3000)],
        ),
        ("HTTP_GET", &format!("retry 0\n{page}"), 1, vec![]),
        (
            "HTTP_GET",
            &format!("delay_before_retry 1\n{page}"),
            2,
            vec![],
        ),
    ] {
        let check = format!("{kind} {{\n{lines}\n}}");
        let lines = "connect_timeout 1";
        let (imported, config) = virtual_server(lines, &[&check]);
        let health = config.vips[0].health.as_ref();
        assert_eq!(health.map(|h| h.params.fall), Some(fall), "{check}");
        assert_eq!(told(&imported), expected, "{check}");
    }
}

#[test]
fn what_a_check_of_keepalived_says_beyond_a_probe_is_told() {
    let check = |url: &str| {
        format!(
            "HTTP_GET {{\nretry 0\nalpha\nno_such 1\nurl {{\npath /up\nno_such 2\nregex well\n{url}\n}}\n}}\nvirtualhost b.example.org"
        )
    };
    let common = [
        "9: alpha, left out",
        "10: no_such 1, left out",
        "13: no_such 2, left out",
    ];
    for (url, text, more) in [
        ("regex_stack 1 2", Some("well"), &[][..]),
        // A `body` of these would take servers away that are well.
        (
            "regex_options caseless",
            None,
            &[
                "14: regex well, left out",
                "15: regex_options caseless, left out",
            ][..],
        ),
        (
            "regex_no_match",
            None,
            &["14: regex well, left out", "15: regex_no_match, left out"],
        ),
        (
            "digest 9b3a0c85a887a256d6939da88aabd8cd",
            Some("well"),
            &["15: digest 9b3a0c85a887a256d6939da88aabd8cd, left out"],
        ),
    ] {
        let (imported, config) = virtual_server("connect_timeout 1", &[&check(url)]);
        assert_eq!(told(&imported), [&common[..], more].concat(), "{url}");
        let health = config.vips[0].health.as_ref();
        assert_eq!(
            health.map(|health| &health.probe),
            Some(&ProbeConfig::Http {
                tls: None,
                path: "/up".into(),
                host: Some("b.example.org".into()),
                status: "200-299".parse().unwrap(),
                body: text.map(str::to_owned),
            })
        );
    }
    // A probe's timeout is at most its interval.
    let (imported, _) = virtual_server("", &["TCP_CHECK {\n}"]);
    assert_eq!(
        told(&imported),
        ["1: a timeout of 5000 ms, written as 1000 ms"]
    );
}

#[test]
fn command_lines_of_katran_are_carried_over() {
    let (imported, config) = all(SourceFormat::Katran, "katran.sh", &beside());
    assert_eq!(
        told(&imported),
        [
            "3: -hc_forwarding false, left out",
            "7: LOCAL_REAL of real 10.0.0.2, left out",
            "12: QUIC_VIP, left out",
            "13: -quic_mapping fd00::1=7, left out",
            "16: -new_hc 10.0.0.1, left out",
        ]
    );
    assert_eq!(config.interface, "ens3");
    let web = vip(&config, "192.0.2.1", 80);
    assert_eq!(
        (web.scheduler, web.forwarding),
        (Scheduler::Maglev, ForwardingMode::Ipip)
    );
    assert_eq!(weights(web), [2, 1]);
    let quic = vip(&config, "2001:db8::1", 443);
    assert!(!quic.flow_table && quic.protocol == Protocol::Udp);
    let every_port = vip(&config, "192.0.2.2", 0);
    assert_eq!(every_port.affinity, Affinity::Client);
}

#[test]
fn what_katrans_client_lists_is_carried_over() {
    let (imported, config) = all(SourceFormat::Katran, "katran.list", &beside());
    assert_eq!(
        told(&imported),
        ["5: LOCAL_REAL of real 10.0.0.2, left out"]
    );
    let web = vip(&config, "192.0.2.1", 80);
    assert!(!web.flow_table);
    assert_eq!(weights(web), [3, 1, 2]);
    assert_eq!(vip(&config, "192.0.2.1", 443).protocol, Protocol::Udp);
}

#[test]
fn proxies_by_tcp_of_haproxy_are_carried_over() {
    let (imported, config) = all(SourceFormat::HaproxyTcp, "haproxy.cfg", &beside());
    assert_eq!(told(&imported), [] as [&str; 0], "{}", imported.toml);
    let mail = vip(&config, "192.0.2.1", 587);
    assert_eq!(mail.name, "mail-587");
    assert_eq!(mail.scheduler, Scheduler::LeastLoaded);
    assert_eq!(weights(mail), [10, 20, 10]);
    let waits: Vec<bool> = mail.reals.iter().map(|real| real.maintenance).collect();
    assert_eq!(waits, [false, false, true]);
    let health = mail.health.as_ref().expect("a check");
    assert_eq!(health.params.interval_ns, 3_000_000_000);
    // The interval's, as HAProxy has it without `timeout check`.
    assert_eq!(health.params.timeout_ns, 3_000_000_000);
    assert_eq!((health.params.rise, health.params.fall), (2, 4));
    assert!(
        imported.toml.contains("[pool.mailers]"),
        "{}",
        imported.toml
    );
    let redis = vip(&config, "192.0.2.2", 6379);
    assert_eq!(redis.affinity, Affinity::Client);
    let health = redis.health.as_ref().expect("a check");
    assert_eq!(health.probe, ProbeConfig::Redis);
    let web = vip(&config, "192.0.2.3", 80);
    assert_eq!(web.scheduler, Scheduler::P2c);
    assert_eq!(web.slow_start.as_secs(), 20);
    let probe = web.health.as_ref().map(|health| &health.probe);
    assert_eq!(
        probe,
        Some(&ProbeConfig::Http {
            tls: None,
            path: "/health".into(),
            host: Some("www.example.org".into()),
            status: "200-204".parse().unwrap(),
            body: None,
        })
    );
}

#[test]
fn what_haproxy_does_to_contents_is_told() {
    let (imported, config) = all(SourceFormat::HaproxyTcp, "haproxy-unlike.cfg", &beside());
    assert_eq!(
        told(&imported),
        [
            "7: bind *:443, left out",
            "8: bind 192.0.2.9:8443, left out",
            "10: tcp-request inspect-delay 5s, left out",
            "11: use_backend other if { req_ssl_sni -i other.example.org }, left out",
            "18: stick-table type ip size 1m expire 1h, left out",
            "21: server c app.example.org:443, left out",
            "23: backend other, left out",
            "29: frontend site has mode http, left out",
            "36: resolvers dns, left out",
        ]
    );
    assert!(config.vips.is_empty());

    let any_address = Some("192.0.2.1".parse().expect("an address"));
    let beside = ImportContext {
        any_address,
        ..beside()
    };
    let (imported, config) = all(SourceFormat::HaproxyTcp, "haproxy-unlike.cfg", &beside);
    let told = told(&imported);
    for expected in [
        "16: balance first",
        "19: send-proxy of server a, left out",
        "19: maxconn 100 of server a, left out",
        "19: the server has port 8443, in maintenance until it has the VIP's",
    ] {
        assert!(told.iter().any(|line| line == expected), "{told:#?}");
    }
    let site = vip(&config, "192.0.2.1", 443);
    assert_eq!(weights(site), [1, 1]);
    assert_eq!(site.reals[1].role, RealRole::Backup);
}

/// A proxy at 192.0.2.1:80 with these lines.
fn listen(lines: &str) -> (Imported, BalancerConfig) {
    let text = format!("listen web\nbind 192.0.2.1:80\n{lines}\n");
    let imported = import(SourceFormat::HaproxyTcp, &text, &beside()).expect("a haproxy.cfg");
    let config = read(&imported);
    (imported, config)
}

#[test]
fn a_check_of_haproxy_may_take_as_long_as_there() {
    let (page, none) = ("option httpchk GET /\n", &[][..]);
    let clamped = "2: a timeout of 10000 ms, written as 2000 ms";
    for (timeouts, timeout_ms, expected) in [
        // By HAProxy's manual the interval is for connection and answer together.
        (format!("{page}timeout connect 500ms"), 2000, none),
        (
            format!("{page}timeout connect 500ms\ntimeout check 800ms"),
            800,
            none,
        ),
        (format!("{page}timeout check 10s"), 2000, &[clamped]),
        // Nothing is answered: the connection's.
        ("timeout connect 500ms\ntimeout check 10s".into(), 500, none),
        ("timeout connect 5s\ntimeout check 10s".into(), 2000, none),
    ] {
        let (imported, config) = listen(&format!("{timeouts}\nserver a 10.0.0.1:80 check"));
        let health = config.vips[0].health.as_ref().expect("a check");
        assert_eq!(
            health.params.timeout_ns,
            timeout_ms * 1_000_000,
            "{timeouts}"
        );
        assert_eq!(told(&imported), expected, "{timeouts}");
    }
}

#[test]
fn what_speeds_up_a_check_of_haproxy_is_told() {
    let (imported, _) = listen(
        "server a 10.0.0.1:80 check inter 10s fastinter 1s downinter 20s observe layer4 error-limit 5 on-error mark-down",
    );
    assert_eq!(
        told(&imported),
        [
            "3: fastinter 1s of server a, left out",
            "3: downinter 20s of server a, left out",
            "3: observe layer4 of server a, left out",
            "3: error-limit 5 of server a, left out",
            "3: on-error mark-down of server a, left out",
        ]
    );
}

#[test]
fn values_of_haproxys_words_are_no_words() {
    for (words, expected) in [
        ("hash-key id check", &["hash-key id"][..]),
        ("check hash-key addr", &["hash-key addr"]),
        ("check namespace backup", &["namespace backup"]),
        ("namespace disabled check", &["namespace disabled"]),
        (
            "check source 10.9.0.1 usesrc backup",
            &["source 10.9.0.1", "usesrc backup"],
        ),
        (
            "check set-proxy-v2-tlv-fmt(0x20) disabled",
            &["set-proxy-v2-tlv-fmt(0x20) disabled"],
        ),
        ("check tcp-ut 30s guid backup", &[]),
        (
            "agent-check agent-port 9999 agent-inter 5s check",
            &["agent-check", "agent-port 9999", "agent-inter 5s"],
        ),
    ] {
        let (imported, config) = listen(&format!("server a 10.0.0.1:80 {words}"));
        let expected: Vec<String> = expected
            .iter()
            .map(|what| format!("3: {what} of server a, left out"))
            .collect();
        assert_eq!(told(&imported), expected, "{words}");
        let vip = &config.vips[0];
        assert!(vip.health.is_some(), "{words}");
        let real = &vip.reals[0];
        assert_eq!(
            (real.role, real.maintenance),
            (RealRole::Primary, false),
            "{words}"
        );
    }
}

#[test]
fn words_of_haproxy_that_take_another_back_are_heard() {
    let servers = "default-server backup\nserver a 10.0.0.1:80 no-backup\nserver b 10.0.0.2:80";
    let (_, config) = listen(servers);
    let roles: Vec<RealRole> = config.vips[0].reals.iter().map(|real| real.role).collect();
    assert_eq!(roles, [RealRole::Primary, RealRole::Backup]);

    for (word, by_tls) in [("", true), ("no-check-ssl", false)] {
        let (imported, _) = listen(&format!(
            "option httpchk GET /\ndefault-server check check-ssl\nserver a 10.0.0.1:80 {word}"
        ));
        assert_eq!(imported.toml.contains("\"https\""), by_tls, "{word}");
    }

    let servers = "server a 10.0.0.1:80\nserver b 10.0.0.2:80 backup\nserver c 10.0.0.3:80 backup";
    let (imported, _) = listen(&format!(
        "option allbackups\nno option allbackups\n{servers}"
    ));
    assert_eq!(
        told(&imported),
        ["7: a second backup, which would wait for the first"]
    );
}

#[test]
fn a_port_of_haproxy_with_a_sign_is_added_to_the_clients() {
    for (port, expected) in [
        (":80", &[][..]),
        ("", &[]),
        (":+0", &[]),
        (":-0", &[]),
        (":+100", &["3: +100 of server a, left out"]),
        (
            ":180",
            &["3: the server has port 180, in maintenance until it has the VIP's"],
        ),
    ] {
        let (imported, config) = listen(&format!("server a 10.0.0.1{port} check"));
        assert_eq!(told(&imported), expected, "{port}");
        let waits = config.vips[0].reals[0].maintenance;
        assert_eq!(waits, port == ":180", "{port}");
    }
}

#[test]
fn a_server_of_haproxy_in_brackets_needs_no_port() {
    for place in ["[2001:db8::5]", "[2001:db8::5]:80", "ipv6@[2001:db8::5]"] {
        let text = format!("listen web\nbind [2001:db8::1]:80\nserver a {place}\n");
        let imported = import(SourceFormat::HaproxyTcp, &text, &beside()).expect("a haproxy.cfg");
        assert_eq!(told(&imported), [""; 0], "{place}");
        let config = read(&imported);
        let real = config.vips[0].reals[0].address.to_string();
        assert_eq!(real, "2001:db8::5", "{place}");
    }
}

#[test]
fn conditions_of_haproxy_are_told_wherever_they_stand() {
    let text = ".if defined(X)\nglobal\n.notice hello\n.endif\nlisten web\nbind 192.0.2.1:80\n.if feature(OPENSSL)\n\
                server a 10.0.0.1:80\n.else\nserver b 10.0.0.2:80\n.endif\n";
    let imported = import(SourceFormat::HaproxyTcp, text, &beside()).expect("a haproxy.cfg");
    assert_eq!(
        told(&imported),
        [
            "1: .if defined(X), left out",
            "3: .notice hello, left out",
            "7: .if feature(OPENSSL), left out",
            "9: .else, left out",
        ]
    );
    assert_eq!(read(&imported).vips[0].reals.len(), 2);
}

#[test]
fn a_disabled_proxy_leaves_its_address_to_another() {
    for (first, second, expected) in [
        ("disabled", "", "3: listen old is disabled, left out"),
        ("", "disabled", "7: listen new is disabled, left out"),
        (
            "disabled\nenabled",
            "disabled",
            "8: listen new is disabled, left out",
        ),
    ] {
        let text = format!(
            "listen old\nbind 192.0.2.1:80\n{first}\nserver a 10.0.0.1:80\n\
             listen new\nbind 192.0.2.1:80\n{second}\nserver b 10.0.0.2:80\n"
        );
        let imported = import(SourceFormat::HaproxyTcp, &text, &beside()).expect("a haproxy.cfg");
        assert_eq!(told(&imported), [expected]);
        let config = read(&imported);
        let [vip] = &config.vips[..] else {
            panic!("not one VIP: {}", imported.toml);
        };
        let (name, real) = if second.is_empty() {
            ("new", "10.0.0.2")
        } else {
            ("old", "10.0.0.1")
        };
        assert_eq!((vip.name.as_str(), vip.reals.len()), (name, 1));
        assert_eq!(vip.reals[0].address.to_string(), real);
    }
    let text = "defaults\ndisabled\nfrontend f\nbind 192.0.2.1:80\nenabled\ndefault_backend b\n\
                backend b\nserver a 10.0.0.1:80\n";
    let imported = import(SourceFormat::HaproxyTcp, text, &beside()).expect("a haproxy.cfg");
    assert_eq!(told(&imported), ["2: backend b is disabled, left out"]);
    assert_eq!(imported.vips, 0);
}

#[test]
fn a_host_of_haproxy_ends_where_its_header_does() {
    for (option, host, expected) in [
        (
            r"GET /up HTTP/1.1\r\nHost:\ www.example.org\r\nConnection:\ close",
            Some("www.example.org"),
            &[][..],
        ),
        (
            r#"GET /up "HTTP/1.0\r\nX-Forwarded-Host: a.org\r\nhost: b.org:8080\r\n""#,
            Some("b.org:8080"),
            &["3: header X-Forwarded-Host of a check, left out"],
        ),
        (r"GET /up HTTP/1.1", None, &[]),
        (
            r"GET /up HTTP/1.1\r\nHost:\ %[src]",
            None,
            &["2: host `%[src]`, left out"],
        ),
        (
            "GET /up\nhttp-check send hdr X-Token abc hdr Host c.org",
            Some("c.org"),
            &["4: header X-Token of a check, left out"],
        ),
    ] {
        let (imported, config) = listen(&format!(
            "option httpchk {option}\nserver a 10.0.0.1:80 check"
        ));
        assert_eq!(told(&imported), expected, "{option}");
        let health = config.vips[0].health.as_ref().expect("a check");
        let ProbeConfig::Http { host: written, .. } = &health.probe else {
            panic!("{option}: {:?}", health.probe);
        };
        assert_eq!(written.as_deref(), host, "{option}");
    }
}

/// Each of these would be refused by the balancer, were it written as it stands.
#[test]
fn what_the_balancer_would_refuse_is_told_and_left_out() {
    let (server, long) = ("server a 10.0.0.1:80 check", "u".repeat(121));
    for (lines, expected) in [
        (
            format!("{server}\nserver b 0.0.0.0:80 check\nserver c 224.0.0.1:80 check"),
            vec![
                "4: real 0.0.0.0 is no single server, left out".to_owned(),
                "5: real 224.0.0.1 is no single server, left out".to_owned(),
            ],
        ),
        (
            format!("option httpchk GET /a<b HTTP/1.1\\r\\nHost:a_b:x\n{server}"),
            vec![
                "2: path `/a<b`, written as /".to_owned(),
                "2: host `a_b:x`, left out".to_owned(),
            ],
        ),
        (
            format!("option httpchk GET /\n{server} check-ssl ca-file site.pem"),
            vec!["2: ca `site.pem`, left out".to_owned()],
        ),
        (
            format!("option pgsql-check user {long}\n{server}"),
            vec![format!("2: user `{long}`, left out")],
        ),
        (format!("{server} port 0"), vec![]),
    ] {
        let (imported, _) = listen(&lines);
        assert_eq!(told(&imported), expected, "{lines}");
    }
    let text = "virtual_server_group a&b {\n192.0.2.1 80\n::ffff:192.0.2.1 81\n}\n\
                virtual_server group a&b {\ndelay_loop 5\nprotocol UDP\n\
                lvs_method TUN type gue port 0\nreal_server 10.0.0.1 0 {\nDNS_CHECK {\n\
                name a..b\n}\n}\n}\n";
    let imported = import(SourceFormat::Keepalived, text, &beside()).expect("a keepalived.conf");
    assert_eq!(
        told(&imported),
        ["5: name a&b, left out", "5: name `a..b`, left out"]
    );
    let config = read(&imported);
    assert_eq!(vip(&config, "192.0.2.1", 81).name, "192.0.2.1:81/udp");
    let (imported, config) =
        virtual_server("connect_timeout 1", &["PING_CHECK {\nconnect_port 7\n}"]);
    assert_eq!(told(&imported), [] as [&str; 0]);
    let health = config.vips[0].health.as_ref();
    assert_eq!(health.map(|health| &health.probe), Some(&ProbeConfig::Icmp));
}

#[test]
fn a_file_of_another_kind_is_refused() {
    for (origin, text, line) in [
        (SourceFormat::Ipvsadm, "", 0),
        (SourceFormat::Ipvsadm, "-A -t www.example.org:80 -s rr\n", 1),
        (
            SourceFormat::Ipvsadm,
            "\n-a -t 192.0.2.1:80 -r 10.0.0.1:80\n",
            2,
        ),
        (SourceFormat::Ipvsadm, "interface = \"eth0\"\n", 1),
        (
            SourceFormat::Ipvsadm,
            "Prot LocalAddress:Port Conns InPkts OutPkts InBytes OutBytes\n  -> RemoteAddress:Port\n",
            2,
        ),
        (SourceFormat::Keepalived, "", 0),
        (
            SourceFormat::Keepalived,
            "virtual_server 192.0.2.1 80 {\n",
            1,
        ),
        (SourceFormat::Katran, "echo nothing\n", 0),
        (
            SourceFormat::Katran,
            "katran_goclient -a -t 192.0.2.1:80 -r 10.0.0.1\n",
            1,
        ),
        (SourceFormat::HaproxyTcp, "", 0),
        (SourceFormat::HaproxyTcp, "bind :80\n", 1),
    ] {
        let error = import(origin, text, &beside()).expect_err(text);
        assert_eq!(error.line, line, "{origin:?} {text}: {error}");
    }
}

/// Whatever is read, what is written is a configuration.
#[test]
fn cut_files_never_make_a_file_that_is_refused() {
    for (origin, name) in [
        (SourceFormat::Ipvsadm, "ipvsadm.rules"),
        (SourceFormat::Ipvsadm, "ipvsadm-unlike.rules"),
        (SourceFormat::Ipvsadm, "ipvsadm.list"),
        (SourceFormat::Keepalived, "keepalived.conf"),
        (SourceFormat::Katran, "katran.sh"),
        (SourceFormat::Katran, "katran.list"),
        (SourceFormat::HaproxyTcp, "haproxy.cfg"),
        (SourceFormat::HaproxyTcp, "haproxy-unlike.cfg"),
    ] {
        let text = sample(name);
        let mut written = 0;
        for cut in (0..text.len()).step_by(7) {
            // Cut off, and with a piece taken out.
            for text in [
                &text[..cut],
                &[&text[..cut], &text[(cut + 40).min(text.len())..]].concat(),
            ] {
                if let Ok(imported) = import(origin, text, &beside()) {
                    read(&imported);
                    written += 1;
                }
            }
        }
        assert!(written > 10, "{name}: {written}");
    }
}
