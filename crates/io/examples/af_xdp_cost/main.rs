// SPDX-License-Identifier: Apache-2.0
//! What AF_XDP would cost in place of the tunnel's UDP sockets: the same frames of 64 KiB,
//! in datagrams of 1,472 bytes, go from one network namespace to another over veth pairs by
//! either, by turns. Prints medians of the rounds: CPU time for 10^9 bytes of frames, and
//! Gbit/s. Build it optimised; needs root, `ip` and `ethtool`.
//!
//!     cargo run --release -p causeway-io --example af_xdp_cost -- [ROUNDS [SECONDS]]
//!
//! - `udp whole`: as in [`causeway_io::tunnel`]; a veth takes 44 datagrams as one packet.
//! - `udp cut`: the kernel cuts them in front of the device and merges what comes out of
//!   the other one, so that each datagram passes the veth by itself, as on a wire.
//! - `xdp copied`: AF_XDP in copy mode, which is all that veth has. Each chunk is copied
//!   from the frame to the socket's memory, behind its headers.
//! - `xdp in place`: the same without that copy: the TUN device has been read with one
//!   vector for each chunk, into its place in the socket's memory.
//!
//! Received payload stays where it is, and is looked at: all of it in the first round, which
//! does not count, both ends of each chunk in the others. Nothing may be lost. Sender and
//! receiver have a CPU each; who has nothing to do sleeps.

