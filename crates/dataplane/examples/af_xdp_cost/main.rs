// SPDX-License-Identifier: Apache-2.0
//! What AF_XDP would cost in place of the tunnel's UDP sockets: the same frames of 64 KiB,
//! in datagrams of 1,472 bytes, go from one network namespace to another over veth pairs by
//! either, by turns. Prints medians of the rounds: CPU time for 10^9 bytes of frames, and
//! Gbit/s. Build it optimised; needs root, `ip` and `ethtool`.
//!
//!     cargo run --release -p causeway-io --example af_xdp_cost -- [ROUNDS [SECONDS]]
//!
//! - `udp whole`: as in [`causeway_netio::tunnel`]; a veth takes 44 datagrams as one packet.
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

mod ends;
mod frames;
mod machine;
mod xsk;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Inbox, Sender as Outbox, channel};
use std::sync::{Arc, Barrier};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use causeway_netio::tunnel::{BUFFER_BYTES, Receiver, SendBuffers, Slab};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;

use ends::{BATCH, Incoming, Outgoing, UdpReceiver, UdpSender, XdpSender, outer};
use frames::{CHUNK, CHUNKS, FRAME, FRAMES, HEADER, Tally, frames};
use machine::{machine_time, path, pin, run, set_up, thread_times};
use xsk::{SLOT, Xsk, redirect};

/// Frames that are under way at most.
const WINDOW: u64 = 16;
const CARRIERS: [&str; 4] = ["udp whole", "udp cut", "xdp copied", "xdp in place"];

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
