// SPDX-License-Identifier: Apache-2.0
//! What a balancer sends the agent of a new server: sealed for that attempt alone.
//!
//! Both ends make a key pair that is used once (X25519). The key of the seal (AES-256-GCM) follows
//! by HKDF-SHA256 from what the two give together and, as salt, from the token's secret: without
//! the token nobody can be either end, and who gets the token later cannot read what was recorded.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::SystemRandom;

/// A key pair that is used once.
pub struct SealKeys {
    private: EphemeralPrivateKey,
    public: [u8; 32],
}

impl SealKeys {
    /// New ones; `None`: the system gives no random numbers.
    pub fn new() -> Option<Self> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).ok()?;
        let public = private.compute_public_key().ok()?;
        Some(Self {
            public: public.as_ref().try_into().ok()?,
            private,
        })
    }

    /// The public one.
    pub fn public(&self) -> [u8; 32] {
        self.public
    }

    /// Seals a text for who has this public key.
    pub fn seal(self, agent: [u8; 32], salt: [u8; 32], text: &str) -> Option<Vec<u8>> {
        let parties = [agent, self.public];
        let key = self.agree(agent, salt, parties)?;
        let mut sealed = text.as_bytes().to_vec();
        key.seal_in_place_append_tag(nonce(), Aad::empty(), &mut sealed)
            .ok()?;
        Some(sealed)
    }

    /// Opens what was sealed by who has this public key; `None`: it was not.
    pub fn open(self, balancer: [u8; 32], salt: [u8; 32], sealed: &[u8]) -> Option<String> {
        let parties = [self.public, balancer];
        let key = self.agree(balancer, salt, parties)?;
        let mut sealed = sealed.to_vec();
        let text = key.open_in_place(nonce(), Aad::empty(), &mut sealed).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }

    fn agree(self, other: [u8; 32], salt: [u8; 32], parties: [[u8; 32]; 2]) -> Option<LessSafeKey> {
        let other = UnparsedPublicKey::new(&X25519, other);
        let derived = agree_ephemeral(self.private, &other, |shared| {
            let secret = Salt::new(HKDF_SHA256, &salt).extract(shared);
            let parties: [&[u8]; 2] = [&parties[0], &parties[1]];
            let key = secret.expand(&parties, &AES_256_GCM).ok()?;
            Some(LessSafeKey::new(UnboundKey::from(key)))
        });
        derived.ok()?
    }
}

/// Each key seals once.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_is_opened_by_the_other_end_with_the_token_alone() {
        let pair = || SealKeys::new().expect("random numbers");
        let text = "current = 0\n";
        let sealed = |agent: &SealKeys| {
            let balancer = pair();
            let public = balancer.public();
            let sealed = balancer.seal(agent.public(), [7; 32], text);
            (public, sealed.expect("sealed"))
        };
        let agent = pair();
        let (balancer, bytes) = sealed(&agent);
        assert!(!bytes.windows(7).any(|piece| piece == b"current"));
        assert_eq!(agent.open(balancer, [7; 32], &bytes).as_deref(), Some(text));
        let agent = pair();
        let (balancer, bytes) = sealed(&agent);
        assert_eq!(agent.open(balancer, [8; 32], &bytes), None, "another token");
        let agent = pair();
        let (balancer, bytes) = sealed(&pair());
        assert_eq!(agent.open(balancer, [7; 32], &bytes), None, "another agent");
        let agent = pair();
        let (balancer, mut bytes) = sealed(&agent);
        bytes[3] ^= 1;
        assert_eq!(agent.open(balancer, [7; 32], &bytes), None, "changed");
    }
}
