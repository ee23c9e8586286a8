// SPDX-License-Identifier: Apache-2.0
//! The tunnel's device and sockets against the kernel. Needs root; fails without.

#[path = "../../dataplane/tests/sandbox/mod.rs"]
mod sandbox;

use std::io::IoSlice;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};

use causeway_netio::monotonic_ns;
use causeway_netio::tunnel::{
    BUFFER_BYTES, Device, DeviceOptions, FRAME_MAX, PathOptions, SendBuffers, Slab, Tun,
    TunnelError, UdpPath, UdpReceiver, VNET_HEADER, Waiter,
};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};

use sandbox::{Sandbox, wait_for};

fn device(name: &str, queues: usize) -> DeviceOptions {
    DeviceOptions {
        name: name.to_owned(),
        queues,
        namespace: None,
        mtu: 1400,
        queue_packets: Some(100),
        addresses: vec![
            (Ipv4Addr::new(10, 5, 0, 1).into(), 24),
            (Ipv4Addr::new(10, 6, 0, 1).into(), 16),
            (Ipv6Addr::new(0xfd05, 0, 0, 0, 0, 0, 0, 1).into(), 64),
        ],
        persist: false,
        super_packets: true,
    }
}

fn path(local: u16, remote: u16) -> PathOptions {
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    PathOptions {
        local: at(local),
        remote: at(remote),
        device: None,
        buffer_bytes: 1 << 20,
        merge: true,
    }
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// An echo request of 10.5.0.2 to 10.5.0.1 behind an empty virtio header.
fn echo_request() -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
    icmp.extend(b"causeway");
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let total = 20 + icmp.len() as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(total.to_be_bytes());
    ip.extend([0, 1, 0, 0, 64, 1, 0, 0, 10, 5, 0, 2, 10, 5, 0, 1]);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    [vec![0; VNET_HEADER], ip, icmp].concat()
}

#[test]
fn frames_go_up_in_pieces_and_answers_come_down() {
    Sandbox::run(|_| {
        let device = Device::open(&device("cw0", 1)).expect("a TUN device");
        let tun = &device.queues[0];
        let frame = echo_request();
        let pieces: Vec<IoSlice<'_>> = frame.chunks(7).map(IoSlice::new).collect();
        tun.write(&pieces).expect("write");
        let mut waiter = Waiter::new().expect("waiter");
        waiter.watch(std::iter::once(tun.as_fd()));
        let mut buffer = vec![0; FRAME_MAX];
        // The kernel says other things too, such as router solicitations.
        let answer = (0..20).find_map(|_| {
            waiter.wait(0, monotonic_ns() + 500_000_000).expect("wait");
            let length = tun.read(&mut buffer).expect("read")?;
            let packet = &buffer[VNET_HEADER..length];
            (packet[0] >> 4 == 4 && packet[9] == 1).then(|| packet.to_vec())
        });
        let answer = answer.expect("an echo reply");
        assert_eq!(answer[12..20], [10, 5, 0, 1, 10, 5, 0, 2]);
        assert_eq!((answer[20], &answer[28..]), (0, &b"causeway"[..]));
    });
}

/// Sends ten datagrams of 500 bytes in one call, and gives the payload of each frame that comes.
fn payload_of_ten_datagrams(tun: &Tun, guest: &UdpSocket) -> Vec<usize> {
    let sent = guest.send_to(&[7; 5000], "10.5.0.2:7001").expect("send");
    assert_eq!(sent, 5000);
    let mut waiter = Waiter::new().expect("waiter");
    waiter.watch(std::iter::once(tun.as_fd()));
    let (mut buffer, mut frames) = (vec![0; FRAME_MAX], Vec::new());
    while frames.iter().sum::<usize>() < sent {
        let ready = waiter.wait(0, monotonic_ns() + 20_000_000_000);
        assert!(ready.expect("wait").is(0), "no more than {frames:?}");
        let Some(length) = tun.read(&mut buffer).expect("read") else {
            continue;
        };
        let packet = &buffer[VNET_HEADER..length];
        if packet[0] >> 4 == 4 && packet[9] == 17 && packet[22..24] == 7001_u16.to_be_bytes() {
            frames.push(packet.len() - 28);
        }
    }
    frames
}

