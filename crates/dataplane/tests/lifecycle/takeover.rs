// SPDX-License-Identifier: Apache-2.0
//! Successors, crashes and removal.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::thread;

use causeway_core::control::Sampling;
use causeway_core::cookie::{CookieLayout, CookieMode};
use causeway_dataplane::VipOptions;
use causeway_dataplane::abi::{Plain, REAL_DOWN, RealValue, VipKey, VipValue, addr_bytes};
use libbpf_rs::{MapCore as _, MapFlags};

use super::*;

#[test]
fn a_takeover_keeps_link_tables_and_counters() {
    Sandbox::run(|sandbox| {
        let peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        let (lb, started) = LoadBalancer::start(&options).expect("a first start");
        assert!(!started.took_over);
        assert_eq!(started.mode, AttachedMode::Native);
        let (vip, reals) = furnish(&lb);
        let link = lb.link_id().expect("a link");
        peer.run(|| knock("10.7.0.1", 3));
        wait_for("the program to see traffic", || packets(&lb) >= 3);
        let seen = packets(&lb);
        drop(lb);

        // No process is there, and the program still counts.
        peer.run(|| knock("10.7.0.1", 2));

        let (lb, started) = LoadBalancer::start(&options).expect("a takeover");
        assert!(started.took_over);
        assert_eq!(started.mode, AttachedMode::Native);
        assert_eq!(lb.link_id().expect("a link"), link);
        assert_eq!(lb.vips(), [(0, vip)]);
        assert_eq!(lb.reals(), [(0, reals[0]), (1, reals[1])]);
        assert_eq!(lb.ring(0).expect("the ring"), [0, 1, 0]);
        wait_for("counters to go on", || packets(&lb) >= seen + 2);
    });
}

/// A client's first segment to a VIP of IPv4.
fn syn_from(client: &str, vip: &Vip) -> Vec<u8> {
    let (IpAddr::V4(client), IpAddr::V4(to)) = (addr(client), vip.address) else {
        panic!("IPv4 is meant");
    };
    let mut frame = Vec::new();
    etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4(client.octets(), to.octets(), 64)
        .tcp(4000, vip.port, 1, 64_000)
        .syn()
        .write(&mut frame, &[])
        .expect("a frame");
    frame
}

#[test]
fn client_prefixes_have_rings_and_keep_them_over_a_takeover() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        let (vip, _) = furnish(&lb);
        let group = |prefixes: &[(&str, u8)], ring: &[u32], strict| SourceRing {
            prefixes: prefixes
                .iter()
                .map(|(a, length)| (addr(a), *length))
                .collect(),
            ring: ring.to_vec(),
            plain: Vec::new(),
            strict,
        };
        // By the real's path: the second is reached by its MAC address, the first not at
        // all, as no gateway is known.
        let second = |client: &str| {
            let frame = syn_from(client, &vip);
            let traced = causeway_dataplane::trace(
                &options.pin_dir,
                options.conns,
                options.tunnel_ends,
                &[frame],
            );
            match traced.expect("a trace")[0].verdict {
                Verdict::Opened => Some(true),
                Verdict::NoNextHop => Some(false),
                Verdict::NoReal => None,
                other => panic!("{other:?}"),
            }
        };
        lb.set_ring(0, &[0]).expect("a ring");
        assert_eq!(second("10.1.2.3"), Some(false));
        let both = [
            group(&[("10.1.0.0", 16), ("10.2.0.0", 16)], &[1, 1], false),
            group(&[("10.1.2.0", 24)], &[], true),
        ];
        lb.set_sources(0, &both).expect("sources");
        assert_eq!(second("10.1.3.3"), Some(true));
        assert_eq!(second("10.2.3.3"), Some(true));
        assert_eq!(second("10.1.2.3"), None, "a group of its own without reals");
        assert_eq!(second("10.3.2.3"), Some(false));
        drop(lb);
        let lb = start(&options);
        assert_eq!(second("10.1.3.3"), Some(true));
        assert_eq!(
            lb.source_picks(0).expect("picks"),
            [0, 0],
            "a trace counts nothing"
        );
        // One prefix goes, a group becomes another's ring.
        lb.set_sources(0, &[group(&[("10.1.2.0", 24)], &[1], true)])
            .expect("sources");
        assert_eq!(second("10.1.2.3"), Some(true));
        assert_eq!(second("10.1.3.3"), Some(false));
        assert!(
            lb.set_sources(0, &[group(&[("10.1.2.0", 24)], &[9], true)])
                .is_err()
        );
        assert_eq!(second("10.1.2.3"), Some(true), "as it was");
        lb.set_sources(0, &[]).expect("none");
        assert_eq!(second("10.1.2.3"), Some(false));
        // The numbers of groups come back, also by a VIP that goes.
        let many: Vec<SourceRing> = (0..=255)
            .map(|n| group(&[(&format!("10.0.{n}.0"), 24)], &[1], false))
            .collect();
        lb.set_sources(0, &many).expect("as many as there are");
        let one_more = [&many[..], &[group(&[("10.9.0.0", 16)], &[1], false)]].concat();
        assert!(lb.set_sources(0, &one_more).is_err());
        assert_eq!(second("10.0.255.1"), Some(true));
        lb.remove_vip(0).expect("gone");
        furnish(&lb);
        lb.set_sources(0, &many).expect("all are free again");
    });
}

