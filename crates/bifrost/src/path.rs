// SPDX-License-Identifier: Apache-2.0

//! A path: what is in flight on it, what has arrived on it, and whether it works.

use std::collections::VecDeque;

mod congestion;
mod data_progress;
mod health;
mod pending_acks;
mod probe_timeout;
mod replay_window;
mod rtt;
mod sent_packets;

use self::congestion::Congestion;
use self::data_progress::DataProgress;
use self::health::PathHealth;
use self::probe_timeout::{ProbeTimeout, SLACK_NS};
use self::replay_window::ReplayWindow;
use self::rtt::RttEstimator;
use self::sent_packets::SentPackets;
use crate::config::{PathConfig, Rto, TransportConfig};
use crate::metrics::{PathMetrics, PathState};
use crate::send_buffer::FrameRef;
use crate::types::PathId;
use crate::wire::{AckHeader, FIRST_NUMBER, stamp_us};

pub(crate) use self::health::{ReplyOutcome, Unresponsive};
pub(crate) use self::pending_acks::PendingAcks;
pub(crate) use self::replay_window::{Arrival, WIDTH, expand};
pub(crate) use self::sent_packets::{AckedChunks, ChunkRun, LostChunk};

/// A round trip that took longer is not one.
pub(crate) const MAX_RTT_US: u32 = 5_000_000;
/// Probes of which the answer may still come. In 5 s a path that does not answer gets 900, and
/// more where many are asked for.
const MAX_PROBES: usize = 2048;

/// What outlives the path's configuration. Numbers: with keys they must not come twice
/// in a session, those of probes not twice in the life of an instance. And counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathNumbers {
    data: u64,
    control: u64,
    probe: u64,
    window: ReplayWindow,
    control_seen: u64,
    stats: PathMetrics,
}

impl PathNumbers {
    pub(crate) fn new() -> PathNumbers {
        PathNumbers {
            data: FIRST_NUMBER,
            control: FIRST_NUMBER,
            probe: 1,
            window: ReplayWindow::new(),
            control_seen: FIRST_NUMBER - 1,
            stats: PathMetrics::default(),
        }
    }

    /// Those of a session that begins.
    pub(crate) fn of_new_session(self) -> PathNumbers {
        PathNumbers {
            probe: self.probe,
            stats: self.stats,
            ..PathNumbers::new()
        }
    }
}

/// What a retransmission timer asks the engine to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TimerOutcome {
    /// The other paths are to be probed.
    pub probe_others: bool,
    /// The path is dead.
    pub dead: bool,
}

/// One path of a tunnel.
#[derive(Debug)]
pub(crate) struct Path {
    pub config: PathConfig,
    sent: SentPackets,
    pub acks: PendingAcks,
    congestion: Congestion,
    rtt: RttEstimator,
    health: PathHealth,
    data: DataProgress,
    probe_timeout: ProbeTimeout,
    next_control: u64,
    next_probe: u64,
    /// When the probes were sent that may still be answered, in microseconds; in order.
    probes_us: VecDeque<u64>,
    pub stats: PathMetrics,
}

impl Path {
    pub(crate) fn new(
        now_ns: u64,
        path: PathConfig,
        config: &TransportConfig,
        numbers: &PathNumbers,
    ) -> Path {
        Path {
            config: path,
            sent: SentPackets::new(numbers.data),
            acks: PendingAcks::new(numbers.window, numbers.control_seen),
            congestion: Congestion::new(path.mtu, config.limits.path_window),
            rtt: RttEstimator::new(),
            health: PathHealth::new(now_ns, path.mtu),
            data: DataProgress::default(),
            probe_timeout: ProbeTimeout::default(),
            next_control: numbers.control,
            next_probe: numbers.probe,
            probes_us: VecDeque::new(),
            stats: numbers.stats,
        }
    }

