// SPDX-License-Identifier: Apache-2.0
//! Both ends of each carrier.

use std::os::fd::AsFd as _;
use std::time::Duration;
use std::{io, thread};

use causeway_netio::tunnel::{Received, Receiver, SendBuffers, Slab, UdpPath};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::frames::{CHUNK, CHUNKS, FRAME, HEADER, Tally, place};
use crate::xsk::{SLOT, Xsk};

/// Frames that are sent at one go.
pub const BATCH: u64 = 4;
pub const PORT: u16 = 7000;
/// Datagrams of one message: what fits an IP packet.
const MESSAGE: usize = 44;
/// How long the receiver of AF_XDP sleeps when it finds nothing.
const NAP: Duration = Duration::from_micros(50);
/// Ethernet, IPv4 and UDP.
const OUTER: usize = 14 + 20 + 8;
/// Where a packet begins in its slot: so that payload begins at a multiple of 64.
const START: usize = 128 - HEADER - OUTER;

pub trait Outgoing {
    /// Sends `BATCH` frames, whose first datagram has this number.
    fn send(&mut self, frames: &[Vec<u8>], first: u64) -> io::Result<()>;
}

pub trait Incoming {
    /// Sleeps for a while, or until there is something; whether there is.
    fn wait(&self) -> io::Result<bool>;
    /// Takes all that is there.
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()>;
}

pub struct UdpSender {
    pub path: UdpPath,
    pub buffers: SendBuffers,
    pub headers: Vec<[u8; HEADER]>,
}

impl Outgoing for UdpSender {
    fn send(&mut self, frames: &[Vec<u8>], first: u64) -> io::Result<()> {
        for (header, number) in self.headers.iter_mut().zip(first..) {
            header[..8].copy_from_slice(&number.to_le_bytes());
        }
        let mut batch = self.buffers.batch();
        for (headers, number) in self.headers.chunks(CHUNKS).zip((first..).step_by(CHUNKS)) {
            let chunks = frames[place(number).0].chunks(CHUNK);
            for (index, (header, payload)) in headers.iter().zip(chunks).enumerate() {
                if index % MESSAGE == 0 {
                    batch.message((HEADER + CHUNK) as u16);
                }
                batch.part(header);
                batch.part(payload);
            }
        }
        match batch.send(&self.path).refused {
            0 => Ok(()),
            _ => Err(io::Error::other("the kernel refuses messages")),
        }
    }
}

pub struct UdpReceiver {
    pub path: UdpPath,
    pub receiver: Receiver,
    pub slab: Slab,
    pub received: Vec<Received>,
}

impl Incoming for UdpReceiver {
    fn wait(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(self.path.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut polled, PollTimeout::from(20_u8))? > 0)
    }

    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let mut more = true;
        while more {
            let (slab, received) = (&mut self.slab, &mut self.received);
            more = self.receiver.receive(&self.path, slab, received)?.more;
            for message in self.received.drain(..) {
                let bytes = &self.slab.bytes(message.buffer)[..message.length];
                bytes
                    .chunks(message.segment)
                    .for_each(|datagram| tally.take(datagram));
                self.slab.release(message.buffer, 1);
            }
        }
        Ok(())
    }
}

/// Slots are used in turn, so that each is always for the same chunk.
pub struct XdpSender {
    pub xsk: Xsk,
    /// Outer headers of a full datagram and of a frame's last.
    pub outer: [[u8; OUTER]; 2],
    pub free: i32,
    pub copies: bool,
}

impl Outgoing for XdpSender {
    fn send(&mut self, frames: &[Vec<u8>], first: u64) -> io::Result<()> {
        let count = BATCH as usize * CHUNKS;
        let done = self.xsk.completed.ahead();
        for _ in 0..done {
            let _ = self.xsk.completed.take();
        }
        self.xsk.completed.publish();
        self.free += done;
        if self.free < count as i32 {
            return Err(io::Error::other("sent packets do not come back"));
        }
        self.free -= count as i32;
        for number in first..first + count as u64 {
            let (frame, chunk) = place(number);
            let address = ((frame * CHUNKS + chunk) * SLOT + START) as u64;
            let begin = chunk * CHUNK;
            let payload = &frames[frame][begin..FRAME.min(begin + CHUNK)];
            let length = OUTER + HEADER + payload.len();
            let packet = self.xsk.bytes(address, length);
            packet[..OUTER].copy_from_slice(&self.outer[usize::from(chunk == CHUNKS - 1)]);
            let header = &mut packet[OUTER..OUTER + HEADER];
            header.fill(0);
            header[..8].copy_from_slice(&number.to_le_bytes());
            if self.copies {
                packet[OUTER + HEADER..].copy_from_slice(payload);
            }
            self.xsk.tx.put(libc::xdp_desc {
                addr: address,
                len: length as u32,
                options: 0,
            });
        }
        self.xsk.send()
    }
}

impl Incoming for Xsk {
    /// Not by poll(2): each packet of a veth could end it, and waking costs more than the copies.
    fn wait(&self) -> io::Result<bool> {
        if self.rx.ahead() == 0 {
            thread::sleep(NAP);
        }
        Ok(self.rx.ahead() > 0)
    }

    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        loop {
            let count = self.rx.ahead();
            if count == 0 {
                return Ok(());
            }
            for _ in 0..count {
                let packet = self.rx.take();
                let bytes = self.bytes(packet.addr, packet.len as usize);
                // What else a kernel says on a link is not for this port.
                if bytes.get(OUTER - 6..OUTER - 4) == Some(&PORT.to_be_bytes()) {
                    tally.take(&bytes[OUTER..]);
                }
                self.fill.put(packet.addr - packet.addr % SLOT as u64);
            }
            self.rx.publish();
            self.fill.publish();
        }
    }
}

/// Ethernet, IPv4 and UDP in front of `payload` bytes; no UDP checksum, as the kernel makes
/// none for a veth.
pub fn outer(payload: usize) -> [u8; OUTER] {
    let mut ip = [
        0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 2, 1, 10, 9, 2, 2,
    ];
    ip[2..4].copy_from_slice(&(28 + payload as u16).to_be_bytes());
    let sum: u32 = ip
        .chunks(2)
        .map(|b| u32::from(b[0]) << 8 | u32::from(b[1]))
        .sum();
    ip[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let mut outer = [0; OUTER];
    outer[..6].copy_from_slice(&[2, 0, 0, 0, 2, 2]);
    outer[6..12].copy_from_slice(&[2, 0, 0, 0, 2, 1]);
    outer[12] = 8;
    outer[14..34].copy_from_slice(&ip);
    outer[34..36].copy_from_slice(&PORT.to_be_bytes());
    outer[36..38].copy_from_slice(&PORT.to_be_bytes());
    outer[38..40].copy_from_slice(&(8 + payload as u16).to_be_bytes());
    outer
}
