// SPDX-License-Identifier: Apache-2.0
//! Keeps the slots of stateful VIPs' connections: a thread that hands free ones to
//! the CPUs and takes back those of connections that have ended.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use causeway_api::balancer::{Connections, HeavyConnection, Notified};
use causeway_core::agent_report::ConnectionNotice;
use causeway_dataplane::{ConnTable, ConnTimeouts, Connection, Directory, Learned, RealId};

/// A ring holds 1024 slots of a partition; this is how often it is filled up.
const TICK: Duration = Duration::from_millis(20);
/// Ticks in which every slot is looked at once: five seconds.
const TICKS_OF_A_SWEEP: usize = 250;
/// Longest time between the two looks of [`ConnectionSlots::heaviest`].
pub const LOOK_MAX: Duration = Duration::from_secs(10);

/// Most connections that [`ConnectionSlots::heaviest`] names.
pub const HEAVIEST_MAX: usize = 1000;

/// A handle; clones share the table. The thread that [`begin`](Self::begin) starts ends with the
/// process: slots are needed as long as packets flow.
#[derive(Clone)]
pub struct ConnectionSlots {
    keeper: Arc<Mutex<Keeper>>,
    directory: Arc<Directory>,
    /// Held by a request that reads all connections: each copies them.
    looking: Arc<Mutex<()>>,
    learning: Duration,
}

struct Keeper {
    table: ConnTable,
    told: Notified,
}

impl ConnectionSlots {
    /// Takes the table into care. If none of its slots has been given out yet, none is for the
    /// first `learning`: those of connections that agents report must be free. So who was killed
    /// while it learnt is followed by one that learns, too.
    pub fn new(table: ConnTable, directory: Directory, learning: Duration) -> Self {
        let told = Notified::default();
        let learning = match table.gives_out() {
            true => Duration::ZERO,
            false => learning,
        };
        Self {
            keeper: Arc::new(Mutex::new(Keeper { table, told })),
            directory: Arc::new(directory),
            looking: Arc::default(),
            learning,
        }
    }

    /// Hands out slots and takes them back from now on, on a thread; an open connection may be
    /// silent for `idle`. Only once in a process: two would hand one slot to two CPUs.
    pub fn begin(&self, idle: Duration) -> std::io::Result<()> {
        let kept = self.clone();
        let timeouts = ConnTimeouts {
            open: idle,
            ..ConnTimeouts::default()
        };
        thread::Builder::new()
            .name("slots".to_owned())
            .spawn(move || kept.run(&timeouts))?;
        Ok(())
    }

    /// For how long after the start agents are asked which connections are open.
    pub(crate) fn learning(&self) -> Duration {
        self.learning
    }

    fn run(&self, timeouts: &ConnTimeouts) {
        let start = Instant::now();
        loop {
            let mut keeper = self.keeper();
            let share = keeper.table.slots().div_ceil(TICKS_OF_A_SWEEP);
            keeper.table.sweep(start.elapsed(), share, timeouts);
            if start.elapsed() >= self.learning {
                keeper.table.top_up();
            }
            drop(keeper);
            thread::sleep(TICK);
        }
    }

    /// See [`ConnTable::take_unheard`].
    pub(crate) fn take_unheard(&self) -> HashMap<RealId, u64> {
        self.keeper().table.take_unheard()
    }

    /// The table is whole after every step, so that a panic elsewhere does not spoil it.
    fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back the slots of connections that have ended at `server`, whose word is worth
    /// nothing about connections of others.
    pub fn end(&self, server: IpAddr, notices: &[ConnectionNotice]) {
        // A map that cannot be read is as good as a notice that is lost.
        let Ok(hash_key) = self.directory.hash_key() else {
            return;
        };
        let mut keeper = self.keeper();
        for notice in notices {
            let ends = (notice.client, notice.vip);
            let found = keeper.table.find(hash_key, ends, notice.token);
            let is_theirs =
                |found: &Connection| self.directory.is_at(found, server).unwrap_or(false);
            let found = found.filter(is_theirs);
            if found.is_some_and(|found| keeper.table.release(&found)) {
                keeper.told.ended += 1;
            }
        }
    }