/// Two datagrams of 500 bytes of 10.5.0.2 to port 7000 of 10.5.0.1, merged.
fn merged_udp() -> Vec<u8> {
    const UDP_L4: u8 = 5;
    let needs_checksum_of_segments = [1, UDP_L4, 28, 0, 0xf4, 1, 20, 0, 6, 0];
    let udp_len = 1008_u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_len).to_be_bytes());
    ip.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 5, 0, 2, 10, 5, 0, 1]);
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    // As far as the sender makes it: of addresses, protocol and length.
    let pseudo = [&ip[12..20], &[0, 17], &udp_len.to_be_bytes()].concat();
    let sum = !checksum(&pseudo);
    let udp = [7001, 7000, udp_len, sum].map(u16::to_be_bytes).concat();
    [&needs_checksum_of_segments[..], &ip, &udp, &[7; 1000]].concat()
}

#[test]
fn a_device_takes_merged_udp_where_it_hands_it_over() {
    Sandbox::run(|_| {
        let device = Device::open(&device("cw0", 1)).expect("a TUN device");
        let tun = &device.queues[0];
        let guest = UdpSocket::bind("10.5.0.1:7000").expect("a socket");
        // Also one that does not hand it over just now.
        for merge in [true, false] {
            tun.merge_udp(merge).expect("switch it");
            let written = tun.write(&[IoSlice::new(&merged_udp())]);
            if !device.merges_udp {
                let error = written.expect_err("a kernel before Linux 6.2");
                assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
                continue;
            }
            written.expect("write");
            let mut buffer = [0; 2000];
            for _ in 0..2 {
                let (length, from) = guest.recv_from(&mut buffer).expect("receive");
                assert_eq!((length, from.to_string().as_str()), (500, "10.5.0.2:7001"));
            }
        }
    });
}

#[test]
fn guests_udp_comes_merged_or_not_as_is_asked_for() {
    Sandbox::run(|_| {
        let device = Device::open(&device("cw0", 1)).expect("a TUN device");
        let tun = &device.queues[0];
        let guest = UdpSocket::bind("10.5.0.1:7000").expect("a socket");
        let (udp_segment, size): (libc::c_int, libc::c_int) = (103, 500);
        // SAFETY: a live integer and its size.
        let status = unsafe {
            libc::setsockopt(
                guest.as_raw_fd(),
                libc::SOL_UDP,
                udp_segment,
                (&raw const size).cast(),
                size_of_val(&size) as libc::socklen_t,
            )
        };
        assert_eq!(status, 0, "UDP_SEGMENT");
        let merged = if device.merges_udp {
            vec![5000]
        } else {
            vec![500; 10]
        };
        assert_eq!(payload_of_ten_datagrams(tun, &guest), merged);
        tun.merge_udp(false).expect("switch it off");
        assert_eq!(payload_of_ten_datagrams(tun, &guest), [500; 10]);
        tun.merge_udp(true).expect("switch it on");
        assert_eq!(payload_of_ten_datagrams(tun, &guest), merged);
    });
}

#[test]
fn a_frame_for_a_device_that_is_down_is_told_from_a_bad_one() {
    Sandbox::run(|_| {
        let device = Device::open(&device("cw0", 1)).expect("a TUN device");
        let tun = &device.queues[0];
        let write = |frame: &[u8]| {
            let written = tun.write(&[IoSlice::new(frame)]);
            written.err().and_then(|error| error.raw_os_error())
        };
        assert_eq!(write(&echo_request()), None);
        let mut bad = echo_request();
        bad[VNET_HEADER] = 0xf5;
        assert_eq!(write(&bad), Some(libc::EINVAL));
        sandbox::ip("link set cw0 down");
        assert_eq!(write(&echo_request()), Some(libc::EIO));
        sandbox::ip("link set cw0 up");
        assert_eq!(write(&echo_request()), None);
    });
}

