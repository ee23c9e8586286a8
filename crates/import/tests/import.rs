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
            "55: persistence_timeout 50, left out",
            "57: alpha, left out",
            "59: direct routing, written as ipip",
            "62: notify_down /usr/local/bin/tell down, left out",
            "69: a second url /other, left out",
            "74: another interval while a check fails, left out",
            "77: real 10.0.0.4 has another check, left out",
            "77: the server has port 8081, in maintenance until it has the VIP's",
            "77: masquerading, written as ipip",
            "80: MISC_CHECK, left out",
            "116: virtual_server fwmark 3, left out",
        ]
    );
    let web = vip(&config, "192.0.2.1", 443);
    assert_eq!(web.min_healthy, 2);
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

#[test]
fn command_lines_of_katran_are_carried_over() {
    let (imported, config) = all(SourceFormat::Katran, "katran.sh", &beside());
    assert_eq!(
        told(&imported),
        [
            "3: -hc_forwarding false, left out",
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
    assert_eq!(told(&imported), [] as [&str; 0]);
    let web = vip(&config, "192.0.2.1", 80);
    assert!(!web.flow_table);
    assert_eq!(weights(web), [3, 1]);
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
    assert_eq!(health.params.timeout_ns, 500_000_000);
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
