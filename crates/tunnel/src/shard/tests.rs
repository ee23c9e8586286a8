// SPDX-License-Identifier: Apache-2.0
//! A thread against the kernel. Needs root; fails without.

use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use causeway_bifrost::{Limits, TransportConfig};
use causeway_netio::tunnel::{Device, DeviceOptions};

use super::*;

#[test]
fn a_device_that_is_deleted_while_no_path_is_alive_ends_the_thread() {
    let ended = thread::spawn(run_without_device).join().unwrap();
    let error = ended.expect_err("it went on until it was stopped");
    assert_eq!(error.to_string(), DEVICE_GONE);
}

/// In a namespace of the calling thread's own; stopped after a minute.
fn run_without_device() -> anyhow::Result<()> {
    // SAFETY: it takes one integer, and concerns this thread alone.
    let status = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(status, 0, "a network namespace");
    let options = DeviceOptions {
        name: "cw0".to_owned(),
        queues: 1,
        namespace: None,
        mtu: 1400,
        queue_packets: None,
        addresses: Vec::new(),
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
    let deleted = Command::new("ip").args(["link", "del", "cw0"]).status();
    assert!(deleted.unwrap().success());
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(60));
        ShardHandle { commands, waker }.send(ShardCommand::Stop);
    });
    shard.run()
}
