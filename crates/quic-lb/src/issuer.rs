// SPDX-License-Identifier: Apache-2.0
//! A server's side: ids that it has never issued before.

use rand::Rng;

use crate::codec::{Codec, EncodeError};
use crate::config::{Algorithm, CidConfig};
use crate::id::{ConnectionId, MAX_LEN};

/// First bits of an id that no configuration made (draft, section 3.2).
const UNROUTABLE: u8 = 0b111 << 5;

/// Issues the connection ids of one server under one configuration.
///
/// Nonces of an encrypted configuration are counted from a random one; plain ones are
/// random, because observers see them (draft, section 8.6). When all counted ones have
/// been used, ids are unroutable ones of the same length, which the balancer routes by
/// address.
#[derive(Debug)]
pub struct Issuer {
    codec: Codec,
    server_id: [u8; 4],
    nonce: u128,
    left: u128,
}

impl Issuer {
    /// For server number `server`.
    ///
    /// # Errors
    /// When the number does not fit into the configuration's server ids.
    pub fn new(config: &CidConfig, server: u32) -> Result<Self, EncodeError> {
        let octets = config.server_id_len();
        if octets < 4 && server >> (8 * octets) != 0 {
            return Err(EncodeError::Number {
                number: server,
                octets,
            });
        }
        Ok(Self {
            codec: Codec::new(config),
            server_id: server.to_be_bytes(),
            nonce: rand::rng().random(),
            left: ids(config),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &CidConfig {
        self.codec.config()
    }

    /// Whether an id is one that this server could have issued with this configuration.
    pub fn could_have_issued(&self, id: &[u8]) -> bool {
        let decoded = self.codec.decode(id);
        decoded.is_ok_and(|d| d.server_number() == Some(u32::from_be_bytes(self.server_id)))
    }

    /// The next id.
    pub fn issue(&mut self) -> ConnectionId {
        let mut rng = rand::rng();
        if self.left == 0 {
            let mut octets: [u8; MAX_LEN] = rng.random();
            let len = self.config().id_len();
            // It has its own length in it (draft, section 3.2).
            octets[0] = UNROUTABLE | (len - 1) as u8;
            return ConnectionId::new(&octets[..len]);
        }
        self.left -= 1;
        self.nonce = match self.config().algorithm {
            Algorithm::Plain => rng.random(),
            _ => self.nonce.wrapping_add(1),
        };
        let nonce = self.nonce.to_be_bytes();
        let (server_len, nonce_len) = (self.config().server_id_len(), self.config().nonce_len());
        let server = padded(&self.server_id, server_len);
        let nonce = padded(&nonce, nonce_len);
        self.codec
            .encode(&server[..server_len], &nonce[..nonce_len], rng.random())
            .unwrap_or_else(|e| unreachable!("lengths are the configuration's: {e}"))
    }
}

/// How many ids can be issued. Random nonces do not run out; they repeat sooner or
/// later, and endpoints draw again when they have an id already.
fn ids(config: &CidConfig) -> u128 {
    match config.algorithm {
        Algorithm::Plain => u128::MAX,
        _ => 1u128
            .checked_shl(8 * config.nonce_len() as u32)
            .unwrap_or(u128::MAX),
    }
}

/// The end of `number` at the end of `len` octets.
fn padded(number: &[u8], len: usize) -> [u8; MAX_LEN] {
    let mut octets = [0; MAX_LEN];
    let used = len.min(number.len());
    octets[len - used..len].copy_from_slice(&number[number.len() - used..]);
    octets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CidKey;

    #[test]
    fn ids_are_of_the_server_and_never_the_same() {
        let key = CidKey::new([7; 16]);
        for algorithm in [
            Algorithm::Plain,
            Algorithm::SipHash(key),
            Algorithm::Aes128(key),
        ] {
            let config = CidConfig::new(3, 2, 8, algorithm).expect("valid");
            let mut issuer = Issuer::new(&config, 0x0102).expect("it fits");
            let mut seen = std::collections::HashSet::new();
            for _ in 0..1000 {
                let id = issuer.issue();
                let decoded = Codec::new(&config).decode(&id).expect("routable");
                assert_eq!(decoded.server_id(), [1, 2]);
                assert!(seen.insert(decoded.nonce().to_vec()));
                assert!(issuer.could_have_issued(&id));
            }
            let other = Issuer::new(&config, 0x0103).expect("it fits").issue();
            assert!(!issuer.could_have_issued(&other));
        }
    }

    #[test]
    fn numbers_must_fit() {
        let config = CidConfig::new(0, 1, 5, Algorithm::Plain).expect("valid");
        assert!(Issuer::new(&config, 255).is_ok());
        let error = EncodeError::Number {
            number: 256,
            octets: 1,
        };
        assert_eq!(Issuer::new(&config, 256).err(), Some(error));
        let long = CidConfig::new(0, 15, 4, Algorithm::Plain).expect("valid");
        let id = Issuer::new(&long, u32::MAX).expect("it fits").issue();
        let decoded = Codec::new(&long).decode(&id).expect("routable");
        assert_eq!(decoded.server_number(), Some(u32::MAX));
    }

    #[test]
    fn a_used_up_configuration_issues_unroutable_ids() {
        let config =
            CidConfig::new(0, 2, 4, Algorithm::SipHash(CidKey::new([1; 16]))).expect("valid");
        let mut issuer = Issuer::new(&config, 1).expect("it fits");
        issuer.left = 1;
        assert_eq!(issuer.issue()[0] >> 5, 0);
        let id = issuer.issue();
        assert_eq!((id[0], id.len()), (0b1110_0110, 7));
    }
}
