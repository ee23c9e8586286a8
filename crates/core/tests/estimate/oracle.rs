// SPDX-License-Identifier: Apache-2.0
//! The window chain once more, slow and obvious: lists, whole nanoseconds, one
//! struct per burst, nothing packed. Written from the method's description, not
//! from the C, and shares nothing with it.

mod datagrams;

use std::collections::BTreeMap;

use causeway_core::estimate::Packet;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// How far behind the highest sequence number a hole is remembered, bytes.
const HOLE_MAX: u32 = 1 << 16;
/// Requests that a burst is counted with at most.
const BURST_MAX: usize = 255;

#[derive(Clone, Debug)]
struct Burst {
    at: u64,
    requests: Vec<u64>,
    strays: usize,
    idle: u64,
    /// Mean time of the client's ACKs before it.
    acks: Option<u64>,
    /// Bytes that no request before it had acknowledged.
    acked: u32,
    /// Silent ACKs before it, where they are trusted.
    silent: u64,
}

impl Burst {
    fn n(&self) -> usize {
        self.requests.len()
    }

    /// Mean time of its requests after its start.
    fn offset(&self) -> u64 {
        self.requests.iter().map(|t| t - self.at).sum::<u64>() / self.n() as u64
    }
}

/// Sums in half samples by time.
pub(crate) type Committed = Vec<(u64, u64, u64)>;

#[derive(Default)]
pub(crate) struct Oracle {
    outstanding: Vec<u64>,
    sizes: BTreeMap<usize, u64>,
    closed: u64,
    window: usize,
    open: Option<Burst>,
    held: Option<Burst>,
    /// Share of held bursts before whole windows that acknowledged few bytes.
    habit: Option<f64>,
    latency: u64,
    handshake: u64,
    syn: Option<u64>,
    last: Option<u64>,
    silence_since: Option<u64>,
    acks: Vec<(u64, u64)>,
    ack_max: Option<u32>,
    request_ack: Option<u32>,
    seq_max: Option<u32>,
    holes: Vec<(u32, u32)>,
    clock_min: Option<i128>,
    longest: u32,
    last_full: bool,
    /// Payload with one request, and what one more adds.
    unit: Option<f64>,
    step: Option<f64>,
    learnt: u32,
    /// Recent pauses that were no waits for a timer, 0 to 3.
    pauses: u32,
    /// Those that may have been, 0 to 7.
    resends: u32,
    /// The next sample is a bound, and says nothing of what is typical.
    bound: bool,
    /// A timestamp was echoed.
    dated: bool,
    /// TLS 1.3 was opened, HTTP/2 in it, and that is known by its SETTINGS.
    tls: bool,
    http2: bool,
    settings: bool,
    /// HTTP/2 without TLS, as its SETTINGS or PINGs show; that it sends PINGs.
    plain: bool,
    pings: bool,
    /// Parts of a handshake that its end has not followed yet.
    parts: u32,
    /// The client sets PSH at the end of what it writes.
    pushes: bool,
    /// The last packet belongs to a request of several full ones.
    last_long: bool,
    /// The client has sent a request as soon as it could.
    prompt: bool,
    /// The client has sent one more than a tick later than that.
    tardy: bool,
    /// Answers in a row that were as short as an interim one; 2: more than that.
    interim: u32,
    /// Bytes that the last burst of one request acknowledged, in eighths of an octave.
    lone: f64,
    /// Bursts of several in a row that acknowledged as much, 0 to 3.
    pairs: u32,
    /// Mean time of the last silent ACKs, and how many they are.
    silent: (u64, u64),
    /// Since the last root: silent ACKs, and bursts.
    since_root: (u64, u64),
    /// How often the silent ACKs of a page were recently few.
    trust: Option<u64>,
    /// Largest of the first datagrams with requests.
    largest: u32,
    lone_acks: bool,
    /// Smallest datagram that was taken for an ACK.
    ack_size: Option<u32>,
    pub committed: Committed,
}

fn after(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < 1 << 31
}

fn eighths(bytes: u32) -> f64 {
    (8.0 * f64::from(bytes.max(1)).log2()).round()
}

impl Oracle {
    fn age(&self, t: u64, sent: u64) -> u64 {
        t.saturating_sub(sent)
    }

