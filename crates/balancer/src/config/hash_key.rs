// SPDX-License-Identifier: Apache-2.0
//! The key of the hash that picks reals.

use std::fmt;
use std::str::FromStr;

/// A SipHash key: balancers with the same key and the same pool send a flow to
/// the same real. It is a secret, so it is not printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u64; 2]);

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

impl FromStr for HashKey {
    /// A sentence without its place.
    type Err = String;

    /// 32 hexadecimal digits: the key's 16 bytes, first byte first.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.len() == 32 && text.bytes().all(|c| c.is_ascii_hexdigit());
        match u128::from_str_radix(text, 16) {
            Ok(0) => Err("a hash_key of zeros is not secret; make one with `openssl rand -hex 16`".to_owned()),
            Ok(key) if digits => {
                let key = key.swap_bytes();
                Ok(Self([key as u64, (key >> 64) as u64]))
            }
            _ => Err("hash_key must be 32 hexadecimal digits, the same on every balancer; make one with `openssl rand -hex 16`".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_as_siphash_takes_them() {
        let key: HashKey = "000102030405060708090A0b0c0d0e0f".parse().unwrap();
        // The key of the reference vectors (Aumasson and Bernstein, appendix A).
        assert_eq!(key.0, [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        assert!(!format!("{key:?}").contains('7'));
    }
}