#[test]
fn devices_have_queues_and_say_what_is_wrong() {
    Sandbox::run(|_| {
        let first = Device::open(&device("cw0", 3)).expect("a TUN device");
        assert_eq!(first.queues.len(), 3);
        let shown = std::process::Command::new("ip")
            .args(["addr", "show", "dev", "cw0"])
            .output()
            .expect("ip");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        for expected in [
            "mtu 1400",
            "qlen 100",
            "inet 10.5.0.1/24",
            "inet 10.6.0.1/16",
            "inet6 fd05::1/64",
            "UP",
        ] {
            assert!(shown.contains(expected), "{expected} is missing in {shown}");
        }
        let busy = Device::open(&device("cw0", 1)).expect_err("taken");
        assert!(
            matches!(
                busy,
                TunnelError::OtherDevice(_) | TunnelError::DeviceBusy(_)
            ),
            "{busy}"
        );
        let elsewhere = DeviceOptions {
            namespace: Some("/nonexistent".into()),
            ..device("cw1", 1)
        };
        let error = Device::open(&elsewhere)
            .expect_err("no namespace")
            .to_string();
        assert!(
            error.starts_with("cannot enter the network namespace /nonexistent"),
            "{error}"
        );
    });
}

#[test]
fn a_device_whose_name_is_as_long_as_may_be_has_all_its_addresses() {
    Sandbox::run(|_| {
        let options = DeviceOptions {
            persist: true,
            ..device("cw0123456789abc", 1)
        };
        // The second time it has them.
        for _ in 0..2 {
            drop(Device::open(&options).expect("a TUN device"));
            let shown = sandbox::run("ip", "addr show dev cw0123456789abc");
            for expected in ["inet 10.5.0.1/24", "inet 10.6.0.1/16"] {
                assert!(shown.contains(expected), "{expected} is missing in {shown}");
            }
        }
    });
}

#[test]
fn many_datagrams_go_and_come_in_one_call() {
    Sandbox::run(|_| {
        let (a, b) = (
            UdpPath::open(&path(7000, 7001)).expect("a path"),
            UdpPath::open(&path(7001, 7000)).expect("a path"),
        );
        // Loopback has an MTU of 65,536, an IP packet at most 65,535 bytes.
        assert_eq!(a.payload_max().expect("MTU"), 65_535 - 28);
        let headers: Vec<[u8; 4]> = (0..40_u32).map(u32::to_le_bytes).collect();
        let payload = vec![7; 1000];
        let mut buffers = SendBuffers::default();
        let mut batch = buffers.batch();
        batch.message(1004);
        for header in &headers {
            batch.part(header);
            batch.part(&payload);
        }
        // The last one of a message may be shorter.
        batch.part(&headers[0]);
        batch.message(0);
        batch.part(b"alone");
        let sent = batch.send(&a);
        assert_eq!((sent.messages, sent.refused, sent.too_large), (2, 0, false));
        let (mut slab, mut receiver) = (Slab::new(16, BUFFER_BYTES), UdpReceiver::new());
        let mut received = Vec::new();
        // The kernel may leave what it has been given for later.
        wait_for("both messages", || {
            let come = receiver.receive(&b, &mut slab, &mut received);
            come.expect("receive");
            received.len() >= 2
        });
        let mut datagrams = Vec::new();
        for message in &received {
            let bytes = &slab.bytes(message.buffer)[..message.length];
            datagrams.extend(bytes.chunks(message.segment).map(<[u8]>::to_vec));
        }
        assert_eq!(datagrams.len(), 42);
        for (header, datagram) in headers.iter().zip(&datagrams) {
            assert_eq!(datagram[..4], *header);
            assert_eq!(datagram[4..], payload);
        }
        assert_eq!(datagrams[40], headers[0]);
        assert_eq!(datagrams[41], b"alone");
        // Loopback hands merged ones over as they were sent.
        assert_eq!(received.len(), 2);
        for message in received {
            slab.release(message.buffer, 1);
        }
        receiver.give_back(&mut slab);
        assert_eq!(slab.used(), 0);
    });
}

