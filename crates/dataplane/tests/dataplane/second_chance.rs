// SPDX-License-Identifier: Apache-2.0
//! Segments that no balancer remembers: the balancer names the former owner of their slot,
//! and the server that does not know them passes them on to it.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use causeway_dataplane::abi::{PICK_TURN, REAL_GUE, ServerVerdict, VIP_FORGET, Verdict};
use nix::sched::{CloneFlags, unshare};
use socket2::{Domain, Socket, Type};

use crate::frame::{ACK, FIN, Ip, OWN, ROUTER, Tcp, Tuple, arriving, ethernet, leaving};
use crate::rig::{Rig, TCP, TUNNEL_SOURCE4, TUNNEL_SOURCE6, tunnel_real};
use crate::server::{OWN4, OWN6, Server, gue, outer};
use crate::verdict_tests;

const VIPS: [&str; 2] = ["192.0.2.10", "2001:db8::10"];
const CLIENTS: [&str; 2] = ["198.51.100.7", "2001:db8:c::7"];
const FORMER: [&str; 2] = ["10.1.0.11", "fd00:1::11"];
const TIMEOUT: Duration = Duration::from_secs(60);

/// From now on this thread has a network of its own, with the clients and the VIPs on its
/// loopback interface.
fn in_own_network() {
    unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
    let ip = |arguments: &str| {
        let status = Command::new("ip").args(arguments.split(' ')).status();
        assert!(status.expect("ip").success(), "ip {arguments}");
    };
    ip("link set lo up");
    for address in VIPS.into_iter().chain(CLIENTS) {
        match address.contains(':') {
            true => ip(&format!("address add {address}/128 dev lo nodad")),
            false => ip(&format!("address add {address}/32 dev lo")),
        }
        // The kernel takes an IPv6 address in a little later than it gives it a route.
        let takes_in = || -> std::io::Result<usize> {
            let socket = UdpSocket::bind((address, 0))?;
            socket.connect(socket.local_addr()?)?;
            socket.set_read_timeout(Some(Duration::from_millis(10)))?;
            socket.send(b"?")?;
            socket.recv(&mut [0])
        };
        let start = Instant::now();
        while let Err(error) = takes_in() {
            assert!(start.elapsed() < TIMEOUT, "{address}: {error}");
            sleep(Duration::from_millis(1));
        }
    }
}

/// A connection of a client, as the server knows it.
fn connect(listener: &TcpListener, client: &str) -> (Tuple, [TcpStream; 2]) {
    let vip = listener.local_addr().unwrap();
    let client: IpAddr = client.parse().unwrap();
    let socket = Socket::new(Domain::for_address(vip), Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(client, 0).into()).unwrap();
    socket.connect(&vip.into()).unwrap();
    let stream = TcpStream::from(socket);
    let port = stream.local_addr().unwrap().port();
    let tuple = Tuple::new(&client.to_string(), port, &vip.ip().to_string(), vip.port());
    (tuple, [stream, listener.accept().unwrap().0])
}

fn segment(tuple: Tuple) -> Vec<u8> {
    tuple.tcp(Tcp {
        payload: b"GET",
        ..Tcp::ack(1001, 1)
    })
}

fn ends() -> impl Iterator<Item = (&'static str, &'static str)> {
    VIPS.into_iter().zip(CLIENTS)
}

