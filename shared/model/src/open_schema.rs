//! Schemas of messages that Forebay writes.

use serde_json::Value;

/// Makes a schema accept more fields, because later versions may add fields to messages that Forebay writes.
pub fn allow_more(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            for closed in ["additionalProperties", "unevaluatedProperties"] {
                if map.get(closed) == Some(&Value::Bool(false)) {
                    map.remove(closed);
                }
            }
            map.values_mut().for_each(allow_more);
        }
        Value::Array(items) => items.iter_mut().for_each(allow_more),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
