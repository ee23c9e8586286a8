// SPDX-License-Identifier: Apache-2.0
//! Words of the configuration as arguments: shells complete them, and help says what they mean.

use causeway_service::config::Words;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// One of the words, as it is written.
pub(crate) fn word<W: Words>() -> PossibleValuesParser {
    let words = W::ALL.iter().zip(W::ABOUT);
    let values = words.map(|((word, _), about)| {
        // Help has no full stop behind a line.
        PossibleValue::new(*word).help(about.trim_end_matches('.'))
    });
    PossibleValuesParser::new(values)
}

/// The value of one of the words.
pub(crate) fn value_of<W: Words + Send + Sync>() -> impl TypedValueParser<Value = W> {
    word::<W>().try_map(|word| W::from_word(&word).map_err(std::io::Error::other))
}
