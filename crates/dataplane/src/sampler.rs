// SPDX-License-Identifier: Apache-2.0
//! `bpf/rtt.bpf.c` on an interface: TCP packets of one port, sampled or all.

use std::cell::RefCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::rc::Rc;

use causeway_core::estimate::Packet;
use causeway_core::rtt::{Flow, Seen};
use causeway_netio::Interface;
use libbpf_rs::skel::{OpenSkel as _, SkelBuilder as _};
use libbpf_rs::{MapHandle, OpenObject, RingBuffer, RingBufferBuilder};

use crate::abi::{self, Plain as _, RTT_OUTGOING, RTT_SAMPLED, RTT_TIMESTAMP, RttRecord};
use crate::error::{DataPlaneError, Result};
use crate::map::{io_error, read_counter};
use crate::plane;
use crate::skel::rtt::{RttSkel, RttSkelBuilder};
use crate::tc::{TcDirection, TcLink};

/// `ARPHRD_ETHER` and `ARPHRD_LOOPBACK` (linux/if_arp.h): packets begin with an
/// Ethernet header.
const WITH_LINK_HEADER: [u32; 2] = [1, 772];

/// What to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SamplerOptions {
    /// The interface, by name.
    pub interface: String,
    /// The server's TCP port.
    pub port: u16,
    /// Sample 1 packet in this many; 0: none.
    pub one_in: u32,
    /// Take every packet of the port, and mark those that sampling would take.
    pub follow: bool,
}

/// A sampler on an interface. It belongs to this process and leaves with it.
pub struct Sampler {
    ring: RingBuffer<'static>,
    records: Rc<RefCell<Vec<RttRecord>>>,
    // The links before the programs that they hold.
    _links: [TcLink; 2],
    skel: RttSkel<'static>,
}

impl fmt::Debug for Sampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sampler").finish_non_exhaustive()
    }
}

impl Sampler {
    /// Loads the sampler and puts it on the interface, both ways.
    ///
    /// # Errors
    /// No rights, no such interface.
    pub fn start(options: &SamplerOptions) -> Result<Self> {
        Self::start_with(options, TcLink::attach)
    }

    /// The same by clsact filters, as on kernels before 6.6.
    ///
    /// # Errors
    /// As [`Sampler::start`].
    pub fn start_with_filters(options: &SamplerOptions) -> Result<Self> {
        Self::start_with(options, TcLink::filter)
    }

    fn start_with(
        options: &SamplerOptions,
        attach: impl Fn(std::os::fd::BorrowedFd<'_>, &Interface, TcDirection) -> Result<TcLink>,
    ) -> Result<Self> {
        plane::check_kernel()?;
        let interface = Interface::find(&options.interface)?;
        let skel = load(options)?;
        let links = [
            attach(
                skel.progs.causeway_rtt_out.as_fd(),
                &interface,
                TcDirection::Out,
            )?,
            attach(
                skel.progs.causeway_rtt_in.as_fd(),
                &interface,
                TcDirection::In,
            )?,
        ];
        let map = MapHandle::try_from(&skel.maps.records).map_err(|e| failed("open a map", &e))?;
        let records = Rc::new(RefCell::new(Vec::new()));
        Ok(Self {
            ring: ring_buffer(&map, records.clone())?,
            records,
            _links: links,
            skel,
        })
    }

    /// Everything taken since the last call, these in the order of time. Does not wait; the kernel
    /// keeps about 50,000 packets until then.
    ///
    /// # Errors
    /// Those of the ring buffer.
    pub fn take(&mut self) -> Result<Vec<Seen>> {
        self.ring
            .consume()
            .map_err(|e| failed("read the sampler's records", &e))?;
        let mut taken: Vec<Seen> = self.records.take().iter().map(seen).collect();
        // A CPU may be held up between its look at the clock and its place in the ring.
        taken.sort_by_key(|seen| seen.t_ns);
        Ok(taken)
    }

    /// Packets lost because the reader did not take them in time.
    pub fn lost(&self) -> u64 {
        let bss = self.skel.maps.bss_data.as_deref();
        bss.map_or(0, |bss| read_counter(&bss.lost_records))
    }
}

/// The interface that has this address.
#[must_use]
pub fn interface_of(address: IpAddr) -> Option<String> {
    let all = nix::ifaddrs::getifaddrs().ok()?;
    let has = |storage: &nix::sys::socket::SockaddrStorage| {
        let four = storage.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        let six = storage.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip()));
        four.or(six) == Some(address.to_canonical())
    };
    all.into_iter()
        .find(|interface| interface.address.as_ref().is_some_and(has))
        .map(|interface| interface.interface_name)
}

