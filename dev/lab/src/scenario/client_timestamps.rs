// SPDX-License-Identifier: Apache-2.0
//! How clients' TCP timestamps are.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a client's TCP timestamps are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientTimestamps {
    /// As the kernel has them.
    On,
    /// None.
    Off,
    /// On, through a balancer with cookies.
    Cookie,
}

impl ClientTimestamps {
    pub(super) const ALL: [Self; 3] = [Self::On, Self::Off, Self::Cookie];

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Cookie => "cookie",
        }
    }
}

impl fmt::Display for ClientTimestamps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for ClientTimestamps {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|t| t.word() == word).ok_or(())
    }
}
