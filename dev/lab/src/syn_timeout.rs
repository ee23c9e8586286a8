// SPDX-License-Identifier: Apache-2.0
//! Clients whose SYNs come again sooner than the kernel's: a short run then sees as many
//! retries as a long one.
//!
//! The first timeout is a second in every Linux (RFC 6298), and no setting changes it. A
//! sockops program may (`BPF_SOCK_OPS_TIMEOUT_INIT`). It is attached to the root of the control
//! groups, as the lab's threads are in none of their own, and goes by the network
//! namespace: of every other connection on the machine it asks nothing more.

use std::fs::File;
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use causeway_dataplane::{netns_cookie, root_cgroup};
use libbpf_sys as bpf;

use crate::link::own;
use crate::netns::Netns;

/// What Linux takes for a first timeout.
const USUAL: Duration = Duration::from_secs(1);

const TIMEOUT_INIT: u32 = bpf::BPF_SOCK_OPS_TIMEOUT_INIT;

/// As long as it lives, connections of a namespace have this first timeout.
#[derive(Debug)]
pub struct SynTimeout {
    _link: OwnedFd,
}

impl SynTimeout {
    /// Divides the first timeout of `netns` by `scale`.
    pub fn divide(netns: &Netns, scale: u32) -> Result<Self> {
        let jiffies = USUAL.as_nanos() / u128::from(scale) / tick()?.as_nanos();
        ensure!(jiffies > 0, "a timeout is one tick of the kernel at least");
        let cookie = netns.run(|| Ok(netns_cookie()?))?;
        let program = load(cookie, jiffies as u32).context("loading the timeout's program")?;
        let root = root_cgroup().context("this machine has no control groups of version 2")?;
        let root = File::open(&root).with_context(|| format!("opening {}", root.display()))?;
        let hook = bpf::BPF_CGROUP_SOCK_OPS;
        // SAFETY: valid descriptors; no options.
        let fd = unsafe {
            bpf::bpf_link_create(
                program.as_raw_fd(),
                root.as_raw_fd(),
                hook,
                std::ptr::null(),
            )
        };
        let link = own(fd).context("attaching the timeout's program")?;
        Ok(Self { _link: link })
    }
}

/// The kernel's tick: the resolution of its coarse clock.
fn tick() -> Result<Duration> {
    // SAFETY: plain data, which the call fills.
    let mut resolution: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: a live timespec.
    let ret = unsafe { libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, &mut resolution) };
    ensure!(ret == 0, std::io::Error::last_os_error());
    Ok(Duration::new(
        resolution.tv_sec as u64,
        resolution.tv_nsec as u32,
    ))
}

/// `if netns_cookie == cookie && ops.op == TIMEOUT_INIT { ops.reply = jiffies }`, as
/// bytecode; `reply` is the kernel's default, 0, unless a program sets it.
fn load(cookie: u64, jiffies: u32) -> std::io::Result<OwnedFd> {
    let code: [u64; 11] = [
        0x0000_0000_0000_16bf,                                 // r6 = r1
        0x0000_007a_0000_0085,                                 // r0 = bpf_get_netns_cookie(r1)
        (cookie & 0xffff_ffff) << 32 | 0x0118,                 // r1 = cookie,
        cookie >> 32 << 32,                                    // all 64 bits of it
        0x0000_0000_0004_105d,                                 // if r0 != r1 goto out
        0x0000_0000_0000_6261,                                 // r2 = *(u32 *)(r6 + 0), the op
        0x0000_0000_0002_0255 | u64::from(TIMEOUT_INIT) << 32, // if r2 != TIMEOUT_INIT goto out
        u64::from(jiffies) << 32 | 0x03b7,                     // r3 = jiffies
        0x0000_0000_0004_3663,                                 // *(u32 *)(r6 + 4) = r3, the reply
        0x0000_0001_0000_00b7,                                 // out: r0 = 1
        0x95,
    ];
    // SAFETY: the arrays and strings outlive the call; no options. An instruction is
    // eight bytes, of which the words above have every one.
    let fd = unsafe {
        bpf::bpf_prog_load(
            bpf::BPF_PROG_TYPE_SOCK_OPS,
            c"lab_syn_timeout".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            code.as_ptr().cast(),
            code.len() as _,
            std::ptr::null_mut(),
        )
    };
    own(fd)
}
