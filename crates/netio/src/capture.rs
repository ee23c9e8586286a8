// SPDX-License-Identifier: Apache-2.0
//! Packets of an interface without BPF programs: an AF_PACKET socket whose ring
//! (TPACKET_V3) the kernel fills block by block. Timestamps are the kernel's, in
//! nanoseconds since the Unix epoch; drops are counted by the kernel.
//!
//! Source: the kernel's Documentation/networking/packet_mmap.rst.

use std::ffi::c_void;
use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use causeway_core::filter::{Instruction, Program};
use causeway_core::wire::LinkType;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use thiserror::Error;

use crate::filter;
use crate::interface::{Interface, NoInterface};

/// Why packets of an interface cannot be captured.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// No right to capture packets.
    #[error(
        "the kernel does not let this process capture packets: run as root, or with CAP_NET_RAW"
    )]
    NotPermitted,
    /// No such interface.
    #[error(transparent)]
    NoInterface(#[from] NoInterface),
    /// A system call failed. The sentence names the cause, which is therefore not a `source`.
    #[error("cannot {doing}: {cause}")]
    Failed {
        /// What was tried.
        doing: String,
        /// Why not.
        cause: io::Error,
    },
}

impl CaptureError {
    fn failed(doing: impl Into<String>, cause: impl Into<io::Error>) -> Self {
        Self::Failed {
            doing: doing.into(),
            cause: cause.into(),
        }
    }
}

type Result<T, E = CaptureError> = std::result::Result<T, E>;

/// Bytes of a block, which the kernel hands over as a whole.
const BLOCK_BYTES: usize = 1 << 19;
/// A block that is not full is handed over after this time.
const RETIRE_MS: u32 = 50;
/// Bytes of a packet that are kept: all headers, tunnels and options.
pub const SNAP_LEN: u32 = 256;

/// `BPF_RET | BPF_K`: accept this many bytes.
const RETURN: u16 = 0x06;

/// One captured packet.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Nanoseconds since the Unix epoch.
    pub time_ns: u64,
    /// Bytes on the wire.
    pub wire_len: u32,
    /// Its first bytes, from the link header on, or from the IP header where
    /// [`Capture::link`] says so.
    pub data: &'a [u8],
}

/// What the kernel counted since the capture began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// Packets that matched, dropped ones included.
    pub received: u64,
    /// Packets for which the ring had no room.
    pub dropped: u64,
}

/// A socket with its ring. Order of calls: `open`, perhaps `filter`, `start`, then
/// `poll` as often as packets are wanted.
#[derive(Debug)]
pub struct Capture {
    socket: OwnedFd,
    interface: Interface,
    ring: Ring,
    link: LinkType,
    loopback: bool,
    counts: CaptureCounts,
}

impl Capture {
    /// A capture on `interface` with a ring of `ring_bytes`, rounded up to whole
    /// blocks of 512 KiB. No packet arrives before [`Capture::start`].
    ///
    /// # Errors
    /// No such interface, no right to capture, too little memory.
    pub fn open(interface: &str, ring_bytes: usize) -> Result<Self> {
        let interface = Interface::find(interface)?;
        let hardware = hardware_type(&interface)?;
        let ethernet = is_ethernet(hardware);
        // Where there is no Ethernet header, the kernel's "cooked" sockets begin with
        // the IP header.
        let kind = if ethernet {
            libc::SOCK_RAW
        } else {
            libc::SOCK_DGRAM
        };
        let socket = packet_socket(kind)?;
        let ring = Ring::new(&socket, ring_bytes.div_ceil(BLOCK_BYTES).max(2))?;
        let capture = Self {
            socket,
            interface,
            ring,
            link: if ethernet {
                LinkType::Ethernet
            } else {
                LinkType::Raw
            },
            loopback: hardware == libc::ARPHRD_LOOPBACK,
            counts: CaptureCounts::default(),
        };
        let all = Instruction {
            code: RETURN,
            jt: 0,
            jf: 0,
            k: SNAP_LEN,
        };
        let all = Program::new(vec![all])
            .map_err(|e| CaptureError::failed("make a filter", io::Error::other(e)))?;
        capture.filter(&all)?;
        Ok(capture)
    }

    /// How packets begin.
    pub fn link(&self) -> LinkType {
        self.link
    }

    /// Lets only those packets in that `program` matches. It must have been compiled
    /// for [`Capture::link`] with a snapshot length of [`SNAP_LEN`].
    pub fn filter(&self, program: &Program) -> Result<()> {
        filter::attach(self.socket.as_fd(), program)
            .map_err(|e| CaptureError::failed("attach the filter", e))
    }