/// A random number of 32 bits up to this is one in `one_in`.
fn threshold(one_in: u32) -> u32 {
    match one_in {
        0 => 0,
        n => u32::MAX / n,
    }
}

fn load(options: &SamplerOptions) -> Result<RttSkel<'static>> {
    // Given up until the process ends, which starts one sampler, or a few.
    let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
    let mut open = RttSkelBuilder::default()
        .open(storage)
        .map_err(|e| failed("open the sampler's object", &e))?;
    if let Some(rodata) = open.maps.rodata_data.as_deref_mut() {
        rodata.cfg_threshold = threshold(options.one_in);
        rodata.cfg_follow = options.follow;
        rodata.cfg_link_header = has_link_header(&options.interface);
        rodata.cfg_port_be = options.port.to_be();
    }
    open.load().map_err(|cause| DataPlaneError::Load {
        program: "causeway_rtt",
        cause,
    })
}

/// Whether packets begin with an Ethernet header; where it is unknown, they do.
fn has_link_header(interface: &str) -> bool {
    let path = format!("/sys/class/net/{interface}/type");
    let kind = std::fs::read_to_string(path).ok();
    let kind = kind.and_then(|text| text.trim().parse().ok());
    kind.is_none_or(|kind: u32| WITH_LINK_HEADER.contains(&kind))
}

fn seen(record: &RttRecord) -> Seen {
    let end =
        |addr, port_be| SocketAddr::new(abi::addr_from_bytes(addr), u16::from_be_bytes(port_be));
    Seen {
        t_ns: record.t_ns,
        flow: Flow {
            local: end(record.local, record.local_port_be),
            remote: end(record.remote, record.remote_port_be),
        },
        outgoing: record.bits & RTT_OUTGOING != 0,
        sampled: record.bits & RTT_SAMPLED != 0,
        tsval: record.tsval,
        packet: Packet {
            t_ns: record.t_ns,
            ip_len: record.ip_len,
            payload_len: record.payload_len,
            seq: record.seq,
            ack: record.ack,
            tsecr: record.tsecr,
            tcp_flags: record.tcp_flags,
            has_ts: record.bits & RTT_TIMESTAMP != 0,
            proto: Packet::TCP,
            opaque: false,
        },
    }
}

fn ring_buffer(map: &MapHandle, sink: Rc<RefCell<Vec<RttRecord>>>) -> Result<RingBuffer<'static>> {
    let mut builder = RingBufferBuilder::new();
    builder
        .add(map, move |bytes| {
            sink.borrow_mut().extend(RttRecord::from_bytes(bytes));
            0
        })
        .map_err(|e| failed("read the ring buffer", &e))?;
    builder
        .build()
        .map_err(|e| failed("read the ring buffer", &e))
}

fn failed(doing: &str, error: &libbpf_rs::Error) -> DataPlaneError {
    DataPlaneError::bpf(doing, io_error(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_n_is_that_share_of_all_numbers() {
        assert_eq!(threshold(0), 0);
        assert_eq!(threshold(1), u32::MAX);
        for n in [2, 8, 1000] {
            let share = f64::from(threshold(n)) / f64::from(u32::MAX);
            assert!((share * f64::from(n) - 1.0).abs() < 1e-6);
        }
    }
}
