// SPDX-License-Identifier: Apache-2.0
//! How many packets per second come through the balancer, on one CPU and on several, each with a
//! queue of its own: beside a program that sends everything back and does nothing else, on the same
//! interface, by turns.
//!
//! Sender, balancer and the end of what it sends share each CPU, so that the rate itself is the
//! lab's. The difference between two times per packet is the balancer's, with what it needs of
//! caches and memory.

use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use causeway_bench::flood::{FRAME_MAX, FRAMES, FloodPrograms, HOP_LIMIT};
use serde_json::{Value, json};

use super::attack::seal_ip;
use super::bench::{Bench, PORT};
use super::{Context, Scenario, param};
use crate::background::{Background, output_of};
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding};
use crate::statistics::median;
use crate::topology::{DEVICE, ROUTER_MAC, vip4};
use crate::{cpu, link};

/// The router's port to the balancer.
const PORT_TO_BALANCER: &str = "lb";
/// Frames of one call: all that are made, so often. A call takes some milliseconds.
const AT_ONCE: usize = 32 * FRAMES;
/// Until flows are known, and caches and queues are as they stay.
const WARM_UP: Duration = Duration::from_millis(200);

/// What stands on the balancer's interface.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// A program that sends everything back.
    Back,
    /// The balancer, which knows flows by its table.
    Table,
    /// The same, and it measures each.
    Measured,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Back, "back"),
    (Way::Table, "table"),
    (Way::Measured, "measured"),
];

/// Lengths of frames, without their check sequence, taken by turns.
const MIXES: [(&str, &[usize]); 2] = [
    ("64", &[60]),
    // Seven of 64 bytes, four of 570, one of 1,518.
    (
        "internet",
        &[60, 566, 60, 60, 566, 60, 1514, 60, 566, 60, 566, 60],
    ),
];

pub(super) const PACKET_RATE: Scenario = Scenario {
    name: "packet-rate",
    about: "packets per second through the balancer, on one CPU and on all, beside a program that sends all back",
    params: &[
        param("rounds", "5", "how often each way is run, by turns"),
        param("seconds", "1", "length of each run"),
    ],
    run,
    table: |result| {
        let rows = result["interface"]["rows"].as_array()?;
        let mut lines = vec![format!(
            "{:<9} {:>4} {:<9} {:>8} {:>12} {:>8}",
            "frames", "CPUs", "way", "Mpkt/s", "of back's", "ns more"
        )];
        lines.extend(rows.iter().map(|row| {
            let number = |key: &str| row[key].as_f64().unwrap_or_default();
            format!(
                "{:<9} {:>4} {:<9} {:>8.3} {:>12.2} {:>8.0}",
                row["frames"].as_str().unwrap_or_default(),
                row["cpus"],
                row["way"].as_str().unwrap_or_default(),
                number("packets_per_s") / 1e6,
                number("of_back"),
                number("ns_more"),
            )
        }));
        Some(lines.join("\n"))
    },
};

/// A row's runs, in rounds.
struct Row {
    way: usize,
    mix: usize,
    cpus: usize,
    rates: Vec<f64>,
}

fn run(context: &Context) -> Result<Value> {
    let rounds: usize = context.param("rounds")?;
    let lasts = Duration::from_secs_f64(context.param("seconds")?);
    ensure!(rounds > 0, "at least one round");
    let world = World::build(context)?;
    let cpus = world.cpus.len();
    let counts = [1, cpus];
    let counts = &counts[..cpus.min(2)];
    let mut rows: Vec<Row> = Vec::new();
    for (mix, _) in MIXES.iter().enumerate() {
        for &cpus in counts {
            rows.extend((0..WAYS.len()).map(|way| Row {
                way,
                mix,
                cpus,
                rates: Vec::new(),
            }));
        }
    }
    for round in 0..rounds {
        for (number, (way, name)) in WAYS.iter().enumerate() {
            context.say(format!("round {}: {name}", round + 1));
            let stand = world.stand(*way)?;
            for row in rows.iter_mut().filter(|row| row.way == number) {
                let rate = world.rate(row.cpus, MIXES[row.mix].1, lasts)?;
                row.rates.push(rate);
            }
            stand.balancer.map_or(Ok(()), Balancer::end)?;
        }
    }
    let back_of = |row: &Row| {
        let is = |other: &&Row| {
            WAYS[other.way].0 == Way::Back && (other.mix, other.cpus) == (row.mix, row.cpus)
        };
        rows.iter().find(is).context("no row to compare with")
    };
    let told = rows.iter().map(|row| Ok(row.told(back_of(row)?)));
    let rows: Vec<Value> = told.collect::<Result<_>>()?;
    Ok(json!({ "interface": { "flows_of_each_cpu": FRAMES, "rows": rows } }))
}

impl Row {
    /// Round by round beside a program that sends all back.
    fn told(&self, back: &Self) -> Value {
        let rounds = || self.rates.iter().zip(&back.rates);
        let shares: Vec<f64> = rounds().map(|(rate, back)| rate / back).collect();
        // A packet's time on one of the CPUs.
        let time_ns = |rate: &f64| 1e9 * self.cpus as f64 / rate;
        let more = rounds().map(|(rate, back)| time_ns(rate) - time_ns(back));
        json!({
            "frames": MIXES[self.mix].0, "cpus": self.cpus, "way": WAYS[self.way].1,
            "packets_per_s": median(&self.rates), "of_back": median(&shares),
            "ns_more": median(&more.collect::<Vec<_>>()), "rounds": self.rates,
        })
    }
}

