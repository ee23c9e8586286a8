// SPDX-License-Identifier: Apache-2.0
//! The sampler on a real interface: one TCP connection over a veth pair. Needs
//! root; fails without.

mod sandbox;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use causeway_core::estimate::Packet;
use causeway_core::rtt::Seen;
use causeway_dataplane::{Result, Sampler, SamplerOptions, interface_of};

use sandbox::{Netns, Sandbox, ip, listen, wait_for_carrier};

const REQUESTS: usize = 400;

/// A server in a namespace of its own, behind the interface m0.
fn server_side() -> Netns {
    let server = Netns::new();
    let peer = server.path();
    ip(&format!("link add m0 type veth peer name s0 netns {peer}"));
    for (address, other) in [("10.4.0.1/24", "10.4.0.2/24"), ("fd04::1/64", "fd04::2/64")] {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        ip(&format!("addr add {address} dev m0{nodad}"));
        server.ip(&format!("addr add {other} dev s0{nodad}"));
    }
    ip("link set m0 up");
    server.ip("link set s0 up");
    wait_for_carrier("m0");
    server
}

/// Requests of 100 bytes, responses of 200, and what the sampler took meanwhile.
fn exchange(
    server: &Netns,
    to: &str,
    options: &SamplerOptions,
    start: fn(&SamplerOptions) -> Result<Sampler>,
) -> (SocketAddr, Vec<Seen>, u64) {
    let to: SocketAddr = to.parse().expect("an address");
    let listener = server.run(|| listen(to));
    let mut sampler = start(options).expect("sampler");
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        stream.set_nodelay(true).expect("nodelay");
        let mut request = [0; 100];
        while stream.read_exact(&mut request).is_ok() {
            stream.write_all(&[2; 200]).expect("write");
        }
    });
    let mut stream = TcpStream::connect(to).expect("connect");
    stream.set_nodelay(true).expect("nodelay");
    let from = stream.local_addr().expect("address");
    let mut response = [0; 200];
    for _ in 0..REQUESTS {
        stream.write_all(&[1; 100]).expect("write");
        stream.read_exact(&mut response).expect("read");
    }
    drop(stream);
    answering.join().expect("the server");
    (from, sampler.take().expect("records"), sampler.lost())
}

fn options(one_in: u32, follow: bool) -> SamplerOptions {
    SamplerOptions {
        interface: "m0".into(),
        port: 9472,
        one_in,
        follow,
    }
}

fn data(seen: &[Seen], outgoing: bool) -> Vec<&Seen> {
    seen.iter()
        .filter(|s| s.outgoing == outgoing && s.packet.payload_len > 0)
        .collect()
}

#[test]
fn every_packet_is_followed_over_both_ip_versions() {
    Sandbox::run(|_| {
        let server = server_side();
        for to in ["10.4.0.2:9472", "[fd04::2]:9472"] {
            let (from, seen, lost) = exchange(&server, to, &options(0, true), Sampler::start);
            assert_eq!(lost, 0);
            let to: SocketAddr = to.parse().expect("an address");
            assert!(
                seen.iter()
                    .all(|s| s.flow.local == from && s.flow.remote == to && !s.sampled)
            );
            let (requests, responses) = (data(&seen, true), data(&seen, false));
            assert_eq!((requests.len(), responses.len()), (REQUESTS, REQUESTS));
            let header = if to.is_ipv4() { 20 } else { 40 } + 32;
            for (i, (request, response)) in requests.iter().zip(&responses).enumerate() {
                let (q, s) = (&request.packet, &response.packet);
                assert_eq!((q.payload_len, s.payload_len), (100, 200));
                assert_eq!((q.ip_len, s.ip_len), (header + 100, header + 200));
                assert_eq!(s.ack, q.seq.wrapping_add(100), "response {i}");
                assert!(q.has_ts && s.has_ts && s.tsecr == request.tsval);
                assert!(request.t_ns <= response.t_ns);
            }
            let syns = seen
                .iter()
                .filter(|s| s.packet.tcp_flags & Packet::SYN != 0);
            assert_eq!(syns.count(), 2);
        }
    });
}

#[test]
fn one_packet_in_n_is_sampled_each_way() {
    Sandbox::run(|_| {
        let server = server_side();
        let (_, seen, _) = exchange(&server, "10.4.0.2:9472", &options(4, false), Sampler::start);
        assert!(seen.iter().all(|s| s.sampled));
        for outgoing in [true, false] {
            // Binomial(400, 1/4): 100 with a deviation of 9; seven of them are never.
            let count = data(&seen, outgoing).len();
            assert!((40..=160).contains(&count), "{count}");
        }
        // Packets of other ports are not sampled.
        let other = SamplerOptions {
            port: 80,
            ..options(1, true)
        };
        let (_, seen, _) = exchange(&server, "10.4.0.2:9472", &other, Sampler::start);
        assert!(seen.is_empty(), "{seen:?}");
    });
}

#[test]
fn filters_do_where_links_are_not() {
    Sandbox::run(|_| {
        let server = server_side();
        let start = Sampler::start_with_filters;
        let (_, seen, _) = exchange(&server, "10.4.0.2:9472", &options(1, false), start);
        assert_eq!(data(&seen, true).len(), REQUESTS);
        // Dropped, it has left the interface; the next one begins from nothing.
        let (_, seen, _) = exchange(&server, "10.4.0.2:9472", &options(1, false), start);
        assert_eq!(data(&seen, false).len(), REQUESTS);
    });
}

#[test]
fn interfaces_are_found_by_their_addresses() {
    Sandbox::run(|_| {
        let _server = server_side();
        for address in ["10.4.0.1", "fd04::1", "::ffff:10.4.0.1"] {
            let address = address.parse().expect("an address");
            assert_eq!(interface_of(address).as_deref(), Some("m0"));
        }
        assert_eq!(interface_of("192.0.2.1".parse().expect("an address")), None);
        let nowhere = SamplerOptions {
            interface: "nowhere0".into(),
            ..options(8, false)
        };
        let error = Sampler::start(&nowhere).expect_err("no such interface");
        assert!(
            error.to_string().contains("no network interface nowhere0"),
            "{error}"
        );
    });
}
