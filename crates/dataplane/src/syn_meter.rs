// SPDX-License-Identifier: Apache-2.0
//! SYN accounting on a server (`bpf/syn.bpf.c`): what clients tried, what was answered,
//! what was completed, counted in the kernel by slots of time.
//!
//! Maps and hooks are pinned, so that counting goes on without a reader: one that comes
//! back within the ring's length has lost nothing. A start with other settings, or of a
//! build with other structs, drops what was counted and begins again; nothing but
//! measurement depends on it.

use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use causeway_netio::Interface;
use libbpf_rs::skel::{OpenSkel as _, Skel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, OpenObject};

use crate::abi::{
    FlowKey6, SynAttempt, SynEntry, SynOrigin, SynPrefix, SynResponses, SynRetryTime, SynSlot,
    SynSlotLocked, VipKey, addr_bytes, c,
};
use crate::cookie_hooks;
use crate::error::{DataPlaneError, Result};
use crate::map::{PerCpu, Table, errno, io_error};
use crate::pins::{Kind, PinDir};
use crate::plane::{self, Detached};
use crate::skel::syn::{SynSkel, SynSkelBuilder};
use crate::syn_hooks::{HookChanges, SynHooks};

/// Pin of the number that stands for the settings.
const SETTINGS_PIN: &str = "settings";
/// Another number where fields of slots and entries come to mean something else.
const COUNTS: u32 = 4;
/// Upper bounds of the buckets of response times but for the last, microseconds: those of
/// `SYN_BUCKET_BOUNDS_US` in `bpf/shared/syn_abi.h`.
pub const RESPONSE_BOUNDS_US: [u64; 15] = [
    500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000,
];
/// Bytes of a table's entry beyond key and value, as the kernel allots them.
const HASH_OVERHEAD: u64 = 48;

/// How to count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SynMeterOptions {
    /// Interfaces where clients' packets come and go; decapsulated or plain.
    pub interfaces: Vec<String>,
    /// Where maps are pinned: a directory of its own in a BPF file system.
    pub pin_dir: PathBuf,
    /// Length of a slot, nanoseconds.
    pub slot_ns: u64,
    /// Slots that are kept for each category; a power of two.
    pub ring: u32,
    /// Room for attempts that are not connected.
    pub half_open: u32,
    /// Room for connections.
    pub connections: u32,
    /// Services by address (`None`: any) and port (0: any).
    pub services: Vec<(Option<IpAddr>, u16)>,
    /// Whether all other services are counted too, together.
    pub others: bool,
    /// Client prefixes; clients in none of them are counted together.
    pub prefixes: Vec<(IpAddr, u8)>,
}

impl SynMeterOptions {
    /// Services that are counted apart, the others as one.
    pub fn services(&self) -> u32 {
        self.services.len() as u32 + u32::from(self.others)
    }

    /// Groups of clients that are counted apart: the prefixes, and all others.
    pub fn prefixes(&self) -> u32 {
        self.prefixes.len() as u32 + 1
    }

    /// Number of categories: device, service and group of clients.
    pub fn categories(&self) -> u32 {
        self.interfaces.len() as u32 * self.services() * self.prefixes()
    }

    /// What the kernel sets aside for the tables and rings, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let entry = |key: usize, value: usize| (key + value) as u64 + HASH_OVERHEAD;
        let attempts = u64::from(self.half_open) + u64::from(self.connections);
        let slots = u64::from(self.categories()) * u64::from(self.ring);
        let count = size_of::<u64>();
        attempts * entry(size_of::<FlowKey6>(), size_of::<SynEntry>())
            + c::SYN_FORMER * entry(size_of::<SynAttempt>(), size_of::<SynEntry>())
            + c::SYN_ORIGINS * entry(size_of::<SynOrigin>(), count)
            + c::SYN_RETRY_TIMES * entry(size_of::<SynRetryTime>(), count)
            + c::SYN_OPEN * entry(size_of::<VipKey>(), size_of::<u32>())
            + u64::from(self.categories()) * responses_bytes()
            + slots * size_of::<SynSlotLocked>() as u64
    }

    fn check(&self) -> Result<()> {
        for (what, value, max) in [
            (
                "the number of interfaces",
                self.interfaces.len(),
                c::SYN_DEVICES,
            ),
            (
                "the number of services",
                self.services.len() + 1,
                c::SYN_SERVICES,
            ),
            (
                "the number of client prefixes",
                self.prefixes.len() + 1,
                c::SYN_PREFIXES,
            ),
        ] {
            if value == 0 || value > max {
                return Err(DataPlaneError::OutOfRange {
                    what,
                    value: value as u64,
                    min: 1,
                    max: max as u64,
                });
            }
        }
        Ok(())
    }

    /// A number that changes with the settings, with the size of what is counted and with
    /// what it means (FNV-1a).
    fn fingerprint(&self) -> u64 {
        let sizes = [size_of::<SynSlotLocked>(), size_of::<SynEntry>()];
        format!("{self:?} {sizes:?} {COUNTS}")
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
    }
}

