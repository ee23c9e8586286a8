// SPDX-License-Identifier: Apache-2.0
//! Where the programs hang that count SYNs: on both traffic control hooks of each interface.
//!
//! By links where the kernel has them (tcx, Linux 6.6), in front of the programs that are
//! there: one that ends with a verdict, as Cilium's do, hides the packet from those behind
//! it. The links are pinned, so that counting goes on while no agent runs, and
//! `tc qdisc del` does not reach them. Else by filters of the `clsact` queueing discipline.
//!
//! A hook is lost when its interface is recreated or when the program is detached by hand.
//! Nothing else depends on it and it changes no packet, so that it is put back.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use causeway_netio::Interface;
use libbpf_rs::Object;

use crate::cookie_hooks::{self, SYN_PRIORITY};
use crate::error::{DataPlaneError, Result};
use crate::pins::PinDir;
use crate::xdp::Link;

/// A hook with its program: how links call it, and how filters do.
struct Hook {
    program: &'static str,
    link: libbpf_sys::bpf_attach_type,
    filter: libbpf_sys::bpf_tc_attach_point,
}

const HOOKS: [Hook; 2] = [
    Hook {
        program: "causeway_syn_out",
        link: libbpf_sys::BPF_TCX_EGRESS,
        filter: libbpf_sys::BPF_TC_EGRESS,
    },
    Hook {
        program: "causeway_syn_in",
        link: libbpf_sys::BPF_TCX_INGRESS,
        filter: libbpf_sys::BPF_TC_INGRESS,
    },
];

/// The programs on their hooks. They stay when this is dropped.
#[derive(Debug)]
pub(crate) struct SynHooks {
    programs: Vec<OwnedFd>,
    interfaces: Vec<String>,
    missing: BTreeSet<(usize, usize)>,
}

/// What a look at the hooks found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HookChanges {
    /// Hooks that had lost their program since the last look: interface and program.
    pub lost: Vec<String>,
    /// How many have none now.
    pub missing: usize,
    /// Interfaces that have another number now: which one of the options', and the number.
    pub moved: Vec<(u32, u32)>,
}

impl SynHooks {
    /// Attaches the programs of `object`, or puts them in the place of those that hang there.
    pub(crate) fn attach(object: &Object, interfaces: &[Interface], pins: &PinDir) -> Result<Self> {
        let mut programs = Vec::new();
        for hook in &HOOKS {
            let program = cookie_hooks::program(object, hook.program)?;
            let owned = program.try_clone_to_owned();
            programs.push(owned.map_err(|e| DataPlaneError::bpf("hold a program", e))?);
        }
        for interface in interfaces {
            for (hook, program) in HOOKS.iter().zip(&programs) {
                attach(hook, program.as_fd(), interface, pins)?;
            }
        }
        Ok(Self {
            programs,
            interfaces: interfaces.iter().map(|of| of.name.clone()).collect(),
            missing: BTreeSet::new(),
        })
    }

    /// Takes the programs off the interfaces of these numbers, and forgets the pins of links.
    pub(crate) fn detach(pins: &PinDir, ifindexes: &[u32]) -> Result<()> {
        for &ifindex in ifindexes {
            for hook in &HOOKS {
                match Link::open(&pin(pins, hook, ifindex))? {
                    Some(link) => {
                        link.detach()?;
                        forget(&pin(pins, hook, ifindex))?;
                    }
                    None => cookie_hooks::detach_filter(ifindex, hook.filter, SYN_PRIORITY)?,
                }
            }
        }
        Ok(())
    }

    /// Looks whether every hook has its program, and puts back those that have not. An
    /// interface that is gone is looked for again the next time.
    pub(crate) fn mend(&mut self, pins: &PinDir) -> Result<HookChanges> {
        let mut changes = HookChanges::default();
        for (device, name) in self.interfaces.iter().enumerate() {
            let found = Interface::find(name).ok();
            let mut moved = false;
            for (at, hook) in HOOKS.iter().enumerate() {
                let held = match &found {
                    Some(interface) => is_attached(hook, interface, pins)?,
                    None => false,
                };
                if held {
                    self.missing.remove(&(device, at));
                    continue;
                }
                if self.missing.insert((device, at)) {
                    changes.lost.push(format!("{} on {name}", hook.program));
                }
                if let Some(interface) = &found {
                    attach(hook, self.programs[at].as_fd(), interface, pins)?;
                    self.missing.remove(&(device, at));
                    moved = true;
                }
            }
            if let Some(interface) = found.filter(|_| moved) {
                changes.moved.push((device as u32, interface.index));
            }
        }
        changes.missing = self.missing.len();
        Ok(changes)
    }
}

fn pin(pins: &PinDir, hook: &Hook, ifindex: u32) -> PathBuf {
    pins.pin(&format!("link_{}_{ifindex}", hook.program))
}

fn forget(pin: &PathBuf) -> Result<()> {
    fs::remove_file(pin).map_err(|cause| DataPlaneError::PinDir {
        doing: "remove",
        path: pin.clone(),
        cause,
    })
}

fn attach(
    hook: &Hook,
    program: BorrowedFd<'_>,
    interface: &Interface,
    pins: &PinDir,
) -> Result<()> {
    let pin = pin(pins, hook, interface.index);
    if let Some(link) = Link::open(&pin)? {
        if link.tcx_ifindex()? == Some(interface.index) {
            return link.replace(program);
        }
        drop(link);
        forget(&pin)?;
    }
    let target = interface.index as i32;
    match Link::create(program, target, hook.link, libbpf_sys::BPF_F_BEFORE) {
        Ok(link) => link.pin(&pin),
        // A kernel before 6.6 knows no such attachment.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            cookie_hooks::attach_filter(program, interface, hook.filter, SYN_PRIORITY)
        }
        Err(e) => {
            let doing = format!("attach to the traffic control hooks of {}", interface.name);
            Err(DataPlaneError::bpf(doing, e))
        }
    }
}

fn is_attached(hook: &Hook, interface: &Interface, pins: &PinDir) -> Result<bool> {
    match Link::open(&pin(pins, hook, interface.index))? {
        Some(link) => Ok(link.tcx_ifindex()? == Some(interface.index)),
        None => cookie_hooks::has_filter(interface.index, hook.filter, SYN_PRIORITY),
    }
}