    /// What to go on from, if the path comes back.
    pub(crate) fn numbers(&self) -> PathNumbers {
        PathNumbers {
            data: self.sent.next(),
            control: self.next_control,
            probe: self.next_probe,
            window: self.acks.window,
            control_seen: self.acks.control_seen,
            stats: self.stats,
        }
    }

    /// A session begins: everything but the state of the link and the counters.
    pub(crate) fn begin_session(&mut self, now_ns: u64, config: &TransportConfig) {
        let numbers = PathNumbers::new();
        self.sent = SentPackets::new(numbers.data);
        self.acks = PendingAcks::new(numbers.window, numbers.control_seen);
        self.next_control = numbers.control;
        self.congestion = Congestion::new(self.mtu(), config.limits.path_window);
        self.rtt = RttEstimator::new();
        self.data = DataProgress::default();
        self.probe_timeout.clear();
        self.health.begin_session(now_ns);
    }

    pub(crate) fn state(&self) -> PathState {
        self.health.state()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.state() == PathState::Alive
    }

    /// The path changes to `state`, and is probed from now on.
    pub(crate) fn become_state(&mut self, now_ns: u64, state: PathState) {
        self.probe_timeout.clear();
        self.health.become_state(now_ns, state);
    }

    /// Bytes of the largest IP packet in use.
    pub(crate) fn mtu(&self) -> u16 {
        self.health.mtu()
    }

    /// Larger packets than configured may pass; whether `mtu` is larger, and may be one.
    pub(crate) fn raise_mtu(&mut self, now_ns: u64, id: PathId, mtu: u16) -> bool {
        let config = PathConfig { mtu, ..self.config };
        if mtu <= self.config.mtu || config.check(id).is_err() {
            return false;
        }
        self.config = config;
        self.health.raise(now_ns, mtu);
        true
    }

    /// The MTU is known; whether it has changed.
    pub(crate) fn set_mtu(&mut self, now_ns: u64, mtu: u16) -> bool {
        self.congestion.set_mtu(mtu);
        self.health.set_mtu(now_ns, mtu)
    }

    pub(crate) fn set_window_limit(&mut self, limit: u64) {
        self.congestion.set_limit(limit);
    }

    pub(crate) fn smoothed_rtt_ns(&self) -> u64 {
        self.rtt.smoothed_ns()
    }

    /// The number of the next data packet.
    pub(crate) fn next_number(&self) -> u64 {
        self.sent.next()
    }

    /// A number for an acknowledgement.
    pub(crate) fn take_control_number(&mut self) -> u64 {
        self.next_control += 1;
        self.next_control - 1
    }

    /// A number for a probe or a reply.
    pub(crate) fn take_probe_number(&mut self) -> u64 {
        self.next_probe += 1;
        self.next_probe - 1
    }

    /// Whether a datagram of `len` bytes may be sent now.
    pub(crate) fn can_send(&self, now_ns: u64, len: u64) -> bool {
        self.is_alive()
            && self.sent.inflight() + len <= self.congestion.allowed(now_ns)
            && self.sent.packets_left() > 0
    }

    /// Bytes that may be sent now.
    pub(crate) fn window_left(&self, now_ns: u64) -> u64 {
        if self.is_alive() && self.sent.packets_left() > 0 {
            self.congestion
                .allowed(now_ns)
                .saturating_sub(self.sent.inflight())
        } else {
            0
        }
    }

    /// Datagrams of `len` bytes that may be sent now.
    pub(crate) fn datagrams_left(&self, now_ns: u64, len: u32) -> u64 {
        (self.window_left(now_ns) / u64::from(len)).min(self.sent.packets_left())
    }

    /// Bytes that the window lets through in a time.
    pub(crate) fn sends_in(&self, time_ns: u64) -> u64 {
        // Below 2^32 bytes and 2^20 us: no overflow.
        let srtt_us = (self.rtt.smoothed_ns() / 1000).max(1);
        self.congestion.bytes() * (time_ns / 1000) / srtt_us
    }