#[test]
fn a_path_may_get_another_end_and_hears_no_more_of_the_former_one() {
    Sandbox::run(|_| {
        let mut path = UdpPath::open(&path(7000, 7001)).expect("a path");
        let [former, new] = [7001, 7002].map(|port| {
            let socket = UdpSocket::bind(("127.0.0.1", port)).expect("a socket");
            socket.connect("127.0.0.1:7000").expect("connect");
            socket
        });
        former.send(b"early").expect("send");
        let to = SocketAddr::from(([127, 0, 0, 1], 7002));
        path.aim_at(to).expect("another end");
        assert_eq!((path.remote(), path.payload_max().ok()), (to, Some(65_507)));
        // There is no socket for it any more.
        let _ = former.send(b"late");
        new.send(b"new").expect("send");
        let mut buffer = [0; 100];
        let mut length = None;
        wait_for("a datagram", || {
            length = path.receive_one(&mut buffer).expect("receive");
            length.is_some()
        });
        assert_eq!(&buffer[..length.unwrap_or(0)], b"new");
        let mut buffers = SendBuffers::default();
        let mut batch = buffers.batch();
        batch.message(0);
        batch.part(b"answer");
        assert_eq!(batch.send(&path).messages, 1);
        let length = new.recv(&mut buffer).expect("receive");
        assert_eq!(&buffer[..length], b"answer");
    });
}

#[test]
fn what_does_not_fit_and_who_does_not_listen_is_told() {
    Sandbox::run(|_| {
        let a = UdpPath::open(&path(7000, 7001)).expect("a path");
        sandbox::ip("link set lo mtu 1500");
        let mut buffers = SendBuffers::default();
        let large = vec![0; 1600];
        let mut batch = buffers.batch();
        batch.message(0);
        batch.part(&large);
        batch.message(0);
        batch.part(&large[..100]);
        let sent = batch.send(&a);
        assert_eq!((sent.messages, sent.refused, sent.too_large), (1, 1, true));
        assert_eq!(a.payload_max().expect("MTU"), 1472);
        // No socket listens: the next datagram goes all the same.
        let mut batch = buffers.batch();
        batch.message(0);
        batch.part(b"again");
        assert_eq!(batch.send(&a).messages, 1);
        let error = UdpPath::open(&path(7000, 7002))
            .expect_err("taken")
            .to_string();
        assert!(
            error.starts_with("path 127.0.0.1:7000 to 127.0.0.1:7002: cannot take the local"),
            "{error}"
        );
    });
}

