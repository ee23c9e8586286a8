// SPDX-License-Identifier: Apache-2.0
//! One thread of a tunnel: an engine, a queue of the TUN device and a socket on every
//! path, which no other thread shares. It is the only writer of its flows, so their order
//! holds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver as Inbox, Sender, TryRecvError};

use anyhow::Context as _;
use causeway_bifrost::{self as bifrost, PathId, Span, TransportEngine, TunnelEvent};
use causeway_netio::monotonic_ns;
use causeway_netio::tunnel::{
    BUFFER_BYTES, ReceivedMessage, Tun, UdpPath, UdpReceiver, VNET_HEADER, Waiter, Waker,
};
use tracing::{info, warn};

use super::memory::{Memory, SlabKind};
use super::outbox::Outbox;
use super::vnic::{GuestCounts, Vnic};
use crate::config::PollMode;

/// Longest sleep: time of a path that goes silent is counted by the engine's deadlines.
const SLEEP_MAX_NS: u64 = 1_000_000_000;
/// How long a thread polls before it sleeps, with poll = "spin".
const SPIN_NS: u64 = 50_000;
/// Frames that are read before sockets are read again.
const FRAMES_PER_TURN: usize = 16;
/// A timer waits no longer for what is unread: a flood must not stop time.
const LATE_NS: u64 = 2_000_000;
/// A guest's kernel that had no room for a frame is asked again after this time.
const GUEST_FULL_NS: u64 = 500_000;
/// A device that cannot be read is asked again after this time.
const DEVICE_DOWN_NS: u64 = 20_000_000;
/// What ends the daemon.
const DEVICE_GONE: &str = "the TUN device is gone";

/// What a thread runs with.
pub(crate) struct Shard {
    pub number: usize,
    pub engine: TransportEngine,
    pub tun: Tun,
    pub paths: BTreeMap<u8, UdpPath>,
    pub memory: Memory,
    pub vnic: Vnic,
    pub poll: PollMode,
    pub waiter: Waiter,
    pub inbox: Inbox<ShardCommand>,
}

/// What the daemon may ask of a thread.
pub(crate) enum ShardCommand {
    /// New settings, paths that are new or changed with their sockets, and those that go.
    Change(Box<ShardChange>),
    /// The counters.
    Report(Sender<ShardReport>),
    /// To end.
    Stop,
}

/// New settings; nothing in it can fail any more but by the engine's own check, which
/// has been made.
pub(crate) struct ShardChange {
    pub config: bifrost::TransportConfig,
    pub vnic_queue: usize,
    pub poll: PollMode,
    pub remove: Vec<u8>,
    pub add: AddedPaths,
}

/// Paths that a thread gets, with a socket where theirs is new.
pub(crate) type AddedPaths = BTreeMap<u8, (bifrost::PathConfig, Option<UdpPath>)>;

/// The counters of a thread.
#[derive(Debug, Clone, Default)]
pub struct ShardReport {
    /// The thread's number.
    pub number: usize,
    /// Whether the other end takes the guests' UDP merged.
    pub peer_merges_udp: bool,
    pub tunnel: bifrost::TunnelMetrics,
    pub paths: BTreeMap<u8, bifrost::PathMetrics>,
    /// What became of frames at the guest's kernel.
    pub guest: GuestCounts,
    /// Messages that the kernel did not take.
    pub send_errors: u64,
    /// What sockets reported (connection refused, no route), and empty datagrams.
    pub socket_errors: u64,
    /// Memory in use.
    pub memory_bytes: u64,
}

/// What a thread keeps from turn to turn.
#[derive(Default)]
struct Turn {
    received: Vec<ReceivedMessage>,
    send_errors: u64,
    socket_errors: u64,
    /// The device cannot be read until then.
    device_down_until: u64,
    /// Whether the guest got something.
    wrote: bool,
    stopping: bool,
}

/// Sends commands to a shard.
pub(crate) struct ShardHandle {
    pub commands: Sender<ShardCommand>,
    pub waker: Waker,
}

impl ShardHandle {
    /// Sends a command; one to a thread that has ended is lost, and its end is noticed
    /// elsewhere.
    pub(crate) fn send(&self, command: ShardCommand) {
        if self.commands.send(command).is_ok() {
            self.waker.wake();
        }
    }
}

