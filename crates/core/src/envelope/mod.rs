// SPDX-License-Identifier: Apache-2.0
//! The one authenticated datagram that agents and balancers send each other.
//!
//! ```text
//!  0  magic               8  tag: SipHash-2-4 of all other bytes, by the key of who speaks
//!  4  version            16  sender, IPv4 as ::ffff:a.b.c.d
//!  5  epoch of the key   32  boot of the sender: when (s since 1970), and a number of it
//!  6  length, bytes      40  sequence number
//! 48  bodies, each: kind (1), zero (1), length of an entry (2), entries (2), zero (2); entries
//! ```
//!
//! Numbers are big-endian. All lengths are multiples of eight bytes, so that all is signed.
//! Each use has a magic, keys and kinds of bodies of its own: [`agent_report`] is what agents
//! and balancers say, [`peer`] what balancers say among themselves.
//!
//! A source address proves nothing where one host may send for another: hence the tag. A
//! replayed datagram would bring an old time back: hence boot and sequence number, by which
//! each is taken once. A receiver that does not know a boot has nothing to compare its numbers
//! with: it answers by a challenge, and believes what comes after the response. What was
//! recorded before the receiver's start, or in a sender's former boot, holds no response to a
//! challenge of now.
//!
//! Versions one apart understand each other. A version may add kinds of bodies, which the
//! one before skips, and lengthen entries at their end, which it reads as far as it knows
//! them; it may change nothing else, and leaves out only what the version before it did
//! not need any more.
//!
//! [`agent_report`]: crate::agent_report
//! [`peer`]: crate::peer

mod boots;
mod reception;

use std::net::{IpAddr, Ipv6Addr};
use std::ops::Range;

pub use boots::Boot;
pub(crate) use boots::Boots;
pub use reception::Reception;
pub(crate) use reception::ReceptionCounts;

use crate::cookie::{CookieKey, KeyEpoch, siphash};

/// Bytes of the longest datagram: it fits into an IPv6 packet of 1,280 bytes.
pub const DATAGRAM_MAX: usize = 1232;

pub(crate) const HEAD: usize = 48;
pub(crate) const BODY_HEAD: usize = 8;
const TAG: Range<usize> = 8..16;

/// What distinguishes one use of the envelope from another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    pub magic: [u8; 4],
    pub version: u8,
}

/// What every datagram begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub sender: IpAddr,
    pub boot: Boot,
    /// Grows from datagram to datagram of a boot.
    pub sequence: u64,
}

impl Head {
    /// A datagram's first bytes, to add bodies to and [`seal`].
    pub(crate) fn begin(&self, form: Form, epoch: KeyEpoch) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(DATAGRAM_MAX);
        bytes.extend(form.magic);
        bytes.extend([form.version, epoch.index() as u8, 0, 0]);
        bytes.extend([0; 8]);
        bytes.extend(octets(self.sender));
        bytes.extend(self.boot.time_s.to_be_bytes());
        bytes.extend(self.boot.id.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes
    }
}

