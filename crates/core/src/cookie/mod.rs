// SPDX-License-Identifier: Apache-2.0
//! Cookies: a server's id inside the connection's own packets (Barbette et al.,
//! "A High-Speed Load-Balancer Design with Guaranteed Per-Connection-Consistency").
//!
//! The codec is `bpf/shared/cookie.h`, the clock of timestamp cookies
//! `bpf/shared/cookie_clock.h`, and what dates its echoes `cookie_echo.h`: the kernel and the tests run the same C.

mod clock;
mod digest;
mod echo;
mod format;
pub mod ids;
mod key;
pub mod quic;
#[cfg(test)]
mod tests;

pub use clock::{Clock, Kind};
pub use digest::Digest;
pub use echo::EchoFlow;
pub use format::{CookieLayout, CookieLayoutError, CookieMode};
pub use key::{CookieKey, CookieKeyError, KeyEpoch, Keys};

use std::net::{IpAddr, SocketAddr};

use format::RawFormat;

/// Ids of one VIP: 0 to 1023 (`COOKIE_IDS`).
pub const IDS: u16 = 1024;

/// IP protocol number of TCP.
const TCP: u8 = 6;

unsafe extern "C" {
    fn causeway_cookie_hash(words: *const u64, count: u32, key: *const u64) -> u64;
    fn causeway_conn_token_mask(words: *const u64, count: u32, hash_key: *const u64) -> u32;
    safe fn causeway_cookie_encode(hash: u64, epoch: u32, id: u32, format: RawFormat) -> u32;
    safe fn causeway_cookie_decode(hash: u64, cookie: u32, format: RawFormat) -> u32;
    safe fn causeway_cookie_epoch(cookie: u32, format: RawFormat) -> u32;
}

/// `COOKIE_FORGED`.
const FORGED: u32 = u32::MAX;

/// What a cookie names: a connection from a client to a VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    words: [u64; 5],
    count: u32,
}

impl Tuple {
    /// A TCP connection. Both addresses are of one family; should they not be, both
    /// are taken as IPv6.
    pub fn tcp(client: SocketAddr, vip: SocketAddr) -> Self {
        let mut bytes = [0; 40];
        let address = match (client.ip(), vip.ip()) {
            (IpAddr::V4(client), IpAddr::V4(vip)) => {
                bytes[..4].copy_from_slice(&client.octets());
                bytes[4..8].copy_from_slice(&vip.octets());
                4
            }
            (client, vip) => {
                bytes[..16].copy_from_slice(&octets6(client));
                bytes[16..32].copy_from_slice(&octets6(vip));
                16
            }
        };
        let rest = 2 * address;
        bytes[rest..rest + 2].copy_from_slice(&client.port().to_be_bytes());
        bytes[rest + 2..rest + 4].copy_from_slice(&vip.port().to_be_bytes());
        bytes[rest + 4] = TCP;
        let mut words = [0; 5];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(chunk);
            *word = u64::from_ne_bytes(eight);
        }
        let count = if address == 4 { 2 } else { 5 };
        Self { words, count }
    }

    /// SipHash-2-4 of the tuple as it lies in a flow key.
    pub fn hash(&self, key: &CookieKey) -> u64 {
        siphash(&self.words[..self.count as usize], key)
    }

    /// Which of several partitions of a stateful balancer's slots it falls into.
    pub fn partition(&self, seed: u64, partitions: u32) -> u32 {
        crate::flow_spot::conn_partition(&self.words[..self.count as usize], seed, partitions)
    }

    /// What its token is hidden by where there are two tiers of balancers.
    pub fn token_mask(&self, hash_key: [u64; 2]) -> u16 {
        // SAFETY: `count` words and the two of the key are there to read.
        let mask =
            unsafe { causeway_conn_token_mask(self.words.as_ptr(), self.count, hash_key.as_ptr()) };
        mask as u16
    }

    /// As it lies in a flow key; words that an IPv4 key has not are zero.
    pub fn words(&self) -> &[u64; 5] {
        &self.words
    }
}

/// SipHash-2-4 of words as they lie in memory.
pub(crate) fn siphash(words: &[u64], key: &CookieKey) -> u64 {
    let key = key.words();
    // SAFETY: `words` and the two of the key are there to read.
    unsafe { causeway_cookie_hash(words.as_ptr(), words.len() as u32, key.as_ptr()) }
}

fn octets6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The cookie of server `id` for a connection. Bits of `id` beyond the format's are
/// cut off.
pub fn encode(
    tuple: &Tuple,
    key: &CookieKey,
    epoch: KeyEpoch,
    id: u16,
    format: &CookieLayout,
) -> u32 {
    let id = u32::from(id) & ((1 << format.id_bits()) - 1);
    causeway_cookie_encode(tuple.hash(key), epoch.index(), id, format.raw())
}

/// The id that a cookie names; `None` if it is forged, or of an epoch without a key.
pub fn decode(
    tuple: &Tuple,
    keys: &Keys,
    cookie: u32,
    format: &CookieLayout,
) -> Option<(KeyEpoch, u16)> {
    let epoch = KeyEpoch::from_bit(causeway_cookie_epoch(cookie, format.raw()));
    let hash = tuple.hash(keys.get(epoch)?);
    match causeway_cookie_decode(hash, cookie, format.raw()) {
        FORGED => None,
        id => Some((epoch, id as u16)),
    }
}
