// SPDX-License-Identifier: Apache-2.0
//! What agents and stateful balancers tell each other about connections in places
//! (docs/explanation/cookies.md, "Stateful mode"): datagrams of one kind each.
//!
//! They carry a SipHash-2-4 tag under the cookies' key. A forged notice could free the
//! place of an open connection, or send one to a server of the forger's choice; and a
//! source address proves nothing on a network where one host may send for another. The
//! key is on every balancer and server already. A replayed one is harmless: it names a
//! tuple and a word, and by then they are either still true or of no place.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::{Epoch, Key, Keys, causeway_cookie_hash};

/// Bytes of a head: magic, kind, count, two of padding, tag.
const HEAD: usize = 16;
/// Bytes of an entry.
const ENTRY: usize = 40;
/// What a datagram begins with; its last digit is the version.
const MAGIC: [u8; 4] = *b"CWN1";
/// Entries of a datagram, so that it fits into an IPv6 packet of 1,280 bytes.
pub const NOTICES_MAX: usize = 30;
/// Bytes of the longest datagram.
pub const DATAGRAM_MAX: usize = HEAD + NOTICES_MAX * ENTRY;

/// A connection in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Notice {
    /// The client.
    pub client: SocketAddr,
    /// The VIP.
    pub vip: SocketAddr,
    /// What its timestamps end in.
    pub word: u16,
    /// The server's id in the VIP.
    pub id: u16,
}

/// A datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Agent to balancer, every second: it is there.
    Here,
    /// Balancer to agent: it knows none of the agent's connections; all of them, please.
    Ask,
    /// Agent to balancer: these are open. At most [`NOTICES_MAX`].
    Open(Vec<Notice>),
    /// Agent to balancer: these have ended, in both directions. At most [`NOTICES_MAX`].
    Ended(Vec<Notice>),
}

impl Message {
    /// The datagram, signed with the current key. Entries above the most are left out.
    pub fn encode(&self, keys: &Keys) -> Vec<u8> {
        let (kind, notices): (u8, &[Notice]) = match self {
            Self::Here => (0, &[]),
            Self::Ask => (1, &[]),
            Self::Open(notices) => (2, notices),
            Self::Ended(notices) => (3, notices),
        };
        let notices = &notices[..notices.len().min(NOTICES_MAX)];
        let mut bytes = Vec::with_capacity(HEAD + notices.len() * ENTRY);
        bytes.extend(MAGIC);
        bytes.extend([kind, notices.len() as u8, 0, 0]);
        bytes.extend([0; 8]);
        for notice in notices {
            bytes.extend(octets(notice.client.ip()));
            bytes.extend(octets(notice.vip.ip()));
            for number in [
                notice.client.port(),
                notice.vip.port(),
                notice.word,
                notice.id,
            ] {
                bytes.extend(number.to_be_bytes());
            }
        }
        if let Some(key) = keys.get(keys.current()) {
            let tag = tag(&bytes, key);
            bytes[8..HEAD].copy_from_slice(&tag);
        }
        bytes
    }

    /// Reads a datagram; `None` for one that is none of ours, or not by a key of ours.
    pub fn decode(bytes: &[u8], keys: &Keys) -> Option<Self> {
        let (head, entries) = bytes.split_at_checked(HEAD)?;
        let known = head[..4] == MAGIC && entries.len() == usize::from(head[5]) * ENTRY;
        if !known || usize::from(head[5]) > NOTICES_MAX {
            return None;
        }
        let is_by = |key: &Key| tag(bytes, key) == head[8..HEAD];
        let mut ours = Epoch::ALL.into_iter().filter_map(|epoch| keys.get(epoch));
        if !ours.any(is_by) {
            return None;
        }
        let notices = || entries.chunks_exact(ENTRY).map(notice).collect();
        match head[4] {
            0 => Some(Self::Here),
            1 => Some(Self::Ask),
            2 => Some(Self::Open(notices())),
            3 => Some(Self::Ended(notices())),
            _ => None,
        }
    }
}

/// The tag of a datagram of at most [`DATAGRAM_MAX`] bytes, whatever stands in its place:
/// bytes 8 to 15. What is signed tells its kind by its first four bytes.
pub(crate) fn tag(bytes: &[u8], key: &Key) -> [u8; 8] {
    let mut words = [0; DATAGRAM_MAX / 8];
    let chunks = bytes.chunks_exact(8);
    let count = words.len().min(chunks.len());
    for (word, chunk) in words.iter_mut().zip(chunks) {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        *word = u64::from_le_bytes(eight);
    }
    words[1] = 0; // the tag itself
    let key = key.words();
    // SAFETY: `count` words and two of the key are there to read.
    let hash = unsafe { causeway_cookie_hash(words.as_ptr(), count as u32, key.as_ptr()) };
    hash.to_le_bytes()
}

fn notice(entry: &[u8]) -> Notice {
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&entry[at..at + 16]);
        Ipv6Addr::from(octets).to_canonical()
    };
    let number = |at: usize| u16::from_be_bytes([entry[at], entry[at + 1]]);
    Notice {
        client: (address(0), number(32)).into(),
        vip: (address(16), number(34)).into(),
        word: number(36),
        id: number(38),
    }
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(current: Epoch, digits: [&str; 2]) -> Keys {
        let [first, second] = digits.map(|digit| digit.repeat(32).parse().expect("a key"));
        Keys::new(current, first, Some(second))
    }

    fn some(count: u16) -> Vec<Notice> {
        (0..count)
            .map(|n| Notice {
                client: match n % 2 {
                    0 => ([192, 0, 2, n as u8], 1024 + n).into(),
                    _ => (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n), 1024).into(),
                },
                vip: match n % 2 {
                    0 => ([198, 51, 100, 1], 443).into(),
                    _ => (Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1), 443).into(),
                },
                word: 0x7fff - n,
                id: n,
            })
            .collect()
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let keys = keys(Epoch::One, ["7", "8"]);
        for message in [
            Message::Here,
            Message::Ask,
            Message::Open(Vec::new()),
            Message::Open(some(NOTICES_MAX as u16)),
            Message::Ended(some(3)),
        ] {
            let bytes = message.encode(&keys);
            assert!(bytes.len() <= DATAGRAM_MAX);
            assert_eq!(Message::decode(&bytes, &keys), Some(message));
        }
    }

    #[test]
    fn both_keys_count_and_no_other() {
        let message = Message::Ended(some(2));
        let bytes = message.encode(&keys(Epoch::Zero, ["7", "8"]));
        let switched = keys(Epoch::One, ["8", "7"]);
        assert_eq!(Message::decode(&bytes, &switched), Some(message));
        assert_eq!(
            Message::decode(&bytes, &keys(Epoch::Zero, ["8", "9"])),
            None
        );
    }

    #[test]
    fn no_bit_can_be_changed() {
        let keys = keys(Epoch::Zero, ["7", "8"]);
        let bytes = Message::Open(some(2)).encode(&keys);
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Message::decode(&other, &keys), None, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Message::decode(&bytes[..len], &keys), None);
        }
        let mut longer = bytes;
        longer.extend([0; ENTRY]);
        assert_eq!(Message::decode(&longer, &keys), None);
    }
}