    fn wide(&self) -> bool {
        self.handshake > MS
    }

    fn track(&mut self, v: u64) {
        let step = self.latency / 16;
        match self.latency {
            0 => self.latency = v,
            l if v > l => self.latency += step,
            _ => self.latency -= step,
        }
    }

    fn commit(&mut self, when: u64, latencies: &[u64]) {
        if latencies.is_empty() {
            return;
        }
        let (sum, n) = (latencies.iter().sum::<u64>(), latencies.len() as u64);
        if !std::mem::take(&mut self.bound) || self.latency > 0 {
            self.track(sum / n);
        }
        let each = latencies.iter().map(|latency| (when, 2 * latency, 2));
        self.committed.extend(each);
    }

    fn count(&mut self, n: usize) {
        *self.sizes.entry(n.clamp(1, 16)).or_default() += 1;
    }

    fn infer(&mut self, tcp: bool) {
        let total: u64 = self.sizes.values().sum();
        let few = if tcp { 1 } else { (total / 2).clamp(1, 2) };
        let need = few.max(total / 64);
        let reached = |w: usize| self.sizes.range(w..).map(|(_, c)| c).sum::<u64>();
        let of = |n: usize| self.sizes.get(&n).copied().unwrap_or(0);
        // Two packets may be one request.
        let shown = |w: usize| reached(w) >= if tcp && w == 2 { need.max(2) } else { need };
        let largest = (1..=16).rev().find(|&w| shown(w)).unwrap_or(1);
        let peak = |&n: &usize| of(n) > 8 * reached(n + 1) && of(n) > of(n - 1);
        self.window = (2..largest).rev().find(peak).unwrap_or(largest);
        if total > 250 {
            self.sizes.values_mut().for_each(|c| *c /= 2);
        }
    }

    fn send(&mut self, b: &Burst) {
        let mean = b.at + b.offset();
        self.outstanding.extend(vec![mean; b.n()]);
        let surplus = self.outstanding.len().saturating_sub(16);
        self.outstanding.drain(..surplus);
    }

    /// Everything had completed before b.
    fn root(&mut self, b: &Burst, tcp: bool) {
        let done = b.at - b.idle;
        let Some(newest) = self.outstanding.pop() else {
            return;
        };
        let latency = self.age(done, newest);
        // The ACK of a single segment may be late, and nothing else shows it.
        let alone = eighths(b.acked) <= 84.0 && b.idle > 0;
        let later = latency.saturating_sub(self.latency);
        if tcp && !self.dated && alone && self.closed > 1 && (36 * MS..=64 * MS).contains(&later) {
            self.bound = true;
        }
        self.commit(done, &[latency]);
        let others = std::mem::take(&mut self.outstanding);
        let trusts = !tcp && self.trusts_silence();
        let m = others.len() as i128;
        if let Some(acks) = b.acks.filter(|_| m > 0 && !self.wide()) {
            let (acks, end) = (i128::from(acks.min(done)), i128::from(done));
            // The mean of all ACKs is one of the newest's too.
            let completions = if trusts {
                m * acks
            } else {
                (m + 1) * acks - end
            };
            let mut sum = completions - others.iter().map(|&t| i128::from(t)).sum::<i128>();
            if !tcp && !trusts && m >= 8 {
                sum = sum.min(m * i128::from(latency) * 15 / 16);
            }
            if sum > 0 && (trusts || 5 * sum <= 6 * m * i128::from(latency)) {
                let weight = if trusts { 2 } else { 1 };
                self.committed
                    .push((done, weight * sum as u64, weight * m as u64));
                self.track((sum / m) as u64);
            }
        }
        if !tcp {
            self.judge_silence();
        }
    }

    /// Whether a pause was the wait for the timer that sends a lost request again.
    fn was_lost(&mut self, idle: u64) -> bool {
        if idle < 50 * MS {
            return false;
        }
        let trip = self.latency.min(self.handshake + 40 * MS);
        if !(200 * MS..=212 * MS + 2 * trip).contains(&idle) {
            self.pauses = (self.pauses + 2).min(3);
            return false;
        }
        let lost = self.pauses < 2 && self.resends < 4 && self.closed >= 8;
        self.pauses = self.pauses.saturating_sub(1);
        self.resends = (self.resends + 2).min(7);
        lost
    }