    /// Lets packets arrive: of every host (promiscuous mode), in both directions.
    pub fn start(&self) -> Result<()> {
        let failed = |e| CaptureError::failed(format!("capture on {}", self.interface.name), e);
        let membership = libc::packet_mreq {
            mr_ifindex: self.interface.index as i32,
            mr_type: libc::PACKET_MR_PROMISC as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        set_option(&self.socket, libc::PACKET_ADD_MEMBERSHIP, &membership).map_err(failed)?;
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
            sll_ifindex: self.interface.index as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the address is a sockaddr_ll of the length given.
        let bound = unsafe {
            libc::bind(
                self.socket.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as libc::socklen_t,
            )
        };
        check(bound).map_err(failed)
    }

    /// Waits at most `timeout` for packets and gives each to `take`. Returns how many
    /// there were.
    pub fn poll(&mut self, timeout: Duration, mut take: impl FnMut(Frame<'_>)) -> Result<usize> {
        let mut count = 0;
        if !self.ring.is_ready() {
            wait(self.socket.as_fd(), timeout).map_err(|e| {
                CaptureError::failed(format!("capture on {}", self.interface.name), e)
            })?;
        }
        // At most one round, so that a flood cannot keep the caller here.
        for _ in 0..self.ring.blocks {
            if !self.ring.is_ready() {
                break;
            }
            let loopback = self.loopback;
            self.ring.block(|frame, outgoing| {
                // Loopback shows each packet twice: as sent and as received.
                if !(loopback && outgoing) {
                    count += 1;
                    take(frame);
                }
            });
        }
        Ok(count)
    }

    /// What the kernel counted so far.
    pub fn counts(&mut self) -> Result<CaptureCounts> {
        let mut stats = libc::tpacket_stats_v3 {
            tp_packets: 0,
            tp_drops: 0,
            tp_freeze_q_cnt: 0,
        };
        let mut len = size_of_val(&stats) as libc::socklen_t;
        // SAFETY: `stats` is `len` bytes long; any bytes are a value of it.
        let got = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut stats).cast(),
                &mut len,
            )
        };
        check(got).map_err(|e| CaptureError::failed("read the capture's counters", e))?;
        // The kernel's counters begin at 0 with each reading.
        self.counts.received += u64::from(stats.tp_packets);
        self.counts.dropped += u64::from(stats.tp_drops);
        Ok(self.counts)
    }
}

/// The memory that the kernel fills.
#[derive(Debug)]
struct Ring {
    memory: NonNull<c_void>,
    blocks: usize,
    next: usize,
}

// SAFETY: the memory belongs to the ring alone; what the kernel does with it goes
// through the atomic status of each block.
unsafe impl Send for Ring {}

impl Ring {
    fn new(socket: &OwnedFd, blocks: usize) -> Result<Self> {
        let failed = |e| CaptureError::failed("set up the capture's ring buffer", e);
        let version = libc::tpacket_versions::TPACKET_V3 as libc::c_int;
        set_option(socket, libc::PACKET_VERSION, &version).map_err(failed)?;
        let request = libc::tpacket_req3 {
            tp_block_size: BLOCK_BYTES as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: 2048,
            tp_frame_nr: (BLOCK_BYTES / 2048 * blocks) as u32,
            tp_retire_blk_tov: RETIRE_MS,
            tp_sizeof_priv: 0,
            tp_feature_req_word: 0,
        };
        set_option(socket, libc::PACKET_RX_RING, &request).map_err(failed)?;
        let len = NonZero::new(blocks * BLOCK_BYTES).unwrap_or(NonZero::<usize>::MIN);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let memory = unsafe {
            mmap(
                None,
                len,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                socket,
                0,
            )
        };
        Ok(Self {
            memory: memory.map_err(|e| failed(e.into()))?,
            blocks,
            next: 0,
        })
    }

    fn start(&self) -> *const u8 {
        // SAFETY: `next` is below `blocks`, so the block lies in the mapping.
        unsafe {
            self.memory
                .as_ptr()
                .cast::<u8>()
                .add(self.next * BLOCK_BYTES)
        }
    }

    fn status(&self) -> &AtomicU32 {
        let block = self.start().cast::<libc::tpacket_block_desc>();
        // SAFETY: the block begins with a tpacket_block_desc, aligned to a page; its
        // status is shared with the kernel and only accessed as an atomic.
        unsafe { AtomicU32::from_ptr((&raw const (*block).hdr.bh1.block_status).cast_mut()) }
    }

