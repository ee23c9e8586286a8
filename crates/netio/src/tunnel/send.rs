// SPDX-License-Identifier: Apache-2.0
//! Sending many datagrams in one system call: messages whose datagrams have one size
//! are cut by the kernel or the card (UDP_SEGMENT), several messages go in one
//! sendmmsg(2), and every datagram is gathered from where its parts lie.

use std::marker::PhantomData;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::{io, mem};

use super::udp::UdpPath;

const UDP_SEGMENT: libc::c_int = 103;
/// Room for the control message with the segment size, in words.
const CONTROL_WORDS: usize = 3;
/// Most messages of a call; the kernel's limit is 1024.
const MESSAGES_MAX: usize = 256;

/// Memory of [`SendBatch`], kept between batches.
#[derive(Default)]
pub struct SendBuffers {
    vectors: Vec<libc::iovec>,
    /// Of each message: its first vector, and the size of its segments (0: one datagram).
    messages: Vec<(usize, u16)>,
    headers: Vec<libc::mmsghdr>,
    control: Vec<[u64; CONTROL_WORDS]>,
}

// SAFETY: the pointers inside are only followed within `SendBatch::send`, where a
// borrow says that what they point to lives; between batches there are none.
unsafe impl Send for SendBuffers {}

/// Messages to one path that are being put together. They borrow what they are made of.
pub struct SendBatch<'a> {
    buffers: &'a mut SendBuffers,
    parts: PhantomData<&'a [u8]>,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sent {
    /// Messages that the kernel took.
    pub messages: usize,
    /// Messages that it refused: they are lost, as if on the way.
    pub refused: usize,
    /// Whether one was refused, perhaps because it does not fit the path.
    pub too_large: bool,
}

impl SendBuffers {
    /// An empty batch.
    pub fn batch(&mut self) -> SendBatch<'_> {
        self.vectors.clear();
        self.messages.clear();
        SendBatch {
            buffers: self,
            parts: PhantomData,
        }
    }
}

impl<'a> SendBatch<'a> {
    /// Begins a message. All its datagrams have `segment` bytes but for the last, which
    /// may have fewer; 0: it is a single datagram.
    pub fn message(&mut self, segment: u16) {
        let first = self.buffers.vectors.len();
        self.buffers.messages.push((first, segment));
    }

    /// Adds bytes to the last message.
    pub fn part(&mut self, bytes: &'a [u8]) {
        self.buffers.vectors.push(libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
    }

    /// Sends all of it. What the kernel refuses is counted and gone: a full queue is a
    /// loss like any other, and the transport retransmits.
    pub fn send(self, path: &UdpPath) -> Sent {
        let buffers = self.buffers;
        buffers.headers.clear();
        buffers.control.clear();
        // Never grown below: headers point into it.
        buffers
            .control
            .resize(buffers.messages.len(), [0; CONTROL_WORDS]);
        for (index, (first, segment)) in buffers.messages.iter().enumerate() {
            let end = match buffers.messages.get(index + 1) {
                Some((next, _)) => *next,
                None => buffers.vectors.len(),
            };
            // SAFETY: plain data; all zeroes is a valid value.
            let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
            header.msg_hdr.msg_iov = buffers.vectors[*first..].as_mut_ptr();
            header.msg_hdr.msg_iovlen = end - first;
            if *segment > 0 {
                set_segment(&mut header.msg_hdr, &mut buffers.control[index], *segment);
            }
            buffers.headers.push(header);
        }
        let mut sent = Sent::default();
        let mut rest = &mut buffers.headers[..];
        let mut repeated = false;
        while !rest.is_empty() {
            let wanted = rest.len().min(MESSAGES_MAX);
            // SAFETY: headers, vectors and control buffers are alive and set up above;
            // the vectors point to what `'a` keeps borrowed. The kernel only reads it.
            let count = unsafe {
                libc::sendmmsg(
                    path.as_fd().as_raw_fd(),
                    rest.as_mut_ptr(),
                    wanted as libc::c_uint,
                    libc::MSG_DONTWAIT,
                )
            };
            if let Ok(count) = usize::try_from(count) {
                sent.messages += count;
                rest = &mut rest[count..];
                continue;
            }
            let code = io::Error::last_os_error().raw_os_error();
            match code {
                Some(libc::EINTR) => continue,
                // What the network said of an earlier datagram; ours was not looked at.
                Some(libc::ECONNREFUSED | libc::EHOSTUNREACH) if !repeated => {
                    repeated = true;
                    continue;
                }
                // Full for now, and so it is for the others.
                Some(libc::EAGAIN | libc::ENOBUFS) => {
                    sent.refused += rest.len();
                    break;
                }
                _ => {}
            }
            // Before Linux 6.13 segments that are too large are EINVAL.
            let segmented = rest.first().is_some_and(|m| m.msg_hdr.msg_controllen > 0);
            sent.too_large |=
                code == Some(libc::EMSGSIZE) || (segmented && code == Some(libc::EINVAL));
            sent.refused += 1;
            rest = &mut rest[1..];
        }
        sent
    }
}

fn set_segment(header: &mut libc::msghdr, control: &mut [u64; CONTROL_WORDS], segment: u16) {
    header.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the control buffer has room for one message with an u16, which is what
    // CMSG_SPACE gives; the macros stay inside.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
        let message = libc::CMSG_FIRSTHDR(header);
        (*message).cmsg_level = libc::SOL_UDP;
        (*message).cmsg_type = UDP_SEGMENT;
        (*message).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
        libc::CMSG_DATA(message)
            .cast::<u16>()
            .write_unaligned(segment);
    }
}
