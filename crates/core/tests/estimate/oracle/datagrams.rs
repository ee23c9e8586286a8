// SPDX-License-Identifier: Apache-2.0
//! What the oracle makes of encrypted datagrams: their sizes and their silent ACKs.

use causeway_core::estimate::Packet;

use super::{Oracle, US};

impl Oracle {
    /// Requests in a datagram: how many times what one adds it is larger than one of
    /// a single request. A first guess of what one adds is that one without what
    /// surrounds it, which shows in the smallest ACK; then the median.
    pub(super) fn requests(&mut self, p: &Packet, full: bool) -> usize {
        let size = f64::from(p.payload_len);
        if full {
            return 1;
        }
        let fast = if self.learnt < 160 { 8.0 } else { 1.0 };
        match self.unit {
            Some(unit) if self.learnt >= 32 && size < unit * 0.97 => {
                self.unit = Some(unit * (1.0 - 0.0095 * fast));
            }
            Some(unit) if self.learnt >= 32 && size > unit * 1.03 => {
                self.unit = Some(unit * (1.0 + 0.0005 * fast));
            }
            Some(_) if self.learnt >= 32 => {}
            Some(unit) if self.learnt >= 6 && size >= unit => {}
            _ => {
                self.unit = Some(size);
                self.step = None;
            }
        }
        self.learnt += 1;
        if self.learnt == 6 {
            self.sizes.clear();
            self.closed = 0;
            self.learnt = 7;
        }
        let around = self
            .ack_size
            .map_or(21, |ack| ack.saturating_sub(7).clamp(21, 41));
        let unit = self.unit.unwrap_or(size);
        let guess = Some(unit - f64::from(around)).filter(|&step| step > 0.0);
        let step = self.step.or(guess);
        let within = |size: f64| {
            let more = (size - unit).max(0.0);
            step.map_or(1, |step| 1 + (more / step + 0.375).floor() as usize)
                .min(16)
        };
        if (7..=12).contains(&self.learnt) {
            self.largest = self.largest.max(p.payload_len);
        }
        let largest = within(f64::from(self.largest));
        if self.learnt == 12 && largest > 1 {
            // It was counted before the size of one request was known.
            *self.sizes.entry(largest).or_default() += 2;
        }
        let k = within(size);
        if let (Some(step), 2..=6) = (step, k) {
            let above = size - unit > (k - 1) as f64 * step;
            let moved = step * if above { 129.0 } else { 127.0 } / 128.0;
            let (least, most) = ((unit - 41.0).max(0.0), (unit - 21.0).max(0.0));
            self.step = Some(moved.max(least).min(most)).filter(|&step| step > 0.0);
        }
        k
    }

    /// A page ended: were its silent ACKs as few as they can be?
    pub(super) fn judge_silence(&mut self) {
        let (silent, bursts) = std::mem::take(&mut self.since_root);
        let few = self.window > 2 && silent <= self.window as u64 && silent < bursts;
        let trust = self.trust.unwrap_or(96);
        self.trust = Some(match few {
            true => trust + (255 - trust) / 8,
            false => trust - trust / 8,
        });
        self.silent = (0, 0);
    }

    pub(super) fn trusts_silence(&self) -> bool {
        self.trust.is_some_and(|trust| trust >= 128)
    }

    /// Something came at `at` that set too little off.
    pub(super) fn add_silent(&mut self, at: u64) {
        let (mut mean, mut count) = self.silent;
        if let Some(&oldest) = self.outstanding.first()
            && mean < oldest
        {
            count = 0;
        }
        count = (count + 1).min(self.window.max(2) as u64 - 1);
        mean = if count == 1 {
            at
        } else {
            mean + (at - mean) / count
        };
        self.silent = (mean, count);
    }

    /// A datagram arrived: was the ACK before it followed by nothing?
    pub(super) fn hear_silence(&mut self, t: u64) {
        if let Some(since) = self.silence_since.filter(|since| t - since >= 200 * US) {
            self.since_root.0 += 1;
            if self.trusts_silence() {
                self.add_silent(since);
            }
        }
    }
}
