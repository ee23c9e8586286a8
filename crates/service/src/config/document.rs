// SPDX-License-Identifier: Apache-2.0
//! From a file's text to its raw keys; all that serde refuses is reported at once.

use std::cell::LazyCell;
use std::mem;
use std::ops::Range;
use std::path::Path;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, Error};

use super::error::Faults;
use super::json;
use super::renamed::{self, Renamed};
use super::tables::Tables;
use super::{ConfigErrors, words};

/// Faults that are looked for in one text: each takes reading it once more.
const FAULTS_MAX: usize = 100;

/// Reads a file's text as `R` and makes a `C` of it that cannot be wrong.
pub fn parse<R: DeserializeOwned + JsonSchema, C>(
    path: &Path,
    text: &str,
    renamed: &Renamed,
    check: impl FnOnce(R, &mut Faults<'_>) -> Option<C>,
) -> Result<C, ConfigErrors> {
    parse_prepared(path, text, renamed, |_, _| {}, check)
}

/// As [`parse`], of a document in which `prepare` puts out in full what the file says once.
pub fn parse_prepared<R: DeserializeOwned + JsonSchema, C>(
    path: &Path,
    text: &str,
    renamed: &Renamed,
    prepare: impl Fn(&mut DeTable<'_>, &mut Faults<'_>),
    check: impl FnOnce(R, &mut Faults<'_>) -> Option<C>,
) -> Result<C, ConfigErrors> {
    let mut faults = Faults::new(text);
    let raw = read(text, renamed, prepare, &mut faults);
    match raw.and_then(|raw| check(raw, &mut faults)) {
        Some(config) if faults.is_empty() => Ok(config),
        _ => Err(faults.into_errors(path)),
    }
}

/// As [`parse`], of a file that has all its keys in one table.
pub fn parse_table<R: DeserializeOwned + JsonSchema, C>(
    path: &Path,
    text: &str,
    (table, whose): (&str, &str),
    renamed: &Renamed,
    check: impl FnOnce(R, &mut Faults<'_>) -> Option<C>,
) -> Result<C, ConfigErrors> {
    // Else each key would be reported as unknown.
    if is_readable(text) && !has_key(text, table) {
        let mut faults = Faults::new(text);
        faults.file(format!(
            "`[{table}]` is missing; {whose} file has all its keys in that table"
        ));
        return Err(faults.into_errors(path));
    }
    parse(path, text, renamed, check)
}

/// Reads a text of TOML as `R`, if nothing at all is wrong with it.
pub fn read_sound<'t, R: DeserializeOwned>(
    text: &'t str,
    prepare: impl FnOnce(&mut DeTable<'t>, &mut Faults<'_>),
) -> Option<R> {
    let mut faults = Faults::new("");
    let mut document = DeTable::parse(text).ok()?;
    prepare(document.get_mut(), &mut faults);
    let raw = R::deserialize(Deserializer::from(document)).ok()?;
    faults.is_empty().then_some(raw)
}

/// A text's keys, as TOML or JSON has them.
fn document<'t>(text: &'t str, faults: &mut Faults<'_>) -> Option<Spanned<DeTable<'t>>> {
    if json::is_json(text) {
        let parsed = json::parse(text);
        return parsed.map_err(|(at, message)| faults.at(at, message)).ok();
    }
    let parsed = DeTable::parse(text);
    parsed
        .map_err(|error| note(&error, of_syntax(&error, text), faults))
        .ok()
}

/// What a parser's sentence means to whoever wrote the line.
fn of_syntax(error: &Error, text: &str) -> String {
    let message = first_line(error.message());
    let Some(at) = error.span() else {
        return message;
    };
    match message.as_str() {
        "duplicate key" => given_twice(text, at),
        _ if message.starts_with("key with no value") => {
            let mut above = text[..begin_of_line(text, at.start)].lines().map(str::trim);
            match above.all(|line| line.is_empty() || line.starts_with('#')) {
                true => "this is not TOML, which has KEY = VALUE in a line; `causeway import` converts another load balancer's file".to_owned(),
                false => "there is no `=` behind the key; write KEY = VALUE".to_owned(),
            }
        }
        _ => message,
    }
}

fn begin_of_line(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |end| end + 1)
}

/// A key, or a table's header, that stands in one table again.
fn given_twice(text: &str, at: Range<usize>) -> String {
    let name = text[at.clone()].trim();
    let begin = begin_of_line(text, at.start);
    let own = text[begin..].lines().next().unwrap_or_default().trim();
    let is_header = own.starts_with('[');
    let is_same = |line: &str| match is_header {
        true => line.trim() == own,
        false => line.split('=').next().unwrap_or_default().trim() == name,
    };
    // A key's table begins at the header above it.
    let above: Vec<&str> = text[..begin].lines().collect();
    let table = above.iter().rposition(|line| line.trim().starts_with('['));
    let from = table.filter(|_| !is_header).unwrap_or(0);
    match above[from..].iter().position(|line| is_same(line)) {
        Some(first) => format!(
            "`{name}` is given twice, first on line {}",
            from + first + 1
        ),
        None => format!("`{name}` is given twice"),
    }
}

/// Whether a text can be read at all.
pub fn is_readable(text: &str) -> bool {
    document(text, &mut Faults::new(text)).is_some()
}

/// Whether a file has a key or a table of that name, outside of any table.
pub fn has_key(text: &str, name: &str) -> bool {
    let document = document(text, &mut Faults::new(text));
    document.is_some_and(|document| document.get_ref().contains_key(name))
}

/// The text at the end of some tables and a key, also where the rest cannot be read.
pub fn text_at(text: &str, keys: &[&str]) -> Option<String> {
    if json::is_json(text) {
        return match json::parse(text) {
            Ok(document) => text_in(document.get_ref(), keys),
            Err(_) => text_behind_names(text, keys),
        };
    }
    let document = DeTable::parse_recoverable(text).0;
    // Behind some faults that leaves out what follows.
    text_in(document.get_ref(), keys).or_else(|| text_in_lines(text, keys))
}

fn text_in(table: &DeTable<'_>, keys: &[&str]) -> Option<String> {
    let (key, inner) = keys.split_first()?;
    match (table.get(*key)?.get_ref(), inner) {
        (DeValue::String(value), []) => Some(value.clone().into_owned()),
        (DeValue::Table(table), _) => text_in(table, inner),
        _ => None,
    }
}

/// The same of the line of a key below its table's header.
fn text_in_lines(text: &str, keys: &[&str]) -> Option<String> {
    let (key, tables) = keys.split_last()?;
    let wanted = tables.join(".");
    let mut table = "";
    text.lines().find_map(|line| {
        if let Some(header) = line.trim().strip_prefix('[') {
            table = header.split(']').next().unwrap_or_default().trim();
            return None;
        }
        let is_key = table == wanted && line.split('=').next()?.trim() == *key;
        let read: toml::Table = is_key.then(|| toml::from_str(line).ok())??;
        read.get(*key)?.as_str().map(str::to_owned)
    })
}

/// The same of JSON: what stands behind the names, one after the other.
fn text_behind_names(text: &str, keys: &[&str]) -> Option<String> {
    let value = keys.iter().try_fold(text, |text, key| {
        let name = format!("\"{key}\"");
        let mut places = text.match_indices(&name);
        places.find_map(|(at, name)| text[at + name.len()..].trim_start().strip_prefix(':'))
    })?;
    let mut values = serde_json::Deserializer::from_str(value).into_iter::<String>();
    values.next()?.ok()
}

/// The first of some keys that has text in a file; each is the end of a path, as `.store.password`.
pub(super) fn with_text<'n>(text: &str, keys: &[&'n str]) -> Option<&'n str> {
    let document = document(text, &mut Faults::new(text))?;
    find_text(document.get_ref(), "", keys)
}

