//! Encodings: JSON, which any client can read, and MessagePack with named fields.

use std::time::Duration;

use bytes::Bytes;
use invariant::Present as _;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// JSON, `application/json`; any client can read it.
    Json,
    /// MessagePack with named fields, `application/msgpack`.
    MessagePack,
}

impl Encoding {
    /// The value of the `Content-Type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::MessagePack => "application/msgpack",
        }
    }

    /// Detects the encoding of a message. Without a `Content-Type` the first byte decides: a MessagePack map starts
    /// with a byte that starts no JSON text.
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

/// A payload that cannot be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("the JSON message cannot be read")]
    Json(#[from] serde_json::Error),
    #[error("the MessagePack message cannot be read")]
    MessagePack(#[from] rmp_serde::decode::Error),
    /// One of the fields cannot be decoded.
    #[error("field {at} is invalid")]
    Field {
        /// Path of the field, as in `job.tasks[3].limits`.
        at: String,
        #[source]
        source: Box<Self>,
    },
}

/// The milliseconds of `span`, for the `_ms` fields of messages; the largest number if they are more.
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A message or record in JSON, or some of its fields. `message!` and `fields!` implement it: then the code that reads
/// the type is compiled in this crate, and not in each crate that uses it, where it was more than half of the code.
pub trait FromJson: Sized + Send {
    fn from_json(payload: &[u8]) -> Result<Self, DecodeError>;
}

/// A type of the farm's messages and records, in JSON.
pub trait Message: FromJson {
    fn to_json(&self) -> Bytes;
}

/// A request of the API, which clients may also send in MessagePack.
pub trait FromClient: Sized {
    /// An error names the field that is invalid.
    fn decode(encoding: Encoding, payload: &[u8]) -> Result<Self, DecodeError>;
}

/// An answer of the API; it has the encoding of its request.
pub trait ToClient {
    fn encode(&self, encoding: Encoding) -> Bytes;
}

/// Implements [`Message`] for types.
#[macro_export]
macro_rules! message {
    ($($message:ty),+ $(,)?) => {$(
        $crate::fields!($message);

        impl $crate::Message for $message {
            #[inline(never)]
            fn to_json(&self) -> $crate::hidden::Bytes {
                $crate::hidden::to_json(self)
            }
        }
    )+};
}

/// Implements [`FromJson`] for types that are only read.
#[macro_export]
macro_rules! fields {
    ($($fields:ty),+ $(,)?) => {$(
        impl $crate::FromJson for $fields {
            #[inline(never)]
            fn from_json(payload: &[u8]) -> Result<Self, $crate::DecodeError> {
                $crate::hidden::from_json(payload)
            }
        }
    )+};
}

/// Implements [`FromClient`] for types.
macro_rules! from_client {
    ($($request:ty),+ $(,)?) => {$(
        impl $crate::FromClient for $request {
            #[inline(never)]
            fn decode(encoding: $crate::Encoding, payload: &[u8]) -> Result<Self, $crate::DecodeError> {
                $crate::codec::decode(encoding, payload)
            }
        }
    )+};
}

/// Implements [`ToClient`] for types.
macro_rules! to_client {
    ($($answer:ty),+ $(,)?) => {$(
        impl $crate::ToClient for $answer {
            #[inline(never)]
            fn encode(&self, encoding: $crate::Encoding) -> ::bytes::Bytes {
                $crate::codec::encode(encoding, self)
            }
        }
    )+};
}
pub(crate) use {from_client, to_client};

pub fn from_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, DecodeError> {
    Ok(serde_json::from_slice(payload)?)
}

pub(crate) fn decode<T: DeserializeOwned>(encoding: Encoding, payload: &[u8]) -> Result<T, DecodeError> {
    let decoded = match encoding {
        Encoding::Json => serde_json::from_slice(payload).map_err(DecodeError::from),
        Encoding::MessagePack => from_message_pack(payload).map_err(DecodeError::from),
    };
    decoded.map_err(|error| match untyped(encoding, payload) {
        Some(value) => with_field_path::<T>(error, value),
        None => error,
    })
}

/// As deep as JSON may be: each level takes a part of the stack.
const DEPTH_MAX: usize = 128;

fn from_message_pack<T: DeserializeOwned>(payload: &[u8]) -> Result<T, rmp_serde::decode::Error> {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(payload);
    decoder.set_max_depth(DEPTH_MAX);
    T::deserialize(&mut decoder)
}

fn untyped(encoding: Encoding, payload: &[u8]) -> Option<Value> {
    match encoding {
        Encoding::Json => serde_json::from_slice(payload).ok(),
        Encoding::MessagePack => from_message_pack(payload).ok(),
    }
}

/// Adds the path of the field to an error. Tracking paths costs time, so a message is decoded again only on failure; and
/// from one form of both encodings, because the code that tracks a type is compiled once per form.
fn with_field_path<T: DeserializeOwned>(error: DecodeError, again: Value) -> DecodeError {
    let failed = serde_path_to_error::deserialize::<Value, T>(again).err();
    let at = failed.map(|error| error.path().to_string()).unwrap_or_default();
    if at.is_empty() || at == "." { error } else { DecodeError::Field { at, source: Box::new(error) } }
}

/// The types of this farm always encode: they contain only maps with text keys.
pub fn to_json<T: Serialize>(message: &T) -> Bytes {
    serde_json::to_vec(message).present("a message as JSON").into()
}

pub(crate) fn encode<T: Serialize>(encoding: Encoding, message: &T) -> Bytes {
    match encoding {
        Encoding::Json => to_json(message),
        Encoding::MessagePack => rmp_serde::to_vec_named(message).present("a message as MessagePack").into(),
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
            let error = BuildRequest::decode(encoding, &encode(encoding, &message)).unwrap_err();
            assert_eq!(error.to_string(), "field job.tasks[1].limits.cpu_ms is invalid", "{encoding:?}");
        }
        let error = BuildRequest::decode(Encoding::Json, b"not json").unwrap_err();
        assert_eq!(error.to_string(), "the JSON message cannot be read");
    }
}
