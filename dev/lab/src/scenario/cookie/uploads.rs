// SPDX-License-Identifier: Apache-2.0
//! Transfers with cookies and without by turns: PAWS must reject no more of them. Bare
//! acknowledgements wait on the CPU that takes segments in, and what the application's CPU
//! sends overtakes them; without cookies that goes wrong where it takes longer than 1 ms.
//! Cookies are in what servers send, so the client's kernel judges them. What servers reject of the
//! client's own timestamps is reported beside.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::Counts;
use super::service::Connection;
use super::world::{Cookies, World, members, vips};
use crate::scenario::{Context, Scenario, param};

/// How seldom equal rates may fail, twice in a row: one time in a thousand each.
const CHANCE: f64 = 1e-3;

pub(crate) const COOKIE_UPLOADS: Scenario = Scenario {
    name: "cookie-uploads",
    about: "transfers with cookies and without: PAWS rejects no more with them",
    params: &[
        param(
            "pairs",
            "40",
            "uploads of each kind to each VIP, and half as many with offloads, answers or downwards",
        ),
        param("megabytes", "10", "bytes of a transfer"),
        param("bits", "16", "cookie_bits"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let cookies = Cookies {
        mode: "timestamp".to_owned(),
        bits: Some(context.param("bits")?),
        measure: false,
    };
    let world = World::build(context, 1, &members(0..1), cookies)?;
    // What is wrong is so each time.
    let mut round = transfers(context, &world)?;
    if chance(round.hit) <= CHANCE {
        round = transfers(context, &world)?;
    }
    let [with, without] = round.hit;
    let chance = chance(round.hit);
    ensure!(
        chance > CHANCE,
        "PAWS rejected segments of {with} transfers with cookies, of {without} without \
         (by chance one time in {:.0}), twice",
        1.0 / chance
    );
    Ok(json!({
        "rows": round.rows, "transfers_hit": with, "transfers_hit_without_cookies": without,
        "chance": chance,
    }))
}

/// All transfers once.
struct Round {
    rows: Vec<Value>,
    /// Of which PAWS rejected segments at the client, with cookies and without.
    hit: [usize; 2],
}

fn chance([with, without]: [usize; 2]) -> f64 {
    chance_of(with, with + without)
}

fn transfers(context: &Context, world: &World) -> Result<Round> {
    let (pairs, megabytes): (usize, usize) = (context.param("pairs")?, context.param("megabytes")?);
    let (mut rows, mut hit) = (Vec::new(), [0; 2]);
    for offloads in [false, true] {
        world.set_offloads(offloads)?;
        for transfer in [Transfer::Up, Transfer::UpAnswered, Transfer::Down] {
            let pairs = match offloads || transfer != Transfer::Up {
                true => pairs.div_ceil(2),
                false => pairs,
            };
            let mut rejected = [const { Vec::new() }; 2];
            for vip in vips() {
                for turn in 0..pairs {
                    for kind in [turn % 2, 1 - turn % 2] {
                        let bytes = megabytes * 1_000_000;
                        rejected[kind].push(transfer.run(world, vip, kind == 0, bytes)?);
                    }
                }
            }
            for (hit, rejected) in hit.iter_mut().zip(&rejected) {
                *hit += rejected.iter().filter(|r| r.by_client > 0).count();
            }
            let by_client = rejected
                .each_ref()
                .map(|r| r.iter().map(|r| r.by_client).sum::<u64>());
            let by_servers = rejected
                .each_ref()
                .map(|r| r.iter().map(|r| r.by_servers).sum::<u64>());
            context.say(format!(
                "offloads {offloads}, {}: of {} transfers each the client rejected {} segments \
                 with cookies, {} without, servers {} and {}",
                transfer.name(),
                2 * pairs,
                by_client[0],
                by_client[1],
                by_servers[0],
                by_servers[1]
            ));
            rows.push(json!({
                "offloads": offloads, "transfer": transfer.name(), "transfers": 2 * pairs,
                "rejected": by_client[0], "rejected_without_cookies": by_client[1],
                "rejected_by_servers": by_servers[0],
                "rejected_by_servers_without_cookies": by_servers[1],
            }));
        }
    }
    Ok(Round { rows, hit })
}

/// What goes over a connection.
#[derive(Clone, Copy, PartialEq)]
enum Transfer {
    Up,
    /// The server answers all the time.
    UpAnswered,
    Down,
}

impl Transfer {
    fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::UpAnswered => "up, answered",
            Self::Down => "down",
        }
    }

    fn run(self, world: &World, vip: IpAddr, cookies: bool, bytes: usize) -> Result<Rejected> {
        let before = rejected(world)?;
        let mut connection = match cookies {
            true => Connection::open(world.client(), vip)?,
            false => Connection::open_plain(world.client(), vip)?,
        };
        match self {
            Self::Up => connection.put(bytes)?,
            Self::UpAnswered => connection.chat(bytes)?,
            Self::Down => {
                connection.read(&format!("get {bytes}"), bytes)?;
            }
        }
        let after = rejected(world)?;
        Ok(Rejected {
            by_client: after.by_client - before.by_client,
            by_servers: after.by_servers - before.by_servers,
        })
    }
}

/// Segments that PAWS rejected, also those that newer kernels know for old acknowledgements.
struct Rejected {
    by_client: u64,
    by_servers: u64,
}

fn rejected(world: &World) -> Result<Rejected> {
    let paws = |counts: &Counts| counts.of("PAWSEstab") + counts.of("PAWSOldAck");
    let counters = world.counters()?;
    Ok(Rejected {
        by_client: paws(&counters.clients),
        by_servers: paws(&counters.servers),
    })
}

/// How likely at least `heads` of `tosses` coins show heads.
fn chance_of(heads: usize, tosses: usize) -> f64 {
    let mut term = 0.5_f64.powi(tosses as i32);
    let mut sum = 0.0;
    for at in 0..=tosses {
        if at >= heads {
            sum += term;
        }
        term *= (tosses - at) as f64 / (at + 1) as f64;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::chance_of;

    #[test]
    fn the_chance_is_that_of_coins() {
        assert_eq!(chance_of(0, 0), 1.0);
        assert_eq!(chance_of(2, 2), 0.25);
        assert_eq!(chance_of(1, 3), 0.875);
        assert_eq!(chance_of(10, 10), 1.0 / 1024.0);
        assert!((chance_of(60, 100) - 0.028_444).abs() < 1e-6);
    }
}
