// SPDX-License-Identifier: Apache-2.0
//! Keys that had other names: a fault of an old file names the new ones.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// Keys that had another name before: where they stand, as in `tunnel.engine.hold` with
/// the names of tables in front, and what they are called now: by their last name, or with
/// all names where they stand elsewhere.
pub type Renamed = [(&'static str, &'static str)];

/// What an unknown key at a place of the text, or those in its table, are called now; none
/// if it had no other name.
pub(super) fn at(
    renamed: &Renamed,
    document: &DeTable<'_>,
    place: &Range<usize>,
) -> Vec<(Range<usize>, String)> {
    let Some((path, value)) = find(document, place, "") else {
        return Vec::new();
    };
    let sentence = |old: &str, new: &str| {
        let shown = match new.contains('.') {
            true => old,
            false => old.rsplit('.').next().unwrap_or_default(),
        };
        format!("`{shown}` is called `{new}` now")
    };
    let inside = renamed.iter().filter_map(|(old, new)| {
        let rest = old.strip_prefix(&path)?.strip_prefix('.')?;
        let key = descend(value, rest)?;
        Some((key, sentence(old, new)))
    });
    let inside: Vec<_> = inside.collect();
    if !inside.is_empty() {
        return inside;
    }
    let itself = renamed.iter().find(|(old, _)| *old == path);
    itself
        .map(|(old, new)| (place.clone(), sentence(old, new)))
        .into_iter()
        .collect()
}

/// The entry whose key stands there, with its path.
fn find<'a>(
    table: &'a DeTable<'_>,
    place: &Range<usize>,
    above: &str,
) -> Option<(String, &'a DeValue<'a>)> {
    table.iter().find_map(|(key, value)| {
        let path = match above {
            "" => key.get_ref().to_string(),
            _ => format!("{above}.{}", key.get_ref()),
        };
        match key.span() == *place {
            true => Some((path, value.get_ref())),
            false => find_in(value.get_ref(), place, &path),
        }
    })
}

fn find_in<'a>(
    value: &'a DeValue<'_>,
    place: &Range<usize>,
    path: &str,
) -> Option<(String, &'a DeValue<'a>)> {
    match value {
        DeValue::Table(table) => find(table, place, path),
        DeValue::Array(array) => {
            let mut elements = array.iter();
            elements.find_map(|element| find_in(element.get_ref(), place, path))
        }
        _ => None,
    }
}

/// Where the key of a path stands in a table.
fn descend(value: &DeValue<'_>, path: &str) -> Option<Range<usize>> {
    let DeValue::Table(table) = value else {
        return None;
    };
    let (first, rest) = path
        .split_once('.')
        .map_or((path, None), |(first, rest)| (first, Some(rest)));
    let (key, value) = table.iter().find(|(key, _)| key.get_ref() == first)?;
    match rest {
        None => Some(key.span()),
        Some(rest) => descend(value.get_ref(), rest),
    }
}