/// Bytes of a category's response times, on all CPUs.
fn responses_bytes() -> u64 {
    let cpus = libbpf_rs::num_possible_cpus().unwrap_or(1);
    (cpus * size_of::<SynResponses>()) as u64
}

/// An attempt to connect whose client is not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Client to service.
    pub key: FlowKey6,
    /// The category that it is counted in.
    pub category: u32,
    /// When its first SYN came; CLOCK_MONOTONIC, nanoseconds.
    pub first_syn_ns: u64,
    /// When its last SYN came.
    pub last_syn_ns: u64,
    /// SYNs after the first.
    pub retry: u8,
    /// How far it came.
    pub stage: Stage,
}

/// What is known of an attempt whose client is not connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// No SYN was answered.
    Offered,
    /// One was, of a client that had sent another; it has not acknowledged.
    Answered,
    /// The client had gone: then its RST answered a SYN-ACK, or its tuple came again.
    Left(u64),
}

impl Waiting {
    /// Which attempt it is: tuples come again, times do not.
    #[must_use]
    pub fn attempt(&self) -> (FlowKey6, u64) {
        (self.key, self.first_syn_ns)
    }
}

/// Counting that is loaded, pinned and attached. It goes on when this is dropped.
#[derive(Debug)]
pub struct SynMeter {
    pins: PinDir,
    hooks: SynHooks,
    silence: OwnedFd,
    devices: Table<u32, u32>,
    responses: PerCpu<SynResponses>,
    options: SynMeterOptions,
    slots: Table<u32, SynSlotLocked>,
    origins: Table<SynOrigin, u64>,
    retry_times: Table<SynRetryTime, u64>,
    half_open: Table<FlowKey6, SynEntry>,
    former: Table<SynAttempt, SynEntry>,
    connections: Table<FlowKey6, SynEntry>,
    took_over: bool,
}

impl SynMeter {
    /// Starts to count, or takes over what is pinned in `options.pin_dir` with the
    /// same settings. Interfaces that are not there are counted on once
    /// [`SynMeter::mend_hooks`] finds them.
    pub fn start(options: &SynMeterOptions) -> Result<Self> {
        plane::check_kernel()?;
        options.check()?;
        let interfaces = options.interfaces.iter();
        let interfaces: Vec<_> = interfaces
            .map(|name| (name.clone(), Interface::find(name).ok()))
            .collect();
        let (pins, took_over) = open_pins(options)?;
        let mut object = MaybeUninit::uninit();
        let skel = load(options, &pins, &mut object)?;
        // Before the hooks: after a takeover these count at once.
        name_categories(options, skel.object())?;
        let map = |name: &str| pin_map(skel.object(), &pins, name);
        let devices = Table::<u32, u32>::new(map("syn_devices")?)?;
        let silence = cookie_hooks::program(skel.object(), "causeway_syn_silence")?;
        let silence = silence.try_clone_to_owned();
        let meter = Self {
            silence: silence.map_err(|e| DataPlaneError::bpf("hold a program", e))?,
            responses: PerCpu::new(map("syn_responses")?)?,
            slots: Table::new(map("syn_slots")?)?,
            origins: Table::new(map("syn_origins")?)?,
            retry_times: Table::new(map("syn_retry_times")?)?,
            half_open: Table::new(map("syn_half_open")?)?,
            former: Table::new(map("syn_former")?)?,
            devices: {
                map("syn_open")?;
                devices
            },
            // Last: who finds its pin finds all.
            connections: Table::new(map("syn_connections")?)?,
            options: options.clone(),
            took_over,
            hooks: SynHooks::attach(skel.object(), &interfaces, &pins)?,
            pins,
        };
        let devices = interfaces.iter().enumerate();
        let present = |(device, (_, interface)): (usize, &(_, Option<Interface>))| {
            Some((device as u32, interface.as_ref()?.index))
        };
        let present: Vec<(u32, u32)> = devices.filter_map(present).collect();
        meter.forget_devices(&present)?;
        // Last: what the kernel does not know as a device it does not count.
        for (device, ifindex) in present {
            meter.devices.put(&ifindex, &device)?;
        }
        Ok(meter)
    }

