// SPDX-License-Identifier: Apache-2.0
//! What only time can show: idleness of minutes, streams through the wrap of the
//! clock's ring, an outage longer than it.

use std::net::IpAddr;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use super::ensure_unnoticed;
use super::service::Connection;
use super::world::{Cookies, World, members, vips};
use crate::background::joined;
use crate::netns::Netns;
use crate::scenario::{Context, Scenario, param};

pub(crate) const COOKIE_SOAK: Scenario = Scenario {
    name: "cookie-soak",
    about: "minutes of idleness, streams through the wrap, an outage: stalls of each",
    params: &[
        param("mode", "timestamp", "the VIPs' cookie"),
        param("bits", "0", "cookie_bits; 0: the mode's own"),
        param("idle_s", "70,100,131,140", "lengths of idleness"),
        param("stream_s", "75", "length of the stream"),
        param("silent_s", "60", "length of a silence that the server ends"),
        param("outage_s", "80", "length of the outage; 0: none"),
        param("strict", "true", "whether a stall of 1 s is an error"),
    ],
    run,
    table: |_| None,
};

fn run(context: &Context) -> Result<Value> {
    let bits: u8 = context.param("bits")?;
    let cookies = Cookies {
        mode: context.param("mode")?,
        bits: (bits > 0).then_some(bits),
        measure: false,
    };
    let world = World::build(context, 3, &members(0..3), cookies)?;
    let before = world.counters()?;
    let lengths: String = context.param("idle_s")?;
    let mut trials = Vec::new();
    for (i, length) in lengths.split(',').enumerate() {
        let length = Duration::from_secs(length.parse()?);
        for probes_s in [0, 1, 25] {
            trials.push(idle(world.client(), vips()[i % 2], length, probes_s));
        }
    }
    let stream = Duration::from_secs(context.param("stream_s")?);
    trials.push(streaming(world.client(), vips()[0], stream));
    let silence = Duration::from_secs(context.param("silent_s")?);
    trials.push(silent(world.client(), vips()[1], silence));
    let mut results: Vec<Value> = Vec::new();
    for trial in trials {
        results.push(joined(trial)?);
    }
    let outage_s: u64 = context.param("outage_s")?;
    if outage_s > 0 {
        context.say(format!("the client's link is down for {outage_s} s"));
        results.push(outage(&world, Duration::from_secs(outage_s))?);
    }
    for result in &results {
        context.say(result.to_string());
    }
    let strict: bool = context.param("strict")?;
    judge(&results, strict)?;
    let counters = world.counters()?;
    let kernels = match strict {
        true => ensure_unnoticed(&before, &counters)?,
        false => json!(counters.clients.of("PAWSEstab")),
    };
    Ok(json!({ "trials": results, "kernels": kernels, "segments": world.events()? }))
}

/// No connection may break. How long one stands still is the machine's, too.
fn judge(trials: &[Value], strict: bool) -> Result<()> {
    let broken: Vec<&Value> = trials.iter().filter(|t| t["broken"] != false).collect();
    ensure!(broken.is_empty(), "broken: {}", json!(broken));
    let worst = trials.iter().filter_map(|t| t["stall_ms"].as_u64()).max();
    ensure!(
        !strict || worst.unwrap_or(0) < 1000,
        "a stall of {worst:?} ms"
    );
    Ok(())
}

type Trial = JoinHandle<Result<Value>>;

fn idle(client: &Netns, vip: IpAddr, length: Duration, probes_s: u64) -> Trial {
    let client = client.clone();
    thread::spawn(move || {
        let mut connection = Connection::open(&client, vip)?;
        if probes_s > 0 {
            connection.line(&format!("keepalive {probes_s}"))?;
        }
        thread::sleep(length);
        let start = Instant::now();
        let whole = connection.is_whole();
        Ok(json!({
            "what": "idle", "seconds": length.as_secs(), "keepalive_s": probes_s,
            "broken": !whole, "stall_ms": start.elapsed().as_millis() as u64,
        }))
    })
}

fn streaming(client: &Netns, vip: IpAddr, length: Duration) -> Trial {
    let client = client.clone();
    thread::spawn(move || {
        let mut connection = Connection::open(&client, vip)?;
        let count = length.as_millis() as usize / 7;
        let stall = connection.read(&format!("tick {count} 7"), count);
        Ok(json!({
            "what": "stream", "seconds": length.as_secs(), "broken": stall.is_err(),
            "stall_ms": stall.unwrap_or_default().as_millis() as u64,
        }))
    })
}

fn silent(client: &Netns, vip: IpAddr, length: Duration) -> Trial {
    let client = client.clone();
    thread::spawn(move || {
        let mut connection = Connection::open(&client, vip)?;
        let start = Instant::now();
        connection.set_timeout(length + Duration::from_secs(20))?;
        let line = connection.line(&format!("later {}", length.as_millis()));
        let stall = start.elapsed().saturating_sub(length);
        Ok(json!({
            "what": "server-first", "seconds": length.as_secs(), "broken": line.is_err(),
            "stall_ms": stall.as_millis() as u64,
        }))
    })
}

/// The client's link goes down while data flows, and comes back. What counts as a
/// stall is what is left after the server's next retransmission was due: at most as
/// long as the outage, and 120 s (TCP_RTO_MAX).
fn outage(world: &World, length: Duration) -> Result<Value> {
    let client = world.client().clone();
    // Until the link is back, or half a minute.
    let count = (200 * (length.as_secs() as usize + 4)).min(6000);
    let reader = thread::spawn(move || {
        let mut connection = Connection::open(&client, vips()[0])?;
        connection.set_timeout(3 * length)?;
        connection.read(&format!("tick {count} 5"), count)
    });
    thread::sleep(Duration::from_secs(2));
    world.topology.router.netns.ip("link set c0 down")?;
    thread::sleep(length);
    world.topology.router.netns.ip("link set c0 up")?;
    let stall = reader.join().map_err(|_| anyhow!("a client panicked"))?;
    let due = 2 * length;
    Ok(json!({
        "what": "outage", "seconds": length.as_secs(), "broken": stall.is_err(),
        "silence_ms": stall.as_ref().map_or(0, |s| s.as_millis() as u64),
        "stall_ms": stall.unwrap_or_default().saturating_sub(due).as_millis() as u64,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_fails_whatever_its_stall_and_a_stall_fails_the_strict() {
        let trial = |broken: bool, stall_ms: u64| json!({ "what": "stream", "broken": broken, "stall_ms": stall_ms });
        for strict in [true, false] {
            // What breaks has no stall.
            let broken = judge(&[trial(false, 2), trial(true, 0)], strict);
            let message = broken.err().map(|error| error.to_string());
            assert!(message.unwrap_or_default().contains("stream"));
            assert!(judge(&[trial(false, 999)], strict).is_ok());
            assert_eq!(judge(&[trial(false, 1000)], strict).is_ok(), !strict);
        }
    }
}