    /// The oldest request was answered sooner than the handshake, though not much, and
    /// no burst speaks for as many as `n` being out.
    fn handshake_was_late(&self, t: u64, n: usize) -> bool {
        let shown = self.sizes.range(n.min(16)..).any(|(_, &count)| count > 0);
        !self.tls && 2 * self.age(t, self.outstanding[0]) >= self.handshake && !shown
    }

    fn normal(&mut self, b: &Burst) {
        let (t, n) = (b.at, b.n());
        // The second burst: a response to the first one came, so the path is no longer.
        if let (2, false, Some(&oldest)) = (self.closed, self.tls, self.outstanding.first()) {
            self.handshake = self.handshake.min(self.age(t, oldest));
        }
        if self.wide() && self.latency > 0 && 2 * self.handshake > self.latency {
            while let Some(&oldest) = self.outstanding.first() {
                if 10 * self.age(t, oldest) <= 10 * self.latency + 8 * self.handshake {
                    break;
                }
                self.outstanding.remove(0);
                self.latency += self.latency / 16;
            }
        }
        let open = self.outstanding.len();
        let mut done = (open + n).saturating_sub(self.window).max(1);
        if self.wide() && open > 0 {
            let old = |sent: &&u64| 20 * self.age(t, **sent) >= 19 * self.handshake;
            let k = self.outstanding.iter().take(done).take_while(old).count();
            if k == 0 && self.handshake_was_late(t, open + n) {
                self.handshake = self.handshake.min(self.age(t, self.outstanding[0]));
                done = 1;
            } else if k < done {
                done = k;
                if open + n - k > self.window {
                    self.count(open + n - k);
                }
                // Again and again: the handshake was longer than the path.
                if self.closed >= 16 && 2 * self.handshake < self.latency {
                    self.handshake -= self.handshake / 32;
                }
            }
        }
        let offset = if done >= n { b.offset() } else { 0 };
        let finished: Vec<u64> = self.outstanding.drain(..done.min(open)).collect();
        let latencies: Vec<u64> = finished
            .iter()
            .map(|&sent| t.saturating_sub(sent) + offset)
            .collect();
        self.commit(t, &latencies);
        self.send(b);
        if !self.wide() {
            let surplus = self.outstanding.len().saturating_sub(self.window);
            self.outstanding.drain(..surplus);
        }
    }

    /// Whether the held burst turned out to be the root of a page.
    fn was_root(&mut self, h: &Burst, next: &Burst, tcp: bool) -> bool {
        let Some(&newest) = self.outstanding.last() else {
            return false;
        };
        let (before, later) = (self.age(h.at, newest), next.at - h.at);
        let typical = if self.latency > 0 {
            self.latency
        } else {
            later
        };
        let n = next.n();
        if n < 2 || 20 * before.min(later) < 19 * self.handshake {
            return false;
        }
        let times = if n >= self.window {
            2 * before >= later.min(typical)
        } else if n < if self.wide() { 2 } else { 3 } {
            false
        } else if tcp {
            10 * before.min(later) >= 7 * typical
        } else {
            2 * before.min(later) >= typical
        };
        if !tcp {
            return times || n >= self.window && self.window > 2 && h.silent >= 2;
        }
        if self.wide() {
            return times;
        }
        let octaves = |part: u64, of: u64| (part.max(1) as f64 / of.max(1) as f64).log2();
        let bytes = octaves(h.acked.into(), next.acked.into());
        let lead = h.acks.map(|acks| h.at.saturating_sub(acks));
        if lead.is_some_and(|lead| lead > (48 * US).max(before / 32)) {
            return times || n >= self.window && bytes > 2.0;
        }
        if !times {
            return false;
        }
        let habit = self.habit.unwrap_or(110.0 / 256.0);
        let weight = if self.window == 2 { 2000.0 } else { 1400.0 };
        // In units of the logarithm of the odds.
        let odds = 0.5 * bytes
            + 21.0 / 16.0 * octaves(before, typical)
            + 5.0 / 16.0 * octaves(later, typical)
            + 560.0 / 128.0
            - weight / 128.0 * (habit - 50.0 / 256.0).max(0.0);
        if n >= self.window {
            let few = if bytes < -1.0 { 15.0 / 16.0 } else { 0.0 };
            self.habit = Some(habit * 15.0 / 16.0 + few / 16.0);
        }
        odds >= 0.0
    }

