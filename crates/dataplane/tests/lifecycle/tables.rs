// SPDX-License-Identifier: Apache-2.0
//! Interfaces, tables and next hops as they are found.

use causeway_core::cookie::{CookieLayout, CookieMode};
use causeway_dataplane::abi::{
    Ctl, Plain, VIP_FIRST_TCP, VIP_FIRST_UDP, VIP_OF_FRAGMENTS, VipKey, VipValue, addr_bytes,
};
use causeway_dataplane::{Picking, VipOptions};
use libbpf_rs::{MapCore as _, MapFlags};

use super::*;

#[test]
fn an_interface_without_native_xdp_gets_the_generic_one() {
    Sandbox::run(|sandbox| {
        let pin_dir = sandbox.pin_dir("lb");
        let mut wanted = options("lo", &pin_dir);
        wanted.xdp_mode = XdpMode::Native;
        let error = refusal(&wanted);
        assert!(
            matches!(&error, DataPlaneError::NoNative(name) if name == "lo"),
            "{error:?}"
        );
        wanted.xdp_mode = XdpMode::Auto;
        let (lb, started) = LoadBalancer::start(&wanted).expect("generic mode");
        assert_eq!(started.mode, AttachedMode::Generic);
        knock("127.0.0.1", 2);
        wait_for("the program to see traffic", || packets(&lb) >= 2);
        drop(lb);
        let (lb, started) = LoadBalancer::start(&wanted).expect("a takeover");
        assert!(started.took_over && started.mode == AttachedMode::Generic);
        drop(lb);
        wanted.xdp_mode = XdpMode::Native;
        let error = refusal(&wanted);
        assert!(
            matches!(
                error,
                DataPlaneError::OtherMode {
                    running: AttachedMode::Generic,
                    ..
                }
            ),
            "{error:?}"
        );
    });
}

#[test]
fn generic_mode_can_be_demanded() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let mut wanted = options("lb0", &sandbox.pin_dir("lb"));
        wanted.xdp_mode = XdpMode::Generic;
        let (_lb, started) = LoadBalancer::start(&wanted).expect("generic mode");
        assert_eq!(started.mode, AttachedMode::Generic);
    });
}

