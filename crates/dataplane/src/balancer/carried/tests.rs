// SPDX-License-Identifier: Apache-2.0
//! Upgrades to a build of another layout and back, under real connections. The other build's
//! program has fields of its structs in other places (`other_layout` of build.rs): whatever comes
//! over wrongly, breaks connections.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use self::sandbox::{Netns, SYS_ADMIN, Sandbox, give_up, ip, sysctl, tx_checksums_off, wait_for};
use super::*;
use crate::pins::LAYOUT;
use crate::rings::calls;
use crate::xdp::Link;

#[path = "../../../tests/sandbox/mod.rs"]
mod sandbox;

#[allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
mod other {
    include!(concat!(env!("OUT_DIR"), "/other_layout/lb.skel.rs"));
}

const VIPS: [&str; 2] = ["192.0.2.1:80", "[2001:db8:1::1]:80"];
const TIMEOUT: Duration = Duration::from_secs(60);
const OTHER_LAYOUT: u32 = LAYOUT + 1;

fn slots(connections: u32) -> ConnLayout {
    ConnLayout {
        connections,
        ..ConnLayout::default()
    }
}

fn options(pin_dir: &Path) -> LoadBalancerOptions {
    LoadBalancerOptions {
        flows_v4: 16 << 10,
        flows_v6: 16 << 10,
        xdp_mode: XdpMode::Generic,
        limits: TableLimits {
            vips: 8,
            reals: 16,
            histograms: 12,
            cookie_vips: 2,
        },
        conns: slots(1 << 15),
        ..LoadBalancerOptions::new("b0", pin_dir)
    }
}

/// Has the pins say that they are of this layout.
fn call(pin_dir: &Path, layout: u32) {
    let map = MapHandle::from_pinned_path(pin_dir.join("layout")).expect("the layout");
    let word = (Kind::Balancer as u32) << 16 | layout;
    map.update(&[0; 4], &word.to_ne_bytes(), MapFlags::ANY)
        .expect("another layout");
}

/// The start of the other build, as far as its program goes.
fn start_other(options: &LoadBalancerOptions) -> Result<(Plane, Started)> {
    let mut startup = Startup::begin(
        BLUEPRINT,
        &options.interface,
        &options.pin_dir,
        options.xdp_mode,
    )?;
    let failed = |cause| DataPlaneError::Load {
        program: BLUEPRINT.program,
        cause,
    };
    let mut object = MaybeUninit::uninit();
    let mut skel = other::LbSkelBuilder::default()
        .open(&mut object)
        .map_err(failed)?;
    if let Some(settings) = skel.maps.rodata_data.as_deref_mut() {
        let vips = options.limits.vips;
        settings.cfg_source_rings = vips;
        settings.cfg_plain_rings = vips + abi::SOURCE_GROUPS;
        settings.cfg_former_rings = 2 * (vips + abi::SOURCE_GROUPS);
        settings.cfg_conn_partitions = options.conns.partitions();
        settings.cfg_buckets4 = flow_table::buckets(options.flows_v4);
        settings.cfg_buckets6 = flow_table::buckets(options.flows_v6);
    }
    startup.prepare(
        skel.open_object_mut(),
        &limits::sizes(options, possible_cpus()?),
    )?;
    let skel = skel.load().map_err(failed)?;
    startup.attach(skel.object())
}

/// A client, a balancer and two servers with the VIP, on one link.
struct Net {
    client: Netns,
    balancer: Netns,
    servers: [Netns; 2],
    is_over: Arc<AtomicBool>,
    /// What happened to each connection that broke, and after how long a wait.
    broken: Arc<Mutex<Vec<String>>>,
    rounds: Arc<AtomicU32>,
}

