// SPDX-License-Identifier: Apache-2.0
//! Where SYN accounting hangs, and what sends probes, beside others' programs and on interfaces that come and go.

use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::Duration;

use causeway_dataplane::probe::{ProbeEgress, aim_at};
use causeway_dataplane::{HookChanges, SynMeter, SynMeterOptions};

use super::*;

/// A program of traffic control that ends with this verdict at once.
pub(super) fn verdict(verdict: i32) -> OwnedFd {
    // r0 = verdict; exit
    let code = [0xb7 | u64::from(verdict as u32) << 32, 0x95];
    // SAFETY: name, licence and code live through the call; the descriptor is new.
    unsafe {
        let program = libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            c"verdict".as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr().cast(),
            code.len() as _,
            std::ptr::null_mut(),
        );
        assert!(program >= 0, "load a program: {program}");
        OwnedFd::from_raw_fd(program)
    }
}

/// A program on a hook of tcx that ends there: TCX_PASS, as Cilium's do.
pub(super) fn attach_last_word(interface: &str, hook: libbpf_sys::bpf_attach_type) -> OwnedFd {
    let index = nix::net::if_::if_nametoindex(interface).expect("the interface");
    let program = verdict(0);
    // SAFETY: no options; the descriptor is new.
    unsafe {
        let link =
            libbpf_sys::bpf_link_create(program.as_raw_fd(), index as i32, hook, std::ptr::null());
        assert!(link >= 0, "attach a program: {link}");
        OwnedFd::from_raw_fd(link)
    }
}

/// How many programs hang on a hook of tcx; none on kernels without it.
pub(super) fn programs(interface: &str, hook: libbpf_sys::bpf_attach_type) -> u32 {
    let index = nix::net::if_::if_nametoindex(interface).expect("the interface");
    let mut opts = libbpf_sys::bpf_prog_query_opts {
        sz: size_of::<libbpf_sys::bpf_prog_query_opts>() as _,
        ..Default::default()
    };
    // SAFETY: `opts` is of the size that it says and points to nothing.
    let ret = unsafe { libbpf_sys::bpf_prog_query_opts(index as i32, hook, &mut opts) };
    assert!(
        [0, -libc::EINVAL].contains(&ret),
        "ask for the programs of {interface}: {ret}"
    );
    // SAFETY: the union's members are the same number.
    unsafe { opts.__bindgen_anon_1.count }
}

fn completed(meter: &SynMeter) -> u64 {
    let responses = meter.responses().expect("responses");
    responses[0].count.iter().sum()
}

/// Asks and is answered, over the wire.
pub(super) fn exchange(peer: &Netns) {
    let listener = listen("10.7.0.1:8080".parse().expect("an address"));
    let server = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = listener.accept().expect("accept");
        stream.read_exact(&mut [0; 3]).expect("a request");
        stream.write_all(b"yes").expect("an answer");
    });
    peer.run(|| {
        use std::io::{Read as _, Write as _};
        let mut stream = TcpStream::connect("10.7.0.1:8080").expect("connect");
        stream.write_all(b"say").expect("ask");
        let mut said = Vec::new();
        stream.read_to_end(&mut said).expect("an answer");
        assert_eq!(said, b"yes");
    });
    server.join().expect("the server");
}

#[test]
fn syns_are_counted_in_front_of_others_and_again_when_the_interface_is_back() {
    Sandbox::run(|sandbox| {
        let peer = veth();
        let _last_word = attach_last_word("lb0", libbpf_sys::BPF_TCX_INGRESS);
        let options = SynMeterOptions {
            interfaces: vec!["lb0".to_owned()],
            pin_dir: sandbox.pin_dir("clients"),
            slot_ns: 250_000_000,
            ring: 64,
            half_open: 256,
            connections: 256,
            services: vec![(None, 8080)],
            ..SynMeterOptions::default()
        };
        let mut meter = SynMeter::start(&options).expect("start");
        exchange(&peer);
        wait_for("the first transaction", || completed(&meter) == 1);
        assert_eq!(meter.mend_hooks().expect("look"), HookChanges::default());
        // The next agent takes the links over.
        drop(meter);
        let mut meter = SynMeter::start(&options).expect("take over");
        assert!(meter.took_over());
        exchange(&peer);
        wait_for("the second transaction, once", || completed(&meter) == 2);

        ip("link del lb0");
        let gone = meter.mend_hooks().expect("look");
        assert_eq!((gone.lost.len(), gone.missing), (2, 2), "{gone:?}");
        let peer = veth();
        let back = meter.mend_hooks().expect("look");
        assert_eq!((back.lost.len(), back.missing), (0, 0), "{back:?}");
        assert_eq!(back.moved.len(), 1);
        exchange(&peer);
        wait_for("the third transaction", || completed(&meter) == 3);
        assert_eq!(programs("lb0", libbpf_sys::BPF_TCX_INGRESS), 1);
        drop(meter);
        assert!(
            SynMeter::detach(&options.pin_dir)
                .expect("detach")
                .was_attached
        );
        let left = programs("lb0", libbpf_sys::BPF_TCX_INGRESS);
        assert_eq!(left, 0, "nothing is left");
    });
}

