// SPDX-License-Identifier: Apache-2.0
//! Packets of a running data plane, before and after it, with what it did: user
//! space's half of `bpf/lib/tap.h`.
//!
//! A tap is opened by the pins; the process that owns the data plane need not live. One
//! at a time: it holds the program's attention by a deadline that [`Tap::take`] moves
//! on, so that one that is killed is forgotten after [`LEASE`].

use std::cell::RefCell;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use libbpf_rs::{MapHandle, MapType, RingBuffer, RingBufferBuilder};

use crate::abi::{self, CookieResult, Plain as _, TAP_BY_CLIENT, TAP_BY_VIP, TapCtl, TapRecord, c};
use crate::balancer::{self, Protocol, Real, RealId, Vip, VipId};
use crate::error::{Error, Result};
use crate::map::{PerCpu, Table, io_error};
use crate::monotonic_ns;

pub use crate::abi::TapCounts;

/// How long a program looks on when nobody asks any more.
pub const LEASE: Duration = Duration::from_secs(5);
/// Time between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Least and most bytes of a frame that are copied.
pub const SNAP_RANGE: (u16, u16) = (96, c::TAP_SNAP_MAX);
/// A piece of time in which rates are kept, ns.
const WINDOW_NS: u64 = 1 << c::TAP_WINDOW_SHIFT;
/// Packets that one CPU looks at in a window: 490,000 a second.
const LOOKED_MAX: u32 = 1 << 15;

/// Which packets are wanted, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// Only packets to this VIP, and ICMP to its address.
    pub vip: Option<TapVip>,
    /// Only packets from these clients: an address and the length of its prefix.
    pub client: Option<(IpAddr, u8)>,
    /// Only packets with one of these verdicts: a bit for each.
    pub verdicts: u64,
    /// Bytes of a frame that are copied; in [`SNAP_RANGE`].
    pub snap: u16,
    /// One packet in so many, by chance; at least 1.
    pub one_in: u32,
    /// Packets a second at most, by all CPUs together; at least 15.
    pub rate_pps: u32,
    /// Bytes that wait for [`Tap::take`]: a power of two, 4096 at least.
    pub buffer: u32,
}

impl Default for TapOptions {
    /// Every packet, 256 bytes of it, 10,000 a second at most, 4 MiB of waiting.
    fn default() -> Self {
        Self {
            vip: None,
            client: None,
            verdicts: u64::MAX,
            snap: 256,
            one_in: 1,
            rate_pps: 10_000,
            buffer: 1 << 22,
        }
    }
}

/// A VIP, or several of one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapVip {
    /// The address.
    pub address: IpAddr,
    /// The port; any without one.
    pub port: Option<u16>,
    /// The protocol; any without one.
    pub protocol: Option<Protocol>,
}

impl TapOptions {
    fn check(&self) -> Result<()> {
        let (least, most) = SNAP_RANGE;
        let ranges = [
            ("snaplen", u64::from(self.snap), least.into(), most.into()),
            ("sample", self.one_in.into(), 1, u32::MAX.into()),
            ("rate", self.rate_pps.into(), 15, 1_000_000),
        ];
        match ranges
            .into_iter()
            .find(|(_, value, min, max)| value < min || value > max)
        {
            None => Ok(()),
            Some((what, value, min, max)) => Err(Error::OutOfRange {
                what,
                value,
                min,
                max,
            }),
        }
    }

    /// The settings, with nobody looking yet.
    fn value(&self) -> TapCtl {
        let per_window = u64::from(self.rate_pps) * WINDOW_NS / 1_000_000_000;
        let mut value = TapCtl {
            verdicts: self.verdicts,
            owner: std::process::id(),
            snap: self.snap.into(),
            threshold: u32::MAX / self.one_in.max(1),
            taken_max: per_window.max(1) as u32,
            looked_max: LOOKED_MAX,
            ..TapCtl::default()
        };
        if let Some(vip) = self.vip {
            value.flags |= TAP_BY_VIP;
            value.vip_be = abi::addr_bytes(vip.address);
            value.vip_port_be = vip.port.unwrap_or(0).to_be_bytes();
            value.vip_proto = vip.protocol.map_or(0, |protocol| protocol as u8);
        }
        if let Some((address, bits)) = self.client {
            value.flags |= TAP_BY_CLIENT;
            value.client_mask_be = mask(address, bits);
            value.client_be = abi::addr_bytes(address);
            for (byte, mask) in value.client_be.iter_mut().zip(value.client_mask_be) {
                *byte &= mask;
            }
        }
        value
    }
}

/// The mask of a prefix in the 16 bytes of an address.
fn mask(address: IpAddr, bits: u8) -> [u8; 16] {
    let bits = match address {
        IpAddr::V4(_) => 96 + u32::from(bits.min(32)),
        IpAddr::V6(_) => u32::from(bits.min(128)),
    };
    let ones = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    ones.to_be_bytes()
}

