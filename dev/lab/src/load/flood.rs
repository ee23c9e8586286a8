// SPDX-License-Identifier: Apache-2.0
//! A flood of SYNs from addresses that do not exist, at a set rate.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};

use crate::background::Background;
use crate::netns::Netns;

/// Where the SYNs claim to come from (RFC 2544's network for benchmarks), 2^17 hosts.
pub const SOURCES: &str = "198.18.0.0/15";
const FIRST_SOURCE: u32 = 0xc612_0000;
const SOURCE_BITS: u32 = 17;
/// SYNs are sent in bursts of what is due since the last one.
const TICK: Duration = Duration::from_millis(1);
/// A sender that falls behind sends no more than this at once.
const BURST_MAX: u64 = 1000;

/// A flood that is under way.
pub struct Flood(Background<u64>);

impl Flood {
    /// Starts to send `rate` SYNs per second from `netns` to `target`.
    pub fn start(netns: &Netns, target: SocketAddrV4, rate: u64) -> Self {
        Self(Background::spawn_in(netns, move |stop| {
            run(target, rate, stop)
        }))
    }

    /// Ends it; how many SYNs were sent.
    pub fn finish(self) -> Result<u64> {
        self.0.finish()
    }
}

fn run(target: SocketAddrV4, rate: u64, stop: &AtomicBool) -> Result<u64> {
    let raw = socket(
        AddressFamily::Inet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::Raw,
    )
    .context("opening a raw socket")?;
    let to = SockaddrIn::from(target);
    let start = Instant::now();
    let (mut count, mut sent) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        let due = (start.elapsed().as_secs_f64() * rate as f64) as u64;
        let burst = due.saturating_sub(count).min(BURST_MAX);
        for number in count..count + burst {
            match sendto(
                raw.as_raw_fd(),
                &syn(number, target),
                &to,
                MsgFlags::empty(),
            ) {
                Ok(_) => sent += 1,
                // The queue is full: that SYN is lost, as it would be on a wire.
                Err(Errno::ENOBUFS | Errno::EAGAIN) => {}
                Err(error) => return Err(error).context("sending a SYN"),
            };
        }
        count = due.min(count + burst);
        sleep(TICK);
    }
    Ok(sent)
}

/// SYN number `number`: another tuple each, with the options of a Linux client.
fn syn(number: u64, target: SocketAddrV4) -> [u8; 60] {
    let source = Ipv4Addr::from(FIRST_SOURCE + (number as u32 & ((1 << SOURCE_BITS) - 1)));
    let port = 1024 + (number >> SOURCE_BITS) as u16 % 60_000;
    let mut packet = [0; 60];
    let (ip, tcp) = packet.split_at_mut(20);
    // The kernel fills in length and checksum of the header.
    ip[0] = 0x45;
    ip[6] = 0x40;
    ip[8] = 64;
    ip[9] = 6;
    ip[12..16].copy_from_slice(&source.octets());
    ip[16..].copy_from_slice(&target.ip().octets());
    tcp[..2].copy_from_slice(&port.to_be_bytes());
    tcp[2..4].copy_from_slice(&target.port().to_be_bytes());
    tcp[4..8].copy_from_slice(&(number as u32).wrapping_mul(0x9e37_79b1).to_be_bytes());
    tcp[12] = 10 << 4;
    tcp[13] = 2;
    tcp[14..16].copy_from_slice(&64_240u16.to_be_bytes());
    // MSS 1460, SACK permitted, timestamps, window scale 7.
    tcp[20..].copy_from_slice(&[
        2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 1, 0, 0, 0, 0, 0, 1, 3, 3, 7,
    ]);
    let sum = checksum(source, *target.ip(), tcp);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// TCP's checksum of a segment of even length (RFC 9293, section 3.1).
fn checksum(source: Ipv4Addr, target: Ipv4Addr, segment: &[u8]) -> u16 {
    let pseudo = [
        &source.octets()[..],
        &target.octets(),
        &[0, 6],
        &(segment.len() as u16).to_be_bytes(),
    ]
    .concat();
    let words = pseudo.chunks_exact(2).chain(segment.chunks_exact(2));
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuples_do_not_repeat_and_sums_are_right() {
        let target = SocketAddrV4::new(Ipv4Addr::new(10, 30, 0, 1), 80);
        let tuple = |number| {
            let packet = syn(number, target);
            (packet[12..16].to_vec(), packet[20..22].to_vec())
        };
        let mut seen = std::collections::HashSet::new();
        assert!(
            (0..1000)
                .chain(1 << SOURCE_BITS..(1 << SOURCE_BITS) + 1000)
                .all(|n| seen.insert(tuple(n)))
        );
        let packet = syn(7, target);
        let source = Ipv4Addr::new(packet[12], packet[13], packet[14], packet[15]);
        // A segment with its checksum sums up to zero.
        assert_eq!(checksum(source, *target.ip(), &packet[20..]), 0);
    }
}
