// SPDX-License-Identifier: Apache-2.0
//! The tables of a file and their keys: an unknown key may be known in another table.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// Tables in tables that are looked through: a table that may hold itself has no end.
const DEPTH_MAX: usize = 8;

/// The tables of a file, as its schema describes them.
pub(super) struct Tables {
    root: Value,
}

/// One table.
struct Table<'a> {
    /// The names in its header; empty at the top level.
    name: String,
    is_list: bool,
    schema: &'a Value,
}

impl Tables {
    /// Those of a file that is read as `R`.
    pub(super) fn of<R: JsonSchema>() -> Self {
        let generator = SchemaSettings::draft07().for_deserialize().into_generator();
        Self {
            root: generator.into_root_schema_for::<R>().into(),
        }
    }

    /// The keys of the table that is read as this type.
    pub(super) fn keys_of(&self, type_name: &str) -> String {
        let keys = self.root["definitions"][type_name]["properties"].as_object();
        let keys: Vec<&str> = keys
            .into_iter()
            .flatten()
            .map(|(key, _)| key.as_str())
            .collect();
        keys.join(", ")
    }

    /// What a key of this name belongs to, as the end of a sentence; `None` if no table has it.
    pub(super) fn home_of(&self, key: &str) -> Option<String> {
        let mut places = self.with(key);
        let last = places.pop()?;
        Some(match places.is_empty() {
            true => last,
            false => format!("{} or {last}", places.join(", ")),
        })
    }

    /// The tables that have the key, the outermost first.
    fn with(&self, key: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut level = vec![Table {
            name: String::new(),
            is_list: false,
            schema: &self.root,
        }];
        for _ in 0..DEPTH_MAX {
            let having = level.iter().filter(|table| table.key(key).is_some());
            let mut having: Vec<_> = having.collect();
            having.sort_by_key(|table| (!table.is_list, &table.name));
            found.extend(having.into_iter().map(|table| self.described(table, key)));
            level = level.iter().flat_map(|table| self.inside(table)).collect();
        }
        found
    }

    fn described(&self, table: &Table<'_>, key: &str) -> String {
        let mut tables = Vec::new();
        if let Some(schema) = table.key(key) {
            self.tables(key, schema, false, &mut tables);
        }
        match (table.name.as_str(), table.is_list) {
            // TOML takes what stands below a table's header for that table's.
            ("", _) if tables.is_empty() => {
                "the top level of the file, above all tables".to_owned()
            }
            ("", _) => "the top level of the file".to_owned(),
            (name, true) => format!("`[[{name}]]`"),
            (name, false) => format!("`[{name}]`"),
        }
    }

    fn inside<'a>(&'a self, table: &Table<'a>) -> Vec<Table<'a>> {
        let keys = table.schema["properties"].as_object();
        let keys = keys.into_iter().flatten();
        let keys = keys.map(|(key, schema)| (key.as_str(), schema));
        // Tables whose names the operator chooses.
        let named = table.schema.get("additionalProperties");
        let named = named.map(|schema| ("NAME", schema));
        let mut tables = Vec::new();
        for (key, schema) in keys.chain(named) {
            let name = match table.name.as_str() {
                "" => key.to_owned(),
                above => format!("{above}.{key}"),
            };
            self.tables(&name, schema, false, &mut tables);
        }
        tables
    }

    /// The tables that a key of this schema may hold.
    fn tables<'a>(
        &'a self,
        name: &str,
        schema: &'a Value,
        is_list: bool,
        found: &mut Vec<Table<'a>>,
    ) {
        if let Some(target) = schema["$ref"].as_str() {
            if let Some(target) = self.root.pointer(target.trim_start_matches('#')) {
                self.tables(name, target, is_list, found);
            }
            return;
        }
        if schema["properties"].is_object() || schema["additionalProperties"].is_object() {
            found.push(Table {
                name: name.to_owned(),
                is_list,
                schema,
            });
        }
        for choices in ["anyOf", "oneOf", "allOf"] {
            for choice in schema[choices].as_array().into_iter().flatten() {
                self.tables(name, choice, is_list, found);
            }
        }
        if let Some(items) = schema.get("items") {
            self.tables(name, items, true, found);
        }
    }
}

impl<'a> Table<'a> {
    /// The schema of one of its keys.
    fn key(&self, key: &str) -> Option<&'a Value> {
        self.schema["properties"].get(key)
    }
}
