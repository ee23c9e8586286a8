// SPDX-License-Identifier: Apache-2.0
//! A path: a UDP socket that is bound to an address and port here and connected to one
//! there. Connected, so that the kernel drops what others send, keeps the route, and
//! reports what the network says about it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::{io, mem};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};

use super::TunnelError;
use super::slab::{BufferId, Slab};
use super::tun::is_transient;
use crate::route_mtu::route_mtu;

/// Messages of one receive call: each holds up to 64 KiB of merged datagrams.
const MESSAGES: usize = 8;
/// The same where they are large: what is read stays in the cache until it is written to
/// the guest.
const LARGE_MESSAGES: usize = 3;
/// Messages that are longer than this in the mean are large.
const LARGE_BYTES: usize = 16 * 1024;
/// Room for the one control message that is asked for, in words.
const CONTROL_WORDS: usize = 8;
const UDP_GRO: libc::c_int = 104;

/// What a path is to be like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathOptions {
    /// Address and port here; a port of 0 is chosen by the kernel.
    pub local: SocketAddr,
    /// Address and port there.
    pub remote: SocketAddr,
    /// Number of the device that packets go out of and come in by; `None`: as routes say.
    pub device: Option<u32>,
    /// Bytes that the kernel may hold of what came in, and of what goes out.
    pub buffer_bytes: usize,
    /// Whether the kernel merges datagrams that come in one after another.
    pub merge: bool,
}

/// Which way the packets of a path go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathRoute {
    local: IpAddr,
    remote: SocketAddr,
    /// Number of the device that they go by, if it is given.
    device: Option<u32>,
}

impl PathRoute {
    /// Bytes of the largest IP packet, by the route's own MTU or the device's.
    pub fn mtu(&self) -> io::Result<u16> {
        let mtu = route_mtu(self.local, self.remote.ip(), self.device)?;
        Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
    }
}

/// A path's socket.
#[derive(Debug)]
pub struct UdpPath {
    fd: OwnedFd,
    route: PathRoute,
    /// Messages that the next receive call asks for.
    ask: Cell<usize>,
    /// Whether messages may have several segments (UDP_SEGMENT): so long as none was refused.
    pub(super) takes_segments: Cell<bool>,
}

/// One message that came in: one datagram, or several of the same size (but for the
/// last, which may be shorter) that the kernel has merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// Where it lies, from the first byte on; holds one reference.
    pub buffer: BufferId,
    /// Bytes in all.
    pub length: usize,
    /// Bytes of each datagram.
    pub segment: usize,
}

/// What a receive call brought besides.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiveStatus {
    /// Whether there may be more.
    pub more: bool,
    /// Messages that were empty or did not fit their buffer; they are gone.
    pub unusable: u64,
}

impl UdpPath {
    /// Opens the socket.
    pub fn open(options: &PathOptions) -> Result<Self, TunnelError> {
        let (local, remote) = (options.local, options.remote);
        let failed = |doing| {
            move |e: nix::Error| TunnelError::Path {
                local,
                remote,
                doing,
                cause: e.into(),
            }
        };
        let family = match local {
            SocketAddr::V4(_) => AddressFamily::Inet,
            SocketAddr::V6(_) => AddressFamily::Inet6,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd =
            socket(family, SockType::Datagram, flags, None).map_err(failed("open a socket"))?;
        let size = options.buffer_bytes;
        // Beyond the system's limit with CAP_NET_ADMIN, else up to it.
        let _ = setsockopt(&fd, sockopt::RcvBufForce, &size)
            .or_else(|_| setsockopt(&fd, sockopt::RcvBuf, &size));
        let _ = setsockopt(&fd, sockopt::SndBufForce, &size)
            .or_else(|_| setsockopt(&fd, sockopt::SndBuf, &size));
        let refused = |doing| {
            move |cause| TunnelError::Path {
                local,
                remote,
                doing,
                cause,
            }
        };
        if let Some(device) = options.device {
            // By its number: a name may be another device's by now, unnoticed.
            let (level, name) = (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX);
            set_option(&fd, level, name, device as libc::c_int)
                .map_err(refused("bind it to its device"))?;
        }
        if options.merge {
            setsockopt(&fd, sockopt::UdpGroSegment, &true)
                .map_err(failed("have datagrams merged (UDP_GRO)"))?;
        }
        never_fragment(&fd, &local).map_err(refused("forbid fragments"))?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(local)).map_err(failed(
            "take the local address and port (is it an address of this machine, and the port free?)",
        ))?;
        connect(fd.as_raw_fd(), &SockaddrStorage::from(remote))
            .map_err(failed("reach the remote address (is there a route?)"))?;
        let path = Self {
            fd,
            route: PathRoute {
                local: local.ip(),
                remote,
                device: options.device.or(scope(remote)),
            },
            ask: Cell::new(MESSAGES),
            takes_segments: Cell::new(true),
        };
        path.forget_strangers();
        Ok(path)
    }

