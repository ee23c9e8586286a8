// SPDX-License-Identifier: Apache-2.0
//! Real TCP connections through both programs: client, router, balancer and server
//! in namespaces of their own, the server answering the client directly.

mod sandbox;

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use causeway_dataplane::abi::{PacketsBytes, ServerVerdict, Verdict};
use causeway_dataplane::{
    Decapsulator, DecapsulatorOptions, Forwarding, LoadBalancer, LoadBalancerOptions, Protocol,
    Real, Vip, XdpMode,
};
use causeway_netio::{find_gateways, interface_info};

use sandbox::{Netns, Sandbox, attach_pass, ip, run_first, sysctl, tx_checksums_off, wait_for};

const VIP4: &str = "192.0.2.1";
const VIP6: &str = "2001:db8:1::1";
const SERVER4: &str = "10.2.0.3";
const SERVER6: &str = "fd02::3";
const TIMEOUT: Duration = Duration::from_secs(30);

/// A client behind a router; balancer and server on the bridge at the router's
/// other side, whose links take the longer encapsulated packets.
struct Net {
    client: Netns,
    balancer: Netns,
    server: Netns,
    /// The balancer's, and how programs run on it.
    interface: &'static str,
    xdp: XdpMode,
    /// Of the links behind the router.
    mtu: u16,
    /// What XDP_TX through a veth needs at the other end.
    _pass: OwnedFd,
}

/// What the balancer is joined to the router by.
#[derive(Clone, Copy)]
enum Trunk {
    /// One link.
    Plain,
    /// VLAN 5 on it.
    Vlan,
    /// Two links, in this mode.
    Bond(&'static str),
    /// The machine's own cards, eth0 and eth1, which a wire joins.
    Cards,
}

const BALANCER: (&str, &str) = ("10.2.0.2/24", "fd02::2/64");

impl Net {
    /// Makes the network; the calling thread's namespace becomes the router.
    fn new() -> Self {
        Self::with(1500, 1600, Trunk::Plain)
    }

