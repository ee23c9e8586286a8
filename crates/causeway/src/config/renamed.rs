// SPDX-License-Identifier: Apache-2.0
//! Keys that had other names: whoever brings an old file is told the new ones.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// Old and new paths, of files of all kinds.
const RENAMED: [(&str, &str); 11] = [
    ("clients", "agent_reports"),
    ("clients.listen", "agent_reports.listen"),
    ("clients.keys", "agent_reports.keys"),
    ("stateful.listen", "agent_reports.listen"),
    ("agent.cookie.balancers", "agent.report.to"),
    ("agent.clients.balancers", "agent.report.to"),
    ("agent.clients.keys", "agent.report.keys"),
    ("agent.load", "agent.report.load"),
    ("agent.load.balancers", "agent.report.to"),
    ("agent.load.interval", "agent.report.load_interval"),
    ("agent.load.keys", "agent.report.keys"),
];

/// What an unknown key at a place of the text, or those in its table, are called now; none
/// if it had no other name.
pub(super) fn at(document: &DeTable<'_>, place: &Range<usize>) -> Vec<(Range<usize>, String)> {
    let Some((path, value)) = find(document, place, "") else {
        return Vec::new();
    };
    let sentence = |old: &str, new: &str| format!("`{old}` is now `{new}`");
    let inside = RENAMED.iter().filter_map(|(old, new)| {
        let rest = old.strip_prefix(&path)?.strip_prefix('.')?;
        let key = descend(value, rest)?;
        Some((key, sentence(old, new)))
    });
    let inside: Vec<_> = inside.collect();
    if !inside.is_empty() {
        return inside;
    }
    let itself = RENAMED.iter().find(|(old, _)| *old == path);
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

#[cfg(test)]
mod tests {
    use crate::config::{AgentConfig, Config, ConfigErrors};

    fn told<C: std::fmt::Debug>(parsed: Result<C, ConfigErrors>) -> Vec<String> {
        let errors = parsed.unwrap_err().to_string();
        errors.lines().map(str::to_owned).collect()
    }

    #[test]
    fn old_keys_of_a_balancers_file_are_told_with_their_new_names() {
        let text = "[clients]\nlisten = \"10.0.0.254:9472\"\nkeys = \"/keys\"\n\
                    [stateful]\nlisten = \"10.0.0.254:9472\"\n";
        assert_eq!(
            told(Config::parse("lb.toml".as_ref(), text)),
            [
                "lb.toml:2: `clients.listen` is now `agent_reports.listen`",
                "lb.toml:3: `clients.keys` is now `agent_reports.keys`",
                "lb.toml:5: `stateful.listen` is now `agent_reports.listen`",
            ]
        );
        assert_eq!(
            told(Config::parse("lb.toml".as_ref(), "[clients]\n")),
            ["lb.toml:1: `clients` is now `agent_reports`"]
        );
    }

    #[test]
    fn old_keys_of_an_agents_file_are_told_with_their_new_names() {
        let text = "[agent.cookie]\nbalancers = []\n[agent.clients]\nbalancers = []\n\
                    keys = \"/keys\"\n[agent.load]\nbalancers = []\ninterval = \"1s\"\n\
                    keys = \"/keys\"\n";
        assert_eq!(
            told(AgentConfig::parse("agent.toml".as_ref(), text)),
            [
                "agent.toml:2: `agent.cookie.balancers` is now `agent.report.to`",
                "agent.toml:4: `agent.clients.balancers` is now `agent.report.to`",
                "agent.toml:5: `agent.clients.keys` is now `agent.report.keys`",
                "agent.toml:7: `agent.load.balancers` is now `agent.report.to`",
                "agent.toml:8: `agent.load.interval` is now `agent.report.load_interval`",
                "agent.toml:9: `agent.load.keys` is now `agent.report.keys`",
            ]
        );
    }
}