/// What nothing remembers goes by rings that balancers have alike, the client prefixes' too.
#[test]
fn rings_of_configured_weights_stand_beside_the_schedulers() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        let (vip, _) = furnish(&lb);
        // By the real's path: the second is reached by its MAC address, the first not at
        // all, as no gateway is known. A SYN opens a flow, an ACK has none.
        let second = |client: &str, opens: bool| {
            let mut frame = syn_from(client, &vip);
            if !opens {
                frame[14 + 20 + 13] = 0x10;
            }
            let (conns, ends) = (options.conns, options.tunnel_ends);
            let traced = causeway_dataplane::trace(&options.pin_dir, conns, ends, &[frame]);
            match traced.expect("a trace")[0].verdict {
                Verdict::Opened | Verdict::Adopted => true,
                Verdict::NoNextHop => false,
                other => panic!("{other:?}"),
            }
        };
        let set = |lb: &LoadBalancer, ring: &[u32], plain: Option<Vec<u32>>| {
            let ring = ring.to_vec();
            let rings = VipRings {
                vip: 0,
                ring,
                plain,
            };
            lb.set_rings(&[rings]).expect("rings");
        };
        let both = |client| [true, false].map(|opens| second(client, opens));
        set(&lb, &[0; 5], None);
        assert_eq!(both("10.1.2.3"), [false, false], "the VIP's own for all");
        set(&lb, &[0; 5], Some(vec![1; 7]));
        assert_eq!(both("10.1.2.3"), [false, true]);
        set(&lb, &[0; 3], None);
        assert_eq!(both("10.1.2.3"), [false, true], "it stays");
        drop(lb);
        let lb = start(&options);
        assert_eq!(both("10.1.2.3"), [false, true]);
        let own = |plain: &[u32]| SourceRing {
            prefixes: vec![(addr("10.1.0.0"), 16)],
            ring: vec![1; 3],
            plain: plain.to_vec(),
            strict: false,
        };
        lb.set_sources(0, &[own(&[0; 5])]).expect("sources");
        assert_eq!(both("10.1.2.3"), [true, false], "the prefix's rings");
        assert_eq!(both("10.3.2.3"), [false, true], "the VIP's");
        lb.set_sources(0, &[own(&[])]).expect("sources");
        assert_eq!(both("10.1.2.3"), [true, true]);
        set(&lb, &[0; 3], Some(Vec::new()));
        assert_eq!(both("10.3.2.3"), [false, false]);
    });
}

