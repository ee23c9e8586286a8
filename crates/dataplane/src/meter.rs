// SPDX-License-Identifier: Apache-2.0
//! Measurement alone, live: `bpf/meter.bpf.c` on an interface.
//!
//! The meter lets every packet pass, or hands it on to another XDP program. It
//! belongs to this process: nothing is pinned, and it leaves the interface when
//! [`KernelMeter`] is dropped or the process ends. Where XDP is taken it runs at TC
//! ingress instead.

mod load;
mod options;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::Duration;

use causeway_core::estimate::{Method, Tally};
use causeway_core::hist::Histogram;
use causeway_netio::Interface;
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, RingBuffer, RingBufferBuilder};

use crate::abi::{
    self, FlowKey6, MeterRecord, MeterServer, MeterSums, MeterVerdict, PacketsBytes, Plain as _,
};
use crate::error::{DataPlaneError, Result};
use crate::map::{PerCpu, io_error, read_counter};
use crate::plane;
use crate::skel::meter::MeterSkel;
use crate::tc::{TcDirection, TcLink};
use crate::xdp::{self, Link};
use crate::xdp_mode::AttachedMode;
pub use load::set_method;
pub use options::{Attach, ClientNetwork, MeterOptions};

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
    /// Which estimator: 0 is [`MeterOptions::method`], then [`MeterOptions::more`].
    pub slot: u8,
    /// Start of the epoch, nanoseconds since the Unix epoch, as that was when the meter began
    /// ([`KernelMeter::clock_step_ns`]).
    pub epoch_start_ns: u64,
    /// The latencies.
    pub tally: Tally,
}

/// What is in no record yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenEpochs {
    /// Of flows that are still known.
    pub samples: Vec<MeterSample>,
    /// Epochs whose latencies are lost: their flows were evicted
    /// ([`MeterOptions::max_flows`]).
    pub evicted: u64,
}

/// The latencies of one server by one estimator, since the meter started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLatencies {
    /// IP protocol number.
    pub proto: u8,
    /// The server.
    pub server: SocketAddr,
    /// As [`MeterSample::slot`].
    pub slot: u8,
    /// Their distribution, in half counts.
    pub histogram: Histogram,
}

/// How the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterHook {
    /// As XDP.
    Xdp(AttachedMode),
    /// At TC ingress.
    Tc,
}

impl fmt::Display for MeterHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Xdp(mode) => write!(f, "{mode} XDP"),
            Self::Tc => f.write_str("TC ingress"),
        }
    }
}

/// What holds the program on the interface.
enum Attachment {
    Xdp { _link: Link },
    Tc { _link: TcLink },
}

/// A meter on an interface.
pub struct KernelMeter {
    epoch_ns: u64,
    hook: MeterHook,
    ring: RingBuffer<'static>,
    records: Rc<RefCell<Vec<MeterRecord>>>,
    /// The flows of each estimator, with its slot.
    flows: Vec<(u8, MapHandle)>,
    verdicts: PerCpu<PacketsBytes>,
    /// Why the program does not run as XDP, where the driver would not have it.
    refused: Option<DataPlaneError>,
    // The link before the program that it holds.
    attachment: Option<Attachment>,
    skel: MeterSkel<'static>,
}

impl fmt::Debug for KernelMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("hook", &self.hook).finish()
    }
}

