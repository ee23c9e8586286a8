// SPDX-License-Identifier: Apache-2.0
//! The balancer's life: start, takeover, crash, removal, and every refusal, on
//! real interfaces in private namespaces.

mod sandbox;

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};

use causeway_io::abi::Verdict;
use causeway_io::{
    Error, Forwarding, LoadBalancer, Mode, NextHop, Options, Protocol, Real, Source, SourceRing,
    Vip, XdpMode,
};
use sandbox::{Netns, Sandbox, attach_pass, ip, wait_for};

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Small tables: most tests do not fill them.
fn options(interface: &str, pin_dir: &Path) -> Options {
    Options {
        flows_v4: 1024,
        flows_v6: 1024,
        max_vips: 8,
        max_reals: 16,
        ..Options::new(interface, pin_dir)
    }
}

/// A veth pair; `lb0` stays here, `peer0` goes to the namespace that is returned.
fn veth() -> Netns {
    let peer = Netns::new();
    ip("link add lb0 type veth peer name peer0");
    ip(&format!("link set peer0 netns {}", peer.path()));
    ip("addr add 10.7.0.1/24 dev lb0");
    ip("link set lb0 up");
    peer.ip("addr add 10.7.0.2/24 dev peer0");
    peer.ip("link set peer0 up");
    peer
}

fn start(options: &Options) -> LoadBalancer {
    LoadBalancer::start(options)
        .unwrap_or_else(|e| panic!("{e}"))
        .0
}

fn refusal(options: &Options) -> Error {
    match LoadBalancer::start(options) {
        Ok(_) => panic!("started, but should have been refused"),
        Err(e) => e,
    }
}

fn packets(lb: &LoadBalancer) -> u64 {
    let verdicts = lb.verdicts().expect("verdicts");
    verdicts.iter().map(|(_, counter)| counter.packets).sum()
}

/// Sends `count` datagrams to a port where nobody listens.
fn knock(target: &str, count: usize) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    for _ in 0..count {
        socket.send_to(b"knock", (target, 9)).expect("send");
    }
}

/// One VIP with two reals, all that a takeover must keep.
fn furnish(lb: &LoadBalancer) -> (Vip, [Real; 2]) {
    let vip = Vip {
        address: addr("192.0.2.1"),
        port: 80,
        protocol: Protocol::Tcp,
    };
    let id = lb.add_vip(&vip).expect("a VIP");
    let reals = [
        (addr("10.8.0.1"), Forwarding::Ipip),
        (addr("2001:db8::8"), Forwarding::L2([2, 0, 0, 0, 0, 8])),
    ];
    let reals = reals.map(|(address, forwarding)| Real {
        vip: id,
        address,
        forwarding,
    });
    let ids = reals.map(|real| lb.add_real(&real).expect("a real"));
    lb.set_ring(id, &[ids[0], ids[1], ids[0]]).expect("a ring");
    (vip, reals)
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
            strict,
        };
        // By the real's path: the second is reached by its MAC address, the first not at
        // all, as no gateway is known.
        let second = |client: &str| {
            let frame = syn_from(client, &vip);
            let traced = causeway_io::trace(
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
fn a_takeover_keeps_link_tables_and_counters() {
    Sandbox::run(|sandbox| {
        let peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        let (lb, started) = LoadBalancer::start(&options).expect("a first start");
        assert!(!started.took_over);
        assert_eq!(started.mode, Mode::Native);
        let (vip, reals) = furnish(&lb);
        let link = lb.link_id().expect("a link");
        peer.run(|| knock("10.7.0.1", 3));
        wait_for("the program to see traffic", || packets(&lb) >= 3);
        let seen = packets(&lb);
        drop(lb);

        // Nobody is there, and the program still counts.
        peer.run(|| knock("10.7.0.1", 2));

        let (lb, started) = LoadBalancer::start(&options).expect("a takeover");
        assert!(started.took_over);
        assert_eq!(started.mode, Mode::Native);
        assert_eq!(lb.link_id().expect("a link"), link);
        assert_eq!(lb.vips(), [(0, vip)]);
        assert_eq!(lb.reals(), [(0, reals[0]), (1, reals[1])]);
        assert_eq!(lb.ring(0).expect("the ring"), [0, 1, 0]);
        wait_for("counters to go on", || packets(&lb) >= seen + 2);
    });
}

const THIS_TEST: &str = "a_killed_process_leaves_the_data_plane_and_a_successor_takes_over";
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

#[test]
fn a_changed_table_size_is_refused_and_names_map_and_way_out() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let old = options("lb0", &sandbox.pin_dir("lb"));
        let lb = start(&old);
        furnish(&lb);
        drop(lb);
        let new = Options {
            flows_v4: 2048,
            ..old.clone()
        };
        let error = refusal(&new);
        assert!(
            matches!(&error, Error::Layout { map, what: "max_entries", pinned: 1280, wanted: 2560, .. } if map == "flows4"),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.contains("flows4") && text.contains("--detach"),
            "{text}"
        );
        // The refusal has changed nothing.
        let (lb, started) = LoadBalancer::start(&old).expect("a takeover");
        assert!(started.took_over);
        assert_eq!(lb.vips().len(), 1);
    });
}

