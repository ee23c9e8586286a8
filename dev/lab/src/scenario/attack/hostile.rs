// SPDX-License-Identifier: Apache-2.0
//! What needs no flood: clients that hold the API's connections and never finish a request,
//! and servers that answer probes with what no server would say. Both at once; meanwhile a
//! server that dies must be found, and control must go on.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use causeway_dataplane::Protocol;
use serde_json::{Value, json};

use super::{COOKIES, RSS_GROWTH_KIB, TIMEOUT, World};
use crate::api;
use crate::background::Background;
use crate::balancer::{Balancer, BalancerSettings, ServerForwarding, VipEntry};
use crate::modelled_servers::raise_fd_limit;
use crate::netns::Netns;
use crate::scenario::Context;
use crate::scenario::daemon_process::DaemonProcess;
use crate::topology::vip4;

/// Connections that any local user holds at the API's address, of which 64 are served at a time.
const SLOW_TCP: usize = 600;
/// Those of root's own programs at the Unix socket: fewer than are served at a time.
const SLOW_UNIX: usize = 48;
/// The loopback address of the API.
const LOOPBACK: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9470);
/// Descriptors of the daemon under all of it: what it may have without raising its limit.
const DESCRIPTORS_MAX: usize = 1024;
const HONEST: u16 = 8000;

/// How a server answers probes.
struct Answer {
    name: &'static str,
    probe: &'static str,
    say: Say,
    /// What its real must be, if that is bound to show.
    state: &'static str,
}