#[test]
fn who_may_not_read_rings_takes_over_without_former_owners() {
    Sandbox::run(|sandbox| {
        let options = options("lo", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        let (vip, _) = furnish(&lb);
        let second_chance = VipOptions {
            second_chance: true,
            ..VipOptions::default()
        };
        lb.set_vip_options(0, second_chance).expect("an option");
        lb.set_ring(0, &[1, 1, 0]).expect("a ring");
        let former_size = || {
            let key = VipKey {
                addr: addr_bytes(vip.address),
                port_be: vip.port.to_be_bytes(),
                proto: vip.protocol as u8,
                kind: 0,
            };
            let vips = pinned(&options.pin_dir, "vips");
            let value = vips.lookup(Plain::as_bytes(&key), MapFlags::ANY);
            let value = VipValue::from_bytes(&value.expect("the VIPs").expect("the VIP"));
            value.expect("its size").former_size
        };
        assert_eq!(former_size(), 3);
        drop(lb);
        let (lb, started) = thread::scope(|scope| {
            let start = scope.spawn(|| {
                sandbox::give_up(sandbox::SYS_ADMIN);
                LoadBalancer::start(&options)
            });
            start.join().expect("a thread").expect("a takeover")
        });
        assert!(started.took_over);
        assert_eq!(former_size(), 0);
        assert_eq!(lb.ring(0).expect("the ring"), [1, 1, 0]);
        assert!(lb.vip_options(0).expect("options").second_chance);
        // From the next change on as ever; the first shows who has the slots.
        lb.set_ring(0, &[0, 1, 0]).expect("a ring");
        assert_eq!(former_size(), 0);
        lb.set_ring(0, &[1, 1, 0]).expect("a ring");
        assert_eq!(former_size(), 3);
    });
}

#[test]
fn a_successor_knows_who_is_down_and_takes_no_other_real_for_that() {
    Sandbox::run(|sandbox| {
        let options = options("lo", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        let (_, reals) = furnish(&lb);
        let down = || {
            let map = pinned(&options.pin_dir, "reals");
            let is_down = |id: &u32| {
                let value = map.lookup(&id.to_ne_bytes(), MapFlags::ANY);
                let value = RealValue::from_bytes(&value.expect("the reals").expect("a slot"));
                value.expect("its size").flags & REAL_DOWN != 0
            };
            (0..3).filter(is_down).collect::<Vec<u32>>()
        };
        // The third is not there.
        lb.set_down(&HashSet::from([0, 2])).expect("one");
        assert_eq!(down(), [0]);
        lb.set_forwarding(0, Forwarding::Gue).expect("another way");
        let one_in_eight = Sampling {
            opening: 3,
            ..Sampling::default()
        };
        lb.set_sampling(0, one_in_eight).expect("sampling");
        assert_eq!(down(), [0]);
        drop(lb);
        let lb = start(&options);
        assert_eq!(down(), [0]);
        lb.set_down(&HashSet::from([1])).expect("another one");
        assert_eq!(down(), [1]);
        // Another real gets its id, and is down for itself.
        lb.set_ring(0, &[0]).expect("a ring");
        lb.remove_real(1).expect("gone");
        assert_eq!(lb.add_real(&reals[1]).expect("a real"), 1);
        assert!(down().is_empty());
        lb.set_down(&HashSet::from([1])).expect("it too");
        assert_eq!(down(), [1]);
        lb.set_down(&HashSet::new()).expect("none");
        assert!(down().is_empty());
    });
}

const THIS_TEST: &str =
    "takeover::a_killed_process_leaves_the_data_plane_and_a_successor_takes_over";

/// Set for a process that holds a balancer until it is killed.
const HELD_PIN_DIR: &str = "CAUSEWAY_TEST_HELD_PIN_DIR";

#[test]
fn a_killed_process_leaves_the_data_plane_and_a_successor_takes_over() {
    // The victim is this very test in another process.
    if let Some(pin_dir) = std::env::var_os(HELD_PIN_DIR) {
        hold_a_balancer_until_killed(Path::new(&pin_dir));
    }
    Sandbox::run(|sandbox| {
        let peer = veth();
        let pin_dir = sandbox.pin_dir("lb");
        for round in 0..3 {
            let me = std::env::current_exe().expect("this binary");
            let mut child = Command::new(me)
                .args(["--exact", THIS_TEST])
                .env(HELD_PIN_DIR, &pin_dir)
                .stdout(Stdio::null())
                .spawn()
                .expect("a child");
            wait_for("the child's balancer", || pin_dir.join("ready").exists());
            child.kill().expect("SIGKILL");
            child.wait().expect("the end of the child");
            std::fs::remove_dir(pin_dir.join("ready")).expect("its sign");
            peer.run(|| knock("10.7.0.1", 1));
            let options = options("lb0", &pin_dir);
            let (lb, started) = LoadBalancer::start(&options).expect("a takeover");
            assert!(started.took_over);
            assert_eq!(lb.vips().len(), 1, "round {round}");
            wait_for("counters to go on", || packets(&lb) > round);
        }
    });
}

fn hold_a_balancer_until_killed(pin_dir: &Path) -> ! {
    let lb = start(&options("lb0", pin_dir));
    if lb.vips().is_empty() {
        furnish(&lb);
    }
    // Only pins can stand in a BPF file system; a directory will do as a sign.
    std::fs::create_dir(pin_dir.join("ready")).expect("a sign");
    loop {
        std::thread::park();
    }
}

#[test]
fn detach_leaves_nothing_and_may_be_repeated() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let pin_dir = sandbox.pin_dir("deep/down/lb");
        drop(start(&options("lb0", &pin_dir)));
        assert!(sandbox::run("ip", "link show lb0").contains("xdp"));
        let detached = LoadBalancer::detach(&pin_dir).expect("a detach");
        assert!(detached.was_attached);
        assert!(detached.pins > 8, "{detached:?}");
        assert!(!pin_dir.exists());
        assert!(!sandbox::run("ip", "link show lb0").contains("xdp"));
        let again = LoadBalancer::detach(&pin_dir).expect("nothing to do");
        assert_eq!((again.was_attached, again.pins), (false, 0));
        let (_, started) = LoadBalancer::start(&options("lb0", &pin_dir)).expect("a new start");
        assert!(!started.took_over);
    });
}