verdict_tests! { Server, ServerVerdict:
    PassedOn what_this_server_does_not_know_goes_to_the_former_owner(server) {
        in_own_network();
        for (vip, client) in ends() {
            let _listener = TcpListener::bind((vip, 80)).unwrap();
            let inner = segment(Tuple::new(client, 4000, vip, 80));
            for former in FORMER {
                let left = outer(Ip::OUTER, former, &inner);
                for own in [OWN4, OWN6] {
                    for tags in [&[][..], &[(0x8100, 5)], &[(0x88a8, 6), (0x8100, 5)]] {
                        for sent in [outer(Ip::OUTER, own, &left), gue(own, 6080, &[], &left)] {
                            let sent = ethernet(OWN, ROUTER, tags, &sent);
                            server.expect(ServerVerdict::PassedOn, &sent, &ethernet(ROUTER, OWN, tags, &left));
                        }
                    }
                }
            }
        }
    }
    Decapsulated what_it_knows_it_keeps(server) {
        in_own_network();
        for (vip, client) in ends() {
            let listener = TcpListener::bind((vip, 80)).unwrap();
            let (tuple, _streams) = connect(&listener, client);
            let inner = segment(tuple);
            for former in FORMER {
                let sent = arriving(&outer(Ip::OUTER, OWN4, &outer(Ip::OUTER, former, &inner)));
                server.expect(ServerVerdict::Decapsulated, &sent, &arriving(&inner));
            }
        }
    }
    Decapsulated a_connection_that_has_just_ended_is_known(server) {
        in_own_network();
        let listener = TcpListener::bind((VIPS[0], 80)).unwrap();
        let (tuple, [client, server_end]) = connect(&listener, CLIENTS[0]);
        // Who closes first waits in TIME_WAIT, and answers what is sent again.
        drop(server_end);
        drop(client);
        let inner = segment(tuple);
        let sent = arriving(&outer(Ip::OUTER, OWN4, &outer(Ip::OUTER, FORMER[0], &inner)));
        server.expect(ServerVerdict::Decapsulated, &sent, &arriving(&inner));
    }
    Decapsulated where_nobody_listens_nothing_is_passed_on(server) {
        in_own_network();
        let inner = segment(Tuple::new(CLIENTS[0], 4000, VIPS[0], 80));
        let sent = arriving(&outer(Ip::OUTER, OWN4, &outer(Ip::OUTER, FORMER[0], &inner)));
        server.expect(ServerVerdict::Decapsulated, &sent, &arriving(&inner));
    }
    Decapsulated what_was_passed_on_stays_whoever_knows_it(server) {
        in_own_network();
        let _listener = TcpListener::bind((VIPS[0], 80)).unwrap();
        let inner = segment(Tuple::new(CLIENTS[0], 4000, VIPS[0], 80));
        server.expect(ServerVerdict::Decapsulated, &arriving(&outer(Ip::OUTER, OWN4, &inner)), &arriving(&inner));
    }
    TunnelRefused strangers_have_nothing_passed_on(server) {
        in_own_network();
        let _listener = TcpListener::bind((VIPS[0], 80)).unwrap();
        let inner = segment(Tuple::new(CLIENTS[0], 4000, VIPS[0], 80));
        let left = outer(Ip::OUTER, FORMER[0], &inner);
        let sent = Ip::OUTER.packet("10.10.0.1".parse().unwrap(), OWN4.parse().unwrap(), 4, &left);
        server.expect(ServerVerdict::TunnelRefused, &arriving(&sent), &[]);
    }
    InnerNotVip nothing_but_clients_packets_is_passed_on(server) {
        in_own_network();
        let to_other = Tuple::new(CLIENTS[0], 4000, "192.0.2.11", 80).tcp(Tcp::ack(2, 1));
        let twice = outer(Ip::OUTER, FORMER[0], &segment(Tuple::new(CLIENTS[0], 4000, VIPS[0], 80)));
        for inner in [to_other, twice] {
            let sent = arriving(&outer(Ip::OUTER, OWN4, &outer(Ip::OUTER, FORMER[0], &inner)));
            server.expect(ServerVerdict::InnerNotVip, &sent, &[]);
        }
    }
    InnerSpoofed nothing_from_a_vip_is_passed_on(server) {
        in_own_network();
        let inner = segment(Tuple::new(VIPS[0], 4000, VIPS[0], 80));
        let sent = arriving(&outer(Ip::OUTER, OWN4, &outer(Ip::OUTER, FORMER[0], &inner)));
        server.expect(ServerVerdict::InnerSpoofed, &sent, &[]);
    }
    InnerMalformed a_second_header_that_ends_early(server) {
        in_own_network();
        let inner = segment(Tuple::new(CLIENTS[0], 4000, VIPS[0], 80));
        let left = outer(Ip::OUTER, FORMER[0], &inner[..12]);
        server.expect(ServerVerdict::InnerMalformed, &arriving(&outer(Ip::OUTER, OWN4, &left)), &[]);
    }
}

