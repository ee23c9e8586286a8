// SPDX-License-Identifier: Apache-2.0
//! Which senders are alive, and which of their datagrams came before.

use std::collections::HashMap;
use std::net::IpAddr;

use super::{Head, Reception, octets};
use crate::cookie::{CookieKey, siphash};

/// A challenge holds until the end of the next period of this many bits of nanoseconds: 4 to 9 s.
const CHALLENGE_BITS: u32 = 32;

/// A boot of a sender: of an agent's machine, or a start of a balancer's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    /// When it was, seconds since 1970. By a clock that is set wrong, it may be any time.
    pub time_s: u32,
    /// A number by which it differs from others.
    pub id: u32,
}

/// The boots of all senders.
#[derive(Debug)]
pub(crate) struct Boots {
    /// By which challenges are made: nothing is kept of who has not responded.
    secret: CookieKey,
    known: HashMap<IpAddr, (Boot, Window)>,
}

/// Sequence numbers that were taken (as IPsec's, RFC 4303, section 3.4.3).
#[derive(Debug)]
struct Window {
    newest: u64,
    /// Bit n: `newest - n` was.
    taken: u64,
}

impl Boots {
    pub(crate) fn new(secret: CookieKey) -> Self {
        Self {
            secret,
            known: HashMap::new(),
        }
    }

    /// Takes a datagram that is the first of its number, and of a boot that is alive:
    /// `responds` looks for a response to a challenge in it. Returns whether the boot is a new one.
    pub(crate) fn admit(
        &mut self,
        head: &Head,
        now_ns: u64,
        responds: impl Fn(u64) -> bool,
    ) -> Result<bool, Reception> {
        if let Some((boot, window)) = self.known.get_mut(&head.sender)
            && *boot == head.boot
        {
            return match window.take(head.sequence) {
                true => Ok(false),
                false => Err(Reception::Replayed),
            };
        }
        let period = now_ns >> CHALLENGE_BITS;
        let responds = |period| responds(self.challenge_in(head, period));
        if !responds(period) && !period.checked_sub(1).is_some_and(responds) {
            return Err(Reception::Unproven);
        }
        let window = Window {
            newest: head.sequence,
            taken: 1,
        };
        self.known.insert(head.sender, (head.boot, window));
        Ok(true)
    }

    /// The number that a boot of a sender is to repeat.
    pub(crate) fn challenge(&self, head: &Head, now_ns: u64) -> u64 {
        self.challenge_in(head, now_ns >> CHALLENGE_BITS)
    }

    fn challenge_in(&self, head: &Head, period: u64) -> u64 {
        let sender = u128::from_le_bytes(octets(head.sender));
        let boot = u64::from(head.boot.time_s) << 32 | u64::from(head.boot.id);
        let words = [sender as u64, (sender >> 64) as u64, boot, period];
        siphash(&words, &self.secret)
    }

    /// How many senders are known.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Forgets a sender: what it says next is of a boot that has yet to respond.
    pub(crate) fn forget(&mut self, sender: IpAddr) {
        self.known.remove(&sender);
    }
}

impl Window {
    /// Whether a number is new; it is not any more.
    fn take(&mut self, sequence: u64) -> bool {
        if let Some(ahead) = sequence.checked_sub(self.newest).filter(|ahead| *ahead > 0) {
            let shifted = u32::try_from(ahead).ok();
            let shifted = shifted.and_then(|ahead| self.taken.checked_shl(ahead));
            self.taken = shifted.unwrap_or(0) | 1;
            self.newest = sequence;
            return true;
        }
        let behind = u32::try_from(self.newest - sequence).ok();
        let bit = behind.and_then(|behind| 1_u64.checked_shl(behind));
        let is_new = bit.is_some_and(|bit| self.taken & bit == 0);
        self.taken |= bit.unwrap_or(0);
        is_new
    }
}
