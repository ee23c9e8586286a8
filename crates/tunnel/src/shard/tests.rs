// SPDX-License-Identifier: Apache-2.0
//! A thread against the kernel (needs root, fails without), and what it does with datagrams.

use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use causeway_bifrost::wire::{CommonHeader, PacketKind};
use causeway_bifrost::{DropReason, Limits, Transmit, TransportConfig, VNET_HEADER_LEN};
use causeway_netio::tunnel::{Device, DeviceOptions};

use super::super::pair::{engines_with_mtu, peer};
use super::*;

#[test]
fn a_device_that_is_deleted_while_no_path_is_alive_ends_the_thread() {
    let ended = thread::spawn(run_without_device).join().unwrap();
    let error = ended.expect_err("it went on until it was stopped");
    assert_eq!(error.to_string(), DEVICE_GONE);
}

/// In a namespace of the calling thread's own; stopped after a minute.
fn run_without_device() -> anyhow::Result<()> {
    let (shard, handle) = shard_in_a_namespace();
    let deleted = Command::new("ip").args(["link", "del", "cw0"]).status();
    assert!(deleted.unwrap().success());
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(60));
        handle.send(ShardCommand::Stop);
    });
    shard.run()
}

#[test]
fn what_guests_send_is_dropped_and_counted_while_there_is_no_path() {
    thread::spawn(drop_without_a_path).join().unwrap();
}

fn drop_without_a_path() {
    let (shard, handle) = shard_in_a_namespace();
    let guest = std::net::UdpSocket::bind("10.5.0.1:0").unwrap();
    let running = thread::spawn(|| shard.run());
    let dropped = || {
        let (reply, report) = mpsc::channel();
        handle.send(ShardCommand::Report(reply));
        let report = report.recv().unwrap();
        report.tunnel.drops(DropReason::NoPeer)
    };
    // More than the device holds: each comes out of it.
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while dropped() < 1000 {
        guest.send_to(b"number", "10.5.0.2:9").unwrap();
        assert!(std::time::Instant::now() < until, "{} dropped", dropped());
    }
    handle.send(ShardCommand::Stop);
    running.join().unwrap().unwrap();
}

/// A thread without paths. Its device is in a namespace of the calling thread's own.
fn shard_in_a_namespace() -> (Shard, ShardHandle) {
    // SAFETY: it takes one integer, and concerns this thread alone.
    let status = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(status, 0, "a network namespace");
    let options = DeviceOptions {
        name: "cw0".to_owned(),
        queues: 1,
        namespace: None,
        mtu: 1400,
        queue_packets: None,
        addresses: vec![([10, 5, 0, 1].into(), 24)],
        persist: false,
        super_packets: true,
    };
    let mut device = Device::open(&options).unwrap();
    let waiter = Waiter::new().unwrap();
    let (commands, inbox) = mpsc::channel();
    let waker = waiter.waker();
    let shard = Shard {
        number: 0,
        engine: TransportEngine::new(TransportConfig::default(), 1).unwrap(),
        tun: device.queues.remove(0),
        paths: BTreeMap::new(),
        memory: Memory::new(&Limits::default(), 1472),
        vnic: Vnic::new(1),
        poll: PollMode::Sleep,
        waiter,
        inbox,
    };
    (shard, ShardHandle { commands, waker })
}

/// What an end has to send. The packets of its frames are empty.
fn sent(end: &mut TransportEngine, now_ns: u64) -> Vec<Vec<u8>> {
    end.handle_timeout(now_ns);
    let (mut batch, mut out) = (Transmit::default(), Vec::new());
    while end.poll_transmit(now_ns, &mut batch) {
        let mut headers = &batch.headers[..];
        for segment in &batch.datagrams {
            let (header, rest) = headers.split_at(segment.header_len.into());
            headers = rest;
            let mut datagram = header.to_vec();
            datagram.resize(header.len() + segment.payload.len as usize, 0);
            if segment.payload.len > 0 {
                let packet = &mut datagram[header.len() + VNET_HEADER_LEN..];
                (packet[0], packet[3]) = (0x45, 20);
            }
            out.push(datagram);
        }
    }
    out
}

#[test]
fn what_waits_leaves_buffers_for_what_it_waits_for() {
    const FRAMES: u32 = 35;
    let [mut a, mut b] = engines_with_mtu(1, 9000);
    // As for paths of which one has become wider since.
    let mut memory = Memory::new(&Limits::default(), 1472);
    let mut now_ns = 0;
    let mut carry = |ends: [&mut TransportEngine; 2], memory: &mut Memory, loses_first: bool| {
        let [a, b] = ends;
        now_ns += 100_000;
        let mut datagrams = sent(a, now_ns);
        if loses_first {
            let is_data = |one: &Vec<u8>| {
                CommonHeader::parse(one).is_ok_and(|header| header.kind == PacketKind::Data)
            };
            let first = datagrams.iter().position(is_data).unwrap();
            datagrams.remove(first);
        }
        let mut delivered = 0;
        for datagram in datagrams {
            let slab = memory.slab(SlabKind::Datagrams);
            let buffer = slab.take().expect("a buffer to receive into");
            let length = datagram.len();
            slab.bytes_mut(buffer)[..length].copy_from_slice(&datagram);
            let message = ReceivedMessage {
                buffer,
                length,
                segment: length,
            };
            take_copies(b, memory, now_ns, (PathId(0), peer()), message);
            memory.slab(SlabKind::Datagrams).release(buffer, 1);
            while let Some(delivery) = b.poll_deliver() {
                memory.release_all(delivery.spans);
                delivered += 1;
            }
        }
        for mut answer in sent(b, now_ns) {
            let taken = a.handle_datagram(now_ns, PathId(0), peer(), &mut answer, Span::default());
            assert!(!matches!(taken, Ok(bifrost::SlotReference::Taken)));
        }
        delivered
    };
    for _ in 0..4 {
        carry([&mut a, &mut b], &mut memory, false);
    }
    while !memory.is_short_of_large() {
        memory.slab(SlabKind::Datagrams).take().unwrap();
    }
    let available = memory.slab(SlabKind::Datagrams).available();
    assert!(available < FRAMES as usize);
    for slot in 0..FRAMES {
        let frame = Span {
            slot,
            offset: 0,
            len: 8000,
        };
        a.handle_frame(4 * 100_000, frame, 7).unwrap();
    }
    let mut delivered = carry([&mut a, &mut b], &mut memory, true);
    assert_eq!(delivered, 0);
    assert_eq!(
        b.metrics().drops(DropReason::MemoryCap),
        u64::from(FRAMES) - 1
    );
    for _ in 0..1000 {
        delivered += carry([&mut a, &mut b], &mut memory, false);
    }
    assert_eq!(delivered, FRAMES);
    assert_eq!(memory.slab(SlabKind::Datagrams).available(), available);
}
