// SPDX-License-Identifier: Apache-2.0
//! What a mirror reports of packets, which it takes, and that it takes no more than it may.

use std::collections::HashSet;

use causeway_core::cookie::{CookieKey, KeyEpoch, Keys};
use causeway_dataplane::abi::{CookieResult, MirrorCtl, ServerVerdict, Verdict};
use causeway_dataplane::{DataPlaneError, MirrorOptions, MirrorVip, MirroredPacket, Protocol};
use causeway_netio::monotonic_ns;

use crate::frame::{Ip, OWN, ROUTER, Tags, Tcp, Tuple, arriving, ethernet, icmp, timestamp};
use crate::rig::{Rig, TCP, UDP};
use crate::server::Server;

const VIP: &str = "192.0.2.10";
const VIP6: &str = "2001:db8:1::10";
/// One that no test reaches.
const PLENTY: u32 = 1_000_000;

fn options() -> MirrorOptions {
    MirrorOptions {
        rate_pps: PLENTY,
        ..MirrorOptions::default()
    }
}

/// Two VIPs, the first with cookies, and a real each.
fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.tunnel_real(0, "10.1.0.10");
    rig.tunnel_real(1, "fd00:1::10");
    rig.vip(3, VIP, 80, TCP, &[0]);
    rig.vip(4, VIP6, 53, UDP, &[1]);
    let keys = Keys::new(KeyEpoch::Zero, CookieKey::from_bytes([7; 16]), None);
    rig.cookies((VIP, 80), &keys, &[(700, 0)]);
    rig
}

fn client(port: u16) -> Tuple {
    Tuple::new("198.51.100.7", port, VIP, 80)
}

/// With timestamps, as clients that can have a cookie send it.
fn syn(port: u16) -> Vec<u8> {
    let options = timestamp(1, 0);
    let tcp = Tcp {
        options: &options,
        ..Tcp::syn(9)
    };
    arriving(&client(port).tcp(tcp))
}

fn datagram6(tags: Tags<'_>) -> Vec<u8> {
    let tuple = Tuple::new("2001:db8:c::7", 4000, VIP6, 53);
    ethernet(OWN, ROUTER, tags, &tuple.udp(b"a question"))
}

/// An ICMP message to the VIP.
fn icmp4(from: &str, kind: u8, rest: [u8; 4], body: &[u8]) -> Vec<u8> {
    let (from, to) = (from.parse().unwrap(), VIP.parse().unwrap());
    let message = icmp(from, to, kind, 0, rest, body);
    Ip::CLIENT.packet(from, to, 1, &message)
}

fn verdicts(mirrored: &[MirroredPacket]) -> Vec<Verdict> {
    let verdict = |it: &MirroredPacket| Verdict::ALL[usize::from(it.verdict)];
    mirrored.iter().map(verdict).collect()
}

#[test]
fn it_tells_both_frames_and_the_verdict() {
    let mut rig = rig();
    let mut mirror = rig.mirror(&options()).expect("a mirror");
    let ping = icmp4("198.51.100.7", 8, [0, 1, 0, 1], b"are you there?");
    let elsewhere = Tuple::new("198.51.100.7", 1, "192.0.2.99", 80).tcp(Tcp::syn(1));
    let frames = [
        syn(4000),
        syn(4000),
        arriving(&ping),
        arriving(&elsewhere),
        datagram6(&[(0x8100, 5), (0x8100, 6)]),
        arriving(&[0x45, 0, 0]),
    ];
    let began = monotonic_ns();
    let out: Vec<Vec<u8>> = frames.iter().map(|frame| rig.send(frame).1).collect();
    let mirrored = mirror.take().expect("packets");
    let expected = [
        Verdict::Opened,
        Verdict::SynAgain,
        Verdict::EchoAnswered,
        Verdict::NotVip,
        Verdict::FirstDatagram,
        Verdict::Malformed,
    ];
    assert_eq!(verdicts(&mirrored), expected);
    let results: Vec<_> = mirrored.iter().map(|it| it.result).collect();
    assert_eq!(results[0], Some(CookieResult::Syn));
    assert_eq!(results[1], Some(CookieResult::SynAgain));
    assert_eq!(results[2..], [None; 4]);
    let vips: Vec<_> = mirrored.iter().map(|it| it.vip).collect();
    assert_eq!(vips, [Some(3), Some(3), None, None, Some(4), None]);
    for ((mirrored, frame), out) in mirrored.iter().zip(&frames).zip(&out) {
        assert_eq!(mirrored.before.len as usize, frame.len());
        assert_eq!(&mirrored.before.data, frame);
        assert!((began..monotonic_ns()).contains(&mirrored.t_ns));
        let sent = Verdict::ALL[usize::from(mirrored.verdict)].action() as u32 == 3;
        let after = mirrored.after.as_ref();
        assert_eq!(after.map(|after| &after.data), sent.then_some(out));
    }
    let counts = mirror.counts().expect("counts");
    assert_eq!((counts.seen, counts.matched, counts.exported), (6, 6, 6));
    drop(mirror);
    rig.send(&syn(4001));
    assert_eq!(rig.mirror_ctl(), MirrorCtl::default());
}

