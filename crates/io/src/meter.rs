// SPDX-License-Identifier: Apache-2.0
//! Measurement alone, live: `bpf/meter.bpf.c` on an interface.
//!
//! The meter lets every packet pass. It belongs to this process: nothing is
//! pinned, and it leaves the interface when [`Meter`] is dropped or the process
//! ends. Where XDP is taken already it cannot start.

use std::cell::RefCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use causeway_core::estimate::{Method, Tally};
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, OpenObject, RingBuffer, RingBufferBuilder};

use crate::abi::{self, FlowKey6, MeterRecord, MeterSums, MeterVerdict, PacketsBytes, Plain as _};
use crate::error::{Error, Result};
use crate::map::{PerCpu, io_error};
use crate::plane;
use crate::skel::meter::{MeterSkel, MeterSkelBuilder, types};
use crate::xdp::{Interface, Link, Mode, XdpMode};

const PROGRAM: &str = "causeway_meter";
/// `enum meter_method` of abi.h.
const WINDOW_CHAIN: u32 = 0;
const FIXED_GAP: u32 = 1;
const MODES: u32 = 2;

/// How to start a meter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterOptions {
    /// The interface that packets from clients cross.
    pub interface: String,
    /// How the program is to run.
    pub xdp_mode: XdpMode,
    /// The estimator.
    pub method: Method,
    /// Ignore transport headers but for ports: judge by sizes and times alone.
    pub opaque: bool,
    /// Length of an epoch. Epochs are aligned to its multiples since the Unix
    /// epoch. At least 1 us.
    pub epoch: Duration,
    /// Flows held at once; beyond that, the kernel evicts those silent longest.
    pub max_flows: u32,
}

impl MeterOptions {
    /// The defaults: window chain, 200 ms, 65,536 flows.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            xdp_mode: XdpMode::Auto,
            method: Method::WindowChain,
            opaque: false,
            epoch: Duration::from_millis(200),
            max_flows: 1 << 16,
        }
    }

    fn check(&self) -> Result<()> {
        let epoch_ns = u64::try_from(self.epoch.as_nanos()).unwrap_or(u64::MAX);
        let ranges = [
            ("epoch in nanoseconds", epoch_ns, 1_000, 1 << 62),
            ("max_flows", self.max_flows.into(), 1, 1 << 28),
        ];
        for (what, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(Error::OutOfRange {
                    what,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}

/// A flow, from client to server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MeteredFlow {
    /// IP protocol number.
    pub proto: u8,
    /// The client.
    pub client: SocketAddr,
    /// The server.
    pub server: SocketAddr,
}

impl From<&FlowKey6> for MeteredFlow {
    fn from(key: &FlowKey6) -> Self {
        let end = |addr, port_be| {
            SocketAddr::new(abi::addr_from_bytes(addr), u16::from_be_bytes(port_be))
        };
        Self {
            proto: key.proto,
            client: end(key.saddr_be, key.sport_be),
            server: end(key.daddr_be, key.dport_be),
        }
    }
}

/// Latencies of one flow in one epoch, or a part of them: those of the same flow
/// and epoch add up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeterSample {
    /// The flow.
    pub flow: MeteredFlow,
    /// Start of the epoch, nanoseconds since the Unix epoch.
    pub epoch_start_ns: u64,
    /// The latencies.
    pub tally: Tally,
}

impl MeterSample {
    fn new(key: &FlowKey6, epoch: u64, sum2_ns: u64, count2: u64, epoch_ns: u64) -> Self {
        Self {
            flow: key.into(),
            epoch_start_ns: epoch.saturating_mul(epoch_ns),
            tally: Tally {
                sum2_ns,
                count2,
                ..Tally::default()
            },
        }
    }
}

/// A meter on an interface.
pub struct Meter {
    epoch_ns: u64,
    mode: Mode,
    ring: RingBuffer<'static>,
    records: Rc<RefCell<Vec<MeterRecord>>>,
    flows: MapHandle,
    verdicts: PerCpu<PacketsBytes>,
    // The link before the program that it holds.
    _link: Link,
    skel: MeterSkel<'static>,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("mode", &self.mode).finish()
    }
}

impl Meter {
    /// Loads the meter and puts it on the interface.
    ///
    /// # Errors
    /// No rights, no such interface, another XDP program in the way, settings out
    /// of range.
    pub fn start(options: &MeterOptions) -> Result<Self> {
        options.check()?;
        plane::check_kernel()?;
        let interface = Interface::find(&options.interface)?;
        if let Some(occupant) = interface.occupant()? {
            return Err(interface.foreign(occupant));
        }
        let skel = load(options)?;
        let (link, mode) = Link::attach(
            skel.progs.causeway_meter.as_fd(),
            &interface,
            options.xdp_mode,
        )?;
        let handle = |map| MapHandle::try_from(map).map_err(|e| failed("open a map", &e));
        let records = Rc::new(RefCell::new(Vec::new()));
        Ok(Self {
            epoch_ns: options.epoch.as_nanos() as u64,
            mode,
            ring: ring_buffer(handle(&skel.maps.records)?, records.clone())?,
            records,
            flows: handle(&skel.maps.flows)?,
            verdicts: PerCpu::new(handle(&skel.maps.verdicts)?)?,
            _link: link,
            skel,
        })
    }

