// SPDX-License-Identifier: Apache-2.0
//! Packets of a running data plane, before and after it, with what it did: user
//! space's half of `bpf/mirror.h`.
//!
//! A mirror is opened by the pins; the process that owns the data plane need not live. One
//! at a time: it holds the program's attention by a deadline that [`Mirror::take`] moves
//! on, so that one that is killed is forgotten after [`LEASE`].

use std::cell::RefCell;
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use causeway_netio::monotonic_ns;
use libbpf_rs::{MapHandle, MapType, RingBuffer, RingBufferBuilder};

pub use crate::abi::MirrorCounts;
use crate::abi::{
    self, CookieResult, MIRROR_BY_CLIENT, MIRROR_BY_VIP, MirrorCtl, MirrorRecord, Plain as _, c,
};
use crate::balancer::{Protocol, VipId};
use crate::error::{DataPlaneError, Result};
use crate::map::{PerCpu, Table, io_error};

/// How long a program goes on copying when its command renews no lease.
pub const LEASE: Duration = Duration::from_secs(5);
/// Time between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(1);
/// Least and most bytes of a frame that are copied.
pub const SNAP_RANGE: (u16, u16) = (96, c::MIRROR_SNAP_MAX);
/// A piece of time in which rates are kept, ns.
const WINDOW_NS: u64 = 1 << c::MIRROR_WINDOW_SHIFT;
/// Packets that one CPU looks at in a window: 490,000 a second.
const SAMPLED_MAX: u32 = 1 << 15;

/// Which packets are wanted, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorOptions {
    /// Only packets to this VIP, and ICMP to its address.
    pub vip: Option<MirrorVip>,
    /// Only packets from these clients: an address and the length of its prefix.
    pub client: Option<(IpAddr, u8)>,
    /// Only packets with one of these verdicts: a bit for each.
    pub verdicts: u64,
    /// Bytes of a frame that are copied; in [`SNAP_RANGE`].
    pub snap: u16,
    /// One packet in this many, by chance; at least 1.
    pub one_in: u32,
    /// Packets a second at most, by all CPUs together; at least 15.
    pub rate_pps: u32,
    /// Bytes that wait for [`Mirror::take`]: a power of two, 4096 at least.
    pub buffer: u32,
}

impl Default for MirrorOptions {
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
pub struct MirrorVip {
    /// The address.
    pub address: IpAddr,
    /// The port; any without one.
    pub port: Option<u16>,
    /// The protocol; any without one.
    pub protocol: Option<Protocol>,
}

impl MirrorOptions {
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
            Some((what, value, min, max)) => Err(DataPlaneError::OutOfRange {
                what,
                value,
                min,
                max,
            }),
        }
    }

    /// The settings, before a command copies.
    fn value(&self) -> MirrorCtl {
        let per_window = u64::from(self.rate_pps) * WINDOW_NS / 1_000_000_000;
        let mut value = MirrorCtl {
            verdicts: self.verdicts,
            owner: std::process::id(),
            snap: self.snap.into(),
            threshold: u32::MAX / self.one_in.max(1),
            exported_max: per_window.max(1) as u32,
            sampled_max: SAMPLED_MAX,
            ..MirrorCtl::default()
        };
        if let Some(vip) = self.vip {
            value.flags |= MIRROR_BY_VIP;
            value.vip_be = abi::addr_bytes(vip.address);
            value.vip_port_be = vip.port.unwrap_or(0).to_be_bytes();
            value.vip_proto = vip.protocol.map_or(0, |protocol| protocol as u8);
        }
        if let Some((address, bits)) = self.client {
            value.flags |= MIRROR_BY_CLIENT;
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
pub struct MirroredFrame {
    /// Bytes of the whole frame.
    pub len: u32,
    /// Its first bytes, from the Ethernet header on.
    pub data: Vec<u8>,
}

impl fmt::Debug for MirroredFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.data.len(), self.len)
    }
}

/// A packet that went through the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirroredPacket {
    /// When it came, by the kernel's monotonic clock.
    pub t_ns: u64,
    /// Whose it was, if a VIP's.
    pub vip: Option<VipId>,
    /// Number of the verdict, among those of the balancer or of the server.
    pub verdict: u8,
    /// What was found out about its cookie, where VIPs have some.
    pub result: Option<CookieResult>,
    /// As it came.
    pub before: MirroredFrame,
    /// As it left; `None` if it was neither sent nor changed in length.
    pub after: Option<MirroredFrame>,
}