/// A frame as far as it was copied.
#[derive(Clone, PartialEq, Eq)]
pub struct TappedFrame {
    /// Bytes of the whole frame.
    pub len: u32,
    /// Its first bytes, from the Ethernet header on.
    pub data: Vec<u8>,
}

impl fmt::Debug for TappedFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.data.len(), self.len)
    }
}

/// A packet that went through the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tapped {
    /// When it came, by the kernel's monotonic clock.
    pub t_ns: u64,
    /// Whose it was, if a VIP's.
    pub vip: Option<VipId>,
    /// Number of the verdict, among those of the balancer or of the server.
    pub verdict: u8,
    /// What was found out about its cookie, where VIPs have some.
    pub result: Option<CookieResult>,
    /// As it came.
    pub before: TappedFrame,
    /// As it left; `None` if it was neither sent nor changed in length.
    pub after: Option<TappedFrame>,
}

impl Tapped {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, frames) = bytes.split_at_checked(size_of::<TapRecord>())?;
        let head = TapRecord::from_bytes(head)?;
        let (before, after) = frames.split_at_checked(head.before_snap.into())?;
        let after = after.get(..head.after_snap.into())?;
        let frame = |len, data: &[u8]| TappedFrame {
            len,
            data: data.to_vec(),
        };
        Some(Self {
            t_ns: head.t_ns,
            vip: (head.vip != c::TAP_NO_VIP).then_some(head.vip),
            verdict: head.verdict,
            result: CookieResult::ALL.get(usize::from(head.result)).copied(),
            before: frame(head.before_len, before),
            after: (head.after_len > 0).then(|| frame(head.after_len, after)),
        })
    }
}

/// The maps of a program with a tap.
#[derive(Debug)]
pub struct TapMaps {
    /// `tap_ctl`.
    pub ctl: MapHandle,
    /// `tap_counts`.
    pub counts: MapHandle,
    /// `tap_ring`.
    pub ring: MapHandle,
}

impl TapMaps {
    /// Those of the data plane pinned in `pin_dir`.
    ///
    /// # Errors
    /// [`Error::NoTap`] if there is none, or one of a build without a tap.
    pub fn pinned(pin_dir: &Path) -> Result<Self> {
        let open = |name: &str| match MapHandle::from_pinned_path(pin_dir.join(name)) {
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => {
                Err(Error::NoTap(pin_dir.to_owned()))
            }
            opened => opened.map_err(|e| Error::map("open the pin of", name, io_error(&e))),
        };
        Ok(Self {
            ctl: open("tap_ctl")?,
            counts: open("tap_counts")?,
            ring: open("tap_ring")?,
        })
    }
}

/// A look at a data plane. It ends when this is dropped.
pub struct Tap {
    ctl: Table<u32, TapCtl>,
    counts: PerCpu<TapCounts>,
    outer: Table<u32, u32>,
    settings: TapCtl,
    /// What the counters had before.
    before: TapCounts,
    renewed: Instant,
    reader: RingBuffer<'static>,
    records: Rc<RefCell<Vec<Tapped>>>,
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").finish_non_exhaustive()
    }
}

impl Tap {
    /// Begins to look.
    ///
    /// # Errors
    /// [`Error::TapBusy`] while another process looks.
    pub fn open(maps: TapMaps, options: &TapOptions) -> Result<Self> {
        crate::plane::check_kernel()?;
        options.check()?;
        let ctl = Table::new(maps.ctl)?;
        let held: TapCtl = ctl.get(&0)?.unwrap_or_default();
        let settings = options.value();
        if held.until_ns > monotonic_ns() && held.owner != settings.owner {
            return Err(Error::TapBusy(held.owner));
        }
        let counts = PerCpu::new(maps.counts)?;
        let outer = Table::new(maps.ring)?;
        let ring = new_ring(options.buffer)?;
        let records = Rc::new(RefCell::new(Vec::new()));
        let reader = reader(&ring, records.clone())?;
        ctl.put(&0, &settings)?;
        outer.put(&0, &(ring.as_fd().as_raw_fd() as u32))?;
        let mut tap = Self {
            before: sum(&counts)?,
            ctl,
            counts,
            outer,
            settings,
            renewed: Instant::now(),
            reader,
            records,
        };
        tap.renew()?;
        Ok(tap)
    }

    /// All packets since the last call, in the order in which they were handed on. Does
    /// not wait. To be called often: what finds no room is lost, and counted.
    ///
    /// # Errors
    /// [`Error::TapBusy`] if another process has taken over, after this one had slept
    /// for longer than [`LEASE`].
    pub fn take(&mut self) -> Result<Vec<Tapped>> {
        if self.renewed.elapsed() >= RENEW_EVERY {
            let held = self.ctl.get(&0)?.unwrap_or_default();
            if held.owner != self.settings.owner {
                return Err(Error::TapBusy(held.owner));
            }
            self.renew()?;
        }
        self.reader
            .consume()
            .map_err(|e| Error::bpf("read the tap's packets", io_error(&e)))?;
        Ok(self.records.take())
    }