    /// Looks whether the programs still hang on their interfaces, and puts them back.
    pub fn mend_hooks(&mut self) -> Result<HookChanges> {
        let changes = self.hooks.mend(&self.pins)?;
        for (device, ifindex) in &changes.moved {
            for (former, _) in self
                .devices
                .entries()?
                .iter()
                .filter(|(_, of)| of == device)
            {
                self.devices.remove(former)?;
            }
            self.devices.put(ifindex, device)?;
        }
        Ok(changes)
    }

    /// How many hooks had no program when they were last looked at.
    pub fn missing_hooks(&self) -> usize {
        self.hooks.missing()
    }

    /// Counts answers that are over though their connections stay open, once a second or so:
    /// else they would count when the client asks again, or leaves.
    pub fn end_silent(&self) -> Result<()> {
        let empty = [0_u8; 64];
        let mut opts = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: empty.as_ptr().cast(),
            data_size_in: empty.len() as u32,
            ..Default::default()
        };
        // SAFETY: `opts` is of the size that it says and points to `data_size_in` bytes.
        match unsafe { libbpf_sys::bpf_prog_test_run_opts(self.silence.as_raw_fd(), &mut opts) } {
            0 => Ok(()),
            ret => Err(DataPlaneError::bpf(
                "look for answers that are over",
                errno(ret),
            )),
        }
    }

    /// How long the transactions of each category took, since counting began: clients that
    /// gave up are not among them.
    pub fn responses(&self) -> Result<Vec<SynResponses>> {
        let add = |sum: &mut SynResponses, of: &SynResponses| {
            sum.sum_ns += of.sum_ns;
            let buckets = sum.count.iter_mut().zip(of.count);
            buckets.for_each(|(sum, of)| *sum += of);
        };
        self.responses.first(self.options.categories(), add)
    }

    /// Forgets interfaces of former times under other numbers: their hooks are gone with
    /// them or are taken off, and a number may come back as another interface's.
    fn forget_devices(&self, present: &[(u32, u32)]) -> Result<()> {
        for (ifindex, _) in self.devices.entries()? {
            if !present.iter().any(|(_, index)| *index == ifindex) {
                SynHooks::detach(&self.pins, &[ifindex])?;
                self.devices.remove(&ifindex)?;
            }
        }
        Ok(())
    }

    /// Takes down the counting that is pinned in `pin_dir`. It is not an error if nothing is there.
    pub fn detach(pin_dir: &Path) -> Result<Detached> {
        plane::check_kernel()?;
        let Some(pins) = PinDir::open_existing(pin_dir)? else {
            return Ok(Detached::default());
        };
        let was_attached = detach_hooks(&pins)?;
        Ok(Detached {
            was_attached,
            pins: pins.remove()?,
        })
    }

    /// Whether counting went on from before.
    pub fn took_over(&self) -> bool {
        self.took_over
    }

    /// The settings in force.
    pub fn options(&self) -> &SynMeterOptions {
        &self.options
    }

    /// The number of the slot that is running: CLOCK_MONOTONIC / length of a slot.
    pub fn current_slot(&self) -> u64 {
        causeway_netio::monotonic_ns() / self.options.slot_ns
    }

    /// What a category did in a slot: nothing, if no client came then or if it is longer
    /// ago than the ring is long. Consistent, also while the slot runs.
    pub fn slot(&self, category: u32, number: u64) -> Result<SynSlot> {
        let ring = u64::from(self.options.ring);
        let index = category * self.options.ring + (number % ring) as u32;
        let found = self.slots.get_locked(&index)?;
        Ok(match found {
            Some(locked) if locked.slot.number == number => locked.slot,
            _ => SynSlot {
                number,
                ..SynSlot::default()
            },
        })
    }

    /// Takes out how completed connections are spread over the slots of their SYNs, of
    /// all slots that are over.
    pub fn take_origins(&self) -> Result<Vec<(SynOrigin, u64)>> {
        let now = self.current_slot();
        let mut taken = self.origins.entries()?;
        taken.retain(|(origin, _)| origin.number < now);
        for (origin, _) in &taken {
            self.origins.remove(origin)?;
        }
        Ok(taken)
    }

    /// Attempts whose clients are not connected so far. Of those that were answered and
    /// not acknowledged only the ones whose clients had come again: a single SYN may be of
    /// a flood or of a scan for open ports.
    pub fn waiting(&self) -> Result<Vec<Waiting>> {
        let present = self.half_open.entries_batched()?.into_iter();
        let former = self.former.entries_batched()?.into_iter();
        let former = former.map(|(attempt, entry)| (attempt.key, entry));
        let attempts = present.chain(former).filter_map(|(key, entry)| {
            let conn = entry.conn;
            let stage = match conn.state {
                c::SYN_STATE_OFFERED => Stage::Offered,
                c::SYN_STATE_ANSWERED if conn.marks & c::SYN_MARK_HEARD != 0 => Stage::Answered,
                c::SYN_STATE_LEFT => Stage::Left(conn.turn_ns),
                _ => return None,
            };
            Some(Waiting {
                key,
                category: entry.category,
                first_syn_ns: conn.first_syn_ns,
                // Until it is connected there is no data: that are SYNs that came later.
                last_syn_ns: conn.last_syn_ns.max(conn.last_data_ns),
                retry: conn.retry,
                stage,
            })
        });
        Ok(attempts.collect())
    }

    /// Whether the client of the attempt of this tuple that began then did send more, as far as the
    /// tables still know: a tuple comes again.
    pub fn is_answered(&self, key: &FlowKey6, first_syn_ns: u64) -> Result<bool> {
        for table in [&self.half_open, &self.connections] {
            if let Some(entry) = table.get(key)?
                && entry.conn.first_syn_ns == first_syn_ns
            {
                return Ok(![c::SYN_STATE_OFFERED, c::SYN_STATE_LEFT].contains(&entry.conn.state));
            }
        }
        Ok(false)
    }

    /// Forgets attempts: if another SYN comes of one, it is a first SYN.
    pub fn forget(&self, attempts: &[Waiting]) -> Result<()> {
        for of in attempts {
            let (key, first_syn_ns) = of.attempt();
            // Its tuple may have come again.
            let present = self.half_open.get(&key)?;
            match present.is_some_and(|entry| entry.conn.first_syn_ns == first_syn_ns) {
                true => self.half_open.remove(&key)?,
                false => self.former.remove(&SynAttempt { key, first_syn_ns })?,
            };
        }
        Ok(())
    }

    /// Takes out when retries came that were answered.
    pub fn take_retry_times(&self) -> Result<Vec<(SynRetryTime, u64)>> {
        let taken = self.retry_times.entries()?;
        for (time, _) in &taken {
            self.retry_times.remove(time)?;
        }
        Ok(taken)
    }
}

