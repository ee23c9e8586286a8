// SPDX-License-Identifier: Apache-2.0
//! From a file's text to its raw keys, with all that serde refuses told at once.

use std::mem;
use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer, Error};

use super::ConfigErrors;
use super::error::Faults;
use super::words;

/// Faults that are looked for in one text: each takes reading it once more.
const FAULTS_MAX: usize = 100;

/// Keys that had another name before: where they stand, as in `tunnel.engine.hold` with
/// the names of tables in front, and what they are called now.
pub(super) type Renamed = [(&'static str, &'static str)];

/// Reads a file's text as `R` and makes a `C` of it that cannot be wrong.
pub(super) fn parse<R: DeserializeOwned, C>(
    path: &Path,
    text: &str,
    renamed: &Renamed,
    check: impl FnOnce(R, &mut Faults<'_>) -> Option<C>,
) -> Result<C, ConfigErrors> {
    let mut faults = Faults::new(text);
    match read(text, renamed, &mut faults).and_then(|raw| check(raw, &mut faults)) {
        Some(config) if faults.is_empty() => Ok(config),
        _ => Err(faults.into_errors(path)),
    }
}

/// As [`parse`], of a file that has all its keys in one table.
pub(super) fn parse_table<R: DeserializeOwned, C>(
    path: &Path,
    text: &str,
    (table, whose): (&str, &str),
    renamed: &Renamed,
    check: impl FnOnce(R, &mut Faults<'_>) -> Option<C>,
) -> Result<C, ConfigErrors> {
    // Else each key would be told to be unknown.
    if is_toml(text) && !has_key(text, table) {
        let mut faults = Faults::new(text);
        faults.file(format!(
            "`[{table}]` is missing; {whose} file has all its keys in that table"
        ));
        return Err(faults.into_errors(path));
    }
    parse(path, text, renamed, check)
}

/// Whether a text can be read at all.
pub(super) fn is_toml(text: &str) -> bool {
    DeTable::parse(text).is_ok()
}

/// Whether a file has a key or a table of that name, outside of any table.
pub(super) fn has_key(text: &str, name: &str) -> bool {
    DeTable::parse(text).is_ok_and(|document| document.get_ref().contains_key(name))
}

/// serde stops at the first key that it does not know or value of another type. So what it
/// refuses is noted and taken out, and the rest is read again. With any such fault nothing
/// is checked further: a misspelt key would be missing, too.
fn read<R: DeserializeOwned>(text: &str, renamed: &Renamed, faults: &mut Faults<'_>) -> Option<R> {
    let parsed = DeTable::parse(text);
    let mut document = parsed.map_err(|error| note(&error, faults)).ok()?;
    for _ in 0..FAULTS_MAX {
        match R::deserialize(Deserializer::from(document.clone())) {
            Ok(raw) => return faults.is_empty().then_some(raw),
            Err(error) => {
                let new_name = error.span().and_then(|place| {
                    let key = key_at(document.get_ref(), &place)?;
                    let (_, new) = renamed.iter().find(|(old, _)| *old == key)?;
                    Some((place, key, *new))
                });
                match new_name {
                    Some((place, key, new)) => {
                        let key = key.rsplit('.').next().unwrap_or_default();
                        faults.at(place, format!("`{key}` is called `{new}` now"));
                    }
                    None => note(&error, faults),
                }
                if !take_out(document.get_mut(), &error.span()?) {
                    return None;
                }
            }
        }
    }
    None
}

fn note(error: &Error, faults: &mut Faults<'_>) {
    let message = explain(error.message());
    match error.span() {
        Some(span) => faults.at(span, message),
        None => faults.file(message),
    }
}

/// Rewrites serde's list of fields as a suggestion, where one is near, and Rust's names of
/// types as words.
fn explain(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let is_type = first.starts_with("invalid type");
    if let (true, Some((wrong, name))) = (is_type, first.split_once(", expected ")) {
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
        (Some(_), Some((key, known))) => match words::nearest(key, known) {
            Some(near) => format!("unknown key `{key}`; did you mean `{near}`?"),
            None => match known {
                [only] => format!("unknown key `{key}`; known here is {only} alone"),
                _ => format!("unknown key `{key}`; known here are {}", known.join(", ")),
            },
        },
        _ => first.to_owned(),
    }
}

/// The key that stands at a place of the text, with the names of its tables in front.
fn key_at(table: &DeTable<'_>, place: &Range<usize>) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        if key.span() == *place {
            return Some(key.get_ref().to_string());
        }
        let rest = key_within(value.get_ref(), place)?;
        Some(format!("{}.{rest}", key.get_ref()))
    })
}