#[derive(Clone, Copy)]
enum Say {
    /// These octets, and then the others for ever.
    Endless(&'static [u8], &'static [u8]),
    /// These, one each 50 ms.
    Slowly(&'static [u8]),
    /// Nothing.
    Nothing,
    /// Twenty datagrams for each.
    Datagrams,
}

const ANSWERS: &[Answer] = &[
    answer(
        "endless headers",
        "http",
        Say::Endless(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
        "down",
    ),
    answer(
        "huge body",
        "http",
        Say::Endless(b"HTTP/1.1 200 OK\r\n\r\n", &[b'a'; 64]),
        "up",
    ),
    answer(
        "endless line",
        "http",
        Say::Endless(b"HTTP/1.1 ", &[b'2'; 64]),
        "down",
    ),
    answer(
        "slow bytes",
        "http",
        Say::Slowly(b"HTTP/1.1 200 OK\r\n"),
        "down",
    ),
    answer(
        "garbage status",
        "http",
        Say::Endless(b"HTTP/1.1 \xff\xfe\x00 \r\n", b"\x00"),
        "down",
    ),
    answer("silence", "http", Say::Nothing, "down"),
    answer(
        "TLS garbage",
        "https",
        Say::Endless(b"\x16\x03\x03\xff\xff", &[0xa5; 64]),
        "down",
    ),
    answer(
        "TLS alert for ever",
        "https",
        Say::Endless(b"", b"\x15\x03\x03\x00\x02\x01\x00"),
        "down",
    ),
    answer("DNS garbage", "dns", Say::Datagrams, "down"),
];

const fn answer(name: &'static str, probe: &'static str, say: Say, state: &'static str) -> Answer {
    Answer {
        name,
        probe,
        say,
        state,
    }
}

pub(super) fn run(context: &Context, world: &World<'_>) -> Result<Value> {
    raise_fd_limit(16_384)?;
    let server = &world.bench.topology.servers[0].netns;
    let honest = serve(
        server,
        HONEST,
        Say::Endless(b"HTTP/1.1 200 OK\r\n\r\n", b""),
    );
    let _hostile: Vec<Background> = ANSWERS
        .iter()
        .enumerate()
        .map(|(i, answer)| serve(server, HONEST + 1 + i as u16, answer.say))
        .collect();
    let balancer = world.bench.balancer(&context.binary, &settings(world))?;
    wait(&balancer, HONEST, "up")?;
    let pid = balancer.pid().context("the balancer does not run")?;
    let start = DaemonProcess::of(pid)?;
    let slow = SlowClients::start(&world.bench.topology.balancer.netns, balancer.socket());
    sleep(Duration::from_secs(1));
    let rounds = intervals(&balancer)?;
    let begin = Instant::now();
    let mut states = serde_json::Map::new();
    for (i, answer) in ANSWERS.iter().enumerate() {
        let reason = wait(&balancer, HONEST + 1 + i as u16, answer.state)
            .with_context(|| answer.name.to_owned())?;
        states.insert(answer.name.to_owned(), json!(reason));
    }
    let mut asked_ms = 0.0f64;
    for _ in 0..10 {
        let asked = Instant::now();
        api::stats(&balancer.socket()).context("the API beside slow clients")?;
        asked_ms = asked_ms.max(asked.elapsed().as_secs_f64() * 1e3);
        sleep(Duration::from_millis(200));
    }
    let under = DaemonProcess::of(pid)?;
    honest.finish()?;
    let closed = Instant::now();
    wait(&balancer, HONEST, "down").context("a server that died beside all this")?;
    let found_ms = closed.elapsed().as_millis() as u64;
    let (done, lasted) = (intervals(&balancer)? - rounds, begin.elapsed());
    let held = slow.finish()?;
    balancer.end()?;
    context.say(format!(
        "hostile: {} descriptors, {} KiB more, an answer within {asked_ms:.0} ms, a dead server found in {found_ms} ms",
        under.descriptors,
        under.rss_kib.saturating_sub(start.rss_kib)
    ));
    ensure!(
        under.descriptors < DESCRIPTORS_MAX,
        "{} descriptors are open",
        under.descriptors
    );
    ensure!(
        under.rss_kib < start.rss_kib + RSS_GROWTH_KIB,
        "the daemon grew from {} to {} KiB",
        start.rss_kib,
        under.rss_kib
    );
    ensure!(done > 0, "control stood still");
    Ok(json!({
        "held_connections": SLOW_TCP + SLOW_UNIX, "held_at_the_end": held,
        "descriptors": [start.descriptors, under.descriptors],
        "rss_kib": [start.rss_kib, under.rss_kib], "slowest_answer_ms": asked_ms,
        "dead_server_found_ms": found_ms, "probes": states,
        "control_intervals_per_s": done as f64 / lasted.as_secs_f64(),
    }))
}

fn settings(world: &World<'_>) -> BalancerSettings {
    let vip = |port: u16, probe: &str| {
        let mut vip: VipEntry = world.bench.vip4(COOKIES, "maglev", ServerForwarding::Ipip);
        vip.port = port;
        if probe == "dns" {
            vip.protocol = Protocol::Udp;
        }
        vip.reals.truncate(1);
        vip.keys.push(format!(
            "health = {{ probe = \"{probe}\", interval = \"200ms\", timeout = \"200ms\" }}"
        ));
        vip
    };
    let hostile = ANSWERS.iter().enumerate();
    let hostile = hostile.map(|(i, answer)| vip(HONEST + 1 + i as u16, answer.probe));
    BalancerSettings {
        vips: std::iter::once(vip(HONEST, "http"))
            .chain(hostile)
            .collect(),
        ..BalancerSettings::default()
    }
}

/// Waits until the real of the VIP with this port is in that state; why it is.
fn wait(balancer: &Balancer, port: u16, state: &str) -> Result<String> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let stats = api::stats(&balancer.socket())?;
        let vip = stats.vips.iter().find(|vip| vip.port == port);
        let health = vip.and_then(|vip| vip.reals.first()?.health.clone());
        let health = health.context("a real without health")?;
        if health.state == state {
            return Ok(health.reason);
        }
        ensure!(
            Instant::now() < deadline,
            "is {} and not {state}: {}",
            health.state,
            health.reason
        );
        sleep(Duration::from_millis(50));
    }
}

/// Control intervals that the history has of a VIP.
fn intervals(balancer: &Balancer) -> Result<usize> {
    let history = api::history(&balancer.socket())?;
    Ok(history
        .series
        .first()
        .map_or(0, |series| series.epochs.len()))
}

