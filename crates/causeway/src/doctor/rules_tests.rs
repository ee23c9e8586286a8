// SPDX-License-Identifier: Apache-2.0

use std::net::{IpAddr, Ipv4Addr};

use causeway_balancer::config::XdpMode;
use causeway_netio::Reach;

use super::look::{Bond, Host, Nic, Program, Queues, RealMac, RealReach, Seen, VipAddress, Way};
use super::rules::{Level, findings};
use super::wants::{Role, Wants};

const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const REAL: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// A machine where nothing is wrong, for this driver.
fn machine(driver: &str) -> Seen {
    Seen {
        host: Host {
            kernel: "6.12.1".to_owned(),
            version: (6, 12),
            cpus: 8,
            btf: true,
            jit: Some(1),
            bpffs: Some(true),
            cgroup2: Some(true),
            tcp_timestamps: Some(1),
            arp_ignore: 1,
            has_tun: true,
            ..Host::default()
        },
        nics: vec![Nic {
            name: "eth0".to_owned(),
            driver: driver.to_owned(),
            up: true,
            carrier: true,
            mtu: 1600,
            queues: Queues {
                combined: 8,
                combined_max: 16,
                ..Queues::default()
            },
            native_xdp: Some(true),
            fragments_xdp: Some(false),
            ..Nic::default()
        }],
        ways: vec![Way {
            interface: "eth0".to_owned(),
            gateways: Ok(vec![(REAL, true)]),
            on_link: Vec::new(),
        }],
        default_device: Some("eth0".to_owned()),
        ..Seen::default()
    }
}

fn wants(role: Role) -> Wants {
    let mut wants = Wants::bare(role);
    wants.interfaces.insert("eth0".to_owned());
    wants
}

/// The findings, with level and remedy.
fn told(wants: &Wants, seen: &Seen) -> Vec<(Level, &'static str, String)> {
    let found = findings(wants, seen).into_iter();
    found.map(|one| (one.level, one.rule, one.mend)).collect()
}

/// What `doctor` says to a balancer of a machine with this driver, changed so.
fn with(driver: &str, change: impl FnOnce(&mut Seen)) -> Vec<(Level, &'static str, String)> {
    let mut seen = machine(driver);
    change(&mut seen);
    told(&wants(Role::Balancer), &seen)
}

fn one(level: Level, rule: &'static str, mend: &str) -> Vec<(Level, &'static str, String)> {
    vec![(level, rule, mend.to_owned())]
}

#[test]
fn nothing_is_told_where_nothing_is_wrong() {
    for driver in [
        "ena",
        "gve",
        "virtio_net",
        "mlx5_core",
        "i40e",
        "ice",
        "ixgbe",
        "bnxt_en",
    ] {
        for role in [Role::Balancer, Role::Agent, Role::Tunnel] {
            assert_eq!(
                told(&wants(role), &machine(driver)),
                [],
                "{driver} {role:?}"
            );
        }
    }
}

#[test]
fn a_driver_that_wants_twice_the_queues_is_given_half() {
    let all = |seen: &mut Seen| seen.nics[0].queues.combined = 16;
    let mend = "ethtool -L eth0 combined 8";
    assert_eq!(with("ena", all), one(Level::Fault, "driver-queues", mend));
    let apart = |seen: &mut Seen| {
        seen.nics[0].queues = Queues {
            rx: 16,
            rx_max: 16,
            tx: 16,
            tx_max: 16,
            ..Queues::default()
        };
    };
    let mend = "ethtool -L eth0 rx 8 tx 8";
    assert_eq!(
        with("gve", apart),
        one(Level::Warning, "driver-queues", mend)
    );
    assert_eq!(with("mlx5_core", all), []);
    // One that runs there already has been taken.
    let runs = with("ena", |seen| {
        all(seen);
        seen.nics[0].program = Some(Program {
            id: 7,
            name: "causeway_lb".to_owned(),
            native: true,
        });
    });
    assert_eq!(runs, []);
}

