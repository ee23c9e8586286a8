// SPDX-License-Identifier: Apache-2.0
//! How large a packet may be on its way to a host: by echo requests that must not be
//! fragmented, so that it shows where routers say nothing, too.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::rtt::clock::now_ns;
use crate::rtt::{PingError, Pinger};

/// How often a size is tried: one packet may be lost for another reason.
const TRIES: u16 = 3;
/// Of this size all packets pass (RFC 1122 has 576 for hosts; routers' links are larger).
const SMALL: u16 = 576;
/// Shortest wait for a reply, however near the host is.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// What becomes of packets to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The host answers no echo request at all: nothing can be said.
    Silent,
    /// Packets of all sizes that were asked for arrive.
    Whole,
    /// Packets up to this many bytes arrive.
    UpTo(u16),
}

/// Tries packets of up to `largest` bytes, IP header included; waits at most `timeout` for the
/// first reply.
///
/// # Errors
/// No right to send echo requests, or no route.
pub fn reach(to: IpAddr, largest: u16, timeout: Duration) -> Result<Reach, PingError> {
    let failed = |cause: io::Error| PingError::Failed { to, cause };
    let mut pinger = Pinger::new(SocketAddr::new(to, 0))?;
    pinger.forbid_fragments().map_err(failed)?;
    let mut probes = Probes {
        pinger,
        sequence: 0,
        wait: timeout,
    };
    let before = now_ns();
    if !probes.passes(SMALL.min(largest)).map_err(failed)? {
        return Ok(Reach::Silent);
    }
    let rtt = Duration::from_nanos(now_ns() - before);
    probes.wait = (4 * rtt).max(WAIT_MIN).min(timeout);
    if probes.passes(largest).map_err(failed)? {
        return Ok(Reach::Whole);
    }
    let (mut passes, mut fails) = (SMALL.min(largest), largest);
    while passes + 1 < fails {
        let size = passes.midpoint(fails);
        match probes.passes(size).map_err(failed)? {
            true => passes = size,
            false => fails = size,
        }
    }
    Ok(Reach::UpTo(passes))
}

struct Probes {
    pinger: Pinger,
    sequence: u16,
    wait: Duration,
}

impl Probes {
    /// Whether a packet of this size comes back.
    fn passes(&mut self, size: u16) -> io::Result<bool> {
        let first = self.sequence;
        for _ in 0..TRIES {
            let sequence = self.sequence;
            self.sequence += 1;
            match self.pinger.send_packet(sequence, size) {
                Ok(()) => {}
                Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) => return Ok(false),
                Err(e) => return Err(e),
            }
            let until = now_ns() + self.wait.as_nanos() as u64 / u64::from(TRIES);
            while let Some((reply, _)) = self.pinger.receive(until)? {
                // A late reply to a smaller one says nothing.
                if reply >= first {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