impl KernelMeter {
    /// Loads the meter and puts it on the interface.
    ///
    /// # Errors
    /// No rights, no such interface, another XDP program in the way, settings out
    /// of range.
    pub fn start(options: &MeterOptions) -> Result<Self> {
        options.check()?;
        plane::check_kernel()?;
        let interface = Interface::find(&options.interface)?;
        let tc = choose(options, &interface)?;
        let mut skel = load::load(options, tc)?;
        let (attached, refused) = match attach(&skel, options, &interface, tc) {
            Err(refused @ DataPlaneError::MeterRefused { .. })
                if options.attach == Attach::Auto && options.next.is_none() =>
            {
                // Before the other program has maps of its own.
                drop(skel);
                skel = load::load(options, true)?;
                (attach(&skel, options, &interface, true)?, Some(refused))
            }
            attached => (attached?, None),
        };
        let (attachment, hook) = attached;
        let handle = |map| MapHandle::try_from(map).map_err(|e| failed("open a map", &e));
        let mut flows = Vec::new();
        for (place, (slot, method)) in load::in_order(options).into_iter().enumerate() {
            let map = match (place, method) {
                (0, _) | (_, Method::WindowChain) => &skel.maps.flows,
                (_, Method::FixedGap(_)) => &skel.maps.gap_flows,
                (_, Method::Modes(_)) => &skel.maps.modes_flows,
            };
            flows.push((slot, handle(map)?));
        }
        let records = Rc::new(RefCell::new(Vec::new()));
        Ok(Self {
            epoch_ns: options.epoch.as_nanos() as u64,
            hook,
            ring: ring_buffer(handle(&skel.maps.records)?, records.clone())?,
            records,
            flows,
            verdicts: PerCpu::new(handle(&skel.maps.verdicts)?)?,
            refused,
            attachment: Some(attachment),
            skel,
        })
    }

    /// How the program runs.
    pub fn hook(&self) -> MeterHook {
        self.hook
    }

    /// Why it does not run as XDP, where the driver would not have it: at TC ingress any MTU will
    /// do.
    pub fn refused(&self) -> Option<&DataPlaneError> {
        self.refused.as_ref()
    }

    /// How far Unix time has moved against the clock of [`MeterSample::epoch_start_ns`] since
    /// the meter began: it was set, or the machine was asleep.
    pub fn clock_step_ns(&self) -> i64 {
        let rodata = self.skel.maps.rodata_data;
        let began = rodata.map(|rodata| rodata.cfg_clock_offset_ns);
        began.map_or(0, |began| {
            load::clock_offset_ns().wrapping_sub(began) as i64
        })
    }

    /// Waits at most `timeout` for latencies of epochs that have ended, and gives
    /// all that there are. A flow's epoch ends with its first latency in a later
    /// one, or with the client's FIN or RST; see [`KernelMeter::open_epochs`] for flows
    /// that have fallen silent.
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<MeterSample>> {
        match self.ring.poll(timeout) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::Interrupted => {
                return Err(failed("read the ring buffer", &e));
            }
            _ => {}
        }
        let records = self.records.take();
        let sample = |r: &MeterRecord| MeterSample {
            flow: (&r.key).into(),
            slot: r.slot,
            epoch_start_ns: r.epoch.saturating_mul(self.epoch_ns),
            tally: Tally {
                sum_halves_ns: r.sum_halves_ns,
                weight_halves: r.weight_halves,
                bound_halves: r.bound_halves.into(),
                narrow: r.narrow != 0,
                window: r.window,
            },
        };
        Ok(records.iter().map(sample).collect())
    }

    /// Takes the program off the interface; what it has found stays.
    pub fn detach(&mut self) {
        self.attachment = None;
    }

    /// What each flow's open epoch holds so far. To be read last: its latencies
    /// come out of [`KernelMeter::poll`] too if the flow goes on, and flows that end meanwhile
    /// count as evicted, unless the meter is [detached](KernelMeter::detach).
    pub fn open_epochs(&self) -> Result<OpenEpochs> {
        let bss = self.skel.maps.bss_data.as_deref();
        let open = bss.map_or(0, |bss| read_counter(&bss.open_epochs));
        let mut samples = Vec::new();
        for (slot, flows) in &self.flows {
            for key in flows.keys() {
                let value = flows.lookup(&key, MapFlags::ANY);
                let value = value.map_err(|e| failed("read the flows", &e))?;
                let head = |v: Vec<u8>| MeterSums::from_bytes(v.get(..size_of::<MeterSums>())?);
                // A flow may be evicted while we walk.
                let (Some(key), Some(sums)) = (FlowKey6::from_bytes(&key), value.and_then(head))
                else {
                    continue;
                };
                if sums.weight_halves > 0 {
                    samples.push(MeterSample {
                        flow: (&key).into(),
                        slot: *slot,
                        epoch_start_ns: sums.epoch.saturating_mul(self.epoch_ns),
                        tally: Tally {
                            sum_halves_ns: sums.sum_halves_ns,
                            weight_halves: sums.weight_halves,
                            bound_halves: sums.bound_halves.into(),
                            narrow: sums.narrow != 0,
                            window: sums.window,
                        },
                    });
                }
            }
        }
        Ok(OpenEpochs {
            evicted: open.saturating_sub(samples.len() as u64),
            samples,
        })
    }

    /// Distributions of all servers, if the options asked for them.
    pub fn servers(&self) -> Result<Vec<ServerLatencies>> {
        let map = &self.skel.maps.servers;
        let mut servers = Vec::new();
        for key in each_once(map.keys(), map.max_entries()) {
            let value = map.lookup(&key, MapFlags::ANY);
            let value = value.map_err(|e| failed("read the histograms", &e))?;
            let (Some(key), Some(value)) = (MeterServer::from_bytes(&key), value) else {
                continue;
            };
            let words = value.as_chunks::<8>().0.iter();
            let counts: Vec<u64> = words.map(|word| u64::from_ne_bytes(*word)).collect();
            let Ok(histogram) = Histogram::from_counts(&counts) else {
                continue;
            };
            servers.push(ServerLatencies {
                proto: key.proto,
                server: SocketAddr::new(
                    abi::addr_from_bytes(key.addr_be),
                    u16::from_be_bytes(key.port_be),
                ),
                slot: key.slot,
                histogram,
            });
        }
        Ok(servers)
    }

    /// What became of all packets.
    pub fn verdicts(&self) -> Result<Vec<(MeterVerdict, PacketsBytes)>> {
        let counters = self
            .verdicts
            .first(MeterVerdict::ALL.len() as u32, PacketsBytes::add)?;
        Ok(MeterVerdict::ALL.into_iter().zip(counters).collect())
    }

    /// Records that were lost because the reader was late.
    pub fn lost_records(&self) -> u64 {
        let bss = self.skel.maps.bss_data.as_deref();
        bss.map_or(0, |bss| read_counter(&bss.lost_records))
    }
}

