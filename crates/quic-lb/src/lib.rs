// SPDX-License-Identifier: Apache-2.0
//! QUIC connection ids that carry the id of their server, so that a load balancer
//! without a table sends every packet of a connection to the same server, also after
//! the client's address has changed: draft-ietf-quic-load-balancers-21.
//!
//! Balancer and servers share [`CidConfig`]s, up to seven at a time, told apart by the
//! first three bits of each id; each server has an id of its own. A server issues ids
//! with an [`Issuer`]:
//!
//! ```
//! use causeway_quic_lb::{Algorithm, CidConfig, CidKey, Codec, Issuer};
//!
//! let key: CidKey = "8f95f09245765f80256934e50c66207f".parse()?;
//! let config = CidConfig::new(0, 2, 8, Algorithm::SipHash(key))?;
//! let mut issuer = Issuer::new(&config, 300)?;
//! let id = issuer.issue();
//!
//! // What the balancer does:
//! let decoded = Codec::new(&config).decode(&id)?;
//! assert_eq!(decoded.server_number(), Some(300));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature `quinn`, [`quinn::Generator`] issues the ids of a quinn endpoint. With the
//! feature `file`, [`file`] reads what the agent on the server says to issue by.
//!
//! # Algorithms
//!
//! [`Algorithm::Plain`] and [`Algorithm::Aes128`] are the draft's. [`Algorithm::SipHash`]
//! is Causeway's: the draft's four-pass network with SipHash-1-3 in the place of AES,
//! for balancers whose processors have no AES instructions in reach of their data plane.
//! It hides server ids from observers as long as SipHash-1-3 is a pseudo-random
//! function, and it is not a standard: use AES where a box of another maker has to decode.
//!
//! None of them makes ids unforgeable. A client that holds a valid id can send packets to
//! the server that it names; a server drops those that are not of its connections.

#![warn(missing_docs)]

mod codec;
mod config;
#[cfg(feature = "file")]
pub mod file;
mod id;
mod issuer;
mod network;
#[cfg(feature = "quinn")]
pub mod quinn;

pub use codec::{Codec, DecodeError, Decoded, EncodeError};
pub use config::{Algorithm, CidConfig, CidKey, CidKeyError, ConfigError, MAX_CONFIG};
pub use id::ConnectionId;
pub use issuer::Issuer;