impl Net {
    /// The calling thread's namespace becomes the link.
    fn new() -> Self {
        ip("link add br0 type bridge mcast_snooping 0");
        ip("link set br0 up");
        let no_dad = || sysctl("ipv6/conf/default/accept_dad", "0");
        no_dad();
        let join = |name: &str, host: &str| {
            let ns = Netns::new();
            ns.run(no_dad);
            ip(&format!("link add r{name} type veth peer name {name}"));
            ip(&format!("link set {name} netns {}", ns.path()));
            ip(&format!("link set r{name} master br0 up"));
            ns.ip(&format!("link set {name} up"));
            ns.ip(&format!("addr add 10.9.0.{host}/24 dev {name}"));
            ns.ip(&format!("addr add fd09::{host}/64 dev {name} nodad"));
            ns
        };
        let client = join("c0", "1");
        let balancer = join("b0", "254");
        let servers = [join("s0", "2"), join("s1", "3")];
        client.ip("route add 192.0.2.1/32 via 10.9.0.254");
        client.ip("route add 2001:db8:1::1/128 via fd09::254");
        // Tuples are used again and again, so that the table has been told other reals of them.
        client.run(|| {
            tx_checksums_off("c0");
            sysctl("ipv4/ip_local_port_range", "20000 21999");
            sysctl("ipv4/tcp_tw_reuse", "1");
        });
        for server in &servers {
            server.run(|| {
                sysctl("ipv4/conf/all/arp_ignore", "1");
                sysctl("ipv4/conf/all/arp_announce", "2");
            });
            server.ip("addr add 192.0.2.1/32 dev lo");
            server.ip("addr add 2001:db8:1::1/128 dev lo nodad");
            for vip in VIPS {
                let listener = server.run(|| TcpListener::bind(vip).expect("listen on the VIP"));
                thread::spawn(move || echo(&listener));
            }
        }
        Self {
            client,
            balancer,
            servers,
            is_over: Arc::default(),
            broken: Arc::default(),
            rounds: Arc::default(),
        }
    }

    fn start(&self, options: &LoadBalancerOptions) -> (LoadBalancer, Started) {
        let started = self.balancer.run(|| LoadBalancer::start(options));
        started.unwrap_or_else(|e| panic!("{e}"))
    }

    /// Two VIPs whose connections go to both servers in turn: what is picked by hash goes astray.
    fn furnish(&self, lb: &LoadBalancer) {
        for (address, net) in [("192.0.2.1", "10.9.0."), ("2001:db8:1::1", "fd09::")] {
            let vip = Vip {
                address: address.parse().expect("an address"),
                port: 80,
                protocol: Protocol::Tcp,
            };
            let vip = lb.add_vip(&vip).expect("a VIP");
            for (server, (name, host)) in self.servers.iter().zip([("s0", 2), ("s1", 3)]) {
                let of = server.run(|| causeway_netio::interface_info(name).expect("the server"));
                let real = Real {
                    vip,
                    address: format!("{net}{host}").parse().expect("an address"),
                    forwarding: Forwarding::L2(of.mac),
                };
                lb.add_real(&real).expect("a real");
            }
        }
        pick_in_turn(lb);
    }

    /// Connections that stay, and connections that come and go, until the end.
    fn load(&self) {
        for number in 0..12 {
            let stays = number < 8;
            let vip = VIPS[number % 2].parse().expect("a VIP");
            let connect = move || {
                let stream = TcpStream::connect_timeout(&vip, TIMEOUT)?;
                stream.set_read_timeout(Some(TIMEOUT))?;
                stream.set_nodelay(true)?;
                Ok::<_, std::io::Error>(stream)
            };
            let first = self.client.run(connect).expect("connect");
            let (broken, rounds) = (self.broken.clone(), self.rounds.clone());
            let (client, is_over) = (self.client.another(), self.is_over.clone());
            thread::spawn(move || {
                client.enter();
                let (mut stream, mut since) = (Ok(first), Instant::now());
                while !is_over.load(Ordering::Relaxed) {
                    let done = stream.map_err(|e| format!("connect: {e}"));
                    let done = done.and_then(|stream: TcpStream| {
                        let pinged = (0..5).try_for_each(|_| ping(&stream));
                        pinged.map_err(|e| format!("{:?}: {e}", stream.local_addr()))?;
                        Ok(stream)
                    });
                    rounds.fetch_add(1, Ordering::Relaxed);
                    if let Err(what) = &done {
                        let what = format!("connection {number}, {:?}: {what}", since.elapsed());
                        broken.lock().expect("the list").push(what);
                    }
                    thread::sleep(Duration::from_millis(4));
                    since = Instant::now();
                    stream = match (done, stays) {
                        (Ok(stream), true) => Ok(stream),
                        _ => connect(),
                    };
                }
            });
        }
    }

