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
}

/// Decodes a message.
pub fn decode<T: DeserializeOwned>(encoding: Encoding, payload: &[u8]) -> Result<T, DecodeError> {
    match encoding {
        Encoding::Json => Ok(serde_json::from_slice(payload)?),
        Encoding::MessagePack => Ok(rmp_serde::from_slice(payload)?),
    }
}

/// Encodes a message. Our own types always encode: they hold no map with keys other than text.
pub fn encode<T: Serialize>(encoding: Encoding, message: &T) -> Bytes {
    match encoding {
        Encoding::Json => serde_json::to_vec(message).unwrap_or_default().into(),
        Encoding::MessagePack => rmp_serde::to_vec_named(message).unwrap_or_default().into(),
    }
}
