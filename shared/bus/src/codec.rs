//! Encodings: JSON, which any client can read, and MessagePack with named fields.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

/// How a message is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// `application/json`
    Json,
    /// `application/msgpack`
    MessagePack,
}

impl Encoding {
    /// The `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::MessagePack => "application/msgpack",
        }
    }

    /// What a message with this `Content-Type` and payload is. Without a header the first byte decides: a
    /// MessagePack map starts with one that no JSON text starts with.
    pub fn of(content_type: Option<&str>, payload: &[u8]) -> Self {
        match content_type {
            Some(text) if text.contains("json") => Self::Json,
            Some(text) if text.contains("msgpack") => Self::MessagePack,
            Some(_) | None => match payload.first() {
                Some(0x80..=0x8f | 0xde | 0xdf) => Self::MessagePack,
                Some(_) | None => Self::Json,
            },
        }
    }
}

/// A payload that is not the message it should be.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// As JSON.
    #[error("the JSON message cannot be read")]
    Json(#[from] serde_json::Error),
    /// As MessagePack.
    #[error("the MessagePack message cannot be read")]
    MessagePack(#[from] rmp_serde::decode::Error),
    /// At one of its fields.
    #[error("field {at} is wrong")]
    Field {
        /// Which: `job.tasks[3].limits`.
        at: String,
        /// How.
        #[source]
        source: Box<Self>,
    },
}

/// Decodes a message.
pub fn decode<T: DeserializeOwned>(encoding: Encoding, payload: &[u8]) -> Result<T, DecodeError> {
    match encoding {
        Encoding::Json => serde_json::from_slice(payload).map_err(|error| {
            let mut again = serde_json::Deserializer::from_slice(payload);
            located::<T, _>(error.into(), &mut again)
        }),
        Encoding::MessagePack => rmp_serde::from_slice(payload).map_err(|error| {
            let mut again = rmp_serde::Deserializer::from_read_ref(payload);
            located::<T, _>(error.into(), &mut again)
        }),
    }
}

/// The error with the field that has it. To keep track of fields costs time, which only those pay who fail.
fn located<'de, T: DeserializeOwned, D: serde::Deserializer<'de>>(
    error: DecodeError,
    again: D,
) -> DecodeError {
    let failed = serde_path_to_error::deserialize::<D, T>(again).err();
    let at = failed.map(|error| error.path().to_string()).unwrap_or_default();
    if at.is_empty() || at == "." { error } else { DecodeError::Field { at, source: Box::new(error) } }
}

/// Encodes a message. Our own types always encode: they hold no map with keys other than text.
pub fn encode<T: Serialize>(encoding: Encoding, message: &T) -> Bytes {
    match encoding {
        Encoding::Json => serde_json::to_vec(message).unwrap_or_default().into(),
        Encoding::MessagePack => rmp_serde::to_vec_named(message).unwrap_or_default().into(),
    }
}

#[cfg(test)]
mod tests {
    use model::BuildRequest;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wrong_field_is_named_in_either_encoding() {
        let message = json!({"job": {"tasks": [{"id": "a"}, {"id": "b", "limits": {"cpu_ms": "much"}}]}});
        for encoding in [Encoding::Json, Encoding::MessagePack] {
            let error = decode::<BuildRequest>(encoding, &encode(encoding, &message)).unwrap_err();
            assert_eq!(error.to_string(), "field job.tasks[1].limits.cpu_ms is wrong", "{encoding:?}");
        }
        let error = decode::<BuildRequest>(Encoding::Json, b"not json").unwrap_err();
        assert_eq!(error.to_string(), "the JSON message cannot be read");
    }
}