mod xsk;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender as Outbox, channel};
use std::sync::{Arc, Barrier};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use causeway_io::tunnel::{
    BUFFER_BYTES, PathOptions, Received, Receiver, SendBuffers, Slab, UdpPath,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use nix::unistd::{Pid, gettid};
use xsk::{SLOT, Xsk, redirect};

const FRAME: usize = 65_536;
/// Of the tunnel's datagrams: header and payload.
const HEADER: usize = 28;
const CHUNK: usize = 1_472 - HEADER;
const CHUNKS: usize = FRAME.div_ceil(CHUNK);
/// Datagrams of one message: what fits an IP packet.
const MESSAGE: usize = 44;
/// Frames that are sent at one go, that are under way at most, and that there are.
const BATCH: u64 = 4;
const WINDOW: u64 = 16;
const FRAMES: usize = 32;
/// How long the receiver of AF_XDP sleeps when it finds nothing.
const NAP: Duration = Duration::from_micros(50);
/// Ethernet, IPv4 and UDP.
const OUTER: usize = 14 + 20 + 8;
/// Where a packet begins in its slot: so that payload begins at a multiple of 64.
const START: usize = 128 - HEADER - OUTER;
const PORT: u16 = 7000;
const CARRIERS: [&str; 4] = ["udp whole", "udp cut", "xdp copied", "xdp in place"];

/// The `index`th word of a chunk.
fn word(frame: usize, chunk: usize, index: usize) -> u64 {
    let seed = (frame * CHUNKS + chunk + 1) as u64;
    (seed << 16 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Frames with contents that tell each place in each of them.
fn frames() -> Vec<Vec<u8>> {
    let frame = |number| {
        let mut frame = vec![0; FRAME];
        for (chunk, bytes) in frame.chunks_mut(CHUNK).enumerate() {
            for (index, bytes) in bytes.chunks_mut(8).enumerate() {
                let word = word(number, chunk, index).to_le_bytes();
                bytes.copy_from_slice(&word[..bytes.len()]);
            }
        }
        frame
    };
    (0..FRAMES).map(frame).collect()
}

/// Frame and chunk of a datagram.
fn place(number: u64) -> (usize, usize) {
    let chunks = CHUNKS as u64;
    (
        (number / chunks % FRAMES as u64) as usize,
        (number % chunks) as usize,
    )
}

/// What has come in, in order.
#[derive(Default, Clone, Copy)]
struct Tally {
    next: u64,
    lost: u64,
    wrong: u64,
    /// Whether all of the payload is looked at.
    wholly: bool,
}

impl Tally {
    fn take(&mut self, datagram: &[u8]) {
        let Some((header, payload)) = datagram.split_first_chunk::<HEADER>() else {
            self.wrong += 1;
            return;
        };
        let number = header
            .first_chunk()
            .map_or(u64::MAX, |n| u64::from_le_bytes(*n));
        let (frame, chunk) = place(number);
        let length = CHUNK.min(FRAME - chunk * CHUNK);
        let is = |index| {
            let bytes = &payload[index * 8..length.min(index * 8 + 8)];
            *bytes == word(frame, chunk, index).to_le_bytes()[..bytes.len()]
        };
        let right = payload.len() == length
            && match self.wholly {
                true => (0..length.div_ceil(8)).all(is),
                false => is(0) && is((length - 1) / 8),
            };
        self.wrong += u64::from(!right || number < self.next);
        self.lost += number.saturating_sub(self.next);
        self.next = number.saturating_add(1);
    }
}

trait Outgoing {
    /// Sends `BATCH` frames, whose first datagram has this number.
    fn send(&mut self, frames: &[Vec<u8>], first: u64) -> io::Result<()>;
}

trait Incoming {
    /// Sleeps for a while, or until there is something; whether there is.
    fn wait(&self) -> io::Result<bool>;
    /// Takes all that is there.
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()>;
}

struct UdpSender {
    path: UdpPath,
    buffers: SendBuffers,
    headers: Vec<[u8; HEADER]>,
}

impl Outgoing for UdpSender {
    fn send(&mut self, frames: &[Vec<u8>], first: u64) -> io::Result<()> {
        for (header, number) in self.headers.iter_mut().zip(first..) {
            header[..8].copy_from_slice(&number.to_le_bytes());
        }
        let mut batch = self.buffers.batch();
        for (headers, number) in self.headers.chunks(CHUNKS).zip((first..).step_by(CHUNKS)) {
            let chunks = frames[place(number).0].chunks(CHUNK);
            for (index, (header, payload)) in headers.iter().zip(chunks).enumerate() {
                if index % MESSAGE == 0 {
                    batch.message((HEADER + CHUNK) as u16);
                }
                batch.part(header);
                batch.part(payload);
            }
        }
        match batch.send(&self.path).refused {
            0 => Ok(()),
            _ => Err(io::Error::other("the kernel refuses messages")),
        }
    }
}

struct UdpReceiver {
    path: UdpPath,
    receiver: Receiver,
    slab: Slab,
    received: Vec<Received>,
}

impl Incoming for UdpReceiver {
    fn wait(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(self.path.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut polled, PollTimeout::from(20_u8))? > 0)
    }

    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let mut more = true;
        while more {
            let (slab, received) = (&mut self.slab, &mut self.received);
            more = self.receiver.receive(&self.path, slab, received)?.more;
            for message in self.received.drain(..) {
                let bytes = &self.slab.bytes(message.buffer)[..message.length];
                bytes
                    .chunks(message.segment)
                    .for_each(|datagram| tally.take(datagram));
                self.slab.release(message.buffer, 1);
            }
        }
        Ok(())
    }
}

/// Slots are used in turn, so that each is always for the same chunk.
struct XdpSender {
    xsk: Xsk,
    /// Outer headers of a full datagram and of a frame's last.
    outer: [[u8; OUTER]; 2],
    free: i32,
    copies: bool,
}

impl Outgoing for XdpSender {
    fn send(&mut self, frames: &[Vec<u8>], first: u64) -> io::Result<()> {
        let count = BATCH as usize * CHUNKS;
        let done = self.xsk.completed.ahead();
        for _ in 0..done {
            let _ = self.xsk.completed.take();
        }
        self.xsk.completed.publish();
        self.free += done;
        if self.free < count as i32 {
            return Err(io::Error::other("sent packets do not come back"));
        }
        self.free -= count as i32;
        for number in first..first + count as u64 {
            let (frame, chunk) = place(number);
            let address = ((frame * CHUNKS + chunk) * SLOT + START) as u64;
            let begin = chunk * CHUNK;
            let payload = &frames[frame][begin..FRAME.min(begin + CHUNK)];
            let length = OUTER + HEADER + payload.len();
            let packet = self.xsk.bytes(address, length);
            packet[..OUTER].copy_from_slice(&self.outer[usize::from(chunk == CHUNKS - 1)]);
            let header = &mut packet[OUTER..OUTER + HEADER];
            header.fill(0);
            header[..8].copy_from_slice(&number.to_le_bytes());
            if self.copies {
                packet[OUTER + HEADER..].copy_from_slice(payload);
            }
            self.xsk.tx.put(libc::xdp_desc {
                addr: address,
                len: length as u32,
                options: 0,
            });
        }
        self.xsk.send()
    }
}

impl Incoming for Xsk {
    /// Not by poll(2): each packet of a veth could end it, and waking costs more than the copies.
    fn wait(&self) -> io::Result<bool> {
        if self.rx.ahead() == 0 {
            thread::sleep(NAP);
        }
        Ok(self.rx.ahead() > 0)
    }

    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        loop {
            let count = self.rx.ahead();
            if count == 0 {
                return Ok(());
            }
            for _ in 0..count {
                let packet = self.rx.take();
                let bytes = self.bytes(packet.addr, packet.len as usize);
                // What else a kernel says on a link is not for this port.
                if bytes.get(OUTER - 6..OUTER - 4) == Some(&PORT.to_be_bytes()) {
                    tally.take(&bytes[OUTER..]);
                }
                self.fill.put(packet.addr - packet.addr % SLOT as u64);
            }
            self.rx.publish();
            self.fill.publish();
        }
    }
}

