// SPDX-License-Identifier: Apache-2.0
//! Two tunnels to compare with, both over one path and as small as can be: nothing is
//! ordered, acknowledged or retransmitted.
//!
//! [`PlainTunnelKind::Packet`] reads a packet, sends a datagram, receives a datagram, writes a
//! packet: one system call each. [`PlainTunnelKind::SuperPacket`] moves frames of up to 64 KiB with
//! the same calls as `causeway tunnel`, and does nothing else with them: what reliability
//! and several paths cost is the difference to it.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context as _, Result};
use causeway_netio::monotonic_ns;
use causeway_netio::tunnel::{
    BUFFER_BYTES, BufferId, Device, DeviceOptions, FRAME_MAX, PathOptions, ReceivedMessage,
    SendBuffers, Slab, Tun, UdpPath, UdpReceiver, Waiter,
};
use serde::{Deserialize, Serialize};

use super::world::{DEVICE, GUESTS, TunnelWorld};
use crate::role::{self, Player};

const PORT: u16 = 7900;
/// Frame's number, frame's length, place in the frame.
const HEADER: usize = 12;
/// Datagrams of a message: what fits UDP's length field.
const SEGMENTS: usize = 44;
/// Frames that are read before what came in is looked at.
const FRAMES: usize = 8;
const TICK_NS: u64 = 100_000_000;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PlainTunnelKind {
    /// One packet per system call.
    Packet,
    /// Whole frames, cut and merged by the kernel.
    SuperPacket,
}

/// Both ends, each a process of its own as a tunnel is: threads of one process would
/// hand over to each other, and to the loads, more cheaply. Dropped, they end and their
/// devices go.
pub(crate) struct PlainTunnel {
    ends: [Player; 2],
}

/// The role of an end.
pub(crate) const ROLE: &str = "plain-tunnel";

/// What an end is given.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    kind: PlainTunnelKind,
    end: u8,
    guest: PathBuf,
    mtu: u32,
}

impl PlainTunnel {
    /// Starts both ends on the first path.
    pub(crate) fn start(world: &TunnelWorld, kind: PlainTunnelKind) -> Result<Self> {
        let start = |end: usize| {
            let order = Order {
                kind,
                end: end as u8,
                guest: world.guest_file(end),
                mtu: world.shape().mtu,
            };
            Player::start_role(&world.hosts[end], ROLE, &serde_json::to_string(&order)?)
        };
        let ends = [start(0)?, start(1)?];
        world.guests_connected()?;
        Ok(Self { ends })
    }

    /// The ends' process ids.
    pub(crate) fn pids(&self) -> [u32; 2] {
        [0, 1].map(|end| self.ends[end].pid())
    }
}

/// Runs an end until its input ends.
pub(crate) fn play() -> Result<()> {
    let mut commands = role::commands();
    let first = commands.blocking_recv().context("no configuration")?;
    let order: Order = serde_json::from_str(&first).context("configuration")?;
    let mut carrier = Forwarder::open(&order)?;
    role::answer("ready")?;
    let waker = carrier.waiter.waker();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    thread::spawn(move || {
        while commands.blocking_recv().is_some() {}
        stopped.store(true, Ordering::Relaxed);
        waker.wake();
    });
    match order.kind {
        PlainTunnelKind::Packet => {
            carrier.run(&stop, Forwarder::packets_out, Forwarder::packets_in)
        }
        PlainTunnelKind::SuperPacket => {
            carrier.run(&stop, Forwarder::frames_out, Forwarder::frames_in)
        }
    }
}

/// One end.
struct Forwarder {
    tun: Tun,
    path: UdpPath,
    waiter: Waiter,
    slab: Slab,
    receiver: UdpReceiver,
    received: Vec<ReceivedMessage>,
    buffers: SendBuffers,
    /// Bytes of a frame in a datagram.
    chunk: usize,
    number: u32,
    frame: Frame,
}

/// The frame that is coming in.
#[derive(Default)]
struct Frame {
    number: u32,
    length: usize,
    have: usize,
    /// Buffer, offset, length.
    pieces: Vec<(BufferId, usize, usize)>,
}

impl Forwarder {
    fn open(order: &Order) -> Result<Self> {
        let end = usize::from(order.end);
        let address = GUESTS.get(end).context("there are two ends")?;
        let mut device = Device::open(&DeviceOptions {
            name: DEVICE.to_owned(),
            queues: 1,
            namespace: Some(order.guest.clone()),
            // A packet and its outer headers must fit; frames are cut.
            mtu: match order.kind {
                PlainTunnelKind::Packet => order.mtu - 28,
                PlainTunnelKind::SuperPacket => 1500,
            },
            queue_packets: Some(1000),
            addresses: vec![(address.parse()?, 24)],
            persist: false,
            super_packets: order.kind == PlainTunnelKind::SuperPacket,
        })?;
        let at = |host: u8| SocketAddr::from(([10, 9, 0, host + 1], PORT));
        let path = UdpPath::open(&PathOptions {
            local: at(order.end),
            remote: at(1 - order.end),
            device: None,
            buffer_bytes: 8 << 20,
            merge: order.kind == PlainTunnelKind::SuperPacket,
        })?;
        let tun = device.queues.pop().context("a queue")?;
        let mut waiter = Waiter::new()?;
        waiter.watch([tun.as_fd(), path.as_fd()].into_iter());
        let chunk = order.mtu as usize - 28 - HEADER;
        Ok(Self::new(tun, path, waiter, chunk))
    }