    /// Expected time until something sent now is there, in ns: the RTT without a queue
    /// of our own, plus what is in flight over the rate, but no less than the age of
    /// the oldest packet that is not acknowledged. The rate is what the window lets
    /// through in a smoothed RTT.
    pub(crate) fn completion_ns(&self, now_ns: u64) -> u64 {
        // Below 2^32 bytes and 2^23 us: no overflow.
        let srtt_us = self.rtt.smoothed_ns() / 1000;
        let queue_us = self.sent.inflight() * srtt_us / self.congestion.bytes().max(1);
        let age = self
            .sent
            .oldest_ns()
            .map_or(0, |at| now_ns.saturating_sub(at));
        (self.rtt.recent_ns(now_ns) + 1000 * queue_us).max(age)
    }

    /// Whether others are better: a timeout without a sign of life since, or a probe
    /// that should have been answered.
    pub(crate) fn is_suspect(&self, now_ns: u64) -> bool {
        let overdue = || {
            let since_ns = self.health.unanswered_since();
            since_ns.is_some_and(|at_ns| now_ns > at_ns + self.rtt.spread_ns() + SLACK_NS)
        };
        self.sent.backoff() > 0 || overdue()
    }

    /// Chunks of `frame` leave, the first with the number [`Path::next_number`].
    pub(crate) fn on_sent(&mut self, now_ns: u64, frame: FrameRef, chunks: ChunkRun) {
        self.sent.push(now_ns, frame, chunks);
        let count = u64::from(chunks.count);
        let (len, last_len) = (u64::from(chunks.len), u64::from(chunks.last_len));
        self.stats.sent_chunks += count;
        self.stats.sent_bytes += len * (count - 1) + last_len;
        let (inflight, window) = (self.sent.inflight(), self.congestion.bytes());
        if inflight * 1000 > window * u64::from(self.stats.inflight_peak_permille) {
            self.stats.inflight_peak_permille =
                inflight.saturating_mul(1000).div_ceil(window) as u32;
        }
    }

    /// Data packets were taken that have `bytes` with their headers.
    pub(crate) fn count_received(&mut self, chunks: u64, bytes: u64) {
        self.stats.received_chunks += chunks;
        self.stats.received_bytes += bytes;
    }

    /// An acknowledgement of packets up to `largest`, which have been sent. What it
    /// acknowledges is appended to `acked`, what it shows to be missing to `lost`. `timed`:
    /// it gives the round-trip time.
    pub(crate) fn on_ack(
        &mut self,
        now_ns: u64,
        (largest, ack): (u64, &AckHeader),
        timed: bool,
        queue_target_ns: u64,
        (acked, lost): (&mut Vec<AckedChunks>, &mut Vec<LostChunk>),
    ) {
        let ahead = self.sent.ahead_of(largest);
        let progress = self.sent.acknowledge(now_ns, largest, &ack.bits, acked);
        let sample_ns = timed
            .then(|| round_trip_ns(now_ns, ack))
            .flatten()
            .filter(|_| progress.chunks > 0);
        if let Some(sample_ns) = sample_ns {
            self.rtt.sample(now_ns, sample_ns);
        }
        if progress.chunks > 0 {
            self.health.on_progress(now_ns);
            self.data.on_acked(now_ns);
            self.probe_timeout.clear();
            self.stats.acked_chunks += u64::from(progress.chunks);
            self.stats.spurious += u64::from(progress.spurious);
        }
        self.sent.lose_overtaken(now_ns, lost);
        self.stats.lost_by_gap += lost.len() as u64;
        self.congestion.on_ack(
            now_ns,
            &mut self.rtt,
            sample_ns,
            (progress.chunks, progress.bytes),
            ahead,
            queue_target_ns,
        );
    }

    /// Chunks were taken for lost.
    pub(crate) fn on_lost(&mut self, now_ns: u64, chunks: u32) {
        self.congestion.on_lost(chunks);
        self.data.on_lost(now_ns);
        if self.data.loses_all() {
            self.congestion.on_all_lost();
        }
    }

