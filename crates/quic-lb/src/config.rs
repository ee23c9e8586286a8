// SPDX-License-Identifier: Apache-2.0
//! What balancer and servers agree on.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The highest number of a configuration; 7 says that there is none (draft, 3.2).
pub const MAX_CONFIG: u8 = 6;
/// Longest server id and nonce together, octets: QUIC version 1 has ids of 20.
pub(crate) const MAX_BLOCK: u8 = 19;
/// Shortest nonce, octets (draft, 5.3).
pub(crate) const MIN_NONCE: u8 = 4;
/// Longest block for [`Algorithm::SipHash`].
const MAX_SIPHASH_BLOCK: u8 = 12;

/// A key of 16 random octets. A secret: it is not printed by accident.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CidKey([u8; 16]);

impl CidKey {
    /// From random octets.
    pub fn new(octets: [u8; 16]) -> Self {
        Self(octets)
    }

    /// The secret itself.
    pub fn octets(&self) -> [u8; 16] {
        self.0
    }
}

/// Text that is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a key is 32 hexadecimal digits; make one with `openssl rand -hex 16`")]
pub struct CidKeyError;

impl FromStr for CidKey {
    type Err = CidKeyError;

    fn from_str(text: &str) -> Result<Self, CidKeyError> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(CidKeyError);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| CidKeyError)?;
        Ok(Self(number.to_be_bytes()))
    }
}

impl fmt::Debug for CidKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// How server id and nonce are hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Not at all: an observer of an id knows the server, and that two ids are of one.
    Plain,
    /// Causeway's: four passes with SipHash-1-3.
    SipHash(CidKey),
    /// The draft's: AES-128, one pass for 16 octets, else four.
    Aes128(CidKey),
}

/// One configuration: how ids of its number are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CidConfig {
    pub(crate) number: u8,
    pub(crate) server_id_len: u8,
    pub(crate) nonce_len: u8,
    pub(crate) algorithm: Algorithm,
    pub(crate) encodes_len: bool,
}

/// A configuration that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// Seven or more.
    #[error("configuration {0} does not exist: they are numbered from 0 to 6")]
    Number(u8),
    /// No server id.
    #[error("a server id has at least one octet")]
    ServerId,
    /// A nonce that would soon repeat.
    #[error("a nonce has at least four octets, not {0}")]
    Nonce(u8),
    /// More than a connection id holds.
    #[error("server id and nonce have at most 19 octets together, not {0}")]
    TooLong(u8),
    /// Lengths that the SipHash network cannot take.
    #[error(
        "with siphash, server id and nonce have an even number of octets together, 6 to 12, \
         not {0}"
    )]
    SipHashLength(u8),
}

impl CidConfig {
    /// Configuration `number` with lengths in octets.
    ///
    /// # Errors
    /// When the draft (sections 3.1 and 5.3) or the algorithm allows no such lengths.
    pub fn new(
        number: u8,
        server_id_len: u8,
        nonce_len: u8,
        algorithm: Algorithm,
    ) -> Result<Self, ConfigError> {
        let block = server_id_len.saturating_add(nonce_len);
        if number > MAX_CONFIG {
            return Err(ConfigError::Number(number));
        }
        if server_id_len == 0 {
            return Err(ConfigError::ServerId);
        }
        if nonce_len < MIN_NONCE {
            return Err(ConfigError::Nonce(nonce_len));
        }
        if block > MAX_BLOCK {
            return Err(ConfigError::TooLong(block));
        }
        let halves = block.is_multiple_of(2) && (6..=MAX_SIPHASH_BLOCK).contains(&block);
        if matches!(algorithm, Algorithm::SipHash(_)) && !halves {
            return Err(ConfigError::SipHashLength(block));
        }
        Ok(Self {
            number,
            server_id_len,
            nonce_len,
            algorithm,
            encodes_len: false,
        })
    }

    /// The same with the id's length in its first octet (draft, section 3.3), for
    /// servers whose hardware wants to know it.
    #[must_use]
    pub fn with_encoded_length(mut self) -> Self {
        self.encodes_len = true;
        self
    }

    /// 0 to 6.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// How server id and nonce are hidden.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Octets of the server id.
    pub fn server_id_len(&self) -> usize {
        usize::from(self.server_id_len)
    }

    /// Octets of the nonce.
    pub fn nonce_len(&self) -> usize {
        usize::from(self.nonce_len)
    }

    /// Octets of an id.
    pub fn id_len(&self) -> usize {
        1 + self.block_len()
    }

    pub(crate) fn block_len(&self) -> usize {
        self.server_id_len() + self.nonce_len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_checked() {
        let key = CidKey::new([1; 16]);
        let make =
            |number, server, nonce, algorithm| CidConfig::new(number, server, nonce, algorithm);
        use ConfigError::*;
        assert_eq!(make(7, 1, 4, Algorithm::Plain), Err(Number(7)));
        assert_eq!(make(0, 0, 4, Algorithm::Plain), Err(ServerId));
        assert_eq!(make(0, 1, 3, Algorithm::Plain), Err(Nonce(3)));
        assert_eq!(make(0, 15, 5, Algorithm::Plain), Err(TooLong(20)));
        assert_eq!(make(0, 255, 255, Algorithm::Plain), Err(TooLong(255)));
        for block in [5, 7, 13, 14] {
            let siphash = make(0, 1, block - 1, Algorithm::SipHash(key));
            assert_eq!(siphash, Err(SipHashLength(block)));
        }
        assert!(make(6, 15, 4, Algorithm::Aes128(key)).is_ok());
        assert!(make(6, 2, 10, Algorithm::SipHash(key)).is_ok());
    }

    #[test]
    fn keys_are_read_and_not_shown() {
        let key: CidKey = "000102030405060708090a0b0c0d0e0f".parse().expect("digits");
        assert_eq!(key.octets(), std::array::from_fn(|i| i as u8));
        assert_eq!(format!("{key:?}"), "Key(..)");
        for bad in [
            "",
            "00",
            "+00102030405060708090a0b0c0d0e0f",
            &"0".repeat(33),
        ] {
            assert_eq!(bad.parse::<CidKey>(), Err(CidKeyError), "{bad}");
        }
    }
}
