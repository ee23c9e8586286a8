// SPDX-License-Identifier: Apache-2.0
//! Bringing up a data plane, whichever program it runs: start, takeover, removal.
//!
//! # Takeover
//! The kernel keeps what is pinned: the maps, and the link that holds the program
//! on the interface. A process that ends, even by SIGKILL, takes nothing with it;
//! packets flow on. The next process to start with the same pin directory
//!
//! 1. locks the directory, so that there is one owner at a time;
//! 2. looks at the layout of the pins, and at types and sizes of each map;
//! 3. loads its own program against the pinned maps;
//! 4. replaces the program in the link, in one step of the kernel.
//!
//! Until step 4 the old program runs untouched, and an error leaves it running. No
//! packet meets an interface without a program, and the flow table, the counters
//! and the ids of VIPs and reals carry over.
//!
//! # Other layouts and sizes
//! Maps of another layout, or of another size, cannot be used as they are. The start makes its own
//! beside them, copies what there is ([`crate::carry`]), replaces the program and has its pins take
//! the place of the old ones. A start that is refused or killed before step 4 has changed nothing;
//! one that is killed behind it is ended by the next ([`crate::pins`]).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use causeway_netio::Interface;
use libbpf_rs::{
    AsRawLibbpf as _, MapCore as _, MapHandle, MapType, Object, OpenObject, OpenProgramMut,
    PrintLevel,
};
use tracing::{info, warn};

use crate::btf::Btf;
use crate::carry::{Carried, Plan, Wanted};
use crate::error::{DataPlaneError, Result};
use crate::map::{Shape, io_error};
use crate::pins::{Blueprint, Kind, LAYOUT, PinDir};
use crate::upkeep::{Repairs, Upkeep};
use crate::xdp::{self, Link};
use crate::xdp_mode::{AttachedMode, XdpMode};

/// What an interface has by default.
const ETHERNET_MTU: u32 = 1500;

/// What happened at a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// A data plane was running already and was taken over with its state.
    pub took_over: bool,
    /// How the program runs.
    pub mode: AttachedMode,
    /// What was there was of another layout, or of another size.
    pub carried_over: Option<CarriedOver>,
}

/// What came over from a data plane whose maps could not be used as they were.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedOver {
    /// Its layout; the own one if only sizes differ.
    pub layout: u32,
    /// What did not come over, and what that means for connections: a sentence each.
    pub losses: Vec<String>,
}

/// What a removal found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Detached {
    /// A program was taken off its interface.
    pub was_attached: bool,
    /// How many pins were removed.
    pub pins: usize,
}

impl Started {
    /// Logs how a data plane came up on `interface`, which `wanted` asked for.
    pub fn log(&self, interface: &str, wanted: XdpMode, summary: &str) {
        let what = match self.took_over {
            true => "took over the running data plane of",
            false => "attached to",
        };
        let from = match &self.carried_over {
            Some(of) if of.layout != LAYOUT => format!(", from layout {} to {LAYOUT}", of.layout),
            Some(_) => ", into tables of another size".to_owned(),
            None => String::new(),
        };
        info!("{what} {interface} in {} mode{from}: {summary}", self.mode);
        for loss in self.carried_over.iter().flat_map(|of| &of.losses) {
            warn!("{loss}");
        }
        if wanted == XdpMode::Auto && self.mode == AttachedMode::Generic {
            warn!(
                "the driver of {interface} has no native XDP: generic mode works, and costs more per packet"
            );
        }
    }
}

impl Detached {
    /// What the removal did, in one sentence.
    #[must_use]
    pub fn describe(&self, interface: &str, pin_dir: &Path) -> String {
        let pin_dir = pin_dir.display();
        match (self.was_attached, self.pins) {
            (true, pins) => {
                format!("unloaded from {interface}; {pins} pins removed from {pin_dir}")
            }
            (false, 0) => format!("nothing was attached: there are no pins in {pin_dir}"),
            (false, pins) => {
                format!("no program was attached; {pins} pins removed from {pin_dir}")
            }
        }
    }
}

