// SPDX-License-Identifier: Apache-2.0
//! Closed sets of words that a key may hold.

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// A closed set of words.
pub trait Words: Copy + 'static {
    /// What the set is called in a message.
    const KIND: &'static str;
    /// Every word with its value.
    const ALL: &'static [(&'static str, Self)];
    /// What each word stands for, one sentence.
    const ABOUT: &'static [&'static str];

    /// The value of a word; else a sentence that suggests the nearest one.
    fn from_word(word: &str) -> Result<Self, String> {
        one_of(Self::KIND, Self::ALL, word)
    }
}

/// Stands in a schema for a key that holds one of these words.
pub struct WordOf<T>(PhantomData<T>);

impl<T: Words> JsonSchema for WordOf<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::KIND.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let words = T::ALL.iter().zip(T::ABOUT);
        let words =
            words.map(|((word, _), about)| json_schema!({ "const": word, "description": about }));
        json_schema!({ "oneOf": words.collect::<Vec<_>>() })
    }
}

/// The schema of a key that holds a word of a list.
pub fn schema_of_words<T>(words: &[(&'static str, T)]) -> Schema {
    json_schema!({ "enum": words.iter().map(|(word, _)| *word).collect::<Vec<_>>() })
}

/// The value of a word out of a list; else a sentence that suggests the nearest one.
pub fn one_of<T: Copy>(kind: &str, words: &[(&'static str, T)], word: &str) -> Result<T, String> {
    if let Some((_, value)) = words.iter().find(|(known, _)| *known == word) {
        return Ok(*value);
    }
    let known: Vec<&str> = words.iter().map(|(known, _)| *known).collect();
    Err(match nearest(word, &known) {
        Some(near) => format!("unknown {kind} `{word}`; did you mean `{near}`?"),
        None => format!(
            "unknown {kind} `{word}`; choose one of {}",
            known.join(", ")
        ),
    })
}

/// The candidate that a typing mistake most likely meant, if any is close.
pub fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    candidates
        .iter()
        .map(|candidate| {
            (
                strsim::normalized_damerau_levenshtein(word, candidate),
                *candidate,
            )
        })
        .filter(|(likeness, _)| *likeness > 0.6)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// Declares an enum whose values are words of a file.
#[macro_export]
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $kind:literal, { $($(#[doc = $about:literal])+ $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[doc = $about])+ $variant,)+ }

        impl $crate::config::Words for $name {
            const KIND: &'static str = $kind;
            const ALL: &'static [(&'static str, Self)] = &[$(($word, Self::$variant),)+];
            const ABOUT: &'static [&'static str] = &[$(concat!($($about),+).trim_ascii_start(),)+];
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(match self { $(Self::$variant => $word,)+ })
            }
        }
    };
}