fn serve(netns: &Netns, port: u16, say: Say) -> Background {
    Background::spawn_in(netns, move |stop| match say {
        Say::Datagrams => datagrams(port, stop),
        _ => streams(port, say, stop),
    })
}

fn datagrams(port: u16, stop: &AtomicBool) -> Result<()> {
    let socket = UdpSocket::bind((vip4(COOKIES), port))?;
    socket.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut query = [0; 512];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut query) else {
            continue;
        };
        for number in 0..20usize {
            // Parts of the question, and none of an answer.
            let end = length.min(number);
            let _ = socket.send_to(&query[..end], from);
        }
    }
    Ok(())
}

fn streams(port: u16, say: Say, stop: &AtomicBool) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    listener.set_nonblocking(true)?;
    thread::scope(|threads| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, _)) => drop(threads.spawn(move || talk(stream, say, stop))),
                Err(_) => sleep(Duration::from_millis(2)),
            }
        }
    });
    Ok(())
}

/// Until the peer has had enough.
fn talk(mut stream: TcpStream, say: Say, stop: &AtomicBool) {
    let patient = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_write_timeout(Some(Duration::from_millis(500))))
        .and_then(|()| stream.set_read_timeout(Some(Duration::from_millis(500))));
    if patient.is_err() {
        return;
    }
    let going = || !stop.load(Ordering::Relaxed);
    match say {
        Say::Endless(first, then) => {
            let mut more = stream.write_all(first).is_ok();
            while more && going() && !then.is_empty() {
                more = stream.write_all(&then.repeat(32)).is_ok();
            }
        }
        Say::Slowly(octets) => {
            let mut rest = octets.iter();
            while let Some(octet) = rest.next().filter(|_| going()) {
                if stream.write_all(&[*octet]).is_err() {
                    return;
                }
                sleep(Duration::from_millis(50));
            }
        }
        Say::Nothing | Say::Datagrams => {
            let mut request = [0; 512];
            while going() && stream.read(&mut request).is_ok_and(|length| length > 0) {}
        }
    }
}

/// Connections to both of the API's places that say an octet now and then.
struct SlowClients(Background<usize>);

impl SlowClients {
    fn start(balancer: &Netns, socket: PathBuf) -> Self {
        Self(Background::spawn_in(balancer, move |stop| {
            let mut unix: Vec<Option<UnixStream>> = Vec::new();
            let mut tcp: Vec<Option<TcpStream>> = Vec::new();
            let timeout = Duration::from_millis(200);
            let address = SocketAddr::from(LOOPBACK);
            while !stop.load(Ordering::Relaxed) {
                // Those that were closed come again.
                unix.retain(Option::is_some);
                tcp.retain(Option::is_some);
                for _ in unix.len()..SLOW_UNIX {
                    unix.push(begin(UnixStream::connect(&socket).ok()));
                }
                for _ in 0..(SLOW_TCP - tcp.len()).min(100) {
                    tcp.push(begin(TcpStream::connect_timeout(&address, timeout).ok()));
                }
                for stream in &mut unix {
                    drip(stream);
                }
                for stream in &mut tcp {
                    drip(stream);
                }
                sleep(Duration::from_millis(200));
            }
            Ok(unix.iter().flatten().count() + tcp.iter().flatten().count())
        }))
    }

    /// How many were still held.
    fn finish(self) -> Result<usize> {
        self.0.finish()
    }
}

const BEGIN: &[u8] = b"GET /v1/stats HTTP/1.1\r\nHost: localhost\r\nX-Slow: ";

fn begin<S: std::io::Write>(stream: Option<S>) -> Option<S> {
    let mut stream = stream?;
    stream.write_all(BEGIN).ok()?;
    Some(stream)
}

fn drip<S: std::io::Write>(stream: &mut Option<S>) {
    let gone = stream.as_mut().is_some_and(|s| s.write_all(b"a").is_err());
    if gone {
        *stream = None;
    }
}