#[test]
fn pins_of_another_layout_are_refused() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        drop(start(&options));
        let layout = options.pin_dir.join("layout");
        let map = libbpf_rs::MapHandle::from_pinned_path(&layout).expect("the layout");
        use libbpf_rs::{MapCore as _, MapFlags};
        map.update(&[0; 4], &77_u32.to_ne_bytes(), MapFlags::ANY)
            .expect("another layout");
        let error = refusal(&options);
        assert!(matches!(error, Error::AbiVersion { .. }), "{error:?}");
        assert!(error.to_string().contains("--detach"), "{error}");
        // Pins that do not say what they are could be anything.
        std::fs::remove_file(&layout).expect("remove the layout");
        assert!(refusal(&options).to_string().contains("layout unknown"));
        LoadBalancer::detach(&options.pin_dir).expect("the way out");
        start(&options);
    });
}

#[test]
fn an_interface_without_native_xdp_gets_the_generic_one() {
    Sandbox::run(|sandbox| {
        let pin_dir = sandbox.pin_dir("lb");
        let mut wanted = options("lo", &pin_dir);
        wanted.xdp_mode = XdpMode::Native;
        let error = refusal(&wanted);
        assert!(
            matches!(&error, Error::NoNative(name) if name == "lo"),
            "{error:?}"
        );
        wanted.xdp_mode = XdpMode::Auto;
        let (lb, started) = LoadBalancer::start(&wanted).expect("generic mode");
        assert_eq!(started.mode, Mode::Generic);
        knock("127.0.0.1", 2);
        wait_for("the program to see traffic", || packets(&lb) >= 2);
        drop(lb);
        let (lb, started) = LoadBalancer::start(&wanted).expect("a takeover");
        assert!(started.took_over && started.mode == Mode::Generic);
        drop(lb);
        wanted.xdp_mode = XdpMode::Native;
        let error = refusal(&wanted);
        assert!(
            matches!(
                error,
                Error::OtherMode {
                    running: Mode::Generic,
                    ..
                }
            ),
            "{error:?}"
        );
    });
}

#[test]
fn a_driver_that_refuses_is_named_and_not_worked_around() {
    Sandbox::run(|sandbox| {
        // Too long for one page, so veth refuses native XDP; generic would do.
        ip("link add big0 mtu 9000 type veth peer name big1 mtu 9000");
        ip("link set big0 up");
        ip("link set big1 up");
        let mut wanted = options("big0", &sandbox.pin_dir("lb"));
        let error = refusal(&wanted);
        assert!(matches!(error, Error::NativeRefused { .. }), "{error:?}");
        assert!(error.to_string().contains("MTU"), "{error}");
        wanted.xdp_mode = XdpMode::Generic;
        let (_lb, started) = LoadBalancer::start(&wanted).expect("generic mode");
        assert_eq!(started.mode, Mode::Generic);
    });
}