    /// How the program runs.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Waits at most `timeout` for latencies of epochs that have ended, and gives
    /// all that there are. A flow's epoch ends with its first latency in a later
    /// one; see [`Meter::open_epochs`] for flows that have fallen silent.
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<MeterSample>> {
        match self.ring.poll(timeout) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::Interrupted => {
                return Err(failed("read the ring buffer", &e));
            }
            _ => {}
        }
        let records = self.records.take();
        let sample =
            |r: &MeterRecord| MeterSample::new(&r.key, r.epoch, r.sum2_ns, r.count2, self.epoch_ns);
        Ok(records.iter().map(sample).collect())
    }

    /// What each flow's open epoch holds so far. To be read last: its latencies
    /// come out of [`Meter::poll`] too if the flow goes on.
    pub fn open_epochs(&self) -> Result<Vec<MeterSample>> {
        let mut samples = Vec::new();
        for key in self.flows.keys() {
            let value = self.flows.lookup(&key, MapFlags::ANY);
            let value = value.map_err(|e| failed("read the flows", &e))?;
            let Some(key) = FlowKey6::from_bytes(&key) else {
                continue;
            };
            let head = |v: Vec<u8>| MeterSums::from_bytes(v.get(..size_of::<MeterSums>())?);
            // A flow may be evicted while we walk.
            let Some(sums) = value.and_then(head).filter(|sums| sums.count2 > 0) else {
                continue;
            };
            samples.push(MeterSample::new(
                &key,
                sums.epoch,
                sums.sum2_ns,
                sums.count2,
                self.epoch_ns,
            ));
        }
        Ok(samples)
    }

    /// What became of all packets.
    pub fn verdicts(&self) -> Result<Vec<(MeterVerdict, PacketsBytes)>> {
        let counters = self
            .verdicts
            .first(MeterVerdict::ALL.len() as u32, PacketsBytes::add)?;
        Ok(MeterVerdict::ALL.into_iter().zip(counters).collect())
    }

    /// Records that were lost because nobody read them in time.
    pub fn lost_records(&self) -> u64 {
        let bss = self.skel.maps.bss_data.as_deref();
        bss.map_or(0, |bss| {
            // SAFETY: a u64 of the program's memory map, which the kernel writes.
            unsafe { std::ptr::from_ref(&bss.lost_records).read_volatile() }
        })
    }
}

/// Sets which estimator the program runs, and with what parameters.
pub fn set_method(rodata: &mut types::rodata, method: &Method) {
    match method {
        Method::WindowChain => rodata.cfg_method = WINDOW_CHAIN,
        Method::FixedGap(config) => {
            rodata.cfg_method = FIXED_GAP;
            rodata.cfg_fixed_gap = types::fixed_gap_config {
                delta_ns: config.delta_ns,
                idle_ns: config.idle_ns,
            };
        }
        Method::Modes(config) => {
            rodata.cfg_method = MODES;
            rodata.cfg_modes = types::modes_config {
                epsilon_ns: config.epsilon_ns,
                epsilon_permille: config.epsilon_permille,
                modes: config.modes,
                tcp_timeout_ns: config.tcp_timeout_ns,
                other_timeout_ns: config.other_timeout_ns,
                ibg: config.ibg as u32,
                mtu: config.mtu,
            };
        }
    }
}

fn load(options: &MeterOptions) -> Result<MeterSkel<'static>> {
    // The skeleton borrows the object. It is given up, with the program and its
    // maps, until the process ends; a process starts one meter, or a few.
    let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = MeterSkelBuilder::default()
        .open(storage)
        .map_err(|e| failed("open the meter's object", &e))?;
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.cfg_epoch_ns = options.epoch.as_nanos() as u64;
        rodata.cfg_opaque = options.opaque;
        rodata.cfg_clock_offset_ns = clock_offset_ns();
        set_method(rodata, &options.method);
    }
    open.maps
        .flows
        .set_max_entries(options.max_flows)
        .map_err(|e| failed("set the number of flows", &e))?;
    open.load()
        .map_err(|e| failed(format!("load {PROGRAM}"), &e))
}

/// From the kernel's monotonic clock to Unix time, as it is now.
fn clock_offset_ns() -> u64 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    let monotonic = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    match (unix, monotonic.map(Duration::from)) {
        (Ok(unix), Ok(monotonic)) => unix.saturating_sub(monotonic).as_nanos() as u64,
        _ => 0,
    }
}

fn ring_buffer(map: MapHandle, sink: Rc<RefCell<Vec<MeterRecord>>>) -> Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder
        .add(&map, move |bytes| {
            sink.borrow_mut().extend(MeterRecord::from_bytes(bytes));
            0
        })
        .map_err(|e| failed("read the ring buffer", &e))?;
    builder
        .build()
        .map_err(|e| failed("read the ring buffer", &e))
}

fn failed(doing: impl Into<String>, error: &libbpf_rs::Error) -> Error {
    Error::bpf(doing, io_error(error))
}
