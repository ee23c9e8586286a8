// SPDX-License-Identifier: Apache-2.0
//! Client, vantage point and server, and the recording of one workload.
//!
//! ```text
//! client ---(veth, or a line with delay, loss, reordering)--- vantage ---(veth)--- server
//!                                            recorded here ^
//! ```
//!
//! Both directions are routed through the vantage point; the recording holds what
//! its port towards the client receives.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::workload::{AccuracyWorkload, ServerKind};
use crate::background::{Background, KilledOnDrop, serve};
use crate::cgroup::Cgroup;
use crate::link;
use crate::link_emulator::{LinkEmulator, LinkEnd};
use crate::load::log::Log;
use crate::load::page::SIZE_STEP;
use crate::load::protocol::AppProtocol;
use crate::load::{self, LoadConfig};
use crate::netns::Netns;
use crate::nginx::Nginx;
use crate::quic::client::QuicClientOptions;
use crate::quic::{self, ServerConfig, Stack};
use crate::record::{Directions, Recorder};
use crate::sandbox::Sandbox;
use crate::timed_http_server::{Drift, DriftProcess, TimedHttpServer};

const PORT: u16 = 80;
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 51, 0, 2);
/// Period in which a throttled server gets its share of a CPU.
const PERIOD: Duration = Duration::from_millis(10);
/// How soon a thread that changes something sees that it is to end.
const TICK: Duration = Duration::from_millis(50);
/// Largest value in a key-value store.
const LARGEST_VALUE: u32 = 10_240;

/// What a workload left behind.
pub(crate) struct Recording {
    /// What passed the vantage point from client to server.
    pub pcap: Vec<u8>,
    /// What passed it in both directions, where the workload asks for it.
    pub both: Vec<u8>,
    /// What the clients saw.
    pub log: Log,
    /// Packets that the line dropped.
    pub lost: u64,
}

struct Rig {
    client: Netns,
    vantage: Netns,
    server: Netns,
    link: Option<LinkEmulator>,
}

/// Runs one workload in namespaces of its own.
pub(crate) fn record(sandbox: Sandbox, workload: &AccuracyWorkload) -> Result<Recording> {
    let rig = Rig::build(sandbox, workload)?;
    let _server = Running::start(sandbox, &rig.server, workload)?;
    let target = SocketAddr::from((SERVER, PORT));
    if workload.protocol != AppProtocol::Http {
        let protocol = workload.protocol;
        rig.client.run(move || fill(protocol, target))?;
    }
    let recorder = Recorder::start(&rig.vantage, "c0", Directions::Arriving)?;
    let both = match workload.both_directions {
        true => Some(Recorder::start(&rig.vantage, "c0", Directions::Both)?),
        false => None,
    };
    let config = load_config(workload, target);
    let clients = std::slice::from_ref(&rig.client);
    let load = match workload.server {
        ServerKind::Quic { stack, .. } => {
            quic::load(stack, clients, &config, &QuicClientOptions::default())?
        }
        _ => load::start(clients, &config)?,
    };
    let log = load.finish()?;
    // What is still under way belongs to the recording.
    std::thread::sleep(Duration::from_micros(workload.path.round_trip_us));
    let pcap = recorder.finish()?;
    let both = both.map(Recorder::finish).transpose()?.unwrap_or_default();
    let broken = log.connections.iter().filter(|c| c.fault.is_some()).count();
    ensure!(broken == 0, "broken connections: {:?}", log.faults());
    Ok(Recording {
        pcap,
        both,
        log,
        lost: rig.link.as_ref().map_or(0, LinkEmulator::dropped),
    })
}

/// Pages of clients on quic-go follow a timetable, and all of them are drawn before
/// the load begins: so soon after each other that clients always have one to ask for.
const TIMETABLE_MS: u64 = 10;

fn load_config(workload: &AccuracyWorkload, target: SocketAddr) -> LoadConfig {
    let duration_ms = (workload.seconds * 1000.0) as u64;
    let page_interval_ms = match workload.server {
        ServerKind::Quic {
            stack: Stack::QuicGo,
            ..
        } => TIMETABLE_MS,
        _ => 0,
    };
    LoadConfig {
        protocol: workload.protocol,
        duration_ms,
        slots: workload.connections,
        outstanding: workload.outstanding,
        pipeline: workload.pipeline,
        max_age_ms: match workload.max_age_ms {
            // Half of it is the shortest life.
            0 => 4 * duration_ms + 60_000,
            age => age,
        },
        page_interval_ms,
        idle_ms: workload.idle_ms,
        page: workload.page.clone(),
        timeout_ms: 30_000,
        tcp_info: workload.tcp_info,
        ..LoadConfig::new(target, workload.seed)
    }
}

impl Rig {
    fn build(sandbox: Sandbox, workload: &AccuracyWorkload) -> Result<Self> {
        let make = |what: &str| Netns::create(sandbox, &format!("{}-{what}", workload.name));
        let mut rig = Self {
            client: make("client")?,
            vantage: make("vantage")?,
            server: make("server")?,
            link: None,
        };
        rig.vantage.sysctl("net/ipv4/ip_forward", "1")?;
        if workload.path.is_none() {
            rig.veth("c0", &rig.client)?;
        } else {
            let (near, far) = (
                LinkEnd::of(&rig.client, "eth0"),
                LinkEnd::of(&rig.vantage, "c0"),
            );
            rig.link = Some(LinkEmulator::start(
                &near,
                &far,
                workload.path,
                workload.seed,
            )?);
        }
        rig.veth("s0", &rig.server)?;
        rig.client.ip(
            "addr add 10.50.0.2/24 dev eth0\nlink set eth0 up\nroute add default dev eth0 via 10.50.0.1\n",
        )?;
        rig.vantage
            .ip("addr add 10.50.0.1/24 dev c0\nlink set c0 up\n\
             addr add 10.51.0.1/24 dev s0\nlink set s0 up\n")?;
        rig.server.ip(
            "addr add 10.51.0.2/24 dev eth0\nlink set eth0 up\nroute add default via 10.51.0.1\n",
        )?;
        rig.set_offloads(workload.offloads)?;
        Ok(rig)
    }