/// Ethernet, IPv4 and UDP in front of `payload` bytes; no UDP checksum, as the kernel makes
/// none for a veth.
fn outer(payload: usize) -> [u8; OUTER] {
    let mut ip = [
        0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 2, 1, 10, 9, 2, 2,
    ];
    ip[2..4].copy_from_slice(&(28 + payload as u16).to_be_bytes());
    let sum: u32 = ip
        .chunks(2)
        .map(|b| u32::from(b[0]) << 8 | u32::from(b[1]))
        .sum();
    ip[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let mut outer = [0; OUTER];
    outer[..6].copy_from_slice(&[2, 0, 0, 0, 2, 2]);
    outer[6..12].copy_from_slice(&[2, 0, 0, 0, 2, 1]);
    outer[12] = 8;
    outer[14..34].copy_from_slice(&ip);
    outer[34..36].copy_from_slice(&PORT.to_be_bytes());
    outer[36..38].copy_from_slice(&PORT.to_be_bytes());
    outer[38..40].copy_from_slice(&(8 + payload as u16).to_be_bytes());
    outer
}

/// What both threads see of a round.
struct Round {
    begin: Barrier,
    sender: Thread,
    /// The sender sleeps until this number has come; `u64::MAX`: it does not.
    wanted: AtomicU64,
    arrived: AtomicU64,
    /// The number behind the last datagram, once the sender knows it.
    end: AtomicU64,
}

/// User and system time of this thread, in seconds.
fn thread_times() -> io::Result<[f64; 2]> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let seconds = |time: nix::sys::time::TimeVal| time.num_microseconds() as f64 / 1e6;
    Ok([seconds(usage.user_time()), seconds(usage.system_time())])
}

/// Seconds that the machine's CPUs were busy, interrupts included, stolen time not.
fn machine_time() -> io::Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks: Vec<f64> = text
        .lines()
        .next()
        .into_iter()
        .flat_map(|line| {
            line.split_whitespace()
                .skip(1)
                .map_while(|n| n.parse().ok())
        })
        .collect();
    // user, nice, system, idle, iowait, irq, softirq; in hundredths.
    Ok([0, 1, 2, 5, 6]
        .iter()
        .filter_map(|i| ticks.get(*i))
        .sum::<f64>()
        / 100.0)
}

fn pin(cpu: usize) -> io::Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &cpus)?)
}

fn run(words: &str) -> io::Result<()> {
    let mut words_of = words.split_whitespace();
    let status = Command::new(words_of.next().unwrap_or_default())
        .args(words_of)
        .status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("`{words}` failed"))),
    }
}

fn path(link: u8, end: u8) -> io::Result<UdpPath> {
    let at = |end| SocketAddr::from(([10, 9, link, end], PORT));
    let options = PathOptions {
        local: at(end),
        remote: at(3 - end),
        device: None,
        buffer_bytes: 8 << 20,
        merge: true,
    };
    UdpPath::open(&options).map_err(io::Error::other)
}

/// Addresses of one end of all links, in the calling thread's namespace.
fn set_up(end: u8) -> io::Result<()> {
    for link in 0..3 {
        let (device, other) = (format!("end{link}"), 3 - end);
        run(&format!("ip link set {device} up addrgenmode none"))?;
        run(&format!("ip addr add 10.9.{link}.{end}/24 dev {device}"))?;
        run(&format!(
            "ip neigh add 10.9.{link}.{other} lladdr 02:00:00:00:{link:02x}:{other:02x} dev {device} nud permanent"
        ))?;
    }
    Ok(())
}