    /// Whether the next block is ours.
    fn is_ready(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Goes through the next block, which must be ours, and gives it back.
    fn block(&mut self, mut take: impl FnMut(Frame<'_>, bool)) {
        let start = self.start();
        // SAFETY: the block is ours until its status says otherwise, and in the mapping.
        let (bytes, head) = unsafe {
            let head = (*start.cast::<libc::tpacket_block_desc>()).hdr.bh1;
            (std::slice::from_raw_parts(start, BLOCK_BYTES), head)
        };
        let mut at = head.offset_to_first_pkt as usize;
        for _ in 0..head.num_pkts {
            let Some((frame, outgoing, next)) = frame(bytes, at) else {
                break;
            };
            take(frame, outgoing);
            at += next;
        }
        self.status()
            .store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.blocks;
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped once in `new`, with this length; nothing borrows from it.
        let _ = unsafe { munmap(self.memory, self.blocks * BLOCK_BYTES) };
    }
}

/// The packet at an offset of a block, whether it was sent from here, and how far
/// away the next one is.
fn frame(block: &[u8], at: usize) -> Option<(Frame<'_>, bool, usize)> {
    const HEADER: usize = size_of::<libc::tpacket3_hdr>();
    /// `TPACKET_ALIGN`: the address follows the header at a multiple of 16.
    const ADDRESS: usize = HEADER.next_multiple_of(16);
    let head = block.get(at..at + HEADER)?;
    // SAFETY: this many bytes are there, and any bytes are a value of the struct.
    let head = unsafe { head.as_ptr().cast::<libc::tpacket3_hdr>().read_unaligned() };
    let address = block.get(at + ADDRESS..at + ADDRESS + size_of::<libc::sockaddr_ll>())?;
    // SAFETY: as above.
    let address = unsafe {
        address
            .as_ptr()
            .cast::<libc::sockaddr_ll>()
            .read_unaligned()
    };
    let from = at + usize::from(head.tp_mac);
    let frame = Frame {
        time_ns: u64::from(head.tp_sec) * 1_000_000_000 + u64::from(head.tp_nsec),
        wire_len: head.tp_len,
        data: block.get(from..from + head.tp_snaplen as usize)?,
    };
    let outgoing = address.sll_pkttype == libc::PACKET_OUTGOING;
    Some((frame, outgoing, head.tp_next_offset as usize))
}

fn packet_socket(kind: libc::c_int) -> Result<OwnedFd> {
    // SAFETY: a plain system call. Protocol 0: nothing arrives before it is bound.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind | libc::SOCK_CLOEXEC, 0) };
    match fd {
        // SAFETY: a new descriptor that no other code owns.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::EPERM) => Err(CaptureError::NotPermitted),
            e => Err(CaptureError::failed("open a packet socket", e)),
        },
    }
}

impl Interface {
    /// Whether its packets begin with an Ethernet header, as those of tunnels do not.
    ///
    /// # Errors
    /// When it is not there any more.
    pub fn has_ethernet_header(&self) -> Result<bool> {
        hardware_type(self).map(is_ethernet)
    }
}

fn is_ethernet(hardware: u16) -> bool {
    matches!(hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK)
}

/// The interface's `ARPHRD_` number.
fn hardware_type(interface: &Interface) -> Result<u16> {
    let failed = |e| CaptureError::failed(format!("ask what {} is", interface.name), e);
    // SAFETY: all zero is a value of ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    check(fd).map_err(failed)?;
    // SAFETY: a new descriptor that no other code owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the request names an interface; the kernel fills in its address.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &mut request) };
    check(asked).map_err(failed)?;
    // SAFETY: the kernel wrote the hardware address.
    Ok(unsafe { request.ifr_ifru.ifru_hwaddr.sa_family })
}

fn set_option<T>(socket: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value has the length given and lives through the call.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
}

/// Waits until the socket is readable, the time is over or a signal comes.
fn wait(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let mut polled = libc::pollfd {
        fd: socket.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let timeout_ms = timeout.as_millis().min(i32::MAX as u128) as i32;
    // SAFETY: one pollfd.
    match check(unsafe { libc::poll(&mut polled, 1, timeout_ms) }) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(e) => Err(e),
        Ok(()) if polled.revents & libc::POLLERR != 0 => match socket_error(socket) {
            // The interface went down. The kernel says so once, and packets come again
            // when it is up.
            e if e.raw_os_error() == Some(libc::ENETDOWN) => Ok(()),
            e => Err(e),
        },
        Ok(()) => Ok(()),
    }
}

/// Why the socket failed: mostly that its interface went down.
fn socket_error(socket: BorrowedFd<'_>) -> io::Error {
    match nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::SocketError) {
        Ok(code) if code != 0 => io::Error::from_raw_os_error(code),
        Ok(_) => io::Error::other("the socket failed"),
        Err(e) => e.into(),
    }
}

fn check(ret: libc::c_int) -> io::Result<()> {
    if ret < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