/// The directory, with pins that fit these settings or with none.
fn open_pins(options: &SynMeterOptions) -> Result<(PinDir, bool)> {
    let open = || PinDir::open(&options.pin_dir, Kind::SynMeter, None);
    let pins = open()?;
    let settings = options.fingerprint();
    let found = match pins.map(SETTINGS_PIN)? {
        Some(map) => Table::<u32, u64>::new(map)?.get(&0)?,
        None => None,
    };
    let is_ours = pins.former().is_none() && found == Some(settings);
    if is_ours && pins.map("syn_connections")?.is_some() {
        return Ok((pins, true));
    }
    drop(pins);
    SynMeter::detach(&options.pin_dir)?;
    let pins = open()?;
    write_settings(&pins, settings)?;
    Ok((pins, false))
}

fn write_settings(pins: &PinDir, settings: u64) -> Result<()> {
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let failed =
        |doing, e: libbpf_rs::Error| DataPlaneError::map(doing, SETTINGS_PIN, io_error(&e));
    let kind = libbpf_rs::MapType::Array;
    let mut map = MapHandle::create(kind, Some("cw_syn_set"), 4, 8, 1, &opts)
        .map_err(|e| failed("make", e))?;
    map.update(&[0; 4], &settings.to_ne_bytes(), MapFlags::ANY)
        .map_err(|e| failed("write", e))?;
    map.pin(pins.pin(SETTINGS_PIN))
        .map_err(|e| failed("pin", e))
}