    fn new(tun: Tun, path: UdpPath, waiter: Waiter, chunk: usize) -> Self {
        Self {
            tun,
            path,
            waiter,
            slab: Slab::new(256, BUFFER_BYTES),
            receiver: UdpReceiver::new(),
            received: Vec::new(),
            buffers: SendBuffers::default(),
            chunk,
            number: 0,
            frame: Frame::default(),
        }
    }

    fn run(
        &mut self,
        stop: &AtomicBool,
        out: fn(&mut Self) -> Result<()>,
        inward: fn(&mut Self) -> Result<()>,
    ) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let ready = {
                let now = monotonic_ns();
                self.waiter.wait(now, now + TICK_NS)?
            };
            let (from_guest, from_path) = (ready.is(0), ready.is(1));
            if from_guest {
                out(self)?;
            }
            if from_path {
                inward(self)?;
            }
        }
        Ok(())
    }

    fn packets_out(&mut self) -> Result<()> {
        let id = self.slab.take().context("a buffer")?;
        for _ in 0..64 {
            let Some(length) = self.tun.read(self.slab.bytes_mut(id))? else {
                break;
            };
            let mut batch = self.buffers.batch();
            batch.message(0);
            batch.part(&self.slab.bytes(id)[..length]);
            // A refused one is lost.
            batch.send(&self.path);
        }
        self.slab.release(id, 1);
        Ok(())
    }

    fn packets_in(&mut self) -> Result<()> {
        let id = self.slab.take().context("a buffer")?;
        for _ in 0..64 {
            let Some(length) = self.path.receive_one(self.slab.bytes_mut(id))? else {
                break;
            };
            // The guest's kernel may refuse what it does not like.
            let _ = self
                .tun
                .write(&[IoSlice::new(&self.slab.bytes(id)[..length])]);
        }
        self.slab.release(id, 1);
        Ok(())
    }

    fn frames_out(&mut self) -> Result<()> {
        for _ in 0..FRAMES {
            let id = self.slab.take().context("a buffer")?;
            let read = self.tun.read(&mut self.slab.bytes_mut(id)[..FRAME_MAX])?;
            let Some(length) = read else {
                self.slab.release(id, 1);
                break;
            };
            self.number = self.number.wrapping_add(1);
            let headers: Vec<[u8; HEADER]> = (0..length.div_ceil(self.chunk))
                .map(|index| header(self.number, length, index * self.chunk))
                .collect();
            let frame = &self.slab.bytes(id)[..length];
            let mut batch = self.buffers.batch();
            for (index, (header, piece)) in headers.iter().zip(frame.chunks(self.chunk)).enumerate()
            {
                if index % SEGMENTS == 0 {
                    batch.message((HEADER + self.chunk) as u16);
                }
                batch.part(header);
                batch.part(piece);
            }
            batch.send(&self.path);
            self.slab.release(id, 1);
        }
        Ok(())
    }

    fn frames_in(&mut self) -> Result<()> {
        self.receiver
            .receive(&self.path, &mut self.slab, &mut self.received)?;
        let received = std::mem::take(&mut self.received);
        for message in &received {
            let mut at = 0;
            while at < message.length {
                let end = (at + message.segment).min(message.length);
                self.piece(message.buffer, at, end);
                at = end;
            }
            self.slab.release(message.buffer, 1);
        }
        self.received = received;
        self.received.clear();
        Ok(())
    }

    /// A datagram of a frame; the last one sends it up.
    fn piece(&mut self, buffer: BufferId, at: usize, end: usize) {
        let bytes = &self.slab.bytes(buffer)[at..end];
        let Some((head, piece)) = bytes.split_at_checked(HEADER) else {
            return;
        };
        let field =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (number, length, place) = (field(0), field(4) as usize, field(8) as usize);
        let piece_len = piece.len();
        if place == 0 {
            self.forget();
            self.frame.number = number;
            self.frame.length = length;
        }
        if number != self.frame.number || place != self.frame.have {
            return;
        }
        self.frame.have += piece_len;
        self.frame.pieces.push((buffer, at + HEADER, piece_len));
        self.slab.retain(buffer, 1);
        if self.frame.have >= self.frame.length {
            let pieces: Vec<IoSlice<'_>> = self
                .frame
                .pieces
                .iter()
                .map(|(id, at, length)| IoSlice::new(&self.slab.bytes(*id)[*at..at + length]))
                .collect();
            let _ = self.tun.write(&pieces);
            self.forget();
        }
    }

    fn forget(&mut self) {
        for (id, _, _) in self.frame.pieces.drain(..) {
            self.slab.release(id, 1);
        }
        self.frame.have = 0;
    }
}

fn header(number: u32, length: usize, place: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    for (to, field) in bytes
        .chunks_exact_mut(4)
        .zip([number, length as u32, place as u32])
    {
        to.copy_from_slice(&field.to_le_bytes());
    }
    bytes
}