#[test]
fn queues_that_send_under_a_lock_are_a_warning() {
    let few = |now, most| {
        with("virtio_net", |seen| {
            (
                seen.nics[0].queues.combined,
                seen.nics[0].queues.combined_max,
            ) = (now, most);
        })
    };
    assert_eq!(few(8, 16), []);
    let mend = "ethtool -L eth0 combined 4";
    assert_eq!(few(8, 12), one(Level::Warning, "driver-shared", mend));
    let told = few(8, 8);
    assert!(told[0].2.contains("queues='16'"), "{told:?}");
}

#[test]
fn an_mtu_that_a_driver_refuses_is_a_fault_unless_generic_mode_is_wanted() {
    for (driver, most) in [
        ("ena", 3498),
        ("gve", 2032),
        ("virtio_net", 3506),
        ("ixgbe", 3050),
    ] {
        let at = |mtu| with(driver, |seen| seen.nics[0].mtu = mtu);
        assert_eq!(at(most), [], "{driver}");
        let mend = format!("ip link set eth0 mtu {most}");
        // gve says "not supported", and generic mode goes on.
        let level = if driver == "gve" {
            Level::Warning
        } else {
            Level::Fault
        };
        assert_eq!(at(most + 1), one(level, "driver-mtu", &mend));
    }
    let jumbo = |fragments| {
        with("i40e", move |seen| {
            (seen.nics[0].mtu, seen.nics[0].fragments_xdp) = (9000, fragments);
        })
    };
    assert_eq!(jumbo(Some(true)), []);
    let mend = "ip link set eth0 mtu 3046";
    assert_eq!(jumbo(Some(false)), one(Level::Fault, "driver-mtu", mend));
    assert!(jumbo(None)[0].2.contains("3046"));
    let mut generic = wants(Role::Balancer);
    generic.xdp = Some(XdpMode::Generic);
    let mut seen = machine("ena");
    seen.nics[0].mtu = 9001;
    assert_eq!(told(&generic, &seen)[0].0, Level::Note);
}

#[test]
fn offloads_that_harm_are_named() {
    let on = |offload: &'static str| {
        with("ixgbe", move |seen| {
            seen.nics[0].offloads = vec![offload.to_owned()];
        })
    };
    assert_eq!(
        on("rx-lro"),
        one(Level::Fault, "lro", "ethtool -K eth0 lro off")
    );
    let mend = "ethtool -K eth0 rx-gro-hw off";
    assert_eq!(on("rx-gro-hw"), one(Level::Warning, "gro-hw", mend));
    let host_side = with("virtio_net", |seen| {
        seen.nics[0].offloads = vec!["rx-gro-hw".to_owned()];
        seen.nics[0].fixed_offloads = seen.nics[0].offloads.clone();
    });
    assert!(host_side[0].2.starts_with("virsh edit"), "{host_side:?}");
    // Without VLANs there are no tags to lose.
    assert_eq!(on("rx-vlan-hw-parse"), []);
    let trunk = with("ixgbe", |seen| {
        seen.nics[0].offloads = vec!["rx-vlan-hw-parse".to_owned()];
        seen.nics[0].vlans = vec!["eth0.100".to_owned()];
    });
    let mend = "ethtool -K eth0 rxvlan off";
    assert_eq!(trunk, one(Level::Warning, "vlan-strip", mend));
}

#[test]
fn a_bond_is_judged_by_its_mode_and_a_part_of_it_is_not_the_place() {
    let bond = |mode: &str, hash: &str| {
        with("bonding", |seen| {
            seen.nics[0].kind = Some("bond".to_owned());
            seen.nics[0].bond = Some(Bond {
                mode: mode.to_owned(),
                hash: hash.to_owned(),
                slaves: vec!["eth1".to_owned()],
            });
        })
    };
    assert_eq!(bond("802.3ad", "layer3+4"), []);
    assert_eq!(bond("balance-alb", "layer2")[0].1, "bond-mode");
    assert_eq!(bond("balance-xor", "vlan+srcmac")[0].1, "bond-mode");
    let part = with("ixgbe", |seen| {
        seen.nics[0].part_of = Some(("bond0".to_owned(), "bond".to_owned()));
    });
    assert_eq!((part[0].0, part[0].1), (Level::Fault, "part"));
}