/// A data plane that is being started: the directory is locked, nothing has
/// changed yet. Call `prepare` with the opened object, load it, then `attach`.
pub(crate) struct Startup {
    blueprint: Blueprint,
    interface: Interface,
    mode: XdpMode,
    pins: PinDir,
    running: Option<Running>,
    /// Whether the program is to take frames of several buffers.
    takes_long_frames: bool,
    /// What of the pinned maps is copied, if they cannot be used as they are.
    plan: Option<Plan>,
    furnished: Option<Furnished>,
}

/// The maps of a program that is loaded, and what is followed in the old ones.
struct Furnished {
    maps: BTreeMap<String, MapHandle>,
    carried: Option<Carried>,
}

/// A link that still holds a program on the interface.
#[derive(Debug)]
struct Running {
    link: Link,
    mode: AttachedMode,
}

/// A data plane that is loaded, pinned and attached.
#[derive(Debug)]
pub(crate) struct Plane {
    upkeep: Mutex<Upkeep>,
    /// All pinned maps by name.
    maps: BTreeMap<String, MapHandle>,
}

/// Whether frames of an interface may take several buffers, which programs have to say that they
/// take. They do so in the driver alone: generic XDP copies each packet for such a program, and
/// Linux forgets the length of the link header in the copy (`mac_len`), so that programs of
/// traffic control behind it find the packet elsewhere.
fn has_long_mtu(interface: &Interface) -> Result<bool> {
    let devices = causeway_netio::net_devices();
    let devices = devices.map_err(|e| DataPlaneError::bpf("read the interface's MTU", e))?;
    let own = devices.iter().find(|of| of.name == interface.name);
    Ok(own.is_some_and(|of| of.mtu > ETHERNET_MTU))
}

impl Startup {
    /// Looks around: rights, interface, pins, what runs there.
    pub(crate) fn begin(
        blueprint: Blueprint,
        interface: &str,
        pin_dir: &Path,
        mode: XdpMode,
    ) -> Result<Self> {
        check_kernel()?;
        let interface = Interface::find(interface)?;
        let mut pins = PinDir::open(pin_dir, blueprint.kind, Some(blueprint.link))?;
        pins.try_out();
        let running = find_running(blueprint, &interface, &pins, mode)?;
        let is_generic = mode == XdpMode::Generic
            || (running.as_ref()).is_some_and(|of| of.mode == AttachedMode::Generic);
        let takes_long_frames = !is_generic && has_long_mtu(&interface)?;
        Ok(Self {
            blueprint,
            interface,
            mode,
            pins,
            running,
            takes_long_frames,
            plan: None,
            furnished: None,
        })
    }