#[test]
fn it_takes_what_is_wanted() {
    let mut rig = rig();
    let mut taken = |options: MirrorOptions| {
        let mut mirror = rig.mirror(&options).expect("a mirror");
        let quoted = Ip::CLIENT.packet(
            VIP.parse().unwrap(),
            "198.51.100.7".parse().unwrap(),
            TCP,
            &[0, 80, 0x0f, 0xa0, 0, 0, 0, 0],
        );
        let error = icmp4("203.0.113.5", 3, [0; 4], &quoted);
        let other_port = Tuple::new("198.51.100.7", 4000, VIP, 81).tcp(Tcp::syn(1));
        for frame in [
            syn(4000),
            arriving(&error),
            arriving(&other_port),
            datagram6(&[]),
            datagram6(&[(0x8100, 5)]),
        ] {
            rig.send(&frame);
        }
        let ids: Vec<_> = mirror
            .take()
            .expect("packets")
            .iter()
            .map(|it| it.vip)
            .collect();
        ids
    };
    let vip = |address: &str, port, protocol| MirrorOptions {
        vip: Some(MirrorVip {
            address: address.parse().unwrap(),
            port,
            protocol,
        }),
        ..options()
    };
    assert_eq!(taken(options()).len(), 5);
    // ICMP to the address is the VIP's.
    assert_eq!(
        taken(vip(VIP, Some(80), Some(Protocol::Tcp))),
        [Some(3), None]
    );
    assert_eq!(taken(vip(VIP, Some(80), Some(Protocol::Udp))), [None]);
    assert_eq!(taken(vip(VIP, None, None)), [Some(3), None, None]);
    assert_eq!(taken(vip(VIP6, Some(53), None)), [Some(4), Some(4)]);
    let from = |net: &str, bits| MirrorOptions {
        client: Some((net.parse().unwrap(), bits)),
        ..options()
    };
    assert_eq!(taken(from("198.51.100.0", 24)), [Some(3), None]);
    assert_eq!(taken(from("203.0.113.5", 32)), [None]);
    assert_eq!(taken(from("2001:db8:c::", 48)), [Some(4), Some(4)]);
    assert_eq!(taken(from("0.0.0.0", 0)).len(), 3);
    let sorts = |wanted: &[Verdict]| MirrorOptions {
        verdicts: wanted.iter().map(|verdict| 1 << *verdict as u64).sum(),
        ..options()
    };
    assert_eq!(taken(sorts(&[Verdict::NotServed])), [None]);
    assert_eq!(taken(sorts(&[Verdict::NoReal])), []);
}

#[test]
fn it_takes_no_more_than_it_may() {
    let mut rig = rig();
    let mut mirror = rig
        .mirror(&MirrorOptions {
            rate_pps: 15,
            ..MirrorOptions::default()
        })
        .expect("a mirror");
    for port in 0..500 {
        rig.send(&syn(1024 + port));
    }
    let mirrored = mirror.take().expect("packets");
    let windows: HashSet<u64> = mirrored.iter().map(|it| it.t_ns >> 26).collect();
    assert_eq!(windows.len(), mirrored.len(), "one in 67 ms");
    let counts = mirror.counts().expect("counts");
    assert_eq!(counts.exported as usize, mirrored.len());
    assert_eq!(counts.exported + counts.over_rate, 500);
    drop(mirror);

    let small = MirrorOptions {
        buffer: 4096,
        ..options()
    };
    let mut mirror = rig.mirror(&small).expect("a mirror");
    for port in 0..100 {
        rig.send(&syn(1024 + port));
    }
    let mirrored = mirror.take().expect("packets");
    let counts = mirror.counts().expect("counts");
    assert!(counts.lost > 0, "4 KiB cannot hold a hundred packets");
    assert_eq!(counts.exported as usize, mirrored.len());
    assert_eq!(counts.exported + counts.lost, 100);
    drop(mirror);

    let one_in_ten = MirrorOptions {
        one_in: 10,
        ..options()
    };
    let mut mirror = rig.mirror(&one_in_ten).expect("a mirror");
    for port in 0..2000 {
        rig.send(&syn(1024 + port));
    }
    let taken = mirror.take().expect("packets").len();
    // 200 on the mean; a deviation of 13.
    assert!((100..300).contains(&taken), "{taken} of 2000");
}