#[test]
fn another_program_is_in_the_way_and_our_own_is_not() {
    let program = |name: &str| {
        with("ice", |seen| {
            seen.nics[0].program = Some(Program {
                id: 9,
                name: name.to_owned(),
                native: true,
            });
        })
    };
    assert_eq!(program("causeway_lb"), []);
    assert_eq!(program("causeway_server")[0].1, "occupied");
    assert_eq!(program("xdp_dispatcher")[0].1, "occupied");
}

#[test]
fn a_router_must_answer_where_reals_need_it() {
    let silent = |reals: &[IpAddr], other| {
        let mut wants = wants(Role::Balancer);
        wants.reals = reals.to_vec();
        let mut seen = machine("ice");
        seen.ways[0].gateways = Ok(vec![(REAL, false), (VIP, other)]);
        let found = told(&wants, &seen);
        found.iter().map(|told| told.0).collect::<Vec<_>>()
    };
    assert_eq!(silent(&[], true), [Level::Note]);
    assert_eq!(silent(&[], false), [Level::Fault; 2]);
    assert_eq!(silent(&[REAL], true), [Level::Fault]);
}

#[test]
fn the_path_is_judged_by_what_came_back() {
    let mut wants = wants(Role::Balancer);
    wants.reals = vec![REAL];
    let of = |real, reach| {
        let mut seen = machine("ice");
        seen.reals = vec![RealReach {
            real,
            tried: 1600,
            reach,
        }];
        told(&wants, &seen)
    };
    let reach = |reach| of(REAL, reach);
    assert_eq!(reach(Reach::Whole), []);
    let mend = "ping -M do -s 1572 10.0.0.1";
    assert_eq!(reach(Reach::Silent), one(Level::Note, "path-mtu", mend));
    let mend = "ping -M do -s 1552 2001:db8::1";
    let by_ipv6 = of("2001:db8::1".parse().unwrap(), Reach::Silent);
    assert_eq!(by_ipv6, one(Level::Note, "path-mtu", mend));
    let mend = "encap.mtu = 1450 in the balancer's file, then causeway reload";
    assert_eq!(
        reach(Reach::UpTo(1450)),
        one(Level::Fault, "path-mtu", mend)
    );
    let mut more = self::wants(Role::Balancer);
    more.encap_mtu = Some(1700);
    let mend = "ip link set eth0 mtu 1700";
    assert_eq!(
        told(&more, &machine("ice")),
        one(Level::Fault, "encap-mtu", mend)
    );
    let plain = with("ice", |seen| seen.nics[0].mtu = 1500);
    let mend = "ip link set eth0 mtu 1520";
    assert_eq!(plain, one(Level::Note, "outer-header", mend));
}

#[test]
fn vips_stand_on_servers_and_not_on_balancers() {
    let at = |role, on: Option<Option<(&str, u8)>>, change: fn(&mut Wants)| {
        let mut seen = machine("ice");
        seen.vips = vec![VipAddress {
            address: VIP,
            held: on.is_some(),
            on: on
                .flatten()
                .map(|(device, length)| (device.to_owned(), length)),
            device: Some("lo".to_owned()),
        }];
        let mut wants = wants(role);
        change(&mut wants);
        told(&wants, &seen)
    };
    let all = |_: &mut Wants| {};
    for (on, mend) in [
        (Some(("lo", 32)), "ip addr del 192.0.2.1/32 dev lo"),
        (Some(("eth1", 24)), "ip addr del 192.0.2.1/24 dev eth1"),
        (None, "ip route get 192.0.2.1"),
    ] {
        assert_eq!(
            at(Role::Balancer, Some(on), all),
            one(Level::Fault, "vip-held", mend)
        );
    }
    // A host that serves the other ports itself may have it, unless it would answer probes.
    let serves = |wants: &mut Wants| wants.passes_unserved = true;
    assert_eq!(at(Role::Balancer, Some(None), serves), []);
    let probes = |wants: &mut Wants| (wants.passes_unserved, wants.probes) = (true, true);
    assert_eq!(at(Role::Balancer, Some(None), probes)[0].1, "vip-held");
    assert_eq!(at(Role::Balancer, None, all), []);
    assert_eq!(at(Role::Agent, Some(None), all), []);
    let mend = "ip addr add 192.0.2.1/32 dev lo";
    assert_eq!(
        at(Role::Agent, None, all),
        one(Level::Fault, "vip-missing", mend)
    );
}