    /// Sets the sizes of maps, by name, and connects those that are pinned already and can be
    /// used on.
    pub(crate) fn prepare(&mut self, object: &mut OpenObject, sizes: &[(&str, u32)]) -> Result<()> {
        if self.takes_long_frames {
            let own = |program: &OpenProgramMut<'_>| program.name() == self.blueprint.program;
            for mut program in object.progs_mut().filter(own) {
                program.set_flags(libbpf_sys::BPF_F_XDP_HAS_FRAGS);
            }
        }
        let btf = Btf::of_object(object.as_libbpf_object());
        let mut wanted = Vec::new();
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if is_internal(&name) {
                continue;
            }
            if let Some((_, entries)) = sizes.iter().find(|(sized, _)| *sized == name) {
                map.set_max_entries(*entries)
                    .map_err(|e| DataPlaneError::map("set the size of", &name, io_error(&e)))?;
            }
            let types = btf.as_ref();
            wanted.push(Wanted {
                shape: Shape {
                    kind: map.map_type(),
                    key: map.key_size(),
                    value: map.value_size(),
                    entries: map.max_entries(),
                },
                types: types.and_then(|btf| btf.of_map(map.as_libbpf_object())),
                pinned: self.pins.current_map(&name)?,
                name,
            });
        }
        let fits = |of: &Wanted| {
            let pinned = of.pinned.as_ref();
            pinned.is_none_or(|map| Shape::of(map) == of.shape)
        };
        let is_fit = wanted.iter().all(fits);
        if self.pins.is_switched() && is_fit {
            for map in &mut wanted {
                let former = self.pins.next_pin(&map.name).exists();
                map.pinned = former
                    .then(|| self.pins.map(&map.name))
                    .transpose()?
                    .flatten();
            }
            // It has been at work: what cannot be read of its predecessor is missing already.
            self.plan = Some(Plan::behind(self.blueprint.rules, wanted).unwrap_or_default());
            return self.reuse(object, |_| true);
        }
        if self.pins.is_switched() {
            self.pins.commit()?;
        }
        if self.pins.former().is_some() || !is_fit {
            let same_layout = self.pins.former().is_none();
            let plan = Plan::new(self.blueprint.rules, wanted, same_layout);
            self.plan = Some(plan.map_err(|cause| DataPlaneError::Unreadable {
                pin_dir: self.pins.path().to_owned(),
                found: self.pins.former().unwrap_or(LAYOUT),
                ours: LAYOUT,
                cause,
            })?);
        }
        let plan = self.plan.as_ref();
        self.reuse(object, |name| plan.is_none_or(|plan| plan.keeps(name)))
    }

    /// Connects the maps that are pinned already and used on.
    fn reuse(&self, object: &mut OpenObject, is_used_on: impl Fn(&str) -> bool) -> Result<()> {
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if is_internal(&name) || !is_used_on(&name) {
                continue;
            }
            if let Some(pinned) = self.pins.current_map(&name)? {
                map.reuse_fd(pinned.as_fd())
                    .map_err(|e| DataPlaneError::map("reuse the pin of", &name, io_error(&e)))?;
            }
        }
        Ok(())
    }

    pub(crate) fn interface_and_pins(&self) -> (&Interface, &PinDir) {
        (&self.interface, &self.pins)
    }

    /// Pins the maps of the loaded object, and puts its program on the interface or in the place of
    /// the running one.
    pub(crate) fn attach(mut self, object: &Object) -> Result<(Plane, Started)> {
        self.furnish(object)?;
        let program = self.program(object)?;
        let (link, started, maps) = match self.furnished.take() {
            Some(Furnished {
                maps,
                carried: Some(mut carried),
            }) => {
                let layout = self.pins.former().unwrap_or(LAYOUT);
                // What a killed start began is ended first: its program is the one that is pinned.
                let (link, mut started) = if self.pins.is_switched() {
                    carried.during(|| Ok(()))?;
                    self.pins.commit()?;
                    self.put(program)?
                } else {
                    let put = carried.during(|| self.put(program))?;
                    self.pins.commit()?;
                    put
                };
                started.carried_over = Some(CarriedOver {
                    layout,
                    losses: carried.losses,
                });
                (link, started, maps)
            }
            furnished => {
                let (link, started) = self.put(program)?;
                (
                    link,
                    started,
                    furnished.map_or_else(BTreeMap::new, |of| of.maps),
                )
            }
        };
        self.pins.keep_only(|name| maps.contains_key(name))?;
        self.pins.keep();
        let upkeep = Upkeep::new(
            self.blueprint,
            &self.interface,
            self.mode,
            self.pins,
            link,
            program,
            &maps,
        )?;
        let plane = Plane {
            upkeep: Mutex::new(upkeep),
            maps,
        };
        Ok((plane, started))
    }

    fn program<'a>(&self, object: &'a Object) -> Result<BorrowedFd<'a>> {
        crate::cookie_hooks::program(object, self.blueprint.program)
    }

    fn put(&self, program: BorrowedFd<'_>) -> Result<(Link, Started)> {
        if let Some(Running { link, mode }) = &self.running {
            // First what may fail: behind the switch there is no way back.
            let ours = link.try_clone()?;
            link.replace(program)?;
            let started = Started {
                took_over: true,
                mode: *mode,
                carried_over: None,
            };
            return Ok((ours, started));
        }
        let mode = match self.mode {
            // In generic mode it would have to be another program.
            XdpMode::Auto
                if self.blueprint.kind == Kind::Decapsulator && self.takes_long_frames =>
            {
                XdpMode::Native
            }
            mode => mode,
        };
        let (link, mode) = Link::attach(program, &self.interface, mode)?;
        link.pin(&self.pins.pin(self.blueprint.link))?;
        let started = Started {
            took_over: false,
            mode,
            carried_over: None,
        };
        Ok((link, started))
    }

    /// Pins the maps of the loaded object that are not pinned yet, and copies what comes from
    /// others. What is at work goes on as it was.
    pub(crate) fn furnish(&mut self, object: &Object) -> Result<()> {
        if self.furnished.is_some() {
            return Ok(());
        }
        if self.plan.is_some() && !self.pins.is_switched() {
            self.pins
                .stage(self.blueprint.kind, self.program(object)?)?;
        }
        let mut maps = BTreeMap::new();
        for map in object.maps() {
            let name = map.name().to_string_lossy().into_owned();
            if is_internal(&name) {
                continue;
            }
            let mut handle = MapHandle::try_from(&map)
                .map_err(|e| DataPlaneError::map("open", &name, io_error(&e)))?;
            let pin = match &self.plan {
                Some(plan) if !self.pins.is_switched() && !plan.keeps(&name) => {
                    self.pins.next_pin(&name)
                }
                _ => self.pins.current_pin(&name),
            };
            if !pin.exists() {
                handle
                    .pin(&pin)
                    .map_err(|e| DataPlaneError::map("pin", &name, io_error(&e)))?;
            }
            maps.insert(name, handle);
        }
        let plan = self.plan.take();
        let carried = plan.map(|plan| plan.carry_out(self.blueprint.rules, &maps));
        self.furnished = Some(Furnished {
            carried: carried.transpose()?,
            maps,
        });
        Ok(())
    }
}