    fn close(&mut self, tcp: bool, last: bool) {
        let Some(mut b) = self.open.take() else {
            return;
        };
        let mut n = b.n().saturating_sub(b.strays.min(3));
        if tcp && self.seems_one(&b) {
            if b.n() == 2 && self.window <= 2 {
                n = 1;
            }
            if self.pairs == 3 {
                n = 1;
                b.requests = vec![b.at];
                self.sizes.retain(|size, _| *size == 1);
                self.window = 1;
                let parts = self.outstanding.len().saturating_sub(1);
                self.outstanding.drain(..parts);
            }
        }
        if b.n() == 1 {
            self.lone = eighths(b.acked);
        }
        self.count(n);
        self.closed += 1;
        if self.closed.is_multiple_of(8) {
            self.resends = self.resends.saturating_sub(1);
        }
        self.since_root.1 += 1;
        if self.closed < 16 || self.closed.is_multiple_of(8) || n > self.window {
            self.infer(tcp);
        }
        if let Some(h) = self.held.take() {
            if self.was_root(&h, &b, tcp) {
                self.root(&h, tcp);
                self.commit(b.at, &[b.at - h.at]);
                self.send(&b);
                return;
            }
            self.normal(&h);
        }
        if b.idle > 0 && (last || !self.was_held_up(&b, tcp)) {
            self.root(&b, tcp);
            self.send(&b);
            self.bound |= b.idle == US;
        } else if b.n() == 1 && self.window > 1 && self.outstanding.len() > 1 && !last {
            self.held = Some(b);
        } else {
            self.normal(&b);
        }
    }

    /// Whether the client sat on one response while others were still to come.
    fn was_held_up(&self, b: &Burst, tcp: bool) -> bool {
        let done = b.at - b.idle;
        let several = b.n() == 1 && self.window > 1 && self.outstanding.len() > 1;
        let longest = self.outstanding.first().map(|&sent| self.age(done, sent));
        tcp && several && b.idle > US && Some(2 * b.idle) < longest.map(|age| age.max(self.latency))
    }

    /// Whether several packets are one request: they acknowledge as much as the last request alone.
    fn seems_one(&mut self, b: &Burst) -> bool {
        let eighths = eighths(b.acked);
        if b.n() < 2 || eighths == 0.0 || self.lone == 0.0 {
            return false;
        }
        let alike = (eighths - self.lone).abs() <= 1.0;
        self.pairs = match alike {
            true => (self.pairs + 1).min(3),
            false => self.pairs.saturating_sub(1),
        };
        alike
    }

    /// Whether a packet that answers something may be of the second flight of a handshake of TLS.
    fn is_behind_hello(&self) -> bool {
        let one = self.open.as_ref().is_some_and(|open| open.n() == 1);
        // Behind a request for TLS, whose answer is one byte.
        let behind = self.open.as_ref().is_some_and(|open| open.acked == 1);
        let begins = self.closed == 0 || self.closed == 1 && behind;
        !self.tls && begins && one && self.longest >= 200
    }

    /// Whether it ends that flight, by its size.
    fn ends_handshake(&self, p: &Packet) -> bool {
        let change_cipher_spec = 6;
        // A record's head, type and tag (TLS 1.3), or head, nonce and tag (1.2).
        let finished = [32, 48].map(|hash| 5 + 4 + hash + 1 + 16);
        let finished_12 = [5 + 8 + 16 + 16, 5 + 16 + 16];
        let key = [0, 5 + 4 + 1 + 32, 5 + 4 + 1 + 65];
        let sizes_13 = finished.iter().flat_map(|f| [*f, f + change_cipher_spec]);
        let sizes_12 = finished_12
            .iter()
            .flat_map(|f| key.map(|key| key + change_cipher_spec + f));
        // One that Java pads, and those that come behind a ChangeCipherSpec of their own.
        let apart = finished_12.into_iter().chain([90]);
        let mut sizes = sizes_13.chain(sizes_12).chain(apart);
        self.is_behind_hello() && sizes.any(|size| size == p.payload_len)
    }

