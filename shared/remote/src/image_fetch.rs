//! How much of an image was fetched for an operation.

use model::ImageFetch;
use prost::Message as _;
use prost_types::{Struct, value::Kind};
use reapi::execution::ExecuteOperationMetadata;

/// How much of its image an executor has fetched, while it does that.
pub fn image_fetch(metadata: &ExecuteOperationMetadata) -> Option<ImageFetch> {
    let partial = metadata.partial_execution_metadata.as_ref()?;
    let all =
        partial.auxiliary_metadata.iter().filter(|any| any.type_url.ends_with("google.protobuf.Struct"));
    let mut read = all.filter_map(|any| Struct::decode(any.value.as_slice()).ok());
    read.find_map(|found| {
        let (bytes, fetched_bytes) = (number(&found, "image_bytes")?, number(&found, "image_fetched_bytes")?);
        Some(ImageFetch { bytes, fetched_bytes })
    })
}

fn number(found: &Struct, name: &str) -> Option<u64> {
    match found.fields.get(name)?.kind.as_ref()? {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        Kind::NumberValue(number) => Some(*number as u64),
        Kind::NullValue(_)
        | Kind::StringValue(_)
        | Kind::BoolValue(_)
        | Kind::StructValue(_)
        | Kind::ListValue(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use prost_types::Value;
    use reapi::{execution::ExecutedActionMetadata, protobuf::Any};

    use super::*;

    #[test]
    fn the_fetch_of_an_image_is_found_among_other_facts() {
        let facts = |all: &[(&str, f64)]| {
            let value = |(name, value): &(&str, f64)| {
                ((*name).to_owned(), Value { kind: Some(Kind::NumberValue(*value)) })
            };
            let value = Struct { fields: all.iter().map(value).collect() }.encode_to_vec();
            Any { type_url: "type.googleapis.com/google.protobuf.Struct".to_owned(), value }
        };
        let metadata = |auxiliary_metadata| ExecuteOperationMetadata {
            partial_execution_metadata: Some(ExecutedActionMetadata {
                auxiliary_metadata,
                ..ExecutedActionMetadata::default()
            }),
            ..ExecuteOperationMetadata::default()
        };
        let fetch = facts(&[("image_bytes", 80.0), ("image_fetched_bytes", 12.0)]);
        let found = image_fetch(&metadata(vec![facts(&[("cpu_seconds", 1.0)]), fetch]));
        assert_eq!(found, Some(ImageFetch { bytes: 80, fetched_bytes: 12 }));
        assert_eq!(image_fetch(&metadata(vec![facts(&[("image_bytes", 80.0)])])), None);
        assert_eq!(image_fetch(&ExecuteOperationMetadata::default()), None);
    }
}
