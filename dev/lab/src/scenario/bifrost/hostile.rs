// SPDX-License-Identifier: Apache-2.0
//! Forged and malformed datagrams, as fast as one thread can send them, under the
//! peer's own address: so they pass the kernel's check and reach the engine.

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::Ordering;

use anyhow::{Context as _, Result};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};
use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};

use super::tunnel::PORT;
use super::world::TunnelWorld;
use crate::background::Background;

/// A sender; dropped, it ends.
pub(super) struct Hostile {
    thread: Background<u64>,
}

impl Hostile {
    /// Sends from the first host to the second, on the first path.
    pub(super) fn start(world: &TunnelWorld, seed: u64) -> Result<Self> {
        let thread = Background::spawn_in(&world.hosts[0], move |stop| {
            let fd = socket(
                AddressFamily::Inet,
                SockType::Raw,
                SockFlag::SOCK_CLOEXEC,
                SockProtocol::Udp,
            )
            .context("a raw socket")?;
            let to = SockaddrIn::from(std::net::SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 2), 0));
            let mut rng = StdRng::seed_from_u64(seed);
            let mut packet = vec![0; 8 + 1472];
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                let length = fill(&mut packet, &mut rng);
                // A full queue loses it: so be it.
                let _ = sendto(
                    fd.as_raw_fd(),
                    &packet[..length],
                    &to,
                    MsgFlags::MSG_DONTWAIT,
                );
                sent += 1;
            }
            Ok(sent)
        });
        Ok(Self { thread })
    }

    /// Ends it; how many were sent.
    pub(super) fn stop(self) -> Result<u64> {
        self.thread.finish()
    }
}

/// A UDP packet with the tunnel's ports and anything in it: noise, or noise behind the
/// first bytes of a real header (version and kind, path, and in half of these a key's id that may be
/// in use), of any length.
fn fill(packet: &mut [u8], rng: &mut StdRng) -> usize {
    let length = rng.random_range(0..=packet.len() - 8);
    let (udp, payload) = packet.split_at_mut(8);
    udp[..2].copy_from_slice(&PORT.to_be_bytes());
    udp[2..4].copy_from_slice(&PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&((8 + length) as u16).to_be_bytes());
    // No checksum: allowed over IPv4 (RFC 768).
    udp[6..8].fill(0);
    let noisy = length.min(64);
    rng.fill_bytes(&mut payload[..noisy]);
    if rng.random_bool(0.5) && length > 2 {
        payload[0] = 0x10 | rng.random_range(0..8);
        payload[1] = 0;
        if rng.random_bool(0.5) {
            payload[2] = rng.random_range(1..=2);
        }
    }
    8 + length
}