    /// Whether it is a part of that flight: the key, or a ChangeCipherSpec.
    fn goes_on_handshake(&self, p: &Packet) -> bool {
        let size = [6, 5 + 4 + 1 + 32, 5 + 4 + 1 + 65].contains(&p.payload_len);
        size && self.parts < 2 && self.is_behind_hello()
    }

    /// Whether a record of TLS 1.3, 22 bytes and its contents, is a frame of HTTP/2 that
    /// asks for nothing.
    fn is_control(&mut self, p: &Packet) -> bool {
        let answer = self.request_ack.map_or(0, |ack| p.ack.wrapping_sub(ack));
        if !self.tls {
            // SETTINGS' acknowledgement, behind the server's SETTINGS: 9 bytes and 6 for each of
            // them, with its own acknowledgement or a WINDOW_UPDATE beside them, or without.
            let behind = [0, 9, 13, 22].into_iter().any(|beside| {
                let frame = answer.checked_sub(beside);
                frame.is_some_and(|frame| frame >= 9 && frame % 6 == 3)
            });
            let settings = answer == 0 || answer <= 70 && behind;
            if p.payload_len == 9 && self.closed < 2 && self.longest >= 73 && settings {
                self.plain = true;
                return true;
            }
            // PING and its answer are as long, and there are packets far longer.
            let beside_longer = self.longest >= 200;
            // At first behind SETTINGS' acknowledgement and two WINDOW_UPDATEs.
            let longest = if self.closed < 4 { 17 + 9 + 26 } else { 17 };
            self.pings |= beside_longer && p.payload_len == 17 && (17..=longest).contains(&answer);
            // One WINDOW_UPDATE, or two.
            self.plain |= self.pings;
            let update = matches!(p.payload_len, 13 | 26);
            let much = answer == 0 || answer >= 4096;
            return self.pings && p.payload_len == 17
                || self.plain && update && (self.pings || much);
        }
        let settings = p.payload_len == 22 + 9;
        if settings && self.closed < 4 {
            (self.http2, self.settings) = (true, true);
        }
        // Shorter than any request of HTTP/1.1, behind one that may hold the preface.
        self.http2 |= p.payload_len < 22 + 27 && self.longest >= 100;
        let updates = matches!(p.payload_len, 35 | 48) && (self.settings || answer >= 4096);
        self.http2 && (settings || updates)
    }

    /// What was outstanding was a handshake of TLS, or the connection is over.
    fn begin_requests(&mut self) {
        self.open = None;
        self.parts = 0;
        self.outstanding.clear();
        (self.last, self.seq_max, self.request_ack) = (None, None, None);
        (self.silence_since, self.last_full, self.bound) = (None, false, false);
        self.holes.clear();
    }

    /// A client that has never been prompt pauses before each request.
    fn never_prompt(&self) -> bool {
        self.tardy && !self.prompt && self.window == 1 && self.closed >= 16
    }

    /// Whether the server has asked for the body of a request (`100 Continue`): it answers as
    /// many bytes as `100 Continue` has, and not twice in a row.
    fn goes_on(&mut self, advances: bool, acked_since: u32) -> bool {
        let bytes = 25 + if self.tls { 22 } else { 0 };
        if !advances || self.interim == 2 || self.plain {
            return false;
        }
        if acked_since != bytes || self.longest < 100 {
            self.interim = 0;
            return false;
        }
        self.interim += 1;
        let one = self.open.as_ref().is_some_and(|open| open.n() == 1);
        self.interim == 1 && self.window <= 1 && one
    }