fn key_within(value: &DeValue<'_>, place: &Range<usize>) -> Option<String> {
    match value {
        DeValue::Table(table) => key_at(table, place),
        DeValue::Array(array) => array
            .iter()
            .find_map(|element| key_within(element.get_ref(), place)),
        _ => None,
    }
}

/// Takes out the innermost entry whose key or value stands at a place of the text, if one
/// does.
fn take_out(table: &mut DeTable<'_>, place: &Range<usize>) -> bool {
    let mut values = table.iter_mut().map(|(_, value)| value.get_mut());
    if values.any(|value| take_out_of(value, place)) {
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
            let mut elements = array.iter_mut().map(|element| element.get_mut());
            if elements.any(|element| take_out_of(element, place)) {
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
    use crate::config::{AgentConfig, Config, ConfigErrors, TunnelConfig};

    fn lines<C: std::fmt::Debug>(parsed: Result<C, ConfigErrors>) -> Vec<String> {
        let errors = parsed.unwrap_err().to_string();
        errors.lines().map(str::to_owned).collect()
    }

    #[test]
    fn all_unknown_keys_and_wrong_types_of_a_balancers_file_are_told_at_once() {
        let text = "interfaec = \"eth0\"\nxyz = 1\n[contrl]\ninterval = \"1s\"\n\
                    [[vip]]\nadress = \"198.51.100.10\"\nport = \"443\"\n\
                    [[vip.real]]\naddress = 7\nwieght = 3\n[vip.health]\nprob = \"tcp\"\n";
        let told = lines(Config::parse("lb.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "lb.toml:1: unknown key `interfaec`; did you mean `interface`?",
                "lb.toml:2: unknown key `xyz`; known here are interface, pin_dir, state_dir, socket, http, reconcile, hash_key, xdp, encap, flow_table, stateful, measure, control, cookie, clients, announce, history, vip",
                "lb.toml:3: unknown key `contrl`; did you mean `control`?",
                "lb.toml:6: unknown key `adress`; did you mean `address`?",
                "lb.toml:7: invalid type: string \"443\", expected a whole number",
                "lb.toml:9: invalid type: integer `7`, expected a string",
                "lb.toml:10: unknown key `wieght`; did you mean `weight`?",
                "lb.toml:12: unknown key `prob`; did you mean `probe`?",
            ]
        );
    }

    #[test]
    fn wrong_types_are_told_in_words_of_the_file() {
        let text =
            "interface = \"eth0\"\nhttp = 9470\n[flow_table]\nipv4 = 1.5\n[vip]\nport = 80\n";
        let told = lines(Config::parse("lb.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "lb.toml:2: neither an address nor false; write for example \"127.0.0.1:9470\"",
                "lb.toml:4: no count; write a whole number, or for example \"64Ki\"",
                "lb.toml:5: there may be several of these tables: write the name in two pairs of brackets, as in [[vip]]",
            ]
        );
    }

    #[test]
    fn all_unknown_keys_of_an_agents_file_are_told_at_once() {
        let text = "[agent]\ninterfac = \"eth0\"\nadresses = []\n[agent.cooky]\n";
        let told = lines(AgentConfig::parse("agent.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "agent.toml:2: unknown key `interfac`; did you mean `interface`?",
                "agent.toml:3: unknown key `adresses`; did you mean `addresses`?",
                "agent.toml:4: unknown key `cooky`; did you mean `cookie`?",
            ]
        );
    }

    #[test]
    fn all_unknown_keys_of_a_tunnels_file_are_told_at_once() {
        let text = "[tunnel]\ndevise = \"cw0\"\naddresses = [\"10.5.0.1/24\", 5]\n\
                    tunnel.path = 1\n[tunnel.engin]\nrto = 4\n[[tunnels]]\n";
        let told = lines(TunnelConfig::parse("tunnel.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "tunnel.toml:2: unknown key `devise`; did you mean `device`?",
                "tunnel.toml:3: invalid type: integer `5`, expected a string",
                "tunnel.toml:4: unknown key `tunnel`; known here are device, netns, mtu, queue, addresses, persist, threads, poll, keys, socket, http, engine, path",
                "tunnel.toml:5: unknown key `engin`; did you mean `engine`?",
                "tunnel.toml:7: unknown key `tunnels`; did you mean `tunnel`?",
            ]
        );
    }

    #[test]
    fn a_key_that_had_another_name_is_told_its_new_one() {
        let text = "[tunnel]\ndevice = \"cw0\"\nhold = \"1ms\"\n[tunnel.engine]\n\
                    hold = \"25ms\"\ndelta = \"1ms\"\ngive_up = \"1s\"\ngive_up_tries = 3\n";
        let told = lines(TunnelConfig::parse("tunnel.toml".as_ref(), text));
        assert_eq!(
            told,
            [
                "tunnel.toml:3: unknown key `hold`; known here are device, netns, mtu, queue, addresses, persist, threads, poll, keys, socket, http, engine, path",
                "tunnel.toml:5: `hold` is called `reorder_timeout` now",
                "tunnel.toml:6: `delta` is called `switch_gain` now",
                "tunnel.toml:7: `give_up` is called `frame_lifetime` now",
                "tunnel.toml:8: `give_up_tries` is called `max_transmissions` now",
            ]
        );
    }

    #[test]
    fn a_file_of_another_kind_is_told_to_be_one() {
        let told = lines(TunnelConfig::parse(
            "x.toml".as_ref(),
            "device = \"cw0\"\n[[path]]\nid = 0\n",
        ));
        assert_eq!(
            told,
            ["x.toml: `[tunnel]` is missing; a tunnel's file has all its keys in that table"]
        );
        let told = lines(Config::parse(
            "x.toml".as_ref(),
            "[xdp]\nmod = 1\nabc = 2\n",
        ));
        assert_eq!(
            told,
            [
                "x.toml:2: unknown key `mod`; did you mean `mode`?",
                "x.toml:3: unknown key `abc`; known here is mode alone",
            ]
        );
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.toml");
        for (text, by_lb, by_check) in [
            (
                "[tunnel]\n",
                "this is a tunnel's file; start it with `causeway tunnel -c FILE`",
                "`device` is missing",
            ),
            (
                "[agent]\n",
                "this is an agent's file; start it with `causeway agent -c FILE`",
                "`interface` is missing",
            ),
            (
                "device = \"cw0\"\n",
                "unknown key `device`",
                "taken for a balancer's file, as it has neither `[agent]` nor `[tunnel]`",
            ),
        ] {
            std::fs::write(&file, text).unwrap();
            let told = Config::load(&file).unwrap_err().to_string();
            assert!(told.contains(by_lb), "{told}");
            let told = crate::config::check(&file).unwrap_err().to_string();
            assert!(told.contains(by_check), "{told}");
        }
    }

    #[test]
    fn a_text_full_of_faults_ends() {
        let text: String = (0..5_000).map(|n| format!("k{n} = {n}\n")).collect();
        let told = lines(Config::parse("lb.toml".as_ref(), &text));
        assert_eq!(told.last().unwrap(), "lb.toml: and 80 more faults");
    }
}