    /// Has another address and port as its other end from now on.
    pub fn aim_at(&mut self, remote: SocketAddr) -> io::Result<()> {
        connect(self.fd.as_raw_fd(), &SockaddrStorage::from(remote))?;
        let device = match self.route.device == scope(self.route.remote) {
            true => scope(remote),
            false => self.route.device,
        };
        self.route = PathRoute {
            remote,
            device,
            ..self.route
        };
        self.takes_segments.set(true);
        self.forget_strangers();
        Ok(())
    }

    /// Drops what came between bind and connect: it may come from any address, and from then
    /// on all that comes counts as the other end's.
    fn forget_strangers(&self) {
        // No more than the largest buffer holds; after that the other end is sending.
        for _ in 0..1 << 16 {
            // A datagram is gone also when nothing of it is read.
            if matches!(self.receive_one(&mut []), Ok(None)) {
                return;
            }
        }
    }

    /// The other end.
    pub fn remote(&self) -> SocketAddr {
        self.route.remote
    }

    /// Which way its packets go.
    pub fn route(&self) -> PathRoute {
        self.route
    }

    /// Bytes of UDP payload that fit a packet of this path, by the route's own MTU or the
    /// device's.
    pub fn payload_max(&self) -> io::Result<usize> {
        let headers = match self.remote() {
            SocketAddr::V4(_) => 20 + 8,
            SocketAddr::V6(_) => 40 + 8,
        };
        Ok(usize::from(self.route.mtu()?).saturating_sub(headers))
    }

