// SPDX-License-Identifier: Apache-2.0

//! One direction of a path: a queue in front of a line, with faults.

use rand::Rng;
use rand_pcg::Pcg64Mcg;

use causeway_bifrost::wire::{CommonHeader, PacketKind};

/// What a link does to datagrams. Probabilities are of one datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkSettings {
    /// Bytes a second.
    pub rate: u64,
    /// Time on the line.
    pub delay_ns: u64,
    /// Added to it, evenly spread; datagrams overtake each other only by this.
    pub jitter_ns: u64,
    /// Bytes that wait in front of the line, at most.
    pub queue: u64,
    /// Lost at random.
    pub loss: f64,
    /// A burst of losses begins; it ends after `burst_len` on average.
    pub burst: f64,
    /// See `burst`.
    pub burst_len: f64,
    /// Acknowledgements lost besides.
    pub ack_loss: f64,
    /// Arrives twice.
    pub duplicate: f64,
    /// Arrives this much later than it should, past all waiting.
    pub straggler: f64,
    /// See `straggler`.
    pub straggler_ns: u64,
    /// Nothing passes.
    pub down: bool,
    /// Larger IP packets do not pass.
    pub mtu: u16,
}

impl Default for LinkSettings {
    fn default() -> Self {
        LinkSettings {
            rate: 125_000_000,
            delay_ns: 50_000,
            jitter_ns: 0,
            queue: 1 << 20,
            loss: 0.0,
            burst: 0.0,
            burst_len: 4.0,
            ack_loss: 0.0,
            duplicate: 0.0,
            straggler: 0.0,
            straggler_ns: 0,
            down: false,
            mtu: 1500,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    pub settings: LinkSettings,
    free_ns: u64,
    latest_ns: u64,
    bursting: bool,
    pub dropped: u64,
}

impl Link {
    pub(super) fn new(settings: LinkSettings) -> Link {
        Link {
            settings,
            free_ns: 0,
            latest_ns: 0,
            bursting: false,
            dropped: 0,
        }
    }

    /// When the datagram arrives, and when it arrives again.
    pub(super) fn carry(
        &mut self,
        now_ns: u64,
        datagram: &[u8],
        rng: &mut Pcg64Mcg,
    ) -> [Option<u64>; 2] {
        let arrivals = self.arrivals(now_ns, datagram, rng);
        self.dropped += u64::from(arrivals[0].is_none());
        arrivals
    }

    fn arrivals(&mut self, now_ns: u64, datagram: &[u8], rng: &mut Pcg64Mcg) -> [Option<u64>; 2] {
        let set = &self.settings;
        let len = datagram.len() as u64 + 28;
        let waiting_ns = self.free_ns.saturating_sub(now_ns);
        let fits = waiting_ns * set.rate / 1_000_000_000 + len <= set.queue;
        if set.down || len > u64::from(set.mtu) || !fits {
            return [None; 2];
        }
        self.free_ns = self.free_ns.max(now_ns) + len * 1_000_000_000 / set.rate;
        let chance = |p: f64, rng: &mut Pcg64Mcg| p > 0.0 && rng.random_bool(p);
        if self.bursting {
            self.bursting = !rng.random_bool(1.0 / set.burst_len);
        } else {
            self.bursting = chance(set.burst, rng);
        }
        let is_ack =
            CommonHeader::parse(datagram).is_ok_and(|prefix| prefix.kind == PacketKind::Ack);
        if self.bursting || chance(set.loss, rng) || (is_ack && chance(set.ack_loss, rng)) {
            return [None; 2];
        }
        let jitter = |rng: &mut Pcg64Mcg| match set.jitter_ns {
            0 => 0,
            most => rng.random_range(0..most),
        };
        let straggles = chance(set.straggler, rng);
        let at_ns = self.free_ns + set.delay_ns;
        if straggles {
            return [Some(at_ns + set.straggler_ns), None];
        }
        let at_ns = if set.jitter_ns == 0 {
            // Also when the delay has just become shorter, nothing is overtaken.
            self.latest_ns = self.latest_ns.max(at_ns);
            self.latest_ns
        } else {
            at_ns + jitter(rng)
        };
        let second = chance(set.duplicate, rng).then(|| at_ns + jitter(rng));
        [Some(at_ns), second]
    }
}