/// Keys of a map from which the kernel evicts meanwhile: behind one that is gone it begins anew.
fn each_once(keys: impl Iterator<Item = Vec<u8>>, entries: u32) -> BTreeSet<Vec<u8>> {
    keys.take(2 * entries as usize).collect()
}

/// Puts the program on the interface.
fn attach(
    skel: &MeterSkel<'static>,
    options: &MeterOptions,
    interface: &Interface,
    tc: bool,
) -> Result<(Attachment, MeterHook)> {
    if tc {
        let program = skel.progs.causeway_meter_tc.as_fd();
        let link = TcLink::attach(program, interface, TcDirection::In)?;
        return Ok((Attachment::Tc { _link: link }, MeterHook::Tc));
    }
    let program = skel.progs.causeway_meter.as_fd();
    match Link::attach(program, interface, options.xdp_mode) {
        Ok((link, mode)) => Ok((Attachment::Xdp { _link: link }, MeterHook::Xdp(mode))),
        // Nothing of the balancer's settings is a remedy here.
        Err(DataPlaneError::NativeRefused { interface, cause }) => {
            Err(DataPlaneError::MeterRefused { interface, cause })
        }
        Err(error) => Err(error),
    }
}

/// Whether to run at TC ingress.
fn choose(options: &MeterOptions, interface: &Interface) -> Result<bool> {
    match (options.attach, xdp::occupant(interface)?) {
        (Attach::Tc, _) => Ok(true),
        (_, None) => Ok(false),
        // After TC nothing can be handed on to an XDP program.
        (Attach::Auto, Some(_)) if options.next.is_none() => Ok(true),
        (_, Some(occupant)) => Err(xdp::foreign(interface, occupant)),
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

fn failed(doing: impl Into<String>, error: &libbpf_rs::Error) -> DataPlaneError {
    DataPlaneError::bpf(doing, io_error(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_comes_again_is_one() {
        let keys = [1, 2, 3, 1, 2, 4].map(|n| vec![n]);
        let found = each_once(keys.clone().into_iter(), 4);
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [[1], [2], [3], [4]]);
        let endless = keys.into_iter().cycle();
        assert_eq!(each_once(endless, 4).len(), 4);
    }
}
