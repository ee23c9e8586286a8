// SPDX-License-Identifier: Apache-2.0
//! Keys of cookies: two, distinguished by the epoch bit of each cookie, so that one
//! can be replaced while connections of the other live on.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// One of the two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyEpoch {
    /// Epoch bit 0.
    Zero,
    /// Epoch bit 1.
    One,
}

impl KeyEpoch {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Zero, Self::One];

    /// 0 or 1.
    pub fn index(self) -> u32 {
        self as u32
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::Zero => Self::One,
            Self::One => Self::Zero,
        }
    }

    pub(super) fn from_bit(bit: u32) -> Self {
        match bit & 1 {
            0 => Self::Zero,
            _ => Self::One,
        }
    }
}

/// Text that is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CookieKeyError {
    /// Not 32 hexadecimal digits.
    #[error("a key is 32 hexadecimal digits; make one with `openssl rand -hex 16`")]
    Digits,
    /// All zero.
    #[error("a key of zeros is not secret; make one with `openssl rand -hex 16`")]
    Zero,
}

/// A SipHash key. It is a secret, so it is not printed by accident.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CookieKey([u64; 2]);

impl CookieKey {
    /// A key of 16 random bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let whole = u128::from_le_bytes(bytes);
        Self([whole as u64, (whole >> 64) as u64])
    }

    /// A key as SipHash takes it.
    pub fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// As SipHash takes it.
    pub fn words(&self) -> [u64; 2] {
        self.0
    }

    /// Another key, which reveals nothing of this one or of those of other labels and data:
    /// SipHash as the pseudorandom function of a counter (NIST SP 800-108, section 4.1).
    pub fn derive(&self, label: [u8; 8], data: [u8; 16]) -> Self {
        let data = u128::from_le_bytes(data);
        let word = |counter| {
            let label = u64::from_le_bytes(label);
            super::siphash(&[counter, label, data as u64, (data >> 64) as u64], self)
        };
        Self([word(1), word(2)])
    }

    /// 32 hexadecimal digits, for a keys file: the secret itself.
    pub fn to_hex(&self) -> String {
        let bytes = self.0.map(u64::to_le_bytes).concat();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl FromStr for CookieKey {
    type Err = CookieKeyError;

    fn from_str(text: &str) -> Result<Self, CookieKeyError> {
        let digits = text.len() == 32 && text.bytes().all(|c| c.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(0) if digits => Err(CookieKeyError::Zero),
            Ok(key) if digits => Ok(Self::from_bytes(key.to_be_bytes())),
            _ => Err(CookieKeyError::Digits),
        }
    }
}

/// The keys of a balancer or of a server. There is always the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    current: KeyEpoch,
    key: CookieKey,
    other: Option<CookieKey>,
}

impl Keys {
    /// `key` in epoch `current`, which new connections get; `other` in the other.
    pub fn new(current: KeyEpoch, key: CookieKey, other: Option<CookieKey>) -> Self {
        Self {
            current,
            key,
            other,
        }
    }

    /// The epoch of new connections.
    pub fn current(&self) -> KeyEpoch {
        self.current
    }

    /// The key of an epoch, if there is one.
    pub fn get(&self, epoch: KeyEpoch) -> Option<&CookieKey> {
        match epoch == self.current {
            true => Some(&self.key),
            false => self.other.as_ref(),
        }
    }
}
