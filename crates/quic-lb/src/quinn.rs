// SPDX-License-Identifier: Apache-2.0
//! Connection ids of a quinn endpoint.
//!
//! ```
//! use causeway_quic_lb::{Algorithm, CidConfig, Issuer, quinn::Generator};
//!
//! let key = "8f95f09245765f80256934e50c66207f".parse()?;
//! let config = CidConfig::new(0, 2, 8, Algorithm::SipHash(key))?;
//! let generator = Generator::new(Issuer::new(&config, 300)?);
//!
//! fn issue(endpoint: &mut quinn_proto::EndpointConfig, generator: &Generator) {
//!     let shared = generator.clone();
//!     endpoint.cid_generator(move || Box::new(shared.clone()));
//! }
//!
//! // Later, when a new configuration has reached the balancers:
//! let next = CidConfig::new(1, 2, 8, Algorithm::SipHash(key))?;
//! generator.rotate(Issuer::new(&next, 300)?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use thiserror::Error;

use crate::Issuer;

/// First bits of an id that no configuration made.
const UNROUTABLE: u8 = 0b111;

/// Issues an endpoint's connection ids. Clones share their state, so one that is kept
/// outside of the endpoint can change its configuration.
#[derive(Debug, Clone)]
pub struct Generator {
    state: Arc<Mutex<State>>,
    len: usize,
    lifetime: Option<Duration>,
}

#[derive(Debug)]
struct State {
    current: Issuer,
    /// Those before, at most one for each number: their ids may live on.
    former: Vec<Issuer>,
}

/// quinn finds ids in packets by their length, which therefore cannot change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the endpoint's connection ids have {wanted} octets; the new configuration has {given}")]
pub struct OtherLength {
    /// Octets of the endpoint's ids.
    pub wanted: usize,
    /// Octets of the new configuration's.
    pub given: usize,
}

impl Generator {
    /// Ids by `issuer`, for as long as their connection lives.
    pub fn new(issuer: Issuer) -> Self {
        Self {
            len: issuer.config().id_len(),
            state: Arc::new(Mutex::new(State {
                current: issuer,
                former: Vec::new(),
            })),
            lifetime: None,
        }
    }

    /// The same with ids that are replaced after `lifetime`. After a rotation, all
    /// connections have ids of the new configuration when it has passed (draft, 3.1).
    #[must_use]
    pub fn with_lifetime(mut self, lifetime: Duration) -> Self {
        self.lifetime = Some(lifetime);
        self
    }

    /// Issues ids by `next` from now on; ids issued before stay valid.
    ///
    /// # Errors
    /// When its ids are of another length.
    pub fn rotate(&self, next: Issuer) -> Result<(), OtherLength> {
        let given = next.config().id_len();
        if given != self.len {
            return Err(OtherLength {
                wanted: self.len,
                given,
            });
        }
        let mut state = self.state();
        let last = std::mem::replace(&mut state.current, next);
        let number = state.current.config().number();
        state.former.push(last);
        state.former.retain(|f| f.config().number() != number);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // An issuer is whole at every moment.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&self.state().current.issue())
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let state = self.state();
        let unroutable = id.first().is_some_and(|first| first >> 5 == UNROUTABLE);
        let mut issuers = state.former.iter().chain([&state.current]);
        match unroutable || issuers.any(|issuer| issuer.could_have_issued(id)) {
            true => Ok(()),
            false => Err(InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        self.len
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        self.lifetime
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, CidConfig, CidKey};

    fn issuer(number: u8, nonce_len: u8, server: u32) -> Issuer {
        let algorithm = Algorithm::SipHash(CidKey::new([number; 16]));
        let config = CidConfig::new(number, 2, nonce_len, algorithm).expect("valid");
        Issuer::new(&config, server).expect("it fits")
    }

    #[test]
    fn ids_before_and_after_a_rotation_are_valid() {
        let outside = Generator::new(issuer(0, 8, 5));
        let mut inside = outside.clone();
        let before = inside.generate_cid();
        outside.rotate(issuer(1, 8, 5)).expect("same length");
        let after = inside.generate_cid();
        assert_eq!((before[0] >> 5, after[0] >> 5), (0, 1));
        assert!(inside.validate(&before).is_ok() && inside.validate(&after).is_ok());
        let foreign = Generator::new(issuer(1, 8, 6)).generate_cid();
        assert!(inside.validate(&foreign).is_err());
        // A number that is used again forgets what it was.
        outside.rotate(issuer(2, 8, 5)).expect("same length");
        outside.rotate(issuer(0, 8, 7)).expect("same length");
        assert!(inside.validate(&before).is_err());
    }

    #[test]
    fn the_length_stays() {
        let generator = Generator::new(issuer(0, 8, 5));
        let error = OtherLength {
            wanted: 11,
            given: 13,
        };
        assert_eq!(generator.rotate(issuer(1, 10, 5)), Err(error));
    }
}