/// Upgrades of a balancer are tested beside its tables (src/balancer/carried).
#[test]
fn a_decapsulator_of_another_layout_is_taken_over() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = server_options(&sandbox.pin_dir("server"));
        let (server, _) = Decapsulator::start(&options).expect("a decapsulator");
        let own = BTreeSet::from([addr("10.7.0.1")]);
        server.set_addresses(&own, &own).expect("its address");
        drop(server);
        let layout = pinned(&options.pin_dir, "layout");
        let word = 2_u32 << 16 | 99;
        layout
            .update(&[0; 4], &word.to_ne_bytes(), MapFlags::ANY)
            .expect("another layout");
        let (server, started) = Decapsulator::start(&options).expect("an upgrade");
        assert!(started.took_over);
        let from = started.carried_over.expect("another layout");
        assert_eq!((from.layout, from.losses.as_slice()), (99, &[][..]));
        assert_eq!(server.addresses().expect("addresses"), own);
        drop(server);
        let (_, started) = Decapsulator::start(&options).expect("a takeover");
        assert!(started.took_over && started.carried_over.is_none());
    });
}

/// Of what a server is told as much may come at once as there is room for.
#[test]
fn a_servers_tables_hold_as_many_others_as_they_held() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = server_options(&sandbox.pin_dir("server"));
        let (server, _) = Decapsulator::start(&options).expect("a decapsulator");
        let own = BTreeSet::from([addr("10.7.0.1")]);
        let layout = CookieLayout::default_of(CookieMode::Timestamp);
        let set = |net: u8, count: u16| {
            let address = |n: u16| IpAddr::from([192, net, n.to_be_bytes()[0], n as u8]);
            let vips: BTreeSet<IpAddr> = (0..count).map(address).collect();
            let vip = |address: &IpAddr| Vip {
                address: *address,
                port: 80,
                protocol: Protocol::Tcp,
            };
            let cookies = vips.iter().map(|address| (vip(address), (1, layout)));
            server.set_tunnel_sources(&vips.iter().map(|address| (*address, 32)).collect())?;
            server.set_addresses(&own, &vips)?;
            server.set_cookie_vips(&cookies.collect())
        };
        let counts = || {
            ["tunnel_sources", "own_addresses", "cookie_vips"]
                .map(|name| pinned(&options.pin_dir, name).keys().count())
        };
        for net in [0, 1, 0] {
            set(net, 700).expect("room");
            assert_eq!(counts(), [700, 701, 700]);
        }
        let error = set(1, 1025).expect_err("no room").to_string();
        assert!(error.contains("from 0 to 1024, not 1025"), "{error}");
        assert_eq!(counts(), [700, 701, 700], "nothing is half done");
        for (networks, addresses, vips) in [(1025, 0, 0), (0, 1281, 0), (0, 0, 1025)] {
            let fits = server.check_capacity(networks, addresses, vips);
            fits.expect_err("no room");
        }
        server.check_capacity(1024, 1280, 1024).expect("room");
        // A successor that lacks a part of what was told takes nothing away.
        let (networks, more) = (BTreeSet::new(), BTreeSet::from([addr("192.9.9.9")]));
        server
            .add(&networks, &own, &more, None, &BTreeMap::new())
            .expect("room");
        assert_eq!(counts(), [700, 702, 700]);
    });
}