fn load<'a>(
    options: &SynMeterOptions,
    pins: &PinDir,
    object: &'a mut MaybeUninit<OpenObject>,
) -> Result<SynSkel<'a>> {
    let failed = |cause| DataPlaneError::Load {
        program: "causeway_syn",
        cause,
    };
    let mut open = SynSkelBuilder::default().open(object).map_err(failed)?;
    if let Some(settings) = open.maps.rodata_data.as_deref_mut() {
        settings.cfg_slot_ns = options.slot_ns;
        settings.cfg_ring = options.ring;
        settings.cfg_services = options.services();
        settings.cfg_prefixes = options.prefixes();
        settings.cfg_all_services = options.others;
    }
    let sizes = [
        ("syn_slots", options.categories() * options.ring),
        ("syn_responses", options.categories()),
        ("syn_half_open", options.half_open),
        ("syn_connections", options.connections),
    ];
    for mut map in open.open_object_mut().maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some((_, entries)) = sizes.iter().find(|(sized, _)| *sized == name) {
            map.set_max_entries(*entries)
                .map_err(|e| DataPlaneError::map("set the size of", &name, io_error(&e)))?;
        }
        if !plane::is_internal(&name)
            && let Some(pinned) = pins.map(&name)?
        {
            map.reuse_fd(pinned.as_fd())
                .map_err(|e| DataPlaneError::map("reuse the pin of", &name, io_error(&e)))?;
        }
    }
    open.load().map_err(failed)
}

fn handle(object: &libbpf_rs::Object, name: &str) -> Result<MapHandle> {
    let map = object
        .maps()
        .find(|map| map.name() == name)
        .ok_or_else(|| {
            let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
            DataPlaneError::map("find", name, missing)
        })?;
    MapHandle::try_from(&map).map_err(|e| DataPlaneError::map("open", name, io_error(&e)))
}

/// Names services and prefixes of clients to the programs.
fn name_categories(options: &SynMeterOptions, object: &libbpf_rs::Object) -> Result<()> {
    let services = handle(object, "syn_services")?;
    let services = Table::<VipKey, u32>::new(services)?;
    for (number, (address, port)) in options.services.iter().enumerate() {
        let key = VipKey {
            addr: address.map_or([0; 16], addr_bytes),
            port_be: port.to_be_bytes(),
            proto: libc::IPPROTO_TCP as u8,
            kind: 0,
        };
        services.put(&key, &(number as u32))?;
    }
    let prefixes = Table::<SynPrefix, u32>::new(handle(object, "syn_prefixes")?)?;
    for (number, (address, length)) in options.prefixes.iter().enumerate() {
        let key = SynPrefix {
            length: u32::from(*length) + if address.is_ipv4() { 96 } else { 0 },
            addr: addr_bytes(*address),
        };
        prefixes.put(&key, &(number as u32))?;
    }
    Ok(())
}

/// A map of the object, pinned if it is not yet.
fn pin_map(object: &libbpf_rs::Object, pins: &PinDir, name: &str) -> Result<MapHandle> {
    let mut map = handle(object, name)?;
    let pin = pins.pin(name);
    if !pin.exists() {
        map.pin(&pin)
            .map_err(|e| DataPlaneError::map("pin", name, io_error(&e)))?;
    }
    Ok(map)
}

/// Takes the programs off the interfaces that the pins name. Whether there were any.
fn detach_hooks(pins: &PinDir) -> Result<bool> {
    let Some(devices) = pins.map("syn_devices")? else {
        return Ok(false);
    };
    let devices = Table::<u32, u32>::new(devices)?.entries()?;
    let ifindexes: Vec<u32> = devices.iter().map(|(ifindex, _)| *ifindex).collect();
    SynHooks::detach(pins, &ifindexes)?;
    Ok(!devices.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/explanation/syn-loss.md states both figures.
    #[test]
    fn memory_is_what_the_manual_says() {
        let of = |services| SynMeterOptions {
            interfaces: vec!["eth0".to_owned()],
            ring: 512,
            half_open: 64 << 10,
            connections: 128 << 10,
            services: vec![(None, 80); services],
            ..SynMeterOptions::default()
        };
        let one = of(1).memory_bytes();
        let category = of(2).memory_bytes() - one;
        assert_eq!((one - category).div_ceil(1_000_000), 34);
        assert_eq!((category - responses_bytes()).div_ceil(1000), 132);
    }
}
