// SPDX-License-Identifier: Apache-2.0
//! The event-driven clock of `timestamp` cookies, for tests and simulations: in
//! production the kernel runs the same C on a socket's storage.

/// `struct cookie_anchor`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Anchor {
    o: u32,
    t: u32,
}

/// `enum cookie_segment`: what a segment may do to T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A retransmission, or where it does not matter.
    Moves,
    /// New data.
    Data,
    /// A bare acknowledgement.
    Ack,
    /// The same, from the CPU that takes the connection's segments in.
    ReceivingAck,
}

/// `struct cookie_clock`: what one connection's timestamps read. See the C header
/// for how it runs and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Clock {
    last_o: u32,
    t: u32,
    echoed_t: u32,
    unit: u16,
    bits: u8,
    adopted: u8,
    now: Anchor,
    past: Anchor,
    acked_o: u32,
}

unsafe extern "C" {
    #[cfg(test)]
    pub(super) safe fn causeway_cookie_clock_size() -> u32;
    safe fn causeway_cookie_clock_start(clock: &mut Clock, o: u32, t: u32, unit: u32, bits: u32);
    #[cfg(test)]
    pub(super) safe fn causeway_cookie_clock_start_unsure(
        clock: &mut Clock,
        o: u32,
        opening_o: u32,
        unit: u32,
        bits: u32,
    );
    #[cfg(test)]
    pub(super) safe fn causeway_cookie_clock_is_behind(clock: &Clock, o: u32) -> u32;
    safe fn causeway_cookie_clock_stamp(clock: &mut Clock, o: u32) -> u32;
    safe fn causeway_cookie_clock_stamp_kind(clock: &mut Clock, o: u32, kind: u32) -> u32;
    safe fn causeway_cookie_clock_lease(clock: &Clock) -> u32;
    safe fn causeway_cookie_clock_resume(clock: &mut Clock, o: u32, t: u32);
    safe fn causeway_cookie_clock_echo(clock: &mut Clock, t: u32, now_o: u32) -> u32;
}

impl Clock {
    /// A clock of cookies of `bits` bits that begins behind `t`, which the client
    /// has echoed, when the kernel's TSval is `o`. `unit` is O's per T: 1, or 1000
    /// for a socket with timestamps in microseconds.
    pub fn start(o: u32, t: u32, unit: u16, bits: u8) -> Self {
        let mut clock = Self::default();
        causeway_cookie_clock_start(&mut clock, o, t, unit.max(1).into(), bits.into());
        clock
    }

    /// T for a segment that the kernel stamped with `o`.
    pub fn stamp(&mut self, o: u32) -> u32 {
        causeway_cookie_clock_stamp(self, o)
    }

    /// The same, as far as a segment of this kind may move T.
    pub fn stamp_kind(&mut self, o: u32, kind: Kind) -> u32 {
        causeway_cookie_clock_stamp_kind(self, o, kind as u32)
    }

    /// The T that a CPU with a leased copy of the clock may reach; the clock's own where
    /// there is no room.
    pub fn lease(&self) -> u32 {
        causeway_cookie_clock_lease(self)
    }

    /// The newest T that the client has echoed.
    #[cfg(test)]
    pub(super) fn echoed_t(&self) -> u32 {
        self.echoed_t
    }

    /// Goes on behind `t`, the most that was sent, when the kernel's TSval is `o`.
    pub fn resume(&mut self, o: u32, t: u32) {
        causeway_cookie_clock_resume(self, o, t);
    }

    /// The kernel's TSval that went out as `t`; it reads `now_o` now. 0: not known.
    pub fn echo(&mut self, t: u32, now_o: u32) -> u32 {
        causeway_cookie_clock_echo(self, t, now_o)
    }
}
