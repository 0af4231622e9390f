//! Messages of any type, made from its JSON Schema.

use schemars::JsonSchema;
use serde_json::{Map, Value, json};

const ID: &str = "0198c5d3-0000-7000-8000-000000000001";

/// How much a sample has: only what is required, or all fields with this alternative of each choice.
#[derive(Clone, Copy)]
enum Fullness {
    Required,
    All(usize),
}

/// Samples of a type, as JSON.
pub(crate) fn samples<T: JsonSchema>() -> Vec<Value> {
    let schema = schemars::schema_for!(T).to_value();
    let of = |fullness| Sampler { root: &schema, fullness }.sample(&schema, "", 0);
    [Fullness::Required, Fullness::All(0), Fullness::All(1), Fullness::All(2)].map(of).into()
}

struct Sampler<'a> {
    root: &'a Value,
    fullness: Fullness,
}

impl Sampler<'_> {
    fn sample(&self, schema: &Value, name: &str, depth: usize) -> Value {
        if depth > 12 {
            return Value::Null;
        }
        if let Some(pointer) = schema["$ref"].as_str() {
            let target = self.root.pointer(pointer.trim_start_matches('#')).unwrap_or(&Value::Null);
            return self.sample(target, pointer.rsplit('/').next().unwrap_or_default(), depth + 1);
        }
        let choices = ["oneOf", "anyOf", "allOf"].into_iter().find_map(|it| schema[it].as_array());
        let mut sample = choices.filter(|all| !all.is_empty()).map_or(Value::Null, |choices| {
            self.sample(&choices[self.choice() % choices.len()], name, depth + 1)
        });
        if let Some(constant) = schema.get("const").or_else(|| schema["enum"].get(self.choice())) {
            return constant.clone();
        }
        let own = self.of_kind(schema, name, depth);
        match (&mut sample, own) {
            (Value::Object(one), Value::Object(more)) => one.extend(more),
            (Value::Null, own) => sample = own,
            _ => {}
        }
        sample
    }

    fn choice(&self) -> usize {
        if let Fullness::All(choice) = self.fullness { choice } else { 0 }
    }

    fn of_kind(&self, schema: &Value, name: &str, depth: usize) -> Value {
        let kinds = schema["type"].as_array();
        let kind = kinds.map_or(&schema["type"], |all| &all[self.choice() % all.len()]);
        match kind.as_str() {
            Some("object") => self.object(schema, depth),
            Some("array") => json!([self.sample(&schema["items"], name, depth + 1)]),
            Some("string") => text(schema, name).into(),
            Some("integer") => 7.into(),
            Some("number") => 0.5.into(),
            Some("boolean") => true.into(),
            _ => Value::Null,
        }
    }

    fn object(&self, schema: &Value, depth: usize) -> Value {
        let required = schema["required"].as_array();
        let is_required = |name: &String| required.is_some_and(|all| all.iter().any(|it| it == name));
        let is_taken = |name: &String| matches!(self.fullness, Fullness::All(_)) || is_required(name);
        let fields = schema["properties"].as_object().into_iter().flatten();
        let fields = fields.filter(|(name, _)| is_taken(name));
        let mut object: Map<String, Value> =
            fields.map(|(name, field)| (name.clone(), self.sample(field, name, depth + 1))).collect();
        if schema["additionalProperties"].is_object() && matches!(self.fullness, Fullness::All(_)) {
            object.insert("x86".to_owned(), self.sample(&schema["additionalProperties"], "", depth + 1));
        }
        object.into()
    }
}

/// A text of the type or field with this name.
fn text(schema: &Value, name: &str) -> String {
    let hash = "0123456789abcdef".repeat(4);
    match (schema["format"].as_str(), schema["pattern"].as_str(), name) {
        (Some("uuid"), ..) => ID.to_owned(),
        (_, Some(pattern), _) if pattern.starts_with("^sha256:") => format!("sha256:{hash}"),
        (_, Some(pattern), _) if pattern.contains("blake3/") => format!("{hash}/5"),
        (.., "WorkerId" | "ExecutorId") => "worker-1.0a".to_owned(),
        (.., "ExecutionKey" | "BuildKey") => format!("web/{ID}"),
        (.., "SendingBuild") => format!("worker-1.0a/{ID}/1"),
        (.., "Workspace") => "worker-1.0a/1".to_owned(),
        (.., "ImageReference") => format!("debian@sha256:{hash}"),
        (.., "path" | "JobPath") => "folder/file".to_owned(),
        _ => "web".to_owned(),
    }
}