impl Shard {
    /// Runs until it is asked to stop.
    pub(crate) fn run(mut self) -> anyhow::Result<()> {
        let mut receiver = UdpReceiver::new();
        let mut outbox = Outbox::default();
        let mut turn = Turn::default();
        let mut awake_until = 0;
        self.watch();
        while !turn.stopping {
            let now = monotonic_ns();
            let accepts = self.reads_guest() && now >= turn.device_down_until;
            self.waiter.set_watched(0, accepts);
            let until = match now < awake_until {
                true => now,
                false => {
                    let due = self.engine.poll_timeout().unwrap_or(u64::MAX);
                    let sleep = match self.vnic.is_waiting() {
                        true => GUEST_FULL_NS,
                        false => SLEEP_MAX_NS,
                    };
                    due.min(now + sleep)
                }
            };
            let ready = self.waiter.wait(now, until)?;
            let (woken, from_guest) = (ready.is_woken(), ready.is(0));
            let device_failed = ready.has_failed(0);
            let from_paths: u32 = (0..self.paths.len())
                .filter(|index| ready.is(index + 1))
                .fold(0, |bits, index| bits | 1 << index);
            // While no path is alive nothing is read that would say so.
            if device_failed {
                self.tun.check().context(DEVICE_GONE)?;
            }
            let now = monotonic_ns();
            if woken {
                self.handle_commands(now, &mut turn);
            }
            // A timer says nothing while what it waits for has come and lies unread.
            let more = self.receive(from_paths, &mut receiver, &mut turn);
            let now = monotonic_ns();
            if !more || self.is_late(now) {
                self.engine.handle_timeout(now);
            }
            let wrote = std::mem::take(&mut turn.wrote)
                | write_up(
                    now,
                    &mut self.engine,
                    &mut self.memory,
                    &mut self.vnic,
                    &self.tun,
                );
            // What the guest's kernel answers to what was written is there by now.
            let read = match from_guest || wrote {
                true => self.read_guest(now, &mut turn)?,
                false => false,
            };
            self.send(&mut outbox, &mut turn);
            self.take_releases_and_events();
            if self.poll == PollMode::Spin && (read || wrote || from_paths != 0) {
                awake_until = monotonic_ns() + SPIN_NS;
            }
        }
        receiver.give_back(self.memory.slab(SlabKind::Datagrams));
        Ok(())
    }

    fn is_late(&self, now: u64) -> bool {
        let due = self.engine.poll_timeout();
        due.is_some_and(|at_ns| at_ns + LATE_NS < now)
    }

    fn watch(&mut self) {
        let paths = self.paths.values().map(|path| path.as_fd());
        self.waiter
            .watch(std::iter::once(self.tun.as_fd()).chain(paths));
    }

    /// Whether there is more.
    fn receive(&mut self, ready: u32, receiver: &mut UdpReceiver, turn: &mut Turn) -> bool {
        let mut more = false;
        for (index, (id, path)) in self.paths.iter().enumerate() {
            if ready & 1 << index == 0 {
                continue;
            }
            let slab = self.memory.slab(SlabKind::Datagrams);
            match receiver.receive(path, slab, &mut turn.received) {
                Ok(batch) => {
                    more |= batch.more;
                    turn.socket_errors += batch.unusable;
                }
                Err(_) => turn.socket_errors += 1,
            }
            // Not before they came: the other end subtracts what they waited here from
            // its round trip.
            let now = monotonic_ns();
            for message in turn.received.drain(..) {
                take(&mut self.engine, &mut self.memory, now, *id, path, message);
            }
            // While it is in the cache, and so that its buffers are the next socket's.
            turn.wrote |= write_up(
                now,
                &mut self.engine,
                &mut self.memory,
                &mut self.vnic,
                &self.tun,
            );
        }
        more
    }

    /// Whether a frame would be taken, and has a buffer to be read into. Without, a
    /// device with packets would keep the thread awake for nothing. Or whether it would be dropped:
    /// what waits in the device for a path would be sent first when one is back, however old.
    fn reads_guest(&mut self) -> bool {
        let accepts = self.engine.can_accept() || self.engine.is_cut_off();
        accepts && self.memory.slab(SlabKind::Frame).available() > 0
    }