    /// How long the client had been idle when it sent a packet `gap` after the last one. `None`:
    /// its echo is of before that one.
    fn idle(
        &self,
        t: u64,
        gap: u64,
        acked: Option<u32>,
        lag: Option<i128>,
        ends: bool,
    ) -> Option<u64> {
        let us = i128::from(US);
        let (least, slack) = match self.window {
            1 if self.never_prompt() => (250 * us, 250 * us),
            1 => (3000 * us, 500 * us),
            _ => (if self.window > 1 { 6000 } else { 3000 } * us, 500 * us),
        };
        let sat = lag.map_or(0, |lag| (lag - slack).max(0) as u64);
        // An echo of before the first response may be that of the handshake of TLS. Without
        // TLS that response is acknowledged at once.
        let first = self.closed == 0 && self.tls;
        let behind = lag.is_some_and(|lag| {
            let lag = lag - slack;
            lag + i128::from(MS) < i128::from(gap) && lag < 5 * i128::from(MS)
        });
        let dated = if first {
            behind
        } else {
            self.closed > 0 || !ends
        };
        let lag = lag.filter(|_| dated);
        let sat = if dated { sat } else { 0 };
        let idle = match (acked, self.silence_since) {
            (Some(acked), _) if lag.is_some_and(|lag| lag > least) && acked <= 1460 => sat,
            (None, Some(since))
                if ends || t - since > 2 * MS || lag.is_some_and(|lag| lag > 36_000_000) =>
            {
                let silent = t - since;
                let surely = if first && ends { 0 } else { MS };
                if sat > silent + surely && sat <= gap {
                    sat
                } else {
                    silent
                }
            }
            _ => 0,
        };
        (idle <= gap).then_some(idle)
    }

    /// The client closes the connection, which dates the last response.
    fn end(&mut self, p: &Packet, lag: Option<i128>) {
        let (Some(last), true) = (self.last, self.open.is_some()) else {
            return;
        };
        let gap = p.t_ns - last;
        let more = self.ack_max.filter(|&max| after(p.ack, max));
        let acked = more
            .map(|max| p.ack.wrapping_sub(max))
            .filter(|&acked| p.tcp_flags & Packet::ACK != 0 && acked > 1);
        let known = gap < 120_000 * MS && (acked.is_some() || self.silence_since.is_some());
        let idle = self.idle(p.t_ns, gap, acked, lag, true).unwrap_or(0);
        let root = Burst {
            at: p.t_ns,
            requests: Vec::new(),
            strays: 0,
            idle,
            acks: self.mean_ack(),
            acked: self.request_ack.map_or(0, |ack| p.ack.wrapping_sub(ack)),
            silent: 0,
        };
        self.close(true, true);
        if known {
            self.root(&root, true);
        }
        self.begin_requests();
    }

    /// Mean time of the ACKs since the open burst began, by bytes.
    fn mean_ack(&self) -> Option<u64> {
        let weight: u64 = self.acks.iter().map(|(_, w)| w).sum();
        let base = self.acks.first().filter(|_| weight > 0)?.0;
        let sum: u128 = self
            .acks
            .iter()
            .map(|(t, w)| u128::from(t - base) * u128::from(*w))
            .sum();
        Some(base + (sum / u128::from(weight)) as u64)
    }

    /// Time that the client sat on the data whose timestamp it echoes.
    fn lag(&mut self, p: &Packet) -> Option<i128> {
        let offset = i128::from(p.t_ns) - i128::from(p.tsecr) * i128::from(MS);
        let min = self.clock_min.map_or(offset, |min| (min + 10).min(offset));
        self.clock_min = Some(min);
        Some(offset - min)
    }

    /// 0: new, 1: fills a hole, 2: seen before.
    fn sequence(&mut self, p: &Packet) -> u8 {
        let end = p.seq.wrapping_add(p.payload_len);
        let Some(max) = self.seq_max else {
            self.seq_max = Some(end);
            return 0;
        };
        let mut order = 0;
        if after(max, p.seq) {
            let inside = |&(a, b): &(u32, u32)| p.seq.wrapping_sub(a) < b.wrapping_sub(a);
            let Some(i) = self.holes.iter().position(inside) else {
                return 2;
            };
            let (a, b) = self.holes[i];
            if p.seq != a {
                self.holes[i].1 = p.seq;
            } else if p.payload_len >= b.wrapping_sub(a) {
                self.holes.remove(i);
            } else {
                self.holes[i].0 = end;
            }
            order = 1;
        } else if p.seq != max {
            self.holes.push((max, p.seq));
            if self.holes.len() > 2 {
                self.holes.remove(0);
            }
        }
        let max = if after(end, max) { end } else { max };
        self.seq_max = Some(max);
        self.holes
            .retain(|&(a, b)| max.wrapping_sub(a) < HOLE_MAX && b.wrapping_sub(a) < HOLE_MAX);
        order
    }