#[test]
fn long_frames_are_cut() {
    let mut rig = rig();
    let payload = vec![0x5a; 1200];
    let tcp = Tcp {
        payload: &payload,
        ..Tcp::ack(1, 1)
    };
    let frame = arriving(&client(4000).tcp(tcp));
    for snap in [96, 256, 2048] {
        let mut mirror = rig
            .mirror(&MirrorOptions { snap, ..options() })
            .expect("a mirror");
        let (_, out) = rig.send(&frame);
        let mirrored = mirror.take().expect("packets");
        let (before, after) = (
            &mirrored[0].before,
            mirrored[0].after.as_ref().expect("sent"),
        );
        let cut = |frame: &[u8]| frame[..frame.len().min(snap.into())].to_vec();
        assert_eq!(
            (before.len as usize, &before.data),
            (frame.len(), &cut(&frame))
        );
        assert_eq!((after.len as usize, &after.data), (out.len(), &cut(&out)));
    }
    for snap in [95, 2049] {
        let refused = rig
            .mirror(&MirrorOptions { snap, ..options() })
            .unwrap_err();
        let said = format!("snaplen must be from 96 to 2048, not {snap}");
        assert_eq!(refused.to_string(), said);
    }
}

#[test]
fn one_looks_at_a_time_and_not_for_ever() {
    let mut rig = rig();
    let other = MirrorCtl {
        until_ns: monotonic_ns() + 60_000_000_000,
        owner: std::process::id() + 1,
        snap: 96,
        ..MirrorCtl::default()
    };
    rig.set_mirror_ctl(other);
    let refused = rig.mirror(&options()).unwrap_err();
    assert!(matches!(refused, DataPlaneError::MirrorBusy(owner) if owner == other.owner));
    // The program itself forgets a command that was killed.
    rig.set_mirror_ctl(MirrorCtl {
        until_ns: monotonic_ns() - 1,
        ..other
    });
    rig.send(&syn(4000));
    assert_eq!(rig.mirror_ctl().until_ns, 0);
    drop(rig.mirror(&options()).expect("a mirror"));
    // One that has slept too long finds that another looks, and leaves it alone.
    let mut slow = rig.mirror(&options()).expect("a mirror");
    rig.set_mirror_ctl(other);
    std::thread::sleep(std::time::Duration::from_millis(1_050));
    assert!(matches!(slow.take(), Err(DataPlaneError::MirrorBusy(_))));
    drop(slow);
    assert_eq!(rig.mirror_ctl(), other);
}

#[test]
fn a_servers_tunnels_are_seen_open() {
    let mut server = Server::new();
    let mut mirror = server.mirror(&options()).expect("a mirror");
    let inner = client(4000).tcp(Tcp::syn(1));
    let outer =
        |to: &str| Ip::OUTER.packet("10.9.0.1".parse().unwrap(), to.parse().unwrap(), 4, &inner);
    let out = server.send(&arriving(&outer("10.1.0.10")));
    server.send(&arriving(&outer("10.1.0.99")));
    server.send(&arriving(&inner));
    let mirrored = mirror.take().expect("packets");
    let seen: Vec<_> = mirrored
        .iter()
        .map(|it| {
            (
                it.verdict,
                it.after.as_ref().map(|after| after.data.clone()),
            )
        })
        .collect();
    let expected = [
        (ServerVerdict::Decapsulated as u8, Some(out)),
        (ServerVerdict::NotOurs as u8, None),
        (ServerVerdict::NotTunnel as u8, None),
    ];
    assert_eq!(seen, expected);
}