#[test]
fn a_strict_reverse_path_drops_what_comes_by_another_way() {
    let agent = |default: &str| {
        let mut seen = machine("ice");
        seen.nics[0].rp_filter = 1;
        seen.default_device = Some(default.to_owned());
        told(&wants(Role::Agent), &seen)
    };
    assert_eq!(agent("eth0"), []);
    let mend = "sysctl -w net.ipv4.conf.eth0.rp_filter=2";
    assert_eq!(agent("eth1"), one(Level::Fault, "rp-filter", mend));
    let balancer = |device: &str| {
        let mut wants = wants(Role::Balancer);
        wants.probes = true;
        let mut seen = machine("ice");
        seen.nics[0].rp_filter = 1;
        seen.vips = vec![VipAddress {
            address: VIP,
            held: false,
            on: None,
            device: Some(device.to_owned()),
        }];
        told(&wants, &seen)
    };
    assert_eq!(balancer("eth0"), []);
    assert_eq!(balancer("eth1"), one(Level::Fault, "rp-filter", mend));
}

#[test]
fn the_host_is_judged_by_what_the_role_needs() {
    let host = |role, change: &dyn Fn(&mut Host)| {
        let mut wants = wants(role);
        wants.cookies = role == Role::Agent;
        wants.passes_unserved = true;
        let mut seen = machine("ice");
        change(&mut seen.host);
        told(&wants, &seen).first().map(|told| told.1)
    };
    let both = [Role::Balancer, Role::Agent];
    for role in both {
        assert_eq!(host(role, &|h| h.version = (5, 15)), Some("kernel"));
        assert_eq!(host(role, &|h| h.btf = false), Some("kernel"));
        assert_eq!(host(role, &|h| h.jit = Some(0)), Some("jit"));
        assert_eq!(host(role, &|h| h.bpffs = Some(false)), Some("bpffs"));
        let lock = |h: &mut Host| h.lockdown = Some("confidentiality".to_owned());
        assert_eq!(host(role, &lock), Some("lockdown"));
    }
    assert_eq!(
        host(Role::Balancer, &|h| h.ip_forward = true),
        Some("ip-forward")
    );
    assert_eq!(
        host(Role::Agent, &|h| h.cgroup2 = Some(false)),
        Some("cgroup")
    );
    let stamps = |h: &mut Host| h.tcp_timestamps = Some(0);
    assert_eq!(host(Role::Agent, &stamps), Some("tcp-timestamps"));
    assert_eq!(host(Role::Tunnel, &|h| h.has_tun = false), Some("tun"));
    let full = |h: &mut Host| h.conntrack = Some((80, 100));
    assert_eq!(host(Role::Agent, &full), Some("conntrack"));
    assert_eq!(host(Role::Agent, &|h| h.conntrack = Some((79, 100))), None);
    assert_eq!(host(Role::Agent, &|h| h.conntrack = Some((79, 0))), None);
    let closed = |h: &mut Host| h.closed_chains = vec!["inet filter input".to_owned()];
    assert_eq!(host(Role::Agent, &closed), Some("packet-filter"));
    assert_eq!(host(Role::Balancer, &closed), None);
}

