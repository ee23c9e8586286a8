// SPDX-License-Identifier: Apache-2.0
//! Sending many datagrams in one system call: messages whose datagrams have one size
//! are cut by the kernel or the card (UDP_SEGMENT), several messages go in one
//! sendmmsg(2), and every datagram is gathered from where its parts lie.

use std::marker::PhantomData;
use std::ops::Range;
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
    /// Messages that the kernel took; where it takes no segments, datagrams.
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

    /// Where message `index` has its vectors.
    fn vectors_of(&self, index: usize) -> Range<usize> {
        let end = match self.messages.get(index + 1) {
            Some((next, _)) => *next,
            None => self.vectors.len(),
        };
        self.messages[index].0..end
    }

    /// Drops the messages in front of `first`, and makes a message of each segment of the others.
    fn cut(&mut self, first: usize) {
        let (mut vectors, mut messages) = (Vec::new(), Vec::new());
        for index in first..self.messages.len() {
            let limit = match self.messages[index].1 {
                0 => usize::MAX,
                segment => segment.into(),
            };
            messages.push((vectors.len(), 0));
            let mut room = limit;
            for vector in &self.vectors[self.vectors_of(index)] {
                let mut rest = *vector;
                while rest.iov_len > 0 {
                    if room == 0 {
                        messages.push((vectors.len(), 0));
                        room = limit;
                    }
                    let now = rest.iov_len.min(room);
                    vectors.push(libc::iovec {
                        iov_len: now,
                        ..rest
                    });
                    rest.iov_base = rest.iov_base.wrapping_byte_add(now);
                    rest.iov_len -= now;
                    room -= now;
                }
            }
        }
        (self.vectors, self.messages) = (vectors, messages);
    }

    /// Sets up the headers of all messages.
    fn prepare(&mut self) {
        self.headers.clear();
        self.control.clear();
        // Never grown below: headers point into it.
        self.control.resize(self.messages.len(), [0; CONTROL_WORDS]);
        for (index, (_, segment)) in self.messages.iter().enumerate() {
            let range = self.vectors_of(index);
            // SAFETY: plain data; all zeroes is a valid value.
            let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
            header.msg_hdr.msg_iovlen = range.len();
            header.msg_hdr.msg_iov = self.vectors[range].as_mut_ptr();
            if *segment > 0 {
                set_segment(&mut header.msg_hdr, &mut self.control[index], *segment);
            }
            self.headers.push(header);
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
        self.send_by(path, send_messages)
    }

    /// The same by a call that does what [`send_messages`] does.
    fn send_by(
        self,
        path: &UdpPath,
        call: impl Fn(&UdpPath, &mut [libc::mmsghdr]) -> io::Result<usize>,
    ) -> Sent {
        let buffers = self.buffers;
        if !path.takes_segments.get() {
            buffers.cut(0);
        }
        buffers.prepare();
        let mut sent = Sent::default();
        let mut first = 0;
        let mut repeated = false;
        while first < buffers.headers.len() {
            let end = buffers.headers.len().min(first + MESSAGES_MAX);
            let code = match call(path, &mut buffers.headers[first..end]) {
                Ok(count) => {
                    sent.messages += count;
                    first += count;
                    continue;
                }
                Err(error) => error.raw_os_error(),
            };
            let segmented = buffers.messages[first].1 > 0;
            match code {
                Some(libc::EINTR) => continue,
                // What the network said of an earlier datagram; ours was not looked at. If it is
                // too large for the device, it is so again.
                Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::EMSGSIZE) if !repeated => {
                    repeated = true;
                    continue;
                }
                // No segments pass IPsec, nor, before Linux 6.11, a device that computes no
                // checksums. Single datagrams do, and so it will be with the next batch.
                Some(libc::EIO) if segmented => {
                    path.takes_segments.set(false);
                    buffers.cut(first);
                    buffers.prepare();
                    first = 0;
                    continue;
                }
                // Full for now, and so it is for the others.
                Some(libc::EAGAIN | libc::ENOBUFS) => {
                    sent.refused += buffers.headers.len() - first;
                    break;
                }
                _ => {}
            }
            // Before Linux 6.13 segments that are too large are EINVAL.
            sent.too_large |=
                code == Some(libc::EMSGSIZE) || (segmented && code == Some(libc::EINVAL));
            sent.refused += 1;
            first += 1;
        }
        sent
    }
}

/// sendmmsg(2): the number of messages that were sent, or why the first was not.
fn send_messages(path: &UdpPath, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    // SAFETY: `SendBuffers::prepare` has set the headers up with vectors and control buffers
    // that are alive; the vectors point to what the batch keeps borrowed. The kernel only
    // reads it.
    let count = unsafe {
        libc::sendmmsg(
            path.as_fd().as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as libc::c_uint,
            libc::MSG_DONTWAIT,
        )
    };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{SocketAddr, UdpSocket};
    use std::time::Duration;

    use super::super::PathOptions;
    use super::*;

    #[test]
    fn where_the_kernel_takes_no_segments_they_go_one_by_one() {
        let there = UdpSocket::bind("127.0.0.1:0").unwrap();
        there
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let path = UdpPath::open(&PathOptions {
            local: SocketAddr::from(([127, 0, 0, 1], 0)),
            remote: there.local_addr().unwrap(),
            device: None,
            buffer_bytes: 1 << 20,
            merge: false,
        })
        .unwrap();
        let refusals = Cell::new(0);
        // As sendmmsg(2) by IPsec: it sends what stands in front of the message that fails.
        let call = |path: &UdpPath, headers: &mut [libc::mmsghdr]| {
            let single = |header: &&libc::mmsghdr| header.msg_hdr.msg_controllen == 0;
            match headers.iter().take_while(single).count() {
                0 => {
                    refusals.set(refusals.get() + 1);
                    Err(io::Error::from_raw_os_error(libc::EIO))
                }
                count => send_messages(path, &mut headers[..count]),
            }
        };
        let mut buffers = SendBuffers::default();
        for _ in 0..2 {
            let mut batch = buffers.batch();
            for (segment, parts) in [
                (0, &["first"][..]),
                // Segments end in the middle of a part, at its end, and early.
                (4, &["abc", "", "defgh", "ij"]),
                (4, &["klmnopqr"]),
                (0, &["la", "st"]),
            ] {
                batch.message(segment);
                for part in parts {
                    batch.part(part.as_bytes());
                }
            }
            let all = Sent {
                messages: 7,
                ..Sent::default()
            };
            assert_eq!(batch.send_by(&path, call), all);
            for expected in ["first", "abcd", "efgh", "ij", "klmn", "opqr", "last"] {
                let mut datagram = [0; 64];
                let length = there.recv(&mut datagram).expect(expected);
                assert_eq!(&datagram[..length], expected.as_bytes());
            }
            assert_eq!(refusals.get(), 1, "it is remembered");
        }
    }
}
