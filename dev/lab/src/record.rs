// SPDX-License-Identifier: Apache-2.0
//! Records what passes an interface as a pcap file in memory: IPv4 packets, the
//! first 128 bytes of each, with the kernel's time of
//! arrival in nanoseconds of wall time.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, mem};

use anyhow::{Context, Result, ensure};

use crate::background::Background;
use crate::netns::Netns;

/// Bytes kept of each packet: all headers.
const SNAP: usize = 128;
/// Packets that one call of the kernel may give.
const BATCH: usize = 64;
/// Receive buffer asked for: no packet may be missed.
const BUFFER: libc::c_int = 64 << 20;
/// `LINKTYPE_RAW`, tcpdump.org/linktypes.html: begins with the IP header.
const LINKTYPE_RAW: u32 = 101;
/// Magic number of pcap files with nanoseconds.
const MAGIC_NS: u32 = 0xa1b2_3c4d;

/// What to record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directions {
    /// What the interface receives.
    Arriving,
    /// What it sends too.
    Both,
}

/// A recording under way.
#[derive(Debug)]
pub struct Recorder(Background<Vec<u8>>);

impl Recorder {
    /// Begins to record at `interface` of `netns`. When this returns, nothing is
    /// missed any more.
    pub fn start(netns: &Netns, interface: &str, directions: Directions) -> Result<Self> {
        let name = interface.to_owned();
        let socket = netns.run(move || {
            open(&name, directions).with_context(|| format!("cannot record from interface {name}"))
        })?;
        Ok(Self(Background::spawn(move |stop| record(&socket, stop))))
    }

    /// Ends it and gives the file.
    ///
    /// # Errors
    /// When the kernel had to drop packets: the recording has holes.
    pub fn finish(self) -> Result<Vec<u8>> {
        self.0.finish()
    }
}

fn set(fd: &OwnedFd, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: a valid descriptor and a live integer of the stated size.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            mem::size_of_val(&value) as libc::socklen_t,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A packet socket for IPv4. Bound to a protocol other than `ETH_P_ALL` it sees
/// arriving packets only.
fn open(interface: &str, directions: Directions) -> io::Result<OwnedFd> {
    let protocol = match directions {
        Directions::Arriving => libc::ETH_P_IP,
        Directions::Both => libc::ETH_P_ALL,
    };
    let protocol = (protocol as u16).to_be();
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: socket(2) with constants. Protocol 0: nothing arrives before bind.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER)?;
    set(&fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    let timeout = libc::timeval {
        tv_sec: 0,
        tv_usec: 50_000,
    };
    // SAFETY: a valid descriptor and a live timeval of the stated size.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const timeout).cast(),
            mem::size_of_val(&timeout) as libc::socklen_t,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    let name = std::ffi::CString::new(interface)?;
    // SAFETY: a valid C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain data; all zeroes is a valid value.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = index as i32;
    // SAFETY: a valid descriptor and a live address of the stated size.
    let rc = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            mem::size_of_val(&address) as libc::socklen_t,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// Where one packet and its timestamp are put.
#[repr(C, align(8))]
struct Slot {
    data: [u8; SNAP],
    control: [u8; 64],
}

fn record(socket: &OwnedFd, stop: &AtomicBool) -> Result<Vec<u8>> {
    let mut file = Vec::with_capacity(16 << 20);
    header(&mut file);
    let mut slots: Vec<Slot> = (0..BATCH)
        .map(|_| Slot {
            data: [0; SNAP],
            control: [0; 64],
        })
        .collect();
    // What the kernel holds when the end is called for is still taken.
    loop {
        let last = stop.load(Ordering::Relaxed);
        if receive(socket, &mut slots, &mut file)? == 0 && last {
            break;
        }
    }
    let dropped = dropped(socket)?;
    ensure!(dropped == 0, "{dropped} packets were not recorded");
    Ok(file)
}

fn receive(socket: &OwnedFd, slots: &mut [Slot], file: &mut Vec<u8>) -> Result<usize> {
    let mut vectors: Vec<libc::iovec> = slots
        .iter_mut()
        .map(|slot| libc::iovec {
            iov_base: slot.data.as_mut_ptr().cast(),
            iov_len: SNAP,
        })
        .collect();
    let mut messages: Vec<libc::mmsghdr> = Vec::with_capacity(slots.len());
    for (slot, vector) in slots.iter_mut().zip(&mut vectors) {
        // SAFETY: plain data; all zeroes is a valid value.
        let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
        message.msg_hdr.msg_iov = vector;
        message.msg_hdr.msg_iovlen = 1;
        message.msg_hdr.msg_control = slot.control.as_mut_ptr().cast();
        message.msg_hdr.msg_controllen = slot.control.len() as _;
        messages.push(message);
    }
    // SAFETY: every header points to live buffers of the stated sizes.
    let count = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len() as u32,
            libc::MSG_TRUNC | libc::MSG_WAITFORONE,
            std::ptr::null_mut(),
        )
    };
    if count < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
            _ => Err(error).context("recvmmsg"),
        };
    }
    for (message, slot) in messages.iter().zip(slots.iter()).take(count as usize) {
        let length = message.msg_len as usize;
        let time = timestamp(&message.msg_hdr).context("a packet without a time")?;
        // With ETH_P_ALL there is more than IPv4.
        if slot.data[0] >> 4 == 4 {
            append(file, time, length, &slot.data[..length.min(SNAP)]);
        }
    }
    Ok(count as usize)
}

/// The kernel's time of arrival, in ns of wall time.
fn timestamp(header: &libc::msghdr) -> Option<u64> {
    // SAFETY: the kernel has filled in the control buffer that `header` names.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: not null, so a control message inside that buffer.
        let (level, kind) = unsafe { ((*message).cmsg_level, (*message).cmsg_type) };
        if level == libc::SOL_SOCKET && kind == libc::SO_TIMESTAMPNS {
            // SAFETY: SCM_TIMESTAMPNS carries one timespec, perhaps unaligned.
            let time: libc::timespec =
                unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(message).cast()) };
            return Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
        }
        // SAFETY: both belong to the buffer above.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    None
}

fn dropped(socket: &OwnedFd) -> Result<u32> {
    // SAFETY: plain data; all zeroes is a valid value.
    let mut statistics: libc::tpacket_stats = unsafe { mem::zeroed() };
    let mut length = mem::size_of_val(&statistics) as libc::socklen_t;
    // SAFETY: a valid descriptor, a live struct and its size.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &mut length,
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error()).context("PACKET_STATISTICS");
    }
    Ok(statistics.tp_drops)
}

/// draft-ietf-opsawg-pcap-05, section 4.
fn header(file: &mut Vec<u8>) {
    file.extend(MAGIC_NS.to_ne_bytes());
    file.extend(2u16.to_ne_bytes());
    file.extend(4u16.to_ne_bytes());
    file.extend([0; 8]);
    file.extend((SNAP as u32).to_ne_bytes());
    file.extend(LINKTYPE_RAW.to_ne_bytes());
}

fn append(file: &mut Vec<u8>, time_ns: u64, length: usize, data: &[u8]) {
    for field in [
        (time_ns / 1_000_000_000) as u32,
        (time_ns % 1_000_000_000) as u32,
        data.len() as u32,
        length as u32,
    ] {
        file.extend(field.to_ne_bytes());
    }
    file.extend_from_slice(data);
}
