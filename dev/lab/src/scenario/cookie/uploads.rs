// SPDX-License-Identifier: Apache-2.0
//! Uploads with cookies and without by turns: PAWS must reject no more of them. Bare
//! acknowledgements wait on the CPU that takes segments in, and what the application's CPU
//! sends overtakes them; without cookies that goes wrong where it takes longer than 1 ms.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::service::Connection;
use super::world::{Cookies, World, members, vips};
use crate::scenario::{Context, Scenario, param};

/// How seldom equal rates may fail: one time in a thousand.
const CHANCE: f64 = 1e-3;

pub(crate) const COOKIE_UPLOADS: Scenario = Scenario {
    name: "cookie-uploads",
    about: "uploads with cookies and without: PAWS rejects no more with them",
    params: &[
        param(
            "pairs",
            "40",
            "uploads of each kind to each VIP, and half as many with offloads or answers",
        ),
        param("megabytes", "10", "bytes of an upload"),
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
    let (pairs, megabytes): (usize, usize) = (context.param("pairs")?, context.param("megabytes")?);
    let (mut rows, mut hit) = (Vec::new(), [0; 2]);
    for offloads in [false, true] {
        world.set_offloads(offloads)?;
        for answered in [false, true] {
            let pairs = match offloads || answered {
                true => pairs.div_ceil(2),
                false => pairs,
            };
            let mut rejected = [const { Vec::new() }; 2];
            for vip in vips() {
                for turn in 0..pairs {
                    for kind in [turn % 2, 1 - turn % 2] {
                        let bytes = megabytes * 1_000_000;
                        rejected[kind].push(upload(&world, vip, kind == 0, bytes, answered)?);
                    }
                }
            }
            for (hit, rejected) in hit.iter_mut().zip(&rejected) {
                *hit += rejected.iter().filter(|&&segments| segments > 0).count();
            }
            let sums = rejected.each_ref().map(|r| r.iter().sum::<u64>());
            context.say(format!(
                "offloads {offloads}, answers {answered}: of {} uploads each {} segments \
                 rejected with cookies, {} without",
                2 * pairs,
                sums[0],
                sums[1]
            ));
            rows.push(json!({
                "offloads": offloads, "answered": answered, "uploads": 2 * pairs,
                "rejected": sums[0], "rejected_without_cookies": sums[1],
            }));
        }
    }
    let [with, without] = hit;
    let chance = chance_of(with, with + without);
    ensure!(
        chance > CHANCE,
        "PAWS rejected segments of {with} uploads with cookies, of {without} without \
         (by chance one time in {:.0})",
        1.0 / chance
    );
    Ok(json!({
        "rows": rows, "uploads_hit": with, "uploads_hit_without_cookies": without,
        "chance": chance,
    }))
}

/// Segments that PAWS rejected of an upload; also those that newer kernels know for old
/// acknowledgements.
fn upload(world: &World, vip: IpAddr, cookies: bool, bytes: usize, answered: bool) -> Result<u64> {
    let paws = || -> Result<u64> {
        let counters = world.counters()?;
        let at = |name: &str| counters.get(name).copied().unwrap_or_default();
        Ok(at("PAWSEstab") + at("PAWSOldAck"))
    };
    let before = paws()?;
    let mut connection = match cookies {
        true => Connection::open(world.client(), vip)?,
        false => Connection::open_plain(world.client(), vip)?,
    };
    match answered {
        true => connection.chat(bytes)?,
        false => connection.put(bytes)?,
    }
    Ok(paws()? - before)
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