impl Plane {
    /// Looks whether the program is on its interface and everything is pinned, and puts right
    /// what can be.
    pub(crate) fn mend(&self) -> Result<Repairs> {
        self.upkeep().mend()
    }

    /// Whether the program is on an interface.
    pub(crate) fn is_attached(&self) -> Result<bool> {
        self.upkeep().is_attached()
    }

    /// Id of the link that holds the program.
    pub(crate) fn link_id(&self) -> Result<u32> {
        Ok(self.upkeep().link.info()?.id)
    }

    /// It is right after every step, so that a panic elsewhere does not spoil it.
    fn upkeep(&self) -> MutexGuard<'_, Upkeep> {
        self.upkeep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the map called `name` out, to be wrapped in its types.
    pub(crate) fn take_map(&mut self, name: &str) -> Result<MapHandle> {
        self.maps.remove(name).ok_or_else(|| {
            let missing = io::Error::from(io::ErrorKind::NotFound);
            DataPlaneError::map("find", name, missing)
        })
    }
}

/// Takes down whatever data plane is pinned in `pin_dir`. It is not an error if nothing is there.
/// The link goes first, so that no program runs with half its maps.
pub(crate) fn detach(pin_dir: &Path, link: &str) -> Result<Detached> {
    detach_with(pin_dir, link, |_, _| Ok(()))
}

/// The same for a data plane with more programs than that of the link: `others` takes
/// them off the interface with this number, which is 0 if it is gone.
pub(crate) fn detach_with(
    pin_dir: &Path,
    link: &str,
    others: impl FnOnce(&PinDir, u32) -> Result<()>,
) -> Result<Detached> {
    check_kernel()?;
    let Some(pins) = PinDir::open_existing(pin_dir)? else {
        return Ok(Detached::default());
    };
    pins.condemn()?;
    let mut was_attached = false;
    if let Some(link) = Link::open(&pins.pin(link))? {
        let ifindex = link.info()?.ifindex;
        was_attached = ifindex != 0;
        others(&pins, ifindex)?;
        link.detach()?;
    }
    Ok(Detached {
        was_attached,
        pins: pins.remove()?,
    })
}

