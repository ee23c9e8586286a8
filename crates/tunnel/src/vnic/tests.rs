// SPDX-License-Identifier: Apache-2.0

use causeway_bifrost::{Limits, PathId, Transmit, VNET_HEADER_LEN};

use super::super::memory::SlabKind;
use super::super::pair::{engines, peer};
use super::*;

const PATH: PathId = PathId(0);
/// Bytes of a frame: one datagram.
const FRAME: usize = 200;

/// Two engines that know each other, and the memory of the second.
struct Bench {
    ends: [TransportEngine; 2],
    memory: Memory,
    now_ns: u64,
    /// Frames sent so far, and references to them that came back.
    sent: u32,
    back: u32,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            ends: engines(1),
            memory: Memory::new(&Limits::default(), 1472),
            now_ns: 0,
            sent: 0,
            back: 0,
        };
        for turn in 0..8 {
            bench.carry(turn % 2);
        }
        bench
    }

    /// What one end has to send comes to the other. Byte 20 of a frame's packet is its number.
    fn carry(&mut self, from: usize) {
        self.now_ns += 20_000;
        self.ends[from].handle_timeout(self.now_ns);
        let mut batch = Transmit::default();
        while self.ends[from].poll_transmit(self.now_ns, &mut batch) {
            let mut headers = &batch.headers[..];
            for segment in &batch.datagrams {
                let (header, rest) = headers.split_at(segment.header_len.into());
                headers = rest;
                let mut datagram = header.to_vec();
                let payload = datagram.len();
                let padded = segment.payload.len as usize + usize::from(segment.padding);
                datagram.resize(payload + padded, 0);
                if segment.payload.len > 0 {
                    let packet = &mut datagram[payload + VNET_HEADER_LEN..];
                    (packet[0], packet[20]) = (0x45, segment.payload.slot as u8);
                    packet[2..4].copy_from_slice(&((FRAME - VNET_HEADER_LEN) as u16).to_be_bytes());
                }
                self.arrive(1 - from, &mut datagram);
            }
        }
        while self.ends[0].poll_release().is_some() {
            self.back += 1;
        }
    }

    fn arrive(&mut self, at: usize, datagram: &mut [u8]) {
        let slab = self.memory.slab(SlabKind::SmallDatagram);
        let buffer = slab.take().unwrap();
        slab.bytes_mut(buffer)[..datagram.len()].copy_from_slice(datagram);
        let span = Span {
            slot: Memory::slot(SlabKind::SmallDatagram, buffer),
            offset: 0,
            len: datagram.len() as u32,
        };
        let segment = datagram.len();
        let end = &mut self.ends[at];
        let held = end.handle_datagrams(self.now_ns, PATH, peer(), (datagram, segment), span);
        let slab = self.memory.slab(SlabKind::SmallDatagram);
        slab.retain(buffer, held);
        slab.release(buffer, 1);
    }

    /// Frames come to the second end.
    fn offer(&mut self, count: u32) {
        for _ in 0..count {
            let span = Span {
                slot: self.sent,
                offset: 0,
                len: FRAME as u32,
            };
            self.ends[0].handle_frame(self.now_ns, span, 7).unwrap();
            self.sent += 1;
        }
        self.carry(0);
    }

    fn pass(
        &mut self,
        vnic: &mut Vnic,
        write: impl FnMut(&[IoSlice<'_>]) -> io::Result<()>,
    ) -> bool {
        vnic.pass(self.now_ns, &mut self.ends[1], &mut self.memory, write)
    }

    fn refused(&self) -> u64 {
        self.ends[1].metrics().vnic_full
    }
}

fn counts(taken: u64, refused: u64, stuck: u64) -> GuestCounts {
    GuestCounts {
        taken,
        refused,
        stuck,
    }
}

/// The number in a frame.
fn number(pieces: &[IoSlice<'_>]) -> u8 {
    pieces[0][VNET_HEADER_LEN + 20]
}

#[test]
fn a_ring_of_one_refuses_nothing_while_the_guest_takes_frames() {
    let mut bench = Bench::new();
    let mut vnic = Vnic::new(1);
    let mut written = Vec::new();
    bench.offer(20);
    let wrote = bench.pass(&mut vnic, |frame| {
        written.push(number(frame));
        Ok(())
    });
    assert!(wrote && !vnic.is_waiting());
    assert_eq!(written, Vec::from_iter(0..20));
    assert_eq!((vnic.counts(), bench.refused()), (counts(20, 0, 0), 0));
    assert_eq!(bench.memory.used_bytes(), 0);
    assert!(!bench.pass(&mut vnic, |_| Ok(())));
}

#[test]
fn what_a_full_guest_leaves_waits_in_order_and_the_rest_comes_again() {
    let mut bench = Bench::new();
    let mut vnic = Vnic::new(4);
    let mut written = Vec::new();
    bench.offer(10);
    // Two frames, then no room: four wait, the next is refused, and those behind it wait for it.
    let wrote = bench.pass(&mut vnic, |frame| {
        if written.len() == 2 {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        written.push(number(frame));
        Ok(())
    });
    assert!(wrote && vnic.is_waiting());
    assert_eq!(bench.refused(), 1);
    let full = |_: &[IoSlice<'_>]| Err(io::Error::from_raw_os_error(libc::ENOBUFS));
    assert!(!bench.pass(&mut vnic, full));
    for _ in 0..1000 {
        bench.carry(1);
        bench.carry(0);
        bench.pass(&mut vnic, |frame| {
            written.push(number(frame));
            Ok(())
        });
    }
    assert_eq!(written, Vec::from_iter(0..10));
    assert_eq!(vnic.counts(), counts(10, 0, 0));
    assert_eq!(bench.back, bench.sent);
    assert_eq!(bench.memory.used_bytes(), 0);
}

#[test]
fn a_frame_that_the_guest_does_not_like_does_not_hold_up_the_others() {
    let mut bench = Bench::new();
    let mut vnic = Vnic::new(4);
    let mut written = Vec::new();
    bench.offer(3);
    bench.pass(&mut vnic, |frame| match number(frame) {
        1 => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        number => {
            written.push(number);
            Ok(())
        }
    });
    assert_eq!(written, [0, 2]);
    assert_eq!((vnic.counts(), bench.refused()), (counts(2, 1, 0), 0));
    assert_eq!(bench.memory.used_bytes(), 0);
}

#[test]
fn a_guest_that_takes_nothing_leaves_sockets_their_memory_and_gets_nothing_stale() {
    let mut bench = Bench::new();
    let mut vnic = Vnic::new(1024);
    let full = |_: &[IoSlice<'_>]| Err(io::Error::from_raw_os_error(libc::ENOMEM));
    bench.offer(2);
    // All large buffers but the sockets' reserve are in use.
    let mut taken = Vec::new();
    while !bench.memory.is_short_of_large() {
        taken.extend(bench.memory.slab(SlabKind::Datagrams).take());
    }
    bench.pass(&mut vnic, full);
    assert!(vnic.is_waiting());
    assert_eq!(bench.refused(), 1);
    for buffer in taken {
        bench.memory.slab(SlabKind::Datagrams).release(buffer, 1);
    }
    // The first one is dropped when it is too old; a later one has its own time.
    bench.now_ns += STUCK_NS;
    bench.pass(&mut vnic, full);
    assert_eq!(vnic.counts(), counts(0, 0, 1));
    assert!(!vnic.is_waiting());
    bench.offer(1);
    bench.pass(&mut vnic, full);
    assert_eq!(vnic.counts(), counts(0, 0, 1));
}

/// As it is for some milliseconds when an interface is configured anew; frames here are acknowledged.
#[test]
fn what_comes_while_the_device_is_down_waits_for_it_and_gets_no_older_than_elsewhere() {
    let mut bench = Bench::new();
    let mut vnic = Vnic::new(1024);
    let down = |_: &[IoSlice<'_>]| Err(io::Error::from_raw_os_error(libc::EIO));
    bench.offer(3);
    bench.pass(&mut vnic, down);
    bench.now_ns += STUCK_NS / 2;
    let mut written = Vec::new();
    bench.pass(&mut vnic, |frame| {
        written.push(number(frame));
        Ok(())
    });
    assert_eq!(written, [0, 1, 2]);
    assert_eq!(vnic.counts(), counts(3, 0, 0));
    // Down for good: no more waits than came in that time.
    for round in 1..=2 {
        bench.offer(3);
        bench.pass(&mut vnic, down);
        bench.now_ns += STUCK_NS;
        bench.pass(&mut vnic, down);
        assert_eq!(vnic.counts(), counts(3, 0, 3 * round));
        assert!(!vnic.is_waiting());
    }
    assert_eq!(bench.memory.used_bytes(), 0);
}

#[test]
fn a_ring_that_becomes_smaller_keeps_what_it_has() {
    let mut bench = Bench::new();
    let mut vnic = Vnic::new(4);
    bench.offer(4);
    let full = |_: &[IoSlice<'_>]| Err(io::Error::from_raw_os_error(libc::EAGAIN));
    bench.pass(&mut vnic, full);
    vnic.set_capacity(1);
    bench.offer(1);
    bench.pass(&mut vnic, full);
    assert_eq!(bench.refused(), 1);
    let mut written = Vec::new();
    bench.pass(&mut vnic, |frame| {
        written.push(number(frame));
        Ok(())
    });
    assert_eq!(written, [0, 1, 2, 3]);
    assert_eq!(bench.memory.used_bytes(), 0);
}