    /// The same with these MTUs in front of the router and behind it.
    fn with(front: u16, mtu: u16, trunk: Trunk) -> Self {
        let [client, balancer, server] = [(); 3].map(|()| Netns::new());
        // Duplicate address detection costs two seconds a test.
        let no_dad = || sysctl("ipv6/conf/default/accept_dad", "0");
        no_dad();
        for ns in [&client, &balancer, &server] {
            ns.run(no_dad);
        }
        link(&client, "c0", front);
        address(&client, "c0", ("10.1.0.2/24", "fd01::2/64"));
        ip("addr add 10.1.0.1/24 dev rc0");
        ip("addr add fd01::1/64 dev rc0 nodad");
        client.ip("route add default via 10.1.0.1");
        client.ip("route add default via fd01::1");
        let (interface, port, passes, xdp) = trunk.join(&balancer, mtu);
        address(&balancer, interface, BALANCER);
        link(&server, "s0", mtu);
        address(&server, "s0", ("10.2.0.3/24", "fd02::3/64"));
        ip(&format!(
            "link add br0 mtu {mtu} type bridge mcast_snooping 0"
        ));
        ip(&format!("link set {port} master br0"));
        ip("link set rs0 master br0");
        ip("addr add 10.2.0.1/24 dev br0");
        ip("addr add fd02::1/64 dev br0 nodad");
        ip("link set br0 up");
        for inner in [&balancer, &server] {
            inner.ip("route add default via 10.2.0.1");
            inner.ip("route add default via fd02::1");
        }
        ip("route add 192.0.2.1/32 via 10.2.0.2");
        ip("route add 2001:db8:1::1/128 via fd02::2");
        server.ip("addr add 192.0.2.1/32 dev lo");
        server.ip("addr add 2001:db8:1::1/128 dev lo nodad");
        sysctl("ipv4/ip_forward", "1");
        sysctl("ipv6/conf/all/forwarding", "1");
        // A veth hands on packets whose checksum is still to be written; XDP_TX
        // sends them on like that.
        client.run(|| tx_checksums_off("c0"));
        Self {
            client,
            balancer,
            server,
            interface,
            xdp,
            mtu,
            _pass: attach_pass(passes, c"pass"),
        }
    }
}

impl Trunk {
    /// Joins the balancer to the router: its interface, the router's port, on what of the
    /// router frames by XDP_TX arrive, and how programs run.
    fn join(
        self,
        balancer: &Netns,
        mtu: u16,
    ) -> (&'static str, &'static str, &'static str, XdpMode) {
        if !matches!(self, Trunk::Cards) {
            link(balancer, "b0", mtu);
        }
        match self {
            Trunk::Plain => ("b0", "rb0", "rb0", XdpMode::Native),
            Trunk::Cards => {
                cards(balancer, mtu);
                ("b0", "rb0", "rb0", XdpMode::Native)
            }
            Trunk::Vlan => {
                ip("link add link rb0 name rb0.5 type vlan id 5");
                ip("link set rb0.5 up");
                balancer.ip("link add link b0 name b0.5 type vlan id 5");
                balancer.ip("link set b0.5 up");
                // A subinterface has no driver; frames leave it as any other.
                ("b0.5", "rb0.5", "rb0", XdpMode::Auto)
            }
            Trunk::Bond(mode) => {
                link(balancer, "b1", mtu);
                let bond = |run: &dyn Fn(&str), name: &str, parts: [&str; 2]| {
                    run(&format!("link add {name} type bond mode {mode}"));
                    for part in parts {
                        run(&format!("link set {part} down"));
                        run(&format!("link set {part} master {name}"));
                    }
                    run(&format!("link set {name} mtu {mtu} up"));
                };
                bond(&ip, "rbond0", ["rb0", "rb1"]);
                bond(&|command| balancer.ip(command), "bond0", ["b0", "b1"]);
                ("bond0", "rbond0", "rbond0", XdpMode::Native)
            }
        }
    }
}

/// A veth from the router (`rNAME`) to `ns` (`NAME`).
fn link(ns: &Netns, name: &str, mtu: u16) {
    ip(&format!(
        "link add r{name} mtu {mtu} type veth peer name {name}"
    ));
    ip(&format!("link set {name} netns {}", ns.path()));
    ip(&format!("link set r{name} up"));
    ns.ip(&format!("link set {name} mtu {mtu} up"));
}

/// The machine's cards in the place of [`link`]'s `b0`. They go home when their namespaces end.
fn cards(ns: &Netns, mtu: u16) {
    let [own, home] = [Netns::current(), Netns::of_init()];
    for (card, to, name) in [("eth0", ns, "b0"), ("eth1", &own, "rb0")] {
        home.ip(&format!("link set {card} netns {} name {name}", to.path()));
        to.ip(&format!("link set {name} mtu {mtu} up"));
    }
}

fn address(ns: &Netns, interface: &str, (v4, v6): (&str, &str)) {
    ns.ip(&format!("addr add {v4} dev {interface}"));
    ns.ip(&format!("addr add {v6} dev {interface} nodad"));
}

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Both data planes of a [`Net`], ready for one VIP and one real.
struct Planes {
    options: LoadBalancerOptions,
    lb: LoadBalancer,
    decap: Decapsulator,
}

impl Planes {
    fn start(sandbox: &Sandbox, net: &Net, vip: IpAddr, real: IpAddr, way: Way) -> Self {
        let options = LoadBalancerOptions {
            flows_v4: 1024,
            flows_v6: 1024,
            xdp_mode: net.xdp,
            ..LoadBalancerOptions::new(net.interface, sandbox.pin_dir("lb"))
        };
        let lb = net.balancer.run(|| {
            let (lb, _) = LoadBalancer::start(&options).expect("a balancer");
            let info = interface_info(net.interface).expect("the interface");
            let found = find_gateways(&info, &[], TIMEOUT).expect("tables");
            let macs = found.answering(net.interface, TIMEOUT);
            let [v4, v6] = macs.expect("a gateway");
            let hop = info.next_hop(v4, v6, &[]);
            assert_eq!(hop.mtu, net.mtu);
            lb.set_next_hop(&hop).expect("set the next hop");
            lb
        });
        let forwarding = match way {
            Way::Ipip => Forwarding::Ipip,
            Way::L2 => {
                let server = net.server.run(|| interface_info("s0")).expect("the server");
                Forwarding::L2(server.mac)
            }
        };
        let vip_address = vip;
        let vip = lb
            .add_vip(&Vip {
                address: vip,
                port: 80,
                protocol: Protocol::Tcp,
            })
            .expect("a VIP");
        let real = Real {
            vip,
            address: real,
            forwarding,
        };
        let real = lb.add_real(&real).expect("a real");
        lb.set_ring(vip, &[real; 7]).expect("a ring");
        let decap = net.server.run(|| {
            let options = DecapsulatorOptions {
                interface: "s0".to_owned(),
                pin_dir: sandbox.pin_dir("server"),
                xdp_mode: XdpMode::Native,
                gue_port: causeway_netio::Gue::default().port,
                cookies: None,
                token_sources: (None, None),
                inner_mtu: None,
            };
            Decapsulator::start(&options).expect("a decapsulator").0
        });
        let own = BTreeSet::from([addr(SERVER4), addr(SERVER6)]);
        let balancer = BTreeSet::from([(addr("10.2.0.2"), 32), (addr("fd02::2"), 128)]);
        decap.set_tunnel_sources(&balancer).expect("its balancer");
        let vips = BTreeSet::from([vip_address]);
        decap.set_addresses(&own, &vips).expect("its addresses");
        assert_eq!(decap.addresses().expect("addresses"), own);
        Self { options, lb, decap }
    }