    /// Receives one datagram; `None` when there is none.
    pub fn receive_one(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // SAFETY: an open descriptor and a live buffer of the given size.
        let count = unsafe {
            libc::recv(
                self.fd.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        match usize::try_from(count) {
            Ok(length) => Ok(Some(length)),
            Err(_) => match io::Error::last_os_error() {
                e if is_transient(&e) => Ok(None),
                e => Err(e),
            },
        }
    }
}

impl AsFd for UdpPath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The device that a link-local address says itself.
fn scope(remote: SocketAddr) -> Option<u32> {
    match remote {
        SocketAddr::V6(remote) => Some(remote.scope_id()).filter(|index| *index != 0),
        SocketAddr::V4(_) => None,
    }
}

/// Sets DF, and ignores ICMP's smaller MTUs, which may be forged: a datagram that is too
/// large for a hop is lost, which the engine sees. One that is too large for this machine's
/// device is refused.
fn never_fragment(fd: &OwnedFd, local: &SocketAddr) -> io::Result<()> {
    let (level, name, value) = match local {
        SocketAddr::V4(_) => (
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_PROBE,
        ),
        SocketAddr::V6(_) => (
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_PROBE,
        ),
    };
    set_option(fd, level, name, value)
}

fn set_option(
    fd: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: a live integer and its size.
    let status = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Receives into a slab, several messages a call.
pub struct UdpReceiver {
    messages: Box<[libc::mmsghdr; MESSAGES]>,
    vectors: Box<[libc::iovec; MESSAGES]>,
    control: Box<[[u64; CONTROL_WORDS]; MESSAGES]>,
    /// Those that wait for the next call. The one that was freed last comes first: it is
    /// likely to be in the cache yet.
    buffers: VecDeque<BufferId>,
}

// SAFETY: the pointers inside are set by `prepare` and followed by the call right after
// it; between calls they are not followed.
unsafe impl Send for UdpReceiver {}

impl Default for UdpReceiver {
    fn default() -> Self {
        Self::new()
    }
}

impl UdpReceiver {
    /// Without buffers; they come from the slab.
    pub fn new() -> Self {
        // SAFETY: both are plain data; all zeroes is a valid value.
        let (messages, vectors) = unsafe { (mem::zeroed(), mem::zeroed()) };
        Self {
            messages: Box::new(messages),
            vectors: Box::new(vectors),
            control: Box::new([[0; CONTROL_WORDS]; MESSAGES]),
            buffers: VecDeque::with_capacity(MESSAGES),
        }
    }

    /// Takes what has come in on `path`, at most `MESSAGES` messages, and adds it to
    /// `received`.
    pub fn receive(
        &mut self,
        path: &UdpPath,
        slab: &mut Slab,
        received: &mut Vec<ReceivedMessage>,
    ) -> io::Result<ReceiveStatus> {
        let ask = path.ask.get();
        let held = self.buffers.len();
        while self.buffers.len() < ask {
            let Some(buffer) = slab.take() else { break };
            self.buffers.push_back(buffer);
        }
        self.buffers.rotate_left(held);
        let wanted = self.buffers.len().min(ask);
        let mut batch = ReceiveStatus::default();
        if wanted == 0 {
            return Ok(batch);
        }
        self.prepare(slab, wanted);
        // SAFETY: `prepare` has set `wanted` messages up with vectors and control
        // buffers of this struct, and with buffers of the slab that only this struct
        // refers to. None of them moves or goes during the call.
        let count = unsafe {
            libc::recvmmsg(
                path.fd.as_raw_fd(),
                self.messages.as_mut_ptr(),
                wanted as libc::c_uint,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut(),
            )
        };
        let Ok(count) = usize::try_from(count) else {
            return match io::Error::last_os_error() {
                e if is_transient(&e) => Ok(batch),
                e => Err(e),
            };
        };
        for (index, buffer) in self.buffers.drain(..count).enumerate() {
            let message = &self.messages[index];
            let length = message.msg_len as usize;
            let truncated = message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0;
            if length == 0 || truncated {
                slab.release(buffer, 1);
                batch.unusable += 1;
                continue;
            }
            let segment = segment_size(&message.msg_hdr).unwrap_or(length);
            received.push(ReceivedMessage {
                buffer,
                length,
                segment: segment.clamp(1, length),
            });
        }
        batch.more = count == wanted;
        let bytes: usize = self.messages[..count]
            .iter()
            .map(|message| message.msg_len as usize)
            .sum();
        path.ask.set(match bytes > LARGE_BYTES * count {
            true => LARGE_MESSAGES,
            false => MESSAGES,
        });
        Ok(batch)
    }

    /// Points the messages at the buffers.
    fn prepare(&mut self, slab: &mut Slab, wanted: usize) {
        for (index, buffer) in self.buffers.iter().take(wanted).enumerate() {
            let bytes = slab.bytes_mut(*buffer);
            self.vectors[index] = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            };
            let header = &mut self.messages[index].msg_hdr;
            header.msg_iov = &mut self.vectors[index];
            header.msg_iovlen = 1;
            header.msg_control = self.control[index].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&self.control[index]);
            header.msg_flags = 0;
        }
    }

    /// Gives the buffers that wait for the next call back.
    pub fn give_back(&mut self, slab: &mut Slab) {
        for buffer in self.buffers.drain(..) {
            slab.release(buffer, 1);
        }
    }
}

/// The size of merged datagrams, where the kernel has merged any.
fn segment_size(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has filled the control buffer and set its length; the CMSG
    // macros stay inside.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(header);
        while let Some(found) = message.as_ref() {
            if found.cmsg_level == libc::SOL_UDP && found.cmsg_type == UDP_GRO {
                let size = libc::CMSG_DATA(found)
                    .cast::<libc::c_int>()
                    .read_unaligned();
                return usize::try_from(size).ok();
            }
            message = libc::CMSG_NXTHDR(header, found);
        }
    }
    None
}
