// SPDX-License-Identifier: Apache-2.0
//! Gives the keys of an old file their new names, and leaves all else as it is written:
//! comments, order, blank lines.

use toml_edit::{DocumentMut, InlineTable, Item, Key, Table, TableLike, Value};

/// A file by its new names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrated {
    pub text: String,
    /// What has another name or place now, a sentence each.
    pub done: Vec<String>,
    /// What is left to do by hand, a sentence each.
    pub left: Vec<String>,
}

/// Renames the keys of a text. A `*` in a path is any one name; lists are gone through.
pub fn migrate<'a>(
    text: &str,
    renamed: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Migrated, String> {
    let document: Result<DocumentMut, _> = text.parse();
    let mut document =
        document.map_err(|error| format!("it is not valid TOML: {}", error.message().trim()))?;
    let (moved, own): (Vec<_>, Vec<_>) =
        renamed.into_iter().partition(|(_, new)| new.contains('.'));
    let (mut done, mut left) = (Vec::new(), Vec::new());
    for (old, new) in own {
        let path: Vec<&str> = old.split('.').collect();
        rename(
            document.as_item_mut(),
            &path,
            new,
            old,
            &mut done,
            &mut left,
        );
    }
    // What is inside of something goes before that does.
    let mut moved = moved;
    moved.sort_by_key(|(old, _)| std::cmp::Reverse(old.split('.').count()));
    for (old, new) in moved {
        carry(&mut document, old, new, &mut done, &mut left);
    }
    Ok(Migrated {
        text: document.to_string(),
        done,
        left,
    })
}

/// A table, in either way of writing.
enum AnyTable<'a> {
    Table(&'a mut Table),
    Inline(&'a mut InlineTable),
}

impl AnyTable<'_> {
    fn as_table(&mut self) -> &mut dyn TableLike {
        match self {
            Self::Table(table) => *table,
            Self::Inline(table) => *table,
        }
    }

    /// Gives a key another name where it stands.
    fn rename(&mut self, old: &str, new: &str) {
        let names: Vec<String> = self
            .as_table()
            .iter()
            .map(|(key, _)| key.to_owned())
            .collect();
        // Out and in again, all in their order.
        let named = |key: Key| match key.get() == old {
            true => Key::new(new)
                .with_leaf_decor(key.leaf_decor().clone())
                .with_dotted_decor(key.dotted_decor().clone()),
            false => key,
        };
        match self {
            Self::Table(table) => {
                let entries: Vec<_> = names
                    .iter()
                    .filter_map(|name| table.remove_entry(name))
                    .collect();
                for (key, item) in entries {
                    table.insert_formatted(&named(key), item);
                }
            }
            Self::Inline(table) => {
                let entries: Vec<_> = names
                    .iter()
                    .filter_map(|name| table.remove_entry(name))
                    .collect();
                for (key, value) in entries {
                    table.insert_formatted(&named(key), value);
                }
            }
        }
    }
}

/// The tables that an entry is, or has in a list.
fn tables_of(item: &mut Item) -> Vec<AnyTable<'_>> {
    match item {
        Item::Table(table) => vec![AnyTable::Table(table)],
        Item::ArrayOfTables(tables) => tables.iter_mut().map(AnyTable::Table).collect(),
        Item::Value(Value::InlineTable(table)) => vec![AnyTable::Inline(table)],
        Item::Value(Value::Array(values)) => {
            let tables = values.iter_mut().filter_map(Value::as_inline_table_mut);
            tables.map(AnyTable::Inline).collect()
        }
        _ => Vec::new(),
    }
}

fn rename(
    item: &mut Item,
    path: &[&str],
    new: &str,
    whole: &str,
    done: &mut Vec<String>,
    left: &mut Vec<String>,
) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    for mut table in tables_of(item) {
        if !rest.is_empty() {
            let inner = table.as_table().iter_mut();
            let inner = inner.filter(|(key, _)| *first == "*" || key.get() == *first);
            for (_, item) in inner {
                rename(item, rest, new, whole, done, left);
            }
        } else if table.as_table().contains_key(first) {
            if table.as_table().contains_key(new) {
                left.push(format!(
                    "`{whole}` is called `{new}` now, and both are there: remove one"
                ));
                continue;
            }
            table.rename(first, new);
            done.push(format!("`{whole}` is called `{new}`"));
        }
    }
}

