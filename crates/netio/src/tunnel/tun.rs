// SPDX-License-Identifier: Apache-2.0
//! TUN devices with virtio headers: what TCP hands down as one buffer of up to 64 KiB is
//! read as one frame, and goes up as one at the other end, without being segmented,
//! checksummed or merged on the way.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::{mem, thread};

use nix::sched::{CloneFlags, setns};

use super::{TunnelError, address};

/// Bytes of `struct virtio_net_hdr` in front of every frame.
pub const VNET_HEADER: usize = 10;
/// Largest frame: virtio header and the largest IP packet.
pub const FRAME_MAX: usize = VNET_HEADER + 65_535;

// linux/if_tun.h, which libc has in part.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETPERSIST: libc::c_ulong = 0x4004_54cb;
const TUNSETOFFLOAD: libc::c_ulong = 0x4004_54d0;
const TUNGETIFF: libc::c_ulong = 0x8004_54d2;
const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;
const TUNSETVNETLE: libc::c_ulong = 0x4004_54dc;
const TUN_F_CSUM: libc::c_ulong = 0x01;
const TUN_F_TSO4: libc::c_ulong = 0x02;
const TUN_F_TSO6: libc::c_ulong = 0x04;
const TUN_F_TSO_ECN: libc::c_ulong = 0x08;
const TCP_OFFLOADS: libc::c_ulong = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
/// Linux 6.2 and newer.
const TUN_F_USO: libc::c_ulong = 0x20 | 0x40;

/// What a tunnel's device is to be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Its name.
    pub name: String,
    /// Queues: one for each thread.
    pub queues: usize,
    /// File of the network namespace that it lives in; `None`: that of the caller.
    pub namespace: Option<PathBuf>,
    /// The guests' MTU.
    pub mtu: u32,
    /// Packets that wait in it for the tunnel; `None`: as the kernel has it.
    pub queue_packets: Option<u32>,
    /// Addresses with their prefix lengths.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether it stays, with its addresses and routes, when the tunnel ends.
    pub persist: bool,
    /// Whether frames are super-packets with virtio headers. Without, every read gives
    /// one packet of at most the MTU, and no header.
    pub super_packets: bool,
}

/// A device that is up.
#[derive(Debug)]
pub struct Device {
    /// One for each thread.
    pub queues: Vec<Tun>,
    /// Whether the kernel hands over UDP datagrams merged, too, and takes them so.
    pub merges_udp: bool,
}

/// One queue of a TUN device. The kernel keeps a flow on the queue that its packets are
/// written to.
#[derive(Debug)]
pub struct Tun {
    file: File,
    /// Whether the kernel can hand over UDP datagrams merged.
    can_merge_udp: bool,
}

impl Device {
    /// Makes the device or takes the persistent one, sets it up and brings it up.
    pub fn open(options: &DeviceOptions) -> Result<Self, TunnelError> {
        let Some(path) = &options.namespace else {
            return open_here(options);
        };
        let entry = |cause| TunnelError::Namespace {
            path: path.clone(),
            cause,
        };
        let namespace = File::open(path).map_err(entry)?;
        // setns(2) is for the calling thread only.
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|e| entry(e.into()))?;
                open_here(options)
            });
            inside
                .join()
                .unwrap_or_else(|_| Err(entry(io::Error::other("the thread panicked"))))
        })
    }
}