/// Adds a body. Entries that do not fit are left out.
pub(crate) fn push_body(
    bytes: &mut Vec<u8>,
    kind: u8,
    entry_len: usize,
    entries: impl ExactSizeIterator<Item = Vec<u8>>,
) {
    let Some(room) = DATAGRAM_MAX.checked_sub(bytes.len() + BODY_HEAD) else {
        return;
    };
    let count = entries.len().min(room.checked_div(entry_len).unwrap_or(0));
    bytes.extend([kind, 0]);
    bytes.extend((entry_len as u16).to_be_bytes());
    bytes.extend((count as u16).to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(entries.take(count).flatten());
}

/// Writes length and tag into a datagram that is whole.
pub(crate) fn seal(bytes: &mut [u8], key: Option<&CookieKey>) {
    let length = bytes.len() as u16;
    bytes[6..8].copy_from_slice(&length.to_be_bytes());
    if let Some(key) = key {
        let tag = tag(bytes, key);
        bytes[TAG].copy_from_slice(&tag.to_le_bytes());
    }
}

/// Reads a datagram's head, and gives its bodies, or says why it is refused. `key` has the key
/// that a sender signs with in an epoch.
pub(crate) fn open(
    bytes: &[u8],
    form: Form,
    key: impl FnOnce(IpAddr, KeyEpoch) -> Option<CookieKey>,
) -> Result<(Head, &[u8]), Reception> {
    if bytes.len() > DATAGRAM_MAX || !bytes.starts_with(&form.magic) {
        return Err(Reception::Malformed);
    }
    let (head, bodies) = bytes.split_at_checked(HEAD).ok_or(Reception::Truncated)?;
    if head[4].abs_diff(form.version) > 1 {
        return Err(Reception::Version);
    }
    match usize::from(u16::from_be_bytes([head[6], head[7]])) {
        length if length > bytes.len() => return Err(Reception::Truncated),
        length if length < bytes.len() || length % 8 != 0 => return Err(Reception::Malformed),
        _ => {}
    }
    let mut epochs = KeyEpoch::ALL.into_iter();
    let epoch = epochs.find(|epoch| epoch.index() == u32::from(head[5]));
    let sender = address(head, 16).ok_or(Reception::Malformed)?;
    let key = epoch.and_then(|epoch| key(sender, epoch));
    if tag(bytes, &key.ok_or(Reception::NoKey)?).to_le_bytes() != head[TAG] {
        return Err(Reception::Forged);
    }
    let head = Head {
        sender,
        boot: Boot {
            time_s: number(head, 32).map(u32::from_be_bytes)?,
            id: number(head, 36).map(u32::from_be_bytes)?,
        },
        sequence: number(head, 40).map(u64::from_be_bytes)?,
    };
    Ok((head, bodies))
}

/// A body as it stands in a datagram.
pub(crate) struct RawBody<'a> {
    pub kind: u8,
    entry_len: usize,
    entries: &'a [u8],
}

impl<'a> RawBody<'a> {
    /// Its entries; none where they have no length.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        match self.entry_len {
            0 => [].chunks_exact(1),
            len => self.entries.chunks_exact(len),
        }
    }

    /// The number that is its first entry.
    pub(crate) fn first_number(&self) -> Result<u64, Reception> {
        let entry = self.entries().next().ok_or(Reception::Malformed)?;
        number(entry, 0).map(u64::from_be_bytes)
    }
}

/// The bodies of a datagram.
pub(crate) fn bodies(mut bytes: &[u8]) -> Result<Vec<RawBody<'_>>, Reception> {
    let mut bodies = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes
            .split_at_checked(BODY_HEAD)
            .ok_or(Reception::Malformed)?;
        let entry_len = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let count = usize::from(u16::from_be_bytes([head[4], head[5]]));
        let (entries, rest) = rest
            .split_at_checked(entry_len * count)
            .ok_or(Reception::Malformed)?;
        bytes = rest;
        bodies.push(RawBody {
            kind: head[0],
            entry_len,
            entries,
        });
    }
    Ok(bodies)
}

/// The tag of a datagram, whatever stands in its place.
fn tag(bytes: &[u8], key: &CookieKey) -> u64 {
    let mut words = [0; DATAGRAM_MAX / 8];
    let (chunks, _) = bytes.as_chunks::<8>();
    let count = words.len().min(chunks.len());
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*chunk);
    }
    words[TAG.start / 8] = 0;
    siphash(&words[..count], key)
}

pub(crate) fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Reception> {
    let found = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    found.copied().ok_or(Reception::Malformed)
}

pub(crate) fn address(bytes: &[u8], at: usize) -> Option<IpAddr> {
    let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
    Some(Ipv6Addr::from(octets).to_canonical())
}

/// IPv4 as `::ffff:a.b.c.d`.
pub(crate) fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