#[test]
fn generic_mode_can_be_demanded() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let mut wanted = options("lb0", &sandbox.pin_dir("lb"));
        wanted.xdp_mode = XdpMode::Generic;
        let (_lb, started) = LoadBalancer::start(&wanted).expect("generic mode");
        assert_eq!(started.mode, Mode::Generic);
    });
}

#[test]
fn a_foreign_program_is_refused_by_name() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let intruder = attach_pass("lb0", c"intruder");
        let wanted = options("lb0", &sandbox.pin_dir("lb"));
        let error = refusal(&wanted);
        assert!(
            matches!(&error, Error::Foreign { program, .. } if program == "intruder"),
            "{error:?}"
        );
        drop(intruder);
        // Another test's child may hold a copy of the descriptor until it runs its program.
        wait_for("the end of the intruder", || {
            !sandbox::run("ip", "link show lb0").contains("xdp")
        });
        let lb = start(&wanted);
        // A balancer of another pin directory is foreign, too.
        let error = refusal(&options("lb0", &sandbox.pin_dir("other")));
        assert!(
            matches!(&error, Error::Foreign { program, .. } if program == "causeway_lb"),
            "{error:?}"
        );
        drop(lb);
    });
}

#[test]
fn one_process_at_a_time() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        assert!(matches!(refusal(&options), Error::Busy(_)));
        let error = LoadBalancer::detach(&options.pin_dir).expect_err("it is in use");
        assert!(matches!(error, Error::Busy(_)), "{error:?}");
        drop(lb);
        LoadBalancer::detach(&options.pin_dir).expect("a detach");
    });
}

#[test]
fn pins_stay_with_their_interface() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let pin_dir = sandbox.pin_dir("lb");
        let lb = start(&options("lb0", &pin_dir));
        furnish(&lb);
        assert_eq!(lb.hash_key().expect("no key yet"), [0; 2]);
        lb.set_hash_key([1, 2]).expect("a key");
        drop(lb);
        let error = refusal(&options("lo", &pin_dir));
        assert!(
            matches!(&error, Error::OtherInterface { pinned, wanted, .. } if pinned == "lb0" && wanted == "lo"),
            "{error:?}"
        );
        // Once the interface is gone its link is dead; the tables are not.
        ip("link del lb0");
        let (lb, started) = LoadBalancer::start(&options("lo", &pin_dir)).expect("a new home");
        assert!(!started.took_over);
        assert_eq!(lb.vips().len(), 1);
        assert_eq!(lb.hash_key().expect("the key"), [1, 2]);
    });
}

#[test]
fn impossible_places_and_sizes_are_refused() {
    Sandbox::run(|sandbox| {
        let pin_dir = sandbox.pin_dir("lb");
        let error = refusal(&options("nowhere0", &pin_dir));
        assert!(
            matches!(&error, Error::NoInterface(name) if name == "nowhere0"),
            "{error:?}"
        );
        let disk = tempfile::tempdir().expect("a directory");
        let error = refusal(&options("lo", &disk.path().join("pins")));
        assert!(matches!(error, Error::NotBpffs(_)), "{error:?}");
        assert!(error.to_string().contains("mount -t bpf"), "{error}");
        let none = Options {
            flows_v6: 0,
            ..options("lo", &pin_dir)
        };
        assert!(matches!(
            refusal(&none),
            Error::OutOfRange {
                what: "flow_table.ipv6",
                value: 0,
                ..
            }
        ));
        assert!(!pin_dir.exists(), "a refusal leaves nothing");
    });
}

