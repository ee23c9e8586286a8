// SPDX-License-Identifier: Apache-2.0
//! The server's id in a QUIC connection id, as the data plane takes it out
//! (`bpf/shared/quic_lb.h`). Servers put it in: `causeway_quic_lb`, which is also what
//! this is tested against.

use causeway_quic_lb::{Algorithm, CidConfig};
use thiserror::Error;

const MAX_SERVER_ID: usize = 4;
const ONE_BLOCK: usize = 16;
const AES_WORDS: usize = 44;

/// `struct quic_lb_config`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Raw {
    /// `enum quic_lb_algorithm`.
    pub algorithm: u8,
    /// Octets.
    pub server_id_len: u8,
    /// Octets.
    pub nonce_len: u8,
    /// Zero.
    pub pad: [u8; 5],
    /// For SipHash.
    pub siphash_key: [u64; 2],
    /// For AES; the data plane does not expand keys.
    pub aes_rounds: [u32; AES_WORDS],
}

unsafe extern "C" {
    fn causeway_aes128_expand(key: *const u8, keys: *mut u32, inverse: u32);
    fn causeway_quic_lb_server(config: *const Raw, words: *const u64) -> u32;
}

/// A configuration that the data plane can route by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CidRoute {
    config: CidConfig,
    raw: Raw,
}

/// Server ids that are not a number of 32 bits, though servers could issue them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the balancer routes by server ids of at most 4 octets, not {0}")]
pub struct TooLong(pub usize);

impl CidRoute {
    /// The same as the data plane wants it, keys expanded.
    ///
    /// # Errors
    /// When its server ids have more than four octets.
    pub fn new(config: &CidConfig) -> Result<Self, TooLong> {
        // A nonce has at least as many octets, so the id lies in the left half.
        if config.server_id_len() > MAX_SERVER_ID {
            return Err(TooLong(config.server_id_len()));
        }
        Ok(Self {
            config: *config,
            raw: raw(config),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &CidConfig {
        &self.config
    }

    /// What goes into the data plane's table. It holds the key.
    pub fn raw(&self) -> &Raw {
        &self.raw
    }

    /// The server id in a connection id; none if it is of another configuration or too
    /// short.
    pub fn server(&self, id: &[u8]) -> Option<u32> {
        let first = *id.first()?;
        if first >> 5 != self.config.number() || id.len() < self.config.id_len() {
            return None;
        }
        let mut octets = [0; 24];
        let used = (id.len() - 1).min(19);
        octets[..used].copy_from_slice(&id[1..=used]);
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|j| octets[8 * i + j]));
        let words = [word(0), word(1), word(2)];
        // SAFETY: a configuration and three words, of which both are only read.
        Some(unsafe { causeway_quic_lb_server(&self.raw, words.as_ptr()) })
    }
}

impl std::fmt::Debug for CidRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Route").field(&self.config).finish()
    }
}

fn raw(config: &CidConfig) -> Raw {
    let mut raw = Raw {
        algorithm: 1,
        server_id_len: config.server_id_len() as u8,
        nonce_len: config.nonce_len() as u8,
        pad: [0; 5],
        siphash_key: [0; 2],
        aes_rounds: [0; AES_WORDS],
    };
    match config.algorithm() {
        Algorithm::Plain => {}
        Algorithm::SipHash(key) => {
            raw.algorithm = 2;
            let whole = u128::from_le_bytes(key.octets());
            raw.siphash_key = [whole as u64, (whole >> 64) as u64];
        }
        Algorithm::Aes128(key) => {
            raw.algorithm = 3;
            let one_block = config.server_id_len() + config.nonce_len() == ONE_BLOCK;
            raw.aes_rounds = expand(&key.octets(), one_block);
        }
    }
    raw
}

/// AES's key schedule, of decryption if `inverse`.
fn expand(key: &[u8; 16], inverse: bool) -> [u32; AES_WORDS] {
    let mut keys = [0; AES_WORDS];
    // SAFETY: 16 octets are read and 44 words written.
    unsafe { causeway_aes128_expand(key.as_ptr(), keys.as_mut_ptr(), u32::from(inverse)) };
    keys
}

#[cfg(test)]
mod tests {
    use causeway_quic_lb::{CidKey, Codec};
    use proptest::prelude::*;

    use super::*;

    /// FIPS 197, appendix A.1: the last round's key.
    #[test]
    fn keys_are_expanded_as_the_standard_has_it() {
        let key: CidKey = "2b7e151628aed2a6abf7158809cf4f3c".parse().expect("a key");
        let last: Vec<u8> = expand(&key.octets(), false)[40..]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let wanted = [
            0xd0, 0x14, 0xf9, 0xa8, 0xc9, 0xee, 0x25, 0x89, 0xe1, 0x3f, 0x0c, 0xc8, 0xb6, 0x63,
            0x0c, 0xa6,
        ];
        assert_eq!(last, wanted);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Every id that a server issues is read as that server's.
        #[test]
        fn the_data_plane_reads_what_servers_write(
            number in 0u8..7,
            server_len in 1u8..5,
            nonce_len in 4u8..19,
            which in 0u8..3,
            key: [u8; 16],
            bytes: [u8; 19],
            random: u8,
        ) {
            let algorithm = match which {
                0 => Algorithm::Plain,
                1 => Algorithm::SipHash(CidKey::new(key)),
                _ => Algorithm::Aes128(CidKey::new(key)),
            };
            let Ok(config) = CidConfig::new(number, server_len, nonce_len, algorithm) else {
                return Ok(());
            };
            let route = CidRoute::new(&config).expect("short enough");
            let (server, rest) = bytes.split_at(usize::from(server_len));
            let codec = Codec::new(&config);
            let id = codec
                .encode(server, &rest[..usize::from(nonce_len)], random)
                .expect("lengths fit");
            let number = codec.decode(&id).expect("routable").server_number();
            prop_assert_eq!(route.server(&id), number);
            prop_assert_eq!(route.server(&id[..id.len() - 1]), None);
        }
    }

    #[test]
    fn golden_vectors_hold() {
        let mut rows = 0;
        let octets = |hex: &str| -> Vec<u8> {
            let digit = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).expect("hexadecimal");
            (0..hex.len()).step_by(2).map(digit).collect()
        };
        for row in include_str!("../../../quic-lb/testdata/vectors.csv")
            .lines()
            .skip(1)
        {
            let columns: Vec<&str> = row.split(',').collect();
            let key: CidKey = columns[2].parse().expect("a key");
            let algorithm = match columns[1] {
                "plain" => Algorithm::Plain,
                "siphash" => Algorithm::SipHash(key),
                _ => Algorithm::Aes128(key),
            };
            let (server, nonce) = (octets(columns[3]), octets(columns[4]));
            let number = columns[0].parse().expect("a number");
            let config = CidConfig::new(number, server.len() as u8, nonce.len() as u8, algorithm)
                .expect("valid");
            let Ok(route) = CidRoute::new(&config) else {
                continue;
            };
            let wanted = server.iter().fold(0, |n, &octet| n << 8 | u32::from(octet));
            assert_eq!(route.server(&octets(columns[6])), Some(wanted), "{row}");
            rows += 1;
        }
        assert!(rows > 80, "only {rows} vectors");
    }

    #[test]
    fn server_ids_must_be_short() {
        let of = |server, nonce| {
            let config = CidConfig::new(0, server, nonce, Algorithm::Plain).expect("valid");
            CidRoute::new(&config).err()
        };
        assert_eq!((of(5, 8), of(4, 8)), (Some(TooLong(5)), None));
    }
}
