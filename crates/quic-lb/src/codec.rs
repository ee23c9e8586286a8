// SPDX-License-Identifier: Apache-2.0
//! Server id and nonce into a connection id and out of it again.

use std::fmt;

use aes::Aes128;
use aes::cipher::{BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use thiserror::Error;

use crate::config::{Algorithm, CidConfig, MAX_BLOCK};
use crate::id::{ConnectionId, MAX_LEN};
use crate::network::{self, Sip};

/// Blocks of this length take a single pass of AES.
const AES_BLOCK: usize = 16;
/// Bits of the first octet that are the length's or random.
const LENGTH_BITS: u8 = 0x1f;

/// Encodes and decodes connection ids of one configuration.
pub struct Codec {
    config: CidConfig,
    cipher: Cipher,
}

/// Keys ready to use.
enum Cipher {
    Plain,
    Sip(Sip),
    AesOne(Box<Aes128>),
    AesFour(Box<Aes128>),
}

/// What a connection id says.
#[derive(Clone, PartialEq, Eq)]
pub struct Decoded {
    block: [u8; MAX_BLOCK as usize],
    server_id_len: usize,
    block_len: usize,
}

/// Server id or nonce do not fit the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// Of another length.
    #[error("the configuration's server ids have {wanted} octets, not {given}")]
    ServerId {
        /// The configuration's.
        wanted: usize,
        /// What was given.
        given: usize,
    },
    /// Of another length.
    #[error("the configuration's nonces have {wanted} octets, not {given}")]
    Nonce {
        /// The configuration's.
        wanted: usize,
        /// What was given.
        given: usize,
    },
    /// A number that does not fit.
    #[error("server id {number} does not fit into {octets} octets")]
    Number {
        /// The server id.
        number: u32,
        /// Octets that the configuration has for it.
        octets: usize,
    },
}

/// A connection id that cannot be routed by this configuration (draft, section 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Its first bits name another one.
    #[error("the connection id is of configuration {0}")]
    OtherConfig(u8),
    /// No room for server id and nonce.
    #[error("a connection id of {0} octets is too short for the configuration")]
    TooShort(usize),
}

impl Codec {
    /// A codec with the configuration's key set up.
    pub fn new(config: &CidConfig) -> Self {
        let cipher = match config.algorithm {
            Algorithm::Plain => Cipher::Plain,
            Algorithm::SipHash(key) => Cipher::Sip(Sip(key.octets())),
            Algorithm::Aes128(key) => {
                let aes = Box::new(Aes128::new(&key.octets().into()));
                match config.block_len() {
                    AES_BLOCK => Cipher::AesOne(aes),
                    _ => Cipher::AesFour(aes),
                }
            }
        };
        Self {
            config: *config,
            cipher,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &CidConfig {
        &self.config
    }

    /// The connection id of a server with a nonce that it has never used before. The
    /// low five bits of the first octet are those of `random`, unless the
    /// configuration puts the length there.
    ///
    /// # Errors
    /// When the lengths are not the configuration's.
    pub fn encode(
        &self,
        server_id: &[u8],
        nonce: &[u8],
        random: u8,
    ) -> Result<ConnectionId, EncodeError> {
        let (server_len, nonce_len) = (self.config.server_id_len(), self.config.nonce_len());
        if server_id.len() != server_len {
            return Err(EncodeError::ServerId {
                wanted: server_len,
                given: server_id.len(),
            });
        }
        if nonce.len() != nonce_len {
            return Err(EncodeError::Nonce {
                wanted: nonce_len,
                given: nonce.len(),
            });
        }
        let mut octets = [0; MAX_LEN];
        let id = &mut octets[..self.config.id_len()];
        id[0] = self.config.number << 5 | self.low_bits(random);
        id[1..=server_len].copy_from_slice(server_id);
        id[1 + server_len..].copy_from_slice(nonce);
        self.encrypt(&mut id[1..]);
        Ok(ConnectionId::new(id))
    }

    /// Server id and nonce of a connection id. Octets beyond them are the server's own.
    ///
    /// # Errors
    /// When the id is of another configuration or too short.
    pub fn decode(&self, id: &[u8]) -> Result<Decoded, DecodeError> {
        let Some(&first) = id.first() else {
            return Err(DecodeError::TooShort(0));
        };
        if first >> 5 != self.config.number {
            return Err(DecodeError::OtherConfig(first >> 5));
        }
        let block_len = self.config.block_len();
        let encoded = id
            .get(1..=block_len)
            .ok_or(DecodeError::TooShort(id.len()))?;
        let mut block = [0; MAX_BLOCK as usize];
        block[..block_len].copy_from_slice(encoded);
        self.decrypt(&mut block[..block_len]);
        Ok(Decoded {
            block,
            server_id_len: self.config.server_id_len(),
            block_len,
        })
    }

    fn low_bits(&self, random: u8) -> u8 {
        match self.config.encodes_len {
            true => self.config.block_len() as u8,
            false => random & LENGTH_BITS,
        }
    }

    fn encrypt(&self, block: &mut [u8]) {
        match &self.cipher {
            Cipher::Plain => {}
            Cipher::Sip(sip) => network::encrypt(sip, block),
            Cipher::AesFour(aes) => network::encrypt(aes.as_ref(), block),
            Cipher::AesOne(aes) => one_block(block, |b| aes.encrypt_block(b)),
        }
    }

    fn decrypt(&self, block: &mut [u8]) {
        match &self.cipher {
            Cipher::Plain => {}
            Cipher::Sip(sip) => network::decrypt(sip, block),
            Cipher::AesFour(aes) => network::decrypt(aes.as_ref(), block),
            Cipher::AesOne(aes) => one_block(block, |b| aes.decrypt_block(b)),
        }
    }
}

fn one_block(octets: &mut [u8], cipher: impl Fn(&mut aes::Block)) {
    let mut block: aes::Block = std::array::from_fn(|i| octets[i]).into();
    cipher(&mut block);
    octets.copy_from_slice(&block);
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Codec").field(&self.config).finish()
    }
}

impl Decoded {
    /// The server's id.
    pub fn server_id(&self) -> &[u8] {
        &self.block[..self.server_id_len]
    }

    /// The nonce.
    pub fn nonce(&self) -> &[u8] {
        &self.block[self.server_id_len..self.block_len]
    }

    /// The server's id as a number in network byte order; none from 2^32 on.
    pub fn server_number(&self) -> Option<u32> {
        self.server_id().iter().try_fold(0u32, |number, &octet| {
            Some(number.checked_mul(256)? | u32::from(octet))
        })
    }
}

impl fmt::Debug for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoded")
            .field("server_id", &self.server_id())
            .field("nonce", &self.nonce())
            .finish()
    }
}