    fn pure_ack(&mut self, p: &Packet, tcp: bool) {
        let mut weight = 1;
        if tcp {
            let Some(max) = self.ack_max else {
                self.ack_max = Some(p.ack);
                return;
            };
            if !after(p.ack, max) {
                return;
            }
            weight = u64::from(p.ack.wrapping_sub(max));
            if weight == 1 && self.silence_since.is_some() {
                // The server's FIN.
                return;
            }
            self.ack_max = Some(p.ack);
            let since = self.silence_since.map(|since| p.t_ns - since);
            let is_late = since.is_some_and(|since| (36 * MS..=64 * MS).contains(&since));
            if !self.dated && weight <= 1460 && is_late {
                // Delayed: what it acknowledges may have come with what the one before did.
                return;
            }
        } else {
            let size = self.ack_size.unwrap_or(u32::MAX);
            self.ack_size = Some(size.min(p.payload_len));
        }
        self.lone_acks = true;
        if self.last.is_some() {
            if tcp || !self.trusts_silence() {
                self.acks.push((p.t_ns, weight));
            }
            self.silence_since = Some(p.t_ns);
        }
    }

    pub(crate) fn packet(&mut self, p: &Packet) {
        let tcp = p.proto == Packet::TCP;
        let t = p.t_ns;
        if tcp && p.tcp_flags & Packet::SYN != 0 {
            self.syn = Some(t);
            return;
        }
        if let Some(syn) = self.syn.take_if(|_| p.tcp_flags & Packet::ACK != 0) {
            self.handshake = t - syn;
        }
        let lag = if tcp && p.has_ts { self.lag(p) } else { None };
        self.dated |= lag.is_some();
        if !tcp {
            self.hear_silence(t);
        }
        let alert = self.tls && p.payload_len == 22 + 2;
        if tcp && (alert || p.tcp_flags & (Packet::FIN | Packet::RST) != 0) {
            return self.end(p, lag);
        }
        if tcp && p.payload_len == 0 || !tcp && p.payload_len < 50 {
            self.pure_ack(p, tcp);
        } else {
            self.data(p, tcp, lag);
        }
    }

