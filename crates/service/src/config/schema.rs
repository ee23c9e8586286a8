// SPDX-License-Identifier: Apache-2.0
//! A file's keys as a JSON Schema, which editors complete and check by.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// The schema of a file that is read as `R`.
pub fn schema<R: JsonSchema>(title: &str) -> String {
    let settings = SchemaSettings::draft07().for_deserialize();
    let mut schema = settings.into_generator().into_root_schema_for::<R>();
    RecursiveTransform(without_null).transform(&mut schema);
    schema.insert("title".to_owned(), title.into());
    schema.remove("description");
    // A file in JSON may name its schema.
    if let Some(keys) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        keys.insert(
            "$schema".to_owned(),
            serde_json::json!({ "type": "string" }),
        );
    }
    // It holds names and texts of this program alone.
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

/// A key that may be left out is still none that may be null.
fn without_null(schema: &mut Schema) {
    let is_null = |value: &Value| value == "null" || value["type"] == "null";
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| !is_null(kind));
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
        choices.retain(|choice| !is_null(choice));
        if let [Value::Object(only)] = choices.as_slice() {
            let only = only.clone();
            schema.remove("anyOf");
            let object = schema.ensure_object();
            object.extend(only);
        }
    }
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
}