fn find_text<'n>(table: &DeTable<'_>, within: &str, keys: &[&'n str]) -> Option<&'n str> {
    table.iter().find_map(|(key, value)| {
        let path = format!("{within}.{}", key.get_ref());
        match value.get_ref() {
            DeValue::String(_) => keys.iter().copied().find(|key| path.ends_with(key)),
            DeValue::Table(table) => find_text(table, &path, keys),
            DeValue::Array(array) => array.iter().find_map(|element| match element.get_ref() {
                DeValue::Table(table) => find_text(table, &path, keys),
                _ => None,
            }),
            _ => None,
        }
    })
}

/// serde stops at the first key that it does not know or value of another type. So what it
/// refuses is noted and taken out, and the rest is read again. With any such fault nothing
/// is checked further: a misspelt key would be missing, too. To read consumes the document; that
/// it is made again for each fault costs less than a copy of a million reals for none.
fn read<R: DeserializeOwned + JsonSchema>(
    text: &str,
    renamed: &Renamed,
    prepare: impl Fn(&mut DeTable<'_>, &mut Faults<'_>),
    faults: &mut Faults<'_>,
) -> Option<R> {
    let tables: LazyCell<Tables> = LazyCell::new(Tables::of::<R>);
    let prepared = |faults: &mut Faults<'_>| {
        let mut document = document(text, faults)?;
        prepare(document.get_mut(), faults);
        Some(document)
    };
    let mut document = prepared(faults)?;
    let mut refused: Vec<Range<usize>> = Vec::new();
    for _ in 0..FAULTS_MAX {
        let error = match R::deserialize(Deserializer::from(document)) {
            Ok(raw) if faults.is_empty() => return Some(raw),
            Ok(_) => break,
            Err(error) => error,
        };
        // What is wrong with it as a whole is noted already.
        document = prepared(&mut Faults::new(text))?;
        for place in &refused {
            take_out(document.get_mut(), place);
        }
        let new_names = error.span();
        let new_names = new_names.map(|at| renamed::at(renamed, document.get_ref(), &at));
        match new_names.filter(|names| !names.is_empty()) {
            Some(names) => names
                .into_iter()
                .for_each(|(at, message)| faults.at(at, message)),
            None => note(&error, explain(error.message(), &tables), faults),
        }
        let Some(place) = error.span() else { break };
        if !take_out(document.get_mut(), &place) {
            break;
        }
        refused.push(place);
    }
    faults.leave_values();
    None
}