impl MirroredPacket {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, frames) = bytes.split_at_checked(size_of::<MirrorRecord>())?;
        let head = MirrorRecord::from_bytes(head)?;
        let (before, after) = frames.split_at_checked(head.before_snap.into())?;
        let after = after.get(..head.after_snap.into())?;
        let frame = |len, data: &[u8]| MirroredFrame {
            len,
            data: data.to_vec(),
        };
        Some(Self {
            t_ns: head.t_ns,
            vip: (head.vip != c::MIRROR_NO_VIP).then_some(head.vip),
            verdict: head.verdict,
            result: CookieResult::ALL.get(usize::from(head.result)).copied(),
            before: frame(head.before_len, before),
            after: (head.after_len > 0).then(|| frame(head.after_len, after)),
        })
    }
}

/// The maps of a program with a mirror.
#[derive(Debug)]
pub struct MirrorMaps {
    /// `mirror_ctl`.
    pub ctl: MapHandle,
    /// `mirror_counts`.
    pub counts: MapHandle,
    /// `mirror_ring`.
    pub ring: MapHandle,
}

impl MirrorMaps {
    /// Those of the data plane pinned in `pin_dir`.
    ///
    /// # Errors
    /// [`DataPlaneError::NoMirror`] if there is none, or one of a build without a mirror.
    pub fn pinned(pin_dir: &Path) -> Result<Self> {
        let open = |name: &str| match MapHandle::from_pinned_path(pin_dir.join(name)) {
            Err(e) if e.kind() == libbpf_rs::ErrorKind::NotFound => {
                Err(DataPlaneError::NoMirror(pin_dir.to_owned()))
            }
            Err(e) if e.kind() == libbpf_rs::ErrorKind::PermissionDenied => {
                Err(DataPlaneError::NotPermitted)
            }
            opened => {
                opened.map_err(|e| DataPlaneError::map("open the pin of", name, io_error(&e)))
            }
        };
        Ok(Self {
            ctl: open("mirror_ctl")?,
            counts: open("mirror_counts")?,
            ring: open("mirror_ring")?,
        })
    }
}

/// A look at a data plane. It ends when this is dropped.
pub struct Mirror {
    ctl: Table<u32, MirrorCtl>,
    counts: PerCpu<MirrorCounts>,
    outer: Table<u32, u32>,
    settings: MirrorCtl,
    /// What the counters had before.
    before: MirrorCounts,
    renewed: Instant,
    reader: RingBuffer<'static>,
    records: Rc<RefCell<Vec<MirroredPacket>>>,
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").finish_non_exhaustive()
    }
}

impl Mirror {
    /// Begins to look.
    ///
    /// # Errors
    /// [`DataPlaneError::MirrorBusy`] while another process looks.
    pub fn open(maps: MirrorMaps, options: &MirrorOptions) -> Result<Self> {
        crate::plane::check_kernel()?;
        options.check()?;
        let ctl = Table::new(maps.ctl)?;
        let held: MirrorCtl = ctl.get(&0)?.unwrap_or_default();
        let settings = options.value();
        if held.until_ns > monotonic_ns() && held.owner != settings.owner {
            return Err(DataPlaneError::MirrorBusy(held.owner));
        }
        let counts = PerCpu::new(maps.counts)?;
        let outer = Table::new(maps.ring)?;
        let ring = new_ring(options.buffer)?;
        let records = Rc::new(RefCell::new(Vec::new()));
        let reader = reader(&ring, records.clone())?;
        ctl.put(&0, &settings)?;
        outer.put(&0, &(ring.as_fd().as_raw_fd() as u32))?;
        let mut mirror = Self {
            before: sum(&counts)?,
            ctl,
            counts,
            outer,
            settings,
            renewed: Instant::now(),
            reader,
            records,
        };
        mirror.renew()?;
        Ok(mirror)
    }

    /// All packets since the last call, in the order in which they were handed on. Does
    /// not wait. To be called often: what finds no room is lost, and counted.
    ///
    /// # Errors
    /// [`DataPlaneError::MirrorBusy`] if another process has taken over, after this one had slept
    /// for longer than [`LEASE`].
    pub fn take(&mut self) -> Result<Vec<MirroredPacket>> {
        if self.renewed.elapsed() >= RENEW_EVERY {
            let held = self.ctl.get(&0)?.unwrap_or_default();
            if held.owner != self.settings.owner {
                return Err(DataPlaneError::MirrorBusy(held.owner));
            }
            self.renew()?;
        }
        self.reader
            .consume()
            .map_err(|e| DataPlaneError::bpf("read the mirror's packets", io_error(&e)))?;
        Ok(self.records.take())
    }