    /// Whether a frame was read.
    fn read_guest(&mut self, now: u64, turn: &mut Turn) -> anyhow::Result<bool> {
        let mut any = false;
        for _ in 0..FRAMES_PER_TURN {
            if !self.reads_guest() {
                break;
            }
            let Some(buffer) = self.memory.slab(SlabKind::Frame).take() else {
                break;
            };
            let chunk = self.engine.chunk_bytes();
            let (memory, tun) = (&mut self.memory, &self.tun);
            let length = match memory.read_frame(buffer, chunk, |pieces| tun.read_pieces(pieces)) {
                Ok(Some(length)) => length,
                Ok(None) => {
                    self.memory.slab(SlabKind::Frame).release(buffer, 1);
                    break;
                }
                Err(error) => {
                    self.memory.slab(SlabKind::Frame).release(buffer, 1);
                    // EIO: the device was set down; anything else is its end.
                    if error.raw_os_error() == Some(libc::EIO) {
                        turn.device_down_until = now + DEVICE_DOWN_NS;
                        break;
                    }
                    return Err(error).context(DEVICE_GONE);
                }
            };
            any = true;
            self.take_frame(now, buffer, length);
        }
        Ok(any)
    }

    fn take_frame(&mut self, now: u64, buffer: causeway_netio::tunnel::BufferId, length: usize) {
        let packet = self.memory.head(buffer, length).get(VNET_HEADER..);
        let hash = packet.map_or(0, bifrost::flow_hash);
        let span = self.memory.keep_frame(buffer, length);
        // A frame that is not taken is counted there, and its slot stays this thread's. The
        // reference of one that is taken is the engine's.
        if self.engine.handle_frame(now, span, hash).is_err() {
            self.memory.release(span.slot, 1);
        }
    }

    fn send(&mut self, outbox: &mut Outbox, turn: &mut Turn) {
        loop {
            let now = monotonic_ns();
            let more = outbox.fill(now, &mut self.engine, &mut self.memory);
            for (id, path) in &self.paths {
                let Some(sent) = outbox.send(*id, path, &self.memory) else {
                    continue;
                };
                turn.send_errors += sent.refused as u64;
                if sent.too_large
                    && let Ok(mtu) = path.route().mtu()
                {
                    // The engine may know of a narrower place farther away.
                    let known = self.engine.path_metrics(PathId(*id));
                    let mtu = known.map_or(mtu, |known| known.mtu.min(mtu));
                    self.engine.set_path_mtu(now, PathId(*id), mtu);
                }
            }
            if !more {
                break;
            }
        }
    }

    /// Takes back what is free, and logs what happened.
    fn take_releases_and_events(&mut self) {
        while let Some(release) = self.engine.poll_release() {
            self.memory.release(release.slot, release.count);
        }
        while let Some(event) = self.engine.poll_event() {
            let thread = self.number;
            match event {
                TunnelEvent::PeerUp => info!(thread, "the other end answers"),
                TunnelEvent::PeerMergesUdp(merges) => {
                    if let Err(error) = self.tun.merge_udp(merges) {
                        warn!(
                            thread,
                            "cannot have UDP merged as the other end takes it: {error}"
                        );
                    }
                }
                TunnelEvent::PeerVersion(version) => warn!(
                    thread,
                    "the other end speaks version {version} of the wire format, this one {}: have both run the same version of causeway",
                    bifrost::wire::VERSION
                ),
                TunnelEvent::PeerRestarted => info!(thread, "the other end was restarted"),
                TunnelEvent::SetBack => {
                    warn!(
                        thread,
                        "this end was set back to an earlier state, and begins anew"
                    )
                }
                TunnelEvent::PathAlive(id) => info!(thread, "path {id} is alive"),
                TunnelEvent::PathDead(id) => warn!(thread, "path {id} is dead"),
                TunnelEvent::PathLosesData(id) => {
                    warn!(thread, "path {id} answers probes and loses all data")
                }
                TunnelEvent::PathMtu(id, mtu) => {
                    info!(thread, "path {id} lets {mtu} bytes through")
                }
            }
        }
    }

    fn handle_commands(&mut self, now: u64, turn: &mut Turn) {
        loop {
            match self.inbox.try_recv() {
                Ok(ShardCommand::Change(change)) => self.change(now, *change),
                // The daemon may have stopped waiting.
                Ok(ShardCommand::Report(reply)) => drop(reply.send(self.report(turn))),
                Ok(ShardCommand::Stop) | Err(TryRecvError::Disconnected) => {
                    turn.stopping = true;
                    return;
                }
                Err(TryRecvError::Empty) => return,
            }
        }
    }