/// The receiver's life: sockets, then rounds as they are asked for.
fn receive_rounds(
    rounds: &Inbox<(usize, bool, Arc<Round>)>,
    results: &Outbox<io::Result<(Tally, [f64; 2], Instant)>>,
) -> io::Result<()> {
    pin(1)?;
    set_up(2)?;
    run("ethtool -K end1 gro on")?;
    let udp = |link| {
        io::Result::Ok(UdpReceiver {
            path: path(link, 2)?,
            receiver: Receiver::new(),
            slab: Slab::new(16, BUFFER_BYTES),
            received: Vec::new(),
        })
    };
    let (mut whole, mut cut) = (udp(0)?, udp(1)?);
    let slots = 1024;
    let mut xsk = Xsk::open("end2", slots, slots as u32)?;
    (0..slots).for_each(|slot| xsk.fill.put((slot * SLOT) as u64));
    xsk.fill.publish();
    let _redirects = redirect("end2", &xsk)?;
    let mut next = [0; CARRIERS.len() - 1];
    let _ = results.send(Ok((Tally::default(), [0.0; 2], Instant::now())));
    for (line, wholly, round) in rounds {
        let end: &mut dyn Incoming = match line {
            0 => &mut whole,
            1 => &mut cut,
            _ => &mut xsk,
        };
        let mut tally = Tally {
            next: next[line],
            wholly,
            ..Tally::default()
        };
        round.begin.wait();
        let before = thread_times()?;
        let mut last = Instant::now();
        while tally.next < round.end.load(Ordering::Acquire)
            && last.elapsed() < Duration::from_millis(300)
        {
            if !end.wait()? {
                continue;
            }
            end.receive(&mut tally)?;
            last = Instant::now();
            round.arrived.store(tally.next, Ordering::SeqCst);
            if tally.next >= round.wanted.load(Ordering::SeqCst) {
                round.wanted.store(u64::MAX, Ordering::SeqCst);
                round.sender.unpark();
            }
        }
        let after = thread_times()?;
        next[line] = tally.next;
        let _ = results.send(Ok((
            tally,
            [after[0] - before[0], after[1] - before[1]],
            last,
        )));
    }
    Ok(())
}

/// What a round cost, in seconds for 10^9 bytes of frames, and what it carried.
struct Cost {
    gbps: f64,
    sender: [f64; 2],
    receiver: [f64; 2],
    machine: f64,
}

/// Sends for `seconds`, and waits until all of it has come.
fn send_round(
    sender: &mut dyn Outgoing,
    frames: &[Vec<u8>],
    next: &mut u64,
    seconds: f64,
    round: &Round,
    results: &Inbox<io::Result<(Tally, [f64; 2], Instant)>>,
) -> io::Result<(Cost, Tally)> {
    let first = *next;
    let count = BATCH * CHUNKS as u64;
    round.begin.wait();
    let (began, machine, before) = (Instant::now(), machine_time()?, thread_times()?);
    while began.elapsed().as_secs_f64() < seconds {
        let arrived = || round.arrived.load(Ordering::SeqCst);
        if *next - arrived() > (WINDOW - BATCH) * CHUNKS as u64 {
            // It goes on when half of the window is free.
            let wanted = *next - WINDOW / 2 * CHUNKS as u64;
            round.wanted.store(wanted, Ordering::SeqCst);
            let asleep = Instant::now();
            while arrived() < wanted {
                thread::park_timeout(Duration::from_millis(20));
                if asleep.elapsed() > Duration::from_secs(1) {
                    return Err(io::Error::other("nothing arrives any more"));
                }
            }
        }
        sender.send(frames, *next)?;
        *next += count;
    }
    round.end.store(*next, Ordering::Release);
    let after = thread_times()?;
    let (tally, receiver, last) = results.recv().map_err(io::Error::other)??;
    let machine = machine_time()? - machine;
    let gb = (*next - first) as f64 / CHUNKS as f64 * FRAME as f64 / 1e9;
    let cost = Cost {
        gbps: gb * 8.0 / last.duration_since(began).as_secs_f64(),
        sender: [(after[0] - before[0]) / gb, (after[1] - before[1]) / gb],
        receiver: receiver.map(|time| time / gb),
        machine: machine / gb,
    };
    Ok((cost, tally))
}

/// Median, least and most.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
    [
        at(values.len() / 2),
        at(0),
        at(values.len().saturating_sub(1)),
    ]
}

