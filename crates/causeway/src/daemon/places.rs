// SPDX-License-Identifier: Apache-2.0
//! Keeps the places of stateful VIPs' connections: a thread that hands free ones to
//! the CPUs and takes back those of connections that have ended.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use causeway_io::{ConnTable, Connection, Patience};
use serde::Serialize;

/// A ring holds 1024 places of a partition; so often it is filled up.
const TICK: Duration = Duration::from_millis(20);
/// Ticks in which every place is looked at once: five seconds.
const TICKS_OF_A_SWEEP: usize = 250;
/// Longest time between the two looks of [`Places::heaviest`].
pub const LOOK_MAX: Duration = Duration::from_secs(10);

/// A handle; clones share the table. The thread ends with the process: places are
/// needed as long as packets flow.
#[derive(Clone)]
pub struct Places(Arc<Mutex<ConnTable>>);

/// A connection and what it sends.
#[derive(Debug, Serialize)]
pub struct Sender {
    /// The client.
    pub client: String,
    /// The VIP.
    pub vip: String,
    /// Number of the real.
    pub real_id: u32,
    /// Packets per second.
    pub rate_pps: f64,
    /// Packets since its SYN, modulo 2^32.
    pub packets: u32,
    /// The client has ended it.
    pub closed: bool,
}

/// Connections that hold places, and those that send most.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Places in use.
    pub open: usize,
    /// SYNs that found no free place and went by the flow table, since the start.
    pub refused: u64,
    /// The senders, heaviest first.
    pub heaviest: Vec<Sender>,
}

impl Places {
    /// Takes the table into care.
    pub fn keep(table: ConnTable, idle: Duration) -> std::io::Result<Self> {
        let places = Self(Arc::new(Mutex::new(table)));
        let kept = places.clone();
        let patience = Patience {
            open: idle,
            ..Patience::default()
        };
        thread::Builder::new()
            .name("places".to_owned())
            .spawn(move || kept.run(&patience))?;
        Ok(places)
    }

    fn run(&self, patience: &Patience) {
        let start = Instant::now();
        loop {
            let mut table = self.table();
            let share = table.places().div_ceil(TICKS_OF_A_SWEEP);
            table.sweep(start.elapsed(), share, patience);
            table.top_up();
            drop(table);
            thread::sleep(TICK);
        }
    }

    /// The table is whole after every step, so that a panic elsewhere does not spoil it.
    fn table(&self) -> MutexGuard<'_, ConnTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections that send most, by two looks `apart`. Blocks that long.
    pub fn heaviest(&self, count: usize, apart: Duration) -> Report {
        let before: HashMap<u32, u32> = self
            .table()
            .connections()
            .map(|c| (c.place, c.packets))
            .collect();
        let start = Instant::now();
        thread::sleep(apart.min(LOOK_MAX));
        let seconds = start.elapsed().as_secs_f64();
        let table = self.table();
        let rate = |connection: &Connection| {
            let old = before.get(&connection.place).copied().unwrap_or(0);
            f64::from(connection.packets.wrapping_sub(old)) / seconds
        };
        let mut senders: Vec<(f64, Connection)> =
            table.connections().map(|c| (rate(&c), c)).collect();
        senders.sort_by(|a, b| b.0.total_cmp(&a.0));
        let sender = |(rate_pps, connection): &(f64, Connection)| Sender {
            client: connection.client.to_string(),
            vip: connection.vip.to_string(),
            real_id: connection.real,
            rate_pps: *rate_pps,
            packets: connection.packets,
            closed: connection.closed,
        };
        Report {
            open: senders.len(),
            refused: table.refused(),
            heaviest: senders.iter().take(count).map(sender).collect(),
        }
    }
}
