//! The provenance of a result, in its `execution_metadata.auxiliary_metadata`: a `google.protobuf.Struct` with the field
//! `provenance`, so that tools of others can show it.

use model::Provenance;
use prost::Message as _;
use prost_types::{Struct, Value, value::Kind};

use crate::{execution::ActionResult, protobuf::Any};

const TYPE: &str = "type.googleapis.com/google.protobuf.Struct";
const FIELD: &str = "provenance";

/// Adds the provenance of a result, in place of one that it has.
pub fn set(result: &mut ActionResult, provenance: &Provenance) {
    remove(result);
    let Ok(json) = serde_json::to_value(provenance) else { return };
    let fields = [(FIELD.to_owned(), value_of(&json))].into();
    let any = Any { type_url: TYPE.to_owned(), value: Struct { fields }.encode_to_vec() };
    result.execution_metadata.get_or_insert_default().auxiliary_metadata.push(any);
}

/// The provenance of a result; none if it has none, as results of earlier versions.
pub fn of(result: &ActionResult) -> Option<Provenance> {
    let all = &result.execution_metadata.as_ref()?.auxiliary_metadata;
    all.iter().find_map(|any| serde_json::from_value(json_of(&field(any)?)?).ok())
}

/// Removes what a result says of its provenance.
pub fn remove(result: &mut ActionResult) {
    if let Some(metadata) = &mut result.execution_metadata {
        metadata.auxiliary_metadata.retain(|any| field(any).is_none());
    }
}

fn field(any: &Any) -> Option<Value> {
    (any.type_url == TYPE).then_some(())?;
    Struct::decode(any.value.as_slice()).ok()?.fields.remove(FIELD)
}

fn value_of(json: &serde_json::Value) -> Value {
    let kind = match json {
        serde_json::Value::Object(fields) => Kind::StructValue(Struct {
            fields: fields.iter().map(|(name, value)| (name.clone(), value_of(value))).collect(),
        }),
        serde_json::Value::String(text) => Kind::StringValue(text.clone()),
        // Times in milliseconds are exact for 285,000 years.
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::Bool(is) => Kind::BoolValue(*is),
        serde_json::Value::Null | serde_json::Value::Array(_) => Kind::NullValue(0),
    };
    Value { kind: Some(kind) }
}

fn json_of(value: &Value) -> Option<serde_json::Value> {
    Some(match value.kind.as_ref()? {
        Kind::StructValue(of) => serde_json::Value::Object(
            of.fields
                .iter()
                .map(|(name, value)| Some((name.clone(), json_of(value)?)))
                .collect::<Option<_>>()?,
        ),
        Kind::StringValue(text) => text.clone().into(),
        Kind::NumberValue(number) => whole(*number)?.into(),
        Kind::BoolValue(is) => (*is).into(),
        Kind::NullValue(_) => serde_json::Value::Null,
        Kind::ListValue(_) => return None,
    })
}

/// A number that is not negative and has no fraction.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked before")]
fn whole(number: f64) -> Option<u64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    ((0.0..EXACT).contains(&number) && number.fract() == 0.0).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use model::{DigestFunction, Millis};

    use super::*;

    fn provenance() -> Provenance {
        let json = serde_json::json!({
            "caller": "key:ci", "zone": "main", "action": DigestFunction::Blake3.digest(b"x"), "executor": "e1",
            "image": DigestFunction::Sha256.digest(b"i"), "at_ms": 1_700_000_000_123_u64
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_result_has_one_provenance_which_reads_back() {
        let mut result = ActionResult::default();
        assert_eq!(of(&result), None);
        set(&mut result, &provenance());
        assert_eq!(of(&result), Some(provenance()));
        let later = Provenance { at_ms: Millis(1), ..provenance() };
        set(&mut result, &later);
        assert_eq!(of(&result), Some(later));
        remove(&mut result);
        assert_eq!(of(&result), None);
        assert!(result.execution_metadata.unwrap().auxiliary_metadata.is_empty());
    }

    #[test]
    fn other_metadata_stays() {
        let usage = Any { type_url: TYPE.to_owned(), value: Struct::default().encode_to_vec() };
        let broken = Any { type_url: TYPE.to_owned(), value: vec![0xff] };
        let mut result = ActionResult::default();
        result.execution_metadata.get_or_insert_default().auxiliary_metadata = vec![usage, broken];
        set(&mut result, &provenance());
        remove(&mut result);
        assert_eq!(result.execution_metadata.unwrap().auxiliary_metadata.len(), 2);
    }
}