impl Tun {
    /// Reads a frame; `None` when there is none.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        none_if_transient((&self.file).read(buffer))
    }

    /// Reads a frame into pieces, one after the other; `None` when there is none.
    pub fn read_pieces(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        none_if_transient((&self.file).read_vectored(pieces))
    }

    /// Fails as a read does once the device is gone, and takes no frame.
    pub fn check(&self) -> io::Result<()> {
        // SAFETY: plain data; all zeroes is a valid value.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        // SAFETY: an open descriptor and a live ifreq, as TUNGETIFF expects.
        if unsafe { libc::ioctl(self.file.as_raw_fd(), TUNGETIFF, &mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Whether the guests' UDP datagrams are to come merged, where the kernel can do that. One
    /// queue speaks for all of its device. What waits in the device stays as it is.
    pub fn merge_udp(&self, merge: bool) -> io::Result<()> {
        if !self.can_merge_udp {
            return Ok(());
        }
        let udp = if merge { TUN_F_USO } else { 0 };
        ioctl(&self.file, TUNSETOFFLOAD, TCP_OFFLOADS | udp)
    }

    /// Writes a frame out of its pieces. The guest's kernel works on it before this
    /// returns.
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        // SAFETY: IoSlice has the layout of iovec; the pieces live through the call.
        let written = unsafe {
            libc::writev(
                self.file.as_raw_fd(),
                pieces.as_ptr().cast(),
                pieces.len() as libc::c_int,
            )
        };
        if written < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn none_if_transient(read: io::Result<usize>) -> io::Result<Option<usize>> {
    match read {
        Ok(length) => Ok(Some(length)),
        Err(error) if is_transient(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether trying again later is all there is to do.
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

fn open_here(options: &DeviceOptions) -> Result<Device, TunnelError> {
    let failed = |doing: &'static str| {
        let device = options.name.clone();
        move |cause| TunnelError::Device {
            device,
            doing,
            cause,
        }
    };
    let mut queues = Vec::with_capacity(options.queues);
    let mut merges_udp = false;
    for _ in 0..options.queues {
        let (queue, merges) = open_queue(options)?;
        merges_udp = merges;
        queues.push(queue);
    }
    let Some(first) = queues.first() else {
        let none = io::Error::from(io::ErrorKind::InvalidInput);
        return Err(failed("open it without a queue")(none));
    };
    ioctl(
        &first.file,
        TUNSETPERSIST,
        libc::c_ulong::from(options.persist),
    )
    .map_err(failed("keep it or not"))?;
    let name = &options.name;
    address::set_mtu(name, options.mtu).map_err(failed("set its MTU"))?;
    if let Some(packets) = options.queue_packets {
        address::set_queue(name, packets).map_err(failed("set its queue"))?;
    }
    address::add(name, &options.addresses).map_err(failed("give it its addresses"))?;
    address::up(name).map_err(failed("bring it up"))?;
    Ok(Device { queues, merges_udp })
}

fn open_queue(options: &DeviceOptions) -> Result<(Tun, bool), TunnelError> {
    let name = &options.name;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun");
    let file = opened.map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound => TunnelError::NoTun,
        io::ErrorKind::PermissionDenied => TunnelError::NotPermitted(name.clone()),
        _ => TunnelError::Device {
            device: name.clone(),
            doing: "open /dev/net/tun",
            cause,
        },
    })?;
    let mut flags = libc::IFF_TUN | libc::IFF_NO_PI;
    if options.super_packets {
        flags |= libc::IFF_VNET_HDR;
    }
    if options.queues > 1 {
        flags |= libc::IFF_MULTI_QUEUE;
    }
    let failed = |doing| {
        let device = name.clone();
        move |cause| TunnelError::Device {
            device,
            doing,
            cause,
        }
    };
    let mut request = address::request(name).map_err(failed("take its name"))?;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: an open descriptor and a live ifreq, as TUNSETIFF expects.
    if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &mut request) } < 0 {
        let cause = io::Error::last_os_error();
        return Err(match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => TunnelError::NotPermitted(name.clone()),
            Some(libc::EBUSY) => TunnelError::DeviceBusy(name.clone()),
            Some(libc::EINVAL) => TunnelError::OtherDevice(name.clone()),
            _ => failed("make it")(cause),
        });
    }
    let merges_udp = match options.super_packets {
        true => set_offloads(&file).map_err(failed("switch its offloads on"))?,
        false => false,
    };
    let queue = Tun {
        file,
        can_merge_udp: merges_udp,
    };
    Ok((queue, merges_udp))
}

/// Whether UDP is merged, too.
fn set_offloads(queue: &File) -> io::Result<bool> {
    let size: libc::c_int = VNET_HEADER as libc::c_int;
    // The wire is little-endian whatever the machines at its ends are.
    let little: libc::c_int = 1;
    for (code, value) in [(TUNSETVNETHDRSZ, &size), (TUNSETVNETLE, &little)] {
        // SAFETY: an open descriptor and a live integer, as both codes expect.
        if unsafe { libc::ioctl(queue.as_raw_fd(), code, value) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    if ioctl(queue, TUNSETOFFLOAD, TCP_OFFLOADS | TUN_F_USO).is_ok() {
        return Ok(true);
    }
    ioctl(queue, TUNSETOFFLOAD, TCP_OFFLOADS).map(|()| false)
}

fn ioctl(queue: &File, code: libc::c_ulong, value: libc::c_ulong) -> io::Result<()> {
    // SAFETY: an open descriptor; the codes used here take an integer.
    if unsafe { libc::ioctl(queue.as_raw_fd(), code, value) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