/// An ICMP message to 10.9.0.1, as anybody may send it: datagrams of port 7000 to 10.9.0.2, port
/// 7001, were too large for a hop of 552 bytes.
fn forge_fragmentation_needed() {
    let udp = [7000_u16, 7001, 1480, 0].map(u16::to_be_bytes).concat();
    let mut quoted = vec![0x45, 0, 0x05, 0xdc, 0, 1, 0x40, 0, 64, 17, 0, 0];
    quoted.extend([10, 9, 0, 1, 10, 9, 0, 2]);
    let sum = checksum(&quoted);
    quoted[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut message = vec![3, 4, 0, 0, 0, 0, 0x02, 0x28];
    message.extend([quoted, udp].concat());
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let raw = socket(
        AddressFamily::Inet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::Icmp,
    )
    .expect("a raw socket");
    let to = SockaddrIn::new(10, 9, 0, 1, 0);
    sendto(raw.as_raw_fd(), &message, &to, MsgFlags::empty()).expect("it is sent");
}

#[test]
fn a_forged_message_of_a_small_mtu_changes_nothing() {
    Sandbox::run(|_| {
        sandbox::ip("link add d0 type veth peer name d1");
        sandbox::ip("addr add 10.9.0.1/24 dev d0");
        sandbox::ip("link set d1 up");
        sandbox::ip("link set d0 up");
        sandbox::ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev d0");
        let options = PathOptions {
            local: SocketAddr::from(([10, 9, 0, 1], 7000)),
            remote: SocketAddr::from(([10, 9, 0, 2], 7001)),
            ..path(0, 0)
        };
        let a = UdpPath::open(&options).expect("a path");
        assert_eq!(a.payload_max().expect("MTU"), 1472);
        let mut buffers = SendBuffers::default();
        let large = [0; 1472];
        for _ in 0..3 {
            forge_fragmentation_needed();
            let mut batch = buffers.batch();
            batch.message(0);
            batch.part(&large);
            let sent = batch.send(&a);
            assert_eq!((sent.messages, sent.refused, sent.too_large), (1, 0, false));
        }
        // The kernel has believed it.
        let told = std::process::Command::new("ip")
            .args(["route", "get", "10.9.0.2"])
            .output()
            .expect("ip");
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(told.contains("mtu 552"), "{told}");
        assert_eq!(a.payload_max().expect("MTU"), 1472);
        drop(a);
        // A child of another test may hold the port until it runs its program.
        let mut again = None;
        sandbox::wait_for("the port", || {
            again = UdpPath::open(&options).ok();
            again.is_some()
        });
        let a = again.expect("a path");
        assert_eq!(a.payload_max().expect("MTU"), 1472);
        // What the operator says is another matter.
        sandbox::ip("route add 10.9.0.2/32 dev d0 mtu 1400");
        assert_eq!(a.payload_max().expect("MTU"), 1372);
        sandbox::ip("addr add fd09::1/64 dev d0 nodad");
        let options = PathOptions {
            local: "[fd09::1]:7000".parse().expect("an address"),
            remote: "[fd09::2]:7001".parse().expect("an address"),
            ..options
        };
        let a = UdpPath::open(&options).expect("a path");
        assert_eq!(a.payload_max().expect("MTU"), 1500 - 48);
        sandbox::ip("route add fd09::2/128 dev d0 mtu 1400");
        assert_eq!(a.payload_max().expect("MTU"), 1400 - 48);
    });
}

/// Where the routes name another device, or none.
#[test]
fn a_device_that_is_given_has_its_own_mtu() {
    Sandbox::run(|_| {
        for (device, peer, net) in [("d0", "d1", 0), ("d2", "d3", 2)] {
            sandbox::ip(&format!("link add {device} type veth peer name {peer}"));
            sandbox::ip(&format!("addr add 10.9.{net}.1/24 dev {device}"));
            sandbox::ip(&format!("addr add fd09:{net}::1/64 dev {device} nodad"));
            sandbox::ip(&format!("link set {peer} up"));
            sandbox::ip(&format!("link set {device} up"));
        }
        sandbox::ip("link set d2 mtu 1400");
        let d2 = causeway_netio::Interface::find("d2").expect("an interface");
        let by_d2 = |local: &str, remote: &str| PathOptions {
            local: local.parse().expect("an address"),
            remote: remote.parse().expect("an address"),
            device: Some(d2.index),
            ..path(0, 0)
        };
        let ipv4 = UdpPath::open(&by_d2("10.9.2.1:7000", "10.20.0.2:7001")).expect("a path");
        assert_eq!(ipv4.payload_max().expect("MTU"), 1400 - 28, "no route");
        sandbox::ip("route add default dev d0");
        assert_eq!(ipv4.payload_max().expect("MTU"), 1400 - 28, "another's");
        sandbox::ip("route add default dev d2 metric 10 mtu 1300");
        assert_eq!(ipv4.payload_max().expect("MTU"), 1300 - 28, "its own");
        sandbox::ip("-6 route add default dev d0 metric 1024");
        sandbox::ip("-6 route add default dev d2 metric 2048");
        let ipv6 = by_d2("[fd09:2::1]:7000", "[fd20::2]:7001");
        let ipv6 = UdpPath::open(&ipv6).expect("a path");
        assert_eq!(ipv6.payload_max().expect("MTU"), 1400 - 48);
    });
}