    /// What the program counted since the tap was opened.
    pub fn counts(&self) -> Result<TapCounts> {
        let (now, before) = (sum(&self.counts)?, &self.before);
        Ok(TapCounts {
            seen: now.seen - before.seen,
            matched: now.matched - before.matched,
            unlooked: now.unlooked - before.unlooked,
            over_rate: now.over_rate - before.over_rate,
            lost: now.lost - before.lost,
            taken: now.taken - before.taken,
        })
    }

    fn renew(&mut self) -> Result<()> {
        self.settings.until_ns = monotonic_ns() + LEASE.as_nanos() as u64;
        self.ctl.put(&0, &self.settings)?;
        self.renewed = Instant::now();
        Ok(())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let held = self.ctl.get(&0).ok().flatten().unwrap_or_default();
        if held.owner == self.settings.owner {
            // Whoever cannot be told stops by itself after the lease.
            let _ = self.ctl.put(&0, &TapCtl::default());
            let _ = self.outer.remove(&0);
        }
    }
}

/// VIPs and reals of a balancer, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// The VIPs.
    pub vips: Vec<(VipId, Vip)>,
    /// The reals.
    pub reals: Vec<(RealId, Real)>,
}

impl Pool {
    /// What the balancer pinned in `pin_dir` has now.
    pub fn pinned(pin_dir: &Path) -> Result<Self> {
        balancer::pinned_pool(pin_dir)
    }
}

fn new_ring(bytes: u32) -> Result<MapHandle> {
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(MapType::RingBuf, Some("cw_tap"), 0, 0, bytes, &opts)
        .map_err(|e| Error::map("make", "cw_tap", io_error(&e)))
}

fn reader(ring: &MapHandle, sink: Rc<RefCell<Vec<Tapped>>>) -> Result<RingBuffer<'static>> {
    let failed = |e: libbpf_rs::Error| Error::bpf("read the tap's ring", io_error(&e));
    let mut builder = RingBufferBuilder::new();
    builder
        .add(ring, move |bytes| {
            sink.borrow_mut().extend(Tapped::from_bytes(bytes));
            0
        })
        .map_err(failed)?;
    builder.build().map_err(failed)
}

fn sum(counts: &PerCpu<TapCounts>) -> Result<TapCounts> {
    let all = counts.first(1, |sum, cpu| {
        sum.seen += cpu.seen;
        sum.matched += cpu.matched;
        sum.unlooked += cpu.unlooked;
        sum.over_rate += cpu.over_rate;
        sum.lost += cpu.lost;
        sum.taken += cpu.taken;
    })?;
    Ok(all.first().copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_become_masks() {
        let bits = |address: &str, bits| {
            let mask = mask(address.parse().unwrap(), bits);
            mask.iter().map(|byte| byte.count_ones()).sum::<u32>()
        };
        assert_eq!(bits("192.0.2.1", 0), 96);
        assert_eq!(bits("192.0.2.1", 24), 120);
        assert_eq!(bits("2001:db8::1", 0), 0);
        assert_eq!(bits("2001:db8::1", 48), 48);
        assert_eq!(bits("2001:db8::1", 128), 128);
        let options = TapOptions {
            client: Some(("198.51.100.77".parse().unwrap(), 24)),
            ..TapOptions::default()
        };
        let expected = abi::addr_bytes("198.51.100.0".parse().unwrap());
        assert_eq!(options.value().client_be, expected);
    }

    #[test]
    fn rates_are_kept_in_windows() {
        let taken = |rate_pps| {
            let options = TapOptions {
                rate_pps,
                ..TapOptions::default()
            };
            options.value().taken_max
        };
        assert_eq!(taken(15), 1);
        assert_eq!(taken(10_000), 671);
        let refused = TapOptions {
            rate_pps: 14,
            ..TapOptions::default()
        }
        .check();
        assert_eq!(
            refused.unwrap_err().to_string(),
            "rate must be from 15 to 1000000, not 14"
        );
    }

    #[test]
    fn records_that_are_cut_are_none() {
        let head = TapRecord {
            before_len: 100,
            after_len: 120,
            before_snap: 3,
            after_snap: 4,
            vip: c::TAP_NO_VIP,
            result: u8::MAX,
            ..TapRecord::default()
        };
        let bytes = [head.as_bytes(), b"abcABCD"].concat();
        let tapped = Tapped::from_bytes(&bytes).unwrap();
        assert_eq!(tapped.before.data, b"abc");
        let after = tapped.after.unwrap();
        assert_eq!((after.len, &*after.data), (120, &b"ABCD"[..]));
        assert_eq!((tapped.vip, tapped.result), (None, None));
        for len in 0..bytes.len() {
            assert_eq!(Tapped::from_bytes(&bytes[..len]), None, "{len}");
        }
    }
}