    /// Whether the path loses all data, while the peer takes those that come on `other`.
    pub(crate) fn loses_all_beside(&self, other: &Path) -> bool {
        self.data.loses_all_beside(&other.data)
    }

    /// The path, which has been stopped, does not come back for a while, whatever it answers.
    pub(crate) fn leave_alone(&mut self, now_ns: u64) {
        self.health.leave_alone(now_ns + self.data.leave_alone());
    }

    /// A probe leaves.
    pub(crate) fn on_probe_sent(&mut self, now_ns: u64) {
        let now_us = now_ns / 1000;
        let over = |sent_us: &u64| now_us.saturating_sub(*sent_us) > MAX_RTT_US.into();
        while self.probes_us.front().is_some_and(over) || self.probes_us.len() >= MAX_PROBES {
            self.probes_us.pop_front();
        }
        self.probes_us.push_back(now_us);
        self.stats.probes_sent += 1;
    }

    /// Whether a probe was sent `age_us` ago and has had no answer. This one is it: a reply that
    /// was recorded answers none, although its stamp comes round again after 71.6 minutes.
    pub(crate) fn take_answered(&mut self, now_ns: u64, age_us: u32) -> bool {
        let sent_us = (now_ns / 1000).checked_sub(age_us.into());
        let place = sent_us.and_then(|sent_us| self.probes_us.binary_search(&sent_us).ok());
        place
            .and_then(|place| self.probes_us.remove(place))
            .is_some()
    }

    /// A reply to a probe of `size` bytes that was sent `age_us` ago.
    pub(crate) fn on_reply(
        &mut self,
        now_ns: u64,
        age_us: u32,
        size: u16,
        config: &TransportConfig,
    ) -> ReplyOutcome {
        let age_ns = u64::from(age_us) * 1000;
        let outcome = self.health.on_reply(now_ns, age_us, size);
        if !outcome.fresh {
            return outcome;
        }
        if let Some(mtu) = outcome.mtu {
            self.congestion.set_mtu(mtu);
        }
        self.probe_timeout.clear();
        self.stats.replies_received += 1;
        let sample_ns = u64::from(age_us.max(1)) * 1000;
        match self.health.is_alive_since(now_ns.saturating_sub(age_ns)) {
            true => self.rtt.sample(now_ns, sample_ns),
            false => self.rtt.sample_of_unused(now_ns, sample_ns),
        }
        // The stamp is rounded: what left in the same microsecond came after the probe.
        let probe_ns = now_ns.saturating_sub(age_ns + 2000);
        self.sent.on_probe_answered(now_ns, probe_ns);
        if outcome.revived {
            // It carries traffic again: its window is learnt again.
            self.congestion = Congestion::new(self.mtu(), config.limits.path_window);
            self.data.begin();
        }
        outcome
    }

    /// A datagram of the peer has come, on any path. Whether this path still waits for one.
    pub(crate) fn on_peer_datagram(&mut self, now_ns: u64) -> bool {
        self.probe_timeout.on_peer_datagram(now_ns, &self.rtt);
        self.probe_timeout.awaits_peer()
    }

    /// Does what retransmission timers ask for, with [`Path::timeout_ns`]; appends what is
    /// lost to `lost`, which is empty.
    pub(crate) fn handle_timers(
        &mut self,
        now_ns: u64,
        (timeout_ns, rto): (u64, Rto),
        lost: &mut Vec<LostChunk>,
    ) -> TimerOutcome {
        let is_due = |deadline: Option<u64>| deadline.is_some_and(|at_ns| at_ns <= now_ns);
        if is_due(self.sent.gap_deadline(self.gap_wait_ns())) {
            self.sent.lose_gap(lost);
            self.stats.lost_by_gap += lost.len() as u64;
        }
        let by_gap = lost.len();
        let mut outcome = TimerOutcome::default();
        if is_due(self.sent.timeout(timeout_ns)) {
            self.stats.timeouts += 1;
            let backoff = self.sent.backoff();
            if self.probe_timeout.on_timeout(now_ns, rto, backoff) {
                self.sent.lose_oldest(lost);
                self.sent.back_off(now_ns);
                outcome.dead = self.sent.backoff() >= 2 && self.health.is_silent();
            } else {
                self.sent.back_off(now_ns);
                outcome.probe_others = true;
            }
        } else if is_due(self.probe_timeout.deadline(&self.rtt)) {
            self.probe_timeout.confirm();
            self.sent.lose_oldest(lost);
        } else {
            return outcome;
        }
        self.sent.tidy(now_ns);
        self.stats.lost_by_timeout += (lost.len() - by_gap) as u64;
        self.health.suspect(now_ns);
        outcome
    }

