// SPDX-License-Identifier: Apache-2.0
//! Daisy chaining between servers, for comparison in the lab; see `bpf/daisy_chain.bpf.c`.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, OpenObject, TC_INGRESS, TcHook, TcHookBuilder};

use crate::skel::daisy_chain::{DaisyChainSkel, DaisyChainSkelBuilder};

/// Handle and priority of the filter: behind whatever an agent may attach.
const FILTER: u32 = 40_000;

/// The program with its tables, shared by all servers it is attached to.
pub struct DaisyChain {
    skel: DaisyChainSkel<'static>,
    buckets: u32,
}

/// A family's part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl DaisyChain {
    /// Loads the program. `hash_key` and `buckets` are the key and the size of the
    /// balancer's rings, `port` that of the service, `hops` the servers' MAC
    /// addresses: tables name servers by their index in it.
    pub fn new(hash_key: [u64; 2], buckets: u32, port: u16, hops: &[[u8; 6]]) -> Result<Self> {
        const WHAT: &str = "cannot load daisy chaining";
        // The object borrows it for as long as the process lives: one a run.
        let storage: &'static mut MaybeUninit<OpenObject> =
            Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = DaisyChainSkelBuilder::default()
            .open(storage)
            .context(WHAT)?;
        if let Some(settings) = open.maps.rodata_data.as_deref_mut() {
            settings.cfg_hash_key = hash_key;
            settings.cfg_buckets = buckets;
            settings.cfg_port_be = port.to_be();
        }
        open.maps
            .previous
            .set_max_entries(2 * buckets)
            .context(WHAT)?;
        let skel = open.load().context(WHAT)?;
        for (index, mac) in (0_u32..).zip(hops) {
            let [a, b, c, d, e, f] = *mac;
            skel.maps
                .hops
                .update(
                    &index.to_ne_bytes(),
                    &[a, b, c, d, e, f, 0, 0],
                    MapFlags::ANY,
                )
                .context("cannot write hops")?;
        }
        Ok(Self { skel, buckets })
    }

    /// The program, to be attached in a server's network namespace by [`attach`].
    pub fn program(&self) -> Result<OwnedFd> {
        let program = self.skel.progs.causeway_daisy.as_fd();
        program
            .try_clone_to_owned()
            .context("cannot copy the program's descriptor")
    }

    /// Sets which server had each bucket before; as long as the balancer's ring.
    pub fn set_previous(&self, family: Family, servers: &[u32]) -> Result<()> {
        let base = match family {
            Family::V4 => 0,
            Family::V6 => self.buckets,
        };
        for (bucket, server) in (base..base + self.buckets).zip(servers) {
            self.skel
                .maps
                .previous
                .update(&bucket.to_ne_bytes(), &server.to_ne_bytes(), MapFlags::ANY)
                .context("cannot write previous")?;
        }
        Ok(())
    }

    /// Packets that servers have passed on.
    pub fn chained(&self) -> Result<u64> {
        let value = self
            .skel
            .maps
            .chained
            .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .context("cannot read chained")?;
        let bytes = value.and_then(|bytes| bytes.try_into().ok());
        Ok(bytes.map_or(0, u64::from_ne_bytes))
    }
}

/// Puts the program on an interface of the calling thread's network namespace; it
/// stays until [`detach`].
pub fn attach(program: BorrowedFd<'_>, interface: &str) -> Result<()> {
    const WHAT: &str = "cannot attach the daisy chain";
    let mut hook = hook(program, interface)?;
    match hook.create() {
        Err(e) if e.kind() != libbpf_rs::ErrorKind::AlreadyExists => return Err(e).context(WHAT),
        _ => {}
    }
    hook.attach().map(drop).context(WHAT)
}

/// Takes the program off again.
pub fn detach(program: BorrowedFd<'_>, interface: &str) -> Result<()> {
    const WHAT: &str = "cannot detach the daisy chain";
    hook(program, interface)?.detach().context(WHAT)
}

fn hook(program: BorrowedFd<'_>, interface: &str) -> Result<TcHook> {
    let index = nix::net::if_::if_nametoindex(interface).context("cannot find the interface")?;
    let mut builder = TcHookBuilder::new(program);
    builder
        .ifindex(index as i32)
        .replace(true)
        .handle(FILTER)
        .priority(FILTER);
    Ok(builder.hook(TC_INGRESS))
}