#[test]
fn tables_give_out_ids_and_take_them_back() {
    Sandbox::run(|sandbox| {
        let options = options("lo", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        let vip = |port| Vip {
            address: addr("2001:db8::1"),
            port,
            protocol: Protocol::Udp,
        };
        for port in 0..8 {
            assert_eq!(lb.add_vip(&vip(port)).expect("a VIP"), u32::from(port));
        }
        assert!(matches!(
            lb.add_vip(&vip(9)),
            Err(DataPlaneError::Full { max: 8, .. })
        ));
        assert!(matches!(
            lb.add_vip(&vip(3)),
            Err(DataPlaneError::DuplicateVip(_))
        ));
        let real = |vip| Real {
            vip,
            address: addr("10.0.0.1"),
            forwarding: Forwarding::Ipip,
        };
        assert!(matches!(
            lb.add_real(&real(8)),
            Err(DataPlaneError::UnknownVip(8))
        ));
        assert_eq!(lb.add_real(&real(3)).expect("a real"), 0);
        assert_eq!(lb.add_real(&real(4)).expect("a real"), 1);
        assert!(matches!(
            lb.set_ring(3, &[0, 2]),
            Err(DataPlaneError::UnknownReal(2))
        ));
        lb.set_forwarding(1, Forwarding::L2([1; 6]))
            .expect("another way");
        lb.remove_vip(3).expect("a removal");
        assert!(matches!(
            lb.remove_vip(3),
            Err(DataPlaneError::UnknownVip(3))
        ));
        assert_eq!(
            lb.reals(),
            [(
                1,
                Real {
                    forwarding: Forwarding::L2([1; 6]),
                    ..real(4)
                }
            )]
        );
        assert_eq!(lb.add_vip(&vip(9)).expect("the free id"), 3);
        assert_eq!(lb.real_stats().expect("counters").len(), 1);
        assert_eq!(lb.vip_stats().expect("counters").len(), 8);
        assert_eq!(lb.real_histogram(1).expect("a histogram").count(), 0);
        assert!(matches!(
            lb.real_histogram(0),
            Err(DataPlaneError::UnknownReal(0))
        ));
        let (vips, reals) = (lb.vips(), lb.reals());
        drop(lb);
        let lb = start(&options);
        assert_eq!((lb.vips(), lb.reals()), (vips, reals));
    });
}

#[test]
fn a_vip_that_goes_takes_along_what_no_other_vip_has_and_looks_at_nothing_else() {
    Sandbox::run(|sandbox| {
        let options = options("lo", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        let (one, other, left_over) = ("192.0.2.1", "2001:db8::1", "203.0.113.9");
        let vips = [
            (one, 80, Protocol::Tcp),
            (one, 81, Protocol::Tcp),
            (one, 80, Protocol::Udp),
            (other, 80, Protocol::Tcp),
        ];
        let ids = vips.map(|(address, port, protocol)| {
            let vip = Vip {
                address: addr(address),
                port,
                protocol,
            };
            lb.add_vip(&vip).expect("a VIP")
        });
        let take_fragments = |id| {
            let options = VipOptions {
                fragments: true,
                ..VipOptions::default()
            };
            lb.set_vip_options(id, options).expect("an option");
        };
        let map = pinned(&options.pin_dir, "vips");
        // Protocol and kind of what stands beside an address's VIPs, in order.
        let beside = |address: &str| {
            let keys = map.keys().filter_map(|key| VipKey::from_bytes(&key));
            let keys = keys.filter(|key| key.addr == addr_bytes(addr(address)));
            let keys = keys.map(|key| (key.proto, key.kind));
            let mut beside: Vec<_> = keys.filter(|of| of.0 == 0 || of.1 != 0).collect();
            beside.sort_unstable();
            beside
        };
        let (address, of_tcp, of_udp) = ((0, 0), (6, VIP_OF_FRAGMENTS), (17, VIP_OF_FRAGMENTS));
        take_fragments(ids[0]);
        take_fragments(ids[2]);
        assert_eq!(beside(one), [address, of_tcp, of_udp]);
        // As one that was killed may leave it.
        let bare = VipKey {
            addr: addr_bytes(addr(left_over)),
            ..VipKey::default()
        };
        let value = VipValue::default();
        map.update(
            Plain::as_bytes(&bare),
            Plain::as_bytes(&value),
            MapFlags::ANY,
        )
        .expect("an address without a VIP");
        lb.remove_vip(ids[0]).expect("a removal");
        assert_eq!(beside(one), [address, of_udp]);
        take_fragments(ids[1]);
        lb.remove_vip(ids[2]).expect("a removal");
        assert_eq!(beside(one), [address, of_tcp]);
        lb.remove_vip(ids[1]).expect("a removal");
        assert!(beside(one).is_empty());
        assert_eq!(beside(other), [address]);
        // To look for it would be a walk of the whole table with each VIP that goes.
        assert_eq!(beside(left_over), [address]);
        drop(lb);
        let lb = start(&options);
        assert_eq!((beside(other), beside(left_over)), (vec![address], vec![]));
        assert_eq!(lb.vips().len(), 1);
    });
}

#[test]
fn a_real_beyond_the_histograms_has_its_sums_alone() {
    Sandbox::run(|sandbox| {
        let options = options("lo", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        let (vip, _) = furnish(&lb);
        let (id, _) = lb.vips()[0];
        assert_eq!(lb.vips(), [(id, vip)]);
        for host in 0..13 {
            let real = Real {
                vip: id,
                address: addr(&format!("10.9.0.{host}")),
                forwarding: Forwarding::Ipip,
            };
            let real = lb.add_real(&real).expect("a real");
            assert_eq!(lb.real_histogram(real).expect("a histogram").count(), 0);
        }
        assert_eq!(lb.real_stats().expect("counters").len(), 15);
    });
}

/// The clock of the date may be set meanwhile.
#[test]
fn an_id_rests_by_the_clock_that_nobody_sets() {
    Sandbox::run(|sandbox| {
        let options = options("lo", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        furnish(&lb);
        let layout = CookieLayout::default_of(CookieMode::Timestamp);
        lb.set_cookies(0, Some(&layout)).expect("cookies");
        lb.set_cookie_id(0, 7, 1).expect("an id");
        lb.set_ring(0, &[0]).expect("a ring");
        let up_s = || causeway_netio::monotonic_ns() / 1_000_000_000;
        let freed = |lb: &LoadBalancer, since_s: u64| {
            let ids = lb.cookie_ids(0).expect("ids");
            let [id] = ids[..] else { panic!("{ids:?}") };
            let known = (id.id, id.real, id.address);
            assert_eq!(known, (7, None, addr("2001:db8::8")));
            let expected = since_s..=up_s();
            assert!(expected.contains(&id.freed_s.into()), "{id:?} {expected:?}");
            id.freed_s
        };
        let begun_s = up_s();
        lb.remove_real(1).expect("no real");
        let freed_s = freed(&lb, begun_s);
        drop(lb);
        let lb = start(&options);
        assert_eq!(freed(&lb, begun_s), freed_s);
        drop(lb);
        // Builds of another layout have told it by another clock: it rests anew.
        let slots = pinned(&options.pin_dir, "cookie_slots");
        let key = 7_u32.to_ne_bytes();
        let slot = slots.lookup(&key, MapFlags::ANY).expect("slots");
        let mut slot = slot.expect("the id's");
        slot[4..8].fill(0);
        slots.update(&key, &slot, MapFlags::ANY).expect("a slot");
        let begun_s = up_s();
        let lb = start(&options);
        let freed_s = freed(&lb, begun_s);
        drop(lb);
        assert_eq!(freed(&start(&options), begun_s), freed_s);
    });
}

#[test]
fn the_memory_foretold_is_what_the_kernel_takes() {
    Sandbox::run(|sandbox| {
        let pin_dir = sandbox.pin_dir("lb");
        let options = LoadBalancerOptions {
            limits: TableLimits {
                vips: 3000,
                reals: 20_000,
                histograms: 700,
                cookie_vips: 30,
            },
            ..options("lo", &pin_dir)
        };
        let cpus = causeway_dataplane::possible_cpus().expect("CPUs");
        let told = options.memory(cpus).expect("a size").total();
        let _lb = start(&options);
        let pins = std::fs::read_dir(&pin_dir).expect("pins");
        let taken: u64 = pins
            .filter_map(|pin| {
                let map = libbpf_rs::MapHandle::from_pinned_path(pin.expect("a pin").path());
                let map = map.ok()?;
                let fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&map));
                let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}"));
                let info = info.expect("what the kernel says of a map");
                let line = info
                    .lines()
                    .find_map(|line| line.strip_prefix("memlock:"))?;
                line.trim().parse::<u64>().ok()
            })
            .sum();
        assert!(
            taken.abs_diff(told) < told / 50,
            "{told} bytes were foretold, the kernel takes {taken}"
        );
    });
}

#[test]
fn rings_of_all_sizes_are_swapped_whole() {
    Sandbox::run(|sandbox| {
        let lb = start(&options("lo", &sandbox.pin_dir("lb")));
        furnish(&lb);
        for size in [65_537, 1, 251, 131_101, 0, 3] {
            let ring: Vec<u32> = (0..size).map(|slot| slot % 2).collect();
            lb.set_ring(0, &ring).expect("a ring");
            assert_eq!(lb.ring(0).expect("the ring"), ring);
        }
    });
}

#[test]
fn the_next_hop_is_found_on_the_wire() {
    Sandbox::run(|sandbox| {
        let peer = veth();
        let timeout = std::time::Duration::from_secs(3);
        let resolve = |timeout| {
            let info = causeway_netio::interface_info("lb0")?;
            let found = causeway_netio::find_gateways(&info, &[], timeout)?;
            let [v4, v6] = found.answering("lb0", timeout)?;
            Ok::<_, causeway_netio::NextHopError>(info.next_hop(v4, v6, &[]))
        };
        let error = resolve(timeout).expect_err("no route yet");
        assert!(error.to_string().contains("encap.gateway_mac"), "{error}");
        ip("route add default via 10.7.0.9 dev lb0 metric 50");
        let error = resolve(std::time::Duration::from_millis(200)).expect_err("nobody is .9");
        assert!(error.to_string().contains("10.7.0.9"), "{error}");
        ip("route add default via 10.7.0.2 dev lb0 metric 20");
        let hop = resolve(timeout).expect("a gateway");
        let theirs = peer
            .run(|| causeway_netio::interface_info("peer0"))
            .expect("the peer");
        assert_eq!(hop.gateway_mac, theirs.mac);
        let ours = causeway_netio::interface_info("lb0").expect("the interface");
        assert_eq!(hop.mac, ours.mac);
        assert_eq!(hop.mtu, 1500);
        let ours = "10.7.0.1".parse().expect("an address");
        assert_eq!(hop.source_v4, Some(OuterSource::whole(ours)));
        let lb = start(&options("lb0", &sandbox.pin_dir("lb")));
        lb.set_next_hop(&NextHop { mtu: 1600, ..hop })
            .expect("a next hop");
        // Who takes over reads it.
        drop(lb);
        let lb = start(&options("lb0", &sandbox.pin_dir("lb")));
        let in_use = lb.outer_sources().expect("the control block");
        assert_eq!(in_use, [IpAddr::V4(ours)]);
        // By IPv6, too: the gateway is link-local there.
        ip("route del default via 10.7.0.2 dev lb0 metric 20");
        ip("route del default via 10.7.0.9 dev lb0 metric 50");
        let link_local = link_local(&peer);
        ip(&format!("-6 route add default via {link_local} dev lb0"));
        assert_eq!(resolve(timeout).expect("a gateway").gateway_mac, theirs.mac);
        assert!(causeway_netio::interface_info("nowhere0").is_err());
    });
}

#[test]
fn an_outer_source_is_an_address_that_lasts() {
    Sandbox::run(|_| {
        let _peer = veth();
        ip("-6 addr add fd00:7::1/64 dev lb0 preferred_lft 0 nodad");
        let listed = || {
            let found = causeway_netio::interface_info("lb0").expect("the interface");
            let addresses = found.addresses.iter();
            addresses.map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(listed(), ["10.7.0.1", "fd00:7::1"]);
        ip("-6 addr add fd00:7::2/64 dev lb0 nodad");
        ip("-6 addr add fd00:7::3/64 dev lb0 nodad");
        let oldest_first = ["10.7.0.1", "fd00:7::2", "fd00:7::3", "fd00:7::1"];
        assert_eq!(listed(), oldest_first);
    });
}

/// Nothing but the look itself speaks to the gateway here, as with XDP.
#[test]
fn a_gateway_is_asked_and_not_just_remembered() {
    Sandbox::run(|_| {
        let peer = veth();
        // A kernel that had reason to look would do so in half a minute.
        for lazy in ["base_reachable_time_ms=3600000", "gc_stale_time=3600"] {
            let (key, value) = lazy.split_once('=').expect("a pair");
            let path = format!("/proc/sys/net/ipv4/neigh/lb0/{key}");
            std::fs::write(path, value).expect("a lazy kernel");
        }
        ip("route add default via 10.7.0.9 dev lb0");
        ip("route add 10.20.0.0/16 via 10.7.0.2 dev lb0");
        let lb0 = causeway_netio::interface_info("lb0").expect("the interface");
        let reals: Vec<IpAddr> = ["10.20.0.1", "10.20.0.2", "10.30.0.1"]
            .map(|real| real.parse().expect("an address"))
            .to_vec();
        let look = || {
            let timeout = std::time::Duration::from_secs(1);
            let found = causeway_netio::find_gateways(&lb0, &reals, timeout).expect("tables");
            assert_eq!(found.v6, None);
            found.v4.expect("a route")
        };
        let mac = || {
            let theirs = peer.run(|| causeway_netio::interface_info("peer0"));
            Some(theirs.expect("the peer").mac)
        };
        let timeout = std::time::Duration::from_secs(30);
        let two = [reals[0], "10.7.0.2".parse().expect("an address")];
        let found = causeway_netio::find_gateways(&lb0, &two, timeout).expect("tables");
        assert_eq!(found.on_link, [two[1]]);
        let answers = |real| causeway_netio::on_link(&lb0, real, timeout).expect("tables");
        let theirs = mac().expect("a MAC address");
        assert_eq!(answers(two[1]), causeway_netio::OnLink::Answers(theirs));
        assert_eq!(answers(two[0]), causeway_netio::OnLink::Elsewhere);
        let own = causeway_netio::own_addresses().expect("tables");
        let own = own
            .iter()
            .find(|own| own.interface == "lb0" && own.address.is_ipv4());
        let own = own.map(|own| (own.address.to_string(), own.prefix_len));
        assert_eq!(own, Some(("10.7.0.1".to_owned(), 24)));
        // By the routes to the reals, of which one goes another way.
        let found = look();
        assert_eq!(
            (found.address.to_string().as_str(), found.others),
            ("10.7.0.2", 1)
        );
        assert_eq!(found.mac, mac());
        let follows = |expected: &dyn Fn() -> Option<causeway_netio::Mac>, what: &str| {
            let began = std::time::Instant::now();
            while look().mac != expected() {
                assert!(began.elapsed().as_secs() < 20, "waited in vain: {what}");
                std::thread::sleep(std::time::Duration::from_millis(500));
            }
        };
        let before = mac();
        peer.ip("link set peer0 down");
        peer.ip("link set peer0 address 02:00:00:00:00:77");
        peer.ip("link set peer0 up");
        assert_ne!(mac(), before);
        follows(&mac, "the gateway's new address");
        peer.ip("link set peer0 arp off");
        follows(&|| None, "the gateway's silence");
        peer.ip("link set peer0 arp on");
        follows(&mac, "the gateway's return");
    });
}

/// The peer's link-local address, once it may be used.
fn link_local(peer: &Netns) -> String {
    let mut found = String::new();
    wait_for("the peer's link-local address", || {
        let shown =
            peer.run(|| sandbox::run("ip", "-o -6 addr show dev peer0 scope link -tentative"));
        let ours = sandbox::run("ip", "-o -6 addr show dev lb0 scope link -tentative");
        found = shown
            .split("inet6 ")
            .nth(1)
            .and_then(|s| s.split('/').next())
            .unwrap_or_default()
            .to_owned();
        !found.is_empty() && ours.contains("inet6")
    });
    found
}

#[test]
fn a_trace_says_what_would_happen_and_changes_nothing() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        let (vip, reals) = furnish(&lb);
        let hop = NextHop {
            mac: [2; 6],
            gateway_mac: [2, 0, 0, 0, 0, 9],
            gateway6_mac: [0; 6],
            mtu: 1500,
            source_v4: Some(OuterSource::whole("10.7.0.1".parse().expect("an address"))),
            source_v6: None,
            gue: Default::default(),
        };
        lb.set_next_hop(&hop).expect("a next hop");
        let syn = |to: IpAddr, port| {
            let IpAddr::V4(to) = to else { unreachable!() };
            let tcp = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
                .ipv4([198, 51, 100, 7], to.octets(), 64)
                .tcp(4000, port, 1, 64_000)
                .syn();
            let mut frame = Vec::new();
            tcp.write(&mut frame, &[]).expect("a frame");
            frame
        };
        // What belongs to no VIP is left out: the link's own IPv6 packets come whenever
        // they like.
        let counted = || {
            let mut verdicts = lb.verdicts().expect("verdicts");
            verdicts.retain(|(verdict, _)| *verdict != Verdict::NotVip);
            (verdicts, lb.real_stats().expect("stats"))
        };
        let before = counted();
        let frames = [
            syn(vip.address, vip.port),
            syn(vip.address, vip.port),
            syn(vip.address, 81),
        ];
        let traced = causeway_dataplane::trace(
            &options.pin_dir,
            options.conns,
            options.tunnel_ends,
            &frames,
        )
        .expect("a trace");
        // In a tunnel to the first real, or as it came to the second.
        let addresses = [Some(reals[0].address), Some(vip.address)];
        for again in &traced[..2] {
            assert_eq!(
                again.verdict,
                Verdict::Opened,
                "the first has left nothing behind"
            );
            assert!(addresses.contains(&again.destination()), "{again:?}");
        }
        assert_eq!(traced[0], traced[1]);
        assert_eq!(
            (traced[2].verdict, traced[2].destination()),
            (Verdict::NotServed, None)
        );
        assert_eq!(traced[2].frame, frames[2]);
        assert_eq!(before, counted());
        let nowhere = causeway_dataplane::trace(
            &sandbox.pin_dir("none"),
            options.conns,
            options.tunnel_ends,
            &frames,
        );
        assert!(nowhere.is_err());
    });
}

