// SPDX-License-Identifier: Apache-2.0
//! A file in JSON, read into the same document as one in TOML: every key and value with its
//! place, so that faults are reported with their lines.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// No file has tables this deep; each level is a call.
const DEPTH_MAX: usize = 32;

/// What is wrong, and where.
type Fault = (Range<usize>, String);

/// TOML has no text that begins with a brace.
pub(super) fn is_json(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// Reads a text that [`is_json`].
pub(super) fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Fault> {
    let whole: &RawValue = serde_json::from_str(text).map_err(|error| {
        let line: usize = text
            .split_inclusive('\n')
            .take(error.line() - 1)
            .map(str::len)
            .sum();
        let at = (line + error.column().saturating_sub(1)).min(text.len());
        (at..at, sentence(&error))
    })?;
    let (at, mut document) = Reader { text }.table(whole, 0)?;
    // Editors find a file's schema by it.
    document.remove("$schema");
    Ok(Spanned::new(at, document))
}

struct Reader<'a> {
    text: &'a str,
}

impl<'a> Reader<'a> {
    /// Where a piece of the text stands in it.
    fn span_of(&self, piece: &RawValue) -> Range<usize> {
        let begin = piece.get().as_ptr() as usize - self.text.as_ptr() as usize;
        begin..begin + piece.get().len()
    }

    fn part<T: Deserialize<'a>>(&self, piece: &'a RawValue) -> Result<T, Fault> {
        serde_json::from_str(piece.get()).map_err(|error| (self.span_of(piece), sentence(&error)))
    }

    fn value(&self, piece: &'a RawValue, depth: usize) -> Result<DeValue<'a>, Fault> {
        let wrong = |message: &str| Err((self.span_of(piece), message.to_owned()));
        if depth > DEPTH_MAX {
            return wrong("this is nested deeper than any key");
        }
        Ok(match piece.get().as_bytes().first() {
            Some(b'{') => DeValue::Table(self.table(piece, depth)?.1),
            Some(b'[') => {
                let elements: Vec<&RawValue> = self.part(piece)?;
                let elements = elements.into_iter().map(|element| {
                    Ok(Spanned::new(
                        self.span_of(element),
                        self.value(element, depth + 1)?,
                    ))
                });
                DeValue::Array(elements.collect::<Result<_, Fault>>()?)
            }
            Some(b'"') => DeValue::String(Cow::Owned(self.part(piece)?)),
            Some(b't' | b'f') => DeValue::Boolean(self.part(piece)?),
            Some(b'n') => return wrong("null is not a value; leave the key out"),
            // A number of JSON is one of TOML.
            _ => match DeValue::parse(piece.get()) {
                Ok(number) => number.into_inner(),
                Err(error) => return wrong(error.message()),
            },
        })
    }

    fn table(
        &self,
        piece: &'a RawValue,
        depth: usize,
    ) -> Result<(Range<usize>, DeTable<'a>), Fault> {
        let mut table = DeTable::new();
        let Members(members) = self.part(piece)?;
        for (key, value) in members {
            let (at, name) = (self.span_of(key), self.part::<String>(key)?);
            if table.contains_key(name.as_str()) {
                return Err((at, format!("`{name}` stands here twice")));
            }
            let value = Spanned::new(self.span_of(value), self.value(value, depth + 1)?);
            table.insert(Spanned::new(at, Cow::Owned(name)), value);
        }
        Ok((self.span_of(piece), table))
    }
}

/// The members of an object, as they are written.
struct Members<'a>(Vec<(&'a RawValue, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// Without serde_json's place, which is of the part that was read.
fn sentence(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    format!("this is not valid JSON: {message}")
}