struct World<'a> {
    context: &'a Context,
    bench: Bench,
    /// Those that may send.
    cpus: Vec<usize>,
    /// What takes frames off behind the balancer, and counts them.
    end: FloodPrograms,
}

/// One of them, until it is taken down.
struct Stand {
    _program: Option<link::XdpPass>,
    balancer: Option<Balancer>,
}

impl<'a> World<'a> {
    fn build(context: &'a Context) -> Result<Self> {
        let cpus = cpu::usable()?;
        let queues = cpus.len();
        ensure!((1..=256).contains(&queues), "{queues} CPUs: 1 to 256");
        let bench = Bench::bare(context.sandbox, 1, 2)?;
        let topology = &bench.topology;
        let (router, balancer) = (&topology.router.netns, &topology.balancer.netns);
        // Receiving queues before sending ones: a program needs one for each of its peer's.
        for (netns, device, what) in [
            (router, PORT_TO_BALANCER, "rx"),
            (balancer, DEVICE, "rx"),
            (balancer, DEVICE, "tx"),
            (router, PORT_TO_BALANCER, "tx"),
        ] {
            let mut command = netns.command("ethtool");
            output_of(command.args(["-L", device, what, &queues.to_string()]))
                .with_context(|| format!("{queues} queues of {device}"))?;
        }
        for sender in 0..queues {
            let keeper = keeper(sender);
            router.ip(&format!(
                "link add {keeper} type veth peer name {keeper}-peer\n"
            ))?;
        }
        let end = router.run(|| FloodPrograms::load(PORT_TO_BALANCER))?;
        topology.run_behind_balancer(end.end())?;
        Ok(Self {
            context,
            bench,
            cpus,
            end,
        })
    }

    fn stand(&self, way: Way) -> Result<Stand> {
        if way == Way::Back {
            let netns = &self.bench.topology.balancer.netns;
            let program = netns.run(|| Ok(link::attach_xdp_back(DEVICE)?))?;
            return Ok(Stand {
                _program: Some(program),
                balancer: None,
            });
        }
        let mut vip = self.bench.vip4(0, "maglev", ServerForwarding::Ipip);
        let measures = way == Way::Measured;
        if measures {
            vip.keys.push("sampling = \"1/1\"".to_owned());
        }
        let settings = BalancerSettings {
            vips: vec![vip],
            measure: Some(measures),
            ..BalancerSettings::default()
        };
        let balancer = self.bench.balancer(&self.context.binary, &settings)?;
        Ok(Stand {
            _program: None,
            balancer: Some(balancer),
        })
    }

    /// Packets per second that come back while this many CPUs send.
    fn rate(&self, cpus: usize, lengths: &'static [usize], lasts: Duration) -> Result<f64> {
        let router = &self.bench.topology.router.netns;
        let mac = self.bench.topology.balancer.mac;
        let sending = self.cpus.iter().take(cpus).copied().enumerate();
        let (ready, loaded) = channel();
        let senders: Vec<Background<()>> = sending
            .map(|(sender, cpu)| {
                let ready = ready.clone();
                Background::spawn_in(router, move |stop| {
                    cpu::keep_to(cpu)?;
                    let mut flood = FloodPrograms::load(PORT_TO_BALANCER)?;
                    flood.keep_at(&keeper(sender))?;
                    flood.fill(FRAMES, |n, frame| {
                        write_frame(frame, mac, (sender, n), lengths[n % lengths.len()])
                    })?;
                    ready.send(())?;
                    drop(ready);
                    while !stop.load(Ordering::Relaxed) {
                        flood.send(AT_ONCE)?;
                    }
                    Ok(())
                })
            })
            .collect();
        drop(ready);
        // A sender that fails has said why by `finish`.
        let all_send = loaded.iter().take(senders.len()).count() == senders.len();
        if !all_send {
            senders.into_iter().try_for_each(Background::finish)?;
            bail!("a sender has ended");
        }
        sleep(WARM_UP);
        let (from, began) = (self.end.ended(), Instant::now());
        sleep(lasts);
        let (ended, took) = (self.end.ended() - from, began.elapsed());
        senders.into_iter().try_for_each(Background::finish)?;
        ensure!(ended > 0, "no packet came back");
        Ok(ended as f64 / took.as_secs_f64())
    }
}

/// An interface for [`FloodPrograms::keep_at`].
fn keeper(sender: usize) -> String {
    format!("keeper{sender}")
}

/// An ACK of a sender's flow `n`, over IPv4.
fn write_frame(
    frame: &mut [u8; FRAME_MAX],
    balancer: [u8; 6],
    (sender, n): (usize, usize),
    length: usize,
) -> usize {
    frame.fill(0);
    frame[..6].copy_from_slice(&balancer);
    frame[6..12].copy_from_slice(&ROUTER_MAC);
    frame[12..14].copy_from_slice(&[8, 0]);
    let (ip, tcp) = frame[14..].split_at_mut(20);
    ip[..12].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, HOP_LIMIT, 6, 0, 0]);
    ip[2..4].copy_from_slice(&(length as u16 - 14).to_be_bytes());
    // The network for benchmarks (RFC 2544).
    ip[12..16].copy_from_slice(&[198, 18, sender as u8, n as u8]);
    ip[16..20].copy_from_slice(&vip4(0).octets());
    seal_ip(ip);
    tcp[..2].copy_from_slice(&(1024 + n as u16).to_be_bytes());
    tcp[2..4].copy_from_slice(&PORT.to_be_bytes());
    tcp[4..8].copy_from_slice(&1_u32.to_be_bytes());
    tcp[8..12].copy_from_slice(&1_u32.to_be_bytes());
    tcp[12..14].copy_from_slice(&[0x50, 0x10]);
    length
}