    /// What the program counted since the mirror was opened.
    pub fn counts(&self) -> Result<MirrorCounts> {
        let (now, before) = (sum(&self.counts)?, &self.before);
        Ok(MirrorCounts {
            seen: now.seen - before.seen,
            matched: now.matched - before.matched,
            skipped: now.skipped - before.skipped,
            over_rate: now.over_rate - before.over_rate,
            lost: now.lost - before.lost,
            exported: now.exported - before.exported,
        })
    }

    fn renew(&mut self) -> Result<()> {
        self.settings.until_ns = monotonic_ns() + LEASE.as_nanos() as u64;
        self.ctl.put(&0, &self.settings)?;
        self.renewed = Instant::now();
        Ok(())
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let held = self.ctl.get(&0).ok().flatten().unwrap_or_default();
        if held.owner == self.settings.owner {
            // A program that cannot be reached stops by itself after the lease.
            let _ = self.ctl.put(&0, &MirrorCtl::default());
            let _ = self.outer.remove(&0);
        }
    }
}

fn new_ring(bytes: u32) -> Result<MapHandle> {
    let opts = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    MapHandle::create(MapType::RingBuf, Some("cw_mirror"), 0, 0, bytes, &opts)
        .map_err(|e| DataPlaneError::map("make", "cw_mirror", io_error(&e)))
}

fn reader(ring: &MapHandle, sink: Rc<RefCell<Vec<MirroredPacket>>>) -> Result<RingBuffer<'static>> {
    let failed = |e: libbpf_rs::Error| DataPlaneError::bpf("read the mirror's ring", io_error(&e));
    let mut builder = RingBufferBuilder::new();
    builder
        .add(ring, move |bytes| {
            sink.borrow_mut().extend(MirroredPacket::from_bytes(bytes));
            0
        })
        .map_err(failed)?;
    builder.build().map_err(failed)
}

fn sum(counts: &PerCpu<MirrorCounts>) -> Result<MirrorCounts> {
    let all = counts.first(1, |sum, cpu| {
        sum.seen += cpu.seen;
        sum.matched += cpu.matched;
        sum.skipped += cpu.skipped;
        sum.over_rate += cpu.over_rate;
        sum.lost += cpu.lost;
        sum.exported += cpu.exported;
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
        let options = MirrorOptions {
            client: Some(("198.51.100.77".parse().unwrap(), 24)),
            ..MirrorOptions::default()
        };
        let expected = abi::addr_bytes("198.51.100.0".parse().unwrap());
        assert_eq!(options.value().client_be, expected);
    }

    #[test]
    fn rates_are_kept_in_windows() {
        let taken = |rate_pps| {
            let options = MirrorOptions {
                rate_pps,
                ..MirrorOptions::default()
            };
            options.value().exported_max
        };
        assert_eq!(taken(15), 1);
        assert_eq!(taken(10_000), 671);
        let refused = MirrorOptions {
            rate_pps: 14,
            ..MirrorOptions::default()
        }
        .check();
        assert_eq!(
            refused.unwrap_err().to_string(),
            "rate must be from 15 to 1000000, not 14"
        );
    }

    #[test]
    fn records_that_are_cut_are_none() {
        let head = MirrorRecord {
            before_len: 100,
            after_len: 120,
            before_snap: 3,
            after_snap: 4,
            vip: c::MIRROR_NO_VIP,
            result: u8::MAX,
            ..MirrorRecord::default()
        };
        let bytes = [head.as_bytes(), b"abcABCD"].concat();
        let mirrored = MirroredPacket::from_bytes(&bytes).unwrap();
        assert_eq!(mirrored.before.data, b"abc");
        let after = mirrored.after.unwrap();
        assert_eq!((after.len, &*after.data), (120, &b"ABCD"[..]));
        assert_eq!((mirrored.vip, mirrored.result), (None, None));
        for len in 0..bytes.len() {
            assert_eq!(MirroredPacket::from_bytes(&bytes[..len]), None, "{len}");
        }
    }
}
