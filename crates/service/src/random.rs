// SPDX-License-Identifier: Apache-2.0
//! Chance of the system, for secrets and identities.

use std::io;

use ring::rand::{SecureRandom as _, SystemRandom};

/// Random octets.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut octets = [0; N];
    let filled = SystemRandom::new().fill(&mut octets);
    filled.map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(octets)
}