    /// A veth from the vantage point's `port` to `eth0` of `netns`.
    fn veth(&self, port: &str, netns: &Netns) -> Result<()> {
        self.vantage.ip(&format!(
            "link add {port} type veth peer name eth0 netns {}\n",
            netns.name()
        ))
    }

    fn set_offloads(&self, on: bool) -> Result<()> {
        let set = |netns: &Netns, device: &'static str| {
            netns.run(move || {
                link::set_offloads(device, on).with_context(|| format!("offloads of {device}"))
            })
        };
        if self.link.is_none() {
            set(&self.client, "eth0")?;
            set(&self.vantage, "c0")?;
        }
        set(&self.vantage, "s0")?;
        set(&self.server, "eth0")
    }
}

/// A running server; dropped, it ends.
enum Running {
    Timed(#[expect(dead_code)] TimedHttpServer),
    Changing(#[expect(dead_code)] Background),
    Process(#[expect(dead_code)] KilledOnDrop),
}

impl Running {
    fn start(sandbox: Sandbox, netns: &Netns, workload: &AccuracyWorkload) -> Result<Self> {
        let user = ["-u", "root"];
        match workload.server {
            ServerKind::Timed(behaviour) => Ok(Self::Timed(TimedHttpServer::start(
                netns,
                PORT,
                behaviour,
                workload.seed,
            )?)),
            ServerKind::Throttled { shares, every_ms } => {
                throttled(sandbox, netns, workload.seed, shares, every_ms)
            }
            ServerKind::Quic {
                stack,
                order,
                drift,
            } => {
                let config = ServerConfig {
                    order,
                    ..ServerConfig::new("quic", PORT)?
                };
                let server = quic::Server::start(netns, stack, &config)?;
                Ok(drifting(server, drift, workload.seed))
            }
            ServerKind::Memcached => {
                let options = ["-p", "80", "-U", "0", "-l", "0.0.0.0", "-t", "1"];
                process(netns, "memcached", &[&options[..], &user].concat())
            }
            ServerKind::Redis => {
                let options = ["--port", "80", "--bind", "0.0.0.0", "--save", ""];
                let more = [
                    "--protected-mode",
                    "no",
                    "--appendonly",
                    "no",
                    "--dir",
                    "/run/tmp",
                ];
                process(netns, "redis-server", &[&options[..], &more].concat())
            }
        }
    }
}

/// nginx in a control group whose share of a CPU keeps changing.
fn throttled(
    sandbox: Sandbox,
    netns: &Netns,
    seed: u64,
    (least, most): (f64, f64),
    every_ms: u64,
) -> Result<Running> {
    crate::nginx::available()?;
    let nginx = Nginx::start(netns, "nginx", PORT, 1)?;
    let group = Cgroup::create(sandbox)?;
    nginx.join(&group)?;
    let mut rng = StdRng::seed_from_u64(seed);
    Ok(changing(move || {
        // The thread owns nginx: it ends when the thread does.
        let _running = &nginx;
        group.set_cpu(Some(rng.random_range(least..most)), PERIOD)?;
        Ok(Duration::from_millis(every_ms))
    }))
}

/// A QUIC server whose factor on service times keeps changing.
fn drifting(mut server: quic::Server, drift: Drift, seed: u64) -> Running {
    let mut drift = DriftProcess::new(drift, seed);
    changing(move || {
        server.set_factor(drift.next_factor())?;
        Ok(drift.next_rest())
    })
}

/// Calls `step` again and again, each time after the rest that it asked for. What
/// the step owns lives until the end.
fn changing(mut step: impl FnMut() -> Result<Duration> + Send + 'static) -> Running {
    Running::Changing(Background::spawn(move |stop| {
        while !stop.load(Ordering::Relaxed) {
            let until = Instant::now() + step()?;
            while !stop.load(Ordering::Relaxed) && Instant::now() < until {
                std::thread::sleep(TICK.min(until.saturating_duration_since(Instant::now())));
            }
        }
        Ok(())
    }))
}

/// A server of Debian's.
fn process(netns: &Netns, program: &str, arguments: &[&str]) -> Result<Running> {
    let mut command = netns.command(program);
    let running = serve(netns, command.args(arguments), PORT)
        .with_context(|| format!("Debian package {program}"))?;
    Ok(Running::Process(running))
}

/// Puts a value of every size into a key-value store.
fn fill(protocol: AppProtocol, target: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(target).context("filling the store")?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut parser = protocol.parser();
    for size in (SIZE_STEP..=LARGEST_VALUE).step_by(SIZE_STEP as usize) {
        let object = load::page::Object {
            parent: None,
            size,
            service_us: 0,
            store: true,
        };
        let mut request = Vec::new();
        protocol.request(&object, &mut request);
        stream.write_all(&request)?;
        let mut buffer = [0; 512];
        loop {
            let count = stream.read(&mut buffer)?;
            ensure!(count > 0, "the store closed the connection");
            let answer = parser.feed(&mut &buffer[..count]);
            match answer {
                Ok(Some(_)) => break,
                Ok(None) => {}
                Err(_) => bail!("the store refused a value of {size} bytes"),
            }
        }
    }
    Ok(())
}
