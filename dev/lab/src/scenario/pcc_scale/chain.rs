// SPDX-License-Identifier: Apache-2.0
//! The bookkeeping of daisy chaining: which server had each bucket before.

use std::net::IpAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use anyhow::Result;
use causeway_bench::daisy_chain::{self, DaisyChain, Family};
use causeway_core::select::{RealKey, RingMember, RingSize, maglev};

use crate::topology::{DEVICE, Node};

/// The chain of a run: the program on every server, and the tables as they were.
pub(super) struct Chain {
    program: DaisyChain,
    fd: Arc<OwnedFd>,
    servers: Vec<Node>,
    tables: [(Family, Buckets); 2],
}

/// The server of each bucket, and the one before.
#[derive(Debug, Default, PartialEq, Eq)]
struct Buckets {
    now: Vec<u32>,
    previous: Vec<u32>,
}

impl Buckets {
    /// Takes a new table; a bucket that keeps its server keeps its previous one too.
    fn change(&mut self, new: Vec<u32>) {
        if self.now.is_empty() {
            self.previous.clone_from(&new);
        }
        for (bucket, (old, new)) in self.now.iter().zip(&new).enumerate() {
            if old != new {
                self.previous[bucket] = *old;
            }
        }
        self.now = new;
    }
}

impl Chain {
    /// Loads the program and attaches it to every server.
    pub(super) fn start(servers: &[Node], hash_key: [u64; 2], port: u16) -> Result<Self> {
        let macs: Vec<[u8; 6]> = servers.iter().map(|server| server.mac).collect();
        let buckets = RingSize::for_pool(servers.len()).slots() as u32;
        let program = DaisyChain::new(hash_key, buckets, port, &macs)?;
        let fd = Arc::new(program.program()?);
        for server in servers {
            let fd = Arc::clone(&fd);
            server
                .netns
                .run(move || daisy_chain::attach(fd.as_fd(), DEVICE))?;
        }
        Ok(Self {
            program,
            fd,
            servers: servers.to_vec(),
            tables: [
                (Family::V4, Buckets::default()),
                (Family::V6, Buckets::default()),
            ],
        })
    }

    /// Follows the balancer to a pool of those servers for which `takes` holds.
    pub(super) fn change(&mut self, takes: impl Fn(usize) -> bool) -> Result<()> {
        for (family, buckets) in &mut self.tables {
            let address = |server: &Node| match family {
                Family::V4 => IpAddr::from(server.ipv4),
                Family::V6 => IpAddr::from(server.ipv6),
            };
            let pool: Vec<RingMember> = self
                .servers
                .iter()
                .enumerate()
                .map(|(index, server)| RingMember {
                    key: RealKey::from(address(server)),
                    id: index as u32,
                    weight: u32::from(takes(index)),
                })
                .collect();
            buckets.change(maglev(&pool, RingSize::for_pool(pool.len())));
            self.program.set_previous(*family, &buckets.previous)?;
        }
        Ok(())
    }

    /// Packets that servers have passed on.
    pub(super) fn chained(&self) -> Result<u64> {
        self.program.chained()
    }
}

/// The next way to keep connections is to do without.
impl Drop for Chain {
    fn drop(&mut self) {
        for server in &self.servers {
            let fd = Arc::clone(&self.fd);
            let detached = server
                .netns
                .run(move || daisy_chain::detach(fd.as_fd(), DEVICE));
            if let Err(error) = detached {
                tracing::warn!("{} is still chained: {error:#}", server.netns.name());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_back_is_remembered() {
        let mut buckets = Buckets::default();
        buckets.change(vec![0, 1, 2]);
        assert_eq!(buckets.previous, [0, 1, 2]);
        buckets.change(vec![0, 3, 2]);
        buckets.change(vec![0, 3, 3]);
        assert_eq!(buckets.previous, [0, 1, 2]);
        // Twice remapped: 1 is forgotten.
        buckets.change(vec![0, 4, 3]);
        assert_eq!(buckets.previous, [0, 3, 2]);
    }
}