    /// Puts connections to `server` that another balancer kept into their slots.
    pub fn learn(&self, server: IpAddr, notices: &[ConnectionNotice]) {
        // A map that cannot be read is as good as a server that is not there.
        let hash_key = self.directory.hash_key().ok();
        for notice in notices {
            let route = self.directory.route(notice.vip, notice.id, server);
            let route = route.ok().flatten();
            let mut keeper = self.keeper();
            let learned = match (route, hash_key) {
                (Some(route), Some(hash_key)) => {
                    let ends = (notice.client, notice.vip);
                    keeper.table.learn(hash_key, ends, notice.token, &route)
                }
                _ => Learned::Taken,
            };
            match learned {
                Learned::Placed => keeper.told.learned += 1,
                Learned::Known => {}
                Learned::Taken => keeper.told.not_learned += 1,
            }
        }
    }

    /// Sends a connection's packets to another real from now on; `false` if it has no
    /// slot here.
    pub fn move_to(
        &self,
        client: SocketAddr,
        vip: SocketAddr,
        real: RealId,
    ) -> causeway_dataplane::Result<bool> {
        let keeper = self.keeper();
        let mut connections = keeper.table.connections();
        let found = connections.find(|held| held.client == client && held.vip == vip);
        match found {
            Some(found) => self.directory.reroute(&keeper.table, &found, real),
            None => Ok(false),
        }
    }

    /// The connections that send most, by two looks `apart`. Blocks that long; `None` while
    /// another such look is under way.
    pub fn heaviest(&self, count: usize, apart: Duration) -> Option<Connections> {
        let _looking = match self.looking.try_lock() {
            Ok(looking) => looking,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let before: HashMap<Identity, u32> = self
            .keeper()
            .table
            .connections()
            .map(|connection| (identity(&connection), connection.packets))
            .collect();
        let start = Instant::now();
        thread::sleep(apart.min(LOOK_MAX));
        let seconds = start.elapsed().as_secs_f64();
        let keeper = self.keeper();
        let now: Vec<Connection> = keeper.table.connections().collect();
        let (refused, told) = (keeper.table.refused(), keeper.told);
        // To sort a million connections must not keep slots from the CPUs.
        drop(keeper);
        Some(Connections {
            open: now.len(),
            refused,
            told,
            heaviest: heaviest(&before, now, count.min(HEAVIEST_MAX), seconds),
        })
    }
}

/// Which connection it is: a slot may be another's by the second look.
type Identity = (u32, SocketAddr, SocketAddr);

fn identity(connection: &Connection) -> Identity {
    (connection.slot, connection.client, connection.vip)
}

/// The `count` heaviest senders of `now`, whose packets were counted `seconds` before.
/// One that was not there then has sent all its packets since.
fn heaviest(
    before: &HashMap<Identity, u32>,
    now: Vec<Connection>,
    count: usize,
    seconds: f64,
) -> Vec<HeavyConnection> {
    let rate = |connection: &Connection| {
        let old = before.get(&identity(connection)).copied().unwrap_or(0);
        f64::from(connection.packets.wrapping_sub(old)) / seconds
    };
    let mut senders: Vec<(f64, Connection)> = now.into_iter().map(|c| (rate(&c), c)).collect();
    senders.sort_by(|a, b| b.0.total_cmp(&a.0));
    let sender = |(rate_pps, connection): (f64, Connection)| HeavyConnection {
        client: connection.client.to_string(),
        vip: connection.vip.to_string(),
        real_id: connection.real,
        real: String::new(),
        rate_pps,
        packets: connection.packets,
        closed: connection.closed,
    };
    senders.into_iter().take(count).map(sender).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_changed_hands_counts_for_its_new_connection_alone() {
        let connection = |slot, client: u8, packets| Connection {
            slot,
            client: ([192, 0, 2, client], 4000).into(),
            vip: ([198, 51, 100, 1], 80).into(),
            real: 7,
            packets,
            closed: false,
        };
        let before = [connection(1, 1, 1_000), connection(2, 2, u32::MAX - 9)];
        let before = before.iter().map(|c| (identity(c), c.packets)).collect();
        // The first has ended and left its slot to a third; the second's count wrapped.
        let now = vec![connection(1, 3, 30), connection(2, 2, 10)];
        let heaviest = heaviest(&before, now, 5, 2.0);
        let rates: Vec<_> = heaviest.iter().map(|s| (&*s.client, s.rate_pps)).collect();
        assert_eq!(rates, [("192.0.2.3:4000", 15.0), ("192.0.2.2:4000", 10.0)]);
    }
}
