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
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use causeway_netio::Interface;
use libbpf_rs::Object;

use crate::cookie_hooks;
use crate::error::{DataPlaneError, Result};
use crate::pins::PinDir;
use crate::tc::{FrontHook, TcDirection};
use crate::xdp::Link;

/// Of filters: behind those that write cookies.
const PRIORITY: u32 = 43;

const HOOKS: [FrontHook; 2] = [
    FrontHook::new("causeway_syn_out", TcDirection::Out, PRIORITY),
    FrontHook::new("causeway_syn_in", TcDirection::In, PRIORITY),
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
    /// Attaches the programs of `object`, or puts them in the place of those that hang there. An
    /// interface that is not there is looked for again by [`SynHooks::mend`].
    pub(crate) fn attach(
        object: &Object,
        interfaces: &[(String, Option<Interface>)],
        pins: &PinDir,
    ) -> Result<Self> {
        let mut programs = Vec::new();
        for hook in &HOOKS {
            let program = cookie_hooks::program(object, hook.program)?;
            let owned = program.try_clone_to_owned();
            programs.push(owned.map_err(|e| DataPlaneError::bpf("hold a program", e))?);
        }
        let mut missing = BTreeSet::new();
        for (device, (_, interface)) in interfaces.iter().enumerate() {
            for (at, (hook, program)) in HOOKS.iter().zip(&programs).enumerate() {
                match interface {
                    Some(interface) => attach(hook, program.as_fd(), interface, pins)?,
                    None => {
                        missing.insert((device, at));
                    }
                }
            }
        }
        Ok(Self {
            programs,
            interfaces: interfaces.iter().map(|(name, _)| name.clone()).collect(),
            missing,
        })
    }

    /// How many have no program, as of the last look.
    pub(crate) fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Takes the programs off the interfaces of these numbers, and forgets the pins of links.
    pub(crate) fn detach(pins: &PinDir, ifindexes: &[u32]) -> Result<()> {
        for &ifindex in ifindexes {
            for hook in &HOOKS {
                hook.detach(ifindex, &pin(pins, hook, ifindex))?;
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

fn pin(pins: &PinDir, hook: &FrontHook, ifindex: u32) -> PathBuf {
    pins.pin(&format!("link_{}_{ifindex}", hook.program))
}

fn attach(
    hook: &FrontHook,
    program: BorrowedFd<'_>,
    interface: &Interface,
    pins: &PinDir,
) -> Result<()> {
    let pin = pin(pins, hook, interface.index);
    match hook.attach(program, interface, &pin)? {
        Some(link) if !pin.exists() => link.pin(&pin),
        _ => Ok(()),
    }
}

fn is_attached(hook: &FrontHook, interface: &Interface, pins: &PinDir) -> Result<bool> {
    let link = Link::open(&pin(pins, hook, interface.index))?;
    hook.is_on(link.as_ref(), interface)
}
