// SPDX-License-Identifier: Apache-2.0
//! As much of AF_XDP as the comparison needs: a socket on a device's only queue, in copy
//! mode, with its memory (UMEM), its four rings, and the program that leads packets to it.
//!
//! Memory and rings are never unmapped: they are needed until the process ends.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{io, mem};

use libbpf_sys as bpf;
use nix::net::if_::if_nametoindex;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};

/// Bytes of memory for one packet, which must be a power of two up to a page.
pub const SLOT: usize = 2048;
/// linux/if_xdp.h, since Linux 6.18: packets that one call sends at most, 32 by default.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
/// linux/if_link.h.
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// One ring of descriptors between this process and the kernel. Each side writes one of
/// the two indices; ours is `at` and becomes visible by [`Ring::publish`].
pub struct Ring<T> {
    ours: NonNull<AtomicU32>,
    theirs: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    at: u32,
}

// SAFETY: the pointers lead to a mapping of the process that nobody else has.
unsafe impl<T> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `entries` (a power of two) that `offset` stands for.
    fn map(
        fd: &OwnedFd,
        offset: u64,
        at: &libc::xdp_ring_offset,
        entries: u32,
        produced_here: bool,
    ) -> io::Result<Self> {
        let bytes = at.desc as usize + entries as usize * size_of::<T>();
        let bytes = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(None, bytes, access, flags, fd, offset as libc::off_t) }?;
        // SAFETY: the kernel tells offsets inside the mapping, aligned for what is there.
        let (producer, consumer, flags, entries_at) = unsafe {
            (
                start.byte_add(at.producer as usize).cast(),
                start.byte_add(at.consumer as usize).cast(),
                start.byte_add(at.flags as usize).cast(),
                start.byte_add(at.desc as usize).cast(),
            )
        };
        let (ours, theirs) = match produced_here {
            true => (producer, consumer),
            false => (consumer, producer),
        };
        Ok(Self {
            ours,
            theirs,
            flags,
            entries: entries_at,
            mask: entries - 1,
            at: 0,
        })
    }

    /// How far the kernel's index is ahead of ours: entries to be taken; 0 less entries of
    /// ours that it has not taken yet.
    pub fn ahead(&self) -> i32 {
        // SAFETY: an aligned word of a mapping that stays.
        let theirs = unsafe { self.theirs.as_ref() }.load(Ordering::Acquire);
        theirs.wrapping_sub(self.at) as i32
    }

    /// Adds an entry, for which the caller knows that there is room.
    pub fn put(&mut self, entry: T) {
        // SAFETY: the masked index is inside the ring, and the kernel looks at the entry
        // after `publish` only.
        unsafe {
            self.entries
                .add((self.at & self.mask) as usize)
                .write(entry)
        };
        self.at = self.at.wrapping_add(1);
    }

    /// Takes the next entry, for which the caller has asked [`Ring::ahead`].
    pub fn take(&mut self) -> T {
        // SAFETY: as above; the kernel wrote it before it moved its index.
        let entry = unsafe { self.entries.add((self.at & self.mask) as usize).read() };
        self.at = self.at.wrapping_add(1);
        entry
    }

    /// Shows the kernel what was put or taken.
    pub fn publish(&self) {
        // SAFETY: an aligned word of a mapping that stays.
        unsafe { self.ours.as_ref() }.store(self.at, Ordering::Release);
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as above.
        let flags = unsafe { self.flags.as_ref() }.load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A socket that sends and receives whole Ethernet frames.
pub struct Xsk {
    fd: OwnedFd,
    memory: NonNull<c_void>,
    bytes: usize,
    /// Slots that the kernel may write packets to.
    pub fill: Ring<u64>,
    /// Slots whose packets have been sent.
    pub completed: Ring<u64>,
    /// Packets that came in.
    pub rx: Ring<libc::xdp_desc>,
    /// Packets to be sent.
    pub tx: Ring<libc::xdp_desc>,
}

// SAFETY: the memory is the process's and stays; one thread at a time has the socket.
unsafe impl Send for Xsk {}

impl Xsk {
    /// A socket on queue 0 of `interface` with memory for `slots` packets and rings of
    /// `entries`.
    pub fn open(interface: &str, slots: usize, entries: u32) -> io::Result<Self> {
        // SAFETY: socket(2) with constants.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        let fd = own(fd)?;
        let bytes = NonZeroUsize::new(slots * SLOT).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_POPULATE;
        // SAFETY: new memory at an address of the kernel's choice.
        let memory = unsafe { mmap_anonymous(None, bytes, access, flags) }?;
        let registered = libc::xdp_umem_reg {
            addr: memory.as_ptr() as u64,
            len: bytes.get() as u64,
            chunk_size: SLOT as u32,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set(&fd, libc::XDP_UMEM_REG, &registered)?;
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set(&fd, ring, &entries)?;
        }
        // Older kernels do without.
        let _ = set(&fd, XDP_MAX_TX_SKB_BUDGET, &entries);
        let offsets = offsets(&fd)?;
        let xsk = Self {
            memory,
            bytes: bytes.get(),
            fill: Ring::map(
                &fd,
                libc::XDP_UMEM_PGOFF_FILL_RING,
                &offsets.fr,
                entries,
                true,
            )?,
            completed: Ring::map(
                &fd,
                libc::XDP_UMEM_PGOFF_COMPLETION_RING,
                &offsets.cr,
                entries,
                false,
            )?,
            rx: Ring::map(
                &fd,
                libc::XDP_PGOFF_RX_RING as u64,
                &offsets.rx,
                entries,
                false,
            )?,
            tx: Ring::map(
                &fd,
                libc::XDP_PGOFF_TX_RING as u64,
                &offsets.tx,
                entries,
                true,
            )?,
            fd,
        };
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
            sxdp_ifindex: if_nametoindex(interface)?,
            sxdp_queue_id: 0,
            sxdp_shared_umem_fd: 0,
        };
        // SAFETY: a live address and its size.
        checked(unsafe {
            libc::bind(
                xsk.fd.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        })?;
        Ok(xsk)
    }

    /// Bytes of the memory. They must be in a slot that the kernel does not have.
    pub fn bytes(&mut self, address: u64, length: usize) -> &mut [u8] {
        let at = address as usize;
        assert!(
            at <= self.bytes && length <= self.bytes - at,
            "outside the memory"
        );
        // SAFETY: inside the memory, which stays; the borrow keeps other slices out, and
        // the kernel writes only to slots that were handed to it.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr().cast::<u8>().add(at), length) }
    }

    /// Has the kernel send all of the TX ring.
    pub fn send(&mut self) -> io::Result<()> {
        self.tx.publish();
        for _ in 0..1_000_000 {
            if self.tx.ahead() == 0 {
                return Ok(());
            }
            if !self.tx.needs_wakeup() {
                continue;
            }
            // SAFETY: an open socket; no bytes.
            let sent = checked(unsafe {
                libc::sendto(
                    self.fd.as_raw_fd(),
                    std::ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    std::ptr::null(),
                    0,
                )
            } as libc::c_int);
            match sent.map_err(|e| (e.raw_os_error(), e)) {
                // More than one call's share, or too many under way.
                Ok(_) | Err((Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS), _)) => {}
                Err((_, e)) => return Err(e),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// Leads what comes in on queue 0 of `interface` to the socket, as long as what is
/// returned lives: `return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS)`.
pub fn redirect(interface: &str, xsk: &Xsk) -> io::Result<[OwnedFd; 2]> {
    // SAFETY: a valid C string; no options.
    let map = own(unsafe {
        bpf::bpf_map_create(
            bpf::BPF_MAP_TYPE_XSKMAP,
            c"sockets".as_ptr(),
            4,
            4,
            1,
            std::ptr::null(),
        )
    })?;
    let (key, value) = (0_u32, xsk.fd.as_raw_fd());
    // SAFETY: an open map; key and value have the four bytes each that it was made for.
    checked(unsafe {
        bpf::bpf_map_update_elem(
            map.as_raw_fd(),
            (&raw const key).cast(),
            (&raw const value).cast(),
            0,
        )
    })?;
    let descriptor = u64::from(map.as_raw_fd() as u32) << 32;
    let code: [u64; 6] = [
        0x0000_0000_0010_1261,              // r2 = *(u32 *)(r1 + 16), rx_queue_index
        0x0000_0000_0000_1118 | descriptor, // r1 = the map
        0,                                  // its second half
        0x0000_0002_0000_03b7,              // r3 = XDP_PASS
        0x0000_0033_0000_0085,              // call bpf_redirect_map
        0x95,                               // exit
    ];
    // SAFETY: the array and the strings outlive the call; an instruction is eight bytes.
    let program = own(unsafe {
        bpf::bpf_prog_load(
            bpf::BPF_PROG_TYPE_XDP,
            c"to_socket".as_ptr(),
            c"Dual BSD/GPL".as_ptr(),
            code.as_ptr().cast(),
            code.len() as _,
            std::ptr::null_mut(),
        )
    })?;
    let index = if_nametoindex(interface)? as libc::c_int;
    let options = bpf::bpf_link_create_opts {
        sz: size_of::<bpf::bpf_link_create_opts>() as _,
        flags: XDP_FLAGS_DRV_MODE,
        ..Default::default()
    };
    // SAFETY: an open program, and options of the size that they say.
    let link =
        own(unsafe { bpf::bpf_link_create(program.as_raw_fd(), index, bpf::BPF_XDP, &options) })?;
    Ok([map, link])
}

fn offsets(fd: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: plain data; all zeroes is a valid value.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { mem::zeroed() };
    let mut length = size_of_val(&offsets) as libc::socklen_t;
    // SAFETY: a live struct and its size.
    checked(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &mut length,
        )
    })?;
    Ok(offsets)
}

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: a live value and its size.
    checked(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

fn own(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the kernel has just given us this descriptor.
    checked(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What a call returned, or its error: the C library says -1 and `errno`, libbpf both.
fn checked(returned: libc::c_int) -> io::Result<libc::c_int> {
    match returned {
        0.. => Ok(returned),
        _ => Err(io::Error::last_os_error()),
    }
}
