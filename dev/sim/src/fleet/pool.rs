// SPDX-License-Identifier: Apache-2.0
//! The servers of one service, as a balancer's configuration and its counters have them.

use std::net::{IpAddr, Ipv4Addr};

use causeway_core::select::{RealKey, RingMember};

/// Servers by number. One that is away keeps its number for the one that takes its place.
#[derive(Debug)]
pub struct Servers {
    up: Vec<bool>,
    /// How many have had this place before; they had other addresses.
    renewed: Vec<u32>,
    /// Connections that each has.
    open: Vec<u32>,
    /// Packets a second that those bring.
    rate: Vec<f64>,
    ups: usize,
    all_open: u32,
}

/// What has happened to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolUpdate {
    /// It gets no new connections.
    Left(u32),
    /// It gets some.
    Joined(u32),
}

impl Servers {
    pub(super) fn new(count: u32) -> Self {
        let count = count as usize;
        Self {
            up: vec![true; count],
            renewed: vec![0; count],
            open: vec![0; count],
            rate: vec![0.0; count],
            ups: count,
            all_open: 0,
        }
    }

    pub(super) fn update(&mut self, update: PoolUpdate) {
        let (PoolUpdate::Left(of) | PoolUpdate::Joined(of)) = update;
        let up = matches!(update, PoolUpdate::Joined(_));
        if self.up[of as usize] != up {
            self.up[of as usize] = up;
            self.ups = if up { self.ups + 1 } else { self.ups - 1 };
        }
    }

    /// The place goes to a server with an address of its own.
    pub(super) fn renew(&mut self, of: u32) {
        self.renewed[of as usize] += 1;
    }

    pub(super) fn opened(&mut self, on: u32, rate: f64) {
        self.open[on as usize] += 1;
        self.all_open += 1;
        self.rate[on as usize] += rate;
    }

    pub(super) fn closed(&mut self, on: u32, rate: f64) {
        self.open[on as usize] -= 1;
        self.all_open -= 1;
        self.rate[on as usize] -= rate;
    }

    /// How many there are, those away included.
    pub fn len(&self) -> u32 {
        self.up.len() as u32
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.up.is_empty()
    }

    /// How many get new connections.
    pub fn ups(&self) -> usize {
        self.ups
    }

    /// Whether this one does.
    pub fn is_up(&self, of: u32) -> bool {
        self.up[of as usize]
    }

    /// Those that do.
    pub fn working(&self) -> impl Iterator<Item = u32> {
        (0..self.len()).filter(|of| self.is_up(*of))
    }

    /// Its connections.
    pub fn open(&self, of: u32) -> u32 {
        self.open[of as usize]
    }

    /// All connections, by the servers that get new ones.
    pub fn mean_open(&self) -> f64 {
        f64::from(self.all_open) / self.ups.max(1) as f64
    }

    /// Its address: no two servers ever have the same.
    pub fn address(&self, of: u32) -> IpAddr {
        let number = self.renewed[of as usize] * self.len() + of;
        IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number))
    }

    /// All of them for the product's rings; those that are away weigh nothing.
    pub fn members(&self) -> Vec<RingMember> {
        let member = |id| RingMember {
            key: RealKey::from(self.address(id)),
            id,
            weight: u32::from(self.is_up(id)),
        };
        (0..self.len()).map(member).collect()
    }

    /// How much more than the mean the fullest has, by connections: 0.3 is 30 %.
    pub fn imbalance(&self) -> f64 {
        let open = |of: u32| f64::from(self.open[of as usize]);
        self.excess(open)
    }

    /// The same by packets.
    pub fn packet_imbalance(&self) -> f64 {
        self.excess(|of| self.rate[of as usize])
    }

    fn excess(&self, load: impl Fn(u32) -> f64) -> f64 {
        let most = self.working().map(&load).fold(0.0, f64::max);
        let sum: f64 = self.working().map(&load).sum();
        match sum > 0.0 {
            true => most * self.ups as f64 / sum - 1.0,
            false => 0.0,
        }
    }
}