/// Takes an entry to another table.
fn carry(
    document: &mut DocumentMut,
    old: &str,
    new: &str,
    done: &mut Vec<String>,
    left: &mut Vec<String>,
) {
    let Some((above, name)) = old.rsplit_once('.') else {
        return;
    };
    let (above_new, name_new) = new.rsplit_once('.').unwrap_or(("", new));
    let Some(item) = find(document.as_item_mut(), above)
        .and_then(|table| table.get(name))
        .cloned()
    else {
        return;
    };
    // A table whose keys have gone elsewhere is a switch.
    let item = match item.as_table_like() {
        Some(table) if !table.is_empty() => {
            let keys: Vec<&str> = table.iter().map(|(key, _)| key).collect();
            left.push(format!(
                "`{old}` is `{new} = true` now, and has {} still: move that by hand",
                keys.join(", ")
            ));
            return;
        }
        Some(_) => toml_edit::value(true),
        None => item,
    };
    let known = find(document.as_item_mut(), above_new)
        .and_then(|table| table.get(name_new))
        .cloned();
    if let Some(known) = &known
        && known.to_string().trim() != item.to_string().trim()
    {
        left.push(format!(
            "`{old}` is `{new}` now, which says {} already: put {} there by hand",
            known.to_string().trim(),
            item.to_string().trim()
        ));
        return;
    }
    // It is taken away only once it stands where it belongs.
    let from = find(document.as_item_mut(), above);
    let decor = from.and_then(|from| Some(from.key(name)?.leaf_decor().clone()));
    if known.is_none() {
        let Some(table) = table_at(document.as_table_mut(), above_new) else {
            left.push(format!("`{old}` is `{new}` now: write it by hand"));
            return;
        };
        let key = Key::new(name_new).with_leaf_decor(decor.unwrap_or_default());
        table.insert_formatted(&key, item);
    }
    if let Some(from) = find(document.as_item_mut(), above) {
        from.remove(name);
    }
    done.push(format!("`{old}` is `{new}`"));
}

/// The table of a path, which is made where there is none; `None` where it is written as a value.
fn table_at<'a>(mut table: &'a mut Table, path: &str) -> Option<&'a mut Table> {
    for part in path.split('.') {
        let entry = table.entry(part);
        let entry = entry.or_insert_with(|| Item::Table(Table::new()));
        table = entry.as_table_mut()?;
    }
    Some(table)
}

fn find<'a>(item: &'a mut Item, path: &str) -> Option<&'a mut dyn TableLike> {
    let mut item = item;
    for part in path.split('.') {
        item = item.as_table_like_mut()?.get_mut(part)?;
    }
    item.as_table_like_mut()
}

#[cfg(test)]
mod tests {
    use super::super::Renamed;
    use super::*;

    const RENAMED: &Renamed = &[
        ("clients", "reports"),
        ("vip.need", "min"),
        ("pool.*.need", "min"),
        ("vip.source.otherwise", "fallback"),
        ("stateful.listen", "reports.listen"),
        ("agent.load", "agent.report.load"),
        ("agent.load.to", "agent.report.to"),
        ("agent.clients.to", "agent.report.to"),
    ];

    fn of(text: &str) -> Migrated {
        migrate(text, RENAMED.iter().copied()).expect("TOML")
    }

    #[test]
    fn names_change_and_all_else_stays() {
        let old = "# Mine.\ninterface = \"eth0\" # uplink\n\n# Who reports.\n[clients]\nlisten = \"::\" # all\n\
                   [pool.a]\nneed = 2\n\n[[vip]]\naddress = \"192.0.2.1\"\n# At least.\nneed   = 3 # of four\nport = 80\n\
                   source = [{ from = [\"10.0.0.0/8\"], otherwise = \"drop\", exclusive = true }]\n";
        let new = old
            .replace("[clients]", "[reports]")
            .replace("need = 2", "min = 2")
            .replace("need   = 3", "min   = 3")
            .replace("otherwise", "fallback");
        let migrated = of(old);
        assert_eq!(migrated.text, new);
        assert_eq!((migrated.done.len(), migrated.left.len()), (4, 0));
        assert_eq!(
            of(&new),
            Migrated {
                text: new.clone(),
                done: vec![],
                left: vec![]
            }
        );
    }

    #[test]
    fn keys_move_with_their_comments_to_other_tables() {
        let migrated = of("[stateful]\n# Where.\nlisten = \"::\" # all\nidle = \"1s\"\n");
        assert_eq!(
            migrated.text,
            "[stateful]\nidle = \"1s\"\n\n[reports]\n# Where.\nlisten = \"::\" # all\n"
        );
        let migrated = of("[agent.clients]\nto = [\"a\"]\n[agent.load]\nto = [\"a\"]\n");
        assert_eq!(migrated.left, [] as [&str; 0]);
        let read: toml::Table = migrated.text.parse().expect("TOML");
        let report = &read["agent"]["report"];
        assert_eq!(report["load"].as_bool(), Some(true));
        assert_eq!(report["to"].as_array().map(Vec::len), Some(1));
        assert!(read["agent"].get("load").is_none());
    }

    #[test]
    fn what_finds_no_place_stays_where_it_is() {
        let text = "[agent]\nreport = { keys = \"/k\" }\n[agent.clients]\nto = [\"a\"]\n";
        let migrated = of(text);
        assert_eq!(migrated.text, text);
        assert_eq!(migrated.done, [] as [&str; 0]);
        assert_eq!(
            migrated.left,
            ["`agent.clients.to` is `agent.report.to` now: write it by hand"]
        );
    }

    #[test]
    fn what_contradicts_itself_is_left_and_told() {
        let text = "[agent.clients]\nto = [\"a\"]\n[agent.load]\nto = [\"b\"]\nother = 1\n[[vip]]\nneed = 1\nmin = 2\n";
        let migrated = of(text);
        assert_eq!(migrated.left.len(), 3, "{:?}", migrated.left);
        assert!(migrated.text.contains("to = [\"b\"]") && migrated.text.contains("need = 1"));
        assert!(
            migrate("a = ", RENAMED.iter().copied())
                .unwrap_err()
                .starts_with("it is not valid TOML")
        );
    }
}