    fn change(&mut self, now: u64, change: ShardChange) {
        let thread = self.number;
        if let Err(error) = self.engine.reconfigure(now, change.config) {
            warn!(thread, "the engine keeps its settings: {error}");
        }
        self.vnic.set_capacity(change.vnic_queue);
        self.poll = change.poll;
        for id in change.remove {
            self.engine.remove_path(now, PathId(id));
            self.paths.remove(&id);
        }
        for (id, (config, socket)) in change.add {
            let held = self.paths.get_mut(&id);
            let moved = held.filter(|held| socket.is_none() && held.remote() != config.peer);
            let stays = socket.is_none() && moved.is_none();
            if let Some(Err(error)) = moved.map(|path| path.aim_at(config.peer)) {
                warn!(thread, "path {id} cannot go to {}: {error}", config.peer);
            }
            if stays && self.engine.raise_path_mtu(now, PathId(id), config.mtu) {
                continue;
            }
            self.engine.remove_path(now, PathId(id));
            if let Some(socket) = socket {
                self.paths.insert(id, socket);
            }
            if let Err(error) = self.engine.add_path(now, PathId(id), config) {
                warn!(thread, "path {id} is not added: {error}");
            }
        }
        self.watch();
    }

    fn report(&self, turn: &Turn) -> ShardReport {
        let paths = self.paths.keys().filter_map(|id| {
            let metrics = self.engine.path_metrics(PathId(*id))?;
            Some((*id, metrics))
        });
        ShardReport {
            number: self.number,
            peer_merges_udp: self.engine.peer_merges_udp(),
            tunnel: self.engine.metrics(),
            paths: paths.collect(),
            guest: self.vnic.counts(),
            send_errors: turn.send_errors,
            socket_errors: turn.socket_errors,
            memory_bytes: self.memory.used_bytes(),
        }
    }
}

/// Gives the guest's kernel what the engine has for it. Whether it took anything.
fn write_up(
    now: u64,
    engine: &mut TransportEngine,
    memory: &mut Memory,
    vnic: &mut Vnic,
    tun: &Tun,
) -> bool {
    vnic.pass(now, engine, memory, |frame| tun.write(frame))
}

/// Gives the datagrams of a message to the engine. The message's own reference ends
/// here.
fn take(
    engine: &mut TransportEngine,
    memory: &mut Memory,
    now: u64,
    id: u8,
    path: &UdpPath,
    message: ReceivedMessage,
) {
    debug_assert!(message.length <= BUFFER_BYTES);
    let (buffer, id, from) = (message.buffer, PathId(id), path.remote());
    if memory.is_short_of_large() || Memory::is_small(message.length) {
        take_copies(engine, memory, now, (id, from), message);
    } else {
        let span = Span {
            slot: Memory::slot(SlabKind::Datagrams, buffer),
            offset: 0,
            len: message.length as u32,
        };
        let slab = memory.slab(SlabKind::Datagrams);
        let bytes = &mut slab.bytes_mut(buffer)[..message.length];
        let held = engine.handle_datagrams(now, id, from, (bytes, message.segment), span);
        slab.retain(buffer, held);
    }
    memory.slab(SlabKind::Datagrams).release(buffer, 1);
}

/// The same, with each datagram moved to a small buffer, as long as there are any that it
/// fits: so that it does not hold 64 KiB. Of others that would hold them only those whose turn it
/// is are taken, so that what they wait for can be received.
fn take_copies(
    engine: &mut TransportEngine,
    memory: &mut Memory,
    now: u64,
    (id, from): (PathId, SocketAddr),
    message: ReceivedMessage,
) {
    let buffer = message.buffer;
    let mut begin = 0;
    while begin < message.length {
        let end = (begin + message.segment).min(message.length);
        let copied = memory.copy_datagram(buffer, begin..end);
        let (kind, at, offset) = match copied {
            Some(small) => (SlabKind::SmallDatagram, small, 0),
            None => (SlabKind::Datagrams, buffer, begin),
        };
        let span = Span {
            slot: Memory::slot(kind, at),
            offset: offset as u32,
            len: (end - begin) as u32,
        };
        let bytes = &mut memory.slab(kind).bytes_mut(at)[offset..offset + end - begin];
        engine.set_short_of_memory(copied.is_none());
        let reference = engine.handle_datagram(now, id, from, bytes, span);
        let held = matches!(reference, Ok(bifrost::SlotReference::Taken));
        match (copied, held) {
            // The engine has taken the copy's reference, or it is given back.
            (Some(_), true) => {}
            (Some(small), false) => memory.slab(SlabKind::SmallDatagram).release(small, 1),
            (None, true) => memory.slab(SlabKind::Datagrams).retain(buffer, 1),
            (None, false) => {}
        }
        begin = end;
    }
    engine.set_short_of_memory(false);
}

#[cfg(test)]
mod tests;
