// SPDX-License-Identifier: Apache-2.0
//! What becomes of datagrams, by name.

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reception {
    /// It counts.
    Taken,
    /// Overtaken by a newer one on its way; of what changes only the newest counts.
    Late,
    /// It came before, or is too old for that to be known.
    Replayed,
    /// Of a boot that has yet to respond to a challenge.
    Unproven,
    /// Its tag is not by the key that it names.
    Forged,
    /// The receiver has no such key.
    NoKey,
    /// More than one version away.
    Version,
    /// Shorter than it says.
    Truncated,
    /// No such datagram at all.
    Malformed,
}

impl Reception {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Taken,
        Self::Late,
        Self::Replayed,
        Self::Unproven,
        Self::Forged,
        Self::NoKey,
        Self::Version,
        Self::Truncated,
        Self::Malformed,
    ];

    /// The counter's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Late => "late",
            Self::Replayed => "replayed",
            Self::Unproven => "unproven",
            Self::Forged => "forged",
            Self::NoKey => "no_key",
            Self::Version => "version",
            Self::Truncated => "truncated",
            Self::Malformed => "malformed",
        }
    }
}

/// How many datagrams became of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceptionCounts([u64; Reception::ALL.len()]);

impl ReceptionCounts {
    pub(crate) fn add(&mut self, outcome: Reception) {
        self.0[outcome as usize] += 1;
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = (Reception, u64)> + use<> {
        Reception::ALL.into_iter().zip(self.0)
    }
}