/// The running program of these pins, if it is on `interface`.
fn find_running(
    blueprint: Blueprint,
    interface: &Interface,
    pins: &PinDir,
    wanted: XdpMode,
) -> Result<Option<Running>> {
    let pin = pins.pin(blueprint.link);
    let occupant = xdp::occupant(interface)?;
    let Some(link) = Link::open(&pin)? else {
        return occupant.map_or(Ok(None), |o| Err(xdp::foreign(interface, o)));
    };
    let info = link.info()?;
    if info.ifindex == 0 {
        // The interface it was on is gone: a veth deleted, a module reloaded. The
        // maps still hold good; the link never will.
        pins.forget(blueprint.link)?;
        return occupant.map_or(Ok(None), |o| Err(xdp::foreign(interface, o)));
    }
    if info.ifindex != interface.index {
        let name = xdp::name_of(info.ifindex);
        return Err(DataPlaneError::OtherInterface {
            pin_dir: pins.path().to_owned(),
            pinned: name.unwrap_or_else(|| format!("interface number {}", info.ifindex)),
            wanted: interface.name.clone(),
        });
    }
    let mode = match occupant {
        Some(occupant) if occupant.program == info.program => occupant.mode,
        // Same number in another network namespace, or gone this very moment.
        Some(other) => return Err(xdp::foreign(interface, other)),
        None => {
            return Err(DataPlaneError::OtherInterface {
                pin_dir: pins.path().to_owned(),
                pinned: format!(
                    "interface number {} of another network namespace",
                    info.ifindex
                ),
                wanted: interface.name.clone(),
            });
        }
    };
    let fits = match wanted {
        XdpMode::Auto => true,
        XdpMode::Native => mode == AttachedMode::Native,
        XdpMode::Generic => mode == AttachedMode::Generic,
    };
    if !fits {
        return Err(DataPlaneError::OtherMode {
            interface: interface.name.clone(),
            running: mode,
        });
    }
    Ok(Some(Running { link, mode }))
}

/// Maps that the compiler makes of variables (`.rodata`, `.bss`) belong to one
/// load of the program and are not pinned.
pub(crate) fn is_internal(name: &str) -> bool {
    name.contains('.')
}

/// What every user of the kernel's BPF needs first: libbpf's messages in the log,
/// and the right to load programs.
pub(crate) fn check_kernel() -> Result<()> {
    libbpf_to_tracing();
    check_rights()
}

/// Checks for the capabilities that loading and attaching need, and for BPF itself,
/// before anything fails half-way with a bare EPERM.
fn check_rights() -> Result<()> {
    const NET_ADMIN: u64 = 1 << 12;
    const SYS_ADMIN: u64 = 1 << 21;
    const PERFMON: u64 = 1 << 38;
    const BPF: u64 = 1 << 39;
    let held = effective_capabilities().unwrap_or(u64::MAX);
    let has = |needed: u64| held & needed == needed;
    if !has(NET_ADMIN) || !(has(SYS_ADMIN) || has(BPF | PERFMON)) {
        return Err(DataPlaneError::NotPermitted);
    }
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let probe = MapHandle::create(MapType::Array, Some("cw_probe"), 4, 4, 1, &opts);
    match probe {
        Ok(_) => Ok(()),
        // A container's seccomp filter, or root without the capability it seems to have.
        Err(e) if e.kind() == libbpf_rs::ErrorKind::PermissionDenied => {
            Err(DataPlaneError::NotPermitted)
        }
        Err(e) if e.kind() == libbpf_rs::ErrorKind::Unsupported => Err(DataPlaneError::NoBpf),
        Err(e) => Err(DataPlaneError::bpf("create a BPF map", io_error(&e))),
    }
}

/// The calling thread's effective capabilities; `None` if procfs does not say.
fn effective_capabilities() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// libbpf prints to standard error by default.
fn libbpf_to_tracing() {
    fn print(level: PrintLevel, text: String) {
        let text = text.trim_end();
        match level {
            PrintLevel::Warn => tracing::debug!(target: "libbpf", "{text}"),
            PrintLevel::Info | PrintLevel::Debug => tracing::trace!(target: "libbpf", "{text}"),
        }
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Debug, print)));
    });
}
