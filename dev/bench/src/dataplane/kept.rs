// SPDX-License-Identifier: Apache-2.0
//! Whether a flow table holds as many flows as it is made for.

use std::mem::MaybeUninit;

use causeway_dataplane::abi::Verdict;

use super::fixture::{Balancer, Counter as _};
use super::instrument::Instrument;
use super::{BenchError, Place, Shot, alone};

/// What a full table still knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Flows that the table is made for.
    pub flows: u32,
    /// Of as many, each with two packets, found by a third one.
    pub at_first: u32,
    /// The same after half of them have ended and as many others have come.
    pub after_change: u32,
}

/// Fills a table that is made for `flows` flows, then has half of them end and others
/// take their place. Most of a table that has long been in use is flows that ended: a
/// new one has to find the place of one of those. Each new flow sends its second
/// packet before the next one comes: with one packet it is the next one's victim.
pub fn kept(flows: u32) -> Result<Kept, BenchError> {
    alone(|| {
        let [instrument, balancer] = &mut [const { MaybeUninit::uninit() }; 2];
        let mut table = Table {
            instrument: Instrument::load(instrument)?,
            balancer: Balancer::with_table(balancer, flows)?,
        };
        let half = flows / 2;
        table.send(Shot::Tcp, twice(0..flows))?;
        let at_first = table.send(Shot::Tcp, 0..flows)?;
        table.send(Shot::End, 0..half)?;
        table.send(Shot::Tcp, twice(flows..flows + half))?;
        let after_change = table.send(Shot::Tcp, half..flows + half)?;
        Ok(Kept {
            flows,
            at_first,
            after_change,
        })
    })
}

fn twice(clients: std::ops::Range<u32>) -> impl Iterator<Item = u32> {
    clients.flat_map(|client| [client, client])
}

struct Table<'o> {
    instrument: Instrument<'o>,
    balancer: Balancer<'o>,
}

impl Table<'_> {
    /// One packet of each of these clients; how many were of a flow that was known.
    fn send(&mut self, shot: Shot, clients: impl Iterator<Item = u32>) -> Result<u32, BenchError> {
        let clients: Vec<u32> = clients.collect();
        let count = clients.len() as u32;
        let before = self.balancer.count(Verdict::Established)?;
        self.instrument.set_clients(&clients, &[])?;
        self.instrument.select(self.balancer.program())?;
        self.instrument
            .batch(shot, count, &mut Place::default(), count)?;
        Ok((self.balancer.count(Verdict::Established)? - before) as u32)
    }
}