#[test]
fn vips_are_looked_up_first_where_some_forget_flows() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        let first = || {
            let ctl = pinned(&options.pin_dir, "ctl");
            let value = ctl.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
            let value = value.expect("an entry").expect("an entry");
            Ctl::from_bytes(&value).expect("its layout").vip_first
        };
        let forget = |forgets: bool| Picking {
            remember: !forgets,
            ..Picking::default()
        };
        let lb = start(&options);
        let [tcp, udp] = [Protocol::Tcp, Protocol::Udp].map(|protocol| {
            let vip = Vip {
                address: addr("192.0.2.10"),
                port: 53,
                protocol,
            };
            lb.add_vip(&vip).expect("a VIP")
        });
        assert_eq!(first(), 0);
        lb.set_picking(udp, forget(true)).expect("a setting");
        assert_eq!(first(), VIP_FIRST_UDP);
        lb.set_picking(tcp, forget(true)).expect("a setting");
        assert_eq!(first(), VIP_FIRST_TCP | VIP_FIRST_UDP);
        lb.set_picking(tcp, forget(false)).expect("a setting");
        drop(lb);
        // A successor knows it, and ends it with the VIP.
        let lb = start(&options);
        lb.set_picking(tcp, forget(true)).expect("a setting");
        lb.set_picking(tcp, forget(false)).expect("a setting");
        assert_eq!(first(), VIP_FIRST_UDP);
        lb.remove_vip(udp).expect("a removal");
        assert_eq!(first(), 0);
    });
}