/// Slots 0 to 3 are their real's own; before, 0 and 1 were 1's, and 2 and 3 the other way.
const RING: [u32; 4] = [0, 1, 2, 3];
const BEFORE: [u32; 4] = [1, 1, 3, 2];

fn address(real: u32) -> String {
    format!("10.1.0.{}", 10 + real)
}

fn tunnel(real: u32, inner: &[u8]) -> Vec<u8> {
    let from: IpAddr = TUNNEL_SOURCE4.parse().unwrap();
    Ip::OUTER.packet(from, address(real).parse().unwrap(), 4, inner)
}

fn balancer(flags: u32, pick: u8) -> Rig {
    let mut rig = Rig::new();
    for real in RING {
        rig.tunnel_real(real, &address(real));
    }
    rig.vip(5, VIPS[0], 80, TCP, &RING);
    rig.ring(5, &RING);
    rig.change_vip(VIPS[0], 80, TCP, |vip| {
        (vip.ring_size, vip.pick, vip.flags) = (4, pick, flags);
    });
    if pick == PICK_TURN {
        rig.plain_ring(5, (VIPS[0], 80, TCP), &RING);
    }
    rig.former_ring(5, (VIPS[0], 80, TCP), &BEFORE);
    rig
}

/// The real that an encapsulated frame goes to.
fn real_of(frame: &[u8]) -> u32 {
    u32::from(frame[14 + 19]) - 10
}

/// Sends the packet; the real that got it, once the frame says what it should.
fn real_that_is_told(rig: &mut Rig, verdict: Verdict, packet: &[u8], before: [u32; 4]) -> u32 {
    let real = real_of(&rig.send(&arriving(packet)).1);
    let former = before[real as usize];
    let told = match former == real {
        true => tunnel(real, packet),
        false => tunnel(real, &tunnel(former, packet)),
    };
    rig.expect(verdict, &arriving(packet), &leaving(&told));
    real
}

#[test]
fn what_nothing_remembers_brings_its_slots_former_owner() {
    for pick in [0, PICK_TURN] {
        let mut rig = balancer(0, pick);
        let mut met = [0; 4];
        for port in 4000..4100 {
            let client = Tuple::new(CLIENTS[0], port, VIPS[0], 80);
            // Adopted; what follows is established, and carries the same.
            let packet = segment(client);
            let real = real_that_is_told(&mut rig, Verdict::Established, &packet, BEFORE);
            met[real as usize] += 1;
            let end = client.tcp(Tcp {
                flags: FIN | ACK,
                seq: 9,
                ..Tcp::default()
            });
            assert_eq!(
                real_that_is_told(&mut rig, Verdict::Established, &end, BEFORE),
                real
            );
        }
        assert!(met.iter().all(|met| *met > 10), "{met:?}");
    }
}

#[test]
fn a_vip_without_memory_tells_it_each_time() {
    let mut rig = balancer(VIP_FORGET, 0);
    for port in 4000..4020 {
        let packet = segment(Tuple::new(CLIENTS[0], port, VIPS[0], 80));
        real_that_is_told(&mut rig, Verdict::Adopted, &packet, BEFORE);
    }
}

#[test]
fn what_opens_here_has_no_former_owner() {
    let mut rig = balancer(0, 0);
    for port in 4000..4020 {
        let client = Tuple::new(CLIENTS[0], port, VIPS[0], 80);
        let syn = client.tcp(Tcp::syn(1));
        real_that_is_told(&mut rig, Verdict::SynAgain, &syn, RING);
        real_that_is_told(&mut rig, Verdict::Established, &segment(client), RING);
    }
    // Nor has a new connection on the tuple of one that was adopted and has ended.
    let client = Tuple::new(CLIENTS[0], 5000, VIPS[0], 80);
    rig.send(&arriving(&segment(client)));
    rig.send(&arriving(&client.tcp(Tcp {
        flags: FIN | ACK,
        seq: 9,
        ..Tcp::default()
    })));
    rig.send(&arriving(&client.tcp(Tcp::syn(7))));
    real_that_is_told(&mut rig, Verdict::Established, &segment(client), RING);
}