#[test]
fn a_tunnels_paths_need_routes_and_room() {
    let paths = |paths: Vec<(Option<&str>, Option<u16>)>| {
        let mut wants = wants(Role::Tunnel);
        let path = |(device, mtu): (Option<&str>, _)| (device.map(str::to_owned), REAL, mtu);
        wants.paths = paths.into_iter().map(path).collect();
        told(&wants, &machine("ice"))
    };
    assert_eq!(paths(vec![(Some("eth0"), Some(1600))]), []);
    assert_eq!(paths(vec![(None, None)])[0].1, "path-route");
    assert_eq!(paths(vec![(Some("eth0"), Some(9000))])[0].1, "path-mtu");
    let twice = paths(vec![(Some("eth0"), None), (Some("eth0"), None)]);
    assert_eq!((twice[0].0, twice[0].1), (Level::Note, "path-shared"));
}

#[test]
fn a_veth_loses_what_is_sent_in_native_mode_alone() {
    let warning = one(
        Level::Warning,
        "veth",
        "xdp.mode = \"generic\" in the file; if it runs already: stop, unload --yes, start",
    );
    let program = |native| {
        Some(Program {
            id: 1,
            name: "causeway_lb".to_owned(),
            native,
        })
    };
    for (mode, runs, is_told) in [
        (XdpMode::Auto, None, true),
        (XdpMode::Native, None, true),
        (XdpMode::Generic, None, false),
        (XdpMode::Auto, program(false), false),
        (XdpMode::Auto, program(true), true),
    ] {
        let mut seen = machine("veth");
        seen.nics[0].kind = Some("veth".to_owned());
        seen.nics[0].program = runs;
        let mut wants = wants(Role::Balancer);
        wants.xdp = Some(mode);
        let mut told = told(&wants, &seen);
        told.retain(|(_, rule, _)| *rule == "veth");
        let expected = if is_told { warning.clone() } else { Vec::new() };
        assert_eq!(told, expected, "{mode:?}");
    }
    // What comes to an agent goes on to the kernel; and some programs are seen at the far end.
    let veth = |role, far_end| {
        let mut seen = machine("veth");
        seen.nics[0].kind = Some("veth".to_owned());
        seen.nics[0].peer_program = far_end;
        told(&wants(role), &seen).first().map(|told| told.0)
    };
    assert_eq!(veth(Role::Agent, None), Some(Level::Note));
    assert_eq!(veth(Role::Balancer, Some(false)), Some(Level::Warning));
    assert_eq!(veth(Role::Balancer, Some(true)), None);
}

#[test]
fn tunnels_to_servers_on_the_link_are_noted_with_the_router_that_they_go_by() {
    let mut seen = machine("ice");
    seen.ways[0].on_link = vec![VIP, REAL];
    let found = findings(&wants(Role::Balancer), &seen);
    assert_eq!((found[0].level, found[0].rule), (Level::Note, "on-link"));
    assert!(
        found[0].says.starts_with("tunnels go to the router 10.0.0.1 also where the server is on this link, as 192.0.2.1 and 1 more"),
        "{}",
        found[0].says
    );
}

#[test]
fn the_file_has_the_mac_address_by_which_a_server_answers() {
    let answers = |answers: Option<u8>| {
        with("ice", |seen| {
            seen.macs = vec![RealMac {
                interface: "eth0".to_owned(),
                real: REAL,
                mac: [2, 0, 0, 0, 0, 1],
                answers: answers.map(|last| [2, 0, 0, 0, 0, last]),
            }];
        })
    };
    assert_eq!(answers(Some(1)), []);
    let mend = "mac = \"02:00:00:00:00:21\" for 10.0.0.1 in the file, then causeway reload";
    assert_eq!(answers(Some(0x21)), one(Level::Fault, "real-mac", mend));
    assert_eq!(answers(None)[0].1, "real-silent");
}

#[test]
fn a_file_without_vips_is_no_clean_bill_of_the_way_to_servers() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("causeway.toml");
    std::fs::write(&file, "interface = \"eth0\"\n").expect("write the file");
    let wants = Wants::of_file(&file).expect("a configuration");
    let mend = "causeway doctor -c FILE, with the file that `causeway status` names";
    assert_eq!(
        told(&wants, &machine("ice")),
        one(Level::Note, "no-vips", mend)
    );
}
