// SPDX-License-Identifier: Apache-2.0
//! Short digests by which balancers see whether they have the same, secrets included.

use super::{CookieKey, siphash};

/// Of this hash nothing is secret: what is goes in by [`Digest::secret`].
const PUBLIC: [u64; 2] = [0x6361_7573_6577_6179, 0x6167_7265_656d_656e];

/// A digest of what was put in, in its order. Two that differ by accident are alike with
/// a chance of 2^-64.
#[derive(Debug, Clone)]
pub struct Digest(u64);

impl Digest {
    /// Of something of this kind.
    pub fn of(kind: &str) -> Self {
        Self(0).text(kind)
    }

    /// Puts a number in.
    #[must_use]
    pub fn number(self, number: u64) -> Self {
        Self(siphash(&[self.0, number], &CookieKey::from_words(PUBLIC)))
    }

    /// Puts a text in.
    #[must_use]
    pub fn text(self, text: &str) -> Self {
        let begun = self.number(text.len() as u64);
        text.as_bytes().chunks(8).fold(begun, |digest, chunk| {
            let mut eight = [0; 8];
            eight[..chunk.len()].copy_from_slice(chunk);
            digest.number(u64::from_le_bytes(eight))
        })
    }

    /// Puts in what distinguishes this key from others, and reveals nothing of the key itself.
    #[must_use]
    pub fn secret(self, key: &CookieKey) -> Self {
        let [first, second] = key.derive(*b"agree v1", [0; 16]).words();
        self.number(first).number(second)
    }

    /// What it has come to.
    pub fn value(&self) -> u64 {
        self.0
    }

    /// 16 hexadecimal digits.
    pub fn finish(self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_counts_and_its_order() {
        let key = |byte| CookieKey::from_bytes([byte; 16]);
        let all = [
            Digest::of("ids"),
            Digest::of("keys"),
            Digest::of("ids").number(1),
            Digest::of("ids").number(1).number(2),
            Digest::of("ids").number(2).number(1),
            Digest::of("ids").text("10.0.0.1"),
            Digest::of("ids").text("10.0.0.10"),
            Digest::of("ids").text("a").text("b"),
            Digest::of("ids").text("ab"),
            Digest::of("ids").secret(&key(1)),
            Digest::of("ids").secret(&key(2)),
        ];
        let all = all.map(Digest::finish);
        for (index, one) in all.iter().enumerate() {
            assert_eq!(one.len(), 16);
            assert!(all[..index].iter().all(|other| other != one));
        }
    }

    /// Balancers of two versions must come to the same.
    #[test]
    fn it_stays_what_it_is() {
        let digest = Digest::of("server-ids").number(7).text("192.0.2.1");
        assert_eq!(
            digest.secret(&CookieKey::from_bytes([3; 16])).finish(),
            "ff6f0145441b8924"
        );
    }
}