    fn verdict(&self, verdict: Verdict) -> u64 {
        let all = self.lb.verdicts().expect("verdicts");
        all[verdict as usize].1.packets
    }

    fn decapsulated(&self) -> PacketsBytes {
        let all = self.decap.verdicts().expect("verdicts");
        all[ServerVerdict::Decapsulated as usize].1
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Ipip,
    L2,
}

/// Listens in the server's namespace and sends every byte back.
fn echo_server(net: &Net, vip: IpAddr) {
    let listener = net
        .server
        .run(|| TcpListener::bind(SocketAddr::new(vip, 80)).expect("listen on the VIP"));
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            thread::spawn(move || {
                let mut copy = stream.try_clone().expect("a copy of the socket");
                std::io::copy(&mut stream, &mut copy)
            });
        }
    });
}

fn connect(net: &Net, vip: IpAddr) -> TcpStream {
    let stream = net
        .client
        .run(|| TcpStream::connect_timeout(&SocketAddr::new(vip, 80), TIMEOUT).expect("connect"));
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream
}

/// Sends half a megabyte and expects it back.
fn exchange(stream: TcpStream) {
    let sent: Vec<u8> = (0..500_000_u32).map(|n| (n % 251) as u8).collect();
    let mut writer = stream.try_clone().expect("a copy of the socket");
    let mut back = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).expect("send");
            writer.shutdown(Shutdown::Write).expect("close");
        });
        (&stream).read_to_end(&mut back).expect("receive");
    });
    assert!(
        back == sent,
        "{} of {} bytes came back",
        back.len(),
        sent.len()
    );
}

fn connections_work(vip: &'static str, real: &'static str, way: Way) {
    connections_work_through(vip, real, way, Trunk::Plain);
}

fn connections_work_through(vip: &'static str, real: &'static str, way: Way, trunk: Trunk) {
    Sandbox::run(move |sandbox| {
        let (net, vip) = (Net::with(1500, 1600, trunk), addr(vip));
        let planes = Planes::start(sandbox, &net, vip, addr(real), way);
        echo_server(&net, vip);
        for _ in 0..3 {
            exchange(connect(&net, vip));
        }
        assert_eq!(planes.verdict(Verdict::Opened), 3);
        assert!(planes.verdict(Verdict::Established) > 100);
        let closed = || planes.lb.real_stats().expect("counters")[0].1;
        wait_for("the connections' ends", || closed().conns_closed == 3);
        assert_eq!(closed().conns_opened, 3);
        // Every packet of the VIP arrived, and none by another way. The last acknowledgement may
        // still be on its way.
        let sent = || planes.lb.vip_stats().expect("counters")[0].1.packets;
        wait_for("all packets", || {
            let expected = if way == Way::Ipip { sent() } else { 0 };
            planes.decapsulated().packets == expected
        });
    });
}

#[test]
fn ipv4_by_ipip() {
    connections_work(VIP4, SERVER4, Way::Ipip);
}

#[test]
fn ipv6_by_ipip() {
    connections_work(VIP6, SERVER6, Way::Ipip);
}

#[test]
fn ipv4_in_ipv6() {
    connections_work(VIP4, SERVER6, Way::Ipip);
}

#[test]
fn ipv6_in_ipv4() {
    connections_work(VIP6, SERVER4, Way::Ipip);
}

#[test]
fn ipv4_by_l2() {
    connections_work(VIP4, SERVER4, Way::L2);
}

#[test]
fn ipv6_by_l2() {
    connections_work(VIP6, SERVER6, Way::L2);
}

#[test]
#[ignore = "this kernel may not have 8021q: scripts/test-long trunks"]
fn a_balancer_on_a_vlan_subinterface() {
    connections_work_through(VIP4, SERVER4, Way::Ipip, Trunk::Vlan);
    connections_work_through(VIP6, SERVER6, Way::Ipip, Trunk::Vlan);
}

#[test]
#[ignore = "this kernel may not have bonding: scripts/test-long trunks"]
fn a_balancer_on_a_bond() {
    for mode in ["active-backup", "balance-xor"] {
        connections_work_through(VIP4, SERVER4, Way::Ipip, Trunk::Bond(mode));
        connections_work_through(VIP6, SERVER6, Way::Ipip, Trunk::Bond(mode));
    }
}

/// Their names are others behind the first test, so that a machine is good for one.
#[test]
#[ignore = "this machine may have no two cards: scripts/test-long cards"]
fn a_balancer_on_a_card_by_ipv4() {
    connections_work_through(VIP4, SERVER4, Way::Ipip, Trunk::Cards);
}

