// SPDX-License-Identifier: Apache-2.0
//! Where an XDP program runs: in the driver, or behind it.

use std::fmt;

/// How the configuration wants the program to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver if it can, else generic.
    #[default]
    Auto,
    /// In the driver or not at all.
    Native,
    /// After the driver has made a socket buffer: any interface, slower.
    Generic,
}

impl XdpMode {
    /// Each with its word in configuration files.
    pub const WORDS: [(&'static str, Self); 3] = [
        ("auto", Self::Auto),
        ("native", Self::Native),
        ("generic", Self::Generic),
    ];
}

/// How the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachedMode {
    /// In the driver.
    Native,
    /// After the driver has made a socket buffer.
    Generic,
}

impl fmt::Display for AttachedMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}