#[test]
fn without_rights_it_is_one_clear_sentence() {
    Sandbox::run(|sandbox| {
        let pin_dir = sandbox.pin_dir("lb");
        // The system call, unlike the C library's function, changes this thread alone.
        // SAFETY: a plain system call.
        let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
        assert_eq!(dropped, 0);
        let error = refusal(&options("lo", &pin_dir));
        assert!(matches!(error, Error::NotPermitted), "{error:?}");
        assert!(error.to_string().contains("run as root"), "{error}");
        let error = LoadBalancer::detach(&pin_dir).expect_err("no rights");
        assert!(matches!(error, Error::NotPermitted), "{error:?}");
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
            Err(Error::Full { max: 8, .. })
        ));
        assert!(matches!(lb.add_vip(&vip(3)), Err(Error::DuplicateVip(_))));
        let real = |vip| Real {
            vip,
            address: addr("10.0.0.1"),
            forwarding: Forwarding::Ipip,
        };
        assert!(matches!(lb.add_real(&real(8)), Err(Error::UnknownVip(8))));
        assert_eq!(lb.add_real(&real(3)).expect("a real"), 0);
        assert_eq!(lb.add_real(&real(4)).expect("a real"), 1);
        assert!(matches!(
            lb.set_ring(3, &[0, 2]),
            Err(Error::UnknownReal(2))
        ));
        lb.set_forwarding(1, Forwarding::L2([1; 6]))
            .expect("another way");
        lb.remove_vip(3).expect("a removal");
        assert!(matches!(lb.remove_vip(3), Err(Error::UnknownVip(3))));
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
        assert!(matches!(lb.real_histogram(0), Err(Error::UnknownReal(0))));
        let (vips, reals) = (lb.vips(), lb.reals());
        drop(lb);
        let lb = start(&options);
        assert_eq!((lb.vips(), lb.reals()), (vips, reals));
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
        let patience = std::time::Duration::from_secs(3);
        let resolve = |patience| causeway_io::resolve_next_hop("lb0", patience);
        let error = resolve(patience).expect_err("no route yet");
        assert!(error.to_string().contains("encap.gateway_mac"), "{error}");
        ip("route add default via 10.7.0.9 dev lb0 metric 50");
        let error = resolve(std::time::Duration::from_millis(200)).expect_err("nobody is .9");
        assert!(error.to_string().contains("10.7.0.9"), "{error}");
        ip("route add default via 10.7.0.2 dev lb0 metric 20");
        let hop = resolve(patience).expect("a gateway");
        let theirs = peer
            .run(|| causeway_io::interface_info("peer0"))
            .expect("the peer");
        assert_eq!(hop.gateway_mac, theirs.mac);
        assert_eq!(hop.mtu, 1500);
        let ours = "10.7.0.1".parse().expect("an address");
        assert_eq!(hop.source_v4, Some(Source::whole(ours)));
        let lb = start(&options("lb0", &sandbox.pin_dir("lb")));
        lb.set_next_hop(&NextHop { mtu: 1600, ..hop })
            .expect("a next hop");
        // By IPv6, too: the gateway is link-local there.
        ip("route del default via 10.7.0.2 dev lb0 metric 20");
        ip("route del default via 10.7.0.9 dev lb0 metric 50");
        let link_local = link_local(&peer);
        ip(&format!("-6 route add default via {link_local} dev lb0"));
        assert_eq!(
            resolve(patience).expect("a gateway").gateway_mac,
            theirs.mac
        );
        assert!(causeway_io::interface_info("nowhere0").is_err());
    });
}

#[test]
fn a_trace_says_what_would_happen_and_changes_nothing() {
    Sandbox::run(|sandbox| {
        let _peer = veth();
        let options = options("lb0", &sandbox.pin_dir("lb"));
        let lb = start(&options);
        let (vip, reals) = furnish(&lb);
        let hop = NextHop {
            gateway_mac: [2, 0, 0, 0, 0, 9],
            mtu: 1500,
            source_v4: Some(Source::whole("10.7.0.1".parse().expect("an address"))),
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
        let traced = causeway_io::trace(
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
            (Verdict::NotVip, None)
        );
        assert_eq!(traced[2].frame, frames[2]);
        assert_eq!(before, counted());
        let nowhere = causeway_io::trace(
            &sandbox.pin_dir("none"),
            options.conns,
            options.tunnel_ends,
            &frames,
        );
        assert!(nowhere.is_err());
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