    /// The size of a probe that is due; see [`PathHealth::probe_due`].
    pub(crate) fn probe_due(
        &mut self,
        now_ns: u64,
        timeout_ns: u64,
        alone: bool,
    ) -> Result<Option<u16>, Unresponsive> {
        self.health.probe_due(now_ns, timeout_ns, alone)
    }

    /// Probes it at once, unless a probe is under way.
    pub(crate) fn request_probe(&mut self, now_ns: u64) {
        self.health.request_probe(now_ns);
    }

    /// The size of a probe for an instance that is not the peer's, to answer.
    pub(crate) fn challenge(&mut self, now_ns: u64) -> Option<u16> {
        self.health.challenge(now_ns)
    }

    /// Takes the path out of use; appends what was in flight to `lost`. Whether it was alive.
    pub(crate) fn stop(&mut self, now_ns: u64, lost: &mut Vec<LostChunk>) -> bool {
        let was_alive = self.is_alive();
        self.become_state(now_ns, PathState::Dead);
        self.sent.lose_all(lost);
        self.stats.lost_by_failure += lost.len() as u64;
        self.stats.failures += u64::from(was_alive);
        was_alive
    }

    /// The retransmission timeout, without backing off.
    pub(crate) fn timeout_ns(&self, config: &TransportConfig) -> u64 {
        // A full window stands in a queue of the target's length, and so may the
        // acknowledgement on its way back.
        let queue_ns =
            2 * config.queue_target_ns * self.sent.inflight() / self.congestion.bytes().max(1);
        self.rtt
            .timeout_ns(config.rto, config.ack_delay_ns, queue_ns)
    }

    /// How long a gap that too few packets have overtaken is waited for.
    fn gap_wait_ns(&self) -> u64 {
        (self.rtt.smoothed_ns() / 4).max(200_000)
    }

    /// When something of this path is due, acknowledgements included.
    pub(crate) fn deadline(&self, config: &TransportConfig) -> Option<u64> {
        [
            self.acks.deadline(config),
            self.sent.timeout(self.timeout_ns(config)),
            self.sent.gap_deadline(self.gap_wait_ns()),
            self.probe_timeout.deadline(&self.rtt),
            Some(self.health.deadline()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(crate) fn metrics(&self, config: &TransportConfig) -> PathMetrics {
        let known = |value| if self.rtt.is_known() { value } else { 0 };
        PathMetrics {
            state: self.state(),
            mtu: self.mtu(),
            srtt_ns: known(self.rtt.smoothed_ns()),
            min_rtt_ns: known(self.rtt.lowest_ns()),
            rtt_var_ns: known(self.rtt.deviation_ns()),
            rto_ns: self.timeout_ns(config),
            window_bytes: self.congestion.bytes(),
            inflight_bytes: self.sent.inflight(),
            reorder_threshold: self.sent.threshold(),
            ..self.stats
        }
    }
}

/// The time between sending the packet that `ack` echoes and now, without the time
/// that the peer waited.
fn round_trip_ns(now_ns: u64, ack: &AckHeader) -> Option<u64> {
    let since_us = stamp_us(now_ns).wrapping_sub(ack.echo_us);
    let rtt_us = since_us.checked_sub(ack.delay_us)?;
    (rtt_us <= MAX_RTT_US).then(|| u64::from(rtt_us.max(1)) * 1000)
}