#[test]
fn rings_of_many_vips_are_set_at_once_and_read_back() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let mut options = options("lb0", &sandbox.pin_dir("lb"));
        (options.limits.vips, options.limits.reals) = (200, 200);
        let lb = start(&options);
        let vips: Vec<VipId> = (0..200)
            .map(|port| {
                let vip = Vip {
                    address: addr("192.0.2.10"),
                    port,
                    protocol: Protocol::Tcp,
                };
                lb.add_vip(&vip).expect("a VIP")
            })
            .collect();
        let reals: Vec<RealId> = vips
            .iter()
            .map(|vip| {
                let real = Real {
                    vip: *vip,
                    address: addr("10.8.0.1"),
                    forwarding: Forwarding::Ipip,
                };
                lb.add_real(&real).expect("a real")
            })
            .collect();
        let ring_of = |vip: VipId| vec![reals[vip as usize]; 1 + vip as usize];
        let rings: Vec<VipRings> = vips
            .iter()
            .map(|vip| VipRings {
                vip: *vip,
                ring: ring_of(*vip),
                plain: None,
            })
            .collect();
        lb.set_rings(&rings).expect("rings");
        let read = lb.rings(&vips).expect("rings");
        for (vip, ring) in vips.iter().zip(read) {
            assert_eq!(ring, ring_of(*vip), "VIP {vip}");
        }
    });
}