    fn data(&mut self, p: &Packet, tcp: bool, lag: Option<i128>) {
        let t = p.t_ns;
        let gap = self.last.map_or(0, |last| t - last);
        let (mut late, mut advances, mut new_ack) = (false, false, false);
        let mut missing = false;
        let (mut acked, mut acked_since) = (0, 0);
        if tcp {
            let next = self.seq_max;
            let order = self.sequence(p);
            if order == 2 {
                return;
            }
            missing = order == 0 && next.is_some_and(|next| next != p.seq);
            if self.is_control(p) {
                return self.pure_ack(p, true);
            }
            late = order == 1;
            advances = self.request_ack.is_none_or(|ack| after(p.ack, ack));
            new_ack = self.ack_max.is_none_or(|ack| after(p.ack, ack));
            if new_ack {
                if let Some(max) = self.ack_max.filter(|_| self.last.is_some()) {
                    acked = p.ack.wrapping_sub(max);
                    self.acks.push((t, u64::from(acked)));
                }
                self.ack_max = Some(p.ack);
            }
            if advances && self.goes_on_handshake(p) {
                self.parts += 1;
                return;
            }
            if advances && self.ends_handshake(p) {
                self.longest = 0;
                let answered = self.silence_since.unwrap_or(t) - (t - gap);
                self.handshake = self.handshake.min(answered);
                self.tls = self.closed == 0 && matches!(p.payload_len, 58 | 64 | 74 | 80 | 90);
                return self.begin_requests();
            }
            if advances {
                let before = self.request_ack.replace(p.ack);
                acked_since = before.map_or(0, |before| p.ack.wrapping_sub(before));
            }
        } else {
            advances |= gap > (self.latency / 10).clamp(20 * US, 200 * US);
        }
        let pushes = tcp && p.tcp_flags & Packet::PSH != 0;
        if pushes && !self.pushes {
            self.pushes = true;
            self.last_long = self.last.is_some() && !advances;
        }
        let more = tcp && self.pushes && !pushes;
        let full = more
            || if p.ip_len > 1500 {
                // Several segments in one buffer, or a jumbo frame.
                let header = p.ip_len - p.payload_len;
                let fills = |mtu: u32| p.payload_len.is_multiple_of(mtu - header);
                matches!(p.ip_len, 8896 | 9000 | 9001)
                    || fills(1500)
                    || self.longest >= 1280 && fills(self.longest)
            } else {
                self.longest = self.longest.max(p.ip_len);
                p.ip_len >= 1280 && p.ip_len == self.longest
            };
        let within = if tcp && !advances { 120_000 * MS } else { MS };
        let was_full = std::mem::replace(&mut self.last_full, full);
        let was_long = std::mem::replace(&mut self.last_long, false) && !advances;
        let mut rest = was_full && gap < within || was_long;
        if tcp {
            self.last_long = !advances && self.window <= 2 && (was_long || full && was_full);
            if let Some(open) = self.open.as_mut().filter(|_| self.last_long) {
                open.requests.truncate(1);
                open.requests[0] = open.at;
            }
            if self.last.is_some() && self.goes_on(advances, acked_since) {
                rest = true;
                self.acks.clear();
            }
        }
        let k = if tcp { 1 } else { self.requests(p, full) };
        let silence = self.silence_since.take();
        let before = self.last.replace(t);
        if rest {
            return;
        }
        // A client that acknowledges alone does so within 25 ms of a response.
        let idle = match (self.lone_acks, silence) {
            (false, _) => gap >= 200 * MS,
            (true, since) => since.is_some_and(|since| t - since >= 30 * MS),
        };
        let unseen = missing && advances && self.window == 1 || advances && self.parts > 0;
        self.parts = 0;
        let mut fresh = before.is_none() || !tcp && idle || gap >= 120_000 * MS || unseen;
        let mut idle = 0;
        if let (true, false, Some(before), Some(since)) = (fresh, tcp, before, silence)
            && gap < 120_000 * MS
            && self.trusts_silence()
            && since - before < 4 * self.latency
        {
            fresh = false;
            idle = t - since;
        }
        let joins = !fresh && !advances && idle == 0;
        if let Some(open) = self.open.as_mut().filter(|_| joins) {
            open.requests.extend(vec![t; k.min(BURST_MAX - open.n())]);
            if late && Some(p.ack) != self.request_ack {
                open.strays += k;
            }
            return;
        }
        if tcp && !late && !fresh {
            self.silence_since = silence;
            let found = self.idle(t, gap, new_ack.then_some(acked), lag, false);
            let learns = found.is_some() && (4..16).contains(&self.closed);
            idle = found.unwrap_or(0);
            self.silence_since = None;
            if let Some(lag) = lag.filter(|_| learns) {
                let lag_us = lag / i128::from(US);
                self.prompt |= lag_us < 256 || silence.is_some();
                self.tardy |= lag_us > 1280;
            }
        }
        let acks = if !tcp && self.trusts_silence() {
            Some(self.silent.0).filter(|_| self.silent.1 > 0 && !fresh)
        } else {
            self.mean_ack().filter(|_| !fresh)
        };
        // A lost request is as old as the pause, and nothing else was outstanding.
        let lost = tcp && !fresh && self.was_lost(idle);
        let at = if lost { t - idle + US } else { t };
        if lost {
            idle = US;
        }
        self.close(tcp, fresh);
        if fresh {
            self.bound = false;
            self.outstanding.clear();
            if before.is_some() && !tcp {
                self.judge_silence();
            }
        }
        let mut silent = 0;
        if !tcp && self.trusts_silence() && self.silent.1 > 0 {
            silent = self.silent.1;
            self.add_silent(t);
        }
        self.open = Some(Burst {
            at,
            requests: vec![at; k],
            strays: 0,
            idle,
            acks,
            acked: acked_since,
            silent,
        });
        self.acks.clear();
    }

    pub(crate) fn finish(&mut self, tcp: bool) {
        self.close(tcp, true);
    }
}
