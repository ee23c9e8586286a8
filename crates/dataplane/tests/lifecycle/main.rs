// SPDX-License-Identifier: Apache-2.0
//! The balancer's life: start, takeover, crash, removal, and every refusal, on
//! real interfaces in private namespaces.

mod cookies;
mod mend;
mod refusals;
#[path = "../sandbox/mod.rs"]
mod sandbox;
mod syn_hooks;
mod tables;
mod takeover;

use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};

use causeway_dataplane::abi::Verdict;
use causeway_dataplane::{
    AttachedMode, CookieHooks, DataPlaneError, Decapsulator, DecapsulatorOptions, Forwarding,
    LoadBalancer, LoadBalancerOptions, Protocol, Real, RealId, Repairs, SourceRing, TableLimits,
    Vip, VipId, VipRings, XdpMode,
};
use causeway_netio::{NextHop, OuterSource};

use sandbox::{Netns, Sandbox, attach_pass, ip, listen, wait_for, wait_for_carrier};

fn addr(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A map by its name.
fn pinned(pin_dir: &Path, name: &str) -> libbpf_rs::MapHandle {
    libbpf_rs::MapHandle::from_pinned_path(pin_dir.join(name))
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Small tables: most tests do not fill them.
fn options(interface: &str, pin_dir: &Path) -> LoadBalancerOptions {
    LoadBalancerOptions {
        flows_v4: 1024,
        flows_v6: 1024,
        limits: TableLimits {
            vips: 8,
            reals: 16,
            histograms: 12,
            cookie_vips: 64,
        },
        ..LoadBalancerOptions::new(interface, pin_dir)
    }
}

/// A server's end with cookies, on lb0.
fn server_options(pin_dir: &Path) -> DecapsulatorOptions {
    DecapsulatorOptions {
        interface: "lb0".to_owned(),
        pin_dir: pin_dir.to_owned(),
        xdp_mode: XdpMode::Native,
        gue_port: causeway_netio::Gue::default().port,
        cookies: Some(CookieHooks::default()),
        token_sources: (None, None),
        inner_mtu: None,
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
    wait_for_carrier("lb0");
    peer
}

fn start(options: &LoadBalancerOptions) -> LoadBalancer {
    LoadBalancer::start(options)
        .unwrap_or_else(|e| panic!("{e}"))
        .0
}

fn refusal(options: &LoadBalancerOptions) -> DataPlaneError {
    match LoadBalancer::start(options) {
        Ok(_) => panic!("started, but should have been refused"),
        Err(e) => e,
    }
}

fn packets(lb: &LoadBalancer) -> u64 {
    let verdicts = lb.verdicts().expect("verdicts");
    verdicts.iter().map(|(_, counter)| counter.packets).sum()
}

/// Sends `count` datagrams to a port where no socket listens.
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
