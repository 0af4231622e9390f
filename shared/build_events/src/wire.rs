//! Changes single fields of encoded messages; all other fields, unknown ones included, keep their bytes.

use bytes::{Buf, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

/// Bytes that are not a message of Protocol Buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not a message of Protocol Buffers")]
pub struct Malformed;

/// What happens to a field.
pub(crate) enum Edit {
    Keep,
    Remove,
    Replace(Vec<u8>),
}

/// A copy of `message` with its length-delimited fields edited.
pub(crate) fn edit(
    message: &[u8],
    mut change: impl FnMut(u32, &[u8]) -> Result<Edit, Malformed>,
) -> Result<Vec<u8>, Malformed> {
    let mut edited = Vec::with_capacity(message.len());
    let mut rest = message;
    while let Some((field, after)) = next(rest)? {
        let raw = rest.get(..rest.len() - after.len()).ok_or(Malformed)?;
        rest = after;
        let Field { tag, value: Some(value) } = field else {
            edited.extend_from_slice(raw);
            continue;
        };
        match change(tag, value)? {
            Edit::Keep => edited.extend_from_slice(raw),
            Edit::Remove => {}
            Edit::Replace(new) => {
                encode_key(tag, WireType::LengthDelimited, &mut edited);
                encode_varint(new.len() as u64, &mut edited);
                edited.extend_from_slice(&new);
            }
        }
    }
    Ok(edited)
}

/// The tags of the length-delimited fields of `message`, in order.
pub(crate) fn tags(message: &[u8]) -> Result<Vec<u32>, Malformed> {
    let (mut found, mut rest) = (Vec::new(), message);
    while let Some((field, after)) = next(rest)? {
        rest = after;
        if field.value.is_some() {
            found.push(field.tag);
        }
    }
    Ok(found)
}

struct Field<'a> {
    tag: u32,
    /// The bytes of a length-delimited field.
    value: Option<&'a [u8]>,
}

/// The first field of `rest`, and what follows it; `None` at the end.
fn next(rest: &[u8]) -> Result<Option<(Field<'_>, &[u8])>, Malformed> {
    if rest.is_empty() {
        return Ok(None);
    }
    let mut left = rest;
    let (tag, kind) = decode_key(&mut left).map_err(|_| Malformed)?;
    let mut skip = |bytes: u64| {
        let bytes = usize::try_from(bytes).map_err(|_| Malformed)?;
        let value = left.get(..bytes).ok_or(Malformed)?;
        left.advance(bytes);
        Ok(value)
    };
    let value = match kind {
        WireType::SixtyFourBit => skip(8).map(|_| None)?,
        WireType::ThirtyTwoBit => skip(4).map(|_| None)?,
        WireType::Varint => decode_varint(&mut left).map(|_| None).map_err(|_| Malformed)?,
        WireType::LengthDelimited => {
            let length = decode_varint(&mut left).map_err(|_| Malformed)?;
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            let value = left.get(..length).ok_or(Malformed)?;
            left.advance(length);
            Some(value)
        }
        // The messages of build events have no groups.
        WireType::StartGroup | WireType::EndGroup => return Err(Malformed),
    };
    Ok(Some((Field { tag, value }, left)))
}

/// The text of a field.
pub(crate) fn text(value: &[u8]) -> Result<&str, Malformed> {
    std::str::from_utf8(value).map_err(|_| Malformed)
}

/// Shares `bytes` if nothing was changed.
pub(crate) fn shared(original: &Bytes, edited: Vec<u8>) -> Bytes {
    if original.as_ref() == edited.as_slice() { original.clone() } else { edited.into() }
}