fn print(costs: &[Vec<Cost>; CARRIERS.len()]) {
    println!("CPU seconds for 10^9 bytes, medians (least to most); user: of both threads");
    println!("carrier       Gbit/s                 sender  receiver    user  machine");
    for (carrier, costs) in CARRIERS.iter().zip(costs) {
        let of = |value: fn(&Cost) -> f64| spread(costs.iter().map(value).collect());
        let gbps = of(|c| c.gbps);
        let sender = of(|c| c.sender[0] + c.sender[1])[0];
        let receiver = of(|c| c.receiver[0] + c.receiver[1])[0];
        let user = of(|c| c.sender[0] + c.receiver[0])[0];
        let machine = of(|c| c.machine);
        println!(
            "{carrier:12} {:6.2} ({:5.2} to {:5.2})   {sender:6.3}   {receiver:6.3}  {user:6.3}   {:.3} ({:.3} to {:.3})",
            gbps[0], gbps[1], gbps[2], machine[0], machine[1], machine[2]
        );
    }
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |or: f64| {
        let given = arguments.next().map(|text| text.parse());
        given.unwrap_or(Ok(or)).map_err(io::Error::other)
    };
    let (count, seconds) = (argument(7.0)? as usize, argument(1.0)?);

    // Both namespaces belong to threads of this process: the kernel removes them with it.
    unshare(CloneFlags::CLONE_NEWNET)?;
    let (orders, inbox) = channel();
    let (outbox, results) = channel();
    let (tell, thread_id) = channel();
    let (linked, links) = channel::<()>();
    thread::spawn(move || {
        let ready = unshare(CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
        let _ = tell.send(gettid());
        let _ = links.recv();
        let done = ready.and_then(|()| receive_rounds(&inbox, &outbox));
        if let Err(error) = done {
            let _ = outbox.send(Err(error));
        }
    });
    let receiver = thread_id.recv().map_err(io::Error::other)?;
    for link in 0..3 {
        run(&format!(
            "ip link add end{link} address 02:00:00:00:0{link}:01 numtxqueues 1 numrxqueues 1 type veth \
             peer name end{link} address 02:00:00:00:0{link}:02 numtxqueues 1 numrxqueues 1 netns {receiver}"
        ))?;
    }
    pin(0)?;
    set_up(1)?;
    run("ethtool -K end1 tso off tx-udp-segmentation off")?;
    linked.send(()).map_err(io::Error::other)?;
    results.recv().map_err(io::Error::other)??;

    let frames = frames();
    let udp = |link| {
        io::Result::Ok(UdpSender {
            path: path(link, 1)?,
            buffers: SendBuffers::default(),
            headers: vec![[0; HEADER]; BATCH as usize * CHUNKS],
        })
    };
    let (mut whole, mut cut) = (udp(0)?, udp(1)?);
    let slots = FRAMES * CHUNKS;
    let mut xdp = XdpSender {
        xsk: Xsk::open("end2", slots, 2048)?,
        outer: [CHUNK, FRAME % CHUNK].map(|payload| outer(HEADER + payload)),
        free: slots as i32,
        copies: true,
    };
    let mut next = [0; CARRIERS.len() - 1];
    let mut costs: [Vec<Cost>; CARRIERS.len()] = Default::default();
    for number in 0..=count {
        let wholly = number == 0;
        for carrier in 0..CARRIERS.len() {
            xdp.copies = CARRIERS[carrier] == "xdp copied";
            let sender: &mut dyn Outgoing = match carrier {
                0 => &mut whole,
                1 => &mut cut,
                _ => &mut xdp,
            };
            // Both ways of AF_XDP share sockets and numbers, and the first fills all slots.
            let line = carrier.min(next.len() - 1);
            let round = Arc::new(Round {
                begin: Barrier::new(2),
                sender: thread::current(),
                wanted: AtomicU64::new(u64::MAX),
                arrived: AtomicU64::new(next[line]),
                end: AtomicU64::new(u64::MAX),
            });
            let order = (line, wholly, Arc::clone(&round));
            orders.send(order).map_err(io::Error::other)?;
            let (cost, tally) =
                send_round(sender, &frames, &mut next[line], seconds, &round, &results)?;
            let missing = next[line] - tally.next.min(next[line]);
            if (tally.lost + missing, tally.wrong) != (0, 0) {
                return Err(io::Error::other(format!(
                    "{}: {} datagrams lost, {} wrong",
                    CARRIERS[carrier],
                    tally.lost + missing,
                    tally.wrong
                )));
            }
            if !wholly {
                costs[carrier].push(cost);
            }
        }
    }
    print(&costs);
    Ok(())
}