/// Whether lb0 has programs of traffic control: by links, or by filters, outwards and inwards.
fn has_tc_programs() -> [bool; 2] {
    let index = nix::net::if_::if_nametoindex("lb0").expect("the interface");
    let hooks = [
        (libbpf_sys::BPF_TCX_EGRESS, "egress"),
        (libbpf_sys::BPF_TCX_INGRESS, "ingress"),
    ];
    hooks.map(|(hook, way)| {
        let mut links = libbpf_sys::bpf_prog_query_opts {
            sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
            ..Default::default()
        };
        // Kernels before 6.6 refuse, and have none.
        // SAFETY: `links` is of the size that it says and points to nothing.
        let ret = unsafe { libbpf_sys::bpf_prog_query_opts(index as i32, hook, &mut links) };
        // SAFETY: the union's members are the same number.
        let links = unsafe { links.__bindgen_anon_1.count };
        let filters = sandbox::run("tc", &format!("filter show dev lb0 {way}"));
        ret == 0 && links > 0 || filters.contains("causeway_cookie")
    })
}

/// Else cookies would be written on, by keys that are not renewed.
#[test]
fn a_decapsulator_without_cookies_takes_down_those_of_its_predecessor() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let with = server_options(&sandbox.pin_dir("server"));
        let without = DecapsulatorOptions {
            cookies: None,
            ..with.clone()
        };
        for _ in 0..2 {
            drop(Decapsulator::start(&with).expect("cookies"));
            assert_eq!(has_tc_programs(), [true, true]);
            let (server, started) = Decapsulator::start(&without).expect("none");
            assert!(started.took_over);
            assert_eq!(has_tc_programs(), [false, false]);
            assert!(!with.pin_dir.join("link_cookie_open").exists());
            assert_eq!(server.mend().expect("a look"), Repairs::default());
        }
    });
}

#[test]
fn a_decapsulator_that_is_wanted_no_more_goes_and_a_balancer_stays() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = server_options(&sandbox.pin_dir("server"));
        drop(Decapsulator::start(&options).expect("a decapsulator"));
        let is_attached = || sandbox::run("ip", "link show lb0").contains("xdp");
        assert!(is_attached());
        let retired = || Decapsulator::retire(&options.pin_dir).expect("a look");
        assert!(retired());
        assert!(!is_attached() && !options.pin_dir.exists());
        assert!(!retired());
        drop(start(&super::options("lb0", &options.pin_dir)));
        assert!(!retired());
        assert!(is_attached());
    });
}