/// One that comes later, or never, is no reason to measure none.
#[test]
fn an_interface_that_is_not_there_at_the_start_is_counted_once_it_comes() {
    Sandbox::run(|sandbox| {
        let peer = veth();
        let options = SynMeterOptions {
            interfaces: vec!["late0".to_owned(), "lb0".to_owned()],
            pin_dir: sandbox.pin_dir("clients"),
            slot_ns: 250_000_000,
            ring: 64,
            half_open: 256,
            connections: 256,
            services: vec![(None, 8080)],
            ..SynMeterOptions::default()
        };
        let mut meter = SynMeter::start(&options).expect("start");
        assert_eq!(meter.missing_hooks(), 2);
        exchange(&peer);
        let completed = |meter: &SynMeter| {
            let responses = meter.responses().expect("responses");
            let all = responses.iter().map(|of| of.count.iter().sum());
            all.collect::<Vec<u64>>()
        };
        wait_for("a transaction", || completed(&meter) == [0, 1]);
        let look = meter.mend_hooks().expect("look");
        assert_eq!((look.lost.len(), look.missing), (0, 2), "{look:?}");
        ip("link add late0 type veth peer name late1");
        let look = meter.mend_hooks().expect("look");
        assert_eq!((look.lost.len(), look.missing), (0, 0), "{look:?}");
        assert_eq!(look.moved.len(), 1, "it has a number now");
        assert_eq!(programs("late0", libbpf_sys::BPF_TCX_INGRESS), 1);
        // One that goes while no agent runs is no reason either.
        drop(meter);
        ip("link del late0");
        let meter = SynMeter::start(&options).expect("take over");
        assert!(meter.took_over());
        assert_eq!(meter.missing_hooks(), 2);
        exchange(&peer);
        wait_for("another transaction", || completed(&meter) == [0, 2]);
    });
}

/// A program that ends with a verdict must not end a probe's way before it is encapsulated: reals
/// that are well would look down.
#[test]
fn probes_are_sent_in_front_of_others_and_again_when_the_interface_is_back() {
    Sandbox::run(|sandbox| {
        let peer = veth();
        let _last_word = attach_last_word("lb0", libbpf_sys::BPF_TCX_EGRESS);
        let lb = start(&options("lb0", &sandbox.pin_dir("lb")));
        let mut probes = ProbeEgress::start(&lb, "lb0").expect("start");
        let on_egress = || programs("lb0", libbpf_sys::BPF_TCX_EGRESS);
        assert_eq!(on_egress(), 2);
        // A probe of a real that is not there goes nowhere.
        let sent = |peer: &Netns| {
            let to = peer.run(|| UdpSocket::bind("10.7.0.2:9999").expect("bind"));
            to.set_read_timeout(Some(Duration::from_secs(30)))
                .expect("a timeout");
            let probe = UdpSocket::bind("10.7.0.1:0").expect("bind");
            aim_at(&probe, 3).expect("aim");
            // What the program drops the kernel tells the sender of, or not.
            let _ = probe.send_to(b"probe", "10.7.0.2:9999");
            let other = UdpSocket::bind("10.7.0.1:0").expect("bind");
            other.send_to(b"other", "10.7.0.2:9999").expect("send");
            let mut first = [0; 5];
            to.recv(&mut first).expect("a datagram");
            first
        };
        assert_eq!(&sent(&peer), b"other");
        probes.mend().expect("look");
        assert_eq!(on_egress(), 2, "nothing to mend");

        ip("link del lb0");
        probes.mend().expect("look");
        let peer = veth();
        let _last_word = attach_last_word("lb0", libbpf_sys::BPF_TCX_EGRESS);
        probes.mend().expect("look");
        assert_eq!(&sent(&peer), b"other");
        drop(probes);
        // A process that another test has forked has the link, too, until it runs its own program.
        wait_for("nothing to be left", || on_egress() == 1);
        assert_eq!(&sent(&peer), b"probe");
    });
}