fn note(error: &Error, message: String, faults: &mut Faults<'_>) {
    match error.span() {
        Some(span) => match faults.remedy(&span) {
            Some(remedy) => faults.at(span, remedy),
            None => faults.at(span, message),
        },
        None => faults.file(message),
    }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

/// Rewrites serde's list of fields as a suggestion, where a field is near or another table
/// has the key, and Rust's names of types as words.
fn explain(message: &str, tables: &LazyCell<Tables>) -> String {
    let first = first_line(message);
    let is_type = first.starts_with("invalid type");
    if let (true, Some((wrong, name))) = (is_type, first.split_once(", expected ")) {
        let number = wrong.split('`').nth(1).unwrap_or_default();
        if wrong.ends_with(" as i128") || wrong.ends_with(" as u128") {
            return format!("`{number}` is out of range");
        }
        if let Some(table) = name.strip_prefix("struct ") {
            return format!(
                "{wrong}, expected a table in {{ }}, with some of {}",
                tables.keys_of(table)
            );
        }
        let word = match name {
            "i64" => "a whole number",
            "f64" => "a number",
            "a sequence" => "a list in [ ]",
            _ => name,
        };
        return match (wrong, name) {
            ("invalid type: map", "a sequence") => {
                "there may be several of these tables: write the name in two pairs of brackets, as in [[vip]]".to_owned()
            }
            _ => format!("{wrong}, expected {word}"),
        };
    }
    let quoted: Vec<&str> = first.split('`').skip(1).step_by(2).collect();
    match (first.strip_prefix("unknown field"), quoted.split_first()) {
        (Some(_), Some((key, known))) => match (words::nearest(key, known), tables.home_of(key)) {
            (None, Some(home)) => format!("unknown key `{key}` here; it belongs to {home}"),
            (Some(near), None) => format!("unknown key `{key}`; did you mean `{near}`?"),
            (Some(near), Some(home)) => {
                format!(
                    "unknown key `{key}` here; did you mean `{near}`? `{key}` belongs to {home}"
                )
            }
            (None, None) => match known {
                [only] => format!("unknown key `{key}`; the only key here is {only}"),
                _ => format!("unknown key `{key}`; known here are {}", known.join(", ")),
            },
        },
        _ => first,
    }
}

/// Takes out the innermost entries whose key or value stands at a place of the text, if any
/// does: what a file says once may hold in many tables.
fn take_out(table: &mut DeTable<'_>, place: &Range<usize>) -> bool {
    let values = table.iter_mut().map(|(_, value)| value.get_mut());
    let taken = values.map(|value| take_out_of(value, place));
    if taken.filter(|taken| *taken).count() > 0 {
        return true;
    }
    let mut entries = table.iter();
    let entry = entries.find(|(key, value)| key.span() == *place || value.span() == *place);
    let key = entry.map(|(key, _)| key.get_ref().clone().into_owned());
    key.is_some_and(|key| table.remove(key.as_str()).is_some())
}

fn take_out_of(value: &mut DeValue<'_>, place: &Range<usize>) -> bool {
    match value {
        DeValue::Table(table) => take_out(table, place),
        DeValue::Array(array) => {
            let elements = array.iter_mut().map(|element| element.get_mut());
            let taken = elements.map(|element| take_out_of(element, place));
            if taken.filter(|taken| *taken).count() > 0 {
                return true;
            }
            let before = array.len();
            let elements = mem::replace(array, DeArray::new()).into_iter();
            *array = elements
                .filter(|element| element.span() != *place)
                .collect();
            array.len() < before
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_format_is_told_to_be_none_of_these() {
        for text in [
            "# HAProxy\nglobal\n    daemon\n",
            "virtual_server 192.0.2.1 80 {\n}\n",
            "interface: eth0\n",
        ] {
            let mut faults = Faults::new(text);
            assert!(document(text, &mut faults).is_none());
            let told = faults.into_errors(Path::new("x")).to_string();
            assert!(told.contains(": this is not TOML, "), "{text}: {told}");
        }
    }

    #[test]
    fn a_key_of_a_broken_file_is_read_as_far_as_it_can_be() {
        for text in [
            "{ \"vip\": [], \"state_dir\": \"/a\" }",
            "{ \"vip\": [, \"state_dir\" : \"/a\" }",
            "{\n  \"state_dir\": \"/a\",\n  \"vip\": [\n",
            "state_dir = \"/a\"\n",
            "state_dir = '/a' # here\nhalf = \n[[vip]\n",
            "half =\nstate_dir = \"/a\"\n[xdp]\nstate_dir = \"/b\"\n",
        ] {
            let found = text_at(text, &["state_dir"]);
            assert_eq!(found.as_deref(), Some("/a"), "{text}");
        }
        for text in ["", "state_dir = 5", "[xdp]\nstate_dir = \"/b\"\n"] {
            assert_eq!(text_at(text, &["state_dir"]), None, "{text}");
        }
        for text in [
            "{ \"tunnel\": { \"state_dir\": \"/a\" } }",
            "{ \"name\": \"tunnel\", \"tunnel\": { \"state_dir\": \"/a\" }, broken",
            "[tunnel]\nstate_dir = \"/a\"\n[broken",
            "[tunnel]\nkeys =\nstate_dir = \"/a\"\n",
            "[tunnel]\nstate_dir = \"/a\"\nkeys \"none\"\n",
            "[tunnel]\nkeys \"none\"\nstate_dir = \"/a\"\n[[tunnel.path]]\nid = 0\n",
            "tunnel.state_dir = \"/a\"\n[tunnel",
        ] {
            let found = text_at(text, &["tunnel", "state_dir"]);
            assert_eq!(found.as_deref(), Some("/a"), "{text}");
        }
    }
}