    /// Each connection has been heard of since: nothing broke.
    fn check(&self, what: &str) {
        let before = self.rounds.load(Ordering::Relaxed);
        let heard = || self.rounds.load(Ordering::Relaxed) > before + 40;
        wait_for("connections to go on", heard);
        let broken = self.broken.lock().expect("the list");
        assert_eq!(*broken, [] as [&str; 0], "{what}");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn echo(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        thread::spawn(move || {
            let mut copy = stream.try_clone().expect("a copy of the socket");
            std::io::copy(&mut stream, &mut copy)
        });
    }
}

fn ping(mut stream: &TcpStream) -> std::io::Result<()> {
    stream.write_all(b"ping")?;
    stream.read_exact(&mut [0; 4])
}

fn pick_in_turn(lb: &LoadBalancer) {
    let turn = Picking {
        pick: Pick::Turn,
        ..Picking::default()
    };
    for (vip, ring) in [(0, [0, 1]), (1, [2, 3])] {
        lb.set_picking(vip, turn).expect("turns");
        lb.set_ring(vip, &ring).expect("a ring");
    }
}

fn packets(lb: &LoadBalancer) -> u64 {
    lb.real_stats()
        .expect("counters")
        .iter()
        .map(|(_, of)| of.packets)
        .sum()
}

#[test]
fn connections_live_through_another_layout_and_back() {
    Sandbox::run(|sandbox| {
        let (net, options) = (Net::new(), options(&sandbox.pin_dir("lb")));
        let (lb, started) = net.start(&options);
        assert_eq!(started.carried_over, None);
        net.furnish(&lb);
        open_stateful(&lb);
        net.load();
        net.check("before");
        drop(lb);
        let carried_over = |started: Started| {
            let from = started.carried_over.expect("another layout");
            assert_eq!(
                (from.layout, from.losses.as_slice()),
                (OTHER_LAYOUT, &[][..])
            );
        };
        // An upgrade.
        call(&options.pin_dir, OTHER_LAYOUT);
        let (plane, started) = net
            .balancer
            .run(|| start_other(&options))
            .expect("an upgrade");
        carried_over(started);
        net.check("upgrade");
        drop(plane);
        // Back.
        call(&options.pin_dir, OTHER_LAYOUT);
        let (lb, started) = net.start(&options);
        carried_over(started);
        let counted = packets(&lb);
        assert!(counted > 0);
        net.check("rollback");
        assert!(packets(&lb) > counted);
        assert_eq!((lb.vips().len(), lb.reals().len()), (2, 4));
        assert_eq!(lb.ring(1).expect("the ring"), [2, 3]);
        assert_eq!(stateful_found(&lb), 100);
        // Of the maps of the other layout nothing is left.
        let pins = std::fs::read_dir(&options.pin_dir).expect("pins");
        assert!(
            pins.flatten()
                .all(|pin| pin.file_type().is_ok_and(|of| !of.is_dir()))
        );
    });
}

#[test]
fn a_changed_table_size_keeps_connections() {
    Sandbox::run(|sandbox| {
        let (net, small) = (Net::new(), options(&sandbox.pin_dir("lb")));
        let (lb, _) = net.start(&small);
        net.furnish(&lb);
        open_stateful(&lb);
        net.load();
        net.check("before");
        drop(lb);
        let large = LoadBalancerOptions {
            flows_v4: 64 << 10,
            limits: TableLimits {
                vips: 20,
                reals: 40,
                histograms: 2,
                cookie_vips: 3,
            },
            conns: slots(1 << 16),
            ..small.clone()
        };
        for wanted in [&large, &small] {
            let (lb, started) = net.start(wanted);
            let from = started.carried_over.expect("another size");
            assert_eq!((from.layout, from.losses.as_slice()), (LAYOUT, &[][..]));
            net.check("another size");
            assert_eq!(lb.ring(1).expect("the ring"), [2, 3]);
            assert!(packets(&lb) > 0);
            assert_eq!(stateful_found(&lb), 100);
        }
        // What is in use needs its place: nothing has changed then.
        let tiny = LoadBalancerOptions {
            limits: TableLimits {
                reals: 3,
                ..small.limits
            },
            ..small.clone()
        };
        let refused = net.balancer.run(|| LoadBalancer::start(&tiny).map(drop));
        let error = refused.expect_err("four reals are there").to_string();
        assert!(
            error.contains("real number 3") && error.contains("limits.reals"),
            "{error}"
        );
        net.check("refused");
    });
}

#[test]
fn a_start_that_is_refused_leaves_the_other_layout_at_work() {
    Sandbox::run(|sandbox| {
        let (net, options) = (Net::new(), options(&sandbox.pin_dir("lb")));
        let (lb, _) = net.start(&options);
        net.furnish(&lb);
        net.load();
        drop(lb);
        call(&options.pin_dir, OTHER_LAYOUT);
        let native = LoadBalancerOptions {
            xdp_mode: XdpMode::Native,
            ..options.clone()
        };
        let refused = net.balancer.run(|| start_other(&native).map(drop));
        assert!(matches!(refused, Err(DataPlaneError::OtherMode { .. })));
        net.check("refused");
        // Another kind of data plane stays what it is.
        let layout = options.pin_dir.join("layout");
        let map = MapHandle::from_pinned_path(&layout).expect("the layout");
        let word = (Kind::Decapsulator as u32) << 16 | OTHER_LAYOUT;
        map.update(&[0; 4], &word.to_ne_bytes(), MapFlags::ANY)
            .expect("another kind");
        let refused = net.balancer.run(|| LoadBalancer::start(&options).map(drop));
        assert!(
            matches!(refused, Err(DataPlaneError::OtherKind { .. })),
            "{refused:?}"
        );
        // Without the right to read types.
        call(&options.pin_dir, OTHER_LAYOUT);
        let refused = net.balancer.run(|| {
            give_up(SYS_ADMIN);
            LoadBalancer::start(&options).map(drop)
        });
        assert!(
            matches!(refused, Err(DataPlaneError::Unreadable { .. })),
            "{refused:?}"
        );
        net.check("refused again");
        let (lb, started) = net.start(&options);
        assert!(started.took_over && started.carried_over.is_some());
        net.check("started in the end");
        assert_eq!(lb.reals().len(), 4);
    });
}

const THIS_TEST: &str = "balancer::carried::tests::a_start_that_is_killed_is_gone_on_with";

/// Set for a process that upgrades and is killed.
const UPGRADED: &str = "CAUSEWAY_TEST_UPGRADED_PIN_DIR";

#[test]
fn a_start_that_is_killed_is_gone_on_with() {
    if let Some(pin_dir) = std::env::var_os(UPGRADED) {
        let options = options(Path::new(&pin_dir));
        call(&options.pin_dir, OTHER_LAYOUT);
        let _plane = start_other(&options).expect("an upgrade");
        loop {
            thread::park();
        }
    }
    Sandbox::run(|sandbox| {
        let (net, options) = (Net::new(), options(&sandbox.pin_dir("lb")));
        let (lb, _) = net.start(&options);
        net.furnish(&lb);
        drop(lb);
        net.load();
        let program = || {
            let link = Link::open(&options.pin_dir.join(BLUEPRINT.link)).expect("the link");
            link.and_then(|link| Some(link.info().ok()?.program))
        };
        let mut moments = vec!["about its end", "at the switch", "in the copy"];
        let mut tries = 0;
        while let Some(moment) = moments.pop() {
            tries += 1;
            assert!(tries < 20, "no kill comes {moment}");
            let before = program();
            let mut victim = net.balancer.run(|| {
                Command::new(std::env::current_exe().expect("this binary"))
                    .args(["--exact", THIS_TEST])
                    .env(UPGRADED, &options.pin_dir)
                    .stdout(Stdio::null())
                    .spawn()
                    .expect("a child")
            });
            let begun = options.pin_dir.join("next/program");
            let deadline = Instant::now() + TIMEOUT;
            while program() == before && (moment != "in the copy" || !begun.exists()) {
                let ended = victim.try_wait().expect("a child");
                if ended.is_some() || Instant::now() > deadline {
                    let _ = victim.kill();
                    panic!("no upgrade: {ended:?}");
                }
                thread::yield_now();
            }
            if moment == "about its end" {
                thread::sleep(Duration::from_millis(20));
            }
            victim.kill().expect("SIGKILL");
            victim.wait().expect("the end of the child");
            // This thread may have had to wait for a processor.
            if moment == "in the copy" && program() != before {
                moments.push(moment);
            }
            // The same build goes on, wherever the other one ended.
            let (plane, started) = net.balancer.run(|| start_other(&options)).expect("a start");
            assert!(started.took_over);
            drop(plane);
            call(&options.pin_dir, OTHER_LAYOUT);
            let (lb, started) = net.start(&options);
            assert!(started.took_over);
            assert_eq!((lb.vips().len(), lb.reals().len()), (2, 4), "{moment}");
            // As the daemon does it.
            pick_in_turn(&lb);
            net.check(&format!("killed {moment}"));
        }
    });
}

/// Client and VIP of a stateful connection, and its token.
fn stateful(n: u16) -> ((SocketAddr, SocketAddr), u16) {
    let client = SocketAddr::new("2001:db8::9".parse().expect("an address"), n);
    ((client, VIPS[1].parse().expect("a VIP")), 7 * n)
}

/// Puts stateful connections into their slots.
fn open_stateful(lb: &LoadBalancer) {
    lb.set_hash_key([3, 4]).expect("a key");
    let mut table = lb.connections().expect("slots").expect("stateful");
    let route = SlotRoute {
        real: 5,
        generation: 6,
        vip: 0,
    };
    for (ends, token) in (1..=100).map(stateful) {
        assert_eq!(table.learn([3, 4], ends, token, &route), Learned::Placed);
    }
}

/// How many of them are still found by their tokens.
fn stateful_found(lb: &LoadBalancer) -> usize {
    let key = lb.hash_key().expect("the key");
    let table = lb.connections().expect("slots").expect("stateful");
    let found = (1..=100)
        .map(stateful)
        .filter_map(|(ends, token)| table.find(key, ends, token));
    found.filter(|of| of.real == 5 && of.packets == 1).count()
}

/// On the loopback device, without traffic.
fn idle(pin_dir: &Path) -> LoadBalancerOptions {
    LoadBalancerOptions {
        interface: "lo".to_owned(),
        ..options(pin_dir)
    }
}

#[test]
fn slots_of_tokens_of_another_length_are_said_to_be_lost() {
    Sandbox::run(|sandbox| {
        let alone = idle(&sandbox.pin_dir("lb"));
        let of_tier = LoadBalancerOptions {
            conns: ConnLayout {
                tier_bits: 1,
                ..alone.conns
            },
            ..alone.clone()
        };
        let stateless = LoadBalancerOptions {
            conns: slots(0),
            ..alone.clone()
        };
        LoadBalancer::start(&alone).expect("a start");
        let lost = |options: &LoadBalancerOptions| {
            let (_, started) = LoadBalancer::start(options).expect("a start");
            started.carried_over.expect("another size").losses
        };
        assert_eq!(lost(&of_tier), [SLOTS]);
        // Who wants no slots, or had none, misses none.
        assert_eq!(lost(&stateless), [] as [&str; 0]);
        assert_eq!(lost(&alone), [] as [&str; 0]);
    });
}

/// Before Linux 6.8 each call about a ring waits for a grace period, also one that finds nothing.
#[test]
fn rings_that_are_not_there_cost_no_call() {
    Sandbox::run(|sandbox| {
        let options = idle(&sandbox.pin_dir("lb"));
        let (lb, _) = LoadBalancer::start(&options).expect("a start");
        calls::take();
        for port in 0..8 {
            let vip = Vip {
                address: IpAddr::from([192, 0, 2, 1]),
                port,
                protocol: Protocol::Tcp,
            };
            lb.add_vip(&vip).expect("a VIP");
        }
        let real = |vip, host| Real {
            vip,
            address: IpAddr::from([10, 9, 0, host]),
            forwarding: Forwarding::Ipip,
        };
        for vip in 0..3 {
            for host in [1, 2] {
                lb.add_real(&real(vip, host)).expect("a real");
            }
        }
        let second_chance = VipOptions {
            second_chance: true,
            ..VipOptions::default()
        };
        lb.set_vip_options(2, second_chance).expect("an option");
        assert_eq!(calls::take(), 0);
        let set = |vip, ring: &[RealId], plain: Option<&[RealId]>| {
            let rings = VipRings {
                vip,
                ring: ring.to_vec(),
                plain: plain.map(<[RealId]>::to_vec),
            };
            lb.set_rings(&[rings]).expect("rings");
        };
        set(0, &[0, 1], Some(&[1]));
        set(1, &[2, 3], Some(&[]));
        set(2, &[4, 5], None);
        set(2, &[5, 5], None);
        // The last one has former owners besides, whose ring goes in front.
        assert_eq!(calls::take(), 5);
        // Nothing is there, and nothing is wanted.
        set(3, &[], Some(&[]));
        assert_eq!(calls::take(), 0);
        let of_client = SourceRing {
            prefixes: vec![(IpAddr::from([198, 51, 100, 0]), 24)],
            ring: vec![3],
            plain: Vec::new(),
            strict: false,
        };
        lb.set_sources(1, &[of_client]).expect("a group");
        assert_eq!(calls::take(), 1);
        drop(lb);
        let large = LoadBalancerOptions {
            limits: TableLimits {
                vips: 20,
                ..options.limits
            },
            ..options.clone()
        };
        let (lb, started) = LoadBalancer::start(&large).expect("a start");
        assert!(started.carried_over.is_some());
        // Eight VIPs, what three of them have besides, all at once into the new table; and those
        // of the VIP that is asked for its owners.
        assert_eq!(calls::take(), 8 + 3 + 1 + 2);
        let ring = |number| lb.rings.read(&[number]).expect("a ring").remove(0);
        assert_eq!((ring(0), ring(lb.plain_ring(0))), (vec![0, 1], vec![1]));
        assert_eq!(ring(2), [5, 5]);
        assert_eq!(ring(lb.former_ring(2)), [4, 5]);
        assert_eq!(ring(20), [3], "the group's");
        calls::take();
        for vip in 0..8 {
            lb.remove_vip(vip).expect("a removal");
        }
        assert_eq!(calls::take(), 2 + 2 + 2);
        for number in 0..lb.former_ring(large.limits.vips) {
            assert_eq!(ring(number), [] as [RealId; 0], "{number}");
        }
    });
}

/// A VIP is removed in several steps, and a kill may come between them.
#[test]
fn a_removal_that_was_killed_leaves_no_ring() {
    Sandbox::run(|sandbox| {
        let options = idle(&sandbox.pin_dir("lb"));
        let (lb, _) = LoadBalancer::start(&options).expect("a start");
        let vip = Vip {
            address: IpAddr::from([192, 0, 2, 1]),
            port: 80,
            protocol: Protocol::Tcp,
        };
        lb.add_vip(&vip).expect("a VIP");
        let real = Real {
            vip: 0,
            address: IpAddr::from([10, 9, 0, 1]),
            forwarding: Forwarding::Ipip,
        };
        lb.add_real(&real).expect("a real");
        lb.set_ring(0, &[0]).expect("a ring");
        assert!(lb.vips.remove(&vip.key()).expect("the first step"));
        drop(lb);
        let (lb, _) = LoadBalancer::start(&options).expect("a takeover");
        assert_eq!((lb.vips().len(), lb.reals().len()), (0, 0));
        assert_eq!(lb.rings.read(&[0]).expect("a ring"), [[] as [RealId; 0]]);
    });
}