#[test]
#[ignore = "this machine may have no two cards: scripts/test-long cards"]
fn a_balancer_on_a_card_by_ipv6() {
    connections_work_through(VIP6, SERVER6, Way::Ipip, Trunk::Cards);
}

/// Frames that take several buffers.
#[test]
fn jumbo_frames_go_natively_through_both_programs() {
    for (vip, server) in [(VIP4, SERVER4), (VIP6, SERVER6)] {
        Sandbox::run(move |sandbox| {
            let (net, vip) = (Net::with(9000, 9100, Trunk::Plain), addr(vip));
            let planes = Planes::start(sandbox, &net, vip, addr(server), Way::Ipip);
            echo_server(&net, vip);
            exchange(connect(&net, vip));
            // In frames of 1,500 bytes half a megabyte takes 340, its acknowledgements apart.
            let sent = || planes.lb.vip_stats().expect("counters")[0].1;
            wait_for("all packets", || {
                planes.decapsulated().packets == sent().packets
            });
            let sent = sent();
            assert!(sent.packets < 300, "{sent:?}");
            assert!(sent.bytes > 500_000, "{sent:?}");
        });
    }
}

#[test]
fn takeovers_break_no_connection_and_lose_no_count() {
    Sandbox::run(|sandbox| {
        let (net, vip) = (Net::new(), addr(VIP4));
        let mut planes = Planes::start(sandbox, &net, vip, addr(SERVER4), Way::Ipip);
        echo_server(&net, vip);
        let mut old = connect(&net, vip);
        let mut before = 0;
        for round in 0..10_u8 {
            let transfers: Vec<_> = (0..3)
                .map(|_| {
                    let stream = connect(&net, vip);
                    thread::spawn(|| exchange(stream))
                })
                .collect();
            let Planes { options, lb, decap } = planes;
            drop(lb);
            let (lb, started) = net
                .balancer
                .run(|| LoadBalancer::start(&options))
                .expect("a takeover");
            assert!(started.took_over);
            planes = Planes { options, lb, decap };
            for transfer in transfers {
                transfer.join().expect("a transfer across the takeover");
            }
            old.write_all(&[round]).expect("send on the old connection");
            let mut back = [0];
            old.read_exact(&mut back)
                .expect("an answer on the old connection");
            assert_eq!(back, [round]);
            let now = planes.verdict(Verdict::Established);
            assert!(now > before);
            before = now;
        }
        assert_eq!(planes.verdict(Verdict::Opened), 31);
        assert_eq!(planes.verdict(Verdict::Adopted), 0);
        assert_eq!(planes.verdict(Verdict::Moved), 0);
    });
}

#[test]
fn the_balancer_feels_what_the_client_waits_for() {
    Sandbox::run(|sandbox| {
        const THINKING: Duration = Duration::from_millis(20);
        run_first();
        let (net, vip) = (Net::new(), addr(VIP4));
        let planes = Planes::start(sandbox, &net, vip, addr(SERVER4), Way::Ipip);
        let listener = net
            .server
            .run(|| TcpListener::bind(SocketAddr::new(vip, 80)).expect("listen"));
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 100];
            while stream.read_exact(&mut request).is_ok() {
                thread::sleep(THINKING);
                stream.write_all(&request).expect("answer");
            }
        });
        let mut stream = connect(&net, vip);
        stream.set_nodelay(true).expect("no delay");
        let mut waited = Vec::new();
        for _ in 0..40 {
            let start = std::time::Instant::now();
            stream.write_all(&[7; 100]).expect("ask");
            stream.read_exact(&mut [0; 100]).expect("an answer");
            waited.push(start.elapsed().as_nanos() as f64);
        }
        drop(stream);
        server.join().expect("the server");
        let (real, stats) = planes.lb.real_stats().expect("counters")[0];
        assert!(stats.requests >= 39, "{stats:?}");
        assert!(stats.latencies().weight_halves >= 20, "{stats:?}");
        let mean_ns =
            stats.latencies().sum_halves_ns as f64 / stats.latencies().weight_halves as f64;
        // Of 40 waits one that the machine drew out moves the mean, and is no sample where the
        // client was late to ask again: the medians are held to each other.
        waited.sort_by(f64::total_cmp);
        let (least, most) = (0.9 * waited[0], 1.1 * waited[39]);
        assert!(
            (least..most).contains(&mean_ns),
            "estimate {mean_ns} ns, clients {least} to {most} ns"
        );
        let histogram = planes.lb.real_histogram(real).expect("a histogram");
        let median_ns = histogram.quantile(0.5).expect("samples") as f64;
        let client_median_ns = waited[20];
        assert!(
            (median_ns / client_median_ns - 1.0).abs() < 0.15,
            "median {median_ns} ns, clients {client_median_ns} ns"
        );
    });
}