#[test]
fn a_former_owner_that_is_gone_is_not_told() {
    let mut rig = balancer(VIP_FORGET, 0);
    rig.real(1, Default::default());
    rig.former_ring(5, (VIPS[0], 80, TCP), &[1, u32::MAX, 3, 2]);
    for port in 4000..4040 {
        let packet = segment(Tuple::new(CLIENTS[0], port, VIPS[0], 80));
        let (action, out) = rig.send(&arriving(&packet));
        if action == Verdict::Adopted.action() as u32 && real_of(&out) == 0 {
            rig.expect(
                Verdict::Adopted,
                &arriving(&packet),
                &leaving(&tunnel(0, &packet)),
            );
        }
    }
}

#[test]
fn both_headers_have_to_fit() {
    let mut rig = balancer(VIP_FORGET, 0);
    let payload = [7; 1440];
    let of = |port, payload| {
        Tuple::new(CLIENTS[0], port, VIPS[0], 80).tcp(Tcp {
            payload,
            ..Tcp::ack(1, 1)
        })
    };
    let mut answered = 0;
    for port in 4000..4020 {
        // 1480 bytes of IP fit behind one header of 20, and not behind two.
        let (_, out) = rig.send(&arriving(&of(port, &payload)));
        let is_answer = out.len() < 700;
        let real = real_of(&rig.send(&arriving(&of(port, &payload[..1400]))).1);
        assert_eq!(is_answer, BEFORE[real as usize] != real, "port {port}");
        answered += usize::from(is_answer);
        if is_answer {
            // Fragmentation needed, and the MTU that is left.
            assert_eq!(
                (out[14 + 20], &out[14 + 26..14 + 28]),
                (3, &1460_u16.to_be_bytes()[..])
            );
        }
    }
    assert!((5..20).contains(&answered));
}

/// What the balancer writes the server reads, whatever the tunnels and families.
#[test]
fn the_server_understands_what_the_balancer_tells() {
    in_own_network();
    let mut server = Server::new();
    for (vip, client) in ends() {
        let _listener = TcpListener::bind((vip, 80)).unwrap();
        for own in [OWN4, OWN6] {
            for former in FORMER {
                for flags in [0, REAL_GUE] {
                    let mut rig = Rig::new();
                    for (id, address) in [(0, own), (1, former)] {
                        let mut real = tunnel_real(address);
                        real.flags |= flags;
                        rig.real(id, real);
                    }
                    rig.vip(5, vip, 80, TCP, &[0]);
                    rig.former_ring(5, (vip, 80, TCP), &[1]);
                    let tuple = Tuple::new(client, 4000, vip, 80);
                    let packet = segment(tuple);
                    let told = rig.send(&arriving(&packet)).1;
                    let mut back = told.clone();
                    back[..6].copy_from_slice(&OWN);
                    back[6..12].copy_from_slice(&ROUTER);
                    let passed_on = server.send(&back);
                    let source = if former.contains(':') {
                        TUNNEL_SOURCE6
                    } else {
                        TUNNEL_SOURCE4
                    };
                    let proto = if vip.contains(':') { 41 } else { 4 };
                    // The flow label is the flow's hash.
                    let label = match former.contains(':') {
                        true => {
                            u32::from_be_bytes(passed_on[14..18].try_into().unwrap()) & 0xf_ffff
                        }
                        false => 0,
                    };
                    let left = Ip {
                        flow_label: label,
                        ..Ip::OUTER
                    };
                    let left = left.packet(
                        source.parse().unwrap(),
                        former.parse().unwrap(),
                        proto,
                        &packet,
                    );
                    assert_eq!(passed_on, leaving(&left), "{vip} {own} {former} {flags}");
                }
            }
        }
    }
    assert!(server.counters().seen(ServerVerdict::PassedOn as usize));
}
